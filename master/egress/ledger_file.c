/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds, reads, locks and extends the file of the ledger. clv_ledger_open reads the file for the
 * plan of a command. clv_ledger_add locks the file, reads it, appends new lines and waits for the
 * disk. A program adds to the ledger again and again, so its runtime keeps what it has read
 * (clv_kept_ledger), and reads only what is new. The trainer calls clv_ledger_add before it sends a
 * key or a tensor, so that the line of each key or tensor is on the disk first. clv_ledger_add
 * replaces a full file by a compacted one. clv_ledger_add also removes a truncated last line,
 * because the command that wrote that line cannot have sent the key or tensor of the line.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/egress/egress_int.h"

#define LEDGER_FILE_NAME "keys.ledger"
enum { MAX_LOCK_WAIT_MS = 10000, LOCK_RETRY_MS = 20 };

/* ---- the folder of the ledger ---------------------------------------------------------------- */

/* Appends the folder that systemd gives a service with StateDirectory=; of several folders, the
 * first. Returns false if there is none. */
static bool find_service_folder(clv_bytes *ret) {
  const char *folder_list = getenv("STATE_DIRECTORY");
  if (!folder_list || folder_list[0] != '/') return false;
  clv_bytes_add(ret, folder_list, strcspn(folder_list, ":"));
  return true;
}

static bool find_variable_folder(const char *name, const char *subfolder, clv_bytes *ret) {
  const char *folder = getenv(name);
  if (!folder || folder[0] != '/')
    return false; /* the XDG specification says to ignore relative paths */
  clv_bytes_printf(ret, "%s%s", folder, subfolder);
  return true;
}

static bool find_user_folder(const char *subfolder, clv_bytes *ret) {
  const struct passwd *user = getpwuid(geteuid());
  if (!user || !user->pw_dir || user->pw_dir[0] != '/' || !user->pw_dir[1]) return false;
  clv_bytes_printf(ret, "%s%s", user->pw_dir, subfolder);
  return true;
}

