/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests graphs: names, links, batches, slices; the layout of parameters and their initial values.
 */
#include "tests/unit/graph/graph_test.h"

#include <math.h>

static void duplicate_names_and_bad_links_are_refused(void **state) {
  (void)state;
  clv_attrs out = {.out = 3, .bias = true};
  char longest[CLV_NAME_MAX + 1];
  int x, y, in = 0, two_inputs[2] = {0, 1};
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 5), &x);
  assert_ok(clv_graph_add(g, CLV_OP_LINEAR, &out, "head.fc-1", 7, &in, 1, &y, err));
  assert_string_equal(g->nodes[y].name, "head.fc-1");
  assert_ok(clv_graph_add(g, CLV_OP_LINEAR, &out, "", 12, &in, 1, &y, err));
  assert_string_equal(g->nodes[y].name, "12");
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, "12", 13, &in, 1, &y, err), CLV_EXISTS,
               "two nodes have the name '12'");
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, "a/b", 13, &in, 1, &y, err), CLV_INVALID,
               "'a/b' has another character");
  memset(longest, 'n', sizeof longest - 1);
  longest[sizeof longest - 1] = 0;
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, longest, 13, &in, 1, &y, err), CLV_INVALID,
               "1 to 63 characters");
  in = 3;
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, NULL, 13, &in, 1, &y, err), CLV_INVALID,
               "is node 3, there are 3 before it");
  in = -1;
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, NULL, 13, &in, 1, &y, err), CLV_INVALID,
               "is node -1");
  assert_fails(clv_graph_add(g, CLV_OP_LINEAR, &out, NULL, 13, two_inputs, 2, &y, err), CLV_INVALID,
               "linear takes 1 input, got 2");
  assert_fails(clv_graph_add(g, CLV_OP_ADD, &out, NULL, 13, two_inputs, 1000000, &y, err),
               CLV_INVALID, "add takes 2 inputs, got 1000000");
  assert_fails(clv_graph_add(g, CLV_OP_INPUT, &out, NULL, 13, two_inputs, 0, &y, err), CLV_INVALID,
               "unknown op number 0");
  assert_fails(clv_graph_add(g, CLV_OP_RELU, &out, NULL, UINT32_MAX, two_inputs, 1, &y, err),
               CLV_INVALID, "layer 4294967295 is above");
  assert_int_equal(g->n_nodes, 3);
  assert_int_equal(g->output_node, 2);
  clv_graph_free(g);
}

static void too_many_inputs_or_nodes_are_refused(void **state) {
  (void)state;
  clv_attrs none = {0};
  clv_shape shape = CLV_SHAPE(1, 1);
  int x, y;
  char name[16];
  clv_graph *g = make_graph(CLV_F32, shape, &x);
  for (int i = 1; i < CLV_MAX_INPUTS; i++) {
    snprintf(name, sizeof name, "in%d", i);
    assert_ok(clv_graph_add_input(g, name, CLV_F32, &shape, NULL, err));
  }
  assert_fails(clv_graph_add_input(g, "more", CLV_F32, &shape, NULL, err), CLV_EXHAUSTED,
               "at most 8 inputs");
  for (uint32_t i = CLV_MAX_INPUTS; i < CLV_MAX_NODES; i++)
    assert_ok(clv_graph_add(g, CLV_OP_RELU, &none, NULL, i, &x, 1, &y, err));
  assert_fails(clv_graph_add(g, CLV_OP_RELU, &none, NULL, CLV_MAX_NODES, &x, 1, &y, err),
               CLV_EXHAUSTED, "at most 4096 nodes");
  clv_graph_free(g);
  assert_null(clv_graph_free(NULL));
}

static void set_batch_resizes_every_node(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4);
  assert_ok(clv_graph_set_batch(g, 11, err));
  assert_int_equal(g->nodes[g->output_node].shape.dim[0], 11);
  assert_int_equal(g->nodes[1].shape.dim[0], 11);
  assert_int_equal(g->nodes[1].shape.dim[1], 10);
  assert_fails(clv_graph_set_batch(g, 0, err), CLV_INVALID, "input input");
  assert_fails(clv_graph_set_batch(g, -5, err), CLV_INVALID, "outside");
  assert_fails(clv_graph_set_batch(g, 1000000000, err), CLV_EXHAUSTED, "layer 0: the output");
  for (int i = 0; i < g->n_nodes; i++) assert_int_equal(g->nodes[i].shape.dim[0], 11);
  clv_graph_free(g);
}

