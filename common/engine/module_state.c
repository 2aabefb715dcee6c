/* SPDX-License-Identifier: Apache-2.0
 *
 * A module's state by name: complete items, and pieces of them.
 */
#include <stdio.h>
#include <string.h>

#include "common/engine/module_int.h"

/* ---- items of a module's state --------------------------------------------------------------- */

static bool has_moments(const clv_param *p) { return p->trainable && !p->is_fixed; }

static uint32_t count_params_with_moments(const clv_module *m) {
  uint32_t n = 0;
  for (int i = 0; i < m->params->n; i++) n += has_moments(&m->params->list[i]);
  return n;
}

uint32_t clv_module_state_count(const clv_module *m, clv_state_kind what) {
  if (what == CLV_STATE_WEIGHTS) return (uint32_t)m->params->n;
  if (what == CLV_STATE_EMA) return count_params_with_moments(m);
  if (what != CLV_STATE_OPTIMIZER || !m->optim) return 0;
  return (uint32_t)clv_optim_n_moments(m->optim) * count_params_with_moments(m) + 1;
}

/* Returns the average of a parameter before the optimiser's first step; NULL: a step was taken,
 * there is no average, or the parameter is frozen. A write to a frozen parameter leaves its average
 * at the random initial values, because peers can read averages, but perhaps not this parameter
 * (clv_module_withhold). */
static void *find_ema_before_steps(clv_module *m, const clv_param *p) {
  float *ema = m->optim ? clv_optim_ema(m->optim) : NULL;
  bool follows_writes = ema && has_moments(p) && !p->frozen && *clv_optim_step_count(m->optim) == 0;
  return follows_writes ? (char *)ema + p->offset : NULL;
}

static void fill_weight_item(clv_module *m, uint32_t index, clv_state_item *ret) {
  const clv_param *p = &m->params->list[index];
  *ret = (clv_state_item){
      .dtype = p->dtype,
      .shape = p->shape,
      .bytes = p->bytes,
      .data = p->is_shared ? m->shared_params[index]->data : (char *)m->block + p->offset,
      .backend = m->o.backend,
      .ema = find_ema_before_steps(m, p),
      .is_shared = p->is_shared,
      .is_withheld = m->withheld_params && m->withheld_params[index]};
  snprintf(ret->name, sizeof ret->name, "%s", p->name);
}

static void fill_moment_item(clv_module *m, const clv_param *p, int moment, clv_state_item *ret) {
  *ret = (clv_state_item){.dtype = CLV_F32,
                          .shape = p->shape,
                          .bytes = p->bytes,
                          .data = (char *)clv_optim_moment(m->optim, moment) + p->offset,
                          .backend = m->o.backend};
  snprintf(ret->name, sizeof ret->name, "%s.%s", p->name, clv_optim_moment_name(m->optim, moment));
}

/* Returns the index in m->params of the parameter that is number n, from 0, among those with
 * moments. */
static uint32_t find_param_with_moments(const clv_module *m, uint32_t n) {
  uint32_t i = 0;
  while (!has_moments(&m->params->list[i]) || n-- != 0) i++;
  return i;
}

static void find_moment_item(clv_module *m, uint32_t index, clv_state_item *ret) {
  uint32_t n_params = count_params_with_moments(m),
           param = find_param_with_moments(m, index % n_params);
  fill_moment_item(m, &m->params->list[param], (int)(index / n_params), ret);
}

static void fill_step_item(clv_module *m, clv_state_item *ret) {
  *ret = (clv_state_item){
      .name = "step", .dtype = CLV_I64, .bytes = 8, .data = clv_optim_step_count(m->optim)};
}

bool clv_module_state_item(clv_module *m, clv_state_kind what, uint32_t index,
                           clv_state_item *ret) {
  uint32_t n = clv_module_state_count(m, what);
  if (index >= n) return false;
  if (what == CLV_STATE_WEIGHTS)
    fill_weight_item(m, index, ret);
  else if (what == CLV_STATE_EMA)
    fill_weight_item(m, find_param_with_moments(m, index), ret);
  else if (index + 1 < n)
    find_moment_item(m, index, ret);
  else
    fill_step_item(m, ret);
  return true;
}

/* ---- finding an item by name ----------------------------------------------------------------- */

static const clv_param *find_param(const clv_module *m, const char *name, size_t len) {
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (strncmp(p->name, name, len) == 0 && !p->name[len]) return p;
  }
  return NULL;
}

/* Finds a moment by its name, "PARAMETER.MOMENT". */
static bool find_moment(clv_module *m, const char *name, clv_state_item *ret) {
  const char *dot = strrchr(name, '.');
  const clv_param *p = dot ? find_param(m, name, (size_t)(dot - name)) : NULL;
  for (int k = 0; p && has_moments(p) && k < clv_optim_n_moments(m->optim); k++) {
    if (strcmp(dot + 1, clv_optim_moment_name(m->optim, k)) != 0) continue;
    fill_moment_item(m, p, k, ret);
    return true;
  }
  return false;
}

static bool find_item(clv_module *m, clv_state_kind what, const char *name, clv_state_item *ret) {
  const clv_param *p = what == CLV_STATE_WEIGHTS ? clv_params_find(m->params, name) : NULL;
  if (p) fill_weight_item(m, (uint32_t)(p - m->params->list), ret);
  if (what != CLV_STATE_OPTIMIZER || !m->optim) return p;
  if (strcmp(name, "step") != 0) return find_moment(m, name, ret);
  fill_step_item(m, ret);
  return true;
}

clv_code clv_module_state_find(clv_module *m, clv_state_kind what, const char *name,
                               clv_state_item *ret, clv_err *err) {
  if (find_item(m, what, name, ret)) return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND, "module %u has no '%s'", m->o.index, name);
}

