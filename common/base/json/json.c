/* SPDX-License-Identifier: Apache-2.0
 *
 * Pull parser for JSON. Readers of data files, tokenizers and stored records call it.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"

static const char *const kind_nouns[] = {
    [CLV_JSON_NULL] = "null",   [CLV_JSON_BOOL] = "true or false", [CLV_JSON_NUMERAL] = "a number",
    [CLV_JSON_TEXT] = "a text", [CLV_JSON_LIST] = "a list",        [CLV_JSON_OBJECT] = "an object"};

bool clv_json_keys_have(const clv_json_keys *keys, const char *key, size_t len) {
  for (size_t i = 0; keys && i < keys->n; i++)
    if (strlen(keys->names[i]) == len && memcmp(keys->names[i], key, len) == 0) return true;
  return false;
}

clv_code clv_json_fail(const clv_json *j, size_t at, clv_err *err, const char *fmt, ...) {
  char text[CLV_ERR_TEXT];
  size_t line = j->lines_before + 1, column = 1;
  va_list args;
  for (size_t i = 0; i < at && i < j->len; i++) {
    bool end = j->text[i] == '\n';
    line += end;
    /* columns count characters, not bytes */
    column = end ? 1 : column + ((j->text[i] & 0xc0) != 0x80);
  }
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return clv_fail(err, CLV_INVALID, "%.200s:%zu:%zu: %s", j->label, line, column, text);
}

/* Skips white space, and at the beginning of a file the byte order mark of UTF-8. */
static void skip_space(clv_json *j) {
  if (!j->at && !j->lines_before && j->len >= 3 && memcmp(j->text, "\xef\xbb\xbf", 3) == 0)
    j->at = 3;
  while (j->at < j->len && memchr(" \t\r\n", j->text[j->at], 4)) j->at++;
}

/* Returns the next byte that is no white space; -1 at the end. */
static int next_byte(clv_json *j) {
  skip_space(j);
  return j->at < j->len ? (unsigned char)j->text[j->at] : -1;
}

static bool read_word(clv_json *j, const char *word) {
  size_t n = strlen(word);
  skip_space(j);
  if (j->len - j->at < n || memcmp(j->text + j->at, word, n) != 0) return false;
  j->at += n;
  return true;
}

clv_code clv_json_peek(clv_json *j, clv_json_kind *ret, clv_err *err) {
  static const struct {
    char first;
    clv_json_kind kind;
  } first_bytes[] = {{'n', CLV_JSON_NULL}, {'t', CLV_JSON_BOOL}, {'f', CLV_JSON_BOOL},
                     {'"', CLV_JSON_TEXT}, {'[', CLV_JSON_LIST}, {'{', CLV_JSON_OBJECT}};
  int c = next_byte(j);
  const char *encoding = j->depth ? NULL : clv_text_utf16_or_32(j->text, j->len);
  if (encoding)
    return clv_json_fail(
        j, 0, err, "its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t UTF-8",
        encoding, encoding);
  if (c < 0) return clv_json_fail(j, j->at, err, "the text ends where a value should be");
  *ret = CLV_JSON_NUMERAL;
  if (c == '-' || (c >= '0' && c <= '9')) return CLV_OK;
  for (size_t i = 0; i < CLV_COUNT(first_bytes); i++)
    if (first_bytes[i].first == c) {
      *ret = first_bytes[i].kind;
      return CLV_OK;
    }
  return clv_json_fail(j, j->at, err, "no JSON value begins here");
}

static clv_code expect_kind(clv_json *j, clv_json_kind wanted, clv_err *err) {
  clv_json_kind found;
  CLV_TRY(clv_json_peek(j, &found, err));
  if (found == wanted) return CLV_OK;
  return clv_json_fail(j, j->at, err, "%s is expected here, found %s", kind_nouns[wanted],
                       kind_nouns[found]);
}

/* ---- decoding JSON strings ------------------------------------------------------------------- */

static void add_point(clv_bytes *b, uint32_t c) {
  char out[4];
  size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static const unsigned char heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
  out[0] = (char)(heads[n] | c);
  clv_bytes_add(b, out, n);
}

static bool parse_hex4(const clv_json *j, size_t at, uint32_t *ret) {
  uint8_t bytes[2];
  char digits[5] = "";
  if (j->len < 4 || at > j->len - 4) return false;
  memcpy(digits, j->text + at, 4);
  if (strlen(digits) != 4 || !clv_hex_parse(digits, bytes, 2)) return false;
  *ret = (uint32_t)bytes[0] << 8 | bytes[1];
  return true;
}

