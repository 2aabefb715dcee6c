/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the policy of a host and checks its owner and its signature. Commands call clv_policy_find
 * before they connect to a worker. A policy with a wrong owner, mode, signature or text is an error
 * and is never ignored, because otherwise a user who can damage the policy could switch it off.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/net/tls/tls.h"
#include "master/egress/egress_int.h"

enum { MAX_POLICY_BYTES = 1 << 20 };

typedef struct policy_folder {
  const char *path;
  int fd;
} policy_folder;

static void policy_folder_done(policy_folder *f) {
  if (f->fd >= 0) close(f->fd);
}

static void fd_done(int *fd) {
  if (*fd >= 0) close(*fd);
}

static bool is_writable_by_root_only(const struct stat *st) {
  return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

static clv_code check_owner(const struct stat *st, const char *path, clv_err *err) {
  if (is_writable_by_root_only(st)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s must be owned by root and writable by no other user, but is owned by user %u "
                  "with mode %04o; fix: chown root:root and chmod go-w",
                  path, (unsigned)st->st_uid, (unsigned)(st->st_mode & 07777));
}

static clv_code fail_open(const char *path, clv_err *err) {
  struct stat st;
  const int error = errno;
  if (error == EACCES)
    return clv_fail(err, CLV_INVALID,
                    "%s: Permission denied; fix: chmod 644 for the file, 755 for its folder", path);
  if (error != ELOOP && error != ENOTDIR)
    return clv_fail(err, CLV_INVALID, "%s: %s", path, strerror(error));
  if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
    return clv_fail(err, CLV_INVALID, "%s is a symbolic link: put the file or folder itself there",
                    path);
  return clv_fail(err, CLV_INVALID, "%s is not a plain file or folder", path);
}

/* Opens the folder of the policy. ret->fd -1: there is no such folder. */
static clv_code open_folder(const char *path, policy_folder *ret, clv_err *err) {
  struct stat st;
  *ret = (policy_folder){.path = path, .fd = -1};
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return CLV_OK;
  if (fd < 0) return fail_open(path, err);
  ret->fd = fd;
  if (fstat(fd, &st) != 0) return fail_open(path, err);
  return CLV_OK;
}

static clv_code check_folder(const policy_folder *f, clv_err *err) {
  struct stat st;
  if (fstat(f->fd, &st) != 0) return fail_open(f->path, err);
  return check_owner(&st, f->path, err);
}

static clv_code read_all(int fd, const char *path, clv_bytes *ret, clv_err *err) {
  char chunk[8192];
  for (;;) {
    ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_open(path, err);
    if (n == 0) break;
    clv_bytes_add(ret, chunk, (size_t)n);
    if (ret->len > MAX_POLICY_BYTES)
      return clv_fail(err, CLV_INVALID, "%s: more than %d bytes", path, MAX_POLICY_BYTES);
  }
  clv_bytes_puts(ret, "");
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for %s", path) : CLV_OK;
}

/* Reads a file of the policy's folder. Opens it through the descriptor of the folder, whose owner
 * the caller has checked, so that no other user can exchange the folder in between. *ret_exists
 * false: there is no such file. */
static clv_code read_file(const policy_folder *f, const char *name, bool *ret_exists,
                          clv_bytes *ret, clv_err *err) {
  CLV_AUTO(fd_done) int fd = openat(f->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  char path[CLV_EGRESS_MAX_TEXT];
  struct stat st;
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  *ret_exists = fd >= 0 || errno != ENOENT;
  if (!*ret_exists) return CLV_OK;
  if (fd < 0 || fstat(fd, &st) != 0) return fail_open(path, err);
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a plain file", path);
  CLV_TRY(check_owner(&st, path, err));
  return read_all(fd, path, ret, err);
}

/* ---- the signature of the policy ------------------------------------------------------------- */

static clv_code verify_signature(const policy_folder *f, const clv_bytes *text,
                                 const clv_bytes *signature, clv_policy *p, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes ca = {0};
  char signer[CLV_TLS_SIGNER_LEN];
  bool exists;
  CLV_TRY(read_file(f, CLV_POLICY_CA, &exists, &ca, err));
  if (!exists)
    return clv_fail(err, CLV_INVALID, "%s/%s is missing: it says who may approve the policy",
                    f->path, CLV_POLICY_CA);
  const clv_tls_signed file = {.data = text->data,
                               .data_len = text->len,
                               .signature = signature->data,
                               .signature_len = signature->len,
                               .ca_pem = ca.data};
  if (clv_tls_check_signature(&file, signer, err) != CLV_OK) {
    clv_err_prefix(err, "%s/%s", f->path, CLV_POLICY_SIGNATURE);
    if (err) err->code = CLV_INVALID;
    return CLV_INVALID;
  }
  snprintf(p->approver, sizeof p->approver, "%s", signer);
  return CLV_OK;
}

/* Verifies the signature if there is one, no matter which user runs the command. needs_signature: a
 * missing signature is an error. */
static clv_code check_signature(const policy_folder *f, bool needs_signature, const clv_bytes *text,
                                clv_policy *p, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes signature = {0};
  bool exists;
  CLV_TRY(read_file(f, CLV_POLICY_SIGNATURE, &exists, &signature, err));
  if (exists) return verify_signature(f, text, &signature, p, err);
  if (!needs_signature) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s/%s is missing: root could write any policy, so a run as root needs one that "
                  "an approver has signed",
                  f->path, CLV_POLICY_SIGNATURE);
}

/* ---- opening the policy ---------------------------------------------------------------------- */

static clv_code fill_policy(const policy_folder *f, bool needs_signature, const clv_bytes *text,
                            clv_policy *p, clv_err *err) {
  char path[CLV_EGRESS_MAX_TEXT];
  clv_sha256 digest;
  snprintf(path, sizeof path, "%s/%s", f->path, CLV_POLICY_FILE);
  CLV_TRY(check_signature(f, needs_signature, text, p, err));
  CLV_TRY(clv_sha256_of(text->data, text->len, &digest, err));
  clv_sha256_hex(&digest, p->sha256);
  return clv_policy_config_parse(path, text->data, text->len, &p->config, err);
}

/* Fails if there is a signature without a policy, because then the policy was removed. */
static clv_code check_no_signature(const policy_folder *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes signature = {0};
  bool exists;
  CLV_TRY(read_file(f, CLV_POLICY_SIGNATURE, &exists, &signature, err));
  if (!exists) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s/%s exists, but %s does not: put the policy back, or remove its signature",
                  f->path, CLV_POLICY_SIGNATURE, CLV_POLICY_FILE);
}

