/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, T, F], y [N, T, H].
 *
 * `saved` (or `scratch` if no backward follows) holds six rows of H for each layer, sample
 * and step: the gates i, f, g, o after sigmoid or tanh, c and h. For backward the scratch
 * holds the gradients of the gates before sigmoid or tanh [N, T, 4H], of a layer's input [N,
 * T, H] and of c [H].
 */
#include "kernels/ops/recurrent_int.h"

static clv_code lstm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return recurrent_shape("lstm", s, ret, err);
}

static int lstm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  return recurrent_slots(4, s, ret);
}

/* Rows of H values that `saved` has for each step. N_LSTM_ROWS: number of rows. */
enum { GATE_I, GATE_F, GATE_G, GATE_O, CELL, HIDDEN, N_LSTM_ROWS };

typedef struct lstm_sizes {
  int64_t n, t, f, h; /* batch, steps, input features, hidden size */
  int n_layers;
  int n_slots; /* parameter slots of one layer: 4 with bias, else 2 */
  /* N_LSTM_ROWS rows of H values for each layer, sample and step, in `saved` or `scratch` */
  REAL *step_rows;
} lstm_sizes;

static lstm_sizes make_lstm_sizes(const clv_ref_kernel *k, const clv_kernel_args *a) {
  const int64_t *dim = k->d.in[0].dim;
  return (lstm_sizes){dim[0],
                      dim[1],
                      dim[2],
                      k->d.attrs.out,
                      (int)k->d.attrs.layers,
                      k->d.attrs.bias ? 4 : 2,
                      k->has_backward ? a->saved : a->scratch};
}

static size_t lstm_rows_bytes(const clv_ref_kernel *k) {
  return k->n_out * N_LSTM_ROWS * (size_t)k->d.attrs.layers * sizeof(REAL);
}

static size_t lstm_saved_bytes(const clv_ref_kernel *k) {
  return k->has_backward ? lstm_rows_bytes(k) : 0;
}

static size_t lstm_scratch_bytes(const clv_ref_kernel *k) {
  return k->has_backward ? (5 * k->n_out + (size_t)k->d.attrs.out) * sizeof(REAL)
                         : lstm_rows_bytes(k);
}

static REAL *lstm_row(const lstm_sizes *s, int layer, int64_t n, int64_t t, int row) {
  return s->step_rows + ((((int64_t)layer * s->n + n) * s->t + t) * N_LSTM_ROWS + row) * s->h;
}

/* Returns the input of layer `layer` for sample n at step t. *ret_n_inputs: number of its
 * values. */
static const REAL *lstm_input(const lstm_sizes *s, const clv_kernel_args *a, int layer, int64_t n,
                              int64_t t, int64_t *ret_n_inputs) {
  *ret_n_inputs = layer ? s->h : s->f;
  return layer ? lstm_row(s, layer - 1, n, t, HIDDEN)
               : (const REAL *)a->in[0] + (n * s->t + t) * s->f;
}

static const REAL *lstm_param(const lstm_sizes *s, const clv_kernel_args *a, int layer, int index) {
  return index < s->n_slots ? a->param[layer * s->n_slots + index] : NULL;
}

/* Returns the value of a gate of unit j before its sigmoid or tanh. */
static double compute_lstm_gate_sum(const lstm_sizes *s, const clv_kernel_args *a, int layer,
                                    int64_t n, int64_t t, int gate, int64_t j) {
  const REAL *w_in = lstm_param(s, a, layer, 0), *w_h = lstm_param(s, a, layer, 1);
  const REAL *b_in = lstm_param(s, a, layer, 2), *b_h = lstm_param(s, a, layer, 3);
  int64_t n_inputs, row = gate * s->h + j;
  const REAL *x = lstm_input(s, a, layer, n, t, &n_inputs);
  double sum = b_in ? (double)b_in[row] + b_h[row] : 0;
  for (int64_t f = 0; f < n_inputs; f++) sum += (double)w_in[row * n_inputs + f] * x[f];
  const REAL *h = t ? lstm_row(s, layer, n, t - 1, HIDDEN) : NULL;
  for (int64_t q = 0; h && q < s->h; q++) sum += (double)w_h[row * s->h + q] * h[q];
  return sum;
}

