/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_int: what the files of the cuda backend share. Read by C and by C++.
 *
 * An op is two files: NAME.c prepares its kernel and registers it, NAME.cu has the loops and a
 * launcher for each, which only asks for the launch. Pointers of launchers are the device's unless
 * they say otherwise; none is NULL unless it says so.
 *
 * Sums have a fixed order: it depends on shapes alone, and nothing is added by atomics.
 */
#ifndef CLEAVE_KERNELS_GPU_INT_H
#define CLEAVE_KERNELS_GPU_INT_H

#include "kernels/cuda/cuda.h"
#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values that kernels refused since the last time anybody waited; in device memory, all bits zero
 * where nothing was refused. A launcher that can refuse values ends with a kernel that notes the
 * first, if nothing is noted. */
typedef struct clv_gpu_fault {
  unsigned long long place; /* ~ of the least index of a value that was refused */
  bool noted;
  int32_t op;  /* clv_op */
  uint64_t at; /* index among the op's values */
  double value;
  int64_t limit, per_sample; /* what the op's text needs */
} clv_gpu_fault;

/* One device, opened. */
typedef struct clv_gpu {
  const clv_vendor *vendor;
  int device;
  clv_cuda_stream *stream; /* all kernels, in the order of the plan */
  clv_gpu_fault *fault;    /* device memory */
  clv_cuda_info info;
  clv_backend backend; /* its `own` is this */
  char name[16];       /* "cuda:0" */
} clv_gpu;

/* ---- kernels (backend.c) --------------------------------------------------------------------- */

enum { GPU_PRODUCTS = 4 };

typedef struct gpu_kernel {
  clv_ref_kernel r; /* first: what the op's row is asked with; a clv_kernel is a gpu_kernel */
  clv_gpu *gpu;
  clv_cuda_matmul *product[GPU_PRODUCTS]; /* what the op's `open` made of them, else NULL */
  clv_cuda_conv *conv[3];                 /* by clv_cuda_pass */
  size_t workspace;                       /* of the above, at the beginning of scratch */
} gpu_kernel;

static inline gpu_kernel *gpu_kernel_of(clv_kernel *base) { return (gpu_kernel *)base; }

/* What the backend has for an op. All else comes from the op's row: what is saved and how much, and
 * whether forward works in place. open: makes the products, changes what the row does not know, and
 * sets scratch_bytes; NULL: nothing of it. */
typedef struct gpu_op {
  clv_ref_fn *forward, *backward_input, *backward_weight;
  clv_code (*open)(gpu_kernel *k, clv_err *err);
} gpu_op;

/* CLV_CUDA_OP(name) = {...}, at the beginning of a line: what the backend has for the op `name`. The
 * Makefile collects these lines in gen/cuda_ops.def, of which backend.c makes its table. */
#define CLV_CUDA_OP(name)                                      \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const gpu_op clv_gpu_op_##name;                       \
  const gpu_op clv_gpu_op_##name

/* Product i of k: its workspace and its place. */
clv_code clv_gpu_product(gpu_kernel *k, int i, const clv_cuda_matmul_desc *d,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_multiply(gpu_kernel *k, int i, const clv_kernel_args *a, const float *x,
                          const float *y, const float *bias, float *out,
                          clv_err *err) CLV_USE_RESULT;

/* What of scratch is left behind the products' workspace. */
static inline void *gpu_scratch(const gpu_kernel *k, const clv_kernel_args *a) {
  return (char *)a->scratch + k->workspace;
}

/* ---- sums (sums.cu) -------------------------------------------------------------------------- */

/* Values [n, channels, inner], summed for each channel: first parts of it, then those in order. */
typedef struct gpu_sums {
  size_t n, channels, inner;
  size_t slabs, per_slab; /* parts of a channel, and values in each but the last */
} gpu_sums;

enum { GPU_MOST_SLABS = 64, GPU_SLAB = 1024 };

static inline gpu_sums gpu_sums_of(size_t n, size_t channels, size_t inner) {
  size_t values = n * inner, slabs = (values + GPU_SLAB - 1) / GPU_SLAB;
  gpu_sums s = {n, channels, inner, slabs < 1 ? 1 : CLV_MIN(slabs, (size_t)GPU_MOST_SLABS), 0};
  s.per_slab = (values + s.slabs - 1) / s.slabs;
  return s;
}

/* Two sums made in one walk. */
typedef struct gpu_pair {
  double first, second;
} gpu_pair;

static inline size_t gpu_parts_bytes(const gpu_sums *s) {
  return s->slabs * s->channels * sizeof(gpu_pair);
}

/* dst[c], or dst[c] +=, the sum of channel c. parts: gpu_parts_bytes. */
clv_code clv_gpu_channel_sums(clv_gpu *g, const gpu_sums *s, const float *x, void *parts,
                              float *dst, bool accumulate, clv_err *err) CLV_USE_RESULT;
/* ret: one double of the device. */
clv_code clv_gpu_square_sum(clv_gpu *g, const float *x, size_t n, void *parts, double *ret,
                            clv_err *err) CLV_USE_RESULT;

/* ---- whole buffers (pointwise.cu, steps.cu) -------------------------------------------------- */

/* dst += src over n values. */
clv_code clv_gpu_add_to(clv_gpu *g, float *dst, const float *src, size_t n,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const moments[CLV_OPTIM_MAX_MOMENTS], size_t n,
                      clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
