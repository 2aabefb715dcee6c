/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests hostile input: every refusal has a position, is bounded in time and memory, and prints
 * nothing to standard error.
 */
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/config/config_test.h"

static void assert_bytes_refused(const char *text, size_t len, const char *message) {
  clv_session_config *config = NULL;
  clv_err err = {0};
  clv_code code = clv_session_config_parse("s.yaml", text, len, NULL, &config, &err);
  assert_string_equal(err.text, message);
  assert_int_equal(code, CLV_INVALID);
  assert_null(config);
}

static void assert_yaml_refused(const char *text, const char *message) {
  assert_bytes_refused(text, strlen(text), message);
}

static void unsupported_yaml_features_are_refused(void **state) {
  (void)state;
  assert_yaml_refused(
      "name: &a x\ntls: *a\n",
      "s.yaml:1:7: anchors (&x) and aliases (*x) are not supported: write the value out");
  assert_yaml_refused(
      "name: *a\n",
      "s.yaml:1:7: anchors (&x) and aliases (*x) are not supported: write the value out");
  assert_yaml_refused(
      "tls: &a {ca: b}\n",
      "s.yaml:1:6: anchors (&x) and aliases (*x) are not supported: write the value out");
  assert_yaml_refused(
      "stages: &a [b]\n",
      "s.yaml:1:9: anchors (&x) and aliases (*x) are not supported: write the value out");
  assert_yaml_refused("train:\n  <<: {batch: 3}\n",
                      "s.yaml:2:3: merge keys (<<) are not supported: write the keys out");
  assert_yaml_refused("name: !!python/object:os.system x\n",
                      "s.yaml:1:7: tags (!x) are not supported: write the plain value");
  assert_yaml_refused("? [a, b]\n: c\n", "s.yaml:1:3: a key must be a single word");
  assert_yaml_refused("version: 1\n---\nversion: 1\n", "s.yaml:2:1: a second document in one file");
  assert_yaml_refused("", "s.yaml:1:1: the file is empty");
  assert_yaml_refused("# nothing\n", "s.yaml:1:1: the file is empty");
}

static void invalid_yaml_is_located(void **state) {
  (void)state;
  assert_yaml_refused("name: a\n  tls: b\n",
                      "s.yaml:1:7: not valid YAML: invalid multiline plain key");
  assert_yaml_refused("tls:\n  ca: a\n cert: b\n",
                      "s.yaml:3:2: not valid YAML: invalid indentation in mapping");
  assert_yaml_refused("tls: {ca: a\n", "s.yaml:2:1: not valid YAML: missing comma in flow mapping");
  assert_yaml_refused("name: 'a\n",
                      "s.yaml:1:8: not valid YAML: single-quoted scalar without closing quote");
  assert_yaml_refused("tls:\n\tca: a\n",
                      "s.yaml:2:1: a tab in the indentation: YAML wants spaces there");
  assert_yaml_refused("tls:\n  ca: a\n  \tkey: b\n",
                      "s.yaml:3:3: a tab in the indentation: YAML wants spaces there");
  assert_yaml_refused("data: {format: npy,\n\ttrain: [a, b]}\n",
                      "s.yaml:2:1: a tab in the indentation: YAML wants spaces there");
  assert_yaml_refused("tls: {ca: a\n\n# no key\n",
                      "s.yaml:4:1: not valid YAML: missing comma in flow mapping");
}

static void control_characters_and_bad_utf8_are_refused(void **state) {
  (void)state;
  assert_bytes_refused("name: a\0b\n", 10, "s.yaml:1:8: a control character");
  assert_yaml_refused("name: a\n# \x1b[2J\n", "s.yaml:2:3: a control character");
  assert_yaml_refused("a: \xc3\x28\n", "s.yaml:1:4: not valid UTF-8");
  /* an encoding of '/' that is longer than necessary */
  assert_yaml_refused("a: \xc0\xaf\n", "s.yaml:1:4: not valid UTF-8");
  /* the encoding of a surrogate */
  assert_yaml_refused("a: \xed\xa0\x80\n", "s.yaml:1:4: not valid UTF-8");
  /* a code point above U+10FFFF */
  assert_yaml_refused("a: \xf4\x90\x80\x80\n", "s.yaml:1:4: not valid UTF-8");
  assert_yaml_refused(
      "\xff\xfe"
      "a",
      /* a text in UTF-16 */
      "s.yaml:1:1: its text is UTF-16, and UTF-8 is expected: convert it with iconv -f UTF-16 -t "
      "UTF-8");
  /* the last character is cut */
  assert_yaml_refused("\xc3\xa9: \xe2\x82", "s.yaml:1:4: not valid UTF-8");
  assert_yaml_refused("name: \"a\\0b\"\n", "s.yaml:1:7: a value holds a NUL character");
  assert_yaml_refused("name: \"\\ud800\"\n",
                      "s.yaml:1:8: not valid YAML: double-quoted scalar has invalid "
                      "UTF8 escape");
  assert_yaml_refused("name: '''''''''''''''''''\n", "s.yaml:1:15: more than 8 quotes in a row");
}

static char *repeat_text(const char *unit, size_t bytes) {
  size_t n = strlen(unit);
  char *text = malloc(bytes + 1);
  if (!text) fail_msg("out of memory");
  for (size_t i = 0; text && i < bytes; i++) text[i] = unit[i % n];
  if (text) text[bytes] = '\0';
  return text;
}

static void assert_repeated_text_refused(const char *head, const char *unit, size_t bytes,
                                         const char *message) {
  clv_bytes text = {0};
  char *tail = repeat_text(unit, bytes);
  clv_bytes_puts(&text, head);
  clv_bytes_puts(&text, tail);
  assert_bytes_refused(text.data, text.len, message);
  free(tail);
  clv_bytes_done(&text);
}

