/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the definition of each op: it has a name, texts and functions, and an element-wise op
 * computes what its definition states.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops/ops.h"

static const struct {
  int op_number;
  const char *name;
} op_list[] = {
#define OP(number, NAME, name) {number, #name},
#include "kernels/ops.def"
#undef OP
};

static bool is_not_empty(const char *text) { return text && *text; }

static void test_every_op_is_found_by_its_name(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    clv_op found;
    clv_err err;
    assert_string_equal(def->name, op_list[i].name);
    assert_string_equal(clv_op_def_of_dtype((clv_op)op_list[i].op_number, CLV_F64)->name,
                        op_list[i].name);
    assert_int_equal(clv_op_find(def->name, &found, &err), CLV_OK);
    assert_int_equal(found, op_list[i].op_number);
  }
}

static void test_every_op_has_its_documentation(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    if (!is_not_empty(def->doc)) fail_msg("%s has no formula", def->name);
    if (is_not_empty(def->torch_module) == is_not_empty(def->no_torch_module))
      fail_msg("%s says either which torch.nn module it is, or why there is none", def->name);
    if (is_not_empty(def->torch_needs) && !is_not_empty(def->torch_module))
      fail_msg("%s has no module that could need anything", def->name);
  }
}

static void test_every_op_has_the_functions_it_needs(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    if (!def->shape || !def->forward) fail_msg("%s has no shape rule or no forward", def->name);
    if (!def->backward_input != def->takes_row_numbers)
      fail_msg("%s: a gradient of integers, or none of floats", def->name);
    if (!def->slots != !def->max_params)
      fail_msg("%s: max_params is said exactly where there are slots", def->name);
    if (def->slots && !(def->fused_grads || def->backward_weight))
      fail_msg("%s has parameters without a gradient", def->name);
    if (def->n_in < 1 || CLV_MAX(def->n_in, def->max_in) > CLV_MAX_IN)
      fail_msg("%s takes %d inputs", def->name, def->n_in);
  }
}

static void test_torch_text_is_the_module_or_the_reason(void **state) {
  (void)state;
  const clv_op_def def_without_text = {0},
                   def_with_empty_module = {.torch_module = "", .no_torch_module = "why"},
                   def_with_reason = {.no_torch_module = "why"},
                   def_with_module = {.torch_module = "ReLU()"};
  assert_string_equal(clv_op_torch_text(&def_without_text), "none");
  assert_string_equal(clv_op_torch_text(&def_with_empty_module), "why");
  assert_string_equal(clv_op_torch_text(&def_with_reason), "why");
  assert_string_equal(clv_op_torch_text(&def_with_module), "ReLU()");
}

enum { N = 5 };

/* Runs the forward of an element-wise op in evaluation mode, over a shape of [1, N]. All inputs of
 * the op are x; y receives the output. */
static void run_op(clv_op op, const float *x, float *y) {
  clv_ref_kernel k = {.n_in = N, .n_out = N};
  clv_kernel_args a = {.out = y};
  clv_err err;
  k.d.op = op;
  k.d.attrs = (clv_attrs){.factor = 3,
                          .min = 1,
                          .max = 9,
                          .min_val = 1,
                          .max_val = 9,
                          .alpha = 1,
                          .beta = 1,
                          .threshold = 20,
                          .exponent = -1};
  k.d.n_in = clv_op_n_inputs(op);
  for (int i = 0; i < k.d.n_in; i++) {
    k.d.in[i] = CLV_SHAPE(1, N);
    a.in[i] = x;
  }
  k.d.out = CLV_SHAPE(1, N);
  assert_int_equal(clv_op_def_of(op)->forward(&k.base, &a, &err), CLV_OK);
}

static void test_maps_zero_to_zero_matches_the_function(void **state) {
  const float zeros[N] = {0};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    float y[N];
    if (def->maps_zero_to_zero && !def->elementwise) fail_msg("%s is not element-wise", def->name);
    if (!def->elementwise) continue;
    run_op((clv_op)op_list[i].op_number, zeros, y);
    if (def->maps_zero_to_zero != (y[0] == 0))
      fail_msg("%s: f(0) = %g, and its row says maps_zero_to_zero = %d", def->name, (double)y[0],
               def->maps_zero_to_zero);
  }
}

static void test_elementwise_flag_matches_the_function(void **state) {
  const float x[N] = {-2, -0.5f, 0.25f, 1, 3};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    float y[N], z[N], changed_x[N];
    if (!def->elementwise) continue;
    if (def->slots || def->shape == NULL) fail_msg("%s has parameters", def->name);
    run_op((clv_op)op_list[i].op_number, x, y);
    memcpy(changed_x, x, sizeof x);
    changed_x[2] = 7;
    run_op((clv_op)op_list[i].op_number, changed_x, z);
    for (int j = 0; j < N; j++)
      if ((memcmp(&y[j], &z[j], sizeof y[j]) == 0) != (j != 2))
        fail_msg("%s is not element-wise at %d", def->name, j);
  }
}

/* Layers that mix inputs are trusted to hide records from a worker, so their weights must not start
 * as constants, which everyone knows. */
static void test_mixing_ops_start_with_random_weights(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(op_list); i++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op_list[i].op_number);
    clv_attrs attrs = {.out = 3, .kernel = {1, 1}, .stride = {1, 1}, .groups = 1, .layers = 1};
    clv_op_site site = {.attrs = &attrs, .n_in = 1, .in = {CLV_SHAPE(2, 3, 4, 5)}};
    clv_slot slots[CLV_MAX_PARAMS];
    if (def->mixing == CLV_MIXES_NOTHING) continue;
    if (!def->slots) fail_msg("%s mixes by no weights", def->name);
    assert_true(def->slots(&site, slots) > 0);
    if (slots[0].init == CLV_INIT_ZERO || slots[0].init == CLV_INIT_ONE)
      fail_msg("%s begins with constants", def->name);
  }
}

static void test_unknown_op_numbers_have_no_row(void **state) {
  (void)state;
  assert_null(clv_op_def_of(CLV_OP_INPUT));
  assert_null(clv_op_def_of(CLV_OP_COUNT));
  assert_null(clv_op_def_of((clv_op)-1));
  assert_null(clv_op_def_of_dtype(CLV_OP_LINEAR, CLV_I64));
  assert_string_equal(clv_op_name(CLV_OP_INPUT), "input");
  assert_string_equal(clv_op_name(CLV_OP_COUNT), "?");
  assert_int_equal(clv_op_max_params(CLV_OP_COUNT), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_op_is_found_by_its_name),
      cmocka_unit_test(test_every_op_has_its_documentation),
      cmocka_unit_test(test_every_op_has_the_functions_it_needs),
      cmocka_unit_test(test_torch_text_is_the_module_or_the_reason),
      cmocka_unit_test(test_maps_zero_to_zero_matches_the_function),
      cmocka_unit_test(test_elementwise_flag_matches_the_function),
      cmocka_unit_test(test_unknown_op_numbers_have_no_row),
      cmocka_unit_test(test_mixing_ops_start_with_random_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
