/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of lines that describe document pages. The first byte chooses the kind of
 * labels, whether the pages are kept beside their windows, and how windows are grouped. The windows
 * made from a page must have tokens of the vocabulary, boxes inside the page, and labels that
 * exist.
 */
#include "master/data/page_int.h"
#include "tests/fuzz/fuzz_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDTH = 8 };

static const int32_t *get_row(const clv_tensor *t, int64_t i) {
  return (const int32_t *)t->data + (size_t)i * t->n / (size_t)t->shape.dim[0];
}

static void check_window(const clv_page_set *p, int64_t i) {
  const int32_t *ids = get_row(p->ids, i), *boxes = get_row(p->boxes, i);
  NEVER(*get_row(p->lengths, i) < 2 || *get_row(p->lengths, i) > WIDTH);
  for (int k = 0; k < WIDTH; k++) NEVER(ids[k] < 0 || ids[k] >= VOCABULARY_TOKENS);
  for (int k = 0; k < 4 * WIDTH; k++) NEVER(boxes[k] < 0 || boxes[k] > CLV_MAX_BOX_COORDINATE);
  for (int k = 0; k < WIDTH; k++)
    NEVER(boxes[4 * k] > boxes[4 * k + 2] || boxes[4 * k + 1] > boxes[4 * k + 3]);
}

/* Asserts that each window belongs to one page and that each position names a word of that page. */
static void check_kept_pages(const clv_page_set *p) {
  size_t n_windows = 0;
  for (size_t i = 0; i < p->kept_pages.n; i++) {
    const clv_kept_page *page = &p->kept_pages.pages[i];
    NEVER(page->first_record != n_windows || !page->n_records);
    n_windows += page->n_records;
    for (size_t w = page->first_record; w < n_windows; w++)
      for (int k = 0; k < WIDTH; k++)
        NEVER(get_row(p->token_words, (int64_t)w)[k] >= (int32_t)page->n);
  }
  NEVER(n_windows != (size_t)p->ids->shape.dim[0]);
}

static void check_pages(const clv_page_set *p) {
  for (int64_t i = 0; i < p->ids->shape.dim[0]; i++) check_window(p, i);
  for (size_t i = 0; p->labels && i < p->labels->n; i++) {
    int64_t label = ((const int64_t *)p->labels->data)[i];
    NEVER(label != CLV_LABEL_IGNORED && (label < 0 || label >= (int64_t)p->names.n));
  }
  NEVER(p->groups.len != (size_t)p->ids->shape.dim[0] * sizeof(int64_t));
  for (size_t i = 1; i < p->names.n; i++) NEVER(strcmp(p->classes[i - 1], p->classes[i]) >= 0);
}

static clv_code read_page_lines(clv_page_rows *r, const clv_bytes *text, clv_err *err) {
  clv_page_reader lines = {
      .path = "fuzz", .text = text->data, .len = text->len, .label_kind = r->label_kind};
  clv_labelled_page page;
  bool has_more = true;
  clv_code code = CLV_OK;
  while (code == CLV_OK && has_more) {
    code = clv_page_reader_next(&lines, &page, &has_more, err);
    if (code == CLV_OK && has_more) code = clv_page_rows_add(r, &page, err);
  }
  clv_page_reader_done(&lines);
  return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_page_set *p = NULL;
  clv_err err = {0};
  if (!size) return 0;
  clv_page_rows r = {.tokens = {.path = "fuzz", .tokenizer = small_tokenizer()},
                     .window = {.width = WIDTH, .stride = 2, .first_id = 2, .last_id = 3},
                     .label_kind = (clv_page_label_kind)(data[0] % 3),
                     .keeps_pages = data[0] % 6 == 3,
                     .groups_by_file = data[0] & 64,
                     .ignored_label = CLV_LABEL_IGNORED,
                     .max_bytes = 1 << 20};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add(&text, data + 1, size - 1);
  clv_code code = read_page_lines(&r, &text, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz:"));
  if (code == CLV_OK && clv_page_rows_take(&r, &p, &err) == CLV_OK) check_pages(p);
  if (p && r.keeps_pages) check_kept_pages(p);
  clv_page_set_free(p);
  r.tokens.tokenizer = NULL; /* keeps the tokenizer for the next input */
  clv_page_rows_done(&r);
  return 0;
}
