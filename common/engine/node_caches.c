/* SPDX-License-Identifier: Apache-2.0
 *
 * VALUEs of caches: the rows of a VALUE are stored in a cache, or the VALUE is filled with stored
 * rows. Afterwards the engine handles the VALUE as any other, or as a failed one.
 */
#include <string.h>

#include "common/engine/node_int.h"

/* Replaces the tensors of a packet by t; t NULL: by none. Takes the reference to t. */
static void replace_tensors(clv_packet *p, clv_tensor *t) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) p->tensor[i] = clv_tensor_unref(p->tensor[i]);
  p->frame.n_tensors = t != NULL;
  p->tensor[0] = t;
}

static clv_code store_cached_rows(const clv_row_caches *c, clv_packet *p, clv_err *err) {
  CLV_TRY(c->put(c->user, &p->frame.cached, p->tensor[1]->data, p->tensor[0], err));
  p->tensor[1] = clv_tensor_unref(p->tensor[1]);
  p->frame.n_tensors = 1;
  return CLV_OK;
}

static clv_code load_cached_rows(clv_session_node *n, clv_packet *p, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  const clv_row_caches *c = &n->o.caches;
  const clv_tensor *rows = p->tensor[0];
  clv_dtype dtype;
  clv_shape shape;
  CLV_TRY(c->get_shape(c->user, &p->frame.cached, rows->n, &dtype, &shape, err));
  CLV_TRY(clv_pool_alloc_tensor(n->o.pool, dtype, &shape, &t, err));
  CLV_TRY(c->get(c->user, &p->frame.cached, rows->data, t, err));
  replace_tensors(p, clv_steal(&t));
  return CLV_OK;
}

static clv_code handle_cached(clv_session_node *n, clv_packet *p, clv_err *err) {
  if (!n->o.caches.put)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "this worker has no caches: its worker.yaml has no state_dir");
  clv_node_flush(n);
  /* frees the cores for other sessions while this thread waits for the disk */
  clv_share_release_cores(n->o.share);
  return p->frame.n_tensors == 2 ? store_cached_rows(&n->o.caches, p, err)
                                 : load_cached_rows(n, p, err);
}

clv_code clv_node_on_cached(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_err why;
  if (!p->received_by || !clv_node_is_master(n, p->received_by))
    return clv_fail(err, CLV_DENIED, "only the master may send a VALUE of a cache");
  bool failed = p->frame.has_failure || handle_cached(n, p, &why) != CLV_OK;
  p->frame.has_cached = false;
  if (!failed || p->frame.has_failure) return CLV_OK;
  replace_tensors(p, NULL);
  p->frame.has_failure = true;
  clv_frame_set_failure(&p->frame, why.code, why.text, "cache");
  return CLV_OK;
}
