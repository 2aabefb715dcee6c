/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave: distributed autograd contexts for C programs.
 *
 * A program (the *master*) loads *modules* on itself and on workers, calls them in any shape of
 * graph inside a *context*, passes their outputs on by *reference*, runs backward across all
 * machines and steps an optimiser that updates all modules or none:
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
 * Handles. References, kept references, futures and contexts are numbers that are never reused. A
 * function that gets a released one, or one whose context was closed, returns CLEAVE_NOT_FOUND; the
 * behaviour is never undefined. Runtimes, modules, graphs and optimisers are pointers, valid until
 * their release. After cleave_close nothing of the runtime may be used. Functions that free, close
 * or release a pointer accept NULL and do nothing.
 *
 * Memory. Arguments (tensors, texts, lists) are copied before the function returns; no pointer to
 * them is kept. Tensors that a function returns own their memory: see cleave_tensor.
 *
 * Deadlines. Every function that blocks takes `deadline_ms`, counted from the call; 0 means the
 * runtime's (cleave_options.deadline_ms). When it passes, the function returns CLEAVE_DEADLINE.
 * After a late fetch nothing has changed, and the program may wait for the value again. A late
 * backward is cancelled, and a late step that is not final is reverted: their context can only be
 * closed.
 *
 * Futures. Functions that block have an asynchronous form that returns a future at once
 * (cleave_backward_async, ...). It does the same work and has the same errors.
 *
 * Errors. Every function that can fail returns a status and fills *error unless that is NULL.
 * Results are written through pointers on success only. A context keeps its first failure, and
 * every later function on that context returns it; other contexts are not affected.
 *
 * Arguments. A NULL pointer is CLEAVE_INVALID, and the message names the argument, unless the
 * function documents what NULL means. A struct of options begins with its size:
 *
 *   cleave_module_options where = {.size = sizeof where, .name = "front", .at = "w1"};
 *
 * A program that was compiled with an older header has a smaller size; fields that it lacks are 0,
 * the default. With a newer header, fields that this library does not know must be 0
 * (CLEAVE_UNIMPLEMENTED). A size of 0 is CLEAVE_INVALID.
 *
 * Endings. _free frees memory of the caller (tensors, states, graphs), _release a handle of an
 * object in the runtime. _close ends a runtime or context, and waits. cleave_context_end does not
 * wait.
 *
 * Forks. A child of fork() may use no function of the library on what its parent has opened. The
 * library closes the parent's connections in the child, so that workers notice the end of the
 * parent at once, whatever its children do.
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

/* Declares a field under its name and under the name that it had before 0.9. Sources may use
 * either. */
#define CLEAVE_RENAMED_(type, name, old_name) \
  union {                                     \
    type name;                                \
    type old_name;                            \
  }

/* ---- errors ---------------------------------------------------------------------------------- */

/* Status of a function. The numbers are those of gRPC's status codes. */
typedef enum cleave_status {
  CLEAVE_OK = 0,
  CLEAVE_CANCELLED = 1,
  CLEAVE_UNKNOWN = 2,
  CLEAVE_INVALID = 3, /* an argument or a file is invalid, whatever the present state */
  CLEAVE_DEADLINE = 4,
  CLEAVE_NOT_FOUND = 5, /* no such name; a handle that was released */
  CLEAVE_EXISTS = 6,
  CLEAVE_DENIED = 7,
  CLEAVE_EXHAUSTED = 8,    /* a quota, a limit or memory */
  CLEAVE_PRECONDITION = 9, /* the call is valid, but not in the present state */
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
  /* the failed node itself reported status, place and text; false: this process found the
   * failure */
  bool reported;
  char node[CLEAVE_NAME + 1]; /* node that failed: "master" or a worker's name */
  /* module or step at the node; "": unknown */
  CLEAVE_RENAMED_(char, place[CLEAVE_NAME + 1], hop[CLEAVE_NAME + 1]);
  char text[CLEAVE_TEXT]; /* a sentence with the offending value and what to do */
} cleave_error;

/* Returns the status in words, such as "not found" */
CLEAVE_API const char *cleave_status_name(cleave_status status);

/* The version of this header. cleave_version returns the version of the library with which the
 * program runs. */
#define CLEAVE_VERSION_MAJOR 0
#define CLEAVE_VERSION_MINOR 17
#define CLEAVE_VERSION_PATCH 0
#define CLEAVE_VERSION "0.17.0"
/* For a test by the preprocessor: #if CLEAVE_VERSION_NUMBER >= CLEAVE_VERSION_AT(0, 6, 0) */
#define CLEAVE_VERSION_AT(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define CLEAVE_VERSION_NUMBER \
  CLEAVE_VERSION_AT(CLEAVE_VERSION_MAJOR, CLEAVE_VERSION_MINOR, CLEAVE_VERSION_PATCH)
/* Returns the CLEAVE_VERSION of the header with which the library was compiled */
CLEAVE_API const char *cleave_version(void);

/* A library that this process uses. version: for OpenBLAS also names the processor for which its
 * kernels are built. path: file of the library; "": it is not loaded. is_of_wheel: the library is
 * part of the Python wheel, so it is updated with the wheel and not with the system. */
typedef struct cleave_library {
  char name[16], version[48], path[1024];
  bool is_of_wheel;
} cleave_library;
enum { CLEAVE_LIBRARIES = 4 }; /* number of libraries that cleave_libraries describes */
/* Describes OpenSSL, gRPC, oneDNN and OpenBLAS, at most n of them, and returns how many. Loads
 * OpenBLAS if nothing has computed yet. */
CLEAVE_API size_t cleave_libraries(cleave_library *libraries, size_t n);

/* ---- tensors --------------------------------------------------------------------------------- */

/* CLEAVE_BF16 is the upper half of an f32, rounded to nearest even. It is used for leaves, for
 * copies of values (cleave_call_options.fetch_dtype), for initial gradients, and for state of
 * modules with cleave_module_options.frozen_bf16. Inputs of graphs are f32 or i64. */
typedef enum cleave_dtype { CLEAVE_F32 = 1, CLEAVE_I64 = 3, CLEAVE_BF16 = 7 } cleave_dtype;

enum { CLEAVE_MAX_RANK = 8 };

/* A tensor of row-major numbers. As an argument: memory of the caller, read before the function
 * returns. As a result: memory of the tensor, freed by cleave_tensor_free. A function that gets a
 * tensor of an earlier result reuses the tensor's memory for the new result, if it is large enough.
 * Start with {0}. Extents may be 0; data is then not read. */
typedef struct cleave_tensor {
  cleave_dtype dtype;
  int rank; /* number of dimensions; 0: a scalar */
  int64_t shape[CLEAVE_MAX_RANK];
  void *data;
  size_t capacity; /* bytes that the tensor owns at `data`; 0: memory of the caller */
} cleave_tensor;

#define CLEAVE_COUNT_AT_(a, b, c, d, e, f, g, h, n, ...) n
#define CLEAVE_COUNT_(...) CLEAVE_COUNT_AT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define CLEAVE_SHAPE_(...) \
  CLEAVE_COUNT_(__VA_ARGS__), { __VA_ARGS__ }
/* Initialisers of a tensor over an array of the caller. A tensor of shape [32, 16]:
 *   cleave_tensor x = CLEAVE_TENSOR_F32(numbers, 32, 16); */
#define CLEAVE_TENSOR_F32(numbers, ...) \
  { CLEAVE_F32, CLEAVE_SHAPE_(__VA_ARGS__), (void *)(uintptr_t)(numbers), 0 }
#define CLEAVE_TENSOR_BF16(numbers, ...) \
  { CLEAVE_BF16, CLEAVE_SHAPE_(__VA_ARGS__), (void *)(uintptr_t)(numbers), 0 }
#define CLEAVE_TENSOR_I64(numbers, ...) \
  { CLEAVE_I64, CLEAVE_SHAPE_(__VA_ARGS__), (void *)(uintptr_t)(numbers), 0 }

CLEAVE_API size_t cleave_tensor_count(const cleave_tensor *tensor); /* number of elements */
CLEAVE_API void cleave_tensor_free(cleave_tensor *tensor); /* frees the memory and zeroes *tensor */

/* ---- runtime --------------------------------------------------------------------------------- */

typedef struct cleave_runtime cleave_runtime;

typedef enum cleave_sending_kind {
  CLEAVE_SENDING_LEAF = 1,  /* a value that the program passed to cleave_leaf */
  CLEAVE_SENDING_VALUE = 2, /* the output of a module, computed or relayed by this process */
  /* the gradient of a module's output, which this process computes, relays or has from the program;
   * or the gradient of a parameter that the program writes (cleave_gradient_write) */
  CLEAVE_SENDING_GRADIENT = 3,
  CLEAVE_SENDING_WEIGHTS = 4, /* parameters, buffers or optimiser state of a module */
  /* a failure, without a tensor: its code and the module or step where it was detected */
  CLEAVE_SENDING_FAILURE = 5,
  /* cleave-master only: rows of a module's output that the worker caches on its disk (`input` 0),
   * or the record numbers of such rows (`input` 1) */
  CLEAVE_SENDING_CACHED = 6,
} cleave_sending_kind;

/* A tensor or a failure that is about to be sent. For a failure dtype and shape are 0, and bytes is
 * the length of its text. State may be sent in pieces: dtype and shape are then those of the
 * complete item, and bytes is the size of the piece. The worker's name is valid as long as the
 * runtime, the module's as long as the module. */
typedef struct cleave_sending {
  cleave_sending_kind kind;
  const char *worker; /* receiver */
  /* LEAF: module that is called with the leaf, "" if the leaf is sent before a call. WEIGHTS,
   * VALUE, GRADIENT, CACHED: module whose tensor it is. FAILURE: module that has failed, or "" */
  const char *module;
  /* LEAF: index of the input of `module`; VALUE, GRADIENT: index of the output of `module`; CACHED:
   * 0: rows, 1: their numbers */
  uint32_t input;
  /* WEIGHTS: parameter, buffer or optimiser state. GRADIENT: parameter, or "". Other kinds: "".
   * Valid until the call of the hook returns */
  const char *name;
  bool optimizer; /* WEIGHTS: the item is state of an optimiser */
  bool relayed;   /* this process has received the tensor from another worker and relays it */
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK];
  size_t bytes;
} cleave_sending;

/* A distributed autograd context, usually one iteration of a training. */
typedef struct cleave_context {
  uint64_t id; /* 0: none */
} cleave_context;

/* A value at some node: a leaf of this program, or the output of a call that may still run. */
typedef struct cleave_reference {
  uint64_t id; /* 0: none */
} cleave_reference;

typedef struct cleave_module cleave_module;

/* An operation that continues while the program does something else. */
typedef struct cleave_future {
  uint64_t id; /* 0: none */
} cleave_future;

/* Kind of an event: work that a node has done. Times of calls and steps are computing times,
 * without waiting. */
typedef enum cleave_event_kind {
  CLEAVE_EVENT_FORWARD = 1,
  CLEAVE_EVENT_BACKWARD = 2,        /* a complete backward: gradients of inputs and of parameters */
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
  uint32_t node;               /* index of the node, as for cleave_node_name */
  const cleave_module *module; /* module of a call or step; else NULL */
  /* FORWARD, BACKWARD...: number of earlier calls of the module in the context */
  uint32_t call;
  /* Times on the monotonic clock of this machine. Times of a worker are converted with the clock
   * offset that the fastest cleave_measure has found; without a cleave_measure they are
   * unconverted. */
  uint64_t begin_ns, end_ns;
  uint64_t bytes;   /* bytes of the value or gradient that was sent or received */
  uint64_t version; /* version of the weights that a call used or a step produced */
  /* value of the call; or value that was sent or received; or value whose gradient was sent or
   * received */
  cleave_reference reference;
} cleave_event;

