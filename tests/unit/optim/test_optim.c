/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the optimiser itself does: settings, spans, counters, factors and state. The steps are
 * computed here, in double, by the formulas of optim.h; tests/ops compares the steps of the
 * backends with torch.
 */
#include "common/model/optim/optim.h"
#include "tests/golden/golden_int.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

typedef struct value {
  double p, d;
  float *m[CLV_OPTIM_MAX_MOMENTS];
} value;

static void step_sgd(const clv_step_args *a, value *v) {
  float *m = v->m[0];
  if (m) {
    *m = (float)(a->is_first_step ? v->d : (double)a->momentum * *m + v->d);
    v->d = a->nesterov ? v->d + (double)a->momentum * *m : *m;
  }
  v->p -= a->step_size * v->d;
}

static void update_average(float *m, double kept_share, double new_share, double d) {
  *m = (float)(kept_share * *m + new_share * d);
}

static void step_adam(const clv_step_args *a, value *v) {
  update_average(v->m[0], 1 - (double)a->one_minus_decay[0], a->one_minus_decay[0], v->d);
  update_average(v->m[1], 1 - (double)a->one_minus_decay[1], a->one_minus_decay[1], v->d * v->d);
  v->p -= a->step_size * *v->m[0] / (sqrt(*v->m[1]) / a->bias2_sqrt + a->eps);
}

static void step_adagrad(const clv_step_args *a, value *v) {
  update_average(v->m[0], 1, 1, v->d * v->d);
  v->p -= a->step_size * v->d / (sqrt(*v->m[0]) + a->eps);
}

static void step_rmsprop(const clv_step_args *a, value *v) {
  update_average(v->m[0], a->decay[0], a->one_minus_decay[0], v->d * v->d);
  if (v->m[2]) update_average(v->m[2], a->decay[0], a->one_minus_decay[0], v->d);
  double mean = v->m[2] ? *v->m[2] : 0;
  double step = v->d / (sqrt(*v->m[0] - mean * mean) + a->eps);
  if (v->m[1]) update_average(v->m[1], a->momentum, 1, step);
  v->p -= a->step_size * (v->m[1] ? *v->m[1] : step);
}

static void step_adamax(const clv_step_args *a, value *v) {
  update_average(v->m[0], a->decay[0], a->one_minus_decay[0], v->d);
  *v->m[1] = (float)fmax((double)a->decay[1] * *v->m[1], fabs(v->d) + a->eps);
  v->p -= a->step_size * *v->m[0] / *v->m[1];
}

static void apply_formula(const clv_step_args *a, float *p, const float *g,
                          float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *r) {
  static void (*const formulas[])(const clv_step_args *, value *) = {
      step_sgd, step_adam, step_adam, step_adagrad, step_rmsprop, step_adamax};
  for (size_t i = r->at; i < r->at + r->n; i++) {
    bool is_apart = a->kind == CLV_OPTIM_ADAMW;
    value v = {.p = p[i], .d = (double)g[i] * a->grad_scale};
    if (is_apart) v.p *= a->weight_factor;
    if (!is_apart) v.d += (double)a->weight_decay * v.p;
    for (int k = 0; k < CLV_OPTIM_MAX_MOMENTS; k++) v.m[k] = moments[k] ? moments[k] + i : NULL;
    formulas[a->kind](a, &v);
    p[i] = (float)v.p;
  }
}

static void formula_step(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
                         float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                         size_t n_runs) {
  (void)b;
  for (size_t i = 0; i < n_runs; i++) apply_formula(a, p, g, moments, &runs[i]);
}

static const clv_backend formulas = {
    .abi = CLV_KERNELS_ABI, .size = sizeof(clv_backend), .name = "formulas", .step = formula_step};

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
  clv_optim_config group[2]; /* the second group has the second span, unless its lr is 0 */
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

enum { N = 67, GAP = 5, BLOCK = N + GAP + 3 };

/* Returns the position of value i: the 67 values are in two spans, with gaps that hold other
 * numbers. */
static size_t get_position(size_t i) { return i < 20 ? i + 3 : i + 3 + GAP; }

static void copy_to_block(float *block, const float *v, float gap) {
  for (size_t i = 0; i < BLOCK; i++) block[i] = gap;
  for (size_t i = 0; i < N; i++) block[get_position(i)] = v[i];
}

