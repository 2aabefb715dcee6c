/* SPDX-License-Identifier: Apache-2.0
 *
 * The state tables of peers, modules and contexts, each in words and as a table
 * (state_tables_int.h).
 */
#include "master/api/core/state_tables_int.h"

typedef struct cell {
  uint8_t action, next;
} cell;

#define DO(action, state) \
  { API_##action, (state) }

/* A peer is a worker of the runtime; the master itself is one that is always PRESENT.
 *
 *   PRESENT            It is connected, or being connected while the runtime opens. Left for LOST
 *                      when its link ends: then all that goes on with it fails.
 *   LOST               Nothing is sent to it. Left for REJOINING by cleave_worker_rejoin alone.
 *   REJOINING          One thread of the program has its link and its channel. Still nothing else
 *                      is sent to it. Left for PRESENT when the worker has answered, else for LOST.
 *   LOST_DURING_REJOIN Its new link has ended before the rejoin has: the rejoin fails.
 *   CLOSED             The runtime is being closed, and the end of the link means nothing. */
static const cell peers[PEER_STATES][PEER_EVENTS] = {
    [PEER_PRESENT] = {[PEER_LINK_ENDS] = DO(BEGIN, PEER_LOST),
                      [PEER_REJOIN_BEGINS] = DO(REFUSE, PEER_PRESENT),
                      [PEER_CLOSES] = DO(END, PEER_CLOSED)},
    [PEER_LOST] = {[PEER_LINK_ENDS] = DO(IGNORE, PEER_LOST),
                   [PEER_REJOIN_BEGINS] = DO(BEGIN, PEER_REJOINING),
                   [PEER_CLOSES] = DO(IGNORE, PEER_CLOSED)},
    [PEER_REJOINING] = {[PEER_LINK_ENDS] = DO(RECORD, PEER_LOST_DURING_REJOIN),
                        [PEER_REJOIN_BEGINS] = DO(REFUSE, PEER_REJOINING),
                        [PEER_REJOINS] = DO(SETTLE, PEER_PRESENT),
                        [PEER_REJOIN_FAILS] = DO(END, PEER_LOST),
                        [PEER_CLOSES] = DO(IGNORE, PEER_CLOSED)},
    [PEER_LOST_DURING_REJOIN] = {[PEER_LINK_ENDS] = DO(IGNORE, PEER_LOST_DURING_REJOIN),
                                 [PEER_REJOIN_BEGINS] = DO(REFUSE, PEER_LOST_DURING_REJOIN),
                                 [PEER_REJOINS] = DO(REFUSE, PEER_LOST_DURING_REJOIN),
                                 [PEER_REJOIN_FAILS] = DO(END, PEER_LOST),
                                 [PEER_CLOSES] = DO(IGNORE, PEER_CLOSED)},
    [PEER_CLOSED] = {[PEER_LINK_ENDS] = DO(IGNORE, PEER_CLOSED),
                     [PEER_REJOIN_BEGINS] = DO(REFUSE, PEER_CLOSED),
                     [PEER_CLOSES] = DO(IGNORE, PEER_CLOSED)},
};

/* A module has an index of its runtime until it is GONE.
 *
 *   NEW       Its node does not have it, unless an attempt to load it has failed with an unknown
 *             outcome (may_be_at_node). Its state is with the program: given weights, or the state
 *             that was saved before a reload. Entered when the module is made, when a load fails,
 *             and after the unload before a reload. Left for PLACING by the next use, for UNLOADING
 *             or GONE when nothing needs the module.
 *   PLACING   One thread loads or unloads it; other threads wait. An answer to UNLOAD in this state
 *             belongs to an earlier attempt. Left for PLACED or NEW when that thread is done.
 *   PLACED    Its node has it, unless the node was lost since (n_rejoins). If needs_reload is set,
 *             the next use loads it again. Left for PLACING by a reload, for UNLOADING or GONE when
 *             nothing needs the module.
 *   UNLOADING Nothing needs it, and its node has been sent UNLOAD. Left for GONE when the node has
 *             answered or is lost.
 *   GONE      It has no index. Its record stays while a kept value or an operation needs it. */
static const cell modules[MODULE_STATES][MODULE_EVENTS] = {
    [MODULE_NEW] = {[MODULE_TRANSFER_BEGINS] = DO(BEGIN, MODULE_PLACING),
                    [MODULE_OUTDATED] = DO(IGNORE, MODULE_NEW),
                    [MODULE_UNLOADS] = DO(BEGIN, MODULE_UNLOADING),
                    [MODULE_DROPPED] = DO(END, MODULE_GONE)},
    [MODULE_PLACING] = {[MODULE_AT_NODE] = DO(SETTLE, MODULE_PLACED),
                        [MODULE_NOT_AT_NODE] = DO(SETTLE, MODULE_NEW),
                        [MODULE_OUTDATED] = DO(IGNORE, MODULE_PLACING),
                        [MODULE_UNLOADED] = DO(SETTLE, MODULE_PLACING)},
    [MODULE_PLACED] = {[MODULE_TRANSFER_BEGINS] = DO(BEGIN, MODULE_PLACING),
                       [MODULE_OUTDATED] = DO(RECORD, MODULE_PLACED),
                       [MODULE_UNLOADS] = DO(BEGIN, MODULE_UNLOADING),
                       [MODULE_DROPPED] = DO(END, MODULE_GONE)},
    [MODULE_UNLOADING] = {[MODULE_OUTDATED] = DO(IGNORE, MODULE_UNLOADING),
                          [MODULE_UNLOADED] = DO(END, MODULE_GONE),
                          [MODULE_DROPPED] = DO(END, MODULE_GONE)},
    [MODULE_GONE] = {[MODULE_OUTDATED] = DO(IGNORE, MODULE_GONE)},
};

/* A context has a handle while it is OPEN. A failure is no state: a failed context is still open.
 *
 *   OPEN        The program can use it. Left for CLOSING by cleave_context_close, for ENDING by
 *               cleave_context_end.
 *   CLOSING     A closing (API_CLOSE) waits for it. The closing frees it when all nodes have
 *               answered, unless it is left for END_PENDING (owners of kept values are late) or
 *               ENDING_KEPT.
 *   ENDING      No function waits. It counts as a context whose end is not answered
 *   (n_ending_contexts).
 *               The last answer of a node frees it, unless it is left as CLOSING is.
 *   END_PENDING Its nodes have not been sent END_CONTEXT, because owners of kept values have not
 *               answered. Left for ENDING_KEPT, with END_CONTEXT, when the owners have answered.
 *   ENDING_KEPT Its nodes have answered, or will, but still hold what kept values need. No function
 *               waits, and it does not count in n_ending_contexts. It is freed when each node holds
 *               nothing of it. */
static const cell contexts[API_CONTEXT_STATES][API_CONTEXT_EVENTS] = {
    [API_CONTEXT_OPEN] = {[API_CONTEXT_CLOSES] = DO(BEGIN, API_CONTEXT_CLOSING),
                          [API_CONTEXT_ENDS] = DO(BEGIN, API_CONTEXT_ENDING),
                          [API_CONTEXT_OWNERS_ANSWERED] = DO(IGNORE, API_CONTEXT_OPEN)},
    [API_CONTEXT_CLOSING] = {[API_CONTEXT_OWNERS_LATE] = DO(RECORD, API_CONTEXT_END_PENDING),
                             [API_CONTEXT_OWNERS_ANSWERED] = DO(IGNORE, API_CONTEXT_CLOSING),
                             [API_CONTEXT_ONLY_KEPT_LEFT] = DO(SETTLE, API_CONTEXT_ENDING_KEPT)},
    [API_CONTEXT_ENDING] = {[API_CONTEXT_OWNERS_LATE] = DO(RECORD, API_CONTEXT_END_PENDING),
                            [API_CONTEXT_OWNERS_ANSWERED] = DO(IGNORE, API_CONTEXT_ENDING),
                            [API_CONTEXT_ONLY_KEPT_LEFT] = DO(SETTLE, API_CONTEXT_ENDING_KEPT)},
    [API_CONTEXT_END_PENDING] = {[API_CONTEXT_OWNERS_ANSWERED] =
                                     DO(SETTLE, API_CONTEXT_ENDING_KEPT)},
    [API_CONTEXT_ENDING_KEPT] = {[API_CONTEXT_OWNERS_ANSWERED] =
                                     DO(IGNORE, API_CONTEXT_ENDING_KEPT)},
};

api_action api_peer_on_event(api_peer_state *state, api_peer_event event) {
  const cell *c = &peers[*state][event];
  if (c->action) *state = (api_peer_state)c->next;
  return (api_action)c->action;
}

api_action api_module_on_event(api_module_state *state, api_module_event event) {
  const cell *c = &modules[*state][event];
  if (c->action) *state = (api_module_state)c->next;
  return (api_action)c->action;
}

api_action api_context_on_event(api_context_state *state, api_context_event event) {
  const cell *c = &contexts[*state][event];
  if (c->action) *state = (api_context_state)c->next;
  return (api_action)c->action;
}
