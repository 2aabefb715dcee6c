/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks data.table of a session: which keys of a column are allowed for its use
 * (clv_session_check_table).
 */
#include <string.h>

#include "common/model/config/schema_int.h"

#define fail_at clv_session_fail_at

/* Sets of column uses, with a bit for each clv_column_use. */
enum {
  NUMBER_USES = 1u << CLV_COLUMN_NUMBER | 1u << CLV_COLUMN_DATE,
  WORD_USES = 1u << CLV_COLUMN_CATEGORY | 1u << CLV_COLUMN_INDEX,
  ONE_COLUMN_USES = 1u << CLV_COLUMN_TARGET | 1u << CLV_COLUMN_ID | 1u << CLV_COLUMN_WEIGHT |
                    1u << CLV_COLUMN_TEXT,
  INPUT_USES = NUMBER_USES | WORD_USES | 1u << CLV_COLUMN_BOOLEAN,
};
enum { MAX_INPUTS = 8, MAX_INPUT_NAME = 63 };
static const char first_input[] = "input"; /* name of the input that the other columns make */

static bool is_input(const clv_column_spec *s) { return INPUT_USES >> s->use & 1; }

/* Rules of data.table.columns{}.missing: the uses of a column for which each value is allowed. */
static const struct {
  const char *uses_text;
  unsigned accepted_uses; /* set of the uses that allow the value, a bit for each clv_column_use */
} missing_rules[] = {
    [CLV_MISSING_REFUSE] = {"all columns", ~0u},
    [CLV_MISSING_MEAN] = {"numbers and dates", NUMBER_USES},
    [CLV_MISSING_MEDIAN] = {"numbers and dates", NUMBER_USES},
    [CLV_MISSING_MOST_FREQUENT] = {"inputs that are no text", INPUT_USES},
    [CLV_MISSING_VALUE] = {"inputs", INPUT_USES | 1u << CLV_COLUMN_TEXT},
    [CLV_MISSING_OWN] = {"categories and indexes (a number has `indicator: true` for it)",
                         WORD_USES},
    [CLV_MISSING_MASK] = {"targets, if a record has several (loss.kind: targets)",
                          1u << CLV_COLUMN_TARGET},
};

/* Refuses a key of a column that has another use. uses_text: the uses that take the key. */
static clv_code refuse_column_key(const clv_session_config *c, const clv_column_spec *s,
                                  const char *key, const char *uses_text, clv_err *err) {
  return fail_at(c, s->pos, err,
                 "data.table.columns.%.80s.%s goes with as: %s, and the column is as: %s: remove "
                 "the key, or change `as`",
                 s->name, key, uses_text, clv_column_use_names[s->use]);
}

static clv_code check_column(const clv_session_config *c, const clv_column_spec *s, clv_err *err) {
  bool masks_single_target = s->missing == CLV_MISSING_MASK && c->loss.kind != CLV_LOSS_TARGETS;
  if (!(missing_rules[s->missing].accepted_uses & 1u << s->use) || masks_single_target)
    return fail_at(c, s->pos, err, "data.table.columns.%.80s.missing: %s goes with %s", s->name,
                   clv_missing_rule_names[s->missing], missing_rules[s->missing].uses_text);
  if (s->missing == CLV_MISSING_VALUE && !s->value && s->use != CLV_COLUMN_TEXT)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s.missing: value needs the key value beside it",
                   s->name);
  if (s->value && s->missing != CLV_MISSING_VALUE)
    return fail_at(c, s->pos, err, "data.table.columns.%.80s.value goes with missing: value",
                   s->name);
  if (s->scale != CLV_SCALE_STANDARD && !(NUMBER_USES >> s->use & 1))
    return refuse_column_key(c, s, "scale", "number and date", err);
  if (s->scale == CLV_SCALE_LOG && s->use == CLV_COLUMN_DATE)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s.scale: log goes with as: number, since days before "
                   "1970 are negative",
                   s->name);
  if ((s->format || s->parts.n) && s->use != CLV_COLUMN_DATE)
    return refuse_column_key(c, s, s->format ? "format" : "parts", "date", err);
  if (s->has_indicator && !is_input(s))
    return fail_at(
        c, s->pos, err, "data.table.columns.%.80s.indicator goes with inputs that are no text%s",
        s->name,
        s->use == CLV_COLUMN_TEXT ? ": missing: value marks a missing text by its `value`" : "");
  if (s->has_indicator && s->missing == CLV_MISSING_REFUSE)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s.indicator needs a rule for missing values, which are "
                   "refused: set missing",
                   s->name);
  return CLV_OK;
}

