/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the generator of schedules: it gives the lists of instructions, the bubbles and the memory
 * that the literature states, for placements of every kind. Also tests what the generator refuses.
 */
#include "tests/unit/sched/sched_test.h"

/* Writes the computing instructions of a rank as one line. A ' follows an instruction whose weights
 * are of an older version (weights_age > 0). */
static void write_line(const clv_sched *s, uint32_t rank, bool has_stages, clv_bytes *out) {
  char text[SCHED_INSTR_TEXT];
  for (uint32_t k = 0; k < s->n[rank]; k++) {
    const clv_instr *i = &s->instrs[rank][k];
    if (i->kind >= CLV_INSTR_SEND_F && i->kind <= CLV_INSTR_RECV_B) continue;
    clv_bytes_printf(out, "%s%s%s", out->len ? " " : "", clv_instr_text(i, text),
                     i->weights_age ? "'" : "");
    if (has_stages) clv_bytes_printf(out, "@%u", i->stage);
  }
}

typedef struct textbook_case {
  clv_sched_kind kind;
  uint32_t n_stages, n_ranks, n_micro_batches, n_accumulated;
  const char *lines[4];
} textbook_case;

static const textbook_case textbook_cases[] = {
    {CLV_SCHED_NAIVE, 2, 2, 3, 0, {"F0 B0 F1 B1 F2 B2", "F0 B0 F1 B1 F2 B2"}},
    {CLV_SCHED_GPIPE,
     3,
     3,
     4,
     0,
     {"F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"}},
    {CLV_SCHED_1F1B,
     4,
     4,
     8,
     0,
     {"F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
      "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
      "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
      "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"}},
    {CLV_SCHED_1F1B, 4, 4, 2, 0, {"F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"}},
    /* As in Megatron-LM, with p = 2 ranks of v = 2 chunks each: a rank begins with 2 * (p - rank -
     * 1) + (v - 1) * p forwards. */
    {CLV_SCHED_INTERLEAVED,
     4,
     2,
     4,
     0,
     {"F0@0 F1@0 F0@2 F1@2 F2@0 B0@2 F3@0 B1@2 F2@2 B0@0 F3@2 B1@0 B2@2 B3@2 B2@0 B3@0",
      "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 F2@1 B0@1 F3@1 B1@1 F2@3 B2@3 F3@3 B3@3 B2@1 B3@1"}},
    /* Qi et al. 2023: stage s delays s weight gradients. */
    {CLV_SCHED_ZB_H1,
     4,
     4,
     8,
     0,
     {"F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
      "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
      "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
      "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"}},
    {CLV_SCHED_PIPEDREAM,
     2,
     2,
     4,
     0,
     {"F0 F1 B0 S0 F2 B1 S1 F3 B2 S2 B3 S3", "F0 B0 S0 F1 B1 S1 F2 B2 S2 F3 B3 S3"}},
    {CLV_SCHED_PIPEDREAM_2BW,
     2,
     2,
     6,
     2,
     {"F0 F1 B0 F2 B1 S0 F3' B2 F4 B3 S1 F5' B4 B5 S2",
      "F0 B0 F1 B1 S0 F2' B2 F3' B3 S1 F4' B4 F5' B5 S2"}},
    /* A rank with several stages computes the older micro-batch first, and then the later stage. */
    {CLV_SCHED_GPIPE,
     4,
     2,
     2,
     0,
     {"F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0", "F0@1 F1@1 F0@3 F1@3 B0@3 B1@3 B0@1 B1@1"}},
    {CLV_SCHED_1F1B, 3, 1, 2, 0, {"F0@0 F0@1 F0@2 B0@2 F1@0 F1@1 B0@1 B0@0 F1@2 B1@2 B1@1 B1@0"}},
};

