/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted fair queueing of the cores, in two levels. Each tenant has a virtual time: the time that
 * its shares have computed, summed over threads, divided by its weight. Each share has a virtual
 * time among the shares of its tenant. A free core goes to the tenant with the least virtual time,
 * and there to the share with the least.
 *
 * A share is active from its request until it has nothing to do. A share or tenant that becomes
 * active starts at no less than the least virtual time of the active ones, so being idle saves up
 * no time. A tenant keeps its virtual time when its shares are freed, so reconnecting does not
 * reset it.
 *
 * A time slice ends between two pieces of work, when another share is due and slice_ns have passed;
 * pieces of microseconds thus do not each cost a wake-up. All computed time is charged before
 * virtual times are compared.
 */
#include <pthread.h>
#include <stdlib.h>

#include "common/net/fair/fair.h"

typedef struct tenant {
  uint64_t weight;
  uint64_t virtual_ns; /* virtual time of the tenant, ns */
  /* virtual time at which a share starts when no other share of the tenant is active, ns */
  uint64_t virtual_ns_after_idle;
  uint32_t n_active_shares;
  clv_share *shares;
} tenant;

struct clv_fair_scheduler {
  pthread_mutex_t lock;
  clv_fair_scheduler_options o;
  unsigned n_free_cores;     /* cores that no share holds */
  uint32_t n_waiting_shares; /* number of waiting shares; read without the lock */
  /* virtual_ns_after_idle: virtual time at which a tenant starts when no other is active;
   * n_requests: number of requests so far */
  uint64_t virtual_ns_after_idle, n_requests;
  tenant **tenants; /* [o.n_tenants] all tenants */
};

struct clv_share {
  clv_fair_scheduler *scheduler;
  tenant *owner_tenant;
  clv_share *next, **prev_next;
  pthread_cond_t scheduled_cond;
  /* threads; n_threads_held is read by the share's own thread without the lock */
  unsigned n_threads_held, n_threads_wanted;
  bool is_active, is_waiting, is_stopped;
  uint64_t virtual_ns;       /* virtual time of the share among the shares of its tenant, ns */
  uint64_t request_number;   /* number of its last request; orders shares with equal times */
  uint64_t slice_start_ns;   /* start of the slice, ns */
  uint64_t charged_until_ns; /* time of the request or of the last charge, ns */
  uint64_t refunded_ns;      /* time refunded in this slice, ns */
  clv_share_counts counts;
};

static uint64_t now_ns(const clv_fair_scheduler *t) { return clv_clock_now(&t->o.clock); }

/* ---- virtual time of tenants and shares ------------------------------------------------------ */

static uint64_t least_tenant_time(const clv_fair_scheduler *t) {
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < t->o.n_tenants; i++)
    if (t->tenants[i]->n_active_shares) least = CLV_MIN(least, t->tenants[i]->virtual_ns);
  return least == UINT64_MAX ? t->virtual_ns_after_idle : least;
}

static uint64_t least_share_time(const tenant *owner) {
  uint64_t least = UINT64_MAX;
  for (const clv_share *s = owner->shares; s; s = s->next)
    if (s->is_active) least = CLV_MIN(least, s->virtual_ns);
  return least == UINT64_MAX ? owner->virtual_ns_after_idle : least;
}

static void activate_share(clv_share *s) {
  tenant *owner = s->owner_tenant;
  if (s->is_active) return;
  if (!owner->n_active_shares)
    owner->virtual_ns = CLV_MAX(owner->virtual_ns, least_tenant_time(s->scheduler));
  s->virtual_ns = CLV_MAX(s->virtual_ns, least_share_time(owner));
  s->is_active = true;
  owner->n_active_shares++;
}

static void deactivate_share(clv_share *s) {
  tenant *owner = s->owner_tenant;
  if (!s->is_active) return;
  s->is_active = false;
  owner->n_active_shares--;
  owner->virtual_ns_after_idle = CLV_MAX(owner->virtual_ns_after_idle, s->virtual_ns);
  s->scheduler->virtual_ns_after_idle =
      CLV_MAX(s->scheduler->virtual_ns_after_idle, owner->virtual_ns);
}

