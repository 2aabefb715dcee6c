/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a table of numbers and words column by column. Numbers and booleans become doubles; words
 * become their numbers in a table of names. Nothing is scaled here: that needs the training
 * records, which are known only after the split (table_encoder.c).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/data/cell_source_int.h"
#include "master/data/cells_int.h"
#include "master/data/image_int.h"

enum {
  MAX_SET_NAME_BYTES = 64,
  MAX_SHOWN_BYTES = 40 /* bytes of a cell in a message */,
  MAX_NUMBER_BYTES = 64 /* bytes of a number */
};

static const char *const usual_missing_marks[] = {"NA",  "N/A",  "n/a",  "NaN",
                                                  "nan", "NULL", "null", "None"};

/* ---- numbers, booleans and missing marks in cells -------------------------------------------- */

static void trim_spaces(const char **text, size_t *len) {
  while (*len && (**text == ' ' || **text == '\t')) (*text)++, (*len)--;
  while (*len && ((*text)[*len - 1] == ' ' || (*text)[*len - 1] == '\t')) (*len)--;
}

/* Copies digits from *from to *to. Returns the number of copied digits. */
static size_t copy_digits(const char **from, const char *end, char **to) {
  size_t n = 0;
  for (; *from < end && **from >= '0' && **from <= '9'; n++) *(*to)++ = *(*from)++;
  return n;
}

static void copy_sign(const char **from, const char *end, char **to) {
  if (*from < end && (**from == '+' || **from == '-')) *(*to)++ = *(*from)++;
}

bool clv_table_read_number(const char *text, size_t len, bool has_decimal_comma, double *ret) {
  char number_text[MAX_NUMBER_BYTES + 1], *to = number_text;
  const char *end = text + len;
  if (len > MAX_NUMBER_BYTES) return false;
  copy_sign(&text, end, &to);
  size_t n_digits = copy_digits(&text, end, &to);
  if (text < end && *text == (has_decimal_comma ? ',' : '.')) {
    *to++ = '.';
    text++;
    n_digits += copy_digits(&text, end, &to);
  }
  if (!n_digits) return false;
  if (text < end && (*text == 'e' || *text == 'E')) {
    *to++ = *text++;
    copy_sign(&text, end, &to);
    if (!copy_digits(&text, end, &to)) return false;
  }
  *to = '\0';
  if (text != end) return false;
  *ret = strtod(number_text, NULL);
  return isfinite(*ret);
}

bool clv_table_read_boolean(const char *text, size_t len, double *ret) {
  static const struct {
    const char *word;
    double value;
  } words[] = {{"0", 0},   {"1", 1}, {"false", 0}, {"true", 1}, {"no", 0},
               {"yes", 1}, {"f", 0}, {"t", 1},     {"n", 0},    {"y", 1}};
  for (size_t i = 0; i < CLV_COUNT(words); i++)
    if (strlen(words[i].word) == len && strncasecmp(words[i].word, text, len) == 0)
      return *ret = words[i].value, true;
  return false;
}

/* ---- state while a table is read ------------------------------------------------------------- */

enum { NO_COLUMN = -1 /* the field is not read */ };

typedef struct table_reader {
  clv_cell_table *t;
  const clv_dataset_options *o;
  clv_cell_source source;
  /* [CLV_CSV_MAX_COLUMNS] for each field, the index in t->columns of the column that it fills;
   * NO_COLUMN: the field is not read */
  int32_t *column_of_field;
  size_t n_resolved_fields; /* number of fields whose column is known */
  bool *is_column_found;    /* [n_columns] true: the table has a field with the column's name */
  size_t *last_record;      /* [n_columns] number of the last record that had the column, from 1 */
  size_t group_field;       /* field with the group; SIZE_MAX: groups are not read */
  bool is_fatal;            /* the error concerns all records, so the record is not skipped */
  /* files that receive the records whenever a block is full; NULL: all records stay in memory */
  clv_cell_files *files;
} table_reader;

static bool is_missing_mark(const char *const *marks, size_t n, const char *text, size_t len) {
  if (!len) return true;
  for (size_t i = 0; i < n; i++)
    if (strlen(marks[i]) == len && memcmp(marks[i], text, len) == 0) return true;
  return false;
}

bool clv_table_is_usual_missing_mark(const char *text, size_t len) {
  trim_spaces(&text, &len);
  return is_missing_mark(usual_missing_marks, CLV_COUNT(usual_missing_marks), text, len);
}

