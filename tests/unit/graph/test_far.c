/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests plans over memory that the host cannot touch: they give the same bits as in host memory,
 * and report some failures only when the host waits for the device.
 */
#include "tests/unit/far.h"
#include "tests/unit/graph/plan_test.h"

static clv_graph *make_chain(void) { return make_chain_graph(CLV_F32, 3); }
static clv_graph *make_residual(void) { return make_residual_graph(3); }

static int add_embedding(clv_graph *g, int x) {
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_ROWS, 5), make_int_attr(CLV_ATTR_OUT, 3)};
  return add_node(g, CLV_OP_EMBEDDING, 0, x, -1, v, 2);
}

/* Returns a text model with an lstm, for which only ref has a kernel. */
static clv_graph *make_text_graph(void) {
  int x;
  clv_graph *g = make_graph(CLV_I64, CLV_SHAPE(3, 4), &x);
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 6), make_int_attr(CLV_ATTR_LAYERS, 2)};
  x = add_node(g, CLV_OP_LSTM, 1, add_embedding(g, x), -1, v, 2);
  add_linear(g, 2, x, 5);
  return g;
}

/* Returns a loss over labels, with a value that is read several times and an input that is not
 * read. */
static clv_graph *make_loss_graph(void) {
  int x, labels, unused;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 6), &x);
  x = add_linear(g, 0, x, 5);
  x = add_node(g, CLV_OP_ADD, 2, x, add_plain(g, CLV_OP_TANH, 1, x), NULL, 0);
  x = add_dropout(g, 3, x, 0.5);
  assert_ok(clv_graph_add_input(g, "labels", CLV_I64, &CLV_SHAPE(4), &labels, err));
  assert_ok(clv_graph_add_input(g, "unused", CLV_F32, &CLV_SHAPE(4, 2), &unused, err));
  g->output_node = add_node(g, CLV_OP_CROSS_ENTROPY, 4, x, labels, NULL, 0);
  return g;
}

/* Returns a graph whose output is its input. */
static clv_graph *make_identity_graph(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 3, 2), &x);
  add_plain(g, CLV_OP_FLATTEN, 0, x);
  return g;
}

/* Returns a graph over no rows, up to their mean, which is NaN. */
static clv_graph *make_graph_without_rows(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 0, 3), &x);
  clv_attr_value dim = make_int_attr(CLV_ATTR_DIM, 1);
  x = add_linear(g, 1, add_plain(g, CLV_OP_RELU, 0, x), 5);
  add_linear(g, 3, add_node(g, CLV_OP_MEAN, 2, x, -1, &dim, 1), 2);
  return g;
}

static clv_graph *(*const graphs[])(void) = {make_chain,          make_residual,
                                             make_text_graph,     make_loss_graph,
                                             make_identity_graph, make_graph_without_rows};

static void assert_same_results(const rig *a, const rig *b) {
  assert_same_bytes(a->out, b->out, a->output_bytes, "output");
  assert_same_bytes(a->parameter_block, b->parameter_block, a->params->total_bytes,
                    "parameters and buffers");
  assert_same_bytes(a->gradient_block, b->gradient_block, a->params->trainable_bytes, "gradients");
  for (int i = 0; i < a->n_in; i++)
    assert_same_bytes(a->din[i], b->din[i], a->input_bytes[i], "input gradient");
}

/* Runs two forwards, then two backwards. The second backward adds to the gradients of the first. */
static void run_two_calls(rig *r) {
  clv_call *c[2];
  for (int i = 0; i < 2; i++) {
    assert_ok(clv_plan_call_get(r->plan, &c[i], err));
    fill_scratch_with_nan(r);
    run_forward(r, c[i]);
    assert_int_equal(far.n_unfinished, 0);
  }
  for (int i = 0; i < 2 && r->plan->options.training; i++) {
    fill_scratch_with_nan(r);
    run_backward_input(r, c[i], i);
    fill_scratch_with_nan(r);
    run_backward_weight(r, c[i], i);
  }
  for (int i = 0; i < 2; i++) clv_plan_call_put(r->plan, c[i]);
}

static void check_same_as_host(const clv_backend *backend, bool is_bf16) {
  for (size_t g = 0; g < CLV_COUNT(graphs); g++)
    for (int variant = 0; variant < 8; variant++) {
      rig_options o = {.backend = backend,
                       .is_evaluation = variant & 1,
                       .has_split_backward = variant & 2,
                       .has_transient_weights = variant & 4,
                       .is_bf16 = is_bf16};
      if (graphs[g] == make_text_graph || graphs[g] == make_identity_graph)
        o.has_no_input_grad[0] = graphs[g] == make_text_graph;
      rig on_host = make_rig(graphs[g](), &o);
      o.backend = far_get_backend(backend);
      rig on_device = make_rig(graphs[g](), &o);
      run_two_calls(&on_host);
      run_two_calls(&on_device);
      assert_same_results(&on_host, &on_device);
      free_rig(&on_host);
      free_rig(&on_device);
      assert_int_equal(far.n_blocks, 0);
    }
}

static void device_plan_gives_host_bits(void **state) {
  clv_err why;
  (void)state;
  check_same_as_host(clv_backend_cpu(), false);
  check_same_as_host(clv_backend_ref(), false);
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) == CLV_OK)
    check_same_as_host(clv_backend_cpu(), true);
}

