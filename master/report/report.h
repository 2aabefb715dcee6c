/* SPDX-License-Identifier: Apache-2.0
 *
 * report: what a person sees while a run goes on, and the run's own records. A status line on a
 * terminal, one line per interval otherwise, kept in log.txt and log.jsonl. Of each step
 * metrics.jsonl has what was learned, which does not depend on where or how fast, and pace.jsonl
 * how fast; evaluations.jsonl has the evaluations. Event files give the same numbers to
 * TensorBoard. Traces of what each node does and when, for chrome://tracing and Perfetto. What
 * workers hold and do, drawn for a terminal or as JSON lines.
 *
 * Threads: one thread per reporter.
 */
#ifndef CLEAVE_REPORT_H
#define CLEAVE_REPORT_H

#include "common/base/base.h"

/* ---- what was printed ------------------------------------------------------------------------ */

#define CLV_JOURNAL_TEXT "log.txt"
#define CLV_JOURNAL_JSON "log.jsonl"

typedef struct clv_journal clv_journal;

/* The run folder's log.txt and log.jsonl; append: behind what an earlier attempt printed. notice:
 * told once of a disk that fills up later. */
clv_code clv_journal_open(const char *run_dir, bool append, clv_notifier notice, clv_journal **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_journal_close(clv_journal *j); /* NULL is allowed */
void clv_journal_closep(clv_journal **j);
/* A line of text and its JSON form. A NULL journal keeps nothing. */
void clv_journal_add(clv_journal *j, const char *text, const char *json_line);

/* A JSON line: the object `json` with time and level in front, or the text as an event of its own
 * (json NULL). */
void clv_report_json(clv_bytes *out, clv_log_level level, const char *text, const char *json);

/* Prints a line, as JSON or text, and keeps both in the journal, which may be NULL. */
void clv_report_notice(clv_journal *j, bool print_json, const char *text, const char *json);

/* ---- event files ----------------------------------------------------------------------------- */

typedef struct clv_scalar {
  const char *tag;
  double value; /* written as f32 */
} clv_scalar;

/* One file of TensorBoard's. Records wait in memory for a flush; what the disk has no room for is
 * warned of once. NULL is allowed everywhere but in _open. */
typedef struct clv_event_file clv_event_file;

/* A new file in `folder`, which is made. What older files there have of `step` and later is
 * void. */
clv_code clv_event_file_open(const char *folder, uint64_t step, clv_notifier notice,
                             clv_event_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_event_file_add_scalars(clv_event_file *e, uint64_t step, const clv_scalar *list, size_t n);
void clv_event_file_add_text(clv_event_file *e, uint64_t step, const char *tag,
                             const char *markdown);
void clv_event_file_flush(clv_event_file *e);
void clv_event_file_close(clv_event_file *e); /* flushes */
void clv_event_file_closep(clv_event_file **e);

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct clv_progress {
  uint64_t step, total_steps; /* total 0: unknown */
  uint64_t epoch;
  double loss, accuracy; /* accuracy < 0: not known */
  double grad_norm, lr;
  uint64_t samples; /* of this step */
  uint64_t wait_ns; /* of this step */
  uint64_t step_ns;
  uint64_t bytes_up, bytes_down; /* totals so far */
  uint64_t step_up, step_down;   /* bytes of this step */
  bool applied;
} clv_progress;

typedef struct clv_evaluation {
  const char *what; /* "validation", "test" */
  uint64_t step, epoch, samples;
  uint64_t places;       /* that have a label; 0: one for each sample */
  double loss, accuracy; /* accuracy < 0: not known */
  const char *scores;    /* a JSON object of all that was asked for; NULL: nothing was */
  /* [n_scalars] of them that are numbers, by name ("f1_macro"): for event files */
  const clv_scalar *scalars;
  size_t n_scalars;
} clv_evaluation;

typedef struct clv_reporter clv_reporter;

enum { CLV_JSON_NUMBER = 32, CLV_DURATION_TEXT = 24 };

/* "40s", "3m20s", "2h05m"; "" for what is not known: negative, not finite, too far. Returns dst. */
const char *clv_format_duration(double s, char dst[CLV_DURATION_TEXT]);

/* v by a format such as "%.4f", or nan, inf, -inf: nan has no sign for people. Returns dst. */
const char *clv_format_number(const char *format, double v, char dst[CLV_JSON_NUMBER]);

/* v with so many significant digits, or "null": JSON has no NaN and no infinity. Returns dst. */
const char *clv_json_number(double v, int digits, char dst[CLV_JSON_NUMBER]);

typedef struct clv_report_options {
  const char
      *run_dir;       /* of the .jsonl files: lines of steps after keep_step are dropped, so that */
  uint64_t keep_step; /* a resumed run's are those an undisturbed run would have */
  bool resumed;       /* also with a keep_step of 0 */
  uint64_t every;     /* steps between printed lines */
  bool json;          /* print JSON */
  clv_journal *journal;    /* borrowed; may be NULL */
  clv_notifier notice;     /* told once of a disk that is full */
  const char *tensorboard; /* folder of event files; NULL: none */
  const char *about;       /* the session, for TensorBoard; may be NULL */
} clv_report_options;

clv_code clv_reporter_open(const clv_report_options *o, clv_reporter **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Ends the status line. NULL is allowed. */
void clv_reporter_close(clv_reporter *r);
clv_code clv_reporter_step(clv_reporter *r, const clv_progress *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_reporter_evaluation(clv_reporter *r, const clv_evaluation *e,
                                 clv_err *err) CLV_USE_RESULT;
/* A line of its own on standard output. When the reporter prints JSON: the object `json` with the
 * time added, or the text as an event of its own (json NULL). */
void clv_reporter_notice(clv_reporter *r, const char *text, const char *json);

/* ---- traces ---------------------------------------------------------------------------------- */

/* What a node did, or a tensor on its way from one. */
typedef struct clv_trace_slice {
  const char *name, *phase; /* "F3", "forward" */
  uint32_t node, stage, micro_batch;
  uint64_t step, begin_ns, end_ns;
  uint64_t bytes, version; /* 0: not said */
} clv_trace_slice;

typedef struct clv_trace clv_trace;

clv_code clv_trace_open(const char *path, clv_trace **ret, clv_err *err) CLV_USE_RESULT;
/* Writes the end; what could not be written is an error here. Frees it whatever is returned; NULL
 * is allowed. */
clv_code clv_trace_close(clv_trace *t, clv_err *err) CLV_USE_RESULT;
void clv_trace_free(clv_trace *t); /* as it is */

void clv_trace_node(clv_trace *t, uint32_t node, const char *name); /* once each, first */
void clv_trace_compute(clv_trace *t, const clv_trace_slice *s);
void clv_trace_transfer(clv_trace *t, const clv_trace_slice *s);

/* ---- the status of workers ---------------------------------------------------------------------
 *
 * What a worker shows of itself, and how it has changed since its answer before. Shares are of the
 * time between the two, 0 to 1. In and out are as the worker sees it. Texts may be anything: they
 * are made harmless where they are drawn. Nothing here is owned. */

typedef struct clv_status_last_error {
  const char *text; /* NULL or "": nothing went wrong */
  double age_s;
} clv_status_last_error;

typedef struct clv_status_link {
  const char *peer; /* name of the worker at its other end; "": the master */
  uint64_t bytes_in, bytes_out;
  double in_per_s, out_per_s;           /* bytes */
  double round_trip_s;                  /* 0: not known yet */
  uint64_t frames_in, frames_out;       /* on their way, as the following */
  uint64_t tensors_in, tensors_out;     /* large ones */
  uint64_t missing_in, missing_out;     /* bytes of these */
  double receiving, sending;            /* shares in which large tensors were on their way */
  double link_in_per_s, link_out_per_s; /* bytes, while they were; 0: none were */
  double awaited; /* share in which there was nothing to compute until something came */
  double awaits_per_s;
} clv_status_link;

typedef struct clv_status_module {
  uint32_t index;
  const char *name;   /* what its program calls it; NULL: not known */
  const char *device; /* that computes it; "": not known */
  bool is_stage;      /* of the session file, under this name */
  uint64_t steps, forwards, backwards, evals;
  double calls_per_s, computing; /* forwards, backwards and evaluations; share spent in kernels */
} clv_status_module;

typedef struct clv_status_session {
  const char *name, *identity;
  char id[33]; /* hexadecimal */
  uint64_t epoch;
  double age_s;
  bool attached;
  uint64_t contexts, values, calls_waiting, late_frames;
  uint64_t references, references_used,
      references_pending; /* kept there; handles; not settled yet */
  uint64_t bytes_in, bytes_out, memory, memory_limit;
  /* shares: computing, nothing to compute, other sessions before it */
  double busy, idle, for_cores;
  uint32_t n_modules, n_links;
  clv_status_module *modules;
  clv_status_link *links; /* the master's first */
  clv_status_last_error last_error;
} clv_status_session;

typedef struct clv_status_device {
  const char *name, *kind, *isa;
  uint64_t memory, memory_limit; /* of all sessions; 0: no limit */
  uint64_t total;                /* bytes of its own; 0: it computes in the host's */
} clv_status_device;

typedef struct clv_status_worker {
  const char *name, *address; /* in the session file */
  bool asked;                 /* false: the first answer has not come yet, nor an error */
  const char *error, *fix;    /* it does not answer; NULL: it does */
  bool refused;               /* it is there, and does not want us */
  const char *said, *software, *device, *isa; /* its own name, ... */
  uint32_t protocol, cores;
  double uptime_s, over_s; /* over_s: between the two answers */
  bool draining, sees_all;
  uint64_t memory, memory_limit, session_limit;
  uint32_t open_sessions, max_sessions, left_out;
  /* Known if it sees all: */
  uint64_t resident, handshake_failures;
  uint32_t connections, max_connections;
  bool has_certificate;
  double certificate_days; /* left */
  clv_status_last_error last_error;
  uint32_t n_sessions, n_devices;
  clv_status_session *sessions;
  clv_status_device *devices;
} clv_status_worker;

typedef struct clv_status_view {
  const char *title; /* of the session file */
  const char *clock; /* "19:42:07" */
  uint32_t n_workers;
  clv_status_worker *workers;
} clv_status_view;

/* What slows a session down and why, in one line of words. */
void clv_status_diagnosis(const clv_status_view *view, const clv_status_worker *w,
                          const clv_status_session *s, clv_bytes *out);

/* Lines of at most `width` columns (20 at least), of printable ASCII alone. */
void clv_status_text(const clv_status_view *view, unsigned width, clv_bytes *out);
/* The same without what each holds: names, diagnoses, errors. */
void clv_status_brief(const clv_status_view *view, unsigned width, clv_bytes *out);

/* One JSON object per worker, a line each. */
void clv_status_json(const clv_status_view *view, clv_bytes *out);

/* Texts on standard output. over: on a terminal each is drawn over the one before; else, and
 * elsewhere, one behind the other. */
typedef struct clv_screen clv_screen;

clv_code clv_screen_open(bool over, clv_screen **ret, clv_err *err) CLV_USE_RESULT;
bool clv_screen_is_terminal(const clv_screen *s);
unsigned clv_screen_width(const clv_screen *s);
/* brief: drawn over instead, where text has more lines than the terminal. */
void clv_screen_draw(clv_screen *s, const clv_bytes *text, const clv_bytes *brief);
/* The terminal is as it was, with the last text on it. NULL is allowed. */
void clv_screen_close(clv_screen *s);

#endif
