/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes each set for `check`: the range of its values, and the number of records of each class.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/run/run_int.h"

enum {
  N_SAMPLE_RECORDS = 32,  /* records of each set whose values are examined */
  MAX_SHOWN_CLASSES = 8,  /* most classes listed in a line */
  MAX_CLASS_ROWS = 20,    /* most classes listed in a table */
  NAME_COLUMN_WIDTH = 24, /* width in characters of the column of class names */
  N_SETS = 3,             /* number of sets: training, validation, test */
};

typedef struct described_set {
  const char *key, *name; /* key of the session file; name in text and JSON */
  const clv_dataset *ds;  /* NULL: the session has no such set */
  const clv_subset *rows;
} described_set;

/* Begins a JSON member whose value is an object. Writes a comma before it unless it is the
 * first. */
static void begin_json_member(clv_bytes *out, const char *key) {
  bool is_first = !out->len || out->data[out->len - 1] == '{';
  clv_bytes_printf(out, "%s\"%s\":{", is_first ? "" : ",", key);
}

/* ---- range of the values of a set ------------------------------------------------------------ */

static void append_levels(const described_set *s, const clv_value_levels *f, clv_bytes *out) {
  char levels_text[48] = "", range_text[64] = "";
  if (f->n_levels)
    snprintf(levels_text, sizeof levels_text, ", %zu level%s", f->n_levels, CLV_S(f->n_levels));
  if (f->image_bits)
    snprintf(range_text, sizeof range_text, " of %d (%u bits)", f->image_bits == 16 ? 65535 : 255,
             f->image_bits);
  clv_bytes_printf(out, "%s: values from %.6g to %.6g%s%s, in %zu of %zu records\n", s->key, f->low,
                   f->high, range_text, levels_text, f->n_records, clv_dataset_count(s->ds));
}

/* Appends a number, or null if JSON cannot represent it. */
static void append_json_number(clv_bytes *out, const char *name, double value) {
  clv_bytes_printf(out, "\"%s\":", name);
  if (isfinite(value))
    clv_bytes_printf(out, "%.9g,", value);
  else
    clv_bytes_puts(out, "null,");
}

static void append_levels_json(const described_set *s, const clv_value_levels *f, clv_bytes *out) {
  begin_json_member(out, s->key);
  append_json_number(out, "low", f->low);
  append_json_number(out, "high", f->high);
  if (f->n_levels) clv_bytes_printf(out, "\"levels\":%zu,", f->n_levels);
  if (f->image_bits) clv_bytes_printf(out, "\"bits\":%u,", f->image_bits);
  clv_bytes_printf(out, "\"looked_at\":%zu}", f->n_records);
}

static clv_code describe_levels(const described_set *s, bool writes_json, clv_bytes *out,
                                clv_err *err) {
  clv_value_levels f;
  CLV_TRY(clv_dataset_value_levels(s->ds, N_SAMPLE_RECORDS, &f, err));
  if (f.n_records) (writes_json ? append_levels_json : append_levels)(s, &f, out);
  return CLV_OK;
}

/* ---- records of each class of one set -------------------------------------------------------- */

static size_t count_classes(const clv_dataset *ds) {
  int64_t low, high;
  size_t n_class_names = clv_dataset_class_count(ds);
  if (n_class_names) return n_class_names;
  return clv_dataset_label_range(ds, &low, &high) && high < 1 << 20 ? (size_t)high + 1 : 0;
}

static void append_class(clv_bytes *out, const clv_dataset *ds, size_t class, size_t n) {
  clv_bytes_puts(out, class ? ", " : "");
  if (clv_dataset_class_count(ds))
    clv_bytes_printf(out, "'%s' %zu", clv_dataset_class_name(ds, class), n);
  else
    clv_bytes_printf(out, "class %zu: %zu", class, n);
}

static void append_remaining_classes(clv_bytes *out, const size_t *counts, size_t n) {
  size_t min_records = SIZE_MAX, max_records = 0, n_empty_classes = 0;
  for (size_t i = MAX_SHOWN_CLASSES; i < n; i++) {
    min_records = CLV_MIN(min_records, counts[i]);
    max_records = CLV_MAX(max_records, counts[i]);
    n_empty_classes += !counts[i];
  }
  clv_bytes_printf(out, " and %zu more classes of %zu to %zu records", n - MAX_SHOWN_CLASSES,
                   min_records, max_records);
  if (n_empty_classes) clv_bytes_printf(out, ", %zu of them without any", n_empty_classes);
}

