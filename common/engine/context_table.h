/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machines of the engine of contexts as tables: a row per state, a cell per event. A cell
 * gives the action and the next state, or the reason of a refusal. Where the cell is empty the
 * event is impossible: it changes nothing and fails the context before the next work starts. An
 * impossible event of a value refuses the frame instead, with CLV_INTERNAL.
 *
 * clv_contexts_on_event (context.c) and its wrappers look up the transitions of contexts, calls,
 * passes, steps and work here, clv_value_on_event (context_value.c) those of values. Three
 * functions set a state without an event: free_all_but_retained (context_end.c) and
 * clv_context_clear (context_free.c) set that of a pass to NONE, new_call (context_call.c) sets the
 * first state of a call. context_table.c has the tables, with a paragraph for each state. They
 * follow PROTOCOL.md 6.
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

/* Action that a cell asks for when its event occurs. */
typedef enum clv_action {
  CELL_IMPOSSIBLE, /* the cell is empty: the event cannot happen in this state */
  CELL_REFUSE,     /* the event is refused with the cell's code and text */
  CELL_IGNORE,     /* the event changes nothing */
  CELL_RECORD,     /* the event is recorded, and nothing else is done now */
  CELL_SETTLE,     /* the calls, deliveries or records that waited for this event proceed */
  /* In the table of values: the value that a call, a delivery or a reference asks for exists, and
   * is passed on at once. In the table of contexts: the frame is handled if a call that outlives
   * the context needs it; otherwise it is counted as late. In the table of steps: the snapshot from
   * before the step is restored. */
  CELL_GIVE,
  CELL_BEGIN,  /* a longer state begins (backward, pass, closing), which a later event ends */
  CELL_END,    /* the object reaches its end, or becomes idle */
  CELL_COUNT,  /* the frame came too late: counted, otherwise ignored */
  CELL_REPEAT, /* the first failure, or the answer to END_CONTEXT, is sent again */
} clv_action;

typedef struct clv_cell {
  clv_action action;
  uint8_t next_state; /* state after the event */
  clv_code code;
  const char *text; /* predicate of a refusal, without its subject; NULL for other actions */
} clv_cell;

typedef enum clv_context_state {
  CONTEXT_OPEN,
  CONTEXT_FAILED,
  CONTEXT_CLOSING, /* END_CONTEXT is being handled: no work of the context becomes ready */
  CONTEXT_ENDING,  /* ENDED has been sent; calls still run because kept values depend on them */
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
  /* a backward pass or a step failed, a PREPARE, GRADIENT or APPLY was refused, or a packet could
   * not be sent */
  CONTEXT_FAILS,
  CONTEXT_WORK_READY, /* work of the context became ready */
} clv_context_event;

typedef enum clv_value_state {
  VALUE_AWAITED,  /* a frame has named the value, and no CALL that computes it has arrived */
  VALUE_PENDING,  /* a call of this node will compute the value */
  VALUE_LEAF,     /* the value, a tensor or a failure, was received from another node */
  VALUE_COMPUTED, /* the value, a tensor or a failure, was made by a call of this node */
} clv_value_state;

typedef enum clv_value_event {
  VALUE_CALL_ADDED,      /* a CALL that computes the value arrived */
  VALUE_CALL_DONE,       /* the call that computes the value has run or failed */
  VALUE_RECEIVED,        /* a VALUE frame brought the value */
  VALUE_RECEIVED_AS_ARG, /* a CALL brought the value as an argument */
  VALUE_USED,            /* a CALL names the value as an argument */
  /* a DELIVER, or a CALL with CLV_FLAG_DELIVER, asks to send the value to a node */
  VALUE_DELIVERY_ADDED,
  VALUE_KEPT,     /* a reference keeps the value */
  VALUE_GRADIENT, /* a gradient of the value arrived */
} clv_value_event;

typedef enum clv_call_state {
  CALL_ANNOUNCED, /* the announcement has arrived, the tensors have not */
  /* the call waits for inputs, its turn in the queue, its position, or its leader: a call whose
   * backward must be done before this call runs */
  CALL_WAITING,
  CALL_READY,        /* the call's forward is ready or runs */
  CALL_FORWARD_DONE, /* the forward is done; saved tensors are kept for a backward */
  /* the forward is done; only the inputs are kept, so a backward computes the forward again */
  CALL_RETAINED,
  CALL_BACKWARD, /* the input part of the call's backward is ready or runs */
  /* the weight part of the call's backward waits for its position, is ready or runs */
  CALL_WEIGHT_GRAD,
  CALL_SAVED_FREED, /* the backward is done; saved tensors and inputs are freed */
  /* the call cannot have a backward: not training, nothing to differentiate, or it failed */
  CALL_NO_BACKWARD,
} clv_call_state;