/* Returns the first column with a use; NULL: there is none. */
static const clv_column_spec *find_column(const clv_data_config *d, clv_column_use use) {
  for (size_t i = 0; i < d->table.n_columns; i++)
    if (d->table.columns[i].use == use) return &d->table.columns[i];
  return NULL;
}

static bool is_table(const clv_data_config *d) {
  return clv_format_row_of(d->format)->accepted_keys & CLV_KEY_TABLE;
}

bool clv_data_has_images(const clv_data_config *d) {
  return d->format == CLV_FORMAT_IMAGES || (is_table(d) && find_column(d, CLV_COLUMN_FILE));
}

bool clv_data_has_table_text(const clv_data_config *d) {
  return is_table(d) && find_column(d, CLV_COLUMN_TEXT);
}

bool clv_data_has_column_inputs(const clv_data_config *d) {
  size_t n_inputs = 0;
  for (size_t i = 0; i < d->table.n_columns; i++) n_inputs += is_input(&d->table.columns[i]);
  return clv_data_has_indexes(d) || (n_inputs && clv_data_has_table_text(d));
}

/* Checks a column of texts: its tokenizer, and the keys that exclude such a column. */
static clv_code check_text_column(const clv_session_config *c, clv_err *err) {
  const clv_data_config *d = &c->data;
  const clv_column_spec *s = find_column(d, CLV_COLUMN_TEXT);
  if (!s) return CLV_OK;
  if (!d->tokenizer.file)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s: as: text needs data.tokenizer.file, a vocab.txt or a "
                   "tokenizer.json",
                   s->name);
  if (d->table.storage == CLV_STORAGE_DISK)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s: the tokens of `as: text` are in memory: leave "
                   "data.table.storage: disk out, or say `as: ignore`",
                   s->name);
  for (size_t i = 0; i < d->inputs.n; i++)
    if (strcmp(d->inputs.items[i], "ids") == 0) return CLV_OK;
  if (!d->inputs.n) return CLV_OK;
  return fail_at(c, d->inputs_pos, err,
                 "data.inputs: the text of column '%.80s' is the input ids: add it", s->name);
}

/* Checks that a column of images is the only input. */
static clv_code check_file_column(const clv_session_config *c, size_t n_files, size_t n_inputs,
                                  clv_err *err) {
  const clv_column_spec *s = find_column(&c->data, CLV_COLUMN_FILE);
  if (!s && c->data.table.files)
    return fail_at(c, c->data.table.files_pos, err,
                   "data.table.files goes with a column `as: file`, which names images in this "
                   "folder: add such a column or remove the key");
  if (n_files > 1)
    return fail_at(
        c, s->pos, err,
        "data.table.columns.%.80s: a second column `as: file`, but a record has one image: say "
        "`as: ignore` for one of them",
        s->name);
  if (s && n_inputs)
    return fail_at(
        c, s->pos, err,
        "data.table.columns.%.80s: `as: file` makes the image the record's only input: say "
        "`as: ignore` for the other inputs",
        s->name);
  return CLV_OK;
}

/* Checks that the name of an index is one of an input. */
static clv_code check_index(const clv_session_config *c, const clv_column_spec *s, clv_err *err) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const char *name = clv_column_input_name(s);
  size_t n = strlen(name);
  if (s->input && s->use != CLV_COLUMN_INDEX) return refuse_column_key(c, s, "input", "index", err);
  if (s->use != CLV_COLUMN_INDEX) return CLV_OK;
  if (s->has_indicator)
    return fail_at(c, s->pos, err,
                   "data.table.columns.%.80s.indicator does not go with as: index: missing: own "
                   "gives missing values a number of their own",
                   s->name);
  if (n <= MAX_INPUT_NAME && n && strspn(name, letters) == n && strcmp(name, first_input) != 0)
    return CLV_OK;
  return fail_at(c, s->pos, err,
                 "data.table.columns.%.80s: as: index makes an input '%.80s', and the name of an "
                 "input has 1 to %d of the characters A-Z a-z 0-9 . _ - and is not '%s': give it "
                 "one with the key input",
                 s->name, name, MAX_INPUT_NAME, first_input);
}

