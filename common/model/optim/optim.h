/* SPDX-License-Identifier: Apache-2.0
 *
 * optim: the local optimiser of one module, learning-rate schedules and the clipping factor.
 *
 * An optimiser steps over the parts ("spans") of a module's parameter block that are trained. Each
 * span belongs to a group, which has its own settings and rate (as torch's param_groups). All
 * groups are of one kind and step together. Each moment is one allocation with the offsets of the
 * parameter block. The caller, who sees all modules, decides whether a step is taken (it refuses
 * NaN), with which rates and with which gradient factor (from the global norm).
 *
 * Kinds, settings, defaults and names of moments are those of common/base/settings. With
 * g' = grad_scale * g the formulas are those of torch.optim (without amsgrad, dampening, maximize),
 * where t counts steps from 1 and wd is weight_decay. In all kinds except adamw, g' += wd p comes
 * first:
 *   sgd      m = g' at t = 1, else momentum m + g';  d = nesterov ? g' + momentum m : m
 *            (d = g' without momentum);  p -= lr d
 *   adam     m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
 *            p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *            (Kingma & Ba, ICLR 2015, algorithm 1)
 *   adamw    p *= 1 - lr wd, then as adam with wd = 0 (Loshchilov & Hutter, ICLR 2019, algorithm 2)
 *   adagrad  s += g'^2;  p -= lr / (1 + (t - 1) lr_decay) * g' / (sqrt(s) + eps), where s begins
 *            with initial_accumulator_value (Duchi, Hazan & Singer, JMLR 12, 2011)
 *   rmsprop  s = alpha s + (1 - alpha) g'^2;  a = sqrt(s) + eps, and with centered
 *            c = alpha c + (1 - alpha) g';  a = sqrt(s - c^2) + eps (Hinton's lecture 6e;
 *            centered: Graves, arXiv:1308.0850)
 *            p -= lr g' / a, or with momentum b = momentum b + g' / a;  p -= lr b
 *   adamax   m = beta1 m + (1 - beta1) g';  u = max(beta2 u, |g'| + eps)
 *            p -= lr / (1 - beta1^t) * m / u (Kingma & Ba, algorithm 2)
 *
 * With ema = d > 0 every kind also keeps the exponential moving average of its parameters p, which
 * no step reads. After step t: ema = p for t = 1, else ema += (1 - d_t) (p - ema), where d_t = d,
 * or with ema_warmup d_t = min(d, (1 + t) / (10 + t)). The values are those of
 * torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(d) and use_buffers=False.
 *
 * Threads: an optimiser belongs to one thread at a time. Schedules and clv_clip_scale are pure.
 */
#ifndef CLEAVE_OPTIM_H
#define CLEAVE_OPTIM_H

#include "common/base/settings/settings.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive f32 values of the parameter block. */
typedef struct clv_optim_span {
  size_t offset;      /* offset in the block in bytes, a multiple of 4 */
  size_t n;           /* number of f32 values in the span */
  size_t group_index; /* index of the span's group */
} clv_optim_span;

typedef struct clv_optim clv_optim;

enum { CLV_OPTIM_MAX_GROUPS = 16 };

/* Makes an optimiser over a block of block_bytes. Groups and spans are copied: 1 to
 * CLV_OPTIM_MAX_GROUPS groups of one kind, each span within the block, on a multiple of 4 bytes. A
 * group may have no spans. Moments start at 0, adagrad's at initial_accumulator_value. CLV_INVALID:
 * a setting, a group or a span is out of range (the text quotes it); CLV_EXHAUSTED: no memory.
 * `backend` must outlive the optimiser. */
clv_code clv_optim_new(const clv_optim_config *groups, size_t n_groups, size_t block_bytes,
                       const clv_optim_span *spans, size_t n_spans, const clv_backend *backend,
                       clv_optim **ret, clv_err *err) CLV_USE_RESULT;
clv_optim *clv_optim_free(clv_optim *o); /* takes NULL, returns NULL */
void clv_optim_freep(clv_optim **o);     /* for CLV_AUTO */

