/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the simulator with numbers computed by hand and with a table that another simulator made
 * (two stages of F = 10 and B = 20 ms over delayed links), and tests the window that is chosen with
 * it.
 */
#include "tests/long.h"
#include "tests/unit/sched/sched_test.h"

static clv_sched_costs make_two_stage_costs(double latency_ms, double serialise_ms) {
  clv_sched_costs c;
  clv_sched_costs_set_equal(&c, 0.010, 0.010, 0.010);
  c.latency_seconds[0] = latency_ms / 1e3;
  c.serialise_forward_seconds[0] = c.serialise_backward_seconds[0] = serialise_ms / 1e3;
  return c;
}

static double simulate_seconds(clv_sched_kind kind, const clv_sched_shape *shape, uint32_t window,
                               const clv_sched_costs *c) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(kind, shape, window, c);
  return simulate_schedule(s, c).seconds;
}

static void assert_ms(const char *what, double got, double want_ms) {
  if (!(fabs(got * 1e3 - want_ms) < 1e-6))
    fail_msg("%s: %.3f ms, not %.3f", what, got * 1e3, want_ms);
}

static const struct {
  double latency_ms, serialise_ms;
  uint32_t n_micro_batches, n_warm_up;
  double textbook_ms, gpipe_ms, windowed_ms;
} link_cases[] = {{0, 0, 8, 1, 270, 270, 270},
                  {10, 5, 32, 2, 1470, 1020, 1020},
                  {40, 10, 32, 5, 2590, 1090, 1090},
                  {40, 30, 32, 6, 3230, 2060, 1130},
                  {40, 60, 32, 4, 4220, 3980, 2120}};

static void test_times_over_delayed_links_match_the_table(void **state) {
  (void)state;
  for (size_t r = 0; r < CLV_COUNT(link_cases); r++) {
    clv_sched_shape shape = make_shape(2, 2, link_cases[r].n_micro_batches);
    clv_sched_costs c = make_two_stage_costs(link_cases[r].latency_ms, link_cases[r].serialise_ms);
    uint32_t window = 0;
    ok(clv_sched_find_window(&shape, &c, &window, err));
    assert_int_equal(window, link_cases[r].n_warm_up + 1);
    assert_ms("textbook 1f1b", simulate_seconds(CLV_SCHED_1F1B, &shape, 0, &c),
              link_cases[r].textbook_ms);
    assert_ms("gpipe", simulate_seconds(CLV_SCHED_GPIPE, &shape, 0, &c), link_cases[r].gpipe_ms);
    assert_ms("windowed 1f1b", simulate_seconds(CLV_SCHED_1F1B, &shape, window, &c),
              link_cases[r].windowed_ms);
  }
}

/* Gradients of the input are sent before those of the weights are computed. */
static void test_split_backward_sends_input_gradients_first(void **state) {
  clv_sched_shape shape = make_shape(2, 2, 32);
  clv_sched_costs short_link_costs = make_two_stage_costs(10, 5),
                  long_link_costs = make_two_stage_costs(40, 30);
  (void)state;
  assert_ms("w 2", simulate_seconds(CLV_SCHED_ZB_H1, &shape, 3, &short_link_costs), 1010);
  assert_ms("w 6", simulate_seconds(CLV_SCHED_ZB_H1, &shape, 7, &long_link_costs), 1120);
}

static void test_times_match_hand_computation(void **state) {
  clv_sched_shape shape = make_shape(2, 2, 1);
  clv_sched_costs c = {.forward_seconds = {1, 2},
                       .input_grad_seconds = {3, 4},
                       .weight_grad_seconds = {5, 6},
                       .latency_seconds = {10},
                       .serialise_forward_seconds = {0.5},
                       .serialise_backward_seconds = {0.25}};
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
  clv_sched_run run;
  (void)state;
  ok(clv_sched_simulate(s, &c, true, &run, err));
  /* in seconds: F takes 1, the link 10.5, F and B of rank 1 take 12, the link 10.25, and B 8 */
  assert_true(fabs(run.seconds - 41.75) < 1e-12);
  assert_true(fabs(run.busy_seconds[0] - 9) < 1e-12 && fabs(run.busy_seconds[1] - 12) < 1e-12);
  assert_true(fabs(run.bubble - (1 - 21 / (2 * 41.75))) < 1e-12);
  /* begin and end of rank 1's instructions: rf, F, B, sb */
  const double wanted_spans[4][2] = {{0, 11.5}, {11.5, 13.5}, {13.5, 23.5}, {23.5, 23.5}};
  for (int i = 0; i < 4; i++)
    assert_true(fabs(run.spans[1][i].begin - wanted_spans[i][0]) +
                    fabs(run.spans[1][i].end - wanted_spans[i][1]) <
                1e-12);
  clv_sched_run_clear(&run, s);
  clv_sched_run_clear(&run, s);
}

