/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the readers of array files (idx.c, npy.c): a source of decoded bytes, which is a plain
 * or gzipped file or memory, and the step from a parsed header to a tensor. Private to master/data.
 *
 */
#ifndef CLEAVE_DATA_READER_INT_H
#define CLEAVE_DATA_READER_INT_H

#include "master/data/data.h"

typedef struct clv_source clv_source;

/* Opens a regular file; gzip is recognised by its first two bytes. */
clv_code clv_source_open(const char *path, clv_source **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_source_open_memory(const void *data, size_t len, const char *label, clv_source **ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_source_freep(clv_source **s);

/* Reads up to n decoded bytes. *ret_got < n only at the end of the data. */
clv_code clv_source_read(clv_source *s, void *dst, size_t n, size_t *ret_got,
                         clv_err *err) CLV_USE_RESULT;
const char *clv_source_label(const clv_source *s);

/* Reads n bytes of a header. CLV_DATA_LOSS: the data end before; the message names `what`. */
clv_code clv_source_read_header(clv_source *s, const char *what, void *dst, size_t n,
                                clv_err *err) CLV_USE_RESULT;

/* One element type of a file: how n little-endian elements at src become elements of a tensor of
 * `dtype`. */
typedef struct clv_element_type {
  const char *name; /* as in the file format; npy: without the byte order */
  uint8_t code;     /* IDX type byte; 0 for npy */
  uint8_t bytes;    /* per element in the file */
  clv_dtype dtype;
  void (*convert)(const uint8_t *src, void *dst, size_t n);
  bool is_u64; /* CLV_I64 holds the values up to 2^63 - 1; larger ones are refused */
} clv_element_type;

void clv_convert_copy1(const uint8_t *src, void *dst, size_t n);
void clv_convert_copy4(const uint8_t *src, void *dst, size_t n);
void clv_convert_copy8(const uint8_t *src, void *dst, size_t n);
void clv_convert_bool(const uint8_t *src, void *dst, size_t n);
void clv_convert_i8(const uint8_t *src, void *dst, size_t n);
void clv_convert_i16(const uint8_t *src, void *dst, size_t n);
void clv_convert_u16(const uint8_t *src, void *dst, size_t n);
void clv_convert_u32(const uint8_t *src, void *dst, size_t n);
void clv_convert_f16(const uint8_t *src, void *dst, size_t n);

/* A parsed header, which describes the data after it. */
typedef struct clv_array_header {
  const clv_element_type *element;
  clv_shape shape;
  size_t bytes;       /* size of the header itself */
  bool is_big_endian; /* byte order of the elements */
  bool is_fortran;    /* the first index changes fastest in the file */
} clv_array_header;

/* Reads the data behind a header into a tensor in C order. Checks its size against max_bytes and
 * against what the file can hold before it takes memory, and that the file ends there. */
clv_code clv_source_read_tensor(clv_source *s, const clv_array_header *h, size_t max_bytes,
                                clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

/* The reader of a format with one array per file: clv_array_NAME in NAME.c for each such row of
 * formats.def. */
typedef struct clv_array_reader {
  const char *magic;                              /* description of its first bytes, for messages */
  bool (*is_file)(const uint8_t *head, size_t n); /* true if a file with these n bytes is its own */
  /* Reads the array of an open source. *ret_is_bool: the elements are NumPy's bool, 0 and 1 in a u8
   * tensor; may be NULL. The caller sets *ret_is_bool to false before. */
  clv_code (*read)(clv_source *s, size_t max_bytes, clv_tensor **ret, bool *ret_is_bool,
                   clv_err *err);
} clv_array_reader;

#define CLV_DATA_FORMAT(...)
#define CLV_ARRAY_FORMAT(NAME, name, ...) extern const clv_array_reader clv_array_##name;
#include "common/base/settings/formats.def"

/* Advice for a file in a wrong format, from its first bytes: it is IDX, .npy, or a text such as CSV
 * that can be converted; "" if the format is unknown. */
const char *clv_wrong_format_hint(const char *label, const void *head, size_t len);

/* Reads an array file. CLV_FORMAT_AUTO chooses the format from its first bytes (array.c). */
clv_code clv_array_read(const char *path, clv_data_format format, size_t max_bytes,
                        clv_tensor **ret, bool *ret_is_bool, clv_err *err) CLV_USE_RESULT;

#endif
