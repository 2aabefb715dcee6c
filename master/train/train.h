/* SPDX-License-Identifier: Apache-2.0
 *
 * train: trains or evaluates a blueprint. A *trainer* is a program on libcleave with one module per
 * stage, one for the loss, and one context per step.
 *
 * A command calls clv_trainer_open, clv_trainer_restore to resume, clv_trainer_step for each batch,
 * clv_trainer_eval and clv_trainer_begin_save between two steps, and at the end clv_trainer_close.
 *
 * Threads: only the thread that opened a trainer may use it.
 */
#ifndef CLEAVE_TRAIN_H
#define CLEAVE_TRAIN_H

#include "master/egress/egress.h"
#include "master/plan/plan.h"
#include "master/score/score.h"
#include "master/report/report.h"

/* ---- the trainer ----------------------------------------------------------------------------- */

typedef struct clv_trainer clv_trainer;

typedef struct clv_step_result {
  double loss; /* mean loss over the batch or the evaluation */
  /* number of right predictions among the n_labelled ones; 0 for losses without classes and, in
   * training, for a loss at a worker */
  uint64_t n_correct;
  uint64_t samples; /* number of samples in the batch or the evaluation */
  /* number of labels: one per sample or, if labels are class numbers, the labels that are not
   * ignored */
  uint64_t n_labelled;
  /* evaluations with several targets: [n_targets] mean loss of each target over the records that
   * have a label of this target, without its loss_weight; NaN: no record has such a label */
  double target_losses[CLV_MAX_TARGETS];
  /* [n_targets] number of records that have a label of the target */
  uint64_t n_target_labels[CLV_MAX_TARGETS];
  double grad_norm, lr;
  bool changed_weights; /* false: a loss or gradient was not finite, so the step was skipped */
  uint64_t wait_ns;     /* nanoseconds that the master waited for packets */
  uint64_t step_ns;     /* nanoseconds that the step took */
} clv_step_result;

/* Returns n_correct / n_labelled; NaN if n_labelled is 0. */
double clv_step_accuracy(const clv_step_result *r);

typedef enum clv_trainer_use {
  CLV_TRAINER_NEW_RUN,     /* starts from the weights that the session names */
  CLV_TRAINER_RESUMED_RUN, /* loads a checkpoint next, so it reads and sends no weight files */
  CLV_TRAINER_EVALUATION,  /* loads a checkpoint next and does not train: no node has moments */
  CLV_TRAINER_TRIAL        /* sends random numbers in place of records; the egress record says so */
} clv_trainer_use;

/* Connects to the workers, opens the session and loads all stages. BLOCKS. record: the egress
 * record, to which the trainer writes allowances of bytes before it sends tensors; it must outlive
 * the trainer. NULL: no tensor may leave. After a failure *ret is NULL, or a trainer with which the
 * caller may only call clv_trainer_lost_worker and clv_trainer_close. */
clv_code clv_trainer_open(const clv_blueprint *b, clv_egress_record *record, clv_trainer_use use,
                          clv_trainer **ret, clv_err *err) CLV_USE_RESULT;
/* Closes the session at the master and all workers, and frees the trainer. NULL is allowed. */
void clv_trainer_close(clv_trainer *t);

/* Returns the number of steps that all nodes have committed. */
uint64_t clv_trainer_step_count(const clv_trainer *t);

/* Sets the length of the complete run in steps, including steps before a resume. Cosine and linear
 * schedules of the learning rate end at that step unless the session sets
 * train.schedule.total_steps. Before this call such a schedule gives each step the rate of the
 * first step. */
void clv_trainer_set_total_steps(clv_trainer *t, uint64_t n_steps);

/* Begins the cache of a session whose first stage is frozen and cached; does nothing for other
 * sessions. From now on the worker behind that stage keeps the stage's output rows for the records
 * of `data`, which must outlive the trainer. The cache's key is derived from `secret`, a digest of
 * the run, its records and the front's weights. If the worker still has the rows of all records
 * under that key, the master sends none of them again and *ret_worker is the worker's name; else
 * NULL. *ret_deleted: number of rows that the worker has now deleted, because version 0.7 or
 * earlier wrote them. CLV_INVALID: the worker has no cache. */
clv_code clv_trainer_begin_cache(clv_trainer *t, const clv_dataset *data, const clv_sha256 *secret,
                                 const char **ret_worker, uint64_t *ret_deleted,
                                 clv_err *err) CLV_USE_RESULT;
/* Asks the worker to delete the cached rows. BLOCKS for one call. *ret_rows: number of deleted
 * rows; *ret_worker: name of the worker, NULL if nothing was cached. */
clv_code clv_trainer_end_cache(clv_trainer *t, const char **ret_worker, uint64_t *ret_rows,
                               clv_err *err) CLV_USE_RESULT;

/* Takes one training step on a batch. *ret_done: number of steps done, *ret_results: their results,
 * owned by the trainer until the next call. A synchronous schedule always does one step. An
 * asynchronous schedule does a round at a time: it holds a copy of the batch and sets *ret_done to
 * 0 until the round is full or `flushes` is true. After a failure the trainer can only be closed;
 * the error names worker, step and reason. */
clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, bool flushes, uint32_t *ret_done,
                          const clv_step_result **ret_results, clv_err *err) CLV_USE_RESULT;
/* Returns the number of batches that wait for a full round. */
uint32_t clv_trainer_count_held_batches(const clv_trainer *t);

/* Appends to *ret the notices for the user that were queued since the last call, one per line. */
void clv_trainer_take_notes(clv_trainer *t, clv_bytes *ret);
/* Returns a notice ("window 4: ...") if the schedule has changed since the last call; else NULL. */
const char *clv_trainer_take_notice(clv_trainer *t);
/* Appends the present schedule as text; appends nothing before the first step. */
void clv_trainer_append_schedule_text(const clv_trainer *t, clv_bytes *out);

/* Returns the class with the largest output of one row. */
size_t clv_argmax_row(const float *output, size_t n_classes);
/* Returns true if an output of a binary loss is above the threshold: 0 for bce_with_logits, 0.5 for
 * bce, whose outputs are probabilities. */
bool clv_is_positive_output(clv_loss_kind loss, float output);
/* Counts the right rows among n rows of `width` outputs of a binary loss. A row is right if each
 * output is positive exactly where the label is positive. */
size_t clv_count_correct_binary(clv_loss_kind loss, const float *output, const float *labels,
                                size_t n, size_t width);

/* Computes the mean loss and the number of right predictions over the rows. scores: [n_targets], or
 * [1] if records have one label; each is reset and gets every prediction; NULL: no scores are
 * wanted. predictions: receives the outputs of the last stage, [rows, ...] f32, which the caller
 * unreferences; NULL: not wanted. */
clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_score *const *scores, clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) CLV_USE_RESULT;

/* Lets the next evaluations compute with dropout on, as in training, one batch at a time. The keys
 * of the layers, `pass` and the batch decide which values are dropped. pass 0: dropout is off
 * again. */
void clv_trainer_set_dropout_pass(clv_trainer *t, uint64_t pass);

/* bytes of the text of a clv_early_stopping_state, with its NUL */
enum { CLV_EARLY_STOPPING_TEXT_BYTES = 128 + CLV_BEST_TARGET_BYTES };

/* The validations of a run as early stopping has counted them. */
typedef struct clv_early_stopping_state {
  clv_best_metric score; /* number that was compared; CLV_BEST_NONE: no validation was counted */
  bool has_best;         /* true: some validation had a finite value, so `best` is set */
  double best;           /* best value */
  uint64_t best_step;    /* step of the best value */
  /* number of last consecutive validations that have not improved on `best` */
  uint64_t n_without_improvement;
  char target[CLV_BEST_TARGET_BYTES]; /* target that has the score; "": the evaluation itself */
} clv_early_stopping_state;

/* Writes `s` as the text that a checkpoint stores; "": no validation was counted. */
void clv_early_stopping_format(const clv_early_stopping_state *s,
                               char text[CLV_EARLY_STOPPING_TEXT_BYTES]);
/* Parses a text that clv_early_stopping_format has written. Returns false for any other text. */
bool clv_early_stopping_parse(const char *text, clv_early_stopping_state *ret);

/* State of the training loop, which a checkpoint stores beside the state of the stages. Because it
 * has the counts of skipped steps, after which a run ends as diverged, a resumed run ends at the
 * same step. */
typedef struct clv_train_position {
  clv_cursor cursor;           /* position in the data from which training continues */
  uint64_t n_skipped_in_a_row; /* number of last consecutive steps that changed no weight */
  /* steps of the run that changed no weight, because the loss or a gradient was not finite */
  uint64_t n_bad_losses, n_bad_gradients;
  clv_early_stopping_state early_stopping_state;
} clv_train_position;
/* Reads the position of a checkpoint. Counts that are missing or malformed become 0. */
void clv_trainer_read_position(const clv_trainer_state *s, clv_train_position *ret);

/* Begins a checkpoint of all stages under run_dir. When this function returns, workers are still
 * writing the files that stay at workers, and all other files are written. Does nothing if the
 * checkpoint of this step exists. Call only if no checkpoint is in progress. BLOCKS. */
clv_code clv_trainer_begin_save(clv_trainer *t, const char *run_dir,
                                const clv_train_position *position, clv_err *err) CLV_USE_RESULT;
typedef enum clv_save_result {
  CLV_SAVE_DONE,    /* the checkpoint is complete, or none was in progress */
  CLV_SAVE_PENDING, /* workers are still writing their files */
  /* A worker could not keep a file. A notice has the reason. The checkpoint was given up; the next
   * one is written without files at that worker. */
  CLV_SAVE_FAILED
} clv_save_result;
/* Options of clv_trainer_end_save, which completes a checkpoint. */
typedef struct clv_save_end_options {
  bool waits_for_files;  /* waits until the files are durable; false: the result may be PENDING */
  uint64_t step_to_keep; /* step of a checkpoint that is not deleted; CLV_CHECKPOINT_NONE: none */
  /* called before the manifest is renamed to its final name; if it fails, so does
   * clv_trainer_end_save */
  clv_file_check_fn *check_before_rename;
  void *check_user;
} clv_save_end_options;
/* Completes the checkpoint in progress if its files are durable. Then deletes older checkpoints as
 * checkpoint.keep says. Call between steps. */
