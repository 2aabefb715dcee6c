/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoints: handles those files of checkpoints that workers store. Reads, compares, fetches and
 * removes the files by unary gRPC calls, which need no session. Also makes sealed (encrypted)
 * copies of checkpoints (escrow). Prints nothing: the commands in master/run report results.
 *
 * Threads: objects belong to one thread at a time.
 */
#ifndef CLEAVE_CHECKPOINTS_H
#define CLEAVE_CHECKPOINTS_H

#include "common/model/config/config.h"
#include "common/model/weights/weights.h"
#include "master/api/api.h"
#include "master/seal/seal.h"

/* ---- workers that keep files (stores.c) ------------------------------------------------------ */

/* Connections to the workers of a session file, including spares. The first call for a worker dials
 * it. If dialling fails, later calls for the worker fail at once. */
typedef struct clv_stores clv_stores;
clv_code clv_stores_new(const clv_session_config *config, clv_stores **ret,
                        clv_err *err) CLV_USE_RESULT;
void clv_stores_free(clv_stores *s);
void clv_stores_freep(clv_stores **s);

/* Returns the name of the worker with the identity `keeper_identity`; `keeper_identity` itself if
 * the session file has no such worker. */
const char *clv_stores_worker_name(const clv_stores *s, const char *keeper_identity);
/* Lists files at a worker, as cleave_kept_list does. CLV_NOT_FOUND: the session file has no worker
 * with this identity. */
clv_code clv_stores_list_files(clv_stores *s, const char *keeper_identity, const char *name,
                               cleave_kept_files *ret, clv_err *err) CLV_USE_RESULT;
/* Removes a file at a worker. CLV_OK: the worker has no file of that name now. */
clv_code clv_stores_remove_file(clv_stores *s, const char *keeper_identity, const char *name,
                                clv_err *err) CLV_USE_RESULT;

/* Returns true if the error says that a worker cannot be reached. Other errors of
 * clv_stores_check_file and clv_checkpoint_gather are about the file. */
bool clv_stores_is_unreachable_error(const clv_err *err);

/* Reader of a file that a manifest lists, in the checkpoint's folder or at a worker. */
typedef struct clv_stored_reader clv_stored_reader;
/* Opens the file `f` for reading. `s` and `f` must outlive *ret. begin_offset: offset of the first
 * byte to read. CLV_DATA_LOSS: the file is missing in the folder, or has another size. */
clv_code clv_stored_reader_open(clv_stores *s, const char *folder, const clv_manifest_file *f,
                                uint64_t begin_offset, clv_stored_reader **ret,
                                clv_err *err) CLV_USE_RESULT;
/* Returns the next bytes, valid until the next call. *ret_len 0: the end of the file was reached
 * and, if reading began at offset 0, the digest of the file is that of the manifest. CLV_DATA_LOSS:
 * the worker does not have the file, or the file is too short or damaged. CLV_CANCELLED: the user
 * has interrupted the program. */
clv_code clv_stored_reader_next(clv_stored_reader *r, const void **ret_data, size_t *ret_len,
                                clv_err *err) CLV_USE_RESULT;
void clv_stored_reader_close(clv_stored_reader *r);
void clv_stored_reader_closep(clv_stored_reader **r);

/* Reads a file to its end, so that its digest is compared with the manifest. Errors are those of
 * clv_stored_reader_open and clv_stored_reader_next. */
clv_code clv_stores_check_file(clv_stores *s, const char *folder, const clv_manifest_file *f,
                               clv_err *err) CLV_USE_RESULT;
/* Compares a file with its row of the manifest by the digest that the file's worker reports. Does
 * not read files at workers. Errors as clv_stores_check_file. */
clv_code clv_stores_check_reported_digest(clv_stores *s, const char *folder,
                                          const clv_manifest_file *f, clv_err *err) CLV_USE_RESULT;

/* ---- fetching files from workers (gather.c) -------------------------------------------------- */

/* Callback after clv_checkpoint_gather has tried to fetch a file. reason: why the fetch has failed;
 * NULL: the file is in the folder now. */