static void oversized_and_deep_files_are_refused(void **state) {
  (void)state;
  assert_repeated_text_refused(
      "", "a", (1 << 20) + 1, "s.yaml: 1048577 bytes, the limit is 1048576: is it a file of keys?");
  assert_repeated_text_refused("", "[", 60000, "s.yaml:1:17: nested more than 16 levels deep");
  assert_repeated_text_refused("a: ", "{a: ", 60000,
                               "s.yaml:1:64: nested more than 16 levels deep");
  assert_repeated_text_refused("", "- ", 60000, "s.yaml:1:33: nested more than 16 levels deep");
  assert_repeated_text_refused("name: ", "x", 65536,
                               "s.yaml:1:65537: a line longer than 65536 bytes");
  assert_repeated_text_refused("name: ", "x", 4097,
                               "s.yaml:1:7: a value of 4097 bytes, the limit is 4096");
  assert_repeated_text_refused("stages:\n", "- a\n", 4097 * 4,
                               "s.yaml:4098:3: more than 4096 entries in one list");
  char *list = repeat_text("- [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a]\n", 51 * 4000);
  clv_session_config *config = NULL;
  clv_err err = {0};
  assert_int_equal(clv_session_config_parse("s.yaml", list, 51 * 4000, NULL, &config, &err),
                   CLV_INVALID);
  assert_non_null(strstr(err.text, "more than 65536 values in one file"));
  free(list);
}

static void hostile_overrides_are_refused(void **state) {
  (void)state;
  assert_set_refused("name=a\x1b[2J", "--set name=a?[2J: a control character");
  assert_set_refused("name=\xff", "--set name=\xff: not valid UTF-8");
  assert_set_refused("name=&a",
                     "--set name=&a: 'name' must be a name of 1 to 64 letters, digits, '.', '_' or "
                     "'-', got '&a'");
  assert_set_refused("train=[[[[[[[[[[[[[[[[[[",
                     "--set train=[[[[[[[[[[[[[[[[[[: nested more than 16 levels deep");
  assert_set_refused("tls={<<: 1}",
                     "--set tls={<<: 1}: merge keys (<<) are not supported: write the keys out");
  assert_set_refused("loss={kind: &a mse}",
                     "--set loss={kind: &a mse}: anchors (&x) and aliases (*x) are not "
                     "supported: write the value out");
}

/* Messages of the YAML library become part of the error. Nothing is printed to standard error. */
static void yaml_errors_print_nothing_to_stderr(void **state) {
  (void)state;
  static const char *const texts[] = {
      "a: [",      "a: 'x",   "\t- a",   "a: *b", "%YAML 9.9\n---\na: 1\n", "%FOO\n---\na: 1\n",
      "a: !x!y b", "{a: b}}", "\"\\q\"", "@a",    "a: |9x\n  b\n",          "- a\nb: 1\n"};
  char path[] = "/tmp/cleave-stderr-XXXXXX";
  int fd = mkstemp(path), saved_stderr = dup(2);
  assert_true(fd >= 0 && saved_stderr >= 0);
  dup2(fd, 2);
  int refusals = 0;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    clv_session_config *config = NULL;
    refusals += clv_session_config_parse("s.yaml", texts[i], strlen(texts[i]), NULL, &config,
                                         NULL) != CLV_OK;
  }
  fflush(stderr);
  dup2(saved_stderr, 2);
  close(saved_stderr);
  off_t printed_bytes = lseek(fd, 0, SEEK_END);
  close(fd);
  remove(path);
  assert_int_equal(refusals, sizeof texts / sizeof texts[0]);
  assert_int_equal(printed_bytes, 0);
}

/* A file cut anywhere before its last newline is refused with a position. */
static void truncated_session_file_is_refused_with_position(void **state) {
  (void)state;
  for (size_t len = 0; len + 1 < strlen(session_text); len++) {
    clv_session_config *config = NULL;
    clv_err err = {0};
    clv_code code = clv_session_config_parse("s.yaml", session_text, len, NULL, &config, &err);
    if (code == CLV_OK) fail_msg("accepted after %zu bytes", len);
    assert_int_equal(code, CLV_INVALID);
    assert_int_equal(strncmp(err.text, "s.yaml:", 7), 0);
  }
}

static void config_schema_is_valid_json(void **state) {
  (void)state;
  for (int kind = CLV_CONFIG_SESSION; kind <= CLV_CONFIG_WORKER; kind++) {
    clv_bytes text = {0};
    clv_err err = {0};
    assert_int_equal(clv_config_write_json_schema((clv_config_kind)kind, &text, &err), CLV_OK);
    FILE *reader = popen(
        "/usr/bin/python3 -c 'import json, sys; s = json.load(sys.stdin); "
        "assert s[\"additionalProperties\"] is False; "
        "p = s[\"properties\"]; assert \"tls\" in p and p[\"log\"][\"properties\"]; "
        "assert set(s[\"required\"]) <= set(p) and s[\"required\"]'",
        "w");
    assert_non_null(reader);
    fwrite(text.data, 1, text.len, reader);
    assert_int_equal(pclose(reader), 0);
    clv_bytes_done(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unsupported_yaml_features_are_refused),
      cmocka_unit_test(invalid_yaml_is_located),
      cmocka_unit_test(control_characters_and_bad_utf8_are_refused),
      cmocka_unit_test(oversized_and_deep_files_are_refused),
      cmocka_unit_test(hostile_overrides_are_refused),
      cmocka_unit_test(yaml_errors_print_nothing_to_stderr),
      cmocka_unit_test(truncated_session_file_is_refused_with_position),
      cmocka_unit_test(config_schema_is_valid_json),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
