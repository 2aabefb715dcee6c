/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs random programs of references over a simulated network of 3 to 5 nodes, in one process and
 * on a clock of its own. Everything follows from a seed: the program, which messages the network
 * drops, duplicates, delays and so reorders, whether a node dies or falls silent, and when values
 * exist.
 *
 *   references [--runs N] [--seed S] [--trace]
 *
 * A model beside the nodes knows every handle of every node. The program checks against it:
 *
 *   no early free  an entry is freed only when no handle of it is left, at a node or in flight
 *   right values a fetch gives the value, or the error stored in its place, exactly once
 *   in time        where nothing is lost a fetch takes a few trips, without a repeated message
 *   no oracle      a node without a handle gets "not found" and never a value
 *   no leak        when all handles are released, every table is empty within the lease
 *   the tables     no event arrives in a state for which the tables have no row
 *
 * The checks "no early free" and "right values" do not apply to a handle that was passed by a node
 * that died or was silent for a lease (`is_lost`), but even such a handle must never get a wrong
 * value.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/reference/rref_int.h"

enum { MAX_NODES = 5, MAX_OBJECTS = 512, MAX_HANDLES = 4096, MAX_EVENTS = 1 << 16 };

#define MS UINT64_C(1000000)
static const uint64_t lease_ns = 20000 * MS, retry_ns = 50 * MS;
/* Time in ns to wait at the end: a lease for references of the lost node, a second lease for
 * references that wait for the first ones, and a third so that each node's periodic check has
 * run. */
static const uint64_t grace_ns = 3 * 20000 * MS;

/* ---- objects and handles as the test expects them -------------------------------------------- */

typedef struct object {
  uint64_t ref, access_key;
  uint32_t creator, owner;
  bool ends_in_failure, is_known_to_owner, is_settled,
      is_lost; /* is_known_to_owner: the owner knows the object */
  clv_rref_failure failure;
  int64_t settled_value;
  uint64_t settled_at_ns;
} object;

typedef enum handle_state { PROMISED, ARRIVED, RELEASED, NEVER_ARRIVED } handle_state;

typedef struct handle {
  uint64_t fork_id;
  uint32_t object, node, passed_by; /* passed_by: node that passed the reference */
  handle_state state;
  bool is_lost, is_fetching;
  uint64_t fetch_sent_ns;
  bool
      /* true: the test releases the handle at the end, even if its value has not arrived */
      may_release_unfetched;
} handle;

typedef enum event_kind {
  MESSAGE,
  TICK,
  OPERATION,
  SETTLE,
  CUT,
  HEAL,
  /* end of the random program: the test then releases all handles of the program */
  PROGRAM_END,
} event_kind;

typedef struct event {
  uint64_t at, sequence;
  event_kind kind;
  uint32_t node, sender; /* node: receiver of the event; for SETTLE the index of the object */
  clv_rref_message m;
  clv_rref_failure failure;
} event;

static struct {
  uint64_t seed, rng_state, now_ns, sequence, end_ns;
  bool prints_trace, has_failed;
  uint32_t n_nodes;
  clv_rrefs *node_tables[MAX_NODES];
  clv_pool *node_pools[MAX_NODES];
  uint64_t last_ids[MAX_NODES], tick_due_ns[MAX_NODES];
  bool is_dead[MAX_NODES + 1], is_silent[MAX_NODES + 1];
  bool has_node_deaths;
  uint32_t faulty_node; /* node that dies, or is silent for longer than a lease */
  uint64_t faulty_from_ns,
      faulty_until_ns; /* from..until in ns: all messages from and to `faulty_node` are lost */
  /* Message faults in percent, and delays in nanoseconds. */
  uint32_t drop_percent, duplicate_percent;
  uint64_t min_delay_ns, delay_spread_ns;
  object objects[MAX_OBJECTS];
  handle handles[MAX_HANDLES];
  uint32_t n_objects, n_handles;
  event *events[MAX_EVENTS];
  uint32_t n_events;
  clv_rref_visits cell_visits; /* cells of the state tables that all runs visited */
  uint64_t n_forged_frames, n_messages, n_dropped, n_duplicated, n_fetched, n_errors, n_deaths,
      n_operations;
} sim;

