/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions and linear in bf16: against ref on numbers that bf16 holds exactly, and the same
 * bits however a graph is cut or its ops are taken together.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/graph/bf16_test.h"

static bool lacks_bf16(void) {
  clv_err why;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) == CLV_OK) return false;
  print_message("because %s\n", why.text);
  return true;
}

static bool has_amx(void) {
  const char *isa = clv_backend_isa(clv_backend_cpu());
  return strstr(isa, "amx") && !strstr(isa, "refused");
}

/* ---- one convolution ------------------------------------------------------------------------- */

typedef struct conv_case {
  int64_t c, k, kernel, stride, pad, side;
} conv_case;

static const conv_case convs[] = {
    {3, 64, 7, 2, 3, 17},  {32, 64, 1, 1, 0, 9}, {64, 32, 3, 1, 1, 8}, {32, 48, 3, 2, 1, 9},
    {64, 128, 1, 2, 0, 7}, {16, 16, 5, 1, 2, 8}, {24, 40, 3, 1, 1, 6}, {16, 32, 7, 1, 3, 9},
    {48, 16, 3, 3, 0, 8},  {16, 24, 5, 2, 2, 7},
};

static rig conv_rig(const conv_case *c, const clv_backend *backend) {
  int x;
  clv_graph *g = new_graph(CLV_F32, CLV_SHAPE(3, c->c, c->side, c->side), &x);
  clv_attr_value v[] = {int_attr(CLV_ATTR_OUT, c->k), int_attr(CLV_ATTR_KERNEL, c->kernel),
                        int_attr(CLV_ATTR_STRIDE, c->stride), int_attr(CLV_ATTR_PAD, c->pad)};
  add_node(g, CLV_OP_CONV2D, 0, x, -1, v, 4);
  rig r = rig_new(g, &(rig_options){.backend = backend, .bf16 = true, .split_backward = true});
  make_exact(r.in[0], r.in_bytes[0]);
  make_exact(r.dout, r.out_bytes);
  make_exact(r.block, r.params->total_bytes);
  return r;
}

/* Runs two steps, so that the second gradient is added to the first. */
static void step_twice(rig *r) {
  for (int i = 0; i < 2; i++) {
    clv_call *c;
    assert_ok(clv_plan_call_get(r->plan, &c, err));
    forward(r, c);
    fill_scratch_with_nan(r);
    backward_input(r, c, i > 0);
    fill_scratch_with_nan(r);
    backward_weight(r, c, i > 0);
    clv_plan_call_put(r->plan, c);
  }
}

/* Sums are f32 and products are exact. Only the output is rounded, by at most one part in 256. */
static void bf16_convolution_matches_ref(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    rig a = conv_rig(&convs[i], clv_backend_cpu()), b = conv_rig(&convs[i], clv_backend_ref());
    step_twice(&a);
    step_twice(&b);
    near(a.out, b.out, a.out_bytes, 1e-4, 1.0 / 256, "output");
    near(a.din[0], b.din[0], a.in_bytes[0], 0, 1e-5, "input gradient");
    near(a.grads, b.grads, a.params->trainable_bytes, 0, 1e-5, "weight gradient");
    rig_done(&a);
    rig_done(&b);
  }
}

/* ---- one linear ------------------------------------------------------------------------------ */

typedef struct linear_case {
  clv_shape in;
  int64_t out;
  bool transposed, bare; /* transposed: stored [in, out]; bare: without a bias */
} linear_case;

#define ROWS(n, features) .in = {.rank = 2, .dim = {n, features}}
#define PLACES(n, s, features) .in = {.rank = 3, .dim = {n, s, features}}

