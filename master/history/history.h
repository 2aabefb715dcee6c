/* SPDX-License-Identifier: Apache-2.0
 *
 * history: the folders of runs, the outcome of each run, and the lock that shows which runs are
 * alive. A run folder belongs to the process that holds a record lock (fcntl) on its run.lock. The
 * kernel grants the lock to one process at a time, releases it when that process ends for any
 * reason, and reports the holder to other processes. run.json records everything else.
 *
 * `train` calls the clv_run_lock_ functions: _new takes the folder, _begin records an attempt,
 * the _note_ functions update the record while the run trains, and _end records the outcome. The
 * commands runs, log and stop call the clv_history_ functions from other processes.
 *
 * Record locks belong to the process, and the kernel releases them when the process closes any
 * descriptor of the file. Therefore the process that trains opens run.lock only in
 * clv_run_lock_new.
 *
 * Threads: call these functions from one thread at a time.
 */
#ifndef CLEAVE_HISTORY_H
#define CLEAVE_HISTORY_H

#include <signal.h>

#include "common/base/base.h"
#include "common/model/weights/weights.h"

/* ---- functions for the process that trains --------------------------------------------------- */

/* A run folder that this process has locked, and the record of the run. */
typedef struct clv_run_lock clv_run_lock;

/* Files of a run folder, besides the record, the logs and the checkpoints. */
#define CLV_RUN_CLASSES_FILE "classes"      /* names of the classes, a line each, in their order */
#define CLV_RUN_BEST_FILE "checkpoint.best" /* step, metric and value of the best checkpoint */
/* settings of a table's columns that were computed from the training records */
#define CLV_RUN_TABLE_FILE "table.json"
/* ids and losses of the test records with the largest losses */
#define CLV_RUN_WORST_FILE "worst_records.json"
/* result of `eval --intervals`: step, number of records, scores and their intervals */
#define CLV_RUN_INTERVALS_FILE "intervals.json"
#define CLV_RUN_DATA_FILE "data.digest" /* digests of the training records and labels */
/* changes of session and data that resumed attempts found, with the old and the new value */
#define CLV_RUN_CHANGES_FILE "changes.jsonl"

/* Creates the run folder if needed, locks it, and moves back the files that a killed `train
 * --fresh` had moved away. CLV_PRECONDITION: another process trains in the folder; the error text
 * names it. */
clv_code clv_run_lock_new(const char *run_dir, clv_run_lock **ret, clv_err *err) CLV_USE_RESULT;
void clv_run_lock_free(clv_run_lock *c); /* releases the lock; NULL is allowed */

/* True if run.json records that the last attempt finished. */
bool clv_run_lock_is_finished(const clv_run_lock *c);

/* True if run.json records a checkpoint. */
bool clv_run_lock_has_checkpoint(const clv_run_lock *c);

/* Makes room for a run that starts from scratch: moves the files of the earlier run to a new folder
 * NAME.1, NAME.2 ... beside the run folder. When the new run starts (clv_run_lock_note_start), the
 * earlier run stays there if it had finished once, and is deleted otherwise. If the new attempt
 * ends or dies before it starts, the files are moved back. */
clv_code clv_run_lock_move_earlier_run(clv_run_lock *c, clv_err *err) CLV_USE_RESULT;
/* Returns the path of the folder that now has an earlier, finished run; NULL: none was moved. */
const char *clv_run_lock_moved_folder(const clv_run_lock *c);

typedef struct clv_run_lock_info {
  const char *name, *session; /* name of the run; path of the session file, as given */
  bool is_resume;             /* true: a further attempt at the run that run.json records */
  clv_notifier notifier;      /* receives read and write errors of run.json; outlives the lock */
} clv_run_lock_info;

/* Records that an attempt begins. Warns of a damaged record of earlier attempts and replaces it. */
clv_code clv_run_lock_begin(clv_run_lock *c, const clv_run_lock_info *run,
                            clv_err *err) CLV_USE_RESULT;
/* Ends the attempt as recovered, and records that another attempt begins in this process. code,
 * failure_text: exit code and text of the failure that the run recovers from. CLV_ABORTED: see
 * clv_run_lock_check_newest. */