typedef struct cleave_options {
  size_t size; /* sizeof(cleave_options) */
  /* Deadline of blocking functions that are called with deadline 0. 0: the limits.step_timeout of
   * the session. */
  uint64_t deadline_ms;
  bool via_master; /* the master relays everything that one worker sends to another */
  /* [n_workers] names of workers to connect to; NULL: all workers of the file. At most 63. Each
   * rejoin of a worker (cleave_worker_rejoin) counts as one more. */
  const char *const *workers;
  size_t n_workers;
  /* The master's own node has no thread. Its modules compute on the caller's thread, while some
   * function of this runtime blocks. This saves two thread switches in each step of a program that
   * waits for what it has started. While the program does other work, modules at the master stand
   * still, and after limits.reference_lease of the session the program loses what workers keep for
   * it. */
  bool single_thread;
  /* Hook before sending; NULL: none. Called before each tensor and each failure is sent, from any
   * thread of the runtime. It must return at once and call no function of the runtime. Any result
   * but CLEAVE_OK prevents the tensor from being sent. The function that was to send the tensor
   * returns the hook's error; if the master's node was to send it, the context fails with that
   * error. A FAILURE has only code and place. A refused FAILURE is not sent either, so a node may
   * wait for the failed value until the context ends. */
  cleave_status (*may_send)(void *user, const cleave_sending *what, cleave_error *error);
  /* Hook for events; NULL: none. Called with each event of a context with
   * cleave_context_options.events, after a node has ended the context. Called from any thread, with
   * the lock of the runtime held: it must return at once and call no function of the runtime. */
  void (*on_event)(void *user, cleave_context context, const cleave_event *event);
  /* Hook for notices; NULL: none. Called with text that is no error but worth knowing: a worker
   * computes with other instructions, or its clock is wrong. Called from any thread. It must return
   * at once and call no function of the runtime. */
  void (*on_notice)(void *user, const char *text);
  void *user; /* first argument of the hooks */
  /* Hook for interrupts, such as a flag that a signal handler has set; NULL: none. Called at least
   * every 50 ms by each function that blocks, also by cleave_open and cleave_close, and by the
   * threads of cleave_module_place_async and its like, from any thread, with or without the lock of
   * the runtime. It must return at once and call no function of the runtime. While it returns true,
   * such a function stops waiting within 100 ms and returns CLEAVE_CANCELLED. What it waited for
   * goes on as after cleave_future_cancel: a step that was sent is decided, a backward adds its
   * gradients. A future that was only waited for is unchanged. cleave_close frees the runtime, but
   * does not wait for workers that do not answer at once. Time in which the caller's own thread
   * computes (single_thread), or the master loads a module of its own, is not interrupted. */
  bool (*interrupted)(void *user);
  /* Folder for the record of the tensors that are sent; NULL: no record. The library makes it if it
   * does not exist. The library appends to DIR/egress.jsonl before it sends a tensor, and
   * `cleave-master egress DIR` prints it. Required where the host has a policy. */
  const char *run;
  /* Time for which a worker's host must refuse every connection before the worker counts as lost,
   * ms; 0: 3000. A host refuses while no process listens there, so a killed worker is lost after
   * this time. A shorter time reports the loss sooner. It also reports a living worker as lost
   * whose port is closed for so long, such as while its proxy restarts. A host that is silent is
   * dialled for limits.lease of the session in any case. */
  uint64_t refused_ms;
} cleave_options;

/* BLOCKS. Connects to the workers of a session file over mutual TLS and opens a session at each.
 * Used keys of the file: name, tls, workers, transfer, limits and train.seed (drawn unless given).
 * The others may be absent. options NULL: the defaults. Errors of the file name file:line:column;
 * CLEAVE_UNAVAILABLE names the worker; CLEAVE_EXHAUSTED names the 64th worker. The policy of this
 * host, /etc/cleave/egress.policy.yaml, applies to each program that connects to workers, and is
 * read before the program connects (see cleave_declare). CLEAVE_DENIED: it refuses programs or one
 * of the workers; CLEAVE_INVALID: it is damaged, or not root's; CLEAVE_PRECONDITION: it requires
 * cleave_options.run, or the record cannot be written. */
CLEAVE_API cleave_status cleave_open(const char *path, const cleave_options *options,
                                     cleave_runtime **ret_runtime,
                                     cleave_error *error) CLEAVE_RESULT;

/* As cleave_open, but reads the session from `text`. `path` names it in messages, and relative
 * paths start in its folder. The text "version: 1\nname: alone\n" gives a runtime without
 * workers. */
CLEAVE_API cleave_status cleave_open_text(const char *path, const char *text,
                                          const cleave_options *options,
                                          cleave_runtime **ret_runtime,
                                          cleave_error *error) CLEAVE_RESULT;

/* Numbers of handles that were still open at cleave_close. A program without leaks has only counts
 * of 0. */
typedef struct cleave_leaks {
  uint32_t contexts, references, futures, modules, optimizers, kept;
  /* a line for each open handle: its kind, and the module or context that made it; truncated if too
   * long */
  char text[1024];
} cleave_leaks;

/* BLOCKS. Ends every context, waits until the workers have freed them, closes the sessions and
 * frees the runtime, whatever it returns: CLEAVE_OK, or the first error. Modules and optimisers
 * that are not released are released and listed. leaks and runtime may be NULL. */
CLEAVE_API cleave_status cleave_close(cleave_runtime *runtime, uint64_t deadline_ms,
                                      cleave_leaks *ret_leaks, cleave_error *error);

/* ---- the tensors that a program declares to send --------------------------------------------- */

/* Findings of a tensor. A finding is a way to read records or labels from the tensor. Below, a
 * secret layer is a layer at the master whose weights no worker knows. The names are those that
 * `cleave-master plan` prints and explains. A row declares several findings by the sum of their
 * numbers. */
typedef enum cleave_shows {
  /* no finding is declared: the library assumes the worst that a tensor of its kind and dtype can
   * show */
  CLEAVE_SHOWS_WORST = 0,
  /* secret layers sum positions (pixels, tokens) of a record, but some value is a sum of fewer than
   * half of them */
  CLEAVE_SHOWS_PICTURE = 1,
  CLEAVE_SHOWS_FRONT_KNOWN = 2, /* only layers with known weights sum two positions of a record */
  /* behind an embedding at the master no secret layer sums two tokens of a record; or some value is
   * a sum of fewer than half of the tokens */
  CLEAVE_SHOWS_TOKENS = 4,
  CLEAVE_SHOWS_RAW_INPUT = 8, /* no layer at the master sums two positions of a record */
  /* labels can be read from a gradient: each of its numbers comes from one output alone, because no
   * secret layer that learns sums the gradients of two outputs */
  CLEAVE_SHOWS_LABELS_READABLE = 16,
  CLEAVE_SHOWS_LABELS = 32, /* the tensor has labels, and is sent because the loss is at a worker */
  /* none of the other findings; the tensor may still show records or labels */
  CLEAVE_SHOWS_MIXED = 64,
} cleave_shows;

/* A row of the table of tensors that a program sends. The library compares the fields from `kind`
 * to `shape` with the cleave_sending of each tensor before it sends the tensor. */
typedef struct cleave_declaration {
  size_t size;              /* sizeof(cleave_declaration) */
  cleave_sending_kind kind; /* LEAF, VALUE, GRADIENT or WEIGHTS; a FAILURE need not be declared */
  const char *worker;       /* name of the receiver */
  const char *module;       /* as in cleave_sending; NULL: "" */
  uint32_t input; /* LEAF: index of the input of `module`; VALUE, GRADIENT: index of its output */
  /* WEIGHTS: one item, NULL: all items of the module. GRADIENT: parameter, NULL: gradients of the
   * module's output. */
  const char *name;
  bool optimizer; /* WEIGHTS: state of the module's optimiser, not its parameters and buffers */
  /* dtype, rank and shape of the tensors; not used for WEIGHTS. rank -1: any shape. shape[0]:
   * largest number of samples in a tensor; 0: any number. The other extents must be equal to those
   * of each tensor. */
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK];
  /* Findings, as a sum of cleave_shows. CLEAVE_SHOWS_WORST: RAW INPUT of a leaf or value, and
   * LABELS as well if it is i64; LABELS READABLE of a gradient. Not used for WEIGHTS. */
  uint32_t shows;
  /* Number of layers at the master that hide a record or label, as min_layers_at_home of a policy
   * counts them. Not used for WEIGHTS. */
  uint32_t hiding_layers;
  /* LEAF: graph of the layers that the program computes itself, from the records to this tensor;
   * NULL: unknown. If a graph is given, the rules of `plan` are applied to it. shows and
   * hiding_layers of 0 are set to what the rules find; a row that declares less is refused. */
  const struct cleave_graph *front;
  /* [n_front_weights] values of the parameters of `front`; used if front_is_secret, which says that
   * no one else has these values. They are looked up in the ledger of this host and never sent. */
  const struct cleave_named_tensor *front_weights;
  size_t n_front_weights;
  bool front_is_secret;
} cleave_declaration;

/* Declares a kind of tensor that this program will send. Call it before the first such tensor; the
 * module need not exist yet. Once a row is declared, or if the host has a policy, the library
 * refuses each tensor without a row, before it asks may_send, so may_send can only refuse more.
 * After a refusal by row or policy the runtime sends no further tensor: open another one. Of
 * several rows that fit, the first one counts. CLEAVE_DENIED: the policy of this host does not
 * permit the row; the message has the line of the policy. CLEAVE_NOT_FOUND: no such worker.
 * CLEAVE_EXHAUSTED: the program has declared 4,096 rows.
 *
 * The rules of `cleave-master plan` judge a VALUE that modules at the master have made, from the
 * leaves of its context on, a GRADIENT that comes from a loss layer, and a LEAF with a `front`. A
 * row that says less than the rules find is refused (CLEAVE_DENIED) before its first tensor is
 * sent. Layers whose keys or values a worker had before, by the ledger of this host, hide nothing.
 * The library cannot verify `shows` and `hiding_layers` of other rows, nor `front`: the record and
 * the policy rely on what the program declares. */
CLEAVE_API cleave_status cleave_declare(cleave_runtime *runtime, const cleave_declaration *row,
                                        cleave_error *error) CLEAVE_RESULT;

/* Begins an epoch: bytes_per_epoch of the policy is counted from 0 again. Without this call the
 * whole runtime is one epoch. Does nothing without a policy. */
CLEAVE_API cleave_status cleave_epoch(cleave_runtime *runtime, cleave_error *error) CLEAVE_RESULT;

/* ---- links ----------------------------------------------------------------------------------- */

/* Bytes over all links so far, with framing and without TLS, and the time in which the master's own
 * node had nothing to compute. */
typedef struct cleave_link_totals {
  uint64_t bytes_up, bytes_down, idle_ns;
} cleave_link_totals;
CLEAVE_API void cleave_get_link_totals(cleave_runtime *runtime, cleave_link_totals *ret_totals);

/* Measurement of a link. The rates are bytes per second of tensors above 64 KiB since the last
 * cleave_measure, counting only the time in which such a tensor was in flight. They are the rates
 * of the link if the link is the bottleneck. 0: no such tensor was sent. */
typedef struct cleave_link_measure {
  double round_trip_s, up_bytes_s, down_bytes_s;
} cleave_link_measure;

