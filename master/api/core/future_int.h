/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of operations in progress. A function that blocks has a record until it returns; a future
 * is a record for which the program has a handle. The answers of nodes (events.c) change contexts,
 * values and requests; an operation's `advance` then checks whether the operation is finished. Each
 * thread that waits calls `advance` of all records, and so does the runtime's thread of futures, if
 * it exists (await.c).
 *
 * A record is *done* when its result is known. It is *finished* when no more answers will come,
 * which for a cancelled operation may be later.
 */
#ifndef CLEAVE_FUTURE_INT_H
#define CLEAVE_FUTURE_INT_H

#include "master/api/core/core_int.h"

/* A callback of cleave_future_then. */
typedef struct api_callback {
  void (*function)(void *user, cleave_future future, const cleave_error *error);
  void *user;
  struct api_callback *next;
} api_callback;

/* Roots of a backward. A future copies them, because its backward may wait for an earlier one. */
typedef struct api_backward_roots {
  cleave_reference *roots; /* [n] roots */
  float *root_weights;     /* [n] weights of the roots; NULL: 1 each */
  /* [n] initial gradients of the roots; a NULL entry: this root has a weight; NULL list: all roots
   * have weights */
  clv_tensor **gradients;
  size_t n;
  bool retain_graph; /* keep the saved tensors for another backward */
} api_backward_roots;

/* Arguments of a function of cleave.h that waits for nodes, or of its asynchronous form. Each
 * operation uses some of the fields. */
typedef struct api_arguments {
  uint64_t deadline_ms; /* 0: the deadline of the runtime */
  cleave_context context;
  cleave_module *module;
  cleave_optimizer *optimizer;
  cleave_reference reference;
  cleave_kept kept_handle;
  const char *name; /* name of a parameter or a state file */
  cleave_state_kind kind;
  clv_frame_kind frame_kind; /* kind of frame of a request about a state file */
  clv_tensor *tensor;
  api_state_item *items; /* [n] items to write; the operation takes ownership */
  uint32_t n;
  void *background_job; /* job of an operation with has_own_thread; the operation takes ownership */
  const api_backward_roots *backward_roots;
  const cleave_reference *inputs; /* [n_inputs] inputs of a call */
  size_t n_inputs;
  cleave_reference *ret_reference; /* handle of the call's value; NULL: no handle is wanted */
  /* gradients of the parameters that the program itself steps; NULL: none */
  const cleave_step_options *step_options;
  const clv_sha256 *digest; /* digest that the loaded file must have; NULL: any */
} api_arguments;

/* A kind of operation: a row of core/operations.c or of a table in extra. All functions but
 * copy_result are called with the runtime's lock held. */
typedef struct api_operation {
  const char *name; /* name in messages, such as "a step" */
  /* Checks the arguments, and sends the requests or leaves that to the first `advance`. If it
   * fails, nothing has begun. */
  cleave_status (*begin)(cleave_runtime *rt, api_arguments *a, struct api_future *f,
                         cleave_error *error);
  /* Continues the operation after answers, and finishes f if all answers have arrived. */
  void (*advance)(cleave_runtime *rt, struct api_future *f);
  /* Fills in the error when the operation's deadline has passed. NULL: `advance` checks the
   * deadline itself. */
  void (*fill_deadline_error)(cleave_runtime *rt, const struct api_future *f, cleave_error *ret);
  /* Withdraws an operation whose future ends before it is finished. NULL: nothing to do. */
  void (*withdraw)(cleave_runtime *rt, struct api_future *f);
  /* Copies the result of a successful operation to *ret. NULL: it has no result. */
  cleave_status (*copy_result)(const struct api_future *f, void *ret, cleave_error *error);
  /* releases what the operation holds, such as f->private_record; NULL: it holds nothing */
  void (*free)(cleave_runtime *rt, struct api_future *f);
  /* the operation waits for earlier backwards, steps and writes of its context */
  bool runs_in_order;
  bool may_begin_while_closing; /* may begin while the runtime is being closed */
  bool has_own_thread;          /* a separate thread runs it, which cannot be stopped */
  bool advances_without_thread; /* the operation advances without the thread of futures (await.c) */
} api_operation;

