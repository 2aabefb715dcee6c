/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the arguments of libcleave with which the trainer calls a stage.
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
