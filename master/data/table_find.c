/* SPDX-License-Identifier: Apache-2.0
 *
 * Examines a table that no session describes yet (clv_table_guess_columns), for `init --from`: its
 * separator, its columns, and how each could be used.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/data/cell_source_int.h"
#include "master/data/table_int.h"

enum {
  MAX_CATEGORY_VALUES = 64, /* most values of a category; a column with more words is ignored */
  /* most values of a target that is read as classes; numbers with more different values are read as
   * numbers */
  MAX_CLASSES = 20,
  MIN_TEXT_WORDS = 4, /* fewest words per cell, on average, of a column that is read as texts */
};

/* Date formats that are tried on the cells of a column, in the notation of strptime; NULL: ISO
 * 8601. */
static const char *const date_forms[] = {NULL, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"};
enum { N_DATE_FORMS = CLV_COUNT(date_forms) };

/* Counts of a column's cells by the kinds of values that they can be read as, such as dates. */
typedef struct column_counts {
  /* n_points, n_commas: cells that are numbers with a decimal point, or with a decimal comma */
  size_t n_present, n_points, n_commas, n_booleans;
  size_t n_words;               /* number of words, between spaces, in all cells */
  size_t n_others;              /* number of cells that are lists or objects */
  size_t n_dates[N_DATE_FORMS]; /* number of cells that are dates, for each form */
  clv_name_table names;
  bool has_many_names; /* true: the column has more names than the table of names takes */
} column_counts;

typedef struct table_finder {
  const char *path;
  char separator; /* character between fields; 0: lines of JSON */
  clv_found_table *found_table;
  column_counts *counts; /* [CLV_CSV_MAX_COLUMNS] counts of the cells of each column */
  clv_cell_source source;
} table_finder;

void clv_found_table_done(clv_found_table *t) {
  if (!t) return;
  for (size_t i = 0; i < t->n; i++) free(t->columns[i].name);
  free(t->columns);
  *t = (clv_found_table){0};
}

/* ---- guessing the separator ------------------------------------------------------------------ */

/* Returns the separator that is most often in the header, outside of quotes. */
static char guess_separator(const char *text, size_t len) {
  static const char separators[] = ",;\t|";
  size_t n[sizeof separators] = {0}, most_frequent = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < len && (is_quoted || text[i] != '\n'); i++) {
    const char *separator_at = memchr(separators, text[i], sizeof separators - 1);
    if (text[i] == '"') is_quoted = !is_quoted;
    if (separator_at && !is_quoted) n[separator_at - separators]++;
  }
  for (size_t i = 1; i < sizeof separators - 1; i++)
    if (n[i] > n[most_frequent]) most_frequent = i;
  return separators[most_frequent];
}

static clv_code find_separator(table_finder *f, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  const clv_dataset_options o = {.inputs_path = f->path};
  clv_text_record r;
  bool has_more, is_database;
  CLV_TRY(clv_cells_check_file(&o, &is_database, err));
  if (is_database)
    return clv_fail(err, CLV_INVALID,
                    "%s: is an SQLite database: write a session for a CSV of its table (sqlite3 "
                    "-csv -header FILE 'SELECT ...'), and set data.table.query in it",
                    f->path);
  if (clv_cells_has_json_name(f->path)) return CLV_OK;
  CLV_TRY(clv_record_lines_open(f->path, ',', CLV_DATA_MAX_BYTES, &l, err));
  CLV_TRY(clv_record_lines_next(l, &r, &has_more, err));
  if (!has_more) return clv_fail(err, CLV_INVALID, "%s:1:1: no header: the file is empty", f->path);
  f->separator = guess_separator(r.text, r.len);
  return CLV_OK;
}

/* ---- counting the cells of a column ---------------------------------------------------------- */

