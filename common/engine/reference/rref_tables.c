/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machines of references, to be read with PROTOCOL.md 12: of an entry and a fork at the
 * owner, of a handle and a child at a user, of a numbered message at its sender. A row is a state
 * and an event: the next state, and the actions in their order. An event without a row is
 * impossible, because the message or input that would cause it has been refused before.
 */
#include "common/engine/reference/rref_int.h"

/* clang-format off */
#define DO(state, ...) {.rule = RREF_DO, .next_state = RREF_##state, .actions = {__VA_ARGS__}}
#define STAY(state) {.rule = RREF_DO, .next_state = RREF_##state}
#define REFUSE(code_) {.rule = RREF_REFUSE, .code = CLV_##code_}
#define REFUSE_AS_FAILED {.rule = RREF_REFUSE_AS_FAILED}
/* Cells that several states share. */
#define REFUSE_NEW_ENTRY [RREF_ENTRY_KEPT] = REFUSE(EXISTS), [RREF_ENTRY_OWNED] = REFUSE(EXISTS)
#define REFUSE_NEW_FORK [RREF_FORK_ADDED] = REFUSE(EXISTS), [RREF_FORK_PASSED] = REFUSE(EXISTS)
#define REFUSE_NEW_HANDLE [RREF_HANDLE_KEPT] = REFUSE(EXISTS), [RREF_HANDLE_OWNED] = REFUSE(EXISTS), \
    [RREF_HANDLE_RECEIVED] = REFUSE(EXISTS), [RREF_HANDLE_RECEIVED_FROM_OWNER] = REFUSE(EXISTS)
#define REFUSE_INPUTS [RREF_HANDLE_PASS] = REFUSE(NOT_FOUND), [RREF_HANDLE_FETCH] = REFUSE(NOT_FOUND), \
    [RREF_HANDLE_RELEASE] = REFUSE(NOT_FOUND)

/* ---- the owner's side ------------------------------------------------------------------------ */

/* An entry at the owner.
 *
 *   NONE      Holds: nothing, because the reference is unknown here or its entry was freed. FORK is
 *             parked. Left: for EXPECTED with KEEP; for VALUE when this node makes a reference to a
 *             tensor.
 *   EXPECTED  Holds: forks; the value is not settled. Entered: from NONE. Left: for VALUE or
 *             FAILURE when the value is settled; for NONE when the last fork is freed.
 *   VALUE     Holds: forks and the tensor. Entered: from NONE and EXPECTED. Left: for NONE when the
 *             last fork is freed.
 *   FAILURE   Holds: forks and the failure of the value. Entered: from EXPECTED. Left: for NONE
 *             when the last fork is freed. */
static const clv_rref_cell entries[RREF_ENTRY_STATES][RREF_ENTRY_EVENTS] = {
  [RREF_ENTRY_NONE] = {
    [RREF_ENTRY_KEPT]    = DO(ENTRY_EXPECTED, RREF_UNPARK_FORKS, RREF_REPORT_CREATE),
    [RREF_ENTRY_OWNED]   = DO(ENTRY_VALUE, RREF_STORE_VALUE),
    [RREF_ENTRY_SETTLED] = STAY(ENTRY_NONE),
    [RREF_ENTRY_FAILED]  = STAY(ENTRY_NONE),
    [RREF_ENTRY_FORKED]  = DO(ENTRY_NONE, RREF_PARK),
  },
  [RREF_ENTRY_EXPECTED] = {
    REFUSE_NEW_ENTRY,
    [RREF_ENTRY_SETTLED] = DO(ENTRY_VALUE, RREF_STORE_VALUE, RREF_SERVE_FORKS),
    [RREF_ENTRY_FAILED]  = DO(ENTRY_FAILURE, RREF_STORE_FAILURE, RREF_SERVE_FORKS),
    [RREF_ENTRY_FORKED]  = DO(ENTRY_EXPECTED, RREF_ADD_FORK),
    [RREF_ENTRY_WRONG_KEY] = DO(ENTRY_EXPECTED, RREF_PARK),
    [RREF_ENTRY_UNUSED]    = DO(ENTRY_NONE, RREF_REPORT_FREED, RREF_FREE),
  },
  [RREF_ENTRY_VALUE] = {
    REFUSE_NEW_ENTRY,
    [RREF_ENTRY_SETTLED] = STAY(ENTRY_VALUE),
    [RREF_ENTRY_FAILED]  = STAY(ENTRY_VALUE),
    [RREF_ENTRY_FORKED]  = DO(ENTRY_VALUE, RREF_ADD_FORK),
    [RREF_ENTRY_WRONG_KEY] = DO(ENTRY_VALUE, RREF_PARK),
    [RREF_ENTRY_UNUSED]    = DO(ENTRY_NONE, RREF_REPORT_FREED, RREF_FREE),
  },
  [RREF_ENTRY_FAILURE] = {
    REFUSE_NEW_ENTRY,
    [RREF_ENTRY_SETTLED] = STAY(ENTRY_FAILURE),
    [RREF_ENTRY_FAILED]  = STAY(ENTRY_FAILURE),
    [RREF_ENTRY_FORKED]  = DO(ENTRY_FAILURE, RREF_ADD_FORK),
    [RREF_ENTRY_WRONG_KEY] = DO(ENTRY_FAILURE, RREF_PARK),
    [RREF_ENTRY_UNUSED]    = DO(ENTRY_NONE, RREF_REPORT_FREED, RREF_FREE),
  },
};

