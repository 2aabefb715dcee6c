/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_int: launchers of attention, except its products.
 */
#ifndef CLEAVE_KERNELS_CUDA_ATTENTION_INT_H
#define CLEAVE_KERNELS_CUDA_ATTENTION_INT_H

#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of a batch, and a tile of each head's query rows: rows `first` to first + rows - 1. The
 * queries of all heads that share one head of keys are stored one after another, t for each head.
 */
typedef struct cuda_heads {
  size_t n, t, s, heads, kv_heads, width, group;
  float scale;
  bool causal;
  size_t first, rows;
  uint32_t dropout_threshold; /* result of clv_gpu_dropout_threshold; 0: no dropout */
  float dropout_factor;
  /* random stream; its step and micro-batch are 0 if rng_position is not NULL */
  clv_rng_stream stream;
  const clv_rng_position *rng_position;
  uint32_t layer; /* key.layer of the call, for errors about refused values */
  bool bf16;      /* the operands of products are bf16 */
  /* First row of each packed sequence; NULL: not packed. Rows of weights are laid out as if
   * sequences were padded. Rows of pads are 0, and `saved` has no rows for pads. */
  const int64_t *first_rows;
} cuda_heads;

/* Extents of a tensor of heads: n samples of `steps` positions, or packed sequences if p.first_rows
 * is not NULL. */
typedef struct cuda_by_heads {
  size_t n, steps, heads, width;
  cuda_packed p;
} cuda_by_heads;

/* clv_gpu_to_heads transposes x [n, steps, heads, width] to y [n, heads, steps, width], in bf16 or
 * f32; clv_gpu_from_heads does the reverse, in f32. For packed sequences x is [rows, heads, width]:
 * to_heads writes pads of y as 0, and from_heads writes rows that belong to no sequence as 0. */
clv_code clv_gpu_to_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, void *y, bool bf16,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_from_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, float *y,
                            clv_err *err) CLV_USE_RESULT;

/* Attention weights of a tile: x [n kv_heads, rows, s] in f32, and `operand`, the weights as an
 * operand of products: in bf16 a buffer of its own, in f32 equal to x. */
typedef struct cuda_weights {
  float *x;
  void *operand;
} cuda_weights;

/* Computes the weights from the scores, which are in w->x. saved: receives the largest score and
 * the inverse of the sum of each row of [n, heads, t], or of packed [rows, heads]; NULL: not
 * wanted. lengths: [n]; NULL: all keys are valid, or sequences are packed. */
clv_code clv_gpu_attention_softmax(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                   const int64_t *lengths, float *saved,
                                   clv_err *err) CLV_USE_RESULT;
/* Recomputes the weights from the scores, which are in w->x, and replaces the gradient of the
 * weights in dw by the gradient of the scores. */
clv_code clv_gpu_attention_softmax_back(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                        const cuda_weights *dw, const int64_t *lengths,
                                        const float *saved, clv_err *err) CLV_USE_RESULT;
/* Launches a kernel that writes the first length that clv_gpu_attention_softmax refused to the
 * device's record of refused values (clv_gpu_fault). */
clv_code clv_gpu_note_bad_length(clv_gpu *g, const cuda_heads *h, const int64_t *lengths,
                                 clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
