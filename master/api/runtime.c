/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/api/future_int.h"
#include "master/api/life_int.h"
#include "master/api/parallel_int.h"
#include "master/api/rejoin_int.h"

/* ---- the lock, and waiting under it ---------------------------------------------------------- */

void api_lock(cleave_runtime *rt) { pthread_mutex_lock(&rt->lock); }
void api_unlock(cleave_runtime *rt) { pthread_mutex_unlock(&rt->lock); }
void api_unlockp(cleave_runtime **rt) { api_unlock(*rt); }

uint64_t api_now(const cleave_runtime *rt) { return clv_clock_now(&rt->world.clock); }

clv_code api_random(const cleave_runtime *rt, void *ret, size_t len, clv_err *err) {
  const api_world *w = &rt->world;
  return w->random_bytes ? w->random_bytes(w->user, ret, len, err)
                         : clv_random_bytes(ret, len, err);
}

uint64_t api_until(const cleave_runtime *rt, uint64_t deadline_ms) {
  uint64_t ms = deadline_ms ? deadline_ms : rt->deadline_ms;
  return api_now(rt) + CLV_MIN(ms, UINT64_C(1) << 40) * 1000000u;
}

void api_wake(cleave_runtime *rt) {
  pthread_cond_broadcast(&rt->changed);
  if (rt->node && !rt->driving) clv_node_kick(rt->node);
}

/* The others that wait look again as well: one of them takes over if its own wait is not over. */
static bool help(cleave_runtime *rt, uint64_t until_ns) {
  rt->helping = true;
  rt->n_helped++;
  clv_node_unkick(rt->node);
  api_unlock(rt);
  bool in_time = clv_node_help(rt->node, until_ns);
  api_lock(rt);
  rt->helping = false;
  pthread_cond_broadcast(&rt->changed);
  return in_time;
}

/* The time that a worker's own loss had to show has passed. What needs no link between the two goes
 * on: other contexts, and what either keeps. */
static void believe(cleave_runtime *rt) {
  if (!rt->broken.status || api_now(rt) < rt->broken_until) return;
  cleave_error why = rt->broken;
  rt->broken.status = CLEAVE_OK;
  api_node_set both = NODE_BIT(rt->broken_at) | NODE_BIT(rt->broken_to);
  for (size_t i = 0; i < rt->contexts.cap; i++) {
    api_context *c = rt->contexts.ids[i] ? rt->contexts.things[i] : NULL;
    if (c && !(both & ~c->nodes)) api_context_fail(rt, c, &why, 0);
  }
}

static bool sleep_until(cleave_runtime *rt, uint64_t until_ns);

enum { LATE_NS = 300000000 };
static const uint64_t HEAR_NS = 5000000000;

/* A timer that comes much later than it was set for: the process was stopped. What its links have
 * heard meanwhile is still to be read, so deadlines are judged a little later. */
static void notice_stop(cleave_runtime *rt, uint64_t began, uint64_t until) {
  uint64_t now = api_now(rt);
  if (began < until && now > until && now - until > LATE_NS) rt->hear_until_ns = now + HEAR_NS;
}

bool api_is_late(const cleave_runtime *rt, uint64_t until_ns) {
  return api_now(rt) >= CLV_MAX(until_ns, rt->hear_until_ns);
}

bool api_sleep(cleave_runtime *rt, uint64_t until_ns) {
  uint64_t began = api_now(rt);
  until_ns = CLV_MAX(until_ns, rt->hear_until_ns);
  api_send_step(rt);
  uint64_t until = CLV_MIN(until_ns, api_resend_ends(rt));
  if (rt->broken.status) until = CLV_MIN(until, rt->broken_until);
  bool in_time = sleep_until(rt, until);
  notice_stop(rt, began, until);
  believe(rt);
  return in_time || until < until_ns || until_ns < rt->hear_until_ns;
}

static void flush_links(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (!rt->peers[i].lost) clv_link_flush(rt->peers[i].link);
}

/* Who helps has the node see to what leaves with the next packet. */
static bool sleep_until(cleave_runtime *rt, uint64_t until_ns) {
  if (rt->node && !rt->driving && !rt->helping) return help(rt, until_ns);
  if (rt->single_thread) flush_links(rt);
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  return pthread_cond_timedwait(&rt->changed, &rt->lock, &ts) != ETIMEDOUT;
}

