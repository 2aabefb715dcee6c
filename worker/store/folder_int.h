/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of identities: STATE_DIR/KIND/SHA-256 OF THE IDENTITY. Whoever works in one has its lock.
 */
#ifndef CLEAVE_STORE_FOLDER_INT_H
#define CLEAVE_STORE_FOLDER_INT_H

#include <dirent.h>
#include <pthread.h>

#include "worker/store/store.h"

enum { CLV_STATE_FOLDER_LOCKS = 64 };

typedef struct clv_state_folders {
  char *dir;
  pthread_mutex_t locks[CLV_STATE_FOLDER_LOCKS]; /* by the first byte of a folder's name */
} clv_state_folders;

/* One of them, locked until it is done. */
typedef struct clv_state_folder {
  pthread_mutex_t *lock;
  clv_sha256 identity;
  clv_bytes dir;
} clv_state_folder;

/* Makes STATE_DIR/KIND, mode 0700. clv_state_folders_done gives back what it took, not the disk. */
clv_code clv_state_folders_open(const char *state_dir, const char *kind, clv_state_folders *ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_state_folders_done(clv_state_folders *f);

/* Locks the identity's, which need not be there. */
clv_code clv_state_folder_begin(clv_state_folders *f, const char *identity, clv_state_folder *ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_state_folder_done(clv_state_folder *f);

/* That whose name is a file name in the folder of all. false: it is no identity's. */
bool clv_state_folder_named(clv_state_folders *f, const char *name, clv_state_folder *ret);

/* What lies in a folder, but for names that begin with a dot. */
typedef struct clv_folder_files {
  DIR *dir; /* NULL: there is no such folder */
  const char *of;
  const char *name; /* of the file that is at hand, and its path */
  clv_bytes path;
} clv_folder_files;

/* of: outlives it. */
clv_folder_files clv_folder_files_in(const char *of);
bool clv_folder_files_next(clv_folder_files *f); /* false: that was the last */
void clv_folder_files_done(clv_folder_files *f);

bool clv_name_ends_with(const char *name, const char *end);

/* errno as an error: a full disk is CLV_EXHAUSTED, all else CLV_UNAVAILABLE. */
clv_code clv_fail_errno(const char *path, clv_err *err);

#endif
