/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges of --random: LOW..HIGH and log:LOW..HIGH.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/sweep/sweep_int.h"

static const char log_prefix[] = "log:";
enum { MAX_NUMBER_CHARS = 40, MAX_INTEGER_DIGITS = 15 };

/* Parses the `len` characters at `text` as a number. *ret_is_integer: the text has only digits and
 * perhaps a sign. */
static bool parse_number(const char *text, size_t len, double *ret, bool *ret_is_integer) {
  char number_text[MAX_NUMBER_CHARS + 1], *end;
  if (!len || len > MAX_NUMBER_CHARS || strspn(text, "0123456789+-.eE") < len) return false;
  memcpy(number_text, text, len);
  number_text[len] = '\0';
  *ret = strtod(number_text, &end);
  *ret_is_integer = strspn(number_text, "0123456789+-") == len && len <= MAX_INTEGER_DIGITS;
  return !*end && isfinite(*ret);
}

/* Finds the ".." that stands between two numbers. */
static bool parse_range_ends(const char *text, sweep_range *ret) {
  for (const char *at = text; (at = strstr(at, "..")) != NULL; at++) {
    bool is_low_integer, is_high_integer;
    if (!parse_number(text, (size_t)(at - text), &ret->low, &is_low_integer) ||
        !parse_number(at + 2, strlen(at + 2), &ret->high, &is_high_integer))
      continue;
    ret->has_integer_ends = is_low_integer && is_high_integer;
    return true;
  }
  return false;
}

clv_code sweep_range_parse(const char *text, sweep_range *ret, bool *ret_is_range, clv_err *err) {
  sweep_range r = {.is_logarithmic = strncmp(text, log_prefix, sizeof log_prefix - 1) == 0};
  *ret_is_range = parse_range_ends(text + (r.is_logarithmic ? sizeof log_prefix - 1 : 0), &r);
  if (!*ret_is_range && r.is_logarithmic)
    return clv_fail(err, CLV_INVALID, "log: goes with a range, as in log:1e-4..1e-1, not '%.60s'",
                    text + sizeof log_prefix - 1);
  if (!*ret_is_range && strstr(text, ".."))
    return clv_fail(err, CLV_INVALID, "'%.80s' is no range of numbers, as in 1e-4..1e-1", text);
  if (!*ret_is_range) return CLV_OK;
  if (!(r.low < r.high))
    return clv_fail(err, CLV_INVALID,
                    "the range '%.80s' has no values: write the smaller end first", text);
  if (r.is_logarithmic && !(r.low > 0))
    return clv_fail(err, CLV_INVALID,
                    "the range '%.80s' begins at %g: with log: both ends are above 0", text, r.low);
  *ret = r;
  return CLV_OK;
}

void sweep_range_append_value(const sweep_range *r, double u, clv_bytes *out) {
  double high = r->has_integer_ends ? r->high + 1 : r->high;
  double v = r->is_logarithmic ? exp(log(r->low) + u * (log(high) - log(r->low)))
                               : r->low + u * (high - r->low);
  if (r->has_integer_ends)
    clv_bytes_printf(out, "%.0f", CLV_MAX(CLV_MIN(floor(v), r->high), r->low));
  else
    clv_bytes_printf(out, "%.6g", v);
}
