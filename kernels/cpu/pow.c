/* SPDX-License-Identifier: Apache-2.0
 *
 * pow: y = x^exponent. Small integer exponents and square roots have their own loops. Any other
 * power is e^(exponent log |x|) in double. For a negative x the power is negated if the exponent is
 * an odd integer, and NaN if the exponent is no integer.
 */
#include <math.h>

#include "kernels/cpu/pointwise_int.h"

/* Returns |x|^p. double_log_of is wrong for 0, infinity and NaN, so their results are selected
 * separately. */
CPU_INLINE float power_of_magnitude(float x, float p) {
  float abs_x = float_from_bits(bits_of_float(x) & 0x7fffffffu);
  double r = double_exp_of((double)p * double_log_of((double)abs_x));
  float y = (float)r;
  y = abs_x == 0 ? (p > 0 ? 0 : INFINITY) : y;
  y = abs_x > 3.4028235e38f ? (p > 0 ? INFINITY : 0) : y;
  return p == 0 ? 1 : abs_x != abs_x ? x : y;
}

/* Returns x^p for p in -65..64. */
CPU_INLINE float signed_power_of(float x, float p) {
  float y = power_of_magnitude(x, p), half_p = p * 0.5f;
  float truncated_p = (float)(int)p, truncated_half = (float)(int)half_p;
  float sign = truncated_half == half_p ? 1 : -1;
  return x < 0 ? (truncated_p == p ? sign * y : NAN) : y;
}

MAP(one, 1)
MAP(one_back, 0)
MAP(identity, x)
MAP(identity_back, zs[i])
MAP(square, x *x)
MAP(square_back, zs[i] * 2 * x)
MAP(cube, x *x *x)
MAP(cube_back, zs[i] * 3 * x * x)
MAP(root, __builtin_sqrtf(x))
MAP(root_back, zs[i] / (2 * __builtin_sqrtf(x)))
MAP(reciprocal_root, 1 / __builtin_sqrtf(x))
MAP(reciprocal_root_back, zs[i] * -0.5f / (x * __builtin_sqrtf(x)))
MAP(reciprocal, 1 / x)
MAP(reciprocal_back, -zs[i] / (x * x))
MAP(reciprocal_square, 1 / (x * x))
MAP(reciprocal_square_back, zs[i] * -2 / (x * x * x))
MAP(power, signed_power_of(x, p))
MAP(power_back, zs[i] * p * signed_power_of(x, p - 1))

static const struct {
  double exponent;
  cpu_map_fn *map, *back;
} special_exponents[] = {{0, one, one_back},
                         {1, identity, identity_back},
                         {2, square, square_back},
                         {3, cube, cube_back},
                         {0.5, root, root_back},
                         {-0.5, reciprocal_root, reciprocal_root_back},
                         {-1, reciprocal, reciprocal_back},
                         {-2, reciprocal_square, reciprocal_square_back}};

static clv_code pow_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(special_exponents); i++)
    if (special_exponents[i].exponent == d->attrs.exponent)
      return clv_cpu_pointwise(d, special_exponents[i].map, special_exponents[i].back, 2, ret, err);
  return clv_cpu_pointwise(d, power, power_back, 30, ret, err);
}

CLV_CPU_OP(pow, pow_prepare)
