/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the reach analysis, which finds the values of a record that each sent element depends
 * on, with experiments: a graph is run, each value of a record is changed in turn, and the outputs
 * that change are counted. In these graphs each element depends on a value by one path. The
 * gradients of a value that is no record are tested likewise, in graphs that also read a record.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/reach/reach.h"

enum { PLACES = 48, GRAPHS = 400, LAYERS = 4, MAX_OUT = 4096 };

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static int64_t draw_below(uint32_t *state, int64_t n) {
  return (int64_t)next_random(state) % CLV_MAX(n, 1);
}

/* ---- random graphs --------------------------------------------------------------------------- */

/* Adds a layer over node *at, and sets *at to it. Adds nothing if the shapes do not fit. */
static void add_fitting_layer(clv_graph *g, clv_op op, clv_attrs attrs, int *at) {
  clv_err err;
  int node;
  if (clv_graph_add(g, op, &attrs, "", (uint32_t)g->n_nodes, at, 1, &node, &err) == CLV_OK)
    *at = node;
}

static clv_attrs draw_window(uint32_t *r, const clv_shape *in) {
  clv_attrs a = {.out = 2 * (1 + draw_below(r, 2)), .bias = true, .groups = 1};
  for (int i = 0; i < 2; i++) {
    a.kernel[i] = 1 + draw_below(r, 3);
    a.stride[i] = 1 + draw_below(r, 2);
    a.pad[i] = draw_below(r, 3);
    a.dilation[i] = 1 + draw_below(r, 3);
  }
  if (in->dim[1] % 2 == 0 && draw_below(r, 2)) a.groups = 2;
  return a;
}

static void add_reshape(clv_graph *g, uint32_t *r, int *at) {
  const clv_shape *in = &g->nodes[*at].shape;
  clv_attrs a = {0};
  int64_t n = 1;
  for (int i = 1; i < in->rank; i++) n *= in->dim[i];
  int64_t first = draw_below(r, 2) ? 1 : n % 2 ? 3 : 2;
  a.shape = (clv_shape){3, {first, n % (2 * first) ? 1 : 2, -1}};
  if (draw_below(r, 3) == 0) a.shape = (clv_shape){2, {first, -1}};
  add_fitting_layer(g, CLV_OP_RESHAPE, a, at);
}

static void add_slice(clv_graph *g, uint32_t *r, int *at) {
  const clv_shape *in = &g->nodes[*at].shape;
  if (in->rank < 2) return;
  clv_attrs a = {.dim = 1 + draw_below(r, in->rank - 1)};
  a.start = draw_below(r, in->dim[a.dim]);
  a.stop = a.start + 1 + draw_below(r, in->dim[a.dim] - a.start);
  add_fitting_layer(g, CLV_OP_SLICE, a, at);
}

static void add_concat(clv_graph *g, uint32_t *r, int *at) {
  clv_err err;
  int activated, node, input = *at;
  clv_attrs a = {.dim = 1 + draw_below(r, g->nodes[input].shape.rank - 1)};
  assert_int_equal(clv_graph_add(g, CLV_OP_SILU, &(clv_attrs){0}, "", (uint32_t)g->n_nodes, &input,
                                 1, &activated, &err),
                   CLV_OK);
  if (clv_graph_add(g, CLV_OP_CONCAT, &a, "", (uint32_t)g->n_nodes, (int[]){input, activated}, 2,
                    &node, &err) == CLV_OK)
    *at = node;
}

static void add_flip_roll_or_cumsum(clv_graph *g, uint32_t *r, int *at) {
  static const clv_op ops[] = {CLV_OP_FLIP, CLV_OP_ROLL, CLV_OP_CUMSUM};
  int rank = g->nodes[*at].shape.rank;
  clv_attrs a = {.dim = 1 + draw_below(r, rank - 1), .shifts = draw_below(r, 9) - 4};
  add_fitting_layer(g, ops[draw_below(r, 3)], a, at);
}

