/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions as the simulation has them: plain loops, summed in double.
 */
#include "tests/gpu/sim/sim_int.h"

/* One term of a convolution: y[ny] takes x[nx] w[nw]. Inlined as all that leads to it, for there
 * are many. */
#define INLINED static inline __attribute__((always_inline)) void
typedef void term_fn(void *user, size_t nx, size_t nw, size_t ny);

typedef struct place {
  int64_t n, k, oy, ox, c, ky, kx; /* c: within the group */
} place;

INLINED term_at(const clv_cuda_conv_desc *d, const place *p, term_fn *term, void *user) {
  const clv_window *s = &d->window;
  int64_t per = s->c / d->groups, c = p->k / (s->k / d->groups) * per + p->c;
  int64_t y = p->oy * s->stride[0] - s->pad[0] + p->ky,
          x = p->ox * s->stride[1] - s->pad[1] + p->kx;
  if (y < 0 || y >= s->h || x < 0 || x >= s->w) return;
  term(user, (size_t)(((p->n * s->c + c) * s->h + y) * s->w + x),
       (size_t)(((p->k * per + p->c) * s->kernel[0] + p->ky) * s->kernel[1] + p->kx),
       (size_t)(((p->n * s->k + p->k) * s->oh + p->oy) * s->ow + p->ox));
}

INLINED terms_of_output(const clv_cuda_conv_desc *d, place p, term_fn *term, void *user) {
  const clv_window *s = &d->window;
  for (p.c = 0; p.c < s->c / d->groups; p.c++)
    for (p.ky = 0; p.ky < s->kernel[0]; p.ky++)
      for (p.kx = 0; p.kx < s->kernel[1]; p.kx++) term_at(d, &p, term, user);
}

INLINED all_terms(const clv_cuda_conv_desc *d, term_fn *term, void *user) {
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

INLINED add_forward(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[ny] += (double)s->x[nx] * (double)s->w[nw];
}

INLINED add_input(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[nx] += (double)s->y[ny] * (double)s->w[nw];
}

INLINED add_weight(void *user, size_t nx, size_t nw, size_t ny) {
  const conv_sums *s = user;
  s->sum[nw] += (double)s->y[ny] * (double)s->x[nx];
}

static void forward(const clv_cuda_conv_desc *d, conv_sums *s) { all_terms(d, add_forward, s); }
static void grad_input(const clv_cuda_conv_desc *d, conv_sums *s) { all_terms(d, add_input, s); }
static void grad_weight(const clv_cuda_conv_desc *d, conv_sums *s) { all_terms(d, add_weight, s); }

/* By pass: the loops, and which operand they write. */
static const struct {
  void (*run)(const clv_cuda_conv_desc *d, conv_sums *s);
  int written;
} passes[] = {[CLV_CUDA_FORWARD] = {forward, 2},
              [CLV_CUDA_GRAD_INPUT] = {grad_input, 0},
              [CLV_CUDA_GRAD_WEIGHT] = {grad_weight, 1}};

void sim_conv_run(const sim_op *op) {
  const clv_cuda_conv_desc *d = &op->desc.conv;
  float *out = op->operand[passes[d->pass].written];
  size_t counts[3];
  sim_conv_counts(d, counts);
  size_t n = counts[passes[d->pass].written];
  conv_sums s = {op->operand[0], op->operand[1], op->operand[2], sim_fresh_take(n * sizeof *s.sum)};
  for (size_t i = 0; i < n; i++) s.sum[i] = op->beta != 0 ? (double)out[i] : 0;
  passes[d->pass].run(d, &s);
  for (size_t i = 0; i < n; i++) out[i] = (float)s.sum[i];
  sim_fresh_give(s.sum);
}

void sim_conv_counts(const clv_cuda_conv_desc *d, size_t ret[3]) {
  const clv_window *s = &d->window;
  ret[0] = (size_t)(s->n * s->c * s->h * s->w);
  ret[1] = (size_t)(s->k * (s->c / d->groups) * s->kernel[0] * s->kernel[1]);
  ret[2] = (size_t)(s->n * s->k * s->oh * s->ow);
}
