/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of an optimiser over all runs, with the formulas of kernels/steps. A thread computes one
 * value at a time.
 */
#include "kernels/cuda/chunks_int.cuh"
#include "kernels/steps/steps.h"

struct moments {
  float *moment[CLV_OPTIM_MAX_MOMENTS];
};

#define CLV_OPTIMIZER(NAME, name, ...)                                                 \
  static __global__ void name(clv_step_args a, float *p, const float *grad, moments m, \
                              const cuda_run *runs, size_t n_runs, size_t n_chunks) {  \
    GPU_ROWS(chunk, n_chunks) {                                                        \
      clv_extent e = gpu_find_chunk(runs, n_runs, chunk);                              \
      GPU_ROW(i, e.n)                                                                  \
      clv_step_##name(&a, e.at + i, p, grad, m.moment[0], m.moment[1], m.moment[2]);   \
    }                                                                                  \
  }
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const moment_arrays[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                      size_t n_runs, clv_err *err) {
  const cuda_runs *t;
  moments m;
  if (!n_runs) return CLV_OK;
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) m.moment[i] = moment_arrays[i];
  CLV_TRY(clv_gpu_find_run_table(g, runs, n_runs, &t, err));
  if (!t->n_chunks) return CLV_OK;
  const cuda_run *device_runs = t->device_runs;
#define CLV_OPTIMIZER(NAME, name, ...)                                                            \
  if (a->kind == CLV_OPTIM_##NAME)                                                                \
    return gpu_launch(g, gpu_count_row_blocks(t->n_chunks), GPU_BLOCK, err, name, *a, p, grad, m, \
                      device_runs, t->n, t->n_chunks);
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  return clv_fail(err, CLV_INVALID, "there is no optimiser number %d", static_cast<int>(a->kind));
}
