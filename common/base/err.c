/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: filling and extending a clv_err.
 */
#include "common/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const code_names[] = {
    "ok",        "cancelled",       "unknown",       "invalid argument", "deadline exceeded",
    "not found", "already exists",  "denied",        "exhausted",        "failed precondition",
    "aborted",   "out of range",    "unimplemented", "internal",         "unavailable",
    "data loss", "unauthenticated", "wrong answer",
};

const char *clv_code_name(clv_code code) {
  return (unsigned)code < CLV_COUNT(code_names) ? code_names[code] : "unknown";
}

/* Replaces the end of a truncated text by "...". full_len: length of the full text, as returned by
 * snprintf. */
static void mark_truncated(char text[CLV_ERR_TEXT], int full_len) {
  static const char ellipsis[] = "...";
  size_t at = CLV_ERR_TEXT - sizeof ellipsis;
  if (full_len < CLV_ERR_TEXT) return;
  while (at && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
  memcpy(text + at, ellipsis, sizeof ellipsis);
}

clv_code clv_fail_at(const char *where, clv_err *err, clv_code code, const char *fmt, ...) {
  if (!err) return code;
  char text[CLV_ERR_TEXT]; /* a copy, because the arguments may point into err->text */
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  mark_truncated(text, n);
  memcpy(err->text, text, sizeof text);
  err->code = code;
  err->where = where;
  err->failed_op[0] = err->offending_value[0] = '\0';
  return code;
}

clv_code clv_err_set_offending_value(clv_err *err, const char *fmt, ...) {
  if (!err) return CLV_INTERNAL;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(err->offending_value, sizeof err->offending_value, fmt, ap);
  va_end(ap);
  return err->code;
}

clv_code clv_err_prefix(clv_err *err, const char *fmt, ...) {
  if (!err) return CLV_INTERNAL;
  char text[CLV_ERR_TEXT];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  size_t used = n < 0 ? 0 : CLV_MIN((size_t)n, sizeof text - 1);
  char joined[2 * CLV_ERR_TEXT];
  n = snprintf(joined, sizeof joined, "%.*s: %s", (int)used, text, err->text);
  memcpy(text, joined, sizeof text);
  text[sizeof text - 1] = '\0';
  mark_truncated(text, n);
  memcpy(err->text, text, sizeof text);
  return err->code;
}

void clv_freep(void *pp) {
  void **p = pp;
  free(*p);
  *p = NULL;
}
