/* SPDX-License-Identifier: Apache-2.0
 *
 * One test per op of the case table.
 */
#ifndef CLEAVE_EACH_OP_H
#define CLEAVE_EACH_OP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/ops/cases_int.h"

/* A test GROUP_OP for each op with cases; *state is the op. Returns how many failed. */
static inline int run_each_op(const char *group, void (*test)(void **state)) {
  static clv_op ops[CLV_OP_COUNT];
  static char names[CLV_OP_COUNT][40];
  struct CMUnitTest tests[CLV_OP_COUNT];
  size_t n = 0;
  for (int op = CLV_OP_LINEAR; op < CLV_OP_COUNT; op++) {
    if (!case_ops[op]) continue;
    ops[n] = (clv_op)op;
    snprintf(names[n], sizeof names[n], "%s_%s", group, case_ops[op]);
    tests[n] = (struct CMUnitTest){names[n], test, NULL, NULL, &ops[n]};
    n++;
  }
  return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}

#endif