/* Adds the columns that the source has found since the last call. */
static clv_code add_columns(table_finder *f, clv_err *err) {
  clv_found_table *t = f->found_table;
  const clv_fields *fields = &f->source.fields;
  if (!t->columns) CLV_TRY(clv_alloc(CLV_CSV_MAX_COLUMNS, sizeof *t->columns, &t->columns, err));
  if (!f->counts) CLV_TRY(clv_alloc(CLV_CSV_MAX_COLUMNS, sizeof *f->counts, &f->counts, err));
  for (; t->n < fields->n; t->n++) {
    const char *name = clv_field_name(fields, t->n);
    for (size_t i = 0; i < t->n; i++)
      if (*name && strcmp(t->columns[i].name, name) == 0)
        return clv_cells_fail_field(&f->source, t->n, err,
                                    "the header has '%.80s' twice: rename one of them", name);
    CLV_TRY(clv_strdup(name, &t->columns[t->n].name, err));
  }
  return CLV_OK;
}

static size_t count_words(const char *text, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++)
    n += !strchr(" \t\r\n", text[i]) && (!i || strchr(" \t\r\n", text[i - 1]));
  return n;
}

static clv_code count_cell(const clv_source_cell *cell, column_counts *c, clv_err *err) {
  double v;
  int32_t number;
  clv_err reason;
  const char *text = cell->text;
  size_t len = cell->len;
  if (cell->kind == CLV_CELL_MISSING || clv_table_is_usual_missing_mark(text, len)) return CLV_OK;
  c->n_present++;
  c->n_others += cell->kind == CLV_CELL_OTHER;
  c->n_words += count_words(text, len);
  c->n_points += clv_table_read_number(text, len, false, &v);
  c->n_commas += cell->kind == CLV_CELL_TEXT && clv_table_read_number(text, len, true, &v);
  c->n_booleans += clv_table_read_boolean(text, len, &v);
  for (size_t i = 0; i < N_DATE_FORMS; i++)
    c->n_dates[i] += clv_date_read_days(text, len, date_forms[i], &v);
  if (c->has_many_names) return CLV_OK;
  c->names.has_texts = true;
  clv_code code = clv_name_table_find_or_add(&c->names, text, len, &number, &reason);
  if (code == CLV_OK) return CLV_OK;
  if (c->names.n < CLV_MAX_CLASS_NAMES) return clv_fail(err, code, "%s", reason.text);
  c->has_many_names = true;
  return CLV_OK;
}

static clv_code count_record(table_finder *f, clv_err *err) {
  clv_source_cell cell;
  bool has_more;
  for (;;) {
    CLV_TRY(f->source.reader->read_cell(&f->source, &cell, &has_more, err));
    if (!has_more) break;
    CLV_TRY(add_columns(f, err));
    CLV_TRY(count_cell(&cell, &f->counts[cell.field], err));
  }
  f->found_table->n_records++;
  return CLV_OK;
}

/* ---- choosing the use of a column ------------------------------------------------------------ */

static bool is_one_of_names(const char *name, const char *const *words, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strcasecmp(name, words[i]) == 0) return true;
  return false;
}

/* Returns true for "id", "patient_id", "PatientID" and similar names. */
static bool is_id_name(const char *name) {
  size_t n = strlen(name);
  if (n < 2 || strcasecmp(name + n - 2, "id") != 0) return false;
  return n == 2 || strchr("_- .", name[n - 3]) || name[n - 2] == 'I';
}

static bool has_numbers_only(const table_finder *f, const column_counts *c) {
  size_t n_numbers = f->found_table->has_decimal_comma ? c->n_commas : c->n_points;
  return c->n_present && n_numbers == c->n_present;
}

/* Returns the first form in which all cells are dates; N_DATE_FORMS: there is none. *ret_n: number
 * of such forms; if there are two, it is not clear which number is the month. */
static size_t find_date_form(const column_counts *c, size_t *ret_n) {
  size_t date_form = N_DATE_FORMS;
  *ret_n = 0;
  for (size_t i = N_DATE_FORMS; i-- > 0;) {
    if (c->n_dates[i] != c->n_present) continue;
    date_form = i;
    ++*ret_n;
  }
  return date_form;
}

