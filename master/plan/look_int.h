/* SPDX-License-Identifier: Apache-2.0
 *
 * The look: look.c calls look_records.c to choose records, look_part.c to run layers in this
 * process, look_front.c to read records and tokens, and look_head.c to read labels. look_text.c
 * prints the results.
 */
#ifndef CLEAVE_MASTER_PLAN_LOOK_INT_H
#define CLEAVE_MASTER_PLAN_LOOK_INT_H

#include "master/look/look.h"
#include "master/plan/plan_int.h"

/* Most bytes of weights and activations of a look, and of the values that it keeps. */
#define CLV_LOOK_MAX_MEMORY ((size_t)4 << 30)
#define CLV_LOOK_MAX_VALUES ((size_t)256 << 20)
enum { CLV_LOOK_MIN_RECORDS = 8 }; /* fewest records that readers can learn from */

/* ---- records (look_records.c) ---------------------------------------------------------------- */

typedef struct clv_look_sample {
  clv_look_split half;                /* the records to learn from come first */
  size_t n_inputs;                    /* entries of x */
  clv_tensor *x[CLV_DATA_MAX_INPUTS]; /* inputs of all records, without random crops or flips */
  clv_tensor *y;                      /* labels; NULL: there are none */
} clv_look_sample;

void clv_look_sample_done(clv_look_sample *s); /* frees and zeroes */

/* Sets the result to CLV_LOOK_NOT_LOOKED_AT with the text of `why`. */
void clv_look_set_skipped(clv_look_result *ret, const clv_err *why);
/* Returns the last stage at a worker; n_stages: no stage is at a worker. */
uint32_t clv_look_last_worker_stage(const clv_blueprint *b);

/* ---- layers (look_part.c) -------------------------------------------------------------------- */

/* Stages first..last as one graph, with weights and a plan. Never packed. */
typedef struct clv_look_part {
  uint32_t first, last;
  clv_graph *graph;
  clv_params *params;
  char *block; /* memory of params */
  clv_plan *plan;
  clv_call *call;
  void *out;      /* output of a batch */
  int64_t batch;  /* records of the plan */
  bool training;  /* batch norm uses the statistics of the batch */
  bool backwards; /* the plan computes the gradient of the first input */
} clv_look_part;

/* Source of the weights of a look. */
typedef struct clv_look_weights {
  const clv_blueprint *b;
  const clv_key *seed;
  const clv_checkpoint *checkpoint; /* NULL: the initial weights */
} clv_look_weights;

/* Makes graph and weights of a part. CLV_UNIMPLEMENTED and CLV_EXHAUSTED are no faults: they say
 * why the look cannot run the part. */
clv_code clv_look_part_new(const clv_look_weights *w, uint32_t first, uint32_t last,
                           clv_look_part *ret, clv_err *err) CLV_USE_RESULT;
/* Points tied parameters at the parameters of their owners in other parts. */
clv_code clv_look_parts_tie(clv_look_part *parts, size_t n, clv_err *err) CLV_USE_RESULT;
/* Estimates the multiply-adds of a record. */
double clv_look_part_mac_count(const clv_look_part *p);
/* Makes the plan for batches of `batch` records. */
clv_code clv_look_part_plan(clv_look_part *p, int64_t batch, clv_err *err) CLV_USE_RESULT;
/* Runs a batch. in: inputs in the order of the graph. The output is p->out. */
clv_code clv_look_part_forward(clv_look_part *p, const void *const *in, const clv_rng_key *key,
                               clv_err *err) CLV_USE_RESULT;
/* Computes the gradient of the first input from that of the output. Call it once after a forward.
 * */
clv_code clv_look_part_backward(clv_look_part *p, const void *dout, void *din,
                                clv_err *err) CLV_USE_RESULT;
void clv_look_part_done(clv_look_part *p); /* frees and zeroes */

/* Returns the number of inputs of the part's graph. ret[k] is the model input that input k is; -1:
 * the value that crosses the cut. */
uint32_t clv_look_part_inputs(const clv_blueprint *b, const clv_look_part *p,
                              int ret[CLV_MAX_INPUTS]);

/* ---- reading --------------------------------------------------------------------------------- */

/* One look with one draw of the secrets. */
typedef struct clv_look_round {
  clv_look_weights weights;
  const clv_look_options *o;
  clv_look_sample *sample; /* records of the look; half.n 0: not chosen yet */
  uint64_t until_ns;       /* when this draw should end, by clv_now_ns */
  uint64_t end_ns;         /* when the look must end, by clv_now_ns */
} clv_look_round;

/* Chooses the round's records, at most `most`, with each class's share in both halves. All draws
 * use the same records. CLV_PRECONDITION: the sample has them, but they are too few to learn from.
 * */
clv_code clv_look_choose_records(const clv_look_round *r, size_t most, clv_err *err) CLV_USE_RESULT;

/* Fill the results of their readers; a reader that cannot run gets the reason. */
void clv_look_read_front(const clv_look_round *r, clv_look_result of[CLV_LOOK_READERS]);
void clv_look_read_head(const clv_look_round *r, clv_look_result *labels, clv_look_result *groups);

#endif