static void add_resampling(clv_graph *g, uint32_t *r, int *at) {
  static const clv_op ops[] = {CLV_OP_ADAPTIVE_AVGPOOL1D, CLV_OP_ADAPTIVE_AVGPOOL2D,
                               CLV_OP_UPSAMPLE_NEAREST, CLV_OP_UPSAMPLE_BILINEAR};
  int64_t h = 1 + draw_below(r, 6), w = 1 + draw_below(r, 6);
  if (g->nodes[*at].shape.rank == 3) h = w;
  clv_attrs a = {.output_size = {h, w}, .size = {h, w}, .align_corners = draw_below(r, 2)};
  add_fitting_layer(g, ops[draw_below(r, 4)], a, at);
}

/* Adds an LSTM or GRU over few steps. Over many steps, the output would hardly depend on the early
 * steps. */
static void add_recurrence(clv_graph *g, uint32_t *r, int *at) {
  const clv_shape *in = &g->nodes[*at].shape;
  clv_op op = draw_below(r, 2) ? CLV_OP_GRU : CLV_OP_LSTM;
  clv_attrs a = {.out = 2, .layers = 1 + draw_below(r, 2), .bias = true};
  if (in->rank == 3 && in->dim[1] <= 8) add_fitting_layer(g, op, a, at);
}

static const clv_op windows[] = {CLV_OP_CONV1D, CLV_OP_CONV2D, CLV_OP_CONV_TRANSPOSE1D,
                                 CLV_OP_CONV_TRANSPOSE2D};

static void add_layer(clv_graph *g, uint32_t *r, int *at) {
  const clv_shape *in = &g->nodes[*at].shape;
  if (in->rank < 2) return;
  clv_attrs window = draw_window(r, in), permutation = {.order = {2, {2, 1}}};
  if (in->rank == 4) permutation.order = (clv_shape){3, {2 + draw_below(r, 2), 1, 2}};
  if (in->rank == 4) permutation.order.dim[2] = 6 - permutation.order.dim[0] - 1;
  switch (draw_below(r, 13)) {
    case 0:
      add_reshape(g, r, at);
      break;
    case 1:
      add_slice(g, r, at);
      break;
    case 2:
      add_concat(g, r, at);
      break;
    case 3:
      add_fitting_layer(g, CLV_OP_LINEAR, (clv_attrs){.out = 1 + draw_below(r, 3), .bias = true},
                        at);
      break;
    case 4:
      add_recurrence(g, r, at);
      break;
    case 5:
      add_fitting_layer(g, CLV_OP_PERMUTE, permutation, at);
      break;
    case 6:
      add_fitting_layer(g, CLV_OP_MEAN, (clv_attrs){.dim = 1 + draw_below(r, in->rank - 1)}, at);
      break;
    case 7:
      window.dilation[0] = window.dilation[1] = 0; /* pools have no dilation */
      add_fitting_layer(g, in->rank == 3 ? CLV_OP_AVGPOOL1D : CLV_OP_AVGPOOL, window, at);
      break;
    case 8:
      add_flip_roll_or_cumsum(g, r, at);
      break;
    case 9:
      add_resampling(g, r, at);
      break;
    default:
      add_fitting_layer(g, windows[draw_below(r, 4)], window, at);
      break;
  }
}

static clv_graph *draw_graph(uint32_t *r) {
  clv_graph *g;
  clv_err err;
  int at;
  assert_int_equal(clv_graph_new(&g, &err), CLV_OK);
  assert_int_equal(clv_graph_add_input(g, "x", CLV_F32, &(clv_shape){2, {1, PLACES}}, &at, &err),
                   CLV_OK);
  /* The first shape has no channels, so each feature is a position. */
  add_fitting_layer(g, CLV_OP_RESHAPE, (clv_attrs){.shape = {3, {1, 1, PLACES}}}, &at);
  add_reshape(g, r, &at);
  for (int i = 0; i < LAYERS; i++) add_layer(g, r, &at);
  add_slice(g, r, &at);
  for (int i = 0; i < g->n_nodes; i++)
    assert_int_equal(clv_key_derive("layer", &(clv_key){{0}}, &(uint64_t){(uint64_t)i},
                                    sizeof(uint64_t), &g->nodes[i].key, &err),
                     CLV_OK);
  g->output_node = at;
  return g;
}

