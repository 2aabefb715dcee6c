/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of the engine of contexts (context_int.h).
 */
#ifndef CLEAVE_CONTEXT_TYPES_H
#define CLEAVE_CONTEXT_TYPES_H

#include <pthread.h>

#include "common/engine/context_table.h"
#include "common/engine/module_int.h"
#include "common/net/fair/fair.h"

enum {
  MAX_CONTEXTS = 4096,       /* open at once, per session */
  MAX_CONTEXT_CALLS = 65536, /* per context */
  MAX_CONTEXT_ITEMS = 65536, /* values; as many deliveries and gradients; per session */
  MAX_TOMBSTONES = 2048,     /* ended ids that are remembered */
  MAX_WAITING_FRAMES = 1024, /* DROP and PREPARE, per context */
  MAX_CHANGES = 4096,        /* of parameters that wait for calls, per session */
  MAX_NAMES = 64,            /* workers named in a session */
};

/* Why a value does not exist or a context failed. Shared by all that depend on it. */
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
  WORK_INPUT_GRAD,  /* the first part of a call's backward */
  WORK_WEIGHT_GRAD, /* the second */
  WORK_STEP,        /* an APPLY with a position */
  WORK_CHANGE,      /* APPLY, REVERT, or a packet of state that was held */
  WORK_VOTE,        /* the end of a pass */
  WORK_COPY,        /* of a tensor to the host's memory */
  WORK_TRANSFER,    /* of a module's state */
  WORK_RESTORE,     /* of its running statistics */
  WORK_KINDS
} clv_work_kind;

/* Part of the record that it is work of. Of one module, or (CLV_MODULE_ALL) of none. */
struct clv_work {
  clv_work *next;               /* of its module; in the inbox, of those that have ended */
  uint64_t number;              /* in the order in which work became ready */
  uint64_t begin_ns, device_ns; /* what its device says that it took; 0: nothing */
  const struct clv_contexts_env *env;
  clv_context *ctx; /* NULL: of a change, whose context may have ended */
  uint32_t module;
  uint8_t state; /* clv_work_state */
  uint8_t kind;
  clv_code code; /* in the inbox: how it has ended, and why if it failed (NULL: no memory for it) */
  clv_err *why;
};

/* ---- what a context holds -------------------------------------------------------------------- */

/* What has a place in the order of its context (context_order.c). */
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
  uint32_t position;                   /* 0: in no order, or not any more */
} clv_order_entry;

typedef struct clv_order_queue {
  clv_order_entry *first, *last;
} clv_order_queue;

/* Parameters and buffers of a module as they were before a step, for calls that used them. */
typedef struct clv_old_weights {
  uint32_t refs;
  clv_module *mod;
  uint64_t version;
  clv_tensor *block;
  uint64_t on_device; /* charged for it */
} clv_old_weights;

/* An APPLY with a position. */
typedef struct clv_planned_step {
  clv_order_entry place; /* the first member */
  clv_work work;
  uint32_t module, n_rates;
  double rates[CLV_WIRE_GROUPS + 1];
  float scale;
  bool keep, taken;      /* taken: it computes, whatever becomes of its context */
  clv_old_weights *kept; /* to be filled before it changes the parameters, or NULL */
} clv_planned_step;

typedef struct clv_module_queue clv_module_queue;
typedef struct clv_queue_entry clv_queue_entry;

/* A place in the queue of a module: of a call, or one of those of a change. */
struct clv_queue_entry {
  clv_module_queue *queue; /* NULL: in none */
  clv_queue_entry *prev, *next;
  bool granted;
  clv_context_call *call;
  clv_change *change;
  uint32_t module;       /* of a change, as the next two */
  clv_tensor *gradients; /* to be applied, or NULL */
  bool reverts;          /* there is a step to be taken back */
  bool follows;          /* what changes is a parameter of a module that it is tied to */
  clv_queue_entry *next_of_change;
};

