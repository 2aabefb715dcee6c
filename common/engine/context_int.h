/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of distributed autograd contexts at one node (PROTOCOL.md 6). The program that owns a
 * context runs in another process and sends everything: which module is called with which values,
 * which node needs a value, which calls take part in a backward pass.
 *
 * The path of a frame: clv_contexts_handle_packet passes it to a *handler*, which checks it and
 * records *events* about one context; a handler computes and sends nothing. An event may make
 * *work* ready. Ready work is stored in one list per module (context_work.c). clv_contexts_run_one
 * takes from these lists, starts the work, and finishes it or has it finished later
 * (context_run.c). Results wait in one outbox, from which the node takes them after each piece of
 * work (context_outbox.c).
 *
 * A context holds values; a value that a call of this node computes holds that call. A frame that
 * arrives early is recorded where it will be needed: a call at the values it waits for, a delivery
 * at its value, a gradient at its call, DROP and PREPARE at the context until the CALLs they count
 * have arrived. A call or a change that must wait for others of its module is in the queue of that
 * module (context_queue.c); work with a position is in the order of its context (context_order.c).
 *
 * The records are in context_types.h. The states of contexts, values, calls, passes, steps and
 * work are tables: context_table.h.
 *
 * The files; each calls only files above it:
 *   context.c         records: creating, finding, names; reasons of failures
 *   context_table.c   the state tables: allowed events and next states
 *   context_outbox.c    results, until the node takes them
 *   context_weights.c, context_trace.c   old weights; rows of the trace
 *   context_work.c    lists of ready work
 *   context_queue.c   the queue of each module
 *   context_order.c   positions
 *   context_copy.c    copies from devices to host memory
 *   context_free.c    freeing records; failing a context
 *   context_retain.c  what stays after END_CONTEXT because kept values depend on it
 *   context_value.c, context_call.c, context_pass.c, context_change.c   the handlers of frames
 *   context_end.c     END_CONTEXT and ABORT
 *   context_forward.c, context_backward.c, context_step.c, context_transfer.c   the kinds of work
 *   context_unload.c  unloading a module
 *   context_run.c     starting and finishing work
 *   context_frames.c  dispatching frames to handlers
 *
 * Threads: the node's compute thread alone, except that clv_work_compute may run on another thread
 * of the executor or the node, and that any thread may read the counters. No function recurses:
 * what becomes ready is listed. Memory: every record comes from a slab and is charged to the
 * session's quota; after warm-up no memory is allocated.
 */
#ifndef CLEAVE_CONTEXT_INT_H
#define CLEAVE_CONTEXT_INT_H

#include "common/engine/context_types.h"

/* ---- functions that the node calls (node_frames.c, node_references.c) ------------------------ */

clv_code clv_contexts_new(const clv_contexts_env *env, clv_contexts **ret,
                          clv_err *err) CLV_USE_RESULT;
/* Call before the modules are freed, while no work runs. */
void clv_contexts_free(clv_contexts *e);

/* Handles a frame of kind CALL..REVERT, END_CONTEXT, ABORT or STATE_*. The caller keeps the packet
 * unless *ret_kept is set. An error means that the frame was refused and changed nothing, except
 * that END_CONTEXT may have freed records. The caller then runs work and takes results. */
clv_code clv_contexts_handle_packet(clv_contexts *e, clv_packet *p, bool *ret_kept,
                                    clv_err *err) CLV_USE_RESULT;

/* Starts one piece of ready work; without an executor it also finishes it. Returns false if no work
 * is ready. *ret: CLV_OK, or an error that belongs to no context. */
bool clv_contexts_run_one(clv_contexts *e, clv_code *ret, clv_err *err);
/* Takes the next started work that the device thread must compute; NULL: none. */
clv_work *clv_contexts_take_device_work(clv_contexts *e);
/* Takes the next copy for the copy thread; NULL: none. The caller owns it until
 * clv_contexts_finish_work. */
clv_work *clv_contexts_take_copy(clv_contexts *e);
/* Handles the oldest frame that waited for work to end. False: no such frame, or it must still
 * wait. */
