/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests frozen weights of linear layers in bf16: results are those of f32 with the rounded numbers,
 * on each backend, however many rows of the weight are converted to f32 at a time.
 */
#include <math.h>

#include "tests/unit/graph/graph_test.h"

typedef struct linear_case {
  int64_t n_rows, n_features, n_outputs;
  /* is_transposed: the weight is stored [in, out]; has_no_bias: the layer has no bias */
  bool is_transposed, has_no_bias;
} linear_case;

static const linear_case cases[] = {
    {1, 1, 1, false, false},
    {5, 33, 7, false, false},
    {37, 65, 50, true, false},
    {16, 64, 31, false, true},
    {64, 32, 64, true, true},
    {3, 1100, 1500, false, false},
    /* large weights, of which only some rows are converted from bf16 to f32 at a time */
    {3, 1500, 1100, true, false},
    {2, 1 << 17, 17, false, true},
};

typedef struct module_run {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  char *parameter_block;
  float *x, *y, *dy, *dx, *gradient_block;
} module_run;

static clv_graph *make_graph_of_case(const linear_case *c) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(c->n_rows, c->n_features), &x);
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, c->n_outputs),
                        make_int_attr(CLV_ATTR_BIAS, !c->has_no_bias),
                        make_int_attr(CLV_ATTR_TRANSPOSED, c->is_transposed)};
  add_node(g, CLV_OP_LINEAR, 0, x, -1, v, 3);
  return g;
}

static float *draw_numbers(size_t n, uint32_t stream) {
  float *x;
  clv_rng_key key = {.layer = stream};
  assert_ok(clv_alloc_aligned(n * sizeof *x, &x, err));
  clv_rng_uniform(&key, -1, 1, x, n);
  return x;
}

/* Makes the parameters from the same random numbers in both cases. is_narrow: the frozen weight is
 * stored in bf16. */
static void make_params(module_run *r, bool is_narrow) {
  assert_ok(clv_params_make(r->graph, &r->params, err));
  r->params->list[0].frozen = true;
  if (is_narrow) clv_params_convert_frozen_to_bf16(r->graph, r->params);
  clv_params_fix_frozen(r->params);
  assert_ok(clv_alloc_aligned(r->params->total_bytes, &r->parameter_block, err));
  clv_params_init(r->graph, r->params, r->parameter_block);
  const clv_param *w = &r->params->list[0];
  assert_int_equal(w->dtype, is_narrow ? CLV_BF16 : CLV_F32);
  assert_int_equal(w->bytes, w->n * (is_narrow ? 2 : 4));
  float *f32_weights = (float *)(void *)(r->parameter_block + w->offset);
  for (size_t i = 0; !is_narrow && i < w->n; i++)
    f32_weights[i] = clv_bf16_value(clv_bf16_of(f32_weights[i]));
}

static module_run run_case(const linear_case *c, const clv_backend *backend, bool is_bf16,
                           bool is_narrow) {
  module_run r = {.graph = make_graph_of_case(c)};
  size_t n_in = (size_t)(c->n_rows * c->n_features), n_out = (size_t)(c->n_rows * c->n_outputs);
  make_params(&r, is_narrow);
  const clv_plan_options o = {.backend = backend,
                              .dtype = CLV_F32,
                              .batch = c->n_rows,
                              .training = true,
                              .needs_input_grad = {true},
                              .threads = 1,
                              .bf16 = is_bf16};
  assert_ok(clv_plan_new(r.graph, r.params, &o, &r.plan, err));
  r.x = draw_numbers(n_in, 1);
  r.dy = draw_numbers(n_out, 2);
  r.y = draw_numbers(n_out, 3);
  r.dx = draw_numbers(n_in, 4);
  assert_ok(
      clv_alloc_aligned(CLV_MAX(r.params->trainable_bytes, (size_t)64), &r.gradient_block, err));
  assert_ok(clv_plan_call_get(r.plan, &r.call, err));
  const clv_rng_key key = {0};
  assert_ok(clv_plan_forward(r.plan, r.call, r.parameter_block, 1, (const void *[]){r.x}, true, r.y,
                             &key, err));
  assert_ok(clv_plan_backward_input(r.plan, r.call, r.parameter_block, r.dy, (void *[]){r.dx},
                                    r.gradient_block, false, err));
  assert_ok(
      clv_plan_backward_weight(r.plan, r.call, r.parameter_block, r.gradient_block, false, err));
  return r;
}

