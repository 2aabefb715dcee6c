/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes parameters, buffers and optimiser state by name, at the node of the module.
 * Answers are checked against the module's graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/module_int.h"
#include "master/api/core/future_int.h"
#include "master/api/core/state_requests_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- complete state_dicts -------------------------------------------------------------------- */

static cleave_status fill_state(const api_state_item *items, uint32_t n, cleave_state *ret,
                                cleave_error *error) {
  TRY(clv_alloc(n, sizeof *ret->items, &ret->items, &err));
  for (; ret->n < n; ret->n++) {
    char *name;
    TRY(clv_strdup(items[ret->n].name, &name, &err));
    ret->items[ret->n].name = name;
    cleave_status status =
        api_copy_tensor_out(items[ret->n].tensor, &ret->items[ret->n].tensor, error);
    if (status == CLEAVE_OK) continue;
    free(name);
    return status;
  }
  return CLEAVE_OK;
}

cleave_status api_copy_state_result(const api_future *f, void *ret, cleave_error *error) {
  cleave_state *to = ret;
  cleave_state state = {0};
  cleave_status status = fill_state(f->items, f->request.n_items_expected, &state, error);
  if (status == CLEAVE_OK && f->state_kind == CLV_STATE_WEIGHTS)
    status = api_note_read_values(f, state.items, state.n, error);
  if (status == CLEAVE_OK)
    *to = state;
  else
    cleave_state_free(&state);
  return status;
}

/* ---- reading state --------------------------------------------------------------------------- */

/* States of an operation on state (api_future.operation_state): it waits for a pending step; its
 * request has been sent. */
enum { WAITS_FOR_STEP, REQUEST_IS_SENT };

/* Begins to read state, after it has loaded the module at its node. The operation waits for pending
 * steps later (api_state_advance). */
cleave_status api_state_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error) {
  cleave_module *m = a->module;
  const char *name = a->name;
  f->module = m;
  f->runtime = rt;
  f->state_kind = (clv_state_kind)a->kind;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", name ? name : m->name);
  if (name) TRY_API(api_check_weight(m, name, NULL, error));
  TRY_API(api_module_place(m, false, f->deadline_ms, error));
  TRY_API(api_check_no_pending_backward(rt, error));
  f->request.item_name = name ? f->subject_name : NULL;
  f->request.n_items_expected = name ? 0 : (uint32_t)cleave_state_count(m, a->kind);
  if (!name) TRY(clv_alloc(f->request.n_items_expected, sizeof *f->items, &f->items, &err));
  f->n_items = f->request.n_items_expected;
  /* the worker may leave out the frozen parameters of its artifact */
  f->request.may_have_fewer_items = !name && m->artifact_name;
  f->request.items = f->items;
  api_module_add_kept_ref(m);
  return CLEAVE_OK;
}

/* Decrements n_kept_refs of the module that the operation has used. */
void api_state_free_work(cleave_runtime *rt, api_future *f) {
  (void)rt;
  api_module_remove_kept_ref(f->module);
  f->module = NULL;
}

static cleave_status store_read_result(cleave_runtime *rt, api_future *f, cleave_error *error) {
  const cleave_module *m = f->module;
  const char *name = f->request.item_name;
  if (!name) {
    TRY_API(api_take_deferred_error(
        rt, error)); /* returns the failure of an earlier step, which is known by now */
    return api_state_check_items(m, (cleave_state_kind)f->state_kind, f->items,
                                 f->request.n_items_expected, error);
  }
  TRY_API(api_state_check_item(m, name, f->request.item_tensor, error));
  f->tensor = clv_steal(&f->request.item_tensor);
  if (f->tensor) return CLEAVE_OK;
  if (m->artifact_name)
    return api_fail(
        error, CLV_DENIED,
        "'%s' does not give out '%s' of its artifact '%s' (artifacts.%s.readable in its "
        "worker.yaml)",
        cleave_module_node(m), name, m->artifact_name, m->artifact_name);
  return api_fail(error, CLV_BAD_ANSWER, "'%s' did not send '%s'", cleave_module_node(m), name);
}

void api_state_advance(cleave_runtime *rt, api_future *f) {
  api_state_request *r = &f->request;
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_STEP &&
      (rt->undecided_context || f->module->state == MODULE_PLACING))
    return;
  if (f->operation_state == WAITS_FOR_STEP)
    why.status = api_state_send_get(f->module, f->state_kind, 0, r, &why);
  f->operation_state = REQUEST_IS_SENT;
  if (why.status == CLEAVE_OK && r->has_failed) why = r->failure;
  if (why.status == CLEAVE_OK) {
    if (!r->is_answered || r->n_items_received < r->n_items_expected) return;
    (void)store_read_result(rt, f, &why);
  }
  api_state_free_work(rt, f);
  api_future_finish(rt, f, &why);
}

