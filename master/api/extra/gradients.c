/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes the gradients of a context: the gradient of one parameter or leaf, or all
 * gradients as a list. Each operation waits for the backwards, steps and writes that were begun in
 * the context before it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/extra/extra_int.h"

/* States of an operation on gradients (api_future.operation_state): it waits for earlier operations
 * of the context; its request has been sent. */
enum { WAITS_FOR_EARLIER, REQUEST_IS_SENT };

/* The gradients of one module, requested or received. */
typedef struct module_gradients {
  cleave_module *module;
  api_state_item *items; /* [cap] gradients of the module's parameters */
  uint32_t cap;
  api_state_request request;
} module_gradients;

typedef struct leaf_gradient {
  uint64_t id;
  clv_tensor *tensor;
} leaf_gradient;

/* All gradients of a context. */
typedef struct all_gradients {
  module_gradients *modules; /* [n_modules] gradients of each module */
  uint32_t n_modules;
  leaf_gradient *leaves; /* [n_leaves] gradients of leaves */
  uint32_t n_leaves;
} all_gradients;

/* True if the earlier operations of the context have ended, so that f may begin. If the context has
 * failed, ends f with the error of the context. */
static bool may_begin_operation(cleave_runtime *rt, api_future *f) {
  const api_context *c = f->context;
  if (!c->has_failed) return !api_future_has_earlier_operation(rt, f);
  api_future_finish(rt, f, &c->failure);
  return false;
}

static void set_future_context(api_future *f, api_context *c) {
  f->context = c;
  f->context_id = c->id;
}

static void fill_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const all_gradients *g = f->private_record;
  const cleave_module *m = f->module;
  char silence_text[200];
  if (f->operation_state == WAITS_FOR_EARLIER) {
    api_fail(ret, CLV_DEADLINE, "what was begun in context %s before was not done in time",
             f->context->name);
    return;
  }
  for (uint32_t i = 0; g && i < g->n_modules && !m; i++)
    if (!api_is_request_answered(&g->modules[i].request)) m = g->modules[i].module;
  api_fail(ret, CLV_DEADLINE, "%s of module '%s' did not come from '%s' in time%s", f->subject_name,
           m ? m->name : "", m ? cleave_module_node(m) : "",
           api_describe_silence(rt, silence_text, sizeof silence_text));
  if (m) api_set_error_node(ret, cleave_module_node(m), m->name);
}

/* ---- the gradient of one parameter ----------------------------------------------------------- */

static cleave_status fail_not_reached(const api_context *c, const cleave_module *m,
                                      const char *name, cleave_error *error) {
  return api_fail(error, CLV_NOT_FOUND,
                  "context %s has no gradient of '%s' of module '%s': no backward got there",
                  c->name, name, m->name);
}

static cleave_status check_requires_grad(const cleave_module *m, const char *name,
                                         const clv_param **ret, cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  if (!p || !p->trainable)
    return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s'", m->name, name);
  if (p->frozen)
    return api_fail(error, CLV_NOT_FOUND, "'%s' of module '%s' is frozen: it has no gradient", name,
                    m->name);
  if (ret) *ret = p;
  return CLEAVE_OK;
}

static cleave_status begin_one_gradient(cleave_runtime *rt, api_arguments *a, api_future *f,
                                        cleave_error *error) {
  cleave_module *m = a->module;
  const char *name = a->name;
  api_context *c;
  TRY_API(api_find_context(rt, a->context, &c, error));
  TRY_API(check_requires_grad(m, name, NULL, error));
  set_future_context(f, c);
  f->module = m;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", name);
  f->request.item_name = f->subject_name;
  return CLEAVE_OK;
}

static cleave_status request_one_gradient(api_future *f, cleave_error *error) {
  const api_context *c = f->context;
  f->operation_state = REQUEST_IS_SENT;
  if (!c->has_gradient[f->module->index])
    return fail_not_reached(c, f->module, f->subject_name, error);
  return api_state_send_get(f->module, CLV_STATE_GRADIENTS, c->id, &f->request, error);
}

static cleave_status take_one_gradient(api_future *f, cleave_error *error) {
  if (f->request.has_failed) {
    *error = f->request.failure;
    return error->status;
  }
  TRY_API(api_state_check_item(f->module, f->subject_name, f->request.item_tensor, error));
  f->tensor = clv_steal(&f->request.item_tensor);
  return f->tensor ? CLEAVE_OK : fail_not_reached(f->context, f->module, f->subject_name, error);
}

