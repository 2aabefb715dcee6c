/* SPDX-License-Identifier: Apache-2.0
 *
 * device_int: types, macros and functions that the .cu files share. nvcc compiles them for devices,
 * and the host's compiler compiles them again for the simulated device, which must define
 * __global__, threadIdx and the like before this file. Therefore every launch uses gpu_launch,
 * block memory uses GPU_SHARED, and there is neither inline PTX nor a cooperative group.
 *
 * Blocks have at most GPU_BLOCK threads.
 */
#ifndef CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH
#define CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH

#include <stddef.h>

#include <type_traits>
#include <utility>

#include "kernels/cuda/gpu_int.h"

/* GPU_MAX_BLOCKS: largest number of blocks of a launch. GPU_BLOCK: threads of a block, a multiple
 * of a warp. If there are more values than threads, each thread loops. A simulated device may have
 * fewer blocks and threads. */
#ifndef GPU_FEWER_BLOCKS
#define GPU_FEWER_BLOCKS (1 << 16)
#endif
#ifndef GPU_FEWER_THREADS
#define GPU_FEWER_THREADS 256
#endif
constexpr unsigned GPU_BLOCK = GPU_FEWER_THREADS, GPU_MAX_BLOCKS = GPU_FEWER_BLOCKS;

/* GPU_SHARED(double, part, GPU_BLOCK) declares an array shared by the block. The simulation has
 * its own definition. */
#ifndef GPU_SHARED
#define GPU_SHARED(type, name, n) __shared__ type name[n]
#endif

/* GPU_FOR(i, n) loops i over this thread's part of 0..n-1; n is a size_t. */
#define GPU_FOR(i, n)                                                     \
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
       i += (size_t)gridDim.x * blockDim.x)

/* Returns the number of blocks of a launch in which each block processes rows of n, one after
 * another. */
static inline unsigned gpu_blocks_of_rows(size_t n) {
  return n < 1 ? 1u : n > GPU_MAX_BLOCKS ? GPU_MAX_BLOCKS : (unsigned)n;
}
/* Returns the number of blocks that gives each of n values its own thread, up to the limit. */
static inline unsigned gpu_blocks(size_t n) {
  return gpu_blocks_of_rows((n + GPU_BLOCK - 1) / GPU_BLOCK);
}

/* ---- launches of kernels --------------------------------------------------------------------- */

#ifdef __CUDACC__
#define GPU_CALLER(kernel) nullptr
#define GPU_UNROLL _Pragma("unroll")
#else
#define GPU_UNROLL
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

/* Grid of one or two dimensions. */
struct cuda_grid {
  unsigned x, y;
  cuda_grid(unsigned blocks, unsigned rows = 1) : x(blocks), y(rows) {}
};

template <typename... P>
static clv_code gpu_launch_as(clv_gpu *g, const char *name, void (*kernel)(P...),
                              void (*call)(void *const *), cuda_grid blocks, unsigned threads,
                              clv_err *err, std::common_type_t<P>... args) {
  void *list[] = {const_cast<void *>(static_cast<const void *>(&args))...};
  static constexpr size_t arg_bytes[] = {sizeof(P)...};
  static constexpr bool is_pointer[] = {std::is_pointer<P>::value...};
  clv_cuda_launch l = {};
  l.name = name;
  l.kernel = reinterpret_cast<const void *>(kernel);
  l.call = call;
  l.grid[0] = blocks.x;
  l.grid[1] = blocks.y;
  l.block = threads;
  l.n_args = static_cast<int>(sizeof...(P));
  l.args = list;
  l.arg_bytes = arg_bytes;
  l.is_pointer = is_pointer;
  return g->vendor->launch(g->stream, &l, err);
}

