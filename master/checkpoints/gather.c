/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetching the files of a checkpoint that are at workers. At any moment each file of the checkpoint
 * is complete at the place that the manifest names: the manifest changes after the fetched file is
 * durable. From then on the worker's copy is an orphan: the master removes it later.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/checkpoints/checkpoints_int.h"

/* A file that is being fetched from a worker. */
typedef struct part_file {
  clv_bytes path; /* path of the temporary file NAME.part */
  int fd;
  uint64_t n_bytes; /* number of bytes of the file that were fetched, now or by an earlier call */
} part_file;

static void part_file_done(part_file *p) {
  clv_checkpoints_close_fdp(&p->fd);
  clv_bytes_done(&p->path);
}

static clv_code fail_part_file(const part_file *p, const char *operation, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "%s: %s: %s", p->path.data, operation, strerror(errno));
}

/* Opens NAME.part. Keeps the bytes that an earlier, interrupted fetch has left in this file,
 * rounded down to a multiple of the range size. */
static clv_code open_part(const char *folder, const clv_manifest_file *f, part_file *p,
                          clv_err *err) {
  struct stat st;
  clv_bytes_printf(&p->path, "%s/%s.part", folder, f->name);
  if (p->path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  p->fd = open(p->path.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (p->fd < 0 || fstat(p->fd, &st) != 0) return fail_part_file(p, "open", err);
  uint64_t size = (uint64_t)st.st_size;
  p->n_bytes = size > f->bytes ? 0 : size - size % CLV_CHECKPOINTS_RANGE_BYTES;
  return CLV_OK;
}

static clv_code append_to_part(part_file *p, const void *data, size_t len, clv_err *err) {
  for (size_t n_written = 0; n_written < len;) {
    ssize_t n = pwrite(p->fd, (const char *)data + n_written, len - n_written,
                       (off_t)(p->n_bytes + n_written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_part_file(p, "write", err);
    n_written += (size_t)n;
  }
  p->n_bytes += len;
  return CLV_OK;
}

/* Fetches from the worker the bytes that NAME.part still lacks, appends them to NAME.part, and
 * compares the digest of the complete file with the manifest. */
static clv_code fetch_missing_bytes(clv_stores *s, const clv_manifest_file *f, part_file *p,
                                    clv_err *err) {
  CLV_AUTO(clv_stored_reader_closep) clv_stored_reader *r = NULL;
  const void *data;
  clv_sha256 digest;
  if (ftruncate(p->fd, (off_t)p->n_bytes) != 0) return fail_part_file(p, "truncate", err);
  CLV_TRY(clv_stored_reader_open(s, "", f, p->n_bytes, &r, err));
  for (size_t n = 1; n;) {
    CLV_TRY(clv_stored_reader_next(r, &data, &n, err));
    CLV_TRY(append_to_part(p, data, n, err));
  }
  if (fsync(p->fd) != 0) return fail_part_file(p, "fsync", err);
  CLV_TRY(clv_sha256_fd(p->fd, f->bytes, NULL, p->path.data, &digest, err));
  return clv_checkpoints_compare_digest(&digest, f, err);
}

/* Fetches a file from its worker to the checkpoint's folder. If the bytes that an earlier fetch has
 * left are damaged, fetches the file again from its begin. */
static clv_code fetch_file(clv_stores *s, const char *folder, const clv_manifest_file *f,
                           clv_err *err) {
  CLV_AUTO(part_file_done) part_file p = {.fd = -1};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(open_part(folder, f, &p, err));
  bool continues_earlier_fetch = p.n_bytes > 0;
  clv_code code = fetch_missing_bytes(s, f, &p, err);
  if (code == CLV_DATA_LOSS && continues_earlier_fetch) {
    p.n_bytes = 0;
    code = fetch_missing_bytes(s, f, &p, err);
  }
  if (code == CLV_DATA_LOSS) unlink(p.path.data);
  CLV_TRY(code);
  clv_bytes_printf(&path, "%s/%s", folder, f->name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (rename(p.path.data, path.data) != 0) return fail_part_file(&p, "rename", err);
  return clv_file_sync_folder(path.data, err);
}

/* Fetches a file, and then lists it in the manifest as a file in the folder. On success
 * f->keeper_identity and f->kept_file_name are NULL; the caller frees the two strings that were
 * there. */
static clv_code gather_file(const char *run_dir, const char *folder, clv_manifest *m,
                            clv_manifest_file *f, clv_stores *s, clv_err *err) {
  CLV_TRY(fetch_file(s, folder, f, err));
  CLV_TRY(clv_orphans_add_manifest_files(run_dir, &(clv_manifest){.files = f, .n_files = 1}, err));
  const clv_manifest_file file_before = *f;
  f->keeper_identity = f->kept_file_name = NULL;
  clv_code code = clv_manifest_write(folder, m, err);
  if (code != CLV_OK) *f = file_before;
  return code;
}

clv_code clv_checkpoint_gather(const char *run_dir, uint64_t step, clv_stores *s,
                               clv_gather_report_fn *report, void *user, clv_err *err) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0};
  clv_code first_code = CLV_OK;
  clv_err reason;
  CLV_TRY(clv_checkpoint_read_manifest(run_dir, step, &m, err));
  clv_bytes_printf(&folder, "%s/checkpoint-%llu", run_dir, (unsigned long long)step);
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  for (size_t i = 0; i < m.n_files; i++) {
    if (!m.files[i].keeper_identity) continue;
    const clv_manifest_file file_before = m.files[i];
    clv_code code = gather_file(run_dir, folder.data, &m, &m.files[i], s, &reason);
    report(user, &file_before, code == CLV_OK ? NULL : &reason);
    if (code == CLV_OK) {
      free(file_before.keeper_identity);
      free(file_before.kept_file_name);
    }
    if (code != CLV_OK && first_code == CLV_OK) first_code = clv_fail(err, code, "%s", reason.text);
    if (code == CLV_CANCELLED) break;
  }
  return first_code;
}
