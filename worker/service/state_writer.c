/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of files of state: one thread of the worker. A node copies the tensors of a file, and
 * the thread writes the copy while the node's compute thread continues. If files of several
 * identities wait, the thread does not write two files of one identity in a row. Among the files of
 * one identity it writes the oldest file first.
 *
 * A session that ends withdraws its files. A withdrawn file that waits is dropped. If the thread is
 * writing the withdrawn file, it stops reading the node's copy before clv_state_writer_withdraw
 * returns, and deletes the unfinished file later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/service/service_int.h"

/* niceness of the writer's thread, which hashes files while other threads compute */
enum { NICE_VALUE = 10 };

/* A file that waits or is being written. */
typedef struct write_job {
  /* request of the node, which receives the result; NULL: withdrawn, or the result is reported */
  clv_state_save *request;
  /* same pointer as `request`, but kept when the file is withdrawn; the writer's thread reads the
   * tensors through this pointer while may_read_data is true */
  const clv_state_save *data_source;
  bool may_read_data;              /* the writer's thread may still read *data_source */
  char session[CLV_WIRE_NAME + 1]; /* name of the session */
  char owner[CLV_WIRE_URI + 1];    /* identity that opened the session */
  unsigned log_lines_per_minute;   /* limit of log lines about files of the owner */
  clv_state_claim claim;           /* claim on the name of the file */
  struct clv_state_writer *writer;
  struct write_job *next;
} write_job;

struct clv_state_writer {
  clv_service *service;
  pthread_mutex_t lock;
  /* signalled when a file is queued, or may_read_data becomes false */
  pthread_cond_t queue_changed;
  pthread_t thread;
  bool is_started, is_stopping;
  write_job *first_waiting;          /* files that wait, oldest first */
  write_job *current_job;            /* file that is being written; NULL: none */
  char last_owner[CLV_WIRE_URI + 1]; /* owner of the file that was taken out of the queue last */
  clv_state_writes counts;
};

void clv_service_log_state(const char *verb, const char *session, const char *owner,
                           const char *name, unsigned lines_per_minute, clv_code code,
                           const clv_err *err) {
  const clv_log_source source = {owner, "files of state", lines_per_minute};
  clv_log_limited(code == CLV_OK ? CLV_LOG_INFO : CLV_LOG_WARN, "audit", &source,
                  "%s state session=%s identity=%s file=%s reason=\"%s\"", verb, session, owner,
                  name, code == CLV_OK ? "ok" : err->text);
}

/* ---- writing one file ------------------------------------------------------------------------ */

static void write_job_free(write_job *j) {
  clv_states_end_claim(j->writer->service->state_files, &j->claim);
  free(j);
}

static bool is_job_withdrawn(void *user) {
  const write_job *j = user;
  pthread_mutex_lock(&j->writer->lock);
  bool is_withdrawn = !j->request || j->writer->is_stopping;
  pthread_mutex_unlock(&j->writer->lock);
  return is_withdrawn;
}

/* Callback of clv_states_save_claimed: records that the thread does not read the node's copy any
 * more. */
static void on_written(void *user) {
  write_job *j = user;
  pthread_mutex_lock(&j->writer->lock);
  j->may_read_data = false;
  pthread_cond_broadcast(&j->writer->queue_changed);
  pthread_mutex_unlock(&j->writer->lock);
}

static clv_code write_file(write_job *j, clv_sha256 *ret_digest, uint64_t *ret_bytes,
                           clv_err *err) {
  clv_service *v = j->writer->service;
  const clv_cancel_hook cancel_hook = {is_job_withdrawn, j};
  const clv_state_save_request r = {.list = j->data_source->list,
                                    .n = j->data_source->n,
                                    .max_bytes = clv_service_state_quota(v, j->owner),
                                    .cancel_hook = &cancel_hook,
                                    .on_written = on_written,
                                    .user = j};
  return clv_states_save_claimed(v->state_files, &j->claim, &r, ret_digest, ret_bytes, err);
}

/* Reports the result to the node, unless the node has withdrawn the file. The caller holds the
 * writer's lock, so that the node cannot withdraw the file and be freed meanwhile. */
static void report_result(write_job *j, clv_code code, const clv_err *err, const clv_sha256 *digest,
                          uint64_t bytes) {
  clv_state_save *save = j->request;
  if (!save) return;
  save->code = code;
  if (code != CLV_OK) save->failure = *err;
  save->sha256 = *digest;
  save->bytes = bytes;
  j->request = NULL;
  save->on_done(save);
}

