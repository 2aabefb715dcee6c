/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ops over sequences and along one dimension: they give the same bits with two threads as
 * with one, when they run again, and in training as in evaluation, and they allocate no memory.
 * tests/ops tests what they compute.
 */
#include "tests/unit/cpu/cpu_test.h"

static clv_node_desc make_desc(clv_op op, clv_shape in, clv_shape out, clv_attrs attrs) {
  return (clv_node_desc){.op = op,
                         .attrs = attrs,
                         .n_in = 1,
                         .in = {in},
                         .offered_block = {1},
                         .out = out,
                         .training = true,
                         .need_dx = {op != CLV_OP_EMBEDDING},
                         .threads = 1};
}

static clv_node_desc add_params(clv_node_desc d, const clv_shape *params, int n) {
  d.n_params = n;
  d.need_dw = true;
  memcpy(d.param, params, (size_t)n * sizeof *params);
  return d;
}

static clv_node_desc make_lstm_desc(int64_t n, int64_t t, int64_t f, int64_t h, int layers) {
  clv_shape params[CLV_MAX_PARAMS];
  for (int i = 0; i < 4 * layers; i++)
    params[i] = i % 4 == 0   ? CLV_SHAPE(4 * h, i ? h : f)
                : i % 4 == 1 ? CLV_SHAPE(4 * h, h)
                             : CLV_SHAPE(4 * h);
  return add_params(make_desc(CLV_OP_LSTM, CLV_SHAPE(n, t, f), CLV_SHAPE(n, t, h),
                              (clv_attrs){.out = h, .layers = layers, .bias = true}),
                    params, 4 * layers);
}

static clv_node_desc make_concat_desc(void) {
  clv_node_desc d =
      make_desc(CLV_OP_CONCAT, CLV_SHAPE(32, 9, 7), CLV_SHAPE(32, 9, 19), (clv_attrs){.dim = 2});
  d.n_in = 3;
  d.in[1] = CLV_SHAPE(32, 9, 1);
  d.in[2] = CLV_SHAPE(32, 9, 11);
  d.need_dx[1] = d.need_dx[2] = true;
  d.offered_block[1] = d.offered_block[2] = 1;
  return d;
}

enum { MAX_DESCS = 12 };

/* Fills ret with descriptions of nodes that are all large enough for two threads. Returns their
 * number. */
static int make_descs(clv_node_desc ret[MAX_DESCS]) {
  const clv_shape text = CLV_SHAPE(32, 33, 101),
                  weights_shapes[] = {CLV_SHAPE(101), CLV_SHAPE(101)};
  const clv_shape table = CLV_SHAPE(50, 70);
  int n = 0;
  ret[n++] = add_params(
      make_desc(CLV_OP_EMBEDDING, CLV_SHAPE(32, 40), CLV_SHAPE(32, 40, 70),
                (clv_attrs){.rows = 50, .out = 70, .column = -1, .minus = -1, .padding_idx = -1}),
      &table, 1);
  ret[n++] = make_desc(CLV_OP_MEAN, text, CLV_SHAPE(32, 101), (clv_attrs){.dim = 1});
  ret[n++] = make_desc(CLV_OP_MEAN, text, CLV_SHAPE(32, 33), (clv_attrs){.dim = -1});
  ret[n++] = make_desc(CLV_OP_SCALE, text, text, (clv_attrs){.factor = 0.3});
  ret[n++] = make_desc(CLV_OP_SLICE, text, CLV_SHAPE(32, 9, 101),
                       (clv_attrs){.dim = 1, .start = 4, .stop = 13});
  ret[n++] = add_params(
      make_desc(CLV_OP_LAYERNORM, text, text, (clv_attrs){.shape = CLV_SHAPE(101), .eps = 1e-5}),
      weights_shapes, 2);
  ret[n++] = make_concat_desc();
  return n;
}

