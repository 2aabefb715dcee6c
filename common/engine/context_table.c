/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the engine's state machines (context_table.h): contexts, values, calls, backward
 * passes, steps and work. Before each table a paragraph for each state says what holds in it, what
 * enters it and what leaves it.
 */
#include "common/engine/context_table.h"

/* Cells: record the event, do an action (clv_action without CELL_), or refuse the event. The last
 * argument is the next state, or the text of the refusal. */
#define RECORD(state) \
  { CELL_RECORD, (state), CLV_OK, NULL }
#define DO(action, state) \
  { CELL_##action, (state), CLV_OK, NULL }
#define REFUSE(code, text) \
  { CELL_REFUSE, 0, (code), (text) }

/* A context. Its END_CONTEXT and ABORT are handled only when no work is ready or runs
 * (context_frames.c), so freed records are never in the lists of ready work.
 *
 *   OPEN     Holds: any record, any work. Entered: by the first frame that names the context, or
 *            the first reference that keeps a value of it. Left: for FAILED when a backward pass or
 *            a step fails; for CLOSING with END_CONTEXT; for ENDED with ABORT.
 *   FAILED   Holds: any record, any work, and the first failure. PREPARE and APPLY are answered
 *            with that failure, GRADIENT and SPARE are ignored, all other frames are handled as in
 *            OPEN. Entered: from OPEN. Left: for CLOSING with END_CONTEXT; for ENDED with ABORT.
 *   CLOSING  Holds: any record, no work. A call that becomes ready is not listed
 *            (CONTEXT_WORK_READY is ignored), because a step that is refused now may fail followers
 *            of calls, and closing frees these calls. If the context fails here (CONTEXT_FAILS), it
 *            stays
 *            CLOSING. Entered: by clv_context_end. Left: in the same function, before another frame
 *            or work; for ENDING if a kept value depends on a call and the context has not failed,
 *            else for ENDED.
 *   ENDING   Holds: only what kept values depend on: their calls, without leader and position, and
 *            the values that these calls wait for. These calls may be ready or run. VALUE and CALL
 *            frames for them are handled, a second END_CONTEXT is answered again, announcements of
 *            CALLs are ignored, other frames count as late. Entered: from CLOSING. Left: for ENDED
 *            when the last of these calls is done, or with ABORT; ENDED is then sent once more,
 *            with no calls left.
 *   ENDED    Holds: the id alone, as a tombstone (MAX_TOMBSTONES are remembered). No work:
 *            CONTEXT_WORK_READY is impossible. A second END_CONTEXT is answered again;
 *            announcements of CALLs and ABORT are ignored; other frames count as late. Entered:
 *            from OPEN, FAILED, CLOSING, ENDING. Never left. */
static const clv_cell contexts[][MACHINE_MAX_EVENTS] = {
    [CONTEXT_OPEN] = {[CONTEXT_CALL_ANNOUNCED] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_CALL] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_DELIVER] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_VALUE] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_DROP] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_SPARE] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_PREPARE] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_GRADIENT] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_APPLY] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_REVERT] = RECORD(CONTEXT_OPEN),
                      [CONTEXT_END] = DO(BEGIN, CONTEXT_CLOSING),
                      [CONTEXT_ABORT] = DO(END, CONTEXT_ENDED),
                      [CONTEXT_FAILS] = DO(BEGIN, CONTEXT_FAILED),
                      [CONTEXT_WORK_READY] = RECORD(CONTEXT_OPEN)},
    [CONTEXT_FAILED] = {[CONTEXT_CALL_ANNOUNCED] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_CALL] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_DELIVER] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_VALUE] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_DROP] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_SPARE] = DO(IGNORE, CONTEXT_FAILED),
                        [CONTEXT_PREPARE] = DO(REPEAT, CONTEXT_FAILED),
                        [CONTEXT_GRADIENT] = DO(IGNORE, CONTEXT_FAILED),
                        [CONTEXT_APPLY] = DO(REPEAT, CONTEXT_FAILED),
                        [CONTEXT_REVERT] = RECORD(CONTEXT_FAILED),
                        [CONTEXT_END] = DO(BEGIN, CONTEXT_CLOSING),
                        [CONTEXT_ABORT] = DO(END, CONTEXT_ENDED),
                        [CONTEXT_FAILS] = DO(REPEAT, CONTEXT_FAILED),
                        [CONTEXT_WORK_READY] = RECORD(CONTEXT_FAILED)},
    [CONTEXT_CLOSING] = {[CONTEXT_END_RETAINS] = DO(SETTLE, CONTEXT_ENDING),
                         [CONTEXT_RETAINED_DONE] = DO(END, CONTEXT_ENDED),
                         [CONTEXT_FAILS] = DO(BEGIN, CONTEXT_CLOSING),
                         [CONTEXT_WORK_READY] = DO(IGNORE, CONTEXT_CLOSING)},
    [CONTEXT_ENDING] = {[CONTEXT_CALL_ANNOUNCED] = DO(IGNORE, CONTEXT_ENDING),
                        [CONTEXT_CALL] = DO(GIVE, CONTEXT_ENDING),
                        [CONTEXT_DELIVER] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_VALUE] = DO(GIVE, CONTEXT_ENDING),
                        [CONTEXT_DROP] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_SPARE] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_PREPARE] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_GRADIENT] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_APPLY] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_REVERT] = DO(COUNT, CONTEXT_ENDING),
                        [CONTEXT_END] = DO(REPEAT, CONTEXT_ENDING),
                        [CONTEXT_RETAINED_DONE] = DO(END, CONTEXT_ENDED),
                        [CONTEXT_ABORT] = DO(END, CONTEXT_ENDED),
                        [CONTEXT_WORK_READY] = RECORD(CONTEXT_ENDING)},
    [CONTEXT_ENDED] = {[CONTEXT_CALL_ANNOUNCED] = DO(IGNORE, CONTEXT_ENDED),
                       [CONTEXT_CALL] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_DELIVER] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_VALUE] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_DROP] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_SPARE] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_PREPARE] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_GRADIENT] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_APPLY] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_REVERT] = DO(COUNT, CONTEXT_ENDED),
                       [CONTEXT_END] = DO(REPEAT, CONTEXT_ENDED),
                       [CONTEXT_ABORT] = DO(IGNORE, CONTEXT_ENDED)},
};

