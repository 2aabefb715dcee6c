/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the trainer: modules.c connects and loads, egress.c feeds gate and record,
 * schedules.c keeps the placed schedules, packed.c packs sequences,
 * stage_inputs.c cuts batches, steps.c trains, front_cache.c sends rows of a frozen front to a
 * worker that keeps them, accuracy.c counts right predictions, measure.c samples links and stages,
 * profiler.c traces
 * rounds and sums them up, trial.c chooses the number of micro-batches, eval.c evaluates, state.c
 * collects and restores.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include <pthread.h>

#include "common/model/models/models.h"
#include "master/report/report.h"
#include "master/train/train.h"

enum { KEPT_SCHEDULES = 4 }; /* of full and short batches, before and after the window changed */

/* ---- the trainer ----------------------------------------------------------------------------- */

/* One micro-batch of the round in progress. */
typedef struct clv_micro_batch {
  size_t start, size; /* rows of its batch */
  uint32_t batch;     /* of the round */
} clv_micro_batch;

/* A batch that waits for its round. It has copies, because the loader reuses its memory after one
 * step. */
typedef struct clv_held_batch {
  clv_tensor *x[CLV_MAX_INPUTS], *y; /* x: [inputs of the blueprint] */
  const uint32_t *index;             /* [n] numbers of the records, caller-owned; with a cache */
  size_t n;                          /* records */
} clv_held_batch;

/* The sampling of links and stages: the next step to measure, and the measurements. */
typedef struct clv_sampler {
  bool is_window_auto;  /* pipeline.window is auto */
  uint64_t next_step;   /* the next step to measure */
  double usual_s;       /* usual seconds of a step */
  cleave_event *events; /* events of the measured context; filled under the runtime's lock */
  size_t n_events, cap_events;
  /* Receives each round (a trace, a profile) and may sort the events. NULL: no sink. */
  void (*sink)(void *user, clv_trainer *t, const clv_placed_schedule *l);
  void *sink_user;
  clv_waits_fn *on_waits; /* callback of clv_trainer_set_on_waits; NULL: none */
  void *waits_user;
  uint64_t next_measure_ns; /* time of the next measurement */
} clv_sampler;

/* The gate of a trainer and the flows of its record (egress.c). */
typedef struct clv_trainer_egress {
  clv_egress_record *record; /* caller-owned; NULL: no tensor may leave */
  bool random;               /* random numbers are sent in place of records (a trial) */
  clv_gate gate;             /* the trainer owns its arrays */
  clv_row_flow *hops; /* [2 * n_stages]: each stage's value and its gradient, for direct links */
  uint64_t samples;   /* samples of the step or batch for which flows are ready */
} clv_trainer_egress;

/* How the master uses the cache for a batch: not at all, by sending only record numbers, or by
 * sending rows for the worker to keep. */
typedef enum clv_cache_use { CLV_CACHE_NONE, CLV_CACHE_NUMBERS, CLV_CACHE_ROWS } clv_cache_use;

/* Rows of the front's output that the worker behind it keeps (front_cache.c). */
typedef struct clv_trainer_cache_rows {
  const clv_dataset *data; /* the records whose rows are kept; NULL: no cache */
  cleave_cached to;        /* the cache at the worker */
  bool *kept;              /* [records] the master has sent the row of the record */
  uint32_t *number;        /* [records] the number sent for each record: a secret permutation */
  int64_t *rows;           /* [records of a batch] their numbers */
  clv_cache_use use;       /* of the present batch */
} clv_trainer_cache_rows;

struct clv_trainer {
  const clv_blueprint *b; /* caller-owned */
  const clv_session_config *config;
  cleave_runtime *runtime;
  clv_trainer_egress egress;
  cleave_module **modules;     /* [n_stages + 1], the loss last */
  cleave_module *local_loss;   /* the loss for evaluations; NULL until the first evaluation */
  cleave_optimizer *optimizer; /* NULL: this use trains nothing */
  clv_trainer_use use;
  clv_trainer_cache_rows cache;
  char lost[CLEAVE_NAME + 1]; /* name of the worker that was lost; "": none */
  uint64_t committed;         /* steps that every node has committed */
  const char *activity;       /* "step", "checkpoint of step", ...; NULL while loading */
  uint64_t activity_step;     /* the step that `activity` belongs to */
  /* the round */
  uint32_t round, n_held;       /* steps of a full round; batches that wait for it */
  clv_held_batch *held;         /* [round] */
  clv_step_result *results;     /* [2 * round] results of the last steps */
  clv_micro_batch *micros;      /* [round * max_micro], as the next three */
  cleave_reference *references; /* [micro][stage], ascending: values of the calls */
  cleave_reference *losses;
  float *shares;
  size_t *sizes; /* [max_micro] */
  /* the schedule */
  clv_placed_schedule *schedules[KEPT_SCHEDULES];
  uint32_t n_schedules, window;
  bool costs_known;
  clv_sched_costs costs;
  clv_sampler sampler;
  char notice[256],
      taken_notice[256];      /* the present notice for the user and the last one shown; "" */
  pthread_mutex_t notes_lock; /* protects `notes` */
  clv_bytes notes;            /* lines for clv_trainer_take_notes */
  cleave_tensor fetched;      /* the value fetched last */
  void *pack_buffer;          /* [pack_bytes] scratch of packed sequences (packed.c) */
  size_t pack_bytes;
};

