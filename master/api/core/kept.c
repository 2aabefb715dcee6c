/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists, reads and removes the caches and files of state that a worker keeps for this identity,
 * with the unary gRPC method Kept, which needs no session.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/tls/tls.h"
#include "master/api/core/core_int.h"

struct cleave_kept_client {
  clv_tls_identity *identity;
  clv_rpc_runtime *rpc;
  clv_rpc_channel *channel;
  unsigned timeout_ms; /* deadline of each call */
};

/* ---- the connection to a worker -------------------------------------------------------------- */

void cleave_kept_close(cleave_kept_client *k) {
  if (!k) return;
  clv_rpc_channel_free(k->channel);
  clv_rpc_runtime_free(k->rpc);
  clv_tls_identity_free(k->identity);
  free(k);
}

void cleave_kept_closep(cleave_kept_client **k) {
  cleave_kept_close(*k);
  *k = NULL;
}

static clv_code open_runtime(cleave_kept_client *k, const clv_tls_config *t, clv_err *err) {
  const clv_rpc_runtime_options o = {.n_queue_threads = 2};
  CLV_TRY(clv_tls_set_min_version(err));
  CLV_TRY(clv_tls_identity_load(t->ca, t->cert, t->key, &k->identity, err));
  CLV_TRY(clv_tls_identity_require_usage(k->identity, CLV_TLS_CLIENT, err));
  CLV_TRY(clv_tls_revocation_load(t->crl, k->identity, err));
  return clv_rpc_runtime_new(&o, &k->rpc, err);
}

clv_code cleave_kept_open(const clv_session_config *config, const clv_remote_spec *worker,
                          unsigned timeout_ms, cleave_kept_client **ret, clv_err *err) {
  CLV_AUTO(cleave_kept_closep) cleave_kept_client *k = NULL;
  unsigned connect_timeout_ms = (unsigned)config->limits.connect_timeout_ms;
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->timeout_ms = timeout_ms ? timeout_ms : connect_timeout_ms;
  CLV_TRY(open_runtime(k, &config->tls, err));
  const clv_rpc_channel_options o = {
      .target_address = worker->address,
      .expected_uri = worker->identity,
      .pem = {k->identity->ca_pem, k->identity->cert_pem, k->identity->key_pem}};
  CLV_TRY(clv_rpc_channel_new(k->rpc, &o, &k->channel, err));
  CLV_TRY(clv_rpc_channel_connect(k->channel, connect_timeout_ms, err));
  *ret = clv_steal(&k);
  return CLV_OK;
}

clv_code api_call_kept_method(clv_rpc_channel *channel, const clv_wire_kept_request *request,
                              unsigned timeout_ms, clv_wire_kept_reply *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0}, in = {0};
  CLV_TRY(clv_wire_kept_request_encode(request, &out, err));
  clv_code code =
      clv_rpc_call_unary(channel, CLV_METHOD_KEPT, out.data, out.len, timeout_ms, &in, err);
  if (code == CLV_DENIED) /* workers before 0.10 deny a method that they do not know */
    return clv_fail(err, code, "%s: no master in its `allow`, or the worker is older than 0.10",
                    err->text);
  CLV_TRY(code);
  return clv_wire_kept_reply_decode(&(clv_piece){in.data, in.len}, 1, ret, err);
}

static clv_code call(cleave_kept_client *k, const clv_wire_kept_request *request,
                     clv_wire_kept_reply *ret, clv_err *err) {
  return api_call_kept_method(k->channel, request, k->timeout_ms, ret, err);
}

static clv_code fail_bad_answer(const char *what, clv_err *err) {
  return clv_fail(err, CLV_BAD_ANSWER, "the worker's answer about kept files %s", what);
}

/* ---- listing files --------------------------------------------------------------------------- */

void cleave_kept_files_done(cleave_kept_files *l) {
  if (!l) return;
  free(l->files);
  *l = (cleave_kept_files){0};
}

static void copy_file(const clv_wire_kept_file *from, cleave_kept_file *to) {
  *to = (cleave_kept_file){.bytes = from->file_bytes,
                           .age_s = from->age_s,
                           .version = from->file_version,
                           .has_sha256 = from->has_sha256,
                           .sha256 = from->sha256};
  snprintf(to->name, sizeof to->name, "%s", from->file_name);
}

