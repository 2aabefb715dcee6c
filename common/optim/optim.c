/* SPDX-License-Identifier: Apache-2.0 */
#include "common/optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct clv_optim {
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS];
  size_t n_groups;
  const clv_backend *backend;
  clv_optim_span *spans;
  size_t n_spans;
  int n_moments;
  float *moment[CLV_OPTIM_MAX_MOMENTS];
  int64_t step;
};

/* ---- settings ----------------------------------------------------------------------------------
 */

/* `low <= value`, and below `high` or equal to it where `closed`. NaN is outside every range. */
static clv_code check_range(const char *name, double value, double low, double high, bool closed,
                            clv_err *err) {
  if (value >= low && (value < high || (closed && value == high))) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "optimizer %s is %g; it must be from %g up to %g%s", name,
                  value, low, high, closed ? "" : ", excluded");
}

static clv_code check_config(const clv_optim_config *c, clv_err *err) {
  if (c->kind != CLV_OPTIM_SGD && c->kind != CLV_OPTIM_ADAM && c->kind != CLV_OPTIM_ADAMW)
    return clv_fail(err, CLV_INVALID, "optimizer kind %d is none of 0 (sgd), 1 (adam), 2 (adamw)",
                    (int)c->kind);
  CLV_TRY(check_range("lr", c->lr, 0, INFINITY, false, err));
  CLV_TRY(check_range("weight_decay", c->weight_decay, 0, INFINITY, false, err));
  if (c->kind == CLV_OPTIM_SGD) {
    CLV_TRY(check_range("momentum", c->momentum, 0, 1, true, err));
    if (c->nesterov && c->momentum == 0)
      return clv_fail(err, CLV_INVALID, "optimizer nesterov needs momentum above 0");
    return CLV_OK;
  }
  CLV_TRY(check_range("beta1", c->beta1, 0, 1, false, err));
  CLV_TRY(check_range("beta2", c->beta2, 0, 1, false, err));
  return check_range("eps", c->eps, 0, INFINITY, false, err);
}

static clv_code check_groups(const clv_optim_config *groups, size_t n, clv_err *err) {
  if (!n || n > CLV_OPTIM_MAX_GROUPS)
    return clv_fail(err, CLV_INVALID, "an optimizer with %zu groups; 1 to %d belong here", n,
                    CLV_OPTIM_MAX_GROUPS);
  for (size_t i = 0; i < n; i++) {
    CLV_TRY(check_config(&groups[i], err));
    if (groups[i].kind != groups[0].kind)
      return clv_fail(err, CLV_INVALID, "optimizer group %zu is of kind %d, group 0 of kind %d", i,
                      (int)groups[i].kind, (int)groups[0].kind);
  }
  return CLV_OK;
}

static clv_code check_span(const clv_optim_span *span, size_t n_groups, size_t block_bytes,
                           clv_err *err) {
  size_t bytes, end;
  if (span->group >= n_groups)
    return clv_fail(err, CLV_INVALID, "optimizer span in group %zu of %zu", span->group, n_groups);
  if (span->offset % sizeof(float) == 0 && clv_mul_size(span->n, sizeof(float), &bytes) &&
      clv_add_size(span->offset, bytes, &end) && end <= block_bytes)
    return CLV_OK;
  return clv_fail(err, CLV_INVALID, "optimizer span of %zu values at byte %zu of a block of %zu",
                  span->n, span->offset, block_bytes);
}

/* ---- life --------------------------------------------------------------------------------------
 */

int clv_optim_moments_of(const clv_optim_config *c) {
  if (c->kind != CLV_OPTIM_SGD) return 2;
  return c->momentum != 0 ? 1 : 0;
}

static clv_code take_memory(clv_optim *o, size_t block_bytes, const clv_optim_span *spans,
                            clv_err *err) {
  CLV_TRY(clv_alloc(o->n_spans, sizeof *spans, &o->spans, err));
  if (o->n_spans) memcpy(o->spans, spans, o->n_spans * sizeof *spans);
  for (int i = 0; i < o->n_moments; i++) {
    CLV_TRY(clv_alloc_aligned(block_bytes, &o->moment[i], err));
    memset(o->moment[i], 0, block_bytes);
  }
  return CLV_OK;
}

