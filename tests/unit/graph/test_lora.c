/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests adapters beside linear layers: which layers get them, their names, what they compute, their
 * initial values, and that nothing else changes.
 */
#include <math.h>
#include <string.h>

#include "graph_test.h"

enum { IN = 6, OUT = 5, RANK = 2, ROWS = 4 };

static void add_named_node(clv_graph *g, clv_op op, const char *name, uint32_t layer, int64_t out,
                           int *at) {
  clv_attr_value v = make_int_attr(CLV_ATTR_OUT, out);
  clv_attrs attrs;
  assert_ok(clv_attrs_parse(op, &v, out > 0, &attrs, err));
  assert_ok(clv_graph_add(g, op, &attrs, name, layer, at, 1, at, err));
}

/* Returns self.query -> self.key -> relu -> dense. */
static clv_graph *make_network(clv_dtype dtype) {
  int x;
  clv_graph *g = make_graph(dtype, CLV_SHAPE(ROWS, IN), &x);
  add_named_node(g, CLV_OP_LINEAR, "self.query", 0, OUT, &x);
  add_named_node(g, CLV_OP_LINEAR, "self.key", 1, OUT, &x);
  add_named_node(g, CLV_OP_RELU, "act", 2, 0, &x);
  add_named_node(g, CLV_OP_LINEAR, "dense", 3, 3, &x);
  for (int i = 0; i < g->n_nodes; i++) g->nodes[i].key.bytes[0] = (uint8_t)(i + 1);
  return g;
}

static clv_graph *make_adapted_graph(const clv_graph *g, const clv_lora *l) {
  clv_graph *adapted = NULL;
  assert_ok(clv_graph_add_lora(g, 0, 99, l, &adapted, err));
  return adapted;
}

static clv_lora make_lora_config(const char *const *targets, size_t n) {
  return (clv_lora){.targets = targets, .n_targets = n, .r = RANK, .alpha = RANK};
}

static const char *const query_target[] = {"query"}, *const two_targets[] = {"query", "dense"};

static void adapter_nodes_follow_their_target_layer(void **state) {
  (void)state;
  static const struct {
    const char *name;
    clv_op op;
    uint32_t layer;
  } want[] = {{"input", CLV_OP_INPUT, 0},
              {"self.query", CLV_OP_LINEAR, 0},
              {"self.query.lora_dropout", CLV_OP_DROPOUT, 0},
              {"self.query.lora_A", CLV_OP_LINEAR, 0},
              {"self.query.lora_scale", CLV_OP_SCALE, 0},
              {"self.query.lora_B", CLV_OP_LINEAR, 0},
              {"self.query.lora_sum", CLV_OP_ADD, 0},
              {"self.key", CLV_OP_LINEAR, 1},
              {"act", CLV_OP_RELU, 2},
              {"dense", CLV_OP_LINEAR, 3}};
  clv_graph *g = make_network(CLV_F32);
  clv_lora l = make_lora_config(query_target, 1);
  g->nodes[1].recompute_block = 4;
  l.dropout = 0.25;
  l.alpha = 3;
  clv_graph *adapted = make_adapted_graph(g, &l);
  assert_int_equal(adapted->n_nodes, CLV_COUNT(want));
  for (int i = 0; i < adapted->n_nodes; i++) {
    assert_string_equal(adapted->nodes[i].name, want[i].name);
    assert_int_equal(adapted->nodes[i].op, want[i].op);
    assert_int_equal(adapted->nodes[i].layer, want[i].layer);
    assert_int_equal(adapted->nodes[i].recompute_block, i > 0 && i < 7 ? 4 : 0);
  }
  /* the nodes that read the output of the layer now read its sum with the output of the adapter */
  assert_int_equal(adapted->nodes[7].in[0], 6);
  assert_int_equal(adapted->output_node, 9);
  assert_true(adapted->nodes[2].attrs.p == 0.25 && adapted->nodes[4].attrs.factor == 1.5);
  assert_memory_equal(&adapted->nodes[7].key, &g->nodes[2].key, sizeof g->nodes[2].key);
  clv_graph_free(adapted);
  clv_graph_free(g);
}

/* The factor of an adapter is alpha / r, or alpha / sqrt(r). If the factor is 1, the graph has no
 * scale node. */
