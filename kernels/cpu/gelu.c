/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

/* e^-x^2 / x times a polynomial of 1/x^2: Cephes' erfcf, for x >= 1. */
CPU_INLINE float erfc_of(float x) {
  float q = 1 / x, y = q * q;
  float near = 2.326819970068386e-2f, far = -1.047766399936249e+1f;
  near = near * y - 1.387039388740657e-1f;
  near = near * y + 3.687424674597105e-1f;
  near = near * y - 5.824733027278666e-1f;
  near = near * y + 6.210004621745983e-1f;
  near = near * y - 4.944515323274145e-1f;
  near = near * y + 3.404879937665872e-1f;
  near = near * y - 2.741127028184656e-1f;
  near = near * y + 5.638259427386472e-1f;
  far = far * y + 1.297719955372516e+1f;
  far = far * y - 7.495518717768503e+0f;
  far = far * y + 2.921019019210786e+0f;
  far = far * y - 1.015265279202700e+0f;
  far = far * y + 4.218463358204948e-1f;
  far = far * y - 2.820767439740514e-1f;
  far = far * y + 5.641895067754075e-1f;
  return exp_of(-x * x) * q * (x < 2 ? near : far);
}

CPU_INLINE float erf_of(float x) {
  float magnitude = from_bits(to_bits(x) & 0x7fffffffu), z = x * x;
  float far = 1 - erfc_of(magnitude < 1 ? 1 : magnitude);
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710e+0f;
  return magnitude < 1 ? p * x : from_bits(to_bits(far) | (to_bits(x) & 0x80000000u));
}

CPU_INLINE float gelu_cdf(float x) { return 0.5f * (1 + erf_of(x * 0.70710678f)); }
CPU_INLINE float gelu_pdf(float x) { return exp_of(x * x * -0.5f) * 0.39894228f; }

MAP(gelu, x *gelu_cdf(x))
MAP(gelu_back, zs[i] * (gelu_cdf(x) + x * gelu_pdf(x)))

static clv_code gelu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, gelu, gelu_back, 16, ret, err);
}

CLV_CPU_OP(gelu, gelu_prepare)
