/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation over one plane. Bodies are compiled separately for every number of channels
 * in a block and every set of arrays, so that partial sums stay in registers and loops have no
 * branches. Multiplications and additions are rounded separately, as in ref and in separate ops.
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

/* Returns 0 if gate <= 0, else value. A NaN gate passes the value, as in relu. Computed with bit
 * masks, because compilers make a branch if the code that follows might trap. */
CPU_INLINE float above_zero(float gate, float value) {
  return from_bits(to_bits(value) & (gate <= 0 ? 0 : UINT32_MAX));
}

/* ---- sums of the channels of a plane --------------------------------------------------------- */

CPU_INLINE void load_sums(const clv_norm_sums *sums, size_t lanes, double *first, double *second) {
  for (size_t l = 0; l < lanes; l++) {
    first[l] = sums->first[l];
    second[l] = sums->second[l];
  }
}

CPU_INLINE void store_sums(const double *first, const double *second, size_t lanes,
                           clv_norm_sums *sums) {
  for (size_t l = 0; l < lanes; l++) {
    sums->first[l] = first[l];
    sums->second[l] = second[l];
  }
}

CPU_INLINE void moments_of(const float *restrict x, size_t n, size_t lanes,
                           const double *restrict shift, clv_norm_sums *restrict sums) {
  double first[NORM_LANES], second[NORM_LANES];
  size_t i = 0;
  load_sums(sums, lanes, first, second);
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) {
      double d = x[i + l] - shift[l];
      first[l] += d;
      second[l] += d * d;
    }
  store_sums(first, second, lanes, sums);
  for (size_t l = 0; i + l < n; l++) {
    double d = x[i + l] - shift[l];
    sums->first[l] += d;
    sums->second[l] += d * d;
  }
}

CPU_INLINE void moments_body(const float *x, size_t n, size_t b, const double *shift,
                             clv_norm_sums *sums) {
#define MOMENTS(b) moments_of(x, n, NORM_SPREAD *(b), shift, sums)
  FOR_BLOCK(b, MOMENTS);
}

CPU_INLINE float value_of(float x, float mean, float scale, float shift) {
  return (x - mean) * scale + shift;
}

/* Returns the gradient at index i of the plane, in lane l, or 0 if it does not pass the gate. */
CPU_INLINE float gated_gradient(const clv_norm_plane *p, const clv_norm_lanes *v, size_t i,
                                size_t l, clv_norm_gate gate) {
  float dy = p->dy[i];
  if (gate == NORM_OPEN) return dy;
  if (gate == NORM_BY_Y) return above_zero(p->y[i], dy);
  return above_zero(value_of(p->x[i], v->center[l], v->scale[l], v->shift[l]), dy);
}

CPU_INLINE void gradients_of(const clv_norm_plane *plane, size_t lanes, clv_norm_gate gate,
                             bool stores_gradients, const clv_norm_lanes *restrict v,
                             clv_norm_sums *restrict sums) {
  double first[NORM_LANES], second[NORM_LANES];
  clv_norm_plane p = *plane;
  size_t i = 0;
  load_sums(sums, lanes, first, second);
  for (; i + lanes <= p.n; i += lanes) CPU_INDEPENDENT
  for (size_t l = 0; l < lanes; l++) {
    float gradient = gated_gradient(&p, v, i + l, l, gate);
    double g = gradient;
    if (stores_gradients) p.g[i + l] = gradient;
    first[l] += g;
    second[l] += g * (p.x[i + l] - v->mean[l]);
  }
  store_sums(first, second, lanes, sums);
  for (size_t l = 0; i + l < p.n; l++) {
    float gradient = gated_gradient(&p, v, i + l, l, gate);
    double g = gradient;
    if (stores_gradients) p.g[i + l] = gradient;
    sums->first[l] += g;
    sums->second[l] += g * (p.x[i + l] - v->mean[l]);
  }
}

CPU_INLINE void gradients_body(const clv_norm_plane *p, const clv_norm_lanes *v,
                               clv_norm_sums *sums) {
#define GRADIENTS_OPEN(b) gradients_of(p, NORM_SPREAD *(b), NORM_OPEN, false, v, sums)
#define GRADIENTS_BY_Y(b) gradients_of(p, NORM_SPREAD *(b), NORM_BY_Y, false, v, sums)
#define GRADIENTS_KEPT(b) gradients_of(p, NORM_SPREAD *(b), NORM_BY_Y, true, v, sums)
#define GRADIENTS_BY_X(b) gradients_of(p, NORM_SPREAD *(b), NORM_BY_X, false, v, sums)
  if (p->gate == NORM_OPEN)
    FOR_BLOCK(p->b, GRADIENTS_OPEN);
  else if (p->gate == NORM_BY_X)
    FOR_BLOCK(p->b, GRADIENTS_BY_X);
  else if (p->g)
    FOR_BLOCK(p->b, GRADIENTS_KEPT);
  else
    FOR_BLOCK(p->b, GRADIENTS_BY_Y);
}

CPU_CLONES(moments, (const float *x, size_t n, size_t b, const double *shift, clv_norm_sums *sums),
           (x, n, b, shift, sums))
CPU_CLONES(gradients, (const clv_norm_plane *p, const clv_norm_lanes *v, clv_norm_sums *sums),
           (p, v, sums))

void clv_cpu_norm_add_moments(const float *x, size_t n, size_t b, const double *shift,
                              clv_norm_sums *sums) {
  moments(x, n, b, shift, sums);
}

void clv_cpu_norm_add_gradients(const clv_norm_plane *p, const clv_norm_lanes *v,
                                clv_norm_sums *sums) {
  gradients(p, v, sums);
}

