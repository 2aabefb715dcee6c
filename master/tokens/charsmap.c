/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and searches the table of a Precompiled normalizer, as sentencepiece writes it: the number
 * of bytes of a double-array trie, the trie, and the texts that its values point to.
 *
 * A unit of the trie, a node, has 32 bits. Bits 0 to 7 and bit 31: its label. Bit 8: the node has a
 * value. Bits 10 to 30: offset of its children, which is shifted left by 8 if bit 9 is set. The
 * child of node n for the byte c is unit n ^ offset ^ c. The value of node n is unit n ^ offset,
 * without its bit 31.
 * Source: the format of Darts-clone, by S. Yata.
 *
 * The file is untrusted. clv_charsmap_parse checks all keys that a search can reach, and refuses a
 * table with a value that points outside the texts.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

enum { MAX_CHARSMAP_BYTES = 4 << 20, UNIT_BYTES = 4 };

void clv_charsmap_done(clv_charsmap *m) {
  if (!m) return;
  free(m->units);
  clv_bytes_done(&m->texts);
  *m = (clv_charsmap){0};
}

/* ---- searching and checking the trie --------------------------------------------------------- */

static bool unit_has_value(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t get_unit_label(uint32_t unit) { return unit & (0x80000000u | 0xff); }
static uint32_t get_unit_offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

/* Moves from the node whose children begin at *base to its child for a byte. False: there is
 * none. */
static bool go_to_child(const clv_charsmap *m, uint32_t *base, unsigned char byte,
                        uint32_t *ret_unit) {
  uint32_t at = *base ^ byte;
  if (at >= m->n_units || get_unit_label(m->units[at]) != byte) return false;
  *ret_unit = m->units[at];
  *base = at ^ get_unit_offset(*ret_unit);
  return true;
}

const char *clv_charsmap_find(const clv_charsmap *m, const char *text, size_t len) {
  uint32_t base = get_unit_offset(m->units[0]), unit;
  for (size_t i = 0; i < len && text[i]; i++) {
    if (!go_to_child(m, &base, (unsigned char)text[i], &unit)) return NULL;
    if (unit_has_value(unit)) return m->texts.data + (m->units[base] & 0x7fffffff);
  }
  return NULL;
}

/* True if a text of at most CLV_CHARSMAP_TEXT_BYTES in UTF-8 begins at byte `at` of m->texts. */
static bool is_valid_replacement(const clv_charsmap *m, uint32_t at) {
  if (at >= m->texts.len) return false;
  size_t n = strlen(m->texts.data + at);
  if (n > CLV_CHARSMAP_TEXT_BYTES) return false;
  for (size_t i = 0, k; i < n; i += k) {
    uint32_t c;
    if (!(k = clv_utf8_decode(m->texts.data + at + i, n - i, &c))) return false;
  }
  return true;
}

/* Checks the values of all keys below a node that have at most CLV_CHARSMAP_KEY_BYTES. base: first
 * unit of the node's children; depth: bytes of its key. Counts nodes in *n_visited_units: more
 * nodes than units mean that the links form a cycle. Returns a static text with the error; NULL:
 * none. */
static const char *check_subtree(const clv_charsmap *m, uint32_t base, size_t depth,
                                 size_t *n_visited_units) {
  for (unsigned byte = 1; byte < 256 && depth < CLV_CHARSMAP_KEY_BYTES; byte++) {
    uint32_t child_base = base, unit;
    if (!go_to_child(m, &child_base, (unsigned char)byte, &unit)) continue;
    if (++*n_visited_units > m->n_units) return "is no trie: its nodes are in a circle";
    if (unit_has_value(unit)) {
      if (child_base >= m->n_units) return "has a value outside its trie";
      if (!is_valid_replacement(m, m->units[child_base] & 0x7fffffff))
        return "has a value that is no text of UTF-8 of at most 256 bytes";
    }
    const char *error_text = check_subtree(m, child_base, depth + 1, n_visited_units);
    if (error_text) return error_text;
  }
  return NULL;
}

static uint32_t read_unit(const char *at) {
  const unsigned char *b = (const unsigned char *)at;
  return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Returns a static text that says why the size of a table is wrong; NULL: the size is right. */
static const char *find_size_error(const clv_bytes *b) {
  if (b->len > MAX_CHARSMAP_BYTES) return "has more than 4 MiB";
  if (b->len < 2 * UNIT_BYTES) return "is too short for a trie";
  uint32_t bytes = read_unit(b->data);
  if (!bytes || bytes % UNIT_BYTES || bytes > b->len - UNIT_BYTES)
    return "has a trie of another size than it says";
  return NULL;
}

clv_code clv_charsmap_parse(const clv_bytes *b, clv_charsmap *ret, const char **ret_error_text,
                            clv_err *err) {
  CLV_AUTO(clv_charsmap_done) clv_charsmap m = {0};
  size_t n_visited_units = 0;
  *ret_error_text = find_size_error(b);
  if (*ret_error_text) return CLV_OK;
  m.n_units = read_unit(b->data) / UNIT_BYTES;
  CLV_TRY(clv_alloc(m.n_units, sizeof *m.units, &m.units, err));
  for (size_t i = 0; i < m.n_units; i++) m.units[i] = read_unit(b->data + (i + 1) * UNIT_BYTES);
  size_t begin = (m.n_units + 1) * UNIT_BYTES;
  clv_bytes_add(&m.texts, b->data + begin, b->len - begin);
  if (m.texts.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", b->len);
  *ret_error_text = check_subtree(&m, get_unit_offset(m.units[0]), 0, &n_visited_units);
  if (*ret_error_text) return CLV_OK;
  clv_charsmap_done(ret);
  *ret = m;
  m = (clv_charsmap){0};
  return CLV_OK;
}
