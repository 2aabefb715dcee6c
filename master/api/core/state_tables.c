/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machines of peers, modules and contexts (state_tables_int.h): each is described in
 * words and given as a table.
 */
#include "master/api/core/state_tables_int.h"

typedef struct state_cell {
  uint8_t action, next_state;
} state_cell;

#define DO(action, state) \
  { API_ACTION_##action, (state) }

/* A peer is a worker of the runtime. The master itself is a peer that is always PRESENT.
 *
 *   PRESENT            The worker is connected, or is being connected while the runtime opens. Left
 *                      for LOST when its link ends: then everything that uses the worker fails.
 *   LOST               Nothing is sent to the worker. Left for REJOINING only by
 *                      cleave_worker_rejoin.
 *   REJOINING          One thread of the program uses the worker's link and channel. Nothing else
 *                      is sent to the worker. Left for PRESENT when the worker has answered, else
 *                      for LOST.
 *   LOST_DURING_REJOIN The new link has ended before the rejoin was done, so the rejoin fails.
 *   CLOSED             The runtime is being closed, so the end of the link is ignored. */
static const state_cell peer_table[N_PEER_STATES][N_PEER_EVENTS] = {
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
 *   NEW       The node does not have the module, unless an attempt to load it has failed with an
 *             unknown outcome (may_be_at_node). This process has the module's state: given weights,
 *             or the state that was saved before a reload. Entered when the module is made, when a
 *             load fails, and after the unload before a reload. Left for PLACING by the next use,
 *             for UNLOADING or GONE when nothing needs the module.
 *   PLACING   One thread loads or unloads the module; other threads wait. An answer to UNLOAD in
 *             this state belongs to an earlier attempt. Left for PLACED or NEW when the thread is
 *             done.
 *   PLACED    The node has the module, unless the node was lost since then (n_rejoins). If
 *             needs_reload is set, the next use loads the module again. Left for PLACING by a
 *             reload, for UNLOADING or GONE when nothing needs the module.
 *   UNLOADING Nothing needs the module, and its node has been sent UNLOAD. Left for GONE when the
 *             node has answered or is lost.
 *   GONE      The module has no index. Its record stays while a kept value (cleave_keep) or an
 *             operation needs the record. */
static const state_cell module_table[N_MODULE_STATES][N_MODULE_EVENTS] = {
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

/* A context has a handle while it is OPEN. A failure is not a state: a failed context is still
 * open.
 *
 *   OPEN        The program can use the context. Left for CLOSING by cleave_context_close, for
 *               ENDING by cleave_context_end.
 *   CLOSING     A close operation (API_OPERATION_CLOSE) waits for the nodes, and frees the context
 *               when all nodes have answered. Left for END_PENDING if owners of kept values
 *               (cleave_keep) answer late, for ENDING_KEPT if nodes still hold calls for kept
 *               values.
 *   ENDING      No function waits. The context counts in n_ending_contexts, the contexts whose end
 *               is not answered. The last answer of a node frees the context. Left like CLOSING.
 *   END_PENDING The nodes have not been sent END_CONTEXT, because owners of kept values have not
 *               answered. Left for ENDING_KEPT when all owners have answered: then END_CONTEXT is
 *               sent.
 *   ENDING_KEPT The nodes have answered, or will, but still hold calls on which kept values depend.
 *               No function waits, and the context does not count in n_ending_contexts. The context
 *               is freed when no node holds anything of it. */
static const state_cell context_table[API_N_CONTEXT_STATES][API_N_CONTEXT_EVENTS] = {
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
  const state_cell *c = &peer_table[*state][event];
  if (c->action) *state = (api_peer_state)c->next_state;
  return (api_action)c->action;
}

api_action api_module_on_event(api_module_state *state, api_module_event event) {
  const state_cell *c = &module_table[*state][event];
  if (c->action) *state = (api_module_state)c->next_state;
  return (api_action)c->action;
}

api_action api_context_on_event(api_context_state *state, api_context_event event) {
  const state_cell *c = &context_table[*state][event];
  if (c->action) *state = (api_context_state)c->next_state;
  return (api_action)c->action;
}
