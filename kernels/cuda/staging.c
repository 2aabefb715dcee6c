/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between host and device through slots of page-locked memory, because a copy from or to
 * other host memory would block. The slots are used in turn; a slot is reused when its last copy is
 * done. clv_gpu_finish, which reports deferred errors and refused values, is also in this file.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/gpu_int.h"

clv_code clv_gpu_open_copy_slots(clv_gpu *g, clv_err *err) {
  for (int i = 0; i < GPU_COPY_SLOTS; i++) {
    CLV_TRY(g->vendor->host_allocate(GPU_COPY_SLOT_BYTES, &g->slots[i].host, err));
    CLV_TRY(g->vendor->event_new(g->device, false, &g->slots[i].copy_event, err));
  }
  return CLV_OK;
}

/* Zeroes and frees the slots, so that the next owner of the memory cannot read the values. */
void clv_gpu_close_copy_slots(clv_gpu *g) {
  for (int i = 0; i < GPU_COPY_SLOTS; i++) {
    if (g->slots[i].copy_event) g->vendor->event_free(g->slots[i].copy_event);
    if (!g->slots[i].host) continue;
    memset(g->slots[i].host, 0, GPU_COPY_SLOT_BYTES);
    g->vendor->host_free(g->slots[i].host);
  }
}

static clv_code wait_for_slot(clv_gpu *g, cuda_copy_slot *slot, clv_err *err) {
  if (slot->is_busy) CLV_TRY(g->vendor->event_finish(slot->copy_event, err));
  slot->is_busy = false;
  return CLV_OK;
}

static clv_code take_next_slot(clv_gpu *g, cuda_copy_slot **ret, clv_err *err) {
  *ret = &g->slots[g->next_slot];
  g->next_slot = (g->next_slot + 1) % GPU_COPY_SLOTS;
  return wait_for_slot(g, *ret, err);
}

/* Marks the slot as busy until the copy that was just issued is done. */
static clv_code mark_slot_busy(clv_gpu *g, cuda_copy_slot *slot, clv_err *err) {
  slot->is_busy = true;
  return g->vendor->event_record(slot->copy_event, g->stream, err);
}

clv_code clv_gpu_copy_to_device(const clv_backend *b, void *dst, const void *host, size_t bytes,
                                clv_err *err) {
  clv_gpu *g = b->private_data;
  CLV_TRY(clv_gpu_fail_recording(g, "copy values to the device", err));
  for (size_t offset = 0; offset < bytes; offset += GPU_COPY_SLOT_BYTES) {
    size_t n = CLV_MIN(bytes - offset, (size_t)GPU_COPY_SLOT_BYTES);
    cuda_copy_slot *slot;
    CLV_TRY(take_next_slot(g, &slot, err));
    memcpy(slot->host, (const char *)host + offset, n);
    CLV_TRY(g->vendor->put(g->stream, (char *)dst + offset, slot->host, n, err));
    CLV_TRY(mark_slot_busy(g, slot, err));
  }
  return CLV_OK;
}

/* Waits until a piece has arrived in its slot, and copies it out. */
static clv_code copy_piece(clv_gpu *g, cuda_copy_slot *slot, char *host, size_t bytes,
                           clv_err *err) {
  CLV_TRY(wait_for_slot(g, slot, err));
  memcpy(host, slot->host, bytes);
  return CLV_OK;
}

static size_t get_piece_bytes(size_t bytes, size_t offset) {
  return CLV_MIN(bytes - offset, (size_t)GPU_COPY_SLOT_BYTES);
}

/* Copies in pieces, several in flight: the device fills other slots while the host empties one. */
clv_code clv_gpu_copy_to_host(const clv_backend *b, void *host, const void *src, size_t bytes,
                              const clv_copy_progress *progress, clv_err *err) {
  clv_gpu *g = b->private_data;
  cuda_copy_slot *slots[GPU_COPY_SLOTS];
  size_t requested_bytes = 0, copied_bytes = 0;
  CLV_TRY(clv_gpu_fail_recording(g, "copy values to the host", err));
  for (int i = 0; copied_bytes < bytes;) {
    if (requested_bytes < bytes &&
        requested_bytes - copied_bytes < (size_t)GPU_COPY_SLOTS * GPU_COPY_SLOT_BYTES) {
      size_t n = get_piece_bytes(bytes, requested_bytes);
      cuda_copy_slot **slot = &slots[requested_bytes / GPU_COPY_SLOT_BYTES % GPU_COPY_SLOTS];
      CLV_TRY(take_next_slot(g, slot, err));
      CLV_TRY(
          g->vendor->get(g->stream, (*slot)->host, (const char *)src + requested_bytes, n, err));
      if (requested_bytes + n == bytes) clv_gpu_mark_time(g);
      CLV_TRY(mark_slot_busy(g, *slot, err));
      requested_bytes += n;
      continue;
    }
    size_t n = get_piece_bytes(bytes, copied_bytes);
    CLV_TRY(copy_piece(g, slots[i], (char *)host + copied_bytes, n, err));
    i = (i + 1) % GPU_COPY_SLOTS;
    copied_bytes += n;
    if (progress->report) progress->report(progress->user, copied_bytes);
  }
  return CLV_OK;
}

