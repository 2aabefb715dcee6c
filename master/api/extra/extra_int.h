/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that files of master/api/extra share: results of futures, and reloading of modules that
 * were lost.
 */
#ifndef CLEAVE_EXTRA_INT_H
#define CLEAVE_EXTRA_INT_H

#include "master/api/core/core.h"

cleave_status api_gradients_result(const api_future *f, void *ret, cleave_error *error);

/* ---- rejoin.c: without the lock -------------------------------------------------------------- */

/* Checks that the worker exists and was lost. */
cleave_status api_rejoin_check(cleave_runtime *rt, const char *worker,
                               cleave_error *error) CLEAVE_RESULT;
/* A module and the state with which it is loaded again. api_reload_run BLOCKS. */
typedef struct api_reload api_reload;
cleave_status api_reload_new(cleave_runtime *rt, cleave_module *m, const cleave_state *weights,
                             const cleave_state *optimizer, api_reload **ret,
                             cleave_error *error) CLEAVE_RESULT;
cleave_status api_reload_run(cleave_runtime *rt, const api_reload *r, uint64_t deadline_ms,
                             cleave_error *error) CLEAVE_RESULT;
void api_reload_free(api_reload *r); /* NULL is allowed */

#endif
