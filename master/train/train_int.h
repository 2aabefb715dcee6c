/* SPDX-License-Identifier: Apache-2.0
 *
 * train_int: internals of the trainer. modules.c connects and loads, egress.c gets allowances of
 * bytes from the egress record, schedules.c keeps placed schedules (schedules with the positions of
 * all calls), packed.c packs sequences, stage_inputs.c cuts batches, steps.c trains, front_cache.c
 * sends rows of a frozen front to a worker that keeps them, accuracy.c counts right predictions,
 * measure.c measures links and stages, profiler.c writes traces and profiles, trial.c chooses the
 * number of micro-batches, eval.c evaluates, save.c saves checkpoints, state.c restores
 * checkpoints, resplit.c restores those of another cut, and send_state.c sends state.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include <pthread.h>

#include "common/model/models/models.h"
#include "master/report/report.h"
#include "master/train/train.h"

/* largest number of placed schedules that a trainer keeps: for full and for short batches, with the
 * old and the new window */
enum { MAX_KEPT_SCHEDULES = 4 };

/* ---- the trainer and its parts --------------------------------------------------------------- */

/* One micro-batch of the round in progress. */
typedef struct clv_micro_batch {
  size_t start, size; /* index of the first row in the batch; number of rows */
  uint32_t batch;     /* index of the batch in the round */
} clv_micro_batch;

/* A batch of a round. A batch that waits for a full round has copies of the tensors, because the
 * loader reuses the memory of a batch after one step. */
typedef struct clv_held_batch {
  clv_tensor *x[CLV_MAX_INPUTS], *y; /* inputs, one for each input of the blueprint; labels */
  /* [n] numbers of the records, caller-owned; read only if the session has a cache */
  const uint32_t *index;
  size_t n; /* number of records */
} clv_held_batch;

/* State of the measurement of links and stages: the step that is measured next, and the events of
 * the measured step. */
typedef struct clv_step_meter {
  bool is_window_auto;         /* pipeline.window is auto */
  uint64_t next_measured_step; /* the next step to measure */
  double usual_step_s;         /* running mean of the seconds of a step; 0: no step yet */
  cleave_event *events;        /* events of the measured context; filled under the runtime's lock */
  size_t n_events, cap_events;
  /* Callback for each round, which writes a trace or a profile and may sort the events. NULL: no
   * callback, and only some rounds are measured. */
  void (*on_measured)(void *user, clv_trainer *t, const clv_placed_schedule *l);
  void *on_measured_user;
  clv_waits_fn *on_waits; /* callback of clv_trainer_set_on_waits; NULL: none */
  void *waits_user;
  uint64_t next_measure_ns; /* earliest time of the next measurement for on_waits */
} clv_step_meter;

/* The gate of a trainer, which every sent tensor passes, and the flows of its egress record:
 * balances of bytes that may still be sent (egress.c). */
typedef struct clv_trainer_egress {
  clv_egress_record *record; /* caller-owned; NULL: no tensor may leave */
  bool has_random_values;    /* the trainer sends random numbers in place of records (a trial) */
  /* the gate, which every sent tensor passes; the trainer owns the arrays in it */
  clv_gate gate;
  /* [2 * n_stages] flows (balances of bytes) of the value that a stage sends over a direct link,
   * and of its gradient */
  clv_row_flow *direct_flows;
  /* number that identifies the kind of batch for which allowances were written: 8 * samples + 2 *
   * cache use + 1 if training; 0: no allowances were written */
  uint64_t allowance_key;
} clv_trainer_egress;

/* How the master uses the cache of the front (the frozen first stage) for a batch: CLV_CACHE_NONE:
 * not at all; CLV_CACHE_NUMBERS: sends only record numbers; CLV_CACHE_ROWS: sends rows, which the
 * worker keeps. */
typedef enum clv_cache_use { CLV_CACHE_NONE, CLV_CACHE_NUMBERS, CLV_CACHE_ROWS } clv_cache_use;

/* The cache of a frozen first stage, the front: the worker of the second stage keeps the rows of
 * the front's output (front_cache.c). */
typedef struct clv_trainer_cache_rows {
  const clv_dataset *data;    /* the records whose rows are kept; NULL: no cache */
  cleave_cached worker_cache; /* the cache as libcleave knows it at the worker */
  bool *is_row_sent;          /* [records] true if the master has sent the row of the record */
  /* [records] number by which the worker knows the record: a random permutation, which hides the
   * record's position in the files */
  uint32_t *record_numbers;
  int64_t *batch_numbers; /* [records of a batch] the number of each record, from record_numbers */
  clv_cache_use use;      /* use of the cache for the present batch */
} clv_trainer_cache_rows;

