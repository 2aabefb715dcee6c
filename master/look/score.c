/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores groups of samples for the attacks of the look: the answer for each group is one class.
 */
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

double look_skill_score(double hits, double base) {
  if (base >= 1 || hits <= base) return 0;
  return (hits - base) / (1 - base);
}

enum { N_LANES = 16 }; /* number of parallel sums, which the compiler keeps in vector registers */

static float sum_lanes(const float *lanes) {
  float sum = 0;
  for (size_t k = 0; k < N_LANES; k++) sum += lanes[k];
  return sum;
}

float look_dot(const float *a, const float *b, size_t n) {
  float sum[N_LANES] = {0};
  size_t i = 0;
  for (; i + N_LANES <= n; i += N_LANES)
    for (size_t k = 0; k < N_LANES; k++) sum[k] += a[i + k] * b[i + k];
  for (; i < n; i++) sum[0] += a[i] * b[i];
  return sum_lanes(sum);
}

float look_distance(const float *a, const float *b, size_t n) {
  float sum[N_LANES] = {0};
  size_t i = 0;
  for (; i + N_LANES <= n; i += N_LANES)
    for (size_t k = 0; k < N_LANES; k++) sum[k] += (a[i + k] - b[i + k]) * (a[i + k] - b[i + k]);
  for (; i < n; i++) sum[0] += (a[i] - b[i]) * (a[i] - b[i]);
  return sum_lanes(sum);
}

clv_code look_groups_new(size_t n_classes, look_groups *ret, clv_err *err) {
  *ret = (look_groups){.n_classes = n_classes};
  return clv_alloc(2 * LOOK_MAX_GROUPS * n_classes, sizeof *ret->count, &ret->count, err);
}

void look_groups_done(look_groups *g) {
  free(g->count);
  g->count = NULL;
}

void look_groups_clear(look_groups *g, size_t n_groups) {
  g->n_groups = n_groups;
  for (size_t half = 0; half < 2; half++)
    memset(g->count + half * LOOK_MAX_GROUPS * g->n_classes, 0,
           n_groups * g->n_classes * sizeof *g->count);
}

static const uint32_t *get_counts(const look_groups *g, size_t half, size_t group) {
  return g->count + (half * LOOK_MAX_GROUPS + group) * g->n_classes;
}

static size_t find_commonest(const uint32_t *count, size_t n) {
  size_t best = 0;
  for (size_t i = 1; i < n; i++)
    if (count[i] > count[best]) best = i;
  return best;
}

static double score_half(const look_groups *g, size_t half) {
  uint32_t class_counts[CLV_LOOK_MAX_CLASSES] = {0};
  uint64_t hits = 0, n = 0;
  for (size_t k = 0; k < g->n_groups; k++) {
    const uint32_t *row = get_counts(g, half, k);
    hits += row[find_commonest(get_counts(g, 0, k), g->n_classes)];
    for (size_t c = 0; c < g->n_classes; c++) class_counts[c] += row[c];
  }
  for (size_t c = 0; c < g->n_classes; c++) n += class_counts[c];
  if (!n) return 0;
  double base_share = (double)class_counts[find_commonest(class_counts, g->n_classes)] / (double)n;
  return look_skill_score((double)hits / (double)n, base_share);
}

look_score look_groups_score(const look_groups *g) {
  return (look_score){.fit = score_half(g, 0), .report = score_half(g, 1)};
}
