/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests every optimiser through the C API: api_optimizers SESSION.yaml A B steps a module at A,
 * with a loss at B, by the gradients of torch.optim's golden runs, and ends with a digest of the
 * results. Runs from the root of the repository.
 */
#include "api_int.h"

enum { N = 67, STEPS = 5 };

/* ---- training runs of PyTorch, read from golden files ---------------------------------------- */

/* Reads the n values named NAME.ITEM from tests/golden/optim.txt and optim.bin. */
static bool read_golden(const char *name, const char *item, float *ret, size_t n) {
  char line[160], key[96];
  size_t length = (size_t)snprintf(key, sizeof key, "%s.%s f32 ", name, item);
  long offset = -1;
  FILE *names_file = fopen("tests/golden/optim.txt", "r"),
       *values_file = fopen("tests/golden/optim.bin", "r");
  CHECK(names_file && values_file);
  while (offset < 0 && fgets(line, sizeof line, names_file))
    if (strncmp(line, key, length) == 0) offset = strtol(line + length, NULL, 10);
  bool is_found = offset >= 0 && fseek(values_file, offset, SEEK_SET) == 0 &&
                  fread(ret, 4, n, values_file) == n;
  fclose(names_file);
  fclose(values_file);
  return is_found;
}

#define CLV_OPTIM_SGD CLEAVE_SGD
#define CLV_OPTIM_ADAM CLEAVE_ADAM
#define CLV_OPTIM_ADAMW CLEAVE_ADAMW
#define CLV_OPTIM_ADAGRAD CLEAVE_ADAGRAD
#define CLV_OPTIM_RMSPROP CLEAVE_RMSPROP
#define CLV_OPTIM_ADAMAX CLEAVE_ADAMAX
static const struct {
  const char *name;
  cleave_group group;
} cases[] = {
#define CASE(name, ...) {#name, {__VA_ARGS__}},
#include "../../golden/optim_cases.def"
#undef CASE
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- a module whose gradients the test chooses ----------------------------------------------- */

typedef struct trained_module {
  cleave_module *m, *loss;
  cleave_optimizer *o;
} trained_module;

/* Makes y = w x with x = 1 and 67 weights; the loss is mean((y - t)^2). */
static bool load_trained_module(const char *name, const cleave_group *group, trained_module *t) {
  char label[96];
  cleave_module_options m = {.size = sizeof m, .name = name, .at = at_a};
  cleave_module_options l = {.size = sizeof l, .name = label, .at = at_b};
  cleave_input one = CLEAVE_INPUT(CLEAVE_F32, 1, 1), row = CLEAVE_INPUT(CLEAVE_F32, 1, N);
  snprintf(label, sizeof label, "%s loss", name);
  MUST(cleave_load_layers(rt, &m, "[{op: linear, out: 67, bias: false}]", &one, &t->m, e));
  MUST(cleave_load_loss(rt, &l, "mse", &row, &t->loss, e));
  cleave_group g = *group;
  g.modules = &t->m;
  g.n_modules = 1;
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &t->o, e));
  return true;
}

static bool write_weights(trained_module *t, const float *values) {
  cleave_tensor w = CLEAVE_TENSOR_F32(values, N, 1);
  MUST(cleave_weight_write(rt, t->m, "0.weight", &w, 0, e));
  return true;
}

static bool read_weights(trained_module *t, float *ret) {
  cleave_tensor w = {0};
  DO(read_weight(t->m, "0.weight", &w));
  add_to_digest(&w);
  memcpy(ret, w.data, N * 4);
  cleave_tensor_free(&w);
  return true;
}

/* Takes a step in which the weights have the gradient g: chooses the target of the loss so that the
 * loss has this gradient. */
static bool take_step(trained_module *t, const float *g) {
  float w[N], target[N], x = 1;
  cleave_context c;
  cleave_reference in, y, target_leaf, loss;
  DO(read_weights(t, w));
  for (int i = 0; i < N; i++) target[i] = (float)(w[i] - (double)g[i] * N / 2);
  DO(open_context(&c));
  DO(make_leaf(c, &x, 1, 1, false, &in));
  DO(make_leaf(c, target, 1, N, false, &target_leaf));
  MUST(cleave_call(rt, c, t->m, &in, 1, &y, e));
  MUST(cleave_call(rt, c, t->loss, (cleave_reference[]){y, target_leaf}, 2, &loss, e));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, t->o, c, 0, NULL, e));
  return close_context(c);
}

