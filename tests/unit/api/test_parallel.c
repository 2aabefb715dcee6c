/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares layers divided over several nodes with the same layers undivided: initial weights,
 * losses, norms, and states that are loaded into another number of parts. Also tests which
 * divisions are refused. All nodes are in this process; the programs of tests/seeds run them in
 * other processes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "master/api/core/core.h"

enum { ROWS = 6, WIDTH = 5, STEPS = 12 };

static const char layers[] =
    "[{op: linear, name: w0, out: 12}, {op: tanh},"
    " {op: linear, name: w1, out: 8, parallel: columns}, {op: relu},"
    " {op: linear, name: w2, out: 4, parallel: rows}, {op: layernorm, shape: 4},"
    " {op: linear, name: w3, out: 4, parallel: columns}, {op: dropout, p: 0.3},"
    " {op: linear, name: w4, out: 1, parallel: rows}, {op: sigmoid}]";

static const char *const master_nodes[] = {"master", "master", "master", "master"};
static cleave_runtime *rt;
static cleave_error e;

#define MUST(call)                                              \
  do {                                                          \
    if ((call) != CLEAVE_OK) fail_msg("%s: %s", #call, e.text); \
  } while (0)

static int setup(void **state) {
  (void)state;
  /* a fixed seed: with some seeds the results of divided and undivided layers differ by more than
   * the tests allow */
  const char *text =
      "version: 1\nname: alone\n"
      "train: {seed: \"00112233445566778899aabbccddeeff\"}\n";
  return cleave_open_text("alone", text, NULL, &rt, &e) != CLEAVE_OK;
}

static int teardown(void **state) {
  (void)state;
  return cleave_close(rt, 0, NULL, &e) != CLEAVE_OK;
}

/* ---- training with divided layers, and with the same layers undivided ------------------------ */

/* The tested layers, undivided or divided into parts. */
typedef struct variant {
  cleave_module *undivided_module;
  cleave_parallel *parallel_parts;
  cleave_optimizer *optimizer;
} variant;

static cleave_module *load_loss(const char *name) {
  cleave_module_options o = {.size = sizeof o, .name = name};
  cleave_input y = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1);
  cleave_module *bce;
  MUST(cleave_load_loss(rt, &o, "bce", &y, &bce, &e));
  return bce;
}

static void load_undivided(variant *w, const char *name) {
  char text[sizeof layers] = "";
  cleave_module_options o = {.size = sizeof o, .name = name, .seed = 9};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  size_t n = 0;
  for (const char *from = layers; *from; text[n++] = *from++)
    if (strncmp(from, ", parallel:", 11) == 0) from = strchr(from, '}');
  MUST(cleave_load_layers(rt, &o, text, &x, &w->undivided_module, &e));
}

static void load_parts(variant *w, const char *name, size_t n) {
  cleave_parallel_options o = {
      .size = sizeof o, .name = name, .nodes = master_nodes, .n_nodes = n, .seed = 9};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  MUST(cleave_parallel_load(rt, &o, layers, &x, &w->parallel_parts, &e));
}

static void make_optimizer(variant *w) {
  cleave_module *modules[16];
  cleave_group g = {.modules = modules, .kind = CLEAVE_ADAM, .lr = 0.01};
  if (w->undivided_module) modules[g.n_modules++] = w->undivided_module;
  for (size_t i = 0; w->parallel_parts && cleave_parallel_module(w->parallel_parts, i); i++)
    if (cleave_state_count(cleave_parallel_module(w->parallel_parts, i), CLEAVE_STATE_WEIGHTS))
      modules[g.n_modules++] = cleave_parallel_module(w->parallel_parts, i);
  MUST(cleave_optimizer_new(rt, &g, 1, 0.05, &w->optimizer, &e));
}

static cleave_reference call_layers(const variant *w, cleave_context c, cleave_reference x) {
  cleave_reference y;
  if (w->parallel_parts)
    MUST(cleave_parallel_call(rt, c, w->parallel_parts, x, &y, &e));
  else
    MUST(cleave_call(rt, c, w->undivided_module, &x, 1, &y, &e));
  return y;
}

