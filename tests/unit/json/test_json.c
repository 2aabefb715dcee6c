/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the JSON reader: values of each kind, and the positions of errors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/json/json.h"
#include "tests/unit/must.h"

static clv_json make_json(const char *text) {
  return (clv_json){.label = "f.json", .text = text, .len = strlen(text)};
}

static void every_json_value_type_is_read(void **state) {
  (void)state;
  clv_json j = make_json(
      " {\"t\": \"a\\u00e9\\ud83d\\ude00\\n\", \"n\": -12, \"r\": 2.5e1, \"y\": true, \"z\": "
      "null}");
  static const char *const names[] = {"t", "n", "r", "y", "z"};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  uint32_t seen_keys = 0;
  int key_index;
  bool has_more, bool_value = false;
  int64_t int_value = 0;
  double real_value = 0;
  clv_err err;
  must(clv_json_open(&j, CLV_JSON_OBJECT, &err), &err);
  for (size_t n = 0; n < 5; n++) {
    must(clv_json_next(&j, CLV_JSON_OBJECT, n, &has_more, &err), &err);
    assert_true(has_more);
    must(clv_json_find_key(&j, names, 5, &seen_keys, &key_index, &err), &err);
    assert_int_equal(key_index, n);
    if (n == 0) must(clv_json_read_text(&j, &text, &err), &err);
    if (n == 1) must(clv_json_read_integer(&j, -12, 12, &int_value, &err), &err);
    if (n == 2) must(clv_json_read_real(&j, &real_value, &err), &err);
    if (n == 3) must(clv_json_read_bool(&j, &bool_value, &err), &err);
    if (n == 4) assert_true(clv_json_skip_null(&j));
  }
  must(clv_json_next(&j, CLV_JSON_OBJECT, 5, &has_more, &err), &err);
  assert_false(has_more);
  must(clv_json_end(&j, &err), &err);
  assert_string_equal(text.data, "a\xc3\xa9\xf0\x9f\x98\x80\n");
  assert_true(int_value == -12 && real_value == 25 && bool_value);
}

static void invalid_json_is_located(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"", "f.json:1:1: the text ends where a value should be"},
      {"[1,\n \xc3\xa9]", "f.json:2:2: no JSON value begins here"},
      {"[\"\xc3\xa9\", x]", "f.json:1:7: no JSON value"}, /* columns count characters, not bytes */
      {"[1 2]", "f.json:1:4: ',' or ']' is expected here"},
      {"{\"a\" 1}", "f.json:1:6: ':' is expected here"},
      {"{1: 2}", "f.json:1:2: a text is expected here, found a number"},
      {"[\"a", "f.json:1:2: this text is not terminated"},
      {"[\"a\nb\"]", "f.json:1:4: a control character needs an escape"},
      {"[\"\\q\"]", "f.json:1:3: an unknown escape"},
      {"[\"\\u12g4\"]", "f.json:1:3: \\u needs four digits"},
      {"[\"\\udc00\"]", "f.json:1:3: half a surrogate pair"},
      {"[\"\xff\"]", "f.json:1:3: not UTF-8"},
      {"[01]", "f.json:1:2: a number is not valid"},
      {"[1e999]", "f.json:1:2: 1e999 is too large"},
      {"[nil]", "f.json:1:2: no JSON value"},
      {"[tru]", "f.json:1:2: neither true nor false"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_json j = make_json(cases[i][0]);
    clv_err err = {0};
    expect_error(CLV_INVALID, cases[i][1], clv_json_skip(&j, &err), &err);
  }
}

static void deep_nesting_and_bad_numbers_are_refused(void **state) {
  (void)state;
  char nested_text[CLV_JSON_DEPTH + 2];
  static const char *const names[] = {"a"};
  uint32_t seen = 1;
  int which;
  int64_t whole;
  clv_err err = {0};
  memset(nested_text, '[', sizeof nested_text - 1);
  nested_text[sizeof nested_text - 1] = '\0';
  clv_json j = make_json(nested_text);
  expect_error(CLV_INVALID, "f.json:1:65: more than 64 nested lists", clv_json_skip(&j, &err),
               &err);
  j = make_json("1.5");
  expect_error(CLV_INVALID, "1.5 is no whole number from 0 to 9",
               clv_json_read_integer(&j, 0, 9, &whole, &err), &err);
  j = make_json("99999999999999999999");
  expect_error(CLV_INVALID, "is no whole number",
               clv_json_read_integer(&j, 0, INT64_MAX, &whole, &err), &err);
  j = make_json("\"a\": 1");
  expect_error(CLV_INVALID, "key 'a' occurs twice",
               clv_json_find_key(&j, names, 1, &seen, &which, &err), &err);
  j = make_json("[] 1");
  must(clv_json_skip(&j, &err), &err);
  expect_error(CLV_INVALID, "f.json:1:4: unexpected text after the value", clv_json_end(&j, &err),
               &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_json_value_type_is_read),
      cmocka_unit_test(invalid_json_is_located),
      cmocka_unit_test(deep_nesting_and_bad_numbers_are_refused),
  };
  return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