static void charge_share(clv_share *s, uint64_t now) {
  uint64_t wall_ns = now - s->charged_until_ns, thread_ns = wall_ns * s->n_threads_held;
  s->charged_until_ns = now;
  s->counts.computed_ns += wall_ns;
  s->virtual_ns += thread_ns;
  s->owner_tenant->virtual_ns +=
      (thread_ns + s->owner_tenant->weight - 1) / s->owner_tenant->weight;
}

/* Charges all running shares with the time since their last charge. */
static void update_charges(clv_fair_scheduler *t, uint64_t now) {
  for (size_t i = 0; i < t->o.n_tenants; i++)
    for (clv_share *s = t->tenants[i]->shares; s; s = s->next)
      if (s->n_threads_held) charge_share(s, now);
}

/* ---- choosing the next share ----------------------------------------------------------------- */

static clv_share *first_waiting_of_tenant(const tenant *owner) {
  clv_share *first = NULL;
  for (clv_share *s = owner->shares; s; s = s->next) {
    if (!s->is_waiting) continue;
    bool precedes =
        !first || s->virtual_ns < first->virtual_ns ||
        (s->virtual_ns == first->virtual_ns && s->request_number < first->request_number);
    if (precedes) first = s;
  }
  return first;
}

static clv_share *first_waiting_share(const clv_fair_scheduler *t) {
  clv_share *first = NULL;
  for (size_t i = 0; i < t->o.n_tenants; i++) {
    clv_share *s = t->tenants[i]->n_active_shares ? first_waiting_of_tenant(t->tenants[i]) : NULL;
    bool precedes = s && (!first || s->owner_tenant->virtual_ns < first->owner_tenant->virtual_ns ||
                          (s->owner_tenant->virtual_ns == first->owner_tenant->virtual_ns &&
                           s->request_number < first->request_number));
    if (precedes) first = s;
  }
  return first;
}

static void start_slice(clv_share *s, uint64_t now) {
  s->is_waiting = false;
  __atomic_fetch_sub(&s->scheduler->n_waiting_shares, 1, __ATOMIC_RELAXED);
  s->n_threads_held = s->n_threads_wanted;
  s->scheduler->n_free_cores -= s->n_threads_held;
  s->counts.waited_ns += now - s->charged_until_ns;
  s->counts.n_slices++;
  s->slice_start_ns = s->charged_until_ns = now;
  s->refunded_ns = 0;
}

/* Starts waiting shares strictly in order. A share that needs many threads blocks those behind
 * it. */
static void start_waiting_shares(clv_fair_scheduler *t, uint64_t now) {
  for (clv_share *s;
       (s = first_waiting_share(t)) != NULL && s->n_threads_wanted <= t->n_free_cores;) {
    start_slice(s, now);
    pthread_cond_signal(&s->scheduled_cond);
  }
}

static void end_slice(clv_share *s, uint64_t now) {
  s->scheduler->n_free_cores += s->n_threads_held;
  s->n_threads_held = 0;
  start_waiting_shares(s->scheduler, now);
}

/* True if this share has used its slice and a waiting share has computed less. */
static bool is_slice_over(const clv_share *s, uint64_t now) {
  const clv_share *first = first_waiting_share(s->scheduler);
  if (!first || now - s->slice_start_ns < s->scheduler->o.slice_ns) return false;
  return first->owner_tenant == s->owner_tenant
             ? first->virtual_ns < s->virtual_ns
             : first->owner_tenant->virtual_ns < s->owner_tenant->virtual_ns;
}

/* ---- calls from the share's own thread ------------------------------------------------------- */

static bool is_stopped(const clv_share *s) {
  return __atomic_load_n(&s->is_stopped, __ATOMIC_RELAXED);
}

static bool has_waiting_share(const clv_fair_scheduler *t) {
  return __atomic_load_n(&t->n_waiting_shares, __ATOMIC_RELAXED) != 0;
}