/* gpu_launch(g, blocks, threads, err, kernel, arguments...) launches the kernel on g's stream. */
#define gpu_launch(g, blocks, threads, err, kernel, ...) \
  gpu_launch_as(g, #kernel, kernel, GPU_CALLER(kernel), blocks, threads, err, __VA_ARGS__)

/* ---- values in f32 or bf16 ------------------------------------------------------------------- */

/* Values are f32, or bf16 with channels last: kernels are templates of the type. Arithmetic is f32,
 * or double for long sums. */
static __device__ inline float gpu_get(float x) { return x; }
static __device__ inline float gpu_get(cuda_bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

/* Converts to T. bf16 is rounded to nearest even; a NaN stays a NaN. */
template <typename T>
static __device__ inline T gpu_as(float x) {
  if constexpr (std::is_same<T, float>::value) {
    return x;
  } else {
    unsigned bits = __float_as_uint(x);
    if (x != x) return static_cast<T>(bits >> 16 | 0x40);
    return static_cast<T>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

/* Returns x rounded to T and converted back to f32. */
template <typename T>
static __device__ inline float gpu_round(float x) {
  return gpu_get(gpu_as<T>(x));
}

template <typename T>
static inline const T *gpu_input(const void *p) {
  return static_cast<const T *>(p);
}
template <typename T>
static inline T *gpu_output(void *p) {
  return static_cast<T *>(p);
}

/* GPU_BY_TYPE(is_bf16, f, arguments...) calls the template f with the type cuda_bf16 if `is_bf16`,
 * else with the type float. */
#define GPU_BY_TYPE(is_bf16, f, ...) ((is_bf16) ? f<cuda_bf16>(__VA_ARGS__) : f<float>(__VA_ARGS__))

/* ---- sums of a block ------------------------------------------------------------------------- */

/* Returns to all threads the sum of the block's values, added in a tree whose shape is the block's.
 * The block has a power of two of threads, at most GPU_BLOCK. */
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

/* Returns the greater number; a NaN counts as greatest. */
static __device__ inline float gpu_greater(float a, float b) { return a != a || a >= b ? a : b; }

static __device__ inline float gpu_block_max(float value) {
  GPU_SHARED(float, part, GPU_BLOCK);
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width)
      part[threadIdx.x] = gpu_greater(part[threadIdx.x], part[threadIdx.x + width]);
    __syncthreads();
  }
  float most = part[0];
  __syncthreads();
  return most;
}

/* Returns the number of threads for a row of `width` values: a power of two, from a warp to
 * GPU_BLOCK. */
static inline unsigned gpu_row_threads(size_t width) {
  unsigned n = 32;
  while (n < GPU_BLOCK && n < width) n *= 2;
  return n;
}

/* GPU_ROWS(r, n) loops r over this block's rows of 0..n-1. GPU_ROW(i, n) loops i over this thread's
 * part of a row's 0..n-1. */
#define GPU_ROWS(r, n) for (size_t r = blockIdx.x; r < (n); r += gridDim.x)
#define GPU_ROW(i, n) for (size_t i = threadIdx.x; i < (n); i += blockDim.x)

/* ---- sums of a channel ----------------------------------------------------------------------- */

static __device__ inline cuda_pair &operator+=(cuda_pair &a, const cuda_pair &b) {
  a.first += b.first;
  a.second += b.second;
  return a;
}

/* Computes one partial sum of one channel, of term(at, c) over its values, where `at`
 * is a value's index. */
template <typename Term>
static __global__ void gpu_parts_kernel(Term term, cuda_sums s, cuda_pair *partial_sums) {
  size_t c = blockIdx.x, begin = blockIdx.y * s.values_per_slab, end = begin + s.values_per_slab;
  if (end > s.n * s.inner) end = s.n * s.inner;
  cuda_pair sum = {0, 0};
  for (size_t j = begin + threadIdx.x; j < end; j += blockDim.x)
    sum += term((j / s.inner * s.channels + c) * s.inner + j % s.inner, c);
  sum = gpu_block_sum(sum);
  if (threadIdx.x == 0) partial_sums[blockIdx.y * s.channels + c] = sum;
}

/* As gpu_parts_kernel, for inner 1, where a channel's values are not adjacent. Neighbouring threads
 * process neighbouring channels, and each warp of a block a part of a channel's values. */
template <typename Term>
static __global__ void gpu_columns_kernel(Term term, cuda_sums s, cuda_pair *partial_sums) {
  GPU_SHARED(cuda_pair, lane, GPU_BLOCK);
  size_t c = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
  size_t begin = blockIdx.y * s.values_per_slab, end = begin + s.values_per_slab;
  if (end > s.n) end = s.n;
  cuda_pair sum = {0, 0};
  if (c < s.channels)
    for (size_t j = begin + threadIdx.x / 32; j < end; j += GPU_BLOCK / 32)
      sum += term(j * s.channels + c, c);
  lane[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned width = GPU_BLOCK / 2; width >= 32; width /= 2) {
    if (threadIdx.x < width) lane[threadIdx.x] += lane[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x < 32 && c < s.channels)
    partial_sums[blockIdx.y * s.channels + c] = lane[threadIdx.x];
}

/* Writes partial_sums[slab][c] of a sum whose term is a struct with `cuda_pair
 * operator()(size_t at, size_t c)`. */
template <typename Term>
static clv_code gpu_compute_partial_sums(clv_gpu *g, const cuda_sums *s, Term term,
                                         void *partial_sums, clv_err *err) {
  cuda_pair *to = static_cast<cuda_pair *>(partial_sums);
  unsigned slabs = static_cast<unsigned>(s->slabs), channels = static_cast<unsigned>(s->channels);
  if (s->inner == 1 && s->channels > 1)
    return gpu_launch(g, cuda_grid((channels + 31) / 32, slabs), GPU_BLOCK, err,
                      gpu_columns_kernel<Term>, term, *s, to);
  return gpu_launch(g, cuda_grid(channels, slabs), GPU_BLOCK, err, gpu_parts_kernel<Term>, term, *s,
                    to);
}

/* Adds all partial sums of channel c, in order. */
static __device__ inline cuda_pair gpu_total(const cuda_sums &s, const cuda_pair *partial_sums,
                                             size_t c) {
  cuda_pair sum = {0, 0};
  for (size_t slab = 0; slab < s.slabs; slab++) sum += partial_sums[slab * s.channels + c];
  return sum;
}

static __device__ inline void gpu_put(float *dst, double value, bool accumulate) {
  *dst = accumulate ? *dst + (float)value : (float)value;
}

/* ---- records of refused values --------------------------------------------------------------- */

/* Marks the value at index `index` as refused. Any thread may call this function. */
static __device__ inline void gpu_refuse(clv_gpu_fault *f, size_t index) {
  atomicMax(&f->index_complement, ~(unsigned long long)index);
}

/* The fields of clv_gpu_fault that do not depend on the refused value. */
struct cuda_refusal {
  int32_t op;
  uint32_t layer;
  int64_t limit, per_sample;
};

/* Records the first refused value in the fault. One thread calls it, after the launch that may have
 * refused some of `values`. */
template <typename Value>
static __device__ void gpu_note(clv_gpu_fault *f, const Value *values, const cuda_refusal &r) {
  if (f->is_set || !f->index_complement) return;
  f->is_set = true;
  f->op = r.op;
  f->layer = r.layer;
  f->at = ~f->index_complement;
  if constexpr (std::is_integral<Value>::value)
    f->int_value = values[f->at];
  else
    f->value = static_cast<double>(values[f->at]);
  f->limit = r.limit;
  f->per_sample = r.per_sample;
}

#endif