/* ---- outputs that change with a value of the record ------------------------------------------ */

typedef struct runner {
  /* true: the plan computes in f64, with gradients of the second input */
  bool is_f64_with_second_gradient;
  clv_params *params;
  clv_plan *plan;
  void *values, *gradients;
  size_t n_outputs;
} runner;

static void make_runner(const clv_graph *g, runner *ret) {
  clv_err err;
  const clv_shape *out = &g->nodes[g->output_node].shape;
  assert_int_equal(clv_params_make(g, &ret->params, &err), CLV_OK);
  ret->values = calloc(2, ret->params->total_bytes + 64);
  ret->gradients = calloc(2, ret->params->total_bytes + 64);
  clv_params_init(g, ret->params, ret->values);
  clv_plan_options o = {.backend = clv_backend_ref(),
                        .dtype = ret->is_f64_with_second_gradient ? CLV_F64 : CLV_F32,
                        .batch = 1,
                        .training = ret->is_f64_with_second_gradient,
                        .needs_input_grad = {false, ret->is_f64_with_second_gradient},
                        .threads = 1};
  if (clv_plan_new(g, ret->params, &o, &ret->plan, &err) != CLV_OK) fail_msg("%s", err.text);
  ret->n_outputs = 1;
  for (int i = 1; i < out->rank; i++) ret->n_outputs *= (size_t)out->dim[i];
}

static void free_runner(runner *w) {
  clv_plan_free(w->plan);
  clv_params_free(w->params);
  free(w->values);
  free(w->gradients);
}

static void run_forward(runner *w, const float *x, float *y) {
  clv_call *call;
  clv_err err;
  assert_int_equal(clv_plan_call_get(w->plan, &call, &err), CLV_OK);
  assert_int_equal(clv_plan_forward(w->plan, call, w->values, 1, (const void *[]){x}, false, y,
                                    &(clv_rng_key){0}, &err),
                   CLV_OK);
  clv_plan_call_put(w->plan, call);
}

/* Changes each position of the record in turn and compares the outputs. *ret_places: fewest
 * positions on which an output depends. *ret_outputs: fewest outputs that depend on a position.
 * Outputs and positions without any dependency do not count; 0: none has one. */
static void count_by_differences(const clv_graph *g, int64_t *ret_places, int64_t *ret_outputs) {
  static float before[MAX_OUT], after_first_change[MAX_OUT], after_second_change[MAX_OUT];
  static int64_t n_changing_positions[MAX_OUT];
  float x[PLACES];
  runner w = {0};
  *ret_places = *ret_outputs = 0;
  make_runner(g, &w);
  assert_true(w.n_outputs <= MAX_OUT);
  memset(n_changing_positions, 0, sizeof n_changing_positions);
  /* the values are small enough not to saturate an activation */
  for (int i = 0; i < PLACES; i++) x[i] = 0.1f * ((float)(i % 7) - 3.1f);
  run_forward(&w, x, before);
  for (int i = 0; i < PLACES; i++) {
    int64_t n_outputs_of_position = 0;
    x[i] += 0.17f;
    run_forward(&w, x, after_first_change);
    x[i] -= 0.94f; /* a second change, because rounding may hide one */
    run_forward(&w, x, after_second_change);
    x[i] = 0.1f * ((float)(i % 7) - 3.1f);
    for (size_t k = 0; k < w.n_outputs; k++) {
      bool is_changed = before[k] != after_first_change[k] || before[k] != after_second_change[k];
      n_changing_positions[k] += is_changed;
      n_outputs_of_position += is_changed;
    }
    if (n_outputs_of_position && (!*ret_outputs || n_outputs_of_position < *ret_outputs))
      *ret_outputs = n_outputs_of_position;
  }
  for (size_t k = 0; k < w.n_outputs; k++)
    if (n_changing_positions[k] && (!*ret_places || n_changing_positions[k] < *ret_places))
      *ret_places = n_changing_positions[k];
  free_runner(&w);
}

