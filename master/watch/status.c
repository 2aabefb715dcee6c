/* SPDX-License-Identifier: Apache-2.0
 *
 * The command status: asks the workers of a session file for their state and shows it. Each worker
 * has its own thread and connection, so a dead or distant worker does not delay the others, and a
 * run with the same certificates is not affected.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "master/watch/status_int.h"
#include "master/watch/watch.h"

enum {
  MAX_ANSWER_WAIT_MS = 5000, /* time limit in ms for the answer of a worker */
  /* requests to each worker for one report: the first starts link measurements, the answers to the
   * other two are compared */
  N_ROUNDS = 3,
  FIRST_FRAME_MS = 100,
};

typedef struct watched_worker {
  struct status_command *status;
  uint32_t index;
  pthread_t thread;
  bool is_started;
  /* connection to the worker, used by its thread only; NULL: not connected */
  clv_rpc_channel *channel;
  unsigned n_rounds; /* number of requests so far; used by the worker's thread only */
  /* status->lock protects the fields below. */
  bool has_outcome;   /* the worker has answered, or could not be asked */
  bool has_failed;    /* the last request has failed */
  bool was_refused;   /* the worker refused this identity, or is at its limits */
  uint32_t n_replies; /* number of valid replies, 0 to 2; if it is 1, only new_reply is valid */
  clv_wire_status_reply old_reply, new_reply;
  char error[CLV_ERR_TEXT], fix[CLV_TLS_URI_LEN + 100];
} watched_worker;

typedef struct status_command {
  const clv_session_config *config;
  const clv_run_options *o;
  clv_find_escrow_fn *find_escrow;
  clv_tls_identity *identity;
  clv_rpc_runtime *runtime;
  uint64_t interval_ns;
  pthread_mutex_t lock;
  pthread_cond_t stop_condition; /* wakes the sleeping threads when `is_stopping` is set */
  bool is_stopping;
  watched_worker *workers; /* [config->n_workers] the workers that are asked */
} status_command;

/* ---- asking a worker ------------------------------------------------------------------------- */

static const clv_remote_spec *worker_spec_of(const watched_worker *w) {
  return &w->status->config->workers[w->index];
}

static clv_code connect_channel(watched_worker *w, unsigned ms, clv_err *err) {
  const clv_tls_identity *id = w->status->identity;
  if (w->channel) return CLV_OK;
  clv_rpc_channel_options o = {.target_address = worker_spec_of(w)->address,
                               .expected_uri = worker_spec_of(w)->identity,
                               .pem = {id->ca_pem, id->cert_pem, id->key_pem}};
  CLV_TRY(clv_rpc_channel_new(w->status->runtime, &o, &w->channel, err));
  if (clv_rpc_channel_connect(w->channel, ms, err) == CLV_OK) return CLV_OK;
  clv_tls_explain_refusal(worker_spec_of(w)->address, id, ms, err);
  return err->code;
}

static clv_code request_status(watched_worker *w, clv_wire_status_reply *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, reply = {0};
  const clv_wire_status_request status_request = {.all_sessions = true,
                                                  .newest_protocol = CLV_WIRE_PROTOCOL};
  uint64_t max_wait_ms = w->status->config->limits.connect_timeout_ms;
  unsigned ms = (unsigned)CLV_MIN(max_wait_ms, (uint64_t)MAX_ANSWER_WAIT_MS);
  CLV_TRY(connect_channel(w, ms, err));
  CLV_TRY(clv_wire_status_request_encode(&status_request, &request, err));
  clv_code code =
      clv_rpc_call_unary(w->channel, CLV_METHOD_STATUS, request.data, request.len, ms, &reply, err);
  if (code == CLV_DEADLINE)
    return clv_fail(err, code, "%s: connected, but no answer within %.1f s",
                    worker_spec_of(w)->address, ms / 1e3);
  CLV_TRY(code);
  return clv_wire_status_reply_decode(&(clv_piece){reply.data, reply.len}, 1, ret, err);
}

