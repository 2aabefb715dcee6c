/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a tokenizer.json, as Hugging Face's tokenizers write it (clv_tokenizer_parse_json). The
 * keys of the file come in any order, but some sections need others to be read first. So the
 * positions of all sections are found first, and then they are read in the order of the table
 * `readers`.
 */
#include "master/tokens/tokenizer_file_int.h"

/* Positions of the sections in the file; a section that the file lacks has a position whose text is
 * NULL. version: index of the file's version in `versions`. */
typedef struct section_positions {
  clv_json normalizer, pre_tokenizer, model, added_tokens, post_processor, truncation, padding;
  size_t version;
} section_positions;

#define AT(member) offsetof(section_positions, member)

static const char *const versions[] = {"1.0"};
static const clv_json_key_row keys[] = {
    {.name = "version",
     .kind = CLV_KEY_CHOICE,
     .offset = AT(version),
     .is_optional = true,
     .names = versions,
     .n_names = CLV_COUNT(versions),
     .error_text = "only files of version 1.0 are read"},
    {.name = "normalizer", .kind = CLV_KEY_POSITION, .offset = AT(normalizer)},
    {.name = "pre_tokenizer", .kind = CLV_KEY_POSITION, .offset = AT(pre_tokenizer)},
    {.name = "model", .kind = CLV_KEY_POSITION, .offset = AT(model)},
    {.name = "added_tokens", .kind = CLV_KEY_POSITION, .offset = AT(added_tokens)},
    {.name = "post_processor",
     .kind = CLV_KEY_POSITION,
     .offset = AT(post_processor),
     .is_optional = true},
    {.name = "truncation", .kind = CLV_KEY_POSITION, .offset = AT(truncation), .is_optional = true},
    {.name = "padding", .kind = CLV_KEY_POSITION, .offset = AT(padding), .is_optional = true},
    /* skipped, because it only matters for converting tokens to text */
    {.name = "decoder", .is_optional = true}};

/* Readers of the sections, in the order in which they are called. at: offset of the section's
 * position in `section_positions`. */
static const struct {
  size_t at;
  clv_code (*read)(clv_token_file *f, clv_err *err);
} readers[] = {{AT(normalizer), clv_read_normalizer},
               {AT(pre_tokenizer), clv_read_pre_tokenizer},
               {AT(model), clv_read_model},
               {AT(added_tokens), clv_read_added_tokens},
               {AT(post_processor), clv_read_post_processor},
               {AT(truncation), clv_read_truncation},
               {AT(padding), clv_read_padding}};

static clv_code read_tokenizer_file(clv_token_file *f, clv_err *err) {
  const clv_tokenizer *t = f->t;
  section_positions s = {0};
  CLV_TRY(clv_token_file_read_keys(f, "this tokenizer.json", keys, CLV_COUNT(keys), &s, err));
  CLV_TRY(clv_json_end(&f->j, err));
  for (size_t i = 0; i < CLV_COUNT(readers); i++) {
    const clv_json *at = (const clv_json *)(const void *)((const char *)&s + readers[i].at);
    if (!at->text) continue;
    f->j = *at;
    CLV_TRY(readers[i].read(f, err));
  }
  if (CLV_MAX(CLV_MAX(t->before, t->after), t->pad_id) < clv_tokenizer_vocab_size(t)) return CLV_OK;
  return clv_json_fail(&f->j, 0, err, "post_processor or padding has a number that no token has");
}

clv_code clv_tokenizer_parse_json(const char *text, size_t len, const char *label,
                                  clv_tokenizer **ret, clv_err *err) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_TRY(clv_tokenizer_new(&t, err));
  clv_token_file f = {.j = {.label = label, .text = text, .len = len}, .t = t};
  clv_code code = read_tokenizer_file(&f, err);
  clv_bytes_done(&f.text);
  CLV_TRY(code);
  *ret = clv_steal(&t);
  return CLV_OK;
}