static int64_t get_batch_extent(const clv_graph *g, int node) {
  return g->nodes[node].shape.dim[0];
}

/* Concat joins two batches, and an addition adds a third input to the result. The third input must
 * have the extents of the joined batch. */
static void joined_batches_keep_their_extents(void **state) {
  (void)state;
  clv_attrs a = {.dim = 0}, none = {0};
  clv_shape shape_of_2 = CLV_SHAPE(2, 3), shape_of_5 = CLV_SHAPE(5, 3),
            shape_of_7 = CLV_SHAPE(7, 3);
  static const int64_t equal_batches[CLV_MAX_INPUTS] = {4, 6, 10},
                       unequal_batches[CLV_MAX_INPUTS] = {4, 5, 10};
  int in[3], concat_node, sum_node;
  clv_graph *g = make_graph(CLV_F32, shape_of_2, &in[0]);
  assert_ok(clv_graph_add_input(g, "b", CLV_F32, &shape_of_5, &in[1], err));
  assert_ok(clv_graph_add_input(g, "c", CLV_F32, &shape_of_7, &in[2], err));
  assert_false(g->has_per_input_batches);
  assert_ok(clv_graph_add(g, CLV_OP_CONCAT, &a, NULL, 0, in, 2, &concat_node, err));
  assert_true(g->has_per_input_batches);
  assert_ok(
      clv_graph_add(g, CLV_OP_ADD, &none, NULL, 1, (int[]){concat_node, in[2]}, 2, &sum_node, err));
  assert_int_equal(get_batch_extent(g, sum_node), 7);
  assert_ok(clv_graph_set_batches(g, equal_batches, err));
  assert_int_equal(get_batch_extent(g, in[1]), 6);
  assert_int_equal(get_batch_extent(g, sum_node), 10);
  assert_fails(clv_graph_set_batches(g, unequal_batches, err), CLV_INVALID, "layer 1: add");
  assert_fails(clv_graph_set_batch(g, 4, err), CLV_INVALID, "layer 1: add");
  for (int i = 0; i < 3; i++) assert_int_equal(get_batch_extent(g, in[i]), equal_batches[i]);
  assert_int_equal(get_batch_extent(g, sum_node), 10);
  clv_graph_free(g);
}

static void assert_same_node(const clv_node *a, const clv_node *b) {
  assert_string_equal(a->name, b->name);
  assert_int_equal(a->layer, b->layer);
  assert_true(a->op == b->op && clv_shape_equal(&a->shape, &b->shape));
}

static void slice_keeps_nodes_and_shapes(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4), *part;
  for (uint32_t first = 0; first < CHAIN_LAYERS; first++)
    for (uint32_t last = first; last < CHAIN_LAYERS; last++) {
      assert_ok(clv_graph_slice(g, first, last, &part, err));
      assert_int_equal(part->n_nodes, last - first + 2);
      assert_string_equal(part->nodes[0].name, "input");
      assert_true(clv_shape_equal(&part->nodes[0].shape, &g->nodes[first].shape));
      for (uint32_t i = first; i <= last; i++)
        assert_same_node(&g->nodes[i + 1], &part->nodes[i - first + 1]);
      assert_int_equal(part->output_node, part->n_nodes - 1);
      clv_graph_free(part);
    }
  assert_fails(clv_graph_slice(g, 11, 20, &part, err), CLV_INVALID, "no layer from 11 to 20");
  assert_fails(clv_graph_slice(g, 5, 3, &part, err), CLV_INVALID, "no layer from 5 to 3");
  clv_graph_free(g);
}

/* The graph has the layers 0 to 3, of which layer 2 adds the outputs of layers 0 and 1. Both
 * outputs cross a cut after layer 1. */
