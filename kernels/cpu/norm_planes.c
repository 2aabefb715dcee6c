/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation over one plane. The loops are compiled separately for every number of
 * channels in a block and every set of arrays, so that partial sums stay in registers and the loops
 * have no branches. Multiplications and additions are rounded separately, as in ref and in separate
 * ops.
 */
#include "kernels/cpu/math_int.h"
#include "kernels/cpu/norm_int.h"

/* Calls call(b), for b = 16, 8 or 1, with b as a constant. */
#define FOR_BLOCK(b, call) \
  do {                     \
    if ((b) == 16)         \
      call(16);            \
    else if ((b) == 8)     \
      call(8);             \
    else                   \
      call(1);             \
  } while (0)

/* Returns 0 if gate <= 0, else value. A NaN gate passes the value, as in relu. The function uses
 * bit masks, because compilers make a branch of a selection if the code that follows might trap. */
CPU_INLINE float pass_if_above_zero(float gate, float value) {
  return float_from_bits(bits_of_float(value) & (gate <= 0 ? 0 : UINT32_MAX));
}

/* ---- sums of the channels of a plane --------------------------------------------------------- */

CPU_INLINE void load_sums(const clv_norm_sums *sums, size_t lanes, double *value_sums,
                          double *product_sums) {
  for (size_t l = 0; l < lanes; l++) {
    value_sums[l] = sums->value_sums[l];
    product_sums[l] = sums->product_sums[l];
  }
}

CPU_INLINE void store_sums(const double *value_sums, const double *product_sums, size_t lanes,
                           clv_norm_sums *sums) {
  for (size_t l = 0; l < lanes; l++) {
    sums->value_sums[l] = value_sums[l];
    sums->product_sums[l] = product_sums[l];
  }
}

CPU_INLINE void add_moments_of(const float *restrict x, size_t n, size_t lanes,
                               const double *restrict shift, clv_norm_sums *restrict sums) {
  double value_sums[NORM_LANES], product_sums[NORM_LANES];
  size_t i = 0;
  load_sums(sums, lanes, value_sums, product_sums);
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) {
      double d = x[i + l] - shift[l];
      value_sums[l] += d;
      product_sums[l] += d * d;
    }
  store_sums(value_sums, product_sums, lanes, sums);
  for (size_t l = 0; i + l < n; l++) {
    double d = x[i + l] - shift[l];
    sums->value_sums[l] += d;
    sums->product_sums[l] += d * d;
  }
}

CPU_INLINE void add_moments_body(const float *x, size_t n, size_t b, const double *shift,
                                 clv_norm_sums *sums) {
#define ADD_MOMENTS(b) add_moments_of(x, n, NORM_PARTIAL_SUMS *(b), shift, sums)
  FOR_BLOCK(b, ADD_MOMENTS);
}

CPU_INLINE float normalize_value(float x, float mean, float scale, float shift) {
  return (x - mean) * scale + shift;
}

/* Returns the gradient at index i of the plane, in lane l, or 0 if the relu does not let it pass.
 */
CPU_INLINE float gated_gradient(const clv_norm_plane *p, const clv_norm_lane_coefficients *v,
                                size_t i, size_t l, clv_norm_relu_gate gate) {
  float dy = p->dy[i];
  if (gate == NORM_NO_RELU) return dy;
  if (gate == NORM_RELU_BY_Y) return pass_if_above_zero(p->y[i], dy);
  return pass_if_above_zero(normalize_value(p->x[i], v->mean_f32[l], v->scale[l], v->shift[l]), dy);
}

CPU_INLINE void add_gradients_of(const clv_norm_plane *plane, size_t lanes, clv_norm_relu_gate gate,
                                 bool stores_gradients,
                                 const clv_norm_lane_coefficients *restrict v,
                                 clv_norm_sums *restrict sums) {
  double value_sums[NORM_LANES], product_sums[NORM_LANES];
  clv_norm_plane p = *plane;
  size_t i = 0;
  load_sums(sums, lanes, value_sums, product_sums);
  for (; i + lanes <= p.n; i += lanes) CPU_INDEPENDENT
  for (size_t l = 0; l < lanes; l++) {
    float gradient = gated_gradient(&p, v, i + l, l, gate);
    double g = gradient;
    if (stores_gradients) p.g[i + l] = gradient;
    value_sums[l] += g;
    product_sums[l] += g * (p.x[i + l] - v->mean[l]);
  }
  store_sums(value_sums, product_sums, lanes, sums);
  for (size_t l = 0; i + l < p.n; l++) {
    float gradient = gated_gradient(&p, v, i + l, l, gate);
    double g = gradient;
    if (stores_gradients) p.g[i + l] = gradient;
    sums->value_sums[l] += g;
    sums->product_sums[l] += g * (p.x[i + l] - v->mean[l]);
  }
}

