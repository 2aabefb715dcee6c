/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that seals copies of the newest checkpoint while a run trains. It reads files at
 * workers by calls of its own, one range at a time, so it uses at most one connection's share of
 * the bandwidth. If the run deletes a checkpoint meanwhile, the thread abandons the copy of this
 * checkpoint, and later seals the newest one.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "master/checkpoints/checkpoints_int.h"

struct clv_escrow {
  const clv_session_config *config;
  char *dir, *id, *run_dir;
  clv_seal_key key;
  pthread_t thread;
  bool has_thread;
  atomic_bool must_stop;
  /* protects `notes` and changes of `progress`; the thread waits with it for stop_requested */
  pthread_mutex_t mutex;
  pthread_cond_t stop_requested; /* signalled when must_stop is set */
  clv_escrow_progress progress;  /* only the sealing thread changes it */
  clv_bytes notes;
};

static bool should_stop(void *user) { return atomic_load(&((clv_escrow *)user)->must_stop); }

static void add_note(clv_escrow *e, const clv_bytes *line) {
  pthread_mutex_lock(&e->mutex);
  if (!line->failed) clv_bytes_puts(&e->notes, line->data);
  pthread_mutex_unlock(&e->mutex);
}

static void count_completed_copy(clv_escrow *e, uint64_t step, uint64_t bytes) {
  pthread_mutex_lock(&e->mutex);
  e->progress.step = step;
  e->progress.bytes = bytes;
  e->progress.completed_wall_ms = bytes ? clv_wall_ms() : 0;
  pthread_mutex_unlock(&e->mutex);
}

static void count_failed_copy(clv_escrow *e) {
  pthread_mutex_lock(&e->mutex);
  e->progress.n_failures++;
  pthread_mutex_unlock(&e->mutex);
}

static void add_copy_note(clv_escrow *e, uint64_t step, uint64_t bytes, uint64_t duration_ns) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  char size_text[24];
  clv_bytes_printf(&line,
                   "escrow: a copy of checkpoint-%llu (%s) is sealed in %s with key %s (%.1f s)\n",
                   (unsigned long long)step, clv_format_size(bytes, size_text, sizeof size_text),
                   e->dir, e->key.id, (double)duration_ns * 1e-9);
  add_note(e, &line);
}

static void add_failure_note(clv_escrow *e, uint64_t step, const clv_err *reason) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_bytes_printf(&line,
                   "escrow: checkpoint-%llu is not sealed: %s; it is tried again with the newest "
                   "checkpoint after checkpoint.escrow.every\n",
                   (unsigned long long)step, reason->text);
  add_note(e, &line);
}

static bool is_checkpoint_deleted(const clv_escrow *e, uint64_t step) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  return clv_checkpoint_read_manifest(e->run_dir, step, &m, NULL) != CLV_OK;
}

/* Seals a copy of the newest checkpoint, unless the last copy is of this checkpoint already. */
static void seal_newest(clv_escrow *e) {
  const clv_escrow_location at = {e->dir, e->id};
  const clv_cancel_hook cancel_hook = {should_stop, e};
  CLV_AUTO(clv_stores_freep) clv_stores *s = NULL;
  uint64_t step, bytes = 0, begin_ns = clv_now_ns();
  clv_err reason;
  if (!clv_checkpoint_steps_with_manifest(e->run_dir, &step, 1) || step == e->progress.step) return;
  clv_code code = clv_stores_new(e->config, &s, &reason);
  if (code == CLV_OK)
    code = clv_escrow_write_copy(&at, &e->key, e->run_dir, step, s, &cancel_hook, &bytes, &reason);
  if (code == CLV_OK) {
    count_completed_copy(e, step, bytes);
    clv_escrow_note_error(&at, NULL);
    if (bytes) add_copy_note(e, step, bytes, clv_now_ns() - begin_ns);
  } else if (code != CLV_CANCELLED && !is_checkpoint_deleted(e, step)) {
    count_failed_copy(e);
    clv_escrow_note_error(&at, reason.text);
    add_failure_note(e, step, &reason);
  }
}

