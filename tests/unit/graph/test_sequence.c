/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests graphs over sequences, and graphs whose branches are joined: parameters, gradients against
 * finite differences, the same bits for every cut, and row numbers that are out of range.
 */
#include "tests/unit/graph/plan_test.h"

#include <math.h>

static int add_embedding(clv_graph *g, uint32_t layer, int x, int64_t rows, int64_t out) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_ROWS, rows), make_int_attr(CLV_ATTR_OUT, out)};
  return add_node(g, CLV_OP_EMBEDDING, layer, x, -1, v, 2);
}

static int add_lstm(clv_graph *g, uint32_t layer, int x, int64_t out, int64_t layers, int bias) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, out), make_int_attr(CLV_ATTR_LAYERS, layers),
                        make_int_attr(CLV_ATTR_BIAS, bias)};
  return add_node(g, CLV_OP_LSTM, layer, x, -1, v, 3);
}

static int add_node_along_dim(clv_graph *g, clv_op op, uint32_t layer, int x, int64_t dim,
                              int64_t start) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_DIM, dim), make_int_attr(CLV_ATTR_START, start)};
  return add_node(g, op, layer, x, -1, v, op == CLV_OP_SLICE ? 2 : 1);
}

static int add_concat(clv_graph *g, uint32_t layer, const int *in, int n, int64_t dim) {
  clv_attr_value v = make_int_attr(CLV_ATTR_DIM, dim);
  clv_attrs attrs;
  int node = -1;
  assert_ok(clv_attrs_parse(CLV_OP_CONCAT, &v, 1, &attrs, err));
  assert_ok(clv_graph_add(g, CLV_OP_CONCAT, &attrs, NULL, layer, in, n, &node, err));
  return node;
}

static int add_layernorm(clv_graph *g, uint32_t layer, int x, int64_t width) {
  clv_attr_value v = make_int_attr(CLV_ATTR_SHAPE, width);
  return add_node(g, CLV_OP_LAYERNORM, layer, x, -1, &v, 1);
}

static clv_graph *make_token_graph(clv_dtype dtype, clv_shape shape, int *ret_input) {
  clv_graph *g = make_graph(CLV_I64, shape, ret_input);
  g->dtype = dtype;
  return g;
}

enum { TEXT_LAYERS = 7 };

/* Returns a text model that ends with the last step of an lstm. */
static clv_graph *make_text_graph(clv_dtype dtype, int64_t batch) {
  int x;
  clv_graph *g = make_token_graph(dtype, CLV_SHAPE(batch, 4), &x);
  x = add_embedding(g, 0, x, 5, 3);
  x = add_layernorm(g, 1, x, 3);
  x = add_lstm(g, 2, x, 6, 2, 1);
  x = add_linear(g, 3, x, 5);
  x = add_node_along_dim(g, CLV_OP_SLICE, 4, x, 1, -2);
  x = add_node_along_dim(g, CLV_OP_MEAN, 5, x, 1, 0);
  add_plain(g, CLV_OP_LOG_SOFTMAX, 6, x);
  return g;
}

/* Returns two branches of three values, each used more than once, concatenated and sliced again. */
static clv_graph *make_joined_graph(clv_dtype dtype) {
  int x;
  clv_graph *g = make_graph(dtype, CLV_SHAPE(3, 2, 4), &x);
  int a = add_linear(g, 0, x, 5);
  int b = add_plain(g, CLV_OP_TANH, 1, a);
  clv_attr_value factor = make_real_attr(CLV_ATTR_FACTOR, -0.75);
  int c = add_node(g, CLV_OP_SCALE, 2, a, -1, &factor, 1);
  int d = add_concat(g, 3, (int[]){b, c, a, b}, 4, 2);
  int e = add_node_along_dim(g, CLV_OP_SLICE, 4, d, -1, 2);
  int f = add_node_along_dim(g, CLV_OP_MEAN, 5, d, -1, 0);
  int h = add_plain(g, CLV_OP_FLATTEN, 6, e);
  int i = add_concat(g, 7, (int[]){h, f, f}, 3, 1);
  int j = add_linear(g, 8, i, 4);
  int k = add_plain(g, CLV_OP_SIGMOID, 9, j);
  add_concat(g, 10, (int[]){k, j}, 2, 1);
  return g;
}

