/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles tables of a run: the file table.json with what was learnt from the training records,
 * which `train` writes and `eval`, `predict` and `train --resume` read; and the description of
 * columns that `check` prints.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "master/run/run_int.h"

enum { MAX_LEARNT_FILE_BYTES = 1 << 30, NAME_COLUMN_WIDTH = 20 };

/* ---- the file table.json --------------------------------------------------------------------- */

/* Fails unless loss.targets lists the targets of the trained model in the same order, because the
 * outputs of the model are in that order. */
static clv_code check_targets(const clv_session_config *c, const clv_learnt *l, clv_err *err) {
  size_t n = clv_learnt_target_count(l), i = 0;
  while (i < n && i < c->loss.n_targets &&
         strcmp(c->loss.targets[i].name, clv_learnt_target_name(l, i)) == 0)
    i++;
  if (i == n && i == c->loss.n_targets) return CLV_OK;
  clv_session_fail_at(c, i < c->loss.n_targets ? c->loss.targets[i].pos : c->loss.pos, err,
                      "loss.targets has '%.80s' where the run was trained with '%.80s', to which "
                      "the outputs belong: give it the targets of the run in their order, or train "
                      "again with --fresh",
                      i < c->loss.n_targets ? c->loss.targets[i].name : "no target",
                      i < n ? clv_learnt_target_name(l, i) : "no target");
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

clv_code clv_run_read_learnt(const clv_run *r, clv_learnt **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_err reason;
  clv_bytes_printf(&path, "%s/" CLV_RUN_TABLE_FILE, r->config->checkpoint.dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_LEARNT_FILE_BYTES, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK;
  CLV_TRY(code);
  if (clv_learnt_parse(text.data, text.len, path.data, ret, &reason) == CLV_OK)
    return check_targets(r->config, *ret, err);
  return clv_fail(err, reason.code == CLV_INVALID ? CLV_DATA_LOSS : reason.code,
                  "%s; it has what the run learnt of its table, so train again with --fresh",
                  reason.text);
}

clv_code clv_run_write_learnt(const clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  if (!r->data.learnt) return CLV_OK;
  CLV_TRY(clv_learnt_write(r->data.learnt, &text, err));
  clv_bytes_printf(&path, "%s/" CLV_RUN_TABLE_FILE, r->dir.data);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  /* mode 0600, because the values of categories and of quantiles are cells of records */
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

/* ---- notices about large tables -------------------------------------------------------------- */

static void print_reading_notice(void *user, const char *text) {
  (void)user;
  clv_notice(CLV_LOG_INFO, "table", "%s", text);
}

void clv_run_report_table_reading(clv_run *r) { r->data.notifier.notify = print_reading_notice; }

/* ---- descriptions of columns for `check` ----------------------------------------------------- */

static const struct {
  const char *word, *text;
} suspicions[] = {
    [CLV_COLUMN_IS_CONSTANT] = {"constant", "has one value in all records: say as: ignore"},
    [CLV_COLUMN_NAMES_RECORDS] = {"names_records",
                                  "has another value in each record: is it an id?"},
    [CLV_COLUMN_REVEALS_TARGET] = {"tells_target",
                                   "says nearly what the target says: would it be known in time?"},
    [CLV_COLUMN_REPEATS_IDS] = {"repeats_ids",
                                "has ids of several records: data.validation.by: group keeps "
                                "these in one set"},
    [CLV_COLUMN_IS_CONSTANT_TARGET] = {"constant_target",
                                       "has one label in all training records: there is nothing "
                                       "to learn of it"},
};

static void append_column_facts(const clv_column_facts *f, clv_bytes *out) {
  char range_text[48] = "-";
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
  char low[CLV_DATE_TEXT_BYTES], high[CLV_DATE_TEXT_BYTES];
  if (!isnan(f->low) && f->use == CLV_COLUMN_DATE)
    snprintf(range_text, sizeof range_text, "%.10s to %.10s", clv_date_text(f->low, low),
             clv_date_text(f->high, high));
  else if (!isnan(f->low) && f->use == CLV_COLUMN_TEXT)
    snprintf(range_text, sizeof range_text, "%.0f to %.0f tokens", f->low, f->high);
  else if (!isnan(f->low))
    snprintf(range_text, sizeof range_text, "%.6g to %.6g", f->low, f->high);
  clv_bytes_puts(&name, f->name);
  out->failed |= name.failed;
  if (!name.failed) clv_text_to_printable(name.data);
  clv_bytes_printf(out, "  %-*s  %-8s  %-26s  %8zu  %8zu\n", NAME_COLUMN_WIDTH,
                   name.data ? name.data : "", clv_column_use_names[f->use], range_text,
                   f->n_missing, f->n_distinct);
}

static void append_suspicion(const clv_column_facts *f, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0}, target = {0};
  if (!f->suspicion) return;
  clv_bytes_puts(&name, f->name);
  out->failed |= name.failed;
  if (!name.failed) clv_text_to_printable(name.data);
  if (f->revealed_target) {
    clv_bytes_puts(&target, f->revealed_target);
    out->failed |= target.failed;
    if (!target.failed) clv_text_to_printable(target.data);
  }
  clv_bytes_printf(out, "warning: column '%s' %s%s%s%s\n", name.data ? name.data : "",
                   suspicions[f->suspicion].text, target.len ? " (target '" : "",
                   target.len ? target.data : "", target.len ? "')" : "");
}

static void append_facts_json(const clv_column_facts *f, clv_bytes *out) {
  clv_bytes_puts(out, "{\"name\":");
  clv_bytes_add_json(out, f->name);
  clv_bytes_printf(out, ",\"as\":\"%s\",\"missing\":%zu,\"distinct\":%zu",
                   clv_column_use_names[f->use], f->n_missing, f->n_distinct);
  if (!isnan(f->low)) clv_bytes_printf(out, ",\"low\":%.17g,\"high\":%.17g", f->low, f->high);
  if (f->n_rows) clv_bytes_printf(out, ",\"rows\":%zu", f->n_rows);
  if (f->correlation != 0) clv_bytes_printf(out, ",\"correlation\":%.6g", f->correlation);
  if (f->suspicion) clv_bytes_printf(out, ",\"warning\":\"%s\"", suspicions[f->suspicion].word);
  if (f->revealed_target) clv_bytes_puts(out, ",\"target\":");
  if (f->revealed_target) clv_bytes_add_json(out, f->revealed_target);
  clv_bytes_puts(out, "}");
}

clv_code clv_run_describe_columns(const clv_run *r, bool writes_json, clv_bytes *out,
                                  clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes warnings = {0};
  const clv_dataset *ds = r->data.train;
  size_t n = ds ? clv_dataset_column_count(ds) : 0;
  clv_column_facts f;
  if (writes_json) clv_bytes_puts(out, ",\"columns\":[");
  if (n && !writes_json)
    clv_bytes_printf(
        out,
        "data.train: %zu column%s, in the %zu training records\n  %-*s  %-8s  %-26s  %8s  %8s\n", n,
        CLV_S(n), r->data.train_rows.n, NAME_COLUMN_WIDTH, "column", "as", "range", "missing",
        "distinct");
  for (size_t i = 0; i < n; i++) {
    CLV_TRY(clv_dataset_column_facts(ds, &r->data.train_rows, i, &f, err));
    if (writes_json && i) clv_bytes_puts(out, ",");
    (writes_json ? append_facts_json : append_column_facts)(&f, out);
    append_suspicion(&f, &warnings);
  }
  if (writes_json) clv_bytes_puts(out, "]");
  if (!writes_json) clv_indexes_describe(ds, out);
  if (!writes_json && warnings.len) clv_bytes_add(out, warnings.data, warnings.len);
  return out->failed || warnings.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
