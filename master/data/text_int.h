/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that are texts: the tables they come in, and the rows of tokens that become of them.
 */
#ifndef CLEAVE_DATA_TEXT_INT_H
#define CLEAVE_DATA_TEXT_INT_H

#include "common/base/json/json.h"
#include "master/data/data.h"

/* ---- keys that there are (key_list.c) -------------------------------------------------------- */

enum { CLV_KEY_LIST_TEXT = 200 };

/* A list of keys for a message. Zero-initialise, add, then end it. */
typedef struct clv_key_list {
  char text[CLV_KEY_LIST_TEXT];
  size_t len, unlisted; /* bytes of text; keys that had no room */
} clv_key_list;

void clv_key_list_add(clv_key_list *k, const char *key);
/* Ends the list with the number of keys that had no room. Returns its text. */
const char *clv_key_list_finish(clv_key_list *k);
/* Lists the keys of an object that was read without an error. Returns ret->text. */
const char *clv_key_list_of_object(const clv_json *object, clv_key_list *ret);

/* ---- tables (csv.c) -------------------------------------------------------------------------- */

enum { CLV_CSV_MAX_COLUMNS = 4096 /* columns */ };

/* CSV of RFC 4180, field by field. Zero-initialise, then set label, text and len. */
typedef struct clv_csv {
  const char *label, *text;
  size_t len, at;
  size_t line; /* lines before this one */
} clv_csv;

/* "label:line:column: ..." of the byte `at`, of this line or a former one. */
clv_code clv_csv_fail(const clv_csv *c, size_t line, size_t at, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(5, 6);
/* Whether a record is left; empty lines are passed by. */
bool clv_csv_has_record(clv_csv *c);
/* The next field; *ret_last: its record ends with it. */
clv_code clv_csv_read_field(clv_csv *c, clv_bytes *ret, bool *ret_last,
                            clv_err *err) CLV_USE_RESULT;

/* The number of a group of records with this name (groups.c). */
int64_t clv_group_number(const char *name, size_t len);

/* ---- rows of tokens (token_rows.c) ----------------------------------------------------------- */

typedef struct clv_text_rows {
  const char *path; /* for messages */
  clv_tokenizer *tokenizer;
  int32_t first, last, pad, mask; /* -1: none */
  size_t width, max_bytes;
  int32_t *at; /* [n, width] */
  size_t n, cap;
  clv_ids lengths; /* [n]: tokens that are no pad */
  bool labelled;
  clv_bytes labels; /* names of classes, each with its NUL */
  clv_bytes groups; /* [n] int64_t, where groups are wanted */
  size_t cut;       /* texts that were longer than a row */
  bool tolerates_broken;
  clv_broken_records broken; /* records that were left out */
} clv_text_rows;

/* What becomes of a record that failed with *why: CLV_OK, it is left out and counted; else the
 * error, also where it is a limit. */
clv_code clv_text_rows_skip_broken(clv_text_rows *r, const clv_err *why,
                                   clv_err *err) CLV_USE_RESULT;
/* The error where all records were left out, for a reader that has none; else CLV_OK. */
clv_code clv_text_rows_check_broken(const clv_text_rows *r, clv_err *err) CLV_USE_RESULT;
clv_code clv_text_rows_open(clv_text_rows *r, const clv_dataset_options *o,
                            clv_err *err) CLV_USE_RESULT;
void clv_text_rows_done(clv_text_rows *r);
/* What is known of the tokens of rows. */
typedef struct clv_token_info {
  int32_t count, mask; /* of the tokenizer's; mask -1: none */
  int32_t pad;         /* what fills rows */
  bool first, last;    /* every row begins, or ends, with one */
} clv_token_info;
clv_token_info clv_text_rows_token_info(const clv_text_rows *r);
/* How many tokens of a text a row has room for. */
size_t clv_text_rows_capacity(const clv_text_rows *r);
/* What a row begins with, the tokens, what it ends with, and what fills it. */
clv_code clv_text_rows_add(clv_text_rows *r, const int32_t *ids, size_t n,
                           clv_err *err) CLV_USE_RESULT;
/* Reads the class of a JSON record: a text, or a whole number >= 0, whose digits are the name. */
clv_code clv_read_class_name(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID where this can be no class's name. */
clv_code clv_check_class_name(const char *name, size_t len, clv_err *err) CLV_USE_RESULT;
/* The class of the row that was added last; NULL where it can be none's name. */
clv_code clv_text_rows_set_label(clv_text_rows *r, const char *name, size_t len,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- what a dataset has of them (texts.c) ---------------------------------------------------- */

typedef struct clv_texts {
  clv_tensor *tokens;  /* [n, max_tokens] i32 */
  clv_tensor *lengths; /* [n] i32 */
  clv_tensor *labels;  /* [n] i64, or NULL */
  clv_bytes names;     /* of classes */
  char **classes;      /* sorted */
  clv_bytes groups;    /* [n] int64_t, or empty */
  size_t n_classes, cut;
  clv_broken_records broken;
  clv_token_info kinds;
} clv_texts;

void clv_texts_free(clv_texts *t);
clv_code clv_texts_open(const clv_dataset_options *o, clv_texts **ret, clv_err *err) CLV_USE_RESULT;
/* The records of a table whose name says which kind it is, from memory. Of o->group the column
 * whose texts are the names of groups. */
clv_code clv_text_table_read(clv_text_rows *r, const clv_text_options *o, const char *text,
                             size_t len, clv_err *err) CLV_USE_RESULT;
/* The rows as tensors, and their classes by name. */
clv_code clv_texts_from_rows(clv_text_rows *r, clv_texts **ret, clv_err *err) CLV_USE_RESULT;

#endif
