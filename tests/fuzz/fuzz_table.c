/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes tables. The first three bytes are the options of `enum option`, which say what the rest
 * is: a table, a file of learnt values (such as means and categories of columns), or a date format,
 * in the first line, and a date. The values learnt from the first half of a table must encode the
 * whole table. An accepted table that is not JSON is read again from a file.
 */
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "master/data/dataset_int.h"
#include "master/data/image_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum option {
  IS_LEARNT = 1, /* the rest of the input is a file of learnt values */
  HAS_TABS = 1 << 1,
  HAS_NUMBERS = 1 << 2, /* the target is a number */
  SKIPS_LABELS = 1 << 3,
  SKIPS_BROKEN = 1 << 4,
  HAS_GROUPS = 1 << 5,
  IGNORES_OTHERS = 1 << 6,
  HAS_DECIMAL_COMMA = 1 << 7,
  IS_JSON = 1 << 8,
  SPLIT_KEY_AT = 9, /* two bits: a value of clv_split_key */
  HAS_TARGETS = 1 << 11,
  HAS_FILES = 1 << 12,  /* the table has columns of image names and of weights */
  HAS_MARKS = 1 << 13,  /* the session lists the marks of missing values */
  HAS_FORMAT = 1 << 14, /* the session gives the format of dates */
  IS_DATE = 1 << 15,
  MASKS_MISSING = 1 << 16, /* labels of the targets may be missing */
  HAS_TEXTS = 1 << 17,
  DROPS_HALF = 1 << 18, /* every other record is dropped before the table is encoded */
};

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
};
static const clv_column_options second_target = {.name = "u", .use = CLV_COLUMN_TARGET},
                                path_column = {.name = "p", .use = CLV_COLUMN_FILE},
                                weight_column = {.name = "w", .use = CLV_COLUMN_WEIGHT},
                                text_column = {.name = "x",
                                               .use = CLV_COLUMN_TEXT,
                                               .missing = CLV_MISSING_VALUE,
                                               .value = "a"};
enum { TEXT_WIDTH = 6, TEXT_TOKENS = 8 };
enum { MAX_COLUMNS = CLV_COUNT(columns) + 4, DATE_COLUMN = 6 };
static const clv_target_option targets[] = {{"t", CLV_TASK_CLASSES}, {"u", CLV_TASK_LABELS}};

/* Fails unless the text that clv_learnt_write writes can be parsed, and is the same if written
 * again. */
static void check_learnt(const clv_learnt *l) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, parsed_again = {0};
  CLV_AUTO(clv_learnt_freep) clv_learnt *read = NULL;
  clv_err err = {0};
  NEVER(clv_learnt_write(l, &text, &err) != CLV_OK);
  NEVER(clv_learnt_parse(text.data, text.len, "learnt", &read, &err) != CLV_OK);
  NEVER(clv_learnt_write(read, &parsed_again, &err) != CLV_OK);
  NEVER(text.len != parsed_again.len || memcmp(text.data, parsed_again.data, text.len) != 0);
}

/* Column 4 is an index column, whose words become row numbers. Fails unless each row number is
 * below the number of rows. */
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

/* Checks that each class of a target has a name. */
static void check_class_names(const clv_dataset *ds, const clv_learnt *l, size_t target) {
  const char *name = clv_dataset_target_name(ds, target);
  NEVER(strcmp(name, targets[target].name) != 0);
  for (size_t i = 0; i < clv_dataset_target_class_count(ds, target); i++) {
    const char *class_name = clv_dataset_target_class_name(ds, target, i),
               *learnt_name = clv_learnt_class_name(l, name, i);
    NEVER(!class_name || (learnt_name && strcmp(class_name, learnt_name) != 0));
  }
}

