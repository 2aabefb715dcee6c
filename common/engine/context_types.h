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
  char text[CLV_WIRE_TEXT + 1], hop[CLV_WIRE_NAME + 1], element[CLV_ERR_ELEMENT];
} clv_shared_err;

typedef struct clv_context_call clv_context_call;
typedef struct clv_value clv_value;
typedef struct clv_context clv_context;
typedef struct clv_change clv_change;

/* ---- work ------------------------------------------------------------------------------------ */

typedef enum clv_work_kind {
  WORK_FORWARD,
  WORK_INPUT_GRAD,  /* first part of a call's backward: gradients of its inputs */
  WORK_WEIGHT_GRAD, /* second part: gradients of parameters */
  WORK_STEP,        /* the optimiser step of an APPLY with a position */
  WORK_CHANGE,      /* an APPLY, a REVERT, or a STATE_ packet that waited for calls */
  WORK_VOTE,        /* end of a backward pass, with its vote if it has one */
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
  /* start of the work; time measured by the device, 0: not measured */
  uint64_t begin_ns, device_ns;
  const struct clv_contexts_env *env;
  /* NULL for work of no context, such as a change, which may outlive its context */
  clv_context *ctx;
  uint32_t module;
  uint8_t state; /* clv_work_state */
  uint8_t kind;
  clv_code code; /* result of ended work, set in the inbox */
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
  struct clv_order_entry *prev, *next; /* ascending position */
  uint32_t position;                   /* 0: not in the order, or removed from it */
} clv_order_entry;

typedef struct clv_order_queue {
  clv_order_entry *first, *last;
} clv_order_queue;

/* Copy of the parameters and buffers of a module from before a step. The calls that used them in
 * their forward share it. */
typedef struct clv_old_weights {
  uint32_t refs;
  clv_module *mod;
  uint64_t version;
  clv_tensor *block;
  uint64_t charged_on_device; /* bytes charged to the device for the copy */
} clv_old_weights;

/* An APPLY with a position. */
typedef struct clv_planned_step {
  clv_order_entry place; /* must be the first member: clv_order_entry is cast to the step */
  clv_work work;
  uint32_t module, n_rates;
  double rates[CLV_WIRE_GROUPS + 1];
  float scale;
  /* saves_weights: keep a copy of the old weights; is_computing: runs even if its context ends */
  bool saves_weights, is_computing;
  /* copy that the step fills before it changes the parameters, or NULL */
  clv_old_weights *saved_weights;
} clv_planned_step;

typedef struct clv_module_queue clv_module_queue;
typedef struct clv_queue_entry clv_queue_entry;

/* An entry in the queue of a module. It belongs to a call, or to a change, which has one entry in
 * the queue of each module that it changes. */
struct clv_queue_entry {
  clv_module_queue *queue; /* NULL: not queued */
  clv_queue_entry *prev, *next;
  bool is_granted;
  clv_context_call *call;
  clv_change *change;
  uint32_t module;       /* module of a change's entry */
  clv_tensor *gradients; /* gradients that the change applies, or NULL */
  bool is_revert;        /* this module has a step that the change reverts */
  /* the change is to a module that this module shares tied parameters with */
  bool waits_for_tied_owner;
  clv_queue_entry *next_of_change;
};

struct clv_module_queue {
  clv_queue_entry *first, *last;
  uint32_t n_changes;
  /* calls update running statistics, so they run one at a time, in ascending id */
  bool runs_in_id_order;
  bool is_dirty; /* linked in dirty_queues, because its head may have changed */
  clv_module_queue *next_dirty;
  uint64_t revertible_context; /* id of the context whose last step can be reverted; 0: none */
  /* id of the context whose first call saved the running statistics; 0: none */
  uint64_t buffers_saved_for;
  clv_work restore; /* restores the saved statistics of a module on a device */
};

