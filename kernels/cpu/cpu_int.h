/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_int: what the files of the cpu backend share.
 *
 * The backend computes in f32, convolutions and linear in bf16 if asked to. Convolutions are oneDNN
 * primitives made once per node, products are sgemm of oneDNN or OpenBLAS, and everything else is a
 * loop of ours, compiled for three vector widths with the same order of operations in each, so that
 * the width never shows in the bits.
 */
#ifndef CLEAVE_KERNELS_CPU_INT_H
#define CLEAVE_KERNELS_CPU_INT_H

#include "kernels/ops/ops.h"

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct cpu_kernel {
  clv_kernel base; /* first: a clv_kernel of this backend is a cpu_kernel */
  clv_node_desc d;
  int threads;        /* at least 1 */
  size_t n_in, n_out; /* elements of in[0] and of the output, padding of their layouts included */
  bool learns;        /* some backward function will be called */
} cpu_kernel;

typedef clv_code cpu_prepare_fn(const clv_node_desc *d, clv_kernel **ret, clv_err *err);

/* CLV_CPU_OP(name, prepare), at the beginning of a line: the backend has a kernel for the op
 * `name`. The Makefile collects these lines in gen/cpu_ops.def, of which backend.c makes its
 * table. */
#define CLV_CPU_OP(name, prepare)                                                           \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0");                              \
  cpu_prepare_fn clv_cpu_prepare_##name;                                                    \
  clv_code clv_cpu_prepare_##name(const clv_node_desc *d, clv_kernel **ret, clv_err *err) { \
    return prepare(d, ret, err);                                                            \
  }

/* A zeroed kernel of `size` bytes that begins with a cpu_kernel; in[0] (and in[1]) and the output
 * have the given channel blocks. free() releases it unless the caller sets another. */
