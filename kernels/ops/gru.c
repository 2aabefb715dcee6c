/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, T, F], y [N, T, H].
 *
 * `saved` (or `scratch` if no backward follows) holds five rows of H for each layer, sample and
 * step: the gates r, z, n after sigmoid or tanh, the sum W_hn h + b_hn that r multiplies, and h.
 * For backward the scratch holds the gradients of the sums of the input and of h, [N, T, 3H] each,
 * of a layer's input [N, T, H], and of h from the step after [H].
 */
#include "kernels/ops/recurrent_int.h"

static clv_code gru_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return recurrent_shape("gru", s, ret, err);
}

static int gru_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  return recurrent_slots(3, s, ret);
}

/* Rows of H values that `saved` has for each step. H_SUM_OF_N: W_hn h + b_hn; N_GRU_ROWS: number of
 * rows. */
enum { GATE_R, GATE_Z, GATE_N, H_SUM_OF_N, HIDDEN, N_GRU_ROWS };

typedef struct gru_sizes {
  int64_t n, t, f, h; /* batch, steps, input features, hidden size */
  int n_layers;
  int n_slots; /* parameter slots of one layer: 4 with bias, else 2 */
  /* N_GRU_ROWS rows of H values for each layer, sample and step, in `saved` or `scratch` */
  REAL *step_rows;
} gru_sizes;

static gru_sizes make_sizes(const clv_ref_kernel *k, const clv_kernel_args *a) {
  const int64_t *dim = k->d.in[0].dim;
  return (gru_sizes){dim[0],
                     dim[1],
                     dim[2],
                     k->d.attrs.out,
                     (int)k->d.attrs.layers,
                     k->d.attrs.bias ? 4 : 2,
                     k->has_backward ? a->saved : a->scratch};
}

static size_t compute_rows_bytes(const clv_ref_kernel *k) {
  return k->n_out * N_GRU_ROWS * (size_t)k->d.attrs.layers * sizeof(REAL);
}

static size_t gru_saved_bytes(const clv_ref_kernel *k) {
  return k->has_backward ? compute_rows_bytes(k) : 0;
}

static size_t gru_scratch_bytes(const clv_ref_kernel *k) {
  return k->has_backward ? (7 * k->n_out + (size_t)k->d.attrs.out) * sizeof(REAL)
                         : compute_rows_bytes(k);
}

static REAL *step_row(const gru_sizes *s, int layer, int64_t nt, int row) {
  return s->step_rows + (((int64_t)layer * s->n * s->t + nt) * N_GRU_ROWS + row) * s->h;
}

/* Returns the hidden state h of the step before step nt of the layer; NULL at the first step. */
static const REAL *h_of_previous_step(const gru_sizes *s, int layer, int64_t nt) {
  return nt % s->t ? step_row(s, layer, nt - 1, HIDDEN) : NULL;
}

static const REAL *layer_input(const gru_sizes *s, const clv_kernel_args *a, int layer, int64_t nt,
                               int64_t *ret_n_inputs) {
  *ret_n_inputs = layer ? s->h : s->f;
  return layer ? step_row(s, layer - 1, nt, HIDDEN) : (const REAL *)a->in[0] + nt * s->f;
}

static const REAL *layer_param(const gru_sizes *s, const clv_kernel_args *a, int layer, int index) {
  return index < s->n_slots ? a->param[layer * s->n_slots + index] : NULL;
}

/* Returns value number `row` of W_ih x + b_ih at step nt, or of W_hh h + b_hh if is_recurrent. */
static double compute_gate_sum(const gru_sizes *s, const clv_kernel_args *a, int layer, int64_t nt,
                               int64_t row, bool is_recurrent) {
  const REAL *w = layer_param(s, a, layer, is_recurrent),
             *b = layer_param(s, a, layer, 2 + is_recurrent);
  int64_t n_inputs;
  const REAL *x = layer_input(s, a, layer, nt, &n_inputs);
  if (is_recurrent) {
    x = h_of_previous_step(s, layer, nt);
    n_inputs = x ? s->h : 0;
  }
  double sum = b ? (double)b[row] : 0;
  for (int64_t i = 0; i < n_inputs; i++)
    sum += (double)w[row * (is_recurrent ? s->h : n_inputs) + i] * x[i];
  return sum;
}

