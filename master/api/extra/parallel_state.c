/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the state of divided layers in the form of the undivided layers: joins the
 * tensors of the parts, and cuts tensors into parts.
 */
#include <stdlib.h>
#include <string.h>

#include "master/api/extra/parallel_int.h"

/* Returns the parameter to which an item of state belongs: the item is the parameter or a moment of
 * it, such as "0.weight.exp_avg". NULL: the item belongs to no parameter. */
static const clv_param *find_item_param(const clv_params *params, const char *item) {
  for (int i = 0; i < params->n; i++) {
    size_t len = strlen(params->list[i].name);
    if (strncmp(item, params->list[i].name, len) == 0 && (!item[len] || item[len] == '.'))
      return &params->list[i];
  }
  return NULL;
}

static clv_shape convert_tensor_shape(const cleave_tensor *t) {
  clv_shape s = {.rank = t->rank};
  memcpy(s.dim, t->shape, sizeof s.dim);
  return s;
}

/* Returns the part index of a module of the chain; 0 for an undivided segment. */
static uint32_t find_part_index(const cleave_parallel *p, uint32_t module) {
  for (uint32_t i = 0; i < p->division->n_segments; i++) {
    uint32_t n = p->division->segments[i].is_sharded ? p->division->n_parts : 1;
    if (module < n) return module;
    module -= n;
  }
  return 0;
}

/* ---- joining the parts of items of state ----------------------------------------------------- */

static cleave_named_tensor *find_item(cleave_state *s, const char *name) {
  for (size_t i = 0; i < s->n; i++)
    if (strcmp(s->items[i].name, name) == 0) return &s->items[i];
  return NULL;
}

/* Adds an item with the shape of its undivided parameter `of`, or with its own shape if `of` is
 * NULL. Takes ownership of the item's name. */
static cleave_status add_item(cleave_state *to, cleave_named_tensor *item, const clv_param *of,
                              cleave_named_tensor **ret, cleave_error *error) {
  cleave_named_tensor *joined_item = &to->items[to->n];
  clv_shape shape = of ? of->shape : convert_tensor_shape(&item->tensor);
  size_t bytes;
  TRY(clv_shape_bytes(&shape, (clv_dtype)item->tensor.dtype, &bytes, &err));
  TRY(clv_alloc(CLV_MAX(bytes, 1), 1, &joined_item->tensor.data, &err));
  joined_item->tensor.dtype = item->tensor.dtype;
  joined_item->tensor.rank = shape.rank;
  memcpy(joined_item->tensor.shape, shape.dim, sizeof joined_item->tensor.shape);
  joined_item->tensor.capacity = CLV_MAX(bytes, 1);
  joined_item->name = item->name;
  item->name = NULL;
  to->n++;
  *ret = joined_item;
  return CLEAVE_OK;
}

/* Copies an item of part k into the joined item. The step counter, which belongs to no parameter,
 * is the same in all parts. */
static cleave_status join_item(const cleave_parallel *p, cleave_named_tensor *item, uint32_t k,
                               cleave_state *to, cleave_error *error) {
  const clv_param *of = find_item_param(p->params, item->name);
  cleave_named_tensor *joined_item = find_item(to, item->name);
  if (!joined_item) TRY_API(add_item(to, item, of, &joined_item, error));
  clv_tensor_part part = {convert_tensor_shape(&joined_item->tensor),
                          convert_tensor_shape(&item->tensor), k,
                          clv_dtype_size((clv_dtype)item->tensor.dtype)};
  clv_tensor_part_copy(&part, joined_item->tensor.data, item->tensor.data, true);
  return CLEAVE_OK;
}

static cleave_status join_module(cleave_parallel *p, uint32_t i, cleave_state_kind kind,
                                 uint64_t deadline_ms, cleave_state *to, cleave_error *error) {
  CLV_AUTO(cleave_state_free) cleave_state state = {0};
  TRY_API(cleave_state_read(p->runtime, p->modules[i], kind, deadline_ms, &state, error));
  for (size_t k = 0; k < state.n; k++)
    TRY_API(join_item(p, &state.items[k], find_part_index(p, i), to, error));
  return CLEAVE_OK;
}

cleave_status cleave_parallel_state_read(cleave_runtime *runtime, cleave_parallel *parallel,
                                         cleave_state_kind kind, uint64_t deadline_ms,
                                         cleave_state *ret_state, cleave_error *error) {
  NOT_NULL(runtime, parallel, ret_state);
  CLV_AUTO(cleave_state_free) cleave_state state = {0};
  size_t max_items = 0;
  TRY_API(api_parallel_check(runtime, parallel, error));
  for (uint32_t i = 0; i < parallel->n_modules; i++)
    max_items += cleave_state_count(parallel->modules[i], kind);
  TRY(clv_alloc(max_items, sizeof *state.items, &state.items, &err));
  for (uint32_t i = 0; i < parallel->n_modules; i++)
    TRY_API(join_module(parallel, i, kind, deadline_ms, &state, error));
  *ret_state = state;
  state = (cleave_state){0};
  return CLEAVE_OK;
}