/* ---- parameters of an lstm ------------------------------------------------------------------- */

static void lstm_parameters_have_torch_names_and_shapes(void **state) {
  (void)state;
  static const struct {
    const char *name;
    clv_shape shape;
  } want[] = {{"3.weight_ih_l0", {2, {20, 2}}}, {"3.weight_hh_l0", {2, {20, 5}}},
              {"3.bias_ih_l0", {1, {20}}},      {"3.bias_hh_l0", {1, {20}}},
              {"3.weight_ih_l1", {2, {20, 5}}}, {"3.weight_hh_l1", {2, {20, 5}}},
              {"3.bias_ih_l1", {1, {20}}},      {"3.bias_hh_l1", {1, {20}}}};
  for (int bias = 0; bias < 2; bias++) {
    int x, n = 0;
    clv_params *p;
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(1, 3, 2), &x);
    add_lstm(g, 3, x, 5, 2, bias);
    assert_ok(clv_params_make(g, &p, err));
    for (int i = 0; i < 8; i++) {
      if (!bias && i % 4 > 1) continue;
      assert_string_equal(p->list[n].name, want[i].name);
      assert_true(clv_shape_equal(&p->list[n].shape, &want[i].shape));
      assert_true(p->list[n].trainable);
      n++;
    }
    assert_int_equal(p->n, n);
    clv_params_free(p);
    clv_graph_free(g);
  }
}

/* Each slot (parameter number of a layer) draws its own numbers: two neighbouring layers have 32
 * slots, and the random key of a layer has four bits for the slot. */
static void lstm_parameters_have_distinct_initial_values(void **state) {
  (void)state;
  int x;
  clv_params *p;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(1, 1, 16), &x);
  x = add_lstm(g, 6, x, 16, 8, 1);
  add_lstm(g, 7, x, 16, 8, 1);
  assert_ok(clv_params_make(g, &p, err));
  assert_int_equal(p->n, 64);
  char *block = allocate(p->total_bytes);
  clv_params_init(g, p, block);
  for (int i = 0; i < p->n; i++) {
    const float *v = (const float *)(const void *)(block + p->list[i].offset);
    double sum = 0;
    for (size_t k = 0; k < p->list[i].n; k++) {
      assert_true(fabsf(v[k]) <= 0.25f); /* the bound is 1 / sqrt(16) */
      sum += fabs((double)v[k]);
    }
    assert_true(fabs(sum / (double)p->list[i].n - 0.125) < 0.04);
    for (int j = 0; j < i; j++)
      if (memcmp(v, block + p->list[j].offset, 64 * sizeof *v) == 0)
        fail_msg("%s begins as %s", p->list[i].name, p->list[j].name);
  }
  free(block);
  clv_params_free(p);
  clv_graph_free(g);
}

static void embedding_initial_values_are_standard_normal(void **state) {
  (void)state;
  for (int is_f64 = 0; is_f64 < 2; is_f64++) {
    int x;
    clv_params *p;
    clv_graph *g = make_token_graph(is_f64 ? CLV_F64 : CLV_F32, CLV_SHAPE(1, 1), &x);
    add_embedding(g, 0, x, 300, 40);
    assert_ok(clv_params_make(g, &p, err));
    char *block = allocate(p->total_bytes);
    clv_params_init(g, p, block);
    double sum = 0, squares = 0, n = (double)p->list[0].n;
    for (size_t i = 0; i < p->list[0].n; i++) {
      double v = is_f64 ? ((double *)(void *)block)[i] : (double)((float *)(void *)block)[i];
      sum += v;
      squares += v * v;
    }
    assert_true(fabs(sum / n) < 0.05 && fabs(squares / n - 1) < 0.07);
    free(block);
    clv_params_free(p);
    clv_graph_free(g);
  }
}

