/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests extents of 0 after the batch, as PyTorch 1.13 has them: a tensor without values gives one
 * without values, a mean over no values is not a number, gradients of parameters are zeros. Both
 * backends give the same.
 */
#include <math.h>

#include "tests/unit/graph/plan_test.h"

static const clv_backend *get_backend(int i) { return i ? clv_backend_cpu() : clv_backend_ref(); }

static bool do_all_numbers_match(const void *numbers, size_t bytes,
                                 bool (*is_wanted_number)(float x)) {
  for (size_t i = 0; i < bytes / sizeof(float); i++)
    if (!is_wanted_number(((const float *)numbers)[i])) return false;
  return true;
}

static bool is_nan(float x) { return isnan(x); }
static bool is_zero(float x) { return x == 0; }

static bool does_gradient_match(const rig *r, const char *name, bool (*is_wanted_number)(float x)) {
  const clv_param *p = clv_params_find(r->params, name);
  assert_non_null(p);
  return do_all_numbers_match(r->gradient_block + p->offset, p->bytes, is_wanted_number);
}

/* A linear layer over no rows has gradients of 0. A linear layer over the mean of no rows has NaN
 * as output. */
static void mean_over_empty_extent_is_nan(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    int x;
    clv_attr_value dim = make_int_attr(CLV_ATTR_DIM, 1);
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(4, 0, 3), &x);
    x = add_linear(g, 1, add_plain(g, CLV_OP_RELU, 0, x), 5);
    x = add_plain(g, CLV_OP_SOFTMAX, 2, x);
    assert_true(clv_shape_equal(&g->nodes[x].shape, &CLV_SHAPE(4, 0, 5)));
    x = add_linear(g, 4, add_node(g, CLV_OP_MEAN, 3, x, -1, &dim, 1), 2);
    rig r = make_rig(g, &(rig_options){.backend = get_backend(i)});
    for (int k = 0; k < 2; k++) {
      run_step(&r);
      assert_int_equal(r.output_bytes, 4 * 2 * sizeof(float));
      assert_true(do_all_numbers_match(r.out, r.output_bytes, is_nan));
      assert_true(does_gradient_match(&r, "1.weight", is_zero) &&
                  does_gradient_match(&r, "1.bias", is_zero));
      assert_true(does_gradient_match(&r, "4.weight", is_nan));
      assert_false(does_gradient_match(&r, "4.bias", is_nan));
    }
    free_rig(&r);
  }
}

static void empty_losses_and_poolings_are_nan(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    int x, y;
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 0), &x);
    assert_ok(clv_graph_add_input(g, "target", CLV_F32, &CLV_SHAPE(2, 0), &y, err));
    add_node(g, CLV_OP_MSE, 0, x, y, NULL, 0);
    rig r = make_rig(g, &(rig_options){.backend = get_backend(i)});
    run_step(&r);
    assert_true(r.output_bytes == sizeof(float) &&
                do_all_numbers_match(r.out, r.output_bytes, is_nan));
    free_rig(&r);
    g = make_graph(CLV_F32, CLV_SHAPE(2, 3, 0, 4), &x);
    add_plain(g, CLV_OP_GLOBALAVGPOOL, 1, add_plain(g, CLV_OP_TANH, 0, x));
    r = make_rig(g, &(rig_options){.backend = get_backend(i)});
    run_step(&r);
    assert_true(r.output_bytes == 6 * sizeof(float) &&
                do_all_numbers_match(r.out, r.output_bytes, is_nan));
    free_rig(&r);
  }
}

/* If one input of concat is empty, the output equals the other input. */
static void concat_with_empty_input_copies_the_other(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    int x, y;
    clv_attr_value dim = make_int_attr(CLV_ATTR_DIM, 1);
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 0), &x);
    assert_ok(clv_graph_add_input(g, "other", CLV_F32, &CLV_SHAPE(3, 4), &y, err));
    add_node(g, CLV_OP_CONCAT, 0, x, y, &dim, 1);
    rig r = make_rig(g, &(rig_options){.backend = get_backend(i)});
    run_step(&r);
    assert_int_equal(r.output_bytes, 12 * sizeof(float));
    assert_memory_equal(r.out, r.in[1], r.output_bytes);
    assert_memory_equal(r.din[1], r.dout, r.output_bytes);
    free_rig(&r);
  }
}

