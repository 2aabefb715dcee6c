/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixtures that the tests of this folder share: a scratch CA with valid and invalid certificates, a
 * runtime, an echo server over real loopback TLS, and recorders for the events of streams.
 */
#ifndef CLEAVE_TESTS_RPC_FIXTURE_H
#define CLEAVE_TESTS_RPC_FIXTURE_H

#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "tests/unit/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
/* sanitizers are slow, so all times are longer with them */
#define TIME_SCALE (CLV_SANITIZED ? 10 : 1)
#define MASTER_URI "spiffe://cleave/master"
#define OTHER_URI "spiffe://cleave/other"
#define WORKER_URI "spiffe://cleave/worker-1"

/* ---- certificates of the peers --------------------------------------------------------------- */

typedef struct identity {
  clv_bytes ca, cert, key;
} identity;

static char scratch[64];

static UNUSED clv_rpc_pem get_pem(const identity *id) {
  return (clv_rpc_pem){id->ca.data, id->cert.data, id->key.data};
}

static UNUSED void read_pem(const char *dir, const char *file, clv_bytes *ret) {
  char path[400];
  clv_err err;
  snprintf(path, sizeof path, "%s/%s", dir, file);
  must(clv_file_read(path, 1 << 20, ret, &err), &err);
}

static UNUSED const char *get_ca_dir(const char *ca) {
  static char dir[160];
  snprintf(dir, sizeof dir, "%s/%s", scratch, ca);
  return dir;
}

static UNUSED void make_test_ca(const char *ca) {
  clv_err err;
  must(clv_tls_ca_init(get_ca_dir(ca), ca, 30, &err), &err);
}

/* Issues a certificate of `ca` with these URIs and, unless dns is NULL, with the DNS name `dns`,
 * which may be invalid. */
static UNUSED identity issue_identity(const char *ca, const char *name, const char *const *uris,
                                      size_t n, const char *dns) {
  clv_err err;
  identity id = {0};
  clv_tls_issue_options options = {.ca_dir = get_ca_dir(ca),
                                   .cert_name = name,
                                   .uris = uris,
                                   .n_uris = n,
                                   .dns_names = &dns,
                                   .n_dns_names = dns != NULL,
                                   .validity_days = 7,
                                   .not_before_offset_s = -300,
                                   .allow_unusual = true};
  must(clv_tls_issue_cert(&options, &err), &err);
  char file[100];
  read_pem(get_ca_dir(ca), "ca.pem", &id.ca);
  snprintf(file, sizeof file, "%s.pem", name);
  read_pem(get_ca_dir(ca), file, &id.cert);
  snprintf(file, sizeof file, "%s.key", name);
  read_pem(get_ca_dir(ca), file, &id.key);
  return id;
}

static UNUSED identity issue_identity_with_uri(const char *ca, const char *name, const char *uri) {
  return issue_identity(ca, name, &uri, 1, NULL);
}

static UNUSED void free_identity(identity *id) {
  clv_bytes_done(&id->ca);
  clv_bytes_done(&id->cert);
  clv_bytes_done(&id->key);
}

static UNUSED void make_scratch(void) {
  snprintf(scratch, sizeof scratch, "/tmp/cleave-rpc-XXXXXX");
  assert_non_null(mkdtemp(scratch));
  make_test_ca("home");
  make_test_ca("foreign");
}

static UNUSED int remove_scratch(void) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", scratch);
  return system(command);
}

/* ---- events a test waits for ----------------------------------------------------------------- */

typedef struct event {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  unsigned n_raised;
} event;

#define EVENT_INIT \
  { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 }

static UNUSED void event_raise(event *e) {
  pthread_mutex_lock(&e->lock);
  e->n_raised++;
  pthread_cond_broadcast(&e->changed);
  pthread_mutex_unlock(&e->lock);
}

static UNUSED unsigned event_get_count(event *e) {
  pthread_mutex_lock(&e->lock);
  unsigned n = e->n_raised;
  pthread_mutex_unlock(&e->lock);
  return n;
}

static UNUSED bool event_wait_for_count(event *e, unsigned count, unsigned ms) {
  struct timespec deadline;
  ms *= TIME_SCALE;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += ms / 1000;
  deadline.tv_nsec += (long)(ms % 1000) * 1000000;
  if (deadline.tv_nsec >= 1000000000) {
    deadline.tv_nsec -= 1000000000;
    deadline.tv_sec++;
  }
  pthread_mutex_lock(&e->lock);
  int rc = 0;
  while (e->n_raised < count && rc == 0)
    rc = pthread_cond_timedwait(&e->changed, &e->lock, &deadline);
  bool is_reached = e->n_raised >= count;
  pthread_mutex_unlock(&e->lock);
  return is_reached;
}

