/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/permute_int.h"

static __global__ void permute(cuda_order o, const float *from, float *to, bool back) {
  GPU_FOR(i, o.n) {
    size_t at = 0, rest = i;
    for (int d = o.out.rank; d-- > 0; rest /= static_cast<size_t>(o.out.dim[d]))
      at += rest % static_cast<size_t>(o.out.dim[d]) * o.step[d];
    to[back ? at : i] = from[back ? i : at];
  }
}

clv_code clv_gpu_permute(clv_gpu *g, const cuda_order *o, const float *from, float *to, bool back,
                         clv_err *err) {
  return gpu_launch(g, gpu_blocks(o->n), GPU_BLOCK, err, permute, *o, from, to, back);
}

/* In double: at a late step a float has few digits left for the angle. */
static __global__ void rotate(cuda_rotary r, const float *x, float *y) {
  GPU_FOR(i, r.n) {
    size_t d = i % r.width, half = r.width / 2, t = i / (r.width * r.heads) % r.steps;
    double angle = static_cast<double>(t) *
                   pow(r.base, -static_cast<double>(d % half) / static_cast<double>(half));
    double other = static_cast<double>(d < half ? -x[i + half] : x[i - half]);
    y[i] = static_cast<float>(cos(angle) * static_cast<double>(x[i]) + r.sign * sin(angle) * other);
  }
}

clv_code clv_gpu_rotate(clv_gpu *g, const cuda_rotary *r, const float *x, float *y, clv_err *err) {
  return gpu_launch(g, gpu_blocks(r->n), GPU_BLOCK, err, rotate, *r, x, y);
}

static __global__ void multiply(const float *x, const float *z, float *y, size_t n) {
  GPU_FOR(i, n) y[i] = x[i] * z[i];
}

clv_code clv_gpu_mul(clv_gpu *g, const float *x, const float *z, float *y, size_t n,
                       clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, multiply, x, z, y, n);
}
