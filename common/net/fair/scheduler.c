/* SPDX-License-Identifier: Apache-2.0
 *
 * Shares of the cores. Weighted fair queueing in two levels: each tenant has a virtual time, the
 * time its shares have computed (threads together) divided by its weight, and each share has one
 * among the shares of its tenant. A free core goes to the tenant with the least, and there to the
 * share with the least.
 *
 * A share is active from the moment it asks until it has nothing to do. One that becomes active
 * starts at the least time of those that are, so that nobody saves up time by being idle; a tenant
 * keeps its time when its shares go, so that nobody sheds it by coming back.
 *
 * A time slice lasts from one piece of work to the next and ends where another share is due:
 * between pieces, and not before slice_ns, so that pieces of microseconds do not pay for a wake-up
 * each. What has been computed is charged before anybody is compared.
 */
#include <pthread.h>
#include <stdlib.h>

#include "common/net/fair/fair.h"

typedef struct tenant {
  uint64_t weight;
  uint64_t time;       /* virtual, ns */
  uint64_t idle_start; /* of its shares, virtual: where one starts when no other is active */
  uint32_t n_active;
  clv_share *shares;
} tenant;

struct clv_fair_scheduler {
  pthread_mutex_t lock;
  clv_fair_scheduler_options o;
  unsigned free;              /* threads that may start */
  uint32_t n_waiting;         /* shares; read without the lock */
  uint64_t idle_start, asked; /* as a tenant's; how many have asked */
  tenant **tenants;           /* [o.n_tenants] */
};

struct clv_share {
  clv_fair_scheduler *at;
  tenant *of;
  clv_share *next, **place;
  pthread_cond_t scheduled;
  unsigned held, wanted; /* threads; held is read by its own thread without the lock */
  bool active, waiting, stopped;
  uint64_t time;     /* virtual, among the shares of its tenant */
  uint64_t asked;    /* order of those whose times are equal */
  uint64_t began;    /* its slice, ns */
  uint64_t since;    /* asked or charged, ns */
  uint64_t credited; /* of its slice, ns */
  clv_share_counts counts;
};

static uint64_t now_of(const clv_fair_scheduler *t) { return clv_clock_now(&t->o.clock); }

/* ---- virtual time ---------------------------------------------------------------------------- */

static uint64_t least_tenant(const clv_fair_scheduler *t) {
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < t->o.n_tenants; i++)
    if (t->tenants[i]->n_active) least = CLV_MIN(least, t->tenants[i]->time);
  return least == UINT64_MAX ? t->idle_start : least;
}

static uint64_t least_share(const tenant *of) {
  uint64_t least = UINT64_MAX;
  for (const clv_share *s = of->shares; s; s = s->next)
    if (s->active) least = CLV_MIN(least, s->time);
  return least == UINT64_MAX ? of->idle_start : least;
}

static void arrive(clv_share *s) {
  tenant *of = s->of;
  if (s->active) return;
  if (!of->n_active) of->time = CLV_MAX(of->time, least_tenant(s->at));
  s->time = CLV_MAX(s->time, least_share(of));
  s->active = true;
  of->n_active++;
}

static void depart(clv_share *s) {
  tenant *of = s->of;
  if (!s->active) return;
  s->active = false;
  of->n_active--;
  of->idle_start = CLV_MAX(of->idle_start, s->time);
  s->at->idle_start = CLV_MAX(s->at->idle_start, of->time);
}

static void charge(clv_share *s, uint64_t now) {
  uint64_t spent = now - s->since, threads = spent * s->held;
  s->since = now;
  s->counts.computed_ns += spent;
  s->time += threads;
  s->of->time += (threads + s->of->weight - 1) / s->of->weight;
}

/* All that compute, up to now. */
static void settle(clv_fair_scheduler *t, uint64_t now) {
  for (size_t i = 0; i < t->o.n_tenants; i++)
    for (clv_share *s = t->tenants[i]->shares; s; s = s->next)
      if (s->held) charge(s, now);
}

/* ---- who is scheduled ------------------------------------------------------------------------ */

static clv_share *first_of(const tenant *of) {
  clv_share *first = NULL;
  for (clv_share *s = of->shares; s; s = s->next) {
    if (!s->waiting) continue;
    bool before =
        !first || s->time < first->time || (s->time == first->time && s->asked < first->asked);
    if (before) first = s;
  }
  return first;
}

