/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the commands of cleave-master that take a session file and compute.
 */
#ifndef CLEAVE_RUN_H
#define CLEAVE_RUN_H

#include "common/base/cli/cli.h"
#include "master/plan/plan.h"

/* Each prints what a person wants to see, reports errors on stderr and returns the exit code. */
clv_exit_code clv_run_train(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_eval(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_predict(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_plan(const clv_session_config *config, const clv_run_options *o);
/* What --checkpoint may say: "latest", "best" or the number of a step; NULL: it was not given. */
bool clv_is_checkpoint_name(const char *text);
/* The checkpoint of a run's folder that it means. `notes` as of clv_checkpoint_load_latest. */
clv_code clv_run_find_checkpoint(const char *dir, const char *which, clv_checkpoint **ret,
                                 clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
clv_exit_code clv_run_check(const clv_session_config *config, const clv_run_options *o);

/* Writes adapter_config.json and adapter_model.safetensors into `folder`, which is made where it is
 * missing: the adapters of all stages, and what else was trained beside them. CLV_PRECONDITION: the
 * run has no adapters. CLV_DATA_LOSS: config.json of model.hf, if it is there, is not the one that
 * the run began with, and `accept` is false. */
clv_code clv_export_adapters(const clv_checkpoint *c, const char *folder, bool accept,
                             clv_err *err) CLV_USE_RESULT;

/* Writes model.safetensors into `folder`: all weights, with each adapter added to its layer's, W +
 * scale B A, in double, rounded once. CLV_PRECONDITION: the checkpoint has not the weights that an
 * adapter belongs to. */
clv_code clv_export_merged(const clv_checkpoint *c, const char *folder,
                           clv_err *err) CLV_USE_RESULT;

/* The same with a config.json beside it, for from_pretrained. CLV_PRECONDITION: the session's model
 * is not by config.json. CLV_DATA_LOSS: it is another one than the run began with, and `accept` is
 * false. */
clv_code clv_export_hf(const clv_checkpoint *c, const char *folder, bool accept,
                       clv_err *err) CLV_USE_RESULT;

#endif
