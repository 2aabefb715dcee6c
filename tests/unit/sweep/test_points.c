/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the points of a sweep: combinations, random points, and what is refused.
 */
#include <stdlib.h>

#include "master/sweep/sweep_int.h"
#include "tests/unit/scratch.h"

static clv_err err;
static clv_cli_list no_values, set_keys, grid_keys, random_keys;

static clv_sweep_options options(void) {
  return (clv_sweep_options){
      .session = "s.yaml", .sets = &set_keys, .grids = &grid_keys, .randoms = &random_keys};
}

static int clear_options(void **state) {
  (void)state;
  set_keys = grid_keys = random_keys = no_values;
  return 0;
}

static void add_value(clv_cli_list *l, const char *text) { l->items[l->n++] = text; }

static void grid_has_all_combinations_and_the_last_key_changes_first(void **state) {
  (void)state;
  CLV_AUTO(sweep_points_done) sweep_points p = {.n_keys = 0};
  clv_sweep_options o = options();
  add_value(&grid_keys, "train.batch=8, 16");
  add_value(&grid_keys, "train.optimizer.betas=[0.9, 0.99],[0.5,0.9]");
  assert_ok(sweep_points_make(&o, &p, &err), &err);
  assert_int_equal(p.n_points, 4);
  static const char *const want[] = {"8",  "[0.9, 0.99]", "8",  "[0.5,0.9]",
                                     "16", "[0.9, 0.99]", "16", "[0.5,0.9]"};
  for (size_t i = 0; i < 8; i++) assert_string_equal(p.values[i], want[i]);
}

static void random_points_follow_from_the_seed_and_are_within_their_ranges(void **state) {
  (void)state;
  CLV_AUTO(sweep_points_done)
  sweep_points p = {.n_keys = 0}, more = {.n_keys = 0}, other = {.n_keys = 0};
  clv_sweep_options o = options();
  add_value(&random_keys, "a=log:1e-4..1e-1");
  add_value(&random_keys, "b=3..6");
  add_value(&random_keys, "c=x,y");
  o.n_points = 40;
  assert_ok(sweep_points_make(&o, &p, &err), &err);
  o.n_points = 50;
  assert_ok(sweep_points_make(&o, &more, &err), &err);
  o.seed = 1;
  assert_ok(sweep_points_make(&o, &other, &err), &err);
  unsigned n_below_middle = 0, drawn_values = 0, n_equal = 0;
  for (size_t i = 0; i < 40; i++) {
    double a = strtod(sweep_point_value(&p, i, 0), NULL);
    long b = strtol(sweep_point_value(&p, i, 1), NULL, 10);
    assert_true(a >= 1e-4 && a <= 1e-1 && b >= 3 && b <= 6);
    assert_null(strchr(sweep_point_value(&p, i, 1), '.'));
    n_below_middle += a < 3.16e-3;
    drawn_values |= 1u << b;
    for (size_t k = 0; k < 3; k++) {
      assert_string_equal(sweep_point_value(&p, i, k), sweep_point_value(&more, i, k));
      n_equal += strcmp(sweep_point_value(&p, i, k), sweep_point_value(&other, i, k)) == 0;
    }
  }
  /* about half of the 40 values of `a`, because their logarithms are uniform */
  assert_in_range(n_below_middle, 10, 30);
  assert_int_equal(drawn_values, 8 + 16 + 32 + 64);
  assert_true(n_equal < 60);
}

static void random_points_differ_from_each_other(void **state) {
  (void)state;
  CLV_AUTO(sweep_points_done) sweep_points p = {.n_keys = 0};
  clv_sweep_options o = options();
  add_value(&random_keys, "a=1..4");
  o.n_points = 4;
  assert_ok(sweep_points_make(&o, &p, &err), &err);
  unsigned drawn_values = 0;
  for (size_t i = 0; i < 4; i++) drawn_values |= 1u << strtol(p.values[i], NULL, 10);
  assert_int_equal(drawn_values, 2 + 4 + 8 + 16);
  sweep_points_done(&p);
  o.n_points = 5;
  assert_int_equal(sweep_points_make(&o, &p, &err), CLV_INVALID);
  assert_says(&err, "only 4 different points");
}

static void wrong_options_are_refused_by_name(void **state) {
  static const struct {
    const char *grid, *random, *set;
    uint64_t points, folds;
    const char *says;
  } cases[] = {
      {NULL, NULL, NULL, 0, 0, "nothing to sweep"},
      {"a=1", "b=1..2", NULL, 2, 0, "--grid or --random"},
      {NULL, "b=1..2", NULL, 0, 0, "--random and --points go together"},
      {"a=1", NULL, NULL, 3, 0, "--random and --points go together"},
      {"a", NULL, NULL, 0, 0, "--grid a: expected KEY=VALUES"},
      {"=1", NULL, NULL, 0, 0, "expected KEY=VALUES"},
      {"a=1,,2", NULL, NULL, 0, 0, "a value is empty"},
      {"a=1,1", NULL, NULL, 0, 0, "the value 1 comes twice"},
      {"a=1,2", NULL, "a=3", 0, 0, "--set has a, too"},
      {"name=x,y", NULL, NULL, 0, 0, "cannot change name"},
      {"train.seed=1,2", NULL, NULL, 0, 0, "a seed is a secret"},
      {"data.validation.fold=1,2", NULL, NULL, 0, 3, "--folds sets it"},
      {NULL, "a=2..1", NULL, 2, 0, "write the smaller end first"},
      {NULL, "a=log:0..1", NULL, 2, 0, "both ends are above 0"},
      {NULL, "a=log:x", NULL, 2, 0, "log: goes with a range"},
      {NULL, "a=b..c", NULL, 3, 0, "'b..c' is no range of numbers"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(sweep_points_done) sweep_points p = {.n_keys = 0};
    clear_options(state);
    clv_sweep_options o = options();
    o.n_points = cases[i].points;
    o.folds = cases[i].folds;
    if (cases[i].grid) add_value(&grid_keys, cases[i].grid);
    if (cases[i].random) add_value(&random_keys, cases[i].random);
    if (cases[i].set) add_value(&set_keys, cases[i].set);
    assert_int_equal(sweep_points_make(&o, &p, &err), CLV_INVALID);
    assert_says(&err, cases[i].says);
  }
}

static void too_many_runs_are_refused(void **state) {
  (void)state;
  CLV_AUTO(sweep_points_done) sweep_points p = {.n_keys = 0};
  clv_sweep_options o = options();
  char text[2][600] = {"a=0", "b=0"};
  for (int k = 0; k < 2; k++) {
    for (int i = 1; i < 64; i++) snprintf(text[k] + strlen(text[k]), 8, ",%d", i);
    add_value(&grid_keys, text[k]);
  }
  assert_ok(sweep_points_make(&o, &p, &err), &err); /* 4096 runs, the limit */
  o.folds = 2;
  sweep_points_done(&p);
  assert_int_equal(sweep_points_make(&o, &p, &err), CLV_INVALID);
  assert_says(&err, "8192 runs or more, at most 4096");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(grid_has_all_combinations_and_the_last_key_changes_first,
                             clear_options),
      cmocka_unit_test_setup(random_points_follow_from_the_seed_and_are_within_their_ranges,
                             clear_options),
      cmocka_unit_test_setup(random_points_differ_from_each_other, clear_options),
      cmocka_unit_test_setup(wrong_options_are_refused_by_name, clear_options),
      cmocka_unit_test_setup(too_many_runs_are_refused, clear_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
