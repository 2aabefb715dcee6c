/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the look, which measures before a run what an observer can read from the tensors
 * that would be sent: look.c calls look_records.c to choose records, look_part.c to run layers in
 * this process, look_front.c to read records and tokens, and look_head.c to read labels.
 * look_text.c prints the results.
 */
#ifndef CLEAVE_MASTER_PLAN_LOOK_INT_H
#define CLEAVE_MASTER_PLAN_LOOK_INT_H

#include "master/look/look.h"
#include "master/plan/plan_int.h"

/* Limits of a look in bytes. CLV_LOOK_MAX_MEMORY_BYTES: weights and activations;
 * CLV_LOOK_MAX_VALUE_BYTES: sent values that the look keeps for the attacks. */
#define CLV_LOOK_MAX_MEMORY_BYTES ((size_t)4 << 30)
#define CLV_LOOK_MAX_VALUE_BYTES ((size_t)256 << 20)
enum { CLV_LOOK_MIN_RECORDS = 8 }; /* fewest records that an attack can learn from */

/* ---- records that the look runs on (look_records.c) ------------------------------------------ */

typedef struct clv_look_sample {
  /* number of records (n), and how many of them an attack learns from (n_fit). These come first;
   * the attack is tested with the others */
  clv_look_split record_counts;
  size_t n_inputs;                    /* number of inputs of a record, which are in the list x */
  clv_tensor *x[CLV_DATA_MAX_INPUTS]; /* inputs of all records, without random crops or flips */
  clv_tensor *y;                      /* labels; NULL: the data have no labels */
} clv_look_sample;

void clv_look_sample_done(clv_look_sample *s); /* frees and zeroes */

/* Sets the state of *ret to CLV_LOOK_COULD_NOT_RUN (the attack could not run), with the text of
 * `why` as the reason. */
void clv_look_set_skipped(clv_look_result *ret, const clv_err *why);
/* Returns the last stage that is at a worker; n_stages: no stage is. */
uint32_t clv_look_find_last_worker_stage(const clv_blueprint *b);

/* ---- layers that the look runs (look_part.c) ------------------------------------------------- */

/* Stages first_stage to last_stage as one graph, with weights and a plan. Sequences are never
 * packed. */
typedef struct clv_look_part {
  uint32_t first_stage, last_stage;
  clv_graph *graph;
  clv_params *params;
  char *weights_block; /* values of all parameters in `params` */
  clv_plan *plan;
  clv_call *call;
  void *output;          /* output of the last batch */
  int64_t batch_size;    /* records of a batch */
  bool runs_as_training; /* batch norm uses the statistics of the batch */
  bool needs_input_grad; /* the plan computes the gradient of the first input */
} clv_look_part;

/* The weights with which the look, the measurement of what sent tensors show, runs the layers. */
typedef struct clv_look_weights {
  const clv_blueprint *b;
  const clv_key *seed;
  const clv_checkpoint *checkpoint; /* checkpoint with the weights; NULL: the initial weights */
} clv_look_weights;

/* Makes the graph and the weights of stages `first_stage` to `last_stage`. CLV_UNIMPLEMENTED and
 * CLV_EXHAUSTED do not mean that the session is wrong, but that the look cannot run these stages;
 * the message says why. */
clv_code clv_look_part_new(const clv_look_weights *w, uint32_t first_stage, uint32_t last_stage,
                           clv_look_part *ret, clv_err *err) CLV_USE_RESULT;
/* Lets each tied parameter use the values of the parameter that owns it, which another part has. */
clv_code clv_look_parts_connect_ties(clv_look_part *parts, size_t n, clv_err *err) CLV_USE_RESULT;
/* Returns an estimate of the multiply-adds that one record takes. */
double clv_look_part_mac_count(const clv_look_part *p);
/* Makes the execution plan of the part, for batches of `batch_size` records. */
clv_code clv_look_part_make_plan(clv_look_part *p, int64_t batch_size, clv_err *err) CLV_USE_RESULT;
/* Runs a batch. in: the inputs in the order of the graph. The output is then in p->output. */
clv_code clv_look_part_forward(clv_look_part *p, const void *const *in, const clv_rng_key *key,
                               clv_err *err) CLV_USE_RESULT;
/* Computes din, the gradient of the first input, from dout, that of the output. Call it once after
 * each forward. */
clv_code clv_look_part_backward(clv_look_part *p, const void *dout, void *din,
                                clv_err *err) CLV_USE_RESULT;
void clv_look_part_done(clv_look_part *p); /* frees and zeroes */

/* Returns the number of inputs of the part's graph. ret[k]: index of the model input that is input
 * k of the graph; -1: input k is the value that crosses the cut. */
uint32_t clv_look_part_list_inputs(const clv_blueprint *b, const clv_look_part *p,
                                   int ret[CLV_MAX_INPUTS]);

/* ---- attacks that read from the sent tensors ------------------------------------------------- */

/* One draw (random choice) of the secret weights, the records on which the layers run with these
 * weights, and the time at which the attacks on this draw must end. */
typedef struct clv_look_draw {
  clv_look_weights weights;
  const clv_look_options *o;
  /* records for all draws of the weights; record_counts.n 0: no records were chosen yet */
  clv_look_sample *sample;
  uint64_t draw_end_ns; /* time of clv_now_ns when this draw of the weights should end */
  uint64_t look_end_ns; /* time of clv_now_ns when the look, all draws together, must end */
} clv_look_draw;

/* Chooses the records for all draws of the secret weights, at most max_records, unless they were
 * chosen already. Each class is about as frequent in one half as in the other: attacks learn from
 * one half, and are tested with the other. CLV_PRECONDITION: there are too few records to learn
 * from. */
clv_code clv_look_choose_records(const clv_look_draw *r, size_t max_records,
                                 clv_err *err) CLV_USE_RESULT;

/* Run the attacks with one draw of the secret weights and set their results. If an attack cannot
 * run, its result has the reason. */
void clv_look_read_front(const clv_look_draw *r, clv_look_result results[CLV_LOOK_N_READERS]);
void clv_look_read_head(const clv_look_draw *r, clv_look_result *labels, clv_look_result *groups);

#endif
