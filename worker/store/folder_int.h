/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of identities, STATE_DIR/KIND/SHA-256 OF THE IDENTITY. KIND is "states" or "cached". Code
 * that uses a folder holds the folder's lock.
 */
#ifndef CLEAVE_STORE_FOLDER_INT_H
#define CLEAVE_STORE_FOLDER_INT_H

#include <dirent.h>
#include <pthread.h>

#include "worker/store/store.h"

enum { CLV_N_STATE_FOLDER_LOCKS = 64 };

/* All folders that hold one kind of file, such as "states" or "caches": one for each identity. */
typedef struct clv_state_folders {
  char *dir; /* path STATE_DIR/KIND */
  /* locks of folders; the first byte of the identity's SHA-256 chooses the lock */
  pthread_mutex_t locks[CLV_N_STATE_FOLDER_LOCKS];
} clv_state_folders;

/* A folder of an identity, locked until clv_state_folder_unlock. */
typedef struct clv_state_folder {
  pthread_mutex_t *lock;
  clv_sha256 identity; /* SHA-256 of the identity */
  clv_bytes dir;       /* path of the folder */
} clv_state_folder;

/* Makes the folder STATE_DIR/KIND, mode 0700. clv_state_folders_done frees the memory, but the
 * folder remains. */
clv_code clv_state_folders_open(const char *state_dir, const char *kind, clv_state_folders *ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_state_folders_done(clv_state_folders *f);

/* Locks the folder of an identity. The folder need not exist. */
clv_code clv_state_folder_lock(clv_state_folders *f, const char *identity, clv_state_folder *ret,
                               clv_err *err) CLV_USE_RESULT;
void clv_state_folder_unlock(clv_state_folder *f);

/* Locks the folder STATE_DIR/KIND/name. Returns false if `name` is not the name of an identity's
 * folder, or if there is no memory. */
bool clv_state_folder_lock_named(clv_state_folders *f, const char *name, clv_state_folder *ret);

/* Iterates over the files of a folder, except names that begin with a dot. */
typedef struct clv_folder_files {
  DIR *dir;                /* NULL: the folder does not exist */
  const char *folder_path; /* path of the folder */
  const char *name;        /* name of the current file */
  clv_bytes path;          /* path of the current file */
} clv_folder_files;

/* Returns an iterator over the folder `folder_path`, whose path must outlive the iterator. */
clv_folder_files clv_folder_files_open(const char *folder_path);
/* Advances to the next file. Returns false after the last file. */
bool clv_folder_files_next(clv_folder_files *f);
void clv_folder_files_close(clv_folder_files *f);

/* True if `name` ends with `ending` and is longer. */
bool clv_name_has_ending(const char *name, const char *ending);

/* Makes an error of errno: CLV_EXHAUSTED for a full disk, else CLV_UNAVAILABLE with `path` in the
 * text. */
clv_code clv_fail_errno(const char *path, clv_err *err);

#endif
