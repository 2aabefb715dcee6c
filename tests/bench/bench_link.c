/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures our session stream between two processes: a clv_link with its control lane and bulk
 * lanes over mutual TLS, as a master and a worker with one compute thread each have it.
 *
 * usage: bench_link serve CERTS NAME          prints its port
 *        bench_link dial CERTS NAME PORT URI LANES
 * commands: ping N            round trips of an empty message, microseconds each
 *           tensor BYTES N    seconds from the send until the receiver acknowledges all of it
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/engine/engine.h"
#include "common/net/tls/tls.h"
#include "tests/bench/bench_int.h"

typedef struct process {
  clv_tls_identity *identity;
  clv_rpc_runtime *runtime;
  clv_pool *pool;
  clv_link *link;
  pthread_mutex_t lock;
  pthread_cond_t ack_arrived;
  uint64_t n_acks;
} process;

static clv_rpc_pem get_pem(const process *p) {
  return (clv_rpc_pem){p->identity->ca_pem, p->identity->cert_pem, p->identity->key_pem};
}

static void start_process(process *p, const char *certs, const char *name) {
  char ca[512], cert[512], key[512];
  clv_err err;
  snprintf(ca, sizeof ca, "%s/ca.pem", certs);
  snprintf(cert, sizeof cert, "%s/%s.pem", certs, name);
  snprintf(key, sizeof key, "%s/%s.key", certs, name);
  must(clv_tls_identity_load(ca, cert, key, &p->identity, &err), &err);
  must(clv_tls_set_min_version(&err), &err);
  clv_rpc_runtime_options options = {.n_queue_threads = 2, .spin_us = clv_spin_us(1)};
  must(clv_rpc_runtime_new(&options, &p->runtime, &err), &err);
  must(clv_pool_new((size_t)1 << 30, 4096, &p->pool, &err), &err);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->ack_arrived, NULL);
}

/* ---- the accepting side ---------------------------------------------------------------------- */

static void send_ack(void *user, clv_link *link, clv_packet *packet) {
  process *p = user;
  clv_packet *ack;
  clv_err err;
  must(clv_packet_new(p->pool, CLV_APPLIED, &ack, &err), &err);
  ack->frame.context = packet->frame.context;
  ack->frame.reply_to = packet->frame.message_id;
  must(clv_link_send(link, ack, &err), &err);
  clv_packet_free(packet);
}

static void ignore_end(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code, (void)text;
}

static clv_link_options make_link_options(process *p,
                                          void (*on_packet)(void *, clv_link *, clv_packet *)) {
  clv_wire_limits accept_limits = clv_wire_limits_default();
  /* more than the largest tensor that bench.py sends; the default is 64 MiB, headers included */
  accept_limits.credit_bytes = 512 << 20;
  return (clv_link_options){.peer_name = "peer",
                            .pool = p->pool,
                            .accept_limits = accept_limits,
                            .initial_send_credit = accept_limits.credit_bytes,
                            .events = {.user = p, .on_packet = on_packet, .on_closed = ignore_end}};
}

static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  process *p = user;
  (void)attach, (void)uri;
  clv_code code = CLV_OK;
  pthread_mutex_lock(&p->lock);
  clv_link_options options = make_link_options(p, send_ack);
  if (!p->link) code = clv_link_new(&options, &p->link, err);
  if (code == CLV_OK) *ret = clv_link_ref(p->link);
  pthread_mutex_unlock(&p->lock);
  return code;
}

static clv_code allow_everybody(void *user, const clv_rpc_peer *peer, const char *method,
                                clv_err *err) {
  (void)user, (void)peer, (void)method, (void)err;
  return CLV_OK;
}

static clv_lane_acceptor acceptor;

static clv_code on_stream(void *user, const char *method, const clv_rpc_peer *peer,
                          clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  (void)user, (void)method;
  return clv_lane_accept(&acceptor, peer, stream, ret_events, err);
}