/* An APPLY, a REVERT, or a STATE_ packet, which waits in module queues for the calls before it. */
struct clv_change {
  clv_work work; /* must be the first member: clv_work_change casts */
  clv_change *next, **prev_next, *next_ready;
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module, n_rates;
  float rates[CLV_WIRE_GROUPS + 1]; /* learning rate of each parameter group */
  float scale;
  bool has_no_answer;  /* is not answered, because it came as part of another frame */
  bool is_final;       /* work of another context arrived after it, so it cannot be reverted */
  bool saves_snapshot; /* takes a snapshot first, so that REVERT can undo the step */
  uint32_t n_missing;
  clv_queue_entry *entries;
  uint64_t number; /* position in the order of arrival of changes and PREPAREs */
  clv_packet *packet;
};

/* A call that waits for a value which is one of its inputs. */
typedef struct clv_input_use {
  struct clv_input_use *next;
  clv_context_call *call;
} clv_input_use;

typedef struct clv_delivery {
  struct clv_delivery *next;
  uint32_t name; /* index in clv_contexts.names */
  /* kept reference that receives the value, in place of a node; 0: deliver to `name` */
  uint64_t kept_ref;
  /* the value once it is settled, or the reason why it does not exist in `failed` */
  clv_tensor *tensor;
  clv_shared_err *failed;
} clv_delivery;

/* One gradient of a call's value. tensor is NULL if the consumer has no gradient for it. */
typedef struct clv_contribution {
  struct clv_contribution *next; /* sorted by phase, then by order */
  uint32_t phase, order;
  clv_tensor *tensor;
} clv_contribution;

struct clv_value {
  clv_value *next_in_bucket;
  clv_value *next, **prev_next; /* list of the values of the context */
  clv_context *ctx;
  uint64_t id;
  uint8_t state;      /* clv_value_state */
  clv_tensor *tensor; /* the value; a settled value has either `tensor` or `failed` */
  /* copy in host memory of a value on a device, made when a consumer needs it; or NULL */
  clv_tensor *host_copy;
  struct clv_copy *copy; /* copy in progress that fills host_copy; NULL: complete, or no copy */
  clv_shared_err *failed;
  clv_input_use *uses;
  clv_delivery *deliveries;
  clv_context_call *producer; /* call of this node that computes the value, or NULL */
  /* gradients received for the value; they can arrive before the call */
  clv_contribution *received_gradients;
  bool is_dropped;     /* DROP has arrived: free the value when no consumer waits for it */
  bool needed_by_peer; /* SPARE has arrived: another node needs it to compute a kept value */
  bool is_retained;    /* stays after the end of its context, because a kept value depends on it */
  clv_value *next_retained; /* work list of clv_context_mark_retained */
};

/* A copy in progress of a tensor from a device to the host's memory. */
typedef struct clv_copy {
  clv_work work;
  clv_tensor *from, *to;
  clv_device_copy *device_copy;
  /* backend that copies: a branch of the same device; NULL: the backend of `from` */
  const clv_backend *copier;
  clv_value *value;   /* value whose host_copy is being filled, or NULL */
  clv_packet *packet; /* packet to send when the copy is complete, or NULL */
} clv_copy;

typedef struct clv_gradient_target {
  uint64_t value; /* id of the input's value; 0: the gradient is not needed */
  uint32_t name, order;
} clv_gradient_target;

