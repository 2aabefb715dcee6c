/* SPDX-License-Identifier: Apache-2.0
 *
 * Kept: lists, reads and removes the caches and files of state that a worker keeps for its caller.
 */
#include "common/net/wire/unary_int.h"

/* ---- the request of Kept --------------------------------------------------------------------- */

/* Fields that a request with one verb may have. */
typedef struct verb_rule {
  bool allows_all_kinds; /* a request for caches and files together is allowed */
  bool allows_caches;    /* a request about caches is allowed */
  bool needs_file_name;  /* a request about files of state must name one */
  bool has_range;
} verb_rule;

static const verb_rule rules[] = {
    [CLV_KEPT_LIST] = {.allows_all_kinds = true, .allows_caches = true},
    [CLV_KEPT_READ] = {.needs_file_name = true, .has_range = true},
    [CLV_KEPT_REMOVE] = {.allows_caches = true, .needs_file_name = true}};

static clv_code check_name(const char *name, const char *what, clv_err *err) {
  if (!name[0] || clv_is_file_name(name)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s must be 1 to %d characters of [A-Za-z0-9._-], without a leading dot", what,
                  CLV_FILE_NAME);
}

static clv_code check_kept_kind(const clv_wire_kept_request *m, clv_err *err) {
  const verb_rule *r = &rules[m->verb];
  if ((m->kept_kind == CLV_KEPT_ALL && !r->allows_all_kinds) ||
      (m->kept_kind == CLV_KEPT_CACHES && !r->allows_caches))
    return clv_fail(err, CLV_INVALID, "the verb %d of a KeptRequest with the sort %d", (int)m->verb,
                    (int)m->kept_kind);
  if (m->has_cache_key && m->kept_kind != CLV_KEPT_CACHES)
    return clv_fail(err, CLV_INVALID, "a KeptRequest with a key that is not about caches");
  if ((m->file_name[0] || m->after_file_name[0]) && m->kept_kind == CLV_KEPT_CACHES)
    return clv_fail(err, CLV_INVALID, "a KeptRequest about caches with the name of a file");
  if (r->needs_file_name && m->kept_kind == CLV_KEPT_FILES && !m->file_name[0])
    return clv_fail(err, CLV_INVALID, "the request names no file of state");
  return CLV_OK;
}

static clv_code check_request(const clv_wire_kept_request *m, clv_err *err) {
  CLV_TRY(check_name(m->file_name, "the name of a file of state", err));
  CLV_TRY(check_name(m->after_file_name, "`after` of a KeptRequest", err));
  CLV_TRY(check_kept_kind(m, err));
  if (m->verb != CLV_KEPT_LIST && m->after_file_name[0])
    return clv_fail(err, CLV_INVALID, "`after` is for LIST");
  if (m->wants_digest && (m->verb != CLV_KEPT_LIST || !m->file_name[0]))
    return clv_fail(err, CLV_INVALID, "`digest` is for a LIST of one file of state");
  if (!rules[m->verb].has_range) {
    if (!m->range_offset && !m->range_length && !m->file_version) return CLV_OK;
    return clv_fail(err, CLV_INVALID, "a range is for READ");
  }
  if (m->range_length < 1 || m->range_length > CLV_WIRE_KEPT_BYTES)
    return clv_fail(err, CLV_INVALID, "a range of %llu bytes; it has 1 to %d",
                    (unsigned long long)m->range_length, CLV_WIRE_KEPT_BYTES);
  if (m->range_offset <= CLV_WIRE_BYTES_MAX) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "a range that begins at %llu; the limit is %llu",
                  (unsigned long long)m->range_offset, (unsigned long long)CLV_WIRE_BYTES_MAX);
}

