/* SPDX-License-Identifier: Apache-2.0
 *
 * The data on a worker's own disk. First, artifacts: weights that modules may load. A master names
 * an artifact and its SHA-256, but only worker.yaml names the file. Second, the content of
 * state_dir: the epochs of sessions, files of state and caches.
 *
 * Ownership: an open artifact belongs to the caller. Threads: any.
 */
#ifndef CLEAVE_STORE_H
#define CLEAVE_STORE_H

#include "common/model/config/config.h"
#include "common/model/weights/weights.h"
#include "kernels/kernels.h"

/* Checks that each artifact of worker.yaml exists and has the digest that worker.yaml states. The
 * error names the first artifact that fails, with its line in worker.yaml. If an artifact is a
 * folder, checks only the manifest, the index, and that the files exist with their lengths; a file
 * is hashed when a tensor of it is read. Called at the start, in a reload and by `cleave-worker
 * check`. */
clv_code clv_store_check(const clv_worker_config *config, clv_err *err) CLV_USE_RESULT;

/* An open artifact. A file of the artifact is hashed when its first tensor is read, unless the
 * process knows the digest of this version of the file (clv_file_version). Tensors are read through
 * the descriptor that was hashed. */
typedef struct clv_stored_artifact clv_stored_artifact;

/* Opens an artifact by its name in worker.yaml. wanted_digest: digest that the master states.
 * CLV_NOT_FOUND: worker.yaml has no such artifact; CLV_DATA_LOSS: the file, or the manifest of the
 * folder, does not have the digest that worker.yaml states, or worker.yaml states another digest
 * than the master. `config` and `cancel_hook`, which may be NULL, must outlive the artifact. */
clv_code clv_store_open(const clv_worker_config *config, const char *name,
                        const clv_sha256 *wanted_digest, const clv_cancel_hook *cancel_hook,
                        clv_stored_artifact **ret, clv_err *err) CLV_USE_RESULT;
void clv_stored_artifact_close(clv_stored_artifact *a); /* NULL is allowed */
void clv_stored_artifact_closep(clv_stored_artifact **a);
/* Returns the artifact's tensors, which the artifact owns. */
clv_weights_folder *clv_stored_artifact_weights(const clv_stored_artifact *a);

/* Returns the entry of the artifact in worker.yaml. */
const clv_artifact_spec *clv_stored_artifact_spec(const clv_stored_artifact *a);

/* Tensors of artifacts in memory. All modules that use a tensor share it. A tensor is in read-only
 * pages of the host, or in memory of a device. */
typedef struct clv_shared_tensors clv_shared_tensors;

/* Key of a shared tensor. Tensors with equal keys are one tensor in memory. */
typedef struct clv_shared_tensor_key {
  const char *owner;   /* identity that owns the tensor; "": all identities share it */
  clv_sha256 artifact; /* digest of the artifact */
  const char *name;    /* name of the parameter */
  clv_dtype dtype;
  clv_shape shape;
  /* backend of the device whose memory holds the tensor; NULL: host memory. The backend outlives
   * all shared tensors, and no other code uses it */
  const clv_backend *backend;
} clv_shared_tensor_key;

/* largest number of bytes of a shared tensor that are read at once; for a tensor on a device also
 * the size of the staging buffer */
enum { CLV_SHARED_TENSOR_CHUNK_BYTES = 1 << 20 };

/* Callback that reads n elements of a shared tensor, from element number first_element on, into the
 * memory `to`. BLOCKS. */
typedef clv_code clv_shared_tensor_fill(void *user, size_t first_element, size_t n, void *to,
                                        clv_err *err);

clv_code clv_shared_tensors_new(clv_shared_tensors **ret, clv_err *err) CLV_USE_RESULT;
/* Call after all shared tensors are freed. NULL is allowed. */
void clv_shared_tensors_free(clv_shared_tensors *b);
/* Returns a shared tensor with a new reference. If the tensor is not in memory, fills it by calls
 * of `fill` with `user`. Other callers with the same key wait for that; if it fails, one of them
 * fills the tensor. The caller must not write to the tensor, and must wait for its device work
 * before it drops the reference. cancel_hook: may be NULL. CLV_EXHAUSTED: no memory. */
