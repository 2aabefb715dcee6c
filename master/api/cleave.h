/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave: distributed autograd contexts for C programs.
 *
 * A program (the *master*) loads *modules* on itself and on workers, calls them in any shape of
 * graph inside a *context*, passes their outputs on by *reference*, runs backward across all
 * machines and steps an optimiser that moves every module or none:
 *
 *   cleave_open("session.yaml", NULL, &rt, &e);
 *   cleave_load_layers(rt, &where, "[{op: linear, out: 8}, {op: relu}]", &input, &module, &e);
 *   cleave_context_open(rt, NULL, &context, &e);
 *   cleave_leaf(rt, context, &batch, false, &x, &e);
 *   cleave_call(rt, context, module, &x, 1, &y, &e);              returns at once
 *   ...
 *   cleave_backward(rt, context, &loss, 1, false, 0, &e);
 *   cleave_step(rt, optimizer, context, 0, NULL, &e);
 *   cleave_context_close(rt, context, 0, &e);
 *
 * Handles. References, kept ones, futures and contexts are numbers that are never given out twice:
 * one that was released, or whose context was closed, is refused by name (CLEAVE_NOT_FOUND), never
 * undefined. Runtimes, modules, graphs and optimisers are pointers, valid until their release;
 * after cleave_close nothing of the runtime may be used. Whatever frees, closes or releases by a
 * pointer takes NULL and does nothing.
 *
 * Memory. What the caller passes in (tensors, texts, lists) is copied before the function returns
 * and never kept. Tensors that come out own their memory: see cleave_tensor.
 *
 * Deadlines. Every function that blocks takes `deadline_ms`, counted from the call; 0 means the
 * runtime's (cleave_options.deadline_ms). A deadline that passes gives CLEAVE_DEADLINE. Of a fetch
 * it leaves everything as it was: the value may be waited for again. A backward that was not
 * done in time is given up, a step that is not final is taken back: their context can only be
 * closed.
 *
 * Futures. What blocks has a form that returns a future at once (cleave_backward_async, ...): the
 * same work with the same errors, and the blocking form waits for it.
 *
 * Errors. Every function that can fail returns a status and fills *error unless that is NULL; what
 * a function returns through a pointer is written on success only. Of a context's failures the
 * first is kept and given by every later function on that context; other contexts go on.
 *
 * Arguments. A pointer that is NULL is CLEAVE_INVALID by its name, unless its function says what
 * NULL means. A struct of options begins with its size:
 *
 *   cleave_module_options where = {.size = sizeof where, .name = "front", .at = "w1"};
 *
 * A program that was compiled with an older header says a smaller size; what it does not know is 0,
 * which is the default. One of a newer header may say nothing that this library does not know
 * (CLEAVE_UNIMPLEMENTED). A size of 0 is CLEAVE_INVALID.
 *
 * Endings. _free is for memory that the caller has (tensors, states, graphs), _release for a handle
 * of something in the runtime, _close for runtimes and contexts, and waits. cleave_context_end
 * closes without waiting.
 *
 * Threads. Every function may be called from any thread, several at once, except cleave_open and
 * cleave_close. Calls of one context take effect in the order in which they were made.
 */
#ifndef CLEAVE_H
#define CLEAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLEAVE_API __attribute__((visibility("default")))
#define CLEAVE_RESULT __attribute__((warn_unused_result))

/* A field with its name and the one that it had before 0.9. Sources may use either. */
#define CLEAVE_RENAMED_(type, name, old_name) \
  union {                                     \
    type name;                                \
    type old_name;                            \
  }

/* ---- errors ---------------------------------------------------------------------------------- */

/* The numbers are gRPC's. */
typedef enum cleave_status {
  CLEAVE_OK = 0,
  CLEAVE_CANCELLED = 1,
  CLEAVE_UNKNOWN = 2,
  CLEAVE_INVALID = 3, /* an argument or a file is wrong in itself */
  CLEAVE_DEADLINE = 4,
  CLEAVE_NOT_FOUND = 5, /* no such name; a handle that was released */
  CLEAVE_EXISTS = 6,
  CLEAVE_DENIED = 7,
  CLEAVE_EXHAUSTED = 8,    /* a quota, a limit or memory */
  CLEAVE_PRECONDITION = 9, /* right call, wrong state */
  CLEAVE_ABORTED = 10,
  CLEAVE_RANGE = 11,
  CLEAVE_UNIMPLEMENTED = 12,
  CLEAVE_INTERNAL = 13,
  CLEAVE_UNAVAILABLE = 14, /* a worker that is not reached or was lost */
  CLEAVE_DATA_LOSS = 15,
  CLEAVE_UNAUTHENTICATED = 16,
  CLEAVE_PROTOCOL_VIOLATION =
      17, /* a worker's answer violates the protocol: it is broken or hostile */
} cleave_status;

enum { CLEAVE_NAME = 128, CLEAVE_TEXT = 480 };

typedef struct cleave_error {
  cleave_status status;
  bool reported;              /* the node itself reported status, place and text */
  char node[CLEAVE_NAME + 1]; /* node that failed: "master" or a worker's name */
  CLEAVE_RENAMED_(char, place[CLEAVE_NAME + 1],
                  hop[CLEAVE_NAME + 1]); /* module or step at the node,
                                                                          "" when unknown */
  char text[CLEAVE_TEXT];                /* a sentence with the offending value and what to do */
} cleave_error;

CLEAVE_API const char *cleave_status_name(cleave_status status); /* "not found" */

/* Of this header. cleave_version is that of the library which the program runs with. */
#define CLEAVE_VERSION_MAJOR 0
#define CLEAVE_VERSION_MINOR 8
#define CLEAVE_VERSION_PATCH 1
#define CLEAVE_VERSION "0.8.1"
/* #if CLEAVE_VERSION_NUMBER >= CLEAVE_VERSION_AT(0, 6, 0) */
#define CLEAVE_VERSION_AT(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define CLEAVE_VERSION_NUMBER \
  CLEAVE_VERSION_AT(CLEAVE_VERSION_MAJOR, CLEAVE_VERSION_MINOR, CLEAVE_VERSION_PATCH)
CLEAVE_API const char *cleave_version(void); /* CLEAVE_VERSION */

/* ---- tensors --------------------------------------------------------------------------------- */

/* CLEAVE_BF16: of state of cleave_module_options.frozen_bf16 alone. */
typedef enum cleave_dtype { CLEAVE_F32 = 1, CLEAVE_I64 = 3, CLEAVE_BF16 = 7 } cleave_dtype;

enum { CLEAVE_MAX_RANK = 8 };

/* Row-major numbers. As an argument: the caller's memory, read before the function returns. As a
 * result: memory of the tensor's own, released by cleave_tensor_free; a result written into a
 * tensor that came from an earlier result reuses its memory where it suffices. Start with {0}.
 * Extents may be 0, and data is then not read. */
typedef struct cleave_tensor {
  cleave_dtype dtype;
  int rank; /* 0: a scalar */
  int64_t shape[CLEAVE_MAX_RANK];
  void *data;
  size_t capacity; /* bytes that belong to the tensor; 0 for the caller's memory */
} cleave_tensor;

#define CLEAVE_COUNT_AT_(a, b, c, d, e, f, g, h, n, ...) n
#define CLEAVE_COUNT_(...) CLEAVE_COUNT_AT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define CLEAVE_SHAPE_(...) \
  CLEAVE_COUNT_(__VA_ARGS__), { __VA_ARGS__ }
/* cleave_tensor x = CLEAVE_TENSOR_F32(numbers, 32, 16); */
#define CLEAVE_TENSOR_F32(numbers, ...) \
  { CLEAVE_F32, CLEAVE_SHAPE_(__VA_ARGS__), (void *)(uintptr_t)(numbers), 0 }
#define CLEAVE_TENSOR_I64(numbers, ...) \
  { CLEAVE_I64, CLEAVE_SHAPE_(__VA_ARGS__), (void *)(uintptr_t)(numbers), 0 }

CLEAVE_API size_t cleave_tensor_count(const cleave_tensor *tensor); /* elements */
CLEAVE_API void cleave_tensor_free(cleave_tensor *tensor);          /* frees and zeroes */

/* ---- runtime --------------------------------------------------------------------------------- */

typedef struct cleave_runtime cleave_runtime;

typedef enum cleave_sending_kind {
  CLEAVE_SENDING_LEAF = 1,     /* a value of the program */
  CLEAVE_SENDING_VALUE = 2,    /* the output of a module, made here or passed on */
  CLEAVE_SENDING_GRADIENT = 3, /* of the output of a module, made here, given or passed on; or of a
                                  parameter, as the program writes it */
  CLEAVE_SENDING_WEIGHTS = 4,  /* parameters, buffers or optimiser state of a module */
  CLEAVE_SENDING_FAILURE = 5,  /* no tensor: that something failed, as a code and its place */
  CLEAVE_SENDING_CACHED = 6, /* cleave-master's own: rows of the output of a module that its worker
                                  is to keep on its disk, or (input 1) the numbers of such rows */
} cleave_sending_kind;

/* A tensor that is about to leave this process, or a failure: dtype and shape are then 0, and bytes
 * are those of its text. State may leave in pieces: dtype and shape are the whole's, bytes the
 * piece's. The worker's name stays as long as the runtime, the module's as long as
 * that. */