/* ---- cutting undivided items into parts ------------------------------------------------------ */

static cleave_status check_item(const cleave_parallel *p, const cleave_named_tensor *item,
                                cleave_state_kind kind, cleave_error *error) {
  bool is_counter = kind == CLEAVE_STATE_OPTIMIZER && item->name && strcmp(item->name, "step") == 0;
  const clv_param *of = item->name ? find_item_param(p->params, item->name) : NULL;
  char expected_type[160], given_type[160];
  clv_shape shape;
  if (!of && !is_counter)
    return api_fail(error, CLV_NOT_FOUND, "'%s' has no state '%s'", p->name,
                    item->name ? item->name : "(NULL)");
  TRY_API(api_copy_shape_in(item->tensor.rank, item->tensor.shape, &shape, error));
  if (item->tensor.dtype != CLEAVE_F32 && item->tensor.dtype != CLEAVE_I64)
    return api_fail(error, CLV_INVALID, "'%s' of '%s' is of no dtype", item->name, p->name);
  if (!item->tensor.data && cleave_tensor_count(&item->tensor))
    return api_fail(error, CLV_INVALID, "'%s' of '%s' has no data", item->name, p->name);
  if (is_counter || clv_shape_equal(&shape, &of->shape)) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "'%s' of '%s' is %s, not %s", item->name, p->name,
                  clv_shape_format(&of->shape, expected_type, sizeof expected_type),
                  clv_shape_format(&shape, given_type, sizeof given_type));
}

/* Items of state that were cut for one module. The items own their memory. */
typedef struct cut_items {
  cleave_named_tensor *list;
  size_t n;
} cut_items;

static void free_cut_items(cut_items *c) {
  for (size_t i = 0; i < c->n; i++) free(c->list[i].tensor.data);
  free(c->list);
}

static clv_code cut_item(const cleave_named_tensor *item, const clv_shape *own, uint32_t k,
                         cut_items *to, clv_err *err) {
  cleave_named_tensor *item_part = &to->list[to->n];
  clv_dtype dtype = (clv_dtype)item->tensor.dtype;
  size_t bytes;
  CLV_TRY(clv_shape_bytes(own, dtype, &bytes, err));
  CLV_TRY(clv_alloc(CLV_MAX(bytes, 1), 1, &item_part->tensor.data, err));
  to->n++;
  item_part->name = item->name;
  item_part->tensor.dtype = item->tensor.dtype;
  item_part->tensor.rank = own->rank;
  memcpy(item_part->tensor.shape, own->dim, sizeof item_part->tensor.shape);
  clv_tensor_part part = {convert_tensor_shape(&item->tensor), *own, k, clv_dtype_size(dtype)};
  clv_tensor_part_copy(&part, item->tensor.data, item_part->tensor.data, false);
  return CLV_OK;
}

static cleave_status write_module(cleave_parallel *p, uint32_t i, cleave_state_kind kind,
                                  const cleave_named_tensor *items, size_t n, uint64_t deadline_ms,
                                  cleave_error *error) {
  CLV_AUTO(free_cut_items) cut_items items_of_part = {0};
  cleave_module *m = p->modules[i];
  if (!cleave_state_count(m, kind)) return CLEAVE_OK;
  TRY(clv_alloc(n, sizeof *items_of_part.list, &items_of_part.list, &err));
  for (size_t j = 0; j < n; j++) {
    const clv_param *of = find_item_param(p->params, items[j].name);
    const clv_param *own_param = of ? clv_params_find(m->params, of->name) : NULL;
    clv_shape undivided_shape = convert_tensor_shape(&items[j].tensor);
    if (of && !own_param) continue;
    TRY(cut_item(&items[j], own_param ? &own_param->shape : &undivided_shape, find_part_index(p, i),
                 &items_of_part, &err));
  }
  return cleave_state_write(p->runtime, m, kind, items_of_part.list, items_of_part.n, deadline_ms,
                            error);
}

cleave_status cleave_parallel_state_write(cleave_runtime *runtime, cleave_parallel *parallel,
                                          cleave_state_kind kind, const cleave_named_tensor *items,
                                          size_t n, uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, parallel);
  if (n) NOT_NULL(items);
  TRY_API(api_parallel_check(runtime, parallel, error));
  for (size_t i = 0; i < n; i++) TRY_API(check_item(parallel, &items[i], kind, error));
  for (uint32_t i = 0; i < parallel->n_modules; i++)
    TRY_API(write_module(parallel, i, kind, items, n, deadline_ms, error));
  return CLEAVE_OK;
}
