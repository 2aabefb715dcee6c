/* SPDX-License-Identifier: Apache-2.0
 *
 * Matches the regular expressions that cut a text into pieces before byte-level BPE, without a
 * regex library. The alternatives of an expression are tried in order, and each matches as many
 * characters as it can.
 * GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *          ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Qwen2: as Llama 3, but the third alternative is \p{N}.
 */
#include "master/tokens/tokens_int.h"

/* A text in which pieces are searched. */
typedef struct clv_split_text {
  const char *text;
  size_t len;
} clv_split_text;

/* Returns the character at `at`; *ret_next is the start of the next character. At the end of the
 * text returns 0, and *ret_next is `at`. */
static uint32_t decode_char_at(const clv_split_text *c, size_t at, size_t *ret_next) {
  uint32_t code_point = 0;
  *ret_next = at;
  if (at < c->len) *ret_next += clv_utf8_decode(c->text + at, c->len - at, &code_point);
  return code_point;
}

/* True for a character that is no space, letter or number. */
static bool is_other_char(uint32_t c) {
  return !clv_char_is_space(c) && !clv_char_is_letter(c) && !clv_char_is_number(c);
}

static bool is_line_end(uint32_t c) { return c == '\r' || c == '\n'; }

/* Returns the end of the longest run of characters at `at` for which is_in_class() is true; at most
 * max_chars characters. */
static size_t find_run_end(const clv_split_text *c, size_t at, bool (*is_in_class)(uint32_t),
                           size_t max_chars) {
  for (size_t next; max_chars-- && at < c->len && is_in_class(decode_char_at(c, at, &next));
       at = next) {
  }
  return at;
}

static bool matches_letter(uint32_t c, char letter, bool ignores_case) {
  if (c == (uint32_t)letter) return true;
  if (!ignores_case) return false;
  return c == (uint32_t)(letter - 'a' + 'A') || (letter == 's' && c == 0x17f);
}

/* Returns the end of a contraction such as 's at `from`; 0: there is none. */
static size_t find_contraction_end(const clv_split_text *c, size_t from, bool ignores_case) {
  static const char *const contraction_suffixes[] = {"s", "t", "re", "ve", "m", "ll", "d"};
  if (c->text[from] != '\'') return 0;
  for (size_t i = 0; i < CLV_COUNT(contraction_suffixes); i++) {
    size_t at = from + 1, next = at;
    const char *e = contraction_suffixes[i];
    while (*e && at < c->len && matches_letter(decode_char_at(c, at, &next), *e, ignores_case)) {
      at = next;
      e++;
    }
    if (!*e) return at;
  }
  return 0;
}

/* Matches \s+(?!\S), else \s+. So the last space before a word belongs to the piece of the word. */
static size_t find_spaces_end(const clv_split_text *c, size_t from) {
  size_t end = find_run_end(c, from, clv_char_is_space, SIZE_MAX), last_start = from;
  for (size_t next = from; next < end;) {
    last_start = next;
    decode_char_at(c, last_start, &next);
  }
  return end == c->len || last_start == from ? end : last_start;
}

/* Returns the end of the piece at `from` by the expression of GPT-2. */
static size_t find_gpt2_piece_end(const clv_split_text *c, size_t from) {
  static bool (*const char_classes[])(uint32_t) = {clv_char_is_letter, clv_char_is_number,
                                                   is_other_char};
  size_t end = find_contraction_end(c, from, false), at = from + (c->text[from] == ' ');
  for (size_t i = 0; !end && i < CLV_COUNT(char_classes); i++) {
    size_t class_end = find_run_end(c, at, char_classes[i], SIZE_MAX);
    if (class_end > at) end = class_end;
  }
  return end ? end : find_spaces_end(c, from);
}

/* Matches \s*[\r\n]+, up to the last line end of the white space; 0: there is none. */
static size_t find_lines_end(const clv_split_text *c, size_t from) {
  size_t end = find_run_end(c, from, clv_char_is_space, SIZE_MAX);
  while (end > from && !is_line_end((unsigned char)c->text[end - 1])) end--;
  return end > from ? end : 0;
}

/* Matches [^\r\n\p{L}\p{N}]?\p{L}+; 0: there is none. */
static size_t find_word_end(const clv_split_text *c, size_t from) {
  size_t at = from;
  uint32_t first_char = decode_char_at(c, from, &at);
  if (is_line_end(first_char) || clv_char_is_number(first_char)) return 0;
  if (clv_char_is_letter(first_char)) return find_run_end(c, from, clv_char_is_letter, SIZE_MAX);
  size_t end = find_run_end(c, at, clv_char_is_letter, SIZE_MAX);
  return end > at ? end : 0;
}

/* Returns the end of the piece at `from` by the expression of Llama 3. max_digits: most characters
 * of its third alternative, \p{N}. */
static size_t find_llama3_piece_end(const clv_split_text *c, size_t from, size_t max_digits) {
  size_t end = find_contraction_end(c, from, true), at = from + (c->text[from] == ' ');
  if (end || (end = find_word_end(c, from))) return end;
  if ((end = find_run_end(c, from, clv_char_is_number, max_digits)) > from) return end;
  if ((end = find_run_end(c, at, is_other_char, SIZE_MAX)) > at)
    return find_run_end(c, end, is_line_end, SIZE_MAX);
  return (end = find_lines_end(c, from)) ? end : find_spaces_end(c, from);
}

size_t clv_find_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from) {
  const clv_split_text c = {text, len};
  if (pattern == CLV_TOKEN_PATTERN_GPT2) return find_gpt2_piece_end(&c, from);
  return find_llama3_piece_end(&c, from, pattern == CLV_TOKEN_PATTERN_LLAMA3 ? 3 : 1);
}
