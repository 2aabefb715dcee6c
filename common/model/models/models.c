/* SPDX-License-Identifier: Apache-2.0
 *
 * Building the uncut graph of a session file. Errors of the op table get the position in the file:
 * that of the attribute, of the op's name, or of the layer whose shapes do not fit.
 */
#include "common/model/models/models_int.h"

#include <stdio.h>
#include <string.h>

/* ---- attributes of layers -------------------------------------------------------------------- */

/* Fails because the attribute has a text, which no attribute takes. Names the type that the op's
 * row has, and its range. */
static clv_code fail_text_value(const clv_session_config *c, clv_op op, const clv_attr_spec *a,
                                clv_attr_key key, clv_err *err) {
  const clv_attr_row *row = clv_op_def_of(op)->attrs;
  while (row->key && row->key != key) row++;
  if (!row->key || row->low >= row->high || clv_attr_type_name(key)[0] == 't')
    return clv_session_fail_at(c, a->pos, err, "%s.%s is '%s', not of the type: %s",
                               clv_op_name(op), a->key, a->text, clv_attr_type_name(key));
  return clv_session_fail_at(c, a->pos, err, "%s.%s is '%s', not of the type: %s, %.10g..%.10g",
                             clv_op_name(op), a->key, a->text, clv_attr_type_name(key), row->low,
                             row->high);
}

static clv_code parse_attr(const clv_session_config *c, clv_op op, const clv_attr_spec *a,
                           clv_attr_value *ret, clv_err *err) {
  clv_err why;
  clv_attr_value v = {0};
  if (clv_op_attr_find(op, a->key, &v.key, &why) != CLV_OK)
    return clv_session_fail_at(c, a->pos, err, "%s", why.text);
  switch (a->kind) {
    case CLV_ATTR_INT:
      v.n_ints = 1, v.ints[0] = a->int_value;
      break;
    case CLV_ATTR_BOOL:
      v.n_ints = 1, v.ints[0] = a->bool_value;
      break;
    case CLV_ATTR_FLOAT:
      v.is_number = true, v.number = a->float_value;
      break;
    case CLV_ATTR_TEXT:
      return fail_text_value(c, op, a, v.key, err);
    case CLV_ATTR_INTS:
      if (a->n_ints > CLV_MAX_RANK)
        return clv_session_fail_at(c, a->pos, err,
                                   "%s: %zu numbers, at most %d are possible: remove some", a->key,
                                   a->n_ints, CLV_MAX_RANK);
      v.n_ints = (int)a->n_ints;
      if (a->n_ints) memcpy(v.ints, a->ints, a->n_ints * sizeof *a->ints);
      break;
  }
  if (clv_op_attr_check(op, &v, &why) != CLV_OK)
    return clv_session_fail_at(c, a->pos, err, "%s", why.text);
  *ret = v;
  return CLV_OK;
}

static clv_code add_layer(const clv_session_config *c, const clv_layer_spec *spec, uint32_t layer,
                          clv_graph *g, int *last, clv_err *err) {
  clv_op op;
  clv_attrs attrs;
  clv_attr_value values[32];
  clv_err why;
  int in[CLV_MAX_IN] = {*last}, n_in = 1;
  if (clv_op_find(spec->op, &op, &why) != CLV_OK)
    return clv_session_fail_at(c, spec->op_pos, err, "%s", why.text);
  if (spec->parallel != CLV_LAYER_WHOLE)
    return clv_session_fail_at(c, spec->parallel_pos, err,
                               "parallel: a stage runs at one node, so a session cannot divide a "
                               "layer: use a program on libcleave (cleave_parallel_load)");
  if (clv_op_is_loss(op))
    return clv_session_fail_at(c, spec->op_pos, err, "%s is a loss: write it as `loss: {kind: %s}`",
                               spec->op, spec->op);
  if (spec->n_attrs > CLV_COUNT(values))
    return clv_session_fail_at(c, spec->pos, err, "a layer has %zu attributes: at most %zu",
                               spec->n_attrs, CLV_COUNT(values));
  for (size_t i = 0; i < spec->n_attrs; i++)
    CLV_TRY(parse_attr(c, op, &spec->attrs[i], &values[i], err));
  CLV_TRY(clv_layer_find_inputs(c, spec, op, g, in, &n_in, err));
  clv_code code = clv_attrs_parse(op, values, (int)spec->n_attrs, &attrs, &why);
  if (code == CLV_OK) code = clv_graph_add(g, op, &attrs, spec->name, layer, in, n_in, last, &why);
  if (code != CLV_OK) return clv_session_fail_at(c, spec->pos, err, "%s", why.text);
  if (spec->tied && clv_graph_tie_param(g, *last, spec->tied, false, &why) != CLV_OK)
    return clv_session_fail_at(c, spec->tied_pos, err, "tied: %s", why.text);
  return clv_layer_check_batch_dim(c, spec, g, *last, err);
}

