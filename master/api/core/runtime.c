/* SPDX-License-Identifier: Apache-2.0
 *
 * A runtime's lock, the clock of its deadlines, its nodes by name, and the list of its jobs, which
 * wait.c runs.
 */
#include <assert.h>
#include <string.h>

#include "master/api/core/core_int.h"

/* ---- the runtime's lock and the clock of its deadlines --------------------------------------- */

void api_lock(cleave_runtime *rt) { pthread_mutex_lock(&rt->lock); }
void api_unlock(cleave_runtime *rt) { pthread_mutex_unlock(&rt->lock); }
void api_unlockp(cleave_runtime **rt) { api_unlock(*rt); }

uint64_t api_now(const cleave_runtime *rt) { return clv_clock_now(&rt->platform.clock); }

clv_code api_fill_random(const cleave_runtime *rt, void *ret, size_t len, clv_err *err) {
  const api_platform *w = &rt->platform;
  return w->fill_random_bytes ? w->fill_random_bytes(w->user, ret, len, err)
                              : clv_random_bytes(ret, len, err);
}

/* Returns the total time for which the clock of the deadlines has been stopped by outages. */
static uint64_t sum_outage_ns(const cleave_runtime *rt) {
  return rt->total_outage_ns + (rt->outage_since_ns ? api_now(rt) - rt->outage_since_ns : 0);
}

uint64_t api_deadline_ns(const cleave_runtime *rt, uint64_t deadline_ms) {
  uint64_t ms = deadline_ms ? deadline_ms : rt->deadline_ms;
  return api_now(rt) - sum_outage_ns(rt) + CLV_MIN(ms, UINT64_C(1) << 40) * 1000000u;
}

uint64_t api_deadline_monotonic_ns(const cleave_runtime *rt, uint64_t until_ns) {
  uint64_t total_outage_ns = sum_outage_ns(rt);
  return until_ns < UINT64_MAX - total_outage_ns ? until_ns + total_outage_ns : UINT64_MAX;
}

static bool has_link(const api_peer *p) { return !api_is_peer_lost(p) && p->link; }

/* Returns true if the worker reports that it redials a lost link to another worker. A report counts
 * for at most limits.lease, because a link between workers ends after this time without a
 * connection. */
static bool reports_outage(const cleave_runtime *rt, api_peer *p) {
  uint64_t now_ns = api_now(rt);
  if (!has_link(p) || !clv_link_is_peer_mending(p->link))
    p->mending_since_ns = 0;
  else if (!p->mending_since_ns)
    p->mending_since_ns = now_ns;
  return p->mending_since_ns &&
         now_ns - p->mending_since_ns < rt->config->limits.lease_ms * UINT64_C(1000000);
}

static bool is_any_link_mending(const cleave_runtime *rt) {
  bool is_mending = false;
  for (uint32_t i = 1; i < rt->n_peers; i++) {
    api_peer *p = &rt->peers[i];
    is_mending |= reports_outage(rt, p) || (has_link(p) && clv_link_is_mending(p->link));
  }
  return is_mending;
}

void api_ask_about_outages(cleave_runtime *rt, bool all_workers) {
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (has_link(&rt->peers[i]) && (all_workers || rt->peers[i].mending_since_ns))
      clv_link_ping_async(rt->peers[i].link);
}

/* Returns the longest time that it takes to notice a silent worker. */
static uint64_t longest_peer_timeout_ns(const cleave_runtime *rt) {
  uint64_t ms = 0;
  for (uint32_t i = 1; i < rt->n_peers; i++)
    ms = CLV_MAX(ms, (uint64_t)rt->peers[i].peer_timeout_ms);
  return ms * 1000000u;
}

void api_update_outage_clock(cleave_runtime *rt) {
  bool is_mending = is_any_link_mending(rt);
  if (is_mending && !rt->outage_since_ns) {
    rt->outage_since_ns = api_now(rt);
  } else if (!is_mending && rt->outage_since_ns) {
    /* adds the time for which the link was silent before its loss was noticed */
    rt->total_outage_ns = sum_outage_ns(rt) + longest_peer_timeout_ns(rt);
    rt->outage_since_ns = 0;
  }
}

void api_wake(cleave_runtime *rt) {
  pthread_cond_broadcast(&rt->state_changed_cond);
  if (!__atomic_load_n(&rt->n_awaiting_threads, __ATOMIC_RELAXED))
    pthread_cond_signal(&rt->futures_thread_cond);
  if (rt->node && !rt->has_node_thread) clv_node_interrupt(rt->node);
}

bool api_is_deadline_over(const cleave_runtime *rt, uint64_t until_ns) {
  return api_now(rt) >=
         CLV_MAX(api_deadline_monotonic_ns(rt, until_ns), rt->deadlines_paused_until_ns);
}

void api_add_job(cleave_runtime *rt, const api_job *job) {
  assert(rt->n_jobs < API_MAX_JOBS);
  rt->jobs[rt->n_jobs++] = job;
}

void api_attach(cleave_runtime *rt, api_attachment *a, void (*free)(api_attachment *a)) {
  *a = (api_attachment){rt->attached_objects, free};
  rt->attached_objects = a;
}

void api_detach(cleave_runtime *rt, api_attachment *a) {
  api_attachment **at = &rt->attached_objects;
  while (*at != a) at = &(*at)->next;
  *at = a->next;
}

/* ---- totals of links; nodes by name ---------------------------------------------------------- */

void cleave_get_link_totals(cleave_runtime *runtime, cleave_link_totals *ret_totals) {
  if (!ret_totals) return;
  *ret_totals = (cleave_link_totals){0};
  if (!runtime) return;
  LOCKED(runtime);
  ret_totals->idle_ns = clv_node_idle_ns(runtime->node);
  for (uint32_t i = 1; i < runtime->n_peers; i++) {
    const api_peer *p = &runtime->peers[i];
    clv_link_counts c = {0};
    if (p->link) clv_link_get_counts(p->link, &c);
    ret_totals->bytes_up += p->closed_links_bytes_sent + c.bytes_out;
    ret_totals->bytes_down += p->closed_links_bytes_received + c.bytes_in;
  }
}
API_DEPRECATED_ALIAS(cleave_count, cleave_get_link_totals);

const char *cleave_node_name(const cleave_runtime *runtime, uint32_t node) {
  return runtime && node < runtime->n_peers ? runtime->peers[node].name : NULL;
}

int api_find_node(const cleave_runtime *rt, const char *name) {
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (strcmp(rt->peers[i].name, name) == 0) return (int)i;
  return -1;
}
