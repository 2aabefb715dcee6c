/* SPDX-License-Identifier: Apache-2.0
 *
 * device_int: types, macros and functions for all .cu files. nvcc compiles these files for devices,
 * and the host's compiler compiles them again for the simulated device, whose header defines
 * __global__, threadIdx and so on before it includes this file. Therefore every launch uses
 * gpu_launch, shared memory uses GPU_SHARED, and no file has inline PTX or cooperative groups.
 *
 * Blocks have at most GPU_BLOCK threads.
 */
#ifndef CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH
#define CLEAVE_KERNELS_CUDA_DEVICE_INT_CUH

#include <stddef.h>

#include <type_traits>
#include <utility>

#include "kernels/cuda/gpu_int.h"

/* GPU_MAX_BLOCKS: largest number of blocks of a launch. GPU_BLOCK: largest number of threads of a
 * block, a multiple of the 32 of a warp. If there are more values than threads, each thread loops.
 * The simulated device may set smaller numbers. */
#ifndef GPU_FEWER_BLOCKS
#define GPU_FEWER_BLOCKS (1 << 16)
#endif
#ifndef GPU_FEWER_THREADS
#define GPU_FEWER_THREADS 256
#endif
constexpr unsigned GPU_BLOCK = GPU_FEWER_THREADS, GPU_MAX_BLOCKS = GPU_FEWER_BLOCKS;

/* GPU_SHARED(double, sums, GPU_BLOCK) declares an array in the shared memory of a block. The
 * simulated device has its own definition. */
#ifndef GPU_SHARED
#define GPU_SHARED(type, name, n) __shared__ type name[n]
#endif

/* GPU_FOR(i, n) loops i over those of 0..n-1 that this thread processes; n is a size_t. */
#define GPU_FOR(i, n)                                                     \
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
       i += (size_t)gridDim.x * blockDim.x)

/* Returns the number of blocks of a launch over n rows, in which a block processes one row at a
 * time. */
static inline unsigned gpu_count_row_blocks(size_t n) {
  return n < 1 ? 1u : n > GPU_MAX_BLOCKS ? GPU_MAX_BLOCKS : (unsigned)n;
}
/* Returns the number of blocks of a launch over n values, with a thread for each value unless that
 * needs more than GPU_MAX_BLOCKS. */
static inline unsigned gpu_count_blocks(size_t n) {
  return gpu_count_row_blocks((n + GPU_BLOCK - 1) / GPU_BLOCK);
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
static constexpr size_t gpu_count_parameters(void (*)(P...)) {
  return sizeof...(P);
}
template <auto Kernel>
static void gpu_call(void *const *args) {
  gpu_call_with<Kernel>(args, Kernel, std::make_index_sequence<gpu_count_parameters(Kernel)>());
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
  void *arg_list[] = {const_cast<void *>(static_cast<const void *>(&args))...};
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
  l.args = arg_list;
  l.arg_bytes = arg_bytes;
  l.is_pointer = is_pointer;
  return g->vendor->launch(g->stream, &l, err);
}

/* gpu_launch(g, blocks, threads, err, kernel, arguments...) launches the kernel on g's stream. */
#define gpu_launch(g, blocks, threads, err, kernel, ...) \
  gpu_launch_as(g, #kernel, kernel, GPU_CALLER(kernel), blocks, threads, err, __VA_ARGS__)

/* ---- values in f32 or bf16 ------------------------------------------------------------------- */

/* Kernels are templates of the type of values: f32, or bf16 with channels last. The arithmetic is
 * f32, or double for long sums. */
static __device__ inline float gpu_to_float(float x) { return x; }
static __device__ inline float gpu_to_float(cuda_bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

/* Returns x converted to T, f32 or bf16. bf16 is rounded to nearest even; a NaN stays a NaN. */
template <typename T>
static __device__ inline T gpu_from_float(float x) {
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
  return gpu_to_float(gpu_from_float<T>(x));
}

template <typename T>
static inline const T *gpu_cast_input(const void *p) {
  return static_cast<const T *>(p);
}
template <typename T>
static inline T *gpu_cast_output(void *p) {
  return static_cast<T *>(p);
}

/* GPU_BY_TYPE(is_bf16, f, arguments...) calls the template f with the type cuda_bf16 if `is_bf16`,
 * else with the type float. */
#define GPU_BY_TYPE(is_bf16, f, ...) ((is_bf16) ? f<cuda_bf16>(__VA_ARGS__) : f<float>(__VA_ARGS__))

/* ---- sums of a block ------------------------------------------------------------------------- */

/* Returns to all threads the sum of one value of each thread of the block, added pairwise in a
 * tree, so that the order depends only on the number of threads. That number is a power of two, at
 * most GPU_BLOCK. */
template <typename Real>
static __device__ Real gpu_block_sum(Real value) {
  GPU_SHARED(Real, shared_values, GPU_BLOCK);
  shared_values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width) shared_values[threadIdx.x] += shared_values[threadIdx.x + width];
    __syncthreads();
  }
  Real sum = shared_values[0];
  __syncthreads();
  return sum;
}

/* Returns the larger number; if one is a NaN, returns NaN. */
static __device__ inline float gpu_max_or_nan(float a, float b) { return a != a || a >= b ? a : b; }

static __device__ inline float gpu_block_max(float value) {
  GPU_SHARED(float, shared_values, GPU_BLOCK);
  shared_values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width /= 2) {
    if (threadIdx.x < width)
      shared_values[threadIdx.x] =
          gpu_max_or_nan(shared_values[threadIdx.x], shared_values[threadIdx.x + width]);
    __syncthreads();
  }
  float largest = shared_values[0];
  __syncthreads();
  return largest;
}