static void wait_until_scheduled(clv_share *s, unsigned threads, uint64_t now) {
  clv_fair_scheduler *t = s->scheduler;
  activate_share(s);
  s->n_threads_wanted = threads;
  s->request_number = ++t->n_requests;
  s->charged_until_ns = now;
  s->is_waiting = true;
  __atomic_fetch_add(&t->n_waiting_shares, 1, __ATOMIC_RELAXED);
  start_waiting_shares(t, now);
  while (s->is_waiting && !s->is_stopped) pthread_cond_wait(&s->scheduled_cond, &t->lock);
  if (!s->is_waiting) return;
  s->is_waiting = false;
  __atomic_fetch_sub(&t->n_waiting_shares, 1, __ATOMIC_RELAXED);
  s->counts.waited_ns += now_ns(t) - s->charged_until_ns;
  deactivate_share(s);
  start_waiting_shares(t, now_ns(t)); /* the next waiting share may fit now */
}

bool clv_share_acquire_cores(clv_share *s, unsigned threads) {
  if (!s) return true;
  clv_fair_scheduler *t = s->scheduler;
  threads = CLV_MAX(1u, CLV_MIN(threads, t->o.n_cores));
  if (s->n_threads_held == threads && !has_waiting_share(t) && !is_stopped(s)) return true;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_ns(t);
  update_charges(t, now);
  bool keeps_threads = s->n_threads_held == threads && !s->is_stopped && !is_slice_over(s, now);
  if (!keeps_threads && s->n_threads_held) end_slice(s, now);
  if (!keeps_threads && !s->is_stopped) wait_until_scheduled(s, threads, now);
  bool is_scheduled = s->n_threads_held;
  if (!is_scheduled) deactivate_share(s);
  pthread_mutex_unlock(&t->lock);
  return is_scheduled;
}

static void lock_and_end_slice(clv_share *s, bool only_if_slice_over) {
  clv_fair_scheduler *t = s->scheduler;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_ns(t);
  update_charges(t, now);
  if (!only_if_slice_over || is_slice_over(s, now)) {
    deactivate_share(s);
    end_slice(s, now);
  }
  pthread_mutex_unlock(&t->lock);
}

bool clv_share_would_block(const clv_share *s) {
  if (!s || has_waiting_share(s->scheduler)) return s;
  if (s->n_threads_held) return false;
  pthread_mutex_lock(&s->scheduler->lock);
  bool are_cores_taken = s->scheduler->n_free_cores < s->n_threads_wanted;
  pthread_mutex_unlock(&s->scheduler->lock);
  return are_cores_taken;
}

void clv_share_yield(clv_share *s) {
  if (s && s->n_threads_held && has_waiting_share(s->scheduler)) lock_and_end_slice(s, true);
}

void clv_share_release_cores(clv_share *s) {
  if (s && s->n_threads_held) lock_and_end_slice(s, false);
}

static uint64_t subtract_saturated(uint64_t time, uint64_t amount) {
  return time - CLV_MIN(time, amount);
}

/* Refunds at most what was charged: the tenant's part of a charge is rounded up, and that of a
 * refund is rounded down. */
void clv_share_refund_time(clv_share *s, uint64_t ns) {
  if (!s || !s->n_threads_held || !ns) return;
  clv_fair_scheduler *t = s->scheduler;
  pthread_mutex_lock(&t->lock);
  uint64_t now = now_ns(t);
  update_charges(t, now);
  ns = CLV_MIN(ns, now - s->slice_start_ns - s->refunded_ns);
  s->refunded_ns += ns;
  s->counts.computed_ns -= ns;
  s->virtual_ns = subtract_saturated(s->virtual_ns, ns * s->n_threads_held);
  s->owner_tenant->virtual_ns = subtract_saturated(
      s->owner_tenant->virtual_ns, ns * s->n_threads_held / s->owner_tenant->weight);
  pthread_mutex_unlock(&t->lock);
}

/* ---- calls from any thread ------------------------------------------------------------------- */

void clv_share_stop(clv_share *s) {
  if (!s) return;
  pthread_mutex_lock(&s->scheduler->lock);
  __atomic_store_n(&s->is_stopped, true, __ATOMIC_RELAXED);
  pthread_cond_signal(&s->scheduled_cond);
  pthread_mutex_unlock(&s->scheduler->lock);
}

