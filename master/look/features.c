/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads features (clv_look_read_features), as one attack of the look, which measures before a run
 * what sent tensors show. The attack measures whether a value that a worker receives is one feature
 * of the record, only scaled. A sum of many features can be close to a single one, depending on the
 * sizes of features and factors, which the analysis of the graph (master/reach) does not see.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MAX_COMPARED_FEATURES = 256,
  MAX_COMPARED_VALUES = 512,
  /* number of random sums of features for each value, to measure correlation by chance */
  RANDOM_SUMS_PER_VALUE = 8,
  MIN_RANDOM_SUMS = 64,
  /* a column that effectively depends on fewer records cannot be in the best pair */
  MIN_EFFECTIVE_RECORDS = 4,
  /* fewest records that the second half, with which the attack is tested, must have */
  MIN_TESTED_RECORDS = 4,
  /* number of records of the tested half from which on correlations count in full */
  MIN_RECORDS_WITHOUT_REDUCTION = 32,
};
/* Random sums of features correlate with features by chance. This chance correlation is subtracted
 * from a figure (the fraction that an attack has read) if it is above
 * MAX_IGNORED_CHANCE_CORRELATION. If it is above MAX_USABLE_CHANCE_CORRELATION, the median over
 * features and the best pair do not count at all. From the median over values at most
 * CHANCE_CORRELATION_CAP is subtracted. */
static const double MAX_IGNORED_CHANCE_CORRELATION = .7;
static const double MAX_USABLE_CHANCE_CORRELATION = .98, CHANCE_CORRELATION_CAP = .95;
/* Least factor of a feature in random sums, relative to the largest feature. One-hot columns beside
 * standardized columns are about this small. Smaller features cannot be read from a sum. */
static const float MIN_RELATIVE_FEATURE_SIZE = .25f;

/* List of columns. A column has the values of one feature, or of one sent value, for all records.
 * Each half of a column has mean 0 and Euclidean norm 1. */
typedef struct column_list {
  float *values;
  bool *depends_on_many_records; /* [n] false: a few records dominate the column */
  size_t n;
} column_list;

typedef struct feature_reading {
  const clv_look_features *f;
  clv_look_split split;
  column_list features, values;
  /* size of each feature, relative to the largest one */
  float relative_feature_sizes[MAX_COMPARED_FEATURES];
} feature_reading;

static void column_list_done(column_list *l) {
  free(l->values);
  free(l->depends_on_many_records);
}

static void feature_reading_done(feature_reading *r) {
  column_list_done(&r->features);
  column_list_done(&r->values);
}

static clv_code column_list_new(column_list *l, size_t n, size_t n_records, clv_err *err) {
  CLV_TRY(clv_alloc(n * n_records, sizeof *l->values, &l->values, err));
  return clv_alloc(n, sizeof *l->depends_on_many_records, &l->depends_on_many_records, err);
}

/* ---- columns: one feature or value of all records -------------------------------------------- */

/* Shifts and scales a column to mean 0 and Euclidean norm 1. False: the column is constant. */
static bool standardize_values(float *v, size_t n) {
  double mean = 0, squares_sum = 0;
  for (size_t i = 0; i < n; i++) mean += (double)v[i] / (double)n;
  for (size_t i = 0; i < n; i++) squares_sum += ((double)v[i] - mean) * ((double)v[i] - mean);
  if (!(squares_sum > 0) || !isfinite(squares_sum)) return false;
  for (size_t i = 0; i < n; i++) v[i] = (float)(((double)v[i] - mean) / sqrt(squares_sum));
  return true;
}

/* False if a few records dominate a column of norm 1. Two columns with the same outlier would be
 * similar, whatever values the other records have. */
static bool depends_on_many_records(const float *v, size_t n) {
  double fourth_powers_sum = 0;
  for (size_t i = 0; i < n; i++) fourth_powers_sum += pow((double)v[i], 4);
  return fourth_powers_sum * CLV_MIN((double)MIN_EFFECTIVE_RECORDS, (double)n / 4) < 1;
}

static bool standardize_halves(float *v, clv_look_split split) {
  return standardize_values(v, split.n_fit) &&
         standardize_values(v + split.n_fit, split.n - split.n_fit);
}

/* Adds the column whose values the caller has written behind the last column of the list. False:
 * the column is constant in one of its halves and is not added. */
static bool keep_written_column(column_list *l, clv_look_split split) {
  float *v = l->values + l->n * split.n;
  if (!standardize_halves(v, split)) return false;
  l->depends_on_many_records[l->n++] =
      depends_on_many_records(v, split.n_fit) &&
      depends_on_many_records(v + split.n_fit, split.n - split.n_fit);
  return true;
}

static bool add_column(const float *values, size_t record_stride, size_t at, clv_look_split split,
                       column_list *ret) {
  float *to = ret->values + ret->n * split.n;
  for (size_t i = 0; i < split.n; i++) to[i] = values[i * record_stride + at];
  return keep_written_column(ret, split);
}

typedef struct column_variance {
  size_t at;
  double variance;
} column_variance;

