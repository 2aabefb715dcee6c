/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares linear and conv2d with plain loops in double, on sizes that do not fill blocks, with one
 * and two threads. Also tests layouts, the reorders between them, and that a second run gives the
 * same bits.
 */
#include "tests/unit/cpu/cpu_test.h"

#include <dirent.h>
#include <malloc.h>

/* Convolutions that cover each implementation: {n, c, h, w, k, kernel, stride, pad, groups}. */
static const int64_t convs[][9] = {
    {3, 1, 9, 7, 5, 3, 1, 1, 1},   {2, 3, 11, 8, 13, 5, 2, 2, 1},  {2, 7, 6, 6, 9, 3, 1, 0, 1},
    {1, 2, 5, 5, 3, 1, 2, 0, 1},   {2, 16, 7, 5, 16, 3, 1, 1, 1},  {3, 20, 9, 9, 27, 3, 2, 1, 1},
    {2, 17, 6, 6, 10, 1, 1, 0, 1}, {2, 32, 8, 8, 32, 3, 1, 1, 32}, {2, 6, 6, 5, 9, 3, 1, 1, 3},
    {2, 32, 6, 6, 64, 3, 1, 1, 2}, {4, 1, 14, 14, 33, 7, 3, 3, 1}, {1, 16, 4, 4, 1, 4, 1, 0, 1},
    {2, 19, 7, 6, 20, 3, 1, 1, 1}, {3, 9, 8, 7, 1, 3, 3, 2, 1},
};

static clv_node_desc make_conv_case(size_t i) {
  const int64_t *v = convs[i];
  return make_conv_desc(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]);
}

typedef struct expected {
  double *output, *input_gradient, *dw, *db;
} expected;

static void allocate_expected(expected *e, const node *n) {
  e->output = calloc(count_elements(&n->d.out), sizeof(double));
  e->input_gradient = calloc(count_elements(&n->d.in[0]), sizeof(double));
  e->dw = calloc(count_elements(&n->d.param[0]), sizeof(double));
  e->db = calloc(count_elements(&n->d.param[1]), sizeof(double));
}

static void free_expected(expected *e) {
  free(e->output);
  free(e->input_gradient);
  free(e->dw);
  free(e->db);
}

/* Indices of one product of a convolution: o of the output, w of the weight, x of the input. */
typedef struct product {
  size_t o, w, x;
} product;

static void add_product(expected *e, const float *x, const float *w, const float *dy, product p) {
  e->output[p.o] += (double)w[p.w] * x[p.x];
  e->input_gradient[p.x] += (double)w[p.w] * dy[p.o];
  e->dw[p.w] += (double)dy[p.o] * x[p.x];
}

/* Adds all products of the output element at[] = {image, channel, row, column}. */
static void add_conv_element(expected *e, const clv_node_desc *d, const float *x, const float *w,
                             const float *dy, const int64_t at[4]) {
  const int64_t *in = d->in[0].dim, *out = d->out.dim, *kernel = d->attrs.kernel;
  int64_t channels_per_group = in[1] / d->attrs.groups, group = at[1] / (out[1] / d->attrs.groups);
  size_t o = (size_t)(((at[0] * out[1] + at[1]) * out[2] + at[2]) * out[3] + at[3]);
  for (int64_t t = 0; t < channels_per_group * kernel[0] * kernel[1]; t++) {
    int64_t c = t / (kernel[0] * kernel[1]), u = t / kernel[1] % kernel[0], v = t % kernel[1];
    int64_t h = at[2] * d->attrs.stride[0] - d->attrs.pad[0] + u;
    int64_t q = at[3] * d->attrs.stride[1] - d->attrs.pad[1] + v;
    if (h < 0 || h >= in[2] || q < 0 || q >= in[3]) continue;
    size_t xi =
        (size_t)(((at[0] * in[1] + group * channels_per_group + c) * in[2] + h) * in[3] + q);
    add_product(e, x, w, dy,
                (product){o, (size_t)(at[1] * channels_per_group * kernel[0] * kernel[1] + t), xi});
  }
}

