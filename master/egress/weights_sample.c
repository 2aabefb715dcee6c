/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes digests, by which the ledger recognises the values of a tensor. A sample has at most
 * 4,096 values from all over the tensor, so that the digest of weights of any size takes about the
 * same time. The values are rounded to bf16, so that a copy in bf16 has the same digest. Two
 * tensors of the same shape with equal samples count as the same tensor, so at worst the ledger
 * reports a worker that does not know the tensor.
 *
 * Moments (clv_weights_moments) recognise values in any order and unit: values times a factor, or
 * rounded to bf16, have the same moments. The moments of a sample are means of cosines and sines of
 * its values. Cosines and sines are bounded, so rounding changes the means little. A tensor with
 * more values than a sample also has moments of all values, which do not change if the tensor is
 * transposed or its rows are reordered. A tensor with at most 4,096 values is its own sample, so
 * its moments do not change then, either. The moments of all values are made of the sums
 *
 *   z_k = sum of |v|^(i * k * w)   and   s_k = sum of sign(v) * |v|^(i * k * w),   k = 1, 2, 3,
 *
 * in one pass and in any order. A factor on the values turns z_1 by an angle, and z_2 and z_3 by
 * two and three times that angle. The moments are these sums after z_1 is rotated back to be real.
 *
 * The means are rounded down to cells. The width of a cell is a third of the deviation that such a
 * mean has between two random draws of weights. With eight means, about one pair of draws in 10^7
 * has the same cells. Rounding values twice makes a sum smaller, by up to 3 * 10^-5 times the
 * number of values. So a cell is at least 10^-4 times the number of values wide. Above 4 million
 * values this makes cells wider, and more pairs of draws have the same cells.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "master/egress/egress_int.h"

bool clv_weights_sample_begin(clv_weights_sample *s, clv_dtype dtype, const clv_shape *shape) {
  size_t n;
  clv_err ignored;
  if (shape->rank < 2 || (dtype != CLV_F32 && dtype != CLV_BF16)) return false;
  if (clv_shape_numel(shape, &n, &ignored) != CLV_OK || !n) return false;
  bool takes_all_values = n <= CLV_SAMPLE_PARTS * CLV_SAMPLE_PART_LEN;
  s->dtype = dtype;
  s->shape = *shape;
  s->n_values = n;
  s->n_parts = takes_all_values ? 1 : CLV_SAMPLE_PARTS;
  s->part_len = takes_all_values ? n : CLV_SAMPLE_PART_LEN;
  s->value_sums = (clv_value_sums){0};
  s->row_digests = NULL;
  s->max_row_digests = CLV_MAX_LEDGER_ROWS_PER_TENSOR;
  return true;
}

/* Returns the index in the tensor of the first value of a part of the sample. */
static size_t part_begin_index(const clv_weights_sample *s, size_t part) {
  return s->n_parts == 1 ? 0 : part * (s->n_values - s->part_len) / (s->n_parts - 1);
}

static void *part_values(clv_weights_sample *s, size_t part) {
  return s->values + part * s->part_len * clv_dtype_size(s->dtype);
}

/* ---- sums over all values of a tensor -------------------------------------------------------- */

/* the number w in the sums z_k and s_k, which the head of this file defines */
static const double LOG_FREQUENCY = 1.4;
enum { N_MAGNITUDES = 1 << 15 };

/* |v|^(i * w) for each value v of bf16; 0 for 0 and for values that are not finite. All values are
 * rounded to bf16 before they are summed, so that a rounded copy has the same sums as its
 * original. */
static double complex_powers[N_MAGNITUDES][2];
static pthread_once_t complex_powers_once = PTHREAD_ONCE_INIT;

static void make_complex_powers(void) {
  for (uint16_t i = 0; i < N_MAGNITUDES; i++) {
    float v = clv_bf16_value(i);
    if (!isnormal(v)) continue;
    complex_powers[i][0] = cos(LOG_FREQUENCY * log((double)v));
    complex_powers[i][1] = sin(LOG_FREQUENCY * log((double)v));
  }
}

static void add_to_sums(clv_value_sums *s, uint16_t bf16_bits) {
  const double *of = complex_powers[bf16_bits & (N_MAGNITUDES - 1)],
               sign = bf16_bits & N_MAGNITUDES ? -1 : 1;
  double re = of[0], im = of[1], re2 = re * re - im * im, im2 = 2 * re * im;
  const double z[CLV_N_SPREAD_SUMS] = {re, im, re2, im2, re2 * re - im2 * im, re2 * im + im2 * re};
  for (int k = 0; k < CLV_N_SPREAD_SUMS; k++) s->unsigned_sums[k] += z[k];
  for (int k = 0; k < CLV_N_SPREAD_SUMS; k++) s->signed_sums[k] += sign * z[k];
}

