/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes text and numbers to the page. Text is escaped, and characters that would alter how a
 * browser shows the rest of the page are replaced.
 */
#include <math.h>

#include "master/page/page_int.h"

/* Returns true for a control character, a line separator or a mark of text direction. */
static bool can_alter_display(uint32_t c) {
  return clv_is_control(c) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

/* Returns the HTML entity of a character; NULL: it needs none. */
static const char *html_entity(char c) {
  switch (c) {
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '&':
      return "&amp;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return NULL;
  }
}

void page_put_text(clv_bytes *out, const char *text) {
  uint32_t code_point = 0;
  for (size_t n; *text; text += n) {
    size_t len = clv_utf8_decode(text, SIZE_MAX, &code_point);
    n = len ? len : 1;
    if (len == 1 && html_entity(*text))
      clv_bytes_puts(out, html_entity(*text));
    else if (*text == '\n')
      clv_bytes_puts(out, "\n");
    else if (len && !can_alter_display(code_point))
      clv_bytes_add(out, text, n);
    else
      clv_bytes_puts(out, "?");
  }
}

void page_put_number(clv_bytes *out, double v) {
  if (isnan(v))
    clv_bytes_puts(out, "\xe2\x80\x93");
  else
    clv_bytes_printf(out, "%.4g", v);
}
