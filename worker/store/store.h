/* SPDX-License-Identifier: Apache-2.0
 *
 * store: the data on a worker's own disk. The weights that it may load: masters name an artifact
 * and its SHA-256, and only worker.yaml names the file. And in state_dir: the attempts of earlier
 * sessions, and files of state and caches of identities.
 *
 * Ownership: opened weights belong to the caller. Threads: any.
 */
#ifndef CLEAVE_STORE_H
#define CLEAVE_STORE_H

#include "common/model/config/config.h"
#include "common/model/weights/weights.h"
#include "kernels/kernels.h"

/* Checks that every artifact of the config exists and has its stated digest; the error names the
 * first that does not, with its line. Called at start-up and by `check`. For a folder checks the
 * manifest, the index, and that the files exist with their lengths; files are hashed when their
 * tensors are read. */
clv_code clv_store_check(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;

/* An open artifact. A file is hashed when its first tensor is read, unless the process knows the
 * digest of a file with this inode, length and times. The hashed descriptor is the one that is
 * read. */
typedef struct clv_stored_artifact clv_stored_artifact;

/* Opens an artifact by name. CLV_NOT_FOUND: not in worker.yaml; CLV_DATA_LOSS: the file, or the
 * folder's manifest, does not have the digest that the master or worker.yaml states. `config` and
 * `waiter` (NULL: no cancellation) outlive the artifact. */
clv_code clv_store_open(const clv_worker_config *config, const char *name,
                        const clv_sha256 *wanted_digest, const clv_cancel_hook *waiter,
                        clv_stored_artifact **ret, clv_err *err) CLV_USE_RESULT;
void clv_stored_artifact_close(clv_stored_artifact *a); /* NULL is allowed */
void clv_stored_artifact_closep(clv_stored_artifact **a);
clv_weights_folder *clv_stored_artifact_weights(
    const clv_stored_artifact *a); /* returns the artifact's tensors, which the artifact owns */

/* Returns the artifact's entry in worker.yaml, which the config owns. */
const clv_artifact_spec *clv_stored_artifact_spec(const clv_stored_artifact *a);

/* Tensors of artifacts in memory, each shared by all modules that use it: in read-only pages of the
 * host, or in memory of a device, which is zeroed before it is freed. */
typedef struct clv_shared_tensors clv_shared_tensors;

/* Key of a shared tensor: artifact digest, name, type and memory. */
typedef struct clv_shared_tensor_key {
  const char *owner; /* identity that owns the tensor; "": all identities share it */
  clv_sha256 artifact;
  const char *name; /* name of the parameter */
  clv_dtype dtype;
  clv_shape shape;
  /* Backend of the device that holds the tensor; NULL: host memory. It outlives all tensors; no
   * other code uses it. */
  const clv_backend *backend;
} clv_shared_tensor_key;

/* Largest number of bytes of a shared tensor that are read at once; for a tensor on a device also
 * the size of the staging buffer. */
enum { CLV_SHARED_TENSOR_CHUNK_BYTES = 1 << 20 };

/* Callback that writes n elements of the tensor, from element `first`, to `to`. BLOCKS. */
typedef clv_code clv_shared_tensor_fill(void *user, size_t first, size_t n, void *to, clv_err *err);

clv_code clv_shared_tensors_new(clv_shared_tensors **ret, clv_err *err) CLV_USE_RESULT;
void clv_shared_tensors_free(
    clv_shared_tensors *b); /* call after all tensors are freed; NULL is allowed */
/* Returns a shared tensor with a new reference. The caller only reads the tensor, and waits for its
 * device work before it drops the reference. Calls `fill` if the tensor is not in memory. Other
 * callers wait meanwhile, and fill the tensor themselves if the first caller has failed.
 * CLV_CANCELLED: `waiter` (NULL: no cancellation) has left; CLV_EXHAUSTED: no memory. */
clv_code clv_shared_tensors_acquire(clv_shared_tensors *b, const clv_shared_tensor_key *key,
                                    const clv_cancel_hook *waiter, clv_shared_tensor_fill *fill,
                                    void *user, clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of all tensors, each counted once. */
size_t clv_shared_tensors_bytes(clv_shared_tensors *b);

/* The highest epoch of each session of each identity, with the digest of its configuration: the
 * last 64 sessions of an identity, 4096 in all. */
typedef struct clv_epochs clv_epochs;

/* Opens STATE_DIR/epochs, which outlives the process; NULL: in memory only. CLV_DATA_LOSS names the
 * line of a damaged file. */
clv_code clv_epochs_open(const char *state_dir, clv_epochs **ret, clv_err *err) CLV_USE_RESULT;
void clv_epochs_free(clv_epochs *e); /* NULL is allowed */
/* Adds the entries of a file's text, which it modifies. */
clv_code clv_epochs_parse(clv_epochs *e, char *text, const char *label,
                          clv_err *err) CLV_USE_RESULT;
/* Registers an attempt before its session is opened. CLV_PRECONDITION: a higher epoch was
 * registered before. Epoch 0 is a session without other attempts: it is not recorded.
 * ret_config_changed: the configuration differs from that of the attempt before. */
clv_code clv_epochs_register(clv_epochs *e, const char *identity, const uint8_t session[16],
                             uint64_t epoch, const clv_sha256 *digest, bool *ret_config_changed,
                             clv_err *err) CLV_USE_RESULT;

/* Files of state in STATE_DIR/states, separate for each identity: no identity can read, replace,
 * remove or detect those of another. CLV_INVALID: the name is not a clv_is_file_name.
 * CLV_UNAVAILABLE: an error of the disk; CLV_EXHAUSTED: the disk is full. Errors name no path,
 * because they are sent to the identity. */
typedef struct clv_states clv_states;

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) CLV_USE_RESULT;
void clv_states_free(clv_states *s); /* NULL is allowed */

/* Claim of a writer on a name. The writers of a name write in the order of their claims. A caller
 * that loads or removes the file waits until all claims on its name have ended. */
typedef struct clv_state_claim {
  const char *identity; /* outlives the claim */
  char name[CLV_FILE_NAME + 1];
  uint64_t reserved_bytes; /* bytes of the quota for a file that is being written; 0: none yet */
  struct clv_state_claim *next;
} clv_state_claim;

/* Makes a claim in memory of the caller, which ends with clv_states_end_claim. Does not wait. */
void clv_states_claim(clv_states *s, const char *identity, const char *name, clv_state_claim *ret);
void clv_states_end_claim(clv_states *s, clv_state_claim *c);

typedef struct clv_state_save_request {
  const clv_weights_tensor *list; /* tensors of the file, [n] */
  size_t n;
  /* bytes that all files of the identity may use, each rounded up to 4 KiB; the file that is
   * replaced does not count */
  uint64_t max_bytes;
  const clv_cancel_hook *waiter; /* NULL: no cancellation */
  /* Called once, when the data of `list` are no longer read; NULL: not called. The file is not
   * durable yet. */
  void (*on_written)(void *user);
  void *user;
} clv_state_save_request;

/* Writes a file durably, replacing one of that name. CLV_EXHAUSTED: over the quota, or the disk is
 * full; CLV_CANCELLED: `waiter` has left. After a failure the old file is unchanged: it stays until
 * the new one is complete. */
clv_code clv_states_save(clv_states *s, const char *identity, const char *name,
                         const clv_state_save_request *request, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* As clv_states_save, for a claim that the caller has made and will end with clv_states_end_claim.
 */
clv_code clv_states_save_claimed(clv_states *s, clv_state_claim *c,
                                 const clv_state_save_request *request, clv_sha256 *ret_digest,
                                 uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* Opens a file. CLV_NOT_FOUND: no such file; CLV_EXHAUSTED: it has more than max_bytes. */
clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, const clv_cancel_hook *waiter,
                              clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_states_remove(clv_states *s, const char *identity, const char *name,
                           const clv_cancel_hook *waiter, clv_err *err) CLV_USE_RESULT;

/* Status of a file of state on the disk. */
typedef struct clv_state_status {
  char name[CLV_FILE_NAME + 1];
  uint64_t bytes, age_s;
  uint64_t version; /* number that differs after each change of the file; never 0 */
  bool has_sha256;
  clv_sha256 sha256;
} clv_state_status;

enum { CLV_MAX_LISTED_STATES = 512 };

/* Files of state of an identity. */
typedef struct clv_state_list {
  clv_state_status *files; /* [n] by name */
  uint32_t n;
  bool has_more;       /* there are more files after the last one */
  uint64_t used_bytes; /* bytes of all files of the identity, each rounded up to 4 KiB */
} clv_state_list;

void clv_state_list_done(clv_state_list *l);

/* Lists the file `name`, or, if that is "", the first CLV_MAX_LISTED_STATES files with names after
 * `after`. A file that does not exist gives an empty list. */
clv_code clv_states_list(clv_states *s, const char *identity, const char *name, const char *after,
                         clv_state_list *ret, clv_err *err) CLV_USE_RESULT;
typedef struct clv_state_usage {
  uint64_t n_files, bytes; /* number and size of the files of all identities */
} clv_state_usage;

/* Counts the files on the disk. */
clv_state_usage clv_states_usage(const clv_states *s);
/* Computes the digest of a file, if it is not known. One call at a time hashes. CLV_EXHAUSTED:
 * another call hashes; CLV_CANCELLED: `waiter` (NULL: no cancellation) has left. */
clv_code clv_states_digest(clv_states *s, const char *identity, const char *name,
                           const clv_cancel_hook *waiter, clv_sha256 *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Reads a range of a file into memory that the caller frees with clv_bytes_done. version 0: any.
 * CLV_RANGE: the range ends after the end of the file; CLV_ABORTED: the file has another version,
 * or changed while it was read. */
clv_code clv_states_read(clv_states *s, const char *identity, const char *name, uint64_t offset,
                         size_t length, uint64_t version, clv_bytes *ret,
                         clv_state_status *ret_status, clv_err *err) CLV_USE_RESULT;

/* ---- caches ------------------------------------------------------------------------------------
 *
 * Rows of the outputs that a master's frozen first layers have computed, one for each record, in
 * STATE_DIR/cached, separate for each identity: no identity can read, replace, remove or detect
 * those of another. A cache that has not been used for its keep time is deleted, and counts as
 * absent from then on. Errors as for files of state; a full disk is CLV_EXHAUSTED as well. */
typedef struct clv_caches clv_caches;

enum { CLV_MAX_CACHES = 64 }; /* caches of one identity */

typedef struct clv_cache {
  clv_sha256 key;
  uint64_t n_records; /* row numbers are below this; at most 2^32 */
  uint64_t keep_s;    /* seconds without use until the cache expires; set with its first row */
} clv_cache;

typedef struct clv_cache_status {
  clv_sha256 key;
  uint64_t n_records, n_rows; /* n_rows: number of records whose row is stored */
  uint64_t row_bytes, disk_bytes, unused_s, expires_s;
} clv_cache_status;

/* Opens the caches. Deletes expired ones, and unfinished ones of a killed process. */
clv_code clv_caches_open(const char *state_dir, clv_caches **ret, clv_err *err) CLV_USE_RESULT;
void clv_caches_free(clv_caches *c); /* NULL is allowed */
/* Stores row i of values [n, ...] as the row of record rows[i]. The first row of a cache allocates
 * its full size on disk. CLV_EXHAUSTED: more than `max_bytes` bytes for the identity; CLV_INVALID:
 * a number out of range, or rows of another type or shape than the cache has. */
clv_code clv_caches_put(clv_caches *c, const char *identity, uint64_t max_bytes,
                        const clv_cache *cache, const int64_t *rows, const clv_tensor *values,
                        clv_err *err) CLV_USE_RESULT;
/* Returns type and shape of n rows. CLV_NOT_FOUND: no such cache. */
clv_code clv_caches_rows_shape(clv_caches *c, const char *identity, const clv_cache *cache,
                               size_t n, clv_dtype *ret_dtype, clv_shape *ret_shape,
                               clv_err *err) CLV_USE_RESULT;
/* Fills values [n, ...] with the rows of records rows[n]. CLV_NOT_FOUND: a row is not stored;
 * CLV_DATA_LOSS: a row is damaged, and is dropped. */
clv_code clv_caches_get(clv_caches *c, const char *identity, const clv_cache *cache,
                        const int64_t *rows, clv_tensor *values, clv_err *err) CLV_USE_RESULT;
/* Lists the cache of `key`, or, if that is NULL, all caches of the identity. remove: deletes the
 * caches that it lists. */
clv_code clv_caches_list(clv_caches *c, const char *identity, const clv_sha256 *key, bool remove,
                         clv_cache_status ret[CLV_MAX_CACHES], uint32_t *ret_n,
                         clv_err *err) CLV_USE_RESULT;
/* Deletes caches that have expired at the time at_s, in seconds since 1970. Returns their
 * number. */
uint32_t clv_caches_evict_expired(clv_caches *c, int64_t at_s);

#endif