static void copy_from_block(float *v, const float *block) {
  for (size_t i = 0; i < N; i++) v[i] = block[get_position(i)];
}

/* Returns the number of moments in torch's file. */
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
  const clv_optim_span spans[] = {{3 * 4, 20, 0}, {(23 + GAP) * 4, N - 20, n_groups - 1}};
  const char *name = golden_cases[c].name;
  float p[BLOCK], grad[BLOCK], stepped[N];
  size_t n;
  const float *grads = find_tensor(g, name, "grads", &n),
              *after = find_tensor(g, name, "after", &n);
  clv_optim *o = make_groups(groups, n_groups, sizeof p, spans, 2);
  copy_to_block(p, find_tensor(g, name, "start", &n), 77);
  for (int t = 0; t < 5; t++) {
    copy_to_block(grad, grads + t * N, NAN);
    for (size_t i = 0; i < BLOCK; i++) grad[i] *= 4;
    clv_optim_step(o, p, grad, (double[]){groups[0].lr, groups[1].lr}, 0.25);
    copy_from_block(stepped, p);
    assert_near(name, "after", stepped, after + t * N, N);
    assert_true(*clv_optim_step_count(o) == t + 1);
  }
  for (size_t i = 0; i < BLOCK; i++)
    if (i < 3 || (i >= 23 && i < 23 + GAP)) assert_true(p[i] == 77);
  int moments = clv_optim_n_moments(o);
  assert_int_equal(moments, count_golden_moments(g, name));
  for (int i = 0; i < moments; i++) {
    copy_from_block(stepped, clv_optim_moment(o, i));
    assert_near(name, "moment", stepped, find_tensor(g, name, clv_optim_moment_name(o, i), &n), N);
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

/* State that is read after two steps and loaded into a new optimiser continues with the same
 * bits. */
static void test_restored_state_continues_with_the_same_bits(void **state) {
  static const clv_optim_span all = {0, 9, 0};
  static const double lr = 0.01;
  (void)state;
  for (size_t c = 0; c < CLV_COUNT(golden_cases); c++) {
    float p[9], q[9], g[9];
    const clv_optim_config *config = golden_cases[c].group;
    clv_optim *a = make_optim(config, sizeof p, &all, 1),
              *b = make_optim(config, sizeof p, &all, 1);
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

/* ---- groups of parameters -------------------------------------------------------------------- */

/* Two groups step with the bits of two separate optimisers. Spans 0 and 2 of three belong to the
 * first group. */
static void check_groups(const clv_optim_config *groups) {
  static const clv_optim_span spans[] = {{0, 5, 0}, {20, 7, 1}, {48, 4, 0}};
  static const clv_optim_span first[] = {{0, 5, 0}, {48, 4, 0}}, second = {20, 7, 0};
  float p[16], q[16], g[16];
  clv_optim *both = make_groups(groups, 2, sizeof p, spans, 3);
  clv_optim *one = make_optim(&groups[0], sizeof p, first, 2);
  clv_optim *two = make_optim(&groups[1], sizeof p, &second, 1);
  for (int i = 0; i < 16; i++) p[i] = q[i] = 1 - 0.3f * (float)i;
  for (int t = 0; t < 5; t++) {
    double lr[] = {groups[0].lr, groups[1].lr / (t + 1)};
    for (int i = 0; i < 16; i++) g[i] = (float)sin(t * 16 + i);
    clv_optim_step(both, p, g, lr, 0.5);
    clv_optim_step(one, q, g, &lr[0], 0.5);
    clv_optim_step(two, q, g, &lr[1], 0.5);
  }
  assert_memory_equal(p, q, sizeof p);
  assert_int_equal(clv_optim_n_groups(both), 2);
  assert_true(*clv_optim_step_count(both) == 5);
  for (int i = 0; i < clv_optim_n_moments(both); i++)
    for (int k = 0; k < 16; k++) {
      clv_optim *of = k >= 5 && k < 12 ? two : one;
      float wanted = i < clv_optim_n_moments(of) ? clv_optim_moment(of, i)[k] : 0;
      assert_true(clv_optim_moment(both, i)[k] == wanted);
    }
  clv_optim_free(both);
  clv_optim_free(one);
  clv_optim_free(two);
}

static const clv_optim_config plain = {.kind = CLV_OPTIM_SGD, .lr = 0.1};
static const clv_optim_config with_momentum = {.kind = CLV_OPTIM_SGD, .lr = 0.05, .momentum = 0.9};

static void test_each_group_uses_its_own_settings(void **state) {
  const clv_optim_config adam = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const clv_optim_config decayed = {.kind = CLV_OPTIM_ADAM,
                                    .lr = 0.03,
                                    .weight_decay = 0.1,
                                    .beta1 = 0.8,
                                    .beta2 = 0.95,
                                    .eps = 1e-6};
  (void)state;
  check_groups((clv_optim_config[]){plain, with_momentum});
  check_groups((clv_optim_config[]){with_momentum, plain});
  check_groups((clv_optim_config[]){adam, decayed});
}

/* The group with momentum decides how many moments there are. A backend gets none for the other
 * group. */
static void test_moment_count_is_the_maximum_over_groups(void **state) {
  static const clv_optim_span spans[] = {{0, 2, 0}, {8, 2, 1}};
  float p[4] = {1, 1, 1, 1}, g[4] = {1, 1, 1, 1};
  (void)state;
  clv_optim *o = make_groups((clv_optim_config[]){plain, with_momentum}, 2, sizeof p, spans, 2);
  assert_int_equal(clv_optim_n_moments(o), 1);
  clv_optim_step(o, p, g, (double[]){0.5, 0.25}, 1);
  clv_optim_step(o, p, g, (double[]){0.5, 0.25}, 1);
  assert_true(p[0] == 0 && p[1] == 0);
  assert_true(p[2] == 0.75f - 0.25f * 1.9f && p[3] == p[2]);
  assert_true(clv_optim_moment(o, 0)[1] == 0 && clv_optim_moment(o, 0)[2] == 1.9f);
  clv_optim_free(o);
  assert_int_equal(clv_optim_count_moments(clv_optim_moment_mask(&plain)), 0);
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
  clv_optim_config many[CLV_OPTIM_MAX_GROUPS + 1];
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(many); i++) many[i] = plain;
  assert_groups_refused(many, 0, 0, "groups, not 0");
  assert_groups_refused(many, CLV_COUNT(many), 0, "groups, not 17");
  assert_groups_refused(many, 2, 2, "in group 2, but there are 2 groups");
  many[1] = (clv_optim_config){.kind = CLV_OPTIM_ADAM, .lr = 0.1};
  assert_groups_refused(many, 2, 0, "group 1 is of kind 1, group 0 of kind 0");
  many[1] = plain, many[1].momentum = 2;
  assert_groups_refused(many, 2, 0, "momentum is 2");
  many[1] = plain;
  clv_optim_free(make_groups(many, CLV_OPTIM_MAX_GROUPS, 64, NULL, 0));
}

/* ---- settings that are refused --------------------------------------------------------------- */

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
  static const clv_optim_span wrong[] = {
      {0, 17, 0}, {64, 1, 0},           {2, 1, 0},
      {60, 2, 0}, {SIZE_MAX - 3, 1, 0}, {4, SIZE_MAX / 4 + 1, 0}};
  const clv_optim_config c = {.kind = CLV_OPTIM_SGD, .lr = 1};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(wrong); i++) {
    clv_optim *o = NULL;
    clv_err err;
    assert_int_equal(clv_optim_new(&c, 1, 64, &wrong[i], 1, &formulas, &o, &err), CLV_INVALID);
    assert_null(o);
    assert_non_null(strstr(err.text, "outside its block of 64 bytes"));
  }
  clv_optim_span whole = {0, 16, 0};
  clv_optim_free(make_optim(&c, 64, &whole, 1));
  assert_null(clv_optim_free(NULL));
}

/* Settings that are left out have torch's defaults; others keep their value. */
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
  static const clv_optim_span all = {0, 16, 0};
  static const double lr = 0.1;
  const clv_optim_config c = {
      .kind = CLV_OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  float p[16] = {0}, g[16] = {0};
  (void)state;
  uint64_t before = clv_alloc_count();
  clv_optim *o = make_optim(&c, 64, &all, 1);
  assert_true(clv_alloc_count() == before + 4);
  clv_optim_step(o, p, g, &lr, 1);
  assert_true(clv_alloc_count() == before + 4);
  clv_optim_free(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_optimizer_matches_torch),
      cmocka_unit_test(test_restored_state_continues_with_the_same_bits),
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
