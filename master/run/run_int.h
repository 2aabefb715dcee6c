/* SPDX-License-Identifier: Apache-2.0
 *
 * run_int: functions that the commands share. A *run* is a folder with checkpoints, and each
 * process that trains it is an *attempt*.
 *
 * run.c has plan, check and eval, run_predict.c has predict, run_train.c trains, run_open.c opens a
 * run that trains, and run_recover.c recovers after a worker was lost. run_save.c saves
 * checkpoints, and run_home.c fetches them when a run ends. run_begin.c decides whether a run
 * begins, resumes or is finished; run_best.c chooses checkpoints; run_rewind.c goes back to a
 * checkpoint; run_stop_early.c stops early; run_egress.c compares the egress table and opens the
 * egress record; run_look.c measures what the sent tensors show; run_scan.c checks the values of
 * records; run_print.c prints; run_public_session.c writes the session without confidential keys;
 * run_cache.c begins and ends the cache of a frozen front at a worker; run_checkpoints.c lists and
 * verifies checkpoints, run_gather.c fetches and removes checkpoints, run_escrow.c starts the
 * thread that writes sealed (encrypted) copies of checkpoints.
 */
#ifndef CLEAVE_RUN_INT_H
#define CLEAVE_RUN_INT_H

#include "master/checkpoints/checkpoints.h"
#include "master/history/history.h"
#include "master/run/run.h"
#include "master/report/report.h"
#include "master/watch/watch.h"

/* Purpose of a command, which decides for which tensors the policy is checked. */
typedef enum run_purpose {
  RUN_TRAINING,   /* train; also plan and check, which check the tensors that train would send */
  RUN_EVALUATION, /* eval and predict */
} run_purpose;

/* The best checkpoint, which a run keeps in addition to the newest ones, with the value of its
 * score. */
typedef struct clv_best_checkpoint {
  clv_best_metric metric;
  double value;
  uint64_t step;
  char target[CLV_BEST_TARGET_BYTES]; /* target that has the metric; "": the evaluation itself */
} clv_best_checkpoint;

/* ---- digests of the data of a run (run_data.c) ----------------------------------------------- */

/* A line of data.digest: digest of one part of a set, or of a file of the model. */
typedef struct clv_data_digest {
  char name[96];    /* "train.input.records", "train.labels", "test.rows" */
  uint64_t records; /* number of records of the part */
  clv_sha256 digest;
} clv_data_digest;

/* CLV_DATA_FILES: number of files with a digest: config.json of the model, and the tokenizer's
 * file. CLV_MAX_DATA_DIGESTS: most digests: of these files, and of inputs, labels, file stamps
 * (path, inode, size and time of each image) and rows of three sets. */
enum { CLV_DATA_FILES = 2, CLV_MAX_DATA_DIGESTS = 3 * (CLV_DATA_MAX_INPUTS + 3) + CLV_DATA_FILES };

typedef struct clv_data_digests {
  clv_data_digest list[CLV_MAX_DATA_DIGESTS];
  size_t n;
} clv_data_digests;

/* Progress of the training loop. clv_run_restore sets it, clv_run_loop advances it. */
typedef struct clv_run_steps {
  clv_loader *loader;       /* loads the records from `cursor` on */
  clv_cursor cursor;        /* position behind the records of the last complete round */
  uint64_t n_session_steps; /* number of steps of the session */
  uint64_t stop_step;       /* step at which this attempt stops; --max-steps may lower it */
  uint64_t saved_step;      /* step of the newest checkpoint; UINT64_MAX: none */
  /* step of the restored checkpoint; number of steps of this attempt that changed the weights */
  uint64_t restored_step, n_weight_changes;
  uint64_t n_steps_done;       /* number of steps of the run, including those before a resume */
  uint64_t n_skipped_in_a_row; /* number of last consecutive steps that changed no weight */
  /* steps of the run that changed no weight, because the loss or a gradient was not finite */
  uint64_t n_bad_losses, n_bad_gradients;
  clv_early_stopping_state early_stopping_state; /* validations that early stopping has counted */
  uint64_t last_epoch;                           /* epoch of the last batch that was trained */
} clv_run_steps;

/* State that decides when a training saves its next checkpoint (run_save.c). */
typedef struct clv_run_save_state {
  uint64_t step; /* step of the checkpoint in progress or of the last one */
  /* monotonic time when the last checkpoint began (with `every: auto`: when it was complete);
   * before the first checkpoint: when the training began */
  uint64_t begin_ns;
  bool is_due; /* a checkpoint begins as soon as none is in progress */
  /* nanoseconds by which checkpoints delay the training: cost_ns by the last complete checkpoint,
   * present_cost_ns so far by the checkpoint in progress */
  uint64_t cost_ns, present_cost_ns;
  uint64_t usual_round_ns; /* running mean of a round without a checkpoint; 0: no round yet */
  uint64_t n_rounds;       /* rounds of this attempt so far */
} clv_run_save_state;

/* State of the recovery of a training after a worker was lost (run_recover.c). */
typedef struct clv_run_recovery {
  /* monotonic time when the worker was lost; 0: no recovery is in progress */
  uint64_t worker_lost_at_ns;
  /* monotonic time of the worker's loss, or when its stages were last given to another worker;
   * recovery.replace_after counts from this time */
  uint64_t first_try_ns;
  uint64_t last_step; /* last step before the worker was lost */
  /* step of the newest checkpoint at the time when a worker was last lost */
  uint64_t checkpoint_step_at_last_loss;
  /* number of times that a worker was lost since the newest checkpoint was written */
  uint64_t n_losses_since_checkpoint;
  /* data were damaged in transit once; if that happens again, the run ends */
  bool has_had_damaged_data;
  clv_exit_code exit_code; /* exit code if the run cannot recover */
  uint64_t last_print_ns;  /* monotonic time of the last printed line about a failed try; 0: none */
} clv_run_recovery;

