/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands share: run.c has those that look (plan, check, eval, predict), run_train.c
 * trains, run_begin.c looks at what is there before, run_print.c has what they tell a person,
 * run_about.c what a run says of itself.
 */
#ifndef CLEAVE_RUN_INT_H
#define CLEAVE_RUN_INT_H

#include "master/history/history.h"
#include "master/run/run.h"
#include "master/report/report.h"
#include "master/watch/watch.h"

typedef struct run {
  const clv_session_config *config;
  clv_session_config own; /* a copy with the number of micro-batches, where that was auto */
  const clv_run_options *o;
  clv_run_data data;
  clv_blueprint *blueprint;
  clv_trainer *trainer;
  clv_profiler *profiler;
  clv_reporter *reporter;
  clv_run_metrics *metrics;
  clv_bytes dir;
  clv_run_lock *lock; /* of dir, while training; as the next */
  clv_journal *journal;
  bool done; /* it was finished before, and nothing is to be done */
} run;

void clv_run_done(run *r);

/* The data and the blueprint; before a run, also whether its pipeline has a schedule. */
clv_code clv_run_open_blueprint(run *r, bool need_train, clv_err *err) CLV_USE_RESULT;
/* Another one, from r->config as it is now. */
clv_code clv_run_make_blueprint(run *r, clv_err *err) CLV_USE_RESULT;

/* ---- what a person is told (run_print.c) ----------------------------------------------------- */

/* The error, also to the journal of a run that has one (r may be NULL); returns `code`. */
clv_exit clv_run_fail(const run *r, clv_exit code, const clv_err *err);
/* What does not end it, to both as well. */
void clv_run_warn(const run *r, clv_log_level level, const char *event, const char *message);
/* The same for lines, such as checkpoints that were not taken. */
void clv_run_print_notes(const run *r, const char *event, char *notes);
/* What the trainer has for a person since the last time. */
void clv_run_print_notices(const run *r);
/* The same for one text; user: the run. */
void clv_run_on_notice(void *user, const char *text);
/* On standard output, in the form that was asked for. */
void clv_run_print_line(const run *r, const char *text, const char *json);
void clv_run_print_eval(run *r, const char *what, const clv_step_result *e);

bool clv_run_json_lines(const run *r);  /* progress is JSON */
bool clv_run_has_classes(const run *r); /* labels are of classes */

/* Exit codes of failures: before workers are met, when "internal" may be what one of them says of
 * itself as well, and while computing. */
clv_exit clv_run_setup_exit(const clv_err *err);
clv_exit clv_run_connect_exit(const clv_err *err);
clv_exit clv_run_exit(const run *r, const clv_err *err);

/* ---- what is there before (run_begin.c) ------------------------------------------------------ */

/* Whether --resume finds the run finished, to its last step; says so then. Writes nothing. */
clv_code clv_run_is_done(run *r, bool *ret, clv_err *err) CLV_USE_RESULT;
void clv_run_print_aside(const run *r); /* where the finished run is that made room */

/* ---- what a run leaves (run_about.c) --------------------------------------------------------- */

/* The session as those may read who look at a run's curves: without paths, addresses and
 * credentials; and the digest of the whole, as session.effective.yaml has it. */
clv_code clv_run_public_session(const clv_session_config *c, clv_bytes *ret, clv_sha256 *ret_digest,
                                clv_err *err) CLV_USE_RESULT;
/* The folder of this run's event files; nothing when there are to be none. */
clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

#endif
