/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures transfers of tensors through bare gRPC C-core, the upper limit for common/net/link:
 * mutual TLS, the channel arguments of common/net/rpc, lanes and message sizes of a link. The
 * sender passes pieces of one buffer, and the receiver counts bytes and frees each message, so
 * neither side copies anything or computes checksums. A transfer ends when the acknowledgement of
 * its last byte has arrived.
 *
 * usage: bench_grpc CERTS CLIENT SERVER BULK_LANES CHUNK_KIB
 * commands: tensor BYTES N    seconds of each transfer
 */
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/time.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/engine/engine.h"
#include "common/net/tls/tls.h"
#include "tests/bench/bench_int.h"

#define METHOD "/bench/Tensor"

enum { KIB = 1024, MIB = 1024 * KIB, INLINE_BYTES = 64 * KIB, MAX_CALLS = 17 };

/* Header of each message: total_bytes is the size of the message's transfer. An acknowledgement
 * consists of this header alone. */
typedef struct header {
  uint64_t total_bytes, reserved;
} header;

typedef enum event_kind { EVENT_IGNORED, EVENT_STARTED, EVENT_SENT, EVENT_RECEIVED } event_kind;

/* One gRPC call with a connection of its own. A tag of the completion queue consists of the call's
 * index and an event_kind. */
typedef struct stream {
  grpc_call *call;
  grpc_byte_buffer *received, *in_flight;
  grpc_metadata_array metadata;
  int is_cancelled;
} stream;

/* One process of the comparison: the sender or the receiver. */
typedef struct side {
  grpc_completion_queue *queue;
  stream streams[MAX_CALLS];
  unsigned n_streams;
  size_t chunk_bytes;
  bool is_server;
  uint64_t total_bytes; /* size of the transfer */
  uint64_t n_in_flight; /* messages that gRPC has not accepted completely */
  /* of the sender: memory of the transfer, its next byte, acknowledgements received so far */
  const char *data;
  uint64_t next_byte, n_acks;
  /* of the receiver: bytes of the transfer, and whether its acknowledgement is to be sent */
  uint64_t received_bytes;
  bool is_ack_due;
} side;

static void *make_tag(unsigned stream_index, event_kind kind) {
  return (void *)(uintptr_t)(stream_index * 8 + kind);
}

