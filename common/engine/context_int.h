/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of distributed autograd contexts at one node (PROTOCOL.md 6). The program that owns a
 * context runs elsewhere and says everything: which module is called with which values, who needs
 * them, which calls take part in a backward pass.
 *
 * The way through it: a *handler* checks a frame and records *facts* about one context; it computes
 * and sends nothing. A fact may make *work* ready. Ready work stands in one list per module
 * (context_work.c). One place takes from these lists, starts the work and learns of its end as
 * another fact (context_run.c). What results leaves by one exit, which the node drains after each
 * piece of work (context_outbox.c).
 *
 * A context holds values; the value made by a call here holds that call. What arrives before its
 * time hangs where it will be needed: a call at the values it waits for, a delivery at its value, a
 * gradient at its call, DROP and PREPARE at the context until the CALLs they count are here. A call
 * or a change that has to wait for others of its module stands in that module's queue
 * (context_queue.c), what has a position in the order of its context (context_order.c).
 *
 * The records are in context_types.h. The states of contexts, values, calls, passes, steps and work
 * are tables: context_table.h.
 *
 * The files, each of which calls only what stands above it:
 *   context.c         records: made, found, named; reasons of failures
 *   context_table.c   which facts are allowed in which state, and what state follows
 *   context_outbox.c    results, until the node takes them
 *   context_weights.c, context_trace.c   old weights; rows of the trace
 *   context_work.c    lists of ready work
 *   context_queue.c   the queue of each module
 *   context_order.c   positions
 *   context_copy.c    copies to the host's memory of what lies on devices
 *   context_free.c    records given back; a context fails, or ends
 *   context_retain.c   what an end spares, as kept values need it
 *   context_value.c, context_call.c, context_pass.c, context_change.c   facts about each
 *   context_end.c     contexts end
 *   context_forward.c, context_backward.c, context_step.c, context_transfer.c   the kinds of work
 *   context_unload.c  a module goes
 *   context_run.c     what is ready is started and finished
 *   context_frames.c  frames come in
 *
 * Threads: the node's compute thread alone, but clv_work_compute, which an executor may call on
 * another; the counters are read by others. Nothing recurses: what becomes ready is listed.
 * Memory: every record comes from a slab and is charged to the session's quota; after warm-up none
 * is taken.
 */
#ifndef CLEAVE_CONTEXT_INT_H
#define CLEAVE_CONTEXT_INT_H

#include "common/engine/context_types.h"

/* ---- outward (node_frames.c, node_references.c) ---------------------------------------------- */

