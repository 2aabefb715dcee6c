/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the cells of a table to .npy files, a file for each column, and maps them again. A file is
 * complete once its header says how many elements follow.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/cells_int.h"
#include "master/data/image_int.h"

enum {
  HEADER_BYTES = 128, /* bytes of the header of a file */
  PREAMBLE_BYTES = 10,
  MIN_BLOCK_RECORDS = 16,
  MAX_BLOCK_RECORDS = 65536 /* records of a block */
};

/* A file of elements of one type. */
typedef struct cell_file {
  char name[40];
  const char *descr; /* element type, as the header of a .npy file names it */
  clv_dtype dtype;
  const void *data; /* [n] elements of the block in memory */
  size_t n;
} cell_file;

/* Returns true if the cells of a column are stored in its file. */
static bool is_column_stored(const clv_cell_table *t, const clv_table_column *c) {
  if (c->o.use == CLV_COLUMN_TARGET) return c->is_read_target;
  if (c->o.use == CLV_COLUMN_WEIGHT) return c == t->weight;
  return c->o.use != CLV_COLUMN_IGNORED && c->o.use != CLV_COLUMN_ID && c->o.use != CLV_COLUMN_FILE;
}

static bool has_column_with_use(const clv_cell_table *t, clv_column_use use) {
  for (size_t i = 0; i < t->n_columns; i++)
    if (t->columns[i].o.use == use) return true;
  return false;
}

static bool has_ids(const clv_cell_table *t) { return has_column_with_use(t, CLV_COLUMN_ID); }

static bool has_paths(const clv_cell_table *t) { return has_column_with_use(t, CLV_COLUMN_FILE); }

static cell_file get_column_file(const clv_cell_table *t, size_t i) {
  const clv_table_column *c = &t->columns[i];
  cell_file f = {.descr = c->has_numbers ? "<f8" : "<i4",
                 .dtype = c->has_numbers ? CLV_F64 : CLV_I32,
                 .n = t->count};
  f.data = c->has_numbers ? (const void *)c->numbers : c->codes;
  snprintf(f.name, sizeof f.name, "column-%zu.npy", i);
  return f;
}

static const cell_file id_file = {.name = "ids.npy", .descr = "<i8", .dtype = CLV_I64},
                       path_file = {.name = "paths.npy", .descr = "<i8", .dtype = CLV_I64},
                       id_text_file = {.name = "id-texts.npy", .descr = "|u1", .dtype = CLV_U8},
                       group_file = {.name = "groups.npy", .descr = "<i8", .dtype = CLV_I64};

/* ---- writing files --------------------------------------------------------------------------- */

size_t clv_cell_files_block_records(const clv_cell_files *f, const clv_cell_table *t) {
  size_t record_bytes = (t->n_columns + 1) * sizeof(double);
  return CLV_MAX(CLV_MIN(f->block_bytes / record_bytes, (size_t)MAX_BLOCK_RECORDS),
                 (size_t)MIN_BLOCK_RECORDS);
}

static clv_code open_file(const char *folder, const char *name, int open_flags, clv_bytes *path,
                          int *ret_fd, clv_err *err) {
  clv_bytes_printf(path, "%s/%s", folder, name);
  if (path->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret_fd = open(path->data, open_flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*ret_fd >= 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%.200s: cannot be opened: %s", path->data,
                  strerror(errno));
}

/* Appends the cells of a block to a file. A new file first gets HEADER_BYTES zeros, which
 * write_header replaces later. */
static clv_code append_cells(const clv_cell_files *f, const cell_file *c, clv_err *err) {
  static const char zero_header[HEADER_BYTES];
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  int fd = -1;
  CLV_TRY(open_file(f->folder, c->name, O_WRONLY | O_CREAT | O_APPEND, &path, &fd, err));
  clv_code code = CLV_OK;
  if (!f->n_records)
    code = clv_cells_write_bytes(fd, path.data, zero_header, sizeof zero_header, err);
  if (code == CLV_OK)
    code = clv_cells_write_bytes(fd, path.data, c->data, c->n * clv_dtype_size(c->dtype), err);
  close(fd);
  return code;
}

/* Writes a header of .npy version 1.0, padded to HEADER_BYTES. */
static clv_code write_header(const clv_cell_files *f, const cell_file *c, size_t n, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char header[HEADER_BYTES];
  int fd = -1;
  memset(header, ' ', sizeof header);
  memcpy(header, "\x93NUMPY\x01\x00", 8);
  header[8] = HEADER_BYTES - PREAMBLE_BYTES;
  header[9] = 0;
  int len = snprintf(header + PREAMBLE_BYTES, sizeof header - PREAMBLE_BYTES,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%zu,), }", c->descr, n);
  header[PREAMBLE_BYTES + len] = ' ';
  header[HEADER_BYTES - 1] = '\n';
  CLV_TRY(open_file(f->folder, c->name, O_WRONLY, &path, &fd, err));
  clv_code code = clv_cells_write_bytes(fd, path.data, header, sizeof header, err);
  if (code == CLV_OK && fsync(fd) != 0)
    code = clv_fail(err, CLV_EXHAUSTED, "%.200s: %s", path.data, strerror(errno));
  close(fd);
  return code;
}

