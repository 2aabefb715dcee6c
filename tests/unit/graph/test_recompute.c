/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests blocks that backward recomputes: any choice of nodes gives the bits of the plan that keeps
 * all values, on any backend and in any mode, and a call keeps only the inputs of the blocks.
 */
#include "tests/long.h"
#include "tests/unit/far.h"
#include "tests/unit/graph/plan_test.h"

/* ---- graphs with blocks that backward recomputes --------------------------------------------- */

static clv_graph *make_chain(void) { return make_chain_graph(CLV_F32, 3); }
static clv_graph *make_residual(void) { return make_residual_graph(3); }

static clv_graph *make_word_model(void) {
  int x;
  clv_graph *g = make_graph(CLV_I64, CLV_SHAPE(3, 4), &x);
  clv_attr_value rows[] = {make_int_attr(CLV_ATTR_ROWS, 5), make_int_attr(CLV_ATTR_OUT, 3)};
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, 6), make_int_attr(CLV_ATTR_LAYERS, 2)};
  x = add_node(g, CLV_OP_EMBEDDING, 0, x, -1, rows, 2);
  add_linear(g, 2, add_node(g, CLV_OP_LSTM, 1, x, -1, v, 2), 5);
  return g;
}

enum { PLACES = 8, WIDTH = 16, BLOCK_LAYERS = 11, BLOCKS = 3 };

static int add_attention(clv_graph *g, uint32_t layer, int q, int k, int v) {
  clv_attr_value values[] = {make_int_attr(CLV_ATTR_HEADS, 2), make_real_attr(CLV_ATTR_P, 0.2)};
  clv_attrs attrs;
  int node = -1, in[] = {q, k, v};
  assert_ok(clv_attrs_parse(CLV_OP_ATTENTION, values, 2, &attrs, err));
  assert_ok(clv_graph_add(g, CLV_OP_ATTENTION, &attrs, NULL, layer, in, 3, &node, err));
  return node;
}

/* Adds a block of a transformer's encoder: attention with a dropout after it, an MLP, and a
 * layernorm at the end only. */
static int add_encoder_block(clv_graph *g, uint32_t l, int x) {
  int q = add_linear(g, l, x, WIDTH), k = add_linear(g, l + 1, x, WIDTH);
  int y = add_attention(g, l + 3, q, k, add_linear(g, l + 2, x, WIDTH));
  y = add_dropout(g, l + 5, add_linear(g, l + 4, y, WIDTH), 0.1);
  x = add_node(g, CLV_OP_ADD, l + 6, y, x, NULL, 0);
  y = add_plain(g, CLV_OP_GELU, l + 8, add_linear(g, l + 7, x, 4 * WIDTH));
  y = add_node(g, CLV_OP_ADD, l + 10, add_linear(g, l + 9, y, WIDTH), x, NULL, 0);
  return add_plain(g, CLV_OP_LAYERNORM, l + 11, y);
}

static clv_graph *make_encoder(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, PLACES, WIDTH), &x);
  for (int i = 0; i < BLOCKS; i++) x = add_encoder_block(g, (uint32_t)(i * (BLOCK_LAYERS + 1)), x);
  add_linear(g, BLOCKS * (BLOCK_LAYERS + 1), x, 3);
  return g;
}

/* Returns blocks whose last layers need not be recomputed: a sum of x, a linear, which reads its
 * input in backward, and a tanh, which reads its own output. */
static clv_graph *make_sums(void) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(2, PLACES, WIDTH), &x);
  for (uint32_t l = 0; l < BLOCKS * (BLOCK_LAYERS + 1); l += BLOCK_LAYERS + 1) {
    int y = add_plain(g, CLV_OP_TANH, l + 1, add_linear(g, l, x, 4 * WIDTH));
    int z = add_plain(g, CLV_OP_TANH, l + 3, add_linear(g, l + 2, x, WIDTH));
    y = add_node(g, CLV_OP_ADD, l + 5, add_linear(g, l + 4, y, WIDTH), z, NULL, 0);
    x = add_node(g, CLV_OP_ADD, l + 6, y, x, NULL, 0);
  }
  add_linear(g, BLOCKS * (BLOCK_LAYERS + 1), x, 3);
  return g;
}

static clv_graph *(*const graphs[])(void) = {make_chain, make_residual, make_word_model,
                                             make_encoder, make_sums};

/* ---- equal bits with and without recomputation ----------------------------------------------- */

/* Runs two calls at once; the second adds to the gradients of the first. */
static void run_two_calls(rig *r) {
  clv_call *c[2];
  for (int i = 0; i < 2; i++) {
    assert_ok(clv_plan_call_get(r->plan, &c[i], err));
    fill_scratch_with_nan(r);
    run_forward(r, c[i]);
  }
  for (int i = 0; i < 2; i++) {
    fill_scratch_with_nan(r);
    run_backward_input(r, c[i], i);
    fill_scratch_with_nan(r);
    run_backward_weight(r, c[i], i);
  }
  for (int i = 0; i < 2; i++) clv_plan_call_put(r->plan, c[i]);
}

static void assert_same_results(const rig *a, const rig *b) {
  assert_same_bytes(a->out, b->out, a->output_bytes, "output");
  assert_same_bytes(a->parameter_block, b->parameter_block, a->params->total_bytes,
                    "parameters and running statistics");
  assert_same_bytes(a->gradient_block, b->gradient_block, a->params->trainable_bytes, "gradients");
  for (int i = 0; i < a->n_in; i++)
    assert_same_bytes(a->din[i], b->din[i], a->input_bytes[i], "input gradient");
}

