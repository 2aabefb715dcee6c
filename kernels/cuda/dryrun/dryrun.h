/* SPDX-License-Identifier: Apache-2.0
 *
 * dryrun: the backend of kernels/cuda on a device that does not exist. The master makes plans with
 * it, by the same code as for a real device, to estimate the memory they need on a host without a
 * device or toolkit. Nothing is computed: kernels are prepared and never run.
 */
#ifndef CLEAVE_KERNELS_CUDA_DRYRUN_H
#define CLEAVE_KERNELS_CUDA_DRYRUN_H

#include "kernels/kernels.h"

/* Workspace of library calls that the dry run assumes, because only libraries on a real device can
 * report it. */
typedef enum clv_cuda_dry_run_workspace {
  CLV_CUDA_DRY_RUN_MIN, /* no workspace */
  CLV_CUDA_DRY_RUN_MAX, /* the largest workspace that kernels/cuda allows */
} clv_cuda_dry_run_workspace;

/* Opens a backend that computes nothing, of a device with capability 9.0 and cuDNN; its kernels
 * report the memory they need. The memory of an LSTM is an estimate from its shape: its weights,
 * and gates, cell and hidden value of each step and layer. The caller closes the backend with
 * clv_cuda_dry_run_close, after all plans that were made with it. */
clv_code clv_cuda_dry_run_open(clv_cuda_dry_run_workspace workspace, clv_backend **ret,
                               clv_err *err) CLV_USE_RESULT;
void clv_cuda_dry_run_close(clv_backend *b); /* takes NULL */
void clv_cuda_dry_run_closep(clv_backend **b);

#endif
