/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the placed schedules of a trainer: those of full and of short rounds, with the window
 * before and after its last change.
 */
#include <string.h>

#include "master/train/train_int.h"

void clv_trainer_forget_schedules(clv_trainer *t) {
  while (t->n_schedules) clv_placed_schedule_free(t->schedules[--t->n_schedules]);
}

clv_code clv_trainer_placed_schedule(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                                     const clv_placed_schedule **ret, clv_err *err) {
  clv_placed_schedule *l = NULL;
  for (uint32_t i = 0; i < t->n_schedules; i++) {
    l = t->schedules[i];
    if (l->n_micro_batches != n_micro || l->n_steps != n_steps || l->window != t->window) continue;
    *ret = l;
    return CLV_OK;
  }
  CLV_TRY(clv_placed_schedule_new(t->b, n_micro, n_steps, t->window,
                                  t->has_costs ? &t->costs : NULL, &l, err));
  if (t->n_schedules == MAX_KEPT_SCHEDULES)
    clv_placed_schedule_free(t->schedules[--t->n_schedules]);
  memmove(t->schedules + 1, t->schedules, t->n_schedules * sizeof(clv_placed_schedule *));
  t->schedules[0] = l;
  t->n_schedules++;
  *ret = l;
  return CLV_OK;
}
