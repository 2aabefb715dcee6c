/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds secret weights that are in fact public, because each row follows from a few numbers:
 * well-known transforms such as Hadamard or cosine. A factor on a row, or another order of the
 * rows, makes no difference. plain_values.c calls clv_public_row_test_add with the values of a
 * secret file, then clv_public_row_test_is_public.
 *
 * Three rules count how few numbers a row needs. The zeros at its ends do not count:
 *
 * - A row whose values are powers of one ratio needs 2: a constant, alternating signs, a running
 *   sum or mean (its support), a difference of neighbours, a decay.
 * - A wave of any frequency and phase needs 3: a row of a cosine, sine, Fourier or Hartley
 *   transform. For each lag s the values v obey v[j + s] + v[j - s] = c v[j] with one number c. The
 *   lags 1, 2, n/4 and n/3 are tested. The large lags are needed because neighbours in any smooth
 *   row nearly satisfy the equation. The first and the last value are left out, because transforms
 *   weight them differently.
 * - A row that, read as a matrix, is the product of a column p and a row q needs as many numbers as
 *   p and q together, less one: Walsh functions (Hadamard and Haar) and transforms of two
 *   dimensions. In this rule zeros at the ends may be part of the matrix.
 *
 * Rows whose values all have the same absolute value are public as well if eight of them are
 * orthogonal: rows of a Hadamard matrix, with its columns in any order.
 *
 * A row is simple if it needs few numbers. Its length is counted without the zeros at its ends:
 *
 * - 8 values or more: at most max(4, min(length / 3, 3 + log2(length))) numbers, and at most half
 *   as many as it has values that are not 0;
 * - 4 to 7 values: at most 3 numbers;
 * - 1 to 3 values: at most 2 numbers.
 *
 * The tensor is public in three cases: two rows of 8 values or more are simple (or its only row
 * is); at least 3 rows, and half of the rows that are not 0, are simple; at least 3 columns of 8
 * values or more, and half of the columns that are not 0, are simple, because each column may have
 * been multiplied by a factor. A worker that has the outputs of a public tensor knows which sums of
 * the record they are.
 */
#include <math.h>
#include <stdlib.h>

#include "master/egress/egress_int.h"

enum {
  MAX_ROW_VALUES = 4096, /* most values of a row that are examined: the first ones */
  MAX_COLUMNS = 64,      /* most columns that are examined: the first ones */
  /* fewest values of a long row; a long row is hardly ever simple by chance, so a few such rows
   * (MIN_SIMPLE_LONG_ROWS, or MIN_SIMPLE_ROWS columns) make a tensor public */
  MIN_LONG_ROW_VALUES = 8,
  MIN_ROW_VALUES = 4, /* fewest values of a row that is examined; every shorter row is simple */
  /* number of simple (made from few numbers) long rows that makes a tensor public */
  MIN_SIMPLE_LONG_ROWS = 2,
  /* number of orthogonal rows that makes a tensor public, if the values in each row differ only in
   * sign */
  MIN_SIGN_ROWS = 8,
  /* fewest simple rows, or long simple columns, that make a tensor public if at least half of all
   * rows, or columns, are simple */
  MIN_SIMPLE_ROWS = 3
};
/* A row counts as simple if its distance to the row that a few numbers give is at most this share
 * of the row's norm. SHORT_ROW_TOLERANCE: for rows of fewer than MIN_LONG_ROW_VALUES values. */
static const double LONG_ROW_TOLERANCE = 0.05, SHORT_ROW_TOLERANCE = 0.005;

/* ---- how few numbers a row needs ------------------------------------------------------------- */

/* True if a list x is c times a list y for one number c, except for a rest of at most `tolerance`
 * times the norm of x. x_squares, y_squares, dot: sums of x^2, of y^2 and of x * y. */
static bool is_multiple(double x_squares, double y_squares, double dot, double tolerance) {
  double remainder = y_squares > 0 ? x_squares - dot * dot / y_squares : x_squares;
  return remainder <= tolerance * tolerance * x_squares;
}

