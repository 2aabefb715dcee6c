/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes over gRPC: what a link needs of a stream, said to common/rpc; nothing else here calls it.
 */
#include <stdlib.h>

#include "common/link/link_int.h"

/* ---- the table ------------------------------------------------------------------------------- */

static clv_code rpc_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  return clv_rpc_stream_send(stream, pieces, n, err);
}
static void rpc_close(void *stream) { clv_rpc_stream_close(stream); }
static void rpc_cancel(void *stream, clv_code code, const char *text) {
  clv_rpc_stream_cancel(stream, code, text);
}
static bool rpc_defer(void *stream, clv_rpc_job *job) { return clv_rpc_stream_defer(stream, job); }
static void rpc_ref(void *stream) { clv_rpc_stream_ref(stream); }
static void rpc_unref(void *stream) { clv_rpc_stream_unref(stream); }

static const clv_transport over_rpc = {rpc_send,  rpc_close, rpc_cancel,
                                       rpc_defer, rpc_ref,   rpc_unref};

static void rpc_message(void *user, clv_rpc_stream *stream, const clv_iov *iov, size_t n) {
  (void)stream;
  clv_lane_message(user, iov, n);
}
static void rpc_sent(void *user, clv_rpc_stream *stream, size_t bytes) {
  (void)stream, (void)bytes;
  clv_lane_sent(user);
}
static void rpc_closed(void *user, clv_rpc_stream *stream, clv_code code, const char *text) {
  (void)stream;
  clv_lane_ended(user, code, text);
}

static clv_rpc_stream_events events_of(clv_lane *lane) {
  return (clv_rpc_stream_events){
      .user = lane, .on_message = rpc_message, .on_sent = rpc_sent, .on_closed = rpc_closed};
}

/* ---- both sides ------------------------------------------------------------------------------ */

clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  clv_lane *lane;
  CLV_TRY(clv_lane_new(acceptor, peer->uri, &over_rpc, stream, &lane, err));
  *ret_events = events_of(lane);
  return CLV_OK;
}

/* The connections of a link, one for each lane. */
typedef struct connections {
  clv_rpc_runtime *runtime;
  const clv_link_dial *dial; /* while it is dialled */
  clv_rpc_channel *channels[MAX_LANES];
} connections;

static clv_code dial_rpc(void *user, uint32_t index, clv_lane *lane, void **ret_stream,
                         clv_err *err) {
  connections *c = user;
  const clv_link_dial *d = c->dial;
  clv_rpc_channel_options o = {
      .target = d->address, .expected_uri = d->identity, .pem = d->pem, .limits = d->limits};
  CLV_TRY(clv_rpc_channel_new(c->runtime, &o, &c->channels[index], err));
  CLV_TRY(clv_rpc_channel_connect(c->channels[index], d->timeout_ms, err));
  clv_rpc_stream_events events = events_of(lane);
  clv_rpc_stream *stream;
  CLV_TRY(clv_rpc_stream_open(c->channels[index], CLV_METHOD_SESSION, &events, &stream, err));
  *ret_stream = stream;
  return CLV_OK;
}

static void hang_up_rpc(void *user) {
  connections *c = user;
  for (uint32_t i = 0; i < MAX_LANES; i++) clv_rpc_channel_free(c->channels[i]);
  free(c);
}

clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) {
  clv_link *l;
  connections *c;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->runtime = runtime;
  c->dial = dial;
  clv_dialler dialler = {
      .transport = &over_rpc, .user = c, .dial = dial_rpc, .hang_up = hang_up_rpc};
  CLV_TRY(clv_link_start(options, dial, &dialler, &l, err));
  clv_code code = clv_link_wait_attached(l, dial->timeout_ms, err);
  if (code != CLV_OK) {
    clv_link_close(l);
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}
