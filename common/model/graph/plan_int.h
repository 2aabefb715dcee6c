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
 * clv_plan_add_forward_steps and clv_plan_add_backward_steps write the steps, and ask
 * plan_recompute.c which nodes backward recomputes; clv_plan_place_bufs (plan_memory.c) merges and
 * places the buffers. plan_run.c executes the steps, plan_describe.c prints them, and plan_empty.c
 * is the kernel of nodes without values.
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
  /* enum plan_space; SPACE_SCRATCH until clv_plan_place_bufs, except for buffers of the caller */
  int space;
  /* index of the buffer whose memory this buffer shares; its own index: it has its own memory */
  int memory_root;
  /* steps of its lifetime; if others share its memory, the lifetimes of all of them */
  int first_step, last_step;
  size_t bytes;
  size_t offset; /* offset in its space in bytes, set by clv_plan_place_bufs */
} clv_plan_buf;

/* A buffer that holds a node's value, or the gradient of that value, in one layout. */
typedef struct clv_plan_layout_buf {
  int layout; /* layout of the buffer, see clv_layout_block */
  int buf;    /* index of the buffer in clv_plan.bufs */
} clv_plan_layout_buf;

enum { PLAN_MAX_LAYOUT_BUFS = 4 };

/* Alignment in bytes that device libraries need for the memory passed to them. */
enum { DEVICE_ALIGN = 256 };

typedef struct clv_plan_node {
  bool is_reachable; /* the output depends on this node's value */
  bool needs_grad;   /* the plan computes the gradient of this node's value */
  /* at least one parameter of the node is trained (is neither frozen nor a buffer) */
  bool is_trained;
  bool is_alias;    /* the node has no kernel, because its value is in the buffer of its input */
  bool is_absorbed; /* the node has no kernel, because a later node's kernel computes its op */
  /* first node whose op the kernel computes, with its attributes and parameters; may be this node
   */
  int first_fused_node;
  /* CLV_TAIL_* flags: ops that the kernel computes after the op of first_fused_node */
  unsigned fused_tail_flags;
  /* the node is a relu without a forward step, because the kernel of its input computes the relu */
  bool forward_is_fused;
  int n_fused; /* number of nodes whose ops the kernel computes; 0: only this node's op */
  int fused_nodes[CLV_MAX_LINKS]; /* [n_fused] in the order of computation */
  int rng_node;                   /* node whose RNG key the kernel uses */
  int n_src, src[CLV_MAX_IN];     /* nodes whose values the kernel reads */
  /* for an input node, its index among the graph's inputs; -1: not an input node */
  int input_index;
  /* kernel of the node, owned by the plan; NULL: the node has none, or it is not prepared yet */
  clv_kernel *kernel;
  /* the plan has the steps that recompute the value in backward */
  bool has_recompute_steps;
  /* Buffers of the forward step that was written last for this node: the inputs in the layouts
   * that the kernel reads, and the state that the kernel saves for backward; -1: none.
   * value_bufs belong to the same step. */
  int in[CLV_MAX_IN], saved_buf;
  /* the node's value in several layouts; the kernel writes value_bufs[0] */
  clv_plan_layout_buf value_bufs[PLAN_MAX_LAYOUT_BUFS];
  int n_value_bufs;
  /* buffer with the sum of the value's gradients that the steps written so far compute; buf -1:
   * none yet */
  clv_plan_layout_buf grad_sum;
  const clv_param *slot_params[CLV_MAX_PARAMS]; /* parameters by slot; NULL behind the last */
  size_t weight_cache_offset; /* offset of its weights in the plan's cache, in bytes */
} clv_plan_node;

struct clv_plan_frame;
struct clv_plan_step;
typedef clv_code clv_plan_step_fn(clv_plan *p, const struct clv_plan_frame *f,
                                  const struct clv_plan_step *s, clv_err *err);

