/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the output of `pdfinfo` and of `pdftotext -bbox`: lines, and <page width height> elements
 * with <word xMin yMin xMax yMax> elements, whose text is escaped as in XML. Ignores everything
 * else. Words come from the PDF and are untrusted; tags come from pdftotext.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/documents/documents_int.h"

typedef struct bbox_reader {
  const char *label, *at, *begin, *end;
  const clv_bytes *rotations; /* result of clv_rotations_parse; NULL: no page is rotated */
} bbox_reader;

/* ---- rotation of pages ----------------------------------------------------------------------- */

/* Parses "Page 3 rot: 90". Metadata such as the title may look the same, but pdfinfo prints
 * metadata first, so the real rotation, which follows, replaces the value of such a line. */
static bool read_rotation(const char *line, size_t *ret_page, long *ret_degrees) {
  char *rest;
  if (strncmp(line, "Page ", 5) != 0) return false;
  long page = strtol(line + 5, &rest, 10);
  if (page < 1 || page > CLV_MAX_PAGES || strncmp(rest, " rot:", 5) != 0) return false;
  *ret_degrees = strtol(rest + 5, NULL, 10);
  *ret_page = (size_t)page - 1;
  return true;
}

enum { PAGE_UPRIGHT, PAGE_SIDEWAYS, PAGE_ASKEW };

/* Refuses rotations that are not a multiple of 90, because pdftotext rounds them, which makes boxes
 * wrong. */
static clv_code check_rotations(const char *label, const clv_bytes *rotations, clv_err *err) {
  for (size_t i = 0; i < rotations->len; i++)
    if (rotations->data[i] == PAGE_ASKEW)
      return clv_fail(
          err, CLV_INVALID,
          "%.200s: page %zu has a /Rotate that is not a multiple of 90: turn it with qpdf "
          "--rotate=0:%zu IN OUT",
          label, i + 1, i + 1);
  return CLV_OK;
}

