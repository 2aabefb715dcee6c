/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: the weight gradient of convolutions over few channels, which oneDNN 2.6 lacks for
 * row-major inputs.
 */
#ifndef CLEAVE_KERNELS_CPU_CONV_INT_H
#define CLEAVE_KERNELS_CPU_CONV_INT_H

#include "kernels/cpu/cpu_int.h"

/* dw[k][c][u][v] (+)= sum over n, i, j of dy[n][k][i][j] x[n][c][i*stride - pad + u][...], and
 * db[k] (+)= sum of dy (db may be NULL). x is row-major, dy has channel block `block`. Sums run
 * over one image in f32 and then over the images, so neither depends on the threads. */
typedef struct cpu_small_conv {
  cpu_window s;
  int block, threads;
  const float *x, *dy;
  float *dw, *db;
  float *scratch; /* clv_cpu_small_conv_scratch bytes */
  bool accumulate;
} cpu_small_conv;

size_t clv_cpu_small_conv_scratch(const cpu_window *s, int block, int threads);
void clv_cpu_small_conv_weight(const cpu_small_conv *job);

#endif