typedef struct cleave_sending {
  cleave_sending_kind kind;
  const char *worker; /* it goes to */
  const char *module; /* LEAF: that is called with it, "" when it travels ahead of a call; otherwise
                         whose output, output's gradient or state it is, FAILURE: or "" */
  uint32_t input;     /* LEAF: of that module; CACHED */
  const char *name;   /* WEIGHTS: of the parameter, buffer or optimiser state; GRADIENT: of the
                         parameter; until the call returns; else "" */
  bool optimizer;     /* WEIGHTS: it is state of an optimiser */
  bool relayed;       /* it came from another worker and only passes through */
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK];
  size_t bytes;
} cleave_sending;

/* An iteration. */
typedef struct cleave_context {
  uint64_t id; /* 0: none */
} cleave_context;

/* A value somewhere: a leaf of this program, or the output of a call that may still be running. */
typedef struct cleave_reference {
  uint64_t id; /* 0: none */
} cleave_reference;

typedef struct cleave_module cleave_module;

/* Work that goes on while the program does something else. */
typedef struct cleave_future {
  uint64_t id; /* 0: none */
} cleave_future;

/* What a node did. Times of calls and steps are those of computing. */
typedef enum cleave_event_kind {
  CLEAVE_EVENT_FORWARD = 1,
  CLEAVE_EVENT_BACKWARD = 2,        /* both parts of a backward in one; or each part alone: */
  CLEAVE_EVENT_BACKWARD_INPUT = 3,  /* the part that computes gradients of inputs */
  CLEAVE_EVENT_BACKWARD_WEIGHT = 4, /* the part that computes gradients of parameters */
  CLEAVE_EVENT_STEP = 5,            /* a step inside the context (cleave_step_at) */
  CLEAVE_EVENT_VALUE_OUT = 6,       /* a value was handed to a link; begin_ns == end_ns */
  CLEAVE_EVENT_VALUE_IN = 7,        /* a value was received completely */
  CLEAVE_EVENT_GRADIENT_OUT = 8,    /* the gradient of `reference` was handed to a link */
  CLEAVE_EVENT_GRADIENT_IN = 9,     /* the gradient of `reference` was received completely */
  CLEAVE_EVENT_KINDS
} cleave_event_kind;

typedef struct cleave_event {
  cleave_event_kind kind;
  uint32_t node;               /* as cleave_node_name numbers them */
  const cleave_module *module; /* of calls and steps, else NULL */
  uint32_t call;               /* of calls: how many of the module came before in the context */
  /* Monotonic clock of this machine; a worker's was compared with it by the quickest
   * cleave_measure, or is as it came when there was none. */
  uint64_t begin_ns, end_ns;
  uint64_t bytes;             /* of what was given or came */
  uint64_t version;           /* of weights: those a call used, those a step made */
  cleave_reference reference; /* the call's value; the value that travels, or whose gradient does */
} cleave_event;

typedef struct cleave_options {
  size_t size;          /* sizeof(cleave_options) */
  uint64_t deadline_ms; /* of blocking functions given 0; 0 = limits.step_timeout of the session */
  bool via_master;      /* nothing goes from worker to worker directly */
  /* [n_workers] to connect to; NULL: all of the file. 63 at most, and each return of a worker
   * (cleave_worker_rejoin) counts as one more. */
  const char *const *workers;
  size_t n_workers;
  /* The master's own node has no thread: its modules compute while some function of this runtime
   * blocks, on the caller's thread. Saves two changes of threads in each step of a program that
   * waits for what it has started; one that goes away to do other things stops its modules here,
   * and after limits.reference_lease of the session loses what workers keep for it. */
  bool single_thread;
  /* Asked for every tensor before it leaves this process, and told of every failure that does, from
   * any of its threads, by the one function that sends; may be NULL. Must return at once and call
   * nothing of the runtime. Anything but CLEAVE_OK stops the tensor: that is the error of the
   * function that sends it, or, for what the master's node sends by itself, its context fails with
   * it. Of a FAILURE the answer changes
   * nothing: code and place are all that leaves, and the peer must not wait for what never
   * comes. */
  cleave_status (*may_send)(void *user, const cleave_sending *what, cleave_error *error);
  /* Told what a context with cleave_context_options.events did, when a node has ended it: from any
   * thread, with the runtime held; must return at once and call nothing of it. May be NULL. */
  void (*on_event)(void *user, cleave_context context, const cleave_event *event);
  /* Told what is no error and may be good to know: a worker computes with other instructions, its
   * clock is wrong. From any thread; must return at once and call nothing of the runtime. May be
   * NULL. */
  void (*on_notice)(void *user, const char *text);
  void *user; /* of all three */
} cleave_options;

/* BLOCKS. Connect to the workers of a session file over mutual TLS and open a session at each. Used
 * of the file: name, tls, workers, transfer, limits and train.seed (drawn unless given);
 * the rest may be absent. options NULL: the defaults. Errors
 * of the file point at file:line:column; CLEAVE_UNAVAILABLE names the worker; CLEAVE_EXHAUSTED
 * names the 64th. */
CLEAVE_API cleave_status cleave_open(const char *path, const cleave_options *options,
                                     cleave_runtime **ret_runtime,
                                     cleave_error *error) CLEAVE_RESULT;

/* The same from text; `path` names it in messages, relative paths start in its folder. The text
 * "version: 1\nname: alone\n" gives a runtime without workers. */
CLEAVE_API cleave_status cleave_open_text(const char *path, const char *text,
                                          const cleave_options *options,
                                          cleave_runtime **ret_runtime,
                                          cleave_error *error) CLEAVE_RESULT;

/* What was still open at cleave_close. Of a program without leaks all counts are 0. */
typedef struct cleave_leaks {
  uint32_t contexts, references, futures, modules, optimizers, kept;
  char
      text[1024]; /* one line each: what, and by which module or context it was made; cut if long */
} cleave_leaks;

/* BLOCKS. Ends every context, waits for the workers to have freed them, closes the sessions and
 * frees the runtime, whatever it returns: CLEAVE_OK, or the first thing that went wrong on the way.
 * Modules and optimisers still there are released and listed. leaks may be NULL; so may runtime. */
CLEAVE_API cleave_status cleave_close(cleave_runtime *runtime, uint64_t deadline_ms,
                                      cleave_leaks *ret_leaks, cleave_error *error);

/* What went over the links so far, framing included and TLS not, and how long the master's own node
 * had nothing to compute. */
typedef struct cleave_link_totals {
  uint64_t bytes_up, bytes_down, idle_ns;
} cleave_link_totals;
CLEAVE_API void cleave_get_link_totals(cleave_runtime *runtime, cleave_link_totals *ret_totals);

/* A link as a program would plan with it. Rates are of tensors over 64 KiB since the last call,
 * while any were on their way: those of the link where it is the bottleneck; 0: there were none. */
typedef struct cleave_link_measure {
  double round_trip_s, up_bytes_s, down_bytes_s;
} cleave_link_measure;

