/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how the text of a session becomes the uncut graph: layers in stages, ranges of a model,
 * named architectures, losses; and the positions of errors.
 */
#include "tests/unit/models/models_check.h"

static const clv_shape image = {4, {8, 1, 28, 28}};

/* Returns a session around `middle_lines` ("model:" and "stages:"), of which the first is line 5 of
 * the session. */
static clv_session_config *make_session(const char *middle_lines) {
  static const char head[] =
      "version: 1\n"
      "name: t\n"
      "data: {format: idx, root: /data, train: [a, b]}\n"
      "loss: {kind: cross_entropy}\n";
  clv_session_config *c = NULL;
  clv_bytes text = {0};
  clv_bytes_printf(&text, "%s%strain: {epochs: 1, batch: 8, optimizer: {kind: sgd, lr: 0.1}}\n",
                   head, middle_lines);
  assert_ok(clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, err));
  clv_bytes_done(&text);
  return c;
}

/* Asserts the shapes of all layers of the model and which layers each stage has. */
static void check_model(const char *middle_lines, const clv_shape *in, const char *want) {
  clv_session_config *c = make_session(middle_lines);
  clv_graph *g = NULL;
  uint32_t first_layers[8], last_layers[8];
  clv_bytes got = {0};
  char shape[160];
  assert_ok(clv_model_make_graph(c, in, &g, first_layers, last_layers, err));
  assert_string_equal(g->nodes[0].name, "input");
  for (int i = 1; i < g->n_nodes; i++) {
    assert_int_equal(g->nodes[i].layer, i - 1);
    assert_int_equal(g->nodes[i].in[0], i - 1);
    clv_bytes_printf(&got, "%s %s %s\n", g->nodes[i].name, clv_op_name(g->nodes[i].op),
                     clv_shape_format(&g->nodes[i].shape, shape, sizeof shape));
  }
  for (size_t i = 0; i < c->n_stages; i++)
    clv_bytes_printf(&got, "%s %u..%u\n", c->stages[i].name, first_layers[i], last_layers[i]);
  assert_string_equal(got.data, want);
  assert_int_equal(g->output_node, g->n_nodes - 1);
  clv_bytes_done(&got);
  clv_graph_free(g);
  clv_session_config_free(c);
}

static void stage_layers_form_one_graph(void **state) {
  (void)state;
  check_model(
      "stages:\n"
      "  - {name: a, at: master, layers: [{op: conv2d, out: 16, kernel: 3, pad: 1},\n"
      "      {op: relu, name: act}, {op: maxpool, kernel: [2, 4]}]}\n"
      "  - {name: b, at: master, layers: [{op: reshape, shape: [-1, 4]}, {op: flatten}]}\n"
      "  - {name: c, at: master, layers: [{op: dropout, p: 0.5}, {op: linear, out: 10, bias: "
      "false}]}\n",
      &image,
      "0 conv2d [8, 16, 28, 28]\nact relu [8, 16, 28, 28]\n2 maxpool [8, 16, 14, 7]\n"
      "3 reshape [8, 392, 4]\n4 flatten [8, 1568]\n5 dropout [8, 1568]\n6 linear [8, 10]\n"
      "a 0..2\nb 3..4\nc 5..6\n");
}

/* The key `from` connects branches and joins. It may name a layer of another stage, a layer by its
 * number, and the data. */
static void branches_and_joins_are_connected_by_name(void **state) {
  (void)state;
  check_model(
      "stages:\n"
      "  - {name: a, at: master, layers: [{op: conv2d, out: 1, kernel: 3, pad: 1, name: f},\n"
      "      {op: add, name: x, from: [f, input]}]}\n"
      "  - {name: b, at: master, layers: [{op: relu}, {op: concat, dim: 1, from: [2, x, x]},\n"
      "      {op: mul, name: y, from: [\"3\", \"3\"]}, {op: flatten, from: [y]}]}\n",
      &image,
      "f conv2d [8, 1, 28, 28]\nx add [8, 1, 28, 28]\n2 relu [8, 1, 28, 28]\n"
      "3 concat [8, 3, 28, 28]\ny mul [8, 3, 28, 28]\n5 flatten [8, 2352]\na 0..1\nb 2..5\n");
  clv_session_config *c = make_session(
      "stages: [{name: a, at: master, layers: [{op: relu, name: f}, {op: tanh, name: g, from: "
      "[input]}, {op: add, from: [g, f]}]}]\n");
  clv_graph *g = NULL;
  uint32_t first, last;
  assert_ok(clv_model_make_graph(c, &image, &g, &first, &last, err));
  assert_int_equal(g->nodes[2].in[0], 0);
  assert_int_equal(g->nodes[3].in[0], 2); /* the inputs are in the order of the key `from` */
  assert_int_equal(g->nodes[3].in[1], 1);
  clv_graph_free(g);
  clv_session_config_free(c);
}

