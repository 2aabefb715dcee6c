/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes LSTMs for the simulated device, by cuDNN's conventions. The weight space has first the
 * matrices of all layers, then their biases. A forward writes the reserve, a buffer which the
 * backward for the data and then the backward for the weights read. Gradients of weights are added
 * to their present values. Between two parameters is a value that belongs to no parameter.
 */
#include "tests/gpu/sim/sim_int.h"

/* The reserve is the buffer that cuDNN's forward leaves for the backward. The first element of the
 * reserve says which passes have run: FORWARD_DONE or DATA_DONE. The rows of sim_lstm begin at
 * element RESERVE_ROWS, and the gate gradients follow them. */
enum { FORWARD_DONE = 1, DATA_DONE = 2 };
enum { RESERVE_ROWS = 16 };

static size_t count_step_values(const clv_cuda_lstm_desc *d) {
  return (size_t)(d->layers * d->n * d->t * d->h);
}

static size_t place_parameter(size_t *ret, size_t offset, int64_t n_values) {
  *ret = offset;
  return offset + (size_t)n_values + 1;
}

void sim_lstm_compute_space(const clv_cuda_lstm_desc *d, clv_cuda_lstm_space *ret) {
  size_t at = 1;
  *ret = (clv_cuda_lstm_space){.workspace = 4096 + (size_t)(d->h % 5) * 8};
  for (int layer = 0; layer < d->layers; layer++) {
    at = place_parameter(&ret->param_index[layer][0], at, 4 * d->h * (layer ? d->h : d->f));
    at = place_parameter(&ret->param_index[layer][1], at, 4 * d->h * d->h);
  }
  for (int layer = 0; d->bias && layer < d->layers; layer++)
    for (int parameter = 2; parameter < 4; parameter++)
      at = place_parameter(&ret->param_index[layer][parameter], at, 4 * d->h);
  ret->weights = at * sizeof(float);
  ret->reserve = d->has_backward ? (RESERVE_ROWS + 10 * count_step_values(d)) * sizeof(float) : 0;
}

/* ---- conversion to doubles and back ---------------------------------------------------------- */

/* Returns the number of values of a parameter. Space between parameters is not counted. */
static int64_t count_values(const clv_cuda_lstm_desc *d, int layer, int parameter) {
  if (parameter > 1) return d->bias ? 4 * d->h : 0;
  return 4 * d->h * (parameter || layer ? d->h : d->f);
}

/* Returns the type to which weights and x are rounded: TF32 if the LSTM may use it, else f32.
 * Values that a layer passes to the next layer are never rounded. */