/* Appends the files of a reply to the list. Refuses names that do not ascend, because a worker
 * could otherwise send files without end. */
static clv_code append_files(const clv_wire_kept_reply *r, cleave_kept_files *l, clv_err *err) {
  cleave_kept_file *grown_files = realloc(l->files, (l->n + r->n_files + 1) * sizeof *grown_files);
  if (!grown_files) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a list of kept files");
  l->files = grown_files;
  for (uint32_t i = 0; i < r->n_files; i++) {
    if (l->n && strcmp(l->files[l->n - 1].name, r->files[i].file_name) >= 0)
      return fail_bad_answer("is not sorted by name", err);
    copy_file(&r->files[i], &l->files[l->n++]);
  }
  l->used_bytes = r->used_bytes;
  l->quota_bytes = r->quota_bytes;
  return r->has_more_files && !r->n_files ? fail_bad_answer("has no end", err) : CLV_OK;
}

clv_code cleave_kept_list(cleave_kept_client *k, const char *name, cleave_kept_files *ret,
                          clv_err *err) {
  CLV_AUTO(cleave_kept_files_done) cleave_kept_files l = {0};
  for (bool more = true; more;) {
    CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply r = {0};
    const clv_wire_kept_request q = {.kept_kind = CLV_KEPT_FILES,
                                     .file_name = name,
                                     .wants_digest = name != NULL,
                                     .after_file_name = l.n ? l.files[l.n - 1].name : NULL};
    CLV_TRY(call(k, &q, &r, err));
    CLV_TRY(append_files(&r, &l, err));
    more = r.has_more_files && !name;
  }
  *ret = l;
  l = (cleave_kept_files){0};
  return CLV_OK;
}

/* ---- reading and removing files -------------------------------------------------------------- */

/* Reads the first part of a range with one call. *ret_bytes: bytes that were read. */
static clv_code read_file_part(cleave_kept_client *k, const clv_wire_kept_request *q, void *data,
                               size_t *ret_bytes, uint64_t *ret_version, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply r = {0};
  CLV_TRY(call(k, q, &r, err));
  if (r.n_files != 1 || strcmp(r.files[0].file_name, q->file_name) != 0)
    return fail_bad_answer("is about another file", err);
  if (!r.data_bytes || r.data_bytes > q->range_length)
    return fail_bad_answer("has another length", err);
  if (q->file_version && q->file_version != r.files[0].file_version)
    return clv_fail(err, CLV_ABORTED,
                    "kept file '%s' changed while it was read: read it again from its beginning",
                    q->file_name);
  memcpy(data, r.data, r.data_bytes);
  *ret_bytes = r.data_bytes;
  *ret_version = r.files[0].file_version;
  return CLV_OK;
}

clv_code cleave_kept_read(cleave_kept_client *k, const char *name, uint64_t offset, void *data,
                          size_t length, uint64_t *version, clv_err *err) {
  for (size_t n_bytes_read = 0, n = 0; n_bytes_read < length; n_bytes_read += n) {
    const clv_wire_kept_request q = {
        .verb = CLV_KEPT_READ,
        .kept_kind = CLV_KEPT_FILES,
        .file_name = name,
        .range_offset = offset + n_bytes_read,
        .range_length = CLV_MIN(length - n_bytes_read, (size_t)CLV_WIRE_KEPT_BYTES),
        .file_version = *version};
    CLV_TRY(read_file_part(k, &q, (char *)data + n_bytes_read, &n, version, err));
  }
  return CLV_OK;
}

clv_code cleave_kept_remove(cleave_kept_client *k, const char *name, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply r = {0};
  const clv_wire_kept_request q = {
      .verb = CLV_KEPT_REMOVE, .kept_kind = CLV_KEPT_FILES, .file_name = name};
  return call(k, &q, &r, err);
}

clv_code cleave_kept_caches(cleave_kept_client *k, bool remove, clv_wire_kept_reply *ret,
                            clv_err *err) {
  const clv_wire_kept_request q = {.verb = remove ? CLV_KEPT_REMOVE : CLV_KEPT_LIST,
                                   .kept_kind = CLV_KEPT_CACHES};
  return call(k, &q, ret, err);
}
