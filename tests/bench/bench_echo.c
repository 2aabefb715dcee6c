/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the round trip of an empty message through bare gRPC C-core: one two-way stream over
 * mutual TLS, one queue and one thread on each side, with the settings and the polling of
 * common/net/rpc. No transport on C-core can take less time.
 *
 * usage: bench_echo CERTS CLIENT SERVER
 * commands: ping N    round trips, microseconds each
 */
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/engine/engine.h"
#include "common/net/tls/tls.h"
#include "tests/bench/bench_int.h"

#define METHOD "/bench/Echo"
#define TAG(n) ((void *)(uintptr_t)(n))

enum { KIB = 1024, MIB = 1024 * KIB };
enum { TAG_ACCEPT = 1, TAG_META, TAG_CLOSE, TAG_RECV, TAG_SEND };

static grpc_arg make_int_arg(const char *key, int value) {
  return (grpc_arg){
      .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* Returns the channel arguments of common/net/rpc/args.c that affect an open stream. */
static grpc_channel_args make_channel_args(void) {
  static grpc_arg arg[16];
  size_t n = 0;
  arg[n++] = make_int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 8 * MIB);
  arg[n++] = make_int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arg[n++] = make_int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arg[n++] = make_int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * MIB);
  arg[n++] = make_int_arg(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 * KIB);
  arg[n++] = make_int_arg(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, MIB);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
  return (grpc_channel_args){n, arg};
}

static clv_tls_identity *load_identity(const char *certs, const char *name) {
  char ca[512], cert[512], key[512];
  clv_tls_identity *id;
  clv_err err;
  snprintf(ca, sizeof ca, "%s/ca.pem", certs);
  snprintf(cert, sizeof cert, "%s/%s.pem", certs, name);
  snprintf(key, sizeof key, "%s/%s.key", certs, name);
  must(clv_tls_identity_load(ca, cert, key, &id, &err), &err);
  return id;
}

/* Waits for an event like the leading queue thread of common/net/rpc: polls for as long as that
 * thread would, then sleeps. */
static uintptr_t next_event(grpc_completion_queue *queue) {
  uint64_t until_ns = clv_now_ns() + 1000ull * clv_spin_us(1);
  grpc_event event;
  do {
    event = grpc_completion_queue_next(queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_TIMEOUT) sched_yield();
  } while (event.type == GRPC_QUEUE_TIMEOUT && clv_now_ns() < until_ns);
  if (event.type == GRPC_QUEUE_TIMEOUT)
    event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  return (uintptr_t)event.tag;
}

static void start_batch(grpc_call *call, const grpc_op *ops, size_t n, uintptr_t tag) {
  if (grpc_call_start_batch(call, ops, n, TAG(tag), NULL) != GRPC_CALL_OK)
    exit_with_message("start_batch");
}

/* ---- the server, which returns each message -------------------------------------------------- */

/* Receives a message, sends it back and receives the next one. */
static void echo_message(grpc_completion_queue *queue, grpc_call *call) {
  grpc_byte_buffer *message = NULL;
  int cancelled = 0;
  grpc_op meta = {.op = GRPC_OP_SEND_INITIAL_METADATA};
  grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  grpc_op recv = {.op = GRPC_OP_RECV_MESSAGE};
  grpc_op send = {.op = GRPC_OP_SEND_MESSAGE};
  close_op.data.recv_close_on_server.cancelled = &cancelled;
  recv.data.recv_message.recv_message = &message;
  start_batch(call, &close_op, 1, TAG_CLOSE);
  start_batch(call, &meta, 1, TAG_META);
  start_batch(call, &recv, 1, TAG_RECV);
  for (uintptr_t tag; (tag = next_event(queue)) != TAG_CLOSE;) {
    if (tag == TAG_RECV && message) {
      send.data.send_message.send_message = message;
      start_batch(call, &send, 1, TAG_SEND);
    } else if (tag == TAG_SEND) {
      grpc_byte_buffer_destroy(message);
      message = NULL;
      start_batch(call, &recv, 1, TAG_RECV);
    }
  }
}

