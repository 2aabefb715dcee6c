/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads groups of labels (clv_look_label_groups), as one attack of the look, which measures before
 * a run what sent tensors show. Gradients of one class have similar directions, so as many clusters
 * as there are classes show which records share a label. Someone who knows one label of each
 * cluster then knows all labels.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MAX_CLUSTERS = 64,
  MAX_COMPARED_VALUES = 256, /* most values of a gradient that are compared */
  N_STARTS = 4,
  /* number of gradients that are tried as the center of a new cluster; the best one is taken */
  N_TRIED_CENTERS = 3,
  MAX_ROUNDS = 10,
};

typedef struct cluster_set {
  const clv_look_gradients *g;
  size_t width; /* compared values of a gradient */
  size_t n_clusters;
  float *rows;       /* [n][width] gradients scaled to length 1; zeros for a gradient of zeros */
  float *centers;    /* [n_clusters][width] centers of the clusters, of length 1 */
  float *similarity; /* [n_fit] similarity of each gradient to the most similar center */
  float *next_similarity; /* [n_fit] as `similarity`, if one more center is added */
  uint16_t *cluster_of;   /* [n] cluster of each gradient; UINT16_MAX: none */
  uint16_t *class;        /* [n] class number of each gradient's label */
  uint32_t n_drawn;       /* number of random numbers drawn so far */
} cluster_set;

static void cluster_set_done(cluster_set *s) {
  free(s->rows);
  free(s->centers);
  free(s->similarity);
  free(s->next_similarity);
  free(s->cluster_of);
  free(s->class);
}

static float *get_row(const cluster_set *s, size_t i) { return s->rows + i * s->width; }

static bool make_unit(float *v, size_t n) {
  double squares_sum = 0;
  for (size_t i = 0; i < n; i++) squares_sum += (double)v[i] * (double)v[i];
  double factor = squares_sum > 0 && isfinite(squares_sum) ? 1 / sqrt(squares_sum) : 0;
  for (size_t i = 0; i < n; i++) v[i] = factor > 0 ? (float)((double)v[i] * factor) : 0;
  return factor > 0;
}

static clv_code cluster_set_new(const clv_look_gradients *g, cluster_set *s, clv_err *err) {
  size_t step = (g->width + MAX_COMPARED_VALUES - 1) / MAX_COMPARED_VALUES;
  *s = (cluster_set){.g = g, .width = g->width / step};
  CLV_TRY(clv_alloc(g->n * s->width, sizeof *s->rows, &s->rows, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->cluster_of, &s->cluster_of, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->class, &s->class, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->similarity, &s->similarity, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->next_similarity, &s->next_similarity, err));
  s->n_clusters = CLV_MIN(look_number_classes(g, 0, s->class), (size_t)MAX_CLUSTERS);
  for (size_t i = 0; i < g->n; i++) {
    for (size_t k = 0; k < s->width; k++) get_row(s, i)[k] = g->values[i * g->width + k * step];
    s->cluster_of[i] = make_unit(get_row(s, i), s->width) ? 0 : UINT16_MAX;
  }
  return clv_alloc(CLV_MAX(s->n_clusters, (size_t)1) * s->width, sizeof *s->centers, &s->centers,
                   err);
}

/* ---- choosing the first centers -------------------------------------------------------------- */

static float draw_number_below(cluster_set *s, float max) {
  const clv_rng_key key = {.seed = 2, .layer = s->n_drawn++};
  float ret;
  clv_rng_uniform(&key, 0, 1, &ret, 1);
  return ret * max;
}

/* Draws a gradient of the first half, from which the attack learns. A gradient that is less similar
 * to all centers is more probable. */
static size_t draw_row(cluster_set *s) {
  float weight_sum = 0;
  for (size_t i = 0; i < s->g->n_fit; i++)
    weight_sum += s->cluster_of[i] == UINT16_MAX ? 0 : 1 - s->similarity[i];
  float left = draw_number_below(s, weight_sum);
  size_t ret = 0;
  for (size_t i = 0; i < s->g->n_fit && left >= 0; i++) {
    if (s->cluster_of[i] == UINT16_MAX) continue;
    ret = i;
    left -= 1 - s->similarity[i];
  }
  return ret;
}

