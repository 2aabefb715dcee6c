/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands share: run.c has those that look (plan, check, eval, predict), run_train.c
 * trains, run_begin.c looks at what is there before, run_best.c chooses checkpoints, run_egress.c
 * says what they may send, run_look.c measures what that shows, run_scan.c looks through records,
 * run_print.c has what they tell a person, run_public_session.c what a run says of itself,
 * run_cache.c has what a worker keeps of a frozen front.
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

/* The checkpoint that is kept beside the newest ones, and the value of its validation. */
typedef struct clv_best_checkpoint {
  clv_best_metric metric;
  double value;
  uint64_t step;
} clv_best_checkpoint;

/* ---- the data that a run is of (run_data.c) -------------------------------------------------- */

/* A line of data.digest: what part of which set, of how many records; or a file of the model. */
typedef struct clv_data_part {
  char name[96]; /* "train.input.records", "train.labels", "test.rows" */
  uint64_t records;
  clv_sha256 digest;
} clv_data_part;

/* Three sets, each of inputs, labels, a stamp and rows; the model's config.json, and the file of
 * the tokenizer. */
enum { CLV_DATA_FILES = 2, CLV_DATA_PARTS = 3 * (CLV_DATA_INPUTS + 3) + CLV_DATA_FILES };

typedef struct clv_data_parts {
  clv_data_part list[CLV_DATA_PARTS];
  size_t n;
} clv_data_parts;

/* Where the loop of a training is. clv_run_restore sets it, clv_run_loop moves it. */
typedef struct clv_run_steps {
  clv_loader *loader;                 /* of the records from `cursor` on */
  clv_cursor cursor;                  /* place behind the records of the last whole round */
  uint64_t whole, total;              /* steps of the session; where this attempt stops */
  uint64_t saved_at;                  /* step of the newest checkpoint; UINT64_MAX: none */
  uint64_t first, taken;              /* steps restored; steps since that changed the weights */
  uint64_t skipped;                   /* the last steps in a row that did not */
  uint64_t bad_losses, bad_gradients; /* all that did not, by what was not finite */
  uint64_t epoch;                     /* of the batch before */
} clv_run_steps;

typedef struct clv_run {
  run_sends sends;
  const clv_session_config *config;
  clv_session_config own; /* a copy with the seed, the attempt, and micro-batches that were auto */
  clv_sha256 secret;      /* of the run: see clv_run_settle_key */
  bool has_secret;        /* it is settled, or found in the folder */
  bool looks;             /* `plan`: what the session does not permit is described, then refused */
  const clv_run_options *o;
  clv_run_data data;
  uint64_t left_out; /* records with values that are not finite */
  clv_blueprint *blueprint;
  clv_look look; /* what was read of what leaves; every blueprint of the run has its findings */
  clv_policy *policy; /* of this host; NULL: none */
  clv_trainer *trainer;
  clv_run_steps steps;
  clv_score *score; /* of the evaluation at work or the last one; NULL: none is wanted */
  clv_profiler *profiler;
  clv_reporter *reporter;
  clv_run_metrics *metrics;
  clv_bytes dir;
  clv_egress_record *record; /* of what leaves, in dir */
  clv_exit code;             /* with which the command ends */
  clv_run_lock *lock;        /* of dir, while training; as the next */
  clv_journal *journal;
  clv_best_checkpoint best; /* so far; of step CLV_CHECKPOINT_NONE: none */
  clv_data_parts parts;     /* of the data as they are; n = 0: not taken yet */
  uint64_t records_before;  /* trained on when the run began; 0: not known */
  clv_bytes changes;        /* key, before and after of each change, each with a NUL */
  bool has_other_data;      /* than it began with, which were accepted */
  bool is_of_old_version;   /* it was begun by a version that kept no digests */
  bool done;                /* it was finished before, and nothing is to be done */
  bool resumed;             /* from a checkpoint, as --resume asks */
  bool started;             /* the folder is of this attempt */
} clv_run;

void clv_run_done(clv_run *r);

/* How closely records are looked at before anything is computed. */
typedef enum clv_scan_scope { CLV_SCAN_NOTHING, CLV_SCAN_VALUES, CLV_SCAN_IMAGES } clv_scan_scope;

/* The data and the blueprint; before a run, also whether its pipeline has a schedule. */
clv_code clv_run_open_blueprint(clv_run *r, bool need_train, clv_scan_scope scope,
                                clv_err *err) CLV_USE_RESULT;