static void numbered_ranges_select_model_layers(void **state) {
  (void)state;
  check_model(
      "model: {layers: [{op: flatten}, {op: linear, out: 32}, {op: tanh}, {op: linear, out: 10}]}\n"
      "stages:\n"
      "  - {name: a, at: master, layers: 0..1}\n"
      "  - {name: b, at: master, layers: 2..3}\n",
      &image,
      "0 flatten [8, 784]\n1 linear [8, 32]\n2 tanh [8, 32]\n3 linear [8, 10]\na 0..1\nb 2..3\n");
}

static void named_architectures_have_their_layers(void **state) {
  (void)state;
  static const clv_shape rows = {2, {4, 16}};
  check_model(
      "model: {arch: mlp, hidden: [32, 8], classes: 3, dropout: 0.5, activation: gelu}\n"
      "stages: [{name: a, at: master, layers: 0..6}]\n",
      &rows,
      "0 linear [4, 32]\n1 gelu [4, 32]\n2 dropout [4, 32]\n3 linear [4, 8]\n4 gelu [4, 8]\n"
      "5 dropout [4, 8]\n6 linear [4, 3]\na 0..6\n");
  check_model(
      "model: {arch: cnn, width: 4, batchnorm: true, dropout: 0.1}\n"
      "stages: [{name: a, at: master, layers: 0..3}, {name: b, at: master, layers: 4..12}]\n",
      &image,
      "0 conv2d [8, 4, 28, 28]\n1 batchnorm [8, 4, 28, 28]\n2 relu [8, 4, 28, 28]\n"
      "3 maxpool [8, 4, 14, 14]\n4 conv2d [8, 8, 14, 14]\n5 batchnorm [8, 8, 14, 14]\n"
      "6 relu [8, 8, 14, 14]\n7 maxpool [8, 8, 7, 7]\n8 flatten [8, 392]\n9 linear [8, 16]\n"
      "10 relu [8, 16]\n11 dropout [8, 16]\n12 linear [8, 10]\na 0..3\nb 4..12\n");
  check_model(
      "model: {arch: lenet}\n"
      "stages: [{name: a, at: master, layers: 0..11}]\n",
      &image,
      "0 conv2d [8, 6, 28, 28]\n1 relu [8, 6, 28, 28]\n2 maxpool [8, 6, 14, 14]\n"
      "3 conv2d [8, 16, 10, 10]\n4 relu [8, 16, 10, 10]\n5 maxpool [8, 16, 5, 5]\n"
      "6 flatten [8, 400]\n7 linear [8, 120]\n8 relu [8, 120]\n9 linear [8, 84]\n10 relu [8, 84]\n"
      "11 linear [8, 10]\na 0..11\n");
}

/* A LeNet has 61706 parameters (LeCun et al. 1998, with full connections and ten classes). */
static void lenet_has_61706_parameters(void **state) {
  (void)state;
  clv_session_config *c =
      make_session("model: {arch: lenet}\nstages: [{name: a, at: master, layers: 0..11}]\n");
  clv_graph *g = NULL;
  clv_params *p = NULL;
  uint32_t first, last;
  assert_ok(clv_model_make_graph(c, &image, &g, &first, &last, err));
  assert_ok(clv_params_make(g, &p, err));
  assert_int_equal(p->n_trainable_values, 61706);
  clv_params_free(p);
  clv_graph_free(g);
  clv_session_config_free(c);
}

/* ---- models that are refused ----------------------------------------------------------------- */

typedef struct refusal {
  const char *session_lines, *error_position, *error_text;
} refusal;

#define STAGE(layers) "stages:\n  - {name: a, at: master, layers: [\n      " layers "]}\n"
#define ARCH(attrs) "model: {arch: mlp, " attrs "}\nstages: [{name: a, at: master, layers: 0..3}]\n"

