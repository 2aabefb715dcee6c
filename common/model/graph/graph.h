/* SPDX-License-Identifier: Apache-2.0
 *
 * graph: graphs of ops with named parameters, shape inference, cutting a graph into modules, and
 * the plan that executes one module on one backend.
 *
 * A graph is a DAG in topological order: a node's inputs have smaller indexes. Names of parameters
 * are PyTorch state_dict names: "<node name>.weight"; a node without a name of its own is called by
 * its layer index in the uncut graph ("3.weight"), as nn.Sequential does.
 *
 * Threads: graphs are immutable once inferred; a plan and its calls belong to one thread at a time.
 */
#ifndef CLEAVE_GRAPH_H
#define CLEAVE_GRAPH_H

#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CLV_NAME_MAX = 64, CLV_MAX_NODES = 4096, CLV_MAX_INPUTS = 8, CLV_MAX_OUTPUTS = 8 };

/* ---- attributes ------------------------------------------------------------------------------ */

/* One attribute as it comes from a file or a message. ints has n_ints entries for integers, pairs,
 * booleans (0/1) and lists; real attributes use `number` (an integer is accepted there too), and
 * lists of them `numbers`, which is borrowed: from the attributes or the message it was made of. */
typedef struct clv_attr_value {
  clv_attr_key key;
  int n_ints;
  int64_t ints[CLV_MAX_RANK];
  bool is_number;
  double number;
  int n_numbers; /* lists of numbers; where it is not 0 the fields above are not read */
  const float *numbers;
} clv_attr_value;

/* Attribute key by name for an op: CLV_NOT_FOUND names the op's legal keys and a suggestion. */
clv_code clv_op_attr_find(clv_op op, const char *key, clv_attr_key *ret,
                          clv_err *err) CLV_USE_RESULT;
const char *clv_attr_name(clv_attr_key key); /* "?" outside the list */
const char *clv_attr_doc(clv_attr_key key);  /* a few words; "" outside the list */
const char *clv_attr_type(clv_attr_key key); /* "integer", "number"...; "" outside the list */

/* Defaults, then the n values in turn, each checked (key legal for op, arity, range); a missing
 * required one is an error. stride defaults to kernel for pools and to 1 for conv2d. */
clv_code clv_attrs_parse(clv_op op, const clv_attr_value *values, int n, clv_attrs *ret,
                         clv_err *err) CLV_USE_RESULT;

/* Key, type and range of one value alone, so that an error can point at it. */
clv_code clv_op_attr_check(clv_op op, const clv_attr_value *value, clv_err *err) CLV_USE_RESULT;

/* The attributes that differ from the defaults, for the wire: at most CLV_MAX_RANK + 2 of them. */
int clv_attrs_encode(clv_op op, const clv_attrs *attrs, clv_attr_value *ret_values, int max);

/* ---- graph ----------------------------------------------------------------------------------- */

typedef struct clv_node {
  clv_op op;
  clv_attrs attrs;
  char name[CLV_NAME_MAX];
  uint32_t layer; /* index in the uncut graph */
  clv_key key;    /* of initialisation and dropout; zero until its owner sets it */
  /* In training, nodes of one number keep nothing for backward, which computes them once more; what
   * they read of others is kept. 0: kept. Any number on any node gives the same bits. */
  uint32_t recompute;
  /* The most places of a record, all of whose rows lie one behind the other along dimension 0; 0:
   * it counts records. Known where a graph is packed, and not on the wire. */
  int64_t places;
  int n_in;
  int in[CLV_MAX_IN];
  char tied[CLV_NAME_MAX]; /* the node whose first parameter is this one's too; "": none */
  bool tied_outside;       /* it is in another module of the same process */
  /* filled by inference */
  clv_shape shape;
  clv_dtype dtype;
} clv_node;

