/* SPDX-License-Identifier: Apache-2.0
 *
 * What is waited for, as a record: of a function that blocks until it has returned, or with a
 * handle of the program's. What a record waits for are the facts that nodes answer (events.c): each
 * kind looks at them when it is advanced, by whoever waits for anything, and by the runtime's
 * thread of futures once there is one (await.c). A record is *done* when its result is known; its
 * kind is *over* when nothing more is to come, which of a cancelled one may be later.
 */
#ifndef CLEAVE_API_FUTURE_INT_H
#define CLEAVE_API_FUTURE_INT_H

#include "master/api/api_int.h"

typedef enum api_future_kind {
  API_FUTURE_VALUE,
  API_FUTURE_KEPT,
  API_FUTURE_BACKWARD,
  API_FUTURE_STEP,
  API_FUTURE_STATE,
  API_FUTURE_FILE,
  API_FUTURE_CLOSE,
  API_FUTURE_GRADIENT,
  API_FUTURE_GRADIENTS,
  API_FUTURE_WRITE, /* of a gradient, */
  API_FUTURE_PUT,   /* of state */
  API_FUTURE_ERRAND,
  API_FUTURE_KINDS
} api_future_kind;

typedef struct api_callback {
  void (*function)(void *user, cleave_future future, const cleave_error *error);
  void *user;
  struct api_callback *next;
} api_callback;

/* Where a backward begins. Of one that waits for the one before: copies. */
typedef struct api_starts {
  cleave_reference *roots; /* [n] */
  float *weights;          /* [n], or NULL: 1 each */
  clv_tensor **gradients;  /* [n], NULL where the weight counts; or NULL */
  size_t n;
  bool retain;
} api_starts;

/* The gradients of one module, on their way or here. */
typedef struct api_gradient_part {
  cleave_module *module;
  api_state_item *items; /* [cap] */
  uint32_t cap;
  api_state_request request;
} api_gradient_part;

typedef struct api_leaf_gradient {
  uint64_t id;
  clv_tensor *tensor;
} api_leaf_gradient;

typedef enum api_errand_kind {
  API_ERRAND_PLACE,
  API_ERRAND_RELOAD,
  API_ERRAND_REJOIN, /* of the worker that the future is of */
  API_ERRAND_KINDS
} api_errand_kind;

/* Work for a thread of its own: a function of the program that blocks. */
typedef struct api_errand {
  api_errand_kind kind;
  cleave_runtime *runtime;
  cleave_module *module; /* NULL: of none */
  bool input_grads;
  struct api_reloading *reloading;
  pthread_t thread;
  bool ended;
  cleave_error result; /* of what has ended */
} api_errand;

typedef struct api_future {
  uint64_t id; /* 0: of a function that blocks */
  api_future_kind kind;
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
  api_kept *kept;
  uint64_t fetches; /* of it, before this one */
  cleave_module *module;
  cleave_optimizer *optimizer;
  clv_state_what what;
  clv_frame_kind verb; /* with a file of state, of this name: */
  char file[CLV_WIRE_NAME + 1];
  api_state_request request;
  api_starts backward;
  api_errand errand;
  /* What came of it, or is to be written. */
  clv_tensor *tensor;
  api_gradient_part *parts; /* [n_parts] */
  uint32_t n_parts;
  api_leaf_gradient *leaves; /* [n_leaves] */
  uint32_t n_leaves;
  cleave_stepped stepped;
  api_state_item *items; /* [n_items] */
  uint32_t n_items;
} api_future;

typedef struct api_futures {
  api_future *first, **end;       /* not over, oldest first */
  api_future *ready, **ready_end; /* done, with callbacks to be called */
  api_future *free;
  api_callback *free_callbacks;
  pthread_t thread;
  bool running; /* there is the thread */
  bool closing; /* it is to end; nothing new begins */
  bool calling; /* a callback is being called, by */
  pthread_t caller;
} api_futures;

/* All with the lock held. A new record is the caller's alone until it is listed. */
cleave_status api_futures_new(cleave_runtime *rt, cleave_error *error);
void api_futures_free(cleave_runtime *rt);
cleave_status api_future_new(cleave_runtime *rt, api_future_kind kind, uint64_t until_ns,
                             uint64_t deadline_ms, api_future **ret, cleave_error *error);
