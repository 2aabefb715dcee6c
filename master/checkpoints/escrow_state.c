/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the sealed copies of a run, which other processes can read: the newest copy, and the
 * file DIR/ID/error.txt with the reason why the last try to seal a copy has failed, if it has.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/checkpoints/checkpoints_int.h"

static clv_code make_path(const clv_escrow_location *at, const char *name, clv_bytes *ret,
                          clv_err *err) {
  clv_bytes_printf(ret, "%s/%s/%s", at->dir, at->id, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

void clv_escrow_note_error(const clv_escrow_location *at, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_err err = {0};
  if (make_path(at, "error.txt", &path, NULL) != CLV_OK) return;
  if (!text)
    (void)!unlink(path.data);
  else if (clv_file_write_durable(path.data, text, strlen(text), 0600, &err) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "the state of checkpoint.escrow is not stored: %s", err.text);
}

static uint64_t modification_wall_ms(const struct stat *st) {
  return (uint64_t)st->st_mtim.tv_sec * 1000 + (uint64_t)st->st_mtim.tv_nsec / 1000000;
}

static void closedirp(DIR **d) {
  if (*d) closedir(*d);
}

/* Adds up the sizes of a copy's files. The manifest is written last, so its time is the time at
 * which the copy was complete. */
static void measure_copy(const char *folder, clv_escrow_state *ret) {
  CLV_AUTO(closedirp) DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    struct stat st;
    clv_bytes_printf(&path, "%s/%s", folder, e->d_name);
    if (path.failed || stat(path.data, &st) != 0 || !S_ISREG(st.st_mode)) continue;
    ret->bytes += (uint64_t)st.st_size;
    ret->completed_wall_ms = CLV_MAX(ret->completed_wall_ms, modification_wall_ms(&st));
  }
}

static void read_error_file(const char *path, clv_escrow_state *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  struct stat st;
  if (stat(path, &st) != 0 || clv_file_read(path, CLV_ERR_TEXT, &text, NULL) != CLV_OK) return;
  snprintf(ret->error, sizeof ret->error, "%.*s", (int)text.len, text.data ? text.data : "");
  ret->error_wall_ms = modification_wall_ms(&st);
}

void clv_escrow_read_state(const clv_escrow_location *at, clv_escrow_state *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0}, error = {0};
  char name[40];
  *ret = (clv_escrow_state){.step = clv_escrow_newest_step(at)};
  snprintf(name, sizeof name, "checkpoint-%llu", (unsigned long long)ret->step);
  if (ret->step != CLV_CHECKPOINT_NONE && make_path(at, name, &folder, NULL) == CLV_OK)
    measure_copy(folder.data, ret);
  if (make_path(at, "error.txt", &error, NULL) == CLV_OK) read_error_file(error.data, ret);
}
