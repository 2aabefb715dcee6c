/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests schedules as text and back, the errors of the parser, and the drawing.
 */
#include "tests/unit/sched/random_schedule.h"

static void assert_round_trip(const clv_sched *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, again = {0};
  CLV_AUTO(clv_sched_freep) clv_sched *back = NULL;
  clv_sched_format(s, &text);
  ok(clv_sched_parse("text", text.data, text.len, &back, err));
  assert_int_equal(back->kind, s->kind);
  assert_int_equal(back->window, s->window);
  assert_memory_equal(&back->shape, &s->shape, sizeof s->shape);
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) {
    assert_int_equal(back->n[r], s->n[r]);
    for (uint32_t k = 0; k < s->n[r]; k++)
      assert_memory_equal(&back->instrs[r][k], &s->instrs[r][k], sizeof(clv_instr));
  }
  clv_sched_format(back, &again);
  assert_string_equal(again.data, text.data);
}

static void test_formatted_schedule_parses_back(void **state) {
  uint64_t seed = 9;
  (void)state;
  for (int kind = 0; kind < CLV_SCHED_CUSTOM; kind++) {
    clv_sched_shape shape = make_shape(6, 3, 12);
    shape.n_accumulate = kind == CLV_SCHED_PIPEDREAM_2BW ? 4 : 0;
    CLV_AUTO(clv_sched_freep)
    clv_sched *s =
        make_schedule((clv_sched_kind)kind, &shape, kind == CLV_SCHED_1F1B ? 7 : 0, NULL);
    assert_round_trip(s);
  }
  for (int round = 0; round < 200; round++) {
    CLV_AUTO(clv_sched_freep) clv_sched *s = make_random_schedule(&seed);
    assert_round_trip(s);
  }
}

static void test_schedule_text_matches_the_literal(void **state) {
  clv_sched_shape shape = make_shape(2, 2, 2);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL, *hand = NULL;
  (void)state;
  shape.n_accumulate = 1;
  s = make_schedule(CLV_SCHED_PIPEDREAM_2BW, &shape, 0, NULL);
  clv_sched_format(s, &text);
  assert_string_equal(text.data,
                      "schedule pipedream-2bw stages 2 ranks 2 micro-batches 2 first-backward 0 "
                      "accumulate 1 window 0\n"
                      "stage 0 rank 0\n"
                      "stage 1 rank 1\n"
                      "rank 0: F0@0 sf0@0 F1@0 sf1@0 rb0@0 B0@0 S0@0 rb1@0 B1@0 S1@0\n"
                      "rank 1: rf0@1 F0@1 B0@1 sb0@1 S0@1 rf1@1 F1@1-1 B1@1 sb1@1 S1@1\n");
  /* Text written by hand: with comments, blank lines, a rank in several lines, and last numbers
   * left out. */
  static const char hand_written[] =
      "# mine\r\n\n  schedule custom stages 1 ranks 2 micro-batches 2 # two\n"
      "rank 0: F0@0\tF1@0\nstage 0 rank 0#\nrank 0: B0@0 # the rest\n\trank 0: B1@0";
  ok(clv_sched_parse("hand", hand_written, sizeof hand_written - 1, &hand, err));
  ok(clv_sched_check(hand, NULL, err));
  assert_int_equal(hand->n[0], 4);
  assert_int_equal(hand->n[1], 0);
}

#define HEAD_OF_TWO_STAGES "schedule custom stages 2 ranks 2 micro-batches 4\n"