typedef struct clv_run {
  run_purpose purpose;
  const clv_session_config *config;
  /* copy of `config` with the seed, the attempt and the number of micro-batches set */
  clv_session_config effective_config;
  clv_sha256 secret;   /* secret of the run, see clv_run_resolve_key */
  bool has_secret;     /* `secret` is set */
  bool describes_only; /* `plan`: prints also the tensors that privacy forbids, then fails */
  const clv_run_options *o;
  clv_run_data data;
  /* weights computed for `class_weights: balanced`, of the loss and of targets; NULL: neither has
   * this setting */
  double *class_weights;
  /* [n_targets] the targets of the session with their balanced class weights; NULL: no target has
   * `class_weights: balanced` */
  clv_target_spec *weighted_targets;
  /* cumulative probabilities with which the training records are drawn; NULL: an epoch has each
   * record once */
  double *sampling_sums;
  uint64_t n_omitted_records; /* records left out because they have values that are not finite */
  clv_blueprint *blueprint;
  /* results of the look, which measures what sent tensors show (clv_run_take_look); each blueprint
   * of the run gets them */
  clv_look look;
  clv_policy *policy; /* policy of this host; NULL: none */
  clv_trainer *trainer;
  clv_run_steps steps;
  clv_run_save_state save_state;
  clv_run_recovery recovery;
  /* [n_scores] scores of the evaluation in progress or the last one: one per target, or a single
   * one if records have one label; NULL: the session has no scores */
  clv_score **scores;
  size_t n_scores;
  clv_profiler *profiler;
  clv_reporter *reporter;
  clv_run_metrics *metrics;
  clv_bytes dir;
  clv_egress_record *egress_record; /* egress record in `dir`; NULL: not open */
  clv_exit_code exit_code;          /* exit code of the command */
  clv_run_lock *lock;               /* lock of `dir`; only `train` has one, else NULL */
  clv_journal *journal;             /* journal in `dir`; only `train` has one, else NULL */
  /* key of the sealed (encrypted) copies of checkpoints; without a path if the session has no
   * escrow */
  clv_seal_key escrow_key;
  clv_escrow *escrow; /* seals copies of checkpoints; NULL: not running */
  /* step CLV_CHECKPOINT_NONE: the run has no best checkpoint */
  clv_best_checkpoint best_checkpoint;
  clv_data_digests data_digests; /* digests of the present data; n = 0: not computed yet */
  uint64_t n_records_at_begin;   /* number of training records when the run began; 0: not known */
  /* changes since the last attempt: key, old value and new value, each with a NUL */
  clv_bytes changes;
  bool has_other_data;    /* the data have changed since the run began, and the user accepts it */
  bool is_of_old_version; /* a version that wrote no data.digest began the run */
  bool is_finished;       /* the run was finished before; the command does nothing */
  bool is_resumed;        /* the run continues from a checkpoint */
  bool is_rewound;        /* the run has gone back to the checkpoint of --checkpoint */
  bool has_started;       /* this attempt has begun to write the run's files */
} clv_run;

void clv_run_done(clv_run *r);

/* Selects the records that a command reads and checks before it computes. CLV_SCAN_NOTHING: none;
 * CLV_SCAN_VALUES: all except images; CLV_SCAN_IMAGES: all. */
typedef enum clv_scan_scope { CLV_SCAN_NOTHING, CLV_SCAN_VALUES, CLV_SCAN_IMAGES } clv_scan_scope;

/* Opens the policy and the data, and makes the blueprint. needs_train_set: the command trains, so
 * this function opens the training records and checks that the pipeline has a schedule. */
clv_code clv_run_open_blueprint(clv_run *r, bool needs_train_set, clv_scan_scope scope,
                                clv_err *err) CLV_USE_RESULT;
/* Checks the records for values that are not finite (run_scan.c). If a record has such a value,
 * fails or leaves the record out, depending on data.non_finite. Prints its progress.
 * decodes_images: decodes the images too. */
clv_code clv_run_scan_data(clv_run *r, bool decodes_images, clv_err *err) CLV_USE_RESULT;
/* Returns how many of n_records records clv_run_scan_data reads: fewer with --quick. */
size_t clv_run_scan_limit(const clv_run *r, size_t n_records);
/* Makes the blueprint again, from r->config as it is now, adds the findings of the look (r->look:
 * what an observer could read from the tensors, measured before anything is sent), and checks the
 * blueprint against session and policy. */
