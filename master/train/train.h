/* SPDX-License-Identifier: Apache-2.0
 *
 * train: from a session file to trained weights. A *blueprint* is everything that can be known
 * without a network: stages, shapes, who learns, which tensors leave the master. A *trainer* is a
 * program on libcleave: a module for each stage and the loss, a context for each step.
 *
 * Threads: a blueprint is read-only once made; a trainer belongs to one thread.
 */
#ifndef CLEAVE_TRAIN_H
#define CLEAVE_TRAIN_H

#include "common/cli/cli.h"
#include "common/config/config.h"
#include "common/tensor/tensor.h"
#include "master/api/api.h"
#include "master/data/data.h"

/* Each is a module of libcleave, as are the loss and the loss of evaluations at home. */
enum { CLV_MAX_STAGES = 253 };

/* ---- blueprint --------------------------------------------------------------------------------- */

/* One tensor that leaves the master, per micro-batch. */
typedef struct clv_egress_row {
  char name[96]; /* "activation of stage 'a' (layer 2)" */
  cleave_sending_kind kind;
  uint32_t stage; /* of the module, as libcleave names it */
  uint32_t input; /* of a LEAF */
  int worker;     /* index into the session's workers */
  clv_dtype dtype;
  clv_shape shape;         /* dim 0 is the largest micro-batch; WEIGHTS: [] */
  uint64_t bytes_per_step; /* all micro-batches of a full step; WEIGHTS: once, when pushed */
  bool relayed;            /* it came from another worker and only passes through */
  uint64_t tensors, bytes; /* counted while running */
} clv_egress_row;

typedef struct clv_stage_plan {
  clv_graph *graph;   /* of a micro-batch */
  clv_params *params; /* with frozen ones marked */
  int worker;         /* index into the session's workers, -1 = master */
  bool input_needs_grad, participates;
  uint32_t n_learning;
  uint32_t first_layer, last_layer;
  bool direct; /* its output goes straight to the next stage's worker */
} clv_stage_plan;

typedef struct clv_blueprint {
  const clv_session_config *config; /* borrowed */
  clv_graph *whole;
  uint32_t n_stages;             /* of the model; the loss is stage n_stages */
  clv_stage_plan *stages;        /* [n_stages + 1], the loss last */
  clv_shape sample;              /* of one record, N = 1 */
  int64_t micro_size, eval_size; /* largest micro-batch, samples */
  uint32_t micro_batches, max_micro;
  clv_egress_row *egress;
  size_t n_egress;
  bool *worker_used; /* [config->n_workers] */
} clv_blueprint;

/* sample: shape of the data's x for one record with N = 1. Errors point into the session file. */
clv_code clv_blueprint_new(const clv_session_config *config, const clv_shape *sample,
                           clv_dtype label_dtype, clv_blueprint **ret, clv_err *err) CLV_USE_RESULT;
void clv_blueprint_free(clv_blueprint *b);
void clv_blueprint_freep(clv_blueprint **b);

/* Plans made here compute in bf16. A master that cannot, and has no stage itself, counts in f32. */
bool clv_blueprint_bf16(const clv_blueprint *b);

/* Stages, parameters, memory, bytes per step over each cut, and what leaves the network: text for
 * people or one JSON object. */
clv_code clv_blueprint_describe(const clv_blueprint *b, bool json, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;

/* The schedule as a grid, with what stages keep, or as one JSON object; ret_text: its instructions, as
 * pipeline.file takes them. */
clv_code clv_blueprint_draw(const clv_blueprint *b, bool json, clv_bytes *out, clv_bytes *ret_text,
                            clv_err *err) CLV_USE_RESULT;

/* The egress table as stable text: a run's table is compared with the one it began with. */
void clv_blueprint_egress_text(const clv_blueprint *b, clv_bytes *out);

/* ---- data ---------------------------------------------------------------------------------------- */

typedef struct clv_run_data {
  clv_dataset *train, *test; /* test NULL when the session names none */
  clv_subset train_rows, validation_rows, test_rows;
} clv_run_data;

clv_code clv_run_data_open(const clv_session_config *config, bool need_train, clv_run_data *ret,
                           clv_err *err) CLV_USE_RESULT;
void clv_run_data_done(clv_run_data *d);

/* Every class label has an output of the last stage; CLV_INVALID points at the data. */
clv_code clv_run_data_fits(const clv_run_data *d, const clv_blueprint *b,
                           clv_err *err) CLV_USE_RESULT;

/* ---- trainer ------------------------------------------------------------------------------------- */

typedef struct clv_trainer clv_trainer;

typedef struct clv_step_result {
  double loss;      /* mean over the batch */
  uint64_t correct; /* right classes among `samples`, with class labels and the loss at home */
  uint64_t samples;
  double grad_norm, lr;
  bool applied;     /* false: a gradient was not finite and no stage moved */
  uint64_t wait_ns; /* time the master waited for packets */
  uint64_t step_ns;
} clv_step_result;

/* Connects to the workers, opens the session and loads all stages. BLOCKS. */
clv_code clv_trainer_open(const clv_blueprint *b, clv_trainer **ret, clv_err *err) CLV_USE_RESULT;
/* Closes the session everywhere. NULL is allowed. */
void clv_trainer_close(clv_trainer *t);

uint64_t clv_trainer_step_count(const clv_trainer *t); /* committed steps */

/* The length of the whole run, resumed parts included, in steps: where cosine and linear schedules
 * end unless the session states train.schedule.total_steps. Unset, they stay at their start. */
void clv_trainer_set_length(clv_trainer *t, uint64_t steps);

/* One training step on rows of x [n, ...] and y: *ret_done 1, *ret_results its result. Steps of an
 * asynchronous schedule are taken a round at a time: batches wait (copied) until there are enough, or
 * `flush`; then *ret_done are done, else 0. After a failure the trainer is of no more use: its text
 * names worker, step and cause. */
clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, bool flush, uint32_t *ret_done,
                          const clv_step_result **ret_results, clv_err *err) CLV_USE_RESULT;