void clv_share_get_counts(clv_share *s, clv_share_counts *ret) {
  pthread_mutex_lock(&s->scheduler->lock);
  uint64_t now = now_ns(s->scheduler);
  if (s->n_threads_held) charge_share(s, now);
  *ret = s->counts;
  if (s->is_waiting) ret->waited_ns += now - s->charged_until_ns;
  pthread_mutex_unlock(&s->scheduler->lock);
}

/* ---- making schedulers and shares ------------------------------------------------------------ */

clv_code clv_fair_scheduler_new(const clv_fair_scheduler_options *o, clv_fair_scheduler **ret,
                                clv_err *err) {
  clv_fair_scheduler *t;
  if (!o->n_cores) return clv_fail(err, CLV_INVALID, "no core to compute on");
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->o = *o;
  t->o.tenant_weights = NULL;
  t->o.n_tenants = 0;
  t->n_free_cores = o->n_cores;
  pthread_mutex_init(&t->lock, NULL);
  size_t added;
  clv_code code = CLV_OK;
  for (size_t i = 0; i < o->n_tenants && code == CLV_OK; i++)
    code = clv_fair_scheduler_add_tenant(t, o->tenant_weights[i], &added, err);
  if (code != CLV_OK) {
    clv_fair_scheduler_free(t);
    return code;
  }
  *ret = t;
  return CLV_OK;
}

clv_code clv_fair_scheduler_add_tenant(clv_fair_scheduler *t, uint64_t weight, size_t *ret_tenant,
                                       clv_err *err) {
  tenant *new_tenant;
  CLV_TRY(clv_alloc(1, sizeof *new_tenant, &new_tenant, err));
  new_tenant->weight = CLV_MAX(weight, 1u);
  pthread_mutex_lock(&t->lock);
  tenant **more = realloc(t->tenants, (t->o.n_tenants + 1) * sizeof(tenant *));
  if (more) {
    t->tenants = more;
    *ret_tenant = t->o.n_tenants;
    t->tenants[t->o.n_tenants++] = new_tenant;
  }
  pthread_mutex_unlock(&t->lock);
  if (more) return CLV_OK;
  free(new_tenant);
  return clv_fail(err, CLV_EXHAUSTED, "out of memory");
}

void clv_fair_scheduler_set_weight(clv_fair_scheduler *t, size_t tenant_index, uint64_t weight) {
  pthread_mutex_lock(&t->lock);
  update_charges(t, now_ns(t));
  if (tenant_index < t->o.n_tenants) t->tenants[tenant_index]->weight = CLV_MAX(weight, 1u);
  pthread_mutex_unlock(&t->lock);
}

void clv_fair_scheduler_free(clv_fair_scheduler *t) {
  if (!t) return;
  for (size_t i = 0; i < t->o.n_tenants; i++) free(t->tenants[i]);
  free(t->tenants);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

clv_code clv_share_new(clv_fair_scheduler *t, size_t tenant_index, clv_share **ret, clv_err *err) {
  clv_share *s;
  pthread_mutex_lock(&t->lock);
  tenant *owner = tenant_index < t->o.n_tenants ? t->tenants[tenant_index] : NULL;
  pthread_mutex_unlock(&t->lock);
  if (!owner) return clv_fail(err, CLV_INVALID, "there is no tenant %zu", tenant_index);
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->scheduler = t;
  s->owner_tenant = owner;
  pthread_cond_init(&s->scheduled_cond, NULL);
  pthread_mutex_lock(&t->lock);
  s->next = s->owner_tenant->shares;
  s->prev_next = &s->owner_tenant->shares;
  if (s->next) s->next->prev_next = &s->next;
  s->owner_tenant->shares = s;
  pthread_mutex_unlock(&t->lock);
  *ret = s;
  return CLV_OK;
}

void clv_share_free(clv_share *s) {
  if (!s) return;
  clv_share_release_cores(s);
  pthread_mutex_lock(&s->scheduler->lock);
  *s->prev_next = s->next;
  if (s->next) s->next->prev_next = s->prev_next;
  pthread_mutex_unlock(&s->scheduler->lock);
  pthread_cond_destroy(&s->scheduled_cond);
  free(s);
}
