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

/* Blocks of a launch whose threads take one value after another, and threads of a block: some
 * warps. A simulation may have fewer. */
#ifndef GPU_FEWER_BLOCKS
#define GPU_FEWER_BLOCKS (1 << 16)
#endif
#ifndef GPU_FEWER_THREADS
#define GPU_FEWER_THREADS 256
#endif
constexpr unsigned GPU_BLOCK = GPU_FEWER_THREADS, GPU_MOST_BLOCKS = GPU_FEWER_BLOCKS;

/* GPU_SHARED(double, part, GPU_BLOCK): an array of the block. The simulation has its own. */
#ifndef GPU_SHARED
#define GPU_SHARED(type, name, n) __shared__ type name[n]
#endif

/* GPU_FOR(i, n): i over what of 0..n-1 is this thread's, n a size_t. */
#define GPU_FOR(i, n)                                                     \
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
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

/* A number of blocks, or two. */
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

/* gpu_launch(g, blocks, threads, err, kernel, arguments...) */
#define gpu_launch(g, blocks, threads, err, kernel, ...) \
  gpu_launch_as(g, #kernel, kernel, GPU_CALLER(kernel), blocks, threads, err, __VA_ARGS__)

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* Values are f32, or bf16 with channels last: kernels are templates of the type. What is computed
 * is f32, or double where sums are long. */
static __device__ inline float gpu_get(float x) { return x; }
static __device__ inline float gpu_get(cuda_bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

/* bf16: to nearest even; a NaN stays one. */
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

/* The number that is read where x is written. */
template <typename T>
static __device__ inline float gpu_rounded(float x) {
  return gpu_get(gpu_as<T>(x));
}

template <typename T>
static inline const T *gpu_read(const void *p) {
  return static_cast<const T *>(p);
}
template <typename T>
static inline T *gpu_written(void *p) {
  return static_cast<T *>(p);
}

/* GPU_BY_TYPE(last, f, arguments...): f<cuda_bf16>(...) or f<float>(...) */
#define GPU_BY_TYPE(last, f, ...) ((last) ? f<cuda_bf16>(__VA_ARGS__) : f<float>(__VA_ARGS__))

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

/* The greater; a NaN wins. */
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

/* Threads for a row of `width` values: a power of two, from a warp to GPU_BLOCK. */
static inline unsigned gpu_row_threads(size_t width) {
  unsigned n = 32;
  while (n < GPU_BLOCK && n < width) n *= 2;
  return n;
}

/* GPU_ROWS(r, n): r over the rows of 0..n-1 that are this block's. GPU_ROW(i, n): i over what of a
 * row's 0..n-1 is this thread's. */
#define GPU_ROWS(r, n) for (size_t r = blockIdx.x; r < (n); r += gridDim.x)
#define GPU_ROW(i, n) for (size_t i = threadIdx.x; i < (n); i += blockDim.x)

/* ---- sums of a channel ----------------------------------------------------------------------- */

static __device__ inline cuda_pair &operator+=(cuda_pair &a, const cuda_pair &b) {
  a.first += b.first;
  a.second += b.second;
  return a;
}

/* One part of one channel: term(at, c) of each of its values, at being their index. */
template <typename Term>
static __global__ void gpu_parts_kernel(Term term, cuda_sums s, cuda_pair *parts) {
  size_t c = blockIdx.x, begin = blockIdx.y * s.per_slab, end = begin + s.per_slab;
  if (end > s.n * s.inner) end = s.n * s.inner;
  cuda_pair sum = {0, 0};
  for (size_t j = begin + threadIdx.x; j < end; j += blockDim.x)
    sum += term((j / s.inner * s.channels + c) * s.inner + j % s.inner, c);
  sum = gpu_block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.y * s.channels + c] = sum;
}

/* The same where a channel's values are not side by side (inner is 1): neighbouring threads take
 * neighbouring channels, each of a block's warps one of a channel's values after another. */
template <typename Term>
static __global__ void gpu_columns_kernel(Term term, cuda_sums s, cuda_pair *parts) {
  GPU_SHARED(cuda_pair, lane, GPU_BLOCK);
  size_t c = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
  size_t begin = blockIdx.y * s.per_slab, end = begin + s.per_slab;
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
  if (threadIdx.x < 32 && c < s.channels) parts[blockIdx.y * s.channels + c] = lane[threadIdx.x];
}

/* parts[slab][c] of a sum whose term is a struct with `cuda_pair operator()(size_t at, size_t c)`. */
template <typename Term>
static clv_code gpu_parts(clv_gpu *g, const cuda_sums *s, Term term, void *parts, clv_err *err) {
  cuda_pair *to = static_cast<cuda_pair *>(parts);
  unsigned slabs = static_cast<unsigned>(s->slabs), channels = static_cast<unsigned>(s->channels);
  if (s->inner == 1 && s->channels > 1)
    return gpu_launch(g, cuda_grid((channels + 31) / 32, slabs), GPU_BLOCK, err,
                      gpu_columns_kernel<Term>, term, *s, to);
  return gpu_launch(g, cuda_grid(channels, slabs), GPU_BLOCK, err, gpu_parts_kernel<Term>, term, *s,
                    to);
}

/* All parts of channel c, in order. */
static __device__ inline cuda_pair gpu_total(const cuda_sums &s, const cuda_pair *parts, size_t c) {
  cuda_pair sum = {0, 0};
  for (size_t slab = 0; slab < s.slabs; slab++) sum += parts[slab * s.channels + c];
  return sum;
}

static __device__ inline void gpu_put(float *dst, double value, bool accumulate) {
  *dst = accumulate ? *dst + (float)value : (float)value;
}

/* ---- values that are refused ----------------------------------------------------------------- */

/* By any thread: the value at `place` is refused. */
static __device__ inline void gpu_refuse(clv_gpu_fault *f, size_t place) {
  atomicMax(&f->place, ~(unsigned long long)place);
}

/* What a note says beside place and value. */
struct cuda_refusal {
  int32_t op;
  uint32_t layer;
  int64_t limit, per_sample;
};

/* By one thread, after the launch that may have refused some of `values`. */
template <typename Value>
static __device__ void gpu_note(clv_gpu_fault *f, const Value *values, const cuda_refusal &r) {
  if (f->noted || !f->place) return;
  f->noted = true;
  f->op = r.op;
  f->layer = r.layer;
  f->at = ~f->place;
  if constexpr (std::is_integral<Value>::value)
    f->whole = values[f->at];
  else
    f->value = static_cast<double>(values[f->at]);
  f->limit = r.limit;
  f->per_sample = r.per_sample;
}

#endif