typedef struct clv_graph {
  clv_node *nodes;
  int n_nodes, cap;
  int output;      /* index of the node whose value leaves (the last one unless set) */
  clv_dtype dtype; /* of values made from integers (embedding): f32 unless set */
  bool joins;      /* a concat along dimension 0, or packed: N may be another for each input */
  char prefix[16]; /* of names, "bert."; people may leave it out */
} clv_graph;

clv_code clv_graph_new(clv_graph **ret, clv_err *err) CLV_USE_RESULT;
clv_graph *clv_graph_free(clv_graph *g); /* takes NULL, returns NULL */
void clv_graph_freep(clv_graph **g);

/* An external input; `shape` includes N in dim 0, and is a scalar's of rank 0. */
clv_code clv_graph_add_input(clv_graph *g, const char *name, clv_dtype dtype,
                             const clv_shape *shape, int *ret_node, clv_err *err) CLV_USE_RESULT;

/* A node over earlier nodes; CLV_DENIED for an op of tests outside them. name NULL or "": called by
 * its layer index. Names are unique and of [A-Za-z0-9_.-]. Infers and checks its shape at once:
 * errors name op, node and shapes. */
clv_code clv_graph_add(clv_graph *g, clv_op op, const clv_attrs *attrs, const char *name,
                       uint32_t layer, const int *in, int n_in, int *ret_node,
                       clv_err *err) CLV_USE_RESULT;

/* The first parameter of `node`, such as the weight of a linear, is that of the node called `owner`
 * from now on, such as an embedding: one set of values, whose gradient is the sum of both nodes'.
 * outside: the owner is in another graph. CLV_INVALID: it is not here, either has none that learns,
 * the owner's is another's itself, or their shapes differ. */
clv_code clv_graph_tie(clv_graph *g, int node, const char *owner, bool outside,
                       clv_err *err) CLV_USE_RESULT;

/* Shapes of all nodes again, for another batch size (N of every input; of one whose records have
 * places, as many times those). */
clv_code clv_graph_set_batch(clv_graph *g, int64_t batch, clv_err *err) CLV_USE_RESULT;
/* The same with N of each input, in their order; what must be alike is refused where it meets.
 * Takes no memory. */
clv_code clv_graph_set_batches(clv_graph *g, const int64_t n[CLV_MAX_INPUTS],
                               clv_err *err) CLV_USE_RESULT;

/* Whether each layer can train on a batch of this size; CLV_INVALID names the layer, its op and
 * why. */
clv_code clv_graph_check_training(const clv_graph *g, clv_err *err) CLV_USE_RESULT;

/* Of nodes that the slices add; no layer of a model has this number. */
enum { CLV_GLUE_LAYER = 1 << 20 };

/* A new graph of the nodes with first_layer <= layer <= last_layer. Its first input is what crosses
 * in front of them, called "input" ("-.cut" if it reads an input of that name besides), and its
 * output is what crosses behind them: the value of a node or, where several cross, of dtype f32 or
 * f64, [N, widths...] with the values of each record beside each other in the order of their
 * nodes. Values that only pass are among them. Inputs of g cross no cut: those that the nodes read
 * are inputs here too, by name, behind the first one. */
