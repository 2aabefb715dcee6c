/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources of cells: records of a table, cell by cell, from CSV (cells_csv.c), from lines of JSON
 * (cells_jsonl.c) or from a query of an SQLite database (cells_sqlite.c). cell_source.c chooses the
 * reader by the file. Private to master/data.
 */
#ifndef CLEAVE_DATA_CELL_SOURCE_INT_H
#define CLEAVE_DATA_CELL_SOURCE_INT_H

#include "master/data/page_int.h"
#include "master/data/record_lines_int.h"
#include "master/data/text_int.h"

typedef enum clv_cell_kind {
  CLV_CELL_TEXT,    /* a text; the session says what it means */
  CLV_CELL_NUMBER,  /* a number of JSON or SQLite, with a decimal point */
  CLV_CELL_MISSING, /* no value: null of JSON or SQLite */
  CLV_CELL_OTHER,   /* a list, an object or bytes; `text` says which */
} clv_cell_kind;

/* A cell. Its text is valid until the next cell is read. */
typedef struct clv_source_cell {
  clv_cell_kind kind;
  size_t field;     /* index in clv_fields.list of the field that the cell belongs to */
  const char *text; /* [len] followed by a NUL */
  size_t len;
} clv_source_cell;

/* Names of the fields of a table (cell_fields.c). For CSV and SQLite they are in the order of the
 * header or the query; for lines of JSON, in the order in which they first occur. Zero-initialise;
 * release with clv_fields_done. */
typedef struct clv_fields {
  clv_bytes text; /* names of all fields, each followed by a NUL byte */
  struct clv_cell_field {
    size_t name_offset; /* offset of the name in `text` */
    /* column at which its name begins in the header, from 1; 0: the table has no header */
    size_t column;
    size_t last_record; /* JSON: number of the last record that had the field, from 1; 0: none */
  } * list;             /* [n] the fields */
  size_t n, cap;
  clv_name_table index_of_name; /* JSON: finds the index in `list` of a name */
} clv_fields;

void clv_fields_done(clv_fields *f);
/* Adds a field, even if another one has the same name. CLV_INVALID: the table has too many
 * fields. */
clv_code clv_fields_add(clv_fields *f, const char *name, size_t len, size_t column,
                        clv_err *err) CLV_USE_RESULT;
/* Returns the field of a name. Adds a field for a new name. */
clv_code clv_fields_find_or_add(clv_fields *f, const char *name, size_t len, size_t *ret,
                                clv_err *err) CLV_USE_RESULT;
bool clv_cells_is_utf8(const char *text, size_t len);
const char *clv_field_name(const clv_fields *f, size_t field);

typedef struct clv_query clv_query; /* query of an SQLite database (cells_sqlite.c) */
typedef struct clv_cell_source clv_cell_source;

/* Functions that read tables of one format, such as CSV. The fail_ functions return CLV_INVALID,
 * and put the position in the file (file, line and column) in front of the text. */
typedef struct clv_cell_reader {
  /* Goes to the next record. Skips the unread cells of the present record. */
  clv_code (*start_next_record)(clv_cell_source *s, bool *ret_has_more, clv_err *err);
  /* Reads the next cell of the record. */
  clv_code (*read_cell)(clv_cell_source *s, clv_source_cell *ret, bool *ret_has_more, clv_err *err);
  /* fail_cell fails with the position of the cell that was read last, fail_record with the position
   * of the record. */
  clv_code (*fail_cell)(const clv_cell_source *s, const char *text, clv_err *err);
  clv_code (*fail_record)(const clv_cell_source *s, const char *text, clv_err *err);
  /* Fails with the position of a field's name. field: SIZE_MAX for the complete header. */
  clv_code (*fail_field)(const clv_cell_source *s, size_t field, const char *text, clv_err *err);
  /* true: each record may have new fields; false: all fields are known when the table is open */
  bool has_late_fields;
} clv_cell_reader;