static clv_column_use choose_column_use(const table_finder *f, const clv_found_column *column,
                                        const column_counts *c, bool has_id) {
  bool is_numeric = has_numbers_only(f, c),
       are_all_different = column->n_distinct == f->found_table->n_records,
       has_texts = !is_numeric && c->n_words >= MIN_TEXT_WORDS * c->n_present;
  size_t n_forms;
  if (!c->n_present || c->n_others || !column->name[0]) return CLV_COLUMN_IGNORED;
  if (find_date_form(c, &n_forms) < N_DATE_FORMS)
    return n_forms > 1 ? CLV_COLUMN_IGNORED : CLV_COLUMN_DATE;
  if (is_id_name(column->name) || (are_all_different && !is_numeric && !has_texts))
    return has_id ? CLV_COLUMN_IGNORED : CLV_COLUMN_ID;
  if (c->n_booleans == c->n_present && column->n_distinct <= 2) return CLV_COLUMN_BOOLEAN;
  if (is_numeric) return CLV_COLUMN_NUMBER;
  if (column->n_distinct <= MAX_CATEGORY_VALUES &&
      2 * column->n_distinct <= f->found_table->n_records)
    return CLV_COLUMN_CATEGORY;
  return has_texts ? CLV_COLUMN_TEXT : CLV_COLUMN_IGNORED;
}

/* Returns the column that is named as a target; without one, the last column. */
static size_t choose_target(const clv_found_table *t) {
  static const char *const words[] = {"target", "label",     "class",    "outcome",
                                      "y",      "diagnosis", "response", "result"};
  size_t last_column = 0;
  for (size_t i = 0; i < t->n; i++) {
    if (is_one_of_names(t->columns[i].name, words, CLV_COUNT(words))) return i;
    if (t->columns[i].name[0]) last_column = i;
  }
  return last_column;
}

static void choose_column_uses(table_finder *f) {
  clv_found_table *t = f->found_table;
  size_t target = choose_target(t), n_comma_columns = 0;
  bool has_id = false;
  for (size_t i = 0; i < t->n; i++) {
    const column_counts *c = &f->counts[i];
    n_comma_columns += c->n_commas == c->n_present && c->n_points < c->n_present;
  }
  t->separator = f->separator;
  t->has_decimal_comma = n_comma_columns > 0 && f->separator != ',';
  for (size_t i = 0; i < t->n; i++) {
    clv_found_column *c = &t->columns[i];
    c->n_distinct = f->counts[i].names.n + f->counts[i].has_many_names;
    c->n_missing = t->n_records - f->counts[i].n_present;
    c->use = i == target ? CLV_COLUMN_TARGET : choose_column_use(f, c, &f->counts[i], has_id);
    has_id = has_id || c->use == CLV_COLUMN_ID;
    size_t n_forms, date_form = find_date_form(&f->counts[i], &n_forms);
    if (c->use == CLV_COLUMN_DATE) c->format = date_forms[date_form];
    c->has_unclear_dates = f->counts[i].n_present && n_forms > 1;
    if (i != target) continue;
    t->n_classes =
        has_numbers_only(f, &f->counts[i]) && c->n_distinct > MAX_CLASSES ? 0 : c->n_distinct;
  }
}

static clv_code find_columns(table_finder *f, clv_err *err) {
  bool has_more;
  CLV_TRY(find_separator(f, err));
  const clv_dataset_options o = {.inputs_path = f->path, .table.separator = f->separator};
  CLV_TRY(clv_cells_open(&o, &f->source, err));
  CLV_TRY(add_columns(f, err));
  for (;;) {
    CLV_TRY(f->source.reader->start_next_record(&f->source, &has_more, err));
    if (!has_more) break;
    CLV_TRY(count_record(f, err));
  }
  if (!f->found_table->n_records) return clv_fail(err, CLV_INVALID, "%s: no records", f->path);
  if (!f->found_table->n)
    return clv_fail(err, CLV_INVALID, "%s: its records have no keys", f->path);
  choose_column_uses(f);
  return CLV_OK;
}

clv_code clv_table_guess_columns(const char *path, clv_found_table *ret, clv_err *err) {
  clv_found_table found_table = {0};
  table_finder f = {.path = path, .found_table = &found_table};
  clv_code code = find_columns(&f, err);
  for (size_t i = 0; f.counts && i < found_table.n; i++) clv_name_table_done(&f.counts[i].names);
  free(f.counts);
  clv_cells_done(&f.source);
  if (code == CLV_OK)
    *ret = found_table;
  else
    clv_found_table_done(&found_table);
  return code;
}
