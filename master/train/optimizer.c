/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimiser of a session: one group, or two if biases and normalisations have no weight decay.
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
  size_t all = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) all += (size_t)b->stages[i].params->n;
  for (int side = 0; side < 2; side++)
    CLV_TRY(clv_alloc(all + 1, sizeof *ret->names[side], &ret->names[side], err));
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].params->n; k++) {
      const clv_param *p = &b->stages[i].params->list[k];
      int side = has_weight_decay(b->stages[i].graph, p) ? 0 : 1;
      if (p->trainable && !p->frozen) ret->names[side][ret->n[side]++] = p->name;
    }
  return CLV_OK;
}

/* Copies the group `one` for each list that has parameters. Returns the number of copies. */
static size_t make_group_per_list(const cleave_group *one, const clv_trainer_decay_lists *s,
                                  cleave_group ret[2]) {
  size_t n = 0;
  for (int side = 0; side < 2; side++) {
    if (!s->n[side]) continue;
    ret[n] = *one;
    ret[n].parameters = s->names[side];
    ret[n].n_parameters = s->n[side];
    if (side) ret[n].weight_decay = 0;
    n++;
  }
  return n;
}

clv_code clv_trainer_make_groups(const clv_blueprint *b, const cleave_group *one,
                                 clv_trainer_decay_lists *sides, cleave_group ret[2], size_t *ret_n,
                                 clv_err *err) {
  bool split =
      b->config->train.optimizer.decayed_params == CLV_DECAYS_WEIGHTS && one->weight_decay > 0;
  ret[0] = *one;
  *ret_n = 1;
  if (!split) return CLV_OK;
  CLV_TRY(list_params_by_decay(b, sides, err));
  *ret_n = make_group_per_list(one, sides, ret);
  return CLV_OK;
}
