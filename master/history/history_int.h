/* SPDX-License-Identifier: Apache-2.0
 *
 * Who holds a run folder (folder_lock.c), the run lock of the process that trains (run_lock.c), how
 * a run makes room for another (run_folder.c), and what can be said of a run from outside
 * (run_entry.c).
 */
#ifndef CLEAVE_HISTORY_INT_H
#define CLEAVE_HISTORY_INT_H

#include "master/history/history.h"

#define CLV_RUN_LOCK_FILE "run.lock"
#define CLV_RUNS_FOLDER "runs" /* where run folders are, unless said otherwise */
/* Of CLV_STATE_DIED, to people. */
#define CLV_DIED_TEXT \
  "its process is gone and left no word: killed, its machine went down, or its disk was full"

/* ---- processes and locks (folder_lock.c) ----------------------------------------------------- */

/* host, boot, pid and pid_start of this process into an attempt. */
void clv_process_describe_self(clv_run_attempt *ret);
/* Start of a process in clock ticks since boot; 0: there is none. */
uint64_t clv_process_start_time(long pid);

/* Takes the lock of a folder. *ret_fd holds it until it is closed. CLV_PRECONDITION: it is taken,
 * by *ret_pid (0: by a process that cannot be seen from here). CLV_NOT_FOUND: the folder is
 * gone. */
clv_code clv_run_folder_lock(const char *run_dir, int *ret_fd, long *ret_pid,
                             clv_err *err) CLV_USE_RESULT;
/* Whether the lock is held by another process, and by which. Never in a process with a run lock. */
bool clv_run_folder_is_locked(const char *run_dir, long *ret_pid);

/* ---- records in their folders (run_lock.c) --------------------------------------------------- */

clv_code clv_run_record_read(const char *run_dir, clv_run_record *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_record_write(const char *run_dir, const clv_run_record *r,
                              clv_err *err) CLV_USE_RESULT;

/* ---- what a run has in its folder (run_folder.c); the lock is held --------------------------- */

bool clv_is_run_file(const char *name); /* a file or folder of that name */

/* All that is there of a run goes to *ret, a new folder NAME.1, NAME.2 ... beside it, which the
 * caller frees; NULL when there is nothing. Until clv_run_folder_commit_move a note says so, and
 * clv_run_folder_undo_move, by whoever takes the folder next, undoes it, wherever this one was
 * killed. */
clv_code clv_run_folder_move_aside(const char *run_dir, char **ret, clv_err *err) CLV_USE_RESULT;
/* Nothing without a note. What a run that did not start has left there is deleted. */
clv_code clv_run_folder_undo_move(const char *run_dir, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_folder_commit_move(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* Deletes what is there of a run; the second the lock and the folder too, if it is empty then. */
clv_code clv_run_folder_clear(const char *folder, clv_err *err) CLV_USE_RESULT;
clv_code clv_run_folder_remove(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* The note: to which folder, and whether everything is there. text: [len], and a NUL behind it.
 * CLV_DATA_LOSS: it is none. */
typedef struct clv_move_note {
  unsigned number;
  bool whole;
} clv_move_note;
clv_code clv_move_note_parse(const char *text, size_t len, const char *label, clv_move_note *ret,
                             clv_err *err) CLV_USE_RESULT;

/* ---- a run as others see it (run_entry.c) ---------------------------------------------------- */

typedef enum clv_run_state {
  CLV_STATE_RUNNING,
  CLV_STATE_FINISHED,
  CLV_STATE_FAILED,
  CLV_STATE_INTERRUPTED,
  CLV_STATE_STOPPED,
  CLV_STATE_DIED,      /* without a word: killed, or its machine went down */
  CLV_STATE_ELSEWHERE, /* it said on another host that it runs */
  CLV_STATE_DAMAGED,   /* its record cannot be read */
  CLV_STATE_UNRECORDED /* a run folder without a record */
} clv_run_state;

const char *clv_run_state_name(clv_run_state state);

typedef struct clv_run_entry {
  char *folder;
  const char *name; /* last part of folder */
  clv_run_state state;
  clv_run_record record; /* no attempts: there is none */
  clv_err why;           /* DAMAGED */
  long holder;           /* RUNNING: its process, 0 when it cannot be seen */
  uint64_t step;         /* so far, as the next two: newer than the record's */
  double loss, accuracy; /* NaN: not known */
} clv_run_entry;

/* CLV_NOT_FOUND: the folder is none of a run. */
clv_code clv_run_entry_read(const char *folder, clv_run_entry *ret, clv_err *err) CLV_USE_RESULT;
void clv_run_entry_done(clv_run_entry *e);
/* The last attempt; NULL without a record. */
const clv_run_attempt *clv_run_entry_last_attempt(const clv_run_entry *e);
/* The exit code that a run which is over has for those who waited for it. */
int clv_run_entry_exit_code(const clv_run_entry *e);
/* Folder of the run that a person named. */
clv_code clv_run_entry_find_folder(const char *run, char **ret_folder, clv_err *err) CLV_USE_RESULT;

/* A text of somebody else's for a terminal: what is not UTF-8, and control characters but line
 * feeds and tabs, become '?'. */
void clv_print_sanitized(const char *text);

void clv_fd_closep(int *fd); /* for CLV_AUTO */

#endif
