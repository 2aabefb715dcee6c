/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of references over a simulated network of 3 to 5 nodes, in one process and on a
 * clock of its own. Everything follows from a seed: the program, what the network drops, doubles,
 * delays and so reorders, whether a node dies or falls silent, and when values are there.
 *
 *   references [--runs N] [--seed S] [--trace]
 *
 * Beside the nodes stands a model that knows every handle anywhere. It holds them to:
 *   no early free  an entry goes only when no handle of it is left, wherever, be it on its way
 *   right values   a fetch gives the value, or the error stored in its place, and once
 *   in time        where nothing is lost a fetch takes a few trips, not until something is said
 *   again no oracle      who has no handle gets "not found" and never a value
 *   no leak        when all handles are released, every table is empty within the lease
 *   the tables     no fact comes in a state for which they have no row
 * Of a handle that came by way of a node that died or was silent for a lease (`lost`) the first two
 * are not asked, but what it gets is never wrong.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/reference/rref_int.h"

enum { MAX_NODES = 5, MAX_OBJECTS = 512, MAX_HANDLES = 4096, MAX_EVENTS = 1 << 16 };

#define MS UINT64_C(1000000)
static const uint64_t lease = 20000 * MS, retry = 50 * MS;
/* Time to wait at the end: a lease for references of the lost node, a second one for those that
 * wait for the first, and a third so that each node's periodic check has run. */
static const uint64_t grace_ns = 3 * 20000 * MS;

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct object {
  uint64_t ref, key;
  uint32_t maker, owner;
  bool fails, made, settled, lost; /* made: the owner knows the object */
  clv_rref_failure failure;
  int64_t number;
  uint64_t settled_at;
} object;

typedef enum handle_state { PROMISED, HERE, RELEASED, NEVER_CAME } handle_state;

typedef struct handle {
  uint64_t fork;
  uint32_t object, node, from; /* from: node that passed the reference */
  handle_state state;
  bool lost, fetching;
  uint64_t asked_at;
  bool hasty; /* true: the program releases it at its end even if its value has not arrived */
} handle;

typedef enum event_kind {
  MESSAGE,
  TICK,
  OPERATION,
  SETTLE,
  CUT,
  HEAL,
  /* end of the program: the owner must then have no references but handles, which the test
   * releases */
  END,
} event_kind;

typedef struct event {
  uint64_t at, order;
  event_kind kind;
  uint32_t node, from; /* SETTLE: node is the object's number */
  clv_rref_message m;
  clv_rref_failure failure;
} event;

static struct {
  uint64_t seed, random, now, order, end;
  bool trace, failed;
  uint32_t n_nodes;
  clv_rrefs *nodes[MAX_NODES];
  clv_pool *pools[MAX_NODES];
  uint64_t ids[MAX_NODES], tick_at[MAX_NODES];
  bool dead[MAX_NODES + 1], silent[MAX_NODES + 1];
  bool deaths_planned;
  uint32_t bad;                 /* node that dies, or is silent for longer than a lease */
  uint64_t bad_from, bad_until; /* from..until in ns: all messages from and to `bad` are lost */
  /* Message faults in percent, and delays in nanoseconds. */
  uint32_t drop, twice;
  uint64_t least, spread;
  object objects[MAX_OBJECTS];
  handle handles[MAX_HANDLES];
  uint32_t n_objects, n_handles;
  event *events[MAX_EVENTS];
  uint32_t n_events;
  clv_rref_visits visits; /* cells of the state tables that all runs visited */
  uint64_t lies, messages, dropped, doubled, fetched, errors, deaths, operations;
} w;

