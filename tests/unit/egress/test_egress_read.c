/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the reader of egress.jsonl: what it sums up, and what it refuses.
 */
#include "master/egress/egress.h"
#include "tests/unit/files.h"

#define HEAD(event, at, attempt) \
  "{\"event\":\"" event "\",\"at\":\"2026-11-22T19:00:0" at "Z\",\"attempt\":" attempt
#define ATTEMPT(n)                                                                             \
  HEAD("attempt", "0.000", n)                                                                  \
  ",\"version\":1,\"command\":\"train\",\"session\":\"demo\",\"run\":\"runs/demo\",\"policy\"" \
  ":\"\",\"policy_sha256\":\"\",\"approver\":\"\",\"table_sha256\":\"\",\"cut\":0}\n"
#define ALLOW(n, id, from, bytes)                                                              \
  HEAD("allow", "1.000", n)                                                                    \
  ",\"id\":" id ",\"from\":\"" from                                                            \
  "\",\"to\":\"w1\",\"identity\":\"i\",\"kind\":\"activation\",\"stage\":\"a\",\"name\":\"\"," \
  "\"dtype\":\"f32\",\"shape\":[2,3],\"random\":false,\"bytes\":" bytes                        \
  ",\"until\":\"2026-11-22T19:00:11.000Z\"}\n"
#define SETTLE(n, id, bytes) \
  HEAD("settle", "2.000", n) ",\"id\":" id ",\"tensors\":1,\"bytes\":" bytes "}\n"
#define END(n, tensors, bytes) \
  HEAD("end", "3.000", n) ",\"code\":0,\"tensors\":" tensors ",\"bytes\":" bytes "}\n"

static clv_code read_text(const char *text, clv_egress_summary *ret, clv_err *err) {
  return clv_egress_read_text(text, strlen(text), "egress.jsonl", ret, err);
}

static void ended_attempt_counts_settled_bytes(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  assert_ok(read_text(ATTEMPT("1") ALLOW("1", "1", "master", "100") SETTLE("1", "1", "60") ALLOW(
                          "1", "2", "master", "100") SETTLE("1", "2", "7") END("1", "2", "67"),
                      &b, &err),
            &err);
  assert_int_equal(b.n_attempts, 1);
  assert_true(b.attempts[0].has_ended);
  assert_int_equal(b.attempts[0].bytes, 67);
  /* both `allow` lines are for the same tensor and worker, so the summary has one row for them */
  assert_int_equal(b.n_rows, 1);
  assert_int_equal(b.rows[0].settled_bytes, 67);
  assert_int_equal(b.rows[0].n_tensors, 2);
  assert_string_equal(b.rows[0].last_time, "2026-11-22T19:00:02.000Z");
  assert_int_equal(b.total_bytes, 67);
  assert_int_equal(b.attempts[0].last_id, 2);
}

#define LOOK_OF(n, more)                                                                      \
  HEAD("look", "1.000", n)                                                                    \
  ",\"records\":64,\"pixels\":\"0.82\",\"tokens\":\"not looked at\",\"labels\":\"0.04\"" more \
  "}"                                                                                         \
  "\n"
#define LOOK(n) LOOK_OF(n, "")
#define FEATURES ",\"features\":\"0.50\",\"groups\":\"1.00\""

static void look_belongs_to_its_attempt_and_occurs_once(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0}, none = {0};
  clv_err err;
  assert_ok(read_text(ATTEMPT("1") LOOK("1") END("1", "0", "0") ATTEMPT("2"), &b, &err), &err);
  assert_true(b.attempts[0].has_look && !b.attempts[1].has_look);
  assert_int_equal(b.attempts[0].look.look.n_records, 64);
  assert_string_equal(b.attempts[0].look.look.pixels, "0.82");
  /* a look line of the format's first version has no key `features` */
  assert_string_equal(b.attempts[0].look.look.features, "");
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary later = {0};
  assert_ok(read_text(ATTEMPT("1") LOOK_OF("1", FEATURES), &later, &err), &err);
  assert_string_equal(later.attempts[0].look.look.groups, "1.00");
  assert_int_equal(read_text(ATTEMPT("1") LOOK("1") LOOK("1"), &none, &err), CLV_DATA_LOSS);
  assert_non_null(strstr(err.text, "egress.jsonl:3: attempt 1 has a second look"));
}

static void unsettled_allowance_counts_in_full(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  assert_ok(read_text(ATTEMPT("1") ALLOW("1", "1", "master", "100") SETTLE("1", "1", "60")
                          ALLOW("1", "2", "master", "100") ATTEMPT("2")
                              ALLOW("2", "1", "master", "5") SETTLE("1", "2", "10"),
                      &b, &err),
            &err);
  /* attempts 1 and 2 ran at the same time */
  assert_int_equal(b.attempts[0].bytes, 70);
  assert_int_equal(b.attempts[0].unsettled_bytes, 0);
  assert_int_equal(b.attempts[1].unsettled_bytes, 5);
  assert_false(b.attempts[0].has_ended);
  assert_int_equal(b.total_bytes, 75);
  assert_int_equal(b.n_rows, 2); /* each attempt has a row of its own */
}

