/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters, buffers and optimiser state by name: asked for over the frames of state, wherever the
 * module is, and judged by its graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/api_int.h"

/* ---- requests -------------------------------------------------------------------------------- */

static void leave(cleave_runtime *rt, api_state_request *r) {
  api_state_request **at = &rt->requests;
  while (*at && *at != r) at = &(*at)->next;
  if (*at) *at = r->next;
  clv_tensor_unref(r->found);
}

static cleave_status await(cleave_module *m, api_state_request *r, const char *what,
                           uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  while (!r->failed && !(r->answered && r->got >= r->count)) {
    if (api_sleep(rt, until_ns)) continue;
    char heard[200];
    api_fail(error, CLV_DEADLINE, "%s of module '%s' did not come from '%s' in time%s", what,
             m->name, rt->peers[m->node].name, api_silence(rt, heard, sizeof heard));
    api_place_error(error, rt->peers[m->node].name, m->name);
    return CLEAVE_DEADLINE;
  }
  if (r->failed && error) *error = r->failure;
  return r->failed ? r->failure.status : CLEAVE_OK;
}

/* What a node says of a parameter has the parameter's shape. */
static cleave_status check_item(const cleave_module *m, const char *name, const clv_tensor *t,
                                cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  if (!t || (p && t->dtype == p->dtype && clv_shape_equal(&t->shape, &p->shape))) return CLEAVE_OK;
  api_fail(error, CLV_DATA_LOSS, "'%s' of module '%s' came with another shape", name, m->name);
  api_place_error(error, cleave_module_node(m), m->name);
  return CLEAVE_DATA_LOSS;
}

cleave_status api_state_get(cleave_module *m, clv_state_what what, uint64_t context_id,
                            const char *name, uint64_t until_ns, clv_tensor **ret, char *ret_device,
                            cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_state_request r = {
      .id = ++rt->next_id, .node = m->node, .wanted = name, .next = rt->requests};
  clv_packet *p;
  TRY(clv_packet_state_get(rt->pool, context_id, r.id, m->index, what, &p, &err));
  rt->requests = &r;
  cleave_status status = api_send(rt, m->node, p, error);
  if (status == CLEAVE_OK) status = await(m, &r, name, until_ns, error);
  if (status == CLEAVE_OK) status = check_item(m, name, r.found, error);
  if (status == CLEAVE_OK) *ret = clv_steal(&r.found);
  if (status == CLEAVE_OK && ret_device) memcpy(ret_device, r.device, sizeof r.device);
  leave(rt, &r);
  return status;
}

cleave_status api_state_items(cleave_module *m, clv_state_what what, api_state_item *items,
                              uint32_t count, uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_state_request r = {
      .id = ++rt->next_id, .node = m->node, .items = items, .count = count, .next = rt->requests};
  clv_packet *p;
  TRY(clv_packet_state_get(rt->pool, 0, r.id, m->index, what, &p, &err));
  rt->requests = &r;
  cleave_status status = api_send(rt, m->node, p, error);
  if (status == CLEAVE_OK) status = await(m, &r, "the state", until_ns, error);
  leave(rt, &r);
  return status;
}

static cleave_status put_item(cleave_module *m, clv_state_what what, const api_state_item *item,
                              uint32_t index, uint32_t n, uint64_t message, cleave_error *error) {
  clv_packet *p;
  PASS(api_packet(m->runtime, CLV_STATE_PUT, 0, message, &p, error));
  p->frame.module = m->index;
  p->frame.state.what = what;
  p->frame.state.index = index;
  p->frame.state.count = n;
  memcpy(p->frame.state.name, item->name, sizeof p->frame.state.name);
  clv_packet_add(p, item->tensor);
  return api_send(m->runtime, m->node, p, error);
}

cleave_status api_state_put(cleave_module *m, clv_state_what what, const api_state_item *items,
                            uint32_t n, uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_state_request r = {.id = ++rt->next_id, .node = m->node, .next = rt->requests};
  cleave_status status = CLEAVE_OK;
  rt->requests = &r;
  for (uint32_t i = 0; i < n && status == CLEAVE_OK; i++)
    status = put_item(m, what, &items[i], i, n, r.id, error);
  if (status == CLEAVE_OK) status = await(m, &r, items[0].name, until_ns, error);
  leave(rt, &r);
  return status;
}

