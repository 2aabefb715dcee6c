/* SPDX-License-Identifier: Apache-2.0
 *
 * Incarnations of workers (incarnations.c). A worker that was lost and has come back (rejoin.c) is
 * another incarnation: it has nothing of what the earlier one had. In frames each incarnation has a
 * name of its own, "w1 (2)" for the second, so that no node takes it for the earlier one.
 */
#ifndef CLEAVE_INCARNATIONS_INT_H
#define CLEAVE_INCARNATIONS_INT_H

#include "master/api/core/core_int.h"

/* ---- names in frames ------------------------------------------------------------------------- */

static inline const char *api_wire_name(const api_peer *p) {
  return p->n_returns ? p->wire_name : p->name;
}
/* Of a node by its name in frames; -1: unknown, or of an earlier incarnation. */
int api_find_by_wire_name(const cleave_runtime *rt, const char *name);
/* Two workers that may dial each other: after a loss values between them come by way of here. */
static inline bool api_can_link_directly(const api_peer *a, const api_peer *b) {
  return !api_is_lost(a) && !api_is_lost(b) && !a->n_returns && !b->n_returns;
}

/* ---- with the lock --------------------------------------------------------------------------- */

/* CLEAVE_UNAVAILABLE, with its name, when the node is lost; the module, when it was lost with
 * an earlier incarnation of its node. */
cleave_status api_check_node_present(const cleave_runtime *rt, uint32_t node,
                                     cleave_error *error) CLEAVE_RESULT;
cleave_status api_check_module_present(const cleave_module *m, cleave_error *error) CLEAVE_RESULT;
/* The frame is of a context that used an earlier incarnation of the worker, which the present one
 * does not know. */
bool api_is_of_earlier_incarnation(const cleave_runtime *rt, const api_peer *to,
                                   const clv_frame *f);

/* ---- workers.c: without the lock, BLOCKS ----------------------------------------------------- */

clv_rpc_pem api_tls_pem(const cleave_runtime *rt);
void api_end_session(const api_peer *p); /* CloseSession; whoever does not answer has no session */
unsigned api_connect_timeout_ms(const api_peer *p); /* ms that connecting to it may still take */
/* Hello and OpenSession, behind CloseSession of what an earlier incarnation has left there. */
cleave_status api_connect_worker(api_peer *p, cleave_error *error) CLEAVE_RESULT;

/* ---- state_dict.c ---------------------------------------------------------------------------- */

/* Copies of a module's state, all of which belong to it; *ret_items, [n], is to be given to
 * api_state_items_done whatever comes back. Without the lock. */
cleave_status api_copy_state_items(const cleave_module *m, cleave_state_kind kind,
                                   const cleave_named_tensor *from, size_t n,
                                   api_state_item **ret_items, cleave_error *error) CLEAVE_RESULT;
/* With the lock, BLOCKS: all of a kind as the module's node has it. */
cleave_status api_state_read_all(cleave_module *m, cleave_state_kind kind, uint64_t until_ns,
                                 api_state_item **ret_items, uint32_t *ret_n,
                                 cleave_error *error) CLEAVE_RESULT;

#endif
