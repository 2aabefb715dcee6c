/* SPDX-License-Identifier: Apache-2.0
 *
 * The machines of the engine, each in words and as a table (context_table.h).
 */
#include "common/engine/context_table.h"

#define RECORD(state) \
  { CELL_RECORD, (state), CLV_OK, NULL }
#define DO(action, state) \
  { CELL_##action, (state), CLV_OK, NULL }
#define REFUSE(code, text) \
  { CELL_REFUSE, 0, (code), (text) }

/* A context is opened by the first frame that names it and takes frames until it ends. After a
 * failure in a backward pass or a step it answers PREPARE and APPLY with that failure and drops
 * gradients; everything else goes on. An end that spares what kept values need takes nothing but
 * the values and CALLs on their way to it. An ended one is remembered: what comes for it is late,
 * and a second END_CONTEXT is answered again.
 *
 * The order of an end keeps freed records out of the lists of ready work. What each state holds,
 * what enters it and what leaves it:
 *
 *   OPEN, FAILED  Any record, and any work. END_CONTEXT and ABORT wait until no work is ready or
 *                 runs (context_frames.c). END_CONTEXT then makes it CLOSING, ABORT makes it ENDED.
 *   CLOSING       Any record, no work. CONTEXT_WORK_READY is ignored: a call that becomes ready is
 *   not
 *                 listed. So a step that is refused now may fail the followers of calls, which the
 *                 end frees. Left within the same function, before another frame or work: for
 *                 ENDING where a kept value needs a call and nothing has failed, else for ENDED.
 *   ENDING        What kept values need, alone: their calls without a leader or a position, and the
 *                 values that these wait for. These calls may be ready or run. Left for ENDED when
 *                 the last of them is done, or by an ABORT, which waits for work as above.
 *   ENDED         Its id. No record, no work: CONTEXT_WORK_READY has no cell here. */
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

static const char exists[] = "exists already", made_here[] = "is made here",
                  here[] = "is here already", no_call[] = "is no call here";

/* A value is named before it is there, by whoever wants it or has a gradient of it. It settles
 * once, as a tensor or a failure: a leaf comes from elsewhere, the other ones are made by a call
 * here. A repeated leaf changes nothing. */
static const clv_cell values[][MACHINE_MAX_EVENTS] = {
    [VALUE_AWAITED] = {[VALUE_CALL_ADDED] = DO(BEGIN, VALUE_PENDING),
                       [VALUE_RECEIVED] = DO(SETTLE, VALUE_LEAF),
                       [VALUE_RECEIVED_AS_ARG] = DO(SETTLE, VALUE_LEAF),
                       [VALUE_USED] = RECORD(VALUE_AWAITED),
                       [VALUE_DELIVERY_ADDED] = RECORD(VALUE_AWAITED),
                       [VALUE_KEPT] = RECORD(VALUE_AWAITED),
                       [VALUE_GRADIENT] = RECORD(VALUE_AWAITED)},
    [VALUE_PENDING] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists),
                       [VALUE_CALL_DONE] = DO(SETTLE, VALUE_COMPUTED),
                       [VALUE_RECEIVED] = REFUSE(CLV_PRECONDITION, made_here),
                       [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, here),
                       [VALUE_USED] = RECORD(VALUE_PENDING),
                       [VALUE_DELIVERY_ADDED] = RECORD(VALUE_PENDING),
                       [VALUE_KEPT] = RECORD(VALUE_PENDING),
                       [VALUE_GRADIENT] = RECORD(VALUE_PENDING)},
    [VALUE_LEAF] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists),
                    [VALUE_RECEIVED] = DO(IGNORE, VALUE_LEAF),
                    [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, here),
                    [VALUE_USED] = DO(GIVE, VALUE_LEAF),
                    [VALUE_DELIVERY_ADDED] = DO(GIVE, VALUE_LEAF),
                    [VALUE_KEPT] = DO(GIVE, VALUE_LEAF),
                    [VALUE_GRADIENT] = REFUSE(CLV_NOT_FOUND, no_call)},
    [VALUE_COMPUTED] = {[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists),
                        [VALUE_RECEIVED] = REFUSE(CLV_PRECONDITION, made_here),
                        [VALUE_RECEIVED_AS_ARG] = REFUSE(CLV_EXISTS, here),
                        [VALUE_USED] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_DELIVERY_ADDED] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_KEPT] = DO(GIVE, VALUE_COMPUTED),
                        [VALUE_GRADIENT] = RECORD(VALUE_COMPUTED)},
};

static const char spent[] = "has had its backward; retain the first one to have a second",
                  alone[] = "has no backward";