/* Appends the offsets of texts to the file `to`. Offsets count bytes from the first text in the
 * file of texts. */
static clv_code add_offsets(const clv_cell_files *f, const clv_cell_table *t, const cell_file *to,
                            size_t *offsets, clv_err *err) {
  cell_file block = *to;
  for (size_t i = 0; i < t->count; i++) offsets[i] += f->n_text_bytes;
  block.data = offsets;
  block.n = t->count;
  return append_cells(f, &block, err);
}

/* Appends the ids of records and the paths of images to their files. */
static clv_code add_texts(const clv_cell_files *f, const clv_cell_table *t, clv_err *err) {
  cell_file texts = id_text_file;
  texts.data = t->id_texts.data;
  texts.n = t->id_texts.len;
  if (has_ids(t)) CLV_TRY(add_offsets(f, t, &id_file, t->id_offsets, err));
  if (has_paths(t)) CLV_TRY(add_offsets(f, t, &path_file, t->path_offsets, err));
  return has_ids(t) || has_paths(t) ? append_cells(f, &texts, err) : CLV_OK;
}

clv_code clv_cell_files_append_block(clv_cell_files *f, clv_cell_table *t, clv_err *err) {
  cell_file groups = group_file;
  if (clv_ms_since_interrupt()) return clv_fail(err, CLV_CANCELLED, "interrupted");
  for (size_t i = 0; i < t->n_columns; i++) {
    cell_file c = get_column_file(t, i);
    if (is_column_stored(t, &t->columns[i])) CLV_TRY(append_cells(f, &c, err));
  }
  CLV_TRY(add_texts(f, t, err));
  groups.data = t->groups.data;
  groups.n = t->groups.len / sizeof(int64_t);
  if (groups.n) CLV_TRY(append_cells(f, &groups, err));
  f->n_records += t->count;
  f->n_text_bytes += t->id_texts.len;
  f->has_groups |= groups.n > 0;
  t->count = t->id_texts.len = t->groups.len = 0;
  return CLV_OK;
}

clv_code clv_cell_files_finish(clv_cell_files *f, const clv_cell_table *t, clv_err *err) {
  for (size_t i = 0; i < t->n_columns; i++) {
    cell_file c = get_column_file(t, i);
    if (is_column_stored(t, &t->columns[i])) CLV_TRY(write_header(f, &c, f->n_records, err));
  }
  if (has_ids(t)) CLV_TRY(write_header(f, &id_file, f->n_records, err));
  if (has_paths(t)) CLV_TRY(write_header(f, &path_file, f->n_records, err));
  if (has_ids(t) || has_paths(t)) CLV_TRY(write_header(f, &id_text_file, f->n_text_bytes, err));
  return f->has_groups ? write_header(f, &group_file, f->n_records, err) : CLV_OK;
}

/* ---- mapping files --------------------------------------------------------------------------- */

static clv_code fail_data_loss(const char *path, const char *problem, clv_err *err) {
  return clv_fail(
      err, CLV_DATA_LOSS,
      "%.300s %s: this cache of the table is damaged: delete its folder, and it is made "
      "again",
      path, problem);
}

/* Fails unless the file belongs to the user and has no permissions for others, as every file that
 * the cache makes. */
static clv_code check_owner(const char *path, clv_err *err) {
  struct stat st;
  if (lstat(path, &st) != 0) return fail_data_loss(path, "is missing", err);
  if (!S_ISREG(st.st_mode)) return fail_data_loss(path, "is no file", err);
  if (st.st_uid != geteuid() || st.st_mode & 077)
    return fail_data_loss(path, "is not the user's alone (mode 0600)", err);
  return CLV_OK;
}

/* Maps a file that must have n elements; n SIZE_MAX: any number of elements. */
static clv_code map_file(const char *folder, const cell_file *c, size_t n, clv_tensor **ret,
                         clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_err reason;
  char problem[120];
  clv_bytes_printf(&path, "%s/%s", folder, c->name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(check_owner(path.data, err));
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  clv_code code = clv_npy_map(path.data, &t, &reason);
  if (code == CLV_DATA_LOSS || code == CLV_INVALID)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: this cache of the table is damaged: delete its folder, and it is made "
                    "again",
                    reason.text);
  if (code != CLV_OK) return clv_fail(err, code, "%s", reason.text);
  if (t->dtype != c->dtype || t->shape.rank != 1 || (n != SIZE_MAX && t->n != n)) {
    snprintf(problem, sizeof problem, "has %zu elements of %s, not %zu of %s", t->n,
             clv_dtype_name(t->dtype), n, clv_dtype_name(c->dtype));
    return fail_data_loss(path.data, problem, err);
  }
  *ret = clv_steal(&t);
  return CLV_OK;
}

/* True if each code is the number of one of the column's names, or CLV_MISSING_CODE where the
 * column permits missing values. */
