/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests egress.policy.yaml: every value, its errors with their positions, and the shipped file.
 */
#include <stdio.h>

#include "tests/unit/config/config_test.h"

static const char policy_text[] =
    "version: 1\n"
    "workers: [\"spiffe://acme/worker/w1\"]\n"
    "kinds: [activation, gradient]\n"
    "largest_shape: [64, 128, 8, 8]\n"
    "dtypes: [f32]\n"
    "bytes_per_epoch: 3MiB\n"
    "allow:\n"
    "  labels_readable: true\n";

static clv_policy_config *parse_policy(const char *text) {
  clv_policy_config *config = NULL;
  clv_err err = {0};
  if (clv_policy_config_parse("/etc/cleave/p.yaml", text, strlen(text), &config, &err))
    fail_msg("refused: %s", err.text);
  return config;
}

static void assert_policy_refused(const char *from, const char *to, const char *message) {
  clv_policy_config *config = NULL;
  clv_err err = {0};
  char *text = replace_in_session_text(policy_text, from, to);
  clv_code code = clv_policy_config_parse("/etc/cleave/p.yaml", text, strlen(text), &config, &err);
  assert_string_equal(err.text, message);
  assert_int_equal(code, CLV_INVALID);
  assert_null(config);
  free(text);
}

static void every_policy_key_is_read(void **state) {
  (void)state;
  clv_policy_config *c = parse_policy(policy_text);
  assert_int_equal(c->workers.n, 1);
  assert_string_equal(c->workers.items[0], "spiffe://acme/worker/w1");
  assert_int_equal(c->kinds.n, 2);
  assert_string_equal(c->kinds.items[1], "gradient");
  assert_int_equal(c->largest_shape.n, 4);
  assert_true(c->largest_shape.items[1] == 128);
  assert_true(c->bytes_per_epoch == 3u << 20);
  assert_true(c->allow.labels_readable);
  assert_int_equal(c->allow.labels_readable_pos.line, 8);
  assert_int_equal(c->allow.labels_readable_pos.column, 20);
  assert_false(c->allow.labels || c->allow.raw || c->allow.tokens || c->allow.front_known);
  assert_int_equal(c->shape_pos.line, 4);
  /* the default, if the policy has no key `programs` */
  assert_int_equal(c->programs, CLV_PROGRAMS_REFUSE);
  clv_policy_config_free(c);
}

static void declared_programs_are_read(void **state) {
  (void)state;
  char *text = replace_in_session_text(policy_text, "allow:", "programs: declared\nallow:");
  clv_policy_config *c = parse_policy(text);
  assert_int_equal(c->programs, CLV_PROGRAMS_DECLARED);
  assert_int_equal(c->programs_pos.line, 7);
  clv_policy_config_free(c);
  free(text);
}

/* A policy in which a key is missing is refused; a missing key never permits anything. */
static void missing_policy_key_is_refused(void **state) {
  (void)state;
  static const char *const lines[] = {"version: 1\n",
                                      "workers: [\"spiffe://acme/worker/w1\"]\n",
                                      "kinds: [activation, gradient]\n",
                                      "largest_shape: [64, 128, 8, 8]\n",
                                      "dtypes: [f32]\n",
                                      "bytes_per_epoch: 3MiB\n"};
  for (size_t i = 0; i < CLV_COUNT(lines); i++) {
    clv_policy_config *config = NULL;
    clv_err err = {0};
    char *text = replace_in_session_text(policy_text, lines[i], "");
    assert_int_equal(
        clv_policy_config_parse("/etc/cleave/p.yaml", text, strlen(text), &config, &err),
        CLV_INVALID);
    assert_non_null(strstr(err.text, "missing key '"));
    free(text);
  }
  clv_policy_config *c = NULL;
  char *none = replace_in_session_text(policy_text, "allow:\n  labels_readable: true\n", "");
  c = parse_policy(none);
  assert_false(c->allow.labels_readable);
  clv_policy_config_free(c);
  free(none);
}

