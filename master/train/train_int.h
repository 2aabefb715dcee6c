/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a trainer: modules.c connects and loads, egress.c lets out what the table names and
 * the record covers, schedules.c keeps the placed schedules, packed.c packs sequences,
 * stage_inputs.c cuts batches, steps.c trains, front_cache.c has the outputs of a frozen front
 * kept, accuracy.c counts right answers, measure.c samples links and stages, profiler.c traces
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

/* A batch that waits for its round: copies, since the loader's memory is lent for one step. */
typedef struct clv_held_batch {
  clv_tensor *x[CLV_MAX_INPUTS], *y; /* x: [inputs of the blueprint] */
  const uint32_t *index;             /* [n] numbers of its records, lent; with a cache */
  size_t n;
} clv_held_batch;

/* The sampling of links and stages: when the next step is measured, and what was seen. */
typedef struct clv_sampler {
  bool wanted;          /* pipeline.window is auto */
  uint64_t next_step;   /* that is measured */
  double usual_s;       /* of a step */
  cleave_event *events; /* of the context that is measured; filled under the runtime's lock */
  size_t n_events, cap_events;
  /* Each round is shown to it: a trace, a profile. NULL: none. */
  void (*sink)(void *user, clv_trainer *t, const clv_placed_schedule *l); /* may sort the events */
  void *sink_user;
  clv_waits_fn *on_waits; /* as clv_trainer_set_on_waits says; NULL: none */
  void *waits_user;
  uint64_t next_measure_ns;
} clv_sampler;

/* What leaves (egress.c). */
typedef struct clv_trainer_egress {
  clv_egress_record *record; /* borrowed; NULL: nothing may leave */
  bool random;               /* numbers in place of records */
  clv_gate gate;             /* its arrays belong to the trainer */
  clv_row_flow *hops; /* [2 * n_stages]: the value of a stage and its gradient, where direct */
  uint64_t samples;   /* of a step or batch, for which flows are ready */
} clv_trainer_egress;

/* How batches get through the front that is cached. */
typedef enum clv_cache_use { CLV_CACHE_NONE, CLV_CACHE_NUMBERS, CLV_CACHE_ROWS } clv_cache_use;

/* Rows of the front's output that the worker behind it keeps (front_cache.c). */
typedef struct clv_trainer_cache_rows {
  const clv_dataset *data; /* whose records they are; NULL: none are kept */
  cleave_cached to;
  bool *kept;       /* [records] the worker was sent it */
  uint32_t *number; /* [records] a permutation: the number of each that the worker is sent */
  int64_t *rows;    /* [of a batch] numbers */
  clv_cache_use use;
} clv_trainer_cache_rows;

struct clv_trainer {
  const clv_blueprint *b; /* borrowed */
  const clv_session_config *config;
  cleave_runtime *runtime;
  clv_trainer_egress egress;
  cleave_module **modules;     /* [n_stages + 1], the loss last */
  cleave_module *local_loss;   /* the loss for evaluations; NULL until the first */
  cleave_optimizer *optimizer; /* NULL: nothing learns here */
  clv_trainer_use use;
  clv_trainer_cache_rows cache;
  char lost[CLEAVE_NAME + 1];
  uint64_t committed;
  const char *doing; /* "step", "checkpoint of step", ...; NULL while loading */
  uint64_t doing_step;
  /* the round */
  uint32_t round, n_held;       /* steps in a full one, batches that wait for it */
  clv_held_batch *held;         /* [round] */
  clv_step_result *results;     /* [2 * round] of the steps last taken */
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
  char notice[256], shown[256]; /* for the person who watches the run; "" */
  pthread_mutex_t noting;       /* protects the next */
  clv_bytes notes;              /* lines for clv_trainer_take_notes */
  cleave_tensor fetched;        /* the last value that came here */
  void *part;                   /* [part_bytes] of packed sequences (packed.c) */
  size_t part_bytes;
};

/* The placed schedule of such a round, made if it is new. It is the trainer's. */
clv_code clv_trainer_placed_schedule(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                                     const clv_placed_schedule **ret, clv_err *err) CLV_USE_RESULT;
void clv_trainer_forget_schedules(clv_trainer *t);
void clv_trainer_drop_held_batches(clv_trainer *t); /* of batches that wait for a round */

/* ---- sampling (measure.c) -------------------------------------------------------------------- */

