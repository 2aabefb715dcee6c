/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses CSV (RFC 4180). A comma, or another separator, stands between fields. A field that begins
 * with a double quote ends at the next double quote; within the field, two double quotes in a row
 * stand for one. Line ends are \n or \r\n; within quotes they belong to the field.
 */
#include <stdio.h>
#include <string.h>

#include "master/data/text_int.h"

clv_code clv_csv_fail(const clv_csv *c, size_t line, size_t at, clv_err *err, const char *fmt,
                      ...) {
  char text[CLV_ERR_TEXT];
  size_t column = 1;
  va_list args;
  for (size_t i = at; i > 0 && c->text[i - 1] != '\n'; i--)
    /* counts characters, so it skips the bytes that continue a character */
    column += (c->text[i - 1] & 0xc0) != 0x80;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return clv_fail(err, CLV_INVALID, "%.200s:%zu:%zu: %s", c->label, line + 1, column, text);
}

static char get_separator(const clv_csv *c) { return c->separator ? c->separator : ','; }

/* Returns the bytes of the line end at the current position; 0: no line ends there. */
static size_t get_line_end_length(const clv_csv *c) {
  if (c->at < c->len && c->text[c->at] == '\n') return 1;
  return c->len - c->at >= 2 && memcmp(c->text + c->at, "\r\n", 2) == 0 ? 2 : 0;
}

bool clv_csv_has_record(clv_csv *c) {
  for (size_t n; (n = get_line_end_length(c));) {
    c->at += n;
    c->line++;
  }
  return c->at < c->len;
}

static clv_code read_quoted_field(clv_csv *c, clv_bytes *ret, clv_err *err) {
  size_t from = c->at++, line = c->line;
  for (;;) {
    const char *quote = memchr(c->text + c->at, '"', c->len - c->at);
    c->lacks_quote = !quote;
    if (!quote)
      return clv_csv_fail(c, line, from, err,
                          "these quotes have no end: close them or double them");
    size_t end = (size_t)(quote - c->text);
    clv_bytes_add(ret, c->text + c->at, end - c->at);
    for (size_t i = c->at; i < end; i++) c->line += c->text[i] == '\n';
    c->at = end + 1;
    if (c->at == c->len || c->text[c->at] != '"') break;
    clv_bytes_add(ret, "\"", 1);
    c->at++;
  }
  if (c->at == c->len || c->text[c->at] == get_separator(c) || get_line_end_length(c))
    return CLV_OK;
  return clv_csv_fail(c, c->line, c->at, err, "%s or the line's end is expected after quotes",
                      get_separator(c) == ',' ? "a comma" : "the separator");
}

static void read_unquoted_field(clv_csv *c, clv_bytes *ret) {
  const char *from = c->text + c->at, *text_end = c->text + c->len, *p = from;
  char separator = get_separator(c);
  while (p < text_end && *p != separator && *p != '\n' &&
         !(*p == '\r' && text_end - p >= 2 && p[1] == '\n'))
    p++;
  c->at += (size_t)(p - from);
  clv_bytes_add(ret, from, (size_t)(p - from));
}

clv_code clv_csv_read_field(clv_csv *c, clv_bytes *ret, bool *ret_last, clv_err *err) {
  ret->len = 0;
  clv_bytes_add(ret, "", 0);
  if (c->at < c->len && c->text[c->at] == '"')
    CLV_TRY(read_quoted_field(c, ret, err));
  else
    read_unquoted_field(c, ret);
  if (ret->failed) return clv_fail(err, CLV_EXHAUSTED, "%s: no memory for a field", c->label);
  *ret_last = c->at == c->len || c->text[c->at] != get_separator(c);
  size_t n = *ret_last ? get_line_end_length(c) : 1;
  c->at += n;
  c->line += *ret_last && n;
  return CLV_OK;
}
