/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads features (clv_look_features_read), as one attack of the look, which measures before a run
 * what sent tensors show. Measures whether a value that a worker receives is one feature of the
 * record, only scaled. A sum of many features can be close to a single one, depending on the sizes
 * of features and factors, which the analysis of the graph (master/reach) does not see.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MAX_FEATURES = 256,
  MAX_VALUES = 512,
  SUMS_PER_VALUE = 8, /* number of random sums for each value, to measure correlation by chance */
  MIN_SUMS = 64,
  /* fewest records that a column must effectively depend on to count in the best pair */
  MIN_SPREAD_RECORDS = 4,
  /* fewest records that the second half, with which the attack is tested, must have */
  MIN_TESTED_RECORDS = 4,
  /* number of records of the tested half from which on correlations count in full */
  FULL_HALF_RECORDS = 32,
};
/* Limits of the correlation that random sums have by chance. A correlation by chance of at most
 * HARMLESS_CHANCE takes nothing from a figure, the share that was read. If it is above
 * EXCLUDING_CHANCE, the figures of single values do not count. From the figure of most values at
 * most MAX_CHANCE is subtracted. */
static const double HARMLESS_CHANCE = .7, EXCLUDING_CHANCE = .98, MAX_CHANCE = .95;
/* Least size, relative to the largest feature, with which a feature counts in random sums. One-hot
 * columns beside standardized ones are about this small; sums hide smaller ones. */
static const float MIN_FEATURE_SIZE = .25f;

/* List of columns: the values of a feature or of a sent value over n records. Each half of a column
 * has mean 0 and length 1. */
typedef struct column_list {
  float *values;
  bool *is_spread; /* [n] true: the column depends on more than a few records */
  size_t n;
} column_list;

typedef struct feature_reading {
  const clv_look_features *f;
  clv_look_split half;
  column_list features, values;
  float size[MAX_FEATURES]; /* size of each feature, relative to the largest one */
} feature_reading;

static void column_list_done(column_list *l) {
  free(l->values);
  free(l->is_spread);
}

static void feature_reading_done(feature_reading *r) {
  column_list_done(&r->features);
  column_list_done(&r->values);
}

static clv_code column_list_new(column_list *l, size_t n, size_t n_records, clv_err *err) {
  CLV_TRY(clv_alloc(n * n_records, sizeof *l->values, &l->values, err));
  return clv_alloc(n, sizeof *l->is_spread, &l->is_spread, err);
}

/* ---- columns: one feature or value of all records -------------------------------------------- */

/* Scales a column to mean 0 and length 1. False: the column is constant. */
static bool make_unit(float *v, size_t n) {
  double mean = 0, squares_sum = 0;
  for (size_t i = 0; i < n; i++) mean += (double)v[i] / (double)n;
  for (size_t i = 0; i < n; i++) squares_sum += ((double)v[i] - mean) * ((double)v[i] - mean);
  if (!(squares_sum > 0) || !isfinite(squares_sum)) return false;
  for (size_t i = 0; i < n; i++) v[i] = (float)(((double)v[i] - mean) / sqrt(squares_sum));
  return true;
}

/* True if a unit column depends on many records. A single outlier makes any two columns similar. */
static bool is_spread(const float *v, size_t n) {
  double fourths_sum = 0;
  for (size_t i = 0; i < n; i++) fourths_sum += pow((double)v[i], 4);
  return fourths_sum * CLV_MIN((double)MIN_SPREAD_RECORDS, (double)n / 4) < 1;
}

static bool make_units(float *v, clv_look_split half) {
  return make_unit(v, half.n_fit) && make_unit(v + half.n_fit, half.n - half.n_fit);
}

/* Keeps the column that was written behind the last one of the list, if it is constant in neither
 * half. */
static bool end_column(column_list *l, clv_look_split half) {
  float *v = l->values + l->n * half.n;
  if (!make_units(v, half)) return false;
  l->is_spread[l->n++] = is_spread(v, half.n_fit) && is_spread(v + half.n_fit, half.n - half.n_fit);
  return true;
}

static bool add_column(const float *values, size_t record, size_t at, clv_look_split half,
                       column_list *ret) {
  float *to = ret->values + ret->n * half.n;
  for (size_t i = 0; i < half.n; i++) to[i] = values[i * record + at];
  return end_column(ret, half);
}

