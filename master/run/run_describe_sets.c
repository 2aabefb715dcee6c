/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes each set for `check`: the range of its values, and the number of records of each class.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "master/run/run_int.h"

enum {
  SAMPLE_RECORDS = 32,  /* records whose values are examined */
  MAX_SHOWN_CLASSES = 8 /* most classes that the text lists */
};

typedef struct set {
  const char *key, *name; /* key of the session file; name in text and JSON */
  const clv_dataset *ds;  /* NULL: the session has no such set */
  const clv_subset *rows;
} set;

/* Begins a JSON member whose value is an object. Writes a comma before it unless it is the
 * first. */
static void begin_member(clv_bytes *out, const char *key) {
  bool is_first = !out->len || out->data[out->len - 1] == '{';
  clv_bytes_printf(out, "%s\"%s\":{", is_first ? "" : ",", key);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void append_levels(const set *s, const clv_value_levels *f, clv_bytes *out) {
  char levels[48] = "", range_text[64] = "";
  if (f->n_levels)
    snprintf(levels, sizeof levels, ", %zu level%s", f->n_levels, CLV_S(f->n_levels));
  if (f->image_bits)
    snprintf(range_text, sizeof range_text, " of %d (%u bits)", f->image_bits == 16 ? 65535 : 255,
             f->image_bits);
  clv_bytes_printf(out, "%s: values from %.6g to %.6g%s%s, in %zu of %zu records\n", s->key, f->low,
                   f->high, range_text, levels, f->records, clv_dataset_count(s->ds));
}

/* Appends a number, or null if JSON cannot represent it. */
static void append_json_number(clv_bytes *out, const char *name, double value) {
  clv_bytes_printf(out, "\"%s\":", name);
  if (isfinite(value))
    clv_bytes_printf(out, "%.9g,", value);
  else
    clv_bytes_puts(out, "null,");
}

static void append_levels_json(const set *s, const clv_value_levels *f, clv_bytes *out) {
  begin_member(out, s->key);
  append_json_number(out, "low", f->low);
  append_json_number(out, "high", f->high);
  if (f->n_levels) clv_bytes_printf(out, "\"levels\":%zu,", f->n_levels);
  if (f->image_bits) clv_bytes_printf(out, "\"bits\":%u,", f->image_bits);
  clv_bytes_printf(out, "\"looked_at\":%zu}", f->records);
}

static clv_code describe_levels(const set *s, bool json, clv_bytes *out, clv_err *err) {
  clv_value_levels f;
  CLV_TRY(clv_dataset_value_levels(s->ds, SAMPLE_RECORDS, &f, err));
  if (f.records) (json ? append_levels_json : append_levels)(s, &f, out);
  return CLV_OK;
}

/* ---- classes --------------------------------------------------------------------------------- */

static size_t count_classes(const clv_dataset *ds) {
  int64_t low, high;
  size_t n_named = clv_dataset_class_count(ds);
  if (n_named) return n_named;
  return clv_dataset_label_range(ds, &low, &high) && high < 1 << 20 ? (size_t)high + 1 : 0;
}

static void append_class(clv_bytes *out, const clv_dataset *ds, size_t class, size_t n) {
  clv_bytes_puts(out, class ? ", " : "");
  if (clv_dataset_class_count(ds))
    clv_bytes_printf(out, "'%s' %zu", clv_dataset_class_name(ds, class), n);
  else
    clv_bytes_printf(out, "class %zu: %zu", class, n);
}

static void append_rest_of_classes(clv_bytes *out, const size_t *counts, size_t n) {
  size_t min_records = SIZE_MAX, max_records = 0, n_empty = 0;
  for (size_t i = MAX_SHOWN_CLASSES; i < n; i++) {
    min_records = CLV_MIN(min_records, counts[i]);
    max_records = CLV_MAX(max_records, counts[i]);
    n_empty += !counts[i];
  }
  clv_bytes_printf(out, " and %zu more classes of %zu to %zu records", n - MAX_SHOWN_CLASSES,
                   min_records, max_records);
  if (n_empty) clv_bytes_printf(out, ", %zu of them without any", n_empty);
}

static void append_classes(const set *s, const size_t *counts, size_t n, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  if (!n || !s->rows->n) return;
  for (size_t i = 0; i < CLV_MIN(n, (size_t)MAX_SHOWN_CLASSES); i++)
    append_class(&line, s->ds, i, counts[i]);
  if (n > MAX_SHOWN_CLASSES) append_rest_of_classes(&line, counts, n);
  if (!line.failed) clv_text_to_printable(line.data);
  out->failed |= line.failed;
  clv_bytes_printf(out, "%s: %zu record%s: %s\n", s->name, s->rows->n, CLV_S(s->rows->n),
                   line.data);
}

/* Appends all classes in the order of their numbers. */
static void append_classes_json(const set *s, const size_t *counts, size_t n, clv_bytes *out) {
  begin_member(out, s->name);
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

static clv_code describe_classes(const set *s, bool json, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  size_t n = clv_dataset_record_class(s->ds, 0) == -1 ? 0 : count_classes(s->ds);
  CLV_TRY(clv_alloc(n + 1, sizeof *counts, &counts, err));
  for (size_t i = 0; i < s->rows->n; i++) {
    int64_t class = clv_dataset_record_class(s->ds, s->rows->index[i]);
    if (class >= 0 && (uint64_t) class < n) counts[class]++;
  }
  (json ? append_classes_json : append_classes)(s, counts, n, out);
  return CLV_OK;
}

clv_code clv_run_describe_sets(const clv_run *r, bool json, clv_bytes *out, clv_err *err) {
  const clv_run_data *d = &r->data;
  const set sets[] = {{"data.train", "training", d->train, &d->train_rows},
                      {"data.train", "validation", d->train, &d->validation_rows},
                      {"data.test", "test", d->test, &d->test_rows}};
  if (json) clv_bytes_puts(out, ",\"values\":{");
  for (size_t i = 0; i < CLV_COUNT(sets); i++)
    if (sets[i].ds && i != 1) CLV_TRY(describe_levels(&sets[i], json, out, err));
  if (json) clv_bytes_puts(out, "},\"sets\":{");
  for (size_t i = 0; i < CLV_COUNT(sets); i++)
    if (sets[i].ds) CLV_TRY(describe_classes(&sets[i], json, out, err));
  if (json) clv_bytes_puts(out, "}");
  CLV_TRY(clv_run_describe_columns(r, json, out, err));
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}