/* ---- gradients compared with finite differences ---------------------------------------------- */

/* Runs a forward, and returns the sum of out * dout, whose gradients the backward computes. */
static double compute_objective(rig *r, clv_call *c) {
  const double *out = (const double *)(const void *)r->out;
  const double *dout = (const double *)(const void *)r->dout;
  double sum = 0;
  run_forward(r, c);
  for (size_t i = 0; i < r->output_bytes / sizeof *out; i++) sum += out[i] * dout[i];
  return sum;
}

static void check_differences(rig *r, clv_call *c, char *values, const char *got, size_t n,
                              const char *what) {
  const double h = 1e-5;
  for (size_t i = 0; i < n; i++) {
    double *at = (double *)(void *)values + i, value = *at,
           gradient = ((const double *)(const void *)got)[i];
    *at = value + h;
    double up = compute_objective(r, c);
    *at = value - h;
    double want = (up - compute_objective(r, c)) / (2 * h);
    *at = value;
    if (!(fabs(want - gradient) <= 1e-8 + 1e-6 * fabs(want)))
      fail_msg("%s[%zu]: %.12g, finite differences give %.12g", what, i, gradient, want);
  }
}

static void check_gradients(clv_graph *g) {
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_ref()});
  clv_call *c;
  run_step(&r);
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  for (int i = 0; i < r.params->n; i++) {
    const clv_param *p = &r.params->list[i];
    check_differences(&r, c, r.parameter_block + p->offset, r.gradient_block + p->offset, p->n,
                      p->name);
  }
  if (g->nodes[0].dtype == CLV_F64)
    check_differences(&r, c, r.in[0], r.din[0], r.input_bytes[0] / sizeof(double), "input");
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

static void gradients_match_finite_differences(void **state) {
  (void)state;
  check_gradients(make_joined_graph(CLV_F64));
  check_gradients(make_text_graph(CLV_F64, 3));
}

static void assert_near(const char *what, const void *a, const void *b, size_t n) {
  const float *x = a, *y = b;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    norm += (double)y[i] * y[i];
  }
  if (!(difference <= 1e-10 * norm)) fail_msg("%s is %g off", what, sqrt(difference / norm));
}

/* Compares the results of the backends cpu and ref for the same graph in f32. */
static void check_backends(clv_graph *a, clv_graph *b) {
  rig cpu = make_rig(a, &(rig_options){.backend = clv_backend_cpu()});
  rig ref = make_rig(b, &(rig_options){.backend = clv_backend_ref()});
  run_step(&cpu);
  run_step(&ref);
  assert_near("the output", cpu.out, ref.out, cpu.output_bytes / 4);
  if (a->nodes[0].dtype == CLV_F32)
    assert_near("the input's gradient", cpu.din[0], ref.din[0], cpu.input_bytes[0] / 4);
  for (int i = 0; i < cpu.params->n; i++) {
    const clv_param *p = &cpu.params->list[i];
    assert_near(p->name, cpu.gradient_block + p->offset, ref.gradient_block + p->offset, p->n);
  }
  free_rig(&cpu);
  free_rig(&ref);
}

static void backends_agree(void **state) {
  (void)state;
  check_backends(make_joined_graph(CLV_F32), make_joined_graph(CLV_F32));
  check_backends(make_text_graph(CLV_F32, 7), make_text_graph(CLV_F32, 7));
}

/* ---- graphs cut into two parts --------------------------------------------------------------- */

