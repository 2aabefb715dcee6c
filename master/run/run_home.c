/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetches checkpoints that stayed at workers when a run ends, because rented workers are given back
 * at that time. clv_run_gather_at_end fetches the newest checkpoint and the best, and removes the
 * copies at the workers. It prints each file that it cannot fetch, with the worker and the reason,
 * and the older checkpoints that stay at workers.
 *
 * Files at workers that no checkpoint of the run lists are removed at the end, when `train
 * --resume` begins an attempt, and when a recovery begins an attempt. A master that is no longer
 * the newest of its run removes nothing, because the files may belong to a checkpoint that another
 * master is writing.
 */
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

/* The checkpoint that is being fetched. */
typedef struct gather_work {
  clv_run *run;
  clv_stores *stores;
  /* step: step of the checkpoint; bytes: sum of the sizes of its fetched files */
  uint64_t step, bytes;
} gather_work;

static void free_gathering(gather_work *g) { clv_stores_free(g->stores); }

static void print_event_line(const clv_run *r, const char *event, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  clv_bytes_printf(&json, "{\"event\":\"%s\",\"message\":", event);
  clv_bytes_add_json(&json, text);
  clv_bytes_puts(&json, "}");
  if (!json.failed) clv_report_notice(r->journal, clv_run_has_json_output(r), text, json.data);
}

clv_code clv_run_note_gathered_file(const char *dir, uint64_t step, const clv_manifest_file *f,
                                    clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  bool is_optimizer = strncmp(f->name, "optimizer-", 10) == 0;
  if (strncmp(f->name, "model-", 6) != 0 && !is_optimizer) return CLV_OK;
  clv_bytes_printf(&path, "%s/checkpoint-%llu/%s", dir, (unsigned long long)step, f->name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_note_gathered_weights(path.data, f->keeper_identity, is_optimizer, err);
}

/* Callback of clv_checkpoint_gather. Adds the weights of a fetched file to the ledger, and prints a
 * file that could not be fetched. */
static void handle_fetched_file(void *user, const clv_manifest_file *f, const clv_err *reason) {
  gather_work *g = user;
  char text[CLV_ERR_TEXT + 400];
  clv_err ledger_err = {.code = CLV_OK};
  if (!reason) {
    g->bytes += f->bytes;
    reason = clv_run_note_gathered_file(g->run->dir.data, g->step, f, &ledger_err) == CLV_OK
                 ? NULL
                 : &ledger_err;
    if (reason) clv_run_warn(g->run, CLV_LOG_WARN, "notice", reason->text);
    return;
  }
  snprintf(text, sizeof text,
           "checkpoint-%llu: %s (%llu bytes) stays at worker '%s' as '%s': %s; `cleave-master "
           "checkpoint gather %s` fetches it",
           (unsigned long long)g->step, f->name, (unsigned long long)f->bytes,
           clv_stores_worker_name(g->stores, f->keeper_identity), f->kept_file_name, reason->text,
           g->run->config->file);
  clv_run_warn(g->run, CLV_LOG_WARN, "stays", text);
}

static bool has_files_of_step_at_workers(const clv_run *r, uint64_t step) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  return step != CLV_CHECKPOINT_NONE &&
         clv_checkpoint_read_manifest(r->dir.data, step, &m, NULL) == CLV_OK &&
         !clv_manifest_has_all_files(&m);
}

static void gather_checkpoint(gather_work *g, uint64_t step) {
  char text[160], size_text[24];
  clv_err reason;
  if (!has_files_of_step_at_workers(g->run, step)) return;
  g->step = step;
  g->bytes = 0;
  if (clv_checkpoint_gather(g->run->dir.data, step, g->stores, handle_fetched_file, g, &reason) !=
      CLV_OK)
    return;
  snprintf(text, sizeof text, "checkpoint-%llu: %s fetched from the workers",
           (unsigned long long)step, clv_format_size(g->bytes, size_text, sizeof size_text));
  print_event_line(g->run, "fetched", text);
}

/* ---- files at workers that no checkpoint lists ----------------------------------------------- */

static bool lists_file(const clv_manifest *m, const char *kept_file_name) {
  for (size_t i = 0; i < m->n_files; i++)
    if (m->files[i].keeper_identity && strcmp(m->files[i].kept_file_name, kept_file_name) == 0)
      return true;
  return false;
}

/* Returns true if a checkpoint of the run needs the file at its worker. */
static bool is_file_needed(const clv_run *r, const char *kept_file_name) {
  uint64_t steps[CLV_RECORD_MAX_CHECKPOINTS];
  size_t n = clv_checkpoint_steps_with_manifest(r->dir.data, steps, CLV_COUNT(steps));
  /* true: the run may have more checkpoints than were listed, and one of these may need the file */
  bool may_be_needed = n == CLV_COUNT(steps);
  for (size_t i = 0; i < n && !may_be_needed; i++) {
    CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
    may_be_needed = clv_checkpoint_read_manifest(r->dir.data, steps[i], &m, NULL) != CLV_OK ||
                    lists_file(&m, kept_file_name);
  }
  return may_be_needed;
}

