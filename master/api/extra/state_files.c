/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes the parameters of a module (cleave_parameter_info), and saves and loads its state in
 * safetensors files on this machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/core.h"
#include "common/model/weights/weights.h"

/* ---- parameters ------------------------------------------------------------------------------ */

size_t cleave_parameter_count(const cleave_module *m) { return m ? (size_t)m->params->n : 0; }

/* Fills in the optimiser and the group of a parameter, if it is in a group. Converts the module's
 * own group number, in which 0 may be the unstepped group, to that of the optimiser. */
static void fill_group_settings(const cleave_module *m, size_t index, cleave_parameter *ret) {
  uint8_t number = m->optimizer ? m->param_group_numbers[index] : 0;
  if (!number) return;
  ret->optimizer = m->optimizer;
  ret->group = (size_t)(m->groups[number - 1] - m->optimizer->groups);
}

static void fill_parameter(const cleave_module *m, size_t index, cleave_parameter *ret) {
  const clv_param *p = &m->params->list[index];
  *ret = (cleave_parameter){.size = ret->size,
                            .name = p->name,
                            .dtype = (cleave_dtype)p->dtype,
                            .rank = p->shape.rank,
                            .buffer = !p->trainable,
                            .learns = p->trainable && !p->frozen};
  memcpy(ret->shape, p->shape.dim, (size_t)p->shape.rank * sizeof *ret->shape);
  fill_group_settings(m, index, ret);
}

cleave_status cleave_parameter_info(const cleave_module *module, size_t index,
                                    cleave_parameter *ret_parameter, cleave_error *error) {
  NOT_NULL(module, ret_parameter);
  if (ret_parameter->size != sizeof *ret_parameter)
    return api_fail(error, CLV_INVALID, "a cleave_parameter of %zu bytes; its size is %zu",
                    ret_parameter->size, sizeof *ret_parameter);
  if (index >= (size_t)module->params->n)
    return api_fail(error, CLV_RANGE, "module '%s' has %d parameters and buffers, no number %zu",
                    module->name, module->params->n, index);
  LOCKED(module->runtime);
  fill_parameter(module, index, ret_parameter);
  return CLEAVE_OK;
}

/* ---- saving state in a file ------------------------------------------------------------------ */

static cleave_status check_arguments(const cleave_runtime *rt, const cleave_module *m,
                                     cleave_state_kind kind, cleave_error *error) {
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  if (kind != CLEAVE_STATE_WEIGHTS && kind != CLEAVE_STATE_OPTIMIZER)
    return api_fail(error, CLV_INVALID, "no kind of state %d", (int)kind);
  return CLEAVE_OK;
}

/* Returns the error *why, whose text names the file, with the module's name put before it. */
static cleave_status fail_with_module_name(const cleave_module *m, clv_err *why,
                                           cleave_error *error) {
  clv_err_prefix(why, "module '%s'", m->name);
  api_convert_error(error, why);
  api_set_error_node(error, "master", m->name);
  return (cleave_status)why->code;
}

static cleave_status write_state_file(const cleave_module *m, const char *path,
                                      const cleave_state *s, cleave_error *error) {
  CLV_AUTO(clv_freep) clv_weights_tensor *list = NULL;
  clv_err why;
  TRY(clv_alloc(s->n, sizeof *list, &list, &err));
  for (size_t i = 0; i < s->n; i++) {
    const cleave_tensor *t = &s->items[i].tensor;
    list[i] = (clv_weights_tensor){
        .name = s->items[i].name, .dtype = (clv_dtype)t->dtype, .data = t->data};
    TRY_API(api_copy_shape_in(t->rank, t->shape, &list[i].shape, error));
  }
  if (clv_weights_write_file(path, list, s->n, NULL, 0, NULL, NULL, &why) == CLV_OK)
    return CLEAVE_OK;
  return fail_with_module_name(m, &why, error);
}

cleave_status cleave_state_save(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const char *path, uint64_t deadline_ms,
                                cleave_error *error) {
  NOT_NULL(runtime, module, path);
  cleave_state state = {0};
  TRY_API(check_arguments(runtime, module, kind, error));
  TRY_API(cleave_state_read(runtime, module, kind, deadline_ms, &state, error));
  cleave_status status = write_state_file(module, path, &state, error);
  cleave_state_free(&state);
  return status;
}

/* ---- loading state from a file --------------------------------------------------------------- */

/* Fills in an item from its entry in the file. e NULL: the file has no entry, which is allowed only
 * for num_batches_tracked; the item is then 0. */
static void put_item(const clv_weights_want *w, const clv_weights_entry *e,
                     cleave_named_tensor *ret) {
  static const int64_t zero;
  const void *data = e ? e->data : &zero;
  *ret = (cleave_named_tensor){
      w->name,
      {.dtype = (cleave_dtype)w->dtype, .rank = w->shape.rank, .data = (void *)(uintptr_t)data}};
  memcpy(ret->tensor.shape, w->shape.dim, sizeof ret->tensor.shape);
}

/* If the module has an artifact, removes from the list the frozen parameters that the file lacks,
 * because the worker has them in the artifact. */
static void drop_artifact_items(const cleave_module *m, const clv_weights_file *f,
                                cleave_state_list *l) {
  size_t n = 0;
  for (size_t i = 0; i < l->n; i++) {
    const clv_param *p = clv_params_find(m->params, l->items[i].name);
    bool is_in_artifact = m->artifact_name && p && p->frozen && !clv_weights_find_entry(f, p->name);
    if (!is_in_artifact) l->items[n++] = l->items[i];
  }
  l->n = n;
}

static cleave_status check_file_items(const cleave_module *m, const clv_weights_file *f,
                                      const cleave_state_list *l, cleave_named_tensor *items,
                                      cleave_error *error) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_err why;
  TRY(clv_alloc(l->n, sizeof *found, &found, &err));
  if (clv_weights_match_tensors(f, l->items, l->n, CLV_WEIGHTS_ALLOW_NO_COUNTS, found, &why) !=
      CLV_OK)
    return fail_with_module_name(m, &why, error);
  for (size_t i = 0; i < l->n; i++) {
    if (!found[i] && strcmp(l->items[i].name, "step") == 0)
      return api_fail(error, CLV_INVALID, "module '%s': %s: no 'step', the count of steps taken",
                      m->name, clv_weights_name_for_errors(f));
    put_item(&l->items[i], found[i], &items[i]);
  }
  return CLEAVE_OK;
}

cleave_status cleave_state_load(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, const char *path, uint64_t deadline_ms,
                                cleave_error *error) {
  NOT_NULL(runtime, module, path);
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(cleave_state_list_done) cleave_state_list l = {0};
  CLV_AUTO(clv_freep) cleave_named_tensor *items = NULL;
  clv_err why;
  TRY_API(check_arguments(runtime, module, kind, error));
  if (clv_weights_open(path, 0, &f, &why) != CLV_OK)
    return fail_with_module_name(module, &why, error);
  TRY_API(cleave_state_list_of(module, kind, &l, error));
  drop_artifact_items(module, f, &l);
  TRY(clv_alloc(l.n, sizeof *items, &items, &err));
  TRY_API(check_file_items(module, f, &l, items, error));
  return cleave_state_write(runtime, module, kind, items, l.n, deadline_ms, error);
}