static void append_classes(const described_set *s, const size_t *counts, size_t n, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  if (!n || !s->rows->n) return;
  for (size_t i = 0; i < CLV_MIN(n, (size_t)MAX_SHOWN_CLASSES); i++)
    append_class(&line, s->ds, i, counts[i]);
  if (n > MAX_SHOWN_CLASSES) append_remaining_classes(&line, counts, n);
  if (!line.failed) clv_text_to_printable(line.data);
  out->failed |= line.failed;
  clv_bytes_printf(out, "%s: %zu record%s: %s\n", s->name, s->rows->n, CLV_S(s->rows->n),
                   line.data);
}

/* Appends all classes in the order of their numbers. */
static void append_classes_json(const described_set *s, const size_t *counts, size_t n,
                                clv_bytes *out) {
  begin_json_member(out, s->name);
  clv_bytes_printf(out, "\"records\":%zu,\"classes\":", s->rows->n);
  clv_bytes_puts(out, n ? "[" : "null");
  for (size_t i = 0; i < n; i++) {
    clv_bytes_puts(out, i ? ",{" : "{");
    if (clv_dataset_class_count(s->ds)) {
      clv_bytes_puts(out, "\"name\":");
      clv_bytes_add_json(out, clv_dataset_class_name(s->ds, i));
      clv_bytes_puts(out, ",");
    }
    clv_bytes_printf(out, "\"records\":%zu}", counts[i]);
  }
  clv_bytes_puts(out, n ? "]}" : "}");
}

/* Counts the records of each class. counts: [n]. */
static void count_records(const described_set *s, size_t *counts, size_t n) {
  for (size_t i = 0; i < s->rows->n; i++) {
    int64_t class = clv_dataset_record_class(s->ds, s->rows->index[i]);
    if (class >= 0 && (uint64_t) class < n) counts[class]++;
  }
}

static size_t count_record_classes(const described_set *s) {
  return !s->ds || clv_dataset_record_class(s->ds, 0) == -1 ? 0 : count_classes(s->ds);
}

static clv_code describe_classes(const described_set *s, bool writes_json, clv_bytes *out,
                                 clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  size_t n = count_record_classes(s);
  CLV_TRY(clv_alloc(n + 1, sizeof *counts, &counts, err));
  count_records(s, counts, n);
  (writes_json ? append_classes_json : append_classes)(s, counts, n, out);
  return CLV_OK;
}

/* ---- table with the classes of all sets ------------------------------------------------------ */

static void append_table_row(clv_bytes *out, const char *name, const size_t counts[N_SETS],
                             const bool is_shown[N_SETS]) {
  clv_bytes_printf(out, "  %-*s", NAME_COLUMN_WIDTH, name);
  for (size_t i = 0; i < N_SETS; i++)
    if (is_shown[i]) clv_bytes_printf(out, "  %10zu", counts[i]);
  clv_bytes_puts(out, "\n");
}

static void append_class_row(const described_set *s, size_t class, const size_t counts[N_SETS],
                             const bool is_shown[N_SETS], clv_bytes *out) {
  char name[4 * NAME_COLUMN_WIDTH], class_text[NAME_COLUMN_WIDTH + 1];
  snprintf(name, sizeof name, "%zu", class);
  if (clv_dataset_class_count(s->ds))
    snprintf(name, sizeof name, "'%s'", clv_dataset_class_name(s->ds, class));
  clv_text_truncate(name, class_text, sizeof class_text);
  clv_text_to_printable(class_text);
  append_table_row(out, class_text, counts, is_shown);
}