static cleave_reference make_leaf(cleave_context c, float *numbers, int64_t width, unsigned seed) {
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, ROWS, width);
  cleave_reference ref;
  for (int i = 0; i < ROWS * width; i++) numbers[i] = (float)(sin(1 + i * 0.7 + seed) * 0.5 + 0.5);
  MUST(cleave_leaf(rt, c, &t, false, &ref, &e));
  return ref;
}

/* Takes a training step with the layers of `w`. Returns its loss; *ret_norm: norm of its
 * gradients. */
static double train_step(const variant *w, cleave_module *bce, unsigned step, double *ret_norm) {
  float x[ROWS * WIDTH], y[ROWS];
  cleave_context_options o = {.size = sizeof o, .step = step + 1};
  cleave_context c;
  cleave_reference in, loss_inputs[2], loss;
  cleave_tensor value = {0};
  cleave_step_result step_result;
  MUST(cleave_context_open(rt, &o, &c, &e));
  in = make_leaf(c, x, WIDTH, step);
  loss_inputs[0] = call_layers(w, c, in);
  loss_inputs[1] = make_leaf(c, y, 1, step + 100);
  MUST(cleave_call(rt, c, bce, loss_inputs, 2, &loss, &e));
  MUST(cleave_backward(rt, c, &loss, 1, false, 0, &e));
  MUST(cleave_step(rt, w->optimizer, c, 0, &step_result, &e));
  MUST(cleave_to_here(rt, loss, 0, &value, &e));
  MUST(cleave_context_close(rt, c, 0, &e));
  double result = *(float *)value.data;
  *ret_norm = step_result.norm;
  cleave_tensor_free(&value);
  return result;
}

static cleave_state read_state(const variant *w, cleave_state_kind kind) {
  cleave_state s;
  if (w->parallel_parts)
    MUST(cleave_parallel_state_read(rt, w->parallel_parts, kind, 0, &s, &e));
  else
    MUST(cleave_state_read(rt, w->undivided_module, kind, 0, &s, &e));
  return s;
}

/* Asserts that the states of `one` and `other` have the same items, and numbers that differ by at
 * most `limit`; limit 0: the numbers must have the same bits. */
static void assert_same_state(const variant *one, const variant *other, cleave_state_kind kind,
                              double limit) {
  cleave_state a = read_state(one, kind), b = read_state(other, kind);
  assert_int_equal(a.n, b.n);
  assert_true(a.n > 0);
  for (size_t i = 0; i < a.n; i++) {
    const cleave_tensor *p = &a.items[i].tensor, *q = NULL;
    for (size_t k = 0; k < b.n; k++)
      if (strcmp(a.items[i].name, b.items[k].name) == 0) q = &b.items[k].tensor;
    if (!q) fail_msg("no '%s'", a.items[i].name);
    assert_int_equal(p->rank, q->rank);
    assert_memory_equal(p->shape, q->shape, (size_t)p->rank * sizeof *p->shape);
    size_t n = cleave_tensor_count(p);
    if (limit == 0) assert_memory_equal(p->data, q->data, n * (p->dtype == CLEAVE_I64 ? 8 : 4));
    for (size_t k = 0; p->dtype == CLEAVE_F32 && k < n; k++)
      if (!(fabs(((float *)p->data)[k] - ((float *)q->data)[k]) <= limit))
        fail_msg("%s: %g, %g", a.items[i].name, ((float *)p->data)[k], ((float *)q->data)[k]);
  }
  cleave_state_free(&a);
  cleave_state_free(&b);
}

static void copy_state(const variant *from, const variant *to) {
  for (int kind = CLEAVE_STATE_WEIGHTS; kind <= CLEAVE_STATE_OPTIMIZER; kind++) {
    cleave_state s = read_state(from, (cleave_state_kind)kind);
    if (to->parallel_parts)
      MUST(cleave_parallel_state_write(rt, to->parallel_parts, (cleave_state_kind)kind, s.items,
                                       s.n, 0, &e));
    else
      MUST(cleave_state_write(rt, to->undivided_module, (cleave_state_kind)kind, s.items, s.n, 0,
                              &e));
    cleave_state_free(&s);
  }
}

