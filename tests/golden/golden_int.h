/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads golden files: inputs of test cases and PyTorch's results for them, which
 * tests/golden/make_golden.py writes. Tests run from the root of the repository.
 */
#ifndef CLEAVE_GOLDEN_INT_H
#define CLEAVE_GOLDEN_INT_H

#include "common/base/tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct golden_tensor {
  clv_dtype dtype;
  clv_shape shape;
  size_t n;
  const void *data; /* values, owned by the golden file */
} golden_tensor;

typedef struct golden {
  clv_bytes index_text, value_bytes;
} golden;

static inline bool golden_exists(const char *name) {
  char path[96];
  snprintf(path, sizeof path, "tests/golden/%s.txt", name);
  return access(path, R_OK) == 0;
}

static inline void golden_open(golden *g, const char *name) {
  char path[96];
  clv_err err;
  *g = (golden){0};
  snprintf(path, sizeof path, "tests/golden/%s.txt", name);
  clv_code code = clv_file_read(path, 1 << 20, &g->index_text, &err);
  snprintf(path, sizeof path, "tests/golden/%s.bin", name);
  if (code == CLV_OK) code = clv_file_read(path, 1 << 20, &g->value_bytes, &err);
  if (code == CLV_OK) return;
  fprintf(stderr, "%s (tests run from the root of the repository)\n", err.text);
  exit(1);
}

static inline void golden_close(golden *g) {
  clv_bytes_done(&g->index_text);
  clv_bytes_done(&g->value_bytes);
}

/* Finds the tensor "NAME.WHAT" of the case `name`. Returns false if the file has none. */
static inline bool golden_find_tensor(const golden *g, const char *name, const char *what,
                                      golden_tensor *ret) {
  char key[128], dtype[8];
  int used = 0;
  size_t offset = 0;
  size_t length = (size_t)snprintf(key, sizeof key, "\n%s.%s ", name, what);
  const char *line = strstr(g->index_text.data, key);
  if (line)
    line += length;
  else if (strncmp(g->index_text.data, key + 1, length - 1) == 0)
    line = g->index_text.data + length - 1;
  else
    return false;
  *ret = (golden_tensor){.n = 1};
  if (sscanf(line, "%7s %zu %d%n", dtype, &offset, &ret->shape.rank, &used) != 3) return false;
  for (int i = 0; i < ret->shape.rank; i++) {
    char *end;
    ret->shape.dim[i] = strtoll(line + used, &end, 10);
    used = (int)(end - line);
    ret->n *= (size_t)ret->shape.dim[i];
  }
  ret->data = g->value_bytes.data + offset;
  return clv_dtype_parse(dtype, &ret->dtype);
}

#endif
