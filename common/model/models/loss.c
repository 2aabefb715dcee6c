/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the graph of a loss: one node that reads predictions and targets, or, with several
 * targets per record, the sum of such nodes.
 */
#include "common/model/models/models.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

bool clv_loss_has_labels(const char *kind) {
  clv_op op;
  return clv_op_find(kind, &op, NULL) == CLV_OK && clv_op_def_of(op)->takes_labels;
}

static clv_code add_loss_nodes(clv_graph *g, clv_op op, const clv_attrs *attrs, clv_shape pred,
                               clv_err *err) {
  bool takes_classes = clv_op_def_of(op)->takes_labels;
  clv_shape target = pred;
  int in[2];
  if (takes_classes)
    target = pred.rank == 3 ? CLV_SHAPE(pred.dim[0], pred.dim[1]) : CLV_SHAPE(pred.dim[0]);
  CLV_TRY(clv_graph_add_input(g, "prediction", CLV_F32, &pred, &in[0], err));
  CLV_TRY(
      clv_graph_add_input(g, "target", takes_classes ? CLV_I64 : CLV_F32, &target, &in[1], err));
  return clv_graph_add(g, op, attrs, "loss", 0, in, 2, NULL, err);
}

static clv_code make_loss_graph(const char *kind, const clv_attr_value *values, int n,
                                const clv_shape *pred, int64_t batch, clv_graph **ret,
                                clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_op op;
  clv_attrs attrs;
  CLV_TRY(clv_op_find(kind, &op, err));
  if (!clv_op_is_loss(op)) return clv_fail(err, CLV_INVALID, "'%s' is not a loss", kind);
  CLV_TRY(clv_attrs_parse(op, values, n, &attrs, err));
  clv_shape p = *pred;
  if (p.rank > 0)
    p.dim[0] = batch;
  else
    p = CLV_SHAPE(batch);
  CLV_TRY(clv_graph_new(&g, err));
  CLV_TRY(add_loss_nodes(g, op, &attrs, p, err));
  *ret = clv_steal(&g);
  return CLV_OK;
}

clv_code clv_loss_make_graph(const char *kind, const clv_shape *pred, int64_t batch,
                             clv_graph **ret, clv_err *err) {
  return make_loss_graph(kind, NULL, 0, pred, batch, ret, err);
}

/* Keys of `loss` and of loss.targets that are one number, with the attributes of the ops that have
 * them. */
static const struct {
  unsigned key;
  clv_attr_key attr;
  size_t offset;        /* offset of the number in clv_session_config */
  size_t target_offset; /* offset of the number in clv_target_spec */
} number_keys[] = {{CLV_LOSS_KEY_LABEL_SMOOTHING, CLV_ATTR_LABEL_SMOOTHING,
                    offsetof(clv_session_config, loss.label_smoothing),
                    offsetof(clv_target_spec, label_smoothing)},
                   {CLV_LOSS_KEY_BETA, CLV_ATTR_BETA, offsetof(clv_session_config, loss.beta),
                    offsetof(clv_target_spec, beta)},
                   {CLV_LOSS_KEY_DELTA, CLV_ATTR_BETA, offsetof(clv_session_config, loss.delta),
                    offsetof(clv_target_spec, delta)},
                   {CLV_LOSS_KEY_QUANTILE, CLV_ATTR_P, offsetof(clv_session_config, loss.quantile),
                    offsetof(clv_target_spec, quantile)},
                   {CLV_LOSS_KEY_GAMMA, CLV_ATTR_EXPONENT, offsetof(clv_session_config, loss.gamma),
                    offsetof(clv_target_spec, gamma)}};

static clv_attr_value number_value(clv_attr_key key, const char *base, size_t offset) {
  return (clv_attr_value){
      .key = key, .is_number = true, .number = *(const double *)(const void *)(base + offset)};
}

/* Writes the numbers that the loss takes. Returns how many. */
static int list_numbers(const clv_session_config *c, clv_attr_value *values) {
  int n = 0;
  for (size_t i = 0; i < CLV_COUNT(number_keys); i++)
    if (clv_loss_row_of(c->loss.kind)->keys & number_keys[i].key)
      values[n++] = number_value(number_keys[i].attr, (const char *)c, number_keys[i].offset);
  return n;
}

/* Makes the attribute of the weights of the classes. memory: gets the numbers, which the attribute
 * refers to. */
static clv_attr_value class_weights_value(const clv_number_list *weight,
                                          float memory[CLV_MAX_CLASS_WEIGHTS]) {
  int n = (int)CLV_MIN(weight->n, (size_t)CLV_MAX_CLASS_WEIGHTS);
  for (int i = 0; i < n; i++) memory[i] = (float)weight->items[i];
  return (clv_attr_value){.key = CLV_ATTR_CLASS_WEIGHTS, .n_numbers = n, .numbers = memory};
}