/* A fork, the owner's record of one handle. The user is the node that has the handle.
 *
 *   NONE           Holds: nothing. FETCH is parked if the user's FORK may still arrive, else it is
 *                  refused. Left: for KNOWN when KEEP or FORK arrives, or when this node makes a
 *                  reference to a tensor; for OFFERED when the owner itself passes a handle.
 *   OFFERED        Holds: a USE that is not acknowledged. FETCH is answered with VALUE. Entered:
 *                  from NONE and OFFERED_ASKED. Left: for OFFERED_ASKED with a FETCH before the
 *                  value is settled; for KNOWN when USE is acknowledged; for NONE when USE is
 *                  refused, DELETE arrives or the user's lease expires.
 *   OFFERED_ASKED  Holds: as OFFERED, and the user waits for VALUE. Entered: from OFFERED. Left:
 *                  for OFFERED when the value is settled; for ASKED when USE is acknowledged; for
 *                  NONE as OFFERED.
 *   KNOWN          Holds: nothing more; the user has the handle. FETCH is answered with VALUE.
 *                  Entered: from NONE, OFFERED and ASKED. Left: for ASKED with a FETCH before the
 *                  value is settled; for NONE when DELETE arrives or the user's lease expires.
 *   ASKED          Holds: as KNOWN, and the user waits for VALUE. Entered: from KNOWN and
 *                  OFFERED_ASKED. Left: for KNOWN when the value is settled; for NONE as KNOWN. */