/* ---- the uncut graph ------------------------------------------------------------------------- */

static clv_code add_layer_list(const clv_session_config *c, const clv_layer_spec *layers, size_t n,
                               clv_graph *g, uint32_t *layer, int *last, clv_err *err) {
  for (size_t i = 0; i < n; i++) CLV_TRY(add_layer(c, &layers[i], (*layer)++, g, last, err));
  return CLV_OK;
}

/* Adds all layers of `model:`, which is a named architecture, a config.json or a list of layers. */
static clv_code add_model(const clv_session_config *c, clv_graph *g, int *last, clv_err *err) {
  uint32_t n = 0;
  if (c->model.arch != CLV_ARCH_NONE)
    CLV_TRY(clv_arch_add_layers(c, g, &n, last, err));
  else if (c->model.hf)
    CLV_TRY(clv_hf_model_add_layers(c, g, &n, last, err));
  else
    CLV_TRY(add_layer_list(c, c->model.layers, c->model.n_layers, g, &n, last, err));
  return clv_layers_check_read(c, g, err);
}

static clv_code build_from_model(const clv_session_config *c, clv_graph *g, int *last,
                                 uint32_t *first, uint32_t *last_layers, clv_err *err) {
  CLV_TRY(add_model(c, g, last, err));
  return clv_stages_find_layers(c, g, first, last_layers, err);
}

static clv_code build_from_stages(const clv_session_config *c, clv_graph *g, int *last,
                                  uint32_t *first, uint32_t *last_layers, clv_err *err) {
  uint32_t layer = 0;
  for (size_t i = 0; i < c->n_stages; i++) {
    const clv_stage_spec *s = &c->stages[i];
    if (!s->n_layers)
      return clv_session_fail_at(c, s->pos, err, "stage '%s' has no layers", s->name);
    first[i] = layer;
    CLV_TRY(add_layer_list(c, s->layers, s->n_layers, g, &layer, last, err));
    last_layers[i] = layer - 1;
  }
  CLV_TRY(clv_layers_check_read(c, g, err));
  return clv_stages_check_cuts(c, g, last_layers, err);
}

/* Returns the first layer of the session's list of layers; NULL: the model is not given as a list.
 */
static const clv_layer_spec *first_layer_spec(const clv_session_config *c) {
  if (c->model.hf || c->model.arch != CLV_ARCH_NONE) return NULL;
  if (c->model.n_layers) return &c->model.layers[0];
  return c->n_stages && c->stages[0].n_layers ? &c->stages[0].layers[0] : NULL;
}

static bool is_op_in_list(const clv_layer_spec *l, const char *const *ops) {
  while (l && *ops)
    if (strcmp(l->op, *ops++) == 0) return true;
  return false;
}

bool clv_model_takes_tokens(const clv_session_config *c) {
  static const char *const ops[] = {"embedding", NULL};
  return c->model.hf ? clv_hf_model_takes_tokens(c) : is_op_in_list(first_layer_spec(c), ops);
}