/* ---- losses of several targets per record ---------------------------------------------------- */

/* Adds a node with a name that no other node has: "loss" and the index of the node. */
static clv_code add_node(clv_graph *g, const char *op_name, const clv_attr_value *values, int n,
                         const int *in, int n_in, int *ret, clv_err *err) {
  char name[CLV_NAME_MAX];
  clv_attrs attrs;
  clv_op op;
  snprintf(name, sizeof name, "loss%d", g->n_nodes);
  CLV_TRY(clv_op_find(op_name, &op, err));
  CLV_TRY(clv_attrs_parse(op, values, n, &attrs, err));
  return clv_graph_add(g, op, &attrs, name, 0, in, n_in, ret, err);
}

/* Adds a node that takes `width` columns of node `from`, beginning at column `at`. */
static clv_code add_columns(clv_graph *g, int from, size_t at, size_t width, int *ret,
                            clv_err *err) {
  const clv_attr_value values[] = {
      {.key = CLV_ATTR_DIM, .n_ints = 1, .ints = {1}},
      {.key = CLV_ATTR_START, .n_ints = 1, .ints = {(int64_t)at}},
      {.key = CLV_ATTR_STOP, .n_ints = 1, .ints = {(int64_t)(at + width)}}};
  if ((int64_t)width == g->nodes[from].shape.dim[1]) return *ret = from, CLV_OK;
  return add_node(g, "slice", values, CLV_COUNT(values), &from, 1, ret, err);
}

static clv_code add_scaled(clv_graph *g, int from, double factor, int *ret, clv_err *err) {
  const clv_attr_value value = {.key = CLV_ATTR_FACTOR, .is_number = true, .number = factor};
  if (factor == 1) return *ret = from, CLV_OK;
  return add_node(g, "scale", &value, 1, &from, 1, ret, err);
}

/* Adds the mean over the batch of node v [N, 1], whose values are not negative: smooth_l1 with beta
 * 0 against zeros is mean(|v|). No other op takes the mean over a batch. finite: node of the shape
 * of v, of which zeros are made. */
static clv_code add_mean(clv_graph *g, int v, int finite, int *ret, clv_err *err) {
  const clv_attr_value zero = {.key = CLV_ATTR_FACTOR, .is_number = true, .number = 0},
                       beta = {.key = CLV_ATTR_BETA, .is_number = true, .number = 0};
  int pair[2] = {v};
  CLV_TRY(add_node(g, "scale", &zero, 1, &finite, 1, &pair[1], err));
  return add_node(g, "smooth_l1", &beta, 1, pair, 2, ret, err);
}

/* Adds the term of pos_weight p to the node `loss`, which is binary cross entropy of logits x and
 * labels t: (p - 1) mean(t softplus(-x)). */
static clv_code add_pos_weight(clv_graph *g, double pos_weight, int x, int t, int loss, int *ret,
                               clv_err *err) {
  int minus_x, term, pair[2];
  if (pos_weight == 1) return *ret = loss, CLV_OK;
  CLV_TRY(add_scaled(g, x, -1, &minus_x, err));
  CLV_TRY(add_node(g, "softplus", NULL, 0, &minus_x, 1, &pair[0], err));
  pair[1] = t;
  CLV_TRY(add_node(g, "mul", NULL, 0, pair, 2, &pair[0], err));
  CLV_TRY(add_mean(g, pair[0], t, &term, err));
  CLV_TRY(add_scaled(g, term, pos_weight - 1, &pair[1], err));
  pair[0] = loss;
  return add_node(g, "add", NULL, 0, pair, 2, ret, err);
}

/* Adds the loss of a target, without its loss_weight. x: node of the target's outputs [N, width];
 * t: node of its labels. */
static clv_code add_target_loss(clv_graph *g, const clv_target_spec *s, int x, int t, int *ret,
                                clv_err *err) {
  clv_attr_value values[CLV_COUNT(number_keys) + 1];
  float class_weights[CLV_MAX_CLASS_WEIGHTS];
  const int in[2] = {x, t};
  int n = 0;
  for (size_t i = 0; i < CLV_COUNT(number_keys); i++)
    if (clv_loss_row_of(s->kind)->keys & number_keys[i].key)
      values[n++] =
          number_value(number_keys[i].attr, (const char *)s, number_keys[i].target_offset);
  if (s->weight.n) values[n++] = class_weights_value(&s->weight, class_weights);
  CLV_TRY(add_node(g, clv_loss_name(s->kind), values, n, in, 2, ret, err));
  return add_pos_weight(g, s->pos_weight, x, t, *ret, ret, err);
}

