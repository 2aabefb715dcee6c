/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests groups of parameters in the C API: api_groups SESSION.yaml A B runs modules at the nodes A
 * and B, compares them with the optimisers' formulas in double precision, and ends with a digest of
 * the weights.
 */
#include "api_int.h"

enum { STEPS = 5, PARAMS = 18 };

/* ---- parameters that the test steps by the optimiser's formula ------------------------------- */

/* Settings of a parameter's group. lr: learning rate; 0: the parameter is in no group. */
typedef struct settings {
  double lr, weight_decay, momentum;
  const cleave_schedule *schedule;
} settings;

typedef struct param {
  cleave_module *module;
  const char *name;
  const settings *settings;
  size_t n;
  double expected_value[16], first_moment[16], second_moment[16];
  cleave_tensor gradient;
} param;

/* Reads the parameter's present weights into p->expected_value. */
static bool read_param(param *p) {
  cleave_tensor t = {0};
  DO(read_weight(p->module, p->name, &t));
  p->n = cleave_tensor_count(&t);
  CHECK(p->n <= 16);
  for (size_t i = 0; i < p->n; i++) p->expected_value[i] = ((float *)t.data)[i];
  cleave_tensor_free(&t);
  return true;
}

static double compute_rate_at(const settings *s, int t) {
  const cleave_schedule *c = s->schedule;
  if (!c) return s->lr;
  if (c->curve == CLEAVE_STEPS) return s->lr * pow(c->gamma, floor(t / (double)c->step_size));
  /* the rate that the schedule `linear` gives at step t */
  return t < (int)c->total_steps ? s->lr * (1 - t / (double)c->total_steps) : 0;
}

static void step_sgd(param *p, size_t i, double g, double lr, int t) {
  g += p->settings->weight_decay * p->expected_value[i];
  p->first_moment[i] = t == 0 ? g : p->settings->momentum * p->first_moment[i] + g;
  p->expected_value[i] -= lr * (p->settings->momentum > 0 ? p->first_moment[i] : g);
}

static void step_adamw(param *p, size_t i, double g, double lr, int t) {
  p->first_moment[i] = 0.9 * p->first_moment[i] + 0.1 * g;
  p->second_moment[i] = 0.999 * p->second_moment[i] + 0.001 * g * g;
  double m = p->first_moment[i] / (1 - pow(0.9, t + 1)),
         v = p->second_moment[i] / (1 - pow(0.999, t + 1));
  p->expected_value[i] =
      p->expected_value[i] * (1 - lr * p->settings->weight_decay) - lr * m / (sqrt(v) + 1e-8);
}

static void step_param(param *p, cleave_optimizer_kind kind, int t, double scale) {
  double lr = compute_rate_at(p->settings, t);
  for (size_t i = 0; i < p->n && p->settings->lr > 0; i++)
    (kind == CLEAVE_SGD ? step_sgd : step_adamw)(p, i, scale * ((float *)p->gradient.data)[i], lr,
                                                 t);
}

static bool matches_expected(const param *p) {
  cleave_tensor t = {0};
  DO(read_weight(p->module, p->name, &t));
  add_to_digest(&t);
  for (size_t i = 0; i < p->n; i++)
    if (!is_near(((float *)t.data)[i], (float)p->expected_value[i])) {
      snprintf(why, sizeof why, "%s %s [%zu] is %.9g, by hand %.9g", cleave_module_name(p->module),
               p->name, i, (double)((float *)t.data)[i], p->expected_value[i]);
      return false;
    }
  cleave_tensor_free(&t);
  return true;
}

/* ---- two groups over two modules ------------------------------------------------------------- */

typedef struct two_groups {
  const char *module_prefix;
  cleave_optimizer_kind kind;
  settings weight_settings, bias_settings;
  double clip_norm;
  bool has_final_steps;
} two_groups;

static cleave_group make_group(const two_groups *c, const settings *s, const char *const *parameter,
                               cleave_module *const *modules) {
  cleave_group g = {.modules = modules,
                    .n_modules = 2,
                    .parameters = parameter,
                    .n_parameters = 1,
                    .kind = c->kind,
                    .lr = s->lr,
                    .weight_decay = s->weight_decay,
                    .momentum = s->momentum,
                    .no_rollback = c->has_final_steps};
  if (s->schedule) g.schedule = *s->schedule;
  return g;
}

