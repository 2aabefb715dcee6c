/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of state, of gradients among others.
 */
#ifndef CLEAVE_REQUESTS_INT_H
#define CLEAVE_REQUESTS_INT_H

#include "master/api/core/core_int.h"

/* With the lock: a STATE_GET leaves, as a request that is filled in for it; until
 * api_state_request_done its answers come there. Whatever the result, that follows. */
cleave_status api_state_send_get(cleave_module *m, clv_state_kind what, uint64_t context_id,
                                 api_state_request *r, cleave_error *error) CLEAVE_RESULT;
/* It has its answer. */
static inline bool api_is_request_answered(const api_state_request *r) {
  return r->failed || (r->answered && r->n_received >= r->count);
}
/* With the lock, waits: its answer is here. what: names it when it is not. */
cleave_status api_state_await(cleave_module *m, api_state_request *r, const char *what,
                              uint64_t until_ns, cleave_error *error) CLEAVE_RESULT;
/* The same for a STATE_PUT of n items, above 0; context_id: of gradients, else 0. */
cleave_status api_state_send_put(cleave_module *m, clv_state_kind what, uint64_t context_id,
                                 const api_state_item *items, uint32_t n, api_state_request *r,
                                 cleave_error *error) CLEAVE_RESULT;
/* What a node says of a parameter has the parameter's shape. */
cleave_status api_state_check_item(const cleave_module *m, const char *name, const clv_tensor *t,
                                   cleave_error *error) CLEAVE_RESULT;
/* What a piece of the module's state is there; false: it has none of that name. */
bool api_state_spec(const cleave_module *m, cleave_state_kind kind, const char *name,
                    clv_dtype *ret_dtype, clv_shape *ret_shape);
/* Is it a piece of the module's state, with the shape that it has there? */
bool api_has_state_item(const cleave_module *m, cleave_state_kind kind, const char *name,
                        clv_dtype dtype, const clv_shape *shape);
cleave_status api_state_check_items(const cleave_module *m, cleave_state_kind kind,
                                    const api_state_item *items, uint32_t n,
                                    cleave_error *error) CLEAVE_RESULT;
void api_state_request_done(cleave_runtime *rt, api_state_request *r);

#endif
