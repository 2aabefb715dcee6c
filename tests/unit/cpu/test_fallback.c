/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers that are no ops have no kernel. Which ops the cpu backend leaves to ref stands in their
 * cases (`cpu: ref`), where tests/ops/test_pair.c compares it.
 */
#include "tests/unit/cpu/cpu_test.h"

static void test_unknown_numbers(void **state) {
  (void)state;
  assert_false(clv_backend_cpu()->has(CLV_OP_INPUT));
  assert_false(clv_backend_cpu()->has(CLV_OP_COUNT));
  assert_false(clv_backend_cpu()->has((clv_op)-1));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_unknown_numbers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
