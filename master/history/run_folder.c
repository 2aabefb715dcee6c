/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of a run folder, and how an old run makes room for a new one. clv_run_folder_move_aside
 * moves the old files one by one into a folder beside it, NAME.1 or the next free number. A note in
 * the run folder, run.moving, exists from before the first file moves until the new run has started
 * (clv_run_folder_commit_move). A process that locks the folder and finds the note moves everything
 * back (clv_run_folder_undo_move). So until the new run has started, no crash loses the old one.
 * All callers hold the run lock (run_lock.c).
 *
 * run.lock and files that belong to no run are not moved. egress.jsonl is not moved either, because
 * it records what was sent from this folder by any run.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/history/history_int.h"

#define NOTE_FILE_NAME "run.moving"

enum { MAX_FOLDER_NUMBER = 99999, MAX_NOTE_BYTES = 64, MAX_ENTRIES = 100000 };

/* ---- names of a run's files ------------------------------------------------------------------ */

static bool is_checkpoint(const char *name) {
  static const char prefix[] = "checkpoint-";
  const char *digits = name + sizeof prefix - 1;
  if (strncmp(name, prefix, sizeof prefix - 1) != 0 || !*digits) return false;
  return digits[strspn(digits, "0123456789")] == '\0';
}

bool clv_is_run_file(const char *name) {
  static const char *const names[] = {"run.json",         "session.effective.yaml",
                                      "log.txt",          "log.jsonl",
                                      "metrics.jsonl",    "pace.jsonl",
                                      "egress.table",     "evaluations.jsonl",
                                      "run.key",          "schedule.failed",
                                      "tensorboard",      CLV_RUN_CLASSES_FILE,
                                      CLV_RUN_BEST_FILE,  CLV_RUN_DATA_FILE,
                                      CLV_RUN_TABLE_FILE, CLV_RUN_CHANGES_FILE,
                                      CLV_RUN_WORST_FILE, CLV_RUN_INTERVALS_FILE};
  for (size_t i = 0; i < CLV_COUNT(names); i++)
    if (strcmp(name, names[i]) == 0) return true;
  return is_checkpoint(name);
}

typedef struct folder_names {
  char **items;
  size_t n;
} folder_names;

static void names_done(folder_names *l) {
  for (size_t i = 0; i < l->n; i++) free(l->items[i]);
  free(l->items);
}

static void dir_closep(DIR **dir) {
  if (*dir) closedir(*dir);
}

static clv_code fail_errno(const char *path, clv_err *err) {
  return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_UNAVAILABLE, "%s: %s", path,
                  strerror(errno));
}

static clv_code open_dir(const char *path, DIR **ret, clv_err *err) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  *ret = fd >= 0 ? fdopendir(fd) : NULL;
  if (*ret) return CLV_OK;
  if (fd >= 0) close(fd);
  return fail_errno(path, err);
}

static clv_code add_name(folder_names *l, const char *name, clv_err *err) {
  char **grown = l->n < MAX_ENTRIES ? reallocarray(l->items, l->n + 1, sizeof *grown) : NULL;
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "no memory for the names of %zu files", l->n);
  l->items = grown;
  CLV_TRY(clv_strdup(name, &grown[l->n], err));
  l->n++;
  return CLV_OK;
}

/* Lists the files of a run in a folder. */
static clv_code list_names(const char *folder, folder_names *ret, clv_err *err) {
  CLV_AUTO(dir_closep) DIR *dir = NULL;
  CLV_TRY(open_dir(folder, &dir, err));
  for (const struct dirent *e; (e = readdir(dir));)
    if (clv_is_run_file(e->d_name)) CLV_TRY(add_name(ret, e->d_name, err));
  return CLV_OK;
}

/* ---- the note run.moving --------------------------------------------------------------------- */

static void format_note(const clv_move_note *m, char text[MAX_NOTE_BYTES]) {
  snprintf(text, MAX_NOTE_BYTES, "%u %s\n", m->number, m->is_complete ? "moved" : "moving");
}

/* Accepts only the exact bytes that format_note writes. */
clv_code clv_move_note_parse(const char *text, size_t len, const char *label, clv_move_note *ret,
                             clv_err *err) {
  char expected_text[MAX_NOTE_BYTES];
  unsigned long number = isdigit((unsigned char)text[0]) ? strtoul(text, NULL, 10) : 0;
  for (int is_complete = 0; is_complete < 2 && number && number <= MAX_FOLDER_NUMBER;
       is_complete++) {
    clv_move_note m = {.number = (unsigned)number, .is_complete = is_complete};
    format_note(&m, expected_text);
    if (len != strlen(expected_text) || memcmp(text, expected_text, len) != 0) continue;
    *ret = m;
    return CLV_OK;
  }
  return clv_fail(
      err, CLV_DATA_LOSS,
      "%s is damaged: it names the folder that holds the files of the earlier run; move "
      "them back and remove it",
      label);
}

static clv_code read_note(const char *run_dir, clv_move_note *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/" NOTE_FILE_NAME, run_dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, MAX_NOTE_BYTES, &text, err));
  return clv_move_note_parse(text.data ? text.data : "", text.len, path.data, ret, err);
}

static clv_code write_note(const char *run_dir, const clv_move_note *m, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char text[MAX_NOTE_BYTES];
  format_note(m, text);
  clv_bytes_printf(&path, "%s/" NOTE_FILE_NAME, run_dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text, strlen(text), 0644, err);
}

static clv_code remove_file(const char *folder, const char *name, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", folder, name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return unlink(path.data) == 0 || errno == ENOENT ? CLV_OK : fail_errno(path.data, err);
}

/* ---- moving the files of a run --------------------------------------------------------------- */