CPU_INLINE void add_gradients_body(const clv_norm_plane *p, const clv_norm_lane_coefficients *v,
                                   clv_norm_sums *sums) {
#define ADD_WITHOUT_RELU(b) \
  add_gradients_of(p, NORM_PARTIAL_SUMS *(b), NORM_NO_RELU, false, v, sums)
#define ADD_BY_Y(b) add_gradients_of(p, NORM_PARTIAL_SUMS *(b), NORM_RELU_BY_Y, false, v, sums)
#define ADD_AND_STORE_BY_Y(b) \
  add_gradients_of(p, NORM_PARTIAL_SUMS *(b), NORM_RELU_BY_Y, true, v, sums)
#define ADD_BY_X(b) add_gradients_of(p, NORM_PARTIAL_SUMS *(b), NORM_RELU_BY_X, false, v, sums)
  if (p->gate == NORM_NO_RELU)
    FOR_BLOCK(p->b, ADD_WITHOUT_RELU);
  else if (p->gate == NORM_RELU_BY_X)
    FOR_BLOCK(p->b, ADD_BY_X);
  else if (p->g)
    FOR_BLOCK(p->b, ADD_AND_STORE_BY_Y);
  else
    FOR_BLOCK(p->b, ADD_BY_Y);
}

CPU_CLONES(add_moments,
           (const float *x, size_t n, size_t b, const double *shift, clv_norm_sums *sums),
           (x, n, b, shift, sums))
CPU_CLONES(add_gradients,
           (const clv_norm_plane *p, const clv_norm_lane_coefficients *v, clv_norm_sums *sums),
           (p, v, sums))

void clv_cpu_norm_add_moments(const float *x, size_t n, size_t b, const double *shift,
                              clv_norm_sums *sums) {
  add_moments(x, n, b, shift, sums);
}

void clv_cpu_norm_add_gradients(const clv_norm_plane *p, const clv_norm_lane_coefficients *v,
                                clv_norm_sums *sums) {
  add_gradients(p, v, sums);
}

/* ---- values of a plane ----------------------------------------------------------------------- */

/* Computes clv_cpu_norm_apply for one block size. Uses a local copy of the coefficients, so
 * that the compiler knows that no store changes them. */
CPU_INLINE void apply_affine(const float *x, const float *other, size_t n, size_t b,
                             const clv_norm_affine *coefficients, float *y, bool adds_other,
                             bool applies_relu) {
  clv_norm_affine v = *coefficients;
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i += b) CPU_INDEPENDENT
  for (size_t l = 0; l < b; l++) {
    float value = normalize_value(x[i + l], v.mean[l], v.scale[l], v.shift[l]);
    if (adds_other) value = value + other[i + l];
    y[i + l] = applies_relu ? pass_if_above_zero(value, value) : value;
  }
}

CPU_INLINE void apply_body(const float *x, const float *other, size_t n, size_t b,
                           const clv_norm_affine *v, bool applies_relu, float *y) {
#define APPLY(b) apply_affine(x, other, n, b, v, y, false, false)
#define APPLY_RELU(b) apply_affine(x, other, n, b, v, y, false, true)
#define APPLY_ADD_RELU(b) apply_affine(x, other, n, b, v, y, true, true)
  if (!applies_relu)
    FOR_BLOCK(b, APPLY);
  else if (!other)
    FOR_BLOCK(b, APPLY_RELU);
  else
    FOR_BLOCK(b, APPLY_ADD_RELU);
}

