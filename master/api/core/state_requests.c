/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for state: sends requests to the module's node, waits for the answers, and checks the
 * answers against the module's graph.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/state_requests_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- requests for state ---------------------------------------------------------------------- */

void api_state_request_free(cleave_runtime *rt, api_state_request *r) {
  if (!r) return;
  api_state_request **at = &rt->state_requests;
  while (*at && *at != r) at = &(*at)->next;
  if (*at) *at = r->next;
  clv_tensor_unref(r->item_tensor);
}

cleave_status api_state_await(cleave_module *m, api_state_request *r, const char *what,
                              uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  while (!r->has_failed && !(r->is_answered && r->n_items_received >= r->n_items_expected)) {
    if (api_wait(rt, until_ns)) continue;
    char silence_text[200];
    cleave_status status = api_fail_late(
        rt, error, "%s of module '%s' did not come from '%s' in time%s", what, m->name,
        rt->peers[m->node].name, api_describe_silence(rt, silence_text, sizeof silence_text));
    api_set_error_node(error, rt->peers[m->node].name, m->name);
    return status;
  }
  if (r->has_failed && error) *error = r->failure;
  return r->has_failed ? r->failure.status : CLEAVE_OK;
}

cleave_status api_state_send_get(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                 api_state_request *r, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  r->id = ++rt->next_id;
  r->node = m->node;
  TRY(clv_packet_new_state_get(rt->pool, context_id, r->id, m->index, state_kind, &p, &err));
  api_set_frame_module(p, m);
  r->next = rt->state_requests;
  rt->state_requests = r;
  return api_send(rt, m->node, p, error);
}

cleave_status api_state_check_item(const cleave_module *m, const char *name, const clv_tensor *t,
                                   cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  if (!t || (p && t->dtype == p->dtype && clv_shape_equal(&t->shape, &p->shape))) return CLEAVE_OK;
  api_fail(error, CLV_DATA_LOSS, "'%s' of module '%s' came with another shape", name, m->name);
  api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
  return CLEAVE_DATA_LOSS;
}

static cleave_status put_item(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                              const api_state_item *item, uint32_t index, uint32_t n,
                              uint64_t message, cleave_error *error) {
  clv_packet *p;
  TRY_API(api_packet_new(m->runtime, CLV_STATE_PUT, context_id, message, &p, error));
  api_set_frame_module(p, m);
  p->frame.state.part = state_kind;
  p->frame.state.item_index = index;
  p->frame.state.n_items = n;
  memcpy(p->frame.state.item_or_file_name, item->name, sizeof p->frame.state.item_or_file_name);
  clv_packet_add_tensor(p, item->tensor);
  return api_send(m->runtime, m->node, p, error);
}

cleave_status api_state_send_put(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                 const api_state_item *items, uint32_t n, api_state_request *r,
                                 cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  cleave_status status = CLEAVE_OK;
  *r = (api_state_request){.id = ++rt->next_id, .node = m->node, .next = rt->state_requests};
  rt->state_requests = r;
  m->weights_version += state_kind == CLV_STATE_WEIGHTS;
  for (uint32_t i = 0; i < n && status == CLEAVE_OK; i++)
    status = put_item(m, state_kind, context_id, &items[i], i, n, r->id, error);
  return status;
}

cleave_status api_put_state_items(cleave_module *m, clv_state_kind state_kind, uint64_t context_id,
                                  const api_state_item *items, uint32_t n, uint64_t until_ns,
                                  cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  api_state_request r;
  cleave_status status = api_state_send_put(m, state_kind, context_id, items, n, &r, error);
  if (status == CLEAVE_OK) status = api_state_await(m, &r, items[0].name, until_ns, error);
  api_state_request_free(rt, &r);
  return status;
}

/* ---- counting, finding and checking items of state ------------------------------------------- */

