/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests convolutions and linear in bf16: compares them with ref on numbers that bf16 represents
 * exactly, and checks that the bits are the same however a graph is cut or its ops are fused.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/long.h"
#include "tests/unit/graph/bf16_test.h"

static bool is_bf16_missing(void) {
  clv_err why;
  if (clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) == CLV_OK) return false;
  print_message("because %s\n", why.text);
  return true;
}

static bool has_amx(void) {
  const char *isa = clv_backend_isa(clv_backend_cpu());
  return strstr(isa, "amx") && !strstr(isa, "refused");
}

/* ---- one convolution in bf16 ----------------------------------------------------------------- */

typedef struct conv_case {
  int64_t c, k, kernel_size, stride, padding, image_side;
} conv_case;

static const conv_case convs[] = {
    {3, 64, 7, 2, 3, 17},  {32, 64, 1, 1, 0, 9}, {64, 32, 3, 1, 1, 8}, {32, 48, 3, 2, 1, 9},
    {64, 128, 1, 2, 0, 7}, {16, 16, 5, 1, 2, 8}, {24, 40, 3, 1, 1, 6}, {16, 32, 7, 1, 3, 9},
    {48, 16, 3, 3, 0, 8},  {16, 24, 5, 2, 2, 7},
};

static rig make_conv_rig(const conv_case *c, const clv_backend *backend) {
  int x;
  clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(3, c->c, c->image_side, c->image_side), &x);
  clv_attr_value v[] = {
      make_int_attr(CLV_ATTR_OUT, c->k), make_int_attr(CLV_ATTR_KERNEL, c->kernel_size),
      make_int_attr(CLV_ATTR_STRIDE, c->stride), make_int_attr(CLV_ATTR_PAD, c->padding)};
  add_node(g, CLV_OP_CONV2D, 0, x, -1, v, 4);
  rig r =
      make_rig(g, &(rig_options){.backend = backend, .is_bf16 = true, .has_split_backward = true});
  truncate_to_bf16(r.in[0], r.input_bytes[0]);
  truncate_to_bf16(r.dout, r.output_bytes);
  truncate_to_bf16(r.parameter_block, r.params->total_bytes);
  return r;
}

/* Runs two steps, so that the second gradient is added to the first. */
static void run_two_steps(rig *r) {
  for (int i = 0; i < 2; i++) {
    clv_call *c;
    assert_ok(clv_plan_call_get(r->plan, &c, err));
    run_forward(r, c);
    fill_scratch_with_nan(r);
    run_backward_input(r, c, i > 0);
    fill_scratch_with_nan(r);
    run_backward_weight(r, c, i > 0);
    clv_plan_call_put(r->plan, c);
  }
}

/* The inputs fit bf16, so products are exact; sums are f32. Only the output is rounded to bf16, by
 * at most one part in 256. */
static void bf16_convolution_matches_ref(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    rig a = make_conv_rig(&convs[i], clv_backend_cpu()),
        b = make_conv_rig(&convs[i], clv_backend_ref());
    run_two_steps(&a);
    run_two_steps(&b);
    assert_near(a.out, b.out, a.output_bytes, 1e-4, 1.0 / 256, "output");
    assert_near(a.din[0], b.din[0], a.input_bytes[0], 0, 1e-5, "input gradient");
    assert_near(a.gradient_block, b.gradient_block, a.params->trainable_bytes, 0, 1e-5,
                "weight gradient");
    free_rig(&a);
    free_rig(&b);
  }
}

/* ---- one linear layer in bf16 ---------------------------------------------------------------- */

typedef struct linear_case {
  clv_shape in;
  int64_t n_outputs;
  /* is_transposed: the weight is stored [in, out]; has_no_bias: the layer has no bias */
  bool is_transposed, has_no_bias;
} linear_case;

#define ROWS(n, features) .in = {.rank = 2, .dim = {n, features}}
#define PLACES(n, s, features) .in = {.rank = 3, .dim = {n, s, features}}

