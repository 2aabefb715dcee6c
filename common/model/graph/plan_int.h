/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: internal structures of a plan.
 *
 * A plan is a list of steps in three phases (forward, backward_input, backward_weight) over
 * buffers. A buffer lives from the first step that writes it to the last step that reads it,
 * counted through all three phases. A buffer that lives inside a single phase is in the scratch
 * block, which all calls of the plan share. A buffer that outlives a phase is in the block of its
 * call, because other calls may run in between. Both blocks reuse memory by lifetime. The buffers
 * of the caller (inputs, output and their gradients) are spaces of their own. For a backend with
 * its own memory these spaces are copies behind the scratch, because the caller's buffers are in
 * host memory.
 *
 * clv_plan_new (plan.c) builds a plan in this order: clv_plan_fuse, clv_plan_fuse_chains and
 * clv_plan_fuse_forward (plan_fuse.c, plan_chain.c) choose the nodes that share one kernel;
 * clv_plan_write_forward and clv_plan_write_backward write the steps, and ask plan_recompute.c
 * which nodes backward recomputes; clv_plan_place_bufs (plan_memory.c) merges and places the
 * buffers. plan_run.c executes the steps, plan_describe.c prints them, and plan_empty.c is the
 * kernel of nodes without values.
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
  int space;       /* enum plan_space; SPACE_SCRATCH until placed, unless it is the caller's */
  int root;        /* index of the buffer whose memory this one shares; its own index: none */
  int first, last; /* lifetime as step indices; of a root: that of all buffers that share it */
  size_t bytes;
  size_t offset; /* bytes into the space, set when the buffer is placed */
} clv_plan_buf;

/* Buffer with a node's value, or with its gradient, in one layout. */
typedef struct clv_plan_layout_buf {
  int block; /* layout, see clv_layout_block */
  int buf;   /* index into bufs */
} clv_plan_layout_buf;

enum { PLAN_MAX_LAYOUT_BUFS = 4 };

/* Alignment in bytes that device libraries need for the memory passed to them. */
enum { DEVICE_ALIGN = 256 };

typedef struct clv_plan_node {
  bool is_reachable; /* the output depends on this node's value */
  bool needs_grad;   /* the plan computes the gradient of this node's value */
  bool learns;       /* at least one parameter of the node is trained */
  bool alias;        /* the node has no kernel and shares its input's memory */
  bool is_absorbed;  /* the node has no kernel, because a later node's kernel computes its op */
  int fused_from;    /* node whose op, attributes and parameters the kernel has; may be this node */
  unsigned fused_after;  /* CLV_TAIL_*: ops that the kernel computes after that op */
  bool forward_is_fused; /* this relu has no forward step: its input's kernel computes it */
  int n_fused;           /* number of nodes whose ops the kernel computes; 0: only this one */
  int fused_nodes[CLV_MAX_LINKS]; /* [n_fused] in the order of computation */
  int key_node;                   /* node whose random numbers the kernel draws */
  int n_src, src[CLV_MAX_IN];     /* the nodes that the kernel reads */
  int input;                      /* index among the external inputs; -1: not an input */
  clv_kernel *kernel;             /* owned; NULL: none, or not yet prepared */
  bool forward_written_twice;     /* the steps that recompute the value are written */
  /* Buffers of the most recently written forward step (so is reps below); -1: none. */
  int in[CLV_MAX_IN], saved;
  clv_plan_layout_buf reps[PLAN_MAX_LAYOUT_BUFS]; /* the value; reps[0] as the kernel writes it */
  int n_reps;
  clv_plan_layout_buf grad;               /* sum of the gradients added so far; buf -1: none yet */
  const clv_param *param[CLV_MAX_PARAMS]; /* by slot; NULL behind the last */
  size_t cache_offset;                    /* bytes into the plan's cache */
} clv_plan_node;

struct clv_plan_frame;
struct clv_plan_step;
typedef clv_code clv_plan_step_fn(clv_plan *p, const struct clv_plan_frame *f,
                                  const struct clv_plan_step *s, clv_err *err);

typedef struct clv_plan_step {
  clv_plan_step_fn *run;
  const char *verb; /* for clv_plan_describe and errors, static text */
  int node;         /* node whose kernel runs, or whose value the step moves */
  /* The fields below with buffers hold indices into bufs; -1: none. */
  int src, dst; /* of moves and additions */
  int src_block, dst_block;
  size_t n;    /* of an addition: values; of copy and zero: bytes */
  int scratch; /* of a kernel */
  int cache;   /* weights in library format that this step makes for itself */
  int in[CLV_MAX_IN], out, saved;
  int recompute;       /* of backward: recomputed in[0], which the step reads in place of in[0] */
  int din[CLV_MAX_IN]; /* of backward_input: the gradients of the inputs */
  /* Unused results of the kernel: gradients of frozen parameters, or the running statistics that a
   * repeated forward updates. */
  int discard[CLV_MAX_PARAMS];
  bool is_elided; /* the copy is not needed, because its source is computed in its destination */
} clv_plan_step;