static void free_run(module_run *r) {
  clv_plan_free(r->plan);
  clv_params_free(r->params);
  clv_graph_free(r->graph);
  void *buffers[] = {r->parameter_block, r->x, r->y, r->dy, r->dx, r->gradient_block};
  for (size_t i = 0; i < CLV_COUNT(buffers); i++) free(buffers[i]);
}

static void assert_near(const float *a, const float *b, size_t n, double max_distance,
                        const char *what) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < n; i++) {
    difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    norm += (double)b[i] * b[i];
  }
  if (!(sqrt(difference / norm) <= max_distance))
    fail_msg("%s: relative error %g", what, sqrt(difference / norm));
}

static void compare_narrow_with_f32(const linear_case *c, const clv_backend *backend, bool is_bf16,
                                    double max_distance) {
  module_run a = run_case(c, backend, is_bf16, true), b = run_case(c, backend, is_bf16, false);
  assert_near(a.y, b.y, (size_t)(c->n_rows * c->n_outputs), max_distance, "output");
  assert_near(a.dx, b.dx, (size_t)(c->n_rows * c->n_features), max_distance, "input gradient");
  assert_int_equal(a.params->trainable_bytes, b.params->trainable_bytes);
  assert_memory_equal(a.gradient_block, b.gradient_block,
                      a.params->trainable_bytes); /* only the bias has a gradient */
  free_run(&a);
  free_run(&b);
}

static void ref_gives_the_bits_of_rounded_f32_weights(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    if (cases[i].n_features * cases[i].n_outputs < 1 << 20)
      compare_narrow_with_f32(&cases[i], clv_backend_ref(), false, 0);
}

static void cpu_results_are_near_rounded_f32_weights(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    compare_narrow_with_f32(&cases[i], clv_backend_cpu(), false, 1e-6);
}

static void bf16_products_give_the_same_bits(void **state) {
  (void)state;
  clv_err why;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) != CLV_OK) {
    print_message("because %s\n", why.text);
    skip();
  }
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    if (cases[i].n_features < 1 << 17)
      compare_narrow_with_f32(&cases[i], clv_backend_cpu(), true, 0);
}

/* Only frozen weights are stored in bf16. Trained weights and other parameters keep their type. */
static void only_frozen_weights_are_stored_in_bf16(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_graph_of_case(&cases[1]);
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  assert_ok(clv_params_make(g, &p, err));
  p->list[1].frozen = true;
  clv_params_convert_frozen_to_bf16(g, p);
  assert_int_equal(p->list[0].dtype, CLV_F32);
  assert_int_equal(p->list[1].dtype, CLV_F32);
}

static void bf16_rounds_to_nearest_even(void **state) {
  (void)state;
  static const struct {
    uint32_t f32_bits;
    uint16_t bf16_bits;
  } roundings[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                   {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80}, {0xff800000, 0xff80},
                   {0x7f800001, 0x7fc0}, {0x00000000, 0x0000}, {0x80000000, 0x8000}};
  for (size_t i = 0; i < CLV_COUNT(roundings); i++) {
    float value;
    memcpy(&value, &roundings[i].f32_bits, sizeof value);
    assert_int_equal(clv_bf16_of(value), roundings[i].bf16_bits);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ref_gives_the_bits_of_rounded_f32_weights),
      cmocka_unit_test(cpu_results_are_near_rounded_f32_weights),
      cmocka_unit_test(bf16_products_give_the_same_bits),
      cmocka_unit_test(only_frozen_weights_are_stored_in_bf16),
      cmocka_unit_test(bf16_rounds_to_nearest_even),
  };
  return cmocka_run_group_tests_name("narrow", tests, NULL, NULL);
}
