/* SPDX-License-Identifier: Apache-2.0
 *
 * What the peer has sent and not been given back.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

clv_code clv_receipt_new(clv_outlet *outlet, uint64_t most, void *memory, clv_receipt **ret,
                         clv_err *err) {
  clv_receipt *r;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  pthread_mutex_init(&r->lock, NULL);
  r->refs = 1;
  r->outlet = clv_outlet_ref(outlet);
  r->most = most;
  r->memory = memory;
  *ret = r;
  return CLV_OK;
}

clv_receipt *clv_receipt_ref(clv_receipt *r) {
  __atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
  return r;
}

void clv_receipt_unref(clv_receipt *r) {
  if (!r || __atomic_fetch_sub(&r->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_outlet_unref(r->outlet);
  pthread_mutex_destroy(&r->lock);
  free(r->memory);
  free(r);
}

clv_code clv_receipt_count(clv_receipt *r, bool anyway, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  bool flood = r->n_packets >= MAX_PACKETS && !anyway;
  r->n_packets += !flood;
  pthread_mutex_unlock(&r->lock);
  if (!flood) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED, "more than %d messages wait here", MAX_PACKETS);
}

clv_code clv_receipt_hold(clv_receipt *r, uint64_t bytes, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  uint64_t held = r->held;
  bool over = bytes > r->most - CLV_MIN(held, r->most);
  if (!over) r->held += bytes;
  pthread_mutex_unlock(&r->lock);
  if (!over) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED, "%llu bytes of tensors exceed the credit of %llu bytes",
                  (unsigned long long)(held + bytes), (unsigned long long)r->most);
}

/* Under the lock: what is to be granted now. */
static uint64_t grant(clv_receipt *r) {
  /* What is held back when all is consumed must not be what the peer's next message waits for. */
  bool idle = r->due == r->held && r->due > CLV_WIRE_INLINE_MAX;
  if (!idle && r->due < r->most / 4) return 0;
  uint64_t bytes = r->due;
  r->due = 0;
  r->held -= CLV_MIN(bytes, r->held);
  return bytes;
}

void clv_receipt_back(clv_receipt *r, uint64_t bytes) {
  pthread_mutex_lock(&r->lock);
  r->n_packets--;
  r->due += bytes;
  uint64_t granted = grant(r);
  pthread_mutex_unlock(&r->lock);
  if (!granted) return;
  clv_frame f = {.kind = CLV_CREDIT};
  f.credit.bytes = granted;
  clv_err err;
  if (clv_outlet_send_plain(r->outlet, &f, &err) != CLV_OK) clv_outlet_break(r->outlet, &err);
}
