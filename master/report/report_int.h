/* SPDX-License-Identifier: Apache-2.0
 *
 * A file that grows by whole pieces: a piece that does not fit on the disk is taken back, so that
 * what stands there can be read. Losing such a file's lines is no reason to lose a run: it is said
 * once, and later pieces are tried again.
 */
#ifndef CLEAVE_REPORT_INT_H
#define CLEAVE_REPORT_INT_H

#include <sys/types.h>

#include "master/report/report.h"

typedef struct clv_sink {
  int fd;      /* -1: none */
  off_t whole; /* bytes that stand there */
  bool warned;
  char *path;
  clv_notifier notice; /* set by whoever opened it */
} clv_sink;

typedef enum clv_sink_start {
  CLV_SINK_APPEND,
  CLV_SINK_EMPTY,
  CLV_SINK_NEW, /* CLV_EXISTS when it is there */
} clv_sink_start;

/* `path` is taken over, also on failure. */
clv_code clv_sink_open(char *path, clv_sink_start start, clv_sink *ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_sink_write(clv_sink *s, const void *data, size_t len);
void clv_sink_close(clv_sink *s); /* a zeroed one too, if its fd is -1 */

#endif
