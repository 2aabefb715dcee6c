/* SPDX-License-Identifier: Apache-2.0
 *
 * Each function of the program that waits for nodes, and its form that returns a future: both begin
 * the same, and the first waits for what the second gives back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/future_int.h"
#include "master/api/life_int.h"
#include "master/api/rejoin_int.h"

/* ---- beginning, and waiting ------------------------------------------------------------------ */

cleave_status api_async_ready(cleave_runtime *rt, cleave_error *error) {
  LOCKED(rt);
  return api_futures_attend(rt, error);
}

cleave_status api_async_new(cleave_runtime *rt, api_future_kind kind, uint64_t deadline_ms,
                            api_future **ret, cleave_error *error) {
  return api_future_new(rt, kind, api_until(rt, deadline_ms), deadline_ms, ret, error);
}

/* What could not begin leaves nothing. */
cleave_status api_async_begun(cleave_runtime *rt, api_future *f, cleave_status status,
                              api_future **ret) {
  *ret = f;
  if (status == CLEAVE_OK) return CLEAVE_OK;
  f->over = true;
  api_future_leave(rt, f);
  return status;
}

cleave_status api_async_wait(cleave_runtime *rt, api_future *f, clv_tensor **ret_tensor,
                             cleave_error *error) {
  api_future_list(rt, f);
  cleave_status status = api_future_await(rt, f, UINT64_MAX, error);
  if (status == CLEAVE_OK && ret_tensor) *ret_tensor = clv_tensor_ref(f->tensor);
  api_future_leave(rt, f);
  return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

static cleave_status begin_fetch(cleave_runtime *rt, cleave_reference reference,
                                 uint64_t deadline_ms, api_future **ret, cleave_error *error) {
  api_value *v;
  api_future *f;
  PASS(api_find_value(rt, reference, &v, error));
  PASS(api_async_new(rt, API_FUTURE_VALUE, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_fetch_begin(rt, v, f, error), ret);
}

cleave_status cleave_to_here(cleave_runtime *runtime, cleave_reference reference,
                             uint64_t deadline_ms, cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_future *f;
    LOCKED(runtime);
    PASS(begin_fetch(runtime, reference, deadline_ms, &f, error));
    PASS(api_async_wait(runtime, f, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_to_here_async(cleave_runtime *runtime, cleave_reference reference,
                                   uint64_t deadline_ms, cleave_future *ret_future,
                                   cleave_error *error) {
  GIVEN(runtime, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_fetch(runtime, reference, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

cleave_status cleave_local_value(cleave_runtime *runtime, cleave_reference reference,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  cleave_place place;
  PASS(cleave_owner(runtime, reference, &place, error));
  if (strcmp(place.node, "master") != 0) {
    api_fail(error, CLV_PRECONDITION,
             "reference %llu belongs to '%s', not to this process: use cleave_to_here",
             (unsigned long long)reference.id, place.node);
    api_place_error(error, place.node, "");
    return CLEAVE_PRECONDITION;
  }
  return cleave_to_here(runtime, reference, deadline_ms, ret_tensor, error);
}

static cleave_status begin_kept(cleave_runtime *rt, cleave_kept kept, uint64_t deadline_ms,
                                api_future **ret, cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_KEPT, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_kept_fetch_begin(rt, kept, f, error), ret);
}

cleave_status cleave_kept_fetch(cleave_runtime *runtime, cleave_kept kept, uint64_t deadline_ms,
                                cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_future *f;
    LOCKED(runtime);
    PASS(begin_kept(runtime, kept, deadline_ms, &f, error));
    PASS(api_async_wait(runtime, f, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_kept_fetch_async(cleave_runtime *runtime, cleave_kept kept,
                                      uint64_t deadline_ms, cleave_future *ret_future,
                                      cleave_error *error) {
  GIVEN(runtime, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_kept(runtime, kept, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* It ends with its value or its context: deadlines are those of who waits for it. */
static cleave_status begin_call(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                                const cleave_reference *inputs, size_t n_inputs,
                                cleave_reference *ret_reference, api_future **ret,
                                cleave_error *error) {
  api_future *f;
  PASS(api_future_new(rt, API_FUTURE_VALUE, UINT64_MAX, 0, &f, error));
  PASS(api_async_begun(
      rt, f, api_call_begin(rt, handle, m, inputs, n_inputs, ret_reference, f, error), ret));
  if (ret_reference) ret_reference->id = f->value->id;
  return CLEAVE_OK;
}

cleave_status cleave_rpc_async(cleave_runtime *runtime, cleave_context context,
                               cleave_module *module, const cleave_reference *inputs,
                               size_t n_inputs, cleave_reference *ret_reference,
                               cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, inputs, ret_future);
  api_future *f;
  LOCKED(runtime);
  PASS(begin_call(runtime, context, module, inputs, n_inputs, ret_reference, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

cleave_status cleave_rpc_sync(cleave_runtime *runtime, cleave_context context,
                              cleave_module *module, const cleave_reference *inputs,
                              size_t n_inputs, uint64_t deadline_ms,
                              cleave_reference *ret_reference, cleave_tensor *ret_tensor,
                              cleave_error *error) {
  GIVEN(runtime, module, inputs, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_future *f;
    LOCKED(runtime);
    PASS(begin_call(runtime, context, module, inputs, n_inputs, ret_reference, &f, error));
    f->until_ns = f->due_ns = api_until(runtime, deadline_ms);
    PASS(api_async_wait(runtime, f, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

/* ---- backward and steps ---------------------------------------------------------------------- */

static cleave_status begin_backward(cleave_runtime *rt, cleave_context handle,
                                    const api_starts *from, uint64_t deadline_ms, api_future **ret,
                                    cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_BACKWARD, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_backward_begin(rt, handle, from, f, error), ret);
}

/* NULL for ret_future: it is waited for. */
static cleave_status run_backward(cleave_runtime *rt, cleave_context context,
                                  const api_starts *from, uint64_t deadline_ms,
                                  cleave_future *ret_future, cleave_error *error) {
  api_future *f;
  LOCKED(rt);
  PASS(begin_backward(rt, context, from, deadline_ms, &f, error));
  return ret_future ? api_future_start(rt, f, ret_future, error)
                    : api_async_wait(rt, f, NULL, error);
}

cleave_status cleave_backward(cleave_runtime *runtime, cleave_context context,
                              const cleave_reference *roots, size_t n_roots, bool retain,
                              uint64_t deadline_ms, cleave_error *error) {
  GIVEN(runtime, roots);
  const cleave_backward_options o = {
      .size = sizeof o, .retain = retain, .deadline_ms = deadline_ms};
  return cleave_backward_with(runtime, context, roots, n_roots, &o, error);
}

cleave_status cleave_backward_with(cleave_runtime *runtime, cleave_context context,
                                   const cleave_reference *roots, size_t n_roots,
                                   const cleave_backward_options *options, cleave_error *error) {
  GIVEN(runtime, roots);
  OPTIONS_IN(cleave_backward_options, o, options);
  CLV_AUTO(api_starts_done) api_starts from = {0};
  PASS(api_starts_of(runtime, roots, n_roots, &o, &from, error));
  return run_backward(runtime, context, &from, o.deadline_ms, NULL, error);
}

cleave_status cleave_backward_async(cleave_runtime *runtime, cleave_context context,
                                    const cleave_reference *roots, size_t n_roots,
                                    const cleave_backward_options *options,
                                    cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, roots, ret_future);
  OPTIONS_IN(cleave_backward_options, o, options);
  CLV_AUTO(api_starts_done) api_starts from = {0};
  PASS(api_async_ready(runtime, error));
  PASS(api_starts_of(runtime, roots, n_roots, &o, &from, error));
  return run_backward(runtime, context, &from, o.deadline_ms, ret_future, error);
}

static cleave_status begin_step(cleave_runtime *rt, cleave_optimizer *o, cleave_context handle,
                                uint64_t deadline_ms, api_future **ret, cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_STEP, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_step_begin(rt, o, handle, f, error), ret);
}

cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                          cleave_context context, uint64_t deadline_ms, cleave_stepped *ret,
                          cleave_error *error) {
  GIVEN(runtime, optimizer);
  api_future *f;
  LOCKED(runtime);
  PASS(begin_step(runtime, optimizer, context, deadline_ms, &f, error));
  f->waiting++;
  cleave_status status = api_async_wait(runtime, f, NULL, error);
  if (status == CLEAVE_OK && ret) *ret = f->stepped;
  api_future_leave(runtime, f);
  return status;
}

cleave_status cleave_step_async(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                cleave_context context, uint64_t deadline_ms,
                                cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, optimizer, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_step(runtime, optimizer, context, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

/* ---- state ----------------------------------------------------------------------------------- */

static cleave_status begin_state(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                                 const char *name, uint64_t deadline_ms, api_future **ret,
                                 cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_STATE, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_state_begin(rt, m, kind, name, f, error), ret);
}

cleave_status cleave_weight_read(cleave_runtime *runtime, cleave_module *module, const char *name,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  GIVEN(runtime, module, name, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_future *f;
    LOCKED(runtime);
    PASS(begin_state(runtime, module, CLEAVE_STATE_WEIGHTS, name, deadline_ms, &f, error));
    PASS(api_async_wait(runtime, f, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_weight_read_async(cleave_runtime *runtime, cleave_module *module,
                                       const char *name, uint64_t deadline_ms,
                                       cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, name, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_state(runtime, module, CLEAVE_STATE_WEIGHTS, name, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

cleave_status cleave_state_read(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, uint64_t deadline_ms,
                                cleave_state *ret_state, cleave_error *error) {
  GIVEN(runtime, module, ret_state);
  api_future *f;
  cleave_status status;
  {
    LOCKED(runtime);
    PASS(begin_state(runtime, module, kind, NULL, deadline_ms, &f, error));
    f->waiting++;
    status = api_async_wait(runtime, f, NULL, error);
  }
  if (status == CLEAVE_OK) status = api_state_out(f, ret_state, error);
  LOCKED(runtime);
  api_future_leave(runtime, f);
  return status;
}

cleave_status cleave_state_read_async(cleave_runtime *runtime, cleave_module *module,
                                      cleave_state_kind kind, uint64_t deadline_ms,
                                      cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_state(runtime, module, kind, NULL, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}

/* NULL for ret_future: it is waited for. Takes the items. */
static cleave_status write_state(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                                 api_state_item *items, size_t n, uint64_t deadline_ms,
                                 cleave_future *ret_future, cleave_error *error) {
  api_future *f;
  cleave_status status;
  LOCKED(rt);
  status = api_async_new(rt, API_FUTURE_PUT, deadline_ms, &f, error);
  if (status != CLEAVE_OK) {
    api_state_items_done(items, (uint32_t)n);
    return status;
  }
  status = api_state_write_begin(rt, m, kind, items, (uint32_t)n, f, error);
  PASS(api_async_begun(rt, f, status, &f));
  return ret_future ? api_future_start(rt, f, ret_future, error)
                    : api_async_wait(rt, f, NULL, error);
}

/* *ret_items stays NULL when n is 0. */
static cleave_status copy_items(const cleave_module *m, cleave_state_kind kind,
                                const cleave_named *items, size_t n, api_state_item **ret_items,
                                cleave_error *error) {
  if (n > cleave_state_count(m, kind))
    return api_fail(error, CLV_INVALID, "%zu items for module '%s', which has %zu", n, m->name,
                    cleave_state_count(m, kind));
  cleave_status status = n ? api_state_items(m, kind, items, n, ret_items, error) : CLEAVE_OK;
  if (status == CLEAVE_OK) return status;
  api_state_items_done(*ret_items, (uint32_t)n);
  return status;
}

cleave_status cleave_state_write(cleave_runtime *runtime, cleave_module *module,
                                 cleave_state_kind kind, const cleave_named *items, size_t n,
                                 uint64_t deadline_ms, cleave_error *error) {
  GIVEN(runtime, module);
  if (n) GIVEN(items);
  api_state_item *list = NULL;
  PASS(copy_items(module, kind, items, n, &list, error));
  return n ? write_state(runtime, module, kind, list, n, deadline_ms, NULL, error) : CLEAVE_OK;
}

cleave_status cleave_state_write_async(cleave_runtime *runtime, cleave_module *module,
                                       cleave_state_kind kind, const cleave_named *items, size_t n,
                                       uint64_t deadline_ms, cleave_future *ret_future,
                                       cleave_error *error) {
  GIVEN(runtime, module, items, ret_future);
  api_state_item *list = NULL;
  if (!n) return api_fail(error, CLV_INVALID, "no items to write");
  PASS(api_async_ready(runtime, error));
  PASS(copy_items(module, kind, items, n, &list, error));
  return write_state(runtime, module, kind, list, n, deadline_ms, ret_future, error);
}

static cleave_status write_weight(cleave_runtime *rt, cleave_module *m, const char *name,
                                  const cleave_tensor *tensor, uint64_t deadline_ms,
                                  cleave_future *ret_future, cleave_error *error) {
  const cleave_named one = {name, *tensor};
  api_state_item *list = NULL;
  PASS(api_check_weight(m, name, tensor, error));
  PASS(copy_items(m, CLEAVE_STATE_WEIGHTS, &one, 1, &list, error));
  return write_state(rt, m, CLEAVE_STATE_WEIGHTS, list, 1, deadline_ms, ret_future, error);
}

cleave_status cleave_weight_write(cleave_runtime *runtime, cleave_module *module, const char *name,
                                  const cleave_tensor *tensor, uint64_t deadline_ms,
                                  cleave_error *error) {
  GIVEN(runtime, module, name, tensor);
  return write_weight(runtime, module, name, tensor, deadline_ms, NULL, error);
}

cleave_status cleave_weight_write_async(cleave_runtime *runtime, cleave_module *module,
                                        const char *name, const cleave_tensor *tensor,
                                        uint64_t deadline_ms, cleave_future *ret_future,
                                        cleave_error *error) {
  GIVEN(runtime, module, name, tensor, ret_future);
  PASS(api_async_ready(runtime, error));
  return write_weight(runtime, module, name, tensor, deadline_ms, ret_future, error);
}

/* ---- files of state -------------------------------------------------------------------------- */

static cleave_status begin_file(cleave_runtime *rt, cleave_module *m, clv_frame_kind verb,
                                cleave_state_kind kind, const char *name, uint64_t deadline_ms,
                                api_future **ret, cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_FILE, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_file_begin(rt, m, verb, kind, name, f, error), ret);
}

static cleave_status with_file(cleave_runtime *rt, cleave_module *m, clv_frame_kind verb,
                               cleave_state_kind kind, const char *name, uint64_t deadline_ms,
                               cleave_state_file *ret_file, cleave_error *error) {
  api_future *f;
  PASS(api_file_check_result(ret_file, error));
  LOCKED(rt);
  PASS(begin_file(rt, m, verb, kind, name, deadline_ms, &f, error));
  f->waiting++;
  cleave_status status = api_async_wait(rt, f, NULL, error);
  if (status == CLEAVE_OK) api_file_out(f, ret_file);
  api_future_leave(rt, f);
  return status;
}

static cleave_status with_file_async(cleave_runtime *rt, cleave_module *m, clv_frame_kind verb,
                                     cleave_state_kind kind, const char *name, uint64_t deadline_ms,
                                     cleave_future *ret_future, cleave_error *error) {
  api_future *f;
  PASS(api_async_ready(rt, error));
  LOCKED(rt);
  PASS(begin_file(rt, m, verb, kind, name, deadline_ms, &f, error));
  return api_future_start(rt, f, ret_future, error);
}

cleave_status cleave_state_save_there(cleave_runtime *runtime, cleave_module *module,
                                      cleave_state_kind kind, const char *name,
                                      uint64_t deadline_ms, cleave_state_file *ret_file,
                                      cleave_error *error) {
  GIVEN(runtime, module, name);
  return with_file(runtime, module, CLV_STATE_SAVE, kind, name, deadline_ms, ret_file, error);
}

cleave_status cleave_state_save_there_async(cleave_runtime *runtime, cleave_module *module,
                                            cleave_state_kind kind, const char *name,
                                            uint64_t deadline_ms, cleave_future *ret_future,
                                            cleave_error *error) {
  GIVEN(runtime, module, name, ret_future);
  return with_file_async(runtime, module, CLV_STATE_SAVE, kind, name, deadline_ms, ret_future,
                         error);
}

cleave_status cleave_state_load_there(cleave_runtime *runtime, cleave_module *module,
                                      cleave_state_kind kind, const char *name,
                                      uint64_t deadline_ms, cleave_state_file *ret_file,
                                      cleave_error *error) {
  GIVEN(runtime, module, name);
  return with_file(runtime, module, CLV_STATE_LOAD, kind, name, deadline_ms, ret_file, error);
}

cleave_status cleave_state_load_there_async(cleave_runtime *runtime, cleave_module *module,
                                            cleave_state_kind kind, const char *name,
                                            uint64_t deadline_ms, cleave_future *ret_future,
                                            cleave_error *error) {
  GIVEN(runtime, module, name, ret_future);
  return with_file_async(runtime, module, CLV_STATE_LOAD, kind, name, deadline_ms, ret_future,
                         error);
}

cleave_status cleave_state_remove_there(cleave_runtime *runtime, cleave_module *module,
                                        const char *name, uint64_t deadline_ms,
                                        cleave_error *error) {
  GIVEN(runtime, module, name);
  return with_file(runtime, module, CLV_STATE_REMOVE, CLEAVE_STATE_WEIGHTS, name, deadline_ms, NULL,
                   error);
}

cleave_status cleave_state_remove_there_async(cleave_runtime *runtime, cleave_module *module,
                                              const char *name, uint64_t deadline_ms,
                                              cleave_future *ret_future, cleave_error *error) {
  GIVEN(runtime, module, name, ret_future);
  return with_file_async(runtime, module, CLV_STATE_REMOVE, CLEAVE_STATE_WEIGHTS, name, deadline_ms,
                         ret_future, error);
}

/* ---- the end of contexts --------------------------------------------------------------------- */

static cleave_status begin_close(cleave_runtime *rt, cleave_context handle, uint64_t deadline_ms,
                                 api_future **ret, cleave_error *error) {
  api_future *f;
  PASS(api_async_new(rt, API_FUTURE_CLOSE, deadline_ms, &f, error));
  return api_async_begun(rt, f, api_close_begin(rt, handle, f, error), ret);
}

cleave_status cleave_context_close(cleave_runtime *runtime, cleave_context context,
                                   uint64_t deadline_ms, cleave_error *error) {
  GIVEN(runtime);
  api_future *f;
  LOCKED(runtime);
  PASS(begin_close(runtime, context, deadline_ms, &f, error));
  return api_async_wait(runtime, f, NULL, error);
}

cleave_status cleave_context_close_async(cleave_runtime *runtime, cleave_context context,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  GIVEN(runtime, ret_future);
  api_future *f;
  PASS(api_async_ready(runtime, error));
  LOCKED(runtime);
  PASS(begin_close(runtime, context, deadline_ms, &f, error));
  return api_future_start(runtime, f, ret_future, error);
}
