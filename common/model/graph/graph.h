/* SPDX-License-Identifier: Apache-2.0
 *
 * graph: graphs of ops with named parameters, shape inference, cutting a graph into modules, and
 * the plan that executes one module on one backend.
 *
 * A graph is a DAG in topological order: a node's inputs have smaller indexes. Names of parameters
 * are PyTorch state_dict names: "<node name>.weight". A node without a given name is named by its
 * layer index in the uncut graph ("3.weight"), as in nn.Sequential.
 *
 * Typical use: build a graph with clv_graph_new, clv_graph_add_input and clv_graph_add; cut it with
 * clv_graph_slice; describe its parameters with clv_params_make and initialise them with
 * clv_params_init; make a plan with clv_plan_new; then for each micro-batch clv_plan_call_get,
 * clv_plan_forward, clv_plan_backward_input, clv_plan_backward_weight and clv_plan_call_put.
 *
 * Threads: a graph does not change once it is built; a plan and its calls belong to one thread at a
 * time.
 */
#ifndef CLEAVE_GRAPH_H
#define CLEAVE_GRAPH_H

#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CLV_NAME_MAX = 64, CLV_MAX_NODES = 4096, CLV_MAX_INPUTS = 8, CLV_MAX_OUTPUTS = 8 };

/* ---- attributes of ops ----------------------------------------------------------------------- */

/* One attribute as read from a file or a message. Integers, pairs, booleans (0/1) and lists are in
 * `ints`. A real attribute is in `number`, or in ints[0] if it was written as an integer. A list of
 * real numbers is in `numbers`, which belongs to the attributes or the message it was read from. */
typedef struct clv_attr_value {
  clv_attr_key key;
  int n_ints;
  int64_t ints[CLV_MAX_RANK];
  bool is_number;
  double number;
  /* length of `numbers`; if above 0, `numbers` is the value, and the fields above are ignored */
  int n_numbers;
  const float *numbers; /* list of real numbers, caller-owned */
} clv_attr_value;

/* Finds the number of an op's attribute by its name `key`. CLV_NOT_FOUND: the op has no such
 * attribute; the text names those it has, or the most similar one. */
clv_code clv_op_attr_find(clv_op op, const char *key, clv_attr_key *ret,
                          clv_err *err) CLV_USE_RESULT;
const char *clv_attr_name(clv_attr_key key); /* returns "?" for an unknown key */
/* returns a short description; "" for an unknown key */
const char *clv_attr_doc(clv_attr_key key);
/* returns "integer", "number", ...; "" for an unknown key */
const char *clv_attr_type_name(clv_attr_key key);

/* Sets *ret to the op's defaults, then to the n values, and checks key, number of entries and range
 * of each. Fails if a required attribute is missing. The default of `stride` is the kernel size for
 * pools and 1 for conv2d. */
clv_code clv_attrs_parse(clv_op op, const clv_attr_value *values, int n, clv_attrs *ret,
                         clv_err *err) CLV_USE_RESULT;

/* Checks key, type and range of a single value, so that the caller can give the value's position in
 * its error. */
clv_code clv_op_attr_check(clv_op op, const clv_attr_value *value, clv_err *err) CLV_USE_RESULT;

/* Writes the attributes that differ from the op's defaults to ret_values, in the form that messages
 * carry. Returns their number, at most `max`. */
int clv_attrs_encode(clv_op op, const clv_attrs *attrs, clv_attr_value *ret_values, int max);

/* ---- building a graph ------------------------------------------------------------------------ */

