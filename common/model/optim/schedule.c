/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning-rate schedules (clv_lr_at) and the clipping factor (clv_clip_scale): pure functions.
 */
#include "common/model/optim/optim.h"

#include <math.h>

/* Returns the factor on the base rate at step s after the warm-up. total: number of steps after the
 * warm-up. */
typedef double curve(const clv_lr_schedule *schedule, double s, double total);

static double curve_constant(const clv_lr_schedule *schedule, double s, double total) {
  (void)schedule, (void)s, (void)total;
  return 1;
}

static double curve_step(const clv_lr_schedule *schedule, double s, double total) {
  (void)total;
  return schedule->step_size ? pow(schedule->gamma, floor(s / (double)schedule->step_size)) : 1;
}

static double curve_cosine(const clv_lr_schedule *schedule, double s, double total) {
  if (!schedule->total_steps) return 1;
  return s < total ? (1 + cos(M_PI * s / total)) / 2 : 0;
}

static double curve_linear(const clv_lr_schedule *schedule, double s, double total) {
  if (!schedule->total_steps) return 1;
  return s < total ? 1 - s / total : 0;
}

double clv_lr_at(const clv_lr_schedule *schedule, double base_lr, uint64_t step) {
  static curve *const curves[] = {
      [CLV_LR_CURVE_CONSTANT] = curve_constant,
      [CLV_LR_CURVE_STEP] = curve_step,
      [CLV_LR_CURVE_COSINE] = curve_cosine,
      [CLV_LR_CURVE_LINEAR] = curve_linear,
  };
  uint64_t warmup = schedule->warmup_steps;
  if (step < warmup && schedule->starts_at_zero) return base_lr * ((double)step / (double)warmup);
  if (step < warmup) return base_lr * ((double)step + 1) / (double)warmup;
  uint64_t total = schedule->total_steps > warmup ? schedule->total_steps - warmup : 0;
  return base_lr * curves[schedule->curve](schedule, (double)(step - warmup), (double)total);
}

double clv_clip_scale(double total_norm_sq, double max_norm) {
  if (max_norm <= 0) return 1;
  double scale = max_norm / (sqrt(total_norm_sq) + 1e-6);
  return scale > 1 ? 1 : scale;
}