bool clv_contexts_handle_held_frame(clv_contexts *e);
/* Records the result of work after clv_work_compute, on the compute thread. Used for work that
 * another thread computed. */
clv_code clv_contexts_finish_work(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                  clv_err *err) CLV_USE_RESULT;

/* Emits one CLV_RESULT_KEPT for reference `ref`, once value `value` of context `context` exists or
 * has failed. */
clv_code clv_contexts_keep_value(clv_contexts *e, uint64_t ref, uint64_t context, uint64_t value,
                                 clv_err *err) CLV_USE_RESULT;

typedef enum clv_result_kind {
  CLV_RESULT_SEND,    /* `packet` is to be sent to frame.to */
  CLV_RESULT_STATE,   /* `packet` is a STATE_ frame that the node handles now */
  CLV_RESULT_REFUSED, /* `packet` was refused; frame.failure is the reason */
  CLV_RESULT_KEPT,    /* kept value for `ref`: `tensor` or `failure` */
} clv_result_kind;

typedef struct clv_result {
  clv_result_kind kind;
  clv_packet *packet; /* packet of the result, owned by the caller */
  uint64_t ref;
  clv_tensor *tensor;
  clv_shared_err *failure;
} clv_result;

/* Takes the next result; false: none. The caller frees the result with clv_result_clear, and the
 * packet itself. */
bool clv_contexts_take_result(clv_contexts *e, clv_result *ret);
/* frees the tensor and the failure of a result, but not its packet */
void clv_result_clear(clv_contexts *e, clv_result *r);

/* Fails a context after one of its packets could not be sent. Returns false if the context is not
 * open or failed, in which case no node needs to know. */
bool clv_contexts_fail_context(clv_contexts *e, uint64_t context, uint32_t module,
                               const clv_err *why);

/* Forgets saved running statistics of a module after a STATE_PUT, so that they do not overwrite the
 * written ones. */
void clv_contexts_note_state_written(clv_contexts *e, uint32_t module);
/* context_unload.c. clv_contexts_is_module_in_use returns true if an open context has used the
 * module and may use it again, or the module has a pending APPLY or REVERT.
 * clv_contexts_forget_module clears the module's queue state before the module is freed. Call both
 * only when no work is ready or runs. */
bool clv_contexts_is_module_in_use(const clv_contexts *e, uint32_t module);
void clv_contexts_forget_module(clv_contexts *e, uint32_t module);

/* Returns item `index` of a module's gradients in a context; false: `index` is too large. */
bool clv_contexts_gradient_item(clv_contexts *e, uint64_t context, uint32_t module, uint32_t index,
                                clv_state_item *ret);
/* context_transfer.c. Reads or writes state items of the request's module, as work of that module.
 * When the work is done its answers are sent. A request that was refused, or must be handled a
 * second time, is put into the queue of results. Takes the request, the answers and the memory in
 * `what`, unless it fails. Call it only when no work is ready or runs. */
clv_code clv_contexts_transfer_state(clv_contexts *e, const clv_state_transfer *what,
                                     clv_err *err) CLV_USE_RESULT;
/* Finds the gradient that a STATE_PUT names. CLV_PRECONDITION: a backward pass of its context is in
 * progress. */
clv_code clv_contexts_find_gradient_item(clv_contexts *e, const clv_frame *f, clv_state_item *ret,
                                         clv_err *err) CLV_USE_RESULT;

/* ---- records of the engine (context.c) ------------------------------------------------------- */

clv_code clv_contexts_slab_alloc(clv_contexts *e, clv_slab *s, void *ret_pp,
                                 clv_err *err) CLV_USE_RESULT;
/* module at an index; NULL: none is loaded */
clv_module *clv_contexts_module(const clv_contexts *e, uint32_t module);
/* Returns the module that a frame names; NULL: it is not loaded, or the index has a module of
 * another generation. */