typedef struct api_future {
  /* id of the program's handle; 0: a blocking function uses the record, without a handle */
  uint64_t id;
  const api_operation *op;
  /* state of the operation, from the enum in its source file; 0: nothing has been sent */
  uint32_t operation_state;
  uint32_t n_users; /* number of functions that use the record now */
  /* number of functions and callbacks that wait for the end of the operation */
  uint32_t n_watchers;
  bool is_done; /* `outcome` is set; functions that wait for the future return */
  /* the operation has ended; a cancelled operation may be done (is_done) before that */
  bool is_finished;
  bool is_released;   /* the program has no handle any more */
  bool cannot_cancel; /* its work continues after a cancel; only the result is dropped */
  /* this operation runs the context's backward pass now, or, if it is a step, the pass in which
   * nodes vote again (send their sums of squared gradients); when the pass ends,
   * is_backward_running is cleared */
  bool owns_pass;
  /* API_OPERATION_CLOSE: END_CONTEXT is sent after the owners of kept values have answered */
  bool end_awaits_owners;
  uint64_t until_ns, deadline_ms;
  /* time at which the operation's deadline is checked, ns; UINT64_MAX: never */
  uint64_t next_check_ns;
  cleave_error outcome;                 /* how the operation ended; status OK: success */
  char subject_name[CLV_WIRE_NAME + 1]; /* name of its module, context or parameter, for messages */
  /* callbacks not called yet; the last link of the list */
  api_callback *callbacks, **callbacks_tail;
  struct api_future *next, **prev_link; /* in the list of unfinished or free records */
  struct api_future *next_ready;        /* next record in the list api_futures.first_ready */
  /* The fields below are the objects on which the operation works. */
  /* the operation ends when this context ends; NULL: it belongs to no context */
  api_context *context;
  uint64_t context_id;
  api_value *value;
  cleave_module *module;
  cleave_runtime *runtime; /* runtime of an operation that reads state; NULL: another operation */
  cleave_optimizer *optimizer;
  /* of a step: sum of squared gradients of the program's own parameters */
  double own_gradients_squared_sum;
  bool has_nonfinite_own_gradient; /* of a step: one of the program's own gradients is not finite */
  clv_state_kind state_kind;
  clv_frame_kind frame_kind; /* kind of frame of a request about the state file `file_name` */
  char file_name[CLV_WIRE_NAME + 1];
  api_state_request request;
  api_backward_roots backward_roots;
  void *private_record; /* private record of the operation, freed by its `free` */
  /* The fields below are the result of the operation, or the values to write. */
  clv_tensor *tensor;
  cleave_step_decision step_decision;
  api_state_item *items; /* [n_items] items that were read, or are to be written */
  uint32_t n_items;
} api_future;

/* All records of a runtime, and its thread of futures. */
typedef struct api_futures {
  /* list of unfinished records, oldest first; its last link */
  api_future *first_unfinished, **unfinished_tail;
  /* list of records that are done and have callbacks not called yet; its last link */
  api_future *first_ready, **ready_tail;
  api_future *future_free_list;
  api_callback *callback_free_list;
  pthread_t thread;
  /* Calls the callbacks that are due. NULL: the program has registered no callback. */
  bool (*run_callbacks)(cleave_runtime *rt);
  bool has_thread;          /* the thread of futures exists */
  bool is_closing;          /* the thread must exit, and no operation may begin */
  bool is_callback_running; /* a callback is running, on the thread callback_thread */
  pthread_t callback_thread;
} api_futures;

/* Call the functions below with the runtime's lock held. A new record belongs to the caller until
 * api_future_enqueue lists it. */
cleave_status api_futures_new(cleave_runtime *rt, cleave_error *error);
void api_futures_free(cleave_runtime *rt);
cleave_status api_future_new(cleave_runtime *rt, const api_operation *op, uint64_t until_ns,
                             uint64_t deadline_ms, api_future **ret, cleave_error *error);
