/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of the engine of contexts: contexts with their values, calls, gradients, backward
 * queues and work; the queues of modules with the changes that wait in them; and clv_contexts, the
 * engine of one node, which owns all of them. context_int.h says which functions use them.
 */
#ifndef CLEAVE_CONTEXT_TYPES_H
#define CLEAVE_CONTEXT_TYPES_H

#include <pthread.h>

#include "common/engine/context_table.h"
#include "common/engine/module_int.h"
#include "common/net/fair/fair.h"

enum {
  MAX_CONTEXTS = 4096,       /* contexts open at once in a session */
  MAX_CONTEXT_CALLS = 65536, /* calls of one context */
  MAX_CONTEXT_ITEMS = 65536, /* values of a session; also the limit of each other kind of record */
  MAX_TOMBSTONES = 2048,     /* ended contexts of a session whose ids are remembered */
  MAX_WAITING_FRAMES = 1024, /* DROP and PREPARE frames that wait for CALLs, per context */
  MAX_CHANGES = 4096,        /* APPLY, REVERT and STATE_ packets that wait for calls, per session */
  MAX_NAMES = 64,            /* node names of a session, the master's "" included */
};

/* Reason why a value does not exist or a context has failed. Reference-counted: all values and
 * calls that depend on the failed one share it. */
typedef struct clv_shared_err {
  uint32_t refs;
  clv_code code;
  char text[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1], offending_value[CLV_ERR_VALUE];
} clv_shared_err;

typedef struct clv_context_call clv_context_call;
typedef struct clv_value clv_value;
typedef struct clv_context clv_context;
typedef struct clv_change clv_change;

/* ---- work of the engine ---------------------------------------------------------------------- */

typedef enum clv_work_kind {
  WORK_FORWARD,
  WORK_INPUT_GRAD,  /* first part of a call's backward: gradients of its inputs */
  WORK_WEIGHT_GRAD, /* second part: gradients of parameters */
  WORK_STEP,        /* the optimiser step of an APPLY with a position */
  WORK_CHANGE,      /* an APPLY, a REVERT, or a STATE_ packet that waited for calls */
  WORK_VOTE,        /* end of a backward pass, including its vote, if the program asked for one */
  WORK_COPY,        /* copy of a tensor from a device to the host's memory */
  WORK_TRANSFER,    /* read or write of a module's state */
  WORK_RESTORE,     /* restore of a module's running statistics */
  WORK_KINDS
} clv_work_kind;

/* A piece of work. Embedded in the record that it works for (call, step, change, ...). It belongs
 * to one module, or to none (CLV_MODULE_ALL). */
struct clv_work {
  clv_work *next;  /* next ready work of the same module; in the inbox, next ended work */
  uint64_t number; /* sequence number, in the order in which work became ready */
  /* begin_ns: time at which the work began; device_ns: duration measured by the device, 0: not
   * measured */
  uint64_t begin_ns, device_ns;
  const struct clv_contexts_env *env;
  /* context of the work; NULL for a change and other work that may outlive its context */
  clv_context *ctx;
  uint32_t module;
  uint8_t state; /* state of the work, a clv_work_state */
  uint8_t kind;
  clv_code code; /* result of the work after its end */
  clv_err *failure;
};

/* ---- the records of a context ---------------------------------------------------------------- */

/* Kinds of work that have a position in the order of their context (context_order.c). */
typedef enum clv_order_kind {
  ORDER_FORWARD,
  ORDER_BACKWARD,
  ORDER_WEIGHT,
  ORDER_CALL_KINDS,
  ORDER_STEP = ORDER_CALL_KINDS,
  ORDER_KINDS
} clv_order_kind;

typedef struct clv_order_entry {
  struct clv_order_entry *prev, *next; /* neighbours in the queue, by ascending position */
  /* position in the context's execution order; 0: the entry is in no queue */
  uint32_t position;
} clv_order_entry;

typedef struct clv_order_queue {
  clv_order_entry *first, *last;
} clv_order_queue;

/* Copy of the parameters and buffers of a module from before a step. Shared by the calls whose
 * forward used these parameters. */
typedef struct clv_old_weights {
  uint32_t refs;
  clv_module *mod;
  uint64_t version;
  clv_tensor *block;
  uint64_t charged_on_device; /* bytes charged to the device for `block` */
} clv_old_weights;

