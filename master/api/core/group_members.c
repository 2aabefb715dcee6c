/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the parameters of a module that are in a group of its optimiser, and removes modules from
 * their optimiser.
 */
#include <stdlib.h>
#include <string.h>

#include "master/api/core/module_int.h"

uint32_t api_group_param_names(const cleave_module *m, uint32_t group_number,
                               const char **ret_names) {
  uint32_t n = 0;
  for (int i = 0; i < m->params->n; i++)
    if (m->param_group_numbers[i] == group_number + 1 && api_requires_grad(&m->params->list[i]))
      ret_names[n++] = m->params->list[i].name;
  return n;
}

void api_optimizer_free(cleave_optimizer *o) {
  if (!o) return;
  free(o->modules);
  free(o->groups);
  free(o);
}

/* Removes a module from its optimiser. A released optimiser is freed with its last module. */
void api_module_leave_optimizer(cleave_module *m) {
  cleave_optimizer *o = m->optimizer;
  size_t at = 0;
  if (!o) return;
  m->optimizer = NULL;
  m->n_groups = 0;
  m->has_unstepped_group = false;
  free(clv_steal(&m->param_group_numbers));
  while (o->modules[at] != m) at++;
  memmove(&o->modules[at], &o->modules[at + 1], (--o->n_modules - at) * sizeof(cleave_module *));
  if (o->n_modules) return;
  cleave_optimizer **list_link = &m->runtime->optimizers;
  while (*list_link != o) list_link = &(*list_link)->next;
  *list_link = o->next;
  api_optimizer_free(o);
}
