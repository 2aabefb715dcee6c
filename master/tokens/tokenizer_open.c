/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_tokenizer_open: chooses the kind of tokenizer by the name of its file.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

clv_code clv_tokenizer_open(const char *path, const clv_tokenizer_options *options,
                            clv_tokenizer **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t n = strlen(path);
  CLV_TRY(clv_file_read(path, CLV_TOKENS_MAX_FILE_BYTES, &text, err));
  const char *from = text.len ? text.data : "";
  size_t bom_len = strncmp(from, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
  if (n <= 5 || strcmp(path + n - 5, ".json") != 0)
    return clv_wordpiece_parse(from + bom_len, text.len - bom_len, path, options, ret, err);
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_TRY(clv_tokenizer_parse_json(from + bom_len, text.len - bom_len, path, &t, err));
  CLV_TRY(clv_tokenizer_check_folder(t, path, options, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}
