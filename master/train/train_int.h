/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a trainer: modules.c connects and loads, layouts.c keeps the schedules it has laid out,
 * steps.c trains, measure.c watches links and stages, observe.c shows rounds, trial.c chooses the number
 * of micro-batches, eval.c evaluates, state.c collects and restores.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include "common/models/models.h"
#include "master/report/report.h"
#include "master/train/train.h"

enum { KEPT_LAYOUTS = 4 }; /* of full and short batches, before and after the window changed */

/* ---- the trainer --------------------------------------------------------------------------------------- */

/* One micro-batch of the round in progress. */
typedef struct micro {
  size_t start, size; /* rows of its batch */
  uint32_t batch;     /* of the round */
} micro;

/* A batch that waits for its round: copies, since the loader's memory is lent for one step. */
typedef struct held_batch {
  clv_tensor *x, *y;
  size_t n;
} held_batch;

/* When to look again at links and stages, and what was seen. */
typedef struct watch {
  bool wanted;          /* pipeline.window is auto */
  uint64_t next_step;   /* that is measured */
  double usual_s;       /* of a step */
  cleave_event *events; /* of the context that is measured; filled under the runtime's lock */
  size_t n_events, cap_events;
  /* Each round is shown to it: a trace, a profile. NULL: none. */
  void (*sink)(void *user, clv_trainer *t, const clv_layout *l); /* may sort the events */
  void *sink_user;
  clv_waits_fn *on_waits; /* as clv_trainer_on_waits says; NULL: none */
  void *waits_user;
  uint64_t next_measure_ns;
} watch;

struct clv_trainer {
  clv_blueprint *b; /* borrowed; its egress rows are counted in */
  const clv_session_config *config;
  cleave_runtime *runtime;
  cleave_module **modules;  /* [n_stages + 1], the loss last */
  cleave_module *home_loss; /* the loss for evaluations; NULL until the first */
  cleave_optimizer *optimizer;
  char lost[CLEAVE_NAME + 1];
  uint64_t committed;
  const char *doing; /* "step", "checkpoint of step", ...; NULL while loading */
  uint64_t doing_step;
  /* the round */
  uint32_t round, n_held;       /* steps in a full one, batches that wait for it */
  held_batch *held;             /* [round] */
  clv_step_result *results;     /* [2 * round] of the steps last taken */
  micro *micros;                /* [round * max_micro], as the next three */
  cleave_reference *references; /* [micro][stage], ascending: values of the calls */
  cleave_reference *losses;
  float *shares;
  size_t *sizes; /* [max_micro] */
  /* the schedule */
  clv_layout *layouts[KEPT_LAYOUTS];
  uint32_t n_layouts, window;
  bool costs_known;
  clv_sched_costs costs;
  watch watch;
  char notice[256], shown[256]; /* for the person who watches the run; "" */
  cleave_tensor fetched;        /* the last value that came here */
};

/* The layout of such a round, made if it is new. It is the trainer's. */
clv_code clv_trainer_layout(clv_trainer *t, uint32_t n_micro, uint32_t n_steps,
                            const clv_layout **ret, clv_err *err) CLV_USE_RESULT;
void clv_trainer_forget_layouts(clv_trainer *t);
void clv_trainer_let_go(clv_trainer *t); /* of batches that wait for a round */

/* ---- watching (measure.c) -------------------------------------------------------------------------------- */

/* For cleave_options.on_event; user: the trainer. */
void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event);
/* Whether the round that begins is to be measured. */
bool clv_watch_begin(clv_trainer *t);
/* After a round that took so long, of n_steps; measured: its events are here. */
clv_code clv_watch_end(clv_trainer *t, const clv_layout *l, bool measured, double seconds,
                       clv_err *err) CLV_USE_RESULT;
void clv_watch_done(watch *w);
/* Stage and micro-batch of an event of the round; false: of neither. */
bool clv_watch_locate(const clv_trainer *t, const clv_layout *l, const cleave_event *e,
                      uint32_t *ret_stage, uint32_t *ret_micro);

/* Of the round whose events are here, which it sorts (observe.c). */
void clv_watch_waits(clv_trainer *t, const clv_layout *l, clv_waits *ret);

/* What the round whose events are here shows; asks all links for their round trip. */
clv_code clv_watch_measure(clv_trainer *t, const clv_layout *l, clv_sched_costs *ret,
                           clv_err *err) CLV_USE_RESULT;

/* A failure of libcleave as an error of the trainer: the step, the worker and the reason in the text;
 * the worker that was lost, if that is what it is, is remembered. */
clv_code clv_trainer_explain(clv_trainer *t, const cleave_error *why, clv_err *err);
/* What an error from now on belongs to. */
void clv_trainer_doing(clv_trainer *t, const char *what, uint64_t step);
/* In a function that returns clv_code with trainer `t` and error `err`. */
#define CLV_API(call)                                                         \
  do {                                                                        \
    cleave_error api_error_;                                                  \
    if ((call) != CLEAVE_OK) return clv_trainer_explain(t, &api_error_, err); \
  } while (0)
#define CLV_WHY &api_error_

/* n rows of a batch from row `start` on, as an argument of libcleave. */
cleave_tensor clv_rows_of(const clv_tensor *batch, size_t start, size_t n);
/* Right classes among the rows of a prediction. */
size_t clv_count_correct(const cleave_tensor *prediction, const int64_t *labels, size_t n);
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* Weights of the session's files into their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

#endif