static bool is_missing(const table_reader *r, const char *text, size_t len) {
  const clv_table_options *o = &r->o->table;
  return o->n_missing_marks
             ? is_missing_mark(o->missing_marks, o->n_missing_marks, text, len)
             : is_missing_mark(usual_missing_marks, CLV_COUNT(usual_missing_marks), text, len);
}

/* ---- storing the cells of a column ----------------------------------------------------------- */

static clv_code fail_cell(const table_reader *r, const clv_source_cell *cell,
                          const clv_table_column *c, const char *problem, clv_err *err) {
  char text[MAX_SHOWN_BYTES + 4];
  clv_text_truncate(cell->text, text, sizeof text);
  clv_text_to_printable(text);
  if (cell->kind == CLV_CELL_OTHER)
    return clv_cells_fail(&r->source, err, "column '%.80s' has %s, %s", c->o.name, text, problem);
  return clv_cells_fail(&r->source, err, "column '%.80s' has '%s', %s", c->o.name, text, problem);
}

/* Fails because a record has no value of a column. is_absent: the JSON object lacks the column's
 * key; false: the cell is empty or marked as missing. */
static clv_code fail_missing_value(const table_reader *r, const clv_table_column *c, bool is_absent,
                                   clv_err *err) {
  bool is_target = c->o.use == CLV_COLUMN_TARGET, is_id = c->o.use == CLV_COLUMN_ID;
  bool is_weight = c->o.use == CLV_COLUMN_WEIGHT, is_text = c->o.use == CLV_COLUMN_TEXT;
  const char *column_noun = is_target   ? "the target"
                            : is_id     ? "the id"
                            : is_weight ? "the weight"
                                        : "column";
  const char *advice =
      r->o->table.n_targets && is_target
          ? "is missing: set `missing: mask` of its column, so that its loss skips "
            "the record, or leave the record out, as data.broken: skip does"
      : is_target ? "is missing: leave the record out, or set data.broken: skip"
      : is_id     ? "is missing: give the record one, or say as: ignore"
      : is_weight ? "is missing: give the record one, 0 or more"
      : is_text   ? "has no text here: give it one, or say missing: value for an empty one"
                  : "has no value here: set its `missing`, such as most_frequent";
  return (is_absent ? clv_cells_fail_record : clv_cells_fail)(&r->source, err, "%s '%.80s' %s",
                                                              column_noun, c->o.name, advice);
}

static clv_code fail_number(const table_reader *r, const clv_source_cell *cell,
                            const clv_table_column *c, clv_err *err) {
  bool has_other_mark = strchr(cell->text, r->o->table.has_decimal_comma ? '.' : ',') != NULL;
  const char *advice = has_other_mark && r->o->table.has_decimal_comma
                           ? "which is no number: its decimal mark is a comma (data.table.decimal)"
                       : has_other_mark
                           ? "which is no number: set data.table.decimal: comma if the comma is "
                             "its decimal mark; marks of thousands have to go"
                       : c->o.use == CLV_COLUMN_TARGET
                           ? "which is no number: words as targets need loss: cross_entropy"
                           : "which is no number: correct it, name it in data.table.missing_marks, "
                             "or say as: category";
  return fail_cell(r, cell, c, advice, err);
}

static bool read_number(const table_reader *r, const clv_source_cell *cell, const char *text,
                        size_t len, double *ret) {
  bool has_comma = r->o->table.has_decimal_comma && cell->kind == CLV_CELL_TEXT;
  return clv_table_read_number(text, len, has_comma, ret);
}

/* Fails because a cell is no date. In tables from JSON and SQLite, too, dates are texts. */
static clv_code fail_date(const table_reader *r, const clv_source_cell *cell,
                          const clv_table_column *c, clv_err *err) {
  char advice[160];
  snprintf(advice, sizeof advice,
           "which is no date of the form '%.60s': correct it, or set its `format`, such as "
           "\"%%d.%%m.%%Y\"",
           c->o.format ? c->o.format : "2024-01-31");
  return fail_cell(r, cell, c, advice, err);
}

static clv_code store_date(const table_reader *r, const clv_source_cell *cell, clv_table_column *c,
                           const char *text, size_t len, clv_err *err) {
  if (!clv_date_read_days(text, len, c->o.format, &c->numbers[r->t->count]))
    return fail_date(r, cell, c, err);
  return CLV_OK;
}

