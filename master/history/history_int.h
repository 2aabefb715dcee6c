/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of history: the kernel lock on a run folder (folder_lock.c), the run lock of the
 * process that trains and run.json (run_lock.c), moving a run to another folder and back
 * (run_folder.c), and the state of a run as other processes see it (run_entry.c).
 */
#ifndef CLEAVE_HISTORY_INT_H
#define CLEAVE_HISTORY_INT_H

#include "master/history/history.h"

#define CLV_RUN_LOCK_FILE "run.lock"
/* folder of run folders, unless the session file names another one */
#define CLV_RUNS_FOLDER "runs"
/* Text for CLV_STATE_DIED, a run whose process ended without a record, in tables and logs. */
#define CLV_DIED_TEXT \
  "its process is gone and left no word: killed, its machine went down, or its disk was full"

/* ---- processes and locks (folder_lock.c) ----------------------------------------------------- */

/* Fills host, boot_id, pid and pid_start of an attempt with those of this process. */
void clv_process_describe_self(clv_run_attempt *ret);
/* Returns the start time of a process in clock ticks since boot; 0: there is no such process. */
uint64_t clv_process_start_time(long pid);

/* Locks a run folder. The lock lasts until the caller closes *ret_fd. CLV_PRECONDITION: process
 * *ret_pid holds the lock (0: a process in another PID namespace). CLV_NOT_FOUND: the folder has
 * been removed. */
clv_code clv_run_folder_lock(const char *run_dir, int *ret_fd, long *ret_pid,
                             clv_err *err) CLV_USE_RESULT;
/* Returns true if another process holds the lock of the run folder; *ret_pid is the id of that
 * process. Do not call this in a process that has a run lock, because closing the file would
 * release that lock. */
bool clv_run_folder_is_locked(const char *run_dir, long *ret_pid);

/* ---- run.json of a run (run_lock.c) ---------------------------------------------------------- */

clv_code clv_run_record_read(const char *run_dir, clv_run_record *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_record_write(const char *run_dir, const clv_run_record *r,
                              clv_err *err) CLV_USE_RESULT;

/* ---- files of a run in its folder (run_folder.c); the caller holds the lock ------------------ */

bool clv_is_run_file(const char *name); /* returns true if files of a run have that name */

/* Moves all files of a run to a new folder NAME.1, NAME.2 ... beside run_dir. *ret is the path
 * of that folder, which the caller frees; NULL: there were no files. A note in run_dir records
 * the move until clv_run_folder_commit_move. If this process is killed at any point before that,
 * the next process that locks the folder undoes the move with clv_run_folder_undo_move. */
clv_code clv_run_folder_move_aside(const char *run_dir, char **ret, clv_err *err) CLV_USE_RESULT;
/* Moves the files of the earlier run back, after deleting the files of the new run, which did not
 * start. Does nothing if run_dir has no note. */
clv_code clv_run_folder_undo_move(const char *run_dir, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_folder_commit_move(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* Delete the files of a run in a folder. clv_run_folder_remove also deletes run.lock, and the
 * folder if it is then empty. */
clv_code clv_run_folder_clear(const char *folder, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_folder_remove(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* The note in a run folder that records a move of its files. */
typedef struct clv_move_note {
  unsigned number; /* number of the target folder: 1 for NAME.1 */
  /* all files of the run were moved; false: some may still be in the run folder */
  bool is_complete;
} clv_move_note;
/* Parses a note of `len` bytes, followed by a NUL. CLV_DATA_LOSS: the text is not a note. */
clv_code clv_move_note_parse(const char *text, size_t len, const char *label, clv_move_note *ret,
                             clv_err *err) CLV_USE_RESULT;

/* ---- state of a run, for other processes (run_entry.c) --------------------------------------- */

/* State of a run. clv_run_entry_read determines it from the kernel lock on the run folder and from
 * run.json. The state itself is not stored, so it changes when the lock or run.json change.
 *
 *   RUNNING      Holds: another process has the lock. Entered: when `train` starts an attempt.
 *                Left: when that process releases the lock or dies.
 *   FINISHED, FAILED, INTERRUPTED, STOPPED
 *                Holds: the lock is free, and the last attempt in run.json has this end. Entered:
 *                when the process that trains records the end. Left: for RUNNING with
 *                `train --resume`.
 *   DIED         Holds: the lock is free, but run.json has no end of the last attempt. Entered:
 *                when the process was killed, or its machine or disk failed. Left: for RUNNING with
 *                `train --resume`.
 *   ELSEWHERE    Holds: run.json has no end of the last attempt, which a process of another host
 *                began, so its lock cannot be seen here. Left: when that process records an end.
 *   DAMAGED      Holds: the lock is free; run.json exists, but cannot be read.
 *   UNRECORDED   Holds: the lock is free; the folder has files of a run, perhaps of an older
 *                version, but no run.json. */
typedef enum clv_run_state {
  CLV_STATE_RUNNING,
  CLV_STATE_FINISHED,
  CLV_STATE_FAILED,
  CLV_STATE_INTERRUPTED,
  CLV_STATE_STOPPED,
  /* the attempt failed, and another attempt followed in the same process; the last attempt of a run
   * never has this state, unless run.json was edited */
  CLV_STATE_RECOVERED,
  CLV_STATE_DIED,      /* ended without recording why: killed, or its machine went down */
  CLV_STATE_ELSEWHERE, /* recorded as running, by a process of another host */
  CLV_STATE_DAMAGED,   /* run.json cannot be read */
  CLV_STATE_UNRECORDED /* the folder has files of a run, but no run.json */
} clv_run_state;

const char *clv_run_state_name(clv_run_state state);

typedef struct clv_run_entry {
  char *folder;
  const char *name; /* name of the run, the last component of `folder` */
  clv_run_state state;
  clv_run_record record; /* contents of run.json; without attempts if there is no run.json */
  clv_err read_error;    /* in state DAMAGED: why run.json could not be read */
  /* in state RUNNING: id of the process that trains; 0: it is in another PID namespace */
  long holder_pid;
  /* last known step: from run.json or, if it is newer, from the last line of metrics.jsonl */
  uint64_t step;
  double loss, accuracy; /* loss and accuracy at `step`; NaN: not known */
} clv_run_entry;

/* Reads the state of a run. CLV_NOT_FOUND: `folder` is not the folder of a run. */
clv_code clv_run_entry_read(const char *folder, clv_run_entry *ret, clv_err *err) CLV_USE_RESULT;
void clv_run_entry_done(clv_run_entry *e);
/* Returns the last attempt of a run; NULL: the run has no record. */
const clv_run_attempt *clv_run_entry_last_attempt(const clv_run_entry *e);
/* Returns the exit code for `log -f` or `stop`, which has waited for the end of the run: the
 * recorded exit code of the run, or 1 if none is recorded. */
int clv_run_entry_exit_code(const clv_run_entry *e);
/* Finds the folder of a run by its name or path. The caller frees *ret_folder. */
clv_code clv_run_entry_find_folder(const char *run, char **ret_folder, clv_err *err) CLV_USE_RESULT;

/* Prints untrusted text. Replaces invalid UTF-8, and control characters except line feeds and tabs,
 * by '?'. */
void clv_print_sanitized(const char *text);

void clv_fd_closep(int *fd); /* closes *fd unless it is -1; cleanup function for CLV_AUTO */

#endif