/* Writes to `dst` what the user can do about an error. */
static void write_remedy(const watched_worker *w, const clv_err *reason, char *dst, size_t len) {
  const char *file = w->status->config->file;
  switch (reason->code) {
    case CLV_DENIED:
      snprintf(dst, len, "add identity %s to `allow` in its worker.yaml, as master or observer",
               w->status->identity->uri);
      return;
    case CLV_UNIMPLEMENTED:
      snprintf(dst, len, "run the same release of cleave on both sides");
      return;
    case CLV_EXHAUSTED:
      snprintf(dst, len, "it is at its limits: raise %s in its worker.yaml",
               strstr(reason->text, "connections") ? "limits.identity_connections"
                                                   : "limits.concurrent_calls");
      return;
    case CLV_UNAUTHENTICATED:
      snprintf(dst, len,
               "workers.%s has another address or identity than that worker, or one of the two "
               "certificates has expired or is of another CA: `cleave-master doctor %s` says which",
               worker_spec_of(w)->name, file);
      return;
    case CLV_NOT_FOUND:
      snprintf(dst, len, "correct the host in workers.%s.address of %s", worker_spec_of(w)->name,
               file);
      return;
    case CLV_DEADLINE:
      snprintf(dst, len,
               "is its process stopped, or the host or link overloaded? `cleave-master doctor %s` "
               "tries each step",
               file);
      return;
    default:
      snprintf(dst, len,
               "is cleave-worker running there? `cleave-master doctor %s` tries each step", file);
  }
}

static void store_failure(watched_worker *w, const clv_err *reason) {
  pthread_mutex_lock(&w->status->lock);
  clv_wire_message_clear(&w->old_reply);
  clv_wire_message_clear(&w->new_reply);
  w->n_replies = 0;
  w->has_outcome = w->has_failed = true;
  snprintf(w->error, sizeof w->error, "%s", reason->text);
  write_remedy(w, reason, w->fix, sizeof w->fix);
  w->was_refused = reason->code == CLV_DENIED || reason->code == CLV_EXHAUSTED;
  pthread_mutex_unlock(&w->status->lock);
}

static void store_reply(watched_worker *w, const clv_wire_status_reply *reply) {
  pthread_mutex_lock(&w->status->lock);
  clv_wire_message_clear(&w->old_reply);
  w->old_reply = w->new_reply;
  w->new_reply = *reply;
  w->n_replies = CLV_MIN(w->n_replies + 1, 2u);
  w->has_outcome = true;
  w->has_failed = false;
  pthread_mutex_unlock(&w->status->lock);
}

static bool query_once(watched_worker *w) {
  clv_wire_status_reply reply = {0};
  clv_err err;
  if (request_status(w, &reply, &err) == CLV_OK) {
    store_reply(w, &reply);
    return true;
  }
  clv_rpc_channel_freep(&w->channel); /* closes the connection; the next round connects again */
  store_failure(w, &err);
  return false;
}

/* Sleeps until the next round. Returns false if the command stops before. */
static bool sleep_until(status_command *s, uint64_t at_ns) {
  struct timespec at = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
  pthread_mutex_lock(&s->lock);
  while (!s->is_stopping && clv_now_ns() < at_ns)
    pthread_cond_timedwait(&s->stop_condition, &s->lock, &at);
  bool must_continue = !s->is_stopping;
  pthread_mutex_unlock(&s->lock);
  return must_continue;
}

/* Thread of one worker, which sends it a request in each round. The first request only makes the
 * worker start to measure its links, so the second one follows soon. */
static void *watch_worker(void *user) {
  watched_worker *w = user;
  status_command *s = w->status;
  bool asks_once = !s->o->watch;
  for (uint64_t next_ask_ns = clv_now_ns();;) {
    bool has_answered = query_once(w);
    w->n_rounds++;
    if (asks_once && (!has_answered || w->n_rounds == N_ROUNDS)) return NULL;
    uint64_t pause_ns = w->n_rounds == 1 ? s->interval_ns / 2 : s->interval_ns;
    next_ask_ns = CLV_MAX(next_ask_ns + pause_ns, clv_now_ns());
    if (!sleep_until(s, next_ask_ns)) return NULL;
  }
}

/* ---- showing the answers --------------------------------------------------------------------- */

/* Makes the view of all workers that `status` shows. Caller holds the lock while it uses the view,
 * because the view refers to texts of the answers. */
