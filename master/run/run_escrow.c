/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles sealed copies of a run's checkpoints (checkpoint.escrow), which are encrypted: reads or
 * makes the key, starts and stops the thread that seals, and restores a copy when workers have lost
 * their files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/run/run_int.h"

static bool has_escrow(const clv_session_config *c) { return c->checkpoint.escrow.every_ms > 0; }

/* ---- finding the sealed copies of a run ------------------------------------------------------ */

clv_code clv_run_find_escrow_location(const clv_session_config *config, char ret_id[33],
                                      clv_escrow_location *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_AUTO(clv_run_record_clear) clv_run_record record = {0};
  clv_bytes_printf(&path, "%s/run.json", config->checkpoint.dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, CLV_RECORD_MAX_BYTES, &text, err));
  CLV_TRY(clv_run_record_parse(text.data, text.len, path.data, &record, err));
  if (!record.id[0]) return clv_fail(err, CLV_NOT_FOUND, "%s: has no id of the run", path.data);
  memcpy(ret_id, record.id, 33);
  *ret = (clv_escrow_location){config->checkpoint.escrow.dir, ret_id};
  return CLV_OK;
}

static double seconds_since(uint64_t wall_ms) {
  uint64_t now_ms = clv_wall_ms();
  return now_ms > wall_ms ? (double)(now_ms - wall_ms) / 1e3 : 0;
}

bool clv_run_read_escrow_status(const clv_session_config *config, clv_status_escrow *ret,
                                char text[CLV_ERR_TEXT]) {
  clv_escrow_location location;
  clv_escrow_state s = {.step = CLV_CHECKPOINT_NONE};
  char id[33];
  if (!has_escrow(config)) return false;
  if (clv_run_find_escrow_location(config, id, &location, NULL) == CLV_OK)
    clv_escrow_read_state(&location, &s);
  snprintf(text, CLV_ERR_TEXT, "%s", s.error);
  *ret = (clv_status_escrow){.has_copy = s.step != CLV_CHECKPOINT_NONE,
                             .step = s.step,
                             .bytes = s.bytes,
                             .age_s = seconds_since(s.completed_wall_ms),
                             .last_error = {text, seconds_since(s.error_wall_ms)}};
  return true;
}

clv_code clv_run_escrow_remove(const clv_session_config *config, uint64_t step, clv_err *err) {
  clv_escrow_location location;
  char id[33];
  if (!has_escrow(config) || clv_run_find_escrow_location(config, id, &location, NULL) != CLV_OK)
    return CLV_OK;
  return clv_escrow_remove_copy(&location, step, err);
}

clv_code clv_run_escrow_remove_later(const clv_session_config *config, uint64_t step,
                                     clv_err *err) {
  clv_escrow_location location;
  char id[33];
  if (!has_escrow(config) || clv_run_find_escrow_location(config, id, &location, NULL) != CLV_OK)
    return CLV_OK;
  uint64_t newest_step = clv_escrow_newest_step(&location);
  return newest_step != CLV_CHECKPOINT_NONE && newest_step > step
             ? clv_escrow_remove_copy(&location, newest_step, err)
             : CLV_OK;
}

/* ---- the key that seals the copies ----------------------------------------------------------- */

/* Makes a key for sealed copies. Fails if a copy exists already, because the key that sealed it is
 * missing and no new key can open it. */
static clv_code create_escrow_key(clv_run *r, const clv_escrow_location *location, clv_err *err) {
  const char *path = r->config->checkpoint.escrow.key;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char id[17];
  if (clv_escrow_key_id(location, id, NULL) == CLV_OK)
    return clv_fail(err, CLV_INVALID,
                    "checkpoint.escrow.key: %s does not exist, and the copies in %s/%s are sealed "
                    "with key %s: put the key back, or move the copies away, which nothing else "
                    "can read",
                    path, location->dir, location->id, id);
  CLV_TRY(clv_seal_key_create(path, &r->escrow_key, err));
  clv_bytes_printf(&text,
                   "made the key %s in %s for checkpoint.escrow: store a second copy of the file "
                   "elsewhere, since nothing can read sealed checkpoints without it",
                   r->escrow_key.id, path);
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "escrow", text.data);
  return CLV_OK;
}

static clv_code check_escrow_key(const clv_run *r, const clv_escrow_location *location,
                                 clv_err *err) {
  char id[17];
  if (clv_escrow_key_id(location, id, NULL) != CLV_OK || strcmp(id, r->escrow_key.id) == 0)
    return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "checkpoint.escrow.key: the copies in %s/%s are sealed with key %s, and %s holds "
                  "key %s: put the other key back, or move the copies away",
                  location->dir, location->id, id, r->escrow_key.path, r->escrow_key.id);
}