static void slice_across_branches_joins_the_crossing_values(void **state) {
  (void)state;
  int x;
  clv_graph *part, *g = make_graph(CLV_F32, CLV_SHAPE(4, 6), &x);
  int a = add_linear(g, 0, x, 6), b = add_plain(g, CLV_OP_RELU, 1, a);
  int c = add_node(g, CLV_OP_ADD, 2, a, b, NULL, 0);
  add_plain(g, CLV_OP_TANH, 3, c);
  int nodes[8];
  assert_int_equal(clv_graph_find_crossing_nodes(g, 1, nodes), 2);
  assert_int_equal(nodes[0], a);
  assert_int_equal(nodes[1], b);
  assert_ok(clv_graph_slice(g, 0, 1, &part, err));
  assert_true(clv_shape_equal(&part->nodes[part->output_node].shape, &CLV_SHAPE(4, 12)));
  clv_graph_free(part);
  assert_ok(clv_graph_slice(g, 2, 3, &part, err));
  assert_true(clv_shape_equal(&part->nodes[0].shape, &CLV_SHAPE(4, 12)));
  assert_string_equal(part->nodes[part->output_node].name, "3");
  clv_graph_free(part);
  assert_ok(clv_graph_slice(g, 1, 2, &part, err));
  assert_int_equal(part->n_nodes, 3);
  assert_int_equal(part->nodes[2].in[0], 0);
  assert_int_equal(part->nodes[2].in[1], 1);
  clv_graph_free(part);
  /* the graph's output need not be its last node: a slice of all layers keeps output `a` */
  g->output_node = a;
  assert_fails(clv_graph_slice(g, 0, 3, &part, err) == CLV_OK, true, "");
  assert_int_equal(part->output_node, 1);
  clv_graph_free(part);
  clv_graph_free(g);
}

/* More values cross the cut than one op can take as inputs. Each value keeps its own shape, and the
 * values are in the order of nodes. */
static void slice_with_many_crossing_values_keeps_their_shapes(void **state) {
  (void)state;
  enum { BRANCHES = 20 };
  int x, nodes[64], sum;
  clv_graph *part, *g = make_graph(CLV_F32, CLV_SHAPE(4, 6, 2), &x);
  for (uint32_t i = 0; i < BRANCHES; i++) add_plain(g, CLV_OP_RELU, i, x);
  sum = add_node(g, CLV_OP_ADD, BRANCHES, 1, 2, NULL, 0);
  for (uint32_t i = 1; i + 1 < BRANCHES; i++)
    sum = add_node(g, CLV_OP_ADD, BRANCHES + i, sum, (int)i + 2, NULL, 0);
  assert_int_equal(clv_graph_find_crossing_nodes(g, BRANCHES - 1, nodes), BRANCHES);
  assert_ok(clv_graph_slice(g, 0, BRANCHES - 1, &part, err));
  assert_true(clv_shape_equal(&part->nodes[part->output_node].shape, &CLV_SHAPE(4, 12 * BRANCHES)));
  clv_graph_free(part);
  assert_ok(clv_graph_slice(g, BRANCHES, 2 * BRANCHES, &part, err));
  assert_true(clv_shape_equal(&part->nodes[0].shape, &CLV_SHAPE(4, 12 * BRANCHES)));
  assert_true(clv_shape_equal(&part->nodes[part->output_node].shape, &CLV_SHAPE(4, 6, 2)));
  clv_graph_free(part);
  clv_graph_free(g);
}

/* ---- parameters of a graph ------------------------------------------------------------------- */

typedef struct wanted_param {
  const char *name;
  clv_shape shape;
  size_t offset;
} wanted_param;

static const wanted_param chain_params[] = {{"0.weight", {4, {10, 3, 3, 3}}, 0},
                                            {"0.bias", {1, {10}}, 1088},
                                            {"1.weight", {1, {10}}, 1152},
                                            {"1.bias", {1, {10}}, 1216},
                                            {"1.running_mean", {1, {10}}, 16896},
                                            {"1.running_var", {1, {10}}, 16960},
                                            {"1.num_batches_tracked", {0, {0}}, 17024},
                                            {"4.weight", {4, {18, 10, 3, 3}}, 1280},
                                            {"4.bias", {1, {18}}, 7808},
                                            {"8.weight", {2, {13, 216}}, 7936},
                                            {"8.bias", {1, {13}}, 19200},
                                            {"10.weight", {2, {5, 13}}, 19264},
                                            {"10.bias", {1, {5}}, 19584}};

static void check_param(const clv_params *p, const clv_param *q, const wanted_param *want) {
  assert_string_equal(q->name, want->name);
  assert_true(clv_shape_equal(&q->shape, &want->shape));
  assert_ptr_equal(clv_params_find(p, want->name), q);
  assert_int_equal(q->trainable, q->slot < CLV_SLOT_MEAN);
  assert_int_equal(q->dtype, q->slot == CLV_SLOT_TRACKED ? CLV_I64 : CLV_F32);
  assert_int_equal(q->bytes, q->n * (q->dtype == CLV_I64 ? 8 : 4));
  assert_int_equal(q->offset % 64, 0);
}