static void advance_one_gradient(cleave_runtime *rt, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_EARLIER) {
    if (!may_begin_operation(rt, f)) return;
    (void)request_one_gradient(f, &why);
  }
  if (why.status == CLEAVE_OK && !api_is_request_answered(&f->request)) return;
  if (why.status == CLEAVE_OK) (void)take_one_gradient(f, &why);
  api_future_finish(rt, f, &why);
}

/* Finds the gradient of a leaf of the program. No backward of the context may be running. */
static cleave_status find_leaf_gradient(cleave_runtime *rt, cleave_reference leaf, api_value **ret,
                                        cleave_error *error) {
  api_value *v;
  TRY_API(api_find_value(rt, leaf, &v, error));
  if (v->module || !v->needs_grad)
    return api_fail(error, CLV_INVALID, "reference %llu is no leaf that requires a gradient",
                    (unsigned long long)leaf.id);
  if (v->context->is_backward_running)
    return api_fail(error, CLV_PRECONDITION, "a backward of context %s is running",
                    v->context->name);
  if (!v->gradient)
    return api_fail(error, CLV_NOT_FOUND, "no backward got to leaf %llu",
                    (unsigned long long)leaf.id);
  *ret = v;
  return CLEAVE_OK;
}

cleave_status cleave_leaf_gradient(cleave_runtime *runtime, cleave_reference leaf,
                                   cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    TRY_API(find_leaf_gradient(runtime, leaf, &v, error));
    t = clv_tensor_ref(v->gradient);
  }
  return api_copy_tensor_out(t, ret_tensor, error);
}

/* Puts a gradient back into its leaf, because copying it to the program has failed. */
static void restore_leaf_gradient(cleave_runtime *rt, cleave_reference leaf, clv_tensor *t) {
  LOCKED(rt);
  api_value *v = api_id_table_get(&rt->values, leaf.id);
  if (v && !v->gradient) v->gradient = clv_tensor_ref(t);
}

cleave_status cleave_leaf_gradient_take(cleave_runtime *runtime, cleave_reference leaf,
                                        cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    TRY_API(find_leaf_gradient(runtime, leaf, &v, error));
    t = clv_steal(&v->gradient);
  }
  cleave_status status = api_copy_tensor_out(t, ret_tensor, error);
  if (status != CLEAVE_OK) restore_leaf_gradient(runtime, leaf, t);
  return status;
}

/* ---- all gradients --------------------------------------------------------------------------- */

static cleave_status begin_all_gradients(cleave_runtime *rt, api_arguments *a, api_future *f,
                                         cleave_error *error) {
  all_gradients *g;
  api_context *c;
  TRY_API(api_find_context(rt, a->context, &c, error));
  TRY(clv_alloc(1, sizeof *g, &g, &err));
  f->private_record = g;
  set_future_context(f, c);
  snprintf(f->subject_name, sizeof f->subject_name, "the gradients of context %.64s", c->name);
  return CLEAVE_OK;
}

static int compare_load_numbers(const void *a, const void *b) {
  const module_gradients *p = a, *q = b;
  return (p->module->load_number > q->module->load_number) -
         (p->module->load_number < q->module->load_number);
}

static cleave_status find_modules(const cleave_runtime *rt, api_future *f, cleave_error *error) {
  all_gradients *g = f->private_record;
  TRY(clv_alloc(CLV_MAX(rt->n_modules, 1), sizeof *g->modules, &g->modules, &err));
  for (uint32_t i = 0; i < rt->n_modules; i++)
    if (f->context->has_gradient[i] && rt->modules[i] && !rt->modules[i]->is_released)
      g->modules[g->n_modules++].module = rt->modules[i];
  qsort(g->modules, g->n_modules, sizeof *g->modules, compare_load_numbers);
  return CLEAVE_OK;
}

/* Requests the gradients of all modules at once, without waiting for an answer. */
static cleave_status request_all_gradients(const cleave_runtime *rt, api_future *f,
                                           cleave_error *error) {
  const all_gradients *g = f->private_record;
  f->operation_state = REQUEST_IS_SENT;
  TRY_API(find_modules(rt, f, error));
  for (uint32_t i = 0; i < g->n_modules; i++) {
    module_gradients *q = &g->modules[i];
    q->cap = q->module->n_trained_params;
    TRY(clv_alloc(q->cap, sizeof *q->items, &q->items, &err));
    q->request = (api_state_request){
        .items = q->items, .n_items_expected = q->cap, .may_have_fewer_items = true};
    TRY_API(api_state_send_get(q->module, CLV_STATE_GRADIENTS, f->context->id, &q->request, error));
  }
  return CLEAVE_OK;
}

