/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests references that outlive their context: api_kept SESSION.yaml A B [single] [few] runs
 * modules at the nodes A and B, and ends with a digest of the results. A module that reads a kept
 * value must have the same result, bit for bit, as if it read a leaf with the same numbers. single:
 * the runtime has one thread. few: the program keeps 5 large values, not 100. api_kept SESSION.yaml
 * A B lost PID kills the worker A, whose process is PID.
 */
#include "api_int.h"

static cleave_module *on_a, *on_b, *on_master, *embedding;
/* number of values of 1 MiB that a test keeps; together more than the workers' quotas */
static int n_large_values = 100;

static bool load_modules(void) {
  cleave_module_options o = {.size = sizeof o, .name = "picks", .at = at_a, .seed = 7};
  cleave_input rows = CLEAVE_INPUT(CLEAVE_I64, 4);
  DO(load_module("on a", at_a, "[{op: linear, out: 6}, {op: tanh}]", 6, &on_a));
  DO(load_module("on b", at_b, "[{op: linear, out: 6}, {op: gelu}]", 6, &on_b));
  DO(load_module("at home", "master", "[{op: linear, out: 6}, {op: sigmoid}]", 6, &on_master));
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 4, out: 6}]", &rows, &embedding, e));
  /* loads the module now, so that the link between the two workers is open before the first call */
  MUST(cleave_module_place(rt, on_b, false, 0, e));
  return true;
}

static bool make_random_leaf(cleave_context c, unsigned seed, cleave_reference *ret) {
  float x[24];
  fill_with_random(x, 24, seed);
  return make_leaf(c, x, 4, 6, false, ret);
}

/* Computes a module's output from random numbers, keeps it, and closes its context. */
static bool keep_output(cleave_module *m, unsigned seed, cleave_kept *ret) {
  cleave_context c;
  cleave_reference x, y;
  DO(open_context(&c));
  DO(make_random_leaf(c, seed, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_keep(rt, y, ret, e));
  return close_context(c);
}

static bool fetch_kept(cleave_kept k, cleave_tensor *ret) {
  MUST(cleave_kept_fetch(rt, k, 0, ret, e));
  return true;
}

static bool is_same_tensor(const cleave_tensor *a, const cleave_tensor *b) {
  size_t n = cleave_tensor_count(a);
  CHECK(n == cleave_tensor_count(b) && memcmp(a->data, b->data, 4 * n) == 0);
  return true;
}

/* Compares two outputs of module m: for the kept value, which m's node fetches from the value's
 * owner, and for a leaf that has the same numbers. */
static bool check_use_equals_leaf(cleave_kept k, cleave_module *m) {
  cleave_context c;
  cleave_reference x, y, leaf_x, y_of_leaf;
  cleave_tensor value = {0}, got = {0}, wanted = {0};
  DO(fetch_kept(k, &value));
  DO(open_context(&c));
  MUST(cleave_kept_use(rt, c, k, &x, e));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_leaf(rt, c, &value, false, &leaf_x, e));
  MUST(cleave_call(rt, c, m, &leaf_x, 1, &y_of_leaf, e));
  MUST(cleave_to_here(rt, y, 0, &got, e));
  MUST(cleave_to_here(rt, y_of_leaf, 0, &wanted, e));
  DO(is_same_tensor(&got, &wanted));
  add_to_digest(&got);
  DO(close_context(c));
  cleave_tensor_free(&value);
  cleave_tensor_free(&got);
  cleave_tensor_free(&wanted);
  return true;
}

static bool release_kept(cleave_kept k) {
  MUST(cleave_kept_release(rt, k, e));
  return true;
}

/* A module at A computes a value, which A then owns. Modules at A, at B and at the master use the
 * value. */
static bool first_workers_value_is_used_at_every_node(void) {
  cleave_kept k;
  DO(keep_output(on_a, 1, &k));
  DO(check_use_equals_leaf(k, on_a));
  DO(check_use_equals_leaf(k, on_b));
  DO(check_use_equals_leaf(k, on_master));
  DO(check_use_equals_leaf(k, on_b));
  return release_kept(k);
}

