/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the tsv output of tesseract: a header, then rows of twelve columns. Rows of level 1 are
 * pages, rows of level 5 are words.
 */
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents_int.h"

enum {
  N_COLUMNS = 12,
  LEVEL_COLUMN = 0,
  LEFT_COLUMN = 6,
  TOP_COLUMN,
  WIDTH_COLUMN,
  HEIGHT_COLUMN,
  TEXT_COLUMN = 11,
  PAGE_LEVEL = 1,
  WORD_LEVEL = 5
};

typedef struct tsv_row {
  const char *at[N_COLUMNS];
  size_t len[N_COLUMNS];
} tsv_row;

static bool split_row(const char *line, size_t len, tsv_row *ret) {
  for (int i = 0; i < N_COLUMNS; i++) {
    const char *tab = i < N_COLUMNS - 1 ? memchr(line, '\t', len) : line + len;
    if (!tab) return false;
    ret->at[i] = line;
    ret->len[i] = (size_t)(tab - line);
    len -= ret->len[i] + (i < N_COLUMNS - 1);
    line = tab + 1;
  }
  return true;
}

static bool parse_number(const tsv_row *c, int i, double *ret) {
  char text[16], *rest;
  if (!c->len[i] || c->len[i] >= sizeof text) return false;
  memcpy(text, c->at[i], c->len[i]);
  text[c->len[i]] = '\0';
  *ret = (double)strtol(text, &rest, 10);
  return !*rest;
}

static void copy_clean_text(const char *at, size_t len, clv_bytes *out) {
  out->len = 0;
  clv_bytes_add(out, "", 0);
  for (size_t i = 0, n; i < len; i += CLV_MAX(n, (size_t)1)) {
    uint32_t c = 0;
    n = clv_utf8_decode(at + i, len - i, &c);
    if (n && !clv_is_control(c) && c != ' ') clv_bytes_add(out, at + i, n);
  }
}

static clv_code read_row(clv_document_builder *g, const tsv_row *c, double page_size[2],
                         clv_bytes *text, bool *ret_is_valid, clv_err *err) {
  double level = 0, numbers[4];
  *ret_is_valid = parse_number(c, LEVEL_COLUMN, &level);
  for (int i = 0; i < 4; i++)
    *ret_is_valid = *ret_is_valid && parse_number(c, LEFT_COLUMN + i, &numbers[i]);
  if (!*ret_is_valid) return CLV_OK;
  if (level == PAGE_LEVEL) {
    page_size[0] = numbers[2];
    page_size[1] = numbers[3];
    g->n_pages++;
  }
  if (level != WORD_LEVEL) return CLV_OK;
  *ret_is_valid = g->n_pages > 0;
  copy_clean_text(c->at[TEXT_COLUMN], c->len[TEXT_COLUMN], text);
  const double box[] = {numbers[0], numbers[1], numbers[0] + numbers[2], numbers[1] + numbers[3]};
  return *ret_is_valid ? clv_document_builder_add(g, text, box, page_size, err) : CLV_OK;
}

static clv_code read_rows(clv_document_builder *g, const char *text, size_t len, const char *label,
                          clv_bytes *word_text, clv_err *err) {
  double page_size[2] = {0};
  size_t line = 1;
  for (size_t at = 0, n; at < len; at += n + 1, line++) {
    const char *line_end = memchr(text + at, '\n', len - at);
    tsv_row c;
    bool is_valid = true;
    n = line_end ? (size_t)(line_end - text) - at : len - at;
    if (line == 1 || !n) continue; /* the first line is the header */
    is_valid = split_row(text + at, n, &c) && g->n_pages <= CLV_MAX_PAGES;
    clv_code code = is_valid ? read_row(g, &c, page_size, word_text, &is_valid, err) : CLV_OK;
    if (code != CLV_OK) return clv_err_prefix(err, "%.200s", label);
    if (!is_valid)
      return clv_fail(err, CLV_DATA_LOSS, "%.200s: line %zu of what tesseract prints is no row",
                      label, line);
  }
  return CLV_OK;
}

clv_code clv_tsv_parse(const char *text, size_t len, const char *label, clv_document *ret,
                       clv_err *err) {
  CLV_AUTO(clv_document_builder_done) clv_document_builder g = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes word = {0};
  CLV_TRY(read_rows(&g, text, len, label, &word, err));
  return clv_document_builder_take(&g, ret, err);
}