static void add_conv_expected(expected *e, const node *n, const float *x, const float *dy) {
  const int64_t *out = n->d.out.dim;
  const float *b = n->a.param[1];
  for (int64_t i = 0; i < out[0] * out[1] * out[2] * out[3]; i++) {
    int64_t at[] = {i / (out[1] * out[2] * out[3]), i / (out[2] * out[3]) % out[1],
                    i / out[3] % out[2], i % out[3]};
    add_conv_element(e, &n->d, x, n->a.param[0], dy, at);
    e->output[i] += b[at[1]];
    e->db[at[1]] += dy[i];
  }
}

static void add_linear_expected(expected *e, const node *n, const float *x, const float *dy) {
  size_t rows = (size_t)n->d.out.dim[0], out = (size_t)n->d.out.dim[1];
  size_t features = (size_t)n->d.in[0].dim[1];
  for (size_t i = 0; i < rows * out; i++) {
    for (size_t f = 0; f < features; f++)
      add_product(e, x, n->a.param[0], dy,
                  (product){i, i % out * features + f, i / out * features + f});
    e->output[i] += ((const float *)n->a.param[1])[i % out];
    e->db[i % out] += dy[i];
  }
}

typedef void expect_fn(expected *e, const node *n, const float *x, const float *dy);

static void check_against_loops(const char *what, const clv_node_desc *d, expect_fn *expect) {
  node n;
  expected e;
  clv_err err;
  prepare_node(&n, d);
  allocate_expected(&e, &n);
  float *x = copy_to_row_major(&d->in[0], n.a.in[0], n.k->in_block[0]);
  float *dy = copy_to_row_major(&d->out, n.a.dout, n.k->out_block);
  expect(&e, &n, x, dy);
  run_node(&n);
  float *out = copy_node_out(&n), *din = copy_node_din(&n, 0);
  assert_near(what, out, e.output, count_elements(&d->out));
  assert_near(what, din, e.input_gradient, count_elements(&d->in[0]));
  assert_near(what, n.a.dparam[0], e.dw, count_elements(&d->param[0]));
  assert_near(what, n.a.dparam[1], e.db, count_elements(&d->param[1]));
  n.a.accumulate = true;
  ok(n.k->backward_weight(n.k, &n.a, &err), &err);
  for (size_t i = 0; i < count_elements(&d->param[0]); i++) e.dw[i] *= 2;
  for (size_t i = 0; i < count_elements(&d->param[1]); i++) e.db[i] *= 2;
  assert_near("accumulated", n.a.dparam[0], e.dw, count_elements(&d->param[0]));
  assert_near("accumulated", n.a.dparam[1], e.db, count_elements(&d->param[1]));
  free(x);
  free(dy);
  free(out);
  free(din);
  free_expected(&e);
  free_node(&n);
}

static void test_conv_matches_loops(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(convs); i++)
    for (int threads = 1; threads <= 2; threads++) {
      char what[40];
      clv_node_desc d = make_conv_case(i);
      d.threads = threads;
      snprintf(what, sizeof what, "conv %zu, %d threads", i, threads);
      check_against_loops(what, &d, add_conv_expected);
    }
}

static void test_linear_matches_loops(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{1, 1, 1},   {32, 16, 8},  {32, 8, 1},   {7, 13, 5},
                                     {1, 31, 33}, {300, 17, 9}, {513, 70, 66}};
  for (size_t i = 0; i < CLV_COUNT(sizes); i++)
    for (int threads = 1; threads <= 2; threads++) {
      clv_node_desc d = make_linear_desc(sizes[i][0], sizes[i][1], sizes[i][2]);
      d.threads = threads;
      check_against_loops("linear", &d, add_linear_expected);
    }
}

/* Asserts that a second kernel, with memory at other addresses, gives the same bits as the first,
 * and gives them again when it runs a second time. */
static void check_repeats(const clv_node_desc *d) {
  node a, b;
  prepare_node(&a, d);
  void *gap_block = allocate_bytes(4096 + 64); /* shifts the addresses of the second run */
  prepare_node(&b, d);
  free(gap_block);
  run_node(&a);
  run_node(&b);
  assert_same_results("other memory", &a, &b);
  run_node(&b);
  assert_same_results("run again", &a, &b);
  free_node(&a);
  free_node(&b);
}

