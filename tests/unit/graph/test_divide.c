/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests chains divided over parts: which graph each part gets, what is refused, and tensors that
 * are cut and put together again.
 */
#include "tests/unit/graph/graph_test.h"

enum { LAYERS = 5 };

/* Returns the graph linear 6 -> 8, relu, linear 8 -> 3, softmax over an input [4, 6]. */
static clv_graph *make_chain(void) {
  clv_graph *g;
  clv_attr_value out[] = {make_int_attr(CLV_ATTR_OUT, 8), make_int_attr(CLV_ATTR_OUT, 3)};
  assert_ok(clv_graph_new(&g, err));
  assert_ok(clv_graph_add_input(g, "input", CLV_F32, &CLV_SHAPE(4, 6), &(int){0}, err));
  add_node(g, CLV_OP_LINEAR, 0, 0, -1, &out[0], 1);
  add_plain(g, CLV_OP_RELU, 1, 1);
  add_node(g, CLV_OP_LINEAR, 2, 2, -1, &out[1], 1);
  g->output_node = add_plain(g, CLV_OP_SOFTMAX, 3, 3);
  return g;
}

/* Asserts that the graph has the ops whose names `want` lists, such as "linear relu". */
static void assert_ops(const clv_graph *g, const char *want) {
  char got[256] = "";
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op != CLV_OP_INPUT)
      snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", *got ? " " : "",
               clv_op_name(g->nodes[i].op));
  assert_string_equal(got, want);
}

static void assert_param(const clv_graph *g, const char *name, clv_shape want) {
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  assert_ok(clv_params_make(g, &p, err));
  const clv_param *param = clv_params_find(p, name);
  assert_non_null(param);
  assert_true(clv_shape_equal(&param->shape, &want));
}

static bool has_param(const clv_graph *g, const char *name) {
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  assert_ok(clv_params_make(g, &p, err));
  return clv_params_find(p, name) != NULL;
}

static void column_then_row_layers_form_one_parallel_span(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_chain();
  CLV_AUTO(clv_divided_chain_freep) clv_divided_chain *d = NULL;
  const clv_parallel parallel_kinds[LAYERS] = {0, CLV_PARALLEL_COLUMNS, 0, CLV_PARALLEL_ROWS, 0};
  assert_ok(clv_divide_chain(g, parallel_kinds, 4, &d, err));
  assert_int_equal(d->n_segments, 2);
  assert_true(d->segments[0].is_sharded);
  for (int k = 0; k < 4; k++) {
    const clv_graph *part = d->segments[0].part_graphs[k];
    assert_ops(part, "linear relu linear");
    assert_param(part, "0.weight", CLV_SHAPE(2, 6));
    assert_param(part, "0.bias", CLV_SHAPE(2));
    assert_param(part, "2.weight", CLV_SHAPE(3, 2));
    assert_int_equal(has_param(part, "2.bias"), k == 0); /* the bias is added once */
  }
  assert_false(d->segments[1].is_sharded);
  assert_ops(d->segments[1].part_graphs[0], "add add add softmax");
  assert_null(d->segments[1].part_graphs[1]);
  const clv_node *sum_nodes =
      d->segments[1].part_graphs[0]->nodes; /* nodes 0 to 3 are inputs, in the order of the parts */
  assert_int_equal(sum_nodes[4].in[0], 0);
  for (int i = 0; i < 3; i++) assert_int_equal(sum_nodes[4 + i].in[1], 1 + i);
  assert_int_equal(sum_nodes[5].in[0], 4);
}

static void column_parallel_outputs_are_concatenated(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_chain();
  CLV_AUTO(clv_divided_chain_freep) clv_divided_chain *d = NULL;
  const clv_parallel parallel_kinds[LAYERS] = {0, CLV_PARALLEL_COLUMNS, 0, 0, 0};
  assert_ok(clv_divide_chain(g, parallel_kinds, 2, &d, err));
  assert_int_equal(d->n_segments, 2);
  assert_ops(d->segments[0].part_graphs[1], "linear relu");
  assert_ops(d->segments[1].part_graphs[0], "concat linear softmax");
  assert_param(d->segments[1].part_graphs[0], "2.weight", CLV_SHAPE(3, 8));
}

