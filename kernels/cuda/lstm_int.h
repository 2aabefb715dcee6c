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

/* Buffers of one layer: gates [n, t, 4 h], cell and hidden [n, t, h]. In bf16 the hidden values
 * and the gates' gradients are also written rounded, as factors of products; otherwise these
 * pointers are NULL. */
typedef struct cuda_lstm {
  size_t n, t, h;
  float *gates, *cell, *hidden;
  cuda_bf16 *hidden_bf16, *dgates_bf16;
} cuda_lstm;

/* Computes step `at`. gates hold W x + U h; the kernel adds the biases (both NULL or neither),
 * applies the gate functions, and writes the step's cell and hidden values. */
clv_code clv_gpu_lstm_cell(clv_gpu *g, const cuda_lstm *l, size_t at, const float *bias_in,
                           const float *bias_h, clv_err *err) CLV_USE_RESULT;
/* Computes dgates of step `at` from outside [n, t, h], from dh [n, h], the gradient from the
 * following step, and from dc [n, h], which is updated. dh and dc are not read at the last step. */
clv_code clv_gpu_lstm_cell_back(clv_gpu *g, const cuda_lstm *l, size_t at, const float *outside,
                                const float *dh, float *dc, float *dgates,
                                clv_err *err) CLV_USE_RESULT;
/* to[n, t] = from[n, t - 1], and 0 for t = 0. */
clv_code clv_gpu_lstm_shift(clv_gpu *g, const cuda_lstm *l, float *to, clv_err *err) CLV_USE_RESULT;

/* Addresses of the parameters in a module, and their indices in the weights' space of cuDNN. */
typedef struct cuda_lstm_params {
  unsigned n;
  float *of[CLV_MAX_PARAMS];
  size_t at[CLV_MAX_PARAMS], count[CLV_MAX_PARAMS]; /* in values */
} cuda_lstm_params;

/* Copies the parameters to `space`. */
clv_code clv_gpu_lstm_pack(clv_gpu *g, const cuda_lstm_params *p, float *space,
                           clv_err *err) CLV_USE_RESULT;
/* Copies the parameters from `space`, or adds them if `accumulate`. */
clv_code clv_gpu_lstm_unpack(clv_gpu *g, const cuda_lstm_params *p, const float *space,
                             bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