/* Makes the path of NAME.number beside the run folder, with symbolic links resolved. */
static clv_code format_numbered_path(const char *run_dir, unsigned number, char **ret,
                                     clv_err *err) {
  CLV_AUTO(clv_freep) char *real = realpath(run_dir, NULL);
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  if (!real) return fail_errno(run_dir, err);
  clv_bytes_printf(&path, "%s.%u", real, number);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret = clv_steal(&path.data);
  return CLV_OK;
}

static clv_code sync_folder(const char *path, clv_err *err) {
  CLV_AUTO(clv_fd_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd >= 0 && fsync(fd) == 0 ? CLV_OK : fail_errno(path, err);
}

static clv_code move_names(const char *from, const char *to, clv_err *err) {
  CLV_AUTO(names_done) folder_names l = {0};
  CLV_TRY(list_names(from, &l, err));
  for (size_t i = 0; i < l.n; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes old = {0}, new = {0};
    clv_bytes_printf(&old, "%s/%s", from, l.items[i]);
    clv_bytes_printf(&new, "%s/%s", to, l.items[i]);
    if (old.failed || new.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    if (rename(old.data, new.data) != 0) return fail_errno(new.data, err);
  }
  CLV_TRY(sync_folder(to, err));
  return sync_folder(from, err);
}

static clv_code make_numbered_folder(const char *run_dir, unsigned *ret_number, char **ret,
                                     clv_err *err) {
  for (unsigned number = 1; number <= MAX_FOLDER_NUMBER; number++) {
    CLV_AUTO(clv_freep) char *path = NULL;
    CLV_TRY(format_numbered_path(run_dir, number, &path, err));
    if (mkdir(path, 0755) == 0) {
      *ret_number = number;
      *ret = clv_steal(&path);
      return CLV_OK;
    }
    if (errno != EEXIST) return fail_errno(path, err);
  }
  return clv_fail(err, CLV_EXHAUSTED, "%s: the folders .1 to .%d beside it all exist: remove some",
                  run_dir, MAX_FOLDER_NUMBER);
}

clv_code clv_run_folder_move_aside(const char *run_dir, char **ret, clv_err *err) {
  CLV_AUTO(names_done) folder_names l = {0};
  CLV_AUTO(clv_freep) char *aside = NULL;
  clv_move_note m = {0};
  CLV_TRY(list_names(run_dir, &l, err));
  if (!l.n) return CLV_OK;
  CLV_TRY(make_numbered_folder(run_dir, &m.number, &aside, err));
  CLV_TRY(write_note(run_dir, &m, err));
  CLV_TRY(move_names(run_dir, aside, err));
  m.is_complete = true;
  CLV_TRY(write_note(run_dir, &m, err));
  *ret = clv_steal(&aside);
  return CLV_OK;
}

/* Removes a file, or a folder of files without subfolders. */
static clv_code remove_tree(const char *path, clv_err *err) {
  CLV_AUTO(dir_closep) DIR *dir = NULL;
  if (unlink(path) == 0 || errno == ENOENT) return CLV_OK;
  if (errno != EISDIR && errno != EPERM) return fail_errno(path, err);
  CLV_TRY(open_dir(path, &dir, err));
  for (const struct dirent *e; (e = readdir(dir));)
    if (e->d_type != DT_DIR) (void)!unlinkat(dirfd(dir), e->d_name, 0);
  return rmdir(path) == 0 || errno == ENOTEMPTY || errno == EEXIST ? CLV_OK : fail_errno(path, err);
}

clv_code clv_run_folder_clear(const char *folder, clv_err *err) {
  CLV_AUTO(names_done) folder_names l = {0};
  CLV_TRY(clv_checkpoint_remove_all(folder, err));
  CLV_TRY(list_names(folder, &l, err));
  for (size_t i = 0; i < l.n; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    clv_bytes_printf(&path, "%s/%s", folder, l.items[i]);
    if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    CLV_TRY(remove_tree(path.data, err));
  }
  return CLV_OK;
}

/* Deletes the files of the new run, which did not start. Then marks the move as incomplete, so that
 * from now on files in the folder count as those of the earlier run. */
static clv_code delete_new_files(const char *run_dir, clv_move_note *m, clv_err *err) {
  if (!m->is_complete) return CLV_OK;
  CLV_TRY(clv_run_folder_clear(run_dir, err));
  m->is_complete = false;
  return write_note(run_dir, m, err);
}

clv_code clv_run_folder_undo_move(const char *run_dir, clv_err *err) {
  CLV_AUTO(clv_freep) char *aside = NULL;
  clv_move_note m;
  struct stat st;
  clv_code code = read_note(run_dir, &m, err);
  if (code != CLV_OK) return code == CLV_NOT_FOUND ? CLV_OK : code;
  CLV_TRY(format_numbered_path(run_dir, m.number, &aside, err));
  if (lstat(aside, &st) == 0) {
    CLV_TRY(delete_new_files(run_dir, &m, err));
    CLV_TRY(move_names(aside, run_dir, err));
    if (rmdir(aside) != 0 && errno != ENOTEMPTY && errno != EEXIST) return fail_errno(aside, err);
  }
  return clv_run_folder_commit_move(run_dir, err);
}

clv_code clv_run_folder_commit_move(const char *run_dir, clv_err *err) {
  CLV_TRY(remove_file(run_dir, NOTE_FILE_NAME, err));
  return sync_folder(run_dir, err);
}

clv_code clv_run_folder_remove(const char *run_dir, clv_err *err) {
  CLV_TRY(clv_run_folder_clear(run_dir, err));
  CLV_TRY(remove_file(run_dir, CLV_RUN_LOCK_FILE, err));
  return rmdir(run_dir) == 0 || errno == ENOTEMPTY || errno == EEXIST ? CLV_OK
                                                                      : fail_errno(run_dir, err);
}
