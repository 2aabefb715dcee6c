/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads labels (clv_look_read_labels), as one attack of the look, which measures before a run what
 * sent tensors show: groups the gradients by properties that any observer sees, and guesses one
 * class for all labels of a group.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  /* most values of gradients whose signs are tried for all label columns together */
  MAX_TRIED_SIGNS = 32768,
  /* most values of gradients whose signs are tried for one label column */
  MAX_TRIED_SIGNS_PER_COLUMN = 4096,
  MAX_KMEANS_ROUNDS = 8, /* most rounds in which the centers of clusters move */
  /* gradients are grouped by length (norm): number of lengths that are tried as the limit between
   * two groups */
  N_CANDIDATE_LENGTHS = 64,
  MAX_MODEL_OUTPUTS = LOOK_MAX_GROUPS,
};

typedef struct label_reading {
  const clv_look_gradients *g;
  size_t column;
  look_groups groups;
  /* [n] class number of each label; LOOK_NO_CLASS: the label is not counted */
  uint16_t *class_numbers;
  double *gradient_lengths; /* [n] Euclidean norm of each gradient */
  /* [n] cluster index of each gradient, 0 or 1; 2: the gradient is zero */
  uint8_t *cluster_indexes;
  double best_fit_score;    /* best figure (skill above guessing) of the first half so far */
  clv_look_reading reading; /* result for the column */
} label_reading;

static void label_reading_done(label_reading *r) {
  look_groups_done(&r->groups);
  free(r->class_numbers);
  free(r->gradient_lengths);
  free(r->cluster_indexes);
}

static const float *get_gradient(const label_reading *r, size_t i) {
  return r->g->values + i * r->g->width;
}

/* ---- classes of labels and lengths of gradients ---------------------------------------------- */

size_t look_number_classes(const clv_look_gradients *g, size_t column, uint16_t *ret) {
  const int64_t *label = g->labels + column * g->n;
  int64_t seen_classes[CLV_LOOK_MAX_CLASSES];
  size_t n = 0;
  for (size_t i = 0; i < g->n; i++) {
    size_t k = 0;
    ret[i] = LOOK_NO_CLASS;
    if (label[i] < 0) continue;
    while (k < n && seen_classes[k] != label[i]) k++;
    if (k == CLV_LOOK_MAX_CLASSES) continue;
    if (k == n) seen_classes[n++] = label[i];
    ret[i] = (uint16_t)k;
  }
  return n;
}

static double compute_length(const float *v, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
  return sqrt(sum);
}

static clv_code label_reading_new(const clv_look_gradients *g, label_reading *r, clv_err *err) {
  *r = (label_reading){.g = g};
  CLV_TRY(clv_alloc(g->n, sizeof *r->class_numbers, &r->class_numbers, err));
  CLV_TRY(clv_alloc(g->n, sizeof *r->gradient_lengths, &r->gradient_lengths, err));
  CLV_TRY(clv_alloc(g->n, sizeof *r->cluster_indexes, &r->cluster_indexes, err));
  CLV_TRY(look_groups_new(CLV_LOOK_MAX_CLASSES, &r->groups, err));
  for (size_t i = 0; i < g->n; i++)
    r->gradient_lengths[i] = compute_length(get_gradient(r, i), g->width);
  return CLV_OK;
}

static void add_to_group(label_reading *r, size_t i, size_t group) {
  if (r->class_numbers[i] != LOOK_NO_CLASS)
    look_groups_add(&r->groups, i < r->g->n_fit, group, r->class_numbers[i]);
}

static double score_groups(label_reading *r, const char *by) {
  look_score s = look_groups_score(&r->groups);
  if (s.fit_score > r->best_fit_score || !*r->reading.by) {
    r->best_fit_score = s.fit_score;
    r->reading = (clv_look_reading){s.test_score, by};
  }
  return s.fit_score;
}

/* ---- ways to group the gradients ------------------------------------------------------------- */

static size_t get_sign_group(float v) { return v > 0 ? 2 : v < 0; }