typedef void clv_gather_report_fn(void *user, const clv_manifest_file *f, const clv_err *reason);

/* Fetches the files of a checkpoint that are at workers. A file is read by ranges into NAME.part,
 * compared with the manifest, renamed and then listed as a file in the folder. The worker's copy
 * becomes an orphan, a file that is removed later. After a crash the next call continues where this
 * call has stopped. Reports each file. If a file fails, goes on with the other files and returns
 * the first failure. The caller holds the lock of the run. */
clv_code clv_checkpoint_gather(const char *run_dir, uint64_t step, clv_stores *s,
                               clv_gather_report_fn *report, void *user,
                               clv_err *err) CLV_USE_RESULT;

/* ---- removing orphans, files that no checkpoint needs (orphans.c) ---------------------------- */

/* A file at a worker that no checkpoint needs, and that the master has yet to remove. */
typedef struct clv_orphan {
  char kept_file_name[CLV_FILE_NAME + 1];
  uint64_t bytes;
  char *keeper_identity; /* identity of the worker that has the file */
} clv_orphan;

/* Contents of the file kept.orphans of a run folder, which lists files to remove at workers. The
 * master adds a file before it deletes the last manifest that needs the file, and drops the file
 * when its worker has removed it. */
typedef struct clv_orphans {
  clv_orphan *list; /* [n] the listed files */
  size_t n;
} clv_orphans;
#define CLV_ORPHANS_FILE "kept.orphans"

void clv_orphans_done(clv_orphans *o);
/* Parses the text of kept.orphans: lines "FILE BYTES IDENTITY". CLV_DATA_LOSS: the text has other
 * lines; err names `label`. */
clv_code clv_orphans_parse(const char *text, size_t len, const char *label, clv_orphans *ret,
                           clv_err *err) CLV_USE_RESULT;
/* Reads kept.orphans of a run folder. Without such a file the list is empty. */
clv_code clv_orphans_read(const char *run_dir, clv_orphans *ret, clv_err *err) CLV_USE_RESULT;
/* Adds the files of a manifest that are at workers to kept.orphans, and syncs kept.orphans to the
 * disk. */
clv_code clv_orphans_add_manifest_files(const char *run_dir, const clv_manifest *m,
                                        clv_err *err) CLV_USE_RESULT;

/* Callback for each orphan that a call has tried to remove. reason: why it could not be removed;
 * NULL: the worker has no such file any more. */
typedef void clv_orphan_report_fn(void *user, const clv_orphan *o, const clv_err *reason);

/* Removes the orphans of a run folder at their workers and then from kept.orphans. Skips a file
 * that a manifest in the folder still lists; reports each of the others. Returns the first failure;
 * files that could not be removed stay listed. The caller holds the lock of the run. */
clv_code clv_orphans_remove_files(const char *run_dir, clv_stores *s, clv_orphan_report_fn *report,
                                  void *user, clv_err *err) CLV_USE_RESULT;
/* Deletes the checkpoint of a step. The checkpoint's files at workers become orphans. */
clv_code clv_checkpoint_abandon(const char *run_dir, uint64_t step, clv_err *err) CLV_USE_RESULT;

/* ---- escrow: sealed, encrypted copies of checkpoints (escrow.c) ------------------------------ */

/* Folder of the sealed copies of a run's checkpoints: DIR/ID. A copy is DIR/ID/checkpoint-STEP with
 * NAME.sealed for each file of the checkpoint, and MANIFEST.json.sealed, which is written last. */
typedef struct clv_escrow_location {
  const char *dir, *id; /* DIR and ID of the folder DIR/ID; ID: id of the run, from run.json */
} clv_escrow_location;

/* Writes a sealed (encrypted) copy of a checkpoint, whose files are in its folder or at workers,
 * and then deletes the copies of all other steps. Completes a copy that an earlier call has begun.
 * *ret_bytes: bytes of the checkpoint's files, 0 if the copy was complete already. CLV_CANCELLED:
 * `cancel_hook` (may be NULL) has ended the call. */
