/* SPDX-License-Identifier: Apache-2.0
 *
 * LSTMs as the simulation has them, by cuDNN's conventions: one space of weights, first the
 * matrices of all layers and then their biases; a reserve that a forward writes, and that the two
 * backwards take over in their order; gradients of weights that are added. Between two parameters
 * lies a value that belongs to nobody.
 */
#include "tests/gpu/sim/sim_int.h"

/* Values of the reserve's first element: which passes have run. Then the offsets of its rows and of
 * its gradients. */
enum { FORWARD_DONE = 1, DATA_DONE = 2 };
enum { RESERVE_ROWS = 16 };

static size_t steps_of(const clv_cuda_lstm_desc *d) {
  return (size_t)(d->layers * d->n * d->t * d->h);
}

static size_t place(size_t *ret, size_t at, int64_t values) {
  *ret = at;
  return at + (size_t)values + 1;
}

void sim_lstm_space(const clv_cuda_lstm_desc *d, clv_cuda_lstm_space *ret) {
  size_t at = 1;
  *ret = (clv_cuda_lstm_space){.workspace = 4096 + (size_t)(d->h % 5) * 8};
  for (int layer = 0; layer < d->layers; layer++) {
    at = place(&ret->at[layer][0], at, 4 * d->h * (layer ? d->h : d->f));
    at = place(&ret->at[layer][1], at, 4 * d->h * d->h);
  }
  for (int layer = 0; d->bias && layer < d->layers; layer++)
    for (int which = 2; which < 4; which++) at = place(&ret->at[layer][which], at, 4 * d->h);
  ret->weights = at * sizeof(float);
  ret->reserve = d->has_backward ? (RESERVE_ROWS + 10 * steps_of(d)) * sizeof(float) : 0;
}

/* ---- there and back -------------------------------------------------------------------------- */

/* The values of each parameter; what lies between is not looked at. */
static int64_t values_of(const clv_cuda_lstm_desc *d, int layer, int which) {
  if (which > 1) return d->bias ? 4 * d->h : 0;
  return 4 * d->h * (which || layer ? d->h : d->f);
}

