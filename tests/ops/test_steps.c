/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what a backend does over whole buffers: optimiser steps, compared with torch.optim, sums,
 * reorders; and the refusals of kernels.
 */
#include "kernels/steps/steps.h"
#include "tests/golden/golden_int.h"
#include "tests/ops/run_int.h"

#include <setjmp.h>
#include <cmocka.h>

static golden numbers;

static const clv_backend *get_backend(void **state) {
  return *state ? clv_backend_cpu() : clv_backend_ref();
}

/* ---- optimiser steps ---------------------------------------------------------------------------
 */

typedef struct optim_case {
  const char *name;
  clv_optim_config settings;
} optim_case;

static const optim_case optim_cases[] = {
#define CASE(name, ...) {#name, {__VA_ARGS__}},
#include "tests/golden/optim_cases.def"
#undef CASE
};

static const float *get_golden_f32(const char *name, const char *what, size_t *ret_n) {
  golden_tensor t;
  if (!golden_find_tensor(&numbers, name, what, &t)) fail_msg("%s.%s is missing", name, what);
  *ret_n = t.n;
  return t.data;
}

static double compute_distance_f32(const float *a, const float *b, size_t n) {
  double *da = allocate_host(n * sizeof *da), *db = allocate_host(n * sizeof *db);
  to_doubles(CLV_F32, a, da, n);
  to_doubles(CLV_F32, b, db, n);
  double distance = compute_distance(da, db, n);
  free(da);
  free(db);
  return distance;
}

/* Returns the distance between the change of the parameters by a step and the change that torch
 * makes. */
static double compute_step_distance(const float *before, const float *p, const float *want,
                                    size_t n) {
  double *da = allocate_host(n * sizeof *da), *db = allocate_host(n * sizeof *db);
  for (size_t i = 0; i < n; i++) {
    da[i] = (double)p[i] - before[i];
    db[i] = (double)want[i] - before[i];
  }
  double distance = compute_distance(da, db, n);
  free(da);
  free(db);
  return distance;
}

/* Sets the initial values of the moments that an optimiser with these settings has. */
static void set_initial_moments(const clv_optim_config *c, size_t n,
                                float *moments[CLV_OPTIM_MAX_MOMENTS]) {
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) {
    bool has_moment = clv_optim_moment_mask(c) >> i & 1;
    moments[i] = has_moment ? allocate_host(n * 4) : NULL;
    for (size_t k = 0; has_moment && k < n; k++)
      moments[i][k] = (float)c->initial_accumulator_value;
  }
}

static double compute_moment_distance(const optim_case *c, int i, const float *moment, size_t n) {
  const char *name = clv_optimizer_row_of(c->settings.kind)->moments[i].name;
  return moment ? compute_distance_f32(moment, get_golden_f32(c->name, name, &n), n) : 0;
}

/* Takes steps from the parameters with which torch starts. The test halves the gradients and passes
 * the factor 2 for gradients, so that the results must equal those of torch. */
static void check_optimiser(const clv_backend *b, const optim_case *c) {
  size_t n, n_all_grads, n_equal = 0;
  const float *initial_params = get_golden_f32(c->name, "start", &n);
  const float *grads = get_golden_f32(c->name, "grads", &n_all_grads);
  const float *wanted_params = get_golden_f32(c->name, "after", &n_all_grads);
  float *p = allocate_host(n * 4), *before = allocate_host(n * 4), *g = allocate_host(n * 4);
  float *moments[CLV_OPTIM_MAX_MOMENTS];
  double max_distance = 0;
  memcpy(p, initial_params, n * 4);
  set_initial_moments(&c->settings, n, moments);
  for (int t = 1; t <= (int)(n_all_grads / n); t++) {
    const float *want = wanted_params + (size_t)(t - 1) * n;
    clv_step_args a;
    clv_step_prepare(&c->settings, t, c->settings.lr, 2, &a);
    for (size_t i = 0; i < n; i++) g[i] = grads[(size_t)(t - 1) * n + i] / 2;
    memcpy(before, p, n * 4);
    b->step(b, &a, p, g, moments, &(clv_extent){0, n}, 1);
    max_distance = fmax(max_distance, compute_step_distance(before, p, want, n));
    for (size_t i = 0; i < n; i++) n_equal += p[i] == want[i];
  }
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++)
    max_distance = fmax(max_distance, compute_moment_distance(c, i, moments[i], n));
  print_message("%-16s %s: steps and moments within %.1e of torch's, %zu of %zu values equal\n",
                c->name, b->name, max_distance, n_equal, n_all_grads);
  free(p);
  free(before);
  free(g);
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) free(moments[i]);
  assert_true(max_distance <= 5e-6);
}