/* Refuses records with values that are not finite, or leaves them out; says how far it is
 * (run_scan.c). decode: reads images, too. */
clv_code clv_run_scan_data(clv_run *r, bool decode, clv_err *err) CLV_USE_RESULT;
size_t clv_run_scan_most(const clv_run *r, size_t all); /* records of so many that it looks at */
/* Another one, from r->config as it is now, with the findings of the look, held to the policy. */
clv_code clv_run_make_blueprint(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* The blueprint against session and policy, with what the look has found so far. */
clv_code clv_run_check_policy(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* For `plan` and `check`: warns of what the policy permits now and refuses at a later command. */
void clv_run_print_later(const clv_run *r);

/* ---- the parts of a training (run_train.c) --------------------------------------------------- */

/* Reads data and session, looks at what would leave, takes the run folder, opens the record, and
 * opens the trainer with its workers. Prints its own errors. r->done: the run is finished, and no
 * trainer was opened. To open a run again in this process, call clv_run_done and begin with another
 * clv_run. */
clv_exit clv_run_open(clv_run *r, clv_err *err);
/* Puts the newest checkpoint into the trainer, if the run has one to go on from, and sets the
 * counters and the order of the records by it. Called again after steps, it rewinds the run to the
 * newest checkpoint: lines of later steps are dropped. */
clv_code clv_run_restore(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Takes steps until the end, --max-steps or an interrupt, and saves the last one. */
clv_code clv_run_loop(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- the look (run_look.c) ------------------------------------------------------------------- */

/* Reads what would leave, of the first weights or those of a checkpoint, before anything does.
 * CLV_INVALID: session or policy do not permit what was read. */
clv_code clv_run_look(clv_run *r, const clv_checkpoint *c, clv_err *err) CLV_USE_RESULT;
/* The same with secrets that are drawn for it alone, as the run's are not known yet. */
clv_code clv_run_look_ahead(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* For a run that begins, or goes on with its newest checkpoint. */
clv_code clv_run_look_at_start(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- the secret of a run (run_key.c) --------------------------------------------------------- */

/* The secret of the run that --resume, eval or predict goes on with (again), or a new one; without
 * train.seed the seed follows from it. Before the data is read. CLV_NOT_FOUND: there are
 * checkpoints, but no secret and no seed. */
clv_code clv_run_settle_key(clv_run *r, bool again, clv_err *err) CLV_USE_RESULT;
/* For commands that look alone: the secret of the run that --resume would go on with, if the folder
 * has checkpoints and a key. */
clv_code clv_run_find_key(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Into the locked run folder, for the owner alone. */
clv_code clv_run_keep_key(const clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- what check says of the data (run_sets.c) ------------------------------------------------ */

/* Appends the range of values and the classes of each set: lines, or with json members of an
 * object, each after a comma. */
clv_code clv_run_describe_sets(const clv_run *r, bool json, clv_bytes *out,
                               clv_err *err) CLV_USE_RESULT;

/* ---- on trained weights (run.c) -------------------------------------------------------------- */

/* The data and the blueprint are there. Takes the checkpoint that was asked for, and evaluates
 * data.test; predictions as clv_trainer_eval has them. Says itself what is wrong. */
clv_exit clv_run_trained(clv_run *r, const char *command, clv_step_result *ret,
                         clv_tensor **predictions);
clv_exit clv_run_need_test(const clv_run *r);

/* ---- what a person is told (run_print.c) ----------------------------------------------------- */

/* The error, also to the journal of a run that has one (r may be NULL); returns `code`. */
clv_exit clv_run_fail(const clv_run *r, clv_exit code, const clv_err *err);
/* What does not end it, to both as well. */
void clv_run_warn(const clv_run *r, clv_log_level level, const char *event, const char *message);
/* The same for lines, such as checkpoints that were not taken. */
void clv_run_print_notes(const clv_run *r, const char *event, char *notes);
/* What the trainer has for a person since the last time. */
void clv_run_print_notices(const clv_run *r);
/* The same for one text; user: the run. */
void clv_run_on_notice(void *user, const char *text);
/* On standard output, in the form that was asked for. */
void clv_run_print_line(const clv_run *r, const char *text, const char *json);
/* when: where it stands, as in ", step 20, epoch 1"; and the same for JSON. */
void clv_run_print_eval(clv_run *r, const char *what, const clv_step_result *e, const char *when,
                        const char *json_when);

/* The scores of the last evaluation, for its line in evaluations.jsonl and for event files. */
typedef struct clv_run_scores {
  clv_bytes json; /* an object; empty where no scores are wanted */
  clv_scalar scalars[8];
  size_t n;
} clv_run_scores;
void clv_run_take_scores(const clv_run *r, clv_run_scores *ret);
void clv_run_scores_done(clv_run_scores *s);

/* Behind what is said of an evaluation: its scores, and the end of the JSON object. */
void clv_run_add_scores(const clv_run *r, bool table, clv_bytes *text, clv_bytes *json);
clv_code clv_run_score_new(clv_run *r, clv_err *err) CLV_USE_RESULT; /* the blueprint is there */
bool clv_run_json_lines(const clv_run *r);                           /* progress is JSON */
bool clv_run_has_accuracy(const clv_run *r); /* answers can be right or wrong */

/* Exit codes of failures: before workers are met, when "internal" may be what one of them says of
 * itself as well, and while computing. */
/* Reads certificate, key and list of revoked ones. CLV_EXIT_CONNECT, printed, if this master could
 * not show them to a worker; without always: if the session has stages at workers. */
clv_exit clv_run_check_identity(const clv_run *r, bool always, clv_err *err);
clv_exit clv_run_setup_exit(const clv_err *err);
clv_exit clv_run_connect_exit(const clv_run *r, const clv_err *err);
clv_exit clv_run_exit(const clv_run *r, const clv_err *err);

/* ---- what may leave (run_egress.c) ----------------------------------------------------------- */

/* A file of the run folder, whole or not at all. */
clv_code clv_run_write(const clv_run *r, const char *name, const clv_bytes *text,
                       clv_err *err) CLV_USE_RESULT;
/* The table of what leaves is the one that the run began with, unless another is accepted. */
clv_code clv_run_compare_table(const clv_run *r, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_open_record(clv_run *r, const char *command, clv_err *err) CLV_USE_RESULT;
/* Nothing may leave any more; says what is wrong with the record. */
void clv_run_close_record(clv_run *r, clv_exit code);
/* An attempt that did not start leaves no record, if nothing ever left from this folder. */
void clv_run_drop_record(clv_run *r);
/* micro_batches: auto becomes a number, once for a run and all that use it. */
clv_code clv_run_settle_micro_batches(clv_run *r, bool recall, clv_err *err) CLV_USE_RESULT;

/* ---- what is there before (run_begin.c) ------------------------------------------------------ */

/* Whether --resume finds the run finished, to its last step; says so then. Writes nothing. */
clv_code clv_run_is_done(clv_run *r, bool *ret, clv_err *err) CLV_USE_RESULT;
/* Whether --resume goes on from a checkpoint, or begins: there has been none so far. CLV_NOT_FOUND:
 * there was one. Deletes what is left of one that was never finished. */
clv_code clv_run_find_start(clv_run *r, clv_err *err) CLV_USE_RESULT;
void clv_run_print_start(const clv_run *r);     /* that it begins */
void clv_run_print_held_back(const clv_run *r); /* how many records, and how they were drawn */
/* Whether what the first attempt settled holds. */
bool clv_run_recalls_session(const clv_run *r);
void clv_run_print_aside(const clv_run *r); /* where the finished run is that made room */

/* ---- what has changed (run_data.c, run_changes.c) -------------------------------------------- */

/* text: [len], and a NUL behind it. Strict: CLV_DATA_LOSS names label and line. */
clv_code clv_data_parts_parse(const char *text, size_t len, const char *label, clv_data_parts *ret,
                              clv_err *err) CLV_USE_RESULT;
/* Of a run that is resumed from a checkpoint: CLV_DATA_LOSS names what is not as it was, unless
 * other data are accepted. */
clv_code clv_run_compare_data(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* For `eval` and `predict`, whose records are others: CLV_DATA_LOSS names a file of model.hf or
 * data.tokenizer that is not the one that the run began with, unless it is accepted. Says where
 * that is not known. */
clv_code clv_run_compare_files(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* For `export`: compares config.json of model.hf with the one that the run in `dir` began with, by
 * its digest there. Another one is CLV_DATA_LOSS, or where it is accepted a line in `notes`. So is
 * a run that has no digest of it. */
clv_code clv_run_compare_config(const char *dir, const clv_session_config *c, bool accept,
                                clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* Writes data.digest. */
clv_code clv_run_keep_data(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Notes a change for clv_run_print_changes. */
void clv_run_add_change(clv_run *r, const char *key, const char *before, const char *after);
/* Compares the session with that of the last attempt, session.effective.yaml. Prints all changes,
 * and adds them to changes.jsonl. */
clv_code clv_run_print_changes(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID: the session has another number of stages, or an optimiser with other moments, than
 * the last attempt, so that no checkpoint fits. Names the key and both values. */
clv_code clv_run_refuse_changes(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* For `eval` and `predict`: warns of each key with another value than in the last attempt that says
 * how a record becomes numbers, such as data.tokenizer.lower_case. */
clv_code clv_run_warn_of_keys(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- which checkpoint (run_best.c) ----------------------------------------------------------- */

/* What is known of the best: that of the run that goes on, or nothing. */
void clv_run_recall_best(clv_run *r);
/* Whether the evaluation of this step is better than all before; *ret is what to keep then, once
 * its checkpoint is written. */
bool clv_run_is_best(const clv_run *r, const clv_step_result *e, clv_best_checkpoint *ret);
clv_code clv_run_keep_best(clv_run *r, const clv_best_checkpoint *b, clv_err *err) CLV_USE_RESULT;
/* A value that is not finite is never better. */
bool clv_best_is_better(const clv_best_checkpoint *now, const clv_best_checkpoint *then,
                        clv_best_mode mode);
/* The line in the run folder; text: [len], and a NUL behind it. CLV_DATA_LOSS: it is none. */
clv_code clv_best_parse(const char *text, size_t len, const char *label, clv_best_checkpoint *ret,
                        clv_err *err) CLV_USE_RESULT;

/* The checkpoint that --checkpoint means. `notes` as of clv_checkpoint_latest. */
clv_code clv_run_open_checkpoint(const clv_run *r, clv_checkpoint **ret, clv_bytes *notes,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- names of classes (run_classes.c) -------------------------------------------------------- */

typedef struct clv_classes {
  char *text;
  const char **names; /* [n], ascending */
  size_t n;           /* 0: there are none */
} clv_classes;

void clv_classes_done(clv_classes *c); /* frees and zeroes */
/* text: [len], any bytes. Strict: CLV_DATA_LOSS names label and line. */
clv_code clv_classes_parse(const char *text, size_t len, const char *label, clv_classes *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Those of the run in the folder; none where it has no such file. */
clv_code clv_classes_read(const char *dir, clv_classes *ret, clv_err *err) CLV_USE_RESULT;
/* CLV_DATA_LOSS: the classes of `d`, called `label`, are others. Names where they come from. */
clv_code clv_run_compare_classes(const clv_run *r, const clv_classes *c, const clv_dataset *d,
                                 const char *label, clv_err *err) CLV_USE_RESULT;
/* Those of the training images into the run folder; on resume they must be as they were. */
clv_code clv_run_keep_classes(const clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- predictions as files (run_predictions.c) ------------------------------------------------ */

/* In the order of --format. */
typedef enum clv_records_format {
  CLV_RECORDS_CSV,
  CLV_RECORDS_JSONL,
  CLV_RECORDS_NPY
} clv_records_format;

typedef struct clv_records {
  const clv_tensor *outputs; /* [rows, ...] f32 */
  const clv_dataset *data;
  const uint32_t *index; /* [rows] of data */
  const clv_classes *classes;
  clv_loss_kind loss; /* how a class follows from outputs */
} clv_records;

/* npy: the names go to PATH.json, if there are any. */
clv_code clv_records_write(const clv_records *r, clv_records_format format, const char *path,
                           clv_err *err) CLV_USE_RESULT;

/* Lines of pages instead of records (run_pages.c): so many, where classes of documents were
 * predicted; 0 otherwise. `page` < that. */
size_t clv_records_pages(const clv_records *r);
void clv_records_put_page(clv_bytes *out, const clv_records *r, size_t page);

/* ---- the cache of a frozen front (run_cache.c) ----------------------------------------------- */

/* Of a session that has one: rows are kept from here on, or found as an earlier attempt left them.
 * Behind the trainer's restoring. */
clv_code clv_run_cache_begin(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* However the run ended: the worker is told to delete it. Says how that went. */
void clv_run_cache_end(clv_run *r);

/* ---- what a run leaves (run_public_session.c) ------------------------------------------------ */

/* The session as those may read who look at a run's curves: without paths, addresses and
 * credentials; and the digest of the whole, as session.effective.yaml has it. */
clv_code clv_run_public_session(const clv_session_config *c, clv_bytes *ret, clv_sha256 *ret_digest,
                                clv_err *err) CLV_USE_RESULT;
/* The folder of this run's event files; nothing when there are to be none. */
clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

#endif
