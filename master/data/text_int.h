/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts as records: reading tables of texts (CSV, JSON lines), and converting each text to a row of
 * tokens. Private to master/data.
 */
#ifndef CLEAVE_DATA_TEXT_INT_H
#define CLEAVE_DATA_TEXT_INT_H

#include "common/base/json/json.h"
#include "master/data/data.h"

/* ---- keys of a record (key_list.c) ----------------------------------------------------------- */

enum { CLV_KEY_LIST_TEXT_BYTES = 200 };

/* Text that lists keys, for a message. Zero-initialise, add keys, then finish it. */
typedef struct clv_key_list {
  char text[CLV_KEY_LIST_TEXT_BYTES];
  size_t len, n_unlisted; /* len: bytes of `text`; n_unlisted: number of keys that did not fit */
} clv_key_list;

void clv_key_list_add(clv_key_list *k, const char *key);
/* Appends the number of keys that did not fit. Returns the text. */
const char *clv_key_list_finish(clv_key_list *k);
/* Lists the keys of a JSON object that was parsed without error. Returns ret->text. */
const char *clv_key_list_of_object(const clv_json *object, clv_key_list *ret);

/* ---- parsing CSV (csv.c) --------------------------------------------------------------------- */

enum { CLV_CSV_MAX_COLUMNS = 16384 /* most columns of a table */ };

/* Reader of CSV (RFC 4180), field by field. Zero-initialise, then set label, text and len. */
typedef struct clv_csv {
  const char *label, *text;
  size_t len, at;
  size_t line;      /* number of lines before the current line */
  char separator;   /* character between fields; 0: a comma */
  bool lacks_quote; /* a quote has no end, so its field took the rest of the text */
} clv_csv;

/* Fails with "label:line:column: ...", for byte `at` of line `line`. */
clv_code clv_csv_fail(const clv_csv *c, size_t line, size_t at, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(5, 6);
/* True if the text has a further record. Skips empty lines. */
bool clv_csv_has_record(clv_csv *c);
/* Reads the next field. *ret_last: the field is the last one of its record. */
clv_code clv_csv_read_field(clv_csv *c, clv_bytes *ret, bool *ret_last,
                            clv_err *err) CLV_USE_RESULT;

/* Returns the group number of a name; records with the same name are one group (groups.c). */
int64_t clv_group_number(const char *name, size_t len);
/* Returns an integer for a time; a later time has a larger integer. */
int64_t clv_time_number(double time);

/* ---- rows of tokens (token_rows.c) ----------------------------------------------------------- */

typedef struct clv_text_rows {
  const char *path; /* path of the file, for messages */
  clv_tokenizer *tokenizer;
  int32_t first, last, pad, mask; /* ids of special tokens; -1: there is none */
  size_t width, max_bytes;        /* tokens in each row; limit of the bytes of all rows */
  int32_t *at;                    /* [n, width] tokens of the rows */
  size_t n, cap;
  clv_ids lengths;    /* [n] number of tokens in each row, without pads */
  clv_bytes cut_rows; /* [n] 1 for each row whose text was cut, else 0 */
  clv_ids text_ids;   /* all tokens of the text that was added last, before any cut */
  bool has_labels;    /* each row has a class */
  clv_bytes labels;   /* [n] class names, each with its NUL */
  clv_bytes groups;   /* [n] int64_t group numbers; empty: no groups */
  size_t n_truncated; /* number of texts that were cut to fit into a row */
  bool skips_broken;
  clv_broken_records broken; /* skipped records */
} clv_text_rows;

/* Handles a record that failed with *cause. Returns CLV_OK if the record was counted and skipped.
 * Returns the error *cause if skips_broken is false, or if the error is not about the record, such
 * as a limit of memory. */
clv_code clv_text_rows_skip_broken(clv_text_rows *r, const clv_err *cause,
                                   clv_err *err) CLV_USE_RESULT;
/* Fails if broken records were skipped. A reader calls it when it has no rows at the end of its
 * file. */
clv_code clv_text_rows_check_broken(const clv_text_rows *r, clv_err *err) CLV_USE_RESULT;
clv_code clv_text_rows_open(clv_text_rows *r, const clv_dataset_options *o,
                            clv_err *err) CLV_USE_RESULT;
void clv_text_rows_done(clv_text_rows *r);
/* Special tokens of the rows of texts and documents. */
typedef struct clv_token_info {
  /* count: number of different token ids; mask: id of the mask token, -1: none */
  int32_t count, mask;
  int32_t pad_token; /* the token that pads rows */
  /* every row begins with a special token; every row ends with one */
  bool has_first, has_last;
} clv_token_info;
clv_token_info clv_text_rows_token_info(const clv_text_rows *r);
/* Returns the most tokens of a text that fit into a row, beside its first and last token. */
size_t clv_text_rows_capacity(const clv_text_rows *r);
/* Adds a row: the first token, the tokens `ids`, the last token, and pads. Cuts a text that is too
 * long. */
clv_code clv_text_rows_add(clv_text_rows *r, const int32_t *ids, size_t n,
                           clv_err *err) CLV_USE_RESULT;
/* Adds the row of a text. Errors as clv_tokenizer_encode. */
clv_code clv_text_rows_add_text(clv_text_rows *r, const char *text, size_t len,
                                clv_err *err) CLV_USE_RESULT;
/* Drops all rows but the first n. n_truncated: number of the first n rows whose text was cut. */
void clv_text_rows_drop(clv_text_rows *r, size_t n, size_t n_truncated);
/* Keeps the rows of `kept`, which must be ascending. Does nothing if there are no rows. */
void clv_text_rows_keep_only(clv_text_rows *r, const clv_subset *kept);
/* Reads the class of a JSON record: a text, or an integer >= 0, whose digits are the name. */
clv_code clv_read_class_name(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
/* Checks the name of a class. CLV_INVALID: it is not valid. */
clv_code clv_check_class_name(const char *name, size_t len, clv_err *err) CLV_USE_RESULT;
/* Sets the class of the row that was added last. CLV_INVALID: the name is not valid. */
clv_code clv_text_rows_set_label(clv_text_rows *r, const char *name, size_t len,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- texts of a dataset (texts.c) ------------------------------------------------------------ */

typedef struct clv_texts {
  clv_tensor *tokens;  /* [n, max_tokens] i32 tokens of each text */
  clv_tensor *lengths; /* [n] i32 number of tokens of each text */
  clv_tensor *labels;  /* [n] i64 class of each text; NULL: no labels */
  clv_bytes names;     /* texts of the class names */
  char **classes;      /* [n_classes] names of the classes, sorted */
  clv_bytes groups;    /* [n] int64_t group numbers; empty: no groups */
  size_t n_classes, n_truncated;
  clv_broken_records broken;
  clv_token_info token_info;
} clv_texts;

void clv_texts_free(clv_texts *t);
clv_code clv_texts_open(const clv_dataset_options *o, clv_texts **ret, clv_err *err) CLV_USE_RESULT;
/* Reads the records of a table from memory. The ending of r->path tells whether it is CSV or JSON
 * lines. o->group: column that names groups; NULL: none. */
clv_code clv_text_rows_read_table(clv_text_rows *r, const clv_text_options *o, const char *text,
                                  size_t len, clv_err *err) CLV_USE_RESULT;
/* Converts the rows to tensors, and numbers their classes by name. */
clv_code clv_texts_from_rows(clv_text_rows *r, clv_texts **ret, clv_err *err) CLV_USE_RESULT;

#endif