static bool are_all_near(const char *name, const float *got, const float *want) {
  for (int i = 0; i < N; i++)
    if (!is_near(got[i], want[i])) {
      snprintf(why, sizeof why, "%s [%d] is %.9g, torch has %.9g", name, i, (double)got[i],
               (double)want[i]);
      return false;
    }
  return true;
}

/* ---- settings, rates and steps of optimisers ------------------------------------------------- */

static bool moments_equal_torchs(trained_module *t, const char *name) {
  cleave_state state;
  MUST(cleave_state_read(rt, t->m, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  CHECK(state.n == cleave_state_count(t->m, CLEAVE_STATE_OPTIMIZER));
  for (size_t i = 0; i < state.n; i++) {
    float want[N];
    const char *item = state.items[i].name;
    if (strcmp(item, "step") == 0) continue;
    CHECK(strncmp(item, "0.weight.", 9) == 0 && read_golden(name, item + 9, want, N));
    DO(are_all_near(name, state.items[i].tensor.data, want));
  }
  cleave_state_free(&state);
  return true;
}

static bool compare_golden_run(size_t i) {
  float initial_weights[N], grads[STEPS * N], weights_after[STEPS * N], present_weights[N];
  const char *name = cases[i].name;
  trained_module t;
  CHECK(read_golden(name, "start", initial_weights, N) &&
        read_golden(name, "grads", grads, STEPS * N));
  CHECK(read_golden(name, "after", weights_after, STEPS * N));
  DO(load_trained_module(name, &cases[i].group, &t));
  DO(write_weights(&t, initial_weights));
  for (int s = 0; s < STEPS; s++) {
    DO(take_step(&t, grads + s * N));
    DO(read_weights(&t, present_weights));
    DO(are_all_near(name, present_weights, weights_after + s * N));
  }
  return moments_equal_torchs(&t, name);
}

static bool every_optimiser_step_equals_torchs(void) {
  for (size_t i = 0; i < CASES; i++) DO(compare_golden_run(i));
  return true;
}

/* Copies weights and optimiser state of one module to another after two of four steps. Then both
 * modules take the last two steps and must have the same weights, bit for bit. */
static bool compare_resumed_run(size_t i) {
  float g[N], w[N], q[N];
  char name[96];
  trained_module a, b;
  cleave_state state;
  snprintf(name, sizeof name, "%s before", cases[i].name);
  DO(load_trained_module(name, &cases[i].group, &a));
  snprintf(name, sizeof name, "%s after", cases[i].name);
  DO(load_trained_module(name, &cases[i].group, &b));
  for (unsigned s = 0; s < 4; s++) {
    fill_with_random(g, N, s);
    DO(take_step(&a, g));
    if (s == 1) {
      DO(read_weights(&a, w));
      DO(write_weights(&b, w));
      MUST(cleave_state_read(rt, a.m, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
      MUST(cleave_state_write(rt, b.m, CLEAVE_STATE_OPTIMIZER, state.items, state.n, 0, e));
      cleave_state_free(&state);
    }
    if (s > 1) DO(take_step(&b, g));
  }
  DO(read_weights(&a, w));
  DO(read_weights(&b, q));
  CHECK(memcmp(w, q, sizeof w) == 0);
  return true;
}

static bool every_optimiser_continues_from_its_state(void) {
  for (size_t i = 7; i < CASES; i++) DO(compare_resumed_run(i));
  return true;
}

static bool invalid_settings_are_refused_by_the_api(void) {
  trained_module t;
  cleave_optimizer *o;
  const cleave_group sgd = {.lr = 0.1};
  DO(load_trained_module("wrong", &sgd, &t));
  MUST(cleave_optimizer_release(rt, t.o, e));
  static const struct {
    cleave_group group;
    const char *message;
  } invalid_groups[] = {
      {{.kind = (cleave_optimizer_kind)6, .lr = 0.1}, "kind 6 is none of 0 (sgd)"},
      {{.kind = CLEAVE_RMSPROP, .lr = 0.1, .alpha = 1}, "alpha is 1"},
      {{.kind = CLEAVE_ADAGRAD, .lr = 0.1, .lr_decay = -1}, "lr_decay is -1"},
      {{.kind = CLEAVE_ADAMAX, .lr = 0.1, .beta1 = 1}, "beta1 is 1"},
  };
  for (size_t i = 0; i < sizeof invalid_groups / sizeof *invalid_groups; i++) {
    cleave_group g = invalid_groups[i].group;
    g.modules = &t.m;
    g.n_modules = 1;
    REFUSED(cleave_optimizer_new(rt, &g, 1, 0, &o, e), CLEAVE_INVALID, invalid_groups[i].message);
  }
  return true;
}

/* Takes a step of plain SGD with the gradient 1. True if the step lowers each weight by the
 * rate. */
static bool take_and_check_step(trained_module *t, float rate) {
  float weights_before[N], weights_after[N], gradient_of_ones[N];
  for (int i = 0; i < N; i++) gradient_of_ones[i] = 1;
  DO(read_weights(t, weights_before));
  DO(take_step(t, gradient_of_ones));
  DO(read_weights(t, weights_after));
  for (int i = 0; i < N; i++) CHECK(is_near(weights_before[i] - weights_after[i], rate));
  return true;
}

static bool rates_are_read_and_set(void) {
  const cleave_group sgd = {.lr = 0.25,
                            .schedule = {.curve = CLEAVE_STEPS, .step_size = 1, .gamma = 0.5}};
  const cleave_schedule constant = {.curve = CLEAVE_CONSTANT};
  trained_module t;
  double rate;
  DO(load_trained_module("rates", &sgd, &t));
  DO(take_and_check_step(&t, 0.25f));
  MUST(cleave_optimizer_rate(rt, t.o, 0, &rate, e));
  CHECK(rate == 0.125);
  DO(take_and_check_step(&t, 0.125f));
  MUST(cleave_optimizer_set_schedule(rt, t.o, &constant, e));
  MUST(cleave_optimizer_set_rate(rt, t.o, 0, 0.75, e));
  MUST(cleave_optimizer_rate(rt, t.o, 0, &rate, e));
  CHECK(rate == 0.75);
  DO(take_and_check_step(&t, 0.75f));
  REFUSED(cleave_optimizer_set_rate(rt, t.o, 0, -1, e), CLEAVE_INVALID, "lr is -1");
  REFUSED(cleave_optimizer_set_rate(rt, t.o, 1, 1, e), CLEAVE_NOT_FOUND, "group 1 of");
  REFUSED(cleave_optimizer_rate(rt, t.o, 1, &rate, e), CLEAVE_NOT_FOUND, "group 1 of");
  return take_and_check_step(&t, 0.75f);
}

static bool invalid_schedules_are_refused_by_the_api(void) {
  const struct {
    cleave_schedule schedule;
    const char *message;
  } invalid_schedules[] = {{{.curve = (cleave_curve)9}, "curve 9: there is no such"},
                           {{.curve = CLEAVE_STEPS, .gamma = 0.5}, "needs a step_size"},
                           {{.curve = CLEAVE_STEPS, .step_size = 1, .gamma = -1}, "gamma is -1"},
                           {{.curve = CLEAVE_STEPS, .step_size = 1, .gamma = NAN}, "gamma is nan"}};
  const cleave_group sgd = {.lr = 0.25};
  cleave_optimizer *o;
  trained_module t, other = {0};
  DO(load_trained_module("schedules", &sgd, &t));
  DO(load_module("schedules of another", at_a, "[{op: linear, out: 2}]", 3, &other.m));
  for (size_t i = 0; i < sizeof invalid_schedules / sizeof *invalid_schedules; i++) {
    REFUSED(cleave_optimizer_set_schedule(rt, t.o, &invalid_schedules[i].schedule, e),
            CLEAVE_INVALID, invalid_schedules[i].message);
    cleave_group g = {
        .modules = &other.m, .n_modules = 1, .schedule = invalid_schedules[i].schedule};
    REFUSED(cleave_optimizer_new(rt, &g, 1, 0, &o, e), CLEAVE_INVALID,
            invalid_schedules[i].message);
  }
  REFUSED(cleave_optimizer_set_steps(rt, NULL, 1, e), CLEAVE_INVALID, "optimizer");
  REFUSED(cleave_optimizer_set_schedule(rt, t.o, NULL, e), CLEAVE_INVALID, "schedule");
  return take_and_check_step(&t, 0.25f);
}

/* ---- optimisers and frozen parameters, set after the first call ------------------------------ */

static bool replace_optimizer(trained_module *t, const cleave_group *group) {
  cleave_group g = *group;
  g.modules = &t->m;
  g.n_modules = 1;
  MUST(cleave_optimizer_release(rt, t->o, e));
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &t->o, e));
  return true;
}

/* Module a takes two steps with Adam, then two steps with the optimiser of case i, which replaces
 * Adam. Module b takes the last two steps with a new optimiser of case i, from the same weights.
 * Both modules must end with the same weights, bit for bit. */
static bool compare_replaced_run(size_t i) {
  const cleave_group first_group = {.kind = CLEAVE_ADAM, .lr = 0.125};
  float g[N], w[N], q[N];
  char name[96];
  trained_module a, b;
  snprintf(name, sizeof name, "%s replaces", cases[i].name);
  DO(load_trained_module(name, &first_group, &a));
  snprintf(name, sizeof name, "%s of a new one", cases[i].name);
  DO(load_trained_module(name, &cases[i].group, &b));
  for (unsigned s = 0; s < 4; s++) {
    fill_with_random(g, N, s + 40);
    if (s == 2) {
      DO(read_weights(&a, w));
      DO(write_weights(&b, w));
      DO(replace_optimizer(&a, &cases[i].group));
    }
    DO(take_step(&a, g));
    if (s > 1) DO(take_step(&b, g));
  }
  DO(read_weights(&a, w));
  DO(read_weights(&b, q));
  CHECK(memcmp(w, q, sizeof w) == 0);
  return true;
}

static bool optimisers_are_replaced(void) {
  for (size_t i = 7; i < CASES; i++) DO(compare_replaced_run(i));
  return true;
}

static bool an_optimiser_in_use_is_not_replaced(void) {
  const cleave_group sgd = {.lr = 0.5};
  float x = 1;
  trained_module t;
  cleave_context c;
  cleave_reference in, y;
  cleave_optimizer *o;
  DO(load_trained_module("in use", &sgd, &t));
  cleave_group g = {.modules = &t.m, .n_modules = 1, .lr = 0.25};
  DO(open_context(&c));
  DO(make_leaf(c, &x, 1, 1, false, &in));
  MUST(cleave_call(rt, c, t.m, &in, 1, &y, e));
  REFUSED(cleave_optimizer_new(rt, &g, 1, 0, &o, e), CLEAVE_EXISTS, "release that one first");
  MUST(cleave_optimizer_release(rt, t.o, e));
  REFUSED(cleave_optimizer_new(rt, &g, 1, 0, &o, e), CLEAVE_PRECONDITION,
          "'in use' gets no other optimiser while context");
  DO(close_context(c));
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &t.o, e));
  return take_and_check_step(&t, 0.25f);
}