static bool has_constant_ratio(const float *v, size_t n, size_t lag, double tolerance) {
  double later_squares = 0, earlier_squares = 0, dot_product = 0;
  for (size_t j = 0; j + lag < n; j++) {
    double x = (double)v[j], y = (double)v[j + lag];
    later_squares += y * y;
    earlier_squares += x * x;
    dot_product += x * y;
  }
  return is_multiple(later_squares, earlier_squares, dot_product, tolerance);
}

static bool is_geometric(const float *v, size_t n, double tolerance) {
  return n > 1 && has_constant_ratio(v, n, 1, tolerance) &&
         has_constant_ratio(v, n, n / 2, tolerance) &&
         (n < MIN_LONG_ROW_VALUES || has_constant_ratio(v, n, n / 4, tolerance));
}

static bool has_cosine_recurrence(const float *v, size_t n, size_t lag, double tolerance) {
  double pair_sum_squares = 0, middle_squares = 0, dot_product = 0, neighbour_squares = 0;
  for (size_t j = lag; j + lag < n; j++) {
    double x = (double)v[j], a = (double)v[j - lag], b = (double)v[j + lag];
    neighbour_squares += a * a + b * b;
    pair_sum_squares += (a + b) * (a + b);
    middle_squares += x * x;
    dot_product += (a + b) * x;
  }
  double remainder = middle_squares > 0
                         ? pair_sum_squares - dot_product * dot_product / middle_squares
                         : pair_sum_squares;
  return remainder <= tolerance * tolerance * (neighbour_squares + middle_squares);
}

static double sum_squares(const float *v, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
  return sum;
}

static bool is_wave(const float *v, size_t n, double tolerance) {
  double total_squares = sum_squares(v, n);
  if (n > MIN_LONG_ROW_VALUES + 1) v++, n -= 2;
  const size_t lags[] = {1, 2, n / 4, n / 3};
  if (n < 4 || sum_squares(v, n) < total_squares / 2) return false;
  for (size_t i = 0; i < CLV_COUNT(lags); i++)
    if (lags[i] && 2 * lags[i] < n && !has_cosine_recurrence(v, n, lags[i], tolerance))
      return false;
  return true;
}

/* Reads the row v [n] as a matrix with `width` columns. Returns true if the matrix is a column
 * times a row: p [n / width] receives the column, and *ret_q points at the row, a part of v.
 * total_squares: sum of the squares of v. */
static bool is_outer_product(const float *v, size_t n, size_t width, double total_squares,
                             double tolerance, float *p, const float **ret_q) {
  double mean_squares = total_squares / (double)(n / width), q_squares = 0, remainder = 0;
  size_t at = 0;
  while (at < n && (q_squares = sum_squares(v + at, width)) < mean_squares * (1 - 1e-9))
    at += width;
  if (at == n) return false;
  *ret_q = v + at;
  for (size_t a = 0; a < n; a += width) {
    double dot = 0;
    for (size_t b = 0; b < width; b++) dot += (double)v[a + b] * (double)v[at + b];
    p[a / width] = (float)(dot / q_squares);
    remainder += sum_squares(v + a, width) - dot * dot / q_squares;
    if (remainder > tolerance * tolerance * total_squares) return false;
  }
  return true;
}

/* Removes the zeros at both ends of a row. */
static void skip_zeros_at_ends(const float **v, size_t *n) {
  while (*n && (*v)[0] == 0) ++*v, --*n;
  while (*n && (*v)[*n - 1] == 0) --*n;
}

static size_t count_free_numbers(const float *v, size_t n, double tolerance, float *scratch);

/* Counts the numbers that the row needs as a product of a column p and a row q. count_free_numbers
 * counts those of p and of q. Returns n if the row is no such product. */
