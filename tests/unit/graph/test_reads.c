/* SPDX-License-Identifier: Apache-2.0
 *
 * What a backward reads, told from the graph alone, is what plans find.
 */
#include "tests/unit/graph/plan_test.h"

static const char *const backends[] = {"cpu", "ref"};

/* Asserts that the estimate of saved tensors is never below the plan of either backend, and equals
 * the first one's. */
static void assert_reads_weights(clv_graph *(*make)(void), rig_options o, bool want,
                                 const char *what) {
  for (int i = 0; i < 2; i++) {
    o.backend = i ? clv_backend_ref() : clv_backend_cpu();
    rig r = rig_new(make(), &o);
    uint32_t grads = 0;
    for (int k = 0; k < CLV_MAX_INPUTS; k++) grads |= (uint32_t)!o.no_input_grad[k] << k;
    bool told = clv_graph_backward_reads_params(r.g, r.params, grads);
    bool found = clv_plan_get_info(r.plan)->backward_reads_params;
    if (told != want || (found && !told) || (i == 0 && found != told))
      fail_msg("%s, %s: told %d, found %d, expected %d", what, backends[i], told, found, want);
    rig_done(&r);
  }
}

static clv_graph *linear(void) {
  int x;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(4, 3), &x);
  clv_attr_value out = int_attr(CLV_ATTR_OUT, 2);
  g->output_node = add_node(g, CLV_OP_LINEAR, 0, x, -1, &out, 1);
  return g;
}

static clv_graph *two_linears(void) {
  clv_graph *g = linear();
  clv_attr_value out = int_attr(CLV_ATTR_OUT, 5);
  int relu = add_plain(g, CLV_OP_RELU, 1, g->output_node);
  g->output_node = add_node(g, CLV_OP_LINEAR, 2, relu, -1, &out, 1);
  return g;
}

static clv_graph *one_relu(void) {
  int x;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(4, 3), &x);
  g->output_node = add_plain(g, CLV_OP_RELU, 0, x);
  return g;
}

static clv_graph *norm(void) {
  int x;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(4, 16, 2, 2), &x);
  g->output_node = add_plain(g, CLV_OP_BATCHNORM, 0, x);
  return g;
}

/* Returns a graph whose second layer with parameters does not lead to the output. */
static clv_graph *dead_branch(void) {
  clv_graph *g = two_linears();
  g->output_node = 1;
  return g;
}

/* Returns a graph that recomputes its values, for which the first layer's weights are read
 * again. */
static clv_graph *again(void) {
  clv_graph *g = two_linears();
  for (int i = 1; i < g->n_nodes; i++) g->nodes[i].recompute_block = 1;
  return g;
}

static clv_graph *residual(void) { return residual_graph(3); }

static const rig_options data = {.no_input_grad = {true}};

static void linear_reads_weights_only_for_its_input_gradient(void **state) {
  (void)state;
  assert_reads_weights(linear, data, false, "over data");
  assert_reads_weights(linear, (rig_options){0}, true, "over a value");
  assert_reads_weights(one_relu, (rig_options){0}, false, "without parameters");
  assert_reads_weights(dead_branch, data, false, "beside the output");
}

static void layers_after_a_trainable_one_read_their_weights(void **state) {
  (void)state;
  assert_reads_weights(two_linears, data, true, "two layers");
  assert_reads_weights(two_linears,
                       (rig_options){.no_input_grad = {true}, .frozen = {"0.weight", "0.bias"}},
                       false, "behind frozen ones");
  assert_reads_weights(
      two_linears,
      (rig_options){.no_input_grad = {true}, .frozen = {"0.weight", "2.weight", "2.bias"}}, true,
      "of which a bias learns");
  assert_reads_weights(residual, data, true, "a residual block");
  rig_options behind = {.no_input_grad = {true}, .frozen = {"0.weight", "0.bias"}};
  assert_reads_weights(again, behind, true, "computed again");
}

/* PyTorch saves a batchnorm's weight for backward too, whichever gradients are wanted. */
static void trainable_batchnorm_reads_its_weight(void **state) {
  (void)state;
  assert_reads_weights(norm, data, true, "batchnorm over data");
  assert_reads_weights(norm,
                       (rig_options){.no_input_grad = {true}, .frozen = {"0.weight", "0.bias"}},
                       false, "a frozen batchnorm");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_reads_weights_only_for_its_input_gradient),
      cmocka_unit_test(layers_after_a_trainable_one_read_their_weights),
      cmocka_unit_test(trainable_batchnorm_reads_its_weight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