static const char exists_text[] = "exists already",
                  computed_text[] = "is computed by a call of this node",
                  received_text[] = "has been received already",
                  no_call_text[] = "no call of this node computes";

/* A value. The first frame that uses it, asks for it or has a gradient of it creates the record,
 * possibly before the value exists. It settles once, as a tensor or as a failure.
 *
 *   AWAITED   Holds: consumers, deliveries and gradients that wait, no tensor. Entered: when the
 *             record is created. Left: for PENDING when a CALL arrives that computes the value; for
 *             LEAF when a VALUE, or a CALL with the value as an argument, brings it.
 *   PENDING   Holds: as AWAITED, and the call that computes it (`producer`). A second CALL of this
 *             id, or a VALUE, is refused. Entered: from AWAITED. Left: for COMPUTED when the call
 *             has run or failed.
 *   LEAF      Holds: a tensor or a failure that another node sent. Consumers receive it at once. A
 *             repeated VALUE is ignored; a gradient is refused, because no call here computes the
 *             value. Entered: from AWAITED. Left: never, the record is freed.
 *   COMPUTED  Holds: a tensor or a failure that a call of this node made. Consumers receive it at
 *             once; gradients are recorded. Entered: from PENDING. Left: never. */
static const clv_cell values[][MACHINE_MAX_EVENTS] = {
    [VALUE_AWAITED] = {[VALUE_CALL_ADDED] = DO(BEGIN, VALUE_PENDING),
                       [VALUE_RECEIVED] = DO(SETTLE, VALUE_LEAF),
                       [VALUE_RECEIVED_AS_ARG] = DO(SETTLE, VALUE_LEAF),
                       [VALUE_USED] = RECORD(VALUE_AWAITED),
                       [VALUE_DELIVERY_ADDED] = RECORD(VALUE_AWAITED),
                       [VALUE_KEPT] = RECORD(VALUE_AWAITED),
                       [VALUE_GRADIENT] = RECORD(VALUE_AWAITED)},
    [VALUE_PENDING] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists_text),
                       [VALUE_CALL_DONE] = DO(SETTLE, VALUE_COMPUTED),
                       [VALUE_RECEIVED] = REFUSE(CLV_PRECONDITION, computed_text),
                       [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, received_text),
                       [VALUE_USED] = RECORD(VALUE_PENDING),
                       [VALUE_DELIVERY_ADDED] = RECORD(VALUE_PENDING),
                       [VALUE_KEPT] = RECORD(VALUE_PENDING),
                       [VALUE_GRADIENT] = RECORD(VALUE_PENDING)},
    [VALUE_LEAF] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists_text),
                    [VALUE_RECEIVED] = DO(IGNORE, VALUE_LEAF),
                    [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, received_text),
                    [VALUE_USED] = DO(GIVE, VALUE_LEAF),
                    [VALUE_DELIVERY_ADDED] = DO(GIVE, VALUE_LEAF),
                    [VALUE_KEPT] = DO(GIVE, VALUE_LEAF),
                    [VALUE_GRADIENT] = REFUSE(CLV_NOT_FOUND, no_call_text)},
    [VALUE_COMPUTED] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists_text),
                        [VALUE_RECEIVED] = REFUSE(CLV_PRECONDITION, computed_text),
                        [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, received_text),
                        [VALUE_USED] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_DELIVERY_ADDED] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_KEPT] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_GRADIENT] = RECORD(VALUE_COMPUTED)},
};