static size_t count_free_numbers_of_outer_product(const float *v, size_t n, double tolerance,
                                                  float *scratch) {
  const double total_squares = sum_squares(v, n);
  for (size_t width = 2; width <= n / 2; width++) {
    const float *q = v;
    size_t height = n / width;
    if (n % width || !is_outer_product(v, n, width, total_squares, tolerance, scratch, &q))
      continue;
    return count_free_numbers(scratch, height, tolerance, scratch + height) +
           count_free_numbers(q, width, tolerance, scratch + height) - 1;
  }
  return n;
}

/* Counts the numbers from which the others of the row follow, by the rules at the head of this
 * file. scratch: memory of n values for the column p of a product. p is at most half as long as the
 * row, so the scratch behind p has room for the factors of p. */
static size_t count_free_numbers(const float *v, size_t n, double tolerance, float *scratch) {
  const float *from = v;
  size_t length = n;
  skip_zeros_at_ends(&from, &length);
  if (length <= 2) return length;
  if (is_geometric(from, length, tolerance)) return 2;
  if (is_wave(from, length, tolerance)) return 3;
  size_t n_free_numbers = count_free_numbers_of_outer_product(from, length, tolerance, scratch);
  return length == n ? n_free_numbers
                     : CLV_MIN(n_free_numbers,
                               count_free_numbers_of_outer_product(v, n, tolerance, scratch));
}

/* ---- counting the simple rows of a tensor ---------------------------------------------------- */

typedef struct row_counts {
  /* number of rows that are not 0; of simple rows, which follow from few numbers; of simple rows
   * with MIN_LONG_ROW_VALUES values or more */
  size_t n_rows, n_simple, n_long_simple;
} row_counts;

struct clv_public_row_test {
  size_t n_rows, n_columns; /* numbers of rows and of columns of the tensor */
  size_t at;                /* number of values added so far */
  float *row;               /* values of the current row, [MAX_ROW_VALUES] */
  float *column_values;     /* values of the first columns, [MAX_COLUMNS][MAX_ROW_VALUES] */
  float *scratch;           /* [2 * MAX_ROW_VALUES] scratch of count_free_numbers */
  row_counts row_stats, column_stats;
  /* [MIN_SIGN_ROWS][MAX_ROW_VALUES] signs of the first rows whose values have the same absolute
   * value */
  float *sign_rows;
  size_t n_sign_rows;
};

void clv_public_row_test_freep(clv_public_row_test **t) {
  if (!*t) return;
  free((*t)->row);
  free((*t)->column_values);
  free((*t)->scratch);
  free((*t)->sign_rows);
  free(*t);
}