/* Reads the code point after "\u": one unit, or a surrogate pair. */
static clv_code read_unicode(clv_json *j, clv_bytes *ret, clv_err *err) {
  uint32_t high, low;
  size_t from = j->at - 2;
  if (!parse_hex4(j, j->at, &high)) return clv_json_fail(j, from, err, "\\u needs four digits");
  j->at += 4;
  if (high >= 0xd800 && high < 0xe000) {
    bool is_pair = high < 0xdc00 && j->len - j->at >= 6 && memcmp(j->text + j->at, "\\u", 2) == 0 &&
                   parse_hex4(j, j->at + 2, &low) && low >= 0xdc00 && low < 0xe000;
    if (!is_pair) return clv_json_fail(j, from, err, "half a surrogate pair is no character");
    j->at += 6;
    high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }
  add_point(ret, high);
  return CLV_OK;
}

static clv_code read_escape(clv_json *j, clv_bytes *ret, clv_err *err) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = j->len - j->at > 1 ? j->text[j->at + 1] : '\0';
  const char *found = c ? strchr(from, c) : NULL;
  if (!found && c != 'u') return clv_json_fail(j, j->at, err, "an unknown escape");
  j->at += 2;
  if (c == 'u') return read_unicode(j, ret, err);
  clv_bytes_add(ret, &to[found - from], 1);
  return CLV_OK;
}

/* Appends the text up to the next quote or backslash. Fails on a byte that is not UTF-8 and on a
 * control character. */
static clv_code read_unescaped_text(clv_json *j, clv_bytes *ret, clv_err *err) {
  size_t from = j->at;
  while (j->at < j->len && j->text[j->at] != '"' && j->text[j->at] != '\\') {
    uint32_t point;
    size_t n = clv_utf8_decode(j->text + j->at, j->len - j->at, &point);
    if (!n) return clv_json_fail(j, j->at, err, "not UTF-8");
    if (point < ' ') return clv_json_fail(j, j->at, err, "a control character needs an escape");
    j->at += n;
  }
  clv_bytes_add(ret, j->text + from, j->at - from);
  return CLV_OK;
}

clv_code clv_json_read_text(clv_json *j, clv_bytes *ret, clv_err *err) {
  CLV_TRY(expect_kind(j, CLV_JSON_TEXT, err));
  size_t from = j->at++;
  ret->len = 0;
  clv_bytes_add(ret, "", 0);
  while (j->at < j->len && j->text[j->at] != '"')
    CLV_TRY(j->text[j->at] == '\\' ? read_escape(j, ret, err) : read_unescaped_text(j, ret, err));
  if (j->at == j->len) return clv_json_fail(j, from, err, "this text is not terminated");
  j->at++;
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a text of JSON") : CLV_OK;
}

/* ---- reading numbers, true, false and null --------------------------------------------------- */

static size_t digits(const clv_json *j, size_t at) {
  size_t n = 0;
  while (at + n < j->len && j->text[at + n] >= '0' && j->text[at + n] <= '9') n++;
  return n;
}

/* Returns the length of the number at `at`; 0: no number. *ret_whole: no fraction and no
 * exponent. */
static size_t number_length(const clv_json *j, size_t at, bool *ret_whole) {
  size_t begin = at;
  at += j->text[at] == '-';
  size_t n = digits(j, at);
  if (!n || (n > 1 && j->text[at] == '0')) return 0;
  at += n;
  *ret_whole = true;
  if (at < j->len && j->text[at] == '.') {
    *ret_whole = false;
    if (!(n = digits(j, at + 1))) return 0;
    at += 1 + n;
  }
  if (at < j->len && (j->text[at] | 0x20) == 'e') {
    *ret_whole = false;
    at += 1 + (at + 1 < j->len && (j->text[at + 1] == '-' || j->text[at + 1] == '+'));
    if (!(n = digits(j, at))) return 0;
    at += n;
  }
  return at - begin;
}

enum { MAX_NUMBER_LEN = 63 }; /* most characters of a number */

static clv_code read_number(clv_json *j, char text[MAX_NUMBER_LEN + 1], bool *ret_whole,
                            clv_err *err) {
  CLV_TRY(expect_kind(j, CLV_JSON_NUMERAL, err));
  size_t n = number_length(j, j->at, ret_whole);
  if (!n || n > MAX_NUMBER_LEN) return clv_json_fail(j, j->at, err, "a number is not valid");
  memcpy(text, j->text + j->at, n);
  text[n] = '\0';
  j->at += n;
  return CLV_OK;
}

