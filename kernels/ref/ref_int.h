/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_int: what the files of the reference backend share.
 *
 * Each *_int.h body beside this one holds the loops of one op family, written over REAL; ops_f32.c
 * and ops_f64.c include every body once, with REAL float and double. Whatever adds more than a few
 * terms (matrix products, windows, means, losses) adds in double and rounds once at the end, in
 * index order, so that the f32 instance is also the more exact opinion in a comparison.
 */
#ifndef CLEAVE_REF_INT_H
#define CLEAVE_REF_INT_H

#include "kernels/kernels.h"

typedef struct ref_kernel {
  clv_kernel base; /* first: a clv_kernel of this backend is a ref_kernel */
  clv_node_desc d;
  size_t n_in, n_out; /* elements of input 0 and of the output */
  bool learns;        /* some backward function will be called: forward fills `saved` */
} ref_kernel;

typedef clv_code ref_fn(clv_kernel *k, const clv_kernel_args *a, clv_err *err);

/* One op. saves_dx, saves_dw: what backward_input and backward_weight read (CLV_SAVE_*). fused:
 * backward_input writes the parameters' gradients too. */
typedef struct ref_op {
  ref_fn *forward, *backward_input, *backward_weight;
  unsigned saves_dx, saves_dw;
  bool in_place, fused;
  size_t (*saved_bytes)(const ref_kernel *k);   /* NULL: none */
  size_t (*scratch_bytes)(const ref_kernel *k); /* NULL: none */
} ref_op;

/* Rows by op number; a row without forward is no op that a kernel exists for. */
extern const ref_op clv_ref_ops_f32[CLV_OP_COUNT];
extern const ref_op clv_ref_ops_f64[CLV_OP_COUNT];

/* For wait. */
void clv_ref_sleep_until(uint64_t deadline_ns);

/* The label of sample i, or CLV_INVALID with its value and the range. */
clv_code clv_ref_label(const int64_t *labels, int64_t i, int64_t classes, int64_t *ret,
                       clv_err *err) CLV_USE_RESULT;

clv_code clv_ref_reorder(const clv_shape *shape, clv_dtype dtype, const void *src, int src_block,
                         void *dst, int dst_block, clv_err *err);
uint64_t clv_ref_reorder_count(void);
void clv_ref_add(clv_dtype dtype, void *dst, const void *src, size_t n);
double clv_ref_sum_squares(const float *x, size_t n);
void clv_ref_sgd(const clv_sgd_args *a, float *p, const float *g, float *m, size_t n);
void clv_ref_adam(const clv_adam_args *a, float *p, const float *g, float *m, float *v, size_t n);

#endif
