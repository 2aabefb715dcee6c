/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers and kernel tables that shares.c and shares_more.c have in common.
 */
#ifndef CLEAVE_TESTS_GPU_SHARES_INT_H
#define CLEAVE_TESTS_GPU_SHARES_INT_H

#include "kernels/cuda/gpu_int.h"
#include "kernels/cuda/pointwise_int.h"

enum { PARTIALS_BYTES = 8 << 20 };

/* Buffers of the measured kernels: x, y, z and w have `n` f32 values each; the others are
 * smaller. */
typedef struct bench {
  clv_backend *backend;
  clv_gpu *g;
  clv_cuda_event *begin_event, *end_event;
  size_t n, n_samples, n_channels, image_side, n_positions, n_rows, row_width;
  float *x, *y, *z, *w;
  char *dropout_mask; /* n bytes of a dropout mask */
  /* [n_rows + 1] a permutation of row numbers, in an order that makes caches useless; the last
   * element is batchnorm's counter of batches */
  int64_t *row_permutation;
  /* [n_rows + 3] offsets of packed sequences: one row each, then one sequence of all rows */
  int64_t *packed_offsets;
  /* statistics such as mean and variance: at least two numbers for each channel or column */
  double *statistics;
  void *partial_sums;
  float *small_buffer; /* PARTIALS_BYTES bytes of scratch for partial results */
} bench;

typedef clv_code bench_kernel(bench *m, clv_err *err);

/* A kernel to measure. bytes_per_value: bytes that it must read and write for each value. A
 * map_kernel is called with x, with z if has_second_input is set, and with the output y. */
typedef struct kernel {
  const char *name;
  double bytes_per_value;
  bench_kernel *f;
  cuda_map_fn *map_kernel;
  bool has_second_input, is_channels_last;
} kernel;

/* Kernels of shares_more.c. Before they run, the buffers get their initial values again. */
extern const kernel more_kernels[];
extern const size_t n_more_kernels;

#endif
