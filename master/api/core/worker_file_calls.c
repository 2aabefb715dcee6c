/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that save, load and remove files of state at workers. Programs call them, and the
 * trainer calls them for its checkpoints.
 */
#include "master/api/core/future_int.h"

cleave_status api_worker_file_check_result(const cleave_state_file *ret, cleave_error *error) {
  if (!ret || ret->size == sizeof *ret) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "a cleave_state_file of %zu bytes; its size is %zu",
                  ret->size, sizeof *ret);
}

/* ---- functions for programs ------------------------------------------------------------------ */

static api_arguments make_arguments(cleave_module *module, clv_frame_kind frame_kind,
                                    cleave_state_kind kind, const char *name,
                                    uint64_t deadline_ms) {
  return (api_arguments){.deadline_ms = deadline_ms,
                         .module = module,
                         .name = name,
                         .kind = kind,
                         .frame_kind = frame_kind};
}

static cleave_status run_for_file_result(cleave_runtime *rt, api_arguments *a,
                                         cleave_state_file *ret_file, cleave_error *error) {
  TRY_API(api_worker_file_check_result(ret_file, error));
  return api_run_blocking(rt, &api_operations[API_OPERATION_WORKER_FILE], a, ret_file, error);
}

cleave_status cleave_state_save_at_worker(cleave_runtime *runtime, cleave_module *module,
                                          cleave_state_kind kind, const char *name,
                                          uint64_t deadline_ms, cleave_state_file *ret_file,
                                          cleave_error *error) {
  NOT_NULL(runtime, module, name);
  api_arguments a = make_arguments(module, CLV_STATE_SAVE, kind, name, deadline_ms);
  return run_for_file_result(runtime, &a, ret_file, error);
}

cleave_status cleave_state_save_at_worker_async(cleave_runtime *runtime, cleave_module *module,
                                                cleave_state_kind kind, const char *name,
                                                uint64_t deadline_ms, cleave_future *ret_future,
                                                cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_future);
  api_arguments a = make_arguments(module, CLV_STATE_SAVE, kind, name, deadline_ms);
  return api_run_async(runtime, &api_operations[API_OPERATION_WORKER_FILE], &a, ret_future, error);
}

cleave_status cleave_state_load_at_worker(cleave_runtime *runtime, cleave_module *module,
                                          cleave_state_kind kind, const char *name,
                                          uint64_t deadline_ms, cleave_state_file *ret_file,
                                          cleave_error *error) {
  NOT_NULL(runtime, module, name);
  api_arguments a = make_arguments(module, CLV_STATE_LOAD, kind, name, deadline_ms);
  return run_for_file_result(runtime, &a, ret_file, error);
}

cleave_status cleave_state_load_by_digest(cleave_runtime *runtime, cleave_module *module,
                                          cleave_state_kind kind, const char *name,
                                          const clv_sha256 *digest, uint64_t deadline_ms,
                                          cleave_state_file *ret_file, cleave_error *error) {
  NOT_NULL(runtime, module, name);
  api_arguments a = make_arguments(module, CLV_STATE_LOAD, kind, name, deadline_ms);
  a.digest = digest;
  return run_for_file_result(runtime, &a, ret_file, error);
}

cleave_status cleave_state_load_at_worker_async(cleave_runtime *runtime, cleave_module *module,
                                                cleave_state_kind kind, const char *name,
                                                uint64_t deadline_ms, cleave_future *ret_future,
                                                cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_future);
  api_arguments a = make_arguments(module, CLV_STATE_LOAD, kind, name, deadline_ms);
  return api_run_async(runtime, &api_operations[API_OPERATION_WORKER_FILE], &a, ret_future, error);
}

cleave_status cleave_state_remove_at_worker(cleave_runtime *runtime, cleave_module *module,
                                            const char *name, uint64_t deadline_ms,
                                            cleave_error *error) {
  NOT_NULL(runtime, module, name);
  api_arguments a =
      make_arguments(module, CLV_STATE_REMOVE, CLEAVE_STATE_WEIGHTS, name, deadline_ms);
  return api_run_blocking(runtime, &api_operations[API_OPERATION_WORKER_FILE], &a, NULL, error);
}

cleave_status cleave_state_remove_at_worker_async(cleave_runtime *runtime, cleave_module *module,
                                                  const char *name, uint64_t deadline_ms,
                                                  cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_future);
  api_arguments a =
      make_arguments(module, CLV_STATE_REMOVE, CLEAVE_STATE_WEIGHTS, name, deadline_ms);
  return api_run_async(runtime, &api_operations[API_OPERATION_WORKER_FILE], &a, ret_future, error);
}

/* ---- old names, from before version 0.9 ------------------------------------------------------ */

API_DEPRECATED_ALIAS(cleave_state_save_there, cleave_state_save_at_worker);
API_DEPRECATED_ALIAS(cleave_state_save_there_async, cleave_state_save_at_worker_async);
API_DEPRECATED_ALIAS(cleave_state_load_there, cleave_state_load_at_worker);
API_DEPRECATED_ALIAS(cleave_state_load_there_async, cleave_state_load_at_worker_async);
API_DEPRECATED_ALIAS(cleave_state_remove_there, cleave_state_remove_at_worker);
API_DEPRECATED_ALIAS(cleave_state_remove_there_async, cleave_state_remove_at_worker_async);
