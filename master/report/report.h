/* SPDX-License-Identifier: Apache-2.0
 *
 * report: the output of the master. While a run trains, the reporter prints a status line on a
 * terminal, or one line per interval elsewhere, and the journal keeps the lines in log.txt and
 * log.jsonl. For each step, metrics.jsonl has the results, which do not depend on machines or
 * speed, and pace.jsonl has the speed. evaluations.jsonl has the evaluations. Event files give the
 * same numbers to TensorBoard. A trace records what each node does and when, for chrome://tracing
 * and Perfetto. `status` draws the state of workers for a terminal or as JSON lines.
 *
 * Threads: one thread per reporter.
 */
#ifndef CLEAVE_REPORT_H
#define CLEAVE_REPORT_H

#include "common/base/base.h"

/* ---- the journal: a copy of what was printed ------------------------------------------------- */

#define CLV_JOURNAL_TEXT "log.txt"
#define CLV_JOURNAL_JSON "log.jsonl"

typedef struct clv_journal clv_journal;

/* Opens log.txt and log.jsonl in the run folder. appends: adds to the lines of earlier attempts;
 * false: drops these lines. notifier: receives the first write error of each file. */
clv_code clv_journal_open(const char *run_dir, bool appends, clv_notifier notifier,
                          clv_journal **ret, clv_err *err) CLV_USE_RESULT;
void clv_journal_close(clv_journal *j); /* NULL is allowed */
void clv_journal_closep(clv_journal **j);
/* Adds a line of text and its JSON form. Does nothing if the journal is NULL. */
void clv_journal_add(clv_journal *j, const char *text, const char *json_line);

/* Appends to `out` the JSON object `json` with the members time and level before its own members.
 * json NULL: appends an object of the event "note" with the text. */
void clv_report_json(clv_bytes *out, clv_log_level level, const char *text, const char *json);

/* Prints a line on standard output, as JSON or as text, and adds both forms to the journal, which
 * may be NULL. */
void clv_report_notice(clv_journal *j, bool print_json, const char *text, const char *json);

/* ---- event files ----------------------------------------------------------------------------- */

/* A named number, one point of a curve in TensorBoard. */
typedef struct clv_scalar {
  const char *tag; /* name, such as "train/loss" */
  double value;    /* written as f32 */
} clv_scalar;

/* An event file of TensorBoard. Events stay in memory until a flush. Only the first failed write is
 * reported, to `notifier`. All functions except _open accept NULL. */
typedef struct clv_event_file clv_event_file;

/* Creates a new event file in `folder`, which is created if needed. The file tells TensorBoard to
 * ignore the events that older files of the folder have for `step` and later steps. */