static clv_share *first_waiting(const clv_fair_scheduler *t) {
  clv_share *first = NULL;
  for (size_t i = 0; i < t->o.n_tenants; i++) {
    clv_share *s = t->tenants[i]->n_active ? first_of(t->tenants[i]) : NULL;
    bool before = s && (!first || s->of->time < first->of->time ||
                        (s->of->time == first->of->time && s->asked < first->asked));
    if (before) first = s;
  }
  return first;
}

static void start_slice(clv_share *s, uint64_t now) {
  s->waiting = false;
  __atomic_fetch_sub(&s->at->n_waiting, 1, __ATOMIC_RELAXED);
  s->held = s->wanted;
  s->at->free -= s->held;
  s->counts.waited_ns += now - s->since;
  s->counts.slices++;
  s->began = s->since = now;
  s->credited = 0;
}

/* Nobody overtakes the first, however many threads it waits for. */
static void schedule(clv_fair_scheduler *t, uint64_t now) {
  for (clv_share *s; (s = first_waiting(t)) != NULL && s->wanted <= t->free;) {
    start_slice(s, now);
    pthread_cond_signal(&s->scheduled);
  }
}

static void end_slice(clv_share *s, uint64_t now) {
  s->at->free += s->held;
  s->held = 0;
  schedule(s->at, now);
}

/* This one has had its slice, and another that waits has computed less. */
static bool slice_over(const clv_share *s, uint64_t now) {
  const clv_share *first = first_waiting(s->at);
  if (!first || now - s->began < s->at->o.slice_ns) return false;
  return first->of == s->of ? first->time < s->time : first->of->time < s->of->time;
}

/* ---- a share's own thread -------------------------------------------------------------------- */

static bool stopped(const clv_share *s) { return __atomic_load_n(&s->stopped, __ATOMIC_RELAXED); }

static bool somebody_waits(const clv_fair_scheduler *t) {
  return __atomic_load_n(&t->n_waiting, __ATOMIC_RELAXED) != 0;
}

static void wait(clv_share *s, unsigned threads, uint64_t now) {
  clv_fair_scheduler *t = s->at;
  arrive(s);
  s->wanted = threads;
  s->asked = ++t->asked;
  s->since = now;
  s->waiting = true;
  __atomic_fetch_add(&t->n_waiting, 1, __ATOMIC_RELAXED);
  schedule(t, now);
  while (s->waiting && !s->stopped) pthread_cond_wait(&s->scheduled, &t->lock);
  if (!s->waiting) return;
  s->waiting = false;
  __atomic_fetch_sub(&t->n_waiting, 1, __ATOMIC_RELAXED);
  s->counts.waited_ns += now_of(t) - s->since;
  depart(s);
  schedule(t, now_of(t)); /* the next one may fit */
}

bool clv_share_take(clv_share *s, unsigned threads) {
  if (!s) return true;
  clv_fair_scheduler *t = s->at;
  threads = CLV_MAX(1u, CLV_MIN(threads, t->o.cores));
  if (s->held == threads && !somebody_waits(t) && !stopped(s)) return true;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_of(t);
  settle(t, now);
  bool keep = s->held == threads && !s->stopped && !slice_over(s, now);
  if (!keep && s->held) end_slice(s, now);
  if (!keep && !s->stopped) wait(s, threads, now);
  bool mine = s->held;
  if (!mine) depart(s);
  pthread_mutex_unlock(&t->lock);
  return mine;
}

static void leave(clv_share *s, bool if_over) {
  clv_fair_scheduler *t = s->at;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_of(t);
  settle(t, now);
  if (!if_over || slice_over(s, now)) {
    depart(s);
    end_slice(s, now);
  }
  pthread_mutex_unlock(&t->lock);
}

bool clv_share_would_block(const clv_share *s) {
  if (!s || somebody_waits(s->at)) return s;
  if (s->held) return false;
  pthread_mutex_lock(&s->at->lock);
  bool taken = s->at->free < s->wanted;
  pthread_mutex_unlock(&s->at->lock);
  return taken;
}

void clv_share_yield(clv_share *s) {
  if (s && s->held && somebody_waits(s->at)) leave(s, true);
}

void clv_share_release(clv_share *s) {
  if (s && s->held) leave(s, false);
}

static uint64_t less(uint64_t time, uint64_t by) { return time - CLV_MIN(time, by); }

