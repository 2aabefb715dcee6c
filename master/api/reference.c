/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "master/api/api_int.h"

/* ---- fetching -------------------------------------------------------------------------------- */

static cleave_status late(cleave_runtime *rt, const api_value *v, cleave_error *error) {
  const cleave_module *m = v->module;
  char heard[200];
  api_fail(error, CLV_DEADLINE, "the value of module '%s' did not come from '%s' in time%s",
           m->name, rt->peers[m->node].name, api_silence(rt, heard, sizeof heard));
  api_place_error(error, rt->peers[m->node].name, m->name);
  return CLEAVE_DEADLINE;
}

static cleave_status failed(const api_value *v, cleave_error *error) {
  if (error) *error = v->failure;
  return v->failure.status;
}

/* With the lock; *ret gets a reference. The context stays as long as somebody waits in it. */
static cleave_status fetch(cleave_runtime *rt, api_value *v, uint64_t deadline_ms, clv_tensor **ret,
                           cleave_error *error) {
  api_context *c = v->context;
  uint64_t until = api_until(rt, deadline_ms);
  if (v->kept) return api_kept_fetch(rt, v->kept, deadline_ms, ret, error);
  cleave_status status = api_bring(rt, v, 0, false, error);
  c->users++;
  v->fetching++;
  bool in_time = true;
  while (status == CLEAVE_OK && in_time && !v->here && !v->failed && !c->failed)
    in_time = api_sleep(rt, until);
  if (status == CLEAVE_OK) {
    if (v->here)
      *ret = clv_tensor_ref(v->here);
    else if (v->failed)
      status = failed(v, error);
    else
      status = c->failed ? api_context_failure(c, error) : late(rt, v, error);
  }
  v->fetching--;
  c->users--;
  if (c->closing) api_wake(rt);
  return status;
}

cleave_status cleave_to_here(cleave_runtime *runtime, cleave_reference reference,
                             uint64_t deadline_ms, cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    PASS(api_find_value(runtime, reference, &v, error));
    PASS(fetch(runtime, v, deadline_ms, &t, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_local_value(cleave_runtime *runtime, cleave_reference reference,
                                 uint64_t deadline_ms, cleave_tensor *ret_tensor,
                                 cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  cleave_place place;
  PASS(cleave_owner(runtime, reference, &place, error));
  if (strcmp(place.node, "master") != 0) {
    api_fail(error, CLV_PRECONDITION,
             "reference %llu belongs to '%s', not to this process: use cleave_to_here",
             (unsigned long long)reference.id, place.node);
    api_place_error(error, place.node, "");
    return CLEAVE_PRECONDITION;
  }
  return cleave_to_here(runtime, reference, deadline_ms, ret_tensor, error);
}

/* ---- futures --------------------------------------------------------------------------------- */

static cleave_status find_future(cleave_runtime *rt, cleave_future handle, api_value **ret,
                                 cleave_error *error) {
  *ret = api_id_table_get(&rt->futures, handle.id);
  if (*ret) return CLEAVE_OK;
  return api_fail(error, CLV_NOT_FOUND,
                  "future %llu is gone: it was waited for, released, or its context was closed",
                  (unsigned long long)handle.id);
}

cleave_status cleave_wait(cleave_runtime *runtime, cleave_future future, uint64_t deadline_ms,
                          cleave_tensor *ret_tensor, cleave_error *error) {
  GIVEN(runtime, ret_tensor);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    PASS(find_future(runtime, future, &v, error));
    PASS(fetch(runtime, v, deadline_ms, &t, error));
    v->future = 0;
    api_id_table_remove(&runtime->futures, future.id);
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_future_release(cleave_runtime *runtime, cleave_future future,
                                    cleave_error *error) {
  GIVEN(runtime);
  api_value *v;
  LOCKED(runtime);
  PASS(find_future(runtime, future, &v, error));
  v->future = 0;
  api_id_table_remove(&runtime->futures, future.id);
  return CLEAVE_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

cleave_status cleave_send_to(cleave_runtime *runtime, cleave_reference reference, const char *node,
                             cleave_error *error) {
  GIVEN(runtime, node);
  api_value *v;
  LOCKED(runtime);
  PASS(api_find_value(runtime, reference, &v, error));
  PASS(api_context_failure(v->context, error));
  int at = api_find_node(runtime, node);
  if (at < 0)
    return api_fail(error, CLV_NOT_FOUND, "'%s' is neither master nor a worker of %s", node,
                    runtime->config->file);
  return api_bring(runtime, v, (uint32_t)at, true, error);
}

cleave_status cleave_owner(cleave_runtime *runtime, cleave_reference reference,
                           cleave_place *ret_place, cleave_error *error) {
  GIVEN(runtime, ret_place);
  api_value *v;
  LOCKED(runtime);
  PASS(api_find_value(runtime, reference, &v, error));
  const cleave_module *m = v->kept ? v->kept->module : v->module;
  ret_place->node = runtime->peers[m ? m->node : 0].name;
  ret_place->device = m ? m->device : "cpu";
  return CLEAVE_OK;
}

/* What no backward will ask for is freed at once, everywhere, behind the calls that still use
 * it. */
static cleave_status drop(cleave_runtime *rt, api_value *v, cleave_error *error) {
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(v->at & NODE_BIT(i))) continue;
    TRY(clv_packet_drop(rt->pool, v->context->id, v->context->calls[i], &v->id, 1, &p, &err));
    PASS(api_send(rt, i, p, error));
  }
  v->here = clv_tensor_unref(v->here);
  return CLEAVE_OK;
}

cleave_status cleave_reference_release(cleave_runtime *runtime, cleave_reference reference,
                                       cleave_error *error) {
  GIVEN(runtime);
  api_value *v;
  LOCKED(runtime);
  PASS(api_find_value(runtime, reference, &v, error));
  v->released = true;
  if (v->context->keeping)
    return CLEAVE_OK; /* it is freed with its context: the owner may not have it yet */
  return v->needs_grad ? CLEAVE_OK : drop(runtime, v, error);
}
