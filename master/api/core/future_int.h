/* SPDX-License-Identifier: Apache-2.0
 *
 * What is waited for, as a record: of a function that blocks until it has returned, or with a
 * handle of the program's. What a record waits for are the facts that nodes answer (events.c): each
 * kind looks at them when it is advanced, by whoever waits for anything, and by the runtime's
 * thread of futures once there is one (await.c). A record is *done* when its result is known; its
 * kind is *over* when nothing more is to come, which of a cancelled one may be later.
 */
#ifndef CLEAVE_FUTURE_INT_H
#define CLEAVE_FUTURE_INT_H

#include "master/api/core/core_int.h"

typedef struct api_callback {
  void (*function)(void *user, cleave_future future, const cleave_error *error);
  void *user;
  struct api_callback *next;
} api_callback;

/* Where a backward begins. Of one that waits for the one before: copies. */
typedef struct api_backward_roots {
  cleave_reference *roots; /* [n] */
  float *weights;          /* [n], or NULL: 1 each */
  clv_tensor **gradients;  /* [n], NULL where the weight counts; or NULL */
  size_t n;
  bool retain;
} api_backward_roots;

/* What a function of the program that waits for nodes is given, and its asynchronous form: which of
 * these count, the operation says. */
typedef struct api_arguments {
  uint64_t deadline_ms; /* 0: the runtime's */
  cleave_context context;
  cleave_module *module;
  cleave_optimizer *optimizer;
  cleave_reference reference;
  cleave_kept kept;
  const char *name; /* of a parameter or a file */
  cleave_state_kind kind;
  clv_frame_kind verb; /* with a file of state */
  clv_tensor *tensor;
  api_state_item *items; /* [n] taken by what begins with them */
  uint32_t n;
  void *work; /* of an operation with a thread; taken */
  const api_backward_roots *starts;
  const cleave_reference *inputs; /* [n_inputs] of a call, */
  size_t n_inputs;
  cleave_reference *ret_reference; /* and its value; NULL: the value has no other handle */
} api_arguments;

/* A kind of work that is waited for: a row of core/operations.c or of a table in extra. All with
 * the lock but `out`. */
typedef struct api_operation {
  const char *name; /* in messages: "a step" */
  /* Checks and sends, or leaves that to the first `advance`; when it fails nothing has begun. */
  cleave_status (*begin)(cleave_runtime *rt, api_arguments *a, struct api_future *f,
                         cleave_error *error);
  void (*advance)(cleave_runtime *rt, struct api_future *f); /* looks, and finishes what is over */
  /* Its deadline has passed: fills in the error. NULL: `advance` sees to deadlines. */
  void (*late)(cleave_runtime *rt, const struct api_future *f, cleave_error *ret);
  /* Its future ends before it is over. NULL: nothing is to be done. */
  void (*leave)(cleave_runtime *rt, struct api_future *f);
  /* Copies the result of one that went well to *ret. NULL: it has none. */
  cleave_status (*out)(const struct api_future *f, void *ret, cleave_error *error);
  void (*free)(cleave_runtime *rt, struct api_future *f); /* frees f->work; NULL: there is none */
  bool in_order;      /* backwards, steps and writes of a context wait for earlier ones */
  bool while_closing; /* may begin while the runtime is being closed */
  bool has_thread;    /* a thread of its own works for it, and cannot be stopped */
  bool unattended;    /* its future needs no thread of futures */
} api_operation;

typedef struct api_future {
  uint64_t id; /* 0: of a function that blocks */
  const api_operation *op;
  uint32_t stage;   /* 0: nothing has been sent */
  uint32_t waiting; /* functions that use the record, */
  uint32_t watched; /* that wait for it, and callbacks */
  bool done, over, released;
  bool bound; /* cannot be withdrawn any more */
  bool runs;  /* a pass of the context runs for it */
  bool later; /* a closing whose end is said when the owners of what is kept have answered */
  uint64_t until_ns, deadline_ms;
  uint64_t due_ns;            /* when it is to be looked at without an event */
  cleave_error why;           /* status OK: it went well */
  char of[CLV_WIRE_NAME + 1]; /* the module, context or parameter */
  api_callback *callbacks, **callbacks_end;
  struct api_future *next, **at; /* among those that are not over; free ones */
  struct api_future *next_ready;
  /* What it is of. */
  api_context *context; /* with whose end it ends; NULL: none */
  uint64_t context_id;
  api_value *value;
  cleave_module *module;
  cleave_optimizer *optimizer;
  clv_state_kind what;
  clv_frame_kind verb; /* with a file of state, of this name: */
  char file[CLV_WIRE_NAME + 1];
  api_state_request request;
  api_backward_roots backward;
  void *work; /* the operation's own record; freed by its `free` */
  /* What came of it, or is to be written. */
  clv_tensor *tensor;
  cleave_step_result stepped;
  api_state_item *items; /* [n_items] */
  uint32_t n_items;
} api_future;

typedef struct api_futures {
  api_future *first, **end;       /* not over, oldest first */
  api_future *ready, **ready_end; /* done, with callbacks to be called */
  api_future *free;
  api_callback *free_callbacks;
  pthread_t thread;
  bool (*call_back)(
      cleave_runtime *rt); /* calls the callbacks that are due; NULL: there are none */
  bool running;            /* there is the thread */
  bool closing;            /* it is to end; nothing new begins */
  bool calling;            /* a callback is being called, by */
  pthread_t caller;
} api_futures;