static void print_graph(const clv_graph *g) {
  char shape[160];
  for (int i = 0; i < g->n_nodes; i++)
    print_message("%d: %s (%d) %s\n", i, clv_op_name(g->nodes[i].op),
                  g->nodes[i].n_in ? g->nodes[i].in[0] : -1,
                  clv_shape_format(&g->nodes[i].shape, shape, sizeof shape));
}

/* True if a value has two readers, so that its gradient has two paths. */
static bool has_two_readers(const clv_graph *g) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_CONCAT) return true;
  return false;
}

static void assert_same_count(const clv_graph *g, const char *what, int64_t got, int64_t want) {
  if (got == want || !want) return;
  print_graph(g);
  fail_msg("%s: %lld, numbers say %lld", what, (long long)got, (long long)want);
}

static void computed_reach_matches_perturbation_counts(void **state) {
  static const clv_weight_secrecy at_worker[64];
  clv_reach reach[64];
  uint32_t r = 1;
  int n_compared = 0;
  (void)state;
  for (int i = 0; i < GRAPHS; i++) {
    clv_err err;
    int64_t n_places, n_outputs;
    clv_graph *g = draw_graph(&r);
    count_by_differences(g, &n_places, &n_outputs);
    assert_true(g->n_nodes <= 64);
    assert_int_equal(clv_reach_records_in_values(g, at_worker, UINT32_MAX, reach, &err), CLV_OK);
    assert_same_count(g, "places of an output", reach[g->output_node].n_fewest_places, n_places);
    assert_int_equal(clv_reach_labels_in_gradients(g, at_worker, 0, reach, &err), CLV_OK);
    if (!has_two_readers(g))
      assert_same_count(g, "outputs of a place", reach[0].n_fewest_places, n_outputs);
    n_compared += n_places > 0;
    clv_graph_free(g);
  }
  print_message("%d graphs compared\n", n_compared);
  assert_true(n_compared > GRAPHS / 2);
}

/* If windows are as large as the picture, the analysis counts all elements, or reports that it has
 * exceeded its budget of work. */
static void large_windows_exceed_the_budget(void **state) {
  static const clv_weight_secrecy secret[2] = {CLV_WEIGHTS_SECRET, CLV_WEIGHTS_SECRET};
  clv_attrs a = {.out = 1, .groups = 1};
  clv_reach found[2];
  clv_graph *g;
  clv_err err;
  int at;
  (void)state;
  for (int i = 0; i < 2; i++) {
    a.kernel[i] = 223;
    a.pad[i] = 111;
    a.stride[i] = a.dilation[i] = 1;
  }
  assert_int_equal(clv_graph_new(&g, &err), CLV_OK);
  assert_int_equal(
      clv_graph_add_input(g, "x", CLV_F32, &(clv_shape){4, {1, 3, 224, 224}}, &at, &err), CLV_OK);
  add_fitting_layer(g, CLV_OP_CONV2D, a, &at);
  assert_int_equal(g->n_nodes, 2);
  assert_int_equal(clv_reach_records_in_values(g, secret, UINT32_MAX, found, &err), CLV_OK);
  assert_true(found[1].exceeds_limits && found[1].has_unmixed_path);
  clv_graph_free(g);
}

/* ---- gradients that change with a value of the record ---------------------------------------- */

/* Joins two values of the same shape by a random op. */
static bool add_join(clv_graph *g, uint32_t *r, const int in[2], int *at) {
  static const clv_op joins[] = {CLV_OP_MUL, CLV_OP_ADD, CLV_OP_CONCAT, CLV_OP_MATMUL,
                                 CLV_OP_ATTENTION};
  const clv_shape *shape = &g->nodes[in[0]].shape;
  clv_op op = joins[draw_below(r, 5)];
  clv_attrs a = {.dim = op == CLV_OP_CONCAT ? 1 + draw_below(r, shape->rank - 1) : 0,
                 .heads = 1,
                 .causal = draw_below(r, 2)};
  clv_err err;
  int first = (int)draw_below(r, 2), of[3] = {in[first], in[!first], in[draw_below(r, 2)]};
  clv_attrs permutation = {.order = {2, {2, 1}}};
  if (op == CLV_OP_MATMUL && shape->rank == 3)
    add_fitting_layer(g, CLV_OP_PERMUTE, permutation, &of[1]);
  return clv_graph_add(g, op, &a, "", (uint32_t)g->n_nodes, of, op == CLV_OP_ATTENTION ? 3 : 2, at,
                       &err) == CLV_OK;
}