/* A call waits until nothing is missing, runs forward, and keeps what its backward needs, or its
 * inputs alone, or nothing. Its backward has two parts: the gradients of its inputs, then those of
 * parameters. After it the call is spent, unless the pass retains it. Who is to run after its
 * backward waits until that is done, and does not wait where none will come. */
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
                       [CALL_BACKWARD_DONE] = DO(END, CALL_SAVED_FREED), /* nothing has flowed */
                       [CALL_BACKWARD_RETAINED] = DO(SETTLE, CALL_RETAINED),
                       [CALL_GOT_FOLLOWER] = RECORD(CALL_BACKWARD)},
    [CALL_WEIGHT_GRAD] = {[CALL_BACKWARD_DONE] = DO(END, CALL_SAVED_FREED),
                          [CALL_BACKWARD_RETAINED] = DO(SETTLE, CALL_RETAINED),
                          [CALL_GOT_FOLLOWER] = RECORD(CALL_WEIGHT_GRAD)},
    [CALL_SAVED_FREED] = {[CALL_BACKWARD_DUE] = REFUSE(CLV_PRECONDITION, spent),
                          [CALL_GOT_FOLLOWER] = DO(IGNORE, CALL_SAVED_FREED)},
    [CALL_NO_BACKWARD] = {[CALL_BACKWARD_DUE] = REFUSE(CLV_PRECONDITION, alone),
                          [CALL_GOT_FOLLOWER] = DO(IGNORE, CALL_NO_BACKWARD)},
};

static const char over[] = "is over", in_progress[] = "is in progress",
                  after[] = "after its backward";

/* A pass begins with the first PREPARE of its phase and goes on while its calls run. Phases ascend;
 * a gradient may be ahead of its PREPARE but not behind its call's part. When all is done, its end
 * is work, as there may be a vote; a step waits until work has ended. */
static const clv_cell passes[][MACHINE_MAX_EVENTS] = {
    [PASS_NONE] = {[PASS_PREPARE_LATER] = DO(BEGIN, PASS_COLLECTING),
                   [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, over),
                   [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, over),
                   [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after),
                   [PASS_GRADIENT_LATER] = RECORD(PASS_NONE),
                   [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after),
                   [PASS_STEP] = RECORD(PASS_NONE),
                   [PASS_ENDED] = DO(IGNORE, PASS_NONE)},
    [PASS_COLLECTING] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress),
                         [PASS_PREPARE_SAME] = RECORD(PASS_COLLECTING),
                         [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress),
                         [PASS_COLLECTED] = RECORD(PASS_ACTIVE),
                         [PASS_GRADIENT_NEEDED] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_OTHER] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_LATER] = RECORD(PASS_COLLECTING),
                         [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after),
                         [PASS_STEP] = REFUSE(CLV_PRECONDITION, in_progress),
                         [PASS_ENDED] = DO(END, PASS_NONE)},
    [PASS_ACTIVE] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_GRADIENT_NEEDED] = RECORD(PASS_ACTIVE),
                     [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after),
                     [PASS_GRADIENT_LATER] = RECORD(PASS_ACTIVE),
                     [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after),
                     [PASS_STEP] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_DONE] = DO(BEGIN, PASS_ENDING),
                     [PASS_ENDED] = DO(END, PASS_NONE)},
    [PASS_ENDING] = {[PASS_PREPARE_LATER] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_PREPARE_EARLIER] = REFUSE(CLV_PRECONDITION, in_progress),
                     [PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after),
                     [PASS_GRADIENT_LATER] = RECORD(PASS_ENDING),
                     [PASS_GRADIENT_EARLIER] = REFUSE(CLV_PRECONDITION, after),
                     [PASS_ENDED] = DO(END, PASS_NONE)},
};

/* The last step of a module can be taken back, by a REVERT of its context, until work of another
 * context has come. */
static const clv_cell steps[][MACHINE_MAX_EVENTS] = {
    [STEP_FINAL] = {[STEP_TAKEN_REVERTIBLE] = RECORD(STEP_OPEN),
                    [STEP_TAKEN_FINAL] = DO(IGNORE, STEP_FINAL),
                    [STEP_PLANNED] = DO(IGNORE, STEP_FINAL),
                    [STEP_REVERTED_BY_OTHER] = DO(IGNORE, STEP_FINAL)},
    [STEP_OPEN] = {[STEP_TAKEN_REVERTIBLE] = RECORD(STEP_OPEN),
                   [STEP_PLANNED] = DO(END, STEP_FINAL),
                   [STEP_REVERTED] = DO(GIVE, STEP_FINAL),
                   [STEP_REVERTED_BY_OTHER] = DO(IGNORE, STEP_OPEN),
                   [STEP_OTHER_WORK] = DO(END, STEP_FINAL)},
};

/* Work is listed once, started once, and ends once. */
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

const clv_table *clv_table_of(clv_state_machine machine) { return &tables[machine]; }

const clv_cell *clv_table_cell(uint32_t *walked, clv_state_machine machine, uint32_t state,
                               uint32_t fact) {
  if (walked) walked[clv_table_index(machine, state, fact)]++;
  return &tables[machine].cells[state][fact];
}

clv_code clv_table_step(uint32_t *walked, clv_state_machine machine, uint8_t *state, uint32_t fact,
                        const clv_cell **ret, clv_err *err) {
  const clv_cell *cell = clv_table_cell(walked, machine, *state, fact);
  if (cell->action == CELL_IMPOSSIBLE)
    return clv_fail(err, CLV_INTERNAL, "fact %u meets a %s in state %u, which cannot be", fact,
                    tables[machine].name, *state);
  if (cell->action != CELL_REFUSE) *state = cell->next;
  *ret = cell;
  return CLV_OK;
}
