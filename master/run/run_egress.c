/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles the egress table (the tensors that a run may send) and the egress record (the file of the
 * tensors that the run has sent): compares the table with that of the first attempt, opens and
 * closes the record, and chooses the number of micro-batches. `train`, `eval` and `predict` call
 * these functions.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

clv_code clv_run_write_file(const clv_run *r, const char *name, const clv_bytes *text,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", r->dir.data, name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text->data ? text->data : "", text->len, 0644, err);
}

/* Reads egress.table of the run. Fails if the table cannot be read, so that a user cannot avoid
 * --accept-egress by damaging the file. Only a folder without checkpoints may lack the table. */
static clv_code read_egress_table(const char *dir, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_err reason;
  clv_bytes_printf(&path, "%s/egress.table", dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, 1 << 20, ret, &reason);
  if (code == CLV_OK || (code == CLV_NOT_FOUND && !clv_checkpoint_has_any(dir))) return code;
  return clv_fail(
      err, CLV_INVALID,
      "the egress table that this run began with is not known (%s); check `cleave-master plan`, "
      "then pass --accept-egress to continue",
      reason.text);
}

static bool table_has_row(const char *table, const char *row, size_t len) {
  for (const char *at = table; *at; at += strcspn(at, "\n"), at += *at == '\n')
    if (strcspn(at, "\n") == len && memcmp(at, row, len) == 0) return true;
  return false;
}

/* Returns the first row of `table` that `other` lacks; *ret_len 0: none. */
static const char *find_row_missing_in(const char *table, const char *other, size_t *ret_len) {
  for (const char *at = table; *at; at += *ret_len, at += *at == '\n')
    if ((*ret_len = strcspn(at, "\n")) && !table_has_row(other, at, *ret_len)) return at;
  *ret_len = 0;
  return "";
}

/* Copies a path. If it has more than size - 1 characters, copies the last ones, which are more
 * specific than the first. */
static void copy_end_of_path(char *to, size_t size, const char *path) {
  size_t len = strlen(path);
  snprintf(to, size, "%s", len < size ? path : path + len - (size - 1));
}

enum { MAX_SHOWN_ROW_BYTES = 148 };

/* Copies a row of `len` bytes. If the row does not fit, its end, which has the worker's identity,
 * is replaced by "...". */
static void copy_row_shortened(char to[MAX_SHOWN_ROW_BYTES], const char *row, size_t len) {
  bool fits = len < MAX_SHOWN_ROW_BYTES;
  snprintf(to, MAX_SHOWN_ROW_BYTES, "%.*s%s", (int)(fits ? len : MAX_SHOWN_ROW_BYTES - 4u), row,
           fits ? "" : "...");
}