static const refusal refusals[] = {
    {STAGE("{op: con2d, out: 3}"), "/s.yaml:7:12: ", "did you mean 'conv2d'?"},
    {STAGE("{op: flatten},\n      {op: linear, outt: 3}"), "/s.yaml:8:20: ", "did you mean 'out'?"},
    {STAGE("{op: flatten},\n      {op: linear}"), "/s.yaml:8:7: ", "linear needs 'out'"},
    {STAGE("{op: conv2d, out: 3, kernel: 0}"),
     "/s.yaml:7:28: ", "conv2d.kernel is 0, outside 1..2147483647"},
    {STAGE("{op: conv2d, out: big, kernel: 1}"),
     "/s.yaml:7:20: ", "conv2d.out is 'big', not of the type: integer, 1..2147483647"},
    {STAGE("{op: flatten},\n      {op: linear, out: 3, bias: big}"),
     "/s.yaml:8:28: ", "linear.bias is 'big', not of the type: true or false"},
    {STAGE("{op: conv2d, out: 1.5, kernel: 1}"), "/s.yaml:7:20: ", "needs one integer"},
    {STAGE("{op: conv2d, out: 2, kernel: []}"), "/s.yaml:7:28: ", "an integer or a pair"},
    {STAGE("{op: reshape, shape: [1, 2, 3, 4, 5, 6, 7, 8, 9]}"), "/s.yaml:7:21: ", "9 numbers"},
    {STAGE("{op: flatten},\n      {op: conv2d, out: 3, kernel: 1}"),
     "/s.yaml:8:7: ", "layer 1: conv2d needs rank 4"},
    {STAGE("{op: relu, name: x},\n      {op: relu, name: x}"),
     "/s.yaml:8:7: ", "two nodes have the name 'x'"},
    {STAGE("{op: cross_entropy}"), "/s.yaml:7:12: ", "is a loss: write it as `loss: {kind:"},
    {STAGE("{op: linear, out: 4, parallel: rows}"),
     "/s.yaml:7:38: ", "parallel: a stage runs at one node, so a session cannot divide a layer"},
    {STAGE("{op: relu, name: a},\n      {op: add}"),
     "/s.yaml:8:12: ", "add reads 2 values: name them, as in from: [a, input]"},
    {STAGE("{op: relu, name: a},\n      {op: add, from: [a]}"),
     "/s.yaml:8:17: ", "from: add reads 2 values, not 1"},
    {STAGE("{op: relu, name: a},\n      {op: tanh, from: [a, input]}"),
     "/s.yaml:8:18: ", "from: tanh reads 1 value, not 2"},
    {STAGE("{op: relu, name: abc},\n      {op: add, from: [abd, input]}"), "/s.yaml:8:17: ",
     "no earlier layer has the name 'abd', did you mean 'abc'?; the layer before"},
    {STAGE("{op: relu, name: a},\n      {op: add, from: [a, z]},\n      {op: tanh, name: z}"),
     "/s.yaml:8:17: ", "layer 'z' does not come before this one"},
    {STAGE("{op: relu, name: a},\n      {op: add, name: b, from: [a, b]}"),
     "/s.yaml:8:26: ", "layer 'b' does not come before this one"},
    {STAGE("{op: relu, name: a},\n      {op: tanh, from: [input]}"),
     "/s.yaml:7:7: ", "no layer reads layer 'a': name it in the from: of a later one"},
    {STAGE("{op: relu, name: a},\n      {op: concat, dim: 0, from: [a, input]}"),
     "/s.yaml:8:7: ", "layer 1 would join the records of a batch"},
    {STAGE("{op: conv2d, out: 2, kernel: 1, name: a},\n      {op: conv2d, out: 3, kernel: 1},\n"
           "      {op: add, from: [a, 1]}"),
     "/s.yaml:9:7: ", "layer 2: "},
    {"stages:\n  - {name: a, at: master, layers: [{op: flatten}, {op: mean, dim: 1, name: k}, "
     "{op: relu}]}\n  - {name: b, at: master, layers: [{op: add, from: [k, 2]}]}\n",
     "/s.yaml:6:27: ", "stage 'a': behind it 2 values cross, and that of layer 'k'"},
    {ARCH("hiden: [3]"), "/s.yaml:5:20: ", "mlp has no key 'hiden'; did you mean 'hidden'?"},
    {ARCH("width: 3"), "/s.yaml:5:20: ", "mlp has no key 'width'"},
    {ARCH("hidden: 3"), "/s.yaml:5:20: ", "hidden is a list"},
    {ARCH("hidden: [3, 0]"), "/s.yaml:5:20: ", "widths are positive"},
    {ARCH("classes: 0"), "/s.yaml:5:20: ", "classes is a whole number from 1"},
    {ARCH("dropout: 1"), "/s.yaml:5:20: ", "dropout is a number in [0, 1)"},
    {ARCH("activation: swish"), "/s.yaml:5:20: ", "activation is one of relu, sigmoid, tanh"},
    {"model: {arch: mlp}\nstages: [{name: a, at: master, layers: 0..4}]\n",
     "/s.yaml:6:", "layers 0..4: the model has layers 0..3"},
    {"model: {arch: mlp}\nstages: [{name: a, at: master, layers: 0..2}]\n",
     "/s.yaml:5:", "the stages end with layer 2, the model with layer 3"},
};