/* Takes one step: updates params (block_bytes) and the moments from grads (same offsets), and
 * counts the step. lr: [clv_optim_n_groups] the rates of this step. grad_scale: factor on every
 * gradient (clipping), 1 for none. params and grads are in the backend's memory. A backend with its
 * own memory reports errors at clv_backend_finish; others have none. Allocates no memory, and
 * neither reads nor writes values outside the spans. */
void clv_optim_step(clv_optim *o, float *params, const float *grads, const double *lr,
                    double grad_scale);
size_t clv_optim_n_groups(const clv_optim *o);
/* Sets the average of the parameters to their present values, in and outside the spans. params: as
 * for clv_optim_step. Does nothing if the optimiser keeps no average. */
clv_code clv_optim_begin_ema(clv_optim *o, const float *params, clv_err *err) CLV_USE_RESULT;
/* Returns the block of the parameters' average, which is as a block of clv_optim_moment; NULL: the
 * optimiser keeps no average. */
float *clv_optim_ema(const clv_optim *o);

/* State of the optimiser, for checkpoints. The optimiser has each moment (such as exp_avg) that at
 * least one group needs, and as the last one the average "ema". clv_optim_moment returns a block of
 * block_bytes in the backend's memory, which the caller may read and write and the optimiser owns;
 * values outside the spans, and those of groups that do not need the moment, stay 0. Names are
 * those of PyTorch. Both functions return NULL if there is no moment i. clv_optim_step_count points
 * to the number of steps taken. */
int clv_optim_n_moments(const clv_optim *o);
const char *clv_optim_moment_name(const clv_optim *o, int i);
float *clv_optim_moment(clv_optim *o, int i);
int64_t *clv_optim_step_count(clv_optim *o);

/* ---- learning-rate schedules ----------------------------------------------------------------- */

typedef enum clv_lr_curve {
  CLV_LR_CURVE_CONSTANT = 0,
  CLV_LR_CURVE_STEP = 1,
  CLV_LR_CURVE_COSINE = 2,
  CLV_LR_CURVE_LINEAR = 3,
} clv_lr_curve;

typedef struct clv_lr_schedule {
  clv_lr_curve curve;    /* curve of the rate after the warm-up */
  uint64_t warmup_steps; /* W: steps of the warm-up; 0: no warm-up */
  uint64_t step_size;    /* for STEP: steps between two reductions; 0: no reduction */
  /* T, for COSINE and LINEAR: steps until the rate is 0, with the warm-up; 0: constant rate */
  uint64_t total_steps;
  double gamma;        /* for STEP: factor of each reduction */
  bool starts_at_zero; /* the warm-up starts at 0, not at 1/W */
} clv_lr_schedule;

/* Returns the rate of step t = 0, 1, ... For t < W: base (t + 1) / W, which is torch's
 * LinearLR(start_factor = 1/W, total_iters = W - 1); with starts_at_zero base t / W, as Hugging
 * Face's get_linear_schedule_with_warmup (transformers/optimization.py; its cosine as well). From
 * then on, with s = t - W and S = T - W:
 *   constant  base
 *   step      base gamma^floor(s / step_size)                       (StepLR)
 *   cosine    base (1 + cos(pi min(s, S) / S)) / 2                  (CosineAnnealingLR, eta_min 0,
 *                                                     held at 0 after S, where torch's rises again)
 *   linear    base (1 - min(s, S) / S)                              (LinearLR from 1 to 0)
 * The closed forms of torch.optim.lr_scheduler, chained as by SequentialLR(milestones = [W]). */
double clv_lr_at(const clv_lr_schedule *schedule, double base_lr, uint64_t step);

/* Returns min(1, max_norm / (sqrt(total_norm_sq) + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if
 * max_norm <= 0 (no clipping). NaN gives NaN: the caller refuses such a step beforehand. */
double clv_clip_scale(double total_norm_sq, double max_norm);

#ifdef __cplusplus
}
#endif
#endif
