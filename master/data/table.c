/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a table of numbers and words (CSV) column by column. Numbers and booleans become doubles;
 * words become numbers of a table of names. Nothing is scaled here: that needs the training
 * records, which are known only after the split (table_encoder.c).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/data/record_lines_int.h"
#include "master/data/table_int.h"

enum { SHOWN = 40 /* bytes of a cell in a message */, MAX_NUMBER = 64 /* bytes of a number */ };

static const char *const usual_marks[] = {"NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None"};

bool clv_column_is_input(clv_column_use use) {
  return use == CLV_COLUMN_NUMBER || use == CLV_COLUMN_CATEGORY || use == CLV_COLUMN_BOOLEAN;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static void trim(const char **text, size_t *len) {
  while (*len && (**text == ' ' || **text == '\t')) (*text)++, (*len)--;
  while (*len && ((*text)[*len - 1] == ' ' || (*text)[*len - 1] == '\t')) (*len)--;
}

/* Copies digits from *from to *to. Returns how many. */
static size_t copy_digits(const char **from, const char *end, char **to) {
  size_t n = 0;
  for (; *from < end && **from >= '0' && **from <= '9'; n++) *(*to)++ = *(*from)++;
  return n;
}

static void copy_sign(const char **from, const char *end, char **to) {
  if (*from < end && (**from == '+' || **from == '-')) *(*to)++ = *(*from)++;
}

bool clv_table_read_number(const char *text, size_t len, bool has_decimal_comma, double *ret) {
  char copy[MAX_NUMBER + 1], *to = copy;
  const char *end = text + len;
  if (len > MAX_NUMBER) return false;
  copy_sign(&text, end, &to);
  size_t digits = copy_digits(&text, end, &to);
  if (text < end && *text == (has_decimal_comma ? ',' : '.')) {
    *to++ = '.';
    text++;
    digits += copy_digits(&text, end, &to);
  }
  if (!digits) return false;
  if (text < end && (*text == 'e' || *text == 'E')) {
    *to++ = *text++;
    copy_sign(&text, end, &to);
    if (!copy_digits(&text, end, &to)) return false;
  }
  *to = '\0';
  if (text != end) return false;
  *ret = strtod(copy, NULL);
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

static bool is_utf8(const char *text, size_t len) {
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t point;
    if (!(n = clv_utf8_decode(text + i, len - i, &point))) return false;
  }
  return true;
}

/* ---- state while a table is read ------------------------------------------------------------- */

typedef struct table_reader {
  clv_cell_table *t;
  const clv_dataset_options *o;
  char separator;
  size_t n_fields;    /* fields of the header; 0: the header has not been read yet */
  int32_t *column_of; /* [n_fields] index in t->columns; -1: the field is not read */
  size_t group_field; /* field with the group; SIZE_MAX: groups are not read */
  clv_bytes field;    /* the current cell */
} table_reader;

static bool is_mark(const char *const *marks, size_t n, const char *text, size_t len) {
  if (!len) return true;
  for (size_t i = 0; i < n; i++)
    if (strlen(marks[i]) == len && memcmp(marks[i], text, len) == 0) return true;
  return false;
}

bool clv_table_is_usual_missing(const char *text, size_t len) {
  trim(&text, &len);
  return is_mark(usual_marks, CLV_COUNT(usual_marks), text, len);
}

static bool is_missing(const table_reader *r, const char *text, size_t len) {
  const clv_table_options *o = &r->o->table;
  return o->n_missing_marks ? is_mark(o->missing_marks, o->n_missing_marks, text, len)
                            : is_mark(usual_marks, CLV_COUNT(usual_marks), text, len);
}

/* A place in the file, for messages. */
typedef struct place {
  const clv_csv *csv;
  size_t line, at;
} place;

static clv_code fail_cell(const table_reader *r, const place *p, const clv_table_column *c,
                          const char *what, clv_err *err) {
  char cell[SHOWN + 4];
  clv_text_truncate(r->field.data, cell, sizeof cell);
  clv_text_to_printable(cell);
  return clv_csv_fail(p->csv, p->line, p->at, err, "column '%.80s' has '%s', %s", c->o.name, cell,
                      what);
}

static clv_code fail_missing(const place *p, const clv_table_column *c, clv_err *err) {
  return clv_csv_fail(p->csv, p->line, p->at, err,
                      c->o.use == CLV_COLUMN_TARGET
                          ? "the target '%.80s' is missing: leave the record out, or set "
                            "data.broken: skip"
                          : "column '%.80s' has no value here: set its `missing`, such as "
                            "most_frequent",
                      c->o.name);
}

static clv_code fail_number(const table_reader *r, const place *p, const clv_table_column *c,
                            clv_err *err) {
  bool other = strchr(r->field.data, r->o->table.has_decimal_comma ? '.' : ',') != NULL;
  const char *advice = other && r->o->table.has_decimal_comma
                           ? "which is no number: its decimal mark is a comma (data.table.decimal)"
                       : other
                           ? "which is no number: set data.table.decimal: comma if the comma is "
                             "its decimal mark; marks of thousands have to go"
                       : c->o.use == CLV_COLUMN_TARGET
                           ? "which is no number: words as targets need loss: cross_entropy"
                           : "which is no number: correct it, name it in data.table.missing_marks, "
                             "or say as: category";
  return fail_cell(r, p, c, advice, err);
}

static clv_code read_number_cell(const table_reader *r, const place *p, clv_table_column *c,
                                 const char *text, size_t len, clv_err *err) {
  double v;
  bool is_boolean = c->o.use == CLV_COLUMN_BOOLEAN;
  if (is_boolean ? !clv_table_read_boolean(text, len, &v)
                 : !clv_table_read_number(text, len, r->o->table.has_decimal_comma, &v))
    return is_boolean ? fail_cell(r, p, c, "which is no boolean (0, 1, true, false, yes, no)", err)
                      : fail_number(r, p, c, err);
  if (c->o.scale == CLV_SCALE_LOG && v <= -1)
    return fail_cell(r, p, c, "and scale: log is ln(1 + v), for v above -1", err);
  c->numbers[r->t->count] = v;
  return CLV_OK;
}

/* Checks that a cell is text. */
static clv_code check_word(const table_reader *r, const place *p, const clv_table_column *c,
                           clv_err *err) {
  if (memchr(r->field.data, '\0', r->field.len))
    return fail_cell(r, p, c, "which has a NUL byte", err);
  if (is_utf8(r->field.data, r->field.len)) return CLV_OK;
  return fail_cell(r, p, c,
                   "which is not UTF-8: convert the file, as with iconv -f LATIN1 -t UTF-8", err);
}

static clv_code read_word_cell(const table_reader *r, const place *p, clv_table_column *c,
                               clv_err *err) {
  clv_err reason;
  CLV_TRY(check_word(r, p, c, err));
  if (clv_name_table_number(&c->names, r->field.data, r->field.len, &c->codes[r->t->count],
                            &reason) == CLV_OK)
    return CLV_OK;
  if (reason.code == CLV_INVALID) return fail_cell(r, p, c, reason.text, err);
  return clv_csv_fail(p->csv, p->line, p->at, err, "column '%.80s' has %s: is it an id?", c->o.name,
                      reason.text);
}

static clv_code read_id(table_reader *r, const place *p, const clv_table_column *c, clv_err *err) {
  CLV_TRY(check_word(r, p, c, err));
  r->t->ids[r->t->count] = r->t->id_texts.len;
  clv_bytes_puts(&r->t->id_texts, r->field.data);
  clv_bytes_add(&r->t->id_texts, "", 1);
  return r->t->id_texts.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for ids") : CLV_OK;
}

static clv_code read_cell(table_reader *r, const place *p, clv_table_column *c, clv_err *err) {
  const char *text = r->field.data;
  size_t len = r->field.len;
  if (c->o.use == CLV_COLUMN_IGNORED) return CLV_OK;
  if (c->o.use == CLV_COLUMN_ID) return read_id(r, p, c, err);
  if (c->o.use == CLV_COLUMN_TARGET && c != r->t->target) return CLV_OK;
  trim(&text, &len);
  if (is_missing(r, text, len)) {
    if (c->o.missing == CLV_MISSING_REFUSE) return fail_missing(p, c, err);
    if (c->has_numbers) c->numbers[r->t->count] = NAN;
    if (!c->has_numbers) c->codes[r->t->count] = CLV_MISSING_CODE;
    return CLV_OK;
  }
  return c->has_numbers ? read_number_cell(r, p, c, text, len, err) : read_word_cell(r, p, c, err);
}

/* ---- header ---------------------------------------------------------------------------------- */

/* Fails because a name of the session is not in the header, and says what the header has. */
static clv_code fail_absent(const clv_csv *header, const char *key, const char *name,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes field = {0};
  clv_csv c = *header;
  clv_key_list present = {0};
  bool last = false;
  c.at = 0;
  while (!last && clv_csv_read_field(&c, &field, &last, NULL) == CLV_OK)
    clv_key_list_add(&present, field.data);
  return clv_csv_fail(header, header->line, 0, err, "the header has no '%.80s', but %s: set %s",
                      name, clv_key_list_finish(&present), key);
}

static clv_code find_column(const table_reader *r, const clv_csv *c, size_t line, const bool *found,
                            int32_t *ret, clv_err *err) {
  const char *name = r->field.data;
  *ret = -1;
  for (size_t i = 0; i < r->t->n_columns; i++) {
    if (strcmp(r->t->columns[i].o.name, name) != 0) continue;
    if (found[i]) return clv_csv_fail(c, line, 0, err, "the header has '%.80s' twice", name);
    *ret = (int32_t)i;
    return CLV_OK;
  }
  bool is_group = r->o->text.group && strcmp(r->o->text.group, name) == 0;
  if (is_group || r->o->table.ignores_others) return CLV_OK;
  return clv_csv_fail(c, line, 0, err,
                      "the header has '%.80s', which data.table.columns does not name: add it "
                      "(`as: ignore` leaves it out), or set data.table.others: ignore",
                      name);
}

static clv_code add_field(table_reader *r, const clv_csv *c, size_t line, bool *found,
                          clv_err *err) {
  if (r->n_fields == CLV_CSV_MAX_COLUMNS)
    return clv_csv_fail(c, line, 0, err, "more than %d columns", CLV_CSV_MAX_COLUMNS);
  int32_t column;
  CLV_TRY(find_column(r, c, line, found, &column, err));
  if (column >= 0) found[column] = true;
  if (r->o->text.group && strcmp(r->o->text.group, r->field.data) == 0)
    r->group_field = r->n_fields;
  r->column_of[r->n_fields++] = column;
  return CLV_OK;
}

/* Returns true if a record may lack the column: its labels are not read, or it is ignored. */
static bool may_be_absent(const table_reader *r, const clv_table_column *c) {
  return c->o.use == CLV_COLUMN_IGNORED || (c->o.use == CLV_COLUMN_TARGET && !r->t->target);
}

/* Fails if the header is one field that another separator would divide. */
static clv_code check_separator(const table_reader *r, const clv_csv *c, clv_err *err) {
  if (!strpbrk(r->field.data, ";\t|,")) return CLV_OK;
  char name[SHOWN + 4];
  clv_text_truncate(r->field.data, name, sizeof name);
  clv_text_to_printable(name);
  return clv_csv_fail(c, 0, 0, err, "the header is one field, '%s': set data.table.separator",
                      name);
}

static clv_code read_header(table_reader *r, clv_csv *c, clv_err *err) {
  CLV_AUTO(clv_freep) bool *found = NULL;
  bool last = false;
  clv_csv header = *c;
  CLV_TRY(clv_alloc(r->t->n_columns, sizeof *found, &found, err));
  while (!last) {
    size_t line = c->line;
    CLV_TRY(clv_csv_read_field(c, &r->field, &last, err));
    if (last && !r->n_fields) CLV_TRY(check_separator(r, c, err));
    CLV_TRY(add_field(r, c, line, found, err));
  }
  for (size_t i = 0; i < r->t->n_columns; i++)
    if (!found[i] && !may_be_absent(r, &r->t->columns[i]))
      return fail_absent(&header, "data.table.columns", r->t->columns[i].o.name, err);
  if (r->o->text.group && r->group_field == SIZE_MAX)
    return fail_absent(&header, "data.validation.group", r->o->text.group, err);
  return CLV_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Gives an array of a record's cells room for `cap` records. */
#define GROW(array, cap, err)                                                         \
  do {                                                                                \
    void *more = realloc(array, (cap) * sizeof *(array));                             \
    if (!more) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu records", cap); \
    (array) = more;                                                                   \
  } while (0)

static clv_code reserve_record(clv_cell_table *t, clv_err *err) {
  if (t->count < t->cap) return CLV_OK;
  if (t->count == UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "more than %u records", UINT32_MAX);
  size_t cap = t->cap ? 2 * t->cap : 256;
  for (size_t i = 0; i < t->n_columns; i++) {
    clv_table_column *c = &t->columns[i];
    if (c->o.use == CLV_COLUMN_ID)
      GROW(t->ids, cap, err);
    else if (c->has_numbers)
      GROW(c->numbers, cap, err);
    else if (c->o.use != CLV_COLUMN_IGNORED)
      GROW(c->codes, cap, err);
  }
  t->cap = cap;
  return CLV_OK;
}

static clv_code add_group(table_reader *r, clv_err *err) {
  int64_t group = clv_group_number(r->field.data, r->field.len);
  clv_bytes_add(&r->t->groups, &group, sizeof group);
  return r->t->groups.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for groups") : CLV_OK;
}

static clv_code fail_field_count(const clv_csv *c, const place *p, size_t n, size_t want,
                                 clv_err *err) {
  return clv_csv_fail(
      c, p->line, p->at, err, "this record has %s%zu field%s, the header has %zu: correct the line",
      n > want ? "more than " : "", CLV_MIN(n, want), CLV_S(CLV_MIN(n, want)), want);
}

/* Reads the fields of a record into row t->count. An error leaves the row unused. */
static clv_code read_fields(table_reader *r, clv_csv *c, clv_err *err) {
  bool last = false;
  const place begin = {c, c->line, c->at};
  for (size_t n = 0; !last; n++) {
    const place p = {c, c->line, c->at};
    CLV_TRY(clv_csv_read_field(c, &r->field, &last, err));
    if (n == r->n_fields || (last && n + 1 < r->n_fields))
      return fail_field_count(c, &begin, n + 1, r->n_fields, err);
    if (n == r->group_field) CLV_TRY(add_group(r, err));
    if (r->column_of[n] >= 0) CLV_TRY(read_cell(r, &p, &r->t->columns[r->column_of[n]], err));
  }
  return CLV_OK;
}

static clv_code skip_broken(table_reader *r, const clv_err *why, clv_err *err) {
  if (!r->o->skips_broken || why->code == CLV_EXHAUSTED || !r->n_fields)
    return clv_fail(err, why->code, "%s", why->text);
  clv_broken_add(&r->t->broken, why);
  return CLV_OK;
}

static clv_code read_record(table_reader *r, const clv_text_record *record, clv_err *err) {
  clv_csv c = {.label = r->o->inputs_path,
               .text = record->text,
               .len = record->len,
               .line = record->lines_before,
               .separator = r->separator};
  clv_err reason;
  if (!clv_csv_has_record(&c)) return CLV_OK;
  if (!r->n_fields) return read_header(r, &c, err);
  size_t groups = r->t->groups.len, ids = r->t->id_texts.len;
  CLV_TRY(reserve_record(r->t, err));
  if (read_fields(r, &c, &reason) == CLV_OK) return r->t->count++, CLV_OK;
  r->t->groups.len = groups;
  r->t->id_texts.len = ids;
  return skip_broken(r, &reason, err);
}

static clv_code read_records(table_reader *r, clv_record_lines *l, clv_err *err) {
  clv_text_record record;
  bool more;
  for (;;) {
    CLV_TRY(clv_record_lines_next(l, &record, &more, err));
    if (!more) break;
    CLV_TRY(read_record(r, &record, err));
  }
  const char *path = r->o->inputs_path;
  if (!r->n_fields) return clv_fail(err, CLV_INVALID, "%s:1:1: no header: the file is empty", path);
  if (r->t->count) return CLV_OK;
  if (!r->t->broken.n) return clv_fail(err, CLV_INVALID, "%s: no records", path);
  return clv_fail(err, CLV_INVALID, "%s: all %zu records are broken; the first: %s", path,
                  r->t->broken.n, r->t->broken.error_lines.data);
}

/* ---- a table --------------------------------------------------------------------------------- */

static clv_code copy_columns(const clv_dataset_options *o, clv_cell_table *t, clv_err *err) {
  CLV_TRY(clv_alloc(o->table.n_columns, sizeof *t->columns, &t->columns, err));
  t->n_columns = o->table.n_columns;
  for (size_t i = 0; i < t->n_columns; i++) {
    const clv_column_options *from = &o->table.columns[i];
    clv_table_column *c = &t->columns[i];
    c->o = *from;
    c->o.name = c->o.value = NULL;
    CLV_TRY(clv_strdup(from->name, (char **)(uintptr_t)&c->o.name, err));
    if (from->value) CLV_TRY(clv_strdup(from->value, (char **)(uintptr_t)&c->o.value, err));
    bool is_target = from->use == CLV_COLUMN_TARGET;
    if (is_target && !o->skips_labels) t->target = c;
    c->has_numbers = from->use == CLV_COLUMN_NUMBER || from->use == CLV_COLUMN_BOOLEAN ||
                     (is_target && o->labels == CLV_LABEL_FLOAT);
    c->names.has_texts = !is_target;
  }
  return CLV_OK;
}

static bool has_ending(const char *path, const char *ending) {
  size_t n = strlen(path), k = strlen(ending);
  if (n > 3 && strcmp(path + n - 3, ".gz") == 0) n -= 3;
  return n > k && strncmp(path + n - k, ending, k) == 0;
}

static char separator_of(const clv_dataset_options *o) {
  if (o->table.separator) return o->table.separator;
  return has_ending(o->inputs_path, ".tsv") ? '\t' : ',';
}

static clv_code read_table(const clv_dataset_options *o, clv_record_lines *l, clv_cell_table **ret,
                           clv_err *err) {
  table_reader r = {.o = o, .separator = separator_of(o), .group_field = SIZE_MAX};
  clv_cell_table *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  r.t = t;
  clv_code code = copy_columns(o, t, err);
  if (code == CLV_OK) code = clv_alloc(CLV_CSV_MAX_COLUMNS, sizeof *r.column_of, &r.column_of, err);
  if (code == CLV_OK) code = read_records(&r, l, err);
  free(r.column_of);
  clv_bytes_done(&r.field);
  if (code == CLV_OK)
    *ret = t;
  else
    clv_table_free(t);
  return code;
}

clv_code clv_table_open(const clv_dataset_options *o, clv_cell_table **ret, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  size_t max_bytes = o->max_bytes ? o->max_bytes : CLV_DATA_MAX_BYTES;
  CLV_TRY(clv_record_lines_open(o->inputs_path, separator_of(o), max_bytes, &l, err));
  return read_table(o, l, ret, err);
}

clv_code clv_table_parse(const clv_dataset_options *o, const char *text, size_t len,
                         clv_cell_table **ret, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  CLV_TRY(clv_record_lines_open_memory(text, len, o->inputs_path, separator_of(o), &l, err));
  return read_table(o, l, ret, err);
}

void clv_table_free(clv_cell_table *t) {
  if (!t) return;
  for (size_t i = 0; i < t->n_columns; i++) {
    clv_table_column *c = &t->columns[i];
    free((char *)(uintptr_t)c->o.name);
    free((char *)(uintptr_t)c->o.value);
    free(c->numbers);
    free(c->codes);
    clv_name_table_done(&c->names);
  }
  free(t->columns);
  free(t->ids);
  clv_bytes_done(&t->id_texts);
  clv_bytes_done(&t->groups);
  clv_broken_done(&t->broken);
  free(t);
}

void clv_table_keep_only(clv_cell_table *t, const clv_subset *kept) {
  for (size_t i = 0; i < kept->n; i++) {
    size_t from = kept->index[i];
    for (size_t k = 0; k < t->n_columns; k++) {
      clv_table_column *c = &t->columns[k];
      if (c->numbers) c->numbers[i] = c->numbers[from];
      if (c->codes) c->codes[i] = c->codes[from];
    }
    if (t->ids) t->ids[i] = t->ids[from];
  }
  t->count = kept->n;
}