static const clv_rref_cell forks[RREF_FORK_STATES][RREF_FORK_EVENTS] = {
  [RREF_FORK_NONE] = {
    [RREF_FORK_ADDED]    = DO(FORK_KNOWN, RREF_UNPARK_FETCH),
    [RREF_FORK_PASSED]   = DO(FORK_OFFERED, RREF_SEND_USE),
    [RREF_FORK_FETCH]    = REFUSE(NOT_FOUND),
    [RREF_FORK_FETCH_EARLY]    = DO(FORK_NONE, RREF_PARK),
    [RREF_FORK_DELETED]  = STAY(FORK_NONE),
  },
  [RREF_FORK_OFFERED] = {
    REFUSE_NEW_FORK,
    [RREF_FORK_FETCH]    = DO(FORK_OFFERED, RREF_SEND_VALUE),
    [RREF_FORK_FETCH_PENDING]      = STAY(FORK_OFFERED_ASKED),
    [RREF_FORK_SETTLED]  = STAY(FORK_OFFERED),
    [RREF_FORK_USE_ACKED]    = STAY(FORK_KNOWN),
    [RREF_FORK_USE_REFUSED]  = DO(FORK_NONE, RREF_REPORT_UNUSED, RREF_FREE),
    [RREF_FORK_DELETED]  = DO(FORK_NONE, RREF_FREE),
    [RREF_FORK_LOST]     = DO(FORK_NONE, RREF_FREE),
  },
  [RREF_FORK_OFFERED_ASKED] = {
    REFUSE_NEW_FORK,
    [RREF_FORK_FETCH_PENDING]      = STAY(FORK_OFFERED_ASKED),
    [RREF_FORK_SETTLED]  = DO(FORK_OFFERED, RREF_SEND_VALUE),
    [RREF_FORK_USE_ACKED]    = STAY(FORK_ASKED),
    [RREF_FORK_USE_REFUSED]  = DO(FORK_NONE, RREF_REPORT_UNUSED, RREF_FREE),
    [RREF_FORK_DELETED]  = DO(FORK_NONE, RREF_FREE),
    [RREF_FORK_LOST]     = DO(FORK_NONE, RREF_FREE),
  },
  [RREF_FORK_KNOWN] = {
    REFUSE_NEW_FORK,
    [RREF_FORK_FETCH]    = DO(FORK_KNOWN, RREF_SEND_VALUE),
    [RREF_FORK_FETCH_PENDING]      = STAY(FORK_ASKED),
    [RREF_FORK_SETTLED]  = STAY(FORK_KNOWN),
    [RREF_FORK_DELETED]  = DO(FORK_NONE, RREF_FREE),
    [RREF_FORK_LOST]     = DO(FORK_NONE, RREF_FREE),
  },
  [RREF_FORK_ASKED] = {
    REFUSE_NEW_FORK,
    [RREF_FORK_FETCH_PENDING]      = STAY(FORK_ASKED),
    [RREF_FORK_SETTLED]  = DO(FORK_KNOWN, RREF_SEND_VALUE),
    [RREF_FORK_DELETED]  = DO(FORK_NONE, RREF_FREE),
    [RREF_FORK_LOST]     = DO(FORK_NONE, RREF_FREE),
  },
};

/* ---- the user's side ------------------------------------------------------------------------- */

/* A handle at its user.
 *
 *   NONE             Holds: nothing; requests are refused. Left: for JOINING when this node makes a
 *                    reference with KEEP, or when USE arrives from a node that is not the owner;
 *                    for JOINED when this node is the owner, or when USE arrives from the owner.
 *   JOINING          Holds: a KEEP or FORK that is not acknowledged. The handle can be passed on
 *                    and fetched already. Entered: from NONE. Left: for JOINED when the owner
 *                    agrees; for FAILED when it refuses or its lease expires; for JOINING_RELEASED
 *                    with a release.
 *   JOINED           Holds: a fork at the owner. Entered: from NONE and JOINING. Left: for
 *                    JOINED_RELEASED with a release; for FAILED when the owner has forgotten the
 *                    handle or its lease expires.
 *   FAILED           Holds: the failure, with which requests other than a release are refused.
 *                    Entered: from JOINING and JOINED. Left: for ENDED with a release.
 *   JOINING_RELEASED Holds: a KEEP or FORK that is not acknowledged; requests are refused, here and
 *                    in all states below. Entered: from JOINING. Left: for JOINED_RELEASED when the
 *                    owner agrees; for ENDED when it refuses or its lease expires.
 *   JOINED_RELEASED  Holds: a fork at the owner, and children. Entered: from JOINED and
 *                    JOINING_RELEASED. Left: for LEAVING when there are no children; for ENDED when
 *                    the owner has forgotten the handle or its lease expires.
 *   LEAVING          Holds: a DELETE that is not acknowledged. Entered: from JOINED_RELEASED. Left:
 *                    for ENDED when DELETE is acknowledged or the owner's lease expires.
 *   ENDED            Holds: children and an ACCEPT that is not acknowledged, or one of these; the
 *                    owner has no fork. Entered: from FAILED, JOINING_RELEASED, JOINED_RELEASED and
 *                    LEAVING. Left: for NONE when there is neither; the record is freed then. */