/* Removes the files at a worker that belong to this run and to none of its checkpoints. Such files
 * are left, for example, if another worker was lost before a checkpoint was complete. Does nothing
 * if the worker cannot be reached. */
static void remove_unneeded_files_at(const gather_work *g, const clv_remote_spec *w) {
  CLV_AUTO(cleave_kept_files_done) cleave_kept_files l = {0};
  char prefix[34];
  clv_err reason;
  clv_hex(g->run->effective_config.attempt.session_id, 16, prefix);
  strcat(prefix, ".");
  if (clv_stores_list_files(g->stores, w->identity, NULL, &l, &reason) != CLV_OK) return;
  for (size_t i = 0; i < l.n; i++)
    if (strncmp(l.files[i].name, prefix, strlen(prefix)) == 0 &&
        !is_file_needed(g->run, l.files[i].name) &&
        clv_stores_remove_file(g->stores, w->identity, l.files[i].name, &reason) != CLV_OK)
      clv_log(CLV_LOG_DEBUG, "file '%s' stays at '%s': %s", l.files[i].name, w->name, reason.text);
}

/* Callback of clv_orphans_remove_files, which removes files that no checkpoint needs: logs a file
 * that stays at its worker. */
static void log_remaining_orphan(void *user, const clv_orphan *o, const clv_err *reason) {
  const gather_work *g = user;
  if (reason)
    clv_log(CLV_LOG_DEBUG, "file '%s' stays at '%s': %s", o->kept_file_name,
            clv_stores_worker_name(g->stores, o->keeper_identity), reason->text);
}

/* Removes the files of the run at workers that none of its checkpoints lists. */
static void remove_unneeded_files(gather_work *g) {
  const clv_run *r = g->run;
  clv_err err;
  if (clv_run_lock_check_newest(r->lock, NULL) != CLV_OK) return;
  if (clv_orphans_remove_files(r->dir.data, g->stores, log_remaining_orphan, g, &err) != CLV_OK)
    clv_run_warn(r, CLV_LOG_WARN, "notice", err.text);
  for (size_t i = 0; i < r->config->n_workers; i++)
    if (r->blueprint->is_worker_used[i]) remove_unneeded_files_at(g, &r->config->workers[i]);
}

void clv_run_remove_unneeded_files(clv_run *r) {
  CLV_AUTO(free_gathering) gather_work g = {.run = r};
  clv_err err;
  if (clv_session_checkpoint_home(r->config) == CLV_HOME_ALWAYS) return;
  if (clv_stores_new(r->config, &g.stores, &err) == CLV_OK)
    remove_unneeded_files(&g);
  else
    clv_run_warn(r, CLV_LOG_WARN, "notice", err.text);
}

/* Prints the older checkpoints whose files stay at workers. */
static void print_older_checkpoints(const clv_run *r) {
  uint64_t steps[CLV_RECORD_MAX_CHECKPOINTS];
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t n = clv_checkpoint_steps_with_manifest(r->dir.data, steps, CLV_COUNT(steps)), n_listed = 0;
  for (size_t i = 0; i < n; i++)
    if (i && has_files_of_step_at_workers(r, steps[i]) && steps[i] != r->best_checkpoint.step)
      clv_bytes_printf(&text, "%scheckpoint-%llu", n_listed++ ? ", " : "",
                       (unsigned long long)steps[i]);
  if (!n_listed) return;
  clv_bytes_printf(&text,
                   ": files stay at the workers; `cleave-master checkpoint gather` fetches them, "
                   "`checkpoint rm` removes them");
  if (!text.failed) print_event_line(r, "stays", text.data);
}

/* Returns true if files of the newest checkpoint or of the best are at workers. */
static bool has_files_at_workers(const clv_run *r, uint64_t *ret_newest_step) {
  return r->has_started && clv_session_checkpoint_home(r->config) != CLV_HOME_ALWAYS &&
         clv_checkpoint_steps_with_manifest(r->dir.data, ret_newest_step, 1) &&
         (has_files_of_step_at_workers(r, *ret_newest_step) ||
          has_files_of_step_at_workers(r, r->best_checkpoint.step));
}

void clv_run_gather_at_end(clv_run *r) {
  CLV_AUTO(free_gathering) gather_work g = {.run = r};
  bool fetches_files = clv_session_checkpoint_home(r->config) == CLV_HOME_END;
  uint64_t newest_step;
  clv_err err;
  if (!has_files_at_workers(r, &newest_step)) return;
  clv_interrupt_handled(); /* from here on, a second signal ends the process at once */
  clv_code code = clv_run_lock_check_newest(r->lock, &err);
  if (code == CLV_OK) code = clv_stores_new(r->config, &g.stores, &err);
  if (code != CLV_OK) {
    clv_err_prefix(&err, "files of checkpoints stay at the workers");
    clv_run_warn(r, CLV_LOG_WARN, "stays", err.text);
    return;
  }
  if (fetches_files) gather_checkpoint(&g, newest_step);
  if (fetches_files) gather_checkpoint(&g, r->best_checkpoint.step);
  remove_unneeded_files(&g);
  if (fetches_files) print_older_checkpoints(r);
}
