/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files that draw the status of workers: the diagnosis (diagnosis.c), the text
 * (status_text.c), the wrapping of its lines (line_wrap.c) and the JSON (status_json.c).
 */
#ifndef CLEAVE_STATUS_TEXT_INT_H
#define CLEAVE_STATUS_TEXT_INT_H

#include "master/report/report.h"

/* bytes of a text of status_format_time or status_format_rate, with its NUL */
enum { STATUS_TEXT_BYTES = 32 };

/* A peer that has not answered a PING for this many seconds counts as silent. */
#define STATUS_SILENCE_S 1.0

int to_percent(double share); /* returns 100 * share, rounded and limited to 0..100; 0 for NaN */
/* status_format_time makes "0.4 ms", "82 ms", "12 s", "3 min", "2 h 13 min" or "41 days";
 * status_format_rate makes "12 Mbit/s", in bits. Both return dst. */
const char *status_format_time(double seconds, char dst[STATUS_TEXT_BYTES]);
const char *status_format_rate(double bytes_per_s, char dst[STATUS_TEXT_BYTES]);

/* Returns the word that stands before the name of a module in texts: "stage" or "module". */
const char *status_module_kind(const clv_status_module *m);

/* True if the session has no work: no contexts, no calls, hardly any computing. */
bool status_is_idle(const clv_status_session *s);

/* ---- lines of a limited width (line_wrap.c) -------------------------------------------------- */

/* Writes lines of a limited width. Two blanks separate items, one blank separates words. An item or
 * word that does not fit begins the next line, indented further. An item wider than a line is
 * broken at its blanks, a word wider than a line at its end. All characters that are not printable
 * ASCII are replaced. */
typedef struct clv_line_wrap {
  clv_bytes *out;
  /* in columns: limit of a line, blanks before the first item, characters in the line so far */
  unsigned width, indent, column;
  bool is_brief; /* the caller draws only name, diagnosis and last error of a session */
} clv_line_wrap;

void status_begin_line(clv_line_wrap *f, unsigned indent);
void status_add_item(clv_line_wrap *f, const char *fmt, ...) CLV_PRINTF(2, 3);
void status_add_words(clv_line_wrap *f, const char *text);
void status_end_line(clv_line_wrap *f);

#endif
