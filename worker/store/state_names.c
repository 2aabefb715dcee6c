/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of files of state, and the errors that peers get of them.
 */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "worker/store/states_int.h"

enum { QUOTA_BLOCK_BYTES = 4096 };

/* ---- names of files of state ----------------------------------------------------------------- */

clv_code clv_state_check_name(const char *name, clv_err *err) {
  if (clv_is_file_name(name)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the name of a file of state must be 1 to %d characters of [A-Za-z0-9._-], "
                  "without a leading dot",
                  CLV_FILE_NAME);
}

clv_code clv_state_path(const char *dir, const char *name, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/%s" CLV_STATE_SUFFIX, dir, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_state_fail_missing(const char *name, clv_err *err) {
  return clv_fail(err, CLV_NOT_FOUND, "this identity has no file of state '%s'", name);
}

bool clv_state_name_of(const char *file_name, char ret[CLV_FILE_NAME + 1]) {
  size_t len = strlen(file_name), suffix = strlen(CLV_STATE_SUFFIX);
  if (!clv_name_ends_with(file_name, CLV_STATE_SUFFIX) || len - suffix > CLV_FILE_NAME)
    return false;
  memcpy(ret, file_name, len - suffix);
  ret[len - suffix] = '\0';
  return clv_is_file_name(ret);
}

uint64_t clv_state_round_to_block(uint64_t bytes) {
  return (bytes + QUOTA_BLOCK_BYTES - 1) / QUOTA_BLOCK_BYTES * QUOTA_BLOCK_BYTES;
}

/* ---- errors of the disk ---------------------------------------------------------------------- */

/* Text of an error for a peer: the state of the disk, and what helps. */
static const struct {
  int error;
  const char *state, *action;
} disk_errors[] = {
    {ENOSPC, "the worker's disk is full", "free space there or remove kept files"},
    {EDQUOT, "the disk quota of the worker's user is used up", "raise it or remove kept files"},
    {EROFS, "the worker's disk is mounted read-only", "check it, and mount it for writing again"},
    {EIO, "the worker's disk reported an I/O error", "check it, or move state_dir to another disk"},
    {EACCES, "the worker may not write to its state_dir", "correct the owner of that folder"},
};

/* Appends the free space of the file system with the folder of `path`. */
static void add_free_space(const char *path, clv_bytes *out) {
  CLV_AUTO(clv_freep) char *dir = NULL;
  struct statvfs at;
  char available[24], total[24];
  clv_err ignored;
  if (clv_strdup(path, &dir, &ignored) != CLV_OK) return;
  /* the folder itself may be missing */
  for (char *slash; statvfs(dir, &at) != 0; *slash = '\0')
    if ((slash = strrchr(dir, '/')) == NULL || slash == dir) return;
  clv_bytes_printf(
      out, " (%s of %s are free)",
      clv_format_size((uint64_t)at.f_bavail * at.f_frsize, available, sizeof available),
      clv_format_size((uint64_t)at.f_blocks * at.f_frsize, total, sizeof total));
}

clv_code clv_state_fail_disk(const char *path, const char *name, int error, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes space = {0};
  size_t i = 0;
  while (i < CLV_COUNT(disk_errors) && disk_errors[i].error != error) i++;
  bool known = i < CLV_COUNT(disk_errors);
  add_free_space(path, &space);
  return clv_fail(err, error == ENOSPC || error == EDQUOT ? CLV_EXHAUSTED : CLV_UNAVAILABLE,
                  "file of state '%s': %s%s: %s", name,
                  known ? disk_errors[i].state : strerror(error), space.data ? space.data : "",
                  known ? disk_errors[i].action : "check the worker's disk");
}
