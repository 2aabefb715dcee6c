/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions for programs that run a pipeline schedule: steps inside a context (cleave_step_at),
 * measurements of links, and the events of a context.
 */
#include <stdlib.h>

#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

cleave_status cleave_step_at(cleave_runtime *runtime, cleave_optimizer *optimizer,
                             cleave_context handle, cleave_module *module, uint64_t ahead,
                             uint32_t position, bool keep, double *ret_lr, cleave_error *error) {
  NOT_NULL(runtime, optimizer, module);
  api_context *c;
  LOCKED(runtime);
  TRY_API(api_find_context(runtime, handle, &c, error));
  if (module->optimizer != optimizer || !optimizer->cannot_revert)
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' is not of this optimiser, or its steps are not final",
                    module->name);
  if (!position || position > CLV_WIRE_POSITIONS)
    return api_fail(error, CLV_INVALID, "position %u: positions are counted from 1 to %d", position,
                    CLV_WIRE_POSITIONS);
  if (c->is_backward_running)
    return api_fail(error, CLV_PRECONDITION, "a backward of context %s is running", c->name);
  if (optimizer->clip_norm > 0)
    return api_fail(error, CLV_PRECONDITION,
                    "a step inside a context sees the gradients of one module alone: no clipping "
                    "by the norm of all");
  TRY_API(api_check_module_present(module, error));
  if (module->state != MODULE_PLACED)
    return api_fail(error, CLV_PRECONDITION, "module '%s' was never called", module->name);
  TRY_API(api_send_step_at(optimizer, c, module, ahead, position, keep, error));
  api_context_use_module(c, module);
  c->has_stepped[module->index] = c->has_stepped_at_position[module->index] = true;
  module->weights_version++;
  if (ret_lr) *ret_lr = api_learning_rate_after_steps(optimizer, ahead);
  return CLEAVE_OK;
}

/* ---- measurements of links ------------------------------------------------------------------- */

/* Returns bytes per second; 0 if ns is 0. */
static double bytes_per_second(uint64_t bytes, uint64_t ns) {
  return ns ? (double)bytes / ((double)ns * 1e-9) : 0;
}

static cleave_status take_link_reference(api_peer *p, clv_link **ret, cleave_error *error) {
  LOCKED(p->runtime);
  TRY_API(api_check_node_present(p->runtime, p->index, error));
  *ret = clv_link_ref(p->link);
  return CLEAVE_OK;
}

cleave_status cleave_measure(cleave_runtime *runtime, uint32_t node, uint64_t deadline_ms,
                             cleave_link_measure *ret, cleave_error *error) {
  NOT_NULL(runtime, ret);
  uint64_t ns = 0;
  clv_link_counts now;
  if (node == 0 || node >= runtime->n_peers)
    return api_fail(error, CLV_INVALID, "node %u is no worker", node);
  api_peer *p = &runtime->peers[node];
  CLV_AUTO(clv_link_unrefp) clv_link *link = NULL;
  TRY_API(take_link_reference(p, &link, error));
  clv_err err;
  uint64_t ms = deadline_ms ? deadline_ms : runtime->deadline_ms;
  CLV_AUTO(api_interruptible_end) api_interruptible waits;
  api_interruptible_begin(runtime, &waits);
  if (clv_link_ping(link, (unsigned)ms, &ns, &err) != CLV_OK) {
    clv_err_prefix(&err, "worker '%s'", p->name);
    api_convert_error(error, &err);
    api_set_error_node(error, p->name, "link");
    return (cleave_status)err.code;
  }
  clv_link_get_counts(link, &now);
  clv_link_counts *last_counts = &p->last_link_counts;
  ret->round_trip_s = (double)ns * 1e-9;
  ret->up_bytes_s = bytes_per_second(now.peer_received_bytes - last_counts->peer_received_bytes,
                                     now.peer_receiving_ns - last_counts->peer_receiving_ns);
  ret->down_bytes_s = bytes_per_second(now.received_bytes - last_counts->received_bytes,
                                       now.receiving_ns - last_counts->receiving_ns);
  *last_counts = now;
  return CLEAVE_OK;
}

/* ---- events of a context --------------------------------------------------------------------- */

_Static_assert((int)CLEAVE_EVENT_KINDS == CLV_TRACE_KINDS &&
                   (int)CLEAVE_EVENT_GRADIENT_IN == CLV_TRACE_GRADIENT_IN,
               "kinds of events are those of rows");

/* Converts a row of a worker's trace to an event. Returns false if kind or module is unknown. A
 * worker may send any numbers as times and clock offset, so their sums may wrap around. */
static bool read_event(const cleave_runtime *rt, const api_peer *from, const int64_t *row,
                       int64_t clock_ahead_ns, cleave_event *ret) {
  int64_t kind = row[CLV_TRACE_KIND], module = row[CLV_TRACE_MODULE];
  if (kind <= CLV_TRACE_NONE || kind >= CLV_TRACE_KINDS) return false;
  bool is_module_event = kind <= CLV_TRACE_STEP;
  const cleave_module *m = module >= 0 && module < rt->n_modules ? rt->modules[module] : NULL;
  if (is_module_event && !(m && m->node == from->index)) return false;
  /* the module is an output module (outputs.c), which the program does not know */
  if (is_module_event && m->output_owner_name[0]) return false;
  *ret = (cleave_event){.kind = (cleave_event_kind)kind,
                        .node = from->index,
                        .module = is_module_event ? m : NULL,
                        .call = (uint32_t)row[CLV_TRACE_MICRO],
                        .begin_ns = (uint64_t)row[CLV_TRACE_BEGIN] - (uint64_t)clock_ahead_ns,
                        .end_ns = (uint64_t)row[CLV_TRACE_END] - (uint64_t)clock_ahead_ns,
                        .bytes = (uint64_t)row[CLV_TRACE_BYTES],
                        .version = (uint64_t)row[CLV_TRACE_VERSION],
                        .reference = {(uint64_t)row[CLV_TRACE_VALUE]}};
  return true;
}

void api_report_events(cleave_runtime *rt, const api_peer *from, const clv_packet *p) {
  const clv_tensor *t = p->frame.n_tensors ? p->tensor[0] : NULL;
  clv_link_counts link = {0};
  if (!rt->on_event || !t || t->dtype != CLV_I64 || t->shape.rank != 2 ||
      t->shape.dim[1] != CLV_TRACE_COLUMNS)
    return;
  if (from->link) clv_link_get_counts(from->link, &link);
  for (int64_t i = 0; i < t->shape.dim[0]; i++) {
    const int64_t *row = (const int64_t *)t->data + i * CLV_TRACE_COLUMNS;
    cleave_event event;
    if (read_event(rt, from, row, link.clock_offset_ns, &event))
      rt->on_event(rt->user, (cleave_context){p->frame.context}, &event);
  }
}
