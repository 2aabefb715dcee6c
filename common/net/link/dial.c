/* SPDX-License-Identifier: Apache-2.0
 *
 * Dials one lane of a link and sends ATTACH: for the first time, and again after the lane has lost
 * its connection.
 */
#include <stdio.h>

#include "common/net/link/link_int.h"

static clv_frame make_attach_frame(clv_link *l, uint32_t index, uint64_t connection) {
  const clv_link_dial *d = &l->dial_options;
  clv_frame f = {.kind = CLV_ATTACH};
  f.attach.session_id = d->session_id;
  f.attach.incarnation = d->incarnation;
  f.attach.attempt_number = d->attempt_number;
  f.attach.lane_index = index;
  f.attach.n_lanes = d->n_bulk_lanes;
  f.attach.role = d->attach_role;
  f.attach.connection_number = connection;
  f.attach.n_received = clv_link_n_received(l, index);
  if (d->session_owner)
    snprintf(f.attach.session_owner, sizeof f.attach.session_owner, "%s", d->session_owner);
  return f;
}

/* Replaces the error of a lane that could not join with the reason why the link has ended, if it
 * has. */
static clv_code replace_by_end_reason(clv_link *l, clv_code code, clv_err *err) {
  pthread_mutex_lock(&l->lock);
  if (l->state >= CLV_LINK_ENDING)
    code = clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", l->peer_name,
                    l->close_text);
  pthread_mutex_unlock(&l->lock);
  return code;
}

/* Ends a lane whose dial has failed. A failed redial counts as a lost connection, because the peer
 * may be reached later. */
static clv_code fail_dialled_lane(clv_link *l, clv_lane *ln, clv_err *err) {
  const clv_code code = err->code;
  const bool is_redial = ln->connection_number && code != CLV_UNAUTHENTICATED;
  if (!ln->connection_number) clv_link_end(l, CLV_OK, "closed");
  clv_lane_on_ended(ln, is_redial ? CLV_UNAVAILABLE : code, err->text);
  return code;
}

clv_code clv_link_dial_lane(clv_link *l, uint32_t index, uint64_t connection, clv_err *err) {
  clv_lane *ln;
  CLV_AUTO(clv_stream_unref) clv_stream s = {l->dialler.transport, NULL};
  const clv_frame attach = make_attach_frame(l, index, connection);
  clv_code code = clv_lane_new_dialled(l, index, connection, &ln, err);
  clv_link_event_args n = {.lane_index = index,
                           .n_lanes = 1 + l->dial_options.n_bulk_lanes,
                           .lane = ln,
                           .connection_number = connection};
  if (code == CLV_OK) {
    code = clv_link_on_event(l, CLV_LINK_LANE_JOINS, &n, err);
    if (code != CLV_OK) code = replace_by_end_reason(l, code, err);
    if (code == CLV_OK)
      code = l->dialler.dial_stream(l->dialler.user, index, ln,
                                    connection ? &l->redials.is_stopping : NULL, &s.handle, err);
    if (code != CLV_OK) code = fail_dialled_lane(l, ln, err);
  }
  if (code != CLV_OK) {
    s = (clv_stream){0};
    return code;
  }
  clv_frame_writer_attach_stream(l->writer, index, connection, s);
  code = clv_stream_send_first_frame(s, &attach, err);
  /* a lane that has ended meanwhile reports the reason itself */
  return code == CLV_UNAVAILABLE && connection ? CLV_OK : code;
}
