/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of tables that are larger than memory: a folder for each table and each way to read it.
 * The name of a folder has three digests: of the path of the file; of the state of the file
 * (device, inode, size and time); and of the rules (all options that decide how cells are read). So
 * a table is read again if the file or a rule has changed, and folders of a former state of the
 * file are deleted. A folder gets its name when it is complete.
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
  NAME_DIGEST_DIGITS = 16, /* digits of each of the three digests in the name of a folder */
  BLOCK_BYTES = 32 << 20,
  ASSUMED_GZIP_RATIO = 4, /* assumed ratio of the size of a table to the size of its gzip file */
  MAX_JSON_BYTES = 1 << 30
};
static const char json_name[] = "cells.json";

/* ---- deciding whether a table is on disk ----------------------------------------------------- */

/* Returns the size, in bytes, above which a table is kept on disk: a quarter of the host's memory,
 * at most CLV_DATA_MAX_BYTES. */
static uint64_t find_min_on_disk_bytes(void) {
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
  return (uint64_t)st.st_size * (is_gzip ? ASSUMED_GZIP_RATIO : 1) > find_min_on_disk_bytes();
}

/* ---- the name of a table's folder in the cache ----------------------------------------------- */

static void append_rule(clv_bytes *out, const char *key, const char *text) {
  clv_bytes_printf(out, "%s ", key);
  clv_bytes_add_json(out, text ? text : "");
  clv_bytes_puts(out, text ? "\n" : " none\n");
}

static void append_column_rules(clv_bytes *out, const clv_column_options *c) {
  append_rule(out, "column", c->name);
  clv_bytes_printf(out, "%d %d %d\n", c->use, c->missing != CLV_MISSING_REFUSE,
                   c->scale == CLV_SCALE_LOG);
  append_rule(out, "format", c->format);
}

/* Appends all options that decide which records a table has, and how their cells are read. */
static void append_rules(clv_bytes *out, const clv_dataset_options *o) {
  const clv_table_options *t = &o->table;
  clv_bytes_printf(out, "cells %d\n%d %d %d %d %d\n", CLV_CELL_CACHE_VERSION, t->separator,
                   t->has_decimal_comma, t->ignores_unlisted_columns, o->labels, o->skips_labels);
  clv_bytes_printf(out, "%d %d %d %llu\n", o->skips_broken, o->reads_weights, o->split_key,
                   (unsigned long long)t->query_rows);
  append_rule(out, "query", t->query);
  append_rule(out, "group", o->text.group);
  append_rule(out, "files", t->image_folder);
  for (size_t i = 0; i < t->n_targets; i++) {
    clv_bytes_printf(out, "%d ", t->targets[i].task);
    append_rule(out, "target", t->targets[i].name);
  }
  for (size_t i = 0; i < t->n_missing_marks; i++) append_rule(out, "mark", t->missing_marks[i]);
  for (int set = 0; o->split_key == CLV_KEY_IS_SET && set < CLV_SET_COUNT; set++)
    for (size_t i = 0; i < o->set_values[set].n; i++) {
      clv_bytes_printf(out, "%d ", set);
      append_rule(out, "set", o->set_values[set].items[i]);
    }
  for (size_t i = 0; i < t->n_columns; i++) append_column_rules(out, &t->columns[i]);
}

/* A table in the cache. Release with cache_entry_done. */
typedef struct cache_entry {
  char name[3 * (NAME_DIGEST_DIGITS + 1)];
  /* digest of the table's path, the state of its file and the rules, in hexadecimal digits */
  char key[65];
  clv_bytes file_state;      /* lines of clv_data_list_file_stamps */
  clv_bytes path;            /* path of the folder */
  clv_bytes incomplete_path; /* path of the folder while it is incomplete */
} cache_entry;

static void cache_entry_done(cache_entry *e) {
  clv_bytes_done(&e->file_state);
  clv_bytes_done(&e->path);
  clv_bytes_done(&e->incomplete_path);
}

static clv_code append_digest(cache_entry *e, const clv_bytes *text, clv_err *err) {
  clv_sha256 digest;
  char hex[65];
  size_t len = strlen(e->name);
  if (text->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(text->data, text->len, &digest, err));
  clv_sha256_hex(&digest, hex);
  snprintf(e->name + len, sizeof e->name - len, "%s%.*s", len ? "-" : "", (int)NAME_DIGEST_DIGITS,
           hex);
  return CLV_OK;
}

static clv_code make_entry(const clv_dataset_options *o, cache_entry *e, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, rules = {0}, all = {0};
  clv_sha256 digest;
  CLV_TRY(clv_data_list_file_stamps(o->inputs_path, &e->file_state, err));
  clv_bytes_puts(&path, o->inputs_path);
  append_rules(&rules, o);
  CLV_TRY(append_digest(e, &path, err));
  CLV_TRY(append_digest(e, &e->file_state, err));
  CLV_TRY(append_digest(e, &rules, err));
  clv_bytes_printf(&all, "%s%s", e->file_state.data, rules.data);
  clv_bytes_printf(&e->path, "%s/%s", o->table.cache_folder, e->name);
  clv_bytes_printf(&e->incomplete_path, "%s.part", e->path.data);
  if (all.failed || e->path.failed || e->incomplete_path.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(all.data, all.len, &digest, err));
  clv_sha256_hex(&digest, e->key);
  return CLV_OK;
}