static int compare_by_variance(const void *a, const void *b) {
  const column_variance *x = a, *y = b;
  if (x->variance != y->variance) return x->variance > y->variance ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

static double compute_variance(const clv_look_features *f, size_t at, size_t n) {
  double mean = 0, squares_sum = 0;
  for (size_t i = 0; i < n; i++)
    mean += (double)f->features[i * f->feature_record_stride + at] / (double)n;
  for (size_t i = 0; i < n; i++) {
    double v = (double)f->features[i * f->feature_record_stride + at] - mean;
    squares_sum += v * v;
  }
  return isfinite(squares_sum) ? squares_sum : 0;
}

/* Lists the features. If there are more than MAX_COMPARED_FEATURES, half of the list are the
 * features with the largest variance; the others are taken from the rest at even steps. */
static clv_code list_features(feature_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) column_variance *columns = NULL;
  const clv_look_features *f = r->f;
  size_t n = f->n_features, n_kept = CLV_MIN(n, (size_t)MAX_COMPARED_FEATURES),
         n_largest = n_kept / 2;
  CLV_TRY(clv_alloc(n, sizeof *columns, &columns, err));
  CLV_TRY(column_list_new(&r->features, n_kept, r->split.n, err));
  for (size_t k = 0; k < n; k++)
    columns[k] = (column_variance){k, compute_variance(f, k, r->split.n)};
  qsort(columns, n, sizeof *columns, compare_by_variance);
  for (size_t k = 0; k < n_kept; k++) {
    size_t at =
        k < n_largest ? k : n_largest + (k - n_largest) * (n - n_largest) / (n_kept - n_largest);
    if (add_column(f->features, f->feature_record_stride, columns[at].at, r->split, &r->features))
      r->relative_feature_sizes[r->features.n - 1] =
          (float)sqrt(columns[at].variance / columns[0].variance);
  }
  return CLV_OK;
}

static clv_code list_values(feature_reading *r, clv_err *err) {
  const clv_look_features *f = r->f;
  size_t n = f->n_values, n_kept = CLV_MIN(n, (size_t)MAX_COMPARED_VALUES);
  CLV_TRY(column_list_new(&r->values, n_kept, r->split.n, err));
  for (size_t k = 0; k < n_kept; k++)
    add_column(f->values, f->value_record_stride, k * n / n_kept, r->split, &r->values);
  return CLV_OK;
}

/* Makes random sums of the features, as a linear layer with secret weights would. A small feature
 * gets at least the factor MIN_RELATIVE_FEATURE_SIZE. */
static clv_code make_random_sums(const feature_reading *r, column_list *ret, clv_err *err) {
  size_t n = CLV_MAX(CLV_MIN(r->values.n * RANDOM_SUMS_PER_VALUE, (size_t)MAX_COMPARED_VALUES),
                     (size_t)MIN_RANDOM_SUMS);
  float random_weights[MAX_COMPARED_FEATURES];
  CLV_TRY(column_list_new(ret, n, r->split.n, err));
  for (size_t k = 0; k < n; k++) {
    const clv_rng_key key = {.seed = 1, .layer = (uint32_t)k};
    float *to = ret->values + ret->n * r->split.n;
    clv_rng_normal(&key, 0, 1, random_weights, r->features.n);
    memset(to, 0, r->split.n * sizeof *to);
    for (size_t f = 0; f < r->features.n; f++) {
      const float *feature_values = r->features.values + f * r->split.n;
      float factor =
          random_weights[f] * CLV_MAX(r->relative_feature_sizes[f], MIN_RELATIVE_FEATURE_SIZE);
      for (size_t i = 0; i < r->split.n; i++) to[i] += factor * feature_values[i];
    }
    keep_written_column(ret, r->split);
  }
  return CLV_OK;
}

/* ---- correlations of features with values ---------------------------------------------------- */

/* Column of the other list (features or values) that is most similar in the first half, from which
 * the attack learns. */
typedef struct best_partner {
  double fit_correlation; /* correlation of the two columns in the first half */
  size_t partner_index;   /* index of the column in the other list */
} best_partner;

/* Absolute correlations in the second half, with which the attack is tested. pair_correlation:
 * correlation of the best pair; the other two: correlation with the best partner, as the median
 * over all features and as the median over all values. */
typedef struct reading_figures {
  double pair_correlation, feature_median_correlation, value_median_correlation;
} reading_figures;

