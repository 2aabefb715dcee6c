/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ties in the C API: api_ties SESSION.yaml A B loads two modules at A that share one weight.
 * The weight is trained as in one module, frozen, and released; impossible ties are refused.
 */
#include "api_int.h"

enum { STEPS = 3 };

/* Two modules that share a weight: x [4, 3] -> first, tanh -> second -> mse at B. */
typedef struct tied_modules {
  cleave_module *a, *b, *loss; /* b: NULL if both layers are in module a */
} tied_modules;

static bool load_layers(const char *name, const char *layers, uint32_t first_layer,
                        const cleave_tie *tie, cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = at_a,
                             .seed = 7,
                             .first_layer = first_layer,
                             .ties = tie,
                             .n_ties = tie != NULL};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, layers, &input, ret, e));
  return true;
}

static bool load_pair(const char *name, bool is_split, tied_modules *t) {
  char text[3][64];
  for (int i = 0; i < 3; i++) snprintf(text[i], sizeof text[i], "%s %d", name, i);
  *t = (tied_modules){0};
  DO(load_loss(text[2], at_b, 3, &t->loss));
  if (!is_split)
    return load_layers(text[0],
                       "[{op: linear, out: 3, name: first}, {op: tanh}, "
                       "{op: linear, out: 3, name: second, tied: first}]",
                       0, NULL, &t->a);
  DO(load_layers(text[0], "[{op: linear, out: 3, name: first}, {op: tanh}]", 0, NULL, &t->a));
  cleave_tie tie = {"second.weight", t->a, "first.weight"};
  return load_layers(text[1], "[{op: linear, out: 3, name: second}]", 2, &tie, &t->b);
}

static bool call_pair(const tied_modules *t, cleave_context c, unsigned seed,
                      cleave_reference *ret_y, cleave_reference *ret_loss) {
  float x[12], to[12];
  cleave_reference in, y, target;
  fill_with_random(x, 12, seed);
  fill_with_random(to, 12, seed + 1);
  DO(make_leaf(c, x, 4, 3, false, &in));
  DO(make_leaf(c, to, 4, 3, false, &target));
  MUST(cleave_call(rt, c, t->a, &in, 1, &y, e));
  if (t->b) MUST(cleave_call(rt, c, t->b, &y, 1, &y, e));
  MUST(cleave_call(rt, c, t->loss, (cleave_reference[]){y, target}, 2, ret_loss, e));
  if (ret_y) *ret_y = y;
  return true;
}

static bool run_step(const tied_modules *t, cleave_optimizer *o, unsigned seed, double *ret_norm) {
  cleave_context c;
  cleave_reference loss[2];
  cleave_step_result done;
  DO(open_context(&c));
  for (int i = 0; i < 2; i++) DO(call_pair(t, c, seed + 2 * (unsigned)i, NULL, &loss[i]));
  MUST(cleave_backward(rt, c, loss, 2, false, 0, e));
  MUST(cleave_step(rt, o, c, 0, &done, e));
  CHECK(done.applied);
  *ret_norm = done.norm;
  return close_context(c);
}

static bool make_optimizer(const tied_modules *t, cleave_optimizer **ret) {
  cleave_module *all[] = {t->a, t->b};
  cleave_group g = {.modules = all, .n_modules = t->b ? 2 : 1, .kind = CLEAVE_ADAM, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.5, ret, e));
  return true;
}

typedef struct tied_numbers {
  double gradient_norm;
  float weight[9], bias[3];
} tied_numbers;

static bool copy_weight(cleave_module *m, const char *name, float *to, size_t n) {
  cleave_tensor w = {0};
  DO(read_weight(m, name, &w));
  CHECK(cleave_tensor_count(&w) == n);
  memcpy(to, w.data, n * sizeof *to);
  add_to_digest(&w);
  cleave_tensor_free(&w);
  return true;
}

static bool read_pair(const tied_modules *t, tied_numbers *ret) {
  DO(copy_weight(t->a, "first.weight", ret->weight, 9));
  return copy_weight(t->b ? t->b : t->a, "second.bias", ret->bias, 3);
}

static void release_pair(const tied_modules *t, cleave_optimizer *o) {
  cleave_optimizer_release(rt, o, NULL);
  /* module a, which owns the shared weight, is freed only when b is released, too */
  cleave_module_release(rt, t->a, NULL);
  cleave_module_release(rt, t->b, NULL);
  cleave_module_release(rt, t->loss, NULL);
}

static bool train_pair(bool is_split, tied_numbers *ret) {
  tied_modules t;
  cleave_optimizer *o;
  DO(load_pair(is_split ? "two" : "one", is_split, &t));
  DO(make_optimizer(&t, &o));
  for (unsigned i = 0; i < STEPS; i++) DO(run_step(&t, o, 10 * i, &ret->gradient_norm));
  DO(read_pair(&t, ret));
  release_pair(&t, o);
  return true;
}

