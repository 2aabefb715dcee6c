/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: our weight gradients, for convolutions where oneDNN 2.6 has none (few channels,
 * row-major) or a slow one (three taps wide, AVX2; 1x1, AMX), and weights in oneDNN's layouts.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_INT_H
#define CLEAVE_KERNELS_CPU_CONV_INT_H

#include "kernels/cpu/cpu_int.h"

/* Arguments of our weight gradients: dw[k][c][u][v] (+)= sum over n, i, j of dy[n][k][i][j]
 * x[n][c][i*stride - pad + u][...]. dy has channel block `block`. Sums run over one image in f32
 * and then over the images, for any number of threads. */
typedef struct cpu_weight_job {
  clv_window s;
  int block, threads;
  const float *x, *dy;
  float *dw;
  /* db[k] (+)= sum of dy, or NULL; only clv_cpu_product_conv_weight computes it */
  float *db;
  float *scratch; /* as many bytes as the function's clv_cpu_..._conv_scratch returns */
  bool accumulate;
} cpu_weight_job;

/* clv_cpu_small_conv_weight computes the weight gradient for few input channels; x is
 * row-major. */
size_t clv_cpu_small_conv_scratch(const clv_window *s, int block, int threads);
void clv_cpu_small_conv_weight(const cpu_weight_job *job);

/* clv_cpu_wide_conv_weight computes the weight gradient for x in channel blocks of 8 and one group,
 * if clv_cpu_wide_conv_fits. */
bool clv_cpu_wide_conv_fits(const clv_window *s, int block);
size_t clv_cpu_wide_conv_scratch(const clv_window *s, int threads);
void clv_cpu_wide_conv_weight(const cpu_weight_job *job);

/* Weight gradient of a convolution with clv_cpu_product_conv_fits: x and dy are bf16 and channels
 * last. Sums run over all images in f32. */
bool clv_cpu_product_conv_fits(const clv_window *s, int64_t groups);
size_t clv_cpu_product_conv_scratch(const clv_window *s, int threads);
void clv_cpu_product_conv_weight(const cpu_weight_job *job);

/* The gradient of a bias: db[c] (+)= sum of dy[n][c][position] over the samples and
 * positions. dy has channel block `block`. */
typedef struct cpu_bias_job {
  const float *dy;
  int64_t n, channels, positions;
  int block;
  float *db;
  bool accumulate;
} cpu_bias_job;

/* clv_cpu_conv_bias_sum, a clv_cpu_range_fn, computes the gradients of channel blocks [begin, end)
 * of clv_cpu_conv_bias_blocks in double and rounds them once, with the same bits in every channel
 * block: position p of a plane is added to the sum p % NORM_SPREAD of its channel. */
size_t clv_cpu_conv_bias_blocks(const cpu_bias_job *j);
void clv_cpu_conv_bias_sum(void *job, size_t begin, size_t end);

/* ---- weights in tiles of 16x16 channels ------------------------------------------------------ */

/* Copies of a convolution's weights. row_major: [K][C][taps]. forward_tiles: copy for the forward,
 * tiles [K/16][C/16][taps][16 c][16 k], oneDNN's OIhw16i16o. backward_tiles: copy for the input
 * gradient, tiles of [taps][16 k][16 c], which are ordered as those of `forward_tiles` (OIhw16o16i)
 * or, with `backward_tiles_are_c_major`, [C/16][K/16] (IOhw16o16i).
 */
typedef struct cpu_weight_tiles {
  int64_t k, c, taps;
  int threads;
  float *row_major;
  void *forward_tiles, *backward_tiles;
  bool backward_tiles_are_c_major;
  /* the tiles of both copies are bf16, with rows [8][16][2]: a pair has two adjacent
   * channels of those that the product sums over (OIhw8i16o2i, OIhw8o16i2o, IOhw8o16i2o) */
  bool bf16;
  bool unpack_adds; /* clv_cpu_weight_unpack adds to row_major instead of overwriting it */
} cpu_weight_tiles;

bool clv_cpu_weight_tiles_fit(const clv_window *s, int64_t groups, bool bf16);
/* Copies row_major to forward_tiles, backward_tiles, or both; NULL: not copied. */
void clv_cpu_weight_pack(const cpu_weight_tiles *w);
/* Copies forward_tiles to row_major. */
void clv_cpu_weight_unpack(const cpu_weight_tiles *w);

#endif