static void add_all_to_sums(clv_weights_sample *s, const char *data, size_t n) {
  clv_value_sums sums = s->value_sums;
  pthread_once(&complex_powers_once, make_complex_powers);
  for (size_t i = 0; i < n; i++) {
    float float_value;
    uint16_t bf16_bits;
    memcpy(&bf16_bits, data + 2 * i, sizeof bf16_bits);
    if (s->dtype == CLV_F32) {
      memcpy(&float_value, data + 4 * i, sizeof float_value);
      bf16_bits = clv_bf16_of(float_value);
    }
    add_to_sums(&sums, bf16_bits);
  }
  sums.n += n;
  s->value_sums = sums;
}

/* True if all values of the tensor were added. If a chunk ends within a value, the values are not
 * counted in full, so the tensor has no moments of all values. */
static bool has_all_values(const clv_weights_sample *s) {
  return s->n_parts > 1 && s->value_sums.n == s->n_values;
}

void clv_weights_sample_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len) {
  size_t size = clv_dtype_size(s->dtype);
  if (s->n_parts > 1 && offset % size == 0) add_all_to_sums(s, data, len / size);
  clv_row_digests_add(s, offset, data, len);
  for (size_t i = 0; i < s->n_parts; i++) {
    uint64_t begin = (uint64_t)part_begin_index(s, i) * size, end = begin + s->part_len * size;
    uint64_t from = CLV_MAX(begin, offset), to = CLV_MIN(end, offset + len);
    if (from >= to) continue;
    memcpy((char *)part_values(s, i) + (from - begin), (const char *)data + (from - offset),
           (size_t)(to - from));
  }
}

clv_code clv_weights_sample_digest(const clv_weights_sample *s, clv_sha256 *ret, clv_err *err) {
  struct {
    int64_t rank, dim[CLV_MAX_RANK];
    uint16_t value[CLV_SAMPLE_PARTS * CLV_SAMPLE_PART_LEN];
  } of;
  memset(&of, 0, sizeof of);
  of.rank = s->shape.rank;
  memcpy(of.dim, s->shape.dim, (size_t)s->shape.rank * sizeof *of.dim);
  for (size_t i = 0; i < s->n_parts * s->part_len; i++) {
    float float_value;
    if (s->dtype == CLV_BF16) {
      memcpy(&of.value[i], s->values + 2 * i, sizeof of.value[i]);
      continue;
    }
    memcpy(&float_value, s->values + 4 * i, sizeof float_value);
    of.value[i] = clv_bf16_of(float_value);
  }
  return clv_sha256_of(&of, sizeof of, ret, err);
}

/* ---- moments of the sample ------------------------------------------------------------------- */

enum { MIN_SAMPLED_VALUES = 16 };
/* LOWEST_FREQUENCY: lowest of the four frequencies of the cosines and sines; the values are first
 * scaled to mean square 1. MEAN_CELL_SIZE: width of the cells to which moments are rounded down, to
 * be multiplied by the square root of the number of values. NEAR_CELL_SHARE: a moment that is less
 * than this share of a cell away from a neighbouring cell may count in that cell. */
static const double LOWEST_FREQUENCY = 1.5, MEAN_CELL_SIZE = 0.2, NEAR_CELL_SHARE = 0.2;
/* least width of the cells for the moments of all values, divided by the number of values */
static const double MIN_MEAN_CELL_SIZE = 1e-4;

static double load_sampled_value(const clv_weights_sample *s, size_t i) {
  float float_value;
  uint16_t bf16_bits;
  memcpy(&float_value, s->values + 4 * i, s->dtype == CLV_BF16 ? 0 : sizeof float_value);
  memcpy(&bf16_bits, s->values + 2 * i, s->dtype == CLV_BF16 ? sizeof bf16_bits : 0);
  return (double)(s->dtype == CLV_BF16 ? clv_bf16_value(bf16_bits) : float_value);
}

/* Computes the moments of the sample: sums of cosines and of sines of its values, at four
 * frequencies. Negating all values negates the sums of sines, so their absolute values are taken: a
 * tensor and its negative have the same moments. */
