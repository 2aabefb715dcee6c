/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding of UTF-8, one character at a time.
 */
#include <string.h>

#include "common/base/base.h"

size_t clv_utf8_decode(const void *text, size_t left, uint32_t *ret_point) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *p = text;
  if (p[0] < 0x80) {
    *ret_point = p[0];
    return 1;
  }
  size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
  if (p[0] < 0xc2 || p[0] > 0xf4 || n > left) return 0;
  uint32_t point = p[0] & (0x7fu >> n);
  for (size_t i = 1; i < n; i++) {
    /* not a continuation byte; stops at the terminating NUL, too */
    if ((p[i] & 0xc0) != 0x80) return 0;
    point = point << 6 | (p[i] & 0x3f);
  }
  bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
  if (point < least[n] || point > 0x10ffff || is_surrogate) return 0;
  *ret_point = point;
  return n;
}

const char *clv_text_utf16_or_32(const void *text, size_t len) {
  static const struct {
    const char *name, *mark;
    size_t n;
  } marks[] = {{"UTF-32", "\xff\xfe\0\0", 4},
               {"UTF-32", "\0\0\xfe\xff", 4},
               {"UTF-16", "\xff\xfe", 2},
               {"UTF-16", "\xfe\xff", 2}};
  const unsigned char *p = text;
  for (size_t i = 0; i < CLV_COUNT(marks); i++)
    if (len >= marks[i].n && memcmp(p, marks[i].mark, marks[i].n) == 0) return marks[i].name;
  if (len < 4) return NULL;
  bool is_little_endian = p[0] && !p[1] && p[2] && !p[3],
       is_big_endian = !p[0] && p[1] && !p[2] && p[3];
  return is_little_endian || is_big_endian ? "UTF-16" : NULL;
}

bool clv_is_control(uint32_t point) { return point < 0x20 || (point >= 0x7f && point <= 0x9f); }