static const char spent_text[] = "has had its backward: retain the first pass to run a second",
                  alone_text[] = "has no backward";

/* A call. Its leader is a call whose backward must be done before it runs; its followers are the
 * calls that wait for its own backward. Its position is its place in the order in which the program
 * wants work of the context to run (context_order.c). CALL_GOT_FOLLOWER does not change the state:
 * the follower waits for this call's backward, or runs without waiting if no backward can come any
 * more (SAVED_FREED, NO_BACKWARD).
 *
 *   ANNOUNCED     Holds: its position in frame order and in the queue of its module, no arguments.
 *                 Entered: by the announcement of a chunked CALL. Left: for WAITING when the
 *                 complete CALL arrives.
 *   WAITING       Holds: its arguments so far and n_missing. Entered: by a CALL. Left: for READY
 *                 when n_missing is 0.
 *   READY         Holds: all inputs, or a failure of one. Its forward is ready or runs. Entered:
 *                 from WAITING. Left: for FORWARD_DONE, RETAINED or NO_BACKWARD, depending on what
 *                 the forward keeps; for NO_BACKWARD if it fails.
 *   FORWARD_DONE  Holds: inputs and saved tensors. Entered: from READY. Left: for BACKWARD when all
 *                 gradients of its value have arrived.
 *   RETAINED      Holds: inputs alone; the backward recomputes the forward first. Entered: from
 *                 READY, and after a backward of a pass that retains. Left: as FORWARD_DONE.
 *   BACKWARD      Holds: the sum of its gradients. The input part of its backward is ready or runs.
 *                 Entered: from FORWARD_DONE and RETAINED. Left: for WEIGHT_GRAD when the input
 *                 part is done; for SAVED_FREED or RETAINED if no gradient arrived with a tensor.
 *   WEIGHT_GRAD   Holds: what the weight part reads. That part is the next work of the module, or
 *                 waits for its own position. Entered: from BACKWARD. Left: for RETAINED if the
 *                 pass retains, else for SAVED_FREED.
 *   SAVED_FREED   Holds: the value alone. Another backward is refused. Entered: from BACKWARD and
 *                 WEIGHT_GRAD. Never left.
 *   NO_BACKWARD   Holds: the value or its failure. A backward is refused. Entered: from READY.
 *                 Never left. */
