/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs and unpacks sequences. The loader's batches are padded. The tensors that the trainer sends
 * have no padding: they have the positions of all sequences one after the other. A few rows that
 * belong to no sequence may follow, so that nodes make plans for few different numbers of rows.
 * These rows have no label and do not influence others.
 */
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

cleave_tensor clv_batch_rows(const clv_tensor *batch, size_t start, size_t n) {
  size_t row_bytes = batch->bytes / (size_t)batch->shape.dim[0];
  cleave_tensor t = {.dtype = (cleave_dtype)batch->dtype,
                     .rank = batch->shape.rank,
                     .data = (char *)batch->data + start * row_bytes};
  memcpy(t.shape, batch->shape.dim, sizeof t.shape);
  t.shape[0] = (int64_t)n;
  return t;
}

clv_code clv_trainer_select_sequences(const clv_trainer *t, clv_tensor *const *x, size_t start,
                                      size_t n, clv_sequences *ret, clv_err *err) {
  *ret = (clv_sequences){.start = start, .n = n};
  if (t->b->lengths_input < 0) return CLV_OK;
  const int64_t *lengths = (const int64_t *)x[t->b->lengths_input]->data + start;
  int64_t max_rows = (int64_t)n * t->b->max_positions,
          rows_multiple = (max_rows + CLV_N_PACKED_SIZES - 1) / CLV_N_PACKED_SIZES;
  CLV_TRY(clv_check_packed(lengths, (int64_t)n, t->b->max_positions, max_rows, err));
  int64_t n_used_rows = CLV_MAX(clv_packed_rows_before(lengths, (int64_t)n), 1);
  ret->lengths = lengths;
  ret->n_rows =
      CLV_MIN((n_used_rows + rows_multiple - 1) / rows_multiple * rows_multiple, max_rows);
  return CLV_OK;
}

/* Makes t->pack_buffer large enough for the tensor and sets tensor->data to it. Fills the tensor:
 * i64 with `fill_value`, other dtypes with 0. */
static clv_code resize_pack_buffer(clv_trainer *t, cleave_tensor *tensor, int64_t fill_value,
                                   clv_err *err) {
  size_t n = cleave_tensor_count(tensor), bytes;
  CLV_TRY(clv_mul_size(n, clv_dtype_size((clv_dtype)tensor->dtype), &bytes)
              ? CLV_OK
              : clv_fail(err, CLV_EXHAUSTED, "a part of %zu values", n));
  if (bytes > t->pack_buffer_bytes) {
    void *grown_buffer = realloc(t->pack_buffer, bytes);
    if (!grown_buffer) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", bytes);
    t->pack_buffer = grown_buffer;
    t->pack_buffer_bytes = bytes;
  }
  tensor->data = t->pack_buffer;
  memset(tensor->data, 0, bytes);
  for (size_t i = 0; tensor->dtype == CLEAVE_I64 && i < n; i++)
    ((int64_t *)tensor->data)[i] = fill_value;
  return CLV_OK;
}

/* Copies the positions of sequences between a padded tensor [n, S, ...] and a packed one [T, ...].
 * is_unpacking: copies from packed to padded. */
static void copy_positions(const clv_trainer *t, const clv_sequences *s, char *padded, char *packed,
                           size_t position_bytes, bool is_unpacking) {
  for (size_t i = 0; i < s->n; i++) {
    size_t bytes = (size_t)s->lengths[i] * position_bytes;
    char *padded_sequence = padded + i * (size_t)t->b->max_positions * position_bytes;
    if (bytes)
      memcpy(is_unpacking ? padded_sequence : packed, is_unpacking ? packed : padded_sequence,
             bytes);
    packed += bytes;
  }
}

clv_code clv_trainer_pack_rows(clv_trainer *t, const clv_sequences *s, const clv_tensor *batch,
                               bool has_positions, int64_t fill_value, cleave_tensor *ret,
                               clv_err *err) {
  cleave_tensor rows = clv_batch_rows(batch, s->start, s->n), packed_rows = rows;
  if (has_positions) {
    packed_rows.rank--;
    memmove(packed_rows.shape + 1, packed_rows.shape + 2,
            (size_t)(packed_rows.rank - 1) * sizeof *packed_rows.shape);
    packed_rows.shape[0] = s->n_rows;
    CLV_TRY(resize_pack_buffer(t, &packed_rows, fill_value, err));
    size_t n_positions = (size_t)(batch->shape.dim[0] * t->b->max_positions);
    copy_positions(t, s, rows.data, packed_rows.data, batch->bytes / n_positions, false);
  }
  *ret = packed_rows;
  return CLV_OK;
}

clv_code clv_trainer_pack_labels(clv_trainer *t, const clv_sequences *s, const clv_tensor *y,
                                 cleave_tensor *ret, clv_err *err) {
  bool has_positions = t->b->stages[t->b->n_stages].graph->nodes[1].max_positions;
  return clv_trainer_pack_rows(t, s, y, has_positions, (int64_t)t->config->loss.ignore_index, ret,
                               err);
}

clv_code clv_trainer_unpack_output(clv_trainer *t, const clv_sequences *s,
                                   const cleave_tensor *output, cleave_tensor *ret, clv_err *err) {
  cleave_tensor padded = *output;
  if (t->b->stages[t->b->n_stages].graph->nodes[0].max_positions) {
    size_t position_bytes = cleave_tensor_count(output) / (size_t)output->shape[0] *
                            clv_dtype_size((clv_dtype)output->dtype);
    memmove(padded.shape + 2, padded.shape + 1, (size_t)(padded.rank++ - 1) * sizeof *padded.shape);
    padded.shape[0] = (int64_t)s->n;
    padded.shape[1] = t->b->max_positions;
    padded.capacity = 0;
    CLV_TRY(resize_pack_buffer(t, &padded, 0, err));
    copy_positions(t, s, padded.data, output->data, position_bytes, true);
  }
  *ret = padded;
  return CLV_OK;
}