struct clv_trainer {
  const clv_blueprint *b; /* blueprint that is trained; caller-owned */
  const clv_session_config *config;
  cleave_runtime *runtime;
  clv_trainer_egress egress;
  /* [n_stages + 1] the module of each stage, then the module of the loss */
  cleave_module **modules;
  /* [n_targets] module of each target's loss at the master, for evaluations; NULL until the first
   * evaluation */
  cleave_module **target_losses;
  cleave_module *local_loss_module; /* the loss for evaluations; NULL until the first evaluation */
  cleave_optimizer *optimizer;      /* optimiser of all modules; NULL: the trainer only evaluates */
  clv_trainer_use use;
  clv_trainer_cache_rows cache;
  struct clv_trainer_save *save_in_progress; /* the checkpoint in progress; NULL: none (save.c) */
  /* [n_stages] true: the worker of the stage keeps no files of checkpoints, so the master fetches
   * the state */
  bool *is_stage_fetched;
  uint64_t dropout_pass; /* number of the pass of evaluations with dropout; 0: without dropout */
  bool has_noted_kept_files; /* a notice has said which files stay at workers */
  /* checkpoints of this step and later steps have lost files, so they are written again;
   * CLV_CHECKPOINT_NONE: no checkpoint has lost files */
  uint64_t first_lost_step;
  char lost_worker[CLEAVE_NAME + 1]; /* name of the worker that was lost; "": none */
  uint64_t n_committed_steps;        /* steps that every node has committed */
  const char *activity;              /* "step", "checkpoint of step", ...; NULL while loading */
  uint64_t step_of_activity;         /* the step that `activity` belongs to */
  /* state of the round in progress */
  /* steps of a full round; number of batches in held_batches */
  uint32_t n_round_steps, n_held_batches;
  clv_held_batch *held_batches; /* [n_round_steps] batches that wait for a full round */
  /* [2 * n_round_steps] results of the last clv_trainer_step, which may end two rounds */
  clv_step_result *results;
  /* arrays of [n_round_steps * max_micro_batches] elements, one for each micro-batch of a round:
   * micro_batches, loss_references, loss_shares */
  clv_micro_batch *micro_batches;
  /* references to the outputs of the calls: by micro-batch, then by stage, the loss last */
  cleave_reference *output_references;
  cleave_reference *loss_references; /* value of the loss of each micro-batch */
  float *loss_shares;       /* weight of each micro-batch in the mean loss of its batch, above 0 */
  size_t *micro_batch_rows; /* [max_micro_batches] rows of the micro-batches of one batch */
  /* schedules that the trainer keeps, for full and short rounds; a placed schedule also has the
   * positions of all calls and optimiser steps */
  clv_placed_schedule *schedules[MAX_KEPT_SCHEDULES];
  uint32_t n_schedules, window;
  bool has_costs;
  /* times of stages and links when the window last changed; set if has_costs */
  clv_sched_costs costs;
  clv_step_meter step_meter;
  char notice[256], taken_notice[256]; /* notice about the schedule; the last one taken; "": none */
  pthread_mutex_t notes_lock;          /* protects `notes` */
  /* lines for the user, which clv_trainer_take_notes returns */
  clv_bytes notes;
  cleave_tensor fetched_value; /* value that was fetched last from a node */
  /* [pack_buffer_bytes] scratch of packed sequences (packed.c) */
  void *pack_buffer;
  size_t pack_buffer_bytes;
};

/* Returns the placed schedule of a round of n_steps steps with n_micro micro-batches in all. Makes
 * the schedule if the trainer does not have it. The trainer owns *ret. */
clv_code clv_trainer_placed_schedule(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                                     const clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_trainer_forget_schedules(clv_trainer *t);
/* Frees the copies of the batches that wait for a full round. */
void clv_trainer_drop_held_batches(clv_trainer *t);

/* ---- measurement of steps (measure.c) -------------------------------------------------------- */

/* Queues a notice for the user. Callback of cleave_options.on_notice; the trainer also calls this
 * function itself. Thread-safe. */
void clv_trainer_on_notice(void *trainer, const char *text);
/* Callback of cleave_options.on_event: stores an event of the measured context. user: the
 * trainer. */
void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event);
/* Returns true if the trainer has to measure the round that begins, and empties the list of
 * events. */
