/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ops that one kernel of the cuda backend computes together (fused ops), on the simulated
 * device. Fused ops must give the same bits as separate ops, in whatever order the device runs its
 * operations. Also tests how many launches a training step has.
 */
#include <math.h>

#include "tests/gpu/sim.h"
#include "tests/unit/graph/plan_test.h"

static clv_backend *open_device(uint64_t seed) {
  clv_backend *b;
  const clv_vendor *v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed});
  assert_ok(clv_cuda_open(v, 0, &b, err));
  return b;
}

/* the tested backend, whose kernels the backend of make_unfused_backend runs one op at a time */
static clv_backend *tested_backend;

static clv_code refuse_fused_ops(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                                 clv_err *err) {
  if (d->tail || d->n_links) return clv_fail(err, CLV_UNIMPLEMENTED, "each op alone");
  return tested_backend->prepare(b, d, ret, err);
}

static clv_backend make_unfused_backend(clv_backend *b) {
  clv_backend separate = *b;
  tested_backend = b;
  separate.prepare = refuse_fused_ops;
  return separate;
}

static int count_in_plan(const rig *r, const char *word) {
  clv_bytes text = {0};
  int n = 0;
  clv_plan_describe(r->plan, &text);
  for (const char *p = text.data; (p = strstr(p, word)); p++) n++;
  clv_bytes_done(&text);
  return n;
}

/* ---- equal bits of fused and separate ops ---------------------------------------------------- */

typedef clv_graph *graph_fn(void);

/* Returns a graph of batchnorms followed by relu. Some have an addition before the relu, as its
 * left or as its right operand, and the output of one batchnorm is read twice. */
static clv_graph *make_residual(void) {
  int x, y, z;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 2, 3, 5), &x);
  x = add_plain(g, CLV_OP_RELU, 2, add_conv_and_batchnorm(g, 0, x, 4, 1));
  y = add_node(g, CLV_OP_ADD, 5, add_conv_and_batchnorm(g, 3, x, 4, 1), x, NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 6, y);
  y = add_node(g, CLV_OP_ADD, 9, x, add_conv_and_batchnorm(g, 7, x, 4, 1), NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 10, y);
  z = add_conv_and_batchnorm(g, 11, x, 4, 1);
  add_node(g, CLV_OP_ADD, 14, add_plain(g, CLV_OP_RELU, 13, z), z, NULL, 0);
  return g;
}

/* Results of two steps, in host memory. */
typedef struct outcome {
  char *v[4];
  size_t result_bytes[4];
} outcome;

static void keep_result(outcome *o, int i, const void *source, size_t bytes) {
  o->result_bytes[i] = bytes;
  o->v[i] = allocate(bytes);
  memcpy(o->v[i], source, bytes);
}

static void run_two_steps(graph_fn *graph, const rig_options *o, bool with_nan, outcome *ret) {
  rig r = make_rig(graph(), o);
  if (with_nan) ((float *)r.in[0])[7] = NAN;
  run_step(&r);
  run_step(&r); /* starts from the results of the first step */
  *ret = (outcome){0};
  keep_result(ret, 0, r.out, r.output_bytes);
  keep_result(ret, 1, r.parameter_block, r.params->total_bytes);
  keep_result(ret, 2, r.din[0], o->is_evaluation ? 0 : r.input_bytes[0]);
  keep_result(ret, 3, r.gradient_block, o->is_evaluation ? 0 : r.params->trainable_bytes);
  free_rig(&r);
}

static void free_outcome(outcome *o) {
  for (size_t i = 0; i < CLV_COUNT(o->v); i++) free(o->v[i]);
}

/* Runs two steps on a new device. is_separate: each op is a kernel of its own; else ops are
 * fused. */
