/* SPDX-License-Identifier: Apache-2.0 */
#include "common/engine/inbox_int.h"

#include <time.h>

void clv_inbox_init(clv_inbox *b) {
  pthread_condattr_t monotonic;
  *b = (clv_inbox){.back_ns = UINT64_MAX};
  pthread_mutex_init(&b->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&b->arrived, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

void clv_inbox_done(clv_inbox *b) {
  for (clv_packet *p = b->first, *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
  pthread_cond_destroy(&b->arrived);
  pthread_mutex_destroy(&b->lock);
}

static bool is_halted(const clv_inbox *b) { return b->stopped || b->kicked; }

/* ---- posting --------------------------------------------------------------------------------- */

bool clv_inbox_begin_post(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  return b->resting && !b->urgent && b->queued + 1 < CLV_REST_PACKETS;
}

void clv_inbox_end_post(clv_inbox *b, clv_packet *p, uint64_t wait_from) {
  p->next = NULL;
  *(b->last ? &b->last->next : &b->first) = p;
  b->last = p;
  b->kinds |= (uint64_t)1 << p->frame.kind;
  b->queued++;
  b->urgent |= !wait_from;
#ifndef CLV_MUTATE_REST
  if (wait_from && b->back_ns == UINT64_MAX) b->back_ns = wait_from + CLV_REST_NS;
#endif
  bool wake = b->sleeping && (b->urgent || !b->resting);
  pthread_mutex_unlock(&b->lock);
  if (wake) pthread_cond_signal(&b->arrived);
}

void clv_inbox_stop(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  b->stopped = true;
  pthread_cond_broadcast(&b->arrived);
  pthread_mutex_unlock(&b->lock);
}

void clv_inbox_kick(clv_inbox *b, bool kicked) {
  pthread_mutex_lock(&b->lock);
  b->kicked = kicked;
  bool wake = kicked && b->sleeping;
  pthread_mutex_unlock(&b->lock);
  if (wake) pthread_cond_signal(&b->arrived);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Under the lock. */
static clv_packet *pop(clv_inbox *b) {
  clv_packet *p = b->first;
  if (!p) return NULL;
  b->first = p->next;
  if (b->first) return p;
  b->last = NULL;
  b->urgent = false;
  b->kinds = b->queued = 0;
  b->back_ns = UINT64_MAX;
  return p;
}

bool clv_inbox_take(clv_inbox *b, clv_packet **ret) {
  pthread_mutex_lock(&b->lock);
  bool halted = is_halted(b);
  *ret = halted ? NULL : pop(b);
  pthread_mutex_unlock(&b->lock);
  return !halted;
}

bool clv_inbox_is_kicked(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  bool kicked = b->kicked;
  pthread_mutex_unlock(&b->lock);
  return kicked;
}

const clv_packet *clv_inbox_newest(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  const clv_packet *p = b->last;
  pthread_mutex_unlock(&b->lock);
  return p;
}

/* ---- resting and sleeping -------------------------------------------------------------------- */

void clv_inbox_rest(clv_inbox *b, bool resting) {
  pthread_mutex_lock(&b->lock);
  b->resting = resting;
  pthread_mutex_unlock(&b->lock);
}

uint64_t clv_inbox_due(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  uint64_t due = b->urgent || is_halted(b) ? 0 : b->back_ns;
  pthread_mutex_unlock(&b->lock);
  return due;
}

/* Under the lock. False: the time has come. */
static bool sleep_until(clv_inbox *b, uint64_t until_ns) {
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  b->sleeping = true;
  int r = until_ns == UINT64_MAX ? pthread_cond_wait(&b->arrived, &b->lock)
                                 : pthread_cond_timedwait(&b->arrived, &b->lock, &ts);
  b->sleeping = false;
  __atomic_store_n(&b->wakes, b->wakes + 1, __ATOMIC_RELAXED);
  return r == 0;
}

void clv_inbox_wait(clv_inbox *b, uint64_t now_ns, uint64_t until_ns) {
  uint64_t back = now_ns + CLV_REST_NS;
#ifdef CLV_MUTATE_REST_ENDS
  back = UINT64_MAX;
#endif
  bool early = true;
  pthread_mutex_lock(&b->lock);
  b->resting = true;
  while (early && !b->urgent && !is_halted(b)) early = sleep_until(b, CLV_MIN(until_ns, back));
#ifndef CLV_MUTATE_SLEEP
  b->resting = false;
#endif
  while (until_ns > back && !b->first && !is_halted(b))
    if (!sleep_until(b, until_ns)) break;
  pthread_mutex_unlock(&b->lock);
}