static void run_lstm_step(const lstm_sizes *s, const clv_kernel_args *a, int layer, int64_t n,
                          int64_t t) {
  REAL *row = lstm_row(s, layer, n, t, 0);
  for (int64_t j = 0; j < s->h; j++) {
    for (int gate = GATE_I; gate <= GATE_O; gate++) {
      double v = compute_lstm_gate_sum(s, a, layer, n, t, gate, j);
      row[gate * s->h + j] = (REAL)(gate == GATE_G ? tanh(v) : 1 / (1 + exp(-v)));
    }
    double previous_c = t ? lstm_row(s, layer, n, t - 1, CELL)[j] : 0;
    double c = row[GATE_F * s->h + j] * previous_c +
               (double)row[GATE_I * s->h + j] * row[GATE_G * s->h + j];
    row[CELL * s->h + j] = (REAL)c;
    row[HIDDEN * s->h + j] = (REAL)(row[GATE_O * s->h + j] * tanh(c));
  }
}

static clv_code lstm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  lstm_sizes s = make_lstm_sizes((const clv_ref_kernel *)base, a);
  REAL *y = a->out;
  (void)err;
  for (int layer = 0; layer < s.n_layers; layer++)
    for (int64_t nt = 0; nt < s.n * s.t; nt++) run_lstm_step(&s, a, layer, nt / s.t, nt % s.t);
  for (int64_t nt = 0; nt < s.n * s.t; nt++)
    memcpy(y + nt * s.h, lstm_row(&s, s.n_layers - 1, nt / s.t, nt % s.t, HIDDEN),
           (size_t)s.h * sizeof *y);
  return CLV_OK;
}

/* Computes the gradients of the gates at step t from those at step t + 1. outer_dh: gradient of the
 * layer's output. dc [H]: at the call the gradient of c_t from step t + 1, on return the gradient
 * of c_(t-1). */
static void run_lstm_step_backward(const lstm_sizes *s, const clv_kernel_args *a, int layer,
                                   int64_t n, int64_t t, const REAL *outer_dh, REAL *dgates,
                                   REAL *dc) {
  const REAL *row = lstm_row(s, layer, n, t, 0), *w_h = lstm_param(s, a, layer, 1);
  REAL *d = dgates + (n * s->t + t) * 4 * s->h;
  const REAL *next_dgates = t + 1 < s->t ? d + 4 * s->h : NULL;
  for (int64_t j = 0; j < s->h; j++) {
    double dh = outer_dh[(n * s->t + t) * s->h + j];
    for (int64_t r = 0; next_dgates && r < 4 * s->h; r++)
      dh += (double)next_dgates[r] * w_h[r * s->h + j];
    double i = row[GATE_I * s->h + j], f = row[GATE_F * s->h + j], g = row[GATE_G * s->h + j];
    double o = row[GATE_O * s->h + j], tanh_c = tanh(row[CELL * s->h + j]);
    double previous_c = t ? lstm_row(s, layer, n, t - 1, CELL)[j] : 0;
    double dcell = (next_dgates ? dc[j] : 0) + dh * o * (1 - tanh_c * tanh_c);
    d[GATE_I * s->h + j] = (REAL)(dcell * g * i * (1 - i));
    d[GATE_F * s->h + j] = (REAL)(dcell * previous_c * f * (1 - f));
    d[GATE_G * s->h + j] = (REAL)(dcell * i * (1 - g * g));
    d[GATE_O * s->h + j] = (REAL)(dh * tanh_c * o * (1 - o));
    dc[j] = (REAL)(dcell * f);
  }
}

/* Returns value q of the vector that the gates of a step multiply by their weights: the layer's
 * input, followed by h of the step before, followed by 1 for the biases. */
static double lstm_gate_input(const lstm_sizes *s, const clv_kernel_args *a, int layer, int64_t nt,
                              int64_t q) {
  int64_t n = nt / s->t, t = nt % s->t, n_inputs;
  const REAL *x = lstm_input(s, a, layer, n, t, &n_inputs);
  if (q < n_inputs) return x[q];
  if (q == n_inputs + s->h) return 1;
  return t ? lstm_row(s, layer, n, t - 1, HIDDEN)[q - n_inputs] : 0;
}

