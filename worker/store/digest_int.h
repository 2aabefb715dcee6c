/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests that the process knows of files on its disk.
 */
#ifndef CLEAVE_STORE_DIGEST_INT_H
#define CLEAVE_STORE_DIGEST_INT_H

#include <pthread.h>
#include <sys/stat.h>

#include "worker/store/store.h"

/* Identifies a version of a file: fields that change with every write. */
typedef struct clv_file_version {
  dev_t dev;
  ino_t ino;
  off_t bytes;
  struct timespec mtime, ctime;
} clv_file_version;

enum { CLV_KNOWN_DIGESTS = 256 };

/* Digests of the last CLV_KNOWN_DIGESTS files that were hashed. Thread-safe; n: number of entries
 * ever added. A new entry replaces the oldest. */
typedef struct clv_known_digests {
  pthread_mutex_t lock;
  struct {
    clv_file_version version;
    clv_sha256 sha256;
  } entries[CLV_KNOWN_DIGESTS];
  size_t n;
} clv_known_digests;

clv_file_version clv_file_version_of(const struct stat *st);
/* Returns a number that identifies this version of the file, never 0. Other versions of a file have
 * other numbers. */
uint64_t clv_file_version_number(const struct stat *st);

/* Finds the digest of a version of a file. False: it is not known. */
bool clv_known_digest_find(clv_known_digests *k, const struct stat *st, clv_sha256 *ret);
/* Adds a digest. Call for a file that will not be written again under its inode. */
void clv_known_digest_add(clv_known_digests *k, const struct stat *st, const clv_sha256 *sha256);
/* Returns the digest of a file, and its size. Hashes the file if the digest is not known.
 * CLV_DATA_LOSS: the file cannot be read; CLV_CANCELLED: `waiter` (NULL: no cancellation) has
 * left. */
clv_code clv_known_digest_of(clv_known_digests *k, int fd, const clv_cancel_hook *waiter,
                             const char *label, clv_sha256 *ret, uint64_t *ret_bytes,
                             clv_err *err) CLV_USE_RESULT;

#endif
