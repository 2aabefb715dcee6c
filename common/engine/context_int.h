/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of distributed autograd contexts at one node (PROTOCOL.md 6). The program that owns a
 * context runs elsewhere and says everything: which module is called with which values, who needs
 * them, which calls take part in a backward pass. This side keeps values and calls, runs what is
 * ready, and adds gradients up in an order that does not depend on the network.
 *
 * A context holds values; the value made by a call here holds that call. What arrives before its
 * time hangs where it will be needed: a call at the values it waits for, a delivery at its value, a
 * gradient at its call, DROP and PREPARE at the context until the CALLs they count are here. What
 * has to wait for its turn although it is complete stands in the line of its module
 * (context_turn.c).
 *
 * Threads: the node's compute thread alone; the counters are read by others. Nothing recurses: what
 * becomes ready is queued.
 * Memory: every record comes from a slab and is charged to the session's quota; after warm-up none
 * is taken.
 */
#ifndef CLEAVE_CONTEXT_INT_H
#define CLEAVE_CONTEXT_INT_H

#include "common/fair/fair.h"
#include "common/engine/module_int.h"

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

/* What has a place in the order of its context (context_order.c). */
typedef enum clv_order_kind {
  ORDER_FORWARD,
  ORDER_BACKWARD,
  ORDER_WEIGHT,
  ORDER_CALL_KINDS,
  ORDER_STEP = ORDER_CALL_KINDS,
  ORDER_KINDS
} clv_order_kind;

typedef struct clv_order_place {
  struct clv_order_place *prev, *next; /* ascending position */
  uint32_t position;                   /* 0: in no order, or not any more */
} clv_order_place;

typedef struct clv_order_queue {
  clv_order_place *first, *last;
} clv_order_queue;

/* Parameters and buffers of a module as they were before a step, for calls that used them. */
typedef struct clv_old_weights {
  uint32_t refs;
  clv_module *mod;
  uint64_t version;
  clv_tensor *block;
} clv_old_weights;

/* An APPLY with a position. */
typedef struct clv_planned_step {
  clv_order_place place; /* the first member */
  uint32_t module, n_rates;
  double rates[CLV_WIRE_GROUPS + 1];
  float scale;
  bool keep;
} clv_planned_step;

typedef struct clv_module_queue clv_module_queue;
typedef struct clv_queue_entry clv_queue_entry;
typedef struct clv_change clv_change;

/* A place in the line of a module: of a call, or one of those of a change. */
struct clv_queue_entry {
  clv_module_queue *queue; /* NULL: in none */
  clv_queue_entry *prev, *next;
  bool granted;
  clv_context_call *call;
  clv_change *change;
  uint32_t module;       /* of a change, as the next two */
  clv_tensor *gradients; /* to be applied, or NULL */
  clv_queue_entry *next_of_change;
};

struct clv_module_queue {
  clv_queue_entry *first, *last;
  uint32_t n_changes;
  bool ordered; /* calls change running statistics: one at a time, in ascending id */
  bool marked;
  clv_module_queue *next_marked;
  uint64_t snapshot_of; /* the context whose APPLY REVERT may take back, 0 = none */
  uint64_t shadow_of;   /* the context before whose calls running statistics were kept, 0 = none */
};

/* An APPLY, a REVERT, or a packet of state that waits for its turn. */
struct clv_change {
  clv_change *next, **at, *next_due;
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module, n_rates;
  float rates[CLV_WIRE_GROUPS + 1]; /* of each group */
  float scale;
  bool silent; /* not answered: it came with another frame */
  bool final;  /* work of another context came after it */
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
  clv_tensor *tensor; /* neither this nor failed: not there yet */
  clv_shared_err *failed;
  clv_input_use *uses;
  clv_delivery *deliveries;
  clv_context_call *maker; /* the call here that makes it, or NULL */
  clv_contribution *got;   /* gradients of it; they may come before the call */
  bool dropped;            /* goes when nothing waits for it any more */
};

typedef struct clv_gradient_target {
  uint64_t value; /* 0: nobody wants the gradient of this input */
  uint32_t name, order;
} clv_gradient_target;

