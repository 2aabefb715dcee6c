/* SPDX-License-Identifier: Apache-2.0
 *
 * Orphans: files at workers that no checkpoint needs any more. A file is written to kept.orphans
 * before the manifest that lists it is changed or deleted, and is dropped from kept.orphans when
 * its worker has removed it. So the master forgets no file after a crash, or while a worker cannot
 * be reached.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/checkpoints/checkpoints_int.h"

enum { MAX_ORPHANS_FILE_BYTES = 16 << 20 };

void clv_orphans_done(clv_orphans *o) {
  if (!o) return;
  for (size_t i = 0; i < o->n; i++) free(o->list[i].keeper_identity);
  free(o->list);
  *o = (clv_orphans){0};
}

/* ---- the file kept.orphans ------------------------------------------------------------------- */

static void append_orphan_line(const clv_orphan *o, clv_bytes *out) {
  clv_bytes_printf(out, "%s %llu %s\n", o->kept_file_name, (unsigned long long)o->bytes,
                   o->keeper_identity);
}

static clv_code add_orphan(clv_orphans *l, const char *kept_file_name, uint64_t bytes,
                           const char *keeper_identity, clv_err *err) {
  clv_orphan *grown_list = reallocarray(l->list, l->n + 1, sizeof *grown_list);
  if (!grown_list) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  l->list = grown_list;
  clv_orphan *o = &grown_list[l->n];
  *o = (clv_orphan){.bytes = bytes};
  snprintf(o->kept_file_name, sizeof o->kept_file_name, "%s", kept_file_name);
  CLV_TRY(clv_strdup(keeper_identity, &o->keeper_identity, err));
  l->n++;
  return CLV_OK;
}

/* Parses a line of kept.orphans, without its line end. Accepts only the bytes that
 * append_orphan_line writes. */
static bool parse_orphan_line(const char *line, size_t len, clv_orphans *l, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes line_copy = {0}, rewritten_line = {0};
  char *remaining_text, *kept_file_name, *bytes_text, *end;
  clv_bytes_add(&line_copy, line, len);
  if (line_copy.failed || strlen(line_copy.data) != len) return false;
  remaining_text = line_copy.data;
  kept_file_name = strsep(&remaining_text, " ");
  bytes_text = strsep(&remaining_text, " ");
  if (!bytes_text || !remaining_text || !remaining_text[0] || !clv_is_file_name(kept_file_name))
    return false;
  unsigned long long bytes = strtoull(bytes_text, &end, 10);
  if (bytes > INT64_MAX || add_orphan(l, kept_file_name, bytes, remaining_text, err) != CLV_OK)
    return false;
  append_orphan_line(&l->list[l->n - 1], &rewritten_line);
  return !rewritten_line.failed && rewritten_line.len == len + 1 &&
         memcmp(rewritten_line.data, line, len) == 0;
}

clv_code clv_orphans_parse(const char *text, size_t len, const char *label, clv_orphans *ret,
                           clv_err *err) {
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0};
  for (size_t at = 0, n; at < len; at += n + 1) {
    const char *end = memchr(text + at, '\n', len - at);
    n = end ? (size_t)(end - text) - at : len - at;
    if (!end || !parse_orphan_line(text + at, n, &l, err))
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s: damaged: line %zu is not a file name, a number of bytes and an identity",
                      label, l.n + 1);
  }
  *ret = l;
  l = (clv_orphans){0};
  return CLV_OK;
}

static clv_code make_orphans_file_path(const char *run_dir, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/" CLV_ORPHANS_FILE, run_dir);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_orphans_read(const char *run_dir, clv_orphans *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  *ret = (clv_orphans){0};
  CLV_TRY(make_orphans_file_path(run_dir, &path, err));
  clv_code code = clv_file_read(path.data, MAX_ORPHANS_FILE_BYTES, &text, err);
  if (code != CLV_OK) return code == CLV_NOT_FOUND ? CLV_OK : code;
  return clv_orphans_parse(text.data, text.len, path.data, ret, err);
}

static clv_code write_orphans(const char *run_dir, const clv_orphans *l, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  CLV_TRY(make_orphans_file_path(run_dir, &path, err));
  for (size_t i = 0; i < l->n; i++) append_orphan_line(&l->list[i], &text);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (l->n) return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
  (void)!unlink(path.data);
  return CLV_OK;
}