/* An optimiser step of one module that has a position in the order of its context (an APPLY with a
 * position). */
typedef struct clv_planned_step {
  clv_order_entry order_entry; /* must be the first member: clv_order_entry is cast to the step */
  clv_work work;
  uint32_t module, n_rates;
  double rates[CLV_WIRE_GROUPS + 1];
  float scale;
  /* saves_weights: the step keeps a copy of the old weights; is_computing: the step has been
   * started, so its result is recorded */
  bool saves_weights, is_computing;
  /* copy of the old weights that the step fills before it changes the parameters; NULL: none
   * needed */
  clv_old_weights *saved_weights;
} clv_planned_step;

typedef struct clv_module_queue clv_module_queue;
typedef struct clv_queue_entry clv_queue_entry;

/* An entry in the queue of a module. It belongs to a call, or to a change, which has one entry in
 * the queue of each module that it changes. */
struct clv_queue_entry {
  clv_module_queue *queue; /* queue that the entry is in; NULL: none */
  clv_queue_entry *prev, *next;
  bool is_granted; /* it is the turn of the entry; a call may still wait for its inputs */
  clv_context_call *call;
  clv_change *change;
  uint32_t module;         /* index of the module, for an entry of a change */
  clv_tensor *gradients;   /* gradients that the change applies, or NULL */
  bool has_step_to_revert; /* the change is a REVERT, and this module has a step to revert */
  /* the change does not change this module, but the owner of parameters that are tied to it */
  bool waits_for_tied_owner;
  clv_queue_entry *next_of_change;
};

struct clv_module_queue {
  clv_queue_entry *first, *last;
  uint32_t n_changes;
  /* calls update running statistics, so they run one at a time, in ascending id */
  bool runs_in_id_order;
  bool is_dirty; /* the queue is in the list dirty_queues, because its head may have changed */
  clv_module_queue *next_dirty;
  uint64_t revertible_context_id; /* id of the context whose last step can be reverted; 0: none */
  /* id of the context whose first call saved the running statistics; 0: none */
  uint64_t buffers_saved_for_context;
  /* work that restores the saved running statistics of a module on a device */
  clv_work restore_work;
};

/* An APPLY, a REVERT, or a STATE_ packet, which waits in module queues for the calls before it. */
struct clv_change {
  clv_work work; /* must be the first member: clv_change_of_work casts */
  clv_change *next, **prev_next, *next_ready;
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module, n_rates;
  float rates[CLV_WIRE_GROUPS + 1]; /* learning rate of each parameter group */
  float scale;
  bool has_no_answer; /* the change came as part of END_CONTEXT, so it has no answer of its own */
  /* work of another context arrived after the APPLY, so it cannot be reverted */
  bool is_final;
  bool saves_snapshot; /* the step takes a snapshot first, so that REVERT can undo it */
  uint32_t n_missing;
  clv_queue_entry *entries;
  uint64_t number; /* number of the change in the order of arrival of changes and PREPAREs */
  clv_packet *packet;
};

/* Entry in the list of calls that wait for a value, which is an input of `call`. */
typedef struct clv_input_use {
  struct clv_input_use *next;
  clv_context_call *call;
} clv_input_use;

typedef struct clv_delivery {
  struct clv_delivery *next;
  uint32_t name; /* receiving node, as an index into clv_contexts.names */
  /* kept reference that receives the value, in place of a node; 0: deliver to `name` */
  uint64_t kept_ref;
  /* the settled value; NULL: `failure` is the reason why it does not exist. Both are set for kept
   * references alone */
  clv_tensor *tensor;
  clv_shared_err *failure;
} clv_delivery;

/* One gradient of a call's value. tensor is NULL if the consumer has no gradient for it. */
typedef struct clv_contribution {
  struct clv_contribution *next; /* next in a list that is sorted by phase, then by order */
  uint32_t phase, order;
  clv_tensor *tensor;
} clv_contribution;

