/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SLAB_INT_H
#define CLEAVE_SLAB_INT_H

#include "common/dist/dist_int.h"

/* Records of one size, taken in blocks, reused. Their memory counts against the session's quota. */
typedef struct clv_slab {
  size_t size;
  uint32_t used, most;
  uint32_t block;   /* records taken at once; 0: 64 */
  const char *what; /* for messages */
  void *idle, *blocks;
} clv_slab;

clv_slab clv_slab_of(size_t size, uint32_t most, const char *what);
/* A record of zeros. CLV_EXHAUSTED over `most`, over the quota, or without memory. */
clv_code clv_slab_take_from(clv_pool *pool, clv_slab *s, void *ret_pp, clv_err *err) CLV_USE_RESULT;
void clv_slab_give(clv_slab *s, void *record);
void clv_slab_done(clv_slab *s);

#endif
