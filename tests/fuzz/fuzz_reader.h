/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the fuzz targets of data file formats. One .c file of each target includes this
 * header.
 */
#ifndef CLEAVE_TESTS_FUZZ_READER_H
#define CLEAVE_TESTS_FUZZ_READER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "master/data/reader_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 1 << 22 };

typedef clv_code (*reader)(const void *data, size_t len, const char *label, size_t max_bytes,
                           clv_tensor **ret, clv_err *err);

/* Writes the bytes to a file in memory and returns its path. The file is the same for all
 * inputs. */
static const char *put_in_file(const uint8_t *data, size_t size) {
  static char path[40];
  static int fd = -1;
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  NEVER(fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

/* Reads a file in the way for files that are too large for memory: maps it, if its elements need no
 * conversion. */
static clv_code map_file(const clv_array_reader *format, const char *path, clv_tensor **ret,
                         clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open(path, &s, err));
  clv_byte_source_set_min_mapped_bytes(s, 1);
  return format->read(s, MAX_BYTES, ret, NULL, err);
}

static void compare_tensors(const clv_tensor *t, const clv_tensor *other) {
  NEVER(t->bytes != other->bytes || memcmp(t->data, other->data, t->bytes) != 0);
}

/* Parses the data from memory. Accepted data are also read from a file whose format is guessed, and
 * from a mapped file. Fails if the results differ. */
static void read_from_memory_and_file(reader parse, const clv_array_reader *format,
                                      const uint8_t *data, size_t size) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL, *from_file = NULL, *mapped = NULL;
  clv_err err = {0};
  if (parse(data, size, "fuzz", MAX_BYTES, &t, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return;
  }
  const char *path = put_in_file(data, size);
  NEVER(clv_array_read(path, CLV_FORMAT_AUTO, MAX_BYTES, &from_file, NULL, &err) != CLV_OK);
  compare_tensors(t, from_file);
  NEVER(map_file(format, path, &mapped, &err) != CLV_OK);
  compare_tensors(t, mapped);
}

#endif