static const linear_case linears[] = {
    {ROWS(1, 1), .out = 1},
    {ROWS(5, 33), .out = 7},
    {ROWS(64, 96), .out = 160},
    {PLACES(2, 17, 48), .out = 40},
    {PLACES(3, 100, 24), .out = 2},
    {ROWS(7, 512), .out = 1000},
    {ROWS(37, 65), .out = 50, .transposed = true},
    {PLACES(2, 16, 64), .out = 31, .bare = true},
    {ROWS(70, 9000), .out = 3}, /* more than fits in a cache */
    {ROWS(64, 32), .out = 64, .transposed = true, .bare = true},
    {ROWS(330, 64), .out = 330}, /* enough work for several threads */
    {ROWS(1300, 40), .out = 70}, /* more rows than are packed at once */
};

static rig threaded_rig(const linear_case *c, const clv_backend *backend, bool bf16, int threads) {
  int x;
  clv_graph *g = new_graph(CLV_F32, c->in, &x);
  clv_attr_value v[] = {int_attr(CLV_ATTR_OUT, c->out), int_attr(CLV_ATTR_BIAS, !c->bare),
                        int_attr(CLV_ATTR_TRANSPOSED, c->transposed)};
  add_node(g, CLV_OP_LINEAR, 0, x, -1, v, 3);
  return rig_new(
      g,
      &(rig_options){.backend = backend, .bf16 = bf16, .split_backward = true, .threads = threads});
}

static rig linear_rig(const linear_case *c, const clv_backend *backend, bool bf16) {
  return threaded_rig(c, backend, bf16, 1);
}

static void exact(rig *r) {
  make_exact(r->in[0], r->in_bytes[0]);
  make_exact(r->dout, r->out_bytes);
  make_exact(r->block, r->params->total_bytes);
}

/* Products are exact and sums are f32. */
static void bf16_linear_matches_ref(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    rig a = linear_rig(&linears[i], clv_backend_cpu(), true);
    rig b = linear_rig(&linears[i], clv_backend_ref(), true);
    exact(&a);
    exact(&b);
    step_twice(&a);
    step_twice(&b);
    near(a.out, b.out, a.out_bytes, 0, 1e-5, "output");
    near(a.din[0], b.din[0], a.in_bytes[0], 0, 1e-5, "input gradient");
    near(a.grads, b.grads, a.params->trainable_bytes, 0, 1e-5, "weight gradient");
    rig_done(&a);
    rig_done(&b);
  }
}

static void thread_count_does_not_change_bf16_bits(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    rig a = threaded_rig(&linears[i], clv_backend_cpu(), true, 1);
    rig b = threaded_rig(&linears[i], clv_backend_cpu(), true, 3);
    step_twice(&a);
    step_twice(&b);
    same(a.out, b.out, a.out_bytes, "output");
    same(a.grads, b.grads, a.params->trainable_bytes, "gradients");
    same(a.din[0], b.din[0], a.in_bytes[0], "input gradient");
    rig_done(&a);
    rig_done(&b);
  }
}

/* The bits of a row, and of its input's gradient, do not depend on the rows after it. */
static void row_bits_do_not_depend_on_the_batch(void **state) {
  static const linear_case few = {ROWS(5, 1100), .out = 70}, more = {ROWS(330, 1100), .out = 70};
  (void)state;
  if (lacks_bf16()) skip();
  rig a = linear_rig(&few, clv_backend_cpu(), true), b = linear_rig(&more, clv_backend_cpu(), true);
  memcpy(b.in[0], a.in[0], a.in_bytes[0]);
  memcpy(b.dout, a.dout, a.out_bytes);
  memcpy(b.block, a.block, a.params->total_bytes);
  step(&a);
  step(&b);
  same(a.out, b.out, a.out_bytes, "output");
  same(a.din[0], b.din[0], a.in_bytes[0], "input gradient");
  rig_done(&a);
  rig_done(&b);
}

