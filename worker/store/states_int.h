/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, paths and sizes of files of state, and the claims of writers on names.
 */
#ifndef CLEAVE_STORE_STATES_INT_H
#define CLEAVE_STORE_STATES_INT_H

#include "worker/store/digest_int.h"
#include "worker/store/folder_int.h"

#define CLV_STATE_SUFFIX ".safetensors"

struct clv_states {
  clv_state_folders folders;
  clv_known_digests digests;
  pthread_mutex_t hashing_lock; /* held by the call that hashes a file */
  pthread_mutex_t lock;         /* guards the claims; taken after the lock of a folder */
  pthread_cond_t claim_ended;   /* signalled when a claim ends; waits use the monotonic clock */
  clv_state_claim *first_claim; /* list of all claims, oldest first */
};

/* Refuses a name that is not a file name. Callers have checked it already; this is the last check
 * before the disk. */
clv_code clv_state_check_name(const char *name, clv_err *err) CLV_USE_RESULT;
/* Appends the path of a file of state in the folder `dir`. */
clv_code clv_state_path(const char *dir, const char *name, clv_bytes *ret,
                        clv_err *err) CLV_USE_RESULT;
/* Copies the name of a file of state out of the name of its file. False: it is another file. */
bool clv_state_name_of(const char *file_name, char ret[CLV_FILE_NAME + 1]);
/* Rounds up to the blocks in which quotas count. */
uint64_t clv_state_round_to_block(uint64_t bytes);

/* Fills the error for a file that does not exist, or belongs to another identity. */
clv_code clv_state_fail_missing(const char *name, clv_err *err);
/* Fills an error of the disk for a peer: names the file, the state of the disk that has `path`, and
 * what to do. CLV_EXHAUSTED: the disk is full. */
clv_code clv_state_fail_disk(const char *path, const char *name, int error, clv_err *err);

/* ---- claims (state_claims.c) ----------------------------------------------------------------- */

/* Waits until no claim on the name is older than `own_claim`, or, if own_claim is NULL, until there
 * is no claim. CLV_CANCELLED: `waiter` (NULL: no cancellation) has left. */
clv_code clv_state_await_claims(clv_states *s, const char *identity, const char *name,
                                const clv_state_claim *own_claim, const clv_cancel_hook *waiter,
                                clv_err *err) CLV_USE_RESULT;
/* Checks that a file of `bytes` keeps the identity within `max_bytes` bytes, and reserves them for
 * the claim. Files that other claims write count with the larger one of the old and the new file.
 * The caller has locked the folder. */
clv_code clv_state_reserve(clv_states *s, const clv_state_folder *o, clv_state_claim *own_claim,
                           uint64_t bytes, uint64_t max_bytes, clv_err *err) CLV_USE_RESULT;

#endif
