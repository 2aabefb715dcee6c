/* SPDX-License-Identifier: Apache-2.0
 *
 * Frees values before their context ends, as Python's garbage collector frees an autograd graph.
 * The program forgets a call with cleave_call_forget. A sweep then walks the tape from the newest
 * value to the oldest. A value is needed if the program has a handle for it, or if it is an input
 * of a needed value whose backward may still come. All other values are freed, in this process and
 * at their nodes.
 */
#include "master/api/core/future_int.h"

/* ---- freeing values at nodes ----------------------------------------------------------------- */

static cleave_status send_drop_frame(cleave_runtime *rt, const api_context *c, uint32_t node,
                                     const uint64_t *ids, uint32_t n, cleave_error *error) {
  clv_packet *p;
  if (!n) return CLEAVE_OK;
  TRY(clv_packet_new_drop(rt->pool, c->id, c->n_calls_sent[node], ids, n, &p, &err));
  return api_send(rt, node, p, error);
}

static cleave_status drop_at_node(cleave_runtime *rt, const api_value *first, uint32_t node,
                                  cleave_error *error) {
  uint64_t ids[CLV_WIRE_UPSTREAM];
  uint32_t n = 0;
  for (const api_value *v = first; v; v = v->next_in_list) {
    if (!(v->nodes_with_value & NODE_BIT(node))) continue;
    ids[n++] = v->id;
    if (n < CLV_WIRE_UPSTREAM) continue;
    TRY_API(send_drop_frame(rt, first->context, node, ids, n, error));
    n = 0;
  }
  return n ? send_drop_frame(rt, first->context, node, ids, n, error) : CLEAVE_OK;
}

cleave_status api_drop_values_at_nodes(cleave_runtime *rt, api_value *first, cleave_error *error) {
  for (uint32_t i = 0; first && i < rt->n_peers; i++) TRY_API(drop_at_node(rt, first, i, error));
  for (api_value *v = first; v; v = v->next_in_list) {
    v->local_tensor = clv_tensor_unref(v->local_tensor);
    v->nodes_with_value = 0;
  }
  return CLEAVE_OK;
}

/* ---- the sweep, which finds the values to free ----------------------------------------------- */

/* True if the value has been requested and has not arrived, or if some function waits for it. */
static bool is_value_awaited(const cleave_runtime *rt, const api_value *v) {
  bool is_requested = v->is_deliver_sent || v->is_awaited_by_master_node;
  bool is_awaited_somewhere = v->n_waiters || (is_requested && !v->is_received && !v->has_failed);
  for (const api_future *f = rt->futures_state->first_unfinished; f && !is_awaited_somewhere;
       f = f->next)
    is_awaited_somewhere = f->value == v;
  return is_awaited_somewhere;
}

static bool is_value_needed(const cleave_runtime *rt, const api_value *v) {
  return !v->is_released || v->is_kept || v->last_needed_sweep == rt->n_value_sweeps ||
         v->n_calls_after_backward || is_value_awaited(rt, v);
}

/* Marks the inputs of a needed value as needed, unless the value has no further backward, because
 * only its backward reads the inputs. */
static void mark_needed_inputs(const cleave_runtime *rt, api_value *v) {
  if (v->runs_after_backward_of) v->runs_after_backward_of->last_needed_sweep = rt->n_value_sweeps;
  if (v->are_saved_tensors_freed && !v->is_kept) v->n_args = 0;
  for (uint32_t i = 0; i < v->n_args; i++) {
    v->args[i]->last_needed_sweep = rt->n_value_sweeps;
    v->args[i]->is_kept |= v->is_kept;
  }
}

/* Removes the values that are not needed from the tape. Returns them, linked by next_in_list. */
static api_value *detach_unneeded_values(cleave_runtime *rt, api_context *c) {
  api_value *first_unneeded_value = NULL;
  rt->n_value_sweeps++;
  for (api_value **at = &c->newest_value; *at;) {
    api_value *v = *at;
    if (is_value_needed(rt, v)) {
      mark_needed_inputs(rt, v);
      at = &v->older_value;
      continue;
    }
    *at = v->older_value;
    v->next_in_list = first_unneeded_value;
    first_unneeded_value = v;
  }
  return first_unneeded_value;
}

cleave_status api_forget_unneeded_values(cleave_runtime *rt, api_context *c, cleave_error *error) {
  if (c->is_backward_running || c->n_unconfirmed_kept_values || c->has_failed) return CLEAVE_OK;
  api_value *first_unneeded_value = detach_unneeded_values(rt, c);
  cleave_status status = api_drop_values_at_nodes(rt, first_unneeded_value, error);
  for (api_value *v = first_unneeded_value, *next; v; v = next) {
    next = v->next_in_list;
    api_drop_value(rt, v);
  }
  return status;
}

cleave_status cleave_call_forget(cleave_runtime *runtime, cleave_reference reference,
                                 cleave_error *error) {
  NOT_NULL(runtime);
  api_value *v;
  LOCKED(runtime);
  TRY_API(api_find_value(runtime, reference, &v, error));
  if (v->n_calls_after_backward)
    return api_fail(error, CLV_PRECONDITION,
                    "calls run after the backward of value %llu (cleave_call_options.after): it "
                    "cannot be forgotten before",
                    (unsigned long long)v->id);
  v->is_released = true;
  v->context->has_forgotten_calls = true;
  return api_forget_unneeded_values(runtime, v->context, error);
}
