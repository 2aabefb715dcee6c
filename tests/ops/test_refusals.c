/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what ops refuse: values outside the ranges of their rows, numbers and types of inputs that
 * the rows do not have, and the shapes that the op's cases list (`refused:`).
 */
#include "tests/ops/each_op.h"

#include <math.h>

static void assert_refused(clv_code code, const clv_err *err, const char *what, const char *part) {
  if (code == CLV_OK) fail_msg("%s is not refused", what);
  if (!strstr(err->text, part)) fail_msg("%s: '%s' lacks '%s'", what, err->text, part);
}

/* ---- attributes outside their range ---------------------------------------------------------- */

/* Asserts that the op refuses value v of an attribute by an error that names op and attribute. */
static void assert_value_refused(clv_op op, const clv_attr_row *row, clv_attr_value v,
                                 const char *why) {
  char what[96], part[64];
  clv_err err;
  snprintf(part, sizeof part, "%s.%s", clv_op_name(op), clv_attr_name(row->key));
  snprintf(what, sizeof what, "%s %s", part, why);
  v.key = row->key;
  assert_refused(clv_op_attr_check(op, &v, &err), &err, what, part);
}

static bool is_integer(double v) { return fabs(v) < 1e15 && v == floor(v); }

static void check_range(clv_op op, const clv_attr_row *row) {
  bool has_real_limits = !is_integer(row->low) || !is_integer(row->high);
  clv_attr_value below_low = {.n_ints = 1, .ints = {has_real_limits ? 0 : (int64_t)row->low - 1}};
  clv_attr_value above_high = {.n_ints = 1, .ints = {has_real_limits ? 0 : (int64_t)row->high + 1}};
  if (has_real_limits) {
    below_low = (clv_attr_value){.is_number = true, .number = row->low - (row->high - row->low)};
    above_high = (clv_attr_value){.is_number = true, .number = 2 * row->high};
  }
  assert_value_refused(op, row, below_low, "below its range");
  assert_value_refused(op, row, above_high, "above its range");
  assert_value_refused(op, row, (clv_attr_value){.is_number = true, .number = (double)NAN},
                       "as nan");
  assert_value_refused(op, row, (clv_attr_value){.n_ints = 0}, "without a value");
}

static void check_attributes(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_attr_key key;
  clv_attrs attrs;
  clv_err err;
  assert_refused(clv_op_attr_find(op, "no_such_key", &key, &err), &err, "an unknown key",
                 def->name);
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    check_range(op, row);
    if (row->is_required)
      assert_refused(clv_attrs_parse(op, NULL, 0, &attrs, &err), &err, "no required attribute",
                     "needs '");
  }
}

/* ---- wrong numbers and types of inputs ------------------------------------------------------- */

/* Adds the case to a graph with n inputs. retyped_input: index of an input that gets the wrong type
 * (integers for floats, or floats for integers); -1: none. */
static clv_code add_to_graph(const op_case *c, int n, int retyped_input, clv_err *err) {
  clv_graph *g;
  int in[CLV_MAX_IN + 1] = {0}, node;
  CLV_TRY(clv_graph_new(&g, err));
  clv_code code = CLV_OK;
  for (int i = 0; i < n && i < CLV_MAX_IN && code == CLV_OK; i++) {
    char name[16];
    bool is_integer = is_integer_input(c->d.op, i) != (i == retyped_input);
    snprintf(name, sizeof name, "x%d", i);
    const clv_shape *shape = &c->d.in[i < c->d.n_in ? i : 0];
    code = clv_graph_add_input(g, name, is_integer ? CLV_I64 : CLV_F32, shape, &in[i], err);
  }
  if (code == CLV_OK) code = clv_graph_add(g, c->d.op, &c->d.attrs, "it", 0, in, n, &node, err);
  clv_graph_free(g);
  return code;
}

static void check_inputs(const op_case *c) {
  const clv_op_def *def = clv_op_def_of(c->d.op);
  int max_inputs = def->max_in ? def->max_in : def->n_in;
  clv_err err;
  if (add_to_graph(c, c->d.n_in, -1, &err) != CLV_OK) fail_msg("%s: %s", c->name, err.text);
  assert_refused(add_to_graph(c, def->n_in - 1, -1, &err), &err, "an input too few", def->name);
  assert_refused(add_to_graph(c, max_inputs + 1, -1, &err), &err, "an input too many", def->name);
  for (int i = 0; i < c->d.n_in; i++)
    assert_refused(add_to_graph(c, c->d.n_in, i, &err), &err, "an input of another type",
                   def->name);
}

/* ---- shapes that an op refuses --------------------------------------------------------------- */

static void check_refusal(const op_refusal *r) {
  char line[sizeof r->key_words + 4], *words_left = NULL;
  op_case c = {.name = "refused", .is_small = true, .d.op = r->op};
  clv_err err = {0};
  snprintf(line, sizeof line, "x %s", r->key_words);
  strtok_r(line, " ", &words_left);
  assert_refused(parse_case_words(&c, &words_left, &err), &err, r->key_words, r->refusal_text);
  if (files[r->op].problem[0]) fail_msg("%s: %s", r->key_words, files[r->op].problem);
}

static void test_op(clv_op op) {
  int n_refusals_of_op = 0;
  check_attributes(op);
  for (int i = 0; i < n_refusals; i++) {
    if (refusals[i].op != op) continue;
    check_refusal(&refusals[i]);
    n_refusals_of_op++;
  }
  if (clv_op_def_of(op)->shape != clv_shape_of_input && n_refusals_of_op == 0)
    fail_msg("the shape rule of %s refuses something: " CASES_FOLDER "/%s.cases lacks 'refused:'",
             clv_op_name(op), clv_op_name(op));
  for (int i = 0; i < n_cases; i++)
    if (cases[i].d.op == op && !clv_op_def_of(op)->is_test_only) check_inputs(&cases[i]);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("refusals", test_op, argv);
}