void api_state_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->module;
  char silence_text[200];
  if (rt->undecided_context && f->operation_state == WAITS_FOR_STEP) {
    api_fail(ret, CLV_DEADLINE, "the step of context %s was not decided in time",
             rt->undecided_context->name);
    return;
  }
  api_fail(ret, CLV_DEADLINE, "%s of module '%s' did not come from '%s' in time%s",
           f->request.item_name ? f->subject_name : "the state", m->name, rt->peers[m->node].name,
           api_describe_silence(rt, silence_text, sizeof silence_text));
  api_set_error_node(ret, rt->peers[m->node].name, m->name);
}

/* ---- writing state --------------------------------------------------------------------------- */

static cleave_status copy_items(const cleave_module *m, cleave_state_kind kind,
                                const cleave_named_tensor *from, size_t n, api_state_item *items,
                                cleave_error *error) {
  for (size_t i = 0; i < n; i++) {
    const cleave_tensor *t = &from[i].tensor;
    clv_shape shape;
    char text[160];
    TRY_API(api_copy_shape_in(t->rank, t->shape, &shape, error));
    if (!api_has_state_item(m, kind, from[i].name, (clv_dtype)t->dtype, &shape))
      return api_fail(error, CLV_INVALID, "module '%s' has no state '%s' %s %s", m->name,
                      from[i].name, clv_dtype_name((clv_dtype)t->dtype),
                      clv_shape_format(&shape, text, sizeof text));
    snprintf(items[i].name, sizeof items[i].name, "%s", from[i].name);
    TRY_API(api_copy_tensor_in(m->runtime->pool, t, &items[i].tensor, error));
  }
  return CLEAVE_OK;
}

cleave_status api_copy_state_items(const cleave_module *m, cleave_state_kind kind,
                                   const cleave_named_tensor *from, size_t n,
                                   api_state_item **ret_items, cleave_error *error) {
  TRY(clv_alloc(n, sizeof **ret_items, ret_items, &err));
  TRY_API(copy_items(m, kind, from, n, *ret_items, error));
  return kind == CLEAVE_STATE_WEIGHTS ? api_note_written_values(m, from, n, error) : CLEAVE_OK;
}

cleave_status api_state_write_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                    cleave_error *error) {
  cleave_module *m = a->module;
  f->items = clv_steal(&a->items);
  f->n_items = a->n;
  f->state_kind = (clv_state_kind)a->kind;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", m->name);
  TRY_API(api_module_place(m, false, f->deadline_ms, error));
  TRY_API(api_check_no_pending_backward(rt, error));
  api_module_add_kept_ref(m);
  f->module = m;
  return CLEAVE_OK;
}

void api_state_write_advance(cleave_runtime *rt, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_STEP) {
    if (rt->undecided_context || f->module->state == MODULE_PLACING) return;
    f->operation_state = REQUEST_IS_SENT;
    why.status = api_check_module_present(f->module, &why);
    if (why.status == CLEAVE_OK)
      why.status =
          api_state_send_put(f->module, f->state_kind, 0, f->items, f->n_items, &f->request, &why);
  }
  if (why.status == CLEAVE_OK && !api_is_request_answered(&f->request)) return;
  if (why.status == CLEAVE_OK && f->request.has_failed) why = f->request.failure;
  api_state_free_work(rt, f);
  api_future_finish(rt, f, &why);
}

void api_state_write_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->module;
  char silence_text[200];
  if (rt->undecided_context && f->operation_state == WAITS_FOR_STEP) {
    api_fail(ret, CLV_DEADLINE, "the step of context %s was not decided in time",
             rt->undecided_context->name);
    return;
  }
  api_fail(ret, CLV_DEADLINE, "'%s' has not taken the state of module '%s' in time%s",
           rt->peers[m->node].name, m->name,
           api_describe_silence(rt, silence_text, sizeof silence_text));
  api_set_error_node(ret, rt->peers[m->node].name, m->name);
}

void cleave_state_free(cleave_state *state) {
  if (!state) return;
  for (size_t i = 0; i < state->n; i++) {
    free((char *)(uintptr_t)state->items[i].name);
    cleave_tensor_free(&state->items[i].tensor);
  }
  free(state->items);
  *state = (cleave_state){0};
}