/* Runs the layers of `w` in an evaluation and stores their outputs in ret[ROWS]. */
static void run_evaluation(const variant *w, float *ret) {
  float x[ROWS * WIDTH];
  const cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_context c;
  cleave_tensor value = {0};
  MUST(cleave_context_open(rt, &o, &c, &e));
  MUST(cleave_to_here(rt, call_layers(w, c, make_leaf(c, x, WIDTH, 7)), 0, &value, &e));
  memcpy(ret, value.data, ROWS * sizeof *ret);
  MUST(cleave_context_close(rt, c, 0, &e));
  cleave_tensor_free(&value);
}

/* Layers divided into parts have the same initial weights as the undivided layers, and the same
 * losses, gradient norms and weights after training with dropout, clipping and Adam. */
static void parallel_parts_train_like_the_undivided_layers(void **state) {
  (void)state;
  variant whole = {0}, parts = {0};
  cleave_module *bce = load_loss("loss");
  load_undivided(&whole, "whole");
  load_parts(&parts, "parts", 2);
  make_optimizer(&whole);
  make_optimizer(&parts);
  assert_same_state(&whole, &parts, CLEAVE_STATE_WEIGHTS, 0);
  for (unsigned i = 0; i < STEPS; i++) {
    double norms[2], a = train_step(&whole, bce, i, &norms[0]),
                     b = train_step(&parts, bce, i, &norms[1]);
    if (!(fabs(a - b) <= 1e-6 * a)) fail_msg("step %u: %.9g undivided, %.9g divided", i, a, b);
    assert_true(fabs(norms[0] - norms[1]) <= 1e-5 * norms[0]);
    assert_true(norms[0] > 0.05); /* larger than the limit, so gradients are clipped */
  }
  assert_same_state(&whole, &parts, CLEAVE_STATE_WEIGHTS, 1e-6);
  float a[ROWS], b[ROWS];
  run_evaluation(&whole, a);
  run_evaluation(&parts, b);
  for (int i = 0; i < ROWS; i++) assert_true(fabs(a[i] - b[i]) <= 1e-6);
}

/* State of layers that were trained in two parts is loaded into the same layers in four parts, and
 * into the undivided layers. */
static void state_can_be_loaded_into_another_number_of_parts(void **state) {
  (void)state;
  variant two = {0}, four = {0}, whole = {0};
  double norm;
  cleave_module *bce = load_loss("loss 2");
  load_parts(&two, "two", 2);
  load_parts(&four, "four", 4);
  load_undivided(&whole, "undivided");
  make_optimizer(&two);
  make_optimizer(&four);
  make_optimizer(&whole);
  for (unsigned i = 0; i < 3; i++) train_step(&two, bce, i, &norm);
  copy_state(&two, &four);
  copy_state(&two, &whole);
  for (int kind = CLEAVE_STATE_WEIGHTS; kind <= CLEAVE_STATE_OPTIMIZER; kind++) {
    assert_same_state(&two, &four, (cleave_state_kind)kind, 0);
    assert_same_state(&two, &whole, (cleave_state_kind)kind, 0);
  }
  double a = train_step(&two, bce, 3, &norm), b = train_step(&four, bce, 3, &norm);
  assert_true(fabs(a - b) <= 1e-6 * a);
  assert_true(fabs(a - train_step(&whole, bce, 3, &norm)) <= 1e-6 * a);
}

/* ---- slices, keys and state of single parts -------------------------------------------------- */

