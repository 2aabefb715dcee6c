/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and functions that the readers of the sections of a tokenizer.json share. Each object is
 * read by a table of its keys (file_keys.c). A value that a row of the table cannot describe is
 * skipped, and its position is stored (CLV_KEY_POSITION). The reader of the section reads it later
 * from there, so the order of the keys in the file does not matter.
 */
#ifndef CLEAVE_TOKENIZER_FILE_INT_H
#define CLEAVE_TOKENIZER_FILE_INT_H

#include "master/tokens/tokens_int.h"

/* A tokenizer.json while it is read. */
typedef struct clv_token_file {
  clv_json j;       /* position in the file */
  clv_tokenizer *t; /* tokenizer that receives the values read from the file */
  clv_bytes text;   /* the text that was read last */
} clv_token_file;

/* How the value of a key is read, and the type of the member that receives the value. */
typedef enum clv_json_key_kind {
  CLV_KEY_SKIP, /* no receiver: any value is skipped; a comment in the table says why */
  /* clv_json: position of the value, which is skipped; its text is NULL if there is no such key */
  CLV_KEY_POSITION,
  CLV_KEY_FLAG,       /* bool */
  CLV_KEY_BYTES,      /* clv_bytes: a text; null is the empty text */
  CLV_KEY_CODEPOINTS, /* clv_codepoints: a text of at most CLV_TOKEN_MAX_STEP_BYTES */
  CLV_KEY_INTEGER,    /* int64_t: 0 to clv_json_key_row.max_integer */
  CLV_KEY_REAL,       /* double; null is 0 */
  CLV_KEY_CHOICE      /* size_t: index of a text among clv_json_key_row.names */
} clv_json_key_kind;

/* A row in the table of the keys of a JSON object: describes one key. */
typedef struct clv_json_key_row {
  const char *name;
  clv_json_key_kind kind;
  size_t offset;    /* byte offset of the value's member in the struct that receives the object */
  bool is_optional; /* a file may lack this key */
  int64_t max_integer;      /* CLV_KEY_INTEGER: largest valid value */
  const char *const *names; /* CLV_KEY_CHOICE: [n_names] the valid texts */
  size_t n_names;
  const char *error_text; /* CLV_KEY_CHOICE: error for any other text */
} clv_json_key_row;

/* Reads an object into *object, a struct with a member for each value, by the table `keys`.
 * `object_name`: name of the object, for messages. Refuses a key that is not in the table, unless
 * its value is null, and an object without a key that is not optional. */
clv_code clv_token_file_read_keys(clv_token_file *f, const char *object_name,
                                  const clv_json_key_row *keys, size_t n_keys, void *object,
                                  clv_err *err) CLV_USE_RESULT;
/* As clv_token_file_read_keys, but reads the object at `at`, a position that CLV_KEY_POSITION has
 * stored. Leaves f->j, the reader's position in the file, where it was. */
clv_code clv_token_file_read_keys_at(clv_token_file *f, const clv_json *at, const char *object_name,
                                     const clv_json_key_row *keys, size_t n_keys, void *object,
                                     clv_err *err) CLV_USE_RESULT;
/* Reads the value of the key `type` of the next object into f->text. Leaves f->j, the reader's
 * position in the file, where it was. */
clv_code clv_token_file_find_type(clv_token_file *f, const char *object_name,
                                  clv_err *err) CLV_USE_RESULT;
/* True if f->text equals `text`. */
bool clv_token_file_text_equals(const clv_token_file *f, const char *text);
/* Returns the byte of the file where the next value begins, for messages. */
size_t clv_token_file_position(clv_token_file *f);

/* ---- readers of the sections of a tokenizer.json --------------------------------------------- */

/* Each function reads the section whose value begins at f->j into f->t. A value of null leaves the
 * section empty, except for the model and added_tokens, which must not be null. */
clv_code clv_read_normalizer(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* Call after clv_read_normalizer. Refuses a step that does not work with the normalizer. */
clv_code clv_read_pre_tokenizer(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* Call after clv_read_pre_tokenizer, because BPE is byte-level if the pre_tokenizer is. */
clv_code clv_read_model(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* Call these after clv_read_model, because they look tokens up in its vocabulary. */
clv_code clv_read_added_tokens(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_post_processor(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_truncation(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_padding(clv_token_file *f, clv_err *err) CLV_USE_RESULT;

#endif
