/* SPDX-License-Identifier: Apache-2.0
 *
 * State machines of peers, modules and contexts, as tables with a row per state and a cell per
 * event. A cell says how the caller handles the event, and which state follows. An event without a
 * cell cannot occur in that state and changes nothing. state_tables.c has the tables and describes
 * each state.
 */
#ifndef CLEAVE_STATES_INT_H
#define CLEAVE_STATES_INT_H

#include <stdint.h>

typedef enum api_action {
  API_ACTION_NEVER,  /* no cell: the event cannot occur */
  API_ACTION_REFUSE, /* the caller reports an error */
  API_ACTION_IGNORE, /* the caller does nothing */
  API_ACTION_RECORD, /* the caller records the event; a later event completes it */
  API_ACTION_BEGIN,  /* the caller begins work that later events end */
  API_ACTION_SETTLE, /* the caller resumes the functions that waited for the event */
  API_ACTION_END     /* the caller frees the record of the object, or stops using the node */
} api_action;

typedef enum api_peer_state {
  PEER_PRESENT,
  PEER_LOST,
  PEER_REJOINING,
  PEER_LOST_DURING_REJOIN,
  PEER_CLOSED,
  N_PEER_STATES
} api_peer_state;

typedef enum api_peer_event {
  PEER_LINK_ENDS,
  PEER_REJOIN_BEGINS,
  PEER_REJOINS,      /* the link and the session of the peer are open again */
  PEER_REJOIN_FAILS, /* the link or the session of the peer could not be opened */
  PEER_CLOSES,       /* the runtime is closed */
  N_PEER_EVENTS
} api_peer_event;

typedef enum api_module_state {
  MODULE_NEW,
  MODULE_PLACING,
  MODULE_PLACED,
  MODULE_UNLOADING,
  MODULE_GONE,
  N_MODULE_STATES
} api_module_state;

typedef enum api_module_event {
  MODULE_TRANSFER_BEGINS, /* a function begins to load the module at its node, or to unload it */
  MODULE_AT_NODE,         /* the load or unload has ended, and the module is at the node */
  MODULE_NOT_AT_NODE,     /* the load or unload has ended, and the node lacks the module */
  MODULE_OUTDATED,        /* the module's frozen set or optimiser has changed: load it again */
  MODULE_UNLOADS,         /* nothing needs the module any more: its node is sent UNLOAD */
  MODULE_UNLOADED,        /* its node has answered UNLOAD */
  MODULE_DROPPED,         /* nothing needs the module, and its node does not have it or is lost */
  N_MODULE_EVENTS
} api_module_event;

typedef enum api_context_state {
  API_CONTEXT_OPEN,
  API_CONTEXT_CLOSING,
  API_CONTEXT_ENDING,
  API_CONTEXT_END_PENDING,
  API_CONTEXT_ENDING_KEPT,
  API_N_CONTEXT_STATES
} api_context_state;

typedef enum api_context_event {
  API_CONTEXT_CLOSES, /* cleave_context_close closes the context and waits for the nodes */
  API_CONTEXT_ENDS,   /* cleave_context_end ends the context and does not wait */
  /* some owners of kept values (cleave_keep) have not answered in time */
  API_CONTEXT_OWNERS_LATE,
  API_CONTEXT_OWNERS_ANSWERED, /* all owners of kept values (cleave_keep) have answered */
  /* all nodes have answered; some still hold calls on which kept values (cleave_keep) depend */
  API_CONTEXT_ONLY_KEPT_LEFT,
  API_N_CONTEXT_EVENTS
} api_context_event;

/* Returns the action for an event, and writes the state that follows to *state. */
api_action api_peer_on_event(api_peer_state *state, api_peer_event event);
api_action api_module_on_event(api_module_state *state, api_module_event event);
api_action api_context_on_event(api_context_state *state, api_context_event event);

#endif
