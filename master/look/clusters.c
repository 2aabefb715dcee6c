/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads groups of labels (clv_look_read_label_groups), as one attack of the look, which measures
 * before a run what sent tensors show. Gradients of one class have similar directions, so as many
 * clusters as there are classes show which records share a label. Someone who knows one label of
 * each cluster then knows all labels.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MAX_CLUSTERS = 64,
  MAX_COMPARED_VALUES = 256, /* most values of a gradient that are compared */
  N_KMEANS_STARTS = 4,
  /* number of gradients that are tried as the center of a new cluster; the best one is taken */
  N_CANDIDATE_CENTERS = 3,
  MAX_KMEANS_ROUNDS = 10,
};

typedef struct cluster_set {
  const clv_look_gradients *g;
  size_t values_per_row; /* compared values of a gradient */
  size_t n_clusters;
  /* [n][values_per_row] gradients scaled to Euclidean norm 1; a gradient of zeros stays zero */
  float *rows;
  /* [n_clusters][values_per_row] cluster centers of norm 1; zeros: the cluster is empty */
  float *centers;
  float *similarities; /* [n_fit] similarity of each gradient to the most similar center */
  float *candidate_similarities; /* [n_fit] `similarities` if there were one more center */
  uint16_t *cluster_indexes;     /* [n] cluster index of each gradient; UINT16_MAX: none */
  uint16_t *class_numbers;       /* [n] class number of each gradient's label */
  uint32_t n_random_draws;       /* number of random numbers drawn so far */
} cluster_set;

static void cluster_set_done(cluster_set *s) {
  free(s->rows);
  free(s->centers);
  free(s->similarities);
  free(s->candidate_similarities);
  free(s->cluster_indexes);
  free(s->class_numbers);
}

static float *get_unit_gradient(const cluster_set *s, size_t i) {
  return s->rows + i * s->values_per_row;
}

static bool scale_to_unit_length(float *v, size_t n) {
  double squares_sum = 0;
  for (size_t i = 0; i < n; i++) squares_sum += (double)v[i] * (double)v[i];
  double factor = squares_sum > 0 && isfinite(squares_sum) ? 1 / sqrt(squares_sum) : 0;
  for (size_t i = 0; i < n; i++) v[i] = factor > 0 ? (float)((double)v[i] * factor) : 0;
  return factor > 0;
}

static clv_code cluster_set_new(const clv_look_gradients *g, cluster_set *s, clv_err *err) {
  size_t value_step = (g->width + MAX_COMPARED_VALUES - 1) / MAX_COMPARED_VALUES;
  *s = (cluster_set){.g = g, .values_per_row = g->width / value_step};
  CLV_TRY(clv_alloc(g->n * s->values_per_row, sizeof *s->rows, &s->rows, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->cluster_indexes, &s->cluster_indexes, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->class_numbers, &s->class_numbers, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->similarities, &s->similarities, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->candidate_similarities, &s->candidate_similarities, err));
  s->n_clusters = CLV_MIN(look_number_classes(g, 0, s->class_numbers), (size_t)MAX_CLUSTERS);
  for (size_t i = 0; i < g->n; i++) {
    for (size_t k = 0; k < s->values_per_row; k++)
      get_unit_gradient(s, i)[k] = g->values[i * g->width + k * value_step];
    s->cluster_indexes[i] =
        scale_to_unit_length(get_unit_gradient(s, i), s->values_per_row) ? 0 : UINT16_MAX;
  }
  return clv_alloc(CLV_MAX(s->n_clusters, (size_t)1) * s->values_per_row, sizeof *s->centers,
                   &s->centers, err);
}

/* ---- choosing the initial cluster centers ---------------------------------------------------- */

static float draw_random_below(cluster_set *s, float max) {
  const clv_rng_key key = {.seed = 2, .layer = s->n_random_draws++};
  float ret;
  clv_rng_uniform(&key, 0, 1, &ret, 1);
  return ret * max;
}

/* Draws a gradient of the first half, from which the attack learns. The less similar a gradient is
 * to all centers, the more probable it is. */
static size_t draw_gradient_index(cluster_set *s) {
  float weight_sum = 0;
  for (size_t i = 0; i < s->g->n_fit; i++)
    weight_sum += s->cluster_indexes[i] == UINT16_MAX ? 0 : 1 - s->similarities[i];
  float remaining_weight = draw_random_below(s, weight_sum);
  size_t ret = 0;
  for (size_t i = 0; i < s->g->n_fit && remaining_weight >= 0; i++) {
    if (s->cluster_indexes[i] == UINT16_MAX) continue;
    ret = i;
    remaining_weight -= 1 - s->similarities[i];
  }
  return ret;
}

