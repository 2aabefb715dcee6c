/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes tables. Bit 0 of the first byte chooses between a file of learnt values (such as means and
 * categories of columns) and a table. The other bits, and those of the second byte, are the table's
 * options. The values learnt from the first half of a table must encode the whole table. If bit 7
 * of the second byte is set, the input is instead a date format, in the first line, and a date. Bit
 * 4 adds a column of texts, and bit 5 drops every other record.
 */
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

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
static const clv_column_options text_column = {
    .name = "x", .use = CLV_COLUMN_TEXT, .missing = CLV_MISSING_VALUE, .value = "a"};
enum { TEXT_WIDTH = 6, TEXT_TOKENS = 8 };
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

/* Fails unless the index, which is column 4, has a row for each of its numbers. */
static void check_index(const clv_cell_table *t, const clv_learnt *l) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  clv_err err = {0};
  NEVER(clv_table_encode_index(t, l, 4, &x, &err) != CLV_OK);
  for (size_t i = 0; i < x->n; i++) {
    int64_t number = ((const int64_t *)x->data)[i];
    NEVER(number < 0 || (size_t)number >= clv_learnt_index_rows(&l->columns[4]));
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
  clv_targets_free_learnt(ds.targets, ds.n_targets);
  clv_tensor_unref(ds.labels);
}

/* Returns the path of a vocabulary, which is in a file without a name. */
static const char *open_vocabulary(void) {
  static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nb\n,\n";
  static char path[40];
  if (path[0]) return path;
  int fd = memfd_create("vocab.txt", MFD_CLOEXEC);
  NEVER(write(fd, vocabulary, sizeof vocabulary - 1) != sizeof vocabulary - 1);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

/* Makes the inputs of the texts, and checks that each record has a row of tokens. */
static void check_texts(clv_cell_table *t, const clv_subset *rows) {
  clv_named_input inputs[CLV_TEXT_INPUTS] = {{.name = NULL}};
  clv_dataset ds = {.table = t,
                    .count = t->count,
                    .inputs_path = (char *)(uintptr_t) "fuzz",
                    .named_inputs = inputs};
  static const char *const names[] = {"ids", "lengths"};
  const clv_dataset_options o = {.names = names, .n_named = CLV_COUNT(names)};
  const clv_table_column *c = &t->columns[t->n_columns - 1];
  clv_column_facts before = {0}, after = {0};
  clv_err err = {0};
  NEVER(t->texts.n != t->count || t->texts.lengths.n != t->count);
  NEVER(clv_table_count_texts(&ds, c, rows, &before, &err) != CLV_OK);
  NEVER(clv_table_prepare_texts(&ds, &o, &err) != CLV_OK);
  NEVER(clv_table_encode_texts(&ds, &err) != CLV_OK);
  NEVER(clv_table_add_text_inputs(&ds, &err) != CLV_OK);
  NEVER(clv_table_count_texts(&ds, c, rows, &after, &err) != CLV_OK);
  NEVER(before.n_distinct != after.n_distinct || before.n_missing != after.n_missing);
  NEVER(before.n_missing + before.n_distinct > rows->n);
  for (size_t i = 0; i < inputs[0].data->n; i++) {
    int64_t id = clv_tensor_element_as_integer(inputs[0].data, i);
    NEVER(id < 0 || id >= TEXT_TOKENS);
  }
  for (size_t i = 0; i < t->count; i++) {
    int64_t length = clv_tensor_element_as_integer(inputs[1].data, i);
    NEVER(length < 2 || length > TEXT_WIDTH);
    NEVER(c->codes[i] != CLV_MISSING_CODE && c->codes[i] != length);
  }
  for (size_t k = 0; k < ds.n_named; k++) {
    free(inputs[k].name);
    free(inputs[k].path);
    clv_tensor_unref(inputs[k].data);
  }
  clv_texts_free(ds.texts);
}

/* Drops every other record. */
static void keep_half(clv_cell_table *t) {
  uint32_t rows[64];
  clv_subset kept = {rows, CLV_MIN((t->count + 1) / 2, CLV_COUNT(rows))};
  clv_err err = {0};
  for (size_t i = 0; i < kept.n; i++) rows[i] = 2 * (uint32_t)i;
  NEVER(clv_table_keep_only(t, &kept, &err) != CLV_OK || t->count != kept.n);
}

static void check_table(clv_cell_table *t, bool drops_half) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  uint32_t rows[64];
  if (drops_half) keep_half(t);
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
  if (t->texts.width) check_texts(t, &half);
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
  if (!clv_date_read(end, len, form, &days)) return;
  NEVER(!(fabs(days) < CLV_MAX_DAYS));
  for (int part = 0; part < CLV_DATE_PARTS; part++) {
    double phase = clv_date_part_passed(days, (clv_date_part)part);
    NEVER(!(phase >= 0 && phase < 1));
  }
  clv_date_text(days, written);
  /* a time zone can move a day before year 1 or behind 9999, which has no readable text */
  if (clv_date_read(written, strlen(written), NULL, &parsed_again))
    NEVER(parsed_again != floor(days));
}

/* Lists the columns of a table. Returns how many. */
static size_t list_columns(bool has_targets, bool has_texts, clv_column_options *list) {
  size_t n = CLV_COUNT(columns) - !has_targets;
  memcpy(list, columns, sizeof columns);
  if (has_texts) list[n++] = text_column;
  return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const set_names[CLV_SETS] = {"p1", "p2", "p3"};
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
  bool has_targets = data[1] & 8, has_texts = data[1] & 16;
  clv_column_options list[CLV_COUNT(columns) + 1];
  size_t n_columns = list_columns(has_targets, has_texts, list);
  clv_dataset_options o = {.inputs_path = data[1] & 1   ? "fuzz.jsonl"
                                          : data[0] & 2 ? "fuzz.tsv"
                                                        : "fuzz.csv",
                           .split_key = (data[1] >> 1 & 3) % 3,
                           .labels = data[0] & 4 ? CLV_LABEL_FLOAT : CLV_LABEL_CLASS,
                           .skips_labels = data[0] & 8,
                           .skips_broken = data[0] & 16,
                           .names = (const char *const[]){"ids"},
                           .n_named = has_texts,
                           .text = {.group = data[0] & 32 ? "id" : NULL,
                                    .max_tokens = TEXT_WIDTH,
                                    .tokenizer = has_texts ? open_vocabulary() : NULL},
                           .table = {.columns = list,
                                     .n_columns = n_columns,
                                     .targets = targets,
                                     .n_targets = has_targets ? CLV_COUNT(targets) : 0,
                                     .ignores_others = data[0] & 64,
                                     .has_decimal_comma = data[0] & 128}};
  for (int set = 0; set < CLV_SETS; set++) o.set_values[set] = (clv_set_values){&set_names[set], 1};
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  if (clv_table_parse(&o, text.data, text.len, &t, &err) == CLV_OK)
    check_table(t, data[1] & 32);
  else
    NEVER(!strstr(err.text, "fuzz."));
  return 0;
}
