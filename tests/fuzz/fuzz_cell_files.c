/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the files in which a table that is larger than memory stores its cells
 * (clv_cell_files_map_columns). The first byte of the input chooses a file, whose bytes are
 * replaced by the rest of the input. An accepted table is encoded, and its row numbers and class
 * numbers must be in range.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/data/cells_int.h"
#include "master/data/dataset_int.h"
#include "master/data/image_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char table[] =
    "n,m,d,e,day,t,u,id,p,w\n"
    "1,2,x,y,2024-01-31,ill,yes,p1,rgb.png,1\n"
    "2,,y,z,,well,no,p2,grey.png,0.5\n"
    "3,5,,z,1969-12-31,ill,0,p3,rgb.jpg,2\n"
    "4,5,x,y,2000-02-29,well,1,p1,text.png,0\n";
static const clv_column_options columns[] = {
    {.name = "n", .scale = CLV_SCALE_STANDARD},
    {.name = "m", .scale = CLV_SCALE_QUANTILE, .missing = CLV_MISSING_MEAN},
    {.name = "d", .use = CLV_COLUMN_CATEGORY, .missing = CLV_MISSING_OWN},
    {.name = "e", .use = CLV_COLUMN_INDEX},
    {.name = "day",
     .use = CLV_COLUMN_DATE,
     .missing = CLV_MISSING_MEDIAN,
     .parts = (1u << CLV_DATE_PARTS) - 1},
    {.name = "t", .use = CLV_COLUMN_TARGET},
    {.name = "u", .use = CLV_COLUMN_TARGET},
    {.name = "id", .use = CLV_COLUMN_ID},
    {.name = "p", .use = CLV_COLUMN_FILE},
    {.name = "w", .use = CLV_COLUMN_WEIGHT},
};
enum { INDEX_COLUMN = 3 };
static const clv_target_option targets[] = {{"t", CLV_TASK_CLASSES}, {"u", CLV_TASK_LABELS}};
static const char key[] =
    "00000000000000000000000000000000"
    "00000000000000000000000000000000";

/* Files of the table's cells: one for each stored column, and those of ids, image paths and
 * groups. */
typedef struct cached_file {
  const char *name;
  int fd;
  clv_bytes good; /* bytes of the file as LLVMFuzzerInitialize has written it */
} cached_file;
static cached_file files[] = {
    {.name = "column-0.npy"}, {.name = "column-1.npy"}, {.name = "column-2.npy"},
    {.name = "column-3.npy"}, {.name = "column-4.npy"}, {.name = "column-5.npy"},
    {.name = "column-6.npy"}, {.name = "column-9.npy"}, {.name = "ids.npy"},
    {.name = "paths.npy"},    {.name = "id-texts.npy"}, {.name = "groups.npy"},
};
static char folder[] = "/dev/shm/cleave-fuzz-XXXXXX", table_path[64];
static clv_bytes json; /* cells.json, the file of the cache that has everything but the cells */

static clv_dataset_options make_options(void) {
  static const char *const set_names[CLV_SET_COUNT] = {"p1", "p2", "p3"};
  clv_dataset_options o = {.inputs_path = table_path,
                           .split_key = CLV_KEY_IS_SET,
                           .reads_weights = true,
                           .text = {.group = "id"},
                           .table = {.columns = columns,
                                     .n_columns = CLV_COUNT(columns),
                                     .targets = targets,
                                     .n_targets = CLV_COUNT(targets),
                                     .image_folder = "tests/fuzz/corpus/image"}};
  for (int set = 0; set < CLV_SET_COUNT; set++)
    o.set_values[set] = (clv_set_values){&set_names[set], 1};
  return o;
}

static void remove_folder(void) {
  char path[96];
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
    unlink(path);
    close(files[i].fd);
    clv_bytes_done(&files[i].good);
  }
  unlink(table_path);
  rmdir(folder);
  clv_bytes_done(&json);
}

/* Replaces the bytes of a file. */
static void put_file(const cached_file *f, const void *data, size_t n) {
  NEVER(ftruncate(f->fd, 0) != 0 || pwrite(f->fd, data, n, 0) != (ssize_t)n);
}