static void complain(const char *fmt, ...) CLV_PRINTF(1, 2);
static void complain(const char *fmt, ...) {
  if (w.failed) return;
  w.failed = true;
  printf("seed %" PRIu64 " at %.3f s: ", w.seed, (double)w.now / 1e9);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

static void trace(const char *fmt, ...) CLV_PRINTF(1, 2);
static void trace(const char *fmt, ...) {
  if (!w.trace) return;
  printf("%10.3f ms  ", (double)w.now / 1e6);
  va_list args;
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("\n");
}

/* xorshift64* (Vigna 2016) */
static uint64_t draw(void) {
  w.random ^= w.random >> 12;
  w.random ^= w.random << 25;
  w.random ^= w.random >> 27;
  return w.random * UINT64_C(0x2545f4914f6cdd1d);
}
static uint64_t below(uint64_t n) { return n ? (draw() >> 16) % n : 0; }
static bool chance(uint32_t percent) { return below(100) < percent; }

static uint64_t new_id(uint32_t node) { return ((uint64_t)(node + 1) << 48) | ++w.ids[node]; }

static object *object_of(uint64_t ref) {
  for (uint32_t i = 0; i < w.n_objects; i++)
    if (w.objects[i].ref == ref) return &w.objects[i];
  return NULL;
}

static handle *handle_of(uint64_t fork) {
  for (uint32_t i = 0; i < w.n_handles; i++)
    if (w.handles[i].fork == fork) return &w.handles[i];
  return NULL;
}

static bool bad_now(uint32_t node) {
  return node == w.bad && w.now >= w.bad_from && w.now < w.bad_until;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool sooner(const event *a, const event *b) {
  return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static event *push(uint64_t at, event_kind kind, uint32_t node) {
  if (w.n_events == MAX_EVENTS) {
    complain("more than %d events", MAX_EVENTS);
    exit(2);
  }
  event *e = calloc(1, sizeof *e);
  *e = (event){.at = at, .order = ++w.order, .kind = kind, .node = node};
  uint32_t i = w.n_events++;
  for (; i && sooner(e, w.events[(i - 1) / 2]); i = (i - 1) / 2)
    w.events[i] = w.events[(i - 1) / 2];
  w.events[i] = e;
  return e;
}

static event *pop(void) {
  event *first = w.events[0], *last = w.events[--w.n_events];
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < w.n_events; i = child) {
    if (child + 1 < w.n_events && sooner(w.events[child + 1], w.events[child])) child++;
    if (!sooner(w.events[child], last)) break;
    w.events[i] = w.events[child];
  }
  w.events[i] = last;
  return first;
}

/* ---- the network ----------------------------------------------------------------------------- */

static const char *const names[CLV_RREF_KINDS] = {"ACK",    "KEEP",  "USE",   "FORK", "ACCEPT",
                                                  "DELETE", "RENEW", "FETCH", "VALUE"};

static void send_once(uint32_t from, uint32_t to, const clv_rref_message *m) {
  event *e = push(w.now + w.least + below(w.spread), MESSAGE, to);
  e->from = from;
  e->m = *m;
  if (m->tensor) clv_tensor_ref(m->tensor);
  if (m->failure) {
    e->failure = *m->failure;
    e->m.failure = &e->failure;
  }
}

static void check_value(uint32_t to, const clv_rref_message *m) {
  const handle *h = handle_of(m->fork);
  bool theirs = h && h->node == to && w.objects[h->object].ref == m->ref;
  if (m->tensor && !theirs)
    complain("node %u was sent the value of %" PRIx64 " without a handle", to, m->ref);
}

static void on_send(uint32_t from, const clv_rref_result *r) {
  uint32_t to = r->to;
  const clv_rref_message *m = &r->message;
  w.messages++;
  if (m->kind == CLV_RREF_VALUE) check_value(to, m);
  bool lose = chance(w.drop);
  trace("%u -> %u %s %" PRIu64 " ref %" PRIx64 " fork %" PRIx64 "%s%s", from, to, names[m->kind],
        m->number, m->ref, m->fork, m->failure ? " failure" : "", lose ? " (lost)" : "");
  w.dropped += lose;
  if (w.silent[from] || w.dead[from]) return;
  if (!lose) send_once(from, to, m);
  if (!chance(w.twice)) return;
  w.doubled++;
  send_once(from, to, m);
}

/* ---- what comes of it ------------------------------------------------------------------------ */

static void settle(object *o) {
  o->settled = true;
  o->settled_at = w.now;
  clv_rrefs *t = w.nodes[o->owner];
  if (o->fails) {
    clv_rrefs_settle_entry(t, o->ref, NULL, &o->failure, w.now);
    return;
  }
  clv_tensor *v;
  clv_shape scalar = {0};
  clv_err err;
  if (clv_tensor_new(CLV_I64, &scalar, &v, &err) != CLV_OK) exit(2);
  *(int64_t *)v->data = o->number;
  clv_rrefs_settle_entry(t, o->ref, v, NULL, w.now);
  clv_tensor_unref(v);
}

/* Draws when the value of a new object is settled: at once, while the program runs, or after it. */
static void on_create(uint32_t node, const clv_rref_result *r) {
  object *o = object_of(r->handle.ref);
  (void)node;
  o->made = true;
  if (chance(30))
    settle(o);
  else
    push(w.now + below(chance(20) ? 20000 * MS : 1000 * MS), SETTLE, (uint32_t)(o - w.objects));
}

static void release(handle *h) {
  clv_err err;
  h->state = RELEASED;
  h->fetching = false;
  trace("%u releases %" PRIx64, h->node, h->fork);
  if (clv_rrefs_release_handle(w.nodes[h->node], h->fork, w.now, &err) != CLV_OK)
    complain("release of %" PRIx64 " at %u: %s", h->fork, h->node, err.text);
}

static void on_used(uint32_t node, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  handle *h = handle_of(u->fork);
  if (!h || h->node != node || w.objects[h->object].ref != u->ref) {
    complain("node %u was passed a handle %" PRIx64 " that nobody passed to it", node, u->fork);
    return;
  }
  /* The last USE may arrive after its sender gave up on a node that had been silent. */
  bool after_all = h->state == NEVER_CAME && h->lost;
  if (h->state != PROMISED && !after_all) complain("handle %" PRIx64 " came twice", u->fork);
  h->state = HERE;
}

static void on_joined(uint32_t node, const clv_rref_result *r) {
  const clv_rref_failure *why = r->failure;
  handle *h = handle_of(r->handle.fork);
  (void)node;
  if (why && !h->lost) complain("handle %" PRIx64 " was refused: %s", h->fork, why->text);
}

static void on_unused(uint32_t node, const clv_rref_result *r) {
  handle *h = handle_of(r->handle.fork);
  /* true: the node was silent, so it may not know the loss of others */
  bool excused = h->lost || node == w.bad;
  if (!excused) complain("handle %" PRIx64 " did not arrive: %s", h->fork, r->failure->text);
  if (h->state == PROMISED) h->state = NEVER_CAME;
}

static void check_failure(const handle *h, const clv_rref_failure *why) {
  const object *o = &w.objects[h->object];
  bool stored = o->fails && why->code == o->failure.code && strcmp(why->text, o->failure.text) == 0;
  bool excused = h->lost && (why->code == CLV_NOT_FOUND || why->code == CLV_UNAVAILABLE);
  w.errors++;
  if (!stored && !excused)
    complain("fetch by handle %" PRIx64 " of %" PRIx64 " gave: %s", h->fork, o->ref, why->text);
}

/* Checks the time from sending to arrival of KEEP, USE, FORK, FETCH, VALUE and their answers: each
 * has a limit. */
static void check_time(const handle *h, const object *o) {
  uint64_t begin = CLV_MAX(h->asked_at, o->settled_at), trips = 8 * (w.least + w.spread);
  bool calm = !w.drop && !w.deaths_planned && trips < lease / 8;
  if (calm && w.now > begin + trips)
    complain("fetch by handle %" PRIx64 " took %.3f s", h->fork, (double)(w.now - begin) / 1e9);
}

static void on_fetched(uint32_t node, const clv_rref_result *r) {
  const clv_rref_use *u = &r->handle;
  handle *h = handle_of(u->fork);
  const object *o = &w.objects[h->object];
  (void)node;
  if (!h->fetching) complain("handle %" PRIx64 " got what it had not asked for", u->fork);
  h->fetching = false;
  w.fetched++;
  check_time(h, o);
  if (r->failure) {
    check_failure(h, r->failure);
  } else if (o->fails || !o->settled || *(int64_t *)r->tensor->data != o->number) {
    complain("fetch by handle %" PRIx64 " gave another value", u->fork);
  }
}

static void on_freed(uint32_t node, const clv_rref_result *r) {
  uint64_t ref = r->handle.ref;
  const object *o = object_of(ref);
  (void)node;
  trace("%u frees %" PRIx64, o->owner, ref);
  for (uint32_t i = 0; i < w.n_handles; i++) {
    const handle *h = &w.handles[i];
    bool open = h->state == PROMISED || h->state == HERE;
    if (open && !h->lost && w.objects[h->object].ref == ref)
      complain("%" PRIx64 " was freed although node %u has handle %" PRIx64, ref, h->node, h->fork);
  }
}

/* Handles all results of a node after each input, and the results that these cause. */
static void take_results(uint32_t node) {
  static void (*const on[CLV_RREF_RESULTS])(uint32_t, const clv_rref_result *) = {
      [CLV_RREF_RESULT_SEND] = on_send,     [CLV_RREF_RESULT_CREATE] = on_create,
      [CLV_RREF_RESULT_USED] = on_used,     [CLV_RREF_RESULT_JOINED] = on_joined,
      [CLV_RREF_RESULT_UNUSED] = on_unused, [CLV_RREF_RESULT_FETCHED] = on_fetched,
      [CLV_RREF_RESULT_FREED] = on_freed};
  clv_rref_result r;
  while (w.nodes[node] && clv_rrefs_next_result(w.nodes[node], &r)) on[r.kind](node, &r);
}

/* ---- the program ----------------------------------------------------------------------------- */

static object *new_object(uint32_t maker, uint32_t owner) {
  object *o = &w.objects[w.n_objects++];
  *o = (object){.ref = new_id(maker),
                .key = draw() | 1,
                .maker = maker,
                .owner = owner,
                .fails = chance(15),
                .number = (int64_t)draw(),
                .lost = bad_now(maker) || bad_now(owner)};
  o->failure.code = (clv_code)(1 + below(16));
  snprintf(o->failure.text, sizeof o->failure.text, "the error of %" PRIx64, o->ref);
  return o;
}

static handle *new_handle(object *o, uint32_t maker, uint32_t node, const handle *parent) {
  handle *h = &w.handles[w.n_handles++];
  *h = (handle){.fork = new_id(maker),
                .object = (uint32_t)(o - w.objects),
                .node = node,
                .from = maker,
                .hasty = chance(30)};
  h->lost = o->lost || bad_now(node) || bad_now(maker) || (parent && parent->lost);
  return h;
}

static uint32_t living(void) {
  uint32_t node = (uint32_t)below(w.n_nodes);
  return w.dead[node] ? (node + 1) % w.n_nodes : node;
}

static void do_own(void) {
  clv_err err;
  uint32_t node = living();
  object *o = new_object(node, node);
  handle *h = new_handle(o, node, node, NULL);
  clv_rref_new_ids b = {o->ref, h->fork, o->key};
  clv_tensor *v;
  clv_shape scalar = {0};
  o->fails = false;
  o->made = o->settled = true;
  o->settled_at = w.now;
  h->state = HERE;
  if (clv_tensor_new(CLV_I64, &scalar, &v, &err) != CLV_OK) exit(2);
  *(int64_t *)v->data = o->number;
  trace("%u owns %" PRIx64 ", handle %" PRIx64, node, o->ref, h->fork);
  if (clv_rrefs_new_owned(w.nodes[node], &b, v, w.now, &err) != CLV_OK)
    complain("own: %s", err.text);
  clv_tensor_unref(v);
}

static void do_keep(void) {
  clv_err err;
  uint32_t node = living(), owner = (uint32_t)below(w.n_nodes);
  object *o = new_object(node, owner);
  handle *h = new_handle(o, node, node, NULL);
  clv_rref_new_ids b = {o->ref, h->fork, o->key};
  h->state = HERE;
  trace("%u keeps %" PRIx64 " at %u, handle %" PRIx64, node, o->ref, owner, h->fork);
  if (clv_rrefs_new_kept(w.nodes[node], &b, owner, 1, o->ref, w.now, &err) != CLV_OK)
    complain("keep: %s", err.text);
}

/* Returns a random handle in that state at a node that lives; NULL if a few tries find none. */
static handle *any_handle(handle_state state) {
  for (int i = 0; i < 8 && w.n_handles; i++) {
    handle *h = &w.handles[below(w.n_handles)];
    if (h->state == state && !w.dead[h->node]) return h;
  }
  return NULL;
}

static bool excusable(const handle *h, const clv_err *err) {
  return h->lost && (err->code == CLV_NOT_FOUND || err->code == CLV_UNAVAILABLE);
}

static void do_pass(void) {
  clv_err err;
  handle *h = any_handle(HERE);
  if (!h) return;
  object *o = &w.objects[h->object];
  uint32_t to = chance(25) ? o->owner : (uint32_t)below(w.n_nodes);
  handle *child = new_handle(o, h->node, to, h);
  clv_rref_pass_args what = {child->fork, to, 0, 0};
  trace("%u passes %" PRIx64 " to %u as %" PRIx64, h->node, h->fork, to, child->fork);
  if (clv_rrefs_pass_handle(w.nodes[h->node], h->fork, &what, w.now, &err) == CLV_OK) return;
  child->state = NEVER_CAME;
  if (!excusable(h, &err)) complain("pass of %" PRIx64 ": %s", h->fork, err.text);
}

static void do_fetch(void) {
  clv_err err;
  handle *h = any_handle(HERE);
  if (!h) return;
  trace("%u fetches %" PRIx64, h->node, h->fork);
  bool was = h->fetching;
  h->fetching = true;
  if (!was) h->asked_at = w.now;
  if (clv_rrefs_fetch_value(w.nodes[h->node], h->fork, w.now, &err) == CLV_OK) return;
  h->fetching = was;
  if (!excusable(h, &err)) complain("fetch of %" PRIx64 ": %s", h->fork, err.text);
}

static void do_release(void) {
  handle *h = any_handle(HERE);
  if (h) release(h);
}

/* Uses a released handle in every way. Each must fail with the same clear error. */
static void do_use_after(void) {
  clv_err err = {0};
  handle *h = any_handle(RELEASED);
  if (!h) return;
  clv_rrefs *t = w.nodes[h->node];
  clv_rref_pass_args what = {new_id(h->node), 0, 0, 0};
  uint64_t how = below(3);
  clv_code code = how == 0   ? clv_rrefs_fetch_value(t, h->fork, w.now, &err)
                  : how == 1 ? clv_rrefs_release_handle(t, h->fork, w.now, &err)
                             : clv_rrefs_pass_handle(t, h->fork, &what, w.now, &err);
  if (code != CLV_NOT_FOUND)
    complain("use after release of %" PRIx64 " gave %d", h->fork, (int)code);
}

/* Sends frames of a node that was passed no reference (an additional node that others only hear):
 * another node's fork, an unknown id, a wrong key. */
static void do_lie(void) {
  static const clv_rref_kind kinds[] = {CLV_RREF_FETCH,  CLV_RREF_FETCH,  CLV_RREF_FORK,
                                        CLV_RREF_DELETE, CLV_RREF_ACCEPT, CLV_RREF_VALUE,
                                        CLV_RREF_ACK,    CLV_RREF_RENEW};
  if (!w.n_handles) return;
  const handle *h = &w.handles[below(w.n_handles)];
  const object *o = &w.objects[h->object];
  clv_rref_message m = {.kind = kinds[below(CLV_COUNT(kinds))],
                        .number = ++w.lies,
                        .ref = chance(80) ? o->ref : draw(),
                        .fork = chance(80) ? h->fork : draw(),
                        .key = draw(),
                        .is_before_join = chance(50)};
  if (m.kind == CLV_RREF_VALUE) m.failure = &o->failure;
  send_once(w.n_nodes, chance(80) ? o->owner : living(), &m);
}

static void operate(void) {
  static void (*const operations[])(void) = {
      do_own,   do_keep,  do_keep,    do_pass,    do_pass,      do_pass, do_fetch,
      do_fetch, do_fetch, do_release, do_release, do_use_after, do_lie};
  bool full = w.n_objects == MAX_OBJECTS || w.n_handles == MAX_HANDLES;
  w.operations++;
  if (!full) operations[below(CLV_COUNT(operations))]();
}

/* Ends the program: releases the handles it still has; messages in flight arrive first. */
static void drain(void) {
  for (uint32_t i = 0; i < w.n_handles; i++) {
    handle *h = &w.handles[i];
    if (!w.dead[h->node] && h->state == HERE && (h->hasty || !h->fetching)) release(h);
  }
}

/* ---- accidents ------------------------------------------------------------------------------- */

/* Marks as lost what the bad node owned, used, or had passed on before the receiver told the
 * owner. */
static void lose_by(uint32_t node) {
  for (uint32_t i = 0; i < w.n_objects; i++) {
    object *o = &w.objects[i];
    o->lost |= o->owner == node || (o->maker == node && !o->made);
  }
  for (uint32_t i = 0; i < w.n_handles; i++) {
    handle *h = &w.handles[i];
    bool on_its_way = h->state == PROMISED && h->from == node;
    h->lost |= h->node == node || w.objects[h->object].lost || on_its_way;
  }
}

static void cut(uint32_t node) {
  w.deaths++;
  w.silent[node] = true;
  trace("node %u is cut off", node);
  if (node != w.bad) return; /* too short a silence for others to notice */
  lose_by(node);
  if (w.bad_until != UINT64_MAX) return;
  w.dead[node] = true;
  clv_rrefs_free(w.nodes[node]);
  w.nodes[node] = NULL;
}

/* Plans an accident: a node dies, is silent for longer than the lease, or for a part of it. */
static void plan_accident(void) {
  uint64_t begin = below(w.end), kind = below(10);
  uint32_t node = (uint32_t)below(w.n_nodes);
  w.bad = MAX_NODES;
  w.bad_from = w.bad_until = 0;
  w.deaths_planned = kind <= 3;
  if (kind > 3) return;
  uint64_t until = begin + (kind == 3 ? below(lease / 4) : lease * 3 / 2 + below(lease));
  push(begin, CUT, node);
  if (kind > 1) push(until, HEAL, node);
  if (kind == 3) return;
  w.bad = node;
  w.bad_from = begin;
  w.bad_until = kind > 1 ? until + lease : UINT64_MAX;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void new_node(uint32_t i) {
  clv_err err;
  clv_rrefs_options o = {.n_nodes = w.n_nodes + 1, /* and one more node, for do_lie */
                         .self = i,
                         .lease_ns = lease,
                         .retry_ns = retry};
  if (clv_pool_new((size_t)1 << 30, 1 << 20, &w.pools[i], &err) != CLV_OK) exit(2);
  o.pool = w.pools[i];
  if (clv_rrefs_new(&o, &w.nodes[i], &err) != CLV_OK) exit(2);
  w.nodes[i]->visits = &w.visits;
  w.tick_at[i] = UINT64_MAX;
}

static void plan(void) {
  static const uint32_t drops[] = {0, 0, 5, 20, 35}, twices[] = {0, 0, 10, 30};
  static const uint64_t spreads[] = {1, 20, 200, 2000};
  w.n_nodes = 3 + (uint32_t)below(MAX_NODES - 2);
  w.drop = drops[below(CLV_COUNT(drops))];
  w.twice = twices[below(CLV_COUNT(twices))];
  w.least = (1 + below(5)) * MS;
  w.spread = spreads[below(CLV_COUNT(spreads))] * MS;
  /* some programs last for several leases */
  w.end = (500 + below(chance(20) ? 100000 : 10000)) * MS;
  for (uint32_t i = 0; i < w.n_nodes; i++) new_node(i);
  uint64_t n = 10 + below(120);
  for (uint64_t i = 0; i < n; i++) push(below(w.end), OPERATION, 0);
  push(w.end, END, 0);
  plan_accident();
}

static void tick_later(uint32_t node) {
  if (w.dead[node]) return;
  uint64_t due = clv_rrefs_due_ns(w.nodes[node]);
  if (due == UINT64_MAX || due >= w.tick_at[node]) return;
  w.tick_at[node] = CLV_MAX(due, w.now);
  push(w.tick_at[node], TICK, node);
}

static void settle_down(void) {
  for (uint32_t i = 0; i < w.n_nodes; i++) take_results(i);
  for (uint32_t i = 0; i < w.n_nodes; i++) tick_later(i);
}

static void happen(event *e) {
  uint32_t node = e->node;
  bool away = e->kind == MESSAGE && (node == w.n_nodes || w.dead[node] || w.silent[node]);
  if (e->kind == MESSAGE && !away) {
    clv_rrefs_receive_message(w.nodes[node], e->from, &e->m, w.now);
  } else if (e->kind == TICK && !w.dead[node] && w.tick_at[node] == e->at) {
    w.tick_at[node] = UINT64_MAX;
    clv_rrefs_tick(w.nodes[node], w.now);
  } else if (e->kind == OPERATION) {
    operate();
  } else if (e->kind == SETTLE && !w.dead[w.objects[node].owner]) {
    settle(&w.objects[node]);
  } else if (e->kind == CUT) {
    cut(node);
  } else if (e->kind == HEAL) {
    trace("node %u is back", node);
    w.silent[node] = false;
  }
  clv_tensor_unref(e->m.tensor);
  settle_down();
}

static void check_end(void) {
  for (uint32_t i = 0; i < w.n_nodes; i++) {
    clv_rref_counts c;
    if (w.dead[i]) continue;
    clv_rrefs_count(w.nodes[i], &c);
    if (c.n_entries || c.n_forks || c.n_handles || c.n_children || c.n_parked || c.n_unacknowledged)
      complain(
          "node %u is left with %u references, %u users, %u handles, %u being passed, %u "
          "parked, %u messages",
          i, c.n_entries, c.n_forks, c.n_handles, c.n_children, c.n_parked, c.n_unacknowledged);
  }
  for (uint32_t i = 0; i < w.n_handles; i++) {
    const handle *h = &w.handles[i];
    bool open = h->state == PROMISED || h->state == HERE;
    if (open && !h->lost)
      complain("handle %" PRIx64 " of node %u never came, or never got its value", h->fork,
               h->node);
  }
}

/* Returns how many cells of the state tables were visited, and in *ret_all how many there are.
 * Fails if an event came in a state that excludes it. */
static uint32_t check_cells(uint32_t *ret_all) {
  uint32_t reached = 0;
  for (clv_rref_machine m = 0; m < RREF_MACHINES; m++)
    for (uint8_t s = 0; s < clv_rref_n_states(m); s++)
      for (uint8_t f = 0; f < clv_rref_n_events(m); f++) {
        bool never = clv_rref_cell_of(m, s, f)->rule == RREF_IMPOSSIBLE, seen = w.visits.n[m][s][f];
        if (never && seen) complain("machine %d: fact %u came in state %u", (int)m, f, s);
        *ret_all += !never;
        reached += seen;
      }
  return reached;
}

static void clean_up(void) {
  while (w.n_events) {
    event *e = pop();
    clv_tensor_unref(e->m.tensor);
    free(e);
  }
  for (uint32_t i = 0; i < w.n_nodes; i++) {
    clv_rrefs_free(w.nodes[i]);
    clv_pool_unref(w.pools[i]);
    w.nodes[i] = NULL;
  }
}

static bool run(uint64_t seed) {
  w.seed = seed;
  w.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  w.now = w.order = 0;
  w.failed = false;
  w.lies = 0;
  w.n_objects = w.n_handles = w.n_events = 0;
  memset(w.ids, 0, sizeof w.ids);
  memset(w.dead, 0, sizeof w.dead);
  memset(w.silent, 0, sizeof w.silent);
  plan();
  uint64_t last = CLV_MAX(w.end, w.bad_until == UINT64_MAX ? 0 : w.bad_until) + grace_ns;
  while (w.n_events && w.events[0]->at <= last && !w.failed) {
    event *e = pop();
    w.now = e->at;
    happen(e);
    free(e);
    if (w.now >= w.end) drain();
    settle_down();
  }
  uint32_t ignored = 0;
  check_end();
  (void)check_cells(&ignored);
  clean_up();
  return !w.failed;
}

int main(int argc, char **argv) {
  uint64_t runs = 300, first = 1;
  const char *said = getenv("CLV_TEST_REFERENCES");
  if (said) runs = strtoull(said, NULL, 10);
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc;
    if (strcmp(argv[i], "--runs") == 0 && more)
      runs = strtoull(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--seed") == 0 && more)
      first = strtoull(argv[++i], NULL, 10), runs = 1;
    else if (strcmp(argv[i], "--trace") == 0)
      w.trace = true;
    else
      return fprintf(stderr, "usage: references [--runs N] [--seed S] [--trace]\n"), 64;
  }
  uint64_t begin = clv_now_ns(), failures = 0, seed = first;
  for (; seed < first + runs && failures < 10; seed++) {
    if (run(seed)) continue;
    failures++;
    printf("again: %s --seed %" PRIu64 " --trace\n", argv[0], seed);
  }
  double seconds = (double)(clv_now_ns() - begin) / 1e9;
  printf("%" PRIu64 " runs (%.0f a second), %" PRIu64 " failed: %" PRIu64 " operations, %" PRIu64
         " messages, %" PRIu64 " lost, %" PRIu64 " doubled, %" PRIu64 " fetches, %" PRIu64
         " of them errors, %" PRIu64 " nodes lost\n",
         seed - first, (double)(seed - first) / seconds, failures, w.operations, w.messages,
         w.dropped, w.doubled, w.fetched, w.errors, w.deaths);
  uint32_t all = 0, reached = check_cells(&all);
  printf("%u of %u rows of the tables were used\n", reached, all);
  printf("%s references\n", failures ? "not ok" : "ok");
  return failures != 0;
}
