/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one test for each op. If the file of an op's cases is missing or wrong, its test fails.
 */
#ifndef CLEAVE_EACH_OP_H
#define CLEAVE_EACH_OP_H

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/ops/cases_int.h"

typedef struct each_op {
  clv_op op;
  void (*test_fn)(clv_op op);
} each_op;

static inline void run_one_op(void **state) {
  const each_op *e = *state;
  const char *problem = files[e->op].problem;
  if (problem[0]) fail_msg(CASES_FOLDER "/%s.cases: %s", clv_op_name(e->op), problem);
  e->test_fn(e->op);
}

static inline void every_cases_file_belongs_to_an_op(void **state) {
  char name[300];
  (void)state;
  if (find_file_without_op(CASES_FOLDER, ".cases", name))
    fail_msg(CASES_FOLDER "/%s.cases: no op is called so", name);
}

/* Makes malloc keep freed memory. Each run of a case takes and frees the same few buffers, which
 * the operating system would have to clear each time. */
static inline void keep_freed_memory(void) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/* Reads the cases. Then runs a test named GROUP_OP for each op, or for the ops on the command line.
 * Returns the number of failed tests. */
static inline int run_each_op(const char *group, void (*test)(clv_op op), char **wanted_ops) {
  static each_op ops[CLV_OP_COUNT];
  static char names[CLV_OP_COUNT][48];
  struct CMUnitTest tests[CLV_OP_COUNT] = {cmocka_unit_test(every_cases_file_belongs_to_an_op)};
  size_t n = 1;
  keep_freed_memory();
  read_all_cases();
  for (int op = 0; (op = get_next_op(op)) < CLV_OP_COUNT;) {
    bool is_wanted = !wanted_ops[1];
    for (char **name = wanted_ops + 1; !is_wanted && *name; name++)
      is_wanted = strcmp(*name, clv_op_name((clv_op)op)) == 0;
    if (!is_wanted) continue;
    ops[op] = (each_op){(clv_op)op, test};
    snprintf(names[op], sizeof names[op], "%s_%s", group, clv_op_name((clv_op)op));
    tests[n++] = (struct CMUnitTest){names[op], run_one_op, NULL, NULL, &ops[op]};
  }
  return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}

#endif