static void run_on_new_device(graph_fn *graph, rig_options o, bool with_nan, uint64_t seed,
                              bool is_separate, outcome *ret) {
  clv_backend *b = open_device(seed), unfused = make_unfused_backend(b);
  o.backend = is_separate ? &unfused : b;
  run_two_steps(graph, &o, with_nan, ret);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static void assert_same_bits(graph_fn *graph, const rig_options *o, bool with_nan,
                             uint64_t last_seed, const char *label) {
  static const char *const names[] = {"output", "parameters", "gradient of the input", "gradients"};
  outcome a, b;
  run_on_new_device(graph, *o, with_nan, 0, true, &a);
  for (uint64_t seed = 0; seed <= last_seed; seed++) {
    run_on_new_device(graph, *o, with_nan, seed, false, &b);
    for (size_t i = 0; i < CLV_COUNT(names); i++)
      if (memcmp(a.v[i], b.v[i], a.result_bytes[i]))
        fail_msg("%s, order %d: %s: not the bits of the ops apart", label, (int)seed, names[i]);
    free_outcome(&b);
  }
  free_outcome(&a);
}

static void check_all_options(graph_fn *graph, const rig_options *frozen) {
  assert_same_bits(graph, &(rig_options){0}, false, 2, "a step");
  assert_same_bits(graph, &(rig_options){0}, true, 0, "a step over a NaN");
  assert_same_bits(graph, &(rig_options){.has_split_backward = true}, false, 0,
                   "weight gradients later");
  assert_same_bits(graph, &(rig_options){.is_evaluation = true}, false, 0, "evaluation");
  assert_same_bits(graph, &(rig_options){.has_no_input_grad = {true}}, false, 0,
                   "no gradient of the input");
  assert_same_bits(graph, frozen, false, 0, "frozen parts");
}

/* Asserts that the plan's text contains `word` n_fused times if ops are fused, and never if they
 * are separate. */
static void assert_plan_contains(graph_fn *graph, bool is_evaluation, const char *word,
                                 int n_fused) {
  clv_backend *b = open_device(0), unfused = make_unfused_backend(b);
  rig fused = make_rig(graph(), &(rig_options){.backend = b, .is_evaluation = is_evaluation});
  rig separate =
      make_rig(graph(), &(rig_options){.backend = &unfused, .is_evaluation = is_evaluation});
  if (count_in_plan(&fused, word) != n_fused || count_in_plan(&separate, word))
    fail_msg("'%s' is there %d times, and apart %d", word, count_in_plan(&fused, word),
             count_in_plan(&separate, word));
  free_rig(&fused);
  free_rig(&separate);
  clv_cuda_close(b);
}

static void batchnorm_is_fused_with_add_and_relu(void **state) {
  (void)state;
  check_all_options(make_residual,
                    &(rig_options){.frozen_params = {"1.weight", "4.weight", "4.bias", "8.bias"}});
  assert_plan_contains(make_residual, true, "batchnorm+relu", 1);
  assert_plan_contains(make_residual, true, "batchnorm+add+relu", 2);
}

/* Returns convolution and linear layers followed by relu: some fused, one linear layer without
 * bias, and one whose output is also read by another op. */
static clv_graph *make_layers(void) {
  int x, y;
  clv_attr_value linear_attrs[] = {make_int_attr(CLV_ATTR_OUT, 7),
                                   {.key = CLV_ATTR_BIAS, .n_ints = 1, .ints = {0}}};
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 2, 4, 5), &x);
  x = add_plain(g, CLV_OP_RELU, 1, add_conv(g, 0, x, 3, 3, 1));
  x = add_plain(g, CLV_OP_FLATTEN, 2, x);
  x = add_plain(g, CLV_OP_RELU, 4, add_linear(g, 3, x, 9));
  x = add_plain(g, CLV_OP_RELU, 6, add_node(g, CLV_OP_LINEAR, 5, x, -1, linear_attrs, 2));
  y = add_linear(g, 7, x, 5);
  x = add_linear(g, 9, add_plain(g, CLV_OP_RELU, 8, y), 5);
  x = add_linear(g, 11, add_node(g, CLV_OP_ADD, 10, x, y, NULL, 0), 4);
  add_plain(g, CLV_OP_RELU, 12, x);
  return g;
}

