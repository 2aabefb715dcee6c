/* SPDX-License-Identifier: Apache-2.0 */
#include "common/engine/inbox_int.h"

#include <time.h>

void clv_inbox_init(clv_inbox *b) {
  pthread_condattr_t monotonic_attr;
  *b = (clv_inbox){.ended_work_end = &b->ended_work, .wake_at_ns = UINT64_MAX};
  pthread_mutex_init(&b->lock, NULL);
  pthread_condattr_init(&monotonic_attr);
  pthread_condattr_setclock(&monotonic_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&b->item_arrived, &monotonic_attr);
  pthread_condattr_destroy(&monotonic_attr);
}

void clv_inbox_clear(clv_inbox *b) {
  if (!b) return;
  for (clv_packet *p = b->first, *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
  pthread_cond_destroy(&b->item_arrived);
  pthread_mutex_destroy(&b->lock);
}

static bool is_halted(const clv_inbox *b) { return b->is_stopped || b->is_interrupted; }

/* ---- posting packets and ended work ---------------------------------------------------------- */

bool clv_inbox_begin_post(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  return b->is_coalescing && !b->has_urgent_item && b->n_queued + 1 < CLV_COALESCE_PACKETS;
}

/* Appends a packet. Returns true if the compute thread must be woken. The caller holds the lock. */
static bool append_packet(clv_inbox *b, clv_packet *p, uint64_t wait_from) {
  p->next = NULL;
  *(b->last ? &b->last->next : &b->first) = p;
  b->last = p;
  b->queued_kinds |= (uint64_t)1 << p->frame.kind;
  b->n_queued++;
  b->has_urgent_item |= !wait_from;
  if (wait_from && b->wake_at_ns == UINT64_MAX) b->wake_at_ns = wait_from + CLV_COALESCE_NS;
  return b->is_sleeping && (b->has_urgent_item || !b->is_coalescing);
}

void clv_inbox_end_post(clv_inbox *b, clv_packet *p, uint64_t wait_from) {
  bool must_wake = append_packet(b, p, wait_from);
  pthread_mutex_unlock(&b->lock);
  if (must_wake) pthread_cond_signal(&b->item_arrived);
}

/* The signal comes before the unlock, because the inbox may be freed once the packet is posted. */
void clv_inbox_post_last_packet(clv_inbox *b, clv_packet *p) {
  pthread_mutex_lock(&b->lock);
  if (append_packet(b, p, 0)) pthread_cond_signal(&b->item_arrived);
  pthread_mutex_unlock(&b->lock);
}

static uint32_t *get_work_counter(clv_inbox *b, const clv_work *w) {
  return w->kind == WORK_COPY ? &b->n_copies : &b->n_running;
}

/* The signal comes before the unlock, because the inbox may be freed once the last ended work is
 * posted. */
void clv_inbox_post_ended_work(clv_inbox *b, clv_work *w) {
  pthread_mutex_lock(&b->lock);
  w->next = NULL;
  *b->ended_work_end = w;
  b->ended_work_end = &w->next;
  --*get_work_counter(b, w);
  b->has_urgent_item = true;
  pthread_cond_signal(&b->item_arrived);
  pthread_mutex_unlock(&b->lock);
}

void clv_inbox_stop(clv_inbox *b) {
  if (!b) return;
  pthread_mutex_lock(&b->lock);
  b->is_stopped = true;
  pthread_cond_broadcast(&b->item_arrived);
  pthread_mutex_unlock(&b->lock);
}

void clv_inbox_set_interrupted(clv_inbox *b, bool is_interrupted) {
  pthread_mutex_lock(&b->lock);
  b->is_interrupted = is_interrupted;
  bool must_wake = is_interrupted && b->is_sleeping;
  pthread_mutex_unlock(&b->lock);
  if (must_wake) pthread_cond_signal(&b->item_arrived);
}

/* ---- taking packets and ended work ----------------------------------------------------------- */

/* Removes the oldest ended work; NULL: none. The caller holds the lock. */
static clv_work *pop_ended_work(clv_inbox *b) {
  clv_work *w = b->ended_work;
  if (!w) return NULL;
  b->ended_work = w->next;
  if (!b->ended_work) b->ended_work_end = &b->ended_work;
  return w;
}

static clv_packet *pop_packet(clv_inbox *b) {
  clv_packet *p = b->first;
  if (!p) return NULL;
  b->first = p->next;
  if (!b->first) b->last = NULL;
  return p;
}

static clv_inbox_item pop_item(clv_inbox *b) {
  clv_inbox_item i = {.ended_work = pop_ended_work(b)};
  if (!i.ended_work) i.packet = pop_packet(b);
  if (b->first || b->ended_work) return i;
  b->has_urgent_item = false;
  b->queued_kinds = b->n_queued = 0;
  b->wake_at_ns = UINT64_MAX;
  return i;
}

bool clv_inbox_take(clv_inbox *b, clv_inbox_item *ret) {
  pthread_mutex_lock(&b->lock);
  bool was_halted = is_halted(b);
  *ret = (clv_inbox_item){0};
  if (!was_halted) *ret = pop_item(b);
  pthread_mutex_unlock(&b->lock);
  return !was_halted;
}

bool clv_inbox_is_interrupted(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  bool is_interrupted = b->is_interrupted;
  pthread_mutex_unlock(&b->lock);
  return is_interrupted;
}

const clv_packet *clv_inbox_newest_packet(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  const clv_packet *p = b->ended_work ? NULL : b->last;
  pthread_mutex_unlock(&b->lock);
  return p;
}

/* ---- counting the work that runs ------------------------------------------------------------- */

void clv_inbox_begin_work(clv_inbox *b, const clv_work *w) {
  pthread_mutex_lock(&b->lock);
  ++*get_work_counter(b, w);
  pthread_mutex_unlock(&b->lock);
}

bool clv_inbox_has_running_work(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  bool has_running_work = b->n_running;
  pthread_mutex_unlock(&b->lock);
  return has_running_work;
}

void clv_inbox_wait_for_work(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  while (b->n_running || b->n_copies) pthread_cond_wait(&b->item_arrived, &b->lock);
  pthread_mutex_unlock(&b->lock);
}

clv_work *clv_inbox_take_ended_work(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  clv_work *w = pop_ended_work(b);
  pthread_mutex_unlock(&b->lock);
  return w;
}

/* ---- coalescing packets and sleeping --------------------------------------------------------- */

void clv_inbox_set_coalescing(clv_inbox *b, bool is_coalescing) {
  pthread_mutex_lock(&b->lock);
  b->is_coalescing = is_coalescing;
  pthread_mutex_unlock(&b->lock);
}

uint64_t clv_inbox_due_ns(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  uint64_t due_ns = b->has_urgent_item || is_halted(b) ? 0 : b->wake_at_ns;
  pthread_mutex_unlock(&b->lock);
  return due_ns;
}

/* Sleeps until a signal or the time `until_ns`. Caller holds the lock. False: the time was
 * reached. */
static bool sleep_until(clv_inbox *b, uint64_t until_ns) {
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  b->is_sleeping = true;
  int r = until_ns == UINT64_MAX ? pthread_cond_wait(&b->item_arrived, &b->lock)
                                 : pthread_cond_timedwait(&b->item_arrived, &b->lock, &ts);
  b->is_sleeping = false;
  __atomic_store_n(&b->wakes, b->wakes + 1, __ATOMIC_RELAXED);
  return r == 0;
}

void clv_inbox_wait(clv_inbox *b, uint64_t now_ns, uint64_t until_ns) {
  uint64_t coalesce_end_ns = now_ns + CLV_COALESCE_NS;
  bool woke_early = true;
  pthread_mutex_lock(&b->lock);
  b->is_coalescing = true;
  while (woke_early && !b->has_urgent_item && !is_halted(b))
    woke_early = sleep_until(b, CLV_MIN(until_ns, coalesce_end_ns));
  b->is_coalescing = false;
  while (until_ns > coalesce_end_ns && !b->first && !b->ended_work && !is_halted(b))
    if (!sleep_until(b, until_ns)) break;
  pthread_mutex_unlock(&b->lock);
}
