/* SPDX-License-Identifier: Apache-2.0
 *
 * shares_int: what the files of shares have in common.
 */
#ifndef CLEAVE_TESTS_GPU_SHARES_INT_H
#define CLEAVE_TESTS_GPU_SHARES_INT_H

#include "kernels/cuda/gpu_int.h"
#include "kernels/cuda/pointwise_int.h"

enum { PARTS = 8 << 20 };

/* What kernels read and write: `n` values each, of f32, and what is small beside them. */
typedef struct bench {
  clv_backend *backend;
  clv_gpu *g;
  clv_cuda_event *begin, *end;
  size_t n, samples, channels, side, inner, rows, width;
  float *x, *y, *z, *w;
  char *mask;      /* n bytes */
  int64_t *which;  /* [rows + 1]: each row once, far from the one before; batches that were seen */
  int64_t *places; /* [rows + 3]: packed sequences of one row each, and behind them one of all */
  double *saved;   /* [2 * n / width] and more than two for each channel, or for each column */
  void *parts;
  float *small; /* of PARTS bytes, as parts */
} bench;

typedef clv_code act(bench *m, clv_err *err);

/* What is measured. bytes: for each value. A map is asked with x, z if `two`, and y. */
typedef struct kernel {
  const char *name;
  double bytes;
  act *f;
  cuda_map_fn *map;
  bool two, last;
} kernel;

/* Those of shares_more.c, on buffers that are as they were at the beginning. */
extern const kernel more_kernels[];
extern const size_t n_more_kernels;

#endif