static void conv_and_linear_are_fused_with_relu(void **state) {
  (void)state;
  check_all_options(
      make_layers, &(rig_options){.frozen_params = {"0.weight", "3.bias", "11.weight", "11.bias"}});
  assert_plan_contains(make_layers, true, "conv2d+relu", 1);
  assert_plan_contains(make_layers, true, "linear+relu", 2);
}

static int add_scale(clv_graph *g, uint32_t layer, int x, double factor) {
  clv_attr_value v = make_real_attr(CLV_ATTR_FACTOR, factor);
  return add_node(g, CLV_OP_SCALE, layer, x, -1, &v, 1);
}

/* Returns a graph of chains of elementwise ops. Every op that can be first, inside or last in a
 * chain is in one. Some chains contain a sum: of the chain's value as left or right operand, of the
 * value and the chain's first value, or of a value that another op reads, too. A sum with a
 * broadcast value cannot be in a chain. */
static clv_graph *make_chains(void) {
  int x, y, z, w;
  clv_attr_value slice_attrs[] = {make_int_attr(CLV_ATTR_DIM, 1), make_int_attr(CLV_ATTR_STOP, 1)};
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, 7), &x);
  y = add_dropout(g, 1, add_plain(g, CLV_OP_RELU, 0, x), 0.3);
  z = add_dropout(g, 3, add_plain(g, CLV_OP_GELU, 2, y), 0.5);
  y = add_node(g, CLV_OP_ADD, 5, y, add_scale(g, 4, z, -1.5), NULL, 0);
  z = add_plain(g, CLV_OP_TANH, 7, add_plain(g, CLV_OP_SILU, 6, y));
  z = add_plain(g, CLV_OP_SIGMOID, 9, add_scale(g, 8, z, 3));
  x = add_node(g, CLV_OP_ADD, 11, z, add_linear(g, 10, x, 7), NULL, 0);
  x = add_plain(g, CLV_OP_RELU, 12, x);
  x = add_scale(g, 14, add_dropout(g, 13, x, 0.25), 2);
  z = add_plain(g, CLV_OP_TANH, 15, y);
  x = add_node(g, CLV_OP_ADD, 16, x, z, NULL, 0);
  w = add_plain(g, CLV_OP_TANH, 17, z);
  x = add_node(g, CLV_OP_ADD, 19, w, add_scale(g, 18, x, 0.5), NULL, 0);
  x = add_node(g, CLV_OP_ADD, 20, z, x, NULL, 0);
  x = add_plain(g, CLV_OP_SIGMOID, 22, add_scale(g, 21, x, 2));
  y = add_node(g, CLV_OP_SLICE, 23, x, -1, slice_attrs, 2);
  x = add_scale(g, 25, add_plain(g, CLV_OP_TANH, 24, x), 1.5);
  add_plain(g, CLV_OP_RELU, 27, add_node(g, CLV_OP_ADD, 26, x, y, NULL, 0));
  return g;
}

static void chains_of_elementwise_ops_are_fused(void **state) {
  static const char *const all[] = {" relu+dropout ",
                                    " gelu+dropout+scale+add ",
                                    " silu+tanh+scale+sigmoid ",
                                    " add+relu ",
                                    " dropout+scale+add ",
                                    " tanh+add ",
                                    " add+scale+sigmoid ",
                                    " tanh+scale "};
  (void)state;
  check_all_options(make_chains, &(rig_options){.frozen_params = {"10.weight", "10.bias"}});
  for (size_t i = 0; i < CLV_COUNT(all); i++) assert_plan_contains(make_chains, false, all[i], 2);
}

/* ---- numbers of kernel launches -------------------------------------------------------------- */

