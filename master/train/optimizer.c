/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the groups of the optimiser of a session: one, or two if biases and normalisations have no
 * weight decay.
 */
#include <stdlib.h>

#include "master/train/train_int.h"

cleave_schedule clv_trainer_make_schedule(const clv_session_config *c, uint64_t length) {
  static const cleave_curve curves[] = {[CLV_LR_CONSTANT] = CLEAVE_CONSTANT,
                                        [CLV_LR_STEP] = CLEAVE_STEPS,
                                        [CLV_LR_COSINE] = CLEAVE_COSINE,
                                        [CLV_LR_LINEAR] = CLEAVE_LINEAR};
  const clv_lr_config *s = &c->train.schedule;
  return (cleave_schedule){.curve = curves[s->kind],
                           .warmup_steps = s->warmup_steps,
                           .step_size = s->step_size,
                           .total_steps = s->total_steps ? s->total_steps : length,
                           .gamma = s->gamma,
                           .from_zero = s->from_zero};
}

/* Returns true for a normalisation: an op with the attribute eps. */
static bool is_normalisation(clv_op op) {
  for (const clv_attr_row *row = clv_op_def_of(op)->attrs; row->key; row++)
    if (row->key == CLV_ATTR_EPS) return true;
  return false;
}

/* Returns true if the parameter has weight decay: weights have at least two dimensions, biases
 * one. */
static bool has_weight_decay(const clv_graph *g, const clv_param *p) {
  return p->shape.rank > 1 && !is_normalisation(g->nodes[p->node].op);
}

void clv_trainer_free_decay_lists(clv_trainer_decay_lists *s) {
  if (!s) return;
  free(s->names[0]);
  free(s->names[1]);
}

static clv_code list_params_by_decay(const clv_blueprint *b, clv_trainer_decay_lists *ret,
                                     clv_err *err) {
  size_t max_params = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) max_params += (size_t)b->stages[i].params->n;
  for (int list_index = 0; list_index < 2; list_index++)
    CLV_TRY(
        clv_alloc(max_params + 1, sizeof *ret->names[list_index], &ret->names[list_index], err));
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].params->n; k++) {
      const clv_param *p = &b->stages[i].params->list[k];
      int list_index = has_weight_decay(b->stages[i].graph, p) ? 0 : 1;
      if (p->trainable && !p->frozen) ret->names[list_index][ret->n[list_index]++] = p->name;
    }
  return CLV_OK;
}

/* Copies `group` once for each list of parameters, with and without weight decay, that is not
 * empty. Returns the number of copies. */
static size_t make_group_per_list(const cleave_group *group, const clv_trainer_decay_lists *s,
                                  cleave_group ret[2]) {
  size_t n = 0;
  for (int list_index = 0; list_index < 2; list_index++) {
    if (!s->n[list_index]) continue;
    ret[n] = *group;
    ret[n].parameters = s->names[list_index];
    ret[n].n_parameters = s->n[list_index];
    if (list_index) ret[n].weight_decay = 0;
    n++;
  }
  return n;
}

clv_code clv_trainer_make_groups(const clv_blueprint *b, const cleave_group *group,
                                 clv_trainer_decay_lists *decay_lists, cleave_group ret[2],
                                 size_t *ret_n, clv_err *err) {
  bool splits_group =
      b->config->train.optimizer.decayed_params == CLV_DECAYS_WEIGHTS && group->weight_decay > 0;
  ret[0] = *group;
  *ret_n = 1;
  if (!splits_group) return CLV_OK;
  CLV_TRY(list_params_by_decay(b, decay_lists, err));
  *ret_n = make_group_per_list(group, decay_lists, ret);
  return CLV_OK;
}
