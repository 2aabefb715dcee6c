/* SPDX-License-Identifier: Apache-2.0
 *
 * lstm_int: launchers of the cells of an LSTM. Gates are i, f, g, o.
 */
#ifndef CLEAVE_KERNELS_CUDA_LSTM_INT_H
#define CLEAVE_KERNELS_CUDA_LSTM_INT_H

#include "kernels/cuda/bf16_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers of one layer: gates [n, t, 4 h], cell and hidden [n, t, h]. In bf16 the kernels also
 * write hidden values and gradients of gates rounded, as factors of products, to hidden_bf16 and
 * dgates_bf16; otherwise both are NULL. */
typedef struct cuda_lstm {
  size_t n, t, h;
  float *gates, *cell, *hidden;
  cuda_bf16 *hidden_bf16, *dgates_bf16;
} cuda_lstm;

/* Computes step `at`. gates hold W x + U h; the kernel adds the biases (both or neither may be
 * NULL), applies the gate functions, and writes the step's cell and hidden values. */
clv_code clv_gpu_lstm_cell(clv_gpu *g, const cuda_lstm *l, size_t at, const float *bias_in,
                           const float *bias_h, clv_err *err) CLV_USE_RESULT;
/* Computes dgates of step `at` from three gradients: outside_dh [n, t, h], of the output; dh [n,
 * h], of h from the following step; dc [n, h], of c, which is updated. dh and dc are not read at
 * the last step. */
clv_code clv_gpu_lstm_cell_back(clv_gpu *g, const cuda_lstm *l, size_t at, const float *outside_dh,
                                const float *dh, float *dc, float *dgates,
                                clv_err *err) CLV_USE_RESULT;
/* Writes the hidden values one step later: to[n, t] = hidden[n, t - 1], and 0 for t = 0. */
clv_code clv_gpu_lstm_shift(clv_gpu *g, const cuda_lstm *l, float *to, clv_err *err) CLV_USE_RESULT;

/* Addresses of the parameters in a module, and their indices in cuDNN's buffer of weights. */
typedef struct cuda_lstm_params {
  unsigned n;
  float *param[CLV_MAX_PARAMS];
  size_t at[CLV_MAX_PARAMS], count[CLV_MAX_PARAMS]; /* index and size, in values */
} cuda_lstm_params;

/* Copies the parameters to cuDNN's buffer `space`. */
clv_code clv_gpu_lstm_pack(clv_gpu *g, const cuda_lstm_params *p, float *space,
                           clv_err *err) CLV_USE_RESULT;
/* Copies the parameters from cuDNN's buffer `space`, or adds them if `accumulate`. */
clv_code clv_gpu_lstm_unpack(clv_gpu *g, const cuda_lstm_params *p, const float *space,
                             bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
