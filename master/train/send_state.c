/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends state to the node of a stage (clv_trainer_send_state) from the files of a checkpoint or of
 * the session, in pieces, so that the master never has a complete tensor in memory.
 */
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* Items that are sent, and the origin of each. */
typedef struct state_source {
  const clv_weights_want *items;   /* [n] items of the stage's state */
  const clv_state_origin *origins; /* [n] origin of each item */
} state_source;

static clv_code read_piece(void *user, size_t item, uint64_t offset, void *data, size_t length,
                           clv_err *err) {
  const state_source *s = user;
  const clv_weights_want *w = &s->items[item];
  const clv_state_origin *origin = &s->origins[item];
  size_t value_bytes = clv_dtype_size(w->dtype), first_value = (size_t)offset / value_bytes,
         n = length / value_bytes;
  /* an interrupt may end the call, because no step has begun yet */
  CLV_TRY(clv_interrupt_check(err));
  if (origin->file)
    return clv_weights_read_range_as(origin->file, origin->entry, w->dtype, first_value, data, n,
                                     err);
  if (origin->folder)
    return clv_weights_folder_read_tensor_range(origin->folder, origin->index, w, first_value, n,
                                                data, err);
  memcpy(data, (const char *)&origin->value + offset, length);
  return CLV_OK;
}

static clv_code sample_item(clv_weights_sample *sample, state_source *s, size_t item,
                            clv_err *err) {
  size_t value_bytes = clv_dtype_size(sample->dtype);
  CLV_AUTO(clv_freep) char *chunk = NULL;
  CLV_TRY(clv_alloc(CLV_SAMPLE_CHUNK_VALUES, value_bytes, &chunk, err));
  for (size_t first_value = 0; first_value < sample->n_values;
       first_value += CLV_SAMPLE_CHUNK_VALUES) {
    size_t n = CLV_MIN(sample->n_values - first_value, (size_t)CLV_SAMPLE_CHUNK_VALUES);
    CLV_TRY(read_piece(s, item, (uint64_t)first_value * value_bytes, chunk, n * value_bytes, err));
    clv_weights_sample_add(sample, (uint64_t)first_value * value_bytes, chunk, n * value_bytes);
  }
  return CLV_OK;
}

/* Adds the values to the ledger, the list of what workers have received, before they are sent. For
 * this the function reads the values one more time. */
static clv_code note_values_in_ledger(const clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                      state_source *s, size_t n, clv_err *err) {
  clv_weights_sample *samples;
  CLV_TRY(clv_trainer_new_samples(t, stage, kind, s->items, n, &samples, err));
  clv_code code = CLV_OK;
  for (size_t i = 0; samples && i < n && code == CLV_OK; i++)
    if (samples[i].n_parts) code = sample_item(&samples[i], s, i, err);
  if (code == CLV_OK) code = clv_trainer_note_values(t, stage, samples, n, err);
  clv_trainer_free_samples(samples, n);
  return code;
}

clv_code clv_trainer_send_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                const clv_weights_want *items, const clv_state_origin *origins,
                                size_t n, clv_err *err) {
  state_source s = {items, origins};
  if (n) CLV_TRY(clv_trainer_allow_state(t, stage, kind, items, n, err));
  CLV_TRY(note_values_in_ledger(t, stage, kind, &s, n, err));
  if (!n) return CLV_OK;
  CLV_TRY_API(cleave_state_give(t->runtime, t->modules[stage], kind, items, n, read_piece, &s,
                                CLV_API_ERROR));
  return CLV_OK;
}