/* Checks the gradients of a module: one of each trainable parameter, in the order of the
 * parameters, or none if no backward reached the module. */
static cleave_status check_module_gradients(const module_gradients *q, cleave_error *error) {
  const cleave_module *m = q->module;
  uint32_t n = 0;
  bool is_valid =
      !q->request.n_items_expected || q->request.n_items_expected == m->n_trained_params;
  for (int i = 0; is_valid && q->request.n_items_expected && i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (!p->trainable || p->frozen) continue;
    const api_state_item *item = &q->items[n++];
    const clv_tensor *t = item->tensor;
    is_valid = t && strcmp(item->name, p->name) == 0 && t->dtype == p->dtype &&
               clv_shape_equal(&t->shape, &p->shape);
  }
  if (is_valid) return CLEAVE_OK;
  api_fail(error, CLV_BAD_ANSWER, "worker '%s' sent other gradients than those of module '%s'",
           cleave_module_node(m), m->name);
  api_set_error_node(error, cleave_module_node(m), m->name);
  return CLEAVE_PROTOCOL_VIOLATION;
}

static bool is_listed(const api_value *v) { return !v->module && v->gradient && !v->is_released; }

/* Lists the gradients of the program's leaves, from the oldest leaf to the newest. */
static cleave_status take_leaf_gradients(api_future *f, cleave_error *error) {
  all_gradients *g = f->private_record;
  uint32_t n = 0;
  for (const api_value *v = f->context->newest_value; v; v = v->older_value) n += is_listed(v);
  TRY(clv_alloc(CLV_MAX(n, 1), sizeof *g->leaves, &g->leaves, &err));
  g->n_leaves = n;
  for (const api_value *v = f->context->newest_value; v; v = v->older_value)
    if (is_listed(v)) g->leaves[--n] = (leaf_gradient){v->id, clv_tensor_ref(v->gradient)};
  return CLEAVE_OK;
}

static bool have_all_answers(const api_future *f) {
  const all_gradients *g = f->private_record;
  bool are_all_answered = true;
  for (uint32_t i = 0; i < g->n_modules && are_all_answered; i++) {
    const api_state_request *r = &g->modules[i].request;
    if (r->has_failed) return true;
    are_all_answered = api_is_request_answered(r);
  }
  return are_all_answered;
}

static cleave_status take_all_gradients(api_future *f, cleave_error *error) {
  const all_gradients *g = f->private_record;
  for (uint32_t i = 0; i < g->n_modules; i++) {
    const api_state_request *r = &g->modules[i].request;
    if (r->has_failed) *error = r->failure;
    if (r->has_failed) return error->status;
  }
  for (uint32_t i = 0; i < g->n_modules; i++)
    TRY_API(check_module_gradients(&g->modules[i], error));
  return take_leaf_gradients(f, error);
}

/* Withdraws the requests for gradients that were sent to the nodes. Answers that arrive later are
 * ignored. */
static void withdraw_requests(cleave_runtime *rt, api_future *f) {
  all_gradients *g = f->private_record;
  for (uint32_t i = 0; i < g->n_modules; i++) api_state_request_free(rt, &g->modules[i].request);
}

static void free_all_gradients(cleave_runtime *rt, api_future *f) {
  all_gradients *g = f->private_record;
  if (!g) return;
  withdraw_requests(rt, f);
  for (uint32_t i = 0; i < g->n_modules; i++)
    api_state_items_free(g->modules[i].items, g->modules[i].cap);
  for (uint32_t i = 0; i < g->n_leaves; i++) clv_tensor_unref(g->leaves[i].tensor);
  free(g->modules);
  free(g->leaves);
  free(g);
}

static void advance_all_gradients(cleave_runtime *rt, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_EARLIER) {
    if (!may_begin_operation(rt, f)) return;
    (void)request_all_gradients(rt, f, &why);
  }
  if (why.status == CLEAVE_OK && !have_all_answers(f)) return;
  if (why.status == CLEAVE_OK) (void)take_all_gradients(f, &why);
  api_future_end_early(rt, f, &why);
}

/* ---- copying all gradients to the program ---------------------------------------------------- */

static cleave_status append_module_gradients(const module_gradients *q, cleave_gradients *ret,
                                             cleave_error *error) {
  for (uint32_t k = 0; k < q->request.n_items_expected; k++) {
    cleave_gradient_item *item = &ret->items[ret->n];
    char *name;
    TRY(clv_strdup(q->items[k].name, &name, &err));
    ret->n++;
    item->name = name;
    item->module = q->module;
    TRY_API(api_copy_tensor_out(q->items[k].tensor, &item->tensor, error));
  }
  return CLEAVE_OK;
}

