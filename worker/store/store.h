/* SPDX-License-Identifier: Apache-2.0
 *
 * store: what a worker has on its own disk. The weights it may load: masters name an artifact and
 * its SHA-256; the file behind the name stands in worker.yaml alone. And in state_dir the attempts
 * of sessions that have been there, and the files of state and caches that identities keep.
 *
 * Ownership: opened weights belong to the caller. Threads: any.
 */
#ifndef CLEAVE_STORE_H
#define CLEAVE_STORE_H

#include "common/model/config/config.h"
#include "common/model/weights/weights.h"
#include "kernels/kernels.h"

/* Every artifact of the config exists and has its stated digest; the first that does not is named
 * with its line: at start-up and for `check`. Of a folder the list of its files is read, and its
 * index; they are there with their lengths, and are hashed when their tensors are wanted. */
clv_code clv_store_check(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;

/* An artifact that is open. A file of it is hashed when the first of its tensors is read, unless
 * the process knows the digest of a file with this inode, length and times: the descriptor that was
 * hashed is the one that is read. */
typedef struct clv_stored_artifact clv_stored_artifact;

/* Open an artifact by name. CLV_NOT_FOUND: not in worker.yaml; CLV_DATA_LOSS: the file, or the
 * folder's list, does not have the digest that the master, or worker.yaml, states. `config` and
 * `waiter` (NULL: nobody leaves) outlive it. */
clv_code clv_store_open(const clv_worker_config *config, const char *name, const clv_sha256 *want,
                        const clv_cancel_hook *waiter, clv_stored_artifact **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_stored_close(clv_stored_artifact *a); /* NULL is allowed */
void clv_stored_closep(clv_stored_artifact **a);
clv_weights_folder *clv_stored_weights(const clv_stored_artifact *a); /* borrowed */

/* What worker.yaml says of it; borrowed. */
const clv_artifact_spec *clv_stored_spec(const clv_stored_artifact *a);

/* Tensors of artifacts in memory, each once for all who take it: in pages of the host's that nobody
 * can write, or in memory of a device, which is zeroed before it is given back. */
typedef struct clv_bases clv_bases;

/* What is the same tensor: the artifact by its digest, a name there, a type, and where it lies. */
typedef struct clv_base_key {
  const char *owner; /* an identity; "": for everybody */
  clv_sha256 artifact;
  const char *name; /* of the parameter */
  clv_dtype dtype;
  clv_shape shape;
  /* A backend with memory of its own, that of the tensor; NULL: the host's. It outlives all that is
   * taken, and nobody else gives it work. */
  const clv_backend *home;
} clv_base_key;

/* The most that is asked for at once, in bytes, and for a device held in between. */
enum { CLV_BASE_CHUNK_BYTES = 1 << 20 };

/* Writes n elements of the tensor, from the one with number `first`, to `to`. BLOCKS. */
typedef clv_code clv_base_fill(void *user, size_t first, size_t n, void *to, clv_err *err);

clv_code clv_bases_new(clv_bases **ret, clv_err *err) CLV_USE_RESULT;
void clv_bases_free(clv_bases *b); /* after all that was taken; NULL is allowed */
/* With a reference for the caller, who only reads. What a device was asked to do with it is done
 * before that goes. `fill` is called if nobody has it; who comes meanwhile waits for that, and
 * fills it if the first has failed. CLV_CANCELLED: `waiter` (NULL: nobody) has left;
 * CLV_EXHAUSTED: there is no memory for it. */
clv_code clv_bases_acquire(clv_bases *b, const clv_base_key *key, const clv_cancel_hook *waiter,
                           clv_base_fill *fill, void *user, clv_tensor **ret,
                           clv_err *err) CLV_USE_RESULT;
/* What it holds, each tensor once. */
size_t clv_bases_bytes(clv_bases *b);

/* The highest epoch at which each session of each identity was opened, with the digest of its
 * configuration: the last 64 sessions of an identity, 4096 in all. */
typedef struct clv_epochs clv_epochs;

/* Kept in STATE_DIR/epochs, so that it outlives the process; NULL: in memory. CLV_DATA_LOSS points
 * at the line of a damaged file. */
clv_code clv_epochs_open(const char *state_dir, clv_epochs **ret, clv_err *err) CLV_USE_RESULT;
void clv_epochs_free(clv_epochs *e); /* NULL is allowed */
/* The text of such a file, which is cut up, added to what is there. */
clv_code clv_epochs_parse(clv_epochs *e, char *text, const char *label,
                          clv_err *err) CLV_USE_RESULT;
/* A session is about to be opened. CLV_PRECONDITION: a higher epoch of it has been here. Epoch 0 is
 * of a session that has no other attempt: it is not kept. ret_changed: the configuration is not
 * that of the attempt before. */
clv_code clv_epochs_register(clv_epochs *e, const char *identity, const uint8_t session[16],
                             uint64_t epoch, const clv_sha256 *digest, bool *ret_changed,
                             clv_err *err) CLV_USE_RESULT;

/* Files of state in STATE_DIR/states, of each identity its own: nobody reads, replaces or removes
 * another's, or learns of it. What is not clv_is_file_name is CLV_INVALID. CLV_UNAVAILABLE is what
 * the disk says, with its path; other errors name none, since they are for the identity to read. */
typedef struct clv_states clv_states;

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) CLV_USE_RESULT;
void clv_states_free(clv_states *s); /* NULL is allowed */
/* Written durably, over one of that name. most: bytes that all of the identity may take, each
 * rounded up to 4 KiB; over that CLV_EXHAUSTED, and nothing is touched. Until the new one is whole
 * the old one is there too. */
clv_code clv_states_save(clv_states *s, const char *identity, uint64_t most, const char *name,
                         const clv_weights_tensor *list, size_t n, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* CLV_NOT_FOUND; CLV_EXHAUSTED: it has more than max_bytes. */
clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, clv_weights_file **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_code clv_states_remove(clv_states *s, const char *identity, const char *name,
                           clv_err *err) CLV_USE_RESULT;

/* ---- caches ------------------------------------------------------------------------------------
 *
 * Rows that a master's frozen front has made, in STATE_DIR/cached, of each identity its own: nobody
 * reads, replaces or removes another's, or learns of it. What has not been used for as long as it
 * is to be kept is deleted, and is not there from then on. Errors as of files of state;
 * CLV_EXHAUSTED is a full disk as well. */
typedef struct clv_caches clv_caches;

enum { CLV_MAX_CACHES = 64 }; /* of one identity */

typedef struct clv_cache {
  clv_sha256 key;
  uint64_t records; /* numbers of rows are below it; at most 2^32 */
  uint64_t keep_s;  /* seconds that it is kept unused; those of its first row count */
} clv_cache;

typedef struct clv_cache_status {
  clv_sha256 key;
  uint64_t records, rows; /* rows: that are there */
  uint64_t row_bytes, disk_bytes, unused_s, expires_s;
} clv_cache_status;

/* What has expired, or was being made by a process that died, is deleted. */
clv_code clv_caches_open(const char *state_dir, clv_caches **ret, clv_err *err) CLV_USE_RESULT;
void clv_caches_free(clv_caches *c); /* NULL is allowed */
/* Row i of values [n, ...] is kept as that of record rows[i]. The first of a cache takes all its
 * bytes on the disk: over `most` of all of the identity's CLV_EXHAUSTED. CLV_INVALID: a number out
 * of range, or rows of another form than are there. */
clv_code clv_caches_put(clv_caches *c, const char *identity, uint64_t most, const clv_cache *cache,
                        const int64_t *rows, const clv_tensor *values, clv_err *err) CLV_USE_RESULT;
/* Of n rows of it. CLV_NOT_FOUND: there is none. */
clv_code clv_caches_rows_shape(clv_caches *c, const char *identity, const clv_cache *cache,
                               size_t n, clv_dtype *ret_dtype, clv_shape *ret_shape,
                               clv_err *err) CLV_USE_RESULT;
/* Fills values, [n, ...], with those of records rows[n]. CLV_NOT_FOUND: one is not there;
 * CLV_DATA_LOSS: one has other bytes than were kept; from then on it is not there. */
clv_code clv_caches_get(clv_caches *c, const char *identity, const clv_cache *cache,
                        const int64_t *rows, clv_tensor *values, clv_err *err) CLV_USE_RESULT;
/* key NULL: all of the identity. remove: those that were listed are gone. */
clv_code clv_caches_list(clv_caches *c, const char *identity, const clv_sha256 *key, bool remove,
                         clv_cache_status ret[CLV_MAX_CACHES], uint32_t *ret_n,
                         clv_err *err) CLV_USE_RESULT;
/* Deletes what has expired at that time, seconds since 1970; how many. */
uint32_t clv_caches_evict_expired(clv_caches *c, int64_t at_s);

#endif