static void test_schedules_match_the_textbook(void **state) {
  (void)state;
  for (size_t l = 0; l < CLV_COUNT(textbook_cases); l++) {
    const textbook_case *want = &textbook_cases[l];
    clv_sched_shape shape = make_shape(want->n_stages, want->n_ranks, want->n_micro_batches);
    shape.n_accumulate = want->n_accumulated;
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(want->kind, &shape, 0, NULL);
    for (uint32_t r = 0; r < want->n_ranks; r++) {
      CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
      write_line(s, r, want->n_stages > want->n_ranks, &line);
      if (strcmp(line.data, want->lines[r]))
        fail_msg("%s, rank %u:\n%s\nis not\n%s", clv_sched_name(want->kind), r, line.data,
                 want->lines[r]);
    }
  }
}

/* If all costs are 0, all stages count as stages that take time. */
static void test_all_zero_costs_give_the_textbook_schedule(void **state) {
  clv_sched_shape shape = make_shape(3, 3, 6);
  static const clv_sched_costs zero_costs;
  CLV_AUTO(clv_sched_freep) clv_sched *plain = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
  CLV_AUTO(clv_sched_freep)
  clv_sched *of_nothing = make_schedule(CLV_SCHED_1F1B, &shape, 0, &zero_costs);
  CLV_AUTO(clv_bytes_done) clv_bytes a = {0}, b = {0};
  (void)state;
  clv_sched_format(plain, &a), clv_sched_format(of_nothing, &b);
  assert_string_equal(a.data, b.data);
}

/* Kinds of schedules that do not depend on costs and delays. */
static const clv_sched_kind textbook[] = {CLV_SCHED_NAIVE, CLV_SCHED_GPIPE, CLV_SCHED_1F1B,
                                          CLV_SCHED_ZB_H1, CLV_SCHED_PIPEDREAM};

static void test_textbook_schedules_ignore_costs(void **state) {
  uint64_t seed = 5;
  (void)state;
  for (int round = 0; round < 50; round++) {
    clv_sched_shape shape = make_shape(2 + draw_below(&seed, 5), 1, 1 + draw_below(&seed, 12));
    clv_sched_costs costs = {0};
    clv_sched_kind kind = textbook[draw_below(&seed, CLV_COUNT(textbook))];
    shape.n_ranks = shape.n_stages;
    for (uint32_t s = 0; s < shape.n_stages; s++) {
      shape.stage_rank[s] = (uint16_t)s;
      costs.forward_seconds[s] = draw_uniform(&seed, 0.1, 3),
      costs.input_grad_seconds[s] = draw_uniform(&seed, 0.1, 3);
      costs.latency_seconds[s] = draw_uniform(&seed, 0, 20),
      costs.serialise_forward_seconds[s] = draw_uniform(&seed, 0, 5);
    }
    CLV_AUTO(clv_sched_freep) clv_sched *plain = make_schedule(kind, &shape, 0, NULL);
    CLV_AUTO(clv_sched_freep) clv_sched *costly = make_schedule(kind, &shape, 0, &costs);
    CLV_AUTO(clv_bytes_done) clv_bytes a = {0}, b = {0};
    clv_sched_format(plain, &a), clv_sched_format(costly, &b);
    assert_string_equal(a.data, b.data);
  }
}

static void check_bubble(clv_sched_kind kind, uint32_t p, uint32_t v, uint32_t m,
                         bool sends_input_gradient_first) {
  clv_sched_shape shape = make_shape(p * v, p, m);
  clv_sched_costs costs;
  clv_sched_run run;
  shape.n_accumulate = kind == CLV_SCHED_PIPEDREAM_2BW ? p : 0;
  clv_sched_costs_set_equal(&costs, 1, 1, 1);
  costs.sends_input_gradient_first = sends_input_gradient_first;
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(kind, &shape, 0, NULL);
  ok(clv_sched_simulate(s, &costs, false, &run, err));
  double want = clv_sched_bubble_by_formula(kind, p, v, m, sends_input_gradient_first);
  if (!(fabs(run.bubble - want) < 1e-12))
    fail_msg("%s p %u v %u m %u, input %s: %.6f is not %.6f", clv_sched_name(kind), p, v, m,
             sends_input_gradient_first ? "first" : "with the rest", run.bubble, want);
  clv_sched_run_clear(&run, s);
}

