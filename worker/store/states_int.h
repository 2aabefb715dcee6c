/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, paths and sizes of files of state.
 */
#ifndef CLEAVE_STORE_STATES_INT_H
#define CLEAVE_STORE_STATES_INT_H

#include "worker/store/digest_int.h"
#include "worker/store/folder_int.h"

#define CLV_STATE_SUFFIX ".safetensors"

struct clv_states {
  clv_state_folders folders;
  clv_known_digests digests;
  pthread_mutex_t hashing; /* held by the call that hashes a file */
};

/* Refuses a name that is not a file name. Callers have checked it already; this is the last check
 * before the disk. */
clv_code clv_state_check_name(const char *name, clv_err *err) CLV_USE_RESULT;
/* Appends the path of a file of state in the folder `dir`. */
clv_code clv_state_path(const char *dir, const char *name, clv_bytes *ret,
                        clv_err *err) CLV_USE_RESULT;
/* Fills the error for a file that does not exist, or belongs to another identity. */
clv_code clv_state_fail_missing(const char *name, clv_err *err);
/* Rounds up to the blocks in which quotas count. */
uint64_t clv_state_round_to_block(uint64_t bytes);

#endif