static const clv_rref_cell handles[RREF_HANDLE_STATES][RREF_HANDLE_EVENTS] = {
  [RREF_HANDLE_NONE] = {
    [RREF_HANDLE_KEPT]         = DO(HANDLE_JOINING, RREF_SEND_KEEP),
    [RREF_HANDLE_OWNED]        = DO(HANDLE_JOINED, RREF_NOTE_JOINED, RREF_REPORT_JOINED),
    [RREF_HANDLE_RECEIVED]        = DO(HANDLE_JOINING, RREF_SEND_FORK, RREF_REPORT_USED),
    [RREF_HANDLE_RECEIVED_FROM_OWNER]  = DO(HANDLE_JOINED, RREF_NOTE_JOINED, RREF_REPORT_USED),
    REFUSE_INPUTS,
  },
  [RREF_HANDLE_JOINING] = {
    REFUSE_NEW_HANDLE,
    [RREF_HANDLE_PASS]         = DO(HANDLE_JOINING, RREF_ADD_CHILD),
    [RREF_HANDLE_FETCH]        = DO(HANDLE_JOINING, RREF_SEND_FETCH),
    [RREF_HANDLE_RELEASE]      = DO(HANDLE_JOINING_RELEASED, RREF_CANCEL_FETCH),
    [RREF_HANDLE_JOIN_ACKED]     = DO(HANDLE_JOINED, RREF_NOTE_JOINED, RREF_SEND_ACCEPT, RREF_REPORT_JOINED),
    [RREF_HANDLE_JOIN_REFUSED]      = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_REPORT_FAILURE),
    [RREF_HANDLE_FETCH_ACKED]        = DO(HANDLE_JOINING, RREF_REFETCH_LATER),
    [RREF_HANDLE_FETCH_REFUSED]    = DO(HANDLE_JOINING, RREF_REFETCH_SOON),
    [RREF_HANDLE_VALUE_ARRIVED]   = DO(HANDLE_JOINING, RREF_REPORT_VALUE),
    [RREF_HANDLE_HAS_NO_WAITERS]        = STAY(HANDLE_JOINING),
    [RREF_HANDLE_OWNER_FORGOT] = STAY(HANDLE_JOINING),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_REPORT_FAILURE),
  },
  [RREF_HANDLE_JOINED] = {
    REFUSE_NEW_HANDLE,
    [RREF_HANDLE_PASS]         = DO(HANDLE_JOINED, RREF_ADD_CHILD),
    [RREF_HANDLE_FETCH]        = DO(HANDLE_JOINED, RREF_SEND_FETCH),
    [RREF_HANDLE_RELEASE]      = DO(HANDLE_JOINED_RELEASED, RREF_CANCEL_FETCH, RREF_CHECK),
    [RREF_HANDLE_FETCH_ACKED]        = DO(HANDLE_JOINED, RREF_REFETCH_LATER),
    [RREF_HANDLE_FETCH_REFUSED]    = DO(HANDLE_JOINED, RREF_REPORT_FAILURE),
    [RREF_HANDLE_VALUE_ARRIVED]   = DO(HANDLE_JOINED, RREF_REPORT_VALUE),
    [RREF_HANDLE_HAS_NO_CHILDREN]    = STAY(HANDLE_JOINED),
    [RREF_HANDLE_HAS_NO_WAITERS]        = STAY(HANDLE_JOINED),
    [RREF_HANDLE_OWNER_FORGOT] = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_FAILURE),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_FAILURE),
  },
  [RREF_HANDLE_FAILED] = {
    REFUSE_NEW_HANDLE,
    [RREF_HANDLE_PASS]         = REFUSE_AS_FAILED,
    [RREF_HANDLE_FETCH]        = REFUSE_AS_FAILED,
    [RREF_HANDLE_RELEASE]      = DO(HANDLE_ENDED, RREF_CANCEL_FETCH, RREF_CHECK),
    [RREF_HANDLE_HAS_NO_CHILDREN]    = STAY(HANDLE_FAILED),
    [RREF_HANDLE_HAS_NO_WAITERS]        = STAY(HANDLE_FAILED),
  },
  [RREF_HANDLE_JOINING_RELEASED] = {
    REFUSE_NEW_HANDLE,
    REFUSE_INPUTS,
    [RREF_HANDLE_JOIN_ACKED]     = DO(HANDLE_JOINED_RELEASED, RREF_NOTE_JOINED, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_CHECK),
    [RREF_HANDLE_JOIN_REFUSED]      = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_CHECK),
    [RREF_HANDLE_HAS_NO_WAITERS]        = STAY(HANDLE_JOINING_RELEASED),
    [RREF_HANDLE_OWNER_FORGOT] = STAY(HANDLE_JOINING_RELEASED),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_CHECK),
  },
  [RREF_HANDLE_JOINED_RELEASED] = {
    REFUSE_NEW_HANDLE,
    REFUSE_INPUTS,
    [RREF_HANDLE_HAS_NO_CHILDREN]    = DO(HANDLE_LEAVING, RREF_SEND_DELETE),
    [RREF_HANDLE_HAS_NO_WAITERS]        = DO(HANDLE_LEAVING, RREF_SEND_DELETE),
    [RREF_HANDLE_OWNER_FORGOT] = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_CHECK),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_CHECK),
  },
  [RREF_HANDLE_LEAVING] = {
    REFUSE_NEW_HANDLE,
    REFUSE_INPUTS,
    [RREF_HANDLE_DELETE_ACKED]         = DO(HANDLE_ENDED, RREF_CHECK),
    [RREF_HANDLE_HAS_NO_WAITERS]        = STAY(HANDLE_LEAVING),
    [RREF_HANDLE_OWNER_FORGOT] = STAY(HANDLE_LEAVING),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_CHECK),
  },
  [RREF_HANDLE_ENDED] = {
    REFUSE_NEW_HANDLE,
    REFUSE_INPUTS,
    [RREF_HANDLE_HAS_NO_CHILDREN]    = STAY(HANDLE_ENDED),
    [RREF_HANDLE_HAS_NO_WAITERS]        = DO(HANDLE_NONE, RREF_FREE),
    [RREF_HANDLE_OWNER_FORGOT] = STAY(HANDLE_ENDED),
    [RREF_HANDLE_OWNER_LOST]   = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS),
  },
};