/* Stages 0, 1, 2, 3 alternate between two ranks, so edges 0 and 2 share a direction of one link. */
static void test_edges_in_one_direction_share_a_link(void **state) {
  static const char text[] =
      "schedule custom stages 4 ranks 2 micro-batches 1 first-backward 4\n"
      "stage 0 rank 0\nstage 1 rank 1\nstage 2 rank 0\nstage 3 rank 1\n";
  static const char text_of_two[] =
      "schedule custom stages 2 ranks 2 micro-batches 2 first-backward 2\nstage 0 rank 0\n"
      "stage 1 rank 1\nrank 0: F0@0 F1@0 sf0@0 sf1@0\nrank 1: rf0@1 F0@1 rf1@1 F1@1\n";
  clv_sched_costs c = {.serialise_forward_seconds = {3, 1, 3}, .latency_seconds = {1, 1, 1}};
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL, *chain = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes whole = {0};
  (void)state;
  ok(clv_sched_parse("two", text_of_two, sizeof text_of_two - 1, &s, err));
  assert_true(fabs(simulate_schedule(s, &c).seconds - 7) <
              1e-12); /* two tensors of 3 s on the link, and 1 s of latency */
  clv_bytes_puts(&whole, text);
  clv_bytes_puts(&whole,
                 "rank 0: F0@0 sf0@0 rf0@2 F0@2 sf0@2\nrank 1: rf0@1 F0@1 sf0@1 rf0@3 F0@3\n");
  ok(clv_sched_parse("chain", whole.data, whole.len, &chain, err));
  assert_true(fabs(simulate_schedule(chain, &c).seconds - 10) < 1e-12);
  /* no rank takes time to compute, so no time is idle */
  assert_true(simulate_schedule(chain, &c).bubble == 0);
}

static void test_invalid_costs_are_refused(void **state) {
  clv_sched_shape shape = make_shape(2, 2, 2);
  clv_sched_run run;
  clv_err err;
  uint32_t window;
  (void)state;
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
  static const double bad[] = {-1, NAN, INFINITY, 2e9};
  for (size_t b = 0; b < CLV_COUNT(bad); b++) {
    clv_sched_costs c = {.latency_seconds = {0, bad[b]}};
    assert_int_equal(clv_sched_simulate(s, &c, false, &run, &err), CLV_INVALID);
    assert_non_null(strstr(err.text, "latency of stage 1"));
    assert_int_equal(clv_sched_find_window(&shape, &c, &window, &err), CLV_INVALID);
  }
}

/* Returns by which fraction a run with this window takes longer than one with the best window. */
static double compute_excess(const clv_sched_shape *shape, const clv_sched_costs *c,
                             uint32_t window) {
  double best_seconds = INFINITY;
  for (uint32_t w = 1; w <= shape->n_micro_batches; w++)
    best_seconds = fmin(best_seconds, simulate_seconds(CLV_SCHED_1F1B, shape, w, c));
  return simulate_seconds(CLV_SCHED_1F1B, shape, window, c) / best_seconds - 1;
}

static void draw_costs(uint64_t *seed, uint32_t stages, clv_sched_costs *ret) {
  memset(ret, 0, sizeof *ret);
  for (uint32_t s = 0; s < stages; s++) {
    ret->forward_seconds[s] = draw_uniform(seed, 1, 20),
    ret->input_grad_seconds[s] = draw_uniform(seed, 1, 20);
    ret->weight_grad_seconds[s] = draw_uniform(seed, 1, 20),
    ret->latency_seconds[s] = draw_uniform(seed, 0, 50);
    ret->serialise_forward_seconds[s] = ret->serialise_backward_seconds[s] =
        draw_uniform(seed, 0, 20);
  }
}

