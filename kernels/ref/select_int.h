/* SPDX-License-Identifier: Apache-2.0
 *
 * mean, concat and slice over REAL: tensors seen as [outer, extent, inner] around one dimension.
 */

static clv_code axis_mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis s = clv_axis_around(&k->d.attrs, &k->d.in[0]);
  const REAL *x = a->in[0];
  REAL *y = a->out;
  (void)err;
  for (size_t o = 0; o < s.outer * s.inner; o++) {
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++)
      sum += x[(o / s.inner * s.extent + e) * s.inner + o % s.inner];
    y[o] = (REAL)(sum / (double)s.extent);
  }
  return CLV_OK;
}

static clv_code axis_mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis s = clv_axis_around(&k->d.attrs, &k->d.in[0]);
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  (void)err;
  for (size_t i = 0; i < k->n_in; i++)
    dx[i] = dy[i / s.inner / s.extent * s.inner + i % s.inner] / (REAL)s.extent;
  return CLV_OK;
}

/* Input i of concat lies behind those before it, in each of `outer` rows. */
static clv_code concat_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis all = clv_axis_around(&k->d.attrs, &k->d.out);
  size_t at = 0;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++) {
    size_t run = clv_axis_around(&k->d.attrs, &k->d.in[i]).extent * all.inner;
    for (size_t o = 0; o < all.outer; o++)
      memcpy((REAL *)a->out + o * all.extent * all.inner + at, (const REAL *)a->in[i] + o * run,
             run * sizeof(REAL));
    at += run;
  }
  return CLV_OK;
}

static clv_code concat_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis all = clv_axis_around(&k->d.attrs, &k->d.out);
  size_t at = 0;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++) {
    size_t run = clv_axis_around(&k->d.attrs, &k->d.in[i]).extent * all.inner;
    for (size_t o = 0; a->din[i] && o < all.outer; o++)
      memcpy((REAL *)a->din[i] + o * run, (const REAL *)a->dout + o * all.extent * all.inner + at,
             run * sizeof(REAL));
    at += run;
  }
  return CLV_OK;
}

/* Where slice's part of one outer row begins; *ret_run: its length. */
static size_t slice_run(const ref_kernel *k, const clv_axis *s, size_t *ret_run) {
  int64_t stop, start = clv_slice_start(&k->d.attrs, (int64_t)s->extent, &stop);
  *ret_run = (size_t)(stop - start) * s->inner;
  return (size_t)start * s->inner;
}

static clv_code slice_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis s = clv_axis_around(&k->d.attrs, &k->d.in[0]);
  size_t run, at = slice_run(k, &s, &run);
  (void)err;
  for (size_t o = 0; o < s.outer; o++)
    memcpy((REAL *)a->out + o * run, (const REAL *)a->in[0] + o * s.extent * s.inner + at,
           run * sizeof(REAL));
  return CLV_OK;
}

static clv_code slice_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_axis s = clv_axis_around(&k->d.attrs, &k->d.in[0]);
  size_t run, at = slice_run(k, &s, &run);
  (void)err;
  memset(a->din[0], 0, k->n_in * sizeof(REAL));
  for (size_t o = 0; o < s.outer; o++)
    memcpy((REAL *)a->din[0] + o * s.extent * s.inner + at, (const REAL *)a->dout + o * run,
           run * sizeof(REAL));
  return CLV_OK;
}
