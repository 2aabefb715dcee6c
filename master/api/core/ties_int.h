/* SPDX-License-Identifier: Apache-2.0
 *
 * Ties between modules (ties.c): parameters of one module that belong to another.
 */
#ifndef CLEAVE_TIES_INT_H
#define CLEAVE_TIES_INT_H

#include "master/api/core/core_int.h"

/* Adds the ties of the options to the graph, before its parameters are listed. Afterwards
 * api_ties_find_owners looks up the owners. */
cleave_status api_ties_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                    cleave_error *error) CLEAVE_RESULT;
cleave_status api_ties_find_owners(cleave_module *m, const cleave_module_options *o,
                                   cleave_error *error) CLEAVE_RESULT;

/* True if some tied parameter of the module learns. With the lock, as the next two functions. */
bool api_has_trainable_tie(const cleave_module *m);
bool api_is_tied_to(const cleave_module *m, const cleave_module *owner);
/* True if some module that is not freed is tied to this one. */
bool api_is_tie_owner(const cleave_module *m);

#endif