struct clv_module_queue {
  clv_queue_entry *first, *last;
  uint32_t n_changes;
  bool ordered; /* calls change running statistics: one at a time, in ascending id */
  bool marked;  /* its first may have changed */
  clv_module_queue *next_marked;
  uint64_t snapshot_of; /* the context whose APPLY REVERT may take back, 0 = none */
  uint64_t shadow_of;   /* the context before whose calls running statistics were kept, 0 = none */
  clv_work restore;     /* of these, where they are on a device */
};

/* An APPLY, a REVERT, or a packet of state that waits for calls. */
struct clv_change {
  clv_work work; /* the first member */
  clv_change *next, **at, *next_due;
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module, n_rates;
  float rates[CLV_WIRE_GROUPS + 1]; /* of each group */
  float scale;
  bool silent; /* not answered: it came with another frame */
  bool final;  /* work of another context came after it */
  bool keeps;  /* a copy of what was before, so that it can be taken back */
  uint32_t n_missing;
  clv_queue_entry *entries;
  uint64_t number; /* in the order of arrival */
  clv_packet *packet;
};

/* An input that waits for its value. */
typedef struct clv_input_use {
  struct clv_input_use *next;
  clv_context_call *call;
} clv_input_use;

typedef struct clv_delivery {
  struct clv_delivery *next;
  uint32_t name; /* of clv_contexts.names */
  uint64_t keep; /* instead: the reference that outlives the context with this value; 0: none */
  clv_tensor *tensor; /* what it gets, or */
  clv_shared_err *failed;
} clv_delivery;

/* One gradient of a call's value. tensor NULL: nothing flows. */
typedef struct clv_contribution {
  struct clv_contribution *next; /* ascending phase, then order */
  uint32_t phase, order;
  clv_tensor *tensor;
} clv_contribution;

struct clv_value {
  clv_value *next_in_bucket;
  clv_value *next, **at; /* of the context */
  clv_context *ctx;
  uint64_t id;
  uint8_t state;         /* clv_value_state */
  clv_tensor *tensor;    /* settled: this or `failed` */
  clv_tensor *host;      /* its copy there, where it has a home and somebody asked; or NULL */
  struct clv_copy *copy; /* that is making it; NULL: it is whole, or there is none */
  clv_shared_err *failed;
  clv_input_use *uses;
  clv_delivery *deliveries;
  clv_context_call *maker; /* the call here that makes it, or NULL */
  clv_contribution *got;   /* gradients of it; they may come before the call */
  bool dropped;            /* goes when nothing waits for it any more */
  bool wanted;             /* at another node, for a value that is kept there */
  bool spared;             /* by the end of its context: a kept value needs it */
  clv_value *next_spared;  /* while it is found out which */
};

/* What lies on a device comes to the host's memory. */
typedef struct clv_copy {
  clv_work work;
  clv_tensor *from, *to;
  clv_device_copy *device_copy;
  const clv_backend *by; /* that copies: another one of the same device, or NULL: that of `from` */
  clv_value *value;      /* whose `host` it is, or NULL */
  clv_packet *packet;    /* that leaves when all is there, or NULL */
} clv_copy;

typedef struct clv_gradient_target {
  uint64_t value; /* 0: nobody wants the gradient of this input */
  uint32_t name, order;
} clv_gradient_target;

