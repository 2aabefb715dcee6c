/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes LSTMs over copies that the host has made. No check and no sanitizer observes these
 * loops.
 */
#include <math.h>

#include "tests/gpu/sim/sim_int.h"

enum { GATE_I, GATE_F, GATE_G, GATE_O, CELL, HIDDEN, ROWS };
enum { W_IN, W_HIDDEN, B_IN, B_HIDDEN };

static int64_t get_width(const sim_lstm *l, int layer) { return layer ? l->d->h : l->d->f; }

static double *get_parameter(const sim_lstm *l, double *space, int layer, int parameter) {
  return parameter < (l->d->bias ? 4 : 2) ? space + l->space->param_index[layer][parameter] : NULL;
}

/* Returns row `row` of step t of sample n: a gate (i, f, g or o), the cell state c or the hidden
 * state h. */
static double *get_row(const sim_lstm *l, int layer, int64_t n, int64_t t, int row) {
  return l->row_values + ((((int64_t)layer * l->d->n + n) * l->d->t + t) * ROWS + row) * l->d->h;
}

static double *get_gate_gradients(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  return l->gate_gradients + (((int64_t)layer * l->d->n + n) * l->d->t + t) * 4 * l->d->h;
}

static const double *get_input(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  return layer ? get_row(l, layer - 1, n, t, HIDDEN) : l->x + (n * l->d->t + t) * l->d->f;
}

static double compute_dot_product(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

/* ---- forward of the LSTM --------------------------------------------------------------------- */

/* Returns value r of the four gates of a step, [4 h], before the activations. */
static double compute_gate(const sim_lstm *l, int layer, int64_t n, int64_t t, int64_t r) {
  int64_t width = get_width(l, layer), h = l->d->h;
  const double *bias = get_parameter(l, l->weights, layer, B_IN);
  const double *hidden_bias = get_parameter(l, l->weights, layer, B_HIDDEN);
  double sum = bias ? bias[r] + hidden_bias[r] : 0;
  sum += compute_dot_product(get_parameter(l, l->weights, layer, W_IN) + r * width,
                             get_input(l, layer, n, t), width);
  if (t)
    sum += compute_dot_product(get_parameter(l, l->weights, layer, W_HIDDEN) + r * h,
                               get_row(l, layer, n, t - 1, HIDDEN), h);
  return r / h == GATE_G ? tanh(sum) : 1 / (1 + exp(-sum));
}

static void run_step(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  int64_t h = l->d->h;
  double *row = get_row(l, layer, n, t, 0);
  for (int64_t r = 0; r < 4 * h; r++) row[r] = compute_gate(l, layer, n, t, r);
  for (int64_t j = 0; j < h; j++) {
    double previous_cell = t ? get_row(l, layer, n, t - 1, CELL)[j] : 0;
    double c = row[GATE_F * h + j] * previous_cell + row[GATE_I * h + j] * row[GATE_G * h + j];
    row[CELL * h + j] = c;
    row[HIDDEN * h + j] = row[GATE_O * h + j] * tanh(c);
  }
}

void sim_lstm_forward(const sim_lstm *l) {
  for (int layer = 0; layer < l->d->layers; layer++)
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t t = 0; t < l->d->t; t++) run_step(l, layer, n, t);
}

const double *sim_lstm_write_output(const sim_lstm *l, int64_t n, int64_t t) {
  return get_row(l, l->d->layers - 1, n, t, HIDDEN);
}

/* ---- backward of the LSTM -------------------------------------------------------------------- */

/* Computes the gradients of one step. dh_from_above: gradient of the step's h from the layer above;
 * dc [h]: gradient of the cell state, carried from step to step. */
static void run_step_backward(const sim_lstm *l, int layer, int64_t n, int64_t t,
                              const double *dh_from_above, double *dc) {
  int64_t h = l->d->h;
  const double *row = get_row(l, layer, n, t, 0),
               *w = get_parameter(l, l->weights, layer, W_HIDDEN);
  const double *next_gate_gradients =
      t + 1 < l->d->t ? get_gate_gradients(l, layer, n, t + 1) : NULL;
  double *d = get_gate_gradients(l, layer, n, t);
  for (int64_t j = 0; j < h; j++) {
    double dh = dh_from_above[j], tanh_of_cell = tanh(row[CELL * h + j]);
    for (int64_t r = 0; next_gate_gradients && r < 4 * h; r++)
      dh += next_gate_gradients[r] * w[r * h + j];
    double i = row[GATE_I * h + j], f = row[GATE_F * h + j];
    double g = row[GATE_G * h + j], o = row[GATE_O * h + j];
    double previous_cell = t ? get_row(l, layer, n, t - 1, CELL)[j] : 0;
    double cell = (next_gate_gradients ? dc[j] : 0) + dh * o * (1 - tanh_of_cell * tanh_of_cell);
    d[GATE_I * h + j] = cell * g * i * (1 - i);
    d[GATE_F * h + j] = cell * previous_cell * f * (1 - f);
    d[GATE_G * h + j] = cell * i * (1 - g * g);
    d[GATE_O * h + j] = dh * tanh_of_cell * o * (1 - o);
    dc[j] = cell * f;
  }
}

static void compute_input_gradient(const sim_lstm *l, int layer, double *dx) {
  int64_t width = get_width(l, layer), steps = l->d->n * l->d->t;
  const double *w = get_parameter(l, l->weights, layer, W_IN);
  for (int64_t i = 0; i < steps * width; i++) dx[i] = 0;
  for (int64_t at = 0; at < steps; at++) {
    const double *d = get_gate_gradients(l, layer, 0, at);
    for (int64_t r = 0; r < 4 * l->d->h; r++)
      for (int64_t q = 0; q < width; q++) dx[at * width + q] += d[r] * w[r * width + q];
  }
}

void sim_lstm_backward_data(const sim_lstm *l) {
  int64_t h = l->d->h, t = l->d->t;
  double *dc = sim_allocate_fresh((size_t)h * sizeof *dc);
  for (int layer = l->d->layers - 1; layer >= 0; layer--) {
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t at = t; at-- > 0;)
        run_step_backward(l, layer, n, at, l->dy + (n * t + at) * h, dc);
    /* the gradient of this layer's input is `dh_from_above` of the layer below */
    compute_input_gradient(l, layer, layer ? l->dy : l->dx);
  }
  sim_free_fresh(dc);
}

static void compute_weight_gradients(const sim_lstm *l, int layer, int64_t n, int64_t t,
                                     int64_t r) {
  int64_t width = get_width(l, layer), h = l->d->h;
  double d = get_gate_gradients(l, layer, n, t)[r];
  const double *x = get_input(l, layer, n, t);
  double *in = get_parameter(l, l->weight_gradients, layer, W_IN) + r * width;
  double *hidden = get_parameter(l, l->weight_gradients, layer, W_HIDDEN) + r * h;
  for (int64_t q = 0; q < width; q++) in[q] += d * x[q];
  for (int64_t q = 0; t && q < h; q++) hidden[q] += d * get_row(l, layer, n, t - 1, HIDDEN)[q];
  for (int parameter = B_IN; l->d->bias && parameter <= B_HIDDEN; parameter++)
    get_parameter(l, l->weight_gradients, layer, parameter)[r] += d;
}

void sim_lstm_backward_weight(const sim_lstm *l) {
  for (int layer = 0; layer < l->d->layers; layer++)
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t t = 0; t < l->d->t; t++)
        for (int64_t r = 0; r < 4 * l->d->h; r++) compute_weight_gradients(l, layer, n, t, r);
}
