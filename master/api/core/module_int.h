/* SPDX-License-Identifier: Apache-2.0
 *
 * How modules are loaded (module.c, module_load.c) and unloaded (module_unload.c). All functions
 * are called with the lock.
 */
#ifndef CLEAVE_API_MODULE_INT_H
#define CLEAVE_API_MODULE_INT_H

#include "master/api/core/core_int.h"

/* Gives a module an index of the runtime and a generation of that index. BLOCKS while all indexes
 * are taken and some are about to be freed. */
cleave_status api_module_assign_index(cleave_module *m, cleave_error *error) CLEAVE_RESULT;
/* Frees a module that has no index. */
void api_module_free(cleave_module *m);

/* Records that the context has sent something to the module, which then stays until
 * api_context_release_modules. The end of the context calls that. */
void api_context_use_module(api_context *c, cleave_module *m);
void api_context_release_modules(cleave_runtime *rt, api_context *c);

/* Counts a kept value of the module, or an operation in progress. The record stays for it, but the
 * node may unload the module. */
void api_module_add_kept(cleave_module *m);
void api_module_remove_kept(cleave_module *m);

/* Unloads a module, or the modules of an optimiser, after a release, if nothing needs them. */
void api_module_unload_if_unused(cleave_module *m);
void api_optimizer_unload_if_unused(cleave_optimizer *o);

void api_module_drop_weights(cleave_module *m); /* weights that its load would send */
static inline bool api_requires_grad(const clv_param *p) { return p->trainable && !p->frozen; }

/* Makes the next use of the module load it again, because its node has outdated settings. Its state
 * is kept, except with resets_moments: then moments are 0. */
void api_module_mark_outdated(cleave_module *m, bool resets_moments);
/* Takes the module out of its optimiser, which was released. */
void api_module_leave_optimizer(cleave_module *m);
/* Reads the state of an outdated module and unloads it. api_module_place calls this. */
cleave_status api_module_save_and_unload(cleave_module *m, uint64_t until_ns,
                                         cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until its node has unloaded that generation, or has answered that it does not have it. */
cleave_status api_module_unload_at_node(cleave_module *m, uint32_t generation, uint64_t until_ns,
                                        cleave_error *error) CLEAVE_RESULT;
/* BLOCKS, with the lock released meanwhile. Loads the module at its node in a new generation, and
 * unloads what an earlier attempt has left there. The caller sends its state afterwards. */
cleave_status api_module_load_at_node(cleave_module *m, uint64_t until_ns,
                                      cleave_error *error) CLEAVE_RESULT;
/* Records how an attempt to load the module ended. */
void api_module_record_attempt(cleave_module *m, cleave_status status);
/* Sends the saved state to the node and frees it. */
cleave_status api_module_restore_state(cleave_module *m, uint64_t until_ns,
                                       cleave_error *error) CLEAVE_RESULT;
void api_module_free_saved_state(cleave_module *m, int kind);
/* BLOCKS while contexts that used one of the modules are ending. CLEAVE_PRECONDITION: such a
 * context is open. what: the operation that cannot be done then, for the message. */
cleave_status api_modules_await_idle(cleave_module *const *modules, size_t n, const char *what,
                                     uint64_t until_ns, cleave_error *error) CLEAVE_RESULT;

/* param_groups.c: as api_modules_await_idle, for the modules of groups.
 * api_module_add_unstepped_group makes room in a module for parameters that learn and are in no
 * group. */
cleave_status api_groups_await_idle(const cleave_optimizer *o, const cleave_group *groups,
                                    size_t n_groups, cleave_error *error) CLEAVE_RESULT;
cleave_status api_module_add_unstepped_group(cleave_module *m, cleave_error *error) CLEAVE_RESULT;

/* Handle a node's answer to UNLOAD: UNLOADED or ERROR. api_on_unload_error returns whether the
 * ERROR answers an UNLOAD. */
bool api_on_unloaded(cleave_runtime *rt, api_peer *from, clv_packet *p);
bool api_on_unload_error(cleave_runtime *rt, const api_peer *from, const clv_frame *f);
/* Frees the modules that were being unloaded at a node that is lost. */
void api_modules_drop_at_node(cleave_runtime *rt, uint32_t node);

/* Addresses a frame to the module, by index and generation. */
static inline void api_set_frame_module(clv_packet *p, const cleave_module *m) {
  p->frame.module = m->index;
  p->frame.module_generation = m->generation;
}

#endif