/* Two equal stages. The window that the formula gives, or one more, must take at most 2 % more time
 * than the best window. So must the window that clv_sched_find_window chooses. */
static void test_window_formula_is_near_the_optimum(void **state) {
  (void)state;
  for (uint64_t round = 1; round <= (is_long() ? 400 : 100); round++) {
    uint64_t seed = round;
    clv_sched_shape shape = make_shape(2, 2, 8 + draw_below(&seed, 40));
    const bool takes_no_time[2] = {false};
    clv_sched_costs c;
    uint32_t window = 0;
    clv_sched_costs_set_equal(&c, draw_uniform(&seed, 1, 30), draw_uniform(&seed, 1, 30),
                              draw_uniform(&seed, 1, 30));
    c.latency_seconds[0] = draw_uniform(&seed, 0, 100);
    c.serialise_forward_seconds[0] = c.serialise_backward_seconds[0] = draw_uniform(&seed, 0, 100);
    uint32_t w = clv_sched_window_by_formula(&shape, &c, takes_no_time);
    ok(clv_sched_find_window(&shape, &c, &window, err));
    double excess_of_formula =
        fmin(compute_excess(&shape, &c, w), compute_excess(&shape, &c, w + 1));
    double excess_of_choice = compute_excess(&shape, &c, window);
    if (excess_of_formula > 0.02 || excess_of_choice > 0.02)
      fail_msg("round %u: %u micro-batches, formula %u: +%.1f %%, chosen %u: +%.1f %%",
               (unsigned)round, shape.n_micro_batches, w, excess_of_formula * 100, window,
               excess_of_choice * 100);
  }
}

static uint32_t compute_needed_window(const clv_sched_shape *shape, const clv_sched_costs *c) {
  bool takes_no_time[CLV_SCHED_STAGES];
  clv_sched_mark_timeless_stages(shape, c, takes_no_time);
  return clv_sched_window_by_formula(shape, c, takes_no_time);
}

static void test_needed_window_matches_hand_computation(void **state) {
  clv_sched_shape two_stages = make_shape(2, 2, 64), alternating = make_shape(4, 2, 64),
                  frozen = make_shape(3, 3, 64);
  clv_sched_costs c;
  (void)state;
  /* Rounding must not change the window if 2 * latency is exactly q times the 3 * t ms of a
   * micro-batch at a stage. */
  for (uint32_t t = 1; t <= 30; t++)
    for (uint32_t q = 0; q <= 20; q++) {
      clv_sched_costs_set_equal(&c, t / 1e3, t / 1e3, t / 1e3);
      c.latency_seconds[0] = q * 1.5 * t / 1e3;
      assert_int_equal(compute_needed_window(&two_stages, &c), q + 2);
    }
  /* Four stages alternate between two ranks. In one direction of their link, each micro-batch sends
   * two activations of 1 s and a gradient of 0.5 s: 2.5 s. It is away from the first stage for 3
   * stages of 1 s and 3 edges of 1 + 0.5 + 2 * 3 s: 25.5 s. */
  clv_sched_costs_set_equal(&c, 0.25, 0.25, 0.5);
  for (int e = 0; e < 3; e++)
    c.serialise_forward_seconds[e] = 1, c.serialise_backward_seconds[e] = 0.5,
    c.latency_seconds[e] = 3;
  /* the window is 1 + 25.5 / 2.5, rounded up */
  assert_int_equal(compute_needed_window(&alternating, &c), 1 + 11);
  /* The window counts from stage 1, the first stage with a backward. There a micro-batch takes 1 s;
   * then it is away for 8.5 s: 1 s at the next stage and 7.5 s in flight. */
  frozen.first_backward_stage = 1;
  /* the window is 1 + 8.5, rounded up */
  assert_int_equal(compute_needed_window(&frozen, &c), 1 + 9);
}

/* A loss that takes no time at the master is computed at once, before other work of the master,
 * because a worker waits for the gradient. */
