/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds added tokens, such as [SEP] or <s>, in a text.
 */
#include "master/tokens/tokens_int.h"

static const clv_vocab_entry *find_longest_token_at(const clv_vocab *added_tokens, const char *text,
                                                    size_t len) {
  const clv_vocab_entry *longest = NULL;
  clv_prefix_search w = clv_prefix_search_begin(added_tokens);
  for (size_t i = 0; i < len && clv_prefix_search_add_byte(added_tokens, &w, text[i]); i++) {
    const clv_vocab_entry *e = clv_prefix_search_token(added_tokens, &w);
    if (e) longest = e;
  }
  return longest;
}

/* Returns the begin of the white space that ends at byte `at`; not less than `from`. */
static size_t find_space_begin(const char *text, size_t from, size_t at) {
  for (size_t i = at; i > from;) {
    uint32_t c;
    for (i--; i > from && (text[i] & 0xc0) == 0x80;) i--;
    if (!clv_utf8_decode(text + i, at - i, &c) || !clv_char_is_space(c)) break;
    at = i;
  }
  return at;
}

static size_t skip_spaces(const char *text, size_t len, size_t at) {
  uint32_t c;
  for (size_t n;
       at < len && (n = clv_utf8_decode(text + at, len - at, &c)) && clv_char_is_space(c);)
    at += n;
  return at;
}

static bool is_word_char_at(const char *text, size_t len) {
  uint32_t c;
  return len && clv_utf8_decode(text, len, &c) && clv_char_is_word(c);
}

static bool is_word_char_before(const char *text, size_t at) {
  size_t i = at;
  while (i && (text[--i] & 0xc0) == 0x80) {
  }
  return is_word_char_at(text + i, at - i);
}

/* Returns the end of the white space that begins at `end`. Stores the range of white space in *m,
 * because many added tokens may be in one long range, and each search would read the range to its
 * end. */
static size_t find_space_end(const char *text, size_t len, size_t end, clv_added_token_match *m) {
  if (end >= m->space_begin && end < m->space_end) return m->space_end;
  m->space_begin = end;
  return m->space_end = skip_spaces(text, len, end);
}

bool clv_added_token_find(const clv_vocab *added_tokens, const char *text, size_t len, size_t from,
                          size_t prev_end, clv_added_token_match *m) {
  for (size_t i = from; added_tokens->n && i < len; i++) {
    const clv_vocab_entry *e = find_longest_token_at(added_tokens, text + i, len - i);
    if (!e) continue;
    size_t start = i, end = i + e->len, next = end;
    if (e->flags & CLV_ADDED_SINGLE_WORD &&
        (is_word_char_before(text, start) || is_word_char_at(text + end, len - end))) {
      i = end - 1; /* skips this token: the search goes on after its end */
      continue;
    }
    if (e->flags & CLV_ADDED_LSTRIP)
      start = prev_end < start ? find_space_begin(text, prev_end, start) : prev_end;
    if (e->flags & CLV_ADDED_RSTRIP) end = find_space_end(text, len, end, m);
    m->start = start;
    m->end = end;
    m->next = next;
    m->id = e->id;
    return true;
  }
  return false;
}
