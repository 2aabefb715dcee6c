/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores groups of samples for the attacks of the look: the answer for each group is one class.
 */
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

double look_compute_skill_score(double hit_share, double base_share) {
  if (base_share >= 1 || hit_share <= base_share) return 0;
  return (hit_share - base_share) / (1 - base_share);
}

enum { N_LANES = 16 }; /* number of parallel sums, which the compiler keeps in vector registers */

static float sum_lanes(const float *lanes) {
  float sum = 0;
  for (size_t k = 0; k < N_LANES; k++) sum += lanes[k];
  return sum;
}

float look_dot_product(const float *a, const float *b, size_t n) {
  float sum[N_LANES] = {0};
  size_t i = 0;
  for (; i + N_LANES <= n; i += N_LANES)
    for (size_t k = 0; k < N_LANES; k++) sum[k] += a[i + k] * b[i + k];
  for (; i < n; i++) sum[0] += a[i] * b[i];
  return sum_lanes(sum);
}

float look_squared_distance(const float *a, const float *b, size_t n) {
  float sum[N_LANES] = {0};
  size_t i = 0;
  for (; i + N_LANES <= n; i += N_LANES)
    for (size_t k = 0; k < N_LANES; k++) sum[k] += (a[i + k] - b[i + k]) * (a[i + k] - b[i + k]);
  for (; i < n; i++) sum[0] += (a[i] - b[i]) * (a[i] - b[i]);
  return sum_lanes(sum);
}

clv_code look_groups_new(size_t n_classes, look_groups *ret, clv_err *err) {
  *ret = (look_groups){.n_classes = n_classes};
  return clv_alloc(2 * LOOK_MAX_GROUPS * n_classes, sizeof *ret->sample_counts, &ret->sample_counts,
                   err);
}

void look_groups_done(look_groups *g) {
  free(g->sample_counts);
  g->sample_counts = NULL;
}

void look_groups_clear(look_groups *g, size_t n_groups) {
  g->n_groups = n_groups;
  for (size_t half_index = 0; half_index < 2; half_index++)
    memset(g->sample_counts + half_index * LOOK_MAX_GROUPS * g->n_classes, 0,
           n_groups * g->n_classes * sizeof *g->sample_counts);
}

static const uint32_t *get_group_counts(const look_groups *g, size_t half_index, size_t group) {
  return g->sample_counts + (half_index * LOOK_MAX_GROUPS + group) * g->n_classes;
}

static size_t find_commonest_class(const uint32_t *sample_counts, size_t n) {
  size_t commonest_class = 0;
  for (size_t i = 1; i < n; i++)
    if (sample_counts[i] > sample_counts[commonest_class]) commonest_class = i;
  return commonest_class;
}

static double score_half(const look_groups *g, size_t half_index) {
  uint32_t class_counts[CLV_LOOK_MAX_CLASSES] = {0};
  uint64_t n_hits = 0, n = 0;
  for (size_t k = 0; k < g->n_groups; k++) {
    const uint32_t *group_counts = get_group_counts(g, half_index, k);
    n_hits += group_counts[find_commonest_class(get_group_counts(g, 0, k), g->n_classes)];
    for (size_t c = 0; c < g->n_classes; c++) class_counts[c] += group_counts[c];
  }
  for (size_t c = 0; c < g->n_classes; c++) n += class_counts[c];
  if (!n) return 0;
  double base_share =
      (double)class_counts[find_commonest_class(class_counts, g->n_classes)] / (double)n;
  return look_compute_skill_score((double)n_hits / (double)n, base_share);
}

look_score look_groups_score(const look_groups *g) {
  return (look_score){.fit_score = score_half(g, 0), .test_score = score_half(g, 1)};
}
