/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: what a plan is made of. Building (plan_build.c) turns a shard into buffers and three
 * lists of steps; laying out (plan_memory.c) gives every buffer a place; running (plan_run.c) walks
 * a list and resolves places to pointers.
 *
 * A buffer is a run of bytes with a first and a last step on one timeline: forward, then input
 * gradients, then weight gradients. Buffers that a later call reads (saved activations, gradients
 * kept for the weight part) live in the call's own block and are never reused; the others share the
 * plan's scratch by lifetime.
 */
#ifndef CLEAVE_PLAN_INT_H
#define CLEAVE_PLAN_INT_H

#include "common/graph/op_int.h"

typedef enum place {
  PLACE_NONE,
  PLACE_SCRATCH,
  PLACE_CALL,
  PLACE_INPUT,  /* external input `index`, or the call's copy of it */
  PLACE_OUTPUT, /* the caller's output */
  PLACE_DOUT,   /* the caller's gradient of the output */
  PLACE_DIN,    /* the caller's gradient of external input `index` */
} place;

typedef struct buffer {
  place place;
  int index;
  size_t bytes, offset;
  int first, last; /* steps */
  bool saved;
} buffer;

typedef enum step_kind { STEP_KERNEL, STEP_REORDER, STEP_ADD, STEP_COPY } step_kind;

/* One step. Buffers are indexes into the plan's list, -1 for none. */
typedef struct step {
  step_kind kind;
  int node;               /* STEP_KERNEL, and for names */
  int src, dst;           /* STEP_REORDER, STEP_ADD, STEP_COPY */
  int src_block, dst_block;
  int in[CLV_MAX_IN], out, dout, din[CLV_MAX_IN]; /* STEP_KERNEL */
} step;

typedef struct step_list {
  step *items;
  int n, cap;
} step_list;

typedef struct value {
  int buffer, block; /* of the forward value */
  int grad;          /* buffer of its gradient, in the value's layout; -1: none yet */
  bool used, needs_grad;
} value;

typedef struct node_state {
  clv_kernel *kernel; /* NULL for inputs and aliases */
  int in_buffer[CLV_MAX_IN];
  size_t saved_offset, cache_offset; /* in the call block, in the cache */
  bool backward, weight;             /* takes part in the backward; has gradients of parameters */
  size_t param_offset[CLV_MAX_PARAMS];
  bool has_param[CLV_MAX_PARAMS], learns[CLV_MAX_PARAMS];
} node_state;

struct clv_plan {
  clv_plan_options o;
  clv_graph *graph;
  node_state *nodes;
  value *values;
  buffer *buffers;
  int n_buffers, cap_buffers;
  step_list forward, backward, weight;
  int inputs[CLV_MAX_INPUTS], n_inputs;     /* node indexes */
  size_t input_copy[CLV_MAX_INPUTS];        /* offset in the call block */
  bool input_saved[CLV_MAX_INPUTS];
  size_t kernel_scratch, dummy_bytes;
  void *scratch, *kernel_scratch_block, *cache, *dummy;
  uint64_t version; /* of the parameters the cache was made from; 0: none */
  clv_call *free_calls;
  clv_plan_info info;
};

struct clv_call {
  void *block;
  const void *in[CLV_MAX_INPUTS];
  const void *dout;
  clv_rng_key key;
  clv_call *next;
};

int clv_plan_add_buffer(clv_plan *p, place where, int index, size_t bytes, clv_err *err);
clv_code clv_plan_add_step(step_list *l, const step *s, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_build(clv_plan *p, const clv_params *params, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_lay_out(clv_plan *p, clv_err *err) CLV_USE_RESULT;

#endif