static void check_same(const char *what, const clv_node_desc *d, const clv_node_desc *other) {
  node a, b;
  prepare_node(&a, d);
  prepare_node(&b, other);
  run_node(&a);
  run_node(&b);
  run_node(&b);
  assert_same_results(what, &a, &b);
  free_node(&a);
  free_node(&b);
}

static void test_threads_give_the_same_bits(void **state) {
  (void)state;
  clv_node_desc descs[MAX_DESCS];
  int n = make_descs(descs);
  for (int i = 0; i < n; i++) {
    clv_node_desc two_thread_desc = descs[i];
    two_thread_desc.threads = 2;
    check_same("two threads", &descs[i], &two_thread_desc);
  }
}

static void test_repeated_lstm_gives_the_same_bits(void **state) {
  (void)state;
  for (int threads = 1; threads <= 2; threads++) {
    clv_node_desc d = make_lstm_desc(37, 11, 13, 48, 2);
    d.threads = threads;
    check_same("lstm", &d, &d);
  }
}

/* In an evaluation an lstm saves nothing for a backward, and its layers share memory in the
 * scratch. Its output must still equal that of training. */
static void test_lstm_evaluation_equals_training_forward(void **state) {
  (void)state;
  for (int layers = 1; layers <= 4; layers++) {
    clv_node_desc d = make_lstm_desc(5, 4, 3, 7, layers), evaluation_desc = d;
    node a, b;
    clv_err err;
    evaluation_desc.need_dx[0] = evaluation_desc.need_dw = evaluation_desc.training = false;
    prepare_node(&a, &d);
    prepare_node(&b, &evaluation_desc);
    assert_int_equal(b.k->saved_bytes, 0);
    assert_null(b.k->backward_input);
    ok(a.k->forward(a.k, &a.a, &err), &err);
    ok(b.k->forward(b.k, &b.a, &err), &err);
    assert_same_bits("evaluation", a.a.out, b.a.out, count_elements(&d.out));
    free_node(&a);
    free_node(&b);
  }
}

/* A kernel computes each gradient with the same bits, whichever other gradients are requested. */
static void test_lstm_gradients_are_independent_of_each_other(void **state) {
  (void)state;
  clv_node_desc d = make_lstm_desc(6, 5, 4, 9, 2), weights_only_desc = d, input_only_desc = d;
  node node_with_all, node_with_some;
  weights_only_desc.need_dx[0] = false;
  input_only_desc.need_dw = false;
  prepare_node(&node_with_all, &d);
  run_node(&node_with_all);
  prepare_node(&node_with_some, &weights_only_desc);
  run_node(&node_with_some);
  for (int i = 0; i < d.n_params; i++)
    assert_same_bits("weights", node_with_all.a.dparam[i], node_with_some.a.dparam[i],
                     count_elements(&d.param[i]));
  free_node(&node_with_some);
  prepare_node(&node_with_some, &input_only_desc);
  assert_false(node_with_some.k->fused_grads);
  assert_int_equal(node_with_some.k->saved_flags, 0);
  run_node(&node_with_some);
  assert_same_bits("input", node_with_all.a.din[0], node_with_some.a.din[0],
                   count_elements(&d.in[0]));
  free_node(&node_with_some);
  free_node(&node_with_all);
}

static void test_execution_allocates_nothing(void **state) {
  (void)state;
  clv_node_desc descs[MAX_DESCS];
  int n = make_descs(descs);
  descs[n++] = make_lstm_desc(7, 5, 6, 10, 3);
  for (int i = 0; i < n; i++) check_no_memory_allocated(&descs[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads_give_the_same_bits),
      cmocka_unit_test(test_repeated_lstm_gives_the_same_bits),
      cmocka_unit_test(test_lstm_evaluation_equals_training_forward),
      cmocka_unit_test(test_lstm_gradients_are_independent_of_each_other),
      cmocka_unit_test(test_execution_allocates_nothing),
  };
  return cmocka_run_group_tests_name("cpu sequences", tests, NULL, NULL);
}
