/* SPDX-License-Identifier: Apache-2.0
 *
 * BERT's tokenizer. It cleans the text, cuts it into words at white space and punctuation, and cuts
 * each word into the longest pieces of the vocabulary. Pieces within a word begin with "##".
 * Source: BertNormalizer, BertPreTokenizer and WordPiece of Hugging Face's tokenizers.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

enum { MAX_WORD = 100 }; /* most characters of a word; longer words are unknown */

/* ---- the file -------------------------------------------------------------------------------- */

static clv_code add_line(clv_tokenizer *t, const char *line, size_t len, const char *label,
                         clv_err *err) {
  size_t number = t->vocab.n;
  if (len && line[len - 1] == '\r') len--;
  if (!len)
    return clv_fail(err, CLV_INVALID, "%s:%zu:1: an empty line is not a token", label, number + 1);
  if (len > CLV_TOKENS_MAX_TOKEN || number == CLV_TOKENS_MAX_ID)
    return clv_fail(err, CLV_EXHAUSTED, "%s:%zu:1: at most %d tokens of at most %d bytes are read",
                    label, number + 1, CLV_TOKENS_MAX_ID, CLV_TOKENS_MAX_TOKEN);
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    if (!(n = clv_utf8_decode(line + i, len - i, &c)))
      return clv_fail(err, CLV_INVALID,
                      "%s:%zu: byte %zu of the line is not UTF-8: convert the file", label,
                      number + 1, i);
  }
  return clv_vocab_add(&t->vocab, line, len, (int32_t)number, (uint32_t)number + 1, 0, err);
}

static clv_code add_lines(clv_tokenizer *t, const char *text, size_t len, const char *label,
                          clv_err *err) {
  for (const char *at = text, *end = text + len; at < end;) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    size_t n = (size_t)((stop ? stop : end) - at);
    CLV_TRY(add_line(t, at, n, label, err));
    at += n + 1;
  }
  clv_vocab_entry twice[2];
  if (clv_vocab_sort(&t->vocab, twice)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s:%u:1: this token is in line %u already", label,
                  twice[1].place, twice[0].place);
}

/* Adds those special tokens of BERT that the vocabulary has to the tokens that are found in the
 * original text. */
static clv_code add_special(clv_tokenizer *t, clv_err *err) {
  static const char *const names[] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
  clv_vocab_entry twice[2];
  for (size_t i = 0; i < CLV_COUNT(names); i++) {
    size_t n = strlen(names[i]);
    const clv_vocab_entry *e = clv_vocab_find(&t->vocab, names[i], n);
    if (e) CLV_TRY(clv_vocab_add(&t->raw_added, names[i], n, e->id, 0, 0, err));
  }
  clv_vocab_sort(&t->raw_added, twice);
  return CLV_OK;
}

/* ---- a word ---------------------------------------------------------------------------------- */

/* Finds the longest piece at the beginning of `word`. */
static const clv_vocab_entry *find_longest_piece(const clv_tokenizer *t, clv_vocab_walk w,
                                                 const char *word, size_t len, size_t *ret_len) {
  const clv_vocab_entry *best = NULL;
  for (size_t i = 0; i < len && clv_vocab_walk_step(&t->vocab, &w, word[i]); i++) {
    const clv_vocab_entry *e = clv_vocab_walk_token(&t->vocab, &w);
    if (!e) continue;
    best = e;
    *ret_len = i + 1;
  }
  return best;
}

static clv_code add_word(const clv_tokenizer *t, const clv_bytes *word, size_t characters,
                         clv_ids *out, clv_err *err) {
  size_t before = out->n, n = 0;
  if (!word->len) return CLV_OK;
  if (characters > MAX_WORD) return clv_ids_add(out, t->unknown, err);
  for (size_t at = 0; at < word->len; at += n) {
    clv_vocab_walk from = at ? t->after_hashes : clv_vocab_walk_begin(&t->vocab);
    const clv_vocab_entry *e = find_longest_piece(t, from, word->data + at, word->len - at, &n);
    if (!e) {
      out->n = before; /* if any part of a word is unknown, the complete word is unknown */
      return clv_ids_add(out, t->unknown, err);
    }
    CLV_TRY(clv_ids_add(out, e->id, err));
  }
  return CLV_OK;
}

/* ---- a text ---------------------------------------------------------------------------------- */