static void report_fault(const char *fmt, ...) CLV_PRINTF(1, 2);
static void report_fault(const char *fmt, ...) {
  if (sim.has_failed) return;
  sim.has_failed = true;
  printf("seed %" PRIu64 " at %.3f s: ", sim.seed, (double)sim.now_ns / 1e9);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static void print_trace(const char *fmt, ...) CLV_PRINTF(1, 2);
static void print_trace(const char *fmt, ...) {
  if (!sim.prints_trace) return;
  printf("%10.3f ms  ", (double)sim.now_ns / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

/* Returns a random number, by xorshift64* (Vigna 2016). */
static uint64_t draw_number(void) {
  sim.rng_state ^= sim.rng_state >> 12;
  sim.rng_state ^= sim.rng_state << 25;
  sim.rng_state ^= sim.rng_state >> 27;
  return sim.rng_state * UINT64_C(0x2545f4914f6cdd1d);
}
static uint64_t draw_below(uint64_t n) { return n ? (draw_number() >> 16) % n : 0; }
static bool happens_with_percent(uint32_t percent) { return draw_below(100) < percent; }

static uint64_t new_id(uint32_t node) {
  return ((uint64_t)(node + 1) << 48) | ++sim.last_ids[node];
}

static object *find_object(uint64_t ref) {
  for (uint32_t i = 0; i < sim.n_objects; i++)
    if (sim.objects[i].ref == ref) return &sim.objects[i];
  return NULL;
}

static handle *find_handle(uint64_t fork) {
  for (uint32_t i = 0; i < sim.n_handles; i++)
    if (sim.handles[i].fork_id == fork) return &sim.handles[i];
  return NULL;
}

static bool is_faulty_now(uint32_t node) {
  return node == sim.faulty_node && sim.now_ns >= sim.faulty_from_ns &&
         sim.now_ns < sim.faulty_until_ns;
}

/* ---- the queue of events --------------------------------------------------------------------- */

static bool is_earlier(const event *a, const event *b) {
  return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

static event *add_event(uint64_t at, event_kind kind, uint32_t node) {
  if (sim.n_events == MAX_EVENTS) {
    report_fault("more than %d events", MAX_EVENTS);
    exit(2);
  }
  event *e = calloc(1, sizeof *e);
  *e = (event){.at = at, .sequence = ++sim.sequence, .kind = kind, .node = node};
  uint32_t i = sim.n_events++;
  for (; i && is_earlier(e, sim.events[(i - 1) / 2]); i = (i - 1) / 2)
    sim.events[i] = sim.events[(i - 1) / 2];
  sim.events[i] = e;
  return e;
}

static event *take_first_event(void) {
  event *first = sim.events[0], *last = sim.events[--sim.n_events];
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < sim.n_events; i = child) {
    if (child + 1 < sim.n_events && is_earlier(sim.events[child + 1], sim.events[child])) child++;
    if (!is_earlier(sim.events[child], last)) break;
    sim.events[i] = sim.events[child];
  }
  sim.events[i] = last;
  return first;
}

/* ---- the simulated network ------------------------------------------------------------------- */

static const char *const names[CLV_RREF_KINDS] = {"ACK",    "KEEP",  "USE",   "FORK", "ACCEPT",
                                                  "DELETE", "RENEW", "FETCH", "VALUE"};

static void send_once(uint32_t from, uint32_t to, const clv_rref_message *m) {
  event *e =
      add_event(sim.now_ns + sim.min_delay_ns + draw_below(sim.delay_spread_ns), MESSAGE, to);
  e->sender = from;
  e->m = *m;
  if (m->tensor) clv_tensor_ref(m->tensor);
  if (m->failure) {
    e->failure = *m->failure;
    e->m.failure = &e->failure;
  }
}

static void check_value(uint32_t to, const clv_rref_message *m) {
  const handle *h = find_handle(m->fork);
  bool has_handle = h && h->node == to && sim.objects[h->object].ref == m->ref;
  if (m->tensor && !has_handle)
    report_fault("node %u was sent the value of %" PRIx64 " without a handle", to, m->ref);
}

static void on_send(uint32_t from, const clv_rref_result *r) {
  uint32_t to = r->to;
  const clv_rref_message *m = &r->message;
  sim.n_messages++;
  if (m->kind == CLV_RREF_VALUE) check_value(to, m);
  bool is_dropped = happens_with_percent(sim.drop_percent);
  print_trace("%u -> %u %s %" PRIu64 " ref %" PRIx64 " fork %" PRIx64 "%s%s", from, to,
              names[m->kind], m->number, m->ref, m->fork, m->failure ? " failure" : "",
              is_dropped ? " (lost)" : "");
  sim.n_dropped += is_dropped;
  if (sim.is_silent[from] || sim.is_dead[from]) return;
  if (!is_dropped) send_once(from, to, m);
  if (!happens_with_percent(sim.duplicate_percent)) return;
  sim.n_duplicated++;
  send_once(from, to, m);
}

/* ---- results that the tables of the nodes return --------------------------------------------- */

static void settle_object(object *o) {
  o->is_settled = true;
  o->settled_at_ns = sim.now_ns;
  clv_rrefs *t = sim.node_tables[o->owner];
  if (o->ends_in_failure) {
    clv_rrefs_settle_entry(t, o->ref, NULL, &o->failure, sim.now_ns);
    return;
  }
  clv_tensor *v;
  clv_shape scalar = {0};
  clv_err err;
  if (clv_tensor_new(CLV_I64, &scalar, &v, &err) != CLV_OK) exit(2);
  *(int64_t *)v->data = o->settled_value;
  clv_rrefs_settle_entry(t, o->ref, v, NULL, sim.now_ns);
  clv_tensor_unref(v);
}

/* Draws when the value of a new object is settled: at once, while the program runs, or after
 * it. */
static void on_create(uint32_t node, const clv_rref_result *r) {
  object *o = find_object(r->handle.ref);
  (void)node;
  o->is_known_to_owner = true;
  if (happens_with_percent(30))
    settle_object(o);
  else
    add_event(sim.now_ns + draw_below(happens_with_percent(20) ? 20000 * MS : 1000 * MS), SETTLE,
              (uint32_t)(o - sim.objects));
}

static void release_handle(handle *h) {
  clv_err err;
  h->state = RELEASED;
  h->is_fetching = false;
  print_trace("%u releases %" PRIx64, h->node, h->fork_id);
  if (clv_rrefs_release_handle(sim.node_tables[h->node], h->fork_id, sim.now_ns, &err) != CLV_OK)
    report_fault("release of %" PRIx64 " at %u: %s", h->fork_id, h->node, err.text);
}

static void on_used(uint32_t node, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  handle *h = find_handle(u->fork);
  if (!h || h->node != node || sim.objects[h->object].ref != u->ref) {
    report_fault("node %u was passed a handle %" PRIx64 " that nobody passed to it", node, u->fork);
    return;
  }
  /* A late USE, the message that passes a reference, may arrive after its sender gave up on a node
   * that had been silent. */
  bool arrives_late = h->state == NEVER_ARRIVED && h->is_lost;
  if (h->state != PROMISED && !arrives_late) report_fault("handle %" PRIx64 " came twice", u->fork);
  h->state = ARRIVED;
}

static void on_joined(uint32_t node, const clv_rref_result *r) {
  const clv_rref_failure *why = r->failure;
  handle *h = find_handle(r->handle.fork);
  (void)node;
  if (why && !h->is_lost) report_fault("handle %" PRIx64 " was refused: %s", h->fork_id, why->text);
}

static void on_unused(uint32_t node, const clv_rref_result *r) {
  handle *h = find_handle(r->handle.fork);
  /* true: the node was silent, so it may not have heard that other nodes were lost */
  bool is_excused = h->is_lost || node == sim.faulty_node;
  if (!is_excused)
    report_fault("handle %" PRIx64 " did not arrive: %s", h->fork_id, r->failure->text);
  if (h->state == PROMISED) h->state = NEVER_ARRIVED;
}

static void check_failure(const handle *h, const clv_rref_failure *why) {
  const object *o = &sim.objects[h->object];
  bool is_stored =
      o->ends_in_failure && why->code == o->failure.code && strcmp(why->text, o->failure.text) == 0;
  bool is_excused = h->is_lost && (why->code == CLV_NOT_FOUND || why->code == CLV_UNAVAILABLE);
  sim.n_errors++;
  if (!is_stored && !is_excused)
    report_fault("fetch by handle %" PRIx64 " of %" PRIx64 " gave: %s", h->fork_id, o->ref,
                 why->text);
}

/* Checks that a fetch in an undisturbed run took no longer than eight of the slowest trips of a
 * message: the trips of KEEP, USE, FORK, FETCH, VALUE and of their answers. */
static void check_fetch_time(const handle *h, const object *o) {
  uint64_t begin = CLV_MAX(h->fetch_sent_ns, o->settled_at_ns),
           trips = 8 * (sim.min_delay_ns + sim.delay_spread_ns);
  bool is_undisturbed = !sim.drop_percent && !sim.has_node_deaths && trips < lease_ns / 8;
  if (is_undisturbed && sim.now_ns > begin + trips)
    report_fault("fetch by handle %" PRIx64 " took %.3f s", h->fork_id,
                 (double)(sim.now_ns - begin) / 1e9);
}

static void on_fetched(uint32_t node, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  handle *h = find_handle(u->fork);
  const object *o = &sim.objects[h->object];
  (void)node;
  if (!h->is_fetching) report_fault("handle %" PRIx64 " got what it had not asked for", u->fork);
  h->is_fetching = false;
  sim.n_fetched++;
  check_fetch_time(h, o);
  if (r->failure) {
    check_failure(h, r->failure);
  } else if (o->ends_in_failure || !o->is_settled ||
             *(int64_t *)r->tensor->data != o->settled_value) {
    report_fault("fetch by handle %" PRIx64 " gave another value", u->fork);
  }
}

static void on_freed(uint32_t node, const clv_rref_result *r) {
  uint64_t ref = r->handle.ref;
  const object *o = find_object(ref);
  (void)node;
  print_trace("%u frees %" PRIx64, o->owner, ref);
  for (uint32_t i = 0; i < sim.n_handles; i++) {
    const handle *h = &sim.handles[i];
    bool is_open = h->state == PROMISED || h->state == ARRIVED;
    if (is_open && !h->is_lost && sim.objects[h->object].ref == ref)
      report_fault("%" PRIx64 " was freed although node %u has handle %" PRIx64, ref, h->node,
                   h->fork_id);
  }
}

/* Handles all results of a node, and the results that these cause. Called after each input to the
 * node. */
static void take_results(uint32_t node) {
  static void (*const on[CLV_RREF_RESULTS])(uint32_t, const clv_rref_result *) = {
      [CLV_RREF_RESULT_SEND] = on_send,     [CLV_RREF_RESULT_CREATE] = on_create,
      [CLV_RREF_RESULT_USED] = on_used,     [CLV_RREF_RESULT_JOINED] = on_joined,
      [CLV_RREF_RESULT_UNUSED] = on_unused, [CLV_RREF_RESULT_FETCHED] = on_fetched,
      [CLV_RREF_RESULT_FREED] = on_freed};
  clv_rref_result r;
  while (sim.node_tables[node] && clv_rrefs_next_result(sim.node_tables[node], &r))
    on[r.kind](node, &r);
}

/* ---- operations of the random program -------------------------------------------------------- */

static object *create_object(uint32_t maker, uint32_t owner) {
  object *o = &sim.objects[sim.n_objects++];
  *o = (object){.ref = new_id(maker),
                .access_key = draw_number() | 1,
                .creator = maker,
                .owner = owner,
                .ends_in_failure = happens_with_percent(15),
                .settled_value = (int64_t)draw_number(),
                .is_lost = is_faulty_now(maker) || is_faulty_now(owner)};
  o->failure.code = (clv_code)(1 + draw_below(16));
  snprintf(o->failure.text, sizeof o->failure.text, "the error of %" PRIx64, o->ref);
  return o;
}

static handle *create_handle(object *o, uint32_t maker, uint32_t node, const handle *parent) {
  handle *h = &sim.handles[sim.n_handles++];
  *h = (handle){.fork_id = new_id(maker),
                .object = (uint32_t)(o - sim.objects),
                .node = node,
                .passed_by = maker,
                .may_release_unfetched = happens_with_percent(30)};
  h->is_lost =
      o->is_lost || is_faulty_now(node) || is_faulty_now(maker) || (parent && parent->is_lost);
  return h;
}

static uint32_t draw_living_node(void) {
  uint32_t node = (uint32_t)draw_below(sim.n_nodes);
  return sim.is_dead[node] ? (node + 1) % sim.n_nodes : node;
}

static void do_create_own(void) {
  clv_err err;
  uint32_t node = draw_living_node();
  object *o = create_object(node, node);
  handle *h = create_handle(o, node, node, NULL);
  clv_rref_new_ids b = {o->ref, h->fork_id, o->access_key};
  clv_tensor *v;
  clv_shape scalar = {0};
  o->ends_in_failure = false;
  o->is_known_to_owner = o->is_settled = true;
  o->settled_at_ns = sim.now_ns;
  h->state = ARRIVED;
  if (clv_tensor_new(CLV_I64, &scalar, &v, &err) != CLV_OK) exit(2);
  *(int64_t *)v->data = o->settled_value;
  print_trace("%u owns %" PRIx64 ", handle %" PRIx64, node, o->ref, h->fork_id);
  if (clv_rrefs_new_owned(sim.node_tables[node], &b, v, sim.now_ns, &err) != CLV_OK)
    report_fault("own: %s", err.text);
  clv_tensor_unref(v);
}

static void do_create_at_owner(void) {
  clv_err err;
  uint32_t node = draw_living_node(), owner = (uint32_t)draw_below(sim.n_nodes);
  object *o = create_object(node, owner);
  handle *h = create_handle(o, node, node, NULL);
  clv_rref_new_ids b = {o->ref, h->fork_id, o->access_key};
  h->state = ARRIVED;
  print_trace("%u keeps %" PRIx64 " at %u, handle %" PRIx64, node, o->ref, owner, h->fork_id);
  if (clv_rrefs_new_kept(sim.node_tables[node], &b, owner, 1, o->ref, sim.now_ns, &err) != CLV_OK)
    report_fault("keep: %s", err.text);
}

/* Returns a random handle that is in the given state at a living node; NULL if a few tries find
 * none. */
static handle *draw_handle(handle_state state) {
  for (int i = 0; i < 8 && sim.n_handles; i++) {
    handle *h = &sim.handles[draw_below(sim.n_handles)];
    if (h->state == state && !sim.is_dead[h->node]) return h;
  }
  return NULL;
}

static bool is_excusable_error(const handle *h, const clv_err *err) {
  return h->is_lost && (err->code == CLV_NOT_FOUND || err->code == CLV_UNAVAILABLE);
}

static void do_pass_reference(void) {
  clv_err err;
  handle *h = draw_handle(ARRIVED);
  if (!h) return;
  object *o = &sim.objects[h->object];
  uint32_t to = happens_with_percent(25) ? o->owner : (uint32_t)draw_below(sim.n_nodes);
  handle *child = create_handle(o, h->node, to, h);
  clv_rref_pass_args what = {child->fork_id, to, 0, 0};
  print_trace("%u passes %" PRIx64 " to %u as %" PRIx64, h->node, h->fork_id, to, child->fork_id);
  if (clv_rrefs_pass_handle(sim.node_tables[h->node], h->fork_id, &what, sim.now_ns, &err) ==
      CLV_OK)
    return;
  child->state = NEVER_ARRIVED;
  if (!is_excusable_error(h, &err)) report_fault("pass of %" PRIx64 ": %s", h->fork_id, err.text);
}

static void do_fetch_value(void) {
  clv_err err;
  handle *h = draw_handle(ARRIVED);
  if (!h) return;
  print_trace("%u fetches %" PRIx64, h->node, h->fork_id);
  bool was_fetching = h->is_fetching;
  h->is_fetching = true;
  if (!was_fetching) h->fetch_sent_ns = sim.now_ns;
  if (clv_rrefs_fetch_value(sim.node_tables[h->node], h->fork_id, sim.now_ns, &err) == CLV_OK)
    return;
  h->is_fetching = was_fetching;
  if (!is_excusable_error(h, &err)) report_fault("fetch of %" PRIx64 ": %s", h->fork_id, err.text);
}

static void do_release_handle(void) {
  handle *h = draw_handle(ARRIVED);
  if (h) release_handle(h);
}

/* Fetches by a released handle, releases it again or passes it on. Each must fail with
 * CLV_NOT_FOUND. */
static void do_use_released_handle(void) {
  clv_err err = {0};
  handle *h = draw_handle(RELEASED);
  if (!h) return;
  clv_rrefs *t = sim.node_tables[h->node];
  clv_rref_pass_args what = {new_id(h->node), 0, 0, 0};
  uint64_t how = draw_below(3);
  clv_code code = how == 0   ? clv_rrefs_fetch_value(t, h->fork_id, sim.now_ns, &err)
                  : how == 1 ? clv_rrefs_release_handle(t, h->fork_id, sim.now_ns, &err)
                             : clv_rrefs_pass_handle(t, h->fork_id, &what, sim.now_ns, &err);
  if (code != CLV_NOT_FOUND)
    report_fault("use after release of %" PRIx64 " gave %d", h->fork_id, (int)code);
}

/* Sends a forged frame as an additional node, which has no reference and to which no other node
 * sends. The frame has the fork of another node, an unknown id or a wrong key. */
static void do_forge_frame(void) {
  static const clv_rref_kind kinds[] = {CLV_RREF_FETCH,  CLV_RREF_FETCH,  CLV_RREF_FORK,
                                        CLV_RREF_DELETE, CLV_RREF_ACCEPT, CLV_RREF_VALUE,
                                        CLV_RREF_ACK,    CLV_RREF_RENEW};
  if (!sim.n_handles) return;
  const handle *h = &sim.handles[draw_below(sim.n_handles)];
  const object *o = &sim.objects[h->object];
  clv_rref_message m = {.kind = kinds[draw_below(CLV_COUNT(kinds))],
                        .number = ++sim.n_forged_frames,
                        .ref = happens_with_percent(80) ? o->ref : draw_number(),
                        .fork = happens_with_percent(80) ? h->fork_id : draw_number(),
                        .key = draw_number(),
                        .is_before_join = happens_with_percent(50)};
  if (m.kind == CLV_RREF_VALUE) m.failure = &o->failure;
  send_once(sim.n_nodes, happens_with_percent(80) ? o->owner : draw_living_node(), &m);
}

static void do_random_operation(void) {
  static void (*const operations[])(void) = {
      do_create_own,     do_create_at_owner, do_create_at_owner, do_pass_reference,
      do_pass_reference, do_pass_reference,  do_fetch_value,     do_fetch_value,
      do_fetch_value,    do_release_handle,  do_release_handle,  do_use_released_handle,
      do_forge_frame};
  bool is_full = sim.n_objects == MAX_OBJECTS || sim.n_handles == MAX_HANDLES;
  sim.n_operations++;
  if (!is_full) operations[draw_below(CLV_COUNT(operations))]();
}

/* Ends the random program: releases its handles, except those that must get a value first. */
static void release_all_handles(void) {
  for (uint32_t i = 0; i < sim.n_handles; i++) {
    handle *h = &sim.handles[i];
    if (!sim.is_dead[h->node] && h->state == ARRIVED &&
        (h->may_release_unfetched || !h->is_fetching))
      release_handle(h);
  }
}

/* ---- faults of nodes ------------------------------------------------------------------------- */

/* Marks what a fault of the node may lose: the objects that the node owns or whose owner has not
 * heard of them, and the handles that are at the node, that refer to a lost object or that the node
 * is passing on. */
static void mark_objects_lost(uint32_t node) {
  for (uint32_t i = 0; i < sim.n_objects; i++) {
    object *o = &sim.objects[i];
    o->is_lost |= o->owner == node || (o->creator == node && !o->is_known_to_owner);
  }
  for (uint32_t i = 0; i < sim.n_handles; i++) {
    handle *h = &sim.handles[i];
    bool is_in_flight = h->state == PROMISED && h->passed_by == node;
    h->is_lost |= h->node == node || sim.objects[h->object].is_lost || is_in_flight;
  }
}

static void cut_off_node(uint32_t node) {
  sim.n_deaths++;
  sim.is_silent[node] = true;
  print_trace("node %u is cut off", node);
  /* a node that is silent only for a short time loses nothing, because the other nodes do not
   * notice it */
  if (node != sim.faulty_node) return;
  mark_objects_lost(node);
  if (sim.faulty_until_ns != UINT64_MAX) return;
  sim.is_dead[node] = true;
  clv_rrefs_free(sim.node_tables[node]);
  sim.node_tables[node] = NULL;
}

/* Plans the fault of a run: a node dies, or is silent for longer than the lease or for a shorter
 * time; or none. */
static void plan_fault(void) {
  uint64_t begin = draw_below(sim.end_ns), kind = draw_below(10);
  uint32_t node = (uint32_t)draw_below(sim.n_nodes);
  sim.faulty_node = MAX_NODES;
  sim.faulty_from_ns = sim.faulty_until_ns = 0;
  sim.has_node_deaths = kind <= 3;
  if (kind > 3) return;
  uint64_t until =
      begin + (kind == 3 ? draw_below(lease_ns / 4) : lease_ns * 3 / 2 + draw_below(lease_ns));
  add_event(begin, CUT, node);
  if (kind > 1) add_event(until, HEAL, node);
  if (kind == 3) return;
  sim.faulty_node = node;
  sim.faulty_from_ns = begin;
  sim.faulty_until_ns = kind > 1 ? until + lease_ns : UINT64_MAX;
}

/* ---- one run of a seed ----------------------------------------------------------------------- */

static void open_node(uint32_t i) {
  clv_err err;
  /* n_nodes + 1: do_forge_frame sends frames as an additional node */
  clv_rrefs_options o = {
      .n_nodes = sim.n_nodes + 1, .self = i, .lease_ns = lease_ns, .retry_ns = retry_ns};
  if (clv_pool_new((size_t)1 << 30, 1 << 20, &sim.node_pools[i], &err) != CLV_OK) exit(2);
  o.pool = sim.node_pools[i];
  if (clv_rrefs_new(&o, &sim.node_tables[i], &err) != CLV_OK) exit(2);
  sim.node_tables[i]->visits = &sim.cell_visits;
  sim.tick_due_ns[i] = UINT64_MAX;
}

static void plan_run(void) {
  static const uint32_t drop_percents[] = {0, 0, 5, 20, 35}, duplicate_percents[] = {0, 0, 10, 30};
  static const uint64_t spreads[] = {1, 20, 200, 2000};
  sim.n_nodes = 3 + (uint32_t)draw_below(MAX_NODES - 2);
  sim.drop_percent = drop_percents[draw_below(CLV_COUNT(drop_percents))];
  sim.duplicate_percent = duplicate_percents[draw_below(CLV_COUNT(duplicate_percents))];
  sim.min_delay_ns = (1 + draw_below(5)) * MS;
  sim.delay_spread_ns = spreads[draw_below(CLV_COUNT(spreads))] * MS;
  /* some programs last for several leases */
  sim.end_ns = (500 + draw_below(happens_with_percent(20) ? 100000 : 10000)) * MS;
  for (uint32_t i = 0; i < sim.n_nodes; i++) open_node(i);
  uint64_t n = 10 + draw_below(120);
  for (uint64_t i = 0; i < n; i++) add_event(draw_below(sim.end_ns), OPERATION, 0);
  add_event(sim.end_ns, PROGRAM_END, 0);
  plan_fault();
}

static void schedule_tick(uint32_t node) {
  if (sim.is_dead[node]) return;
  uint64_t due = clv_rrefs_due_ns(sim.node_tables[node]);
  if (due == UINT64_MAX || due >= sim.tick_due_ns[node]) return;
  sim.tick_due_ns[node] = CLV_MAX(due, sim.now_ns);
  add_event(sim.tick_due_ns[node], TICK, node);
}

static void take_results_and_schedule_ticks(void) {
  for (uint32_t i = 0; i < sim.n_nodes; i++) take_results(i);
  for (uint32_t i = 0; i < sim.n_nodes; i++) schedule_tick(i);
}

static void handle_event(event *e) {
  uint32_t node = e->node;
  bool is_away =
      e->kind == MESSAGE && (node == sim.n_nodes || sim.is_dead[node] || sim.is_silent[node]);
  if (e->kind == MESSAGE && !is_away) {
    clv_rrefs_receive_message(sim.node_tables[node], e->sender, &e->m, sim.now_ns);
  } else if (e->kind == TICK && !sim.is_dead[node] && sim.tick_due_ns[node] == e->at) {
    sim.tick_due_ns[node] = UINT64_MAX;
    clv_rrefs_tick(sim.node_tables[node], sim.now_ns);
  } else if (e->kind == OPERATION) {
    do_random_operation();
  } else if (e->kind == SETTLE && !sim.is_dead[sim.objects[node].owner]) {
    settle_object(&sim.objects[node]);
  } else if (e->kind == CUT) {
    cut_off_node(node);
  } else if (e->kind == HEAL) {
    print_trace("node %u is back", node);
    sim.is_silent[node] = false;
  }
  clv_tensor_unref(e->m.tensor);
  take_results_and_schedule_ticks();
}

static void check_final_state(void) {
  for (uint32_t i = 0; i < sim.n_nodes; i++) {
    clv_rref_counts c;
    if (sim.is_dead[i]) continue;
    clv_rrefs_count(sim.node_tables[i], &c);
    if (c.n_entries || c.n_forks || c.n_handles || c.n_children || c.n_parked || c.n_unacknowledged)
      report_fault(
          "node %u is left with %u references, %u users, %u handles, %u being passed, %u "
          "parked, %u messages",
          i, c.n_entries, c.n_forks, c.n_handles, c.n_children, c.n_parked, c.n_unacknowledged);
  }
  for (uint32_t i = 0; i < sim.n_handles; i++) {
    const handle *h = &sim.handles[i];
    bool is_open = h->state == PROMISED || h->state == ARRIVED;
    if (is_open && !h->is_lost)
      report_fault("handle %" PRIx64 " of node %u never came, or never got its value", h->fork_id,
                   h->node);
  }
}

/* Returns how many cells of the state tables were visited, and in *ret_all how many there are.
 * Fails if an event came in a state that excludes it. */
static uint32_t count_visited_cells(uint32_t *ret_all) {
  uint32_t n_reached = 0;
  for (clv_rref_machine m = 0; m < RREF_MACHINES; m++)
    for (uint8_t s = 0; s < clv_rref_n_states(m); s++)
      for (uint8_t f = 0; f < clv_rref_n_events(m); f++) {
        bool is_impossible = clv_rref_cell_of(m, s, f)->rule == RREF_IMPOSSIBLE,
             is_seen = sim.cell_visits.n[m][s][f];
        if (is_impossible && is_seen)
          report_fault("machine %d: fact %u came in state %u", (int)m, f, s);
        *ret_all += !is_impossible;
        n_reached += is_seen;
      }
  return n_reached;
}

static void free_run(void) {
  while (sim.n_events) {
    event *e = take_first_event();
    clv_tensor_unref(e->m.tensor);
    free(e);
  }
  for (uint32_t i = 0; i < sim.n_nodes; i++) {
    clv_rrefs_free(sim.node_tables[i]);
    clv_pool_unref(sim.node_pools[i]);
    sim.node_tables[i] = NULL;
  }
}

static bool run_seed(uint64_t seed) {
  sim.seed = seed;
  sim.rng_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  sim.now_ns = sim.sequence = 0;
  sim.has_failed = false;
  sim.n_forged_frames = 0;
  sim.n_objects = sim.n_handles = sim.n_events = 0;
  memset(sim.last_ids, 0, sizeof sim.last_ids);
  memset(sim.is_dead, 0, sizeof sim.is_dead);
  memset(sim.is_silent, 0, sizeof sim.is_silent);
  plan_run();
  uint64_t last =
      CLV_MAX(sim.end_ns, sim.faulty_until_ns == UINT64_MAX ? 0 : sim.faulty_until_ns) + grace_ns;
  while (sim.n_events && sim.events[0]->at <= last && !sim.has_failed) {
    event *e = take_first_event();
    sim.now_ns = e->at;
    handle_event(e);
    free(e);
    if (sim.now_ns >= sim.end_ns) release_all_handles();
    take_results_and_schedule_ticks();
  }
  uint32_t ignored = 0;
  check_final_state();
  (void)count_visited_cells(&ignored);
  free_run();
  return !sim.has_failed;
}

int main(int argc, char **argv) {
  uint64_t n_runs = 300, first_seed = 1;
  const char *n_runs_text = getenv("CLV_TEST_REFERENCES");
  if (n_runs_text) n_runs = strtoull(n_runs_text, NULL, 10);
  for (int i = 1; i < argc; i++) {
    bool has_value = i + 1 < argc;
    if (strcmp(argv[i], "--runs") == 0 && has_value)
      n_runs = strtoull(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--seed") == 0 && has_value)
      first_seed = strtoull(argv[++i], NULL, 10), n_runs = 1;
    else if (strcmp(argv[i], "--trace") == 0)
      sim.prints_trace = true;
    else
      return fprintf(stderr, "usage: references [--runs N] [--seed S] [--trace]\n"), 64;
  }
  uint64_t begin = clv_now_ns(), n_failures = 0, seed = first_seed;
  for (; seed < first_seed + n_runs && n_failures < 10; seed++) {
    if (run_seed(seed)) continue;
    n_failures++;
    printf("again: %s --seed %" PRIu64 " --trace\n", argv[0], seed);
  }
  double seconds = (double)(clv_now_ns() - begin) / 1e9;
  printf("%" PRIu64 " runs (%.0f a second), %" PRIu64 " failed: %" PRIu64 " operations, %" PRIu64
         " messages, %" PRIu64 " lost, %" PRIu64 " doubled, %" PRIu64 " fetches, %" PRIu64
         " of them errors, %" PRIu64 " nodes lost\n",
         seed - first_seed, (double)(seed - first_seed) / seconds, n_failures, sim.n_operations,
         sim.n_messages, sim.n_dropped, sim.n_duplicated, sim.n_fetched, sim.n_errors,
         sim.n_deaths);
  uint32_t n_cells = 0, n_reached = count_visited_cells(&n_cells);
  printf("%u of %u rows of the tables were used\n", n_reached, n_cells);
  printf("%s references\n", n_failures ? "not ok" : "ok");
  return n_failures != 0;
}