static void test_bubbles_match_the_formula(void **state) {
  (void)state;
  for (int kind = 0; kind < CLV_SCHED_CUSTOM; kind++)
    for (uint32_t p = 2; p <= 8; p++)
      for (uint32_t micros_per_rank = 1; micros_per_rank <= 4; micros_per_rank++) {
        uint32_t v = kind == CLV_SCHED_INTERLEAVED ? 1 + micros_per_rank % 3 + 1 : 1,
                 m = p * micros_per_rank;
        check_bubble((clv_sched_kind)kind, p, v, m, false);
        check_bubble((clv_sched_kind)kind, p, v, m, true);
      }
  assert_true(isnan(clv_sched_bubble_by_formula(CLV_SCHED_CUSTOM, 2, 1, 4, false)));
  assert_true(isnan(clv_sched_bubble_by_formula(CLV_SCHED_1F1B, 0, 1, 0, true)));
}

static void test_memory_and_versions_match_the_literature(void **state) {
  const uint32_t p = 5, m = 20;
  (void)state;
  for (int kind = 0; kind < CLV_SCHED_CUSTOM; kind++) {
    if (kind == CLV_SCHED_INTERLEAVED) continue;
    clv_sched_shape shape = make_shape(p, p, m);
    shape.n_accumulate = kind == CLV_SCHED_PIPEDREAM_2BW ? p : 0;
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule((clv_sched_kind)kind, &shape, 0, NULL);
    clv_sched_report r;
    ok(clv_sched_check(s, &r, err));
    for (uint32_t i = 0; i < p; i++) {
      const uint32_t wanted_max_live[] = {1, m, p - i, 0, p, p - i, p - i};
      const uint32_t wanted_versions[] = {1, 1, 1, 0, 1, p - i, 2},
                     wanted_staleness[] = {0, 0, 0, 0, 0, p - i - 1, 1};
      assert_int_equal(r.max_live_micros[i], wanted_max_live[kind]);
      assert_int_equal(r.max_weight_versions[i], wanted_versions[kind]);
      assert_int_equal(r.max_staleness[i], wanted_staleness[kind]);
    }
  }
}

/* In zb-h1, stage s computes the weight gradient of micro-batch k right after the input gradient of
 * micro-batch k + s. */
static void test_zb_h1_delays_weight_gradients(void **state) {
  clv_sched_shape shape = make_shape(4, 4, 16);
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_ZB_H1, &shape, 0, NULL);
  (void)state;
  for (uint32_t r = 0; r < 4; r++) {
    uint32_t n_input_grads = 0;
    for (uint32_t k = 0; k < s->n[r]; k++) {
      const clv_instr *i = &s->instrs[r][k];
      n_input_grads += i->kind == CLV_INSTR_INPUT;
      if (i->kind == CLV_INSTR_WEIGHT)
        assert_int_equal(n_input_grads, CLV_MIN(16, i->micro_batch + r + 1));
    }
  }
}

/* The master has the first stage and a loss that takes no time; a worker has the stage between
 * them. The loss must not add a micro-batch in flight. */