clv_code clv_wire_kept_request_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_kept_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__KeptRequest *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__kept_request__descriptor, pieces, n_pieces, &mem, &from, err));
  if ((int)from->verb < 0 || (int)from->verb > CLV_KEPT_REMOVE || (int)from->sort < 0 ||
      (int)from->sort > CLV_KEPT_FILES)
    return clv_fail(err, CLV_INVALID, "no verb %d or no sort %d of a KeptRequest", (int)from->verb,
                    (int)from->sort);
  clv_wire_kept_request m = {.verb = (clv_kept_verb)from->verb,
                             .kept_kind = (clv_kept_kind)from->sort,
                             .has_cache_key = from->key.len > 0,
                             .wants_digest = from->digest,
                             .file_name = from->name,
                             .after_file_name = from->after,
                             .range_offset = from->offset,
                             .range_length = from->length,
                             .file_version = from->version};
  if (m.has_cache_key) CLV_TRY(clv_decode_sha256(from->key, "key of a cache", &m.cache_key, err));
  CLV_TRY(check_request(&m, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_kept_request_encode(const clv_wire_kept_request *message, clv_bytes *ret,
                                      clv_err *err) {
  Cleave__V1__KeptRequest to = CLEAVE__V1__KEPT_REQUEST__INIT;
  to.verb = (Cleave__V1__KeptVerb)message->verb;
  to.sort = (Cleave__V1__KeptSort)message->kept_kind;
  if (message->has_cache_key)
    to.key = clv_proto_bytes(&message->cache_key, sizeof message->cache_key);
  to.name = clv_text_or_empty(message->file_name);
  to.after = clv_text_or_empty(message->after_file_name);
  to.digest = message->wants_digest;
  to.offset = message->range_offset;
  to.length = message->range_length;
  to.version = message->file_version;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_request back = {0};
  return clv_wire_kept_request_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

/* ---- reply of the method Kept: what a worker keeps for an identity --------------------------- */

static clv_code decode_cache(const Cleave__V1__CacheStatus *from, clv_wire_cache_status *ret,
                             clv_err *err) {
  *ret = (clv_wire_cache_status){.n_records = from->records,
                                 .n_rows = from->rows,
                                 .row_bytes = from->row_bytes,
                                 .disk_bytes = from->disk_bytes,
                                 .unused_s = from->unused_s,
                                 .expires_in_s = from->expires_s};
  if (from->rows > from->records)
    return clv_fail(err, CLV_INVALID, "%llu rows of a cache for %llu records",
                    (unsigned long long)from->rows, (unsigned long long)from->records);
  return clv_decode_sha256(from->key, "key of a cache", &ret->cache_key, err);
}

static clv_code decode_file(const Cleave__V1__KeptFile *from, clv_wire_kept_file *ret,
                            clv_err *err) {
  *ret = (clv_wire_kept_file){.file_name = from->name,
                              .file_bytes = from->bytes,
                              .age_s = from->age_s,
                              .file_version = from->version,
                              .has_sha256 = from->sha256.len > 0};
  if (!clv_is_file_name(from->name))
    return clv_fail(err, CLV_INVALID, "the name of a kept file is not the name of a file");
  if (!from->version || from->bytes > CLV_WIRE_BYTES_MAX)
    return clv_fail(err, CLV_INVALID, "kept file '%s' has version %llu and %llu bytes", from->name,
                    (unsigned long long)from->version, (unsigned long long)from->bytes);
  return ret->has_sha256
             ? clv_decode_sha256(from->sha256, "digest of a kept file", &ret->sha256, err)
             : CLV_OK;
}

static clv_code decode_lists(const Cleave__V1__KeptReply *from, clv_wire_mem *mem,
                             clv_wire_kept_reply *m, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_caches, CLV_WIRE_CACHES, "caches", err));
  CLV_TRY(clv_check_count(from->n_files, CLV_WIRE_KEPT_FILES, "kept files", err));
  CLV_TRY(clv_check_count(from->data.len, CLV_WIRE_KEPT_BYTES, "bytes of a kept file", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_caches, sizeof *m->caches, &m->caches, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_files, sizeof *m->files, &m->files, err));
  for (size_t i = 0; i < from->n_caches; i++)
    CLV_TRY(decode_cache(from->caches[i], &m->caches[i], err));
  for (size_t i = 0; i < from->n_files; i++)
    CLV_TRY(decode_file(from->files[i], &m->files[i], err));
  return CLV_OK;
}

clv_code clv_wire_kept_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                    clv_wire_kept_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__KeptReply *from;
  CLV_TRY(clv_wire_unpack_large(&cleave__v1__kept_reply__descriptor, pieces, n_pieces,
                                CLV_WIRE_KEPT_REPLY_MAX, &mem, &from, err));
  clv_wire_kept_reply m = {.n_caches = (uint32_t)from->n_caches,
                           .n_files = (uint32_t)from->n_files,
                           .has_more_files = from->more,
                           .data = from->data.data,
                           .data_bytes = from->data.len,
                           .used_bytes = from->used_bytes,
                           .quota_bytes = from->quota_bytes};
  CLV_TRY(decode_lists(from, mem, &m, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

static void encode_cache(const clv_wire_cache_status *from, Cleave__V1__CacheStatus *to) {
  cleave__v1__cache_status__init(to);
  to->key = clv_proto_bytes(&from->cache_key, sizeof from->cache_key);
  to->records = from->n_records;
  to->rows = from->n_rows;
  to->row_bytes = from->row_bytes;
  to->disk_bytes = from->disk_bytes;
  to->unused_s = from->unused_s;
  to->expires_s = from->expires_in_s;
}

static void encode_file(const clv_wire_kept_file *from, Cleave__V1__KeptFile *to) {
  cleave__v1__kept_file__init(to);
  to->name = clv_text_or_empty(from->file_name);
  to->bytes = from->file_bytes;
  if (from->has_sha256) to->sha256 = clv_proto_bytes(&from->sha256, sizeof from->sha256);
  to->age_s = from->age_s;
  to->version = from->file_version;
}

clv_code clv_wire_kept_reply_encode(const clv_wire_kept_reply *message, clv_bytes *ret,
                                    clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__KeptReply to = CLEAVE__V1__KEPT_REPLY__INIT;
  Cleave__V1__CacheStatus *caches;
  Cleave__V1__KeptFile *files;
  CLV_TRY(clv_wire_mem_new(CLV_ENCODED_ARRAY_BYTES(message->n_caches, Cleave__V1__CacheStatus) +
                               CLV_ENCODED_ARRAY_BYTES(message->n_files, Cleave__V1__KeptFile),
                           &mem, err));
  CLV_TRY(clv_alloc_proto_array(mem, message->n_caches, sizeof *caches, &to.caches, &caches, err));
  CLV_TRY(clv_alloc_proto_array(mem, message->n_files, sizeof *files, &to.files, &files, err));
  for (uint32_t i = 0; i < message->n_caches; i++) encode_cache(&message->caches[i], &caches[i]);
  for (uint32_t i = 0; i < message->n_files; i++) encode_file(&message->files[i], &files[i]);
  to.n_caches = message->n_caches;
  to.n_files = message->n_files;
  to.more = message->has_more_files;
  to.data = clv_proto_bytes(message->data, message->data_bytes);
  to.used_bytes = message->used_bytes;
  to.quota_bytes = message->quota_bytes;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply back = {0};
  return clv_wire_kept_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
