/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the events of the simulated world (world.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/core.h"
#include "tests/simulate/world_int.h"

#define MS UINT64_C(1000000)

enum { DEADLINE_MS = 120000, LEASE_MS = 5000, TICK_MS = 1000, NOTICE_MS = 10000 };

/* ---- running events and nodes ---------------------------------------------------------------- */

/* Returns the worker whose node runs next; NULL: none. *ret_due: time in ns at which it runs. */
static sim_worker *next_worker(sim_world *w, uint64_t *ret_due) {
  sim_worker *earliest = NULL;
  *ret_due = UINT64_MAX;
  for (uint32_t i = 1; i < SIM_PLACES; i++) {
    uint64_t due_ns = sim_worker_next_run_ns(&w->workers[i]);
    if (due_ns >= *ret_due) continue;
    *ret_due = due_ns;
    earliest = &w->workers[i];
  }
  return earliest;
}

static void run_worker(sim_world *w, sim_worker *k) {
  sim_worker_run_node(k);
  k->busy_until_ns = sim_network_now(w->network) + sim_network_draw_delay(w->network) / 8;
}

bool sim_world_run_event(sim_world *w, uint64_t until_ns) {
  uint64_t due_ns;
  sim_worker *k = next_worker(w, &due_ns);
  uint64_t next_event_ns = CLV_MIN(due_ns, sim_network_next_event_ns(w->network));
  if (next_event_ns > until_ns || next_event_ns == UINT64_MAX) {
    if (until_ns != UINT64_MAX) sim_network_advance(w->network, until_ns);
    return until_ns != UINT64_MAX;
  }
  if (sim_network_next_event_ns(w->network) <= due_ns) {
    sim_network_run_event(w->network);
    return true;
  }
  sim_network_advance(w->network, due_ns);
  run_worker(w, k);
  return true;
}

static void run_until(sim_world *w, uint64_t until_ns) {
  while (sim_network_now(w->network) < until_ns && sim_world_run_event(w, until_ns)) continue;
}

bool sim_world_wait_until(void *world, uint64_t until_ns) {
  return sim_world_run_event(world, until_ns);
}

clv_clock sim_world_get_clock(sim_world *w) { return sim_network_get_clock(w->network); }

void sim_world_pass_time(void *world) {
  sim_world *w = world;
  if (w->conditions.has_no_delays || sim_draw_below(&w->rng, 3)) return;
  run_until(w, sim_network_now(w->network) + sim_network_draw_delay(w->network));
}

/* ---- work of nodes that takes simulated time ------------------------------------------------- */

typedef struct started_work {
  clv_session_node *at;
  clv_work *work;
} started_work;

static void end_work(void *user) {
  started_work *s = user;
  clv_err why;
  clv_code code = clv_work_compute(s->work, &why);
  clv_node_work_ended(s->at, s->work, code, &why);
  free(s);
}

static void start_work(void *user, clv_work *work) {
  sim_worker *k = user;
  sim_network *n = k->world->network;
  clv_err err;
  started_work *s;
  if (clv_alloc(1, sizeof *s, &s, &err) != CLV_OK) abort();
  *s = (started_work){k->node, work};
  sim_network_call_at(n, sim_network_now(n) + sim_network_draw_delay(n), end_work, s);
}

clv_executor sim_world_get_executor(sim_world *w, uint32_t place) {
  return w->work_takes_time ? (clv_executor){&w->workers[place], start_work} : (clv_executor){0};
}

/* ---- calls and links from the master to workers ---------------------------------------------- */

static clv_code draw_bytes(void *user, void *ret, size_t len, clv_err *err) {
  sim_world *w = user;
  unsigned char *to = ret;
  (void)err;
  for (size_t i = 0; i < len; i++) to[i] = (unsigned char)sim_draw_number(&w->rng);
  return CLV_OK;
}

static sim_worker *find_worker(sim_world *w, const char *name) {
  return &w->workers[name[1] - '0'];
}

static void do_nothing(void *user) { (void)user; }

/* Lets the time pass that a request and its answer need. The rest of the world continues
 * meanwhile. */
static clv_code pass_request_time(sim_world *w, const sim_worker *k, uint64_t until_ns,
                                  clv_err *err) {
  uint64_t arrival_ns = sim_network_now(w->network) + sim_network_draw_delay(w->network);
  sim_network_call_at(w->network, arrival_ns, do_nothing, w);
  run_until(w, CLV_MIN(arrival_ns, until_ns));
  if (k->is_dead) return clv_fail(err, CLV_UNAVAILABLE, "%s: connection lost", k->name);
  if (arrival_ns > until_ns) return clv_fail(err, CLV_DEADLINE, "%s: no answer", k->name);
  return CLV_OK;
}

static clv_code call_worker(void *user, const char *worker, const char *method,
                            const clv_bytes *request, uint64_t timeout_ms, clv_bytes *reply,
                            clv_err *err) {
  sim_world *w = user;
  sim_worker *k = find_worker(w, worker);
  uint64_t until_ns = sim_network_now(w->network) + timeout_ms * MS;
  clv_piece piece = {request->data, request->len};
  CLV_TRY(pass_request_time(w, k, until_ns, err));
  CLV_TRY(sim_worker_call_method(k, method, &piece, reply, err));
  return pass_request_time(w, k, until_ns, err);
}

clv_code sim_world_dial_link(sim_world *w, uint32_t from, uint32_t to,
                             const clv_link_options *options, const clv_link_dial *dial,
                             unsigned timeout_ms, clv_link **ret, clv_err *err) {
  static const char *const uris[SIM_PLACES] = {"m0", "w1", "w2", "w3"};
  clv_dialler d =
      sim_network_make_dialler(w->network, from, to, &w->workers[to].lane_acceptor, uris[from]);
  uint64_t until_ns = sim_network_now(w->network) + timeout_ms * MS;
  CLV_AUTO(clv_link_unrefp) clv_link *l = NULL;
  CLV_TRY(clv_link_start(options, dial, &d, &l, err));
  while (!clv_link_is_attached(l) && sim_network_now(w->network) < until_ns)
    if (!sim_world_run_event(w, until_ns)) break;
  if (!clv_link_is_attached(l)) {
    clv_link_close(l);
    return clv_fail(err, CLV_UNAVAILABLE, "%s did not attach the session", uris[to]);
  }
  *ret = clv_steal(&l);
  return CLV_OK;
}

static clv_code open_link(void *user, const char *worker, const clv_link_options *options,
                          const clv_link_dial *dial, clv_link **ret, clv_err *err) {
  sim_world *w = user;
  return sim_world_dial_link(w, 0, find_worker(w, worker)->place, options, dial,
                             dial->dial_timeout_ms, ret, err);
}

/* ---- causing the fault ----------------------------------------------------------------------- */

static void restart_worker(void *user) { sim_worker_restart(user); }

static void cause_fault(void *user) {
  sim_world *w = user;
  const sim_fault *f = &w->conditions.fault;
  if (f->kind == SIM_KILL) {
    w->workers[f->a].is_dead = true;
    sim_network_kill_place(w->network, f->a);
    sim_network_call_at(w->network, f->restart_ns, restart_worker, &w->workers[f->a]);
    w->fault_happened = true;
  } else {
    w->fault_happened = sim_network_close_lane(w->network, f->a, f->b, f->lane) > 0;
  }
  if (w->conditions.prints_messages)
    printf("%12.6f ms  the fault\n", (double)sim_network_now(w->network) / 1e6);
}

static void close_worker(void *user) { sim_worker_close_session(user); }

void sim_world_schedule_close(sim_world *w, sim_worker *k) {
  sim_network_call_at(w->network,
                      sim_network_now(w->network) + sim_draw_below(&w->rng, TICK_MS) * MS,
                      close_worker, k);
}

/* ---- creating and freeing the world ---------------------------------------------------------- */

sim_world *sim_world_new(const sim_conditions *conditions) {
  sim_world *w;
  clv_err err;
  if (clv_alloc(1, sizeof *w, &w, &err) != CLV_OK) abort();
  w->conditions = *conditions;
  w->rng.rng_state = conditions->seed ^ 0x5157;
  w->work_takes_time = !conditions->has_no_delays && conditions->seed % 2;
  w->workers[0].world = w;
  w->network =
      sim_network_new(&(sim_network_options){.seed = conditions->seed,
                                             .has_no_delays = conditions->has_no_delays,
                                             .prints_messages = conditions->prints_messages,
                                             .first_cut_message = conditions->first_cut_message,
                                             .cut_interval = conditions->cut_interval});
  for (uint32_t i = 1; i < SIM_PLACES && !conditions->has_no_workers; i++)
    if (sim_worker_start(w, i, &err) != CLV_OK) abort();
  if (conditions->fault.kind) sim_network_call_at(w->network, conditions->fault.at, cause_fault, w);
  return w;
}

/* The session of all worlds. Parsed once, because parsing is slow. */
static clv_session_config *config;

static cleave_status read_config(cleave_error *error) {
  static const char text[] =
      "version: 1\n"
      "name: simulated\n"
      "train: {seed: 0123456789abcdef0123456789abcdef}\n"
      "transfer: direct\n"
      "limits: {reference_lease: 5s}\n"
      "tls: {ca: none, cert: none, key: none}\n"
      "workers:\n"
      "  w1: {address: 'w1:1', identity: 'spiffe://s/w1'}\n"
      "  w2: {address: 'w2:1', identity: 'spiffe://s/w2'}\n"
      "  w3: {address: 'w3:1', identity: 'spiffe://s/w3'}\n";
  return config ? CLEAVE_OK : api_read_config("simulated", text, &config, error);
}

cleave_status sim_world_open_runtime(sim_world *w, cleave_runtime **ret, cleave_error *error) {
  api_platform platform = {.user = w,
                           .clock = sim_world_get_clock(w),
                           .fill_random_bytes = draw_bytes,
                           .call_worker = call_worker,
                           .open_link = open_link,
                           .n_bulk_lanes = CLEAVE_BULK_LANES,
                           .wait = sim_world_wait_until,
                           .executor = sim_world_get_executor(w, 0),
                           .backend = clv_backend_ref()};
  cleave_options o = {.size = sizeof o,
                      .deadline_ms = DEADLINE_MS,
                      .single_thread = true,
                      .via_master = w->conditions.sends_via_master};
  if (w->conditions.has_no_workers) o.workers = (const char *const[]){""};
  cleave_status status = read_config(error);
  if (status == CLEAVE_OK) {
    config->limits.credit_bytes = w->conditions.credit_bytes;
    config->limits.lease_ms = w->conditions.repairs_links ? SIM_LINK_LEASE_MS : 0;
    config->limits.reference_lease_ms =
        w->conditions.repairs_links ? 2 * SIM_LINK_LEASE_MS : LEASE_MS;
    status = api_open_on_platform(&platform, config, &o, ret, error);
    if (status == CLEAVE_OK) {
      w->runtime = *ret;
      w->workers[0].node = (*ret)->node;
    }
  }
  return status;
}

void sim_world_wait_for_notice(void *world) {
  sim_world *w = world;
  clv_session_node *node = w->runtime->node;
  uint64_t until_ns = sim_network_now(w->network) + (NOTICE_MS + 3 * LEASE_MS) * MS;
  while (sim_network_now(w->network) < until_ns) {
    clv_node_clear_interrupt(node);
    clv_node_poll(node);
    sim_world_run_event(w, CLV_MIN(until_ns, clv_node_due_ns(node)));
  }
}

uint32_t sim_world_count_backwards(void *world, uint64_t context) {
  const sim_requests *t = &((sim_world *)world)->master_messages;
  for (uint32_t i = 0; i < t->n_backwards; i++)
    if (t->backwards[i].context == context)
      return (uint32_t)__builtin_popcountll(t->backwards[i].phase_bits);
  return 0;
}

/* ---- calls of an intruder: another caller of the same session -------------------------------- */

enum { INTRUDER_ROWS = 2, INTRUDER_COLUMNS = 4 };
/* first id of the contexts and messages of intruders */
static const uint64_t first_intruder_id = UINT64_C(1) << 40;

static void require_success(clv_code code) {
  if (code != CLV_OK) abort();
}

/* Sends a call of another caller, the intruder. earlier_id: call that must run first; 0: none. */
static void send_intruder_call(const sim_worker *k, const cleave_module *m, uint64_t context,
                               uint64_t call_id, uint64_t earlier_id) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  clv_packet *p;
  clv_err err;
  require_success(clv_pool_alloc_tensor(k->pool, CLV_F32,
                                        &CLV_SHAPE(INTRUDER_ROWS, INTRUDER_COLUMNS), &x, &err));
  for (size_t i = 0; i < x->n; i++) ((float *)x->data)[i] = 1;
  require_success(clv_packet_new_call(k->pool, context, call_id, m->index, true, &p, &err));
  require_success(clv_packet_add_arg(p, 0, true, x, &err));
  p->frame.module_generation = m->generation;
  p->frame.call.runs_after_call = earlier_id;
  clv_node_post(k->node, p);
}

