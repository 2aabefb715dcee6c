/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a vocab.txt, which has the tokens of WordPiece, one per line. Its tokenizer has the
 * normalizer and the pre_tokenizer of BERT.
 * Source: BertNormalizer and BertPreTokenizer of Hugging Face's tokenizers.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

enum { MAX_WORD_CHARS = 100 }; /* longer words become [UNK] */

static clv_code add_vocab_line(clv_tokenizer *t, const char *line, size_t len, const char *label,
                               clv_err *err) {
  size_t number = t->vocab.n;
  if (len && line[len - 1] == '\r') len--;
  if (!len)
    return clv_fail(err, CLV_INVALID, "%s:%zu:1: an empty line is not a token", label, number + 1);
  if (len > CLV_TOKENS_MAX_TOKEN_BYTES || number == CLV_TOKENS_MAX_ID)
    return clv_fail(err, CLV_EXHAUSTED, "%s:%zu:1: at most %d tokens of at most %d bytes are read",
                    label, number + 1, CLV_TOKENS_MAX_ID, CLV_TOKENS_MAX_TOKEN_BYTES);
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    if (!(n = clv_utf8_decode(line + i, len - i, &c)))
      return clv_fail(err, CLV_INVALID,
                      "%s:%zu: byte %zu of the line is not UTF-8: convert the file", label,
                      number + 1, i);
  }
  return clv_vocab_add(&t->vocab, line, len, (int32_t)number, (uint32_t)number + 1, 0, err);
}

static clv_code add_vocab_lines(clv_tokenizer *t, const char *text, size_t len, const char *label,
                                clv_err *err) {
  for (const char *at = text, *end = text + len; at < end;) {
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    size_t n = (size_t)((line_end ? line_end : end) - at);
    CLV_TRY(add_vocab_line(t, at, n, label, err));
    at += n + 1;
  }
  clv_vocab_entry duplicates[2];
  if (clv_vocab_sort(&t->vocab, duplicates)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s:%u:1: this token is in line %u already", label,
                  duplicates[1].file_position, duplicates[0].file_position);
}

/* Adds the special tokens of BERT, as far as the vocabulary has them, to the added tokens that are
 * found in the original text. */
static clv_code add_special_tokens(clv_tokenizer *t, clv_err *err) {
  static const char *const names[] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
  clv_vocab_entry duplicates[2];
  for (size_t i = 0; i < CLV_COUNT(names); i++) {
    size_t n = strlen(names[i]);
    const clv_vocab_entry *e = clv_vocab_find(&t->vocab, names[i], n);
    if (e) CLV_TRY(clv_vocab_add(&t->raw_added_tokens, names[i], n, e->id, 0, 0, err));
  }
  clv_vocab_sort(&t->raw_added_tokens, duplicates);
  return CLV_OK;
}

/* Refuses a file in UTF-16 or UTF-32, and a merges.txt. */
static clv_code check_is_vocab(const char *text, size_t len, const char *label, clv_err *err) {
  static const char merges_header[] = "#version:";
  const char *encoding_name = clv_text_utf16_or_32(text, len);
  if (encoding_name)
    return clv_fail(err, CLV_INVALID,
                    "%s: its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t "
                    "UTF-8",
                    label, encoding_name, encoding_name);
  if (len >= sizeof merges_header && memcmp(text, merges_header, sizeof merges_header - 1) == 0)
    return clv_fail(err, CLV_INVALID,
                    "%s: this is a list of merges (merges.txt), half of a tokenizer: name the "
                    "tokenizer.json that is saved beside it",
                    label);
  return CLV_OK;
}

clv_code clv_wordpiece_parse(const char *text, size_t len, const char *label,
                             const clv_tokenizer_options *options, clv_tokenizer **ret,
                             clv_err *err) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_TRY(check_is_vocab(text, len, label, err));
  CLV_TRY(clv_tokenizer_new(&t, err));
  CLV_TRY(add_vocab_lines(t, text, len, label, err));
  const clv_vocab_entry *unknown_token = clv_vocab_find(&t->vocab, "[UNK]", 5);
  if (!unknown_token)
    return clv_fail(
        err, CLV_INVALID,
        "%s: has no token [UNK] among its %zu lines: a vocab.txt has a token in each line", label,
        t->vocab.n);
  CLV_TRY(clv_vocab_make_tree(&t->vocab, err));
  t->unknown_id = unknown_token->id;
  t->max_word_chars = MAX_WORD_CHARS;
  t->normalizer[t->n_normalizer_steps++] =
      clv_bert_normalizer(!options->keeps_case, options->accents);
  t->pre_tokenizer[t->n_pre_tokenizer_steps++] = clv_bert_pre_tokenizer();
  t->model = CLV_TOKEN_MODEL_WORDPIECE;
  clv_wordpiece_set_prefix(t, "##", 2);
  CLV_TRY(add_special_tokens(t, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}
