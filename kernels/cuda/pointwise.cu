/* SPDX-License-Identifier: Apache-2.0
 *
 * One value of the output from one value of each input.
 */
#include "kernels/cuda/pointwise_int.cuh"

#define MAP(name)                                                                          \
  static __global__ void map_##name(const float *xs, const float *zs, float *ys, size_t n, \
                                    float by) {                                            \
    GPU_FOR(i, n) ys[i] = of_##name(xs[i], zs ? zs[i] : 0, by);                            \
  }                                                                                        \
  clv_code clv_gpu_##name(clv_gpu *g, const float *x, const float *z, float *y, size_t n,  \
                          float by, clv_err *err) {                                        \
    return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, map_##name, x, z, y, n, by);       \
  }

MAP(relu)
MAP(relu_back)
MAP(sigmoid)
MAP(sigmoid_back)
MAP(tanh)
MAP(tanh_back)
MAP(gelu)
MAP(gelu_back)
MAP(silu)
MAP(silu_back)
MAP(scale)
MAP(add)

/* ---- dropout --------------------------------------------------------------------------------- */

/* Four values of one block of the generator. */
static __global__ void draw(const float *x, float *y, uint8_t *mask, size_t n, clv_rng_stream s,
                            uint32_t limit, float factor) {
  GPU_FOR(b, (n + 3) / 4) {
    philox4x32_ctr_t word = words_of(s, b);
    for (size_t i = 4 * b; i < 4 * b + 4 && i < n; i++) {
      bool keep = (word.v[i % 4] >> 8) >= limit;
      y[i] = x[i] * (keep ? factor : 0);
      mask[i] = keep;
    }
  }
}

clv_code clv_gpu_draw(clv_gpu *g, const float *x, float *y, uint8_t *mask, size_t n,
                      const clv_rng_stream *stream, uint32_t limit, float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks((n + 3) / 4), GPU_BLOCK, err, draw, x, y, mask, n, *stream, limit,
                    factor);
}

static __global__ void mask_back(const float *dy, const uint8_t *mask, float *dx, size_t n,
                                 float factor) {
  GPU_FOR(i, n) dx[i] = dy[i] * (mask[i] ? factor : 0);
}

clv_code clv_gpu_mask(clv_gpu *g, const float *dy, const uint8_t *mask, float *dx, size_t n,
                      float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, mask_back, dy, mask, dx, n, factor);
}