static bool second_workers_value_is_used_at_every_node(void) {
  cleave_kept k;
  DO(keep_output(on_b, 2, &k));
  DO(check_use_equals_leaf(k, on_b));
  DO(check_use_equals_leaf(k, on_a));
  DO(check_use_equals_leaf(k, on_master));
  return release_kept(k);
}

/* This process owns the values: a leaf, and the output of a module at the master. */
static bool kept_values_of_the_master_are_passed_to_workers(void) {
  cleave_context c;
  cleave_reference x;
  cleave_kept k, own_kept;
  DO(open_context(&c));
  DO(make_random_leaf(c, 3, &x));
  MUST(cleave_keep(rt, x, &k, e));
  DO(close_context(c));
  DO(check_use_equals_leaf(k, on_a));
  DO(check_use_equals_leaf(k, on_b));
  DO(check_use_equals_leaf(k, on_master));
  DO(release_kept(k));
  DO(keep_output(on_master, 4, &own_kept));
  DO(check_use_equals_leaf(own_kept, on_b));
  DO(check_use_equals_leaf(own_kept, on_master));
  return release_kept(own_kept);
}

/* One use of a kept value serves many calls of a context, and several contexts can use the value at
 * the same time. */
static bool uses_share_a_value(void) {
  cleave_kept k;
  cleave_context c[3];
  cleave_reference x[3], y[3][2];
  cleave_tensor first = {0}, t = {0};
  DO(keep_output(on_a, 5, &k));
  for (int i = 0; i < 3; i++) {
    DO(open_context(&c[i]));
    MUST(cleave_kept_use(rt, c[i], k, &x[i], e));
    for (int j = 0; j < 2; j++) MUST(cleave_call(rt, c[i], on_b, &x[i], 1, &y[i][j], e));
  }
  DO(release_kept(k)); /* contexts that use the kept value can still use it */
  MUST(cleave_to_here(rt, y[0][0], 0, &first, e));
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 2; j++) {
      MUST(cleave_to_here(rt, y[i][j], 0, &t, e));
      DO(is_same_tensor(&first, &t));
    }
    MUST(cleave_to_here(rt, x[i], 0, &t, e));
    DO(close_context(c[i]));
  }
  add_to_digest(&first);
  cleave_tensor_free(&first);
  cleave_tensor_free(&t);
  return true;
}

/* A fetch that is requested before the value exists waits for it. A backward gives a kept input no
 * gradient. */
static bool kept_input_gets_no_gradient(void) {
  cleave_kept k;
  cleave_context c;
  cleave_module *sum, *loss;
  cleave_reference x, kept_x, h, y, target, l;
  cleave_tensor dx = {0};
  cleave_module_options o = {.size = sizeof o, .name = "sum", .at = at_b};
  cleave_graph *g;
  int n[3];
  int64_t shape[] = {4, 6};
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "p", CLEAVE_F32, shape, 2, &n[0], e));
  MUST(cleave_graph_input(g, "q", CLEAVE_F32, shape, 2, &n[1], e));
  MUST(cleave_graph_op(g, "add", NULL, NULL, n, 2, &n[2], e));
  MUST(cleave_load_graph(rt, &o, g, &sum, e));
  cleave_graph_free(g);
  DO(load_loss("kept loss", "master", 6, &loss));
  DO(keep_output(on_a, 6, &k));
  DO(open_context(&c));
  float numbers[24];
  fill_with_random(numbers, 24, 7);
  DO(make_leaf(c, numbers, 4, 6, true, &x));
  MUST(cleave_kept_use(rt, c, k, &kept_x, e));
  MUST(cleave_call(rt, c, on_a, &x, 1, &h, e));
  MUST(cleave_call(rt, c, sum, (cleave_reference[]){h, kept_x}, 2, &y, e));
  DO(make_random_leaf(c, 8, &target));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, target}, 2, &l, e));
  DO(backward(c, l, false));
  MUST(cleave_leaf_gradient(rt, x, &dx, e));
  add_to_digest(&dx);
  REFUSED(cleave_leaf_gradient(rt, kept_x, &dx, e), CLEAVE_INVALID, "requires a gradient");
  DO(close_context(c));
  cleave_tensor_free(&dx);
  cleave_module_release(rt, sum, NULL);
  cleave_module_release(rt, loss, NULL);
  return release_kept(k);
}

