/* SPDX-License-Identifier: Apache-2.0
 *
 * engine: what master and worker share. A *module* is a graph with its parameters, plans and
 * optimiser. A *node* holds the modules of one session in this process; it runs their calls in
 * distributed autograd contexts on one compute thread and passes values and gradients on over
 * links.
 *
 * Threads: a node's packets are all handled on the thread that runs clv_node_run or
 * clv_node_run_until, the compute thread; an executor may compute on others. Without one, what
 * modules on devices have to do is computed on one more thread of the node, if that sleeps by
 * itself.
 */
#ifndef CLEAVE_ENGINE_H
#define CLEAVE_ENGINE_H

#include "common/model/graph/graph.h"
#include "common/net/link/link.h"
#include "common/model/optim/optim.h"
#include "common/model/weights/weights.h"

/* ---- what a context did ------------------------------------------------------------------------
 *
 * With CLV_FLAG_TRACE on its first CALL a context's ENDED carries i64 [n, CLV_TRACE_COLUMNS]: a row
 * for each thing done here, rows of zeros behind. Times are of the node's monotonic clock,
 * nanoseconds. */

typedef enum clv_trace_kind {
  CLV_TRACE_NONE,
  CLV_TRACE_FORWARD, /* computing; of a call */
  CLV_TRACE_BACKWARD,
  CLV_TRACE_INPUT_GRAD,  /* the first part of a backward whose second has a position of its own, */
  CLV_TRACE_WEIGHT_GRAD, /* and that one */
  CLV_TRACE_STEP,
  CLV_TRACE_VALUE_OUT, /* handed to a link; of a value: BEGIN == END, no module */
  CLV_TRACE_VALUE_IN,  /* came whole */
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
  CLV_TRACE_VERSION, /* of the weights: of a call those it used, of a step those it made */
  CLV_TRACE_VALUE,   /* the call's, or what travels */
  CLV_TRACE_COLUMNS
};

/* ---- modules as data ------------------------------------------------------------------------- */

/* The memory behind a LoadModule's graph. Start with {0}; the graph must outlive it. */
typedef struct clv_module_message {
  clv_wire_node *nodes; /* [n_nodes], as the following */
  uint32_t (*inputs)[CLV_MAX_IN];
  clv_wire_attr (*attrs)[CLV_WIRE_ATTRS];
  clv_attr_value (*values)[CLV_WIRE_ATTRS];
  clv_key *keys;
  uint32_t output;
  clv_wire_spec specs[CLV_MAX_INPUTS];
  uint32_t n_specs, n_ties;
  clv_wire_tie *ties; /* [n_ties] */
} clv_module_message;

/* Fills q->graph, q->keys, q->inputs and q->ties with views into *m, which is released whatever is
 * returned. Which module an owner outside the graph is in is the caller's to say. */
clv_code clv_module_message_make(const clv_graph *graph, clv_module_message *m,
                                 clv_wire_load_request *q, clv_err *err) CLV_USE_RESULT;
void clv_module_message_done(clv_module_message *m);

/* Settings of a group. final: as in clv_module_options. */
clv_wire_optimizer clv_module_message_optimizer(const clv_optim_config *optimizer, bool final);

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct clv_module clv_module;

/* Parameters that are stepped with settings and a rate of their own. */
typedef struct clv_module_group {
  clv_optim_config optimizer;
  const char *const *params; /* [n_params] exact names; they learn and are in no other group */
  uint32_t n_params;
} clv_module_group;

/* The first parameter of `node` is that of the node which it is tied to, in `of`: on the same
 * device, of the same session, and there as long as this one. */
typedef struct clv_module_tie {
  const char *node;
  clv_module *of;
} clv_module_tie;