typedef struct clv_node {
  clv_op op;
  clv_attrs attrs;
  char name[CLV_NAME_MAX];
  uint32_t layer; /* number of the layer in the uncut graph */
  /* RNG key for initialisation and dropout; zero until the owner of the graph sets it */
  clv_key key;
  /* Number of the recompute block that contains the node; 0: none. In training, backward computes
   * the values of the block again, and only the values that the block reads from outside are kept.
   * Results have the same bits with and without recompute blocks. */
  uint32_t recompute_block;
  /* Maximum number of positions of a record in a packed graph, where dimension 0 counts positions
   * of all sequences; 0: dimension 0 counts records. Set by clv_graph_pack_sequences, not sent on
   * the wire. */
  int64_t max_positions;
  int n_in;
  int in[CLV_MAX_IN];
  /* name of the node that owns this node's first parameter; "": this node owns it */
  char tie_owner[CLV_NAME_MAX];
  bool tie_owner_is_outside; /* the owner is in another module of the same process */
  /* shape and type of the value, set by shape inference */
  clv_shape shape;
  clv_dtype dtype;
} clv_node;

typedef struct clv_graph {
  clv_node *nodes;
  int n_nodes, cap;
  /* index of the output node: the last node added, unless the owner of the graph sets another */
  int output_node;
  /* type of values computed from integers (embedding): f32, unless the owner sets f64 */
  clv_dtype dtype;
  /* N may differ between inputs, because a concat joins dimension 0 or sequences are packed */
  bool has_per_input_batches;
  /* prefix that all names share ("bert."), which users may leave out when they name a layer */
  char name_prefix[16];
} clv_graph;

clv_code clv_graph_new(clv_graph **ret, clv_err *err) CLV_USE_RESULT;
clv_graph *clv_graph_free(clv_graph *g); /* takes NULL; always returns NULL */
void clv_graph_freep(clv_graph **g);

/* Adds an external input. Dimension 0 of `shape` is N, the batch size; a scalar has rank 0. */
clv_code clv_graph_add_input(clv_graph *g, const char *name, clv_dtype dtype,
                             const clv_shape *shape, int *ret_node, clv_err *err) CLV_USE_RESULT;

/* Adds a node that reads earlier nodes, and infers and checks its shape. Errors name op, node and
 * shapes. name NULL or "": the node is named by its layer index. Names are unique and consist of
 * [A-Za-z0-9_.-]. CLV_DENIED: a test op without CLEAVE_TEST_OPS=1 in the environment. */
clv_code clv_graph_add(clv_graph *g, clv_op op, const clv_attrs *attrs, const char *name,
                       uint32_t layer, const int *in, int n_in, int *ret_node,
                       clv_err *err) CLV_USE_RESULT;

/* Ties the first parameter of `node` (such as the weight of a linear) to the first parameter of the
 * node named `owner` (such as an embedding). Both nodes then share one set of values, whose
 * gradient is the sum of both nodes' gradients. owner_is_outside: the owner is in another graph.
 * CLV_INVALID: no node has that name, a node has no trainable parameter, the owner is tied itself,
 * or shapes differ. */
clv_code clv_graph_tie_param(clv_graph *g, int node, const char *owner, bool owner_is_outside,
                             clv_err *err) CLV_USE_RESULT;

/* Infers the shapes of all nodes again for another batch size: N of every input, times
 * max_positions for an input with packed positions. */
clv_code clv_graph_set_batch(clv_graph *g, int64_t batch, clv_err *err) CLV_USE_RESULT;
/* As clv_graph_set_batch, but n[i] is dimension 0 of input i. Fails, with the previous shapes
 * restored, at the first op whose inputs do not fit each other. Allocates no memory. */
clv_code clv_graph_set_batches(clv_graph *g, const int64_t n[CLV_MAX_INPUTS],
                               clv_err *err) CLV_USE_RESULT;

/* Checks that every layer can be trained with the graph's present batch size (a batchnorm needs
 * more than one value per channel). CLV_INVALID: the text names layer, op and reason. */
clv_code clv_graph_check_training(const clv_graph *g, clv_err *err) CLV_USE_RESULT;

/* Layer number of the joining and splitting nodes that clv_graph_slice, clv_graph_join_outputs and
 * clv_divide_chain add. No layer of a model has this number. */
enum { CLV_GLUE_LAYER = 1 << 20 };