static void model_errors_give_line_and_column(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(refusals); i++) {
    assert_refused(make_session(refusals[i].session_lines), &image, refusals[i].error_position,
                   refusals[i].error_text);
  }
}

/* If an architecture does not fit the data, the error names the shapes. */
static void architecture_unlike_the_data_is_refused(void **state) {
  (void)state;
  static const clv_shape rows = {2, {4, 16}};
  clv_session_config *c =
      make_session("model: {arch: cnn}\nstages: [{name: a, at: master, layers: 0..9}]\n");
  clv_graph *g = NULL;
  uint32_t first, last;
  clv_err err = {0};
  assert_int_equal(clv_model_make_graph(c, &rows, &g, &first, &last, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "/s.yaml:5:"));
  assert_non_null(strstr(err.text, "cnn: layer 0: conv2d needs rank 4 [N, C, H, W], got [4, 16]"));
  clv_session_config_free(c);
}

/* ---- graphs of losses ------------------------------------------------------------------------ */

static void loss_graphs_check_shapes_and_targets(void **state) {
  (void)state;
  static const struct {
    const char *kind;
    clv_shape prediction, target;
    clv_dtype dtype;
  } cases[] = {
      {"cross_entropy", {2, {8, 10}}, {1, {5}}, CLV_I64},
      {"nll", {2, {8, 10}}, {1, {5}}, CLV_I64},
      {"mse", {3, {8, 10, 2}}, {3, {5, 10, 2}}, CLV_F32},
      {"bce", {2, {8, 1}}, {2, {5, 1}}, CLV_F32},
      {"bce_with_logits", {2, {8, 1}}, {2, {5, 1}}, CLV_F32},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_graph *g = NULL;
    assert_ok(clv_loss_make_graph(cases[i].kind, &cases[i].prediction, 5, &g, err));
    assert_int_equal(g->nodes[0].shape.dim[0], 5);
    assert_int_equal(g->nodes[1].dtype, cases[i].dtype);
    assert_true(clv_shape_equal(&g->nodes[1].shape, &cases[i].target));
    assert_int_equal(g->nodes[g->output_node].shape.rank, 0);
    clv_graph_free(g);
  }
  clv_graph *g = NULL;
  clv_err err = {0};
  assert_int_equal(clv_loss_make_graph("relu", &cases[0].prediction, 5, &g, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "'relu' is not a loss"));
  assert_int_equal(clv_loss_make_graph("cross_entropi", &cases[0].prediction, 5, &g, &err),
                   CLV_NOT_FOUND);
  assert_non_null(strstr(err.text, "did you mean 'cross_entropy'?"));
  assert_int_equal(clv_loss_make_graph("nll", &cases[2].prediction, 5, &g, &err), CLV_INVALID);
  assert_null(g);
}

/* Each loss op has a name in session files. */
static void every_loss_op_has_a_config_name(void **state) {
  (void)state;
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    if (!clv_op_is_loss((clv_op)op)) continue;
    bool is_named = false;
    for (int kind = 0; kind < CLV_LOSS_COUNT; kind++)
      is_named |= strcmp(clv_loss_name((clv_loss_kind)kind), clv_op_name((clv_op)op)) == 0;
    if (!is_named)
      fail_msg("loss.kind of a session file has not heard of %s", clv_op_name((clv_op)op));
  }
  for (int kind = 0; kind < CLV_LOSS_COUNT; kind++) {
    clv_op op;
    /* the loss CLV_LOSS_TARGETS is a sum of other losses, so no op computes it */
    if (kind == CLV_LOSS_TARGETS) continue;
    if (clv_op_find(clv_loss_name((clv_loss_kind)kind), &op, NULL) != CLV_OK || !clv_op_is_loss(op))
      fail_msg("loss.kind names %s, which is no loss", clv_loss_name((clv_loss_kind)kind));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stage_layers_form_one_graph),
      cmocka_unit_test(branches_and_joins_are_connected_by_name),
      cmocka_unit_test(numbered_ranges_select_model_layers),
      cmocka_unit_test(named_architectures_have_their_layers),
      cmocka_unit_test(lenet_has_61706_parameters),
      cmocka_unit_test(model_errors_give_line_and_column),
      cmocka_unit_test(architecture_unlike_the_data_is_refused),
      cmocka_unit_test(loss_graphs_check_shapes_and_targets),
      cmocka_unit_test(every_loss_op_has_a_config_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