typedef struct sized_column {
  size_t at;
  double variance;
} sized_column;

static int compare_by_variance(const void *a, const void *b) {
  const sized_column *x = a, *y = b;
  if (x->variance != y->variance) return x->variance > y->variance ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

static double compute_variance(const clv_look_features *f, size_t at, size_t n) {
  double mean = 0, squares_sum = 0;
  for (size_t i = 0; i < n; i++) mean += (double)f->features[i * f->record + at] / (double)n;
  for (size_t i = 0; i < n; i++) {
    double v = (double)f->features[i * f->record + at] - mean;
    squares_sum += v * v;
  }
  return isfinite(squares_sum) ? squares_sum : 0;
}

/* Lists the features. If there are too many, half of the list are the largest ones, and the others
 * are taken at even steps. */
static clv_code list_features(feature_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) sized_column *columns = NULL;
  const clv_look_features *f = r->f;
  size_t n = f->n_features, n_kept = CLV_MIN(n, (size_t)MAX_FEATURES), n_largest = n_kept / 2;
  CLV_TRY(clv_alloc(n, sizeof *columns, &columns, err));
  CLV_TRY(column_list_new(&r->features, n_kept, r->half.n, err));
  for (size_t k = 0; k < n; k++) columns[k] = (sized_column){k, compute_variance(f, k, r->half.n)};
  qsort(columns, n, sizeof *columns, compare_by_variance);
  for (size_t k = 0; k < n_kept; k++) {
    size_t at =
        k < n_largest ? k : n_largest + (k - n_largest) * (n - n_largest) / (n_kept - n_largest);
    if (add_column(f->features, f->record, columns[at].at, r->half, &r->features))
      r->size[r->features.n - 1] = (float)sqrt(columns[at].variance / columns[0].variance);
  }
  return CLV_OK;
}

static clv_code list_values(feature_reading *r, clv_err *err) {
  const clv_look_features *f = r->f;
  size_t n = f->n_values, n_kept = CLV_MIN(n, (size_t)MAX_VALUES);
  CLV_TRY(column_list_new(&r->values, n_kept, r->half.n, err));
  for (size_t k = 0; k < n_kept; k++)
    add_column(f->values, f->row, k * n / n_kept, r->half, &r->values);
  return CLV_OK;
}

/* Makes sums with random weights, as a secret linear layer would of features of similar size. */
static clv_code make_random_sums(const feature_reading *r, column_list *ret, clv_err *err) {
  size_t n = CLV_MAX(CLV_MIN(r->values.n * SUMS_PER_VALUE, (size_t)MAX_VALUES), (size_t)MIN_SUMS);
  float weight[MAX_FEATURES];
  CLV_TRY(column_list_new(ret, n, r->half.n, err));
  for (size_t k = 0; k < n; k++) {
    const clv_rng_key key = {.seed = 1, .layer = (uint32_t)k};
    float *to = ret->values + ret->n * r->half.n;
    clv_rng_normal(&key, 0, 1, weight, r->features.n);
    memset(to, 0, r->half.n * sizeof *to);
    for (size_t f = 0; f < r->features.n; f++) {
      const float *from = r->features.values + f * r->half.n;
      float factor = weight[f] * CLV_MAX(r->size[f], MIN_FEATURE_SIZE);
      for (size_t i = 0; i < r->half.n; i++) to[i] += factor * from[i];
    }
    end_column(ret, r->half);
  }
  return CLV_OK;
}

/* ---- correlations of features with values ---------------------------------------------------- */

/* Most similar column, in the first half (from which the attack learns), of the other list. */
typedef struct best_partner {
  double fit;     /* correlation of the two columns in the first half */
  size_t partner; /* index of the column in the other list */
} best_partner;

/* Absolute correlations in the second half, with which the attack is tested: that of the best pair,
 * and the medians over features and over values of the correlation with the best partner. */
typedef struct reading_figures {
  double pair_correlation, features, values;
} reading_figures;