clv_code clv_trainer_end_save(clv_trainer *t, const clv_save_end_options *options,
                              clv_save_result *ret, clv_err *err) CLV_USE_RESULT;
/* Deletes older checkpoints as checkpoint.keep says, with their files at workers, as
 * clv_trainer_end_save does. */
clv_code clv_trainer_prune_checkpoints(clv_trainer *t, const char *run_dir, uint64_t step_to_keep,
                                       clv_err *err) CLV_USE_RESULT;
bool clv_trainer_is_saving(const clv_trainer *t); /* true while a checkpoint is in progress */
/* Loads the newest complete checkpoint whose files are in the folder or at the workers of their
 * stages. Appends to `notes` a line for each newer checkpoint that it cannot use, and a line if
 * another CPU computed the checkpoint. CLV_DATA_LOSS: a file at a worker is lost, and no older
 * checkpoint can be used; the text names stage, worker and step. */
clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_train_position *ret,
                             clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* As clv_trainer_restore, but loads checkpoint `c`. */
clv_code clv_trainer_restore_from(clv_trainer *t, const clv_checkpoint *c, clv_train_position *ret,
                                  clv_bytes *notes, clv_err *err) CLV_USE_RESULT;

/* Adds the weights in a file that was fetched from the worker `identity` to the ledger, because
 * that worker knows them. is_optimizer: the file has optimiser state, and only its averages
 * of weights are added. */
clv_code clv_note_gathered_weights(const char *path, const char *identity, bool is_optimizer,
                                   clv_err *err) CLV_USE_RESULT;

/* Asks each worker how many bytes it has sent to other workers, and adds the answers to the egress
 * record. Ignores workers that do not answer. BLOCKS for one call to each worker at most. */
void clv_trainer_record_direct_bytes(clv_trainer *t);

/* Returns the bytes sent and received over all links of the master. */
void clv_trainer_count_traffic(clv_trainer *t, uint64_t *ret_sent_bytes,
                               uint64_t *ret_received_bytes);
/* Returns the name of the worker whose loss made the trainer fail; "": no worker was lost. */
const char *clv_trainer_lost_worker(clv_trainer *t);

/* ---- profiling of rounds --------------------------------------------------------------------- */

typedef struct clv_profiler clv_profiler;
/* Makes a profiler, which writes a trace of all nodes to the file trace_path (NULL: no trace) and,
 * if collects_profile, sums up a profile. Each round then takes one round trip longer, to fetch the
 * events of the nodes. Free the profiler after the trainer is closed. */
clv_code clv_profiler_new(const char *trace_path, bool collects_profile, clv_profiler **ret,
                          clv_err *err) CLV_USE_RESULT;
/* Makes the trainer report its rounds to the profiler. Call before the first step. */
void clv_profiler_attach(clv_profiler *o, clv_trainer *t);
/* Appends the profile of all rounds except the first. */
void clv_profiler_append_text(const clv_profiler *o, const clv_trainer *t, clv_bytes *out);
/* Completes the file of the trace. */
clv_code clv_profiler_finish(clv_profiler *o, clv_err *err) CLV_USE_RESULT;
void clv_profiler_free(clv_profiler *o);

/* The time that the master's node waited in a round, in seconds, by cause. All 0: not measured. */
typedef struct clv_waits {
  double network_s; /* while a tensor was in flight, to the master or to a node that will compute */
  double peer_s;    /* while another node computed */
  double own_s;     /* while no tensor was in flight and no other node computed */
} clv_waits;
/* Callback with the waits of a round. The trainer calls it about every 16th round, at most a few
 * times a second. fn NULL: no callback. */
typedef void clv_waits_fn(void *user, const clv_waits *waits);
void clv_trainer_set_on_waits(clv_trainer *t, clv_waits_fn *fn, void *user);

/* _micro_batches returns the present number of micro-batches, _window the present window (0: the
 * schedule has none). */
uint32_t clv_trainer_micro_batches(const clv_trainer *t);
uint32_t clv_trainer_window(const clv_trainer *t);
cleave_runtime *clv_trainer_runtime(const clv_trainer *t);

/* ---- trials that choose the number of micro-batches (trial.c) -------------------------------- */

/* Chooses the number of micro-batches of a run. Takes trial steps on random numbers, in separate
 * sessions with the workers, and prints the choice to standard output, as JSON if prints_json, and
 * to the journal. b: a blueprint with any number of micro-batches. BLOCKS. */
clv_code clv_choose_micro_batches(const clv_blueprint *b, clv_egress_record *record,
                                  bool prints_json, clv_journal *journal, uint64_t *ret,
                                  clv_err *err) CLV_USE_RESULT;
/* Reads the number of micro-batches that the run in run_dir has chosen. */
clv_code clv_read_micro_batches(const char *run_dir, uint64_t *ret, clv_err *err) CLV_USE_RESULT;

#endif