/* A module y = w x + b with x = 1, so its weight and bias have the same gradients, and the values
 * that the test expects for weight and bias. */
typedef struct frozen_run {
  trained_module t;
  float expected[2][N], moments[2][N]; /* expected values and moments of weight and bias */
} frozen_run;

static const char *const parameter_names[] = {"0.weight", "0.bias"};

static bool compare_frozen_run(frozen_run *f) {
  for (int k = 0; k < 2; k++) {
    cleave_tensor got = {0};
    DO(read_weight(f->t.m, parameter_names[k], &got));
    add_to_digest(&got);
    DO(are_all_near(parameter_names[k], got.data, f->expected[k]));
    cleave_tensor_free(&got);
  }
  return true;
}

static bool begin_frozen_run(const char *name, frozen_run *f) {
  char label[96];
  cleave_module_options m = {.size = sizeof m, .name = name, .at = at_a};
  cleave_module_options l = {.size = sizeof l, .name = label, .at = at_b};
  cleave_input one = CLEAVE_INPUT(CLEAVE_F32, 1, 1), row = CLEAVE_INPUT(CLEAVE_F32, 1, N);
  snprintf(label, sizeof label, "%s loss", name);
  memset(f, 0, sizeof *f);
  MUST(cleave_load_layers(rt, &m, "[{op: linear, out: 67}]", &one, &f->t.m, e));
  MUST(cleave_load_loss(rt, &l, "mse", &row, &f->t.loss, e));
  cleave_group g = {.modules = &f->t.m, .n_modules = 1, .lr = 0.25, .momentum = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &f->t.o, e));
  for (int k = 0; k < 2; k++) {
    cleave_tensor got = {0};
    DO(read_weight(f->t.m, parameter_names[k], &got));
    memcpy(f->expected[k], got.data, N * sizeof(float));
    cleave_tensor_free(&got);
  }
  return true;
}