clv_code clv_graph_slice(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                         clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* ---- blocks that backward computes again (blocks.c) ------------------------------------------ */

/* Nodes first..last, but for inputs, are the block of this number (clv_node.recompute). CLV_EXISTS:
 * one is in another block. */
clv_code clv_graph_mark_recompute(clv_graph *g, int first, int last, uint32_t number,
                                  clv_err *err) CLV_USE_RESULT;
/* Nodes first..last, which are called `name`, or so with a dot and more behind it, are the next
 * block; where all go on with a number, each number is one. *n_blocks: how many there are. */
clv_code clv_graph_mark_recompute_blocks(clv_graph *g, const char *name, int first, int last,
                                         uint32_t *n_blocks, clv_err *err) CLV_USE_RESULT;

/* ---- low-rank adapters (lora.c) -------------------------------------------------------------- */

/* What peft's LoraConfig says of linear layers. */
typedef struct clv_lora {
  const char *const *targets; /* [n_targets] as peft matches them: a node's name, or its end behind
                                 a dot ("query", "self.query") */
  size_t n_targets;
  int64_t r;      /* rows of A */
  double alpha;   /* what B adds is scaled by alpha / r, with rslora by alpha / sqrt(r) */
  double dropout; /* of what A reads, in training */
  bool rslora;
} clv_lora;

/* A new graph in which each targeted linear y = x W^T + b of the layers first..last (both included)
 * goes on as y + B(scale A(dropout(x))): A [r, in] and B [out, r] have no bias, A begins as
 * kaiming_uniform(a = sqrt(5)) and B with 0. They are called NAME.lora_A and NAME.lora_B, and are
 * of the linear's layer: no other layer's number changes. Keys are not set for what is new.
 * CLV_NOT_FOUND: no node has such a name, with a suggestion; CLV_INVALID: it is no linear. */
clv_code clv_graph_lora(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                        const clv_lora *lora, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Is a node, or a parameter, by this name part of an adapter? */
bool clv_lora_is_adapter(const char *name);

/* Is a node called `name` the module `path`, or inside it: do the parts of `path` follow each other
 * somewhere among those of `name`? peft's modules_to_save. */
bool clv_lora_is_inside(const char *name, const char *path);
/* The nodes whose values cross behind a layer, ascending, in ret_nodes [g->n_nodes]; how many. */
int clv_graph_crossing_nodes(const clv_graph *g, uint32_t layer, int *ret_nodes);
/* Whether g can be cut behind that layer; CLV_INVALID: which value cannot go with the others. */
clv_code clv_graph_cut_check(const clv_graph *g, uint32_t layer, clv_err *err) CLV_USE_RESULT;

/* How many steps the readers of input `node` have at least, if each takes it as the lengths of
 * sequences and no more than that; 0: it is no such input. */
int64_t clv_graph_length_limit(const clv_graph *g, int node);

/* ---- packed sequences (pack.c) --------------------------------------------------------------- */

/* The graph over packed sequences, of the same nodes and parameters: where g has [N, S, ...], it
 * has [T, ...], the places of all sequences that count one behind the other, T up to N S. g reads
 * the lengths of its sequences, which say what belongs together. Rows behind the last sequence are
 * of none, meet nothing, and have the gradient 0 where the output's is. Values and gradients are
 * those of g at real places, and dropout draws the same. Sums over places have another order.
 * CLV_INVALID: g reads no lengths, or an op does not take packed sequences; it is named. */
clv_code clv_graph_pack(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* ---- tensor parallelism (tensor_parallel.c) -------------------------------------------------- */

/* How a linear layer is divided: each part has some of its outputs, or reads some of its inputs. */
typedef enum clv_parallel {
  CLV_PARALLEL_NONE,
  CLV_PARALLEL_COLUMNS,
  CLV_PARALLEL_ROWS
} clv_parallel;

/* Layers of a chain that one value, or one of each part, goes through. spread: graph[k] is that of
 * part k, all over the value before; else graph[0] alone, over the value before it, or over the
 * values of the parts in their order, which it begins with joining. */
typedef struct clv_division_segment {
  bool spread;
  clv_graph *graph[CLV_MAX_IN];
} clv_division_segment;

/* The last stretch is not spread. Parameters are called as in the chain. */
typedef struct clv_division {
  uint32_t n_parts, n_stretches;
  clv_division_segment *stretches;
} clv_division;

/* Whether that node of a chain can be divided so; CLV_INVALID: it is no linear, or its extent is
 * not a multiple. */
clv_code clv_divide_check_node(const clv_graph *g, int node, clv_parallel how, uint32_t n_parts,
                               clv_err *err) CLV_USE_RESULT;

/* how: [chain->n_nodes]. Layers without a parameter that take value by value stay with the parts
 * behind columns; whatever else follows is whole. 2 to CLV_MAX_IN parts. */
clv_code clv_divide_chain(const clv_graph *chain, const clv_parallel *how, uint32_t n_parts,
                          clv_division **ret, clv_err *err) CLV_USE_RESULT;
void clv_division_free(clv_division *d); /* takes NULL */
void clv_division_freep(clv_division **d);

/* One part of a row-major tensor: of shape `shape`, the index-th of `of` along the one dimension in
 * which they differ; where they are equal, the whole. */
typedef struct clv_tensor_part {
  clv_shape of, shape;
  uint32_t index;
  size_t element; /* bytes */
} clv_tensor_part;

/* From the whole to the part, or back. */
void clv_tensor_part_copy(const clv_tensor_part *p, void *whole, void *part, bool into_whole);

/* ---- parameters ------------------------------------------------------------------------------ */

typedef struct clv_param {
  char name[CLV_NAME_MAX + 24]; /* "features.0.weight" */
  int node, slot;
  clv_shape shape;
  clv_dtype dtype;
  bool trainable;  /* false for buffers (running statistics) */
  bool frozen;     /* trainable, but held fixed by the session */
  bool fixed;      /* frozen for good: it has no room in blocks of gradients and moments */
  bool lent;       /* fixed, and kept by somebody else: it has no room in any block */
  size_t offset;   /* bytes into the block, 64-byte aligned; buffers lie behind all parameters */
  size_t gradient; /* bytes into a block of gradients */
  int index;       /* in the list: its own, or its owner's */
  void *elsewhere; /* where its values are, in another module; NULL: in this one */
  size_t n, bytes;
} clv_param;

/* What a node has of another one. param: with offset (of the owner) or `elsewhere`; its gradient
 * is its own, and becomes part of the owner's at the end of a backward pass. */
typedef struct clv_tie {
  clv_param param;
  int of; /* the owner's place in the list; -1: it is in another module */
} clv_tie;

/* The named layout of a module's one parameter block. Each moment uses the same offsets in a block
 * of trainable_bytes; so do gradients, and behind them are those of ties, in one of gradient_bytes.
 * What is tied is in the list once, under its owner's name. */
typedef struct clv_params {
  clv_param *list;
  int n;
  clv_tie *ties;
  int n_ties;
  size_t gradient_bytes;
  size_t trainable_bytes; /* extent of parameters, padding included, but for those fixed */
  size_t buffer_offset;   /* where the buffers begin, behind the fixed ones */
  size_t total_bytes;     /* with buffers */
  size_t lent_bytes;      /* of those that are lent, as a block would have them */
  size_t n_values;        /* trainable values, without padding */
} clv_params;

clv_code clv_params_of(const clv_graph *g, clv_params **ret, clv_err *err) CLV_USE_RESULT;

/* The first parameter of the node called so; NULL: there is none, or it is another's. */
const clv_param *clv_params_first(const clv_graph *g, const clv_params *p, const char *node);
/* Ties learn and are fixed as their owners in the same list are; behind every change of that. */
void clv_params_update_ties(clv_params *p);

/* The most values that one of the node's outputs is a sum of, weighted by its parameters; 0 where
 * it mixes none (clv_mixing of its row). */
int64_t clv_node_fan_in(const clv_graph *g, const clv_node *node);
/* Fixes those that are frozen: they move behind the others, and gradients and moments need no room
 * for them. Those of them that are marked as lent leave the block. Before any is laid out by p. */
void clv_params_fix_frozen(clv_params *p);
clv_params *clv_params_free(clv_params *p);
void clv_params_freep(clv_params **p);
/* Before that: those that are frozen, of the weights of linear layers in f32 that no other node
 * has, become bf16. Kernels read them so; what they are multiplied with is what it is without
 * that. */
void clv_params_frozen_to_bf16(const clv_graph *g, clv_params *p);
const clv_param *clv_params_find(const clv_params *p, const char *name); /* or NULL */

/* Default initialisation as PyTorch's modules: linear and conv2d weight and bias uniform in
 * +-1/sqrt(fan_in) (kaiming_uniform with a = sqrt(5)), a linear with init_zero 0; lstm uniform in
 * +-1/sqrt(hidden size); embedding normal with mean 0 and deviation 1; a conv2d with kaiming_normal
 * its weight normal with deviation sqrt(2 / fan_out); batchnorm and layernorm 1, 0, running 0 and
 * 1, count 0; wait 1. Numbers from Philox keyed by (the node's key, layer, slot). block:
 * total_bytes, padding zeroed. */
void clv_params_init(const clv_graph *g, const clv_params *p, void *block);
/* The same while somebody waits for it; else CLV_CANCELLED. */
clv_code clv_params_init_cancellable(const clv_cancel_hook *waiter, const clv_graph *g,
                                     const clv_params *p, void *block, clv_err *err) CLV_USE_RESULT;

/* ---- plan ------------------------------------------------------------------------------------ */

typedef struct clv_plan clv_plan;
typedef struct clv_call clv_call; /* saved state of one forward until its backward is done */

typedef struct clv_plan_options {
  const clv_backend *backend;
  clv_dtype dtype;                 /* f32, or f64 with ref */
  int64_t batch;                   /* N; 0: the plan computes nothing, see clv_plan_forward */
  int64_t batches[CLV_MAX_INPUTS]; /* of each input, of a graph that joins some; else unused */
  bool training;
  bool need_input_grad[CLV_MAX_INPUTS]; /* the sender of that input wants a gradient */
  int threads;
  bool
      /* conv2d and linear compute in bf16; CLV_PRECONDITION where the backend cannot. Parameters,
       * their gradients and the caller's values are f32; ref computes in its dtype all the same */
      bf16;
  bool tf32; /* factors of products and convolutions may be rounded to TF32; CLV_PRECONDITION too */
  /* Weight gradients are a phase of their own, which may come any time after the input gradients:
   * these can leave earlier, and other calls' work may come between. What the weight gradients read
   * then lives longer. Without it each layer's are computed beside its input gradient, while both
   * inputs are in the cache, and the phase is empty. The bits are the same. */
  bool split_backward;
  /* Weights in library formats are made in scratch memory by every call that needs them, instead of
   * once for a version of the parameters in memory that stays: no dearer where one call runs
   * between two versions, and one or two copies of the weights smaller. The bits are the same. */
  bool transient_weights;
  /* What a device is asked for in each phase is recorded there, where it is not NULL; it outlives
   * the plan. The bits are the same. */
  clv_recorder *records;
  /* [params->n] Where those parameters are that are lent, in the backend's memory, read at each run
   * and never written; it outlives the plan. */
  const void *const *lent;
} clv_plan_options;

typedef struct clv_plan_info {
  size_t call_bytes;    /* per call in flight: saved activations and states */
  size_t scratch_bytes; /* shared by the plan's calls */
  size_t cache_bytes;   /* weights in library formats */
  size_t
      kernel_bytes; /* what libraries keep of the kernels themselves, by a fixed figure for each */
  /* library reorders, each once a call */
  int reorders_refresh, reorders_forward, reorders_backward;
  int n_steps_forward, n_steps_backward;
  bool backward_reads_params; /* they must not change between a forward and its backward */
} clv_plan_info;

/* Whether backward_reads_params may be true of a training plan, with some backend. input_grads: bit
 * i where the gradient of input i is wanted. */
bool clv_graph_backward_reads_params(const clv_graph *g, const clv_params *params,
                                     uint32_t input_grads);

/* Copies what it needs of g and params; `params` says which are frozen. One plan per (module,
 * batch, training, threads). The graph's float inputs are of options->dtype. Activation memory is
 * taken by the first clv_plan_call_get, so that a plan too large can be refused by its info.
 * CLV_INVALID when params are not g's, and for batchnorm with one value per channel in training. */
clv_code clv_plan_new(const clv_graph *g, const clv_params *params, const clv_plan_options *options,
                      clv_plan **ret, clv_err *err) CLV_USE_RESULT;
clv_plan *clv_plan_free(clv_plan *p);
void clv_plan_freep(clv_plan **p);
const clv_plan_info *clv_plan_get_info(const clv_plan *p);

const clv_shape *clv_plan_output(const clv_plan *p); /* with its N */

/* Human-readable listing of the steps: op, node, layouts, implementation, bytes. */
void clv_plan_describe(const clv_plan *p, clv_bytes *out);

/* Whether node i of the graph computes with a kernel of ref, because the backend has none. */
bool clv_plan_uses_ref(const clv_plan *p, int node);

/* Seconds that a layer's steps took, by what they are for. */
typedef struct clv_plan_times {
  double forward, input, weight;
} clv_plan_times;

/* From now on every step adds what it takes to times[node of the graph]; NULL: no more. What one
 * kernel does for several layers counts for the one that it is of. */
void clv_plan_set_times(clv_plan *p, clv_plan_times *times);

/* Calls come from the plan's pool: after warm-up no memory is taken. */
clv_code clv_plan_call_get(clv_plan *p, clv_call **ret, clv_err *err) CLV_USE_RESULT;
void clv_plan_call_put(clv_plan *p, clv_call *c); /* takes NULL */

/* Parameters and their gradients are in the backend's memory, and whatever else is the caller's is
 * in the host's or where clv_plan_call_set_memories says: a backend with memory of its own gets
 * copies, and each function waits for it. What its kernels have refused meanwhile is the function's
 * error.
 *
 * What is kept of the parameters in other layouts becomes that of these. clv_plan_forward sees to
 * it itself; before a backward only where the parameters are not those of the plan's last
 * forward. */
clv_code clv_plan_refresh(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          clv_err *err) CLV_USE_RESULT;

/* Whose memory it is that the caller lends the call's functions, in place of the host's, which is
 * NULL: of inputs and of the output's gradient a backend that the plan's reaches, of the output and
 * the inputs' gradients the plan's own. It holds until it is said again, or the call is put back;
 * the functions copy, and wait as ever. */
typedef struct clv_plan_memories {
  const clv_backend *in[CLV_MAX_INPUTS], *out, *dout, *din[CLV_MAX_INPUTS];
} clv_plan_memories;
void clv_plan_call_set_memories(clv_call *c, const clv_plan_memories *homes);

/* key: step and micro-batch of dropout; the rest is the nodes' own. NULL: zeros.
 * in[i]: row-major values of external input i, in order of clv_graph_add_input; out: row-major.
 * For training the inputs that backward reads are copied or kept in the call: the caller may reuse
 * `in` after this returns only if it passed keep_inputs = false (then the plan copies what it
 * needs); with true the memory must stay until the call is put back.
 * Of a batch of 0 nothing is read: `out` is not written, or NaN where it is a scalar, a mean over
 * samples; backward gives parameters zeros. */
clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) CLV_USE_RESULT;

/* From the gradient of the output (row-major) to that of each input (din[i] row-major, NULL where
 * not wanted). Weight gradients are written to grad_block here: those of fused kernels (batchnorm),
 * and without split_backward all. */
clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) CLV_USE_RESULT;

/* The rest of the weight gradients, if any, into grad_block (gradient_bytes, same offsets as
 * parameters); adds when accumulate, otherwise overwrites, with zeros where no gradient is computed
 * (frozen parameters, padding). Comes after backward_input of the same call and ends it: a call has
 * one backward, because gradients reuse the memory of activations. */
clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