clv_code clv_run_make_blueprint(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Checks the blueprint against session and policy, together with the results of the look, the
 * measurement of what sent tensors show, if clv_run_take_look has run it. */
clv_code clv_run_check_policy(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Warns of tensors that the policy permits for this command but would refuse in a later one, such
 * as `train --resume`. For `plan` and `check`. */
void clv_run_print_later_refusals(const clv_run *r);

/* For `plan`: prints what the runs of all folds send together, if the session has folds. */
void clv_run_print_folds(const clv_run *r);

/* Replaces class_weights: balanced, of the loss and of targets, by numbers. Computes the numbers
 * from the labels of the training records. If the command has not read these records, takes the
 * numbers from the session that the run has stored. Call before the blueprint is made.
 * (run_class_weights.c) */
clv_code clv_run_resolve_class_weights(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Returns in *ret the number of outputs of the model: the width of its last layer. If the loss has
 * classes, this is the number of classes. (run_class_weights.c) */
clv_code clv_run_count_outputs(const clv_run *r, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* Computes r->sampling_sums, from which training records are drawn, if the session has
 * data.sampling. (run_sampling.c) */
clv_code clv_run_make_sampling(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- starting a training (run_open.c) -------------------------------------------------------- */

/* Reads data and session, locks the run folder, calls clv_run_take_look and opens the egress
 * record. Prints its own errors. r->is_finished: the run is finished, and the caller has nothing to
 * do. To open a run again in this process, call clv_run_done and begin with another clv_run. */
clv_exit_code clv_run_open(clv_run *r, clv_err *err);
/* Opens the metrics port, unless it is open, and a trainer, which connects to its workers.
 * BLOCKS. */
clv_code clv_run_open_trainer(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* If the run resumes, loads its newest checkpoint into the trainer, the counters and the loader. A
 * second call, after a worker was lost, rewinds the run to the newest checkpoint and drops the
 * lines of later steps from the run's files. */
clv_code clv_run_restore(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Sets the session id, and the epoch (number of the attempt) that the master sends to workers. */
void clv_run_set_attempt_id(clv_run *r);
/* Prints why the run cannot begin. Returns the exit code. */
clv_exit_code clv_run_fail_setup(const clv_run *r, const clv_err *err);

/* ---- the loop of steps (run_train.c) --------------------------------------------------------- */

/* Takes training steps until the run is finished, --max-steps are taken or the user interrupts.
 * Then saves a checkpoint. */
clv_code clv_run_loop(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- early stopping (run_stop_early.c) ------------------------------------------------------- */

/* Counts a validation at `step` for early stopping. value: the score that train.early_stopping in
 * `c` names. */
void clv_early_stopping_count_validation(clv_early_stopping_state *s, const clv_train_config *c,
                                         double value, uint64_t step);
/* Returns true if the run stops, because the last `patience` validations were no improvement. */
bool clv_early_stopping_is_due(const clv_early_stopping_state *s, const clv_train_config *c);
/* Counts the validation result `e` of the present step for early stopping. */
void clv_run_count_validation(clv_run *r, const clv_step_result *e);
/* Prints that the run has stopped early, and why, if it has. */
void clv_run_print_early_stopping(const clv_run *r);

/* ---- saving checkpoints (run_save.c) --------------------------------------------------------- */

/* Completes the checkpoint in progress if its files are durable, and begins another one if it is
 * due. If the disk cannot take the checkpoint, warns and goes on. Call after each round.
 * step_before: the step at the begin of the round; round_ns: duration of the round. */
clv_code clv_run_save_if_due(clv_run *r, uint64_t step_before, uint64_t round_ns,
                             clv_err *err) CLV_USE_RESULT;
/* Saves a checkpoint of the present step, unless it exists already. BLOCKS until the checkpoint is
 * complete. */
clv_code clv_run_save_now(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* As clv_run_save_now, but warns and goes on if the disk cannot take the checkpoint. */
clv_code clv_run_try_save_now(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Called when a run ends. If checkpoint.home is `end`, fetches the files of the newest and of the
 * best checkpoint from the workers that keep them, and prints the files that stay at workers. Then
 * removes files at workers as clv_run_remove_unneeded_files does. BLOCKS. (run_home.c) */
void clv_run_gather_at_end(clv_run *r);
/* Removes the files of the run at workers that none of its checkpoints lists, such as those that a
 * killed attempt has left. Ignores workers that cannot be reached. Call before a checkpoint begins.
 * BLOCKS. */
void clv_run_remove_unneeded_files(clv_run *r);
/* Adds the weights in a file that was fetched from its worker to the ledger. step: step of the
 * file's checkpoint. Does nothing for files without weights. */
clv_code clv_run_note_gathered_file(const char *dir, uint64_t step, const clv_manifest_file *f,
                                    clv_err *err) CLV_USE_RESULT;
/* Begins the interval to the next checkpoint. Called when a training begins or is restored. */
void clv_run_reset_saving(clv_run *r);
/* Returns the time between two checkpoints with checkpoint.every: auto, if one checkpoint delays
 * the training by cost_ns. */
uint64_t clv_checkpoint_interval_ns(uint64_t cost_ns);
/* Adds a round that took `ns` to the running mean of rounds or, while a checkpoint is in progress,
 * adds the time above that mean to the checkpoint's cost. Leaves out the first rounds of an
 * attempt. */
void clv_checkpoint_note_round(clv_run_save_state *s, bool is_saving, uint64_t ns);

/* ---- recovery after the loss of a worker (run_recover.c) ------------------------------------- */

/* Recovers from the failure `err` of the loop or the last evaluation if a worker was lost: closes
 * the trainer, tries to connect until recovery.give_up_after, and restores the newest checkpoint.
 * Prints its progress. BLOCKS. CLV_OK: the loop can continue. On a failure err says why the run
 * ends, r->recovery.exit_code is the exit code, and r->trainer may be NULL. CLV_CANCELLED: the user
 * has interrupted the recovery. */
clv_code clv_run_recover(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* As clv_run_recover, for `train --resume` that cannot reach a worker when it starts. */
clv_code clv_run_wait_for_workers(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Writes the present schedule to schedule.failed after a timeout or an internal error, so that a
 * deadlock can be analysed. */
void clv_run_write_failed_schedule(const clv_run *r, const clv_err *reason);

/* ---- the look: measures what sent tensors show (run_look.c) ---------------------------------- */

/* Runs the look: computes the tensors that would be sent, with the initial weights (c NULL) or
 * those of a checkpoint, and measures how much of the records these tensors show. Sends nothing.
 * CLV_INVALID: session or policy do not permit the result. */
clv_code clv_run_take_look(clv_run *r, const clv_checkpoint *c, clv_err *err) CLV_USE_RESULT;
/* As clv_run_take_look, but with secret weights that are drawn for this measurement only. For
 * `plan` and `check`, because no weights of a run were drawn for them. */
clv_code clv_run_take_look_in_plan(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* As clv_run_take_look, with the weights of the newest checkpoint if the run resumes, otherwise
 * with the initial weights. */
clv_code clv_run_take_look_before_training(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- the secret of a run (run_key.c) --------------------------------------------------------- */

/* Sets the secret of the run. reads_existing: reads the secret of the existing run (--resume, eval,
 * predict); false: draws one. Without train.seed, derives the seed from the secret. Call before the
 * data is read. CLV_NOT_FOUND: the run has checkpoints, but no secret and no seed. */
clv_code clv_run_resolve_key(clv_run *r, bool reads_existing, clv_err *err) CLV_USE_RESULT;
/* Sets the secret of the run that --resume would continue, if the folder has checkpoints and a key
 * file. For commands that neither train nor evaluate. */
clv_code clv_run_find_key(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Writes the secret into the locked run folder, readable by its owner only. */
clv_code clv_run_write_key(const clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- the sets that check describes (run_describe_sets.c) ------------------------------------- */

/* Appends the range of values and the classes of each set as lines; writes_json: as members of an
 * object, each preceded by a comma. */
clv_code clv_run_describe_sets(const clv_run *r, bool writes_json, clv_bytes *out,
                               clv_err *err) CLV_USE_RESULT;

/* ---- evaluation of a checkpoint (run.c) ------------------------------------------------------ */

/* Loads the checkpoint of --checkpoint and evaluates data.test. Needs the data and the blueprint.
 * predictions: as in clv_trainer_eval. Prints its own errors. */
clv_exit_code clv_run_eval_checkpoint(clv_run *r, const char *command, clv_step_result *ret,
                                      clv_tensor **predictions);
/* fails, with a printed error, if the session has no data.test */
clv_exit_code clv_run_check_has_test(const clv_run *r);

/* ---- printing of errors, notices and results (run_print.c) ----------------------------------- */

/* Prints an error that ends the command. Adds it to the journal if the run has one. r may be NULL.
 * Returns `code`. */
clv_exit_code clv_run_fail(const clv_run *r, clv_exit_code code, const clv_err *err);
/* Prints a message that does not end the command, and adds it to the journal. */
void clv_run_warn(const clv_run *r, clv_log_level level, const char *event, const char *message);
/* Prints each line of `notes`, such as a list of checkpoints that could not be used, with
 * clv_run_warn. */
void clv_run_print_notes(const clv_run *r, const char *event, char *notes);
/* Prints the notices that the trainer has queued since the last call. */
void clv_run_print_notices(const clv_run *r);
/* Callback that prints one notice of the trainer or the journal. user: the run. */
void clv_run_on_notice(void *user, const char *text);
/* Prints to standard output: `json` if the user asked for JSON, else `text`. */
void clv_run_print_line(const clv_run *r, const char *text, const char *json);
/* Prints the result of an evaluation. set_name: "validation" or "test"; step_text: position in the
 * run, such as ", step 20, epoch 1"; step_json: this position as members of a JSON object. */
void clv_run_print_eval(clv_run *r, const char *set_name, const clv_step_result *e,
                        const char *step_text, const char *step_json);

/* The scores of the last evaluation, for its line in evaluations.jsonl and for event files. */
typedef struct clv_run_scores {
  clv_bytes json;      /* JSON object with all scores; empty: no scores */
  clv_bytes curves;    /* JSON object with the curves of the scores; empty: none */
  clv_scalar *scalars; /* [n] scores that are single numbers, for event files */
  char (*names)[128];  /* [n] memory for the tags of `scalars` */
  size_t n;            /* number of scalars */
} clv_run_scores;
/* Sets *ret to the scores of the last evaluation, whose result is `e`. with_curves: also sets
 * ret->curves, the ROC and calibration curves for a report. Free *ret with clv_run_scores_free. */
clv_code clv_run_take_scores(const clv_run *r, const clv_step_result *e, bool with_curves,
                             clv_run_scores *ret, clv_err *err) CLV_USE_RESULT;
void clv_run_scores_free(clv_run_scores *s);
/* most records in worst_records.json; several targets divide this number equally */
enum { CLV_RUN_MAX_WORST_RECORDS = 60 };
/* Writes the records of data.test with the largest losses in the last evaluation, to
 * worst_records.json, readable by the owner only. Writes no file if the session has no scores. */
clv_code clv_run_write_worst_records(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Writes the scores of `eval --intervals` into the run folder, for a report. */
clv_code clv_run_write_intervals(const clv_run *r, const clv_step_result *e,
                                 clv_err *err) CLV_USE_RESULT;
/* Returns the value of `metric` in the last evaluation, whose result is `e`; NaN: not defined.
 * target: name of the target that has the metric; NULL: the evaluation itself. */
double clv_run_score_value(const clv_run *r, const clv_step_result *e, clv_best_metric metric,
                           const char *target);

/* Appends the scores of the last evaluation, whose result is `e`, to `text` and `json`, and ends
 * the JSON object. with_table: appends the table of classes to `text` as well. */
void clv_run_add_scores(const clv_run *r, const clv_step_result *e, bool with_table,
                        clv_bytes *text, clv_bytes *json);
void clv_run_free_scores(clv_run *r);
/* Makes r->scores from loss.scores and the targets of the session. Needs the blueprint. */
clv_code clv_run_make_scores(clv_run *r, clv_err *err) CLV_USE_RESULT;
bool clv_run_has_json_output(const clv_run *r); /* the command prints its progress as JSON */
bool clv_run_has_accuracy(const clv_run *r);    /* a prediction can be right or wrong */

/* Checks that this master can identify itself to a worker: reads certificate, key and revocation
 * list. Prints the error and returns CLV_EXIT_CONNECT if it cannot. even_without_workers: checks
 * even if the session has no stage at a worker. */
clv_exit_code clv_run_check_identity(const clv_run *r, bool even_without_workers, clv_err *err);
/* Each of these functions returns the exit code of a failure: _setup_exit_code before the master
 * connects, _connect_exit_code while it connects, _exit_code while it computes. */
clv_exit_code clv_run_setup_exit_code(const clv_err *err);
clv_exit_code clv_run_connect_exit_code(const clv_run *r, const clv_err *err);
clv_exit_code clv_run_exit_code(const clv_run *r, const clv_err *err);

/* ---- the egress table and the egress record (run_egress.c) ----------------------------------- */

/* Writes a file of the run folder atomically. */
clv_code clv_run_write_file(const clv_run *r, const char *name, const clv_bytes *text,
                            clv_err *err) CLV_USE_RESULT;
/* Compares the egress table with that of the run's first attempt. Fails if it differs, unless
 * --accept-egress was given. */
clv_code clv_run_compare_egress_table(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Opens the egress record in the run folder for `command`. */
clv_code clv_run_open_egress_record(clv_run *r, const char *command, clv_err *err) CLV_USE_RESULT;
/* Closes the egress record and prints its error, if any. No tensor may be sent after this call. */
void clv_run_close_egress_record(clv_run *r, clv_exit_code code);
/* Deletes the egress record of an attempt that did not start, if no earlier attempt has sent
 * anything. */
void clv_run_drop_egress_record(clv_run *r);
/* Replaces micro_batches: auto by a number. reads_stored_number: reads the number that the run's
 * first attempt has chosen; false: chooses the number by trial steps. */
clv_code clv_run_resolve_micro_batches(clv_run *r, bool reads_stored_number,
                                       clv_err *err) CLV_USE_RESULT;

/* ---- the state of the run folder (run_begin.c) ----------------------------------------------- */

/* Sets *ret to true and prints a line if --resume finds that the run has done its last step. Writes
 * no file. */
clv_code clv_run_check_finished(clv_run *r, bool *ret, clv_err *err) CLV_USE_RESULT;
/* Sets r->is_resumed: true if --resume continues from a checkpoint, false if the run never had a
 * checkpoint and begins. CLV_NOT_FOUND: the run had a checkpoint, which is missing now. Deletes
 * incomplete checkpoints. */
clv_code clv_run_find_start(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Prints that the run begins at step 1, if --resume was given and the run has no checkpoint yet. */
void clv_run_print_start(const clv_run *r);
/* Prints how many training records the session sets aside for validation. */
void clv_run_print_validation_split(const clv_run *r);
/* Returns true if the run folder has the session of the run's first attempt. A later attempt uses
 * the number of micro-batches that the first has chosen. */
bool clv_run_has_stored_session(const clv_run *r);
/* Prints where --fresh has moved the folder of the finished run, if there was one. */
void clv_run_print_moved_folder(const clv_run *r);

/* ---- changes of session and data since the last attempt (run_data.c, run_changes.c) ---------- */

/* Parses the text of data.digest: `len` bytes and a NUL. CLV_DATA_LOSS: the file is damaged; err
 * names `label` and the line. */
clv_code clv_data_digests_parse(const char *text, size_t len, const char *label,
                                clv_data_digests *ret, clv_err *err) CLV_USE_RESULT;
/* Compares the data with the data that a resumed run began with, by their digests. CLV_DATA_LOSS:
 * the data differ and the user has not accepted other data; err names the part. */
clv_code clv_run_compare_data(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Compares the files of model.hf and data.tokenizer with those that the run began with. For `eval`
 * and `predict`, which use other records than the training. CLV_DATA_LOSS: a file differs and the
 * user has not accepted it. Prints a notice if the run has no digest of a file. */
clv_code clv_run_compare_files(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Compares config.json of model.hf with the one that the run in `dir` began with, by the digest in
 * `dir`. For `export`. If the digest differs or is unknown, returns CLV_DATA_LOSS, or with
 * `accepts_change` adds a line to `notes`. */
clv_code clv_run_compare_model_config(const char *dir, const clv_session_config *c,
                                      bool accepts_change, clv_bytes *notes,
                                      clv_err *err) CLV_USE_RESULT;
/* Writes the digests of the data and of the model's files to data.digest in the run folder. */
clv_code clv_run_write_data_digests(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Adds a change to r->changes, which clv_run_print_changes prints. */
void clv_run_add_change(clv_run *r, const char *key, const char *old_value, const char *new_value);
/* Compares the session with that of the last attempt, session.effective.yaml. Prints all changes,
 * and adds them to changes.jsonl. */
clv_code clv_run_print_changes(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Refuses changes of the session with which no checkpoint of the run can be loaded. CLV_INVALID:
 * the moments of the optimiser differ from the last attempt; err names the key and both values. */
clv_code clv_run_refuse_changes(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Warns of each changed key that affects how a record becomes numbers, such as
 * data.tokenizer.lower_case. For `eval` and `predict`. */
clv_code clv_run_warn_changed_keys(clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- another cut than in the last attempt (run_cut.c, run_moved_layers.c) -------------------- */

/* Appends the cut of the last attempt to *ret_before and the present one to *ret_after, if they
 * differ. Appends nothing if the model of the last attempt cannot be read; the keys of its stages
 * are then compared one by one. *ret_has_same_layers: both sessions have the same layers, so that
 * only the stages and nodes of the layers can differ. */
clv_code clv_run_compare_cut(const clv_run *r, const clv_session_config *earlier_session,
                             clv_bytes *ret_before, clv_bytes *ret_after, bool *ret_has_same_layers,
                             clv_err *err) CLV_USE_RESULT;
/* Compares the places of layers with those in the session of the checkpoint, and stores the layers
 * that have moved in r->blueprint. CLV_INVALID: neither policy nor session permits one of these
 * layers to move from the master to a worker. Call before the master connects. */
clv_code clv_run_check_moved_layers(clv_run *r, const clv_checkpoint *c,
                                    clv_err *err) CLV_USE_RESULT;
/* For `plan`: stores the layers that --resume would move, and prints a warning if it would be
 * refused. Does nothing if the run has no checkpoint. */
void clv_run_find_moved_layers(clv_run *r);

/* ---- choice of a checkpoint (run_best.c) ----------------------------------------------------- */

/* Sets r->best_checkpoint to the best checkpoint of a resumed run; step CLV_CHECKPOINT_NONE: it has
 * none. */
void clv_run_read_best_checkpoint(clv_run *r);
/* Returns true if this evaluation is better than all earlier ones of the run. The caller then
 * writes the checkpoint and calls clv_run_write_best_checkpoint with *ret. */
bool clv_run_is_best_evaluation(const clv_run *r, const clv_step_result *e,
                                clv_best_checkpoint *ret);
clv_code clv_run_write_best_checkpoint(clv_run *r, const clv_best_checkpoint *b,
                                       clv_err *err) CLV_USE_RESULT;
/* Returns true if `candidate` is better than `best`. A value that is not finite is never better. */
bool clv_is_better_checkpoint(const clv_best_checkpoint *candidate, const clv_best_checkpoint *best,
                              clv_best_mode mode);
/* Parses the file of the best checkpoint: `len` bytes of text and a NUL. CLV_DATA_LOSS: the text is
 * not valid. */
clv_code clv_best_checkpoint_parse(const char *text, size_t len, const char *label,
                                   clv_best_checkpoint *ret, clv_err *err) CLV_USE_RESULT;

/* Returns the step of the best checkpoint of a run folder; CLV_CHECKPOINT_NONE: it has none. */
uint64_t clv_run_best_checkpoint_step(const char *dir);
/* Deletes the file that names the best checkpoint. */
void clv_run_delete_best_file(const char *dir);

/* Opens the checkpoint that --checkpoint names, or the newest valid one. notes: receives one line
 * for each newer checkpoint that is not valid. */
clv_code clv_run_open_checkpoint(const clv_run *r, clv_checkpoint **ret, clv_bytes *notes,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- going back to a checkpoint (run_rewind.c) ----------------------------------------------- */

/* Returns true if `train --resume --checkpoint` names a checkpoint and the run has not yet gone
 * back to it. */
bool clv_run_has_named_checkpoint(const clv_run *r);
/* Opens the checkpoint from which a resumed run goes on: the one that --checkpoint names, or the
 * newest. */
clv_code clv_run_load_start_checkpoint(const clv_run *r, clv_checkpoint **ret,
                                       clv_err *err) CLV_USE_RESULT;
/* Fails if --checkpoint names a checkpoint that cannot be opened. CLV_NOT_FOUND: the run does not
 * have this checkpoint. */
clv_code clv_run_check_named_checkpoint(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Restores the checkpoint that --checkpoint names, and then removes the checkpoints of later
 * steps. */
clv_code clv_run_restore_named_checkpoint(clv_run *r, clv_train_position *ret,
                                          clv_err *err) CLV_USE_RESULT;

/* ---- the checkpoints of a run (run_checkpoints.c) -------------------------------------------- */

/* A checkpoint of a run folder, complete or not. */
typedef struct clv_run_checkpoint {
  uint64_t step;
  char *folder;
  clv_manifest manifest; /* without files if the manifest cannot be read */
  clv_err problem;       /* code CLV_OK: the manifest is valid, and the folder has its files */
  bool is_newest;        /* true: the newest checkpoint that has no problem */
  bool is_best;
} clv_run_checkpoint;

typedef struct clv_run_checkpoints {
  clv_run_checkpoint *list; /* [n] the checkpoints, the newest first */
  size_t n;
} clv_run_checkpoints;

void clv_run_checkpoints_free(clv_run_checkpoints *l);
/* Lists the checkpoints of a run folder. Compares no digests. CLV_NOT_FOUND: the folder does not
 * exist. */
clv_code clv_run_checkpoints_read(const char *dir, clv_run_checkpoints *ret,
                                  clv_err *err) CLV_USE_RESULT;
/* Removes from the list *l all entries but the checkpoint that `which`, the value of --step, names.
 * Deletes no files. which NULL: removes none. CLV_NOT_FOUND: the run folder has no such
 * checkpoint. */
clv_code clv_run_checkpoints_choose(clv_run_checkpoints *l, const char *dir, const char *which,
                                    clv_err *err) CLV_USE_RESULT;
/* Call before a run is deleted. Notes the files of its checkpoints at workers as orphans, which are
 * removed later, and prints them. (run_gather.c) */
clv_code clv_run_note_orphans(const clv_run *r, const clv_run_checkpoints *checkpoints,
                              clv_err *err) CLV_USE_RESULT;
/* Returns the exit code for a failure of a `checkpoint` command. */
clv_exit_code clv_run_checkpoints_exit_code(const clv_err *err);
/* Appends the identity and the name of a worker as members of a JSON object. */
void clv_run_append_worker_json(const clv_stores *s, const char *identity, clv_bytes *out);

/* ---- sealed, encrypted copies of checkpoints (run_escrow.c) ---------------------------------- */

/* Returns the place of the sealed copies of a run. ret_id: receives the run's id from run.json, and
 * must outlive *ret, which points at the id. CLV_NOT_FOUND: run.json has no id. */
clv_code clv_run_find_escrow_location(const clv_session_config *config, char ret_id[33],
                                      clv_escrow_location *ret, clv_err *err) CLV_USE_RESULT;
/* Deletes the sealed copy of a step, if there is one. */
clv_code clv_run_escrow_remove(const clv_session_config *config, uint64_t step,
                               clv_err *err) CLV_USE_RESULT;
/* Deletes the newest sealed copy if its step is later than `step`. */
clv_code clv_run_escrow_remove_later(const clv_session_config *config, uint64_t step,
                                     clv_err *err) CLV_USE_RESULT;
/* Reads the key of checkpoint.escrow, or creates a key for the first copy. Does nothing if the
 * session has no escrow, or the key was read before. CLV_INVALID: the key is lost, does not fit the
 * existing copies, or may be read by other users. */
clv_code clv_run_escrow_open(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Starts the thread that writes sealed copies of checkpoints. Call when the run trains. */
clv_code clv_run_escrow_start(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* prints which copies were sealed since the last call */
void clv_run_print_escrow_notes(const clv_run *r);
void clv_run_escrow_stop(clv_run *r);
/* Restores the sealed copy of a step's checkpoint into the run folder, for `checkpoint gather`.
 * *ret: false if there is no such copy. */
clv_code clv_run_escrow_fetch(const clv_session_config *config, uint64_t step, bool *ret,
                              clv_err *err) CLV_USE_RESULT;
/* Restores the newest sealed copy into the run folder if its step is later than `step`, or if
 * `step` is CLV_CHECKPOINT_NONE. *ret: true if a copy was restored. */
clv_code clv_run_escrow_restore(clv_run *r, uint64_t step, bool *ret, clv_err *err) CLV_USE_RESULT;

/* ---- names of classes (run_classes.c) -------------------------------------------------------- */

typedef struct clv_classes {
  char *text;
  const char **names; /* [n] names of the classes in the order of their numbers */
  size_t n;           /* number of classes; 0: the run has no names */
} clv_classes;

void clv_classes_free(clv_classes *c); /* frees and zeroes */
/* Parses a file of class names; `text` may have any bytes. CLV_DATA_LOSS: the file is damaged; err
 * names `label` and the line. */
clv_code clv_classes_parse(const char *text, size_t len, const char *label, clv_classes *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Reads the class names of the run in `dir`; ret->n 0: the run has no such file. */
clv_code clv_classes_read(const char *dir, clv_classes *ret, clv_err *err) CLV_USE_RESULT;
/* Compares the class names `c` with those of the data set `d`, which errors call `label`.
 * CLV_DATA_LOSS: the names differ; err names the difference and the source of the names. */
clv_code clv_run_compare_classes(const clv_run *r, const clv_classes *c, const clv_dataset *d,
                                 const char *label, clv_err *err) CLV_USE_RESULT;
/* Writes the class names of the training images into the run folder. Fails if a resumed run has
 * other class names. */
clv_code clv_run_write_classes(const clv_run *r, clv_err *err) CLV_USE_RESULT;

/* ---- values learnt from a training table (run_table.c) --------------------------------------- */

/* Makes the run print a notice when it reads a table that is larger than memory. Call before data
 * are opened. */
void clv_run_report_table_reading(clv_run *r);
/* Reads table.json of the run: values learnt from the training table, such as its categories. *ret
 * stays NULL if the run has no such file. CLV_DATA_LOSS: the file is damaged. */
clv_code clv_run_read_learnt(const clv_run *r, clv_learnt **ret, clv_err *err) CLV_USE_RESULT;
/* Writes table.json: values learnt from the training table, such as its categories. Does nothing if
 * the data are no table. */
clv_code clv_run_write_learnt(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Appends, for each column of the training table, its range, its numbers of missing and of distinct
 * values, and warnings of suspicious values. As JSON, appends the member "columns", which is [] if
 * the data are no table. */
clv_code clv_run_describe_columns(const clv_run *r, bool writes_json, clv_bytes *out,
                                  clv_err *err) CLV_USE_RESULT;

/* ---- intervals from dropout (run_dropout.c) -------------------------------------------------- */

/* Mean and 95 % interval of each predicted value, as three tensors of equal shape; NULL: not
 * computed. */
typedef struct clv_interval_tensors {
  clv_tensor *mean, *low, *high;
} clv_interval_tensors;
void clv_interval_tensors_done(clv_interval_tensors *t); /* unreferences and zeroes */
/* Checks that --dropout-samples, if given, can be used with the model. CLV_INVALID: the model has
 * no dropout, or has other layers that compute differently in training. Call before anything is
 * sent. */
clv_code clv_run_check_dropout(const clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Computes all passes over data.test except the first, each with other values dropped. *outputs:
 * outputs of the first pass; receives the mean outputs of all passes. *ret: mean and interval of
 * the outputs, or with --probabilities of the probabilities. */
clv_code clv_run_sample_dropout(clv_run *r, clv_tensor **outputs, clv_interval_tensors *ret,
                                clv_err *err) CLV_USE_RESULT;
/* Returns the percentile of n ascending values, n > 0, by linear interpolation. quantile: from 0
 * to 1. */
double clv_percentile(const float *sorted, size_t n, double quantile);

/* ---- predictions as files (run_predictions.c) ------------------------------------------------ */

/* Formats of a file of predictions, in the order of the values of --format. */
typedef enum clv_predictions_format {
  CLV_PREDICTIONS_CSV,
  CLV_PREDICTIONS_JSONL,
  CLV_PREDICTIONS_NPY
} clv_predictions_format;

typedef struct clv_predictions {
  const clv_tensor *outputs; /* [rows, ...] f32, from which classes are computed */
  /* values to write in place of `outputs`, in its shape; NULL: `outputs` is written */
  const clv_tensor *probabilities;
  /* lower and upper ends of the intervals of the written values; NULL: no intervals */
  const clv_tensor *low, *high;
  const clv_dataset *data;
  const uint32_t *index; /* [rows] record of `data` that each row belongs to */
  const clv_classes *classes;
  clv_loss_kind loss; /* decides how a class is computed from outputs */
  /* [n_targets] losses of the targets, in the order of the outputs; NULL: records have one label */
  const clv_target_spec *targets;
  size_t n_targets;
  const clv_learnt *learnt; /* names of the targets' classes; NULL: print their numbers */
} clv_predictions;

/* Computes the probabilities of outputs [rows, ...]: softmax over the last dimension, e^x of
 * log-probabilities, or the logistic function. CLV_INVALID: the loss predicts numbers, which have
 * no probabilities. */
clv_code clv_predictions_compute_probabilities(const clv_tensor *outputs, clv_loss_kind loss,
                                               clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_predictions_compute_probabilities, for the loss of the session. A target that is a number
 * has no probabilities, so its outputs are copied unchanged. */
clv_code clv_run_compute_probabilities(const clv_session_config *c, const clv_tensor *outputs,
                                       clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

/* Predictions of several targets (run_target_predictions.c). The CSV columns of a target are its
 * predicted class or number; then, if the target has classes or is a yes or no, its outputs or
 * probabilities; then the ends of the intervals, if there are any. _add_header appends the names of
 * the columns after the column of ids, _add_csv the cells of a row after its id, _add_json the
 * member "targets" of a row's object, _add_names a JSON list with the names of all outputs. */
void clv_target_predictions_add_header(clv_bytes *out, const clv_predictions *r);
void clv_target_predictions_add_csv(clv_bytes *out, const clv_predictions *r, size_t row);
void clv_target_predictions_add_json(clv_bytes *out, const clv_predictions *r, size_t row);
void clv_target_predictions_add_names(clv_bytes *out, const clv_predictions *r);
/* Appends a text cell of CSV. Puts an apostrophe before a text that a spreadsheet would compute as
 * a formula. */
void clv_predictions_add_csv_text(clv_bytes *out, const char *text);

/* Writes predictions to the file `path`, readable by its owner only. Format npy: writes ids and
 * class names, if any, to PATH.json. */
clv_code clv_predictions_write(const clv_predictions *r, clv_predictions_format format,
                               const char *path, clv_err *err) CLV_USE_RESULT;

/* Returns the number of pages if classes of documents were predicted, so that the file has one line
 * per page in place of one per record; 0 otherwise (run_pages.c). */
size_t clv_predictions_page_count(const clv_predictions *r);
/* Appends the line of one page. page: index of the page, from 0. */
void clv_predictions_write_page(clv_bytes *out, const clv_predictions *r, size_t page);

/* ---- the cache of a frozen front, a first stage that does not learn (run_cache.c) ------------ */

/* Begins the cache of a session whose front (its frozen first stage) is cached: from now on the
 * worker keeps the front's output rows. Prints whether the worker still has the rows of an earlier
 * attempt. Call after the trainer has restored its checkpoint. */
clv_code clv_run_begin_cache(clv_run *r, clv_err *err) CLV_USE_RESULT;
/* Asks the worker to delete the cache, and prints the result. Call after a run has ended or
 * failed. */
void clv_run_end_cache(clv_run *r);

/* ---- the public session (run_public_session.c) ----------------------------------------------- */

/* Writes the session for the readers of a run's event files: without paths, addresses and
 * credentials. *ret_digest: digest of the complete session, as session.effective.yaml has it. */
clv_code clv_run_write_public_session(const clv_session_config *c, clv_bytes *ret,
                                      clv_sha256 *ret_digest, clv_err *err) CLV_USE_RESULT;
/* Appends the folder of the run's TensorBoard event files; nothing if the session has none. */
clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

#endif