void api_future_list(cleave_runtime *rt, api_future *f);
cleave_status api_future_name(cleave_runtime *rt, api_future *f, cleave_future *ret,
                              cleave_error *error);
cleave_status api_future_find(cleave_runtime *rt, cleave_future handle, api_future **ret,
                              cleave_error *error);
/* Who has made it or found it goes. */
void api_future_leave(cleave_runtime *rt, api_future *f);
/* It is waited for: what comes wakes whoever sleeps. */
void api_future_watch(api_future *f, bool watch);
/* The result is known, if it was not; why NULL: it went well. */
void api_future_settle(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* The same, and nothing more is to come. */
void api_future_finish(cleave_runtime *rt, api_future *f, const cleave_error *why);
/* An older backward, step or write of its context is not over. */
bool api_future_has_earlier(const cleave_runtime *rt, const api_future *f);
/* A function waits for something in the context. */
bool api_futures_wait_in(const cleave_runtime *rt, const api_context *c);
/* Whatever is not over in the context ends, with its failure or as cancelled. */
void api_futures_end(cleave_runtime *rt, api_context *c);
void api_futures_report(cleave_runtime *rt, cleave_leaks *l);
cleave_status api_future_then(cleave_runtime *rt, api_future *f, const api_callback *call,
                              cleave_error *error);
/* The next callback that is due. */
bool api_future_take_callback(cleave_runtime *rt, api_callback *ret, cleave_future *ret_future,
                              cleave_error *ret_why);

/* ---- the kinds ------------------------------------------------------------------------------- *
 *
 * begin: checks and sends, or leaves it to the first advance; when it fails nothing has begun.
 * advance: looks, and finishes what is over. late: its deadline has passed; fills in the error. */

cleave_status api_call_begin(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                             const cleave_reference *inputs, size_t n_inputs, bool named,
                             api_future *f, cleave_error *error);
cleave_status api_fetch_begin(cleave_runtime *rt, api_value *v, api_future *f, cleave_error *error);
void api_fetch_advance(cleave_runtime *rt, api_future *f);
void api_fetch_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);

cleave_status api_kept_fetch_begin(cleave_runtime *rt, cleave_kept handle, api_future *f,
                                   cleave_error *error);
cleave_status api_kept_value_begin(cleave_runtime *rt, api_kept *k, api_future *f,
                                   cleave_error *error);
void api_kept_fetch_advance(cleave_runtime *rt, api_future *f);
void api_kept_fetch_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);
void api_kept_fetch_leave(cleave_runtime *rt, api_future *f); /* before it is over */

/* Of the program's arguments; api_starts_done frees what this has made. */
cleave_status api_starts_of(cleave_runtime *rt, const cleave_reference *roots, size_t n,
                            const cleave_backward_options *o, api_starts *ret, cleave_error *error);
void api_starts_done(api_starts *s);
cleave_status api_backward_begin(cleave_runtime *rt, cleave_context handle, const api_starts *s,
                                 api_future *f, cleave_error *error);
void api_backward_advance(cleave_runtime *rt, api_future *f);
void api_backward_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* A pass without calls: nodes whose gradients the program has written vote again. */
void api_vote_begin(cleave_runtime *rt, api_context *c);
static inline bool api_pass_is_done(const api_context *c) {
  return !(c->expected & ~c->finished) && !c->leaf_due;
}
/* The deadline of a pass ends its context. */
void api_pass_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);

cleave_status api_step_begin(cleave_runtime *rt, cleave_optimizer *o, cleave_context handle,
                             api_future *f, cleave_error *error);
void api_step_advance(cleave_runtime *rt, api_future *f);
void api_step_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* The decision, by the votes that have come, and its frames. */
cleave_status api_take_step(cleave_runtime *rt, api_future *f, cleave_error *error);

