/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a text file record by record: lines of JSON, or records of CSV, whose quotes may contain
 * line ends. Private to master/data.
 *
 */
#ifndef CLEAVE_DATA_LINES_INT_H
#define CLEAVE_DATA_LINES_INT_H

#include "master/data/data.h"

enum { CLV_TEXT_RECORD_MAX = 16 << 20 /* most bytes of a record */ };

typedef struct clv_record_lines clv_record_lines;

/* Opens a file, plain or gzip, and skips a UTF-8 byte order mark. separator: character between the
 * fields of CSV; 0: the file has lines of JSON. max_bytes: limit of the decoded file. CLV_INVALID:
 * the text is UTF-16 or UTF-32. */
clv_code clv_record_lines_open(const char *path, char separator, size_t max_bytes,
                               clv_record_lines **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_record_lines_open, but reads from memory, which must stay valid until *ret is freed. */
clv_code clv_record_lines_open_memory(const char *text, size_t len, const char *label,
                                      char separator, clv_record_lines **ret,
                                      clv_err *err) CLV_USE_RESULT;
void clv_record_lines_freep(clv_record_lines **l);

/* A record, with its line end. The text is valid until the next call. */
typedef struct clv_text_record {
  const char *text; /* bytes of the record, [len], followed by a NUL */
  size_t len;
  size_t lines_before; /* number of lines in the file before this record */
} clv_text_record;

/* Reads the next record. *ret_has_more false: the file has no further record. CLV_EXHAUSTED: the
 * record has more than CLV_TEXT_RECORD_MAX bytes, or the file more than max_bytes. */
clv_code clv_record_lines_next(clv_record_lines *l, clv_text_record *ret, bool *ret_has_more,
                               clv_err *err) CLV_USE_RESULT;

/* Returns the bytes of a UTF-8 byte order mark at the beginning of a text: 3, or 0 if there is no
 * mark. */
size_t clv_bom_length(const char *text, size_t len);

#endif
