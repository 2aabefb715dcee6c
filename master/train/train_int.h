/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a trainer: modules.c connects and loads, steps.c trains, eval.c evaluates, state.c
 * collects and restores, run.c is the loop a person sees.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include "common/models/models.h"
#include "common/tls/tls.h"
#include "common/weights/weights.h"
#include "master/train/train.h"

enum { CLV_EVAL_WINDOW = 4 }; /* batches in flight in an evaluation */

/* One micro-batch of the step in progress. */
typedef struct micro {
  size_t start, size; /* rows of the batch */
  cleave_reference first_learning,
      output; /* values of the first stage that learns and of the last */
  cleave_reference loss;
  cleave_future loss_here;
  float share; /* of the batch */
} micro;

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
  uint32_t first_learning; /* stage */
  micro *micros;           /* [micro_batches], as the following */
  size_t *sizes;
  cleave_reference *losses;
  float *shares;
  cleave_tensor fetched; /* the last value that came here */
};

/* A failure of libcleave as an error of the trainer: the step, the worker and the cause in the text;
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
/* How many of n_micro micro-batches may be in flight: the schedule as a window. */
uint32_t clv_trainer_window(const clv_trainer *t, uint32_t n_micro);
/* The stages one after another; *ret is the last one's value. after: the window's condition. */
clv_code clv_trainer_forward(clv_trainer *t, cleave_context c, const cleave_tensor *x,
                             cleave_reference after, micro *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* Weights of the session's files into their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

#endif
