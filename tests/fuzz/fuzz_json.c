/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the JSON parser, which reads value by value. Reading any text must end with a value or
 * with an error that has a position. Skipping a value and reading it must end at the same position.
 */
#include "common/base/json/json.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static clv_code read_value(clv_json *j, clv_err *err);

static clv_code read_container(clv_json *j, clv_json_kind kind, clv_err *err) {
  static const char *const names[] = {"a", "b"};
  uint32_t keys_seen = 0;
  bool has_more = true;
  int which;
  CLV_TRY(clv_json_open(j, kind, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, kind, n, &has_more, err));
    if (!has_more) return CLV_OK;
    if (kind == CLV_JSON_OBJECT) CLV_TRY(clv_json_find_key(j, names, 2, &keys_seen, &which, err));
    CLV_TRY(read_value(j, err));
  }
}

static clv_code read_value(clv_json *j, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_json_kind kind;
  int64_t integer;
  bool boolean;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind >= CLV_JSON_LIST) return read_container(j, kind, err);
  if (kind == CLV_JSON_NUMERAL) return clv_json_read_integer(j, -1000, 1000, &integer, err);
  if (kind == CLV_JSON_BOOL) return clv_json_read_bool(j, &boolean, err);
  if (kind == CLV_JSON_TEXT) return clv_json_read_text(j, &text, err);
  return clv_json_skip_null(j) ? CLV_OK : clv_json_fail(j, j->at, err, "no value");
}

/* Reads the text as a value of each JSON kind, although the text may be a value of another kind. */
static void read_as_each_kind(const uint8_t *data, size_t size) {
  static const char *const names[] = {"a", "b"};
  const clv_json_keys keys = {names, CLV_COUNT(names)};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  int64_t integer;
  bool boolean;
  for (int kind = 0; kind < 4; kind++) {
    clv_json j = {.label = "fuzz", .text = (const char *)data, .len = size};
    clv_err err = {0};
    clv_code code = kind == 0   ? clv_json_read_text(&j, &text, &err)
                    : kind == 1 ? clv_json_read_integer(&j, -1000, 1000, &integer, &err)
                    : kind == 2 ? clv_json_read_bool(&j, &boolean, &err)
                                : clv_json_open(&j, CLV_JSON_OBJECT, &err);
    NEVER(code != CLV_OK && !strstr(err.text, "fuzz:"));
    if (kind == 0 && code == CLV_OK)
      NEVER(clv_json_keys_have(&keys, text.data, text.len) !=
            (text.len == 1 && (text.data[0] == 'a' || text.data[0] == 'b')));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_json reading_parser = {.label = "fuzz", .text = (const char *)data, .len = size},
           skipping_parser = reading_parser;
  clv_err err = {0};
  clv_code code = read_value(&reading_parser, &err);
  NEVER(reading_parser.at > size || (code != CLV_OK && !strstr(err.text, "fuzz:")));
  bool is_skipped = clv_json_skip(&skipping_parser, &err) == CLV_OK;
  NEVER(skipping_parser.at > size ||
        (code == CLV_OK && (!is_skipped || skipping_parser.at != reading_parser.at)));
  NEVER(is_skipped && skipping_parser.depth != 0);
  if (is_skipped && clv_json_end(&skipping_parser, &err) != CLV_OK)
    NEVER(!strstr(err.text, "fuzz:"));
  read_as_each_kind(data, size);
  return 0;
}