clv_code clv_optim_new(const clv_optim_config *groups, size_t n_groups, size_t block_bytes,
                       const clv_optim_span *spans, size_t n_spans, const clv_backend *backend,
                       clv_optim **ret, clv_err *err) {
  CLV_AUTO(clv_optim_freep) clv_optim *o = NULL;
  CLV_TRY(check_groups(groups, n_groups, err));
  for (size_t i = 0; i < n_spans; i++) CLV_TRY(check_span(&spans[i], n_groups, block_bytes, err));
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  memcpy(o->groups, groups, n_groups * sizeof *groups);
  o->n_groups = n_groups;
  o->backend = backend;
  o->n_spans = n_spans;
  for (size_t i = 0; i < n_groups; i++)
    o->n_moments = CLV_MAX(o->n_moments, clv_optim_moments_of(&groups[i]));
  CLV_TRY(take_memory(o, block_bytes, spans, err));
  *ret = clv_steal(&o);
  return CLV_OK;
}

clv_optim *clv_optim_free(clv_optim *o) {
  if (!o) return NULL;
  for (int i = 0; i < o->n_moments; i++) free(o->moment[i]);
  free(o->spans);
  free(o);
  return NULL;
}

void clv_optim_freep(clv_optim **o) { *o = clv_optim_free(*o); }

/* ---- a step ------------------------------------------------------------------------------------
 */

static void step_sgd(clv_optim *o, size_t group, float *params, const float *grads, double lr,
                     double scale) {
  const clv_optim_config *c = &o->groups[group];
  bool has_moment = clv_optim_moments_of(c) > 0;
  const clv_sgd_args a = {.lr = (float)lr,
                          .momentum = (float)c->momentum,
                          .weight_decay = (float)c->weight_decay,
                          .grad_scale = (float)scale,
                          .nesterov = c->nesterov,
                          .first = o->step == 1};
  for (size_t i = 0; i < o->n_spans; i++) {
    if (o->spans[i].group != group) continue;
    size_t at = o->spans[i].offset / sizeof(float);
    float *m = has_moment ? o->moment[0] + at : NULL;
    o->backend->sgd(&a, params + at, grads + at, m, o->spans[i].n);
  }
}

static void step_adam(clv_optim *o, size_t group, float *params, const float *grads, double lr,
                      double scale) {
  const clv_optim_config *c = &o->groups[group];
  const clv_adam_args a = {.lr = (float)lr,
                           .beta1 = (float)c->beta1,
                           .beta2 = (float)c->beta2,
                           .eps = (float)c->eps,
                           .weight_decay = (float)c->weight_decay,
                           .grad_scale = (float)scale,
                           .bias1 = (float)(1 - pow(c->beta1, (double)o->step)),
                           .bias2_sqrt = (float)sqrt(1 - pow(c->beta2, (double)o->step)),
                           .decoupled = c->kind == CLV_OPTIM_ADAMW};
  for (size_t i = 0; i < o->n_spans; i++) {
    if (o->spans[i].group != group) continue;
    size_t at = o->spans[i].offset / sizeof(float);
    o->backend->adam(&a, params + at, grads + at, o->moment[0] + at, o->moment[1] + at,
                     o->spans[i].n);
  }
}

void clv_optim_step(clv_optim *o, float *params, const float *grads, const double *lr,
                    double grad_scale) {
  o->step++;
  for (size_t g = 0; g < o->n_groups; g++) {
    if (o->groups[g].kind == CLV_OPTIM_SGD)
      step_sgd(o, g, params, grads, lr[g], grad_scale);
    else
      step_adam(o, g, params, grads, lr[g], grad_scale);
  }
}

size_t clv_optim_n_groups(const clv_optim *o) { return o->n_groups; }

/* ---- state -------------------------------------------------------------------------------------
 */

int clv_optim_n_moments(const clv_optim *o) { return o->n_moments; }

const char *clv_optim_moment_name(const clv_optim *o, int i) {
  static const char *const adam_names[] = {"exp_avg", "exp_avg_sq"};
  if (i < 0 || i >= o->n_moments) return NULL;
  return o->groups[0].kind == CLV_OPTIM_SGD ? "momentum_buffer" : adam_names[i];
}

float *clv_optim_moment(clv_optim *o, int i) {
  return i < 0 || i >= o->n_moments ? NULL : o->moment[i];
}

int64_t *clv_optim_step_count(clv_optim *o) { return &o->step; }