clv_code clv_cpu_kernel_new(const clv_node_desc *d, size_t size, int in_block, int out_block,
                            void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* The block an op that gives the same bits in any layout computes in: the one offered for in[0]
 * where rank and width are known, else 1. */
int clv_cpu_offered_block(const clv_node_desc *d);

/* ---- layouts --------------------------------------------------------------------------------- */

/* Channel block of this machine: 16 with AVX-512, else 8; follows DNNL_MAX_CPU_ISA. */
int clv_cpu_block(void);

/* dst = src in another channel block, padding zeroed; counted. shape has rank 4. */
void clv_cpu_reorder(const clv_shape *shape, const float *src, int src_block, float *dst,
                     int dst_block);
void clv_cpu_count_reorder(void);
uint64_t clv_cpu_reorder_count(void);

/* dst[column][row] = src[row][column]: rows of src `sp` floats apart, those of dst `dp`. */
void clv_cpu_transpose(const float *src, size_t rows, size_t columns, size_t sp, float *dst,
                       size_t dp);

/* Zeroes the padding lanes of x. */
void clv_cpu_zero_padding(const clv_shape *shape, int block, float *x);

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* CLV_PRECONDITION, with what is missing, where conv2d and linear cannot compute in bf16; follows
 * DNNL_MAX_CPU_ISA. */
clv_code clv_cpu_check_bf16(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* To nearest even; NaN stays NaN. */
void clv_cpu_to_bf16(const float *x, size_t n, uint16_t *y);
void clv_cpu_from_bf16(const uint16_t *x, size_t n, float *y);

/* Rows of 16 numbers, an even number of them: those of two neighbours as pairs of bf16. */
void clv_cpu_pair_rows(const float *x, size_t rows, uint16_t *y);

/* n values of src, which are f32 or bf16, as the other; by the threads of set_threads. */
void clv_cpu_convert(const void *src, int src_layout, void *dst, size_t n);

/* ---- threads and vector widths --------------------------------------------------------------- */

/* Threads of OpenMP regions entered from the calling thread, oneDNN's included. */
void clv_cpu_set_threads(int n);
int clv_cpu_get_threads(void);

/* fn over [0, n) in `threads` contiguous runs, on libgomp's team of the calling thread. */
typedef void clv_cpu_range(void *arg, size_t begin, size_t end);
void clv_cpu_parallel(int threads, size_t n, clv_cpu_range *fn, void *arg);

/* Threads worth waking for `work` element operations. */
int clv_cpu_useful_threads(int threads, size_t work);

enum { CPU_PLAIN, CPU_AVX2, CPU_AVX512 };
int clv_cpu_width(void); /* widest of the above that the processor has */

#define CPU_INLINE static inline __attribute__((always_inline))

#define CPU_TARGET_PLAIN
#define CPU_TARGET_256 __attribute__((target("avx2")))
#define CPU_TARGET_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

/* name(params): the widest of three compilations of name_body(args). Written out instead of
 * target_clones, whose resolvers run before a sanitizer is ready. Only for bodies of plain loops:
 * gcc takes vector types apart before it inlines, by the target of the function they stand in, so
 * functions that use the types below carry CPU_TARGET_... themselves. */
#define CPU_CLONES(name, params, args)                               \
  CPU_TARGET_512 static void name##_512 params { name##_body args; } \
  CPU_TARGET_256 static void name##_256 params { name##_body args; } \
  static void name params {                                          \
    int width = clv_cpu_width();                                     \
    if (width == CPU_AVX512)                                         \
      name##_512 args;                                               \
    else if (width == CPU_AVX2)                                      \
      name##_256 args;                                               \
    else                                                             \
      name##_body args;                                              \
  }

/* Before a loop whose iterations touch no other iteration's elements, in place or not. */
#ifdef __clang__
#define CPU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* One element of each channel of a block. */
typedef float cpu_vf8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float cpu_vf16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t cpu_vi8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t cpu_vi16 __attribute__((vector_size(64), aligned(4), may_alias));

/* ---- products -------------------------------------------------------------------------------- */

/* C[m][n] = beta C + op(A) op(B), row-major and dense; A is [m][k], or [k][m] when a_t; B is
 * [k][n], or [n][k] when b_t. beta: 0 (C is not read) or 1. */
typedef struct cpu_gemm {
  int64_t m, n, k;
  bool a_t, b_t, blas; /* blas: by OpenBLAS on the calling thread */
} cpu_gemm;

clv_code clv_cpu_gemm(const cpu_gemm *g, const float *a, const float *b, float beta, float *c,
                      clv_err *err) CLV_USE_RESULT;

/* The same by oneDNN, of A and C in rows of wider matrices: lda and ldc values apart. */
clv_code clv_cpu_gemm_within(const cpu_gemm *g, const float *a, int64_t lda, const float *b,
                             float beta, float *c, int64_t ldc, clv_err *err) CLV_USE_RESULT;

/* True once OpenBLAS is loaded (on first use, so that a process without layers never pays for it)
 * and held at one thread; false where the host lacks it. */
bool clv_cpu_has_blas(void);
/* True where OpenBLAS is ready, and its kernels are no narrower than oneDNN's. */
bool clv_cpu_blas_is_as_wide(void);
const char *clv_cpu_blas_version(void); /* "OpenBLAS 0.3.21 SkylakeX", "no OpenBLAS" */

/* dst[j] = sum over i of src[i][j], or += ; rows in index order, rounded every 256 rows. */
void clv_cpu_column_sums(const float *src, size_t rows, size_t columns, float *dst,
                         bool accumulate);

/* y[i][j] += b[j]. */
void clv_cpu_add_bias(float *y, const float *b, size_t rows, size_t columns);

/* Whether the processor has AMX, the system lets this process use it, and DNNL_MAX_CPU_ISA does. */
bool clv_cpu_has_amx(void);

/* What nodes tell each other of their processors: of an instruction set that oneDNN finds
 * (dnnl_cpu_isa_t). Those whose bits may differ have other names; so has AMX that the system does
 * not let this process use. */
const char *clv_cpu_isa_name(unsigned isa, bool amx_ready);

/* linear with bf16 factors, where check_bf16 has agreed; see linear_bf16.c. */
cpu_prepare_fn clv_cpu_linear_bf16;

/* ---- whole buffers --------------------------------------------------------------------------- */

void clv_cpu_add_to(clv_dtype dtype, void *dst, const void *src, size_t n);
clv_code clv_cpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *runs,
                             size_t n_runs, double *ret, clv_err *err);
void clv_cpu_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                  size_t n_runs);

#endif
