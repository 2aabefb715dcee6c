/* SPDX-License-Identifier: Apache-2.0
 *
 * Ties between modules (ties.c).
 */
#ifndef CLEAVE_TIES_INT_H
#define CLEAVE_TIES_INT_H

#include "master/api/core/core_int.h"

/* Those of the options become the graph's, before its parameters are found; then their owners. */
cleave_status api_ties_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                    cleave_error *error) CLEAVE_RESULT;
cleave_status api_ties_find_owners(cleave_module *m, const cleave_module_options *o,
                                   cleave_error *error) CLEAVE_RESULT;

/* With the lock, as the following: whether something of it is another module's, and learns. */
bool api_has_trainable_tie(const cleave_module *m);
bool api_is_tied_to(const cleave_module *m, const cleave_module *owner);
/* Whether some module that has not gone is tied to it. */
bool api_is_tie_owner(const cleave_module *m);

#endif
