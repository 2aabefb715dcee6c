/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* Pins the calling compute thread to the cores that worker.yaml's key `cores` lists. Threads that
 * kernels start inherit the affinity. */
static void pin_compute_thread(const clv_worker_config *c) {
  cpu_set_t cpu_set;
  CPU_ZERO(&cpu_set);
  for (size_t i = 0; i < c->cores.n; i++) CPU_SET((size_t)c->cores.items[i], &cpu_set);
  if (c->cores.n && pthread_setaffinity_np(pthread_self(), sizeof cpu_set, &cpu_set) != 0)
    clv_log(CLV_LOG_WARN, "cores: the process may use none of these cores; threads are not pinned");
}

static void *run_compute_thread(void *user) {
  clv_session *s = user;
  pin_compute_thread(s->service->config);
  clv_node_run(s->node);
  return NULL;
}

/* Makes the session's node and starts its compute thread, unless the session has a node already.
 * Caller holds s->lock. */
static clv_code start_node(clv_session *s, clv_err *err) {
  if (s->node) return CLV_OK;
  uint16_t random_originator;
  CLV_TRY(clv_random_bytes(&random_originator, sizeof random_originator, err));
  clv_node_options o = {.pool = s->pool,
                        .originator = (uint16_t)(random_originator | 1u),
                        .runtime = s->service->runtime,
                        .share = s->share,
                        .files = clv_session_file_callbacks(s),
                        .caches = clv_session_cache_callbacks(s),
                        .reference_lease_ms = s->reference_lease_ms};
  CLV_TRY(clv_node_new(&o, &s->node, err));
  if (pthread_create(&s->compute_thread, NULL, run_compute_thread, s) != 0) {
    clv_node_free(s->node);
    s->node = NULL;
    return clv_fail(err, CLV_EXHAUSTED, "cannot start a compute thread for the session");
  }
  s->has_compute_thread = true;
  return CLV_OK;
}

static clv_code add_module(clv_session *s, clv_module *module, clv_err *err) {
  pthread_mutex_lock(&s->lock);
  clv_code code =
      s->is_closing ? clv_fail(err, CLV_NOT_FOUND, "no such session") : start_node(s, err);
  if (code != CLV_OK)
    clv_module_free(module);
  else
    code = clv_node_add_module(s->node, module, err);
  if (code == CLV_OK) clv_session_set_node_links(s);
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* Argument `user` of is_load_cancelled: the session, and the flag that its caller has left. */
typedef struct load_cancel_state {
  clv_session *session;
  const bool *has_caller_left;
} load_cancel_state;

static bool is_load_cancelled(void *user) {
  const load_cancel_state *w = user;
  pthread_mutex_lock(&w->session->lock);
  bool is_closing = w->session->is_closing;
  pthread_mutex_unlock(&w->session->lock);
  return is_closing || __atomic_load_n(w->has_caller_left, __ATOMIC_RELAXED);
}

/* Returns the session's node; NULL: there is no node yet. The first LoadModule makes the node, and
 * the node is freed with the session. */
static clv_session_node *get_session_node(clv_session *s) {
  pthread_mutex_lock(&s->lock);
  clv_session_node *node = s->node;
  pthread_mutex_unlock(&s->lock);
  return node;
}

/* Checks that the node can add a module of this index and generation. This check, before the module
 * is made, saves the work of making it. clv_node_add_module repeats the check. */
static clv_code check_module_slot(clv_session *s, const clv_wire_load_request *r, clv_err *err) {
  clv_session_node *node = get_session_node(s);
  return node ? clv_node_check_module_slot(node, r->module_index, r->module_generation, err)
              : CLV_OK;
}

/* Loads weights from an artifact, if the request names one, dials the peers that the request names,
 * and fills *reply. */
static clv_code fill_and_describe(clv_session *s, const clv_wire_load_request *r,
                                  const clv_backend *backend, const clv_cancel_hook *cancel_hook,
                                  clv_module *module, clv_wire_load_reply *reply, clv_err *err) {
  if (r->init_source == CLV_WIRE_INIT_ARTIFACT)
    CLV_TRY(clv_session_load_artifact(s, r, backend, cancel_hook, module, err));
  for (uint32_t i = 0; i < r->n_peers; i++)
    CLV_TRY(clv_session_dial_peer(s, r->peer_names[i], err));
  return clv_load_describe_module(module, cancel_hook, reply, err);
}

/* Loads a module. Encodes the reply before it adds the module to the node, because a frame of the
 * master may unload the module as soon as the node has it. */
static clv_code load_one_module(clv_session *s, const clv_wire_load_request *r,
                                const clv_cancel_hook *cancel_hook, clv_wire_load_reply *reply,
                                clv_bytes *ret, clv_err *err) {
  clv_module *module;
  const clv_device *device;
  /* this load may have waited for another load, and its caller may have left in that time */
  CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
  CLV_TRY(check_module_slot(s, r, err));
  CLV_TRY(clv_service_find_device(s->service, r->device_name, &device, err));
  clv_device session_device = *device;
  session_device.account = s->device_accounts[device - s->service->devices];
  CLV_TRY(clv_load_make_module(r, &session_device, get_session_node(s), s->pool, cancel_hook,
                               &module, err));
  clv_code code = fill_and_describe(s, r, device->backend, cancel_hook, module, reply, err);
  if (code == CLV_OK) code = clv_wire_load_reply_encode(reply, ret, err);
  if (code == CLV_OK) return add_module(s, module, err);
  clv_module_free(module);
  return code;
}

/* Loads one module of a session at a time, because loads dial peers and start the compute
 * thread. */
clv_code clv_session_load_module(clv_session *s, const clv_wire_load_request *r,
                                 const bool *has_caller_left, clv_wire_load_reply *reply,
                                 clv_bytes *ret, clv_err *err) {
  load_cancel_state w = {s, has_caller_left};
  const clv_cancel_hook cancel_hook = {is_load_cancelled, &w};
  pthread_mutex_lock(&s->loading_lock);
  clv_code code = load_one_module(s, r, &cancel_hook, reply, ret, err);
  while (code == CLV_EXHAUSTED && clv_session_close_abandoned(s))
    code = load_one_module(s, r, &cancel_hook, reply, ret, err);
  pthread_mutex_unlock(&s->loading_lock);
  if (code == CLV_OK) clv_session_record_threads(s, CLV_MAX(r->n_threads, 1u));
  return code;
}
