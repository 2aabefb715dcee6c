/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels with and without planted faults. The simulated device must report each planted fault and
 * must accept the other kernels.
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

/* Kernels over PLANT_N values, some with a planted fault. plant_write: y = 1. plant_add: y = x + 1.
 * plant_increase: y = y + 1. plant_add_nested: y = x + 1 with pointers in a struct. plant_reverse:
 * y reversed through shared memory. plant_write_behind: also writes the value after the end.
 * plant_write_misaligned: writes at an address that is no multiple of 4. */
clv_code plant_write(clv_gpu *g, float *y, clv_err *err);
clv_code plant_add(clv_gpu *g, const float *x, float *y, clv_err *err);
clv_code plant_increase(clv_gpu *g, float *y, clv_err *err);
clv_code plant_add_nested(clv_gpu *g, plant_list list, clv_err *err);
clv_code plant_reverse(clv_gpu *g, float *y, bool has_barrier, clv_err *err);
clv_code plant_write_behind(clv_gpu *g, float *y, clv_err *err);
clv_code plant_write_misaligned(clv_gpu *g, float *y, clv_err *err);
clv_code plant_diverge(clv_gpu *g, float *y, clv_err *err);
/* all threads add to y[0] without an atomic */
clv_code plant_racing_sums(clv_gpu *g, float *y, clv_err *err);

#ifdef __cplusplus
}
#endif
#endif