static const clv_cell calls[][MACHINE_MAX_EVENTS] = {
    [CALL_ANNOUNCED] = {[CALL_TENSORS_RECEIVED] = RECORD(CALL_WAITING),
                        [CALL_GOT_FOLLOWER] = RECORD(CALL_ANNOUNCED)},
    [CALL_WAITING] =
        {[CALL_IS_READY] = DO(BEGIN, CALL_READY), [CALL_GOT_FOLLOWER] = RECORD(CALL_WAITING)},
    [CALL_READY] = {[CALL_RAN_KEEPING_SAVED] = DO(SETTLE, CALL_FORWARD_DONE),
                    [CALL_RAN_KEEPING_INPUTS] = DO(SETTLE, CALL_RETAINED),
                    [CALL_RAN_KEEPING_NOTHING] = DO(END, CALL_NO_BACKWARD),
                    [CALL_FORWARD_FAILED] = DO(END, CALL_NO_BACKWARD),
                    [CALL_GOT_FOLLOWER] = RECORD(CALL_READY)},
    [CALL_FORWARD_DONE] = {[CALL_BACKWARD_DUE] = DO(BEGIN, CALL_BACKWARD),
                           [CALL_GOT_FOLLOWER] = RECORD(CALL_FORWARD_DONE)},
    [CALL_RETAINED] = {[CALL_BACKWARD_DUE] = DO(BEGIN, CALL_BACKWARD),
                       [CALL_GOT_FOLLOWER] = RECORD(CALL_RETAINED)},
    [CALL_BACKWARD] = {[CALL_INPUT_GRAD_DONE] = RECORD(CALL_WEIGHT_GRAD),
                       /* no gradient has a tensor */
                       [CALL_BACKWARD_DONE] = DO(END, CALL_SAVED_FREED),
                       [CALL_BACKWARD_RETAINED] = DO(SETTLE, CALL_RETAINED),
                       [CALL_GOT_FOLLOWER] = RECORD(CALL_BACKWARD)},
    [CALL_WEIGHT_GRAD] = {[CALL_BACKWARD_DONE] = DO(END, CALL_SAVED_FREED),
                          [CALL_BACKWARD_RETAINED] = DO(SETTLE, CALL_RETAINED),
                          [CALL_GOT_FOLLOWER] = RECORD(CALL_WEIGHT_GRAD)},
    [CALL_SAVED_FREED] = {[CALL_BACKWARD_DUE] = REFUSE(CLV_PRECONDITION, spent_text),
                          [CALL_GOT_FOLLOWER] = DO(IGNORE, CALL_SAVED_FREED)},
    [CALL_NO_BACKWARD] = {[CALL_BACKWARD_DUE] = REFUSE(CLV_PRECONDITION, alone_text),
                          [CALL_GOT_FOLLOWER] = DO(IGNORE, CALL_NO_BACKWARD)},
};

static const char over_text[] = "is over", in_progress_text[] = "is in progress",
                  after_text[] = "after its backward";

/* A backward pass of a context. The phase is the number of the pass: a later pass has a higher one.
 * A GRADIENT may arrive before the PREPARE of its phase, but not after its call has summed its
 * gradients. APPLY without a position waits until no work is ready or runs (context_frames.c), so
 * it cannot arrive in ENDING.
 *
 *   NONE        Holds: gradients of later phases alone. APPLY is allowed only here. Entered: at
 *               first, and when a pass ends. Left: for COLLECTING with the first PREPARE of a later
 *               phase.
 *   COLLECTING  Holds: a queue of calls for each module. Calls whose gradients have arrived run
 *               already. Entered: from NONE. Left: for ACTIVE with the last PREPARE of the phase;
 *               for NONE if the context fails.
 *   ACTIVE      Holds: as COLLECTING, but complete. A gradient for a call that is not in the pass
 *               is refused. Entered: from COLLECTING. Left: for ENDING when all its calls, weight
 *               parts and planned steps are done; for NONE if the context fails.
 *   ENDING      Holds: the end of the pass, which is work because it may include a vote. Entered:
 *               from ACTIVE. Left: for NONE when FINISHED is sent, or if the context fails. */
static const clv_cell passes[][MACHINE_MAX_EVENTS] = {
    [PASS_NONE] = {[PASS_PREPARE_LATER] = DO(BEGIN, PASS_COLLECTING),
                   [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, over_text),
                   [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, over_text),
                   [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after_text),
                   [PASS_GRADIENT_LATER] = RECORD(PASS_NONE),
                   [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after_text),
                   [PASS_STEP] = RECORD(PASS_NONE),
                   [PASS_ENDED] = DO(IGNORE, PASS_NONE)},
    [PASS_COLLECTING] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                         [PASS_PREPARE_SAME] = RECORD(PASS_COLLECTING),
                         [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                         [PASS_COLLECTED] = RECORD(PASS_ACTIVE),
                         [PASS_GRADIENT_NEEDED] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_OTHER] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_LATER] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after_text),
                         [PASS_STEP] = REFUSE(CLV_PRECONDITION, in_progress_text),
                         [PASS_ENDED] = DO(END, PASS_NONE)},
    [PASS_ACTIVE] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_GRADIENT_NEEDED] = RECORD(PASS_ACTIVE),
                     [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after_text),
                     [PASS_GRADIENT_LATER] = RECORD(PASS_ACTIVE),
                     [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after_text),
                     [PASS_STEP] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_DONE] = DO(BEGIN, PASS_ENDING),
                     [PASS_ENDED] = DO(END, PASS_NONE)},
    [PASS_ENDING] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress_text),
                     [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after_text),
                     [PASS_GRADIENT_LATER] = RECORD(PASS_ENDING),
                     [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after_text),
                     [PASS_ENDED] = DO(END, PASS_NONE)},
};

