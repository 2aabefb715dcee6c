/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the arguments of libcleave with which the trainer calls a stage or the loss.
 */
#include "master/train/train_int.h"

clv_tensor *clv_batch_input(const clv_batch *batch, size_t k) {
  return batch->n_inputs ? batch->inputs[k] : batch->x;
}

clv_code clv_trainer_stage_inputs(clv_trainer *t, cleave_context context, uint32_t stage,
                                  clv_tensor *const *x, const clv_sequences *sequences,
                                  cleave_reference in[CLV_MAX_INPUTS], uint32_t *n, clv_err *err) {
  const clv_stage_plan *s = &t->b->stages[stage];
  *n = stage > 0;
  for (uint32_t k = 0; k < s->n_model_inputs; k++) {
    bool has_positions =
        s->graph->nodes[*n].max_positions; /* the first nodes of a graph are its inputs */
    cleave_tensor leaf;
    CLV_TRY(
        clv_trainer_pack_rows(t, sequences, x[s->model_inputs[k]], has_positions, 0, &leaf, err));
    CLV_TRY_API(cleave_leaf(t->runtime, context, &leaf, false, &in[(*n)++], CLV_API_ERROR));
  }
  return CLV_OK;
}

/* Makes the leaves (input tensors) of the loss that have the labels of several targets. y: labels
 * of the batch. */
static clv_code add_target_leaves(clv_trainer *t, cleave_context context, const clv_sequences *s,
                                  const clv_tensor *y, cleave_reference *in, uint32_t *n,
                                  clv_err *err) {
  CLV_AUTO(clv_target_inputs_done) clv_target_inputs targets = {0};
  const clv_target_labels labels = {y->data, (size_t)y->shape.dim[0], s->start, s->n};
  CLV_TRY(clv_target_inputs_make(t->config, &labels, &targets, err));
  for (uint32_t k = 0; k < targets.n; k++) {
    bool has_numbers = !k && targets.n_numbers;
    const cleave_tensor leaf = {
        .dtype = has_numbers ? CLEAVE_F32 : CLEAVE_I64,
        .rank = has_numbers ? 2 : 1,
        .shape = {(int64_t)s->n, has_numbers ? (int64_t)targets.n_numbers : 0},
        .data = (void *)(uintptr_t)targets.inputs[k]};
    CLV_TRY_API(cleave_leaf(t->runtime, context, &leaf, false, &in[(*n)++], CLV_API_ERROR));
  }
  return CLV_OK;
}

clv_code clv_trainer_loss_inputs(clv_trainer *t, cleave_context context, const clv_sequences *s,
                                 const clv_tensor *y, cleave_reference in[CLV_MAX_INPUTS],
                                 uint32_t *n, clv_err *err) {
  cleave_tensor rows;
  *n = 1;
  if (t->config->loss.n_targets) return add_target_leaves(t, context, s, y, in, n, err);
  CLV_TRY(clv_trainer_pack_labels(t, s, y, &rows, err));
  CLV_TRY_API(cleave_leaf(t->runtime, context, &rows, false, &in[(*n)++], CLV_API_ERROR));
  return CLV_OK;
}
