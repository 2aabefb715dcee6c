/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu backend against ref, in f32, over the whole case table; and what cpu promises alone: the
 * same bits whatever layout its neighbours offer, and again when run again.
 */
#include "tests/long.h"
#include "tests/ops/compare_int.h"

/* Results of ref: those of the case, and those with parameter gradients added to ones, as the
 * second micro-batch adds to the first. */
enum { PLAIN, ADDED, WANTED };

static void check_gradients_added_to_ones(const op_case *c, int threads, const values *want,
                                          double *worst) {
  run_options o = {.backend = clv_backend_cpu(),
                   .dtype = CLV_F32,
                   .has_accumulation = true,
                   .n_threads = threads};
  values got;
  const char *impl = "?";
  run_case_on_drawn(c, &o, &got, &impl);
  *worst = fmax(*worst, print_distances(c, impl, want, &got));
  free_values(&got);
}

/* Checks a case with a number of threads. Returns false if cpu has no kernel for it. */
static bool check_threads(const op_case *c, int threads, const values *want, double *worst) {
  static const int offers[] = {1, 8, 16, 1};
  static const char *const offered[] = {"", "with block 8", "with block 16", "again"};
  run_options o = {
      .backend = clv_backend_cpu(), .dtype = CLV_F32, .offered_block = 1, .n_threads = threads};
  const char *impl = "?";
  values got, again;
  bool ran = run_case_on_drawn(c, &o, &got, &impl);
  if (ran) *worst = fmax(*worst, print_distances(c, impl, &want[PLAIN], &got));
  for (size_t i = 1; i < CLV_COUNT(offers) && ran; i++) {
    o.offered_block = offers[i];
    run_case_on_drawn(c, &o, &again, &impl);
    assert_same_bits(c, impl, offered[i], &got, &again);
    free_values(&again);
  }
  if (ran && c->d.need_dw) check_gradients_added_to_ones(c, threads, &want[ADDED], worst);
  if (threads == 1) print_message("  %-20s %s\n", c->name, ran ? impl : "(ref)");
  free_values(&got);
  return ran;
}

/* Checks a case with one thread, unless it is big, and with two. In `make long` with one always. */
static bool check_case(const op_case *c, double *worst) {
  values want[WANTED];
  int n = c->d.need_dw ? WANTED : ADDED;
  for (int i = 0; i < n; i++)
    run_case_on_drawn(
        c,
        &(run_options){
            .backend = clv_backend_ref(), .dtype = CLV_F32, .has_accumulation = i == ADDED},
        &want[i], NULL);
  bool both = c->is_small || is_long();
  bool has = (!both || check_threads(c, 1, want, worst)) && check_threads(c, 2, want, worst);
  for (int i = 0; i < n; i++) free_values(&want[i]);
  return has;
}

/* Fails if cpu leaves a case to ref without saying so, since a backend without kernels would pass
 * every comparison. */
static void check_fallback(const op_case *c, bool ran) {
  const op_file *f = &files[c->d.op];
  bool expected = !f->has_no_cpu_kernel && (!f->has_cpu_for_images_only || c->d.in[0].rank == 4);
  if (ran != expected)
    fail_msg("%s: cpu has %s kernel for it, but " CASES_FOLDER "/%s.cases says %s", c->name,
             ran ? "a" : "no", clv_op_name(c->d.op),
             f->has_no_cpu_kernel         ? "'cpu: ref'"
             : f->has_cpu_for_images_only ? "'cpu: images'"
                                          : "nothing of a fallback ('cpu: ref')");
}

static void test_op(clv_op op) {
  int ran = 0, left = 0;
  double worst = 0;
  if (clv_backend_cpu()->has(op) == files[op].has_no_cpu_kernel)
    fail_msg("cpu has %s kernel for %s, but " CASES_FOLDER "/%s.cases %s 'cpu: ref'",
             files[op].has_no_cpu_kernel ? "a" : "no", clv_op_name(op), clv_op_name(op),
             files[op].has_no_cpu_kernel ? "says" : "lacks");
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op) continue;
    bool has = check_case(&cases[i], &worst);
    check_fallback(&cases[i], has);
    ran += has;
    left += !has;
  }
  print_message("%-16s cpu against ref: %d cases, largest distance %.1e; %d fall back to ref\n",
                clv_op_name(op), ran, worst, left);
  assert_true(ran + left > 0);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("pair", test_op, argv);
}
