/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the cuda backend on the simulated device with ref, over the whole table of cases. Checks
 * that the bits do not depend on the order in which the device runs its operations.
 */
#include "tests/gpu/sim.h"
#include "tests/long.h"
#include "tests/ops/compare_int.h"
#include "tests/sanitized.h"

/* True if the case is left out because thread sanitizer is slow. A small case shows the same
 * races. */
static bool is_too_big(const op_case *c) { return CLV_THREAD_SANITIZED && !c->is_small; }

static clv_backend *open_device(uint64_t seed, bool no_cudnn) {
  clv_backend *b;
  clv_err err;
  const clv_vendor *v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .no_cudnn = no_cudnn});
  must(clv_cuda_open(v, 0, &b, &err), &err);
  return b;
}

static void close_device(const op_case *c, clv_backend *b) {
  clv_cuda_close(b);
  if (clv_sim_count_leaks()) fail_msg("%s: something is left on the device", c->name);
}

static uint64_t count_waits(void) {
  clv_sim_counts c = clv_sim_get_counts();
  return c.n_waits + c.n_allocations + c.n_host_allocations;
}

/* True if the op has one kernel with and another without cuDNN, so that both must be tested. */
static bool has_several_kernels(const op_case *c) {
  bool is_convolution = c->d.attrs.out && c->d.attrs.kernel[0];
  return is_convolution || c->d.op == CLV_OP_LSTM;
}

/* Runs the case on a new device; without cuDNN if the seed is odd. Returns false if the backend has
 * no kernel for the case. */
static bool run_cuda(const op_case *c, uint64_t seed, const run_options *options, values *ret,
                     const char **ret_impl) {
  run_options o = *options;
  clv_backend *b = open_device(seed, seed & 1);
  o.backend = b;
  o.dtype = CLV_F32;
  o.count_waits = count_waits;
  bool has_run = run_case_on_drawn(c, &o, ret, ret_impl);
  close_device(c, b);
  return has_run;
}

/* Indexes of ref's results. ADDED_RESULT: parameter gradients are added to ones, as a second
 * micro-batch adds its gradients to those of the first. */
enum { PLAIN_RESULT, ADDED_RESULT, N_EXPECTED };
static const run_options result_options[N_EXPECTED] = {{0}, {.has_accumulation = true}};

static void check_gradients_added_to_ones(const op_case *c, uint64_t no_cudnn, const values *want,
                                          double *worst) {
  values got;
  const char *impl = "?";
  run_cuda(c, 6 + no_cudnn, &result_options[ADDED_RESULT], &got, &impl);
  *worst = fmax(*worst, print_distances(c, impl, want, &got));
  free_values(&got);
}

/* Runs the case as the first layer of a model, where no gradient of the inputs is needed. */
static void check_as_first_layer(const op_case *c, uint64_t no_cudnn, const values *want,
                                 double *worst) {
  op_case first_layer = *c;
  values got;
  const char *impl = "?";
  memset(first_layer.d.need_dx, 0, sizeof first_layer.d.need_dx);
  run_cuda(&first_layer, no_cudnn, &result_options[PLAIN_RESULT], &got, &impl);
  *worst = fmax(*worst, print_distances(&first_layer, impl, want, &got));
  free_values(&got);
}

/* Runs the case with other orders of the device's operations and in place, which must give the same
 * bits: small cases once in `make test` and twice in `make long`, big cases once in `make long`. */
static void check_repeated_runs(const op_case *c, uint64_t no_cudnn, const values *got) {
  static const struct {
    uint64_t seed;
    bool is_in_place;
    const char *label;
  } runs[] = {{2, false, "in another order"}, {4, true, "in a third order and in place"}};
  size_t first_run = CLV_THREAD_SANITIZED || !c->is_small || !is_long() ? CLV_COUNT(runs) - 1 : 0;
  for (size_t i = first_run; i < CLV_COUNT(runs); i++) {
    values repeated;
    const char *impl = "?";
    run_cuda(c, runs[i].seed + no_cudnn, &(run_options){.is_in_place = runs[i].is_in_place},
             &repeated, &impl);
    assert_same_bits(c, impl, runs[i].label, got, &repeated);
    free_values(&repeated);
  }
}

static bool check_kernel_choice(const op_case *c, uint64_t no_cudnn, const values *want,
                                double *worst) {
  const char *impl = "?";
  values got;
  bool has_run = run_cuda(c, no_cudnn, &result_options[PLAIN_RESULT], &got, &impl),
       checks_more = c->is_small || is_long();
  if (has_run) {
    *worst = fmax(*worst, print_distances(c, impl, &want[PLAIN_RESULT], &got));
    if (checks_more) check_repeated_runs(c, no_cudnn, &got);
    if (checks_more && c->d.need_dw)
      check_gradients_added_to_ones(c, no_cudnn, &want[ADDED_RESULT], worst);
    if (checks_more && c->d.need_dw) check_as_first_layer(c, no_cudnn, &want[PLAIN_RESULT], worst);
  }
  free_values(&got);
  return has_run;
}

static bool check_case(const op_case *c, double *worst) {
  values want[N_EXPECTED];
  int n = c->d.need_dw ? N_EXPECTED : ADDED_RESULT;
  for (int i = 0; i < n; i++) {
    run_options o = result_options[i];
    o.backend = clv_backend_ref();
    o.dtype = CLV_F32;
    run_case_on_drawn(c, &o, &want[i], NULL);
  }
  bool has_run = check_kernel_choice(c, 0, want, worst);
  if (has_several_kernels(c) && (c->is_small || is_long())) check_kernel_choice(c, 1, want, worst);
  for (int i = 0; i < n; i++) free_values(&want[i]);
  return has_run;
}

/* `make test` runs every other big case of an op, beginning with the first. */
static void test_op(clv_op op) {
  int n = 0, n_big = 0;
  double worst = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || is_too_big(&cases[i])) continue;
    if (!cases[i].is_small && n_big++ % 2 && !is_long()) continue;
    if (!check_case(&cases[i], &worst)) fail_msg("%s: cuda has no kernel for it", cases[i].name);
    n++;
  }
  print_message("%-16s cuda against ref: %d cases, largest distance %.1e\n", clv_op_name(op), n,
                worst);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("cuda", test_op, argv);
}
