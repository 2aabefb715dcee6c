/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads modules at their nodes: at their first use, and again when the settings at the node are
 * outdated. Before a module is loaded again, its state is read and saved in this process; after the
 * load the state is sent back.
 */
#include <stdio.h>

#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"
#include "master/api/core/ties_int.h"

/* ---- loading a module again ------------------------------------------------------------------ */

cleave_status api_module_unload_at_node(cleave_module *m, uint32_t generation, uint64_t until_ns,
                                        cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  TRY_API(api_packet_new(rt, CLV_UNLOAD, 0, m->unload_message_id = ++rt->next_id, &p, error));
  api_set_frame_module(p, m);
  p->frame.module_generation = generation;
  TRY_API(api_send(rt, m->node, p, error));
  while (m->unload_message_id) {
    TRY_API(api_check_node_present(rt, m->node, error));
    if (!api_wait(rt, until_ns))
      return api_fail_late(rt, error, "'%s' has not let go of module '%s' in time",
                           rt->peers[m->node].name, m->name);
  }
  return CLEAVE_OK;
}

static cleave_status save_state(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  TRY_API(api_read_all_state_items(m, CLEAVE_STATE_WEIGHTS, until_ns, &m->saved_state[0],
                                   &m->n_saved_state_items[0], error));
  if (m->resets_moments) return CLEAVE_OK;
  return api_read_all_state_items(m, CLEAVE_STATE_OPTIMIZER, until_ns, &m->saved_state[1],
                                  &m->n_saved_state_items[1], error);
}

/* Unloads the modules that are tied to the owner; call before the owner is unloaded. The next use
 * of such a module loads it again, after the owner. */
static cleave_status unload_tied_modules(const cleave_module *owner, uint64_t until_ns,
                                         cleave_error *error) {
  cleave_runtime *rt = owner->runtime;
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    cleave_module *m = rt->modules[i];
    if (!m || m == owner || !api_is_tied_to(m, owner)) continue;
    while (m->state == MODULE_PLACING)
      if (!api_wait(rt, until_ns))
        return api_fail_late(rt, error, "module '%s' was not loaded in time", m->name);
    if (m->state == MODULE_PLACED) TRY_API(api_module_save_and_unload(m, until_ns, error));
  }
  return CLEAVE_OK;
}

/* Reads the state of a module and unloads the module. If reading fails, the module stays as it was.
 * If unloading fails, the next use of the module unloads it again. */
cleave_status api_module_save_and_unload(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  (void)api_module_on_event(&m->state, MODULE_TRANSFER_BEGINS);
  rt->peers[m->node].n_modules_loading++;
  cleave_status status = unload_tied_modules(m, until_ns, error);
  if (status == CLEAVE_OK) status = save_state(m, until_ns, error);
  bool is_saved = status == CLEAVE_OK;
  if (is_saved) status = api_module_unload_at_node(m, m->generation, until_ns, error);
  rt->peers[m->node].n_modules_loading--;
  (void)api_module_on_event(&m->state, is_saved ? MODULE_NOT_AT_NODE : MODULE_AT_NODE);
  if (is_saved) {
    m->unload_message_id = 0;
    m->needs_reload = m->resets_moments = false;
    api_module_record_load_attempt(m, status);
  } else {
    for (int k = 0; k < 2; k++) api_module_free_saved_state(m, k);
  }
  api_wake(rt);
  return status;
}

cleave_status api_module_restore_state(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  static const clv_state_kind state_kinds[] = {CLV_STATE_WEIGHTS, CLV_STATE_OPTIMIZER};
  for (int k = 0; k < 2; k++)
    if (m->n_saved_state_items[k])
      TRY_API(api_put_state_items(m, state_kinds[k], 0, m->saved_state[k],
                                  m->n_saved_state_items[k], until_ns, error));
  for (int k = 0; k < 2; k++) api_module_free_saved_state(m, k);
  return CLEAVE_OK;
}

/* ---- loading a module at its node ------------------------------------------------------------ */

static cleave_status send_given_weights(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  for (size_t i = m->n_pending_weights;
       /* weights are freed only after the node has all, so that a failed load can be repeated */
       i-- > 0;) {
    api_state_item item = {.tensor = m->pending_weights[i].tensor};
    snprintf(item.name, sizeof item.name, "%s", m->pending_weights[i].name);
    TRY_API(api_put_state_items(m, CLV_STATE_WEIGHTS, 0, &item, 1, until_ns, error));
  }
  api_module_drop_weights(m);
  return CLEAVE_OK;
}