static cleave_status append_leaf_gradients(const api_future *f, cleave_gradients *ret,
                                           cleave_error *error) {
  const all_gradients *g = f->private_record;
  for (uint32_t i = 0; i < g->n_leaves; i++) {
    cleave_gradient_item *item = &ret->items[ret->n++];
    item->leaf.id = g->leaves[i].id;
    TRY_API(api_copy_tensor_out(g->leaves[i].tensor, &item->tensor, error));
  }
  return CLEAVE_OK;
}

cleave_status api_copy_gradients_result(const api_future *f, void *ret, cleave_error *error) {
  const all_gradients *g = f->private_record;
  cleave_gradients *to = ret;
  cleave_gradients list = {0};
  cleave_status status = CLEAVE_OK;
  size_t n = g->n_leaves;
  for (uint32_t i = 0; i < g->n_modules; i++) n += g->modules[i].request.n_items_expected;
  TRY(clv_alloc(CLV_MAX(n, 1), sizeof *list.items, &list.items, &err));
  for (uint32_t i = 0; i < g->n_modules && status == CLEAVE_OK; i++)
    status = append_module_gradients(&g->modules[i], &list, error);
  if (status == CLEAVE_OK) status = append_leaf_gradients(f, &list, error);
  if (status == CLEAVE_OK)
    *to = list;
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

/* ---- writing a gradient ---------------------------------------------------------------------- */

static cleave_status check_gradient_spec(const cleave_module *m, const char *name,
                                         const clv_tensor *t, cleave_error *error) {
  const clv_param *p;
  char expected_type[160], given_type[160];
  TRY_API(check_requires_grad(m, name, &p, error));
  if (t->dtype == p->dtype && clv_shape_equal(&t->shape, &p->shape)) return CLEAVE_OK;
  return api_fail(
      error, CLV_INVALID, "'%s' of module '%s' is %s %s, the gradient given %s %s", name, m->name,
      clv_dtype_name(p->dtype), clv_shape_format(&p->shape, expected_type, sizeof expected_type),
      clv_dtype_name(t->dtype), clv_shape_format(&t->shape, given_type, sizeof given_type));
}

static cleave_status check_gradient_write(const api_context *c, const cleave_module *m,
                                          const char *name, cleave_error *error) {
  if (c->has_stepped[m->index])
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' has taken its step of context %s: nothing reads its gradients "
                    "any more",
                    m->name, c->name);
  return c->has_gradient[m->index] ? CLEAVE_OK : fail_not_reached(c, m, name, error);
}

/* Begins to write a gradient. The module's node votes again (sends its sums of squared gradients)
 * before the next step, because its last vote is out of date. */
static cleave_status begin_gradient_write(cleave_runtime *rt, api_arguments *a, api_future *f,
                                          cleave_error *error) {
  cleave_module *m = a->module;
  const char *name = a->name;
  api_context *c;
  TRY_API(api_find_context(rt, a->context, &c, error));
  TRY_API(check_gradient_spec(m, name, a->tensor, error));
  set_future_context(f, c);
  f->module = m;
  f->tensor = clv_tensor_ref(a->tensor);
  snprintf(f->subject_name, sizeof f->subject_name, "%s", name);
  return CLEAVE_OK;
}

static cleave_status send_gradient_write(api_future *f, cleave_error *error) {
  api_context *c = f->context;
  api_state_item item = {.tensor = f->tensor};
  f->operation_state = REQUEST_IS_SENT;
  TRY_API(check_gradient_write(c, f->module, f->subject_name, error));
  memcpy(item.name, f->subject_name, sizeof item.name);
  c->nodes_with_written_gradients |= NODE_BIT(f->module->node);
  return api_state_send_put(f->module, CLV_STATE_GRADIENTS, c->id, &item, 1, &f->request, error);
}

static void advance_gradient_write(cleave_runtime *rt, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_EARLIER) {
    if (rt->undecided_context || !may_begin_operation(rt, f)) return;
    (void)send_gradient_write(f, &why);
  }
  if (why.status == CLEAVE_OK && !api_is_request_answered(&f->request)) return;
  if (why.status == CLEAVE_OK && f->request.has_failed) why = f->request.failure;
  if (why.status == CLEAVE_NOT_FOUND)
    (void)fail_not_reached(f->context, f->module, f->subject_name, &why);
  api_future_finish(rt, f, &why);
}