/* A child: a handle that this node passed to another node, the receiver.
 *
 *   NONE     Holds: nothing. Left: for OFFERED when the handle is passed.
 *   OFFERED  Holds: a USE that is not acknowledged. Entered: from NONE. Left: for TAKEN when USE is
 *            acknowledged; for NONE when ACCEPT arrives, USE is refused or the receiver's lease
 *            expires. The last two are reported as UNUSED.
 *   TAKEN    Holds: nothing more; the receiver asks the owner to add its fork. Entered: from
 *            OFFERED. Left: for NONE when ACCEPT arrives, or when the receiver's lease expires,
 *            which is reported as UNUSED. */
static const clv_rref_cell children[RREF_CHILD_STATES][RREF_CHILD_EVENTS] = {
  [RREF_CHILD_NONE] = {
    [RREF_CHILD_PASSED]      = DO(CHILD_OFFERED, RREF_SEND_USE),
    [RREF_CHILD_ACCEPTED]    = STAY(CHILD_NONE),
  },
  [RREF_CHILD_OFFERED] = {
    [RREF_CHILD_PASSED]      = REFUSE(EXISTS),
    [RREF_CHILD_USE_ACKED]   = STAY(CHILD_TAKEN),
    [RREF_CHILD_USE_REFUSED] = DO(CHILD_NONE, RREF_REPORT_UNUSED, RREF_FREE),
    [RREF_CHILD_ACCEPTED]    = DO(CHILD_NONE, RREF_FREE),
    [RREF_CHILD_LOST]        = DO(CHILD_NONE, RREF_REPORT_UNUSED, RREF_FREE),
  },
  [RREF_CHILD_TAKEN] = {
    [RREF_CHILD_PASSED]      = REFUSE(EXISTS),
    [RREF_CHILD_ACCEPTED]    = DO(CHILD_NONE, RREF_FREE),
    [RREF_CHILD_LOST]        = DO(CHILD_NONE, RREF_REPORT_UNUSED, RREF_FREE),
  },
};