static cleave_status try_load_module(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t now_ns = api_now(rt),
           remaining_ms = until_ns > now_ns ? (until_ns - now_ns) / 1000000u : 0;
  m->generation = rt->next_generations[m->index]++;
  api_unlock(rt);
  CLV_AUTO(api_interruptible_end) api_interruptible waits;
  api_interruptible_begin(rt, &waits);
  cleave_status status = CLEAVE_OK;
  if (rt->gate.note_module) status = rt->gate.note_module(rt->gate.owner, m, error);
  if (status == CLEAVE_OK) status = api_load_module(m, CLV_MAX(remaining_ms, UINT64_C(1)), error);
  api_lock(rt);
  return status;
}

/* Unloads the generations of the module that earlier attempts to load it may have left at its
 * node. */
static cleave_status unload_earlier_attempts(cleave_module *m, uint64_t until_ns,
                                             cleave_error *error) {
  for (uint32_t g = m->first_attempt_generation; g != m->generation; g++)
    TRY_API(api_module_unload_at_node(m, g, until_ns, error));
  m->first_attempt_generation = m->generation;
  return CLEAVE_OK;
}

/* Handles CLEAVE_EXISTS for an index that should be free at the node. The node has missed an
 * earlier UNLOAD because its link broke. Sends UNLOAD again, which fails with the loss of the
 * link. */
static cleave_status detect_broken_link(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  cleave_error exists = error ? *error : (cleave_error){0};
  TRY_API(api_module_unload_at_node(m, m->generation, until_ns, error));
  if (error) *error = exists;
  return CLEAVE_EXISTS;
}

cleave_status api_module_load_at_node(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  cleave_status status = try_load_module(m, until_ns, error);
  if (status != CLEAVE_EXISTS) return status;
  if (!m->may_be_at_node) return detect_broken_link(m, until_ns, error);
  TRY_API(unload_earlier_attempts(m, until_ns, error));
  return try_load_module(m, until_ns, error);
}

void api_module_record_load_attempt(cleave_module *m, cleave_status status) {
  if (status != CLEAVE_OK && !m->may_be_at_node) m->first_attempt_generation = m->generation;
  m->may_be_at_node = status != CLEAVE_OK;
}

cleave_status api_module_place(cleave_module *m, bool needs_input_grads, uint64_t deadline_ms,
                               cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t until_ns = api_deadline_ns(rt, deadline_ms);
  while (m->state == MODULE_PLACING)
    if (!api_wait(rt, until_ns))
      return api_fail_late(rt, error, "module '%s' was not loaded in time", m->name);
  TRY_API(api_check_module_present(m, error));
  for (int i = 0; i < m->params->n_ties; i++)
    if (m->tie_owners[i]) TRY_API(api_module_place(m->tie_owners[i], false, deadline_ms, error));
  for (uint32_t i = 0; !m->is_released && m->n_outputs > 1 && i < m->n_outputs; i++)
    TRY_API(api_module_place(m->output_modules[i], true, deadline_ms, error));
  if (m->state == MODULE_PLACED && !m->needs_reload) return CLEAVE_OK;
  if (m->state == MODULE_PLACED) {
    TRY_API(api_module_save_and_unload(m, until_ns, error));
    needs_input_grads = m->needs_input_grads;
  }
  (void)api_module_on_event(&m->state, MODULE_TRANSFER_BEGINS);
  m->needs_input_grads = needs_input_grads;
  m->n_rejoins_at_load = rt->peers[m->node].n_rejoins;
  rt->peers[m->node].n_modules_loading++;
  cleave_status status = api_module_load_at_node(m, until_ns, error);
  if (status == CLEAVE_OK) status = send_given_weights(m, until_ns, error);
  if (status == CLEAVE_OK) status = api_module_restore_state(m, until_ns, error);
  (void)api_module_on_event(&m->state, status == CLEAVE_OK ? MODULE_AT_NODE : MODULE_NOT_AT_NODE);
  api_module_record_load_attempt(m, status);
  rt->peers[m->node].n_modules_loading--;
  rt->peers[m->node].has_module |= status == CLEAVE_OK;
  api_wake(rt);
  return status;
}

cleave_status cleave_module_place(cleave_runtime *runtime, cleave_module *module, bool input_grads,
                                  uint64_t deadline_ms, cleave_error *error) {
  NOT_NULL(runtime, module);
  LOCKED(runtime);
  return api_module_place(module, input_grads, deadline_ms, error);
}