/* For cleave_options.on_notice, and of the trainer's own; any thread. */
void clv_trainer_on_notice(void *trainer, const char *text);
/* For cleave_options.on_event; user: the trainer. */
void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event);
/* Whether the round that begins is to be measured. */
bool clv_sampler_begin(clv_trainer *t);
/* After a round that took so long, of n_steps; measured: its events are here. */
clv_code clv_sampler_end(clv_trainer *t, const clv_placed_schedule *l, bool measured,
                         double seconds, clv_err *err) CLV_USE_RESULT;
void clv_sampler_done(clv_sampler *w);
/* Stage and micro-batch of an event of the round; false: of neither. */
bool clv_sampler_locate(const clv_trainer *t, const clv_placed_schedule *l, const cleave_event *e,
                        uint32_t *ret_stage, uint32_t *ret_micro);

/* Of the round whose events are here, which it sorts (profiler.c). */
void clv_sampler_sum_waits(clv_trainer *t, const clv_placed_schedule *l, clv_waits *ret);

/* What the round whose events are here shows; asks all links for their round trip. */
clv_code clv_sampler_measure(clv_trainer *t, const clv_placed_schedule *l, clv_sched_costs *ret,
                             clv_err *err) CLV_USE_RESULT;

/* A failure of libcleave as an error of the trainer: the step, the worker and the reason in the
 * text; the worker that was lost, if that is what it is, is remembered. */
clv_code clv_trainer_convert_error(clv_trainer *t, const cleave_error *why, clv_err *err);
/* What an error from now on belongs to. */
void clv_trainer_set_activity(clv_trainer *t, const char *what, uint64_t step);
/* In a function that returns clv_code with trainer `t` and error `err`. */
#define CLV_TRY_API(call)                                                           \
  do {                                                                              \
    cleave_error api_error_;                                                        \
    if ((call) != CLEAVE_OK) return clv_trainer_convert_error(t, &api_error_, err); \
  } while (0)
#define CLV_API_ERROR &api_error_

/* n rows of a batch from row `start` on, as an argument of libcleave. */
cleave_tensor clv_batch_rows(const clv_tensor *batch, size_t start, size_t n);
/* ---- packed sequences (packed.c) ------------------------------------------------------------- */

/* n sequences of a batch from `start` on; lengths NULL: the session packs none. */
typedef struct clv_sequences {
  const int64_t *lengths;
  size_t start, n;
  int64_t rows; /* of what is sent of them: their places, and a few more so that plans are few */
} clv_sequences;
/* CLV_INVALID: a length that is none. */
clv_code clv_trainer_select_sequences(const clv_trainer *t, clv_tensor *const *x, size_t start,
                                      size_t n, clv_sequences *ret, clv_err *err) CLV_USE_RESULT;
/* Their rows of a batch [B, ...], or, by_place, those of their places of [B, S, ...] and then
 * `rest`. It lends the trainer's memory until the next call. */
clv_code clv_trainer_pack_rows(clv_trainer *t, const clv_sequences *s, const clv_tensor *batch,
                               bool by_place, int64_t rest, cleave_tensor *ret,
                               clv_err *err) CLV_USE_RESULT;
/* The labels of the loss. */
clv_code clv_trainer_pack_targets(clv_trainer *t, const clv_sequences *s, const clv_tensor *y,
                                  cleave_tensor *ret, clv_err *err) CLV_USE_RESULT;
/* What the model answers of them as a batch [n, S, ...], pads 0; as it is where it is no packed
 * one. It lends likewise. */
clv_code clv_trainer_unpack_output(clv_trainer *t, const clv_sequences *s,
                                   const cleave_tensor *output, cleave_tensor *ret,
                                   clv_err *err) CLV_USE_RESULT;

/* What stage i is called with: *n arguments in `in`, whose first one is what crosses the cut before
 * it, if there is one, and already there. The others are inputs of the model, x. */
clv_code clv_trainer_stage_inputs(clv_trainer *t, cleave_context context, uint32_t stage,
                                  clv_tensor *const *x, const clv_sequences *s,
                                  cleave_reference in[CLV_MAX_INPUTS], uint32_t *n,
                                  clv_err *err) CLV_USE_RESULT;