/* No more is taken off a tenant than was added, as its part of each charge is rounded up. */
void clv_share_refund(clv_share *s, uint64_t ns) {
  if (!s || !s->held || !ns) return;
  clv_fair_scheduler *t = s->at;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_of(t);
  settle(t, now);
  ns = CLV_MIN(ns, now - s->began - s->credited);
  s->credited += ns;
  s->counts.computed_ns -= ns;
  s->time = less(s->time, ns * s->held);
  s->of->time = less(s->of->time, ns * s->held / s->of->weight);
  pthread_mutex_unlock(&t->lock);
}

/* ---- any thread ------------------------------------------------------------------------------ */

void clv_share_stop(clv_share *s) {
  if (!s) return;
  pthread_mutex_lock(&s->at->lock);
  __atomic_store_n(&s->stopped, true, __ATOMIC_RELAXED);
  pthread_cond_signal(&s->scheduled);
  pthread_mutex_unlock(&s->at->lock);
}

void clv_share_count(clv_share *s, clv_share_counts *ret) {
  pthread_mutex_lock(&s->at->lock);
  uint64_t now = now_of(s->at);
  if (s->held) charge(s, now);
  *ret = s->counts;
  if (s->waiting) ret->waited_ns += now - s->since;
  pthread_mutex_unlock(&s->at->lock);
}

/* ---- making ---------------------------------------------------------------------------------- */

clv_code clv_fair_scheduler_new(const clv_fair_scheduler_options *o, clv_fair_scheduler **ret,
                                clv_err *err) {
  clv_fair_scheduler *t;
  if (!o->cores) return clv_fail(err, CLV_INVALID, "no core to compute on");
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->o = *o;
  t->o.weights = NULL;
  t->o.n_tenants = 0;
  t->free = o->cores;
  pthread_mutex_init(&t->lock, NULL);
  size_t added;
  clv_code code = CLV_OK;
  for (size_t i = 0; i < o->n_tenants && code == CLV_OK; i++)
    code = clv_fair_scheduler_add_tenant(t, o->weights[i], &added, err);
  if (code != CLV_OK) {
    clv_fair_scheduler_free(t);
    return code;
  }
  *ret = t;
  return CLV_OK;
}

clv_code clv_fair_scheduler_add_tenant(clv_fair_scheduler *t, uint64_t weight, size_t *ret_tenant,
                                       clv_err *err) {
  tenant *new;
  CLV_TRY(clv_alloc(1, sizeof *new, &new, err));
  new->weight = CLV_MAX(weight, 1u);
  pthread_mutex_lock(&t->lock);
  tenant **more = realloc(t->tenants, (t->o.n_tenants + 1) * sizeof(tenant *));
  if (more) {
    t->tenants = more;
    *ret_tenant = t->o.n_tenants;
    t->tenants[t->o.n_tenants++] = new;
  }
  pthread_mutex_unlock(&t->lock);
  if (more) return CLV_OK;
  free(new);
  return clv_fail(err, CLV_EXHAUSTED, "out of memory");
}

void clv_fair_scheduler_set_weight(clv_fair_scheduler *t, size_t of, uint64_t weight) {
  pthread_mutex_lock(&t->lock);
  settle(t, now_of(t));
  if (of < t->o.n_tenants) t->tenants[of]->weight = CLV_MAX(weight, 1u);
  pthread_mutex_unlock(&t->lock);
}

void clv_fair_scheduler_free(clv_fair_scheduler *t) {
  if (!t) return;
  for (size_t i = 0; i < t->o.n_tenants; i++) free(t->tenants[i]);
  free(t->tenants);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

clv_code clv_share_new(clv_fair_scheduler *t, size_t of, clv_share **ret, clv_err *err) {
  clv_share *s;
  pthread_mutex_lock(&t->lock);
  tenant *at = of < t->o.n_tenants ? t->tenants[of] : NULL;
  pthread_mutex_unlock(&t->lock);
  if (!at) return clv_fail(err, CLV_INVALID, "there is no tenant %zu", of);
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->at = t;
  s->of = at;
  pthread_cond_init(&s->scheduled, NULL);
  pthread_mutex_lock(&t->lock);
  s->next = s->of->shares;
  s->place = &s->of->shares;
  if (s->next) s->next->place = &s->next;
  s->of->shares = s;
  pthread_mutex_unlock(&t->lock);
  *ret = s;
  return CLV_OK;
}

void clv_share_free(clv_share *s) {
  if (!s) return;
  clv_share_release(s);
  pthread_mutex_lock(&s->at->lock);
  *s->place = s->next;
  if (s->next) s->next->place = s->place;
  pthread_mutex_unlock(&s->at->lock);
  pthread_cond_destroy(&s->scheduled);
  free(s);
}
