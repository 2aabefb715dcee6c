/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the optimiser itself does: settings, spans, counters, factors and state. The steps are
 * computed here, in double, by the formulas of optim.h; tests/ops compares the steps of the
 * backends with torch.
 */
#include "common/model/optim/optim.h"
#include "kernels/steps/steps.h"
#include "tests/golden/golden_int.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

typedef struct value {
  double p, direction;
  float *m[CLV_OPTIM_MAX_MOMENTS];
} value;

static void step_sgd(const clv_step_args *a, value *v) {
  float *m = v->m[0];
  if (m) {
    *m = (float)(a->is_first_step ? v->direction : (double)a->momentum * *m + v->direction);
    v->direction = a->nesterov ? v->direction + (double)a->momentum * *m : *m;
  }
  v->p -= a->step_size * v->direction;
}

static void update_average(float *m, double kept_share, double new_share, double direction) {
  *m = (float)(kept_share * *m + new_share * direction);
}

static void step_adam(const clv_step_args *a, value *v) {
  update_average(v->m[0], 1 - (double)a->one_minus_decay[0], a->one_minus_decay[0], v->direction);
  update_average(v->m[1], 1 - (double)a->one_minus_decay[1], a->one_minus_decay[1],
                 v->direction * v->direction);
  v->p -= a->step_size * *v->m[0] / (sqrt(*v->m[1]) / a->bias2_sqrt + a->eps);
}

static void step_adagrad(const clv_step_args *a, value *v) {
  update_average(v->m[0], 1, 1, v->direction * v->direction);
  v->p -= a->step_size * v->direction / (sqrt(*v->m[0]) + a->eps);
}

static void step_rmsprop(const clv_step_args *a, value *v) {
  update_average(v->m[0], a->decay[0], a->one_minus_decay[0], v->direction * v->direction);
  if (v->m[2]) update_average(v->m[2], a->decay[0], a->one_minus_decay[0], v->direction);
  double mean = v->m[2] ? *v->m[2] : 0;
  double step = v->direction / (sqrt(*v->m[0] - mean * mean) + a->eps);
  if (v->m[1]) update_average(v->m[1], a->momentum, 1, step);
  v->p -= a->step_size * (v->m[1] ? *v->m[1] : step);
}

static void step_adamax(const clv_step_args *a, value *v) {
  update_average(v->m[0], a->decay[0], a->one_minus_decay[0], v->direction);
  *v->m[1] = (float)fmax((double)a->decay[1] * *v->m[1], fabs(v->direction) + a->eps);
  v->p -= a->step_size * *v->m[0] / *v->m[1];
}

static void apply_formula(const clv_step_args *a, float *p, const float *g,
                          float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *r) {
  static void (*const formulas[])(const clv_step_args *, value *) = {
      step_sgd, step_adam, step_adam, step_adagrad, step_rmsprop, step_adamax};
  for (size_t i = r->at; i < r->at + r->n; i++) {
    bool is_apart = a->kind == CLV_OPTIM_ADAMW;
    value v = {.p = p[i], .direction = (double)g[i] * a->grad_scale};
    if (is_apart) v.p *= a->weight_factor;
    if (!is_apart) v.direction += (double)a->weight_decay * v.p;
    for (int k = 0; k < CLV_OPTIM_MAX_MOMENTS; k++) v.m[k] = moments[k] ? moments[k] + i : NULL;
    formulas[a->kind](a, &v);
    p[i] = (float)v.p;
  }
}

static void step_by_formula(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                            float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                            size_t n_runs) {
  (void)b;
  for (size_t i = 0; i < n_runs; i++) apply_formula(a, p, g, moments, &runs[i]);
}

static const clv_backend formulas = {.abi = CLV_KERNELS_ABI,
                                     .size = sizeof(clv_backend),
                                     .name = "formulas",
                                     .step = step_by_formula};