/* Appends a row for each class, with its records in each set. counts: [n][N_SETS]. */
static void append_class_table(const described_set sets[N_SETS], size_t (*counts)[N_SETS], size_t n,
                               const bool is_shown[N_SETS], clv_bytes *out) {
  size_t n_all_records[N_SETS] = {0}, n_unlisted_records[N_SETS] = {0};
  clv_bytes_printf(out, "  %-*s", NAME_COLUMN_WIDTH, "records by class");
  for (size_t i = 0; i < N_SETS; i++) {
    if (is_shown[i]) clv_bytes_printf(out, "  %10s", sets[i].name);
    n_all_records[i] = is_shown[i] ? sets[i].rows->n : 0;
  }
  clv_bytes_puts(out, "\n");
  for (size_t class = 0; class < n; class ++) {
    if (class < MAX_CLASS_ROWS || n == MAX_CLASS_ROWS + 1)
      append_class_row(&sets[sets[0].ds ? 0 : 2], class, counts[class], is_shown, out);
    else
      for (size_t i = 0; i < N_SETS; i++) n_unlisted_records[i] += counts[class][i];
  }
  if (n > MAX_CLASS_ROWS + 1) {
    char name[2 * NAME_COLUMN_WIDTH];
    snprintf(name, sizeof name, "%zu more classes", n - MAX_CLASS_ROWS);
    append_table_row(out, name, n_unlisted_records, is_shown);
  }
  append_table_row(out, "all", n_all_records, is_shown);
}

/* Appends the classes of the sets to `out`: a table, or a line if there is a single set. */
static clv_code describe_all_classes(const described_set sets[N_SETS], clv_bytes *out,
                                     clv_err *err) {
  CLV_AUTO(clv_freep) size_t(*counts)[N_SETS] = NULL;
  CLV_AUTO(clv_freep) size_t *set_counts = NULL;
  bool is_shown[N_SETS];
  size_t n = 0, n_shown = 0;
  for (size_t i = 0; i < N_SETS; i++) {
    n = CLV_MAX(n, count_record_classes(&sets[i]));
    is_shown[i] = sets[i].ds && sets[i].rows->n;
    n_shown += is_shown[i];
  }
  for (size_t i = 0; i < N_SETS && n_shown == 1; i++)
    if (is_shown[i]) return describe_classes(&sets[i], false, out, err);
  if (!n) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *counts, &counts, err));
  CLV_TRY(clv_alloc(n, sizeof *set_counts, &set_counts, err));
  for (size_t i = 0; i < N_SETS; i++) {
    if (!is_shown[i]) continue;
    memset(set_counts, 0, n * sizeof *set_counts);
    count_records(&sets[i], set_counts, n);
    for (size_t class = 0; class < n; class ++) counts[class][i] = set_counts[class];
  }
  append_class_table(sets, counts, n, is_shown, out);
  return CLV_OK;
}

/* ---- classes of several targets -------------------------------------------------------------- */

/* Counts the records of each class of a target. counts: [n], one per class. */
static void count_target_records(const described_set *s, size_t target, size_t *counts, size_t n) {
  for (size_t i = 0; i < s->rows->n; i++) {
    int64_t class = clv_dataset_target_class(s->ds, target, s->rows->index[i]);
    if (class >= 0 && (uint64_t) class < n) counts[class]++;
  }
}

/* Returns the number of targets of a record; 0: records have one label, or no set was read. */
static size_t count_targets(const described_set sets[N_SETS]) {
  const clv_dataset *ds = sets[0].ds ? sets[0].ds : sets[2].ds;
  return ds ? clv_dataset_target_count(ds) : 0;
}

/* Returns how many records of a set have no label for a target. */
static size_t count_unlabelled(const described_set *s, size_t target) {
  size_t n = 0;
  for (size_t i = 0; i < s->rows->n; i++)
    n += !clv_dataset_has_target(s->ds, target, s->rows->index[i]);
  return n;
}

/* Returns true if a target has classes to count, or a record of any set lacks a label for the
 * target. */
static bool is_target_shown(const described_set sets[N_SETS], size_t target) {
  bool is_shown = false;
  for (size_t i = 0; i < N_SETS; i++)
    if (sets[i].ds)
      is_shown = is_shown || clv_dataset_target_class_count(sets[i].ds, target) ||
                 count_unlabelled(&sets[i], target);
  return is_shown;
}

/* Appends the numbers of records of each class of a target in a set, such as "'no' 80, 'yes' 20,
 * without a label 3"; for a target that is a number, "with a label 97, without a label 3". */
