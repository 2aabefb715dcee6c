/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_int: launchers of attention, beside its products.
 */
#ifndef CLEAVE_KERNELS_CUDA_ATTENTION_INT_H
#define CLEAVE_KERNELS_CUDA_ATTENTION_INT_H

#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A batch's heads, and the rows `first` to first + rows - 1 of each head of keys: there the queries
 * of all heads that share it lie one behind the other, t for each. */
typedef struct cuda_heads {
  size_t n, t, s, heads, kv_heads, width, group;
  float scale;
  bool causal;
  size_t first, rows;
  uint32_t limit; /* of dropout; 0: nothing is dropped */
  float factor;
  clv_rng_stream stream; /* without step and micro-batch where there is an occasion */
  const clv_rng_position *occasion;
  uint32_t layer; /* key.layer, for what is refused */
  bool bf16;      /* what products read is rounded to it */
  /* Where packed sequences begin, or NULL. Rows of weights are as if they were padded; those of
   * pads are 0, and what is saved has none. */
  const int64_t *begin;
} cuda_heads;

/* Heads of n samples of `steps` places, or of packed sequences: p.begin is NULL or not. */
typedef struct cuda_by_heads {
  size_t n, steps, heads, width;
  cuda_packed p;
} cuda_by_heads;

/* y [n, heads, steps, width] of x [n, steps, heads, width], in bf16 or f32; and the other way
 * round, in f32. Of packed sequences x is [rows, heads, width]: pads become 0 in y, and on the way
 * back rows of no sequence do. */
clv_code clv_gpu_to_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, void *y, bool bf16,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_from_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, float *y,
                            clv_err *err) CLV_USE_RESULT;

/* Weights of rows: x [n kv_heads, rows, s] in f32, and the same as factors of products: in bf16
 * these have a room of their own, in f32 they are x. */
typedef struct cuda_weights {
  float *x;
  void *factor;
} cuda_weights;

/* From their products with the keys, in x. saved, unless it is NULL: the largest score and the
 * inverse of the sum, of each row of [n, heads, t], or of packed [rows, heads]. lengths: [n] or
 * NULL. */
clv_code clv_gpu_attention_softmax(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                   const int64_t *lengths, float *saved,
                                   clv_err *err) CLV_USE_RESULT;
/* w: the same products become the weights. dw: what comes back to the weights becomes what goes
 * back to the products. */
clv_code clv_gpu_attention_softmax_back(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                        const cuda_weights *dw, const int64_t *lengths,
                                        const float *saved, clv_err *err) CLV_USE_RESULT;
/* Notes the first length that clv_gpu_attention_softmax refused. */
clv_code clv_gpu_note_bad_length(clv_gpu *g, const cuda_heads *h, const int64_t *lengths,
                                 clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
