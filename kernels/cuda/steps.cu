/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of an optimiser: the formulas of kernels/steps, a value for each thread.
 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/steps/steps.h"

struct moments {
  float *of[CLV_OPTIM_MAX_MOMENTS];
};

/* Runs that one launch takes, each a row of blocks. */
constexpr unsigned RUNS = 64;
struct run_list {
  clv_extent run[RUNS];
};

/* GPU_FOR(i, n) along the first of the grid's two numbers, from the run's first value on. */
#define CLV_OPTIMIZER(NAME, name, ...)                                                     \
  static __global__ void name(clv_step_args a, float *p, const float *grad, moments m,     \
                              run_list list) {                                             \
    clv_extent run = list.run[blockIdx.y];                                                 \
    GPU_FOR(i, run.n) clv_step_##name(&a, run.at + i, p, grad, m.of[0], m.of[1], m.of[2]); \
  }
#include "common/settings/optimizers.def"
#undef CLV_OPTIMIZER

static clv_code step_some(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                          const moments &m, const clv_extent *runs, unsigned n, clv_err *err) {
  run_list list;
  size_t longest = 0;
  for (unsigned i = 0; i < n; i++) {
    list.run[i] = runs[i];
    longest = runs[i].n > longest ? runs[i].n : longest;
  }
  cuda_grid grid(gpu_blocks(longest), n);
#define CLV_OPTIMIZER(NAME, name, ...) \
  if (a->kind == CLV_OPTIM_##NAME)     \
    return gpu_launch(g, grid, GPU_BLOCK, err, name, *a, p, grad, m, list);
#include "common/settings/optimizers.def"
#undef CLV_OPTIMIZER
  return clv_fail(err, CLV_INVALID, "no optimiser has the number %d", static_cast<int>(a->kind));
}

clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const from[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                      size_t n_runs, clv_err *err) {
  moments m;
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) m.of[i] = from[i];
  for (size_t i = 0; i < n_runs; i += RUNS) {
    unsigned n = static_cast<unsigned>(n_runs - i < RUNS ? n_runs - i : RUNS);
    CLV_TRY(step_some(g, a, p, grad, m, runs + i, n, err));
  }
  return CLV_OK;
}