static const linear_case linears[] = {
    {ROWS(1, 1), .n_outputs = 1},
    {ROWS(5, 33), .n_outputs = 7},
    {ROWS(64, 96), .n_outputs = 160},
    {PLACES(2, 17, 48), .n_outputs = 40},
    {PLACES(3, 100, 24), .n_outputs = 2},
    {ROWS(7, 512), .n_outputs = 1000},
    {ROWS(37, 65), .n_outputs = 50, .is_transposed = true},
    {PLACES(2, 16, 64), .n_outputs = 31, .has_no_bias = true},
    {ROWS(70, 9000), .n_outputs = 3}, /* the factors do not fit in a cache of the processor */
    {ROWS(64, 32), .n_outputs = 64, .is_transposed = true, .has_no_bias = true},
    {ROWS(330, 64), .n_outputs = 330}, /* enough work for several threads */
    {ROWS(1300, 40), .n_outputs = 70}, /* more rows than are packed at once */
};

static rig make_rig_with_threads(const linear_case *c, const clv_backend *backend, bool is_bf16,
                                 int n_threads) {
  int x;
  clv_graph *g = make_graph(CLV_F32, c->in, &x);
  clv_attr_value v[] = {make_int_attr(CLV_ATTR_OUT, c->n_outputs),
                        make_int_attr(CLV_ATTR_BIAS, !c->has_no_bias),
                        make_int_attr(CLV_ATTR_TRANSPOSED, c->is_transposed)};
  add_node(g, CLV_OP_LINEAR, 0, x, -1, v, 3);
  return make_rig(g, &(rig_options){.backend = backend,
                                    .is_bf16 = is_bf16,
                                    .has_split_backward = true,
                                    .n_threads = n_threads});
}

static rig make_linear_rig(const linear_case *c, const clv_backend *backend, bool is_bf16) {
  return make_rig_with_threads(c, backend, is_bf16, 1);
}

static void truncate_inputs_to_bf16(rig *r) {
  truncate_to_bf16(r->in[0], r->input_bytes[0]);
  truncate_to_bf16(r->dout, r->output_bytes);
  truncate_to_bf16(r->parameter_block, r->params->total_bytes);
}

/* The inputs fit bf16, so products are exact; sums are f32. So cpu and ref differ only by the order
 * of the sums. */
static void bf16_linear_matches_ref(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    rig a = make_linear_rig(&linears[i], clv_backend_cpu(), true);
    rig b = make_linear_rig(&linears[i], clv_backend_ref(), true);
    truncate_inputs_to_bf16(&a);
    truncate_inputs_to_bf16(&b);
    run_two_steps(&a);
    run_two_steps(&b);
    assert_near(a.out, b.out, a.output_bytes, 0, 1e-5, "output");
    assert_near(a.din[0], b.din[0], a.input_bytes[0], 0, 1e-5, "input gradient");
    assert_near(a.gradient_block, b.gradient_block, a.params->trainable_bytes, 0, 1e-5,
                "weight gradient");
    free_rig(&a);
    free_rig(&b);
  }
}

static void thread_count_does_not_change_bf16_bits(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    rig a = make_rig_with_threads(&linears[i], clv_backend_cpu(), true, 1);
    rig b = make_rig_with_threads(&linears[i], clv_backend_cpu(), true, 3);
    run_two_steps(&a);
    run_two_steps(&b);
    assert_same_bytes(a.out, b.out, a.output_bytes, "output");
    assert_same_bytes(a.gradient_block, b.gradient_block, a.params->trainable_bytes, "gradients");
    assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
    free_rig(&a);
    free_rig(&b);
  }
}

/* The bits of a row, and of its input's gradient, do not depend on the rows after it. */
static void row_bits_do_not_depend_on_the_batch(void **state) {
  static const linear_case small_batch = {ROWS(5, 1100), .n_outputs = 70},
                           large_batch = {ROWS(330, 1100), .n_outputs = 70};
  (void)state;
  if (is_bf16_missing()) skip();
  rig a = make_linear_rig(&small_batch, clv_backend_cpu(), true),
      b = make_linear_rig(&large_batch, clv_backend_cpu(), true);
  memcpy(b.in[0], a.in[0], a.input_bytes[0]);
  memcpy(b.dout, a.dout, a.output_bytes);
  memcpy(b.parameter_block, a.parameter_block, a.params->total_bytes);
  run_step(&a);
  run_step(&b);
  assert_same_bytes(a.out, b.out, a.output_bytes, "output");
  assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
  free_rig(&a);
  free_rig(&b);
}