typedef struct clv_module_options {
  uint32_t index, generation; /* of the session's modules; of those that had this index */
  const char *name;           /* of the module, for people; NULL or up to CLV_WIRE_NAME bytes */
  clv_graph *graph;           /* taken over */
  const clv_backend *backend;
  const char *device;   /* for people and programs; NULL: the backend's name */
  clv_account *account; /* of the device: charged with the module's memory beside the pool's;
                           outlives the module. NULL: none */
  int threads;
  bool bf16, tf32;            /* as in clv_plan_options */
  bool input_needs_grad;      /* the plan that is made ahead has the gradient of the first input */
  clv_optim_config optimizer; /* group 0: parameters that learn and are in none of `groups` */
  const clv_module_group *groups; /* [n_groups] groups 1.., of the same kind */
  uint32_t n_groups;              /* up to CLV_WIRE_GROUPS */
  bool group0_is_frozen;          /* nobody is in group 0: those parameters are not stepped */
  bool is_trainable;              /* false: no optimiser */
  bool has_no_revert;        /* steps are not taken back: no copy of what they change is kept */
  uint32_t in_flight;        /* calls between forward and backward that memory is made ready for */
  const char *const *frozen; /* exact parameter names */
  uint32_t n_frozen;
  bool is_frozen_for_good; /* they stay frozen: no gradients and no moments are kept for them */
  bool frozen_bf16;        /* with `fixed`: weights of linear layers among them are kept in bf16 */
  /* [n_lent] of `frozen`, with `fixed`: what of them is no buffer gets its memory from
   * clv_module_set_shared_param, and is marked so in clv_module_params. It is charged as if it were
   * the module's own. */
  const char *const *shared_params;
  uint32_t n_shared_params;
  const clv_module_tie *ties; /* [n_ties] one for each node that is tied to another module's */
  uint32_t n_ties;
  clv_pool
      *pool; /* charged with the module's memory while it is made; NULL: clv_node_add_module does */
  int64_t
      batch; /* the plan to train with so many samples is made, and charged, before any memory is
                    taken; 0: clv_module_warm_up makes it */
  const clv_cancel_hook
      *waiter; /* for the module while it is made: CLV_CANCELLED when gone; NULL: none */
} clv_module_options;

/* Parameters are initialised from the keys of the graph's nodes. The lists are not kept.
 * CLV_NOT_FOUND, CLV_INVALID,
 * CLV_EXISTS: a group names a parameter that does not exist, does not learn, is in two groups, or a
 * tie fits no parameter of its owner. */
