/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads labels (clv_look_labels), as one attack of the look, which measures before a run what sent
 * tensors show: groups the gradients by properties that any observer sees, and answers each group
 * with one class.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MAX_SIGNS_OF_ALL = 32768,   /* most values whose signs are tried, for all columns together */
  MAX_SIGNS_OF_COLUMN = 4096, /* most values whose signs are tried, for one column */
  MAX_ROUNDS = 8,             /* most rounds in which the centers of clusters move */
  /* number of lengths (norms) of gradients that are tried as the end of a group */
  N_TRIED_LENGTHS = 64,
  MAX_OUTPUTS = LOOK_MAX_GROUPS,
};

typedef struct label_reading {
  const clv_look_gradients *g;
  size_t column;
  look_groups groups;
  /* [n] class number of each label; LOOK_NO_CLASS: the label is not counted */
  uint16_t *class;
  double *length;           /* [n] length of each gradient */
  uint8_t *cluster_of;      /* [n] cluster of each gradient, 0 or 1; 2: the gradient is zero */
  double best;              /* best figure (skill above guessing) of the first half so far */
  clv_look_reading reading; /* result for the column */
} label_reading;

static void label_reading_done(label_reading *r) {
  look_groups_done(&r->groups);
  free(r->class);
  free(r->length);
  free(r->cluster_of);
}

static const float *get_row(const label_reading *r, size_t i) {
  return r->g->values + i * r->g->width;
}

/* ---- classes of labels and lengths of gradients ---------------------------------------------- */

size_t look_number_classes(const clv_look_gradients *g, size_t column, uint16_t *ret) {
  const int64_t *label = g->label + column * g->n;
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
  CLV_TRY(clv_alloc(g->n, sizeof *r->class, &r->class, err));
  CLV_TRY(clv_alloc(g->n, sizeof *r->length, &r->length, err));
  CLV_TRY(clv_alloc(g->n, sizeof *r->cluster_of, &r->cluster_of, err));
  CLV_TRY(look_groups_new(CLV_LOOK_MAX_CLASSES, &r->groups, err));
  for (size_t i = 0; i < g->n; i++) r->length[i] = compute_length(get_row(r, i), g->width);
  return CLV_OK;
}

static void add_to_group(label_reading *r, size_t i, size_t group) {
  if (r->class[i] != LOOK_NO_CLASS)
    look_groups_add(&r->groups, i < r->g->n_fit, group, r->class[i]);
}

static double score_groups(label_reading *r, const char *by) {
  look_score s = look_groups_score(&r->groups);
  if (s.fit > r->best || !*r->reading.by) {
    r->best = s.fit;
    r->reading = (clv_look_reading){s.report, by};
  }
  return s.fit;
}

/* ---- ways to group the gradients ------------------------------------------------------------- */

static size_t get_sign_group(float v) { return v > 0 ? 2 : v < 0; }

static void read_signs(label_reading *r) {
  size_t width = r->g->width,
         max_signs = CLV_MIN((size_t)MAX_SIGNS_OF_COLUMN, MAX_SIGNS_OF_ALL / r->g->n_columns);
  size_t step = CLV_MAX(width / CLV_MAX(max_signs, (size_t)1), (size_t)1);
  for (size_t k = 0; k < width; k += step) {
    look_groups_clear(&r->groups, 3);
    for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, get_sign_group(get_row(r, i)[k]));
    score_groups(r, "sign");
  }
}

static void read_zeros(label_reading *r) {
  look_groups_clear(&r->groups, 2);
  for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, r->length[i] > 0);
  score_groups(r, "zeros");
}

static size_t find_length_group(double length, const double *ends, size_t n_ends) {
  size_t group = 0;
  for (size_t k = 0; k < n_ends; k++) group += length > ends[k];
  return group;
}

static double try_lengths(label_reading *r, const double *ends, size_t n_ends) {
  look_groups_clear(&r->groups, n_ends + 1);
  for (size_t i = 0; i < r->g->n; i++)
    add_to_group(r, i, find_length_group(r->length[i], ends, n_ends));
  return look_groups_score(&r->groups).fit;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Groups the gradients by their length (norm). Finds, one after the other, the lengths at which
 * groups must end so that most labels of the first half are read. */
static clv_code read_lengths(label_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) double *sorted_lengths = NULL;
  size_t n = r->g->n_fit;
  size_t n_lengths = r->g->n_lengths[r->column];
  size_t n_ends = CLV_MIN(CLV_MAX(n_lengths, (size_t)2), (size_t)CLV_LOOK_MAX_LENGTHS) - 1;
  double group_ends[CLV_LOOK_MAX_LENGTHS];
  CLV_TRY(clv_alloc(n, sizeof *sorted_lengths, &sorted_lengths, err));
  memcpy(sorted_lengths, r->length, n * sizeof *sorted_lengths);
  qsort(sorted_lengths, n, sizeof *sorted_lengths, compare_doubles);
  for (size_t k = 0; k < n_ends; k++) {
    double best = -1, best_group_end = 0;
    for (size_t c = 1; c < N_TRIED_LENGTHS; c++) {
      size_t at = c * n / N_TRIED_LENGTHS;
      group_ends[k] = at ? (sorted_lengths[at - 1] + sorted_lengths[at]) / 2 : 0;
      double figure = try_lengths(r, group_ends, k + 1);
      if (figure > best) best = figure, best_group_end = group_ends[k];
    }
    group_ends[k] = best_group_end;
  }
  try_lengths(r, group_ends, n_ends);
  score_groups(r, "length");
  return CLV_OK;
}

