/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests that name the values of a tensor for the ledger. A sample has at most 4,096 values from
 * all over the tensor, so that weights of any size are named in about the same time. It rounds them
 * to bf16, so that a copy in that type has the same name. Two tensors of the same shape with equal
 * samples count as one, so the ledger errs on the safe side.
 *
 * Moments (clv_weights_moments) name values whatever their order and unit: values times a factor,
 * or rounded to bf16, have the same moments. Those of a sample are means of cosines and sines of
 * its values. These are bounded, so rounding changes them little. If the tensor has more values
 * than a sample, it also has moments of all values. They do not change if the tensor is transposed
 * or its rows are reordered, and neither do those of a tensor with at most 4,096 values. They are
 * made of the sums
 *
 *   z_k = sum of |v|^(i k w)   and   s_k = sum of sign(v) |v|^(i k w),   k = 1, 2, 3,
 *
 * in one pass and in any order. A factor turns z_k by an angle, and z_2 and z_3 by two and three
 * times the angle of z_1. The moments are these sums after z_1 is rotated back to be real.
 *
 * The means are rounded down to cells of a third of the deviation that such a mean has between two
 * draws of weights. With eight means, one pair of draws in some 10^7 has the same cells. Rounding
 * values twice makes sums smaller, by up to 3 * 10^-5 of the count. So cells are at least 10^-4 of
 * the count, and above 4 million values more pairs count as one.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "master/plan/plan_int.h"

bool clv_weights_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape) {
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
  s->spread = (clv_weights_spread){0};
  s->rows = NULL;
  s->max_rows = CLV_ROW_MAX_KEPT;
  return true;
}

/* Returns the index of the first value of a part. */
static size_t first_value_of_part(const clv_weights_sample *s, size_t part) {
  return s->parts == 1 ? 0 : part * (s->count - s->part) / (s->parts - 1);
}

static void *part_address(clv_weights_sample *s, size_t part) {
  return s->values + part * s->part * clv_dtype_size(s->dtype);
}

/* ---- all values ------------------------------------------------------------------------------ */

static const double TURN = 1.4; /* the w of the sums at the head of this file */
enum { MAGNITUDES = 1 << 15 };

/* |v|^(i w) for each value v of bf16; 0 for 0 and for values that are not finite. All values are
 * rounded to bf16 before they are summed, so that a rounded copy has the same sums as its
 * original. */
static double powers[MAGNITUDES][2];
static pthread_once_t powers_once = PTHREAD_ONCE_INIT;

static void make_powers(void) {
  for (uint16_t i = 0; i < MAGNITUDES; i++) {
    float v = clv_bf16_value(i);
    if (!isnormal(v)) continue;
    powers[i][0] = cos(TURN * log((double)v));
    powers[i][1] = sin(TURN * log((double)v));
  }
}

static void add_to_spread(clv_weights_spread *s, uint16_t half) {
  const double *of = powers[half & (MAGNITUDES - 1)], sign = half & MAGNITUDES ? -1 : 1;
  double re = of[0], im = of[1], re2 = re * re - im * im, im2 = 2 * re * im;
  const double z[CLV_SPREAD_SUMS] = {re, im, re2, im2, re2 * re - im2 * im, re2 * im + im2 * re};
  for (int k = 0; k < CLV_SPREAD_SUMS; k++) s->all[k] += z[k];
  for (int k = 0; k < CLV_SPREAD_SUMS; k++) s->by_sign[k] += sign * z[k];
}

static void add_all_to_spread(clv_weights_sample *s, const char *data, size_t n) {
  clv_weights_spread spread = s->spread;
  pthread_once(&powers_once, make_powers);
  for (size_t i = 0; i < n; i++) {
    float wide;
    uint16_t half;
    memcpy(&half, data + 2 * i, sizeof half);
    if (s->dtype == CLV_F32) {
      memcpy(&wide, data + 4 * i, sizeof wide);
      half = clv_bf16_of(wide);
    }
    add_to_spread(&spread, half);
  }
  spread.n += n;
  s->spread = spread;
}

/* True if all values of the tensor were added. If a chunk ends within a value, the values are not
 * counted in full, so the tensor has no moments of all values. */
static bool has_all_values(const clv_weights_sample *s) {
  return s->parts > 1 && s->spread.n == s->count;
}

void clv_weights_sample_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len) {
  size_t size = clv_dtype_size(s->dtype);
  if (s->parts > 1 && offset % size == 0) add_all_to_spread(s, data, len / size);
  clv_row_digests_add(s, offset, data, len);
  for (size_t i = 0; i < s->parts; i++) {
    uint64_t begin = (uint64_t)first_value_of_part(s, i) * size, end = begin + s->part * size;
    uint64_t from = CLV_MAX(begin, offset), to = CLV_MIN(end, offset + len);
    if (from >= to) continue;
    memcpy((char *)part_address(s, i) + (from - begin), (const char *)data + (from - offset),
           (size_t)(to - from));
  }
}