static void run_step(const gru_sizes *s, const clv_kernel_args *a, int layer, int64_t nt) {
  const REAL *previous_h = h_of_previous_step(s, layer, nt);
  for (int64_t j = 0; j < s->h; j++) {
    double ih[3], hh[3];
    for (int64_t gate = 0; gate < 3; gate++) {
      ih[gate] = compute_gate_sum(s, a, layer, nt, gate * s->h + j, false);
      hh[gate] = compute_gate_sum(s, a, layer, nt, gate * s->h + j, true);
    }
    double r = 1 / (1 + exp(-(ih[0] + hh[0]))), z = 1 / (1 + exp(-(ih[1] + hh[1])));
    double n = tanh(ih[2] + r * hh[2]);
    step_row(s, layer, nt, GATE_R)[j] = (REAL)r;
    step_row(s, layer, nt, GATE_Z)[j] = (REAL)z;
    step_row(s, layer, nt, GATE_N)[j] = (REAL)n;
    step_row(s, layer, nt, H_SUM_OF_N)[j] = (REAL)hh[2];
    step_row(s, layer, nt, HIDDEN)[j] = (REAL)((1 - z) * n + z * (previous_h ? previous_h[j] : 0));
  }
}

static clv_code gru_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  gru_sizes s = make_sizes((const clv_ref_kernel *)base, a);
  (void)err;
  for (int layer = 0; layer < s.n_layers; layer++)
    for (int64_t nt = 0; nt < s.n * s.t; nt++) run_step(&s, a, layer, nt);
  for (int64_t nt = 0; nt < s.n * s.t; nt++)
    memcpy((REAL *)a->out + nt * s.h, step_row(&s, s.n_layers - 1, nt, HIDDEN),
           (size_t)s.h * sizeof(REAL));
  return CLV_OK;
}

/* Gradients that the backward of one layer computes, all in the scratch buffer. */
typedef struct gru_gradients {
  REAL *dgates_ih; /* gradients of W_ih x + b_ih */
  REAL *dgates_hh; /* gradients of W_hh h + b_hh */
  REAL *dx;        /* gradient of a layer's input */
  REAL *dh;        /* gradient of h that the following step has passed back */
} gru_gradients;

/* Computes the gradients of the gates at step nt, then g->dh, the gradient of h of the step before.
 * outer_dh: gradient of the layer's output. */
static void run_step_backward(const gru_sizes *s, const clv_kernel_args *a, int layer, int64_t nt,
                              const REAL *outer_dh, const gru_gradients *g) {
  const REAL *previous_h = h_of_previous_step(s, layer, nt), *w = layer_param(s, a, layer, 1);
  REAL *dgates_ih = g->dgates_ih + nt * 3 * s->h, *dgates_hh = g->dgates_hh + nt * 3 * s->h;
  bool is_last_step = nt % s->t == s->t - 1;
  for (int64_t j = 0; j < s->h; j++) {
    double r = step_row(s, layer, nt, GATE_R)[j], z = step_row(s, layer, nt, GATE_Z)[j];
    double n = step_row(s, layer, nt, GATE_N)[j], q = step_row(s, layer, nt, H_SUM_OF_N)[j];
    double dh = outer_dh[nt * s->h + j] + (is_last_step ? 0 : (double)g->dh[j]);
    double dn = dh * (1 - z) * (1 - n * n);
    dgates_ih[j] = dgates_hh[j] = (REAL)(dn * q * r * (1 - r));
    dgates_ih[s->h + j] = dgates_hh[s->h + j] =
        (REAL)(dh * ((previous_h ? previous_h[j] : 0) - n) * z * (1 - z));
    dgates_ih[2 * s->h + j] = (REAL)dn;
    dgates_hh[2 * s->h + j] = (REAL)(dn * r);
    g->dh[j] = (REAL)(dh * z);
  }
  for (int64_t j = 0; j < s->h; j++) {
    double sum = g->dh[j];
    for (int64_t row = 0; row < 3 * s->h; row++) sum += (double)dgates_hh[row] * w[row * s->h + j];
    g->dh[j] = (REAL)sum;
  }
}

/* Computes the gradients of W_ih and b_ih, or if is_recurrent of W_hh and b_hh. d: gradients of the
 * gates in all steps. */