/* Makes the labels of both targets, and checks that their classes are in range. */
static void check_targets(clv_cell_table *t, const clv_learnt *l) {
  clv_dataset ds = {.table = t, .count = t->count, .inputs_path = (char *)(uintptr_t) "fuzz"};
  clv_err err = {0};
  NEVER(clv_targets_set_labels(&ds, l, &err) != CLV_OK);
  NEVER(clv_dataset_target_count(&ds) != CLV_COUNT(targets));
  for (size_t k = 0; k < CLV_COUNT(targets); k++) check_class_names(&ds, l, k);
  for (size_t i = 0; i < clv_learnt_target_count(l); i++) NEVER(!clv_learnt_target_name(l, i)[0]);
  for (size_t i = 0; i < ds.count; i++)
    for (size_t k = 0; k < CLV_COUNT(targets); k++) {
      int64_t class = clv_dataset_target_class(&ds, k, i);
      if (class < 0 && t->targets[k]->o.missing == CLV_MISSING_MASK) continue;
      NEVER(class < 0 || (size_t) class >= clv_dataset_target_class_count(&ds, k));
    }
  clv_learnt_targets_free(ds.targets, ds.n_targets);
  clv_tensor_unref(ds.labels);
}

/* Makes the labels by learnt values that lack the targets, as those of a training without them do.
 * Labels of classes are refused with the name of their target. */
static void check_targets_without_classes(clv_cell_table *t, const clv_learnt *l) {
  clv_dataset ds = {.table = t, .count = t->count, .inputs_path = (char *)(uintptr_t) "fuzz"};
  clv_learnt without_targets = *l;
  clv_err err = {0};
  without_targets.n_targets = 0;
  if (clv_targets_set_labels(&ds, &without_targets, &err) != CLV_OK)
    NEVER(!strstr(err.text, "target '"));
  clv_learnt_targets_free(ds.targets, ds.n_targets);
  clv_tensor_unref(ds.labels);
}

/* Checks that the paths of images stay in their folder, and that the weights are not negative. */
static void check_paths_and_weights(const clv_cell_table *t) {
  for (size_t i = 0; t->path_offsets && i < t->count; i++)
    NEVER(!clv_image_is_path_inside(clv_table_text(t, t->path_offsets, i)));
  for (size_t i = 0; t->weight && i < t->count; i++) NEVER(!(t->weight->numbers[i] >= 0));
}

/* Reads an accepted table again from a file. There it may be refused, because a file whose first
 * bytes are those of another format is read in that format. */
static void check_from_file(const clv_dataset_options *o, const clv_bytes *text,
                            const clv_cell_table *t) {
  static int fd = -1;
  char path[40];
  clv_dataset_options of_file = *o;
  CLV_AUTO(clv_table_freep) clv_cell_table *read = NULL;
  clv_err err = {0};
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  NEVER(fd < 0 || ftruncate(fd, 0) != 0 ||
        pwrite(fd, text->data, text->len, 0) != (ssize_t)text->len);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  of_file.inputs_path = path;
  if (clv_table_open(&of_file, &read, &err) != CLV_OK) {
    NEVER(!strstr(err.text, path));
    return;
  }
  NEVER(read->count != t->count || read->broken.n != t->broken.n ||
        read->id_texts.len != t->id_texts.len);
}

/* The records that were kept must have classes, and no more classes than all records have. */
static void check_classes(const clv_cell_table *t, const clv_learnt *l) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *of_kept = NULL;
  clv_err err = {0};
  NEVER(clv_table_learn_classes(t, &of_kept, &err) != CLV_OK);
  NEVER(!of_kept->n_classes || of_kept->n_classes > l->n_classes);
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
  const clv_dataset_options o = {.names = names, .n_named_inputs = CLV_COUNT(names)};
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
  for (size_t k = 0; k < ds.n_named_inputs; k++) {
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
  NEVER(clv_table_keep_records(t, &kept, &err) != CLV_OK || t->count != kept.n);
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
  if (t->n_targets) check_targets_without_classes(t, l);
  if (t->texts.width) check_texts(t, &half);
  check_paths_and_weights(t);
  NEVER(clv_table_keep_records(t, &half, &err) != CLV_OK || t->count != half.n);
  check_encoded(t, l);
  if (t->target && !t->target->has_numbers) check_classes(t, l);
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

static void check_learnt_file(const clv_bytes *text) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  clv_err err = {0};
  if (clv_learnt_parse(text->data, text->len, "fuzz.json", &l, &err) == CLV_OK)
    check_learnt(l);
  else
    NEVER(!strstr(err.text, "fuzz.json:"));
}

