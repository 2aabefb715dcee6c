/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimiser of a module: allocates the moments, and calls the backend's step function, which
 * has the formulas, for the spans of each group.
 */
#include "common/model/optim/optim.h"
#include "kernels/steps/steps.h"

#include <stdlib.h>
#include <string.h>

struct clv_optim {
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS];
  size_t n_groups;
  const clv_backend *backend;
  clv_extent *group_extents;              /* the spans of the parameter block, ordered by group */
  size_t n_extents[CLV_OPTIM_MAX_GROUPS]; /* number of spans of each group */
  size_t n_all_extents;                   /* sum of n_extents */
  uint32_t moment_mask;                   /* bit k: at least one group has moment k of the kind */
  float *moment_blocks[CLV_OPTIM_MAX_STATES]; /* in the backend's memory; NULL: no group has it */
  /* size in bytes of the parameters, and of each moment block */
  size_t block_bytes;
  int64_t steps_taken; /* number of steps taken */
};

/* ---- settings of parameter groups ------------------------------------------------------------ */

static clv_code check_groups(const clv_optim_config *groups, size_t n, clv_err *err) {
  if (!n || n > CLV_OPTIM_MAX_GROUPS)
    return clv_fail(err, CLV_INVALID, "an optimizer has 1 to %d groups, not %zu",
                    CLV_OPTIM_MAX_GROUPS, n);
  for (size_t i = 0; i < n; i++) {
    CLV_TRY(clv_optim_check(&groups[i], err));
    if (groups[i].kind != groups[0].kind)
      return clv_fail(err, CLV_INVALID, "optimizer group %zu is of kind %d, group 0 of kind %d", i,
                      (int)groups[i].kind, (int)groups[0].kind);
    if (groups[i].ema != groups[0].ema || groups[i].ema_warmup != groups[0].ema_warmup)
      return clv_fail(
          err, CLV_INVALID,
          "optimizer group %zu has ema %g, group 0 has %g: give all groups the same ema and "
          "ema_warmup",
          i, groups[i].ema, groups[0].ema);
  }
  return CLV_OK;
}

static clv_code check_span_in_block(const clv_optim_span *span, size_t n_groups, size_t block_bytes,
                                    clv_err *err) {
  size_t bytes, end;
  if (span->group_index >= n_groups)
    return clv_fail(err, CLV_INVALID, "optimizer span is in group %zu, but there are %zu groups",
                    span->group_index, n_groups);
  if (span->offset % sizeof(float) == 0 && clv_mul_size(span->n, sizeof(float), &bytes) &&
      clv_add_size(span->offset, bytes, &end) && end <= block_bytes)
    return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "optimizer span of %zu values at byte %zu is outside its block of %zu bytes, or "
                  "not on a multiple of 4 bytes",
                  span->n, span->offset, block_bytes);
}

/* ---- creating and freeing an optimiser ------------------------------------------------------- */

static void sort_spans(clv_optim *o, const clv_optim_span *spans, size_t n_spans) {
  clv_extent *next = o->group_extents;
  for (size_t g = 0; g < o->n_groups; g++) {
    clv_extent *first = next;
    for (size_t i = 0; i < n_spans; i++)
      if (spans[i].group_index == g)
        *next++ = (clv_extent){spans[i].offset / sizeof(float), spans[i].n};
    o->n_extents[g] = (size_t)(next - first);
  }
  o->n_all_extents = (size_t)(next - o->group_extents);
}

static clv_code alloc_memory(clv_optim *o, size_t block_bytes, const clv_optim_span *spans,
                             size_t n_spans, clv_err *err) {
  CLV_TRY(clv_alloc(n_spans, sizeof *o->group_extents, &o->group_extents, err));
  sort_spans(o, spans, n_spans);
  o->block_bytes = block_bytes;
  for (int i = 0; i < CLV_OPTIM_MAX_STATES; i++) {
    if (!(o->moment_mask >> i & 1)) continue;
    CLV_TRY(clv_backend_allocate(o->backend, block_bytes, &o->moment_blocks[i], err));
    CLV_TRY(clv_backend_fill(o->backend, o->moment_blocks[i], 0, block_bytes, err));
  }
  return CLV_OK;
}

/* For adagrad, sets the sums of squares to initial_accumulator_value. */
static clv_code init_adagrad_sums(clv_optim *o, size_t block_bytes, clv_err *err) {
  CLV_AUTO(clv_freep) float *sums = NULL;
  const clv_extent *r = o->group_extents;
  if (o->groups[0].kind != CLV_OPTIM_ADAGRAD) return CLV_OK;
  CLV_TRY(clv_alloc(block_bytes, 1, &sums, err));
  for (size_t g = 0; g < o->n_groups; g++)
    for (const clv_extent *end = r + o->n_extents[g]; r < end; r++)
      for (size_t k = 0; k < r->n; k++)
        sums[r->at + k] = (float)o->groups[g].initial_accumulator_value;
  return clv_backend_put(o->backend, o->moment_blocks[0], sums, block_bytes, err);
}

