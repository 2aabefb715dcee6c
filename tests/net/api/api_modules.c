/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules that end, in the C API: api_modules SESSION.yaml A B N loads and releases N modules in a
 * loop, and others in every state a program can have them in. "at NAME" on standard output asks who
 * started it to look at the memory; a line on standard input lets it go on.
 */
#include "api_int.h"

enum { MOST_MODULES = 255 };

static int n_loops;

static bool module_on(const char *name, const char *at, uint64_t seed, cleave_module **ret) {
  cleave_module_options o = {.name = name, .at = at, .seed = seed};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 5}, {op: tanh}]", &input, ret, e));
  return true;
}

static bool is_asked(const char *place) {
  char line[16];
  printf("at %s\n", place);
  fflush(stdout);
  return fgets(line, sizeof line, stdin) != NULL;
}

/* ---- one after the other --------------------------------------------------------------------- */

static bool one_call(cleave_module *m, cleave_tensor *ret) {
  cleave_context c;
  cleave_reference x, y;
  float numbers[12];
  fill(numbers, 12, 3);
  DO(open_context(&c));
  DO(leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_rpc_sync(rt, c, m, &x, 1, 0, &y, ret, e));
  return close_context(c);
}

static bool load_call_release(const char *at, uint64_t seed, cleave_tensor *ret) {
  cleave_module *m;
  DO(module_on("again", at, seed, &m));
  DO(one_call(m, ret));
  cleave_module_release(m);
  return true;
}

/* The same name each time, and after the 255th the indexes of those before. */
static bool many_are_loaded_and_released(void) {
  cleave_tensor t = {0};
  for (int i = 0; i < n_loops; i++) {
    if (i == n_loops / 4) CHECK(is_asked("begin"));
    DO(load_call_release(i % 8 ? at_a : at_b, 1 + (uint64_t)i % 16, &t));
    if (i < 16 || i >= n_loops - 16) note(&t);
  }
  CHECK(is_asked("end"));
  cleave_tensor_done(&t);
  return true;
}

/* With an optimiser, whose steps are final or not, and moments. */
static bool trained_once(int i) {
  cleave_context c;
  cleave_optimizer *o;
  cleave_reference x, loss;
  cleave_tensor dx = {0};
  cleave_stepped done;
  net n;
  DO(make_net("trained", i % 2 ? at_b : "master", &n));
  cleave_module *all[] = {n.a, n.b};
  cleave_group g = {
      .modules = all, .n_modules = 2, .kind = CLEAVE_ADAM, .lr = 0.1, .final = i % 3 == 0};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.5, &o, e));
  DO(open_context(&c));
  DO(run_net(&n, c, 5, &x, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_leaf_gradient(rt, x, &dx, e));
  MUST(cleave_step(rt, o, c, 0, &done, e));
  CHECK(done.applied);
  digest = (digest ^ (uint64_t)(done.norm * 1e12)) * UINT64_C(1099511628211);
  if (i % 5 == 0) cleave_optimizer_release(o);
  for (int k = 0; k < 2; k++) cleave_module_release(all[k]);
  cleave_module_release(n.loss);
  DO(close_context(c));
  if (i % 5) cleave_optimizer_release(o);
  note(&dx);
  cleave_tensor_done(&dx);
  return true;
}

static bool trained_ones_go_with_their_optimisers(void) {
  for (int i = 0; i < 300; i++) DO(trained_once(i));
  return true;
}

/* ---- while they are used --------------------------------------------------------------------- */

/* Gradient and value of a context, with its modules released between its calls and its backward or
 * not at all. */
static bool pass(bool released, cleave_tensor *dx, cleave_tensor *y) {
  net n;
  cleave_context c;
  cleave_reference x, out, loss;
  DO(make_net("used", at_b, &n));
  DO(open_context(&c));
  DO(run_net(&n, c, 11, &x, &out, &loss));
  cleave_module *all[] = {n.a, n.b, n.loss}, *other[3];
  for (int i = 0; i < 3 && released; i++) cleave_module_release(all[i]);
  for (int i = 0; i < 3 && released; i++) /* of the same name, beside them */
    DO(module_on(i ? i == 1 ? "used a" : "used b" : "used loss", at_a, 9, &other[i]));
  DO(backward(c, loss, true));
  DO(backward(c, loss, false));
  MUST(cleave_leaf_gradient(rt, x, dx, e));
  MUST(cleave_to_here(rt, out, 0, y, e));
  DO(close_context(c));
  for (int i = 0; i < 3; i++) cleave_module_release(released ? other[i] : all[i]);
  return true;
}

static bool same(const cleave_tensor *a, const cleave_tensor *b) {
  size_t n = cleave_tensor_count(a);
  return n == cleave_tensor_count(b) && memcmp(a->data, b->data, n * sizeof(float)) == 0;
}

static bool a_context_goes_on_with_released_modules(void) {
  cleave_tensor dx[2] = {{0}, {0}}, y[2] = {{0}, {0}};
  for (int i = 0; i < 2; i++) DO(pass(i, &dx[i], &y[i]));
  CHECK(same(&dx[0], &dx[1]) && same(&y[0], &y[1]));
  for (int i = 0; i < 2; i++) {
    note(&dx[i]);
    cleave_tensor_done(&dx[i]);
    cleave_tensor_done(&y[i]);
  }
  return true;
}