/* Inputs that bf16 cannot represent are rounded, and so is each factor of each product. */
static void bf16_linear_rounds_its_factors(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  rig a = linear_rig(&linears[2], clv_backend_cpu(), true);
  rig b = linear_rig(&linears[2], clv_backend_cpu(), false);
  step(&a);
  step(&b);
  near(a.out, b.out, a.out_bytes, 1e-4, 1.0 / 128, "output");
  near(a.din[0], b.din[0], a.in_bytes[0], 1e-4, 1.0 / 128, "input gradient");
  near(a.grads, b.grads, a.params->trainable_bytes, 1e-4, 1.0 / 128, "weight gradient");
  rig_done(&a);
  rig_done(&b);
}

/* The gradient of a bias is summed while factors are packed, before they are rounded. */
static void bf16_bias_gradient_equals_f32(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    if (linears[i].bare) continue;
    rig a = linear_rig(&linears[i], clv_backend_cpu(), true);
    rig b = linear_rig(&linears[i], clv_backend_cpu(), false);
    const clv_param *bias = &a.params->list[CLV_SLOT_BIAS];
    step_twice(&a);
    step_twice(&b);
    same((char *)a.grads + bias->offset, (char *)b.grads + bias->offset, bias->bytes, "bias");
    rig_done(&a);
    rig_done(&b);
  }
}

/* ---- networks -------------------------------------------------------------------------------- */

static void every_cut_gives_the_same_bf16_bits(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) whole_and_cut(clv_backend_cpu(), graphs[i], 8);
}

/* How far f32 itself goes when what it is given is cut to bf16. How much a graph makes of that is
 * its own, and the processor's whose sums it has; bf16 goes no further than a few times as far, and
 * not by chance next to nowhere. */
static void within_reach(const rig *a, const rig *f, const rig *cut) {
  double out = distance(cut->out, f->out, a->out_bytes);
  double grads = distance(cut->grads, f->grads, a->params->trainable_bytes);
  near(a->out, f->out, a->out_bytes, out / 50, 4 * out, "output");
  near(a->grads, f->grads, a->params->trainable_bytes, grads / 50, 4 * grads, "gradients");
}

/* Compares fused and separate ops; the distance must be within bf16's precision. */
static void unfused_ops_give_the_same_bf16_bits(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  clv_backend apart = unfused_backend(clv_backend_cpu());
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) {
    rig a = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
    rig b = rig_new(graphs[i](3), &(rig_options){.backend = &apart, .bf16 = true});
    rig f = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    rig cut = rig_new(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    make_exact(cut.in[0], cut.in_bytes[0]);
    make_exact(cut.block, cut.params->trainable_bytes);
    step(&a);
    step(&b);
    step(&f);
    step(&cut);
    same(a.out, b.out, a.out_bytes, "output");
    same(a.din[0], b.din[0], a.in_bytes[0], "input gradient");
    same_params(&a, &b);
    within_reach(&a, &f, &cut);
    rig_done(&a);
    rig_done(&b);
    rig_done(&f);
    rig_done(&cut);
  }
}