static void test_free_loss_stage_adds_no_micro_batches_in_flight(void **state) {
  clv_sched_shape shape = {
      .n_stages = 3, .n_ranks = 2, .n_micro_batches = 8, .stage_rank = {0, 1, 0}};
  clv_sched_costs costs;
  clv_sched_report r;
  (void)state;
  clv_sched_costs_set_equal(&costs, 1, 1, 1);
  costs.forward_seconds[2] = costs.input_grad_seconds[2] = costs.weight_grad_seconds[2] = 0;
  static const clv_sched_kind kinds[] = {CLV_SCHED_1F1B, CLV_SCHED_ZB_H1, CLV_SCHED_PIPEDREAM};
  for (size_t k = 0; k < CLV_COUNT(kinds); k++) {
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(kinds[k], &shape, 0, &costs);
    ok(clv_sched_check(s, &r, err));
    assert_int_equal(r.max_live_micros[0], 2);
    assert_int_equal(r.max_live_micros[1], kinds[k] == CLV_SCHED_ZB_H1 ? 2 : 1);
    assert_int_equal(r.max_live_micros[2], 1);
  }
  /* With p ranks and m micro-batches the bubble of zb-h1 is (p - 1) / (3 * m + p - 1), as without
   * the loss stage. */
  CLV_AUTO(clv_sched_freep) clv_sched *zb = make_schedule(CLV_SCHED_ZB_H1, &shape, 0, &costs);
  assert_true(fabs(simulate_schedule(zb, &costs).bubble - 1.0 / 25) < 1e-12);
  /* Five stages alternate between two ranks; the loss is the last. */
  clv_sched_shape five_stages = {
      .n_stages = 5, .n_ranks = 2, .n_micro_batches = 4, .stage_rank = {0, 1, 0, 1, 0}};
  clv_sched_costs_set_equal(&costs, 1, 1, 1);
  costs.forward_seconds[4] = costs.input_grad_seconds[4] = costs.weight_grad_seconds[4] = 0;
  CLV_AUTO(clv_sched_freep)
  clv_sched *ring = make_schedule(CLV_SCHED_INTERLEAVED, &five_stages, 0, &costs);
  ok(clv_sched_check(ring, &r, err));
}

/* Draws placement, first trained stage and costs. clv_sched_make checks its own result. */
static void test_random_placements_give_valid_schedules(void **state) {
  uint64_t seed = 77;
  (void)state;
  for (int round = 0; round < 1500; round++) {
    clv_sched_kind kind = (clv_sched_kind)draw_below(&seed, CLV_SCHED_CUSTOM);
    clv_sched_costs costs = {0};
    clv_sched_shape shape =
        make_shape(1 + draw_below(&seed, 9), 1 + draw_below(&seed, 5), 1 + draw_below(&seed, 20));
    if (kind == CLV_SCHED_INTERLEAVED) {
      uint32_t p = 1 + draw_below(&seed, 4);
      shape = make_shape(p * (2 + draw_below(&seed, 2)), p, p * (1 + draw_below(&seed, 5)));
    } else {
      for (uint32_t s = 0; s < shape.n_stages; s++)
        shape.stage_rank[s] = (uint16_t)draw_below(&seed, shape.n_ranks);
    }
    shape.first_backward_stage = draw_below(&seed, 3) ? 0 : draw_below(&seed, shape.n_stages + 1);
    if (kind == CLV_SCHED_PIPEDREAM_2BW) {
      shape.n_accumulate = 1 + draw_below(&seed, 6);
      shape.n_micro_batches *= shape.n_accumulate;
    }
    for (uint32_t s = 0; s < shape.n_stages; s++) {
      bool has_loss = kind != CLV_SCHED_INTERLEAVED && draw_below(&seed, 4) == 0;
      costs.forward_seconds[s] = has_loss ? 0 : draw_uniform(&seed, 0, 3),
      costs.step_seconds[s] = draw_uniform(&seed, 0, 1);
      costs.input_grad_seconds[s] = has_loss ? 0 : draw_uniform(&seed, 0, 3),
      costs.weight_grad_seconds[s] = has_loss ? 0 : draw_uniform(&seed, 0, 3);
      costs.latency_seconds[s] = draw_uniform(&seed, 0, 9),
      costs.serialise_backward_seconds[s] = draw_uniform(&seed, 0, 4);
    }
    bool is_windowed =
        kind != CLV_SCHED_NAIVE && kind != CLV_SCHED_GPIPE && kind != CLV_SCHED_INTERLEAVED;
    uint32_t window = is_windowed ? draw_below(&seed, 12) : 0;
    CLV_AUTO(clv_sched_freep)
    clv_sched *s = make_schedule(kind, &shape, window, draw_below(&seed, 2) ? &costs : NULL);
    clv_sched_report r;
    ok(clv_sched_check(s, &r, err));
    for (uint32_t i = 0; window && i < shape.n_stages; i++)
      if (kind == CLV_SCHED_1F1B && r.max_live_micros[i] > window)
        fail_msg("round %d: %u live at stage %u, window %u", round, r.max_live_micros[i], i,
                 window);
  }
}

