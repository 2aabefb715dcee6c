/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes digests of the rows and columns of a tensor for the ledger. A layer of the master may
 * have rows that a worker has received. The rows may be in another order, beside new rows, and each
 * row may be multiplied by another factor, even a negative one. The digests of such rows are still
 * those of the rows that the worker has.
 *
 * clv_weights_sample_add hands all values to clv_row_digests_add. For each row that function keeps
 * 16 sums: the sums of its values times fixed random factors. Of a row with more than 256 values it
 * uses 256 values, evenly spaced. After the last value, the absolute value of each sum is divided
 * by the row's norm and rounded down to cells of a tenth. The digest is made of these cells.
 * Rounding to bf16 or f16 moves a sum by less than a hundredth of a cell, so at least nine of ten
 * rows of a rounded copy keep their digest. By estimate two different rows of eight values have the
 * same cells once in 2^38 pairs, and rows of 32 values once in 2^70.
 *
 * The ledger keeps the 128 smallest digests of the rows of a tensor and of its columns. The choice
 * follows from the digests, so a copy of the rows in another tensor keeps the same digests. A row
 * with fewer than four values that are not 0, or in which few values are much larger than the
 * others, has no digest. Different rows with 4 to 7 values that are not 0 may have the same digest
 * by chance, so four such digests must agree. The last byte of a digest says whether its row has 4
 * to 7 such values.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

enum {
  N_SUMS = 16,
  MAX_POINTS_PER_LINE = 256, /* most values of a row or column from which its digest is made */
  MAX_LINES = 1 << 17,       /* most rows, and most columns, that have digests */
  /* a row with at least this many values other than 0 is recognised by its digest alone; of rows
   * with fewer such values, four digests must agree */
  MIN_LONG_LINE_VALUES = 8,
  MIN_NONZERO_VALUES = 4 /* a row with fewer values other than 0 has no digest */
};
static const double SUM_CELL_SIZE = 0.1;
/* a row with fewer effective values, (sum of squares)^2 / (sum of 4th powers), has no digest */
static const double MIN_EFFECTIVE_VALUES = 2;

/* Sums over the values of one row or column, from which its digest is made. */
typedef struct line_sums {
  double sums[N_SUMS]; /* sums of the values times their random factors */
  /* sums of the squares and of the 4th powers of the values */
  double squares_sum, fourth_powers_sum;
  size_t n; /* number of values that are not 0 */
} line_sums;

/* All rows of a tensor, or all columns. A line is one row or one column. */
typedef struct axis {
  size_t n, length;    /* number of lines; number of values of each line */
  line_sums *lines;    /* [n] sums of the lines; NULL after the last value was added */
  clv_sha256 *digests; /* [n_digests], ascending and distinct */
  size_t n_digests;
} axis;

struct clv_row_digests {
  axis axes[2];   /* [0]: the rows; [1]: the columns */
  size_t n_added; /* number of values added so far */
  clv_code code;  /* first failure to allocate memory or to compute a digest; CLV_OK: none */
};

void clv_row_digests_free(clv_row_digests *d) {
  for (int i = 0; d && i < 2; i++) {
    free(d->axes[i].lines);
    free(d->axes[i].digests);
  }
  free(d);
}

/* ---- sums of a row times random factors ------------------------------------------------------ */

/* random factors by which the values of a line (row or column) are multiplied */
static float random_factors[MAX_POINTS_PER_LINE][N_SUMS];
static pthread_once_t random_factors_once = PTHREAD_ONCE_INIT;

static void make_random_factors(void) {
  const clv_rng_key key = {.seed = 0x726f7773};
  const float bound = sqrtf(3); /* uniform factors from -bound to bound have variance 1 */
  clv_rng_uniform(&key, -bound, bound, &random_factors[0][0], (size_t)MAX_POINTS_PER_LINE * N_SUMS);
}

static size_t count_points(const axis *a) {
  return CLV_MIN(a->length, (size_t)MAX_POINTS_PER_LINE);
}

/* Returns the index of point i in a line (row or column). The points are the values of a line from
 * which its digest is made. */
static size_t point_index(const axis *a, size_t i) {
  return a->length <= MAX_POINTS_PER_LINE ? i : i * a->length / MAX_POINTS_PER_LINE;
}

/* Returns the first point of a line (row or column) whose point_index is `index` or more. */
static size_t find_first_point_from(const axis *a, size_t index) {
  return a->length <= MAX_POINTS_PER_LINE
             ? index
             : (index * MAX_POINTS_PER_LINE + a->length - 1) / a->length;
}

static float load_value(clv_dtype dtype, const char *data, size_t i) {
  uint16_t bf16_bits;
  float float_value;
  if (dtype == CLV_BF16) {
    memcpy(&bf16_bits, data + 2 * i, sizeof bf16_bits);
    float_value = clv_bf16_value(bf16_bits);
  } else {
    memcpy(&float_value, data + 4 * i, sizeof float_value);
  }
  return isfinite(float_value) ? float_value : 0;
}

static void add_value(line_sums *to, size_t point, float value) {
  const double v = (double)value, square = v * v;
  for (int k = 0; k < N_SUMS; k++) to->sums[k] += v * (double)random_factors[point][k];
  to->squares_sum += square;
  to->fourth_powers_sum += square * square;
  to->n += value != 0;
}

