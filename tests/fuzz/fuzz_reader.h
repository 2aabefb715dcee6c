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

static clv_code read_file(const uint8_t *data, size_t size, clv_tensor **ret) {
  char path[40];
  clv_err err;
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  NEVER(fd < 0 || write(fd, data, size) != (ssize_t)size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  clv_code code = clv_array_read(path, CLV_FORMAT_AUTO, MAX_BYTES, ret, NULL, &err);
  close(fd);
  return code;
}

/* Reads the data from memory and from a file whose kind is guessed. Fails if the two results
 * differ. */
static void read_from_memory_and_file(reader parse, const uint8_t *data, size_t size) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *parsed_again = NULL;
  clv_err err = {0};
  clv_code code = parse(data, size, "fuzz", MAX_BYTES, &t, &err);
  clv_code file_code = read_file(data, size, &parsed_again);
  NEVER(code != CLV_OK && !err.text[0]);
  if (code != CLV_OK) return;
  NEVER(file_code != CLV_OK || t->bytes != parsed_again->bytes ||
        memcmp(t->data, parsed_again->data, t->bytes) != 0);
}

#endif
