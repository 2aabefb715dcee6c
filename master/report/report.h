/* SPDX-License-Identifier: Apache-2.0
 *
 * report: what a person sees while a run goes on, and the run's own records. A status line on a
 * terminal, one line per interval otherwise; metrics.jsonl holds one line per step. Traces of what each
 * node does and when, for chrome://tracing and Perfetto.
 *
 * Threads: one thread per reporter.
 */
#ifndef CLEAVE_REPORT_H
#define CLEAVE_REPORT_H

#include "common/base/base.h"

typedef struct clv_progress {
  uint64_t step, total_steps; /* total 0: unknown */
  uint64_t epoch;
  double loss, accuracy; /* accuracy < 0: not known */
  double grad_norm, lr;
  uint64_t samples; /* of this step */
  uint64_t wait_ns; /* of this step */
  uint64_t step_ns;
  uint64_t bytes_up, bytes_down; /* totals so far */
  bool applied;
} clv_progress;

typedef struct clv_reporter clv_reporter;

enum { CLV_JSON_NUMBER = 32 };

/* v with so many significant digits, or "null": JSON has no NaN and no infinity. Returns dst. */
const char *clv_json_number(double v, int digits, char dst[CLV_JSON_NUMBER]);

/* run_dir holds metrics.jsonl; lines of steps after `keep_step` are dropped from it, so that a
 * resumed run's log is the one an undisturbed run would have. every: steps between printed lines. */
clv_code clv_reporter_open(const char *run_dir, uint64_t keep_step, uint64_t every, bool json,
                           clv_reporter **ret, clv_err *err) CLV_USE_RESULT;
/* Ends the status line. NULL is allowed. */
void clv_reporter_close(clv_reporter *r);
clv_code clv_reporter_step(clv_reporter *r, const clv_progress *p, clv_err *err) CLV_USE_RESULT;
/* A line of its own on standard output; `json` form when the reporter prints JSON. */
void clv_reporter_say(clv_reporter *r, const char *text, const char *json);

/* ---- traces ------------------------------------------------------------------------------------ */

/* What a node did, or a tensor on its way from one. */
typedef struct clv_trace_slice {
  const char *name, *phase; /* "F3", "forward" */
  uint32_t node, stage, micro_batch;
  uint64_t step, begin_ns, end_ns;
  uint64_t bytes, version; /* 0: not said */
} clv_trace_slice;

typedef struct clv_trace clv_trace;

clv_code clv_trace_open(const char *path, clv_trace **ret, clv_err *err) CLV_USE_RESULT;
/* Writes the end; what could not be written is an error here. Frees it whatever is returned; NULL is
 * allowed. */
clv_code clv_trace_close(clv_trace *t, clv_err *err) CLV_USE_RESULT;
void clv_trace_free(clv_trace *t); /* as it is */

void clv_trace_node(clv_trace *t, uint32_t node, const char *name); /* once each, first */
void clv_trace_compute(clv_trace *t, const clv_trace_slice *s);
void clv_trace_transfer(clv_trace *t, const clv_trace_slice *s);

#endif