/* BLOCKS for one round trip to worker `node`. One caller at a time. */
CLEAVE_API cleave_status cleave_measure(cleave_runtime *runtime, uint32_t node,
                                        uint64_t deadline_ms, cleave_link_measure *ret,
                                        cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. A worker that was lost comes back into this runtime: as another process at its address,
 * or as the same one, whose part in the session was cut off. What was there is gone. Its modules
 * are loaded again by cleave_module_reload; contexts that used it have failed and can only be
 * closed, and what it kept stays CLEAVE_UNAVAILABLE. Contexts that never used it notice nothing,
 * and may use it from now on. Between it and other workers values go by way of the master for the
 * rest of the runtime: workers know each other by the names of their worker.yaml, which do not say
 * which return is meant, and what is late must not reach the next one. Every function that meets a
 * lost worker gives the same error, with its name, until it is back. CLEAVE_NOT_FOUND: no such
 * worker; CLEAVE_PRECONDITION: it is not lost, or is coming back already; CLEAVE_UNAVAILABLE: it
 * does not answer, and can be tried again; CLEAVE_EXHAUSTED: it would have the 64th name, as
 * workers and returns of workers have one each: close this runtime and open another. */
CLEAVE_API cleave_status cleave_worker_rejoin(cleave_runtime *runtime, const char *worker,
                                              uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;
/* As a future; like cleave_module_place_async. CLEAVE_PRECONDITION and CLEAVE_NOT_FOUND at once. */
CLEAVE_API cleave_status cleave_worker_rejoin_async(cleave_runtime *runtime, const char *worker,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* Node 0 is "master"; nodes 1.. are the workers in the file's order. NULL beyond the last. */
CLEAVE_API const char *cleave_node_name(const cleave_runtime *runtime, uint32_t node);

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A module's graph, node by node. Used up by nothing: one graph may be loaded many times. */
typedef struct cleave_graph cleave_graph;

CLEAVE_API cleave_status cleave_graph_new(cleave_graph **ret_graph,
                                          cleave_error *error) CLEAVE_RESULT;
CLEAVE_API void cleave_graph_free(cleave_graph *graph);

/* An input of the module; inputs are numbered in this order. shape[0] is the batch: its value here
 * is the first size to be prepared, others may follow, 0 too; of
 * rank 0 it is a scalar. All other inputs of a call have the same one, but
 * in a graph with a concat along dim 0: there each has its own, and what its ops take together must
 * fit. *ret_node names the value in later calls. */
CLEAVE_API cleave_status cleave_graph_input(cleave_graph *graph, const char *name,
                                            cleave_dtype dtype, const int64_t *shape, int rank,
                                            int *ret_node, cleave_error *error) CLEAVE_RESULT;

/* One op over earlier nodes. op: as in a session file ("linear", "add", "bce", ...); attributes: a
 * YAML flow mapping "{out: 8, bias: false}" or NULL; name: prefix of its parameters ("w1" gives
 * "w1.weight"), or NULL for its number among the graph's ops. Shapes are checked at once.
 * ret_node may be NULL. */
CLEAVE_API cleave_status cleave_graph_op(cleave_graph *graph, const char *op,
                                         const char *attributes, const char *name,
                                         const int *inputs, int n_inputs, int *ret_node,
                                         cleave_error *error) CLEAVE_RESULT;

/* ---- modules --------------------------------------------------------------------------------- */

/* A tensor under a PyTorch state_dict name. */
typedef struct cleave_named_tensor {
  const char *name;
  cleave_tensor tensor;
} cleave_named_tensor;

typedef struct cleave_module_options {
  size_t size;      /* sizeof(cleave_module_options) */
  const char *name; /* for messages, reports and its worker's status; unique in the runtime */
  const char *at;   /* "master" (also NULL) or a worker's name */
  /* NULL = "auto": the node's first that is more than a processor, else its processor; "cpu";
   * "cuda": its first of these, or "cuda:1". The master has "cpu:0" and "cpu:1" as well, a worker
   * those of its worker.yaml (cpu_devices): with accounts of their own. */
  const char *device;
  uint32_t threads;   /* 0 = 1 */
  uint32_t in_flight; /* calls between forward and backward that memory is made ready for; 0 = 1 */
  /* Initial numbers and dropout follow from a key for each layer, made of the session's train.seed,
   * of this number and of the layer's; without this number, of the module's name instead. So a
   * program gives the same bits wherever its modules are, if the session's seed is given: 32 hex
   * digits. A worker gets the keys of the module's own layers, from which nobody can compute a seed
   * or another key. Parts of one network share a seed and count their layers on (first_layer, or
   * `layers`); modules with one seed and one number of a layer have that layer's key in common. */
  uint64_t seed;
  uint32_t first_layer; /* number of the first layer, for default names and the seed */
  const char *layers;   /* of a named architecture, by number or name: "layer3..fc"; NULL = all */
  const cleave_named_tensor *weights; /* [n_weights] written after the initialisation */
  size_t n_weights;
  const char *const *frozen; /* [n_frozen] parameter names, or globs ("0.*"): never get gradients */
  size_t n_frozen;
  /* The inputs must be at the module's node already; otherwise references travel by themselves. A
   * call that breaks this is refused with the place of each input and what to do. */
  bool local_only;
  /* Other workers that its node may exchange values and gradients with directly; NULL: with all of
   * them if the session says `transfer: direct`, else with none. A list with 0 names: with none. */
  const char *const *direct_to; /* [n_direct_to] */
  size_t n_direct_to;
  /* Instead of initial numbers: tensors of a safetensors file on the worker's own disk, or of a
   * folder of them, by the name that its worker.yaml gives it. sha256: of the file, or of the
   * folder's ARTIFACT.json, 64 hexadecimal digits. */
  const char *artifact, *artifact_sha256;
  /* Convolutions compute in bf16, on a processor with AVX512-BF16; on a device of NVIDIA of
   * capability 8.0 or above other ops do too. Elsewhere the module is refused. Its weights,
   * gradients and values are f32 all the same. */
  bool bf16;
  /* Inputs on another device of its node are taken along; else a call with one is refused with both
   * devices and what to do, as PyTorch expects all tensors on the same device. From other nodes,
   * and from this program (leaves), values come to the module's device in either case. */
  CLEAVE_RENAMED_(bool, copies_inputs, any_device);
  /* On a device of NVIDIA of capability 8.0 or above, products and convolutions may round their
   * factors to TF32, which has 10 bits behind the point: faster, and less exact than f32. Elsewhere
   * the module is refused. */
  bool tf32;
  /* What is frozen stays so, and nothing else will be: no gradients and no moments are kept of it.
   * cleave_parameter_freeze and cleave_parameter_thaw then refuse the module. */
  CLEAVE_RENAMED_(bool, frozen_is_final, fixed);
  /* [n_initialized] parameters that get initial values, even if the artifact has values for them. */
  CLEAVE_RENAMED_(const char *const *, initialized, fresh);
  CLEAVE_RENAMED_(size_t, n_initialized, n_fresh);
  /* Parameters that are other modules': */
  const struct cleave_tie *ties; /* [n_ties] */
  size_t n_ties;
  /* [n_recompute_blocks] Layers that keep their inputs alone; backward computes each block again:
   * the same bits in less memory and more time. "encoder.layer" is a block for each number that
   * stands behind it, another name is one, and so are the layers of "conv1..relu2". Workers before
   * 0.7 keep everything. */
  const char *const *recompute_blocks;
  size_t n_recompute_blocks;
  /* With `frozen_is_final`: frozen weights of linear layers are kept in bf16, rounded where they come in
   * f32. What is computed with them is what it is otherwise. */
  bool frozen_bf16;
} cleave_module_options;

/* One parameter of two modules, as a decoder has the table of an embedding: one set of values under
 * the owner's name, one gradient, the sum of both modules', one moment. Both modules are on one
 * device of one node, and both are called in a context with a backward pass; neither steps inside
 * one (cleave_pipeline_step). The owner stays while `of` is tied to it, released or not. */
typedef struct cleave_tie {
  const char *weight;       /* of the module that is loaded: the first parameter of a layer */
  struct cleave_module *of; /* the owner */
  const char *of_weight;    /* its name there, of equal shape */
} cleave_tie;

typedef struct cleave_input {
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK]; /* shape[0]: batch, as for cleave_graph_input */
} cleave_input;
/* cleave_input in = CLEAVE_INPUT(CLEAVE_F32, 32, 16); */
#define CLEAVE_INPUT(dtype, ...) \
  { (dtype), CLEAVE_SHAPE_(__VA_ARGS__) }

/* A chain of layers in the session file's syntax: "[{op: linear, out: 8}, {op: relu}]". Parameters
 * are called by the layer's number ("0.weight") or its `name`. The module goes to its node with its
 * first use; what the node refuses is an error of that use. CLEAVE_EXHAUSTED: the runtime has 255
 * modules; only while some of these are being unloaded does this wait for one. */
CLEAVE_API cleave_status cleave_load_layers(cleave_runtime *runtime,
                                            const cleave_module_options *options,
                                            const char *layers, const cleave_input *input,
                                            cleave_module **ret_module,
                                            cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_load_graph(cleave_runtime *runtime,
                                           const cleave_module_options *options,
                                           const cleave_graph *graph, cleave_module **ret_module,
                                           cleave_error *error) CLEAVE_RESULT;

/* A named architecture with its attributes (NULL: none) as in `model:`: "mlp",
 * "{hidden: [8], classes: 1}", or
 * with options->layers a part of it. The input is the architecture's, of whatever part. */
CLEAVE_API cleave_status cleave_load_architecture(cleave_runtime *runtime,
                                                  const cleave_module_options *options,
                                                  const char *arch, const char *attributes,
                                                  const cleave_input *input,
                                                  cleave_module **ret_module,
                                                  cleave_error *error) CLEAVE_RESULT;

/* A loss of cleave-ops(7): inputs prediction (of the shape given) and target ([N] i64 classes for a
 * loss over classes, else f32 as the prediction); its value is the mean, a scalar. */
CLEAVE_API cleave_status cleave_load_loss(cleave_runtime *runtime,
                                          const cleave_module_options *options, const char *kind,
                                          const cleave_input *prediction,
                                          cleave_module **ret_module,
                                          cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Takes the module to its node now instead of with its first call, so that what the node
 * refuses shows early. input_grads: a backward will want gradients of its first input; the plan for
 * that is made ahead. */
CLEAVE_API cleave_status cleave_module_place(cleave_runtime *runtime, cleave_module *module,
                                             bool input_grads, uint64_t deadline_ms,
                                             cleave_error *error) CLEAVE_RESULT;
/* As a future. A call that is made meanwhile waits for the module; one made when this is done
 * returns at once. A thread of its own does it, which nothing withdraws: cleave_future_cancel drops
 * the result, and cleave_close waits for its end. */
CLEAVE_API cleave_status cleave_module_place_async(cleave_runtime *runtime, cleave_module *module,
                                                   bool input_grads, uint64_t deadline_ms,
                                                   cleave_future *ret_future,
                                                   cleave_error *error) CLEAVE_RESULT;

/* Releases the handle: it must not be used any more, and its name may be used again. The module
 * stays for contexts that are open and have used it, and until its optimiser is released. Then its
 * node unloads it, without anybody waiting, and gives back its memory; its place among the 255
 * modules of the runtime is free when the node has answered. No other call on the module may be in
 * progress. NULL is allowed. */
CLEAVE_API cleave_status cleave_module_release(cleave_runtime *runtime, cleave_module *module,
                                               cleave_error *error);

CLEAVE_API const char *cleave_module_name(const cleave_module *module);
CLEAVE_API const char *cleave_module_node(const cleave_module *module);   /* "master", "w1" */
CLEAVE_API const char *cleave_module_device(const cleave_module *module); /* "cpu" */
/* Names of the parameters and buffers 0..n-1, NULL beyond. */
CLEAVE_API const char *cleave_module_weight_name(const cleave_module *module, size_t index);

/* A parameter or buffer. */
typedef struct cleave_parameter {
  size_t size;      /* sizeof(cleave_parameter), set by the caller */
  const char *name; /* as long as the module */
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK];
  bool learns; /* it gets gradients: no buffer, and not frozen */
  bool buffer; /* running statistics */
  /* Whose step moves it, as its group number `group` in cleave_optimizer_new; NULL: nobody's. Not
   * to be used when the program has released it. */
  const struct cleave_optimizer *optimizer;
  size_t group;
} cleave_parameter;

/* Parameters and buffers, in the order of cleave_module_weight_name. NULL has none. */
CLEAVE_API size_t cleave_parameter_count(const cleave_module *module);
/* CLEAVE_RANGE: no such index. */
CLEAVE_API cleave_status cleave_parameter_info(const cleave_module *module, size_t index,
                                               cleave_parameter *ret_parameter,
                                               cleave_error *error) CLEAVE_RESULT;

/* torch's requires_grad_(False): parameters with these names, or globs as in
 * cleave_module_options.frozen, get no gradients from the next call on. They are not stepped, not
 * by weight decay or momentum either, and do not count in the norm; their moments stay as they are.
 * Thawing, requires_grad_(True), lets them go on from there. The step counter, from which Adam,
 * AdamW and Adamax correct their averages, is the module's: it goes on with the steps of others.
 * One that was frozen when its optimiser was made is in none of its groups: thawed, it gets
 * gradients and is not stepped, until another optimiser is made.
 *
 * The next use of the module that follows takes it from its node with all that it has, loads it
 * again and BLOCKS for that; no bit of its state changes. If that use fails on the way, the next
 * one goes on with it. Versions of events count anew.
 *
 * BLOCKS while contexts that have called the module are being closed. CLEAVE_PRECONDITION: one is
 * open, and named. CLEAVE_NOT_FOUND: no parameter has such a name, and nothing is changed.
 * CLEAVE_EXHAUSTED: thawed, some parameters would be in no group, and 16 groups have the others. */
CLEAVE_API cleave_status cleave_parameter_freeze(cleave_runtime *runtime, cleave_module *module,
                                                 const char *const *names, size_t n,
                                                 uint64_t deadline_ms,
                                                 cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_parameter_thaw(cleave_runtime *runtime, cleave_module *module,
                                               const char *const *names, size_t n,
                                               uint64_t deadline_ms,
                                               cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. One parameter or buffer by name, copied out; steps taken before are in it. */
CLEAVE_API cleave_status cleave_weight_read(cleave_runtime *runtime, cleave_module *module,
                                            const char *name, uint64_t deadline_ms,
                                            cleave_tensor *ret_tensor,
                                            cleave_error *error) CLEAVE_RESULT;
/* Steps that are done, or only wait for answers, are in it. */
CLEAVE_API cleave_status cleave_weight_read_async(cleave_runtime *runtime, cleave_module *module,
                                                  const char *name, uint64_t deadline_ms,
                                                  cleave_future *ret_future,
                                                  cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until the node has it. dtype and shape must be the parameter's. */
CLEAVE_API cleave_status cleave_weight_write(cleave_runtime *runtime, cleave_module *module,
                                             const char *name, const cleave_tensor *tensor,
                                             uint64_t deadline_ms,
                                             cleave_error *error) CLEAVE_RESULT;
/* As a future. The tensor is copied at once. */
CLEAVE_API cleave_status cleave_weight_write_async(cleave_runtime *runtime, cleave_module *module,
                                                   const char *name, const cleave_tensor *tensor,
                                                   uint64_t deadline_ms, cleave_future *ret_future,
                                                   cleave_error *error) CLEAVE_RESULT;

/* A module's state_dict, or that of its optimiser: for each parameter, in a group or not, as many
 * moments as the group with the most of them has, under names as "0.weight.exp_avg" (zeros where
 * nothing was stepped), and the scalar "step" (i64). */
typedef enum cleave_state_kind {
  CLEAVE_STATE_WEIGHTS = 1,
  CLEAVE_STATE_OPTIMIZER = 2,
} cleave_state_kind;

typedef struct cleave_state {
  cleave_named_tensor *items; /* [n] with memory of their own */
  size_t n;
} cleave_state;

/* Items of a kind: parameters and buffers; moments and the step counter, 0 without an optimiser. */
CLEAVE_API size_t cleave_state_count(const cleave_module *module, cleave_state_kind kind);

/* BLOCKS. Everything of that kind, copied out; steps taken before are in it. A module without an
 * optimiser has 0 items of optimiser state. Frozen parameters of a worker's artifact are not in it,
 * unless its worker.yaml gives them out. Released by cleave_state_free. */
CLEAVE_API cleave_status cleave_state_read(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, uint64_t deadline_ms,
                                           cleave_state *ret_state,
                                           cleave_error *error) CLEAVE_RESULT;
/* As cleave_weight_read_async; cleave_future_state gives what came. */
CLEAVE_API cleave_status cleave_state_read_async(cleave_runtime *runtime, cleave_module *module,
                                                 cleave_state_kind kind, uint64_t deadline_ms,
                                                 cleave_future *ret_future,
                                                 cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until the node has them. Each under a name cleave_state_read gives, with its dtype and
 * shape; all of them or some: a new batchnorm's num_batches_tracked that is left out stays 0, as in
 * PyTorch. */
CLEAVE_API cleave_status cleave_state_write(cleave_runtime *runtime, cleave_module *module,
                                            cleave_state_kind kind,
                                            const cleave_named_tensor *items, size_t n,
                                            uint64_t deadline_ms,
                                            cleave_error *error) CLEAVE_RESULT;
/* As a future. The items are copied at once; n is at least 1. */
CLEAVE_API cleave_status cleave_state_write_async(cleave_runtime *runtime, cleave_module *module,
                                                  cleave_state_kind kind,
                                                  const cleave_named_tensor *items, size_t n,
                                                  uint64_t deadline_ms, cleave_future *ret_future,
                                                  cleave_error *error) CLEAVE_RESULT;
CLEAVE_API void cleave_state_free(cleave_state *state); /* frees and zeroes */

/* BLOCKS. Everything of that kind in a safetensors file of this machine, under the names of
 * cleave_state_read: for weights those of a state_dict, which safetensors.torch.load_file gives.
 * Written beside it (PATH.tmp), made durable, then renamed: what was there stays until the whole
 * new file is. CLEAVE_UNAVAILABLE: it cannot be written. A module without state, or without
 * optimiser, gives a file without tensors. */
CLEAVE_API cleave_status cleave_state_save(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, const char *path,
                                           uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. The other way round, as load_state_dict with `strict`: the file has all names of that
 * kind and no other, but for num_batches_tracked, which is 0 where it is left out. Nothing is
 * written before all of the file fits. CLEAVE_NOT_FOUND: no such file; CLEAVE_INVALID: it lacks
 * names or has others (the first few are told), or a tensor of another dtype or shape;
 * CLEAVE_DATA_LOSS: it is cut short or damaged. Weights that lie on the worker's own disk are
 * cleave_module_options.artifact. */
CLEAVE_API cleave_status cleave_state_load(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, const char *path,
                                           uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;

/* What a worker says of a file of state. Set size before the call. */
typedef struct cleave_state_file {
  size_t size; /* sizeof(cleave_state_file) */
  uint64_t bytes;
  char sha256[65]; /* hexadecimal */
} cleave_state_file;

/* BLOCKS. The same at the module's worker: it writes the file into its state_dir, and no number
 * comes here. `name` is plain: 1..128 of [A-Za-z0-9._-], no dot first (CLEAVE_INVALID), never a
 * path. The file belongs to the identity of this session's certificate: the same name of another
 * one is another file, and nobody else reads, replaces or removes it. It outlives session and
 * worker, until it is removed. One of that name is replaced when the new one is whole. It counts
 * against allow[].state_bytes of worker.yaml, which is 0 unless given: over that
 * CLEAVE_EXHAUSTED, and nothing has changed. CLEAVE_UNIMPLEMENTED: the worker has no state_dir, or
 * is of an earlier version; CLEAVE_INVALID: the module is at the master. What was called before is
 * waited for, steps included. ret_file may be NULL. */
CLEAVE_API cleave_status cleave_state_save_at_worker(cleave_runtime *runtime, cleave_module *module,
                                                     cleave_state_kind kind, const char *name,
                                                     uint64_t deadline_ms,
                                                     cleave_state_file *ret_file,
                                                     cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. The other way round, as strict as cleave_state_load, with every name; also one that an
 * earlier session has saved, or a module of the same state. CLEAVE_NOT_FOUND: this identity has no
 * such file there. *ret_file (may be NULL) is the file as it was read: whoever has kept sha256
 * knows that it is the one that was written. */
CLEAVE_API cleave_status cleave_state_load_at_worker(cleave_runtime *runtime, cleave_module *module,
                                                     cleave_state_kind kind, const char *name,
                                                     uint64_t deadline_ms,
                                                     cleave_state_file *ret_file,
                                                     cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. The file goes, whatever state is in it; the module only says which worker is meant.
 * CLEAVE_NOT_FOUND: there is none. */
CLEAVE_API cleave_status cleave_state_remove_at_worker(cleave_runtime *runtime,
                                                       cleave_module *module, const char *name,
                                                       uint64_t deadline_ms,
                                                       cleave_error *error) CLEAVE_RESULT;
/* The same as futures; cleave_future_state_file gives what the worker said. */
CLEAVE_API cleave_status cleave_state_save_at_worker_async(
    cleave_runtime *runtime, cleave_module *module, cleave_state_kind kind, const char *name,
    uint64_t deadline_ms, cleave_future *ret_future, cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_state_load_at_worker_async(
    cleave_runtime *runtime, cleave_module *module, cleave_state_kind kind, const char *name,
    uint64_t deadline_ms, cleave_future *ret_future, cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_state_remove_at_worker_async(cleave_runtime *runtime,
                                                             cleave_module *module,
                                                             const char *name, uint64_t deadline_ms,
                                                             cleave_future *ret_future,
                                                             cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until the node has it. A module that was lost with its worker, which has come back
 * (cleave_worker_rejoin), is loaded there again, with these weights and this state of its
 * optimiser, as cleave_state_read gave them: all items or some. Its handle, name and optimiser are
 * the same, and no late word of its earlier life reaches it. NULL, or items that are left out: the
 * weights that the module began with, drawn or of its artifact, and moments and steps of 0. One
 * that was loaded with weights needs weights (CLEAVE_INVALID): they are not kept here. When it
 * fails, the module is still one that was lost. CLEAVE_PRECONDITION: it was not;
 * CLEAVE_UNAVAILABLE: its worker is still, or again. */
CLEAVE_API cleave_status cleave_module_reload(cleave_runtime *runtime, cleave_module *module,
                                              const cleave_state *weights,
                                              const cleave_state *optimizer, uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;
/* As a future; like cleave_module_place_async. The state is copied at once. */
CLEAVE_API cleave_status cleave_module_reload_async(cleave_runtime *runtime, cleave_module *module,
                                                    const cleave_state *weights,
                                                    const cleave_state *optimizer,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* ---- tensor parallelism ---------------------------------------------------------------------- */

/* A chain of layers some of which are divided over several nodes (Shoeybi et al., Megatron-LM,
 * 2019, section 3), as modules: one of every node for each run of divided layers, and one at `at`
 * for what stands before, between and behind. A linear layer says how:
 *
 *   parallel: columns   node k has out / n of the outputs, with their weights and biases; x goes to
 *                       all. The values stay where they are through layers without parameters that
 *                       take number by number (relu, gelu, scale, ...), up to a layer with
 *   parallel: rows      node k reads in / n of the inputs: those it has made, or its share of x.
 *                       Node 0 adds the bias.
 *
 * Behind rows the sum ((y_0 + y_1) + y_2) + ..., in the order of the nodes, is made at `at`; behind
 * columns that no rows follow, the values are put beside each other there. All other layers are
 * computed whole, at `at`. Calls are ordinary calls: the backward pass is distributed over the same
 * nodes, and the bits do not depend on who these are. From the undivided layers they differ by the
 * rounding of the sum. */
typedef struct cleave_parallel cleave_parallel;

typedef struct cleave_parallel_options {
  size_t size;      /* sizeof(cleave_parallel_options) */
  const char *name; /* of the whole, at most 100 bytes; its modules are called NAME.0, NAME.1.0, ...
                       by stretch of layers and part */
  const char *at;   /* of what is not divided; NULL: "master" */
  const char *const *nodes; /* [n_nodes] of the parts, 2 to 8; one may have several */
  size_t n_nodes;
  uint32_t threads, in_flight, first_layer; /* as in cleave_module_options, as is what follows */
  uint64_t seed; /* first values are those of the undivided layers: they are drawn here and written,
                    as CLEAVE_SENDING_WEIGHTS; a part gets no key of a divided layer */
  const char *const *frozen; /* [n_frozen] */
  size_t n_frozen;
} cleave_parallel_options;

/* layers: as for cleave_load_layers. CLEAVE_INVALID at the place in the text: a layer that is
 * divided and no linear, or an extent that the number of nodes does not divide; without a place: no
 * layer is divided, fewer than two nodes. */
CLEAVE_API cleave_status cleave_parallel_load(cleave_runtime *runtime,
                                              const cleave_parallel_options *options,
                                              const char *layers, const cleave_input *input,
                                              cleave_parallel **ret_parallel,
                                              cleave_error *error) CLEAVE_RESULT;

/* As cleave_call of the undivided module, of which it is one call for each module. */
CLEAVE_API cleave_status cleave_parallel_call(cleave_runtime *runtime, cleave_context context,
                                              cleave_parallel *parallel, cleave_reference input,
                                              cleave_reference *ret_reference,
                                              cleave_error *error) CLEAVE_RESULT;

/* Its modules 0..n-1 in the order of the chain, NULL beyond: for optimisers, and to see who has
 * what (cleave_module_node, cleave_module_weight_name). */
CLEAVE_API cleave_module *cleave_parallel_module(const cleave_parallel *parallel, size_t index);

/* Who has what, a line for each module: "mlp.0.1 at w2: 256 bytes: w1.weight [4, 16] of [8, 16]".
 * Writes at most size bytes, the zero behind it included, and returns how long the whole text
 * is. */
CLEAVE_API size_t cleave_parallel_text(const cleave_parallel *parallel, char *ret_text,
                                       size_t size);

/* BLOCKS. The state of the undivided module, under its names and in its shapes: what is divided is
 * put together. With cleave_state_write it goes on undivided, or with cleave_parallel_state_write
 * over other nodes. */
CLEAVE_API cleave_status cleave_parallel_state_read(cleave_runtime *runtime,
                                                    cleave_parallel *parallel,
                                                    cleave_state_kind kind, uint64_t deadline_ms,
                                                    cleave_state *ret_state,
                                                    cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Each item under a name and in the shape that the undivided module has it: each node gets
 * its part. CLEAVE_NOT_FOUND: no such name; CLEAVE_INVALID: another shape. Then nothing was
 * written. */
CLEAVE_API cleave_status cleave_parallel_state_write(cleave_runtime *runtime,
                                                     cleave_parallel *parallel,
                                                     cleave_state_kind kind,
                                                     const cleave_named_tensor *items, size_t n,
                                                     uint64_t deadline_ms,
                                                     cleave_error *error) CLEAVE_RESULT;

/* Releases it and its modules; NULL is allowed. */
CLEAVE_API cleave_status cleave_parallel_release(cleave_runtime *runtime, cleave_parallel *parallel,
                                                 cleave_error *error);

/* ---- contexts -------------------------------------------------------------------------------- */

typedef struct cleave_context_options {
  size_t size;      /* sizeof(cleave_context_options) */
  const char *name; /* for the leak report; NULL = its number */
  bool evaluation;  /* no backward: dropout keeps all, batchnorm uses running statistics */
  /* Random numbers (dropout) are functions of the module's seed, of this, and of how many calls of
   * the module came before in the context. 0: the context's number. */
  uint64_t step;
  bool events; /* nodes note what they do, for cleave_options.on_event */
} cleave_context_options;

/* Nothing is sent: nodes learn of a context with its first call. As many as wanted at once. options
 * NULL: the defaults. */
CLEAVE_API cleave_status cleave_context_open(cleave_runtime *runtime,
                                             const cleave_context_options *options,
                                             cleave_context *ret_context,
                                             cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until every node has freed what it held for the context. Its references are released with
 * it, and its futures that are not done end with CLEAVE_CANCELLED, or the error of the context;
 * what was kept of it is not released, and its owners' answers are waited for first.
 * Values that are kept and still to come are computed all the same, and with them, at whatever
 * node, the calls that they depend on and no others: these alone are not waited for. Other calls
 * and backward passes in progress are given up; a step on its way is waited for first, and one that
 * had to be taken back is the error of this function. */
CLEAVE_API cleave_status cleave_context_close(cleave_runtime *runtime, cleave_context context,
                                              uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;

/* As a future, which no context's end ends. Closed is the context when that is done; until its
 * owners and a step on its way have answered, it is as it was, and cancelling leaves it so. */
CLEAVE_API cleave_status cleave_context_close_async(cleave_runtime *runtime, cleave_context context,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* The same without waiting, but for the owners of what is kept: nodes free what they hold as soon
 * as they hear of it. A final step of the context that fails is the error of this function, or,
 * when it is known later, once of the next cleave_context_open, cleave_context_end, cleave_step,
 * reading of state or cleave_close. */
CLEAVE_API cleave_status cleave_context_end(cleave_runtime *runtime, cleave_context context,
                                            cleave_error *error) CLEAVE_RESULT;

/* ---- references and calls -------------------------------------------------------------------- */

/* A value from the program. requires_grad (f32 only): backward keeps its gradient. */
CLEAVE_API cleave_status cleave_leaf(cleave_runtime *runtime, cleave_context context,
                                     const cleave_tensor *tensor, bool requires_grad,
                                     cleave_reference *ret_reference,
                                     cleave_error *error) CLEAVE_RESULT;

/* Call a module on n inputs, in the order of its graph's inputs. Returns at once, before anything
 * has run; a failure of the call itself is given by whoever uses the value. Inputs go from where
 * they are to the module's node without passing the program, unless they are its own. The first
 * call of a module takes its module there and waits for that. A call sees the weights of
 * the moment it was made, also if its inputs are still on their way when a step or
 * cleave_weight_write comes after it. */
CLEAVE_API cleave_status cleave_call(cleave_runtime *runtime, cleave_context context,
                                     cleave_module *module, const cleave_reference *inputs,
                                     size_t n_inputs, cleave_reference *ret_reference,
                                     cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_call_options {
  size_t size; /* sizeof(cleave_call_options) */
  /* The module's node runs the call only after the backward of this one, an earlier call of the
   * context at the same node. That bounds how many calls are kept for their backward at once: the
   * window of a pipeline. id 0: no condition. One that has no backward to come is refused. Until
   * the backward a module with running statistics takes no later call either, of other contexts and
   * evaluations too, and steps of other contexts, reading and writing weights are refused. */
  cleave_reference after;
  /* A node ("master", "w1") where the value will be needed: it goes there without being asked for,
   * which saves a message. NULL: it waits for whoever asks. */
  const char *send_to;
  /* The value comes to the program as soon as it is there, for cleave_to_here; with send_to only
   * where that is "master". */
  bool to_program;
  /* The order of a schedule. Of the context's things at one node those with a position run in
   * ascending positions, from 1 and without a gap, each when what it needs is there: the call
   * itself, its backward, and the gradients of its parameters apart from that (0: with it).
   * Positions of a call ascend (CLEAVE_INVALID, as one over 1,048,576); backwards of a module's
   * calls have positions in the order of the roots, and so have the gradients of parameters: with
   * others the context stands still, or fails. A position that never comes stops the node's later
   * ones until the context ends. 0: in no order. */
  uint32_t position, backward_position, weight_position;
  /* With the weights from before the last step of the context at the module, if there has been one
   * (cleave_step_at with keep). */
  bool old_weights;
  /* Keep the inputs alone and run the forward again before the backward: less memory, more time.
   * Bits are the same; running statistics move once. */
  bool recompute;
} cleave_call_options;

/* options NULL: as cleave_call. */
CLEAVE_API cleave_status cleave_call_with(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const cleave_reference *inputs,
                                          size_t n_inputs, const cleave_call_options *options,
                                          cleave_reference *ret_reference,
                                          cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. cleave_call and cleave_to_here in one. ret_reference may be NULL: then the value cannot
 * be used in further calls. */
CLEAVE_API cleave_status cleave_rpc_sync(cleave_runtime *runtime, cleave_context context,
                                         cleave_module *module, const cleave_reference *inputs,
                                         size_t n_inputs, uint64_t deadline_ms,
                                         cleave_reference *ret_reference, cleave_tensor *ret_tensor,
                                         cleave_error *error) CLEAVE_RESULT;

/* As cleave_rpc_sync, without waiting: the value is on its way here when this returns.
 * ret_reference may be NULL, as there. */
CLEAVE_API cleave_status cleave_rpc_async(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const cleave_reference *inputs,
                                          size_t n_inputs, cleave_reference *ret_reference,
                                          cleave_future *ret_future,
                                          cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until the tensor of a future is here: of a call, a fetch, or cleave_weight_read_async; any
 * other is CLEAVE_INVALID. Releases the future on success. After CLEAVE_DEADLINE it may be waited
 * for again. */
CLEAVE_API cleave_status cleave_wait(cleave_runtime *runtime, cleave_future future,
                                     uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                     cleave_error *error) CLEAVE_RESULT;

/* ---- futures --------------------------------------------------------------------------------- *
 *
 * A future is *done* when its result is known: it went well, or an error. It stays, with its
 * result, until it is released, whatever becomes of its context. The functions that return one take
 * the arguments of the blocking form, in whose words deadline_ms is: the future ends with
 * CLEAVE_DEADLINE then. What is wrong at once is an error of the function itself, and there is no
 * future. The first use of a module takes it to its node and waits for that, as in cleave_call:
 * begin with cleave_module_place_async where that shall not block.
 *
 * What is begun goes on by itself, by a thread of the runtime that starts with the first future
 * that is no call's. With cleave_options.single_thread it goes on while a function waits for a
 * future, or blocks and has such a form, and in cleave_future_poll.
 *
 * A backward, a step, and what reads or writes gradients wait for the backwards, steps and writes
 * of gradients of their context that were begun before;
 * other calls made meanwhile do not wait, and use the weights from before the step. */

/* Returns at once. With single_thread the master's own modules compute here what can be. */
CLEAVE_API cleave_status cleave_future_poll(cleave_runtime *runtime, cleave_future future,
                                            bool *ret_ready, cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until it is done; gives its result: CLEAVE_OK, or the error with which it ended. May be
 * called again, and by several threads at once. After CLEAVE_DEADLINE of this function, which
 * changes nothing, cleave_future_poll says that it is not ready. */
CLEAVE_API cleave_status cleave_future_wait(cleave_runtime *runtime, cleave_future future,
                                            uint64_t deadline_ms,
                                            cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until one of [n] is done, be it with an error: the first in the list of those that are.
 * Futures with id 0 are passed over, so that one that has been dealt with can be set to that; none
 * left is CLEAVE_INVALID. */
CLEAVE_API cleave_status cleave_wait_any(cleave_runtime *runtime, const cleave_future *futures,
                                         size_t n, uint64_t deadline_ms, size_t *ret_index,
                                         cleave_error *error) CLEAVE_RESULT;

/* Have a function called when the future is done: exactly once, however it ends, and soon if it is
 * done already. Several are called in the order in which they were given; cleave_future_release
 * takes none back. *error is how it ended, with CLEAVE_OK when it went well, for as long as the
 * function runs. Who calls it is the runtime's thread of futures, never this function; with
 * single_thread it is whichever function waits for a future, or polls, before that returns. One at
 * a time, with nothing held: it may call everything that does not block, and begin what comes next.
 * cleave_close in it is CLEAVE_PRECONDITION. Those of futures that are not done at cleave_close are
 * called there. */
CLEAVE_API cleave_status cleave_future_then(cleave_runtime *runtime, cleave_future future,
                                            void (*function)(void *user, cleave_future future,
                                                             const cleave_error *error),
                                            void *user, cleave_error *error) CLEAVE_RESULT;

/* The future ends with CLEAVE_CANCELLED, its callbacks are called; one that is done stays as it is.
 * What has not been sent is withdrawn: a backward or a step that waits for an earlier one, reading
 * that waits for a step, closing that waits. What has been sent goes on where it is, and its result
 * is dropped when it comes: gradients of a backward are added all the same, and a backward or step
 * that is begun after it waits for it. The context lives on. */
CLEAVE_API cleave_status cleave_future_cancel(cleave_runtime *runtime, cleave_future future,
                                              cleave_error *error);

/* What came: copied out, as often as wanted. CLEAVE_PRECONDITION: it is not done; CLEAVE_INVALID: a
 * future of something else; otherwise the error with which it ended. tensor: as cleave_wait. */
CLEAVE_API cleave_status cleave_future_tensor(cleave_runtime *runtime, cleave_future future,
                                              cleave_tensor *ret_tensor,
                                              cleave_error *error) CLEAVE_RESULT;
struct cleave_step_result;
CLEAVE_API cleave_status cleave_future_step_result(cleave_runtime *runtime, cleave_future future,
                                                   struct cleave_step_result *ret,
                                                   cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_future_state(cleave_runtime *runtime, cleave_future future,
                                             cleave_state *ret_state,
                                             cleave_error *error) CLEAVE_RESULT;
struct cleave_gradients;
CLEAVE_API cleave_status cleave_future_gradients(cleave_runtime *runtime, cleave_future future,
                                                 struct cleave_gradients *ret_gradients,
                                                 cleave_error *error) CLEAVE_RESULT;

/* *ret_file: set its size. Of a removal it is all zeros. */
CLEAVE_API cleave_status cleave_future_state_file(cleave_runtime *runtime, cleave_future future,
                                                  cleave_state_file *ret_file,
                                                  cleave_error *error) CLEAVE_RESULT;

/* Releases the handle. What is not done goes on, and nobody hears of its end but its callbacks. */
CLEAVE_API cleave_status cleave_future_release(cleave_runtime *runtime, cleave_future future,
                                               cleave_error *error);

/* ---- fetching -------------------------------------------------------------------------------- */

/* BLOCKS. A copy of the value, wherever it is. */
CLEAVE_API cleave_status cleave_to_here(cleave_runtime *runtime, cleave_reference reference,
                                        uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                        cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_to_here_async(cleave_runtime *runtime, cleave_reference reference,
                                              uint64_t deadline_ms, cleave_future *ret_future,
                                              cleave_error *error) CLEAVE_RESULT;

/* cleave_to_here for a value that the master owns; anything else is CLEAVE_PRECONDITION with the
 * owner. */
CLEAVE_API cleave_status cleave_local_value(cleave_runtime *runtime, cleave_reference reference,
                                            uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                            cleave_error *error) CLEAVE_RESULT;

/* Have a value copied to a node ("master", "w1") before a module there asks for it: a module loaded
 * with local_only takes it then. Returns at once. */
CLEAVE_API cleave_status cleave_send_to(cleave_runtime *runtime, cleave_reference reference,
                                        const char *node, cleave_error *error) CLEAVE_RESULT;

/* Where something lives. The node's name stays as long as the runtime, the device's as long as the
 * value or its module. */
typedef struct cleave_place {
  const char *node;   /* "master" or a worker's name */
  const char *device; /* "cpu" */
} cleave_place;

CLEAVE_API cleave_status cleave_owner(cleave_runtime *runtime, cleave_reference reference,
                                      cleave_place *ret_place, cleave_error *error) CLEAVE_RESULT;

/* Releases the handle. The value stays as long as its context needs it for backward. */
CLEAVE_API cleave_status cleave_reference_release(cleave_runtime *runtime,
                                                  cleave_reference reference, cleave_error *error);

/* ---- references that outlive their context --------------------------------------------------- */

/* A value that stays with its owner until it is released, whatever becomes of the context it was
 * made
 * in: PyTorch's RRef. */
typedef struct cleave_kept {
  uint64_t id; /* 0: none */
} cleave_kept;

/* Returns at once, also when the value has not been computed. Closing its context never decides
 * whether there is one: it is computed, or the reference holds the error of what failed, be it a
 * call or the context. It stays at the node of its module;
 * of a leaf in this process. If there never is a value, that error takes its place, and is given by
 * every use and fetch. What cannot be kept (a quota of the owner) is an error of every later
 * function on it but its release. A node, this one too, that is silent for limits.reference_lease
 * of the session is taken for dead: what was kept for it alone is freed, and its handles are
 * CLEAVE_NOT_FOUND when it is back. */
CLEAVE_API cleave_status cleave_keep(cleave_runtime *runtime, cleave_reference reference,
                                     cleave_kept *ret_kept, cleave_error *error) CLEAVE_RESULT;

/* The value as a leaf of any context, without a gradient. The node of each module that is called
 * with it gets it from its owner, by their direct link or passed on by the master, when it is
 * called. */
CLEAVE_API cleave_status cleave_kept_use(cleave_runtime *runtime, cleave_context context,
                                         cleave_kept kept, cleave_reference *ret_reference,
                                         cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. A copy of the value, or the error that stands in its place. Each time from its owner:
 * nothing of it stays here. */
CLEAVE_API cleave_status cleave_kept_fetch(cleave_runtime *runtime, cleave_kept kept,
                                           uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                           cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_kept_fetch_async(cleave_runtime *runtime, cleave_kept kept,
                                                 uint64_t deadline_ms, cleave_future *ret_future,
                                                 cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_kept_owner(cleave_runtime *runtime, cleave_kept kept,
                                           cleave_place *ret_place,
                                           cleave_error *error) CLEAVE_RESULT;
/* Whether the owner has said that it keeps the value, be that computed or not. */
CLEAVE_API cleave_status cleave_kept_confirmed(cleave_runtime *runtime, cleave_kept kept,
                                               bool *ret_confirmed,
                                               cleave_error *error) CLEAVE_RESULT;

/* Releases the handle; the value is freed when no context has a use of it left. */
CLEAVE_API cleave_status cleave_kept_release(cleave_runtime *runtime, cleave_kept kept,
                                             cleave_error *error);

/* ---- backward -------------------------------------------------------------------------------- */

/* BLOCKS. Gradients of the sum of the roots (scalars, e.g. losses) with respect to every parameter
 * and every leaf that requires one, added to those the context holds. Only calls that a root
 * depends on take part. retain: the calls keep what another backward needs; without it a second
 * backward over the same call is CLEAVE_PRECONDITION. One backward of a context runs at a time, a
 * second one waits for it. */
CLEAVE_API cleave_status cleave_backward(cleave_runtime *runtime, cleave_context context,
                                         const cleave_reference *roots, size_t n_roots, bool retain,
                                         uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;
/* What the gradient of each root starts with; zeroed but for its size: 1, of scalars. */
typedef struct cleave_backward_options {
  size_t size; /* sizeof(cleave_backward_options) */
  /* [n_roots], or NULL: of roots that are scalars; finite, and not 0 where there is no gradient. */
  const float *weights;
  /* [n_roots], or NULL: of the root's dtype and shape, which may be any, as torch.autograd.backward
   * has them. They travel to the owners of the roots. One that is zeroed is none: that root has its
   * weight, or 1 when weights is NULL. A number that is not finite counts as in any gradient: no
   * step is taken. */
  const cleave_tensor *gradients;
  bool retain;          /* as in cleave_backward */
  uint64_t deadline_ms; /* 0: the runtime's */
} cleave_backward_options;

/* BLOCKS. Gradients of the sum of the roots, each times its weight or its given gradient
 * (torch.autograd.grad's grad_outputs), with respect to every parameter and every leaf that
 * requires one, added to those the context holds. What the roots contribute to a parameter's
 * gradient is added in their order, and each is propagated as soon as its value is known, whether
 * others are or not: with one root per micro-batch this is a pipeline. options may be NULL.
 *
 * CLEAVE_INVALID: a root twice; not a scalar and no gradient given; a gradient of another dtype or
 * shape; a weight and a gradient for one root. CLEAVE_PRECONDITION: nothing that learns is behind a
 * root; a call has had its backward; or the parameters of its module were stepped or written since
 * the call, by this or another context, and its backward reads them. That is known here, and
 * nothing has moved then: see "Contexts that overlap" in PROGRAMS.md. */
CLEAVE_API cleave_status cleave_backward_with(cleave_runtime *runtime, cleave_context context,
                                              const cleave_reference *roots, size_t n_roots,
                                              const cleave_backward_options *options,
                                              cleave_error *error) CLEAVE_RESULT;
/* As a future. What is copied and checked at once are the arguments themselves; roots when it
 * begins, which may be behind another one. options NULL: as there. */
CLEAVE_API cleave_status cleave_backward_async(cleave_runtime *runtime, cleave_context context,
                                               const cleave_reference *roots, size_t n_roots,
                                               const cleave_backward_options *options,
                                               cleave_future *ret_future,
                                               cleave_error *error) CLEAVE_RESULT;

/* BLOCKS, also for a backward that runs. The context's gradient of a parameter, copied here.
 * CLEAVE_NOT_FOUND: it has none
 * (frozen, or nothing flowed there), or there is no such parameter. */
CLEAVE_API cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context context,
                                         cleave_module *module, const char *name,
                                         uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                         cleave_error *error) CLEAVE_RESULT;
/* As a future (cleave_future_tensor). It waits for what was begun in the context before. */
CLEAVE_API cleave_status cleave_gradient_async(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               uint64_t deadline_ms, cleave_future *ret_future,
                                               cleave_error *error) CLEAVE_RESULT;

/* Where that gradient lives, as its owner answers; the same refusals. */
CLEAVE_API cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               uint64_t deadline_ms, cleave_place *ret_place,
                                               cleave_error *error) CLEAVE_RESULT;

/* The gradient of a leaf made with requires_grad. It lives at the master. CLEAVE_PRECONDITION: a
 * backward of its context runs. */
CLEAVE_API cleave_status cleave_leaf_gradient(cleave_runtime *runtime, cleave_reference leaf,
                                              cleave_tensor *ret_tensor,
                                              cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_gradient_item {
  cleave_module *module; /* whose parameter it is the gradient of; NULL: of a leaf */
  const char *name;      /* of the parameter; NULL: of a leaf */
  cleave_reference leaf; /* id 0: of a parameter */
  cleave_tensor tensor;  /* of the parameter's or the leaf's dtype and shape, with its own memory */
} cleave_gradient_item;

typedef struct cleave_gradients {
  cleave_gradient_item *items; /* [n] */
  size_t n;
} cleave_gradients;

/* BLOCKS for one round trip. All gradients of the context, copied here from all nodes: those of
 * parameters in the order in which modules were loaded and parameters stand in them, then those of
 * leaves that were not released, in the order in which they were made. None where no backward got
 * to. A backward that runs is waited for. Released by cleave_gradients_free. */
CLEAVE_API cleave_status cleave_gradients_read(cleave_runtime *runtime, cleave_context context,
                                               uint64_t deadline_ms,
                                               cleave_gradients *ret_gradients,
                                               cleave_error *error) CLEAVE_RESULT;
/* As a future (cleave_future_gradients), like cleave_gradient_async. */
CLEAVE_API cleave_status cleave_gradients_read_async(cleave_runtime *runtime,
                                                     cleave_context context, uint64_t deadline_ms,
                                                     cleave_future *ret_future,
                                                     cleave_error *error) CLEAVE_RESULT;
CLEAVE_API void cleave_gradients_free(cleave_gradients *gradients); /* frees and zeroes */

/* BLOCKS until the node has it. Another gradient of a parameter in place of the one that the
 * context holds, of the parameter's dtype and shape: steps take it, and later backwards add to it.
 * The next cleave_step asks the node for one more vote, so that clipping and the decision go by
 * what was written. CLEAVE_NOT_FOUND: the context has no gradient of it, as cleave_gradient says;
 * CLEAVE_PRECONDITION: the module has taken its step. A backward that runs is waited for. */
CLEAVE_API cleave_status cleave_gradient_write(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               const cleave_tensor *tensor, uint64_t deadline_ms,
                                               cleave_error *error) CLEAVE_RESULT;
/* As a future. The tensor is copied at once; steps and backwards that are begun after it wait for
 * it. */
CLEAVE_API cleave_status cleave_gradient_write_async(cleave_runtime *runtime,
                                                     cleave_context context, cleave_module *module,
                                                     const char *name, const cleave_tensor *tensor,
                                                     uint64_t deadline_ms,
                                                     cleave_future *ret_future,
                                                     cleave_error *error) CLEAVE_RESULT;

/* ---- optimiser ------------------------------------------------------------------------------- */

typedef struct cleave_optimizer cleave_optimizer;

typedef enum cleave_optimizer_kind {
  CLEAVE_SGD = 0,
  CLEAVE_ADAM = 1,
  CLEAVE_ADAMW = 2,
  CLEAVE_ADAGRAD = 3,
  CLEAVE_RMSPROP = 4,
  CLEAVE_ADAMAX = 5,
} cleave_optimizer_kind;

typedef enum cleave_curve {
  CLEAVE_CONSTANT = 0,
  CLEAVE_STEPS = 1,  /* lr gamma^floor(t / step_size) */
  CLEAVE_COSINE = 2, /* to 0 at total_steps */
  CLEAVE_LINEAR = 3, /* to 0 at total_steps */
} cleave_curve;

/* t counts the steps after a linear warm-up of warmup_steps (0: none). Its first rate is lr /
 * warmup_steps, or with from_zero 0, as in Hugging Face's schedules. */
typedef struct cleave_schedule {
  cleave_curve curve;
  uint64_t warmup_steps, step_size, total_steps;
  double gamma;
  bool from_zero;
} cleave_schedule;

/* Parameters of some modules, with settings as torch.optim's of the same names. A field left 0
 * means 0, not torch's default, except these when all that the kind reads of them are 0: beta1,
 * beta2 (0.9, 0.999), alpha (0.99) and eps (1e-8; CLEAVE_ADAGRAD 1e-10). */
typedef struct cleave_group {
  cleave_module *const *modules; /* [n_modules] */
  size_t n_modules;
  /* Names, or globs ("*.bias"), in these modules; NULL: all parameters. Frozen ones never join. A
   * module none of whose parameters is meant is not in the group. CLEAVE_NOT_FOUND: a name or glob
   * that fits no parameter that learns, in any of the modules. */
  const char *const *parameters; /* [n_parameters], at least 1 */
  size_t n_parameters;
  cleave_optimizer_kind kind;
  double lr, momentum, weight_decay;
  bool nesterov;
  double beta1, beta2, eps;
  double alpha;                     /* CLEAVE_RMSPROP */
  bool centered;                    /* CLEAVE_RMSPROP */
  double lr_decay;                  /* CLEAVE_ADAGRAD; beside the schedule */
  double initial_accumulator_value; /* CLEAVE_ADAGRAD */
  cleave_schedule schedule;
  /* Steps are final: no node keeps a copy of what a step changes (parameters and moments), and
   * calls that follow wait for no answer. A node that fails in a step leaves the others stepped:
   * for programs that go back to a checkpoint then. Of all groups of an optimiser or of none. */
  CLEAVE_RENAMED_(bool, no_rollback, final);
} cleave_group;

/* One local optimiser per module, at the module's node. A module is in one optimiser at most
 * (CLEAVE_EXISTS). clip_norm: the largest norm over all gradients of all groups (torch's
 * clip_grad_norm_); 0 = no clipping.
 *
 * One that has been called may join too: when it was in none, or when the program has released the
 * one that it was in. Its moments and its step counter begin at 0, unless cleave_state_write gives
 * it others. Its next use loads it again, as after cleave_parameter_freeze. Contexts that have
 * called it must be closed (CLEAVE_PRECONDITION names one that is open); those that are being
 * closed are waited for, at most the runtime's deadline. Whatever refuses the new optimiser, a
 * module whose old one was released may then be in none.
 *
 * A module may be in several groups of its optimiser, as torch's param_groups:
 *
 *   const char *decayed[] = {"*.weight"}, *others[] = {"*.bias"};
 *   cleave_group groups[] = {
 *       {.modules = all, .n_modules = 2, .parameters = decayed, .n_parameters = 1,
 *        .kind = CLEAVE_ADAMW, .lr = 1e-3, .weight_decay = 0.1},
 *       {.modules = all, .n_modules = 2, .parameters = others, .n_parameters = 1,
 *        .kind = CLEAVE_ADAMW, .lr = 2e-3}};
 *
 * The kind is the same in all groups of a module (CLEAVE_INVALID); other settings, rate and
 * schedule are each group's own. A parameter is in one group at most (CLEAVE_EXISTS names it). One
 * that learns and is in none is not stepped and does not count in the norm; its gradients are
 * computed and can be read, and one that is not finite stops the step like any other. A module is
 * in at most 16 groups, 15 when some of its parameters are in none (CLEAVE_EXHAUSTED). */
CLEAVE_API cleave_status cleave_optimizer_new(cleave_runtime *runtime, const cleave_group *groups,
                                              size_t n_groups, double clip_norm,
                                              cleave_optimizer **ret_optimizer,
                                              cleave_error *error) CLEAVE_RESULT;
/* Releases the handle: it must not be used any more. With its modules that have been released. NULL
 * is allowed. */
CLEAVE_API cleave_status cleave_optimizer_release(cleave_runtime *runtime,
                                                  cleave_optimizer *optimizer, cleave_error *error);

/* Go on after `steps` steps of an earlier run: what schedules count from. The moments are state of
 * the modules (cleave_state_write). */
CLEAVE_API cleave_status cleave_optimizer_set_steps(cleave_runtime *runtime,
                                                    cleave_optimizer *optimizer, uint64_t steps,
                                                    cleave_error *error);
/* Another schedule for all groups, from the next step on. CLEAVE_INVALID, and nothing is changed: a
 * curve that there is not; CLEAVE_STEPS without a step_size, or with a gamma that is negative or no
 * number. cleave_optimizer_new refuses such a schedule as well. */
CLEAVE_API cleave_status cleave_optimizer_set_schedule(cleave_runtime *runtime,
                                                       cleave_optimizer *optimizer,
                                                       const cleave_schedule *schedule,
                                                       cleave_error *error);

/* The rate with which group 0, 1, ... (in the order of cleave_optimizer_new) takes its next step:
 * torch's param_groups[i]["lr"]. CLEAVE_NOT_FOUND: there is no such group. */
CLEAVE_API cleave_status cleave_optimizer_rate(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                               size_t group, double *ret_rate,
                                               cleave_error *error) CLEAVE_RESULT;
/* Another rate for a group, from the next step on: cleave_group.lr, which the schedule changes from
 * then on (CLEAVE_CONSTANT without warm-up: the rate itself). CLEAVE_INVALID: it is negative or not
 * finite. */
CLEAVE_API cleave_status cleave_optimizer_set_rate(cleave_runtime *runtime,
                                                   cleave_optimizer *optimizer, size_t group,
                                                   double rate, cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_step_result {
  bool applied;    /* false: a gradient somewhere was not finite, and nothing moved anywhere */
  double norm;     /* of all gradients in groups, before clipping */
  double lr;       /* of the first group */
  uint64_t number; /* steps decided so far, this one included */
} cleave_step_result;

/* Every module of the optimiser that has gradients in the context takes one step; a module steps
 * once in a context. Nodes voted with their last backward, so the decision is known here and only
 * sent: this returns at once, unless another context's step is still on its way, or gradients were
 * written (cleave_gradient_write): their nodes vote again. The nodes' answers
 * are waited for by whatever would make the step final: the next call of a module, a step of
 * another context, reading or writing weights, closing the context. If one node cannot follow, or
 * was lost, or does not answer within deadline_ms, all others get back the bytes they had before
 * (with what other optimisers did in this context at the same time); the optimiser has then not
 * stepped, and every later function on the context gives the error, cleave_context_close as well. A
 * final step (cleave_group.no_rollback) is sent with the next thing that is, and not taken back. ret may
 * be NULL. */
CLEAVE_API cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                     cleave_context context, uint64_t deadline_ms,
                                     cleave_step_result *ret, cleave_error *error) CLEAVE_RESULT;
/* As a future, done when cleave_step would return (cleave_future_step_result). Behind a backward of the
 * context that runs it begins when that has ended. */
CLEAVE_API cleave_status cleave_step_async(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                           cleave_context context, uint64_t deadline_ms,
                                           cleave_future *ret_future,
                                           cleave_error *error) CLEAVE_RESULT;

/* The step of one module inside the context: at its node, when its position comes, with the
 * gradients since its last step there, which are then forgotten. For schedules that do not wait for
 * each other (pipedream). No node asks another: a gradient that is not finite ends the context with
 * an error, and what was stepped stays stepped. Calls whose forward came before it and whose
 * backward comes after use the weights from before in both. Said before the backward of the
 * context; the optimiser's groups are final and it does not clip (CLEAVE_PRECONDITION). ahead:
 * steps of the schedule of rates between those decided so far and this one. keep: the weights from
 * before stay for calls with `old_weights`, until the module's next step. ret_lr: the rate of the
 * optimiser's first group; may be NULL. */
CLEAVE_API cleave_status cleave_step_at(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                        cleave_context context, cleave_module *module,
                                        uint64_t ahead, uint32_t position, bool keep,
                                        double *ret_lr, cleave_error *error) CLEAVE_RESULT;

/* ---- names before 0.9 ------------------------------------------------------------------------ */

/* Old names of statuses, events, types and functions. Sources that use them compile unchanged, and
 * the library exports the functions under both names. New programs use the new names. */
#define CLEAVE_ANSWER CLEAVE_PROTOCOL_VIOLATION
#define CLEAVE_EVENT_INPUT CLEAVE_EVENT_BACKWARD_INPUT
#define CLEAVE_EVENT_WEIGHT CLEAVE_EVENT_BACKWARD_WEIGHT

#define cleave_counts cleave_link_totals
#define cleave_named cleave_named_tensor
#define cleave_stepped cleave_step_result

#define CLEAVE_OLD_FUNCTION_(old, now) CLEAVE_API extern __typeof__(now) old
CLEAVE_OLD_FUNCTION_(cleave_count, cleave_get_link_totals);
CLEAVE_OLD_FUNCTION_(cleave_future_stepped, cleave_future_step_result);
CLEAVE_OLD_FUNCTION_(cleave_module_weight, cleave_module_weight_name);
CLEAVE_OLD_FUNCTION_(cleave_state_save_there, cleave_state_save_at_worker);
CLEAVE_OLD_FUNCTION_(cleave_state_save_there_async, cleave_state_save_at_worker_async);
CLEAVE_OLD_FUNCTION_(cleave_state_load_there, cleave_state_load_at_worker);
CLEAVE_OLD_FUNCTION_(cleave_state_load_there_async, cleave_state_load_at_worker_async);
CLEAVE_OLD_FUNCTION_(cleave_state_remove_there, cleave_state_remove_at_worker);
CLEAVE_OLD_FUNCTION_(cleave_state_remove_there_async, cleave_state_remove_at_worker_async);

#ifdef __cplusplus
}
#endif
#endif
