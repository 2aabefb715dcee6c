/* SPDX-License-Identifier: Apache-2.0
 *
 * The command cache: lists the caches of this identity on the workers' disks, or deletes them.
 */
#include <stdio.h>

#include "common/net/wire/wire.h"
#include "master/watch/watch.h"

static void append_json(const char *worker, const clv_wire_cache_status *s, bool is_deleted,
                        clv_bytes *out) {
  char key[65];
  clv_sha256_hex(&s->cache_key, key);
  clv_bytes_puts(out, "{\"worker\":");
  clv_bytes_add_json(out, worker);
  clv_bytes_printf(out,
                   ",\"key\":\"%s\",\"records\":%llu,\"rows\":%llu,\"row_bytes\":%llu,"
                   "\"disk_bytes\":%llu,\"unused_s\":%llu,\"expires_s\":%llu,\"deleted\":%s}\n",
                   key, (unsigned long long)s->n_records, (unsigned long long)s->n_rows,
                   (unsigned long long)s->row_bytes, (unsigned long long)s->disk_bytes,
                   (unsigned long long)s->unused_s, (unsigned long long)s->expires_in_s,
                   is_deleted ? "true" : "false");
}

static void append_text_line(const char *worker, const clv_wire_cache_status *s, bool is_deleted,
                             clv_bytes *out) {
  char key[65], size_text[24];
  clv_sha256_hex(&s->cache_key, key);
  clv_bytes_printf(out, "%s  cache %.16s  %llu of %llu rows  %s  unused for %llu s", worker, key,
                   (unsigned long long)s->n_rows, (unsigned long long)s->n_records,
                   clv_format_size(s->disk_bytes, size_text, sizeof size_text),
                   (unsigned long long)s->unused_s);
  if (is_deleted)
    clv_bytes_puts(out, "  deleted\n");
  else
    clv_bytes_printf(out, "  deleted in %llu s unless it is used\n",
                     (unsigned long long)s->expires_in_s);
}

/* Appends a line for each cache of a worker. */
static clv_code show_worker_caches(const clv_session_config *config, const clv_remote_spec *w,
                                   const clv_run_options *o, clv_bytes *out, clv_err *err) {
  CLV_AUTO(cleave_kept_closep) cleave_kept_client *kept = NULL;
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply reply = {0};
  CLV_TRY(cleave_kept_open(config, w, 0, &kept, err));
  CLV_TRY(cleave_kept_caches(kept, o->delete_caches, &reply, err));
  for (uint32_t i = 0; i < reply.n_caches; i++)
    (o->json ? append_json : append_text_line)(w->name, &reply.caches[i], o->delete_caches, out);
  if (!reply.n_caches && !o->json) clv_bytes_printf(out, "%s  no cache\n", w->name);
  return CLV_OK;
}

clv_exit_code clv_show_caches(const clv_session_config *config, const clv_run_options *o) {
  clv_exit_code result = CLV_EXIT_OK;
  clv_err err;
  for (size_t i = 0; i < config->n_workers; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    const clv_remote_spec *w = &config->workers[i];
    if (show_worker_caches(config, w, o, &text, &err) == CLV_OK) {
      fputs(text.data ? text.data : "", stdout);
      continue;
    }
    clv_err_prefix(&err, "worker %s", w->name);
    result = (clv_exit_code)clv_exit_report(CLV_EXIT_CONNECT, &err);
  }
  return result;
}
