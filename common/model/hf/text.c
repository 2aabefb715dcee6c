/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_config_read_text: reading the file config.json of a folder.
 */
#include "common/model/hf/hf.h"

enum { MAX_FILE = 1 << 20 };

clv_code clv_hf_config_read_text(const char *folder, clv_bytes *ret_path, clv_bytes *ret_text,
                                 clv_err *err) {
  clv_bytes_printf(ret_path, "%s/config.json", folder);
  if (ret_path->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_file_read(ret_path->data, MAX_FILE, ret_text, err);
}
