/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages received on each lane. Both sides count them in order, so no message has a number. ACK
 * reports the counters to the peer, which then forgets these messages. An ACK is due when a packet
 * with tensors is complete, because they stay in the peer's memory until then, and after
 * ACK_MESSAGES messages of a lane. It is sent with the next message of the control lane; there is
 * no timer. A link without a lease has no ACKs.
 */
#include "common/net/link/link_int.h"

uint64_t clv_link_n_received(clv_link *l, uint32_t index) {
  return __atomic_load_n(&l->lanes[index].n_received, __ATOMIC_RELAXED);
}

/* Returns an ACK with the counters of all lanes. */
static clv_frame make_ack(clv_link *l) {
  clv_frame f = {.kind = CLV_ACK, .ack = {.n_lanes = l->n_lanes}};
  for (uint32_t i = 0; i < l->n_lanes; i++) {
    f.ack.n_received[i] = clv_link_n_received(l, i);
    __atomic_store_n(&l->lanes[i].n_acked, f.ack.n_received[i], __ATOMIC_RELAXED);
  }
  return f;
}

/* Sends an ACK with the next message, or by itself if there is no room. Ignores CLV_UNAVAILABLE,
 * because a closing or broken link reports its own end. */
static clv_code send_ack(clv_link *l, clv_err *err) {
  clv_frame f = make_ack(l);
  if (clv_frame_writer_hold_back(l->writer, &f, NULL, 0, 0)) return CLV_OK;
  clv_code code = clv_frame_writer_send_without_payload(l->writer, &f, err);
  return code == CLV_UNAVAILABLE ? CLV_OK : code;
}

clv_code clv_link_record_received(clv_link *l, uint32_t index, clv_err *err) {
  clv_lane_slot *s = &l->lanes[index];
  uint64_t n = __atomic_add_fetch(&s->n_received, 1, __ATOMIC_RELAXED);
  if (!l->lease_ms) return CLV_OK;
  bool is_due = n - __atomic_load_n(&s->n_acked, __ATOMIC_RELAXED) >= ACK_MESSAGES;
  if (!is_due && !__atomic_load_n(&l->is_ack_due, __ATOMIC_RELAXED)) return CLV_OK;
  __atomic_store_n(&l->is_ack_due, false, __ATOMIC_RELAXED);
  return send_ack(l, err);
}

clv_code clv_link_handle_ack(clv_link *l, const clv_frame *f, clv_err *err) {
  if (!l->lease_ms)
    return clv_fail(err, CLV_INVALID,
                    "an ACK, but the link has no lease: its two sides speak protocol %d",
                    CLV_WIRE_PROTOCOL_MIN);
  if (f->ack.n_lanes != l->n_lanes)
    return clv_fail(err, CLV_INVALID, "an ACK with counters of %u lanes, but the link has %u",
                    f->ack.n_lanes, l->n_lanes);
  for (uint32_t i = 0; i < f->ack.n_lanes; i++)
    CLV_TRY(clv_frame_writer_remove_acked(l->writer, i, f->ack.n_received[i], err));
  return CLV_OK;
}
