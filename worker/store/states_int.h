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
  clv_state_folders folders;    /* the folder of each identity */
  clv_known_digests digests;    /* digests of files of state */
  pthread_mutex_t hashing_lock; /* held by the call that hashes a file */
  pthread_mutex_t lock;         /* guards the list of claims; taken after the lock of a folder */
  pthread_cond_t claim_ended;   /* signalled when a claim ends; waits use the monotonic clock */
  clv_state_claim *first_claim; /* list of all claims, oldest first */
};

/* Refuses a name that is not a clv_is_file_name. Messages with names are checked when they are
 * decoded; this is the last check before the name is used on the disk. */
clv_code clv_state_check_name(const char *name, clv_err *err) CLV_USE_RESULT;
/* Appends the path of a file of state in the folder `dir`. */
clv_code clv_state_make_path(const char *dir, const char *name, clv_bytes *ret,
                             clv_err *err) CLV_USE_RESULT;
/* Copies the name of a file of state from a file name NAME.safetensors. False: the file name has
 * another form. */
bool clv_state_parse_file_name(const char *file_name, char ret[CLV_FILE_NAME + 1]);
/* Rounds up to a multiple of 4 KiB, the block in which quotas of files of state count. */
uint64_t clv_state_round_to_block(uint64_t bytes);

/* Fills the error for a file that does not exist or belongs to another identity. */
clv_code clv_state_fail_missing(const char *name, clv_err *err);
/* Fills an error of the disk for a master. Its text names the file of state, the disk's problem
 * (error_number: an errno), the free space of the disk that has `path`, and the next action.
 * CLV_EXHAUSTED: the disk is full; CLV_UNAVAILABLE: any other error. */
clv_code clv_state_fail_disk(const char *path, const char *name, int error_number, clv_err *err);

/* ---- claims (state_claims.c) ----------------------------------------------------------------- */

/* Waits until all claims on the name that are older than own_claim have ended. own_claim NULL:
 * waits until all claims on the name have ended. cancel_hook: may be NULL. */
clv_code clv_state_await_claims(clv_states *s, const char *identity, const char *name,
                                const clv_state_claim *own_claim,
                                const clv_cancel_hook *cancel_hook, clv_err *err) CLV_USE_RESULT;
/* Reserves `bytes` bytes of the identity's quota for the file of own_claim. CLV_EXHAUSTED: the
 * identity's files would have more than max_bytes. A file that another claim is writing counts with
 * the larger size of the old and the new file. The caller has locked the folder `o`. */
clv_code clv_state_reserve_bytes(clv_states *s, const clv_state_folder *o,
                                 clv_state_claim *own_claim, uint64_t bytes, uint64_t max_bytes,
                                 clv_err *err) CLV_USE_RESULT;

#endif
