/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of files of state: one thread of the worker, which writes what nodes have copied,
 * while their compute threads continue. If files of several identities wait, it does not write two
 * files of one identity in a row. Of one identity it writes the oldest file first.
 *
 * A session that ends withdraws its files. A file that waits is dropped. A file that is being
 * written is given up: the thread stops reading the node's copy before the call returns, and
 * deletes the unfinished file later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/service/service_int.h"

/* niceness of the writer's thread, because it hashes while other threads compute */
enum { NICE_VALUE = 10 };

typedef struct job {
  /* request of the node, which receives the result; NULL: the session has withdrawn it */
  clv_state_save *save;
  /* request whose data are written, also if `save` is NULL; readable while may_read_data is true */
  const clv_state_save *data;
  bool may_read_data; /* the writer's thread may still read `data` */
  char session[CLV_WIRE_NAME + 1], owner[CLV_WIRE_URI + 1];
  unsigned log_lines;
  clv_state_claim claim;
  struct clv_state_writer *writer;
  struct job *next;
} job;

struct clv_state_writer {
  clv_service *service;
  pthread_mutex_t lock;
  pthread_cond_t queue_changed;
  pthread_t thread;
  bool is_started, is_stopping;
  job *first;                        /* files that wait, oldest first */
  job *current;                      /* file that is being written; NULL: none */
  char last_owner[CLV_WIRE_URI + 1]; /* owner of the file that was taken last */
  clv_state_writes counts;
};

void clv_service_log_state(const char *verb, const char *session, const char *owner,
                           const char *name, unsigned lines, clv_code code, const clv_err *err) {
  const clv_log_source source = {owner, "files of state", lines};
  clv_log_limited(code == CLV_OK ? CLV_LOG_INFO : CLV_LOG_WARN, "audit", &source,
                  "%s state session=%s identity=%s file=%s reason=\"%s\"", verb, session, owner,
                  name, code == CLV_OK ? "ok" : err->text);
}

/* ---- writing one file ------------------------------------------------------------------------ */

static void job_free(job *j) {
  clv_states_end_claim(j->writer->service->state_files, &j->claim);
  free(j);
}

static bool is_withdrawn(void *user) {
  const job *j = user;
  pthread_mutex_lock(&j->writer->lock);
  bool withdrawn = !j->save || j->writer->is_stopping;
  pthread_mutex_unlock(&j->writer->lock);
  return withdrawn;
}

/* Records that the node's copy is not read any more. */
static void on_written(void *user) {
  job *j = user;
  pthread_mutex_lock(&j->writer->lock);
  j->may_read_data = false;
  pthread_cond_broadcast(&j->writer->queue_changed);
  pthread_mutex_unlock(&j->writer->lock);
}

static clv_code write_file(job *j, clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  clv_service *v = j->writer->service;
  const clv_cancel_hook waiter = {is_withdrawn, j};
  const clv_state_save_request r = {.list = j->data->list,
                                    .n = j->data->n,
                                    .max_bytes = clv_service_state_quota(v, j->owner),
                                    .waiter = &waiter,
                                    .on_written = on_written,
                                    .user = j};
  return clv_states_save_claimed(v->state_files, &j->claim, &r, ret_digest, ret_bytes, err);
}

/* Reports the result to the node, unless the node has withdrawn the file. Caller holds the lock, so
 * that the node is not freed meanwhile. */
static void report_result(job *j, clv_code code, const clv_err *err, const clv_sha256 *digest,
                          uint64_t bytes) {
  clv_state_save *save = j->save;
  if (!save) return;
  save->code = code;
  if (code != CLV_OK) save->failure = *err;
  save->sha256 = *digest;
  save->bytes = bytes;
  j->save = NULL;
  save->on_done(save);
}

static void write_and_report(job *j) {
  clv_state_writer *w = j->writer;
  clv_sha256 digest = {0};
  uint64_t bytes = 0, began = clv_now_ns();
  clv_err err;
  clv_code code = write_file(j, &digest, &bytes, &err);
  clv_service_log_state("save", j->session, j->owner, j->claim.name, j->log_lines, code, &err);
  /* released first, because the node's next STATE_LOAD of this name would wait for the claim */
  clv_states_end_claim(w->service->state_files, &j->claim);
  pthread_mutex_lock(&w->lock);
  w->counts.last_ns = clv_now_ns() - began;
  w->counts.written += code == CLV_OK;
  w->counts.failed += code != CLV_OK && code != CLV_CANCELLED;
  report_result(j, code, &err, &digest, bytes);
  j->may_read_data = false;
  w->current = NULL;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
  free(j);
}

/* ---- the writer's thread and its queue ------------------------------------------------------- */

/* Takes out of the queue the oldest file of an identity other than that of the last file; if there
 * is none, the oldest file. Caller holds the lock. */
static job *take_job(clv_state_writer *w) {
  job **at = &w->first;
  while (*at && strcmp((*at)->owner, w->last_owner) == 0) at = &(*at)->next;
  if (!*at) at = &w->first;
  job *j = *at;
  *at = j->next;
  snprintf(w->last_owner, sizeof w->last_owner, "%s", j->owner);
  j->data = j->save;
  j->may_read_data = true;
  return w->current = j;
}

static void *write_files(void *user) {
  clv_state_writer *w = user;
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_VALUE);
  for (;;) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->is_stopping) pthread_cond_wait(&w->queue_changed, &w->lock);
    job *j = w->is_stopping ? NULL : take_job(w);
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
  for (job *j = w->first, *next; j; j = next) {
    next = j->next;
    job_free(j);
  }
  pthread_cond_destroy(&w->queue_changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

/* ---- functions for nodes --------------------------------------------------------------------- */

clv_code clv_state_writer_add(clv_state_writer *w, const clv_session *s, clv_state_save *save,
                              clv_err *err) {
  job *j;
  CLV_TRY(clv_alloc(1, sizeof *j, &j, err));
  j->save = save;
  j->writer = w;
  j->log_lines = (unsigned)s->settings->config->log.lines_per_minute;
  snprintf(j->session, sizeof j->session, "%s", s->name);
  snprintf(j->owner, sizeof j->owner, "%s", s->owner);
  clv_states_claim(w->service->state_files, j->owner, save->name, &j->claim);
  pthread_mutex_lock(&w->lock);
  job **end = &w->first;
  while (*end) end = &(*end)->next;
  *end = j;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
  return CLV_OK;
}

/* Takes a waiting file out of the queue; NULL: it does not wait. Caller holds the lock. */
static job *take_waiting(clv_state_writer *w, const clv_state_save *save) {
  job **at = &w->first;
  while (*at && (*at)->save != save) at = &(*at)->next;
  job *j = *at;
  if (j) *at = j->next;
  return j;
}

void clv_state_writer_withdraw(clv_state_writer *w, const clv_state_save *save) {
  pthread_mutex_lock(&w->lock);
  job *waiting = take_waiting(w, save), *current = w->current;
  if (current && current->save == save) {
    current->save = NULL;
    while (w->current == current && current->may_read_data)
      pthread_cond_wait(&w->queue_changed, &w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  if (waiting) job_free(waiting);
}

clv_state_writes clv_state_writer_counts(clv_state_writer *w) {
  pthread_mutex_lock(&w->lock);
  clv_state_writes c = w->counts;
  c.pending = w->current != NULL;
  for (const job *j = w->first; j; j = j->next) c.pending++;
  pthread_mutex_unlock(&w->lock);
  return c;
}
