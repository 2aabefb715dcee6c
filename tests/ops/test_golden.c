/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares every op with the numbers of PyTorch (tests/golden/make_golden.py): outputs and all
 * gradients. Runs each op with and without accumulation of parameter gradients, in place and not,
 * and with each channel block. Also compares the shapes and parameters that the op's row of the
 * table of ops derives with those of PyTorch.
 */
#include "tests/golden/golden_int.h"
#include "tests/ops/each_op.h"
#include "tests/ops/run_int.h"

static void assert_same_shape(const char *what, const clv_shape *row_shape,
                              const clv_shape *torch_shape) {
  char a[160], b[160];
  if (!clv_shape_equal(row_shape, torch_shape))
    fail_msg("%s: the row says %s, PyTorch %s", what, clv_shape_format(row_shape, a, sizeof a),
             clv_shape_format(torch_shape, b, sizeof b));
}

static void load_tensor(const golden *numbers, const op_case *c, int i, values *s) {
  golden_tensor t;
  char buf[40], what[80];
  const char *name = write_value_name(&c->d, i, buf);
  snprintf(what, sizeof what, "%.31s.%.40s", c->name, name);
  if (!golden_find_tensor(numbers, c->name, name, &t))
    fail_msg("%s is missing from the golden of %s", what, clv_op_name(c->d.op));
  clv_shape shape = get_value_shape(&c->d, i);
  assert_same_shape(what, &shape, &t.shape);
  for (size_t j = 0; j < t.n; j++)
    s->v[i][j] =
        t.dtype == CLV_I64 ? (double)((const int64_t *)t.data)[j] : ((const float *)t.data)[j];
}

/* Loads the golden tensors of a case. Returns their number, which follows from the op's row. */
static int load_case(const golden *numbers, const op_case *c, values *s) {
  int n = 0;
  for (int i = 0; i < V_COUNT; i++) {
    if (!s->n[i]) continue;
    load_tensor(numbers, c, i, s);
    n++;
  }
  return n;
}

/* Returns the relative rounding error of gradients g that are added to ones: each sum 1 + g is
 * rounded by about 2^-23. */
static double compute_rounding_of_sums(const double *g, size_t n) {
  double norm = 0;
  for (size_t i = 0; i < n; i++) norm += g[i] * g[i];
  return 0x1p-23 * sqrt((double)n / fmax(norm, 1e-30));
}

/* Compares the results of one run with the golden values. Returns the largest distance. */
static double compare_with_golden(const op_case *c, const run_options *o, const values *want,
                                  values *got) {
  double max_distance = 0;
  char name[40];
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++) {
    bool is_added_to_ones = o->has_accumulation && i >= V_DPARAM && i < V_STATISTICS_AFTER;
    for (size_t j = 0; j < got->n[i] && is_added_to_ones; j++) got->v[i][j] -= 1;
    double limit = 1e-5 + (is_added_to_ones ? compute_rounding_of_sums(want->v[i], want->n[i]) : 0);
    double distance = compute_distance(got->v[i], want->v[i], got->n[i]);
    if (!(distance <= limit))
      fail_msg("%s on %s (offered block %d%s%s): %s is %.2e from PyTorch, more than %.0e", c->name,
               o->backend->name, o->offered_block, o->is_in_place ? ", in place" : "",
               o->has_accumulation ? ", accumulating" : "", write_value_name(&c->d, i, name),
               distance, limit);
    if (!is_added_to_ones && distance > max_distance) max_distance = distance;
  }
  return max_distance;
}

static bool check_run(const op_case *c, const run_options *o, const values *want,
                      double *max_distance) {
  values got;
  allocate_values(&got, &c->d);
  copy_given_values(&got, want);
  bool has_run = run_case(o, &c->d, &got, NULL);
  if (has_run) *max_distance = fmax(*max_distance, compare_with_golden(c, o, want, &got));
  free_values(&got);
  return has_run;
}

static bool check_all_options(const op_case *c, const values *want, const clv_backend *backend,
                              clv_dtype dtype, double *max_distance) {
  static const struct {
    int block;
    bool is_in_place, has_accumulation;
  } variants[] = {{1, false, false}, {8, true, false}, {16, false, true}};
  bool is_supported = true;
  for (size_t w = 0; w < CLV_COUNT(variants) && is_supported; w++) {
    run_options o = {.backend = backend,
                     .dtype = dtype,
                     .offered_block = variants[w].block,
                     .is_in_place = variants[w].is_in_place,
                     .has_accumulation = variants[w].has_accumulation};
    is_supported = check_run(c, &o, want, max_distance);
  }
  return is_supported;
}

