/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the readers of array files (idx.c, npy.c): a source of decoded bytes, which is a plain
 * or gzipped file or memory, and the step from a parsed header to a tensor. Private to master/data.
 *
 */
#ifndef CLEAVE_DATA_READER_INT_H
#define CLEAVE_DATA_READER_INT_H

#include "master/data/data.h"

typedef struct clv_byte_source clv_byte_source;

/* Sets the size in bytes from which on an array is mapped into memory (mmap) instead of read. Only
 * tests call it; otherwise the size depends on the memory of the host. */
void clv_byte_source_set_min_mapped_bytes(clv_byte_source *s, size_t bytes);
/* Lets an array of any size be mapped, for a caller who does not write to it. */
void clv_byte_source_map_read_only(clv_byte_source *s);
/* Makes a tensor over the bytes of an open file from `offset` on; the file must have all of these
 * bytes. The caller must not write to the tensor. label: for messages. */
clv_code clv_map_tensor(int fd, const char *label, size_t offset, clv_dtype dtype,
                        const clv_shape *shape, clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Maps a plain .npy file as a tensor. The caller must not write to the tensor. Errors as
 * clv_npy_read. */
clv_code clv_npy_map(const char *path, clv_tensor **ret, clv_err *err) CLV_USE_RESULT;

/* Opens a regular file. A file that begins with gzip's two magic bytes is inflated. */
clv_code clv_byte_source_open(const char *path, clv_byte_source **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_byte_source_open_memory(const void *data, size_t len, const char *label,
                                     clv_byte_source **ret, clv_err *err) CLV_USE_RESULT;
void clv_byte_source_freep(clv_byte_source **s);

/* Reads up to n decoded bytes. *ret_n_read is less than n only at the end of the data. */
clv_code clv_byte_source_read(clv_byte_source *s, void *dst, size_t n, size_t *ret_n_read,
                              clv_err *err) CLV_USE_RESULT;
const char *clv_byte_source_label(const clv_byte_source *s);

/* Reads n bytes of a header. CLV_DATA_LOSS: the data end earlier; the message names `what`. */
clv_code clv_byte_source_read_header(clv_byte_source *s, const char *what, void *dst, size_t n,
                                     clv_err *err) CLV_USE_RESULT;

/* An element type of a file format. `convert` makes n elements of a tensor of `dtype` from n
 * little-endian elements at src. */
typedef struct clv_element_type {
  const char *name; /* name of the type in the file format; npy: without the byte order */
  uint8_t idx_type; /* byte that names the type in an IDX file; 0 for npy */
  uint8_t bytes;    /* bytes of an element in the file */
  clv_dtype dtype;
  void (*convert)(const uint8_t *src, void *dst, size_t n);
  /* elements are u64: values above 2^63 - 1 are refused, because CLV_I64 cannot hold them */
  bool is_u64;
} clv_element_type;

void clv_convert_copy_1_byte(const uint8_t *src, void *dst, size_t n);
void clv_convert_copy_4_bytes(const uint8_t *src, void *dst, size_t n);
void clv_convert_copy_8_bytes(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_bool(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_i8(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_i16(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_u16(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_u32(const uint8_t *src, void *dst, size_t n);
void clv_convert_from_f16(const uint8_t *src, void *dst, size_t n);

/* A parsed header, which describes the data after it. */
typedef struct clv_array_header {
  const clv_element_type *element;
  clv_shape shape;
  size_t bytes;       /* bytes of the header itself */
  bool is_big_endian; /* byte order of the elements */
  bool is_fortran;    /* the first index changes fastest in the file */
} clv_array_header;

/* Reads the data behind a header into a tensor in C order. Before it allocates memory, it checks
 * the size against max_bytes and against the size of the file. Fails if the file has further data.
 * An array with more than max_bytes, or more than half of the host's memory, is mapped instead of
 * read if the file is plain and its elements need no conversion; such a file must not change while
 * the tensor is in use. */
clv_code clv_byte_source_read_tensor(clv_byte_source *s, const clv_array_header *h,
                                     size_t max_bytes, clv_tensor **ret,
                                     clv_err *err) CLV_USE_RESULT;

/* The reader of a format with one array per file: clv_array_reader_NAME in NAME.c for each such row
 * of formats.def. */
typedef struct clv_array_reader {
  const char *magic; /* the first bytes of such a file, for messages */
  /* true if a file that begins with these n bytes has this format */
  bool (*has_format)(const uint8_t *head, size_t n);
  /* Reads the array of an open source. *ret_is_bool: the elements are NumPy's bool, 0 and 1 in a u8
   * tensor; may be NULL. The caller sets *ret_is_bool to false before. */
  clv_code (*read)(clv_byte_source *s, size_t max_bytes, clv_tensor **ret, bool *ret_is_bool,
                   clv_err *err);
} clv_array_reader;

#define CLV_DATA_FORMAT(...)
#define CLV_ARRAY_FORMAT(NAME, name, ...) extern const clv_array_reader clv_array_reader_##name;
#include "common/base/settings/formats.def"

/* Returns advice for a file in a wrong format, by its first bytes: it is IDX, .npy, or a text such
 * as CSV that can be converted; "": the format is unknown. */
const char *clv_wrong_format_hint(const char *label, const void *head, size_t len);

/* Reads a file with one array. CLV_FORMAT_AUTO: its first bytes decide the format (array.c). */
clv_code clv_array_read(const char *path, clv_data_format format, size_t max_bytes,
                        clv_tensor **ret, bool *ret_is_bool, clv_err *err) CLV_USE_RESULT;

#endif
