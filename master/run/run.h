/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the commands of cleave-master that take a session file and compute.
 */
#ifndef CLEAVE_RUN_H
#define CLEAVE_RUN_H

#include "common/cli/cli.h"
#include "master/plan/plan.h"

/* Each prints what a person wants to see, reports errors on stderr and returns the exit code. */
clv_exit clv_run_train(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_eval(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_predict(const clv_session_config *config, const clv_run_options *o);
clv_exit clv_run_plan(const clv_session_config *config, const clv_run_options *o);
/* What --checkpoint may say: "latest", "best" or the number of a step; NULL: it was not given. */
bool clv_is_checkpoint_name(const char *text);
clv_exit clv_run_check(const clv_session_config *config, const clv_run_options *o);

#endif
