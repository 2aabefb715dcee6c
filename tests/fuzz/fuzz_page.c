/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the page of `report`. The input has the lines of evaluations and, behind the first NUL,
 * the lines of the worst records. Whatever the lines contain, the page may only have HTML tags of
 * its own.
 */
#include <string.h>

#include "master/page/page.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns true if a tag of the page begins at `at`. */
static bool is_own_tag(const char *at) {
  static const char *const tags[] = {
      "!DOCTYPE", "html",     "head",   "meta",       "title",   "style",   "body",    "h1",
      "h2",       "h3",       "p",      "table",      "tr",      "th",      "td",      "div",
      "br",       "small",    "strong", "span",       "svg",     "line",    "text",    "circle",
      "rect",     "polyline", "figure", "figcaption", "section", "details", "summary", "pre"};
  at += *at == '/';
  for (size_t i = 0; i < CLV_COUNT(tags); i++) {
    size_t n = strlen(tags[i]);
    if (strncmp(at, tags[i], n) == 0 && strchr(" >/", at[n])) return true;
  }
  return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
  size_t len = nul ? (size_t)(nul - data) : size;
  if (clv_page_write_texts((const char *)data, len, nul ? (const char *)nul + 1 : "",
                           nul ? size - len - 1 : 0, &page, NULL) != CLV_OK)
    return 0;
  for (const char *at = page.data; (at = strchr(at, '<')) != NULL; at++) NEVER(!is_own_tag(at + 1));
  NEVER(strstr(page.data, "<script"));
  return 0;
}