/* ---- a recording stream ---------------------------------------------------------------------- */

typedef struct recorder {
  event messages, closed;
  pthread_mutex_t lock;
  clv_bytes all_data; /* bytes of all messages, one after the other */
  size_t last_message_len;
  clv_code end_code;
  char end_text[300];
} recorder;

static UNUSED void init_recorder(recorder *r) {
  *r = (recorder){.messages = EVENT_INIT, .closed = EVENT_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};
}

static UNUSED void record_message(void *user, clv_rpc_stream *stream, const clv_iov *pieces,
                                  size_t n) {
  (void)stream;
  recorder *r = user;
  pthread_mutex_lock(&r->lock);
  for (size_t i = 0; i < n; i++) clv_bytes_add(&r->all_data, pieces[i].data, pieces[i].len);
  r->last_message_len = clv_iov_bytes(pieces, n);
  pthread_mutex_unlock(&r->lock);
  event_raise(&r->messages);
}

static UNUSED void record_closed(void *user, clv_rpc_stream *stream, clv_code code,
                                 const char *text) {
  (void)stream;
  recorder *r = user;
  pthread_mutex_lock(&r->lock);
  r->end_code = code;
  snprintf(r->end_text, sizeof r->end_text, "%s", text);
  pthread_mutex_unlock(&r->lock);
  event_raise(&r->closed);
}

static UNUSED clv_rpc_stream_events make_recorder_events(recorder *r) {
  return (clv_rpc_stream_events){
      .user = r, .on_message = record_message, .on_closed = record_closed};
}

/* ---- the server under test ------------------------------------------------------------------- */

typedef struct service {
  clv_rpc_runtime *runtime;
  clv_rpc_server *server;
  char target[64];
  atomic_uint n_handled, closed;
  recorder sink_recorder;   /* messages that /test/Sink received */
  _Atomic bool delays_echo; /* true: /test/Echo delays its messages */
  char seen_uri[200];
} service;

static UNUSED void free_owner(void *owner) { free(owner); }

static UNUSED void echo_message(void *user, clv_rpc_stream *stream, const clv_iov *pieces,
                                size_t n) {
  service *s = user;
  while (s->delays_echo) usleep(1000);
  size_t len = clv_iov_bytes(pieces, n);
  char *copy = malloc(len + 1);
  clv_iov_copy(pieces, n, 0, copy, len);
  clv_err err;
  clv_rpc_piece piece = {copy, len, free_owner, copy};
  if (clv_rpc_stream_send(stream, &piece, 1, &err) != CLV_OK) atomic_fetch_add(&s->n_handled, 1000);
  atomic_fetch_add(&s->n_handled, 1);
}

static UNUSED void count_closed_stream(void *user, clv_rpc_stream *stream, clv_code code,
                                       const char *text) {
  (void)stream, (void)code, (void)text;
  atomic_fetch_add(&((service *)user)->closed, 1);
}

static UNUSED clv_code serve_stream(void *user, const char *method, const clv_rpc_peer *peer,
                                    clv_rpc_stream *stream, clv_rpc_stream_events *ret_events,
                                    clv_err *err) {
  (void)peer;
  service *s = user;
  if (strcmp(method, "/test/Refuse") == 0)
    return clv_fail(err, CLV_PRECONDITION, "not this stream");
  if (strcmp(method, "/test/Sink") == 0) {
    *ret_events = make_recorder_events(&s->sink_recorder);
    return CLV_OK;
  }
  if (strcmp(method, "/test/Greet") == 0) {
    clv_rpc_piece greeting = {"hello", 5, NULL, NULL};
    CLV_TRY(clv_rpc_stream_send(stream, &greeting, 1, err));
    clv_rpc_stream_close(stream);
  }
  if (strcmp(method, "/test/Kill") == 0)
    clv_rpc_stream_cancel(stream, CLV_ABORTED, "killed by the server");
  *ret_events = (clv_rpc_stream_events){
      .user = s, .on_message = echo_message, .on_closed = count_closed_stream};
  return CLV_OK;
}

static UNUSED clv_code allow_master_only(void *user, const clv_rpc_peer *peer, const char *method,
                                         clv_err *err) {
  service *s = user;
  (void)method;
  pthread_mutex_lock(&s->sink_recorder.lock);
  snprintf(s->seen_uri, sizeof s->seen_uri, "%s", peer->uri);
  pthread_mutex_unlock(&s->sink_recorder.lock);
  if (strcmp(peer->uri, MASTER_URI) != 0)
    return clv_fail(err, CLV_DENIED, "%s is not allowed here", peer->uri);
  return CLV_OK;
}

