/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests plans in bf16 on the simulated device: the bits are the same however a graph is cut or its
 * ops are fused, and images keep one layout from edge to edge of the graph.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/gpu/sim.h"
#include "tests/long.h"
#define WIDE_IMAGE 6
#include "tests/unit/graph/bf16_test.h"

static clv_backend *open_device(uint64_t seed, bool lacks_conv) {
  clv_backend *b;
  const clv_vendor *v =
      clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .no_cudnn = lacks_conv});
  assert_ok(clv_cuda_open(v, 0, &b, err));
  return b;
}

static void close_device(clv_backend *b) {
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

/* Returns a graph of adjacent ops. If a fused kernel did not round each op's result to bf16, the
 * results would change where the graph is cut. */
static clv_graph *make_chained_graph(int64_t batch) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(batch, 3, 6, 7), &x);
  x = add_plain(g, CLV_OP_GELU, 2, add_conv(g, 1, add_conv(g, 0, x, 8, 3, 1), 8, 1, 1));
  x = add_plain(g, CLV_OP_SILU, 4, add_plain(g, CLV_OP_SIGMOID, 3, x));
  add_conv(g, 5, x, 4, 3, 1);
  return g;
}

static void bf16_chain_results_are_the_same_at_every_cut(void **state) {
  (void)state;
  clv_backend *b = open_device(5, false);
  check_whole_and_cut(b, make_chained_graph, 5);
  close_device(b);
}

/* `make test` cuts the wide graph only. */
static void bf16_results_are_the_same_at_every_cut(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(graphs); i += is_long() ? 1 : 2) {
    clv_backend *b = open_device(i, i == 1);
    check_whole_and_cut(b, graphs[i], is_long() ? 8 : 4);
    close_device(b);
  }
}

static void fused_and_separate_ops_give_the_same_bf16_bits(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(graphs); i++)
    for (int evaluation = 0; evaluation < 2; evaluation++) {
      clv_backend *fused_backend = open_device(7, false),
                  separate_backend = make_unfused_backend(fused_backend);
      rig_options o = {.backend = fused_backend, .is_bf16 = true, .is_evaluation = evaluation};
      rig a = make_rig(graphs[i](3), &o);
      o.backend = &separate_backend;
      rig b = make_rig(graphs[i](3), &o);
      run_step(&a);
      run_step(&b);
      assert_true(evaluation || a.plan->n_steps < b.plan->n_steps);
      assert_same_bytes(a.out, b.out, a.output_bytes, "output");
      if (!evaluation) assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
      if (!evaluation) assert_same_params(&a, &b);
      free_rig(&a);
      free_rig(&b);
      close_device(fused_backend);
    }
}

static void bf16_results_are_close_to_f32(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) {
    clv_backend *backend = open_device(2, false);
    rig a = make_rig(graphs[i](3), &(rig_options){.backend = backend, .is_bf16 = true});
    rig b = make_rig(graphs[i](3), &(rig_options){.backend = backend});
    run_step(&a);
    run_step(&b);
    assert_near(a.out, b.out, a.output_bytes, 1e-4, 0.05, "output");
    assert_near(a.gradient_block, b.gradient_block, a.params->trainable_bytes, 1e-4, 0.1,
                "gradients");
    free_rig(&a);
    free_rig(&b);
    close_device(backend);
  }
}

/* Only the input and its gradient are reordered between channels first and channels last. */
static void images_are_reordered_only_at_the_graph_edges(void **state) {
  (void)state;
  clv_backend *backend = open_device(0, false);
  rig r = make_rig(make_wide_graph(2), &(rig_options){.backend = backend, .is_bf16 = true});
  assert_int_equal(count_steps(&r, "reorder"), 2);
  assert_int_equal(count_steps(&r, "add"), 2);
  free_rig(&r);
  close_device(backend);
}

/* Returns a squeeze-and-excite block: multiplies each channel by a number computed from the whole
 * image. */
static clv_graph *make_gated_graph(int64_t batch) {
  clv_attr_value out = make_int_attr(CLV_ATTR_OUT, 8);
  clv_attr_value shape = {.key = CLV_ATTR_SHAPE, .n_ints = 3, .ints = {8, 1, 1}};
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(batch, 3, 6, 7), &x);
  x = add_conv(g, 0, x, 8, 3, 1);
  int gate = add_plain(g, CLV_OP_FLATTEN, 2, add_plain(g, CLV_OP_GLOBALAVGPOOL, 1, x));
  gate = add_plain(g, CLV_OP_SIGMOID, 4, add_node(g, CLV_OP_LINEAR, 3, gate, -1, &out, 1));
  gate = add_node(g, CLV_OP_RESHAPE, 5, gate, -1, &shape, 1);
  add_conv(g, 7, add_node(g, CLV_OP_MUL, 6, x, gate, NULL, 0), 4, 3, 1);
  return g;
}

/* Only input, output and their gradients are reordered, at the edges of the graph. The gates are
 * f32 and need no reordering. */
static void f32_gates_add_no_image_reorder(void **state) {
  (void)state;
  clv_backend *backend = open_device(0, false);
  rig r = make_rig(make_gated_graph(2), &(rig_options){.backend = backend, .is_bf16 = true});
  assert_int_equal(count_steps(&r, "reorder"), 4);
  free_rig(&r);
  check_whole_and_cut(backend, make_gated_graph, 5);
  close_device(backend);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_results_are_the_same_at_every_cut),
      cmocka_unit_test(bf16_chain_results_are_the_same_at_every_cut),
      cmocka_unit_test(fused_and_separate_ops_give_the_same_bf16_bits),
      cmocka_unit_test(bf16_results_are_close_to_f32),
      cmocka_unit_test(images_are_reordered_only_at_the_graph_edges),
      cmocka_unit_test(f32_gates_add_no_image_reorder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