/* Returns the placed schedule of a round of n_steps with n_micro micro-batches each, and makes it
 * if it is new. The trainer owns it. */
clv_code clv_trainer_placed_schedule(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                                     const clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_trainer_forget_schedules(clv_trainer *t);
/* Frees the copies of batches that wait for a round. */
void clv_trainer_drop_held_batches(clv_trainer *t);

/* ---- sampling (measure.c) -------------------------------------------------------------------- */

/* Queues a notice for the user. Callback of cleave_options.on_notice; the trainer calls it, too.
 * Any thread may call it. */
void clv_trainer_on_notice(void *trainer, const char *text);
/* Callback of cleave_options.on_event: stores an event of the measured context. user: the
 * trainer. */
void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event);
/* Returns true if the round that begins is to be measured, and prepares its events. */
bool clv_sampler_begin(clv_trainer *t);
/* Call after a round of `seconds`. measured: the events of the round have been stored. */
clv_code clv_sampler_end(clv_trainer *t, const clv_placed_schedule *l, bool measured,
                         double seconds, clv_err *err) CLV_USE_RESULT;
void clv_sampler_done(clv_sampler *w);
/* Finds stage and micro-batch of an event of the round. Returns false if it belongs to none. */
bool clv_sampler_locate(const clv_trainer *t, const clv_placed_schedule *l, const cleave_event *e,
                        uint32_t *ret_stage, uint32_t *ret_micro);

/* Sums up the waits of the round whose events are stored, and sorts these (profiler.c). */
void clv_sampler_sum_waits(clv_trainer *t, const clv_placed_schedule *l, clv_waits *ret);

/* Computes costs from the events of the round; asks all links for their round-trip time. */
clv_code clv_sampler_measure(clv_trainer *t, const clv_placed_schedule *l, clv_sched_costs *ret,
                             clv_err *err) CLV_USE_RESULT;

/* Converts a failure of libcleave to an error of the trainer, with step, worker and reason in its
 * text. Remembers the worker in t->lost if the failure is its loss. */
clv_code clv_trainer_convert_error(clv_trainer *t, const cleave_error *why, clv_err *err);
/* Sets the activity that later errors name: `what` is static text, `step` the step. */
void clv_trainer_set_activity(clv_trainer *t, const char *what, uint64_t step);
/* In a function that returns clv_code with trainer `t` and error `err`. */
#define CLV_TRY_API(call)                                                           \
  do {                                                                              \
    cleave_error api_error_;                                                        \
    if ((call) != CLEAVE_OK) return clv_trainer_convert_error(t, &api_error_, err); \
  } while (0)
#define CLV_API_ERROR &api_error_

/* Returns n rows of a batch from row `start` on, as an argument of libcleave. */
cleave_tensor clv_batch_rows(const clv_tensor *batch, size_t start, size_t n);

/* ---- packed sequences (packed.c) ------------------------------------------------------------- */

/* n sequences of a batch from `start` on; lengths NULL: the session packs none. */
typedef struct clv_sequences {
  const int64_t *lengths;
  size_t start, n;
  int64_t rows; /* rows to send: the places of the sequences, rounded up so that plans are few */
} clv_sequences;
/* Selects n sequences of the batch x from `start` on. CLV_INVALID: a length is out of range. */
clv_code clv_trainer_select_sequences(const clv_trainer *t, clv_tensor *const *x, size_t start,
                                      size_t n, clv_sequences *ret, clv_err *err) CLV_USE_RESULT;
/* Packs the sequences' rows of a batch [B, ...]; by_place: the rows of their places of [B, S, ...],
 * then `rest` up to s->rows. *ret is the trainer's memory until the next call. */
clv_code clv_trainer_pack_rows(clv_trainer *t, const clv_sequences *s, const clv_tensor *batch,
                               bool by_place, int64_t rest, cleave_tensor *ret,
                               clv_err *err) CLV_USE_RESULT;
/* Packs the labels of the loss, likewise. */
clv_code clv_trainer_pack_targets(clv_trainer *t, const clv_sequences *s, const clv_tensor *y,
                                  cleave_tensor *ret, clv_err *err) CLV_USE_RESULT;
/* Unpacks the model's output to a batch [n, S, ...] with padding 0; returns `output` unchanged if
 * it is not packed. *ret is the trainer's memory until the next call. */
clv_code clv_trainer_unpack_output(clv_trainer *t, const clv_sequences *s,
                                   const cleave_tensor *output, cleave_tensor *ret,
                                   clv_err *err) CLV_USE_RESULT;

/* Fills the arguments of stage i into `in`, *n in all. The caller has set the first one, the value
 * that crosses the cut before the stage, if there is a cut. The others are inputs x of the
 * model. */
