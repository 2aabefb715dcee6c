/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_int: functions that the files of the reference backend share.
 */
#ifndef CLEAVE_REF_INT_H
#define CLEAVE_REF_INT_H

#include "kernels/ops/ops.h"

clv_code clv_ref_reorder(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                         const void *src, int src_block, void *dst, int dst_block, clv_err *err);
uint64_t clv_ref_reorder_count(void);
void clv_ref_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n);
clv_code clv_ref_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err);
void clv_ref_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                  float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                  size_t n_ranges);

#endif