clv_code clv_shared_tensors_acquire(clv_shared_tensors *b, const clv_shared_tensor_key *key,
                                    const clv_cancel_hook *cancel_hook,
                                    clv_shared_tensor_fill *fill, void *user, clv_tensor **ret,
                                    clv_err *err) CLV_USE_RESULT;
/* Returns the bytes of all shared tensors, each counted once. */
size_t clv_shared_tensors_bytes(clv_shared_tensors *b);

/* The highest epoch of each session of each identity, with the digest of the session's
 * configuration. An epoch is the number of an attempt within a run. Kept for the last 64 sessions
 * of an identity, and for the last 4096 sessions in all. */
typedef struct clv_epochs clv_epochs;

/* Reads the file STATE_DIR/epochs, or makes it. state_dir NULL: epochs are kept in memory only,
 * until the process ends. CLV_DATA_LOSS: the file is damaged; the error names the line. */
clv_code clv_epochs_open(const char *state_dir, clv_epochs **ret, clv_err *err) CLV_USE_RESULT;
void clv_epochs_free(clv_epochs *e); /* NULL is allowed */
/* Checks that clv_epochs_open would succeed, and writes nothing. state_dir, which NULL leaves out,
 * must be a folder that this process may write to, whose file `epochs`, if there is one, can be
 * read. Called by `serve` and by `cleave-worker check`. CLV_NOT_FOUND: the folder does not exist.
 * CLV_DATA_LOSS: the file is damaged; the error names the line. */
clv_code clv_epochs_check(const char *state_dir, clv_err *err) CLV_USE_RESULT;
/* Adds the entries of the file whose content is text[len], and changes `text`. label: name of the
 * file in messages. CLV_DATA_LOSS: it is not exactly what clv_epochs_register writes, or it has two
 * entries of one session of one identity; the error names the line. */
clv_code clv_epochs_parse(clv_epochs *e, char *text, size_t len, const char *label,
                          clv_err *err) CLV_USE_RESULT;
/* Registers an attempt, whose number is the epoch, before its session is opened. CLV_PRECONDITION:
 * a higher epoch was registered before, or this epoch with another configuration.
 * *ret_config_changed: the configuration differs from that of the attempt before. */
clv_code clv_epochs_register(clv_epochs *e, const char *identity, const uint8_t session_id[16],
                             uint64_t epoch, const clv_sha256 *config_digest,
                             bool *ret_config_changed, clv_err *err) CLV_USE_RESULT;

/* Files of state in STATE_DIR/states, separate for each identity: no identity can read, replace,
 * remove or detect files of another identity. Errors of the functions below: CLV_INVALID: the name
 * is not a clv_is_file_name; CLV_UNAVAILABLE: an error of the disk; CLV_EXHAUSTED: the disk is
 * full. Their texts name no path, because they are sent to the identity. A cancel_hook may be
 * NULL. */
typedef struct clv_states clv_states;

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) CLV_USE_RESULT;
void clv_states_free(clv_states *s); /* NULL is allowed */

/* Claim of a writer on the name of a file of state. The writers of a name write in the order of
 * their claims. A caller that loads or removes the file waits until all claims on its name have
 * ended. */
typedef struct clv_state_claim {
  const char *identity;         /* identity of the writer; the text outlives the claim */
  char name[CLV_FILE_NAME + 1]; /* name of the file of state */
  uint64_t reserved_bytes; /* bytes of the quota for a file that is being written; 0: none yet */
  struct clv_state_claim *next; /* next newer claim; NULL: none */
} clv_state_claim;

/* Makes a claim in *ret, which the caller keeps until it calls clv_states_end_claim. Does not wait
 * for other claims. */