void api_future_enqueue(cleave_runtime *rt, api_future *f);
cleave_status api_future_assign_handle(cleave_runtime *rt, api_future *f, cleave_future *ret,
                                       cleave_error *error);
cleave_status api_future_find(cleave_runtime *rt, cleave_future handle, api_future **ret,
                              cleave_error *error);
/* Decrements n_users, which api_future_new and api_future_find have incremented. */
void api_future_release_use(cleave_runtime *rt, api_future *f);
/* Increments n_watchers of f, or decrements it if `is_watched` is false. While n_watchers is above
 * 0, an answer for f wakes the sleeping threads. */
void api_future_set_watched(api_future *f, bool is_watched);
/* Sets the result, unless f is done. why NULL: success. */
void api_future_settle(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* As api_future_settle, and marks f as finished: no answer will come any more. */
void api_future_finish(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* As api_future_finish, for an operation that is still in progress: withdraws it first. */
void api_future_end_early(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* Cancels an operation. If it cannot be cancelled (cannot_cancel), it continues, and only its
 * result is dropped. */
void api_future_abandon(cleave_runtime *rt, api_future *f);
/* True if an earlier backward, step or write of its context is unfinished. */
bool api_future_has_earlier_operation(const cleave_runtime *rt, const api_future *f);
/* True if some function of the program waits for an unfinished operation of the context. */
bool api_has_waiter_in_context(const cleave_runtime *rt, const api_context *c);
/* Ends all unfinished records of the context, with the context's failure or as cancelled. */
void api_futures_end_in_context(cleave_runtime *rt, api_context *c);
void api_futures_report_leaks(cleave_runtime *rt, cleave_leaks *l);
/* Frees the record if it is finished and has neither a user nor a handle. */
void api_future_drop_if_unused(cleave_runtime *rt, api_future *f);

/* ---- kinds of operations --------------------------------------------------------------------- */

typedef enum api_operation_kind {
  API_OPERATION_FETCH,
  API_OPERATION_CALL,
  API_OPERATION_BACKWARD,
  API_OPERATION_STEP,
  API_OPERATION_STATE_READ,
  API_OPERATION_WEIGHT_READ,
  API_OPERATION_STATE_WRITE,
  API_OPERATION_WORKER_FILE,
  API_OPERATION_CLOSE,
  API_N_OPERATIONS
} api_operation_kind;
extern const api_operation api_operations[API_N_OPERATIONS]; /* defined in operations.c */

cleave_status api_copy_tensor_result(const api_future *f, void *ret, cleave_error *error);

cleave_status api_fetch_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_fetch_advance(cleave_runtime *rt, api_future *f);
void api_fetch_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
cleave_status api_call_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error);

/* Fills in *ret from the program's arguments. Copies only the gradients, which
 * api_backward_roots_free frees; roots and weights point to the program's memory. */
cleave_status api_copy_backward_roots(cleave_runtime *rt, const cleave_reference *roots, size_t n,
                                      const cleave_backward_options *o, api_backward_roots *ret,
                                      cleave_error *error);
void api_backward_roots_free(api_backward_roots *s);
cleave_status api_backward_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                 cleave_error *error);
void api_backward_advance(cleave_runtime *rt, api_future *f);
void api_backward_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* Begins a pass without calls, in which the nodes with written gradients send new votes: the sums
 * of their squared gradients. */
void api_step_vote_begin(cleave_runtime *rt, api_context *c);
static inline bool api_is_pass_done(const api_context *c) {
  return !(c->nodes_in_pass & ~c->nodes_finished_pass) && !c->n_leaf_gradients_missing;
}
/* Fills in the error of a pass that has missed its deadline. The error also ends the pass's
 * context. */
void api_fill_late_pass_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);

cleave_status api_step_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error);
void api_step_advance(cleave_runtime *rt, api_future *f);
void api_step_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
cleave_status api_copy_step_result(const api_future *f, void *ret, cleave_error *error);
/* Decides the step by the votes (sums of squared gradients) that nodes have sent, and sends the
 * decision. */
cleave_status api_decide_step(cleave_runtime *rt, api_future *f, cleave_error *error);

