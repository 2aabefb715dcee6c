/* SPDX-License-Identifier: Apache-2.0
 *
 * norm_int: the loops of batch normalisation over one plane. A plane is the values of one block of
 * b channels of one image: n numbers, of which channel l has the numbers l, l + b, l + 2 b, ... b
 * is 1, 8 or 16.
 *
 * Sums are computed as NORM_PARTIAL_SUMS * b partial sums, number i of a plane into i %
 * (NORM_PARTIAL_SUMS * b), each in double and in index order. Four neighbouring positions are
 * NORM_PARTIAL_SUMS * b neighbouring numbers in every layout. The sums of a channel are therefore
 * the same in each layout, and the loops vectorise.
 */
#ifndef CLEAVE_KERNELS_CPU_NORM_INT_H
#define CLEAVE_KERNELS_CPU_NORM_INT_H

#include "kernels/cpu/cpu_int.h"

enum { NORM_BLOCK = 16, NORM_PARTIAL_SUMS = 4, NORM_LANES = NORM_BLOCK * NORM_PARTIAL_SUMS };

/* Two sums of each of b channels, each as NORM_PARTIAL_SUMS partial sums: of values, and of
 * products. */
typedef struct clv_norm_sums {
  double value_sums[NORM_LANES], product_sums[NORM_LANES];
} clv_norm_sums;

/* Adds value i to sum number l = i % (NORM_PARTIAL_SUMS * b): value_sums[l] += x[i] - shift[l],
 * product_sums[l] += (x[i] - shift[l])^2. n: number of values of x. */
void clv_cpu_norm_add_moments(const float *x, size_t n, size_t b, const double *shift,
                              clv_norm_sums *sums);

/* Coefficients in the formulas of clv_cpu_norm_apply and clv_cpu_norm_backward, one of each for
 * each channel of a block. groupnorm.c uses them in another formula. */
typedef struct clv_norm_affine {
  float mean[NORM_BLOCK], scale[NORM_BLOCK], shift[NORM_BLOCK];
  float offset[NORM_BLOCK], slope[NORM_BLOCK]; /* read only by clv_cpu_norm_backward */
} clv_norm_affine;

/* Computes y = (x - mean) scale + shift, plus `other` unless it is NULL; with applies_relu, results
 * not above 0 become 0. y may be other. */
void clv_cpu_norm_apply(const float *x, const float *other, size_t n, size_t b,
                        const clv_norm_affine *v, bool applies_relu, float *y);

/* Largest number of values of a plane that are processed at a time if an array is bf16 or channels
 * last; a multiple of NORM_LANES. */
enum { NORM_PIECE_VALUES = 2048 };

/* A relu bit says whether the gradient of one output passes the relu. The function
 * ..._pack_relu_bits writes a bit for each of n outputs y: 1 if the output is above 0 or NaN. The
 * function ..._unpack_relu_bits writes a number above 0 for each bit 1, and 0 for each bit 0. n: a
 * multiple of 8, at most NORM_PIECE_VALUES. */
void clv_cpu_norm_pack_relu_bits(const float *y, size_t n, uint8_t *relu_bits);
void clv_cpu_norm_unpack_relu_bits(const uint8_t *relu_bits, size_t n, float *ret_relu_signs);

/* Which gradients pass the relu that follows the normalisation. NORM_NO_RELU: all, because no relu
 * follows. NORM_RELU_BY_Y: those whose output y is above 0. NORM_RELU_BY_X: those whose output,
 * recomputed from x, is above 0. */
typedef enum clv_norm_relu_gate { NORM_NO_RELU, NORM_RELU_BY_Y, NORM_RELU_BY_X } clv_norm_relu_gate;

/* Arrays of a plane: n values in blocks of b channels. y: output, read only with NORM_RELU_BY_Y. g:
 * with NORM_RELU_BY_Y, receives the gradients that pass; NULL: they are not stored; may be dy. */
typedef struct clv_norm_plane {
  const float *x, *y, *dy;
  float *g;
  size_t n, b;
  clv_norm_relu_gate gate;
} clv_norm_plane;

/* Coefficients of the channels for clv_cpu_norm_add_gradients, repeated over the NORM_PARTIAL_SUMS
 * * b lanes. */
typedef struct clv_norm_lane_coefficients {
  double mean[NORM_LANES];
  /* the mean in f32, scale and shift of clv_norm_affine, from which NORM_RELU_BY_X recomputes y */
  float mean_f32[NORM_LANES], scale[NORM_LANES], shift[NORM_LANES];
} clv_norm_lane_coefficients;

/* Adds the sums of the gradients: value_sums += g, product_sums += g (x - mean), where g is dy if
 * it passes the gate, else 0. */
void clv_cpu_norm_add_gradients(const clv_norm_plane *p, const clv_norm_lane_coefficients *v,
                                clv_norm_sums *sums);

/* Computes dx = (g - offset - (x - mean) slope) scale, where g is dy if it passes the gate, else 0.
 * dx may be dy. */
void clv_cpu_norm_backward(const clv_norm_plane *p, const clv_norm_affine *v, float *dx);

#endif