/* Writes the table to files, as the cache of a table does, and stores the bytes of each file in
 * `good`. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  clv_cell_files written = {.folder = folder};
  clv_err err = {0};
  char path[96];
  NEVER(!mkdtemp(folder));
  snprintf(table_path, sizeof table_path, "%s/fuzz.csv", folder);
  NEVER(clv_file_write_durable(table_path, table, sizeof table - 1, 0600, &err) != CLV_OK);
  const clv_dataset_options o = make_options();
  NEVER(clv_table_read_to_files(&o, &written, &t, &err) != CLV_OK);
  NEVER(clv_cell_files_finish(&written, t, &err) != CLV_OK);
  t->count = written.n_records;
  clv_table_cache_write(t, key, &json);
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
    NEVER(clv_file_read(path, 1 << 20, &files[i].good, &err) != CLV_OK);
    NEVER((files[i].fd = open(path, O_RDWR | O_CLOEXEC)) < 0);
  }
  return atexit(remove_folder);
}

static void check_index(const clv_cell_table *t, const clv_learnt *l) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  clv_err err = {0};
  if (clv_table_encode_index(t, l, INDEX_COLUMN, &x, &err) != CLV_OK) {
    NEVER(!strstr(err.text, folder));
    return;
  }
  for (size_t i = 0; i < x->n; i++) {
    int64_t number = ((const int64_t *)x->data)[i];
    NEVER(number < 0 || (size_t)number >= clv_learnt_index_row_count(&l->columns[INDEX_COLUMN]));
  }
}

static void check_targets(clv_cell_table *t, const clv_learnt *l) {
  clv_dataset ds = {.table = t, .count = t->count, .inputs_path = table_path};
  clv_err err = {0};
  NEVER(clv_targets_set_labels(&ds, l, &err) != CLV_OK);
  for (size_t i = 0; i < ds.count; i++)
    for (size_t k = 0; k < CLV_COUNT(targets); k++) {
      int64_t class = clv_dataset_target_class(&ds, k, i);
      NEVER(class < 0 || (size_t) class >= clv_dataset_target_class_count(&ds, k));
    }
  clv_learnt_targets_free(ds.targets, ds.n_targets);
  clv_tensor_unref(ds.labels);
}

/* Encodes all records. Then keeps only the records 0 and 2, which must be encoded as before. */
static void check_table(clv_cell_table *t) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *of_kept = NULL;
  uint32_t rows[] = {0, 1, 2, 3}, even[] = {0, 2};
  const clv_subset all = {rows, CLV_COUNT(rows)}, kept = {even, CLV_COUNT(even)};
  clv_err err = {0};
  NEVER(t->count != all.n);
  for (size_t i = 0; i < t->count; i++) {
    NEVER(strlen(clv_table_text(t, t->id_offsets, i)) >= t->id_text_file->n);
    NEVER(!clv_image_is_path_inside(clv_table_text(t, t->path_offsets, i)));
  }
  if (clv_table_learn(t, &all, &l, &err) != CLV_OK || clv_table_encode(t, l, &x, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return;
  }
  check_index(t, l);
  check_targets(t, l);
  NEVER(clv_table_keep_records(t, &kept, &err) != CLV_OK || t->count != kept.n);
  NEVER(clv_table_encode(t, l, &of_kept, &err) != CLV_OK);
  NEVER(memcmp(of_kept->data, x->data, of_kept->bytes / kept.n) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  const clv_dataset_options o = make_options();
  clv_err err = {0};
  if (!size) return 0;
  const cached_file *f = &files[data[0] % CLV_COUNT(files)];
  NEVER(clv_table_new(&o, &t, &err) != CLV_OK);
  NEVER(clv_strdup(folder, &t->folder, &err) != CLV_OK);
  NEVER(clv_table_cache_parse(json.data, json.len, "cells.json", key, t, &err) != CLV_OK);
  put_file(f, data + 1, size - 1);
  if (clv_cell_files_map_columns(folder, t, &o, &err) == CLV_OK)
    check_table(t);
  else
    NEVER(!strstr(err.text, folder));
  put_file(f, f->good.data, f->good.len);
  return 0;
}