static const struct {
  const char *schedule_text, *message;
} refused_texts[] = {
    {"", "my.sched:1:1: a schedule starts with"},
    {"\n\n# nothing\n", "my.sched:4:1: a schedule starts with"},
    {"plan custom", "my.sched:1:1: a schedule starts with"},
    {"schedule", "my.sched:1:9: nothing is no kind of schedule"},
    {"schedule 1f1v stages 1", "my.sched:1:10: 1f1v is no kind of schedule (did you mean 1f1b?)"},
    {"schedule gpipe", "my.sched:1:15: stages is expected, not the end of the line"},
    {"schedule gpipe ranks 1", "my.sched:1:16: stages is expected, not ranks"},
    {"schedule gpipe stages", "stages is expected, not the end of the line"},
    {"schedule gpipe stages x", "my.sched:1:23: stages is expected, not x"},
    {"schedule gpipe stages 1x", "stages is expected, not 1x"},
    {"schedule gpipe stages -1", "stages is expected, not -1"},
    {"schedule gpipe stages 257", "my.sched:1:23: stages is 257: at most 256 is possible"},
    {"schedule gpipe stages 99999999999999999999", "stages is expected, not 99999999999999999999"},
    {"schedule gpipe stages 1 ranks 300", "ranks is 300: at most 256"},
    {"schedule gpipe stages 1 ranks 1 micro-batches 65537",
     "micro-batches is 65537: at most 65536"},
    {"schedule gpipe stages 0 ranks 1 micro-batches 1", "are at least 1"},
    {"schedule gpipe stages 1 ranks 1 micro-batches 1 window 3",
     "first-backward is expected, not window"},
    {"schedule gpipe stages 1 ranks 1 micro-batches 1 first-backward 0 accumulate 0 window 0 x",
     "the line must end here, not go on with x"},
    {HEAD_OF_TWO_STAGES "stages 0 rank 0\n",
     "my.sched:2:1: a line starts with stage or rank, not stages"},
    {HEAD_OF_TWO_STAGES "stage 2 rank 0\n", "my.sched:2:7: a stage is 2: at most 1 is possible"},
    {HEAD_OF_TWO_STAGES "stage 0 at 0\n", "my.sched:2:9: rank is expected, not at"},
    {HEAD_OF_TWO_STAGES "stage 0 rank 2\n", "a rank is 2: at most 1"},
    {HEAD_OF_TWO_STAGES "stage 0 rank 0 rank 1\n", "my.sched:2:16: the line must end here"},
    {HEAD_OF_TWO_STAGES "stage 0 rank 0\nstage 0 rank 1\n",
     "my.sched:3:7: stage 0 has its rank already"},
    {HEAD_OF_TWO_STAGES "stage 0 rank 0\n", "no line says which rank has stage 1"},
    {HEAD_OF_TWO_STAGES "rank 0 F0@0\n", "my.sched:2:6: a rank and a colon are expected, not 0"},
    {HEAD_OF_TWO_STAGES "rank :\n", "a rank is expected, not :"},
    {HEAD_OF_TWO_STAGES "rank 2: F0@0\n", "a rank is 2: at most 1"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@0 f1@0\n", "my.sched:2:14: f1@0 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F@0\n", "F@0 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0\n", "F0 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@\n", "F0@ is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@0-\n", "F0@0- is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@0-0\n", "F0@0-0 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@0-256\n", "F0@0-256 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@0+1\n", "F0@0+1 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F99999999999@0\n", "F99999999999@0 is no instruction"},
    {HEAD_OF_TWO_STAGES "rank 0: F0@2\n", "F0@2: there are 2 stages"},
    {HEAD_OF_TWO_STAGES "rank 0: F4@0\n", "F4@0: there are 4 micro-batches"},
    {HEAD_OF_TWO_STAGES "rank 0: \x1b[31m\xff\n", "my.sched:2:9: ?[31m? is no instruction"},
};

static void test_invalid_schedule_text_is_refused(void **state) {
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(refused_texts); c++) {
    clv_sched *s = NULL;
    clv_err err = {0};
    assert_int_equal(clv_sched_parse("my.sched", refused_texts[c].schedule_text,
                                     strlen(refused_texts[c].schedule_text), &s, &err),
                     CLV_INVALID);
    assert_null(s);
    if (!strstr(err.text, refused_texts[c].message))
      fail_msg("\"%s\" lacks \"%s\"", err.text, refused_texts[c].message);
  }
}

/* ---- schedules drawn as text ----------------------------------------------------------------- */

static size_t get_longest_line_length(const char *text) {
  size_t max_len = 0;
  for (; *text; text += strcspn(text, "\n") + 1) max_len = CLV_MAX(max_len, strcspn(text, "\n"));
  return max_len;
}

