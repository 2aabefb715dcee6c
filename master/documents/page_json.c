/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a page as JSON, for the command `words`.
 */
#include "master/documents/documents.h"

void clv_page_write_json(clv_bytes *out, const clv_page *page) {
  clv_bytes_puts(out, "\"words\":[");
  for (size_t i = 0; i < page->n; i++) {
    if (i) clv_bytes_puts(out, ",");
    clv_bytes_add_json(out, page->words[i].text);
  }
  clv_bytes_puts(out, "],\"boxes\":[");
  for (size_t i = 0; i < page->n; i++) {
    const clv_page_word *w = &page->words[i];
    clv_bytes_printf(out, "%s[%u,%u,%u,%u]", i ? "," : "", w->x0, w->y0, w->x1, w->y1);
  }
  clv_bytes_puts(out, "]");
}