/* ---- targets without a label in some records ------------------------------------------------- */

size_t clv_target_mask_width(const clv_target_spec *s) {
  bool has_weights = s->weight.n || s->class_weights;
  if (clv_loss_row_of(s->kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX)
    return s->masks_missing || has_weights;
  return s->masks_missing ? 2 : 0;
}

size_t clv_targets_number_width(const clv_session_config *c) {
  size_t n = 0;
  for (size_t i = 0; i < c->loss.n_targets; i++)
    n += !c->loss.targets[i].n_classes + clv_target_mask_width(&c->loss.targets[i]);
  return n;
}

/* Returns the output that replaces the output of a record without a label, if the factor is 1. With
 * label 0, loss and gradient at this output are 0, also in f64: at -1000 for losses with exp or
 * sigmoid, at 0 for the others. */
static double find_harmless_output(clv_loss_kind kind) {
  return kind == CLV_LOSS_BCE_WITH_LOGITS || kind == CLV_LOSS_POISSON ? -1000 : 0;
}

/* Adds the nodes that replace, among the outputs x of a target, those of records without a label by
 * harmless ones. is_labelled: node [N, 1] of 0 and 1; factor: node [N, 1] of numbers from 1 on. */
static clv_code add_harmless_outputs(clv_graph *g, const clv_target_spec *s, int x, int is_labelled,
                                     int factor, int *ret, clv_err *err) {
  const clv_attr_value harmless = {
      .key = CLV_ATTR_FACTOR, .is_number = true, .number = find_harmless_output(s->kind)};
  int in[3] = {is_labelled, x};
  if (clv_target_width(s) > 1)
    return add_node(g, "mul", NULL, 0, (int[]){x, is_labelled}, 2, ret, err);
  CLV_TRY(add_node(g, "scale", &harmless, 1, &factor, 1, &in[2], err));
  return add_node(g, "where", NULL, 0, in, 3, ret, err);
}

/* Adds the loss of a target, without its loss_weight: over the records of a micro-batch that have a
 * label. It is scaled so that its mean over the micro-batches is the mean over the labelled records
 * of the batch, weighted by the weights of their classes. numbers: node of the f32 input; mask: its
 * first column for this target (see clv_target_inputs). */
static clv_code add_masked_loss(clv_graph *g, const clv_target_spec *s, int x, int t, int numbers,
                                size_t mask, int *ret, clv_err *err) {
  size_t width = clv_target_mask_width(s);
  int is_labelled, factor, pair[2];
  if (!width) return add_target_loss(g, s, x, t, ret, err);
  CLV_TRY(add_columns(g, numbers, mask + width - 1, 1, &factor, err));
  if (width == 2) {
    CLV_TRY(add_columns(g, numbers, mask, 1, &is_labelled, err));
    CLV_TRY(add_harmless_outputs(g, s, x, is_labelled, factor, &x, err));
  }
  CLV_TRY(add_target_loss(g, s, x, t, &pair[0], err));
  CLV_TRY(add_mean(g, factor, factor, &pair[1], err));
  return add_node(g, "mul", NULL, 0, pair, 2, ret, err);
}

/* ---- the sum of the losses of all targets ---------------------------------------------------- */

/* Adds the input for the labels of a target with classes, [batch] i64. */
static clv_code add_class_input(clv_graph *g, size_t target, int64_t batch, int *ret,
                                clv_err *err) {
  char name[CLV_NAME_MAX];
  snprintf(name, sizeof name, "classes%zu", target);
  return clv_graph_add_input(g, name, CLV_I64, &CLV_SHAPE(batch), ret, err);
}

/* Returns how many targets have no classes: their labels are numbers, or 0 and 1. */
static size_t count_targets_without_classes(const clv_session_config *c) {
  size_t n = 0;
  for (size_t i = 0; i < c->loss.n_targets; i++) n += !c->loss.targets[i].n_classes;
  return n;
}

/* Adds the inputs of the graph. *prediction: node of the predictions of all targets; *numbers: node
 * of the labels that are no classes and of the masks, unchanged if there are none; classes:
 * [n_targets] nodes of the labels of targets with classes. */
static clv_code add_target_inputs(clv_graph *g, const clv_session_config *c, clv_shape pred,
                                  int *prediction, int *numbers, int *classes, clv_err *err) {
  size_t n_numbers = clv_targets_number_width(c);
  CLV_TRY(clv_graph_add_input(g, "prediction", CLV_F32, &pred, prediction, err));
  if (n_numbers)
    CLV_TRY(clv_graph_add_input(g, "target", CLV_F32, &CLV_SHAPE(pred.dim[0], (int64_t)n_numbers),
                                numbers, err));
  for (size_t i = 0; i < c->loss.n_targets; i++)
    if (c->loss.targets[i].n_classes) CLV_TRY(add_class_input(g, i, pred.dim[0], &classes[i], err));
  return CLV_OK;
}

static clv_code check_outputs(const clv_session_config *c, const clv_shape *pred, clv_err *err) {
  size_t width = 0;
  char text[160];
  for (size_t i = 0; i < c->loss.n_targets; i++) width += clv_target_width(&c->loss.targets[i]);
  if (pred->rank == 2 && pred->dim[1] == (int64_t)width) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the outputs of the model are %s, and loss.targets needs [N, %zu]: one for each "
                  "class of a target with classes, and one for each other target",
                  clv_shape_format(pred, text, sizeof text), width);
}