typedef struct clv_plan_step {
  clv_plan_step_fn *run;
  /* name of the step for clv_plan_describe and errors, such as "forward"; static text */
  const char *step_name;
  /* node whose kernel the step runs, or whose value it copies, converts or adds */
  int node;
  /* Fields below whose comments say buffer hold an index into clv_plan.bufs; -1: none. */
  int src, dst; /* source and destination buffers of a copy, reorder or addition */
  int src_layout, dst_layout;
  /* number of values that an addition adds, or of bytes that a copy or zero step writes */
  size_t n;
  int scratch; /* temporary buffer of the kernel */
  int cache;   /* buffer for weights in library format that this step makes for itself */
  int in[CLV_MAX_IN], out, saved_buf;
  /* buffer with the recomputed input 0, which a backward step reads in place of in[0] */
  int recomputed_in0;
  int din[CLV_MAX_IN]; /* buffers that a backward_input step writes: gradients of the inputs */
  /* Buffers for results that nothing uses: gradients of frozen parameters, or running statistics of
   * a recomputed forward. */
  int discard_bufs[CLV_MAX_PARAMS];
  bool is_dropped; /* the copy step is dropped, because its source is computed in its destination */
} clv_plan_step;

enum { PHASE_FORWARD, PHASE_BACKWARD_INPUT, PHASE_BACKWARD_WEIGHT, PHASES };

typedef struct clv_plan_range {
  size_t offset, bytes;
} clv_plan_range;

struct clv_plan {
  clv_plan_options options;
  const clv_backend *backend; /* options.backend, or the reference backend for f64 */
  clv_graph *graph;
  clv_params *params;
  clv_plan_node *nodes; /* [graph->n_nodes] steps and buffers of each node of the graph */
  clv_plan_buf *bufs;
  int n_bufs, cap_bufs;
  clv_plan_step *steps;
  int n_steps, cap_steps;
  int phase_end[PHASES]; /* [phase] index behind the last step of the phase */
  int n_inputs;
  int input_node[CLV_MAX_INPUTS];
  /* buffer for a copy of the input; -1: backward does not read this input */
  int input_copy_buf[CLV_MAX_INPUTS];
  size_t input_bytes[CLV_MAX_INPUTS];
  /* ranges of the gradient block that backward sets to 0: frozen parameters and padding */
  clv_plan_range *zeroed_ranges;
  int n_zeroed_ranges;
  clv_plan_info info;
  bool scalar_is_nan; /* the batch is 0 and the output is a scalar, so forward writes NaN */
  /* The fields below change when steps run. */
  /* blocks in the backend's memory; NULL before the first clv_plan_call_get */
  char *scratch, *weight_cache;
  /* the cache holds the weights of the parameter block cached_params in version
   * cached_params_version */
  bool is_cache_current;
  uint64_t cached_params_version;
  const void *cached_params;
  clv_plan_times *node_times; /* [n_nodes], caller-owned; NULL: steps are not timed */
  clv_call *calls;            /* list of all calls, linked by next */
  clv_call *free_calls;       /* list of the calls that are not in use, linked by next_idle */
  /* The fields below are used for a backend with its own memory. */
  /* [space] offset in the scratch of the copy of the caller's buffer */
  size_t copy_offset[SPACE_COUNT];
  /* offset in the scratch of a clv_rng_position, if uses_rng_position */
  size_t rng_position_offset;
  /* at least one kernel draws random numbers and reads their position from memory */
  bool uses_rng_position;
  size_t out_bytes;
};

typedef enum clv_plan_call_state {
  PLAN_CALL_EMPTY,
  PLAN_CALL_FORWARD,
  PLAN_CALL_BACKWARD,
  PLAN_CALL_DONE
} clv_plan_call_state;

/* A call of a plan: one forward with its backward. (Not a CALL of the protocol.) Its states:
 *
 *   EMPTY     Holds: nothing. Entered: by clv_plan_call_get; from any state by clv_plan_forward,
 *             until that succeeds, and by clv_plan_call_put. Left: for FORWARD by clv_plan_forward.
 *   FORWARD   Holds: what forward saved. Left: for BACKWARD by clv_plan_backward_input.
 *   BACKWARD  Holds: the saved values that weight gradients need. The input gradients are computed;
 *             without options.split_backward all gradients are. Left: for DONE by
 *             clv_plan_backward_weight.
 *   DONE      Holds: nothing that is read again; all gradients are computed. */