static clv_code append_target_counts(const described_set *s, size_t target, clv_bytes *line,
                                     clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  size_t n = clv_dataset_target_class_count(s->ds, target);
  size_t n_unlabelled = count_unlabelled(s, target);
  CLV_TRY(clv_alloc(n + 1, sizeof *counts, &counts, err));
  count_target_records(s, target, counts, n);
  for (size_t c = 0; c < CLV_MIN(n, (size_t)MAX_SHOWN_CLASSES); c++)
    clv_bytes_printf(line, "%s'%s' %zu", c ? ", " : "",
                     clv_dataset_target_class_name(s->ds, target, c), counts[c]);
  if (n > MAX_SHOWN_CLASSES) append_remaining_classes(line, counts, n);
  if (!n) clv_bytes_printf(line, "with a label %zu", s->rows->n - n_unlabelled);
  if (n_unlabelled) clv_bytes_printf(line, ", without a label %zu", n_unlabelled);
  return CLV_OK;
}

/* Appends the line of a target, such as "died: 'no' 80, 'yes' 20 in training; 'no' 8, 'yes' 2 in
 * validation". */
static clv_code append_target(const described_set sets[N_SETS], size_t target, clv_bytes *out,
                              clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  const clv_dataset *ds = sets[0].ds ? sets[0].ds : sets[2].ds;
  clv_bytes_printf(&line, "  %s: ", clv_dataset_target_name(ds, target));
  for (size_t i = 0, n_shown = 0; i < N_SETS; i++) {
    if (!sets[i].ds || !sets[i].rows->n) continue;
    clv_bytes_puts(&line, n_shown++ ? "; " : "");
    CLV_TRY(append_target_counts(&sets[i], target, &line, err));
    clv_bytes_printf(&line, " in %s", sets[i].name);
  }
  out->failed |= line.failed;
  if (line.failed) return CLV_OK;
  clv_text_to_printable(line.data);
  clv_bytes_printf(out, "%s\n", line.data);
  return CLV_OK;
}

/* Appends a JSON member with the number of records of each class in a set, such as
 * [{"name":"no","records":80},...]. The last element, which has no name, counts the records without
 * a label, if there are any. */
static clv_code append_target_set_json(const described_set *s, size_t target, clv_bytes *out,
                                       clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  size_t n = clv_dataset_target_class_count(s->ds, target);
  size_t n_unlabelled = count_unlabelled(s, target);
  CLV_TRY(clv_alloc(n + 1, sizeof *counts, &counts, err));
  count_target_records(s, target, counts, n);
  clv_bytes_printf(out, "%s\"%s\":[", out->data[out->len - 1] == '{' ? "" : ",", s->name);
  for (size_t c = 0; c < n; c++) {
    clv_bytes_puts(out, c ? ",{\"name\":" : "{\"name\":");
    clv_bytes_add_json(out, clv_dataset_target_class_name(s->ds, target, c));
    clv_bytes_printf(out, ",\"records\":%zu}", counts[c]);
  }
  if (n_unlabelled)
    clv_bytes_printf(out, "%s{\"name\":null,\"records\":%zu}", n ? "," : "", n_unlabelled);
  clv_bytes_puts(out, "]");
  return CLV_OK;
}

/* Appends the counts of all targets as a JSON member, such as
 * ,"targets":{"died":{"training":[{"name":"no","records":80},...],...},...}. */
static clv_code append_targets_json(const described_set sets[N_SETS], clv_bytes *out,
                                    clv_err *err) {
  const clv_dataset *ds = sets[0].ds ? sets[0].ds : sets[2].ds;
  clv_bytes_puts(out, ",\"targets\":{");
  for (size_t k = 0, n_shown = 0; k < count_targets(sets); k++) {
    if (!is_target_shown(sets, k)) continue;
    clv_bytes_puts(out, n_shown++ ? "," : "");
    clv_bytes_add_json(out, clv_dataset_target_name(ds, k));
    clv_bytes_puts(out, ":{");
    for (size_t i = 0; i < N_SETS; i++)
      if (sets[i].ds && sets[i].rows->n) CLV_TRY(append_target_set_json(&sets[i], k, out, err));
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "}");
  return CLV_OK;
}

static clv_code describe_targets(const described_set sets[N_SETS], bool writes_json, clv_bytes *out,
                                 clv_err *err) {
  bool has_title = false;
  if (writes_json) return count_targets(sets) ? append_targets_json(sets, out, err) : CLV_OK;
  for (size_t k = 0; k < count_targets(sets); k++) {
    if (!is_target_shown(sets, k)) continue;
    if (!has_title) clv_bytes_puts(out, "records by class of each target\n");
    has_title = true;
    CLV_TRY(append_target(sets, k, out, err));
  }
  return CLV_OK;
}