/* Reads the parameter or buffer a->name; NULL: all state of the kind. */
cleave_status api_state_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_state_advance(cleave_runtime *rt, api_future *f);
void api_state_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* Decrements n_kept_refs of the module that the operation has used. */
void api_state_free_work(cleave_runtime *rt, api_future *f);
cleave_status api_copy_state_result(const api_future *f, void *ret, cleave_error *error);
cleave_status api_state_write_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                    cleave_error *error);
void api_state_write_advance(cleave_runtime *rt, api_future *f);
void api_state_write_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);

/* Close a context. api_close_advance checks the deadline itself, because some parts of closing have
 * deadlines of their own. */
cleave_status api_close_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_close_advance(cleave_runtime *rt, api_future *f);

/* ---- running operations (await.c) ------------------------------------------------------------ */

/* Each function of cleave.h that waits for nodes calls api_run_blocking or api_run_async, without
 * the runtime's lock. api_run_blocking begins an operation and waits for it; api_run_async begins
 * it and returns a future. ret: the `ret` of the operation's copy_result. */
cleave_status api_run_blocking(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                               void *ret, cleave_error *error);
cleave_status api_run_async(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                            cleave_future *ret, cleave_error *error);

/* With the runtime's lock held: starts the thread of futures, unless it runs or the runtime is
 * single_thread. */
cleave_status api_futures_start_thread(cleave_runtime *rt, cleave_error *error);
/* With the runtime's lock held: waits until f is done or until_ns has passed. Returns its
 * result. */
cleave_status api_future_await(cleave_runtime *rt, api_future *f, uint64_t until_ns,
                               cleave_error *error);
/* With the runtime's lock held: advances all unfinished records. Returns the monotonic time at
 * which to call it again, in ns. */
uint64_t api_futures_advance(cleave_runtime *rt);
/* With the runtime's lock held: waits until one of futures, [n], is done. Handles with id 0 are
 * skipped. False: the deadline has passed. */
bool api_futures_await_any(cleave_runtime *rt, const cleave_future *futures, size_t n,
                           uint64_t until_ns, size_t *ret_index);
/* Returns the result of a record that is done. */
cleave_status api_future_result(const api_future *f, cleave_error *error);
/* Copies the result of an operation out of its record. */
typedef cleave_status api_result_fn(const api_future *f, void *ret, cleave_error *error);
/* Copies the result of a future that has ended with success. CLV_INVALID: its operation has another
 * copy_result than `copy_result`; what: name of the expected result, for the message.
 * (future_poll.c) */
cleave_status api_future_take_result(cleave_runtime *rt, cleave_future future, const char *what,
                                     api_result_fn *copy_result, void *ret, cleave_error *error);

/* worker_files.c: saves, loads or removes a->name at the module's worker, by a->frame_kind */
cleave_status api_worker_file_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                    cleave_error *error);
void api_worker_file_advance(cleave_runtime *rt, api_future *f);
void api_worker_file_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
cleave_status api_copy_worker_file_result(const api_future *f, void *ret, cleave_error *error);
/* Checks that *ret has its size set. NULL is allowed. (worker_file_calls.c) */
cleave_status api_worker_file_check_result(const cleave_state_file *ret, cleave_error *error);
/* Ends all records. Then ends the thread of futures, after that thread has called all callbacks. */
void api_futures_stop(cleave_runtime *rt);

/* ---- noted_values.c: called without the runtime's lock --------------------------------------- */

/* Passes weights that are about to be written to a module to the gate's note_values. */
cleave_status api_note_written_values(const cleave_module *m, const cleave_named_tensor *items,
                                      size_t n, cleave_error *error) CLEAVE_RESULT;
/* Pass weights that the program has read from a worker, which therefore knows them, to the gate's
 * note_values. api_note_read_values passes the items of a module's state, api_note_weight_read one
 * weight. */
cleave_status api_note_read_values(const api_future *f, const cleave_named_tensor *items, size_t n,
                                   cleave_error *error) CLEAVE_RESULT;
cleave_status api_note_weight_read(const api_future *f, cleave_error *error) CLEAVE_RESULT;

#endif