struct clv_call {
  clv_call *next, *next_idle;
  char *memory; /* memory of the call, info.call_bytes in the backend's memory */
  clv_plan_call_state state;
  /* addresses of the inputs that kernels read: of the caller's buffers, or of copies */
  const void *in[CLV_MAX_INPUTS];
  /* backends that hold the caller's buffers, see clv_plan_call_set_memories */
  clv_plan_memories caller_memories;
  clv_rng_key rng_key;
};

/* A frame of a plan: addresses and arguments of one run of a phase. (Not a frame of the protocol.)
 */
typedef struct clv_plan_frame {
  char *space_start[SPACE_COUNT]; /* start of each space; NULL: this phase does not use the space */
  char *params, *grads;           /* parameter block and gradient block; grads NULL: forward */
  bool accumulate;                /* weight gradients are added to grads, not written over them */
  clv_rng_key rng_key;
  const clv_rng_position *rng_position; /* on the device, for kernels; NULL: kernels use rng_key */
} clv_plan_frame;

/* ---- recomputation in backward (plan_recompute.c) -------------------------------------------- */

/* True if forward does not keep the value of `node`, so that backward recomputes it. */
bool clv_plan_is_recomputed(const clv_plan *p, int node);
/* True if `node` is recomputed, and is in recompute block `number`. */
bool clv_plan_is_in_recompute_block(const clv_plan *p, int node, uint32_t number);
/* Finds which nodes of the recompute block that contains `top` have to run forward again for
 * backward. Sets is_needed[i] for each such node up to `top`. is_needed: [n_nodes], all false
 * before the call. */
void clv_plan_find_recomputed(const clv_plan *p, int top, bool *is_needed);
/* True if backward has a step for the input gradients of `node`, or a separate step for its weight
 * gradients. */
bool clv_plan_has_input_grad_step(const clv_plan *p, int node);
bool clv_plan_has_weight_grad_step(const clv_plan *p, int node);
/* Returns CLV_SAVE_* flags: which values of forward the backward steps of `node` read. */
unsigned clv_plan_saved_values_read(const clv_plan *p, int node);

/* ---- writing the steps of a plan (plan.c) ---------------------------------------------------- */

clv_code clv_plan_buf_new(clv_plan *p, size_t bytes, int space, int *ret,
                          clv_err *err) CLV_USE_RESULT;
/* Extends the lifetime of `buf` up to the step written next. Ignores -1. */
void clv_plan_extend_lifetime(clv_plan *p, int buf);
clv_code clv_plan_add_step(clv_plan *p, const clv_plan_step *step, clv_err *err) CLV_USE_RESULT;
/* Returns a step without buffers: every buffer field is -1. */
clv_plan_step clv_plan_make_bare_step(clv_plan_step_fn *run, const char *verb, int node);
/* (plan_empty.c) True if an input of the node has an extent of 0, and so no values. */
bool clv_plan_has_empty_input(const clv_node_desc *d);
/* Makes the kernel of a node for which clv_plan_has_empty_input is true. CLV_UNIMPLEMENTED: the
 * kernel would have to compute fused ops (a tail) too. */
clv_code clv_plan_make_empty_kernel(const clv_node_desc *d, const clv_backend *backend,
                                    clv_kernel **ret, clv_err *err) CLV_USE_RESULT;

/* Adds the kernel's scratch buffer to a step, if the kernel needs one. */
clv_code clv_plan_add_scratch(clv_plan *p, int node, clv_plan_step *step,
                              clv_err *err) CLV_USE_RESULT;
/* Adds a buffer for the weights in library format that a forward or backward_input step makes for
 * itself. Does nothing unless options.transient_weights is set and the kernel has such weights. */
