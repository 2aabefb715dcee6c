/* SPDX-License-Identifier: Apache-2.0
 *
 * Kept references of the program, which outlive their context. The master's own node runs the
 * protocol of references (common/engine/reference/reference.h). This file sends requests to that
 * node, which answers like any other node.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/core.h"

/* ---- records of kept references -------------------------------------------------------------- */

/* Ends the wait of a context for the answer of the reference's owner. */
static void end_owner_wait(cleave_runtime *rt, api_kept_ref *k) {
  api_context *c = k->awaiting_context;
  k->awaiting_context = NULL;
  if (c && --c->n_unconfirmed_kept_values == 0) api_context_on_owners_answered(rt, c);
  rt->needs_wake = true;
}

static void free_ref(cleave_runtime *rt, api_kept_ref *k) {
  end_owner_wait(rt, k);
  api_id_table_remove(&rt->kept_refs, k->ids.ref_id);
  clv_tensor_unref(k->fetched_value);
  api_module_remove_kept_ref(k->module);
  free(k);
}

/* Frees the record of a reference if nothing uses it. If this process owns the value, the record
 * stays until the value is freed, because may_send needs the record to describe the value. */
static void free_ref_if_unused(cleave_runtime *rt, api_kept_ref *k) {
  if (k->is_released && k->owner_lacks_value && !k->n_leaves && !k->n_waiters) free_ref(rt, k);
}

static cleave_status find_ref(cleave_runtime *rt, cleave_kept handle, api_kept_ref **ret,
                              cleave_error *error) {
  api_kept_ref *k = api_id_table_get(&rt->kept_refs, handle.id);
  if (k && !k->is_released) {
    *ret = k;
    return CLEAVE_OK;
  }
  if (handle.id == 0 || handle.id > rt->next_id)
    return api_fail(error, CLV_INVALID, "%llu is no kept reference of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "kept reference %llu was released",
                  (unsigned long long)handle.id);
}

static cleave_status copy_ref_failure(const api_kept_ref *k, cleave_error *error) {
  if (k->has_failed && error) *error = k->failure;
  return k->has_failed ? k->failure.status : CLEAVE_OK;
}

static cleave_status send_to_master_node(cleave_runtime *rt, clv_packet *p) {
  if (rt->node) return api_send(rt, 0, p, NULL);
  clv_packet_free(p); /* the runtime is being closed */
  return CLEAVE_OK;
}

/* Releases the reference at the master's own node, once the program has released the reference and
 * no leaf or function uses it. */
static void release_if_unused(cleave_runtime *rt, api_kept_ref *k) {
  clv_packet *p;
  clv_err err;
  if (!k->is_released || k->owner_lacks_value || k->n_leaves || k->n_waiters) return;
  bool is_owned_by_master = k->owner_node == 0 && !k->has_failed;
  /* if the master owns the value, its node reports later that the value is freed */
  k->owner_lacks_value = !is_owned_by_master;
  if (clv_packet_new_ref_release(rt->pool, &k->ids, &p, &err) == CLV_OK)
    (void)send_to_master_node(rt, p);
  else
    clv_notify(rt->on_notice, "kept reference %llu stays: %s", (unsigned long long)k->ids.ref_id,
               err.text);
  free_ref_if_unused(rt, k);
}

static void release_leaf(cleave_runtime *rt, api_kept_ref *k) {
  k->n_leaves--;
  release_if_unused(rt, k);
}

