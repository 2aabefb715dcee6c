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
#define CLV_ARRAY_FORMAT(NAME, name, ...) [CLV_FORMAT_##NAME] = &clv_array_##name,
#include "common/base/settings/formats.def"
};

/* Writes into buf the first bytes with which the files of each format begin: "neither IDX (...) nor
 * .npy (...)". */
static const char *list_magics(char *buf, size_t len) {
  size_t text_len = 0;
  for (size_t i = 0; i < CLV_COUNT(readers) && text_len < len; i++)
    if (readers[i])
      text_len += (size_t)snprintf(buf + text_len, len - text_len, "%s %s",
                                   text_len ? " nor" : "neither", readers[i]->magic);
  return buf;
}

static clv_code guess_format(const char *path, const clv_array_reader **ret, clv_err *err) {
  CLV_AUTO(clv_source_freep) clv_source *s = NULL;
  uint8_t head[6] = {0};
  char magics[160];
  size_t n_read;
  CLV_TRY(clv_source_open(path, &s, err));
  CLV_TRY(clv_source_read(s, head, sizeof head, &n_read, err));
  for (size_t i = 0; i < CLV_COUNT(readers); i++)
    if (readers[i] && readers[i]->is_file(head, n_read)) return *ret = readers[i], CLV_OK;
  return clv_fail(err, CLV_INVALID, "%.200s: %s: found %02x %02x %02x %02x %02x %02x (%zu bytes)%s",
                  path, list_magics(magics, sizeof magics), head[0], head[1], head[2], head[3],
                  head[4], head[5], n_read, clv_wrong_format_hint(path, head, n_read));
}

clv_code clv_array_read(const char *path, clv_data_format format, size_t max_bytes,
                        clv_tensor **ret, bool *ret_is_bool, clv_err *err) {
  const clv_array_reader *r = readers[format];
  if (ret_is_bool) *ret_is_bool = false;
  if (format == CLV_FORMAT_AUTO) CLV_TRY(guess_format(path, &r, err));
  CLV_AUTO(clv_source_freep) clv_source *s = NULL;
  CLV_TRY(clv_source_open(path, &s, err));
  return r->read(s, max_bytes, ret, ret_is_bool, err);
}

clv_code clv_idx_read(const char *path, size_t max_bytes, clv_tensor **ret, clv_err *err) {
  return clv_array_read(path, CLV_FORMAT_IDX, max_bytes, ret, NULL, err);
}

clv_code clv_npy_read(const char *path, size_t max_bytes, clv_tensor **ret, clv_err *err) {
  return clv_array_read(path, CLV_FORMAT_NPY, max_bytes, ret, NULL, err);
}