struct clv_value {
  clv_value *next_in_bucket;
  clv_value *next, **prev_next; /* list of the values of the context */
  clv_context *ctx;
  uint64_t id;
  uint8_t state; /* state of the value, a clv_value_state */
  /* the value, once it is settled; a settled value has either `tensor` or `failure` */
  clv_tensor *tensor;
  /* copy of the value in host memory, if the value is on a device and a consumer needs a copy; else
   * NULL */
  clv_tensor *host_copy;
  struct clv_copy *copy; /* copy in progress that fills host_copy; NULL: complete, or no copy */
  clv_shared_err *failure;
  clv_input_use *uses;
  clv_delivery *deliveries;
  /* call of this node that computes the value; NULL: no such call has arrived */
  clv_context_call *producer;
  /* gradients received for the value; they can arrive before the call */
  clv_contribution *received_gradients;
  bool is_rounded_for_master; /* the master gets the value in bf16 */
  bool is_dropped;            /* DROP has arrived: free the value when no consumer waits for it */
  bool needed_by_peer; /* SPARE has arrived: another node needs the value to compute a kept value */
  /* the value stays after the end of its context, because a kept value depends on it */
  bool is_retained;
  clv_value *next_retained; /* next value in the work list of clv_context_mark_retained */
};

/* A copy in progress of a tensor from a device to the host's memory. */
typedef struct clv_copy {
  clv_work work;
  clv_tensor *from, *to;
  clv_device_copy *device_copy;
  /* backend that makes the copy: a branch of the device's backend; NULL: the backend of `from` */
  const clv_backend *copier;
  clv_value *value;   /* value whose host_copy this copy fills; NULL: none */
  clv_packet *packet; /* packet to send when the copy is complete; NULL: none */
} clv_copy;

typedef struct clv_gradient_target {
  uint64_t value; /* id of the value that the gradient is for; 0: the gradient is not needed */
  uint32_t name;  /* index in clv_contexts.names of the node that the gradient is sent to */
  uint32_t order; /* number by which the gradients of the value are sorted before they are summed */
} clv_gradient_target;

struct clv_context_call {
  clv_value *out;
  clv_module *mod; /* the module; NULL: not loaded, so the call fails */
  /* input_grads: bit i is set if the gradient of input i is computed; bf16_inputs: bit i is set if
   * input i came as bf16; its gradient is then sent as bf16, too */
  uint32_t module, micro_batch, flags, input_grads, bf16_inputs;
  uint8_t call_state; /* state of the call, a clv_call_state */
  /* n_missing: number of things that the call still waits for: its inputs, the record of its
   * arguments, its turn in the queue of its module, its position in the order of the context, and
   * the backward of `leader` */
  uint32_t n_in, n_missing;
  bool is_charged; /* the call is charged to the quota of waiting calls, until it has run */
  /* bytes charged to the device for the call's value and for its backward */
  uint64_t charged_for_value, charged_for_backward;
  uint64_t number; /* number of the call's CALL frame among the CALLs of its context, from 1 */
  clv_context_call *next_announced;
  clv_queue_entry queue_entry;
  clv_tensor *in[CLV_MAX_INPUTS];
  uint64_t arg[CLV_MAX_INPUTS];
  clv_input_use uses[CLV_MAX_INPUTS];
  clv_shared_err *failure; /* failure of an input, or error in the CALL frame; NULL: none */
  clv_work work;
  uint64_t step; /* step number in the key of random numbers (dropout) */
  /* leader: call whose backward must be done before this call runs; followers: list of calls that
   * wait for the backward of this call */
  clv_context_call *leader, *followers, *next_follower;
  clv_module_plan *plan;
  clv_call *state;
  clv_tensor *result; /* output of the call while its forward runs */
  /* copy of the output in host memory, if it is on a device and a consumer needs a copy */
  clv_tensor *host_result;
  /* running statistics of the module, saved while the call's forward is recomputed */
  clv_tensor *saved_buffers;
  bool saves_buffers; /* the call's forward first saves the module's running statistics */
  bool is_recompute;  /* the call's forward is computed again before its backward */
  uint64_t version;   /* version of the parameters that the call's forward used */
  /* copy of the parameters that the call's forward used, once a step has changed the module's;
   * NULL: the module's parameters have not changed since */
  clv_old_weights *weights;
  clv_shape out_shape;
  clv_order_entry order_entries[ORDER_CALL_KINDS];
  bool uses_old_weights;
  bool has_position; /* the call's forward has a position in the order of its context */
  /* the call had a backward in a pass that retains inputs, so it may have another one */
  bool has_had_backward;
  /* Fields for the backward pass in progress. */
  clv_context_call *next_in_pass;
  bool is_in_pass;
  /* While the input part of the call's backward is ready or runs: gradients_to_sum: gradients of
   * the call's value to be summed; dout: their sum; dins: gradients of the inputs. */
  clv_contribution *gradients_to_sum;
  clv_tensor *dout, *dins[CLV_MAX_INPUTS];
  /* buffer on the device that receives the next gradient to add; NULL: the sum is made in host
   * memory */
  clv_tensor *addend_buffer;
  /* block with the gradients of the module's parameters (block of clv_module_gradient), or NULL */
  clv_tensor *gradients;
  /* the input part (first field) or the weight part (second) of this backward adds to gradients
   * that are already there */
  bool accumulates_input_grads, accumulates_weight_grads;
  uint64_t backward_began_ns; /* time at which the input part began */
  /* gradient that the program gave for this call's value; 0: the call is no root of the pass */
  float root_gradient;
  uint32_t n_contributions;
  clv_gradient_target targets[CLV_MAX_INPUTS];
};