/* The device, like the host, sets gradients that it does not compute to zero. The mean over no rows
 * is NaN on both. */
static void frozen_gradients_match_host_and_empty_loss_is_nan(void **state) {
  (void)state;
  rig_options o = {.backend = clv_backend_ref(), .frozen_params = {"4.weight", "1.bias"}};
  rig on_host = make_rig(make_chain(), &o);
  o.backend = far_get_backend(clv_backend_ref());
  rig on_device = make_rig(make_chain(), &o);
  run_step(&on_host);
  run_step(&on_device);
  assert_same_results(&on_host, &on_device);
  free_rig(&on_host);
  free_rig(&on_device);
  clv_graph *g = make_loss_graph();
  clv_plan *plan;
  clv_call *c;
  clv_params *params;
  float out = 0;
  const void *in[3] = {&out, &out, &out};
  clv_plan_options po = {.backend = o.backend, .dtype = CLV_F32, .training = true};
  assert_ok(clv_params_make(g, &params, err));
  assert_ok(clv_plan_new(g, params, &po, &plan, err));
  assert_ok(clv_plan_call_get(plan, &c, err));
  assert_ok(clv_plan_forward(plan, c, NULL, 1, in, true, &out, NULL, err));
  assert_true(out != out);
  clv_plan_free(plan);
  clv_params_free(params);
  clv_graph_free(g);
}

/* A kernel on a device finds an invalid value only while it runs. The plan gets that error at the
 * end of the phase, and names layer and element. */
static void late_kernel_refusal_names_layer_and_element(void **state) {
  (void)state;
  rig r = make_rig(make_text_graph(), &(rig_options){.backend = far_get_backend(clv_backend_cpu()),
                                                     .has_no_input_grad = {true}});
  clv_call *c;
  clv_err why = {0};
  int64_t *rows = (int64_t *)(void *)r.in[0], valid_row = rows[5];
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  rows[5] = 7;
  assert_int_equal(try_forward(&r, c, &why), CLV_INVALID);
  assert_string_equal(why.failed_op, "layer 0 (embedding), forward");
  assert_string_equal(why.offending_value, "7");
  assert_non_null(
      strstr(why.text, "layer 0 (embedding), forward: row number of sample 1, place 1"));
  assert_fails(try_backward_input(&r, c, false, err), CLV_PRECONDITION, "has no forward");
  rows[5] = valid_row;
  run_forward(&r, c);
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

static void failed_call_alloc_can_be_retried(void **state) {
  (void)state;
  rig r = make_rig(make_chain(), &(rig_options){.backend = far_get_backend(clv_backend_cpu())});
  clv_call *c;
  for (uint64_t failing_allocation = 1; failing_allocation <= 3; failing_allocation++) {
    far.failing_allocation = 1;
    assert_fails(clv_plan_call_get(r.plan, &c, err), CLV_EXHAUSTED, "far memory");
  }
  run_step(&r);
  free_rig(&r);
  assert_int_equal(far.n_blocks, 0);
}

static void device_error_fails_forward_and_next_succeeds(void **state) {
  (void)state;
  rig r = make_rig(make_chain(), &(rig_options){.backend = far_get_backend(clv_backend_cpu())});
  clv_call *c;
  assert_ok(clv_plan_call_get(r.plan, &c, err));
  far.failing_finish = 1;
  assert_fails(try_forward(&r, c, err), CLV_INTERNAL, "the device has gone");
  run_forward(&r, c);
  uint64_t before = far.n_finishes;
  run_backward_weight(&r, (run_backward_input(&r, c, false), c), false);
  /* the host waits once per phase, and once for the weights */
  assert_int_equal(far.n_finishes - before, 3);
  clv_plan_call_put(r.plan, c);
  free_rig(&r);
}

static clv_code refuse_kernel(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                              clv_err *err) {
  (void)b, (void)ret;
  return clv_fail(err, CLV_UNIMPLEMENTED, "no op %d here", (int)d->op);
}

/* ref is not used, because its kernels compute in host memory */
static void device_plan_does_not_fall_back_to_ref(void **state) {
  (void)state;
  clv_backend b = *far_get_backend(clv_backend_cpu());
  clv_graph *g = make_loss_graph();
  clv_params *params;
  clv_plan *plan;
  b.prepare = refuse_kernel;
  assert_ok(clv_params_make(g, &params, err));
  clv_plan_options po = {.backend = &b, .dtype = CLV_F32, .batch = 4, .training = true};
  assert_fails(clv_plan_new(g, params, &po, &plan, err), CLV_UNIMPLEMENTED, "no op");
  clv_params_free(params);
  clv_graph_free(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(device_plan_gives_host_bits),
      cmocka_unit_test(frozen_gradients_match_host_and_empty_loss_is_nan),
      cmocka_unit_test(late_kernel_refusal_names_layer_and_element),
      cmocka_unit_test(failed_call_alloc_can_be_retried),
      cmocka_unit_test(device_error_fails_forward_and_next_succeeds),
      cmocka_unit_test(device_plan_does_not_fall_back_to_ref),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