enum { PHASE_FORWARD, PHASE_BACKWARD_INPUT, PHASE_BACKWARD_WEIGHT, PHASES };

typedef struct clv_plan_range {
  size_t offset, bytes;
} clv_plan_range;

struct clv_plan {
  clv_plan_options options;
  const clv_backend *backend; /* that of the options; ref for f64 */
  clv_graph *graph;
  clv_params *params;
  clv_plan_node *nodes; /* [graph->n_nodes] */
  clv_plan_buf *bufs;
  int n_bufs, cap_bufs;
  clv_plan_step *steps;
  int n_steps, cap_steps;
  int phase_end[PHASES]; /* index behind the last step of each phase */
  int n_inputs;
  int input_node[CLV_MAX_INPUTS];
  int input_copy[CLV_MAX_INPUTS]; /* buffer for a copy of the input; -1: backward reads none */
  size_t input_bytes[CLV_MAX_INPUTS];
  clv_plan_range *zeroed_ranges; /* of the gradient block: frozen parameters and padding */
  int n_zeroed_ranges;
  clv_plan_info info;
  bool scalar_is_nan; /* the batch is 0 and the output is a scalar, so forward writes NaN */
  /* State of execution. */
  char *scratch, *cache; /* in the backend's memory; NULL before the first clv_plan_call_get */
  bool is_cache_current; /* the cache holds the weights of `version` of the block `block` */
  uint64_t version;
  const void *block;
  clv_plan_times *times; /* [n_nodes], borrowed; NULL: steps are not timed */
  clv_call *calls;       /* list of all calls, linked by next */
  clv_call *idle;        /* list of the free ones, linked by next_idle */
  /* For a backend with its own memory. */
  size_t copy_offset[SPACE_COUNT]; /* bytes into the scratch of the copies of caller's buffers */
  size_t rng_position_offset;      /* bytes into the scratch of a clv_rng_position, if used */
  bool uses_rng_position;          /* at least one kernel draws numbers and reads that position */
  size_t out_bytes;
};

typedef enum clv_plan_call_state {
  PLAN_CALL_EMPTY,
  PLAN_CALL_FORWARD,
  PLAN_CALL_BACKWARD,
  PLAN_CALL_DONE
} clv_plan_call_state;

/* A call goes EMPTY, FORWARD, BACKWARD, DONE. clv_plan_call_get and a starting or failed forward
 * set EMPTY; each of the three phases sets its state once it has succeeded. */
struct clv_call {
  clv_call *next, *next_idle;
  char *block; /* info.call_bytes of the backend's memory */
  clv_plan_call_state state;
  const void *in[CLV_MAX_INPUTS]; /* inputs as the kernels read them: the caller's, or a copy */
  clv_plan_memories memories;     /* see clv_plan_call_set_memories */
  clv_rng_key key;
};

/* Addresses and arguments of one execution of a phase. */
typedef struct clv_plan_frame {
  char *base[SPACE_COUNT]; /* start of each space; NULL: not used in this phase */
  char *params, *grads;
  bool accumulate; /* weight gradients are added to grads, not written over them */
  clv_rng_key key;
  const clv_rng_position *rng_position; /* passed to kernels; NULL: they use the key */
} clv_plan_frame;

/* ---- recomputation in backward (plan_recompute.c) -------------------------------------------- */

/* True if backward recomputes the value of `node`, which is not kept until then. */
bool clv_plan_is_recomputed(const clv_plan *p, int node);
/* True if `node` is recomputed and belongs to the block of that number. */
bool clv_plan_is_in_block(const clv_plan *p, int node, uint32_t number);
/* Sets needed[i] for each node of the block of `top`, up to `top`, whose value or state backward
 * has to recompute. needed: [n_nodes], false before the call. */
void clv_plan_find_recomputed(const clv_plan *p, int top, bool *needed);
/* True if backward has a step for the input gradients (dx), the weight gradients (dw) of `node`. */
bool clv_plan_has_dx(const clv_plan *p, int node);
bool clv_plan_has_dw(const clv_plan *p, int node);
/* Returns CLV_SAVE_* flags: the values of forward that these two steps read. */
unsigned clv_plan_reads_saved(const clv_plan *p, int node);

/* ---- writing steps (plan.c) ------------------------------------------------------------------ */

clv_code clv_plan_buf_new(clv_plan *p, size_t bytes, int space, int *ret,
                          clv_err *err) CLV_USE_RESULT;