/* The parameter gradients of one module in one context. */
typedef struct clv_module_gradient {
  struct clv_module_gradient *next; /* next record of a list that is sorted by module */
  uint32_t module;
  clv_module *mod;
  clv_tensor *block;          /* gradients of all its parameters */
  uint64_t charged_on_device; /* bytes charged to the device for `block` */
  /* the input part (first field) or the weight part (second) of some backward has written `block`:
   * later calls add to it */
  bool input_part_done, weight_part_done;
  /* position of the last call that has one for its weight part; 0: none */
  uint32_t weight_position;
  /* weights from before the last step, for calls that ask for them; NULL: not kept */
  clv_old_weights *weights_before_step;
} clv_module_gradient;

/* The calls of one module in a backward pass, in the order of their PREPAREs, which is the order in
 * which they run. The queues of different modules proceed independently, so a queue that waits for
 * the network does not delay the others. */
typedef struct clv_backward_queue {
  struct clv_backward_queue *next;
  uint32_t module;
  clv_context_call *first, *last;
} clv_backward_queue;

struct clv_context {
  clv_context *next_in_bucket;
  /* links of the list of open contexts; the list of tombstones uses `next` alone, oldest first */
  clv_context *next, **prev_next;
  uint64_t id;
  uint8_t state; /* state of the context, a clv_context_state */
  clv_shared_err *failure;
  clv_value *values;
  uint32_t n_calls;
  /* CALLs so far in frame order, including announced ones whose tensors have not arrived */
  uint64_t calls_seen;
  /* announced calls whose tensors have not arrived, in frame order */
  clv_context_call *announced_calls;
  /* One bit per module. buffers_saved: this context has saved the module's running statistics.
   * was_in_pass: calls of the module were in a backward pass. */
  uint8_t buffers_saved[(CLV_MODULE_ALL + 7) / 8], was_in_pass[(CLV_MODULE_ALL + 7) / 8];
  uint8_t pass_state; /* state of the backward pass, a clv_pass_state */
  uint32_t phase;     /* phase of the last backward pass that began */
  /* number that the first PREPARE of the last pass has in the order of arrival of changes and
   * PREPAREs */
  uint64_t prepare_number;
  bool retains_inputs, needs_vote; /* flags of the PREPAREs of the last pass */
  /* one bit per module; 1: the module is part of the vote in progress */
  uint8_t voting_modules[(CLV_MODULE_ALL + 7) / 8];
  clv_work end_of_pass_work;
  clv_tensor *sums; /* sums of squares of the vote while the vote is work; else NULL */
  double total;
  clv_backward_queue *backward_queues;
  uint32_t n_calls_in_pass;
  clv_module_gradient *gradients;
  clv_packet *deferred_frames, *last_deferred_frame;
  uint32_t n_deferred_frames;
  /* order: entries of the work that has a position, by kind; positions_done: number of positions
   * that are done. */
  clv_order_queue order[ORDER_KINDS];
  uint32_t positions_done;
  bool is_position_started; /* the next position is a forward that waits for inputs or runs */
  /* the context is in the list dirty_contexts, because work of it may have become ready */
  bool is_dirty;
  clv_context *next_dirty;
  uint64_t end_message_id; /* message id of the END_CONTEXT that retained values */
  /* the END_CONTEXT of end_message_id discards the step: running statistics are restored at the
   * end */
  bool restores_buffers;
  clv_tensor *trace; /* rows [capacity, CLV_TRACE_COLUMNS]; NULL: the context is not traced */
  uint32_t n_trace_rows;
};

