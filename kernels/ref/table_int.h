/* SPDX-License-Identifier: Apache-2.0
 *
 * Every op over REAL, and the table OPS of them. Included by ops_f32.c and ops_f64.c.
 */
#include <math.h>
#include <string.h>

#include "kernels/ref/dense_int.h"
#include "kernels/ref/norm_int.h"
#include "kernels/ref/pointwise_int.h"
#include "kernels/ref/pool_int.h"
#include "kernels/ref/select_int.h"
#include "kernels/ref/sequence_int.h"
#include "kernels/ref/softmax_int.h"
#include "kernels/ref/wait_int.h"
/* Losses use softmax's row functions. */
#include "kernels/ref/loss_int.h"

enum { BOTH_IN = CLV_SAVE_IN0 | CLV_SAVE_IN1 };

const ref_op OPS[CLV_OP_COUNT] = {
    [CLV_OP_LINEAR] = {linear_forward, linear_backward_input, linear_backward_weight,
                       .saves_dw = CLV_SAVE_IN0},
    [CLV_OP_CONV2D] = {conv2d_forward, conv2d_backward_input, conv2d_backward_weight,
                       .saves_dw = CLV_SAVE_IN0},
    [CLV_OP_MAXPOOL] = {maxpool_forward, maxpool_backward, .saved_bytes = maxpool_saved},
    [CLV_OP_AVGPOOL] = {.forward = avgpool_forward, .backward_input = avgpool_backward},
    [CLV_OP_GLOBALAVGPOOL] = {.forward = globalavgpool_forward,
                              .backward_input = globalavgpool_backward},
    [CLV_OP_RELU] = {relu_forward, relu_backward, .saves_dx = CLV_SAVE_OUT, .in_place = true},
    [CLV_OP_SIGMOID] = {sigmoid_forward, sigmoid_backward, .saves_dx = CLV_SAVE_OUT,
                        .in_place = true},
    [CLV_OP_TANH] = {tanh_forward, tanh_backward, .saves_dx = CLV_SAVE_OUT, .in_place = true},
    [CLV_OP_GELU] = {gelu_forward, gelu_backward, .saves_dx = CLV_SAVE_IN0},
    [CLV_OP_SOFTMAX] = {softmax_forward, softmax_backward, .saves_dx = CLV_SAVE_OUT,
                        .in_place = true},
    [CLV_OP_LOG_SOFTMAX] = {log_softmax_forward, log_softmax_backward, .saves_dx = CLV_SAVE_OUT,
                            .in_place = true},
    [CLV_OP_ADD] = {add_forward, pass_backward, .in_place = true},
    [CLV_OP_FLATTEN] = {pass_forward, pass_backward, .in_place = true},
    [CLV_OP_RESHAPE] = {pass_forward, pass_backward, .in_place = true},
    [CLV_OP_DROPOUT] = {dropout_forward, dropout_backward, .in_place = true,
                        .saved_bytes = dropout_saved},
    [CLV_OP_BATCHNORM] = {batchnorm_forward, batchnorm_backward_input, batchnorm_backward_weight,
                          .saves_dx = CLV_SAVE_IN0, .saves_dw = CLV_SAVE_IN0,
                          .saved_bytes = batchnorm_saved},
    [CLV_OP_CROSS_ENTROPY] = {cross_entropy_forward, cross_entropy_backward, .saves_dx = BOTH_IN},
    [CLV_OP_NLL] = {nll_forward, nll_backward, .saves_dx = CLV_SAVE_IN1},
    [CLV_OP_MSE] = {mse_forward, mse_backward, .saves_dx = BOTH_IN},
    [CLV_OP_BCE] = {bce_forward, bce_backward, .saves_dx = BOTH_IN},
    [CLV_OP_BCE_WITH_LOGITS] = {bce_with_logits_forward, bce_with_logits_backward,
                                .saves_dx = BOTH_IN},
    [CLV_OP_EMBEDDING] = {.forward = embedding_forward,
                          .backward_weight = embedding_backward_weight,
                          .saves_dw = CLV_SAVE_IN0},
    [CLV_OP_LSTM] = {lstm_forward, lstm_backward, .saves_dw = CLV_SAVE_IN0, .fused = true,
                     .saved_bytes = lstm_saved, .scratch_bytes = lstm_scratch},
    [CLV_OP_MEAN] = {.forward = axis_mean_forward, .backward_input = axis_mean_backward},
    [CLV_OP_SCALE] = {scale_forward, scale_backward, .in_place = true},
    [CLV_OP_CONCAT] = {.forward = concat_forward, .backward_input = concat_backward},
    [CLV_OP_SLICE] = {.forward = slice_forward, .backward_input = slice_backward},
    [CLV_OP_LAYERNORM] = {layernorm_forward, layernorm_backward_input, layernorm_backward_weight,
                          .saves_dx = CLV_SAVE_IN0, .saves_dw = CLV_SAVE_IN0,
                          .saved_bytes = layernorm_saved},
    [CLV_OP_WAIT] = {wait_forward, wait_backward_input, wait_backward_weight,
                     .saves_dw = CLV_SAVE_IN0},
};
