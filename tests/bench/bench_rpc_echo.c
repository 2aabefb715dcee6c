/* SPDX-License-Identifier: Apache-2.0
 *
 * An empty message there and back: our streams against bare gRPC C-core with the same settings,
 * both between two processes over loopback mutual TLS, in turns within one run.
 *
 * usage: bench_rpc_echo [--json FILE] [--bytes N] [--count N] [--rounds N]
 */
#include <getopt.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/rpc/rpc.h"
#include "common/tls/tls.h"

#define SERVER_URI "spiffe://cleave/server"
#define CLIENT_URI "spiffe://cleave/client"
#define METHOD "/bench/Echo"
#define BARE_NAME "echo.test"

enum { MAX_ROUNDS = 64, KIB = 1024, MIB = 1024 * 1024 };

static char scratch[64];

static void must(clv_code code, const clv_err *err) {
  if (code == CLV_OK) return;
  fprintf(stderr, "bench_rpc_echo: %s: %s\n", err->where, err->text);
  exit(1);
}

/* ---- certificates ---------------------------------------------------------------------------- */

typedef struct identity {
  clv_bytes ca, cert, key;
} identity;

static void read_file(const char *name, clv_bytes *ret) {
  char path[128];
  clv_err err;
  snprintf(path, sizeof path, "%s/%s", scratch, name);
  must(clv_file_read(path, 1 << 20, ret, &err), &err);
}

static identity load(const char *name) {
  identity id = {0};
  char file[48];
  read_file("ca.pem", &id.ca);
  snprintf(file, sizeof file, "%s.pem", name);
  read_file(file, &id.cert);
  snprintf(file, sizeof file, "%s.key", name);
  read_file(file, &id.key);
  return id;
}

static void issue(const char *name, const char *uri) {
  clv_err err;
  const char *dns = BARE_NAME;
  clv_tls_issue_options options = {.ca_dir = scratch,
                                   .name = name,
                                   .uris = &uri,
                                   .n_uris = 1,
                                   .dns = &dns,
                                   .n_dns = 1,
                                   .days = 2,
                                   .not_before_offset_s = -300};
  must(clv_tls_issue(&options, &err), &err);
}

static clv_rpc_pem pem_of(const identity *id) {
  return (clv_rpc_pem){id->ca.data, id->cert.data, id->key.data};
}

/* ---- bare C-core ----------------------------------------------------------------------------- */