typedef enum clv_call_phase {
  WAITING,  /* for inputs */
  FORWARD,  /* has run, its backward may come */
  RETAINED, /* inputs alone are kept; its forward runs again before the next backward */
  SPENT,    /* backward done, inputs gone */
  INFERRED, /* no backward: not training, or nothing to differentiate */
} clv_call_phase;

struct clv_context_call {
  clv_value *out;
  clv_module *mod; /* NULL: no such module, which fails the value */
  uint32_t module, micro_batch, flags, input_grads;
  clv_call_phase phase;
  uint32_t n_in, n_missing; /* inputs, its arguments, its turn, its leader */
  bool on_its_way;          /* the head of its CALL is here, its tensors are not */
  bool charged;             /* to the quota of calls, until it has run */
  uint64_t number;          /* of its CALL among those of the context, from 1 */
  clv_context_call *next_coming;
  clv_queue_entry queue_entry;
  clv_tensor *in[CLV_MAX_INPUTS];
  uint64_t arg[CLV_MAX_INPUTS];
  clv_input_use uses[CLV_MAX_INPUTS];
  clv_shared_err *failed; /* a poisoned input, or an argument that is wrong */
  clv_context_call *next_ready;
  uint64_t step;                                        /* keys random numbers */
  clv_context_call *leader, *followers, *next_follower; /* it runs after the leader's backward */
  clv_module_plan *plan;
  clv_call *state;
  uint64_t version;         /* of the parameters at its forward */
  clv_old_weights *weights; /* these, when they are not the module's any more; NULL: they are */
  clv_shape out_shape;
  clv_order_place places[ORDER_CALL_KINDS];
  bool previous_weights;
  bool in_order;     /* it has a position */
  bool weight_due;   /* its backward has run, its W has not */
  bool had_backward; /* it has had a backward */
  /* of the backward pass in progress */
  clv_context_call *next_needed;
  bool needed;
  float root; /* what its gradient starts with, 0: it is no root */
  uint32_t contributions;
  clv_gradient_target targets[CLV_MAX_INPUTS];
};

/* The gradients of one module in one context. */
typedef struct clv_module_gradient {
  struct clv_module_gradient *next; /* ascending module */
  uint32_t module;
  clv_module *mod;
  clv_tensor *block;           /* trainable_bytes */
  bool filled, weights_filled; /* by the first part of a backward, by the second: others add */
  uint32_t weight_position;    /* of the last call whose backward has run; 0: of none */
  clv_old_weights *previous;   /* before the last step, for calls that are `behind` */
} clv_module_gradient;

/* The calls of one module in a backward pass, in the order in which they run: that of PREPARE.
 * Strands go on independently, so that one that waits for the network does not hold up the
 * others. */
typedef struct clv_strand {
  struct clv_strand *next;
  uint32_t module;
  clv_context_call *first, *last;
} clv_strand;

struct clv_context {
  clv_context *next_in_bucket;
  clv_context *next, **at; /* open ones; tombstones use next alone, oldest first */
  uint64_t id;
  bool ended;
  clv_shared_err *failed;
  clv_value *values;
  uint32_t n_calls;
  uint64_t calls_seen;      /* CALLs, in the order of frames, be their tensors here or not */
  clv_context_call *coming; /* those whose tensors are not, in that order */
  /* A bit per module: its running statistics have been kept; calls of it were in a backward
   * pass. */
  uint8_t kept[(CLV_MODULE_ALL + 7) / 8], took_part[(CLV_MODULE_ALL + 7) / 8];
  uint32_t phase;    /* the last that began */
  uint64_t prepared; /* place of its last pass's first PREPARE among the changes */
  bool active;       /* the pass has begun and has not finished */
  bool collecting;   /* more PREPAREs of it follow */
  bool retain, vote;
  clv_strand *strands;
  uint32_t n_needed;
  clv_module_gradient *gradients;
  clv_packet *waiting, *waiting_last;
  uint32_t n_waiting;
  /* Its order: what has a position, and how many are done. */
  clv_order_queue order[ORDER_KINDS];
  uint32_t positions_done;
  bool position_begun; /* the next one is a forward that waits for its inputs or runs */
  bool order_ready;    /* something may be due */
  clv_context *next_order_ready;
  clv_tensor *trace; /* [n_trace_cap, CLV_TRACE_COLUMNS]; NULL: not noted */
  uint32_t n_trace;
};

