/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands share: run.c has those that look (plan, check, eval, predict), run_train.c
 * trains, run_egress.c says what they may send, run_scan.c looks through records, run_print.c has
 * what they tell a person, run_about.c what a run says of itself.
 */
#ifndef CLEAVE_RUN_INT_H
#define CLEAVE_RUN_INT_H

#include "master/history/history.h"
#include "master/run/run.h"
#include "master/report/report.h"
#include "master/watch/watch.h"

/* What is going to be sent, as the policy has to know before. */
typedef enum run_sends {
  RUN_TRAINS,    /* and looks (plan, check): as train would */
  RUN_EVALUATES, /* eval, predict */
} run_sends;

typedef struct run {
  run_sends sends;
  const clv_session_config *config;
  clv_session_config own; /* a copy with the seed, the attempt, and micro-batches that were auto */
  clv_sha256 secret;      /* of the run: see clv_run_settle_key */
  const clv_run_options *o;
  clv_run_data data;
  uint64_t left_out; /* records with values that are not finite */
  clv_blueprint *blueprint;
  clv_policy *policy; /* of this host; NULL: none */
  clv_trainer *trainer;
  clv_profiler *profiler;
  clv_reporter *reporter;
  clv_run_metrics *metrics;
  clv_bytes dir;
  clv_egress_record *record; /* of what leaves, in dir */
  clv_exit code;             /* with which the command ends */
  clv_run_lock *lock;        /* of dir, while training; as the next */
  clv_journal *journal;
} run;

void clv_run_done(run *r);

/* How closely records are looked at before anything is computed. */
typedef enum clv_scan_scope { CLV_SCAN_NOTHING, CLV_SCAN_VALUES, CLV_SCAN_IMAGES } clv_scan_scope;

/* The data and the blueprint; before a run, also whether its pipeline has a schedule. */
clv_code clv_run_open_blueprint(run *r, bool need_train, clv_scan_scope scope,
                                clv_err *err) CLV_USE_RESULT;
/* Refuses records with values that are not finite, or leaves them out; says how far it is
 * (run_scan.c). decode: reads images, too. */
clv_code clv_run_scan_data(run *r, bool decode, clv_err *err) CLV_USE_RESULT;
size_t clv_run_scan_most(const run *r, size_t all); /* records of so many that it looks at */
/* Another one, from r->config as it is now, held to the policy. */
clv_code clv_run_make_blueprint(run *r, clv_err *err) CLV_USE_RESULT;

/* ---- the secret of a run (run_key.c) --------------------------------------------------------- */

/* The secret of the run that --resume, eval or predict goes on with (again), or a new one; without
 * train.seed the seed follows from it. Before the data is read. CLV_NOT_FOUND: there are
 * checkpoints, but no secret and no seed. */
clv_code clv_run_settle_key(run *r, bool again, clv_err *err) CLV_USE_RESULT;
/* Into the locked run folder, for the owner alone. */
clv_code clv_run_keep_key(const run *r, clv_err *err) CLV_USE_RESULT;

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
void clv_run_print_eval(run *r, const char *what, const clv_step_result *e);

bool clv_run_json_lines(const run *r);  /* progress is JSON */
bool clv_run_has_classes(const run *r); /* labels are of classes */

/* Exit codes of failures: before workers are met, when "internal" may be what one of them says of
 * itself as well, and while computing. */
clv_exit clv_run_setup_exit(const clv_err *err);
clv_exit clv_run_connect_exit(const clv_err *err);
clv_exit clv_run_exit(const run *r, const clv_err *err);

/* ---- what may leave (run_egress.c) ----------------------------------------------------------- */

/* A file of the run folder, whole or not at all. */
clv_code clv_run_write(const run *r, const char *name, const clv_bytes *text,
                       clv_err *err) CLV_USE_RESULT;
/* The table of what leaves is the one that the run began with, unless another is accepted. */
clv_code clv_run_compare_table(const run *r, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_open_record(run *r, const char *command, clv_err *err) CLV_USE_RESULT;
/* Nothing may leave any more; says what is wrong with the record. */
void clv_run_close_record(run *r, clv_exit code);
/* micro_batches: auto becomes a number, once for a run and all that use it. */
clv_code clv_run_settle_micro_batches(run *r, bool recall, clv_err *err) CLV_USE_RESULT;

/* ---- what a run leaves (run_about.c) --------------------------------------------------------- */

/* The session as those may read who look at a run's curves: without paths, addresses and
 * credentials; and the digest of the whole, as session.effective.yaml has it. */
clv_code clv_run_public_session(const clv_session_config *c, clv_bytes *ret, clv_sha256 *ret_digest,
                                clv_err *err) CLV_USE_RESULT;
/* The folder of this run's event files; nothing when there are to be none. */
clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

#endif
