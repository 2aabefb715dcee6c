/* SPDX-License-Identifier: Apache-2.0
 *
 * engine: shared by master and worker. A *module* is a graph with its parameters, plans and
 * optimiser. A *node* holds the modules of one session in this process: it runs their calls in
 * distributed autograd contexts on one compute thread, and sends values and gradients over links.
 * A program calls clv_node_new, clv_node_add_module and clv_node_run; links call clv_node_post.
 *
 * Threads: the thread that runs clv_node_run or clv_node_run_until, the compute thread, handles
 * all packets of a node. An executor may compute on other threads. Without an executor the node
 * computes modules on devices on one more thread, unless clv_node_options.wait is set.
 */
#ifndef CLEAVE_ENGINE_H
#define CLEAVE_ENGINE_H

#include "common/model/graph/graph.h"
#include "common/net/link/link.h"
#include "common/model/optim/optim.h"
#include "common/model/weights/weights.h"

/* ---- the trace of a context ---------------------------------------------------------------------
 *
 * If the first CALL of a context has CLV_FLAG_TRACE, its ENDED carries i64
 * [n, CLV_TRACE_COLUMNS]: a row for each action at this node, then rows of zeros. Times are of the
 * node's monotonic clock, in nanoseconds. */

typedef enum clv_trace_kind {
  CLV_TRACE_NONE,
  CLV_TRACE_FORWARD, /* forward of a call */
  CLV_TRACE_BACKWARD,
  CLV_TRACE_INPUT_GRAD,  /* input part of a backward whose weight part has a position of its own */
  CLV_TRACE_WEIGHT_GRAD, /* weight part of a backward, if it has a position of its own */
  CLV_TRACE_STEP,
  /* a VALUE frame was passed to a link; an instant (BEGIN == END), with no module */
  CLV_TRACE_VALUE_OUT,
  CLV_TRACE_VALUE_IN, /* a VALUE frame was received with all its tensors */
  CLV_TRACE_GRADIENT_OUT,
  CLV_TRACE_GRADIENT_IN,
  CLV_TRACE_KINDS
} clv_trace_kind;

enum {
  CLV_TRACE_KIND,
  CLV_TRACE_MODULE,
  CLV_TRACE_MICRO,
  CLV_TRACE_BEGIN,
  CLV_TRACE_END,
  CLV_TRACE_BYTES,
  CLV_TRACE_VERSION, /* version of the weights that a call used, or that a step made */
  CLV_TRACE_VALUE,   /* id of the call's value, or of the value sent or received */
  CLV_TRACE_COLUMNS
};

/* ---- modules as LoadModule messages ---------------------------------------------------------- */

/* Memory of a clv_wire_load_request that is made from a graph: the arrays to which it points. Start
 * with {0}. The clv_graph must outlive this memory. */
typedef struct clv_module_message {
  clv_wire_node *nodes; /* nodes, inputs, attrs, values and keys have n_nodes elements each */
  uint32_t (*inputs)[CLV_MAX_IN];
  clv_wire_attr (*attrs)[CLV_WIRE_ATTRS];
  clv_attr_value (*values)[CLV_WIRE_ATTRS];
  clv_key *keys;
  uint32_t output;
  clv_wire_spec specs[CLV_MAX_INPUTS];
  uint32_t n_specs, n_ties;
  clv_wire_tie *ties; /* [n_ties] ties of the graph */
} clv_module_message;

/* Fills q->graph, q->node_keys, q->input_specs and q->ties with views into *m. The caller releases
 * *m with clv_module_message_clear, also after an error. For a tie to a node of another module the
 * caller then sets that module in q->ties. */
clv_code clv_module_message_make(const clv_graph *graph, clv_module_message *m,
                                 clv_wire_load_request *q, clv_err *err) CLV_USE_RESULT;
void clv_module_message_clear(clv_module_message *m);

/* Returns the settings of a parameter group as a LoadModule message carries them. is_final: steps
 * cannot be reverted (clv_module_options.has_no_revert). */
clv_wire_optimizer clv_module_message_optimizer(const clv_optim_config *optimizer, bool is_final);

/* ---- making modules, and their state --------------------------------------------------------- */

typedef struct clv_module clv_module;

/* Parameters that are stepped with settings and a learning rate of their own. */
typedef struct clv_module_group {
  clv_optim_config optimizer;
  const char *const *params; /* [n_params] exact names; trainable, in no other group */
  uint32_t n_params;
} clv_module_group;

