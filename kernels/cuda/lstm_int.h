/* SPDX-License-Identifier: Apache-2.0
 *
 * lstm_int: launchers that compute one step of an LSTM layer. Its gates are i, f, g, o.
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

/* Computes the gates, c and h of one step, counted from 0. l->gates holds W_ih x + W_hh h; the
 * kernel adds the biases, which may both be NULL, and applies sigmoid or tanh. */
clv_code clv_gpu_compute_lstm_cell(clv_gpu *g, const cuda_lstm *l, size_t step,
                                   const float *bias_in, const float *bias_h,
                                   clv_err *err) CLV_USE_RESULT;
/* Computes the gradients of the gates of one step from three gradients: outer_dh [n, t, h], of the
 * layer's output; dh [n, h], of h from the step after; dc [n, h], of c from the step after. On
 * return dc is the gradient of c of the step before. dh and dc are not read at the last step. */
clv_code clv_gpu_compute_lstm_cell_back(clv_gpu *g, const cuda_lstm *l, size_t step,
                                        const float *outer_dh, const float *dh, float *dc,
                                        float *dgates, clv_err *err) CLV_USE_RESULT;
/* Writes the hidden values one step later: shifted[n, t] = hidden[n, t - 1], and 0 for t = 0. */
clv_code clv_gpu_shift_lstm_steps(clv_gpu *g, const cuda_lstm *l, float *shifted,
                                  clv_err *err) CLV_USE_RESULT;

/* The parameters of a module, or their gradients, and their places in cuDNN's buffer of weights. */
typedef struct cuda_lstm_params {
  unsigned n;
  float *param[CLV_MAX_PARAMS];
  size_t index[CLV_MAX_PARAMS]; /* index of the first value in the buffer */
  size_t n_values[CLV_MAX_PARAMS];
} cuda_lstm_params;

/* Copies the parameters to cuDNN's buffer `space`. */
clv_code clv_gpu_pack_lstm_params(clv_gpu *g, const cuda_lstm_params *p, float *space,
                                  clv_err *err) CLV_USE_RESULT;
/* Copies the parameters from cuDNN's buffer `space`, or adds them if `accumulate`. */
clv_code clv_gpu_unpack_lstm_params(clv_gpu *g, const cuda_lstm_params *p, const float *space,
                                    bool accumulate, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
