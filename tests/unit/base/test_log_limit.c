/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the limit of log lines that a peer causes, on the test's own clock: how many lines pass,
 * and that every suppressed line is counted, even if the limiter evicts the peer from its table.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/base.h"

enum { MINUTE = 60000 };

typedef struct suppression_report {
  uint64_t n_reports, n_suppressed;
  char peer[128], kind[64];
} suppression_report;

static void on_suppressed(void *user, const clv_log_entry *e) {
  suppression_report *t = user;
  t->n_reports++;
  t->n_suppressed += e->n_dropped;
  snprintf(t->peer, sizeof t->peer, "%s", e->peer);
  snprintf(t->kind, sizeof t->kind, "%s", e->event_kind);
}

static suppression_report last_report;
static clv_log_limiter limiter;

static int reset_limiter(void **state) {
  (void)state;
  last_report = (suppression_report){0};
  limiter = (clv_log_limiter){.report_dropped = on_suppressed, .user = &last_report};
  return 0;
}

static unsigned pass_lines(const char *peer, const char *what, unsigned burst, unsigned n,
                           uint64_t now) {
  unsigned n_passed = 0;
  clv_log_source s = {.peer = peer, .event_kind = what, .burst = burst};
  for (unsigned i = 0; i < n; i++)
    n_passed += clv_log_limiter_pass(&limiter, CLV_LOG_WARN, "audit", &s, now);
  return n_passed;
}

static void only_ten_lines_pass_in_a_minute(void **state) {
  (void)state;
  assert_int_equal(pass_lines("a", "denied", 0, 1298, 0), 10);
  assert_int_equal(pass_lines("a", "denied", 0, 5, MINUTE - 1), 0);
  assert_int_equal(last_report.n_reports, 0);
  assert_int_equal(pass_lines("a", "denied", 0, 20, MINUTE), 10);
  assert_int_equal(last_report.n_reports, 1);
  assert_int_equal(last_report.n_suppressed, 1293);
  assert_string_equal(last_report.peer, "a");
  assert_string_equal(last_report.kind, "denied");
}

static void each_peer_and_kind_has_its_own_limit(void **state) {
  (void)state;
  assert_int_equal(pass_lines("a", "denied", 0, 100, 0), 10);
  assert_int_equal(pass_lines("a", "opened", 0, 100, 0), 10);
  assert_int_equal(pass_lines("b", "denied", 0, 100, 0), 10);
  assert_int_equal(pass_lines("ade", "nied", 0, 3, 0), 3);
  char longer[400];
  memset(longer, 'x', sizeof longer);
  longer[399] = '\0';
  assert_int_equal(pass_lines(longer, "denied", 0, 100, 0), 10);
  /* this source differs from the one before only after the bytes that an entry stores */
  longer[398] = 'y';
  assert_int_equal(pass_lines(longer, "denied", 0, 100, 0), 10);
}

static void tick_reports_suppressed_lines(void **state) {
  (void)state;
  assert_int_equal(pass_lines("a", "denied", 0, 30, 5), 10);
  clv_log_limiter_tick(&limiter, MINUTE);
  assert_int_equal(last_report.n_reports, 0);
  clv_log_limiter_tick(&limiter, MINUTE + 5);
  assert_int_equal(last_report.n_suppressed, 20);
  clv_log_limiter_tick(&limiter, 3 * MINUTE);
  assert_int_equal(last_report.n_reports, 1);
}

/* A source may pass `burst` lines in its first minute. If it continues to log, ten lines pass in
 * each later minute. */
static void burst_limit_applies_only_to_the_first_minute(void **state) {
  (void)state;
  assert_int_equal(pass_lines("a", "opened", 60, 100, 0), 60);
  assert_int_equal(pass_lines("a", "opened", 60, 100, MINUTE), 10);
  assert_int_equal(pass_lines("a", "opened", 60, 10, 2 * MINUTE), 10);
  assert_int_equal(pass_lines("a", "opened", 60, 100, 3 * MINUTE), 60);
}

/* One source logs without pause for an hour. Ten of its lines pass in each minute. */
static void endless_source_passes_600_lines_an_hour(void **state) {
  (void)state;
  uint64_t n_passed = 0, n_sent = 0;
  for (uint64_t at = 0; at < 60 * MINUTE; at += 100, n_sent += 10)
    n_passed += pass_lines("a", "denied", 0, 10, at);
  clv_log_limiter_tick(&limiter, 61 * MINUTE);
  assert_int_equal(n_passed, 600);
  assert_int_equal(last_report.n_reports, 60);
  assert_int_equal(n_passed + last_report.n_suppressed, n_sent);
}

static void eviction_loses_no_suppressed_count(void **state) {
  (void)state;
  uint64_t n_passed = 0, n_sent = 0;
  char peer[32];
  for (unsigned i = 0; i < 5000; i++, n_sent += 25) {
    snprintf(peer, sizeof peer, "spiffe://x/%u", i);
    n_passed += pass_lines(peer, "denied", 0, 25, i);
  }
  clv_log_limiter_tick(&limiter, 10 * MINUTE);
  assert_int_equal(n_passed, 50000);
  assert_int_equal(n_passed + last_report.n_suppressed, n_sent);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(only_ten_lines_pass_in_a_minute, reset_limiter),
      cmocka_unit_test_setup(each_peer_and_kind_has_its_own_limit, reset_limiter),
      cmocka_unit_test_setup(tick_reports_suppressed_lines, reset_limiter),
      cmocka_unit_test_setup(burst_limit_applies_only_to_the_first_minute, reset_limiter),
      cmocka_unit_test_setup(endless_source_passes_600_lines_an_hour, reset_limiter),
      cmocka_unit_test_setup(eviction_loses_no_suppressed_count, reset_limiter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