clv_code clv_run_escrow_open(clv_run *r, clv_err *err) {
  clv_escrow_location location;
  char id[33];
  if (!has_escrow(r->config) || r->escrow_key.path) return CLV_OK;
  CLV_TRY(clv_run_find_escrow_location(r->config, id, &location, err));
  clv_code code = clv_seal_key_read(r->config->checkpoint.escrow.key, &r->escrow_key, err);
  if (code == CLV_NOT_FOUND) return create_escrow_key(r, &location, err);
  if (code != CLV_OK) return clv_fail(err, CLV_INVALID, "checkpoint.escrow.key: %s", err->text);
  return check_escrow_key(r, &location, err);
}

/* ---- sealing copies while the run trains ----------------------------------------------------- */

clv_code clv_run_escrow_start(clv_run *r, clv_err *err) {
  clv_escrow_location location;
  char id[33];
  if (!has_escrow(r->config) || r->escrow) return CLV_OK;
  CLV_TRY(clv_run_find_escrow_location(r->config, id, &location, err));
  return clv_escrow_start(r->config, &location, &r->escrow_key, r->dir.data, &r->escrow, err);
}

/* Passes the progress of the sealing thread to the metrics. */
static void update_escrow_metrics(const clv_run *r) {
  clv_escrow_progress p;
  if (!r->escrow) return;
  clv_escrow_get_progress(r->escrow, &p);
  uint64_t step = p.step == CLV_CHECKPOINT_NONE ? 0 : p.step;
  clv_run_metrics_note_escrow(r->metrics, step, p.bytes, p.completed_wall_ms, p.n_failures);
}

void clv_run_print_escrow_notes(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  update_escrow_metrics(r);
  clv_escrow_take_notes(r->escrow, &notes);
  char *remaining_notes = notes.data;
  for (char *line; remaining_notes && (line = strsep(&remaining_notes, "\n")) != NULL;)
    if (*line) clv_run_warn(r, CLV_LOG_INFO, "escrow", line);
}

void clv_run_escrow_stop(clv_run *r) {
  if (!r) return;
  if (r->escrow) clv_run_print_escrow_notes(r);
  clv_escrow_stop(clv_steal(&r->escrow));
}

/* ---- restoring a sealed copy ----------------------------------------------------------------- */

/* Lists a checkpoint's files at workers as orphans (files that are removed later). Called before
 * the sealed copy of the checkpoint replaces it in the run folder. */
static clv_code note_orphan_files(const char *dir, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  if (clv_checkpoint_read_manifest(dir, step, &m, NULL) != CLV_OK) return CLV_OK;
  return clv_orphans_add_manifest_files(dir, &m, err);
}

clv_code clv_run_escrow_restore(clv_run *r, uint64_t step, bool *ret, clv_err *err) {
  clv_escrow_location location;
  char id[33], text[200];
  *ret = false;
  if (!has_escrow(r->config)) return CLV_OK;
  CLV_TRY(clv_run_find_escrow_location(r->config, id, &location, err));
  uint64_t newest_step = clv_escrow_newest_step(&location);
  if (newest_step == CLV_CHECKPOINT_NONE || (step != CLV_CHECKPOINT_NONE && newest_step <= step))
    return CLV_OK;
  /* stopped first, because the sealing thread would read files that this function writes */
  clv_run_escrow_stop(r);
  CLV_TRY(note_orphan_files(r->dir.data, newest_step, err));
  clv_code code =
      clv_escrow_restore_checkpoint(&location, &r->escrow_key, r->dir.data, &newest_step, err);
  if (code != CLV_OK) return clv_err_prefix(err, "the sealed copy of a checkpoint cannot be used");
  snprintf(text, sizeof text,
           "escrow: checkpoint-%llu is restored from its sealed copy, since its files are lost",
           (unsigned long long)newest_step);
  clv_run_warn(r, CLV_LOG_WARN, "escrow", text);
  *ret = true;
  return CLV_OK;
}

clv_code clv_run_escrow_fetch(const clv_session_config *config, uint64_t step, bool *ret,
                              clv_err *err) {
  CLV_AUTO(clv_seal_key_done) clv_seal_key key = {0};
  const char *dir = config->checkpoint.dir;
  clv_escrow_location location;
  char id[33];
  *ret = false;
  if (!has_escrow(config) || clv_run_find_escrow_location(config, id, &location, NULL) != CLV_OK ||
      clv_escrow_newest_step(&location) != step)
    return CLV_OK;
  clv_code code = clv_seal_key_read(config->checkpoint.escrow.key, &key, err);
  if (code == CLV_OK) code = note_orphan_files(dir, step, err);
  if (code == CLV_OK) code = clv_escrow_restore_checkpoint(&location, &key, dir, &step, err);
  *ret = code == CLV_OK;
  if (code != CLV_NOT_FOUND && code != CLV_DENIED) return code;
  return clv_fail(err, CLV_INVALID, "checkpoint.escrow.key: %s", err->text);
}