static bool run_frozen_forward(frozen_run *f, cleave_context c, const float *g,
                               cleave_reference *ret_loss) {
  float target[N], x = 1;
  cleave_reference in, y, target_leaf;
  for (int i = 0; i < N; i++)
    target[i] =
        (float)((double)f->expected[0][i] + (double)f->expected[1][i] - (double)g[i] * N / 2);
  DO(make_leaf(c, &x, 1, 1, true, &in));
  DO(make_leaf(c, target, 1, N, false, &target_leaf));
  MUST(cleave_call(rt, c, f->t.m, &in, 1, &y, e));
  MUST(cleave_call(rt, c, f->t.loss, (cleave_reference[]){y, target_leaf}, 2, ret_loss, e));
  return true;
}

/* Takes a step with the gradient g. Asserts that SGD with momentum 0.5 and rate 0.25 has changed
 * the trained parameters (momentum = momentum / 2 + g, parameter -= momentum / 4), and that frozen
 * parameters are unchanged. */
static bool take_frozen_step(frozen_run *f, unsigned seed, bool trains_weight, bool trains_bias) {
  const bool is_trained[] = {trains_weight, trains_bias};
  float g[N];
  double norm = 0;
  cleave_context c;
  cleave_reference loss;
  cleave_step_result step_result;
  fill_with_random(g, N, seed);
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < N && is_trained[k]; i++) norm += (double)g[i] * (double)g[i];
  DO(open_context(&c));
  DO(run_frozen_forward(f, c, g, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, f->t.o, c, 0, &step_result, e));
  CHECK(is_near((float)step_result.norm, (float)sqrt(norm)));
  DO(close_context(c));
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < N && is_trained[k]; i++) {
      f->moments[k][i] = f->moments[k][i] / 2 + g[i];
      f->expected[k][i] -= f->moments[k][i] / 4;
    }
  return compare_frozen_run(f);
}

