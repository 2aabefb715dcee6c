/* SPDX-License-Identifier: Apache-2.0
 *
 * A module's state to and from a file that its node keeps. A file is read whole and held against
 * the module before anything of it is written there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/node_int.h"

/* What is read beyond the size of the module's own file, so that one of another module is told by
 * its names. */
enum { SLACK_BYTES = 64 << 10 };

typedef struct whole_state {
  clv_state_item *items;    /* [n] */
  clv_weights_tensor *list; /* [n], views of them, or of */
  clv_tensor **copies;      /* [n] those that are a device's, to be written; NULL elsewhere */
  uint32_t n;
} whole_state;

static void whole_state_done(whole_state *s) {
  for (uint32_t i = 0; s->copies && i < s->n; i++) clv_tensor_unref(s->copies[i]);
  free(s->copies);
  free(s->items);
  free(s->list);
}

/* A file has what is the module's own: not what is lent to it, or withheld. */
static clv_code state_of(clv_module *m, clv_state_what what, whole_state *ret, clv_err *err) {
  uint32_t all = clv_module_state_count(m, what);
  CLV_TRY(clv_alloc(all, sizeof *ret->items, &ret->items, err));
  CLV_TRY(clv_alloc(all, sizeof *ret->list, &ret->list, err));
  for (uint32_t i = 0; i < all; i++) {
    clv_state_item *item = &ret->items[ret->n];
    (void)clv_module_state_item(m, what, i, item);
    if (item->lent || item->withheld) continue;
    ret->list[ret->n++] = (clv_weights_tensor){item->name, item->dtype, item->shape, item->data};
  }
  return CLV_OK;
}

static clv_code bring_here(clv_pool *pool, whole_state *s, clv_err *err) {
  CLV_TRY(clv_alloc(s->n, sizeof *s->copies, &s->copies, err));
  for (uint32_t i = 0; i < s->n; i++) {
    const clv_state_item *item = &s->items[i];
    if (!item->backend || !item->backend->memory) continue;
    CLV_TRY(clv_pool_tensor(pool, item->dtype, &item->shape, &s->copies[i], err));
    CLV_TRY(clv_state_item_get(item, s->copies[i]->data, err));
    s->list[i].data = s->copies[i]->data;
  }
  return CLV_OK;
}

static clv_code match(clv_session_node *n, const clv_frame *f, const whole_state *s,
                      const clv_weights_file *file, clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_AUTO(clv_freep) clv_weights_want *want = NULL;
  CLV_TRY(clv_alloc(s->n, sizeof *found, &found, err));
  CLV_TRY(clv_alloc(s->n, sizeof *want, &want, err));
  for (uint32_t i = 0; i < s->n; i++)
    want[i] = (clv_weights_want){s->items[i].name, s->items[i].dtype, s->items[i].shape, false};
  CLV_TRY(clv_weights_match(file, want, s->n, 0, found, err));
  if (f->state.what == CLV_STATE_WEIGHTS) clv_contexts_written(n->contexts, f->module);
  clv_module *m = n->modules[f->module];
  for (uint32_t i = 0; i < s->n; i++)
    CLV_TRY(clv_module_state_set(m, f->state.what, want[i].name, want[i].dtype, &want[i].shape,
                                 found[i]->data, err));
  return CLV_OK;
}

static clv_code open_and_match(clv_session_node *n, const clv_frame *f, const whole_state *s,
                               size_t most, clv_frame *ret, clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *file = NULL;
  const clv_state_files *files = &n->o.files;
  CLV_TRY(files->open(files->user, f->state.name, most, &file, err));
  CLV_TRY(match(n, f, s, file, err));
  ret->state.bytes = clv_weights_bytes(file);
  ret->state.sha256 = *clv_weights_digest(file);
  return CLV_OK;
}

static clv_code load(clv_session_node *n, const clv_frame *f, const whole_state *s, clv_frame *ret,
                     clv_err *err) {
  uint64_t bytes;
  CLV_TRY(clv_weights_size(s->list, s->n, &bytes, err));
  size_t most = (size_t)bytes + SLACK_BYTES;
  CLV_TRY(clv_pool_charge(n->o.pool, most, err));
  clv_code code = open_and_match(n, f, s, most, ret, err);
  clv_pool_discharge(n->o.pool, most);
  return code;
}

clv_code clv_node_on_file(clv_session_node *n, clv_module *m, const clv_frame *f, clv_frame *ret,
                          clv_err *err) {
  CLV_AUTO(whole_state_done) whole_state s = {0};
  const clv_state_files *files = &n->o.files;
  if (!files->save)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "there are no files of state here: the worker has no state_dir");
  ret->state.what = f->state.what;
  memcpy(ret->state.name, f->state.name, sizeof ret->state.name);
  clv_node_flush(n);
  clv_share_release(n->o.share); /* no core is held while the disk is waited for */
  if (f->kind == CLV_STATE_REMOVE) return files->remove(files->user, f->state.name, err);
  CLV_TRY(state_of(m, f->state.what, &s, err));
  if (f->kind == CLV_STATE_LOAD) return load(n, f, &s, ret, err);
  CLV_TRY(bring_here(n->o.pool, &s, err));
  return files->save(files->user, f->state.name, s.list, s.n, &ret->state.sha256, &ret->state.bytes,
                     err);
}