static double compute_correlation(const feature_reading *r, const column_list *values,
                                  size_t feature, size_t value, bool in_first_half) {
  size_t n_skipped = in_first_half ? 0 : r->split.n_fit,
         n = in_first_half ? r->split.n_fit : r->split.n - n_skipped;
  return fabs((double)look_dot_product(r->features.values + feature * r->split.n + n_skipped,
                                       values->values + value * r->split.n + n_skipped, n));
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double compute_median(double *list, size_t n) {
  if (!n) return 0;
  qsort(list, n, sizeof *list, compare_doubles);
  return list[(n - 1) / 2];
}

/* Finds for each feature the most similar value, and for each value the most similar feature.
 * Returns the correlation of the best pair in the second half. */
static double compute_best_pair_correlation(const feature_reading *r, const column_list *values,
                                            best_partner *feature_partners,
                                            best_partner *value_partners) {
  best_partner best_pair = {0};
  size_t best_feature = 0;
  for (size_t v = 0; v < values->n; v++)
    for (size_t f = 0; f < r->features.n; f++) {
      double fit_correlation = compute_correlation(r, values, f, v, true);
      if (fit_correlation > feature_partners[f].fit_correlation)
        feature_partners[f] = (best_partner){fit_correlation, v};
      if (fit_correlation > value_partners[v].fit_correlation)
        value_partners[v] = (best_partner){fit_correlation, f};
      if (fit_correlation > best_pair.fit_correlation && r->features.depends_on_many_records[f] &&
          values->depends_on_many_records[v])
        best_pair = (best_partner){fit_correlation, v}, best_feature = f;
    }
  return best_pair.fit_correlation > 0
             ? compute_correlation(r, values, best_feature, best_pair.partner_index, false)
             : 0;
}

static reading_figures compute_figures(const feature_reading *r, const column_list *values) {
  best_partner feature_partners[MAX_COMPARED_FEATURES] = {0},
               value_partners[MAX_COMPARED_VALUES] = {0};
  double correlations[MAX_COMPARED_VALUES];
  reading_figures ret = {.pair_correlation = compute_best_pair_correlation(
                             r, values, feature_partners, value_partners)};
  for (size_t f = 0; values->n && f < r->features.n; f++)
    correlations[f] = compute_correlation(r, values, f, feature_partners[f].partner_index, false);
  ret.feature_median_correlation = compute_median(correlations, values->n ? r->features.n : 0);
  for (size_t v = 0; r->features.n && v < values->n; v++)
    correlations[v] = compute_correlation(r, values, value_partners[v].partner_index, v, false);
  ret.value_median_correlation = compute_median(correlations, r->features.n ? values->n : 0);
  return ret;
}

/* Lowers a correlation r of n records if n is below MIN_RECORDS_WITHOUT_REDUCTION, because r may be
 * due to chance. By chance, atanh(r) has the standard deviation 1 / sqrt(n - 3). Subtracts from
 * atanh(r) twice the difference between this deviation for n records and that for
 * MIN_RECORDS_WITHOUT_REDUCTION records. */
static double subtract_chance_correlation(double r, size_t n) {
  if (n >= MIN_RECORDS_WITHOUT_REDUCTION) return r;
  double reduction = 2 / sqrt((double)n - 3) - 2 / sqrt(MIN_RECORDS_WITHOUT_REDUCTION - 3);
  return tanh(CLV_MAX(atanh(CLV_MIN(r, 1 - 1e-12)) - reduction, 0.0));
}

static double compute_excess_over_chance(double r, double chance_correlation) {
  return chance_correlation <= MAX_IGNORED_CHANCE_CORRELATION ? r
         : r > chance_correlation ? (r - chance_correlation) / (1 - chance_correlation)
                                  : 0;
}

static void keep_better_figure(double figure, const char *by, clv_look_reading *ret) {
  if (figure > ret->figure || !*ret->by) *ret = (clv_look_reading){CLV_MIN(figure, 1.0), by};
}

clv_code clv_look_read_features(const clv_look_features *f, clv_look_split split,
                                clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(feature_reading_done) feature_reading r = {.f = f, .split = split};
  /* only the member `values` is used; it has the random sums */
  CLV_AUTO(feature_reading_done) feature_reading chance_reading = {0};
  size_t n_tested = split.n - split.n_fit;
  *ret = (clv_look_reading){.by = ""};
  if (!f->n_features || !f->n_values || split.n_fit < 2 || n_tested < MIN_TESTED_RECORDS)
    return CLV_OK;
  CLV_TRY(list_features(&r, err));
  CLV_TRY(list_values(&r, err));
  CLV_TRY(make_random_sums(&r, &chance_reading.values, err));
  reading_figures value_figures = compute_figures(&r, &r.values),
                  chance_figures = compute_figures(&r, &chance_reading.values);
  keep_better_figure(
      compute_excess_over_chance(
          subtract_chance_correlation(value_figures.value_median_correlation, n_tested),
          CLV_MIN(chance_figures.value_median_correlation, CHANCE_CORRELATION_CAP)),
      "most values", ret);
  if (chance_figures.feature_median_correlation <= MAX_USABLE_CHANCE_CORRELATION)
    keep_better_figure(
        compute_excess_over_chance(
            subtract_chance_correlation(value_figures.feature_median_correlation, n_tested),
            chance_figures.feature_median_correlation),
        "a value for most", ret);
  if (chance_figures.pair_correlation <= MAX_USABLE_CHANCE_CORRELATION)
    keep_better_figure(compute_excess_over_chance(
                           subtract_chance_correlation(value_figures.pair_correlation, n_tested),
                           chance_figures.pair_correlation),
                       "one value", ret);
  return CLV_OK;
}
