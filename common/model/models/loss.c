/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the graph of a loss: one node that reads predictions and targets.
 */
#include "common/model/models/models.h"

#include <stddef.h>
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

/* Keys of `loss` that are one number, with the attributes of the ops that have them. */
static const struct {
  unsigned key;
  clv_attr_key attr;
  size_t offset; /* offset of the number in clv_session_config */
} number_keys[] = {
    {CLV_LOSS_KEY_LABEL_SMOOTHING, CLV_ATTR_LABEL_SMOOTHING,
     offsetof(clv_session_config, loss.label_smoothing)},
    {CLV_LOSS_KEY_BETA, CLV_ATTR_BETA, offsetof(clv_session_config, loss.beta)},
    {CLV_LOSS_KEY_DELTA, CLV_ATTR_BETA, offsetof(clv_session_config, loss.delta)},
    {CLV_LOSS_KEY_QUANTILE, CLV_ATTR_P, offsetof(clv_session_config, loss.quantile)},
    {CLV_LOSS_KEY_GAMMA, CLV_ATTR_EXPONENT, offsetof(clv_session_config, loss.gamma)}};

/* Writes the numbers that the loss takes. Returns how many. */
static int list_numbers(const clv_session_config *c, clv_attr_value *values) {
  int n = 0;
  for (size_t i = 0; i < CLV_COUNT(number_keys); i++)
    if (clv_loss_row_of(c->loss.kind)->keys & number_keys[i].key)
      values[n++] = (clv_attr_value){
          .key = number_keys[i].attr,
          .is_number = true,
          .number = *(const double *)(const void *)((const char *)c + number_keys[i].offset)};
  return n;
}

clv_code clv_session_make_loss_graph(const clv_session_config *config, const clv_shape *pred,
                                     int64_t batch, clv_graph **ret, clv_err *err) {
  const char *kind = clv_loss_name(config->loss.kind);
  float class_weights[CLV_MAX_CLASS_WEIGHTS];
  int weights = (int)CLV_MIN(config->loss.weight.n, CLV_COUNT(class_weights));
  clv_attr_value values[CLV_COUNT(number_keys) + 2];
  unsigned keys = clv_loss_row_of(config->loss.kind)->keys;
  int n = list_numbers(config, values);
  if (keys & CLV_LOSS_KEY_IGNORE_INDEX)
    values[n++] = (clv_attr_value){
        .key = CLV_ATTR_IGNORE_INDEX, .n_ints = 1, .ints = {(int64_t)config->loss.ignore_index}};
  for (int i = 0; i < weights; i++) class_weights[i] = (float)config->loss.weight.items[i];
  if (weights)
    values[n++] = (clv_attr_value){
        .key = CLV_ATTR_CLASS_WEIGHTS, .n_numbers = weights, .numbers = class_weights};
  return make_loss_graph(kind, values, n, pred, batch, ret, err);
}
