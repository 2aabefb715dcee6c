/* SPDX-License-Identifier: Apache-2.0
 *
 * Device copies: progress of the copy of a tensor from a device to host memory, and the send queues
 * that wait for it. The engine reports progress through progress.c; send queues call
 * clv_device_copy_add_waiter.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

struct clv_device_copy {
  pthread_mutex_t lock;
  int refs;
  size_t bytes_copied; /* bytes copied so far, from the first byte of the tensor */
  clv_err failure;     /* error of the copy; code 0: the copy has not failed */
  clv_copy_waiter *waiters;
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
  c->bytes_copied = 0;
  c->failure = (clv_err){0};
  return true;
}

/* True if a waiter for `bytes` may be woken. The caller holds the lock. */
static bool is_copied_or_failed(const clv_device_copy *c, size_t bytes) {
  return c->bytes_copied >= bytes || c->failure.code != CLV_OK;
}

static clv_copy_waiter *take_due_waiter(clv_device_copy *c) {
  clv_copy_waiter **at = &c->waiters;
  while (*at && !is_copied_or_failed(c, (*at)->awaited_bytes)) at = &(*at)->next;
  clv_copy_waiter *a = *at;
  if (a) *at = a->next;
  return a;
}

void clv_device_copy_set_progress(clv_device_copy *c, size_t bytes, const clv_err *failure) {
  pthread_mutex_lock(&c->lock);
  c->bytes_copied = CLV_MAX(c->bytes_copied, bytes);
  if (failure) c->failure = *failure;
  pthread_mutex_unlock(&c->lock);
}

clv_send_queue *clv_device_copy_take_due_waiter(clv_device_copy *c) {
  pthread_mutex_lock(&c->lock);
  clv_copy_waiter *a = take_due_waiter(c);
  pthread_mutex_unlock(&c->lock);
  return a ? a->send_queue : NULL;
}

bool clv_device_copy_add_waiter(clv_device_copy *c, clv_copy_waiter *a) {
  pthread_mutex_lock(&c->lock);
  bool is_done = is_copied_or_failed(c, a->awaited_bytes);
  if (!is_done) {
    a->next = c->waiters;
    c->waiters = a;
  }
  pthread_mutex_unlock(&c->lock);
  return is_done;
}

bool clv_device_copy_remove_waiter(clv_device_copy *c, clv_copy_waiter *a) {
  pthread_mutex_lock(&c->lock);
  clv_copy_waiter **at = &c->waiters;
  while (*at && *at != a) at = &(*at)->next;
  bool was_waiting = *at != NULL;
  if (was_waiting) *at = a->next;
  pthread_mutex_unlock(&c->lock);
  return was_waiting;
}

clv_code clv_device_copy_check_failure(clv_device_copy *c, size_t bytes, clv_err *err) {
  pthread_mutex_lock(&c->lock);
  bool has_failed = c->bytes_copied < bytes && c->failure.code != CLV_OK;
  if (has_failed && err) *err = c->failure;
  pthread_mutex_unlock(&c->lock);
  return has_failed ? c->failure.code : CLV_OK;
}