/* ---- records that occur twice ---------------------------------------------------------------- */

static void append_duplicates(const described_set *s, const described_set *reference_set,
                              bool compares_ids, const clv_duplicates *d, clv_bytes *out) {
  bool is_same_set = s == reference_set;
  const char *compared_text = compares_ids ? "the id" : "the inputs";
  clv_bytes_printf(out, "%s: %zu of %zu records %s %s of %s (record %zu as %zu%s)", s->name, d->n,
                   s->rows->n, d->n > 1 ? "have" : "has", compared_text,
                   is_same_set ? "an earlier one" : "a training record", d->record, d->equal_record,
                   is_same_set || s->ds == reference_set->ds ? "" : " of data.train");
  if (d->n_with_other_label)
    clv_bytes_printf(out, ", %zu of them with another label", d->n_with_other_label);
  clv_bytes_puts(out, is_same_set ? "\n" : ": scores on these may be memory\n");
}

static void append_duplicates_json(const described_set *s, const described_set *reference_set,
                                   bool compares_ids, const clv_duplicates *d, clv_bytes *out) {
  bool is_first = out->data[out->len - 1] == '[';
  clv_bytes_printf(out,
                   "%s{\"set\":\"%s\",\"of\":\"%s\",\"same\":\"%s\",\"records\":%zu,"
                   "\"other_labels\":%zu,\"first\":[%zu,%zu]}",
                   is_first ? "" : ",", s->name, reference_set->name,
                   compares_ids ? "id" : "inputs", d->n, d->n_with_other_label, d->record,
                   d->equal_record);
}

static clv_code compare_set(const described_set *s, const described_set *reference_set,
                            bool compares_ids, bool writes_json, clv_bytes *out, clv_err *err) {
  clv_duplicates d;
  CLV_TRY(clv_dataset_find_duplicates(s->ds, s->rows, reference_set->ds, reference_set->rows,
                                      compares_ids, &d, err));
  if (d.n)
    (writes_json ? append_duplicates_json : append_duplicates)(s, reference_set, compares_ids, &d,
                                                               out);
  return CLV_OK;
}

/* Compares each set with the training records. Ids that occur twice in the training records
 * are not reported here: the description of the id column warns of them. */
static clv_code describe_duplicates(const described_set sets[N_SETS], bool writes_json,
                                    clv_bytes *out, clv_err *err) {
  for (size_t i = 0; i < N_SETS && sets[0].ds; i++) {
    if (!sets[i].ds || !sets[i].rows->n) continue;
    CLV_TRY(compare_set(&sets[i], &sets[0], false, writes_json, out, err));
    if (i) CLV_TRY(compare_set(&sets[i], &sets[0], true, writes_json, out, err));
  }
  return CLV_OK;
}

clv_code clv_run_describe_sets(const clv_run *r, bool writes_json, clv_bytes *out, clv_err *err) {
  const clv_run_data *d = &r->data;
  const described_set sets[N_SETS] = {{"data.train", "training", d->train, &d->train_rows},
                                      {"data.train", "validation", d->train, &d->validation_rows},
                                      {"data.test", "test", d->test, &d->test_rows}};
  if (writes_json) clv_bytes_puts(out, ",\"values\":{");
  for (size_t i = 0; i < CLV_COUNT(sets); i++)
    if (sets[i].ds && i != 1) CLV_TRY(describe_levels(&sets[i], writes_json, out, err));
  if (writes_json) clv_bytes_puts(out, "},\"sets\":{");
  for (size_t i = 0; i < N_SETS && writes_json; i++)
    if (sets[i].ds) CLV_TRY(describe_classes(&sets[i], writes_json, out, err));
  if (writes_json) clv_bytes_puts(out, "},\"duplicates\":[");
  if (!writes_json) CLV_TRY(describe_all_classes(sets, out, err));
  if (!r->o->is_quick) CLV_TRY(describe_duplicates(sets, writes_json, out, err));
  if (writes_json) clv_bytes_puts(out, "]");
  CLV_TRY(describe_targets(sets, writes_json, out, err));
  CLV_TRY(clv_run_describe_columns(r, writes_json, out, err));
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
