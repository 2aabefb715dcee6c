/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds weights that hide nothing even if no one else has them: an identity, a permutation, a
 * tensor of equal values, and transforms that anybody knows (public_rows.c). The caller begins with
 * the tensor's shape, adds all values in order, and calls clv_plain_values_reason.
 */
#include <math.h>

#include "master/egress/egress_int.h"

/* Fewest effective values of a row. A row has (sum of squares)^2 / (sum of 4th powers) effective
 * values: 1 if one value alone differs from 0, n if n values are equally large. A tensor hides
 * nothing if one of its rows has fewer effective values than this. */
static const double MIN_EFFECTIVE_VALUES = 1.1;

static const char PLAIN_REASON[] =
    "has values in its file that pass single inputs on, or one sum alone";
static const char PUBLIC_REASON[] =
    "has rows in its file that follow from a few numbers, as those of a cosine transform: anybody "
    "may know them";

clv_code clv_plain_values_begin(clv_plain_values *p, const clv_shape *shape, clv_err *err) {
  uint64_t n = 1;
  for (int d = 0; d < shape->rank; d++) n *= (uint64_t)shape->dim[d];
  *p = (clv_plain_values){.min_effective_values = INFINITY,
                          .min_value = INFINITY,
                          .max_value = -INFINITY,
                          .n_values = n,
                          .row_length = (size_t)(n / (uint64_t)shape->dim[0])};
  return clv_public_row_test_new((size_t)shape->dim[0], p->row_length, &p->row_test, err);
}

void clv_plain_values_add(clv_plain_values *p, const float *values, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double square = (double)values[i] * (double)values[i];
    p->min_value = fminf(p->min_value, values[i]);
    p->max_value = fmaxf(p->max_value, values[i]);
    p->squares_sum += square;
    p->fourth_powers_sum += square * square;
    if (++p->n_in_row < p->row_length) continue;
    if (p->fourth_powers_sum > 0)
      p->min_effective_values =
          fmin(p->min_effective_values, p->squares_sum * p->squares_sum / p->fourth_powers_sum);
    p->n_in_row = 0;
    p->squares_sum = p->fourth_powers_sum = 0;
  }
  clv_public_row_test_add(p->row_test, values, n);
}

const char *clv_plain_values_reason(clv_plain_values *p) {
  bool is_plain = p->row_length > 1 && p->n_values > p->row_length &&
                  (p->min_effective_values < MIN_EFFECTIVE_VALUES || p->min_value == p->max_value);
  return is_plain                                     ? PLAIN_REASON
         : clv_public_row_test_is_public(p->row_test) ? PUBLIC_REASON
                                                      : NULL;
}

void clv_plain_values_done(clv_plain_values *p) {
  if (p) clv_public_row_test_freep(&p->row_test);
}