static grpc_arg int_arg(const char *key, int value) {
  return (grpc_arg){
      .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* The settings of common/rpc/args.c that bear on speed. */
static size_t bare_args(grpc_arg *arg) {
  size_t n = 0;
  arg[n++] = int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 8 * MIB);
  arg[n++] = int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  arg[n++] = int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 * MIB);
  arg[n++] = int_arg(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 * KIB);
  arg[n++] = int_arg(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, MIB);
  arg[n++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  arg[n++] = int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arg[n++] = int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arg[n++] = int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
  return n;
}

static void *wait_event(grpc_completion_queue *queue, bool *ret_ok) {
  grpc_event event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  *ret_ok = event.success != 0;
  return event.tag;
}

static void start(grpc_call *call, const grpc_op *ops, size_t n, void *tag) {
  if (grpc_call_start_batch(call, ops, n, tag, NULL) != GRPC_CALL_OK) exit(2);
}

enum { TAG_ACCEPT = 1, TAG_META, TAG_CLOSE, TAG_RECV, TAG_SEND, TAG_STATUS };
#define TAG(n) ((void *)(uintptr_t)(n))

/* One stream, one queue, one thread: receive, send back, receive. */
static void bare_echo(grpc_completion_queue *queue, grpc_call *call) {
  grpc_byte_buffer *message = NULL;
  int cancelled = 0;
  bool ok = false;
  grpc_op meta = {.op = GRPC_OP_SEND_INITIAL_METADATA};
  grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
  grpc_op recv = {.op = GRPC_OP_RECV_MESSAGE};
  grpc_op send = {.op = GRPC_OP_SEND_MESSAGE};
  grpc_op status = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
  close_op.data.recv_close_on_server.cancelled = &cancelled;
  recv.data.recv_message.recv_message = &message;
  start(call, &close_op, 1, TAG(TAG_CLOSE));
  start(call, &meta, 1, TAG(TAG_META));
  start(call, &recv, 1, TAG(TAG_RECV));
  for (;;) {
    uintptr_t tag = (uintptr_t)wait_event(queue, &ok);
    if (tag == TAG_CLOSE) break;
    if (tag == TAG_RECV && message) {
      send.data.send_message.send_message = message;
      start(call, &send, 1, TAG(TAG_SEND));
    } else if (tag == TAG_RECV) {
      start(call, &status, 1, TAG(TAG_STATUS));
    } else if (tag == TAG_SEND) {
      grpc_byte_buffer_destroy(message);
      message = NULL;
      start(call, &recv, 1, TAG(TAG_RECV));
    }
  }
  grpc_call_unref(call);
}

static _Noreturn void serve_bare(void) {
  identity id = load("server");
  grpc_init();
  grpc_arg arg[16];
  grpc_channel_args args = {bare_args(arg), arg};
  grpc_ssl_pem_key_cert_pair pair = {id.key.data, id.cert.data};
  grpc_server_credentials *credentials = grpc_ssl_server_credentials_create_ex(
      id.ca.data, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
  grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
  grpc_server *server = grpc_server_create(&args, NULL);
  grpc_server_register_completion_queue(server, queue, NULL);
  printf("%d\n", grpc_server_add_http2_port(server, "127.0.0.1:0", credentials));
  fflush(stdout);
  grpc_server_start(server);
  for (;;) {
    bool ok = false;
    grpc_call *call = NULL;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_call_details_init(&details);
    grpc_metadata_array_init(&metadata);
    grpc_server_request_call(server, &call, &details, &metadata, queue, queue, TAG(TAG_ACCEPT));
    while ((uintptr_t)wait_event(queue, &ok) != TAG_ACCEPT) continue;
    grpc_call_details_destroy(&details);
    grpc_metadata_array_destroy(&metadata);
    if (ok) bare_echo(queue, call);
  }
}

typedef struct bare_client {
  grpc_completion_queue *queue;
  grpc_call *call;
} bare_client;

static bare_client bare_dial(int port, const identity *id) {
  bare_client client;
  char target[40];
  grpc_init();
  snprintf(target, sizeof target, "127.0.0.1:%d", port);
  grpc_arg arg[16];
  size_t n = bare_args(arg);
  arg[n++] = (grpc_arg){
      .type = GRPC_ARG_STRING, .key = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, .value.string = BARE_NAME};
  grpc_channel_args args = {n, arg};
  grpc_ssl_pem_key_cert_pair pair = {id->key.data, id->cert.data};
  grpc_channel_credentials *credentials =
      grpc_ssl_credentials_create(id->ca.data, &pair, NULL, NULL);
  grpc_channel *channel = grpc_channel_create(target, credentials, &args);
  client.queue = grpc_completion_queue_create_for_next(NULL);
  client.call = grpc_channel_create_call(channel, NULL, 0, client.queue,
                                         grpc_slice_from_static_string(METHOD), NULL,
                                         gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
  static grpc_metadata_array initial;
  bool ok = false;
  grpc_metadata_array_init(&initial);
  grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
  ops[1].data.recv_initial_metadata.recv_initial_metadata = &initial;
  start(client.call, ops, 2, TAG(TAG_META));
  wait_event(client.queue, &ok);
  if (!ok) exit(3);
  return client;
}

static void bare_round(bare_client *client, const void *data, size_t len, unsigned count,
                       double *us) {
  bool ok = false;
  for (unsigned i = 0; i < count; i++) {
    uint64_t begin = clv_now_ns();
    grpc_slice slice = grpc_slice_from_static_buffer(data, len);
    grpc_byte_buffer *out = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_byte_buffer *in = NULL;
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_RECV_MESSAGE}};
    ops[0].data.send_message.send_message = out;
    ops[1].data.recv_message.recv_message = &in;
    start(client->call, ops, 2, TAG(TAG_RECV));
    wait_event(client->queue, &ok);
    if (!ok || !in) exit(4);
    grpc_byte_buffer_destroy(in);
    grpc_byte_buffer_destroy(out);
    us[i] = (double)(clv_now_ns() - begin) / 1e3;
  }
}

/* ---- ours ------------------------------------------------------------------------------------ */

static void free_copy(void *owner) { free(owner); }

static void echo(void *user, clv_rpc_stream *stream, const clv_iov *pieces, size_t n) {
  (void)user;
  size_t len = clv_iov_bytes(pieces, n);
  clv_err err;
  clv_rpc_piece piece = {NULL, 0, NULL, NULL};
  if (len > 0) {
    char *copy = malloc(len);
    clv_iov_copy(pieces, n, 0, copy, len);
    piece = (clv_rpc_piece){copy, len, free_copy, copy};
  }
  must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
}

static void closed(void *user, clv_rpc_stream *stream, clv_code code, const char *text) {
  (void)user, (void)stream, (void)code, (void)text;
}

static clv_code on_stream(void *user, const char *method, const clv_rpc_peer *peer,
                          clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  (void)user, (void)method, (void)peer, (void)stream, (void)err;
  *ret_events = (clv_rpc_stream_events){.on_message = echo, .on_closed = closed};
  return CLV_OK;
}

static clv_code allow(void *user, const clv_rpc_peer *peer, const char *method, clv_err *err) {
  (void)user, (void)peer, (void)method, (void)err;
  return CLV_OK;
}

static _Noreturn void serve_ours(unsigned spin_us) {
  clv_err err;
  identity id = load("server");
  clv_rpc_runtime *runtime = NULL;
  clv_rpc_server *server = NULL;
  static const char *const methods[] = {METHOD};
  must(clv_rpc_runtime_new(&(clv_rpc_runtime_options){.spin_us = spin_us}, &runtime, &err), &err);
  clv_rpc_server_options options = {.listen = "127.0.0.1:0",
                                    .pem = pem_of(&id),
                                    .authorize = allow,
                                    .stream_methods = methods,
                                    .n_stream_methods = 1,
                                    .on_stream = on_stream};
  must(clv_rpc_server_new(runtime, &options, &server, &err), &err);
  printf("%u\n", clv_rpc_server_port(server));
  fflush(stdout);
  for (;;) pause();
}

typedef struct our_client {
  clv_rpc_stream *stream;
  const void *data;
  size_t len;
  unsigned count, done;
  uint64_t begin;
  double *us;
  pthread_mutex_t lock;
  pthread_cond_t finished;
  bool idle;
} our_client;

static void ping(our_client *client) {
  clv_err err;
  clv_rpc_piece piece = {client->data, client->len, NULL, NULL};
  client->begin = clv_now_ns();
  must(clv_rpc_stream_send(client->stream, &piece, 1, &err), &err);
}

/* The next message leaves from the callback, as a reply does in the product. */
static void pong(void *user, clv_rpc_stream *stream, const clv_iov *pieces, size_t n) {
  (void)stream, (void)pieces, (void)n;
  our_client *client = user;
  client->us[client->done++] = (double)(clv_now_ns() - client->begin) / 1e3;
  if (client->done < client->count) {
    ping(client);
    return;
  }
  pthread_mutex_lock(&client->lock);
  client->idle = true;
  pthread_cond_signal(&client->finished);
  pthread_mutex_unlock(&client->lock);
}

static void our_dial(our_client *client, int port, const identity *id, unsigned spin_us) {
  clv_err err;
  char target[40];
  clv_rpc_runtime *runtime = NULL;
  clv_rpc_channel *channel = NULL;
  snprintf(target, sizeof target, "127.0.0.1:%d", port);
  must(clv_rpc_runtime_new(&(clv_rpc_runtime_options){.spin_us = spin_us}, &runtime, &err), &err);
  clv_rpc_channel_options options = {
      .target = target, .expected_uri = SERVER_URI, .pem = pem_of(id)};
  must(clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  must(clv_rpc_channel_connect(channel, 5000, &err), &err);
  clv_rpc_stream_events events = {.user = client, .on_message = pong, .on_closed = closed};
  pthread_mutex_init(&client->lock, NULL);
  pthread_cond_init(&client->finished, NULL);
  must(clv_rpc_stream_open(channel, METHOD, &events, &client->stream, &err), &err);
}

static void our_round(our_client *client, const void *data, size_t len, unsigned count,
                      double *us) {
  client->data = data;
  client->len = len;
  client->count = count;
  client->done = 0;
  client->us = us;
  client->idle = false;
  ping(client);
  pthread_mutex_lock(&client->lock);
  while (!client->idle) pthread_cond_wait(&client->finished, &client->lock);
  pthread_mutex_unlock(&client->lock);
}

/* ---- rounds, each side in a process of its own ----------------------------------------------- */

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, unsigned n) {
  qsort(values, n, sizeof *values, by_size);
  return values[n / 2];
}

typedef struct side {
  const char *mode; /* "bare", "ours" or "spin" */
  pid_t server, client;
  int command, answer; /* to and from the client: one byte starts a round, a double is its p50 */
} side;

static unsigned spin_of(const char *mode) { return strcmp(mode, "spin") == 0 ? 200 : 0; }

static _Noreturn void run_client(const char *mode, int port, size_t len, unsigned count) {
  identity id = load("client");
  char *data = calloc(1, len + 1);
  double *us = calloc(count, sizeof *us);
  bool bare = strcmp(mode, "bare") == 0;
  bare_client plain = {0};
  our_client ours = {0};
  if (bare)
    plain = bare_dial(port, &id);
  else
    our_dial(&ours, port, &id, spin_of(mode));
  for (char byte; read(STDIN_FILENO, &byte, 1) == 1;) {
    if (bare)
      bare_round(&plain, data, len, count, us);
    else
      our_round(&ours, data, len, count, us);
    double p50 = median(us, count);
    if (write(STDOUT_FILENO, &p50, sizeof p50) != sizeof p50) break;
  }
  _exit(0);
}

static pid_t spawn(const char *const *args, int in, int *ret_out) {
  int fds[2];
  if (pipe(fds) != 0) exit(5);
  pid_t pid = fork();
  if (pid == 0) {
    if (in >= 0) dup2(in, STDIN_FILENO);
    dup2(fds[1], STDOUT_FILENO);
    close(fds[0]);
    execv("/proc/self/exe", (char *const *)(uintptr_t)args);
    _exit(127);
  }
  close(fds[1]);
  *ret_out = fds[0];
  return pid;
}

static void side_start(side *s, const char *bytes, const char *count) {
  char port[16] = "";
  int out = -1, to_client[2];
  s->server = spawn((const char *const[]){"bench", "serve", s->mode, scratch, NULL}, -1, &out);
  if (read(out, port, sizeof port - 1) <= 0 || pipe(to_client) != 0) exit(6);
  port[strcspn(port, "\n")] = '\0';
  s->client =
      spawn((const char *const[]){"bench", "dial", s->mode, scratch, port, bytes, count, NULL},
            to_client[0], &s->answer);
  close(to_client[0]);
  s->command = to_client[1];
}

static double side_round(const side *s) {
  double p50 = 0;
  if (write(s->command, "r", 1) != 1 || read(s->answer, &p50, sizeof p50) != sizeof p50) exit(7);
  return p50;
}

static void side_stop(side *s) {
  kill(s->server, SIGKILL);
  kill(s->client, SIGKILL);
  waitpid(s->server, NULL, 0);
  waitpid(s->client, NULL, 0);
}

static void print_json(FILE *file, const char *name, const double *ours, const double *bare,
                       unsigned n, double target) {
  double ratio[MAX_ROUNDS], sorted[MAX_ROUNDS], a[MAX_ROUNDS], b[MAX_ROUNDS];
  for (unsigned i = 0; i < n; i++) ratio[i] = ours[i] / bare[i];
  memcpy(sorted, ratio, n * sizeof *sorted);
  memcpy(a, ours, n * sizeof *a);
  memcpy(b, bare, n * sizeof *b);
  double mid = median(sorted, n);
  printf("%-34s %8.1f us %8.1f us   %.2f [%.2f-%.2f]\n", name, median(a, n), median(b, n), mid,
         sorted[0], sorted[n - 1]);
  if (!file) return;
  fprintf(file,
          "{\"name\":\"%s\",\"unit\":\"us\",\"ours\":%.2f,\"peer\":%.2f,\"ratio\":%.4f,"
          "\"min\":%.4f,\"max\":%.4f,\"samples\":[",
          name, median(a, n), median(b, n), mid, sorted[0], sorted[n - 1]);
  for (unsigned i = 0; i < n; i++) fprintf(file, "%s[%.2f,%.2f]", i ? "," : "", ours[i], bare[i]);
  fprintf(file, "],\"target\":%.2f,\"ok\":%s}\n", target, mid <= target ? "true" : "false");
}

static void make_certificates(void) {
  clv_err err;
  snprintf(scratch, sizeof scratch, "/tmp/cleave-bench-XXXXXX");
  if (!mkdtemp(scratch)) exit(8);
  must(clv_tls_ca_init(scratch, "bench", 2, &err), &err);
  issue("server", SERVER_URI);
  issue("client", CLIENT_URI);
}

static int compare(const char *json, const char *bytes, const char *count, unsigned rounds) {
  side sides[] = {{.mode = "bare"}, {.mode = "ours"}, {.mode = "spin"}};
  double p50[3][MAX_ROUNDS];
  make_certificates();
  for (size_t i = 0; i < CLV_COUNT(sides); i++) side_start(&sides[i], bytes, count);
  for (size_t i = 0; i < CLV_COUNT(sides); i++) side_round(&sides[i]); /* warm-up */
  for (unsigned r = 0; r < rounds; r++)
    for (size_t i = 0; i < CLV_COUNT(sides); i++) p50[i][r] = side_round(&sides[i]);
  for (size_t i = 0; i < CLV_COUNT(sides); i++) side_stop(&sides[i]);
  FILE *file = json ? fopen(json, "w") : NULL;
  printf("%-34s %11s %11s   ratio of p50\n", "", "ours", "bare C-core");
  char plain[64] = "rpc_empty_vs_bare_echo", spin[64] = "rpc_empty_spin_vs_bare_echo";
  if (atol(bytes) > 0) {
    snprintf(plain, sizeof plain, "rpc_%ld_bytes_vs_bare_echo", atol(bytes));
    snprintf(spin, sizeof spin, "rpc_%ld_bytes_spin_vs_bare_echo", atol(bytes));
  }
  print_json(file, plain, p50[1], p50[0], rounds, 1.3);
  print_json(file, spin, p50[2], p50[0], rounds, 1.1);
  if (file) fclose(file);
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", scratch);
  return system(command);
}

int main(int argc, char **argv) {
  clv_err err;
  if (argc >= 4 && strcmp(argv[0], "bench") == 0) {
    snprintf(scratch, sizeof scratch, "%s", argv[3]);
    must(clv_tls_floor_install(&err), &err);
    if (argc == 7)
      run_client(argv[2], atoi(argv[4]), (size_t)atol(argv[5]), (unsigned)atoi(argv[6]));
    if (strcmp(argv[2], "bare") == 0) serve_bare();
    serve_ours(spin_of(argv[2]));
  }
  static const struct option LONG[] = {{"json", 1, NULL, 'j'},
                                       {"bytes", 1, NULL, 'b'},
                                       {"count", 1, NULL, 'c'},
                                       {"rounds", 1, NULL, 'r'},
                                       {0}};
  const char *json = NULL, *bytes = "0", *count = "2000";
  unsigned rounds = 9;
  for (int c; (c = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
    if (c == 'j') json = optarg;
    if (c == 'b') bytes = optarg;
    if (c == 'c') count = optarg;
    if (c == 'r') rounds = (unsigned)CLV_MIN(CLV_MAX(atoi(optarg), 1), (int)MAX_ROUNDS);
    if (c == '?') return 2;
  }
  if (atoi(count) < 1 || atol(bytes) < 0) return 2;
  return compare(json, bytes, count, rounds);
}
