/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_windows_make: cuts a page into windows of tokens, with boxes and labels.
 */
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents.h"

/* The tokens of a page, and the word that each belongs to. */
typedef struct pieces {
  clv_ids ids, words;
  size_t words_without_tokens;
} pieces;

static clv_code cut_words(const clv_page *page, const clv_tokenizer *t, pieces *p, clv_err *err) {
  for (size_t i = 0; i < page->n; i++) {
    const char *text = page->words[i].text;
    CLV_TRY(clv_tokenizer_encode(t, text, strlen(text), &p->ids, err));
    p->words_without_tokens += p->words.n == p->ids.n;
    while (p->words.n < p->ids.n) CLV_TRY(clv_ids_add(&p->words, (int32_t)i, err));
  }
  return CLV_OK;
}

void clv_windows_done(clv_windows *w) {
  if (!w) return;
  free(w->ids);
  free(w->boxes);
  free(w->labels);
  free(w->words);
  free(w->lengths);
  *w = (clv_windows){0};
}

static void put_token(clv_windows *w, size_t at, int32_t id, int32_t word, int32_t label,
                      const int32_t box[4]) {
  w->ids[at] = id;
  w->words[at] = word;
  w->labels[at] = label;
  memcpy(w->boxes + 4 * at, box, 4 * sizeof *box);
}

/* Puts token i of the page at position `at`. labels NULL: another window labels this token. */
static void put_piece(clv_windows *w, size_t at, const clv_page *page, const int32_t *labels,
                      const pieces *p, size_t i) {
  int32_t word = p->words.at[i];
  const clv_page_word *of = &page->words[word];
  const int32_t box[] = {of->x0, of->y0, of->x1, of->y1};
  bool first = i == 0 || p->words.at[i - 1] != word;
  put_token(w, at, p->ids.at[i], word, labels && first ? labels[word] : CLV_LABEL_IGNORED, box);
}

/* Range of tokens that a window labels. */
typedef struct owned {
  size_t from, to;
} owned;

static owned get_labelled_range(size_t row, size_t rows, size_t step, size_t stride) {
  return (owned){row ? row * step + stride / 2 : 0,
                 row + 1 < rows ? (row + 1) * step + stride / 2 : SIZE_MAX};
}

static void fill_row(clv_windows *w, size_t row, const clv_page *page, const int32_t *labels,
                     const pieces *p, const clv_window_options *o, size_t from, size_t n,
                     owned mine) {
  static const int32_t none[4], whole[] = {CLV_BOX_MAX, CLV_BOX_MAX, CLV_BOX_MAX, CLV_BOX_MAX};
  size_t at = row * o->width, end = at + o->width;
  if (o->first >= 0) put_token(w, at++, o->first, -1, CLV_LABEL_IGNORED, none);
  for (size_t i = from; i < from + n; i++)
    put_piece(w, at++, page, i >= mine.from && i < mine.to ? labels : NULL, p, i);
  if (o->last >= 0) put_token(w, at++, o->last, -1, CLV_LABEL_IGNORED, whole);
  w->lengths[row] = (int32_t)(at - row * o->width);
  while (at < end) put_token(w, at++, o->pad, -1, CLV_LABEL_IGNORED, none);
}

static clv_code make_rows(const clv_page *page, const int32_t *labels, const pieces *p,
                          const clv_window_options *o, size_t room, clv_windows *w, clv_err *err) {
  size_t step = room - o->stride, places, all = p->ids.n;
  w->n = all > room ? 1 + (all - room + step - 1) / step : 1;
  w->width = o->width;
  w->words_without_tokens = p->words_without_tokens;
  if (!clv_mul_size(w->n, o->width, &places))
    return clv_fail(err, CLV_EXHAUSTED, "too many windows of a page");
  CLV_TRY(clv_alloc(places, sizeof(int32_t), &w->ids, err));
  CLV_TRY(clv_alloc(places, sizeof(int32_t), &w->words, err));
  CLV_TRY(clv_alloc(places, sizeof(int32_t), &w->labels, err));
  CLV_TRY(clv_alloc(places, 4 * sizeof(int32_t), &w->boxes, err));
  CLV_TRY(clv_alloc(w->n, sizeof(int32_t), &w->lengths, err));
  for (size_t i = 0; i < w->n; i++)
    fill_row(w, i, page, labels, p, o, i * step, CLV_MIN(room, all - i * step),
             get_labelled_range(i, w->n, step, o->stride));
  return CLV_OK;
}

clv_code clv_windows_make(const clv_page *page, const int32_t *labels, const clv_tokenizer *t,
                          const clv_window_options *o, clv_windows *ret, clv_err *err) {
  size_t ends = (size_t)(o->first >= 0) + (size_t)(o->last >= 0);
  size_t room = o->width > ends ? o->width - ends : 0;
  pieces p = {0};
  clv_windows w = {0};
  if (o->stride >= room)
    return clv_fail(err, CLV_INVALID,
                    "windows of %zu tokens hold %zu tokens of a page, and the stride is %zu: it "
                    "must be below %zu",
                    o->width, room, o->stride, room);
  clv_code code = cut_words(page, t, &p, err);
  if (code == CLV_OK) code = make_rows(page, labels, &p, o, room, &w, err);
  if (code == CLV_OK) {
    *ret = w;
    w = (clv_windows){0};
  }
  clv_windows_done(&w);
  clv_ids_done(&p.ids);
  clv_ids_done(&p.words);
  return code;
}