/* A fetch of a value whose computation failed returns the error of the computation, and so does a
 * fetch of any value computed from it. */
static bool an_error_is_stored_in_the_reference(void) {
  cleave_context c;
  cleave_kept k;
  cleave_reference x, y, z;
  cleave_tensor t = {0};
  static const int64_t rows[] = {0, 1, 9, 2};
  cleave_tensor numbers = CLEAVE_TENSOR_I64(rows, 4);
  DO(open_context(&c));
  MUST(cleave_leaf(rt, c, &numbers, false, &x, e));
  MUST(cleave_call(rt, c, embedding, &x, 1, &y, e));
  MUST(cleave_keep(rt, y, &k, e));
  DO(close_context(c));
  for (int i = 0; i < 2; i++) {
    cleave_error fetch_error;
    CHECK(cleave_kept_fetch(rt, k, 0, &t, &fetch_error) != CLEAVE_OK);
    CHECK(strstr(fetch_error.text, "row number of sample 2") &&
          strcmp(fetch_error.node, at_a) == 0);
    DO(open_context(&c));
    MUST(cleave_kept_use(rt, c, k, &z, e));
    MUST(cleave_call(rt, c, i ? on_b : on_a, &z, 1, &y, e));
    CHECK(cleave_to_here(rt, y, 0, &t, &fetch_error) != CLEAVE_OK &&
          strstr(fetch_error.text, "row number of sample 2"));
    DO(close_context(c));
  }
  return release_kept(k);
}

static bool owner_confirms_kept_value(void) {
  cleave_kept k;
  cleave_place place;
  bool is_confirmed = false;
  DO(keep_output(on_b, 9, &k)); /* the value exists, because closing its context waited for it */
  MUST(cleave_kept_confirmed(rt, k, &is_confirmed, e));
  CHECK(is_confirmed);
  MUST(cleave_kept_owner(rt, k, &place, e));
  CHECK(strcmp(place.node, at_b) == 0);
  return release_kept(k);
}

static bool released_handle_is_refused_as_released(void) {
  cleave_kept k, unknown_kept = {UINT64_C(1) << 40};
  cleave_context c;
  cleave_reference x, kept_value;
  cleave_tensor t = {0};
  cleave_place place;
  bool is_confirmed;
  DO(keep_output(on_a, 10, &k));
  DO(open_context(&c));
  MUST(cleave_kept_use(rt, c, k, &kept_value, e));
  REFUSED(cleave_keep(rt, kept_value, &k, e), CLEAVE_PRECONDITION, "stands for kept reference");
  DO(release_kept(k));
  REFUSED(cleave_kept_release(rt, k, e), CLEAVE_NOT_FOUND, "was released");
  REFUSED(cleave_kept_fetch(rt, k, 0, &t, e), CLEAVE_NOT_FOUND, "was released");
  REFUSED(cleave_kept_use(rt, c, k, &x, e), CLEAVE_NOT_FOUND, "was released");
  REFUSED(cleave_kept_owner(rt, k, &place, e), CLEAVE_NOT_FOUND, "was released");
  REFUSED(cleave_kept_confirmed(rt, k, &is_confirmed, e), CLEAVE_NOT_FOUND, "was released");
  REFUSED(cleave_kept_fetch(rt, unknown_kept, 0, &t, e), CLEAVE_INVALID, "no kept reference");
  return close_context(c);
}

/* Keeps a value that depends on calls at all nodes before it is computed. Then closes the value's
 * context, or, if ends_context, ends the context without waiting. */
static bool keep_uncomputed_value(bool ends_context, cleave_kept *ret) {
  cleave_module *const path[] = {on_a, on_b, on_master, on_b, on_a};
  cleave_context c;
  cleave_reference x;
  DO(open_context(&c));
  DO(make_random_leaf(c, 16, &x));
  for (int i = 0; i < 5; i++) MUST(cleave_call(rt, c, path[i], &x, 1, &x, e));
  MUST(cleave_keep(rt, x, ret, e));
  if (!ends_context) return close_context(c);
  MUST(cleave_context_end(rt, c, e));
  return true;
}