/* Divides nodes into blocks, which backward recomputes. Seed 0: each node is a block; 1: all nodes
 * are one block; other odd seeds: consecutive nodes; other even seeds: random nodes. */
static void mark_blocks(clv_graph *g, uint32_t seed) {
  uint32_t block_number = 1;
  float random[CLV_MAX_NODES];
  clv_rng_key key = {.seed = 5, .layer = seed};
  clv_rng_uniform(&key, 0, 1, random, (size_t)g->n_nodes);
  for (int i = 0; i < g->n_nodes; i++) {
    if (g->nodes[i].op == CLV_OP_INPUT) continue;
    block_number += seed == 0 || (seed % 2 && seed > 1 && random[i] < 0.3f);
    g->nodes[i].recompute_block =
        seed > 1 && seed % 2 == 0 ? (uint32_t)(random[i] * 4) : block_number;
  }
}

static int count_recompute_steps(const rig *r) {
  int n = 0;
  for (int i = r->plan->phase_end[PHASE_FORWARD]; i < r->plan->n_steps; i++)
    n += r->plan->steps[i].run == clv_plan_run_forward;
  return n;
}

static void compare_with_recompute(size_t graph, uint32_t seed, const rig_options *o) {
  clv_graph *graph_with_blocks = graphs[graph]();
  mark_blocks(graph_with_blocks, seed);
  rig a = make_rig(graphs[graph](), o), b = make_rig(graph_with_blocks, o);
  run_two_calls(&a);
  run_two_calls(&b);
  assert_same_results(&a, &b);
  assert_int_equal(count_recompute_steps(&a), 0);
  if (seed == 1) assert_true(count_recompute_steps(&b) > 1);
  if (seed == 1) assert_true(clv_plan_get_info(b.plan)->backward_reads_params);
  free_rig(&a);
  free_rig(&b);
}

/* `make test` runs one of the four kinds of blocks for each graph. */
static void recomputed_nodes_give_the_same_bits(void **state) {
  (void)state;
  const clv_backend *backends[] = {clv_backend_cpu(), clv_backend_ref(),
                                   far_get_backend(clv_backend_cpu())};
  for (size_t g = 0; g < CLV_COUNT(graphs); g++)
    for (uint32_t seed = 0; seed < 6; seed++)
      for (size_t b = 0; b < CLV_COUNT(backends); b++)
        for (int variant = is_long() ? 0 : (int)((g + seed + b) % 4); variant < 4;
             variant += is_long() ? 1 : 4)
          compare_with_recompute(g, seed,
                                 &(rig_options){.backend = backends[b],
                                                .has_split_backward = variant & 1,
                                                .has_transient_weights = variant & 2});
}

static void recompute_with_frozen_or_bf16_gives_the_same_bits(void **state) {
  (void)state;
  bool has_bf16 = clv_backend_cpu()->check_bf16(clv_backend_cpu(), NULL) == CLV_OK;
  for (uint32_t seed = 0; seed < 6; seed++) {
    compare_with_recompute(
        3, seed,
        &(rig_options){.backend = clv_backend_cpu(), .frozen_params = {"0.weight", "0.bias"}});
    for (size_t g = 0; has_bf16 && g < CLV_COUNT(graphs); g++)
      compare_with_recompute(g, seed,
                             &(rig_options){.backend = clv_backend_cpu(), .is_bf16 = true});
  }
}

/* ---- memory that recomputation saves --------------------------------------------------------- */

static clv_plan_info get_plan_info(clv_graph *g, bool is_marked, bool is_split) {
  for (int i = 1; is_marked && i < g->n_nodes; i++)
    g->nodes[i].recompute_block = g->nodes[i].layer / (BLOCK_LAYERS + 1) + 1;
  rig r = make_rig(g, &(rig_options){.backend = clv_backend_cpu(), .has_split_backward = is_split});
  clv_plan_info info = *clv_plan_get_info(r.plan);
  free_rig(&r);
  return info;
}

/* A call saves the inputs of all blocks but the first, and of the layer after the last block. The
 * input of the first block is the caller's, or a copy. */
static void call_saves_only_the_inputs_of_its_blocks(void **state) {
  (void)state;
  size_t value_bytes = 2 * PLACES * WIDTH * sizeof(float),
         head_bytes = 2 * PLACES * 3 * sizeof(float);
  for (int variant = 0; variant < 4; variant++) {
    bool is_split = variant & 1;
    clv_graph *(*make)(void) = variant & 2 ? make_sums : make_encoder;
    clv_plan_info plan_of_kept = get_plan_info(make(), false, is_split),
                  plan_of_recomputed = get_plan_info(make(), true, is_split);
    assert_true(plan_of_recomputed.call_bytes >= (BLOCKS + 1) * value_bytes);
    assert_true(plan_of_recomputed.call_bytes <=
                (BLOCKS + 1) * value_bytes + (is_split ? clv_align_up(head_bytes, 64) : 0));
    assert_true(plan_of_recomputed.call_bytes + plan_of_recomputed.scratch_bytes <
                plan_of_kept.call_bytes + plan_of_kept.scratch_bytes);
    assert_true(plan_of_kept.call_bytes > BLOCKS * (variant & 2 ? 5 : 10) * value_bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recomputed_nodes_give_the_same_bits),
      cmocka_unit_test(recompute_with_frozen_or_bf16_gives_the_same_bits),
      cmocka_unit_test(call_saves_only_the_inputs_of_its_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