/* A linear layer in bf16 rounds inputs that bf16 cannot represent, and each factor of its
 * products. */
static void bf16_linear_rounds_its_factors(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  rig a = make_linear_rig(&linears[2], clv_backend_cpu(), true);
  rig b = make_linear_rig(&linears[2], clv_backend_cpu(), false);
  run_step(&a);
  run_step(&b);
  assert_near(a.out, b.out, a.output_bytes, 1e-4, 1.0 / 128, "output");
  assert_near(a.din[0], b.din[0], a.input_bytes[0], 1e-4, 1.0 / 128, "input gradient");
  assert_near(a.gradient_block, b.gradient_block, a.params->trainable_bytes, 1e-4, 1.0 / 128,
              "weight gradient");
  free_rig(&a);
  free_rig(&b);
}

/* The gradient of a bias is summed while factors are packed, before they are rounded. */
static void bf16_bias_gradient_equals_f32(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  for (size_t i = 0; i < CLV_COUNT(linears); i++) {
    if (linears[i].has_no_bias) continue;
    rig a = make_linear_rig(&linears[i], clv_backend_cpu(), true);
    rig b = make_linear_rig(&linears[i], clv_backend_cpu(), false);
    const clv_param *bias = &a.params->list[CLV_SLOT_BIAS];
    run_two_steps(&a);
    run_two_steps(&b);
    assert_same_bytes((char *)a.gradient_block + bias->offset,
                      (char *)b.gradient_block + bias->offset, bias->bytes, "bias");
    free_rig(&a);
    free_rig(&b);
  }
}

/* ---- networks in bf16 ------------------------------------------------------------------------ */

static void every_cut_gives_the_same_bf16_bits(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  for (size_t i = 0; i < CLV_COUNT(graphs); i++)
    check_whole_and_cut(clv_backend_cpu(), graphs[i], 8);
}

/* Asserts that the error of bf16 is bounded. truncated_run: a run in f32 whose inputs were
 * truncated to bf16. Its distance from f32_run shows how much the graph amplifies an error of that
 * size. The distance of bf16_run from f32_run may be a few times as large, and must not be nearly
 * 0. */
static void assert_error_is_bounded(const rig *bf16_run, const rig *f32_run,
                                    const rig *truncated_run) {
  double output_error = compute_distance(truncated_run->out, f32_run->out, bf16_run->output_bytes);
  double gradient_error = compute_distance(truncated_run->gradient_block, f32_run->gradient_block,
                                           bf16_run->params->trainable_bytes);
  assert_near(bf16_run->out, f32_run->out, bf16_run->output_bytes, output_error / 50,
              4 * output_error, "output");
  assert_near(bf16_run->gradient_block, f32_run->gradient_block, bf16_run->params->trainable_bytes,
              gradient_error / 50, 4 * gradient_error, "gradients");
}

/* Fused ops must give the same bits as separate ops. Their distance from f32 must be that of
 * bf16. */