static void test_optimisers_match_the_golden_cases(void **state) {
  for (size_t i = 0; i < CLV_COUNT(optim_cases); i++)
    check_optimiser(get_backend(state), &optim_cases[i]);
}

/* The second moment must be (1 - beta2) * g * g with the factor 1 - beta2 = 0.001. If the backend
 * computed the factor in f32, as 1 - 0.999f, the relative error would be 1.3e-5. */
static void test_adam_second_moment_keeps_its_precision(void **state) {
  const clv_optim_config adam = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  clv_step_args a;
  float p = 1, g = 3, m = 0, v = 0;
  clv_step_prepare(&adam, 1, 0.001, 1, &a);
  get_backend(state)->step(get_backend(state), &a, &p, &g, (float *[]){&m, &v, NULL},
                           &(clv_extent){0, 1}, 1);
  assert_true(fabs(m / 0.3 - 1) < 3e-7);
  assert_true(fabs(v / 0.009 - 1) < 3e-7);
}

/* ---- sums of squares, and additions ---------------------------------------------------------- */

static double sum_squares(const clv_backend *b, const float *x, size_t n) {
  double ret;
  clv_err err;
  must(b->sum_squares(b, x, &(clv_extent){0, n}, 1, &ret, &err), &err);
  return ret;
}

static void test_sum_squares_adds_in_eight_lanes(void **state) {
  const clv_backend *b = get_backend(state);
  float x[1003];
  clv_rng_key key = {.seed = 3};
  clv_rng_normal(&key, 0, 1, x, CLV_COUNT(x));
  static const size_t sizes[] = {0, 1, 7, 8, 9, 1003};
  for (size_t s = 0; s < CLV_COUNT(sizes); s++) {
    double lane[8] = {0};
    for (size_t i = 0; i < sizes[s]; i++) lane[i % 8] += (double)x[i] * x[i];
    double want =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    double got = sum_squares(b, x, sizes[s]);
    if (got != want) fail_msg("%zu values: %.17g, not %.17g", sizes[s], got, want);
  }
  x[500] = NAN;
  assert_true(isnan(sum_squares(b, x, 1003)));
  x[500] = -INFINITY;
  assert_true(isinf(sum_squares(b, x, 1003)));
}

static void test_add_accumulates_f32_values(void **state) {
  const clv_backend *b = get_backend(state);
  float x[37], y[37];
  for (int i = 0; i < 37; i++) {
    x[i] = 0.1f * (float)i;
    y[i] = 1.7f - (float)i;
  }
  b->add(b, CLV_F32, x, y, 36);
  for (int i = 0; i < 36; i++) assert_true(x[i] == 0.1f * (float)i + (1.7f - (float)i));
  assert_true(x[36] == 0.1f * 36);
}

static void test_add_accumulates_f64_values(void **state) {
  double x[5] = {1, 2, 3, 4, 5}, y[5] = {1e-12, 0, -3, 0.5, 1};
  (void)state;
  clv_backend_ref()->add(clv_backend_ref(), CLV_F64, x, y, 4);
  assert_true(x[0] == 1 + 1e-12 && x[1] == 2 && x[2] == 0 && x[3] == 4.5 && x[4] == 5);
}

/* ---- reorders between memory layouts --------------------------------------------------------- */

/* Reorders an image from channel block `from` to channel block `to`. Asserts the place of every
 * element, and that the padding of channels is zero. */