static void test_repeated_runs_give_the_same_bits(void **state) {
  (void)state;
  for (int threads = 1; threads <= 2; threads++) {
    for (size_t i = 0; i < CLV_COUNT(convs); i++) {
      clv_node_desc d = make_conv_case(i);
      d.threads = threads;
      check_repeats(&d);
    }
    clv_node_desc d = make_linear_desc(300, 200, 100);
    d.threads = threads;
    check_repeats(&d);
  }
}

/* A kernel uses the thread count of its node, not the count that the calling thread has set for
 * OpenMP. The count changes the bits, because threads divide the sums of a weight gradient. */
static void test_kernel_ignores_the_caller_thread_count(void **state) {
  (void)state;
  clv_node_desc descs[] = {make_conv_desc(8, 32, 14, 14, 64, 1, 1, 0, 1),
                           make_linear_desc(256, 300, 200)};
  for (size_t i = 0; i < CLV_COUNT(descs); i++)
    for (int threads = 1; threads <= 2; threads++) {
      node a, b;
      descs[i].threads = threads;
      prepare_node(&a, &descs[i]);
      prepare_node(&b, &descs[i]);
      clv_backend_cpu()->set_threads(threads);
      run_node(&a);
      clv_backend_cpu()->set_threads(3 - threads);
      run_node(&b);
      assert_same_results("another setting", &a, &b);
      free_node(&a);
      free_node(&b);
    }
}

/* A kernel's layout depends on its node alone, not on other nodes or on which gradients are
 * requested. */
static void test_layout_depends_on_the_node_alone(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    clv_node_desc d = make_conv_case(i), other_desc = d;
    node a, b;
    other_desc.offered_block[0] = 8;
    other_desc.need_dx[0] = other_desc.need_dw = false;
    other_desc.training = false;
    prepare_node(&a, &d);
    prepare_node(&b, &other_desc);
    assert_int_equal(a.k->in_block[0], b.k->in_block[0]);
    assert_int_equal(a.k->out_block, b.k->out_block);
    run_node(&a);
    run_node(&b);
    float *x = copy_node_out(&a), *y = copy_node_out(&b);
    assert_same_bits("forward alone", x, y, count_elements(&d.out));
    free(x);
    free(y);
    free_node(&a);
    free_node(&b);
  }
}

/* If channels fill whole blocks, the row-major fallback must not be used where the library has a
 * blocked kernel. */
static void test_whole_channel_blocks_use_blocked_layout(void **state) {
  (void)state;
  const char *isa = clv_backend_isa(clv_backend_cpu());
  if (strncmp(isa, "avx2", 4) && strncmp(isa, "avx512", 6)) {
    print_message("because this processor has no AVX2\n");
    skip();
  }
  clv_node_desc d = make_conv_desc(2, 32, 14, 14, 64, 3, 1, 1, 1),
                first_conv_desc = make_conv_case(0);
  node a;
  prepare_node(&a, &d);
  assert_true(a.k->in_block[0] > 1);
  assert_int_equal(a.k->out_block, a.k->in_block[0]);
  free_node(&a);
  prepare_node(&a, &first_conv_desc);
  assert_int_equal(a.k->in_block[0], 1);
  assert_true(a.k->out_block > 1);
  free_node(&a);
}

static void test_predicted_reorder_counts_match_execution(void **state) {
  (void)state;
  const clv_backend *cpu = clv_backend_cpu();
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    clv_node_desc d = make_conv_case(i);
    clv_err err;
    node n;
    prepare_node(&n, &d);
    uint64_t before = cpu->reorder_count();
    if (n.k->refresh) ok(n.k->refresh(n.k, &n.a, &err), &err);
    assert_int_equal(cpu->reorder_count() - before, n.k->reorders_refresh);
    before = cpu->reorder_count();
    ok(n.k->forward(n.k, &n.a, &err), &err);
    assert_int_equal(cpu->reorder_count() - before, n.k->reorders_forward);
    before = cpu->reorder_count();
    ok(n.k->backward_input(n.k, &n.a, &err), &err);
    ok(n.k->backward_weight(n.k, &n.a, &err), &err);
    assert_int_equal(cpu->reorder_count() - before, n.k->reorders_backward);
    free_node(&n);
  }
}

/* Trimming frees the memory that freed kernels left for reuse. It does not touch the memory of a
 * running kernel. */
