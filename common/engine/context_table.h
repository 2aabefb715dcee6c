/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machines of the engine of contexts as tables: a row per state, a cell per event. A cell
 * gives the action and the next state, or the reason of a refusal. An event is impossible where the
 * cell is empty: it is refused as a fault of the engine.
 *
 * clv_contexts_on_event (context.c) and its wrappers for contexts, values, calls, passes and steps
 * look up every transition here. context_table.c has the tables, with a paragraph for each state.
 * They follow PROTOCOL.md 6.
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

/* Action of a cell on its event. */
typedef enum clv_action {
  CELL_IMPOSSIBLE, /* the cell is empty: the event cannot happen in this state */
  CELL_REFUSE,     /* the event is refused with the cell's code and text */
  CELL_IGNORE,     /* the event changes nothing */
  CELL_RECORD,     /* the event is recorded; other events must follow */
  CELL_SETTLE,     /* whatever waited for the event proceeds */
  CELL_GIVE,       /* the value exists, so the consumer receives it at once */
  CELL_BEGIN,      /* something begins that a later event ends */
  CELL_END,        /* something ends */
  CELL_COUNT,      /* the frame came too late: counted, otherwise ignored */
  CELL_REPEAT,     /* the first failure (or the answer to END_CONTEXT) is sent again */
} clv_action;

typedef struct clv_cell {
  clv_action action;
  uint8_t next; /* state that follows */
  clv_code code;
  const char *text; /* predicate of a refusal, without its subject; NULL for other actions */
} clv_cell;

typedef enum clv_context_state {
  CONTEXT_OPEN,
  CONTEXT_FAILED,
  CONTEXT_CLOSING, /* END_CONTEXT is being handled: no work of the context becomes ready */
  CONTEXT_ENDING,  /* ENDED has been sent; calls that kept values depend on still run */
  CONTEXT_ENDED
} clv_context_state;

typedef enum clv_context_event {
  CONTEXT_CALL_ANNOUNCED, /* announcement of a chunked CALL */
  CONTEXT_CALL,
  CONTEXT_DELIVER,
  CONTEXT_VALUE,
  CONTEXT_DROP,
  CONTEXT_SPARE,
  CONTEXT_PREPARE,
  CONTEXT_GRADIENT,
  CONTEXT_APPLY,
  CONTEXT_REVERT,
  CONTEXT_END,           /* END_CONTEXT arrived, and no work is ready or runs */
  CONTEXT_END_RETAINS,   /* kept values still depend on calls of the context */
  CONTEXT_RETAINED_DONE, /* kept values depend on no call, or the retained calls are done */
  CONTEXT_ABORT,
  CONTEXT_FAILS,      /* a backward pass or a step failed */
  CONTEXT_WORK_READY, /* work of the context became ready */
} clv_context_event;

typedef enum clv_value_state {
  VALUE_AWAITED,  /* a frame has named it, and no call of this node computes it so far */
  VALUE_PENDING,  /* a call of this node computes it and has not run */
  VALUE_LEAF,     /* settled (tensor or failure): received from another node */
  VALUE_COMPUTED, /* settled (tensor or failure): its call has run */
} clv_value_state;

typedef enum clv_value_event {
  VALUE_CALL_ADDED,      /* a CALL that computes it arrived */
  VALUE_CALL_DONE,       /* that call has run or failed */
  VALUE_RECEIVED,        /* a VALUE frame brought it */
  VALUE_RECEIVED_AS_ARG, /* a CALL brought it as an argument */
  VALUE_USED,            /* a CALL uses it as an argument */
  VALUE_DELIVERY_ADDED,  /* a DELIVER or a CALL with CLV_FLAG_DELIVER asks for it */
  VALUE_KEPT,            /* a reference keeps it */
  VALUE_GRADIENT,        /* a gradient of it arrived */
} clv_value_event;

typedef enum clv_call_state {
  CALL_ANNOUNCED,    /* the announcement has arrived, the tensors have not */
  CALL_WAITING,      /* waits for inputs, its turn in the queue, its position or its leader */
  CALL_READY,        /* its forward is work (ready or running) */
  CALL_FORWARD_DONE, /* forward done, saved tensors kept for a backward */
  CALL_RETAINED,     /* inputs alone are kept; a backward recomputes the forward first */
  CALL_BACKWARD,     /* the input part of its backward is work */
  CALL_WEIGHT_GRAD,  /* the weight part of its backward waits for its position or is work */
  CALL_SAVED_FREED,  /* backward done, saved tensors and inputs freed */
  CALL_NO_BACKWARD,  /* cannot have a backward: not training, nothing to differentiate, or failed */
} clv_call_state;

