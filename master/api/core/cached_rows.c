/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a module's output that the worker of the next module caches on its disk. The rows are
 * sent once, with their record numbers; later only the numbers are sent.
 */
#include <stdio.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

static cleave_status check_cache(const cleave_cached *c, cleave_error *error) {
  const api_peer *p = &c->to->runtime->peers[c->to->node];
  if (!c->n || !c->to->node || !p->has_module)
    return api_fail(error, CLV_INVALID, "no rows, or no worker to keep them");
  if (p->supports_row_cache) return CLEAVE_OK;
  api_fail(error, CLV_UNIMPLEMENTED,
           "worker '%s' keeps no caches for this identity: it needs state_dir and "
           "allow[].cache_bytes in its worker.yaml, or is of an older version",
           p->name);
  api_set_error_node(error, p->name, c->to->name);
  return CLEAVE_UNIMPLEMENTED;
}

cleave_status cleave_cached_check(const cleave_cached *c, cleave_error *error) {
  LOCKED(c->to->runtime);
  return check_cache(c, error);
}

/* Sets dtype and shape of the leaf to those of the tensor that the worker builds from cached
 * rows. */
static void describe_leaf(const cleave_cached *c, api_value *v) {
  const clv_node *out = &c->from->graph->nodes[c->from->graph->output_node];
  v->cached_rows_module = c->from;
  v->dtype = out->dtype;
  v->shape = out->shape;
  v->shape.dim[0] = (int64_t)c->n;
  v->nodes_with_value = NODE_BIT(c->to->node);
}

static cleave_status send_cached_rows(cleave_runtime *rt, const cleave_cached *c,
                                      const api_value *v, clv_tensor *values,
                                      clv_tensor *record_numbers, cleave_error *error) {
  clv_packet *p;
  TRY_API(api_packet_new(rt, CLV_VALUE, v->context->id, v->id, &p, error));
  snprintf(p->frame.to, sizeof p->frame.to, "%s", api_wire_name(&rt->peers[c->to->node]));
  p->frame.has_cached = true;
  p->frame.cached = (clv_wire_cached){c->key, c->records, c->keep_s};
  if (values) clv_packet_add_tensor(p, values);
  clv_packet_add_tensor(p, record_numbers);
  return api_send(rt, c->to->node, p, error);
}

cleave_status cleave_leaf_cached(cleave_runtime *rt, cleave_context handle, const cleave_cached *c,
                                 const cleave_tensor *values, cleave_reference *ret,
                                 cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL, *copied_numbers = NULL;
  const cleave_tensor record_numbers = {.dtype = CLEAVE_I64,
                                        .rank = 1,
                                        .shape = {(int64_t)c->n},
                                        .data = (void *)(uintptr_t)c->record_numbers};
  api_context *context;
  api_value *v;
  if (values) TRY_API(api_copy_tensor_in(rt->pool, values, &t, error));
  TRY_API(api_copy_tensor_in(rt->pool, &record_numbers, &copied_numbers, error));
  LOCKED(rt);
  TRY_API(check_cache(c, error));
  TRY_API(api_find_context(rt, handle, &context, error));
  TRY_API(api_new_value(rt, context, &v, error));
  describe_leaf(c, v);
  cleave_status status = send_cached_rows(rt, c, v, t, copied_numbers, error);
  if (status != CLEAVE_OK) { /* the value can be freed, because no other record refers to it yet */
    context->newest_value = v->older_value;
    api_drop_value(rt, v);
    return status;
  }
  context->nodes_used |= NODE_BIT(c->to->node);
  ret->id = v->id;
  return CLEAVE_OK;
}

/* Lists the cache at the worker or removes it, as `verb` says. *ret_rows: number of rows in the
 * cache, before a removal. */
static clv_code call_kept_method(const cleave_cached *c, clv_kept_verb verb, uint64_t timeout_ms,
                                 uint64_t *ret_rows, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply reply = {0};
  const clv_wire_kept_request q = {
      .verb = verb, .kept_kind = CLV_KEPT_CACHES, .has_cache_key = true, .cache_key = c->key};
  const api_peer *p = &c->to->runtime->peers[c->to->node];
  if (!p->supports_kept_refs)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "it speaks protocol %u and has no list of its caches: upgrade it",
                    p->protocol_version);
  CLV_TRY(api_call_kept_method(p->channel, &q, (unsigned)timeout_ms, &reply, err));
  *ret_rows = 0;
  for (uint32_t i = 0; i < reply.n_caches; i++) *ret_rows += reply.caches[i].n_rows;
  return CLV_OK;
}

clv_code cleave_cache_count(const cleave_cached *c, uint64_t timeout_ms, uint64_t *ret_rows,
                            clv_err *err) {
  return call_kept_method(c, CLV_KEPT_LIST, timeout_ms, ret_rows, err);
}

clv_code cleave_cache_end(const cleave_cached *c, uint64_t timeout_ms, uint64_t *ret_rows,
                          clv_err *err) {
  return call_kept_method(c, CLV_KEPT_REMOVE, timeout_ms, ret_rows, err);
}
