/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes tables. Bit 0 of the first byte chooses between a file of learnt values (such as means and
 * categories of columns) and a table. The other bits, and those of the second byte, are the table's
 * options. The values learnt from the first half of a table must encode the whole table. If bit 7
 * of the second byte is set, the input is instead a date format, in the first line, and a date.
 */
#include <math.h>

#include "master/data/dataset_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const clv_column_options columns[] = {
    {.name = "a", .missing = CLV_MISSING_MEAN, .has_indicator = true},
    {.name = "b", .scale = CLV_SCALE_QUANTILE, .missing = CLV_MISSING_MEDIAN},
    {.name = "c", .scale = CLV_SCALE_LOG, .missing = CLV_MISSING_VALUE, .value = "2"},
    {.name = "d", .use = CLV_COLUMN_CATEGORY, .missing = CLV_MISSING_OWN, .has_indicator = true},
    {.name = "e", .use = CLV_COLUMN_INDEX, .missing = CLV_MISSING_MOST_FREQUENT},
    {.name = "f", .use = CLV_COLUMN_BOOLEAN, .missing = CLV_MISSING_MOST_FREQUENT},
    {.name = "g",
     .use = CLV_COLUMN_DATE,
     .missing = CLV_MISSING_MEAN,
     .parts = (1u << CLV_DATE_PARTS) - 1,
     .has_indicator = true},
    {.name = "t", .use = CLV_COLUMN_TARGET},
    {.name = "id", .use = CLV_COLUMN_ID},
    {.name = "u", .use = CLV_COLUMN_TARGET}, /* the second of several targets */
};
static const clv_target_option targets[] = {{"t", CLV_TASK_CLASSES}, {"u", CLV_TASK_LABELS}};

/* Fails unless clv_learnt_parse reads what clv_learnt_write wrote, to the same text. */
static void check_learnt(const clv_learnt *l) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, parsed_again = {0};
  CLV_AUTO(clv_learnt_freep) clv_learnt *read = NULL;
  clv_err err = {0};
  NEVER(clv_learnt_write(l, &text, &err) != CLV_OK);
  NEVER(clv_learnt_parse(text.data, text.len, "learnt", &read, &err) != CLV_OK);
  NEVER(clv_learnt_write(read, &parsed_again, &err) != CLV_OK);
  NEVER(text.len != parsed_again.len || memcmp(text.data, parsed_again.data, text.len) != 0);
}

/* Fails unless each number of the index (column 4) is the number of one of the index's rows. */
static void check_index(const clv_cell_table *t, const clv_learnt *l) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  clv_err err = {0};
  NEVER(clv_table_encode_index(t, l, 4, &x, &err) != CLV_OK);
  for (size_t i = 0; i < x->n; i++) {
    int64_t number = ((const int64_t *)x->data)[i];
    NEVER(number < 0 || (size_t)number >= clv_learnt_index_row_count(&l->columns[4]));
  }
}

static void check_encoded(const clv_cell_table *t, const clv_learnt *l) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_err err = {0};
  NEVER(clv_table_encode(t, l, &x, &err) != CLV_OK);
  for (size_t i = 0; i < x->n; i++) NEVER(isnan(((const float *)x->data)[i]));
  check_index(t, l);
  if (!t->target || t->target->has_numbers) return;
  NEVER(clv_table_class_labels(t, l, "fuzz", &y, &err) != CLV_OK);
  for (size_t i = 0; i < y->n; i++) {
    int64_t class = ((const int64_t *)y->data)[i];
    NEVER(class < 0 || (size_t) class >= l->n_classes);
  }
}

