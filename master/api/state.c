/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters, buffers and optimiser state by name: asked for over the frames of state, wherever the
 * module is, and judged by its graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/life_int.h"
#include "master/api/future_int.h"
#include "master/api/gradients_int.h"
#include "master/api/rejoin_int.h"

/* ---- requests -------------------------------------------------------------------------------- */

void api_state_leave(cleave_runtime *rt, api_state_request *r) {
  api_state_request **at = &rt->requests;
  while (*at && *at != r) at = &(*at)->next;
  if (*at) *at = r->next;
  clv_tensor_unref(r->found);
}

cleave_status api_state_await(cleave_module *m, api_state_request *r, const char *what,
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

cleave_status api_state_ask(cleave_module *m, clv_state_what what, uint64_t context_id,
                            api_state_request *r, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  r->id = ++rt->next_id;
  r->node = m->node;
  TRY(clv_packet_state_get(rt->pool, context_id, r->id, m->index, what, &p, &err));
  api_name_module(p, m);
  r->next = rt->requests;
  rt->requests = r;
  return api_send(rt, m->node, p, error);
}

cleave_status api_state_check_item(const cleave_module *m, const char *name, const clv_tensor *t,
                                   cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  if (!t || (p && t->dtype == p->dtype && clv_shape_equal(&t->shape, &p->shape))) return CLEAVE_OK;
  api_fail(error, CLV_DATA_LOSS, "'%s' of module '%s' came with another shape", name, m->name);
  api_place_error(error, cleave_module_node(m), m->name);
  return CLEAVE_DATA_LOSS;
}

static cleave_status put_item(cleave_module *m, clv_state_what what, uint64_t context_id,
                              const api_state_item *item, uint32_t index, uint32_t n,
                              uint64_t message, cleave_error *error) {
  clv_packet *p;
  PASS(api_packet(m->runtime, CLV_STATE_PUT, context_id, message, &p, error));
  api_name_module(p, m);
  p->frame.state.what = what;
  p->frame.state.index = index;
  p->frame.state.count = n;
  memcpy(p->frame.state.name, item->name, sizeof p->frame.state.name);
  clv_packet_add(p, item->tensor);
  return api_send(m->runtime, m->node, p, error);
}

cleave_status api_state_put_begin(cleave_module *m, clv_state_what what, uint64_t context_id,
                                  const api_state_item *items, uint32_t n, api_state_request *r,
                                  cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  cleave_status status = CLEAVE_OK;
  *r = (api_state_request){.id = ++rt->next_id, .node = m->node, .next = rt->requests};
  rt->requests = r;
  m->changes += what == CLV_STATE_WEIGHTS;
  for (uint32_t i = 0; i < n && status == CLEAVE_OK; i++)
    status = put_item(m, what, context_id, &items[i], i, n, r->id, error);
  return status;
}

cleave_status api_state_put(cleave_module *m, clv_state_what what, uint64_t context_id,
                            const api_state_item *items, uint32_t n, uint64_t until_ns,
                            cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_state_request r;
  cleave_status status = api_state_put_begin(m, what, context_id, items, n, &r, error);
  if (status == CLEAVE_OK) status = api_state_await(m, &r, items[0].name, until_ns, error);
  api_state_leave(rt, &r);
  return status;
}

/* ---- whole state_dicts ----------------------------------------------------------------------- */

/* How many items there are follows from the module, so that a worker cannot send more. */
size_t cleave_state_count(const cleave_module *m, cleave_state_kind kind) {
  uint32_t trainable = 0, moments = 0;
  if (!m) return 0;
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

void api_state_items_done(api_state_item *items, uint32_t n) {
  for (uint32_t i = 0; items && i < n; i++) clv_tensor_unref(items[i].tensor);
  free(items);
}

cleave_status api_state_take(cleave_module *m, cleave_state_kind kind, uint64_t until_ns,
                             api_state_item **ret_items, uint32_t *ret_n, cleave_error *error) {
  api_state_item *items = NULL;
  api_state_request r = {.count = (uint32_t)cleave_state_count(m, kind)};
  if (!r.count) return CLEAVE_OK;
  TRY(clv_alloc(r.count, sizeof *items, &items, &err));
  r.items = items;
  cleave_status status = api_state_ask(m, (clv_state_what)kind, 0, &r, error);
  if (status == CLEAVE_OK) status = api_state_await(m, &r, "the state", until_ns, error);
  if (status == CLEAVE_OK) status = check_items(m, kind, items, r.count, error);
  api_state_leave(m->runtime, &r);
  if (status != CLEAVE_OK) {
    api_state_items_done(items, r.count);
    return status;
  }
  *ret_items = items;
  *ret_n = r.count;
  return CLEAVE_OK;
}

static cleave_status fill_state(const api_state_item *items, uint32_t n, cleave_state *ret,
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

cleave_status api_state_out(const api_future *f, cleave_state *ret, cleave_error *error) {
  cleave_state state = {0};
  cleave_status status = fill_state(f->items, f->request.count, &state, error);
  if (status == CLEAVE_OK)
    *ret = state;
  else
    cleave_state_free(&state);
  return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

enum { WAITS_FOR_STEP, IS_ASKED };

/* The module is there when this returns; steps on their way are waited for later. */
cleave_status api_state_begin(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                              const char *name, api_future *f, cleave_error *error) {
  f->module = m;
  f->what = (clv_state_what)kind;
  snprintf(f->of, sizeof f->of, "%s", name ? name : m->name);
  if (name) PASS(api_check_weight(m, name, NULL, error));
  PASS(api_module_place(m, false, f->deadline_ms, error));
  PASS(api_no_window(rt, error));
  f->request.wanted = name ? f->of : NULL;
  f->request.count = name ? 0 : (uint32_t)cleave_state_count(m, kind);
  if (!name) TRY(clv_alloc(f->request.count, sizeof *f->items, &f->items, &err));
  f->n_items = f->request.count;
  f->request.items = f->items;
  api_module_keep(m);
  return CLEAVE_OK;
}

/* The record of the module may go. */
void api_state_forget(cleave_runtime *rt, api_future *f) {
  (void)rt;
  api_module_unkeep(f->module);
  f->module = NULL;
}

static cleave_status judge(cleave_runtime *rt, api_future *f, cleave_error *error) {
  const cleave_module *m = f->module;
  const char *name = f->request.wanted;
  if (!name) {
    PASS(api_take_late_error(rt, error)); /* the node has answered what came before */
    return check_items(m, (cleave_state_kind)f->what, f->items, f->request.count, error);
  }
  PASS(api_state_check_item(m, name, f->request.found, error));
  f->tensor = clv_steal(&f->request.found);
  if (f->tensor) return CLEAVE_OK;
  return api_fail(error, CLV_ANSWER, "'%s' did not send '%s'", cleave_module_node(m), name);
}

void api_state_advance(cleave_runtime *rt, api_future *f) {
  api_state_request *r = &f->request;
  cleave_error why = {.status = CLEAVE_OK};
  if (f->stage == WAITS_FOR_STEP && (rt->deciding || f->module->state == MODULE_PLACING)) return;
  if (f->stage == WAITS_FOR_STEP) why.status = api_state_ask(f->module, f->what, 0, r, &why);
  f->stage = IS_ASKED;
  if (why.status == CLEAVE_OK && r->failed) why = r->failure;
  if (why.status == CLEAVE_OK) {
    if (!r->answered || r->got < r->count) return;
    (void)judge(rt, f, &why);
  }
  api_state_forget(rt, f);
  api_future_finish(rt, f, &why);
}

void api_state_late(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->module;
  char heard[200];
  if (rt->deciding && f->stage == WAITS_FOR_STEP) {
    api_fail(ret, CLV_DEADLINE, "the step of context %s was not decided in time",
             rt->deciding->name);
    return;
  }
  api_fail(ret, CLV_DEADLINE, "%s of module '%s' did not come from '%s' in time%s",
           f->request.wanted ? f->of : "the state", m->name, rt->peers[m->node].name,
           api_silence(rt, heard, sizeof heard));
  api_place_error(ret, rt->peers[m->node].name, m->name);
}

/* ---- writing --------------------------------------------------------------------------------- */

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

cleave_status api_state_items(const cleave_module *m, cleave_state_kind kind,
                              const cleave_named *from, size_t n, api_state_item **ret_items,
                              cleave_error *error) {
  TRY(clv_alloc(n, sizeof **ret_items, ret_items, &err));
  return take_items(m, kind, from, n, *ret_items, error);
}

cleave_status api_state_write_begin(cleave_runtime *rt, cleave_module *m, cleave_state_kind kind,
                                    api_state_item *items, uint32_t n, api_future *f,
                                    cleave_error *error) {
  f->items = items;
  f->n_items = n;
  f->what = (clv_state_what)kind;
  snprintf(f->of, sizeof f->of, "%s", m->name);
  PASS(api_module_place(m, false, f->deadline_ms, error));
  PASS(api_no_window(rt, error));
  api_module_keep(m);
  f->module = m;
  return CLEAVE_OK;
}

void api_state_write_advance(cleave_runtime *rt, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  if (f->stage == WAITS_FOR_STEP) {
    if (rt->deciding || f->module->state == MODULE_PLACING) return;
    f->stage = IS_ASKED;
    why.status = api_module_is_there(f->module, &why);
    if (why.status == CLEAVE_OK)
      why.status =
          api_state_put_begin(f->module, f->what, 0, f->items, f->n_items, &f->request, &why);
  }
  if (why.status == CLEAVE_OK && !api_request_is_over(&f->request)) return;
  if (why.status == CLEAVE_OK && f->request.failed) why = f->request.failure;
  api_state_forget(rt, f);
  api_future_finish(rt, f, &why);
}

void api_state_write_late(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->module;
  char heard[200];
  if (rt->deciding && f->stage == WAITS_FOR_STEP) {
    api_fail(ret, CLV_DEADLINE, "the step of context %s was not decided in time",
             rt->deciding->name);
    return;
  }
  api_fail(ret, CLV_DEADLINE, "'%s' has not taken the state of module '%s' in time%s",
           rt->peers[m->node].name, m->name, api_silence(rt, heard, sizeof heard));
  api_place_error(ret, rt->peers[m->node].name, m->name);
}

void cleave_state_free(cleave_state *state) {
  if (!state) return;
  for (size_t i = 0; i < state->n; i++) {
    free((char *)(uintptr_t)state->items[i].name);
    cleave_tensor_free(&state->items[i].tensor);
  }
  free(state->items);
  *state = (cleave_state){0};
}
