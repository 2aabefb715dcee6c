# SPDX-License-Identifier: Apache-2.0
"""Breaks on purpose, as breaks.py says: bf16 products, attention, blocks computed again."""
from breaks import of

# ---- products in bf16 on processors --------------------------------------------------------------
PLANS = "tests/unit/graph/test_plan_bf16"
of("kernels/cpu/linear.c", PLANS, a_linear_of_a_bf16_session_is_f32=("static clv_code linear_prepare(", "if (d->bf16)", "if (d->bf16 && !ret)"))
of("kernels/cpu/linear_bf16.c", PLANS,
   a_second_gradient_replaces_the_first=("static clv_code linear_backward_weight(", ".add = a->accumulate", ".add = false"),
   the_gradients_factor_is_the_forwards=("static clv_code linear_backward_input(", "at(a->cache, k->backward_at)", "at(a->cache, 0)"),
   weights_stored_transposed_are_taken_as_they_lie=("static cpu_pairs_factor weights_of(", ".turned = turned != t", ".turned = turned"),
   a_bias_is_left_out_in_bf16=("static clv_code linear_forward(", "k->k.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL", "NULL"))
of("kernels/cpu/pairs.c", PLANS,
   blocks_at_an_edge_write_behind_it=("static void any_block(", "i + PAIRS_BLOCK > p->m || j + PAIRS_BLOCK > p->n", "false"),
   the_last_part_of_a_factor_is_what_lies_there=("INLINE __m512 take(", "row < f->rows ? mask_of(column, f->columns) : 0", "0xFFFF"),
   the_rest_of_a_long_sum_begins_anew=("static const float *begin_with(", "p->add || t->first ? p->n : 0", "p->add ? p->n : 0"),
   parts_of_a_sum_take_the_first_weights=("static void any_block(", " + t->first * PAIRS_TILE", ""))
of("kernels/cpu/dots.c", PLANS, rows_behind_the_eighth_are_the_first=("INLINE void rows_from(", " + row % PAIRS_SIDE * PAIRS_WIDE", ""))
FALLBACK = "tests/unit/cpu/test_fallback"
of("kernels/cpu/backend.c", FALLBACK,
   amx_that_is_refused_has_its_name=("const char *clv_cpu_isa_name(", "&& !amx_ready", "&& false"),
   a_node_names_what_it_may_not_use=("static const char *cpu_isa(", "clv_cpu_amx_ready()", "true"))
BF16 = "tests/net/training/test_bf16.py"
of("master/api/workers.c", BF16, libraries_of_another_kind_are_not_told=("static void compare_processors(", "strcmp(libraries, ours) != 0", "false"))
of("master/train/state.c", BF16, a_run_goes_on_with_other_libraries_in_silence=("static void compare_machines(", "i < CLV_COUNT(said)", "i < 1"))

# ---- blocks that backward computes again ---------------------------------------------------------
RECOMPUTE, READS, BLOCKS = "tests/unit/graph/test_recompute", "tests/unit/graph/test_reads", "tests/net/training/test_recompute_blocks.py"
of("common/graph/plan_again.c", RECOMPUTE,
   what_backward_reads_is_not_made_again=("void clv_plan_find_wanted(", "wanted[i] |= saves & CLV_SAVE_OUT ||", "wanted[i] |="),
   only_the_last_op_of_a_block_is_made_again=("void clv_plan_find_wanted(", "want_inputs(p, i, saves, wanted[i], wanted);", "want_inputs(p, i, saves, false, wanted);"))
of("common/graph/plan_forward.c", RECOMPUTE, running_statistics_move_twice=("static clv_code write_step(", "if (again) CLV_TRY(spare_statistics(p, node, &s, err));", ""))
of("common/graph/plan_backward.c", RECOMPUTE,
   backward_reads_what_was_not_kept=("static clv_code write_one_again(", "clv_plan_bind_inputs(p, node, err)", "CLV_OK"),
   what_is_made_again_stays_for_the_last_phase=("static bool has_late_dw(", "!clv_plan_recomputes(p, node) && ", ""))
of("common/graph/reads.c", READS, a_forward_that_is_repeated_reads_no_weights=("bool clv_graph_backward_reads_params(", "any |= repeats(g, nodes);", ""))
of("common/graph/plan.c", READS, weights_may_change_before_a_forward_is_repeated=("static void count(", "(run == clv_plan_run_forward && !forward)", "false"))
of("worker/service/load_module.c", BLOCKS, workers_keep_all_the_same=("static clv_code add_node(", "g->nodes[node].recompute = w->recompute;", ""))
of("common/models/blocks.c", BLOCKS,
   numbered_blocks_are_one=("static bool is_numbered(", "return true;", "return last > first + 1000;"),
   blocks_may_overlap=("static clv_code mark(", "if (node_of(m, i)->recompute)", "if (false)"))
of("common/graph/lora.c", "tests/unit/graph/test_lora", adapters_are_kept_in_blocks_that_are_not=("static clv_code beside(", "w->to->nodes[*at].recompute = n->recompute;", ""))

# ---- attention -----------------------------------------------------------------------------------
of("kernels/cpu/attention.c", "tests/ops/test_pair attention",
   gradients_of_keys_begin_with_what_lies_there=("static void backward_tile(", "over_rows(e, t, s->dp, a->in[0], !first, a->din[1]);", "over_rows(e, t, s->dp, a->in[0], true, a->din[1]);"),
   keys_that_nobody_meets_keep_a_gradient=("static void backward_heads(", "clear(&e, tile_at(&e, 0).keys, a->din[2]);", ""))