/* The first parameter of `node` is tied to a parameter in module `owner`. Module `owner` must be on
 * the same device and in the same session, and stay loaded at least as long as the module with
 * `node`. */
typedef struct clv_module_tie {
  const char *node;
  clv_module *owner;
} clv_module_tie;

typedef struct clv_module_options {
  /* index: number of the module in its session; generation: distinguishes modules that were loaded
   * at this index one after the other */
  uint32_t index, generation;
  /* name of the module for status and logs; NULL or up to CLV_WIRE_NAME bytes */
  const char *name;
  clv_graph *graph; /* graph of the module, which owns it from now on */
  const clv_backend *backend;
  const char *device; /* name of the device for status and programs; NULL: that of the backend */
  /* account of the device, charged with the module's memory in addition to the pool; outlives the
   * module. NULL: none */
  clv_account *account;
  int threads;
  /* bf16: kernels may compute in bf16; tf32: kernels may compute in TF32 (clv_plan_options) */
  bool bf16, tf32;
  /* the plan for batch size `batch` also computes the gradient of the first input */
  bool input_needs_grad;
  /* settings of group 0, which has the trainable parameters that no element of `groups` lists */
  clv_optim_config optimizer;
  /* [n_groups] settings of groups 1, 2, ...; all have the kind of optimiser of group 0 */
  const clv_module_group *groups;
  uint32_t n_groups;     /* number of elements of `groups`, 0 to CLV_WIRE_GROUPS */
  bool group0_is_frozen; /* parameters of group 0 are not stepped */
  /* the module has an optimiser, so its parameters can be stepped */
  bool is_trainable;
  bool has_no_revert; /* steps cannot be reverted, so no snapshot is taken */
  /* number of calls between forward and backward for which memory is allocated ahead */
  uint32_t max_calls_in_flight;
  const char *const *frozen; /* [n_frozen] exact names of parameters that are not trained */
  uint32_t n_frozen;
  /* the list `frozen` never changes, so frozen parameters get no memory for gradients and
   * moments */
  bool is_frozen_for_good;
  /* with is_frozen_for_good: weights of linear layers in `frozen` are stored in bf16 */
  bool frozen_bf16;
  /* [n_shared_params] names from `frozen`; needs is_frozen_for_good. clv_module_set_shared_param
   * supplies the memory of these parameters, except of buffers; clv_module_params marks them as
   * shared. They are charged as if they were the module's own. */
  const char *const *shared_params;
  uint32_t n_shared_params;
  /* [n_ties] one for each node that is tied to a node of another module */
  const clv_module_tie *ties;
  uint32_t n_ties;
  /* pool of the session, which clv_module_new charges with the module's memory; NULL:
   * clv_node_add_module charges it */
  clv_pool *pool;
  /* batch size whose training plan is made and charged before memory is allocated; 0:
   * clv_module_warm_up makes it */
  int64_t batch;
  /* hook by which the caller can cancel clv_module_new; NULL: none */
  const clv_cancel_hook *cancel_hook;
} clv_module_options;

/* Makes a module. Parameters are initialised from the keys of the graph's nodes. The lists in
 * *options are not used after this call. CLV_NOT_FOUND, CLV_INVALID, CLV_EXISTS: a group names a
 * parameter that does not exist, is not trainable, or is in two groups; or a tie fits no parameter
 * of its owner. */
