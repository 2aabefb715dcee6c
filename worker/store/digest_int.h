/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 digests of files on the worker's disk, which the process remembers.
 */
#ifndef CLEAVE_STORE_DIGEST_INT_H
#define CLEAVE_STORE_DIGEST_INT_H

#include <pthread.h>
#include <sys/stat.h>

#include "worker/store/store.h"

/* Identifies a version of a file, by fields of which at least one changes with every write. */
typedef struct clv_file_version {
  dev_t dev;
  ino_t ino;
  off_t bytes;
  struct timespec mtime, ctime;
} clv_file_version;

enum { CLV_MAX_KNOWN_DIGESTS = 256 };

/* Digests of the last CLV_MAX_KNOWN_DIGESTS files that were hashed. A new entry replaces the
 * oldest. Thread-safe. */
typedef struct clv_known_digests {
  pthread_mutex_t lock;
  struct {
    clv_file_version version;
    clv_sha256 sha256;
  } entries[CLV_MAX_KNOWN_DIGESTS];
  size_t n_added; /* number of entries ever added */
} clv_known_digests;

/* Returns the version of a file. */
clv_file_version clv_file_version_from_stat(const struct stat *st);
/* Returns a number that identifies this version of the file; never 0. Other versions of the file
 * have other numbers. */
uint64_t clv_file_version_number(const struct stat *st);

/* Finds the digest of the version `st` of a file. False: the digest is not known. */
bool clv_known_digest_find(clv_known_digests *k, const struct stat *st, clv_sha256 *ret);
/* Adds the digest of a file. The file must not be written again under its inode. */
void clv_known_digest_add(clv_known_digests *k, const struct stat *st, const clv_sha256 *sha256);
/* Returns the digest and the size of a file. Hashes the file if the digest is not known. label:
 * name of the file in messages. cancel_hook: may be NULL. CLV_DATA_LOSS: the file cannot be
 * read. */
clv_code clv_known_digest_find_or_hash(clv_known_digests *k, int fd,
                                       const clv_cancel_hook *cancel_hook, const char *label,
                                       clv_sha256 *ret, uint64_t *ret_bytes,
                                       clv_err *err) CLV_USE_RESULT;

#endif