typedef struct clv_contexts_env {
  clv_pool *pool;
  clv_share *share; /* that it computes from, or NULL */
  uint64_t *next_message;
  void *user;
  clv_module *(*module)(void *user, uint32_t module); /* or NULL */
  void (*emit)(void *user, clv_packet *packet);       /* takes it */
  void (*obey)(void *user, clv_packet *packet);       /* a STATE_ frame that was held; takes it */
  /* A value that clv_contexts_keep asked for: either of them. */
  void (*kept)(void *user, uint64_t ref, clv_tensor *tensor, const clv_shared_err *failed);
} clv_contexts_env;

typedef struct clv_contexts {
  clv_contexts_env env;
  clv_context **context_buckets;
  clv_value **value_buckets;
  clv_context *open, *tomb_first, *tomb_last;
  uint32_t n_open, n_tombs;
  clv_slab contexts, values, calls, deliveries, contributions, gradients, errors, changes, entries,
      strands, steps, weights;
  clv_context *order_ready;
  clv_context_call *ready_first, *ready_last;
  clv_module_queue *queues, *marked; /* [CLV_MODULE_ALL]; those whose first may have changed */
  clv_change *waiting_changes, *due_first, *due_last;
  uint32_t n_snapshots;             /* lines with snapshot_of */
  uint64_t n_events;                /* changes and PREPAREs */
  char (*names)[CLV_WIRE_NAME + 1]; /* [MAX_NAMES]; 0 is the master, "" */
  uint32_t n_names;
  clv_context_counts counts; /* written by the compute thread alone */
} clv_contexts;

/* ---- outward (node.c) ------------------------------------------------------------------------ */

