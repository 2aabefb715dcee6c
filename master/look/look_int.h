/* SPDX-License-Identifier: Apache-2.0
 *
 * look_int: functions that the attacks of the look share (score.c).
 */
#ifndef CLEAVE_LOOK_INT_H
#define CLEAVE_LOOK_INT_H

#include "master/look/look.h"

/* Returns how much better than guessing the answers are, from 0 (no better) to 1 (all are right):
 * (hit_share - base_share) / (1 - base_share), or 0 if base_share is 1. hit_share: fraction of
 * right answers; base_share: fraction of right answers by guessing. */
double look_compute_skill_score(double hit_share, double base_share);

/* Returns the value of a view at a record, place and channel. */
static inline float look_value(const clv_look_view *v, size_t record, size_t place,
                               size_t channel) {
  return v
      ->values[record * v->record_stride + v->first_index + place / v->n_columns * v->row_stride +
               place % v->n_columns * v->column_stride + channel * v->channel_stride];
}

/* Return the dot product and the squared distance of two vectors of n values. */
float look_dot_product(const float *a, const float *b, size_t n);
float look_squared_distance(const float *a, const float *b, size_t n);

/* ---- groups of samples with one answer each -------------------------------------------------- */

enum { LOOK_MAX_GROUPS = CLV_LOOK_MAX_CLASSES, LOOK_NO_CLASS = UINT16_MAX };

/* Numbers the labels of a column from 0 on; ret[i] is LOOK_NO_CLASS if label i is not counted.
 * Returns the number of classes. */
size_t look_number_classes(const clv_look_gradients *g, size_t column, uint16_t *ret);

/* Number of samples of each class in each group, for the half that an attack learns from and the
 * half that it is tested with. The answer for a group is one class. */
typedef struct look_groups {
  size_t n_groups, n_classes;
  /* [2][LOOK_MAX_GROUPS][n_classes] number of samples, by half, group and class */
  uint32_t *sample_counts;
} look_groups;

typedef struct look_score {
  /* fraction of labels read above guessing (0 to 1): fit_score in the half that the attack learns
   * from, test_score in the half that it is tested with */
  double fit_score, test_score;
} look_score;

clv_code look_groups_new(size_t n_classes, look_groups *ret, clv_err *err) CLV_USE_RESULT;
void look_groups_done(look_groups *g);
void look_groups_clear(look_groups *g, size_t n_groups);
static inline void look_groups_add(look_groups *g, bool is_in_fit_half, size_t group,
                                   size_t class) {
  g->sample_counts[((size_t)!is_in_fit_half * LOOK_MAX_GROUPS + group) * g->n_classes + class]++;
}
/* Scores the half that an attack learns from and the half that it is tested with. The answer for
 * each group is its commonest class in the first half. */
look_score look_groups_score(const look_groups *g);

#endif