/* name: of one parameter or buffer; NULL: all of that kind. */
cleave_status api_state_begin(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                              const char *name, api_future *f, cleave_error *error);
void api_state_advance(cleave_runtime *rt, api_future *f);
void api_state_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);
void api_state_forget(cleave_runtime *rt, api_future *f); /* before it is over */
cleave_status api_state_out(const api_future *f, cleave_state *ret, cleave_error *error);
/* Takes the items, [n], whatever comes of it. */
cleave_status api_state_write_begin(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                                    api_state_item *items, uint32_t n, api_future *f,
                                    cleave_error *error);
void api_state_write_advance(cleave_runtime *rt, api_future *f);
void api_state_write_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);

/* gradients.c */
cleave_status api_gradient_begin(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                                 const char *name, api_future *f, cleave_error *error);
void api_gradient_advance(cleave_runtime *rt, api_future *f);
cleave_status api_gradients_begin(cleave_runtime *rt, cleave_context handle, api_future *f,
                                  cleave_error *error);
void api_gradients_advance(cleave_runtime *rt, api_future *f);
/* Without the lock, of one that is done. */
cleave_status api_gradients_out(const api_future *f, cleave_gradients *ret, cleave_error *error);
cleave_status api_gradient_write_begin(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                                       const char *name, clv_tensor *tensor, api_future *f,
                                       cleave_error *error);
void api_gradient_write_advance(cleave_runtime *rt, api_future *f);
void api_gradients_late(cleave_runtime *rt, const api_future *f, cleave_error *ret); /* all three */

/* errand.c: nothing withdraws it, and it sees to its deadline itself. */
void api_errand_advance(cleave_runtime *rt, api_future *f);
/* With the lock, BLOCKS: none runs any more. */
void api_errands_wait(cleave_runtime *rt);
void api_errand_done(const api_errand *e); /* nobody needs any more what it has */

/* verb: STATE_SAVE, STATE_LOAD or STATE_REMOVE. Before it is over: api_state_forget. */
cleave_status api_file_begin(cleave_runtime *rt, cleave_module *m, clv_frame_kind verb,
                             cleave_state_kind kind, const char *name, api_future *f,
                             cleave_error *error);
void api_file_advance(cleave_runtime *rt, api_future *f);
void api_file_late(cleave_runtime *rt, const api_future *f, cleave_error *ret);
/* Has it its size? NULL is allowed, here and next. */
cleave_status api_file_check_result(const cleave_state_file *ret, cleave_error *error);
void api_file_out(const api_future *f, cleave_state_file *ret);

/* It looks at its deadline itself: some of what it waits for has one of its own. */
cleave_status api_close_begin(cleave_runtime *rt, cleave_context handle, api_future *f,
                              cleave_error *error);
void api_close_advance(cleave_runtime *rt, api_future *f);

/* ---- async.c -------------------------------------------------------------------------------- */

/* Without the lock: somebody goes on with futures. */
cleave_status api_async_ready(cleave_runtime *rt, cleave_error *error);
cleave_status api_async_new(cleave_runtime *rt, api_future_kind kind, uint64_t deadline_ms,
                            api_future **ret, cleave_error *error);
/* What could not begin leaves nothing. */
cleave_status api_async_begun(cleave_runtime *rt, api_future *f, cleave_status status,
                              api_future **ret);
/* ret_tensor: what it brings, may be NULL. */
cleave_status api_async_wait(cleave_runtime *rt, api_future *f, clv_tensor **ret_tensor,
                             cleave_error *error);

/* ---- await.c --------------------------------------------------------------------------------- */

/* There is a thread that goes on with them, unless the program's own are all there are. */
cleave_status api_futures_attend(cleave_runtime *rt, cleave_error *error);

/* With the lock: waits until it is done, or until then; its result. */
cleave_status api_future_await(cleave_runtime *rt, api_future *f, uint64_t until_ns,
                               cleave_error *error);
/* What has just begun goes on by itself from here. */
cleave_status api_future_start(cleave_runtime *rt, api_future *f, cleave_future *ret,
                               cleave_error *error);
/* With the lock: whatever can go on does. When it has to be looked at again. */
uint64_t api_futures_advance(cleave_runtime *rt);
/* Ends all, and the thread that waited for them, when every callback has been called. */
void api_futures_stop(cleave_runtime *rt);

#endif