clv_code clv_run_lock_begin_again(clv_run_lock *c, unsigned code, const char *failure_text,
                                  clv_err *err) CLV_USE_RESULT;
/* Raises the epoch, the number of the attempt, so that workers replace the session that they still
 * have by a new one. */
clv_code clv_run_lock_raise_epoch(clv_run_lock *c, clv_err *err) CLV_USE_RESULT;
/* Records that the attempt, after a recovery, trains again from `step`. */
void clv_run_lock_note_recovery(clv_run_lock *c, uint64_t step);
/* Reads run.json. CLV_ABORTED: another process has begun an attempt in the folder, which only
 * happens if the folder's file system gave its lock to two hosts; this process must not write to
 * the run any more. */
clv_code clv_run_lock_check_newest(const clv_run_lock *c, clv_err *err) CLV_USE_RESULT;
/* Returns what the master sends to workers for the attempt that has begun: the session id and the
 * epoch of this attempt. */
void clv_run_lock_attempt_id(const clv_run_lock *c, uint8_t ret_session[16], uint64_t *ret_epoch);
/* Records `summary`: what the look, the measurement before the run, found in the tensors that will
 * be sent. */
void clv_run_lock_note_look(clv_run_lock *c, const char *summary);
/* Records the first step, the number of steps and the digest of the session. After this call a
 * failed write of run.json causes a notice, not an error, so that it never ends a run. c may be
 * NULL here and in the functions below. */
void clv_run_lock_note_start(clv_run_lock *c, uint64_t step, uint64_t total_steps,
                             const clv_sha256 *config);
/* Updates step, loss and accuracy in the record in memory. Does not write run.json. */
void clv_run_lock_note_step(clv_run_lock *c, uint64_t step, double loss, double accuracy);
/* Records the evaluation `e` if it is the best so far: by accuracy, or by loss where accuracy is
 * NaN. */
void clv_run_lock_note_evaluation(clv_run_lock *c, const clv_run_best *e);
/* Forgets the best evaluation if its step is later than `step`, to which the run goes back. */
void clv_run_lock_note_rewind(clv_run_lock *c, uint64_t step);
void clv_run_lock_note_checkpoint(clv_run_lock *c); /* call after a checkpoint: writes run.json */
/* Records the outcome of the attempt. An attempt that never started is undone instead, if it
 * created the folder or moved an earlier run away: its files are removed, and the earlier run is
 * moved back. */
void clv_run_lock_end(clv_run_lock *c, clv_run_status status, unsigned code, const char *text);

/* True if clv_history_stop_run sent this signal. */
bool clv_is_stop_request(const siginfo_t *info);

/* ---- functions for other processes ----------------------------------------------------------- */

/* All functions below except clv_history_find_folder print to standard output. A `run` without '/'
 * names a folder in runs/ below the working folder; with '/' it is a path. CLV_NOT_FOUND: there is
 * no such run; the message suggests a similar name. */

/* Returns the path of a run's folder. The caller frees the path. */
clv_code clv_history_find_folder(const char *run, char **ret_folder, clv_err *err) CLV_USE_RESULT;

/* Prints a table of the runs in `folder`, newest first, or one JSON object per line. */
clv_code clv_history_print_runs(const char *folder, bool json, clv_err *err) CLV_USE_RESULT;

/* Prints the log of a run. follows: continues until the run ends and sets *ret_exit_code to its
 * exit code; otherwise *ret_exit_code is 0. */
clv_code clv_history_print_log(const char *run, bool follows, bool json, int *ret_exit_code,
                               clv_err *err) CLV_USE_RESULT;

/* Asks a run to end after a checkpoint, or kills it (kills_now). Waits until it has ended and
 * prints its state. *ret_exit_code: 0 if it stopped as asked or had finished, else its exit code.
 * CLV_PRECONDITION: the run is not running; CLV_UNAVAILABLE: it runs on another host; CLV_DENIED:
 * it belongs to another user. */
clv_code clv_history_stop_run(const char *run, bool kills_now, bool json, int *ret_exit_code,
                              clv_err *err) CLV_USE_RESULT;

#endif
