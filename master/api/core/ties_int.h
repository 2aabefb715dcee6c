/* SPDX-License-Identifier: Apache-2.0
 *
 * Ties between modules (ties.c): parameters of one module that belong to another.
 */
#ifndef CLEAVE_TIES_INT_H
#define CLEAVE_TIES_INT_H

#include "master/api/core/core_int.h"

/* api_ties_add_to_graph adds the ties of the options to the module's graph; call it before the
 * parameters are listed. Then call api_ties_find_owners, which sets m->tie_owners. */
cleave_status api_ties_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                    cleave_error *error) CLEAVE_RESULT;
cleave_status api_ties_find_owners(cleave_module *m, const cleave_module_options *o,
                                   cleave_error *error) CLEAVE_RESULT;

/* True if some tied parameter of the module learns. The functions below are called with the
 * runtime's lock held. */
bool api_has_trainable_tie(const cleave_module *m);
/* True if some parameter of m belongs to `owner`. */
bool api_is_tied_to(const cleave_module *m, const cleave_module *owner);
/* True if another module that is not freed has a parameter that belongs to m. */
bool api_is_tie_owner(const cleave_module *m);

#endif
