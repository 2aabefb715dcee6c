/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda backend on the simulated device against ref, over the whole case table; and the same
 * bits whatever the order in which the device does what it is asked.
 */
#include "tests/gpu/sim.h"
#include "tests/ops/compare_int.h"

/* A sanitizer is slow, and finds in a small case what it finds in a big one. */
static bool too_big(const op_case *c) { return CLV_SANITIZED && !c->small; }

static clv_backend *opened(uint64_t seed, bool no_cudnn) {
  clv_backend *b;
  clv_err err;
  const clv_vendor *v = clv_sim_vendor(&(clv_sim_options){.seed = seed, .no_cudnn = no_cudnn});
  must(clv_cuda_open(v, 0, &b, &err), &err);
  return b;
}

static void closed(const op_case *c, clv_backend *b) {
  clv_cuda_close(b);
  if (clv_sim_leaks()) fail_msg("%s: something is left on the device", c->name);
}

static uint64_t waits(void) {
  clv_sim_counts c = clv_sim_count();
  return c.waits + c.takes + c.host_takes;
}

/* Of the ways a kernel may go: odd seeds are of a device without cuDNN. */
static bool has_ways(const op_case *c) {
  return c->d.op == CLV_OP_CONV2D || c->d.op == CLV_OP_LSTM;
}

/* A run on a device of its own; false where the backend has no kernel. */
static bool run_cuda(const op_case *c, uint64_t seed, const run_options *with, values *ret,
                     const char **ret_impl) {
  run_options o = *with;
  clv_backend *b = opened(seed, seed & 1);
  o.backend = b;
  o.dtype = CLV_F32;
  o.waits = waits;
  bool ran = run_on(c, &o, ret, ret_impl);
  closed(c, b);
  return ran;
}

/* Parameter gradients added to ones, as those of the second micro-batch are to the first's. */
static void check_added(const op_case *c, uint64_t way, double *worst) {
  run_options o = {.backend = clv_backend_ref(), .dtype = CLV_F32, .accumulate = true};
  values want, got;
  const char *impl = "?";
  run_on(c, &o, &want, NULL);
  run_cuda(c, 2 + way, &o, &got, &impl);
  *worst = fmax(*worst, compare(c, impl, &want, &got));
  values_done(&want);
  values_done(&got);
}

/* Big cases once more alone. */
static void check_again(const op_case *c, uint64_t way, const values *got) {
  static const struct {
    uint64_t seed;
    bool in_place;
    const char *now;
  } runs[] = {
      {2, false, "in another order"}, {4, false, "in a third order"}, {6, true, "in place"}};
  size_t first = CLV_SANITIZED || !c->small ? CLV_COUNT(runs) - 1 : 0;
  for (size_t i = first; i < CLV_COUNT(runs); i++) {
    values again;
    const char *impl = "?";
    run_cuda(c, runs[i].seed + way, &(run_options){.in_place = runs[i].in_place}, &again, &impl);
    same_bits(c, impl, runs[i].now, got, &again);
    values_done(&again);
  }
}

static bool check_way(const op_case *c, uint64_t way, double *worst) {
  run_options o = {.backend = clv_backend_ref(), .dtype = CLV_F32};
  const char *impl = "?";
  values want, got;
  run_on(c, &o, &want, NULL);
  bool ran = run_cuda(c, way, &(run_options){0}, &got, &impl);
  if (ran) {
    *worst = fmax(*worst, compare(c, impl, &want, &got));
    check_again(c, way, &got);
    if (c->d.need_dw) check_added(c, way, worst);
  }
  values_done(&want);
  values_done(&got);
  return ran;
}

static bool check_case(const op_case *c, double *worst) {
  bool ran = check_way(c, 0, worst);
  if (has_ways(c)) check_way(c, 1, worst);
  return ran;
}

static void test_op(clv_op op) {
  int n = 0;
  double worst = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || too_big(&cases[i])) continue;
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