bool clv_step_meter_begin(clv_trainer *t);
/* Evaluates the measurement of a round and chooses the window. The trainer calls this function
 * after each round. is_measured: the events of the round have been stored; seconds: duration of the
 * round. */
clv_code clv_step_meter_end(clv_trainer *t, const clv_placed_schedule *l, bool is_measured,
                            double seconds, clv_err *err) CLV_USE_RESULT;
void clv_step_meter_free_events(clv_step_meter *w);
/* Finds stage and micro-batch of an event of the round. Returns false if the event belongs to no
 * stage. */
bool clv_step_meter_locate(const clv_trainer *t, const clv_placed_schedule *l,
                           const cleave_event *e, uint32_t *ret_stage, uint32_t *ret_micro);

/* Sums up the waits of the measured round. Sorts the stored events. (profiler.c) */
void clv_step_meter_sum_waits(clv_trainer *t, const clv_placed_schedule *l, clv_waits *ret);

/* Computes the times of stages and links (costs) from the events of the measured round. Measures
 * the round-trip times of all links. */
clv_code clv_step_meter_measure(clv_trainer *t, const clv_placed_schedule *l, clv_sched_costs *ret,
                                clv_err *err) CLV_USE_RESULT;

/* Converts a failure of libcleave to an error of the trainer, with step, worker and reason in its
 * text. Stores the worker's name in t->lost_worker if the failure is the loss of this worker. */
clv_code clv_trainer_convert_error(clv_trainer *t, const cleave_error *reason, clv_err *err);
/* Sets the activity and the step that later errors name. activity: static text. */
void clv_trainer_set_activity(clv_trainer *t, const char *activity, uint64_t step);
/* Calls a function of libcleave, and returns the converted error if the call fails. For functions
 * that return clv_code and have a trainer `t` and an error `err`. */
#define CLV_TRY_API(call)                                                           \
  do {                                                                              \
    cleave_error api_error_;                                                        \
    if ((call) != CLEAVE_OK) return clv_trainer_convert_error(t, &api_error_, err); \
  } while (0)
#define CLV_API_ERROR &api_error_

/* Returns n rows of a batch from row `start` on, as an input tensor for libcleave. */
cleave_tensor clv_batch_rows(const clv_tensor *batch, size_t start, size_t n);

/* ---- packed sequences (packed.c) ------------------------------------------------------------- */

/* n sequences of a batch from `start` on. lengths: [n]; NULL: the session packs no sequences. */
typedef struct clv_sequences {
  const int64_t *lengths;
  size_t start, n;
  /* number of rows to send: the sum of the sequences' positions, rounded up so that nodes make
   * plans for few batch sizes */
  int64_t n_rows;
} clv_sequences;
/* Selects n sequences of the batch x from `start` on. CLV_INVALID: a length is out of range. */
clv_code clv_trainer_select_sequences(const clv_trainer *t, clv_tensor *const *x, size_t start,
                                      size_t n, clv_sequences *ret, clv_err *err) CLV_USE_RESULT;
/* Takes the rows of the sequences from a batch [B, ...]. has_positions: the batch is [B, S, ...];
 * the function packs the positions of the sequences into [s->n_rows, ...] and fills the remaining
 * rows with `fill_value`. *ret refers to the trainer's memory until the next call. */
clv_code clv_trainer_pack_rows(clv_trainer *t, const clv_sequences *s, const clv_tensor *batch,
                               bool has_positions, int64_t fill_value, cleave_tensor *ret,
                               clv_err *err) CLV_USE_RESULT;
/* As clv_trainer_pack_rows, for the labels of the loss. Remaining rows get the ignored label. */
clv_code clv_trainer_pack_labels(clv_trainer *t, const clv_sequences *s, const clv_tensor *y,
                                 cleave_tensor *ret, clv_err *err) CLV_USE_RESULT;
/* Unpacks the model's output to a batch [n, S, ...] with padding 0; returns `output` unchanged if
 * it is not packed. *ret refers to the trainer's memory until the next call. */
clv_code clv_trainer_unpack_output(clv_trainer *t, const clv_sequences *s,
                                   const cleave_tensor *output, cleave_tensor *ret,
                                   clv_err *err) CLV_USE_RESULT;