/* Waits for the time in checkpoint.escrow.every. Returns false if the thread shall stop. */
static bool wait_for_next_checkpoint(clv_escrow *e) {
  uint64_t ms = e->config->checkpoint.escrow.every_ms;
  struct timespec wait_deadline;
  clock_gettime(CLOCK_MONOTONIC, &wait_deadline);
  uint64_t ns = (uint64_t)wait_deadline.tv_nsec + ms % 1000 * 1000000;
  wait_deadline.tv_sec += (time_t)(ms / 1000 + ns / 1000000000);
  wait_deadline.tv_nsec = (long)(ns % 1000000000);
  pthread_mutex_lock(&e->mutex);
  int wait_result = 0;
  while (!should_stop(e) && !wait_result)
    wait_result = pthread_cond_timedwait(&e->stop_requested, &e->mutex, &wait_deadline);
  pthread_mutex_unlock(&e->mutex);
  return !should_stop(e);
}

static void *run_thread(void *user) {
  while (wait_for_next_checkpoint(user)) seal_newest(user);
  return NULL;
}

void clv_escrow_stop(clv_escrow *e) {
  if (!e) return;
  pthread_mutex_lock(&e->mutex);
  atomic_store(&e->must_stop, true);
  pthread_cond_broadcast(&e->stop_requested);
  pthread_mutex_unlock(&e->mutex);
  if (e->has_thread) pthread_join(e->thread, NULL);
  pthread_cond_destroy(&e->stop_requested);
  pthread_mutex_destroy(&e->mutex);
  clv_bytes_done(&e->notes);
  clv_seal_key_done(&e->key);
  free(e->dir);
  free(e->id);
  free(e->run_dir);
  free(e);
}

static void escrow_stopp(clv_escrow **e) { clv_escrow_stop(*e); }

static clv_code copy_arguments(clv_escrow *e, const clv_escrow_location *at,
                               const clv_seal_key *key, const char *run_dir, clv_err *err) {
  CLV_TRY(clv_strdup(at->dir, &e->dir, err));
  CLV_TRY(clv_strdup(at->id, &e->id, err));
  CLV_TRY(clv_strdup(run_dir, &e->run_dir, err));
  e->key = *key;
  e->key.path = NULL;
  return clv_strdup(key->path, &e->key.path, err);
}

clv_code clv_escrow_start(const clv_session_config *config, const clv_escrow_location *at,
                          const clv_seal_key *key, const char *run_dir, clv_escrow **ret,
                          clv_err *err) {
  CLV_AUTO(escrow_stopp) clv_escrow *e = NULL;
  pthread_condattr_t clock_attr;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  pthread_mutex_init(&e->mutex, NULL);
  pthread_condattr_init(&clock_attr);
  pthread_condattr_setclock(&clock_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&e->stop_requested, &clock_attr);
  pthread_condattr_destroy(&clock_attr);
  e->config = config;
  e->progress.step = clv_escrow_newest_step(at);
  CLV_TRY(copy_arguments(e, at, key, run_dir, err));
  if (pthread_create(&e->thread, NULL, run_thread, e) != 0)
    return clv_fail(err, CLV_EXHAUSTED, "no thread for checkpoint.escrow");
  e->has_thread = true;
  *ret = clv_steal(&e);
  return CLV_OK;
}

void clv_escrow_get_progress(clv_escrow *e, clv_escrow_progress *ret) {
  pthread_mutex_lock(&e->mutex);
  *ret = e->progress;
  pthread_mutex_unlock(&e->mutex);
}

void clv_escrow_take_notes(clv_escrow *e, clv_bytes *out) {
  if (!e) return;
  pthread_mutex_lock(&e->mutex);
  if (e->notes.len) clv_bytes_puts(out, e->notes.data);
  e->notes.len = 0;
  if (e->notes.data) e->notes.data[0] = '\0';
  pthread_mutex_unlock(&e->mutex);
}
