/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of cleave.h that wait for nodes, and their asynchronous forms. Both forms check
 * their arguments and pass the same operation to await.c.
 */
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/incarnations_int.h"

static const api_operation *find_operation(api_operation_kind kind) {
  return &api_operations[kind];
}

/* ---- functions on values and calls ----------------------------------------------------------- */

cleave_status cleave_to_here(cleave_runtime *runtime, cleave_reference reference,
                             uint64_t deadline_ms, cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  api_arguments a = {.deadline_ms = deadline_ms, .reference = reference};
  return api_run_blocking(runtime, find_operation(API_OPERATION_FETCH), &a, ret_tensor, error);
}

cleave_status cleave_to_here_async(cleave_runtime *runtime, cleave_reference reference,
                                   uint64_t deadline_ms, cleave_future *ret_future,
                                   cleave_error *error) {
  NOT_NULL(runtime, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .reference = reference};
  return api_run_async(runtime, find_operation(API_OPERATION_FETCH), &a, ret_future, error);
}

cleave_status cleave_local_value(cleave_runtime *runtime, cleave_reference reference,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  cleave_place place;
  TRY_API(cleave_owner(runtime, reference, &place, error));
  if (strcmp(place.node, "master") != 0) {
    api_fail(error, CLV_PRECONDITION,
             "reference %llu belongs to '%s', not to this process: use cleave_to_here",
             (unsigned long long)reference.id, place.node);
    api_set_error_node(error, place.node, "");
    return CLEAVE_PRECONDITION;
  }
  return cleave_to_here(runtime, reference, deadline_ms, ret_tensor, error);
}

cleave_status cleave_rpc_async(cleave_runtime *runtime, cleave_context context,
                               cleave_module *module, const cleave_reference *inputs,
                               size_t n_inputs, cleave_reference *ret_reference,
                               cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, inputs, ret_future);
  api_arguments a = {.context = context,
                     .module = module,
                     .inputs = inputs,
                     .n_inputs = n_inputs,
                     .ret_reference = ret_reference};
  return api_run_async(runtime, find_operation(API_OPERATION_CALL), &a, ret_future, error);
}

cleave_status cleave_rpc_sync(cleave_runtime *runtime, cleave_context context,
                              cleave_module *module, const cleave_reference *inputs,
                              size_t n_inputs, uint64_t deadline_ms,
                              cleave_reference *ret_reference, cleave_tensor *ret_tensor,
                              cleave_error *error) {
  NOT_NULL(runtime, module, inputs, ret_tensor);
  api_arguments a = {.deadline_ms = deadline_ms,
                     .context = context,
                     .module = module,
                     .inputs = inputs,
                     .n_inputs = n_inputs,
                     .ret_reference = ret_reference};
  return api_run_blocking(runtime, find_operation(API_OPERATION_CALL), &a, ret_tensor, error);
}

/* ---- functions for backwards and steps ------------------------------------------------------- */

cleave_status cleave_backward(cleave_runtime *runtime, cleave_context context,
                              const cleave_reference *roots, size_t n_roots, bool retain,
                              uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, roots);
  const cleave_backward_options o = {
      .size = sizeof o, .retain = retain, .deadline_ms = deadline_ms};
  return cleave_backward_with(runtime, context, roots, n_roots, &o, error);
}

cleave_status cleave_backward_with(cleave_runtime *runtime, cleave_context context,
                                   const cleave_reference *roots, size_t n_roots,
                                   const cleave_backward_options *options, cleave_error *error) {
  NOT_NULL(runtime, roots);
  COPY_OPTIONS_IN(cleave_backward_options, o, options);
  CLV_AUTO(api_backward_roots_free) api_backward_roots from = {0};
  TRY_API(api_copy_backward_roots(runtime, roots, n_roots, &o, &from, error));
  api_arguments a = {.deadline_ms = o.deadline_ms, .context = context, .backward_roots = &from};
  return api_run_blocking(runtime, find_operation(API_OPERATION_BACKWARD), &a, NULL, error);
}