static _Noreturn void serve_forever(const clv_tls_identity *id, int port_pipe) {
  grpc_init();
  grpc_channel_args args = make_channel_args();
  grpc_ssl_pem_key_cert_pair pair = {id->key_pem, id->cert_pem};
  grpc_server_credentials *credentials = grpc_ssl_server_credentials_create_ex(
      id->ca_pem, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
  grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
  grpc_server *server = grpc_server_create(&args, NULL);
  grpc_server_register_completion_queue(server, queue, NULL);
  int port = grpc_server_add_http2_port(server, "127.0.0.1:0", credentials);
  grpc_server_start(server);
  grpc_call *call = NULL;
  grpc_call_details details;
  grpc_metadata_array metadata;
  grpc_call_details_init(&details);
  grpc_metadata_array_init(&metadata);
  grpc_server_request_call(server, &call, &details, &metadata, queue, queue, TAG(TAG_ACCEPT));
  if (write(port_pipe, &port, sizeof port) != sizeof port) _exit(1);
  while (next_event(queue) != TAG_ACCEPT) continue;
  if (call) echo_message(queue, call);
  _exit(0);
}

/* ---- the client, which measures round trips -------------------------------------------------- */

typedef struct client {
  grpc_completion_queue *queue;
  grpc_call *call;
} client;

static client open_call(int port, const clv_tls_identity *id) {
  static grpc_metadata_array initial;
  client c;
  char target[40];
  grpc_init();
  snprintf(target, sizeof target, "127.0.0.1:%d", port);
  grpc_channel_args args = make_channel_args();
  grpc_ssl_pem_key_cert_pair pair = {id->key_pem, id->cert_pem};
  grpc_channel *channel = grpc_channel_create(
      target, grpc_ssl_credentials_create(id->ca_pem, &pair, NULL, NULL), &args);
  c.queue = grpc_completion_queue_create_for_next(NULL);
  c.call =
      grpc_channel_create_call(channel, NULL, 0, c.queue, grpc_slice_from_static_string(METHOD),
                               NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  grpc_metadata_array_init(&initial);
  grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
  ops[1].data.recv_initial_metadata.recv_initial_metadata = &initial;
  start_batch(c.call, ops, 2, TAG_META);
  next_event(c.queue);
  return c;
}

static void measure_round_trips(const client *c, unsigned n) {
  double *us = allocate_samples(n);
  for (unsigned i = 0; i < n; i++) {
    uint64_t begin_ns = clv_now_ns();
    grpc_byte_buffer *out = grpc_raw_byte_buffer_create(NULL, 0), *in = NULL;
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_RECV_MESSAGE}};
    ops[0].data.send_message.send_message = out;
    ops[1].data.recv_message.recv_message = &in;
    start_batch(c->call, ops, 2, TAG_RECV);
    next_event(c->queue);
    us[i] = (double)(clv_now_ns() - begin_ns) / 1e3;
    if (!in) exit_with_message("the stream has ended");
    grpc_byte_buffer_destroy(in);
    grpc_byte_buffer_destroy(out);
  }
  print_list(us, n);
  free(us);
}

int main(int argc, char **argv) {
  char line[128];
  unsigned n;
  int pipes[2], port;
  clv_err err;
  if (argc != 4) exit_with_message("usage: bench_echo CERTS CLIENT SERVER");
  if (pipe(pipes) != 0) exit_with_message("pipe");
  must(clv_tls_set_min_version(&err), &err);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_forever(load_identity(argv[1], argv[3]), pipes[1]);
  }
  if (read(pipes[0], &port, sizeof port) != sizeof port) exit_with_message("no port");
  client c = open_call(port, load_identity(argv[1], argv[2]));
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "ping %u", &n) != 1) exit_with_message("unknown command");
    measure_round_trips(&c, n);
  }
  _exit(0);
}
