/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of a frozen front at a worker: the worker of the second stage keeps the outputs of a
 * first stage that does not learn. clv_run_begin_cache derives the cache's key and finds the rows
 * of an earlier attempt; clv_run_end_cache deletes the cache. `train` calls both.
 */
#include <stdio.h>

#include "master/run/run_int.h"

static clv_code add_file_stamps(const clv_session_config *c, clv_bytes *lines, clv_err *err) {
  for (size_t i = 0; i < c->data.train.n; i++)
    CLV_TRY(clv_data_list_file_stamps(c->data.train.items[i], lines, err));
  if (c->data.tokenizer.file)
    CLV_TRY(clv_data_list_file_stamps(c->data.tokenizer.file, lines, err));
  return CLV_OK;
}

/* Derives the secret of the cache from everything on which the cached rows depend: the session, its
 * files, the secret of the run, the CPU and its libraries. If one of these changes, the secret
 * changes, and the run does not use the rows of an earlier attempt. */
static clv_code derive_cache_secret(const clv_run *r, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes public_text = {0}, lines = {0};
  const clv_backend *cpu = clv_backend_cpu();
  clv_sha256 session_digest;
  char session_digest_hex[65];
  CLV_TRY(clv_run_write_public_session(r->config, &public_text, &session_digest, err));
  clv_sha256_hex(&session_digest, session_digest_hex);
  clv_bytes_printf(&lines, "%s\n%s\n%s\n", session_digest_hex, clv_backend_isa(cpu),
                   clv_backend_libraries(cpu));
  CLV_TRY(add_file_stamps(r->config, &lines, err));
  if (lines.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_hmac_sha256(&r->secret, lines.data, lines.len, ret, err);
}

clv_code clv_run_begin_cache(clv_run *r, clv_err *err) {
  clv_sha256 secret;
  const char *worker_name;
  uint64_t n_deleted;
  char text[200];
  if (!r->blueprint->has_cache) return CLV_OK;
  CLV_TRY(derive_cache_secret(r, &secret, err));
  CLV_TRY(
      clv_trainer_begin_cache(r->trainer, r->data.train, &secret, &worker_name, &n_deleted, err));
  if (n_deleted) {
    snprintf(
        text, sizeof text,
        "the worker has deleted %llu cached rows of version 0.7, which it kept by their positions "
        "in the files: all rows are sent again",
        (unsigned long long)n_deleted);
    clv_run_warn(r, CLV_LOG_WARN, "cache", text);
  }
  if (!worker_name) return CLV_OK;
  snprintf(text, sizeof text, "worker '%s' has the cached rows of all records: none is sent again",
           worker_name);
  clv_run_warn(r, CLV_LOG_INFO, "cache", text);
  return CLV_OK;
}

void clv_run_end_cache(clv_run *r) {
  const char *worker_name = NULL;
  uint64_t n_deleted_rows = 0;
  clv_err reason;
  char text[400];
  clv_code code = r->trainer
                      ? clv_trainer_end_cache(r->trainer, &worker_name, &n_deleted_rows, &reason)
                      : CLV_OK;
  if (!worker_name) return;
  if (code != CLV_OK) {
    snprintf(text, sizeof text,
             "cannot ask worker '%s' to delete its cache (%.120s): it will when the cache "
             "expires, or upon `cleave-master cache %.100s --delete`",
             worker_name, reason.text, r->config->file);
    clv_run_warn(r, CLV_LOG_WARN, "cache", text);
    return;
  }
  snprintf(text, sizeof text, "worker '%s' has deleted its cache of %llu row%s", worker_name,
           (unsigned long long)n_deleted_rows, CLV_S(n_deleted_rows));
  clv_reporter_notice(r->reporter, text, NULL);
}
