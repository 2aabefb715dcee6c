/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of peers, modules and contexts as tables: a row per state, a cell per fact. A cell
 * says what the caller does with the fact, and which state follows. A fact without a cell cannot
 * occur in that state: it changes nothing. state_tables.c has the tables, and each of them in
 * words.
 */
#ifndef CLEAVE_STATES_INT_H
#define CLEAVE_STATES_INT_H

#include <stdint.h>

typedef enum api_action {
  API_NEVER,  /* no cell: the fact cannot occur */
  API_REFUSE, /* the caller reports an error */
  API_IGNORE,
  API_RECORD, /* the fact is noted and waits for others */
  API_BEGIN,  /* something begins that other facts end */
  API_SETTLE, /* what waited for it continues */
  API_END     /* the record is freed, or has no use of its node any more */
} api_action;

typedef enum api_peer_state {
  PEER_PRESENT,
  PEER_LOST,
  PEER_REJOINING,
  PEER_LOST_DURING_REJOIN,
  PEER_CLOSED,
  PEER_STATES
} api_peer_state;

typedef enum api_peer_event {
  PEER_LINK_ENDS,
  PEER_REJOIN_BEGINS,
  PEER_REJOINS,      /* its link and its session are open */
  PEER_REJOIN_FAILS, /* or they are not */
  PEER_CLOSES,       /* the runtime is closed */
  PEER_FACTS
} api_peer_event;

typedef enum api_module_state {
  MODULE_NEW,
  MODULE_PLACING,
  MODULE_PLACED,
  MODULE_UNLOADING,
  MODULE_GONE,
  MODULE_STATES
} api_module_state;

typedef enum api_module_event {
  MODULE_TRANSFER_BEGINS, /* a call takes it to its node, or away from there */
  MODULE_AT_NODE,         /* and has ended with the module there, */
  MODULE_NOT_AT_NODE,     /* or not */
  MODULE_OUTDATED,        /* what its node was sent of it does not hold any more */
  MODULE_UNLOADS,         /* its node is sent UNLOAD, because nobody needs it */
  MODULE_UNLOADED,        /* its node has answered to an UNLOAD */
  MODULE_DROPPED,         /* nobody needs it, and its node has nothing of it or is lost */
  MODULE_FACTS
} api_module_event;

typedef enum api_context_state {
  API_CONTEXT_OPEN,
  API_CONTEXT_CLOSING,
  API_CONTEXT_ENDING,
  API_CONTEXT_END_PENDING,
  API_CONTEXT_ENDING_KEPT,
  API_CONTEXT_STATES
} api_context_state;

typedef enum api_context_event {
  API_CONTEXT_CLOSES,          /* by a function that waits for the nodes */
  API_CONTEXT_ENDS,            /* by one that does not */
  API_CONTEXT_OWNERS_LATE,     /* owners of kept values have not answered in time */
  API_CONTEXT_OWNERS_ANSWERED, /* all of them have */
  API_CONTEXT_ONLY_KEPT_LEFT,  /* each node has answered, some but for what kept values need */
  API_CONTEXT_FACTS
} api_context_event;

/* The action for the fact; the state that follows is in *state. */
api_action api_peer_on_event(api_peer_state *state, api_peer_event fact);
api_action api_module_on_event(api_module_state *state, api_module_event fact);
api_action api_context_on_event(api_context_state *state, api_context_event fact);

#endif
