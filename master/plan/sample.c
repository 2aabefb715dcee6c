/* SPDX-License-Identifier: Apache-2.0
 *
 * A digest that names the values of a tensor for the ledger. It takes at most 4,096 values from all
 * over the tensor, so that weights of any size are named at once. It rounds them to bf16, so that a
 * copy in that type has the same name. Two tensors of the same shape with equal samples count as
 * one: what the ledger says of them errs to the safe side.
 */
#include <string.h>

#include "master/plan/plan_int.h"

bool clv_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape) {
  size_t n;
  clv_err ignored;
  if (shape->rank < 2 || (dtype != CLV_F32 && dtype != CLV_BF16)) return false;
  if (clv_shape_numel(shape, &n, &ignored) != CLV_OK || !n) return false;
  bool whole = n <= CLV_SAMPLE_PARTS * CLV_SAMPLE_PART;
  s->dtype = dtype;
  s->shape = *shape;
  s->count = n;
  s->parts = whole ? 1 : CLV_SAMPLE_PARTS;
  s->part = whole ? n : CLV_SAMPLE_PART;
  return true;
}

size_t clv_sample_first(const clv_weights_sample *s, size_t part) {
  return s->parts == 1 ? 0 : part * (s->count - s->part) / (s->parts - 1);
}

void *clv_sample_room(clv_weights_sample *s, size_t part) {
  return s->values + part * s->part * clv_dtype_size(s->dtype);
}

void clv_sample_take(clv_weights_sample *s, uint64_t offset, const void *data, size_t len) {
  size_t size = clv_dtype_size(s->dtype);
  for (size_t i = 0; i < s->parts; i++) {
    uint64_t begin = (uint64_t)clv_sample_first(s, i) * size, end = begin + s->part * size;
    uint64_t from = CLV_MAX(begin, offset), to = CLV_MIN(end, offset + len);
    if (from >= to) continue;
    memcpy((char *)clv_sample_room(s, i) + (from - begin), (const char *)data + (from - offset),
           (size_t)(to - from));
  }
}

clv_code clv_sample_digest(const clv_weights_sample *s, clv_sha256 *ret, clv_err *err) {
  struct {
    int64_t rank, dim[CLV_MAX_RANK];
    uint16_t value[CLV_SAMPLE_PARTS * CLV_SAMPLE_PART];
  } of;
  memset(&of, 0, sizeof of);
  of.rank = s->shape.rank;
  memcpy(of.dim, s->shape.dim, (size_t)s->shape.rank * sizeof *of.dim);
  for (size_t i = 0; i < s->parts * s->part; i++) {
    float wide;
    if (s->dtype == CLV_BF16) {
      memcpy(&of.value[i], s->values + 2 * i, sizeof of.value[i]);
      continue;
    }
    memcpy(&wide, s->values + 4 * i, sizeof wide);
    of.value[i] = clv_bf16_of(wide);
  }
  return clv_sha256_of(&of, sizeof of, ret, err);
}
