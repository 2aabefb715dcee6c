/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC channel arguments of clients and servers. Flow control keeps gRPC's bandwidth probe.
 * Measured on loopback with TLS, a fixed large window without the probe halves the throughput; a 4
 * MiB look-ahead with 256 KiB reads raises it by up to 20 %.
 */
#include <assert.h>

#include "common/net/rpc/rpc_int.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

static void add_int_arg(rpc_args *args, const char *key, int value) {
  assert(args->n < RPC_MAX_ARGS);
  grpc_arg *arg = &args->args[args->n++];
  arg->type = GRPC_ARG_INTEGER;
  arg->key = (char *)(uintptr_t)key; /* gRPC's type lacks a const; gRPC copies the key */
  arg->value.integer = value;
}

clv_code rpc_limits_fill_and_check(clv_rpc_limits *limits, clv_err *err) {
  if (limits->max_message_bytes == 0) limits->max_message_bytes = 8 * MIB;
  if (limits->peer_timeout_ms == 0) limits->peer_timeout_ms = 60000;
  if (limits->max_message_bytes > RPC_MAX_MESSAGE)
    return clv_fail(err, CLV_INVALID, "max_message is %zu bytes, must be at most %d",
                    limits->max_message_bytes, RPC_MAX_MESSAGE);
  if (limits->peer_timeout_ms < RPC_MIN_PEER_TIMEOUT_MS || limits->peer_timeout_ms > 3600000)
    return clv_fail(err, CLV_INVALID, "peer_timeout is %u ms, must be %d to 3600000",
                    limits->peer_timeout_ms, RPC_MIN_PEER_TIMEOUT_MS);
  return CLV_OK;
}

void rpc_args_add_quota(rpc_args *args, grpc_resource_quota *quota) {
  assert(args->n < RPC_MAX_ARGS);
  grpc_arg *arg = &args->args[args->n++];
  arg->type = GRPC_ARG_POINTER;
  arg->key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA;
  arg->value.pointer.p = quota;
  arg->value.pointer.vtable = grpc_resource_quota_arg_vtable();
}

/* Returns the time after which a silent peer is pinged: a twelfth of the timeout. The rest is for
 * the answer. A process that is stopped while no ping is in flight still has that rest after it
 * continues. */
static int keepalive_time_ms(const clv_rpc_limits *limits) {
  return (int)limits->peer_timeout_ms / 12;
}

void rpc_args_add_common(rpc_args *args, const clv_rpc_limits *limits) {
  add_int_arg(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)limits->max_message_bytes);
  /* clv_rpc_stream_send checks the size of a sent message */
  add_int_arg(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  add_int_arg(args, GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_time_ms(limits));
  add_int_arg(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
              (int)limits->peer_timeout_ms - keepalive_time_ms(limits));
  add_int_arg(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  add_int_arg(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  add_int_arg(args, GRPC_ARG_HTTP2_BDP_PROBE, 1);
  add_int_arg(args, GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * MIB);
  add_int_arg(args, GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 * KIB);
  add_int_arg(args, GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 1 * MIB);
  add_int_arg(args, GRPC_ARG_MAX_METADATA_SIZE, 8 * KIB);
  add_int_arg(args, GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  add_int_arg(args, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  add_int_arg(args, GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  add_int_arg(args, GRPC_ARG_ENABLE_CHANNELZ, 0);
}

void rpc_args_add_client(rpc_args *args) {
  /* Dial only when and where the caller says: one connection for each channel, no proxy from the
   * environment, no service configuration from DNS. gRPC's transparent retries are off, because
   * they keep sent slices alive until the status is received. */
  add_int_arg(args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  add_int_arg(args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  add_int_arg(args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  add_int_arg(args, GRPC_ARG_ENABLE_RETRIES, 0);
  add_int_arg(args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 1000);
  add_int_arg(args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 10000);
}

void rpc_args_add_server(rpc_args *args, const clv_rpc_server_options *options) {
  unsigned idle =
      options->idle_connection_timeout_ms ? options->idle_connection_timeout_ms : 15 * 60 * 1000;
  unsigned handshake_ms = options->handshake_timeout_ms ? options->handshake_timeout_ms : 3000;
  unsigned streams = options->max_streams_per_conn ? options->max_streams_per_conn : 128;
  /* Accept pings of a client with the shortest allowed timeout, which may be shorter than this
   * server's. */
  add_int_arg(args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
              RPC_MIN_PEER_TIMEOUT_MS / 24);
  add_int_arg(args, GRPC_ARG_MAX_CONNECTION_IDLE_MS, (int)CLV_MIN(idle, 86400000u));
  add_int_arg(args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (int)CLV_MIN(handshake_ms, 60000u));
  add_int_arg(args, GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)CLV_MIN(streams, 65536u));
  /* Without this argument, two daemons that listen on one port would share its connections at
   * random. */
  add_int_arg(args, GRPC_ARG_ALLOW_REUSEPORT, 0);
}