static void row_parallel_parts_slice_the_input_and_are_added(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_chain();
  CLV_AUTO(clv_divided_chain_freep) clv_divided_chain *d = NULL;
  const clv_parallel parallel_kinds[LAYERS] = {0, 0, 0, CLV_PARALLEL_ROWS, 0};
  assert_ok(clv_divide_chain(g, parallel_kinds, 2, &d, err));
  assert_int_equal(d->n_segments, 3);
  assert_ops(d->segments[0].part_graphs[0], "linear relu");
  assert_ops(d->segments[1].part_graphs[1], "slice linear");
  assert_int_equal(d->segments[1].part_graphs[1]->nodes[1].attrs.start, 4);
  assert_int_equal(d->segments[1].part_graphs[1]->nodes[1].attrs.stop, 8);
  assert_ops(d->segments[2].part_graphs[0], "add softmax");
}

/* A random key derived from the layer's number gives a layer its initial values. So nodes that join
 * parts must have no number of a layer. */
static void joining_nodes_have_no_layer_number_of_the_model(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_chain();
  CLV_AUTO(clv_divided_chain_freep) clv_divided_chain *d = NULL;
  const clv_parallel parallel_kinds[LAYERS] = {0, CLV_PARALLEL_COLUMNS, 0, CLV_PARALLEL_ROWS, 0};
  assert_ok(clv_divide_chain(g, parallel_kinds, 2, &d, err));
  const clv_graph *joined_graph = d->segments[1].part_graphs[0];
  for (int i = 0; i < joined_graph->n_nodes; i++)
    if (joined_graph->nodes[i].op == CLV_OP_ADD) assert_true(joined_graph->nodes[i].layer > 1000);
}

static void indivisible_layers_are_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_chain();
  clv_divided_chain *d = NULL;
  const clv_parallel kinds_of_relu[LAYERS] = {0, 0, CLV_PARALLEL_COLUMNS, 0, 0};
  const clv_parallel columns[LAYERS] = {0, 0, 0, CLV_PARALLEL_COLUMNS, 0};
  const clv_parallel rows[LAYERS] = {0, CLV_PARALLEL_ROWS, 0, 0, 0};
  assert_fails(clv_divide_chain(g, kinds_of_relu, 2, &d, err), CLV_INVALID,
               "only linear can be divided");
  assert_fails(clv_divide_chain(g, columns, 2, &d, err), CLV_INVALID,
               "'2' has 3 outputs, which 2 parts do not divide");
  assert_fails(clv_divide_chain(g, rows, 4, &d, err), CLV_INVALID,
               "'0' has 6 inputs, which 4 parts do not divide");
  assert_fails(clv_divide_chain(g, rows, 1, &d, err), CLV_INVALID, "into 2 to 8 parts, not 1");
  assert_fails(clv_divide_chain(g, rows, 9, &d, err), CLV_INVALID, "into 2 to 8 parts, not 9");
  assert_null(d);
}

static void divide_and_reassemble(clv_shape whole, clv_shape part, uint32_t n) {
  float full_tensor[24], reassembled[24] = {0}, part_values[24];
  for (int i = 0; i < 24; i++) full_tensor[i] = (float)i;
  for (uint32_t k = 0; k < n; k++) {
    clv_tensor_part p = {whole, part, k, sizeof *full_tensor};
    clv_tensor_part_copy(&p, full_tensor, part_values, false);
    clv_tensor_part_copy(&p, reassembled, part_values, true);
  }
  assert_memory_equal(full_tensor, reassembled, sizeof full_tensor);
}

static void tensor_parts_reassemble_to_the_tensor(void **state) {
  (void)state;
  float full_tensor[] = {0, 1, 2, 3, 4, 5, 6, 7}, part_values[4];
  clv_tensor_part right = {CLV_SHAPE(2, 4), CLV_SHAPE(2, 2), 1, sizeof *full_tensor};
  clv_tensor_part_copy(&right, full_tensor, part_values, false);
  assert_memory_equal(part_values, ((float[]){2, 3, 6, 7}), sizeof part_values);
  divide_and_reassemble(CLV_SHAPE(6, 4), CLV_SHAPE(2, 4), 3);
  divide_and_reassemble(CLV_SHAPE(6, 4), CLV_SHAPE(6, 1), 4);
  divide_and_reassemble(CLV_SHAPE(2, 6, 2), CLV_SHAPE(2, 3, 2), 2);
  divide_and_reassemble(CLV_SHAPE(24), CLV_SHAPE(24), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(column_then_row_layers_form_one_parallel_span),
      cmocka_unit_test(column_parallel_outputs_are_concatenated),
      cmocka_unit_test(row_parallel_parts_slice_the_input_and_are_added),
      cmocka_unit_test(joining_nodes_have_no_layer_number_of_the_model),
      cmocka_unit_test(indivisible_layers_are_refused),
      cmocka_unit_test(tensor_parts_reassemble_to_the_tensor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