/* The last optimiser step of a module. The state is not stored: it is OPEN if
 * revertible_context_id is not 0 (clv_step_on_event). Two events cannot occur in one of the states.
 * STEP_REVERTED needs a step of the same context, so it occurs only in OPEN. STEP_TAKEN_FINAL
 * occurs only in FINAL, because the new work of another context that makes an APPLY final also ends
 * the OPEN step before it with STEP_OTHER_WORK (clv_contexts_finalise_applies).
 *
 *   FINAL  Holds: no revertible step; REVERT changes nothing, and is answered by ERROR unless it
 *          takes back a step of another module. Entered: at first, by a REVERT of the context that
 *          made the step, by a step with a position, and when a CALL or an APPLY of another context
 *          arrives. Left: for OPEN by an APPLY that takes a snapshot.
 *   OPEN   Holds: the snapshot from before the step; revertible_context_id names the context
 *          that may revert it. Another revertible APPLY replaces the snapshot. Entered: from
 *          FINAL. Left: for FINAL, as said there. */
static const clv_cell steps[][MACHINE_MAX_EVENTS] = {
    [STEP_FINAL] = {[STEP_TAKEN_REVERTIBLE] = RECORD(STEP_OPEN),
                    [STEP_TAKEN_FINAL] = DO(IGNORE, STEP_FINAL),
                    [STEP_PLANNED] = DO(IGNORE, STEP_FINAL),
                    [STEP_NOT_REVERTED] = DO(IGNORE, STEP_FINAL)},
    [STEP_OPEN] = {[STEP_TAKEN_REVERTIBLE] = RECORD(STEP_OPEN),
                   [STEP_PLANNED] = DO(END, STEP_FINAL),
                   [STEP_REVERTED] = DO(GIVE, STEP_FINAL),
                   [STEP_NOT_REVERTED] = DO(IGNORE, STEP_OPEN),
                   [STEP_OTHER_WORK] = DO(END, STEP_FINAL)},
};

/* A piece of work.
 *
 *   IDLE     Holds: nothing; the work is in no list. Entered: at first, and when the work ends.
 *            Left: for READY when its preconditions hold (clv_work_enqueue).
 *   READY    Holds: a place in the list of its module. Entered: from IDLE. Left: for RUNNING when
 *            clv_work_take returns it.
 *   RUNNING  Holds: its modules, which start no other work meanwhile. Entered: from READY. Left:
 *            for IDLE when it has been finished (clv_work_note_end). */
static const clv_cell work[][MACHINE_MAX_EVENTS] = {
    [WORK_IDLE] = {[WORK_IS_READY] = RECORD(WORK_READY)},
    [WORK_READY] = {[WORK_STARTS] = DO(BEGIN, WORK_RUNNING)},
    [WORK_RUNNING] = {[WORK_ENDS] = DO(END, WORK_IDLE)},
};

static const clv_table tables[MACHINES] = {
    [MACHINE_CONTEXT] = {"context", CLV_COUNT(contexts), CONTEXT_WORK_READY + 1, contexts},
    [MACHINE_VALUE] = {"value", CLV_COUNT(values), VALUE_GRADIENT + 1, values},
    [MACHINE_CALL] = {"call", CLV_COUNT(calls), CALL_GOT_FOLLOWER + 1, calls},
    [MACHINE_PASS] = {"pass", CLV_COUNT(passes), PASS_ENDED + 1, passes},
    [MACHINE_STEP] = {"step", CLV_COUNT(steps), STEP_OTHER_WORK + 1, steps},
    [MACHINE_WORK] = {"work", CLV_COUNT(work), WORK_ENDS + 1, work},
};

const clv_table *clv_transition_table_of(clv_state_machine machine) { return &tables[machine]; }

const clv_cell *clv_table_cell(uint32_t *transition_counts, clv_state_machine machine,
                               uint32_t state, uint32_t event) {
  if (transition_counts) transition_counts[clv_table_index(machine, state, event)]++;
  return &tables[machine].cells[state][event];
}

clv_code clv_table_apply_event(uint32_t *transition_counts, clv_state_machine machine,
                               uint8_t *state, uint32_t event, const clv_cell **ret, clv_err *err) {
  const clv_cell *cell = clv_table_cell(transition_counts, machine, *state, event);
  if (cell->action == CELL_IMPOSSIBLE)
    return clv_fail(err, CLV_INTERNAL, "event %u is impossible for a %s in state %u", event,
                    tables[machine].name, *state);
  if (cell->action != CELL_REFUSE) *state = cell->next_state;
  *ret = cell;
  return CLV_OK;
}
