/* SPDX-License-Identifier: Apache-2.0
 *
 * The method Kept: lists, reads and removes caches and files of state of the caller's identity,
 * without a session. A caller cannot reach the files of other identities, because the store finds
 * the folder by the caller's identity.
 */
#include <stdlib.h>

#include "worker/service/service_int.h"

/* largest number of bytes of a KeptReply besides the range of the file */
enum { MAX_REPLY_HEAD_BYTES = 4096 };

_Static_assert((int)CLV_MAX_CACHES == (int)CLV_WIRE_CACHES, "all that an identity has fit a reply");
_Static_assert((int)CLV_MAX_LISTED_STATES == (int)CLV_WIRE_KEPT_FILES, "and a list of its files");

/* A request of the method Kept that is being handled, and the memory that its reply uses. */
typedef struct kept_call {
  clv_service *service;
  const clv_rpc_peer *peer;
  const clv_wire_kept_request *request;
  clv_wire_kept_reply reply;
  clv_wire_cache_status caches[CLV_MAX_CACHES]; /* caches in the reply */
  clv_state_list state_list;                    /* files of state that the store has listed */
  clv_wire_kept_file *files;                    /* files in the reply, [state_list.n] */
  clv_bytes file_data;                          /* bytes that a read request has read */
} kept_call;

static void kept_call_done(kept_call *c) {
  clv_state_list_done(&c->state_list);
  free(c->files);
  clv_bytes_done(&c->file_data);
}

/* ---- audit log ------------------------------------------------------------------------------- */

static void log_removed_caches(const char *owner, uint32_t n) {
  const clv_log_source source = {.peer = owner, .event_kind = "caches removed"};
  clv_log_limited(CLV_LOG_INFO, "audit", &source, "remove cache identity=%s caches=%u", owner, n);
}

/* Logs a request about files of state and its result. Reads of the first range of a file and reads
 * of later ranges have separate limits of log lines. So the many ranges of a long file do not
 * suppress the lines about other files. */
static void log_file_request(const kept_call *c, clv_code code, const clv_err *err) {
  static const char *const verbs[] = {"list", "read", "remove"};
  static const char *const event_kinds[] = {"lists of kept files", "kept files read",
                                            "kept files removed"};
  const clv_wire_kept_request *r = c->request;
  const clv_log_source source = {
      .peer = c->peer->uri,
      .event_kind = r->range_offset ? "ranges of kept files read" : event_kinds[r->verb]};
  uint64_t bytes = r->verb == CLV_KEPT_READ ? c->file_data.len
                   : c->state_list.n        ? c->state_list.files->bytes
                                            : 0;
  clv_log_limited(code == CLV_OK ? CLV_LOG_INFO : CLV_LOG_WARN, "audit", &source,
                  "%s kept identity=%s file=%s offset=%llu bytes=%llu reason=\"%s\"",
                  verbs[r->verb], c->peer->uri, r->file_name, (unsigned long long)r->range_offset,
                  (unsigned long long)bytes, code == CLV_OK ? "ok" : err->text);
}

/* ---- listing caches and files of state ------------------------------------------------------- */

/* Adds the listed caches to the reply. deletes_listed: also deletes them. */
static clv_code list_caches(kept_call *c, bool deletes_listed, clv_err *err) {
  const clv_wire_kept_request *r = c->request;
  clv_cache_status list[CLV_MAX_CACHES];
  uint32_t n = 0;
  CLV_TRY(clv_caches_list(c->service->caches, c->peer->uri, r->has_cache_key ? &r->cache_key : NULL,
                          deletes_listed, list, &n, err));
  for (uint32_t i = 0; i < n; i++)
    c->caches[i] = (clv_wire_cache_status){.cache_key = list[i].key,
                                           .n_records = list[i].n_records,
                                           .n_rows = list[i].n_rows,
                                           .row_bytes = list[i].row_bytes,
                                           .disk_bytes = list[i].disk_bytes,
                                           .unused_s = list[i].unused_s,
                                           .expires_in_s = list[i].expires_s};
  c->reply.caches = c->caches;
  c->reply.n_caches = n;
  if (deletes_listed && n) log_removed_caches(c->peer->uri, n);
  return CLV_OK;
}

static clv_wire_kept_file kept_file_to_wire(const clv_state_status *s) {
  return (clv_wire_kept_file){.file_name = s->name,
                              .file_bytes = s->bytes,
                              .age_s = s->age_s,
                              .file_version = s->version,
                              .has_sha256 = s->has_sha256,
                              .sha256 = s->sha256};
}

static bool has_caller_left(void *user) {
  return __atomic_load_n(((const clv_rpc_peer *)user)->is_cancelled, __ATOMIC_RELAXED);
}

