/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops that one kernel of the cuda backend does together, on the simulated device: the bits of the
 * ops apart, whatever the order in which the device does what it is asked; and how many launches a
 * step is.
 */
#include <math.h>

#include "tests/gpu/sim.h"
#include "tests/unit/graph/plan_test.h"

static clv_backend *opened(uint64_t seed) {
  clv_backend *b;
  const clv_vendor *v = clv_sim_vendor(&(clv_sim_options){.seed = seed});
  assert_ok(clv_cuda_open(v, 0, &b, err));
  return b;
}

static clv_backend *apart; /* whose kernels are asked for each op alone */

static clv_code apart_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                              clv_err *err) {
  if (d->tail) return clv_fail(err, CLV_UNIMPLEMENTED, "each op alone");
  return apart->prepare(b, d, ret, err);
}

static clv_backend alone(clv_backend *b) {
  clv_backend each = *b;
  apart = b;
  each.prepare = apart_prepare;
  return each;
}

static int count_in(const rig *r, const char *word) {
  clv_bytes text = {0};
  int n = 0;
  clv_plan_describe(r->plan, &text);
  for (const char *p = text.data; (p = strstr(p, word)); p++) n++;
  clv_bytes_done(&text);
  return n;
}

/* ---- the bits -------------------------------------------------------------------------------- */

typedef clv_graph *graph_fn(void);

/* Normalisations with a relu behind them, with something added on either side, and one that
 * somebody else reads. */
static clv_graph *residual(void) {
  int x, y, z;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(3, 2, 3, 5), &x);
  x = add_plain(g, CLV_OP_RELU, 2, add_norm(g, 0, x, 4, 1));
  y = add_node(g, CLV_OP_ADD, 5, add_norm(g, 3, x, 4, 1), x, NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 6, y);
  y = add_node(g, CLV_OP_ADD, 9, x, add_norm(g, 7, x, 4, 1), NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 10, y);
  z = add_norm(g, 11, x, 4, 1);
  add_node(g, CLV_OP_ADD, 14, add_plain(g, CLV_OP_RELU, 13, z), z, NULL, 0);
  return g;
}

/* What two steps leave, in host memory. */
typedef struct outcome {
  char *v[4];
  size_t bytes[4];
} outcome;

static void keep(outcome *o, int i, const void *from, size_t bytes) {
  o->bytes[i] = bytes;
  o->v[i] = take(bytes);
  memcpy(o->v[i], from, bytes);
}

static void two_steps(graph_fn *graph, const rig_options *o, bool with_nan, outcome *ret) {
  rig r = rig_new(graph(), o);
  if (with_nan) ((float *)r.in[0])[7] = NAN;
  step(&r);
  step(&r); /* finds what the first left */
  *ret = (outcome){0};
  keep(ret, 0, r.out, r.out_bytes);
  keep(ret, 1, r.block, r.params->total_bytes);
  keep(ret, 2, r.din[0], o->evaluation ? 0 : r.in_bytes[0]);
  keep(ret, 3, r.grads, o->evaluation ? 0 : r.params->trainable_bytes);
  rig_done(&r);
}

static void outcome_done(outcome *o) {
  for (size_t i = 0; i < CLV_COUNT(o->v); i++) free(o->v[i]);
}

/* On a device of its own, each op alone or not. */
static void on_device(graph_fn *graph, rig_options o, bool with_nan, uint64_t seed, bool each,
                      outcome *ret) {
  clv_backend *b = opened(seed), lone = alone(b);
  o.backend = each ? &lone : b;
  two_steps(graph, &o, with_nan, ret);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_leaks(), 0);
}

static void same_bits(graph_fn *graph, const rig_options *o, bool with_nan, uint64_t last_seed,
                      const char *what) {
  static const char *const names[] = {"output", "parameters", "gradient of the input", "gradients"};
  outcome a, b;
  on_device(graph, *o, with_nan, 0, true, &a);
  for (uint64_t seed = 0; seed <= last_seed; seed++) {
    on_device(graph, *o, with_nan, seed, false, &b);
    for (size_t i = 0; i < CLV_COUNT(names); i++)
      if (memcmp(a.v[i], b.v[i], a.bytes[i]))
        fail_msg("%s, order %d: %s: not the bits of the ops apart", what, (int)seed, names[i]);
    outcome_done(&b);
  }
  outcome_done(&a);
}

static void every_way(graph_fn *graph, const rig_options *frozen) {
  same_bits(graph, &(rig_options){0}, false, 2, "a step");
  same_bits(graph, &(rig_options){0}, true, 0, "a step over a NaN");
  same_bits(graph, &(rig_options){.split_backward = true}, false, 0, "weight gradients later");
  same_bits(graph, &(rig_options){.evaluation = true}, false, 0, "evaluation");
  same_bits(graph, &(rig_options){.no_input_grad = {true}}, false, 0, "no gradient of the input");
  same_bits(graph, frozen, false, 0, "frozen parts");
}

/* How often the plan says `word`, of the ops together and apart. */
static void says(graph_fn *graph, bool evaluation, const char *word, int together) {
  clv_backend *b = opened(0), lone = alone(b);
  rig all = rig_new(graph(), &(rig_options){.backend = b, .evaluation = evaluation});
  rig each = rig_new(graph(), &(rig_options){.backend = &lone, .evaluation = evaluation});
  assert_int_equal(count_in(&all, word), together);
  assert_int_equal(count_in(&each, word), 0);
  rig_done(&all);
  rig_done(&each);
  clv_cuda_close(b);
}

static void normalisations_have_tails(void **state) {
  (void)state;
  every_way(residual, &(rig_options){.frozen = {"1.weight", "4.weight", "4.bias", "8.bias"}});
  says(residual, true, "batchnorm+relu", 1);
  says(residual, true, "batchnorm+add+relu", 2);
}

/* ---- launches -------------------------------------------------------------------------------- */

static uint64_t launches_of(graph_fn *graph, bool each) {
  clv_backend *b = opened(0), lone = alone(b);
  rig r = rig_new(graph(), &(rig_options){.backend = each ? &lone : b});
  clv_sim_counts before = clv_sim_count();
  step(&r);
  clv_sim_counts after = clv_sim_count();
  rig_done(&r);
  clv_cuda_close(b);
  return after.launches + after.products - before.launches - before.products;
}

/* What tests/bench/GPU.md says of the MLP was counted by tests/gpu/predict.py. */
static void a_step_is_few_launches(void **state) {
  uint64_t together = launches_of(residual, false), each = launches_of(residual, true);
  (void)state;
  print_message("a small ResNet: %d launches, %d of the ops apart\n", (int)together, (int)each);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(normalisations_have_tails),
      cmocka_unit_test(a_step_is_few_launches),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
