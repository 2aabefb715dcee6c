/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a runtime: lists its workers, starts the master's own node, and connects. Also frees a
 * runtime after it was closed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- the master's own node ------------------------------------------------------------------- */

static void *run_node_thread(void *user) {
  clv_node_run(user);
  return NULL;
}

static cleave_status start_node(cleave_runtime *rt, cleave_error *error) {
  clv_node_options o = {.pool = rt->pool,
                        .runtime = rt->rpc,
                        .user = rt,
                        .on_program = api_on_program_packet,
                        .notice = rt->on_notice,
                        .clock = rt->platform.clock,
                        .executor = rt->platform.executor,
                        .wait = rt->platform.wait,
                        .wait_user = rt->platform.user,
                        .reference_lease_ms = (uint32_t)rt->config->limits.reference_lease_ms};
  TRY(clv_node_new(&o, &rt->node, &err));
  if (rt->is_single_threaded) return CLEAVE_OK;
  if (pthread_create(&rt->node_thread, NULL, run_node_thread, rt->node) != 0)
    return api_fail(error, CLV_EXHAUSTED, "no thread for the master's own node");
  rt->has_node_thread = true;
  return CLEAVE_OK;
}

/* ---- opening a runtime ----------------------------------------------------------------------- */

bool api_is_worker_wanted(const cleave_options *o, const char *worker) {
  bool is_worker_wanted = !o->workers;
  for (size_t i = 0; !is_worker_wanted && i < o->n_workers; i++)
    is_worker_wanted = strcmp(o->workers[i], worker) == 0;
  return is_worker_wanted;
}

static cleave_status check_worker_names(const cleave_runtime *rt, const cleave_options *o,
                                        cleave_error *error) {
  for (size_t i = 0; o->workers && i < o->n_workers; i++)
    if (api_find_node(rt, o->workers[i]) <= 0)
      return api_fail(error, CLV_NOT_FOUND, "no worker '%s' in %s", o->workers[i],
                      rt->config->file);
  return CLEAVE_OK;
}

/* Sets the session id, the epoch (number of the attempt) and the seed: those of the run for a
 * command, new ones for a program. */
static cleave_status set_session_ids(cleave_runtime *rt, cleave_error *error) {
  const clv_session_config *c = rt->config;
  rt->seed = c->train.seed.key;
  rt->session_id = (clv_wire_id){0};
  rt->cannot_resume = !c->attempt.attempt_number;
  rt->epoch = rt->cannot_resume ? 1 : c->attempt.attempt_number;
  memcpy(&rt->session_id, c->attempt.session_id, sizeof rt->session_id);
  if (!c->train.seed.is_given && !c->train.seed.is_drawn)
    TRY(api_fill_random(rt, &rt->seed, sizeof rt->seed, &err));
  if (rt->cannot_resume) TRY(api_fill_random(rt, &rt->session_id, sizeof rt->session_id, &err));
  return CLEAVE_OK;
}

static cleave_status fail_too_many_workers(const cleave_runtime *rt, const char *worker,
                                           cleave_error *error) {
  return api_fail(error, CLV_EXHAUSTED,
                  "worker '%s' of %s would have name number %d: a runtime has %d, for workers and "
                  "their returns. Take workers out of the file or of cleave_options.workers, or "
                  "share them out over several runtimes",
                  worker, rt->config->file, API_MAX_NODES, API_MAX_NODES - 1);
}

static cleave_status list_peers(cleave_runtime *rt, const cleave_options *o, cleave_error *error) {
  const clv_session_config *c = rt->config;
  TRY(clv_alloc(API_MAX_NODES, sizeof *rt->peers, &rt->peers, &err));
  rt->peers[0] = (api_peer){.runtime = rt, .name = "master"};
  rt->n_peers = 1;
  for (size_t i = 0; i < c->n_workers; i++) {
    if (!api_is_worker_wanted(o, c->workers[i].name)) continue;
    if (rt->n_peers == API_MAX_NODES) return fail_too_many_workers(rt, c->workers[i].name, error);
    rt->peers[rt->n_peers] = (api_peer){
        .runtime = rt, .index = rt->n_peers, .name = c->workers[i].name, .spec = &c->workers[i]};
    rt->n_peers++;
  }
  return CLEAVE_OK;
}

static cleave_status fill_runtime(cleave_runtime *rt, const cleave_options *o,
                                  cleave_error *error) {
  const clv_session_config *c = rt->config;
  rt->deadline_ms = o->deadline_ms ? o->deadline_ms : c->limits.step_timeout_ms;
  rt->sends_directly = c->transfer == CLV_TRANSFER_DIRECT;
  rt->sends_via_master = o->via_master;
  TRY_API(list_peers(rt, o, error));
  TRY_API(check_worker_names(rt, o, error));
  TRY(clv_pool_new((size_t)64 << 30, 1u << 20, &rt->pool, &err));
  api_add_job(rt, &api_step_job);
  api_add_job(rt, &api_context_end_job);
  api_add_job(rt, &api_broken_link_job);
  TRY_API(api_futures_new(rt, error));
  TRY_API(set_session_ids(rt, error));
  rt->worker_log_limiter.report_dropped = api_on_suppressed_logs;
  rt->worker_log_limiter.user = rt;
  rt->is_single_threaded = o->single_thread;
  rt->may_send = o->may_send;
  rt->on_event = o->on_event;
  rt->on_notice = (clv_notifier){o->on_notice, o->user};
  if (rt->n_peers > 1) TRY_API(api_connect(rt, error));
  return start_node(rt, error);
}

