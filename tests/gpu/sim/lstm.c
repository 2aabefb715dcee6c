/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of LSTMs, over copies that the host has made: nobody watches them.
 */
#include <math.h>

#include "tests/gpu/sim/sim_int.h"

enum { GATE_I, GATE_F, GATE_G, GATE_O, CELL, HIDDEN, ROWS };
enum { W_IN, W_HIDDEN, B_IN, B_HIDDEN };

static int64_t width_of(const sim_lstm *l, int layer) { return layer ? l->d->h : l->d->f; }

static double *param_of(const sim_lstm *l, double *space, int layer, int which) {
  return which < (l->d->bias ? 4 : 2) ? space + l->space->at[layer][which] : NULL;
}

/* Returns row `row` (i, f, g, o, c or h) of step t of sample n. */
static double *row_of(const sim_lstm *l, int layer, int64_t n, int64_t t, int row) {
  return l->rows + ((((int64_t)layer * l->d->n + n) * l->d->t + t) * ROWS + row) * l->d->h;
}

static double *dgates_of(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  return l->dgates + (((int64_t)layer * l->d->n + n) * l->d->t + t) * 4 * l->d->h;
}

static const double *input_of(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  return layer ? row_of(l, layer - 1, n, t, HIDDEN) : l->x + (n * l->d->t + t) * l->d->f;
}

static double dot(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Returns value r of the four gates of a step, before the activations. */
static double gate_of(const sim_lstm *l, int layer, int64_t n, int64_t t, int64_t r) {
  int64_t width = width_of(l, layer), h = l->d->h;
  const double *bias = param_of(l, l->weights, layer, B_IN);
  const double *other = param_of(l, l->weights, layer, B_HIDDEN);
  double sum = bias ? bias[r] + other[r] : 0;
  sum += dot(param_of(l, l->weights, layer, W_IN) + r * width, input_of(l, layer, n, t), width);
  if (t)
    sum += dot(param_of(l, l->weights, layer, W_HIDDEN) + r * h, row_of(l, layer, n, t - 1, HIDDEN),
               h);
  return r / h == GATE_G ? tanh(sum) : 1 / (1 + exp(-sum));
}

static void step(const sim_lstm *l, int layer, int64_t n, int64_t t) {
  int64_t h = l->d->h;
  double *row = row_of(l, layer, n, t, 0);
  for (int64_t r = 0; r < 4 * h; r++) row[r] = gate_of(l, layer, n, t, r);
  for (int64_t j = 0; j < h; j++) {
    double before = t ? row_of(l, layer, n, t - 1, CELL)[j] : 0;
    double c = row[GATE_F * h + j] * before + row[GATE_I * h + j] * row[GATE_G * h + j];
    row[CELL * h + j] = c;
    row[HIDDEN * h + j] = row[GATE_O * h + j] * tanh(c);
  }
}

void sim_lstm_forward(const sim_lstm *l) {
  for (int layer = 0; layer < l->d->layers; layer++)
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t t = 0; t < l->d->t; t++) step(l, layer, n, t);
}

const double *sim_lstm_output(const sim_lstm *l, int64_t n, int64_t t) {
  return row_of(l, l->d->layers - 1, n, t, HIDDEN);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Computes the gradients of one step. outside: gradient of the step's h from the layer above; dc
 * [h] is carried from step to step. */
static void step_back(const sim_lstm *l, int layer, int64_t n, int64_t t, const double *outside,
                      double *dc) {
  int64_t h = l->d->h;
  const double *row = row_of(l, layer, n, t, 0), *w = param_of(l, l->weights, layer, W_HIDDEN);
  const double *after = t + 1 < l->d->t ? dgates_of(l, layer, n, t + 1) : NULL;
  double *d = dgates_of(l, layer, n, t);
  for (int64_t j = 0; j < h; j++) {
    double dh = outside[j], squashed = tanh(row[CELL * h + j]);
    for (int64_t r = 0; after && r < 4 * h; r++) dh += after[r] * w[r * h + j];
    double i = row[GATE_I * h + j], f = row[GATE_F * h + j];
    double g = row[GATE_G * h + j], o = row[GATE_O * h + j];
    double before = t ? row_of(l, layer, n, t - 1, CELL)[j] : 0;
    double cell = (after ? dc[j] : 0) + dh * o * (1 - squashed * squashed);
    d[GATE_I * h + j] = cell * g * i * (1 - i);
    d[GATE_F * h + j] = cell * before * f * (1 - f);
    d[GATE_G * h + j] = cell * i * (1 - g * g);
    d[GATE_O * h + j] = dh * squashed * o * (1 - o);
    dc[j] = cell * f;
  }
}

static void input_back(const sim_lstm *l, int layer, double *dx) {
  int64_t width = width_of(l, layer), steps = l->d->n * l->d->t;
  const double *w = param_of(l, l->weights, layer, W_IN);
  for (int64_t i = 0; i < steps * width; i++) dx[i] = 0;
  for (int64_t at = 0; at < steps; at++) {
    const double *d = dgates_of(l, layer, 0, at);
    for (int64_t r = 0; r < 4 * l->d->h; r++)
      for (int64_t q = 0; q < width; q++) dx[at * width + q] += d[r] * w[r * width + q];
  }
}

void sim_lstm_backward_data(const sim_lstm *l) {
  int64_t h = l->d->h, t = l->d->t;
  double *dc = sim_fresh_take((size_t)h * sizeof *dc);
  for (int layer = l->d->layers - 1; layer >= 0; layer--) {
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t at = t; at-- > 0;) step_back(l, layer, n, at, l->dy + (n * t + at) * h, dc);
    /* the gradient of this layer's input is the outside gradient of the layer below */
    input_back(l, layer, layer ? l->dy : l->dx);
  }
  sim_fresh_give(dc);
}

static void weights_back(const sim_lstm *l, int layer, int64_t n, int64_t t, int64_t r) {
  int64_t width = width_of(l, layer), h = l->d->h;
  double d = dgates_of(l, layer, n, t)[r];
  const double *x = input_of(l, layer, n, t);
  double *in = param_of(l, l->dweights, layer, W_IN) + r * width;
  double *hidden = param_of(l, l->dweights, layer, W_HIDDEN) + r * h;
  for (int64_t q = 0; q < width; q++) in[q] += d * x[q];
  for (int64_t q = 0; t && q < h; q++) hidden[q] += d * row_of(l, layer, n, t - 1, HIDDEN)[q];
  for (int which = B_IN; l->d->bias && which <= B_HIDDEN; which++)
    param_of(l, l->dweights, layer, which)[r] += d;
}

void sim_lstm_backward_weight(const sim_lstm *l) {
  for (int layer = 0; layer < l->d->layers; layer++)
    for (int64_t n = 0; n < l->d->n; n++)
      for (int64_t t = 0; t < l->d->t; t++)
        for (int64_t r = 0; r < 4 * l->d->h; r++) weights_back(l, layer, n, t, r);
}