typedef enum clv_call_event {
  CALL_TENSORS_RECEIVED,
  CALL_IS_READY, /* its inputs, its turn, its position and its leader's backward are there */
  CALL_RAN_KEEPING_SAVED,   /* forward done, with saved tensors */
  CALL_RAN_KEEPING_INPUTS,  /* forward done, with its inputs alone */
  CALL_RAN_KEEPING_NOTHING, /* forward done, with nothing kept */
  CALL_FORWARD_FAILED,      /* its forward, or an input of it, failed */
  CALL_BACKWARD_DUE,        /* all gradients of its value have arrived */
  CALL_INPUT_GRAD_DONE,     /* the input part is done */
  CALL_BACKWARD_DONE,       /* the backward is done */
  CALL_BACKWARD_RETAINED,   /* the backward is done, and the pass retains the inputs for another */
  CALL_GOT_FOLLOWER,        /* another call was added that runs after its backward */
} clv_call_event;

typedef enum clv_pass_state {
  PASS_NONE,
  PASS_COLLECTING, /* more PREPAREs of the pass follow */
  PASS_ACTIVE,
  PASS_ENDING, /* its calls are done; its end, with the vote if any, is work */
} clv_pass_state;

typedef enum clv_pass_event {
  PASS_PREPARE_LATER,    /* PREPARE of a later phase than the last */
  PASS_PREPARE_SAME,     /* PREPARE of the current or last phase */
  PASS_PREPARE_EARLIER,  /* PREPARE of an earlier phase */
  PASS_COLLECTED,        /* the last PREPARE of the pass arrived */
  PASS_GRADIENT_NEEDED,  /* GRADIENT of this phase for a call that waits for it */
  PASS_GRADIENT_OTHER,   /* GRADIENT of this phase for a call not in the pass, or already done */
  PASS_GRADIENT_LATER,   /* GRADIENT of a later phase */
  PASS_GRADIENT_EARLIER, /* GRADIENT of an earlier phase */
  PASS_STEP,             /* APPLY */
  PASS_DONE,             /* all calls of the pass are done */
  PASS_ENDED,            /* FINISHED was sent, or the context failed */
} clv_pass_event;

typedef enum clv_step_state {
  STEP_FINAL, /* no step of the module can be reverted */
  STEP_OPEN,  /* the last step of the module can be reverted */
} clv_step_state;

typedef enum clv_step_event {
  STEP_TAKEN_REVERTIBLE, /* APPLY made a step and kept a snapshot */
  STEP_TAKEN_FINAL,      /* APPLY made a step without a snapshot */
  STEP_PLANNED,          /* an APPLY with a position made a step */
  STEP_REVERTED,         /* REVERT of the context that made the step */
  STEP_REVERTED_BY_OTHER,
  STEP_OTHER_WORK, /* a CALL or an APPLY of another context arrived */
} clv_step_event;

typedef enum clv_work_state { WORK_IDLE, WORK_READY, WORK_RUNNING } clv_work_state;
typedef enum clv_work_event { WORK_IS_READY, WORK_STARTS, WORK_ENDS } clv_work_event;

/* Returns the cell for an event in a state. Counts its use in transition_counts ([TABLE_CELLS]),
 * unless that is NULL. */
const clv_cell *clv_table_cell(uint32_t *transition_counts, clv_state_machine machine,
                               uint32_t state, uint32_t event);
/* As clv_table_cell, and moves *state to the state that follows. CLV_INTERNAL: the event is
 * impossible in this state. A CELL_REFUSE leaves *state as it is; the caller words the message. */
clv_code clv_table_step(uint32_t *transition_counts, clv_state_machine machine, uint8_t *state,
                        uint32_t event, const clv_cell **ret, clv_err *err) CLV_USE_RESULT;

/* The table of one machine, for tests. */
typedef struct clv_table {
  const char *name;
  uint32_t n_states, n_events;
  const clv_cell (*cells)[MACHINE_MAX_EVENTS]; /* [n_states] */
} clv_table;
const clv_table *clv_table_of(clv_state_machine machine);

static inline uint32_t clv_table_index(clv_state_machine machine, uint32_t state, uint32_t event) {
  return ((uint32_t)machine * MACHINE_MAX_STATES + state) * MACHINE_MAX_EVENTS + event;
}

#endif