void clv_states_begin_claim(clv_states *s, const char *identity, const char *name,
                            clv_state_claim *ret);
void clv_states_end_claim(clv_states *s, clv_state_claim *c);

/* A file of state to write. */
typedef struct clv_state_save_request {
  const clv_weights_tensor *list; /* tensors of the file, [n] */
  size_t n;
  /* quota: bytes that all files of the identity may have, each rounded up to 4 KiB; the old file of
   * this name does not count */
  uint64_t max_bytes;
  const clv_cancel_hook *cancel_hook; /* NULL: the call cannot be cancelled */
  /* called once, when all tensors of `list` are written and their data are not read any more, but
   * the file is not durable yet; NULL: no callback */
  void (*on_written)(void *user);
  void *user; /* argument of on_written */
} clv_state_save_request;

/* Writes a file durably, and then replaces the old file of that name. After a failure the old file
 * is unchanged. CLV_EXHAUSTED: the quota is exceeded, or the disk is full. */
clv_code clv_states_save(clv_states *s, const char *identity, const char *name,
                         const clv_state_save_request *request, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* As clv_states_save, for a claim that the caller has made and will end with
 * clv_states_end_claim. */
clv_code clv_states_save_claimed(clv_states *s, clv_state_claim *c,
                                 const clv_state_save_request *request, clv_sha256 *ret_digest,
                                 uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* Opens a file for reading. CLV_NOT_FOUND: no such file; CLV_EXHAUSTED: the file has more than
 * max_bytes. */
clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, const clv_cancel_hook *cancel_hook,
                              clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_states_remove(clv_states *s, const char *identity, const char *name,
                           const clv_cancel_hook *cancel_hook, clv_err *err) CLV_USE_RESULT;

/* Status of a file of state on the disk. */
typedef struct clv_state_status {
  char name[CLV_FILE_NAME + 1];
  uint64_t bytes;   /* size of the file */
  uint64_t age_s;   /* seconds since the file was written */
  uint64_t version; /* number that differs after each change of the file; never 0 */
  bool has_sha256;  /* the process knows the digest */
  clv_sha256 sha256;
} clv_state_status;

enum { CLV_MAX_LISTED_STATES = 512 };

/* Files of state of an identity. */
typedef struct clv_state_list {
  clv_state_status *files; /* files, sorted by name, [n] */
  uint32_t n;
  bool has_more;       /* there are files after the last one of `files` */
  uint64_t used_bytes; /* bytes of all files of the identity, each rounded up to 4 KiB */
} clv_state_list;

void clv_state_list_done(clv_state_list *l);

/* Lists the file `name`. If name is "", lists the first CLV_MAX_LISTED_STATES files whose names
 * sort after after_name. The list is empty if there is no such file. */
clv_code clv_states_list(clv_states *s, const char *identity, const char *name,
                         const char *after_name, clv_state_list *ret, clv_err *err) CLV_USE_RESULT;
/* Files of state of all identities. */
typedef struct clv_state_usage {
  uint64_t n_files, bytes; /* number of files, and sum of their sizes */
} clv_state_usage;

/* Counts the files of state on the disk. */
clv_state_usage clv_states_usage(const clv_states *s);
/* Returns the digest of a file. Hashes the file if the digest is not known. Only one call at a time
 * may hash. CLV_EXHAUSTED: another call is hashing a file. */
clv_code clv_states_compute_digest(clv_states *s, const char *identity, const char *name,
                                   const clv_cancel_hook *cancel_hook, clv_sha256 *ret,
                                   clv_err *err) CLV_USE_RESULT;
/* Reads a range of a file into *ret, which the caller frees with clv_bytes_done. version: version
 * that the file must have, as in clv_state_status; 0: any version. CLV_RANGE: the range ends after
 * the end of the file; CLV_ABORTED: the file has another version, or changed while it was read. */
clv_code clv_states_read(clv_states *s, const char *identity, const char *name, uint64_t offset,
                         size_t length, uint64_t version, clv_bytes *ret,
                         clv_state_status *ret_status, clv_err *err) CLV_USE_RESULT;

/* ---- caches ------------------------------------------------------------------------------------
 *
 * A cache holds rows, one for each record of the training data. A row is the output of frozen
 * layers for this record. Caches are in STATE_DIR/cached, separate for each identity: no identity
 * can read, replace, remove or detect caches of another identity. A cache that has not been used
 * for keep_s seconds has expired: it counts as absent, and is deleted soon. Errors of the functions
 * below: CLV_UNAVAILABLE: an error of the disk; CLV_EXHAUSTED: the disk is full. */
typedef struct clv_caches clv_caches;

enum { CLV_MAX_CACHES = 64 }; /* largest number of caches of one identity */

/* The cache that a call is about. */
typedef struct clv_cache {
  clv_sha256 key;     /* key that the master has chosen */
  uint64_t n_records; /* number of records, at most 2^32; row numbers are below n_records */
  /* seconds without use until the cache expires; set when its first row is stored */
  uint64_t keep_s;
} clv_cache;

/* Status of a cache on the disk. */
typedef struct clv_cache_status {
  clv_sha256 key;
  uint64_t n_records;
  uint64_t n_rows;     /* number of records whose row is stored */
  uint64_t row_bytes;  /* size of a row */
  uint64_t disk_bytes; /* size of the cache's file */
  uint64_t unused_s;   /* seconds since the last use */
  uint64_t expires_s;  /* seconds until the cache expires, unless it is used */
} clv_cache_status;

/* Opens the caches in STATE_DIR/cached. Deletes expired caches, and files that a killed process has
 * not finished. */
clv_code clv_caches_open(const char *state_dir, clv_caches **ret, clv_err *err) CLV_USE_RESULT;
void clv_caches_free(clv_caches *c); /* NULL is allowed */
/* Stores row i of `values` [n, ...] as the row of record rows[i]. The first row makes the cache and
 * allocates its full size on the disk. CLV_EXHAUSTED: the caches of the identity would have more
 * than max_bytes, or it has CLV_MAX_CACHES caches; CLV_INVALID: a record number is out of range, or
 * the cache has rows of another type or shape. */
clv_code clv_caches_put(clv_caches *c, const char *identity, uint64_t max_bytes,
                        const clv_cache *cache, const int64_t *rows, const clv_tensor *values,
                        clv_err *err) CLV_USE_RESULT;
/* Returns the type and the shape [n, ...] of a tensor with n rows. CLV_NOT_FOUND: no such cache. */
clv_code clv_caches_get_rows_shape(clv_caches *c, const char *identity, const clv_cache *cache,
                                   size_t n, clv_dtype *ret_dtype, clv_shape *ret_shape,
                                   clv_err *err) CLV_USE_RESULT;
/* Fills row i of `values` [n, ...] with the row of record rows[i]. CLV_NOT_FOUND: no such cache, or
 * a row is not stored; CLV_DATA_LOSS: a row is damaged, and was dropped. */
clv_code clv_caches_get(clv_caches *c, const char *identity, const clv_cache *cache,
                        const int64_t *rows, clv_tensor *values, clv_err *err) CLV_USE_RESULT;
/* Lists the cache with this key. key NULL: lists all caches of the identity. deletes_listed: also
 * deletes the listed caches. */
clv_code clv_caches_list(clv_caches *c, const char *identity, const clv_sha256 *key,
                         bool deletes_listed, clv_cache_status ret[CLV_MAX_CACHES], uint32_t *ret_n,
                         clv_err *err) CLV_USE_RESULT;
/* Deletes caches that have expired at the time time_s (seconds since 1970), damaged caches, and
 * unfinished files. Returns the number of deleted files. */
uint32_t clv_caches_evict_expired(clv_caches *c, int64_t time_s);

#endif