CPU_INLINE void compute_plane_dx(const clv_norm_plane *plane, size_t b, clv_norm_relu_gate gate,
                                 const clv_norm_affine *affine, float *dx) {
  clv_norm_affine v = *affine;
  clv_norm_plane p = *plane;
  CPU_INDEPENDENT
  for (size_t i = 0; i < p.n; i += b) CPU_INDEPENDENT
  for (size_t l = 0; l < b; l++) {
    float x = p.x[i + l], g = p.dy[i + l];
    if (gate == NORM_RELU_BY_Y) g = pass_if_above_zero(p.y[i + l], g);
    if (gate == NORM_RELU_BY_X)
      g = pass_if_above_zero(normalize_value(x, v.mean[l], v.scale[l], v.shift[l]), g);
    dx[i + l] = (g - v.offset[l] - (x - v.mean[l]) * v.slope[l]) * v.scale[l];
  }
}

CPU_INLINE void compute_dx_body(const clv_norm_plane *p, const clv_norm_affine *v, float *dx) {
#define DX_WITHOUT_RELU(b) compute_plane_dx(p, b, NORM_NO_RELU, v, dx)
#define DX_BY_X(b) compute_plane_dx(p, b, NORM_RELU_BY_X, v, dx)
#define DX_BY_Y(b) compute_plane_dx(p, b, NORM_RELU_BY_Y, v, dx)
  if (p->gate == NORM_NO_RELU)
    FOR_BLOCK(p->b, DX_WITHOUT_RELU);
  else if (p->gate == NORM_RELU_BY_X)
    FOR_BLOCK(p->b, DX_BY_X);
  else
    FOR_BLOCK(p->b, DX_BY_Y);
}

CPU_CLONES(apply,
           (const float *x, const float *other, size_t n, size_t b, const clv_norm_affine *v,
            bool applies_relu, float *y),
           (x, other, n, b, v, applies_relu, y))
CPU_CLONES(compute_dx, (const clv_norm_plane *p, const clv_norm_affine *v, float *dx), (p, v, dx))

void clv_cpu_norm_apply(const float *x, const float *other, size_t n, size_t b,
                        const clv_norm_affine *v, bool applies_relu, float *y) {
  apply(x, other, n, b, v, applies_relu, y);
}

void clv_cpu_norm_backward(const clv_norm_plane *p, const clv_norm_affine *v, float *dx) {
  compute_dx(p, v, dx);
}

/* ---- bits that say which gradients pass the relu --------------------------------------------- */

/* Constants to convert eight bytes of 0 or 1 to eight bits and back. The product of the bytes,
 * first byte lowest, and gather_bits has them as the bits of its highest byte. The product of a
 * byte and repeat_byte is eight copies of the byte; select_bit then selects bit i of byte i. */
static const uint64_t gather_bits = 0x0102040810204080, repeat_byte = 0x0101010101010101,
                      select_bit = 0x8040201008040201;

CPU_INLINE void pack_relu_bits_body(const float *restrict y, size_t n,
                                    uint8_t *restrict relu_bits) {
  uint64_t byte_groups[NORM_PIECE_VALUES / 8];
  uint8_t *bytes = (uint8_t *)byte_groups;
  for (size_t i = 0; i < n; i++) bytes[i] = !(y[i] <= 0);
  for (size_t i = 0; i < n / 8; i++) relu_bits[i] = (uint8_t)(byte_groups[i] * gather_bits >> 56);
}

CPU_INLINE void unpack_relu_bits_body(const uint8_t *restrict relu_bits, size_t n,
                                      float *restrict relu_signs) {
  uint64_t byte_groups[NORM_PIECE_VALUES / 8];
  const uint8_t *bytes = (const uint8_t *)byte_groups;
  for (size_t i = 0; i < n / 8; i++) byte_groups[i] = relu_bits[i] * repeat_byte & select_bit;
  for (size_t i = 0; i < n; i++) relu_signs[i] = bytes[i];
}

CPU_CLONES(pack_relu_bits, (const float *restrict y, size_t n, uint8_t *restrict relu_bits),
           (y, n, relu_bits))
CPU_CLONES(unpack_relu_bits,
           (const uint8_t *restrict relu_bits, size_t n, float *restrict relu_signs),
           (relu_bits, n, relu_signs))

void clv_cpu_norm_pack_relu_bits(const float *y, size_t n, uint8_t *relu_bits) {
  pack_relu_bits(y, n, relu_bits);
}

void clv_cpu_norm_unpack_relu_bits(const uint8_t *relu_bits, size_t n, float *ret_relu_signs) {
  unpack_relu_bits(relu_bits, n, ret_relu_signs);
}