struct clv_context_call {
  clv_value *out;
  clv_module *mod; /* NULL: no such module, which fails the value */
  uint32_t module, micro_batch, flags, input_grads;
  uint8_t progress;         /* clv_call_state */
  uint32_t n_in, n_missing; /* inputs, its arguments, its place in the queue, its leader */
  bool charged;             /* to the quota of calls, until it has run */
  uint64_t holds, passing;  /* bytes charged to its device: for its value, for its backward */
  uint64_t number;          /* of its CALL among those of the context, from 1 */
  clv_context_call *next_coming;
  clv_queue_entry queue_entry;
  clv_tensor *in[CLV_MAX_INPUTS];
  uint64_t arg[CLV_MAX_INPUTS];
  clv_input_use uses[CLV_MAX_INPUTS];
  clv_shared_err *failed; /* a poisoned input, or an argument that is wrong */
  clv_work work;
  uint64_t step;                                        /* keys random numbers */
  clv_context_call *leader, *followers, *next_follower; /* it runs after the leader's backward */
  clv_module_plan *plan;
  clv_call *state;
  clv_tensor *result;       /* of its forward, while that is work; as buffers_kept */
  clv_tensor *on_host;      /* the result's copy there, if it has a home and somebody wants one */
  clv_tensor *buffers_kept; /* running statistics, while its forward runs again */
  bool keeps_buffers;       /* its forward keeps those of before first */
  bool again;               /* its forward runs again */
  uint64_t version;         /* of the parameters at its forward */
  clv_old_weights *weights; /* these, when they are not the module's any more; NULL: they are */
  clv_shape out_shape;
  clv_order_entry places[ORDER_CALL_KINDS];
  bool previous_weights;
  bool in_order;     /* it has a position */
  bool had_backward; /* it has had a backward, and may have another */
  /* of the backward pass in progress */
  clv_context_call *next_needed;
  bool needed;
  /* While the first part is work: gradients of its value to be added up, and their sum; those of
   * its inputs. */
  clv_contribution *addends;
  clv_tensor *dout, *dins[CLV_MAX_INPUTS];
  clv_tensor *addend;         /* where the gradients are added on a device: the next of them */
  clv_tensor *gradients;      /* of its parameters: the block of the context, or NULL */
  bool add_input, add_weight; /* to what is there */
  uint64_t backward_ns;       /* when the first part began */
  float root;                 /* what its gradient starts with, 0: it is no root */
  uint32_t contributions;
  clv_gradient_target targets[CLV_MAX_INPUTS];
};

/* The gradients of one module in one context. */
typedef struct clv_module_gradient {
  struct clv_module_gradient *next; /* ascending module */
  uint32_t module;
  clv_module *mod;
  clv_tensor *block;           /* gradient_bytes */
  uint64_t on_device;          /* charged for it */
  bool filled, weights_filled; /* by the first part of a backward, by the second: others add */
  uint32_t weight_position;    /* of the last call whose backward has run; 0: of none */
  clv_old_weights *previous;   /* before the last step, for calls with `old_weights` */
} clv_module_gradient;

/* The calls of one module in a backward pass, in the order in which they run: that of PREPARE.
 * Strands go on independently, so that one that waits for the network does not hold up the
 * others. */
typedef struct clv_backward_queue {
  struct clv_backward_queue *next;
  uint32_t module;
  clv_context_call *first, *last;
} clv_backward_queue;

struct clv_context {
  clv_context *next_in_bucket;
  clv_context *next, **at; /* open ones; tombstones use next alone, oldest first */
  uint64_t id;
  uint8_t state; /* clv_context_state */
  clv_shared_err *failed;
  clv_value *values;
  uint32_t n_calls;
  uint64_t calls_seen;      /* CALLs, in the order of frames, be their tensors here or not */
  clv_context_call *coming; /* those whose tensors are not, in that order */
  /* A bit per module: its running statistics have been kept; calls of it were in a backward
   * pass. */
  uint8_t kept[(CLV_MODULE_ALL + 7) / 8], took_part[(CLV_MODULE_ALL + 7) / 8];
  uint8_t pass;      /* clv_pass_state */
  uint32_t phase;    /* the last that began */
  uint64_t prepared; /* place of its last pass's first PREPARE among the changes */
  bool retain, vote;
  uint8_t
      voting[(CLV_MODULE_ALL + 7) / 8]; /* a bit per module that is its vote's, while that runs */
  clv_work end_of_pass;
  clv_tensor *sums; /* of its vote, while that is work */
  double total;
  clv_backward_queue *strands;
  uint32_t n_needed;
  clv_module_gradient *gradients;
  clv_packet *waiting, *waiting_last;
  uint32_t n_waiting;
  /* Its order: what has a position, and how many are done. */
  clv_order_queue order[ORDER_KINDS];
  uint32_t positions_done;
  bool position_begun; /* the next one is a forward that waits for its inputs or runs */
  bool marked;         /* something of it may have become ready */
  clv_context *next_marked;
  uint64_t end_message; /* of the END_CONTEXT that spares something */
  bool restores;        /* which takes running statistics back */
  clv_tensor *trace;    /* [n_trace_cap, CLV_TRACE_COLUMNS]; NULL: not noted */
  uint32_t n_trace;
};