static void free_all_refs(cleave_runtime *rt) {
  size_t at = 0;
  for (api_kept_ref *k; (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;) {
    clv_tensor_unref(k->fetched_value);
    api_module_remove_kept_ref(k->module);
    free(k);
  }
  api_id_table_free(&rt->kept_refs);
}

static void report_open_refs(cleave_runtime *rt, cleave_leaks *l) {
  size_t at = 0;
  for (const api_kept_ref *k; (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;) {
    if (k->is_released) continue;
    l->kept++;
    api_add_leak(l, "kept reference %llu of %s '%s' at %s, context %s\n",
                 (unsigned long long)k->ids.ref_id, k->module ? "module" : "the",
                 k->module ? k->module->name : "program's leaf", rt->peers[k->owner_node].name,
                 k->context_name);
  }
}

/* ---- keeping a value ------------------------------------------------------------------------- */

static cleave_status make_kept_ref(cleave_runtime *rt, const api_value *v, api_kept_ref **ret,
                                   cleave_error *error) {
  api_kept_ref *k;
  uint64_t key;
  TRY(api_fill_random(rt, &key, sizeof key, &err));
  TRY(clv_alloc(1, sizeof *k, &k, &err));
  uint64_t ref_id = ++rt->next_id, fork_id = ++rt->next_id;
  k->ids = (clv_ref_ids){ref_id, fork_id, key};
  k->module = v->module;
  k->owner_node = v->module ? v->module->node : 0;
  k->value_id = v->id;
  k->dtype = v->dtype;
  k->shape = v->shape;
  snprintf(k->context_name, sizeof k->context_name, "%s", v->context->name);
  clv_err err;
  if (api_id_table_put(&rt->kept_refs, k->ids.ref_id, k, &err) != CLV_OK) {
    free(k);
    return api_convert_error(error, &err);
  }
  api_module_add_kept_ref(k->module);
  *ret = k;
  return CLEAVE_OK;
}

static const api_kept_ops kept_ops;

cleave_status cleave_keep(cleave_runtime *runtime, cleave_reference reference,
                          cleave_kept *ret_kept, cleave_error *error) {
  NOT_NULL(runtime, ret_kept);
  api_value *v;
  api_kept_ref *k = NULL;
  clv_packet *p;
  LOCKED(runtime);
  TRY_API(api_find_value(runtime, reference, &v, error));
  TRY_API(api_context_failure(v->context, error));
  if (v->kept_ref)
    return api_fail(error, CLV_PRECONDITION, "reference %llu stands for kept reference %llu",
                    (unsigned long long)v->id, (unsigned long long)v->kept_ref->ids.ref_id);
  runtime->kept_ops = &kept_ops;
  TRY_API(make_kept_ref(runtime, v, &k, error));
  clv_err err;
  bool leaf = !v->module;
  if (clv_packet_new_ref_keep(runtime->pool, &k->ids,
                              k->owner_node ? api_wire_name(&runtime->peers[k->owner_node]) : "",
                              leaf ? 0 : v->context->id, leaf ? 0 : v->id,
                              leaf ? v->local_tensor : NULL, &p, &err) != CLV_OK) {
    free_ref(runtime, k);
    return api_convert_error(error, &err);
  }
  v->is_kept = true;
  k->awaiting_context = v->context;
  k->awaiting_context->n_unconfirmed_kept_values++;
  ret_kept->id = k->ids.ref_id;
  return send_to_master_node(runtime, p);
}

static void await_owners(cleave_runtime *rt, api_context *c, uint64_t until_ns) {
  c->n_waiters++; /* keeps the record of the context during the wait */
  while (c->n_unconfirmed_kept_values && !c->has_failed && api_wait(rt, until_ns)) continue;
  c->n_waiters--;
  if (c->state != API_CONTEXT_OPEN) api_wake(rt);
}

/* Detaches the kept references from a context that does not wait for their owners any more. */
static void clear_awaiting_context(cleave_runtime *rt, const api_context *c) {
  size_t at = 0;
  for (api_kept_ref *k; (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;)
    if (k->awaiting_context == c) k->awaiting_context = NULL;
}

static void on_context_failed(cleave_runtime *rt, const api_context *c) {
  size_t at = 0;
  for (api_kept_ref *k;
       c->n_unconfirmed_kept_values && (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;) {
    if (k->awaiting_context != c || k->has_failed) continue;
    k->has_failed = true;
    k->failure = c->failure;
  }
}

static void stop_awaiting_owners(cleave_runtime *rt, api_context *c) {
  if (c->n_unconfirmed_kept_values) clear_awaiting_context(rt, c);
  c->n_unconfirmed_kept_values = 0;
}

/* ---- calls that outlive the end of their context --------------------------------------------- */

/* True if the kept value (cleave_keep) may still be needed, and its module may not have computed it
 * yet. */
static bool is_value_expected(const api_kept_ref *k) {
  bool is_needed = !k->is_released || k->n_leaves || k->n_waiters;
  return is_needed && k->module && !k->has_failed && !k->last_fetch_succeeded;
}

static bool mark_expected_values(cleave_runtime *rt, const api_context *c) {
  size_t at = 0;
  bool has_expected_value = false;
  for (const api_kept_ref *k; (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;) {
    api_value *v = is_value_expected(k) ? api_id_table_get(&rt->values, k->value_id) : NULL;
    if (!v || v->context != c) continue;
    v->is_retained = has_expected_value = true;
  }
  return has_expected_value;
}

/* Marks (is_retained) all values on which marked calls depend. One walk from the newest value to
 * the oldest suffices, because a call is newer than its inputs. */
static void mark_inputs(api_context *c) {
  for (api_value *v = c->newest_value; v; v = v->older_value)
    for (uint32_t i = 0; v->is_retained && i < v->n_args; i++) {
      api_value *a = v->args[i];
      a->is_retained = true;
      a->is_needed_by_peer |= a->module && a->module->node != v->module->node;
    }
}

static void send_needed_call_ids(cleave_runtime *rt, const api_context *c, uint32_t node,
                                 const uint64_t *ids, uint32_t n) {
  clv_packet *p;
  clv_err ignored_err; /* after a failure the node cancels these calls like all others */
  if (n && clv_packet_new_spare(rt->pool, c->id, ids, n, &p, &ignored_err) == CLV_OK)
    (void)api_send(rt, node, p, NULL);
}

static void send_calls_needed_at(cleave_runtime *rt, const api_context *c, uint32_t node) {
  uint64_t ids[CLV_WIRE_UPSTREAM];
  uint32_t n = 0;
  for (const api_value *v = c->newest_value; v; v = v->older_value) {
    if (!v->is_needed_by_peer || v->module->node != node) continue;
    ids[n++] = v->id;
    if (n < CLV_WIRE_UPSTREAM) continue;
    send_needed_call_ids(rt, c, node, ids, n);
    n = 0;
  }
  send_needed_call_ids(rt, c, node, ids, n);
}

static bool send_needed_calls(cleave_runtime *rt, api_context *c) {
  if (!mark_expected_values(rt, c)) return false;
  mark_inputs(c);
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (c->nodes_used & NODE_BIT(i)) send_calls_needed_at(rt, c, i);
  return true;
}

static void on_node_failed(cleave_runtime *rt, uint32_t node, const cleave_error *failure) {
  size_t at = 0;
  for (api_kept_ref *k; (k = api_id_table_next(&rt->kept_refs, &at)) != NULL;) {
    if (k->owner_node != node || k->has_failed) continue;
    k->has_failed = true;
    k->failure = *failure;
    end_owner_wait(rt, k);
  }
}

/* ---- using a kept value in a context --------------------------------------------------------- */

cleave_status cleave_kept_use(cleave_runtime *runtime, cleave_context context_handle,
                              cleave_kept handle, cleave_reference *ret_reference,
                              cleave_error *error) {
  NOT_NULL(runtime, ret_reference);
  api_context *c;
  api_value *v;
  api_kept_ref *k;
  LOCKED(runtime);
  TRY_API(find_ref(runtime, handle, &k, error));
  TRY_API(copy_ref_failure(k, error));
  TRY_API(api_find_context(runtime, context_handle, &c, error));
  TRY_API(api_new_value(runtime, c, &v, error));
  v->dtype = k->dtype;
  v->shape = k->shape;
  v->kept_ref = k;
  k->n_leaves++;
  ret_reference->id = v->id;
  return CLEAVE_OK;
}

/* Sends the failure of a kept value (cleave_keep) to a node whose call waits for it. */
static cleave_status deliver_failure(cleave_runtime *rt, const api_value *v, uint32_t node,
                                     cleave_error *error) {
  clv_packet *p;
  const cleave_error *why = &v->kept_ref->failure;
  TRY_API(api_packet_new(rt, CLV_VALUE, v->context->id, v->id, &p, error));
  p->frame.has_failure = true;
  clv_frame_set_failure(&p->frame, (clv_code)why->status, why->text, why->place);
  return api_send(rt, node, p, error);
}

static cleave_status deliver_kept(cleave_runtime *rt, api_value *v, uint32_t node,
                                  cleave_error *error) {
  clv_packet *p;
  api_kept_ref *k = v->kept_ref;
  if (k->has_failed) {
    v->nodes_with_value |= NODE_BIT(node);
    v->context->nodes_used |= NODE_BIT(node);
    return deliver_failure(rt, v, node, error);
  }
  TRY(clv_packet_new_ref_use(rt->pool, &k->ids, ++rt->next_id,
                             node ? api_wire_name(&rt->peers[node]) : "", v->context->id, v->id, &p,
                             &err));
  v->nodes_with_value |= NODE_BIT(node);
  v->context->nodes_used |= NODE_BIT(node);
  return send_to_master_node(rt, p);
}

/* Private record of a fetch. n_fetches_done_at_start: n_fetches_done of the reference when the
 * fetch began. */
typedef struct fetch_wait {
  api_kept_ref *kept_ref;
  uint64_t n_fetches_done_at_start;
} fetch_wait;

static void free_fetch_wait(cleave_runtime *rt, api_future *f) {
  (void)rt;
  free(f->private_record);
}

static const api_operation fetch_operation;

/* ---- fetching a kept value ------------------------------------------------------------------- */

static cleave_status request_fetch(cleave_runtime *rt, api_kept_ref *k, cleave_error *error) {
  clv_packet *p;
  if (k->is_fetching) return CLEAVE_OK;
  TRY(clv_packet_new_ref_fetch(rt->pool, &k->ids, &p, &err));
  k->is_fetching = true;
  return send_to_master_node(rt, p);
}

/* Begins a fetch. A second caller shares the fetch of the first, because the value never
 * changes. */
static cleave_status begin_kept_fetch(cleave_runtime *rt, api_kept_ref *k, api_future *f,
                                      cleave_error *error) {
  fetch_wait *w;
  TRY_API(copy_ref_failure(k, error));
  TRY_API(request_fetch(rt, k, error));
  TRY(clv_alloc(1, sizeof *w, &w, &err));
  k->n_waiters++;
  f->op = &fetch_operation;
  w->kept_ref = k;
  w->n_fetches_done_at_start = k->n_fetches_done;
  f->private_record = w;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", k->module ? k->module->name : "a leaf");
  return CLEAVE_OK;
}

static cleave_status begin_fetch_operation(cleave_runtime *rt, api_arguments *a, api_future *f,
                                           cleave_error *error) {
  api_kept_ref *k;
  TRY_API(find_ref(rt, a->kept_handle, &k, error));
  return begin_kept_fetch(rt, k, f, error);
}

static void end_fetch_wait(cleave_runtime *rt, api_future *f) {
  api_kept_ref *k = ((fetch_wait *)f->private_record)->kept_ref;
  if (!--k->n_waiters) k->fetched_value = clv_tensor_unref(k->fetched_value);
  release_if_unused(rt, k);
}

static void advance_fetch(cleave_runtime *rt, api_future *f) {
  const fetch_wait *w = f->private_record;
  const api_kept_ref *k = w->kept_ref;
  cleave_error why = {.status = CLEAVE_OK};
  bool has_new_fetch = k->n_fetches_done != w->n_fetches_done_at_start;
  if (!has_new_fetch && !k->has_failed) return;
  if (has_new_fetch && k->fetched_value)
    f->tensor = clv_tensor_ref(k->fetched_value);
  else
    why = has_new_fetch ? k->fetch_error : k->failure;
  end_fetch_wait(rt, f);
  api_future_finish(rt, f, &why);
}

static void fetch_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const api_kept_ref *k = ((const fetch_wait *)f->private_record)->kept_ref;
  char silence_text[200];
  api_fail(ret, CLV_DEADLINE, "kept reference %llu did not come from '%s' in time%s",
           (unsigned long long)k->ids.ref_id, rt->peers[k->owner_node].name,
           api_describe_silence(rt, silence_text, sizeof silence_text));
  api_set_error_node(ret, rt->peers[k->owner_node].name, k->module ? k->module->name : "");
}

static const api_operation fetch_operation = {.name = "the kept value",
                                              .begin = begin_fetch_operation,
                                              .advance = advance_fetch,
                                              .fill_deadline_error = fetch_deadline_error,
                                              .withdraw = end_fetch_wait,
                                              .free = free_fetch_wait,
                                              .copy_result = api_copy_tensor_result};

cleave_status cleave_kept_fetch(cleave_runtime *runtime, cleave_kept kept, uint64_t deadline_ms,
                                cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  api_arguments a = {.deadline_ms = deadline_ms, .kept_handle = kept};
  return api_run_blocking(runtime, &fetch_operation, &a, ret_tensor, error);
}

cleave_status cleave_kept_fetch_async(cleave_runtime *runtime, cleave_kept kept,
                                      uint64_t deadline_ms, cleave_future *ret_future,
                                      cleave_error *error) {
  NOT_NULL(runtime, ret_future);
  api_arguments a = {.deadline_ms = deadline_ms, .kept_handle = kept};
  return api_run_async(runtime, &fetch_operation, &a, ret_future, error);
}

/* ---- queries about kept values, and their release -------------------------------------------- */

cleave_status cleave_kept_owner(cleave_runtime *runtime, cleave_kept handle,
                                cleave_place *ret_place, cleave_error *error) {
  NOT_NULL(runtime, ret_place);
  api_kept_ref *k;
  LOCKED(runtime);
  TRY_API(find_ref(runtime, handle, &k, error));
  ret_place->node = runtime->peers[k->owner_node].name;
  ret_place->device = k->module ? k->module->device : "cpu";
  return CLEAVE_OK;
}

cleave_status cleave_kept_confirmed(cleave_runtime *runtime, cleave_kept handle,
                                    bool *ret_confirmed, cleave_error *error) {
  NOT_NULL(runtime, ret_confirmed);
  api_kept_ref *k;
  LOCKED(runtime);
  TRY_API(find_ref(runtime, handle, &k, error));
  TRY_API(copy_ref_failure(k, error));
  *ret_confirmed = k->is_confirmed;
  return CLEAVE_OK;
}

cleave_status cleave_kept_release(cleave_runtime *runtime, cleave_kept handle,
                                  cleave_error *error) {
  NOT_NULL(runtime);
  api_kept_ref *k;
  LOCKED(runtime);
  TRY_API(find_ref(runtime, handle, &k, error));
  k->is_released = true;
  release_if_unused(runtime, k);
  return CLEAVE_OK;
}

/* ---- answers and failures of nodes ----------------------------------------------------------- */

static void take_fetched_value(cleave_runtime *rt, api_kept_ref *k, const api_peer *owner,
                               const clv_packet *p) {
  const clv_tensor *t = p->frame.n_tensors ? p->tensor[0] : NULL;
  bool has_type_and_shape = t && t->dtype == k->dtype && clv_shape_equal(&t->shape, &k->shape);
  clv_tensor_unref(k->fetched_value);
  k->fetched_value = has_type_and_shape && k->n_waiters ? clv_tensor_ref(p->tensor[0]) : NULL;
  if (p->frame.has_failure) {
    api_failure_from_frame(owner, &p->frame, &k->fetch_error);
  } else if (!has_type_and_shape) {
    api_fail(&k->fetch_error, CLV_BAD_ANSWER, "'%s' answered with a tensor of another shape",
             owner->name);
    api_set_error_node(&k->fetch_error, owner->name, k->module ? k->module->name : "");
  }
  k->last_fetch_succeeded |= has_type_and_shape && !p->frame.has_failure;
  k->is_fetching = false;
  k->n_fetches_done++;
  rt->needs_wake = true;
}

/* Handles the owner's answer to a KEEP: the owner keeps the value, or says why it cannot. */
static void take_owner_answer(cleave_runtime *rt, api_kept_ref *k, const clv_frame *f) {
  k->is_confirmed = !f->has_failure;
  if (f->has_failure && !k->has_failed) {
    k->has_failed = true;
    api_failure_from_frame(&rt->peers[k->owner_node], f, &k->failure);
  }
  end_owner_wait(rt, k);
}

static void on_answer(cleave_runtime *rt, const clv_packet *p) {
  api_kept_ref *k = api_id_table_get(&rt->kept_refs, p->frame.reference.ref_id);
  if (!k) return;
  if (p->frame.kind == CLV_REF_DELETE) {
    k->owner_lacks_value = true;
    free_ref_if_unused(rt, k);
  } else if (p->frame.reference.fork_id == k->ids.fork_id && p->frame.kind == CLV_REF_ACK) {
    take_owner_answer(rt, k, &p->frame);
  } else if (p->frame.reference.fork_id == k->ids.fork_id && p->frame.kind == CLV_REF_VALUE) {
    take_fetched_value(rt, k, &rt->peers[k->owner_node], p);
  }
}

static const api_kept_ops kept_ops = {
    .release_leaf = release_leaf,
    .deliver_value = deliver_kept,
    .begin_fetch = begin_kept_fetch,
    .await_owners = await_owners,
    .stop_awaiting_owners = stop_awaiting_owners,
    .send_needed_calls = send_needed_calls,
    .on_context_failed = on_context_failed,
    .on_node_failed = on_node_failed,
    .on_owner_answer = on_answer,
    .report_leaks = report_open_refs,
    .free_refs = free_all_refs,
};