/* A value that only convolutions and their batchnorms use is never stored in f32. */
static void bf16_values_stay_bf16_between_convolutions(void **state) {
  (void)state;
  if (lacks_bf16()) skip();
  clv_bytes text = {0};
  rig r = rig_new(wide_graph(2), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
  clv_plan_describe(r.plan, &text);
  assert_non_null(strstr(text.data, has_amx() ? "block 1 last bf16>1 last bf16, 25.0 KiB in scratch"
                                              : "block 16 bf16>16 bf16, 25.0 KiB in scratch"));
  /* at the input, its gradient (in blocks the kernel reorders that), the pool, and ops that have
   * only f32 kernels */
  assert_int_equal(steps_of(&r, "reorder"), has_amx() ? 9 : 8);
  clv_bytes_done(&text);
  rig_done(&r);
}

static clv_code refuse_bf16(const clv_backend *b, clv_err *e) {
  (void)b;
  return clv_fail(e, CLV_PRECONDITION, "not here");
}

static void bf16_without_hardware_support_is_refused(void **state) {
  (void)state;
  clv_backend none = *clv_backend_cpu();
  clv_graph *g = wide_graph(2);
  clv_params *params;
  clv_plan *plan = NULL;
  none.check_bf16 = refuse_bf16;
  clv_plan_options po = {.backend = &none, .dtype = CLV_F32, .batch = 2, .bf16 = true};
  assert_ok(clv_params_make(g, &params, err));
  clv_err why;
  assert_int_equal(clv_plan_new(g, params, &po, &plan, &why), CLV_PRECONDITION);
  assert_string_equal(why.text, "not here");
  clv_params_free(params);
  clv_graph_free(g);
}

static int run_one_step(void) {
  rig r = rig_new(wide_graph(2), &(rig_options){.backend = clv_backend_cpu(), .bf16 = true});
  step(&r);
  rig_done(&r);
  return 0;
}

/* Runs a step in a process where oneDNN prints the primitives that it executes. */
static FILE *primitives_of_a_step(void) {
  FILE *f = tmpfile();
  int status = 0;
  pid_t child = fork();
  if (!child) {
    dup2(fileno(f), STDOUT_FILENO);
    setenv("ONEDNN_VERBOSE", "1", 1);
    setenv("DNNL_VERBOSE", "1", 1);
    execl("/proc/self/exe", "test_plan_bf16", "step", (char *)NULL);
    _exit(127);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  rewind(f);
  return f;
}

/* With AMX every convolution uses it, in all three directions. */
static void convolutions_use_amx_in_all_directions(void **state) {
  static const char *const directions[] = {"forward_training", "backward_data", "backward_weights"};
  int n[CLV_COUNT(directions)] = {0};
  char line[1024];
  (void)state;
  if (!has_amx()) print_message("because oneDNN finds no AMX\n");
  if (!has_amx()) skip();
  FILE *f = primitives_of_a_step();
  while (fgets(line, sizeof line, f)) {
    if (!strstr(line, ",exec,") || !strstr(line, ",convolution,")) continue;
    if (!strstr(line, "avx512_core_amx")) fail_msg("not with AMX: %s", line);
    for (size_t i = 0; i < CLV_COUNT(directions); i++) n[i] += strstr(line, directions[i]) != NULL;
  }
  fclose(f);
  for (size_t i = 0; i < CLV_COUNT(directions); i++)
    if (!n[i]) fail_msg("no convolution ran %s", directions[i]);
}

/* Runs the tests again as if the processor had no AMX. */
static void suite_passes_without_amx(void **state) {
  static const char older[] = "AVX512_CORE_BF16";
  const char *names[] = {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"};
  int status = 0;
  (void)state;
  if (!has_amx()) print_message("because oneDNN finds no AMX, and all of this has run without\n");
  if (!has_amx()) skip();
  pid_t child = fork();
  if (!child) {
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO); /* its tests are not counted, */
    dup2(nowhere, STDERR_FILENO); /* and those that it skips neither */
    for (size_t i = 0; i < CLV_COUNT(names); i++) setenv(names[i], older, 1);
    execl("/proc/self/exe", "test_plan_bf16", (char *)NULL);
    _exit(127);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

int main(int argc, char **argv) {
  (void)argv;
  if (argc > 1) return run_one_step();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_convolution_matches_ref),
      cmocka_unit_test(bf16_linear_matches_ref),
      cmocka_unit_test(bf16_linear_rounds_its_factors),
      cmocka_unit_test(bf16_bias_gradient_equals_f32),
      cmocka_unit_test(thread_count_does_not_change_bf16_bits),
      cmocka_unit_test(row_bits_do_not_depend_on_the_batch),
      cmocka_unit_test(every_cut_gives_the_same_bf16_bits),
      cmocka_unit_test(unfused_ops_give_the_same_bf16_bits),
      cmocka_unit_test(bf16_values_stay_bf16_between_convolutions),
      cmocka_unit_test(bf16_without_hardware_support_is_refused),
      cmocka_unit_test(convolutions_use_amx_in_all_directions),
      cmocka_unit_test(suite_passes_without_amx),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
