/* SPDX-License-Identifier: Apache-2.0
 *
 * Classes of characters and Unicode normal forms, from the tables of utf8proc. The functions with
 * which utf8proc decomposes a text sort combining marks in quadratic time, so a text of many marks
 * would take hours. This file calls utf8proc for each character and sorts the marks itself.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "master/tokens/tokens_int.h"

static utf8proc_category_t get_category(uint32_t c) {
  return utf8proc_category((utf8proc_int32_t)c);
}

bool clv_char_is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  utf8proc_category_t k = get_category(c);
  return c == 0x85 || (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

bool clv_char_is_letter(uint32_t c) {
  utf8proc_category_t k = get_category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool clv_char_is_number(uint32_t c) {
  utf8proc_category_t k = get_category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

/* True for punctuation by BERT's tables, which are those of Unicode 8: U+166D was punctuation
 * there. */
bool clv_char_is_punctuation(uint32_t c) {
  utf8proc_category_t k = get_category(c);
  if (c == 0x166d) return true;
  bool is_ascii_symbol =
      c < 0x7f && c > ' ' && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  return is_ascii_symbol || (k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO);
}

bool clv_char_is_control(uint32_t c) {
  utf8proc_category_t k = get_category(c);
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

/* True for a mark without a width by BERT's tables, which are those of Unicode 8: the three
 * characters below had other categories there. */
bool clv_char_is_mark(uint32_t c) {
  if (c == 0x1885 || c == 0x1886) return false;
  return c == 0x1734 || get_category(c) == UTF8PROC_CATEGORY_MN;
}

bool clv_char_is_any_mark(uint32_t c) {
  utf8proc_category_t k = get_category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

/* The class \w of regular expressions has letters, marks, decimal digits and letter-like numbers,
 * connectors such as _, the two joiners U+200C and U+200D, and letters within circles and squares
 * (`symbol_ranges`). */
bool clv_char_is_word(uint32_t c) {
  static const uint32_t symbol_ranges[][2] = {
      {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  utf8proc_category_t k = get_category(c);
  if ((k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC ||
      c == 0x200c || c == 0x200d)
    return true;
  for (size_t i = 0; i < CLV_COUNT(symbol_ranges); i++)
    if (c >= symbol_ranges[i][0] && c <= symbol_ranges[i][1]) return true;
  return false;
}

bool clv_char_breaks_grapheme(uint32_t prev_char, uint32_t next_char, int32_t *state) {
  return utf8proc_grapheme_break_stateful((utf8proc_int32_t)prev_char, (utf8proc_int32_t)next_char,
                                          state);
}

bool clv_char_is_cjk(uint32_t c) {
  static const uint32_t cjk_ranges[][2] = {
      {0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  for (size_t i = 0; i < CLV_COUNT(cjk_ranges); i++)
    if (c >= cjk_ranges[i][0] && c <= cjk_ranges[i][1]) return true;
  return false;
}

/* U+0130 is the only character whose lower case has two code points. */
size_t clv_codepoint_to_lower(uint32_t c, uint32_t ret[2]) {
  ret[0] = c == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
  ret[1] = 0x307;
  return c == 0x130 ? 2 : 1;
}

/* ---- lists of code points -------------------------------------------------------------------- */

void clv_codepoints_done(clv_codepoints *p) {
  if (!p) return;
  free(p->at);
  *p = (clv_codepoints){0};
}

void clv_codepoints_move(clv_codepoints *p, clv_codepoints *by) {
  clv_codepoints old_points = *p;
  *p = *by;
  *by = old_points;
  clv_codepoints_done(by);
}

clv_code clv_codepoints_add(clv_codepoints *p, uint32_t c, clv_err *err) {
  if (p->max_n && p->n == p->max_n)
    return clv_fail(err, CLV_EXHAUSTED,
                    "the normalizer of the tokenizer makes more than %zu characters of a text: "
                    "shorten the text",
                    p->max_n);
  if (p->n == p->cap) {
    size_t cap = p->cap ? 2 * p->cap : 256, bytes;
    int32_t *new_list = clv_mul_size(cap, sizeof *new_list, &bytes) ? realloc(p->at, bytes) : NULL;
    if (!new_list)
      return clv_fail(err, CLV_EXHAUSTED, "no memory for a text of %zu characters", cap);
    p->at = new_list;
    p->cap = cap;
  }
  p->at[p->n++] = (int32_t)c;
  return CLV_OK;
}

clv_code clv_codepoints_from_utf8(clv_codepoints *p, const char *text, size_t len, clv_err *err) {
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    if (!(n = clv_utf8_decode(text + i, len - i, &c)))
      return clv_fail(err, CLV_INVALID, "byte %zu is not UTF-8", i);
    CLV_TRY(clv_codepoints_add(p, c, err));
  }
  return CLV_OK;
}

void clv_codepoint_to_utf8(uint32_t c, clv_bytes *out) {
  utf8proc_uint8_t bytes[4];
  utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)c, bytes);
  clv_bytes_add(out, bytes, (size_t)n);
}

clv_code clv_codepoints_to_utf8(const clv_codepoints *p, clv_bytes *out, clv_err *err) {
  for (size_t i = 0; i < p->n; i++) clv_codepoint_to_utf8((uint32_t)p->at[i], out);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a text of %zu characters", p->n)
                     : CLV_OK;
}

/* ---- Unicode normal forms -------------------------------------------------------------------- */

static int get_combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* A combining mark with its combining class and its index in the run of marks, for a stable
 * sort. */
typedef struct clv_combining_mark {
  int32_t combining_class, code_point;
  size_t index;
} clv_combining_mark;

static int compare_marks(const void *a, const void *b) {
  const clv_combining_mark *x = a, *y = b;
  if (x->combining_class != y->combining_class)
    return x->combining_class < y->combining_class ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* Sorts the n adjacent combining marks at `at` by combining class. */
static clv_code sort_mark_run(int32_t *at, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) clv_combining_mark *marks = NULL;
  CLV_TRY(clv_alloc(n, sizeof *marks, &marks, err));
  for (size_t i = 0; i < n; i++)
    marks[i] = (clv_combining_mark){get_combining_class(at[i]), at[i], i};
  qsort(marks, n, sizeof *marks, compare_marks);
  for (size_t i = 0; i < n; i++) at[i] = marks[i].code_point;
  return CLV_OK;
}

/* Sorts each run of combining marks of a text. */
static clv_code sort_marks(clv_codepoints *p, clv_err *err) {
  for (size_t i = 0, n; i < p->n; i += CLV_MAX(n, (size_t)1)) {
    for (n = 0; i + n < p->n && get_combining_class(p->at[i + n]) > 0;) n++;
    if (n > 1) CLV_TRY(sort_mark_run(p->at + i, n, err));
  }
  return CLV_OK;
}

clv_code clv_codepoints_decompose(clv_codepoints *p, bool is_compat, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  utf8proc_option_t options = is_compat ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
  utf8proc_int32_t decomposed[64];
  for (size_t i = 0; i < p->n; i++) {
    int last = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char(p->at[i], decomposed, CLV_COUNT(decomposed), options, &last);
    if (n < 0 || n > (utf8proc_ssize_t)CLV_COUNT(decomposed))
      return clv_fail(err, CLV_INTERNAL, "U+%04X cannot be decomposed", (unsigned)p->at[i]);
    for (utf8proc_ssize_t k = 0; k < n; k++)
      CLV_TRY(clv_codepoints_add(&out, (uint32_t)decomposed[k], err));
  }
  CLV_TRY(sort_marks(&out, err));
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

clv_code clv_codepoints_compose(clv_codepoints *p, bool is_compat, clv_err *err) {
  CLV_TRY(clv_codepoints_decompose(p, is_compat, err));
  utf8proc_ssize_t n =
      utf8proc_normalize_utf32(p->at, (utf8proc_ssize_t)p->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (n < 0)
    return clv_fail(err, CLV_INTERNAL, "a text of %zu characters cannot be composed: %s", p->n,
                    utf8proc_errmsg(n));
  p->n = (size_t)n;
  return CLV_OK;
}
