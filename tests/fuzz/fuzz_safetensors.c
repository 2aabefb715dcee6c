/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the safetensors reader from memory and from a file. Reading the complete file, reading it
 * in parts and reading only its header must agree. An accepted file is also written, and the
 * writer's output is read again as the same tensors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rewrite(const clv_weights_file *f) {
  size_t n = clv_weights_n_entries(f);
  CLV_AUTO(clv_freep) clv_weights_tensor *t = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *parsed_again = NULL;
  clv_err err;
  if (clv_alloc(n, sizeof *t, &t, &err) != CLV_OK) return;
  for (size_t i = 0; i < n; i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    t[i] = (clv_weights_tensor){e->name, e->dtype, e->shape, e->data};
  }
  /* the project cannot write the type of some tensor */
  if (clv_weights_encode(t, n, NULL, 0, &b, &err) != CLV_OK) return;
  NEVER(clv_weights_open_memory(b.data, b.len, "again", &parsed_again, &err) != CLV_OK);
  for (size_t i = 0; i < n; i++) {
    const clv_weights_entry *e = clv_weights_find_entry(parsed_again, t[i].name);
    NEVER(!e || !clv_shape_equal(&e->shape, &t[i].shape) ||
          (e->bytes && memcmp(e->data, t[i].data, e->bytes)));
  }
}

typedef clv_code (*opener)(clv_weights_fd *fd, clv_weights_file **ret, clv_err *err);

static clv_code open_by_descriptor(clv_weights_fd *fd, clv_weights_file **ret, clv_err *err) {
  return clv_weights_open_fd(fd, 0, ret, err);
}

/* Opens the input as a file, through a descriptor. */
static clv_code open_as_file(const uint8_t *data, size_t size, opener open,
                             clv_weights_file **ret) {
  clv_err err;
  CLV_AUTO(clv_weights_fd_close)
  clv_weights_fd fd = {.fd = memfd_create("fuzz", MFD_CLOEXEC), .size = size, .label = "fuzz"};
  NEVER(fd.fd < 0 || write(fd.fd, data, size) != (ssize_t)size || lseek(fd.fd, 0, SEEK_SET) != 0);
  return open(&fd, ret, &err);
}

/* Asserts that values read from the file equal those in memory, and that reads past the end
 * fail. */
static void compare_reads(const clv_weights_file *f, const clv_weights_file *parts) {
  clv_err err;
  for (size_t i = 0; i < clv_weights_n_entries(f); i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i], *p = &clv_weights_entries(parts)[i];
    CLV_AUTO(clv_freep) char *read = NULL;
    NEVER(p->data || p->bytes != e->bytes || strcmp(p->name, e->name) != 0);
    if (clv_alloc(e->bytes + 1, 1, &read, &err) != CLV_OK) continue;
    NEVER(clv_weights_read_range(parts, p, 0, read, p->bytes, &err) != CLV_OK);
    NEVER(e->bytes && memcmp(read, e->data, e->bytes) != 0);
    NEVER(clv_weights_read_range(parts, p, 1, read, p->bytes, &err) == CLV_OK);
    if (e->dtype != CLV_F32 || !e->bytes) continue;
    NEVER(clv_weights_read_range_as(parts, p, CLV_BF16, 0, read, e->bytes / 4, &err) != CLV_OK);
    NEVER(clv_weights_read_range_as(parts, p, CLV_I64, 0, read, 1, &err) == CLV_OK);
  }
}

/* Uses the file as the file of its own averages (EMA). A tensor may count as averaged only if the
 * file also has a tensor of its name with the suffix CLV_EMA_SUFFIX. */
static void check_averages(clv_weights_file *f, clv_weights_file **averages) {
  clv_weights_take_ema(f, averages);
  NEVER(*averages);
  for (size_t i = 0; i < clv_weights_n_entries(f); i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    char name[CLV_WEIGHTS_MAX_NAME + 8];
    snprintf(name, sizeof name, "%s" CLV_EMA_SUFFIX, e->name);
    NEVER(e->is_ema && !clv_weights_find_entry(f, name));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL, *g = NULL, *h = NULL, *parts = NULL;
  clv_err err;
  clv_code code = clv_weights_open_memory(data, size, "fuzz", &f, &err);
  NEVER(open_as_file(data, size, open_by_descriptor, &g) != code);
  NEVER(open_as_file(data, size, clv_weights_open_header, &h) != code);
  NEVER(open_as_file(data, size, clv_weights_open_lazy_fd, &parts) != code);
  if (code != CLV_OK) return 0;
  NEVER(memcmp(clv_weights_digest(f), clv_weights_digest(g), sizeof(clv_sha256)) != 0);
  NEVER(memcmp(clv_weights_digest(f), clv_weights_digest(parts), sizeof(clv_sha256)) != 0);
  NEVER(clv_weights_file_bytes(f) != size || strcmp(clv_weights_name_for_errors(f), "fuzz") != 0);
  (void)clv_weights_find_metadata(f, "format");
  check_rewrite(f);
  compare_reads(f, parts);
  check_averages(f, &g);
  return 0;
}
