/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the gradients of the small network of api_int.h from the formula, without the library.
 */
#ifndef CLEAVE_API_BY_HAND_H
#define CLEAVE_API_BY_HAND_H

#include "api_int.h"

/* Gradients of the network x [4, 3] -> linear to 5, tanh -> linear to 2, computed without the
 * library: of the first weight (dw) and of x (dx). */
typedef struct hand_gradients {
  float dw[15], dx[12];
} hand_gradients;

static inline hand_gradients compute_gradients_by_hand(const float *in, const float *dy,
                                                       const float *w, const float *b,
                                                       const float *v) {
  hand_gradients f = {0};
  for (int r = 0; r < 4; r++)
    for (int j = 0; j < 5; j++) {
      float z = b[j], dh = 0;
      for (int i = 0; i < 3; i++) z += w[3 * j + i] * in[3 * r + i];
      for (int k = 0; k < 2; k++) dh += dy[2 * r + k] * v[5 * k + j];
      float dz = dh * (1 - tanhf(z) * tanhf(z));
      for (int i = 0; i < 3; i++) {
        f.dw[3 * j + i] += dz * in[3 * r + i];
        f.dx[3 * r + i] += dz * w[3 * j + i];
      }
    }
  return f;
}

/* Returns the mean squared error of the output, and writes its gradient to dy. */
static inline float compute_mean_square(const float *out, float *dy) {
  float t[8], sum = 0;
  fill_with_random(t, 8, 4);
  for (int i = 0; i < 8; i++) {
    float d = out[i] - t[i];
    sum += d * d / 8;
    dy[i] = 2 * d / 8;
  }
  return sum;
}

#endif
