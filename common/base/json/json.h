/* SPDX-License-Identifier: Apache-2.0
 *
 * json: a pull parser for JSON text. The caller reads value by value and no tree is built, so a
 * file of millions of values needs only memory for its longest text. Every error names line and
 * column.
 *
 * Ownership: the caller keeps the text alive. Threads: only one thread at a time may use a
 * clv_json. Limits: CLV_JSON_DEPTH nested lists and objects.
 */
#ifndef CLEAVE_JSON_H
#define CLEAVE_JSON_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CLV_JSON_DEPTH = 64 };

typedef enum clv_json_kind {
  CLV_JSON_NULL,
  CLV_JSON_BOOL,
  CLV_JSON_NUMERAL,
  CLV_JSON_TEXT,
  CLV_JSON_LIST,
  CLV_JSON_OBJECT,
} clv_json_kind;

/* State of a reader. Zero-initialise, then set label, text and len. */
typedef struct clv_json {
  const char *label; /* name of the file, for messages */
  const char *text;
  size_t len, at;
  size_t lines_before; /* lines of the file before this text, if the text is one line of it */
  unsigned depth;
} clv_json;

/* Keys that the reader of a file skips without an error, although it has no use for them. */
typedef struct clv_json_keys {
  const char *const *names; /* [n] names of the keys */
  size_t n;
} clv_json_keys;
/* True if the list has the key of `len` bytes. keys NULL: an empty list. */
bool clv_json_keys_have(const clv_json_keys *keys, const char *key, size_t len);

/* Fails with "label:line:column: ..." of the byte at offset `at`. */
clv_code clv_json_fail(const clv_json *j, size_t at, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(4, 5);

/* Returns the kind of the next value. CLV_INVALID: no value begins here. */
clv_code clv_json_peek(clv_json *j, clv_json_kind *ret, clv_err *err) CLV_USE_RESULT;

/* Read the next value, which must be of the kind in the function's name. Texts may contain NUL;
 * integers have no fraction. */
clv_code clv_json_read_text(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_read_integer(clv_json *j, int64_t low, int64_t high, int64_t *ret,
                               clv_err *err) CLV_USE_RESULT;
clv_code clv_json_read_real(clv_json *j, double *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_read_bool(clv_json *j, bool *ret, clv_err *err) CLV_USE_RESULT;
/* Skips null. False: the next value is not null, and nothing is skipped. */
bool clv_json_skip_null(clv_json *j);
/* Checks that the next value is valid JSON, and skips it. */
clv_code clv_json_skip(clv_json *j, clv_err *err) CLV_USE_RESULT;

/* Open a list or an object, and advance to its next element: for (size_t n = 0;; n++) {
 * clv_json_next(j, kind, n, &more, err); if (!more) break; ...read a value... }. In an object, call
 * clv_json_read_key first in each round. */
clv_code clv_json_open(clv_json *j, clv_json_kind kind, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_next(clv_json *j, clv_json_kind kind, size_t n, bool *ret_more,
                       clv_err *err) CLV_USE_RESULT;
clv_code clv_json_read_key(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* Checks that only white space follows the last value. */
clv_code clv_json_end(clv_json *j, clv_err *err) CLV_USE_RESULT;

/* Reads the next key. *ret: its index among n names; -1: it is none of them. CLV_INVALID: the key
 * is already in `seen`, the set of keys read so far. */
clv_code clv_json_find_key(clv_json *j, const char *const *names, size_t n, uint32_t *seen,
                           int *ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
