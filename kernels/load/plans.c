/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores plans of convolutions (clv_plan_store) as files in a folder. A file's name is the digest
 * of its plan's key. Its first line repeats that digest and adds the digest of the text that
 * follows.
 *
 * The files are not trusted: the folder and each file must belong to this user and be inaccessible
 * to others. A file that is damaged, too large or of another format is ignored and rewritten.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/load/load.h"

enum { MAX_PLAN_BYTES = 256 << 10, MAX_PLANS = 4096, MAX_PLAN_LINE = 160 };

static const char format_name[] = "cleave-plan 1";

/* ---- the file of one plan -------------------------------------------------------------------- */

/* Writes the first line of a plan's file. Returns its length. */
static int format_header(const clv_sha256 *key_digest, const clv_sha256 *text_digest,
                         char ret[MAX_PLAN_LINE]) {
  char key_hex[65], text_hex[65];
  clv_sha256_hex(key_digest, key_hex);
  clv_sha256_hex(text_digest, text_hex);
  return snprintf(ret, MAX_PLAN_LINE, "%s %s %s\n", format_name, key_hex, text_hex);
}

clv_code clv_plan_parse(const char *data, size_t n, const clv_sha256 *key_digest, const char **ret,
                        size_t *ret_n, clv_err *err) {
  char line[MAX_PLAN_LINE];
  clv_sha256 digest;
  size_t header_len = sizeof format_name + 65 + 65;
  if (n <= header_len || n > MAX_PLAN_BYTES)
    return clv_fail(err, CLV_INVALID, "the file has %zu bytes, outside the range up to %d", n,
                    MAX_PLAN_BYTES);
  CLV_TRY(clv_sha256_of(data + header_len, n - header_len, &digest, err));
  if (format_header(key_digest, &digest, line) != (int)header_len ||
      memcmp(data, line, header_len) != 0)
    return clv_fail(err, CLV_INVALID, "the file is of another version or plan, or damaged");
  *ret = data + header_len;
  *ret_n = n - header_len;
  return CLV_OK;
}

static bool is_private_file(const struct stat *s, bool is_folder) {
  return (is_folder ? S_ISDIR(s->st_mode) : S_ISREG(s->st_mode)) && s->st_uid == geteuid() &&
         !(s->st_mode & (S_IRWXG | S_IRWXO));
}

static clv_code read_all(int fd, clv_bytes *ret, clv_err *err) {
  char buffer[4096];
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0 && ret->len <= MAX_PLAN_BYTES)
    clv_bytes_add(ret, buffer, (size_t)n);
  if (n < 0) return clv_fail(err, CLV_INVALID, "%s", strerror(errno));
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for the file") : CLV_OK;
}

/* Reads the file `name` of the folder into ret. CLV_NOT_FOUND: there is no such file. */
static clv_code read_file(int folder_fd, const char *name, clv_bytes *ret, clv_err *err) {
  struct stat s;
  int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return clv_fail(err, CLV_NOT_FOUND, "no such file");
  if (fd < 0) return clv_fail(err, CLV_INVALID, "%s", strerror(errno));
  clv_code code =
      fstat(fd, &s) == 0 && is_private_file(&s, false)
          ? read_all(fd, ret, err)
          : clv_fail(err, CLV_INVALID, "the file must belong to this user with mode 0600");
  close(fd);
  return code;
}

static bool write_all(int fd, const char *data, size_t n) {
  while (n) {
    ssize_t n_written = write(fd, data, n);
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written <= 0) return false;
    data += n_written;
    n -= (size_t)n_written;
  }
  return true;
}

