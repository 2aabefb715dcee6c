/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous forms of functions that block in a gRPC call or while they connect. The operations
 * of await.c cannot advance such a function step by step, so each runs on a separate thread, and
 * its future is done when the thread has ended.
 */
#include <stdio.h>
#include <stdlib.h>

#include "master/api/extra/extra_int.h"

/* States of a job (api_future.operation_state): its thread is not started yet; its thread runs. */
enum { THREAD_NOT_STARTED, THREAD_RUNS };

/* A job: a function that runs on a separate thread, and its arguments. */
typedef struct job {
  cleave_status (*run)(struct job *j, cleave_error *error);
  cleave_runtime *runtime;
  cleave_module *module;        /* module of the job; NULL: none */
  char worker[CLEAVE_NAME + 1]; /* worker to rejoin, for cleave_worker_rejoin */
  uint64_t deadline_ms;
  bool input_grads;   /* argument of cleave_module_place */
  api_reload *reload; /* state to load, for cleave_module_reload */
  pthread_t thread;
  bool has_ended;
  cleave_error result; /* how the job ended; set if has_ended */
} job;

/* ---- the functions that jobs run ------------------------------------------------------------- */

static cleave_status run_module_place(job *j, cleave_error *error) {
  cleave_module *m = j->module;
  LOCKED(j->runtime);
  if (m->is_released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  return api_module_place(m, j->input_grads, j->deadline_ms, error);
}

static cleave_status run_module_reload(job *j, cleave_error *error) {
  return api_reload_run(j->runtime, j->reload, j->deadline_ms, error);
}

static cleave_status run_worker_rejoin(job *j, cleave_error *error) {
  return cleave_worker_rejoin(j->runtime, j->worker, j->deadline_ms, error);
}

/* ---- starting, ending and freeing a job ------------------------------------------------------ */

static void job_free(job *j) {
  if (!j) return;
  api_reload_free(j->reload);
  if (j->module) {
    api_module_unload_if_unused(j->module); /* the module may have been released meanwhile */
    api_module_remove_kept_ref(j->module);
  }
  free(j);
}

static void *run_job_thread(void *user) {
  job *j = user;
  cleave_error why = {.status = CLEAVE_OK};
  (void)!j->run(j, &why);
  LOCKED(j->runtime);
  j->result = why;
  j->has_ended = true;
  api_wake(j->runtime);
  return NULL;
}

static void finish_job(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  job_free(clv_steal(&f->private_record));
  api_future_finish(rt, f, why);
}

static cleave_status begin_job(cleave_runtime *rt, api_arguments *a, api_future *f,
                               cleave_error *error) {
  job *j = clv_steal(&a->background_job);
  (void)rt;
  (void)error;
  f->private_record = j;
  f->until_ns = f->next_check_ns = UINT64_MAX;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", j->module ? j->module->name : j->worker);
  return CLEAVE_OK;
}

static void advance_job(cleave_runtime *rt, api_future *f) {
  job *j = f->private_record;
  cleave_error why;
  if (f->operation_state == THREAD_RUNS && !j->has_ended) return;
  if (f->operation_state == THREAD_RUNS) {
    pthread_join(j->thread, NULL);
    why = j->result;
    finish_job(rt, f, &why);
    return;
  }
  f->operation_state = THREAD_RUNS;
  f->cannot_cancel = true;
  if (pthread_create(&j->thread, NULL, run_job_thread, j) == 0) return;
  api_fail(&why, CLV_EXHAUSTED, "no thread for the futures of the program");
  finish_job(rt, f, &why);
}

static const api_operation job_operation = {
    .name = "the way", .begin = begin_job, .advance = advance_job, .has_own_thread = true};

/* Starts a job and returns its future. The module's record stays until the job has ended. */
static cleave_status start_job(const job *from, cleave_future *ret_future, cleave_error *error) {
  job *j;
  TRY(clv_alloc(1, sizeof *j, &j, &err));
  *j = *from;
  LOCKED(j->runtime);
  if (j->module) api_module_add_kept_ref(j->module);
  api_arguments a = {.deadline_ms = j->deadline_ms, .background_job = j};
  cleave_status status = api_run_async(from->runtime, &job_operation, &a, ret_future, error);
  job_free(a.background_job); /* frees the job if it could not begin; else the pointer is NULL */
  return status;
}

/* ---- functions for programs ------------------------------------------------------------------ */

cleave_status cleave_module_place_async(cleave_runtime *runtime, cleave_module *module,
                                        bool input_grads, uint64_t deadline_ms,
                                        cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, ret_future);
  const job j = {.run = run_module_place,
                 .runtime = runtime,
                 .module = module,
                 .deadline_ms = deadline_ms,
                 .input_grads = input_grads};
  return start_job(&j, ret_future, error);
}

cleave_status cleave_module_reload_async(cleave_runtime *runtime, cleave_module *module,
                                         const cleave_state *weights, const cleave_state *optimizer,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  NOT_NULL(runtime, module, ret_future);
  job j = {
      .run = run_module_reload, .runtime = runtime, .module = module, .deadline_ms = deadline_ms};
  TRY_API(api_reload_new(runtime, module, weights, optimizer, &j.reload, error));
  return start_job(&j, ret_future, error);
}

cleave_status cleave_worker_rejoin_async(cleave_runtime *runtime, const char *worker,
                                         uint64_t deadline_ms, cleave_future *ret_future,
                                         cleave_error *error) {
  NOT_NULL(runtime, worker, ret_future);
  job j = {.run = run_worker_rejoin, .runtime = runtime, .deadline_ms = deadline_ms};
  TRY_API(api_rejoin_check(runtime, worker, error));
  snprintf(j.worker, sizeof j.worker, "%s", worker);
  return start_job(&j, ret_future, error);
}
