/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that load modules (module.c, module_load.c) and unload them (module_unload.c). All
 * functions are called with the runtime's lock held.
 */
#ifndef CLEAVE_API_MODULE_INT_H
#define CLEAVE_API_MODULE_INT_H

#include "master/api/core/core_int.h"

/* Gives a module a free index of the runtime and its number in the order of loading (load_number).
 * BLOCKS while all indexes are in use and some of them are about to become free. */
cleave_status api_module_assign_index(cleave_module *m, cleave_error *error) CLEAVE_RESULT;
/* Frees a module that has no index. */
void api_module_free(cleave_module *m);

/* Records that the context has sent something to the module. The module stays until
 * api_context_release_modules, which the end of the context calls. */
void api_context_use_module(api_context *c, cleave_module *m);
void api_context_release_modules(cleave_runtime *rt, api_context *c);

/* Change n_kept_refs, the number of kept values (cleave_keep) of the module and of operations in
 * progress. While it is not 0, the module's record stays, but its node may unload the module. NULL
 * is allowed. */
void api_module_add_kept_ref(cleave_module *m);
void api_module_remove_kept_ref(cleave_module *m);

/* Unload a module, or the modules of an optimiser, if they were released and nothing needs them. */
void api_module_unload_if_unused(cleave_module *m);
void api_optimizer_unload_if_unused(cleave_optimizer *o);

void api_module_drop_weights(cleave_module *m); /* frees pending_weights */
/* True if backward computes a gradient of the parameter, as torch's requires_grad. */
static inline bool api_requires_grad(const clv_param *p) { return p->trainable && !p->frozen; }

/* Makes the next use of the module load it again, because its node has outdated settings. The
 * module's state is preserved; with resets_moments, optimiser moments become 0. */
void api_module_mark_for_reload(cleave_module *m, bool resets_moments);
/* Removes the module from its optimiser, which was released. */
void api_module_leave_optimizer(cleave_module *m);
/* Reads the state of a module whose settings at the node are outdated (needs_reload), and unloads
 * the module. api_module_place calls this. */
cleave_status api_module_save_and_unload(cleave_module *m, uint64_t until_ns,
                                         cleave_error *error) CLEAVE_RESULT;
/* BLOCKS until the module's node has unloaded `generation` of the module, or has answered that it
 * does not have this generation. */
cleave_status api_module_unload_at_node(cleave_module *m, uint32_t generation, uint64_t until_ns,
                                        cleave_error *error) CLEAVE_RESULT;
/* BLOCKS; releases the lock meanwhile. Loads the module at its node in a new generation, and first
 * unloads generations that an earlier attempt may have left there. The caller sends the module's
 * state afterwards. */
cleave_status api_module_load_at_node(cleave_module *m, uint64_t until_ns,
                                      cleave_error *error) CLEAVE_RESULT;
/* Records how an attempt to load the module ended. */
void api_module_record_load_attempt(cleave_module *m, cleave_status status);
/* Sends the saved state to the node and frees it. */
cleave_status api_module_restore_state(cleave_module *m, uint64_t until_ns,
                                       cleave_error *error) CLEAVE_RESULT;
void api_module_free_saved_state(cleave_module *m, int kind);
/* BLOCKS while contexts that used one of the modules are ending. Fails with CLEAVE_PRECONDITION if
 * such a context is still open. what: operation that an open context prevents, for the message. */
cleave_status api_modules_await_idle(cleave_module *const *modules, size_t n, const char *what,
                                     uint64_t until_ns, cleave_error *error) CLEAVE_RESULT;

/* Functions of param_groups.c. api_groups_await_idle calls api_modules_await_idle for the modules
 * of `groups` that may join the optimiser. api_module_add_unstepped_group adds the unstepped group,
 * whose parameters no step changes, to a module in which some trainable parameters are in no
 * group. */
cleave_status api_groups_await_idle(const cleave_optimizer *o, const cleave_group *groups,
                                    size_t n_groups, cleave_error *error) CLEAVE_RESULT;
cleave_status api_module_add_unstepped_group(cleave_module *m, cleave_error *error) CLEAVE_RESULT;

/* Handle a node's answer to UNLOAD: UNLOADED, or ERROR. api_on_unload_error returns true if the
 * ERROR answers an UNLOAD. */
bool api_on_unloaded(cleave_runtime *rt, api_peer *from, clv_packet *p);
bool api_on_unload_error(cleave_runtime *rt, const api_peer *from, const clv_frame *f);
/* Frees the modules that a lost node was unloading. */
void api_modules_drop_at_node(cleave_runtime *rt, uint32_t node);

/* Addresses a frame to the module, by index and generation. */
static inline void api_set_frame_module(clv_packet *p, const cleave_module *m) {
  p->frame.module = m->index;
  p->frame.module_generation = m->generation;
}

#endif