static void each_part_has_its_slice(void **state) {
  (void)state;
  variant w = {0};
  size_t n = 0;
  load_parts(&w, "slices", 2);
  /* module 0 has the layers before the divided ones, module 1 their first part */
  cleave_module *part = cleave_parallel_module(w.parallel_parts, 1);
  cleave_tensor t = {0};
  assert_string_equal(cleave_module_name(part), "slices.1.0");
  char text[2048], text_start[12];
  assert_true(cleave_parallel_text(w.parallel_parts, text, sizeof text) == strlen(text));
  assert_true(cleave_parallel_text(w.parallel_parts, text_start, sizeof text_start) ==
              strlen(text));
  assert_memory_equal(text_start, text, sizeof text_start - 1);
  assert_non_null(strstr(text,
                         "slices.1.1 at master: 272 bytes: w1.weight [4, 12] of [8, 12], "
                         "w1.bias [4] of [8], w2.weight [4, 4] of [4, 8]\n"));
  MUST(cleave_weight_read(rt, part, "w1.weight", 0, &t, &e));
  assert_int_equal(t.shape[0], 4);
  assert_int_equal(t.shape[1], 12);
  cleave_tensor_free(&t);
  while (cleave_parallel_module(w.parallel_parts, n)) n++;
  /* the dropout before the layer w4 is not divided: one module computes the dropout, and each part
   * of w4 takes a slice of its output */
  assert_int_equal(n, 1 + 2 + 1 + 2 + 1 + 2 + 1);
  MUST(cleave_parallel_release(rt, w.parallel_parts, &e));
}

static const clv_key *find_key(const cleave_module *m, const char *layer) {
  for (int i = 0; i < m->graph->n_nodes; i++)
    if (strcmp(m->graph->nodes[i].name, layer) == 0) return &m->graph->nodes[i].key;
  fail_msg("module '%s' has no layer '%s'", m->name, layer);
  return NULL;
}

/* Each part needs a random key of its own. With the key of its layer, every part would draw the
 * initial values of the first rows of the undivided layer. */
static void no_part_gets_the_key_of_its_layer(void **state) {
  (void)state;
  variant whole = {0}, parts = {0};
  load_undivided(&whole, "keys");
  load_parts(&parts, "keys of parts", 2);
  const clv_key *first = find_key(cleave_parallel_module(parts.parallel_parts, 1), "w1"),
                *second = find_key(cleave_parallel_module(parts.parallel_parts, 2), "w1"),
                *layer = find_key(whole.undivided_module, "w1");
  assert_memory_not_equal(first, layer, sizeof *layer);
  assert_memory_not_equal(first, second, sizeof *layer);
  const clv_key *dropout = find_key(cleave_parallel_module(parts.parallel_parts, 6), "7");
  /* the dropout is not divided, so its module uses the key of the layer */
  assert_memory_equal(dropout, find_key(whole.undivided_module, "7"), sizeof *layer);
}

static void frozen_parameters_do_not_change(void **state) {
  (void)state;
  const char *frozen[] = {"w1.*"}, *none[] = {"w9.*"};
  variant w = {0};
  double norm;
  cleave_module *bce = load_loss("loss 3");
  cleave_parallel_options o = {.size = sizeof o,
                               .name = "frozen",
                               .nodes = master_nodes,
                               .n_nodes = 2,
                               .seed = 9,
                               .frozen = frozen,
                               .n_frozen = 1};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  MUST(cleave_parallel_load(rt, &o, layers, &x, &w.parallel_parts, &e));
  make_optimizer(&w);
  cleave_state before = read_state(&w, CLEAVE_STATE_WEIGHTS), after;
  train_step(&w, bce, 0, &norm);
  after = read_state(&w, CLEAVE_STATE_WEIGHTS);
  for (size_t i = 0; i < before.n; i++) {
    size_t bytes = 4 * cleave_tensor_count(&before.items[i].tensor);
    bool is_same = memcmp(before.items[i].tensor.data, after.items[i].tensor.data, bytes) == 0;
    assert_int_equal(is_same, strncmp(before.items[i].name, "w1.", 3) == 0);
  }
  cleave_state_free(&before);
  cleave_state_free(&after);
  o.name = "frozen 2";
  o.frozen = none;
  assert_int_equal(cleave_parallel_load(rt, &o, layers, &x, &w.parallel_parts, &e),
                   CLEAVE_NOT_FOUND);
  assert_non_null(strstr(e.text, "'w9.*'"));
}

/* ---- layers that cannot be divided ----------------------------------------------------------- */

