/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_int: what describe.c and profile.c know for those that suggest cuts.
 */
#ifndef CLEAVE_PLAN_INT_H
#define CLEAVE_PLAN_INT_H

#include "common/models/models.h"
#include "master/plan/plan.h"

/* ---- layers ------------------------------------------------------------------------------------ */

enum { CLV_PROFILE_SIZES = 8 };

typedef struct clv_profile {
  int threads;
  uint32_t n_layers, n_sizes;
  int64_t size[CLV_PROFILE_SIZES];          /* samples, descending from the batch */
  clv_plan_times *times[CLV_PROFILE_SIZES]; /* [n_layers] */
} clv_profile;

clv_code clv_profile_new(const clv_blueprint *b, int threads, clv_profile **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_profile_free(clv_profile *p); /* NULL is allowed */
void clv_profile_freep(clv_profile **p);
/* Of so many samples, between those that were measured. */
clv_plan_times clv_profile_at(const clv_profile *p, uint32_t layer, double samples);
/* Bytes that a stage keeps, with so many micro-batches at once (describe.c). */
clv_code clv_stage_memory(const clv_blueprint *b, uint32_t stage, uint32_t live, size_t *ret,
                          clv_err *err) CLV_USE_RESULT;

#endif