static void assert_drawing(const clv_sched *s, const clv_sched_costs *c, uint32_t columns,
                           const char *const *names, const char *want) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  ok(clv_sched_draw(s, c, true, columns, names, &out, err));
  if (!strstr(out.data, want)) fail_msg("\n%s\nlacks\n%s", out.data, want);
  assert_true(get_longest_line_length(out.data) <= columns);
}

static void test_drawing_matches_the_literal(void **state) {
  static const char *const names[] = {
      "master", "gpu-1 of the far cloud, whose name is long, very long", NULL};
  clv_sched_shape shape = make_shape(3, 3, 4),
                  shape_with_loss = {
                      .n_stages = 3, .n_ranks = 2, .n_micro_batches = 2, .stage_rank = {0, 1, 0}};
  clv_sched_costs c;
  (void)state;
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_1F1B, &shape, 0, NULL);
  CLV_AUTO(clv_sched_freep) clv_sched *zb = make_schedule(CLV_SCHED_ZB_H1, &shape, 0, NULL);
  assert_drawing(s, NULL, 120, NULL,
                 "rank 0 F0F1F2........B0--F3B1--..B2--..B3--\n"
                 "rank 1 ..F0F1....B0--F2B1--F3B2--..B3--....\n"
                 "rank 2 ....F0B0--F1B1--F2B2--F3B3--........\n"
                 "F forward,");
  assert_drawing(zb, NULL, 120, NULL, "rank 1 ..F0F1..I0F2I1W0F3I2W1I3W2W3\n");
  assert_drawing(s, NULL, 40, names,
                 "master     F0F1F2........B0--F3B1--..B2-\n"
                 "gpu-1 o... ..F0F1....B0--F2B1--F3B2--..B\n"
                 "rank 2     ....F0B0--F1B1--F2B2--F3B3--.\n");
  clv_sched_costs_set_equal(&c, 0.001, 0.001, 0.001);
  c.forward_seconds[2] = c.input_grad_seconds[2] = c.weight_grad_seconds[2] = 0;
  CLV_AUTO(clv_sched_freep)
  clv_sched *at_master = make_schedule(CLV_SCHED_1F1B, &shape_with_loss, 0, &c);
  assert_drawing(at_master, &c, 80, NULL,
                 "rank 0 F0F1....B0--....B1--\nrank 1 ..F0B0--F1..B1--....\n");
  assert_drawing(at_master, &c, 80, NULL, "stages that take no time are not");
}

static void test_drawing_survives_narrow_and_extreme_schedules(void **state) {
  clv_sched_shape shape = make_shape(4, 2, 40);
  clv_sched_costs c;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  (void)state;
  CLV_AUTO(clv_sched_freep) clv_sched *s = make_schedule(CLV_SCHED_INTERLEAVED, &shape, 0, NULL);
  assert_int_equal(clv_sched_draw(s, NULL, true, 39, NULL, &out, &err), CLV_INVALID);
  assert_drawing(s, NULL, 60, NULL, "rank 0 F0a-F1a-F0b-");
  assert_drawing(s, NULL, 60, NULL, "cut off after ");
  assert_drawing(s, NULL, 60, NULL, "a, b: the");
  /* Draws a schedule without any time; then one stage that takes a thousandth of the others; then
   * the smallest numbers. */
  memset(&c, 0, sizeof c);
  assert_drawing(s, &c, 60, NULL, "rank 0 \n");
  clv_sched_costs_set_equal(&c, 1, 1, 1);
  c.forward_seconds[1] = 0.001, c.forward_seconds[2] = 0.1;
  assert_drawing(s, &c, 200, NULL, "rank 0 F0a-");
  clv_sched_costs_set_equal(&c, 5e-324, 5e-324, 5e-324);
  assert_drawing(s, &c, 60, NULL, "rank 1 ");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_formatted_schedule_parses_back),
      cmocka_unit_test(test_schedule_text_matches_the_literal),
      cmocka_unit_test(test_invalid_schedule_text_is_refused),
      cmocka_unit_test(test_drawing_matches_the_literal),
      cmocka_unit_test(test_drawing_survives_narrow_and_extreme_schedules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
