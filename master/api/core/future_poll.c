/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions on futures that commands and programs use: polling, waiting, results and releasing.
 */
#include "master/api/core/future_int.h"

cleave_status cleave_future_poll(cleave_runtime *runtime, cleave_future future, bool *ret_ready,
                                 cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime, ret_ready);
  LOCKED(runtime);
  TRY_API(api_future_find(runtime, future, &f, error));
  if (runtime->is_single_threaded) api_poll(runtime);
  (void)api_futures_advance(runtime);
  if (runtime->is_single_threaded && runtime->futures_state->run_callbacks)
    (void)runtime->futures_state->run_callbacks(runtime);
  *ret_ready = f->is_done;
  api_future_release_use(runtime, f);
  return CLEAVE_OK;
}

cleave_status cleave_future_wait(cleave_runtime *runtime, cleave_future future,
                                 uint64_t deadline_ms, cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime);
  LOCKED(runtime);
  TRY_API(api_future_find(runtime, future, &f, error));
  cleave_status status = api_future_await(runtime, f, api_deadline_ns(runtime, deadline_ms), error);
  api_future_release_use(runtime, f);
  return status;
}

cleave_status cleave_future_release(cleave_runtime *runtime, cleave_future future,
                                    cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime);
  LOCKED(runtime);
  TRY_API(api_future_find(runtime, future, &f, error));
  f->is_released = true;
  api_future_release_use(runtime, f);
  return CLEAVE_OK;
}

/* ---- results of futures ---------------------------------------------------------------------- */

/* Finds a future that has ended with success and whose operation has this copy_result. */
static cleave_status find_succeeded_future(cleave_runtime *rt, cleave_future future,
                                           const char *what, api_result_fn *copy_result,
                                           api_future **ret, cleave_error *error) {
  api_future *f;
  TRY_API(api_future_find(rt, future, &f, error));
  cleave_status status = CLEAVE_OK;
  if (f->op->copy_result != copy_result)
    status = api_fail(error, CLV_INVALID, "future %llu, %s of %s, brings no %s",
                      (unsigned long long)future.id, f->op->name, f->subject_name, what);
  else if (!f->is_done)
    status = api_fail(error, CLV_PRECONDITION, "future %llu, %s of %s, is not done: wait for it",
                      (unsigned long long)future.id, f->op->name, f->subject_name);
  else
    status = api_future_result(f, error);
  if (status == CLEAVE_OK)
    *ret = f;
  else
    api_future_release_use(rt, f);
  return status;
}

/* Copies the result without the runtime's lock, because the result of a future that is done does
 * not change. */
cleave_status api_future_take_result(cleave_runtime *rt, cleave_future future, const char *what,
                                     api_result_fn *copy_result, void *ret, cleave_error *error) {
  api_future *f;
  {
    LOCKED(rt);
    TRY_API(find_succeeded_future(rt, future, what, copy_result, &f, error));
  }
  cleave_status status = copy_result(f, ret, error);
  LOCKED(rt);
  api_future_release_use(rt, f);
  return status;
}

cleave_status cleave_future_state_file(cleave_runtime *runtime, cleave_future future,
                                       cleave_state_file *ret_file, cleave_error *error) {
  NOT_NULL(runtime, ret_file);
  TRY_API(api_worker_file_check_result(ret_file, error));
  return api_future_take_result(runtime, future, "file of state", api_copy_worker_file_result,
                                ret_file, error);
}
