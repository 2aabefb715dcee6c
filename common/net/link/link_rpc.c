/* SPDX-License-Identifier: Apache-2.0
 *
 * Links over gRPC: passes the events of gRPC streams to their lanes. clv_link_open dials,
 * clv_lane_accept accepts.
 */
#include "common/net/link/link_int.h"

static void on_rpc_message(void *user, clv_rpc_stream *stream, const clv_iov *iov, size_t n) {
  (void)stream;
  clv_lane_on_message(user, iov, n);
}

static void on_rpc_sent(void *user, clv_rpc_stream *stream, size_t bytes) {
  (void)stream, (void)bytes;
  clv_lane_on_sent(user);
}

static void on_rpc_closed(void *user, clv_rpc_stream *stream, clv_code code, const char *text) {
  (void)stream;
  clv_lane_on_ended(user, code, text);
}

static clv_rpc_stream_events lane_events(clv_lane *lane) {
  return (clv_rpc_stream_events){.user = lane,
                                 .on_message = on_rpc_message,
                                 .on_sent = on_rpc_sent,
                                 .on_closed = on_rpc_closed};
}

clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  clv_lane *lane;
  CLV_TRY(clv_lane_new(acceptor, peer->uri, &clv_transport_rpc, stream, &lane, err));
  *ret_events = lane_events(lane);
  return CLV_OK;
}

clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) {
  clv_link *l;
  clv_dialler dialler;
  /* dial_rpc sets `user` to the lane of each stream */
  clv_rpc_stream_events events = lane_events(NULL);
  clv_link_dial d = *dial;
  if (options->lease_ms)
    d.limits.peer_timeout_ms = CLV_MIN(d.limits.peer_timeout_ms, (unsigned)SILENT_MS);
  CLV_TRY(clv_dialler_make_grpc(runtime, &d, &events, &dialler, err));
  CLV_TRY(clv_link_start(options, dial, &dialler, &l, err));
  clv_code code = clv_link_wait_attached(l, dial->dial_timeout_ms, err);
  if (code == CLV_OK) code = clv_link_start_redials(l, err);
  if (code != CLV_OK) {
    clv_link_close(l);
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}