clv_module *clv_contexts_module_of_frame(const clv_contexts *e, const clv_frame *f);
static inline uint64_t clv_contexts_now(const clv_contexts *e) {
  return clv_clock_now(&e->env.clock);
}

/* Allocates the tables and slabs alone. The caller frees *ret even after an error, unless it is
 * NULL. */
clv_code clv_contexts_alloc_tables(const clv_contexts_env *env, clv_contexts **ret, clv_err *err);
void clv_contexts_free_tables(clv_contexts *e);

/* Applies an event to a state. An impossible event changes nothing, returns CELL_IMPOSSIBLE, and
 * fails the context before the next work starts (context_run.c). */
const clv_cell *clv_contexts_on_event(clv_contexts *e, uint64_t context, clv_state_machine machine,
                                      uint8_t *state, uint32_t event);

/* Applies an event to a context. */
static inline const clv_cell *clv_context_on_event(clv_contexts *e, clv_context *c,
                                                   clv_context_event event) {
  return clv_contexts_on_event(e, c->id, MACHINE_CONTEXT, &c->state, event);
}

/* Applies an event to a call. The caller words the message of a refusal. */
static inline const clv_cell *clv_call_on_event(clv_contexts *e, clv_context_call *c,
                                                clv_call_event event) {
  return clv_contexts_on_event(e, c->out->ctx->id, MACHINE_CALL, &c->call_state, event);
}

/* Applies an event to the backward pass of a context. */
static inline const clv_cell *clv_pass_on_event(clv_contexts *e, clv_context *c,
                                                clv_pass_event event) {
  return clv_contexts_on_event(e, c->id, MACHINE_PASS, &c->pass_state, event);
}

