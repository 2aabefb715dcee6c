/* SPDX-License-Identifier: Apache-2.0
 *
 * Errands: what waits for more than the answers of nodes (a call to a worker, a connection), done
 * by a thread of its own while a future stands for it.
 */
#include "master/api/future_int.h"
#include "master/api/life_int.h"
#include "master/api/rejoin_int.h"

enum { IS_NEW, RUNS };

/* ---- what there is to do --------------------------------------------------------------------- */

static cleave_status place(api_future *f, cleave_error *error) {
  cleave_module *m = f->errand.module;
  LOCKED(f->errand.runtime);
  if (m->released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  return api_module_place(m, f->errand.input_grads, f->deadline_ms, error);
}

static cleave_status reload(api_future *f, cleave_error *error) {
  return api_reloading_run(f->errand.runtime, f->errand.reloading, f->deadline_ms, error);
}

static cleave_status rejoin(api_future *f, cleave_error *error) {
  return cleave_worker_rejoin(f->errand.runtime, f->of, f->deadline_ms, error);
}

static cleave_status (*const kinds[API_ERRAND_KINDS])(api_future *f, cleave_error *error) = {
    [API_ERRAND_PLACE] = place, [API_ERRAND_RELOAD] = reload, [API_ERRAND_REJOIN] = rejoin};

void api_errand_done(const api_errand *e) {
  if (!e) return;
  api_reloading_free(e->reloading);
  if (!e->module) return;
  api_module_look(e->module); /* it may have been released meanwhile */
  api_module_unkeep(e->module);
}

/* ---- doing it -------------------------------------------------------------------------------- */

static void *run(void *user) {
  api_future *f = user;
  cleave_runtime *rt = f->errand.runtime;
  cleave_error why = {.status = CLEAVE_OK};
  (void)!kinds[f->errand.kind](f, &why);
  LOCKED(rt);
  f->errand.result = why;
  f->errand.ended = true;
  api_wake(rt);
  return NULL;
}

static void finish(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  api_errand_done(&f->errand);
  api_future_finish(rt, f, why);
}

void api_errand_advance(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  if (f->stage == RUNS && !f->errand.ended) return;
  if (f->stage == RUNS) {
    pthread_join(f->errand.thread, NULL);
    finish(rt, f, &f->errand.result);
    return;
  }
  f->stage = RUNS;
  f->bound = true;
  if (pthread_create(&f->errand.thread, NULL, run, f) == 0) return;
  api_fail(&why, CLV_EXHAUSTED, "no thread for the futures of the program");
  finish(rt, f, &why);
}

static api_future *first_of(const cleave_runtime *rt) {
  api_future *f = rt->open->first;
  while (f && f->kind != API_FUTURE_ERRAND) f = f->next;
  return f;
}

void api_errands_wait(cleave_runtime *rt) {
  for (api_future *f; (f = first_of(rt)) != NULL;) {
    if (f->errand.ended)
      api_errand_advance(rt, f);
    else
      (void)api_sleep(rt, UINT64_MAX);
  }
}