clv_code clv_trainer_stage_inputs(clv_trainer *t, cleave_context context, uint32_t stage,
                                  clv_tensor *const *x, const clv_sequences *s,
                                  cleave_reference in[CLV_MAX_INPUTS], uint32_t *n,
                                  clv_err *err) CLV_USE_RESULT;
/* Returns input k of a batch, from the loader or from a held copy. */
clv_tensor *clv_batch_input(const clv_batch *batch, size_t k);
/* Returns true for losses with classes and binary losses, whose predictions are right or wrong. */
bool clv_trainer_has_accuracy(const clv_trainer *t);
/* Counts the n rows of a prediction that are right; their labels begin at row `start`. */
size_t clv_trainer_count_correct(const clv_trainer *t, const cleave_tensor *prediction,
                                 const clv_tensor *labels, size_t start, size_t n);
/* Returns true for a label that loss.ignore_index leaves out of the loss. */
bool clv_trainer_is_ignored(const clv_trainer *t, int64_t label);
/* Returns the divisor of the loss's mean over n rows: the rows, or the sum of weights of their
 * places that are not ignored. */
double clv_trainer_batch_weight(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                size_t n);
/* Counts the n rows, or their places that are not ignored. */
size_t clv_trainer_count_labelled(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                  size_t n);
/* Makes the schedule of the learning rate. length: steps of the run; 0: unknown. */
cleave_schedule clv_trainer_make_schedule(const clv_session_config *c, uint64_t length);
/* A session's learning parameters in two lists, names caller-owned: with weight decay, without. */
typedef struct clv_trainer_decay_lists {
  const char **names[2];
  size_t n[2];
} clv_trainer_decay_lists;
void clv_trainer_decay_lists_done(clv_trainer_decay_lists *s);
/* Returns `one` group, or two copies if biases and normalisations have no weight decay. The groups
 * refer to `sides`, which the caller frees after their last use. */
clv_code clv_trainer_make_groups(const clv_blueprint *b, const cleave_group *one,
                                 clv_trainer_decay_lists *sides, cleave_group ret[2], size_t *ret_n,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* ---- a cached front (front_cache.c) ---------------------------------------------------------- */

/* Sets t->cache.use for a batch of n records, before clv_trainer_expect. */
void clv_trainer_choose_cache_use(clv_trainer *t, const uint32_t *index, size_t n);
/* Makes the leaf for the stage behind the cached front from records `index` [s->n] of the batch x.
 * If the worker keeps all their rows, the leaf names them by number; else the front computes them,
 * and the worker keeps what it receives. */
clv_code clv_trainer_front_leaf(clv_trainer *t, cleave_context context, const uint32_t *index,
                                clv_tensor *const *x, const clv_sequences *s, cleave_reference *ret,
                                clv_err *err) CLV_USE_RESULT;

/* ---- what leaves (egress.c) ------------------------------------------------------------------ */

/* Makes t->egress.gate and the flows of the record. */
clv_code clv_trainer_make_flows(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* clv_gate_may_send with t->egress.gate, for cleave_options.may_send; user: the trainer. */
cleave_status clv_trainer_may_send(void *user, const cleave_sending *s, cleave_error *error);
void clv_trainer_drop_flows(clv_trainer *t);
/* Call before a step or batch of `samples`: gets allowances from the record for this one and the
 * next ones. */
clv_code clv_trainer_expect(clv_trainer *t, uint64_t samples, bool training,
                            clv_err *err) CLV_USE_RESULT;
/* Charges the direct hops of a stage with `samples` (`places`: rows of packed sequences), to the
 * next stage and, if training, back. */
clv_code clv_trainer_charge_hop(clv_trainer *t, uint32_t stage, uint64_t samples, uint64_t places,
                                bool training, clv_err *err) CLV_USE_RESULT;
/* Call before n pieces of a stage's state are sent: gets their allowances. */
clv_code clv_trainer_expect_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                  const clv_weights_want *items, size_t n,
                                  clv_err *err) CLV_USE_RESULT;

/* ---- what workers will know (ledger_notes.c) ------------------------------------------------- */

/* Opens the ledger for writing and checks it, before the master connects to a worker. */
clv_code clv_trainer_check_ledger(const clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* Adds the keys of a stage's layers to the ledger and, at the begin of a run, the parameters drawn
 * from them. Returns when the disk has the lines. Errors as of clv_ledger_add. */
clv_code clv_trainer_note_keys(const clv_trainer *t, uint32_t stage, clv_err *err) CLV_USE_RESULT;
/* Makes samples of n pieces of state that a stage gets or returns. The caller fills them while the
 * bytes pass, hands them to clv_trainer_note_values and then to clv_trainer_free_samples. *ret
 * NULL: nothing to note. */
clv_code clv_trainer_new_samples(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n, clv_weights_sample **ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_trainer_free_samples(clv_weights_sample *samples, size_t n); /* NULL is allowed */
clv_code clv_trainer_note_values(const clv_trainer *t, uint32_t stage,
                                 const clv_weights_sample *samples, size_t n,
                                 clv_err *err) CLV_USE_RESULT;

/* Sends the weights of the session's files to their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

#endif