/* ---- making and deleting folders of the cache ------------------------------------------------ */

static void delete_folder(const char *path) {
  DIR *dir = opendir(path);
  for (struct dirent *f; dir && (f = readdir(dir)) != NULL;) unlinkat(dirfd(dir), f->d_name, 0);
  if (dir) closedir(dir);
  rmdir(path);
}

/* Deletes folders that were made for earlier states of the same file, and incomplete folders. The
 * caller holds the lock of lock_root. */
static void delete_stale_folders(const char *root, const cache_entry *e) {
  enum { STATE_OFFSET = NAME_DIGEST_DIGITS + 1, RULES_OFFSET = 2 * STATE_OFFSET };
  DIR *dir = opendir(root);
  for (struct dirent *f; dir && (f = readdir(dir)) != NULL;) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    bool is_of_same_file = strncmp(f->d_name, e->name, STATE_OFFSET) == 0;
    bool is_stale = strncmp(f->d_name, e->name, RULES_OFFSET) != 0 || strstr(f->d_name, ".part");
    clv_bytes_printf(&path, "%s/%s", root, f->d_name);
    if (is_of_same_file && is_stale && !path.failed) delete_folder(path.data);
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

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

/* Locks the folder of all caches, after waiting for other processes that make a cache there. */
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
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0}, file_state = {0};
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  clv_cell_files files = {
      .folder = e->incomplete_path.data,
      .block_bytes = o->table.block_bytes ? o->table.block_bytes : (size_t)BLOCK_BYTES};
  CLV_TRY(clv_table_read_to_files(o, &files, &t, err));
  CLV_TRY(clv_cell_files_finish(&files, t, err));
  t->count = files.n_records;
  CLV_TRY(clv_data_list_file_stamps(o->inputs_path, &file_state, err));
  if (file_state.len != e->file_state.len ||
      memcmp(file_state.data, e->file_state.data, file_state.len) != 0)
    return clv_fail(err, CLV_DATA_LOSS, "%.200s: has changed while it was read", o->inputs_path);
  clv_table_cache_write(t, e->key, &text);
  clv_bytes_printf(&path, "%s/%s", e->incomplete_path.data, json_name);
  if (text.failed || path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}

static clv_code make_cache(const clv_dataset_options *o, const cache_entry *e, clv_err *err) {
  clv_notify(o->table.notifier, "%s is read into %s, once; later commands map what is there",
             o->inputs_path, e->path.data);
  CLV_TRY(make_private_folder(e->incomplete_path.data, err));
  clv_code code = write_cells(o, e, err);
  if (code == CLV_OK && rename(e->incomplete_path.data, e->path.data) != 0)
    code = clv_fail(err, CLV_PRECONDITION, "%.300s: %s", e->path.data, strerror(errno));
  if (code == CLV_OK) return clv_file_sync_folder(e->path.data, err);
  delete_folder(e->incomplete_path.data);
  return code;
}

static clv_code read_cache_json(const cache_entry *e, clv_cell_table *t, clv_err *err) {
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
  CLV_TRY(read_cache_json(e, t, err));
  CLV_TRY(clv_cell_files_map_columns(e->path.data, t, o, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}

/* Returns false if the image files that the cache names may have changed: a file is missing, or the
 * cache left out broken records, whose files may exist now. */
static bool has_current_files(const clv_cell_table *t) {
  for (size_t i = 0; t->path_offsets && i < t->count; i++)
    if (!clv_image_is_file(t->image_folder_path, clv_table_text(t, t->path_offsets, i)))
      return false;
  return !t->path_offsets || !t->broken.n;
}

clv_code clv_table_open_on_disk(const clv_dataset_options *o, clv_cell_table **ret, clv_err *err) {
  CLV_AUTO(cache_entry_done) cache_entry e = {.name = ""};
  CLV_AUTO(close_fd) int lock = -1;
  struct stat st;
  CLV_TRY(make_entry(o, &e, err));
  CLV_TRY(make_root(o->table.cache_folder, err));
  CLV_TRY(lock_root(o->table.cache_folder, &lock, err));
  delete_stale_folders(o->table.cache_folder, &e);
  bool must_make = stat(e.path.data, &st) != 0;
  if (must_make) CLV_TRY(make_cache(o, &e, err));
  CLV_TRY(open_cache(o, &e, ret, err));
  if (must_make || has_current_files(*ret)) return CLV_OK;
  clv_table_freep(ret);
  delete_folder(e.path.data);
  CLV_TRY(make_cache(o, &e, err));
  return open_cache(o, &e, ret, err);
}
