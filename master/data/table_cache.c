/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of tables that are larger than memory: a folder for each table and each way to read it.
 * Its name says of which file it is (the digest of the path), in which state of the file (of
 * device, inode, size and time), and by which rules (of all options that decide how cells are
 * read). So a table is read again if the file or a rule has changed, and folders of a former state
 * of the file are deleted. A folder gets its name when it is complete.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/cells_int.h"
#include "master/data/image_int.h"

enum {
  NAME_DIGITS = 16, /* digits of each of the three digests in the name of a folder */
  BLOCK_BYTES = 32 << 20,
  GZIP_RATIO = 4, /* times that a compressed table is taken to be larger than its file */
  MAX_JSON_BYTES = 1 << 30
};
static const char json_name[] = "cells.json";

/* ---- when a table is on disk ----------------------------------------------------------------- */

/* Returns the bytes from which on a table is too large for memory: a quarter of the host's. */
static uint64_t find_large_bytes(void) {
  long n_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (n_pages <= 0 || page_bytes <= 0) return CLV_DATA_MAX_BYTES;
  return CLV_MIN((uint64_t)n_pages / 4 * (uint64_t)page_bytes, (uint64_t)CLV_DATA_MAX_BYTES);
}

bool clv_table_is_on_disk(const clv_dataset_options *o) {
  struct stat st;
  size_t n = strlen(o->inputs_path);
  if (!o->table.cache_folder || clv_table_has_texts(&o->table)) return false;
  if (o->table.is_on_disk) return true;
  if (stat(o->inputs_path, &st) != 0) return false;
  bool is_gzip = n > 3 && strcmp(o->inputs_path + n - 3, ".gz") == 0;
  return (uint64_t)st.st_size * (is_gzip ? GZIP_RATIO : 1) > find_large_bytes();
}

/* ---- the name of a folder -------------------------------------------------------------------- */

static void add_text(clv_bytes *out, const char *key, const char *text) {
  clv_bytes_printf(out, "%s ", key);
  clv_bytes_add_json(out, text ? text : "");
  clv_bytes_puts(out, text ? "\n" : " none\n");
}

static void add_column_rules(clv_bytes *out, const clv_column_options *c) {
  add_text(out, "column", c->name);
  clv_bytes_printf(out, "%d %d %d\n", c->use, c->missing != CLV_MISSING_REFUSE,
                   c->scale == CLV_SCALE_LOG);
  add_text(out, "format", c->format);
}

/* Appends all options that decide which records a table has, and how their cells are read. */
static void add_rules(clv_bytes *out, const clv_dataset_options *o) {
  const clv_table_options *t = &o->table;
  clv_bytes_printf(out, "cells %d\n%d %d %d %d %d\n", CLV_CELLS_VERSION, t->separator,
                   t->has_decimal_comma, t->ignores_others, o->labels, o->skips_labels);
  clv_bytes_printf(out, "%d %d %d %llu\n", o->skips_broken, o->reads_weights, o->split_key,
                   (unsigned long long)t->query_rows);
  add_text(out, "query", t->query);
  add_text(out, "group", o->text.group);
  add_text(out, "files", t->files);
  for (size_t i = 0; i < t->n_targets; i++) {
    clv_bytes_printf(out, "%d ", t->targets[i].task);
    add_text(out, "target", t->targets[i].name);
  }
  for (size_t i = 0; i < t->n_missing_marks; i++) add_text(out, "mark", t->missing_marks[i]);
  for (int set = 0; o->split_key == CLV_KEY_IS_SET && set < CLV_SETS; set++)
    for (size_t i = 0; i < o->set_values[set].n; i++) {
      clv_bytes_printf(out, "%d ", set);
      add_text(out, "set", o->set_values[set].items[i]);
    }
  for (size_t i = 0; i < t->n_columns; i++) add_column_rules(out, &t->columns[i]);
}

/* A table in the cache. Release with cache_entry_done. */
typedef struct cache_entry {
  char name[3 * (NAME_DIGITS + 1)];
  char key[65];        /* digest of path, state and rules, in hexadecimal digits */
  clv_bytes state;     /* lines of clv_data_stamp */
  clv_bytes path;      /* path of the folder */
  clv_bytes part_path; /* path of the folder while it is incomplete */
} cache_entry;