/* Adds the values [first, first + n) of a row to the sums of the row and of the columns. */
static void add_row_part(clv_row_digests *d, clv_dtype dtype, size_t row, size_t first,
                         const char *data, size_t n) {
  const axis *rows = &d->axes[0], *columns = &d->axes[1];
  size_t end = first + n, i = find_first_point_from(rows, first), at;
  for (; row < rows->n && i < count_points(rows) && (at = point_index(rows, i)) < end; i++)
    add_value(&rows->lines[row], i, load_value(dtype, data, at - first));
  i = find_first_point_from(columns, row);
  if (i >= count_points(columns) || point_index(columns, i) != row) return;
  for (at = first; at < end && at < columns->n; at++)
    add_value(&columns->lines[at], i, load_value(dtype, data, at - first));
}

/* ---- digests of rows ------------------------------------------------------------------------- */

static int compare_digests(const void *a, const void *b) {
  return memcmp(a, b, sizeof(clv_sha256));
}

size_t clv_row_hash_points(const clv_sha256 *row_hash) {
  return row_hash->bytes[sizeof row_hash->bytes - 1] ? CLV_ROW_MIN_POINTS : 1;
}

/* Computes the digest of a row or column. *ret_has_digest false: the line has no digest, because
 * too few of its values are not 0, or few are much larger than the others. */
static clv_code compute_line_digest(const line_sums *l, clv_sha256 *ret, bool *ret_has_digest,
                                    clv_err *err) {
  struct {
    char kind[8];
    int32_t cell[N_SUMS];
  } of = {.kind = "row"};
  *ret_has_digest = l->n >= MIN_NONZERO_VALUES &&
                    l->squares_sum * l->squares_sum >= MIN_EFFECTIVE_VALUES * l->fourth_powers_sum;
  if (!*ret_has_digest) return CLV_OK;
  for (int k = 0; k < N_SUMS; k++)
    of.cell[k] = (int32_t)(fabs(l->sums[k]) / sqrt(l->squares_sum) / SUM_CELL_SIZE);
  CLV_TRY(clv_sha256_of(&of, sizeof of, ret, err));
  ret->bytes[sizeof ret->bytes - 1] = l->n >= MIN_LONG_LINE_VALUES;
  return CLV_OK;
}

/* Makes the digests of all lines (rows or columns) and keeps the max_digests smallest ones. */
static clv_code make_digests(axis *a, size_t max_digests, clv_err *err) {
  size_t n = 0, n_distinct = 0;
  bool has_digest;
  CLV_TRY(clv_alloc(a->n, sizeof *a->digests, &a->digests, err));
  for (size_t i = 0; i < a->n; i++) {
    CLV_TRY(compute_line_digest(&a->lines[i], &a->digests[n], &has_digest, err));
    n += has_digest;
  }
  if (n) qsort(a->digests, n, sizeof *a->digests, compare_digests);
  for (size_t i = 0; i < n && n_distinct < max_digests; i++)
    if (!n_distinct || compare_digests(&a->digests[n_distinct - 1], &a->digests[i]) != 0)
      a->digests[n_distinct++] = a->digests[i];
  a->n_digests = n_distinct;
  free(a->lines);
  a->lines = NULL;
  clv_sha256 *shrunk = realloc(a->digests, CLV_MAX(n_distinct, (size_t)1) * sizeof *shrunk);
  if (shrunk) a->digests = shrunk;
  return CLV_OK;
}

static clv_code begin_digests(const clv_weights_sample *s, clv_row_digests **ret, clv_err *err) {
  size_t rows = (size_t)s->shape.dim[0], columns = s->n_values / rows;
  pthread_once(&random_factors_once, make_random_factors);
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->axes[0] = (axis){.n = CLV_MIN(rows, (size_t)MAX_LINES), .length = columns};
  (*ret)->axes[1] = (axis){.n = CLV_MIN(columns, (size_t)MAX_LINES), .length = rows};
  for (int i = 0; i < 2; i++) {
    axis *a = &(*ret)->axes[i];
    CLV_TRY(clv_alloc(a->n, sizeof *a->lines, &a->lines, err));
  }
  return CLV_OK;
}

void clv_row_digests_add(clv_weights_sample *s, uint64_t offset, const void *data, size_t len) {
  size_t size = clv_dtype_size(s->dtype), at = (size_t)(offset / size), n = len / size;
  clv_err ignored;
  /* a call with part of a value, or with bytes past the end, adds nothing, so the sample never
   * becomes complete and gets no digests */
  if (offset % size || at + n > s->n_values) return;
  if (!s->row_digests && begin_digests(s, &s->row_digests, &ignored) != CLV_OK && s->row_digests)
    s->row_digests->code = CLV_EXHAUSTED;
  clv_row_digests *d = s->row_digests;
  if (!d || d->code != CLV_OK || d->n_added >= s->n_values) return;
  for (size_t i = 0, length = d->axes[0].length, part; i < n; i += part) {
    size_t first = (at + i) % length;
    part = CLV_MIN(n - i, length - first);
    add_row_part(d, s->dtype, (at + i) / length, first, (const char *)data + i * size, part);
  }
  d->n_added += n;
  for (int i = 0; d->n_added == s->n_values && d->code == CLV_OK && i < 2; i++)
    d->code = make_digests(&d->axes[i], s->max_row_digests, &ignored);
}

clv_code clv_weights_sample_row_hashes(const clv_weights_sample *s, bool is_by_column,
                                       clv_row_hashes *ret, clv_err *err) {
  const clv_row_digests *d = s->row_digests;
  *ret = (clv_row_hashes){0};
  if (d && d->code != CLV_OK) return clv_fail(err, d->code, "no digests of rows: out of memory");
  if (!d || d->n_added != s->n_values) return CLV_OK;
  const axis *a = &d->axes[is_by_column];
  *ret = (clv_row_hashes){a->digests, a->n_digests};
  return CLV_OK;
}

void clv_weights_sample_done(clv_weights_sample *s) {
  if (!s) return;
  clv_row_digests_free(s->row_digests);
  s->row_digests = NULL;
}