clv_code clv_module_new(const clv_module_options *options, clv_module **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_module_free(clv_module *m);
void clv_module_freep(clv_module **m);

/* Where a parameter of clv_module_options.lent is, which the module only reads; a reference is
 * taken, and what was asked of a device with it is done before that goes. Before the module is
 * added to a node. CLV_INVALID: it is not lent, has another shape, or lies on another device;
 * CLV_EXISTS: it is there. */
clv_code clv_module_set_shared_param(clv_module *m, const char *param, clv_tensor *t,
                                     clv_err *err) CLV_USE_RESULT;
/* A parameter whose numbers the module's state does not give out from now on. why: said to who asks
 * for it by name, the same for all of a module. CLV_NOT_FOUND: there is none of that name. */
clv_code clv_module_withhold(clv_module *m, const char *param, const char *why,
                             clv_err *err) CLV_USE_RESULT;

typedef struct clv_module_counts {
  uint64_t forwards, backwards, evals;
  uint64_t steps;      /* of the optimiser, those of an earlier run included */
  uint64_t stepped;    /* times that it has stepped here, steps that were taken back included */
  uint64_t compute_ns; /* of calls; on a device by its own clock, where that can be had */
  uint64_t replays, not_recorded; /* clv_record_counts: replays, refused */
  uint32_t most_versions;         /* of the parameters alive at once, so far */
  /* Of values and gradients that another module of the node has made on a device, for this one on a
   * device: copied within it, to it from another, and by way of the host's memory. */
  uint64_t device_bytes, peer_bytes, host_bytes;
} clv_module_counts;

void clv_module_count(const clv_module *m, clv_module_counts *ret); /* any thread */
const char *clv_module_device(const clv_module *m);                 /* that computes it, "cpu" */
const clv_graph *clv_module_graph(const clv_module *m);
const clv_params *clv_module_params(const clv_module *m);
size_t clv_module_bytes(const clv_module *m); /* parameters, moments, plans so far */

/* A named piece of a module's state, a view into its memory: that of the backend, of the host where
 * that is NULL. */
typedef struct clv_state_item {
  char name[CLV_WIRE_NAME + 1];
  clv_dtype dtype;
  clv_shape shape;
  size_t bytes;
  void *data;
  const clv_backend *backend;
  bool is_shared, is_withheld; /* it is not written; it is not given out */
} clv_state_item;

/* WEIGHTS: parameters and buffers; OPTIMIZER: "<param>.exp_avg"..., and "step" (i64 scalar, as
 * data of 8 bytes). Items are numbered 0..n-1. */
uint32_t clv_module_state_count(const clv_module *m, clv_state_kind what);
bool clv_module_state_item(clv_module *m, clv_state_kind what, uint32_t index, clv_state_item *ret);

/* CLV_DENIED, with the reason: its numbers are withheld. */
clv_code clv_module_check_readable(const clv_module *m, const clv_state_item *item,
                                   clv_err *err) CLV_USE_RESULT;

/* CLV_NOT_FOUND: the module has no item of that name. */
clv_code clv_module_state_find(clv_module *m, clv_state_kind what, const char *name,
                               clv_state_item *ret, clv_err *err) CLV_USE_RESULT;
/* Bytes offset.. of an item, as one of CLV_U8 [length]. CLV_INVALID: it has fewer. */
clv_code clv_state_item_part(const clv_state_item *item, uint64_t offset, uint64_t length,
                             clv_state_item *ret, clv_err *err) CLV_USE_RESULT;

/* Read an item: item->bytes. */
clv_code clv_state_item_get(const clv_state_item *item, void *ret, clv_err *err) CLV_USE_RESULT;

/* Write an item; one by name: dtype and shape must agree. CLV_DENIED: it is lent. */
clv_code clv_state_item_set(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                            const void *data, clv_err *err) CLV_USE_RESULT;
/* Only that: whether dtype and shape agree, and it is not lent. */
clv_code clv_state_item_check(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                              clv_err *err) CLV_USE_RESULT;
/* Asks for the bytes to be there, of an item that was checked; clv_backend_finish waits for them,
 * and clv_module_note_state_written tells the module. whole: it was no piece. */
clv_code clv_state_item_set_async(const clv_state_item *item, const void *data,
                                  clv_err *err) CLV_USE_RESULT;
void clv_module_note_state_written(clv_module *m, clv_state_kind what, const char *name,
                                   bool whole);
clv_code clv_module_state_set(clv_module *m, clv_state_kind what, const char *name, clv_dtype dtype,
                              const clv_shape *shape, const void *data,
                              clv_err *err) CLV_USE_RESULT;
/* Bytes offset.. of one by name. */
clv_code clv_module_state_set_part(clv_module *m, clv_state_kind what, const char *name,
                                   uint64_t offset, uint64_t length, const void *data,
                                   clv_err *err) CLV_USE_RESULT;

/* Make the training plan and its buffers for a batch size (of a graph that joins batches: for those
 * it was made with) now, so that the first step is as fast as
 * the rest and memory problems show early. */
clv_code clv_module_warm_up(clv_module *m, int64_t batch, clv_err *err) CLV_USE_RESULT;

/* ---- who computes ----------------------------------------------------------------------------

 * A piece of work is a forward, a part of a backward, the end of a pass or a change of parameters.
 * It ends at once, on the compute thread, or where and when an executor says. What is computed is
 * the same to the bit.
 *
 * The executor calls clv_work_compute once, on any one thread, then clv_node_work_ended once, on
 * any thread, with what came of it or with a failure of its own. Both may come within `start`. From
 * then on the handle is not the executor's any more.
 *
 * Of one module one piece is out at a time, of a node as many as it has modules, and ends of passes
 * besides. Meanwhile the node handles packets; what has to find work done waits in it. Nobody else
 * may touch what is computed from and to: parameters and state of the work's modules (frames of
 * state wait), and tensors of its calls. Counters, and whatever any thread may ask, are free. */

typedef struct clv_work clv_work;

typedef struct clv_executor {
  void *user;
  /* On the compute thread, in the order that fixes the bits. Must not block. The node has its share
   * of the cores and keeps it only until it waits: threads that compute are the executor's to
   * account for. */
  void (*start)(void *user, clv_work *work);
} clv_executor;

/* BLOCKS while it computes. What fails is for clv_node_work_ended to say. */
clv_code clv_work_compute(clv_work *work, clv_err *err) CLV_USE_RESULT;

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Files of state that a node keeps, by plain names: clv_is_file_name. By the compute thread;
 * BLOCK. Their errors are for the master to read, and name no path. */
typedef struct clv_state_files {
  void *user;
  clv_code (*save)(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                   clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err);
  /* CLV_EXHAUSTED: more bytes than that. */
  clv_code (*open)(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                   clv_err *err);
  clv_code (*remove)(void *user, const char *name, clv_err *err);
} clv_state_files;

/* Caches of rows that a node keeps on its disk. By the compute thread; BLOCK. Their errors are for
 * the master to read, and name no path. rows: numbers as they came, [as many as values has]. */
typedef struct clv_row_caches {
  void *user;
  clv_code (*put)(void *user, const clv_wire_cached *cache, const int64_t *rows,
                  const clv_tensor *values, clv_err *err);
  /* What n rows are; then they are written to such a tensor. */
  clv_code (*form)(void *user, const clv_wire_cached *cache, size_t n, clv_dtype *ret_dtype,
                   clv_shape *ret_shape, clv_err *err);
  clv_code (*get)(void *user, const clv_wire_cached *cache, const int64_t *rows, clv_tensor *values,
                  clv_err *err);
} clv_row_caches;

typedef struct clv_node_options {
  clv_pool *pool;
  uint16_t originator;         /* upper 16 bits of the message ids made here; the master is 0 */
  clv_rpc_runtime *runtime;    /* its spinning stops while a kernel runs; NULL allowed */
  clv_share *share;            /* that it computes from; NULL: whenever it likes. Outlives it */
  uint32_t reference_lease_ms; /* the same at all nodes of a session; 0: CLV_WIRE_REF_LEASE */
  /* On the master: VALUE, GRADIENT of a leaf, FINISHED, APPLIED, ENDED, STATE_*, ABORT, ERROR.
   * Called on the compute thread; takes the packet. On a worker NULL: such packets go to the
   * master's link. */
  void *user;
  void (*on_program)(void *user, clv_packet *packet);
  clv_notifier notice;   /* on the compute thread */
  clv_clock clock;       /* of all it does by the clock; zeroed: the machine's */
  clv_state_files files; /* zeroed: it keeps none */
  clv_row_caches caches; /* the same */
  clv_executor executor; /* who computes; zeroed: the compute thread, at once */
  /* Instead of sleeping, on the compute thread with nothing locked: returns when clv_node_due_ns
   * has come, the node was kicked or stopped, or it is `until_ns` by the clock; earlier does no
   * harm.
   * False: nothing will ever come, and the call that waits ends. NULL: it sleeps, and the clock
   * must run as the machine's monotonic one does. */
  bool (*wait)(void *user, uint64_t until_ns);
  void *wait_user;
} clv_node_options;

typedef struct clv_session_node clv_session_node;

clv_code clv_node_new(const clv_node_options *options, clv_session_node **ret,
                      clv_err *err) CLV_USE_RESULT;
/* No link may deliver into it any more, and clv_node_run must have returned. BLOCKS, where there is
 * clv_node_options.wait in that, until the end of all work that is out has been posted: it lives on
 * in the modules and tensors that go with the node. NULL is allowed. */
void clv_node_free(clv_session_node *n);

/* Takes the module, whatever it returns; its bytes count against the pool's quota. CLV_EXISTS:
 * there is a module of that index, or it is CLV_MODULE_ALL or above; CLV_PRECONDITION: there was
 * one of its generation or a later one. */
clv_code clv_node_add_module(clv_session_node *n, clv_module *module, clv_err *err) CLV_USE_RESULT;
/* Whether it would, as far as that is known before the module is made. Any thread. */
clv_code clv_node_check_module_slot(clv_session_node *n, uint32_t index, uint32_t generation,
                                    clv_err *err) CLV_USE_RESULT;
/* For a module that is to be tied to it: it stays until it is unpinned. CLV_NOT_FOUND: it is not
 * here. Any thread. */
clv_code clv_node_pin_module(clv_session_node *n, uint32_t index, clv_module **ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_node_unpin_module(clv_module *m); /* takes NULL */
/* Or NULL. By the compute thread, or while nothing is unloaded; others look: */
clv_module *clv_node_module(clv_session_node *n, uint32_t module);
/* False: there is none. Texts: [CLV_WIRE_NAME + 1]. Any thread. */
bool clv_node_module_info(clv_session_node *n, uint32_t module, clv_module_counts *ret,
                          char *ret_name, char *ret_device);
/* Of all its modules, those that have been unloaded too; `steps` and `most_versions` are 0. Any
 * thread. */
void clv_node_count_work(clv_session_node *n, clv_module_counts *ret);

/* On a worker: the link to the master (a reference is taken; NULL: there is none any more). */
void clv_node_set_master(clv_session_node *n, clv_link *link);

/* The link to a worker by its name: there go packets for it (clv_node_send_to) and the values and
 * gradients of contexts that name it; what names somebody unknown goes to the master. Any
 * thread. */
clv_code clv_node_add_peer(clv_session_node *n, const char *name, clv_link *link,
                           clv_err *err) CLV_USE_RESULT;
/* Lets go of all of them, before their links are closed. */
void clv_node_remove_peers(clv_session_node *n);
/* To the worker `name`, or ("") to this node itself; takes the packet. Any thread. */
clv_code clv_node_send_to(clv_session_node *n, const char *name, clv_packet *packet,
                          clv_err *err) CLV_USE_RESULT;

/* Of references that outlive their context: values kept here, handles of values anywhere, and
 * messages about either that are not acknowledged yet. */
typedef struct clv_reference_counts {
  uint64_t owned, used, pending;
} clv_reference_counts;

typedef struct clv_context_counts {
  uint64_t contexts, values, calls_waiting, late_frames;
  clv_reference_counts references;
} clv_context_counts;
void clv_node_context_count(const clv_session_node *n, clv_context_counts *ret); /* any thread */

/* Queue a packet from any thread; takes it. One for which nothing would run does not wake the
 * node's
 * thread: it is handled before the next one that does, or 10 ms later. */
void clv_node_post(clv_session_node *n, clv_packet *packet);

/* What came of work that `executor` has started: CLV_OK, or a failure and why (copied). Any thread,
 * once for each; it wakes the node's. Allocates nothing unless the work has failed. Those after
 * clv_node_stop and while it is kicked are taken as well; clv_node_free waits for them. */
void clv_node_work_ended(clv_session_node *n, clv_work *work, clv_code code, const clv_err *why);

/* Handle queued packets on this thread until clv_node_stop. */
void clv_node_run(clv_session_node *n);
/* For good, from any thread: nothing that is queued is handled any more, and whoever computes or
 * waits in clv_node_run, clv_node_run_until or for a share of the cores returns soon. */
void clv_node_stop(clv_session_node *n);
/* Instead of clv_node_run: handle packets on this thread until clv_node_interrupt, which ends this
 * call or, since the last clv_node_clear_interrupt, the next one; false when deadline_ns
 * (monotonic) passed first. One thread at a time. */
bool clv_node_run_until(clv_session_node *n, uint64_t deadline_ns);
void clv_node_interrupt(clv_session_node *n); /* any thread */
void clv_node_clear_interrupt(clv_session_node *n);
/* Without a thread: handles what is queued and what references have due by the clock, never waits
 * (but for a share of the cores, if it has one). True: there was something. Nothing while it is
 * kicked or stopped. By the thread that would run it. */
bool clv_node_poll(clv_session_node *n);
/* When it wants to be polled: 0 now, UINT64_MAX not before something is posted. By that thread. */
uint64_t clv_node_due_ns(clv_session_node *n);
/* How long clv_node_run or clv_node_run_until has had nothing to do, the wait in progress included.
 * Any thread. */
uint64_t clv_node_idle_ns(const clv_session_node *n);

/* Where its thread's time has gone since clv_node_run began, what is in progress included. */
typedef struct clv_node_times {
  uint64_t idle_ns;  /* nothing to do */
  uint64_t share_ns; /* something to do, and other sessions before it: 0, all compute at once */
  uint64_t busy_ns;  /* the rest */
  uint64_t wakes;    /* times that it fell asleep and was woken */
} clv_node_times;
void clv_node_time(const clv_session_node *n, clv_node_times *ret); /* any thread */

/* What a node of a worker last told its master that had gone wrong. */
typedef struct clv_node_failure {
  uint64_t count; /* so far; 0: nothing */
  uint64_t at_ns; /* monotonic */
  clv_code code;
  char text[CLV_WIRE_TEXT + 1];
} clv_node_failure;
void clv_node_last_failure(clv_session_node *n, clv_node_failure *ret); /* any thread */

/* How long queue threads may poll beside so many compute threads of this process, microseconds: 0
 * where together they would not fit the cores. */
unsigned clv_spin_us(unsigned compute_threads);

#endif