clv_code clv_event_file_open(const char *folder, uint64_t step, clv_notifier notifier,
                             clv_event_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_event_file_add_scalars(clv_event_file *e, uint64_t step, const clv_scalar *scalars,
                                size_t n);
void clv_event_file_add_text(clv_event_file *e, uint64_t step, const char *tag,
                             const char *markdown);
void clv_event_file_flush(clv_event_file *e);
void clv_event_file_close(clv_event_file *e); /* flushes the events in memory and frees e */
void clv_event_file_closep(clv_event_file **e);

/* ---- progress of a run ----------------------------------------------------------------------- */

/* Results of one training step. */
typedef struct clv_progress {
  /* number of this step, from 1; number of steps of the run, 0: unknown */
  uint64_t step, total_steps;
  uint64_t epoch;                          /* index of the epoch, from 0 */
  double loss, accuracy;                   /* accuracy < 0: unknown */
  double grad_norm, lr;                    /* norm of all gradients; learning rate */
  uint64_t n_samples;                      /* samples of this step */
  uint64_t wait_ns;                        /* time that the master waited in this step */
  uint64_t step_ns;                        /* duration of this step */
  uint64_t bytes_up, bytes_down;           /* bytes sent and received in the attempt so far */
  uint64_t step_bytes_up, step_bytes_down; /* bytes sent and received in this step */
  bool changed_weights; /* the step changed the weights; false: loss or gradient was not finite */
} clv_progress;

/* Results of one evaluation. */
typedef struct clv_evaluation {
  const char *dataset; /* "validation" or "test" */
  uint64_t step, epoch, n_samples;
  /* number of labelled predictions, such as tokens or pixels; 0: one per sample */
  uint64_t n_labelled;
  double loss, accuracy;   /* accuracy < 0: unknown */
  const char *scores_json; /* a JSON object of the requested scores; NULL: none were requested */
  const char *curves_json; /* a JSON object of curves, for evaluations.jsonl; NULL: none */
  /* [n_scalars] scores that are single numbers, by name ("f1_macro"), for event files */
  const clv_scalar *scalars;
  size_t n_scalars;
} clv_evaluation;

typedef struct clv_reporter clv_reporter;

/* sizes in bytes of the texts that the functions below write */
enum { CLV_JSON_NUMBER_BYTES = 32, CLV_DURATION_TEXT_BYTES = 24 };

/* Formats s seconds: "40s", "3m20s", "2h05m"; "" if s is negative, not finite or 1e9 or more.
 * Returns dst. */
const char *clv_format_duration(double s, char dst[CLV_DURATION_TEXT_BYTES]);

/* Formats v by a format such as "%.4f", or as nan (without a sign), inf or -inf. Returns dst. */
const char *clv_format_number(const char *format, double v, char dst[CLV_JSON_NUMBER_BYTES]);

/* Formats v with `digits` significant digits; "null" for NaN and infinity, which JSON lacks.
 * Returns dst. */
const char *clv_json_number(double v, int digits, char dst[CLV_JSON_NUMBER_BYTES]);

typedef struct clv_report_options {
  const char *run_dir; /* folder of the .jsonl files */
  /* last step whose lines stay when the files are opened, so that the files of a resumed run equal
   * those of an uninterrupted one; 0: no line stays */
  uint64_t last_kept_step;
  bool is_resumed;                /* the run continues, possibly from step 0 */
  uint64_t steps_per_line;        /* steps between printed lines; 0 means 1 */
  bool prints_json;               /* prints JSON lines instead of text */
  clv_journal *journal;           /* owned by the caller; may be NULL */
  clv_notifier notifier;          /* receives failed writes of event files and of lines */
  const char *tensorboard_folder; /* folder of event files; NULL: none */
  const char *session_text;       /* text of the session, shown by TensorBoard; may be NULL */
} clv_report_options;

clv_code clv_reporter_open(const clv_report_options *o, clv_reporter **ret,
                           clv_err *err) CLV_USE_RESULT;
/* Writes all lines of the .jsonl files to the disk (fsync). CLV_PRECONDITION: that failed. */
clv_code clv_reporter_sync(clv_reporter *r, clv_err *err) CLV_USE_RESULT;
/* Ends the status line, closes the files and frees r. NULL is allowed. */
void clv_reporter_close(clv_reporter *r);
/* Reports a step: writes its lines and scalars, and prints a line if one is due. */
clv_code clv_reporter_step(clv_reporter *r, const clv_progress *p, clv_err *err) CLV_USE_RESULT;
/* Reports an evaluation: writes its line and its scalars. Prints nothing. */
clv_code clv_reporter_evaluation(clv_reporter *r, const clv_evaluation *e,
                                 clv_err *err) CLV_USE_RESULT;
/* Ends the status line, prints another line on standard output and adds it to the journal. A
 * reporter that prints JSON prints the object of clv_report_json. */
void clv_reporter_notice(clv_reporter *r, const char *text, const char *json);

/* ---- traces of computations and transfers ---------------------------------------------------- */

/* A computation of a node, or the transfer of a tensor from a node. */
typedef struct clv_trace_slice {
  const char *name, *phase;          /* such as "F3" and "forward" */
  uint32_t node, stage, micro_batch; /* indices, from 0; node: as in clv_trace_name_node */
  uint64_t step, begin_ns, end_ns;   /* times of the master's monotonic clock */
  uint64_t bytes, version; /* size of the tensor, version of the weights; 0: not recorded */
} clv_trace_slice;

typedef struct clv_trace clv_trace;

clv_code clv_trace_open(const char *path, clv_trace **ret, clv_err *err) CLV_USE_RESULT;
/* Ends the file and frees t, also on failure. Fails if any write since _open has failed. NULL is
 * allowed. */
clv_code clv_trace_close(clv_trace *t, clv_err *err) CLV_USE_RESULT;
void clv_trace_free(clv_trace *t); /* frees t without ending the file; NULL is allowed */

/* Gives a node its name in the trace. Call it once per node, before adding slices of the node. */
void clv_trace_name_node(clv_trace *t, uint32_t node, const char *name);
/* Adds a slice to the trace: _compute a computation, _transfer the transfer of a tensor. */
void clv_trace_add_compute(clv_trace *t, const clv_trace_slice *s);
void clv_trace_add_transfer(clv_trace *t, const clv_trace_slice *s);

/* ---- the status of workers ---------------------------------------------------------------------
 *
 * The state in a worker's newest answer, and its change since the answer before. master/watch fills
 * these structs. Shares are parts of the time between the two answers, 0 to 1. "In" and "out" are
 * as seen by the worker: in is received. Texts are untrusted, and the functions below sanitize the
 * texts. No struct owns memory.
 */

typedef struct clv_status_last_error {
  const char *text; /* NULL or "": there was no error */
  double age_s;     /* seconds since the error */
} clv_status_last_error;

/* A link of a session at a worker. */
typedef struct clv_status_link {
  const char *peer;                       /* name of the worker at the other end; "": the master */
  uint64_t bytes_in, bytes_out;           /* bytes received and sent since the link was made */
  double bytes_in_per_s, bytes_out_per_s; /* bytes received and sent per second */
  double round_trip_s;                    /* round-trip time; 0: not measured yet */
  /* number of received frames that wait to be handled; number of frames that wait to be sent */
  uint64_t frames_in, frames_out;
  uint64_t tensors_in, tensors_out; /* number of large tensors (in chunks) in flight */
  /* bytes of large tensors that are still to be received, and to be sent */
  uint64_t missing_bytes_in, missing_bytes_out;
  /* shares of the time in which large tensors were received, and in which they were sent */
  double receiving_share, sending_share;
  /* bytes per second while large tensors were in flight, in and out; 0: none was in flight */
  double transfer_bytes_in_per_s, transfer_bytes_out_per_s;
  /* share of the time that the session spent in waits that a packet of this link ended */
  double waiting_share;
  double waits_per_s; /* number of waits per second that a packet of this link ended */
  uint64_t n_outages; /* number of outages that the link has survived */
  /* seconds since the last outage ended; length of that outage in seconds */
  double last_outage_age_s, last_outage_s;
  /* seconds since the link lost one of its connections; 0: no connection is lost */
  double outage_s;
} clv_status_link;

/* A module of a session at a worker. */
typedef struct clv_status_module {
  uint32_t index;     /* index of the module in the session; stages are numbered in their order */
  const char *name;   /* name that the program gave the module; NULL: unknown */
  const char *device; /* device that computes the module; "": unknown */
  bool is_stage;      /* the module is the stage `name` of the session file */
  /* numbers of steps, forwards, backwards and evaluations so far */
  uint64_t n_steps, n_forwards, n_backwards, n_evals;
  double calls_per_s;     /* forwards, backwards and evaluations per second */
  double computing_share; /* share of the time that the module's kernels computed */
} clv_status_module;

/* The part of a session that is at a worker. */
typedef struct clv_status_session {
  const char *name, *identity; /* name of the session; identity of the program that opened it */
  char id[33];                 /* session id, hexadecimal */
  uint64_t epoch;              /* number of the attempt that the session belongs to, from 1 */
  double age_s;
  bool is_attached; /* its master is connected */
  /* numbers of contexts, of stored values, of calls that wait for values, of frames that came for
   * contexts that had ended */
  uint64_t n_contexts, n_values, n_waiting_calls, n_late_frames;
  uint64_t n_kept_references; /* number of values that the worker keeps for other nodes */
  uint64_t n_used_references; /* number of handles on values of other nodes */
  /* number of messages about references that are not acknowledged yet */
  uint64_t n_pending_references;
  /* bytes received; bytes sent; bytes of memory in use; limit of the memory */
  uint64_t bytes_in, bytes_out, memory, memory_limit;
  /* shares of the time: computing; without work; waiting while other sessions use the cores */
  double busy_share, idle_share, core_wait_share;
  uint32_t n_modules, n_links;
  clv_status_module *modules;
  clv_status_link *links; /* the link to the master first */
  clv_status_last_error last_error;
} clv_status_session;

/* A device of a worker. */
typedef struct clv_status_device {
  const char *name, *kind, *isa; /* such as "cuda:0", "H200", "sm_90"; texts of the worker */
  uint64_t memory, memory_limit; /* bytes that all sessions use; their limit, 0: none */
  uint64_t memory_total; /* bytes of the device's own memory; 0: it uses the host's memory */
} clv_status_device;

/* The newest answer of a worker, or why there is none. */
typedef struct clv_status_worker {
  const char *name, *address; /* name and address of the worker in the session file */
  bool has_outcome;           /* the worker has answered, or asking it has failed */
  const char *error, *fix;    /* why there is no answer, and what to do; NULL: it answered */
  bool was_refused;           /* the worker runs, but refuses this identity */
  const char *own_name;       /* name that the worker has in its own worker.yaml */
  /* libraries: names and versions of CPU libraries; "": the worker is older than version 0.13 */
  const char *software, *device, *isa, *libraries;
  uint32_t protocol_version, n_cores;
  double uptime_s, interval_s; /* interval_s: time between the two answers */
  bool must_upgrade; /* the worker's protocol is old, so a lost connection ends the link */
  bool is_draining;  /* the worker accepts no new sessions */
  bool sees_all;     /* this identity may see the sessions of all identities */
  /* bytes in use; their limit, 0: none; limit of each session */
  uint64_t memory, memory_limit, session_limit;
  /* open sessions; limit of open sessions; sessions that did not fit the answer */
  uint32_t n_open_sessions, max_sessions, n_omitted_sessions;
  /* only if sees_all: bytes resident in host memory, failed TLS handshakes, open connections */
  uint64_t resident_bytes, n_handshake_failures;
  uint32_t n_connections, max_connections;
  bool has_certificate;
  double certificate_days; /* days until the certificate expires */
  clv_status_last_error last_error;
  uint32_t n_sessions, n_devices;
  clv_status_session *sessions;
  clv_status_device *devices;
} clv_status_worker;

/* Sealed copies of the run's checkpoints (checkpoint.escrow). */
typedef struct clv_status_escrow {
  bool has_copy;        /* there is a complete copy */
  uint64_t step, bytes; /* step of the newest copied checkpoint; size of the copy in bytes */
  double age_s;
  /* error of the last try to make a copy; text NULL: that try has not failed */
  clv_status_last_error last_error;
} clv_status_escrow;

/* All that one screen of `status` shows. */
typedef struct clv_status_view {
  const char *title; /* title of the session file */
  const char *clock; /* time of day: "19:42:07" */
  uint32_t n_workers;
  clv_status_worker *workers;
  const clv_status_escrow *escrow; /* sealed copies of checkpoints; NULL: the session makes none */
} clv_status_view;

/* Appends one line that explains the speed of s, the part of a session at worker w: computing,
 * waiting (with the probable reason) or idle. */
void clv_status_diagnosis(const clv_status_view *view, const clv_status_worker *w,
                          const clv_status_session *s, clv_bytes *out);

/* Appends the status as lines of at most `width` columns (at least 20), of printable ASCII only. */
void clv_status_text(const clv_status_view *view, unsigned width, clv_bytes *out);
/* As clv_status_text, but only names, diagnoses and errors. */
void clv_status_brief_text(const clv_status_view *view, unsigned width, clv_bytes *out);

/* Appends one JSON object per worker, a line each. */
void clv_status_json(const clv_status_view *view, clv_bytes *out);

/* Draws texts on standard output. redraws_in_place: on a terminal, each text replaces the previous
 * one. Otherwise the texts follow one another. */
typedef struct clv_screen clv_screen;

clv_code clv_screen_open(bool redraws_in_place, clv_screen **ret, clv_err *err) CLV_USE_RESULT;
bool clv_screen_is_terminal(const clv_screen *s);
unsigned clv_screen_width(const clv_screen *s); /* in columns; 100 if there is no terminal */
/* Draws `text`. If the screen redraws in place and `text` has more lines than the terminal, draws
 * `brief` instead. */
void clv_screen_draw(clv_screen *s, const clv_bytes *text, const clv_bytes *brief);
/* Restores the terminal, prints the last text on it and frees s. NULL is allowed. */
void clv_screen_close(clv_screen *s);

#endif