static void test_free_loss_runs_as_early_as_possible(void **state) {
  clv_sched_shape shape = {
      .n_stages = 3, .n_ranks = 2, .n_micro_batches = 8, .stage_rank = {0, 1, 0}};
  clv_sched_costs c = make_two_stage_costs(0, 0);
  (void)state;
  c.forward_seconds[2] = c.input_grad_seconds[2] = c.weight_grad_seconds[2] = 0;
  for (uint16_t master_rank = 0; master_rank < 2; master_rank++) {
    shape.stage_rank[0] = shape.stage_rank[2] = master_rank, shape.stage_rank[1] = !master_rank;
    assert_ms("window 2", simulate_seconds(CLV_SCHED_1F1B, &shape, 2, &c), 340);
    assert_ms("window 3", simulate_seconds(CLV_SCHED_1F1B, &shape, 3, &c), 300);
    assert_ms("window 5", simulate_seconds(CLV_SCHED_1F1B, &shape, 5, &c), 270);
  }
}

static int compare_by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Chains of unequal stages, half of them with a loss at the first rank. The chosen window must take
 * little more time than the best window, and usually less than the faster of the schedules 1f1b and
 * gpipe. */
static void test_unequal_stages_get_a_near_optimal_window(void **state) {
  enum { ROUNDS = 50 };
  double ratios_to_textbook[2 * ROUNDS], excesses[2 * ROUNDS];
  (void)state;
  for (uint64_t round = 0; round < 2 * ROUNDS; round++) {
    uint64_t seed = 1 + round;
    clv_sched_shape shape = {.n_stages = 3,
                             .n_ranks = 2,
                             .n_micro_batches = 8 + draw_below(&seed, 40),
                             .stage_rank = {0, 1, 0}};
    uint32_t n = 2 + draw_below(&seed, 5), window = 0;
    if (round % 2) shape = make_shape(n, n, shape.n_micro_batches);
    clv_sched_costs c;
    draw_costs(&seed, shape.n_stages, &c);
    if (round % 2 == 0)
      c.forward_seconds[2] = c.input_grad_seconds[2] = c.weight_grad_seconds[2] = 0;
    ok(clv_sched_find_window(&shape, &c, &window, err));
    excesses[round] = compute_excess(&shape, &c, window);
    double textbook_seconds = fmin(simulate_seconds(CLV_SCHED_1F1B, &shape, 0, &c),
                                   simulate_seconds(CLV_SCHED_GPIPE, &shape, 0, &c));
    ratios_to_textbook[round] =
        simulate_seconds(CLV_SCHED_1F1B, &shape, window, &c) / textbook_seconds;
  }
  qsort(ratios_to_textbook, CLV_COUNT(ratios_to_textbook), sizeof *ratios_to_textbook,
        compare_by_value);
  qsort(excesses, CLV_COUNT(excesses), sizeof *excesses, compare_by_value);
  print_message("of the best window: median +%.3f, at most +%.3f\n", excesses[ROUNDS],
                excesses[2 * ROUNDS - 1]);
  assert_true(excesses[ROUNDS] < 0.02);
  assert_true(excesses[2 * ROUNDS - 1] < 0.2);
  print_message("of the better textbook: median %.3f, at most %.3f\n", ratios_to_textbook[ROUNDS],
                ratios_to_textbook[2 * ROUNDS - 1]);
  assert_true(ratios_to_textbook[ROUNDS] < 1.0);
  assert_true(ratios_to_textbook[2 * ROUNDS - 1] < 1.1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_times_over_delayed_links_match_the_table),
      cmocka_unit_test(test_split_backward_sends_input_gradients_first),
      cmocka_unit_test(test_times_match_hand_computation),
      cmocka_unit_test(test_edges_in_one_direction_share_a_link),
      cmocka_unit_test(test_invalid_costs_are_refused),
      cmocka_unit_test(test_needed_window_matches_hand_computation),
      cmocka_unit_test(test_free_loss_runs_as_early_as_possible),
      cmocka_unit_test(test_window_formula_is_near_the_optimum),
      cmocka_unit_test(test_unequal_stages_get_a_near_optimal_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