static void invalid_policy_values_are_located(void **state) {
  (void)state;
  assert_policy_refused(
      "gradient]", "gradeint]",
      "/etc/cleave/p.yaml:3:21: 'kinds' must be one of activation, gradient, weights, "
      "cached, got 'gradeint', did you mean 'gradient'?");
  assert_policy_refused("\"spiffe://acme/worker/w1\"", "w1",
                        "/etc/cleave/p.yaml:2:11: 'workers' must be a URI such as "
                        "spiffe://example.org/worker/gpu1, got 'w1'");
  assert_policy_refused(
      "[\"spiffe://acme/worker/w1\"]", "[]",
      "/etc/cleave/p.yaml:2:10: 'workers' must be a list of at least 1 texts, got 0");
  assert_policy_refused(
      "dtypes: [f32]", "dtypes: [f23]",
      "/etc/cleave/p.yaml:5:10: 'dtypes' must be one of f32, i64, bf16, got 'f23', did you "
      "mean 'f32'?");
  assert_policy_refused("128", "12.5",
                        "/etc/cleave/p.yaml:4:1: 'largest_shape' is of whole numbers, not 12.5");
  assert_policy_refused("3MiB", "0",
                        "/etc/cleave/p.yaml:6:18: 'bytes_per_epoch' must be a size from 1 to "
                        "1048576TiB, got '0'");
  assert_policy_refused("labels_readable", "label_readable",
                        "/etc/cleave/p.yaml:8:3: unknown key 'allow.label_readable', did you mean "
                        "'labels_readable'?");
  assert_policy_refused(
      "true", "maybe",
      "/etc/cleave/p.yaml:8:20: 'allow.labels_readable' must be true or false, got "
      "'maybe'");
  assert_policy_refused("version: 1", "version: 2",
                        "/etc/cleave/p.yaml:1:10: 'version' must be 1, got '2'");
}

static void policy_denial_names_file_and_line(void **state) {
  (void)state;
  clv_policy_config *c = parse_policy(policy_text);
  clv_err err = {0};
  assert_int_equal(clv_policy_fail_at(c, c->kinds_pos, &err, "no %s", "weights"), CLV_INVALID);
  assert_string_equal(err.text, "/etc/cleave/p.yaml:3:1: no weights");
  clv_policy_config_free(c);
}

/* Environment variables change keys of a session, but not those of a policy. */
static void environment_cannot_widen_a_policy(void **state) {
  (void)state;
  setenv("CLEAVE_ALLOW__LABELS", "true", 1);
  clv_policy_config *c = parse_policy(policy_text);
  assert_false(c->allow.labels);
  clv_policy_config_free(c);
}

static void shipped_policy_allows_nothing_and_is_documented(void **state) {
  (void)state;
  clv_bytes text = {0}, page = {0}, schema = {0};
  clv_policy_config *c = NULL;
  clv_err err = {0};
  assert_int_equal(clv_file_read("deploy/egress.policy.yaml", 65536, &text, &err), CLV_OK);
  if (clv_policy_config_parse("deploy/egress.policy.yaml", text.data, text.len, &c, &err))
    fail_msg("%s", err.text);
  assert_false(c->allow.labels || c->allow.labels_readable || c->allow.raw || c->allow.tokens ||
               c->allow.front_known);
  assert_int_equal(clv_config_write_man_page(CLV_CONFIG_POLICY, &page, &err), CLV_OK);
  assert_non_null(strstr(page.data, "bytes_per_epoch"));
  assert_null(strstr(page.data, "CREDENTIALS_DIRECTORY"));
  assert_int_equal(clv_config_write_json_schema(CLV_CONFIG_POLICY, &schema, &err), CLV_OK);
  assert_non_null(
      strstr(schema.data, "\"enum\":[\"activation\",\"gradient\",\"weights\",\"cached\"]"));
  clv_policy_config_free(c);
  clv_bytes_done(&text);
  clv_bytes_done(&page);
  clv_bytes_done(&schema);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_policy_key_is_read),
      cmocka_unit_test(declared_programs_are_read),
      cmocka_unit_test(missing_policy_key_is_refused),
      cmocka_unit_test(invalid_policy_values_are_located),
      cmocka_unit_test(policy_denial_names_file_and_line),
      cmocka_unit_test(environment_cannot_widen_a_policy),
      cmocka_unit_test(shipped_policy_allows_nothing_and_is_documented),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