/* ---- errors of refused values ---------------------------------------------------------------- */

/* The functions make_..._error make the errors of ops that may refuse a value, with the texts of
 * the ops' reference loops. */
static clv_code make_label_error(const clv_gpu_fault *f, clv_err *err) {
  unsigned long long index = (unsigned long long)f->index,
                     per_sample = (unsigned long long)f->per_sample;
  if (per_sample > 1)
    clv_fail(err, CLV_INVALID, "the label of sample %llu, place %llu, is outside 0..%lld",
             index / per_sample, index % per_sample, (long long)f->limit - 1);
  else
    clv_fail(err, CLV_INVALID, "the label of sample %llu is outside 0..%lld", index,
             (long long)f->limit - 1);
  return clv_err_set_offending_value(err, "%lld", (long long)f->int_value);
}

static clv_code make_row_error(const clv_gpu_fault *f, clv_err *err) {
  unsigned long long per_sample = (unsigned long long)CLV_MAX(f->per_sample, 1);
  clv_fail(err, CLV_INVALID, "row number of sample %llu, place %llu, is outside 0..%lld",
           (unsigned long long)f->index / per_sample, (unsigned long long)f->index % per_sample,
           (long long)f->limit - 1);
  return clv_err_set_offending_value(err, "%lld", (long long)f->int_value);
}

/* Makes the error of a refused length. If the length is in 0..limit, it was refused because the
 * packed sequences need more rows than the batch has, which is per_sample here. */
static clv_code make_length_error(const clv_gpu_fault *f, clv_err *err) {
  if (f->int_value >= 0 && f->int_value <= f->limit)
    clv_fail(err, CLV_INVALID, "the lengths up to sample %llu add up to more than %lld rows",
             (unsigned long long)f->index, (long long)f->per_sample);
  else
    clv_fail(err, CLV_INVALID, "the length of sample %llu is outside 0..%lld",
             (unsigned long long)f->index, (long long)f->limit);
  return clv_err_set_offending_value(err, "%lld", (long long)f->int_value);
}

static clv_code make_prediction_error(const clv_gpu_fault *f, clv_err *err) {
  clv_fail(err, CLV_INVALID,
           "bce: prediction %llu is outside 0..1; put a sigmoid before the loss or use "
           "bce_with_logits",
           (unsigned long long)f->index);
  return clv_err_set_offending_value(err, "%g", f->value);
}

static clv_code make_fault_error(const clv_gpu_fault *f, clv_err *err) {
  static const struct {
    clv_op op;
    clv_code (*make_error)(const clv_gpu_fault *f, clv_err *err);
  } rows[] = {
      {CLV_OP_CROSS_ENTROPY, make_label_error}, {CLV_OP_NLL, make_label_error},
      {CLV_OP_EMBEDDING, make_row_error},       {CLV_OP_ATTENTION, make_length_error},
      {CLV_OP_LAST, make_length_error},         {CLV_OP_BCE, make_prediction_error},
      {CLV_OP_DROPOUT, make_length_error},      {CLV_OP_ROTARY, make_length_error},
      {CLV_OP_POSITIONS, make_length_error},    {CLV_OP_FOCAL, make_label_error},
  };
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if ((int32_t)rows[i].op == f->op) return rows[i].make_error(f, err);
  return clv_fail(err, CLV_INTERNAL, "op %d refused value %llu", (int)f->op,
                  (unsigned long long)f->index);
}

static clv_code read_fault(clv_gpu *g, clv_gpu_fault *ret, clv_err *err) {
  CLV_TRY(clv_backend_get(&g->backend, ret, g->fault, sizeof *ret, err));
  if (!ret->is_set) return CLV_OK;
  return g->vendor->fill(g->stream, g->fault, 0, sizeof *g->fault, err);
}

clv_code clv_gpu_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) {
  clv_gpu *g = b->private_data;
  clv_gpu_fault fault = {0};
  *ret_layer = -1;
  if (g->deferred_error.code != CLV_OK) {
    if (err) *err = g->deferred_error;
    clv_code code = g->deferred_error.code;
    g->deferred_error = (clv_err){0};
    return code;
  }
  CLV_TRY(read_fault(g, &fault, err));
  if (!fault.is_set) return CLV_OK;
  *ret_layer = fault.layer;
  return make_fault_error(&fault, err);
}
