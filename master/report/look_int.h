/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that draw a look share.
 */
#ifndef CLEAVE_LOOK_INT_H
#define CLEAVE_LOOK_INT_H

#include "master/report/report.h"

enum { LOOK_SHORT = 32 };

/* Seconds without an answer to a PING from which it is no round trip any more but silence. */
#define LOOK_SILENCE 1.0

int look_percent(double share); /* 0..100 */
/* "0.4 ms", "82 ms", "12 s", "3 min", "2 h 13 min", "41 days"; "12 Mbit/s". Return dst. */
const char *look_time(double seconds, char dst[LOOK_SHORT]);
const char *look_rate(double bytes_per_s, char dst[LOOK_SHORT]);

/* "stage", "module": what goes before its name. */
const char *look_kind(const clv_look_module *m);

/* Nothing is asked of it. */
bool look_is_idle(const clv_look_session *s);

/* ---- lines of a width (flow.c) --------------------------------------------------------------- */

/* Items follow each other two blanks apart, words one; what does not fit begins the next line,
 * further in. An item that is wider than such a line is cut at its blanks, a word at the edge. Only
 * printable ASCII gets through. */
typedef struct look_flow {
  clv_bytes *out;
  unsigned width, indent, at; /* columns; at 0: the line is empty */
  bool brief;                 /* of a session its name and verdict alone */
} look_flow;

void look_begin(look_flow *f, unsigned indent);
void look_item(look_flow *f, const char *fmt, ...) CLV_PRINTF(2, 3);
void look_words(look_flow *f, const char *text);
void look_end(look_flow *f);

#endif