/* Returns the cosine of the angle between gradient i and the vector `to`, times the length of
 * `to`. */
static double compute_cosine(const label_reading *r, size_t i, const float *to) {
  if (!(r->length[i] > 0)) return 0;
  return (double)look_dot(get_row(r, i), to, r->g->width) / r->length[i];
}

/* Sets the centers of the two clusters: a gradient of the first half, and the one that is least
 * similar to it. */
static void begin_clusters(const label_reading *r, float *centers) {
  size_t first = 0, width = r->g->width, least_similar = 0;
  double least_cosine = 2;
  while (first + 1 < r->g->n_fit && !(r->length[first] > 0)) first++;
  memcpy(centers, get_row(r, first), width * sizeof *centers);
  for (size_t i = 0; i < r->g->n_fit; i++) {
    double c = compute_cosine(r, i, centers) / CLV_MAX(r->length[first], 1e-300);
    if (r->length[i] > 0 && c < least_cosine) least_cosine = c, least_similar = i;
  }
  memcpy(centers + width, get_row(r, least_similar), width * sizeof *centers);
}

/* Scales a vector to length 1. */
static void scale_to_unit(float *at, size_t width) {
  double length = compute_length(at, width);
  for (size_t k = 0; length > 0 && k < width; k++) at[k] = (float)((double)at[k] / length);
}

static size_t find_nearer_cluster(const label_reading *r, size_t i, const float *centers) {
  if (!(r->length[i] > 0)) return 2;
  return compute_cosine(r, i, centers + r->g->width) > compute_cosine(r, i, centers);
}

/* Assigns each gradient to the nearer cluster. Returns true if a gradient of the first half, from
 * which the attack learns, has changed its cluster. */
static bool move_clusters(const label_reading *r, const float *centers, float *next_centers,
                          uint8_t *cluster_of) {
  size_t width = r->g->width;
  bool has_moved = false;
  memset(next_centers, 0, 2 * width * sizeof *next_centers);
  for (size_t i = 0; i < r->g->n_fit; i++) {
    uint8_t cluster = (uint8_t)find_nearer_cluster(r, i, centers);
    const float *v = get_row(r, i), scale = cluster < 2 ? (float)(1 / r->length[i]) : 0.f;
    has_moved |= cluster_of[i] != cluster;
    cluster_of[i] = cluster;
    for (size_t k = 0; cluster < 2 && k < width; k++)
      next_centers[cluster * width + k] += v[k] * scale;
  }
  return has_moved;
}

/* Computes the cluster of each gradient, which does not depend on the column of labels. */
static clv_code find_clusters(label_reading *r, clv_err *err) {
  CLV_AUTO(clv_freep) float *centers = NULL, *next_centers = NULL;
  size_t width = r->g->width;
  bool has_moved = true;
  CLV_TRY(clv_alloc(2 * width, sizeof *centers, &centers, err));
  CLV_TRY(clv_alloc(2 * width, sizeof *next_centers, &next_centers, err));
  begin_clusters(r, centers);
  for (int round = 0; round < MAX_ROUNDS && has_moved; round++) {
    scale_to_unit(centers, width);
    scale_to_unit(centers + width, width);
    has_moved = move_clusters(r, centers, next_centers, r->cluster_of) || !round;
    memcpy(centers, next_centers, 2 * width * sizeof *centers);
  }
  scale_to_unit(centers, width);
  scale_to_unit(centers + width, width);
  for (size_t i = 0; i < r->g->n; i++)
    r->cluster_of[i] = (uint8_t)find_nearer_cluster(r, i, centers);
  return CLV_OK;
}

static void read_clusters(label_reading *r) {
  look_groups_clear(&r->groups, 3);
  for (size_t i = 0; i < r->g->n; i++) add_to_group(r, i, r->cluster_of[i]);
  score_groups(r, "two clusters");
}

/* Groups the gradients of outputs: the class is the output with the least (most negative)
 * gradient. */
static void read_outputs(label_reading *r) {
  size_t width = r->g->width;
  if (!r->g->are_of_outputs || width > MAX_OUTPUTS) return;
  look_groups_clear(&r->groups, width);
  for (size_t i = 0; i < r->g->n; i++) {
    const float *v = get_row(r, i);
    size_t least_output = 0;
    for (size_t k = 1; k < width; k++)
      if (v[k] < v[least_output]) least_output = k;
    add_to_group(r, i, least_output);
  }
  score_groups(r, "the one negative value");
}

static clv_code read_column(label_reading *r, size_t column, clv_err *err) {
  r->column = column;
  r->best = 0;
  r->reading = (clv_look_reading){.by = ""};
  r->groups.n_classes = CLV_MAX(look_number_classes(r->g, column, r->class), 1u);
  read_zeros(r);
  read_signs(r);
  read_clusters(r);
  CLV_TRY(read_lengths(r, err));
  read_outputs(r);
  return CLV_OK;
}

clv_code clv_look_labels(const clv_look_gradients *g, clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(label_reading_done) label_reading r = {0};
  *ret = (clv_look_reading){.by = ""};
  if (!g->width || g->n_fit < 2 || g->n <= g->n_fit) return CLV_OK;
  CLV_TRY(label_reading_new(g, &r, err));
  CLV_TRY(find_clusters(&r, err));
  for (size_t k = 0; k < g->n_columns; k++) {
    CLV_TRY(read_column(&r, k, err));
    if (!*ret->by || r.reading.figure > ret->figure) *ret = r.reading;
  }
  return CLV_OK;
}