static bool are_valid_codes(const clv_table_column *c, const int32_t *codes, size_t n) {
  int32_t min_code = c->o.missing == CLV_MISSING_REFUSE ? 0 : CLV_MISSING_CODE;
  for (size_t i = 0; i < n; i++)
    if (codes[i] < min_code || codes[i] >= (int64_t)c->names.n) return false;
  return true;
}

/* Checks that each label of a yes-or-no column is 0 or 1, because labels are used as class numbers,
 * or NaN where labels may be missing. */
static bool are_valid_labels(const clv_table_column *c, size_t n) {
  bool may_be_missing = c->o.missing == CLV_MISSING_MASK;
  for (size_t i = 0; c->is_yes_or_no && i < n; i++)
    if (c->numbers[i] != 0 && c->numbers[i] != 1 && !(may_be_missing && isnan(c->numbers[i])))
      return false;
  return true;
}

/* Checks that each number is finite or NaN; also that a date is within the years that dates.c
 * reads, and that a weight is 0 or more. The encoder refuses NaN in columns that refuse missing
 * values. */
static bool are_valid_numbers(const clv_table_column *c, size_t n) {
  double limit = c->o.use == CLV_COLUMN_DATE ? CLV_MAX_DAYS : HUGE_VAL;
  bool is_weight = c->o.use == CLV_COLUMN_WEIGHT;
  for (size_t i = 0; i < n; i++)
    if (fabs(c->numbers[i]) >= limit || (is_weight && !(c->numbers[i] >= 0))) return false;
  return true;
}

static clv_code map_column(const char *folder, clv_cell_table *t, size_t i, clv_err *err) {
  clv_table_column *c = &t->columns[i];
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  cell_file f = get_column_file(t, i);
  CLV_TRY(map_file(folder, &f, t->count, &c->file, err));
  if (c->has_numbers) c->numbers = c->file->data;
  if (!c->has_numbers) c->codes = c->file->data;
  if (c->has_numbers ? are_valid_labels(c, t->count) && are_valid_numbers(c, t->count)
                     : are_valid_codes(c, c->codes, t->count))
    return CLV_OK;
  clv_bytes_printf(&path, "%s/%s", folder, f.name);
  return fail_data_loss(path.failed ? folder : path.data, "has the number of no value", err);
}

/* True if each offset is the beginning of a text in `texts`: 0, or the byte after a NUL. */
static bool are_valid_offsets(const int64_t *offsets, size_t n, const char *texts, size_t len) {
  for (size_t i = 0; i < n; i++)
    if (offsets[i] < 0 || (uint64_t)offsets[i] >= len ||
        (offsets[i] && texts[offsets[i] - 1] != '\0'))
      return false;
  return !n || texts[len - 1] == '\0';
}

static clv_code map_offsets(const char *folder, const clv_cell_table *t, const cell_file *f,
                            clv_tensor **ret_file, size_t **ret, clv_err *err) {
  char problem[80];
  CLV_TRY(map_file(folder, f, t->count, ret_file, err));
  *ret = (*ret_file)->data;
  if (are_valid_offsets((*ret_file)->data, t->count, t->id_text_file->data, t->id_text_file->n))
    return CLV_OK;
  snprintf(problem, sizeof problem, "has offsets in %s that are of no texts", f->name);
  return fail_data_loss(folder, problem, err);
}

static clv_code map_texts(const char *folder, clv_cell_table *t, clv_err *err) {
  if (!has_ids(t) && !has_paths(t)) return CLV_OK;
  CLV_TRY(map_file(folder, &id_text_file, SIZE_MAX, &t->id_text_file, err));
  if (has_ids(t)) CLV_TRY(map_offsets(folder, t, &id_file, &t->id_file, &t->id_offsets, err));
  if (has_paths(t))
    CLV_TRY(map_offsets(folder, t, &path_file, &t->path_file, &t->path_offsets, err));
  for (size_t i = 0; t->path_offsets && i < t->count; i++)
    if (!clv_image_is_path_inside(clv_table_text(t, t->path_offsets, i)))
      return fail_data_loss(folder, "has a path that leaves the folder of the images", err);
  return CLV_OK;
}

static clv_code map_groups(const char *folder, clv_cell_table *t, const clv_dataset_options *o,
                           clv_err *err) {
  CLV_TRY(map_file(folder, &group_file, t->count, &t->group_file, err));
  const int64_t *groups = t->group_file->data;
  for (size_t i = 0; o->split_key == CLV_KEY_IS_SET && i < t->count; i++)
    if (groups[i] < 0 || groups[i] >= CLV_SET_COUNT)
      return fail_data_loss(folder, "has the number of no set in groups.npy", err);
  return CLV_OK;
}

clv_code clv_cell_files_map_columns(const char *folder, clv_cell_table *t,
                                    const clv_dataset_options *o, clv_err *err) {
  for (size_t i = 0; i < t->n_columns; i++)
    if (is_column_stored(t, &t->columns[i])) CLV_TRY(map_column(folder, t, i, err));
  CLV_TRY(map_texts(folder, t, err));
  return o->text.group ? map_groups(folder, t, o, err) : CLV_OK;
}