/* Computes the gradients of a layer's parameters: dW_ih = dgates^T x, dW_hh = dgates^T h with h of
 * the step before, db_ih = db_hh = the sum of dgates over all steps. */
static void compute_lstm_weight_grads(const lstm_sizes *s, const clv_kernel_args *a, int layer,
                                      const REAL *dgates) {
  void *const *d = &a->dparam[layer * s->n_slots];
  int64_t n_inputs = layer ? s->h : s->f;
  for (int64_t r = 0; r < 4 * s->h; r++)
    for (int64_t q = 0; q <= n_inputs + s->h; q++) {
      double sum = 0;
      for (int64_t nt = 0; nt < s->n * s->t; nt++)
        sum += dgates[nt * 4 * s->h + r] * lstm_gate_input(s, a, layer, nt, q);
      if (q < n_inputs)
        store_or_add((REAL *)d[0] + r * n_inputs + q, sum, a->accumulate);
      else if (q < n_inputs + s->h)
        store_or_add((REAL *)d[1] + r * s->h + q - n_inputs, sum, a->accumulate);
      else
        for (int b = 2; b < s->n_slots; b++) store_or_add((REAL *)d[b] + r, sum, a->accumulate);
    }
}

/* Computes dx = dgates W_ih for all steps. */
static void compute_lstm_input_grad(const lstm_sizes *s, const clv_kernel_args *a, int layer,
                                    const REAL *dgates, REAL *dx) {
  const REAL *w_in = lstm_param(s, a, layer, 0);
  int64_t n_inputs = layer ? s->h : s->f;
  for (int64_t nt = 0; nt < s->n * s->t; nt++)
    for (int64_t q = 0; q < n_inputs; q++) {
      double sum = 0;
      for (int64_t r = 0; r < 4 * s->h; r++)
        sum += (double)dgates[nt * 4 * s->h + r] * w_in[r * n_inputs + q];
      dx[nt * n_inputs + q] = (REAL)sum;
    }
}

static clv_code lstm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  lstm_sizes s = make_lstm_sizes(k, a);
  REAL *dgates = a->scratch, *dx = dgates + 4 * k->n_out, *dc = dx + k->n_out;
  (void)err;
  for (int layer = s.n_layers - 1; layer >= 0; layer--) {
    const REAL *outer_dh = layer == s.n_layers - 1 ? a->dout : dx;
    for (int64_t n = 0; n < s.n; n++)
      for (int64_t t = s.t - 1; t >= 0; t--)
        run_lstm_step_backward(&s, a, layer, n, t, outer_dh, dgates, dc);
    if (k->d.need_dw) compute_lstm_weight_grads(&s, a, layer, dgates);
    if (layer || a->din[0]) compute_lstm_input_grad(&s, a, layer, dgates, layer ? dx : a->din[0]);
  }
  return CLV_OK;
}

CLV_OP_ROW(lstm) = {
    .name = "lstm",
    .doc =
        "per layer and step, zeros before the first: "
        "[i f g o] = W_ih x_t + b_ih + W_hh h_(t-1) + b_hh; "
        "c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g); h_t = sigmoid(o) tanh(c_t); "
        "x: [N, T, F], y: h of the last layer [N, T, out] (torch.nn.LSTM, batch_first=True)",
    .torch_module = "LSTM(out=hidden_size, layers=num_layers, bias=bias)",
    .torch_needs = "batch_first=True, bidirectional=False, proj_size=0, dropout=0.0",
    .n_in = 1,
    .mixing = CLV_MIXES_ALL,
    .attrs = {RECURRENT_ATTRS(4)},
    .shape = lstm_shape,
    .slots = lstm_slots,
    .max_params = 4 * CLV_LSTM_LAYERS,
    .forward = lstm_forward,
    .backward_input = lstm_backward,
    .saved_for_dw = CLV_SAVE_IN0,
    .fused_grads = true,
    .saved_bytes = lstm_saved_bytes,
    .scratch_bytes = lstm_scratch_bytes,
};