static void assert_same_params(const rig *whole, const rig *part) {
  for (int i = 0; i < part->params->n; i++) {
    const clv_param *p = &part->params->list[i], *q = clv_params_find(whole->params, p->name);
    assert_same_bytes(part->parameter_block + p->offset, whole->parameter_block + q->offset,
                      p->bytes, p->name);
    assert_same_bytes(part->gradient_block + p->offset, whole->gradient_block + q->offset, p->bytes,
                      p->name);
  }
}

static rig make_slice(const clv_graph *g, uint32_t first, uint32_t last,
                      const clv_backend *backend) {
  clv_graph *part;
  assert_ok(clv_graph_slice(g, first, last, &part, err));
  return make_rig(part, &(rig_options){.backend = backend});
}

static void check_every_cut(const clv_backend *backend) {
  rig whole = make_rig(make_text_graph(CLV_F32, 6), &(rig_options){.backend = backend});
  run_step(&whole);
  for (uint32_t cut = 1; cut < TEXT_LAYERS; cut++) {
    rig a = make_slice(whole.g, 0, cut - 1, backend);
    rig b = make_slice(whole.g, cut, TEXT_LAYERS - 1, backend);
    clv_call *c;
    memcpy(a.in[0], whole.in[0], a.input_bytes[0]);
    memcpy(b.dout, whole.dout, b.output_bytes);
    assert_ok(clv_plan_call_get(a.plan, &c, err));
    run_forward(&a, c);
    memcpy(b.in[0], a.out, a.output_bytes);
    run_step(&b);
    memcpy(a.dout, b.din[0], a.output_bytes);
    run_backward_input(&a, c, false);
    run_backward_weight(&a, c, false);
    assert_same_bytes(b.out, whole.out, b.output_bytes, "output");
    assert_same_params(&whole, &a);
    assert_same_params(&whole, &b);
    clv_plan_call_put(a.plan, c);
    free_rig(&a);
    free_rig(&b);
  }
  free_rig(&whole);
}

static void every_cut_gives_the_same_bits(void **state) {
  (void)state;
  check_every_cut(clv_backend_ref());
  check_every_cut(clv_backend_cpu());
}

/* An lstm computes the gradients of its weights together with its input's gradient. The plan drops
 * gradients of frozen weights, and adds the others to the gradient block. */
static void lstm_gradients_accumulate_and_skip_frozen(void **state) {
  (void)state;
  rig trained_rig =
      make_rig(make_text_graph(CLV_F32, 4), &(rig_options){.backend = clv_backend_cpu()});
  rig frozen_rig =
      make_rig(make_text_graph(CLV_F32, 4),
               &(rig_options){.backend = clv_backend_cpu(),
                              .frozen_params = {"2.weight_hh_l0", "2.bias_ih_l1", "0.weight"}});
  clv_call *c;
  run_step(&trained_rig);
  run_step(&frozen_rig);
  assert_ok(clv_plan_call_get(frozen_rig.plan, &c, err));
  run_forward(&frozen_rig, c);
  run_backward_input(&frozen_rig, c, true);
  run_backward_weight(&frozen_rig, c, true);
  for (int i = 0; i < trained_rig.params->n; i++) {
    const clv_param *p = &frozen_rig.params->list[i];
    const float *gradient_of_one_call =
        (const float *)(const void *)(trained_rig.gradient_block + p->offset);
    const float *gradient_of_two_calls =
        (const float *)(const void *)(frozen_rig.gradient_block + p->offset);
    for (size_t k = 0; k < p->n; k++)
      if (fabsf(gradient_of_two_calls[k] - (p->frozen ? 0 : 2 * gradient_of_one_call[k])) >
          1e-5f * fabsf(gradient_of_one_call[k]) + 1e-9f)
        fail_msg("%s[%zu] is %g after two steps of %g", p->name, k,
                 (double)gradient_of_two_calls[k], (double)gradient_of_one_call[k]);
  }
  clv_plan_call_put(frozen_rig.plan, c);
  free_rig(&trained_rig);
  free_rig(&frozen_rig);
}