static void group_by_signs(label_reading *r) {
  size_t n_values = r->g->width,
         max_signs = CLV_MIN((size_t)MAX_TRIED_SIGNS_PER_COLUMN, MAX_TRIED_SIGNS / r->g->n_columns);
  size_t value_step = CLV_MAX(n_values / CLV_MAX(max_signs, (size_t)1), (size_t)1);
  for (size_t k = 0; k < n_values; k += value_step) {
    look_groups_clear(&r->groups, 3);
    for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, get_sign_group(get_gradient(r, i)[k]));
    score_groups(r, "sign");
  }
}

static void group_by_zeros(label_reading *r) {
  look_groups_clear(&r->groups, 2);
  for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, r->gradient_lengths[i] > 0);
  score_groups(r, "zeros");
}

static size_t find_length_group(double length, const double *group_ends, size_t n_group_ends) {
  size_t group = 0;
  for (size_t k = 0; k < n_group_ends; k++) group += length > group_ends[k];
  return group;
}

static double score_length_groups(label_reading *r, const double *group_ends, size_t n_group_ends) {
  look_groups_clear(&r->groups, n_group_ends + 1);
  for (size_t i = 0; i < r->g->n; i++)
    add_to_group(r, i, find_length_group(r->gradient_lengths[i], group_ends, n_group_ends));
  return look_groups_score(&r->groups).fit_score;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Groups the gradients by their length (norm). Chooses the limits between the groups one after the
 * other, each so that most labels of the first half are read. */
static clv_code group_by_lengths(label_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) double *sorted_lengths = NULL;
  size_t n = r->g->n_fit;
  size_t n_length_groups = r->g->n_length_groups[r->column];
  size_t n_group_ends =
      CLV_MIN(CLV_MAX(n_length_groups, (size_t)2), (size_t)CLV_LOOK_MAX_LENGTH_GROUPS) - 1;
  double group_ends[CLV_LOOK_MAX_LENGTH_GROUPS];
  CLV_TRY(clv_alloc(n, sizeof *sorted_lengths, &sorted_lengths, err));
  memcpy(sorted_lengths, r->gradient_lengths, n * sizeof *sorted_lengths);
  qsort(sorted_lengths, n, sizeof *sorted_lengths, compare_doubles);
  for (size_t k = 0; k < n_group_ends; k++) {
    double best_figure = -1, best_group_end = 0;
    for (size_t c = 1; c < N_CANDIDATE_LENGTHS; c++) {
      size_t at = c * n / N_CANDIDATE_LENGTHS;
      group_ends[k] = at ? (sorted_lengths[at - 1] + sorted_lengths[at]) / 2 : 0;
      double figure = score_length_groups(r, group_ends, k + 1);
      if (figure > best_figure) best_figure = figure, best_group_end = group_ends[k];
    }
    group_ends[k] = best_group_end;
  }
  score_length_groups(r, group_ends, n_group_ends);
  score_groups(r, "length");
  return CLV_OK;
}

/* Returns the cosine of the angle between gradient i and the vector `to`, times the norm of `to`; 0
 * for a gradient of zeros. */
static double compute_cosine(const label_reading *r, size_t i, const float *to) {
  if (!(r->gradient_lengths[i] > 0)) return 0;
  return (double)look_dot_product(get_gradient(r, i), to, r->g->width) / r->gradient_lengths[i];
}

/* Sets the centers of the two clusters: the first gradient that is not zero, and the gradient of
 * the first half that is least similar to it. */
static void choose_initial_centers(const label_reading *r, float *centers) {
  size_t first_center_index = 0, width = r->g->width, second_center_index = 0;
  double least_cosine = 2;
  while (first_center_index + 1 < r->g->n_fit && !(r->gradient_lengths[first_center_index] > 0))
    first_center_index++;
  memcpy(centers, get_gradient(r, first_center_index), width * sizeof *centers);
  for (size_t i = 0; i < r->g->n_fit; i++) {
    double c =
        compute_cosine(r, i, centers) / CLV_MAX(r->gradient_lengths[first_center_index], 1e-300);
    if (r->gradient_lengths[i] > 0 && c < least_cosine) least_cosine = c, second_center_index = i;
  }
  memcpy(centers + width, get_gradient(r, second_center_index), width * sizeof *centers);
}

/* Scales a vector to Euclidean norm 1. */
static void scale_to_unit_length(float *at, size_t width) {
  double length = compute_length(at, width);
  for (size_t k = 0; length > 0 && k < width; k++) at[k] = (float)((double)at[k] / length);
}