/* Returns the sum over all gradients of the similarity to the most similar center, if row `row`
 * were a center, too. */
static double try_center(cluster_set *s, size_t row, float *similarity) {
  double sum = 0;
  for (size_t i = 0; i < s->g->n_fit; i++) {
    float c = look_dot(get_row(s, i), get_row(s, row), s->width);
    similarity[i] = CLV_MAX(s->similarity[i], CLV_MIN(c, 1.f));
    sum += (double)similarity[i];
  }
  return sum;
}

static void seed_centers(cluster_set *s) {
  for (size_t i = 0; i < s->g->n_fit; i++) s->similarity[i] = -1;
  for (size_t k = 0; k < s->n_clusters; k++) {
    double best_sum = -INFINITY;
    size_t row = 0;
    for (int t = 0; t < N_TRIED_CENTERS; t++) {
      size_t candidate = draw_row(s);
      double sum = try_center(s, candidate, s->next_similarity);
      if (sum > best_sum) best_sum = sum, row = candidate;
    }
    try_center(s, row, s->similarity);
    memcpy(s->centers + k * s->width, get_row(s, row), s->width * sizeof *s->centers);
  }
}

/* ---- moving the centers ---------------------------------------------------------------------- */

/* Assigns each gradient to the nearest center. Returns true if any assignment has changed. */
static bool assign_clusters(cluster_set *s, size_t n) {
  bool has_moved = false;
  for (size_t i = 0; i < n; i++) {
    float best = -2;
    size_t cluster = 0;
    if (s->cluster_of[i] == UINT16_MAX) continue;
    for (size_t k = 0; k < s->n_clusters; k++) {
      float c = look_dot(get_row(s, i), s->centers + k * s->width, s->width);
      if (c > best) best = c, cluster = k;
    }
    has_moved |= s->cluster_of[i] != cluster;
    s->cluster_of[i] = (uint16_t)cluster;
  }
  return has_moved;
}

/* Moves each center to the direction of the sum of its gradients; an empty cluster gets a zero
 * center. */
static void move_centers(cluster_set *s) {
  memset(s->centers, 0, s->n_clusters * s->width * sizeof *s->centers);
  for (size_t i = 0; i < s->g->n_fit; i++)
    for (size_t k = 0; s->cluster_of[i] != UINT16_MAX && k < s->width; k++)
      s->centers[s->cluster_of[i] * s->width + k] += get_row(s, i)[k];
  for (size_t k = 0; k < s->n_clusters; k++) make_unit(s->centers + k * s->width, s->width);
}

static look_score score_clusters(const cluster_set *s, look_groups *groups) {
  look_groups_clear(groups, s->n_clusters + 1);
  for (size_t i = 0; i < s->g->n; i++)
    if (s->class[i] != LOOK_NO_CLASS)
      look_groups_add(groups, i < s->g->n_fit, CLV_MIN((size_t)s->cluster_of[i], s->n_clusters),
                      s->class[i]);
  return look_groups_score(groups);
}

clv_code clv_look_label_groups(const clv_look_gradients *g, clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(cluster_set_done) cluster_set s = {0};
  CLV_AUTO(look_groups_done) look_groups groups = {0};
  double best = -1;
  *ret = (clv_look_reading){.by = ""};
  if (!g->width || g->n_fit < 2 || g->n <= g->n_fit) return CLV_OK;
  CLV_TRY(cluster_set_new(g, &s, err));
  CLV_TRY(look_groups_new(CLV_LOOK_MAX_CLASSES, &groups, err));
  for (int start = 0; start < N_STARTS && s.n_clusters > 1; start++) {
    seed_centers(&s);
    for (int round = 0; round < MAX_ROUNDS && (assign_clusters(&s, g->n_fit) || !round); round++)
      move_centers(&s);
    assign_clusters(&s, g->n);
    look_score found = score_clusters(&s, &groups);
    if (found.fit <= best) continue;
    best = found.fit;
    *ret = (clv_look_reading){found.report, "clusters of directions"};
  }
  return CLV_OK;
}
