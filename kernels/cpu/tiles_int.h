/* SPDX-License-Identifier: Apache-2.0
 *
 * tiles_int: products of small matrices in one order of operations. Each output is one chain of
 * fused multiply-adds over k, so its bits depend only on its row and its column, not on the vector
 * width, the threads or the other extents.
 */
#ifndef CLEAVE_KERNELS_CPU_TILES_INT_H
#define CLEAVE_KERNELS_CPU_TILES_INT_H

#include "kernels/cpu/cpu_int.h"

/* A product C[m][n] = A B, or C += A B. A(i, l) is a[i * a_row_stride + l * a_column_stride]; B is
 * row-major [k][n], C row-major [m][n], with rows b_row_stride and c_row_stride values apart. */
typedef struct cpu_tile_product {
  size_t m, n, k;
  const float *a;
  size_t a_row_stride, a_column_stride;
  const float *b;
  size_t b_row_stride;
  float *c;
  size_t c_row_stride;
  bool accumulate;
} cpu_tile_product;

/* Computes the product that t describes. */
void clv_cpu_tiles_multiply(const cpu_tile_product *t);

#endif
