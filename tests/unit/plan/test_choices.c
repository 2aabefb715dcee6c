/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which numbers of micro-batches are worth trying, and how values between measured ones are
 * interpolated.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan.h"

static void assert_choices(uint64_t batch, int64_t min_samples, uint32_t session_choice,
                           const char *want) {
  CLV_AUTO(clv_freep) uint32_t *list = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  uint32_t n = 0;
  clv_err err = {0};
  if (clv_list_micro_batch_choices(batch, min_samples, session_choice, &list, &n, &err) != CLV_OK)
    fail_msg("%s", err.text);
  for (uint32_t i = 0; i < n; i++) clv_bytes_printf(&got, "%s%u", i ? " " : "", list[i]);
  assert_string_equal(got.data, want);
}

static void micro_batch_choices_respect_the_minimum_size(void **state) {
  (void)state;
  assert_choices(1, 1, 0, "1");
  assert_choices(16, 1, 0, "1 2 4 8 16");
  /* 16 is no choice: 24 samples in 16 micro-batches would be 2 each, so 4 would be empty */
  assert_choices(24, 1, 0, "1 2 3 4 6 8 12 24");
  assert_choices(24, 4, 0, "1 2 3 4 6"); /* no choice has fewer than four samples */
  /* the number in the session file is a choice in any case */
  assert_choices(24, 4, 12, "1 2 3 4 6 12");
  assert_choices(37, 1, 0, "1 2 4 8 37"); /* eight micro-batches: seven of 5 and one of 2 */
  assert_choices(37, 3, 0, "1 2 4");
  assert_choices(4096, 8, 128, "1 2 4 8 16 32 64 128");
}

static void values_between_measurements_are_interpolated(void **state) {
  static const int64_t size[] = {16, 8, 2};
  static const double value[] = {10, 6, 0};
  static const struct {
    double at, want;
  } rows[] = {{99, 10}, {16, 10}, {12, 8}, {8, 6}, {5, 3}, {2, 0}, {1, 0}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    assert_true(clv_interpolate_linearly(size, value, 3, rows[i].at) == rows[i].want);
  assert_true(clv_interpolate_linearly(size, value, 1, 3) == 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(micro_batch_choices_respect_the_minimum_size),
      cmocka_unit_test(values_between_measurements_are_interpolated)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