/* Returns the MLP of tests/gpu/predict.py and tests/gpu/speed/steps.c, with narrower layers. */
static clv_graph *make_mlp(void) {
  int x, target;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(8, 6), &x);
  x = add_plain(g, CLV_OP_RELU, 1, add_linear(g, 0, x, 7));
  x = add_linear(g, 4, add_plain(g, CLV_OP_RELU, 3, add_linear(g, 2, x, 7)), 3);
  assert_ok(clv_graph_add_input(g, "target", CLV_F32, &CLV_SHAPE(8, 3), &target, err));
  add_node(g, CLV_OP_MSE, 5, x, target, NULL, 0);
  return g;
}

static uint64_t count_launches_and_products(void) {
  return clv_sim_get_counts().n_launches + clv_sim_get_counts().n_products;
}

/* Takes a step of SGD over all parameters. The step's results do not matter. */
static void run_optimizer(const clv_backend *b, const rig *r) {
  clv_extent runs[64];
  size_t n = 0, n_values = r->params->total_bytes / sizeof(float);
  void *p;
  for (int i = 0; i < r->params->n; i++)
    if (r->params->list[i].trainable)
      runs[n++] = (clv_extent){r->params->list[i].offset / 4, r->params->list[i].bytes / 4};
  assert_ok(clv_backend_allocate(b, n_values * sizeof(float), &p, err));
  b->step(b, &(clv_step_args){.step_size = 1}, p, p, (float *const[CLV_OPTIM_MAX_MOMENTS]){0}, runs,
          n);
  clv_backend_free_memory(b, p);
}

/* Counts the launches of a forward, a backward and an optimiser step. is_separate: ops are not
 * fused. */
static int count_launches(graph_fn *graph, bool is_separate) {
  clv_backend *b = open_device(0), unfused = make_unfused_backend(b);
  rig r = make_rig(
      graph(), &(rig_options){.backend = is_separate ? &unfused : b, .has_no_input_grad = {true}});
  uint64_t n_before = count_launches_and_products();
  run_step(&r);
  run_optimizer(b, &r);
  uint64_t n = count_launches_and_products() - n_before;
  free_rig(&r);
  clv_cuda_close(b);
  return (int)n;
}

/* Reads the number of launches from the row of tests/bench/GPU.md that begins with `row`. */
static int read_predicted_launches(const char *row) {
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  assert_ok(clv_file_read("tests/bench/GPU.md", 1 << 20, &page, err));
  const char *at = strstr(page.data, row);
  if (!at) fail_msg("tests/bench/GPU.md has no row '%s'", row);
  return atoi(strchr(at + strlen(row), '|') + 1);
}

/* Expected launches of a step. COMMON_LAUNCHES: six for each of four convolutions with bias and
 * each of four batchnorms, minus one because the input needs no gradient; three for a relu with a
 * sum and for sums of two gradients; one for the optimiser. SEPARATE_LAUNCHES: ops that are not
 * fused add four relus and three sums. */
enum {
  COMMON_LAUNCHES = 4 * (6 + 6) - 1 + 3 + 1,
  FUSED_LAUNCHES = COMMON_LAUNCHES + 2,
  SEPARATE_LAUNCHES = COMMON_LAUNCHES + 4 * 2 + 3
};

static void step_launch_counts_match_the_predictions(void **state) {
  (void)state;
  if (count_launches(make_mlp, false) == 0) skip(); /* a real device does not count launches */
  assert_int_equal(count_launches(make_mlp, false), read_predicted_launches("| MLP:"));
  assert_int_equal(count_launches(make_mlp, true), count_launches(make_mlp, false) + 2);
  assert_int_equal(count_launches(make_residual, false), FUSED_LAUNCHES);
  assert_int_equal(count_launches(make_residual, true), SEPARATE_LAUNCHES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(batchnorm_is_fused_with_add_and_relu),
      cmocka_unit_test(conv_and_linear_are_fused_with_relu),
      cmocka_unit_test(chains_of_elementwise_ops_are_fused),
      cmocka_unit_test(step_launch_counts_match_the_predictions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