static void unfused_ops_give_the_same_bf16_bits(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  clv_backend unfused = make_unfused_backend(clv_backend_cpu());
  for (size_t i = 0; i < CLV_COUNT(graphs); i++) {
    rig a = make_rig(graphs[i](3), &(rig_options){.backend = clv_backend_cpu(), .is_bf16 = true});
    rig b = make_rig(graphs[i](3), &(rig_options){.backend = &unfused, .is_bf16 = true});
    rig f = make_rig(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    rig cut = make_rig(graphs[i](3), &(rig_options){.backend = clv_backend_cpu()});
    truncate_to_bf16(cut.in[0], cut.input_bytes[0]);
    truncate_to_bf16(cut.parameter_block, cut.params->trainable_bytes);
    run_step(&a);
    run_step(&b);
    run_step(&f);
    run_step(&cut);
    assert_same_bytes(a.out, b.out, a.output_bytes, "output");
    assert_same_bytes(a.din[0], b.din[0], a.input_bytes[0], "input gradient");
    assert_same_params(&a, &b);
    assert_error_is_bounded(&a, &f, &cut);
    free_rig(&a);
    free_rig(&b);
    free_rig(&f);
    free_rig(&cut);
  }
}

/* A value that only convolutions and their batchnorms read is never stored in f32. */
static void bf16_values_stay_bf16_between_convolutions(void **state) {
  (void)state;
  if (is_bf16_missing()) skip();
  clv_bytes text = {0};
  rig r =
      make_rig(make_wide_graph(2), &(rig_options){.backend = clv_backend_cpu(), .is_bf16 = true});
  clv_plan_describe(r.plan, &text);
  char wanted[80]; /* under thread sanitizer the graph is smaller */
  snprintf(wanted, sizeof wanted, "%s, %s KiB in scratch",
           has_amx() ? "block 1 last bf16>1 last bf16" : "block 16 bf16>16 bf16",
           CLV_THREAD_SANITIZED ? "2.0" : "25.0");
  assert_non_null(strstr(text.data, wanted));
  /* the plan reorders the input and its gradient, and values of the pool and of ops that have only
   * f32 kernels; with AMX there is one reorder more */
  assert_int_equal(count_steps(&r, "reorder"), has_amx() ? 9 : 8);
  clv_bytes_done(&text);
  free_rig(&r);
}

static clv_code refuse_bf16(const clv_backend *b, clv_err *e) {
  (void)b;
  return clv_fail(e, CLV_PRECONDITION, "not here");
}

static void bf16_without_hardware_support_is_refused(void **state) {
  (void)state;
  clv_backend none = *clv_backend_cpu();
  clv_graph *g = make_wide_graph(2);
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
  rig r =
      make_rig(make_wide_graph(2), &(rig_options){.backend = clv_backend_cpu(), .is_bf16 = true});
  run_step(&r);
  free_rig(&r);
  return 0;
}

/* Runs a step in a child process in which oneDNN prints each primitive that it executes. Returns
 * that output. */
static FILE *print_primitives_of_a_step(void) {
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

/* On a processor with AMX, every convolution uses AMX in all three directions. */
static void convolutions_use_amx_in_all_directions(void **state) {
  static const char *const directions[] = {"forward_training", "backward_data", "backward_weights"};
  int n[CLV_COUNT(directions)] = {0};
  char line[1024];
  (void)state;
  if (!has_amx()) print_message("because oneDNN finds no AMX\n");
  if (!has_amx()) skip();
  FILE *f = print_primitives_of_a_step();
  while (fgets(line, sizeof line, f)) {
    if (!strstr(line, ",exec,") || !strstr(line, ",convolution,")) continue;
    if (!strstr(line, "avx512_core_amx")) fail_msg("not with AMX: %s", line);
    for (size_t i = 0; i < CLV_COUNT(directions); i++) n[i] += strstr(line, directions[i]) != NULL;
  }
  fclose(f);
  for (size_t i = 0; i < CLV_COUNT(directions); i++)
    if (!n[i]) fail_msg("no convolution ran %s", directions[i]);
}

/* Runs the tests again as if the processor had no AMX. `make test` runs one of the tests. */
static void suite_passes_without_amx(void **state) {
  static const char isa_without_amx[] = "AVX512_CORE_BF16";
  const char *variable_names[] = {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"};
  int status = 0;
  (void)state;
  if (!has_amx()) print_message("because oneDNN finds no AMX, and all of this has run without\n");
  if (!has_amx()) skip();
  pid_t child = fork();
  if (!child) {
    int null_fd = open("/dev/null", O_WRONLY);
    /* hides the output of the tests in the child process, so that their results and skips do not
     * count as tests of this program */
    dup2(null_fd, STDOUT_FILENO);
    dup2(null_fd, STDERR_FILENO);
    for (size_t i = 0; i < CLV_COUNT(variable_names); i++)
      setenv(variable_names[i], isa_without_amx, 1);
    if (!is_long()) setenv("CLV_TEST_ONE", "bf16_linear_matches_ref", 1);
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