cleave_status cleave_weight_read(cleave_runtime *runtime, cleave_module *module, const char *name,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  PASS(api_check_weight(module, name, NULL, error));
  {
    LOCKED(runtime);
    PASS(api_module_place(module, false, deadline_ms, error));
    PASS(api_no_window(runtime, error));
    PASS(api_decided(runtime, api_until(runtime, deadline_ms), error));
    PASS(api_state_get(module, CLV_STATE_WEIGHTS, 0, name, api_until(runtime, deadline_ms), &t,
                       NULL, error));
  }
  if (!t)
    return api_fail(error, CLV_ANSWER, "'%s' did not send '%s'", cleave_module_node(module), name);
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_weight_write(cleave_runtime *runtime, cleave_module *module, const char *name,
                                  const cleave_tensor *tensor, uint64_t deadline_ms,
                                  cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  PASS(api_check_weight(module, name, tensor, error));
  PASS(api_tensor_in(runtime->pool, tensor, &t, error));
  LOCKED(runtime);
  PASS(api_module_place(module, false, deadline_ms, error));
  PASS(api_no_window(runtime, error));
  PASS(api_decided(runtime, api_until(runtime, deadline_ms), error));
  api_state_item item = {.tensor = t};
  snprintf(item.name, sizeof item.name, "%s", name);
  return api_state_put(module, CLV_STATE_WEIGHTS, &item, 1, api_until(runtime, deadline_ms), error);
}

/* ---- whole state_dicts ----------------------------------------------------------------------- */

/* How many items there are follows from the module, so that a worker cannot send more. */
size_t cleave_state_count(const cleave_module *m, cleave_state_kind kind) {
  uint32_t trainable = 0, moments = 0;
  if (kind == CLEAVE_STATE_WEIGHTS) return (size_t)m->params->n;
  if (!m->optimizer) return 0;
  for (int i = 0; i < m->params->n; i++) trainable += m->params->list[i].trainable;
  for (uint32_t i = 0; i < m->n_groups; i++)
    if (m->groups[i]) moments |= clv_optim_moments_of(&m->groups[i]->optim);
  return (size_t)clv_optim_count_moments(moments) * trainable + 1;
}

static bool same_spec(const clv_shape *a, clv_dtype a_dtype, const clv_shape *b,
                      clv_dtype b_dtype) {
  return a_dtype == b_dtype && clv_shape_equal(a, b);
}

/* Is it a piece of the module's state, with the shape that it has there? */
static bool belongs(const cleave_module *m, cleave_state_kind kind, const char *name,
                    clv_dtype dtype, const clv_shape *shape) {
  static const clv_shape scalar = {0};
  char param[CLV_WIRE_NAME + 1];
  if (kind == CLEAVE_STATE_OPTIMIZER && strcmp(name, "step") == 0)
    return same_spec(shape, dtype, &scalar, CLV_I64);
  snprintf(param, sizeof param, "%s", name);
  char *moment = kind == CLEAVE_STATE_OPTIMIZER ? strrchr(param, '.') : NULL;
  if (moment) *moment = '\0';
  const clv_param *p = clv_params_find(m->params, param);
  return p && same_spec(shape, dtype, &p->shape, p->dtype);
}

static cleave_status check_items(const cleave_module *m, cleave_state_kind kind,
                                 const api_state_item *items, uint32_t n, cleave_error *error) {
  char shape[160];
  for (uint32_t i = 0; i < n; i++) {
    const clv_tensor *t = items[i].tensor;
    if (t && belongs(m, kind, items[i].name, t->dtype, &t->shape)) continue;
    if (!t)
      api_fail(error, CLV_ANSWER, "item %u of %u of the state of module '%s' did not come", i, n,
               m->name);
    else
      api_fail(error, CLV_ANSWER, "worker '%s' sent state '%s' %s, which is not module '%s''s",
               cleave_module_node(m), items[i].name,
               clv_shape_format(&t->shape, shape, sizeof shape), m->name);
    api_place_error(error, cleave_module_node(m), m->name);
    return CLEAVE_ANSWER;
  }
  return CLEAVE_OK;
}

static void items_done(api_state_item *items, uint32_t n) {
  for (uint32_t i = 0; items && i < n; i++) clv_tensor_unref(items[i].tensor);
  free(items);
}

static cleave_status copy_out(const api_state_item *items, uint32_t n, cleave_state *ret,
                              cleave_error *error) {
  TRY(clv_alloc(n, sizeof *ret->items, &ret->items, &err));
  for (; ret->n < n; ret->n++) {
    char *name;
    TRY(clv_strdup(items[ret->n].name, &name, &err));
    ret->items[ret->n].name = name;
    cleave_status status = api_tensor_out(items[ret->n].tensor, &ret->items[ret->n].tensor, error);
    if (status == CLEAVE_OK) continue;
    free(name);
    return status;
  }
  return CLEAVE_OK;
}

static cleave_status read_items(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                                api_state_item *items, uint32_t n, uint64_t deadline_ms,
                                cleave_error *error) {
  LOCKED(rt);
  uint64_t until = api_until(rt, deadline_ms);
  PASS(api_module_place(m, false, deadline_ms, error));
  PASS(api_no_window(rt, error));
  PASS(api_decided(rt, until, error));
  PASS(api_state_items(m, (clv_state_what)kind, items, n, until, error));
  PASS(api_take_late_error(rt, error)); /* the node has answered what came before */
  return check_items(m, kind, items, n, error);
}

cleave_status cleave_state_read(cleave_runtime *runtime, cleave_module *module,
                                cleave_state_kind kind, uint64_t deadline_ms,
                                cleave_state *ret_state, cleave_error *error) {
  uint32_t n = (uint32_t)cleave_state_count(module, kind);
  api_state_item *items;
  cleave_state state = {0};
  TRY(clv_alloc(n, sizeof *items, &items, &err));
  cleave_status status = read_items(runtime, module, kind, items, n, deadline_ms, error);
  if (status == CLEAVE_OK) status = copy_out(items, n, &state, error);
  items_done(items, n);
  if (status == CLEAVE_OK)
    *ret_state = state;
  else
    cleave_state_done(&state);
  return status;
}

static cleave_status take_items(const cleave_module *m, cleave_state_kind kind,
                                const cleave_named *from, size_t n, api_state_item *items,
                                cleave_error *error) {
  for (size_t i = 0; i < n; i++) {
    const cleave_tensor *t = &from[i].tensor;
    clv_shape shape;
    char text[160];
    PASS(api_shape_in(t->rank, t->shape, &shape, error));
    if (!belongs(m, kind, from[i].name, (clv_dtype)t->dtype, &shape))
      return api_fail(error, CLV_INVALID, "module '%s' has no state '%s' %s %s", m->name,
                      from[i].name, clv_dtype_name((clv_dtype)t->dtype),
                      clv_shape_format(&shape, text, sizeof text));
    snprintf(items[i].name, sizeof items[i].name, "%s", from[i].name);
    PASS(api_tensor_in(m->runtime->pool, t, &items[i].tensor, error));
  }
  return CLEAVE_OK;
}

static cleave_status put_items(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                               const api_state_item *items, uint32_t n, uint64_t deadline_ms,
                               cleave_error *error) {
  LOCKED(rt);
  uint64_t until = api_until(rt, deadline_ms);
  PASS(api_module_place(m, false, deadline_ms, error));
  PASS(api_no_window(rt, error));
  PASS(api_decided(rt, until, error));
  return api_state_put(m, (clv_state_what)kind, items, n, until, error);
}

cleave_status cleave_state_write(cleave_runtime *runtime, cleave_module *module,
                                 cleave_state_kind kind, const cleave_named *items, size_t n,
                                 uint64_t deadline_ms, cleave_error *error) {
  api_state_item *list;
  if (n > cleave_state_count(module, kind))
    return api_fail(error, CLV_INVALID, "%zu items for module '%s', which has %zu", n, module->name,
                    cleave_state_count(module, kind));
  if (!n) return CLEAVE_OK;
  TRY(clv_alloc(n, sizeof *list, &list, &err));
  cleave_status status = take_items(module, kind, items, n, list, error);
  if (status == CLEAVE_OK)
    status = put_items(runtime, module, kind, list, (uint32_t)n, deadline_ms, error);
  items_done(list, (uint32_t)n);
  return status;
}

void cleave_state_done(cleave_state *state) {
  if (!state) return;
  for (size_t i = 0; i < state->n; i++) {
    free((char *)(uintptr_t)state->items[i].name);
    cleave_tensor_done(&state->items[i].tensor);
  }
  free(state->items);
  *state = (cleave_state){0};
}
