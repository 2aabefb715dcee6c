/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_int: types and functions that the files of the cpu backend share.
 *
 * The backend computes in f32; conv2d, linear, attention and lstm can compute in bf16. Convolutions
 * are oneDNN primitives made once for each node. Most products are sgemm of oneDNN or OpenBLAS.
 * Everything else is our own loops, compiled for three vector widths with the same order of
 * operations in each, so that the width does not change the bits.
 */
#ifndef CLEAVE_KERNELS_CPU_INT_H
#define CLEAVE_KERNELS_CPU_INT_H

#include "kernels/ops/ops.h"

#define CPU_INLINE static inline __attribute__((always_inline))

/* ---- kernels of this backend ----------------------------------------------------------------- */

typedef struct cpu_kernel {
  clv_kernel base; /* first member: a clv_kernel of this backend is cast to cpu_kernel */
  clv_node_desc d;
  int threads;        /* number of compute threads, at least 1 */
  size_t n_in, n_out; /* elements of in[0] and of the output, padding of their layouts included */
  bool has_backward;  /* a backward function may be called after forward */
} cpu_kernel;

typedef clv_code cpu_prepare_fn(const clv_node_desc *d, clv_kernel **ret, clv_err *err);

/* CLV_CPU_OP(name, prepare), at the start of a line, declares that the backend has a kernel for the
 * op `name`, which the function `prepare` makes. The Makefile collects these lines in
 * gen/cpu_ops.def, from which backend.c makes its table. */
#define CLV_CPU_OP(name, prepare)                                                           \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0");                              \
  cpu_prepare_fn clv_cpu_prepare_##name;                                                    \
  clv_code clv_cpu_prepare_##name(const clv_node_desc *d, clv_kernel **ret, clv_err *err) { \
    return prepare(d, ret, err);                                                            \
  }

/* Allocates a kernel of `size` zeroed bytes, whose first member must be a cpu_kernel, and fills in
 * its cpu_kernel. in_block is the layout of all inputs, out_block that of the output. The kernel's
 * `free` releases it with free() unless the caller sets another function. */