/* Runs the network forward and backward and takes one step. Stores the gradients in params. */
static bool step_net(const net *n, cleave_optimizer *o, unsigned seed, bool is_final, param *params,
                     size_t n_params, cleave_step_result *step_result) {
  cleave_context c;
  cleave_reference loss;
  DO(open_context(&c));
  DO(run_network(n, c, seed, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  for (size_t i = 0; i < n_params; i++)
    DO(read_gradient(c, params[i].module, params[i].name, &params[i].gradient));
  MUST(cleave_step(rt, o, c, 0, step_result, e));
  if (is_final)
    MUST(cleave_context_end(rt, c, e));
  else
    DO(close_context(c));
  return true;
}

static double compute_norm(const param *params, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < params[i].n && params[i].settings->lr > 0; k++) {
      double g = ((float *)params[i].gradient.data)[k];
      sum += g * g;
    }
  return sqrt(sum);
}

/* Takes five steps with the weights in one group and the biases in another, each with its own rate
 * and schedule, and compares all parameters with the formula. If the lr of the biases is 0, they
 * are in no group. */
static bool check_five_steps(const two_groups *c) {
  static const char *const weight[] = {"*.weight"}, *const bias[] = {"0.bi*"};
  net n;
  cleave_optimizer *o;
  DO(make_network(c->module_prefix, "master", &n));
  cleave_module *both[] = {n.b, n.a};
  cleave_group groups[] = {make_group(c, &c->weight_settings, weight, both),
                           make_group(c, &c->bias_settings, bias, both)};
  MUST(cleave_optimizer_new(rt, groups, c->bias_settings.lr > 0 ? 2 : 1, c->clip_norm, &o, e));
  param params[] = {{.module = n.a, .name = "0.weight", .settings = &c->weight_settings},
                    {.module = n.a, .name = "0.bias", .settings = &c->bias_settings},
                    {.module = n.b, .name = "0.weight", .settings = &c->weight_settings},
                    {.module = n.b, .name = "0.bias", .settings = &c->bias_settings}};
  for (size_t i = 0; i < 4; i++) DO(read_param(&params[i]));
  for (int t = 0; t < STEPS; t++) {
    cleave_step_result step_result;
    DO(step_net(&n, o, (unsigned)t, c->has_final_steps, params, 4, &step_result));
    double norm = compute_norm(params, 4), scale = c->clip_norm / (norm + 1e-6);
    CHECK(step_result.applied && step_result.number == (uint64_t)t + 1 &&
          is_near((float)step_result.norm, (float)norm));
    CHECK(fabs(step_result.lr - compute_rate_at(&c->weight_settings, t)) < 1e-12);
    for (size_t i = 0; i < 4; i++) {
      step_param(&params[i], c->kind, t, c->clip_norm > 0 && scale < 1 ? scale : 1);
      DO(matches_expected(&params[i]));
    }
  }
  for (size_t i = 0; i < 4; i++) cleave_tensor_free(&params[i].gradient);
  return true;
}

static const cleave_schedule step_schedule = {.curve = CLEAVE_STEPS, .step_size = 2, .gamma = 0.5};
static const cleave_schedule linear_schedule = {.curve = CLEAVE_LINEAR, .total_steps = 4};

static bool weights_decay_and_biases_have_a_rate_of_their_own(void) {
  const two_groups c = {.module_prefix = "adamw",
                        .kind = CLEAVE_ADAMW,
                        .weight_settings = {.lr = 0.02, .weight_decay = 0.5},
                        .bias_settings = {.lr = 0.05}};
  return check_five_steps(&c);
}

static bool each_group_has_its_schedule_and_one_norm_holds_for_all(void) {
  const two_groups c = {
      .module_prefix = "schedules",
      .kind = CLEAVE_ADAMW,
      .weight_settings = {.lr = 0.02, .weight_decay = 0.1, .schedule = &step_schedule},
      .bias_settings = {.lr = 0.05, .schedule = &linear_schedule},
      .clip_norm = 0.5};
  return check_five_steps(&c);
}

static bool groups_with_and_without_momentum_step_together(void) {
  const two_groups c = {
      .module_prefix = "sgd",
      .weight_settings = {.lr = 0.1, .weight_decay = 0.01, .schedule = &step_schedule},
      .bias_settings = {.lr = 0.3, .momentum = 0.9},
      .clip_norm = 0.25};
  return check_five_steps(&c);
}

/* Takes final steps, which the nodes receive with END_CONTEXT and cannot roll back. These steps
 * must use the rates of all groups. */
static bool final_steps_have_all_rates(void) {
  const two_groups c = {
      .module_prefix = "final",
      .kind = CLEAVE_ADAMW,
      .weight_settings = {.lr = 0.02, .weight_decay = 0.5, .schedule = &step_schedule},
      .bias_settings = {.lr = 0.05, .schedule = &linear_schedule},
      .clip_norm = 0.5,
      .has_final_steps = true};
  return check_five_steps(&c);
}

static bool param_in_no_group_is_not_trained_and_not_in_the_norm(void) {
  const two_groups c = {.module_prefix = "held",
                        .kind = CLEAVE_ADAMW,
                        .weight_settings = {.lr = 0.05, .weight_decay = 0.1},
                        .clip_norm = 0.25};
  DO(check_five_steps(&c));
  const two_groups held_finally = {.module_prefix = "held finally",
                                   .weight_settings = {.lr = 0.05, .momentum = 0.9},
                                   .clip_norm = 0.25,
                                   .has_final_steps = true};
  return check_five_steps(&held_finally);
}

/* A schedule set by cleave_optimizer_set_schedule applies to all groups of the optimiser. */
static bool later_schedule_applies_to_all_groups(void) {
  static const char *const weight[] = {"*.weight"}, *const bias[] = {"*.bias"};
  const cleave_schedule zero_rate = {.curve = CLEAVE_LINEAR, .total_steps = 1};
  const settings zero_settings = {0};
  two_groups c = {
      .module_prefix = "off", .weight_settings = {.lr = 0.1}, .bias_settings = {.lr = 0.2}};
  net n;
  cleave_optimizer *o;
  cleave_step_result step_result;
  DO(make_network(c.module_prefix, "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group groups[] = {make_group(&c, &c.weight_settings, weight, both),
                           make_group(&c, &c.bias_settings, bias, both)};
  MUST(cleave_optimizer_new(rt, groups, 2, 0, &o, e));
  MUST(cleave_optimizer_set_steps(rt, o, 3, e));
  MUST(cleave_optimizer_set_schedule(rt, o, &zero_rate, e));
  param params[] = {{.module = n.a, .name = "0.weight", .settings = &zero_settings},
                    {.module = n.b, .name = "0.bias", .settings = &zero_settings}};
  for (size_t i = 0; i < 2; i++) DO(read_param(&params[i]));
  DO(step_net(&n, o, 1, false, params, 2, &step_result));
  CHECK(step_result.lr == 0 && step_result.number == 4);
  for (size_t i = 0; i < 2; i++) {
    DO(matches_expected(&params[i]));
    cleave_tensor_free(&params[i].gradient);
  }
  return true;
}

/* ---- state of modules with several groups ---------------------------------------------------- */

static const cleave_tensor *find_item(const cleave_state *s, const char *name) {
  for (size_t i = 0; i < s->n; i++)
    if (strcmp(s->items[i].name, name) == 0) return &s->items[i].tensor;
  return NULL;
}

/* The optimiser state has a moment for each parameter, with zeros for the bias, whose group has no
 * momentum. */
static bool state_has_moments_for_all_parameters(void) {
  static const char *const weight[] = {"0.weight"}, *const bias[] = {"0.bias"};
  const two_groups c = {.module_prefix = "state",
                        .weight_settings = {.lr = 0.1, .momentum = 0.9},
                        .bias_settings = {.lr = 0.1}};
  net n;
  cleave_optimizer *o;
  cleave_step_result step_result;
  cleave_state state;
  DO(make_network(c.module_prefix, "master", &n));
  cleave_group groups[] = {make_group(&c, &c.weight_settings, weight, &n.a),
                           make_group(&c, &c.bias_settings, bias, &n.a)};
  groups[0].n_modules = groups[1].n_modules = 1;
  MUST(cleave_optimizer_new(rt, groups, 2, 0, &o, e));
  CHECK(cleave_state_count(n.a, CLEAVE_STATE_OPTIMIZER) == 3);
  CHECK(cleave_state_count(n.b, CLEAVE_STATE_OPTIMIZER) == 0);
  DO(step_net(&n, o, 1, false, NULL, 0, &step_result));
  MUST(cleave_state_read(rt, n.a, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  const cleave_tensor *weight_moment = find_item(&state, "0.weight.momentum_buffer");
  const cleave_tensor *zero_moment = find_item(&state, "0.bias.momentum_buffer"),
                      *step = find_item(&state, "step");
  CHECK(state.n == 3 && weight_moment && zero_moment && step && *(int64_t *)step->data == 1);
  CHECK(cleave_tensor_count(weight_moment) == 15 && cleave_tensor_count(zero_moment) == 5);
  CHECK(((float *)weight_moment->data)[0] != 0);
  for (int i = 0; i < 5; i++) CHECK(((float *)zero_moment->data)[i] == 0);
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_OPTIMIZER, state.items, state.n, 0, e));
  cleave_state_free(&state);
  return true;
}

/* ---- sixteen groups -------------------------------------------------------------------------- */

/* Prepares n groups over a module of nine layers with two parameters each. Group i has parameter i
 * and the rate 0.01 (i + 1). has_rest: the last group also has all other parameters. */
static void make_many_groups(cleave_module *const *m, int n, bool has_rest, char (*names)[24],
                             const char **lists, cleave_group *groups) {
  for (int i = 0; i < PARAMS; i++) {
    snprintf(names[i], sizeof names[i], "%d.%s", i / 2, i % 2 ? "bias" : "weight");
    lists[i] = names[i];
  }
  for (int i = 0; i < n; i++) {
    bool is_last = has_rest && i + 1 == n;
    groups[i] = (cleave_group){.modules = m,
                               .n_modules = 1,
                               .parameters = lists + i,
                               .n_parameters = is_last ? (size_t)(PARAMS - i) : 1,
                               .lr = 0.01 * (i + 1)};
  }
}

static bool load_many_layers(const char *name, const char *at, cleave_module **ret) {
  char layers[512] = "[";
  for (int i = 0; i < PARAMS / 2; i++)
    strcat(layers, i ? ", {op: linear, out: 2}" : "{op: linear, out: 2}");
  strcat(layers, "]");
  return load_module(name, at, layers, 2, ret);
}

static bool a_module_has_sixteen_groups(void) {
  char names[PARAMS][24];
  const char *lists[PARAMS];
  cleave_group groups[PARAMS];
  cleave_module *m, *loss;
  cleave_optimizer *o;
  DO(load_many_layers("sixteen", at_b, &m));
  DO(load_loss("sixteen loss", "master", 2, &loss));
  make_many_groups(&m, 17, false, names, lists, groups);
  REFUSED(cleave_optimizer_new(rt, groups, 17, 0, &o, e), CLEAVE_EXHAUSTED,
          "'sixteen' is in too many");
  make_many_groups(&m, 16, false, names, lists, groups);
  REFUSED(cleave_optimizer_new(rt, groups, 16, 0, &o, e), CLEAVE_EXHAUSTED,
          "at most 16, one fewer");
  make_many_groups(&m, 16, true, names, lists, groups);
  MUST(cleave_optimizer_new(rt, groups, 16, 0, &o, e));
  cleave_context c;
  cleave_reference x, t, y, l;
  float numbers[8];
  settings group_settings[PARAMS];
  param params[PARAMS];
  memset(params, 0, sizeof params);
  for (int i = 0; i < PARAMS; i++) {
    group_settings[i] = (settings){.lr = 0.01 * (i < 16 ? i + 1 : 16)};
    params[i] = (param){.module = m, .name = names[i], .settings = &group_settings[i]};
    DO(read_param(&params[i]));
  }
  fill_with_random(numbers, 8, 3);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 2, false, &x));
  fill_with_random(numbers, 8, 4);
  DO(make_leaf(c, numbers, 4, 2, false, &t));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  DO(backward(c, l, false));
  for (int i = 0; i < PARAMS; i++) DO(read_gradient(c, m, names[i], &params[i].gradient));
  MUST(cleave_step(rt, o, c, 0, NULL, e));
  for (int i = 0; i < PARAMS; i++) {
    step_param(&params[i], CLEAVE_SGD, 0, 1);
    DO(matches_expected(&params[i]));
    cleave_tensor_free(&params[i].gradient);
  }
  return close_context(c);
}