static void serve_link(process *p) {
  static const char *const methods[] = {CLV_METHOD_SESSION};
  clv_err err;
  clv_rpc_server *server;
  acceptor = (clv_lane_acceptor){p, find_link};
  clv_rpc_server_options options = {.listen_address = "127.0.0.1:0",
                                    .pem = get_pem(p),
                                    .authorize = allow_everybody,
                                    .stream_methods = methods,
                                    .n_stream_methods = 1,
                                    .on_stream = on_stream};
  must(clv_rpc_server_new(p->runtime, &options, &server, &err), &err);
  printf("%u\n", clv_rpc_server_port(server));
  fflush(stdout);
  while (getchar() != EOF) continue; /* waits until bench.py closes the standard input */
}

/* ---- the dialling side ----------------------------------------------------------------------- */

static void count_ack(void *user, clv_link *link, clv_packet *packet) {
  process *p = user;
  (void)link;
  clv_packet_free(packet);
  pthread_mutex_lock(&p->lock);
  p->n_acks++;
  pthread_cond_signal(&p->ack_arrived);
  pthread_mutex_unlock(&p->lock);
}

static void dial_link(process *p, const char *port, const char *uri, uint32_t lanes) {
  char address[64];
  clv_err err;
  snprintf(address, sizeof address, "127.0.0.1:%s", port);
  clv_link_options options = make_link_options(p, count_ack);
  clv_link_dial to = {.peer_address = address,
                      .peer_identity = uri,
                      .pem = get_pem(p),
                      .attempt_number = 1,
                      .n_bulk_lanes = lanes,
                      .attach_role = CLV_ATTACH_MASTER,
                      .dial_timeout_ms = 5000};
  must(clv_random_bytes(&to.session_id, sizeof to.session_id, &err), &err);
  must(clv_link_open(p->runtime, &options, &to, &p->link, &err), &err);
}

static void measure_pings(process *p, unsigned n) {
  double *us = allocate_samples(n);
  clv_err err;
  for (unsigned i = 0; i < n; i++) {
    uint64_t ns = 0;
    must(clv_link_ping(p->link, 5000, &ns, &err), &err);
    us[i] = (double)ns / 1e3;
  }
  print_list(us, n);
  free(us);
}

static void send_tensor(process *p, clv_tensor *t, uint64_t message) {
  clv_packet *packet;
  clv_err err;
  must(clv_packet_new(p->pool, CLV_VALUE, &packet, &err), &err);
  packet->frame.context = packet->frame.message_id = message;
  clv_packet_add_tensor(packet, t);
  must(clv_link_send(p->link, packet, &err), &err);
  pthread_mutex_lock(&p->lock);
  while (p->n_acks < message) pthread_cond_wait(&p->ack_arrived, &p->lock);
  pthread_mutex_unlock(&p->lock);
}

static void measure_tensors(process *p, size_t bytes, unsigned n) {
  double *seconds = allocate_samples(n);
  clv_shape shape = CLV_SHAPE((int64_t)(bytes / 4));
  clv_tensor *t;
  clv_err err;
  must(clv_pool_alloc_tensor(p->pool, CLV_F32, &shape, &t, &err), &err);
  for (size_t i = 0; i < t->n; i++) ((uint32_t *)t->data)[i] = (uint32_t)i * 2654435761u;
  for (unsigned i = 0; i < n; i++) {
    uint64_t begin = clv_now_ns();
    send_tensor(p, t, p->n_acks + 1);
    seconds[i] = (double)(clv_now_ns() - begin) / 1e9;
  }
  clv_tensor_unref(t);
  print_list(seconds, n);
  free(seconds);
}

static void run_command(process *p) {
  char line[128];
  unsigned n;
  size_t bytes;
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "ping %u", &n) == 1)
      measure_pings(p, n);
    else if (sscanf(line, "tensor %zu %u", &bytes, &n) == 2)
      measure_tensors(p, bytes, n);
    else
      exit_with_message("unknown command");
  }
}

int main(int argc, char **argv) {
  static process p;
  clv_tune_malloc();
  if (argc == 4 && strcmp(argv[1], "serve") == 0) {
    start_process(&p, argv[2], argv[3]);
    serve_link(&p);
  } else if (argc == 7 && strcmp(argv[1], "dial") == 0) {
    start_process(&p, argv[2], argv[3]);
    dial_link(&p, argv[4], argv[5], (uint32_t)atoi(argv[6]));
    run_command(&p);
  } else {
    exit_with_message("usage: bench_link serve CERTS NAME | dial CERTS NAME PORT URI LANES");
  }
  fflush(stdout);
  _exit(0);
}