static void check_reorder(const clv_backend *b, const clv_shape *s, int from, int to) {
  size_t n_pixels = (size_t)(s->dim[2] * s->dim[3]), n_channels = (size_t)s->dim[1];
  size_t n = count_elements(s), n_padded = clv_layout_numel(s, to);
  float *row = allocate_host(n * 4), *src = allocate_host(clv_layout_numel(s, from) * 4),
        *dst = allocate_host(n_padded * 4);
  clv_err err;
  for (size_t i = 0; i < n; i++) row[i] = (float)(i + 1);
  must(b->reorder(b, s, CLV_F32, row, 1, src, from, &err), &err);
  must(b->reorder(b, s, CLV_F32, src, from, dst, to, &err), &err);
  size_t block = (size_t)to, n_blocks = (n_channels + block - 1) / block;
  for (size_t i = 0; i < n_padded; i++) {
    size_t channel_in_block = i % block, pixel = i / block % n_pixels,
           block_index = i / block / n_pixels % n_blocks;
    size_t c = block_index * block + channel_in_block, batch = i / block / n_pixels / n_blocks;
    float want = c < n_channels ? (float)((batch * n_channels + c) * n_pixels + pixel + 1) : 0;
    if (dst[i] != want) fail_msg("block %d to %d: [%zu] is %g, not %g", from, to, i, dst[i], want);
  }
  free(row);
  free(src);
  free(dst);
}

static void test_reorder_round_trips_every_layout(void **state) {
  static const int blocks[] = {1, 8, 16};
  const clv_shape shapes[] = {CLV_SHAPE(2, 3, 4, 5), CLV_SHAPE(1, 16, 3, 3), CLV_SHAPE(3, 17, 2, 1),
                              CLV_SHAPE(1, 1, 1, 1)};
  const clv_backend *b = get_backend(state);
  uint64_t before = b->reorder_count();
  for (size_t s = 0; s < CLV_COUNT(shapes); s++)
    for (int i = 0; i < 9; i++) check_reorder(b, &shapes[s], blocks[i / 3], blocks[i % 3]);
  assert_true(b->reorder_count() >= before + 2 * 9 * CLV_COUNT(shapes) - 5 * CLV_COUNT(shapes));
}

static void test_layout_numel_includes_the_padding(void **state) {
  clv_shape image = CLV_SHAPE(2, 17, 3, 5), flat = CLV_SHAPE(2, 17), scalar = {0};
  (void)state;
  assert_int_equal(clv_layout_numel(&image, 1), 510);
  assert_int_equal(clv_layout_numel(&image, 8), 2 * 24 * 15);
  assert_int_equal(clv_layout_numel(&image, 16), 2 * 32 * 15);
  assert_int_equal(clv_layout_numel(&flat, 16), 34);
  assert_int_equal(clv_layout_numel(&scalar, 8), 1);
}

static void test_reorder_refuses_flat_shapes_and_bad_blocks(void **state) {
  clv_shape flat = CLV_SHAPE(2, 3), image = CLV_SHAPE(1, 1, 1, 1);
  float x[16], y[16];
  clv_err err;
  const clv_backend *b = get_backend(state);
  assert_int_equal(b->reorder(b, &flat, CLV_F32, x, 1, y, 8, &err), CLV_INVALID);
  assert_int_equal(b->reorder(b, &image, CLV_F32, x, 1, y, 5, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "5"));
}

/* ---- values that kernels refuse -------------------------------------------------------------- */

static clv_kernel *prepare_two_input_kernel(const clv_backend *b, clv_op op, clv_shape in,
                                            clv_shape out) {
  clv_kernel *k = NULL;
  clv_err err;
  clv_node_desc d = {.op = op,
                     .dtype = CLV_F32,
                     .n_in = 2,
                     .in = {in, in},
                     .out = out,
                     .in_dtype = {CLV_F32, CLV_F32},
                     .offered_block = {1, 1},
                     .need_dx = {true},
                     .training = true,
                     .threads = 1,
                     .attrs = {.p = 0.5}};
  if (has_labels(op)) {
    d.in[1] = CLV_SHAPE(in.dim[0]);
    d.in_dtype[1] = CLV_I64;
  }
  clv_code code = b->prepare(b, &d, &k, &err);
  if (code != CLV_UNIMPLEMENTED) must(code, &err);
  return k;
}