static bool is_listed(const clv_orphans *l, const char *kept_file_name,
                      const char *keeper_identity) {
  for (size_t i = 0; i < l->n; i++)
    if (strcmp(l->list[i].kept_file_name, kept_file_name) == 0 &&
        strcmp(l->list[i].keeper_identity, keeper_identity) == 0)
      return true;
  return false;
}

clv_code clv_orphans_add_manifest_files(const char *run_dir, const clv_manifest *m, clv_err *err) {
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0};
  CLV_TRY(clv_orphans_read(run_dir, &l, err));
  size_t n_before = l.n;
  for (size_t i = 0; i < m->n_files; i++) {
    const clv_manifest_file *f = &m->files[i];
    if (f->keeper_identity && !is_listed(&l, f->kept_file_name, f->keeper_identity))
      CLV_TRY(add_orphan(&l, f->kept_file_name, f->bytes, f->keeper_identity, err));
  }
  return l.n == n_before ? CLV_OK : write_orphans(run_dir, &l, err);
}

clv_code clv_checkpoint_abandon(const char *run_dir, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  if (clv_checkpoint_read_manifest(run_dir, step, &m, NULL) == CLV_OK)
    CLV_TRY(clv_orphans_add_manifest_files(run_dir, &m, err));
  return clv_checkpoint_remove(run_dir, step, err);
}

/* ---- removing orphans at workers ------------------------------------------------------------- */

/* Lists the files at workers that the checkpoints of a run folder need. */
static clv_code list_needed_files(const char *run_dir, clv_orphans *ret, clv_err *err) {
  CLV_AUTO(clv_freep) uint64_t *steps = NULL;
  size_t n = 0;
  CLV_TRY(clv_checkpoint_list_steps(run_dir, &steps, &n, err));
  for (size_t i = 0; i < n; i++) {
    CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
    if (clv_checkpoint_read_manifest(run_dir, steps[i], &m, NULL) != CLV_OK) continue;
    for (size_t k = 0; k < m.n_files; k++)
      if (m.files[k].keeper_identity)
        CLV_TRY(add_orphan(ret, m.files[k].kept_file_name, m.files[k].bytes,
                           m.files[k].keeper_identity, err));
  }
  return CLV_OK;
}

/* Removes one file of kept.orphans at its worker, unless a checkpoint still needs the file. Returns
 * false if the file has to stay in kept.orphans. */
static bool remove_orphan_file(clv_stores *s, const clv_orphans *needed_files, const clv_orphan *o,
                               clv_orphan_report_fn *report, void *user, clv_err *reason) {
  if (is_listed(needed_files, o->kept_file_name, o->keeper_identity)) return false;
  bool is_removed =
      clv_stores_remove_file(s, o->keeper_identity, o->kept_file_name, reason) == CLV_OK;
  report(user, o, is_removed ? NULL : reason);
  return is_removed;
}

clv_code clv_orphans_remove_files(const char *run_dir, clv_stores *s, clv_orphan_report_fn *report,
                                  void *user, clv_err *err) {
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0}, needed_files = {0};
  clv_code first_code = CLV_OK;
  size_t n_remaining = 0;
  CLV_TRY(clv_orphans_read(run_dir, &l, err));
  if (!l.n) return CLV_OK;
  CLV_TRY(list_needed_files(run_dir, &needed_files, err));
  for (size_t i = 0; i < l.n; i++) {
    clv_err reason = {0};
    bool is_removed = remove_orphan_file(s, &needed_files, &l.list[i], report, user, &reason);
    if (!is_removed && reason.code != CLV_OK && first_code == CLV_OK)
      first_code = clv_fail(err, reason.code, "%s", reason.text);
    const clv_orphan o = l.list[i];
    l.list[i] = l.list[n_remaining];
    l.list[n_remaining] = o;
    n_remaining += !is_removed;
  }
  const clv_orphans remaining_orphans = {.list = l.list, .n = n_remaining};
  clv_err write_err;
  if (n_remaining < l.n && write_orphans(run_dir, &remaining_orphans, &write_err) != CLV_OK &&
      first_code == CLV_OK)
    return clv_fail(err, write_err.code, "%s", write_err.text);
  return first_code;
}
