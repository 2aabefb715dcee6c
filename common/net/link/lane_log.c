/* SPDX-License-Identifier: Apache-2.0
 *
 * Log of a lane: the messages that were appended and that the peer has not acknowledged, in order.
 * The frame writer appends messages, takes them to pass them to the lane's stream, and removes
 * those that the peer acknowledges. After the stream is lost, another one begins with the first
 * message that the peer has not received. Not thread-safe: the frame writer holds its lock.
 */
#include "common/net/link/link_int.h"

void clv_lane_log_append(clv_lane_log *g, clv_logged_message *m) {
  m->next = NULL;
  *(g->last ? &g->last->next : &g->first) = m;
  g->last = m;
  if (!g->next_to_pass) g->next_to_pass = m;
  g->n_appended++;
}

clv_logged_message *clv_lane_log_take_next(clv_lane_log *g) {
  clv_logged_message *m = g->is_stream_attached ? g->next_to_pass : NULL;
  if (!m) return NULL;
  g->next_to_pass = m->next;
  g->n_sent++;
  return g->message_in_hand = m;
}

clv_logged_message *clv_lane_log_finish_message(clv_lane_log *g) {
  clv_logged_message *m = clv_steal(&g->message_in_hand);
  return m->is_removed ? m : NULL;
}

/* Puts the first message in front of a list of removed ones. The message in hand is only marked,
 * because the thread that passes it to the stream still reads it. */
static void remove_first_message(clv_lane_log *g, clv_logged_message **removed) {
  clv_logged_message *m = g->first;
  g->first = m->next;
  if (!g->first) g->last = NULL;
  if (g->next_to_pass == m) g->next_to_pass = m->next;
  g->n_acked++;
  if (m == g->message_in_hand) {
    m->is_removed = true;
    return;
  }
  m->next = *removed;
  *removed = m;
}

clv_code clv_lane_log_remove_acked(clv_lane_log *g, uint64_t received, clv_logged_message **removed,
                                   clv_err *err) {
  if (received > g->n_sent)
    return clv_fail(err, CLV_INVALID, "the peer says it has received %llu messages of %llu sent",
                    (unsigned long long)received, (unsigned long long)g->n_sent);
  while (g->n_acked < received) remove_first_message(g, removed);
  return CLV_OK;
}

clv_code clv_lane_log_continue_after(clv_lane_log *g, uint64_t received,
                                     clv_logged_message **removed, uint64_t *ret_resent_bytes,
                                     clv_err *err) {
  uint64_t n_sent = g->n_sent;
  if (received < g->n_acked)
    return clv_fail(err, CLV_PRECONDITION,
                    "the peer says it has received %llu messages, and had acknowledged %llu",
                    (unsigned long long)received, (unsigned long long)g->n_acked);
  CLV_TRY(clv_lane_log_remove_acked(g, received, removed, err));
  *ret_resent_bytes = 0;
  const clv_logged_message *m = g->first;
  for (uint64_t i = received; i < n_sent; i++, m = m->next) *ret_resent_bytes += m->message_bytes;
  g->next_to_pass = g->first;
  g->n_sent = received;
  __atomic_store_n(&g->n_accepted, received, __ATOMIC_RELAXED);
  g->is_stream_attached = true;
  return CLV_OK;
}

void clv_lane_log_clear(clv_lane_log *g, clv_logged_message **removed) {
  while (g->first) remove_first_message(g, removed);
}
