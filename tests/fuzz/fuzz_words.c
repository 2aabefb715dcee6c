/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parsers of the output of pdftotext and tesseract for a hostile file; the first byte
 * chooses the program. Words must be UTF-8 without control characters, boxes must be inside their
 * page, and the windows must hold all words.
 */
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents.h"
#include "tests/fuzz/fuzz_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_word(const clv_page_word *w) {
  uint32_t c;
  NEVER(!w->text[0] || w->x0 > w->x1 || w->y0 > w->y1 || w->x1 > CLV_MAX_BOX_COORDINATE ||
        w->y1 > CLV_MAX_BOX_COORDINATE);
  for (size_t i = 0, n; w->text[i]; i += n) {
    n = clv_utf8_decode(w->text + i, SIZE_MAX, &c);
    NEVER(!n || clv_is_control(c));
  }
}

static void check_windows(const clv_tokenizer *t, const clv_page *page) {
  const clv_window_options o = {.width = 6, .stride = 2, .first_id = 2, .last_id = 3};
  clv_windows w = {0};
  clv_err err;
  NEVER(clv_windows_make(page, NULL, t, &o, &w, &err) != CLV_OK);
  for (size_t i = 0; i < w.n * w.width; i++)
    NEVER(w.word_indices[i] < -1 || w.word_indices[i] >= (int32_t)page->n);
  clv_windows_done(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_document d = {0};
  clv_err err = {0};
  if (!size) return 0;
  /* the text ends in a NUL, like the collected output of a child process */
  CLV_AUTO(clv_freep) char *text = malloc(size);
  NEVER(!text);
  memcpy(text, data + 1, size - 1);
  text[size - 1] = '\0';
  CLV_AUTO(clv_bytes_done) clv_bytes rotations = {0};
  clv_code code = clv_rotations_parse(text, size - 1, "fuzz", &rotations, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz: page "));
  code = data[0] & 1 ? clv_bbox_parse(text, size - 1, "fuzz", &rotations, &d, &err)
                     : clv_tsv_parse(text, size - 1, "fuzz", &d, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz: "));
  if (code != CLV_OK) return 0;
  for (size_t i = 0; i < d.n; i++) {
    for (size_t k = 0; k < d.pages[i].n; k++) check_word(&d.pages[i].words[k]);
    check_windows(small_tokenizer(), &d.pages[i]);
  }
  clv_document_done(&d);
  return 0;
}