static grpc_arg make_int_arg(const char *key, int value) {
  return (grpc_arg){
      .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* Returns the channel arguments of common/net/rpc/args.c that affect an open stream. */
static grpc_channel_args make_channel_args(void) {
  static grpc_arg arg[16];
  size_t n = 0;
  arg[n++] = make_int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 8 * MIB);
  arg[n++] = make_int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  arg[n++] = make_int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * MIB);
  arg[n++] = make_int_arg(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 * KIB);
  arg[n++] = make_int_arg(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, MIB);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arg[n++] = make_int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
  arg[n++] = make_int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
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

static void start_batch(side *s, unsigned index, const grpc_op *ops, size_t n, event_kind kind) {
  if (grpc_call_start_batch(s->streams[index].call, ops, n, make_tag(index, kind), NULL) !=
      GRPC_CALL_OK)
    exit_with_message("start_batch");
}

static void request_message(side *s, unsigned index) {
  grpc_op recv = {.op = GRPC_OP_RECV_MESSAGE};
  recv.data.recv_message.recv_message = &s->streams[index].received;
  start_batch(s, index, &recv, 1, EVENT_RECEIVED);
}

static void keep_buffer(void *user) { (void)user; }

/* Sends a header and, behind it, bytes that belong to the caller and are not copied. */
static void send_message(side *s, unsigned index, uint64_t total, const char *data, size_t len) {
  header head = {total, 0};
  grpc_slice slices[2] = {grpc_slice_from_copied_buffer((const char *)&head, sizeof head)};
  if (len)
    slices[1] = grpc_slice_new_with_user_data((void *)(uintptr_t)data, len, keep_buffer, NULL);
  stream *st = &s->streams[index];
  st->in_flight = grpc_raw_byte_buffer_create(slices, len ? 2 : 1);
  for (int i = 0; i < (len ? 2 : 1); i++) grpc_slice_unref(slices[i]);
  grpc_op send = {.op = GRPC_OP_SEND_MESSAGE};
  send.data.send_message.send_message = st->in_flight;
  s->n_in_flight++;
  start_batch(s, index, &send, 1, EVENT_SENT);
}

/* Sends the next piece of the transfer, if any is left. */
static void send_next_chunk(side *s, unsigned index) {
  uint64_t first_byte = s->next_byte;
  if (first_byte >= s->total_bytes) return;
  s->next_byte += s->chunk_bytes;
  send_message(s, index, s->total_bytes, s->data + first_byte,
               CLV_MIN(s->total_bytes - first_byte, (uint64_t)s->chunk_bytes));
}

/* Acknowledges the transfer once the acknowledgement of the previous transfer has been sent. */
static void send_ack_if_due(side *s) {
  if (!s->is_ack_due || s->n_in_flight) return;
  s->is_ack_due = false;
  send_message(s, 0, s->total_bytes, NULL, 0);
}

static void handle_sent(side *s, unsigned index) {
  grpc_byte_buffer_destroy(s->streams[index].in_flight);
  s->n_in_flight--;
  if (s->is_server)
    send_ack_if_due(s);
  else
    send_next_chunk(s, index);
}

/* Reads the header of a message. Its first slice may be shorter than the header. */
static uint64_t read_total(grpc_byte_buffer *message) {
  const grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
  header head = {0};
  size_t n_copied = 0;
  for (size_t i = 0; i < slices->count && n_copied < sizeof head; i++) {
    size_t n = CLV_MIN(GRPC_SLICE_LENGTH(slices->slices[i]), sizeof head - n_copied);
    memcpy((char *)&head + n_copied, GRPC_SLICE_START_PTR(slices->slices[i]), n);
    n_copied += n;
  }
  return head.total_bytes;
}

static void count_received(side *s, uint64_t total, uint64_t len) {
  s->total_bytes = total;
  s->received_bytes += len;
  if (s->received_bytes < total) return;
  s->received_bytes = 0;
  s->is_ack_due = true;
  send_ack_if_due(s);
}

/* Handles a received message, then requests the next one. This order, which common/net/rpc has too,
 * sends HTTP/2's window update together with the acknowledgement. */
static void handle_received(side *s, unsigned index) {
  grpc_byte_buffer *message = s->streams[index].received;
  if (!message) _exit(0);
  uint64_t total = read_total(message), len = grpc_byte_buffer_length(message) - sizeof(header);
  if (s->is_server)
    count_received(s, total, len);
  else
    s->n_acks++;
  grpc_byte_buffer_destroy(message);
  request_message(s, index);
}

/* Waits for an event like the leading queue thread of common/net/rpc, which polls for a while and
 * then sleeps, and handles the event. */
static event_kind run_event(side *s) {
  uint64_t until_ns = clv_now_ns() + 1000ull * clv_spin_us(1);
  grpc_event event;
  do {
    event = grpc_completion_queue_next(s->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_TIMEOUT) sched_yield();
  } while (event.type == GRPC_QUEUE_TIMEOUT && clv_now_ns() < until_ns);
  if (event.type == GRPC_QUEUE_TIMEOUT)
    event = grpc_completion_queue_next(s->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  unsigned index = (unsigned)((uintptr_t)event.tag / 8);
  event_kind kind = (event_kind)((uintptr_t)event.tag % 8);
  if (kind == EVENT_SENT) handle_sent(s, index);
  if (kind == EVENT_RECEIVED) handle_received(s, index);
  return kind;
}

/* ---- the server, which receives tensors ------------------------------------------------------ */

static void accept_stream(side *s, grpc_server *server, unsigned index) {
  static grpc_call_details details;
  stream *st = &s->streams[index];
  grpc_call_details_init(&details);
  grpc_metadata_array_init(&st->metadata);
  grpc_server_request_call(server, &st->call, &details, &st->metadata, s->queue, s->queue,
                           make_tag(index, EVENT_STARTED));
  while (run_event(s) != EVENT_STARTED) continue;
  grpc_op meta = {.op = GRPC_OP_SEND_INITIAL_METADATA};
  grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  close_op.data.recv_close_on_server.cancelled = &st->is_cancelled;
  start_batch(s, index, &close_op, 1, EVENT_IGNORED);
  start_batch(s, index, &meta, 1, EVENT_IGNORED);
  request_message(s, index);
}

static _Noreturn void serve_forever(side *s, const clv_tls_identity *id, int port_pipe) {
  grpc_init();
  grpc_channel_args args = make_channel_args();
  grpc_ssl_pem_key_cert_pair pair = {id->key_pem, id->cert_pem};
  grpc_server_credentials *credentials = grpc_ssl_server_credentials_create_ex(
      id->ca_pem, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
  s->is_server = true;
  s->queue = grpc_completion_queue_create_for_next(NULL);
  grpc_server *server = grpc_server_create(&args, NULL);
  grpc_server_register_completion_queue(server, s->queue, NULL);
  int port = grpc_server_add_http2_port(server, "127.0.0.1:0", credentials);
  grpc_server_start(server);
  if (write(port_pipe, &port, sizeof port) != sizeof port) _exit(1);
  for (unsigned i = 0; i < s->n_streams; i++) accept_stream(s, server, i);
  for (;;) (void)run_event(s);
}

/* ---- the client, which sends tensors --------------------------------------------------------- */

static void open_stream(side *s, unsigned index, int port, const clv_tls_identity *id) {
  char target[40];
  snprintf(target, sizeof target, "127.0.0.1:%d", port);
  stream *st = &s->streams[index];
  grpc_channel_args args = make_channel_args();
  grpc_ssl_pem_key_cert_pair pair = {id->key_pem, id->cert_pem};
  grpc_channel *channel = grpc_channel_create(
      target, grpc_ssl_credentials_create(id->ca_pem, &pair, NULL, NULL), &args);
  st->call =
      grpc_channel_create_call(channel, NULL, 0, s->queue, grpc_slice_from_static_string(METHOD),
                               NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  grpc_metadata_array_init(&st->metadata);
  grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
  ops[1].data.recv_initial_metadata.recv_initial_metadata = &st->metadata;
  start_batch(s, index, ops, 2, EVENT_STARTED);
  while (run_event(s) != EVENT_STARTED) continue;
  request_message(s, index);
}

/* Sends a transfer on stream 0 if a link would send it inline, else on the bulk lanes. */
static void send_transfer(side *s, uint64_t bytes) {
  uint64_t acks = s->n_acks;
  bool is_inline = bytes <= INLINE_BYTES || s->n_streams == 1;
  s->total_bytes = bytes;
  s->next_byte = 0;
  for (unsigned i = is_inline ? 0 : 1; i < (is_inline ? 1 : s->n_streams); i++)
    send_next_chunk(s, i);
  while (s->n_acks == acks || s->n_in_flight) (void)run_event(s);
}

static void measure_tensors(side *s, size_t bytes, unsigned n) {
  double *seconds = allocate_samples(n);
  char *data;
  clv_err err;
  must(clv_alloc_aligned(bytes, &data, &err), &err);
  for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)(void *)data)[i] = (uint32_t)i * 2654435761u;
  s->data = data;
  for (unsigned i = 0; i < n; i++) {
    uint64_t begin_ns = clv_now_ns();
    send_transfer(s, bytes);
    seconds[i] = (double)(clv_now_ns() - begin_ns) / 1e9;
  }
  print_list(seconds, n);
  free(seconds);
  free(data);
}

int main(int argc, char **argv) {
  static side s;
  char line[128];
  size_t bytes;
  unsigned n;
  int pipes[2], port;
  clv_err err;
  if (argc != 6) exit_with_message("usage: bench_grpc CERTS CLIENT SERVER BULK_LANES CHUNK_KIB");
  if (pipe(pipes) != 0) exit_with_message("pipe");
  clv_tune_malloc();
  must(clv_tls_set_min_version(&err), &err);
  s.n_streams = CLV_MIN(1 + (unsigned)atoi(argv[4]), (unsigned)MAX_CALLS);
  s.chunk_bytes = (size_t)atoi(argv[5]) * KIB;
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_forever(&s, load_identity(argv[1], argv[3]), pipes[1]);
  }
  if (read(pipes[0], &port, sizeof port) != sizeof port) exit_with_message("no port");
  grpc_init();
  s.queue = grpc_completion_queue_create_for_next(NULL);
  const clv_tls_identity *id = load_identity(argv[1], argv[2]);
  for (unsigned i = 0; i < s.n_streams; i++) open_stream(&s, i, port, id);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "tensor %zu %u", &bytes, &n) != 2) exit_with_message("unknown command");
    measure_tensors(&s, bytes, n);
  }
  _exit(0);
}
