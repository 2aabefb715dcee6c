/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_int: the extents of attention, for all that compute it.
 *
 * Inputs: queries [N, T, heads * width], keys and values [N, S, kv_heads * width], and lengths [N].
 * Head h of the queries meets head h / (heads / kv_heads) of keys and values.
 */
#ifndef CLEAVE_OPS_ATTENTION_INT_H
#define CLEAVE_OPS_ATTENTION_INT_H

#include <math.h>

#include "kernels/ops/ops.h"

typedef struct clv_heads {
  int64_t n, t, s, heads, kv_heads, width, group; /* group: heads / kv_heads */
  double scale;                                   /* of scores: 1 / sqrt(width) */
} clv_heads;

static inline clv_heads clv_heads_of(const clv_attrs *attrs, const clv_shape *q,
                                     const clv_shape *k) {
  int64_t heads = attrs->heads, kv = attrs->kv_heads ? attrs->kv_heads : heads;
  int64_t width = q->dim[2] / heads;
  return (clv_heads){q->dim[0], q->dim[1], k->dim[1],  heads,
                     kv,        width,     heads / kv, 1 / sqrt((double)width)};
}

/* Keys that query i of a sample meets: none behind `length`, and with causal none behind i. */
static inline int64_t clv_heads_seen(const clv_attrs *attrs, int64_t i, int64_t length) {
  return attrs->causal && i + 1 < length ? i + 1 : length;
}

#endif