static void test_trim_frees_only_unused_kernel_memory(void **state) {
  (void)state;
  const clv_backend *cpu = clv_backend_cpu();
  clv_node_desc d = make_conv_case(0);
  clv_err err;
  node running_node;
  prepare_node(&running_node, &d);
  for (size_t i = 1; i < CLV_COUNT(convs); i++) {
    clv_node_desc other = make_conv_case(i);
    node freed_node;
    prepare_node(&freed_node, &other);
    free_node(&freed_node);
  }
  size_t before = mallinfo2().uordblks;
  cpu->trim(cpu);
  if (!CLV_SANITIZED) assert_true(mallinfo2().uordblks + 16384 < before);
  if (running_node.k->refresh)
    ok(running_node.k->refresh(running_node.k, &running_node.a, &err), &err);
  ok(running_node.k->forward(running_node.k, &running_node.a, &err), &err);
  free_node(&running_node);
}

/* A kernel uses changed parameters only after their refresh. */
static void test_new_weights_take_effect_after_refresh(void **state) {
  (void)state;
  clv_node_desc d = make_conv_desc(2, 16, 7, 7, 16, 3, 1, 1, 1);
  clv_err err;
  node n;
  prepare_node(&n, &d);
  run_node(&n);
  float *before = copy_node_out(&n);
  memset(n.a.param[0], 0, count_elements(&d.param[0]) * sizeof(float));
  if (n.k->refresh) ok(n.k->refresh(n.k, &n.a, &err), &err);
  ok(n.k->forward(n.k, &n.a, &err), &err);
  float *after = copy_node_out(&n);
  const float *bias = n.a.param[1];
  for (size_t i = 0; i < count_elements(&d.out); i++) assert_true(after[i] == bias[i / 49 % 16]);
  assert_true(before[0] != after[0]);
  free(before);
  free(after);
  free_node(&n);
}

static int count_threads(void) {
  DIR *dir = opendir("/proc/self/task");
  int n = 0;
  for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
  closedir(dir);
  return n;
}

/* The weight gradient of a linear layer over many rows makes the backend load OpenBLAS, which must
 * not start threads. */
static void test_loading_openblas_starts_no_threads(void **state) {
  (void)state;
  int before = count_threads();
  clv_node_desc d = make_linear_desc(512, 128, 128);
  node n;
  prepare_node(&n, &d);
  run_node(&n);
  assert_int_equal(count_threads(), before);
  assert_non_null(strstr(clv_backend_libraries(clv_backend_cpu()), "oneDNN "));
  assert_non_null(strstr(clv_backend_libraries(clv_backend_cpu()), "OpenBLAS"));
  assert_true(strlen(clv_backend_isa(clv_backend_cpu())) > 0);
  free_node(&n);
}

static void test_unsupported_dtype_or_op_is_unimplemented(void **state) {
  (void)state;
  clv_node_desc d = make_linear_desc(2, 2, 2);
  clv_kernel *k;
  clv_err err;
  d.dtype = CLV_F64;
  assert_int_equal(clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err), CLV_UNIMPLEMENTED);
  d.dtype = CLV_F32;
  d.op = CLV_OP_BCE;
  assert_int_equal(clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err), CLV_UNIMPLEMENTED);
  d.op = CLV_OP_COUNT;
  assert_int_equal(clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err), CLV_UNIMPLEMENTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_loading_openblas_starts_no_threads),
      cmocka_unit_test(test_conv_matches_loops),
      cmocka_unit_test(test_linear_matches_loops),
      cmocka_unit_test(test_repeated_runs_give_the_same_bits),
      cmocka_unit_test(test_kernel_ignores_the_caller_thread_count),
      cmocka_unit_test(test_layout_depends_on_the_node_alone),
      cmocka_unit_test(test_whole_channel_blocks_use_blocked_layout),
      cmocka_unit_test(test_predicted_reorder_counts_match_execution),
      cmocka_unit_test(test_trim_frees_only_unused_kernel_memory),
      cmocka_unit_test(test_new_weights_take_effect_after_refresh),
      cmocka_unit_test(test_unsupported_dtype_or_op_is_unimplemented),
  };
  return cmocka_run_group_tests_name("cpu dense", tests, NULL, NULL);
}