clv_code clv_weights_sample_digest(const clv_weights_sample *s, clv_sha256 *ret, clv_err *err) {
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
/* FREQUENCY: lowest of the four frequencies of cosines and sines, of values with mean square 1.
 * CELL: width of the cells to which moments are rounded down, multiplied by the square root of the
 * number of values. NEAR: part of a cell; a moment so near to the next cell may count there. */
static const double FREQUENCY = 1.5, CELL = 0.2, NEAR = 0.2;
static const double LEAST_CELL = 1e-4; /* least width of a cell, multiplied by number of values */

static double value_at(const clv_weights_sample *s, size_t i) {
  float wide;
  uint16_t half;
  memcpy(&wide, s->values + 4 * i, s->dtype == CLV_BF16 ? 0 : sizeof wide);
  memcpy(&half, s->values + 2 * i, s->dtype == CLV_BF16 ? sizeof half : 0);
  return (double)(s->dtype == CLV_BF16 ? clv_bf16_value(half) : wide);
}

/* Computes the moments of the sample: sums of cosines and of sines of its values, at four
 * frequencies. Negating all values negates the sums of sines, so their absolute values are taken: a
 * tensor and its negative have the same moments. */
static bool compute_sample_moments(const clv_weights_sample *s, clv_weights_moments *ret) {
  size_t n = s->parts * s->part;
  double squares = 0, scale;
  *ret = (clv_weights_moments){.kind = "form", .count = s->count};
  for (size_t i = 0; i < n; i++) squares += value_at(s, i) * value_at(s, i);
  scale = sqrt(squares / (double)CLV_MAX(n, (size_t)1));
  if (n < LEAST_VALUES || scale <= 0 || !isfinite(scale)) return false;
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < CLV_SPREAD_MEANS; k++) {
      double angle = FREQUENCY * (k / 2 + 1) * value_at(s, i) / scale;
      ret->mean[k] += k % 2 ? sin(angle) : cos(angle);
    }
  for (int k = 0; k < CLV_SPREAD_MEANS; k++)
    ret->mean[k] = (k % 2 ? fabs(ret->mean[k]) : ret->mean[k]) / (CELL * sqrt((double)n));
  return true;
}

/* Rotates z_k back by k times the angle of z_1. */
static void rotate_back(const double *z, int k, double angle, double ret[2]) {
  double c = cos(k * angle), s = sin(k * angle);
  ret[0] = z[2 * k - 2] * c + z[2 * k - 1] * s;
  ret[1] = z[2 * k - 1] * c - z[2 * k - 2] * s;
}

static bool compute_full_moments(const clv_weights_sample *s, clv_weights_moments *ret) {
  const double *z = s->spread.all, *sign = s->spread.by_sign, angle = atan2(z[1], z[0]);
  double cell = fmax(CELL * sqrt((double)s->count), LEAST_CELL * (double)s->count);
  *ret = (clv_weights_moments){.kind = "spread", .count = s->count, .mean = {hypot(z[0], z[1])}};
  if (!has_all_values(s) || ret->mean[0] <= 0) return false;
  rotate_back(z, 2, angle, &ret->mean[1]);
  rotate_back(z, 3, angle, &ret->mean[3]);
  for (int k = 0; k < 3; k++) ret->mean[5 + k] = hypot(sign[2 * k], sign[2 * k + 1]);
  for (int k = 0; k < CLV_SPREAD_MEANS; k++) ret->mean[k] /= cell;
  return true;
}

bool clv_weights_sample_moments(const clv_weights_sample *s, bool all, clv_weights_moments *ret) {
  return all ? compute_full_moments(s, ret) : compute_sample_moments(s, ret);
}

clv_code clv_weights_moments_digest(const clv_weights_moments *f, unsigned beside, clv_sha256 *ret,
                                    bool *ret_near, clv_err *err) {
  struct {
    char kind[8];
    uint64_t count;
    int64_t cell[CLV_SPREAD_MEANS];
  } of = {.count = f->count};
  memcpy(of.kind, f->kind, sizeof of.kind);
  *ret_near = true;
  for (int k = 0; k < CLV_SPREAD_MEANS; k++) {
    double cell = floor(f->mean[k]), within = f->mean[k] - cell;
    int64_t step = within < NEAR ? -1 : within > 1 - NEAR ? 1 : 0;
    of.cell[k] = (int64_t)cell + (beside >> k & 1 ? step : 0);
    *ret_near &= step || !(beside >> k & 1);
  }
  return clv_sha256_of(&of, sizeof of, ret, err);
}

clv_code clv_weights_sample_names(const clv_weights_sample *s, clv_sha256 ret[CLV_SAMPLE_NAMES],
                                  size_t *ret_n, clv_err *err) {
  clv_weights_moments f;
  bool near;
  *ret_n = 1;
  CLV_TRY(clv_weights_sample_digest(s, &ret[0], err));
  for (int all = 0; all < 2; all++)
    if (clv_weights_sample_moments(s, all, &f))
      CLV_TRY(clv_weights_moments_digest(&f, 0, &ret[(*ret_n)++], &near, err));
  return CLV_OK;
}
