/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the estimate of a run's remaining time, which is part of its progress lines.
 */
#include <math.h>

#include "master/report/report.h"
#include "tests/unit/scratch.h"

static int setup(void **state) {
  if (scratch_setup(state) != 0) return -1;
  return chdir(scratch);
}

static void durations_are_formatted_briefly(void **state) {
  static const struct {
    double s;
    const char *text;
  } cases[] = {{0, "0s"},        {0.4, "0s"},     {59.4, "59s"},   {60, "1m00s"},    {200, "3m20s"},
               {3599, "59m59s"}, {3600, "1h00m"}, {7500, "2h05m"}, {1e6, "277h46m"}, {-1, ""},
               {NAN, ""},        {INFINITY, ""},  {1e300, ""}};
  char text[CLV_DURATION_TEXT_BYTES];
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++)
    assert_string_equal(clv_format_duration(cases[i].s, text), cases[i].text);
}

/* Stores the run's output after `steps` of `total` steps, as text and as JSON. */
static void print_progress(uint64_t steps, uint64_t total, clv_bytes *ret_text,
                           clv_bytes *ret_json) {
  clv_journal *journal = NULL;
  clv_reporter *r = NULL;
  clv_err err = {0};
  assert_ok(clv_journal_open(".", false, (clv_notifier){0}, &journal, &err), &err);
  const clv_report_options o = {.run_dir = ".", .steps_per_line = 2, .journal = journal};
  assert_ok(clv_reporter_open(&o, &r, &err), &err);
  for (uint64_t step = 1; step <= steps; step++) {
    const clv_progress p = {.step = step,
                            .total_steps = total,
                            .accuracy = -1,
                            .n_samples = 4,
                            .changed_weights = true};
    assert_ok(clv_reporter_step(r, &p, &err), &err);
  }
  clv_reporter_close(r);
  clv_journal_close(journal);
  assert_ok(clv_file_read(CLV_JOURNAL_TEXT, 1 << 20, ret_text, &err), &err);
  assert_ok(clv_file_read(CLV_JOURNAL_JSON, 1 << 20, ret_json, &err), &err);
}

static void remaining_time_is_printed_only_when_known(void **state) {
  static const struct {
    uint64_t steps, total;
    bool prints_eta;
  } cases[] = {{2, 1000, true}, {2, 2, false}, {2, 0, false}, {2, UINT64_MAX, false}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
    print_progress(cases[i].steps, cases[i].total, &text, &json);
    assert_non_null(strstr(text.data, "step 2"));
    assert_int_equal(strstr(text.data, "  eta ") != NULL, cases[i].prints_eta);
    assert_int_equal(strstr(json.data, "\"eta_s\":") != NULL, cases[i].prints_eta);
  }
}

static void evaluation_line_has_step_and_epoch(void **state) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_reporter *r = NULL;
  clv_err err = {0};
  const clv_report_options o = {.run_dir = ".", .steps_per_line = 2};
  const clv_evaluation e = {
      .dataset = "validation", .step = 20, .epoch = 1, .n_samples = 4, .loss = 0.5, .accuracy = -1};
  (void)state;
  assert_ok(clv_reporter_open(&o, &r, &err), &err);
  assert_ok(clv_reporter_evaluation(r, &e, &err), &err);
  clv_reporter_close(r);
  assert_ok(clv_file_read("evaluations.jsonl", 1 << 20, &line, &err), &err);
  assert_string_equal(
      line.data, "{\"step\":20,\"epoch\":1,\"event\":\"validation\",\"loss\":0.5,\"samples\":4}\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(durations_are_formatted_briefly),
      cmocka_unit_test(remaining_time_is_printed_only_when_known),
      cmocka_unit_test(evaluation_line_has_step_and_epoch),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
