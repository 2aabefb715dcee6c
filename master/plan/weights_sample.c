/* SPDX-License-Identifier: Apache-2.0
 *
 * A digest that names the values of a tensor for the ledger. It takes at most 4,096 values from all
 * over the tensor, so that weights of any size are named at once. It rounds them to bf16, so that a
 * copy in that type has the same name. Two tensors of the same shape with equal samples count as
 * one: what the ledger says of them errs to the safe side.
 *
 * A form names the values of a sample whatever their order and unit: times a number, rounded to
 * bf16, and of at most 4,096 values transposed or with other rows first, they have the same one. It
 * is means of cosines and sines of the values, which are bounded, and so move little where values
 * are rounded. Cells of a third of the deviation that such a mean has from one drawing of weights
 * to another tell drawings apart: with eight means one pair in some 10^7 counts as one.
 */
#include <math.h>
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

/* ---- forms ----------------------------------------------------------------------------------- */

enum { LEAST_VALUES = 16 };
/* Of values whose mean square is 1. CELL, NEAR: times the root of how many values there are. */
static const double FREQUENCY = 1.5, CELL = 0.2, NEAR = 0.2;

static double value_at(const clv_weights_sample *s, size_t i) {
  float wide;
  uint16_t half;
  memcpy(&wide, s->values + 4 * i, s->dtype == CLV_BF16 ? 0 : sizeof wide);
  memcpy(&half, s->values + 2 * i, s->dtype == CLV_BF16 ? sizeof half : 0);
  return (double)(s->dtype == CLV_BF16 ? clv_bf16_value(half) : wide);
}

/* Where all values are negated, sines are too: they count without their sign. */
bool clv_sample_form(const clv_weights_sample *s, clv_weights_form *ret) {
  size_t n = s->parts * s->part;
  double squares = 0, scale;
  *ret = (clv_weights_form){.count = s->count};
  for (size_t i = 0; i < n; i++) squares += value_at(s, i) * value_at(s, i);
  scale = sqrt(squares / (double)CLV_MAX(n, (size_t)1));
  if (n < LEAST_VALUES || scale <= 0 || !isfinite(scale)) return false;
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < CLV_FORM_MEANS; k++) {
      double angle = FREQUENCY * (k / 2 + 1) * value_at(s, i) / scale;
      ret->mean[k] += k % 2 ? sin(angle) : cos(angle);
    }
  for (int k = 0; k < CLV_FORM_MEANS; k++)
    ret->mean[k] = (k % 2 ? fabs(ret->mean[k]) : ret->mean[k]) / (CELL * sqrt((double)n));
  return true;
}

clv_code clv_form_digest(const clv_weights_form *f, unsigned beside, clv_sha256 *ret,
                         bool *ret_near, clv_err *err) {
  struct {
    char kind[8];
    uint64_t count;
    int64_t cell[CLV_FORM_MEANS];
  } of = {.kind = "form", .count = f->count};
  *ret_near = true;
  for (int k = 0; k < CLV_FORM_MEANS; k++) {
    double cell = floor(f->mean[k]), within = f->mean[k] - cell;
    int64_t step = within < NEAR ? -1 : within > 1 - NEAR ? 1 : 0;
    of.cell[k] = (int64_t)cell + (beside >> k & 1 ? step : 0);
    *ret_near &= step || !(beside >> k & 1);
  }
  return clv_sha256_of(&of, sizeof of, ret, err);
}

clv_code clv_sample_names(const clv_weights_sample *s, clv_sha256 ret[CLV_SAMPLE_NAMES],
                          size_t *ret_n, clv_err *err) {
  clv_weights_form f;
  bool near;
  *ret_n = 1;
  CLV_TRY(clv_sample_digest(s, &ret[0], err));
  if (!clv_sample_form(s, &f)) return CLV_OK;
  *ret_n = 2;
  return clv_form_digest(&f, 0, &ret[1], &near, err);
}
