/* SPDX-License-Identifier: Apache-2.0
 *
 * device_int: what the .cu files share. They are compiled by nvcc for devices, and once more by the
 * host's compiler for the simulated one, which then has to know __global__, threadIdx and their kin
 * before this file. So every launch goes through gpu_launch, memory of a block through GPU_SHARED,
 * and there is neither inline PTX nor a cooperative group.
 *
 * Blocks have at most GPU_BLOCK threads.
 */
#ifndef CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH
#define CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH

#include <stddef.h>

#include <type_traits>
#include <utility>

#include "kernels/cuda/gpu_int.h"

constexpr unsigned GPU_BLOCK = 256, GPU_MOST_BLOCKS = 1 << 16;

/* GPU_SHARED(double, part, GPU_BLOCK): an array of the block. The simulation has its own. */
#ifndef GPU_SHARED
#define GPU_SHARED(type, name, n) __shared__ type name[n]
#endif

/* GPU_FOR(i, n): i over what of 0..n-1 is this thread's, n a size_t. */
#define GPU_FOR(i, n)                                                                          \
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                     \
       i += (size_t)gridDim.x * blockDim.x)

/* Blocks where each takes one of n rows after another. */
static inline unsigned gpu_blocks_of_rows(size_t n) {
  return n < 1 ? 1u : n > GPU_MOST_BLOCKS ? GPU_MOST_BLOCKS : (unsigned)n;
}
/* Blocks that give each of n values a thread of its own, up to the most. */
static inline unsigned gpu_blocks(size_t n) {
  return gpu_blocks_of_rows((n + GPU_BLOCK - 1) / GPU_BLOCK);
}

/* ---- launches -------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define GPU_CALLER(kernel) nullptr
#else
template <auto Kernel, typename... P, size_t... I>
static void gpu_call_with(void *const *args, void (*)(P...), std::index_sequence<I...>) {
  Kernel(*static_cast<P *>(args[I])...);
}
template <typename... P>
static constexpr size_t gpu_count(void (*)(P...)) {
  return sizeof...(P);
}
template <auto Kernel>
static void gpu_call(void *const *args) {
  gpu_call_with<Kernel>(args, Kernel, std::make_index_sequence<gpu_count(Kernel)>());
}
#define GPU_CALLER(kernel) gpu_call<kernel>
#endif

template <typename... P>
static clv_code gpu_launch_as(clv_gpu *g, const char *name, void (*kernel)(P...),
                              void (*call)(void *const *), unsigned blocks, unsigned threads,
                              clv_err *err, std::common_type_t<P>... args) {
  void *list[] = {const_cast<void *>(static_cast<const void *>(&args))...};
  static constexpr bool is_pointer[] = {std::is_pointer<P>::value...};
  clv_cuda_launch l = {};
  l.name = name;
  l.kernel = reinterpret_cast<const void *>(kernel);
  l.call = call;
  l.grid[0] = blocks;
  l.grid[1] = 1;
  l.block = threads;
  l.n_args = static_cast<int>(sizeof...(P));
  l.args = list;
  l.is_pointer = is_pointer;
  return g->vendor->launch(g->stream, &l, err);
}

/* gpu_launch(g, blocks, threads, err, kernel, arguments...) */
#define gpu_launch(g, blocks, threads, err, kernel, ...) \
  gpu_launch_as(g, #kernel, kernel, GPU_CALLER(kernel), blocks, threads, err, __VA_ARGS__)

/* ---- sums of a block ------------------------------------------------------------------------- */

/* The sum of every thread's value, in a tree whose shape is the block's; for all threads of it. The
 * block has a power of two of threads, at most GPU_BLOCK. */
template <typename Real>
static __device__ Real gpu_block_sum(Real value) {
  GPU_SHARED(Real, part, GPU_BLOCK);
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    __syncthreads();
  }
  Real sum = part[0];
  __syncthreads();
  return sum;
}

/* The greatest; a NaN among them wins. */
static __device__ inline float gpu_block_max(float value) {
  GPU_SHARED(float, part, GPU_BLOCK);
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width) {
      float other = part[threadIdx.x + width];
      if (!(part[threadIdx.x] >= other) && part[threadIdx.x] == part[threadIdx.x])
        part[threadIdx.x] = other;
    }
    __syncthreads();
  }
  float most = part[0];
  __syncthreads();
  return most;
}

#endif
