/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds labels that follow from the order of the records. Without train.shuffle records are sent in
 * the order of their files. If classes are contiguous or alternate, a worker that knows the class
 * of a few records knows those of their neighbours. clv_label_order_compute compares the label of
 * each record with that of the record before it, then with that of the record two before it, and so
 * on. The result is the largest fraction of equal labels, and the one that a shuffle would give.
 *
 * For neighbouring records the standard deviation that a shuffle would have is known exactly (runs
 * test of Wald and Wolfowitz, for several classes). So blocks of equal labels are recognised even
 * if there are only a few records, or if only the records of a rare class are in blocks.
 */
#include <math.h>
#include <stdlib.h>

#include "master/plan/plan_int.h"

/* MAX_LAG: largest distance of compared records; MAX_COMPARISONS: most comparisons of a search;
 * MIN_RECORDS_PER_LAG: fewest records for each distance */
enum { MAX_LAG = 1024, MAX_COMPARISONS = 1 << 26, MIN_RECORDS_PER_LAG = 8 };
/* A block is a run of records with equal labels. The labels have few blocks if there are at most
 * MAX_BLOCKS_PER_CLASS for each class, with at least MIN_RECORDS_PER_BLOCK records on average. */
enum { MAX_BLOCKS_PER_CLASS = 2, MIN_RECORDS_PER_BLOCK = 4 };
/* By how much a fraction of equal labels must exceed that of a random order to be significant:
 * MIN_EXCESS_SHARE is a fraction of the largest possible excess, the other limits are numbers of
 * standard deviations. MIN_FEW_BLOCKS_SIGMAS: for neighbours, if the labels have few blocks;
 * MIN_NEIGHBOUR_SIGMAS: for neighbours otherwise; MIN_LAG_SIGMAS: for the best of many
 * distances. */
static const double MIN_EXCESS_SHARE = 0.1, MIN_NEIGHBOUR_SIGMAS = 3, MIN_FEW_BLOCKS_SIGMAS = 2.5,
                    MIN_LAG_SIGMAS = 6;

/* Reads the labels of the training records in their order. A numeric label becomes 1 if it is above
 * the mean of all labels, else 0; several labels of a record become one number. False: a record has
 * no label. */
static bool read_labels(const clv_run_data *d, double *labels) {
  size_t n = d->train_rows.n;
  double label_sum = 0, first_label;
  for (size_t i = 0; i < n; i++) {
    if (!clv_dataset_label_hash(d->train, d->train_rows.index[i], &labels[i])) return false;
    label_sum += labels[i];
  }
  if (clv_dataset_y_dtype(d->train) != CLV_F32 || !clv_dataset_label(d->train, 0, &first_label))
    return true;
  for (size_t i = 0; i < n; i++) labels[i] = labels[i] > label_sum / (double)n;
  return true;
}