clv_code clv_optim_new(const clv_optim_config *groups, size_t n_groups, size_t block_bytes,
                       const clv_optim_span *spans, size_t n_spans, const clv_backend *backend,
                       clv_optim **ret, clv_err *err) {
  CLV_AUTO(clv_optim_freep) clv_optim *o = NULL;
  CLV_TRY(check_groups(groups, n_groups, err));
  for (size_t i = 0; i < n_spans; i++)
    CLV_TRY(check_span_in_block(&spans[i], n_groups, block_bytes, err));
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  memcpy(o->groups, groups, n_groups * sizeof *groups);
  o->n_groups = n_groups;
  o->backend = backend;
  for (size_t i = 0; i < n_groups; i++) o->moment_mask |= clv_optim_moment_mask(&groups[i]);
  CLV_TRY(alloc_memory(o, block_bytes, spans, n_spans, err));
  CLV_TRY(init_adagrad_sums(o, block_bytes, err));
  CLV_TRY(clv_backend_finish(backend, err));
  *ret = clv_steal(&o);
  return CLV_OK;
}

clv_optim *clv_optim_free(clv_optim *o) {
  if (!o) return NULL;
  for (int i = 0; i < CLV_OPTIM_MAX_STATES; i++)
    clv_backend_free_memory(o->backend, o->moment_blocks[i]);
  free(o->group_extents);
  free(o);
  return NULL;
}

void clv_optim_freep(clv_optim **o) { *o = clv_optim_free(*o); }

/* ---- the average of the parameters ----------------------------------------------------------- */

clv_code clv_optim_begin_ema(clv_optim *o, const float *params, clv_err *err) {
  float *ema = o->moment_blocks[CLV_OPTIM_EMA];
  if (!ema) return CLV_OK;
  CLV_TRY(clv_backend_copy(o->backend, ema, params, o->block_bytes, err));
  return clv_backend_finish(o->backend, err);
}

float *clv_optim_ema(const clv_optim *o) { return o->moment_blocks[CLV_OPTIM_EMA]; }

/* Moves the average towards factor p, where p are the parameters: ema -= rate (ema - factor p). An
 * sgd step on the average computes this, with the gradient -factor p and weight decay 1, and rounds
 * as torch's lerp. So backends need no operation for averages. */
static void move_average(clv_optim *o, const float *params, double rate, float factor) {
  float *const no_moments[CLV_OPTIM_MAX_MOMENTS] = {NULL};
  const clv_step_args a = {
      .kind = CLV_OPTIM_SGD, .grad_scale = -factor, .weight_decay = 1, .step_size = (float)rate};
  o->backend->step(o->backend, &a, o->moment_blocks[CLV_OPTIM_EMA], params, no_moments,
                   o->group_extents, o->n_all_extents);
}

/* Updates the average after a step. The first step sets the average to 0 and then adds the
 * parameters p to it, because ema - (ema - p) is not always p to the bit. */
static void update_average(clv_optim *o, const float *params) {
  double t = (double)o->steps_taken, decay = o->groups[0].ema;
  if (!o->moment_blocks[CLV_OPTIM_EMA]) return;
  if (o->groups[0].ema_warmup) decay = CLV_MIN(decay, (1 + t) / (10 + t));
  if (o->steps_taken == 1) move_average(o, params, 1, 0);
  move_average(o, params, o->steps_taken == 1 ? 1 : 1 - decay, 1);
}

/* ---- taking a step --------------------------------------------------------------------------- */

void clv_optim_step(clv_optim *o, float *params, const float *grads, const double *lr,
                    double grad_scale) {
  const clv_extent *extents = o->group_extents;
  o->steps_taken++;
  for (size_t g = 0; g < o->n_groups; extents += o->n_extents[g++]) {
    uint32_t group_moment_mask = clv_optim_moment_mask(&o->groups[g]);
    float *moments[CLV_OPTIM_MAX_MOMENTS];
    clv_step_args a;
    clv_step_prepare(&o->groups[g], o->steps_taken, lr[g], grad_scale, &a);
    for (int k = 0; k < CLV_OPTIM_MAX_MOMENTS; k++)
      moments[k] = group_moment_mask >> k & 1 ? o->moment_blocks[k] : NULL;
    o->backend->step(o->backend, &a, params, grads, moments, extents, o->n_extents[g]);
  }
  update_average(o, params);
}

size_t clv_optim_n_groups(const clv_optim *o) { return o->n_groups; }

/* ---- state for checkpoints ------------------------------------------------------------------- */

int clv_optim_n_moments(const clv_optim *o) { return clv_optim_count_moments(o->moment_mask); }

/* Returns the index in the kind's row of moment i of this optimiser; -1: it has no moment i. */
static int moment_index_in_row(const clv_optim *o, int i) {
  for (int k = 0; k < CLV_OPTIM_MAX_STATES && i >= 0; k++)
    if ((o->moment_mask >> k & 1) && i-- == 0) return k;
  return -1;
}

const char *clv_optim_moment_name(const clv_optim *o, int i) {
  int k = moment_index_in_row(o, i);
  return k < 0 ? NULL : clv_optim_moment_name_of(o->groups[0].kind, k);
}

float *clv_optim_moment(clv_optim *o, int i) {
  int k = moment_index_in_row(o, i);
  return k < 0 ? NULL : o->moment_blocks[k];
}

int64_t *clv_optim_step_count(clv_optim *o) { return &o->steps_taken; }
