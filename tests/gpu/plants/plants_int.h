/* SPDX-License-Identifier: Apache-2.0
 *
 * plants_int: kernels, right and wrong, for faults that the simulated device must find.
 */
#ifndef CLEAVE_TESTS_GPU_PLANTS_INT_H
#define CLEAVE_TESTS_GPU_PLANTS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PLANT_N = 256 };

typedef struct plant_list {
  const float *x;
  float *y;
} plant_list;

/* All over PLANT_N values: y = 1; y = x + 1; y = y + 1; y = x + 1 with pointers in a struct; y
 * reversed, through memory of the block; the value behind the end; one that lies across two. */
clv_code plant_write(clv_gpu *g, float *y, clv_err *err);
clv_code plant_add(clv_gpu *g, const float *x, float *y, clv_err *err);
clv_code plant_increase(clv_gpu *g, float *y, clv_err *err);
clv_code plant_nested(clv_gpu *g, plant_list list, clv_err *err);
clv_code plant_reverse(clv_gpu *g, float *y, bool barrier, clv_err *err);
clv_code plant_behind(clv_gpu *g, float *y, clv_err *err);
clv_code plant_across(clv_gpu *g, float *y, clv_err *err);
clv_code plant_diverging(clv_gpu *g, float *y, clv_err *err);
clv_code plant_sums(clv_gpu *g, float *y, clv_err *err); /* all add to y[0], as if alone */

#ifdef __cplusplus
}
#endif
#endif