static void parameters_are_laid_out_aligned_in_order(void **state) {
  (void)state;
  const wanted_param *want = chain_params;
  clv_graph *g = make_chain_graph(CLV_F32, 4);
  clv_params *p;
  assert_ok(clv_params_make(g, &p, err));
  assert_int_equal(p->n, CLV_COUNT(chain_params));
  size_t at = 0, values = 0;
  for (int i = 0; i < p->n; i++) {
    const clv_param *q = &p->list[i];
    check_param(p, q, &want[i]);
    if (!q->trainable) continue;
    assert_int_equal(q->offset, at);
    at += (q->bytes + 63) / 64 * 64;
    values += q->n;
  }
  assert_int_equal(clv_params_find(p, "0.bias")->offset, want[1].offset);
  assert_int_equal(clv_params_find(p, "4.bias")->offset, want[8].offset);
  assert_int_equal(p->trainable_bytes, at);
  assert_int_equal(p->n_trainable_values, values);
  assert_int_equal(clv_params_find(p, "1.running_mean")->offset, at);
  assert_int_equal(p->total_bytes, at + 3 * 64);
  assert_null(clv_params_find(p, "0.Weight"));
  clv_params_free(p);
  clv_graph_free(g);
}

static void *make_initial_values(const clv_graph *g, const clv_params *p, uint8_t seed) {
  void *block;
  assert_ok(clv_alloc_aligned(p->total_bytes, &block, err));
  memset(block, 0xFF, p->total_bytes);
  for (int i = 0; i < g->n_nodes; i++) g->nodes[i].key.bytes[0] = seed;
  clv_params_init(g, p, block);
  return block;
}

/* Asserts a uniform distribution in +-1/sqrt(fan_in): its bounds, mean 0, variance bound^2 / 3. */
static void check_uniform(const float *v, size_t n, double bound) {
  double sum = 0, squares = 0, max_magnitude = 0;
  for (size_t i = 0; i < n; i++) {
    sum += v[i];
    squares += (double)v[i] * v[i];
    max_magnitude = fmax(max_magnitude, fabs((double)v[i]));
  }
  double mean = sum / (double)n, variance = squares / (double)n, want = bound * bound / 3;
  assert_true(max_magnitude <= bound * (1 + 1e-6) && max_magnitude > bound * 0.98);
  assert_true(fabs(mean) < 5 * sqrt(want / (double)n));
  assert_true(fabs(variance / want - 1) < 5 * sqrt(0.8 / (double)n));
}

static void initial_values_follow_seed_and_fan_in(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4);
  clv_params *p;
  assert_ok(clv_params_make(g, &p, err));
  char *block = make_initial_values(g, p, 42), *block_of_other_seed = make_initial_values(g, p, 43);
#define AT(name) ((const float *)(const void *)(block + clv_params_find(p, name)->offset))
  check_uniform(AT("0.weight"), 270, 1 / sqrt(27.0));
  check_uniform(AT("4.weight"), 1620, 1 / sqrt(90.0));
  check_uniform(AT("8.weight"), 2808, 1 / sqrt(216.0));
  for (int i = 0; i < 13; i++) assert_true(fabsf(AT("8.bias")[i]) <= 1 / sqrtf(216.0f));
  for (int i = 0; i < 10; i++) {
    assert_true(AT("1.weight")[i] == 1 && AT("1.bias")[i] == 0);
    assert_true(AT("1.running_mean")[i] == 0 && AT("1.running_var")[i] == 1);
  }
  assert_true(*(const int64_t *)(const void *)AT("1.num_batches_tracked") == 0);
  /* each parameter (slot) of a layer draws its own numbers */
  assert_true(AT("8.weight")[0] != AT("8.bias")[0]);
  assert_memory_not_equal(block, block_of_other_seed, 1000);
  for (int i = 0; i < 8; i++) /* the padding after 10 floats */
    assert_int_equal(((const char *)AT("0.bias"))[40 + i], 0);
#undef AT
  free(block);
  free(block_of_other_seed);
  clv_params_free(p);
  clv_graph_free(g);
}