typedef enum clv_call_event {
  CALL_TENSORS_RECEIVED,
  CALL_IS_READY,            /* the call waits for nothing any more */
  CALL_RAN_KEEPING_SAVED,   /* the forward is done, and saved tensors are kept for a backward */
  CALL_RAN_KEEPING_INPUTS,  /* the forward is done, and only the inputs are kept */
  CALL_RAN_KEEPING_NOTHING, /* the forward is done, and neither inputs nor saved tensors are kept */
  CALL_FORWARD_FAILED,      /* the forward failed, or an input had failed */
  CALL_BACKWARD_DUE,        /* all gradients of the call's value have arrived */
  CALL_INPUT_GRAD_DONE,     /* the input part of the backward is done */
  CALL_BACKWARD_DONE,       /* the backward is done */
  CALL_BACKWARD_RETAINED,   /* the backward is done, and the pass retains the inputs for another */
  /* another call was added that must run after the backward of this call */
  CALL_GOT_FOLLOWER,
} clv_call_event;

typedef enum clv_pass_state {
  PASS_NONE,
  PASS_COLLECTING, /* the first PREPARE of the pass has arrived, the last one has not */
  PASS_ACTIVE,
  /* all calls of the pass are done; its end, with the vote if there is one, is ready or runs */
  PASS_ENDING,
} clv_pass_state;

typedef enum clv_pass_event {
  PASS_PREPARE_LATER, /* a PREPARE arrived whose phase is later than that of the last pass */
  /* a PREPARE arrived for the pass in progress, or for the last pass if none is in progress */
  PASS_PREPARE_SAME,
  PASS_PREPARE_EARLIER, /* a PREPARE arrived for an earlier phase */
  PASS_COLLECTED,       /* the last PREPARE of the pass arrived */
  PASS_GRADIENT_NEEDED, /* a GRADIENT of the last phase arrived for a call that waits for it */
  /* a GRADIENT of the last phase arrived for a call that is not in the pass, or already done */
  PASS_GRADIENT_OTHER,
  PASS_GRADIENT_LATER,   /* a GRADIENT of a later phase arrived */
  PASS_GRADIENT_EARLIER, /* a GRADIENT of an earlier phase arrived */
  PASS_STEP,             /* APPLY without a position arrived */
  PASS_DONE,             /* all calls of the pass are done */
  PASS_ENDED,            /* FINISHED was sent, or the context failed */
} clv_pass_event;

typedef enum clv_step_state {
  STEP_FINAL, /* no step of the module can be reverted */
  STEP_OPEN,  /* the last step of the module can be reverted */
} clv_step_state;

typedef enum clv_step_event {
  STEP_TAKEN_REVERTIBLE, /* an APPLY made a step and kept a snapshot, so that REVERT can undo it */
  STEP_TAKEN_FINAL,      /* an APPLY made a step and kept no snapshot */
  STEP_PLANNED,          /* an APPLY with a position made a step */
  STEP_REVERTED,         /* the context that made the step sent REVERT */
  /* a context sent REVERT, and the module has no step of this context that can be reverted */
  STEP_NOT_REVERTED,
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
clv_code clv_table_apply_event(uint32_t *transition_counts, clv_state_machine machine,
                               uint8_t *state, uint32_t event, const clv_cell **ret,
                               clv_err *err) CLV_USE_RESULT;

/* The table of one machine, for tests. */
typedef struct clv_table {
  const char *name;
  uint32_t n_states, n_events;
  const clv_cell (*cells)[MACHINE_MAX_EVENTS]; /* [n_states] a row of cells for each state */
} clv_table;
const clv_table *clv_transition_table_of(clv_state_machine machine);

static inline uint32_t clv_table_index(clv_state_machine machine, uint32_t state, uint32_t event) {
  return ((uint32_t)machine * MACHINE_MAX_STATES + state) * MACHINE_MAX_EVENTS + event;
}

#endif