/* ---- a numbered message at its sender -------------------------------------------------------- */

/* A post: a numbered message.
 *
 *   NONE    Holds: nothing; the message is not posted, or has ended. Left: when the message is
 *           posted, for SENT if its number is within the window, else for WAITING.
 *   WAITING Holds: a place in the outbox. Entered: from NONE. Left: for SENT when the window
 *           reaches the number; for NONE when it is cancelled, or when the peer acknowledges a
 *           number that was not sent to it.
 *   SENT    Holds: a place in the outbox, and the time at which the message is sent again. Entered:
 *           from NONE and WAITING. Left: for NONE when the message is acknowledged or cancelled. */
static const clv_rref_cell posts[RREF_POST_STATES][RREF_POST_EVENTS] = {
  [RREF_POST_NONE] = {
    [RREF_POST_POSTED]    = DO(POST_SENT, RREF_TRANSMIT),
    [RREF_POST_OVER_WINDOW]    = STAY(POST_WAITING),
    [RREF_POST_CANCELLED] = STAY(POST_NONE),
  },
  [RREF_POST_WAITING] = {
    [RREF_POST_IN_WINDOW]      = DO(POST_SENT, RREF_TRANSMIT),
    /* a peer may acknowledge a number that was not sent to it */
    [RREF_POST_ACKED]     = DO(POST_NONE, RREF_UNLINK),
    [RREF_POST_CANCELLED] = DO(POST_NONE, RREF_UNLINK),
  },
  [RREF_POST_SENT] = {
    [RREF_POST_DUE]       = DO(POST_SENT, RREF_TRANSMIT),
    [RREF_POST_ACKED]     = DO(POST_NONE, RREF_UNLINK),
    [RREF_POST_CANCELLED] = DO(POST_NONE, RREF_UNLINK),
  },
};
/* clang-format on */

/* ---- applying an event to a record ----------------------------------------------------------- */

static const struct {
  const clv_rref_cell *cells; /* [states][events] cells of the machine */
  uint8_t states, events;
} machines[RREF_MACHINES] = {
    [RREF_ENTRIES] = {&entries[0][0], RREF_ENTRY_STATES, RREF_ENTRY_EVENTS},
    [RREF_FORKS] = {&forks[0][0], RREF_FORK_STATES, RREF_FORK_EVENTS},
    [RREF_HANDLES] = {&handles[0][0], RREF_HANDLE_STATES, RREF_HANDLE_EVENTS},
    [RREF_CHILDREN] = {&children[0][0], RREF_CHILD_STATES, RREF_CHILD_EVENTS},
    [RREF_POSTS] = {&posts[0][0], RREF_POST_STATES, RREF_POST_EVENTS},
};

const clv_rref_cell *clv_rref_cell_of(clv_rref_machine m, uint8_t state, uint8_t event) {
  return &machines[m].cells[state * machines[m].events + event];
}

uint8_t clv_rref_n_states(clv_rref_machine m) { return machines[m].states; }

uint8_t clv_rref_n_events(clv_rref_machine m) { return machines[m].events; }

static clv_code refuse_event(const clv_rref_cell *cell, clv_rref_event_args *given) {
  given->is_refused = true;
  return cell->rule == RREF_REFUSE ? (clv_code)cell->code : CLV_INTERNAL;
}

clv_code clv_rref_on_event(clv_rrefs *t, clv_rref_machine m, clv_rref_action_fn *const *action_fns,
                           void *record, uint8_t *state, uint8_t event,
                           clv_rref_event_args *given) {
  const clv_rref_cell *cell = clv_rref_cell_of(m, *state, event);
  clv_code code = CLV_OK;
  if (t->visits) t->visits->n[m][*state][event]++;
  if (cell->rule != RREF_DO) return refuse_event(cell, given);
  *state = cell->next_state;
  for (size_t i = 0; i < CLV_COUNT(cell->actions) && cell->actions[i] && code == CLV_OK; i++)
    code = action_fns[cell->actions[i]](t, record, given);
  return code;
}
