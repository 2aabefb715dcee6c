/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: the inside of a plan.
 *
 * A plan is a list of steps in three phases (forward, backward_input, backward_weight) over
 * buffers. A buffer lives from the first step that writes it to the last that reads it, counted
 * through all three phases. One that lives inside a single phase is in the scratch block that all
 * calls share; one that outlives a phase is in the call's block, because other calls may run in
 * between; inside both blocks memory is reused by lifetime. Buffers of the caller (inputs, output
 * and their gradients) are spaces of their own. For a backend with memory of its own these are
 * copies behind the scratch, since what the caller lends is the host's.
 *
 * plan.c makes and frees a plan, plan_fuse.c and plan_chain.c find ops for one kernel,
 * plan_forward.c and plan_backward.c write the steps, plan_recompute.c says which of forward
 * backward repeats, plan_memory.c merges and places the buffers, plan_run.c executes,
 * plan_describe.c prints.
 */
#ifndef CLEAVE_GRAPH_PLAN_INT_H
#define CLEAVE_GRAPH_PLAN_INT_H

#include "common/model/graph/graph_int.h"

enum plan_space {
  SPACE_SCRATCH,
  SPACE_CALL,
  SPACE_OUT,
  SPACE_DOUT,
  SPACE_IN,
  SPACE_DIN = SPACE_IN + CLV_MAX_INPUTS,
  SPACE_COUNT = SPACE_DIN + CLV_MAX_INPUTS,
};

typedef struct clv_plan_buf {
  int space;       /* SPACE_SCRATCH until placed, unless it is the caller's */
  int root;        /* itself, or the buffer whose memory it shares */
  int first, last; /* steps; of a root: of all that share it */
  size_t bytes, offset;
} clv_plan_buf;

/* A value, or a gradient, in one layout. */
typedef struct clv_plan_layout_buf {
  int block, buf;
} clv_plan_layout_buf;

enum { PLAN_MAX_LAYOUT_BUFS = 4 };

/* What libraries of devices want of the memory that they are lent. */
enum { DEVICE_ALIGN = 256 };

typedef struct clv_plan_node {
  bool live;       /* the output depends on it */
  bool needs_grad; /* its value's gradient is computed */
  bool learns;     /* some parameter of it is trained */
  bool alias;      /* no kernel: shares its input's memory */
  bool absorbed;   /* no kernel: a later node's does its work */
  /* The node whose op, attributes and parameters the kernel has: itself, or an absorbed one. */
  int fused_from;
  unsigned fused_after; /* CLV_TAIL_*: what follows that op, up to and with this node */
  bool forwarded;       /* a relu whose forward the kernel of its input does: it has no step */
  int n_joined,
      joined[CLV_MAX_LINKS];  /* the nodes whose ops the kernel does, if several, in order */
  int key_node;               /* whose random numbers the kernel draws */
  int n_src, src[CLV_MAX_IN]; /* the nodes the kernel reads */
  int input;                  /* number among the external inputs, or -1 */
  clv_kernel *kernel;
  bool again; /* forward's steps have been written for the second time */
  /* Buffers, -1 = none: those of the step of forward that was written last, and reps, too. */
  int in[CLV_MAX_IN], saved;
  clv_plan_layout_buf reps[PLAN_MAX_LAYOUT_BUFS]; /* reps[0] is what the node itself makes */
  int n_reps;
  clv_plan_layout_buf grad; /* sum of the gradients that have come so far; buf -1 = none yet */
  const clv_param *param[CLV_MAX_PARAMS];
  size_t cache_offset;
} clv_plan_node;

struct clv_plan_frame;
struct clv_plan_step;
typedef clv_code clv_plan_step_fn(clv_plan *p, const struct clv_plan_frame *f,
                                  const struct clv_plan_step *s, clv_err *err);