static double compute_correlation(const feature_reading *r, const column_list *values,
                                  size_t feature, size_t value, bool in_first_half) {
  size_t skip = in_first_half ? 0 : r->half.n_fit,
         n = in_first_half ? r->half.n_fit : r->half.n - skip;
  return fabs((double)look_dot(r->features.values + feature * r->half.n + skip,
                               values->values + value * r->half.n + skip, n));
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
static double find_best_partners(const feature_reading *r, const column_list *values,
                                 best_partner *of_feature, best_partner *of_value) {
  best_partner best = {0};
  size_t feature = 0;
  for (size_t v = 0; v < values->n; v++)
    for (size_t f = 0; f < r->features.n; f++) {
      double fit = compute_correlation(r, values, f, v, true);
      if (fit > of_feature[f].fit) of_feature[f] = (best_partner){fit, v};
      if (fit > of_value[v].fit) of_value[v] = (best_partner){fit, f};
      if (fit > best.fit && r->features.is_spread[f] && values->is_spread[v])
        best = (best_partner){fit, v}, feature = f;
    }
  return best.fit > 0 ? compute_correlation(r, values, feature, best.partner, false) : 0;
}

static reading_figures compute_figures(const feature_reading *r, const column_list *values) {
  best_partner of_feature[MAX_FEATURES] = {0}, of_value[MAX_VALUES] = {0};
  double correlations[MAX_VALUES];
  reading_figures ret = {.pair_correlation = find_best_partners(r, values, of_feature, of_value)};
  for (size_t f = 0; values->n && f < r->features.n; f++)
    correlations[f] = compute_correlation(r, values, f, of_feature[f].partner, false);
  ret.features = compute_median(correlations, values->n ? r->features.n : 0);
  for (size_t v = 0; r->features.n && v < values->n; v++)
    correlations[v] = compute_correlation(r, values, of_value[v].partner, v, false);
  ret.values = compute_median(correlations, r->features.n ? values->n : 0);
  return ret;
}

/* Lowers a correlation r of n records, if these are few, because it may be due to chance: atanh r
 * by two of its standard deviations, less those for FULL_HALF_RECORDS records. */
static double subtract_chance(double r, size_t n) {
  if (n >= FULL_HALF_RECORDS) return r;
  double reduction = 2 / sqrt((double)n - 3) - 2 / sqrt(FULL_HALF_RECORDS - 3);
  return tanh(CLV_MAX(atanh(CLV_MIN(r, 1 - 1e-12)) - reduction, 0.0));
}

static double excess_over_chance(double r, double chance) {
  return chance <= HARMLESS_CHANCE ? r : r > chance ? (r - chance) / (1 - chance) : 0;
}

static void keep_better_figure(double figure, const char *by, clv_look_reading *ret) {
  if (figure > ret->figure || !*ret->by) *ret = (clv_look_reading){CLV_MIN(figure, 1.0), by};
}

clv_code clv_look_features_read(const clv_look_features *f, clv_look_split half,
                                clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(feature_reading_done) feature_reading r = {.f = f, .half = half};
  /* only the member `values` is filled */
  CLV_AUTO(feature_reading_done) feature_reading chance = {0};
  size_t n_tested = half.n - half.n_fit;
  *ret = (clv_look_reading){.by = ""};
  if (!f->n_features || !f->n_values || half.n_fit < 2 || n_tested < MIN_TESTED_RECORDS)
    return CLV_OK;
  CLV_TRY(list_features(&r, err));
  CLV_TRY(list_values(&r, err));
  CLV_TRY(make_random_sums(&r, &chance.values, err));
  reading_figures value_figures = compute_figures(&r, &r.values),
                  chance_figures = compute_figures(&r, &chance.values);
  keep_better_figure(excess_over_chance(subtract_chance(value_figures.values, n_tested),
                                        CLV_MIN(chance_figures.values, MAX_CHANCE)),
                     "most values", ret);
  if (chance_figures.features <= EXCLUDING_CHANCE)
    keep_better_figure(excess_over_chance(subtract_chance(value_figures.features, n_tested),
                                          chance_figures.features),
                       "a value for most", ret);
  if (chance_figures.pair_correlation <= EXCLUDING_CHANCE)
    keep_better_figure(excess_over_chance(subtract_chance(value_figures.pair_correlation, n_tested),
                                          chance_figures.pair_correlation),
                       "one value", ret);
  return CLV_OK;
}