/* Extends the lifetime of `buf` up to the step written next. Ignores -1. */
void clv_plan_extend_lifetime(clv_plan *p, int buf);
clv_code clv_plan_add_step(clv_plan *p, const clv_plan_step *step, clv_err *err) CLV_USE_RESULT;
/* Returns a step without buffers: every buffer field is -1. */
clv_plan_step clv_plan_step_of(clv_plan_step_fn *run, const char *verb, int node);
/* (plan_empty.c) True if an extent of an input is 0, so that the node has no value to read. */
bool clv_plan_has_empty_input(const clv_node_desc *d);
/* Makes the kernel of such a node. CLV_UNIMPLEMENTED: the node has a tail. */
clv_code clv_plan_empty_kernel(const clv_node_desc *d, const clv_backend *backend, clv_kernel **ret,
                               clv_err *err) CLV_USE_RESULT;

/* Adds the kernel's scratch buffer to a step, if the kernel needs one. */
clv_code clv_plan_add_scratch(clv_plan *p, int node, clv_plan_step *step,
                              clv_err *err) CLV_USE_RESULT;
/* Adds a buffer for the weights in library format that a forward or backward_input step makes for
 * itself. Does nothing unless options.transient_weights is set and the kernel has such weights. */
clv_code clv_plan_add_cache(clv_plan *p, int node, clv_plan_step *step,
                            clv_err *err) CLV_USE_RESULT;

/* Adds a buffer for node's value, or for its gradient, in a layout. */
clv_code clv_plan_value_buf(clv_plan *p, int node, int block, int *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Adds the step from one buffer of node's value (or gradient) to another: a reorder, or a copy if
 * both layouts are equal. */
clv_code clv_plan_convert_layout(clv_plan *p, int node, clv_plan_layout_buf from,
                                 clv_plan_layout_buf to, clv_err *err) CLV_USE_RESULT;
int clv_plan_block(const clv_shape *shape, int block);      /* 1 unless the rank is 4 */
int clv_plan_grad_block(const clv_plan *p, int node);       /* in which node reads its gradient */
int clv_plan_din_block(const clv_plan *p, int node, int i); /* in which it writes that of input i */

/* (plan_fuse.c, plan_chain.c) Called in this order: the first two fuse both directions, the third
 * fuses forward only. */
void clv_plan_fuse(clv_plan *p);
void clv_plan_fuse_chains(clv_plan *p);
void clv_plan_fuse_forward(clv_plan *p);
/* Returns how many reachable nodes read node's value; the caller counts as a reader of the output.
 */
int clv_plan_n_readers(const clv_plan *p, int node);
bool clv_plan_has_one_reader(const clv_plan *p, int node);
/* True if the node has the shape of each of its inputs, so that no input is broadcast. */
bool clv_plan_has_one_shape(const clv_plan *p, int node);
/* As clv_plan_n_readers, but counts only the nodes with an index in (from, to), and the caller only
 * if `to` is behind the output. */
int clv_plan_n_readers_between(const clv_plan *p, int node, int from, int to);
/* Lets the kernel of the last of these n nodes compute the ops of all. */
void clv_plan_fuse_nodes(clv_plan *p, const int *nodes, int n);
clv_chain_link clv_plan_chain_link(const clv_plan *p, int node);
/* Undoes the fusion of node: each of its nodes gets a kernel and steps of its own. */
void clv_plan_unfuse(clv_plan *p, int node);
/* Undoes the fusion of the forward of a relu into `node`: the relu gets a forward step. */
void clv_plan_unfuse_relu(clv_plan *p, int node);

/* (plan_forward.c) Sets the step's in, out and saved to the current buffers of its node. */
void clv_plan_bind_step(const clv_plan *p, clv_plan_step *step);
/* Sets the buffers that node's kernel reads, in its layouts; adds reorders where they are needed.
 */
clv_code clv_plan_bind_inputs(clv_plan *p, int node, clv_err *err) CLV_USE_RESULT;
/* Adds the steps that compute node's value. again: for the second time, in backward. */
clv_code clv_plan_write_value(clv_plan *p, int node, bool again, clv_err *err) CLV_USE_RESULT;

clv_code clv_plan_write_forward(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_write_backward(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_place_bufs(clv_plan *p, clv_err *err) CLV_USE_RESULT;

/* ---- running steps (plan_run.c) -------------------------------------------------------------- */

clv_plan_step_fn clv_plan_run_forward, clv_plan_run_backward_input, clv_plan_run_backward_weight,
    clv_plan_run_recompute, clv_plan_run_reorder, clv_plan_run_copy, clv_plan_run_add,
    clv_plan_run_zero;

#endif
