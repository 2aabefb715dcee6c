/* SPDX-License-Identifier: Apache-2.0
 *
 * Device copies: progress of the copy of a tensor from a device to host memory, and the send queues
 * that wait for it. The engine reports progress through progress.c; send queues call
 * clv_device_copy_wait.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

struct clv_device_copy {
  pthread_mutex_t lock;
  int refs;
  size_t bytes;    /* bytes copied so far, from the first one */
  clv_err failure; /* error of the copy; code 0: the copy has not failed */
  clv_copy_waiter *awaiting;
};

clv_code clv_device_copy_new(clv_device_copy **ret, clv_err *err) {
  clv_device_copy *c;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  pthread_mutex_init(&c->lock, NULL);
  c->refs = 1;
  *ret = c;
  return CLV_OK;
}

clv_device_copy *clv_device_copy_ref(clv_device_copy *c) {
  __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
  return c;
}

void clv_device_copy_unref(clv_device_copy *c) {
  if (!c || __atomic_fetch_sub(&c->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  pthread_mutex_destroy(&c->lock);
  free(c);
}

bool clv_device_copy_try_reset(clv_device_copy *c) {
  if (__atomic_load_n(&c->refs, __ATOMIC_ACQUIRE) != 1) return false;
  c->bytes = 0;
  c->failure = (clv_err){0};
  return true;
}

/* True if a waiter for `bytes` may be woken. The caller holds the lock. */
static bool is_known(const clv_device_copy *c, size_t bytes) {
  return c->bytes >= bytes || c->failure.code != CLV_OK;
}

static clv_copy_waiter *take_due(clv_device_copy *c) {
  clv_copy_waiter **at = &c->awaiting;
  while (*at && !is_known(c, (*at)->bytes)) at = &(*at)->next;
  clv_copy_waiter *a = *at;
  if (a) *at = a->next;
  return a;
}

void clv_device_copy_record(clv_device_copy *c, size_t bytes, const clv_err *failure) {
  pthread_mutex_lock(&c->lock);
  c->bytes = CLV_MAX(c->bytes, bytes);
  if (failure) c->failure = *failure;
  pthread_mutex_unlock(&c->lock);
}

clv_send_queue *clv_device_copy_next_waiter(clv_device_copy *c) {
  pthread_mutex_lock(&c->lock);
  clv_copy_waiter *a = take_due(c);
  pthread_mutex_unlock(&c->lock);
  return a ? a->queue : NULL;
}

bool clv_device_copy_wait(clv_device_copy *c, clv_copy_waiter *a) {
  pthread_mutex_lock(&c->lock);
  bool known = is_known(c, a->bytes);
  if (!known) {
    a->next = c->awaiting;
    c->awaiting = a;
  }
  pthread_mutex_unlock(&c->lock);
  return known;
}

bool clv_device_copy_cancel_wait(clv_device_copy *c, clv_copy_waiter *a) {
  pthread_mutex_lock(&c->lock);
  clv_copy_waiter **at = &c->awaiting;
  while (*at && *at != a) at = &(*at)->next;
  bool waits = *at != NULL;
  if (waits) *at = a->next;
  pthread_mutex_unlock(&c->lock);
  return waits;
}

clv_code clv_device_copy_check(clv_device_copy *c, size_t bytes, clv_err *err) {
  pthread_mutex_lock(&c->lock);
  bool lost = c->bytes < bytes && c->failure.code != CLV_OK;
  if (lost && err) *err = c->failure;
  pthread_mutex_unlock(&c->lock);
  return lost ? c->failure.code : CLV_OK;
}
