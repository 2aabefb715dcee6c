/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ops that one kernel computes together, and outputs that are recomputed instead of kept:
 * they have the bits of separate ops.
 */
#include "tests/unit/graph/plan_test.h"

static clv_code refuse_fused_ops(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                                 clv_err *err) {
  (void)b;
  if (d->tail) return CLV_UNIMPLEMENTED;
  return clv_backend_cpu()->prepare(clv_backend_cpu(), d, ret, err);
}

/* Returns the backend cpu with each op separate. */
static const clv_backend *get_unfused_backend(void) {
  static clv_backend backend;
  backend = *clv_backend_cpu();
  backend.name = "apart";
  backend.prepare = refuse_fused_ops;
  return &backend;
}

static int count_in_plan(const rig *r, const char *word) {
  clv_bytes text = {0};
  int n = 0;
  clv_plan_describe(r->plan, &text);
  for (const char *p = text.data; (p = strstr(p, word)); p++) n++;
  clv_bytes_done(&text);
  return n;
}

static void assert_same_step(rig_options o, const char *what) {
  o.backend = get_unfused_backend();
  rig a = make_rig(make_residual_graph(3), &o);
  o.backend = clv_backend_cpu();
  rig b = make_rig(make_residual_graph(3), &o);
  for (int i = 0; i < 2; i++) { /* the second run starts from the results of the first */
    run_step(&a);
    run_step(&b);
  }
  assert_same_bytes(a.out, b.out, a.output_bytes, what);
  assert_same_bytes(a.parameter_block, b.parameter_block, a.params->total_bytes, what);
  if (!o.is_evaluation) {
    assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], what);
    assert_same_bytes(a.gradient_block, b.gradient_block, a.params->trainable_bytes, what);
    assert_true(clv_plan_get_info(b.plan)->call_bytes < clv_plan_get_info(a.plan)->call_bytes);
  }
  assert_int_equal(count_in_plan(&b, "batchnorm+add+relu"), o.is_evaluation ? 2 : 4);
  assert_int_equal(count_in_plan(&b, "batchnorm+relu"), o.is_evaluation ? 3 : 6);
  assert_int_equal(count_in_plan(&a, "batchnorm+"), 0);
  free_rig(&a);
  free_rig(&b);
}

static void fused_ops_give_the_bits_of_separate_ops(void **state) {
  (void)state;
  assert_same_step((rig_options){0}, "a step");
  assert_same_step((rig_options){.has_split_backward = true}, "a step, weight gradients later");
  assert_same_step((rig_options){.is_evaluation = true}, "evaluation");
  assert_same_step((rig_options){.frozen_params = {"1.weight", "6.weight", "7.weight", "9.bias"}},
                   "frozen parts");
}

/* A training plan does not save outputs that are cheap to compute. Backward computes them again
 * before the weight gradients that read them. */
static void cheap_outputs_are_recomputed_in_backward(void **state) {
  (void)state;
  rig_options o = {.backend = clv_backend_cpu()};
  rig r = make_rig(make_residual_graph(3), &o);
  /* recomputed are the relus of layers 5 and 14; the relu of layer 2 has two readers and is
   * saved */
  assert_int_equal(count_in_plan(&r, "again  "), 2);
  assert_true(clv_plan_get_info(r.plan)->backward_reads_params);
  free_rig(&r);
}

/* Batchnorm is not fused with the ops beside it if another op reads a value between them, if that
 * value is the output of the graph, or if the next op is a broadcast addition. */
static void ops_with_other_readers_are_not_fused(void **state) {
  (void)state;
  for (int which = 0; which < 4; which++) {
    int x;
    clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 5, 6, 6), &x);
    int pool = add_plain(g, CLV_OP_GLOBALAVGPOOL, 4, x);
    int conv = add_conv(g, 0, x, 5, 3, 1), norm = add_plain(g, CLV_OP_BATCHNORM, 1, conv);
    int sum = which == 3 ? add_node(g, CLV_OP_ADD, 5, norm, pool, NULL, 0) : norm;
    int relu = add_plain(g, CLV_OP_RELU, 2, sum);
    if (which == 0) add_node(g, CLV_OP_ADD, 3, relu, norm, NULL, 0);
    if (which == 1) add_node(g, CLV_OP_ADD, 3, relu, conv, NULL, 0);
    if (which == 2) g->output_node = norm;
    rig r = make_rig(g, &(rig_options){.backend = clv_backend_cpu()});
    run_step(&r);
    assert_int_equal(count_in_plan(&r, "batchnorm+"), 0);
    free_rig(&r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fused_ops_give_the_bits_of_separate_ops),
      cmocka_unit_test(cheap_outputs_are_recomputed_in_backward),
      cmocka_unit_test(ops_with_other_readers_are_not_fused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
