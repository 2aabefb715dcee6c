/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts that a trainer keeps: of full and short rounds, before and after the window changed.
 */
#include <string.h>

#include "master/train/train_int.h"

void clv_trainer_forget_layouts(clv_trainer *t) {
  while (t->n_layouts) clv_layout_free(t->layouts[--t->n_layouts]);
}

clv_code clv_trainer_layout(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                            const clv_layout **ret, clv_err *err) {
  clv_layout *l = NULL;
  for (uint32_t i = 0; i < t->n_layouts; i++) {
    l = t->layouts[i];
    if (l->n_micro != n_micro || l->n_steps != n_steps || l->window != t->window) continue;
    *ret = l;
    return CLV_OK;
  }
  CLV_TRY(clv_layout_new(t->b, n_micro, n_steps, t->window, t->costs_known ? &t->costs : NULL, &l,
                         err));
  if (t->n_layouts == KEPT_LAYOUTS) clv_layout_free(t->layouts[--t->n_layouts]);
  memmove(t->layouts + 1, t->layouts, t->n_layouts * sizeof(clv_layout *));
  t->layouts[0] = l;
  t->n_layouts++;
  *ret = l;
  return CLV_OK;
}
