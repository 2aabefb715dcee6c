/* SPDX-License-Identifier: Apache-2.0
 *
 * The look: look_records.c chooses records, look_part.c runs layers in this process, look_front.c
 * reads records and tokens, look_head.c reads labels, look.c puts them together, look_text.c says
 * what was read.
 */
#ifndef CLEAVE_MASTER_PLAN_LOOK_INT_H
#define CLEAVE_MASTER_PLAN_LOOK_INT_H

#include "master/look/look.h"
#include "master/plan/plan_int.h"

/* Bytes of weights and activations that a look may take, and those of the values that it keeps. */
#define CLV_LOOK_MAX_MEMORY ((size_t)4 << 30)
#define CLV_LOOK_MAX_VALUES ((size_t)256 << 20)
enum { CLV_LOOK_MIN_RECORDS = 8 }; /* records; of fewer nothing is learned */

/* ---- records (look_records.c) ---------------------------------------------------------------- */

typedef struct clv_look_sample {
  clv_look_split half;                /* the records that are learned from come first */
  size_t n_inputs;                    /* [n_inputs] of x */
  clv_tensor *x[CLV_DATA_MAX_INPUTS]; /* of all records, as they are, without anything random */
  clv_tensor *y;                      /* NULL: there are no labels */
} clv_look_sample;

void clv_look_sample_done(clv_look_sample *s); /* frees and zeroes */

void clv_look_set_skipped(clv_look_result *ret, const clv_err *why);
/* The last stage at a worker; n_stages: none is. */
uint32_t clv_look_last_worker_stage(const clv_blueprint *b);

/* ---- layers (look_part.c) -------------------------------------------------------------------- */

/* Stages first..last as one graph, with weights and a plan. Never packed. */
typedef struct clv_look_part {
  uint32_t first, last;
  clv_graph *graph;
  clv_params *params;
  char *block; /* of params */
  clv_plan *plan;
  clv_call *call;
  void *out;      /* of a batch */
  int64_t batch;  /* records of the plan */
  bool training;  /* batches are normalized by themselves */
  bool backwards; /* gradients are wanted of the first input */
} clv_look_part;

/* Where first weights come from. */
typedef struct clv_look_weights {
  const clv_blueprint *b;
  const clv_key *seed;
  const clv_checkpoint *checkpoint; /* NULL: they are those before the first step */
} clv_look_weights;

/* Graph and weights. Errors that are no fault say why it cannot be looked at: CLV_UNIMPLEMENTED,
 * CLV_EXHAUSTED. */
clv_code clv_look_part_new(const clv_look_weights *w, uint32_t first, uint32_t last,
                           clv_look_part *ret, clv_err *err) CLV_USE_RESULT;
/* Layers of a part may have the parameters of others. */
clv_code clv_look_parts_tie(clv_look_part *parts, size_t n, clv_err *err) CLV_USE_RESULT;
/* Multiplications and additions of a record, about. */
double clv_look_part_mac_count(const clv_look_part *p);
/* The plan of so many records. */
clv_code clv_look_part_plan(clv_look_part *p, int64_t batch, clv_err *err) CLV_USE_RESULT;
/* in: as the inputs of the graph, of a batch; what comes out is p->out. */
clv_code clv_look_part_forward(clv_look_part *p, const void *const *in, const clv_rng_key *key,
                               clv_err *err) CLV_USE_RESULT;
/* Of the last run, once: from the gradient of the output to that of the first input. */
clv_code clv_look_part_backward(clv_look_part *p, const void *dout, void *din,
                                clv_err *err) CLV_USE_RESULT;
void clv_look_part_done(clv_look_part *p); /* frees and zeroes */

/* Inputs of the part's graph: input k is input ret[k] of the model; -1: what crosses the cut.
 * Returns how many. */
uint32_t clv_look_part_inputs(const clv_blueprint *b, const clv_look_part *p,
                              int ret[CLV_MAX_INPUTS]);

/* ---- reading --------------------------------------------------------------------------------- */

/* One look with one draw of the secrets. */
typedef struct clv_look_round {
  clv_look_weights weights;
  const clv_look_options *o;
  clv_look_sample *sample; /* n 0: nobody has chosen them yet */
  uint64_t until_ns;       /* when this draw should be over, by clv_now_ns, */
  uint64_t end_ns;         /* and when all has to be */
} clv_look_round;

/* Chooses the round's records, at most `most`, so that each class has its share in both halves;
 * once for all draws. CLV_PRECONDITION: they are too few to learn from, and are there. */
clv_code clv_look_choose_records(const clv_look_round *r, size_t most, clv_err *err) CLV_USE_RESULT;

/* Fill their results, also with why not. */
void clv_look_read_front(const clv_look_round *r, clv_look_result of[CLV_LOOK_READERS]);
void clv_look_read_head(const clv_look_round *r, clv_look_result *labels, clv_look_result *groups);

#endif
