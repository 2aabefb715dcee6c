/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia: the real filling of the table in kernels/cuda/cuda.h, and what libcleave_cuda.so exports.
 *
 * A thin adapter, and the only place that includes headers of the toolkit. The runtime is linked;
 * cuBLASLt and cuDNN are opened when they are first needed, from the folders that were named, then
 * as the loader finds them.
 */
#ifndef CLEAVE_CUDA_NVIDIA_H
#define CLEAVE_CUDA_NVIDIA_H

#include "kernels/cuda/cuda.h"
#include "kernels/load/load.h"

const clv_vendor *clv_nvidia(void);

/* The one exported symbol. NULL: `abi` is not CLV_CUDA_ABI of this build. */
__attribute__((visibility("default"))) const clv_cuda_library *clv_cuda_entry(uint32_t abi);

/* ---- without a device, for tests ------------------------------------------------------------- */

/* What cuDNN would do for a convolution on the device that `device_json` describes. */
typedef struct clv_nvidia_plan {
  int64_t engine, candidates; /* the engine's number; engines that were offered, 0: it was kept */
  size_t workspace;
} clv_nvidia_plan;

/* What cuDNN knows of device `device`, or of the one that is described, as such a description. */
clv_code clv_nvidia_device_json(int device, const char *device_json, clv_bytes *ret,
                                clv_err *err) CLV_USE_RESULT;

/* Before anything else; NULL: nowhere. */
void clv_nvidia_keep_plans(const clv_plan_store *store);

/* device_json NULL: on device 0. */
clv_code clv_nvidia_plan_conv(const char *device_json, const clv_cuda_conv_desc *d, float beta,
                              clv_nvidia_plan *ret, clv_err *err) CLV_USE_RESULT;

/* Whether cuDNN takes the description of this LSTM. */
clv_code clv_nvidia_describe_lstm(const clv_cuda_lstm_desc *d, clv_err *err) CLV_USE_RESULT;

#endif
