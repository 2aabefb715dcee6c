/* SPDX-License-Identifier: Apache-2.0
 *
 * Cached: lists the caches that a worker keeps for its caller, and removes them.
 */
#include "common/net/wire/unary_int.h"

clv_code clv_wire_cached_request_decode(const clv_piece *pieces, size_t n_pieces,
                                        clv_wire_cached_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__CachedRequest *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__cached_request__descriptor, pieces, n_pieces, &mem, &from, err));
  clv_wire_cached_request m = {.remove = from->remove, .all = from->key.len == 0};
  if (!m.all) CLV_TRY(clv_get_sha256(from->key, "key of a cache", &m.key, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_cached_request_encode(const clv_wire_cached_request *message, clv_bytes *ret,
                                        clv_err *err) {
  Cleave__V1__CachedRequest to = CLEAVE__V1__CACHED_REQUEST__INIT;
  to.remove = message->remove;
  if (!message->all) to.key = clv_put_bytes(&message->key, sizeof message->key);
  return clv_wire_pack(&to.base, ret, err);
}

static clv_code get_cache(const Cleave__V1__CacheStatus *from, clv_wire_cache_status *ret,
                          clv_err *err) {
  *ret = (clv_wire_cache_status){.records = from->records,
                                 .rows = from->rows,
                                 .row_bytes = from->row_bytes,
                                 .disk_bytes = from->disk_bytes,
                                 .unused_s = from->unused_s,
                                 .expires_s = from->expires_s};
  if (from->rows > from->records)
    return clv_fail(err, CLV_INVALID, "%llu rows of a cache for %llu records",
                    (unsigned long long)from->rows, (unsigned long long)from->records);
  return clv_get_sha256(from->key, "key of a cache", &ret->key, err);
}

clv_code clv_wire_cached_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_cached_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__CachedReply *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__cached_reply__descriptor, pieces, n_pieces, &mem, &from, err));
  clv_wire_cached_reply m = {.n_caches = (uint32_t)from->n_caches};
  CLV_TRY(clv_check_count(from->n_caches, CLV_WIRE_CACHES, "caches", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_caches, sizeof *m.caches, &m.caches, err));
  for (size_t i = 0; i < from->n_caches; i++)
    CLV_TRY(get_cache(from->caches[i], &m.caches[i], err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_cached_reply_encode(const clv_wire_cached_reply *message, clv_bytes *ret,
                                      clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__CachedReply to = CLEAVE__V1__CACHED_REPLY__INIT;
  Cleave__V1__CacheStatus *caches;
  CLV_TRY(
      clv_wire_mem_new(CLV_PUT_ARRAY_BYTES(message->n_caches, Cleave__V1__CacheStatus), &mem, err));
  CLV_TRY(clv_put_array(mem, message->n_caches, sizeof *caches, &to.caches, &caches, err));
  for (uint32_t i = 0; i < message->n_caches; i++) {
    const clv_wire_cache_status *from = &message->caches[i];
    cleave__v1__cache_status__init(&caches[i]);
    caches[i].key = clv_put_bytes(&from->key, sizeof from->key);
    caches[i].records = from->records;
    caches[i].rows = from->rows;
    caches[i].row_bytes = from->row_bytes;
    caches[i].disk_bytes = from->disk_bytes;
    caches[i].unused_s = from->unused_s;
    caches[i].expires_s = from->expires_s;
  }
  to.n_caches = message->n_caches;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_done) clv_wire_cached_reply back = {0};
  return clv_wire_cached_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