static size_t find_nearer_cluster(const label_reading *r, size_t i, const float *centers) {
  if (!(r->gradient_lengths[i] > 0)) return 2;
  return compute_cosine(r, i, centers + r->g->width) > compute_cosine(r, i, centers);
}

/* Assigns each gradient to the cluster with the nearer center. Returns true if a gradient of the
 * first half, from which the attack learns, has changed its cluster. */
static bool assign_to_clusters(const label_reading *r, const float *centers, float *next_centers,
                               uint8_t *cluster_indexes) {
  size_t width = r->g->width;
  bool has_moved = false;
  memset(next_centers, 0, 2 * width * sizeof *next_centers);
  for (size_t i = 0; i < r->g->n_fit; i++) {
    uint8_t cluster = (uint8_t)find_nearer_cluster(r, i, centers);
    const float *v = get_gradient(r, i),
                scale = cluster < 2 ? (float)(1 / r->gradient_lengths[i]) : 0.f;
    has_moved |= cluster_indexes[i] != cluster;
    cluster_indexes[i] = cluster;
    for (size_t k = 0; cluster < 2 && k < width; k++)
      next_centers[cluster * width + k] += v[k] * scale;
  }
  return has_moved;
}

/* Computes the cluster of each gradient, which does not depend on the column of labels. */
static clv_code compute_clusters(label_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) float *centers = NULL, *next_centers = NULL;
  size_t width = r->g->width;
  bool has_moved = true;
  CLV_TRY(clv_alloc(2 * width, sizeof *centers, &centers, err));
  CLV_TRY(clv_alloc(2 * width, sizeof *next_centers, &next_centers, err));
  choose_initial_centers(r, centers);
  for (int round = 0; round < MAX_KMEANS_ROUNDS && has_moved; round++) {
    scale_to_unit_length(centers, width);
    scale_to_unit_length(centers + width, width);
    has_moved = assign_to_clusters(r, centers, next_centers, r->cluster_indexes) || !round;
    memcpy(centers, next_centers, 2 * width * sizeof *centers);
  }
  scale_to_unit_length(centers, width);
  scale_to_unit_length(centers + width, width);
  for (size_t i = 0; i < r->g->n; i++)
    r->cluster_indexes[i] = (uint8_t)find_nearer_cluster(r, i, centers);
  return CLV_OK;
}

static void group_by_clusters(label_reading *r) {
  look_groups_clear(&r->groups, 3);
  for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, r->cluster_indexes[i]);
  score_groups(r, "two clusters");
}

/* Groups gradients of the model's outputs by the output with the most negative gradient, which
 * often is the label's class. */
static void group_by_outputs(label_reading *r) {
  size_t width = r->g->width;
  if (!r->g->are_of_outputs || width > MAX_MODEL_OUTPUTS) return;
  look_groups_clear(&r->groups, width);
  for (size_t i = 0; i < r->g->n; i++) {
    const float *v = get_gradient(r, i);
    size_t least_output = 0;
    for (size_t k = 1; k < width; k++)
      if (v[k] < v[least_output]) least_output = k;
    add_to_group(r, i, least_output);
  }
  score_groups(r, "the one negative value");
}

static clv_code read_column(label_reading *r, size_t column, clv_err *err) {
  r->column = column;
  r->best_fit_score = 0;
  r->reading = (clv_look_reading){.by = ""};
  r->groups.n_classes = CLV_MAX(look_number_classes(r->g, column, r->class_numbers), 1u);
  group_by_zeros(r);
  group_by_signs(r);
  group_by_clusters(r);
  CLV_TRY(group_by_lengths(r, err));
  group_by_outputs(r);
  return CLV_OK;
}

clv_code clv_look_read_labels(const clv_look_gradients *g, clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(label_reading_done) label_reading r = {0};
  *ret = (clv_look_reading){.by = ""};
  if (!g->width || g->n_fit < 2 || g->n <= g->n_fit) return CLV_OK;
  CLV_TRY(label_reading_new(g, &r, err));
  CLV_TRY(compute_clusters(&r, err));
  for (size_t k = 0; k < g->n_columns; k++) {
    CLV_TRY(read_column(&r, k, err));
    if (!*ret->by || r.reading.figure > ret->figure) *ret = r.reading;
  }
  return CLV_OK;
}