static cleave_status join_worker(api_peer *p, cleave_error *error) {
  TRY_API(api_open_link(p, error));
  TRY(clv_node_add_peer(p->runtime->node, p->name, p->link, &err));
  return CLEAVE_OK;
}

cleave_status api_open_on_platform(const api_platform *platform, const clv_session_config *config,
                                   const cleave_options *options, cleave_runtime **ret,
                                   cleave_error *error) {
  COPY_OPTIONS_IN(cleave_options, o, options);
  cleave_runtime *rt;
  TRY(clv_alloc(1, sizeof *rt, &rt, &err));
  rt->config = config;
  rt->platform = *platform;
  /* recursive, because a link that ends during a send calls on_closed on the sending thread */
  pthread_mutexattr_t recursive_mutex_attr;
  pthread_mutexattr_init(&recursive_mutex_attr);
  pthread_mutexattr_settype(&recursive_mutex_attr, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&rt->lock, &recursive_mutex_attr);
  pthread_mutexattr_destroy(&recursive_mutex_attr);
  pthread_condattr_t monotonic_cond_attr;
  pthread_condattr_init(&monotonic_cond_attr);
  pthread_condattr_setclock(&monotonic_cond_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&rt->state_changed_cond, &monotonic_cond_attr);
  pthread_cond_init(&rt->futures_thread_cond, &monotonic_cond_attr);
  pthread_condattr_destroy(&monotonic_cond_attr);
  rt->is_interrupted = o.interrupted;
  rt->refusal_timeout_ms = o.refused_ms;
  rt->user = o.user;
  CLV_AUTO(api_interruptible_end) api_interruptible waits;
  api_interruptible_begin(rt, &waits);
  cleave_status status = fill_runtime(rt, &o, error);
  if (status == CLEAVE_OK && rt->n_peers > 1) {
    for (uint32_t i = 1; i < rt->n_peers && status == CLEAVE_OK; i++)
      status = join_worker(&rt->peers[i], error);
  }
  if (status != CLEAVE_OK) {
    api_runtime_free(rt);
    return status;
  }
  *ret = rt;
  return CLEAVE_OK;
}

cleave_status cleave_open_config(const clv_session_config *config, uint32_t n_bulk_lanes,
                                 const cleave_options *options, cleave_runtime **ret,
                                 cleave_error *error) {
  const api_platform platform = {.n_bulk_lanes = n_bulk_lanes};
  return api_open_on_platform(&platform, config, options, ret, error);
}

/* ---- freeing a runtime ----------------------------------------------------------------------- */

static void free_record_lists(cleave_runtime *rt) {
  for (api_value *v = rt->value_free_list, *next; v; v = next) {
    next = v->older_value;
    free(v->contributions);
    free(v);
  }
  for (api_context *c = rt->context_free_list, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  for (cleave_optimizer *o = rt->optimizers, *next; o; o = next) {
    next = o->next;
    api_optimizer_free(o);
  }
  for (api_attachment *a = rt->attached_objects, *next; a; a = next) {
    next = a->next;
    a->free(a);
  }
  for (uint32_t i = 0; i < rt->n_modules; i++) api_module_free(rt->modules[i]);
}

void api_runtime_free(cleave_runtime *rt) {
  if (!rt) return;
  if (rt->node) clv_node_remove_peers(rt->node);
  if (rt->peers) api_close_sessions(rt);
  if (rt->has_node_thread) {
    clv_node_stop(rt->node);
    pthread_join(rt->node_thread, NULL);
  }
  if (rt->peers) api_close_links(rt); /* after this no link calls back into the runtime */
  clv_node_free(clv_steal(&rt->node));
  clv_log_limiter_tick(&rt->worker_log_limiter, UINT64_MAX);
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL; at = 0)
    api_context_free(rt, c);
  if (rt->kept_ops) rt->kept_ops->free_refs(rt);
  if (rt->gate.free_owner) rt->gate.free_owner(rt->gate.owner);
  free_record_lists(rt);
  api_id_table_free(&rt->values);
  api_id_table_free(&rt->contexts);
  api_futures_free(rt);
  clv_tls_identity_free(rt->identity);
  clv_pool_unref(rt->pool);
  clv_session_config_free(rt->own_config);
  free(rt->peers);
  free(rt->call_groups);
  pthread_cond_destroy(&rt->futures_thread_cond);
  pthread_cond_destroy(&rt->state_changed_cond);
  pthread_mutex_destroy(&rt->lock);
  free(rt);
}
