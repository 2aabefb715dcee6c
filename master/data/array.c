/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a file with one array. Chooses the reader of its format by the options, or by the first
 * bytes of the file (CLV_FORMAT_AUTO).
 *
 */
#include <stdio.h>

#include "master/data/reader_int.h"

static const clv_array_reader *const readers[] = {
#define CLV_DATA_FORMAT(...)
#define CLV_ARRAY_FORMAT(NAME, name, ...) [CLV_FORMAT_##NAME] = &clv_array_reader_##name,
#include "common/base/settings/formats.def"
};

/* Writes into buf, for an error message, how the files of each format begin: "neither IDX (...) nor
 * .npy (...)". */
static const char *format_magic_list(char *buf, size_t len) {
  size_t text_len = 0;
  for (size_t i = 0; i < CLV_COUNT(readers) && text_len < len; i++)
    if (readers[i])
      text_len += (size_t)snprintf(buf + text_len, len - text_len, "%s %s",
                                   text_len ? " nor" : "neither", readers[i]->magic);
  return buf;
}

static clv_code guess_array_reader(const char *path, const clv_array_reader **ret, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  uint8_t first_bytes[6] = {0};
  char magic_list[160];
  size_t n_read;
  CLV_TRY(clv_byte_source_open(path, &s, err));
  CLV_TRY(clv_byte_source_read(s, first_bytes, sizeof first_bytes, &n_read, err));
  for (size_t i = 0; i < CLV_COUNT(readers); i++)
    if (readers[i] && readers[i]->has_format(first_bytes, n_read)) return *ret = readers[i], CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: %s: found %02x %02x %02x %02x %02x %02x (%zu bytes)%s",
                  path, format_magic_list(magic_list, sizeof magic_list), first_bytes[0],
                  first_bytes[1], first_bytes[2], first_bytes[3], first_bytes[4], first_bytes[5],
                  n_read, clv_wrong_format_hint(path, first_bytes, n_read));
}

clv_code clv_array_read(const char *path, clv_data_format format, size_t max_bytes,
                        clv_tensor **ret, bool *ret_is_bool, clv_err *err) {
  const clv_array_reader *r = readers[format];
  if (ret_is_bool) *ret_is_bool = false;
  if (format == CLV_FORMAT_AUTO) CLV_TRY(guess_array_reader(path, &r, err));
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  CLV_TRY(clv_byte_source_open(path, &s, err));
  return r->read(s, max_bytes, ret, ret_is_bool, err);
}

clv_code clv_idx_read(const char *path, size_t max_bytes, clv_tensor **ret, clv_err *err) {
  return clv_array_read(path, CLV_FORMAT_IDX, max_bytes, ret, NULL, err);
}

clv_code clv_npy_read(const char *path, size_t max_bytes, clv_tensor **ret, clv_err *err) {
  return clv_array_read(path, CLV_FORMAT_NPY, max_bytes, ret, NULL, err);
}
