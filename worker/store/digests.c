/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/digest_int.h"

#include <string.h>

/* Age of a file's last change after which another change sets another timestamp. A younger file
 * could change again within the resolution of the clock. */
enum { MIN_SETTLED_AGE_MS = 2000 };

clv_file_version clv_file_version_from_stat(const struct stat *st) {
  clv_file_version v;
  memset(&v, 0, sizeof v);
  v.dev = st->st_dev;
  v.ino = st->st_ino;
  v.bytes = st->st_size;
  v.mtime = st->st_mtim;
  v.ctime = st->st_ctim;
  return v;
}

/* Computes the FNV-1a hash of the fields. */
uint64_t clv_file_version_number(const struct stat *st) {
  const clv_file_version v = clv_file_version_from_stat(st);
  const uint8_t *bytes = (const uint8_t *)&v;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof v; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash ? hash : 1;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_same_version(const clv_file_version *a, const clv_file_version *b) {
  return a->dev == b->dev && a->ino == b->ino && a->bytes == b->bytes &&
         is_same_time(&a->mtime, &b->mtime) && is_same_time(&a->ctime, &b->ctime);
}

bool clv_known_digest_find(clv_known_digests *k, const struct stat *st, clv_sha256 *ret) {
  const clv_file_version v = clv_file_version_from_stat(st);
  bool is_found = false;
  pthread_mutex_lock(&k->lock);
  for (size_t i = 0; i < CLV_MIN(k->n_added, (size_t)CLV_MAX_KNOWN_DIGESTS) && !is_found; i++) {
    is_found = is_same_version(&k->entries[i].version, &v);
    if (is_found) *ret = k->entries[i].sha256;
  }
  pthread_mutex_unlock(&k->lock);
  return is_found;
}

void clv_known_digest_add(clv_known_digests *k, const struct stat *st, const clv_sha256 *sha256) {
  pthread_mutex_lock(&k->lock);
  size_t at = k->n_added++ % CLV_MAX_KNOWN_DIGESTS;
  k->entries[at].version = clv_file_version_from_stat(st);
  k->entries[at].sha256 = *sha256;
  pthread_mutex_unlock(&k->lock);
}

/* True if any later change of the file will have another timestamp. */
static bool is_settled(const struct stat *st) {
  return clv_wall_ms() >= (uint64_t)st->st_ctim.tv_sec * 1000 + MIN_SETTLED_AGE_MS;
}

clv_code clv_known_digest_find_or_hash(clv_known_digests *k, int fd,
                                       const clv_cancel_hook *cancel_hook, const char *label,
                                       clv_sha256 *ret, uint64_t *ret_bytes, clv_err *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_DATA_LOSS, "%s: cannot be read", label);
  *ret_bytes = (uint64_t)st.st_size;
  if (clv_known_digest_find(k, &st, ret)) return CLV_OK;
  CLV_TRY(clv_sha256_fd(fd, *ret_bytes, cancel_hook, label, ret, err));
  clv_log(CLV_LOG_DEBUG, "hashed %s", label);
  if (is_settled(&st)) clv_known_digest_add(k, &st, ret);
  return CLV_OK;
}
