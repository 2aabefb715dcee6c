/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the check of schedules: what a schedule must be, each way of violating it, random valid
 * schedules, and damaged ones.
 *
 * runs alone: how long a check may take
 */
#include "tests/unit/sched/random_schedule.h"

#define HEAD_OF_TWO_RANKS \
  "schedule custom stages 2 ranks 2 micro-batches 2\nstage 0 rank 0\nstage 1 rank 1\n"
#define HEAD_OF_ONE_RANK(kind, m, acc)                                                      \
  "schedule " kind " stages 1 ranks 1 micro-batches " m " first-backward 0 accumulate " acc \
  "\nstage 0 rank 0\n"

static clv_code check_text(const char *text, clv_sched_report *report, clv_err *ret_err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  ok(clv_sched_parse("test", text, strlen(text), &s, err));
  return clv_sched_check(s, report, ret_err);
}

static void test_hand_written_schedules_are_valid(void **state) {
  clv_sched_report r;
  clv_err err = {0};
  (void)state;
  assert_int_equal(
      check_text(HEAD_OF_TWO_RANKS "rank 0: F0@0 F1@0 sf1@0 sf0@0 rb1@0 rb0@0 I0@0 I1@0 W0@0 W1@0\n"
                                   "rank 1: rf1@1 rf0@1 F0@1 F1@1 B0@1 I1@1 sb1@1 sb0@1 W1@1\n",
                 &r, &err),
      CLV_OK);
  assert_int_equal(r.max_live_micros[0], 2);
  assert_int_equal(r.max_weight_versions[0], 1);
  /* Also valid: a single micro-batch; and a frozen stage, which has only forwards, before a trained
   * stage. */
  assert_int_equal(check_text(HEAD_OF_ONE_RANK("custom", "1", "0") "rank 0: F0@0 B0@0\n", &r, &err),
                   CLV_OK);
  assert_int_equal(check_text("schedule custom stages 2 ranks 1 micro-batches 1 first-backward 1\n"
                              "stage 0 rank 0\nstage 1 rank 0\nrank 0: F0@0 F0@1 I0@1 W0@1\n",
                              &r, &err),
                   CLV_OK);
  assert_int_equal(r.max_live_micros[0], 0);
  assert_int_equal(r.max_live_micros[1], 1);
}

static void test_version_counts_match_hand_computation(void **state) {
  clv_sched_report r;
  clv_err err = {0};
  (void)state;
  /* Three micro-batches are in flight, so at most two steps come between a forward and its
   * backward. */
  assert_int_equal(
      check_text(HEAD_OF_ONE_RANK(
                     "pipedream", "4",
                     "0") "rank 0: F0@0 F1@0 F2@0 B0@0 S0@0 B1@0 S1@0 F3@0 B2@0 S2@0 B3@0 S3@0\n",
                 &r, &err),
      CLV_OK);
  assert_int_equal(r.max_live_micros[0], 3);
  /* at F3 versions 0 and 2 of the weights are in memory, because F2 used version 0 */
  assert_int_equal(r.max_weight_versions[0], 2);
  assert_int_equal(r.max_staleness[0], 2);
}

/* Micro-batch 1 uses version 0 of the weights. Before its backward, micro-batch 2 already uses
 * version 1. The backward of micro-batch 2 comes when the newest version is 2. */
static void test_versions_within_a_window_are_counted(void **state) {
  clv_sched_report r;
  clv_err err = {0};
  (void)state;
  assert_int_equal(
      check_text(HEAD_OF_ONE_RANK("pipedream", "3",
                                  "0") "rank 0: F0@0 F1@0 B0@0 S0@0 F2@0 B1@0 S1@0 B2@0 S2@0\n",
                 &r, &err),
      CLV_OK);
  assert_int_equal(r.max_weight_versions[0], 2);
  assert_int_equal(r.max_staleness[0], 1);
}