clv_code clv_plan_add_weight_buf(clv_plan *p, int node, clv_plan_step *step,
                                 clv_err *err) CLV_USE_RESULT;

/* Adds a buffer for the value of `node`, or for its gradient, in layout `block`. */
clv_code clv_plan_add_value_buf(clv_plan *p, int node, int block, int *ret,
                                clv_err *err) CLV_USE_RESULT;
/* Adds the step that converts the value or gradient of `node` from one buffer to another: a
 * reorder, or a copy if both layouts are equal. */
clv_code clv_plan_convert_layout(clv_plan *p, int node, clv_plan_layout_buf from,
                                 clv_plan_layout_buf to, clv_err *err) CLV_USE_RESULT;
/* returns `block` for rank 4, else 1 */
int clv_plan_layout_for_rank(const clv_shape *shape, int block);
/* layout in which the kernel of `node` reads its output's gradient */
int clv_plan_output_grad_layout(const clv_plan *p, int node);
/* layout in which the kernel of `node` writes the gradient of its input i */
int clv_plan_input_grad_layout(const clv_plan *p, int node, int i);

/* (plan_fuse.c, plan_chain.c) Choose the nodes that share one kernel. Call them in this order:
 * clv_plan_fuse and clv_plan_fuse_chains fuse forward and backward, clv_plan_fuse_forward only
 * forward. */
void clv_plan_fuse(clv_plan *p);
void clv_plan_fuse_chains(clv_plan *p);
void clv_plan_fuse_forward(clv_plan *p);
/* Returns the number of reachable nodes that read the value of `node`. The plan's caller counts as
 * one reader of the output. */
int clv_plan_n_readers(const clv_plan *p, int node);
bool clv_plan_has_one_reader(const clv_plan *p, int node);
/* True if the node has the shape of each of its inputs, so that no input is broadcast. */
bool clv_plan_has_one_shape(const clv_plan *p, int node);
/* As clv_plan_n_readers, but counts only nodes with index > from and < to, and the caller only if
 * `to` is behind the output. */
int clv_plan_n_readers_between(const clv_plan *p, int node, int from, int to);
/* Fuses n nodes: the kernel of the last one computes the ops of all. */
void clv_plan_fuse_nodes(clv_plan *p, const int *nodes, int n);
clv_chain_link clv_plan_make_chain_link(const clv_plan *p, int node);
/* Undoes the fusion that ends in `node`, so that each fused node gets its own kernel and steps. */
void clv_plan_unfuse(clv_plan *p, int node);
/* Undoes the fusion of a relu's forward into the kernel of `node`, so that the relu gets a forward
 * step. */
void clv_plan_unfuse_relu(clv_plan *p, int node);

/* (plan_forward.c) Sets `in`, `out` and `saved` of the step to the current buffers of the step's
 * node. */
void clv_plan_bind_step_bufs(const clv_plan *p, clv_plan_step *step);
/* Sets the buffers that the kernel of `node` reads, in the layouts that it needs, and adds the
 * reorder steps that fill them. */
clv_code clv_plan_bind_input_bufs(clv_plan *p, int node, clv_err *err) CLV_USE_RESULT;
/* Adds the steps that compute the value of `node`. is_recompute: the steps are part of backward,
 * and compute the value a second time. */
clv_code clv_plan_add_value_steps(clv_plan *p, int node, bool is_recompute,
                                  clv_err *err) CLV_USE_RESULT;

clv_code clv_plan_add_forward_steps(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_add_backward_steps(clv_plan *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_plan_place_bufs(clv_plan *p, clv_err *err) CLV_USE_RESULT;

/* ---- running the steps of a plan (plan_run.c) ------------------------------------------------ */

clv_plan_step_fn clv_plan_run_forward, clv_plan_run_backward_input, clv_plan_run_backward_weight,
    clv_plan_run_recompute, clv_plan_run_reorder, clv_plan_run_copy, clv_plan_run_add,
    clv_plan_run_zero;

#endif