/* Computes the digest of the listed file, if the caller wants it and it is not known. */
static clv_code add_digest(kept_call *c, clv_err *err) {
  clv_state_status *f = c->state_list.files;
  if (!c->request->wants_digest || !c->state_list.n || f->has_sha256) return CLV_OK;
  const clv_cancel_hook cancel_hook = {has_caller_left, (void *)(uintptr_t)c->peer};
  CLV_TRY(clv_states_compute_digest(c->service->state_files, c->peer->uri, c->request->file_name,
                                    &cancel_hook, &f->sha256, err));
  f->has_sha256 = true;
  return CLV_OK;
}

static clv_code list_files(kept_call *c, clv_err *err) {
  const clv_wire_kept_request *r = c->request;
  CLV_TRY(clv_states_list(c->service->state_files, c->peer->uri, r->file_name, r->after_file_name,
                          &c->state_list, err));
  CLV_TRY(add_digest(c, err));
  CLV_TRY(clv_alloc(CLV_MAX(c->state_list.n, 1u), sizeof *c->files, &c->files, err));
  for (uint32_t i = 0; i < c->state_list.n; i++)
    c->files[i] = kept_file_to_wire(&c->state_list.files[i]);
  c->reply.files = c->files;
  c->reply.n_files = c->state_list.n;
  c->reply.has_more_files = c->state_list.has_more;
  c->reply.used_bytes = c->state_list.used_bytes;
  c->reply.quota_bytes = clv_service_state_quota(c->service, c->peer->uri);
  return CLV_OK;
}

static clv_code handle_list(kept_call *c, clv_err *err) {
  if (c->request->kept_kind != CLV_KEPT_FILES) CLV_TRY(list_caches(c, false, err));
  return c->request->kept_kind == CLV_KEPT_CACHES ? CLV_OK : list_files(c, err);
}

/* ---- reading and removing files of state ----------------------------------------------------- */

/* Reads a range of a file into c->file_data. Reads only the beginning of the range if the range
 * does not fit into a message of this worker. */
static clv_code read_file_range(kept_call *c, clv_state_status *ret, clv_err *err) {
  const clv_wire_kept_request *r = c->request;
  uint64_t max_bytes = c->service->config->limits.message_bytes - MAX_REPLY_HEAD_BYTES;
  uint64_t length = CLV_MIN(r->range_length, max_bytes);
  return clv_states_read(c->service->state_files, c->peer->uri, r->file_name, r->range_offset,
                         (size_t)length, r->file_version, &c->file_data, ret, err);
}

static clv_code handle_read(kept_call *c, clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof *c->files, &c->files, err));
  CLV_TRY(clv_alloc(1, sizeof *c->state_list.files, &c->state_list.files, err));
  CLV_TRY(read_file_range(c, c->state_list.files, err));
  *c->files = kept_file_to_wire(c->state_list.files);
  c->reply.files = c->files;
  c->reply.n_files = 1;
  c->reply.data = c->file_data.data;
  c->reply.data_bytes = c->file_data.len;
  return CLV_OK;
}

static clv_code handle_remove(kept_call *c, clv_err *err) {
  if (c->request->kept_kind == CLV_KEPT_CACHES) return list_caches(c, true, err);
  CLV_TRY(list_files(c, err));
  const clv_cancel_hook cancel_hook = {has_caller_left, (void *)(uintptr_t)c->peer};
  return clv_states_remove(c->service->state_files, c->peer->uri, c->request->file_name,
                           &cancel_hook, err);
}

/* ---- the method Kept ------------------------------------------------------------------------- */

static clv_code handle_kept_call(kept_call *c, clv_err *err) {
  static clv_code (*const handlers[])(kept_call *, clv_err *) = {[CLV_KEPT_LIST] = handle_list,
                                                                 [CLV_KEPT_READ] = handle_read,
                                                                 [CLV_KEPT_REMOVE] = handle_remove};
  const clv_wire_kept_request *r = c->request;
  if (c->service->state_files) return handlers[r->verb](c, err);
  if (r->kept_kind != CLV_KEPT_FILES) return CLV_OK; /* a worker without state_dir has no caches */
  return clv_fail(err, CLV_UNIMPLEMENTED,
                  "this worker keeps no files: its worker.yaml has no state_dir");
}

clv_code clv_service_on_kept(void *user, const clv_rpc_peer *peer, const clv_iov *request, size_t n,
                             clv_bytes *reply, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_request r = {0};
  CLV_AUTO(kept_call_done) kept_call c = {.service = user, .peer = peer, .request = &r};
  CLV_TRY(clv_wire_kept_request_decode((const clv_piece *)request, n, &r, err));
  clv_code code = handle_kept_call(&c, err);
  if (code != CLV_OK || (r.verb != CLV_KEPT_LIST && r.kept_kind == CLV_KEPT_FILES))
    log_file_request(&c, code, err);
  return code == CLV_OK ? clv_wire_kept_reply_encode(&c.reply, reply, err) : code;
}
