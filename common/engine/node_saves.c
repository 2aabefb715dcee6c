/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of state that another thread writes: a STATE_SAVE copies the items of its module, and is
 * answered when the file is durable. Meanwhile the compute thread goes on. The thread that has
 * written a file posts the STATE_SAVE to the node again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/engine/node_int.h"

enum { ALIGNMENT = 64 };

struct clv_node_save {
  /* must be the first member: on_file_written casts its address to clv_node_save */
  clv_state_save save;
  clv_session_node *node;
  clv_packet *request;
  clv_weights_tensor *list;
  char *names;       /* names of `list`, copied because the module may be unloaded meanwhile */
  clv_tensor *block; /* data of `list` */
  bool is_done;      /* the request was posted again */
  struct clv_node_save *next;
};

static void save_free(struct clv_node_save *s) {
  free(s->list);
  free(s->names);
  clv_tensor_unref(s->block);
  free(s);
}

static void save_freep(struct clv_node_save **s) {
  if (*s) save_free(*s);
}

/* ---- copies of the state --------------------------------------------------------------------- */

clv_code clv_node_alloc_copies(clv_session_node *n, clv_weights_tensor *list, size_t n_items,
                               clv_tensor **ret_block, clv_err *err) {
  size_t total = ALIGNMENT, bytes; /* not 0, so that a state without items has a block as well */
  for (size_t i = 0; i < n_items; i++) {
    CLV_TRY(clv_shape_bytes(&list[i].shape, list[i].dtype, &bytes, err));
    if (!clv_add_size(total, clv_align_up(bytes, ALIGNMENT), &total) || total > INT64_MAX)
      return clv_fail(err, CLV_EXHAUSTED, "the state has more than 2^63 bytes");
  }
  CLV_TRY(clv_pool_alloc_tensor(n->o.pool, CLV_U8, &CLV_SHAPE((int64_t)total), ret_block, err));
  char *to = (*ret_block)->data;
  for (size_t i = 0; i < n_items; i++) {
    list[i].data = to;
    (void)!clv_shape_bytes(&list[i].shape, list[i].dtype, &bytes, err);
    to += clv_align_up(bytes, ALIGNMENT);
  }
  return CLV_OK;
}

static clv_code copy_names(struct clv_node_save *s, size_t n, clv_err *err) {
  size_t total = 1;
  for (size_t i = 0; i < n; i++) total += strlen(s->list[i].name) + 1;
  CLV_TRY(clv_alloc(total, 1, &s->names, err));
  char *to = s->names;
  for (size_t i = 0; i < n; i++) {
    size_t len = strlen(s->list[i].name) + 1;
    memcpy(to, s->list[i].name, len);
    s->list[i].name = to;
    to += len;
  }
  return CLV_OK;
}

/* Copies the data of `list` to a block. CLV_EXHAUSTED: over the quota of the session. */
static clv_code copy_data(clv_session_node *n, struct clv_node_save *s,
                          const clv_weights_tensor *list, size_t n_items, clv_err *err) {
  CLV_TRY(clv_node_alloc_copies(n, s->list, n_items, &s->block, err));
  for (size_t i = 0; i < n_items; i++) {
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&list[i].shape, list[i].dtype, &bytes, err));
    if (bytes) memcpy((void *)(uintptr_t)s->list[i].data, list[i].data, bytes);
  }
  return CLV_OK;
}

/* ---- writing the file ------------------------------------------------------------------------ */

static void on_file_written(clv_state_save *save) {
  struct clv_node_save *s = (struct clv_node_save *)(void *)save;
  s->is_done = true;
  clv_inbox_post_last_packet(&s->node->inbox, s->request);
}

static clv_code start_save(clv_session_node *n, struct clv_node_save *s, clv_packet *p,
                           size_t n_items, clv_err *err) {
  s->node = n;
  s->request = p;
  s->save = (clv_state_save){.name = p->frame.state.item_or_file_name,
                             .list = s->list,
                             .n = n_items,
                             .on_done = on_file_written};
  s->next = n->saves;
  n->saves = s; /* linked first, because the write may end before save_later returns */
  clv_code code = n->o.files.save_later(n->o.files.user, &s->save, err);
  if (code != CLV_OK) n->saves = s->next;
  return code;
}

clv_code clv_node_save_later(clv_session_node *n, clv_packet *p, const clv_weights_tensor *list,
                             size_t n_items, clv_tensor **block, bool *ret_kept, clv_err *err) {
  CLV_AUTO(save_freep) struct clv_node_save *s = NULL;
  if (!n->o.files.save_later) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  CLV_TRY(clv_alloc(n_items, sizeof *s->list, &s->list, err));
  if (n_items) memcpy(s->list, list, n_items * sizeof *list);
  CLV_TRY(copy_names(s, n_items, err));
  s->block = clv_steal(block);
  clv_code code = s->block ? CLV_OK : copy_data(n, s, list, n_items, err);
  if (code == CLV_EXHAUSTED) return CLV_OK; /* the caller writes the file itself */
  CLV_TRY(code);
  CLV_TRY(start_save(n, s, p, n_items, err));
  (void)clv_steal(&s);
  *ret_kept = true;
  return CLV_OK;
}

bool clv_node_take_saved(clv_session_node *n, const clv_packet *p, clv_frame *ret,
                         clv_code *ret_code, clv_err *err) {
  struct clv_node_save **at = &n->saves;
  while (*at && (*at)->request != p) at = &(*at)->next;
  struct clv_node_save *s = *at;
  if (!s) return false;
  *at = s->next;
  *ret_code = s->save.code;
  if (s->save.code != CLV_OK) *err = s->save.failure;
  ret->state.part = p->frame.state.part;
  memcpy(ret->state.item_or_file_name, p->frame.state.item_or_file_name,
         sizeof ret->state.item_or_file_name);
  ret->state.file_bytes = s->save.bytes;
  ret->state.file_sha256 = s->save.sha256;
  save_free(s);
  return true;
}

void clv_node_drop_saves(clv_session_node *n) {
  for (struct clv_node_save *s = n->saves, *next; s; s = next) {
    next = s->next;
    n->o.files.withdraw(n->o.files.user, &s->save);
    if (!s->is_done) clv_packet_free(s->request); /* if is_done, the inbox owns the request */
    save_free(s);
  }
  n->saves = NULL;
}
