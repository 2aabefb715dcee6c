/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of files of state, and errors about files of state that are sent to masters.
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

clv_code clv_state_make_path(const char *dir, const char *name, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/%s" CLV_STATE_SUFFIX, dir, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_state_fail_missing(const char *name, clv_err *err) {
  return clv_fail(err, CLV_NOT_FOUND, "this identity has no file of state '%s'", name);
}

bool clv_state_parse_file_name(const char *file_name, char ret[CLV_FILE_NAME + 1]) {
  size_t len = strlen(file_name), suffix_len = strlen(CLV_STATE_SUFFIX);
  if (!clv_name_has_ending(file_name, CLV_STATE_SUFFIX) || len - suffix_len > CLV_FILE_NAME)
    return false;
  memcpy(ret, file_name, len - suffix_len);
  ret[len - suffix_len] = '\0';
  return clv_is_file_name(ret);
}

uint64_t clv_state_round_to_block(uint64_t bytes) {
  return (bytes + QUOTA_BLOCK_BYTES - 1) / QUOTA_BLOCK_BYTES * QUOTA_BLOCK_BYTES;
}

/* ---- errors of the disk ---------------------------------------------------------------------- */

/* Texts of disk errors for a master: the problem of the disk, and the next action. */
static const struct {
  int error_number; /* an errno */
  const char *disk_state, *action;
} disk_errors[] = {
    {ENOSPC, "the worker's disk is full", "free space there or remove kept files"},
    {EDQUOT, "the disk quota of the worker's user is used up", "raise it or remove kept files"},
    {EROFS, "the worker's disk is mounted read-only", "check it, and mount it for writing again"},
    {EIO, "the worker's disk reported an I/O error", "check it, or move state_dir to another disk"},
    {EACCES, "the worker may not write to its state_dir", "correct the owner of that folder"},
};

/* Appends the free space of the file system that `path` is on. */
static void add_free_space(const char *path, clv_bytes *out) {
  CLV_AUTO(clv_freep) char *dir = NULL;
  struct statvfs fs;
  char free_text[24], total_text[24];
  clv_err ignored_err;
  if (clv_strdup(path, &dir, &ignored_err) != CLV_OK) return;
  /* cut off the last part of the path until the rest exists */
  for (char *slash; statvfs(dir, &fs) != 0; *slash = '\0')
    if ((slash = strrchr(dir, '/')) == NULL || slash == dir) return;
  clv_bytes_printf(
      out, " (%s of %s are free)",
      clv_format_size((uint64_t)fs.f_bavail * fs.f_frsize, free_text, sizeof free_text),
      clv_format_size((uint64_t)fs.f_blocks * fs.f_frsize, total_text, sizeof total_text));
}

clv_code clv_state_fail_disk(const char *path, const char *name, int error_number, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes space = {0};
  size_t i = 0;
  while (i < CLV_COUNT(disk_errors) && disk_errors[i].error_number != error_number) i++;
  bool is_known = i < CLV_COUNT(disk_errors);
  add_free_space(path, &space);
  return clv_fail(
      err, error_number == ENOSPC || error_number == EDQUOT ? CLV_EXHAUSTED : CLV_UNAVAILABLE,
      "file of state '%s': %s%s: %s", name,
      is_known ? disk_errors[i].disk_state : strerror(error_number), space.data ? space.data : "",
      is_known ? disk_errors[i].action : "check the worker's disk");
}
