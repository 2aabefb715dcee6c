/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machines of the engine of contexts as tables: a row per state, a cell per fact. A cell
 * says what is done with the fact and which state follows, or why it is refused. A cell that is not
 * there cannot be: a fact that meets it is refused as a mistake of the engine.
 *
 * context_table.c has the tables, and each machine in words. PROTOCOL.md 6 is what they follow.
 */
#ifndef CLEAVE_CONTEXT_TABLE_H
#define CLEAVE_CONTEXT_TABLE_H

#include "common/base/base.h"

typedef enum clv_state_machine {
  MACHINE_CONTEXT,
  MACHINE_VALUE,
  MACHINE_CALL,
  MACHINE_PASS,
  MACHINE_STEP,
  MACHINE_WORK,
  MACHINES
} clv_state_machine;

enum {
  MACHINE_MAX_STATES = 9,
  MACHINE_MAX_EVENTS = 16,
  TABLE_CELLS = MACHINES * MACHINE_MAX_STATES * MACHINE_MAX_EVENTS
};

/* What is done with a fact. */
typedef enum clv_action {
  CELL_IMPOSSIBLE, /* the cell is not there */
  CELL_REFUSE,     /* with code and text */
  CELL_IGNORE,     /* nothing is recorded */
  CELL_RECORD,     /* the fact is recorded and waits for others */
  CELL_SETTLE,     /* what waited for it goes on */
  CELL_GIVE,       /* it is there: whoever asks gets it at once */
  CELL_BEGIN,      /* something begins that other facts will end */
  CELL_END,        /* and ends */
  CELL_COUNT,      /* a late frame */
  CELL_REPEAT,     /* the failure is said again */
} clv_action;

typedef struct clv_cell {
  clv_action action;
  uint8_t next; /* state */
  clv_code code;
  const char *text; /* of CELL_REFUSE: what is wrong, without who */
} clv_cell;

typedef enum clv_context_state {
  CONTEXT_OPEN,
  CONTEXT_FAILED,
  CONTEXT_CLOSING, /* its END_CONTEXT is being acted on: nothing of it becomes ready any more */
  CONTEXT_ENDING,  /* its end has been said; what kept values need is still computed */
  CONTEXT_ENDED
} clv_context_state;

typedef enum clv_context_event {
  CONTEXT_CALL_ANNOUNCED, /* of a CALL */
  CONTEXT_CALL,
  CONTEXT_DELIVER,
  CONTEXT_VALUE,
  CONTEXT_DROP,
  CONTEXT_SPARE,
  CONTEXT_PREPARE,
  CONTEXT_GRADIENT,
  CONTEXT_APPLY,
  CONTEXT_REVERT,
  CONTEXT_END,           /* END_CONTEXT has come, and no work is left; */
  CONTEXT_END_RETAINS,   /* kept values need some of its calls still; */
  CONTEXT_RETAINED_DONE, /* they need none, or those that were spared are done */
  CONTEXT_ABORT,
  CONTEXT_FAILS,      /* in a backward pass or a step */
  CONTEXT_WORK_READY, /* work of it is ready */
} clv_context_event;

typedef enum clv_value_state {
  VALUE_AWAITED,  /* named, and nobody here makes it */
  VALUE_PENDING,  /* by a call that is here and has not run */
  VALUE_LEAF,     /* here, or failed; it has come from elsewhere */
  VALUE_COMPUTED, /* here, or failed; its call has run */
} clv_value_state;

typedef enum clv_value_event {
  VALUE_CALL_ADDED,      /* a CALL is to make it */
  VALUE_CALL_DONE,       /* that has run, or failed */
  VALUE_RECEIVED,        /* VALUE */
  VALUE_RECEIVED_AS_ARG, /* with a CALL whose argument it is */
  VALUE_USED,            /* an argument of a CALL */
  VALUE_DELIVERY_ADDED,  /* DELIVER */
  VALUE_KEPT,            /* for a reference */
  VALUE_GRADIENT,        /* of it has come */
} clv_value_event;