/* Draws a graph over a record and a second input; both pass layers of their own until they are
 * joined. *ret_smooth: true if a change of any value that a gradient depends on changes the
 * gradient. Returns NULL if the layers drawn do not fit together. */
static clv_graph *draw_graph_with_gradient(uint32_t *r, bool *ret_smooth) {
  static const clv_op curves[] = {CLV_OP_SILU, CLV_OP_TANH, CLV_OP_SCALE, CLV_OP_RELU,
                                  CLV_OP_MAXPOOL};
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_err err;
  int in[2], at = 0;
  assert_int_equal(clv_graph_new(&g, &err), CLV_OK);
  for (int i = 0; i < 2; i++)
    assert_int_equal(
        clv_graph_add_input(g, i ? "w" : "x", CLV_F64, &(clv_shape){2, {1, PLACES}}, &in[i], &err),
        CLV_OK);
  uint32_t drawn_state = *r, n_layers = (uint32_t)draw_below(r, 3);
  for (int i = 0; i < 2; i++) {
    *r = drawn_state;
    (void)draw_below(r, 3);
    add_reshape(g, r, &in[i]);
    for (uint32_t k = 0; k < n_layers; k++) add_layer(g, r, &in[i]);
  }
  int curve_index = (int)draw_below(r, 5);
  *ret_smooth = curve_index < 3;
  if (!add_join(g, r, in, &at)) return NULL;
  clv_attrs pool = draw_window(r, &g->nodes[at].shape);
  pool.dilation[0] = pool.dilation[1] = 0;
  add_fitting_layer(g, curves[curve_index], curve_index == 4 ? pool : (clv_attrs){.factor = 2},
                    &at);
  if (draw_below(r, 2)) add_slice(g, r, &at);
  add_layer(g, r, &at);
  for (int i = 0; i < g->n_nodes; i++)
    assert_int_equal(clv_key_derive("layer", &(clv_key){{0}}, &(uint64_t){(uint64_t)i},
                                    sizeof(uint64_t), &g->nodes[i].key, &err),
                     CLV_OK);
  g->output_node = at;
  return clv_steal(&g);
}

/* Computes the gradient of the loss y^2 / 2. is_sum: the loss is the sum of all y instead, whose
 * derivative reads no value. */
static void run_forward_and_backward(runner *w, bool is_sum, const double *x, const double *other,
                                     double *y, double *dw) {
  clv_call *call;
  clv_err err;
  assert_int_equal(clv_plan_call_get(w->plan, &call, &err), CLV_OK);
  assert_int_equal(clv_plan_forward(w->plan, call, w->values, 2, (const void *[]){x, other}, false,
                                    y, &(clv_rng_key){0}, &err),
                   CLV_OK);
  for (size_t i = 0; is_sum && i < w->n_outputs; i++) y[i] = 1;
  if (clv_plan_backward_input(w->plan, call, w->values, y, (void *[]){NULL, dw}, w->gradients,
                              false, &err) != CLV_OK)
    fail_msg("%s", err.text);
  clv_plan_call_put(w->plan, call);
}

/* Returns the fewest positions of the record on which an element of the gradient depends. Elements
 * that depend on no position do not count. */
