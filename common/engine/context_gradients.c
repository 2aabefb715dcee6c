/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of parameters in a context, by name: read, or written by a program that has changed
 * them. The next vote and the next step use the written gradients.
 */
#include <stdio.h>
#include <string.h>

#include "common/engine/context_int.h"

bool clv_contexts_gradient_item(clv_contexts *e, uint64_t id, uint32_t module, uint32_t index,
                                clv_state_item *ret) {
  const clv_context *ctx = clv_context_find(e, id);
  const clv_module_gradient *g = ctx ? ctx->gradients : NULL;
  while (g && g->module != module) g = g->next;
  /* a planned step has used the gradients, or they are not complete */
  if (g && !(g->input_part_done && g->weight_part_done)) return false;
  for (int i = 0; g && i < g->mod->params->n; i++) {
    const clv_param *p = &g->mod->params->list[i];
    if (!p->trainable || p->frozen || index-- != 0) continue;
    *ret = (clv_state_item){.dtype = p->dtype,
                            .shape = p->shape,
                            .bytes = p->bytes,
                            .data = (char *)g->block->data + p->offset,
                            .backend = g->mod->o.backend};
    snprintf(ret->name, sizeof ret->name, "%s", p->name);
    return true;
  }
  return false;
}

clv_code clv_contexts_find_gradient_item(clv_contexts *e, const clv_frame *f, clv_state_item *ret,
                                         clv_err *err) {
  const clv_context *ctx = clv_context_find(e, f->context);
  if (ctx && ctx->pass_state != PASS_NONE)
    return clv_fail(err, CLV_PRECONDITION,
                    "cannot write a gradient of module %u while backward pass %u is in progress",
                    f->module, ctx->phase);
  for (uint32_t i = 0; clv_contexts_gradient_item(e, f->context, f->module, i, ret); i++)
    if (strcmp(ret->name, f->state.item_or_file_name) == 0) return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND, "module %u has no gradient '%s' in context %llu", f->module,
                  f->state.item_or_file_name, (unsigned long long)f->context);
}