static clv_code store_number(const table_reader *r, const clv_source_cell *cell,
                             clv_table_column *c, const char *text, size_t len, clv_err *err) {
  double v;
  bool is_boolean = c->o.use == CLV_COLUMN_BOOLEAN || c->is_yes_or_no;
  if (is_boolean ? !clv_table_read_boolean(text, len, &v) : !read_number(r, cell, text, len, &v))
    return is_boolean
               ? fail_cell(r, cell, c, "which is no boolean (0, 1, true, false, yes, no)", err)
               : fail_number(r, cell, c, err);
  if (c->o.scale == CLV_SCALE_LOG && v <= -1)
    return fail_cell(r, cell, c, "and scale: log is ln(1 + v), for v above -1", err);
  if (c->o.use == CLV_COLUMN_WEIGHT && v < 0)
    return fail_cell(r, cell, c, "and a weight is 0 or more", err);
  c->numbers[r->t->count] = v;
  return CLV_OK;
}

/* Checks that a cell is text. */
static clv_code check_word(const table_reader *r, const clv_source_cell *cell,
                           const clv_table_column *c, clv_err *err) {
  if (memchr(cell->text, '\0', cell->len))
    return fail_cell(r, cell, c, "which has a NUL byte", err);
  if (clv_cells_is_utf8(cell->text, cell->len)) return CLV_OK;
  return fail_cell(r, cell, c,
                   "which is not UTF-8: convert the file, as with iconv -f LATIN1 -t UTF-8", err);
}

static clv_code store_word(const table_reader *r, const clv_source_cell *cell, clv_table_column *c,
                           clv_err *err) {
  clv_err reason;
  CLV_TRY(check_word(r, cell, c, err));
  if (clv_name_table_find_or_add(&c->names, cell->text, cell->len, &c->codes[r->t->count],
                                 &reason) == CLV_OK)
    return CLV_OK;
  if (reason.code == CLV_INVALID) return fail_cell(r, cell, c, reason.text, err);
  return clv_cells_fail(&r->source, err, "column '%.80s' has %s: is it an id?", c->o.name,
                        reason.text);
}

static clv_code store_id(table_reader *r, const clv_source_cell *cell, const clv_table_column *c,
                         clv_err *err) {
  if (cell->kind == CLV_CELL_MISSING) return fail_missing_value(r, c, false, err);
  CLV_TRY(check_word(r, cell, c, err));
  r->t->id_offsets[r->t->count] = r->t->id_texts.len;
  clv_bytes_puts(&r->t->id_texts, cell->text);
  clv_bytes_add(&r->t->id_texts, "", 1);
  return r->t->id_texts.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for ids") : CLV_OK;
}

/* Adds the tokens of a text. is_missing: `text` replaces the cell, which is missing. */
static clv_code store_text(const table_reader *r, clv_table_column *c, const char *text, size_t len,
                           bool is_missing, clv_err *err) {
  clv_err reason;
  if (clv_table_add_text(r->t, c, text, len, is_missing, &reason) == CLV_OK) return CLV_OK;
  clv_cells_fail(&r->source, err, "column '%.80s': %s", c->o.name, reason.text);
  if (err) err->code = reason.code;
  return reason.code;
}

/* ---- paths of images ------------------------------------------------------------------------- */

