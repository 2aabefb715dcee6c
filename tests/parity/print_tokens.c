/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints a line of token ids for each file:
 *
 *   print_tokens VOCABULARY lower|cased|--ends|--lines auto|keep|strip FILE...
 *
 * cased: keeps upper case. --ends: adds the special tokens before and after a text. --lines: prints
 * a line for each line of the files. keep, strip: keeps or removes accents; auto: removes them only
 * if the text is converted to lower case.
 */
#include <stdio.h>
#include <string.h>

#include "master/tokens/tokens.h"

static clv_code print_text(const clv_tokenizer *t, const char *text, size_t len, bool has_ends,
                           clv_err *err) {
  CLV_AUTO(clv_ids_done) clv_ids ids = {0};
  clv_tokenizer_end_settings ends = clv_tokenizer_get_end_settings(t);
  if (has_ends && ends.before >= 0) CLV_TRY(clv_ids_add(&ids, ends.before, err));
  CLV_TRY(clv_tokenizer_encode(t, text, len, &ids, err));
  if (has_ends && ends.after >= 0) CLV_TRY(clv_ids_add(&ids, ends.after, err));
  for (size_t i = 0; i < ids.n; i++) printf("%s%d", i ? " " : "", ids.at[i]);
  putchar('\n');
  return CLV_OK;
}

static clv_code print_file(const clv_tokenizer *t, const char *path, const char *how,
                           clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_file_read(path, (size_t)1 << 30, &text, err));
  if (strcmp(how, "--lines") != 0)
    return print_text(t, text.data, text.len, strcmp(how, "--ends") == 0, err);
  for (size_t at = 0; at < text.len;) {
    const char *end = memchr(text.data + at, '\n', text.len - at);
    size_t n = end ? (size_t)(end - text.data) - at : text.len - at;
    CLV_TRY(print_text(t, text.data + at, n, false, err));
    at += n + 1;
  }
  return CLV_OK;
}

int main(int argc, char **argv) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  clv_err err;
  if (argc < 4) return 2;
  clv_tokenizer_options o = {.keeps_case = strcmp(argv[2], "cased") == 0};
  if (strcmp(argv[3], "auto") != 0)
    o.accents = strcmp(argv[3], "keep") == 0 ? CLV_ACCENTS_KEEP : CLV_ACCENTS_STRIP;
  clv_code code = clv_tokenizer_open(argv[1], &o, &t, &err);
  for (int i = 4; i < argc && code == CLV_OK; i++) code = print_file(t, argv[i], argv[2], &err);
  if (code != CLV_OK) fprintf(stderr, "%s\n", err.text);
  return code != CLV_OK;
}
