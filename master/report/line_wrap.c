/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes lines of a limited width for status_text.c, and formats times and rates.
 */
#include <stdio.h>
#include <string.h>

#include "master/report/status_text_int.h"

enum { MAX_ITEM_BYTES = 700, WRAP_INDENT = 4 };

int to_percent(double share) {
  return (int)(100 * CLV_MIN(CLV_MAX(share, 0.0), 1.0) + 0.5); /* CLV_MAX turns a NaN into 0 */
}

const char *status_module_kind(const clv_status_module *m) {
  return m->is_stage ? "stage" : "module";
}

const char *status_format_time(double s, char dst[STATUS_TEXT_BYTES]) {
  s = CLV_MIN(CLV_MAX(s, 0.0), 1e12);
  unsigned long long whole_seconds = (unsigned long long)s;
  if (s < 0.0995)
    snprintf(dst, STATUS_TEXT_BYTES, s < 0.00995 ? "%.1f ms" : "%.0f ms", 1e3 * s);
  else if (s < 0.995)
    snprintf(dst, STATUS_TEXT_BYTES, "%.0f ms", 1e3 * s);
  else if (s < 120)
    snprintf(dst, STATUS_TEXT_BYTES, s < 9.95 ? "%.1f s" : "%.0f s", s);
  else if (s < 7200)
    snprintf(dst, STATUS_TEXT_BYTES, "%llu min", whole_seconds / 60);
  else if (s < 2 * 86400)
    snprintf(dst, STATUS_TEXT_BYTES, "%llu h %llu min", whole_seconds / 3600,
             whole_seconds / 60 % 60);
  else
    snprintf(dst, STATUS_TEXT_BYTES, "%llu days", whole_seconds / 86400);
  return dst;
}

const char *status_format_rate(double bytes_per_s, char dst[STATUS_TEXT_BYTES]) {
  double bits = 8 * CLV_MIN(CLV_MAX(bytes_per_s, 0.0), 1e15);
  static const struct {
    double unit;
    const char *name;
  } units[] = {{1e9, "Gbit/s"}, {1e6, "Mbit/s"}, {1e3, "kbit/s"}, {1, "bit/s"}};
  size_t i = 0;
  while (i + 1 < CLV_COUNT(units) && bits < units[i].unit) i++;
  double v = bits / units[i].unit;
  snprintf(dst, STATUS_TEXT_BYTES, v < 9.95 && i < 3 ? "%.1f %s" : "%.0f %s", v, units[i].name);
  return dst;
}

/* ---- lines of a limited width ---------------------------------------------------------------- */

void status_begin_line(clv_line_wrap *f, unsigned indent) {
  f->indent = indent;
  f->column = 0;
}

void status_end_line(clv_line_wrap *f) {
  clv_bytes_puts(f->out, "\n");
  f->column = 0;
}

static void begin_wrapped_line(clv_line_wrap *f, unsigned indent) {
  clv_bytes_printf(f->out, "%*s", (int)indent, "");
  f->column = indent;
}

static void next_line(clv_line_wrap *f) {
  clv_bytes_puts(f->out, "\n");
  begin_wrapped_line(f, f->indent + WRAP_INDENT);
}

/* Writes n_blanks blanks and `len` bytes of text, on the next line if they do not fit. A text wider
 * than a line is cut into several lines. */
static void put_word(clv_line_wrap *f, unsigned n_blanks, const char *text, size_t len) {
  if (!f->column)
    begin_wrapped_line(f, f->indent);
  else if (f->column + n_blanks + len > f->width) {
    next_line(f);
  } else {
    clv_bytes_printf(f->out, "%*s", (int)n_blanks, "");
    f->column += n_blanks;
  }
  while (f->column + len > f->width) {
    size_t n_fitting_bytes = f->width - f->column;
    clv_bytes_add(f->out, text, n_fitting_bytes);
    next_line(f);
    text += n_fitting_bytes;
    len -= n_fitting_bytes;
  }
  clv_bytes_add(f->out, text, len);
  f->column += (unsigned)len;
}

/* Writes a text word by word, with n_blanks blanks before the first word. */
static void put_words(clv_line_wrap *f, unsigned n_blanks, const char *text) {
  for (const char *end; *text; text = end) {
    text += strspn(text, " ");
    end = text + strcspn(text, " ");
    if (end == text) continue;
    put_word(f, n_blanks, text, (size_t)(end - text));
    n_blanks = 1;
  }
}

void status_add_item(clv_line_wrap *f, const char *fmt, ...) {
  char text[MAX_ITEM_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  clv_text_to_printable(text);
  size_t len = strlen(text);
  bool fits_line = f->indent + WRAP_INDENT + len <= f->width;
  if (fits_line && len) put_word(f, 2, text, len);
  if (fits_line) return;
  if (f->column) next_line(f); /* the line break shows that a new item begins */
  put_words(f, 0, text);
}

void status_add_words(clv_line_wrap *f, const char *text) {
  char copy[MAX_ITEM_BYTES];
  snprintf(copy, sizeof copy, "%s", text);
  clv_text_to_printable(copy);
  put_words(f, 1, copy);
}