static void check_labels(const clv_backend *b, clv_op op, int64_t bad_label) {
  clv_kernel *k = prepare_two_input_kernel(b, op, CLV_SHAPE(2, 10), (clv_shape){0});
  float x[20] = {0}, loss = -7;
  if (!k) return;
  int64_t labels[] = {9, bad_label};
  clv_kernel_args a = {.in = {x, labels},
                       .out = &loss,
                       .saved = allocate_host(k->saved_bytes),
                       .scratch = allocate_host(k->scratch_bytes)};
  clv_err err;
  char value[32];
  snprintf(value, sizeof value, "%lld", (long long)bad_label);
  assert_int_equal(k->forward(k, &a, &err), CLV_INVALID);
  if (strstr(err.text, value) || !strstr(err.text, "0..9") ||
      strcmp(err.offending_value, value) != 0)
    fail_msg("%s: %s (%s)", clv_op_name(op), err.text, err.offending_value);
  free(a.saved);
  free(a.scratch);
  k->free(k);
}

static void test_labels_out_of_range_are_refused(void **state) {
  static const int64_t wrong[] = {-1, 10, INT64_MIN, INT64_MAX, -100};
  for (int op = 0; (op = get_next_op(op)) < CLV_OP_COUNT;)
    for (size_t i = 0; i < CLV_COUNT(wrong) && has_labels((clv_op)op); i++)
      check_labels(get_backend(state), (clv_op)op, wrong[i]);
}

/* Checks that attention over 3 steps of 2 samples refuses the length bad_length of sample 1. */
static void check_lengths(const clv_backend *b, int64_t bad_length) {
  clv_shape x = CLV_SHAPE(2, 3, 2);
  clv_node_desc d = {.op = CLV_OP_ATTENTION,
                     .dtype = CLV_F32,
                     .n_in = 4,
                     .in = {x, x, x, CLV_SHAPE(2)},
                     .in_dtype = {CLV_F32, CLV_F32, CLV_F32, CLV_I64},
                     .offered_block = {1, 1, 1, 1},
                     .out = x,
                     .threads = 1,
                     .attrs = {.heads = 1}};
  float in[12] = {0}, out[12];
  int64_t lengths[] = {3, bad_length};
  clv_kernel *k;
  clv_err err;
  must(b->prepare(b, &d, &k, &err), &err);
  clv_kernel_args a = {.in = {in, in, in, lengths},
                       .out = out,
                       .saved = allocate_host(k->saved_bytes),
                       .scratch = allocate_host(k->scratch_bytes)};
  char value[32];
  snprintf(value, sizeof value, "%lld", (long long)bad_length);
  assert_int_equal(k->forward(k, &a, &err), CLV_INVALID);
  if (strcmp(err.text, "the length of sample 1 is outside 0..3") ||
      strcmp(err.offending_value, value) != 0)
    fail_msg("%s (%s)", err.text, err.offending_value);
  free(a.saved);
  free(a.scratch);
  k->free(k);
}

static void test_lengths_out_of_range_are_refused(void **state) {
  static const int64_t wrong[] = {-1, 4, INT64_MIN, INT64_MAX};
  for (size_t i = 0; i < CLV_COUNT(wrong); i++) check_lengths(get_backend(state), wrong[i]);
}

static void test_bce_refuses_predictions_out_of_range(void **state) {
  float x[] = {0.5f, 1.0001f}, t[] = {1, 0}, loss;
  clv_err err;
  clv_kernel *k =
      prepare_two_input_kernel(clv_backend_ref(), CLV_OP_BCE, CLV_SHAPE(2, 1), (clv_shape){0});
  clv_kernel_args a = {.in = {x, t}, .out = &loss};
  (void)state;
  assert_int_equal(k->forward(k, &a, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "prediction 1 is outside 0..1"));
  assert_string_equal(err.offending_value, "1.0001");
  x[1] = NAN;
  assert_int_equal(k->forward(k, &a, &err), CLV_OK);
  assert_true(isnan(loss));
  k->free(k);
}

