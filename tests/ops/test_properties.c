/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the properties that the table of ops claims of each op, on ref, because the backends and
 * the plan rely on these properties. For each case the output is computed, then computed again with
 * some values changed, and the two outputs are compared bit by bit.
 */
#include "tests/ops/each_op.h"
#include "tests/ops/run_int.h"

static void compute_output(const op_case *c, bool is_training, values *s) {
  run_options o = {.backend = clv_backend_ref(), .dtype = CLV_F32};
  clv_node_desc d = c->d;
  d.training = is_training;
  if (!run_case(&o, &d, s, NULL)) exit_with_message("ref lacks an op");
}

static void draw_values(const op_case *c, values *s) {
  allocate_values(s, &c->d);
  draw_case(c, s);
}

static bool is_equal(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

/* ---- property maps_zero_to_zero -------------------------------------------------------------- */

/* Returns true if all outputs of the case are 0 when all inputs are 0. */
static bool maps_zero_to_zero(const op_case *c) {
  values s;
  bool is_kept = true;
  draw_values(c, &s);
  for (int i = 0; i < c->d.n_in; i++)
    for (size_t j = 0; j < s.n[V_IN + i]; j++) s.v[V_IN + i][j] = 0;
  compute_output(c, c->d.training, &s);
  for (size_t j = 0; j < s.n[V_OUT]; j++) is_kept = is_kept && s.v[V_OUT][j] == 0;
  free_values(&s);
  return is_kept;
}

/* Compares the op's row with its cases. is_zero_kept: zeros give zeros in all cases. */
static void check_maps_zero_to_zero(const clv_op_def *def, bool is_zero_kept) {
  if (is_zero_kept != def->maps_zero_to_zero)
    fail_msg("of zeros %s makes %s, but its row says maps_zero_to_zero = %s", def->name,
             is_zero_kept ? "zeros" : "others", def->maps_zero_to_zero ? "true" : "false");
}

/* ---- property elementwise -------------------------------------------------------------------- */

/* Changes value `at` of input i, which holds no lengths. Fails if another value of the output
 * changes than value `at`. */
static void check_one_value(const op_case *c, const values *unchanged, int i, size_t at) {
  values s;
  allocate_values(&s, &c->d);
  copy_given_values(&s, unchanged);
  s.v[V_IN + i][at] = isnan(s.v[V_IN + i][at]) ? 1 : s.v[V_IN + i][at] / 2 + 3;
  compute_output(c, c->d.training, &s);
  for (size_t j = 0; j < s.n[V_OUT]; j++)
    if (j != at && !is_equal(s.v[V_OUT][j], unchanged->v[V_OUT][j]))
      fail_msg("%s: input %d [%zu] changes output [%zu], but the row of %s says elementwise",
               c->name, i, at, j, clv_op_name(c->d.op));
  free_values(&s);
}

static void check_elementwise(const op_case *c) {
  values unchanged;
  if (c->d.n_params || !clv_shape_equal(&c->d.in[0], &c->d.out))
    fail_msg("%s: an elementwise op has no parameters and its input's shape", c->name);
  draw_values(c, &unchanged);
  compute_output(c, c->d.training, &unchanged);
  for (int i = 0; i < c->d.n_in && !is_integer_input(c->d.op, i); i++)
    for (size_t at = 0; at < unchanged.n[V_IN + i]; at += unchanged.n[V_IN + i] / 20 + 1)
      check_one_value(c, &unchanged, i, at);
  free_values(&unchanged);
}

/* ---- whether a sample's output depends on other samples -------------------------------------- */

/* Returns the rows of input 0 that belong to the first sample, or to the first packed sequence. */
static size_t count_rows_of_first_sample(const op_case *c) {
  return c->packed_lengths.rank ? (size_t)c->packed_lengths.dim[0] : 1;
}

/* Changes the first sample of input 0. */
static void change_first_sample(const op_case *c, values *s) {
  size_t per_sample = s->n[V_IN] / (size_t)c->d.in[0].dim[0] * count_rows_of_first_sample(c);
  for (size_t j = 0; j < per_sample; j++) {
    double *v = &s->v[V_IN][j];
    if (is_integer_input(c->d.op, 0))
      *v = c->d.attrs.minus < 0 ? (double)(((int64_t)*v + 1) % c->d.attrs.rows) : 0;
    else
      *v = isnan(*v) ? 1 : *v / 2 + 3;
  }
}

/* Changes one sample of the input. Asserts that the outputs of the other samples change exactly if
 * the op's row says so. */
static void check_samples(const op_case *c, const clv_op_def *def) {
  if (c->d.out.rank == 0 || c->d.in[0].dim[0] < 2) return;
  values unchanged, s;
  bool has_changed_others = false, is_expected = def->uses_batch_statistics && c->d.training;
  draw_values(c, &unchanged);
  compute_output(c, c->d.training, &unchanged);
  allocate_values(&s, &c->d);
  copy_given_values(&s, &unchanged);
  change_first_sample(c, &s);
  compute_output(c, c->d.training, &s);
  bool ends_with_sequences = def->packing == CLV_PACKS_SEQUENCES;
  for (size_t j = s.n[V_OUT] / (size_t)c->d.out.dim[0] *
                  (ends_with_sequences ? 1 : count_rows_of_first_sample(c));
       j < s.n[V_OUT]; j++)
    has_changed_others = has_changed_others || !is_equal(s.v[V_OUT][j], unchanged.v[V_OUT][j]);
  if (has_changed_others != is_expected)
    fail_msg("%s: a sample's output depends on %s, but the row of %s says the reverse", c->name,
             has_changed_others ? "the others" : "that sample alone", def->name);
  free_values(&unchanged);
  free_values(&s);
}

/* ---- ops whose output is their input --------------------------------------------------------- */

static void check_identity(const op_case *c, const clv_op_def *def) {
  values s;
  draw_values(c, &s);
  compute_output(c, false, &s);
  bool is_identity = s.n[V_OUT] == s.n[V_IN];
  for (size_t j = 0; j < s.n[V_OUT] && is_identity; j++)
    is_identity = s.v[V_OUT][j] == s.v[V_IN][j] || (isnan(s.v[V_OUT][j]) && isnan(s.v[V_IN][j]));
  if (!is_identity)
    fail_msg("%s: the output is not the input, but the row of %s says %s", c->name, def->name,
             def->is_alias ? "alias" : "identity_in_eval");
  free_values(&s);
}

static void test_op(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  int n = 0;
  bool is_kept = true;
  assert_true(def->elementwise || !def->maps_zero_to_zero);
  for (int i = 0; i < n_cases; i++) {
    const op_case *c = &cases[i];
    if (c->d.op != op || !c->is_small) continue;
    if (def->elementwise) is_kept = is_kept && maps_zero_to_zero(c);
    if (def->elementwise && !clv_has_broadcast_input(&c->d)) check_elementwise(c);
    if (def->is_alias || def->is_identity_in_eval) check_identity(c, def);
    if (def->is_loss != (c->d.out.rank == 0)) fail_msg("%s: a loss is a scalar", c->name);
    check_samples(c, def);
    n++;
  }
  if (def->elementwise) check_maps_zero_to_zero(def, is_kept);
  assert_true(n > 0);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("properties", test_op, argv);
}
