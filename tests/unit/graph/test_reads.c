/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the graph's estimate whether a backward reads weights with the plans of the backends,
 * which know it exactly.
 */
#include "tests/unit/graph/plan_test.h"

static const char *const backends[] = {"cpu", "ref"};

/* A graph estimates whether its backward reads weights. Asserts that this estimate equals the plan
 * of the backend cpu, and is not "no" if the plan of any backend reads weights. */
static void assert_reads_weights(clv_graph *(*make)(void), rig_options o, bool want,
                                 const char *what) {
  for (int i = 0; i < 2; i++) {
    o.backend = i ? clv_backend_ref() : clv_backend_cpu();
    rig r = make_rig(make(), &o);
    uint32_t wanted_input_grads = 0;
    for (int k = 0; k < CLV_MAX_INPUTS; k++)
      wanted_input_grads |= (uint32_t)!o.has_no_input_grad[k] << k;
    bool graph_reads_weights = clv_graph_backward_reads_params(r.g, r.params, wanted_input_grads);
    bool plan_reads_weights = clv_plan_get_info(r.plan)->backward_reads_params;
    if (graph_reads_weights != want || (plan_reads_weights && !graph_reads_weights) ||
        (i == 0 && plan_reads_weights != graph_reads_weights))
      fail_msg("%s, %s: claimed %d, found %d, expected %d", what, backends[i], graph_reads_weights,
               plan_reads_weights, want);
    free_rig(&r);
  }
}

static clv_graph *make_linear(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 3), &x);
  clv_attr_value out = make_int_attr(CLV_ATTR_OUT, 2);
  g->output_node = add_node(g, CLV_OP_LINEAR, 0, x, -1, &out, 1);
  return g;
}

static clv_graph *make_two_linears(void) {
  clv_graph *g = make_linear();
  clv_attr_value out = make_int_attr(CLV_ATTR_OUT, 5);
  int relu = add_plain(g, CLV_OP_RELU, 1, g->output_node);
  g->output_node = add_node(g, CLV_OP_LINEAR, 2, relu, -1, &out, 1);
  return g;
}

static clv_graph *make_relu(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 3), &x);
  g->output_node = add_plain(g, CLV_OP_RELU, 0, x);
  return g;
}

static clv_graph *make_batchnorm(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 16, 2, 2), &x);
  g->output_node = add_plain(g, CLV_OP_BATCHNORM, 0, x);
  return g;
}

/* Returns a graph whose second layer with parameters does not lead to the output. */
static clv_graph *make_dead_branch(void) {
  clv_graph *g = make_two_linears();
  g->output_node = 1;
  return g;
}

/* Returns a graph that recomputes its values, for which the first layer's weights are read
 * again. */
static clv_graph *make_recomputing_graph(void) {
  clv_graph *g = make_two_linears();
  for (int i = 1; i < g->n_nodes; i++) g->nodes[i].recompute_block = 1;
  return g;
}

static clv_graph *make_residual(void) { return make_residual_graph(3); }

static const rig_options data = {.has_no_input_grad = {true}};

static void linear_reads_weights_only_for_its_input_gradient(void **state) {
  (void)state;
  assert_reads_weights(make_linear, data, false, "over data");
  assert_reads_weights(make_linear, (rig_options){0}, true, "over a value");
  assert_reads_weights(make_relu, (rig_options){0}, false, "without parameters");
  assert_reads_weights(make_dead_branch, data, false, "beside the output");
}

static void layers_after_a_trainable_one_read_their_weights(void **state) {
  (void)state;
  assert_reads_weights(make_two_linears, data, true, "two layers");
  assert_reads_weights(
      make_two_linears,
      (rig_options){.has_no_input_grad = {true}, .frozen_params = {"0.weight", "0.bias"}}, false,
      "behind frozen ones");
  assert_reads_weights(make_two_linears,
                       (rig_options){.has_no_input_grad = {true},
                                     .frozen_params = {"0.weight", "2.weight", "2.bias"}},
                       true, "of which a bias learns");
  assert_reads_weights(make_residual, data, true, "a residual block");
  rig_options options_of_frozen_front = {.has_no_input_grad = {true},
                                         .frozen_params = {"0.weight", "0.bias"}};
  assert_reads_weights(make_recomputing_graph, options_of_frozen_front, true, "computed again");
}

/* Like PyTorch, the graph counts a batchnorm's weight as read in backward, whichever gradients are
 * wanted. */
static void trainable_batchnorm_reads_its_weight(void **state) {
  (void)state;
  assert_reads_weights(make_batchnorm, data, true, "batchnorm over data");
  assert_reads_weights(
      make_batchnorm,
      (rig_options){.has_no_input_grad = {true}, .frozen_params = {"0.weight", "0.bias"}}, false,
      "a frozen batchnorm");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(linear_reads_weights_only_for_its_input_gradient),
      cmocka_unit_test(layers_after_a_trainable_one_read_their_weights),
      cmocka_unit_test(trainable_batchnorm_reads_its_weight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