uint32_t clv_trainer_waiting(const clv_trainer *t); /* batches that wait for their round */

/* What a person should be told since the last call ("window 4: ..."), or NULL. */
const char *clv_trainer_notice(clv_trainer *t);
/* The schedule as it is run now, as text; nothing before the first step. */
void clv_trainer_schedule_text(const clv_trainer *t, clv_bytes *out);

/* Mean loss and right classes over the rows. With `predictions`, the last stage's outputs are
 * written there: [rows, ...] f32, to be unreferenced by the caller. */
clv_code clv_trainer_eval(clv_trainer *t, const clv_dataset *data, const clv_subset *rows,
                          clv_step_result *ret, clv_tensor **predictions,
                          clv_err *err) CLV_USE_RESULT;

/* Write a checkpoint of all stages under run_dir. */
clv_code clv_trainer_save(clv_trainer *t, const char *run_dir, clv_cursor cursor,
                          clv_err *err) CLV_USE_RESULT;
/* Load the newest complete one. *ret_cursor: where the data go on. `notes` gets what was refused. */
clv_code clv_trainer_restore(clv_trainer *t, const char *run_dir, clv_cursor *ret_cursor,
                             clv_bytes *notes, clv_err *err) CLV_USE_RESULT;

/* Sums over all links of the master. */
void clv_trainer_traffic(clv_trainer *t, uint64_t *ret_up, uint64_t *ret_down);
/* Counts so far, one JSON object without a newline. */
void clv_trainer_egress_json(clv_trainer *t, clv_bytes *out);
/* The worker a failure is to be blamed on; "" for the master itself. */
const char *clv_trainer_lost_worker(clv_trainer *t);

/* ---- looking on -------------------------------------------------------------------------------- */

/* A trace of all nodes into a file, and a profile; either may be left out (NULL, false). Rounds then
 * wait for what nodes noted, a round trip each. Lives until the trainer is closed. */
typedef struct clv_observer clv_observer;
clv_code clv_observer_new(const char *trace, bool profile, clv_observer **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_observer_attach(clv_observer *o, clv_trainer *t); /* before its first step */
/* The profile of all rounds but the first. */
void clv_observer_text(const clv_observer *o, const clv_trainer *t, clv_bytes *out);
clv_code clv_observer_finish(clv_observer *o, clv_err *err) CLV_USE_RESULT; /* the file */
void clv_observer_free(clv_observer *o);

/* ---- runs ---------------------------------------------------------------------------------------- */

/* Why a run is to end early: a signal, or `stop`'s. */
enum { CLV_INTERRUPTED = 1, CLV_ASKED_TO_STOP = 2 };

typedef struct clv_run_options {
  uint64_t max_steps; /* stop after this many steps in all; 0 = as the session says */
  bool resume, fresh, accept_egress, json;
  bool log_json;                   /* progress as JSON too */
  const volatile int *interrupted; /* set by a signal: finish the step, write a checkpoint */
  const char *out;                 /* predict: a .npy file; plan: the schedule's instructions */
  const char *trace;               /* train: a file for chrome://tracing and Perfetto */
  bool profile, schedule;          /* train; plan */
  bool watch;                      /* status, with interval_s between two looks; 0: 1 */
  double interval_s;
  bool suggest_cuts; /* plan, with the next two: "w1=20:1000", "w1=8" */
  const char *const *links, *const *speeds;
  size_t n_links, n_speeds;
} clv_run_options;

/* Each prints what a person wants to see, reports errors on stderr and returns the exit code. */
clv_exit clv_run_train(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_eval(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_predict(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_plan(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_check(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_doctor(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_show_status(const clv_session_config *config, const clv_run_options *o);

#endif