bool clv_model_takes_sequences(const clv_session_config *c) {
  static const char *const ops[] = {"lstm",   "conv1d",    "conv_transpose1d", "attention",
                                    "rotary", "positions", "prepend",          NULL};
  return is_op_in_list(first_layer_spec(c), ops);
}

bool clv_model_takes_sequences_or_images(const clv_session_config *c) {
  static const char *const ops[] = {"conv2d",        "conv_transpose2d", "maxpool", "avgpool",
                                    "globalavgpool", "flatten",          NULL};
  const clv_layer_spec *first = first_layer_spec(c);
  return first && !is_op_in_list(first, ops);
}

clv_model_inputs clv_model_describe_input(const clv_session_config *c, const clv_shape *shape) {
  clv_model_inputs ret = {.n = 1};
  memcpy(ret.inputs[0].name, "input", sizeof "input");
  ret.inputs[0].dtype = clv_model_takes_tokens(c) ? CLV_I64 : CLV_F32;
  ret.inputs[0].shape = *shape;
  return ret;
}

static clv_code add_inputs(const clv_model_inputs *inputs, clv_graph *g, int *ret_first,
                           clv_err *err) {
  for (size_t i = 0; i < inputs->n; i++)
    CLV_TRY(clv_graph_add_input(g, inputs->inputs[i].name, inputs->inputs[i].dtype,
                                &inputs->inputs[i].shape, i ? NULL : ret_first, err));
  return CLV_OK;
}

clv_code clv_model_make_graph_of_inputs(const clv_session_config *config,
                                        const clv_model_inputs *inputs, clv_graph **ret_whole,
                                        uint32_t *ret_first_layer, uint32_t *ret_last_layer,
                                        clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  int last = 0;
  CLV_TRY(clv_graph_new(&g, err));
  CLV_TRY(add_inputs(inputs, g, &last, err));
  CLV_TRY((clv_model_is_given(&config->model) ? build_from_model : build_from_stages)(
      config, g, &last, ret_first_layer, ret_last_layer, err));
  CLV_TRY(clv_stage_mark_recompute(config, g, ret_first_layer, ret_last_layer, err));
  *ret_whole = clv_steal(&g);
  return CLV_OK;
}

clv_code clv_model_make_graph(const clv_session_config *config, const clv_shape *input_sample,
                              clv_graph **ret_whole, uint32_t *ret_first_layer,
                              uint32_t *ret_last_layer, clv_err *err) {
  const clv_model_inputs inputs = clv_model_describe_input(config, input_sample);
  return clv_model_make_graph_of_inputs(config, &inputs, ret_whole, ret_first_layer, ret_last_layer,
                                        err);
}

clv_code clv_model_make_full_graph(const clv_session_config *config, const clv_shape *input_sample,
                                   clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  const clv_model_inputs inputs = clv_model_describe_input(config, input_sample);
  int last = 0;
  CLV_TRY(clv_graph_new(&g, err));
  CLV_TRY(add_inputs(&inputs, g, &last, err));
  CLV_TRY(add_model(config, g, &last, err));
  *ret = clv_steal(&g);
  return CLV_OK;
}

clv_code clv_model_make_first_stage_graph(const clv_session_config *config,
                                          const clv_shape *input_sample, clv_graph **ret,
                                          clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *whole = NULL;
  uint32_t first, last;
  CLV_TRY(clv_model_make_full_graph(config, input_sample, &whole, err));
  CLV_TRY(clv_stage_find_layers(config, whole, 0, &first, &last, err));
  if (first) CLV_TRY(clv_stage_check_single_output(config, whole, 0, first - 1, err));
  CLV_TRY(clv_stage_check_single_output(config, whole, 0, last, err));
  return clv_graph_slice(whole, first, last, ret, err);
}