static int compare_values(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Statistics of the labels in a random order, with which the order of the files is compared. */
typedef struct shuffled_statistics {
  double equal_pair_share; /* expected fraction of pairs of records with equal labels */
  /* standard deviation of the fraction of neighbours with equal labels */
  double standard_deviation;
  size_t n_classes;
} shuffled_statistics;

/* Computes the statistics of the labels in a random order. Sorts `labels`. */
static shuffled_statistics compute_shuffled_statistics(double *labels, size_t n) {
  double squares_sum = 0, cubes_sum = 0, n_labels = (double)n;
  shuffled_statistics ret = {0};
  qsort(labels, n, sizeof *labels, compare_values);
  for (size_t i = 0, class_end; i < n; i = class_end) {
    for (class_end = i + 1; class_end < n && labels[class_end] == labels[i];) class_end++;
    double class_size = (double)(class_end - i);
    squares_sum += class_size * class_size;
    cubes_sum += class_size * class_size * class_size;
    ret.n_classes++;
  }
  double variance = (squares_sum * (squares_sum + n_labels * (n_labels + 1)) -
                     2 * n_labels * cubes_sum - n_labels * n_labels * n_labels) /
                    /* variance of the number of neighbours with equal labels */
                    (n_labels * n_labels * (n_labels - 1));
  ret.equal_pair_share = (squares_sum - n_labels) / (n_labels * (n_labels - 1));
  ret.standard_deviation = sqrt(fmax(variance, 0)) / (n_labels - 1);
  return ret;
}

static double compute_equal_share_at_lag(const double *labels, size_t n, size_t lag) {
  size_t n_equal = 0;
  for (size_t i = lag; i < n; i++) n_equal += labels[i] == labels[i - lag];
  return (double)n_equal / (double)(n - lag);
}

/* True if the fraction of equal labels exceeds that of a random order by MIN_EXCESS_SHARE of the
 * largest possible excess, and by n_sigmas standard deviations. */
static bool is_significant(const clv_label_order_stats *o, double n_sigmas,
                           double standard_deviation) {
  double excess = o->equal_share - o->shuffled_share, max_excess = 1 - o->shuffled_share;
  return o->lag && max_excess > 0 && excess >= MIN_EXCESS_SHARE * max_excess &&
         excess >= n_sigmas * standard_deviation;
}

static bool has_few_blocks(const clv_label_order_stats *neighbour_order, size_t n_classes,
                           size_t n) {
  double n_blocks = 1 + (1 - neighbour_order->equal_share) * (double)(n - 1);
  return n_blocks <= MAX_BLOCKS_PER_CLASS * (double)n_classes &&
         MIN_RECORDS_PER_BLOCK * n_blocks <= (double)n;
}

clv_label_order_stats clv_label_order_compute(double *labels, size_t n) {
  size_t max_lag = CLV_MIN(n / MIN_RECORDS_PER_LAG,
                           CLV_MIN((size_t)MAX_LAG, MAX_COMPARISONS / CLV_MAX(n, (size_t)1)));
  if (n < MIN_RECORDS_PER_LAG) return (clv_label_order_stats){0};
  clv_label_order_stats neighbour_order = {.lag = 1,
                                           .equal_share = compute_equal_share_at_lag(labels, n, 1)},
                        best_order = {0};
  for (size_t lag = 2; lag <= max_lag; lag++) {
    double equal_share = compute_equal_share_at_lag(labels, n, lag);
    if (equal_share > best_order.equal_share)
      best_order = (clv_label_order_stats){.lag = (uint32_t)lag, .equal_share = equal_share};
  }
  const shuffled_statistics s = compute_shuffled_statistics(labels, n);
  neighbour_order.shuffled_share = best_order.shuffled_share = s.equal_pair_share;
  double n_sigmas = has_few_blocks(&neighbour_order, s.n_classes, n) ? MIN_FEW_BLOCKS_SIGMAS
                                                                     : MIN_NEIGHBOUR_SIGMAS;
  if (is_significant(&neighbour_order, n_sigmas, s.standard_deviation)) return neighbour_order;
  double lag_standard_deviation = sqrt(s.equal_pair_share * (1 - s.equal_pair_share) / (double)n);
  return is_significant(&best_order, MIN_LAG_SIGMAS, lag_standard_deviation)
             ? best_order
             : (clv_label_order_stats){0};
}

static bool sends_records(const clv_blueprint *b) {
  for (size_t i = 0; i < b->n_egress; i++)
    if (!clv_egress_is_state(b->egress[i].kind)) return true;
  return false;
}

clv_code clv_run_data_find_label_order(const clv_run_data *d, clv_blueprint *b, clv_err *err) {
  CLV_AUTO(clv_freep) double *labels = NULL;
  size_t n = d->train_rows.n;
  b->label_order = (clv_label_order_stats){0};
  if (b->config->train.shuffle || !d->train || !clv_dataset_has_labels(d->train) || n < 2 ||
      !sends_records(b))
    return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *labels, &labels, err));
  if (read_labels(d, labels)) b->label_order = clv_label_order_compute(labels, n);
  return CLV_OK;
}

void clv_sampling_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  bool shows_sampling = clv_data_samples(&b->config->data) && sends_records(b);
  if (json) clv_bytes_puts(out, shows_sampling ? "true" : "false");
  if (json || !shows_sampling) return;
  if (b->config->data.sampling == CLV_SAMPLING_COLUMN) {
    clv_bytes_puts(
        out,
        "WEIGHTS BY FREQUENCY: data.sampling draws some records more often than others: a "
        "worker that recognises a record counts how often it comes, and so learns its "
        "weight\n");
    return;
  }
  clv_bytes_puts(
      out,
      "LABELS BY FREQUENCY: data.sampling draws records of some classes more often than "
      "others: a worker that recognises a record counts how often it comes, and so knows "
      "which records may be of one class; loss.class_weights sends each as often\n");
}

void clv_label_order_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  const clv_label_order_stats *o = &b->label_order;
  if (json && !o->lag) clv_bytes_puts(out, "null");
  if (json && o->lag)
    clv_bytes_printf(out, "{\"share\":%.4f,\"shuffled\":%.4f,\"lag\":%u}", o->equal_share,
                     o->shuffled_share, o->lag);
  if (json || !o->lag) return;
  clv_bytes_printf(out,
                   "LABELS BY ORDER: train.shuffle is false, and %.0f %% of the training "
                   "records have the label of the record %u before them (%.0f %% if they were "
                   "shuffled): workers see which records are neighbours; train.shuffle: true mixes "
                   "them\n",
                   100 * o->equal_share, o->lag, 100 * o->shuffled_share);
}