typedef enum clv_call_state {
  CALL_ANNOUNCED,    /* its head is here, its tensors are not */
  CALL_WAITING,      /* for inputs, its place in the queue, its position, its leader */
  CALL_READY,        /* its forward is work */
  CALL_FORWARD_DONE, /* its backward may come */
  CALL_RETAINED,     /* inputs alone are kept; its forward runs again before its backward */
  CALL_BACKWARD,     /* the first part of its backward is work */
  CALL_WEIGHT_GRAD,  /* the second part is to come, or is work */
  CALL_SAVED_FREED,  /* backward done, inputs gone */
  CALL_NO_BACKWARD,  /* no backward: not training, nothing to differentiate, or a failure */
} clv_call_state;

typedef enum clv_call_event {
  CALL_TENSORS_RECEIVED,
  CALL_IS_READY,            /* nothing is missing any more */
  CALL_RAN_KEEPING_SAVED,   /* forward, keeping what its backward needs */
  CALL_RAN_KEEPING_INPUTS,  /* keeping inputs alone */
  CALL_RAN_KEEPING_NOTHING, /* keeping nothing */
  CALL_FORWARD_FAILED,      /* its forward has */
  CALL_BACKWARD_DUE,        /* for its backward: the gradients of its value are here */
  CALL_INPUT_GRAD_DONE,     /* the gradients of its inputs are there */
  CALL_BACKWARD_DONE,       /* all of it */
  CALL_BACKWARD_RETAINED,   /* all of it, and there may be another one */
  CALL_GOT_FOLLOWER,        /* another call is to run after its backward */
} clv_call_event;

typedef enum clv_pass_state {
  PASS_NONE,
  PASS_COLLECTING, /* more PREPAREs of it follow */
  PASS_ACTIVE,
  PASS_ENDING, /* its calls are done; its end, with the vote, is work */
} clv_pass_state;

typedef enum clv_pass_event {
  PASS_PREPARE_LATER,    /* PREPARE of a later phase, */
  PASS_PREPARE_SAME,     /* of the current or last one, */
  PASS_PREPARE_EARLIER,  /* of an earlier one */
  PASS_COLLECTED,        /* the last PREPARE of it is here */
  PASS_GRADIENT_NEEDED,  /* GRADIENT of this phase for a call in it, */
  PASS_GRADIENT_OTHER,   /* for one that is not in it, or not any more, */
  PASS_GRADIENT_LATER,   /* of a later phase, */
  PASS_GRADIENT_EARLIER, /* of an earlier one */
  PASS_STEP,             /* APPLY */
  PASS_DONE,             /* all that was prepared */
  PASS_ENDED,            /* FINISHED has been said, or the context has failed */
} clv_pass_event;

typedef enum clv_step_state {
  STEP_FINAL, /* nothing can be taken back */
  STEP_OPEN,  /* the last step of the module can */
} clv_step_state;

typedef enum clv_step_event {
  STEP_TAKEN_REVERTIBLE, /* by APPLY, with a copy of what was before */
  STEP_TAKEN_FINAL,      /* by APPLY, without */
  STEP_PLANNED,          /* by an APPLY with a position */
  STEP_REVERTED,         /* by REVERT of its context, */
  STEP_REVERTED_BY_OTHER,
  STEP_OTHER_WORK, /* a CALL or an APPLY of another context has come */
} clv_step_event;

typedef enum clv_work_state { WORK_IDLE, WORK_READY, WORK_RUNNING } clv_work_state;
typedef enum clv_work_event { WORK_IS_READY, WORK_STARTS, WORK_ENDS } clv_work_event;

/* walked: NULL, or [TABLE_CELLS] times that each was met, one more now. */
const clv_cell *clv_table_cell(uint32_t *walked, clv_state_machine machine, uint32_t state,
                               uint32_t fact);
/* The same, as a step: CELL_IMPOSSIBLE is refused. CELL_REFUSE is returned for the caller to word,
 * with nothing changed. */
clv_code clv_table_step(uint32_t *walked, clv_state_machine machine, uint8_t *state, uint32_t fact,
                        const clv_cell **ret, clv_err *err) CLV_USE_RESULT;

/* Of a machine, for tests and for the reader. */
typedef struct clv_table {
  const char *name;
  uint32_t n_states, n_facts;
  const clv_cell (*cells)[MACHINE_MAX_EVENTS]; /* [n_states] */
} clv_table;
const clv_table *clv_table_of(clv_state_machine machine);

static inline uint32_t clv_table_index(clv_state_machine machine, uint32_t state, uint32_t fact) {
  return ((uint32_t)machine * MACHINE_MAX_STATES + state) * MACHINE_MAX_EVENTS + fact;
}

#endif
