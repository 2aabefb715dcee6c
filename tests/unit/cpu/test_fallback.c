/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ops the cpu backend leaves to ref, by name.
 */
#include <string.h>

#include "kernels/ops/ops.h"
#include "tests/unit/cpu/cpu_test.h"

/* Small where they stand, or for tests. */
static const char *const expected[] = {"softmax", "log_softmax", "cross_entropy",   "nll",
                                       "mse",     "bce",         "bce_with_logits", "wait"};

static bool is_expected(const char *name) {
  for (size_t i = 0; i < CLV_COUNT(expected); i++)
    if (strcmp(expected[i], name) == 0) return true;
  return false;
}

static void test_ops_of_ref(void **state) {
  (void)state;
  size_t n = 0;
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op);
    if (!def || clv_backend_cpu()->has((clv_op)op)) continue;
    n++;
    if (!is_expected(def->name))
      fail_msg("%s falls back to ref and is not in the list of this test", def->name);
  }
  assert_int_equal(n, CLV_COUNT(expected));
}

static void test_unknown_numbers(void **state) {
  (void)state;
  assert_false(clv_backend_cpu()->has(CLV_OP_INPUT));
  assert_false(clv_backend_cpu()->has(CLV_OP_COUNT));
  assert_false(clv_backend_cpu()->has((clv_op)-1));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops_of_ref),
                                     cmocka_unit_test(test_unknown_numbers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
