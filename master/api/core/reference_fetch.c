/* SPDX-License-Identifier: Apache-2.0
 *
 * Values at other nodes: fetches them to the program, and finds the node and device of each.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- fetching values ------------------------------------------------------------------------- */

cleave_status api_fetch_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error) {
  api_value *v;
  TRY_API(api_find_value(rt, a->reference, &v, error));
  if (v->kept_ref) return rt->kept_ops->begin_fetch(rt, v->kept_ref, f, error);
  TRY_API(api_deliver_value(rt, v, 0, false, error));
  f->value = v;
  f->context = v->context;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", v->module ? v->module->name : "a leaf");
  return CLEAVE_OK;
}

void api_fetch_advance(cleave_runtime *rt, api_future *f) {
  const api_value *v = f->value;
  if (v->local_tensor) f->tensor = clv_tensor_ref(v->local_tensor);
  if (v->local_tensor || v->has_failed)
    api_future_finish(rt, f, v->local_tensor ? NULL : &v->failure);
  else if (v->context->has_failed)
    api_future_finish(rt, f, &v->context->failure);
}

void api_fetch_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->value->module;
  char silence_text[200];
  api_fail(ret, CLV_DEADLINE, "the value of module '%s' did not come from '%s' in time%s", m->name,
           rt->peers[m->node].name, api_describe_silence(rt, silence_text, sizeof silence_text));
  api_set_error_node(ret, rt->peers[m->node].name, m->name);
}

/* ---- nodes and devices of values ------------------------------------------------------------- */

cleave_status cleave_send_to(cleave_runtime *runtime, cleave_reference reference, const char *node,
                             cleave_error *error) {
  NOT_NULL(runtime, node);
  api_value *v;
  LOCKED(runtime);
  TRY_API(api_find_value(runtime, reference, &v, error));
  TRY_API(api_context_failure(v->context, error));
  int at = api_find_node(runtime, node);
  if (at < 0)
    return api_fail(error, CLV_NOT_FOUND, "'%s' is neither master nor a worker of %s", node,
                    runtime->config->file);
  TRY_API(api_check_node_present(runtime, (uint32_t)at, error));
  return api_deliver_value(runtime, v, (uint32_t)at, true, error);
}

cleave_status cleave_owner(cleave_runtime *runtime, cleave_reference reference,
                           cleave_place *ret_place, cleave_error *error) {
  NOT_NULL(runtime, ret_place);
  api_value *v;
  LOCKED(runtime);
  TRY_API(api_find_value(runtime, reference, &v, error));
  const cleave_module *m = v->kept_ref ? v->kept_ref->module : v->module;
  ret_place->node = runtime->peers[m ? m->node : 0].name;
  ret_place->device = m ? m->device : "cpu";
  return CLEAVE_OK;
}

cleave_status cleave_reference_release(cleave_runtime *runtime, cleave_reference reference,
                                       cleave_error *error) {
  NOT_NULL(runtime);
  api_value *v;
  LOCKED(runtime);
  TRY_API(api_find_value(runtime, reference, &v, error));
  v->is_released = true;
  if (v->context->n_unconfirmed_kept_values)
    /* the owner of a kept value (cleave_keep) has not answered, so a node may still need this
     * value; the end of the context frees it */
    return CLEAVE_OK;
  if (v->needs_grad) return CLEAVE_OK;
  v->next_in_list = NULL;
  return api_drop_values_at_nodes(runtime, v, error);
}