static clv_optim *make_groups(const clv_optim_config *c, size_t n_groups, size_t bytes,
                              const clv_optim_span *spans, size_t n) {
  clv_optim *o = NULL;
  clv_err err;
  if (clv_optim_new(c, n_groups, bytes, spans, n, &formulas, &o, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return o;
}

static clv_optim *make_optim(const clv_optim_config *c, size_t bytes, const clv_optim_span *spans,
                             size_t n) {
  return make_groups(c, 1, bytes, spans, n);
}

/* ---- comparison with torch.optim ------------------------------------------------------------- */

static const struct {
  const char *name;
  /* the second group, with the values of span 1, exists only if its lr is not 0 */
  clv_optim_config group[2];
} golden_cases[] = {
#define CASE(name, ...) {#name, {{__VA_ARGS__}}},
#include "tests/golden/optim_cases.def"
#undef CASE
    {"adamw_groups",
     {{.kind = CLV_OPTIM_ADAMW,
       .lr = 0.01,
       .weight_decay = 0.1,
       .beta1 = 0.9,
       .beta2 = 0.999,
       .eps = 1e-8},
      {.kind = CLV_OPTIM_ADAMW, .lr = 0.03, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-8}}},
};

static const float *find_tensor(const golden *g, const char *name, const char *what,
                                size_t *ret_n) {
  golden_tensor t;
  if (!golden_find_tensor(g, name, what, &t)) fail_msg("%s.%s is missing", name, what);
  *ret_n = t.n;
  return t.data;
}

static void assert_near(const char *name, const char *what, const float *got, const float *want,
                        size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!(fabs((double)got[i] - want[i]) <= 1e-5 * (1e-2 + fabs((double)want[i]))))
      fail_msg("%s: %s[%zu] is %.9g, torch has %.9g", name, what, i, (double)got[i],
               (double)want[i]);
}

enum { N = 67, GAP_VALUES = 5, BLOCK_VALUES = N + GAP_VALUES + 3 };

/* Returns the index of value i in the block, where the values are in two spans. Other values lie
 * before, between and after the spans; a step must not change them. */
static size_t get_position(size_t i) { return i < 20 ? i + 3 : i + 3 + GAP_VALUES; }

static void copy_to_block(float *block, const float *v, float gap) {
  for (size_t i = 0; i < BLOCK_VALUES; i++) block[i] = gap;
  for (size_t i = 0; i < N; i++) block[get_position(i)] = v[i];
}

static void copy_from_block(float *v, const float *block) {
  for (size_t i = 0; i < N; i++) v[i] = block[get_position(i)];
}

/* Returns how many moments of the case are in the golden file that torch wrote. */
static int count_golden_moments(const golden *g, const char *name) {
  static const char *const names[] = {"momentum_buffer", "exp_avg",  "exp_avg_sq", "sum",
                                      "square_avg",      "grad_avg", "exp_inf"};
  int n = 0;
  golden_tensor t;
  for (size_t i = 0; i < CLV_COUNT(names); i++) n += golden_find_tensor(g, name, names[i], &t);
  return n;
}

static void check_golden(const golden *g, size_t c) {
  const clv_optim_config *groups = golden_cases[c].group;
  const size_t n_groups = groups[1].lr > 0 ? 2 : 1;
  const clv_optim_span spans[] = {{3 * 4, 20, 0}, {(23 + GAP_VALUES) * 4, N - 20, n_groups - 1}};
  const char *name = golden_cases[c].name;
  float p[BLOCK_VALUES], block_grad[BLOCK_VALUES], got[N];
  size_t n;
  const float *grads = find_tensor(g, name, "grads", &n),
              *wanted_params = find_tensor(g, name, "after", &n);
  clv_optim *o = make_groups(groups, n_groups, sizeof p, spans, 2);
  copy_to_block(p, find_tensor(g, name, "start", &n), 77);
  for (int t = 0; t < 5; t++) {
    copy_to_block(block_grad, grads + t * N, NAN);
    for (size_t i = 0; i < BLOCK_VALUES; i++) block_grad[i] *= 4;
    clv_optim_step(o, p, block_grad, (double[]){groups[0].lr, groups[1].lr}, 0.25);
    copy_from_block(got, p);
    assert_near(name, "after", got, wanted_params + t * N, N);
    assert_true(*clv_optim_step_count(o) == t + 1);
  }
  for (size_t i = 0; i < BLOCK_VALUES; i++)
    if (i < 3 || (i >= 23 && i < 23 + GAP_VALUES)) assert_true(p[i] == 77);
  int moments = clv_optim_n_moments(o);
  assert_int_equal(moments, count_golden_moments(g, name));
  for (int i = 0; i < moments; i++) {
    copy_from_block(got, clv_optim_moment(o, i));
    assert_near(name, "moment", got, find_tensor(g, name, clv_optim_moment_name(o, i), &n), N);
    assert_true(clv_optim_moment(o, i)[0] == 0);
  }
  assert_null(clv_optim_moment(o, moments));
  assert_null(clv_optim_moment_name(o, -1));
  clv_optim_free(o);
}

static void test_every_optimizer_matches_torch(void **state) {
  golden g;
  (void)state;
  golden_open(&g, "optim");
  for (size_t i = 0; i < CLV_COUNT(golden_cases); i++) check_golden(&g, i);
  golden_close(&g);
}

/* An optimiser that gets the state of another one after two steps must continue with the same bits
 * as the other one. */
static void test_restored_state_continues_with_the_same_bits(void **state) {
  static const clv_optim_span full_span = {0, 9, 0};
  static const double lr = 0.01;
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(golden_cases); c++) {
    float p[9], q[9], g[9];
    const clv_optim_config *config = golden_cases[c].group;
    clv_optim *a = make_optim(config, sizeof p, &full_span, 1),
              *b = make_optim(config, sizeof p, &full_span, 1);
    for (int i = 0; i < 9; i++) p[i] = 1 - 0.3f * (float)i;
    for (int t = 0; t < 5; t++) {
      for (int i = 0; i < 9; i++) g[i] = (float)sin(t * 9 + i);
      if (t == 2) {
        memcpy(q, p, sizeof p);
        *clv_optim_step_count(b) = *clv_optim_step_count(a);
        for (int i = 0; i < clv_optim_n_moments(a); i++)
          memcpy(clv_optim_moment(b, i), clv_optim_moment(a, i), sizeof p);
      }
      clv_optim_step(a, p, g, &lr, 1);
      if (t >= 2) clv_optim_step(b, q, g, &lr, 1);
    }
    assert_memory_equal(p, q, sizeof p);
    clv_optim_free(a);
    clv_optim_free(b);
  }
}