clv_code clv_json_read_integer(clv_json *j, int64_t low, int64_t high, int64_t *ret, clv_err *err) {
  char text[MAX_NUMBER_LEN + 1];
  bool is_whole;
  skip_space(j);
  size_t from = j->at;
  CLV_TRY(read_number(j, text, &is_whole, err));
  errno = 0;
  long long value = is_whole ? strtoll(text, NULL, 10) : 0;
  if (!is_whole || errno || value < low || value > high)
    return clv_json_fail(j, from, err, "%s is no whole number from %lld to %lld", text,
                         (long long)low, (long long)high);
  *ret = value;
  return CLV_OK;
}

clv_code clv_json_read_real(clv_json *j, double *ret, clv_err *err) {
  char text[MAX_NUMBER_LEN + 1];
  bool is_whole;
  skip_space(j);
  size_t from = j->at;
  CLV_TRY(read_number(j, text, &is_whole, err));
  *ret = strtod(text, NULL);
  return isfinite(*ret) ? CLV_OK : clv_json_fail(j, from, err, "%s is too large", text);
}

clv_code clv_json_read_bool(clv_json *j, bool *ret, clv_err *err) {
  CLV_TRY(expect_kind(j, CLV_JSON_BOOL, err));
  *ret = read_word(j, "true");
  if (*ret || read_word(j, "false")) return CLV_OK;
  return clv_json_fail(j, j->at, err, "neither true nor false");
}

bool clv_json_skip_null(clv_json *j) { return read_word(j, "null"); }

/* ---- reading lists and objects of JSON ------------------------------------------------------- */

clv_code clv_json_open(clv_json *j, clv_json_kind kind, clv_err *err) {
  CLV_TRY(expect_kind(j, kind, err));
  if (j->depth == CLV_JSON_DEPTH)
    return clv_json_fail(j, j->at, err, "more than %d nested lists and objects", CLV_JSON_DEPTH);
  j->at++;
  j->depth++;
  return CLV_OK;
}

clv_code clv_json_next(clv_json *j, clv_json_kind kind, size_t n, bool *ret_more, clv_err *err) {
  char closing = kind == CLV_JSON_LIST ? ']' : '}';
  int c = next_byte(j);
  *ret_more = c != closing;
  if (!*ret_more) {
    j->at++;
    j->depth--;
    return CLV_OK;
  }
  if (n && c != ',') return clv_json_fail(j, j->at, err, "',' or '%c' is expected here", closing);
  j->at += n > 0;
  return CLV_OK;
}

clv_code clv_json_read_key(clv_json *j, clv_bytes *ret, clv_err *err) {
  CLV_TRY(clv_json_read_text(j, ret, err));
  if (next_byte(j) != ':') return clv_json_fail(j, j->at, err, "':' is expected here");
  j->at++;
  return CLV_OK;
}

clv_code clv_json_find_key(clv_json *j, const char *const *names, size_t n, uint32_t *seen,
                           int *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  skip_space(j);
  size_t from = j->at;
  CLV_TRY(clv_json_read_key(j, &key, err));
  *ret = -1;
  for (size_t i = 0; i < n; i++)
    if (strlen(names[i]) == key.len && memcmp(names[i], key.data, key.len) == 0) *ret = (int)i;
  if (*ret < 0) return CLV_OK;
  if (*seen & 1u << *ret) return clv_json_fail(j, from, err, "key '%s' occurs twice", key.data);
  *seen |= 1u << *ret;
  return CLV_OK;
}

static clv_code skip_inside(clv_json *j, clv_json_kind kind, clv_err *err);

static clv_code skip_scalar(clv_json *j, clv_json_kind kind, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  double number;
  bool is_true;
  if (kind == CLV_JSON_TEXT) return clv_json_read_text(j, &text, err);
  if (kind == CLV_JSON_NUMERAL) return clv_json_read_real(j, &number, err);
  if (kind == CLV_JSON_BOOL) return clv_json_read_bool(j, &is_true, err);
  return clv_json_skip_null(j) ? CLV_OK : clv_json_fail(j, j->at, err, "no JSON value begins here");
}

/* Recursive; the depth is bounded by CLV_JSON_DEPTH. */
clv_code clv_json_skip(clv_json *j, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  return kind < CLV_JSON_LIST ? skip_scalar(j, kind, err) : skip_inside(j, kind, err);
}

static clv_code skip_inside(clv_json *j, clv_json_kind kind, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  bool has_more = true;
  CLV_TRY(clv_json_open(j, kind, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(j, kind, n, &has_more, err));
    if (has_more && kind == CLV_JSON_OBJECT) CLV_TRY(clv_json_read_key(j, &key, err));
    if (has_more) CLV_TRY(clv_json_skip(j, err));
  }
  return CLV_OK;
}

clv_code clv_json_end(clv_json *j, clv_err *err) {
  if (next_byte(j) < 0) return CLV_OK;
  return clv_json_fail(j, j->at, err, "unexpected text after the value");
}
