/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables as records. table.c reads the cells, table_encoder.c learns from the training records how
 * to encode the cells as numbers and encodes them, table_learnt.c writes what was learnt as JSON
 * and reads it. Private to master/data.
 */
#ifndef CLEAVE_DATA_TABLE_INT_H
#define CLEAVE_DATA_TABLE_INT_H

#include "master/data/data.h"
#include "master/data/page_int.h"
#include "master/data/text_int.h"

/* Code of a missing value in clv_table_column.codes. */
enum { CLV_MISSING_CODE = -1 };

/* A column that the session names. */
typedef struct clv_table_column {
  clv_column_options o; /* options of the column; it owns name and value */
  clv_tensor *file;     /* mapped file of the cells, read-only; NULL: cells are in memory */
  bool has_numbers;     /* cells are in `numbers`; false: in `codes` */
  bool is_read_target;  /* the column has labels, and labels are read */
  bool is_yes_or_no;    /* the labels are 0 or 1, true or false, yes or no */
  double *numbers;      /* [rows] numbers, 0 or 1 of booleans, days of dates; NaN: missing */
  /* [rows] for each cell: number of its word in `names`, or, in a column of texts, its number of
   * tokens; CLV_MISSING_CODE: missing */
  int32_t *codes;
  clv_name_table names;
} clv_table_column;

typedef struct clv_cell_table {
  clv_table_column *columns; /* [n_columns] in the order of the session */
  size_t n_columns;
  /* column with the labels; NULL: labels were not read, or there are several */
  clv_table_column *target;
  /* [n_targets] columns with the labels, in the order of y, if records have several labels; NULL: a
   * record has one label */
  clv_table_column **targets;
  size_t n_targets;
  clv_table_column *weight; /* column with the weights; NULL: weights were not read */
  /* [rows] offset of each record's id in the texts; NULL: the table has no column of ids */
  size_t *id_offsets;
  /* [rows] offset of the path of each record's image in the texts, relative to `image_folder_path`;
   * NULL: no column names images */
  size_t *path_offsets;
  char *image_folder_path; /* folder of the images */
  clv_bytes id_texts;      /* texts of the ids and of the paths, each with its NUL */
  clv_bytes groups;        /* [rows] int64_t group numbers; empty: no groups */
  /* rows of tokens of the column of texts, one for each record; emptied when the table is encoded;
   * width 0: no column has texts */
  clv_text_rows texts;
  size_t count, cap; /* count: records; cap: records for which the arrays have room */
  /* folder for further files of a table on disk; NULL: the table is in memory. The mapped files
   * below then hold the data of id_offsets, path_offsets, id_texts and groups. */
  char *folder;
  clv_tensor *id_file, *path_file, *id_text_file, *group_file;
  size_t block_bytes; /* bytes of a block in memory; 0: the default */
  /* [count] row of each record in the columns; NULL: record i has row i, as always in a table in
   * memory */
  uint32_t *row_of_record;
  clv_broken_records broken;
} clv_cell_table;

/* Reads a table from a file (o->inputs_path), or from memory. CLV_INVALID: the header or a cell is
 * wrong; the message has file, line and column. A record with a wrong cell is counted in `broken`
 * and left out if o->skips_broken. */