typedef struct clv_contexts_env clv_contexts_env;
struct clv_contexts_env {
  clv_pool *pool;
  clv_share *share; /* share of the cores that the node computes in; NULL: unlimited */
  clv_clock clock;
  uint64_t *next_message;
  clv_module *const *modules; /* [CLV_MODULE_ALL]; NULL where no module is loaded */
  /* executor that computes work; its owner then calls clv_contexts_finish_work on the compute
   * thread. NULL: the compute thread computes work at once */
  const clv_executor *executor;
  /* Without an executor, the node takes work of modules on devices with
   * clv_contexts_take_device_work and computes it on its device thread, which holds this lock
   * meanwhile. NULL: the compute thread computes such work. */
  pthread_mutex_t *compute_lock;
  /* packets for the master (name "") are passed to a program in this process, not to a link */
  bool has_program;
  /* [TABLE_CELLS] number of uses of each cell of the state tables, for tests; NULL: not counted */
  uint32_t *transition_counts;
};

typedef struct clv_packet_list {
  clv_packet *first, *last;
} clv_packet_list;

/* A read of a module's state to host memory, or a write of it from there. */
typedef struct clv_state_transfer {
  clv_work work;
  clv_packet *request;
  clv_packet_list answers; /* packets to send when the transfer is done */
  clv_state_item *items;   /* [n] items to read or write */
  void **host_data;        /* [n] host memory that item i is read to or written from */
  uint32_t n;
  bool is_write;
  /* the node handles the request a second time when the transfer is done */
  bool requeue_when_done;
} clv_state_transfer;

/* Ready work of one module, oldest first. */
typedef struct clv_work_list {
  clv_work *first, *last;
  bool is_running; /* a piece of work of this module runs */
  /* next in the list of work lists with ready work, sorted by the number of the first work */
  struct clv_work_list *next;
} clv_work_list;

typedef struct clv_contexts {
  clv_contexts_env env;
  clv_context **context_buckets;
  clv_value **value_buckets;
  clv_context *open_contexts, *first_tombstone, *last_tombstone;
  uint32_t n_open, n_tombstones;
  clv_slab contexts, values, calls, deliveries, contributions, gradients, errors, changes, entries,
      backward_queue_slab, steps, weights, copies, transfers;
  clv_work_list *work; /* [CLV_MODULE_ALL + 1]; the last list is for work of no module */
  clv_work_list *ready_lists;
  /* queue of started work that the device thread will take */
  clv_work *device_work, *last_device_work;
  clv_work *pending_copies, *last_pending_copy; /* queue of copies that the copy thread will take */
  clv_device_copy *device_copies[16];           /* idle progress records, reused by later copies */
  uint64_t n_ready_so_far;
  uint32_t n_work;             /* number of pieces of work that are ready or run */
  clv_packet_list held_frames; /* frames that are handled only when no work is ready or runs */
  /* queues of results that clv_contexts_take_result returns */
  clv_packet_list packets_to_send, state_frames, refused_packets;
  clv_delivery *kept_results, *last_kept_result;
  clv_context *dirty_contexts;
  /* queues: [CLV_MODULE_ALL] queue of each module; dirty_queues: list of the queues whose head may
   * have changed */
  clv_module_queue *queues, *dirty_queues;
  clv_change *waiting_changes, *ready_changes, *last_ready_change;
  uint32_t n_snapshots;             /* number of queues whose revertible_context_id is not 0 */
  uint64_t n_events;                /* number of changes and PREPAREs so far */
  char (*names)[CLV_WIRE_NAME + 1]; /* [MAX_NAMES] nodes that packets go to; 0: the master, "" */
  uint32_t n_names;
  /* error of the first impossible event that is not reported yet; code CLV_OK: none */
  clv_err impossible_event;
  uint64_t impossible_event_context; /* id of the context of impossible_event */
  clv_context_counts counts; /* counters; written by the compute thread, read by any thread */
} clv_contexts;

#endif