/* BLOCKS for one round trip to worker `node`. Only one thread at a time may call it. */
CLEAVE_API cleave_status cleave_measure(cleave_runtime *runtime, uint32_t node,
                                        uint64_t deadline_ms, cleave_link_measure *ret,
                                        cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Takes a lost worker back into this runtime. The worker may be another process at the same
 * address, or the same process, whose part of the session has ended. The worker has lost all that
 * it held for this runtime. cleave_module_reload loads its modules again. Contexts that used it
 * have failed and can only be closed, and its kept values stay CLEAVE_UNAVAILABLE. Contexts that
 * never used it are not affected, and may use it from now on. For the rest of the runtime the
 * master relays values between it and other workers: workers know each other by the names in
 * worker.yaml, and a worker that has returned has its old name, so a late frame could reach the
 * wrong process. Until the worker is back, every function that needs it returns the same error,
 * with its name. CLEAVE_NOT_FOUND: no such worker; CLEAVE_PRECONDITION: it is not lost, or is
 * rejoining already; CLEAVE_UNAVAILABLE: it does not answer; the program can try again;
 * CLEAVE_EXHAUSTED: each worker and each return takes one of 63 names, and none is left: close this
 * runtime and open another. */
CLEAVE_API cleave_status cleave_worker_rejoin(cleave_runtime *runtime, const char *worker,
                                              uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;
/* As cleave_worker_rejoin, but returns a future, like cleave_module_place_async.
 * CLEAVE_PRECONDITION and CLEAVE_NOT_FOUND are returned at once. */
CLEAVE_API cleave_status cleave_worker_rejoin_async(cleave_runtime *runtime, const char *worker,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* Returns the name of a node: 0 is "master", 1 and up are the workers in the file's order. NULL: no
 * such node. */
CLEAVE_API const char *cleave_node_name(const cleave_runtime *runtime, uint32_t node);

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A module's graph, built node by node. One graph may be loaded many times. */
typedef struct cleave_graph cleave_graph;

CLEAVE_API cleave_status cleave_graph_new(cleave_graph **ret_graph,
                                          cleave_error *error) CLEAVE_RESULT;
CLEAVE_API void cleave_graph_free(cleave_graph *graph);

/* Adds an input of the module; inputs are numbered in this order. shape[0] is the batch: the value
 * given here is the first size that is prepared, and calls may have other sizes, 0 included. An
 * input of rank 0 is a scalar. All other inputs of a call have the same batch, except in a graph
 * with a concat along dim 0: there each input has its own, and those that an op combines must fit.
 * *ret_node: number of the input's node in the graph, for later calls. */
CLEAVE_API cleave_status cleave_graph_input(cleave_graph *graph, const char *name,
                                            cleave_dtype dtype, const int64_t *shape, int rank,
                                            int *ret_node, cleave_error *error) CLEAVE_RESULT;

/* Adds an op over earlier nodes. op: as in a session file ("linear", "add", "bce", ...).
 * attributes: a YAML flow mapping "{out: 8, bias: false}", or NULL. name: prefix of its parameters
 * ("w1" gives "w1.weight"); NULL: its number among the graph's ops. Shapes are checked at once.
 * ret_node may be NULL. */
CLEAVE_API cleave_status cleave_graph_op(cleave_graph *graph, const char *op,
                                         const char *attributes, const char *name,
                                         const int *inputs, int n_inputs, int *ret_node,
                                         cleave_error *error) CLEAVE_RESULT;

/* Makes the value of an op an output of the module; outputs are numbered in this order, at most 8
 * (CLEAVE_EXHAUSTED). Without this call the last op's value is the only output. Of several outputs
 * each is [N, ...] with the same N, [N, 1] at least: cleave_load_graph refuses others, such as a
 * loss, with CLEAVE_INVALID and the index of the output. */
CLEAVE_API cleave_status cleave_graph_output(cleave_graph *graph, int node,
                                             cleave_error *error) CLEAVE_RESULT;

/* ---- modules --------------------------------------------------------------------------------- */

/* A tensor under a PyTorch state_dict name. */
typedef struct cleave_named_tensor {
  const char *name;
  cleave_tensor tensor;
} cleave_named_tensor;

typedef struct cleave_module_options {
  size_t size;      /* sizeof(cleave_module_options) */
  const char *name; /* name for messages, reports and its worker's status; unique in the runtime */
  const char *at;   /* "master" (also NULL) or a worker's name */
  /* Device of the module. NULL is "auto": the node's first device that is not a processor, else its
   * processor. "cpu"; "cuda", the first CUDA device; "cuda:1". The master also has "cpu:0" and
   * "cpu:1", and a worker the cpu_devices of its worker.yaml. Their memory is accounted
   * separately. */
  const char *device;
  uint32_t threads; /* compute threads of the module; 0 means 1 */
  /* number of calls between forward and backward for which memory is prepared; 0 means 1 */
  uint32_t in_flight;
  /* Initial values and dropout masks derive from a key of each layer, made of the session's
   * train.seed, this number and the number of the layer. 0: the module's name in place of this
   * number. If the session gives its seed, as 32 hex digits, a program gets the same bits wherever
   * its modules are. A worker receives the keys of the module's own layers, from which no seed and
   * no other key can be computed. Parts of one network share a seed and continue the numbers of
   * their layers (first_layer, or `layers`). Two modules with one seed and the same layer number
   * share that layer's key. */
  uint64_t seed;
  uint32_t first_layer; /* number of the first layer, for default names and the seed */
  /* layers of a named architecture by number or name, such as "layer3..fc"; NULL: all */
  const char *layers;
  /* [n_weights] values that replace the initial ones; NULL: none */
  const cleave_named_tensor *weights;
  size_t n_weights;
  const char *const *frozen; /* [n_frozen] names or globs ("0.*") of parameters without gradients */
  size_t n_frozen;
  /* Requires that inputs are at the module's node already; false: inputs are sent to the node. A
   * call that violates this is refused; the message has the node of each input and what to do. */
  bool local_only;
  /* [n_direct_to] other workers with which the module's node may exchange values and gradients
   * directly. NULL: all other workers if the session says `transfer: direct`, else none. A list
   * with 0 names: none. */
  const char *const *direct_to;
  size_t n_direct_to;
  /* Weights from the worker's own disk in place of initial values. artifact: name, in its
   * worker.yaml, of a safetensors file or a folder of such files; NULL: none. artifact_sha256:
   * digest of the file, or of the folder's ARTIFACT.json, 64 hexadecimal digits. */
  const char *artifact, *artifact_sha256;
  /* Computes convolutions in bf16 on a processor with AVX512-BF16, and also other ops on an NVIDIA
   * device of capability 8.0 or above. Elsewhere the module is refused. Weights, gradients and
   * values stay f32. */
  bool bf16;
  /* Copies inputs from another device of the node to the module's. Otherwise a call with such an
   * input is refused, with both devices and what to do, as in PyTorch. Inputs from other nodes and
   * leaves of this program are always copied to the module's device. */
  CLEAVE_RENAMED_(bool, copies_inputs, any_device);
  /* On an NVIDIA device of capability 8.0 or above, products and convolutions may round their
   * factors to TF32, which has a mantissa of 10 bits: faster, and less exact than f32. Elsewhere
   * the module is refused. */
  bool tf32;
  /* The set of frozen parameters never changes, so the node keeps no gradients and no moments of
   * them. cleave_parameter_freeze and cleave_parameter_thaw then refuse the module. */
  CLEAVE_RENAMED_(bool, frozen_is_final, fixed);
  /* [n_initialized] parameters that get initial values, even if the artifact has them. */
  CLEAVE_RENAMED_(const char *const *, initialized, fresh);
  CLEAVE_RENAMED_(size_t, n_initialized, n_fresh);
  /* [n_ties] parameters that belong to other modules. */
  const struct cleave_tie *ties;
  size_t n_ties;
  /* [n_recompute_blocks] blocks of layers that keep only their inputs; backward runs the forward of
   * each block again: the same bits with less memory and more time. "encoder.layer" is a block for
   * each number behind that name, any other name is one block, and so is "conv1..relu2". Workers
   * before 0.7 ignore this and keep everything. */
  const char *const *recompute_blocks;
  size_t n_recompute_blocks;
  /* With `frozen_is_final`: stores frozen weights of linear layers in bf16. Weights given in f32
   * are rounded. Computation is otherwise as without this option. */
  bool frozen_bf16;
  /* Low-rank adapters beside linear layers; NULL: none. All other parameters are frozen;
   * cleave_parameter_thaw lets some learn as well. */
  const struct cleave_lora *lora;
  /* For a module at the master: no one else has the values that the program gives, in `weights` or
   * later, as `secret: true` declares for a weights file of a session. If false, these values count
   * as known, so that the module hides nothing where rows are checked (cleave_declare). */
  bool weights_are_secret;
  /* [n_ignore_keys] For cleave_load_hf: keys of the folder's files that Cleave does not know, and
   * that change nothing, as `model.ignore_keys` of a session file. An unknown key that is not
   * listed is refused, and so is a listed key that Cleave knows. */
  const char *const *ignore_keys;
  size_t n_ignore_keys;
} cleave_module_options;

/* Settings of low-rank adapters, named as those of peft's LoraConfig. A linear layer y = x W^T + b
 * becomes y + B(A(dropout(x))) * alpha / r. Parameters are NAME.lora_A.weight, [r, in], which is
 * drawn, and NAME.lora_B.weight, [out, r], which begins at 0, so that the first outputs are those
 * without adapters. An artifact has no values of them. */
typedef struct cleave_lora {
  size_t size; /* sizeof(cleave_lora) */
  /* [n_targets] names of linear layers; "query" also matches "layer.0.self.query".
   * CLEAVE_NOT_FOUND: no layer has such a name; CLEAVE_INVALID: the layer is not linear */
  const char *const *targets;
  size_t n_targets;
  uint32_t r;     /* rank, at least 1 */
  double alpha;   /* above 0 */
  double dropout; /* probability in training, from 0 to below 1 */
  bool rslora;    /* the outputs of adapters are scaled by alpha / sqrt(r), not alpha / r */
} cleave_lora;

/* A parameter that two modules share, as a decoder and an embedding share a table. It has one set
 * of values, under the owner's name, one set of moments, and one gradient, the sum of the gradients
 * of both modules. Both modules are on one device of one node, and a context with a backward calls
 * both. Neither may step inside a context (cleave_step_at). The owner is not freed while another
 * module is tied to it, even if it is released. */
typedef struct cleave_tie {
  /* a parameter of the module that is loaded; it must be the first parameter of its layer */
  const char *weight;
  struct cleave_module *of; /* module that owns the values */
  const char *of_weight;    /* the parameter's name in `of`, of equal shape */
} cleave_tie;

typedef struct cleave_input {
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK]; /* shape[0]: batch, as for cleave_graph_input */
} cleave_input;
/* Initialiser of a cleave_input. Shape [32, 16]: cleave_input in = CLEAVE_INPUT(CLEAVE_F32, 32,
 * 16); */
#define CLEAVE_INPUT(dtype, ...) \
  { (dtype), CLEAVE_SHAPE_(__VA_ARGS__) }

/* Loads a chain of layers in the syntax of a session file: "[{op: linear, out: 8}, {op: relu}]".
 * Parameters are named after the layer's number ("0.weight") or its `name`. The module is sent to
 * its node by its first use, which returns the error if the node refuses it. CLEAVE_EXHAUSTED: the
 * runtime has 255 modules. The function waits only if all indexes are taken and some modules are
 * being unloaded. */
CLEAVE_API cleave_status cleave_load_layers(cleave_runtime *runtime,
                                            const cleave_module_options *options,
                                            const char *layers, const cleave_input *input,
                                            cleave_module **ret_module,
                                            cleave_error *error) CLEAVE_RESULT;

/* Loads a graph that was built node by node. A graph with n outputs, n > 1, takes n + 1 of the
 * runtime's 255 modules: one more for each output, at the same node, called NAME.output0 and so on
 * in the node's status. They have no parameters and are released with the module. */
CLEAVE_API cleave_status cleave_load_graph(cleave_runtime *runtime,
                                           const cleave_module_options *options,
                                           const cleave_graph *graph, cleave_module **ret_module,
                                           cleave_error *error) CLEAVE_RESULT;

/* Loads a named architecture, as `model:` of a session file. arch: such as "mlp". attributes: such
 * as "{hidden: [8], classes: 1}"; NULL: none. options->layers: the part of the architecture to
 * load. input: the input of the whole architecture, whichever part is loaded. */
CLEAVE_API cleave_status cleave_load_architecture(cleave_runtime *runtime,
                                                  const cleave_module_options *options,
                                                  const char *arch, const char *attributes,
                                                  const cleave_input *input,
                                                  cleave_module **ret_module,
                                                  cleave_error *error) CLEAVE_RESULT;

/* Loads a model that FOLDER/config.json of Hugging Face describes (bert, roberta, xlm-roberta,
 * camembert, layoutlm, distilbert, vit, gpt2, llama, mistral, qwen2, qwen3, phi3), with the
 * parameter names of its weight files. layers: the part of it to load, such as
 * "embeddings..encoder.layer.3", as in a session file; NULL: options->layers, and if that is NULL
 * too, all. head: "sequence", "token", "masked" or "causal", the layers behind the last block;
 * NULL: "none". input is that of the whole model: i64 [N, S] token numbers, or f32 [N, channels,
 * height, width]; no position is padding. Only the config is read: give weights or an artifact in
 * the options, else the values are drawn. CLEAVE_INVALID: there is no such file; it is wrong or has
 * a key that is neither known nor in options->ignore_keys, and the message has the place; the
 * family has no such head, or needs boxes as well (layoutlm). */
CLEAVE_API cleave_status cleave_load_hf(cleave_runtime *runtime,
                                        const cleave_module_options *options, const char *folder,
                                        const char *layers, const char *head,
                                        const cleave_input *input, cleave_module **ret_module,
                                        cleave_error *error) CLEAVE_RESULT;

/* Loads a loss; the manual page cleave-ops(7) lists the kinds. Its inputs are the prediction, of
 * the shape given, and the target: [N] i64 classes for a loss over classes, else f32 of the
 * prediction's shape. Its value is the mean, a scalar. */
CLEAVE_API cleave_status cleave_load_loss(cleave_runtime *runtime,
                                          const cleave_module_options *options, const char *kind,
                                          const cleave_input *prediction,
                                          cleave_module **ret_module,
                                          cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Loads the module at its node now rather than with its first call, so that errors of the
 * node appear early. input_grads: a backward will need gradients of the module's first input, so
 * the node prepares for them. */
CLEAVE_API cleave_status cleave_module_place(cleave_runtime *runtime, cleave_module *module,
                                             bool input_grads, uint64_t deadline_ms,
                                             cleave_error *error) CLEAVE_RESULT;
/* As cleave_module_place, but returns a future. A call that is made meanwhile waits for the module;
 * a call after the future is done returns at once. A separate thread loads the module and cannot be
 * stopped: cleave_future_cancel drops the result, and cleave_close waits for the thread. */
CLEAVE_API cleave_status cleave_module_place_async(cleave_runtime *runtime, cleave_module *module,
                                                   bool input_grads, uint64_t deadline_ms,
                                                   cleave_future *ret_future,
                                                   cleave_error *error) CLEAVE_RESULT;

/* Releases the handle, which must not be used any more; the name may be used again. The module
 * stays for open contexts that have used it, and until its optimiser is released. Then its node
 * unloads it and frees its memory; no function waits for that. Its index, one of 255, is free when
 * the node has answered. No other function may be working on the module. NULL is allowed. */
CLEAVE_API cleave_status cleave_module_release(cleave_runtime *runtime, cleave_module *module,
                                               cleave_error *error);

/* Number of outputs of the module: 1, unless cleave_graph_output has named more. NULL: 0. */
CLEAVE_API size_t cleave_output_count(const cleave_module *module);

CLEAVE_API const char *cleave_module_name(const cleave_module *module);
CLEAVE_API const char *cleave_module_node(const cleave_module *module);   /* such as "w1" */
CLEAVE_API const char *cleave_module_device(const cleave_module *module); /* such as "cpu" */
/* Name of parameter or buffer `index`; NULL: no such index. */
CLEAVE_API const char *cleave_module_weight_name(const cleave_module *module, size_t index);

/* Description of a parameter or buffer. */
typedef struct cleave_parameter {
  size_t size;      /* sizeof(cleave_parameter), set by the caller */
  const char *name; /* valid as long as the module */
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK];
  bool learns; /* a parameter that is not frozen */
  bool buffer; /* a buffer, such as running statistics, not a parameter */
  /* Optimiser that steps the parameter, in group `group` of cleave_optimizer_new; NULL: none. Must
   * not be used after the program has released the optimiser. */
  const struct cleave_optimizer *optimizer;
  size_t group;
} cleave_parameter;

/* Number of parameters and buffers, in the order of cleave_module_weight_name. NULL: 0. */
CLEAVE_API size_t cleave_parameter_count(const cleave_module *module);
/* Describes parameter or buffer `index`. CLEAVE_RANGE: no such index. */
CLEAVE_API cleave_status cleave_parameter_info(const cleave_module *module, size_t index,
                                               cleave_parameter *ret_parameter,
                                               cleave_error *error) CLEAVE_RESULT;

/* torch's requires_grad_(False) and requires_grad_(True). Frozen parameters, given by name or glob
 * as in cleave_module_options.frozen, get no gradients from the next call on. No step changes them,
 * not even by weight decay or momentum, and they do not count in the norm; their moments stay as
 * they are, and continue after cleave_parameter_thaw. The step counter, from which Adam, AdamW and
 * Adamax correct their averages, belongs to the module: it counts steps of the other parameters
 * meanwhile. A parameter that was frozen when its optimiser was made is in no group: after thawing
 * it gets gradients, but no step until another optimiser is made.
 *
 * The next use of the module unloads it with all its state, loads it again and BLOCKS for that; no
 * bit of its state changes. If that use fails in between, the next use continues. Versions in
 * events (cleave_event.version) start again.
 *
 * BLOCKS while contexts that have called the module are being closed. CLEAVE_PRECONDITION: such a
 * context is open; the message names it. CLEAVE_NOT_FOUND: no parameter has such a name, and
 * nothing is changed. CLEAVE_EXHAUSTED: thawed parameters would be in no group, and the module is
 * in 16 groups already. */
CLEAVE_API cleave_status cleave_parameter_freeze(cleave_runtime *runtime, cleave_module *module,
                                                 const char *const *names, size_t n,
                                                 uint64_t deadline_ms,
                                                 cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_parameter_thaw(cleave_runtime *runtime, cleave_module *module,
                                               const char *const *names, size_t n,
                                               uint64_t deadline_ms,
                                               cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Copies a parameter or buffer out, with all steps that were taken before. */
CLEAVE_API cleave_status cleave_weight_read(cleave_runtime *runtime, cleave_module *module,
                                            const char *name, uint64_t deadline_ms,
                                            cleave_tensor *ret_tensor,
                                            cleave_error *error) CLEAVE_RESULT;
/* As cleave_weight_read, but returns a future. The result includes steps that are decided, even if
 * nodes have not answered them. */
CLEAVE_API cleave_status cleave_weight_read_async(cleave_runtime *runtime, cleave_module *module,
                                                  const char *name, uint64_t deadline_ms,
                                                  cleave_future *ret_future,
                                                  cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until the node has the new value. Replaces a parameter or buffer by a tensor of the same
 * dtype and shape. Before a matrix leaves for a worker, its digest is written to the host's ledger,
 * which takes a write to the disk each time. CLEAVE_PRECONDITION: the ledger is full or cannot be
 * written. */
CLEAVE_API cleave_status cleave_weight_write(cleave_runtime *runtime, cleave_module *module,
                                             const char *name, const cleave_tensor *tensor,
                                             uint64_t deadline_ms,
                                             cleave_error *error) CLEAVE_RESULT;
/* As cleave_weight_write, but returns a future. The tensor is copied at once. */
CLEAVE_API cleave_status cleave_weight_write_async(cleave_runtime *runtime, cleave_module *module,
                                                   const char *name, const cleave_tensor *tensor,
                                                   uint64_t deadline_ms, cleave_future *ret_future,
                                                   cleave_error *error) CLEAVE_RESULT;

/* Kind of state: a module's state_dict, or the state of its optimiser. Optimiser state has for each
 * parameter, in a group or not, the moments that any group of the module has, under names such as
 * "0.weight.exp_avg" (zeros if the parameter was never stepped), and the scalar "step" (i64). */
typedef enum cleave_state_kind {
  CLEAVE_STATE_WEIGHTS = 1,
  CLEAVE_STATE_OPTIMIZER = 2,
} cleave_state_kind;

typedef struct cleave_state {
  cleave_named_tensor *items; /* [n] items, which own their memory */
  size_t n;
} cleave_state;

/* Returns the number of items of a kind: parameters and buffers, or moments and the step counter (0
 * without an optimiser). */
CLEAVE_API size_t cleave_state_count(const cleave_module *module, cleave_state_kind kind);

/* BLOCKS. Copies all items of a kind out, with all steps that were taken before. Without an
 * optimiser there are 0 items of optimiser state. Frozen parameters of a worker's artifact are left
 * out, unless its worker.yaml makes them readable. The caller frees the result with
 * cleave_state_free. */
CLEAVE_API cleave_status cleave_state_read(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, uint64_t deadline_ms,
                                           cleave_state *ret_state,
                                           cleave_error *error) CLEAVE_RESULT;
/* As cleave_weight_read_async, but reads all items of a kind. cleave_future_state returns the
 * result. */
CLEAVE_API cleave_status cleave_state_read_async(cleave_runtime *runtime, cleave_module *module,
                                                 cleave_state_kind kind, uint64_t deadline_ms,
                                                 cleave_future *ret_future,
                                                 cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until the node has the items. Writes items of a module's state, each with a name that
 * cleave_state_read returns and with the dtype and shape of that item. Some items may be left out:
 * they stay as they are, and num_batches_tracked of a new batchnorm stays 0, as in PyTorch. */
CLEAVE_API cleave_status cleave_state_write(cleave_runtime *runtime, cleave_module *module,
                                            cleave_state_kind kind,
                                            const cleave_named_tensor *items, size_t n,
                                            uint64_t deadline_ms,
                                            cleave_error *error) CLEAVE_RESULT;
/* As cleave_state_write, but returns a future. The items are copied at once; n is at least 1. */
CLEAVE_API cleave_status cleave_state_write_async(cleave_runtime *runtime, cleave_module *module,
                                                  cleave_state_kind kind,
                                                  const cleave_named_tensor *items, size_t n,
                                                  uint64_t deadline_ms, cleave_future *ret_future,
                                                  cleave_error *error) CLEAVE_RESULT;
CLEAVE_API void cleave_state_free(cleave_state *state); /* frees the items and zeroes *state */

/* BLOCKS. Writes all items of a kind to a safetensors file on this machine, under the names of
 * cleave_state_read; safetensors.torch.load_file reads weights as a state_dict. The file is written
 * as PATH.tmp, made durable, then renamed, so an older file stays until the new one is complete.
 * CLEAVE_PRECONDITION: it cannot be written. A module without state, or without an optimiser, gives
 * a file without tensors. */
CLEAVE_API cleave_status cleave_state_save(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, const char *path,
                                           uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Reads a file of cleave_state_save, as load_state_dict with `strict`: it must have all
 * names of the kind and no other, except that num_batches_tracked may be missing and is then 0.
 * Nothing is written to the module before the whole file was checked. CLEAVE_NOT_FOUND: no such
 * file; CLEAVE_INVALID: names are missing or unknown (the message lists the first few), or a tensor
 * has another dtype or shape; CLEAVE_DATA_LOSS: the file is truncated or damaged. For weights on a
 * worker's disk see cleave_module_options.artifact. */
CLEAVE_API cleave_status cleave_state_load(cleave_runtime *runtime, cleave_module *module,
                                           cleave_state_kind kind, const char *path,
                                           uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;

/* A state file, as its worker reports it. Set size before the call. */
typedef struct cleave_state_file {
  size_t size; /* sizeof(cleave_state_file) */
  uint64_t bytes;
  char sha256[65]; /* SHA-256 of the file in hexadecimal, with a final zero */
} cleave_state_file;

/* BLOCKS. As cleave_state_save, but the module's worker writes the file into its state_dir, and no
 * values are sent. `name`: 1..128 of [A-Za-z0-9._-], no leading dot, never a path (CLEAVE_INVALID).
 * The file belongs to the identity of this session's certificate: no other identity can read,
 * replace or remove it, and the same name of another identity is another file. It stays after the
 * session and the worker process have ended, until it is removed. A file of that name is replaced
 * when the new one is complete. Its size counts against allow[].state_bytes of worker.yaml, which
 * is 0 unless given; over that the result is CLEAVE_EXHAUSTED, and nothing has changed.
 * CLEAVE_UNIMPLEMENTED: the worker has no state_dir, or its version is too old; CLEAVE_INVALID: the
 * module is at the master. Earlier calls and steps are waited for. Later ones are not delayed,
 * because the worker writes a copy. A session that ends drops files that are not complete. ret_file
 * may be NULL. */
CLEAVE_API cleave_status cleave_state_save_at_worker(cleave_runtime *runtime, cleave_module *module,
                                                     cleave_state_kind kind, const char *name,
                                                     uint64_t deadline_ms,
                                                     cleave_state_file *ret_file,
                                                     cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Loads a file of cleave_state_save_at_worker, as strictly as cleave_state_load: the file
 * must have every tensor of the module's state. It may have been saved in an earlier session, or
 * from another module whose state has the same names and shapes.
 * CLEAVE_NOT_FOUND: this identity has no such file at the worker. *ret_file (may be NULL) is the
 * file as it was read: compare sha256 with that of the save to know that it is the same file. */
CLEAVE_API cleave_status cleave_state_load_at_worker(cleave_runtime *runtime, cleave_module *module,
                                                     cleave_state_kind kind, const char *name,
                                                     uint64_t deadline_ms,
                                                     cleave_state_file *ret_file,
                                                     cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Removes a file that cleave_state_save_at_worker has written. The module only names the
 * worker; the file may hold any state. CLEAVE_NOT_FOUND: no such file. */
CLEAVE_API cleave_status cleave_state_remove_at_worker(cleave_runtime *runtime,
                                                       cleave_module *module, const char *name,
                                                       uint64_t deadline_ms,
                                                       cleave_error *error) CLEAVE_RESULT;
/* As the three functions above, but return a future. cleave_future_state_file returns the worker's
 * report. */
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

/* BLOCKS until the node has the module. Loads a module again that was lost with its worker, after
 * cleave_worker_rejoin, with these weights and this optimiser state, as cleave_state_read returned
 * them: all items or some. Handle, name and optimiser stay the same, and late frames for the lost
 * module do not reach it. For NULL, and for items that are left out: the weights that the module
 * began with, drawn or from its artifact, and moments and steps of 0. A module that was loaded with
 * weights needs weights (CLEAVE_INVALID), because this process does not keep them. After a failure
 * the module is still lost. CLEAVE_PRECONDITION: it was not lost; CLEAVE_UNAVAILABLE: its worker is
 * still lost, or lost again. */
CLEAVE_API cleave_status cleave_module_reload(cleave_runtime *runtime, cleave_module *module,
                                              const cleave_state *weights,
                                              const cleave_state *optimizer, uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;
/* As cleave_module_reload, but returns a future, like cleave_module_place_async. The state is
 * copied at once. */
CLEAVE_API cleave_status cleave_module_reload_async(cleave_runtime *runtime, cleave_module *module,
                                                    const cleave_state *weights,
                                                    const cleave_state *optimizer,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* ---- tensor parallelism ---------------------------------------------------------------------- */

/* A chain of layers, some of which are divided over several nodes (Shoeybi et al., Megatron-LM,
 * 2019, section 3). A segment is a sequence of consecutive layers that are all divided or all
 * undivided. The chain has one module at every node for each divided segment, and one module at the
 * node `at` for each undivided segment. A linear layer says how it is divided:
 *
 *   parallel: columns   node k has out / n of the outputs, with their weights and biases; the input
 *                       x is sent to all nodes. The outputs stay at their nodes in the layers that
 *                       follow, if these have no parameters and compute each number separately
 *                       (relu, gelu, scale, ...), up to a layer with
 *   parallel: rows      node k reads in / n of the inputs: those that it has computed, or its part
 *                       of x. Node 0 adds the bias.
 *
 * After `rows`, node `at` computes the sum ((y_0 + y_1) + y_2) + ..., in the order of the nodes.
 * After `columns` without `rows`, node `at` concatenates the values. All other layers are computed
 * undivided at `at`. Calls are ordinary calls: the backward pass is distributed over the same
 * nodes, and the bits of the results do not depend on which nodes these are. The results differ
 * from those of the undivided layers by the rounding of the sum. */
typedef struct cleave_parallel cleave_parallel;

typedef struct cleave_parallel_options {
  size_t size; /* sizeof(cleave_parallel_options) */
  /* name of the chain, at most 100 bytes; its modules are named NAME.0, NAME.1.0, ...: by the
   * number of the segment and, if the segment is divided, of the part */
  const char *name;
  const char *at; /* node of the undivided layers; NULL: "master" */
  /* [n_nodes] nodes of the parts, 2 to 8; a node may have several parts */
  const char *const *nodes;
  size_t n_nodes;
  /* as in cleave_module_options; so are the fields below */
  uint32_t threads, in_flight, first_layer;
  /* initial values are those of the undivided layers: this process draws them and writes them to
   * the nodes, as CLEAVE_SENDING_WEIGHTS; no node gets the key of a divided layer */
  uint64_t seed;
  const char *const *frozen; /* [n_frozen] names or globs of frozen parameters */
  size_t n_frozen;
} cleave_parallel_options;

/* Loads a chain of layers with divided layers. layers: as for cleave_load_layers. CLEAVE_INVALID
 * with a place in the text: a divided layer is not linear, or the number of nodes does not divide
 * its extent. CLEAVE_INVALID without a place: no layer is divided, or there are fewer than two
 * nodes. */
CLEAVE_API cleave_status cleave_parallel_load(cleave_runtime *runtime,
                                              const cleave_parallel_options *options,
                                              const char *layers, const cleave_input *input,
                                              cleave_parallel **ret_parallel,
                                              cleave_error *error) CLEAVE_RESULT;

/* As cleave_call of the undivided module. Makes one call of each module of the chain. */
CLEAVE_API cleave_status cleave_parallel_call(cleave_runtime *runtime, cleave_context context,
                                              cleave_parallel *parallel, cleave_reference input,
                                              cleave_reference *ret_reference,
                                              cleave_error *error) CLEAVE_RESULT;

/* Modules 0..n-1 of the chain, in its order; NULL: no such index. For optimisers, and to see which
 * node has which parameters (cleave_module_node, cleave_module_weight_name). */
CLEAVE_API cleave_module *cleave_parallel_module(const cleave_parallel *parallel, size_t index);

/* Describes how the chain is divided, in a line for each module: "mlp.0.1 at w2: 256 bytes:
 * w1.weight [4, 16] of [8, 16]". Writes at most size bytes, including the final zero, and returns
 * the length of the whole text. */
CLEAVE_API size_t cleave_parallel_text(const cleave_parallel *parallel, char *ret_text,
                                       size_t size);

/* BLOCKS. Reads the state of the undivided module, under its names and in its shapes: divided
 * tensors are joined. cleave_state_write loads it into an undivided module,
 * cleave_parallel_state_write into a chain over other nodes. */
CLEAVE_API cleave_status cleave_parallel_state_read(cleave_runtime *runtime,
                                                    cleave_parallel *parallel,
                                                    cleave_state_kind kind, uint64_t deadline_ms,
                                                    cleave_state *ret_state,
                                                    cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Writes items with the names and shapes of the undivided module; each node gets its part.
 * CLEAVE_NOT_FOUND: no such name; CLEAVE_INVALID: another shape. Nothing is written then. */
CLEAVE_API cleave_status cleave_parallel_state_write(cleave_runtime *runtime,
                                                     cleave_parallel *parallel,
                                                     cleave_state_kind kind,
                                                     const cleave_named_tensor *items, size_t n,
                                                     uint64_t deadline_ms,
                                                     cleave_error *error) CLEAVE_RESULT;

/* Releases the chain and its modules. NULL is allowed. */
CLEAVE_API cleave_status cleave_parallel_release(cleave_runtime *runtime, cleave_parallel *parallel,
                                                 cleave_error *error);

/* ---- contexts -------------------------------------------------------------------------------- */

typedef struct cleave_context_options {
  size_t size;      /* sizeof(cleave_context_options) */
  const char *name; /* name of the context in cleave_leaks; NULL: its number */
  bool evaluation;  /* no backward: dropout drops nothing, batchnorm uses running statistics */
  /* RNG position: dropout masks depend on the module's seed, this number, and the number of earlier
   * calls of the module in the context. 0: the context's number. */
  uint64_t step;
  bool events; /* nodes record events, for cleave_options.on_event */
} cleave_context_options;

/* Opens a context. Any number may be open at once. Nothing is sent: a node learns of a context with
 * its first call. options NULL: the defaults. */
CLEAVE_API cleave_status cleave_context_open(cleave_runtime *runtime,
                                             const cleave_context_options *options,
                                             cleave_context *ret_context,
                                             cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until every node has freed what it held for the context. References of the context are
 * released. Its unfinished futures end with CLEAVE_CANCELLED, or with the error of the context.
 * Values that the program keeps (cleave_keep) are not released, and the function first waits until
 * their owners have answered. Nodes still compute the calls on which such a value depends, and the
 * function does not wait for these. All other calls and backward passes in progress are cancelled.
 * The function also waits for a pending step, and returns the error of the step if it was
 * reverted. */
CLEAVE_API cleave_status cleave_context_close(cleave_runtime *runtime, cleave_context context,
                                              uint64_t deadline_ms,
                                              cleave_error *error) CLEAVE_RESULT;

/* As cleave_context_close, but returns a future. Unlike other futures it does not end with its
 * context: when it is done, the context is closed. Until the owners of kept values and a pending
 * step have answered, the context stays usable, and cancelling the future leaves it open. */
CLEAVE_API cleave_status cleave_context_close_async(cleave_runtime *runtime, cleave_context context,
                                                    uint64_t deadline_ms, cleave_future *ret_future,
                                                    cleave_error *error) CLEAVE_RESULT;

/* As cleave_context_close, but waits only for the owners of kept values (cleave_keep): nodes free
 * what they hold when they receive the end. If a final step of the context fails, this function
 * returns the error. If the failure is known only later, the next cleave_context_open,
 * cleave_context_end, cleave_step, read of state or cleave_close returns it, once.
 * CLEAVE_PRECONDITION: a function waits in the context, or a step that is not final was taken in it
 * and some node has not answered, so it may still be reverted. Use cleave_context_close then, which
 * waits for the answers. */
CLEAVE_API cleave_status cleave_context_end(cleave_runtime *runtime, cleave_context context,
                                            cleave_error *error) CLEAVE_RESULT;

/* ---- references and calls -------------------------------------------------------------------- */

/* Makes a value of the program usable in the context. requires_grad (f32 and bf16 only): backward
 * keeps its gradient, which has the dtype of the leaf. A bf16 leaf is sent as bf16; a module takes
 * it for an f32 input and computes with it as f32. A call with a bf16 leaf returns
 * CLEAVE_UNIMPLEMENTED if the module's worker is too old for that. */
CLEAVE_API cleave_status cleave_leaf(cleave_runtime *runtime, cleave_context context,
                                     const cleave_tensor *tensor, bool requires_grad,
                                     cleave_reference *ret_reference,
                                     cleave_error *error) CLEAVE_RESULT;

/* Calls a module on n_inputs inputs, in the order of its graph's inputs. Returns at once, before
 * anything has been computed; functions that use the value return an error of the call. Inputs are
 * sent from the nodes that have them to the module's node, through the program only if they are its
 * own. The first call of a module loads it at its node and waits for that. A call uses the weights
 * of the moment at which it was made, even if a step or cleave_weight_write follows while its
 * inputs are still in flight. */
CLEAVE_API cleave_status cleave_call(cleave_runtime *runtime, cleave_context context,
                                     cleave_module *module, const cleave_reference *inputs,
                                     size_t n_inputs, cleave_reference *ret_reference,
                                     cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_call_options {
  size_t size; /* sizeof(cleave_call_options) */
  /* Value of an earlier call of the context at the same node. The node runs the new call only after
   * the backward of the earlier one. This limits how many calls hold tensors for their backward, as
   * the window of a pipeline does. id 0: no condition. An earlier call that will have no backward
   * is refused. Until that backward, a module with running statistics runs no later call, not even
   * a call of another context or an evaluation; and steps of other contexts, and reads and writes
   * of weights, are refused. */
  cleave_reference after;
  /* Node ("master", "w1") that will need the value. The value is sent to that node without a
   * request, which saves a message. NULL: it is sent when a node requests it. */
  const char *send_to;
  /* Sends the value to the program as soon as it is computed, for cleave_to_here. With send_to,
   * only if that is "master". */
  bool to_program;
  /* Positions in a schedule: of the call, of its backward, and of the computation of its
   * parameters' gradients, if that is to be separate (0: together with the backward). At one node
   * the work of the context that has a position runs in the order of the positions, from 1 and
   * without a gap, each when its inputs have arrived. 0: no order. Positions of calls must ascend
   * and be at most 1,048,576 (CLEAVE_INVALID). The positions of the backwards of a module's calls
   * must be in the order of the roots, and so must those of its parameters' gradients; with another
   * order the context stalls or fails. A missing position blocks the later positions of the node
   * until the context ends. */
  uint32_t position, backward_position, weight_position;
  /* Uses the weights that the module had before its last step inside this context (cleave_step_at
   * with keep). Without such a step: the present weights. */
  bool old_weights;
  /* Keeps only the inputs and runs the forward again before the backward: less memory, more time,
   * and the same bits. Running statistics are updated once. */
  bool recompute;
  /* dtype in which the program gets the value (cleave_to_here, cleave_wait); 0 and CLEAVE_F32: the
   * value's own. CLEAVE_BF16: a worker sends the value rounded, in half the bytes. Modules at
   * workers get the unrounded value. A module at the master would compute with the rounded copy, so
   * a call of it refuses a worker's value as an input (CLEAVE_INVALID). */
  cleave_dtype fetch_dtype;
} cleave_call_options;

/* As cleave_call, with options. options NULL: none. */
CLEAVE_API cleave_status cleave_call_with(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const cleave_reference *inputs,
                                          size_t n_inputs, const cleave_call_options *options,
                                          cleave_reference *ret_reference,
                                          cleave_error *error) CLEAVE_RESULT;

/* As cleave_call_with, for a module with n_outputs outputs: makes one call, and returns a reference
 * for each output, in the order of cleave_graph_output. Each is a value of its own: an input of
 * further calls, a root of a backward, to be kept, released or forgotten. An output that no root of
 * a backward depends on counts as one whose gradient is zero. The call's saved tensors are freed
 * when all its outputs are forgotten. options NULL: none. Options: positions, old_weights and
 * recompute are those of the call; send_to, to_program and fetch_dtype are for each output; `after`
 * may name any output of an earlier call. CLEAVE_INVALID: the module has another number of
 * outputs. */
CLEAVE_API cleave_status cleave_call_outputs(cleave_runtime *runtime, cleave_context context,
                                             cleave_module *module, const cleave_reference *inputs,
                                             size_t n_inputs, const cleave_call_options *options,
                                             cleave_reference *ret_references, size_t n_outputs,
                                             cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Combines cleave_call and cleave_to_here. ret_reference NULL: the value cannot be used in
 * further calls. */
CLEAVE_API cleave_status cleave_rpc_sync(cleave_runtime *runtime, cleave_context context,
                                         cleave_module *module, const cleave_reference *inputs,
                                         size_t n_inputs, uint64_t deadline_ms,
                                         cleave_reference *ret_reference, cleave_tensor *ret_tensor,
                                         cleave_error *error) CLEAVE_RESULT;

/* As cleave_rpc_sync, without waiting: the value is sent to the program when it is computed.
 * ret_reference may be NULL, as in cleave_rpc_sync. */
CLEAVE_API cleave_status cleave_rpc_async(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const cleave_reference *inputs,
                                          size_t n_inputs, cleave_reference *ret_reference,
                                          cleave_future *ret_future,
                                          cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until the tensor of a future has arrived. The future must be that of a call, a fetch, or
 * cleave_weight_read_async; any other is CLEAVE_INVALID. Releases the future on success. After
 * CLEAVE_DEADLINE the caller may wait for it again. */
CLEAVE_API cleave_status cleave_wait(cleave_runtime *runtime, cleave_future future,
                                     uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                     cleave_error *error) CLEAVE_RESULT;

/* ---- futures --------------------------------------------------------------------------------- *
 *
 * A future is *done* when its result is known: success, or an error. It and its result stay until
 * it is released, even after its context has ended. A function that returns a future takes the
 * arguments of its blocking form. After deadline_ms the future ends with CLEAVE_DEADLINE. Errors
 * that are known at once are returned by the function itself, and there is no future. The first use
 * of a module loads it at its node and waits for that, as in cleave_call. To avoid that wait, load
 * it with cleave_module_place_async first.
 *
 * A thread of the runtime advances operations. This thread starts when the program gets its first
 * future of an operation other than a call. With cleave_options.single_thread operations advance
 * while a function waits for a future, or blocks and has an asynchronous form, and in
 * cleave_future_poll.
 *
 * Backwards, steps, and reads and writes of gradients wait for earlier backwards, steps and writes
 * of gradients of their context. Calls do not wait, and use the weights from before the step. */

/* Returns at once whether the future is done. With single_thread, modules at the master compute
 * what they can meanwhile. */
CLEAVE_API cleave_status cleave_future_poll(cleave_runtime *runtime, cleave_future future,
                                            bool *ret_ready, cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until the future is done; returns its result: CLEAVE_OK, or the error with which it ended.
 * Several threads may call the function, also when the future is done. A CLEAVE_DEADLINE of this
 * function itself changes nothing: cleave_future_poll then says that the future is not ready, and
 * cleave_future_wait_for does not return it at all. */
CLEAVE_API cleave_status cleave_future_wait(cleave_runtime *runtime, cleave_future future,
                                            uint64_t deadline_ms,
                                            cleave_error *error) CLEAVE_RESULT;

/* BLOCKS, at most wait_ms milliseconds. As cleave_future_wait, but the end of wait_ms is no error:
 * the function then returns CLEAVE_OK, and *ret_ready is false. So CLEAVE_DEADLINE is always that
 * of the operation itself. wait_ms 0: does not wait. */
CLEAVE_API cleave_status cleave_future_wait_for(cleave_runtime *runtime, cleave_future future,
                                                uint64_t wait_ms, bool *ret_ready,
                                                cleave_error *error) CLEAVE_RESULT;

/* BLOCKS until one of futures, [n], is done, successfully or not. *ret_index: the first in the list
 * that is done. Futures with id 0 are skipped, so a program sets those that it has handled to 0.
 * CLEAVE_INVALID: none is left. */
CLEAVE_API cleave_status cleave_wait_any(cleave_runtime *runtime, const cleave_future *futures,
                                         size_t n, uint64_t deadline_ms, size_t *ret_index,
                                         cleave_error *error) CLEAVE_RESULT;

/* Registers a callback of a future. The callback is called exactly once, however the future ends,
 * and soon if the future is done already. Several callbacks are called in the order of their
 * registration; cleave_future_release does not remove them. *error is how the future ended,
 * CLEAVE_OK for success, valid during the call. The runtime's thread of futures calls it, never
 * this function. With single_thread, a function that waits for a future or polls calls it before it
 * returns. Callbacks run one at a time and without a lock: they may call every function that does
 * not block, and begin further operations. cleave_close in a callback is CLEAVE_PRECONDITION.
 * cleave_close calls the callbacks of futures that are not done. */
CLEAVE_API cleave_status cleave_future_then(cleave_runtime *runtime, cleave_future future,
                                            void (*function)(void *user, cleave_future future,
                                                             const cleave_error *error),
                                            void *user, cleave_error *error) CLEAVE_RESULT;

/* Cancels a future: it ends with CLEAVE_CANCELLED, and its callbacks are called. A future that is
 * done stays as it is. An operation that has sent nothing is withdrawn: a backward or step that
 * waits for an earlier one, a read that waits for a step, a close that waits. A step that waits for
 * votes, because gradients were written, is withdrawn, too. Any other operation that was
 * sent continues at the nodes, and its result is dropped: a backward still adds its gradients, and
 * later backwards and steps wait for it. The context stays open. */
CLEAVE_API cleave_status cleave_future_cancel(cleave_runtime *runtime, cleave_future future,
                                              cleave_error *error);

/* Results of futures, copied out; they may be read repeatedly. CLEAVE_PRECONDITION: the future is
 * not done; CLEAVE_INVALID: a future of another kind; otherwise the error with which it ended.
 * cleave_future_tensor takes the futures that cleave_wait takes. */
CLEAVE_API cleave_status cleave_future_tensor(cleave_runtime *runtime, cleave_future future,
                                              cleave_tensor *ret_tensor,
                                              cleave_error *error) CLEAVE_RESULT;
struct cleave_step_result;
CLEAVE_API cleave_status cleave_future_step_result(cleave_runtime *runtime, cleave_future future,
                                                   struct cleave_step_result *ret,
                                                   cleave_error *error) CLEAVE_RESULT;
struct cleave_step_decision;
/* Copies the result of cleave_step_with_async: whether the step is applied, its norm and its
 * clipping factor. Set ret->size before the call. */
CLEAVE_API cleave_status cleave_future_step_decision(cleave_runtime *runtime, cleave_future future,
                                                     struct cleave_step_decision *ret,
                                                     cleave_error *error) CLEAVE_RESULT;
CLEAVE_API cleave_status cleave_future_state(cleave_runtime *runtime, cleave_future future,
                                             cleave_state *ret_state,
                                             cleave_error *error) CLEAVE_RESULT;
struct cleave_gradients;
CLEAVE_API cleave_status cleave_future_gradients(cleave_runtime *runtime, cleave_future future,
                                                 struct cleave_gradients *ret_gradients,
                                                 cleave_error *error) CLEAVE_RESULT;

/* Returns the worker's report on a state file. Set ret_file->size before the call. After a removal
 * the other fields are 0. */
CLEAVE_API cleave_status cleave_future_state_file(cleave_runtime *runtime, cleave_future future,
                                                  cleave_state_file *ret_file,
                                                  cleave_error *error) CLEAVE_RESULT;

/* Releases the handle. An unfinished operation continues, and only its callbacks report its end. */
CLEAVE_API cleave_status cleave_future_release(cleave_runtime *runtime, cleave_future future,
                                               cleave_error *error);

/* ---- fetching -------------------------------------------------------------------------------- */

/* BLOCKS. Copies a value to the program, from whichever node has it. */
CLEAVE_API cleave_status cleave_to_here(cleave_runtime *runtime, cleave_reference reference,
                                        uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                        cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_to_here_async(cleave_runtime *runtime, cleave_reference reference,
                                              uint64_t deadline_ms, cleave_future *ret_future,
                                              cleave_error *error) CLEAVE_RESULT;

/* As cleave_to_here, for a value that the master owns. CLEAVE_PRECONDITION: another node owns the
 * value; the message names the node. */
CLEAVE_API cleave_status cleave_local_value(cleave_runtime *runtime, cleave_reference reference,
                                            uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                            cleave_error *error) CLEAVE_RESULT;

/* Sends a copy of a value to a node ("master", "w1") before a module there requests it, so that a
 * module with local_only accepts it. Returns at once. */
CLEAVE_API cleave_status cleave_send_to(cleave_runtime *runtime, cleave_reference reference,
                                        const char *node, cleave_error *error) CLEAVE_RESULT;

/* Node and device of a value or gradient. The node's name is valid as long as the runtime, the
 * device's as long as the value or its module. */
typedef struct cleave_place {
  const char *node;   /* "master" or a worker's name */
  const char *device; /* such as "cpu" */
} cleave_place;

CLEAVE_API cleave_status cleave_owner(cleave_runtime *runtime, cleave_reference reference,
                                      cleave_place *ret_place, cleave_error *error) CLEAVE_RESULT;

/* Releases the handle. The value stays while its context needs it for backward. */
CLEAVE_API cleave_status cleave_reference_release(cleave_runtime *runtime,
                                                  cleave_reference reference, cleave_error *error);

/* Releases the handle of a call or leaf, and frees at once what only it needed: the value, and the
 * tensors that its node saved for the backward. Meant for forwards without a backward, whose values
 * and saved tensors would otherwise stay until the context ends. Returns at once.
 *
 * A value that an unforgotten call needs for its backward is freed when that call is forgotten too,
 * or has had its backward without retain. So are inputs whose handles were released
 * (cleave_reference_release). Nothing is freed while a backward of the context runs, or until the
 * owners of kept values have confirmed them: the end of the backward, or the next call of this
 * function, frees it then. A kept value, and what it is computed from, stay until the context ends.
 *
 * Later functions on the reference return CLEAVE_NOT_FOUND. CLEAVE_PRECONDITION: another call runs
 * after its backward (cleave_call_options.after). */
CLEAVE_API cleave_status cleave_call_forget(cleave_runtime *runtime, cleave_reference reference,
                                            cleave_error *error);

/* ---- references that outlive their context --------------------------------------------------- */

/* A value that its owner keeps until it is released, even after its context has ended: PyTorch's
 * RRef. */
typedef struct cleave_kept {
  uint64_t id; /* 0: none */
} cleave_kept;

/* Keeps a value beyond its context. Returns at once, even if the value is not computed yet. Closing
 * the context does not cancel the value: it is still computed, unless its call or context has
 * failed; the reference then holds the error. Every use and fetch returns this error. The value of
 * a call stays at the node of its module, a leaf stays in this process. If the owner cannot keep
 * the value (a quota), every later function on the reference but its release returns that error. A
 * node that is silent for limits.reference_lease of the session, this one included, counts as dead:
 * values kept for that node alone are freed, and its handles are CLEAVE_NOT_FOUND when it is back.
 * cleave_close ends every reference, and its workers free the values. CLEAVE_PRECONDITION: the
 * reference is that of cleave_kept_use, so the value is kept already, under the handle that was
 * used. */
CLEAVE_API cleave_status cleave_keep(cleave_runtime *runtime, cleave_reference reference,
                                     cleave_kept *ret_kept, cleave_error *error) CLEAVE_RESULT;

/* Makes a kept value a leaf of a context, without a gradient. When a module is called with it, the
 * owner sends it to the module's node, by their direct link or relayed by the master. */
CLEAVE_API cleave_status cleave_kept_use(cleave_runtime *runtime, cleave_context context,
                                         cleave_kept kept, cleave_reference *ret_reference,
                                         cleave_error *error) CLEAVE_RESULT;

/* BLOCKS. Copies the value, or returns the error that the reference holds. Each call fetches the
 * value from its owner again; no copy stays here. */
CLEAVE_API cleave_status cleave_kept_fetch(cleave_runtime *runtime, cleave_kept kept,
                                           uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                           cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_kept_fetch_async(cleave_runtime *runtime, cleave_kept kept,
                                                 uint64_t deadline_ms, cleave_future *ret_future,
                                                 cleave_error *error) CLEAVE_RESULT;

CLEAVE_API cleave_status cleave_kept_owner(cleave_runtime *runtime, cleave_kept kept,
                                           cleave_place *ret_place,
                                           cleave_error *error) CLEAVE_RESULT;
/* True if the owner has confirmed that it keeps the value, computed or not. */
CLEAVE_API cleave_status cleave_kept_confirmed(cleave_runtime *runtime, cleave_kept kept,
                                               bool *ret_confirmed,
                                               cleave_error *error) CLEAVE_RESULT;

/* Releases the handle. The value is freed when no context uses it any more. */
CLEAVE_API cleave_status cleave_kept_release(cleave_runtime *runtime, cleave_kept kept,
                                             cleave_error *error);

/* ---- backward -------------------------------------------------------------------------------- */

/* BLOCKS. Computes gradients of the sum of the roots (scalars, such as losses) with respect to
 * every parameter and every leaf that requires one, and adds them to the gradients of the context.
 * Only calls that a root depends on take part. retain: keeps the saved tensors for another
 * backward; without it a second backward over the same call is CLEAVE_PRECONDITION. A context runs
 * one backward at a time; a second one waits. */
CLEAVE_API cleave_status cleave_backward(cleave_runtime *runtime, cleave_context context,
                                         const cleave_reference *roots, size_t n_roots, bool retain,
                                         uint64_t deadline_ms, cleave_error *error) CLEAVE_RESULT;
/* Initial gradients of the roots. If all fields but `size` are 0, the gradient of each root is 1,
 * so each root must be a scalar. */
typedef struct cleave_backward_options {
  size_t size; /* sizeof(cleave_backward_options) */
  /* [n_roots] initial gradients of scalar roots, finite; NULL: 1 each. 0 is allowed only for a root
   * that has an entry in `gradients`. */
  const float *weights;
  /* [n_roots] initial gradients of the root's dtype and shape, as in torch.autograd.backward; or
   * NULL. The gradient of an f32 root may be bf16, which halves the bytes. Gradients are sent to
   * the owners of the roots. A zeroed entry means none: the root has its weight, or 1 if weights is
   * NULL. If a number is not finite no step is taken, as for any gradient. */
  const cleave_tensor *gradients;
  bool retain;          /* as in cleave_backward */
  uint64_t deadline_ms; /* 0: cleave_options.deadline_ms */
} cleave_backward_options;

/* BLOCKS. Computes gradients of the sum of the roots, each times its weight or its initial gradient
 * (torch.autograd.grad's grad_outputs), with respect to every parameter and every leaf that
 * requires one, and adds them to the gradients of the context. Contributions of the roots to a
 * parameter's gradient are added in the order of the roots. Each root is propagated as soon as its
 * value is known, without waiting for others: with one root per micro-batch this is a pipeline.
 * options may be NULL.
 *
 * CLEAVE_INVALID: a root is given twice; it is not a scalar and has no gradient; a gradient has
 * another dtype or shape; a root has a weight and a gradient. CLEAVE_PRECONDITION: no parameter or
 * leaf on which a root depends needs a gradient; a call has had its backward; or the parameters of
 * its module were stepped or written since the call, by this or another context, and its backward
 * reads them. The library checks this before it sends anything: see "Contexts that overlap" in
 * PROGRAMS.md. */
CLEAVE_API cleave_status cleave_backward_with(cleave_runtime *runtime, cleave_context context,
                                              const cleave_reference *roots, size_t n_roots,
                                              const cleave_backward_options *options,
                                              cleave_error *error) CLEAVE_RESULT;
/* As cleave_backward_with, but returns a future. The arguments are copied and checked at once. The
 * roots are checked when the backward begins, which may be after an earlier one. options NULL: the
 * defaults. */
CLEAVE_API cleave_status cleave_backward_async(cleave_runtime *runtime, cleave_context context,
                                               const cleave_reference *roots, size_t n_roots,
                                               const cleave_backward_options *options,
                                               cleave_future *ret_future,
                                               cleave_error *error) CLEAVE_RESULT;

/* BLOCKS, also until a running backward has ended. Copies the context's gradient of a parameter.
 * CLEAVE_NOT_FOUND: there is no such parameter, or it has no gradient (it is frozen, or no backward
 * reached it). */
CLEAVE_API cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context context,
                                         cleave_module *module, const char *name,
                                         uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                         cleave_error *error) CLEAVE_RESULT;
/* As cleave_gradient, but returns a future (cleave_future_tensor). The read waits for earlier
 * operations of the context. */
CLEAVE_API cleave_status cleave_gradient_async(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               uint64_t deadline_ms, cleave_future *ret_future,
                                               cleave_error *error) CLEAVE_RESULT;

/* Returns node and device of a parameter's gradient, as the node that owns it reports them. Errors
 * as for cleave_gradient. */
CLEAVE_API cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               uint64_t deadline_ms, cleave_place *ret_place,
                                               cleave_error *error) CLEAVE_RESULT;

/* Copies the gradient of a leaf with requires_grad, which is stored at the master.
 * CLEAVE_PRECONDITION: a backward of its context is running. */
CLEAVE_API cleave_status cleave_leaf_gradient(cleave_runtime *runtime, cleave_reference leaf,
                                              cleave_tensor *ret_tensor,
                                              cleave_error *error) CLEAVE_RESULT;
/* As cleave_leaf_gradient, and removes the gradient from the leaf on success: the next backward
 * starts from nothing, as after `x.grad = None`. So each of several backwards with retain gives its
 * own gradient, and not the sum. CLEAVE_NOT_FOUND: no backward has reached the leaf since its
 * gradient was last taken. */
CLEAVE_API cleave_status cleave_leaf_gradient_take(cleave_runtime *runtime, cleave_reference leaf,
                                                   cleave_tensor *ret_tensor,
                                                   cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_gradient_item {
  cleave_module *module; /* module of the parameter; NULL: the gradient is that of a leaf */
  const char *name;      /* name of the parameter; NULL: a leaf */
  cleave_reference leaf; /* the leaf; id 0: a parameter */
  cleave_tensor tensor;  /* the gradient; the tensor owns its memory */
} cleave_gradient_item;

typedef struct cleave_gradients {
  cleave_gradient_item *items; /* [n] gradients */
  size_t n;
} cleave_gradients;

/* BLOCKS for one round trip, and until a running backward has ended. Copies all gradients of the
 * context from all nodes: those of parameters in the order of loading and, within a module, of its
 * parameters; then those of unreleased leaves in the order in which they were made. Parameters and
 * leaves that no backward reached are left out. The caller frees the result with
 * cleave_gradients_free. */
CLEAVE_API cleave_status cleave_gradients_read(cleave_runtime *runtime, cleave_context context,
                                               uint64_t deadline_ms,
                                               cleave_gradients *ret_gradients,
                                               cleave_error *error) CLEAVE_RESULT;
/* As cleave_gradients_read, but returns a future (cleave_future_gradients), like
 * cleave_gradient_async. */
CLEAVE_API cleave_status cleave_gradients_read_async(cleave_runtime *runtime,
                                                     cleave_context context, uint64_t deadline_ms,
                                                     cleave_future *ret_future,
                                                     cleave_error *error) CLEAVE_RESULT;
/* frees the items and zeroes *gradients */
CLEAVE_API void cleave_gradients_free(cleave_gradients *gradients);

/* BLOCKS until the node has the new gradient, and until a running backward has ended. Replaces the
 * context's gradient of a parameter by one of the parameter's dtype and shape. Steps use it, and
 * later backwards add to it. The next cleave_step first asks the node again for the norms of its
 * gradients, so clipping and the decision include the new one. CLEAVE_NOT_FOUND: the context has no
 * gradient of the parameter, as for cleave_gradient; CLEAVE_PRECONDITION: the module has taken its
 * step in the context. */
CLEAVE_API cleave_status cleave_gradient_write(cleave_runtime *runtime, cleave_context context,
                                               cleave_module *module, const char *name,
                                               const cleave_tensor *tensor, uint64_t deadline_ms,
                                               cleave_error *error) CLEAVE_RESULT;
/* As cleave_gradient_write, but returns a future. The tensor is copied at once. Later steps and
 * backwards wait for the write. */
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
  CLEAVE_STEPS = 1,  /* lr * gamma^floor(t / step_size) */
  CLEAVE_COSINE = 2, /* falls to 0 at total_steps, along a cosine */
  CLEAVE_LINEAR = 3, /* falls linearly to 0 at total_steps */
} cleave_curve;

/* Learning-rate schedule. t counts the steps after a linear warm-up of warmup_steps (0: none). The
 * first rate of the warm-up is lr / warmup_steps, or 0 if from_zero is set, as in Hugging Face's
 * schedules. */
typedef struct cleave_schedule {
  cleave_curve curve;
  uint64_t warmup_steps, step_size, total_steps;
  double gamma;
  bool from_zero;
} cleave_schedule;

/* Parameters of some modules, with settings named as those of torch.optim. A field of 0 means 0,
 * not torch's default, with one exception: beta1, beta2 (0.9, 0.999), alpha (0.99) and eps (1e-8;
 * CLEAVE_ADAGRAD 1e-10) have torch's defaults if all of them that the kind reads are 0. */
typedef struct cleave_group {
  cleave_module *const *modules; /* [n_modules] modules of the parameters */
  size_t n_modules;
  /* [n_parameters], at least 1, names or globs ("*.bias") in these modules; NULL: all parameters.
   * Frozen parameters never join. A module without a matching parameter is not in the group.
   * CLEAVE_NOT_FOUND: a name or glob matches no trainable parameter of any of the modules. */
  const char *const *parameters;
  size_t n_parameters;
  cleave_optimizer_kind kind;
  double lr, momentum, weight_decay;
  bool nesterov;
  double beta1, beta2, eps;
  double alpha;  /* used by CLEAVE_RMSPROP */
  bool centered; /* used by CLEAVE_RMSPROP */
  /* used by CLEAVE_ADAGRAD; applied in addition to the schedule */
  double lr_decay;
  double initial_accumulator_value; /* used by CLEAVE_ADAGRAD */
  cleave_schedule schedule;
  /* Makes steps final: no node keeps a copy of what a step changes (parameters and moments), and
   * later calls do not wait for answers. If a node fails in a step, the other nodes have taken it.
   * Meant for programs that go back to a checkpoint after such a failure. All groups of an
   * optimiser have the same value. */
  CLEAVE_RENAMED_(bool, no_rollback, final);
} cleave_group;

/* One local optimiser per module, at the module's node. A module is in one optimiser at most
 * (CLEAVE_EXISTS). clip_norm: the largest norm over all gradients of all groups (torch's
 * clip_grad_norm_); 0 = no clipping.
 *
 * A module that has been called may join as well, if it is in no optimiser, or if the program has
 * released its optimiser. Its moments and its step counter then begin at 0, unless
 * cleave_state_write writes others. Its next use loads it again, as after cleave_parameter_freeze.
 * Contexts that have called it must be closed (CLEAVE_PRECONDITION names an open one); the function
 * waits for contexts that are being closed, at most the runtime's deadline. If the new optimiser is
 * refused, a module whose old optimiser was released may then be in none.
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
 * schedule are each group's own. A parameter is in one group at most (CLEAVE_EXISTS names it). A
 * trainable parameter in no group is not stepped and does not count in the norm; its gradients are
 * computed and can be read, and one that is not finite stops the step like any other. A module is
 * in at most 16 groups, 15 when some of its parameters are in none (CLEAVE_EXHAUSTED). */
CLEAVE_API cleave_status cleave_optimizer_new(cleave_runtime *runtime, const cleave_group *groups,
                                              size_t n_groups, double clip_norm,
                                              cleave_optimizer **ret_optimizer,
                                              cleave_error *error) CLEAVE_RESULT;
/* Releases the handle, which must not be used any more, and unloads its modules that have been
 * released. NULL is allowed. */
CLEAVE_API cleave_status cleave_optimizer_release(cleave_runtime *runtime,
                                                  cleave_optimizer *optimizer, cleave_error *error);

/* Sets the number of steps taken, to continue an earlier run: schedules count from there. The
 * moments are state of the modules (cleave_state_write). */
CLEAVE_API cleave_status cleave_optimizer_set_steps(cleave_runtime *runtime,
                                                    cleave_optimizer *optimizer, uint64_t steps,
                                                    cleave_error *error);
/* Sets the schedule of all groups, from the next step on. CLEAVE_INVALID, and nothing is changed:
 * an unknown curve, or CLEAVE_STEPS without a step_size, or with a gamma that is negative or not a
 * number. cleave_optimizer_new refuses such a schedule as well. */
CLEAVE_API cleave_status cleave_optimizer_set_schedule(cleave_runtime *runtime,
                                                       cleave_optimizer *optimizer,
                                                       const cleave_schedule *schedule,
                                                       cleave_error *error);

/* Returns the learning rate of a group's next step: torch's param_groups[i]["lr"]. Groups are
 * numbered from 0 in the order of cleave_optimizer_new. CLEAVE_NOT_FOUND: no such group. */
CLEAVE_API cleave_status cleave_optimizer_rate(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                               size_t group, double *ret_rate,
                                               cleave_error *error) CLEAVE_RESULT;
/* Sets a group's rate, from the next step on: cleave_group.lr, which the schedule multiplies
 * (CLEAVE_CONSTANT without warm-up: the rate itself). CLEAVE_INVALID: it is negative or not
 * finite. */
CLEAVE_API cleave_status cleave_optimizer_set_rate(cleave_runtime *runtime,
                                                   cleave_optimizer *optimizer, size_t group,
                                                   double rate, cleave_error *error) CLEAVE_RESULT;

typedef struct cleave_step_result {
  bool applied;    /* false: some gradient was not finite, and no module has changed */
  double norm;     /* norm over the gradients of all groups, before clipping */
  double lr;       /* learning rate of the first group */
  uint64_t number; /* steps decided so far, this one included */
} cleave_step_result;

/* Each module of the optimiser that has gradients in the context takes one step, at most one in a
 * context. Nodes report the norms of their gradients with their last backward (they vote), so this
 * process decides at once and only sends the decision. The function returns at once, unless another
 * context's step is pending, or gradients were written (cleave_gradient_write), so that their nodes
 * must vote again. The operations that make the step final wait for the nodes' answers: the next
 * call of a module, a step of another context, reads and writes of weights, and closing the
 * context. If a node cannot step, is lost, or does not answer within deadline_ms, all others
 * revert: they restore the bytes from before, which also reverts steps of other optimisers in this
 * context at the same time. The optimiser has then not stepped, and every later function on the
 * context returns the error, cleave_context_close too. A final step (cleave_group.no_rollback) is
 * sent with the next packet, and never reverted. ret may be NULL. */
CLEAVE_API cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                     cleave_context context, uint64_t deadline_ms,
                                     cleave_step_result *ret, cleave_error *error) CLEAVE_RESULT;
/* As cleave_step, but returns a future (cleave_future_step_result), which is done when cleave_step
 * would return. The step begins after earlier backwards of the context have ended. */
CLEAVE_API cleave_status cleave_step_async(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                           cleave_context context, uint64_t deadline_ms,
                                           cleave_future *ret_future,
                                           cleave_error *error) CLEAVE_RESULT;

/* Options of cleave_step_with: describes the gradients of parameters that the program itself
 * steps. */
typedef struct cleave_step_options {
  size_t size; /* sizeof(cleave_step_options) */
  /* Sum of the squares of the gradients of the program's own parameters, which counts in the norm;
   * 0: none. CLEAVE_INVALID: it is negative. If it is not finite, no module steps. */
  double other_square;
  /* one of the gradients of the program's own parameters is not finite, so no module steps */
  bool other_not_finite;
  uint64_t deadline_ms; /* 0: cleave_options.deadline_ms */
} cleave_step_options;

/* Decision on a step of cleave_step_with. Set size before the call. */
typedef struct cleave_step_decision {
  size_t size;  /* sizeof(cleave_step_decision) */
  bool applied; /* false: no module has changed, and the program must not step either */
  /* norm over the gradients of all groups and the gradients that the program steps itself, before
   * clipping */
  double norm;
  double lr;       /* learning rate of the first group */
  double scale;    /* factor by which nodes multiply their gradients for the step; 1: not clipped */
  uint64_t number; /* steps decided so far, this one included */
} cleave_step_decision;

/* As cleave_step, for a program that steps parameters of its own with the same decision: it gives
 * the sum of squares of its own gradients, which counts in the norm, and multiplies these gradients
 * by `scale` if the step is applied. scale is clip_norm / (norm + 1e-6), at most 1, in f32, as
 * torch's clip_grad_norm_ over all parameters has it. A step that is not final may still be
 * reverted: the program steps its own parameters after the context was closed without an error.
 * options NULL: the program has no parameters of its own. ret may be NULL. */
CLEAVE_API cleave_status cleave_step_with(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                          cleave_context context,
                                          const cleave_step_options *options,
                                          cleave_step_decision *ret,
                                          cleave_error *error) CLEAVE_RESULT;
/* As cleave_step_with, but returns a future (cleave_future_step_decision), like
 * cleave_step_async. */
CLEAVE_API cleave_status cleave_step_with_async(cleave_runtime *runtime,
                                                cleave_optimizer *optimizer, cleave_context context,
                                                const cleave_step_options *options,
                                                cleave_future *ret_future,
                                                cleave_error *error) CLEAVE_RESULT;

/* Steps one module inside the context: at its node, in its position of the schedule, with the
 * gradients since its last step there, which are then cleared. Meant for schedules whose stages do
 * not wait for each other (pipedream). Nodes do not report gradient norms first: a gradient that is
 * not finite ends the context with an error, and earlier steps stay. A call whose forward comes
 * before the step and whose backward after it uses the weights from before in both.
 *
 * Call it before the backward of the context. CLEAVE_PRECONDITION: a backward of the context runs,
 * or the optimiser clips or has groups without no_rollback. ahead: number of steps between the last
 * decided one (cleave_step) and this one; the step has the learning rate of that many steps later.
 * keep: the weights from before the step stay for calls with `old_weights` until the module's next
 * step. ret_lr: rate of the optimiser's first group; may be NULL. */
CLEAVE_API cleave_status cleave_step_at(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                        cleave_context context, cleave_module *module,
                                        uint64_t ahead, uint32_t position, bool keep,
                                        double *ret_lr, cleave_error *error) CLEAVE_RESULT;

/* ---- old names, from before version 0.9 ------------------------------------------------------ */

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
