/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers that are divided over several nodes (parallel.c, parallel_state.c).
 */
#ifndef CLEAVE_PARALLEL_INT_H
#define CLEAVE_PARALLEL_INT_H

#include "master/api/core/core.h"

/* A divided chain of layers. Its segments are groups of consecutive layers that are all divided or
 * all undivided. The chain has one module for each undivided segment, and one for each part of a
 * divided segment. */
struct cleave_parallel {
  /* list link by which the runtime frees the object; must be the first member */
  api_attachment runtime_attachment;
  cleave_runtime *runtime;
  char name[CLEAVE_NAME + 1];
  clv_graph *undivided_graph; /* graph of the chain on one node */
  clv_params *params;         /* parameters of `undivided_graph` */
  clv_divided_chain *division;
  cleave_module **modules; /* [n_modules] modules of the chain */
  uint32_t n_modules;
};

/* Checks that the chain belongs to the runtime. */
cleave_status api_parallel_check(const cleave_runtime *rt, const cleave_parallel *p,
                                 cleave_error *error) CLEAVE_RESULT;

#endif
