/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of pages, which are kept so that predictions can be printed together with the words of the
 * pages.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/page_int.h"

void clv_kept_pages_done(clv_kept_pages *k) {
  if (!k) return;
  for (size_t i = 0; i < k->n; i++) free(k->pages[i].words);
  free(k->pages);
  *k = (clv_kept_pages){0};
}

static clv_code reserve_page_entry(clv_kept_pages *k, clv_err *err) {
  if (k->n < k->cap) return CLV_OK;
  size_t cap = k->cap ? 2 * k->cap : 64;
  clv_kept_page *new_list = realloc(k->pages, cap * sizeof *new_list);
  if (!new_list) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu pages", cap);
  k->pages = new_list;
  k->cap = cap;
  return CLV_OK;
}

static size_t count_page_bytes(const clv_labelled_page *p, const char *other_members) {
  size_t n = p->page.n * sizeof *p->page.words + strlen(other_members) + 1;
  for (size_t i = 0; i < p->page.n; i++) n += strlen(p->page.words[i].text) + 1;
  return n;
}

static const char *copy_text(char **at, const char *text) {
  size_t n = strlen(text) + 1;
  const char *text_copy = memcpy(*at, text, n);
  *at += n;
  return text_copy;
}

/* Copies a page into one block of memory: first the words, then all texts. */
clv_code clv_kept_pages_add(clv_kept_pages *k, const clv_labelled_page *p, size_t first_record,
                            size_t n_windows, size_t max_bytes, clv_err *err) {
  const char *other_members = p->other_json_members ? p->other_json_members : "";
  size_t bytes = count_page_bytes(p, other_members);
  void *block;
  if (bytes > max_bytes || k->bytes > max_bytes - bytes)
    return clv_fail(err, CLV_EXHAUSTED, "the pages have more than %zu bytes", max_bytes);
  CLV_TRY(reserve_page_entry(k, err));
  CLV_TRY(clv_alloc(bytes, 1, &block, err));
  clv_page_word *words = block;
  char *at = (char *)(words + p->page.n);
  for (size_t i = 0; i < p->page.n; i++) {
    words[i] = p->page.words[i];
    words[i].text = copy_text(&at, p->page.words[i].text);
  }
  k->pages[k->n++] =
      (clv_kept_page){words, p->page.n, copy_text(&at, other_members), first_record, n_windows};
  k->bytes += bytes;
  return CLV_OK;
}