/* ---- the average of the parameters ----------------------------------------------------------- */

/* Step function of f32_backend: a step of sgd in f32, as backends take it. */
static void f32_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                     float *const m[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs, size_t n) {
  (void)b;
  for (const clv_extent *r = runs; r < runs + n; r++)
    for (size_t i = r->at; i < r->at + r->n; i++) clv_step_sgd(a, i, p, g, m[0], m[1], m[2]);
}

static const clv_backend f32_backend = {
    .abi = CLV_KERNELS_ABI, .size = sizeof(clv_backend), .name = "f32", .step = f32_step};

static clv_optim *make_averaging(double decay, bool warmup, size_t bytes,
                                 const clv_optim_span *spans, size_t n) {
  const clv_optim_config c = {
      .kind = CLV_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .ema = decay, .ema_warmup = warmup};
  clv_optim *o = NULL;
  clv_err err;
  if (clv_optim_new((clv_optim_config[]){c, c}, 2, bytes, spans, n, &f32_backend, &o, &err) !=
      CLV_OK)
    fail_msg("%s", err.text);
  return o;
}

/* Updates the average in double from the parameters after step t, by the formula of optim.h. */
static void average_in_double(double *average, const float *p, int t, double decay, bool warmup) {
  double d = warmup && (1.0 + t) / (10 + t) < decay ? (1.0 + t) / (10 + t) : decay;
  for (size_t i = 0; i < N; i++)
    average[i] = t == 1 ? (double)p[i] : d * average[i] + (1 - d) * (double)p[i];
}

