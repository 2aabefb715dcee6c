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

/* A value that a kernel refused: the first, by its place. Lies in device memory, all bits zero
 * where nothing was refused. */
typedef struct clv_gpu_fault {
  unsigned long long place; /* 1 + index among the op's values */
  int64_t value;
  int32_t op, what; /* clv_op; what the op's own files say */
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

typedef struct gpu_kernel {
  clv_kernel base; /* first: a clv_kernel of this backend is a gpu_kernel */
  clv_node_desc d;
  clv_gpu *gpu;
  size_t n_in, n_out; /* elements of in[0] and of the output */
  bool learns;        /* some backward function will be called */
} gpu_kernel;

typedef clv_code gpu_prepare_fn(clv_gpu *g, const clv_node_desc *d, clv_kernel **ret, clv_err *err);

/* CLV_CUDA_OP(name, prepare), at the beginning of a line: the backend has a kernel for the op
 * `name`. The Makefile collects these lines in gen/cuda_ops.def, of which backend.c makes its
 * table. */
#define CLV_CUDA_OP(name, prepare)                                                         \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0");                             \
  gpu_prepare_fn clv_gpu_prepare_##name;                                                   \
  clv_code clv_gpu_prepare_##name(clv_gpu *g, const clv_node_desc *d, clv_kernel **ret,    \
                                  clv_err *err) {                                          \
    return prepare(g, d, ret, err);                                                        \
  }

/* A zeroed kernel of `size` bytes that begins with a gpu_kernel: row-major, what is saved and
 * whether it runs in place as the op's row says. free() releases it unless the caller sets another.
 */
clv_code clv_gpu_kernel_new(clv_gpu *g, const clv_node_desc *d, size_t size, void *ret_pp,
                            clv_err *err) CLV_USE_RESULT;

/* ---- launchers shared by several ops (pointwise.cu, sums.cu) --------------------------------- */

/* dst += src over n values. */
clv_code clv_gpu_add_to(clv_gpu *g, float *dst, const float *src, size_t n,
                        clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
