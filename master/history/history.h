/* SPDX-License-Identifier: Apache-2.0
 *
 * history: which runs there are, what became of them, and the lock that says which of them live. A
 * run folder belongs to the process that holds a record lock on its run.lock: the kernel gives it
 * to one process at a time, lets go of it when that process ends, however it ends, and tells others
 * who it is. run.json says the rest.
 *
 * Such locks are of the process, and go when it closes any descriptor of the file: only a run lock
 * opens run.lock in the process that trains.
 *
 * Threads: one at a time.
 */
#ifndef CLEAVE_HISTORY_H
#define CLEAVE_HISTORY_H

#include <signal.h>

#include "common/base/base.h"
#include "common/model/weights/weights.h"

/* ---- the one who trains ---------------------------------------------------------------------- */

/* A run folder that is this process's, and its record. */
typedef struct clv_run_lock clv_run_lock;

/* Files of a run besides those that its record, its log and its checkpoints are in. */
#define CLV_RUN_CLASSES_FILE "classes"      /* names of the classes, a line each, in their order */
#define CLV_RUN_BEST_FILE "checkpoint.best" /* which checkpoint is the best, and by what */
#define CLV_RUN_DATA_FILE "data.digest"     /* digests of the records and labels that it is of */
/* what resumed attempts found changed, before and after */
#define CLV_RUN_CHANGES_FILE "changes.jsonl"

/* Makes the folder, and brings back what a --fresh that was killed has moved. CLV_PRECONDITION:
 * another process trains there; the text says which. */
clv_code clv_run_lock_new(const char *run_dir, clv_run_lock **ret, clv_err *err) CLV_USE_RESULT;
void clv_run_lock_free(clv_run_lock *c); /* lets go; NULL is allowed */

/* Whether the last attempt that is recorded there is finished. */
bool clv_run_lock_is_finished(const clv_run_lock *c);

/* Whether a checkpoint is recorded there. */
bool clv_run_lock_has_checkpoint(const clv_run_lock *c);

/* Makes room for a run that starts afresh: what is there goes to a folder NAME.1, NAME.2 ... beside
 * this one. It stays there if the run there was finished once, else it is deleted when the new one
 * starts. Before that, the end of the attempt, and its death, bring it back. */
clv_code clv_run_lock_make_room(clv_run_lock *c, clv_err *err) CLV_USE_RESULT;
/* The folder of a finished run that made room; NULL: none did. */
const char *clv_run_lock_moved_folder(const clv_run_lock *c);

typedef struct clv_run_lock_info {
  const char *name, *session; /* of the run; its file, as given */
  bool resume;                /* an attempt more at the run that is recorded there */
  clv_notifier notice; /* of a record that cannot be read or written; for as long as the lock is */
} clv_run_lock_info;

/* Writes that an attempt begins. A damaged record of earlier ones is warned of, and replaced. */
clv_code clv_run_lock_begin(clv_run_lock *c, const clv_run_lock_info *run,
                            clv_err *err) CLV_USE_RESULT;
/* What workers are told of the attempt that has begun: the session's id and this attempt's
 * epoch. */
void clv_run_lock_attempt_id(const clv_run_lock *c, uint8_t ret_session[16], uint64_t *ret_epoch);
/* Notes what was read of what is going to leave. */
void clv_run_lock_note_look(clv_run_lock *c, const char *read);
/* Writes where it starts, and of what session. The record is no reason to lose a run: from here on
 * it is warned of when it cannot be written. A NULL lock is allowed. */
void clv_run_lock_note_start(clv_run_lock *c, uint64_t step, uint64_t total_steps,
                             const clv_sha256 *config);
void clv_run_lock_note_step(clv_run_lock *c, uint64_t step, double loss,
                            double accuracy); /* writes nothing */
/* Remembers the best: by accuracy (NaN: by loss). */
void clv_run_lock_note_evaluation(clv_run_lock *c, const clv_run_best *e);
void clv_run_lock_note_checkpoint(clv_run_lock *c); /* a checkpoint: writes */
/* An attempt that has not started leaves nothing of itself in a folder that it made, or in which
 * another run made room for it. */
void clv_run_lock_end(clv_run_lock *c, clv_run_status status, unsigned code, const char *text);

/* Whether a signal is the request of clv_history_stop. */
bool clv_is_stop_request(const siginfo_t *info);

/* ---- everybody else -------------------------------------------------------------------------- */

/* All but the first print to standard output. Names are those of folders in runs/ below the working
 * folder; anything with a '/' is a folder. CLV_NOT_FOUND: there is no such run; the text has a "did
 * you mean". */

/* Folder of a run; to be freed. */
clv_code clv_history_find(const char *run, char **ret_folder, clv_err *err) CLV_USE_RESULT;

/* A table of the runs in `folder`, newest first, or one JSON object per line. */
clv_code clv_history_list(const char *folder, bool json, clv_err *err) CLV_USE_RESULT;

/* What a run printed. follow: goes on until the run ends, then *ret_exit is its outcome, else 0. */
clv_code clv_history_log(const char *run, bool follow, bool json, int *ret_exit,
                         clv_err *err) CLV_USE_RESULT;

/* Asks a run to end after a checkpoint, or ends it at once (now), waits for its end and says how it
 * was. *ret_exit: 0 when it ended as asked or was finished, else its exit code. CLV_PRECONDITION:
 * it does not run; CLV_UNAVAILABLE: not on this host; CLV_DENIED: somebody else's. */
clv_code clv_history_stop(const char *run, bool now, bool json, int *ret_exit,
                          clv_err *err) CLV_USE_RESULT;

#endif