static bool compute_sample_moments(const clv_weights_sample *s, clv_weights_moments *ret) {
  size_t n = s->n_parts * s->part_len;
  double squares_sum = 0, scale;
  *ret = (clv_weights_moments){.kind = "form", .n_values = s->n_values};
  for (size_t i = 0; i < n; i++) squares_sum += load_sampled_value(s, i) * load_sampled_value(s, i);
  scale = sqrt(squares_sum / (double)CLV_MAX(n, (size_t)1));
  if (n < MIN_SAMPLED_VALUES || scale <= 0 || !isfinite(scale)) return false;
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < CLV_N_SPREAD_MEANS; k++) {
      double angle = LOWEST_FREQUENCY * (k / 2 + 1) * load_sampled_value(s, i) / scale;
      ret->means[k] += k % 2 ? sin(angle) : cos(angle);
    }
  for (int k = 0; k < CLV_N_SPREAD_MEANS; k++)
    ret->means[k] =
        (k % 2 ? fabs(ret->means[k]) : ret->means[k]) / (MEAN_CELL_SIZE * sqrt((double)n));
  return true;
}

/* Rotates z_k, the sum of |v|^(i * k * w) over all values v, back by k times the angle of z_1, so
 * that a factor on the values makes no difference. */
static void rotate_back(const double *z, int k, double angle, double ret[2]) {
  double c = cos(k * angle), s = sin(k * angle);
  ret[0] = z[2 * k - 2] * c + z[2 * k - 1] * s;
  ret[1] = z[2 * k - 1] * c - z[2 * k - 2] * s;
}

/* Replaces hypot, whose results differ between glibc 2.34, with which the Python wheel runs, and
 * 2.35. The squares of these sums do not overflow. */
static double vector_length(double x, double y) { return sqrt(x * x + y * y); }

static bool compute_full_moments(const clv_weights_sample *s, clv_weights_moments *ret) {
  const double *z = s->value_sums.unsigned_sums, *sign = s->value_sums.signed_sums,
               angle = atan2(z[1], z[0]);
  double cell_width =
      fmax(MEAN_CELL_SIZE * sqrt((double)s->n_values), MIN_MEAN_CELL_SIZE * (double)s->n_values);
  *ret = (clv_weights_moments){
      .kind = "spread", .n_values = s->n_values, .means = {vector_length(z[0], z[1])}};
  if (!has_all_values(s) || ret->means[0] <= 0) return false;
  rotate_back(z, 2, angle, &ret->means[1]);
  rotate_back(z, 3, angle, &ret->means[3]);
  for (int k = 0; k < 3; k++) ret->means[5 + k] = vector_length(sign[2 * k], sign[2 * k + 1]);
  for (int k = 0; k < CLV_N_SPREAD_MEANS; k++) ret->means[k] /= cell_width;
  return true;
}

bool clv_weights_sample_moments(const clv_weights_sample *s, bool uses_all_values,
                                clv_weights_moments *ret) {
  return uses_all_values ? compute_full_moments(s, ret) : compute_sample_moments(s, ret);
}

clv_code clv_weights_moments_digest(const clv_weights_moments *f, unsigned neighbour_bits,
                                    clv_sha256 *ret, bool *ret_is_near, clv_err *err) {
  struct {
    char kind[8];
    uint64_t count;
    int64_t cell[CLV_N_SPREAD_MEANS];
  } of = {.count = f->n_values};
  memcpy(of.kind, f->kind, sizeof of.kind);
  *ret_is_near = true;
  for (int k = 0; k < CLV_N_SPREAD_MEANS; k++) {
    double cell = floor(f->means[k]), fraction = f->means[k] - cell;
    int64_t step = fraction < NEAR_CELL_SHARE ? -1 : fraction > 1 - NEAR_CELL_SHARE ? 1 : 0;
    of.cell[k] = (int64_t)cell + (neighbour_bits >> k & 1 ? step : 0);
    *ret_is_near &= step || !(neighbour_bits >> k & 1);
  }
  return clv_sha256_of(&of, sizeof of, ret, err);
}

clv_code clv_weights_sample_hashes(const clv_weights_sample *s,
                                   clv_sha256 ret[CLV_SAMPLE_MAX_HASHES], size_t *ret_n,
                                   clv_err *err) {
  clv_weights_moments f;
  bool is_near;
  *ret_n = 1;
  CLV_TRY(clv_weights_sample_digest(s, &ret[0], err));
  for (int uses_all_values = 0; uses_all_values < 2; uses_all_values++)
    if (clv_weights_sample_moments(s, uses_all_values, &f))
      CLV_TRY(clv_weights_moments_digest(&f, 0, &ret[(*ret_n)++], &is_near, err));
  return CLV_OK;
}
