/* SPDX-License-Identifier: Apache-2.0
 *
 * seal: files that only the holder of a key can read, and whose readers notice every change.
 * Checkpoints are sealed before they are stored where others may read the disk.
 *
 * A sealed file is a header and frames of 64 KiB, each encrypted with AES-256-GCM. The header has
 * the version, the id of the key and a random salt, from which the key of this file is derived.
 * Each frame is bound to the header, to the name of the file, to the index of the frame and to
 * whether it is the last one. So reading fails if a byte was changed, if the file was cut short or
 * extended, and if frames or files have changed places. The name is chosen by the caller, and need
 * not be the path.
 *
 * A key is a file with 32 random bytes as 64 hexadecimal digits. Only its owner may read it, and
 * this program never sends it. Without the key the sealed files are lost.
 *
 * Threads: objects belong to one thread at a time.
 */
#ifndef CLEAVE_SEAL_H
#define CLEAVE_SEAL_H

#include "common/base/base.h"

enum {
  CLV_SEAL_MAX_NAME_BYTES = 256,   /* largest name that is bound to a file, bytes with the NUL */
  CLV_SEAL_FRAME_BYTES = 64 << 10, /* bytes of a frame before encryption */
};

/* ---- key files (key.c) ----------------------------------------------------------------------- */

typedef struct clv_seal_key {
  clv_sha256 secret;
  char id[17]; /* 16 hexadecimal digits that name the key and do not reveal it */
  char *path;  /* file of the key, for messages */
} clv_seal_key;

/* Reads a key file. CLV_NOT_FOUND: there is no file; CLV_DENIED: other users than the owner may
 * read the file; CLV_DATA_LOSS: the file does not hold a key. Release with clv_seal_key_done. */
clv_code clv_seal_key_read(const char *path, clv_seal_key *ret, clv_err *err) CLV_USE_RESULT;
/* Draws a key and writes it durably to a new file with mode 0600. CLV_EXISTS: there is a file of
 * that name, which is left as it is. */
clv_code clv_seal_key_create(const char *path, clv_seal_key *ret, clv_err *err) CLV_USE_RESULT;
void clv_seal_key_done(clv_seal_key *k); /* overwrites the secret and zeroes *k */

/* ---- writing sealed files (sealed_write.c) --------------------------------------------------- */

typedef struct clv_sealed_writer clv_sealed_writer;

/* Starts a sealed file. The data are written to PATH.tmp until clv_sealed_writer_finish. If the
 * caller frees the writer earlier, PATH.tmp is deleted. `name`: 1 to 255 bytes; a reader must give
 * the same name. The writer does not use `key` after this call. */
clv_code clv_sealed_writer_begin(const char *path, const clv_seal_key *key, const char *name,
                                 clv_sealed_writer **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sealed_writer_add(clv_sealed_writer *w, const void *data, size_t len,
                               clv_err *err) CLV_USE_RESULT;
/* Writes the last frame, syncs the file, renames it to PATH and syncs the folder. */
clv_code clv_sealed_writer_finish(clv_sealed_writer *w, clv_err *err) CLV_USE_RESULT;
/* deletes the unfinished file, if there is one, and frees w; NULL is allowed */
void clv_sealed_writer_free(clv_sealed_writer *w);
void clv_sealed_writer_freep(clv_sealed_writer **w);

/* ---- reading sealed files (sealed_read.c) ---------------------------------------------------- */

typedef struct clv_sealed_reader clv_sealed_reader;

/* Opens a sealed file, with O_NOFOLLOW, and checks its header. CLV_NOT_FOUND: there is no file;
 * CLV_DENIED: the file was sealed with another key, and the error text has the ids of both keys;
 * CLV_UNIMPLEMENTED: another version; CLV_DATA_LOSS: it is no sealed file, or was cut short. */
clv_code clv_sealed_reader_open(const char *path, const clv_seal_key *key, const char *name,
                                clv_sealed_reader **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_sealed_reader_open, for an open file, whose descriptor the reader closes, also on failure.
 * Error texts call the file `label`. */
clv_code clv_sealed_reader_open_fd(int fd, const char *label, const clv_seal_key *key,
                                   const char *name, clv_sealed_reader **ret,
                                   clv_err *err) CLV_USE_RESULT;
uint64_t clv_sealed_reader_data_bytes(const clv_sealed_reader *r); /* bytes of the decrypted data */
/* Returns the data of the next frame, valid until the next call; *ret_len 0: all data were read.
 * The bytes that are returned are authentic, but only *ret_len 0 shows that the file is complete.
 * CLV_DATA_LOSS: the file was changed, or is bound to another name. */
clv_code clv_sealed_reader_next(clv_sealed_reader *r, const void **ret_data, size_t *ret_len,
                                clv_err *err) CLV_USE_RESULT;
/* closes the file and frees r; NULL is allowed */
void clv_sealed_reader_free(clv_sealed_reader *r);
void clv_sealed_reader_freep(clv_sealed_reader **r);

/* Reads the id of the key with which a file was sealed. Needs no key. Errors as
 * clv_sealed_reader_open. */
clv_code clv_sealed_read_key_id(const char *path, char ret_id[17], clv_err *err) CLV_USE_RESULT;

#endif