cleave_status cleave_backward_async(cleave_runtime *runtime, cleave_context context,
                                    const cleave_reference *roots, size_t n_roots,
                                    const cleave_backward_options *options,
                                    cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, roots, ret_future);
  COPY_OPTIONS_IN(cleave_backward_options, o, options);
  CLV_AUTO(api_backward_roots_free) api_backward_roots from = {0};
  TRY_API(api_copy_backward_roots(runtime, roots, n_roots, &o, &from, error));
  api_arguments a = {.deadline_ms = o.deadline_ms, .context = context, .backward_roots = &from};
  return api_run_async(runtime, find_operation(API_OPERATION_BACKWARD), &a, ret_future, error);
}

cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                          cleave_context context, uint64_t deadline_ms, cleave_step_result *ret,
                          cleave_error *error) {
  NOT_NULL(runtime, optimizer);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context, .optimizer = optimizer};
  return api_run_blocking(runtime, find_operation(API_OPERATION_STEP), &a, ret, error);
}

cleave_status cleave_step_async(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                cleave_context context, uint64_t deadline_ms,
                                cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, optimizer, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context, .optimizer = optimizer};
  return api_run_async(runtime, find_operation(API_OPERATION_STEP), &a, ret_future, error);
}

/* ---- functions on the state of modules ------------------------------------------------------- */

cleave_status cleave_weight_read(cleave_runtime *runtime, cleave_module *module, const char *name,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_tensor);
  api_arguments a = {
      .deadline_ms = deadline_ms, .module = module, .name = name, .kind = CLEAVE_STATE_WEIGHTS};
  return api_run_blocking(runtime, find_operation(API_OPERATION_WEIGHT_READ), &a, ret_tensor,
                          error);
}

cleave_status cleave_weight_read_async(cleave_runtime *runtime, cleave_module *module,
                                       const char *name, uint64_t deadline_ms,
                                       cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_future);
  api_arguments a = {
      .deadline_ms = deadline_ms, .module = module, .name = name, .kind = CLEAVE_STATE_WEIGHTS};
  return api_run_async(runtime, find_operation(API_OPERATION_WEIGHT_READ), &a, ret_future, error);
}

cleave_status cleave_state_read(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, uint64_t deadline_ms,
                                cleave_state *ret_state, cleave_error *error) {
  NOT_NULL(runtime, module, ret_state);
  api_arguments a = {.deadline_ms = deadline_ms, .module = module, .kind = kind};
  return api_run_blocking(runtime, find_operation(API_OPERATION_STATE_READ), &a, ret_state, error);
}

cleave_status cleave_state_read_async(cleave_runtime *runtime, cleave_module *module,
                                      cleave_state_kind kind, uint64_t deadline_ms,
                                      cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .module = module, .kind = kind};
  return api_run_async(runtime, find_operation(API_OPERATION_STATE_READ), &a, ret_future, error);
}

/* Frees the items of a->items whose ownership the operation has not taken. */
static void free_untaken_items(api_arguments *a) {
  if (a) api_state_items_free(a->items, a->n);
}

static cleave_status copy_named_items(const cleave_named_tensor *items, size_t n, api_arguments *a,
                                      cleave_error *error) {
  const cleave_module *m = a->module;
  if (n > cleave_state_count(m, a->kind))
    return api_fail(error, CLV_INVALID, "%zu items for module '%s', which has %zu", n, m->name,
                    cleave_state_count(m, a->kind));
  a->n = (uint32_t)n;
  return api_copy_state_items(m, a->kind, items, n, &a->items, error);
}