clv_code clv_table_open(const clv_dataset_options *o, clv_cell_table **ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_table_parse(const clv_dataset_options *o, const char *text, size_t len,
                         clv_cell_table **ret, clv_err *err) CLV_USE_RESULT;
void clv_table_free(clv_cell_table *t);
void clv_table_freep(clv_cell_table **t);
/* Makes a table with the columns of the options, and no records. */
clv_code clv_table_new(const clv_dataset_options *o, clv_cell_table **ret,
                       clv_err *err) CLV_USE_RESULT;
typedef struct clv_cell_files clv_cell_files;
/* Reads a table from a file into files of cells (cells_int.h). Returns the table with its columns,
 * without cells. */
clv_code clv_table_read_to_files(const clv_dataset_options *o, clv_cell_files *files,
                                 clv_cell_table **ret, clv_err *err) CLV_USE_RESULT;
/* Keeps the records of `kept_records`, which must be ascending. */
clv_code clv_table_keep_records(clv_cell_table *t, const clv_subset *kept_records,
                                clv_err *err) CLV_USE_RESULT;
/* Returns the row of a record in the arrays of the columns. */
static inline size_t clv_table_row(const clv_cell_table *t, size_t record) {
  return t->row_of_record ? t->row_of_record[record] : record;
}
/* Returns the texts of the ids and of the paths of images. */
static inline const char *clv_table_id_texts(const clv_cell_table *t) {
  return t->id_text_file ? t->id_text_file->data : t->id_texts.data;
}
/* Returns the text of a record. offsets: t->id_offsets or t->path_offsets, and not NULL. */
static inline const char *clv_table_text(const clv_cell_table *t, const size_t *offsets,
                                         size_t record) {
  return clv_table_id_texts(t) + offsets[clv_table_row(t, record)];
}
/* Returns true for a use whose cells are words, which are encoded by the list of words that
 * training learnt. */
static inline bool clv_column_has_words(clv_column_use use) {
  return use == CLV_COLUMN_CATEGORY || use == CLV_COLUMN_INDEX;
}
/* Returns true if the column is a part of the input, or an input of its own. */
static inline bool clv_column_is_input(clv_column_use use) {
  return use == CLV_COLUMN_NUMBER || use == CLV_COLUMN_BOOLEAN || use == CLV_COLUMN_DATE ||
         use == CLV_COLUMN_TEXT || clv_column_has_words(use);
}
/* Reads a number: an optional sign, digits with at most one decimal mark, an optional exponent.
 * False: the text is anything else, or too large for a double. */
bool clv_table_read_number(const char *text, size_t len, bool has_decimal_comma, double *ret);
/* Returns true for a cell that is empty or has one of the usual marks of missing values. */
bool clv_table_is_usual_missing_mark(const char *text, size_t len);
/* Reads 0, 1, true, false, yes, no, t, f, y or n, in any case. */
bool clv_table_read_boolean(const char *text, size_t len, double *ret);

/* ---- a column of texts (table_text.c) -------------------------------------------------------- */

/* Opens the tokenizer if a column has texts. */
clv_code clv_table_open_tokenizer(const clv_dataset_options *o, clv_cell_table *t,
                                  clv_err *err) CLV_USE_RESULT;
/* Adds the tokens of a text to t->texts, as the text of record t->count. is_missing: the cell is
 * missing, and `text` replaces it. CLV_INVALID: the tokenizer cannot read the text. */
clv_code clv_table_add_text(clv_cell_table *t, clv_table_column *c, const char *text, size_t len,
                            bool is_missing, clv_err *err) CLV_USE_RESULT;
/* Returns true if a column has texts. Of a table with texts, all cells are in memory. */
bool clv_table_has_texts(const clv_table_options *o);

/* ---- dates (dates.c) ------------------------------------------------------------------------- */

enum { CLV_MAX_DAYS = 4000000 /* no date that is read has more days, before or after 1970 */ };

/* Reads a date as days since 1970-01-01. format: as C's strptime has it; NULL: ISO 8601. */
bool clv_date_read_days(const char *text, size_t len, const char *format, double *ret);
/* Checks the directives of a format. CLV_PRECONDITION: one is not known, or the year is missing. */
clv_code clv_date_check_format(const char *format, clv_err *err) CLV_USE_RESULT;
/* Returns the fraction of a period that has passed at a date, from 0 to below 1. The period is a
 * week for CLV_DATE_WEEKDAY, else a year, counted in months for CLV_DATE_MONTH and in days
 * otherwise. */
double clv_date_fraction_passed(double days, clv_date_part part);

/* ---- facts learnt from the training records (table_encoder.c) -------------------------------- */

enum { CLV_QUANTILES = 1000 };

/* Facts learnt of one column: how its cells become elements of the input. The column owns its
 * texts. */
typedef struct clv_learnt_column {
  char *name;
  clv_column_use use;
  clv_column_scale scale;
  clv_missing_rule missing;
  bool has_indicator;
  /* CLV_COLUMN_DATE: parts of a date that become elements, as bits 1 << clv_date_part */
  unsigned parts;
  double fill_number; /* number that replaces a missing one, before scaling */
  /* scaling of a number v: (v - offset) / divisor; divisor 1 if all values are equal */
  double offset, divisor;
  /* [n_quantiles] quantiles of the training records, ascending; only for CLV_SCALE_QUANTILE */
  double *quantiles;
  size_t n_quantiles;
  /* [n_values] values of a category or an index, sorted as bytes; of a text with `missing: value`
   * the text that replaces a missing one */
  char **values;
  size_t n_values;
  /* index in `values` of the value that replaces a missing one; n_values: the replacement is not in
   * `values` */
  size_t fill_value_index;
} clv_learnt_column;

/* Name and classes of a target, for records that have several. */
typedef struct clv_learnt_target {
  char *name;     /* name of the column */
  char **classes; /* [n_classes] names of its classes, sorted as bytes; NULL: numbers, yes or no */
  size_t n_classes;
} clv_learnt_target;

/* All that was learnt from the training records of a table. */
struct clv_learnt {
  clv_learnt_column *columns; /* [n_columns] inputs, in the order of the input's elements */
  size_t n_columns;
  /* [n_classes] names of the target's classes, sorted; NULL: the target is a number */
  char **classes;
  size_t n_classes;
  /* [n_targets] several targets, in the order of y; NULL: a record has one target */
  clv_learnt_target *targets;
  size_t n_targets;
};

/* Limits on the numbers of columns and values that clv_learnt_parse accepts; learning obeys them as
 * well. */
enum { CLV_LEARNT_MAX_COLUMNS = CLV_CSV_MAX_COLUMNS, CLV_LEARNT_MAX_VALUES = CLV_MAX_CLASS_NAMES };

/* Returns the number of elements that the column has in the input of a record; 0 for an index
 * or a text, which are inputs of their own. */
size_t clv_learnt_column_element_count(const clv_learnt_column *c);
void clv_learnt_targets_free(clv_learnt_target *targets, size_t n);
/* Learns the classes of all records, but no columns. */
clv_code clv_table_learn_classes(const clv_cell_table *t, clv_learnt **ret,
                                 clv_err *err) CLV_USE_RESULT;
/* Returns, for each code of a column, the index of its name among n sorted values; n: none of them.
 * The caller frees *ret. */
clv_code clv_table_map_codes(const clv_table_column *from, char *const *values, size_t n,
                             size_t **ret, clv_err *err) CLV_USE_RESULT;
/* Learns the columns from the records of `rows`, and the classes from all records. */
clv_code clv_table_learn(const clv_cell_table *t, const clv_subset *rows, clv_learnt **ret,
                         clv_err *err) CLV_USE_RESULT;
/* Returns the number of different indexes that an index column has: one for each value, one for all
 * values that the training records lack, and with `missing: own` one for missing values. */
size_t clv_learnt_index_row_count(const clv_learnt_column *c);
/* Encodes all records. Returns inputs [count, elements] f32; NULL if all columns are indexes or
 * texts.
 * CLV_DATA_LOSS: the columns are not those of `l`. */
clv_code clv_table_encode(const clv_cell_table *t, const clv_learnt *l, clv_tensor **ret,
                          clv_err *err) CLV_USE_RESULT;
/* Encodes the index column l->columns[column] of all records: [count] i64. The learnt values have
 * the first indexes, in their order; all other values share the next one; missing values have the
 * last. Errors as clv_table_encode. */
clv_code clv_table_encode_index(const clv_cell_table *t, const clv_learnt *l, size_t column,
                                clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Returns the class number of each record's target, [count] i64. path: file, for messages.
 * CLV_INVALID: a record has a class that the training records lack. */
clv_code clv_table_class_labels(const clv_cell_table *t, const clv_learnt *l, const char *path,
                                clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

#endif
