/* SPDX-License-Identifier: Apache-2.0
 *
 * math_int: functions of one number, without branches, so that loops that call them vectorise.
 */
#ifndef CLEAVE_KERNELS_CPU_MATH_INT_H
#define CLEAVE_KERNELS_CPU_MATH_INT_H

#include <string.h>

#include "kernels/cpu/cpu_int.h"

CPU_INLINE float float_from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

CPU_INLINE uint32_t bits_of_float(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* Returns the bits of x rounded to bf16 (to nearest even; NaN stays NaN) in the upper half; the
 * lower half has no meaning. */
CPU_INLINE uint32_t round_bits_to_bf16(float x) {
  uint32_t bits = bits_of_float(x), rounded_bits = bits + 0x7fff + (bits >> 16 & 1);
  return (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded_bits;
}

CPU_INLINE uint16_t round_to_bf16(float x) { return (uint16_t)(round_bits_to_bf16(x) >> 16); }

/* Splits x = n ln 2 + r. Returns e^r - 1, by the degree-5 minimax polynomial of Moshier's Cephes
 * library (expf), and writes 2^n to *ret_power_of_2. x is clamped to -87..88. NaN stays NaN. */
CPU_INLINE float split_exp(float x, float *ret_power_of_2) {
  /* 1.5 * 2^23: adding it to a number leaves the nearest integer in the low bits of the sum */
  const float rounding_shift = 12582912;
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  float shifted = x * 1.44269504f + rounding_shift, n = shifted - rounding_shift;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  *ret_power_of_2 = float_from_bits((bits_of_float(shifted) << 23) + 0x3f800000u);
  return p * r * r + r;
}

/* Returns e^x within 2 units in the last place. NaN stays NaN. The result is clamped, as x is in
 * split_exp. */
CPU_INLINE float exp_of(float x) {
  float power_of_2, exp_r_less_one = split_exp(x, &power_of_2);
  return (exp_r_less_one + 1) * power_of_2;
}

/* Returns e^x - 1 within 2 units in the last place: with s = 2^n it is s (e^r - 1) + (s - 1). NaN
 * stays NaN. */
CPU_INLINE float expm1_of(float x) {
  float power_of_2, exp_r_less_one = split_exp(x, &power_of_2);
  return power_of_2 * exp_r_less_one + (power_of_2 - 1);
}

/* Returns e^x in double within 2 units in the last place, computed like exp_of with Cephes' exp, a
 * quotient of polynomials. Rounded to f32, the result equals the exact value rounded to f32, unless
 * the exact value is almost half way between two floats. x is clamped to -708..708. */
CPU_INLINE double double_exp_of(double x) {
  /* 1.5 * 2^52, which rounds to an integer in double, as 1.5 * 2^23 does in split_exp */
  const double rounding_shift = 6755399441055744;
  uint64_t bits;
  x = x > 708 ? 708 : x;
  x = x < -708 ? -708 : x;
  double shifted = x * 1.4426950408889634 + rounding_shift, n = shifted - rounding_shift;
  double r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6, z = r * r;
  double p = 1.26177193074810590878e-4 * z + 3.02994407707441961300e-2;
  p = r * (p * z + 9.99999999999999999910e-1);
  double q = 3.00198505138664455042e-6 * z + 2.52448340349684104192e-3;
  q = (q * z + 2.27265548208155028766e-1) * z + 2;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + 0x3ff0000000000000u;
  memcpy(&shifted, &bits, sizeof bits);
  return (1 + 2 * (p / (q - p))) * shifted;
}

/* Returns log x in double, for positive normal x, within 1e-13: x = 2^n m with m in
 * sqrt(1/2)..sqrt(2), and log m = 2 atanh(s) with s = (m - 1) / (m + 1), as a series to s^19. NaN
 * stays NaN. */
CPU_INLINE double double_log_of(double x) {
  uint64_t bits, mantissa;
  double m, n, s, z, t;
  memcpy(&bits, &x, sizeof bits);
  /* n is the exponent of x / sqrt(1/2), rounded down, and m the rest, x / 2^n */
  uint64_t shifted_bits = bits - 0x3fe6a09e667f3bcdu;
  mantissa = bits - (shifted_bits & 0xfff0000000000000u);
  memcpy(&m, &mantissa, sizeof m);
  /* n as a double: the bits of 2^52 + 2^51 + n are made with integers, then 2^52 + 2^51 is
   * subtracted */
  uint64_t exponent_bits = 0x4338000000000000u + (shifted_bits >> 52) - (shifted_bits >> 63 << 12);
  memcpy(&n, &exponent_bits, sizeof n);
  n -= 6755399441055744.0;
  s = (m - 1) / (m + 1);
  z = s * s;
  t = 1 / 19.0;
  t = t * z + 1 / 17.0;
  t = t * z + 1 / 15.0;
  t = t * z + 1 / 13.0;
  t = t * z + 1 / 11.0;
  t = t * z + 1 / 9.0;
  t = t * z + 1 / 7.0;
  t = t * z + 1 / 5.0;
  t = t * z + 1 / 3.0;
  return n * 0.69314718055994530942 + 2 * (s + s * z * t);
}

CPU_INLINE float sigmoid_of(float x) { return 1 / (1 + exp_of(-x)); }

/* Returns tanh x: near 0 the odd polynomial of Cephes' tanhf, elsewhere 1 - 2 / (e^2|x| + 1). */
CPU_INLINE float tanh_of(float x) {
  float magnitude = float_from_bits(bits_of_float(x) & 0x7fffffffu), z = x * x;
  float large_result = 1 - 2 / (exp_of(2 * magnitude) + 1);
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  float small_result = p * z * x + x;
  return magnitude < 0.625f
             ? small_result
             : float_from_bits(bits_of_float(large_result) | (bits_of_float(x) & 0x80000000u));
}

#endif