clv_code clv_contexts_new(const clv_contexts_env *env, clv_contexts **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_contexts_free(clv_contexts *e); /* before the modules */

/* A frame of kind CALL..REVERT, END_CONTEXT or ABORT. The packet stays the caller's unless
 * *ret_kept is set. An error means that the frame was refused and changed nothing but, perhaps, a
 * record that END_CONTEXT frees. */
clv_code clv_contexts_packet(clv_contexts *e, clv_packet *p, bool *ret_kept,
                             clv_err *err) CLV_USE_RESULT;

/* STATE_GET and STATE_PUT: kept until it is their turn, which is then told by env.obey. */
clv_code clv_contexts_hold(clv_contexts *e, clv_packet *p, bool *ret_kept,
                           clv_err *err) CLV_USE_RESULT;

/* Have the value, as soon as it is there or never will be, told by env.kept. */
clv_code clv_contexts_keep(clv_contexts *e, uint64_t ref, uint64_t context, uint64_t value,
                           clv_err *err) CLV_USE_RESULT;

/* A STATE_PUT has written to a module: nothing older is put back any more. */
void clv_contexts_written(clv_contexts *e, uint32_t module);

/* Gradients of a module in a context, as state items; false behind the last. */
bool clv_contexts_gradient_item(clv_contexts *e, uint64_t context, uint32_t module, uint32_t index,
                                clv_state_item *ret);

/* ---- records (context.c) --------------------------------------------------------------------- */

clv_code clv_slab_take(clv_contexts *e, clv_slab *s, void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* The context of that id, made if it is new; *ret NULL when it has ended. */
clv_code clv_context_open(clv_contexts *e, uint64_t id, clv_context **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_context *clv_context_find(const clv_contexts *e, uint64_t id); /* open, or NULL */
clv_value *clv_context_value(clv_contexts *e, const clv_context *c, uint64_t id); /* or NULL */
clv_code clv_context_value_made(clv_contexts *e, clv_context *c, uint64_t id, clv_value **ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_value_free(clv_contexts *e, clv_value *v);
void clv_call_release(clv_contexts *e,
                      clv_context_call *c);  /* inputs, plan state, weights of its own */
void clv_call_has_come(clv_context_call *c); /* it is not on its way any more */
void clv_call_has_run(clv_contexts *e, clv_context_call *c); /* or never will */
void clv_strands_free(clv_contexts *e, clv_context *c);
void clv_shared_err_unref(clv_contexts *e, clv_shared_err *c);
clv_shared_err *clv_shared_err_ref(clv_shared_err *c);
extern const clv_shared_err clv_shared_err_ended; /* of what a context that ends still owes */
/* A record of *why; when there is no memory for one, a static reason that says so. */
clv_shared_err *clv_shared_err_of(clv_contexts *e, const clv_err *why, const char *hop);
clv_shared_err *clv_shared_err_at(clv_contexts *e, const clv_err *why,
                                  uint32_t module); /* and its op */
void clv_shared_err_put(const clv_shared_err *why, clv_frame *f);
clv_code clv_name_index(clv_contexts *e, const char *name, uint32_t *ret, clv_err *err);

/* The first failure of a context goes to the master; its backward pass ends. */
void clv_context_fail(clv_contexts *e, clv_context *c, clv_shared_err *why); /* takes a reference */
void clv_context_fail_at(clv_contexts *e, clv_context *c, const clv_err *why, uint32_t module);

clv_code clv_context_packet(clv_contexts *e, clv_frame_kind kind, const clv_context *c,
                            uint64_t message, uint32_t name, clv_packet **ret,
                            clv_err *err) CLV_USE_RESULT;

/* ---- values (context_value.c) ---------------------------------------------------------------- */

bool clv_value_is_settled(const clv_value *v); /* it has come, or never will */
/* It has, or will not: `tensor` (a reference is taken) or `failed` (given away). */
clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err);
clv_code clv_value_add_delivery(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err);
void clv_value_free_if_dropped(clv_contexts *e, clv_value *v);
/* A settled value becomes an input; a call that will never run is in nobody's way. */
void clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, const clv_value *v);

/* ---- a core to compute on (context_turn.c) --------------------------------------------------- */

/* Waits for the share's turn, before each piece of work. CLV_CANCELLED: the session ends. */
clv_code clv_context_core(clv_contexts *e, const clv_module *m, clv_err *err) CLV_USE_RESULT;

/* ---- turns (context_turn.c) ------------------------------------------------------------------ */

void clv_queue_join(clv_contexts *e,
                    clv_context_call *c); /* before its arguments are counted off */
void clv_queue_leave(clv_contexts *e, clv_context_call *c);
/* Whether a change that came before number `number` still waits at a module. */
bool clv_queue_changes_before(const clv_contexts *e, uint32_t module, uint64_t number);

/* A change is made, told its modules, then waits (or is freed when one of these failed). */
clv_code clv_change_new(clv_contexts *e, const clv_frame *f, uint64_t id, clv_change **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_change_means(clv_contexts *e, clv_change *k, uint32_t module, clv_tensor *gradients,
                          clv_err *err) CLV_USE_RESULT;
void clv_change_wait(clv_contexts *e, clv_change *k);
void clv_change_free(clv_contexts *e, clv_change *k);
void clv_context_perform(clv_contexts *e, const clv_change *k);

/* Whatever is ready or has its turn, and what becomes so by it. */
clv_code clv_contexts_run(clv_contexts *e, clv_err *err) CLV_USE_RESULT;
void clv_call_one_less(clv_contexts *e, clv_context_call *c); /* thing that it waits for */
/* The calls that wait for this one's backward need not wait any more. */
void clv_call_let_followers_run(clv_contexts *e, clv_context_call *c);
clv_code clv_call_run_next(clv_contexts *e, clv_err *err) CLV_USE_RESULT;

/* ---- the order of a context (context_order.c) ------------------------------------------------ */

/* A new call takes its places. Refused when a position is over. */
clv_code clv_order_join_call(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                             clv_err *err) CLV_USE_RESULT;
void clv_order_leave_call(clv_context_call *c);
void clv_order_leave(clv_context *ctx, clv_order_kind kind, clv_order_place *p);
bool clv_order_is_due(const clv_context *ctx, const clv_order_place *p);
/* What was due has been done; what is next may be due. */
void clv_order_done(clv_contexts *e, clv_context *ctx);
void clv_order_mark_ready(clv_contexts *e, clv_context *ctx);
/* What is due now, if it is here. */
void clv_order_run(clv_contexts *e, clv_context *ctx);
void clv_order_free(clv_contexts *e, clv_context *ctx);
clv_code clv_order_add_step(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                            clv_err *err) CLV_USE_RESULT;

/* ---- weights of before a step (context_weights.c) -------------------------------------------- */

void clv_old_weights_unref(clv_contexts *e, clv_old_weights *w); /* NULL is allowed */
/* Before a step: calls that still need the module's weights keep them. */
clv_code clv_keep_weights(clv_contexts *e, clv_context *ctx, clv_module_gradient *g, bool keep,
                          clv_err *err) CLV_USE_RESULT;
/* A call that is `behind` gets the weights it means, if there has been a step. */
void clv_call_take_weights(const clv_context *ctx, clv_context_call *c);
void *clv_call_block(const clv_context_call *c);
clv_module_gradient *clv_context_gradient(const clv_context *ctx, uint32_t module); /* or NULL */

/* ---- what is noted for ENDED (context_trace.c) ----------------------------------------------- */

void clv_context_begin_trace(clv_contexts *e, clv_context *ctx);
void clv_context_note(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                      const clv_context_call *c, uint64_t begin_ns);
void clv_context_note_packet(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                             const clv_packet *p, uint64_t begin_ns);
void clv_context_note_step(clv_contexts *e, clv_context *ctx, uint32_t module, uint64_t begin_ns);
/* A reference to the rows so far; NULL when nothing was noted. */
clv_tensor *clv_context_trace(const clv_context *ctx);

/* ---- handlers -------------------------------------------------------------------------------- */

typedef clv_code clv_context_handler(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err);
clv_context_handler clv_on_call, clv_on_call_head, clv_on_deliver, clv_on_value, clv_on_drop,
    clv_on_prepare, clv_on_gradient, clv_on_apply, clv_on_revert;

/* Runs the forward of a call whose inputs are complete, keeping what backward needs; the output
 * goes to `out`. */
clv_code clv_call_forward(clv_context_call *c, clv_tensor *out, clv_err *err) CLV_USE_RESULT;
clv_code clv_call_output(clv_contexts *e, clv_context_call *c, clv_tensor **ret,
                         clv_err *err) CLV_USE_RESULT;
/* The gradients of its parameters alone. */
clv_code clv_call_backward_weight(clv_contexts *e, clv_context_call *c,
                                  clv_err *err) CLV_USE_RESULT;
void clv_call_after_backward(clv_contexts *e, clv_context_call *c);
/* Sum of squares of the gradients of a module. */
double clv_gradient_square(const clv_module_gradient *g);
/* Takes the backward pass on as far as it goes. */
void clv_context_run_backward(clv_contexts *e, clv_context *c);
/* Up to and including a phase. */
void clv_value_forget_gradients(clv_contexts *e, clv_value *v, uint32_t phase);
/* Running statistics are again as they were before the calls of this context, unless those of
 * another have changed them since. module: one or CLV_MODULE_ALL. */
void clv_context_restore_buffers(clv_contexts *e, uint64_t id, uint32_t module);
/* What was kept for a context (0: whichever) is of no more use. */
void clv_context_forget_buffers(clv_contexts *e, uint64_t id, uint32_t module);
/* The decision that comes with END_CONTEXT. Its failure is said before the context ends. */
void clv_context_last_step(clv_contexts *e, const clv_frame *end);
/* Work of another context makes an APPLY final. */
void clv_context_finalise(clv_contexts *e, uint64_t working);

#endif