/* Makes a new graph of the nodes with first_layer <= layer <= last_layer. Its first input is the
 * tensor that crosses the cut before these layers, and its output the tensor that crosses the cut
 * behind them. That tensor is the value of one node; if several values cross (f32 or f64), it is
 * [N, sum of widths], with the values of each record concatenated in the order of their nodes. It
 * includes values that these layers only pass on. The first input is named "input", or "-.cut" if
 * the nodes also read an input of g with that name. Inputs of g cross no cut: those that the nodes
 * read become inputs of the new graph under their names, behind the first one. */
clv_code clv_graph_slice(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                         clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* ---- graphs with several outputs (joined.c) -------------------------------------------------- */

/* Makes the values of the nodes `outputs`, [n], the graph's output: one tensor [N, sum of widths],
 * with the values of each record concatenated in that order. CLV_INVALID: one of them is i64, or
 * not [N, ...] with the N of the others; the text names it. */
clv_code clv_graph_join_outputs(clv_graph *g, const int *outputs, int n,
                                clv_err *err) CLV_USE_RESULT;
/* Makes a new graph that takes output `k` out of the joined output of g. */
clv_code clv_graph_take_output(const clv_graph *g, const int *outputs, int k, clv_graph **ret,
                               clv_err *err) CLV_USE_RESULT;

/* ---- recompute blocks (blocks.c) ------------------------------------------------------------- */

/* Puts the nodes first..last, except inputs, into the recompute block `number`
 * (clv_node.recompute_block). CLV_EXISTS: one of these nodes is in a block already. */
clv_code clv_graph_mark_recompute(clv_graph *g, int first, int last, uint32_t number,
                                  clv_err *err) CLV_USE_RESULT;
/* Puts the nodes first..last, which are all named `name` or `name`.SOMETHING, into a new
 * recompute block. If a number follows `name`. in all these names ("layer.0", "layer.1"), makes
 * one block for each number. *n_blocks: number of the last block so far; the function adds the
 * new ones. */
clv_code clv_graph_mark_recompute_blocks(clv_graph *g, const char *name, int first, int last,
                                         uint32_t *n_blocks, clv_err *err) CLV_USE_RESULT;

/* ---- low-rank adapters (lora.c) -------------------------------------------------------------- */

/* Settings of low-rank adapters, as in peft's LoraConfig. */
typedef struct clv_lora {
  /* [n_targets] names of the layers that get adapters. As in peft, a name matches a node whose name
   * equals it or ends with a dot and it ("query" and "self.query" match "layer.0.self.query"). */
  const char *const *targets;
  size_t n_targets;
  int64_t r;      /* rank of the adapters: rows of A */
  double alpha;   /* the output of B is scaled by alpha / r, with rslora by alpha / sqrt(r) */
  double dropout; /* probability of the dropout on the input of A, in training */
  bool rslora;
} clv_lora;

/* Makes a new graph in which each targeted linear y = x W^T + b of the layers first..last (both
 * included) becomes y + B(scale A(dropout(x))). A [r, in] and B [out, r] have no bias; A is
 * initialised by kaiming_uniform(a = sqrt(5)) and B with 0. The new nodes are named NAME.lora_A,
 * NAME.lora_B and so on, and belong to the layer of the linear, so that no layer number changes.
 * Their RNG keys are zero. CLV_NOT_FOUND: no node has such a name (the text has a suggestion);
 * CLV_INVALID: the node is no linear. */
clv_code clv_graph_add_lora(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                            const clv_lora *lora, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* True if a node or a parameter of this name is part of an adapter. */
bool clv_name_is_of_adapter(const char *name);

/* True if the node `name` is the module `path` or inside it: the dotted parts of `path` follow each
 * other among the dotted parts of `name`. peft matches modules_to_save in the same way. */
bool clv_name_is_in_module(const char *name, const char *path);
/* Returns the number of nodes whose values cross a cut behind `layer`, and their indices,
 * ascending, in ret_nodes [g->n_nodes]. */
int clv_graph_find_crossing_nodes(const clv_graph *g, uint32_t layer, int *ret_nodes);
/* Checks that g can be cut behind `layer`. CLV_INVALID: the text names the value that cannot be
 * concatenated with the others. */
clv_code clv_graph_check_cut(const clv_graph *g, uint32_t layer, clv_err *err) CLV_USE_RESULT;

/* Returns the largest value that a length in input `node` may have, if all readers of that input
 * take it for the lengths of sequences: the smallest number of positions among these readers. 0:
 * the input does not hold lengths. */
int64_t clv_graph_length_limit(const clv_graph *g, int node);

/* ---- packed sequences (pack.c) --------------------------------------------------------------- */

/* Makes the graph over packed sequences, with the same nodes and parameters: a value [N, S, ...] of
 * g becomes [T, ...], in which the real positions of all sequences follow each other, T <= N S. The
 * ops find the sequences by their lengths, which g must read. Rows behind the last sequence belong
 * to no sequence; their gradient is 0 if the output's is 0 there. Values and gradients equal those
 * of g at real positions, and dropout draws the same numbers; sums over positions have another
 * order. CLV_INVALID: g reads no lengths, or an op (named in the text) takes no packed
 * sequences. */
clv_code clv_graph_pack_sequences(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* ---- tensor parallelism (tensor_parallel.c) -------------------------------------------------- */

/* How a linear layer is divided between the parts. */
typedef enum clv_parallel {
  CLV_PARALLEL_NONE,
  CLV_PARALLEL_COLUMNS, /* each part computes some of the layer's outputs */
  CLV_PARALLEL_ROWS     /* each part reads some of the layer's inputs */
} clv_parallel;

/* Consecutive layers of a divided chain. A sharded segment has a graph for each part, and all of
 * them read the value before the segment. Another segment has part_graphs[0] only, which reads
 * the value before it, or joins the values of all parts, in the order of the parts. */
typedef struct clv_chain_segment {
  bool is_sharded;
  clv_graph *part_graphs[CLV_MAX_IN]; /* [part] graph of each part, owned; NULL: unused */
} clv_chain_segment;

/* A chain of layers that is divided into parts, for tensor parallelism: its segments, in order.
 * The last segment is never sharded. Parameters have the same names as in the chain. */
typedef struct clv_divided_chain {
  uint32_t n_parts, n_segments;
  clv_chain_segment *segments; /* [n_segments] segments of the chain, owned */
} clv_divided_chain;

/* Checks that a node of a chain can be divided as `how` says. CLV_INVALID: the node is no linear,
 * or n_parts does not divide its number of outputs (columns) or inputs (rows). */
clv_code clv_divide_check_node(const clv_graph *g, int node, clv_parallel how, uint32_t n_parts,
                               clv_err *err) CLV_USE_RESULT;

/* Divides a chain of layers into 2 to CLV_MAX_IN parts. how: [chain->n_nodes] how each node is
 * divided. Element-wise layers without parameters that follow a layer divided by columns are
 * divided too. All other undivided layers are computed once, after the parts are joined. */
clv_code clv_divide_chain(const clv_graph *chain, const clv_parallel *how, uint32_t n_parts,
                          clv_divided_chain **ret, clv_err *err) CLV_USE_RESULT;
void clv_divided_chain_free(clv_divided_chain *d); /* takes NULL */
void clv_divided_chain_freep(clv_divided_chain **d);

/* Part of a row-major tensor of shape `full_shape`: the slice `index` of shape `shape` along the
 * only dimension in which both differ. If both are equal, the part is the complete tensor. */
typedef struct clv_tensor_part {
  clv_shape full_shape, shape;
  uint32_t index;
  size_t element_bytes; /* bytes of one value */
} clv_tensor_part;

/* Copies the part out of the complete tensor `tensor` or, if into_tensor, from `part` into
 * `tensor`. */
void clv_tensor_part_copy(const clv_tensor_part *p, void *tensor, void *part, bool into_tensor);

/* ---- parameters of a graph ------------------------------------------------------------------- */

typedef struct clv_param {
  char name[CLV_NAME_MAX + 24]; /* full name, such as "features.0.weight" */
  int node, slot;
  clv_shape shape;
  clv_dtype dtype;
  bool trainable; /* false for buffers, such as running statistics */
  bool frozen;    /* a trainable parameter that the session does not train */
  /* frozen for the life of the module, so blocks of gradients and moments have no room for it */
  bool is_fixed;
  /* fixed, and several modules share its values, which are outside the parameter block */
  bool is_shared;
  /* offset in the parameter block in bytes, a multiple of 64; buffers are behind all parameters */
  size_t offset;
  size_t gradient_offset; /* offset of its gradient in a gradient block, in bytes */
  /* index in clv_params.list; for a tie, the index of its owner; -1: the owner is in another
   * module */
  int list_index;
  /* for a tie: address of the owner's values in another module; NULL: the owner is in this module
   */
  void *owner_data;
  size_t n, bytes; /* number of values, and their size in bytes */
} clv_param;

/* A parameter of a node that belongs to another node, its owner. The values are at the owner's
 * offset, or at owner_data. The gradient is separate, and is added to the owner's gradient at the
 * end of a backward pass. */
typedef struct clv_tie {
  clv_param param;
  int owner_index; /* index of the owner in clv_params.list; -1: the owner is in another module */
} clv_tie;

/* Layout of a module's parameter block. A block of moments has trainable_bytes and the same
 * offsets. A block of gradients has gradient_bytes: the same offsets, then the gradients of ties. A
 * tied parameter is in the list once, under its owner's name. */
typedef struct clv_params {
  clv_param *list; /* [n] parameters and buffers */
  int n;
  clv_tie *ties; /* [n_ties] parameters that belong to another node */
  int n_ties;
  size_t gradient_bytes;
  size_t trainable_bytes; /* parameters that are not fixed, with padding */
  size_t buffer_offset;   /* offset of the first buffer, behind the fixed parameters */
  size_t total_bytes;     /* size of the parameter block: parameters and buffers */
  /* size of the shared parameters, with padding, which are not in the block */
  size_t shared_bytes;
  size_t n_trainable_values; /* number of trainable values */
} clv_params;

/* Makes the layout of a graph's parameters: trainable ones first, then buffers. */
clv_code clv_params_make(const clv_graph *g, clv_params **ret, clv_err *err) CLV_USE_RESULT;

/* Returns the first parameter of the node named `node`; NULL: the node has no parameter, or its
 * first one is a tie. */
const clv_param *clv_params_first_of_node(const clv_graph *g, const clv_params *p,
                                          const char *node);
/* Copies the flags frozen, fixed and is_shared from owners in clv_params.list to their ties. Call
 * this function after each change of these flags. */
void clv_params_update_ties(clv_params *p);

/* Returns the largest number of input values that one output value is a weighted sum of; 0: the
 * node's op computes no weighted sums with its parameters (see clv_mixing). */
int64_t clv_node_fan_in(const clv_graph *g, const clv_node *node);
/* Marks all frozen parameters as fixed and moves them behind the others, so that gradients and
 * moments need no memory for them. Leaves fixed parameters with is_shared out of the parameter
 * block. Call this function before any block is allocated. */
void clv_params_fix_frozen(clv_params *p);
clv_params *clv_params_free(clv_params *p);
void clv_params_freep(clv_params **p);
/* Changes the type of frozen f32 weights of linear layers to bf16, except weights that have ties.
 * Kernels read bf16 weights directly, with f32 inputs. Call this function before
 * clv_params_fix_frozen. */
void clv_params_convert_frozen_to_bf16(const clv_graph *g, clv_params *p);
/* returns NULL if there is none */
const clv_param *clv_params_find(const clv_params *p, const char *name);

/* Initialises all parameters as PyTorch's modules do by default. linear and conv2d: weight and
 * bias uniform in +-1/sqrt(fan_in) (kaiming_uniform with a = sqrt(5)); a linear with init_zero:
 * 0; a conv2d with kaiming_normal: weight normal with deviation sqrt(2 / fan_out). lstm: uniform
 * in +-1/sqrt(hidden size). embedding: normal with mean 0 and deviation 1. batchnorm and
 * layernorm: weight 1, bias 0, running mean 0, running variance 1, count 0. wait, an op for
 * tests: 1. The numbers come from Philox, keyed by the node's key, layer and slot. block:
 * total_bytes, whose padding is zeroed. */
void clv_params_init(const clv_graph *g, const clv_params *p, void *block);
/* As clv_params_init, but stops with CLV_CANCELLED once the hook `cancel_hook` reports that the
 * caller has left. */
clv_code clv_params_init_cancellable(const clv_cancel_hook *cancel_hook, const clv_graph *g,
                                     const clv_params *p, void *block, clv_err *err) CLV_USE_RESULT;

/* ---- plans of modules ------------------------------------------------------------------------ */

typedef struct clv_plan clv_plan;
/* Memory for one forward and its backward: what forward saves for backward. The plan keeps a pool
 * of calls (clv_plan_call_get). */
typedef struct clv_call clv_call;

typedef struct clv_plan_options {
  const clv_backend *backend;
  /* type of values: f32, or f64, which the reference backend computes */
  clv_dtype dtype;
  int64_t batch; /* batch size N; 0: a plan without steps, see clv_plan_forward */
  /* N of each input of a graph with has_per_input_batches; else not used */
  int64_t batches[CLV_MAX_INPUTS];
  bool training;
  bool needs_input_grad[CLV_MAX_INPUTS]; /* [i]: backward computes the gradient of input i */
  int threads;
  /* conv2d and linear compute in bf16; CLV_PRECONDITION if the backend cannot. Parameters, their
   * gradients and the caller's values stay f32; the backend ref computes in `dtype` anyway. */
  bool bf16;
  /* Matrix products and convolutions may round their factors to TF32; CLV_PRECONDITION if the
   * backend cannot. */
  bool tf32;
  /* Weight gradients are computed in clv_plan_backward_weight, which may run any time after
   * clv_plan_backward_input. So the input gradients can be sent earlier, and other calls can run in
   * between, but saved values live longer. false: clv_plan_backward_input computes the weight
   * gradients of each layer next to its input gradient, while both operands are in the CPU cache.
   * Results have the same bits. */
  bool split_backward;
  /* Each call converts weights to the kernel library's format in scratch memory. false: the plan
   * converts them once per version of the parameters, into its cache. Setting this saves one or two
   * copies of the weights, and costs no time if only one call runs per version. Results have the
   * same bits. */
  bool transient_weights;
  /* Recorder that replays the device work of each phase (as a CUDA graph); must outlive the plan.
   * NULL: no recording. Results have the same bits. */
  clv_recorder *recorder;
  /* [params->n] Addresses of the parameters with is_shared, in the backend's memory. The plan reads
   * this list at each run and never writes the parameters. The list must outlive the plan. */
  const void *const *shared_params;
} clv_plan_options;

typedef struct clv_plan_info {
  size_t call_bytes;    /* memory of each clv_call: activations and states saved for backward */
  size_t scratch_bytes; /* temporary memory that all calls of the plan share */
  size_t weight_cache_bytes; /* memory for weights in the kernel library's format */
  /* estimate of the memory that libraries keep for the kernels, a constant for each */
  size_t kernel_bytes;
  /* Number of layout conversions: per version of the parameters, per forward, per backward. */
  int reorders_refresh, reorders_forward, reorders_backward;
  int n_steps_forward, n_steps_backward;
  /* the caller must not change parameters between a forward and its backward */
  bool backward_reads_params;
} clv_plan_info;

/* True if clv_plan_info.backward_reads_params of a training plan for g would be true with at least
 * one backend. input_grads: bit i is set if the gradient of input i is computed. */
bool clv_graph_backward_reads_params(const clv_graph *g, const clv_params *params,
                                     uint32_t input_grads);

/* Makes the plan of a module for one batch size, mode and number of threads. Copies g and params,
 * which says which parameters are frozen. The graph's float inputs have the type options->dtype.
 * The first clv_plan_call_get allocates the activation memory, so the caller can refuse a plan that
 * is too large by its info. CLV_INVALID: params do not belong to g, or a batchnorm would train on
 * one value per channel. */
clv_code clv_plan_new(const clv_graph *g, const clv_params *params, const clv_plan_options *options,
                      clv_plan **ret, clv_err *err) CLV_USE_RESULT;
clv_plan *clv_plan_free(clv_plan *p);
void clv_plan_freep(clv_plan **p);
const clv_plan_info *clv_plan_get_info(const clv_plan *p);

/* shape of the output, with the plan's batch size */
const clv_shape *clv_plan_output_shape(const clv_plan *p);

/* Appends a list of the plan's steps for people: op, node, layouts, implementation, bytes. */
void clv_plan_describe(const clv_plan *p, clv_bytes *out);

/* True if `node` computes with a kernel of the backend ref, because the plan's backend has none. */
bool clv_plan_node_uses_ref(const clv_plan *p, int node);

/* Seconds that the steps of a node have taken: in forward, for input gradients, for weight
 * gradients. */
typedef struct clv_plan_times {
  double forward_seconds, input_grad_seconds, weight_grad_seconds;
} clv_plan_times;

/* Starts timing: each later step adds its duration to times[index of its node]. NULL: stops timing.
 * The time of a fused kernel counts for the node whose step runs the kernel. */
void clv_plan_set_timing(clv_plan *p, clv_plan_times *times);

/* Takes a free call from the plan's pool, or allocates one. Return it with clv_plan_call_put. */
clv_code clv_plan_call_get(clv_plan *p, clv_call **ret, clv_err *err) CLV_USE_RESULT;
void clv_plan_call_put(clv_plan *p, clv_call *c); /* takes NULL */

/* The functions below take parameters and their gradients in the backend's memory, and all other
 * buffers of the caller in host memory or where clv_plan_call_set_memories says. For a backend with
 * its own memory they make copies, wait until the device has finished, and return its errors.
 *
 * clv_plan_refresh_weights updates the weights in library formats to these parameters.
 * clv_plan_forward does this itself. Call it before a backward only if the parameters are not those
 * of the plan's last forward. */
clv_code clv_plan_refresh_weights(clv_plan *p, clv_call *c, void *param_block,
                                  uint64_t param_version, clv_err *err) CLV_USE_RESULT;

/* Backends whose memory holds the caller's buffers; NULL: host memory. in, dout: any backend from
 * which the plan's backend can copy. out, din: only the plan's own backend. */
typedef struct clv_plan_memories {
  const clv_backend *in[CLV_MAX_INPUTS], *out, *dout, *din[CLV_MAX_INPUTS];
} clv_plan_memories;
/* Sets where the caller's buffers are for the later functions with this call, until the next
 * clv_plan_call_set_memories or clv_plan_call_put. */
void clv_plan_call_set_memories(clv_call *c, const clv_plan_memories *memories);

/* Runs forward. key: step and micro-batch for dropout (the other fields are the nodes' own); NULL:
 * zeros. in[i]: row-major values of external input i, in the order of clv_graph_add_input. out:
 * row-major. keep_inputs = false: the plan copies the inputs that backward reads, and the caller
 * may reuse `in` at once; true: the memory of `in` must stay unchanged until the call is put back.
 * With a batch of 0 no input is read; `out` is NaN if it is a scalar (a mean over samples),
 * otherwise not written, and backward gives parameters zeros as gradients. */
clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) CLV_USE_RESULT;

/* Computes the gradient of each input from that of the output, both row-major; din[i] is NULL for
 * an input that needs none. Also writes weight gradients to grad_block: those of kernels that fuse
 * them (batchnorm), and without split_backward all of them. */
clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) CLV_USE_RESULT;

/* Writes the remaining weight gradients, if any, to grad_block (gradient_bytes; the offsets are
 * those in clv_param.gradient_offset). With accumulate it adds to grad_block; otherwise it
 * overwrites it, with zeros where no gradient is computed (frozen parameters, padding). Call it
 * after clv_plan_backward_input of the same call. It ends the call's backward: a call has only one,
 * because gradients reuse the memory of activations. */
clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
