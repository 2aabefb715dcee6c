/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that are still coming to the host's memory: how far they are, and who waits for that.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

struct clv_coming {
  pthread_mutex_t lock;
  int refs;
  size_t bytes;    /* that are there */
  clv_err failure; /* code 0: none */
  clv_awaiting *awaiting;
};

clv_code clv_coming_new(clv_coming **ret, clv_err *err) {
  clv_coming *c;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  pthread_mutex_init(&c->lock, NULL);
  c->refs = 1;
  *ret = c;
  return CLV_OK;
}

clv_coming *clv_coming_ref(clv_coming *c) {
  __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
  return c;
}

void clv_coming_unref(clv_coming *c) {
  if (!c || __atomic_fetch_sub(&c->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  pthread_mutex_destroy(&c->lock);
  free(c);
}

bool clv_coming_again(clv_coming *c) {
  if (__atomic_load_n(&c->refs, __ATOMIC_ACQUIRE) != 1) return false;
  c->bytes = 0;
  c->failure = (clv_err){0};
  return true;
}

/* Under the lock, as the next one. */
static bool is_known(const clv_coming *c, size_t bytes) {
  return c->bytes >= bytes || c->failure.code != CLV_OK;
}

static clv_awaiting *take_due(clv_coming *c) {
  clv_awaiting **at = &c->awaiting;
  while (*at && !is_known(c, (*at)->bytes)) at = &(*at)->next;
  clv_awaiting *a = *at;
  if (a) *at = a->next;
  return a;
}

void clv_coming_set(clv_coming *c, size_t bytes, const clv_err *failure) {
  pthread_mutex_lock(&c->lock);
  c->bytes = CLV_MAX(c->bytes, bytes);
  if (failure) c->failure = *failure;
  pthread_mutex_unlock(&c->lock);
}

clv_departures *clv_coming_due(clv_coming *c) {
  pthread_mutex_lock(&c->lock);
  clv_awaiting *a = take_due(c);
  pthread_mutex_unlock(&c->lock);
  return a ? a->of : NULL;
}

bool clv_coming_await(clv_coming *c, clv_awaiting *a) {
  pthread_mutex_lock(&c->lock);
  bool known = is_known(c, a->bytes);
  if (!known) {
    a->next = c->awaiting;
    c->awaiting = a;
  }
  pthread_mutex_unlock(&c->lock);
  return known;
}

bool clv_coming_forget(clv_coming *c, clv_awaiting *a) {
  pthread_mutex_lock(&c->lock);
  clv_awaiting **at = &c->awaiting;
  while (*at && *at != a) at = &(*at)->next;
  bool waits = *at != NULL;
  if (waits) *at = a->next;
  pthread_mutex_unlock(&c->lock);
  return waits;
}

clv_code clv_coming_check(clv_coming *c, size_t bytes, clv_err *err) {
  pthread_mutex_lock(&c->lock);
  bool lost = c->bytes < bytes && c->failure.code != CLV_OK;
  if (lost && err) *err = c->failure;
  pthread_mutex_unlock(&c->lock);
  return lost ? c->failure.code : CLV_OK;
}
