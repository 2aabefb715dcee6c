/* SPDX-License-Identifier: Apache-2.0 */
#include "common/engine/inbox_int.h"

#include <time.h>

void clv_inbox_init(clv_inbox *b) {
  pthread_condattr_t monotonic;
  *b = (clv_inbox){0};
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

/* ---- posting --------------------------------------------------------------------------------- */

void clv_inbox_post(clv_inbox *b, clv_packet *p) {
  pthread_mutex_lock(&b->lock);
  p->next = NULL;
  *(b->last ? &b->last->next : &b->first) = p;
  b->last = p;
  bool wake = b->sleeping;
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

static bool is_halted(const clv_inbox *b) { return b->stopped || b->kicked; }

bool clv_inbox_take(clv_inbox *b, clv_packet **ret) {
  pthread_mutex_lock(&b->lock);
  bool halted = is_halted(b);
  clv_packet *p = halted ? NULL : b->first;
  if (p) b->first = p->next;
  if (!b->first) b->last = NULL;
  pthread_mutex_unlock(&b->lock);
  *ret = p;
  return !halted;
}

bool clv_inbox_is_kicked(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  bool kicked = b->kicked;
  pthread_mutex_unlock(&b->lock);
  return kicked;
}

uint64_t clv_inbox_due(clv_inbox *b) {
  pthread_mutex_lock(&b->lock);
  uint64_t due = b->first || is_halted(b) ? 0 : UINT64_MAX;
  pthread_mutex_unlock(&b->lock);
  return due;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

/* Under the lock. False: the time has come. */
static bool sleep_until(clv_inbox *b, uint64_t until_ns) {
  struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  b->sleeping = true;
  int r = until_ns == UINT64_MAX ? pthread_cond_wait(&b->arrived, &b->lock)
                                 : pthread_cond_timedwait(&b->arrived, &b->lock, &ts);
  b->sleeping = false;
  return r == 0;
}

void clv_inbox_wait(clv_inbox *b, uint64_t until_ns) {
  pthread_mutex_lock(&b->lock);
  bool goes_on = true;
  while (goes_on && !b->first && !is_halted(b)) goes_on = sleep_until(b, until_ns);
  pthread_mutex_unlock(&b->lock);
}