static clv_code make_view(status_command *s, clv_status_view *l, clv_status_buffers *buffers,
                          clv_err *err) {
  for (uint32_t i = 0; i < l->n_workers; i++) {
    watched_worker *w = &s->workers[i];
    clv_status_worker *to = &l->workers[i];
    *to =
        (clv_status_worker){.name = worker_spec_of(w)->name, .address = worker_spec_of(w)->address};
    if (w->n_replies)
      CLV_TRY(clv_status_compare(s->config, i, w->n_replies > 1 ? &w->old_reply : NULL,
                                 &w->new_reply, &buffers[i], to, err));
    to->has_outcome = w->has_outcome;
    to->error = w->has_failed ? w->error : NULL;
    to->was_refused = w->was_refused;
    to->fix = w->has_failed ? w->fix : NULL;
  }
  return CLV_OK;
}

static void show_report(status_command *s, clv_screen *screen) {
  CLV_AUTO(clv_freep) clv_status_worker *workers = NULL;
  CLV_AUTO(clv_freep) clv_status_buffers *memory = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, brief = {0};
  char clock[16], escrow_error[CLV_ERR_TEXT];
  clv_status_escrow escrow;
  time_t now = time(NULL);
  struct tm tm;
  clv_err err;
  uint32_t n = (uint32_t)s->config->n_workers;
  strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &tm));
  clv_status_view l = {.title = s->config->name, .clock = clock, .n_workers = n};
  if (s->find_escrow(s->config, &escrow, escrow_error)) l.escrow = &escrow;
  clv_code code = clv_alloc(n, sizeof *workers, &workers, &err);
  if (code == CLV_OK) code = clv_alloc(n, sizeof *memory, &memory, &err);
  l.workers = workers;
  pthread_mutex_lock(&s->lock);
  if (code == CLV_OK) code = make_view(s, &l, memory, &err);
  if (code == CLV_OK && screen) clv_status_text(&l, clv_screen_width(screen), &text);
  if (code == CLV_OK && screen) clv_status_brief_text(&l, clv_screen_width(screen), &brief);
  if (code == CLV_OK && !screen) clv_status_json(&l, &text);
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = 0; memory && i < n; i++) clv_status_buffers_done(&memory[i]);
  /* out of memory: nothing is shown now, but the next round may have memory */
  if (code != CLV_OK || text.failed) return;
  if (screen) {
    clv_screen_draw(screen, &text, &brief);
  } else {
    fwrite(text.data, 1, text.len, stdout);
    fflush(stdout);
  }
}

/* Counts the workers that do not answer. */
static uint32_t count_unanswered_workers(status_command *s) {
  uint32_t n_unanswered = 0;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < s->config->n_workers; i++)
    n_unanswered += s->workers[i].has_failed || !s->workers[i].has_outcome;
  pthread_mutex_unlock(&s->lock);
  return n_unanswered;
}

/* Returns true if each worker has failed or answered `n_replies` times. */
static bool have_all_replied(status_command *s, uint32_t n_replies) {
  bool all_have_replied = true;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < s->config->n_workers; i++)
    all_have_replied &= s->workers[i].has_failed || s->workers[i].n_replies >= n_replies;
  pthread_mutex_unlock(&s->lock);
  return all_have_replied;
}

/* Repeats the report until Ctrl-C. A terminal shows at once which workers have not answered yet. A
 * file or pipe gets the first report when all workers have two answers to compare; the command ends
 * when the pipe is closed. */
static void show_repeatedly(status_command *s, clv_screen *screen) {
  bool redraws_screen = screen && clv_screen_is_terminal(screen), has_begun = false;
  while (!*s->o->interrupted && !ferror(stdout)) {
    has_begun |= have_all_replied(s, redraws_screen ? 1 : 2);
    if (redraws_screen || has_begun) show_report(s, screen);
    uint64_t pause_ns = has_begun ? s->interval_ns : FIRST_FRAME_MS * 1000000u;
    struct timespec pause = {(time_t)(pause_ns / 1000000000u), (long)(pause_ns % 1000000000u)};
    nanosleep(&pause, NULL); /* sleeps; a signal ends the sleep early */
  }
}

/* ---- the command status ---------------------------------------------------------------------- */

