/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a stage: its memory (stage_memory.c) and the step in progress (stage_step.c).
 *
 * One training step walks: committed = s-1 -> FORWARD of step s opens it -> all micro-batches
 * forward, all backward, in order -> VOTE -> COMMIT(s) -> committed = s. What arrives for a later
 * step is parked until its COMMIT; what arrives for an earlier one is refused.
 */
#ifndef CLEAVE_STAGE_INT_H
#define CLEAVE_STAGE_INT_H

#include "common/dist/dist_int.h"

enum { MAX_PLANS = 32 };

typedef struct stage_plan {
  int64_t batch;
  bool training;
  uint32_t input_grads; /* bit i: the gradient of input i is computed */
  clv_plan *plan;
  uint32_t calls, calls_out; /* of contexts: made, in use */
  bool charged;
} stage_plan;

/* One micro-batch of the step in progress, or of an evaluation. */
typedef struct micro {
  clv_tensor *in[CLV_MAX_INPUTS]; /* kept until the backward is done */
  uint64_t in_message;            /* answered by the BACKWARD this stage sends */
  uint64_t out_message;           /* the BACKWARD this stage gets must name it */
  clv_tensor *dout;
  clv_call *call;
  clv_plan *plan;
} micro;

struct clv_stage {
  clv_stage_options o; /* graph and backend are used, the lists are not kept */
  clv_graph *graph;
  clv_params *params;
  int n_inputs;
  clv_dtype in_dtype[CLV_MAX_INPUTS];

  void *block;      /* parameters, then buffers */
  void *grads;      /* trainable_bytes */
  void *shadow;     /* buffers as committed, restored when a step is not applied */
  clv_optim *optim; /* NULL when nothing learns here */
  uint64_t version; /* of the parameters, for the plans' weight caches */
  size_t bytes;
  uint32_t n_learning; /* trainable and not frozen */
  bool participates;   /* gets BACKWARD and votes */

  stage_plan plans[MAX_PLANS];
  int n_plans;
  clv_tensor *snapshot; /* what the last APPLY of a context changed, as it was before */

  uint64_t committed, step; /* step 0: none open */
  uint64_t context;
  uint32_t n_micro, next_forward, next_backward;
  bool prepared;
  micro *micros;      /* [max_micro_batches] */
  micro *eval_micros; /* [max_micro_batches] */
  clv_packet *parked; /* list, in order of arrival */
  clv_stage_counts counts;

  /* of the node it belongs to */
  clv_pool *pool;
  uint64_t *next_message;
  clv_stage_emit *emit;
  void *emit_user;
};

/* The plan for a batch size and a set of input gradients, made if missing. */
clv_code clv_stage_plan_for(clv_stage *s, int64_t batch, bool training, uint32_t input_grads,
                            stage_plan **ret, clv_err *err) CLV_USE_RESULT;
/* A call of it; memory it takes for the first time is charged to the session's quota. */
clv_code clv_stage_call_get(clv_stage *s, stage_plan *p, clv_call **ret,
                            clv_err *err) CLV_USE_RESULT;
void clv_stage_call_put(stage_plan *p, clv_call *call);

/* Memory for a snapshot of parameters, moments and step count; take it; go back to it. */
clv_code clv_stage_snapshot_ready(clv_stage *s, clv_err *err) CLV_USE_RESULT;
void clv_stage_snapshot(clv_stage *s);
void clv_stage_revert(clv_stage *s);

void clv_stage_clear_micro(micro *m);
size_t clv_stage_buffer_bytes(const clv_stage *s);

#endif
