/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda backend on the simulated device where it computes in fewer bits than f32 has: near ref,
 * only where it is asked to, and the same bits in any order of the device's work.
 */
#include "tests/gpu/sim.h"
#include "tests/ops/compare_int.h"

/* What is left of 10 bits behind the point after a sum of many. */
static const double TF32_FAR = 2e-3;

static bool run_cuda(const op_case *c, const run_options *with, uint64_t seed, values *ret,
                     const char **ret_impl) {
  run_options o = *with;
  clv_backend *b;
  clv_err err;
  const clv_vendor *v = clv_sim_vendor(&(clv_sim_options){.seed = seed, .no_conv = seed & 1});
  must(clv_cuda_open(v, 0, &b, &err), &err);
  o.backend = b;
  o.dtype = CLV_F32;
  bool ran = run_on(c, &o, ret, ret_impl);
  clv_cuda_close(b);
  if (clv_sim_leaks()) fail_msg("%s: something is left on the device", c->name);
  return ran;
}

static bool has_products(clv_op op) {
  return op == CLV_OP_LINEAR || op == CLV_OP_LSTM || op == CLV_OP_CONV2D;
}

static bool finite_numbers(const values *s) {
  for (int i = 0; i < V_COUNT; i++)
    for (size_t j = 0; j < s->n[i]; j++)
      if (!isfinite(s->v[i][j])) return false;
  return true;
}

static bool same(const values *a, const values *b) {
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    if (a->n[i] && memcmp(a->v[i], b->v[i], a->n[i] * sizeof(double))) return false;
  return true;
}

static double farthest(const op_case *c, const values *got, const values *want, double most) {
  double worst = 0;
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++) {
    double far = distance(got->v[i], want->v[i], got->n[i]);
    if (!(far <= most))
      fail_msg("%s: %s is %.2e from ref", c->name, value_name(&c->d, i, (char[40]){0}), far);
    worst = fmax(worst, far);
  }
  return worst;
}

static void check_again(const op_case *c, const run_options *o, uint64_t seed, const values *got) {
  values again;
  const char *impl = "?";
  run_cuda(c, o, seed, &again, &impl);
  same_bits(c, impl, "in another order", got, &again);
  values_done(&again);
}

static void check_tf32(const op_case *c, double *worst) {
  run_options rounded = {.tf32 = true}, plain = {0};
  values want, got, exact;
  run_on(c, &(run_options){.backend = clv_backend_ref(), .dtype = CLV_F32}, &want, NULL);
  run_cuda(c, &rounded, 0, &got, NULL);
  run_cuda(c, &plain, 0, &exact, NULL);
  if (finite_numbers(&want)) {
    *worst = fmax(*worst, farthest(c, &got, &want, TF32_FAR));
    if (same(&got, &exact)) fail_msg("%s: tf32 was asked for, and nothing is rounded", c->name);
  }
  check_again(c, &rounded, 2, &got);
  check_again(c, &rounded, 4, &got);
  values_done(&want);
  values_done(&got);
  values_done(&exact);
}

static void test_op(clv_op op) {
  double worst = 0;
  int n = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].small || !has_products(op)) continue;
    check_tf32(&cases[i], &worst);
    n++;
  }
  if (n)
    print_message("%-16s in tf32: %d cases, largest distance %.1e\n", clv_op_name(op), n, worst);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("types", test_op, argv);
}
