/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading of a tokenizer.json: what the readers of its sections share. Each object is read by a
 * table of its keys (file_keys.c). A value that needs more than a row of the table is skipped, and
 * its place is kept (CLV_KEY_AT): the reader of the section goes back to it, which makes the order
 * of the keys in the file irrelevant.
 */
#ifndef CLEAVE_TOKENIZER_FILE_INT_H
#define CLEAVE_TOKENIZER_FILE_INT_H

#include "master/tokens/tokens_int.h"

/* The file that is being read. */
typedef struct clv_token_file {
  clv_json j;
  clv_tokenizer *t;
  clv_bytes text; /* text of the current value */
} clv_token_file;

/* How the value of a key is read, and the type of what receives it. */
typedef enum clv_key_kind {
  CLV_KEY_SKIP,    /* any value is skipped: the row of the table says why */
  CLV_KEY_AT,      /* clv_json: the place of the value, which is skipped; text NULL: no such key */
  CLV_KEY_FLAG,    /* bool */
  CLV_KEY_BYTES,   /* clv_bytes: a text; null is the empty text */
  CLV_KEY_POINTS,  /* clv_codepoints: a text */
  CLV_KEY_INTEGER, /* int64_t of 0 to clv_file_key.most */
  CLV_KEY_REAL,    /* double; null is 0 */
  CLV_KEY_CHOICE   /* size_t: index of a text among clv_file_key.names */
} clv_key_kind;

typedef struct clv_file_key {
  const char *name;
  clv_key_kind kind;
  size_t offset;    /* bytes from the object that is read to what receives the value */
  bool is_optional; /* the library reads files without this key, too */
  int64_t most;
  const char *const *names; /* [n_names] */
  size_t n_names;
  const char *wrong; /* message for a text that is none of the names */
} clv_file_key;

/* Reads an object into *object by the table of its keys. `what`: name of the object, for messages.
 * Refuses keys that the table lacks unless they are null, and objects that lack a key. */
clv_code clv_token_file_read_keys(clv_token_file *f, const char *what, const clv_file_key *keys,
                                  size_t n_keys, void *object, clv_err *err) CLV_USE_RESULT;
/* As clv_token_file_read_keys, of the object at a place that CLV_KEY_AT kept. */
clv_code clv_token_file_read_keys_at(clv_token_file *f, const clv_json *at, const char *what,
                                     const clv_file_key *keys, size_t n_keys, void *object,
                                     clv_err *err) CLV_USE_RESULT;
/* Reads the text of the key `type` of the next object into f->text, and does not move on. */
clv_code clv_token_file_find_type(clv_token_file *f, const char *what, clv_err *err) CLV_USE_RESULT;
/* True if f->text is this text. */
bool clv_token_file_text_equals(const clv_token_file *f, const char *text);
/* Returns the byte of the file where the next value begins, for messages. */
size_t clv_token_file_position(clv_token_file *f);

/* ---- sections, each at the place of its value; a section that is null has nothing ------------ */

clv_code clv_read_normalizer(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* After the normalizer: refuses steps that do not go with it. */
clv_code clv_read_pre_tokenizer(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* After the pre_tokenizer, because BPE is byte-level if the pre_tokenizer is. */
clv_code clv_read_model(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
/* After the model, whose vocabulary they need. */
clv_code clv_read_added_tokens(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_post_processor(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_truncation(clv_token_file *f, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_padding(clv_token_file *f, clv_err *err) CLV_USE_RESULT;

#endif
