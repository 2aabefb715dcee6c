/* SPDX-License-Identifier: Apache-2.0
 *
 * C half of the Python package. Each function does the work of several functions of cleave.h, so
 * that Python gives its lock back once and not for each of them. Functions that wait do so for a
 * slice of time and are called again until they are done, so that Python sees signals in between.
 * No function here calls Python, and no thread of the runtime does.
 *
 * build_ffi.py reads this file: declarations only, in C that cffi understands.
 */
#ifndef CLEAVE_PYTHON_SHIM_H
#define CLEAVE_PYTHON_SHIM_H

#include "cleave.h"

enum { SHIM_INPUTS = 8, SHIM_NOTICE = 512 };

/* Record of what a runtime has sent, and its notices. Filled by the runtime's hooks. */
typedef struct shim_record shim_record;

/* Tensors of one kind that were sent: equal in everything but the number of samples. */
typedef struct shim_sent {
  cleave_sending_kind kind;
  const char *worker, *module, *name; /* valid as long as the record */
  uint32_t input;
  bool optimizer, relayed;
  cleave_dtype dtype;
  int rank;
  int64_t shape[CLEAVE_MAX_RANK]; /* shape[0]: largest number of samples so far */
  uint64_t tensors, bytes;
} shim_sent;

shim_record *shim_record_new(void);         /* NULL: out of memory */
void shim_record_free(shim_record *record); /* only after its runtime was closed */
/* Copies row `index` in order of first sending. False: there are not so many. */
bool shim_record_sent(shim_record *record, size_t index, shim_sent *ret_sent);
/* Takes the oldest notice. False: there is none. */
bool shim_record_notice(shim_record *record, char *ret_text, size_t size);

/* Makes functions of the record's runtime that block end with CLEAVE_CANCELLED, now and later. */
void shim_record_interrupt(shim_record *record);

/* BLOCKS. As cleave_open, with a record of what is sent. */
cleave_status shim_open(const char *path, const char *const *workers, size_t n_workers,
                        const char *run, uint64_t deadline_ms, shim_record *record,
                        cleave_runtime **ret_runtime, cleave_error *error);

/* Forward through a chain of modules: leaves, calls, and the value's way to this process. Zeroed
 * before the first use, and used again for forwards with inputs of the same kinds. Numbers that
 * Python writes each time are addresses, because making a pointer costs it more. */
typedef struct shim_forward {
  cleave_context context;        /* id 0: one for this forward alone, ended behind it */
  bool evaluation;               /* of that one */
  cleave_module *const *modules; /* [n_modules] */
  size_t n_modules;
  size_t n_inputs;                   /* at most SHIM_INPUTS */
  cleave_tensor inputs[SHIM_INPUTS]; /* type and shape */
  uintptr_t input_at[SHIM_INPUTS];   /* address of each input's numbers */
  bool requires_grad[SHIM_INPUTS];
  uintptr_t room; /* where the value is copied to, if it has room_bytes; 0: nowhere */
  size_t room_bytes;
  /* results */
  bool begun, done, is_in_room;
  cleave_context own;
  cleave_reference leaves[SHIM_INPUTS];
  cleave_reference value;
  cleave_future future;
  cleave_tensor result; /* its memory is used again unless Python takes it */
} shim_forward;

/* Begins a forward and waits for nothing, unless a module has to be loaded first. */
cleave_status shim_forward_begin(cleave_runtime *runtime, shim_forward *forward,
                                 cleave_error *error);
/* Begins a forward, if that was not done, and advances it for at most slice_ms. done: it has ended,
 * well or with the error returned. A failed one has released what it held. */
cleave_status shim_forward_run(cleave_runtime *runtime, shim_forward *forward, uint64_t slice_ms,
                               cleave_error *error);
/* Gives up a forward that is not done. */
void shim_forward_abandon(cleave_runtime *runtime, shim_forward *forward);

/* Releases a forward whose backward never comes, and what its worker keeps for that. */
void shim_forward_forget(cleave_runtime *runtime, shim_forward *forward);
void shim_forward_free(shim_forward *forward); /* memory of results only */

/* Backward of one forward, and the gradients of its leaves, which begin at nothing each time. Used
 * again as its forward is. */
typedef struct shim_backward {
  shim_forward *forward;
  cleave_tensor gradient;       /* of the value: type and shape */
  uintptr_t gradient_at;        /* address of its numbers */
  bool retain;                  /* keeps the handles and saved tensors for another backward */
  uintptr_t rooms[SHIM_INPUTS]; /* as shim_forward.room, for each input */
  size_t room_bytes[SHIM_INPUTS];
  /* results */
  bool begun, done, is_in_room[SHIM_INPUTS];
  cleave_future future;
  cleave_tensor gradients[SHIM_INPUTS]; /* of inputs that require a gradient */
} shim_backward;

cleave_status shim_backward_begin(cleave_runtime *runtime, shim_backward *backward,
                                  cleave_error *error);
cleave_status shim_backward_run(cleave_runtime *runtime, shim_backward *backward, uint64_t slice_ms,
                                cleave_error *error);
void shim_backward_abandon(cleave_runtime *runtime, shim_backward *backward);
void shim_backward_free(shim_backward *backward);

/* Step of an optimiser, then the end of its context unless keeps_context. */
typedef struct shim_step {
  cleave_context context;
  cleave_optimizer *optimizer; /* NULL: no step, only the end */
  bool keeps_context;          /* the context stays, for the step of another optimiser */
  double other_square;         /* sum of squares of the gradients of this process */
  /* results */
  bool begun, done;
  cleave_future future;
  cleave_step_decision result;
} shim_step;

cleave_status shim_step_run(cleave_runtime *runtime, shim_step *step, uint64_t slice_ms,
                            cleave_error *error);
void shim_step_abandon(cleave_runtime *runtime, shim_step *step);

#endif