/* Fills the arguments of a stage into `in`; *n: their number. If there is a cut before the stage,
 * the caller has set in[0] to the value that crosses the cut. The other arguments are inputs x of
 * the model. */
clv_code clv_trainer_stage_inputs(clv_trainer *t, cleave_context context, uint32_t stage,
                                  clv_tensor *const *x, const clv_sequences *s,
                                  cleave_reference in[CLV_MAX_INPUTS], uint32_t *n,
                                  clv_err *err) CLV_USE_RESULT;
/* Makes the leaves (input tensors) of the loss with the labels y of sequences `s`. in[0] is the
 * prediction, which the caller sets; *n: number of inputs, with the prediction. */
clv_code clv_trainer_loss_inputs(clv_trainer *t, cleave_context context, const clv_sequences *s,
                                 const clv_tensor *y, cleave_reference in[CLV_MAX_INPUTS],
                                 uint32_t *n, clv_err *err) CLV_USE_RESULT;
/* Returns input k of a batch, from the loader or from a held copy. */
clv_tensor *clv_batch_input(const clv_batch *batch, size_t k);
/* Returns true for losses with classes and binary losses, whose predictions are right or wrong. */
bool clv_trainer_has_accuracy(const clv_trainer *t);
/* Counts the right rows among the n rows of a prediction. Their labels begin at row `start` of
 * `labels`. */
size_t clv_trainer_count_correct(const clv_trainer *t, const cleave_tensor *prediction,
                                 const clv_tensor *labels, size_t start, size_t n);
/* Returns true for a label that the loss leaves out, because it is equal to loss.ignore_index. */
bool clv_trainer_is_ignored_label(const clv_trainer *t, int64_t label);
/* Returns the divisor of the loss's mean over n rows: n, or, if labels are class numbers, the sum
 * of class weights of the labels that are not ignored. */
double clv_trainer_batch_weight(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                size_t n);
/* Returns n, or, if labels are class numbers, the number of labels in n rows that are not
 * ignored. */
size_t clv_trainer_count_labelled(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                  size_t n);
/* Makes the schedule of the learning rate. length: steps of the run; 0: unknown. */
cleave_schedule clv_trainer_make_schedule(const clv_session_config *c, uint64_t length);
/* Names of the parameters that learn, in two lists: [0] with weight decay, [1] without. The names
 * belong to the blueprint. */
typedef struct clv_trainer_decay_lists {
  const char **names[2];
  size_t n[2];
} clv_trainer_decay_lists;
void clv_trainer_free_decay_lists(clv_trainer_decay_lists *s);
/* Copies the optimiser group `group` to `ret`: once, or twice if biases and normalisations have no
 * weight decay. *ret_n: number of copies. The groups refer to `decay_lists`, which the caller frees
 * after their last use. */
clv_code clv_trainer_make_groups(const clv_blueprint *b, const cleave_group *group,
                                 clv_trainer_decay_lists *decay_lists, cleave_group ret[2],
                                 size_t *ret_n, clv_err *err) CLV_USE_RESULT;