static bool modules_with_a_tied_weight_train_as_one(void) {
  tied_numbers whole = {0}, split = {0};
  DO(train_pair(false, &whole));
  DO(train_pair(true, &split));
  CHECK(memcmp(&whole, &split, sizeof whole) == 0);
  return true;
}

/* Freezing or thawing the weight reloads its module, and then the module that is tied to it. */
static bool tied_weight_is_frozen_and_thawed_in_both_modules(void) {
  static const char *const name[] = {"first.weight"};
  tied_numbers read_numbers[3];
  double norm;
  tied_modules t;
  cleave_optimizer *o;
  DO(load_pair("frozen", true, &t));
  DO(make_optimizer(&t, &o));
  DO(run_step(&t, o, 1, &norm));
  DO(read_pair(&t, &read_numbers[0]));
  MUST(cleave_parameter_freeze(rt, t.a, name, 1, 0, e));
  DO(run_step(&t, o, 2, &norm));
  DO(read_pair(&t, &read_numbers[1]));
  CHECK(memcmp(read_numbers[0].weight, read_numbers[1].weight, sizeof read_numbers[0].weight) == 0);
  CHECK(memcmp(read_numbers[0].bias, read_numbers[1].bias, sizeof read_numbers[0].bias) != 0);
  MUST(cleave_parameter_thaw(rt, t.a, name, 1, 0, e));
  DO(run_step(&t, o, 3, &norm));
  DO(read_pair(&t, &read_numbers[2]));
  CHECK(memcmp(read_numbers[1].weight, read_numbers[2].weight, sizeof read_numbers[1].weight) != 0);
  release_pair(&t, o);
  return true;
}

static bool tied_module_outlives_release_of_its_owner(void) {
  tied_modules t;
  cleave_context c;
  cleave_reference in, y;
  cleave_tensor out = {0};
  float x[12];
  fill_with_random(x, 12, 5);
  DO(load_pair("kept", true, &t));
  cleave_module_release(rt, t.a, NULL);
  DO(open_context(&c));
  DO(make_leaf(c, x, 4, 3, false, &in));
  MUST(cleave_rpc_sync(rt, c, t.b, &in, 1, 0, &y, &out, e));
  add_to_digest(&out);
  cleave_tensor_free(&out);
  DO(close_context(c));
  cleave_module_release(rt, t.b, NULL);
  cleave_module_release(rt, t.loss, NULL);
  return true;
}

static cleave_status load_tied_to(const char *at, const char *layers, const cleave_tie *tie,
                                  cleave_error *e) {
  cleave_module *m = NULL;
  cleave_module_options o = {.size = sizeof o, .name = "no", .at = at, .ties = tie, .n_ties = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_status status = cleave_load_layers(rt, &o, layers, &input, &m, e);
  if (status == CLEAVE_OK) cleave_module_release(rt, m, NULL);
  return status;
}

static bool impossible_tie_is_refused(void) {
  static const char square[] = "[{op: linear, out: 3, name: s}]", wide[] = "[{op: linear, out: 4}]";
  tied_modules t;
  DO(load_pair("refused", true, &t));
  cleave_tie good_tie = {"s.weight", t.a, "first.weight"};
  cleave_tie misspelt_tie = {"s.weigth", t.a, "first.weight"},
             bias_tie = {"s.bias", t.a, "first.weight"};
  cleave_tie tie_to_bias = {"s.weight", t.a, "first.bias"},
             shape_tie = {"0.weight", t.a, "first.weight"};
  if (strcmp(at_a, at_b) != 0)
    REFUSED(load_tied_to(at_b, square, &good_tie, e), CLEAVE_INVALID,
            "across nodes it would be sent");
  REFUSED(load_tied_to(at_a, square, &misspelt_tie, e), CLEAVE_NOT_FOUND,
          "first parameter is 's.weigth'");
  REFUSED(load_tied_to(at_a, square, &bias_tie, e), CLEAVE_NOT_FOUND,
          "first parameter is 's.bias'");
  REFUSED(load_tied_to(at_a, square, &tie_to_bias, e), CLEAVE_INVALID,
          "not the first parameter of a layer");
  REFUSED(load_tied_to(at_a, wide, &shape_tie, e), CLEAVE_INVALID, "is [4, 3], and 'first.weight'");
  cleave_module_release(rt, t.b, NULL);
  cleave_module_release(rt, t.a, NULL);
  cleave_module_release(rt, t.loss, NULL);
  REFUSED(load_tied_to(at_a, square, &(cleave_tie){"s.weight", NULL, "first.weight"}, e),
          CLEAVE_INVALID, "a tie has weight, of and of_weight");
  return true;
}

int main(int argc, char **argv) {
  const test tests[] = {
      TEST(modules_with_a_tied_weight_train_as_one),
      TEST(tied_weight_is_frozen_and_thawed_in_both_modules),
      TEST(tied_module_outlives_release_of_its_owner),
      TEST(impossible_tie_is_refused),
  };
  return RUN_SESSION(argc, argv, open_session, tests);
}
