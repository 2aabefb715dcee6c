/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets: made from a pool's free list, filled with tensors, freed back to the pool.
 */
#include "common/net/link/link_int.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RESERVED_PACKETS = 256 };

/* Preallocates packets for `n` messages in flight, so that a step allocates none. */
static clv_code reserve_packets(clv_pool *p, size_t n, clv_err *err) {
  clv_packet *list = NULL, *k;
  clv_code code = CLV_OK;
  for (size_t i = 0; i < n && code == CLV_OK; i++) {
    code = clv_packet_new(p, CLV_PING, &k, err);
    if (code != CLV_OK) break;
    k->next = list;
    list = k;
  }
  while (list) {
    k = list;
    list = k->next;
    clv_packet_free(k);
  }
  return code;
}

clv_code clv_pool_reserve_packets(clv_pool *p, uint32_t in_flight, clv_err *err) {
  return reserve_packets(p, CLV_MIN((size_t)MAX_RESERVED_PACKETS, 16 + 8 * (size_t)in_flight), err);
}

clv_code clv_packet_new(clv_pool *pool, clv_frame_kind kind, clv_packet **ret, clv_err *err) {
  clv_packet *k = clv_pool_take_free_record(pool);
  if (!k) CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  memset(k, 0, sizeof *k);
  k->frame.kind = kind;
  k->pool = clv_pool_ref(pool);
  *ret = k;
  return CLV_OK;
}

void clv_packet_add_tensor(clv_packet *p, clv_tensor *t) {
  p->tensor[p->frame.n_tensors] = clv_tensor_ref(t);
  clv_tensor_head *h = &p->frame.tensors[p->frame.n_tensors++];
  *h = (clv_tensor_head){.dtype = t->dtype, .shape = t->shape, .bytes = t->bytes};
}

void clv_packet_add_tensor_being_copied(clv_packet *p, clv_tensor *t, clv_device_copy *copy) {
  if (copy) p->device_copy[p->frame.n_tensors] = clv_device_copy_ref(copy);
  clv_packet_add_tensor(p, t);
}

void clv_packet_free(clv_packet *p) {
  if (!p) return;
  clv_recv_window *recv_window = p->recv_window;
  uint64_t credit = p->credit_bytes;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) clv_tensor_unref(p->tensor[i]);
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) clv_device_copy_unref(p->device_copy[i]);
  clv_pool *pool = p->pool;
  clv_pool_recycle_record(pool, p);
  clv_recv_window_return_bytes(recv_window, credit);
  clv_recv_window_unref(recv_window);
  clv_pool_unref(pool);
}

void clv_packet_freep(clv_packet **p) {
  clv_packet_free(*p);
  *p = NULL;
}
