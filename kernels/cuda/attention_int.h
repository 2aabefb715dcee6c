/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_int: launchers of the kernels of attention, except its products.
 */
#ifndef CLEAVE_KERNELS_CUDA_ATTENTION_INT_H
#define CLEAVE_KERNELS_CUDA_ATTENTION_INT_H

#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of a batch, and a tile of their query rows. The queries of all heads that share one head of
 * keys are stored one after another, t for each head. */
typedef struct cuda_heads {
  size_t n, t, s;         /* samples, and queries and keys of one sample */
  size_t heads, kv_heads; /* heads of queries, heads of keys and values */
  size_t width;           /* values of one head in one position */
  size_t group;           /* heads of queries that share one head of keys */
  float scale;
  bool is_causal;             /* a query attends to no later key */
  size_t first_row, rows;     /* the tile: its first query row, and the number of its rows */
  uint32_t dropout_threshold; /* result of clv_gpu_dropout_threshold; 0: no dropout */
  float dropout_factor;
  /* random stream; its step and micro-batch are 0 if rng_position is not NULL */
  clv_rng_stream stream;
  const clv_rng_position *rng_position;
  uint32_t layer; /* key.layer of the call, for errors about refused values */
  bool bf16;      /* the operands of products are bf16 */
  /* first row of each packed sequence; NULL: sequences are not packed. The weights also have rows
   * for padding, which are 0; `saved` has none. */
  const int64_t *first_rows;
} cuda_heads;

/* Extents of a tensor of heads: n samples of `steps` positions, or packed sequences if p.first_rows
 * is not NULL. */
typedef struct cuda_head_tensor {
  size_t n, steps, heads, width;
  cuda_packed p;
} cuda_head_tensor;

/* clv_gpu_split_heads transposes x [n, steps, heads, width] to y [n, heads, steps, width], in bf16
 * or f32; clv_gpu_merge_heads does the reverse, in f32. The untransposed tensor of packed sequences
 * is [rows, heads, width]: clv_gpu_split_heads writes zeros to the padding, and clv_gpu_merge_heads
 * to the rows after the last sequence. */
clv_code clv_gpu_split_heads(clv_gpu *g, const cuda_head_tensor *t, const float *x, void *y,
                             bool bf16, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_merge_heads(clv_gpu *g, const cuda_head_tensor *t, const float *x, float *y,
                             clv_err *err) CLV_USE_RESULT;

/* Attention weights of a tile, [n kv_heads, rows, s]: x in f32, and `operand` as an operand of
 * products. In bf16 `operand` is a separate buffer, in f32 it is x. */
typedef struct cuda_attention_weights {
  float *x;
  void *operand;
} cuda_attention_weights;

/* Computes the attention weights from the scores, which are in w->x. saved: receives the largest
 * score and the inverse of the sum of exponentials of each row of [n, heads, t], or of packed
 * [rows, heads]; NULL: the caller does not need them. lengths: [n]; NULL: all keys are valid, or
 * sequences are packed. */
clv_code clv_gpu_attention_softmax(clv_gpu *g, const cuda_heads *h, const cuda_attention_weights *w,
                                   const int64_t *lengths, float *saved,
                                   clv_err *err) CLV_USE_RESULT;
/* Recomputes the attention weights from the scores, which are in w->x, and replaces the gradient of
 * the weights in dw by the gradient of the scores. */
clv_code clv_gpu_attention_softmax_back(clv_gpu *g, const cuda_heads *h,
                                        const cuda_attention_weights *w,
                                        const cuda_attention_weights *dw, const int64_t *lengths,
                                        const float *saved, clv_err *err) CLV_USE_RESULT;
/* Launches a kernel that writes the first length that clv_gpu_attention_softmax refused to the
 * device's record of refused values (clv_gpu_fault). */
clv_code clv_gpu_record_bad_length(clv_gpu *g, const cuda_heads *h, const int64_t *lengths,
                                   clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
