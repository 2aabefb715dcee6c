/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes sealed files, which are encrypted and authenticated. The first byte chooses: either the
 * rest is a file sealed with the key below and the name "fuzz", or the rest is sealed, one bit of
 * the result is changed, and the result is read. A changed file must be refused.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "master/seal/seal_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes the key of 32 bytes of value 7, with which the seed files are sealed. */
static clv_seal_key make_key(void) {
  static char path[] = "fuzz.key";
  clv_seal_key key = {.path = path};
  uint8_t id[CLV_SEAL_ID_BYTES];
  memset(&key.secret, 7, sizeof key.secret);
  NEVER(clv_seal_compute_key_id(&key.secret, id, NULL) != CLV_OK);
  clv_hex(id, sizeof id, key.id);
  return key;
}

/* True if the file can be opened to its end; *ret_data (may be NULL) receives the content. */
static bool is_openable(int fd, clv_bytes *ret_data) {
  CLV_AUTO(clv_sealed_reader_freep) clv_sealed_reader *r = NULL;
  const clv_seal_key key = make_key();
  const void *data;
  size_t n = 1;
  NEVER(lseek(fd, 0, SEEK_SET) != 0);
  if (clv_sealed_reader_open_fd(dup(fd), "fuzz", &key, "fuzz", &r, NULL) != CLV_OK) return false;
  while (n) {
    if (clv_sealed_reader_next(r, &data, &n, NULL) != CLV_OK) return false;
    clv_bytes_add(ret_data, data, n);
  }
  NEVER(ret_data->len != clv_sealed_reader_data_bytes(r));
  return true;
}

static void seal_and_change(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes plain = {0}, changed = {0};
  CLV_AUTO(clv_sealed_writer_freep) clv_sealed_writer *w = NULL;
  const clv_seal_key key = make_key();
  char path[64];
  snprintf(path, sizeof path, "/dev/shm/cleave-fuzz-seal-%d", (int)getpid());
  NEVER(clv_sealed_writer_begin(path, &key, "fuzz", &w, NULL) != CLV_OK ||
        clv_sealed_writer_add(w, data, size, NULL) != CLV_OK ||
        clv_sealed_writer_finish(w, NULL) != CLV_OK);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  NEVER(fd < 0 || unlink(path) != 0);
  NEVER(!is_openable(fd, &plain) || plain.len != size ||
        (size && memcmp(plain.data, data, size) != 0));
  off_t file_end = lseek(fd, 0, SEEK_END);
  off_t offset = size ? data[0] * (off_t)257 % file_end : file_end - 1;
  uint8_t byte;
  NEVER(pread(fd, &byte, 1, offset) != 1);
  byte ^= (uint8_t)(1 << (size ? data[size - 1] % 8 : 0));
  NEVER(pwrite(fd, &byte, 1, offset) != 1);
  NEVER(is_openable(fd, &changed));
  close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes plain = {0};
  if (!size) return 0;
  if (data[0] & 1) {
    seal_and_change(data + 1, size - 1);
    return 0;
  }
  int fd = memfd_create("sealed", MFD_CLOEXEC);
  NEVER(fd < 0 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1));
  is_openable(fd, &plain);
  close(fd);
  return 0;
}
