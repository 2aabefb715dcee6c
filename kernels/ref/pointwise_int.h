/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise ops over REAL, with the expressions of torch's CPU kernels. All but gelu may run in
 * place.
 */

/* A forward that maps x[i] to y[i]. NaN passes through relu, as torch's. */
#define POINTWISE(name, expression)                                                          \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    const ref_kernel *k = (const ref_kernel *)base;                                          \
    const REAL *in = a->in[0];                                                               \
    REAL *out = a->out;                                                                      \
    (void)err;                                                                               \
    for (size_t i = 0; i < k->n_in; i++) {                                                   \
      REAL x = in[i];                                                                        \
      out[i] = (expression);                                                                 \
    }                                                                                        \
    return CLV_OK;                                                                           \
  }

/* A backward that maps dy[i] and the kept value s (the input or the output) to dx[i]. */
#define POINTWISE_BACKWARD(name, kept, expression)                                            \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    const ref_kernel *k = (const ref_kernel *)base;                                           \
    const REAL *keep = (kept), *dout = a->dout;                                               \
    REAL *din = a->din[0];                                                                    \
    (void)err;                                                                                \
    for (size_t i = 0; i < k->n_in; i++) {                                                    \
      REAL s = keep[i], dy = dout[i];                                                         \
      din[i] = (expression);                                                                  \
    }                                                                                         \
    return CLV_OK;                                                                            \
  }

static REAL gelu_cdf(REAL x) { return (REAL)0.5 * (1 + MATH(erf)(x * (REAL)M_SQRT1_2)); }

static REAL gelu_pdf(REAL x) {
  return MATH(exp)(x * x * (REAL)-0.5) * (REAL)(M_2_SQRTPI * M_SQRT1_2 * 0.5);
}

POINTWISE(relu, x <= 0 ? 0 : x)
POINTWISE(sigmoid, 1 / (1 + MATH(exp)(-x)))
POINTWISE(tanh, MATH(tanh)(x))
POINTWISE(gelu, x *gelu_cdf(x))

POINTWISE_BACKWARD(relu, a->out, s <= 0 ? 0 : dy)
POINTWISE_BACKWARD(sigmoid, a->out, dy *(1 - s) * s)
POINTWISE_BACKWARD(tanh, a->out, dy *(1 - s * s))
POINTWISE_BACKWARD(gelu, a->in[0], dy *(gelu_cdf(s) + s * gelu_pdf(s)))

static clv_code add_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0], *z = a->in[1];
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] + z[i];
  return CLV_OK;
}

static clv_code scale_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out, factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = factor * x[i];
  return CLV_OK;
}

static clv_code scale_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0], factor = (REAL)k->d.attrs.factor;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = factor * dy[i];
  return CLV_OK;
}

/* add, flatten, reshape and dropout outside training hand the gradient on. */
static clv_code pass_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++)
    if (a->din[i]) memmove(a->din[i], a->dout, k->n_out * sizeof(REAL));
  return CLV_OK;
}

static clv_code pass_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  memmove(a->out, a->in[0], ((const ref_kernel *)base)->n_in * sizeof(REAL));
  return CLV_OK;
}

/* ---- dropout -----------------------------------------------------------------------------------
 */

/* The factor of kept elements; with p = 1 nothing is kept. */
static REAL dropout_scale(const ref_kernel *k) {
  double p = k->d.attrs.p;
  return (REAL)(p < 1 ? 1 / (1 - p) : 0);
}

/* Element i is kept when u_i >= p, u_i the top 24 bits of word i%4 of Philox block i/4 over 2^24:
 * a function of key and row-major index alone. Factors multiply, so NaN passes as in torch. */
static clv_code dropout_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out, scale = dropout_scale(k);
  uint8_t *mask = a->saved;
  uint32_t word[4] = {0};
  if (!k->d.training) return pass_forward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++) {
    if (i % 4 == 0) clv_rng_block(&a->key, (uint32_t)(i / 4), word);
    bool keep = (word[i % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
    y[i] = x[i] * (keep ? scale : 0);
    if (k->learns) mask[i] = keep;
  }
  return CLV_OK;
}

static size_t dropout_saved(const ref_kernel *k) { return k->d.training ? k->n_in : 0; }

static clv_code dropout_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const uint8_t *mask = a->saved;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0], scale = dropout_scale(k);
  if (!k->d.training) return pass_backward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i] * (mask[i] ? scale : 0);
  return CLV_OK;
}
