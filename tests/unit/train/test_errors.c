/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how the trainer converts errors that workers report: which of them are the loss of a
 * worker, from which a run recovers.
 */
#include <stdio.h>
#include <string.h>

#include "master/train/train_int.h"
#include "tests/unit/scratch.h"

static clv_remote_spec workers[] = {{.name = "w1"}, {.name = "w2"}};
static clv_session_config config = {.workers = workers, .n_workers = CLV_COUNT(workers)};

/* Converts an error of worker w1. Returns the worker that is lost; "": none. */
static const char *convert(clv_code *ret, bool is_reported, cleave_status status,
                           const char *place) {
  static clv_trainer t;
  t = (clv_trainer){.config = &config};
  clv_err err;
  cleave_error reason = {.status = status, .reported = is_reported, .node = "w1"};
  snprintf(reason.place, sizeof reason.place, "%s", place);
  snprintf(reason.text, sizeof reason.text, "the link to %s ended", place);
  *ret = clv_trainer_convert_error(&t, &reason, &err);
  return t.lost_worker;
}

static void reported_link_to_another_worker_is_its_loss(void **state) {
  (void)state;
  clv_code code;
  assert_string_equal(convert(&code, true, CLEAVE_UNAVAILABLE, "w2"), "w2");
  assert_int_equal(code, CLV_UNAVAILABLE);
}

static void other_reports_of_a_worker_are_no_loss(void **state) {
  (void)state;
  const struct {
    cleave_status status;
    const char *place;
  } reports[] = {{CLEAVE_UNAVAILABLE, "w1"},   {CLEAVE_UNAVAILABLE, "w9"}, {CLEAVE_UNAVAILABLE, ""},
                 {CLEAVE_UNAVAILABLE, "link"}, {CLEAVE_EXHAUSTED, "w2"},   {CLEAVE_INTERNAL, "w2"}};
  for (size_t i = 0; i < CLV_COUNT(reports); i++) {
    clv_code code;
    assert_string_equal(convert(&code, true, reports[i].status, reports[i].place), "");
    assert_int_equal(code, CLV_INTERNAL);
  }
}

static void end_of_the_masters_own_link_is_a_loss(void **state) {
  (void)state;
  clv_code code;
  assert_string_equal(convert(&code, false, CLEAVE_ABORTED, "link"), "w1");
  assert_int_equal(code, CLV_UNAVAILABLE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reported_link_to_another_worker_is_its_loss),
      cmocka_unit_test(other_reports_of_a_worker_are_no_loss),
      cmocka_unit_test(end_of_the_masters_own_link_is_a_loss),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