static bool kept_value_is_computed_after_its_context_closes(void) {
  enum { MAX_KEPT = 100 };
  cleave_kept k[MAX_KEPT];
  cleave_tensor first = {0}, t = {0};
  int n = n_large_values < MAX_KEPT ? n_large_values : MAX_KEPT;
  for (int i = 0; i < n; i++) DO(keep_uncomputed_value(i % 4 == 3, &k[i]));
  DO(fetch_kept(k[0], &first));
  for (int i = 0; i < n; i++) {
    DO(fetch_kept(k[i], &t));
    DO(is_same_tensor(&first, &t));
    DO(release_kept(k[i]));
  }
  add_to_digest(&first);
  cleave_tensor_free(&first);
  cleave_tensor_free(&t);
  return true;
}

/* The workers grant 48 MiB, so released values must make space for new ones. */
static bool released_values_are_freed(void) {
  enum { ROWS = 64 };
  cleave_module *wide;
  cleave_context c;
  cleave_reference x, y;
  static float numbers[ROWS * 2];
  fill_with_random(numbers, ROWS * 2, 11);
  cleave_module_options o = {.size = sizeof o, .name = "wide", .at = at_a, .seed = 7};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, ROWS, 2);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 4096}]", &input, &wide, e));
  for (int i = 0; i < n_large_values; i++) {
    cleave_kept k;
    DO(open_context(&c));
    DO(make_leaf(c, numbers, ROWS, 2, false, &x));
    MUST(cleave_call(rt, c, wide, &x, 1, &y, e));
    MUST(cleave_keep(rt, y, &k, e));
    DO(close_context(c));
    cleave_tensor t = {0};
    if (i % 10 == 0) DO(fetch_kept(k, &t));
    cleave_tensor_free(&t);
    DO(release_kept(k));
  }
  cleave_module_release(rt, wide, NULL);
  return true;
}

/* ---- calls that the program forgets: cleave_call_forget -------------------------------------- */

static bool forget_call(cleave_reference r) {
  MUST(cleave_call_forget(rt, r, e));
  return true;
}

/* Calls x -> a -> b in a context that the caller has opened. */
static bool call_a_then_b(cleave_context c, unsigned seed, cleave_reference *ret_x,
                          cleave_reference *ret_h, cleave_reference *ret_y) {
  float x[24];
  fill_with_random(x, 24, seed);
  DO(make_leaf(c, x, 4, 6, true, ret_x));
  MUST(cleave_call(rt, c, on_a, ret_x, 1, ret_h, e));
  MUST(cleave_call(rt, c, on_b, ret_h, 1, ret_y, e));
  return true;
}

static bool backward_from_ones(cleave_context c, cleave_reference y, bool retain) {
  float ones[24];
  for (int i = 0; i < 24; i++) ones[i] = 1;
  cleave_tensor g = CLEAVE_TENSOR_F32(ones, 4, 6);
  const cleave_backward_options o = {.size = sizeof o, .gradients = &g, .retain = retain};
  MUST(cleave_backward_with(rt, c, &y, 1, &o, e));
  return true;
}

/* Runs many forwards of 3 MiB each in one context without a backward. The workers grant 48 MiB, so
 * forgotten calls must be freed. */
static bool forwards_without_backward_are_freed(void) {
  enum { ROWS = 64, WIDTH = 4096 };
  static float numbers[ROWS * WIDTH];
  cleave_module *wide;
  cleave_context c;
  cleave_reference x, h, y, unused_x, kept_y;
  cleave_tensor t = {0};
  cleave_module_options o = {.size = sizeof o, .name = "deep", .at = at_a, .seed = 7};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  fill_with_random(numbers, ROWS * WIDTH, 12);
  MUST(cleave_load_layers(rt, &o, "[{op: tanh}, {op: linear, out: 2}]", &input, &wide, e));
  DO(open_context(&c));
  DO(call_a_then_b(c, 13, &unused_x, &h, &kept_y));
  for (int i = 0; i < n_large_values; i++) {
    DO(make_leaf(c, numbers, ROWS, WIDTH, true, &x));
    MUST(cleave_call(rt, c, wide, &x, 1, &y, e));
    if (i % 10 == 0) MUST(cleave_to_here(rt, y, 0, &t, e));
    cleave_reference_release(rt, x, NULL);
    DO(forget_call(y));
    REFUSED(cleave_to_here(rt, y, 0, &t, e), CLEAVE_NOT_FOUND, "is gone");
  }
  DO(backward_from_ones(c, kept_y, false));
  MUST(cleave_leaf_gradient(rt, unused_x, &t, e));
  add_to_digest(&t);
  cleave_tensor_free(&t);
  cleave_module_release(rt, wide, NULL);
  return close_context(c);
}

