/* SPDX-License-Identifier: Apache-2.0
 *
 * Recompute blocks: groups of layers of a module whose forward runs again before their backward, so
 * that their activations need not be stored (activation checkpointing).
 */
#ifndef CLEAVE_API_BLOCKS_INT_H
#define CLEAVE_API_BLOCKS_INT_H

#include "master/api/core/core_int.h"

/* Marks the blocks of options->recompute_blocks in the module's graph. */
cleave_status api_mark_recompute_blocks(cleave_module *m, const cleave_module_options *o,
                                        cleave_error *error) CLEAVE_RESULT;

#endif
