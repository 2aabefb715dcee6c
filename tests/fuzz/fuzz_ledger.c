/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the ledger, the host's list of keys and weights that workers have received. An item that
 * is added to an accepted ledger is found in it and is not added again, also after the ledger was
 * compacted.
 */
#include "master/egress/egress.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Parses the first `half` bytes, and then the rest with what of them was no complete line. */
static clv_ledger *parse_halves(const clv_bytes *text, size_t half) {
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = NULL;
  clv_err err = {0};
  NEVER(clv_ledger_new(&l, &err) != CLV_OK);
  for (int i = 0; i < 2; i++) {
    const size_t at = clv_ledger_count_bytes(l), end = i ? text->len : half;
    clv_code code = clv_ledger_extend(l, text->data + at, end - at, "l", &err);
    NEVER(code != CLV_OK && !err.text[0]);
    if (code != CLV_OK) return NULL;
    NEVER(clv_ledger_count_bytes(l) > end || clv_ledger_count_bytes(l) < at);
  }
  NEVER(!clv_ledger_has_bytes(l, 0, text->data, clv_ledger_count_bytes(l)));
  return clv_steal(&l);
}

static clv_ledger *parse_ledger(const clv_bytes *text) { return parse_halves(text, text->len); }

static void check_compaction(clv_ledger *l, const clv_sha256 *key_digest,
                             const clv_ledger_entry *e) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, more = {0};
  clv_ledger_entry found = {0};
  bool is_found = false;
  NEVER(clv_ledger_compact(l, &text, NULL) != CLV_OK);
  CLV_AUTO(clv_ledger_freep) clv_ledger *compacted = parse_ledger(&text);
  NEVER(!compacted || clv_ledger_count(compacted) > clv_ledger_count(l));
  for (clv_ledger_kind kind = CLV_LEDGER_RUN; kind <= CLV_LEDGER_ROW; kind += 2) {
    NEVER(clv_ledger_find(compacted, kind, key_digest, &found, &is_found, NULL) != CLV_OK ||
          !is_found);
    NEVER(strcmp(found.identity, e->identity) != 0 || strcmp(found.date, e->date) != 0);
  }
  NEVER(clv_ledger_compact(compacted, &more, NULL) != CLV_OK || more.len != text.len);
}

static void add_entries(const clv_ledger *l, clv_bytes *text, size_t complete_len) {
  static const clv_sha256 known_digest = {{7}}, other_digest = {{8}};
  static const char w1[] = "spiffe://acme/w1";
  const clv_ledger_item item[] = {{CLV_LEDGER_RUN, known_digest, w1},
                                  {CLV_LEDGER_ROW, known_digest, w1},
                                  {CLV_LEDGER_ROW, other_digest, w1}};
  CLV_AUTO(clv_bytes_done) clv_bytes lines = {0}, more = {0};
  clv_ledger_entry e = {0};
  bool is_found = false;
  NEVER(clv_ledger_format_new_lines(l, item, 3, &lines, NULL) != CLV_OK);
  text->len = complete_len;
  clv_bytes_add(text, lines.data, lines.len);
  CLV_AUTO(clv_ledger_freep) clv_ledger *parsed_again = parse_ledger(text);
  NEVER(!parsed_again || clv_ledger_count(parsed_again) != clv_ledger_count(l) + 3);
  NEVER(clv_ledger_count_rows(parsed_again) != clv_ledger_count_rows(l) + 2);
  for (int i = 0; i < 3; i++) {
    NEVER(clv_ledger_find(parsed_again, item[i].kind, &item[i].of, &e, &is_found, NULL) != CLV_OK ||
          !is_found);
    NEVER(strcmp(e.identity, w1) != 0 || strlen(e.date) != 10);
  }
  NEVER(clv_ledger_format_new_lines(parsed_again, item, 3, &more, NULL) != CLV_OK || more.len);
  check_compaction(parsed_again, &known_digest, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add(&text, data ? (const char *)data : "", size);
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = parse_ledger(&text);
  CLV_AUTO(clv_ledger_freep)
  clv_ledger *by_halves = parse_halves(&text, size ? data[0] * size / 256 : 0);
  NEVER(!l != !by_halves);
  if (!l) return 0;
  NEVER(clv_ledger_count(by_halves) != clv_ledger_count(l));
  NEVER(clv_ledger_count_rows(by_halves) != clv_ledger_count_rows(l));
  NEVER(clv_ledger_count_bytes(by_halves) != clv_ledger_count_bytes(l));
  add_entries(by_halves, &text, clv_ledger_count_bytes(l));
  return 0;
}