static UNUSED void assert_seen_uri(service *s, const char *uri) {
  pthread_mutex_lock(&s->sink_recorder.lock);
  bool is_same = strcmp(s->seen_uri, uri) == 0;
  pthread_mutex_unlock(&s->sink_recorder.lock);
  assert_true(is_same);
}

static UNUSED clv_code answer_echo(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                   size_t n, clv_bytes *reply, clv_err *err) {
  (void)peer, (void)err;
  atomic_fetch_add(&((service *)user)->n_handled, 1);
  for (size_t i = 0; i < n; i++) clv_bytes_add(reply, request[i].data, request[i].len);
  return CLV_OK;
}

static UNUSED clv_code answer_slowly(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                     size_t n, clv_bytes *reply, clv_err *err) {
  usleep(300000 * TIME_SCALE);
  return answer_echo(user, peer, request, n, reply, err);
}

static UNUSED clv_code answer_failure(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                                      size_t n, clv_bytes *reply, clv_err *err) {
  (void)user, (void)peer, (void)request, (void)n, (void)reply;
  return clv_fail(err, CLV_NOT_FOUND, "no session 7");
}

static const clv_rpc_unary UNARY[] = {{"/test/Say", 0, answer_echo},
                                      {"/test/Small", 16, answer_echo},
                                      {"/test/Slow", 0, answer_slowly},
                                      {"/test/Fail", 0, answer_failure}};
static const char *const STREAMS[] = {"/test/Echo", "/test/Sink", "/test/Greet", "/test/Kill",
                                      "/test/Refuse"};

static UNUSED clv_rpc_server_options make_service_options(service *s, const identity *id) {
  return (clv_rpc_server_options){.listen_address = "127.0.0.1:0",
                                  .pem = get_pem(id),
                                  .user = s,
                                  .authorize = allow_master_only,
                                  .unary_methods = UNARY,
                                  .n_unary_methods = CLV_COUNT(UNARY),
                                  .stream_methods = STREAMS,
                                  .n_stream_methods = CLV_COUNT(STREAMS),
                                  .on_stream = serve_stream,
                                  .max_calls_per_peer = 4096,
                                  .max_streams_per_conn = 4096};
}

static UNUSED void start_service(service *s, clv_rpc_runtime *runtime,
                                 const clv_rpc_server_options *options) {
  clv_err err;
  s->runtime = runtime;
  init_recorder(&s->sink_recorder);
  must(clv_rpc_server_new(runtime, options, &s->server, &err), &err);
  snprintf(s->target, sizeof s->target, "127.0.0.1:%u", clv_rpc_server_port(s->server));
}

static UNUSED void stop_service(service *s) {
  clv_rpc_server_freep(&s->server);
  clv_bytes_done(&s->sink_recorder.all_data);
}

static UNUSED clv_rpc_runtime *make_runtime(void) {
  clv_rpc_runtime *runtime = NULL;
  clv_err err;
  must(clv_rpc_runtime_new(&(clv_rpc_runtime_options){0}, &runtime, &err), &err);
  return runtime;
}

/* Main of the process that start_process runs: serves with the certificates in `dir` and prints its
 * port. */
static UNUSED _Noreturn void serve_forever(const char *dir) {
  identity worker = {0};
  service s = {0};
  snprintf(scratch, sizeof scratch, "%s", dir);
  read_pem(get_ca_dir("home"), "ca.pem", &worker.ca);
  read_pem(get_ca_dir("home"), "worker.pem", &worker.cert);
  read_pem(get_ca_dir("home"), "worker.key", &worker.key);
  clv_rpc_server_options options = make_service_options(&s, &worker);
  start_service(&s, make_runtime(), &options);
  printf("%u\n", clv_rpc_server_port(s.server));
  fflush(stdout);
  for (;;) pause();
}

/* Starts this program as a server process. Its main, called with the scratch folder as only
 * argument, calls serve_forever. A plain fork would copy half of gRPC's state. A server that dies
 * ends the test. */
static UNUSED pid_t start_process(char target[64]) {
  int fds[2];
  char port[16] = "";
  assert_int_equal(pipe(fds), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(fds[1], STDOUT_FILENO);
    execl("/proc/self/exe", "serve", scratch, (char *)NULL);
    _exit(127);
  }
  close(fds[1]);
  assert_true(read(fds[0], port, sizeof port - 1) > 0);
  close(fds[0]);
  snprintf(target, 64, "127.0.0.1:%d", atoi(port));
  return child;
}

static UNUSED clv_rpc_channel *make_channel(clv_rpc_runtime *runtime, const char *target,
                                            const identity *id, const char *uri) {
  clv_rpc_channel *channel = NULL;
  clv_err err;
  clv_rpc_channel_options options = {
      .target_address = target, .expected_uri = uri, .pem = get_pem(id)};
  must(clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  return channel;
}

#endif