typedef struct clv_contexts_env clv_contexts_env;
struct clv_contexts_env {
  clv_pool *pool;
  clv_share *share; /* that it computes from, or NULL */
  clv_clock clock;
  uint64_t *next_message;
  clv_module *const *modules; /* [CLV_MODULE_ALL], NULL where not local */
  const clv_executor
      *executor; /* NULL: at once, on this thread. It has clv_contexts_finish_work called there */
  /* Without an executor: what has to do with modules on devices is given out
   * (clv_contexts_take_device_work), and this is held while it is computed. NULL: it ends at
   * once. */
  pthread_mutex_t *computing;
  bool program;     /* what goes to no name is for a program of this process, not for a link */
  uint32_t *walked; /* [TABLE_CELLS] cells that facts have met; NULL: not counted */
};

typedef struct clv_packet_list {
  clv_packet *first, *last;
} clv_packet_list;

/* State of a module, read to the host's memory or written from there. */
typedef struct clv_state_transfer {
  clv_work work;
  clv_packet *request;
  clv_packet_list answers; /* that leave when it is done */
  clv_state_item *items;   /* [n] */
  void **host;             /* [n] where each goes, or comes from */
  uint32_t n;
  bool writes;
  bool again; /* the node gets the request once more when it is done */
} clv_state_transfer;

/* Ready work of one module, oldest first. */
typedef struct clv_work_list {
  clv_work *first, *last;
  bool running;               /* work of this module */
  struct clv_work_list *next; /* of those that have ready work, by the number of its first */
} clv_work_list;

typedef struct clv_contexts {
  clv_contexts_env env;
  clv_context **context_buckets;
  clv_value **value_buckets;
  clv_context *open, *tomb_first, *tomb_last;
  uint32_t n_open, n_tombs;
  clv_slab contexts, values, calls, deliveries, contributions, gradients, errors, changes, entries,
      strands, steps, weights, copies, transfers;
  clv_work_list *work; /* [CLV_MODULE_ALL + 1], the last: of no module */
  clv_work_list *ready;
  clv_work *far, *last_far;           /* to be given out */
  clv_work *copies_out, *last_copy;   /* copies that nobody makes yet */
  clv_device_copy *device_copies[16]; /* for copies, kept */
  uint64_t n_ready_so_far;
  uint32_t n_work;                             /* ready or running */
  clv_packet_list held;                        /* frames that wait until there is no work */
  clv_packet_list send, state_frames, refused; /* results */
  clv_delivery *kept, *kept_last;
  clv_context *marked_contexts;
  clv_module_queue *queues, *marked; /* [CLV_MODULE_ALL]; those whose first may have changed */
  clv_change *waiting_changes, *due, *due_last;
  uint32_t n_snapshots;             /* queues with snapshot_of */
  uint64_t n_events;                /* changes and PREPAREs */
  char (*names)[CLV_WIRE_NAME + 1]; /* [MAX_NAMES]; 0 is the master, "" */
  uint32_t n_names;
  clv_err mistake; /* the first fact that met what cannot be, and is not told yet; code 0 = none */
  uint64_t mistaken;         /* its context */
  clv_context_counts counts; /* written by the compute thread alone */
} clv_contexts;

#endif