static clv_code add_cleaned(clv_codepoints *p, uint32_t c, clv_err *err) {
  bool alone = clv_char_is_cjk(c);
  if (c == 0 || c == 0xfffd || clv_char_is_control(c)) return CLV_OK;
  if (alone) CLV_TRY(clv_codepoints_add(p, ' ', err));
  CLV_TRY(clv_codepoints_add(p, clv_char_is_space(c) ? ' ' : c, err));
  return alone ? clv_codepoints_add(p, ' ', err) : CLV_OK;
}

static clv_code clean_text(const char *text, size_t len, clv_codepoints *p, clv_err *err) {
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c = 0;
    n = CLV_MAX(clv_utf8_decode(text + i, len - i, &c), (size_t)1);
    CLV_TRY(add_cleaned(p, c, err));
  }
  return CLV_OK;
}

static void strip_marks(clv_codepoints *p) {
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++)
    if (!clv_char_is_mark((uint32_t)p->at[i])) p->at[n++] = p->at[i];
  p->n = n;
}

/* The word that is being collected. */
typedef struct clv_word {
  clv_bytes text;
  size_t characters;
} clv_word;

static clv_code end_word(const clv_tokenizer *t, clv_word *w, clv_ids *out, clv_err *err) {
  if (w->text.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for a word");
  CLV_TRY(add_word(t, &w->text, w->characters, out, err));
  w->text.len = w->characters = 0;
  return CLV_OK;
}

static clv_code add_code_point(const clv_tokenizer *t, clv_word *w, uint32_t c, clv_ids *out,
                               clv_err *err) {
  bool alone = clv_char_is_punctuation(c), space = clv_char_is_space(c);
  if (alone || space) CLV_TRY(end_word(t, w, out, err));
  if (!space) {
    clv_codepoint_to_utf8(c, &w->text);
    w->characters++;
  }
  return alone ? end_word(t, w, out, err) : CLV_OK;
}

static clv_code encode_words(const clv_tokenizer *t, const clv_codepoints *p, clv_word *w,
                             clv_ids *out, clv_err *err) {
  for (size_t i = 0; i < p->n; i++) {
    uint32_t c[2] = {(uint32_t)p->at[i]};
    size_t n = t->lower ? clv_codepoint_lower(c[0], c) : 1;
    for (size_t k = 0; k < n; k++) CLV_TRY(add_code_point(t, w, c[k], out, err));
  }
  return end_word(t, w, out, err);
}

static clv_code encode_text(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                            clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints p = {0};
  clv_word w = {0};
  CLV_TRY(clean_text(text, len, &p, err));
  if (t->strip) {
    CLV_TRY(clv_codepoints_decompose(&p, err));
    strip_marks(&p);
  }
  clv_code code = encode_words(t, &p, &w, out, err);
  clv_bytes_done(&w.text);
  return code;
}

/* Refuses files that are not a list of pieces in UTF-8. */
static clv_code check_kind(const char *text, size_t len, const char *label, clv_err *err) {
  static const char merges[] = "#version:";
  const char *encoding = clv_text_utf16_or_32(text, len);
  if (encoding)
    return clv_fail(err, CLV_INVALID,
                    "%s: its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t "
                    "UTF-8",
                    label, encoding, encoding);
  if (len >= sizeof merges && memcmp(text, merges, sizeof merges - 1) == 0)
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
  CLV_TRY(check_kind(text, len, label, err));
  CLV_TRY(clv_tokenizer_new(&t, err));
  CLV_TRY(add_lines(t, text, len, label, err));
  const clv_vocab_entry *unknown = clv_vocab_find(&t->vocab, "[UNK]", 5);
  if (!unknown)
    return clv_fail(
        err, CLV_INVALID,
        "%s: has no token [UNK] among its %zu lines: a vocab.txt has a token in each line", label,
        t->vocab.n);
  t->unknown = unknown->id;
  t->lower = !options->keep_case;
  t->strip =
      options->accents == CLV_ACCENTS_AUTO ? t->lower : options->accents == CLV_ACCENTS_STRIP;
  t->after_hashes = clv_vocab_walk_begin(&t->vocab);
  clv_vocab_walk_step(&t->vocab, &t->after_hashes, '#');
  clv_vocab_walk_step(&t->vocab, &t->after_hashes, '#');
  t->encode = encode_text;
  CLV_TRY(add_special(t, err));
  *ret = clv_steal(&t);
  return CLV_OK;
}