/* ---- values of a plane ----------------------------------------------------------------------- */

/* Computes clv_cpu_norm_apply for one block size. Uses a local copy of the coefficients, so
 * that the compiler knows that no store changes them. */
CPU_INLINE void apply_affine(const float *x, const float *other, size_t n, size_t b,
                             const clv_norm_affine *coefficients, float *y, bool adds, bool relu) {
  clv_norm_affine v = *coefficients;
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i += b) CPU_INDEPENDENT
  for (size_t l = 0; l < b; l++) {
    float value = value_of(x[i + l], v.mean[l], v.scale[l], v.shift[l]);
    if (adds) value = value + other[i + l];
    y[i + l] = relu ? above_zero(value, value) : value;
  }
}

CPU_INLINE void apply_body(const float *x, const float *other, size_t n, size_t b,
                           const clv_norm_affine *v, bool relu, float *y) {
#define APPLY(b) apply_affine(x, other, n, b, v, y, false, false)
#define APPLY_RELU(b) apply_affine(x, other, n, b, v, y, false, true)
#define APPLY_ADD_RELU(b) apply_affine(x, other, n, b, v, y, true, true)
  if (!relu)
    FOR_BLOCK(b, APPLY);
  else if (!other)
    FOR_BLOCK(b, APPLY_RELU);
  else
    FOR_BLOCK(b, APPLY_ADD_RELU);
}

CPU_INLINE void backward_plane(const clv_norm_plane *plane, size_t b, clv_norm_gate gate,
                               const clv_norm_affine *affine, float *dx) {
  clv_norm_affine v = *affine;
  clv_norm_plane p = *plane;
  CPU_INDEPENDENT
  for (size_t i = 0; i < p.n; i += b) CPU_INDEPENDENT
  for (size_t l = 0; l < b; l++) {
    float x = p.x[i + l], g = p.dy[i + l];
    if (gate == NORM_BY_Y) g = above_zero(p.y[i + l], g);
    if (gate == NORM_BY_X) g = above_zero(value_of(x, v.mean[l], v.scale[l], v.shift[l]), g);
    dx[i + l] = (g - v.offset[l] - (x - v.mean[l]) * v.slope[l]) * v.scale[l];
  }
}

CPU_INLINE void back_body(const clv_norm_plane *p, const clv_norm_affine *v, float *dx) {
#define BACK_OPEN(b) backward_plane(p, b, NORM_OPEN, v, dx)
#define BACK_BY_X(b) backward_plane(p, b, NORM_BY_X, v, dx)
#define BACK_BY_Y(b) backward_plane(p, b, NORM_BY_Y, v, dx)
  if (p->gate == NORM_OPEN)
    FOR_BLOCK(p->b, BACK_OPEN);
  else if (p->gate == NORM_BY_X)
    FOR_BLOCK(p->b, BACK_BY_X);
  else
    FOR_BLOCK(p->b, BACK_BY_Y);
}

CPU_CLONES(apply,
           (const float *x, const float *other, size_t n, size_t b, const clv_norm_affine *v,
            bool relu, float *y),
           (x, other, n, b, v, relu, y))
CPU_CLONES(back, (const clv_norm_plane *p, const clv_norm_affine *v, float *dx), (p, v, dx))

void clv_cpu_norm_apply(const float *x, const float *other, size_t n, size_t b,
                        const clv_norm_affine *v, bool relu, float *y) {
  apply(x, other, n, b, v, relu, y);
}

void clv_cpu_norm_backward(const clv_norm_plane *p, const clv_norm_affine *v, float *dx) {
  back(p, v, dx);
}

/* ---- bits that say which gradients pass the relu --------------------------------------------- */

/* Multiplying eight bytes of 0 or 1, the first lowest, by gather_bits collects them as the bits of
 * the highest byte. Multiplying a byte by repeat_byte copies it to eight bytes; select_bit then
 * selects bit i of byte i. */
static const uint64_t gather_bits = 0x0102040810204080, repeat_byte = 0x0101010101010101,
                      select_bit = 0x8040201008040201;

CPU_INLINE void mark_body(const float *restrict y, size_t n, uint8_t *restrict marks) {
  uint64_t groups_of_8[NORM_PIECE / 8];
  uint8_t *bytes = (uint8_t *)groups_of_8;
  for (size_t i = 0; i < n; i++) bytes[i] = !(y[i] <= 0);
  for (size_t i = 0; i < n / 8; i++) marks[i] = (uint8_t)(groups_of_8[i] * gather_bits >> 56);
}

CPU_INLINE void unmark_body(const uint8_t *restrict marks, size_t n, float *restrict gates) {
  uint64_t groups_of_8[NORM_PIECE / 8];
  const uint8_t *bytes = (const uint8_t *)groups_of_8;
  for (size_t i = 0; i < n / 8; i++) groups_of_8[i] = marks[i] * repeat_byte & select_bit;
  for (size_t i = 0; i < n; i++) gates[i] = bytes[i];
}

CPU_CLONES(mark, (const float *restrict y, size_t n, uint8_t *restrict marks), (y, n, marks))
CPU_CLONES(unmark, (const uint8_t *restrict marks, size_t n, float *restrict gates),
           (marks, n, gates))

void clv_cpu_norm_pack_gates(const float *y, size_t n, uint8_t *marks) { mark(y, n, marks); }

void clv_cpu_norm_unpack_gates(const uint8_t *marks, size_t n, float *ret_gates) {
  unmark(marks, n, ret_gates);
}
