/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks layers of two stages that share a parameter, such as a decoder that uses the embedding
 * table of the tokens. Both stages must be at one node. Across nodes the table, or its gradient,
 * would be sent in every step, and a worker with the table can infer the token from a hidden
 * state.
 */
#include <string.h>

#include "master/plan/plan_int.h"

typedef struct tied_layer {
  const clv_session_config *c;
  const clv_blueprint *b;
  /* stage of the layer with the tied weight, and stage of the layer that owns the weight */
  uint32_t stage, owner_stage;
  const char *layer_name, *owner_name;
} tied_layer;

static const char *get_place_name(const tied_layer *t, uint32_t stage) {
  int worker = t->b->stages[stage].worker;
  return worker < 0 ? "master" : t->c->workers[worker].name;
}

static clv_code check_same_place(const tied_layer *t, clv_err *err) {
  const clv_stage_spec *s = &t->c->stages[t->stage], *owner_spec = &t->c->stages[t->owner_stage];
  if (s->worker != owner_spec->worker)
    return clv_session_fail_at(
        t->c, s->at_pos, err,
        "stage '%.40s' at %.40s has layer '%.64s', whose weight is that of '%.64s' in stage "
        "'%.40s' at %.40s: it would be sent in every step, and shows a worker what the tokens "
        "are; put both stages at one node, such as master, or untie them (%s)",
        s->name, get_place_name(t, t->stage), t->layer_name, t->owner_name, owner_spec->name,
        get_place_name(t, t->owner_stage),
        t->c->model.hf ? "tie_word_embeddings: false in config.json" : "leave `tied` out");
  if (strcmp(s->device, owner_spec->device) == 0) return CLV_OK;
  return clv_session_fail_at(
      t->c, s->at_pos, err,
      "stage '%.40s' on device %.32s has layer '%.64s', whose weight is that "
      "of '%.64s' in stage '%.40s' on %.32s: put both on one device",
      s->name, s->device, t->layer_name, t->owner_name, owner_spec->name, owner_spec->device);
}

/* Refuses an asynchronous schedule, because a stage would take its optimiser step before the
 * gradients of both tied layers are summed. */
static clv_code check_schedule(const tied_layer *t, clv_err *err) {
  clv_pipeline_kind kind = t->c->pipeline.schedule;
  if (kind != CLV_PIPE_PIPEDREAM && kind != CLV_PIPE_PIPEDREAM_2BW) return CLV_OK;
  return clv_session_fail_at(
      t->c, t->c->pipeline.pos, err,
      "stages step by themselves in this schedule, and the weight of '%.64s' "
      "is that of '%.64s' in another stage: take another schedule, as 1f1b",
      t->layer_name, t->owner_name);
}

/* Checks that the layer is not frozen while the owner of its weight learns. */
static clv_code check_frozen(const tied_layer *t, bool is_owner_frozen, clv_err *err) {
  const clv_stage_spec *s = &t->c->stages[t->stage];
  if (!s->freeze || is_owner_frozen) return CLV_OK;
  return clv_session_fail_at(t->c, s->pos, err,
                             "stage '%.40s' is frozen, and the weight of its layer '%.64s' is that "
                             "of '%.64s', which learns: freeze both or neither",
                             s->name, t->layer_name, t->owner_name);
}

/* Checks a tied weight in a stage with adapters. The stage freezes all parameters but adapters and
 * the modules that `lora.train` names, and it must freeze the tied weight if and only if the owner
 * of the weight is frozen. */
static clv_code check_adapters(const tied_layer *t, const char *weight, bool is_owner_frozen,
                               clv_err *err) {
  const clv_stage_spec *s = &t->c->stages[t->stage], *owner_spec = &t->c->stages[t->owner_stage];
  bool is_frozen_by_lora = clv_is_param_frozen_by_lora(&s->lora, weight);
  if (!s->lora.targets.n || is_frozen_by_lora == is_owner_frozen ||
      (is_frozen_by_lora && t->owner_stage == t->stage))
    return CLV_OK;
  if (is_frozen_by_lora)
    return clv_session_fail_at(
        t->c, s->pos, err,
        "stage '%.40s' has adapters beside fixed weights, and the weight of its layer '%.64s' is "
        "that of '%.64s' in stage '%.40s', which learns: freeze that one, or name '%.64s' in "
        "lora.train",
        s->name, t->layer_name, t->owner_name, owner_spec->name, t->layer_name);
  return clv_session_fail_at(
      t->c, s->lora.train_pos, err,
      "lora.train names layer '%.64s', whose weight is that of '%.64s' in stage '%.40s', which is "
      "fixed: let that one learn, or leave '%.64s' out",
      t->layer_name, t->owner_name, owner_spec->name, t->layer_name);
}

static clv_code find_owner(const clv_blueprint *b, tied_layer *t, const clv_param **ret,
                           clv_err *err) {
  for (t->owner_stage = 0; t->owner_stage < b->n_stages; t->owner_stage++) {
    const clv_stage_plan *s = &b->stages[t->owner_stage];
    if ((*ret = clv_params_first_of_node(s->graph, s->params, t->owner_name)) != NULL)
      return CLV_OK;
  }
  return clv_session_fail_at(t->c, t->c->model.pos, err,
                             "layer '%.64s' is tied to '%.64s', which is in no stage",
                             t->layer_name, t->owner_name);
}

static clv_code apply_tie(const clv_blueprint *b, uint32_t stage, clv_tie *tie, clv_err *err) {
  const clv_node *n = &b->stages[stage].graph->nodes[tie->param.node];
  tied_layer t = {
      .c = b->config, .b = b, .stage = stage, .layer_name = n->name, .owner_name = n->tie_owner};
  const clv_param *owner_param =
      tie->owner_index < 0 ? NULL : &b->stages[stage].params->list[tie->owner_index];
  t.owner_stage = stage;
  if (!owner_param) CLV_TRY(find_owner(b, &t, &owner_param, err));
  CLV_TRY(check_same_place(&t, err));
  if (t.owner_stage != stage) CLV_TRY(check_schedule(&t, err));
  CLV_TRY(check_frozen(&t, owner_param->frozen, err));
  CLV_TRY(check_adapters(&t, tie->param.name, owner_param->frozen, err));
  tie->param.frozen = owner_param->frozen;
  tie->param.is_fixed = owner_param->is_fixed;
  return CLV_OK;
}

clv_code clv_ties_apply(clv_blueprint *b, clv_err *err) {
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_params *p = b->stages[i].params;
    for (int k = 0; k < p->n_ties; k++) CLV_TRY(apply_tie(b, i, &p->ties[k], err));
    clv_params_update_ties(p);
  }
  return CLV_OK;
}

bool clv_stage_tie_owner(const clv_blueprint *b, uint32_t stage, int tie, uint32_t *ret_stage,
                         const char **ret_weight) {
  const clv_stage_plan *s = &b->stages[stage];
  const char *owner = s->graph->nodes[s->params->ties[tie].param.node].tie_owner;
  for (*ret_stage = 0; *ret_stage < b->n_stages; ++*ret_stage) {
    const clv_stage_plan *owner_stage = &b->stages[*ret_stage];
    const clv_param *p = clv_params_first_of_node(owner_stage->graph, owner_stage->params, owner);
    if (p) *ret_weight = p->name;
    if (p) return *ret_stage != stage;
  }
  return false;
}