static void empty_tensors_can_be_reshaped(void **state) {
  (void)state;
  static const struct {
    int rank;
    int64_t requested[3];
    clv_shape result; /* expected shape of the output; rank 0: the op refuses the shape */
  } cases[] = {
      {1, {-1}, {2, {2, 0}}},
      {2, {3, -1}, {3, {2, 3, 0}}},
      {2, {3, 0}, {3, {2, 3, 0}}},
      {1, {0}, {2, {2, 0}}},
      {2, {0, -1}, {0}} /* refused: beside an extent of 0, any extent could stand for -1 */,
      {1, {5}, {0}}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    int x, node = -1;
    clv_attrs attrs;
    clv_attr_value v = {.key = CLV_ATTR_SHAPE, .n_ints = cases[i].rank};
    memcpy(v.ints, cases[i].requested, sizeof cases[i].requested);
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, 0, 3), &x);
    assert_ok(clv_attrs_parse(CLV_OP_RESHAPE, &v, 1, &attrs, err));
    if (cases[i].result.rank) {
      assert_ok(clv_graph_add(g, CLV_OP_RESHAPE, &attrs, NULL, 0, &x, 1, &node, err));
      assert_true(clv_shape_equal(&g->nodes[node].shape, &cases[i].result));
    } else {
      assert_fails(clv_graph_add(g, CLV_OP_RESHAPE, &attrs, NULL, 0, &x, 1, &node, err),
                   CLV_INVALID, "reshape to");
    }
    clv_graph_free(g);
  }
}

/* As in PyTorch, some ops refuse empty inputs. Parameters without values are refused, too. */
static void ops_that_need_values_refuse_empty_extents(void **state) {
  (void)state;
  clv_attr_value pool = make_int_attr(CLV_ATTR_KERNEL, 2), out = make_int_attr(CLV_ATTR_OUT, 5);
  clv_attr_value conv_attrs[] = {out, make_int_attr(CLV_ATTR_KERNEL, 3),
                                 make_int_attr(CLV_ATTR_PAD, 2)};
  const struct {
    clv_op op;
    clv_shape in;
    const clv_attr_value *attrs;
    int n;
    const char *says;
  } cases[] = {
      {CLV_OP_MAXPOOL, CLV_SHAPE(2, 0, 4, 4), &pool, 1, "maxpool: no extent of [2, 0, 4, 4]"},
      {CLV_OP_AVGPOOL, CLV_SHAPE(2, 3, 4, 0), &pool, 1, "avgpool: no extent of [2, 3, 4, 0]"},
      {CLV_OP_CONV2D, CLV_SHAPE(2, 3, 0, 5), conv_attrs, 3, "conv2d: no extent of [2, 3, 0, 5]"},
      {CLV_OP_LSTM, CLV_SHAPE(2, 0, 3), &out, 1, "lstm: no extent of [2, 0, 3]"},
      {CLV_OP_LINEAR, CLV_SHAPE(4, 0), &out, 1, "linear on [4, 0] has a parameter 'weight' [5, 0]"},
      {CLV_OP_BATCHNORM, CLV_SHAPE(4, 0), NULL, 0, "batchnorm on [4, 0] has a parameter"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    int x, node;
    clv_attrs attrs;
    clv_graph *g = make_graph(CLV_F32, cases[i].in, &x);
    assert_ok(clv_attrs_parse(cases[i].op, cases[i].attrs, cases[i].n, &attrs, err));
    assert_fails(clv_graph_add(g, cases[i].op, &attrs, NULL, 0, &x, 1, &node, err), CLV_INVALID,
                 cases[i].says);
    clv_graph_free(g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mean_over_empty_extent_is_nan),
      cmocka_unit_test(empty_losses_and_poolings_are_nan),
      cmocka_unit_test(concat_with_empty_input_copies_the_other),
      cmocka_unit_test(empty_tensors_can_be_reshaped),
      cmocka_unit_test(ops_that_need_values_refuse_empty_extents),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