clv_code clv_public_row_test_new(size_t n_rows, size_t n_columns, clv_public_row_test **ret,
                                 clv_err *err) {
  CLV_AUTO(clv_public_row_test_freep) clv_public_row_test *t = NULL;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  *t = (clv_public_row_test){.n_rows = n_rows, .n_columns = n_columns};
  CLV_TRY(clv_alloc(MAX_ROW_VALUES, sizeof *t->row, &t->row, err));
  CLV_TRY(clv_alloc((size_t)MAX_COLUMNS * MAX_ROW_VALUES, sizeof *t->column_values,
                    &t->column_values, err));
  CLV_TRY(clv_alloc(2 * (size_t)MAX_ROW_VALUES, sizeof *t->scratch, &t->scratch, err));
  CLV_TRY(
      clv_alloc((size_t)MIN_SIGN_ROWS * MAX_ROW_VALUES, sizeof *t->sign_rows, &t->sign_rows, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}

/* Stores the signs of the row if all its values have about the same absolute value. */
static void store_sign_row(clv_public_row_test *t, size_t n) {
  double magnitude = sqrt(sum_squares(t->row, n) / (double)n);
  bool has_one_magnitude =
      n >= MIN_LONG_ROW_VALUES && magnitude > 0 && t->n_sign_rows < MIN_SIGN_ROWS;
  for (size_t i = 0; has_one_magnitude && i < n; i++)
    has_one_magnitude = fabs(fabs((double)t->row[i]) / magnitude - 1) < LONG_ROW_TOLERANCE;
  if (!has_one_magnitude) return;
  float *to = t->sign_rows + t->n_sign_rows++ * MAX_ROW_VALUES;
  for (size_t i = 0; i < n; i++) to[i] = copysignf(1, t->row[i]);
}

static bool are_sign_rows_orthogonal(const clv_public_row_test *t, size_t n) {
  for (size_t i = 0; i < t->n_sign_rows; i++)
    for (size_t k = 0; k < i; k++) {
      double dot = 0;
      for (size_t j = 0; j < n; j++)
        dot +=
            (double)(t->sign_rows[i * MAX_ROW_VALUES + j] * t->sign_rows[k * MAX_ROW_VALUES + j]);
      if (dot != 0) return false;
    }
  return t->n_sign_rows == MIN_SIGN_ROWS;
}

static void add_row_to_counts(row_counts *t, const float *v, size_t n, float *scratch) {
  const float *from = v;
  size_t max_free_numbers = 2, length = n, n_nonzero = 0;
  skip_zeros_at_ends(&from, &length);
  if (!length) return;
  for (size_t i = 0; i < length; i++) n_nonzero += from[i] != 0;
  double tolerance = length < MIN_LONG_ROW_VALUES ? SHORT_ROW_TOLERANCE : LONG_ROW_TOLERANCE;
  if (length >= 4) max_free_numbers = 3;
  if (length >= MIN_LONG_ROW_VALUES)
    max_free_numbers = CLV_MAX((size_t)4, CLV_MIN(length / 3, 3 + (size_t)log2((double)length)));
  size_t n_free_numbers = count_free_numbers(v, n, tolerance, scratch);
  bool is_simple =
      n_free_numbers <= max_free_numbers &&
      (length < MIN_LONG_ROW_VALUES || n_free_numbers <= CLV_MAX(n_nonzero / 2, (size_t)2));
  t->n_rows++;
  t->n_simple += is_simple;
  t->n_long_simple +=
      is_simple && length >= MIN_LONG_ROW_VALUES && n_nonzero >= MIN_LONG_ROW_VALUES / 2;
}

void clv_public_row_test_add(clv_public_row_test *t, const float *values, size_t n) {
  const size_t length = CLV_MIN(t->n_columns, (size_t)MAX_ROW_VALUES);
  for (size_t i = 0; i < n; i++, t->at++) {
    size_t row = t->at / t->n_columns, column = t->at % t->n_columns;
    if (column < MAX_ROW_VALUES) t->row[column] = values[i];
    if (column < MAX_COLUMNS && row < MAX_ROW_VALUES)
      t->column_values[column * MAX_ROW_VALUES + row] = values[i];
    if (column + 1 < t->n_columns || t->n_columns < MIN_ROW_VALUES) continue;
    add_row_to_counts(&t->row_stats, t->row, length, t->scratch);
    store_sign_row(t, length);
  }
}

bool clv_public_row_test_is_public(clv_public_row_test *t) {
  const row_counts *r = &t->row_stats, *c = &t->column_stats;
  t->column_stats = (row_counts){0};
  for (size_t k = 0; k < CLV_MIN(t->n_columns, (size_t)MAX_COLUMNS); k++)
    add_row_to_counts(&t->column_stats, t->column_values + k * MAX_ROW_VALUES,
                      CLV_MIN(t->n_rows, (size_t)MAX_ROW_VALUES), t->scratch);
  return (r->n_rows && r->n_long_simple >= CLV_MIN(r->n_rows, (size_t)MIN_SIMPLE_LONG_ROWS)) ||
         (r->n_simple >= MIN_SIMPLE_ROWS && 2 * r->n_simple >= r->n_rows) ||
         (c->n_long_simple >= MIN_SIMPLE_ROWS && 2 * c->n_long_simple >= c->n_rows) ||
         are_sign_rows_orthogonal(t, CLV_MIN(t->n_columns, (size_t)MAX_ROW_VALUES));
}