void api_look(cleave_runtime *rt) {
  api_send_step(rt);
  if (rt->node && !rt->driving && !rt->helping)
    (void)help(rt, api_now(rt));
  else if (rt->single_thread)
    flush_links(rt);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

void cleave_count(cleave_runtime *runtime, cleave_counts *ret_counts) {
  if (!ret_counts) return;
  *ret_counts = (cleave_counts){0};
  if (!runtime) return;
  LOCKED(runtime);
  ret_counts->idle_ns = clv_node_idle_ns(runtime->node);
  for (uint32_t i = 1; i < runtime->n_peers; i++) {
    const api_peer *p = &runtime->peers[i];
    clv_link_counts c = {0};
    if (p->link) clv_link_count(p->link, &c);
    ret_counts->bytes_up += p->bytes_up + c.bytes_out;
    ret_counts->bytes_down += p->bytes_down + c.bytes_in;
  }
}

const char *api_silence(const cleave_runtime *rt, char *buf, size_t len) {
  size_t used = 0;
  uint64_t now = api_now(rt);
  buf[0] = '\0';
  for (uint32_t i = 1; i < rt->n_peers && used < len; i++) {
    uint64_t heard = __atomic_load_n(&rt->peers[i].heard_ns, __ATOMIC_RELAXED);
    used += (size_t)snprintf(buf + used, len - used, "%s'%.64s' %llu ms ago",
                             used ? ", " : "; last heard of worker ", rt->peers[i].name,
                             (unsigned long long)(now - CLV_MIN(heard, now)) / 1000000u);
  }
  return buf;
}

const char *cleave_node_name(const cleave_runtime *runtime, uint32_t node) {
  return runtime && node < runtime->n_peers ? runtime->peers[node].name : NULL;
}

int api_find_node(const cleave_runtime *rt, const char *name) {
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (strcmp(rt->peers[i].name, name) == 0) return (int)i;
  return -1;
}

cleave_status api_packet(cleave_runtime *rt, clv_frame_kind kind, uint64_t context_id,
                         uint64_t message, clv_packet **ret, cleave_error *error) {
  TRY(clv_packet_new(rt->pool, kind, ret, &err));
  (*ret)->frame.context = context_id;
  (*ret)->frame.message = message;
  return CLEAVE_OK;
}

cleave_status api_send(cleave_runtime *rt, uint32_t node, clv_packet *p, cleave_error *error) {
  api_peer *to = &rt->peers[node];
  api_send_step(rt);
  if (node == 0) {
    clv_node_post(rt->node, p);
    return CLEAVE_OK;
  }
  if (to->lost || api_is_of_earlier_life(rt, to, &p->frame)) {
    clv_packet_free(p);
    if (error) *error = to->why_lost;
    return to->why_lost.status;
  }
  clv_err err;
  if (clv_link_send(to->link, p, &err) == CLV_OK) return CLEAVE_OK;
  if (err.code == CLV_UNAVAILABLE) clv_err_prefix(&err, "worker '%s' was lost", to->name);
  api_from(error, &err);
  /* A link may end before it has said so. */
  api_place_error(error, to->name, err.code == CLV_UNAVAILABLE ? "link" : "");
  return (cleave_status)err.code;
}

cleave_status api_send_with_next(cleave_runtime *rt, uint32_t node, clv_packet *p,
                                 cleave_error *error) {
  p->with_next = rt->single_thread && node > 0;
  return api_send(rt, node, p, error);
}

static void *drive(void *user) {
  clv_node_run(user);
  return NULL;
}

static cleave_status start_node(cleave_runtime *rt, cleave_error *error) {
  clv_node_options o = {.pool = rt->pool,
                        .runtime = rt->rpc,
                        .user = rt,
                        .on_program = api_on_program,
                        .notice = rt->notice,
                        .clock = rt->world.clock,
                        .executor = rt->world.executor,
                        .wait = rt->world.wait,
                        .wait_user = rt->world.user,
                        .reference_lease_ms = (uint32_t)rt->config->limits.reference_lease_ms};
  TRY(clv_node_new(&o, &rt->node, &err));
  if (rt->single_thread) return CLEAVE_OK;
  if (pthread_create(&rt->node_thread, NULL, drive, rt->node) != 0)
    return api_fail(error, CLV_EXHAUSTED, "no thread for the master's own node");
  rt->driving = true;
  return CLEAVE_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool wanted(const cleave_options *o, const char *worker) {
  bool any = !o->workers;
  for (size_t i = 0; !any && i < o->n_workers; i++) any = strcmp(o->workers[i], worker) == 0;
  return any;
}

static cleave_status check_wanted(const cleave_runtime *rt, const cleave_options *o,
                                  cleave_error *error) {
  for (size_t i = 0; o->workers && i < o->n_workers; i++)
    if (api_find_node(rt, o->workers[i]) <= 0)
      return api_fail(error, CLV_NOT_FOUND, "no worker '%s' in %s", o->workers[i],
                      rt->config->file);
  return CLEAVE_OK;
}

/* Those of a run, or the program's own. */
static cleave_status identify(cleave_runtime *rt, cleave_error *error) {
  const clv_session_config *c = rt->config;
  rt->seed = c->train.seed.key;
  rt->session = (clv_wire_id){0};
  rt->single = !c->attempt.epoch;
  rt->epoch = rt->single ? 1 : c->attempt.epoch;
  memcpy(&rt->session, c->attempt.session, sizeof rt->session);
  if (!c->train.seed.given && !c->train.seed.drawn)
    TRY(api_random(rt, &rt->seed, sizeof rt->seed, &err));
  if (rt->single) TRY(api_random(rt, &rt->session, sizeof rt->session, &err));
  return CLEAVE_OK;
}

static cleave_status too_many(const cleave_runtime *rt, const char *worker, cleave_error *error) {
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
    if (!wanted(o, c->workers[i].name)) continue;
    if (rt->n_peers == API_MAX_NODES) return too_many(rt, c->workers[i].name, error);
    rt->peers[rt->n_peers] = (api_peer){
        .runtime = rt, .index = rt->n_peers, .name = c->workers[i].name, .spec = &c->workers[i]};
    rt->n_peers++;
  }
  return CLEAVE_OK;
}

static cleave_status fill(cleave_runtime *rt, const cleave_options *o, cleave_error *error) {
  const clv_session_config *c = rt->config;
  rt->deadline_ms = o->deadline_ms ? o->deadline_ms : c->limits.step_timeout_ms;
  rt->direct = c->transfer == CLV_TRANSFER_DIRECT;
  rt->via_master = o->via_master;
  PASS(list_peers(rt, o, error));
  PASS(check_wanted(rt, o, error));
  TRY(clv_pool_new((size_t)64 << 30, 1u << 20, &rt->pool, &err));
  PASS(api_futures_new(rt, error));
  PASS(identify(rt, error));
  rt->complaints.left_out = api_left_out;
  rt->complaints.user = rt;
  rt->single_thread = o->single_thread;
  rt->may_send = o->may_send;
  rt->on_event = o->on_event;
  rt->notice = (clv_notifier){o->on_notice, o->user};
  rt->user = o->user;
  if (rt->n_peers > 1) PASS(api_connect(rt, error));
  return start_node(rt, error);
}

static cleave_status join_worker(api_peer *p, cleave_error *error) {
  PASS(api_open_link(p, error));
  TRY(clv_node_peer(p->runtime->node, p->name, p->link, &err));
  return CLEAVE_OK;
}

cleave_status api_open_in(const api_world *world, const clv_session_config *config,
                          const cleave_options *options, cleave_runtime **ret,
                          cleave_error *error) {
  OPTIONS_IN(cleave_options, o, options);
  cleave_runtime *rt;
  TRY(clv_alloc(1, sizeof *rt, &rt, &err));
  rt->config = config;
  rt->world = *world;
  /* A link that ends while something is sent over it says so within the sending call. */
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&rt->lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&rt->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  cleave_status status = fill(rt, &o, error);
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

cleave_status cleave_open_config(const clv_session_config *config, const cleave_options *options,
                                 cleave_runtime **ret, cleave_error *error) {
  return api_open_in(&(api_world){0}, config, options, ret, error);
}

cleave_status cleave_open_text(const char *path, const char *text, const cleave_options *options,
                               cleave_runtime **ret_runtime, cleave_error *error) {
  GIVEN(path, text, ret_runtime);
  clv_session_config *config;
  PASS(api_read_config(path, text, &config, error));
  cleave_status status = cleave_open_config(config, options, ret_runtime, error);
  if (status == CLEAVE_OK)
    (*ret_runtime)->own_config = config;
  else
    clv_session_config_free(config);
  return status;
}

cleave_status cleave_open(const char *path, const cleave_options *options,
                          cleave_runtime **ret_runtime, cleave_error *error) {
  GIVEN(path, ret_runtime);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  TRY(clv_file_read(path, (size_t)1 << 20, &text, &err));
  return cleave_open_text(path, text.data ? text.data : "", options, ret_runtime, error);
}

/* ---- closing --------------------------------------------------------------------------------- */

void api_parallel_free(cleave_parallel *p) {
  if (!p) return;
  clv_division_free(p->division);
  clv_params_free(p->params);
  clv_graph_free(p->whole);
  free(p->modules);
  free(p);
}

static void free_lists(cleave_runtime *rt) {
  for (api_value *v = rt->free_values, *next; v; v = next) {
    next = v->older;
    free(v->parts);
    free(v);
  }
  for (api_context *c = rt->free_contexts, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  for (cleave_optimizer *o = rt->optimizers, *next; o; o = next) {
    next = o->next;
    api_optimizer_free(o);
  }
  for (cleave_parallel *p = rt->parallels, *next; p; p = next) {
    next = p->next;
    api_parallel_free(p);
  }
  for (uint32_t i = 0; i < rt->n_modules; i++) api_module_free(rt->modules[i]);
}

void api_runtime_free(cleave_runtime *rt) {
  if (!rt) return;
  if (rt->node) clv_node_forget_peers(rt->node);
  if (rt->peers) api_hang_up(rt);
  if (rt->driving) {
    clv_node_stop(rt->node);
    pthread_join(rt->node_thread, NULL);
  }
  if (rt->peers) api_disconnect(rt); /* no callback is running after this */
  clv_node_free(clv_steal(&rt->node));
  clv_log_limiter_tick(&rt->complaints, UINT64_MAX);
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL; at = 0)
    api_context_forget(rt, c);
  api_kepts_free(rt);
  free_lists(rt);
  api_id_table_done(&rt->values);
  api_id_table_done(&rt->contexts);
  api_futures_free(rt);
  clv_tls_identity_free(rt->identity);
  clv_pool_unref(rt->pool);
  clv_session_config_free(rt->own_config);
  free(rt->peers);
  free(rt->groups);
  pthread_cond_destroy(&rt->changed);
  pthread_mutex_destroy(&rt->lock);
  free(rt);
}
