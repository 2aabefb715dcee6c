/* SPDX-License-Identifier: Apache-2.0
 *
 * One value of the output from one value of each input.
 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pointwise_int.h"

/* MAP(name, expression): a kernel and its launcher, of x and z. A backward one gets the kept value
 * as x and the gradient of the output as z. */
#define MAP(name, expression)                                                               \
  static __global__ void map_##name(const float *xs, const float *zs, float *ys, size_t n) {      \
    GPU_FOR(i, n) {                                                                         \
      [[maybe_unused]] float x = xs[i], z = zs ? zs[i] : 0;                                 \
      ys[i] = (expression);                                                                 \
    }                                                                                       \
  }                                                                                         \
  clv_code clv_gpu_##name(clv_gpu *g, const float *x, const float *z, float *y, size_t n,   \
                          clv_err *err) {                                                   \
    return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, map_##name, x, z, y, n);                  \
  }

static __device__ inline float cdf(float x) { return 0.5f * (1 + erff(x * 0.70710678f)); }
static __device__ inline float pdf(float x) { return expf(x * x * -0.5f) * 0.39894228f; }
static __device__ inline float squash(float x) { return 1 / (1 + expf(-x)); }

MAP(relu, x > 0 || x != x ? x : 0)
MAP(relu_back, x > 0 ? z : 0)
MAP(sigmoid, squash(x))
MAP(sigmoid_back, z *x * (1 - x))
MAP(tanh, tanhf(x))
MAP(tanh_back, z * (1 - x * x))
MAP(gelu, x *cdf(x))
MAP(gelu_back, z * (cdf(x) + x * pdf(x)))