clv_code clv_module_new(const clv_module_options *options, clv_module **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_module_free(clv_module *m);
void clv_module_freep(clv_module **m);

/* Sets the tensor of a parameter in clv_module_options.shared_params; the module only reads the
 * tensor. Takes a reference, which is dropped after the device has finished reading. Call before
 * the module is added to a node. CLV_INVALID: not a shared parameter, another shape, or another
 * device; CLV_EXISTS: already set. */
clv_code clv_module_set_shared_param(clv_module *m, const char *param, clv_tensor *t,
                                     clv_err *err) CLV_USE_RESULT;
/* Withholds a parameter: reads of the module's state omit it, or fail with `why` if they name it.
 * `why` is the same for all parameters of a module. CLV_NOT_FOUND: no parameter of that name. */
clv_code clv_module_withhold(clv_module *m, const char *param, const char *why,
                             clv_err *err) CLV_USE_RESULT;

typedef struct clv_module_counts {
  uint64_t forwards, backwards, evals;
  uint64_t steps; /* optimiser steps so far, including those made before a restart */
  /* steps made since the module was loaded, including reverted ones */
  uint64_t steps_since_load;
  uint64_t compute_ns; /* time of calls; on a device measured by its own clock, if it has one */
  /* replays: pieces of work replayed from a recording (CUDA graph); not_recorded: pieces of work
   * that could not be recorded */
  uint64_t replays, not_recorded;
  /* largest number of versions of the parameters that were in memory at once */
  uint32_t max_versions;
  /* bytes of values and gradients that another module of the node made on a device for this module
   * on a device: copied within the device, from another device, and through host memory */
  uint64_t device_bytes, peer_bytes, host_bytes;
} clv_module_counts;

void clv_module_count(const clv_module *m, clv_module_counts *ret); /* callable from any thread */
/* name of the module's device, such as "cpu" */
const char *clv_module_device(const clv_module *m);
const clv_graph *clv_module_graph(const clv_module *m);
const clv_params *clv_module_params(const clv_module *m);
/* bytes of its parameters, moments and the plans made so far */
size_t clv_module_bytes(const clv_module *m);

/* A named item of a module's state: a view into memory of `backend`, or into host memory if
 * `backend` is NULL. */
typedef struct clv_state_item {
  char name[CLV_WIRE_NAME + 1];
  clv_dtype dtype;
  clv_shape shape;
  size_t bytes;
  void *data;
  const clv_backend *backend;
  /* moving average of the parameter. A write to `data` also writes the average, which begins with
   * the parameter's values. NULL: the parameter is frozen or has no average, or the optimiser has
   * taken a step */
  void *ema;
  bool is_shared, is_withheld; /* is_shared: must not be written; is_withheld: must not be read */
} clv_state_item;

/* Number of items of a module's state, and item `index` of them (false: index too large).
 * CLV_STATE_WEIGHTS: parameters and buffers; CLV_STATE_OPTIMIZER: moments such as
 * "<param>.exp_avg" and "<param>.ema", and "step", an i64 scalar; CLV_STATE_EMA: those items of
 * CLV_STATE_WEIGHTS that can have an average, also if the optimiser keeps none. */
uint32_t clv_module_state_count(const clv_module *m, clv_state_kind what);
bool clv_module_state_item(clv_module *m, clv_state_kind what, uint32_t index, clv_state_item *ret);

/* Checks that an item may be read. CLV_DENIED, with the reason given to clv_module_withhold: the
 * item is withheld. */
clv_code clv_module_check_readable(const clv_module *m, const clv_state_item *item,
                                   clv_err *err) CLV_USE_RESULT;

/* Finds an item by name. CLV_NOT_FOUND: the module has no item of that name. */
clv_code clv_module_state_find(clv_module *m, clv_state_kind what, const char *name,
                               clv_state_item *ret, clv_err *err) CLV_USE_RESULT;
/* Makes *ret a view of the `length` bytes of an item from `offset`: an item of dtype CLV_U8 and
 * shape [length]. CLV_INVALID: the item has fewer bytes. */
clv_code clv_state_item_part(const clv_state_item *item, uint64_t offset, uint64_t length,
                             clv_state_item *ret, clv_err *err) CLV_USE_RESULT;

/* Reads an item into *ret, item->bytes long. */
clv_code clv_state_item_get(const clv_state_item *item, void *ret, clv_err *err) CLV_USE_RESULT;

/* Writes an item. CLV_INVALID: dtype or shape differ; CLV_DENIED: the item is shared.
 * clv_module_state_set does the same by name. */
clv_code clv_state_item_set(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                            const void *data, clv_err *err) CLV_USE_RESULT;
/* Checks what clv_state_item_set would check (dtype, shape, that the item is not shared), and
 * writes nothing. */
clv_code clv_state_item_check(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                              clv_err *err) CLV_USE_RESULT;
/* Starts a write of an item that was checked. clv_backend_finish waits for it; then call
 * clv_module_note_state_written. is_complete: the complete item was written, not a piece. */
clv_code clv_state_item_set_async(const clv_state_item *item, const void *data,
                                  clv_err *err) CLV_USE_RESULT;
void clv_module_note_state_written(clv_module *m, clv_state_kind what, const char *name,
                                   bool is_complete);
clv_code clv_module_state_set(clv_module *m, clv_state_kind what, const char *name, clv_dtype dtype,
                              const clv_shape *shape, const void *data,
                              clv_err *err) CLV_USE_RESULT;
/* Finds an item by name and writes its `length` bytes from `offset`. */
clv_code clv_module_state_set_part(clv_module *m, clv_state_kind what, const char *name,
                                   uint64_t offset, uint64_t length, const void *data,
                                   clv_err *err) CLV_USE_RESULT;

/* Makes the training plan and its buffers for a batch size. So the first step is as fast as the
 * others, and a lack of memory is found early. If the graph joins batches, its own batch sizes are
 * used. */
clv_code clv_module_warm_up(clv_module *m, int64_t batch, clv_err *err) CLV_USE_RESULT;

/* ---- executors -------------------------------------------------------------------------------

 * A piece of work is a forward, a part of a backward, the end of a pass or a change of parameters.
 * Work runs at once, on the compute thread, or where and when an executor decides. The result is
 * the same to the bit.
 *
 * The executor calls clv_work_compute once, on any one thread, then clv_node_work_ended once, on
 * any thread, with the result or with a failure of its own. It may call both within `start`. After
 * that the executor must not use the handle.
 *
 * One piece of work of a module runs at a time, and of a node as many as it has modules, plus ends
 * of passes. Meanwhile the node handles packets; frames that need finished work wait. No other
 * thread may use the memory of running work: parameters and state of its modules, and tensors of
 * its calls. Counters and functions for any thread are always allowed. */

typedef struct clv_work clv_work;

typedef struct clv_executor {
  void *user;
  /* The node calls this on the compute thread to start work, always in the same order, so that
   * results are the same to the bit. Must not block. The node holds its share of the cores only
   * until it waits, so the executor itself must limit the threads that compute. */
  void (*start)(void *user, clv_work *work);
} clv_executor;

/* Computes the work. BLOCKS. The caller passes the result to clv_node_work_ended. */
clv_code clv_work_compute(clv_work *work, clv_err *err) CLV_USE_RESULT;

/* ---- nodes and their links ------------------------------------------------------------------- */

/* A file of state that another thread writes, from a copy that the node keeps until the write has
 * ended. */
typedef struct clv_state_save {
  const char *name;
  const clv_weights_tensor *list; /* [n] tensors to write */
  size_t n;
  /* Called once, on any thread, with the result in the fields below. Must not call clv_state_files.
   */
  void (*on_done)(struct clv_state_save *save);
  clv_code code;
  clv_err failure; /* reason of the failure; set unless code is CLV_OK */
  clv_sha256 sha256;
  uint64_t bytes;
} clv_state_save;

/* Callbacks for files of state that a node stores under plain names (clv_is_file_name). The compute
 * thread calls them; they BLOCK. Their errors are sent to the master, so they name no path. `open`
 * and `remove` wait for files of that name that are still being written. */
typedef struct clv_state_files {
  void *user;
  clv_code (*save)(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                   clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err);
  /* Opens a file for reading. CLV_EXHAUSTED: the file has more than max_bytes. */
  clv_code (*open)(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                   clv_err *err);
  clv_code (*remove)(void *user, const char *name, clv_err *err);
  /* Starts to write a file, in the order of the calls, and returns at once. The caller keeps *save
   * until on_done was called, or `withdraw` has returned, after which on_done is not called. If
   * save_later and withdraw are NULL, the node writes with `save`. */
  clv_code (*save_later)(void *user, clv_state_save *save, clv_err *err);
  void (*withdraw)(void *user, const clv_state_save *save);
} clv_state_files;

/* Callbacks for caches of rows that a node stores on disk. The compute thread calls them; they
 * BLOCK. Their errors are sent to the master, so they name no path. rows: record numbers as
 * received, one for each row of values. */
typedef struct clv_row_caches {
  void *user;
  clv_code (*put)(void *user, const clv_wire_cached *cache, const int64_t *rows,
                  const clv_tensor *values, clv_err *err);
  /* Returns the dtype and shape of a tensor with n rows of the cache; `get` fills such a tensor. */
  clv_code (*get_shape)(void *user, const clv_wire_cached *cache, size_t n, clv_dtype *ret_dtype,
                        clv_shape *ret_shape, clv_err *err);
  clv_code (*get)(void *user, const clv_wire_cached *cache, const int64_t *rows, clv_tensor *values,
                  clv_err *err);
} clv_row_caches;

typedef struct clv_node_options {
  clv_pool *pool;
  /* upper 16 bits of the message ids that this node makes; 0 at the master */
  uint16_t originator;
  /* gRPC runtime whose queue threads stop polling while the node computes; NULL: none */
  clv_rpc_runtime *runtime;
  /* share of the cores to compute in; NULL: unlimited. Outlives the node */
  clv_share *share;
  /* lease of references, ms; the same at all nodes of a session; 0: CLV_WIRE_REF_LEASE_MS */
  uint32_t reference_lease_ms;
  /* On the master: receives VALUE, GRADIENT of a leaf, FINISHED, APPLIED, ENDED, STATE_*, ABORT,
   * ERROR on the compute thread, and takes the packet. NULL on a worker: such packets are sent to
   * the master. */
  void *user;
  void (*on_program)(void *user, clv_packet *packet);
  clv_notifier notice;   /* receives log messages of the node, on the compute thread */
  clv_clock clock;       /* clock of the node; zeroed: the machine's monotonic clock */
  clv_state_files files; /* callbacks for files of state; zeroed: the node stores none */
  clv_row_caches caches; /* callbacks for caches; zeroed: the node stores none */
  /* computes the node's work; zeroed: the compute thread computes it at once */
  clv_executor executor;
  /* Called on the compute thread, with nothing locked, in place of sleeping. Returns when
   * clv_node_due_ns has come, the node was interrupted or stopped, or the clock is at `until_ns`;
   * it may return earlier. False: no event will ever come, and the waiting call ends. NULL: the
   * node sleeps itself, and `clock` must advance as the machine's monotonic clock does. */
  bool (*wait)(void *user, uint64_t until_ns);
  void *wait_user;
} clv_node_options;

typedef struct clv_session_node clv_session_node;

clv_code clv_node_new(const clv_node_options *options, clv_session_node **ret,
                      clv_err *err) CLV_USE_RESULT;
/* Frees a node. Before the call, all links must have stopped posting to the node, and clv_node_run
 * must have returned. BLOCKS until clv_node_work_ended was called for all running work, because
 * that work uses modules and tensors of the node. If clv_node_options.wait is set, the node waits
 * in that callback. NULL is allowed. */
void clv_node_free(clv_session_node *n);

/* Adds a module, and charges its bytes to the pool. Takes ownership of the module, even on failure.
 * CLV_EXISTS: a module of that index is loaded, or the index is CLV_MODULE_ALL or above;
 * CLV_PRECONDITION: a module of this index with this or a later generation was loaded before. */
clv_code clv_node_add_module(clv_session_node *n, clv_module *module, clv_err *err) CLV_USE_RESULT;
/* Checks the index and the generation as clv_node_add_module does, before the module is made. Any
 * thread. */
clv_code clv_node_check_module_slot(clv_session_node *n, uint32_t index, uint32_t generation,
                                    clv_err *err) CLV_USE_RESULT;
/* Pins a module to which another will be tied: it cannot be unloaded until it is unpinned.
 * CLV_NOT_FOUND: no module is loaded at `index`. Any thread. */
clv_code clv_node_pin_module(clv_session_node *n, uint32_t index, clv_module **ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_node_unpin_module(clv_module *m); /* NULL is allowed */
/* Returns the module at an index; NULL: none is loaded. For the compute thread, or while no module
 * is unloaded; other threads call clv_node_module_info. */
clv_module *clv_node_module(clv_session_node *n, uint32_t module);
/* Returns counters, name and device of a module; ret_name and ret_device have CLV_WIRE_NAME + 1
 * bytes. False: no such module is loaded. Any thread. */
bool clv_node_module_info(clv_session_node *n, uint32_t module, clv_module_counts *ret,
                          char *ret_name, char *ret_device);
/* Sums the counters of all modules, including unloaded ones; `steps` and `max_versions` stay 0.
 * Any thread. */
void clv_node_count_work(clv_session_node *n, clv_module_counts *ret);

/* Sets a worker's link to the master; takes a new reference. link NULL: the worker has no link to
 * the master any more. */
void clv_node_set_master(clv_session_node *n, clv_link *link);

/* Adds the link to a worker. The link carries packets of clv_node_send_to, and values and gradients
 * for that worker. Values and gradients for a worker without a link are sent to the master. Any
 * thread. */
clv_code clv_node_add_peer(clv_session_node *n, const char *name, clv_link *link,
                           clv_err *err) CLV_USE_RESULT;
/* Drops all peer links. Call before the links are closed. */
void clv_node_remove_peers(clv_session_node *n);
/* Sends a packet to worker `name`, or ("") to this node itself. Takes the packet. Any thread. */
clv_code clv_node_send_to(clv_session_node *n, const char *name, clv_packet *packet,
                          clv_err *err) CLV_USE_RESULT;

/* References that outlive their context: values owned by this node, handles of values of any node,
 * and messages about either that are not acknowledged. */
typedef struct clv_reference_counts {
  uint64_t n_owned, n_used, n_pending;
} clv_reference_counts;

typedef struct clv_context_counts {
  uint64_t contexts, values, calls_waiting, late_frames;
  clv_reference_counts references;
} clv_context_counts;
/* callable from any thread */
void clv_node_context_count(const clv_session_node *n, clv_context_counts *ret);

/* Queues a packet for the compute thread. Takes the packet. Any thread. A packet for which no work
 * would run does not wake the compute thread: it is handled together with the next packet that
 * does, or 10 ms later. */
void clv_node_post(clv_session_node *n, clv_packet *packet);

/* Reports the end of work that `executor` started: CLV_OK, or a failure and its reason (copied).
 * Any thread, once for each work; wakes the compute thread. Allocates memory only if the work
 * failed. Allowed after clv_node_stop and while the node is interrupted; clv_node_free waits for
 * it. */
void clv_node_work_ended(clv_session_node *n, clv_work *work, clv_code code, const clv_err *why);

/* Handles queued packets on this thread until clv_node_stop. */
void clv_node_run(clv_session_node *n);
/* Stops the node for good, from any thread: queued packets are not handled, and threads in
 * clv_node_run, clv_node_run_until or waiting for a share of the cores return soon. */
void clv_node_stop(clv_session_node *n);
/* Handles packets on this thread until clv_node_interrupt, in place of clv_node_run. An interrupt
 * ends this call. An interrupt that came before the call, but after the last
 * clv_node_clear_interrupt, ends the call at once. False: deadline_ns (monotonic) passed first. One
 * thread at a time. */
bool clv_node_run_until(clv_session_node *n, uint64_t deadline_ns);
void clv_node_interrupt(clv_session_node *n); /* callable from any thread */
void clv_node_clear_interrupt(clv_session_node *n);
/* Handles queued packets and due timers of references, without waiting (except for a share of the
 * cores, if it has one). True: a packet or the end of work was handled. Does nothing while
 * interrupted or stopped. Call from the thread that would otherwise call clv_node_run. */
bool clv_node_poll(clv_session_node *n);
/* Returns the time at which clv_node_poll must be called next; 0: now; UINT64_MAX: not before a
 * packet is posted. Call from the thread that calls clv_node_poll. */
uint64_t clv_node_due_ns(clv_session_node *n);
/* Returns the total time that clv_node_run or clv_node_run_until had nothing to do, including the
 * wait in progress. Any thread. */
uint64_t clv_node_idle_ns(const clv_session_node *n);

/* Time of the compute thread since clv_node_run began, including the wait in progress. */
typedef struct clv_node_times {
  uint64_t idle_ns;  /* the thread had nothing to do */
  uint64_t share_ns; /* the thread waited for a share of the cores; 0 without a scheduler */
  uint64_t busy_ns;  /* the thread computed or handled packets */
  uint64_t wakes;    /* number of times that the thread slept and was woken */
} clv_node_times;
void clv_node_time(const clv_session_node *n, clv_node_times *ret); /* callable from any thread */

/* The last failure that a worker's node reported to its master. */
typedef struct clv_node_failure {
  uint64_t count; /* number of failures so far; 0: none */
  uint64_t at_ns; /* time of the last failure, by the monotonic clock */
  clv_code code;
  char text[CLV_WIRE_TEXT + 1];
} clv_node_failure;
/* callable from any thread */
void clv_node_last_failure(clv_session_node *n, clv_node_failure *ret);

/* Returns for how many microseconds gRPC's queue threads may poll while `compute_threads` threads
 * of this process compute; 0 if there are not enough cores for both. */
unsigned clv_spin_us(unsigned compute_threads);

#endif