static int64_t count_gradient_positions(const clv_graph *g, bool is_sum) {
  static double y[MAX_OUT];
  double x[PLACES], other[PLACES], before[PLACES], after[PLACES];
  int64_t n_elements[PLACES] = {0}, min_positions = 0;
  runner w = {.is_f64_with_second_gradient = true};
  make_runner(g, &w);
  for (int i = 0; i < PLACES; i++) x[i] = i % 7 - 3.1, other[i] = i % 5 - 1.7;
  if (w.n_outputs <= MAX_OUT) run_forward_and_backward(&w, is_sum, x, other, y, before);
  for (int i = 0; i < PLACES && w.n_outputs <= MAX_OUT; i++) {
    x[i] += 0.7;
    run_forward_and_backward(&w, is_sum, x, other, y, after);
    x[i] = i % 7 - 3.1;
    for (int k = 0; k < PLACES; k++) n_elements[k] += before[k] != after[k];
  }
  for (int k = 0; k < PLACES; k++)
    if (n_elements[k] && (!min_positions || n_elements[k] < min_positions))
      min_positions = n_elements[k];
  free_runner(&w);
  return min_positions;
}

/* Each addend of a gradient is a path of its own, so the analysis may find fewer positions than a
 * perturbation shows, but never more. */
static void gradient_analysis_never_finds_more_positions_than_experiments(void **state) {
  static const clv_weight_secrecy at_worker[64];
  clv_reach found[64];
  uint32_t r = 2;
  int n_compared = 0, n_equal = 0;
  (void)state;
  for (int i = 0; i < GRAPHS; i++) {
    bool is_known[64] = {false, true}, is_smooth, is_sum = i % 2;
    clv_err err;
    CLV_AUTO(clv_graph_freep) clv_graph *g = draw_graph_with_gradient(&r, &is_smooth);
    if (!g) continue;
    int64_t min_positions = count_gradient_positions(g, is_sum);
    assert_true(g->n_nodes <= 64);
    is_known[g->output_node] = is_sum;
    assert_int_equal(clv_reach_records_in_gradients(g, at_worker, is_known, 0, found, &err),
                     CLV_OK);
    if (min_positions &&
        (!found[1].has_unmixed_path || (is_smooth && found[1].n_fewest_places > min_positions)))
      assert_same_count(g, "places of a gradient", found[1].n_fewest_places, min_positions);
    n_compared += min_positions > 0;
    n_equal += min_positions > 0 && found[1].n_fewest_places == min_positions;
  }
  print_message("%d graphs compared, %d equal\n", n_compared, n_equal);
  assert_true(n_compared > GRAPHS / 3 && n_equal > n_compared / 3);
}

/* A slice leaves nine rows of a product, so the derivative reads nine positions of the other
 * factor. */
static void slice_limits_what_the_derivative_reads(void **state) {
  static const clv_weight_secrecy at_worker[64];
  bool is_known[64] = {false, true};
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_reach found[64];
  clv_err err;
  int in[2], at;
  (void)state;
  assert_int_equal(clv_graph_new(&g, &err), CLV_OK);
  for (int i = 0; i < 2; i++) {
    clv_attrs a = {.shape = {2, {i ? 1 : PLACES, -1}}};
    assert_int_equal(
        clv_graph_add_input(g, i ? "w" : "x", CLV_F64, &(clv_shape){2, {1, PLACES}}, &in[i], &err),
        CLV_OK);
    add_fitting_layer(g, CLV_OP_RESHAPE, a, &in[i]);
  }
  assert_int_equal(clv_graph_add(g, CLV_OP_MATMUL, &(clv_attrs){0}, "", 9, in, 2, &at, &err),
                   CLV_OK);
  add_fitting_layer(g, CLV_OP_SLICE, (clv_attrs){.dim = 1, .stop = 9}, &at);
  g->output_node = at;
  is_known[at] = true;
  assert_int_equal(count_gradient_positions(g, true), 9);
  assert_int_equal(clv_reach_records_in_gradients(g, at_worker, is_known, 0, found, &err), CLV_OK);
  assert_true(found[1].has_unmixed_path && found[1].n_fewest_places <= 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(computed_reach_matches_perturbation_counts),
      cmocka_unit_test(gradient_analysis_never_finds_more_positions_than_experiments),
      cmocka_unit_test(slice_limits_what_the_derivative_reads),
      cmocka_unit_test(large_windows_exceed_the_budget)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