struct clv_context_call {
  clv_value *out;
  clv_module *mod; /* NULL: no such module is loaded, which fails the value */
  uint32_t module, micro_batch, flags, input_grads;
  uint8_t progress; /* clv_call_state */
  /* n_missing: what it still waits for among inputs, arguments, its turn in the queue and its
   * leader */
  uint32_t n_in, n_missing;
  bool is_charged; /* counts against the quota of waiting calls until it has run */
  /* bytes charged to its device for its value and for its backward */
  uint64_t charged_for_value, charged_for_backward;
  uint64_t number; /* number of its CALL among the CALLs of the context, from 1 */
  clv_context_call *next_announced;
  clv_queue_entry queue_entry;
  clv_tensor *in[CLV_MAX_INPUTS];
  uint64_t arg[CLV_MAX_INPUTS];
  clv_input_use uses[CLV_MAX_INPUTS];
  clv_shared_err *failed; /* failure of an input, or of the CALL's arguments */
  clv_work work;
  uint64_t step; /* step that keys the random numbers (dropout) */
  /* leader: call after whose backward this one runs; followers: calls that wait for this one's
   * backward */
  clv_context_call *leader, *followers, *next_follower;
  clv_module_plan *plan;
  clv_call *state;
  clv_tensor *result; /* output while its forward runs */
  /* copy of the output in host memory, if it is on a device and a consumer needs a copy */
  clv_tensor *host_result;
  clv_tensor *saved_buffers; /* running statistics, saved while its forward is recomputed */
  bool saves_buffers;        /* its forward first saves the running statistics */
  bool is_recompute;         /* its forward is a recompute before its backward */
  uint64_t version;          /* version of the parameters that its forward used */
  /* copy of these parameters after a step has changed the module's; NULL: the module's own are
   * still the same */
  clv_old_weights *weights;
  clv_shape out_shape;
  clv_order_entry places[ORDER_CALL_KINDS];
  bool uses_old_weights;
  bool has_position; /* has a position in the order of its context */
  bool had_backward; /* has had a backward in a pass that retains it; may have another */
  /* Fields for the backward pass in progress. */
  clv_context_call *next_in_pass;
  bool is_in_pass;
  /* While the first part of its backward is work: the gradients of its value to be summed, the sum
   * `dout`, and the gradients `dins` of its inputs. */
  clv_contribution *addends;
  clv_tensor *dout, *dins[CLV_MAX_INPUTS];
  /* buffer on the device that receives the next gradient to add, when the sum is made there */
  clv_tensor *addend;
  /* gradients of its parameters (the block in clv_module_gradient), or NULL */
  clv_tensor *gradients;
  /* this backward adds to gradients that are present */
  bool accumulates_input_grads, accumulates_weight_grads;
  uint64_t backward_began_ns; /* start of the first part */
  float root_gradient;        /* initial gradient of a root of the pass; 0: not a root */
  uint32_t contributions;
  clv_gradient_target targets[CLV_MAX_INPUTS];
};

/* The parameter gradients of one module in one context. */
typedef struct clv_module_gradient {
  struct clv_module_gradient *next; /* sorted by module */
  uint32_t module;
  clv_module *mod;
  clv_tensor *block;          /* gradients of all its parameters */
  uint64_t charged_on_device; /* bytes charged to the device for the block */
  /* this part of some backward has written the block: later calls accumulate into it */
  bool input_part_done, weight_part_done;
  uint32_t weight_position; /* position of the last call whose weight part has run; 0: none */
  /* weights from before the last step, for calls that ask for old weights */
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
  /* list of open contexts; tombstones use `next` alone, oldest first */
  clv_context *next, **prev_next;
  uint64_t id;
  uint8_t state; /* clv_context_state */
  clv_shared_err *failed;
  clv_value *values;
  uint32_t n_calls;
  /* CALLs so far in frame order, including announced ones whose tensors have not arrived */
  uint64_t calls_seen;
  /* announced calls whose tensors have not arrived, in frame order */
  clv_context_call *announced_calls;
  /* One bit per module. buffers_saved: this context has saved its running statistics. was_in_pass:
   * calls of it were in a backward pass. */
  uint8_t buffers_saved[(CLV_MODULE_ALL + 7) / 8], was_in_pass[(CLV_MODULE_ALL + 7) / 8];
  uint8_t pass;   /* clv_pass_state */
  uint32_t phase; /* phase of the last backward pass that began */
  /* number of the first PREPARE of the last pass in the order of changes */
  uint64_t prepare_number;
  bool retain, vote;
  uint8_t voting[(CLV_MODULE_ALL + 7) / 8]; /* one bit per module that the running vote covers */
  clv_work end_of_pass;
  clv_tensor *sums; /* sums of the vote while it is work, or NULL */
  double total;
  clv_backward_queue *backward_queues;
  uint32_t n_calls_in_pass;
  clv_module_gradient *gradients;
  clv_packet *deferred_frames, *last_deferred_frame;
  uint32_t n_deferred_frames;
  /* The work that has a position, by kind, and the number of positions done. */
  clv_order_queue order[ORDER_KINDS];
  uint32_t positions_done;
  bool position_started; /* the next position is a forward that waits for inputs or runs */
  bool is_dirty; /* linked in dirty_contexts, because something of it may have become ready */
  clv_context *next_dirty;
  uint64_t end_message;  /* message id of the END_CONTEXT that retained values */
  bool restores_buffers; /* that END_CONTEXT discards the step: restore running statistics */
  clv_tensor *trace;     /* rows [capacity, CLV_TRACE_COLUMNS]; NULL: the context is not traced */
  uint32_t n_trace;
};

