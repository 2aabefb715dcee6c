/* SPDX-License-Identifier: Apache-2.0
 *
 * The highest epoch of each session. An epoch is the number of an attempt within a run. The entries
 * are sorted by their last use, oldest first. With each change the complete file is rewritten,
 * before the session of the attempt is opened.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/store/store.h"

enum {
  MAX_ENTRIES_PER_IDENTITY = 64,
  MAX_ENTRIES = 4096,
  MAX_FILE_BYTES = 16 << 20,
  MAX_URI_LEN = 2048
};

static const char first_line[] = "cleave-epochs 1";

/* The highest epoch of one session of one identity. */
typedef struct epoch_entry {
  uint64_t epoch;
  uint8_t session_id[16];
  clv_sha256 config_digest;
  char *identity;
} epoch_entry;

struct clv_epochs {
  char *path; /* path of the file STATE_DIR/epochs; NULL: the entries are kept in memory only */
  pthread_mutex_t lock;
  epoch_entry entries[MAX_ENTRIES];
  size_t n_entries;
};

static void remove_entry(clv_epochs *e, size_t i) {
  free(e->entries[i].identity);
  memmove(&e->entries[i], &e->entries[i + 1], (--e->n_entries - i) * sizeof e->entries[0]);
}

void clv_epochs_free(clv_epochs *e) {
  if (!e) return;
  while (e->n_entries) remove_entry(e, e->n_entries - 1);
  pthread_mutex_destroy(&e->lock);
  free(e->path);
  free(e);
}

/* ---- reading and writing the file ------------------------------------------------------------ */

static void write_entry(const epoch_entry *x, clv_bytes *out) {
  char session[33], digest[65];
  clv_hex(x->session_id, sizeof x->session_id, session);
  clv_sha256_hex(&x->config_digest, digest);
  clv_bytes_printf(out, "%llu %s %s %s\n", (unsigned long long)x->epoch, session, digest,
                   x->identity);
}

static clv_code write_file(const clv_epochs *e, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (!e->path) return CLV_OK;
  clv_bytes_printf(&out, "%s\n", first_line);
  for (size_t i = 0; i < e->n_entries; i++) write_entry(&e->entries[i], &out);
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(e->path, out.data, out.len, 0600, err);
}

/* Parses a line without its newline; ret->identity points into it. Accepts only the exact form that
 * write_entry writes. */
static bool parse_entry(char *line, epoch_entry *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes rewritten = {0};
  unsigned long long epoch = 0;
  char session[33], digest[65];
  int identity_offset = 0;
  if (sscanf(line, "%20llu %32s %64s %n", &epoch, session, digest, &identity_offset) != 3 || !epoch)
    return false;
  *ret = (epoch_entry){.epoch = epoch, .identity = line + identity_offset};
  size_t len = strlen(ret->identity);
  if (!len || len > MAX_URI_LEN || strchr(ret->identity, ' ') ||
      !clv_hex_parse(session, ret->session_id, sizeof ret->session_id) ||
      !clv_sha256_parse(digest, &ret->config_digest))
    return false;
  write_entry(ret, &rewritten);
  return !rewritten.failed && rewritten.len == (size_t)identity_offset + len + 1 &&
         memcmp(rewritten.data, line, rewritten.len - 1) == 0;
}

static clv_code append_entry(clv_epochs *e, const epoch_entry *x, clv_err *err) {
  epoch_entry *at = &e->entries[e->n_entries];
  *at = *x;
  CLV_TRY(clv_strdup(x->identity, &at->identity, err));
  e->n_entries++;
  return CLV_OK;
}

static size_t find_entry(const clv_epochs *e, const char *identity, const uint8_t session_id[16]) {
  size_t i = 0;
  while (i < e->n_entries && (memcmp(e->entries[i].session_id, session_id, 16) != 0 ||
                              strcmp(e->entries[i].identity, identity) != 0))
    i++;
  return i;
}

static clv_code parse_line(clv_epochs *e, char *line, size_t len, const char *label,
                           size_t line_number, clv_err *err) {
  epoch_entry x;
  if (e->n_entries == MAX_ENTRIES || strlen(line) != len || !parse_entry(line, &x))
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s:%zu: not an epoch, a session, a digest and an identity, or more than %d "
                    "lines; without the file earlier attempts of sessions are let in again",
                    label, line_number, MAX_ENTRIES);
  if (find_entry(e, x.identity, x.session_id) < e->n_entries)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s:%zu: a line before has the epoch of this session and identity: remove the "
                    "line with the lower one",
                    label, line_number);
  return append_entry(e, &x, err);
}

clv_code clv_epochs_parse(clv_epochs *e, char *text, size_t len, const char *label, clv_err *err) {
  size_t first_len = strlen(first_line), line_number = 2;
  if (len <= first_len || memcmp(text, first_line, first_len) != 0 || text[first_len] != '\n')
    return clv_fail(err, CLV_DATA_LOSS, "%s:1: not '%s': move the file away to begin a new one",
                    label, first_line);
  for (char *line = text + first_len + 1, *end = text + len, *line_end; line < end; line_number++) {
    line_end = memchr(line, '\n', (size_t)(end - line));
    if (!line_end)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s:%zu: the line has no end, so the file was cut off: restore it; without "
                      "it earlier attempts of sessions are let in again",
                      label, line_number);
    *line_end = '\0';
    CLV_TRY(parse_line(e, line, (size_t)(line_end - line), label, line_number, err));
    line = line_end + 1;
  }
  return CLV_OK;
}