static void write_and_report(write_job *j) {
  clv_state_writer *w = j->writer;
  clv_sha256 digest = {0};
  uint64_t bytes = 0, began_ns = clv_now_ns();
  clv_err err;
  clv_code code = write_file(j, &digest, &bytes, &err);
  clv_service_log_state("save", j->session, j->owner, j->claim.name, j->log_lines_per_minute, code,
                        &err);
  /* end the claim before the report, because the node's next STATE_LOAD of this name waits until
   * the claim has ended */
  clv_states_end_claim(w->service->state_files, &j->claim);
  pthread_mutex_lock(&w->lock);
  w->counts.last_write_ns = clv_now_ns() - began_ns;
  w->counts.n_written += code == CLV_OK;
  w->counts.n_failed += code != CLV_OK && code != CLV_CANCELLED;
  report_result(j, code, &err, &digest, bytes);
  j->may_read_data = false;
  w->current_job = NULL;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
  free(j);
}

/* ---- the writer's thread and its queue ------------------------------------------------------- */

/* Takes a file out of the queue: the oldest file of an identity other than last_owner, or, if there
 * is none, the oldest file. Caller holds the writer's lock. */
static write_job *take_next_job(clv_state_writer *w) {
  write_job **at = &w->first_waiting;
  while (*at && strcmp((*at)->owner, w->last_owner) == 0) at = &(*at)->next;
  if (!*at) at = &w->first_waiting;
  write_job *j = *at;
  *at = j->next;
  snprintf(w->last_owner, sizeof w->last_owner, "%s", j->owner);
  j->data_source = j->request;
  j->may_read_data = true;
  return w->current_job = j;
}

static void *write_files(void *user) {
  clv_state_writer *w = user;
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_VALUE);
  for (;;) {
    pthread_mutex_lock(&w->lock);
    while (!w->first_waiting && !w->is_stopping) pthread_cond_wait(&w->queue_changed, &w->lock);
    write_job *j = w->is_stopping ? NULL : take_next_job(w);
    pthread_mutex_unlock(&w->lock);
    if (!j) return NULL;
    write_and_report(j);
  }
}

clv_code clv_state_writer_new(clv_service *s, clv_state_writer **ret, clv_err *err) {
  clv_state_writer *w;
  CLV_TRY(clv_alloc(1, sizeof *w, &w, err));
  w->service = s;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->queue_changed, NULL);
  w->is_started = pthread_create(&w->thread, NULL, write_files, w) == 0;
  if (!w->is_started) {
    clv_state_writer_free(w);
    return clv_fail(err, CLV_EXHAUSTED, "cannot start the writer of files of state");
  }
  *ret = w;
  return CLV_OK;
}

void clv_state_writer_free(clv_state_writer *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->is_stopping = true;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
  if (w->is_started) pthread_join(w->thread, NULL);
  for (write_job *j = w->first_waiting, *next; j; j = next) {
    next = j->next;
    write_job_free(j);
  }
  pthread_cond_destroy(&w->queue_changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

/* ---- queueing and withdrawing files ---------------------------------------------------------- */

clv_code clv_state_writer_add(clv_state_writer *w, const clv_session *s, clv_state_save *save,
                              clv_err *err) {
  write_job *j;
  CLV_TRY(clv_alloc(1, sizeof *j, &j, err));
  j->request = save;
  j->writer = w;
  j->log_lines_per_minute = (unsigned)s->settings->config->log.lines_per_minute;
  snprintf(j->session, sizeof j->session, "%s", s->name);
  snprintf(j->owner, sizeof j->owner, "%s", s->owner);
  clv_states_begin_claim(w->service->state_files, j->owner, save->name, &j->claim);
  pthread_mutex_lock(&w->lock);
  write_job **end = &w->first_waiting;
  while (*end) end = &(*end)->next;
  *end = j;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
  return CLV_OK;
}

/* Takes the file of the request `save` out of the queue; NULL: the queue does not have it. Caller
 * holds the writer's lock. */
static write_job *take_waiting_job(clv_state_writer *w, const clv_state_save *save) {
  write_job **at = &w->first_waiting;
  while (*at && (*at)->request != save) at = &(*at)->next;
  write_job *j = *at;
  if (j) *at = j->next;
  return j;
}

void clv_state_writer_withdraw(clv_state_writer *w, const clv_state_save *save) {
  pthread_mutex_lock(&w->lock);
  write_job *waiting_job = take_waiting_job(w, save), *running_job = w->current_job;
  if (running_job && running_job->request == save) {
    running_job->request = NULL;
    while (w->current_job == running_job && running_job->may_read_data)
      pthread_cond_wait(&w->queue_changed, &w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  if (waiting_job) write_job_free(waiting_job);
}

clv_state_writes clv_state_writer_counts(clv_state_writer *w) {
  pthread_mutex_lock(&w->lock);
  clv_state_writes c = w->counts;
  c.n_pending = w->current_job != NULL;
  for (const write_job *j = w->first_waiting; j; j = j->next) c.n_pending++;
  pthread_mutex_unlock(&w->lock);
  return c;
}