/* Returns the context of that id in any state; creates it if it is new. */
clv_code clv_context_get_or_create(clv_contexts *e, uint64_t id, clv_context **ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Turns a context that has ended into a tombstone, and frees the oldest tombstone if there are too
 * many. */
void clv_context_make_tombstone(clv_contexts *e, clv_context *c);
/* finds a context that has not ended; NULL: none */
clv_context *clv_context_find(const clv_contexts *e, uint64_t id);
/* returns NULL if the context has no such value */
clv_value *clv_context_find_value(clv_contexts *e, const clv_context *c, uint64_t id);
clv_code clv_context_get_or_create_value(clv_contexts *e, clv_context *c, uint64_t id,
                                         clv_value **ret, clv_err *err) CLV_USE_RESULT;
/* removes a value from its tables and frees the record */
void clv_value_unlink(clv_contexts *e, clv_value *v);
/* call when work of the context may have become ready */
void clv_context_mark_dirty(clv_contexts *e, clv_context *c);
void clv_shared_err_unref(clv_contexts *e, clv_shared_err *c);
clv_shared_err *clv_shared_err_ref(clv_shared_err *c);
/* failure of kept values that a context did not compute before it ended */
extern clv_shared_err clv_shared_err_context_ended;
/* Makes a reason with a copy of *why; hop: name of the node or module that failed. If there is no
 * memory, returns a static reason that says so. */
clv_shared_err *clv_shared_err_new(clv_contexts *e, const clv_err *why, const char *hop);
/* as clv_shared_err_new, with `hop` naming the module, and the op from why->failed_op */
clv_shared_err *clv_shared_err_new_in_module(clv_contexts *e, const clv_err *why, uint32_t module);
/* Makes a reason from the failure that a frame carries. */
clv_shared_err *clv_shared_err_from_frame(clv_contexts *e, const clv_frame *f);
void clv_shared_err_to_frame(const clv_shared_err *why, clv_frame *f);
clv_code clv_contexts_index_of_name(clv_contexts *e, const char *name, uint32_t *ret, clv_err *err);

/* Applies an event to the last step of a module. context: id of the context that the event belongs
 * to; 0: the context whose step the queue has recorded. */
clv_action clv_step_on_event(clv_contexts *e, uint32_t module, uint64_t context,
                             clv_step_event event);

/* ---- the outbox (context_outbox.c) ----------------------------------------------------------- */

/* appends a packet, which the list then owns */
void clv_packet_list_add(clv_packet_list *l, clv_packet *p);
/* takes the first packet; NULL: the list is empty */
clv_packet *clv_packet_list_take(clv_packet_list *l);

/* Makes a packet of context c to the node e->names[name]. Without a later clv_outbox_send it is not
 * sent. */
clv_code clv_outbox_new_packet(clv_contexts *e, clv_frame_kind kind, const clv_context *c,
                               uint64_t message_id, uint32_t name, clv_packet **ret,
                               clv_err *err) CLV_USE_RESULT;
/* takes the packet, and queues it to be sent */
void clv_outbox_send(clv_contexts *e, clv_packet *p);
/* True if a tensor for that name can be sent while it is being copied from a device. Links send it
 * in chunks; a program needs the complete tensor. */
bool clv_outbox_can_stream(const clv_contexts *e, uint32_t name, size_t bytes);
void clv_outbox_add_state_frame(clv_contexts *e, clv_packet *p);
void clv_outbox_refuse(clv_contexts *e, clv_packet *p, const clv_err *why);
/* Queues the kept value of delivery `d`. Takes `d`. */
void clv_outbox_add_kept_value(clv_contexts *e, clv_delivery *d, clv_tensor *tensor,
                               clv_shared_err *failed);
void clv_outbox_free(clv_contexts *e);

/* ---- weights from before a step (context_weights.c) ------------------------------------------ */

void clv_old_weights_unref(clv_contexts *e, clv_old_weights *w);
/* Call before a step. Makes calls that still need the present weights reference a copy. keeps_copy:
 * also keeps a copy for later calls. *ret, on any result: a reference to the copy that the step
 * must fill; NULL: no copy is needed. */
clv_code clv_save_old_weights(clv_contexts *e, clv_context *ctx, clv_module_gradient *g,
                              bool keeps_copy, clv_old_weights **ret, clv_err *err) CLV_USE_RESULT;
/* Fills the copy with the module's parameters and buffers. The work that computes the step calls
 * this first. */
void clv_copy_old_weights(const clv_old_weights *w);
/* Gives a call that asks for old weights the weights from before the last step, if the context
 * keeps them. */
void clv_call_use_old_weights(const clv_context *ctx, clv_context_call *c);
void *clv_call_param_block(const clv_context_call *c);
/* Returns the gradients of a module in a context; NULL: none. */
clv_module_gradient *clv_context_module_gradient(const clv_context *ctx, uint32_t module);
clv_context_call *clv_order_entry_call(clv_order_entry *p, clv_order_kind kind);

/* ---- the trace (context_trace.c) ------------------------------------------------------------- */

void clv_context_begin_trace(clv_contexts *e, clv_context *ctx);
void clv_context_trace_call(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                            const clv_context_call *c, uint64_t begin_ns);
void clv_context_trace_packet(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                              const clv_packet *p, uint64_t begin_ns);
void clv_context_trace_step(clv_contexts *e, clv_context *ctx, const clv_planned_step *s);
/* Returns a new reference to the rows of the trace so far; NULL: there are none. */
clv_tensor *clv_context_trace_rows(const clv_context *ctx);

/* ---- lists of ready work (context_work.c) ---------------------------------------------------- */

/* Appends ready work to the list of its module. Does nothing if the context is closing. */
void clv_work_enqueue(clv_contexts *e, clv_work *w, clv_work_kind kind, clv_context *ctx,
                      uint32_t module);
/* Puts work at the head of its module's list. For the weight part of a call whose input part has
 * just ended. */
void clv_work_enqueue_front(clv_contexts *e, clv_work *w, clv_work_kind kind);
/* Takes the oldest work whose modules are idle, and marks these modules busy; NULL: there is
 * none. */
clv_work *clv_work_take(clv_contexts *e);
void clv_work_note_end(clv_contexts *e, clv_work *w);
/* Returns the duration of work as its device measured it, else the time since the work began. */
static inline uint64_t clv_work_duration_ns(const clv_contexts *e, const clv_work *w) {
  return w->device_ns ? w->device_ns : clv_contexts_now(e) - w->begin_ns;
}
clv_context_call *clv_call_of_work(clv_work *w);
clv_planned_step *clv_step_of_work(clv_work *w);
clv_change *clv_change_of_work(clv_work *w);
/* true if a module of the work is on a device */
bool clv_work_is_on_device(const clv_contexts *e, clv_work *w);

/* ---- queues of modules (context_queue.c) ----------------------------------------------------- */

/* Decrements n_missing of the call. At 0 its forward is ready. */
void clv_call_dependency_done(clv_contexts *e, clv_context_call *c);
/* Queues a call in its module's queue. Call before clv_call_dependency_done for the call's
 * arguments. */
void clv_queue_add_call(clv_contexts *e, clv_context_call *c);
void clv_queue_remove_call(clv_contexts *e, clv_context_call *c);
/* True if a change with a number below `number` is still in the queue of the module. */
bool clv_queue_has_change_before(const clv_contexts *e, uint32_t module, uint64_t number);
/* Gives the first entries of changed (dirty) queues their turn: calls may run, and changes become
 * ready. */
void clv_queues_grant_heads(clv_contexts *e);
bool clv_changes_start_due(clv_contexts *e);

/* Call clv_change_new, then clv_change_add_module for each module, then clv_change_enqueue. On
 * failure call clv_change_free instead. */
clv_code clv_change_new(clv_contexts *e, const clv_frame *f, uint64_t id, clv_change **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_change_add_module(clv_contexts *e, clv_change *k, uint32_t module,
                               clv_tensor *gradients, clv_err *err) CLV_USE_RESULT;
void clv_change_enqueue(clv_contexts *e, clv_change *k);
void clv_change_free(clv_contexts *e, clv_change *k);
/* Makes a STATE_ packet wait for the calls and changes before it in its module's queue. *ret_kept
 * true: the packet waits, and becomes a result later; false: the caller handles it now. */
clv_code clv_change_defer_packet(clv_contexts *e, clv_packet *p, bool *ret_kept,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- the order of a context (context_order.c) ------------------------------------------------ */

/* Inserts the positions of a new call. CLV_PRECONDITION: a position is already done. */
clv_code clv_order_add_call(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                            clv_err *err) CLV_USE_RESULT;
void clv_order_remove_call(clv_context_call *c);
void clv_order_remove(clv_context *ctx, clv_order_kind kind, clv_order_entry *p);
bool clv_order_is_due(const clv_context *ctx, const clv_order_entry *p);
/* Counts the due position as done; the next one may be due. */
void clv_order_advance(clv_contexts *e, clv_context *ctx);
/* Makes the work at the next position ready. CLV_EXISTS: two kinds of work have the same
 * position. */
clv_code clv_order_start_due(clv_contexts *e, clv_context *ctx, clv_err *err) CLV_USE_RESULT;
void clv_order_free(clv_contexts *e, clv_context *ctx);
clv_code clv_order_add_step(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                            clv_err *err) CLV_USE_RESULT;

/* ---- copies to the host's memory (context_copy.c) -------------------------------------------- */

/* Starts a copy of a tensor on a device to host memory, as work. */
clv_code clv_copy_start(clv_contexts *e, clv_tensor *from, clv_copy **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_copy_compute(clv_work *w, clv_err *err) CLV_USE_RESULT;
clv_copy *clv_copy_of_work(clv_work *w);
void clv_copy_free(clv_contexts *e, clv_copy *k);
/* Frees the copies that have not started, and the idle progress records. */
void clv_copies_free(clv_contexts *e);

/* ---- freeing records (context_free.c) -------------------------------------------------------- */

void clv_value_free(clv_contexts *e, clv_value *v);
void clv_value_free_if_dropped(clv_contexts *e, clv_value *v);
/* Frees the gradients of a value up to and including a phase. */
void clv_value_forget_gradients(clv_contexts *e, clv_value *v, uint32_t phase);
/* frees the call's inputs, its saved tensors and its old weights */
void clv_call_release(clv_contexts *e, clv_context_call *c);
void clv_call_drop_state(clv_context_call *c); /* frees the call's saved tensors */
/* removes a call that has run, or never will, from the quota of calls */
void clv_call_discharge_quota(clv_contexts *e, clv_context_call *c);
/* unlinks an announced call from its context's list, because the complete CALL has arrived */
void clv_call_end_announcement(clv_context_call *c);
void clv_backward_queues_free(clv_contexts *e, clv_context *c);
/* Frees the gradients of parameters that a context has for one module, or for all
 * (CLV_MODULE_ALL). */
void clv_context_forget_gradients(clv_contexts *e, clv_context *c, uint32_t module);
/* Frees everything that a context holds, but not the record itself. */
void clv_context_clear(clv_contexts *e, clv_context *c);
/* frees the DROP and PREPARE frames that wait for CALLs */
void clv_context_forget_frames(clv_context *c);
/* Fails a context: ends its backward pass and sends ABORT with the first failure to the master.
 * Takes the caller's reference to `why`. */
void clv_context_fail(clv_contexts *e, clv_context *c, clv_shared_err *why);
void clv_context_fail_in_module(clv_contexts *e, clv_context *c, const clv_err *why,
                                uint32_t module);
/* Sends the first failure of the context again. */
void clv_context_resend_failure(clv_contexts *e, clv_context *c);

/* ---- retained values (context_retain.c) ------------------------------------------------------ */

/* Marks the unsettled values of a context that kept values depend on, including kept values of
 * other nodes. Returns the number of marked calls that have not run. */
uint32_t clv_context_mark_retained(clv_contexts *e, clv_context *ctx);
/* Frees all values that are not retained. The calls of retained values then wait only for their
 * inputs. */
void clv_context_free_unretained_values(clv_contexts *e, clv_context *ctx);
uint32_t clv_context_n_retained(const clv_context *ctx);
/* True if a frame that arrives after END_CONTEXT brings a retained value or call. */
bool clv_context_needs_frame(clv_contexts *e, const clv_context *ctx, const clv_frame *f);
/* Frees retained values that no retained call needs any more. True: no value is left. */
bool clv_context_free_unneeded_values(clv_contexts *e, clv_context *ctx);

/* ---- values of contexts (context_value.c) ---------------------------------------------------- */

typedef clv_code clv_context_handler(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err);
clv_context_handler clv_on_deliver, clv_on_value, clv_on_drop, clv_on_spare;

static inline bool clv_value_is_settled(const clv_value *v) { return v->state >= VALUE_LEAF; }

/* Applies an event to a value. The message of a refusal names the value's id. */
clv_code clv_value_on_event(clv_contexts *e, clv_value *v, clv_value_event event, clv_action *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Settles a value with `tensor` (takes a new reference) or `failed` (takes the caller's
 * reference). */
clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err);
/* True if the delivery can be sent while the value of `bytes` is copied from a device. */
bool clv_value_can_stream_to(const clv_contexts *e, const clv_value *v, const clv_delivery *d,
                             size_t bytes);
clv_code clv_value_add_delivery(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err);
/* Makes a settled value an input of a call. If the value has failed, fails the call and removes the
 * call from its queue. False: the value is being copied from a device; the caller links the call to
 * the value's uses. */
bool clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, clv_value *v);

/* ---- calls of contexts (context_call.c) ------------------------------------------------------ */

clv_context_handler clv_on_call, clv_on_call_announcement;
/* Ends the wait of c's followers (the calls that wait for the backward of c). */
void clv_call_let_followers_run(clv_contexts *e, clv_context_call *c);
/* Fails the followers of all calls of a failed context, because the backward they wait for will not
 * come. Their modules become free for other contexts. */
void clv_context_fail_followers(clv_contexts *e, clv_context *ctx);

/* ---- backward passes (context_pass.c) -------------------------------------------------------- */

clv_context_handler clv_on_prepare, clv_on_gradient;

/* Stores a gradient until the backward of its call. Takes a new reference; t NULL: the consumer has
 * no gradient. */
clv_code clv_pass_add_gradient(clv_contexts *e, clv_value *v, uint32_t phase, uint32_t order,
                               clv_tensor *t, clv_err *err) CLV_USE_RESULT;
/* Removes a call from the backward pass. The call must be the first of its module's backward
 * queue. */
void clv_pass_remove_call(clv_contexts *e, clv_context_call *c);
/* Makes calls ready whose gradients have all arrived, and the end of a pass whose calls are
 * done. */
void clv_pass_start_ready(clv_contexts *e, clv_context *ctx);
void clv_contributions_free(clv_contexts *e, clv_contribution *first);

/* ---- changes of parameters (context_change.c) ------------------------------------------------ */

clv_context_handler clv_on_apply, clv_on_revert;

/* Applies or discards the step as END_CONTEXT says. A failure is sent before the context ends. */
void clv_context_apply_at_end(clv_contexts *e, clv_context *ctx, const clv_frame *end);
/* Makes the APPLYs of all contexts but `working` final, because `working` has new work. */
void clv_contexts_finalise_applies(clv_contexts *e, uint64_t working);
/* Restores the running statistics from before the calls of context `id`, unless another context has
 * changed them since. module: index of one module, or CLV_MODULE_ALL. */
void clv_context_restore_buffers(clv_contexts *e, uint64_t id, uint32_t module);
/* Forgets the running statistics saved for context `id` (0: for any context). module: as in
 * clv_context_restore_buffers. */
void clv_context_forget_buffers(clv_contexts *e, uint64_t id, uint32_t module);

/* ---- ends of contexts (context_end.c) -------------------------------------------------------- */

/* Handles END_CONTEXT in any state. Results: the answer of its step, and ENDED with the number of
 * retained calls. A second ENDED follows when the retained calls are done. */
clv_code clv_context_end(clv_contexts *e, clv_context *c, const clv_frame *end,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_context_send_ended(clv_contexts *e, const clv_frame *end, uint32_t n_spared,
                                clv_tensor *trace, clv_err *err) CLV_USE_RESULT;
/* If a context is in state ENDING and all its retained calls are done, ends it and sends the second
 * ENDED. */
void clv_context_end_if_complete(clv_contexts *e, clv_context *c);
/* Handles ABORT: frees the context, and fails kept values that do not exist yet with the ABORT's
 * failure. */
void clv_context_abort(clv_contexts *e, clv_context *c, const clv_frame *f);

/* ---- kinds of work (context_forward.c, context_backward.c, context_step.c) ------------------- */

/* A kind of work. `prepare` runs on the compute thread: it checks the work and allocates its
 * memory; if `prepare` leaves *ret_computes false, `compute` is not called. `compute` may run on
 * another thread and uses only memory that the work holds. `finish` runs on the compute thread and
 * records the result; code and why are those of `prepare` or `compute`. A function that the kind
 * does not need is NULL. */
typedef struct clv_work_type {
  clv_code (*prepare)(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err);
  clv_code (*compute)(clv_work *w, clv_err *err);
  clv_code (*finish)(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why, clv_err *err);
  /* needs a share of the cores, for as many threads as its module has; the work is cancelled if the
   * session closes first */
  bool needs_core_share;
  bool bypasses_scheduler; /* the work runs without a share of the cores */
} clv_work_type;

extern const clv_work_type clv_work_forward, clv_work_input_grad, clv_work_weight_grad,
    clv_work_planned_step, clv_work_of_change, clv_work_vote, clv_work_of_copy,
    clv_work_of_transfer, clv_work_of_restore;

/* clv_call_prepare_forward allocates the output and the plan's memory of a forward;
 * clv_call_run_forward computes it. */
clv_code clv_call_prepare_forward(clv_contexts *e, clv_context_call *c,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_call_run_forward(clv_context_call *c, clv_err *err) CLV_USE_RESULT;

#endif
