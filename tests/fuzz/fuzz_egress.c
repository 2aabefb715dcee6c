/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of egress.jsonl, the record of sent tensors. Accepted lines must be written
 * again as the same bytes, the sums must be right, and the pages must have no tags or control
 * characters of the input.
 */
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_lines(const char *text, size_t len) {
  for (size_t at = 0, n; at < len; at += n + 1) {
    CLV_AUTO(clv_bytes_done) clv_bytes parsed_again = {0};
    clv_egress_line l;
    clv_err err;
    n = (size_t)((const char *)memchr(text + at, '\n', len - at) - (text + at));
    if (clv_egress_line_parse(text + at, n, &l, &err) != CLV_OK) abort();
    clv_egress_line_format(&l, &parsed_again);
    if (parsed_again.len != n + 1 || memcmp(parsed_again.data, text + at, n + 1) != 0) abort();
  }
}

static void check_sums(const clv_egress_summary *b) {
  uint64_t total = 0, rows = 0;
  for (size_t i = 0; i < b->n_attempts; i++) {
    total += b->attempts[i].bytes;
    if (b->attempts[i].unsettled_bytes > b->attempts[i].bytes) abort();
  }
  for (size_t i = 0; i < b->n_rows; i++)
    if (strcmp(b->rows[i].key.from, CLV_EGRESS_MASTER) == 0)
      rows += b->rows[i].settled_bytes + b->rows[i].unsettled_bytes;
  if (total != b->total_bytes || rows != total) abort();
}

/* Asserts that the page has only its own HTML tags, and no terminal control characters. */
static void check_page(const clv_egress_summary *b, clv_egress_format form) {
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  clv_err err;
  if (clv_egress_write_page(b, "runs/x", form, &page, &err) != CLV_OK) abort();
  if (strlen(page.data) != page.len) abort();
  if (form == CLV_EGRESS_HTML && strstr(page.data, "<script")) abort();
  for (const char *p = page.data; *p; p++)
    if ((unsigned char)*p < ' ' && *p != '\n') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err = {0};
  clv_code code = clv_egress_read_text(data, size, "fuzz", &b, &err);
  if (code != CLV_OK && !err.text[0]) abort();
  if (code != CLV_OK) return 0;
  if (b.complete_bytes + b.truncated_bytes != size) abort();
  check_lines((const char *)data, b.complete_bytes);
  check_sums(&b);
  check_page(&b, CLV_EGRESS_PLAIN_TEXT);
  check_page(&b, CLV_EGRESS_HTML);
  check_page(&b, CLV_EGRESS_JSON);
  return 0;
}
