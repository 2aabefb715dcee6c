/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that draw the status of workers share.
 */
#ifndef CLEAVE_STATUS_TEXT_INT_H
#define CLEAVE_STATUS_TEXT_INT_H

#include "master/report/report.h"

enum { STATUS_TEXT_BYTES = 32 };

/* Seconds without an answer to a PING from which it is no round trip any more but silence. */
#define STATUS_SILENCE_S 1.0

int status_percent(double share); /* 0..100 */
/* "0.4 ms", "82 ms", "12 s", "3 min", "2 h 13 min", "41 days"; "12 Mbit/s". Return dst. */
const char *status_format_time(double seconds, char dst[STATUS_TEXT_BYTES]);
const char *status_format_rate(double bytes_per_s, char dst[STATUS_TEXT_BYTES]);

/* "stage", "module": what goes before its name. */
const char *status_module_kind(const clv_status_module *m);

/* Nothing is asked of it. */
bool status_is_idle(const clv_status_session *s);

/* ---- lines of a width (line_wrap.c) ---------------------------------------------------------- */

/* Items follow each other two blanks apart, words one; what does not fit begins the next line,
 * further in. An item that is wider than such a line is cut at its blanks, a word at the edge. Only
 * printable ASCII gets through. */
typedef struct clv_line_wrap {
  clv_bytes *out;
  unsigned width, indent, at; /* columns; at 0: the line is empty */
  bool brief;                 /* of a session its name and diagnosis alone */
} clv_line_wrap;

void status_begin_line(clv_line_wrap *f, unsigned indent);
void status_add_item(clv_line_wrap *f, const char *fmt, ...) CLV_PRINTF(2, 3);
void status_add_words(clv_line_wrap *f, const char *text);
void status_end_line(clv_line_wrap *f);

#endif