clv_code clv_rotations_parse(const char *text, size_t len, const char *label, clv_bytes *ret,
                             clv_err *err) {
  const char *end = text + len;
  size_t page;
  long degrees;
  for (const char *at = text, *line_end; at < end; at = line_end + 1) {
    line_end = memchr(at, '\n', (size_t)(end - at));
    if (read_rotation(at, &page, &degrees)) {
      while (ret->len <= page && !ret->failed) clv_bytes_add(ret, "", 1);
      if (!ret->failed)
        ret->data[page] = degrees % 90 ? PAGE_ASKEW : degrees % 180 ? PAGE_SIDEWAYS : PAGE_UPRIGHT;
    }
    if (!line_end) break;
  }
  if (ret->failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for pages");
  return check_rotations(label, ret, err);
}

static bool is_rotated(const bbox_reader *r, size_t page) {
  return r->rotations && page < r->rotations->len && r->rotations->data[page];
}

/* ---- words and boxes of pdftotext ------------------------------------------------------------ */

static clv_code fail_at_current_line(const bbox_reader *r, clv_err *err, const char *problem) {
  size_t line = 1;
  for (const char *p = r->begin; p < r->at; p++) line += *p == '\n';
  return clv_fail(err, CLV_DATA_LOSS, "%.200s: line %zu of what pdftotext prints: %s", r->label,
                  line, problem);
}

static bool text_begins_with(const char *at, const char *end, const char *word) {
  size_t n = strlen(word);
  return (size_t)(end - at) >= n && memcmp(at, word, n) == 0;
}

/* Reads name="12.5" within a tag. The number may be infinite or NaN. */
static bool read_attribute(const char *tag, const char *end, const char *name, double *ret) {
  char number[40];
  size_t n = strlen(name);
  for (const char *p = tag; p < end; p++) {
    if (*p != ' ' || !text_begins_with(p + 1, end, name) ||
        !text_begins_with(p + 1 + n, end, "=\""))
      continue;
    const char *value_begin = p + 3 + n,
               *value_end = memchr(value_begin, '"', (size_t)(end - value_begin));
    if (!value_end || value_end == value_begin ||
        (size_t)(value_end - value_begin) >= sizeof number)
      return false;
    memcpy(number, value_begin, (size_t)(value_end - value_begin));
    number[value_end - value_begin] = '\0';
    char *rest;
    *ret = strtod(number, &rest);
    return !*rest;
  }
  return false;
}

/* Appends the character of the XML entity at `at`, or '&' if there is no known entity. Returns the
 * text after it. */
static const char *decode_entity(const char *at, const char *end, clv_bytes *out) {
  static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#39;"};
  static const char entity_chars[] = "&<>\"''";
  for (size_t i = 0; i < CLV_COUNT(entities); i++)
    if (text_begins_with(at, end, entities[i])) {
      clv_bytes_add(out, &entity_chars[i], 1);
      return at + strlen(entities[i]);
    }
  clv_bytes_add(out, at, 1);
  return at + 1;
}

/* Decodes the text of a word. Drops control characters; invalid UTF-8 becomes U+FFFD. */
static void unescape_word(const char *at, const char *end, clv_bytes *out) {
  out->len = 0;
  clv_bytes_add(out, "", 0);
  while (at < end) {
    uint32_t c = 0xfffd;
    size_t n = clv_utf8_decode(at, (size_t)(end - at), &c);
    if (!n) clv_bytes_add(out, "\xef\xbf\xbd", 3);
    if (n && *at == '&') {
      at = decode_entity(at, end, out);
      continue;
    }
    if (n && !clv_is_control(c)) clv_bytes_add(out, at, n);
    at += CLV_MAX(n, (size_t)1);
  }
}

static clv_code read_page(bbox_reader *r, const char *tag_end, clv_document_builder *g,
                          double page_size[2], clv_err *err) {
  if (!read_attribute(r->at, tag_end, "width", &page_size[0]) ||
      !read_attribute(r->at, tag_end, "height", &page_size[1]))
    return fail_at_current_line(r, err, "a page without a width and a height");
  if (g->n_pages == CLV_MAX_PAGES)
    return clv_fail(err, CLV_EXHAUSTED, "%.200s: more than %d pages", r->label, CLV_MAX_PAGES);
  if (is_rotated(r, g->n_pages)) {
    double width = page_size[0];
    page_size[0] = page_size[1];
    page_size[1] = width;
  }
  g->n_pages++;
  return CLV_OK;
}

static clv_code read_word(bbox_reader *r, const char **tag_end, clv_document_builder *g,
                          const double page_size[2], clv_bytes *text, clv_err *err) {
  static const char *const corner_names[] = {"xMin", "yMin", "xMax", "yMax"};
  double box[4];
  for (int i = 0; i < 4; i++)
    if (!read_attribute(r->at, *tag_end, corner_names[i], &box[i]))
      return fail_at_current_line(r, err, "a word without its box");
  if (!g->n_pages) return fail_at_current_line(r, err, "a word on no page");
  const char *text_begin = *tag_end + 1,
             *text_end = memchr(text_begin, '<', (size_t)(r->end - text_begin));
  if (!text_end || !text_begins_with(text_end, r->end, "</word>"))
    return fail_at_current_line(r, err, "a word without an end");
  unescape_word(text_begin, text_end, text);
  *tag_end = text_end;
  clv_code code = clv_document_builder_add(g, text, box, page_size, err);
  return code == CLV_OK ? CLV_OK : clv_err_prefix(err, "%.200s", r->label);
}

static clv_code read_tags(bbox_reader *r, clv_document_builder *g, clv_bytes *text, clv_err *err) {
  double page_size[2] = {0};
  while ((r->at = memchr(r->at, '<', (size_t)(r->end - r->at)))) {
    const char *tag_end = memchr(r->at, '>', (size_t)(r->end - r->at));
    if (!tag_end) return fail_at_current_line(r, err, "a tag without an end");
    if (text_begins_with(r->at, r->end, "<page "))
      CLV_TRY(read_page(r, tag_end, g, page_size, err));
    if (text_begins_with(r->at, r->end, "<word "))
      CLV_TRY(read_word(r, &tag_end, g, page_size, text, err));
    r->at = tag_end;
  }
  return CLV_OK;
}

clv_code clv_bbox_parse(const char *text, size_t len, const char *label, const clv_bytes *rotations,
                        clv_document *ret, clv_err *err) {
  CLV_AUTO(clv_document_builder_done) clv_document_builder g = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes word = {0};
  bbox_reader r = {
      .label = label, .at = text, .begin = text, .end = text + len, .rotations = rotations};
  if (len) CLV_TRY(read_tags(&r, &g, &word, err));
  return clv_document_builder_take(&g, ret, err);
}
