/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia: the table of kernels/cuda/cuda.h filled with NVIDIA's functions, and the entry of
 * libcleave_cuda.so.
 *
 * A thin adapter, and the only place that includes headers of the toolkit. The runtime is linked.
 * cuBLASLt and cuDNN are opened when they are first needed, from the named folders, then by the
 * loader's own search.
 */
#ifndef CLEAVE_CUDA_NVIDIA_H
#define CLEAVE_CUDA_NVIDIA_H

#include "kernels/cuda/cuda.h"
#include "kernels/load/load.h"

const clv_vendor *clv_nvidia_vendor(void);

/* Returns the functions of this library, which is its one exported symbol; NULL if `abi` is not
 * CLV_CUDA_ABI of this build. */
__attribute__((visibility("default"))) const clv_cuda_library *clv_cuda_entry(uint32_t abi);

/* ---- plans without a device, for tests ------------------------------------------------------- */

/* cuDNN's choice for a convolution on the device that `device_json` describes. */
typedef struct clv_nvidia_plan {
  /* engine: number of the engine; n_candidates: number of engines that cuDNN proposed, 0: the plan
   * was stored */
  int64_t engine, n_candidates;
  size_t workspace;
} clv_nvidia_plan;

/* Writes cuDNN's description of device number `device` to ret, or of the device that device_json
 * describes. */
clv_code clv_nvidia_device_json(int device, const char *device_json, clv_bytes *ret,
                                clv_err *err) CLV_USE_RESULT;

/* Sets the store that keeps plans; call it before any other function. NULL: plans are not stored.
 */
void clv_nvidia_set_plan_store(const clv_plan_store *store);

/* Makes and frees the plan of a convolution on the described device; device_json NULL: on device 0.
 */
clv_code clv_nvidia_plan_conv(const char *device_json, const clv_cuda_conv_desc *d, float beta,
                              clv_nvidia_plan *ret, clv_err *err) CLV_USE_RESULT;

/* Returns CLV_OK if cuDNN accepts the description of this LSTM. */
clv_code clv_nvidia_describe_lstm(const clv_cuda_lstm_desc *d, clv_err *err) CLV_USE_RESULT;

#endif
