/* SPDX-License-Identifier: Apache-2.0
 *
 * train: from a blueprint to trained weights. A *trainer* is a program on libcleave: a module for
 * each stage and the loss, a context for each step.
 *
 * Threads: a trainer belongs to one thread.
 */
#ifndef CLEAVE_TRAIN_H
#define CLEAVE_TRAIN_H

#include "master/egress/egress.h"
#include "master/plan/plan.h"
#include "master/score/score.h"
#include "master/report/report.h"

/* ---- trainer --------------------------------------------------------------------------------- */

typedef struct clv_trainer clv_trainer;

typedef struct clv_step_result {
  double loss;      /* mean over the batch */
  uint64_t correct; /* right ones among those judged, if they can be and the loss is at home */
  uint64_t samples, judged; /* judged: of labels per place the places that are not ignored */
  double grad_norm, lr;
  bool applied;     /* false: a gradient was not finite and no stage moved */
  uint64_t wait_ns; /* time the master waited for packets */
  uint64_t step_ns;
} clv_step_result;

/* Of those judged; NaN where there are none. */
double clv_step_accuracy(const clv_step_result *r);

typedef enum clv_trainer_use {
  CLV_TRAINER_BEGINS,    /* with the weights that the session names */
  CLV_TRAINER_RESUMES,   /* a checkpoint follows: no file of weights is read, or sent */
  CLV_TRAINER_EVALUATES, /* the same, and nothing learns: no node has moments */
  CLV_TRAINER_TRIAL      /* what goes through the stages is made of random numbers, and the record
                            says so */
} clv_trainer_use;

/* Connects to the workers, opens the session and loads all stages. BLOCKS. record: what leaves is
 * written there ahead; it outlives the trainer. NULL: nothing may leave. */
clv_code clv_trainer_open(const clv_blueprint *b, clv_egress_record *record, clv_trainer_use use,
                          clv_trainer **ret, clv_err *err) CLV_USE_RESULT;
/* Closes the session everywhere. NULL is allowed. */
void clv_trainer_close(clv_trainer *t);

uint64_t clv_trainer_step_count(const clv_trainer *t); /* committed steps */

/* The length of the whole run, resumed parts included, in steps: where cosine and linear schedules
 * end unless the session states train.schedule.total_steps. Unset, they stay at their start. */
void clv_trainer_set_length(clv_trainer *t, uint64_t steps);

/* Of a session whose first stage is cached: rows of its output for records of `data`, which
 * outlives the trainer, are kept by the worker behind it from here on. The cache's key follows from
 * `secret`, which stands for the run, its records and the front's weights. Where an earlier attempt
 * left the rows of all records under that key, none is sent again, and *ret_worker is who has them;
 * else NULL. *ret_dropped: rows that an attempt of version 0.7 had left, which the worker has
 * deleted. CLV_INVALID: that worker keeps none. Of other sessions nothing. */
clv_code clv_trainer_begin_cache(clv_trainer *t, const clv_dataset *data, const clv_sha256 *secret,
                                 const char **ret_worker, uint64_t *ret_dropped,
                                 clv_err *err) CLV_USE_RESULT;
/* BLOCKS for one call: the worker deletes them. *ret_rows: that were there; *ret_worker: its name,
 * NULL where nothing was cached. */
clv_code clv_trainer_end_cache(clv_trainer *t, const char **ret_worker, uint64_t *ret_rows,
                               clv_err *err) CLV_USE_RESULT;

/* One training step on rows of x [n, ...] and y: *ret_done 1, *ret_results its result. Steps of an
 * asynchronous schedule are taken a round at a time: batches wait (copied) until there are enough,
 * or `flush`; then *ret_done are done, else 0. After a failure the trainer is of no more use: its
 * text names worker, step and reason. */
clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, bool flush, uint32_t *ret_done,
                          const clv_step_result **ret_results, clv_err *err) CLV_USE_RESULT;
uint32_t clv_trainer_n_held(const clv_trainer *t); /* batches that wait for their round */

/* What a person should be told of since the last call, a line each, added to *ret. */
void clv_trainer_take_notes(clv_trainer *t, clv_bytes *ret);
/* What the schedule does otherwise since the last call ("window 4: ..."), or NULL. */
const char *clv_trainer_take_notice(clv_trainer *t);
/* The schedule as it is run now, as text; nothing before the first step. */
void clv_trainer_schedule_text(const clv_trainer *t, clv_bytes *out);