static void test_unknown_ops_are_refused(void **state) {
  clv_node_desc d = {.dtype = CLV_F32};
  clv_kernel *k = NULL;
  clv_err err;
  (void)state;
  d.op = CLV_OP_INPUT;
  assert_int_equal(clv_backend_ref()->prepare(clv_backend_ref(), &d, &k, &err), CLV_INVALID);
  d.op = CLV_OP_COUNT;
  assert_int_equal(clv_backend_ref()->prepare(clv_backend_ref(), &d, &k, &err), CLV_INVALID);
  d.op = CLV_OP_RELU;
  d.dtype = CLV_F16;
  assert_int_equal(clv_backend_ref()->prepare(clv_backend_ref(), &d, &k, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "f16"));
  assert_null(k);
}

/* ---- masks of dropout ------------------------------------------------------------------------ */

/* With another step, micro-batch, layer or seed, dropout must drop other elements, and always about
 * the share p of all elements. */
static void test_dropout_mask_depends_on_every_key_field(void **state) {
  enum { N = 4096 };
  clv_shape s = CLV_SHAPE(4, N / 4);
  clv_kernel *k = prepare_two_input_kernel(get_backend(state), CLV_OP_DROPOUT, s, s);
  if (!k) {
    print_message("because this backend has no kernel for it\n");
    skip();
  }
  clv_rng_key keys[] = {{1, 0, 2, 3, 16}, {2, 0, 2, 3, 16}, {1, 0, 3, 3, 16},
                        {1, 0, 2, 4, 16}, {1, 0, 2, 3, 32}, {1, 1, 2, 3, 16}};
  float *x = allocate_host(N * 4), *y[CLV_COUNT(keys)];
  for (int i = 0; i < N; i++) x[i] = 1;
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    y[i] = allocate_host(N * 4);
    clv_kernel_args a = {.in = {x},
                         .out = y[i],
                         .key = keys[i],
                         .saved = allocate_host(k->saved_bytes),
                         .scratch = allocate_host(k->scratch_bytes)};
    clv_err err;
    must(k->forward(k, &a, &err), &err);
    free(a.saved);
    free(a.scratch);
    int n_kept = 0, n_alike = 0;
    for (int j = 0; j < N; j++) {
      assert_true(y[i][j] == 0 || y[i][j] == 2);
      n_kept += y[i][j] != 0;
      n_alike += i > 0 && y[i][j] == y[0][j];
    }
    assert_in_range(n_kept, N / 2 - 200, N / 2 + 200);
    if (i) assert_in_range(n_alike, N / 2 - 200, N / 2 + 200);
  }
  for (size_t i = 0; i < CLV_COUNT(keys); i++) free(y[i]);
  free(x);
  k->free(k);
}

#define ON_BOTH(test)                                         \
  {#test "_ref", test, NULL, NULL, NULL}, {                   \
#test "_cpu", test, NULL, NULL, (void *)(uintptr_t) "cpu" \
  }

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_BOTH(test_optimisers_match_the_golden_cases),
      ON_BOTH(test_adam_second_moment_keeps_its_precision),
      ON_BOTH(test_sum_squares_adds_in_eight_lanes),
      ON_BOTH(test_add_accumulates_f32_values),
      cmocka_unit_test(test_add_accumulates_f64_values),
      ON_BOTH(test_reorder_round_trips_every_layout),
      cmocka_unit_test(test_layout_numel_includes_the_padding),
      ON_BOTH(test_reorder_refuses_flat_shapes_and_bad_blocks),
      ON_BOTH(test_labels_out_of_range_are_refused),
      ON_BOTH(test_lengths_out_of_range_are_refused),
      cmocka_unit_test(test_bce_refuses_predictions_out_of_range),
      cmocka_unit_test(test_unknown_ops_are_refused),
      ON_BOTH(test_dropout_mask_depends_on_every_key_field),
  };
  golden_open(&numbers, "optim");
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  golden_close(&numbers);
  return failed;
}