static void compute_weight_grads(const gru_sizes *s, const clv_kernel_args *a, int layer,
                                 bool is_recurrent, const REAL *d) {
  void *const *to = &a->dparam[layer * s->n_slots];
  int64_t n_inputs = is_recurrent || layer ? s->h : s->f, ignored_n_inputs;
  for (int64_t row = 0; row < 3 * s->h; row++)
    for (int64_t i = 0; i <= n_inputs; i++) {
      double sum = 0;
      for (int64_t nt = 0; nt < s->n * s->t; nt++) {
        const REAL *x = is_recurrent ? h_of_previous_step(s, layer, nt)
                                     : layer_input(s, a, layer, nt, &ignored_n_inputs);
        sum += (double)d[nt * 3 * s->h + row] * (i == n_inputs ? 1 : x ? (double)x[i] : 0);
      }
      if (i < n_inputs)
        store_or_add((REAL *)to[is_recurrent] + row * n_inputs + i, sum, a->accumulate);
      else if (s->n_slots == 4)
        store_or_add((REAL *)to[2 + is_recurrent] + row, sum, a->accumulate);
    }
}

/* Computes dx = d W_ih for all steps. d: gradients of the gates. */
static void compute_input_grad(const gru_sizes *s, const clv_kernel_args *a, int layer,
                               const REAL *d, REAL *dx) {
  const REAL *w = layer_param(s, a, layer, 0);
  int64_t n_inputs = layer ? s->h : s->f;
  for (int64_t nt = 0; nt < s->n * s->t; nt++)
    for (int64_t i = 0; i < n_inputs; i++) {
      double sum = 0;
      for (int64_t row = 0; row < 3 * s->h; row++)
        sum += (double)d[nt * 3 * s->h + row] * w[row * n_inputs + i];
      dx[nt * n_inputs + i] = (REAL)sum;
    }
}

static clv_code gru_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  gru_sizes s = make_sizes(k, a);
  gru_gradients g = {.dgates_ih = a->scratch};
  g.dgates_hh = g.dgates_ih + 3 * k->n_out;
  g.dx = g.dgates_hh + 3 * k->n_out;
  g.dh = g.dx + k->n_out;
  (void)err;
  for (int layer = s.n_layers - 1; layer >= 0; layer--) {
    const REAL *outer_dh = layer == s.n_layers - 1 ? a->dout : g.dx;
    for (int64_t n = 0; n < s.n; n++)
      for (int64_t t = s.t - 1; t >= 0; t--)
        run_step_backward(&s, a, layer, n * s.t + t, outer_dh, &g);
    if (k->d.need_dw) compute_weight_grads(&s, a, layer, false, g.dgates_ih);
    if (k->d.need_dw) compute_weight_grads(&s, a, layer, true, g.dgates_hh);
    if (layer || a->din[0]) compute_input_grad(&s, a, layer, g.dgates_ih, layer ? g.dx : a->din[0]);
  }
  return CLV_OK;
}

CLV_OP_ROW(gru) = {
    .name = "gru",
    .doc =
        "per layer and step, zeros before the first: r = sigmoid(W_ir x_t + b_ir + W_hr h_(t-1) + "
        "b_hr), z likewise, n = tanh(W_in x_t + b_in + r (W_hn h_(t-1) + b_hn)); "
        "h_t = (1 - z) n + z h_(t-1); "
        "x: [N, T, F], y: h of the last layer [N, T, out] (torch.nn.GRU, batch_first=True)",
    .torch_module = "GRU(out=hidden_size, layers=num_layers, bias=bias)",
    .torch_needs = "batch_first=True, bidirectional=False, dropout=0.0",
    .n_in = 1,
    .mixing = CLV_MIXES_ALL,
    .attrs = {RECURRENT_ATTRS(3)},
    .shape = gru_shape,
    .slots = gru_slots,
    .max_params = 4 * CLV_LSTM_LAYERS,
    .forward = gru_forward,
    .backward_input = gru_backward,
    .saved_for_dw = CLV_SAVE_IN0,
    .fused_grads = true,
    .saved_bytes = gru_saved_bytes,
    .scratch_bytes = gru_scratch_bytes,
};
