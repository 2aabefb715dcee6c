/* SPDX-License-Identifier: Apache-2.0
 *
 * bias_int: the gradient of a bias, for linear and convolutions.
 */
#ifndef CLEAVE_OPS_BIAS_INT_H
#define CLEAVE_OPS_BIAS_INT_H

#include "kernels/ops/op_int.h"

/* Computes db[k] = the sum of dy[n][k][i] over n and i, or adds the sum if `accumulate`. */
static inline void compute_bias_gradient(const REAL *dy, int64_t batch, int64_t channels,
                                         int64_t inner, REAL *db, bool accumulate) {
  for (int64_t c = 0; c < channels; c++) {
    double sum = 0;
    for (int64_t n = 0; n < batch; n++)
      for (int64_t i = 0; i < inner; i++) sum += dy[(n * channels + c) * inner + i];
    store_or_add(&db[c], sum, accumulate);
  }
}

#endif
