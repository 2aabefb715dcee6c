/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_int: what the files of the reference backend share.
 */
#ifndef CLEAVE_REF_INT_H
#define CLEAVE_REF_INT_H

#include "kernels/ops/ops.h"

clv_code clv_ref_reorder(const clv_shape *shape, clv_dtype dtype, const void *src, int src_block,
                         void *dst, int dst_block, clv_err *err);
uint64_t clv_ref_reorder_count(void);
void clv_ref_add(clv_dtype dtype, void *dst, const void *src, size_t n);
double clv_ref_sum_squares(const float *x, size_t n);
void clv_ref_step(const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], size_t n);

#endif