/* Loads the loss of a target, without its loss_weight, into t->target_losses[target]. */
clv_code clv_trainer_load_target_loss(clv_trainer *t, size_t target, clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* ---- the cached outputs of a frozen first stage (front_cache.c) ------------------------------ */

/* Sets t->cache.use for a batch of n records, before clv_trainer_allow_batch. */
void clv_trainer_choose_cache_use(clv_trainer *t, const uint32_t *index, size_t n);
/* Makes the leaf (input tensor) for the stage behind the front, the frozen first stage whose
 * outputs are cached, for records `index` [s->n] of the batch x. If the worker keeps the rows of
 * all these records, the leaf has only record numbers. Otherwise the front computes the rows, and
 * the worker keeps the rows that it receives. */
clv_code clv_trainer_make_front_leaf(clv_trainer *t, cleave_context context, const uint32_t *index,
                                     clv_tensor *const *x, const clv_sequences *s,
                                     cleave_reference *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the gate and the egress record (egress.c) ----------------------------------------------- */

/* Makes t->egress.gate, which every sent tensor passes, and the flows (balances of bytes) of the
 * egress record. */
clv_code clv_trainer_make_flows(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* Callback of cleave_options.may_send: calls clv_gate_check_sending with t->egress.gate. user: the
 * trainer. */
cleave_status clv_trainer_may_send(void *user, const cleave_sending *s, cleave_error *error);
void clv_trainer_drop_flows(clv_trainer *t);
/* Gets allowances from the egress record for a batch of n_samples samples, and for some batches
 * after it. Call before each step and before each batch of an evaluation. */
clv_code clv_trainer_allow_batch(clv_trainer *t, uint64_t n_samples, bool is_training,
                                 clv_err *err) CLV_USE_RESULT;
/* Subtracts from the allowances the bytes of the tensors that a stage's worker exchanges directly
 * with the next stage's worker: of the value and, if is_training, of its gradient. n_positions:
 * rows of packed sequences. */
clv_code clv_trainer_charge_direct_flows(clv_trainer *t, uint32_t stage, uint64_t n_samples,
                                         uint64_t n_positions, bool is_training,
                                         clv_err *err) CLV_USE_RESULT;
/* Gets allowances from the egress record for n tensors of a stage's state. Call before these
 * tensors are sent. */
clv_code clv_trainer_allow_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- the ledger, the list of what workers have received (ledger_notes.c) --------------------- */

/* Opens the ledger for writing and checks it, before the master connects to a worker. */
clv_code clv_trainer_check_ledger(const clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* Adds the keys of a stage's layers to the ledger. At the begin of a run, also adds the parameters
 * that are drawn from the keys. Returns when the disk has the lines. Errors: see clv_ledger_add. */
clv_code clv_trainer_note_keys(const clv_trainer *t, uint32_t stage, clv_err *err) CLV_USE_RESULT;
/* Makes samples of values, by which the ledger names tensors, for n tensors of state that a stage
 * receives or returns. The caller fills the samples with the bytes of these tensors, calls
 * clv_trainer_note_values, and then clv_trainer_free_samples. *ret NULL: the ledger does not record
 * these tensors. */
clv_code clv_trainer_new_samples(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n, clv_weights_sample **ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_trainer_free_samples(clv_weights_sample *samples, size_t n); /* NULL is allowed */
/* Adds the parameters of a stage to the ledger, for state that stays at the stage's worker. */
clv_code clv_trainer_note_params(const clv_trainer *t, uint32_t stage, clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_note_values(const clv_trainer *t, uint32_t stage,
                                 const clv_weights_sample *samples, size_t n,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- saving checkpoints (save.c) ------------------------------------------------------------- */

/* Returns false for fixed weights that a worker reads from an artifact, a file at the worker,
 * because a checkpoint does not need them. */
bool clv_trainer_is_checkpointed(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const char *name);
/* Gives up the checkpoint in progress, if there is one. Its files stay, but a folder without a
 * manifest is no checkpoint. */
void clv_trainer_drop_save(clv_trainer *t);

/* Sends the weights of the files that the session names to their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

/* ---- sending state in pieces (send_state.c) -------------------------------------------------- */

/* Origin of the values of a tensor: an entry of a file, a tensor of a folder or, if `file` and
 * `folder` are NULL, the number `value`. */
typedef struct clv_state_origin {
  const clv_weights_file *file;
  const clv_weights_entry *entry; /* entry of `file` */
  clv_weights_folder *folder;
  size_t index; /* index of the tensor in `folder` */
  int64_t value;
} clv_state_origin;

/* Sends n tensors of a stage's state to its node. Announces the tensors to the gate and the egress
 * record, which would refuse them otherwise. Adds weights to the ledger, for which the weights are
 * read one more time. origins: [n] origin of each tensor. */
clv_code clv_trainer_send_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                const clv_weights_want *items, const clv_state_origin *origins,
                                size_t n, clv_err *err) CLV_USE_RESULT;

/* ---- restoring checkpoints of another cut (resplit.c) ---------------------------------------- */

/* Checks that layers may move to workers. Checks only layers that were at the master when
 * checkpoint c was written, and are at workers now. The command has checked the newest checkpoint
 * before it connected, but a recovery may load an older one. */
clv_code clv_trainer_check_moved_layers(const clv_trainer *t, const clv_checkpoint *c,
                                        clv_err *err) CLV_USE_RESULT;
/* Restores all stages from a checkpoint of another cut. CLV_INVALID: a stage needs a tensor that
 * the checkpoint lacks, the checkpoint has one that no stage takes, or optimisers that a stage
 * merges have taken different numbers of steps; the message has the names. */
clv_code clv_trainer_restore_other_cut(clv_trainer *t, const clv_checkpoint *c,
                                       clv_err *err) CLV_USE_RESULT;

#endif