typedef struct clv_plan_step {
  clv_plan_step_fn *run;
  const char *verb; /* for describe */
  int node;         /* whose kernel runs, or whose value is moved */
  int src, dst;     /* moves and additions */
  int src_block, dst_block;
  size_t n;           /* addition: values; copy and zero: bytes */
  int scratch, cache; /* kernel steps; cache: weights made for this step alone, or -1 */
  int in[CLV_MAX_IN], out, saved;
  int recompute;       /* backward: its in[0], made once more, or -1 */
  int din[CLV_MAX_IN]; /* backward_input */
  /* Where gradients of frozen parameters go; of a forward that is repeated, running statistics. */
  int spare[CLV_MAX_PARAMS];
  bool elided; /* its source took the place of its destination */
} clv_plan_step;

enum { PHASE_FORWARD, PHASE_BACKWARD_INPUT, PHASE_BACKWARD_WEIGHT, PHASES };

typedef struct clv_plan_range {
  size_t offset, bytes;
} clv_plan_range;

struct clv_plan {
  clv_plan_options options;
  const clv_backend *backend; /* the one of the options; ref for f64 */
  clv_graph *graph;
  clv_params *params;
  clv_plan_node *nodes; /* as graph->nodes */
  clv_plan_buf *bufs;
  int n_bufs, cap_bufs;
  clv_plan_step *steps;
  int n_steps, cap_steps;
  int phase_end[PHASES]; /* steps of phase k end here */
  int n_inputs;
  int input_node[CLV_MAX_INPUTS];
  int keep[CLV_MAX_INPUTS]; /* buffer for a copy of the input, or -1 if backward reads none */
  size_t input_bytes[CLV_MAX_INPUTS];
  clv_plan_range *unwritten; /* of the gradient block: frozen parameters and padding */
  int n_unwritten;
  clv_plan_info info;
  bool scalar_is_nan; /* the output, of a batch of 0 */
  /* running */
  char *scratch, *cache;
  bool fresh; /* the cache holds weights of version `version` of block `block` */
  uint64_t version;
  const void *block;
  clv_plan_times *times; /* [n_nodes], borrowed; NULL: nobody wants to know */
  clv_call *calls;       /* all of them */
  clv_call *idle;
  /* for a device */
  size_t copy[SPACE_COUNT]; /* where in the scratch the caller's buffers stand */
  size_t occasion;          /* and what the kernels that draw numbers read, if some do */
  bool draws;
  size_t out_bytes;
};

typedef enum clv_plan_call_state {
  PLAN_CALL_EMPTY,
  PLAN_CALL_FORWARD,
  PLAN_CALL_BACKWARD,
  PLAN_CALL_DONE
} clv_plan_call_state;

struct clv_call {
  clv_call *next, *next_idle;
  char *block;
  clv_plan_call_state state;
  const void *in[CLV_MAX_INPUTS];
  clv_plan_memories homes;
  clv_rng_key key;
};

/* What one execution of a phase works on. */
typedef struct clv_plan_frame {
  char *base[SPACE_COUNT];
  char *params, *grads;
  bool accumulate;
  clv_rng_key key;
  const clv_rng_position *occasion; /* as the kernels get it */
} clv_plan_frame;

/* ---- what backward makes again (plan_recompute.c) -------------------------------------------- */

/* Whether backward has values of `node` made again, and not kept; and in the block of a number. */
bool clv_plan_is_recomputed(const clv_plan *p, int node);
bool clv_plan_is_in_block(const clv_plan *p, int node, uint32_t number);
/* Of the block of node `top` up to it, those whose value, or state, must be made again: in wanted
 * [n_nodes], which is false before. */
void clv_plan_find_recomputed(const clv_plan *p, int top, bool *wanted);
/* Whether backward has such a step of `node`, and CLV_SAVE_*: what these read. */
bool clv_plan_has_dx(const clv_plan *p, int node);
bool clv_plan_has_dw(const clv_plan *p, int node);
unsigned clv_plan_reads_saved(const clv_plan *p, int node);

/* ---- writing steps (plan.c) ------------------------------------------------------------------ */