/* Checks that the names of all indexes differ, and that a record has no more inputs than it can. */
static clv_code check_indexes(const clv_session_config *c, clv_err *err) {
  const char *list[MAX_INPUTS]; /* names of the inputs but the first */
  size_t n = c->data.inputs.n, n_others = 0;
  for (size_t i = 0; i < n; i++) list[i] = c->data.inputs.items[i];
  for (size_t i = 0; i < c->data.table.n_columns; i++) {
    const clv_column_spec *s = &c->data.table.columns[i];
    CLV_TRY(check_index(c, s, err));
    n_others += is_input(s) && s->use != CLV_COLUMN_INDEX;
    if (s->use != CLV_COLUMN_INDEX) continue;
    if (n + (n_others > 0) >= MAX_INPUTS)
      return fail_at(c, s->pos, err,
                     "data.table.columns.%.80s: a record has at most %d inputs, of which all "
                     "columns that are no index make one: say as: category for some",
                     s->name, MAX_INPUTS);
    for (size_t k = 0; k < n; k++)
      if (strcmp(list[k], clv_column_input_name(s)) == 0)
        return fail_at(c, s->pos, err, "data.table.columns.%.80s: two columns are the input '%s'",
                       s->name, list[k]);
    list[n++] = clv_column_input_name(s);
  }
  return CLV_OK;
}

bool clv_data_has_indexes(const clv_data_config *d) { return find_column(d, CLV_COLUMN_INDEX); }

/* Checks that a column of weights and data.sampling: column come together. n: number of columns. */
static clv_code check_weights(const clv_session_config *c, size_t n, clv_err *err) {
  bool draws_by_column = c->data.sampling == CLV_SAMPLING_COLUMN;
  for (size_t i = 0; n && !draws_by_column && i < c->data.table.n_columns; i++)
    if (c->data.table.columns[i].use == CLV_COLUMN_WEIGHT)
      return fail_at(c, c->data.table.columns[i].pos, err,
                     "data.table.columns.%.80s: nothing reads this weight: set data.sampling: "
                     "column, or say as: ignore",
                     c->data.table.columns[i].name);
  if (n || !draws_by_column) return CLV_OK;
  return fail_at(c, c->data.sampling_pos, err,
                 "data.sampling: column needs a column of data.table.columns with as: weight");
}

/* Refuses a second column with a use that only one column may have. n: columns before `s` with its
 * use. */
static clv_code check_repeated(const clv_session_config *c, const clv_column_spec *s, size_t n,
                               clv_err *err) {
  bool is_target = s->use == CLV_COLUMN_TARGET;
  if (!n || !(ONE_COLUMN_USES >> s->use & 1)) return CLV_OK;
  if (is_target && c->loss.kind == CLV_LOSS_TARGETS) return CLV_OK;
  return fail_at(c, s->pos, err, "data.table.columns.%.80s: a second %s%s", s->name,
                 clv_column_use_names[s->use],
                 is_target ? ": several go with loss.kind: targets, which has a loss for each"
                 : s->use == CLV_COLUMN_TEXT
                     ? "; a record has one: join the two in one column, or say as: ignore"
                     : "; a record has one");
}

clv_code clv_session_check_table(const clv_session_config *c, clv_err *err) {
  size_t n_by_use[CLV_COLUMN_USES] = {0}, n_inputs = 0;
  if (!(clv_format_row_of(c->data.format)->accepted_keys & CLV_KEY_TABLE)) return CLV_OK;
  clv_config_pos pos = c->data.table.n_columns ? c->data.table.columns_pos : c->data.pos;
  for (size_t i = 0; i < c->data.table.n_columns; i++) {
    const clv_column_spec *s = &c->data.table.columns[i];
    CLV_TRY(check_column(c, s, err));
    n_inputs += is_input(s) || s->use == CLV_COLUMN_TEXT;
    CLV_TRY(check_repeated(c, s, n_by_use[s->use]++, err));
  }
  CLV_TRY(check_file_column(c, n_by_use[CLV_COLUMN_FILE], n_inputs, err));
  CLV_TRY(check_text_column(c, err));
  CLV_TRY(check_indexes(c, err));
  CLV_TRY(check_weights(c, n_by_use[CLV_COLUMN_WEIGHT], err));
  if (!n_inputs && !n_by_use[CLV_COLUMN_FILE])
    return fail_at(c, pos, err,
                   "data.table.columns names no input: list the columns of the header, as in "
                   "`columns: {age: {as: number}, sex: {as: category}, outcome: {as: target}}`");
  if (n_by_use[CLV_COLUMN_TARGET]) return CLV_OK;
  return fail_at(c, pos, err, "data.table.columns names no target: say `as: target` for one");
}
