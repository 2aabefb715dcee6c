/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of state: STATE_DIR/states/SHA-256 OF THE IDENTITY/NAME.safetensors. What is there is what
 * counts: the quota is held against the folder as it is, so it holds after a restart as before. The
 * file `identity` beside them is for whoever looks after the disk.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/store/store.h"

enum { LOCKS = 64, BLOCK = 4096 };

#define SUFFIX ".safetensors"

struct clv_states {
  char *dir;
  pthread_mutex_t locks[LOCKS]; /* of the folders of identities, by the first byte of each */
};

/* Whose files they are, locked from begin to done. */
typedef struct owner {
  clv_states *s;
  pthread_mutex_t *lock;
  clv_bytes dir;
} owner;

static void owner_done(owner *o) {
  if (o->lock) pthread_mutex_unlock(o->lock);
  clv_bytes_done(&o->dir);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Whoever asks has been told so already: what is no name of a file goes no further than this. */
static clv_code check_name(const char *name, clv_err *err) {
  if (clv_is_file_name(name)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the name of a file of state is 1..%d of [A-Za-z0-9._-], no dot first",
                  CLV_FILE_NAME);
}

static clv_code path_of(const char *dir, const char *name, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/%s" SUFFIX, dir, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static bool ends_with(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);
  return n > m && strcmp(name + n - m, end) == 0;
}

static clv_code begin(clv_states *s, const char *identity, const char *name, owner *o,
                      clv_err *err) {
  clv_sha256 digest;
  char hex[65];
  CLV_TRY(check_name(name, err));
  CLV_TRY(clv_sha256_of(identity, strlen(identity), &digest, err));
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(&o->dir, "%s/%s", s->dir, hex);
  if (o->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  o->s = s;
  o->lock = &s->locks[digest.bytes[0] % LOCKS];
  pthread_mutex_lock(o->lock);
  return CLV_OK;
}

/* ---- what an identity has -------------------------------------------------------------------- */

static uint64_t on_disk(uint64_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

static uint64_t size_of(const char *path) {
  struct stat at;
  return lstat(path, &at) == 0 && S_ISREG(at.st_mode) ? on_disk((uint64_t)at.st_size) : 0;
}

typedef void each_file(const char *path, const char *name, void *user);

static void walk(const char *dir, each_file *each, void *user) {
  DIR *d = opendir(dir);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d)) != NULL;) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    clv_bytes_printf(&path, "%s/%s", dir, e->d_name);
    if (e->d_name[0] != '.' && !path.failed) each(path.data, e->d_name, user);
  }
  closedir(d);
}

static void add_size(const char *path, const char *name, void *user) {
  if (ends_with(name, SUFFIX)) *(uint64_t *)user += size_of(path);
}

/* One that is written again makes way. */
static clv_code check_quota(const owner *o, const char *path, uint64_t bytes, uint64_t most,
                            clv_err *err) {
  uint64_t used = 0;
  walk(o->dir.data, add_size, &used);
  used -= CLV_MIN(used, size_of(path));
  if (used + on_disk(bytes) <= most) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "%llu bytes more exceed the quota of files of state of this identity: %llu in "
                  "use, the limit is %llu; raise allow[].state_bytes in worker.yaml",
                  (unsigned long long)on_disk(bytes), (unsigned long long)used,
                  (unsigned long long)most);
}

static clv_code make_folder(const owner *o, const char *identity, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, line = {0};
  if (mkdir(o->dir.data, 0700) != 0)
    return errno == EEXIST ? CLV_OK
                           : clv_fail(err, CLV_UNAVAILABLE, "%s: %s", o->dir.data, strerror(errno));
  clv_bytes_printf(&path, "%s/identity", o->dir.data);
  clv_bytes_printf(&line, "%s\n", identity);
  if (path.failed || line.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_write_durable(path.data, line.data, line.len, 0600, err));
  return clv_file_sync_folder(o->dir.data, err);
}

/* ---- outward --------------------------------------------------------------------------------- */

clv_code clv_states_save(clv_states *s, const char *identity, uint64_t most, const char *name,
                         const clv_weights_tensor *list, size_t n, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(owner_done) owner o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  uint64_t bytes;
  CLV_TRY(clv_weights_size(list, n, &bytes, err));
  CLV_TRY(begin(s, identity, name, &o, err));
  CLV_TRY(path_of(o.dir.data, name, &path, err));
  CLV_TRY(check_quota(&o, path.data, bytes, most, err));
  CLV_TRY(make_folder(&o, identity, err));
  return clv_weights_write(path.data, list, n, NULL, 0, ret_digest, ret_bytes, err);
}

static clv_code no_file(const char *name, clv_err *err) {
  return clv_fail(err, CLV_NOT_FOUND, "no file of state '%s' of this identity is here", name);
}

clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(owner_done) owner o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, label = {0};
  CLV_TRY(begin(s, identity, name, &o, err));
  CLV_TRY(path_of(o.dir.data, name, &path, err));
  clv_bytes_printf(&label, "file of state '%s'", name);
  if (label.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_weights_open_as(path.data, label.data, max_bytes, ret, err);
  return code == CLV_NOT_FOUND ? no_file(name, err) : code;
}

clv_code clv_states_remove(clv_states *s, const char *identity, const char *name, clv_err *err) {
  CLV_AUTO(owner_done) owner o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(begin(s, identity, name, &o, err));
  CLV_TRY(path_of(o.dir.data, name, &path, err));
  if (unlink(path.data) == 0) return clv_file_sync_folder(path.data, err);
  if (errno == ENOENT || errno == ENOTDIR) return no_file(name, err);
  return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
}

/* What a process that died was writing. */
static void remove_unfinished(const char *path, const char *name, void *user) {
  (void)user;
  if (ends_with(name, ".tmp")) unlink(path);
}

static void tidy(const char *path, const char *name, void *user) {
  (void)name;
  walk(path, remove_unfinished, user);
}

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_states *s;
  clv_bytes_printf(&path, "%s/states", state_dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (mkdir(path.data, 0700) != 0 && errno != EEXIST)
    return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  for (size_t i = 0; i < LOCKS; i++) pthread_mutex_init(&s->locks[i], NULL);
  s->dir = path.data;
  path = (clv_bytes){0};
  walk(s->dir, tidy, NULL);
  *ret = s;
  return CLV_OK;
}

void clv_states_free(clv_states *s) {
  if (!s) return;
  for (size_t i = 0; i < LOCKS; i++) pthread_mutex_destroy(&s->locks[i]);
  free(s->dir);
  free(s);
}
