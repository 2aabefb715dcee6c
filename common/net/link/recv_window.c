/* SPDX-License-Identifier: Apache-2.0
 *
 * Receive window of a link: bytes of tensors received and not yet returned to the peer as CREDIT.
 * reassembly.c counts received packets and bytes; clv_packet_free releases them.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

clv_code clv_recv_window_new(clv_frame_writer *writer, uint64_t limit_bytes, void *memory,
                             clv_recv_window **ret, clv_err *err) {
  clv_recv_window *r;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  pthread_mutex_init(&r->lock, NULL);
  r->refs = 1;
  r->writer = clv_frame_writer_ref(writer);
  r->limit_bytes = limit_bytes;
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

clv_code clv_recv_window_add_packet(clv_recv_window *r, bool ignores_limit, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  bool is_over_limit = r->n_packets >= MAX_PACKETS && !ignores_limit;
  r->n_packets += !is_over_limit;
  pthread_mutex_unlock(&r->lock);
  if (!is_over_limit) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "the peer has sent more than %d messages that are not handled yet", MAX_PACKETS);
}

clv_code clv_recv_window_consume(clv_recv_window *r, uint64_t bytes, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  uint64_t unreturned_bytes = r->unreturned_bytes;
  bool is_over_credit = bytes > r->limit_bytes - CLV_MIN(unreturned_bytes, r->limit_bytes);
  if (!is_over_credit) r->unreturned_bytes += bytes;
  pthread_mutex_unlock(&r->lock);
  if (!is_over_credit) return CLV_OK;
  return clv_fail(
      err, CLV_EXHAUSTED, "the peer has sent %llu bytes of tensors, over its credit of %llu bytes",
      (unsigned long long)(unreturned_bytes + bytes), (unsigned long long)r->limit_bytes);
}

/* Returns the bytes to send as CREDIT now; 0: wait for more. The caller holds the lock. */
static uint64_t take_due_credit(clv_recv_window *r) {
  /* Once all received bytes are free again, at most one inline message stays unreturned, so that
   * the peer's next message never waits for credit. */
  bool are_all_bytes_free =
      r->unsent_credit == r->unreturned_bytes && r->unsent_credit > CLV_WIRE_INLINE_MAX;
  if (!are_all_bytes_free && r->unsent_credit < r->limit_bytes / 4) return 0;
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
  uint64_t credit_bytes = take_due_credit(r);
  pthread_mutex_unlock(&r->lock);
  if (!credit_bytes) return;
  clv_frame f = {.kind = CLV_CREDIT};
  f.credit.bytes = credit_bytes;
  clv_err err;
  if (clv_frame_writer_send_without_payload(r->writer, &f, &err) != CLV_OK)
    clv_frame_writer_break(r->writer, &err);
}