/* A layer has the same initial weights in any slice. */
static void fan_in_counts_the_inputs_of_one_output(void **state) {
  static const struct {
    clv_op op;
    int64_t kernel, stride, dilation, fan_in;
  } rows[] = {
      {CLV_OP_CONV2D, 3, 2, 1, 6 * 3 * 3},
      {CLV_OP_CONV_TRANSPOSE2D, 2, 2, 1, 6},
      {CLV_OP_CONV_TRANSPOSE2D, 4, 2, 1, 6 * 2 * 2},
      {CLV_OP_CONV_TRANSPOSE2D, 3, 2, 1, 6 * 2 * 2},
      /* every tap reaches an output of even index */
      {CLV_OP_CONV_TRANSPOSE2D, 3, 2, 2, 6 * 3 * 3},
      {CLV_OP_CONV_TRANSPOSE2D, 2, 4, 2, 6},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    int x;
    CLV_AUTO(clv_graph_freep) clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 6, 9, 9), &x);
    const clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 5),
                                make_int_attr(CLV_ATTR_KERNEL, rows[i].kernel),
                                make_int_attr(CLV_ATTR_STRIDE, rows[i].stride),
                                make_int_attr(CLV_ATTR_DILATION, rows[i].dilation)};
    x = add_node(g, rows[i].op, 0, x, -1, v, CLV_COUNT(v));
    assert_int_equal(clv_node_fan_in(g, &g->nodes[x]), rows[i].fan_in);
  }
  int x;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 7), &x);
  const clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 3),
                              make_int_attr(CLV_ATTR_TRANSPOSED, 1)};
  x = add_node(g, CLV_OP_LINEAR, 0, x, -1, v, CLV_COUNT(v));
  assert_int_equal(clv_node_fan_in(g, &g->nodes[x]), 7);
}

static void initial_values_do_not_depend_on_cuts(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4), *part;
  clv_params *p, *q;
  assert_ok(clv_params_make(g, &p, err));
  char *whole = make_initial_values(g, p, 7);
  for (uint32_t first = 0; first < CHAIN_LAYERS; first++) {
    assert_ok(clv_graph_slice(g, first, CHAIN_LAYERS - 1, &part, err));
    assert_ok(clv_params_make(part, &q, err));
    char *block = make_initial_values(part, q, 7);
    for (int i = 0; i < q->n; i++) {
      const clv_param *param_of_whole = clv_params_find(p, q->list[i].name);
      assert_non_null(param_of_whole);
      assert_memory_equal(block + q->list[i].offset, whole + param_of_whole->offset,
                          param_of_whole->bytes);
    }
    free(block);
    clv_params_free(q);
    clv_graph_free(part);
  }
  free(whole);
  clv_params_free(p);
  clv_graph_free(g);
}

static void f64_initial_values_equal_f32(void **state) {
  (void)state;
  clv_graph *g = make_chain_graph(CLV_F32, 4), *d = make_chain_graph(CLV_F64, 4);
  clv_params *p, *q;
  assert_ok(clv_params_make(g, &p, err));
  assert_ok(clv_params_make(d, &q, err));
  char *f32_block = make_initial_values(g, p, 7), *f64_block = make_initial_values(d, q, 7);
  for (int i = 0; i < p->n; i++)
    for (size_t k = 0; p->list[i].dtype == CLV_F32 && k < p->list[i].n; k++)
      assert_true(((double *)(void *)(f64_block + q->list[i].offset))[k] ==
                  (double)((float *)(void *)(f32_block + p->list[i].offset))[k]);
  free(f32_block);
  free(f64_block);
  clv_params_free(p);
  clv_params_free(q);
  clv_graph_free(g);
  clv_graph_free(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(duplicate_names_and_bad_links_are_refused),
      cmocka_unit_test(too_many_inputs_or_nodes_are_refused),
      cmocka_unit_test(set_batch_resizes_every_node),
      cmocka_unit_test(joined_batches_keep_their_extents),
      cmocka_unit_test(slice_keeps_nodes_and_shapes),
      cmocka_unit_test(slice_across_branches_joins_the_crossing_values),
      cmocka_unit_test(slice_with_many_crossing_values_keeps_their_shapes),
      cmocka_unit_test(parameters_are_laid_out_aligned_in_order),
      cmocka_unit_test(initial_values_follow_seed_and_fan_in),
      cmocka_unit_test(fan_in_counts_the_inputs_of_one_output),
      cmocka_unit_test(initial_values_do_not_depend_on_cuts),
      cmocka_unit_test(f64_initial_values_equal_f32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
