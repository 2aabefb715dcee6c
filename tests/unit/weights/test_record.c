/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests run.json: what is written is read again, and what is damaged is refused by name.
 */
#include <math.h>

#include "tests/unit/weights/weights_test.h"

static void add_attempt(clv_run_record *r, clv_run_status status, uint64_t step) {
  clv_run_attempt *a = NULL;
  clv_err err = {0};
  assert_ok(clv_run_record_add_attempt(r, &a, &err), &err);
  assert_true(isnan(a->loss) && isnan(a->accuracy));
  a->status = status;
  a->step = step;
  a->began_ms = 1700000000000 + step;
  a->pid = 4000000000;
  strcpy(a->host, "h");
}

static clv_run_record make_sample(void) {
  clv_run_record r = {.name = "n",
                      .session_path = "/s.yaml",
                      .best = {"validation", 7, 0.1, 0.75},
                      .checkpoints = {9, 7},
                      .n_checkpoints = 2};
  add_attempt(&r, CLV_RUN_FAILED, 5);
  add_attempt(&r, CLV_RUN_STOPPED, 9);
  r.attempts[0].exit_code = 6;
  r.attempts[1].loss = 1.0 / 3;
  return r;
}

static clv_code format_and_parse(const clv_run_record *r, clv_run_record *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  assert_ok(clv_run_record_format(r, &text, err), err);
  return clv_run_record_parse(text.data, text.len, "run.json", ret, err);
}

static void run_record_round_trips(void **state) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = make_sample(), b = {0};
  clv_err err = {0};
  (void)state;
  assert_ok(format_and_parse(&r, &b, &err), &err);
  assert_string_equal(b.session_path, "/s.yaml");
  assert_memory_equal(&b.best, &r.best, sizeof b.best);
  assert_int_equal(b.n_checkpoints, 2);
  assert_int_equal(b.checkpoints[1], 7);
  assert_int_equal(b.n_attempts, 2);
  assert_int_equal(b.attempts[0].status, CLV_RUN_FAILED);
  assert_int_equal(b.attempts[0].exit_code, 6);
  assert_true(isnan(b.attempts[0].loss) && b.attempts[1].loss == 1.0 / 3);
  assert_int_equal(b.attempts[1].pid, 4000000000);
}

/* The text of an error, or a path, may contain any bytes and end inside a character. The record
 * replaces what is not UTF-8. */
static void invalid_text_is_sanitized_in_the_record(void **state) {
  static const struct {
    const char *text, *want;
  } cases[] = {{"caf\xc3\xa9", "caf\xc3\xa9"}, {"cut \xc3", "cut ?"}, {"\xff\xfe", "??"},
               {"a\x1b[31m\nb", "a [31m b"},   {"\xc2\x9b", "?"},     {"\"\\", "\"\\"},
               {"\xed\xa0\x80", "???"},        {"\x7f", " "}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_run_record_clear) clv_run_record r = make_sample(), b = {0};
    clv_err err = {0};
    strcpy(r.attempts[0].text, cases[i].text);
    assert_ok(format_and_parse(&r, &b, &err), &err);
    assert_string_equal(b.attempts[0].text, cases[i].want);
  }
}

static void oldest_attempts_are_dropped_at_the_limit(void **state) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0}, b = {0};
  clv_err err = {0};
  (void)state;
  for (uint64_t i = 0; i < CLV_RECORD_MAX_ATTEMPTS + 3; i++) add_attempt(&r, CLV_RUN_FAILED, i);
  assert_int_equal(r.n_attempts, CLV_RECORD_MAX_ATTEMPTS);
  assert_int_equal(r.n_earlier, 3);
  assert_int_equal(r.attempts[0].step, 3);
  assert_ok(format_and_parse(&r, &b, &err), &err);
  assert_int_equal(b.attempts[b.n_attempts - 1].step, CLV_RECORD_MAX_ATTEMPTS + 2);
}

static void damaged_run_record_is_refused_by_name(void **state) {
  static const struct {
    const char *old_text, *new_text, *says;
  } cases[] = {
      {"{\"format\"", "[\"format\"", "starts with '{'"},
      {"cleave-run", "cleave-walk", "expected cleave-run 1"},
      {"\"version\": 1", "\"version\": 2", "version 2"},
      {"\"status\": \"failed\"", "\"status\": \"fine\"", "attempt 1: unknown status 'fine'"},
      {"\"status\": \"stopped\"", "\"status\": 3", "attempt 2: 'status'"},
      {"\"code\": 6", "\"code\": -6", "'code' is -6"},
      {"\"code\": 6, ", "", "'code' is missing"},
      {"\"code\": 6", "\"code\": 6, \"code\": 6", "duplicate"},
      {"\"code\": 6", "\"code\": 6, \"kode\": 6", "unknown key 'kode'"},
      {"\"host\": \"h\"", "\"host\": \"\\u001b\"", "'host' is not a line"},
      {"\"loss\": null", "\"loss\": \"low\"", "'loss' is neither"},
      {"\"checkpoints\": [9, 7]", "\"checkpoints\": [9, -7]", "checkpoint's step"},
      {"\"checkpoints\": [9, 7]", "\"checkpoints\": {}", "'checkpoints' is not a list"},
      {"\"best\": {", "\"best\": [{", "bad JSON"},
      {"\"name\": \"n\"", "\"name\": \"n\", \"nam\": \"n\"", "unknown key 'nam'"},
  };
  CLV_AUTO(clv_run_record_clear) clv_run_record r = make_sample();
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err = {0};
  (void)state;
  assert_ok(clv_run_record_format(&r, &text, &err), &err);
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes bad = {0};
    clv_run_record none = {0};
    const char *at = strstr(text.data, cases[i].old_text);
    if (!at) fail_msg("no %s in %s", cases[i].old_text, text.data);
    clv_bytes_add(&bad, text.data, (size_t)(at - text.data));
    clv_bytes_printf(&bad, "%s%s", cases[i].new_text, at + strlen(cases[i].old_text));
    assert_int_not_equal(clv_run_record_parse(bad.data, bad.len, "run.json", &none, &err), CLV_OK);
    assert_says(&err, cases[i].says);
    assert_says(&err, "run.json");
    assert_null(none.attempts);
  }
  for (size_t n = 0; n + 2 < text.len; n += 7) { /* reads the record cut after n bytes */
    clv_run_record none = {0};
    assert_int_not_equal(clv_run_record_parse(text.data, n, "run.json", &none, &err), CLV_OK);
  }
}

static void overlong_text_is_refused(void **state) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = make_sample(), none = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, bad = {0};
  char host[CLV_RECORD_NAME_BYTES + 1];
  clv_err err = {0};
  (void)state;
  memset(host, 'x', sizeof host - 1);
  host[sizeof host - 1] = '\0';
  assert_ok(clv_run_record_format(&r, &text, &err), &err);
  char *at = strstr(text.data, "\"host\": \"h\"");
  clv_bytes_add(&bad, text.data, (size_t)(at - text.data));
  clv_bytes_printf(&bad, "\"host\": \"%s\"%s", host, at + strlen("\"host\": \"h\""));
  assert_int_equal(clv_run_record_parse(bad.data, bad.len, "x", &none, &err), CLV_DATA_LOSS);
  assert_says(&err, "'host'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(run_record_round_trips),
      cmocka_unit_test(invalid_text_is_sanitized_in_the_record),
      cmocka_unit_test(oldest_attempts_are_dropped_at_the_limit),
      cmocka_unit_test(damaged_run_record_is_refused_by_name),
      cmocka_unit_test(overlong_text_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