/* ---- functions for programs ------------------------------------------------------------------ */

static cleave_status copy_place_result(const api_future *f, void *ret, cleave_error *error) {
  cleave_module *m = f->module;
  cleave_place *place = ret;
  (void)error;
  LOCKED(m->runtime);
  api_module_set_device(m, f->request.device);
  *place = (cleave_place){m->runtime->peers[m->node].name, m->device};
  return CLEAVE_OK;
}

static const api_operation one_gradient_operation = {.name = "the gradient",
                                                     .begin = begin_one_gradient,
                                                     .advance = advance_one_gradient,
                                                     .fill_deadline_error = fill_deadline_error,
                                                     .copy_result = api_copy_tensor_result},
                           place = {.name = "the gradient",
                                    .begin = begin_one_gradient,
                                    .advance = advance_one_gradient,
                                    .fill_deadline_error = fill_deadline_error,
                                    .copy_result = copy_place_result},
                           all_gradients_operation = {.name = "the gradients",
                                                      .begin = begin_all_gradients,
                                                      .advance = advance_all_gradients,
                                                      .fill_deadline_error = fill_deadline_error,
                                                      .withdraw = withdraw_requests,
                                                      .free = free_all_gradients,
                                                      .copy_result = api_copy_gradients_result},
                           write_operation = {.name = "a gradient",
                                              .begin = begin_gradient_write,
                                              .advance = advance_gradient_write,
                                              .fill_deadline_error = fill_deadline_error,
                                              .runs_in_order = true};

cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context context,
                              cleave_module *module, const char *name, uint64_t deadline_ms,
                              cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_tensor);
  api_arguments a = {
      .deadline_ms = deadline_ms, .context = context, .module = module, .name = name};
  return api_run_blocking(runtime, &one_gradient_operation, &a, ret_tensor, error);
}

cleave_status cleave_gradient_async(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_future);
  api_arguments a = {
      .deadline_ms = deadline_ms, .context = context, .module = module, .name = name};
  return api_run_async(runtime, &one_gradient_operation, &a, ret_future, error);
}

cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_place *ret_place, cleave_error *error) {
  NOT_NULL(runtime, module, name, ret_place);
  api_arguments a = {
      .deadline_ms = deadline_ms, .context = context, .module = module, .name = name};
  return api_run_blocking(runtime, &place, &a, ret_place, error);
}

cleave_status cleave_gradients_read(cleave_runtime *runtime, cleave_context context,
                                    uint64_t deadline_ms, cleave_gradients *ret_gradients,
                                    cleave_error *error) {
  NOT_NULL(runtime, ret_gradients);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context};
  return api_run_blocking(runtime, &all_gradients_operation, &a, ret_gradients, error);
}

cleave_status cleave_gradients_read_async(cleave_runtime *runtime, cleave_context context,
                                          uint64_t deadline_ms, cleave_future *ret_future,
                                          cleave_error *error) {
  NOT_NULL(runtime, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .context = context};
  return api_run_async(runtime, &all_gradients_operation, &a, ret_future, error);
}

/* Copies a gradient for a module. Refuses a module of another runtime. */
static cleave_status copy_gradient(const cleave_runtime *rt, const cleave_module *m,
                                   const cleave_tensor *from, clv_tensor **ret,
                                   cleave_error *error) {
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  return api_copy_tensor_in(rt->pool, from, ret, error);
}

cleave_status cleave_gradient_write(cleave_runtime *runtime, cleave_context context,
                                    cleave_module *module, const char *name,
                                    const cleave_tensor *tensor, uint64_t deadline_ms,
                                    cleave_error *error) {
  NOT_NULL(runtime, module, name, tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  TRY_API(copy_gradient(runtime, module, tensor, &t, error));
  api_arguments a = {
      .deadline_ms = deadline_ms, .context = context, .module = module, .name = name, .tensor = t};
  return api_run_blocking(runtime, &write_operation, &a, NULL, error);
}

cleave_status cleave_gradient_write_async(cleave_runtime *runtime, cleave_context context,
                                          cleave_module *module, const char *name,
                                          const cleave_tensor *tensor, uint64_t deadline_ms,
                                          cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, module, name, tensor, ret_future);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  TRY_API(copy_gradient(runtime, module, tensor, &t, error));
  api_arguments a = {
      .deadline_ms = deadline_ms, .context = context, .module = module, .name = name, .tensor = t};
  return api_run_async(runtime, &write_operation, &a, ret_future, error);
}