/* Computes the similarity of each gradient to the most similar center, as if row `center_row` were
 * a center as well. Returns the sum of these similarities. */
static double sum_similarities_with_center(cluster_set *s, size_t center_row, float *similarities) {
  double sum = 0;
  for (size_t i = 0; i < s->g->n_fit; i++) {
    float c = look_dot_product(get_unit_gradient(s, i), get_unit_gradient(s, center_row),
                               s->values_per_row);
    similarities[i] = CLV_MAX(s->similarities[i], CLV_MIN(c, 1.f));
    sum += (double)similarities[i];
  }
  return sum;
}

static void choose_initial_centers(cluster_set *s) {
  for (size_t i = 0; i < s->g->n_fit; i++) s->similarities[i] = -1;
  for (size_t k = 0; k < s->n_clusters; k++) {
    double best_sum = -INFINITY;
    size_t best_row = 0;
    for (int t = 0; t < N_CANDIDATE_CENTERS; t++) {
      size_t candidate_row = draw_gradient_index(s);
      double sum = sum_similarities_with_center(s, candidate_row, s->candidate_similarities);
      if (sum > best_sum) best_sum = sum, best_row = candidate_row;
    }
    sum_similarities_with_center(s, best_row, s->similarities);
    memcpy(s->centers + k * s->values_per_row, get_unit_gradient(s, best_row),
           s->values_per_row * sizeof *s->centers);
  }
}

/* ---- moving the cluster centers -------------------------------------------------------------- */

/* Assigns each gradient to the nearest center. Returns true if any assignment has changed. */
static bool assign_clusters(cluster_set *s, size_t n) {
  bool has_moved = false;
  for (size_t i = 0; i < n; i++) {
    float best_similarity = -2;
    size_t best_cluster = 0;
    if (s->cluster_indexes[i] == UINT16_MAX) continue;
    for (size_t k = 0; k < s->n_clusters; k++) {
      float c = look_dot_product(get_unit_gradient(s, i), s->centers + k * s->values_per_row,
                                 s->values_per_row);
      if (c > best_similarity) best_similarity = c, best_cluster = k;
    }
    has_moved |= s->cluster_indexes[i] != best_cluster;
    s->cluster_indexes[i] = (uint16_t)best_cluster;
  }
  return has_moved;
}

/* Sets each center to the sum of the gradients in its cluster, scaled to norm 1. An empty cluster
 * gets a center of zeros. */
static void move_centers(cluster_set *s) {
  memset(s->centers, 0, s->n_clusters * s->values_per_row * sizeof *s->centers);
  for (size_t i = 0; i < s->g->n_fit; i++)
    for (size_t k = 0; s->cluster_indexes[i] != UINT16_MAX && k < s->values_per_row; k++)
      s->centers[s->cluster_indexes[i] * s->values_per_row + k] += get_unit_gradient(s, i)[k];
  for (size_t k = 0; k < s->n_clusters; k++)
    scale_to_unit_length(s->centers + k * s->values_per_row, s->values_per_row);
}

static look_score score_clusters(const cluster_set *s, look_groups *groups) {
  look_groups_clear(groups, s->n_clusters + 1);
  for (size_t i = 0; i < s->g->n; i++)
    if (s->class_numbers[i] != LOOK_NO_CLASS)
      look_groups_add(groups, i < s->g->n_fit,
                      CLV_MIN((size_t)s->cluster_indexes[i], s->n_clusters), s->class_numbers[i]);
  return look_groups_score(groups);
}

clv_code clv_look_read_label_groups(const clv_look_gradients *g, clv_look_reading *ret,
                                    clv_err *err) {
  CLV_AUTO(cluster_set_done) cluster_set s = {0};
  CLV_AUTO(look_groups_done) look_groups groups = {0};
  double best_fit_score = -1;
  *ret = (clv_look_reading){.by = ""};
  if (!g->width || g->n_fit < 2 || g->n <= g->n_fit) return CLV_OK;
  CLV_TRY(cluster_set_new(g, &s, err));
  CLV_TRY(look_groups_new(CLV_LOOK_MAX_CLASSES, &groups, err));
  for (int start = 0; start < N_KMEANS_STARTS && s.n_clusters > 1; start++) {
    choose_initial_centers(&s);
    for (int round = 0; round < MAX_KMEANS_ROUNDS && (assign_clusters(&s, g->n_fit) || !round);
         round++)
      move_centers(&s);
    assign_clusters(&s, g->n);
    look_score score = score_clusters(&s, &groups);
    if (score.fit_score <= best_fit_score) continue;
    best_fit_score = score.fit_score;
    *ret = (clv_look_reading){score.test_score, "clusters of directions"};
  }
  return CLV_OK;
}
