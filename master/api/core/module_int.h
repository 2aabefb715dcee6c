/* SPDX-License-Identifier: Apache-2.0
 *
 * How modules begin (module.c, module_load.c) and end (module_unload.c). All of it with the lock.
 */
#ifndef CLEAVE_API_MODULE_INT_H
#define CLEAVE_API_MODULE_INT_H

#include "master/api/core/core_int.h"

/* An index of the runtime, and the generation there, for a module that has neither. BLOCKS while
 * all indexes are taken and some are about to be free. */
cleave_status api_module_assign_index(cleave_module *m, cleave_error *error) CLEAVE_RESULT;
/* Of one that has never entered, or has left. */
void api_module_free(cleave_module *m);

/* The context has sent something to the module: it stays until the context is forgotten, */
void api_context_use_module(api_context *c, cleave_module *m);
void api_context_release_modules(cleave_runtime *rt, api_context *c); /* which is now */

/* A kept value is of the module: its record stays, not the module itself. */
void api_module_add_kept(cleave_module *m);
void api_module_remove_kept(cleave_module *m);

/* It is released, or its optimiser is: it leaves, if nothing needs it. */
void api_module_unload_if_unused(cleave_module *m);
void api_optimizer_unload_if_unused(cleave_optimizer *o);

void api_module_drop_weights(cleave_module *m); /* those that were to go with it */
static inline bool api_requires_grad(const clv_param *p) { return p->trainable && !p->frozen; }

/* What its node was sent of it does not hold any more, so its next use loads it again: with its
 * state, or, with resets_moments, with moments of 0. */
void api_module_mark_outdated(cleave_module *m, bool resets_moments);
/* Its optimiser was released, and it is in none. */
void api_module_leave_optimizer(cleave_module *m);
/* What api_module_place does for one that is outdated. */
cleave_status api_module_save_and_unload(cleave_module *m, uint64_t until_ns,
                                         cleave_error *error) CLEAVE_RESULT;
/* BLOCKS. Its node has let go of that generation of it, or says that it is not there. */
cleave_status api_module_unload_at_node(cleave_module *m, uint32_t generation, uint64_t until_ns,
                                        cleave_error *error) CLEAVE_RESULT;
/* BLOCKS, with the lock let go. Its node has it, in another generation than any before, whatever an
 * earlier attempt has left there. Its state follows. */
cleave_status api_module_load_at_node(cleave_module *m, uint64_t until_ns,
                                      cleave_error *error) CLEAVE_RESULT;
/* How an attempt to take it there ended. */
void api_module_record_attempt(cleave_module *m, cleave_status status);
/* What it had, and is to have again; forgets it. */
cleave_status api_module_restore_state(cleave_module *m, uint64_t until_ns,
                                       cleave_error *error) CLEAVE_RESULT;
void api_module_drop_held_state(cleave_module *m, int kind);
/* BLOCKS while contexts that used one of the modules are on their way out. CLEAVE_PRECONDITION: one
 * is open. what: cannot be done then. */
cleave_status api_modules_await_idle(cleave_module *const *modules, size_t n, const char *what,
                                     uint64_t until_ns, cleave_error *error) CLEAVE_RESULT;

/* param_groups.c: the same for the modules of groups, and room for parameters that learn and are in
 * none. */
cleave_status api_groups_await_idle(const cleave_optimizer *o, const cleave_group *groups,
                                    size_t n_groups, cleave_error *error) CLEAVE_RESULT;
cleave_status api_groups_add_unstepped(cleave_module *m, cleave_error *error) CLEAVE_RESULT;

/* The node has answered to UNLOAD. ERROR: true when it is such an answer. */
bool api_on_unloaded(cleave_runtime *rt, api_peer *from, clv_packet *p);
bool api_on_unload_error(cleave_runtime *rt, const api_peer *from, const clv_frame *f);
/* The node is lost, and with it what was to leave. */
void api_modules_drop_at_node(cleave_runtime *rt, uint32_t node);

/* The frame means this module, and none that had its index before or will have it. */
static inline void api_set_frame_module(clv_packet *p, const cleave_module *m) {
  p->frame.module = m->index;
  p->frame.generation = m->generation;
}

#endif