static void check_average(const golden *g, bool warmup) {
  const clv_optim_span spans[] = {{3 * 4, 20, 0}, {(23 + GAP_VALUES) * 4, N - 20, 1}};
  float p[BLOCK_VALUES], grad[BLOCK_VALUES], stepped[N], average[N];
  double expected[N] = {0};
  size_t n;
  const float *grads = find_tensor(g, "ema", "grads", &n),
              *start = find_tensor(g, "ema", "start", &n),
              *after = find_tensor(g, "ema", "after", &n),
              *torch = find_tensor(g, "ema", warmup ? "warm" : "plain", &n);
  clv_err err;
  copy_to_block(p, start, 77);
  clv_optim *o = make_averaging(0.9, warmup, sizeof p, spans, 2);
  assert_int_equal(clv_optim_begin_ema(o, p, &err), CLV_OK);
  assert_int_equal(clv_optim_n_moments(o), 2);
  assert_string_equal(clv_optim_moment_name(o, 1), "ema");
  assert_ptr_equal(clv_optim_moment(o, 1), clv_optim_ema(o));
  assert_memory_equal(clv_optim_ema(o), p, sizeof p);
  for (int t = 1; t <= 6; t++) {
    copy_to_block(grad, grads + (t - 1) * N, NAN);
    clv_optim_step(o, p, grad, (double[]){0.05, 0.02}, 1);
    copy_from_block(stepped, p);
    copy_from_block(average, clv_optim_ema(o));
    average_in_double(expected, stepped, t, 0.9, warmup);
    assert_near("ema", "parameters", stepped, after + (t - 1) * N, N);
    assert_near("ema", "average", average, torch + (t - 1) * N, N);
    if (!warmup) assert_memory_equal(average, torch + (t - 1) * N, sizeof average);
    for (size_t i = 0; i < N; i++)
      assert_true(fabs(average[i] - expected[i]) < 3e-7 * (1 + fabs(expected[i])));
    if (t == 1) assert_memory_equal(average, stepped, sizeof average);
  }
  for (size_t i = 0; i < BLOCK_VALUES; i++)
    if (i < 3 || (i >= 23 && i < 23 + GAP_VALUES)) assert_true(clv_optim_ema(o)[i] == 77);
  clv_optim_free(o);
}

static void average_is_that_of_torch_and_of_doubles(void **state) {
  golden g;
  (void)state;
  golden_open(&g, "ema");
  check_average(&g, false);
  check_average(&g, true);
  golden_close(&g);
}

/* The first step overwrites the average, however large its earlier values are. */
static void first_step_sets_the_average_to_the_parameters(void **state) {
  static const clv_optim_span all = {0, 16, 0};
  static const double lr[] = {0.05, 0.05};
  float before[16], p[16], g[16];
  clv_err err;
  (void)state;
  for (int i = 0; i < 16; i++) before[i] = 1e8f, p[i] = 0.1f * (float)i, g[i] = (float)sin(i);
  clv_optim *o = make_averaging(0.9, false, sizeof p, &all, 1);
  assert_int_equal(clv_optim_begin_ema(o, before, &err), CLV_OK);
  clv_optim_step(o, p, g, lr, 1);
  assert_memory_equal(clv_optim_ema(o), p, sizeof p);
  clv_optim_free(o);
}

/* An average changes no bit of the parameters p, which equal those of an optimiser without an
 * average. An optimiser that gets the state of another one between steps continues with the same
 * bits of parameters and average. */
static void restored_average_continues_with_the_same_bits(void **state) {
  static const clv_optim_span all = {0, 16, 0};
  static const double lr[] = {0.05, 0.05};
  float p[16], p_restored[16], p_unaveraged[16], g[16];
  (void)state;
  for (int i = 0; i < 16; i++) p[i] = p_unaveraged[i] = 1 - 0.3f * (float)i;
  clv_optim *a = make_averaging(0.99, true, sizeof p, &all, 1),
            *restored = make_averaging(0.99, true, sizeof p, &all, 1),
            *unaveraged = make_averaging(0, false, sizeof p, &all, 1);
  assert_int_equal(clv_optim_n_moments(unaveraged), 1);
  assert_null(clv_optim_ema(unaveraged));
  for (int t = 0; t < 5; t++) {
    for (int i = 0; i < 16; i++) g[i] = (float)sin(t * 16 + i);
    if (t == 2) {
      memcpy(p_restored, p, sizeof p);
      *clv_optim_step_count(restored) = *clv_optim_step_count(a);
      for (int i = 0; i < clv_optim_n_moments(a); i++)
        memcpy(clv_optim_moment(restored, i), clv_optim_moment(a, i), sizeof p);
    }
    clv_optim_step(a, p, g, lr, 1);
    clv_optim_step(unaveraged, p_unaveraged, g, lr, 1);
    if (t >= 2) clv_optim_step(restored, p_restored, g, lr, 1);
  }
  assert_memory_equal(p, p_unaveraged, sizeof p);
  assert_memory_equal(p, p_restored, sizeof p);
  assert_memory_equal(clv_optim_ema(a), clv_optim_ema(restored), sizeof p);
  assert_memory_not_equal(clv_optim_ema(a), p, sizeof p);
  clv_optim_free(a);
  clv_optim_free(restored);
  clv_optim_free(unaveraged);
}