/* Makes the labels of several targets, and checks that their classes are in range. */
static void check_targets(clv_cell_table *t, const clv_learnt *l) {
  clv_dataset ds = {.table = t, .count = t->count, .inputs_path = (char *)(uintptr_t) "fuzz"};
  clv_err err = {0};
  NEVER(clv_targets_set_labels(&ds, l, &err) != CLV_OK);
  for (size_t i = 0; i < ds.count; i++)
    for (size_t k = 0; k < CLV_COUNT(targets); k++) {
      int64_t class = clv_dataset_target_class(&ds, k, i);
      NEVER(class < 0 || (size_t) class >= clv_dataset_target_class_count(&ds, k));
    }
  clv_learnt_targets_free(ds.targets, ds.n_targets);
  clv_tensor_unref(ds.labels);
}

static void check_table(clv_cell_table *t) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  uint32_t rows[64];
  clv_subset half = {rows, CLV_MIN((t->count + 1) / 2, CLV_COUNT(rows))};
  clv_err err = {0};
  for (size_t i = 0; i < half.n; i++) rows[i] = (uint32_t)i;
  if (clv_table_learn(t, &half, &l, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return;
  }
  check_learnt(l);
  check_encoded(t, l);
  if (t->n_targets) check_targets(t, l);
}

/* Reads a date in the format of the first line. */
static void check_date(const clv_bytes *text) {
  char *end = strchr(text->data, '\n'), written[CLV_DATE_TEXT_BYTES];
  double days = 0, parsed_again = 0;
  clv_err err = {0};
  if (!end) return;
  *end++ = '\0';
  const char *form = *text->data ? text->data : NULL;
  size_t len = text->len - (size_t)(end - text->data);
  if (form && clv_date_check_format(form, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return;
  }
  if (!clv_date_read_days(end, len, form, &days)) return;
  NEVER(!(fabs(days) < CLV_MAX_DAYS));
  for (int part = 0; part < CLV_DATE_PARTS; part++) {
    double phase = clv_date_fraction_passed(days, (clv_date_part)part);
    NEVER(!(phase >= 0 && phase < 1));
  }
  clv_date_text(days, written);
  /* a time zone can move a day before year 1 or behind 9999, which has no readable text */
  if (clv_date_read_days(written, strlen(written), NULL, &parsed_again))
    NEVER(parsed_again != floor(days));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const set_names[CLV_SET_COUNT] = {"p1", "p2", "p3"};
  clv_err err = {0};
  if (size < 2) return 0;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add(&text, data + 2, size - 2);
  clv_bytes_add(&text, "", 0);
  if (data[0] & 1) {
    CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
    if (clv_learnt_parse(text.data, text.len, "fuzz.json", &l, &err) == CLV_OK)
      check_learnt(l);
    else
      NEVER(!strstr(err.text, "fuzz.json:"));
    return 0;
  }
  if (data[1] & 128) return check_date(&text), 0;
  bool is_json = data[1] & 1, has_targets = data[1] & 8;
  clv_dataset_options o = {.inputs_path = is_json       ? "fuzz.jsonl"
                                          : data[0] & 2 ? "fuzz.tsv"
                                                        : "fuzz.csv",
                           .split_key = (data[1] >> 1 & 3) % 3,
                           .labels = data[0] & 4 ? CLV_LABEL_FLOAT : CLV_LABEL_CLASS,
                           .skips_labels = data[0] & 8,
                           .skips_broken = data[0] & 16,
                           .text = {.group = data[0] & 32 ? "id" : NULL},
                           .table = {.columns = columns,
                                     .n_columns = CLV_COUNT(columns) - !has_targets,
                                     .targets = targets,
                                     .n_targets = has_targets ? CLV_COUNT(targets) : 0,
                                     .ignores_unlisted_columns = data[0] & 64,
                                     .has_decimal_comma = data[0] & 128}};
  for (int set = 0; set < CLV_SET_COUNT; set++)
    o.set_values[set] = (clv_set_values){&set_names[set], 1};
  clv_cell_table *t = NULL;
  if (clv_table_parse(&o, text.data, text.len, &t, &err) == CLV_OK)
    check_table(t);
  else
    NEVER(!strstr(err.text, "fuzz."));
  clv_table_free(t);
  return 0;
}