/* Of one row: the class with the largest output. */
size_t clv_argmax_row(const float *output, size_t classes);
/* On which side of the threshold an output of a binary loss is: bce's are probabilities. */
bool clv_is_positive(clv_loss_kind loss, float output);
/* Rows of n * width outputs that are all on the side of their labels. */
size_t clv_count_correct_binary(clv_loss_kind loss, const float *output, const float *labels,
                                size_t n, size_t width);

/* Mean loss and right answers over the rows. With `score` (else NULL) it is started, and every
 * answer is added to it. With `predictions`, the last stage's outputs are
 * written there: [rows, ...] f32, to be unreferenced by the caller. */
clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_score *score, clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) CLV_USE_RESULT;

/* Write a checkpoint of all stages under run_dir, and delete older ones as the session says, but
 * for that of step `spared` (CLV_CHECKPOINT_NONE: none). */
clv_code clv_trainer_save(clv_trainer *t, const char *run_dir, clv_cursor cursor, uint64_t spared,
                          clv_err *err) CLV_USE_RESULT;
/* Load the newest complete one. *ret_cursor: where the data go on. `notes` gets a line for
 * whatever was refused, and what else there is to say. */
clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_cursor *ret_cursor,
                             clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
/* The same of one that was chosen. */
clv_code clv_trainer_restore_from(clv_trainer *t, const clv_checkpoint *c, clv_cursor *ret_cursor,
                                  clv_bytes *notes, clv_err *err) CLV_USE_RESULT;

/* BLOCKS, a call to each worker at most. What workers say that they have sent each other goes to
 * the record; who does not answer says nothing. */
void clv_trainer_report_hops(clv_trainer *t);

/* Sums over all links of the master. */
void clv_trainer_traffic(clv_trainer *t, uint64_t *ret_up, uint64_t *ret_down);
/* The worker a failure is to be blamed on; "" for the master itself. */
const char *clv_trainer_lost_worker(clv_trainer *t);

/* ---- looking on ------------------------------------------------------------------------------ */

/* A trace of all nodes into a file, and a profile; either may be left out (NULL, false). Rounds
 * then wait for what nodes noted, a round trip each. Lives until the trainer is closed. */
typedef struct clv_profiler clv_profiler;
clv_code clv_profiler_new(const char *trace, bool profile, clv_profiler **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_profiler_attach(clv_profiler *o, clv_trainer *t); /* before its first step */
/* The profile of all rounds but the first. */
void clv_profiler_text(const clv_profiler *o, const clv_trainer *t, clv_bytes *out);
clv_code clv_profiler_finish(clv_profiler *o, clv_err *err) CLV_USE_RESULT; /* the file */
void clv_profiler_free(clv_profiler *o);

/* For what the master's node waited in a round, seconds: tensors on their way, to it or to who
 * makes what it waits for; others that computed; neither. All 0: not known. */
typedef struct clv_waits {
  double network, peer, own;
} clv_waits;
/* It is told every sixteenth round or so, a few times a second at most; NULL: nobody is. */
typedef void clv_waits_fn(void *user, const clv_waits *waits);
void clv_trainer_set_on_waits(clv_trainer *t, clv_waits_fn *fn, void *user);

/* As it is now; a window of 0: the schedule has none. */
uint32_t clv_trainer_micro_batches(const clv_trainer *t);
uint32_t clv_trainer_window(const clv_trainer *t);
cleave_runtime *clv_trainer_runtime(const clv_trainer *t);

/* ---- micro-batches: auto (trial.c) ----------------------------------------------------------- */

/* In how many parts the batches of a run are to be cut, by trial steps on random numbers in
 * sessions of their own; says so on standard output and in the journal. b: any number of them.
 * Connects. */
clv_code clv_choose_micro_batches(const clv_blueprint *b, clv_egress_record *record, bool json,
                                  clv_journal *journal, uint64_t *ret, clv_err *err) CLV_USE_RESULT;
/* That of the run in the folder. */
clv_code clv_read_micro_batches(const char *run_dir, uint64_t *ret, clv_err *err) CLV_USE_RESULT;

#endif
