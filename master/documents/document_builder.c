/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds a document from words and boxes, which bbox.c and tsv.c add one by one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents_int.h"

void clv_document_builder_done(clv_document_builder *g) {
  if (!g) return;
  clv_bytes_done(&g->text);
  free(g->words);
  *g = (clv_document_builder){0};
}

/* Returns a coordinate as in LayoutLM: the integer part of 1000 * coordinate / page_extent. */
static uint16_t to_thousandths(double coordinate, double page_extent) {
  double thousandths = page_extent > 0 ? CLV_MAX_BOX_COORDINATE * (coordinate / page_extent) : 0;
  if (!(thousandths > 0)) return 0; /* returns 0 for a NaN, too */
  return thousandths < CLV_MAX_BOX_COORDINATE ? (uint16_t)thousandths : CLV_MAX_BOX_COORDINATE;
}

static clv_code reserve_word(clv_document_builder *g, clv_err *err) {
  if (g->n_words == CLV_MAX_WORDS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d words", CLV_MAX_WORDS);
  if (g->n_words < g->cap) return CLV_OK;
  size_t new_cap = g->cap ? 2 * g->cap : 256;
  void *grown = realloc(g->words, new_cap * sizeof *g->words);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu words", new_cap);
  g->words = grown;
  g->cap = new_cap;
  return CLV_OK;
}

clv_code clv_document_builder_add(clv_document_builder *g, const clv_bytes *text,
                                  const double box[4], const double page_size[2], clv_err *err) {
  if (!text->len || text->failed) return CLV_OK;
  CLV_TRY(reserve_word(g, err));
  struct clv_builder_word *w = &g->words[g->n_words++];
  *w = (struct clv_builder_word){.offset = g->text.len, .page = g->n_pages - 1};
  for (int i = 0; i < 4; i++) w->box[i] = to_thousandths(box[i], page_size[i % 2]);
  for (int i = 0; i < 2; i++)
    if (w->box[i] > w->box[i + 2]) {
      uint16_t lower_bound = w->box[i + 2];
      w->box[i + 2] = w->box[i];
      w->box[i] = lower_bound;
    }
  clv_bytes_add(&g->text, text->data, text->len);
  clv_bytes_add(&g->text, "", 1);
  return g->text.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for words") : CLV_OK;
}

/* Memory that a document owns besides its pages. */
typedef struct owned_memory {
  char *text;
  clv_page_word *words;
} owned_memory;

static clv_code move_to_document(clv_document_builder *g, clv_document *d, clv_err *err) {
  owned_memory *k = d->memory;
  CLV_TRY(clv_alloc(g->n_words, sizeof *k->words, &k->words, err));
  CLV_TRY(clv_alloc(g->n_pages, sizeof *d->pages, &d->pages, err));
  k->text = clv_steal(&g->text.data);
  for (size_t i = 0; i < g->n_words; i++) {
    const struct clv_builder_word *w = &g->words[i];
    clv_page *page = &d->pages[w->page];
    k->words[i] = (clv_page_word){k->text + w->offset, w->box[0], w->box[1], w->box[2], w->box[3]};
    if (!page->n++) page->words = &k->words[i];
  }
  d->n = g->n_pages;
  return CLV_OK;
}

clv_code clv_document_builder_take(clv_document_builder *g, clv_document *ret, clv_err *err) {
  clv_document d = {0};
  CLV_TRY(clv_alloc(1, sizeof(owned_memory), &d.memory, err));
  clv_code code = move_to_document(g, &d, err);
  if (code == CLV_OK)
    *ret = d;
  else
    clv_document_done(&d);
  return code;
}

void clv_document_done(clv_document *d) {
  owned_memory *k = d ? d->memory : NULL;
  if (k) {
    free(k->text);
    free(k->words);
    free(k);
    free(d->pages);
  }
  if (d) *d = (clv_document){0};
}
