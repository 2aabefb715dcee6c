/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC as the transport of lanes, with one connection for each lane. Does not know links.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

/* ---- streams --------------------------------------------------------------------------------- */

static clv_code rpc_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  return clv_rpc_stream_send(stream, pieces, n, err);
}
static bool rpc_coalesce(void *stream, const clv_iov *pieces, size_t n) {
  return clv_rpc_stream_coalesce(stream, pieces, n);
}
static bool rpc_flush(void *stream) { return clv_rpc_stream_flush(stream); }
static void rpc_close(void *stream) { clv_rpc_stream_close(stream); }
static void rpc_cancel(void *stream, clv_code code, const char *text) {
  clv_rpc_stream_cancel(stream, code, text);
}
static bool rpc_defer(void *stream, clv_rpc_job *job) { return clv_rpc_stream_defer(stream, job); }
static void rpc_ref(void *stream) { clv_rpc_stream_ref(stream); }
static void rpc_unref(void *stream) { clv_rpc_stream_unref(stream); }

const clv_transport clv_transport_rpc = {rpc_send,   rpc_coalesce, rpc_flush, rpc_close,
                                         rpc_cancel, rpc_defer,    rpc_ref,   rpc_unref};

/* ---- connections ----------------------------------------------------------------------------- */

typedef struct connections {
  clv_rpc_runtime *runtime;
  const clv_link_dial *dial; /* valid while the link is dialled */
  clv_rpc_stream_events events;
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
  clv_rpc_stream_events events = c->events;
  events.user = lane;
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

clv_code clv_dialler_rpc(clv_rpc_runtime *runtime, const clv_link_dial *dial,
                         const clv_rpc_stream_events *events, clv_dialler *ret, clv_err *err) {
  connections *c;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->runtime = runtime;
  c->dial = dial;
  c->events = *events;
  *ret = (clv_dialler){
      .transport = &clv_transport_rpc, .user = c, .dial = dial_rpc, .hang_up = hang_up_rpc};
  return CLV_OK;
}