struct clv_cell_source {
  const clv_cell_reader *reader;
  const char *path; /* path of the table, for messages; caller-owned */
  clv_fields fields;
  bool has_ended_early; /* true: an error has ended the reading, so no further record can be read */
  size_t n_records;     /* number of records whose reading has begun, with the present one */
  size_t n_cells;       /* number of cells of the present record that have been read */
  /* CSV, JSON: number of lines before the cell, and offset of the cell in the record */
  size_t line, at;
  size_t key_offset;       /* JSON: offset in the record of the present cell's key */
  clv_bytes text;          /* text of the present cell */
  clv_record_lines *lines; /* CSV, JSON: lines of the file; NULL: SQLite */
  /* CSV: state of the parser before the next cell of the present record, and at the begin of this
   * record */
  clv_csv csv, record_csv;
  clv_json json;    /* JSON: part of the record that is not parsed yet */
  clv_query *query; /* SQLite: the query; NULL for other formats */
};

/* Opens the records of a table: of the file o->inputs_path, or of a text (clv_cells_open_memory).
 * CLV_INVALID: the text is not a table that can be read, or has no header. */
clv_code clv_cells_open(const clv_dataset_options *o, clv_cell_source *ret,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_cells_open_memory(const clv_dataset_options *o, const char *text, size_t len,
                               clv_cell_source *ret, clv_err *err) CLV_USE_RESULT;
void clv_cells_done(clv_cell_source *s);
/* Examines the first bytes of the file o->inputs_path. CLV_INVALID: they are of a workbook, of
 * Parquet or the like, which cannot be read as a table. *ret_database: the file is an SQLite
 * database. */
clv_code clv_cells_check_file(const clv_dataset_options *o, bool *ret_database,
                              clv_err *err) CLV_USE_RESULT;
/* True if the file has lines of JSON, by its name: .jsonl or .ndjson, also with .gz. */
bool clv_cells_has_json_name(const char *path);
/* Returns the separator of fields: as the options give it, or else by the file's name. */
char clv_cells_separator(const clv_dataset_options *o);
/* Fail with a message that begins with a position in the file: of the present cell
 * (clv_cells_fail), of the record (clv_cells_fail_record), or of a field's name
 * (clv_cells_fail_field). */
clv_code clv_cells_fail(const clv_cell_source *s, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(3, 4);
clv_code clv_cells_fail_record(const clv_cell_source *s, clv_err *err, const char *fmt, ...)
    CLV_PRINTF(3, 4);
clv_code clv_cells_fail_field(const clv_cell_source *s, size_t field, clv_err *err, const char *fmt,
                              ...) CLV_PRINTF(4, 5);

/* ---- formats of tables ----------------------------------------------------------------------- */

/* clv_cells_csv_open opens s->lines as CSV and reads the header; clv_cells_jsonl_open opens
 * s->lines as lines of JSON. Both set s->reader. */
clv_code clv_cells_csv_open(clv_cell_source *s, char separator, clv_err *err) CLV_USE_RESULT;
clv_code clv_cells_jsonl_open(clv_cell_source *s, clv_err *err) CLV_USE_RESULT;
/* Opens the database s->path and begins the query. */
clv_code clv_cells_sqlite_open(clv_cell_source *s, const clv_table_options *o,
                               clv_err *err) CLV_USE_RESULT;
void clv_query_free(clv_query *q);

/* ---- checks of the text of an SQL query (query_text.c) --------------------------------------- */

/* Checks a query before it is compiled: one statement with ORDER BY outside of all parentheses.
 * CLV_INVALID: the query is not of this form; the message says what to do. */
clv_code clv_query_text_check(const char *sql, clv_err *err) CLV_USE_RESULT;
/* True if a query may call the SQL function: the list of query_text.c has it, and it depends on its
 * arguments alone. */
bool clv_query_may_call(const char *function);

#endif