clv_code clv_plan_buf_new(clv_plan *p, size_t bytes, int space, int *ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_plan_extend_lifetime(clv_plan *p, int buf); /* by the step written next; -1 is ignored */
clv_code clv_plan_add_step(clv_plan *p, const clv_plan_step *step, clv_err *err) CLV_USE_RESULT;
clv_plan_step clv_plan_step_of(clv_plan_step_fn *run, const char *verb, int node);
/* plan_empty.c: of a node that has nothing to read: some extent of an input is 0. CLV_UNIMPLEMENTED
 * with a tail. */
bool clv_plan_has_empty_input(const clv_node_desc *d);
clv_code clv_plan_empty_kernel(const clv_node_desc *d, const clv_backend *backend, clv_kernel **ret,
                               clv_err *err) CLV_USE_RESULT;

clv_code clv_plan_add_scratch(clv_plan *p, int node, clv_plan_step *step,
                              clv_err *err) CLV_USE_RESULT;
/* Room for the weights a forward or backward_input step makes itself, if it does. */
clv_code clv_plan_add_cache(clv_plan *p, int node, clv_plan_step *step,
                            clv_err *err) CLV_USE_RESULT;

/* A buffer for node's value, or its gradient, in a layout. */
clv_code clv_plan_value_buf(clv_plan *p, int node, int block, int *ret,
                            clv_err *err) CLV_USE_RESULT;
/* From one buffer of node's value (or gradient) to another: a reorder, or a copy where the layouts
 * are the same. */
clv_code clv_plan_convert_layout(clv_plan *p, int node, clv_plan_layout_buf from,
                                 clv_plan_layout_buf to, clv_err *err) CLV_USE_RESULT;
int clv_plan_block(const clv_shape *shape, int block);      /* 1 unless the rank is 4 */
int clv_plan_grad_block(const clv_plan *p, int node);       /* in which node wants its gradient */
int clv_plan_din_block(const clv_plan *p, int node, int i); /* in which it makes that of input i */

/* (plan_fuse.c, plan_chain.c) One after the other: what goes both ways, then forward alone. */
void clv_plan_fuse(clv_plan *p);
void clv_plan_fuse_chains(clv_plan *p);
void clv_plan_fuse_forward(clv_plan *p);
int clv_plan_n_readers(const clv_plan *p, int node); /* live nodes that read it, and the caller */
bool clv_plan_has_one_reader(const clv_plan *p, int node);
/* Whether the node has the shape of each of its inputs: values of none stand for several. */
bool clv_plan_has_one_shape(const clv_plan *p, int node);
/* Live nodes with index in (from, to) that read node's value; the output counts as a reader. */
int clv_plan_n_readers_between(const clv_plan *p, int node, int from, int to);
/* node's kernel does the n ops of these nodes, of which it is the last. */
void clv_plan_fuse_nodes(clv_plan *p, const int *nodes, int n);
clv_chain_link clv_plan_chain_link(const clv_plan *p, int node);
/* The ops of node's kernel are taken apart again; the relu behind it has its own step again. */
void clv_plan_unfuse(clv_plan *p, int node);
void clv_plan_unfuse_relu(clv_plan *p, int node);

/* (plan_forward.c) The step reads and writes its node's buffers. */
void clv_plan_bind_step(const clv_plan *p, clv_plan_step *step);
/* The buffers that node's kernel reads, in its layouts. */
clv_code clv_plan_bind_inputs(clv_plan *p, int node, clv_err *err) CLV_USE_RESULT;
/* The steps that make node's value. */
clv_code clv_plan_write_value(clv_plan *p, int node, bool again, clv_err *err) CLV_USE_RESULT;

clv_code clv_plan_write_forward(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_write_backward(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_place_bufs(clv_plan *p, clv_err *err) CLV_USE_RESULT;

/* ---- running steps (plan_run.c) -------------------------------------------------------------- */

clv_plan_step_fn clv_plan_run_forward, clv_plan_run_backward_input, clv_plan_run_backward_weight,
    clv_plan_run_recompute, clv_plan_run_reorder, clv_plan_run_copy, clv_plan_run_add,
    clv_plan_run_zero;

#endif