/* Two contexts, one of which is ended without anybody waiting, with a call on its way. */
static bool calls_in_flight_come_home(void) {
  cleave_module *m;
  cleave_context c[2];
  cleave_reference x, y[2];
  cleave_tensor t = {0};
  float numbers[12];
  fill(numbers, 12, 4);
  for (int round = 0; round < 20; round++) {
    DO(module_on("in flight", at_a, 3, &m));
    for (int i = 0; i < 2; i++) {
      DO(open_context(&c[i]));
      DO(leaf(c[i], numbers, 4, 3, false, &x));
      MUST(cleave_call(rt, c[i], m, &x, 1, &y[i], e));
    }
    MUST(cleave_context_end(rt, c[0], e));
    cleave_module_release(m);
    MUST(cleave_to_here(rt, y[1], 0, &t, e));
    DO(close_context(c[1]));
    if (!round) note(&t);
  }
  cleave_tensor_done(&t);
  return true;
}

static bool a_kept_value_outlives_its_module(void) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  cleave_kept k[2];
  cleave_place place;
  cleave_tensor first = {0}, later = {0}, t = {0};
  float numbers[12];
  fill(numbers, 12, 6);
  DO(module_on("keeper", at_a, 2, &m));
  DO(open_context(&c));
  DO(leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  for (int i = 0; i < 2; i++) MUST(cleave_keep(rt, y, &k[i], e));
  MUST(cleave_to_here(rt, y, 0, &first, e));
  cleave_module_release(m);
  DO(close_context(c));
  for (int i = 0; i < 3; i++) DO(load_call_release(at_a, 5, &t)); /* with its index */
  MUST(cleave_kept_fetch(rt, k[0], 0, &later, e));
  MUST(cleave_kept_owner(rt, k[0], &place, e));
  CHECK(same(&first, &later) && strcmp(place.node, at_a) == 0 && strcmp(place.device, "cpu") == 0);
  MUST(cleave_kept_release(rt, k[0], e));
  MUST(cleave_kept_fetch(rt, k[1], 0, &later, e));
  MUST(cleave_kept_release(rt, k[1], e));
  cleave_tensor_done(&first);
  cleave_tensor_done(&later);
  cleave_tensor_done(&t);
  return true;
}

/* ---- names and indexes ----------------------------------------------------------------------- */

static bool a_name_is_free_when_its_module_is_released(void) {
  cleave_module *m, *other;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor t = {0};
  float numbers[12];
  fill(numbers, 12, 8);
  cleave_module_options o = {.name = "twice", .at = at_b};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  DO(module_on("twice", at_a, 1, &m));
  REFUSED(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &other, e), CLEAVE_EXISTS, "'twice'");
  DO(open_context(&c));
  DO(leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  cleave_module_release(m);
  REFUSED(cleave_call(rt, c, m, &x, 1, &y, e), CLEAVE_NOT_FOUND, "released"); /* c needs it still */
  MUST(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &other, e));
  MUST(cleave_rpc_sync(rt, c, other, &x, 1, 0, &y, &t, e));
  CHECK(cleave_tensor_count(&t) == 12 && ((float *)t.data)[0] == fmaxf(numbers[0], 0));
  cleave_module_release(other);
  cleave_tensor_done(&t);
  return close_context(c);
}

/* Those that were never used go at once, the others when they have been unloaded. */
static bool as_many_as_ever_after_a_release(void) {
  cleave_module *m[MOST_MODULES] = {0}, *more;
  cleave_tensor t = {0};
  char name[32];
  int n = 0;
  cleave_module_options o = {.name = "one more", .at = at_a};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  for (; n < MOST_MODULES; n++) {
    snprintf(name, sizeof name, "of many %d", n);
    DO(module_on(name, n % 2 ? at_a : at_b, 1, &m[n]));
  }
  REFUSED(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &more, e), CLEAVE_EXHAUSTED, "255");
  for (int i = 0; i < n; i += 17) DO(one_call(m[i], &t));
  for (int i = 0; i < n; i++) cleave_module_release(m[i]);
  MUST(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &more, e));
  cleave_module_release(more);
  cleave_module_release(NULL);
  cleave_tensor_done(&t);
  return true;
}

static const struct {
  bool (*run)(void);
  const char *name;
} tests[] = {
    TEST(many_are_loaded_and_released),
    TEST(trained_ones_go_with_their_optimisers),
    TEST(a_context_goes_on_with_released_modules),
    TEST(calls_in_flight_come_home),
    TEST(a_kept_value_outlives_its_module),
    TEST(a_name_is_free_when_its_module_is_released),
    TEST(as_many_as_ever_after_a_release),
};

/* The workers have nothing left, and nothing of the program leaks. */
static bool end(void) {
  cleave_leaks leaks;
  CHECK(is_asked("close"));
  MUST(cleave_close(rt, 0, &leaks, e));
  snprintf(why, sizeof why, "%.900s", leaks.text);
  return leaks.text[0] == '\0';
}

int main(int argc, char **argv) {
  if (argc < 5 || !open_session(argv)) {
    said(false, "open");
    return 1;
  }
  n_loops = atoi(argv[4]);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    snprintf(why, sizeof why, "see the report");
    said(tests[i].run(), tests[i].name);
  }
  printf("digest %016llx\n", (unsigned long long)digest);
  said(end(), "close");
  return n_failed != 0;
}