clv_code clv_cpu_kernel_new(const clv_node_desc *d, size_t size, int in_block, int out_block,
                            void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* Sets how lstm or gru, whose weight part reads what the input part has left in `saved`, orders the
 * two. If a gradient of the input is wanted, a plan runs the input part and later `weight_part`.
 * Otherwise a plan would not run the input part, so the kernel has fused_grads: its backward_input
 * must then call the weight part. The weight part reads in[0]. */
void clv_cpu_order_recurrent_grads(cpu_kernel *k,
                                   clv_code (*weight_part)(clv_kernel *, const clv_kernel_args *,
                                                           clv_err *));

/* Returns the f32 layout of an op that gives the same bits in any layout: the layout that is
 * offered for in[0], or 1 if in[0] is not of rank 4. */
int clv_cpu_offered_block(const clv_node_desc *d);

/* ---- layouts of tensors ---------------------------------------------------------------------- */

/* Returns the channel block that convolutions use on this processor: 16 with AVX-512, else 8.
 * Depends on the environment variable DNNL_MAX_CPU_ISA. */
int clv_cpu_channel_block(void);

/* Copies src to dst in another channel block, zeroes the padding, and counts one reorder. shape has
 * rank 4. */
void clv_cpu_reorder(const clv_shape *shape, const float *src, int src_block, float *dst,
                     int dst_block);
void clv_cpu_count_reorder(void);
uint64_t clv_cpu_reorder_count(void);

/* Transposes: dst[column][row] = src[row][column]. src_stride, dst_stride: floats from one row of
 * src, and of dst, to the next. */
void clv_cpu_transpose(const float *src, size_t rows, size_t columns, size_t src_stride, float *dst,
                       size_t dst_stride);

/* Division of a tensor of rank 4 into planes; a loop computes one plane at a time. A plane has
 * `width` adjacent channels of one sample. width is the channel block of the layout (1, 8 or 16);
 * in channels last it is 16, or 1 if the number of channels is no multiple of 16. */
typedef struct cpu_planes {
  size_t n, planes_per_sample; /* n: number of planes of all samples */
  size_t width;                /* channels of a plane */
  int64_t position_stride;     /* values from one position to the next */
  bool is_channels_last;       /* the layout is channels last */
} cpu_planes;

cpu_planes clv_cpu_planes_of(const clv_window *s, int layout);

/* Returns the index of the first value of plane p. image_size: number of positions of an image. */
CPU_INLINE int64_t clv_cpu_plane_start(const cpu_planes *v, size_t p, int64_t image_size) {
  if (!v->is_channels_last) return (int64_t)p * image_size * v->position_stride;
  return (int64_t)(p / v->planes_per_sample) * image_size * v->position_stride +
         (int64_t)(p % v->planes_per_sample * v->width);
}

/* Zeroes the padding channels of x. */
void clv_cpu_zero_padding(const clv_shape *shape, int block, float *x);

/* ---- conversions to and from bf16 ------------------------------------------------------------ */

/* Fails with CLV_PRECONDITION if conv2d and linear cannot compute in bf16; the error says what
 * the processor lacks. Depends on the environment variable DNNL_MAX_CPU_ISA. */
clv_code clv_cpu_check_bf16(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* Convert n values between f32 and bf16. Rounding is to nearest even; NaN stays NaN. */
void clv_cpu_convert_to_bf16(const float *x, size_t n, uint16_t *y);
void clv_cpu_convert_from_bf16(const uint16_t *x, size_t n, float *y);

/* Converts `rows` rows of 16 numbers to bf16, and interleaves two neighbouring rows: each value of
 * a row is followed by the value of the next row in its column. `rows` is even. */
void clv_cpu_pair_rows(const float *x, size_t rows, uint16_t *y);

/* Converts n values of src to the other type, from f32 to bf16 or from bf16 to f32, with the number
 * of threads that clv_cpu_set_threads set. */
void clv_cpu_convert_type(const void *src, int src_layout, void *dst, size_t n);

/* ---- threads and vector widths --------------------------------------------------------------- */

/* Set or return the number of threads of OpenMP regions that the calling thread enters, oneDNN's
 * included. */
void clv_cpu_set_threads(int n);
int clv_cpu_get_threads(void);

/* clv_cpu_parallel calls fn on [0, n), divided into at most `threads` contiguous ranges, one for
 * each thread of the libgomp team of the calling thread. A clv_cpu_range_fn computes items [begin,
 * end). */
typedef void clv_cpu_range_fn(void *arg, size_t begin, size_t end);
void clv_cpu_parallel(int threads, size_t n, clv_cpu_range_fn *fn, void *arg);

/* Returns the number of threads that `work` element operations are worth, at most `threads`. */
int clv_cpu_useful_threads(int threads, size_t work);

/* Vector widths of compiled functions. CPU_PLAIN: that of the instruction set for which everything
 * is compiled. */
enum { CPU_PLAIN, CPU_AVX2, CPU_AVX512 };
/* Returns the largest of these widths that the processor supports. */
int clv_cpu_vector_width(void);

#define CPU_TARGET_PLAIN
#define CPU_TARGET_256 __attribute__((target("avx2")))
#define CPU_TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

/* Defines name(params), which calls name_body(args) in the widest of its three compilations that
 * the processor supports. The macro replaces the attribute target_clones, whose resolvers run
 * before a sanitizer is ready. name_body may have plain loops only: gcc splits vector types before
 * it inlines, by the target of the function that contains them, so functions that use the vector
 * types below have CPU_TARGET_... themselves. */
#define CPU_CLONES(name, params, args)                               \
  CPU_TARGET_512 static void name##_512 params { name##_body args; } \
  CPU_TARGET_256 static void name##_256 params { name##_body args; } \
  static void name params {                                          \
    int width = clv_cpu_vector_width();                              \
    if (width == CPU_AVX512)                                         \
      name##_512 args;                                               \
    else if (width == CPU_AVX2)                                      \
      name##_256 args;                                               \
    else                                                             \
      name##_body args;                                              \
  }

/* Place CPU_INDEPENDENT before a loop in which no iteration accesses an element that another
 * iteration writes, so that the compiler vectorises it. */
#ifdef __clang__
#define CPU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Vectors of f32 and i32 with one element of each channel of a block of 8 or 16 channels. */
typedef float cpu_vf8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float cpu_vf16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t cpu_vi8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t cpu_vi16 __attribute__((vector_size(64), aligned(4), may_alias));

/* ---- matrix products ------------------------------------------------------------------------- */

/* A product C[m][n] = beta C + op(A) op(B) of row-major, dense matrices; A is [m][k], or [k][m] if
 * a_is_transposed; B is [k][n], or [n][k] if b_is_transposed. beta: 0 (C is not read) or 1. */
typedef struct cpu_gemm {
  int64_t m, n, k;
  bool a_is_transposed, b_is_transposed;
  bool uses_blas; /* OpenBLAS computes the product, on the calling thread; otherwise oneDNN does */
} cpu_gemm;

clv_code clv_cpu_gemm(const cpu_gemm *g, const float *a, const float *b, float beta, float *c,
                      clv_err *err) CLV_USE_RESULT;

/* As clv_cpu_gemm, but always with oneDNN, and with A and C inside wider matrices, whose rows are
 * lda and ldc values apart. */
clv_code clv_cpu_gemm_strided(const cpu_gemm *g, const float *a, int64_t lda, const float *b,
                              float beta, float *c, int64_t ldc, clv_err *err) CLV_USE_RESULT;

/* True if OpenBLAS is loaded and limited to one thread; false if the host lacks OpenBLAS. The first
 * call loads OpenBLAS, so a process that runs no layers does not load it. */
bool clv_cpu_has_blas(void);
/* True if OpenBLAS is loaded and its vectors are no narrower than oneDNN's. */
bool clv_cpu_blas_vectors_are_wide_enough(void);
const char *clv_cpu_blas_version(void); /* "OpenBLAS 0.3.21 SkylakeX" or "no OpenBLAS" */

/* Computes dst[j] = sum over i of src[i][j], or adds the sum to dst[j]. Rows are added in index
 * order, and the sum of each 256 rows is added to the total. */
void clv_cpu_sum_columns(const float *src, size_t rows, size_t columns, float *dst,
                         bool accumulate);

/* Adds a bias to each row: y[i][j] += b[j]. */
void clv_cpu_add_bias(float *y, const float *b, size_t rows, size_t columns);

/* True if the processor has AMX, the operating system lets this process use it, and the environment
 * variable DNNL_MAX_CPU_ISA allows it. */
bool clv_cpu_has_amx(void);

/* Returns the name of an instruction set of oneDNN (dnnl_cpu_isa_t), which nodes send to each
 * other. Instruction sets whose results may differ in bits have different names. If is_amx_ready is
 * false, because the system does not let this process use AMX, an instruction set with AMX has a
 * name of its own, too. */
const char *clv_cpu_isa_name(unsigned isa, bool is_amx_ready);

/* Prepares the op linear with bf16 factors; the caller has called clv_cpu_check_bf16. See
 * linear_bf16.c. */
cpu_prepare_fn clv_cpu_linear_bf16;

/* ---- sums and steps over whole buffers ------------------------------------------------------- */

/* The functions `add`, `sum_squares` and `step` of the backend (kernels.h). */
void clv_cpu_add_to(clv_dtype dtype, void *dst, const void *src, size_t n);
clv_code clv_cpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err);
void clv_cpu_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                  size_t n_ranges);

#endif