static void scale_is_alpha_over_r_or_sqrt_r(void **state) {
  (void)state;
  clv_graph *g = make_network(CLV_F32);
  for (int uses_rslora = 0; uses_rslora < 2; uses_rslora++) {
    clv_lora l = make_lora_config(query_target, 1);
    l.r = 16;
    l.alpha = 8;
    l.rslora = uses_rslora;
    clv_graph *adapted = make_adapted_graph(g, &l);
    assert_int_equal(adapted->nodes[3].op, CLV_OP_SCALE);
    assert_true(adapted->nodes[3].attrs.factor == (uses_rslora ? 2 : 0.5));
    clv_graph_free(adapted);
  }
  clv_lora scale_of_one = make_lora_config(query_target, 1);
  clv_graph *adapted = make_adapted_graph(g, &scale_of_one);
  assert_int_equal(adapted->nodes[3].op, CLV_OP_LINEAR);
  clv_graph_free(adapted);
  clv_graph_free(g);
}

/* ---- values of adapted layers ---------------------------------------------------------------- */

static double *get_values(const clv_params *p, void *block, const char *name) {
  const clv_param *q = clv_params_find(p, name);
  if (!q) fail_msg("no parameter '%s'", name);
  return (double *)(void *)((char *)block + q->offset);
}

static void run_forward(const clv_graph *g, const clv_params *p, void *block, const double *x,
                        double *y) {
  clv_plan *plan;
  clv_call *call;
  clv_plan_options o = {
      .backend = clv_backend_ref(), .dtype = CLV_F64, .batch = ROWS, .threads = 1};
  assert_ok(clv_plan_new(g, p, &o, &plan, err));
  assert_ok(clv_plan_call_get(plan, &call, err));
  assert_ok(clv_plan_forward(plan, call, block, 1, (const void *[]){x}, true, y, NULL, err));
  clv_plan_call_put(plan, call);
  clv_plan_free(plan);
}

/* Compares the output of an adapted layer with the formula x W^T + b + scale (x A^T) B^T. */
static void adapted_output_matches_the_formula(void **state) {
  (void)state;
  int at;
  double x[ROWS * IN], y[ROWS * OUT], plain_output[ROWS * OUT];
  clv_graph *g = make_graph(CLV_F64, CLV_SHAPE(ROWS, IN), &at);
  add_named_node(g, CLV_OP_LINEAR, "query", 0, OUT, &at);
  clv_lora l = make_lora_config(query_target, 1);
  l.alpha = 3;
  clv_graph *adapted = make_adapted_graph(g, &l);
  clv_params *base_params, *p;
  assert_ok(clv_params_make(g, &base_params, err));
  assert_ok(clv_params_make(adapted, &p, err));
  void *block = aligned_alloc(64, p->total_bytes),
       *base_block = aligned_alloc(64, base_params->total_bytes);
  clv_params_init(g, base_params, base_block);
  clv_params_init(adapted, p, block);
  for (int i = 0; i < ROWS * IN; i++) x[i] = sin(i);
  run_forward(g, base_params, base_block, x, plain_output);
  run_forward(adapted, p, block, x, y);
  assert_memory_equal(y, plain_output, sizeof y); /* B is 0, so the adapter adds nothing */
  const double *a = get_values(p, block, "query.lora_A.weight");
  double *b = get_values(p, block, "query.lora_B.weight");
  for (int i = 0; i < OUT * RANK; i++) b[i] = cos(i);
  run_forward(adapted, p, block, x, y);
  for (int n = 0; n < ROWS; n++)
    for (int o = 0; o < OUT; o++) {
      double want = plain_output[n * OUT + o];
      for (int r = 0; r < RANK; r++)
        for (int k = 0; k < IN; k++) want += 1.5 * x[n * IN + k] * a[r * IN + k] * b[o * RANK + r];
      assert_true(fabs(y[n * OUT + o] - want) < 1e-12);
    }
  free(block);
  free(base_block);
  clv_params_free(base_params);
  clv_params_free(p);
  clv_graph_free(adapted);
  clv_graph_free(g);
}

/* The adapted layers have the same initial values as without adapters. In an adapter, A is drawn
 * uniformly from +-1 / sqrt(in), and B is 0. */
