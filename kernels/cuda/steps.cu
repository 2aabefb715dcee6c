/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of an optimiser over all runs, with the formulas of kernels/steps, one value a thread.
 */
#include "kernels/cuda/chunks_int.cuh"
#include "kernels/steps/steps.h"

struct moments {
  float *moment[CLV_OPTIM_MAX_MOMENTS];
};

#define CLV_OPTIMIZER(NAME, name, ...)                                                 \
  static __global__ void name(clv_step_args a, float *p, const float *grad, moments m, \
                              const cuda_run *runs, size_t n_runs, size_t chunks) {    \
    GPU_ROWS(chunk, chunks) {                                                          \
      clv_extent e = gpu_chunk(runs, n_runs, chunk);                                   \
      GPU_ROW(i, e.n)                                                                  \
      clv_step_##name(&a, e.at + i, p, grad, m.moment[0], m.moment[1], m.moment[2]);   \
    }                                                                                  \
  }
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const from[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                      size_t n_runs, clv_err *err) {
  const cuda_runs *t;
  moments m;
  if (!n_runs) return CLV_OK;
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) m.moment[i] = from[i];
  CLV_TRY(clv_gpu_find_runs(g, runs, n_runs, &t, err));
  if (!t->chunks) return CLV_OK;
  const cuda_run *list = t->run;
#define CLV_OPTIMIZER(NAME, name, ...)                                                        \
  if (a->kind == CLV_OPTIM_##NAME)                                                            \
    return gpu_launch(g, gpu_blocks_of_rows(t->chunks), GPU_BLOCK, err, name, *a, p, grad, m, \
                      list, t->n, t->chunks);
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  return clv_fail(err, CLV_INVALID, "there is no optimiser number %d", static_cast<int>(a->kind));
}
