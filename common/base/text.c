/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts: truncation, replacement of unsafe characters, sizes and durations, suggestions for typing
 * errors.
 */
#include "common/base/base.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_WORD_LEN = 64 };

void clv_text_to_printable(char *text) {
  for (char *p = text; *p; p++)
    if (*p < ' ' || *p > '~') *p = '?';
}

const char *clv_text_truncate(const char *text, char *dst, size_t size) {
  static const char more[] = "...";
  size_t len = strlen(text);
  if (len < size) return memcpy(dst, text, len + 1);
  size_t n = size - sizeof more;
  while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
  memcpy(dst, text, n);
  memcpy(dst + n, more, sizeof more);
  return dst;
}

/* Replaces C1 control characters, too, both as UTF-8 and as single bytes, because terminals may
 * obey either. */
void clv_text_sanitize_utf8(const char *text, clv_bytes *out) {
  uint32_t point;
  for (size_t n; *text; text += CLV_MAX(n, (size_t)1)) {
    n = clv_utf8_decode(text, SIZE_MAX, &point);
    bool line = *text == '\n' || *text == '\t';
    if (n && (line || !clv_is_control(point)))
      clv_bytes_add(out, text, n);
    else
      clv_bytes_puts(out, "?");
  }
}

const char *clv_bind_error_text(int error) {
  static const struct {
    int error;
    const char *text;
  } rows[] = {
      {EADDRINUSE, "Address already in use; `ss -ltnp` shows by whom"},
      {EADDRNOTAVAIL, "no interface of this host has that address; `ip addr` lists those it has"},
      {EACCES, "Permission denied; ports below 1024 are for root and for CAP_NET_BIND_SERVICE"},
  };
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (rows[i].error == error) return rows[i].text;
  return strerrordesc_np(error);
}

static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb) {
  size_t row[MAX_WORD_LEN + 1];
  for (size_t j = 0; j <= nb; j++) row[j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      size_t replace_cost =
          diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
      diagonal = row[j];
      row[j] = CLV_MIN(replace_cost, CLV_MIN(row[j], row[j - 1]) + 1);
    }
  }
  return row[nb];
}

const char *clv_did_you_mean(const char *word, const char *const *candidates, size_t n) {
  size_t len = strlen(word), least_distance = 4;
  const char *found = NULL;
  if (len > MAX_WORD_LEN) return NULL;
  for (size_t i = 0; i < n; i++) {
    size_t nc = strlen(candidates[i]);
    if (nc > MAX_WORD_LEN) continue;
    size_t d = edit_distance(word, len, candidates[i], nc), longer_len = CLV_MAX(len, nc);
    size_t max_distance = longer_len < 5 ? (longer_len + 1) / 2 : (longer_len + 2) / 3;
    /* in a word of up to three letters, two wrong ones count as a typing error ("rnu" for "run")
     * only if the first letter is right */
    if (longer_len < 4 &&
        tolower((unsigned char)word[0]) != tolower((unsigned char)candidates[i][0]))
      max_distance = 1;
    if (d < least_distance && d <= max_distance) {
      least_distance = d;
      found = candidates[i];
    }
  }
  return found;
}

typedef struct unit {
  const char *name;
  double factor;
} unit;

static clv_code parse_with_unit(const char *text, const unit *units, size_t n_units,
                                const char *what, uint64_t *ret, clv_err *err) {
  char *end;
  errno = 0;
  double value = strtod(text, &end);
  if (end == text || !isfinite(value) || value < 0 || !isdigit((unsigned char)text[0]))
    return clv_fail(err, CLV_INVALID, "'%s' is not a %s", text, what);
  while (*end == ' ') end++;
  for (size_t i = 0; i < n_units; i++) {
    if (strcmp(end, units[i].name) != 0) continue;
    double scaled = value * units[i].factor;
    if (scaled >= 9.2e18) return clv_fail(err, CLV_RANGE, "'%s' is too large", text);
    *ret = (uint64_t)(scaled + 0.5);
    return CLV_OK;
  }
  return clv_fail(err, CLV_INVALID, "'%s' is not a %s: unknown unit '%s'", text, what, end);
}

clv_code clv_parse_size(const char *text, uint64_t *ret_bytes, clv_err *err) {
  static const unit units[] = {
      {"", 1},
      {"B", 1},
      {"k", 1e3},
      {"K", 1e3},
      {"kB", 1e3},
      {"M", 1e6},
      {"MB", 1e6},
      {"G", 1e9},
      {"GB", 1e9},
      {"T", 1e12},
      {"TB", 1e12},
      {"Ki", 1024.0},
      {"KiB", 1024.0},
      {"Mi", 1048576.0},
      {"MiB", 1048576.0},
      {"Gi", 1073741824.0},
      {"GiB", 1073741824.0},
      {"Ti", 1099511627776.0},
      {"TiB", 1099511627776.0},
  };
  return parse_with_unit(text, units, CLV_COUNT(units), "size (try 64MiB)", ret_bytes, err);
}

clv_code clv_parse_duration(const char *text, uint64_t *ret_ms, clv_err *err) {
  static const unit units[] = {{"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"min", 6e4}, {"h", 3.6e6}};
  return parse_with_unit(text, units, CLV_COUNT(units), "duration (try 30s)", ret_ms, err);
}

char *clv_format_size(uint64_t bytes, char *buf, size_t len) {
  static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double v = (double)bytes;
  size_t i = 0;
  for (; v >= 1024 && i + 1 < CLV_COUNT(names); i++) v /= 1024;
  snprintf(buf, len, i == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, names[i]);
  return buf;
}

/* Escapes text for roff, where a line that begins with a dot or an apostrophe is a request, and a
 * backslash begins an escape. A plain '-' would be a hyphen, but text copied from a manual must
 * keep its dashes. */
void clv_bytes_add_roff(clv_bytes *b, const char *text) {
  for (const char *p = text; *p; p++) {
    bool is_line_start = p == text || p[-1] == '\n';
    if (is_line_start && (*p == '.' || *p == '\'')) clv_bytes_puts(b, "\\&");
    if (*p == '\\')
      clv_bytes_puts(b, "\\e");
    else if (*p == '-')
      clv_bytes_puts(b, "\\-");
    else if (*p == '\'')
      clv_bytes_puts(b, "\\(aq");
    else if (*p == '`')
      clv_bytes_puts(b, "\\(ga");
    else if (*p == '^')
      clv_bytes_puts(b, "\\(ha");
    else if (*p == '~')
      clv_bytes_puts(b, "\\(ti");
    else
      clv_bytes_add(b, p, 1);
  }
}

static uint64_t clock_ns(clockid_t id) {
  struct timespec ts;
  clock_gettime(id, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t clv_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t clv_wall_ms(void) { return clock_ns(CLOCK_REALTIME) / 1000000u; }
