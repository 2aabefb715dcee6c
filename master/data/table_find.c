/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at a table that no session describes yet (clv_table_find), for `init --from`: its
 * separator, its columns, and how each could be used.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/data/record_lines_int.h"
#include "master/data/table_int.h"

enum {
  MOST_CATEGORIES = 64, /* values of a category; a column with more words is ignored */
  /* values of a target that is read as classes; numbers with more are numbers */
  MOST_CLASSES = 20,
};

/* Counts of a column's cells. */
typedef struct column_counts {
  /* n_points, n_commas: numbers by decimal mark */
  size_t n_present, n_points, n_commas, n_booleans;
  clv_name_table names;
  bool has_many_names; /* more than the table of names takes */
} column_counts;

typedef struct finder {
  const char *path;
  char separator;
  clv_found_table *found;
  column_counts *counts; /* [found->n] */
  clv_bytes field;
} finder;

void clv_found_table_done(clv_found_table *t) {
  if (!t) return;
  for (size_t i = 0; i < t->n; i++) free(t->columns[i].name);
  free(t->columns);
  *t = (clv_found_table){0};
}

/* ---- separator ------------------------------------------------------------------------------- */

/* Returns the separator that is most often in the header, outside of quotes. */
static char guess_separator(const char *text, size_t len) {
  static const char all[] = ",;\t|";
  size_t n[sizeof all] = {0}, best = 0;
  bool quoted = false;
  for (size_t i = 0; i < len && (quoted || text[i] != '\n'); i++) {
    const char *found = memchr(all, text[i], sizeof all - 1);
    if (text[i] == '"') quoted = !quoted;
    if (found && !quoted) n[found - all]++;
  }
  for (size_t i = 1; i < sizeof all - 1; i++)
    if (n[i] > n[best]) best = i;
  return all[best];
}

static clv_code find_separator(finder *f, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  clv_text_record r;
  bool more;
  CLV_TRY(clv_record_lines_open(f->path, ',', CLV_DATA_MAX_BYTES, &l, err));
  CLV_TRY(clv_record_lines_next(l, &r, &more, err));
  if (!more) return clv_fail(err, CLV_INVALID, "%s:1:1: no header: the file is empty", f->path);
  f->separator = guess_separator(r.text, r.len);
  return CLV_OK;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static clv_code add_column(finder *f, clv_err *err) {
  clv_found_table *t = f->found;
  if (t->n == CLV_CSV_MAX_COLUMNS)
    return clv_fail(err, CLV_INVALID, "%s:1:1: more than %d columns", f->path, CLV_CSV_MAX_COLUMNS);
  CLV_TRY(clv_strdup(f->field.data, &t->columns[t->n].name, err));
  t->n++;
  return CLV_OK;
}

static clv_code read_header(finder *f, clv_csv *c, clv_err *err) {
  bool last = false;
  CLV_TRY(clv_alloc(CLV_CSV_MAX_COLUMNS, sizeof *f->found->columns, &f->found->columns, err));
  while (!last) {
    CLV_TRY(clv_csv_read_field(c, &f->field, &last, err));
    CLV_TRY(add_column(f, err));
  }
  return clv_alloc(f->found->n, sizeof *f->counts, &f->counts, err);
}

static clv_code count_cell(finder *f, column_counts *c, clv_err *err) {
  double v;
  int32_t number;
  clv_err reason;
  const char *text = f->field.data;
  size_t len = f->field.len;
  if (clv_table_is_usual_missing(text, len)) return CLV_OK;
  c->n_present++;
  c->n_points += clv_table_read_number(text, len, false, &v);
  c->n_commas += clv_table_read_number(text, len, true, &v);
  c->n_booleans += clv_table_read_boolean(text, len, &v);
  if (c->has_many_names) return CLV_OK;
  c->names.has_texts = true;
  clv_code code = clv_name_table_number(&c->names, text, len, &number, &reason);
  if (code == CLV_OK) return CLV_OK;
  if (c->names.n < CLV_MAX_CLASS_NAMES) return clv_fail(err, code, "%s", reason.text);
  c->has_many_names = true;
  return CLV_OK;
}

static clv_code count_record(finder *f, const clv_text_record *r, clv_err *err) {
  clv_csv c = {.label = f->path,
               .text = r->text,
               .len = r->len,
               .line = r->lines_before,
               .separator = f->separator};
  bool last = false;
  if (!clv_csv_has_record(&c)) return CLV_OK;
  if (!f->found->n) return read_header(f, &c, err);
  for (size_t n = 0; !last && n < f->found->n; n++) {
    CLV_TRY(clv_csv_read_field(&c, &f->field, &last, err));
    CLV_TRY(count_cell(f, &f->counts[n], err));
  }
  f->found->n_records++;
  return CLV_OK;
}

/* ---- uses ------------------------------------------------------------------------------------ */

static bool is_named(const char *name, const char *const *words, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strcasecmp(name, words[i]) == 0) return true;
  return false;
}