static clv_cuda_math get_math(const clv_cuda_lstm_desc *d) {
  return d->tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

static double *load_params(const clv_cuda_lstm_desc *d, const clv_cuda_lstm_space *s,
                           const float *space, clv_cuda_math math) {
  double *doubles = sim_allocate_fresh(s->weights / sizeof(float) * sizeof *doubles);
  for (int i = 0; i < 4 * d->layers; i++)
    for (int64_t j = 0; j < count_values(d, i / 4, i % 4); j++) {
      size_t at = s->param_index[i / 4][i % 4] + (size_t)j;
      doubles[at] = sim_get_factor(i % 4 < 2 ? math : CLV_CUDA_F32, space, at);
    }
  return doubles;
}

static void store_params(const clv_cuda_lstm_desc *d, const clv_cuda_lstm_space *s,
                         const double *doubles, float *space) {
  for (int i = 0; i < 4 * d->layers; i++)
    for (int64_t j = 0; j < count_values(d, i / 4, i % 4); j++) {
      size_t at = s->param_index[i / 4][i % 4] + (size_t)j;
      space[at] = (float)doubles[at];
    }
}

static double *copy_rounded_factors(const float *x, size_t n, clv_cuda_math math) {
  double *doubles = sim_allocate_fresh(n * sizeof *doubles);
  for (size_t i = 0; i < n; i++) doubles[i] = sim_get_factor(math, x, i);
  return doubles;
}

static double *copy_to_doubles(const float *x, size_t n) {
  return copy_rounded_factors(x, n, CLV_CUDA_F32);
}

static void copy_to_floats(const double *doubles, size_t n, float *x) {
  for (size_t i = 0; i < n; i++) x[i] = (float)doubles[i];
}

static size_t count_inputs(const clv_cuda_lstm_desc *d) { return (size_t)(d->n * d->t * d->f); }
static size_t count_outputs(const clv_cuda_lstm_desc *d) { return (size_t)(d->n * d->t * d->h); }

/* ---- cuDNN's LSTM calls ---------------------------------------------------------------------- */

void sim_lstm_run_forward(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_compute_space(d, &s);
  size_t n = count_step_values(d);
  sim_lstm l = {.d = d,
                .space = &s,
                .weights = load_params(d, &s, op->operands[SIM_LSTM_WEIGHTS], get_math(d)),
                .x = copy_rounded_factors(op->operands[SIM_LSTM_X], count_inputs(d), get_math(d)),
                .row_values = sim_allocate_fresh(6 * n * sizeof(double))};
  sim_lstm_forward(&l);
  for (int64_t i = 0; i < d->n * d->t; i++)
    copy_to_floats(sim_lstm_write_output(&l, i / d->t, i % d->t), (size_t)d->h,
                   (float *)op->operands[SIM_LSTM_Y] + i * d->h);
  float *reserve = op->operands[SIM_LSTM_RESERVE];
  if (d->has_backward) reserve[0] = FORWARD_DONE;
  if (d->has_backward) copy_to_floats(l.row_values, 6 * n, reserve + RESERVE_ROWS);
  sim_free_fresh(l.weights);
  sim_free_fresh(l.x);
  sim_free_fresh(l.row_values);
}

/* Ends the test with a report unless the reserve's first element is `stage` and one forward has
 * written both the reserve and y. */
static void check_reserve(const sim_op *op, const sim_lstm *l, int stage) {
  const float *reserve = op->operands[SIM_LSTM_RESERVE], *y = op->operands[SIM_LSTM_Y];
  const clv_cuda_lstm_desc *d = l->d;
  if (reserve[0] != (float)stage)
    sim_report_fault("the reserve of an LSTM is not one of %s",
                     stage == FORWARD_DONE ? "a forward" : "a backward for the input");
  for (int64_t i = 0; i < d->n * d->t; i++)
    for (int64_t j = 0; j < d->h; j++)
      if (y[i * d->h + j] != (float)sim_lstm_write_output(l, i / d->t, i % d->t)[j])
        sim_report_fault("y of an LSTM is not what the forward of its reserve wrote");
}

static sim_lstm make_operands_from_reserve(const sim_op *op, const clv_cuda_lstm_space *s,
                                           int stage) {
  size_t n = count_step_values(&op->desc.lstm);
  const float *reserve = (float *)op->operands[SIM_LSTM_RESERVE] + RESERVE_ROWS;
  sim_lstm l = {.d = &op->desc.lstm, .space = s, .row_values = copy_to_doubles(reserve, 6 * n)};
  l.gate_gradients = stage == DATA_DONE ? copy_to_doubles(reserve + 6 * n, 4 * n)
                                        : sim_allocate_fresh(4 * n * sizeof(double));
  check_reserve(op, &l, stage);
  return l;
}

void sim_lstm_run_backward_data(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_compute_space(d, &s);
  sim_lstm l = make_operands_from_reserve(op, &s, FORWARD_DONE);
  l.weights = load_params(d, &s, op->operands[SIM_LSTM_WEIGHTS], get_math(d));
  l.dy = copy_to_doubles(op->operands[SIM_LSTM_DY], count_outputs(d));
  l.dx = sim_allocate_fresh(count_inputs(d) * sizeof(double));
  sim_lstm_backward_data(&l);
  copy_to_floats(l.dx, count_inputs(d), op->operands[SIM_LSTM_DX]);
  copy_to_floats(l.gate_gradients, 4 * count_step_values(d),
                 (float *)op->operands[SIM_LSTM_RESERVE] + RESERVE_ROWS + 6 * count_step_values(d));
  ((float *)op->operands[SIM_LSTM_RESERVE])[0] = DATA_DONE;
  double *const arrays[] = {l.row_values, l.gate_gradients, l.weights, l.dy, l.dx};
  for (size_t i = 0; i < CLV_COUNT(arrays); i++) sim_free_fresh(arrays[i]);
}

void sim_lstm_run_backward_weight(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_compute_space(d, &s);
  sim_lstm l = make_operands_from_reserve(op, &s, DATA_DONE);
  l.x = copy_rounded_factors(op->operands[SIM_LSTM_X], count_inputs(d), get_math(d));
  l.weight_gradients = load_params(d, &s, op->operands[SIM_LSTM_DWEIGHTS], CLV_CUDA_F32);
  sim_lstm_backward_weight(&l);
  store_params(d, &s, l.weight_gradients, op->operands[SIM_LSTM_DWEIGHTS]);
  double *const arrays[] = {l.row_values, l.gate_gradients, l.x, l.weight_gradients};
  for (size_t i = 0; i < CLV_COUNT(arrays); i++) sim_free_fresh(arrays[i]);
}