static bool check_learning_flags(const frozen_run *f, bool learns_weight, bool learns_bias) {
  const bool want[] = {learns_weight, learns_bias};
  for (size_t k = 0; k < 2; k++) {
    cleave_parameter p = {.size = sizeof p};
    MUST(cleave_parameter_info(f->t.m, k, &p, e));
    CHECK(p.learns == want[k] && p.optimizer == f->t.o);
  }
  return true;
}

static bool frozen_parameters_do_not_change_until_thawed(void) {
  const char *const all = "*";
  frozen_run f;
  DO(begin_frozen_run("frozen", &f));
  DO(take_frozen_step(&f, 50, true, true));
  MUST(cleave_parameter_freeze(rt, f.t.m, parameter_names, 1, 0, e));
  DO(check_learning_flags(&f, false, true));
  DO(take_frozen_step(&f, 51, false, true));
  DO(take_frozen_step(&f, 52, false, true));
  MUST(cleave_parameter_thaw(rt, f.t.m, &all, 1, 0, e));
  DO(check_learning_flags(&f, true, true));
  DO(take_frozen_step(&f, 53, true, true));
  MUST(cleave_parameter_freeze(rt, f.t.m, parameter_names + 1, 1, 0, e));
  return take_frozen_step(&f, 54, true, false);
}

