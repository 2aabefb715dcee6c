/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of products and convolutions, over copies that the host has made: nobody watches them.
 */
#include <math.h>
#include <string.h>

#include "tests/gpu/sim/sim_int.h"

size_t sim_factor_bytes(clv_cuda_math math) {
  return math == CLV_CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
}

uint16_t sim_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double widened(const uint16_t *p) {
  uint32_t bits = (uint32_t)*p << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* Rounded to nearest even, to 10 bits behind the point. */
static double rounded(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isfinite(x)) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

double sim_factor(clv_cuda_math math, const void *p, size_t i) {
  if (math == CLV_CUDA_BF16) return widened((const uint16_t *)p + i);
  float x = ((const float *)p)[i];
  return math == CLV_CUDA_TF32 ? rounded(x) : (double)x;
}

void sim_product(const sim_product_of *p) {
  for (int64_t j = 0; j < p->n; j++)
    for (int64_t q = 0; q < p->k; q++) {
      const double *left = p->left + q * p->m;
      double factor = p->right[j * p->k + q], *sums = p->sums + j * p->m;
      for (int64_t i = 0; i < p->m; i++) sums[i] += left[i] * factor;
    }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

/* One term of a convolution: y[ny] takes x[nx] w[nw]. Inlined as all that leads to it, for there
 * are many. */
#define INLINED static inline __attribute__((always_inline)) void
typedef void term_fn(double *const operand[3], size_t nx, size_t nw, size_t ny);

typedef struct place {
  int64_t n, k, oy, ox, c, ky, kx; /* c: within the group */
} place;

INLINED term_at(const clv_cuda_conv_desc *d, const place *p, term_fn *term,
                double *const operand[3]) {
  const clv_window *s = &d->window;
  int64_t per = s->c / d->groups, c = p->k / (s->k / d->groups) * per + p->c;
  int64_t y = p->oy * s->stride[0] - s->pad[0] + p->ky;
  int64_t x = p->ox * s->stride[1] - s->pad[1] + p->kx;
  if (y < 0 || y >= s->h || x < 0 || x >= s->w) return;
  term(operand, (size_t)(((p->n * s->c + c) * s->h + y) * s->w + x),
       (size_t)(((p->k * per + p->c) * s->kernel[0] + p->ky) * s->kernel[1] + p->kx),
       (size_t)(((p->n * s->k + p->k) * s->oh + p->oy) * s->ow + p->ox));
}

INLINED terms_of_output(const clv_cuda_conv_desc *d, place p, term_fn *term,
                        double *const operand[3]) {
  const clv_window *s = &d->window;
  for (p.c = 0; p.c < s->c / d->groups; p.c++)
    for (p.ky = 0; p.ky < s->kernel[0]; p.ky++)
      for (p.kx = 0; p.kx < s->kernel[1]; p.kx++) term_at(d, &p, term, operand);
}

INLINED all_terms(const clv_cuda_conv_desc *d, term_fn *term, double *const operand[3]) {
  const clv_window *s = &d->window;
  place p = {0};
  for (p.n = 0; p.n < s->n; p.n++)
    for (p.k = 0; p.k < s->k; p.k++)
      for (p.oy = 0; p.oy < s->oh; p.oy++)
        for (p.ox = 0; p.ox < s->ow; p.ox++) terms_of_output(d, p, term, operand);
}

INLINED add_forward(double *const operand[3], size_t nx, size_t nw, size_t ny) {
  operand[2][ny] += operand[0][nx] * operand[1][nw];
}

INLINED add_input(double *const operand[3], size_t nx, size_t nw, size_t ny) {
  operand[0][nx] += operand[2][ny] * operand[1][nw];
}

INLINED add_weight(double *const operand[3], size_t nx, size_t nw, size_t ny) {
  operand[1][nw] += operand[2][ny] * operand[0][nx];
}

void sim_convolution(const clv_cuda_conv_desc *d, double *const operand[3]) {
  if (d->pass == CLV_CUDA_FORWARD)
    all_terms(d, add_forward, operand);
  else if (d->pass == CLV_CUDA_GRAD_INPUT)
    all_terms(d, add_input, operand);
  else
    all_terms(d, add_weight, operand);
}
