/* SPDX-License-Identifier: Apache-2.0
 *
 * paper: the backend of kernels/cuda on a device that is only written down. Plans are made with it
 * as on a real one, by the same code, so that what they need is known where there is no device and
 * no toolkit. Nothing is computed: kernels that are prepared are never run.
 */
#ifndef CLEAVE_KERNELS_CUDA_DRYRUN_H
#define CLEAVE_KERNELS_CUDA_DRYRUN_H

#include "kernels/kernels.h"

/* What libraries borrow for a call is theirs to say, on the device. */
typedef enum clv_cuda_dry_run_workspace {
  CLV_CUDA_DRY_RUN_LEAST, /* the least */
  CLV_CUDA_DRY_RUN_MOST,  /* the limits that kernels/cuda sets them */
} clv_cuda_dry_run_workspace;

/* Of capability 9.0, with cuDNN. The space of an LSTM is an estimate by its shape: weights as they
 * are, and of each step and layer gates, cell and hidden value. The caller ends it with
 * clv_cuda_dry_run_close, after all plans that were made with it. */
clv_code clv_cuda_dry_run_open(clv_cuda_dry_run_workspace loan, clv_backend **ret,
                               clv_err *err) CLV_USE_RESULT;
void clv_cuda_dry_run_close(clv_backend *b); /* takes NULL */
void clv_cuda_dry_run_closep(clv_backend **b);

#endif