/* ---- groups of parameters -------------------------------------------------------------------- */

/* One optimiser with two groups must give the same bits as two separate optimisers. Spans 0 and 2
 * of three belong to the first group. */
static void check_groups(const clv_optim_config *groups) {
  static const clv_optim_span spans[] = {{0, 5, 0}, {20, 7, 1}, {48, 4, 0}};
  static const clv_optim_span first_spans[] = {{0, 5, 0}, {48, 4, 0}}, second_span = {20, 7, 0};
  float p[16], q[16], g[16];
  clv_optim *optim_of_groups = make_groups(groups, 2, sizeof p, spans, 3);
  clv_optim *first_optim = make_optim(&groups[0], sizeof p, first_spans, 2);
  clv_optim *second_optim = make_optim(&groups[1], sizeof p, &second_span, 1);
  for (int i = 0; i < 16; i++) p[i] = q[i] = 1 - 0.3f * (float)i;
  for (int t = 0; t < 5; t++) {
    double lr[] = {groups[0].lr, groups[1].lr / (t + 1)};
    for (int i = 0; i < 16; i++) g[i] = (float)sin(t * 16 + i);
    clv_optim_step(optim_of_groups, p, g, lr, 0.5);
    clv_optim_step(first_optim, q, g, &lr[0], 0.5);
    clv_optim_step(second_optim, q, g, &lr[1], 0.5);
  }
  assert_memory_equal(p, q, sizeof p);
  assert_int_equal(clv_optim_n_groups(optim_of_groups), 2);
  assert_true(*clv_optim_step_count(optim_of_groups) == 5);
  for (int i = 0; i < clv_optim_n_moments(optim_of_groups); i++)
    for (int k = 0; k < 16; k++) {
      clv_optim *separate_optim = k >= 5 && k < 12 ? second_optim : first_optim;
      float wanted_moment =
          i < clv_optim_n_moments(separate_optim) ? clv_optim_moment(separate_optim, i)[k] : 0;
      assert_true(clv_optim_moment(optim_of_groups, i)[k] == wanted_moment);
    }
  clv_optim_free(optim_of_groups);
  clv_optim_free(first_optim);
  clv_optim_free(second_optim);
}

static const clv_optim_config plain_sgd = {.kind = CLV_OPTIM_SGD, .lr = 0.1};
static const clv_optim_config with_momentum = {.kind = CLV_OPTIM_SGD, .lr = 0.05, .momentum = 0.9};

static void test_each_group_uses_its_own_settings(void **state) {
  const clv_optim_config adam = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const clv_optim_config adam_with_decay = {.kind = CLV_OPTIM_ADAM,
                                            .lr = 0.03,
                                            .weight_decay = 0.1,
                                            .beta1 = 0.8,
                                            .beta2 = 0.95,
                                            .eps = 1e-6};
  (void)state;
  check_groups((clv_optim_config[]){plain_sgd, with_momentum});
  check_groups((clv_optim_config[]){with_momentum, plain_sgd});
  check_groups((clv_optim_config[]){adam, adam_with_decay});
}

/* Only one of the two groups has momentum, so the optimiser has one moment. For the group without
 * momentum, the backend gets no moment. */
