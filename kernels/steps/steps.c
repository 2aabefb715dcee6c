/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the numbers of one optimiser step: one function for each kind of optimiser, which
 * clv_step_prepare calls.
 */
#include "kernels/steps/steps.h"

/* Returns 1 - beta, where `beta` is a decimal number of the configuration, with at most 7 decimals,
 * rounded to f32; computes with the decimal number. 1 - 0.999f would differ from 0.001 by 1.3e-5 of
 * 0.001, and so would every second moment of Adam. */
static float one_minus_beta(float beta) { return (float)(round((1 - (double)beta) * 1e7) / 1e7); }

static void prepare_sgd(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  a->step_size = (float)lr;
  a->momentum = (float)c->momentum;
  a->nesterov = c->nesterov;
  a->is_first_step = step == 1;
}

static void prepare_adam(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  float bias_correction = (float)(1 - pow(c->beta1, (double)step));
  a->bias2_sqrt = (float)sqrt(1 - pow(c->beta2, (double)step));
  a->decay[0] = (float)c->beta1;
  a->decay[1] = (float)c->beta2;
  for (int i = 0; i < 2; i++) a->one_minus_decay[i] = one_minus_beta(a->decay[i]);
  a->step_size = (float)((double)(float)lr / bias_correction);
}

static void prepare_adamw(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  prepare_adam(c, step, lr, a);
  a->weight_factor = (float)(1 - (double)(float)lr * a->weight_decay);
}

static void prepare_adagrad(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  a->step_size = (float)(lr / (1 + (double)(step - 1) * c->lr_decay));
}

static void prepare_rmsprop(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  (void)step;
  a->step_size = (float)lr;
  a->momentum = (float)c->momentum;
  a->decay[0] = (float)c->alpha;
  a->one_minus_decay[0] = (float)(1 - c->alpha);
}

static void prepare_adamax(const clv_optim_config *c, int64_t step, double lr, clv_step_args *a) {
  a->step_size = (float)(lr / (1 - pow(c->beta1, (double)step)));
  a->decay[0] = (float)c->beta1;
  a->decay[1] = (float)c->beta2;
  a->one_minus_decay[0] = (float)(1 - c->beta1);
}

void clv_step_prepare(const clv_optim_config *c, int64_t step, double lr, double grad_scale,
                      clv_step_args *ret) {
  static void (*const prepare[])(const clv_optim_config *, int64_t, double, clv_step_args *) = {
#define CLV_OPTIMIZER(NAME, name, ...) [CLV_OPTIM_##NAME] = prepare_##name,
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
  };
  *ret = (clv_step_args){.kind = c->kind,
                         .grad_scale = (float)grad_scale,
                         .weight_decay = (float)c->weight_decay,
                         .eps = (float)c->eps};
  prepare[c->kind](c, step, lr, ret);
}
