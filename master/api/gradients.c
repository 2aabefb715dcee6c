/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients that a context holds, of parameters by name and of leaves: read, all at once as a
 * list, and written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/future_int.h"
#include "master/api/gradients_int.h"

/* ---- one ------------------------------------------------------------------------------------- */

static cleave_status not_reached(const api_context *c, const cleave_module *m, const char *name,
                                 cleave_error *error) {
  return api_fail(error, CLV_NOT_FOUND,
                  "context %s has no gradient of '%s' of module '%s': no backward got there",
                  c->name, name, m->name);
}

static cleave_status check_learns(const cleave_module *m, const char *name, const clv_param **ret,
                                  cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  if (!p || !p->trainable)
    return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s'", m->name, name);
  if (p->frozen)
    return api_fail(error, CLV_NOT_FOUND, "'%s' of module '%s' is frozen: it has no gradient", name,
                    m->name);
  if (ret) *ret = p;
  return CLEAVE_OK;
}

/* With the lock. */
static cleave_status gradient(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                              const char *name, uint64_t deadline_ms, clv_tensor **ret,
                              char *ret_device, cleave_error *error) {
  api_context *c;
  PASS(api_find_context(rt, handle, &c, error));
  PASS(check_learns(m, name, NULL, error));
  if (c->running) PASS(api_backward_await(rt, c, api_until(rt, deadline_ms), error));
  if (c->has_gradient[m->index]) {
    c->users++;
    cleave_status status = api_state_get(m, CLV_STATE_GRADIENTS, c->id, name,
                                         api_until(rt, deadline_ms), ret, ret_device, error);
    c->users--;
    if (c->closing) api_wake(rt);
    PASS(status);
  }
  if (*ret) return CLEAVE_OK;
  return not_reached(c, m, name, error);
}

cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context handle, cleave_module *module,
                              const char *name, uint64_t deadline_ms, cleave_tensor *ret_tensor,
                              cleave_error *error) {
  GIVEN(runtime, module, name, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    LOCKED(runtime);
    PASS(gradient(runtime, handle, module, name, deadline_ms, &t, NULL, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context handle,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_place *ret_place, cleave_error *error) {
  GIVEN(runtime, module, name, ret_place);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  char device[API_DEVICE] = "";
  LOCKED(runtime);
  PASS(gradient(runtime, handle, module, name, deadline_ms, &t, device, error));
  api_module_is_on(module, device);
  ret_place->node = runtime->peers[module->node].name;
  ret_place->device = module->device;
  return CLEAVE_OK;
}

cleave_status cleave_leaf_gradient(cleave_runtime *runtime, cleave_reference leaf,
                                   cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    PASS(api_find_value(runtime, leaf, &v, error));
    if (v->module || !v->needs_grad)
      return api_fail(error, CLV_INVALID, "reference %llu is no leaf that requires a gradient",
                      (unsigned long long)leaf.id);
    if (v->context->running)
      return api_fail(error, CLV_PRECONDITION, "a backward of context %s is running",
                      v->context->name);
    if (!v->gradient)
      return api_fail(error, CLV_NOT_FOUND, "no backward got to leaf %llu",
                      (unsigned long long)leaf.id);
    t = clv_tensor_ref(v->gradient);
  }
  return api_tensor_out(t, ret_tensor, error);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* The gradients of one module on their way. */
typedef struct part {
  cleave_module *module;
  api_state_item *items; /* [request.count] */
  api_state_request request;
} part;

typedef struct parts {
  part *list; /* [n] */
  uint32_t n;
} parts;

static void parts_done(cleave_runtime *rt, parts *p) {
  for (uint32_t i = 0; i < p->n; i++) {
    part *q = &p->list[i];
    api_state_leave(rt, &q->request);
    for (uint32_t k = 0; q->items && k < q->module->n_learning; k++)
      clv_tensor_unref(q->items[k].tensor);
    free(q->items);
  }
  free(p->list);
}

static int by_number(const void *a, const void *b) {
  uint64_t x = ((const part *)a)->module->number, y = ((const part *)b)->module->number;
  return (x > y) - (x < y);
}

static cleave_status find_parts(cleave_runtime *rt, const api_context *c, parts *p,
                                cleave_error *error) {
  TRY(clv_alloc(CLV_MAX(rt->n_modules, 1), sizeof *p->list, &p->list, &err));
  for (uint32_t i = 0; i < rt->n_modules; i++)
    if (c->has_gradient[i] && rt->modules[i] && !rt->modules[i]->released)
      p->list[p->n++].module = rt->modules[i];
  qsort(p->list, p->n, sizeof *p->list, by_number);
  return CLEAVE_OK;
}

/* Every node is asked before any is waited for. */
static cleave_status ask(cleave_runtime *rt, const api_context *c, parts *p, cleave_error *error) {
  PASS(find_parts(rt, c, p, error));
  for (uint32_t i = 0; i < p->n; i++) {
    part *q = &p->list[i];
    cleave_module *m = q->module;
    TRY(clv_alloc(m->n_learning, sizeof *q->items, &q->items, &err));
    q->request = (api_state_request){.items = q->items, .count = m->n_learning, .fewer = true};
    PASS(api_state_ask(m, CLV_STATE_GRADIENTS, c->id, &q->request, error));
  }
  return CLEAVE_OK;
}

/* Those of all its parameters that learn, in their order, or none: nothing flowed there. */
static cleave_status check_part(const part *q, cleave_error *error) {
  const cleave_module *m = q->module;
  uint32_t n = 0;
  bool good = !q->request.count || q->request.count == m->n_learning;
  for (int i = 0; good && q->request.count && i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (!p->trainable || p->frozen) continue;
    const api_state_item *item = &q->items[n++];
    const clv_tensor *t = item->tensor;
    good = t && strcmp(item->name, p->name) == 0 && t->dtype == p->dtype &&
           clv_shape_equal(&t->shape, &p->shape);
  }
  if (good) return CLEAVE_OK;
  api_fail(error, CLV_ANSWER, "worker '%s' sent other gradients than those of module '%s'",
           cleave_module_node(m), m->name);
  api_place_error(error, cleave_module_node(m), m->name);
  return CLEAVE_ANSWER;
}

static cleave_status await_all(const parts *p, uint64_t until_ns, cleave_error *error) {
  for (uint32_t i = 0; i < p->n; i++) {
    part *q = &p->list[i];
    PASS(api_state_await(q->module, &q->request, "the gradients", until_ns, error));
    PASS(check_part(q, error));
  }
  return CLEAVE_OK;
}

static bool is_listed(const api_value *v) { return !v->module && v->gradient && !v->released; }

static cleave_status make_list(const parts *p, const api_context *c, cleave_gradients *ret,
                               clv_tensor ***ret_tensors, cleave_error *error) {
  size_t n = 0, at = 0;
  for (uint32_t i = 0; i < p->n; i++) n += p->list[i].request.count;
  for (const api_value *v = c->newest; v; v = v->older) n += is_listed(v);
  TRY(clv_alloc(CLV_MAX(n, 1), sizeof **ret_tensors, ret_tensors, &err));
  TRY(clv_alloc(CLV_MAX(n, 1), sizeof *ret->items, &ret->items, &err));
  ret->n = n;
  for (uint32_t i = 0; i < p->n; i++)
    for (uint32_t k = 0; k < p->list[i].request.count; k++, at++) {
      char *name;
      TRY(clv_strdup(p->list[i].items[k].name, &name, &err));
      ret->items[at].name = name;
      ret->items[at].module = p->list[i].module;
      (*ret_tensors)[at] = clv_tensor_ref(p->list[i].items[k].tensor);
    }
  at = n;
  for (const api_value *v = c->newest; v; v = v->older) {
    if (!is_listed(v)) continue;
    ret->items[--at].leaf.id = v->id;
    (*ret_tensors)[at] = clv_tensor_ref(v->gradient);
  }
  return CLEAVE_OK;
}

/* Its copies are made without the lock: *ret_tensors is [ret->n]. */
static cleave_status collect(cleave_runtime *rt, cleave_context handle, uint64_t deadline_ms,
                             cleave_gradients *ret, clv_tensor ***ret_tensors,
                             cleave_error *error) {
  api_context *c;
  parts p = {0};
  LOCKED(rt);
  PASS(api_find_context(rt, handle, &c, error));
  if (c->running) PASS(api_backward_await(rt, c, api_until(rt, deadline_ms), error));
  c->users++;
  cleave_status status = ask(rt, c, &p, error);
  if (status == CLEAVE_OK) status = await_all(&p, api_until(rt, deadline_ms), error);
  if (status == CLEAVE_OK) status = make_list(&p, c, ret, ret_tensors, error);
  c->users--;
  if (c->closing) api_wake(rt);
  parts_done(rt, &p);
  return status;
}

cleave_status cleave_gradients_read(cleave_runtime *runtime, cleave_context context,
                                    uint64_t deadline_ms, cleave_gradients *ret_gradients,
                                    cleave_error *error) {
  GIVEN(runtime, ret_gradients);
  cleave_gradients list = {0};
  clv_tensor **tensors = NULL;
  cleave_status status = collect(runtime, context, deadline_ms, &list, &tensors, error);
  for (size_t i = 0; i < list.n && status == CLEAVE_OK; i++)
    status = api_tensor_out(tensors[i], &list.items[i].tensor, error);
  for (size_t i = 0; tensors && i < list.n; i++) clv_tensor_unref(tensors[i]);
  free(tensors);
  if (status == CLEAVE_OK)
    *ret_gradients = list;
  else
    cleave_gradients_free(&list);
  return status;
}

void cleave_gradients_free(cleave_gradients *gradients) {
  if (!gradients) return;
  for (size_t i = 0; i < gradients->n; i++) {
    free((char *)(uintptr_t)gradients->items[i].name);
    cleave_tensor_free(&gradients->items[i].tensor);
  }
  free(gradients->items);
  *gradients = (cleave_gradients){0};
}

/* ---- written --------------------------------------------------------------------------------- */

static cleave_status check_write(const api_context *c, const cleave_module *m, const char *name,
                                 const clv_tensor *t, cleave_error *error) {
  const clv_param *p;
  char want[160], got[160];
  PASS(check_learns(m, name, &p, error));
  if (t->dtype != p->dtype || !clv_shape_equal(&t->shape, &p->shape))
    return api_fail(error, CLV_INVALID, "'%s' of module '%s' is %s %s, the gradient given %s %s",
                    name, m->name, clv_dtype_name(p->dtype),
                    clv_shape_format(&p->shape, want, sizeof want), clv_dtype_name(t->dtype),
                    clv_shape_format(&t->shape, got, sizeof got));
  if (c->stepped[m->index])
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' has taken its step of context %s: nothing reads its gradients "
                    "any more",
                    m->name, c->name);
  return c->has_gradient[m->index] ? CLEAVE_OK : not_reached(c, m, name, error);
}

/* Its node votes again before the next step: what it said of its gradients is out of date. */
static cleave_status put(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                         const char *name, clv_tensor *t, uint64_t deadline_ms,
                         cleave_error *error) {
  api_context *c;
  LOCKED(rt);
  uint64_t until = api_until(rt, deadline_ms);
  PASS(api_decided(rt, until, error));
  PASS(api_find_context(rt, handle, &c, error));
  if (c->running) PASS(api_backward_await(rt, c, until, error));
  PASS(check_write(c, m, name, t, error));
  api_state_item item = {.tensor = t};
  snprintf(item.name, sizeof item.name, "%s", name);
  c->users++;
  c->written |= NODE_BIT(m->node);
  cleave_status status = api_state_put(m, CLV_STATE_GRADIENTS, c->id, &item, 1, until, error);
  c->users--;
  if (c->closing) api_wake(rt);
  return status == CLEAVE_NOT_FOUND ? not_reached(c, m, name, error) : status;
}

cleave_status cleave_gradient_write(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name,
                                    const cleave_tensor *tensor, uint64_t deadline_ms,
                                    cleave_error *error) {
  GIVEN(runtime, module, name, tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  if (module->runtime != runtime)
    return api_fail(error, CLV_INVALID, "a module of another runtime");
  PASS(api_tensor_in(runtime->pool, tensor, &t, error));
  return put(runtime, context, module, name, t, deadline_ms, error);
}