static clv_code find_folder(clv_bytes *ret, clv_err *err) {
  static const char subfolder[] = "/.local/state/cleave";
  if (!find_service_folder(ret) && !find_variable_folder("XDG_STATE_HOME", "/cleave", ret) &&
      !find_variable_folder("HOME", subfolder, ret) && !find_user_folder(subfolder, ret))
    return clv_fail(err, CLV_PRECONDITION,
                    "there is no folder for the ledger of keys: set XDG_STATE_HOME to one that "
                    "stays, since neither HOME nor STATE_DIRECTORY names any");
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* ---- the file of the ledger ------------------------------------------------------------------ */

typedef struct ledger_file {
  clv_bytes folder, path;
  int fd;           /* descriptor of the file; -1: not open */
  bool is_new_file; /* open_and_lock has created the file */
} ledger_file;

static void ledger_file_done(ledger_file *f) {
  if (f->fd >= 0) close(f->fd);
  clv_bytes_done(&f->folder);
  clv_bytes_done(&f->path);
}

static clv_code set_ledger_path(ledger_file *f, clv_err *err) {
  CLV_TRY(find_folder(&f->folder, err));
  clv_bytes_printf(&f->path, "%s/" LEDGER_FILE_NAME, f->folder.data);
  return f->path.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static clv_code fail_ledger_file(const ledger_file *f, const char *verb, const char *reason,
                                 clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION,
                  "the ledger of keys %s cannot be %s: %s; it keeps which layers workers know: set "
                  "XDG_STATE_HOME to a folder that stays and that you may write to",
                  f->path.data, verb, reason);
}

/* Refuses a file that another user owns or may write to, because that user could remove lines. */
static clv_code check_owner(const ledger_file *f, clv_err *err) {
  struct stat st;
  if (fstat(f->fd, &st) != 0) return fail_ledger_file(f, "read", strerror(errno), err);
  if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)))
    return CLV_OK;
  return clv_fail(
      err, CLV_INVALID,
      "the ledger of keys %s must be a plain file of user %u that no other user may write "
      "to, but belongs to user %u with mode %04o; fix: chown, chmod 600",
      f->path.data, (unsigned)geteuid(), (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
}

static clv_code fail_damaged(clv_err *err) {
  clv_err why = *err;
  return clv_fail(err, CLV_DATA_LOSS,
                  "the ledger of keys is damaged: %s; move it away to begin another: layers that "
                  "workers had until now count as secret then",
                  why.text);
}

/* Extends the ledger by what the file has after the ledger's lines. */
static clv_code read_new_lines(const ledger_file *f, clv_ledger *l, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char buf[65536];
  const size_t at = clv_ledger_count_bytes(l);
  for (;;) {
    ssize_t n = pread(f->fd, buf, sizeof buf, (off_t)(at + text.len));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_ledger_file(f, "read", strerror(errno), err);
    if (n == 0 || at + text.len > CLV_LEDGER_MAX_BYTES) break;
    clv_bytes_add(&text, buf, (size_t)n);
    if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  }
  return clv_ledger_extend(l, text.data, text.len, f->path.data, err) == CLV_OK ? CLV_OK
                                                                                : fail_damaged(err);
}

/* Opens the file for reading. f->fd stays -1 if there is no file. */
static clv_code open_for_reading(ledger_file *f, clv_err *err) {
  CLV_TRY(set_ledger_path(f, err));
  f->fd = open(f->path.data, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (f->fd < 0 && errno != ENOENT && errno != ENOTDIR)
    return fail_ledger_file(f, "read", strerror(errno), err);
  return f->fd >= 0 ? check_owner(f, err) : CLV_OK;
}

clv_code clv_ledger_open(clv_ledger **ret, clv_err *err) {
  CLV_AUTO(ledger_file_done) ledger_file f = {.fd = -1};
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = NULL;
  CLV_TRY(open_for_reading(&f, err));
  CLV_TRY(clv_ledger_new(&l, err));
  if (f.fd >= 0) CLV_TRY(read_new_lines(&f, l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}

/* ---- the kept ledger ------------------------------------------------------------------------- */

struct clv_kept_ledger {
  pthread_mutex_t lock; /* not held while the disk writes */
  clv_ledger *ledger;   /* NULL: not read yet, or no longer what the file has */
  struct stat file;     /* status of the file just before it was read last */
};

clv_code clv_kept_ledger_new(clv_kept_ledger **ret, clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  **ret = (clv_kept_ledger){.lock = PTHREAD_MUTEX_INITIALIZER};
  return CLV_OK;
}

void clv_kept_ledger_free(clv_kept_ledger *k) {
  if (!k) return;
  clv_ledger_free(k->ledger);
  pthread_mutex_destroy(&k->lock);
  free(k);
}

void clv_kept_ledger_freep(clv_kept_ledger **k) { clv_kept_ledger_free(*k); }

static void drop_kept_ledger(clv_kept_ledger *k) {
  clv_ledger_free(k->ledger);
  k->ledger = NULL;
}

/* Returns true if the file has the ledger's last bytes where the ledger has them. */
static bool has_same_last_bytes(const ledger_file *f, const clv_ledger *l) {
  char buf[256];
  size_t n = CLV_MIN(sizeof buf, clv_ledger_count_bytes(l)), at = clv_ledger_count_bytes(l) - n;
  return pread(f->fd, buf, n, (off_t)at) == (ssize_t)n && clv_ledger_has_bytes(l, at, buf, n);
}

/* Returns true if the file is the one that was read, and has at most grown since then. */
static bool is_kept_file(const clv_kept_ledger *k, const ledger_file *f, const struct stat *now) {
  const struct stat *was = &k->file;
  if (!k->ledger || now->st_dev != was->st_dev || now->st_ino != was->st_ino) return false;
  if (now->st_size == was->st_size)
    return now->st_mtim.tv_sec == was->st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == was->st_mtim.tv_nsec;
  return now->st_size > was->st_size && has_same_last_bytes(f, k->ledger);
}

/* Reads what is new in the open file. If it is not the file that was read before, reads it whole.
 * The caller has locked k->lock. */
static clv_code refresh_kept_ledger(clv_kept_ledger *k, const ledger_file *f, clv_err *err) {
  struct stat now;
  CLV_TRY(check_owner(f, err));
  if (fstat(f->fd, &now) != 0) return fail_ledger_file(f, "read", strerror(errno), err);
  if (!is_kept_file(k, f, &now)) {
    drop_kept_ledger(k);
    CLV_TRY(clv_ledger_new(&k->ledger, err));
  } else if (now.st_size == k->file.st_size) {
    return CLV_OK;
  }
  clv_code code = read_new_lines(f, k->ledger, err);
  if (code != CLV_OK) drop_kept_ledger(k);
  k->file = now;
  return code;
}

static clv_code open_kept_ledger(clv_kept_ledger *k, clv_err *err) {
  CLV_AUTO(ledger_file_done) ledger_file f = {.fd = -1};
  CLV_TRY(open_for_reading(&f, err));
  if (f.fd >= 0) return refresh_kept_ledger(k, &f, err);
  drop_kept_ledger(k);
  return clv_ledger_new(&k->ledger, err);
}

clv_code clv_kept_ledger_lock(clv_kept_ledger *k, const clv_ledger **ret, clv_err *err) {
  pthread_mutex_lock(&k->lock);
  clv_code code = open_kept_ledger(k, err);
  if (code != CLV_OK)
    pthread_mutex_unlock(&k->lock);
  else
    *ret = k->ledger;
  return code;
}

void clv_kept_ledger_unlock(clv_kept_ledger *k) { pthread_mutex_unlock(&k->lock); }

/* ---- adding lines to the ledger -------------------------------------------------------------- */

static clv_code make_folder(const ledger_file *f, clv_err *err) {
  struct stat st;
  clv_err why;
  if (stat(f->folder.data, &st) == 0) return CLV_OK;
  if (clv_mkdirs(f->folder.data, &why) != CLV_OK)
    return fail_ledger_file(f, "written", why.text, err);
  return chmod(f->folder.data, 0700) == 0 ? CLV_OK
                                          : fail_ledger_file(f, "written", strerror(errno), err);
}

/* Waits at most MAX_LOCK_WAIT_MS for the lock. Then it fails, because a stopped process that holds
 * the lock would otherwise block all others without any message. */
static clv_code lock_file(const ledger_file *f, clv_err *err) {
  for (int waited_ms = 0; flock(f->fd, LOCK_EX | LOCK_NB) != 0; waited_ms += LOCK_RETRY_MS) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return fail_ledger_file(f, "locked", strerror(errno), err);
    if (waited_ms >= MAX_LOCK_WAIT_MS)
      return fail_ledger_file(f, "locked", "another process has held it for 10 s", err);
    usleep(LOCK_RETRY_MS * 1000);
  }
  return CLV_OK;
}

static clv_code open_and_lock(ledger_file *f, clv_err *err) {
  f->is_new_file = access(f->path.data, F_OK) != 0;
  f->fd = open(f->path.data, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (f->fd < 0) return fail_ledger_file(f, "written", strerror(errno), err);
  return lock_file(f, err);
}

/* Returns true if the path no longer names the open file: another process has replaced it by a
 * compacted one, or a user has moved it away. */
static bool is_replaced(const ledger_file *f) {
  struct stat fd_stat, path_stat;
  if (fstat(f->fd, &fd_stat) != 0) return false;
  if (lstat(f->path.data, &path_stat) != 0) return errno == ENOENT;
  return fd_stat.st_ino != path_stat.st_ino || fd_stat.st_dev != path_stat.st_dev;
}

static clv_code open_locked_for_append(ledger_file *f, clv_err *err) {
  CLV_TRY(set_ledger_path(f, err));
  CLV_TRY(make_folder(f, err));
  CLV_TRY(open_and_lock(f, err));
  while (is_replaced(f)) {
    close(f->fd);
    CLV_TRY(open_and_lock(f, err));
  }
  return CLV_OK;
}

static clv_code append_lines(const ledger_file *f, size_t at, const clv_bytes *lines,
                             clv_err *err) {
  if (ftruncate(f->fd, (off_t)at) != 0) return fail_ledger_file(f, "written", strerror(errno), err);
  for (size_t n_written = 0; n_written < lines->len;) {
    ssize_t n =
        pwrite(f->fd, lines->data + n_written, lines->len - n_written, (off_t)(at + n_written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_ledger_file(f, "written", strerror(errno), err);
    n_written += (size_t)n;
  }
  if (fsync(f->fd) != 0) return fail_ledger_file(f, "written", strerror(errno), err);
  return f->is_new_file ? clv_file_sync_folder(f->path.data, err) : CLV_OK;
}

/* The bytes that clv_ledger_add writes. */
typedef struct ledger_change {
  size_t at;       /* offset in the file of the new lines */
  clv_bytes lines; /* the new lines */
  clv_bytes whole; /* empty, or the contents of a compacted file with the new lines */
} ledger_change;

static void ledger_change_done(ledger_change *c) {
  clv_bytes_done(&c->lines);
  clv_bytes_done(&c->whole);
}

static clv_code format_compacted_file(const ledger_file *f, clv_ledger *l, ledger_change *c,
                                      clv_err *err) {
  CLV_TRY(clv_ledger_compact(l, &c->whole, err));
  clv_bytes_add(&c->whole, c->lines.data, c->lines.len);
  if (c->whole.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (c->whole.len <= CLV_LEDGER_MAX_BYTES) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "the ledger of keys %s is full: it has %zu keys and weights, each once, and "
                  "at most %d MiB; move it away to begin another: layers that workers had until "
                  "now count as secret then",
                  f->path.data, clv_ledger_count(l), CLV_LEDGER_MAX_BYTES >> 20);
}

/* Formats what the items add to the open file. The caller has locked k->lock. */
static clv_code format_change(clv_kept_ledger *k, const ledger_file *f,
                              const clv_ledger_item *items, size_t n, ledger_change *ret,
                              clv_err *err) {
  CLV_TRY(refresh_kept_ledger(k, f, err));
  CLV_TRY(clv_ledger_format_new_lines(k->ledger, items, n, &ret->lines, err));
  ret->at = clv_ledger_count_bytes(k->ledger);
  bool has_room = ret->at + ret->lines.len <= CLV_LEDGER_MAX_BYTES &&
                  clv_ledger_count_rows(k->ledger) <= CLV_LEDGER_MAX_ROWS;
  return has_room || !ret->lines.len ? CLV_OK : format_compacted_file(f, k->ledger, ret, err);
}

static clv_code replace_file(const ledger_file *f, const clv_bytes *whole, clv_err *err) {
  clv_err why;
  if (clv_file_write_durable(f->path.data, whole->data, whole->len, 0600, &why) == CLV_OK)
    return CLV_OK;
  return fail_ledger_file(f, "written", why.text, err);
}

/* Holds the lock of the file from the reading to the end of the writing. k->lock is not held while
 * the disk writes, because threads that look layers up would wait for the disk. */
static clv_code add_items(clv_kept_ledger *k, const clv_ledger_item *items, size_t n,
                          clv_err *err) {
  CLV_AUTO(ledger_file_done) ledger_file f = {.fd = -1};
  CLV_AUTO(ledger_change_done) ledger_change change = {0};
  CLV_TRY(open_locked_for_append(&f, err));
  pthread_mutex_lock(&k->lock);
  clv_code code = format_change(k, &f, items, n, &change, err);
  pthread_mutex_unlock(&k->lock);
  if (code != CLV_OK || !change.lines.len) return code;
  return change.whole.len ? replace_file(&f, &change.whole, err)
                          : append_lines(&f, change.at, &change.lines, err);
}

clv_code clv_kept_ledger_add(clv_kept_ledger *k, const clv_ledger_item *items, size_t n,
                             clv_err *err) {
  return n ? add_items(k, items, n, err) : CLV_OK;
}

static clv_code add_items_once(const clv_ledger_item *items, size_t n, clv_err *err) {
  CLV_AUTO(clv_kept_ledger_freep) clv_kept_ledger *k = NULL;
  CLV_TRY(clv_kept_ledger_new(&k, err));
  return add_items(k, items, n, err);
}

clv_code clv_ledger_add(const clv_ledger_item *items, size_t n, clv_err *err) {
  return n ? add_items_once(items, n, err) : CLV_OK;
}

clv_code clv_ledger_check_writable(clv_err *err) { return add_items_once(NULL, 0, err); }