/* ---- groups that are refused ----------------------------------------------------------------- */

static cleave_group with_parameters(cleave_group g, const char *const *parameters, size_t n) {
  g.parameters = parameters;
  g.n_parameters = n;
  return g;
}

static cleave_group with_modules(cleave_group g, cleave_module *const *module) {
  g.modules = module;
  g.n_modules = 1;
  return g;
}

/* Asserts that an optimiser of two groups is refused. The first group is w, which has all weights
 * of the modules a and b; the second group is each of `cases`. b: a group of the biases.
 * frozen_bias_module: module whose biases are not trained. */
static bool parameter_in_two_groups_is_refused(const net *n, cleave_group w, cleave_group b,
                                               cleave_module *const *frozen_bias_module) {
  static const char *const unmatched[] = {"conv*"};
  cleave_group adam_group = b, final_group = b, negative_group = b;
  adam_group.kind = CLEAVE_ADAM;
  final_group.no_rollback = true;
  negative_group.lr = -1;
  const struct {
    cleave_group second_group;
    cleave_status status;
    const char *message;
  } cases[] = {
      {with_parameters(b, NULL, 1), CLEAVE_EXISTS,
       "parameter '0.weight' of module 'wrong a' is in two groups"},
      {with_modules(w, &n->b), CLEAVE_EXISTS, "'0.weight' of module 'wrong b'"},
      {with_parameters(b, unmatched, 1), CLEAVE_NOT_FOUND, "no parameter 'conv*'"},
      {with_parameters(b, unmatched, 0), CLEAVE_INVALID, "a list of 0 parameters"},
      {with_modules(b, frozen_bias_module), CLEAVE_NOT_FOUND, "no parameter '0.bias' that learns"},
      {adam_group, CLEAVE_INVALID, "groups of different kinds"},
      {final_group, CLEAVE_INVALID, "final"},
      {negative_group, CLEAVE_INVALID, "lr is -1"},
  };
  cleave_optimizer *o;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const cleave_group g[] = {w, cases[i].second_group};
    REFUSED(cleave_optimizer_new(rt, g, 2, 0, &o, e), cases[i].status, cases[i].message);
  }
  return true;
}