/* ---- withheld parameters --------------------------------------------------------------------- */

clv_code clv_module_withhold(clv_module *m, const char *param, const char *why, clv_err *err) {
  const clv_param *p = clv_params_find(m->params, param);
  if (!p) return clv_fail(err, CLV_NOT_FOUND, "module %u has no '%s'", m->o.index, param);
  if (!m->withheld_params)
    CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *m->withheld_params, &m->withheld_params, err));
  m->withheld_params[p - m->params->list] = true;
  snprintf(m->withheld_reason, sizeof m->withheld_reason, "%s", why);
  return CLV_OK;
}

clv_code clv_module_check_readable(const clv_module *m, const clv_state_item *item, clv_err *err) {
  if (!item->is_withheld) return CLV_OK;
  return clv_fail(err, CLV_DENIED, "'%s' cannot be read: %s", item->name, m->withheld_reason);
}

/* ---- reading and writing items of the state -------------------------------------------------- */

clv_code clv_state_item_part(const clv_state_item *item, uint64_t offset, uint64_t length,
                             clv_state_item *ret, clv_err *err) {
  if (offset > item->bytes || length > item->bytes - offset)
    return clv_fail(err, CLV_INVALID, "bytes %llu to %llu of '%s', which has %zu",
                    (unsigned long long)offset, (unsigned long long)(offset + length), item->name,
                    item->bytes);
  *ret = *item;
  ret->dtype = CLV_U8;
  ret->shape = CLV_SHAPE((int64_t)length);
  ret->bytes = (size_t)length;
  ret->data = (char *)item->data + offset;
  if (item->ema) ret->ema = (char *)item->ema + offset;
  return CLV_OK;
}

clv_code clv_state_item_get(const clv_state_item *item, void *ret, clv_err *err) {
  if (item->backend) return clv_backend_get(item->backend, ret, item->data, item->bytes, err);
  memcpy(ret, item->data, item->bytes);
  return CLV_OK;
}

clv_code clv_state_item_check(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                              clv_err *err) {
  char expected_text[160], given_text[160];
  if (item->is_shared)
    return clv_fail(err, CLV_DENIED, "'%s' is read-only: several sessions may share it",
                    item->name);
  if (item->dtype != dtype || !clv_shape_equal(&item->shape, shape))
    return clv_fail(err, CLV_INVALID, "'%s' is %s %s, but the tensor to write is %s %s", item->name,
                    clv_dtype_name(item->dtype),
                    clv_shape_format(&item->shape, expected_text, sizeof expected_text),
                    clv_dtype_name(dtype), clv_shape_format(shape, given_text, sizeof given_text));
  return CLV_OK;
}

static clv_code put_bytes(const clv_state_item *item, void *dst, const void *data, clv_err *err) {
  if (item->backend) return clv_backend_put(item->backend, dst, data, item->bytes, err);
  memcpy(dst, data, item->bytes);
  return CLV_OK;
}

clv_code clv_state_item_set_async(const clv_state_item *item, const void *data, clv_err *err) {
  CLV_TRY(put_bytes(item, item->data, data, err));
  return item->ema ? put_bytes(item, item->ema, data, err) : CLV_OK;
}

clv_code clv_state_item_set(const clv_state_item *item, clv_dtype dtype, const clv_shape *shape,
                            const void *data, clv_err *err) {
  CLV_TRY(clv_state_item_check(item, dtype, shape, err));
  CLV_TRY(clv_state_item_set_async(item, data, err));
  return item->backend ? clv_backend_finish(item->backend, err) : CLV_OK;
}

/* Updates the module's step counter, or the version of its parameters, after a write of state. */
static void update_versions(clv_module *m, clv_state_kind what, const char *name) {
  if (what == CLV_STATE_OPTIMIZER && strcmp(name, "step") == 0)
    __atomic_store_n(&m->steps, (uint64_t)CLV_MAX(*clv_optim_step_count(m->optim), 0),
                     __ATOMIC_RELAXED);
  m->version += what == CLV_STATE_WEIGHTS;
}

/* Ends the withholding of a parameter that was written completely, because the writer knows its
 * numbers. */
static void end_withholding(clv_module *m, const char *name) {
  const clv_param *p = clv_params_find(m->params, name);
  if (p && m->withheld_params) m->withheld_params[p - m->params->list] = false;
}

void clv_module_note_state_written(clv_module *m, clv_state_kind what, const char *name,
                                   bool is_complete) {
  if (what == CLV_STATE_EMA) what = CLV_STATE_WEIGHTS;
  if (is_complete && what == CLV_STATE_WEIGHTS) end_withholding(m, name);
  update_versions(m, what, name);
}

clv_code clv_module_state_set(clv_module *m, clv_state_kind what, const char *name, clv_dtype dtype,
                              const clv_shape *shape, const void *data, clv_err *err) {
  clv_state_item item;
  CLV_TRY(clv_module_state_find(m, what, name, &item, err));
  CLV_TRY(clv_state_item_set(&item, dtype, shape, data, err));
  clv_module_note_state_written(m, what, name, true);
  return CLV_OK;
}

clv_code clv_module_state_set_part(clv_module *m, clv_state_kind what, const char *name,
                                   uint64_t offset, uint64_t length, const void *data,
                                   clv_err *err) {
  clv_state_item item, part;
  CLV_TRY(clv_module_state_find(m, what, name, &item, err));
  CLV_TRY(clv_state_item_part(&item, offset, length, &part, err));
  CLV_TRY(clv_state_item_set(&part, part.dtype, &part.shape, data, err));
  clv_module_note_state_written(m, what, name, false);
  return CLV_OK;
}