/* Input k of a batch, whoever made it. */
clv_tensor *clv_batch_input(const clv_batch *batch, size_t k);
/* Whether predictions can be right or wrong: with classes, and with binary losses. */
bool clv_trainer_has_accuracy(const clv_trainer *t);
/* Rows of a prediction that are right, with the labels of rows from `start` on. */
size_t clv_trainer_count_correct(const clv_trainer *t, const cleave_tensor *prediction,
                                 const clv_tensor *labels, size_t start, size_t n);
/* Whether places with this label count for nothing. */
bool clv_trainer_is_ignored(const clv_trainer *t, int64_t label);
/* What the loss's mean over these rows divides by: rows, or the weights of the places of theirs
 * that count. */
double clv_trainer_batch_weight(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                size_t n);
/* Rows, or places of theirs that count. */
size_t clv_trainer_count_labelled(const clv_trainer *t, const clv_tensor *labels, size_t start,
                                  size_t n);
/* length: of the run in steps; 0: not known. */
cleave_schedule clv_trainer_make_schedule(const clv_session_config *c, uint64_t length);
/* A session's learning parameters in two lists, borrowed: those that decay, and the others. */
typedef struct clv_trainer_decay_lists {
  const char **names[2];
  size_t n[2];
} clv_trainer_decay_lists;
void clv_trainer_decay_lists_done(clv_trainer_decay_lists *s);
/* `one`, or two of it where biases and normalisations do not decay. `sides` outlives their use. */
clv_code clv_trainer_make_groups(const clv_blueprint *b, const cleave_group *one,
                                 clv_trainer_decay_lists *sides, cleave_group ret[2], size_t *ret_n,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* ---- a cached front (front_cache.c) ---------------------------------------------------------- */

/* What a batch of these records will send, for clv_trainer_expect. */
void clv_trainer_choose_cache_use(clv_trainer *t, const uint32_t *index, size_t n);
/* The front's output of these records of a batch x, [s->n] with such numbers, as a leaf for the
 * next stage: computed, sent and kept there, or named by their numbers if all of them are. */
clv_code clv_trainer_front_leaf(clv_trainer *t, cleave_context context, const uint32_t *index,
                                clv_tensor *const *x, const clv_sequences *s, cleave_reference *ret,
                                clv_err *err) CLV_USE_RESULT;

/* ---- what leaves (egress.c) ------------------------------------------------------------------ */

/* Makes t->egress.gate and the flows of the record. */
clv_code clv_trainer_make_flows(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* clv_gate_may_send with t->egress.gate, for cleave_options.may_send; user: the trainer. */
cleave_status clv_trainer_may_send(void *user, const cleave_sending *s, cleave_error *error);
void clv_trainer_drop_flows(clv_trainer *t);
/* Before a step or batch of so many samples: allowances for it and the next ones. */
clv_code clv_trainer_expect(clv_trainer *t, uint64_t samples, bool training,
                            clv_err *err) CLV_USE_RESULT;
/* So many samples go through the stage, or rows of packed ones, to the next one and back. */
clv_code clv_trainer_charge_hop(clv_trainer *t, uint32_t stage, uint64_t samples, uint64_t places,
                                bool training, clv_err *err) CLV_USE_RESULT;
/* Before these pieces of a stage's state are sent. */
clv_code clv_trainer_expect_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                  const clv_weights_want *items, size_t n,
                                  clv_err *err) CLV_USE_RESULT;

/* ---- what workers will know (ledger_notes.c) ------------------------------------------------- */

/* Can what follows be noted? Asked before anybody is dialled. */
clv_code clv_trainer_check_ledger(const clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* Each adds to the ledger, and returns when the disk has it; errors as of clv_ledger_add. The keys
 * of a stage's layers, and where a run begins its parameters, which follow from them: */
clv_code clv_trainer_note_keys(const clv_trainer *t, uint32_t stage, clv_err *err) CLV_USE_RESULT;
/* Parameters and values that are given to a stage or come from it: samples to be filled where they
 * have parts, then noted. *ret NULL: none are wanted; to be freed. */
clv_code clv_trainer_new_samples(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                 const clv_weights_want *items, size_t n, clv_weights_sample **ret,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_note_values(const clv_trainer *t, uint32_t stage,
                                 const clv_weights_sample *samples, size_t n,
                                 clv_err *err) CLV_USE_RESULT;

/* Weights of the session's files into their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

#endif