/* A refused optimiser leaves its modules unchanged: the optimisers made at the end of this test are
 * accepted. */
static bool invalid_groups_are_refused_by_the_api(void) {
  static const char *const weight[] = {"*.weight"}, *const bias[] = {"0.bias"};
  static const char *const misspelt_names[] = {"0.weight", "0.bais"};
  const two_groups c = {.weight_settings = {.lr = 0.1}, .bias_settings = {.lr = 0.1}};
  net n;
  cleave_module *frozen_bias_module;
  cleave_optimizer *o;
  DO(make_network("wrong", "master", &n));
  cleave_module_options options = {
      .size = sizeof options, .name = "wrong cold", .at = at_a, .frozen = bias, .n_frozen = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &options, "[{op: linear, out: 2}]", &input, &frozen_bias_module, e));
  cleave_module *both[] = {n.a, n.b};
  const cleave_group w = make_group(&c, &c.weight_settings, weight, both),
                     b = make_group(&c, &c.bias_settings, bias, both),
                     misspelt_group = with_parameters(b, misspelt_names, 2),
                     partial_group =
                         /* a group without patterns has the trained parameters of a partly frozen
                          * module */
                     with_parameters(with_modules(b, &frozen_bias_module), NULL, 0);
  DO(parameter_in_two_groups_is_refused(&n, w, b, &frozen_bias_module));
  REFUSED(cleave_optimizer_new(rt, &misspelt_group, 1, 0, &o, e), CLEAVE_NOT_FOUND,
          "no parameter '0.bais' that learns in the modules of this group; did you mean '0.bias'?");
  MUST(cleave_optimizer_new(rt, &w, 1, 0, &o, e));
  REFUSED(cleave_optimizer_new(rt, &b, 1, 0, &o, e), CLEAVE_EXISTS, "is in an optimiser already");
  MUST(cleave_optimizer_new(rt, &partial_group, 1, 0, &o, e));
  return true;
}

