/* SPDX-License-Identifier: Apache-2.0
 *
 * Receive window of a link: bytes of tensors received and not yet returned to the peer as CREDIT.
 * reassembly.c counts received packets and bytes; clv_packet_free releases them.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

clv_code clv_recv_window_new(clv_frame_writer *writer, uint64_t most, void *memory,
                             clv_recv_window **ret, clv_err *err) {
  clv_recv_window *r;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  pthread_mutex_init(&r->lock, NULL);
  r->refs = 1;
  r->writer = clv_frame_writer_ref(writer);
  r->limit_bytes = most;
  r->link_memory = memory;
  *ret = r;
  return CLV_OK;
}

clv_recv_window *clv_recv_window_ref(clv_recv_window *r) {
  __atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
  return r;
}

void clv_recv_window_unref(clv_recv_window *r) {
  if (!r || __atomic_fetch_sub(&r->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  clv_frame_writer_unref(r->writer);
  pthread_mutex_destroy(&r->lock);
  free(r->link_memory);
  free(r);
}

clv_code clv_recv_window_add_packet(clv_recv_window *r, bool anyway, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  bool flood = r->n_packets >= MAX_PACKETS && !anyway;
  r->n_packets += !flood;
  pthread_mutex_unlock(&r->lock);
  if (!flood) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "the peer has sent more than %d messages that are not handled yet", MAX_PACKETS);
}

clv_code clv_recv_window_consume(clv_recv_window *r, uint64_t bytes, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  uint64_t held = r->unreturned_bytes;
  bool over = bytes > r->limit_bytes - CLV_MIN(held, r->limit_bytes);
  if (!over) r->unreturned_bytes += bytes;
  pthread_mutex_unlock(&r->lock);
  if (!over) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "the peer has sent %llu bytes of tensors, over its credit of %llu bytes",
                  (unsigned long long)(held + bytes), (unsigned long long)r->limit_bytes);
}

/* Returns the bytes to send as CREDIT now; 0: wait for more. The caller holds the lock. */
static uint64_t take_due_credit(clv_recv_window *r) {
  /* Once all received bytes are free again, at most one inline message stays unreturned, so that
   * the peer's next message never waits for credit. */
  bool idle = r->unsent_credit == r->unreturned_bytes && r->unsent_credit > CLV_WIRE_INLINE_MAX;
  if (!idle && r->unsent_credit < r->limit_bytes / 4) return 0;
  uint64_t bytes = r->unsent_credit;
  r->unsent_credit = 0;
  r->unreturned_bytes -= CLV_MIN(bytes, r->unreturned_bytes);
  return bytes;
}

void clv_recv_window_return_bytes(clv_recv_window *r, uint64_t bytes) {
  if (!r) return;
  pthread_mutex_lock(&r->lock);
  r->n_packets--;
  r->unsent_credit += bytes;
  uint64_t granted = take_due_credit(r);
  pthread_mutex_unlock(&r->lock);
  if (!granted) return;
  clv_frame f = {.kind = CLV_CREDIT};
  f.credit.bytes = granted;
  clv_err err;
  if (clv_frame_writer_send_without_payload(r->writer, &f, &err) != CLV_OK)
    clv_frame_writer_break(r->writer, &err);
}