static clv_code add_all_targets(clv_graph *g, const clv_session_config *c, clv_shape pred,
                                clv_err *err) {
  int classes[CLV_MAX_TARGETS] = {0}, prediction, numbers = -1, sum = -1;
  size_t column = 0, number = 0, mask = count_targets_without_classes(c);
  CLV_TRY(add_target_inputs(g, c, pred, &prediction, &numbers, classes, err));
  for (size_t i = 0; i < c->loss.n_targets; i++) {
    const clv_target_spec *s = &c->loss.targets[i];
    int x, t = classes[i], loss;
    CLV_TRY(add_columns(g, prediction, column, clv_target_width(s), &x, err));
    if (!s->n_classes) CLV_TRY(add_columns(g, numbers, number++, 1, &t, err));
    CLV_TRY(add_masked_loss(g, s, x, t, numbers, mask, &loss, err));
    CLV_TRY(add_scaled(g, loss, s->loss_weight, &loss, err));
    const int both[2] = {sum, loss};
    if (i) CLV_TRY(add_node(g, "add", NULL, 0, both, 2, &loss, err));
    sum = loss;
    column += clv_target_width(s);
    mask += clv_target_mask_width(s);
  }
  return CLV_OK;
}

static clv_code make_targets_graph(const clv_session_config *c, const clv_shape *pred,
                                   int64_t batch, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  clv_shape p = *pred;
  CLV_TRY(check_outputs(c, pred, err));
  p.dim[0] = batch;
  CLV_TRY(clv_graph_new(&g, err));
  CLV_TRY(add_all_targets(g, c, p, err));
  *ret = clv_steal(&g);
  return CLV_OK;
}

clv_code clv_target_make_loss_graph(const clv_session_config *config, size_t target, int64_t batch,
                                    clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  const clv_target_spec *s = &config->loss.targets[target];
  int x, t, loss;
  CLV_TRY(clv_graph_new(&g, err));
  const clv_shape shape = CLV_SHAPE(batch, (int64_t)clv_target_width(s));
  CLV_TRY(clv_graph_add_input(g, "prediction", CLV_F32, &shape, &x, err));
  if (s->n_classes)
    CLV_TRY(add_class_input(g, target, batch, &t, err));
  else
    CLV_TRY(clv_graph_add_input(g, "target", CLV_F32, &shape, &t, err));
  CLV_TRY(add_target_loss(g, s, x, t, &loss, err));
  *ret = clv_steal(&g);
  return CLV_OK;
}

/* ---- the loss of a session ------------------------------------------------------------------- */

clv_code clv_session_make_loss_graph(const clv_session_config *config, const clv_shape *pred,
                                     int64_t batch, clv_graph **ret, clv_err *err) {
  if (config->loss.kind == CLV_LOSS_TARGETS)
    return make_targets_graph(config, pred, batch, ret, err);
  const char *kind = clv_loss_name(config->loss.kind);
  float class_weights[CLV_MAX_CLASS_WEIGHTS];
  clv_attr_value values[CLV_COUNT(number_keys) + 2];
  unsigned keys = clv_loss_row_of(config->loss.kind)->keys;
  int n = list_numbers(config, values);
  if (keys & CLV_LOSS_KEY_IGNORE_INDEX)
    values[n++] = (clv_attr_value){
        .key = CLV_ATTR_IGNORE_INDEX, .n_ints = 1, .ints = {(int64_t)config->loss.ignore_index}};
  if (config->loss.weight.n) values[n++] = class_weights_value(&config->loss.weight, class_weights);
  return make_loss_graph(kind, values, n, pred, batch, ret, err);
}
