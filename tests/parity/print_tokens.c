/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints a line of token numbers for each file: print_tokens VOCABULARY lower|cased auto|keep|strip
 * FILE...
 */
#include <stdio.h>
#include <string.h>

#include "master/tokens/tokens.h"

static clv_code print_file(const clv_tokenizer *t, const char *path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_ids_done) clv_ids ids = {0};
  CLV_TRY(clv_file_read(path, (size_t)1 << 30, &text, err));
  CLV_TRY(clv_tokenizer_encode(t, text.data, text.len, &ids, err));
  for (size_t i = 0; i < ids.n; i++) printf("%s%d", i ? " " : "", ids.at[i]);
  putchar('\n');
  return CLV_OK;
}

int main(int argc, char **argv) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  clv_err err;
  if (argc < 4) return 2;
  clv_tokenizer_options o = {.keep_case = strcmp(argv[2], "cased") == 0};
  if (strcmp(argv[3], "auto") != 0)
    o.accents = strcmp(argv[3], "keep") == 0 ? CLV_ACCENTS_KEEP : CLV_ACCENTS_STRIP;
  clv_code code = clv_tokenizer_open(argv[1], &o, &t, &err);
  for (int i = 4; i < argc && code == CLV_OK; i++) code = print_file(t, argv[i], &err);
  if (code != CLV_OK) fprintf(stderr, "%s\n", err.text);
  return code != CLV_OK;
}
