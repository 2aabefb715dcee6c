/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads generation_config.json and preprocessor_config.json beside a config.json, by the tables of
 * other_keys.c.
 */
#include "common/model/hf/config_int.h"

enum { MAX_FILE = 1 << 20 };

clv_code clv_hf_other_file_parse(clv_hf_other_file file, const char *label, const char *text,
                                 size_t len, const clv_json_keys *ignored, clv_hf_pictures *ret,
                                 clv_err *err) {
  clv_hf_pictures found = {
      .is_given = true, .is_normalized = true, .is_scaled = true, .factor = 1 / 255.0};
  hf_config_reader r = {
      .j = {.label = label, .text = text, .len = len}, .ignored = ignored, .target_struct = &found};
  hf_table table = clv_hf_other_table(file);
  bool seen[HF_MAX_ROWS] = {0};
  CLV_TRY(clv_hf_read_object(&r, &table, seen, err));
  CLV_TRY(clv_json_end(&r.j, err));
  if (!found.is_scaled) found.factor = 1;
  found.is_normalized &= found.mean.n && found.std.n;
  if (ret) *ret = found;
  return CLV_OK;
}

static clv_code read_file(clv_hf_other_file file, const char *folder, const clv_json_keys *ignored,
                          clv_hf_pictures *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/%s", folder, clv_hf_other_file_name(file));
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_FILE, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK;
  if (code != CLV_OK) return code;
  return clv_hf_other_file_parse(file, path.data, text.data ? text.data : "", text.len, ignored,
                                 ret, err);
}

clv_code clv_hf_check_other_files(const char *folder, const clv_json_keys *ignored, clv_err *err) {
  for (int f = 0; f < CLV_HF_OTHER_FILES; f++)
    CLV_TRY(read_file((clv_hf_other_file)f, folder, ignored, NULL, err));
  return CLV_OK;
}

clv_code clv_hf_pictures_read(const char *folder, const clv_json_keys *ignored,
                              clv_hf_pictures *ret, clv_err *err) {
  *ret = (clv_hf_pictures){0};
  return read_file(CLV_HF_PREPROCESSOR, folder, ignored, ret, err);
}
