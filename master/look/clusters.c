/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads groups of labels (clv_look_label_groups). Gradients of one class have similar directions,
 * so as many clusters as there are classes show which records share a label. Someone who knows one
 * label of each cluster then knows all labels.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  MOST_CLUSTERS = 64,
  MOST_WIDTH = 256, /* most values of a gradient that are compared */
  STARTS = 4,
  TRIED = 3, /* number of gradients tried as the start of a cluster, of which the best is taken */
  ROUNDS = 10,
};

typedef struct cluster_set {
  const clv_look_gradients *g;
  size_t width, k;
  float *rows;   /* [n][width] gradients scaled to length 1; zeros for a gradient of zeros */
  float *center; /* [k][width] centers of the clusters, of length 1 */
  float *like;   /* [n_fit] similarity of each gradient to the most similar center */
  float *next;   /* [n_fit] as `like`, if one more center is added */
  uint16_t *at;  /* [n] cluster of each gradient; k: none */
  uint16_t *class;
  uint32_t drawn; /* number of random numbers drawn so far */
} cluster_set;

static void set_done(cluster_set *s) {
  free(s->rows);
  free(s->center);
  free(s->like);
  free(s->next);
  free(s->at);
  free(s->class);
}

static float *get_row(const cluster_set *s, size_t i) { return s->rows + i * s->width; }

static bool make_unit(float *v, size_t n) {
  double squares = 0;
  for (size_t i = 0; i < n; i++) squares += (double)v[i] * (double)v[i];
  double by = squares > 0 && isfinite(squares) ? 1 / sqrt(squares) : 0;
  for (size_t i = 0; i < n; i++) v[i] = by > 0 ? (float)((double)v[i] * by) : 0;
  return by > 0;
}

static clv_code set_new(const clv_look_gradients *g, cluster_set *s, clv_err *err) {
  size_t step = (g->width + MOST_WIDTH - 1) / MOST_WIDTH;
  *s = (cluster_set){.g = g, .width = g->width / step};
  CLV_TRY(clv_alloc(g->n * s->width, sizeof *s->rows, &s->rows, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->at, &s->at, err));
  CLV_TRY(clv_alloc(g->n, sizeof *s->class, &s->class, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->like, &s->like, err));
  CLV_TRY(clv_alloc(g->n_fit, sizeof *s->next, &s->next, err));
  s->k = CLV_MIN(look_number_classes(g, 0, s->class), (size_t)MOST_CLUSTERS);
  for (size_t i = 0; i < g->n; i++) {
    for (size_t k = 0; k < s->width; k++) get_row(s, i)[k] = g->values[i * g->width + k * step];
    s->at[i] = make_unit(get_row(s, i), s->width) ? 0 : UINT16_MAX;
  }
  return clv_alloc(CLV_MAX(s->k, (size_t)1) * s->width, sizeof *s->center, &s->center, err);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static float draw_below(cluster_set *s, float most) {
  const clv_rng_key key = {.seed = 2, .layer = s->drawn++};
  float ret;
  clv_rng_uniform(&key, 0, 1, &ret, 1);
  return ret * most;
}

/* Draws a gradient of the first half. A gradient that is less similar to all centers is more
 * probable. */
static size_t draw_row(cluster_set *s) {
  float all = 0;
  for (size_t i = 0; i < s->g->n_fit; i++) all += s->at[i] == UINT16_MAX ? 0 : 1 - s->like[i];
  float left = draw_below(s, all);
  size_t ret = 0;
  for (size_t i = 0; i < s->g->n_fit && left >= 0; i++) {
    if (s->at[i] == UINT16_MAX) continue;
    ret = i;
    left -= 1 - s->like[i];
  }
  return ret;
}

/* Returns the total similarity of all gradients to their most similar centers, if row `row` were a
 * center, too. */
static double try_center(cluster_set *s, size_t row, float *like) {
  double sum = 0;
  for (size_t i = 0; i < s->g->n_fit; i++) {
    float c = look_dot(get_row(s, i), get_row(s, row), s->width);
    like[i] = CLV_MAX(s->like[i], CLV_MIN(c, 1.f));
    sum += (double)like[i];
  }
  return sum;
}

static void seed_centers(cluster_set *s) {
  for (size_t i = 0; i < s->g->n_fit; i++) s->like[i] = -1;
  for (size_t k = 0; k < s->k; k++) {
    double best = -INFINITY;
    size_t row = 0;
    for (int t = 0; t < TRIED; t++) {
      size_t one = draw_row(s);
      double sum = try_center(s, one, s->next);
      if (sum > best) best = sum, row = one;
    }
    try_center(s, row, s->like);
    memcpy(s->center + k * s->width, get_row(s, row), s->width * sizeof *s->center);
  }
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Assigns each gradient to the nearest center. Returns true if any assignment has changed. */
static bool assign_clusters(cluster_set *s, size_t n) {
  bool moved = false;
  for (size_t i = 0; i < n; i++) {
    float best = -2;
    size_t at = 0;
    if (s->at[i] == UINT16_MAX) continue;
    for (size_t k = 0; k < s->k; k++) {
      float c = look_dot(get_row(s, i), s->center + k * s->width, s->width);
      if (c > best) best = c, at = k;
    }
    moved |= s->at[i] != at;
    s->at[i] = (uint16_t)at;
  }
  return moved;
}

/* Moves each center to the direction of the sum of its gradients; an empty cluster gets a zero
 * center. */
static void move_centers(cluster_set *s) {
  memset(s->center, 0, s->k * s->width * sizeof *s->center);
  for (size_t i = 0; i < s->g->n_fit; i++)
    for (size_t k = 0; s->at[i] != UINT16_MAX && k < s->width; k++)
      s->center[s->at[i] * s->width + k] += get_row(s, i)[k];
  for (size_t k = 0; k < s->k; k++) make_unit(s->center + k * s->width, s->width);
}

static look_score score_clusters(const cluster_set *s, look_groups *groups) {
  look_groups_clear(groups, s->k + 1);
  for (size_t i = 0; i < s->g->n; i++)
    if (s->class[i] != LOOK_NO_CLASS)
      look_groups_add(groups, i < s->g->n_fit, CLV_MIN((size_t)s->at[i], s->k), s->class[i]);
  return look_groups_score(groups);
}

clv_code clv_look_label_groups(const clv_look_gradients *g, clv_look_reading *ret, clv_err *err) {
  CLV_AUTO(set_done) cluster_set s = {0};
  CLV_AUTO(look_groups_done) look_groups groups = {0};
  double best = -1;
  *ret = (clv_look_reading){.by = ""};
  if (!g->width || g->n_fit < 2 || g->n <= g->n_fit) return CLV_OK;
  CLV_TRY(set_new(g, &s, err));
  CLV_TRY(look_groups_new(CLV_LOOK_MAX_CLASSES, &groups, err));
  for (int start = 0; start < STARTS && s.k > 1; start++) {
    seed_centers(&s);
    for (int round = 0; round < ROUNDS && (assign_clusters(&s, g->n_fit) || !round); round++)
      move_centers(&s);
    assign_clusters(&s, g->n);
    look_score found = score_clusters(&s, &groups);
    if (found.fit <= best) continue;
    best = found.fit;
    *ret = (clv_look_reading){found.report, "clusters of directions"};
  }
  return CLV_OK;
}