/* Runs all golden cases of an op on a backend. */
static void check_op(clv_op op, const golden *numbers, const clv_backend *backend,
                     clv_dtype dtype) {
  int n_run = 0, n_left_out = 0;
  double max_distance = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].has_golden) continue;
    values want;
    allocate_values(&want, &cases[i].d);
    load_case(numbers, &cases[i], &want);
    bool is_supported = check_all_options(&cases[i], &want, backend, dtype, &max_distance);
    free_values(&want);
    n_run += is_supported;
    n_left_out += !is_supported;
  }
  print_message("%-16s %s %s: %d cases, largest distance %.1e; %d fall back to ref\n",
                clv_op_name(op), backend->name, clv_dtype_name(dtype), n_run, max_distance,
                n_left_out);
  assert_true(n_run + n_left_out > 0);
  if (backend == clv_backend_ref()) assert_int_equal(n_left_out, 0);
}

/* Compares the shapes that the op's row derives with those of all golden tensors, before any run.
 * Fails if a golden tensor belongs to no case: its case was deleted, or the row lacks it. */
static void check_shapes(clv_op op, const golden *numbers) {
  int n_known = 0, n_stored = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].has_golden) continue;
    values want;
    allocate_values(&want, &cases[i].d);
    n_known += load_case(numbers, &cases[i], &want);
    free_values(&want);
  }
  for (const char *p = numbers->index_text.data; (p = strchr(p, '\n')); p++) n_stored++;
  if (n_stored != n_known)
    fail_msg("the golden of %s has %d tensors, and its row and cases know %d", clv_op_name(op),
             n_stored, n_known);
}

/* Attributes that PyTorch's functions do not have. Other tests cover them: test_models for initial
 * values of parameters, test_packed for packed sequences. */
static const clv_attr_key attrs_not_in_torch[] = {CLV_ATTR_INIT_STD, CLV_ATTR_INIT_ZERO,
                                                  CLV_ATTR_KAIMING_NORMAL, CLV_ATTR_PACKED,
                                                  CLV_ATTR_FIRST};

/* Asserts that for each attribute of the op there is a case that sets it. */
static void check_attributes(clv_op op) {
  uint64_t given_keys = 0;
  for (size_t i = 0; i < CLV_COUNT(attrs_not_in_torch); i++)
    given_keys |= (uint64_t)1 << attrs_not_in_torch[i];
  for (int i = 0; i < n_cases; i++)
    if (cases[i].d.op == op && cases[i].has_golden) given_keys |= cases[i].key_words;
  for (const clv_attr_row *row = clv_op_def_of(op)->attrs; row->key; row++)
    if (!(given_keys >> row->key & 1))
      fail_msg(CASES_FOLDER "/%s.cases: no golden case gives the attribute %s", clv_op_name(op),
               clv_attr_name(row->key));
}

/* Asserts that each golden file belongs to an op. */
static void assert_no_stray_files(void) {
  char name[300];
  if (find_file_without_op("tests/golden/ops", ".txt", name))
    fail_msg("tests/golden/ops/%s.txt: no op is called so", name);
}

static void test_op(clv_op op) {
  char name[64];
  golden numbers;
  assert_no_stray_files();
  if (files[op].no_golden_reason[0]) {
    print_message("%-16s no golden: %s\n", clv_op_name(op), files[op].no_golden_reason);
    return;
  }
  snprintf(name, sizeof name, "ops/%s", clv_op_name(op));
  if (!golden_exists(name)) fail_msg("tests/golden/%s.txt is missing: make golden writes it", name);
  golden_open(&numbers, name);
  check_attributes(op);
  check_shapes(op, &numbers);
  check_op(op, &numbers, clv_backend_ref(), CLV_F32);
  check_op(op, &numbers, clv_backend_ref(), CLV_F64);
  check_op(op, &numbers, clv_backend_cpu(), CLV_F32);
  golden_close(&numbers);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("golden", test_op, argv);
}
