/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of identities: STATE_DIR/KIND/SHA-256 OF THE IDENTITY. Code that works in a folder holds
 * its lock.
 */
#ifndef CLEAVE_STORE_FOLDER_INT_H
#define CLEAVE_STORE_FOLDER_INT_H

#include <dirent.h>
#include <pthread.h>

#include "worker/store/store.h"

enum { CLV_STATE_FOLDER_LOCKS = 64 };

typedef struct clv_state_folders {
  char *dir;
  /* the first byte of a folder's name chooses the lock */
  pthread_mutex_t locks[CLV_STATE_FOLDER_LOCKS];
} clv_state_folders;

/* A folder of an identity, locked until clv_state_folder_done. */
typedef struct clv_state_folder {
  pthread_mutex_t *lock;
  clv_sha256 identity;
  clv_bytes dir;
} clv_state_folder;

/* Makes STATE_DIR/KIND, mode 0700. clv_state_folders_done frees the memory; the folder stays. */
clv_code clv_state_folders_open(const char *state_dir, const char *kind, clv_state_folders *ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_state_folders_done(clv_state_folders *f);

/* Locks the identity's folder, which may not exist. */
clv_code clv_state_folder_begin(clv_state_folders *f, const char *identity, clv_state_folder *ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_state_folder_done(clv_state_folder *f);

/* Locks the folder `name` of STATE_DIR/KIND. Returns false if `name` is not the folder of an
 * identity. */
bool clv_state_folder_begin_named(clv_state_folders *f, const char *name, clv_state_folder *ret);

/* Iterates over the files of a folder, except names that begin with a dot. */
typedef struct clv_folder_files {
  DIR *dir;                /* NULL: the folder does not exist */
  const char *folder_path; /* path of the folder */
  const char *name;        /* name of the current file */
  clv_bytes path;          /* path of the current file */
} clv_folder_files;

/* Returns an iterator over the folder `folder_path`, whose path must outlive the iterator. */
clv_folder_files clv_folder_files_open(const char *folder_path);
bool clv_folder_files_next(clv_folder_files *f); /* returns false after the last file */
void clv_folder_files_close(clv_folder_files *f);

bool clv_name_ends_with(const char *name, const char *end);

/* Turns errno into an error: CLV_EXHAUSTED for a full disk, else CLV_UNAVAILABLE. */
clv_code clv_fail_errno(const char *path, clv_err *err);

#endif