/* A backward goes through a forgotten call as long as the program has a reference to the value of a
 * call that depends on the forgotten one. */
static bool a_forgotten_call_serves_those_that_depend_on_it(void) {
  cleave_context c;
  cleave_reference x, h, y, z;
  cleave_tensor gradient_of_one = {0}, t = {0};
  DO(open_context(&c));
  DO(call_a_then_b(c, 14, &x, &h, &y));
  MUST(cleave_call(rt, c, on_master, &h, 1, &z, e));
  DO(forget_call(h));
  REFUSED(cleave_call(rt, c, on_b, &h, 1, &h, e), CLEAVE_NOT_FOUND, "was released");
  DO(backward_from_ones(c, y, true));
  MUST(cleave_leaf_gradient_take(rt, x, &gradient_of_one, e));
  DO(forget_call(z));
  DO(backward_from_ones(c, y, false));
  MUST(cleave_leaf_gradient_take(rt, x, &t, e));
  DO(is_same_tensor(&gradient_of_one, &t));
  add_to_digest(&t);
  DO(forget_call(y));
  DO(forget_call(x));
  REFUSED(cleave_leaf_gradient(rt, x, &t, e), CLEAVE_NOT_FOUND, "is gone");
  cleave_tensor_free(&gradient_of_one);
  cleave_tensor_free(&t);
  return close_context(c);
}

/* The value of a forgotten call still reaches a future that waits for it, and a kept value that is
 * computed from it. */
static bool forgotten_call_still_serves_those_who_wait_for_it(void) {
  cleave_context c;
  cleave_reference x, h, y;
  cleave_future f;
  cleave_kept k;
  cleave_tensor t = {0}, wanted = {0};
  DO(open_context(&c));
  DO(call_a_then_b(c, 15, &x, &h, &y));
  MUST(cleave_to_here(rt, y, 0, &wanted, e));
  MUST(cleave_rpc_async(rt, c, on_b, &h, 1, &y, &f, e));
  DO(forget_call(y));
  MUST(cleave_wait(rt, f, 0, &t, e));
  DO(is_same_tensor(&wanted, &t));
  DO(call_a_then_b(c, 15, &x, &h, &y));
  DO(forget_call(h));
  MUST(cleave_keep(rt, y, &k, e));
  DO(forget_call(y));
  DO(forget_call(x));
  DO(close_context(c));
  DO(fetch_kept(k, &t));
  DO(is_same_tensor(&wanted, &t));
  DO(release_kept(k));
  cleave_tensor_free(&wanted);
  cleave_tensor_free(&t);
  return true;
}

/* Runs x -> 48 calls at A, which take a while -> a call at B -> a call at the master, and keeps the
 * master's value before it is computed. r: references to x, to the last value at A, and to the
 * values of B and of the master. */
static bool keep_behind_long_work(cleave_context c, cleave_reference r[4], cleave_kept *ret) {
  enum { ROWS = 64, WIDTH = 512, CALLS = 48 };
  static float numbers[ROWS * WIDTH];
  cleave_module *square, *narrow;
  cleave_reference other;
  cleave_tensor t = {0};
  bool is_confirmed = false;
  fill_with_random(numbers, ROWS * WIDTH, 17);
  DO(load_module("square", at_a, "[{op: linear, out: 512}, {op: tanh}]", WIDTH, &square));
  DO(load_module("narrow", at_b, "[{op: linear, out: 6}]", WIDTH, &narrow));
  DO(make_leaf(c, numbers, ROWS, WIDTH, false, &r[0]));
  r[1] = r[0];
  for (int i = 0; i < CALLS; i++) {
    MUST(cleave_call(rt, c, square, &r[1], 1, &r[2], e));
    if (i) DO(forget_call(r[1]));
    r[1] = r[2];
  }
  MUST(cleave_call(rt, c, narrow, &r[1], 1, &r[2], e));
  MUST(cleave_call(rt, c, on_master, &r[2], 1, &r[3], e));
  MUST(cleave_keep(rt, r[3], ret, e));
  /* makes a blocking call, because without threads the master's node works only during such
   * calls */
  while (!is_confirmed) {
    DO(make_random_leaf(c, 18, &other));
    MUST(cleave_call(rt, c, on_b, &other, 1, &other, e));
    MUST(cleave_to_here(rt, other, 0, &t, e));
    MUST(cleave_kept_confirmed(rt, *ret, &is_confirmed, e));
  }
  cleave_tensor_free(&t);
  cleave_module_release(rt, square, NULL);
  cleave_module_release(rt, narrow, NULL);
  return true;
}

