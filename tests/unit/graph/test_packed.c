/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares packed sequences with the same sequences padded: values at real positions to the bit, or
 * to 1e-6 where a library multiplies, gradients of parameters to 1e-6. Also tests every cut, rows
 * after the last sequence, and what is refused.
 */
#include "kernels/cpu/choices_int.h"
#include "tests/unit/graph/packed_test.h"

/* Makes attention compute with bf16 factors in sessions in bf16, even if the table of choices names
 * the f32 kernel. */
cpu_candidate __real_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class) {
  return question == CPU_ATTENTION_BF16 ? CPU_PAIRS : __real_clv_cpu_choose(question, shape_class);
}

static void packed_results_match_padded_results(void **state) {
  (void)state;
  const clv_backend *const backends[] = {clv_backend_ref(), clv_backend_cpu()};
  for (int b = 0; b < 2; b++)
    for (int of = 0; of < FAMILIES; of++)
      for (int variant = 0; variant < 12; variant++)
        compare_packed_with_padded(&wide_batch, (family)of, (output_positions)(variant % 3),
                                   variant & 2 ? 9 : 0,
                                   &(rig_options){.backend = backends[b],
                                                  .is_evaluation = variant & 4,
                                                  .n_threads = 1 + (variant & 1),
                                                  .has_split_backward = variant & 2});
}

static void packed_results_match_padded_results_in_bf16(void **state) {
  (void)state;
  clv_err why;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) != CLV_OK) skip();
  const rig_options o = {.backend = clv_backend_cpu(), .is_bf16 = true};
  for (int of = 0; of < FAMILIES; of++) {
    for (int variant = 0; variant < 3; variant++)
      compare_packed_with_padded(&wide_batch, (family)of, (output_positions)variant, 0, &o);
    compare_with_cuts(&wide_batch, (family)of, 1, 0, &o);
  }
}

static void every_cut_gives_the_same_packed_results(void **state) {
  (void)state;
  for (int of = 0; of < FAMILIES; of++)
    compare_with_cuts(&wide_batch, (family)of, 1, 0, &(rig_options){.backend = clv_backend_cpu()});
}

/* ---- numbers of packed rows ------------------------------------------------------------------ */

static void packed_row_count_follows_the_batch(void **state) {
  (void)state;
  uint32_t layers;
  clv_graph *g = make_padded_graph(&wide_batch, BERT, LAST_POSITION, &layers),
            *p = make_packed_graph(g, wide_batch.n_rows);
  assert_true(p->has_per_input_batches);
  assert_int_equal(p->nodes[0].max_positions, MAX_STEPS);
  assert_int_equal(p->nodes[1].max_positions, 0);
  assert_int_equal(p->nodes[p->output_node].max_positions, 0);
  assert_ok(clv_graph_set_batch(p, 3, err));
  assert_int_equal(p->nodes[0].shape.dim[0], 3 * MAX_STEPS);
  assert_int_equal(p->nodes[1].shape.dim[0], 3);
  assert_int_equal(p->nodes[p->output_node].shape.dim[0], 3);
  assert_int_equal(clv_graph_length_limit(p, 1), MAX_STEPS);
  clv_graph_free(p);
  clv_graph_free(g);
}

/* ---- graphs that cannot be packed ------------------------------------------------------------ */

/* Asserts that each op that mixes positions is refused over [sequences, steps, features], if it
 * comes before attention that reads the lengths. */
static void ops_that_mix_sequences_refuse_packing(void **state) {
  (void)state;
  static const struct {
    clv_op op;
    clv_attr_value values[2];
    const char *text;
  } refused_ops[] = {
      {CLV_OP_LSTM,
       {{.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {FEATURES}}},
       "layer 7: lstm takes no packed sequences: it cannot separate one sequence from the next"},
      {CLV_OP_MEAN, {{.key = CLV_ATTR_DIM, .n_ints = 1, .ints = {1}}}, "mean takes no packed"},
      {CLV_OP_CONV_TRANSPOSE1D,
       {{.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {3}},
        {.key = CLV_ATTR_KERNEL, .n_ints = 1, .ints = {3}}},
       "conv_transpose1d takes no packed"},
      {CLV_OP_CONV1D,
       {{.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {3}},
        {.key = CLV_ATTR_KERNEL, .n_ints = 1, .ints = {3}}},
       "conv1d takes no packed"},
      {CLV_OP_FLATTEN, {{0}}, "flatten takes no packed"},
      {CLV_OP_SLICE,
       {{.key = CLV_ATTR_DIM, .n_ints = 1, .ints = {1}},
        {.key = CLV_ATTR_START, .n_ints = 1, .ints = {1}}},
       "slice takes no packed sequences: it would work along their positions"},
      {CLV_OP_LAYERNORM,
       {{.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {MAX_STEPS, FEATURES}}},
       "layernorm takes no packed sequences: it would work along their positions"},
      {CLV_OP_RESHAPE,
       {{.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {FEATURES, MAX_STEPS}}},
       "reshape takes no packed sequences: it would move their positions"},
  };
  clv_attr_value heads = make_int_attr(CLV_ATTR_HEADS, 3);
  for (size_t i = 0; i < CLV_COUNT(refused_ops); i++) {
    int x, lengths;
    clv_graph *p = NULL, *g = make_graph(CLV_F32, CLV_SHAPE(SEQUENCES, MAX_STEPS, FEATURES), &x);
    assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(SEQUENCES), &lengths, err));
    add_joining_node(g, CLV_OP_ATTENTION, 6, (int[]){x, x, x, lengths}, 4, &heads, 1);
    int n = refused_ops[i].values[0].key ? refused_ops[i].values[1].key ? 2 : 1 : 0;
    int y = add_node(g, refused_ops[i].op, 7, x, -1, refused_ops[i].values, n);
    /* the slice takes another position than the first, and a flatten reads its output */
    if (refused_ops[i].op == CLV_OP_SLICE) add_plain(g, CLV_OP_FLATTEN, 8, y);
    assert_fails(clv_graph_pack_sequences(g, &p, err), CLV_INVALID, refused_ops[i].text);
    clv_graph_free(g);
  }
}

