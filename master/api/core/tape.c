/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of the tape: contexts, and the values in them. Records are reused through free lists,
 * but their ids are never reused, so the handle of a freed record is recognised as invalid.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"

/* ---- records of values ----------------------------------------------------------------------- */

cleave_status api_new_value(cleave_runtime *rt, api_context *c, api_value **ret,
                            cleave_error *error) {
  api_value *v = rt->value_free_list;
  if (v)
    rt->value_free_list = v->older_value;
  else
    TRY(clv_alloc(1, sizeof *v, &v, &err));
  clv_tensor **contributions = v->contributions;
  uint32_t cap = v->contributions_cap;
  *v = (api_value){
      .id = ++rt->next_id, .context = c, .contributions = contributions, .contributions_cap = cap};
  clv_err err;
  if (api_id_table_put(&rt->values, v->id, v, &err) != CLV_OK) {
    v->older_value = rt->value_free_list;
    rt->value_free_list = v;
    return api_convert_error(error, &err);
  }
  v->older_value = c->newest_value;
  c->newest_value = v;
  *ret = v;
  return CLEAVE_OK;
}

/* Puts a value into the free list. The caller removes it from the list of its context. */
void api_drop_value(cleave_runtime *rt, api_value *v) {
  api_id_table_remove(&rt->values, v->id);
  if (v->kept_ref) rt->kept_ops->release_leaf(rt, v->kept_ref);
  v->kept_ref = NULL;
  v->local_tensor = clv_tensor_unref(v->local_tensor);
  v->gradient = clv_tensor_unref(v->gradient);
  for (uint32_t i = 0; i < v->contributions_cap; i++)
    v->contributions[i] = clv_tensor_unref(v->contributions[i]);
  v->older_value = rt->value_free_list;
  rt->value_free_list = v;
}

cleave_status api_find_value(cleave_runtime *rt, cleave_reference handle, api_value **ret,
                             cleave_error *error) {
  api_value *v = api_id_table_get(&rt->values, handle.id);
  if (v && !v->is_released && v->context->state == API_CONTEXT_OPEN) {
    *ret = v;
    return CLEAVE_OK;
  }
  if (handle.id == 0 || handle.id > rt->next_id)
    return api_fail(error, CLV_INVALID, "%llu is no reference of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "reference %llu %s", (unsigned long long)handle.id,
                  v && v->context->state == API_CONTEXT_OPEN
                      ? "was released"
                      : "is gone: it was released or its context was closed");
}

/* ---- records of contexts --------------------------------------------------------------------- */

cleave_status api_context_failure(const api_context *c, cleave_error *error) {
  if (c->has_failed && error) *error = c->failure;
  return c->has_failed ? c->failure.status : CLEAVE_OK;
}

cleave_status api_find_context(cleave_runtime *rt, cleave_context handle, api_context **ret,
                               cleave_error *error) {
  api_context *c = api_id_table_get(&rt->contexts, handle.id);
  if (c && c->state == API_CONTEXT_OPEN) {
    *ret = c;
    return api_context_failure(c, error);
  }
  if (handle.id == 0 || handle.id > rt->next_context_id)
    return api_fail(error, CLV_INVALID, "%llu is no context of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "context %llu was closed", (unsigned long long)handle.id);
}

cleave_status api_check_no_pending_backward(const cleave_runtime *rt, cleave_error *error) {
  size_t at = 0;
  for (const api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->n_calls_awaiting_backward && !c->has_failed && c->state == API_CONTEXT_OPEN)
      return api_fail(
          error, CLV_PRECONDITION,
          "calls of context %s wait for its backward (cleave_call_options.after): begin "
          "that, or close it, before parameters are changed or read",
          c->name);
  return CLEAVE_OK;
}

cleave_status api_take_deferred_error(cleave_runtime *rt, cleave_error *error) {
  cleave_status status = rt->deferred_error.status;
  if (status != CLEAVE_OK && error) *error = rt->deferred_error;
  rt->deferred_error.status = CLEAVE_OK;
  return status;
}

/* Frees the values of a context that is ending; their handles become invalid. The record of the
 * context stays until all nodes have answered. */
void api_drop_values(cleave_runtime *rt, api_context *c) {
  for (api_value *v = c->newest_value, *older; v; v = older) {
    older = v->older_value;
    api_drop_value(rt, v);
  }
  c->newest_value = NULL;
  for (uint32_t i = 0; i < rt->n_peers; i++) c->votes[i] = clv_tensor_unref(c->votes[i]);
}

void api_context_free(cleave_runtime *rt, api_context *c) {
  if (!c) return;
  if (rt->unsent_step_context == c) rt->unsent_step_context = NULL;
  api_futures_end_in_context(rt, c);
  if (c->n_unconfirmed_kept_values) rt->kept_ops->stop_awaiting_owners(rt, c);
  rt->n_ending_contexts -= c->state == API_CONTEXT_ENDING;
  api_drop_values(rt, c);
  api_context_release_modules(rt, c);
  api_id_table_remove(&rt->contexts, c->id);
  c->next = rt->context_free_list;
  rt->context_free_list = c;
}
