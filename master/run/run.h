/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the commands of cleave-master that take a session file and compute. master/main.c and
 * master/ops.c call these functions.
 */
#ifndef CLEAVE_RUN_H
#define CLEAVE_RUN_H

#include "common/base/cli/cli.h"
#include "master/plan/plan.h"
#include "master/report/report.h"

/* Each function runs the command of its name: it prints the results to standard output and errors
 * to standard error, and returns the exit code. */
clv_exit_code clv_run_train(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_eval(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_predict(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_plan(const clv_session_config *config, const clv_run_options *o);
/* Returns true for a valid value of --checkpoint: "latest", "best", the number of a step, or NULL
 * (option not given). */
bool clv_is_checkpoint_name(const char *text);
/* Opens a checkpoint of the run folder `dir`. which: a value of --checkpoint. notes: with "latest"
 * or NULL, receives one line for each newer checkpoint that is not valid. */
clv_code clv_run_find_checkpoint(const char *dir, const char *which, clv_checkpoint **ret,
                                 clv_bytes *notes, clv_err *err) CLV_USE_RESULT;
clv_exit_code clv_run_check(const clv_session_config *config, const clv_run_options *o);

/* Result of clv_run_preview. */
typedef struct clv_run_outline {
  uint64_t epoch_bytes; /* bytes of tensors that leave the master in an epoch */
  bool may_resume;      /* the policy permits what `train --resume` sends */
} clv_run_outline;
/* Checks session, shapes and policy as `train` does before it connects, but neither checks the
 * values of records nor makes a run folder. Prints its own errors. Returns the exit code. */
clv_exit_code clv_run_preview(const clv_session_config *config, clv_run_outline *ret);

/* Sets *ret to the state of the run's sealed copies (encrypted copies of checkpoints) and `text` to
 * its last error, "" if none. Returns false if the session has no checkpoint.escrow. */
bool clv_run_read_escrow_status(const clv_session_config *config, clv_status_escrow *ret,
                                char text[CLV_ERR_TEXT]);

/* The commands `checkpoint ls`, `verify`, `gather` and `rm`. o->checkpoint: value of --step. */
clv_exit_code clv_run_checkpoint_ls(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_checkpoint_verify(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_checkpoint_gather(const clv_session_config *config, const clv_run_options *o);
clv_exit_code clv_run_checkpoint_rm(const clv_session_config *config, const clv_run_options *o);

/* Writes adapter_config.json and adapter_model.safetensors into `folder`, which is created if it is
 * missing. The files have the adapters of all stages and the other parameters that were trained
 * together with the adapters. CLV_PRECONDITION: the run has no adapters. CLV_DATA_LOSS: config.json
 * of model.hf differs from the one that the run began with, and `accepts_change` is false. */
clv_code clv_export_adapters(const clv_checkpoint *c, const char *folder, bool accepts_change,
                             clv_err *err) CLV_USE_RESULT;

/* Writes model.safetensors with all weights into `folder`. Each adapter is merged into its layer: W
 * + scale * (B * A), computed in double and rounded once. CLV_PRECONDITION: the checkpoint lacks
 * the weights of a layer with an adapter. */
clv_code clv_export_merged_weights(const clv_checkpoint *c, const char *folder,
                                   clv_err *err) CLV_USE_RESULT;

/* As clv_export_merged_weights, and also writes config.json, so that from_pretrained of
 * transformers can read the folder. CLV_PRECONDITION: the session has no model.hf. CLV_DATA_LOSS:
 * config.json of model.hf differs from the one that the run began with, and `accepts_change` is
 * false. */
clv_code clv_export_hf_folder(const clv_checkpoint *c, const char *folder, bool accepts_change,
                              clv_err *err) CLV_USE_RESULT;

#endif
