/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the cpu backend with ref, in f32, over the whole table of cases. Also tests what only
 * cpu promises: a kernel gives the same bits whatever layout the other ops of a plan offer, and in
 * a second run. In this test, attention and lstm always round their factors to bf16 if the caller
 * allows it, whatever kernels/cpu/choices_int.h says.
 */
#include "kernels/cpu/choices_int.h"
#include "tests/long.h"
#include "tests/ops/compare_int.h"

/* Indexes of ref's results. ADDED_TO_ONES: parameter gradients are added to ones, as a second
 * micro-batch adds its gradients to those of the first. */
enum { WITHOUT_ACCUMULATION, ADDED_TO_ONES, N_EXPECTED };

static void check_gradients_added_to_ones(const op_case *c, int n_threads, const values *want,
                                          double *max_distance) {
  run_options o = {.backend = clv_backend_cpu(),
                   .dtype = CLV_F32,
                   .has_accumulation = true,
                   .n_threads = n_threads};
  values got;
  const char *impl = "?";
  run_case_on_drawn(c, &o, &got, &impl);
  *max_distance = fmax(*max_distance, print_distances(c, impl, want, &got));
  free_values(&got);
}

/* Checks a case with n_threads threads. Returns false if cpu has no kernel for it. */
static bool check_threads(const op_case *c, int n_threads, const values *want,
                          double *max_distance) {
  static const int offers[] = {1, 8, 16, 1};
  static const char *const offer_names[] = {"", "with block 8", "with block 16", "again"};
  run_options o = {
      .backend = clv_backend_cpu(), .dtype = CLV_F32, .offered_block = 1, .n_threads = n_threads};
  const char *impl = "?";
  values got, repeated;
  bool has_run = run_case_on_drawn(c, &o, &got, &impl);
  if (has_run)
    *max_distance =
        fmax(*max_distance, print_distances(c, impl, &want[WITHOUT_ACCUMULATION], &got));
  for (size_t i = 1; i < CLV_COUNT(offers) && has_run; i++) {
    o.offered_block = offers[i];
    run_case_on_drawn(c, &o, &repeated, &impl);
    assert_same_bits(c, impl, offer_names[i], &got, &repeated);
    free_values(&repeated);
  }
  if (has_run && c->d.need_dw)
    check_gradients_added_to_ones(c, n_threads, &want[ADDED_TO_ONES], max_distance);
  if (n_threads == 1) print_message("  %-20s %s\n", c->name, has_run ? impl : "(ref)");
  free_values(&got);
  return has_run;
}

/* Checks a case with two threads, and with one thread unless the case is big. `make long` checks
 * big cases with one thread, too. */
static bool check_case(const op_case *c, double *max_distance) {
  values want[N_EXPECTED];
  int n = c->d.need_dw ? N_EXPECTED : ADDED_TO_ONES;
  for (int i = 0; i < n; i++)
    run_case_on_drawn(
        c,
        &(run_options){
            .backend = clv_backend_ref(), .dtype = CLV_F32, .has_accumulation = i == ADDED_TO_ONES},
        &want[i], NULL);
  bool runs_both = c->is_small || is_long();
  bool is_supported = (!runs_both || check_threads(c, 1, want, max_distance)) &&
                      check_threads(c, 2, want, max_distance);
  for (int i = 0; i < n; i++) free_values(&want[i]);
  return is_supported;
}

/* ---- cases whose factors are rounded to bf16 ------------------------------------------------- */

cpu_candidate __real_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class) {
  if (question == CPU_ATTENTION_BF16 || question == CPU_LSTM_BF16) return CPU_PAIRS;
  return __real_clv_cpu_choose(question, shape_class);
}

static bool has_own_bf16(clv_op op) {
  clv_err why;
  return (op == CLV_OP_ATTENTION || op == CLV_OP_LSTM) &&
         clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) == CLV_OK;
}

/* Checks a case whose factors are rounded to bf16 (8 bits): its results must be near ref, and have
 * the same bits with two threads as with one. Returns the largest distance. */
static double check_bf16_case(const op_case *c) {
  run_options ref_options = {.backend = clv_backend_ref(), .dtype = CLV_F32};
  run_options o = {.backend = clv_backend_cpu(), .dtype = CLV_F32, .is_bf16 = true, .n_threads = 1};
  const char *impl = "?";
  values want, one_thread, two_threads;
  double max_distance = 0;
  run_case_on_drawn(c, &ref_options, &want, NULL);
  run_case_on_drawn(c, &o, &one_thread, &impl);
  o.n_threads = 2;
  run_case_on_drawn(c, &o, &two_threads, &impl);
  assert_same_bits(c, impl, "with two threads", &one_thread, &two_threads);
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    max_distance =
        fmax(max_distance, compute_distance(one_thread.v[i], want.v[i], one_thread.n[i]));
  if (!(max_distance < 1.0 / 16))
    fail_msg("%s (%s): %.2e from ref in bf16", c->name, impl, max_distance);
  free_values(&want);
  free_values(&one_thread);
  free_values(&two_threads);
  return max_distance;
}

static void check_bf16(clv_op op) {
  double max_distance = 0;
  for (int i = 0; i < n_cases; i++)
    if (cases[i].d.op == op) max_distance = fmax(max_distance, check_bf16_case(&cases[i]));
  print_message("%-16s with bf16 factors: largest distance %.1e\n", clv_op_name(op), max_distance);
  assert_true(max_distance > 1.0 / 4096); /* shows that the factors were rounded */
}

/* Fails unless the op's file of cases says correctly whether cpu has a kernel for the case. Else a
 * backend without kernels would pass every comparison. */
static void check_fallback(const op_case *c, bool has_run) {
  const op_file *f = &files[c->d.op];
  bool has_cpu_kernel =
      !f->has_no_cpu_kernel && (!f->has_cpu_for_images_only || c->d.in[0].rank == 4);
  if (has_run != has_cpu_kernel)
    fail_msg("%s: cpu has %s kernel for it, but " CASES_FOLDER "/%s.cases says %s", c->name,
             has_run ? "a" : "no", clv_op_name(c->d.op),
             f->has_no_cpu_kernel         ? "'cpu: ref'"
             : f->has_cpu_for_images_only ? "'cpu: images'"
                                          : "nothing of a fallback ('cpu: ref')");
}

static void test_op(clv_op op) {
  int n_run = 0, n_left_to_ref = 0;
  double max_distance = 0;
  if (clv_backend_cpu()->has(op) == files[op].has_no_cpu_kernel)
    fail_msg("cpu has %s kernel for %s, but " CASES_FOLDER "/%s.cases %s 'cpu: ref'",
             files[op].has_no_cpu_kernel ? "a" : "no", clv_op_name(op), clv_op_name(op),
             files[op].has_no_cpu_kernel ? "says" : "lacks");
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op) continue;
    bool is_supported = check_case(&cases[i], &max_distance);
    check_fallback(&cases[i], is_supported);
    n_run += is_supported;
    n_left_to_ref += !is_supported;
  }
  print_message("%-16s cpu against ref: %d cases, largest distance %.1e; %d fall back to ref\n",
                clv_op_name(op), n_run, max_distance, n_left_to_ref);
  assert_true(n_run + n_left_to_ref > 0);
  if (has_own_bf16(op)) check_bf16(op);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("pair", test_op, argv);
}