static void assert_load_refused(const char *text, size_t n_nodes, const char *part) {
  cleave_parallel_options o = {
      .size = sizeof o, .name = "refused", .nodes = master_nodes, .n_nodes = n_nodes};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  cleave_parallel *p = NULL;
  assert_int_equal(cleave_parallel_load(rt, &o, text, &x, &p, &e), CLEAVE_INVALID);
  if (!strstr(e.text, part)) fail_msg("'%s' lacks '%s'", e.text, part);
  assert_null(p);
}

static void errors_name_line_and_column(void **state) {
  (void)state;
  assert_load_refused("[{op: linear, out: 7, parallel: columns}]", 2,
                      "layers:1:33: parallel: '0' has 7 outputs, which 2 parts do not divide");
  assert_load_refused("[{op: relu},\n {op: linear, out: 8, parallel: rows}]", 2,
                      "layers:2:33: parallel: '1' has 5 inputs, which 2 parts do not divide");
  assert_load_refused("[{op: relu, parallel: columns}]", 2, "layers:1:23: parallel: only linear");
  assert_load_refused("[{op: linear, out: 8, parallel: colums}]", 2, "did you mean 'columns'?");
  assert_load_refused("[{op: linear, out: 8}]", 2, "no layer says `parallel: columns`");
  assert_load_refused("[{op: linear, out: 8, parallel: columns}]", 1, "over 1 node");
  assert_load_refused("[{op: linear, out: 9, parallel: columns}]", 9, "over 9 node");
}

static void parallel_layers_on_one_node_are_refused(void **state) {
  (void)state;
  cleave_module_options o = {.size = sizeof o, .name = "one"};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  cleave_module *m;
  assert_int_equal(
      cleave_load_layers(rt, &o, "[{op: linear, out: 8, parallel: columns}]", &x, &m, &e),
      CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "layers:1:33: parallel: a module has one node"));
}

static void state_with_unknown_name_or_shape_is_refused(void **state) {
  (void)state;
  variant w = {0};
  float numbers[64] = {0};
  load_parts(&w, "state", 2);
  cleave_named_tensor unknown = {"w8.weight", CLEAVE_TENSOR_F32(numbers, 8, 8)};
  cleave_named_tensor shape = {"w1.weight",
                               /* [4, 12] is the shape in one part, [8, 12] of the whole */
                               CLEAVE_TENSOR_F32(numbers, 4, 12)};
  cleave_state_kind kind = CLEAVE_STATE_WEIGHTS;
  assert_int_equal(cleave_parallel_state_write(rt, w.parallel_parts, kind, &unknown, 1, 0, &e),
                   CLEAVE_NOT_FOUND);
  assert_int_equal(cleave_parallel_state_write(rt, w.parallel_parts, kind, &shape, 1, 0, &e),
                   CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "is [8, 12], not [4, 12]"));
}

static void null_arguments_are_refused_by_name(void **state) {
  (void)state;
  cleave_parallel_options o = {.name = "no size", .nodes = master_nodes, .n_nodes = 2};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  cleave_parallel *p;
  cleave_reference y;
  assert_int_equal(cleave_parallel_load(rt, &o, layers, &x, &p, &e), CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "size"));
  assert_int_equal(cleave_parallel_load(rt, NULL, layers, &x, &p, &e), CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "options is NULL"));
  assert_int_equal(
      cleave_parallel_call(rt, (cleave_context){0}, NULL, y = (cleave_reference){0}, &y, &e),
      CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "parallel is NULL"));
  assert_null(cleave_parallel_module(NULL, 0));
  assert_int_equal(cleave_parallel_release(rt, NULL, &e), CLEAVE_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parallel_parts_train_like_the_undivided_layers),
      cmocka_unit_test(state_can_be_loaded_into_another_number_of_parts),
      cmocka_unit_test(each_part_has_its_slice),
      cmocka_unit_test(no_part_gets_the_key_of_its_layer),
      cmocka_unit_test(frozen_parameters_do_not_change),
      cmocka_unit_test(errors_name_line_and_column),
      cmocka_unit_test(parallel_layers_on_one_node_are_refused),
      cmocka_unit_test(state_with_unknown_name_or_shape_is_refused),
      cmocka_unit_test(null_arguments_are_refused_by_name),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
