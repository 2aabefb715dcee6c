/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the items of a module's state: parameters and buffers by its graph, moments by the settings
 * of its optimiser.
 */
#include <stdio.h>
#include <stdlib.h>

#include "master/api/core/core_int.h"

enum { ITEM_NAME_BYTES = CLV_WIRE_NAME + 1 };

void cleave_state_list_done(cleave_state_list *l) {
  if (!l) return;
  free(l->items);
  free(l->names);
  *l = (cleave_state_list){0};
}

static void append_item(cleave_state_list *l, const char *name, const char *moment_name,
                        clv_dtype dtype, const clv_shape *shape) {
  char *at = l->names + l->n * ITEM_NAME_BYTES;
  snprintf(at, ITEM_NAME_BYTES, "%s%s%s", name, moment_name ? "." : "",
           moment_name ? moment_name : "");
  l->items[l->n++] = (clv_weights_want){at, dtype, *shape, false};
}

/* Lists the optimiser moments of all parameters, under the names that the module's optimiser
 * settings give them. */
static cleave_status append_moments(const cleave_module *m, cleave_state_list *l,
                                    cleave_error *error) {
  CLV_AUTO(clv_optim_freep) clv_optim *of = NULL;
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS];
  for (uint32_t i = 0; i < m->n_groups; i++) groups[i] = m->groups[i]->optim;
  TRY(clv_optim_new(groups, m->n_groups, 64, NULL, 0, clv_backend_cpu(), &of, &err));
  for (int k = 0; k < clv_optim_n_moments(of); k++)
    for (int i = 0; i < m->params->n; i++) {
      const clv_param *p = &m->params->list[i];
      if (p->trainable && !p->is_fixed)
        append_item(l, p->name, clv_optim_moment_name(of, k), CLV_F32, &p->shape);
    }
  append_item(l, "step", NULL, CLV_I64, &(clv_shape){0});
  return CLEAVE_OK;
}

cleave_status cleave_state_list_of(const cleave_module *m, cleave_state_kind kind,
                                   cleave_state_list *ret, cleave_error *error) {
  size_t n = cleave_state_count(m, kind);
  TRY(clv_alloc(n, sizeof *ret->items, &ret->items, &err));
  TRY(clv_alloc(n, ITEM_NAME_BYTES, &ret->names, &err));
  if (kind == CLEAVE_STATE_OPTIMIZER) return n ? append_moments(m, ret, error) : CLEAVE_OK;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    append_item(ret, p->name, NULL, p->dtype, &p->shape);
  }
  return CLEAVE_OK;
}
