/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for state of modules: weights, moments and gradients.
 */
#ifndef CLEAVE_REQUESTS_INT_H
#define CLEAVE_REQUESTS_INT_H

#include "master/api/core/core_int.h"

/* With the runtime's lock held: sends STATE_GET and lists the request *r, which the caller has
 * filled in. Answers are stored in *r until api_state_request_free, which the caller calls also
 * after a failure. */
cleave_status api_state_send_get(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                 api_state_request *r, cleave_error *error) CLEAVE_RESULT;
/* True if the request has all of its answers, or has failed. */
static inline bool api_is_request_answered(const api_state_request *r) {
  return r->has_failed || (r->is_answered && r->n_items_received >= r->n_items_expected);
}
/* With the runtime's lock held: waits for all answers. what: name of the request in the message if
 * the deadline passes. */
cleave_status api_state_await(cleave_module *m, api_state_request *r, const char *what,
                              uint64_t until_ns, cleave_error *error) CLEAVE_RESULT;
/* As api_state_send_get, for a STATE_PUT of n items, above 0. context_id: context of gradients; 0
 * for other state. */
cleave_status api_state_send_put(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                 const api_state_item *items, uint32_t n, api_state_request *r,
                                 cleave_error *error) CLEAVE_RESULT;
/* Checks that a tensor from a node has the shape of the parameter `name`. */
cleave_status api_state_check_item(const cleave_module *m, const char *name, const clv_tensor *t,
                                   cleave_error *error) CLEAVE_RESULT;
/* Finds the dtype and shape of an item of the module's state. Returns false if the module has no
 * item with this name. */
bool api_find_state_item_spec(const cleave_module *m, cleave_state_kind kind, const char *name,
                              clv_dtype *ret_dtype, clv_shape *ret_shape);
/* True if the module's state has an item of that name, dtype and shape. */
bool api_has_state_item(const cleave_module *m, cleave_state_kind kind, const char *name,
                        clv_dtype dtype, const clv_shape *shape);
/* Checks that all items [n] have arrived, and that each belongs to the module's state. */
cleave_status api_state_check_items(const cleave_module *m, cleave_state_kind kind,
                                    const api_state_item *items, uint32_t n,
                                    cleave_error *error) CLEAVE_RESULT;
/* Removes a request from the list, and frees what it has received. */
void api_state_request_free(cleave_runtime *rt, api_state_request *r);

#endif