/* Computes the number of items from the module, so that a worker cannot send more. */
size_t cleave_state_count(const cleave_module *m, cleave_state_kind kind) {
  uint32_t n_trainable = 0, moment_kind_mask = 0;
  if (!m) return 0;
  if (kind == CLEAVE_STATE_WEIGHTS) return (size_t)m->params->n;
  if (!m->optimizer) return 0;
  for (int i = 0; i < m->params->n; i++)
    n_trainable += m->params->list[i].trainable && !m->params->list[i].is_fixed;
  for (uint32_t i = 0; i < m->n_groups; i++)
    if (m->groups[i]) moment_kind_mask |= clv_optim_moment_mask(&m->groups[i]->optim);
  return (size_t)clv_optim_count_moments(moment_kind_mask) * n_trainable + 1;
}

bool api_find_state_item_spec(const cleave_module *m, cleave_state_kind kind, const char *name,
                              clv_dtype *ret_dtype, clv_shape *ret_shape) {
  char param[CLV_WIRE_NAME + 1];
  *ret_dtype = CLV_I64;
  *ret_shape = (clv_shape){0};
  if (kind == CLEAVE_STATE_OPTIMIZER && strcmp(name, "step") == 0) return true;
  snprintf(param, sizeof param, "%s", name);
  char *moment = kind == CLEAVE_STATE_OPTIMIZER ? strrchr(param, '.') : NULL;
  if (moment) *moment = '\0';
  const clv_param *p = clv_params_find(m->params, param);
  if (!p || (moment && p->is_fixed)) return false;
  *ret_dtype = p->dtype;
  *ret_shape = p->shape;
  return true;
}

bool api_has_state_item(const cleave_module *m, cleave_state_kind kind, const char *name,
                        clv_dtype dtype, const clv_shape *shape) {
  clv_dtype item_dtype;
  clv_shape item_shape;
  return api_find_state_item_spec(m, kind, name, &item_dtype, &item_shape) && item_dtype == dtype &&
         clv_shape_equal(&item_shape, shape);
}

cleave_status api_state_check_items(const cleave_module *m, cleave_state_kind kind,
                                    const api_state_item *items, uint32_t n, cleave_error *error) {
  char shape[160];
  for (uint32_t i = 0; i < n; i++) {
    const clv_tensor *t = items[i].tensor;
    if (t && api_has_state_item(m, kind, items[i].name, t->dtype, &t->shape)) continue;
    if (!t)
      api_fail(error, CLV_BAD_ANSWER, "item %u of %u of the state of module '%s' did not come", i,
               n, m->name);
    else
      api_fail(error, CLV_BAD_ANSWER, "worker '%s' sent state '%s' %s, which is not module '%s''s",
               m->runtime->peers[m->node].name, items[i].name,
               clv_shape_format(&t->shape, shape, sizeof shape), m->name);
    api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
    return CLEAVE_PROTOCOL_VIOLATION;
  }
  return CLEAVE_OK;
}

cleave_status api_read_all_state_items(cleave_module *m, cleave_state_kind kind, uint64_t until_ns,
                                       api_state_item **ret_items, uint32_t *ret_n,
                                       cleave_error *error) {
  api_state_item *items = NULL;
  api_state_request r = {.n_items_expected = (uint32_t)cleave_state_count(m, kind),
                         .may_have_fewer_items = m->artifact_name};
  if (!r.n_items_expected) return CLEAVE_OK;
  TRY(clv_alloc(r.n_items_expected, sizeof *items, &items, &err));
  r.items = items;
  cleave_status status = api_state_send_get(m, (clv_state_kind)kind, 0, &r, error);
  if (status == CLEAVE_OK) status = api_state_await(m, &r, "the state", until_ns, error);
  if (status == CLEAVE_OK)
    status = api_state_check_items(m, kind, items, r.n_items_expected, error);
  api_state_request_free(m->runtime, &r);
  if (status != CLEAVE_OK) {
    api_state_items_free(items, r.n_items_expected);
    return status;
  }
  *ret_items = items;
  *ret_n = r.n_items_expected;
  return CLEAVE_OK;
}