/* Returns true for "id", "patient_id", "PatientID" and names alike. */
static bool is_name_of_id(const char *name) {
  size_t n = strlen(name);
  if (n < 2 || strcasecmp(name + n - 2, "id") != 0) return false;
  return n == 2 || strchr("_- .", name[n - 3]) || name[n - 2] == 'I';
}

static bool are_numbers(const finder *f, const column_counts *c) {
  size_t numbers = f->found->has_decimal_comma ? c->n_commas : c->n_points;
  return c->n_present && numbers == c->n_present;
}

static clv_column_use choose_use(const finder *f, const clv_found_column *column,
                                 const column_counts *c, bool has_id) {
  bool numbers = are_numbers(f, c), differ = column->n_distinct == f->found->n_records;
  if (!c->n_present) return CLV_COLUMN_IGNORED;
  if (is_name_of_id(column->name) || (differ && !numbers))
    return has_id ? CLV_COLUMN_IGNORED : CLV_COLUMN_ID;
  if (c->n_booleans == c->n_present && column->n_distinct <= 2) return CLV_COLUMN_BOOLEAN;
  if (numbers) return CLV_COLUMN_NUMBER;
  return column->n_distinct <= MOST_CATEGORIES && 2 * column->n_distinct <= f->found->n_records
             ? CLV_COLUMN_CATEGORY
             : CLV_COLUMN_IGNORED;
}

/* Returns the column that is named as a target; without one, the last column. */
static size_t choose_target(const clv_found_table *t) {
  static const char *const words[] = {"target", "label",     "class",    "outcome",
                                      "y",      "diagnosis", "response", "result"};
  for (size_t i = 0; i < t->n; i++)
    if (is_named(t->columns[i].name, words, CLV_COUNT(words))) return i;
  return t->n - 1;
}

static void choose_uses(finder *f) {
  clv_found_table *t = f->found;
  size_t target = choose_target(t), commas = 0;
  bool has_id = false;
  for (size_t i = 0; i < t->n; i++) {
    const column_counts *c = &f->counts[i];
    commas += c->n_commas == c->n_present && c->n_points < c->n_present;
  }
  t->separator = f->separator;
  t->has_decimal_comma = commas > 0 && f->separator != ',';
  for (size_t i = 0; i < t->n; i++) {
    clv_found_column *c = &t->columns[i];
    c->n_distinct = f->counts[i].names.n + f->counts[i].has_many_names;
    c->n_missing = t->n_records - f->counts[i].n_present;
    c->use = i == target ? CLV_COLUMN_TARGET : choose_use(f, c, &f->counts[i], has_id);
    has_id = has_id || c->use == CLV_COLUMN_ID;
    if (i != target) continue;
    t->n_classes =
        are_numbers(f, &f->counts[i]) && c->n_distinct > MOST_CLASSES ? 0 : c->n_distinct;
  }
}

static clv_code find_columns(finder *f, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  clv_text_record r;
  bool more;
  CLV_TRY(find_separator(f, err));
  CLV_TRY(clv_record_lines_open(f->path, f->separator, CLV_DATA_MAX_BYTES, &l, err));
  for (;;) {
    CLV_TRY(clv_record_lines_next(l, &r, &more, err));
    if (!more) break;
    CLV_TRY(count_record(f, &r, err));
  }
  if (!f->found->n_records) return clv_fail(err, CLV_INVALID, "%s: no records", f->path);
  choose_uses(f);
  return CLV_OK;
}

clv_code clv_table_find(const char *path, clv_found_table *ret, clv_err *err) {
  clv_found_table found = {0};
  finder f = {.path = path, .found = &found};
  clv_code code = find_columns(&f, err);
  for (size_t i = 0; f.counts && i < found.n; i++) clv_name_table_done(&f.counts[i].names);
  free(f.counts);
  clv_bytes_done(&f.field);
  if (code == CLV_OK)
    *ret = found;
  else
    clv_found_table_done(&found);
  return code;
}