static bool fully_frozen_module_keeps_its_moments(void) {
  const char *const all = "*";
  float g[N];
  frozen_run f;
  cleave_context c;
  cleave_reference loss;
  DO(begin_frozen_run("frozen whole", &f));
  DO(take_frozen_step(&f, 60, true, true));
  MUST(cleave_parameter_freeze(rt, f.t.m, &all, 1, 0, e));
  fill_with_random(g, N, 61);
  DO(open_context(&c));
  DO(run_frozen_forward(&f, c, g, &loss));
  DO(backward(c, loss, false));
  REFUSED(cleave_step(rt, f.t.o, c, 0, NULL, e), CLEAVE_PRECONDITION, "no gradient");
  DO(close_context(c));
  DO(compare_frozen_run(&f));
  MUST(cleave_parameter_thaw(rt, f.t.m, parameter_names, 2, 0, e));
  return take_frozen_step(&f, 62, true, true);
}

static bool impossible_freezing_is_refused(void) {
  const char *const unknown_name = "0.wieght", *const null_name = NULL;
  float g[N];
  frozen_run f;
  cleave_context c;
  cleave_reference loss;
  DO(begin_frozen_run("not frozen", &f));
  REFUSED(cleave_parameter_freeze(rt, f.t.m, &unknown_name, 1, 0, e), CLEAVE_NOT_FOUND,
          "'0.wieght' to");
  REFUSED(cleave_parameter_thaw(rt, f.t.m, &null_name, 1, 0, e), CLEAVE_INVALID, "names[0]");
  fill_with_random(g, N, 70);
  DO(open_context(&c));
  DO(run_frozen_forward(&f, c, g, &loss));
  REFUSED(cleave_parameter_freeze(rt, f.t.m, parameter_names, 1, 0, e), CLEAVE_PRECONDITION,
          "'not frozen' freezes nothing while context");
  REFUSED(cleave_parameter_thaw(rt, f.t.m, parameter_names, 1, 0, e), CLEAVE_PRECONDITION,
          "'not frozen' thaws nothing while context");
  MUST(cleave_context_end(rt, c, e));
  MUST(cleave_parameter_freeze(rt, f.t.m, parameter_names, 1, 0, e));
  return take_frozen_step(&f, 71, false, true);
}

static bool module_with_final_freezing_stays_frozen(void) {
  static const char *const weight[] = {"0.weight"};
  cleave_module_options o = {.size = sizeof o,
                             .name = "fixed",
                             .at = at_a,
                             .frozen = weight,
                             .n_frozen = 1,
                             .frozen_is_final = true};
  cleave_input one = CLEAVE_INPUT(CLEAVE_F32, 1, 1);
  cleave_module *m;
  cleave_optimizer *optimizer;
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 67}]", &one, &m, e));
  cleave_group g = {.kind = CLEAVE_ADAM,
                    .modules = &m,
                    .n_modules = 1,
                    .lr = 0.25,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &optimizer, e));
  CHECK(cleave_state_count(m, CLEAVE_STATE_OPTIMIZER) == 3); /* the bias's moments and the step */
  CHECK(cleave_state_count(m, CLEAVE_STATE_WEIGHTS) == 2);
  REFUSED(cleave_parameter_thaw(rt, m, weight, 1, 0, e), CLEAVE_PRECONDITION, "with `fixed`");
  REFUSED(cleave_parameter_freeze(rt, m, parameter_names + 1, 1, 0, e), CLEAVE_PRECONDITION,
          "with `fixed`");
  return true;
}

static const test tests[] = {
    TEST(every_optimiser_step_equals_torchs),
    TEST(every_optimiser_continues_from_its_state),
    TEST(invalid_settings_are_refused_by_the_api),
    TEST(rates_are_read_and_set),
    TEST(invalid_schedules_are_refused_by_the_api),
    TEST(optimisers_are_replaced),
    TEST(an_optimiser_in_use_is_not_replaced),
    TEST(frozen_parameters_do_not_change_until_thawed),
    TEST(fully_frozen_module_keeps_its_moments),
    TEST(impossible_freezing_is_refused),
    TEST(module_with_final_freezing_stays_frozen),
};

int main(int argc, char **argv) { return RUN_SESSION(argc, argv, open_session, tests); }
