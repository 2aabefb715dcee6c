/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that a session file describes by a config.json (model.hf). Errors in the config give the
 * position of model.hf in the session file, and then that in the config.
 */
#include "common/model/hf/hf.h"

#include <stdio.h>
#include <string.h>

#include "common/model/models/models_int.h"

_Static_assert((int)CLV_HEAD_NONE == CLV_HF_NO_HEAD + 1 &&
                   (int)CLV_HEAD_CAUSAL == CLV_HF_CAUSAL + 1,
               "one order");

/* Reads the config.json of model.hf. */
static clv_code read_config(const clv_session_config *c, clv_hf_config *ret, clv_err *err) {
  const clv_json_keys ignored = {(const char *const *)c->model.ignore_keys.items,
                                 c->model.ignore_keys.n};
  return clv_hf_config_read(c->model.hf, &ignored, ret, err);
}

static clv_code fail_at_hf(const clv_session_config *c, const clv_err *why, clv_err *err) {
  return clv_session_fail_at(c, c->model.hf_pos, err, "model.hf: %s", why->text);
}

bool clv_hf_model_takes_tokens(const clv_session_config *c) {
  clv_hf_config model;
  clv_err unused_err;
  return read_config(c, &model, &unused_err) != CLV_OK || clv_hf_takes_tokens(&model);
}

clv_model_padding clv_model_padding_of(const clv_session_config *c) {
  clv_model_padding ret = {.padding_token = -1};
  clv_hf_head head = (clv_hf_head)(c->model.head - CLV_HEAD_NONE);
  clv_hf_config model;
  clv_err unused_err;
  if (!c->model.hf || read_config(c, &model, &unused_err) != CLV_OK) return ret;
  ret.padding_token = model.padding_token;
  ret.skips_padding_positions = clv_hf_numbers_from_padding(model.family);
  ret.scores_last_token = head == CLV_HF_SEQUENCE && clv_hf_is_decoder(&model);
  ret.shifts_labels = head == CLV_HF_CAUSAL;
  return ret;
}

_Static_assert((int)CLV_PEFT_PARAM == CLV_HF_NAME, "one length");

clv_code clv_model_check_hf(const clv_session_config *c, clv_err *err) {
  clv_hf_config model;
  clv_err why;
  bool config_is_valid = !c->model.hf || read_config(c, &model, &why) == CLV_OK;
  return config_is_valid ? CLV_OK : fail_at_hf(c, &why, err);
}

int clv_model_hf_family(const clv_session_config *c) {
  clv_hf_config model;
  clv_err unused_err;
  bool is_config_read = c->model.hf && read_config(c, &model, &unused_err) == CLV_OK;
  return is_config_read ? (int)model.family : -1;
}

const char *clv_model_peft_name(int family, const char *name, char ret[CLV_PEFT_PARAM]) {
  if (family >= 0) return clv_hf_name_in_memory((clv_hf_family)family, name, ret);
  snprintf(ret, CLV_PEFT_PARAM, "%s", name);
  return ret;
}

enum { MAX_LABELS = 1 << 20 };

/* Reads the attribute `labels`, the only one that a model by `hf` has. *ret 0: not given. */
static clv_code read_labels_attr(const clv_session_config *c, int64_t *ret, clv_err *err) {
  *ret = 0;
  for (size_t i = 0; i < c->model.n_attrs; i++) {
    const clv_attr_spec *a = &c->model.attrs[i];
    if (strcmp(a->key, "labels") != 0)
      return clv_session_fail_at(c, a->pos, err, "a model by hf has no key '%s', only labels",
                                 a->key);
    if (a->kind != CLV_ATTR_INT || a->int_value < 1 || a->int_value > MAX_LABELS)
      return clv_session_fail_at(c, a->pos, err, "labels is a whole number from 1 to %d",
                                 MAX_LABELS);
    *ret = a->int_value;
  }
  return CLV_OK;
}

static int find_input(const clv_graph *g, const char *name, int fallback) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT && strcmp(g->nodes[i].name, name) == 0) return i;
  return fallback;
}

clv_code clv_hf_model_add_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer,
                                 int *last, clv_err *err) {
  clv_hf_config model;
  clv_hf_inputs in = {.records = find_input(g, "ids", *last),
                      .boxes = find_input(g, "boxes", -1),
                      .lengths = find_input(g, "lengths", -1)};
  clv_hf_head head = (clv_hf_head)(c->model.head - CLV_HEAD_NONE);
  int64_t labels;
  clv_err why;
  CLV_TRY(read_labels_attr(c, &labels, err));
  if (read_config(c, &model, &why) != CLV_OK) return fail_at_hf(c, &why, err);
  if (c->data.packed && !clv_hf_takes_tokens(&model))
    return clv_session_fail_at(c, c->data.packed_pos, err,
                               "data.packed: a %s takes images of one size, which have no pads: "
                               "leave data.packed out",
                               clv_hf_family_name(model.family));
  if (clv_hf_add_layers(&model, head, labels, &in, g, layer, last, &why) != CLV_OK)
    return fail_at_hf(c, &why, err);
  return CLV_OK;
}
