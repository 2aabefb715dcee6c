/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: our own weight gradients of convolutions, where oneDNN 2.6 has none (few channels in a
 * row-major input) or slow ones (three taps wide with AVX2; in channels last with AMX). Also bias
 * gradients, and copies of weights in oneDNN's layouts.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_INT_H
#define CLEAVE_KERNELS_CPU_CONV_INT_H

#include "kernels/cpu/cpu_int.h"

/* Arguments of the functions below that compute a weight gradient: dw[k][c][u][v] (+)= sum over n,
 * i, j of dy[n][k][i][j] x[n][c][i * stride - pad + u * dilation][j * stride - pad + v * dilation].
 * dy has channel block `block`. The order of the sums does not depend on the number of threads. */
typedef struct cpu_weight_grad_job {
  clv_window s;
  int block, threads;
  const float *x, *dy;
  float *dw;
  /* db[k] (+)= sum of dy; only clv_cpu_product_conv_compute_dw computes db. NULL: no db. */
  float *db;
  float *scratch; /* of the size that the function's clv_cpu_..._conv_scratch_bytes returns */
  bool accumulate;
} cpu_weight_grad_job;

/* clv_cpu_small_conv_compute_dw computes the weight gradient for few input channels; x is
 * row-major. */
size_t clv_cpu_small_conv_scratch_bytes(const clv_window *s, int block, int threads);
void clv_cpu_small_conv_compute_dw(const cpu_weight_grad_job *job);

/* clv_cpu_wide_conv_compute_dw computes the weight gradient for x in channel blocks of 8 and one
 * group, if clv_cpu_can_use_wide_conv. */
bool clv_cpu_can_use_wide_conv(const clv_window *s, int block);
size_t clv_cpu_wide_conv_scratch_bytes(const clv_window *s, int threads);
void clv_cpu_wide_conv_compute_dw(const cpu_weight_grad_job *job);

/* clv_cpu_product_conv_compute_dw computes the weight gradient for x and dy in bf16 and channels
 * last, if clv_cpu_can_use_product_conv. Each value is one sum in f32 over all images. */
bool clv_cpu_can_use_product_conv(const clv_window *s, int64_t groups);
size_t clv_cpu_product_conv_scratch_bytes(const clv_window *s, int threads);
void clv_cpu_product_conv_compute_dw(const cpu_weight_grad_job *job);

/* The gradient of a bias: db[c] (+)= sum of dy[n][c][position] over the samples and
 * positions. dy has channel block `block`. */
typedef struct cpu_bias_grad_job {
  const float *dy;
  int64_t n, channels, positions;
  int block;
  float *db;
  bool accumulate;
} cpu_bias_grad_job;

/* clv_cpu_conv_sum_bias_grads, a clv_cpu_range_fn, computes the gradients of channel blocks [begin,
 * end), of which clv_cpu_conv_count_bias_blocks returns the number. It adds in double and rounds
 * once. The bits do not depend on `block`: position p of a plane is added to the partial sum
 * p % NORM_PARTIAL_SUMS of its channel. */
size_t clv_cpu_conv_count_bias_blocks(const cpu_bias_grad_job *j);
void clv_cpu_conv_sum_bias_grads(void *job, size_t begin, size_t end);

/* ---- weights in tiles of 16x16 channels ------------------------------------------------------ */

/* Copies of a convolution's weights. row_major: [K][C][taps]. forward_tiles: copy for the forward,
 * [K/16][C/16][taps][16 c][16 k], oneDNN's OIhw16i16o. backward_tiles: copy for the input gradient,
 * [K/16][C/16][taps][16 k][16 c] (OIhw16o16i) or, with backward_tiles_are_c_major,
 * [C/16][K/16][taps][16 k][16 c] (IOhw16o16i). */
typedef struct cpu_weight_tiles {
  int64_t k, c, n_taps;
  int threads;
  float *row_major;
  void *forward_tiles, *backward_tiles;
  bool backward_tiles_are_c_major;
  /* the tiles of both copies are bf16, and a tile is [8][16][2]: a pair has two adjacent channels
   * of those that the product sums over (OIhw8i16o2i, OIhw8o16i2o, IOhw8o16i2o) */
  bool tiles_are_bf16;
  bool unpack_adds; /* clv_cpu_weight_tiles_unpack adds to row_major instead of overwriting it */
} cpu_weight_tiles;

bool clv_cpu_can_use_weight_tiles(const clv_window *s, int64_t groups, bool tiles_are_bf16);
/* Copies row_major to forward_tiles, backward_tiles, or both; NULL: not copied. */
void clv_cpu_weight_tiles_pack(const cpu_weight_tiles *w);
/* Copies forward_tiles to row_major. */
void clv_cpu_weight_tiles_unpack(const cpu_weight_tiles *w);

#endif
