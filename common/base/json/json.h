/* SPDX-License-Identifier: Apache-2.0
 *
 * json: JSON text pulled value by value, without a tree: files of strangers that hold millions of
 * values cost no more memory than the longest text in them. Every error says line and column.
 *
 * Ownership: a reader borrows its text. Threads: one at a time.
 * Limits: CLV_JSON_DEPTH lists and objects inside each other.
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

/* Where a reader is. Zero-initialise, then set label, text and len. */
typedef struct clv_json {
  const char *label; /* for messages */
  const char *text;
  size_t len, at;
  size_t lines_before; /* of a file that this is one line of */
  unsigned depth;
} clv_json;

/* "label:line:column: ..." of the byte `at`. */
clv_code clv_json_fail(const clv_json *j, size_t at, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(4, 5);

/* What begins here; CLV_INVALID when no value does. */
clv_code clv_json_peek(clv_json *j, clv_json_kind *ret, clv_err *err) CLV_USE_RESULT;

/* The value here, which must be of that kind. Texts may hold NUL; numbers are whole. */
clv_code clv_json_text(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_integer(clv_json *j, int64_t low, int64_t high, int64_t *ret,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_json_real(clv_json *j, double *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_bool(clv_json *j, bool *ret, clv_err *err) CLV_USE_RESULT;
/* Steps over null; false and nothing else where another value is. */
bool clv_json_skip_null(clv_json *j);
/* Steps over any value, which is checked. */
clv_code clv_json_skip(clv_json *j, clv_err *err) CLV_USE_RESULT;

/* for (size_t n = 0;; n++) { clv_json_next(j, n, &more); if (!more) break; ...a value... }
 * behind clv_json_open. Of an object, clv_json_key comes first in each round. */
clv_code clv_json_open(clv_json *j, clv_json_kind kind, clv_err *err) CLV_USE_RESULT;
clv_code clv_json_next(clv_json *j, clv_json_kind kind, size_t n, bool *ret_more,
                       clv_err *err) CLV_USE_RESULT;
clv_code clv_json_key(clv_json *j, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* Nothing but white space is left. */
clv_code clv_json_end(clv_json *j, clv_err *err) CLV_USE_RESULT;

/* Which of n names a key is; CLV_INVALID where `seen`, a set of them, has it already. -1 is none of
 * them. */
clv_code clv_json_find_key(clv_json *j, const char *const *names, size_t n, uint32_t *seen,
                           int *ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