static clv_code store_image_path(table_reader *r, const clv_source_cell *cell,
                                 const clv_table_column *c, const char *text, size_t len,
                                 clv_err *err) {
  clv_cell_table *t = r->t;
  if (cell->kind == CLV_CELL_MISSING || is_missing(r, text, len))
    return fail_missing_value(r, c, false, err);
  CLV_TRY(check_word(r, cell, c, err));
  t->path_offsets[t->count] = t->id_texts.len;
  clv_bytes_add(&t->id_texts, text, len);
  clv_bytes_add(&t->id_texts, "", 1);
  if (t->id_texts.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for paths");
  const char *path = t->id_texts.data + t->path_offsets[t->count];
  if (!clv_image_is_path_inside(path))
    return fail_cell(r, cell, c,
                     "which leaves the folder of the images: give a path in it, without '..' "
                     "(data.table.files names the folder)",
                     err);
  if (!clv_image_is_file(t->image_folder_path, path))
    return fail_cell(r, cell, c, "which is no file in the folder of the images (data.table.files)",
                     err);
  return CLV_OK;
}

/* Sets the folder of the images: the folder that the session names, or else the folder of the
 * table. */
static clv_code set_image_folder(const clv_dataset_options *o, clv_cell_table *t, clv_err *err) {
  const char *slash = o->inputs_path ? strrchr(o->inputs_path, '/') : NULL;
  if (o->table.image_folder) return clv_strdup(o->table.image_folder, &t->image_folder_path, err);
  CLV_TRY(clv_strdup(slash ? o->inputs_path : ".", &t->image_folder_path, err));
  if (slash) t->image_folder_path[slash == o->inputs_path ? 1 : slash - o->inputs_path] = '\0';
  return CLV_OK;
}

/* Returns true if the column's cells are not read. */
static bool is_column_unread(const table_reader *r, const clv_table_column *c) {
  return c->o.use == CLV_COLUMN_IGNORED || (c->o.use == CLV_COLUMN_TARGET && !c->is_read_target) ||
         (c->o.use == CLV_COLUMN_WEIGHT && c != r->t->weight);
}

/* Stores that the present record has no value of the column; in a column of texts, stores the
 * tokens of the text that replaces a missing one. */
static clv_code set_cell_missing(const table_reader *r, clv_table_column *c, clv_err *err) {
  const char *text = c->o.value ? c->o.value : "";
  if (c->o.use == CLV_COLUMN_TEXT) return store_text(r, c, text, strlen(text), true, err);
  if (c->has_numbers) c->numbers[r->t->count] = NAN;
  if (!c->has_numbers) c->codes[r->t->count] = CLV_MISSING_CODE;
  return CLV_OK;
}

static clv_code store_cell(table_reader *r, const clv_source_cell *cell, clv_table_column *c,
                           clv_err *err) {
  const char *text = cell->text;
  size_t len = cell->len;
  if (is_column_unread(r, c)) return CLV_OK;
  if (cell->kind == CLV_CELL_OTHER)
    return fail_cell(r, cell, c,
                     "and a cell is a text, a number, true, false or null: give each value a "
                     "column, or say as: ignore",
                     err);
  if (c->o.use == CLV_COLUMN_ID) return store_id(r, cell, c, err);
  trim_spaces(&text, &len);
  if (c->o.use == CLV_COLUMN_FILE) return store_image_path(r, cell, c, text, len, err);
  if (cell->kind == CLV_CELL_MISSING || is_missing(r, text, len)) {
    if (c->o.missing == CLV_MISSING_REFUSE) return fail_missing_value(r, c, false, err);
    return set_cell_missing(r, c, err);
  }
  if (c->o.use == CLV_COLUMN_DATE) return store_date(r, cell, c, text, len, err);
  if (c->o.use == CLV_COLUMN_TEXT) {
    CLV_TRY(check_word(r, cell, c, err));
    return store_text(r, c, cell->text, cell->len, false, err);
  }
  return c->has_numbers ? store_number(r, cell, c, text, len, err) : store_word(r, cell, c, err);
}

/* ---- finding the columns of fields ----------------------------------------------------------- */

/* Returns the key of the session that names the column with the group, the time or the set. */
static const char *get_group_setting(const table_reader *r) {
  return r->o->split_key == CLV_KEY_IS_GROUP ? "data.validation.group" : "data.validation.column";
}

/* Fails because no field has the name that the session gives. The message lists the fields. */
static clv_code fail_absent_column(const table_reader *r, const char *key, const char *name,
                                   clv_err *err) {
  const clv_fields *f = &r->source.fields;
  clv_key_list present_keys = {0};
  bool has_late_fields = r->source.reader->has_late_fields;
  for (size_t i = 0; i < f->n; i++) clv_key_list_add(&present_keys, clv_field_name(f, i));
  return clv_cells_fail_field(&r->source, SIZE_MAX, err, "%s '%.80s', but %s: set %s",
                              has_late_fields ? "no record has" : "the header has no", name,
                              clv_key_list_finish(&present_keys), key);
}

static clv_code find_column(const table_reader *r, size_t field, int32_t *ret, clv_err *err) {
  const char *name = clv_field_name(&r->source.fields, field);
  *ret = NO_COLUMN;
  for (size_t i = 0; i < r->t->n_columns; i++) {
    if (strcmp(r->t->columns[i].o.name, name) != 0) continue;
    if (r->is_column_found[i])
      return clv_cells_fail_field(&r->source, field, err,
                                  "the header has '%.80s' twice: rename one of them", name);
    *ret = (int32_t)i;
    return CLV_OK;
  }
  bool is_group = r->o->text.group && strcmp(r->o->text.group, name) == 0;
  if (is_group || r->o->table.ignores_unlisted_columns) return CLV_OK;
  if (!*name)
    return clv_cells_fail_field(
        &r->source, field, err,
        "a column has no name, as the row numbers of pandas: name it, or set "
        "data.table.others: ignore");
  return clv_cells_fail_field(
      &r->source, field, err,
      "%s has '%.80s', which data.table.columns does not name: add it (`as: ignore` leaves it "
      "out), or set data.table.others: ignore",
      r->source.reader->has_late_fields ? "this record" : "the header", name);
}

/* Looks up, for each field that the source has found since the last call, the column that the
 * session defines for the field's name. */
static clv_code resolve_fields(table_reader *r, clv_err *err) {
  for (; r->n_resolved_fields < r->source.fields.n; r->n_resolved_fields++) {
    const char *name = clv_field_name(&r->source.fields, r->n_resolved_fields);
    int32_t column;
    r->is_fatal = true;
    CLV_TRY(find_column(r, r->n_resolved_fields, &column, err));
    r->is_fatal = false;
    if (column >= 0) r->is_column_found[column] = true;
    if (r->o->text.group && strcmp(r->o->text.group, name) == 0)
      r->group_field = r->n_resolved_fields;
    r->column_of_field[r->n_resolved_fields] = column;
  }
  return CLV_OK;
}

/* Fails if a column that a record needs is in none of the fields. */
static clv_code check_columns_found(const table_reader *r, clv_err *err) {
  for (size_t i = 0; i < r->t->n_columns; i++)
    if (!r->is_column_found[i] && !is_column_unread(r, &r->t->columns[i]))
      return fail_absent_column(r, "data.table.columns", r->t->columns[i].o.name, err);
  if (r->o->text.group && r->group_field == SIZE_MAX)
    return fail_absent_column(r, get_group_setting(r), r->o->text.group, err);
  return CLV_OK;
}

/* ---- reading the records of a table ---------------------------------------------------------- */

/* Grows an array with one element per record to `cap` elements. */
#define GROW_ARRAY(array, cap, err)                                                        \
  do {                                                                                     \
    void *new_array = realloc(array, (cap) * sizeof *(array));                             \
    if (!new_array) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu records", cap); \
    (array) = new_array;                                                                   \
  } while (0)

static size_t count_records(const table_reader *r) {
  return r->t->count + (r->files ? r->files->n_records : 0);
}

/* Makes room for a further record. If a block of records is full, first appends it to the files. */
static clv_code reserve_record(const table_reader *r, clv_err *err) {
  clv_cell_table *t = r->t;
  if (t->count < t->cap) return CLV_OK;
  if (count_records(r) == UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "more than %u records", UINT32_MAX);
  if (r->files && t->cap) return clv_cell_files_append_block(r->files, t, err);
  size_t cap = r->files ? clv_cell_files_block_records(r->files, t) : t->cap ? 2 * t->cap : 256;
  for (size_t i = 0; i < t->n_columns; i++) {
    clv_table_column *c = &t->columns[i];
    if (c->o.use == CLV_COLUMN_ID)
      GROW_ARRAY(t->id_offsets, cap, err);
    else if (c->o.use == CLV_COLUMN_FILE)
      GROW_ARRAY(t->path_offsets, cap, err);
    else if (c->has_numbers)
      GROW_ARRAY(c->numbers, cap, err);
    else if (c->o.use != CLV_COLUMN_IGNORED)
      GROW_ARRAY(c->codes, cap, err);
  }
  t->cap = cap;
  return CLV_OK;
}

/* Returns the form of dates that the session gives the column `name`; NULL: ISO 8601, or the
 * session does not list the column. */
static const char *find_date_format(const table_reader *r, const char *name) {
  for (size_t i = 0; i < r->t->n_columns; i++)
    if (strcmp(r->t->columns[i].o.name, name) == 0) return r->t->columns[i].o.format;
  return NULL;
}

static clv_code read_group_time(const table_reader *r, const clv_source_cell *cell,
                                const char *text, size_t len, int64_t *ret, clv_err *err) {
  const char *format = find_date_format(r, r->o->text.group);
  double time;
  if (!clv_date_read_days(text, len, format, &time) &&
      (format || !read_number(r, cell, text, len, &time)))
    return clv_cells_fail(
        &r->source, err, "'%.80s' (data.validation.column) has neither a number nor a date here%s",
        r->o->text.group, format ? "" : ": say as: date, with a `format`, in data.table.columns");
  *ret = clv_time_number(time);
  return CLV_OK;
}

static clv_code read_group_set(const table_reader *r, const char *text, size_t len, int64_t *ret,
                               clv_err *err) {
  char shown_text[MAX_SHOWN_BYTES + 4], set_name[MAX_SET_NAME_BYTES + 1] = "";
  for (int set = 0; set < CLV_SET_COUNT; set++)
    for (size_t i = 0; i < r->o->set_values[set].n; i++) {
      const char *value = r->o->set_values[set].items[i];
      if (strlen(value) != len || memcmp(value, text, len) != 0) continue;
      *ret = set;
      return CLV_OK;
    }
  memcpy(set_name, text, CLV_MIN(len, (size_t)MAX_SET_NAME_BYTES));
  clv_text_truncate(set_name, shown_text, sizeof shown_text);
  clv_text_to_printable(shown_text);
  return clv_cells_fail(&r->source, err,
                        "'%.80s' (data.validation.column) has '%s', which is no value of "
                        "data.validation.training, validation or test: add it to one of them",
                        r->o->text.group, shown_text);
}

static clv_code add_group(table_reader *r, const clv_source_cell *cell, clv_err *err) {
  const char *text = cell->text;
  size_t len = cell->len;
  int64_t group = 0;
  if (r->o->split_key != CLV_KEY_IS_GROUP) trim_spaces(&text, &len);
  if (cell->kind == CLV_CELL_MISSING || cell->kind == CLV_CELL_OTHER ||
      (r->o->split_key == CLV_KEY_IS_TIME && is_missing(r, text, len)))
    return clv_cells_fail(&r->source, err,
                          "'%.80s' (%s) has no value here: give the record one, or leave it out",
                          r->o->text.group, get_group_setting(r));
  if (r->o->split_key == CLV_KEY_IS_GROUP) group = clv_group_number(text, len);
  if (r->o->split_key == CLV_KEY_IS_TIME) CLV_TRY(read_group_time(r, cell, text, len, &group, err));
  if (r->o->split_key == CLV_KEY_IS_SET) CLV_TRY(read_group_set(r, text, len, &group, err));
  clv_bytes_add(&r->t->groups, &group, sizeof group);
  return r->t->groups.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for groups") : CLV_OK;
}

/* Sets the columns that the record lacks to missing. Does nothing for a source with a header, in
 * which each record has all columns. */
static clv_code set_absent_cells(table_reader *r, size_t group_bytes_before, clv_err *err) {
  if (!r->source.reader->has_late_fields) return CLV_OK;
  for (size_t i = 0; i < r->t->n_columns; i++) {
    clv_table_column *c = &r->t->columns[i];
    if (r->last_record[i] == r->source.n_records || is_column_unread(r, c)) continue;
    if (c->o.use == CLV_COLUMN_ID || c->o.use == CLV_COLUMN_FILE ||
        c->o.missing == CLV_MISSING_REFUSE)
      return fail_missing_value(r, c, true, err);
    CLV_TRY(set_cell_missing(r, c, err));
  }
  if (!r->o->text.group || r->t->groups.len > group_bytes_before) return CLV_OK;
  return clv_cells_fail_record(&r->source, err, "has no '%.80s' (%s)", r->o->text.group,
                               get_group_setting(r));
}

/* Reads the cells of a record into row t->count. An error leaves the row unused. */
static clv_code read_cells(table_reader *r, clv_err *err) {
  size_t group_bytes_before = r->t->groups.len;
  clv_source_cell cell;
  bool has_more;
  for (;;) {
    CLV_TRY(r->source.reader->read_cell(&r->source, &cell, &has_more, err));
    if (!has_more) return set_absent_cells(r, group_bytes_before, err);
    CLV_TRY(resolve_fields(r, err));
    if (cell.field == r->group_field) CLV_TRY(add_group(r, &cell, err));
    int32_t column = r->column_of_field[cell.field];
    if (column == NO_COLUMN) continue;
    r->last_record[column] = r->source.n_records;
    CLV_TRY(store_cell(r, &cell, &r->t->columns[column], err));
  }
}

static clv_code skip_broken(table_reader *r, const clv_err *cause, clv_err *err) {
  bool must_stop = cause->code == CLV_EXHAUSTED || cause->code == CLV_CANCELLED;
  if (!r->o->skips_broken || must_stop || r->is_fatal || r->source.has_ended_early)
    return clv_fail(err, cause->code, "%s", cause->text);
  clv_broken_records_add(&r->t->broken, cause);
  return CLV_OK;
}

static clv_code read_record(table_reader *r, clv_err *err) {
  clv_err reason;
  CLV_TRY(reserve_record(r, err));
  size_t group_bytes_before = r->t->groups.len, id_bytes_before = r->t->id_texts.len;
  size_t n_texts_before = r->t->texts.n, n_truncated_before = r->t->texts.n_truncated;
  if (read_cells(r, &reason) == CLV_OK) return r->t->count++, CLV_OK;
  r->t->groups.len = group_bytes_before;
  r->t->id_texts.len = id_bytes_before;
  clv_text_rows_drop(&r->t->texts, n_texts_before, n_truncated_before);
  return skip_broken(r, &reason, err);
}

static clv_code read_records(table_reader *r, clv_err *err) {
  const char *path = r->o->inputs_path;
  bool has_more;
  CLV_TRY(resolve_fields(r, err));
  if (!r->source.reader->has_late_fields) CLV_TRY(check_columns_found(r, err));
  for (;;) {
    CLV_TRY(r->source.reader->start_next_record(&r->source, &has_more, err));
    if (!has_more) break;
    CLV_TRY(read_record(r, err));
  }
  if (r->files) CLV_TRY(clv_cell_files_append_block(r->files, r->t, err));
  if (count_records(r)) return check_columns_found(r, err);
  if (!r->t->broken.n) return clv_fail(err, CLV_INVALID, "%s: no records", path);
  return clv_fail(err, CLV_INVALID, "%s: all %zu records are broken; the first: %s", path,
                  r->t->broken.n, r->t->broken.error_lines.data);
}

/* ---- reading a table ------------------------------------------------------------------------- */

static clv_code copy_format(clv_table_column *c, const char *format, clv_err *err) {
  clv_err reason;
  if (clv_date_check_format(format, &reason) != CLV_OK)
    return clv_fail(err, reason.code, "data.table.columns.%.80s.format: %s", c->o.name,
                    reason.text);
  return clv_strdup(format, (char **)(uintptr_t)&c->o.format, err);
}

/* Sets how the labels of a column are read. Returns true if they are numbers. */
static bool prepare_target(const clv_dataset_options *o, clv_cell_table *t, clv_table_column *c) {
  bool has_numbers = o->labels == CLV_LABEL_FLOAT;
  c->is_read_target = !o->skips_labels;
  if (!o->table.n_targets && !o->skips_labels) t->target = c;
  for (size_t i = 0; i < o->table.n_targets; i++) {
    const clv_target_option *target = &o->table.targets[i];
    if (strcmp(target->name, c->o.name) != 0) continue;
    c->is_yes_or_no = target->task == CLV_TASK_LABELS;
    has_numbers = target->task != CLV_TASK_CLASSES;
    if (t->targets) t->targets[i] = c;
  }
  return has_numbers;
}

static clv_code copy_columns(const clv_dataset_options *o, clv_cell_table *t, clv_err *err) {
  CLV_TRY(clv_alloc(o->table.n_columns, sizeof *t->columns, &t->columns, err));
  t->n_columns = o->table.n_columns;
  if (o->table.n_targets && !o->skips_labels)
    CLV_TRY(clv_alloc(o->table.n_targets, sizeof *t->targets, &t->targets, err));
  if (t->targets) t->n_targets = o->table.n_targets;
  for (size_t i = 0; i < t->n_columns; i++) {
    const clv_column_options *from = &o->table.columns[i];
    clv_table_column *c = &t->columns[i];
    c->o = *from;
    c->o.name = c->o.value = c->o.format = c->o.input = NULL;
    CLV_TRY(clv_strdup(from->name, (char **)(uintptr_t)&c->o.name, err));
    if (from->value) CLV_TRY(clv_strdup(from->value, (char **)(uintptr_t)&c->o.value, err));
    if (from->input) CLV_TRY(clv_strdup(from->input, (char **)(uintptr_t)&c->o.input, err));
    if (from->format) CLV_TRY(copy_format(c, from->format, err));
    bool is_target = from->use == CLV_COLUMN_TARGET;
    if (from->use == CLV_COLUMN_WEIGHT && o->reads_weights) t->weight = c;
    c->has_numbers = is_target
                         ? prepare_target(o, t, c)
                         : from->use == CLV_COLUMN_NUMBER || from->use == CLV_COLUMN_BOOLEAN ||
                               from->use == CLV_COLUMN_DATE || from->use == CLV_COLUMN_WEIGHT;
    c->names.has_texts = !is_target;
  }
  return CLV_OK;
}

static clv_code allocate_reader(table_reader *r, clv_err *err) {
  CLV_TRY(clv_alloc(CLV_CSV_MAX_COLUMNS, sizeof *r->column_of_field, &r->column_of_field, err));
  CLV_TRY(clv_alloc(r->t->n_columns, sizeof *r->is_column_found, &r->is_column_found, err));
  return clv_alloc(r->t->n_columns, sizeof *r->last_record, &r->last_record, err);
}

clv_code clv_table_new(const clv_dataset_options *o, clv_cell_table **ret, clv_err *err) {
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  CLV_TRY(copy_columns(o, t, err));
  CLV_TRY(set_image_folder(o, t, err));
  CLV_TRY(clv_table_open_tokenizer(o, t, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}

/* Reads the records of r->source, and then releases the source. */
static clv_code read_table(table_reader *r, clv_cell_table **ret, clv_err *err) {
  clv_code code = clv_table_new(r->o, &r->t, err);
  if (code == CLV_OK) code = allocate_reader(r, err);
  if (code == CLV_OK) code = read_records(r, err);
  free(r->column_of_field);
  free(r->is_column_found);
  free(r->last_record);
  clv_cells_done(&r->source);
  if (code == CLV_OK)
    *ret = r->t;
  else
    clv_table_free(r->t);
  return code;
}

clv_code clv_table_open(const clv_dataset_options *o, clv_cell_table **ret, clv_err *err) {
  table_reader r = {.o = o, .group_field = SIZE_MAX};
  CLV_TRY(clv_cells_open(o, &r.source, err));
  return read_table(&r, ret, err);
}

clv_code clv_table_parse(const clv_dataset_options *o, const char *text, size_t len,
                         clv_cell_table **ret, clv_err *err) {
  table_reader r = {.o = o, .group_field = SIZE_MAX};
  CLV_TRY(clv_cells_open_memory(o, text, len, &r.source, err));
  return read_table(&r, ret, err);
}

clv_code clv_table_read_to_files(const clv_dataset_options *o, clv_cell_files *files,
                                 clv_cell_table **ret, clv_err *err) {
  clv_dataset_options options_without_limit = *o;
  table_reader r = {.o = &options_without_limit, .group_field = SIZE_MAX, .files = files};
  if (!options_without_limit.max_bytes) options_without_limit.max_bytes = SIZE_MAX;
  CLV_TRY(clv_cells_open(&options_without_limit, &r.source, err));
  return read_table(&r, ret, err);
}

/* Frees cells that are in memory. Cells of a file belong to the tensor c->file. */
static void free_cells(clv_table_column *c) {
  if (!c->file) {
    free(c->numbers);
    free(c->codes);
  }
  clv_tensor_unref(c->file);
}

void clv_table_free(clv_cell_table *t) {
  if (!t) return;
  for (size_t i = 0; i < t->n_columns; i++) {
    clv_table_column *c = &t->columns[i];
    free((char *)(uintptr_t)c->o.name);
    free((char *)(uintptr_t)c->o.value);
    free((char *)(uintptr_t)c->o.format);
    free((char *)(uintptr_t)c->o.input);
    free_cells(c);
    clv_name_table_done(&c->names);
  }
  free(t->columns);
  free(t->targets);
  if (!t->id_file) free(t->id_offsets);
  if (!t->path_file) free(t->path_offsets);
  free(t->image_folder_path);
  clv_tensor_unref(t->id_file);
  clv_tensor_unref(t->path_file);
  clv_tensor_unref(t->id_text_file);
  clv_tensor_unref(t->group_file);
  free(t->folder);
  free(t->row_of_record);
  clv_bytes_done(&t->id_texts);
  clv_bytes_done(&t->groups);
  clv_text_rows_done(&t->texts);
  clv_broken_records_done(&t->broken);
  free(t);
}

void clv_table_freep(clv_cell_table **t) {
  clv_table_free(*t);
  *t = NULL;
}

/* Lists the rows of the kept records. The files stay as they are. */
static clv_code keep_table_rows(clv_cell_table *t, const clv_subset *kept_records, clv_err *err) {
  if (!t->row_of_record) {
    CLV_TRY(clv_alloc(kept_records->n, sizeof *t->row_of_record, &t->row_of_record, err));
    memcpy(t->row_of_record, kept_records->index, kept_records->n * sizeof *t->row_of_record);
  } else {
    for (size_t i = 0; i < kept_records->n; i++)
      t->row_of_record[i] = t->row_of_record[kept_records->index[i]];
  }
  t->count = kept_records->n;
  return CLV_OK;
}

clv_code clv_table_keep_records(clv_cell_table *t, const clv_subset *kept_records, clv_err *err) {
  if (t->folder) return keep_table_rows(t, kept_records, err);
  for (size_t i = 0; i < kept_records->n; i++) {
    size_t from = kept_records->index[i];
    for (size_t k = 0; k < t->n_columns; k++) {
      clv_table_column *c = &t->columns[k];
      if (c->numbers) c->numbers[i] = c->numbers[from];
      if (c->codes) c->codes[i] = c->codes[from];
    }
    if (t->id_offsets) t->id_offsets[i] = t->id_offsets[from];
    if (t->path_offsets) t->path_offsets[i] = t->path_offsets[from];
  }
  clv_text_rows_keep_only(&t->texts, kept_records);
  t->count = kept_records->n;
  return CLV_OK;
}