clv_code clv_escrow_write_copy(const clv_escrow_location *at, const clv_seal_key *key,
                               const char *run_dir, uint64_t step, clv_stores *s,
                               const clv_cancel_hook *cancel_hook, uint64_t *ret_bytes,
                               clv_err *err) CLV_USE_RESULT;
/* Deletes the sealed copy of a step, if there is one. */
clv_code clv_escrow_remove_copy(const clv_escrow_location *at, uint64_t step,
                                clv_err *err) CLV_USE_RESULT;
/* Returns the step of the newest complete sealed copy; CLV_CHECKPOINT_NONE: there is none. */
uint64_t clv_escrow_newest_step(const clv_escrow_location *at);
/* Reads the id of the key that sealed the newest complete copy. CLV_NOT_FOUND: there is no copy. */
clv_code clv_escrow_key_id(const clv_escrow_location *at, char ret_id[17],
                           clv_err *err) CLV_USE_RESULT;
/* Unseals (decrypts) the newest complete copy that is not damaged to the run folder, as a
 * checkpoint with all files in its folder. Keeps undamaged files that the folder has already.
 * CLV_NOT_FOUND: there is no complete copy. The caller holds the lock of the run. */
clv_code clv_escrow_restore_checkpoint(const clv_escrow_location *at, const clv_seal_key *key,
                                       const char *run_dir, uint64_t *ret_step,
                                       clv_err *err) CLV_USE_RESULT;

/* ---- state of the sealed copies (escrow_state.c) --------------------------------------------- */

/* State of the sealed copies of a run, which any process can read from their folder. */
typedef struct clv_escrow_state {
  uint64_t step;  /* step of the newest complete copy; CLV_CHECKPOINT_NONE: there is none */
  uint64_t bytes; /* size in bytes of the sealed (encrypted) files of the newest complete copy */
  /* time at which the newest complete copy was completed, in ms since 1970 */
  uint64_t completed_wall_ms;
  char error[CLV_ERR_TEXT]; /* why the last try to seal a copy has failed; "": no failure */
  uint64_t error_wall_ms;   /* time of the failure in `error`, in ms since 1970 */
} clv_escrow_state;
void clv_escrow_read_state(const clv_escrow_location *at, clv_escrow_state *ret);
/* Stores the reason `text` why sealing a copy has failed. text NULL: a copy has succeeded, so the
 * stored reason is removed. */
void clv_escrow_note_error(const clv_escrow_location *at, const char *text);

/* ---- sealing in the background (escrow_thread.c) --------------------------------------------- */

/* A thread that writes a sealed copy of the newest checkpoint of a run, again and again. */
typedef struct clv_escrow clv_escrow;

/* Starts the sealing thread with the settings of checkpoint.escrow. config must outlive the result;
 * the other arguments are copied. */
clv_code clv_escrow_start(const clv_session_config *config, const clv_escrow_location *at,
                          const clv_seal_key *key, const char *run_dir, clv_escrow **ret,
                          clv_err *err) CLV_USE_RESULT;
/* Progress of the thread that seals copies. */
typedef struct clv_escrow_progress {
  uint64_t step; /* step of the newest complete copy; CLV_CHECKPOINT_NONE: there is none */
  /* size in bytes of the checkpoint's files in the newest copy; 0: another process made the copy */
  uint64_t bytes;
  /* time at which the newest complete copy was completed, in ms since 1970; 0: another process made
   * the copy */
  uint64_t completed_wall_ms;
  uint64_t n_failures; /* number of tries to seal a copy that have failed */
} clv_escrow_progress;
void clv_escrow_get_progress(clv_escrow *e, clv_escrow_progress *ret);
/* Appends a line of text for each copy that was completed, and for each failed try to make a copy,
 * since the last call. */
void clv_escrow_take_notes(clv_escrow *e, clv_bytes *out);
/* ends the thread, which abandons an unfinished copy; frees e; NULL is allowed */
void clv_escrow_stop(clv_escrow *e);

#endif
