/* SPDX-License-Identifier: Apache-2.0
 *
 * Every op against the numbers of PyTorch (tests/golden/make_golden.py): outputs and all gradients,
 * with backward accumulating and not, in place and not, with blocked layouts offered.
 */
#include "tests/golden/golden_int.h"
#include "tests/ops/run_int.h"

#include <setjmp.h>
#include <cmocka.h>

static op_case cases[MAX_CASES];
static int n_cases;
static golden numbers;

static void load(const op_case *c, values *s) {
  golden_tensor t;
  char name[32];
  for (int i = 0; i < V_COUNT; i++) {
    if (!s->n[i]) continue;
    if (!golden_find(&numbers, c->name, value_name(&c->d, i, name), &t))
      fail_msg("%s.%s is missing from the golden", c->name, value_name(&c->d, i, name));
    if (t.n != s->n[i])
      fail_msg("%s.%s has %zu values, not %zu", c->name, value_name(&c->d, i, name), t.n, s->n[i]);
    for (size_t j = 0; j < t.n; j++)
      s->v[i][j] =
          t.dtype == CLV_I64 ? (double)((const int64_t *)t.data)[j] : ((const float *)t.data)[j];
  }
}

/* 1 + g has fewer digits of g: a unit in the last place of 1 for each value. */
static double lost_by_adding(const double *g, size_t n) {
  double norm = 0;
  for (size_t i = 0; i < n; i++) norm += g[i] * g[i];
  return 0x1p-23 * sqrt((double)n / fmax(norm, 1e-30));
}

/* Compares the results of one run with the golden; returns the largest distance. */
static double compare(const op_case *c, const run_options *o, const values *want, values *got) {
  double worst = 0;
  char name[32];
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++) {
    bool added = o->accumulate && i >= V_DPARAM && i < V_AFTER;
    for (size_t j = 0; j < got->n[i] && added; j++) got->v[i][j] -= 1;
    double limit = 1e-5 + (added ? lost_by_adding(want->v[i], want->n[i]) : 0);
    double far = distance(got->v[i], want->v[i], got->n[i]);
    if (!(far <= limit))
      fail_msg("%s on %s (offered block %d%s%s): %s is %.2e from PyTorch, more than %.0e", c->name,
               o->backend->name, o->offered_block, o->in_place ? ", in place" : "",
               o->accumulate ? ", accumulating" : "", value_name(&c->d, i, name), far, limit);
    if (!added && far > worst) worst = far;
  }
  return worst;
}

static bool check(const op_case *c, const run_options *o, double *worst) {
  values want, got;
  values_init(&want, &c->d);
  values_init(&got, &c->d);
  load(c, &want);
  copy_given(&got, &want);
  bool ran = run_case(o, &c->d, &got, NULL);
  if (ran) *worst = fmax(*worst, compare(c, o, &want, &got));
  values_done(&want);
  values_done(&got);
  return ran;
}

/* All golden cases of one op on one backend. */
static void check_op(clv_op op, const clv_backend *backend, clv_dtype dtype) {
  static const struct {
    int block;
    bool in_place, accumulate;
  } ways[] = {{1, false, false}, {8, true, false}, {16, false, true}};
  int ran = 0, left = 0;
  double worst = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].golden) continue;
    bool has = true;
    for (size_t w = 0; w < CLV_COUNT(ways) && has; w++) {
      run_options o = {.backend = backend,
                       .dtype = dtype,
                       .offered_block = ways[w].block,
                       .in_place = ways[w].in_place,
                       .accumulate = ways[w].accumulate};
      has = check(&cases[i], &o, &worst);
    }
    ran += has;
    left += !has;
  }
  print_message("%-16s %s %s: %d cases, largest distance %.1e; %d fall back to ref\n", case_ops[op],
                backend->name, clv_dtype_name(dtype), ran, worst, left);
  assert_true(ran + left > 0);
  if (backend == clv_backend_ref()) assert_int_equal(left, 0);
}

static void test_ref(void **state) {
  check_op(*(clv_op *)*state, clv_backend_ref(), CLV_F32);
  check_op(*(clv_op *)*state, clv_backend_ref(), CLV_F64);
}

static void test_cpu(void **state) { check_op(*(clv_op *)*state, clv_backend_cpu(), CLV_F32); }

int main(void) {
  static clv_op ops[CLV_OP_COUNT];
  static char names[2 * CLV_OP_COUNT][40];
  struct CMUnitTest tests[2 * CLV_OP_COUNT];
  size_t n = 0;
  n_cases = cases_read(cases);
  golden_open(&numbers, "ops");
  for (int op = CLV_OP_LINEAR; op < CLV_OP_COUNT; op++) {
    if (!case_ops[op]) continue;
    ops[op] = (clv_op)op;
    snprintf(names[n], sizeof names[n], "golden_ref_%s", case_ops[op]);
    snprintf(names[n + 1], sizeof names[n + 1], "golden_cpu_%s", case_ops[op]);
    tests[n] = (struct CMUnitTest){names[n], test_ref, NULL, NULL, &ops[op]};
    tests[n + 1] = (struct CMUnitTest){names[n + 1], test_cpu, NULL, NULL, &ops[op]};
    n += 2;
  }
  int failed = _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
  golden_close(&numbers);
  return failed;
}