/* A glob need not match in every module. A module without a match can get another optimiser. */
static bool a_module_without_a_match_is_not_in_the_group(void) {
  static const char *const own_layers[] = {"mine.*"};
  cleave_module *m[2];
  cleave_optimizer *o, *other_optimizer;
  DO(load_module("match a", at_a, "[{op: linear, out: 2, name: mine}]", 3, &m[0]));
  DO(load_module("match b", at_b, "[{op: linear, out: 2}]", 2, &m[1]));
  cleave_group g = {
      .modules = m, .n_modules = 2, .parameters = own_layers, .n_parameters = 1, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  CHECK(cleave_state_count(m[0], CLEAVE_STATE_OPTIMIZER) == 1);
  CHECK(cleave_state_count(m[1], CLEAVE_STATE_OPTIMIZER) == 0);
  cleave_group other_group = {.modules = &m[1], .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &other_group, 1, 0, &other_optimizer, e));
  return true;
}

static const test tests[] = {
    TEST(weights_decay_and_biases_have_a_rate_of_their_own),
    TEST(each_group_has_its_schedule_and_one_norm_holds_for_all),
    TEST(groups_with_and_without_momentum_step_together),
    TEST(final_steps_have_all_rates),
    TEST(param_in_no_group_is_not_trained_and_not_in_the_norm),
    TEST(later_schedule_applies_to_all_groups),
    TEST(state_has_moments_for_all_parameters),
    TEST(a_module_has_sixteen_groups),
    TEST(invalid_groups_are_refused_by_the_api),
    TEST(a_module_without_a_match_is_not_in_the_group),
};

int main(int argc, char **argv) { return RUN_SESSION(argc, argv, open_session, tests); }
