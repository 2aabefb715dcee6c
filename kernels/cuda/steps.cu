/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of an optimiser over all ranges of parameters, with the formulas of kernels/steps. A
 * thread computes one value at a time.
 */
#include "kernels/cuda/chunks_int.cuh"
#include "kernels/steps/steps.h"

struct moments {
  float *moment[CLV_OPTIM_MAX_MOMENTS];
};

#define CLV_OPTIMIZER(NAME, name, ...)                                                 \
  static __global__ void name(clv_step_args a, float *p, const float *grad, moments m, \
                              const cuda_range *ranges, size_t n_ranges, size_t n_chunks) {  \
    GPU_ROWS(chunk, n_chunks) {                                                        \
      clv_extent e = gpu_find_chunk(ranges, n_ranges, chunk);                              \
      GPU_ROW(i, e.n)                                                                  \
      clv_step_##name(&a, e.at + i, p, grad, m.moment[0], m.moment[1], m.moment[2]);   \
    }                                                                                  \
  }
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const moment_arrays[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                      size_t n_ranges, clv_err *err) {
  const cuda_range_table *t;
  moments m;
  if (!n_ranges) return CLV_OK;
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) m.moment[i] = moment_arrays[i];
  CLV_TRY(clv_gpu_find_range_table(g, ranges, n_ranges, &t, err));
  if (!t->n_chunks) return CLV_OK;
  const cuda_range *device_ranges = t->device_ranges;
#define CLV_OPTIMIZER(NAME, name, ...)                                                            \
  if (a->kind == CLV_OPTIM_##NAME)                                                                \
    return gpu_launch(g, gpu_count_row_blocks(t->n_chunks), GPU_BLOCK, err, name, *a, p, grad, m, \
                      device_ranges, t->n, t->n_chunks);
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  return clv_fail(err, CLV_INVALID, "there is no optimiser number %d", static_cast<int>(a->kind));
}
