/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares every backward function of ref, in double, with central differences of its forward: with
 * L = sum(y * dout), dL/dv is (L(v + h) - L(v - h)) / (2 * h) for each value v of input or
 * parameter.
 */
#include "tests/ops/each_op.h"
#include "tests/ops/run_int.h"

static const run_options in_double = {.dtype = CLV_F64};

static double compute_objective(const op_case *c, values *s) {
  run_options o = in_double;
  double sum = 0;
  o.backend = clv_backend_ref();
  if (!run_case(&o, &c->d, s, NULL)) exit_with_message("ref lacks an op");
  for (size_t i = 0; i < s->n[V_OUT]; i++) sum += s->v[V_OUT][i] * s->v[V_DOUT][i];
  return sum;
}

/* Compares gradient `result` with central differences over tensor `input_index`, for at most 50
 * evenly spread values of this tensor. */
static double check_gradient(const op_case *c, const values *point, int input_index, int result) {
  const double h = 1e-5;
  size_t stride = point->n[input_index] / 50 + 1;
  double analytic[64], numeric[64];
  size_t n = 0;
  values s;
  allocate_values(&s, &c->d);
  copy_given_values(&s, point);
  for (size_t i = 0; i < point->n[input_index]; i += stride, n++) {
    double v = point->v[input_index][i];
    s.v[input_index][i] = v + h;
    double loss_above = compute_objective(c, &s);
    s.v[input_index][i] = v - h;
    double loss_below = compute_objective(c, &s);
    s.v[input_index][i] = v;
    analytic[n] = point->v[result][i];
    numeric[n] = (loss_above - loss_below) / (2 * h);
  }
  free_values(&s);
  double distance = compute_distance(analytic, numeric, n), max_error = 0;
  for (size_t i = 0; i < n; i++) {
    double error = fabs(analytic[i] - numeric[i]);
    /* a NaN in `max_error` stays, so that the test fails */
    if (!(error <= max_error) && !isnan(max_error)) max_error = error;
  }
  /* If the true gradient is 0 (softmax of one value), only the absolute error is meaningful. */
  if (!(max_error <= 1e-8) && !(distance <= 1e-6))
    fail_msg("%s: %s is %.2e from central differences", c->name,
             write_value_name(&c->d, result, (char[40]){0}), distance);
  return max_error > 1e-8 ? distance : 0;
}

/* True if the case is differentiable. Other cases are compared with the golden files alone: ties,
 * the ends of bce's range, and an embedding with a padding row, which gets no gradient although
 * outputs depend on it. */
static bool is_differentiable(const op_case *c) {
  return c->is_small && !(c->key_words >> CLV_ATTR_PADDING_IDX & 1) &&
         (c->input_fill == FILL_NORMAL || c->input_fill == FILL_UNIT || c->input_fill == FILL_BIG);
}

/* Returns the largest distance of any gradient of the case from its central differences. */
static double check_case(const op_case *c) {
  values point;
  double max_distance = 0;
  allocate_values(&point, &c->d);
  draw_case(c, &point);
  compute_objective(c, &point);
  for (int j = V_DIN; j < V_STATISTICS_AFTER; j++) {
    int input_index = j < V_DPARAM ? j - V_DIN + V_IN : j - V_DPARAM + V_PARAM;
    if (point.n[j]) max_distance = fmax(max_distance, check_gradient(c, &point, input_index, j));
  }
  free_values(&point);
  return max_distance;
}

static void test_op(clv_op op) {
  double max_distance = 0;
  int n_run = 0;
  for (int i = 0; i < n_cases; i++) {
    const op_case *c = &cases[i];
    if (c->d.op != op || !is_differentiable(c)) continue;
    max_distance = fmax(max_distance, check_case(c));
    n_run++;
  }
  print_message("%-16s %d cases, largest distance %.1e\n", clv_op_name(op), n_run, max_distance);
  assert_true(n_run > 0);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("grad", test_op, argv);
}
