/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimiser of a session: one group, or two where biases and normalisations do not decay.
 */
#include <stdlib.h>

#include "master/train/train_int.h"

cleave_schedule clv_trainer_schedule_of(const clv_session_config *c, uint64_t length) {
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

/* An op with an eps divides by a deviation. */
static bool normalises(clv_op op) {
  for (const clv_attr_row *row = clv_op_def_of(op)->attrs; row->key; row++)
    if (row->key == CLV_ATTR_EPS) return true;
  return false;
}

/* Biases are vectors; weights have a dimension for what comes in and one for what goes out. */
static bool decays(const clv_graph *g, const clv_param *p) {
  return p->shape.rank > 1 && !normalises(g->nodes[p->node].op);
}

/* A session's learning parameters in two lists: decayed ones, and the others. */
typedef struct sides {
  const char **names[2];
  size_t n[2];
} sides;

static void sides_done(sides *s) {
  free(s->names[0]);
  free(s->names[1]);
}

static clv_code sort_sides(const clv_blueprint *b, sides *ret, clv_err *err) {
  size_t all = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) all += (size_t)b->stages[i].params->n;
  for (int side = 0; side < 2; side++)
    CLV_TRY(clv_alloc(all + 1, sizeof *ret->names[side], &ret->names[side], err));
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].params->n; k++) {
      const clv_param *p = &b->stages[i].params->list[k];
      int side = decays(b->stages[i].graph, p) ? 0 : 1;
      if (p->trainable && !p->frozen) ret->names[side][ret->n[side]++] = p->name;
    }
  return CLV_OK;
}

/* `one` as a group for each side that has parameters. */
static size_t split_group(const cleave_group *one, const sides *s, cleave_group ret[2]) {
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

clv_code clv_trainer_make_optimizer(clv_trainer *t, clv_err *err) {
  const clv_optimizer_config *c = &t->config->train.optimizer;
  CLV_AUTO(clv_freep) cleave_module **learning = NULL;
  CLV_AUTO(sides_done) sides s = {0};
  CLV_TRY(clv_alloc(t->b->n_stages, sizeof(cleave_module *), &learning, err));
  /* Whoever fails in a step, the run goes back to its checkpoint: nobody keeps copies to undo
   * it. */
  cleave_group g = {.modules = learning,
                    .kind = (cleave_optimizer_kind)c->kind,
                    .schedule = clv_trainer_schedule_of(t->config, 0),
                    .final = true};
  CLV_OPTIM_COPY(&g, c);
  for (uint32_t i = 0; i < t->b->n_stages; i++)
    if (t->b->stages[i].n_learning) learning[g.n_modules++] = t->modules[i];
  cleave_group groups[2] = {g};
  size_t n = 1;
  if (c->decay == CLV_DECAYS_WEIGHTS && c->weight_decay > 0) {
    CLV_TRY(sort_sides(t->b, &s, err));
    n = split_group(&g, &s, groups);
  }
  cleave_optimizer *optimizer;
  CLV_API(cleave_optimizer_new(t->runtime, groups, n, t->config->train.clip_grad_norm, &optimizer,
                               CLV_WHY));
  t->optimizer = optimizer;
  return CLV_OK;
}