static const struct {
  clv_sched_options o;
  const char *says;
} invalid_options[] = {
    {{.kind = CLV_SCHED_1F1B, .shape = {.n_stages = 0, .n_ranks = 1, .n_micro_batches = 1}},
     "0 stages"},
    {{.kind = CLV_SCHED_1F1B,
      .shape = {.n_stages = 1, .n_ranks = 1, .n_micro_batches = 1, .stage_rank = {1}}},
     "stage 0 is at rank 1"},
    {{.kind = CLV_SCHED_INTERLEAVED,
      .shape = {.n_stages = 2, .n_ranks = 2, .n_micro_batches = 4, .stage_rank = {0, 1}}},
     "each rank needs the same number of stages, two or more (4 or 6"},
    {{.kind = CLV_SCHED_INTERLEAVED,
      .shape = {.n_stages = 4, .n_ranks = 2, .n_micro_batches = 3, .stage_rank = {0, 1, 0, 1}}},
     "3 micro-batches are no multiple of the 2 ranks (4 would be)"},
    {{.kind = CLV_SCHED_INTERLEAVED,
      .shape = {.n_stages = 4, .n_ranks = 2, .n_micro_batches = 4, .stage_rank = {0, 1, 1, 0}}},
     "stages 1 and 2 are both at rank 1"},
    {{.kind = CLV_SCHED_INTERLEAVED,
      .shape =
          {.n_stages = 6, .n_ranks = 3, .n_micro_batches = 3, .stage_rank = {0, 1, 2, 0, 2, 1}}},
     "stage 4 must be at rank 1, as stage 1 is, but it is at rank 2"},
    {{.kind = CLV_SCHED_PIPEDREAM_2BW,
      .shape = {.n_stages = 1, .n_ranks = 1, .n_micro_batches = 5, .n_accumulate = 2}},
     "are no multiple of"},
    {{.kind = CLV_SCHED_GPIPE,
      .shape = {.n_stages = 1, .n_ranks = 1, .n_micro_batches = 4, .n_accumulate = 2}},
     "gpipe takes no number"},
    {{.kind = CLV_SCHED_GPIPE,
      .shape = {.n_stages = 1, .n_ranks = 1, .n_micro_batches = 4},
      .window = 2},
     "gpipe has no window"},
    {{.kind = CLV_SCHED_CUSTOM, .shape = {.n_stages = 1, .n_ranks = 1, .n_micro_batches = 4}},
     "a custom schedule cannot be generated"},
    {{.kind = CLV_SCHED_GPIPE, .shape = {.n_stages = 256, .n_ranks = 1, .n_micro_batches = 65536}},
     "the limit is"},
};

static void test_invalid_options_are_refused(void **state) {
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(invalid_options); c++) {
    clv_sched *s = NULL;
    clv_err err;
    assert_int_equal(clv_sched_make(&invalid_options[c].o, &s, &err), CLV_INVALID);
    if (!strstr(err.text, invalid_options[c].says))
      fail_msg("\"%s\" lacks \"%s\"", err.text, invalid_options[c].says);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_schedules_match_the_textbook),
      cmocka_unit_test(test_textbook_schedules_ignore_costs),
      cmocka_unit_test(test_all_zero_costs_give_the_textbook_schedule),
      cmocka_unit_test(test_bubbles_match_the_formula),
      cmocka_unit_test(test_memory_and_versions_match_the_literature),
      cmocka_unit_test(test_zb_h1_delays_weight_gradients),
      cmocka_unit_test(test_free_loss_stage_adds_no_micro_batches_in_flight),
      cmocka_unit_test(test_random_placements_give_valid_schedules),
      cmocka_unit_test(test_invalid_options_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