/* An image op over tokens that are shaped as images [sequences, steps, height, width] would mix
 * sequences, so packing is refused. */
static void image_ops_refuse_packing(void **state) {
  (void)state;
  const clv_attr_value window_attrs[] = {make_int_attr(CLV_ATTR_KERNEL, 1),
                                         make_int_attr(CLV_ATTR_OUT, 3)};
  static const struct {
    clv_op op;
    int n_values;
  } refused_ops[] = {{CLV_OP_BATCHNORM, 0}, {CLV_OP_GLOBALAVGPOOL, 0},    {CLV_OP_CONV2D, 2},
                     {CLV_OP_MAXPOOL, 1},   {CLV_OP_CONV_TRANSPOSE2D, 2}, {CLV_OP_AVGPOOL, 1}};
  clv_attr_value heads = make_int_attr(CLV_ATTR_HEADS, 3);
  for (size_t i = 0; i < CLV_COUNT(refused_ops); i++) {
    int x, lengths, image;
    char text[80];
    clv_graph *p = NULL, *g = make_graph(CLV_F32, CLV_SHAPE(SEQUENCES, MAX_STEPS, FEATURES), &x);
    assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(SEQUENCES), &lengths, err));
    assert_ok(clv_graph_add_input(g, "image", CLV_F32, &CLV_SHAPE(SEQUENCES, MAX_STEPS, 2, 2),
                                  &image, err));
    add_joining_node(g, CLV_OP_ATTENTION, 6, (int[]){x, x, x, lengths}, 4, &heads, 1);
    add_node(g, refused_ops[i].op, 7, image, -1, window_attrs, refused_ops[i].n_values);
    snprintf(text, sizeof text, "layer 7: %s takes no packed sequences",
             clv_op_name(refused_ops[i].op));
    assert_fails(clv_graph_pack_sequences(g, &p, err), CLV_INVALID, text);
    clv_graph_free(g);
  }
}

static void packing_without_lengths_is_refused(void **state) {
  (void)state;
  int x, lengths;
  clv_attr_value heads = make_int_attr(CLV_ATTR_HEADS, 3);
  clv_graph *p = NULL, *g = make_graph(CLV_F32, CLV_SHAPE(SEQUENCES, MAX_STEPS, FEATURES), &x);
  assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(SEQUENCES), &lengths, err));
  add_joining_node(g, CLV_OP_ATTENTION, 3, (int[]){x, x, x}, 3, &heads, 1);
  assert_fails(clv_graph_pack_sequences(g, &p, err), CLV_INVALID,
               "no layer reads the lengths of sequences");
  add_joining_node(g, CLV_OP_ATTENTION, 4, (int[]){x, x, x, lengths}, 4, &heads, 1);
  assert_fails(clv_graph_pack_sequences(g, &p, err), CLV_INVALID,
               "layer 3: attention takes no packed sequences: it does not read their lengths");
  clv_graph_free(g);
}

static void invalid_packed_lengths_are_refused(void **state) {
  (void)state;
  assert_lengths_refused(clv_backend_ref());
  assert_lengths_refused(clv_backend_cpu());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(packed_results_match_padded_results),
      cmocka_unit_test(packed_results_match_padded_results_in_bf16),
      cmocka_unit_test(every_cut_gives_the_same_packed_results),
      cmocka_unit_test(packed_row_count_follows_the_batch),
      cmocka_unit_test(ops_that_mix_sequences_refuse_packing),
      cmocka_unit_test(image_ops_refuse_packing),
      cmocka_unit_test(packing_without_lengths_is_refused),
      cmocka_unit_test(invalid_packed_lengths_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