/* Lists the columns of the session. Returns the number of columns. */
static size_t list_columns(unsigned options, clv_column_options list[MAX_COLUMNS]) {
  size_t n = CLV_COUNT(columns);
  memcpy(list, columns, sizeof columns);
  if (options & HAS_FORMAT) list[DATE_COLUMN].format = "%d.%m.%Y";
  if (options & HAS_TARGETS) list[n++] = second_target;
  if (options & HAS_FILES) list[n++] = path_column;
  if (options & HAS_FILES) list[n++] = weight_column;
  if (options & HAS_TEXTS) list[n++] = text_column;
  for (size_t i = 0; i < n && options & HAS_TARGETS && options & MASKS_MISSING; i++)
    if (list[i].use == CLV_COLUMN_TARGET) list[i].missing = CLV_MISSING_MASK;
  return n;
}

static void parse_table(unsigned options, const clv_bytes *text) {
  static const char *const set_names[CLV_SET_COUNT] = {"p1", "p2", "p3"}, *const marks[] = {
                                                                              "-9", "unknown"};
  clv_column_options list[MAX_COLUMNS];
  clv_err err = {0};
  clv_dataset_options o = {
      .inputs_path = options & IS_JSON    ? "fuzz.jsonl"
                     : options & HAS_TABS ? "fuzz.tsv"
                                          : "fuzz.csv",
      .split_key = (clv_split_key)((options >> SPLIT_KEY_AT & 3) % 3),
      .labels = options & HAS_NUMBERS ? CLV_LABEL_FLOAT : CLV_LABEL_CLASS,
      .skips_labels = options & SKIPS_LABELS,
      .skips_broken = options & SKIPS_BROKEN,
      .reads_weights = options & HAS_FILES,
      .names = (const char *const[]){"ids"},
      .n_named_inputs = options & HAS_TEXTS ? 1 : 0,
      .text = {.group = options & HAS_GROUPS ? "id" : NULL,
               .max_tokens = TEXT_WIDTH,
               .tokenizer = options & HAS_TEXTS ? open_vocabulary() : NULL},
      .table = {.separator = options & HAS_TABS && !(options & IS_JSON) ? '\t' : '\0',
                .columns = list,
                .n_columns = list_columns(options, list),
                .targets = targets,
                .n_targets = options & HAS_TARGETS ? CLV_COUNT(targets) : 0,
                .missing_marks = marks,
                .n_missing_marks = options & HAS_MARKS ? CLV_COUNT(marks) : 0,
                .image_folder = "tests/fuzz/corpus/image",
                .ignores_unlisted_columns = options & IGNORES_OTHERS,
                .has_decimal_comma = options & HAS_DECIMAL_COMMA}};
  for (int set = 0; set < CLV_SET_COUNT; set++)
    o.set_values[set] = (clv_set_values){&set_names[set], 1};
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  if (clv_table_parse(&o, text->data, text->len, &t, &err) != CLV_OK) {
    NEVER(!strstr(err.text, "fuzz."));
    return;
  }
  if (!(options & IS_JSON)) check_from_file(&o, text, t);
  check_table(t, options & DROPS_HALF);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) return 0;
  unsigned options = data[0] | (unsigned)data[1] << 8 | (unsigned)data[2] << 16;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add(&text, data + 3, size - 3);
  clv_bytes_add(&text, "", 0);
  if (options & IS_LEARNT)
    check_learnt_file(&text);
  else if (options & IS_DATE)
    check_date(&text);
  else
    parse_table(options, &text);
  return 0;
}
