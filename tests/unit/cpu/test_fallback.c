/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that a number which is not the number of any op has no kernel, and how a node names its
 * processor. tests/ops/test_pair.c tests which ops the cpu backend leaves to ref (`cpu: ref` in
 * their cases).
 */
#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/onednn_int.h"
#include "tests/unit/cpu/cpu_test.h"

static void test_unknown_op_has_no_cpu_kernel(void **state) {
  (void)state;
  assert_false(clv_backend_cpu()->has(CLV_OP_INPUT));
  assert_false(clv_backend_cpu()->has(CLV_OP_COUNT));
  assert_false(clv_backend_cpu()->has((clv_op)-1));
}

/* Each instruction set has matrix products of its own, so each needs a distinct name. The first two
 * entries of the list, 0 and UINT32_MAX, are no known set and share a name. */
static void test_each_isa_has_a_distinct_name(void **state) {
#define NAME(isa) clv_cpu_isa_name(dnnl_cpu_isa_##isa, true),
  const char *names[] = {
      clv_cpu_isa_name(0, false),
      clv_cpu_isa_name(UINT32_MAX, true),
      /* the names on a system that permits AMX, and the name of AMX on one that refuses it */
      CPU_ISAS(NAME) clv_cpu_isa_name(dnnl_cpu_isa_avx512_core_amx, false),
  };
  (void)state;
  assert_string_equal(names[0], names[1]);
  for (size_t i = 1; i < CLV_COUNT(names); i++)
    for (size_t j = i + 1; j < CLV_COUNT(names); j++)
      assert_int_not_equal(strcmp(names[i], names[j]), 0);
}

static void test_reported_isa_agrees_with_amx_support(void **state) {
  (void)state;
  const char *isa = clv_backend_isa(clv_backend_cpu());
  bool names_amx = strstr(isa, "amx") && !strstr(isa, "refused");
  assert_true(names_amx == clv_cpu_has_amx());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unknown_op_has_no_cpu_kernel),
      cmocka_unit_test(test_each_isa_has_a_distinct_name),
      cmocka_unit_test(test_reported_isa_agrees_with_amx_support),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