static void send_intruder_end(const sim_worker *k, uint64_t context, uint64_t first_id,
                              bool has_vote) {
  clv_packet *p;
  clv_err err;
  require_success(clv_packet_new_prepare(k->pool, context, 1, 0, false, has_vote, false, &p, &err));
  require_success(clv_packet_add_needed_call(p, first_id, 1, 0, &err));
  clv_node_post(k->node, p);
  require_success(clv_packet_new_end_context(k->pool, context, first_intruder_id, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.5f, true);
  clv_node_post(k->node, p);
}

void sim_world_use_as_intruder(void *world, uint32_t place, const cleave_module *m,
                               uint64_t random_bits) {
  sim_world *w = world;
  const sim_worker *k = &w->workers[place];
  if (!k->node || !k->has_open_session || k->is_dead || !clv_node_module(k->node, m->index)) return;
  uint64_t context = first_intruder_id + ++w->n_intrusions, first_id = 1;
  uint32_t n_followers = 1 + (uint32_t)(random_bits >> 32) % 4;
  send_intruder_call(k, m, context, first_id, 0);
  /* each of the following calls waits for the first call, or for the call before it */
  for (uint32_t i = 0; i < n_followers; i++)
    send_intruder_call(k, m, context, first_id + 1 + i,
                       random_bits >> 40 & 1 ? first_id + i : first_id);
  send_intruder_end(k, context, first_id, random_bits >> 41 & 1);
}

void sim_world_check_leftovers(sim_world *w, char *text, size_t len) {
  sim_world_wait_for_notice(w);
  snprintf(text, len, "%s", w->master_messages.violation);
  for (uint32_t i = 1; i < SIM_PLACES && !text[0]; i++)
    sim_worker_describe_objects(&w->workers[i], text, len);
}

void sim_describe_pool_leftovers(clv_pool *pool, const char *owner_text, char *text, size_t len) {
  clv_err err;
  clv_tensor *t;
  clv_account *a = clv_pool_account(pool);
  /* with a limit of 1 byte, the next allocation makes the pool return its free blocks */
  clv_account_set_limit(a, CLV_QUOTA_BYTES, 1);
  if (clv_pool_alloc_tensor(pool, CLV_F32, &CLV_SHAPE(977), &t, &err) == CLV_OK)
    clv_tensor_unref(t);
  if (clv_account_usage(a, CLV_QUOTA_TENSORS))
    snprintf(text, len, "%llu tensors of %s are left",
             (unsigned long long)clv_account_usage(a, CLV_QUOTA_TENSORS), owner_text);
}

void sim_world_free(sim_world *w, char *text, size_t len) {
  for (uint32_t i = 1; i < SIM_PLACES; i++) sim_worker_free_node(&w->workers[i]);
  sim_network_free(w->network);
  text[0] = '\0';
  for (uint32_t i = 1; i < SIM_PLACES; i++) sim_worker_free(&w->workers[i], text, len);
  free(w);
}

sim_counts sim_world_get_counts(const sim_world *w) {
  sim_network_counts c = sim_network_get_counts(w->network);
  return (sim_counts){c.n_messages, c.n_events, c.n_cuts, w->fault_happened};
}

void sim_free_worlds(void) {
  clv_session_config_free(config);
  config = NULL;
}
