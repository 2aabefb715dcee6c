/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes weights that are about to be written to a module, or were read from a module, to the gate
 * of a program's runtime, which adds them to the ledger of the host (extra/fronts.c).
 */
#include <string.h>

#include "master/api/core/future_int.h"

cleave_status api_note_written_values(const cleave_module *m, const cleave_named_tensor *items,
                                      size_t n, cleave_error *error) {
  const api_gate *gate = &m->runtime->gate;
  const api_noted_values values = {
      .runtime = m->runtime, .module = m, .node = m->node, .items = items, .n = n};
  return gate->note_values ? gate->note_values(gate->owner, &values, error) : CLEAVE_OK;
}

cleave_status api_note_read_values(const api_future *f, const cleave_named_tensor *items, size_t n,
                                   cleave_error *error) {
  cleave_runtime *rt = f->runtime;
  const api_noted_values values = {
      .runtime = rt, .node = f->request.node, .items = items, .n = n, .are_read_values = true};
  if (!values.node || !rt->gate.note_values) return CLEAVE_OK;
  return rt->gate.note_values(rt->gate.owner, &values, error);
}

cleave_status api_note_weight_read(const api_future *f, cleave_error *error) {
  const clv_tensor *t = f->tensor;
  cleave_named_tensor item = {
      f->subject_name, {.dtype = (cleave_dtype)t->dtype, .rank = t->shape.rank, .data = t->data}};
  memcpy(item.tensor.shape, t->shape.dim, sizeof item.tensor.shape);
  return api_note_read_values(f, &item, 1, error);
}