clv_code clv_policy_open(const char *path, bool needs_signature, clv_policy **ret, clv_err *err) {
  CLV_AUTO(policy_folder_done) policy_folder f;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_policy_freep) clv_policy *p = NULL;
  bool exists;
  *ret = NULL;
  CLV_TRY(open_folder(path, &f, err));
  if (f.fd < 0) return CLV_OK;
  /* The folder is checked before the policy is read, because another user who may write to the
   * folder may have removed the policy. */
  CLV_TRY(check_folder(&f, err));
  CLV_TRY(read_file(&f, CLV_POLICY_FILE, &exists, &text, err));
  if (!exists) return check_no_signature(&f, err);
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  CLV_TRY(fill_policy(&f, needs_signature, &text, p, err));
  *ret = clv_steal(&p);
  return CLV_OK;
}

clv_code clv_policy_find(clv_policy **ret, clv_err *err) {
  return clv_policy_open(CLV_POLICY_FOLDER, geteuid() == 0 || getuid() == 0, ret, err);
}

void clv_policy_free(clv_policy *p) {
  if (!p) return;
  clv_policy_config_free(p->config);
  free(p);
}

void clv_policy_freep(clv_policy **p) { clv_policy_free(*p); }

const char *clv_policy_path(const clv_policy *p) { return p ? p->config->file : ""; }
const char *clv_policy_sha256(const clv_policy *p) { return p ? p->sha256 : ""; }
const char *clv_policy_approver(const clv_policy *p) { return p ? p->approver : ""; }