/* The calls that compute a kept value run to their end, although the program has forgotten all
 * these calls and ends their context. */
static bool kept_value_outlives_the_calls_that_compute_it(void) {
  cleave_context c;
  cleave_reference r[4] = {{0}};
  cleave_kept k;
  cleave_tensor t = {0};
  DO(open_context(&c));
  DO(keep_behind_long_work(c, r, &k));
  for (int i = 0; i < 4; i++) DO(forget_call(r[i]));
  MUST(cleave_context_end(rt, c, e));
  DO(fetch_kept(k, &t));
  add_to_digest(&t);
  cleave_tensor_free(&t);
  return release_kept(k);
}

static bool a_call_that_others_wait_for_is_not_forgotten(void) {
  cleave_context c;
  cleave_reference x, h, y, later_value;
  cleave_call_options o = {.size = sizeof o};
  DO(open_context(&c));
  DO(call_a_then_b(c, 16, &x, &h, &y));
  o.after = y;
  MUST(cleave_call_with(rt, c, on_b, &h, 1, &o, &later_value, e));
  REFUSED(cleave_call_forget(rt, y, e), CLEAVE_PRECONDITION, "cannot be forgotten before");
  DO(backward_from_ones(c, y, true));
  DO(forget_call(y));
  REFUSED(cleave_call_forget(rt, y, e), CLEAVE_NOT_FOUND, "");
  return close_context(c);
}

static const test tests[] = {
    TEST(first_workers_value_is_used_at_every_node),
    TEST(second_workers_value_is_used_at_every_node),
    TEST(kept_values_of_the_master_are_passed_to_workers),
    TEST(uses_share_a_value),
    TEST(kept_input_gets_no_gradient),
    TEST(an_error_is_stored_in_the_reference),
    TEST(owner_confirms_kept_value),
    TEST(released_handle_is_refused_as_released),
    TEST(kept_value_is_computed_after_its_context_closes),
    TEST(released_values_are_freed),
    TEST(forwards_without_backward_are_freed),
    TEST(a_forgotten_call_serves_those_that_depend_on_it),
    TEST(forgotten_call_still_serves_those_who_wait_for_it),
    TEST(kept_value_outlives_the_calls_that_compute_it),
    TEST(a_call_that_others_wait_for_is_not_forgotten),
};

/* ---- tests with runtimes of their own: refused sendings, leaks and a lost owner -------------- */

static cleave_status leaf_is_not_sent_to_b(void *user, const cleave_sending *what,
                                           cleave_error *error) {
  (void)user;
  if (what->kind != CLEAVE_SENDING_LEAF || strcmp(what->worker, at_b) != 0) return CLEAVE_OK;
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text, "no leaf goes to %s", at_b);
  return CLEAVE_DENIED;
}

static bool kept_value_that_may_not_leave_fails_its_use(const char *path) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .may_send = leaf_is_not_sent_to_b};
  cleave_context c;
  cleave_reference x, y;
  cleave_kept k;
  cleave_tensor t = {0};
  MUST(cleave_open(path, &o, &rt, e));
  DO(load_modules());
  DO(open_context(&c));
  DO(make_random_leaf(c, 12, &x));
  MUST(cleave_keep(rt, x, &k, e));
  MUST(cleave_kept_use(rt, c, k, &x, e));
  MUST(cleave_call(rt, c, on_a, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &t, e));
  MUST(cleave_call(rt, c, on_b, &x, 1, &y, e));
  REFUSED(cleave_to_here(rt, y, 0, &t, e), CLEAVE_DENIED, "no leaf goes to");
  DO(close_context(c));
  cleave_tensor_free(&t);
  return true;
}

