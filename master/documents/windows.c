/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_windows_make: cuts a page into windows of tokens, with boxes and labels.
 */
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents.h"

/* The tokens of a page, and the word that each belongs to. */
typedef struct page_tokens {
  clv_ids ids, word_indices;
  size_t n_words_without_tokens;
} page_tokens;

static clv_code tokenize_words(const clv_page *page, const clv_tokenizer *t, page_tokens *p,
                               clv_err *err) {
  for (size_t i = 0; i < page->n; i++) {
    const char *text = page->words[i].text;
    CLV_TRY(clv_tokenizer_encode(t, text, strlen(text), &p->ids, err));
    p->n_words_without_tokens += p->word_indices.n == p->ids.n;
    while (p->word_indices.n < p->ids.n) CLV_TRY(clv_ids_add(&p->word_indices, (int32_t)i, err));
  }
  return CLV_OK;
}

void clv_windows_done(clv_windows *w) {
  if (!w) return;
  free(w->ids);
  free(w->boxes);
  free(w->labels);
  free(w->word_indices);
  free(w->lengths);
  *w = (clv_windows){0};
}

static void put_token(clv_windows *w, size_t at, int32_t id, int32_t word, int32_t label,
                      const int32_t box[4]) {
  w->ids[at] = id;
  w->word_indices[at] = word;
  w->labels[at] = label;
  memcpy(w->boxes + 4 * at, box, 4 * sizeof *box);
}

/* Stores token i of the page at index `at` of the lists of *w. labels NULL: another window labels
 * this token. */
static void put_page_token(clv_windows *w, size_t at, const clv_page *page, const int32_t *labels,
                           const page_tokens *p, size_t i) {
  int32_t word = p->word_indices.at[i];
  const clv_page_word *page_word = &page->words[word];
  const int32_t box[] = {page_word->x0, page_word->y0, page_word->x1, page_word->y1};
  bool is_first = i == 0 || p->word_indices.at[i - 1] != word;
  put_token(w, at, p->ids.at[i], word, labels && is_first ? labels[word] : CLV_LABEL_IGNORED, box);
}

/* Range of tokens of a page to which a window gives labels. */
typedef struct token_range {
  size_t from, to;
} token_range;

static token_range get_labelled_range(size_t row, size_t n_rows, size_t step, size_t stride) {
  return (token_range){row ? row * step + stride / 2 : 0,
                       row + 1 < n_rows ? (row + 1) * step + stride / 2 : SIZE_MAX};
}

static void fill_row(clv_windows *w, size_t row, const clv_page *page, const int32_t *labels,
                     const page_tokens *p, const clv_window_options *o, size_t from, size_t n,
                     token_range labelled_range) {
  static const int32_t zero_box[4], full_box[] = {CLV_MAX_BOX_COORDINATE, CLV_MAX_BOX_COORDINATE,
                                                  CLV_MAX_BOX_COORDINATE, CLV_MAX_BOX_COORDINATE};
  size_t at = row * o->width, end = at + o->width;
  if (o->first_id >= 0) put_token(w, at++, o->first_id, -1, CLV_LABEL_IGNORED, zero_box);
  for (size_t i = from; i < from + n; i++)
    put_page_token(w, at++, page, i >= labelled_range.from && i < labelled_range.to ? labels : NULL,
                   p, i);
  if (o->last_id >= 0) put_token(w, at++, o->last_id, -1, CLV_LABEL_IGNORED, full_box);
  w->lengths[row] = (int32_t)(at - row * o->width);
  while (at < end) put_token(w, at++, o->pad_id, -1, CLV_LABEL_IGNORED, zero_box);
}

static clv_code make_rows(const clv_page *page, const int32_t *labels, const page_tokens *p,
                          const clv_window_options *o, size_t max_row_tokens, clv_windows *w,
                          clv_err *err) {
  size_t step = max_row_tokens - o->stride, n_elements, n_tokens = p->ids.n;
  w->n = n_tokens > max_row_tokens ? 1 + (n_tokens - max_row_tokens + step - 1) / step : 1;
  w->width = o->width;
  w->n_words_without_tokens = p->n_words_without_tokens;
  if (!clv_mul_size(w->n, o->width, &n_elements))
    return clv_fail(err, CLV_EXHAUSTED, "too many windows of a page");
  CLV_TRY(clv_alloc(n_elements, sizeof(int32_t), &w->ids, err));
  CLV_TRY(clv_alloc(n_elements, sizeof(int32_t), &w->word_indices, err));
  CLV_TRY(clv_alloc(n_elements, sizeof(int32_t), &w->labels, err));
  CLV_TRY(clv_alloc(n_elements, 4 * sizeof(int32_t), &w->boxes, err));
  CLV_TRY(clv_alloc(w->n, sizeof(int32_t), &w->lengths, err));
  for (size_t i = 0; i < w->n; i++)
    fill_row(w, i, page, labels, p, o, i * step, CLV_MIN(max_row_tokens, n_tokens - i * step),
             get_labelled_range(i, w->n, step, o->stride));
  return CLV_OK;
}

clv_code clv_windows_make(const clv_page *page, const int32_t *labels, const clv_tokenizer *t,
                          const clv_window_options *o, clv_windows *ret, clv_err *err) {
  size_t n_end_tokens = (size_t)(o->first_id >= 0) + (size_t)(o->last_id >= 0);
  size_t max_row_tokens = o->width > n_end_tokens ? o->width - n_end_tokens : 0;
  page_tokens p = {0};
  clv_windows w = {0};
  if (o->stride >= max_row_tokens)
    return clv_fail(err, CLV_INVALID,
                    "windows of %zu tokens hold %zu tokens of a page, and the stride is %zu: it "
                    "must be below %zu",
                    o->width, max_row_tokens, o->stride, max_row_tokens);
  clv_code code = tokenize_words(page, t, &p, err);
  if (code == CLV_OK) code = make_rows(page, labels, &p, o, max_row_tokens, &w, err);
  if (code == CLV_OK) {
    *ret = w;
    w = (clv_windows){0};
  }
  clv_windows_done(&w);
  clv_ids_done(&p.ids);
  clv_ids_done(&p.word_indices);
  return code;
}
