/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of values between f16, bf16 and f32.
 */
#include <string.h>

#include "common/model/weights/weights_int.h"

static float float_from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* Converts an IEEE 754 binary16 number (1 sign bit, 5 exponent bits, 10 fraction bits) to f32,
 * without rounding. */
static float float_from_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float subnormal = (float)fraction * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

bool clv_weights_can_convert(clv_dtype from, clv_dtype to) {
  return from == to || (to == CLV_F32 && (from == CLV_F16 || from == CLV_BF16)) ||
         (to == CLV_BF16 && (from == CLV_F16 || from == CLV_F32));
}

void clv_weights_to_f32(clv_dtype from, const void *src, size_t n, float *dst) {
  const uint16_t *x = src;
  for (size_t i = 0; i < n; i++)
    dst[i] = from == CLV_F16 ? float_from_f16(x[i]) : clv_bf16_value(x[i]);
}

void clv_weights_to_bf16(clv_dtype from, const void *src, size_t n, uint16_t *dst) {
  for (size_t i = 0; i < n; i++)
    dst[i] = clv_bf16_of(from == CLV_F16 ? float_from_f16(((const uint16_t *)src)[i])
                                         : ((const float *)src)[i]);
}
