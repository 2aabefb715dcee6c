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

enum { LATE_NS = 300000000, POLL_NS = 250000000 }; /* ns */
enum { SILENCE_MS = 3000 };
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

/* Of a process that is to end: a worker that answers is waited for, and no other. */
static void give_up_silent(cleave_runtime *rt) {
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (!rt->peers[i].lost && rt->peers[i].link)
      clv_link_ask_or_end(rt->peers[i].link, SILENCE_MS,
                          "it does not answer, and after an interrupt it has 3 s for that");
}

bool api_sleep(cleave_runtime *rt, uint64_t until_ns) {
  uint64_t began = api_now(rt);
  until_ns = CLV_MAX(until_ns, rt->hear_until_ns);
  api_send_step(rt);
  uint64_t until = CLV_MIN(until_ns, api_resend_ends(rt));
  if (rt->broken.status) until = CLV_MIN(until, rt->broken_until);
  if (!rt->world.clock.now_ns) until = CLV_MIN(until, began + POLL_NS);
  if (clv_interrupted_ms()) give_up_silent(rt);
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
