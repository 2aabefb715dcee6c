/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the ledger, the host's list of keys and weights that workers have received. An item that
 * is added to an accepted ledger is found in it and is not added again, also after the ledger was
 * compacted.
 */
#include "master/egress/egress.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static clv_ledger *parse_ledger(const clv_bytes *text) {
  clv_ledger *l = NULL;
  size_t complete_len = 0;
  clv_err err = {0};
  clv_code code =
      clv_ledger_parse(text->data ? text->data : "", text->len, "l", &l, &complete_len, &err);
  NEVER(code != CLV_OK && (l || !err.text[0]));
  NEVER(code == CLV_OK && (!l || complete_len > text->len));
  return l;
}

static void check_compaction(const clv_ledger *l, const clv_sha256 *key_digest,
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
  size_t complete_len = 0;
  clv_bytes_add(&text, data ? (const char *)data : "", size);
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = parse_ledger(&text);
  if (!l) return 0;
  CLV_AUTO(clv_ledger_freep) clv_ledger *parsed_again = NULL;
  NEVER(clv_ledger_parse(text.data, text.len, "l", &parsed_again, &complete_len, NULL) != CLV_OK);
  /* Both ledgers are parsed from one text. A text without a complete line has no salt, so each
   * ledger drew a salt of its own; all entries are then made with the second ledger's salt. */
  add_entries(complete_len ? l : parsed_again, &text, complete_len);
  return 0;
}