static clv_code open_status_command(status_command *s, clv_err *err) {
  const clv_tls_config *t = &s->config->tls;
  clv_rpc_runtime_options ro = {.n_queue_threads = 2};
  CLV_TRY(clv_tls_set_min_version(err));
  CLV_TRY(clv_tls_identity_load(t->ca, t->cert, t->key, &s->identity, err));
  CLV_TRY(clv_tls_identity_require_usage(s->identity, CLV_TLS_CLIENT, err));
  CLV_TRY(clv_tls_revocation_load(t->crl, s->identity, err));
  CLV_TRY(clv_alloc(s->config->n_workers, sizeof *s->workers, &s->workers, err));
  CLV_TRY(clv_rpc_runtime_new(&ro, &s->runtime, err));
  for (uint32_t i = 0; i < s->config->n_workers; i++) {
    watched_worker *w = &s->workers[i];
    *w = (watched_worker){.status = s, .index = i};
    if (pthread_create(&w->thread, NULL, watch_worker, w) != 0)
      return clv_fail(err, CLV_EXHAUSTED, "no thread to ask worker '%s'", worker_spec_of(w)->name);
    w->is_started = true;
  }
  return CLV_OK;
}

static void join_threads(status_command *s) {
  for (uint32_t i = 0; s->workers && i < s->config->n_workers; i++)
    if (s->workers[i].is_started) pthread_join(s->workers[i].thread, NULL);
}

static void close_status_command(status_command *s) {
  pthread_mutex_lock(&s->lock);
  s->is_stopping = true;
  pthread_cond_broadcast(&s->stop_condition);
  pthread_mutex_unlock(&s->lock);
  join_threads(s);
  for (uint32_t i = 0; s->workers && i < s->config->n_workers; i++) {
    clv_wire_message_clear(&s->workers[i].old_reply);
    clv_wire_message_clear(&s->workers[i].new_reply);
    clv_rpc_channel_free(s->workers[i].channel);
  }
  clv_rpc_runtime_free(s->runtime);
  clv_tls_identity_free(s->identity);
  free(s->workers);
  pthread_cond_destroy(&s->stop_condition);
  pthread_mutex_destroy(&s->lock);
}

static clv_exit_code run_status_command(status_command *s) {
  clv_screen *screen = NULL;
  clv_err err;
  if (!s->o->json && clv_screen_open(s->o->watch, &screen, &err) != CLV_OK) {
    clv_exit_report(CLV_EXIT_FAILED, &err);
    return CLV_EXIT_FAILED;
  }
  if (s->o->watch) {
    show_repeatedly(s, screen);
  } else {
    join_threads(s);
    for (uint32_t i = 0; i < s->config->n_workers; i++) s->workers[i].is_started = false;
    show_report(s, screen);
  }
  clv_screen_close(screen);
  return count_unanswered_workers(s) ? CLV_EXIT_CONNECT : CLV_EXIT_OK;
}

static void init_status_command(status_command *s) {
  pthread_condattr_t clock_attr;
  pthread_mutex_init(&s->lock, NULL);
  pthread_condattr_init(&clock_attr);
  pthread_condattr_setclock(&clock_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&s->stop_condition, &clock_attr);
  pthread_condattr_destroy(&clock_attr);
}

clv_exit_code clv_show_status(const clv_session_config *config, const clv_run_options *o,
                              clv_find_escrow_fn *find_escrow) {
  double interval = o->interval_s > 0 ? o->interval_s : 1;
  status_command s = {.config = config,
                      .o = o,
                      .find_escrow = find_escrow,
                      .interval_ns = (uint64_t)(interval * 1e9)};
  sigset_t blocked_signals, old_signals;
  clv_err err;
  if (!config->n_workers) {
    puts("this session has no workers to ask");
    return CLV_EXIT_OK;
  }
  if (!o->watch) { /* Ctrl-C ends the process at once, since nothing needs cleanup */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
  }
  init_status_command(&s);
  sigemptyset(&blocked_signals); /* only this thread, which sleeps, handles Ctrl-C */
  sigaddset(&blocked_signals, SIGINT);
  sigaddset(&blocked_signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked_signals, &old_signals);
  clv_code code = open_status_command(&s, &err);
  pthread_sigmask(SIG_SETMASK, &old_signals, NULL);
  clv_exit_code result = CLV_EXIT_CONNECT;
  if (code == CLV_OK)
    result = run_status_command(&s);
  else
    clv_exit_report(result, &err);
  close_status_command(&s);
  return result;
}