/* ---- inputs that are refused ----------------------------------------------------------------- */

/* Tests an embedding of column 1 minus column 0: differences in range, out of range, and one that
 * overflows. */
static void column_difference_out_of_range_is_refused(void **state) {
  (void)state;
  static const int64_t bad_columns[][2] = {
      {3, 2}, {INT64_MAX, INT64_MIN}, {INT64_MIN, INT64_MAX}, {0, 5}};
  static const char *const offending_values[] = {"-1", "-9223372036854775808",
                                                 "-9223372036854775808", "5"};
  clv_node_desc d = {.op = CLV_OP_EMBEDDING,
                     .attrs = {.rows = 5, .out = 1, .column = 1, .minus = 0, .padding_idx = -1},
                     .in = {CLV_SHAPE(2, 2, 2)}};
  clv_row_numbers l = clv_row_numbers_of(&d);
  clv_err why;
  for (size_t i = 0; i < CLV_COUNT(bad_columns); i++) {
    int64_t value[] = {0, 4, 7, 7, 1, 2, bad_columns[i][0], bad_columns[i][1]};
    assert_int_equal(clv_check_rows(&l, value, &why), CLV_INVALID);
    assert_string_equal(why.text, "row number of sample 1, place 1, is outside 0..4");
    assert_string_equal(why.offending_value, offending_values[i]);
  }
}

/* Returns a graph whose recurrent layer has a gradient of its input. */
static clv_graph *make_recurrent_graph(clv_op op) {
  int x;
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 6), make_int_attr(CLV_ATTR_LAYERS, 2),
                        make_int_attr(CLV_ATTR_BIAS, 1)};
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 4, 5), &x);
  x = add_linear(g, 0, x, 5);
  add_node(g, op, 1, x, -1, v, 3);
  return g;
}

/* The weight part of a backward reads the gradients of the gates that the input part has left in
 * the memory of the call. So between the two parts another call may run, and scratch and output
 * gradient may be overwritten. */
static void deferred_weight_part_of_recurrent_layers_gives_the_same_bits(void **state) {
  (void)state;
  static const clv_op recurrent_ops[] = {CLV_OP_LSTM, CLV_OP_GRU};
  for (size_t i = 0; i < CLV_COUNT(recurrent_ops); i++) {
    rig_options o = {.backend = clv_backend_cpu()};
    rig whole = make_rig(make_recurrent_graph(recurrent_ops[i]), &o);
    o.has_split_backward = true;
    rig split = make_rig(make_recurrent_graph(recurrent_ops[i]), &o);
    clv_call *first_call, *second_call;
    run_step(&whole);
    assert_ok(clv_plan_call_get(split.plan, &first_call, err));
    assert_ok(clv_plan_call_get(split.plan, &second_call, err));
    run_forward(&split, first_call);
    run_forward(&split, second_call);
    run_backward_input(&split, first_call, false);
    run_backward_input(&split, second_call, false);
    assert_same_bytes(whole.din[0], split.din[0], whole.input_bytes[0], "input gradient");
    /* the input part has left the block of gradients as it began, as NaN */
    assert_true(isnan(*(const float *)get_gradient(&split, "1.weight_hh_l0")));
    memset(split.dout, 0xFF, split.output_bytes);
    fill_scratch_with_nan(&split);
    run_backward_weight(&split, first_call, false);
    assert_same_bytes(whole.gradient_block, split.gradient_block, whole.params->trainable_bytes,
                      "gradients");
    run_backward_weight(&split, second_call, false);
    clv_plan_call_put(split.plan, first_call);
    clv_plan_call_put(split.plan, second_call);
    free_rig(&whole);
    free_rig(&split);
  }
}