static void worker_hops_are_not_in_the_master_total(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  assert_ok(
      read_text(ATTEMPT("1") ALLOW("1", "1", "w2", "100") SETTLE("1", "1", "60") HEAD(
                    "hop", "2.500", "1") ",\"from\":\"w2\",\"to\":\"w1\","
                                         "\"bytes\":77,\"by\":\"worker\"}\n" END("1", "0", "0"),
                &b, &err),
      &err);
  assert_int_equal(b.total_bytes, 0);
  assert_int_equal(b.rows[0].settled_bytes, 60);
  assert_int_equal(b.n_hops, 1);
  assert_int_equal(b.hops[0].line.hop.bytes, 77);
}

/* If the machine stopped while the last line was written, the file ends in half a line, or in
 * zeros. */
static void truncated_last_line_is_ignored(void **state) {
  (void)state;
  static const char half_line[] = ATTEMPT("1") "{\"event\":\"allow\",";
  static const char line_of_zeros[] = ATTEMPT("1") "\0\0\0\0\n";
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0}, z = {0};
  clv_err err;
  assert_ok(clv_egress_read_text(half_line, sizeof half_line - 1, "x", &b, &err), &err);
  assert_int_equal(b.complete_bytes, strlen(ATTEMPT("1")));
  assert_int_equal(b.truncated_bytes, strlen("{\"event\":\"allow\","));
  assert_ok(clv_egress_read_text(line_of_zeros, sizeof line_of_zeros - 1, "x", &z, &err), &err);
  assert_int_equal(z.truncated_bytes, 5);
}

static void assert_refused(const char *text, const char *why) {
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err = {0};
  assert_int_equal(read_text(text, &b, &err), CLV_DATA_LOSS);
  assert_says(&err, why);
  assert_null(b.attempts);
}

static void inconsistent_records_are_refused(void **state) {
  (void)state;
  assert_refused(ALLOW("1", "1", "master", "100"), "egress.jsonl:1: attempt 1 has not begun");
  assert_refused(ATTEMPT("2"), "attempt 2 after 0");
  assert_refused(ATTEMPT("1") ALLOW("1", "2", "master", "100"), "jsonl:2: allowance 2 after 0");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "master", "9") SETTLE("1", "1", "10"),
                 "allowance 1 is settled, but");
  assert_refused(ATTEMPT("1") SETTLE("1", "1", "10"), "allowance 1 is settled, but");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "master", "9") END("1", "0", "9"),
                 "the sums of the end");
  assert_refused(ATTEMPT("1") END("1", "0", "0") ALLOW("1", "1", "master", "9"), "attempt 1");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "master", "9223372036854775807")
                     ALLOW("1", "2", "master", "1"),
                 "out of range");
}

/* The writer writes each line in one form. A line with the same meaning in another form was not
 * written by this program, and is refused. */
static void non_canonical_lines_are_refused(void **state) {
  (void)state;
  assert_refused("{}\n", "begins with no known event");
  assert_refused("{\"event\":\"none\"}\n", "begins with no known event");
  assert_refused(ATTEMPT("1") HEAD("settle", "2.000", "1") ",\"id\":1,\"bytes\":2,\"tensors\":1}\n",
                 "'tensors'");
  assert_refused(ATTEMPT("1") ALLOW("1", "01", "master", "1"), "not written as");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "mas\\u0074er", "1"), "not written as");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "mas\tter", "1"), "not written as");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "master", "99999999999999999999"), "'bytes'");
  assert_refused(ATTEMPT("1") ALLOW("1", "1", "master", "-1"), "'bytes'");
}

static void missing_or_irregular_record_file_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  const char *path = write_scratch_file("egress.jsonl", ATTEMPT("1"), strlen(ATTEMPT("1")));
  assert_ok(clv_egress_read(path, &b, &err), &err);
  assert_int_equal(b.n_attempts, 1);
  assert_int_equal(clv_egress_read(at("none"), &b, &err), CLV_NOT_FOUND);
  path = write_scratch_file("damaged.jsonl", "x\n", 2);
  assert_int_equal(clv_egress_read(path, &b, &err), CLV_DATA_LOSS);
  assert_says(&err, "damaged.jsonl:1: ");
  assert_says(&err, "move the file away and keep it; the next attempt begins a new one");
  assert_int_equal(clv_egress_read(scratch, &b, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ended_attempt_counts_settled_bytes),
      cmocka_unit_test(look_belongs_to_its_attempt_and_occurs_once),
      cmocka_unit_test(unsettled_allowance_counts_in_full),
      cmocka_unit_test(worker_hops_are_not_in_the_master_total),
      cmocka_unit_test(truncated_last_line_is_ignored),
      cmocka_unit_test(inconsistent_records_are_refused),
      cmocka_unit_test(non_canonical_lines_are_refused),
      cmocka_unit_test(missing_or_irregular_record_file_is_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