static void cache_entry_done(cache_entry *e) {
  clv_bytes_done(&e->state);
  clv_bytes_done(&e->path);
  clv_bytes_done(&e->part_path);
}

static clv_code add_digest(cache_entry *e, const clv_bytes *text, clv_err *err) {
  clv_sha256 digest;
  char hex[65];
  size_t len = strlen(e->name);
  if (text->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(text->data, text->len, &digest, err));
  clv_sha256_hex(&digest, hex);
  snprintf(e->name + len, sizeof e->name - len, "%s%.*s", len ? "-" : "", (int)NAME_DIGITS, hex);
  return CLV_OK;
}

static clv_code make_entry(const clv_dataset_options *o, cache_entry *e, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, rules = {0}, all = {0};
  clv_sha256 digest;
  CLV_TRY(clv_data_stamp(o->inputs_path, &e->state, err));
  clv_bytes_puts(&path, o->inputs_path);
  add_rules(&rules, o);
  CLV_TRY(add_digest(e, &path, err));
  CLV_TRY(add_digest(e, &e->state, err));
  CLV_TRY(add_digest(e, &rules, err));
  clv_bytes_printf(&all, "%s%s", e->state.data, rules.data);
  clv_bytes_printf(&e->path, "%s/%s", o->table.cache_folder, e->name);
  clv_bytes_printf(&e->part_path, "%s.part", e->path.data);
  if (all.failed || e->path.failed || e->part_path.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(all.data, all.len, &digest, err));
  clv_sha256_hex(&digest, e->key);
  return CLV_OK;
}

/* ---- folders --------------------------------------------------------------------------------- */

static void delete_folder(const char *path) {
  DIR *dir = opendir(path);
  for (struct dirent *f; dir && (f = readdir(dir)) != NULL;) unlinkat(dirfd(dir), f->d_name, 0);
  if (dir) closedir(dir);
  rmdir(path);
}

/* Deletes the folders of former states of the file, and incomplete ones. Call with the lock. */
static void delete_stale(const char *root, const cache_entry *e) {
  enum { STATE_AT = NAME_DIGITS + 1, RULES_AT = 2 * STATE_AT };
  DIR *dir = opendir(root);
  for (struct dirent *f; dir && (f = readdir(dir)) != NULL;) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    bool is_of_file = strncmp(f->d_name, e->name, STATE_AT) == 0;
    bool is_stale = strncmp(f->d_name, e->name, RULES_AT) != 0 || strstr(f->d_name, ".part");
    clv_bytes_printf(&path, "%s/%s", root, f->d_name);
    if (is_of_file && is_stale && !path.failed) delete_folder(path.data);
  }
  if (dir) closedir(dir);
}

static clv_code make_private_folder(const char *path, clv_err *err) {
  struct stat st;
  if (mkdir(path, 0700) != 0 && errno != EEXIST)
    return clv_fail(err, CLV_PRECONDITION, "the folder %.300s cannot be made: %s", path,
                    strerror(errno));
  if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
    return CLV_OK;
  return clv_fail(
      err, CLV_PRECONDITION,
      "the folder %.300s is to be the user's alone (mode 0700), because it has cells of "
      "tables: delete it, and it is made again",
      path);
}

static clv_code make_root(const char *root, clv_err *err) {
  CLV_AUTO(clv_freep) char *parent = NULL;
  CLV_TRY(clv_strdup(root, &parent, err));
  char *slash = strrchr(parent, '/');
  if (slash && slash > parent) {
    *slash = '\0';
    CLV_TRY(clv_mkdirs(parent, err));
  }
  return make_private_folder(root, err);
}

static void close_fdp(int *fd) {
  if (*fd >= 0) close(*fd);
}