static const struct {
  const char *schedule_text, *message;
} refused_schedules[] = {
    {HEAD_OF_TWO_RANKS "rank 0: F1@0\n",
     "rank 0, instruction 0 (F1 of stage 0): F0 has to come first"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 F0@0\n",
     "rank 0, instruction 1 (F0 of stage 0): has run before"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@1\n", "the stage is at rank 1"},
    {HEAD_OF_TWO_RANKS "rank 1: F0@1\n", "its input was not received before (rf0)"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 B0@0\n", "its gradient was not received before (rb0)"},
    {HEAD_OF_TWO_RANKS "rank 0: sf0@0\n", "F0 has to come first"},
    {HEAD_OF_TWO_RANKS "rank 1: rf0@1 F0@1 sb0@1\n",
     "the gradient of micro-batch 0 has to come first"},
    {HEAD_OF_TWO_RANKS "rank 1: rf0@1 F0@1 B0@1 sb0@1 sb0@1\n",
     "instruction 4 (sb0 of stage 1): has run before"},
    {HEAD_OF_TWO_RANKS "rank 0: rf0@0\n", "nothing crosses between ranks there"},
    {HEAD_OF_TWO_RANKS "rank 0: sb0@0\n", "nothing crosses between ranks there"},
    {HEAD_OF_TWO_RANKS "rank 1: sf0@1\n", "nothing crosses between ranks there"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 sf0@0 rb0@0 W0@0\n", "I0 has to come first"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 sf0@0 rb0@0 B0@0 W0@0\n", "(W0 of stage 0): has run before"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 F1@0 rb0@0 I0@0 rb1@0 B1@0\n",
     "(B1 of stage 0): W0 has to come first"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 S0@0\n",
     "the step of a custom schedule comes after the round"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0-1\n", "there are no weights of 1 steps ago"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 sf0@0-1\n", "forwards alone choose their weights"},
    {HEAD_OF_TWO_RANKS "rank 0: F0@0 sf0@0\n",
     "rank 0, instruction 2 (the end): F1 of stage 0 is missing"},
    {HEAD_OF_TWO_RANKS
     "rank 0: F0@0 sf0@0 F1@0 rb0@0 B0@0 rb1@0 B1@0\nrank 1: rf0@1 F0@1 rf1@1 F1@1 B0@1 "
     "sb0@1 B1@1 sb1@1\n",
     "rank 0, instruction 7 (the end): sf1 of stage 0 is missing"},
    {HEAD_OF_TWO_RANKS
     "rank 0: F0@0 sf0@0 F1@0 sf1@0 rb0@0 B0@0 rb1@0 I1@0\nrank 1: rf0@1 F0@1 rf1@1 F1@1 B0@1 "
     "sb0@1 B1@1 sb1@1\n",
     "(the end): W1 of stage 0 is missing"},
    /* refused: each rank waits for a tensor that the other one sends later */
    {HEAD_OF_TWO_RANKS
     "rank 0: F0@0 sf0@0 rb0@0 B0@0 F1@0 sf1@0 rb1@0 B1@0\nrank 1: rf0@1 F0@1 rf1@1 F1@1 B0@1 "
     "sb0@1 B1@1 sb1@1\n",
     "rank 0, instruction 2 (rb0 of stage 0): waits for sb0 of stage 1 for ever: rank 1, which "
     "sends "
     "it, waits at instruction 2 (rf1 of stage 1)"},
    {"schedule custom stages 2 ranks 1 micro-batches 1\nstage 0 rank 0\nstage 1 rank 0\nrank 0: "
     "F0@1\n",
     "F0 of stage 0 has to come first"},
    {"schedule custom stages 2 ranks 1 micro-batches 1\nstage 0 rank 0\nstage 1 rank 0\n"
     "rank 0: F0@0 F0@1 B0@0\n",
     "the gradient of micro-batch 0 of stage 1 has to come first"},
    {"schedule custom stages 2 ranks 1 micro-batches 1 first-backward 1\nstage 0 rank 0\n"
     "stage 1 rank 0\nrank 0: F0@0 F0@1 B0@1 B0@0\n",
     "(B0 of stage 0): the stage has only forwards"},
    {HEAD_OF_ONE_RANK("pipedream", "2", "0") "rank 0: F0@0 F1@0 B0@0 B1@0\n",
     "(B1 of stage 0): belongs to step 1, and S0 has to come first"},
    {HEAD_OF_ONE_RANK("pipedream", "2", "0") "rank 0: F0@0 S0@0\n",
     "0 of its 1 gradients are there"},
    {HEAD_OF_ONE_RANK("pipedream", "1", "0") "rank 0: F0@0 B0@0\n", "S0 of stage 0 is missing"},
    {HEAD_OF_ONE_RANK("pipedream", "2", "0") "rank 0: F0@0 B0@0 S0@0 F1@0-1\n",
     "there are no weights of 1"},
    {HEAD_OF_ONE_RANK("pipedream-2bw", "2", "1") "rank 0: F0@0 B0@0 S0@0 F1@0\n",
     "runs on the weights after 1 steps, and all of step 1 run on those after 0"},
    {HEAD_OF_ONE_RANK("pipedream-2bw", "3", "1") "rank 0: F0@0 F1@0 F2@0\n",
     "runs on the weights after 0 steps, and all of step 2 run on those after 1"},
    {HEAD_OF_ONE_RANK("pipedream-2bw", "3", "2") "rank 0: F0@0\n", "3 micro-batches in steps of 2"},
    {HEAD_OF_ONE_RANK("pipedream-2bw", "3", "0") "rank 0: F0@0\n", "3 micro-batches in steps of 0"},
    {HEAD_OF_ONE_RANK("1f1b", "2", "2") "rank 0: F0@0\n", "1f1b: 2 micro-batches in steps of 2"},
    {"schedule custom stages 256 ranks 1 micro-batches 65536\n", "no line says"},
};

static void test_invalid_schedules_are_refused(void **state) {
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(refused_schedules); c++) {
    CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
    clv_err err = {0};
    clv_code code = clv_sched_parse("test", refused_schedules[c].schedule_text,
                                    strlen(refused_schedules[c].schedule_text), &s, &err);
    if (code == CLV_OK) code = clv_sched_check(s, NULL, &err);
    assert_int_equal(code, CLV_INVALID);
    if (!strstr(err.text, refused_schedules[c].message))
      fail_msg("\"%s\" lacks \"%s\"", err.text, refused_schedules[c].message);
    clv_sched_run run;
    if (s) assert_int_equal(clv_sched_simulate(s, NULL, false, &run, &err), CLV_INVALID);
  }
}

/* Refuses sizes that a caller could set without the parser. */
static void test_hostile_values_are_refused(void **state) {
  clv_sched_shape shape = make_shape(2, 2, 2);
  clv_err err;
  (void)state;
  static const struct {
    clv_instr hostile_instr;
    const char *message;
  } cases[] = {
      {{.kind = CLV_INSTR_KINDS}, "there is no instruction 9"},
      {{.kind = 255, .stage = 65535, .micro_batch = UINT32_MAX}, "there is no instruction 255"},
      {{.stage = 2}, "there are 2 stages"},
      {{.stage = 65535}, "there are 2 stages"},
      {{.micro_batch = 2}, "there are 2 micro-batches"},
      {{.micro_batch = UINT32_MAX}, "there are 2 micro-batches"}};
  for (size_t c = 0; c < CLV_COUNT(cases); c++) {
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
    s->instrs[0][0] = cases[c].hostile_instr;
    assert_int_equal(clv_sched_check(s, NULL, &err), CLV_INVALID);
    assert_non_null(strstr(err.text, cases[c].message));
  }
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
  s->kind = (clv_sched_kind)99;
  assert_int_equal(clv_sched_check(s, NULL, &err), CLV_INVALID);
  s->kind = CLV_SCHED_1F1B;
  s->shape.stage_rank[1] = 2;
  assert_int_equal(clv_sched_check(s, NULL, &err), CLV_INVALID);
  s->shape.stage_rank[1] = 1, s->shape.n_micro_batches = 0;
  assert_int_equal(clv_sched_check(s, NULL, &err), CLV_INVALID);
}

/* Checks 16 stages and 64 micro-batches of each kind. */
static void test_large_schedules_are_checked_in_time(void **state) {
  double time_factor = getenv("CLV_TEST_SLOW") ? atof(getenv("CLV_TEST_SLOW")) : 1;
  (void)state;
  for (int kind = 0; kind < CLV_SCHED_CUSTOM; kind++) {
    bool is_interleaved = kind == CLV_SCHED_INTERLEAVED;
    clv_sched_shape shape = make_shape(16, is_interleaved ? 8 : 16, 64);
    shape.n_accumulate = kind == CLV_SCHED_PIPEDREAM_2BW ? 16 : 0;
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule((clv_sched_kind)kind, &shape, 0, NULL);
    clv_sched_report r;
    uint64_t begin = clv_now_ns();
    ok(clv_sched_check(s, &r, err));
    double ms = (double)(clv_now_ns() - begin) / 1e6;
    if (ms > 200 * time_factor) fail_msg("%s: %.1f ms", clv_sched_name((clv_sched_kind)kind), ms);
  }
}

static void test_random_valid_schedules_pass(void **state) {
  (void)state;
  for (uint64_t round = 1; round <= 1000; round++) {
    uint64_t seed = round;
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_random_schedule(&seed);
    clv_sched_costs costs;
    clv_sched_report r;
    clv_err err;
    if (clv_sched_check(s, &r, &err) != CLV_OK) fail_msg("seed %u: %s", (unsigned)round, err.text);
    clv_sched_costs_set_equal(&costs, 1, 1, 1);
    simulate_schedule(s, &costs);
  }
}

/* True if an error text names the rank, the instruction and the stage. */
static bool is_located(const char *text) {
  return strstr(text, "rank ") && strstr(text, ", instruction ") && strstr(text, "of stage ");
}

static void test_damaged_schedules_are_refused_with_a_place(void **state) {
  uint32_t n_valid = 0;
  (void)state;
  for (uint64_t round = 1; round <= 3000; round++) {
    uint64_t seed = round * 7919;
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_random_schedule(&seed);
    clv_sched_costs costs;
    clv_err err = {0};
    for (uint32_t n = 1 + draw_below(&seed, 3); n > 0; n--) damage_schedule(s, &seed);
    clv_sched_costs_set_equal(&costs, 1, 1, 1);
    if (clv_sched_check(s, NULL, &err) == CLV_OK) {
      simulate_schedule(s, &costs);
      n_valid++;
    } else if (!is_located(err.text)) {
      fail_msg("seed %u: \"%s\" names no place", (unsigned)round, err.text);
    }
  }
  print_message("%u of 3000 damaged schedules are still valid\n", n_valid);
  assert_in_range(n_valid, 1, 1500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hand_written_schedules_are_valid),
      cmocka_unit_test(test_version_counts_match_hand_computation),
      cmocka_unit_test(test_versions_within_a_window_are_counted),
      cmocka_unit_test(test_invalid_schedules_are_refused),
      cmocka_unit_test(test_hostile_values_are_refused),
      cmocka_unit_test(test_large_schedules_are_checked_in_time),
      cmocka_unit_test(test_random_valid_schedules_pass),
      cmocka_unit_test(test_damaged_schedules_are_refused_with_a_place),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
