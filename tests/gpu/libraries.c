/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's libraries as the simulation has them: plain loops, summed in double.
 */
#include <stdlib.h>

#include "tests/gpu/sim/sim_int.h"

/* ---- products -------------------------------------------------------------------------------- */

/* op(A) of m x k, one column after another. */
static double *columns(const float *a, bool transposed, int64_t ld, int64_t m, int64_t k) {
  double *all = sim_fresh_take((size_t)(m * k) * sizeof *all);
  for (int64_t j = 0; j < k; j++)
    for (int64_t i = 0; i < m; i++)
      all[j * m + i] = (double)(transposed ? a[i * ld + j] : a[j * ld + i]);
  return all;
}

static float finish_value(const clv_cuda_matmul_desc *d, double sum, const float *bias,
                          int64_t row) {
  if (d->after != CLV_CUDA_AFTER_NOTHING) sum += (double)bias[row];
  if (d->after == CLV_CUDA_AFTER_BIAS_RELU && sum < 0) sum = 0;
  return (float)sum;
}

static void product(const clv_cuda_matmul_desc *d, const float *a, const float *b,
                    const float *bias, float beta, float *out) {
  double *left = columns(a, d->a_t, d->lda, d->m, d->k);
  double *sums = sim_fresh_take((size_t)d->m * sizeof *sums);
  for (int64_t j = 0; j < d->n; j++) {
    float *column = out + j * d->ldd;
    for (int64_t i = 0; i < d->m; i++) sums[i] = beta != 0 ? (double)column[i] : 0;
    for (int64_t p = 0; p < d->k; p++) {
      double factor = (double)(d->b_t ? b[p * d->ldb + j] : b[j * d->ldb + p]);
      for (int64_t i = 0; i < d->m; i++) sums[i] += left[p * d->m + i] * factor;
    }
    for (int64_t i = 0; i < d->m; i++) column[i] = finish_value(d, sums[i], bias, i);
  }
  sim_fresh_give(left);
  sim_fresh_give(sums);
}

void sim_matmul_run(const sim_op *op) {
  const clv_cuda_matmul_desc *d = &op->desc.matmul;
  for (int64_t i = 0; i < d->batch; i++)
    product(d, op->operand[0] + i * d->stride_a, op->operand[1] + i * d->stride_b, op->operand[2],
            op->beta, op->operand[3] + i * d->stride_d);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

/* One term of a convolution: y[ny] takes x[nx] w[nw]. */
typedef void term_fn(void *user, size_t nx, size_t nw, size_t ny);

typedef struct place {
  int64_t n, k, oy, ox, c, ky, kx; /* c: within the group */
} place;

static void term_at(const clv_cuda_conv_desc *d, const place *p, term_fn *term, void *user) {
  const clv_window *s = &d->window;
  int64_t per = s->c / d->groups, c = p->k / (s->k / d->groups) * per + p->c;
  int64_t y = p->oy * s->stride[0] - s->pad[0] + p->ky,
          x = p->ox * s->stride[1] - s->pad[1] + p->kx;
  if (y < 0 || y >= s->h || x < 0 || x >= s->w) return;
  term(user, (size_t)(((p->n * s->c + c) * s->h + y) * s->w + x),
       (size_t)(((p->k * per + p->c) * s->kernel[0] + p->ky) * s->kernel[1] + p->kx),
       (size_t)(((p->n * s->k + p->k) * s->oh + p->oy) * s->ow + p->ox));
}

static void terms_of_output(const clv_cuda_conv_desc *d, place p, term_fn *term, void *user) {
  const clv_window *s = &d->window;
  for (p.c = 0; p.c < s->c / d->groups; p.c++)
    for (p.ky = 0; p.ky < s->kernel[0]; p.ky++)
      for (p.kx = 0; p.kx < s->kernel[1]; p.kx++) term_at(d, &p, term, user);
}

static void all_terms(const clv_cuda_conv_desc *d, term_fn *term, void *user) {
  const clv_window *s = &d->window;
  place p = {0};
  for (p.n = 0; p.n < s->n; p.n++)
    for (p.k = 0; p.k < s->k; p.k++)
      for (p.oy = 0; p.oy < s->oh; p.oy++)
        for (p.ox = 0; p.ox < s->ow; p.ox++) terms_of_output(d, p, term, user);
}

typedef struct conv_sums {
  const float *x, *w, *y;
  double *sum;
} conv_sums;

static void add_forward(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[ny] += (double)s->x[nx] * (double)s->w[nw];
}

static void add_input(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[nx] += (double)s->y[ny] * (double)s->w[nw];
}

static void add_weight(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[nw] += (double)s->y[ny] * (double)s->x[nx];
}

void sim_conv_run(const sim_op *op) {
  static term_fn *const terms[] = {[CLV_CUDA_FORWARD] = add_forward,
                                   [CLV_CUDA_GRAD_INPUT] = add_input,
                                   [CLV_CUDA_GRAD_WEIGHT] = add_weight};
  const clv_cuda_conv_desc *d = &op->desc.conv;
  float *operand[] = {op->operand[2], op->operand[0], op->operand[1]}, *out = operand[d->pass];
  size_t counts[3];
  sim_conv_counts(d, counts);
  size_t n = counts[d->pass == CLV_CUDA_FORWARD ? 2 : d->pass == CLV_CUDA_GRAD_INPUT ? 0 : 1];
  conv_sums s = {op->operand[0], op->operand[1], op->operand[2], sim_fresh_take(n * sizeof *s.sum)};
  for (size_t i = 0; i < n; i++) s.sum[i] = op->beta != 0 ? (double)out[i] : 0;
  all_terms(d, terms[d->pass], &s);
  for (size_t i = 0; i < n; i++) out[i] = (float)s.sum[i];
  sim_fresh_give(s.sum);
}

void sim_conv_counts(const clv_cuda_conv_desc *d, size_t ret[3]) {
  const clv_window *s = &d->window;
  ret[0] = (size_t)(s->n * s->c * s->h * s->w);
  ret[1] = (size_t)(s->k * (s->c / d->groups) * s->kernel[0] * s->kernel[1]);
  ret[2] = (size_t)(s->n * s->k * s->oh * s->ow);
}