static void test_moment_count_is_the_maximum_over_groups(void **state) {
  static const clv_optim_span spans[] = {{0, 2, 0}, {8, 2, 1}};
  float p[4] = {1, 1, 1, 1}, g[4] = {1, 1, 1, 1};
  (void)state;
  clv_optim *o = make_groups((clv_optim_config[]){plain_sgd, with_momentum}, 2, sizeof p, spans, 2);
  assert_int_equal(clv_optim_n_moments(o), 1);
  clv_optim_step(o, p, g, (double[]){0.5, 0.25}, 1);
  clv_optim_step(o, p, g, (double[]){0.5, 0.25}, 1);
  assert_true(p[0] == 0 && p[1] == 0);
  assert_true(p[2] == 0.75f - 0.25f * 1.9f && p[3] == p[2]);
  assert_true(clv_optim_moment(o, 0)[1] == 0 && clv_optim_moment(o, 0)[2] == 1.9f);
  clv_optim_free(o);
  assert_int_equal(clv_optim_count_moments(clv_optim_moment_mask(&plain_sgd)), 0);
}

static void assert_groups_refused(const clv_optim_config *groups, size_t n, size_t span_group,
                                  const char *word) {
  const clv_optim_span span = {0, 1, span_group};
  clv_optim *o = NULL;
  clv_err err;
  assert_int_equal(clv_optim_new(groups, n, 64, &span, 1, &formulas, &o, &err), CLV_INVALID);
  assert_null(o);
  if (!strstr(err.text, word)) fail_msg("'%s' is not in: %s", word, err.text);
}

static void test_invalid_groups_are_refused(void **state) {
  clv_optim_config equal_groups[CLV_OPTIM_MAX_GROUPS + 1];
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(equal_groups); i++) equal_groups[i] = plain_sgd;
  assert_groups_refused(equal_groups, 0, 0, "groups, not 0");
  assert_groups_refused(equal_groups, CLV_COUNT(equal_groups), 0, "groups, not 17");
  assert_groups_refused(equal_groups, 2, 2, "in group 2, but there are 2 groups");
  equal_groups[1] = (clv_optim_config){.kind = CLV_OPTIM_ADAM, .lr = 0.1};
  assert_groups_refused(equal_groups, 2, 0, "group 1 is of kind 1, group 0 of kind 0");
  equal_groups[1] = plain_sgd, equal_groups[1].momentum = 2;
  assert_groups_refused(equal_groups, 2, 0, "momentum is 2");
  equal_groups[1] = plain_sgd, equal_groups[1].ema = 0.5;
  assert_groups_refused(equal_groups, 2, 0, "group 1 has ema 0.5, group 0 has 0");
  equal_groups[1] = plain_sgd;
  clv_optim_free(make_groups(equal_groups, CLV_OPTIM_MAX_GROUPS, 64, NULL, 0));
}

/* ---- optimiser settings that are refused ----------------------------------------------------- */

static void assert_config_refused(clv_optim_config c, const char *word) {
  clv_optim *o = NULL;
  clv_err err;
  assert_int_equal(clv_optim_new(&c, 1, 64, NULL, 0, &formulas, &o, &err), CLV_INVALID);
  assert_null(o);
  if (!strstr(err.text, word)) fail_msg("'%s' is not in: %s", word, err.text);
}

static void test_invalid_settings_are_refused(void **state) {
  const clv_optim_config sgd = {.kind = CLV_OPTIM_SGD, .lr = 0.1};
  const clv_optim_config adam = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  clv_optim_config c;
  (void)state;
  c = sgd, c.kind = (clv_optim_kind)7, assert_config_refused(c, "7");
  c = sgd, c.lr = -0.5, assert_config_refused(c, "lr is -0.5");
  c = sgd, c.lr = NAN, assert_config_refused(c, "lr is nan");
  c = sgd, c.momentum = 1.5, assert_config_refused(c, "momentum is 1.5");
  c = sgd, c.nesterov = true, assert_config_refused(c, "nesterov");
  c = sgd, c.weight_decay = INFINITY, assert_config_refused(c, "weight_decay is inf");
  c = sgd, c.ema = 1, assert_config_refused(c, "average of the weights (ema) is 1");
  c = sgd, c.ema = NAN, assert_config_refused(c, "(ema) is nan");
  c = adam, c.beta1 = 1, assert_config_refused(c, "beta1 is 1");
  c = adam, c.beta2 = -0.1, assert_config_refused(c, "beta2 is -0.1");
  c = adam, c.eps = -1, assert_config_refused(c, "eps is -1");
  const clv_optim_config adagrad = {.kind = CLV_OPTIM_ADAGRAD, .lr = 0.1, .eps = 1e-10};
  c = adagrad, c.lr_decay = -1, assert_config_refused(c, "lr_decay is -1");
  c = adagrad, c.initial_accumulator_value = NAN,
  assert_config_refused(c, "initial_accumulator_value is nan");
  const clv_optim_config rmsprop = {.kind = CLV_OPTIM_RMSPROP, .lr = 0.1, .alpha = 0.99};
  c = rmsprop, c.alpha = 1, assert_config_refused(c, "alpha is 1");
  c = rmsprop, c.momentum = 1.5, assert_config_refused(c, "momentum is 1.5");
  c = rmsprop, c.kind = CLV_OPTIM_ADAMAX, c.beta1 = 2, assert_config_refused(c, "beta1 is 2");
}