static bool leaks_are_listed(void) {
  cleave_leaks leaks;
  cleave_context c;
  cleave_context_options context_options = {.size = sizeof context_options, .name = "spring"};
  cleave_reference x, y;
  cleave_kept k[2];
  MUST(cleave_context_open(rt, &context_options, &c, e));
  DO(make_random_leaf(c, 13, &x));
  MUST(cleave_call(rt, c, on_a, &x, 1, &y, e));
  MUST(cleave_keep(rt, y, &k[0], e));
  MUST(cleave_keep(rt, y, &k[1], e));
  DO(close_context(c));
  DO(release_kept(k[1]));
  MUST(cleave_close(rt, 0, &leaks, e));
  CHECK(leaks.kept == 2); /* the second one is from the test of the refused sending */
  CHECK(strstr(leaks.text, "of module 'on a' at ") && strstr(leaks.text, "context 'spring'"));
  return true;
}

/* The owner of a kept value is killed. Uses of the value fail at once, and contexts that do not use
 * it continue. */
static bool use_of_a_lost_owners_reference_fails(const char *path, pid_t owner) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000};
  cleave_context c;
  cleave_reference x, y, z;
  cleave_kept k;
  cleave_tensor t = {0};
  cleave_error use_error = {.status = CLEAVE_OK};
  MUST(cleave_open(path, &o, &rt, e));
  DO(load_modules());
  DO(keep_output(on_a, 14, &k));
  DO(open_context(&c));
  MUST(cleave_kept_use(rt, c, k, &x, e));
  DO(fetch_kept(k, &t));
  CHECK(kill(owner, SIGKILL) == 0);
  do
    CHECK(cleave_kept_fetch(rt, k, 0, &t, &use_error) == CLEAVE_OK ||
          use_error.status == CLEAVE_UNAVAILABLE);
  while (use_error.status != CLEAVE_UNAVAILABLE);
  CHECK(strcmp(use_error.node, at_a) == 0);
  MUST(cleave_call(rt, c, on_b, &x, 1, &y, e));
  REFUSED(cleave_to_here(rt, y, 0, &t, e), CLEAVE_UNAVAILABLE, "was lost");
  REFUSED(cleave_kept_use(rt, c, k, &x, e), CLEAVE_UNAVAILABLE, "was lost");
  DO(make_random_leaf(c, 15, &z));
  MUST(cleave_call(rt, c, on_b, &z, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &t, e));
  DO(close_context(c));
  DO(release_kept(k));
  cleave_tensor_free(&t);
  (void)!cleave_close(rt, 0, NULL, NULL);
  return true;
}

int main(int argc, char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000};
  cleave_error e = {0};
  if (argc < 4) return 2;
  at_a = argv[2];
  at_b = argv[3];
  for (int i = 4; i < argc; i++) {
    o.single_thread |= strcmp(argv[i], "single") == 0;
    if (strcmp(argv[i], "few") == 0) n_large_values = 5;
  }
  if (argc == 6 && strcmp(argv[4], "lost") == 0) {
    bool ok = use_of_a_lost_owners_reference_fails(argv[1], (pid_t)atoi(argv[5]));
    print_result(ok, "use_of_a_lost_owners_reference_fails");
    return n_failed != 0;
  }
  bool is_ready = cleave_open(argv[1], &o, &rt, &e) == CLEAVE_OK && load_modules();
  snprintf(why, sizeof why, "%.900s", e.text);
  print_result(is_ready, "open");
  if (is_ready) (void)RUN_ALL(tests);
  print_digest();
  cleave_leaks leaks;
  print_result(cleave_close(rt, 0, &leaks, NULL) == CLEAVE_OK && leaks.kept == 0, "close");
  print_result(kept_value_that_may_not_leave_fails_its_use(argv[1]),
               "kept_value_that_may_not_leave_fails_its_use");
  print_result(leaks_are_listed(), "leaks_are_listed");
  return n_failed != 0;
}
