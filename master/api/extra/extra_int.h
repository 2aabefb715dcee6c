/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that files of master/api/extra share: results of futures, reloading of modules that
 * were lost, and the comparison of declared rows with what tensors show (fronts).
 */
#ifndef CLEAVE_EXTRA_INT_H
#define CLEAVE_EXTRA_INT_H

#include "master/api/core/core.h"
#include "master/egress/egress.h"

cleave_status api_copy_gradients_result(const api_future *f, void *ret, cleave_error *error);

/* ---- rejoining workers (rejoin.c); call these without the runtime's lock --------------------- */

/* Checks that the worker exists and was lost. */
cleave_status api_rejoin_check(cleave_runtime *rt, const char *worker,
                               cleave_error *error) CLEAVE_RESULT;
/* A lost module, and the state with which it is loaded again. api_reload_run BLOCKS. */
typedef struct api_reload api_reload;
cleave_status api_reload_new(cleave_runtime *rt, cleave_module *m, const cleave_state *weights,
                             const cleave_state *optimizer, api_reload **ret,
                             cleave_error *error) CLEAVE_RESULT;
cleave_status api_reload_run(cleave_runtime *rt, const api_reload *r, uint64_t deadline_ms,
                             cleave_error *error) CLEAVE_RESULT;
void api_reload_free(api_reload *r); /* NULL is allowed */

/* ---- comparing declared rows with what tensors show (fronts.c) ------------------------------- */

/* A program's fronts: the layers at the master through which a record passes before a tensor is
 * sent. The object keeps samples of the weights of modules at the master, and a list of the fronts
 * that were compared with the program's rows (cleave_declare). The caller owns the arguments of
 * api_fronts_new. */
typedef struct api_fronts api_fronts;
clv_code api_fronts_new(const clv_session_config *c, clv_program_gate *gate, api_fronts **ret,
                        clv_err *err) CLV_USE_RESULT;
void api_fronts_free(api_fronts *f); /* NULL is allowed */
/* Begins to keep samples of the values that the program gives to modules at the master. With the
 * runtime's lock held. */
void api_fronts_switch_on(api_fronts *f);
/* Implement note_module, note_values and judge_tensor of api_gate. api_fronts_note_module and
 * api_fronts_note_values add to the host's ledger which layer keys and values the module's worker
 * will know. api_fronts_judge compares what a value shows with the declared row that permits it. */
cleave_status api_fronts_note_module(api_fronts *f, const cleave_module *m,
                                     cleave_error *error) CLEAVE_RESULT;
cleave_status api_fronts_note_values(api_fronts *f, const api_noted_values *v,
                                     cleave_error *error) CLEAVE_RESULT;
cleave_status api_fronts_judge(api_fronts *f, const api_value *v, const cleave_sending *sending,
                               cleave_error *error) CLEAVE_RESULT;
/* Finds by the rules of `plan` what a tensor behind the row's front shows. Sets shows and
 * hiding_layers if they are 0, and removes the front from the row. CLEAVE_DENIED: the row declares
 * less than the rules find. */
cleave_status api_fronts_fill_row(cleave_declaration *d, cleave_error *error) CLEAVE_RESULT;

#endif
