/* SPDX-License-Identifier: Apache-2.0
 *
 * wait over REAL: y = w x with one weight. Each part takes its milliseconds from its own beginning,
 * what it computes included, and sleeps the rest of them.
 */

static uint64_t wait_until(int64_t ms) { return clv_now_ns() + (uint64_t)ms * 1000000u; }

static clv_code wait_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  uint64_t end = wait_until(k->d.attrs.forward_ms);
  const REAL *x = a->in[0], w = *(const REAL *)a->param[CLV_SLOT_WEIGHT];
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] * w;
  clv_ref_sleep_until(end);
  return CLV_OK;
}

static clv_code wait_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  uint64_t end = wait_until(k->d.attrs.input_ms);
  const REAL *dy = a->dout, w = *(const REAL *)a->param[CLV_SLOT_WEIGHT];
  REAL *dx = a->din[0];
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i] * w;
  clv_ref_sleep_until(end);
  return CLV_OK;
}

static clv_code wait_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  uint64_t end = wait_until(k->d.attrs.weight_ms);
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  double sum = 0;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) sum += (double)x[i] * dy[i];
  put(dw, sum, a->accumulate);
  clv_ref_sleep_until(end);
  return CLV_OK;
}