static void base_values_are_unchanged_and_b_starts_at_zero(void **state) {
  (void)state;
  clv_graph *g = make_network(CLV_F32);
  clv_lora l = make_lora_config(two_targets, 2);
  clv_graph *adapted = make_adapted_graph(g, &l);
  clv_params *base, *p;
  assert_ok(clv_params_make(g, &base, err));
  assert_ok(clv_params_make(adapted, &p, err));
  assert_int_equal(p->n, base->n + 4);
  char *block = aligned_alloc(64, p->total_bytes),
       *base_block = aligned_alloc(64, base->total_bytes);
  for (int i = 0; i < adapted->n_nodes; i++)
    if (clv_name_is_of_adapter(adapted->nodes[i].name)) adapted->nodes[i].key.bytes[1] = 7;
  clv_params_init(g, base, base_block);
  clv_params_init(adapted, p, block);
  for (int i = 0; i < base->n; i++) {
    const clv_param *q = clv_params_find(p, base->list[i].name);
    assert_memory_equal(block + q->offset, base_block + base->list[i].offset, q->bytes);
  }
  const clv_param *a = clv_params_find(p, "self.query.lora_A.weight");
  const clv_param *b = clv_params_find(p, "self.query.lora_B.weight");
  assert_true(clv_shape_equal(&a->shape, &CLV_SHAPE(RANK, IN)));
  assert_true(clv_shape_equal(&b->shape, &CLV_SHAPE(OUT, RANK)));
  float max_value = 0;
  for (size_t i = 0; i < a->n; i++)
    max_value = fmaxf(max_value, fabsf(((const float *)(const void *)(block + a->offset))[i]));
  assert_true(max_value <= 1 / sqrtf(IN) && max_value > 0.5f / sqrtf(IN));
  for (size_t i = 0; i < b->n; i++)
    assert_true(((const float *)(const void *)(block + b->offset))[i] == 0);
  assert_memory_not_equal(block + a->offset,
                          block + clv_params_find(p, "self.query.weight")->offset, a->bytes);
  free(block);
  free(base_block);
  clv_params_free(base);
  clv_params_free(p);
  clv_graph_free(adapted);
  clv_graph_free(g);
}

/* A slice has the adapters of its own layers. */
static void slice_keeps_adapters_of_its_layers(void **state) {
  (void)state;
  clv_graph *g = make_network(CLV_F32), *part = NULL, *none = NULL;
  clv_lora l = make_lora_config(two_targets, 2);
  clv_graph *adapted = make_adapted_graph(g, &l);
  assert_ok(clv_graph_slice(adapted, 2, 3, &part, err));
  assert_int_equal(part->n_nodes, 6);
  assert_string_equal(part->nodes[part->output_node].name, "dense.lora_sum");
  assert_fails(clv_graph_add_lora(g, 1, 3, &l, &none, err), CLV_NOT_FOUND,
               "no layer here has the name 'query'; the linear ones are key, dense");
  clv_graph_free(part);
  clv_graph_free(adapted);
  clv_graph_free(g);
}

/* ---- names of adapted layers ----------------------------------------------------------------- */

static void unknown_or_nonlinear_targets_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *target;
    clv_code code;
    const char *text;
  } bad[] = {
      {"qurey", CLV_NOT_FOUND, "'qurey', did you mean 'query'?"},
      /* a target must be one or more whole parts of a layer's name, between its dots */
      {"uery", CLV_NOT_FOUND, "'uery', did you mean 'query'?"},
      {"self", CLV_NOT_FOUND, "the linear ones are query, key, dense"},
      {"act", CLV_INVALID, "'act' is of op relu: adapters belong to linear layers"},
  };
  clv_graph *g = make_network(CLV_F32), *adapted = NULL;
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    clv_lora l = make_lora_config(&bad[i].target, 1);
    assert_fails(clv_graph_add_lora(g, 0, 9, &l, &adapted, err), bad[i].code, bad[i].text);
  }
  clv_lora l = make_lora_config((const char *const[]){"self.query"}, 1);
  clv_graph_free(make_adapted_graph(g, &l));
  clv_graph_free(g);
}

static void adapter_and_module_names_are_recognized(void **state) {
  (void)state;
  assert_true(clv_name_is_of_adapter("a.query.lora_A.weight"));
  assert_true(clv_name_is_of_adapter("query.lora_B"));
  assert_false(clv_name_is_of_adapter("query.lora_Bias.weight"));
  assert_false(clv_name_is_of_adapter("lora_A.weight"));
  assert_true(clv_name_is_in_module("classifier.weight", "classifier"));
  assert_true(clv_name_is_in_module("bert.classifier.dense.weight", "classifier"));
  assert_true(clv_name_is_in_module("bert.classifier.dense.weight", "classifier.dense"));
  assert_false(clv_name_is_in_module("bert.classifiers.weight", "classifier"));
  assert_false(clv_name_is_in_module("preclassifier.weight", "classifier"));
  assert_true(clv_name_is_in_module("2.weight", "2"));
  assert_false(clv_name_is_in_module("12.weight", "2"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(adapter_nodes_follow_their_target_layer),
      cmocka_unit_test(scale_is_alpha_over_r_or_sqrt_r),
      cmocka_unit_test(adapted_output_matches_the_formula),
      cmocka_unit_test(base_values_are_unchanged_and_b_starts_at_zero),
      cmocka_unit_test(slice_keeps_adapters_of_its_layers),
      cmocka_unit_test(unknown_or_nonlinear_targets_are_refused),
      cmocka_unit_test(adapter_and_module_names_are_recognized),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