/* All with the lock held. A new record is the caller's alone until it is listed. */
cleave_status api_futures_new(cleave_runtime *rt, cleave_error *error);
void api_futures_free(cleave_runtime *rt);
cleave_status api_future_new(cleave_runtime *rt, const api_operation *op, uint64_t until_ns,
                             uint64_t deadline_ms, api_future **ret, cleave_error *error);
void api_future_enqueue(cleave_runtime *rt, api_future *f);
cleave_status api_future_assign_handle(cleave_runtime *rt, api_future *f, cleave_future *ret,
                                       cleave_error *error);
cleave_status api_future_find(cleave_runtime *rt, cleave_future handle, api_future **ret,
                              cleave_error *error);
/* Who has made it or found it goes. */
void api_future_release_use(cleave_runtime *rt, api_future *f);
/* It is waited for: what comes wakes whoever sleeps. */
void api_future_set_watched(api_future *f, bool watch);
/* The result is known, if it was not; why NULL: it went well. */
void api_future_settle(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* The same, and nothing more is to come. */
void api_future_finish(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* As api_future_finish, of one that is not over. */
void api_future_end_early(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* An older backward, step or write of its context is not over. */
bool api_future_has_earlier(const cleave_runtime *rt, const api_future *f);
/* A function waits for something in the context. */
bool api_has_waiter_in_context(const cleave_runtime *rt, const api_context *c);
/* Whatever is not over in the context ends, with its failure or as cancelled. */
void api_futures_end_in_context(cleave_runtime *rt, api_context *c);
void api_futures_report(cleave_runtime *rt, cleave_leaks *l);
/* Frees it when nobody uses it any more. */
void api_future_drop_if_unused(cleave_runtime *rt, api_future *f);

/* ---- operations ------------------------------------------------------------------------------ */

typedef enum api_operation_kind {
  API_FETCH,
  API_CALL,
  API_BACKWARD,
  API_STEP,
  API_STATE_READ,
  API_WEIGHT_READ,
  API_STATE_WRITE,
  API_CLOSE,
  API_OPERATIONS
} api_operation_kind;
extern const api_operation api_operations[API_OPERATIONS]; /* operations.c */

cleave_status api_tensor_result(const api_future *f, void *ret, cleave_error *error);

cleave_status api_fetch_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_fetch_advance(cleave_runtime *rt, api_future *f);
void api_fetch_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
cleave_status api_call_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error);

/* Of the program's arguments; api_backward_roots_done frees what this has made. */
cleave_status api_copy_backward_roots(cleave_runtime *rt, const cleave_reference *roots, size_t n,
                                      const cleave_backward_options *o, api_backward_roots *ret,
                                      cleave_error *error);
void api_backward_roots_done(api_backward_roots *s);
cleave_status api_backward_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                 cleave_error *error);
void api_backward_advance(cleave_runtime *rt, api_future *f);
void api_backward_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* A pass without calls: nodes whose gradients the program has written vote again. */
void api_vote_begin(cleave_runtime *rt, api_context *c);
static inline bool api_pass_is_done(const api_context *c) {
  return !(c->expected & ~c->finished) && !c->n_leaf_gradients_missing;
}
/* The deadline of a pass ends its context. */
void api_pass_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);

cleave_status api_step_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error);
void api_step_advance(cleave_runtime *rt, api_future *f);
void api_step_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
cleave_status api_step_result(const api_future *f, void *ret, cleave_error *error);
/* The decision, by the votes that have come, and its frames. */
cleave_status api_decide_step(cleave_runtime *rt, api_future *f, cleave_error *error);

/* name: of one parameter or buffer; NULL: all of that kind. */
cleave_status api_state_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_state_advance(cleave_runtime *rt, api_future *f);
void api_state_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);
void api_state_free_work(cleave_runtime *rt, api_future *f); /* before it is over */
cleave_status api_state_result(const api_future *f, void *ret, cleave_error *error);
cleave_status api_state_write_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                    cleave_error *error);
void api_state_write_advance(cleave_runtime *rt, api_future *f);
void api_state_write_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret);

/* It looks at its deadline itself: some of what it waits for has one of its own. */
cleave_status api_close_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error);
void api_close_advance(cleave_runtime *rt, api_future *f);

/* ---- await.c --------------------------------------------------------------------------------- */

/* A function that waits for nodes is one of these two, without the lock: an operation that is begun
 * and awaited, or one that is begun and left to its future. ret: as the operation's `out`. */
cleave_status api_run_blocking(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                               void *ret, cleave_error *error);
cleave_status api_run_async(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                            cleave_future *ret, cleave_error *error);

/* With the lock. There is a thread that goes on with futures, unless the program's own are all
 * there are. */
cleave_status api_futures_start_thread(cleave_runtime *rt, cleave_error *error);
/* With the lock: waits until it is done, or until then; its result. */
cleave_status api_future_await(cleave_runtime *rt, api_future *f, uint64_t until_ns,
                               cleave_error *error);
/* With the lock: whatever can go on does. When it has to be looked at again. */
uint64_t api_futures_advance(cleave_runtime *rt);
/* With the lock: waits for the first of some handles that is done; [n] an id of 0: none. False: not
 * in time. */
bool api_futures_await_any(cleave_runtime *rt, const cleave_future *futures, size_t n,
                           uint64_t until_ns, size_t *ret_index);
/* The result of one that is done. */
cleave_status api_future_result(const api_future *f, cleave_error *error);
/* Ends all, and the thread that waited for them, when every callback has been called. */
void api_futures_stop(cleave_runtime *rt);

#endif