clv_code clv_run_compare_egress_table(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes present_table = {0}, earlier_table = {0};
  clv_blueprint_append_egress_text(r->blueprint, &present_table);
  if (present_table.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (r->o->accept_egress) return CLV_OK;
  clv_code code = read_egress_table(r->dir.data, &earlier_table, err);
  if (code != CLV_OK) return code == CLV_NOT_FOUND ? CLV_OK : code;
  const char *table = present_table.data ? present_table.data : "";
  if (strcmp(earlier_table.data, table) == 0) return CLV_OK;
  size_t added_len, removed_len;
  const char *added_row = find_row_missing_in(table, earlier_table.data, &added_len),
             *removed_row = find_row_missing_in(earlier_table.data, table, &removed_len);
  char added_row_text[MAX_SHOWN_ROW_BYTES], removed_row_text[MAX_SHOWN_ROW_BYTES], dir[48];
  copy_row_shortened(added_row_text, added_row, added_len);
  copy_row_shortened(removed_row_text, removed_row, removed_len);
  copy_end_of_path(dir, sizeof dir, r->dir.data);
  return clv_fail(err, CLV_INVALID,
                  "other tensors leave than when the run began (%s/egress.table)%s%s%s%s; compare "
                  "with `cleave-master plan`, then pass --accept-egress",
                  dir, added_len ? ": now " : "", added_row_text,
                  removed_len ? added_len ? "; when the run began " : ": no more "
                  : added_len ? ", which is new"
                              : "",
                  removed_row_text);
}

static clv_code compute_table_digest(const clv_run *r, char hex[65], clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes table = {0};
  clv_sha256 digest;
  clv_blueprint_append_egress_text(r->blueprint, &table);
  if (table.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(table.data ? table.data : "", table.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  return CLV_OK;
}

static void add_look_to_egress_record(const clv_run *r) {
  const clv_look *look = &r->look;
  clv_egress_line line = {.look.n_records = look->n_records};
  if (!look->has_run) return;
  clv_look_format_result(&look->results[CLV_LOOK_PIXELS], line.look.pixels);
  clv_look_format_result(&look->results[CLV_LOOK_TOKENS], line.look.tokens);
  clv_look_format_result(&look->results[CLV_LOOK_LABELS], line.look.labels);
  clv_look_format_result(&look->results[CLV_LOOK_FEATURES], line.look.features);
  clv_look_format_result(&look->results[CLV_LOOK_GROUPS], line.look.groups);
  clv_egress_note_look(r->egress_record, &line);
}

clv_code clv_run_open_egress_record(clv_run *r, const char *command, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_egress_line start_line = {0};
  snprintf(start_line.start.command, sizeof start_line.start.command, "%s", command);
  copy_end_of_path(start_line.start.session, sizeof start_line.start.session, r->config->name);
  copy_end_of_path(start_line.start.run, sizeof start_line.start.run, r->dir.data);
  copy_end_of_path(start_line.start.policy, sizeof start_line.start.policy,
                   clv_policy_path(r->policy));
  copy_end_of_path(start_line.start.policy_sha256, sizeof start_line.start.policy_sha256,
                   clv_policy_sha256(r->policy));
  copy_end_of_path(start_line.start.approver, sizeof start_line.start.approver,
                   clv_policy_approver(r->policy));
  CLV_TRY(compute_table_digest(r, start_line.start.table_sha256, err));
  clv_bytes_printf(&path, "%s/" CLV_EGRESS_FILE, r->dir.data);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_egress_open(path.data, &start_line, &r->egress_record, err));
  add_look_to_egress_record(r);
  return CLV_OK;
}

void clv_run_close_egress_record(clv_run *r, clv_exit_code code) {
  clv_err err;
  if (clv_egress_close(clv_steal(&r->egress_record), (uint64_t)code, &err) != CLV_OK)
    clv_run_warn(r, CLV_LOG_ERROR, "egress", err.text);
}

void clv_run_drop_egress_record(clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary summary = {0};
  clv_trainer_close(clv_steal(&r->trainer));
  if (!r->egress_record) return;
  clv_run_close_egress_record(r, r->exit_code);
  clv_bytes_printf(&path, "%s/" CLV_EGRESS_FILE, r->dir.data);
  if (!path.failed && clv_egress_read(path.data, &summary, NULL) == CLV_OK && !summary.total_bytes)
    unlink(path.data);
}

/* ---- choice of the number of micro-batches --------------------------------------------------- */

/* Chooses the number of micro-batches by trial steps, which are a separate attempt in the egress
 * record. */
static clv_code choose_micro_batches_by_trials(clv_run *r, uint64_t *ret, clv_err *err) {
  CLV_TRY(clv_run_open_egress_record(r, "trial", err));
  clv_code code = clv_choose_micro_batches(r->blueprint, r->egress_record,
                                           clv_run_has_json_output(r), r->journal, ret, err);
  clv_run_close_egress_record(r, code == CLV_OK ? CLV_EXIT_OK : clv_run_connect_exit_code(r, err));
  return code;
}

clv_code clv_run_resolve_micro_batches(clv_run *r, bool reads_stored_number, clv_err *err) {
  uint64_t n_micro_batches;
  if (r->config->pipeline.micro_batches != CLV_MICRO_AUTO) return CLV_OK;
  CLV_TRY(reads_stored_number ? clv_read_micro_batches(r->dir.data, &n_micro_batches, err)
                              : choose_micro_batches_by_trials(r, &n_micro_batches, err));
  r->effective_config.pipeline.micro_batches = n_micro_batches;
  CLV_TRY(clv_run_make_blueprint(r, err));
  return clv_pipeline_check(r->blueprint, err);
}
