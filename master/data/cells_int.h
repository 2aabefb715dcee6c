/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables that are larger than memory. Their cells are in a folder with a file for each column
 * (cell_files.c), which table_cache.c makes once per table and later reuses. Numbers are sorted
 * with bounded memory (sorted_values.c), and encoded inputs go to a file without a name (spill.c).
 * Private to master/data.
 */
#ifndef CLEAVE_DATA_CELLS_INT_H
#define CLEAVE_DATA_CELLS_INT_H

#include "master/data/reader_int.h"
#include "master/data/table_int.h"

/* ---- temporary files without a name (spill.c) ------------------------------------------------ */

typedef struct clv_spill_file clv_spill_file;

/* Makes an empty file in a folder. CLV_PRECONDITION: no file can be made there. */
clv_code clv_spill_file_new(const char *folder, clv_spill_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_spill_file_freep(clv_spill_file **s);
/* Appends n bytes. CLV_EXHAUSTED: the disk is full. */
clv_code clv_spill_file_append(clv_spill_file *s, const void *data, size_t n,
                               clv_err *err) CLV_USE_RESULT;
/* Maps all appended bytes as a tensor, which must not be written to. The tensor stays valid after
 * the spill file is freed. */
clv_code clv_spill_file_map(const clv_spill_file *s, clv_dtype dtype, const clv_shape *shape,
                            clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Writes n bytes to a file. path: for messages. CLV_EXHAUSTED: the disk is full. */
clv_code clv_cells_write_bytes(int fd, const char *path, const void *data, size_t n,
                               clv_err *err) CLV_USE_RESULT;

/* ---- files of cells (cell_files.c) ----------------------------------------------------------- */

/* Writes the cells of a table, block by block, to .npy files in a folder: column-K.npy, ids.npy
 * and paths.npy (of images) with id-texts.npy, which has the texts of both, and groups.npy.
 * Zero-initialise, then set the folder. */
struct clv_cell_files {
  const char *folder;
  size_t block_bytes;             /* bytes of the cells that are in memory at a time */
  size_t n_records, n_text_bytes; /* number of records, and of bytes of texts, in the files */
  bool has_groups;
};

/* Returns the number of records of a block, which are in memory at a time. */
size_t clv_cell_files_block_records(const clv_cell_files *f, const clv_cell_table *t);
/* Appends the records that are in memory, and makes the table empty. CLV_CANCELLED: the user has
 * interrupted the command. */
clv_code clv_cell_files_append_block(clv_cell_files *f, clv_cell_table *t,
                                     clv_err *err) CLV_USE_RESULT;
/* Completes the files: writes the headers, which have the number of records. */
clv_code clv_cell_files_finish(clv_cell_files *f, const clv_cell_table *t,
                               clv_err *err) CLV_USE_RESULT;
/* Maps the files as the columns of a table that has t->count records and no cells yet.
 * CLV_DATA_LOSS: a file is missing or cut, or has a value that its column cannot have; the message
 * names the file. */
clv_code clv_cell_files_map_columns(const char *folder, clv_cell_table *t,
                                    const clv_dataset_options *o, clv_err *err) CLV_USE_RESULT;

/* ---- the JSON file in the cache of a table (cells_json.c) ------------------------------------ */

/* version of the format of caches; a cache of another version is made again */
enum { CLV_CELL_CACHE_VERSION = 1 };

/* clv_table_cache_write writes, as JSON, the facts about a table that the .npy files do not store:
 * the number of records, the names of words and the broken records. clv_table_cache_parse reads
 * them into a table that clv_table_new has made. key: digest of the table's path, of the state of
 * its file and of the options for reading it, 64 hexadecimal digits. */
void clv_table_cache_write(const clv_cell_table *t, const char *key, clv_bytes *out);
clv_code clv_table_cache_parse(const char *text, size_t len, const char *label, const char *key,
                               clv_cell_table *t, clv_err *err) CLV_USE_RESULT;

/* ---- the cache of a table (table_cache.c) ---------------------------------------------------- */

/* True if the cells of the table are to be kept on disk, because its file is large or the options
 * say so. */
bool clv_table_is_on_disk(const clv_dataset_options *o);
/* Opens a table on disk. Reads the table into the cache first, unless the cache already has it. */
clv_code clv_table_open_on_disk(const clv_dataset_options *o, clv_cell_table **ret,
                                clv_err *err) CLV_USE_RESULT;
/* ---- sorted numbers (sorted_values.c) -------------------------------------------------------- */

/* Numbers in ascending order. Zero-initialise; release with clv_sorted_values_done. */
typedef struct clv_sorted_values {
  const double *v; /* [n] */
  size_t n;
  double *memory;   /* memory that holds the numbers; NULL: `file` holds them */
  clv_tensor *file; /* mapped file that holds the numbers; NULL: they are in memory */
} clv_sorted_values;

void clv_sorted_values_done(clv_sorted_values *s);
/* Sorts the numbers that the records `rows` have in a column. Leaves out missing numbers. */
clv_code clv_sorted_values_make(const clv_cell_table *t, const clv_table_column *from,
                                const clv_subset *rows, clv_sorted_values *ret,
                                clv_err *err) CLV_USE_RESULT;
/* Adds the number `fill` n_fills times to s, which stays sorted. takes_log: then replaces each
 * number v of s by ln(1 + v). */
clv_code clv_sorted_values_add_fills(const clv_cell_table *t, clv_sorted_values *s, double fill,
                                     size_t n_fills, bool takes_log, clv_err *err) CLV_USE_RESULT;

#endif