/* Waits until no other process makes a cache in the folder. */
static clv_code lock_root(const char *root, int *ret_fd, clv_err *err) {
  *ret_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  while (*ret_fd >= 0 && flock(*ret_fd, LOCK_EX) != 0)
    if (errno != EINTR || clv_ms_since_interrupt())
      return clv_fail(err, CLV_CANCELLED, "%.300s: cannot be locked: %s", root, strerror(errno));
  if (*ret_fd >= 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%.300s: cannot be opened: %s", root, strerror(errno));
}

/* ---- making and opening a cache -------------------------------------------------------------- */

static clv_code write_cells(const clv_dataset_options *o, const cache_entry *e, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0}, state = {0};
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  clv_cell_files files = {
      .folder = e->part_path.data,
      .block_bytes = o->table.block_bytes ? o->table.block_bytes : (size_t)BLOCK_BYTES};
  CLV_TRY(clv_table_read_to_files(o, &files, &t, err));
  CLV_TRY(clv_cell_files_end(&files, t, err));
  t->count = files.n_records;
  CLV_TRY(clv_data_stamp(o->inputs_path, &state, err));
  if (state.len != e->state.len || memcmp(state.data, e->state.data, state.len) != 0)
    return clv_fail(err, CLV_DATA_LOSS, "%.200s: has changed while it was read", o->inputs_path);
  clv_table_cache_write(t, e->key, &text);
  clv_bytes_printf(&path, "%s/%s", e->part_path.data, json_name);
  if (text.failed || path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

static clv_code make_cache(const clv_dataset_options *o, const cache_entry *e, clv_err *err) {
  clv_notify(o->table.notifier, "%s is read into %s, once; later commands map what is there",
             o->inputs_path, e->path.data);
  CLV_TRY(make_private_folder(e->part_path.data, err));
  clv_code code = write_cells(o, e, err);
  if (code == CLV_OK && rename(e->part_path.data, e->path.data) != 0)
    code = clv_fail(err, CLV_PRECONDITION, "%.300s: %s", e->path.data, strerror(errno));
  if (code == CLV_OK) return clv_file_sync_folder(e->path.data, err);
  delete_folder(e->part_path.data);
  return code;
}

static clv_code read_json(const cache_entry *e, clv_cell_table *t, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  clv_err reason;
  clv_bytes_printf(&path, "%s/%s", e->path.data, json_name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_JSON_BYTES, &text, &reason);
  if (code == CLV_OK)
    code = clv_table_cache_parse(text.data, text.len, path.data, e->key, t, &reason);
  if (code == CLV_OK) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS,
                  "%s: this cache of the table is damaged: delete its folder, and it is made again",
                  reason.text);
}

static clv_code open_cache(const clv_dataset_options *o, const cache_entry *e, clv_cell_table **ret,
                           clv_err *err) {
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  CLV_TRY(clv_table_new(o, &t, err));
  t->block_bytes = o->table.block_bytes;
  CLV_TRY(clv_strdup(o->table.cache_folder, &t->folder, err));
  CLV_TRY(make_private_folder(e->path.data, err));
  CLV_TRY(read_json(e, t, err));
  CLV_TRY(clv_cell_files_map(e->path.data, t, o, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}

/* Returns false if the cache says of images what is no longer so: a file is gone, or records whose
 * files were missing are left out. */
static bool has_current_files(const clv_cell_table *t) {
  for (size_t i = 0; t->files && i < t->count; i++)
    if (!clv_image_is_file(t->files_folder, clv_table_text(t, t->files, i))) return false;
  return !t->files || !t->broken.n;
}

clv_code clv_table_open_on_disk(const clv_dataset_options *o, clv_cell_table **ret, clv_err *err) {
  CLV_AUTO(cache_entry_done) cache_entry e = {.name = ""};
  CLV_AUTO(close_fdp) int lock = -1;
  struct stat st;
  CLV_TRY(make_entry(o, &e, err));
  CLV_TRY(make_root(o->table.cache_folder, err));
  CLV_TRY(lock_root(o->table.cache_folder, &lock, err));
  delete_stale(o->table.cache_folder, &e);
  bool is_made = stat(e.path.data, &st) != 0;
  if (is_made) CLV_TRY(make_cache(o, &e, err));
  CLV_TRY(open_cache(o, &e, ret, err));
  if (is_made || has_current_files(*ret)) return CLV_OK;
  clv_table_freep(ret);
  delete_folder(e.path.data);
  CLV_TRY(make_cache(o, &e, err));
  return open_cache(o, &e, ret, err);
}