static void test_invalid_spans_are_refused(void **state) {
  static const clv_optim_span bad_spans[] = {
      {0, 17, 0}, {64, 1, 0},           {2, 1, 0},
      {60, 2, 0}, {SIZE_MAX - 3, 1, 0}, {4, SIZE_MAX / 4 + 1, 0}};
  const clv_optim_config c = {.kind = CLV_OPTIM_SGD, .lr = 1};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(bad_spans); i++) {
    clv_optim *o = NULL;
    clv_err err;
    assert_int_equal(clv_optim_new(&c, 1, 64, &bad_spans[i], 1, &formulas, &o, &err), CLV_INVALID);
    assert_null(o);
    assert_non_null(strstr(err.text, "outside its block of 64 bytes"));
  }
  clv_optim_span valid_span = {0, 16, 0};
  clv_optim_free(make_optim(&c, 64, &valid_span, 1));
  assert_null(clv_optim_free(NULL));
}

/* Settings that the caller leaves out have torch's defaults. Settings that the caller gives keep
 * their value. */
static void test_omitted_settings_have_torch_defaults(void **state) {
  clv_optim_config c = {.kind = CLV_OPTIM_RMSPROP};
  (void)state;
  clv_optim_set_defaults(&c);
  assert_true(c.alpha == 0.99 && c.eps == 1e-8 && c.beta1 == 0);
  c = (clv_optim_config){.kind = CLV_OPTIM_RMSPROP, .eps = 1e-3};
  clv_optim_set_defaults(&c);
  assert_true(c.alpha == 0 && c.eps == 1e-3);
  c = (clv_optim_config){.kind = CLV_OPTIM_ADAGRAD};
  clv_optim_set_defaults(&c);
  assert_true(c.eps == 1e-10);
  c = (clv_optim_config){.kind = CLV_OPTIM_SGD};
  clv_optim_set_defaults(&c);
  assert_true(c.eps == 0 && c.momentum == 0);
}

/* Making an optimiser allocates each moment, the optimiser and its spans. A step allocates nothing.
 */
static void test_step_allocates_nothing(void **state) {
  static const clv_optim_span full_span = {0, 16, 0};
  static const double lr = 0.1;
  const clv_optim_config c = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  float p[16] = {0}, g[16] = {0};
  (void)state;
  uint64_t before = clv_alloc_count();
  clv_optim *o = make_optim(&c, 64, &full_span, 1);
  assert_true(clv_alloc_count() == before + 4);
  clv_optim_step(o, p, g, &lr, 1);
  assert_true(clv_alloc_count() == before + 4);
  clv_optim_free(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_optimizer_matches_torch),
      cmocka_unit_test(test_restored_state_continues_with_the_same_bits),
      cmocka_unit_test(average_is_that_of_torch_and_of_doubles),
      cmocka_unit_test(first_step_sets_the_average_to_the_parameters),
      cmocka_unit_test(restored_average_continues_with_the_same_bits),
      cmocka_unit_test(test_each_group_uses_its_own_settings),
      cmocka_unit_test(test_moment_count_is_the_maximum_over_groups),
      cmocka_unit_test(test_invalid_settings_are_refused),
      cmocka_unit_test(test_invalid_spans_are_refused),
      cmocka_unit_test(test_invalid_groups_are_refused),
      cmocka_unit_test(test_step_allocates_nothing),
      cmocka_unit_test(test_omitted_settings_have_torch_defaults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