/* With TF32 the weights and x are rounded; what a layer hands on is not. */
static clv_cuda_math math_of(const clv_cuda_lstm_desc *d) {
  return d->tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

static double *load_params(const clv_cuda_lstm_desc *d, const clv_cuda_lstm_space *s,
                           const float *space, clv_cuda_math math) {
  double *all = sim_fresh_take(s->weights / sizeof(float) * sizeof *all);
  for (int i = 0; i < 4 * d->layers; i++)
    for (int64_t j = 0; j < values_of(d, i / 4, i % 4); j++) {
      size_t at = s->at[i / 4][i % 4] + (size_t)j;
      all[at] = sim_factor(i % 4 < 2 ? math : CLV_CUDA_F32, space, at);
    }
  return all;
}

static void store_params(const clv_cuda_lstm_desc *d, const clv_cuda_lstm_space *s,
                         const double *all, float *space) {
  for (int i = 0; i < 4 * d->layers; i++)
    for (int64_t j = 0; j < values_of(d, i / 4, i % 4); j++) {
      size_t at = s->at[i / 4][i % 4] + (size_t)j;
      space[at] = (float)all[at];
    }
}

static double *factors(const float *x, size_t n, clv_cuda_math math) {
  double *all = sim_fresh_take(n * sizeof *all);
  for (size_t i = 0; i < n; i++) all[i] = sim_factor(math, x, i);
  return all;
}

static double *doubles(const float *x, size_t n) { return factors(x, n, CLV_CUDA_F32); }

static void floats(const double *all, size_t n, float *x) {
  for (size_t i = 0; i < n; i++) x[i] = (float)all[i];
}

static size_t inputs(const clv_cuda_lstm_desc *d) { return (size_t)(d->n * d->t * d->f); }
static size_t outputs(const clv_cuda_lstm_desc *d) { return (size_t)(d->n * d->t * d->h); }

/* ---- the calls ------------------------------------------------------------------------------- */

void sim_lstm_run_forward(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_space(d, &s);
  size_t n = steps_of(d);
  sim_lstm l = {.d = d,
                .space = &s,
                .weights = load_params(d, &s, op->operand[SIM_LSTM_WEIGHTS], math_of(d)),
                .x = factors(op->operand[SIM_LSTM_X], inputs(d), math_of(d)),
                .rows = sim_fresh_take(6 * n * sizeof(double))};
  sim_lstm_forward(&l);
  for (int64_t i = 0; i < d->n * d->t; i++)
    floats(sim_lstm_output(&l, i / d->t, i % d->t), (size_t)d->h,
           (float *)op->operand[SIM_LSTM_Y] + i * d->h);
  float *reserve = op->operand[SIM_LSTM_RESERVE];
  if (d->has_backward) reserve[0] = FORWARD_DONE;
  if (d->has_backward) floats(l.rows, 6 * n, reserve + RESERVE_ROWS);
  sim_fresh_give(l.weights);
  sim_fresh_give(l.x);
  sim_fresh_give(l.rows);
}

/* The reserve must be that of the forward which wrote y. */
static void check_reserve(const sim_op *op, const sim_lstm *l, int stage) {
  const float *reserve = op->operand[SIM_LSTM_RESERVE], *y = op->operand[SIM_LSTM_Y];
  const clv_cuda_lstm_desc *d = l->d;
  if (reserve[0] != (float)stage)
    sim_fault("the reserve of an LSTM is not one of %s",
              stage == FORWARD_DONE ? "a forward" : "a backward for the input");
  for (int64_t i = 0; i < d->n * d->t; i++)
    for (int64_t j = 0; j < d->h; j++)
      if (y[i * d->h + j] != (float)sim_lstm_output(l, i / d->t, i % d->t)[j])
        sim_fault("y of an LSTM is not what the forward of its reserve wrote");
}

static sim_lstm operands_with_reserve(const sim_op *op, const clv_cuda_lstm_space *s, int stage) {
  size_t n = steps_of(&op->desc.lstm);
  const float *reserve = (float *)op->operand[SIM_LSTM_RESERVE] + RESERVE_ROWS;
  sim_lstm l = {.d = &op->desc.lstm, .space = s, .rows = doubles(reserve, 6 * n)};
  l.dgates =
      stage == DATA_DONE ? doubles(reserve + 6 * n, 4 * n) : sim_fresh_take(4 * n * sizeof(double));
  check_reserve(op, &l, stage);
  return l;
}

void sim_lstm_run_backward_data(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_space(d, &s);
  sim_lstm l = operands_with_reserve(op, &s, FORWARD_DONE);
  l.weights = load_params(d, &s, op->operand[SIM_LSTM_WEIGHTS], math_of(d));
  l.dy = doubles(op->operand[SIM_LSTM_DY], outputs(d));
  l.dx = sim_fresh_take(inputs(d) * sizeof(double));
  sim_lstm_backward_data(&l);
  floats(l.dx, inputs(d), op->operand[SIM_LSTM_DX]);
  floats(l.dgates, 4 * steps_of(d),
         (float *)op->operand[SIM_LSTM_RESERVE] + RESERVE_ROWS + 6 * steps_of(d));
  ((float *)op->operand[SIM_LSTM_RESERVE])[0] = DATA_DONE;
  double *const all[] = {l.rows, l.dgates, l.weights, l.dy, l.dx};
  for (size_t i = 0; i < CLV_COUNT(all); i++) sim_fresh_give(all[i]);
}

void sim_lstm_run_backward_weight(const sim_op *op) {
  const clv_cuda_lstm_desc *d = &op->desc.lstm;
  clv_cuda_lstm_space s;
  sim_lstm_space(d, &s);
  sim_lstm l = operands_with_reserve(op, &s, DATA_DONE);
  l.x = factors(op->operand[SIM_LSTM_X], inputs(d), math_of(d));
  l.dweights = load_params(d, &s, op->operand[SIM_LSTM_DWEIGHTS], CLV_CUDA_F32);
  sim_lstm_backward_weight(&l);
  store_params(d, &s, l.dweights, op->operand[SIM_LSTM_DWEIGHTS]);
  double *const all[] = {l.rows, l.dgates, l.x, l.dweights};
  for (size_t i = 0; i < CLV_COUNT(all); i++) sim_fresh_give(all[i]);
}