clv_code clv_contexts_new(const clv_contexts_env *env, clv_contexts **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_contexts_free(clv_contexts *e); /* before the modules; nothing of it may be running */

/* A frame of kind CALL..REVERT, END_CONTEXT, ABORT or STATE_*. The packet stays the caller's unless
 * *ret_kept is set. An error means that the frame was refused and changed nothing but, perhaps, a
 * record that END_CONTEXT frees. Work may be ready then, and results may be there. */
clv_code clv_contexts_handle_packet(clv_contexts *e, clv_packet *p, bool *ret_kept,
                                    clv_err *err) CLV_USE_RESULT;

/* Starts what is ready: one piece of work, which without an executor is finished as well. False:
 * nothing is ready. *ret: what went wrong on the way, but is nobody's failure. */
bool clv_contexts_run_one(clv_contexts *e, clv_code *ret, clv_err *err);
/* Work that has started and is to be computed by the thread for devices; NULL: there is none. */
clv_work *clv_contexts_take_device_work(clv_contexts *e);
/* A copy that is to be made elsewhere: it is the caller's until clv_contexts_finish_work. */
clv_work *clv_contexts_take_copy(clv_contexts *e);
/* Takes a frame that has waited for work to end. False: there is none, or it still waits. */
bool clv_contexts_handle_held_frame(clv_contexts *e);
/* With an executor, behind clv_work_compute. */
clv_code clv_contexts_finish_work(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                  clv_err *err) CLV_USE_RESULT;

/* Have the value, as soon as it is there or never will be: a result. */
clv_code clv_contexts_keep_value(clv_contexts *e, uint64_t ref, uint64_t context, uint64_t value,
                                 clv_err *err) CLV_USE_RESULT;

typedef enum clv_result_kind {
  CLV_RESULT_SEND,    /* packet, to frame.to */
  CLV_RESULT_STATE,   /* packet: a STATE_ frame, to be acted on now */
  CLV_RESULT_REFUSED, /* packet: a frame that cannot be acted on; frame.failure says why */
  CLV_RESULT_KEPT,    /* ref, and tensor or failed */
} clv_result_kind;

typedef struct clv_result {
  clv_result_kind kind;
  clv_packet *packet; /* the caller's from now on */
  uint64_t ref;
  clv_tensor *tensor;
  clv_shared_err *failed;
} clv_result;

/* The next result; false: there is none. It is given back with clv_result_done. */
bool clv_contexts_take_result(clv_contexts *e, clv_result *ret);
void clv_result_done(clv_contexts *e, clv_result *r); /* but for its packet */

/* The context fails here as well: a packet of its own could not leave. Returns false if there is
 * none that is open or failed, so that nobody here needs to know. */
bool clv_contexts_fail_context(clv_contexts *e, uint64_t context, uint32_t module,
                               const clv_err *why);

/* A STATE_PUT has written to a module: nothing older is put back any more. */
void clv_contexts_note_state_written(clv_contexts *e, uint32_t module);
/* context_unload.c: whether some context is open that has used the module and may come back to it,
 * or the module has an APPLY or a REVERT to come; the module goes. Said when no work is left. */
bool clv_contexts_is_module_in_use(const clv_contexts *e, uint32_t module);
void clv_contexts_forget_module(clv_contexts *e, uint32_t module);

/* Gradients of a module in a context, as state items; false behind the last. */
bool clv_contexts_gradient_item(clv_contexts *e, uint64_t context, uint32_t module, uint32_t index,
                                clv_state_item *ret);
/* context_transfer.c: the items of the request's module are read or written, as work of it; then
 * the answers leave, and the request is given back as a result where it is to come again, or is
 * refused. Takes what `what` holds, but not when it fails. Said when no work is left. */
clv_code clv_contexts_transfer_state(clv_contexts *e, const clv_state_transfer *what,
                                     clv_err *err) CLV_USE_RESULT;
/* The one that a STATE_PUT names: no pass of its context is in progress. */
clv_code clv_contexts_find_gradient_item(clv_contexts *e, const clv_frame *f, clv_state_item *ret,
                                         clv_err *err) CLV_USE_RESULT;

/* ---- records (context.c) --------------------------------------------------------------------- */

clv_code clv_contexts_slab_alloc(clv_contexts *e, clv_slab *s, void *ret_pp,
                                 clv_err *err) CLV_USE_RESULT;
clv_module *clv_contexts_module(const clv_contexts *e, uint32_t module); /* or NULL */
/* The one that the frame means: NULL where its index has another one by now. */
clv_module *clv_contexts_module_of_frame(const clv_contexts *e, const clv_frame *f);
static inline uint64_t clv_contexts_now(const clv_contexts *e) {
  return clv_clock_now(&e->env.clock);
}

/* The tables and slabs alone; *ret is to be unmade, whatever is returned, unless it is NULL. */
clv_code clv_contexts_alloc_tables(const clv_contexts_env *env, clv_contexts **ret, clv_err *err);
void clv_contexts_free_tables(clv_contexts *e);

/* A fact meets a state. What cannot be changes nothing: it is CELL_IMPOSSIBLE, and a failure of the
 * context before the next work starts (context_run.c). */
const clv_cell *clv_contexts_on_event(clv_contexts *e, uint64_t context, clv_state_machine machine,
                                      uint8_t *state, uint32_t fact);

/* A fact about a context. */
static inline const clv_cell *clv_context_on_event(clv_contexts *e, clv_context *c,
                                                   clv_context_event fact) {
  return clv_contexts_on_event(e, c->id, MACHINE_CONTEXT, &c->state, fact);
}

/* A fact about a call; what the table refuses is for the caller to word. */
static inline const clv_cell *clv_call_on_event(clv_contexts *e, clv_context_call *c,
                                                clv_call_event fact) {
  return clv_contexts_on_event(e, c->out->ctx->id, MACHINE_CALL, &c->progress, fact);
}

/* The same about a backward pass. */
static inline const clv_cell *clv_pass_on_event(clv_contexts *e, clv_context *c,
                                                clv_pass_event fact) {
  return clv_contexts_on_event(e, c->id, MACHINE_PASS, &c->pass, fact);
}

/* The context of that id in whatever state, made if it is new. */
clv_code clv_context_get_or_create(clv_contexts *e, uint64_t id, clv_context **ret,
                                   clv_err *err) CLV_USE_RESULT;
void clv_context_make_tombstone(clv_contexts *e, clv_context *c);  /* it has ended */
clv_context *clv_context_find(const clv_contexts *e, uint64_t id); /* not ended, or NULL */
clv_value *clv_context_find_value(clv_contexts *e, const clv_context *c, uint64_t id); /* or NULL */
clv_code clv_context_get_or_create_value(clv_contexts *e, clv_context *c, uint64_t id,
                                         clv_value **ret, clv_err *err) CLV_USE_RESULT;
void clv_value_unlink(clv_contexts *e, clv_value *v);         /* and gives the record back */
void clv_context_mark_dirty(clv_contexts *e, clv_context *c); /* something may have become ready */
void clv_shared_err_unref(clv_contexts *e, clv_shared_err *c);
clv_shared_err *clv_shared_err_ref(clv_shared_err *c);
extern clv_shared_err clv_shared_err_context_ended; /* of what a context that ends still owes */
/* A record of *why; when there is no memory for one, a static reason that says so. */
clv_shared_err *clv_shared_err_new(clv_contexts *e, const clv_err *why, const char *hop);
clv_shared_err *clv_shared_err_new_in_module(clv_contexts *e, const clv_err *why,
                                             uint32_t module); /* and its op */
/* as the frame says */
clv_shared_err *clv_shared_err_from_frame(clv_contexts *e, const clv_frame *f);
void clv_shared_err_to_frame(const clv_shared_err *why, clv_frame *f);
clv_code clv_contexts_index_of_name(clv_contexts *e, const char *name, uint32_t *ret, clv_err *err);

/* A fact about the last step of a module. context: whose step that is from now on, 0 = whose it
 * was. */
clv_action clv_step_on_event(clv_contexts *e, uint32_t module, uint64_t context,
                             clv_step_event fact);

/* ---- the exit (context_outbox.c) ------------------------------------------------------------- */

void clv_packet_list_add(clv_packet_list *l, clv_packet *p); /* takes it */
clv_packet *clv_packet_list_take(clv_packet_list *l);        /* or NULL */

clv_code clv_outbox_new_packet(clv_contexts *e, clv_frame_kind kind, const clv_context *c,
                               uint64_t message, uint32_t name, clv_packet **ret,
                               clv_err *err) CLV_USE_RESULT;
void clv_outbox_send(clv_contexts *e, clv_packet *p); /* takes it, as the next */
/* Whether a tensor that goes to that name may leave while it comes to the host's memory: over a
 * link, in chunks. A program wants all of it. */
bool clv_outbox_can_stream(const clv_contexts *e, uint32_t name, size_t bytes);
void clv_outbox_add_state_frame(clv_contexts *e, clv_packet *p);
void clv_outbox_refuse(clv_contexts *e, clv_packet *p, const clv_err *why);
/* For whoever keeps a value: `d` has it. Takes it. */
void clv_outbox_add_kept_value(clv_contexts *e, clv_delivery *d, clv_tensor *tensor,
                               clv_shared_err *failed);
void clv_outbox_free(clv_contexts *e);

/* ---- weights of before a step (context_weights.c) -------------------------------------------- */

void clv_old_weights_unref(clv_contexts *e, clv_old_weights *w); /* NULL is allowed */
/* Before a step: calls that still need the module's weights keep them. *ret, whatever is returned:
 * a reference to those that the step is to fill, or NULL. */
clv_code clv_save_old_weights(clv_contexts *e, clv_context *ctx, clv_module_gradient *g, bool keep,
                              clv_old_weights **ret, clv_err *err) CLV_USE_RESULT;
void clv_copy_old_weights(const clv_old_weights *w); /* by who computes */
/* A call with `old_weights` gets these, if there has been a step. */
void clv_call_use_old_weights(const clv_context *ctx, clv_context_call *c);
void *clv_call_param_block(const clv_context_call *c);
/* or NULL */
clv_module_gradient *clv_context_module_gradient(const clv_context *ctx, uint32_t module);
clv_context_call *clv_order_entry_call(clv_order_entry *p, clv_order_kind kind);

/* ---- what is noted for ENDED (context_trace.c) ----------------------------------------------- */

void clv_context_begin_trace(clv_contexts *e, clv_context *ctx);
void clv_context_trace_call(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                            const clv_context_call *c, uint64_t begin_ns);
void clv_context_trace_packet(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                              const clv_packet *p, uint64_t begin_ns);
void clv_context_trace_step(clv_contexts *e, clv_context *ctx, const clv_planned_step *s);
/* A reference to the rows so far; NULL when nothing was noted. */
clv_tensor *clv_context_trace_rows(const clv_context *ctx);

/* ---- ready work (context_work.c) ------------------------------------------------------------- */

/* Appends ready work to the list of its module. Lists nothing of a context that is closing. */
void clv_work_enqueue(clv_contexts *e, clv_work *w, clv_work_kind kind, clv_context *ctx,
                      uint32_t module);
/* It is ready, and the next of its module: of the call whose first part has just ended. */
void clv_work_enqueue_front(clv_contexts *e, clv_work *w, clv_work_kind kind);
/* The oldest whose modules are idle, which are its own from now on; NULL: none. */
clv_work *clv_work_take(clv_contexts *e);
void clv_work_note_end(clv_contexts *e, clv_work *w);
/* What is charged for it: what its device says, else what the clock does since it began. */
static inline uint64_t clv_work_duration_ns(const clv_contexts *e, const clv_work *w) {
  return w->device_ns ? w->device_ns : clv_contexts_now(e) - w->begin_ns;
}
clv_context_call *clv_work_call(clv_work *w);
clv_planned_step *clv_work_step(clv_work *w);
clv_change *clv_work_change(clv_work *w);
bool clv_work_is_on_device(const clv_contexts *e,
                           clv_work *w); /* a module that it means is on a device */

/* ---- queues of modules (context_queue.c) ----------------------------------------------------- */

/* Something that the call waits for is there; with the last its forward is ready. */
void clv_call_dependency_done(clv_contexts *e, clv_context_call *c);
void clv_queue_add_call(clv_contexts *e,
                        clv_context_call *c); /* before its arguments are counted off */
void clv_queue_remove_call(clv_contexts *e, clv_context_call *c);
/* Whether a change that came before number `number` still waits at a module. */
bool clv_queue_has_change_before(const clv_contexts *e, uint32_t module, uint64_t number);
/* Looks who is first in the queues that are marked. */
void clv_queues_grant_heads(clv_contexts *e);
bool clv_changes_start_due(clv_contexts *e);

/* A change is made, told its modules, then waits (or is freed when one of these failed). */
clv_code clv_change_new(clv_contexts *e, const clv_frame *f, uint64_t id, clv_change **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_change_add_module(clv_contexts *e, clv_change *k, uint32_t module,
                               clv_tensor *gradients, clv_err *err) CLV_USE_RESULT;
void clv_change_enqueue(clv_contexts *e, clv_change *k);
void clv_change_free(clv_contexts *e, clv_change *k);
/* STATE_GET and STATE_PUT: kept until they are a result. */
clv_code clv_change_defer_packet(clv_contexts *e, clv_packet *p, bool *ret_kept,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- the order of a context (context_order.c) ------------------------------------------------ */

/* A new call takes its places. Refused when a position is over. */
clv_code clv_order_add_call(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                            clv_err *err) CLV_USE_RESULT;
void clv_order_remove_call(clv_context_call *c);
void clv_order_remove(clv_context *ctx, clv_order_kind kind, clv_order_entry *p);
bool clv_order_is_due(const clv_context *ctx, const clv_order_entry *p);
/* What was due has been done; what is next may be due. */
void clv_order_advance(clv_contexts *e, clv_context *ctx);
/* Makes ready what is due. CLV_EXISTS: two kinds of work have one position. */
clv_code clv_order_start_due(clv_contexts *e, clv_context *ctx, clv_err *err) CLV_USE_RESULT;
void clv_order_free(clv_contexts *e, clv_context *ctx);
clv_code clv_order_add_step(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                            clv_err *err) CLV_USE_RESULT;

/* ---- copies to the host's memory (context_copy.c) -------------------------------------------- */

/* Of a tensor with a home: it is work from now on. */
clv_code clv_copy_start(clv_contexts *e, clv_tensor *from, clv_copy **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_copy_compute(clv_work *w, clv_err *err) CLV_USE_RESULT;
clv_copy *clv_work_copy(clv_work *w);
void clv_copy_free(clv_contexts *e, clv_copy *k);
void clv_copies_done(clv_contexts *e); /* those that nobody makes, and what is kept for others */

/* ---- records given back (context_free.c) ----------------------------------------------------- */

void clv_value_free(clv_contexts *e, clv_value *v);
void clv_value_free_if_dropped(clv_contexts *e, clv_value *v);
/* Gradients of a value, up to and including a phase. */
void clv_value_forget_gradients(clv_contexts *e, clv_value *v, uint32_t phase);
void clv_call_release(clv_contexts *e, clv_context_call *c); /* inputs, plan state, old weights */
void clv_call_drop_state(clv_context_call *c);               /* of its plan */
void clv_call_discharge_quota(clv_contexts *e, clv_context_call *c); /* or never will */
void clv_call_end_announcement(clv_context_call *c);                 /* its tensors are here */
void clv_backward_queues_free(clv_contexts *e, clv_context *c);
/* Gradients of one module (or CLV_MODULE_ALL) in a context. */
void clv_context_forget_gradients(clv_contexts *e, clv_context *c, uint32_t module);
/* Everything a context holds; the record itself stays. */
void clv_context_clear(clv_contexts *e, clv_context *c);
void clv_context_forget_frames(clv_context *c); /* which wait for CALLs */
/* The first failure of a context goes to the master; its backward pass ends. */
void clv_context_fail(clv_contexts *e, clv_context *c, clv_shared_err *why); /* takes a reference */
void clv_context_fail_in_module(clv_contexts *e, clv_context *c, const clv_err *why,
                                uint32_t module);
/* The first failure is said again. */
void clv_context_resend_failure(clv_contexts *e, clv_context *c);

/* ---- what an end spares (context_retain.c) --------------------------------------------------- */

/* Marks the values of a context that kept ones need and that are not here yet, those that another
 * node wants for one it keeps included. Returns the number of calls to come. */
uint32_t clv_context_mark_retained(clv_contexts *e, clv_context *ctx);
/* Frees all other values. The calls of those that are spared wait for nothing but inputs. */
void clv_context_free_unretained(clv_contexts *e, clv_context *ctx);
uint32_t clv_context_n_retained(const clv_context *ctx);
/* A frame behind the end brings something that was spared. */
bool clv_context_needs_frame(clv_contexts *e, const clv_context *ctx, const clv_frame *f);
/* What was spared only for calls that have come goes. True: nothing is left. */
bool clv_context_drop_unneeded(clv_contexts *e, clv_context *ctx);

/* ---- values (context_value.c) ---------------------------------------------------------------- */

typedef clv_code clv_context_handler(clv_contexts *e, clv_context *c, clv_packet *p, clv_err *err);
clv_context_handler clv_on_deliver, clv_on_value, clv_on_drop, clv_on_spare;

static inline bool clv_value_is_settled(const clv_value *v) { return v->state >= VALUE_LEAF; }

/* A fact about a value. What is refused is said with its id. */
clv_code clv_value_on_event(clv_contexts *e, clv_value *v, clv_value_event fact, clv_action *ret,
                            clv_err *err) CLV_USE_RESULT;
/* It has come, or will not: `tensor` (a reference is taken) or `failed` (given away). */
clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err);
clv_code clv_value_add_delivery(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err);
/* A settled value becomes an input; a call that will never run is in nobody's way. False: it is on
 * its way from a device, and the call is to be one of its users until it has come. */
bool clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, clv_value *v);

/* ---- calls (context_call.c) ------------------------------------------------------------------ */

clv_context_handler clv_on_call, clv_on_call_announcement;
/* The calls that wait for this one's backward need not wait any more. */
void clv_call_let_followers_run(clv_contexts *e, clv_context_call *c);
/* The context has failed, and the backward that they wait for will not come: they fail with it, and
 * their modules are free for other contexts. */
void clv_context_fail_followers(clv_contexts *e, clv_context *ctx);

/* ---- backward passes (context_pass.c) -------------------------------------------------------- */

clv_context_handler clv_on_prepare, clv_on_gradient;

/* Keeps a gradient (a reference is taken; NULL: nothing flows) until its call runs. */
clv_code clv_pass_add_gradient(clv_contexts *e, clv_value *v, uint32_t phase, uint32_t order,
                               clv_tensor *t, clv_err *err) CLV_USE_RESULT;
/* The first call of its strand has had its part. */
void clv_pass_call_done(clv_contexts *e, clv_context_call *c);
/* Makes ready what has its gradients, and the end of a pass that is done. */
void clv_pass_start_ready(clv_contexts *e, clv_context *ctx);
void clv_contributions_free(clv_contexts *e, clv_contribution *first);

/* ---- changes of parameters (context_change.c) ------------------------------------------------ */

clv_context_handler clv_on_apply, clv_on_revert;

/* The decision that comes with END_CONTEXT. Its failure is said before the context ends. */
void clv_context_apply_at_end(clv_contexts *e, clv_context *ctx, const clv_frame *end);
/* Work of another context makes an APPLY final. */
void clv_contexts_finalise_applies(clv_contexts *e, uint64_t working);
/* Running statistics are again as they were before the calls of this context, unless those of
 * another have changed them since. module: one or CLV_MODULE_ALL. */
void clv_context_restore_buffers(clv_contexts *e, uint64_t id, uint32_t module);
/* What was kept for a context (0: whichever) is of no more use. */
void clv_context_forget_buffers(clv_contexts *e, uint64_t id, uint32_t module);

/* ---- ends (context_end.c) -------------------------------------------------------------------- */

/* END_CONTEXT, in whatever state. Results: of its step, and ENDED with the calls that are spared,
 * after which another ENDED follows when these are done. */
clv_code clv_context_end(clv_contexts *e, clv_context *c, const clv_frame *end,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_context_send_ended(clv_contexts *e, const clv_frame *end, uint32_t n_spared,
                                clv_tensor *trace, clv_err *err) CLV_USE_RESULT;
/* What its end has spared may be done: then it is answered again, and gone. */
void clv_context_end_if_complete(clv_contexts *e, clv_context *c);
/* ABORT: kept values that are to come have its failure. */
void clv_context_abort(clv_contexts *e, clv_context *c, const clv_frame *f);

/* ---- kinds of work (context_forward.c, context_backward.c, context_step.c) ------------------- */

/* A kind of work: *ready* checks it and takes the memory it needs, on the engine's thread; without
 * *ret_computes there is nothing to compute. *compute* touches nothing but what the work holds.
 * *finish*, on the engine's thread again, records what came of it; code and why: of the first two.
 * NULL: nothing of the kind. */
typedef struct clv_work_type {
  clv_code (*ready)(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err);
  clv_code (*compute)(clv_work *w, clv_err *err);
  clv_code (*finish)(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why, clv_err *err);
  bool of_call; /* needs its module's share of the cores, and is cancelled without */
  bool aside;   /* needs no share of the cores */
} clv_work_type;

extern const clv_work_type clv_work_forward, clv_work_input_grad, clv_work_weight_grad,
    clv_work_planned_step, clv_work_of_change, clv_work_vote, clv_work_of_copy,
    clv_work_of_transfer, clv_work_of_restore;

/* For a forward: its output and what else it needs; then that. */
clv_code clv_call_prepare_forward(clv_contexts *e, clv_context_call *c,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_call_run_forward(clv_context_call *c, clv_err *err) CLV_USE_RESULT;

#endif