/* Writes a file under a temporary name and then renames it, so that it is complete or absent. */
static bool write_file(int folder_fd, const char *name, const clv_bytes *data) {
  char temp_name[80];
  snprintf(temp_name, sizeof temp_name, ".%s", name);
  unlinkat(folder_fd, temp_name, 0);
  int fd = openat(folder_fd, temp_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  bool is_written = write_all(fd, data->data, data->len);
  is_written = close(fd) == 0 && is_written;
  is_written = is_written && renameat(folder_fd, temp_name, folder_fd, name) == 0;
  if (!is_written) unlinkat(folder_fd, temp_name, 0);
  return is_written;
}

/* ---- the folder of all plans ----------------------------------------------------------------- */

static struct {
  int folder_fd;
  size_t n_files; /* approximate number of files in the folder */
  char path[4096];
  clv_notifier notifier;
} folder_state = {.folder_fd = -1};

/* Computes the digest of `plan_key`, and the file name of the plan; false on failure. */
static bool compute_plan_name(const char *plan_key, clv_sha256 *ret, char name[65]) {
  clv_err err;
  if (clv_sha256_of(plan_key, strlen(plan_key), ret, &err) != CLV_OK) return false;
  clv_sha256_hex(ret, name);
  return true;
}

static bool find_plan(const char *plan_key, clv_bytes *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes data = {0};
  clv_sha256 key_digest;
  char name[65];
  const char *text;
  size_t n;
  clv_err err;
  if (!compute_plan_name(plan_key, &key_digest, name)) return false;
  clv_code code = read_file(folder_state.folder_fd, name, &data, &err);
  if (code == CLV_OK) code = clv_plan_parse(data.data, data.len, &key_digest, &text, &n, &err);
  if (code == CLV_OK) clv_bytes_add(ret, text, n);
  if (code != CLV_OK && code != CLV_NOT_FOUND)
    clv_notify(folder_state.notifier,
               "cuda.plans: ignoring the stored plan %s/%s and rebuilding it: %s",
               folder_state.path, name, err.text);
  return code == CLV_OK && !ret->failed;
}

static void store_plan(const char *plan_key, const char *text, size_t n) {
  CLV_AUTO(clv_bytes_done) clv_bytes data = {0};
  clv_sha256 key_digest, digest;
  char name[65], line[MAX_PLAN_LINE];
  clv_err err;
  if (n > MAX_PLAN_BYTES - MAX_PLAN_LINE || !compute_plan_name(plan_key, &key_digest, name) ||
      clv_sha256_of(text, n, &digest, &err) != CLV_OK ||
      __atomic_add_fetch(&folder_state.n_files, 1, __ATOMIC_RELAXED) > MAX_PLANS)
    return;
  format_header(&key_digest, &digest, line);
  clv_bytes_puts(&data, line);
  clv_bytes_add(&data, text, n);
  if (data.failed || write_file(folder_state.folder_fd, name, &data)) return;
  clv_notify(folder_state.notifier, "cuda.plans: cannot store the plan %s/%s: %s",
             folder_state.path, name, strerror(errno));
}

/* Returns the number of directory entries, which is about the number of plans. */
static size_t count_files(int folder_fd) {
  size_t n = 0;
  int listing_fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = listing_fd < 0 ? NULL : fdopendir(listing_fd);
  if (!d && listing_fd >= 0) close(listing_fd);
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}

const clv_plan_store *clv_plan_store_in_folder(const char *path, clv_notifier notifier) {
  static const clv_plan_store store = {.find = find_plan, .store = store_plan};
  struct stat s;
  folder_state.notifier = notifier;
  if (mkdir(path, 0700) < 0 && errno != EEXIST) {
    clv_notify(folder_state.notifier, "cuda.plans: storing no plans, cannot create %s: %s", path,
               strerror(errno));
    return NULL;
  }
  int folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_fd < 0 || fstat(folder_fd, &s) < 0 || !is_private_file(&s, true)) {
    clv_notify(folder_state.notifier,
               "cuda.plans: storing no plans: %s must be a folder of this user with mode 0700",
               path);
    if (folder_fd >= 0) close(folder_fd);
    return NULL;
  }
  if (folder_state.folder_fd >= 0) close(folder_state.folder_fd);
  folder_state.folder_fd = folder_fd;
  folder_state.n_files = count_files(folder_fd);
  snprintf(folder_state.path, sizeof folder_state.path, "%s", path);
  return &store;
}
