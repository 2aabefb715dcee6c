/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC as the transport of lanes, with one connection for each lane. Does not know links.
 */
#include <stdlib.h>

#include "common/net/link/link_int.h"

/* ---- streams of gRPC ------------------------------------------------------------------------- */

static clv_code send_on_rpc_stream(void *stream, const clv_rpc_piece *pieces, size_t n,
                                   clv_err *err) {
  return clv_rpc_stream_send(stream, pieces, n, err);
}
static void close_rpc_stream(void *stream) { clv_rpc_stream_close(stream); }
static void cancel_rpc_stream(void *stream, clv_code code, const char *text) {
  clv_rpc_stream_cancel(stream, code, text);
}
static bool defer_rpc_job(void *stream, clv_rpc_job *job) {
  return clv_rpc_stream_defer(stream, job);
}
static void ref_rpc_stream(void *stream) { clv_rpc_stream_ref(stream); }
static void unref_rpc_stream(void *stream) { clv_rpc_stream_unref(stream); }

const clv_transport clv_transport_rpc = {send_on_rpc_stream, close_rpc_stream, cancel_rpc_stream,
                                         defer_rpc_job,      ref_rpc_stream,   unref_rpc_stream};

/* ---- connections of a link ------------------------------------------------------------------- */

typedef struct connections {
  clv_rpc_runtime *runtime;
  clv_rpc_limits limits;
  unsigned dial_timeout_ms;
  char *peer_address, *peer_identity;
  clv_rpc_pem pem; /* PEM text of the newest connection, an owned copy */
  clv_code (*read_pem)(void *user, clv_rpc_pem *ret, clv_err *err);
  void *pem_user;
  clv_rpc_stream_events events;
  clv_rpc_channel *channels[MAX_LANES];
} connections;

/* Reads the certificates again for a later connection, because they may have been renewed. */
static clv_code renew_pem(connections *c, clv_err *err) {
  clv_rpc_pem pem = {0};
  if (!c->read_pem) return CLV_OK;
  CLV_TRY(c->read_pem(c->pem_user, &pem, err));
  clv_rpc_pem_clear(&c->pem);
  c->pem = pem;
  return CLV_OK;
}

/* Dials with a channel of its own, which resolves the peer's name again. */
static clv_code dial_rpc_stream(void *user, uint32_t index, clv_lane *lane, const bool *stop,
                                void **ret_stream, clv_err *err) {
  connections *c = user;
  clv_rpc_channel **channel = &c->channels[index];
  const bool is_redial = *channel != NULL;
  const unsigned redial_ms = CLV_MIN(c->dial_timeout_ms, (unsigned)ATTACH_TIMEOUT_MS);
  if (is_redial) CLV_TRY(renew_pem(c, err));
  clv_rpc_channel_free(clv_steal(channel));
  clv_rpc_channel_options o = {.target_address = c->peer_address,
                               .expected_uri = c->peer_identity,
                               .pem = c->pem,
                               .limits = c->limits,
                               .connect_stop_flag = stop};
  CLV_TRY(clv_rpc_channel_new(c->runtime, &o, channel, err));
  CLV_TRY(clv_rpc_channel_connect(*channel, is_redial ? redial_ms : c->dial_timeout_ms, err));
  clv_rpc_stream_events events = c->events;
  events.user = lane;
  clv_rpc_stream *stream;
  CLV_TRY(clv_rpc_stream_open(*channel, CLV_METHOD_SESSION, &events, &stream, err));
  *ret_stream = stream;
  return CLV_OK;
}

static void free_rpc_connections(void *user) {
  connections *c = user;
  for (uint32_t i = 0; i < MAX_LANES; i++) clv_rpc_channel_free(c->channels[i]);
  clv_rpc_pem_clear(&c->pem);
  free(c->peer_address);
  free(c->peer_identity);
  free(c);
}

static clv_code copy_dial_settings(connections *c, const clv_link_dial *dial, clv_err *err) {
  c->limits = dial->limits;
  c->dial_timeout_ms = dial->dial_timeout_ms;
  c->read_pem = dial->read_pem;
  c->pem_user = dial->pem_user;
  CLV_TRY(clv_strdup(dial->peer_address, &c->peer_address, err));
  CLV_TRY(clv_strdup(dial->peer_identity, &c->peer_identity, err));
  return clv_rpc_pem_copy(&dial->pem, &c->pem, err);
}

clv_code clv_dialler_make_grpc(clv_rpc_runtime *runtime, const clv_link_dial *dial,
                               const clv_rpc_stream_events *events, clv_dialler *ret,
                               clv_err *err) {
  connections *c;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  c->runtime = runtime;
  c->events = *events;
  clv_code code = copy_dial_settings(c, dial, err);
  if (code != CLV_OK) {
    free_rpc_connections(c);
    return code;
  }
  *ret = (clv_dialler){.transport = &clv_transport_rpc,
                       .user = c,
                       .dial_stream = dial_rpc_stream,
                       .hang_up = free_rpc_connections};
  return CLV_OK;
}