/* Returns the number of threads of a block for a row of `width` values: a power of two, at least
 * the 32 of a warp and at most GPU_BLOCK. */
static inline unsigned gpu_count_row_threads(size_t width) {
  unsigned n = 32;
  while (n < GPU_BLOCK && n < width) n *= 2;
  return n;
}

/* GPU_ROWS(r, n) loops r over those of the rows 0..n-1 that this block processes. GPU_ROW(i, n)
 * loops i over those of a row's values 0..n-1 that this thread of the block processes. */
#define GPU_ROWS(r, n) for (size_t r = blockIdx.x; r < (n); r += gridDim.x)
#define GPU_ROW(i, n) for (size_t i = threadIdx.x; i < (n); i += blockDim.x)

/* ---- sums of a channel ----------------------------------------------------------------------- */

static __device__ inline cuda_pair &operator+=(cuda_pair &a, const cuda_pair &b) {
  a.first += b.first;
  a.second += b.second;
  return a;
}

/* Computes the partial sum of one slab of one channel c: the sum of term(index, c) over the indices
 * of the slab's values. */
template <typename Term>
static __global__ void gpu_sum_slabs_kernel(Term term, cuda_sum_layout s, cuda_pair *partial_sums) {
  size_t c = blockIdx.x, begin = blockIdx.y * s.values_per_slab, end = begin + s.values_per_slab;
  if (end > s.n * s.inner) end = s.n * s.inner;
  cuda_pair sum = {0, 0};
  for (size_t j = begin + threadIdx.x; j < end; j += blockDim.x)
    sum += term((j / s.inner * s.channels + c) * s.inner + j % s.inner, c);
  sum = gpu_block_sum(sum);
  if (threadIdx.x == 0) partial_sums[blockIdx.y * s.channels + c] = sum;
}

/* As gpu_sum_slabs_kernel, but for inner 1, so that no two values of a channel are adjacent: a
 * block sums 32 adjacent channels, one in each lane of its warps. */
template <typename Term>
static __global__ void gpu_sum_columns_kernel(Term term, cuda_sum_layout s, cuda_pair *partial_sums) {
  GPU_SHARED(cuda_pair, lane_sums, GPU_BLOCK);
  size_t c = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
  size_t begin = blockIdx.y * s.values_per_slab, end = begin + s.values_per_slab;
  if (end > s.n) end = s.n;
  cuda_pair sum = {0, 0};
  if (c < s.channels)
    for (size_t j = begin + threadIdx.x / 32; j < end; j += GPU_BLOCK / 32)
      sum += term(j * s.channels + c, c);
  lane_sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned width = GPU_BLOCK / 2; width >= 32; width /= 2) {
    if (threadIdx.x < width) lane_sums[threadIdx.x] += lane_sums[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x < 32 && c < s.channels)
    partial_sums[blockIdx.y * s.channels + c] = lane_sums[threadIdx.x];
}

/* Writes partial_sums[slab][c] of a sum of `term`, a struct with `cuda_pair operator()(size_t
 * index, size_t c)`, which returns the two terms of the value at an index in channel c. */
template <typename Term>
static clv_code gpu_compute_partial_sums(clv_gpu *g, const cuda_sum_layout *s, Term term,
                                         void *partial_sums, clv_err *err) {
  cuda_pair *sums = static_cast<cuda_pair *>(partial_sums);
  unsigned n_slabs = static_cast<unsigned>(s->n_slabs), channels = static_cast<unsigned>(s->channels);
  if (s->inner == 1 && s->channels > 1)
    return gpu_launch(g, cuda_grid((channels + 31) / 32, n_slabs), GPU_BLOCK, err,
                      gpu_sum_columns_kernel<Term>, term, *s, sums);
  return gpu_launch(g, cuda_grid(channels, n_slabs), GPU_BLOCK, err, gpu_sum_slabs_kernel<Term>, term,
                    *s, sums);
}

/* Adds all partial sums of channel c, in order. */
static __device__ inline cuda_pair gpu_add_partial_sums(const cuda_sum_layout &s,
                                                        const cuda_pair *partial_sums, size_t c) {
  cuda_pair sum = {0, 0};
  for (size_t slab = 0; slab < s.n_slabs; slab++) sum += partial_sums[slab * s.channels + c];
  return sum;
}

static __device__ inline void gpu_store_or_add(float *dst, double value, bool accumulate) {
  *dst = accumulate ? *dst + (float)value : (float)value;
}

/* ---- records of refused values --------------------------------------------------------------- */

/* Records that the value at `index` is refused. Any thread may call this function. */
static __device__ inline void gpu_refuse_value(clv_gpu_fault *f, size_t index) {
  atomicMax(&f->index_complement, ~(unsigned long long)index);
}

/* Fields of clv_gpu_fault that do not depend on the refused value. */
struct cuda_refusal {
  int32_t op;
  uint32_t layer;
  int64_t limit, per_sample;
};

/* Fills in the record of the first of `values` that is refused, unless the record is filled in. One
 * thread calls this function, in a launch after the one that called gpu_refuse_value. */
template <typename Value>
static __device__ void gpu_record_refusal(clv_gpu_fault *f, const Value *values,
                                          const cuda_refusal &r) {
  if (f->is_set || !f->index_complement) return;
  f->is_set = true;
  f->op = r.op;
  f->layer = r.layer;
  f->index = ~f->index_complement;
  if constexpr (std::is_integral<Value>::value)
    f->int_value = values[f->index];
  else
    f->value = static_cast<double>(values[f->index]);
  f->limit = r.limit;
  f->per_sample = r.per_sample;
}

#endif
