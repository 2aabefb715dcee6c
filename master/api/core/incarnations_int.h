/* SPDX-License-Identifier: Apache-2.0
 *
 * Incarnations of workers (incarnations.c). A worker that was lost and has come back (rejoin.c) is
 * another incarnation: it holds nothing that the earlier one held. In frames each incarnation has
 * its own name, "w1 (2)" for the second, so that no node confuses it with the earlier one.
 */
#ifndef CLEAVE_INCARNATIONS_INT_H
#define CLEAVE_INCARNATIONS_INT_H

#include "master/api/core/core_int.h"

/* ---- names of workers in frames -------------------------------------------------------------- */

/* Returns the name that frames use for the peer's present incarnation (the worker since its last
 * rejoin). */
static inline const char *api_wire_name(const api_peer *p) {
  return p->n_rejoins ? p->wire_name : p->name;
}
/* Returns the index of the node that frames call `name`; -1: no node has this name now, although an
 * earlier incarnation of a worker may have had it. */
int api_find_node_by_wire_name(const cleave_runtime *rt, const char *name);
/* True if two workers may have a direct link. If either was ever lost, the master relays values
 * between them. */
static inline bool api_can_link_directly(const api_peer *a, const api_peer *b) {
  return !api_is_peer_lost(a) && !api_is_peer_lost(b) && !a->n_rejoins && !b->n_rejoins;
}

/* ---- checks of nodes and modules; called with the runtime's lock held ------------------------ */

/* Fails with CLEAVE_UNAVAILABLE and the node's name if the node is lost. api_check_module_present
 * also fails if the module was lost with an earlier incarnation of its node. */
cleave_status api_check_node_present(const cleave_runtime *rt, uint32_t node,
                                     cleave_error *error) CLEAVE_RESULT;
cleave_status api_check_module_present(const cleave_module *m, cleave_error *error) CLEAVE_RESULT;
/* True if the frame belongs to a context that used an earlier incarnation of the worker `to`,
 * before its last rejoin. The present incarnation does not know this context. */
bool api_is_of_earlier_incarnation(const cleave_runtime *rt, const api_peer *to,
                                   const clv_frame *f);

/* ---- workers.c: functions that BLOCK; called without the lock -------------------------------- */

clv_rpc_pem api_tls_pem(const cleave_runtime *rt);
void api_end_session(const api_peer *p);            /* sends CloseSession; ignores errors */
unsigned api_connect_timeout_ms(const api_peer *p); /* milliseconds that are left for connecting */
/* Sends Hello and OpenSession. If the worker rejoins, first sends CloseSession, for a session that
 * its earlier incarnation may have left open. */
cleave_status api_connect_worker(api_peer *p, cleave_error *error) CLEAVE_RESULT;

/* ---- state of modules (state_dict.c) --------------------------------------------------------- */

/* Copies items for a module's state, and checks for each that the module has an item with its name,
 * dtype and shape. The caller passes *ret_items [n] to api_state_items_free, also after a failure.
 * Without the runtime's lock. */
cleave_status api_copy_state_items(const cleave_module *m, cleave_state_kind kind,
                                   const cleave_named_tensor *from, size_t n,
                                   api_state_item **ret_items, cleave_error *error) CLEAVE_RESULT;
/* BLOCKS, with the runtime's lock held: reads all state of a kind from the module's node. */
cleave_status api_read_all_state_items(cleave_module *m, cleave_state_kind kind, uint64_t until_ns,
                                       api_state_item **ret_items, uint32_t *ret_n,
                                       cleave_error *error) CLEAVE_RESULT;

#endif