/* makes_missing: writes an empty file where there is none, so that an error of the disk is found at
 * the start of the worker. */
static clv_code read_file(clv_epochs *e, bool makes_missing, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_code code = clv_file_read(e->path, MAX_FILE_BYTES, &text, err);
  if (code == CLV_NOT_FOUND) return makes_missing ? write_file(e, err) : CLV_OK;
  CLV_TRY(code);
  return clv_epochs_parse(e, text.data ? text.data : (char[]){""}, text.len, e->path, err);
}

static clv_code check_folder(const char *state_dir, clv_err *err) {
  struct stat st;
  if (!state_dir) return CLV_OK;
  if (stat(state_dir, &st) != 0 && errno == ENOENT)
    return clv_fail(err, CLV_NOT_FOUND,
                    "state_dir '%.200s' does not exist; make it with `mkdir -m 700 %.200s`",
                    state_dir, state_dir);
  if (stat(state_dir, &st) != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "state_dir '%.200s': %s", state_dir, strerror(errno));
  if (!S_ISDIR(st.st_mode))
    return clv_fail(err, CLV_INVALID,
                    "state_dir '%.200s' is not a folder; name one, which `mkdir -m 700` makes",
                    state_dir);
  if (access(state_dir, W_OK | X_OK) != 0)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "state_dir '%.200s': the worker cannot write there (%s); correct the owner of "
                    "the folder",
                    state_dir, strerror(errno));
  return CLV_OK;
}

static clv_code open_epochs(const char *state_dir, bool makes_missing, clv_epochs **ret,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_epochs *e;
  CLV_TRY(check_folder(state_dir, err));
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  pthread_mutex_init(&e->lock, NULL);
  if (state_dir) clv_bytes_printf(&path, "%s/epochs", state_dir);
  clv_code code = state_dir ? clv_strdup(path.failed ? "" : path.data, &e->path, err) : CLV_OK;
  if (code == CLV_OK && state_dir) code = read_file(e, makes_missing, err);
  if (code != CLV_OK) {
    clv_epochs_free(e);
    return code;
  }
  *ret = e;
  return CLV_OK;
}

clv_code clv_epochs_open(const char *state_dir, clv_epochs **ret, clv_err *err) {
  return open_epochs(state_dir, true, ret, err);
}

clv_code clv_epochs_check(const char *state_dir, clv_err *err) {
  clv_epochs *e = NULL;
  clv_code code = open_epochs(state_dir, false, &e, err);
  clv_epochs_free(e);
  return code;
}

/* ---- registering an attempt ------------------------------------------------------------------ */

/* Drops an entry if there is no room for another entry of the identity: the identity's oldest
 * entry, so that it does not displace entries of others, or the oldest of all if it has none. */
static void evict_entry_if_full(clv_epochs *e, const char *identity) {
  size_t n = 0, oldest_index = 0;
  for (size_t i = e->n_entries; i-- > 0;) {
    if (strcmp(e->entries[i].identity, identity) != 0) continue;
    oldest_index = i;
    n++;
  }
  if (n >= MAX_ENTRIES_PER_IDENTITY || (n && e->n_entries == MAX_ENTRIES))
    remove_entry(e, oldest_index);
  else if (e->n_entries == MAX_ENTRIES)
    remove_entry(e, 0);
}

/* Refuses an epoch below the registered one, and the registered epoch with another configuration.
 * previous_entry: entry of the session; NULL: this is the first attempt. */
static clv_code check_epoch(const epoch_entry *previous_entry, const epoch_entry *x,
                            bool config_changed, clv_err *err) {
  if (previous_entry && x->epoch < previous_entry->epoch)
    return clv_fail(
        err, CLV_PRECONDITION,
        "attempt %llu of this session is refused: attempt %llu, a newer one, has been registered",
        (unsigned long long)x->epoch, (unsigned long long)previous_entry->epoch);
  if (previous_entry && x->epoch == previous_entry->epoch && config_changed)
    return clv_fail(err, CLV_PRECONDITION,
                    "attempt %llu of this session was registered with another configuration",
                    (unsigned long long)x->epoch);
  return CLV_OK;
}

static clv_code register_entry(clv_epochs *e, const epoch_entry *x, bool *ret_config_changed,
                               clv_err *err) {
  size_t i = find_entry(e, x->identity, x->session_id);
  const epoch_entry *previous_entry = i < e->n_entries ? &e->entries[i] : NULL;
  bool config_changed = previous_entry && memcmp(&previous_entry->config_digest, &x->config_digest,
                                                 sizeof x->config_digest) != 0;
  CLV_TRY(check_epoch(previous_entry, x, config_changed, err));
  if (previous_entry)
    remove_entry(e, i);
  else
    evict_entry_if_full(e, x->identity);
  CLV_TRY(append_entry(e, x, err));
  CLV_TRY(write_file(e, err));
  *ret_config_changed = config_changed;
  return CLV_OK;
}

clv_code clv_epochs_register(clv_epochs *e, const char *identity, const uint8_t session_id[16],
                             uint64_t epoch, const clv_sha256 *config_digest,
                             bool *ret_config_changed, clv_err *err) {
  epoch_entry x = {
      .epoch = epoch, .config_digest = *config_digest, .identity = (char *)(uintptr_t)identity};
  memcpy(x.session_id, session_id, sizeof x.session_id);
  *ret_config_changed = false;
  pthread_mutex_lock(&e->lock);
  clv_code code = register_entry(e, &x, ret_config_changed, err);
  pthread_mutex_unlock(&e->lock);
  return code;
}