static void row_number_out_of_range_is_refused(void **state) {
  (void)state;
  static const int64_t bad_rows[] = {-1, 5, INT64_MIN, INT64_MAX};
  const clv_backend *backends[] = {clv_backend_ref(), clv_backend_cpu()};
  for (size_t i = 0; i < 2 * CLV_COUNT(bad_rows); i++) {
    rig_options o = {.backend = backends[i % 2], .has_split_backward = true};
    rig r = make_rig(make_text_graph(CLV_F32, 3), &o);
    clv_call *c;
    char want[32];
    ((int64_t *)(void *)r.in[0])[6] = bad_rows[i / 2];
    snprintf(want, sizeof want, "%lld", (long long)bad_rows[i / 2]);
    assert_ok(clv_plan_call_get(r.plan, &c, err));
    clv_err why;
    assert_int_equal(clv_plan_forward(r.plan, c, r.parameter_block, 1, (const void *const *)r.in,
                                      true, r.out, &step_key, &why),
                     CLV_INVALID);
    assert_string_equal(
        why.text, "layer 0 (embedding), forward: row number of sample 1, place 2, is outside 0..4");
    assert_string_equal(why.failed_op, "layer 0 (embedding), forward");
    assert_string_equal(why.offending_value, want);
    assert_fails(clv_plan_backward_input(r.plan, c, r.parameter_block, r.dout, (void *const *)r.din,
                                         r.gradient_block, false, err),
                 CLV_PRECONDITION, "has no forward");
    ((int64_t *)(void *)r.in[0])[6] = 4;
    run_forward(&r, c);
    /* the caller changed the memory between forward and backward */
    ((int64_t *)(void *)r.in[0])[6] = bad_rows[i / 2];
    run_backward_input(&r, c, false);
    assert_fails(
        clv_plan_backward_weight(r.plan, c, r.parameter_block, r.gradient_block, false, err),
        CLV_INVALID, "is outside 0..4");
    clv_plan_call_put(r.plan, c);
    free_rig(&r);
  }
}

/* If all inputs of a graph are integers, the graph names the float type in which it computes. A
 * plan of another type is refused. */
static void graph_dtype_unlike_the_plan_is_refused(void **state) {
  (void)state;
  clv_graph *g = make_text_graph(CLV_F32, 3);
  clv_params *p;
  clv_plan *plan = NULL;
  clv_plan_options o = {.backend = clv_backend_ref(), .dtype = CLV_F64, .batch = 3, .threads = 1};
  assert_ok(clv_params_make(g, &p, err));
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID, "layer 0 is f32 in a plan for f64");
  o = (clv_plan_options){.backend = clv_backend_ref(),
                         .dtype = CLV_F32,
                         .batch = 3,
                         .training = true,
                         .needs_input_grad = {true},
                         .threads = 1};
  assert_fails(clv_plan_new(g, p, &o, &plan, err), CLV_INVALID,
               "input 'input' holds integers and has no gradient");
  clv_params_free(p);
  clv_graph_free(g);
  g = make_text_graph(CLV_F64, 3);
  clv_graph *part;
  assert_ok(clv_graph_slice(g, 0, 1, &part, err));
  assert_int_equal(part->nodes[part->output_node].dtype, CLV_F64);
  clv_graph_free(part);
  clv_graph_free(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lstm_parameters_have_torch_names_and_shapes),
      cmocka_unit_test(lstm_parameters_have_distinct_initial_values),
      cmocka_unit_test(embedding_initial_values_are_standard_normal),
      cmocka_unit_test(gradients_match_finite_differences),
      cmocka_unit_test(backends_agree),
      cmocka_unit_test(every_cut_gives_the_same_bits),
      cmocka_unit_test(lstm_gradients_accumulate_and_skip_frozen),
      cmocka_unit_test(deferred_weight_part_of_recurrent_layers_gives_the_same_bits),
      cmocka_unit_test(row_number_out_of_range_is_refused),
      cmocka_unit_test(column_difference_out_of_range_is_refused),
      cmocka_unit_test(graph_dtype_unlike_the_plan_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
