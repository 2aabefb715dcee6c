/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers that are divided over several nodes.
 */
#ifndef CLEAVE_PARALLEL_INT_H
#define CLEAVE_PARALLEL_INT_H

#include "master/api/core/core.h"

/* The modules are the graphs of the stretches, and of the parts within. */
struct cleave_parallel {
  api_attachment attachment; /* the first member */
  cleave_runtime *runtime;
  char name[CLEAVE_NAME + 1];
  clv_graph *whole;
  clv_params *params; /* of it */
  clv_division *division;
  cleave_module **modules; /* [n_modules] */
  uint32_t n_modules;
};

/* It is that runtime's. */
cleave_status api_parallel_check(const cleave_runtime *rt, const cleave_parallel *p,
                                 cleave_error *error) CLEAVE_RESULT;

#endif