cleave_status cleave_state_write(cleave_runtime *runtime, cleave_module *module,
                                 cleave_state_kind kind, const cleave_named_tensor *items, size_t n,
                                 uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, module);
  if (!n) return CLEAVE_OK;
  NOT_NULL(items);
  CLV_AUTO(free_untaken_items)
  api_arguments a = {.deadline_ms = deadline_ms, .module = module, .kind = kind};
  TRY_API(copy_named_items(items, n, &a, error));
  return api_run_blocking(runtime, find_operation(API_OPERATION_STATE_WRITE), &a, NULL, error);
}

cleave_status cleave_state_write_async(cleave_runtime *runtime, cleave_module *module,
                                       cleave_state_kind kind, const cleave_named_tensor *items,
                                       size_t n, uint64_t deadline_ms, cleave_future *ret_future,
                                       cleave_error *error) {
  NOT_NULL(runtime, module, items, ret_future);
  if (!n) return api_fail(error, CLV_INVALID, "no items to write");
  CLV_AUTO(free_untaken_items)
  api_arguments a = {.deadline_ms = deadline_ms, .module = module, .kind = kind};
  TRY_API(copy_named_items(items, n, &a, error));
  return api_run_async(runtime, find_operation(API_OPERATION_STATE_WRITE), &a, ret_future, error);
}

cleave_status cleave_weight_write(cleave_runtime *runtime, cleave_module *module, const char *name,
                                  const cleave_tensor *tensor, uint64_t deadline_ms,
                                  cleave_error *error) {
  NOT_NULL(runtime, module, name, tensor);
  const cleave_named_tensor item = {name, *tensor};
  TRY_API(api_check_weight(module, name, tensor, error));
  return cleave_state_write(runtime, module, CLEAVE_STATE_WEIGHTS, &item, 1, deadline_ms, error);
}

cleave_status cleave_weight_write_async(cleave_runtime *runtime, cleave_module *module,
                                        const char *name, const cleave_tensor *tensor,
                                        uint64_t deadline_ms, cleave_future *ret_future,
                                        cleave_error *error) {
  NOT_NULL(runtime, module, name, tensor, ret_future);
  const cleave_named_tensor item = {name, *tensor};
  TRY_API(api_check_weight(module, name, tensor, error));
  return cleave_state_write_async(runtime, module, CLEAVE_STATE_WEIGHTS, &item, 1, deadline_ms,
                                  ret_future, error);
}

/* ---- the end of contexts --------------------------------------------------------------------- */

cleave_status cleave_context_close(cleave_runtime *runtime, cleave_context context,
                                   uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context};
  return api_run_blocking(runtime, find_operation(API_OPERATION_CLOSE), &a, NULL, error);
}

cleave_status cleave_context_close_async(cleave_runtime *runtime, cleave_context context,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  NOT_NULL(runtime, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context};
  return api_run_async(runtime, find_operation(API_OPERATION_CLOSE), &a, ret_future, error);
}

/* ---- futures with a tensor ------------------------------------------------------------------- */

/* Waits for a future with a tensor. Releases the future if it has ended with success. */
cleave_status cleave_wait(cleave_runtime *runtime, cleave_future future, uint64_t deadline_ms,
                          cleave_tensor *ret_tensor, cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime, ret_tensor);
  {
    LOCKED(runtime);
    TRY_API(api_future_find(runtime, future, &f, error));
    cleave_status status =
        f->op->copy_result == api_copy_tensor_result
            ? api_future_await(runtime, f, api_deadline_ns(runtime, deadline_ms), error)
            : api_fail(error, CLV_INVALID, "future %llu, %s of %s, brings no tensor",
                       (unsigned long long)future.id, f->op->name, f->subject_name);
    f->is_released |= status == CLEAVE_OK;
    if (status != CLEAVE_OK) {
      api_future_release_use(runtime, f);
      return status;
    }
  }
  cleave_status status = api_copy_tensor_result(f, ret_tensor, error);
  LOCKED(runtime);
  api_future_release_use(runtime, f);
  return status;
}
