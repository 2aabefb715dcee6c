/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sink: a file to which complete pieces (lines or events) are appended. If a piece cannot be
 * written completely, the file is truncated to its old length, so that it stays readable. A failed
 * write never ends a run: the first one is reported to `notifier`, and later pieces are tried
 * again. The journal and the event files use sinks.
 */
#ifndef CLEAVE_REPORT_INT_H
#define CLEAVE_REPORT_INT_H

#include <sys/types.h>

#include "master/report/report.h"

typedef struct clv_sink {
  int fd; /* descriptor of the file; -1: not open, or closed because truncating the file failed */
  off_t complete_bytes; /* length of the file up to the last complete piece */
  bool has_warned;      /* a failed write was reported */
  char *path;
  clv_notifier notifier; /* set by the caller of clv_sink_open */
} clv_sink;

/* How clv_sink_open treats an existing file. */
typedef enum clv_sink_start {
  CLV_SINK_APPEND, /* keeps its contents */
  CLV_SINK_EMPTY,  /* deletes its contents */
  CLV_SINK_NEW,    /* fails with CLV_EXISTS */
} clv_sink_start;

/* Opens a file, or creates it. Takes ownership of `path`, also on failure; NULL fails with
 * CLV_EXHAUSTED. */
clv_code clv_sink_open(char *path, clv_sink_start start, clv_sink *ret,
                       clv_err *err) CLV_USE_RESULT;
/* Appends a piece. Does nothing if the file is not open. */
void clv_sink_write(clv_sink *s, const void *data, size_t len);
void clv_sink_close(clv_sink *s); /* closes the file; allowed for a zeroed sink whose fd is -1 */

#endif