typedef struct clv_contexts_env clv_contexts_env;
struct clv_contexts_env {
  clv_pool *pool;
  clv_share *share; /* share of the cores that the node computes in; NULL: unlimited */
  clv_clock clock;
  uint64_t *next_message;
  clv_module *const *modules; /* [CLV_MODULE_ALL]; NULL where no module is loaded */
  /* runs the work, and has clv_contexts_finish_work called on this thread. NULL: work runs here at
   * once */
  const clv_executor *executor;
  /* Without an executor, the node takes work of modules on devices with
   * clv_contexts_take_device_work and computes it on its device thread, which holds this lock
   * meanwhile. NULL: such work is computed on this thread. */
  pthread_mutex_t *computing;
  /* results for the empty name go to a program in this process, not over a link */
  bool has_program;
  /* [TABLE_CELLS] how often each cell was used, for tests; NULL: not counted */
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
  clv_state_item *items;   /* [n] */
  void **host;             /* [n] host memory that each item is read to or written from */
  uint32_t n;
  bool writes;
  /* the node receives the request a second time when the transfer is done */
  bool requeue_when_done;
} clv_state_transfer;

/* Ready work of one module, oldest first. */
typedef struct clv_work_list {
  clv_work *first, *last;
  bool is_running; /* work of this module runs */
  /* next list with ready work, sorted by the number of the first work */
  struct clv_work_list *next;
} clv_work_list;

typedef struct clv_contexts {
  clv_contexts_env env;
  clv_context **context_buckets;
  clv_value **value_buckets;
  clv_context *open, *tomb_first, *tomb_last;
  uint32_t n_open, n_tombs;
  clv_slab contexts, values, calls, deliveries, contributions, gradients, errors, changes, entries,
      backward_queue_slab, steps, weights, copies, transfers;
  clv_work_list *work; /* [CLV_MODULE_ALL + 1]; the last list is for work of no module */
  clv_work_list *ready;
  clv_work *device_work, *last_device_work;     /* started work that waits for the device thread */
  clv_work *pending_copies, *last_pending_copy; /* copies that wait for the copy thread */
  clv_device_copy *device_copies[16];           /* idle progress records, reused by later copies */
  uint64_t n_ready_so_far;
  uint32_t n_work;                 /* work that is ready or runs */
  clv_packet_list deferred_frames; /* frames that are handled only when no work is ready or runs */
  clv_packet_list send, state_frames, refused; /* results that wait for clv_contexts_take_result */
  clv_delivery *kept_results, *last_kept_result;
  clv_context *dirty_contexts;
  /* queues: [CLV_MODULE_ALL]; dirty_queues: those whose head may have changed */
  clv_module_queue *queues, *dirty_queues;
  clv_change *waiting_changes, *ready_changes, *last_ready_change;
  uint32_t n_snapshots;             /* queues whose revertible_context is not 0 */
  uint64_t n_events;                /* changes and PREPAREs so far */
  char (*names)[CLV_WIRE_NAME + 1]; /* [MAX_NAMES]; index 0 is the master, "" */
  uint32_t n_names;
  clv_err impossible_event; /* first impossible event that is not reported yet; code CLV_OK: none */
  uint64_t impossible_event_context; /* context of that event */
  clv_context_counts counts; /* counters; written by the compute thread, read by any thread */
} clv_contexts;

#endif
