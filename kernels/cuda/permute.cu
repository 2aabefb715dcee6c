/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/permute_int.h"

static __global__ void permute(cuda_permutation o, const float *from, float *to, bool is_backward) {
  GPU_FOR(i, o.n) {
    size_t index = 0, remaining = i;
    for (int d = o.out.rank; d-- > 0; remaining /= static_cast<size_t>(o.out.dim[d]))
      index += remaining % static_cast<size_t>(o.out.dim[d]) * o.step[d];
    to[is_backward ? index : i] = from[is_backward ? i : index];
  }
}

clv_code clv_gpu_permute(clv_gpu *g, const cuda_permutation *o, const float *from, float *to,
                         bool is_backward, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(o->n), GPU_BLOCK, err, permute, *o, from, to, is_backward);
}

/* Returns value i of x, at step t, rotated. The angle is double, because a float has too few digits
 * for the angle of a late step. */
static __device__ inline float rotate_value(const cuda_rotary &r, const float *x, size_t i,
                                            size_t t) {
  size_t d = i % r.width, half = r.width / 2;
  double angle = static_cast<double>(t) * clv_rotary_angle(&r.angles, static_cast<double>(d % half),
                                                           static_cast<double>(half));
  double partner = static_cast<double>(d < half ? -x[i + half] : x[i - half]);
  return static_cast<float>(cos(angle) * static_cast<double>(x[i]) + r.sign * sin(angle) * partner);
}

static __global__ void rotate_values(cuda_rotary r, const float *x, float *y) {
  GPU_FOR(i, r.n) y[i] = rotate_value(r, x, i, i / (r.width * r.heads) % r.steps);
}

clv_code clv_gpu_rotate(clv_gpu *g, const cuda_rotary *r, const float *x, float *y, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(r->n), GPU_BLOCK, err, rotate_values, *r, x, y);
}

struct rotate_packed {
  cuda_rotary r;
  const float *x;
  float *y;
  __device__ void operator()(size_t index, size_t i) const {
    y[index] = rotate_value(r, x, index, i / (r.width * r.heads));
  }
  __device__ void fill_unused(size_t index) const { y[index] = 0; }
};

clv_code clv_gpu_rotate_packed(clv_gpu *g, const cuda_packed *p, const cuda_rotary *r,
                               const float *x, float *y, clv_err *err) {
  return gpu_visit_packed(g, p, r->width * r->heads, rotate_packed{*r, x, y}, err);
}
