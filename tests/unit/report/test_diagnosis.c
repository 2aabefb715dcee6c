/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the diagnosis of a session for numbers of every kind: what the session waits for, and why.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/report/report.h"

/* Stage s1 at worker-1 and s2 at worker-2 of one session, and another identity's session at
 * worker-2. */
static clv_status_module modules[] = {
    {.index = 1, .name = "s1", .is_stage = true, .calls_per_s = 4},
    {.index = 2, .name = "s2", .is_stage = true, .calls_per_s = 4},
    {.index = 0, .calls_per_s = 1}};
static clv_status_link links[2][2];
static clv_status_session session_at_1, sessions_at_2[2];
static clv_status_worker workers[2];
static const clv_status_view view = {.title = "t", .clock = "", .n_workers = 2, .workers = workers};

static clv_status_session make_session(const char *name, const char *id, clv_status_module *m,
                                       clv_status_link *l, uint32_t n_links) {
  clv_status_session s = {
      .name = name, .identity = "spiffe://a/b", .is_attached = true, .n_contexts = 1};
  snprintf(s.id, sizeof s.id, "%s", id);
  s.n_modules = 1;
  s.modules = m;
  s.n_links = n_links;
  s.links = l;
  return s;
}

static clv_status_worker make_worker(const char *name, clv_status_session *sessions, size_t n) {
  return (clv_status_worker){.name = name,
                             .address = "",
                             .has_outcome = true,
                             .own_name = "",
                             .software = "",
                             .device = "",
                             .isa = "",
                             .n_sessions = n,
                             .sessions = sessions};
}

static int set_up(void **state) {
  (void)state;
  memset(links, 0, sizeof links);
  links[0][0] = links[1][0] = (clv_status_link){.peer = "", .round_trip_s = 0.0002};
  links[0][1] = (clv_status_link){.peer = "worker-2", .round_trip_s = 0.0002};
  links[1][1] = (clv_status_link){.peer = "worker-1", .round_trip_s = 0.0002};
  session_at_1 = make_session("films", "aa", &modules[0], links[0], 2);
  sessions_at_2[0] = make_session("films", "aa", &modules[1], links[1], 2);
  sessions_at_2[1] = make_session("heavy", "bb", &modules[2], NULL, 0);
  session_at_1.idle_share = sessions_at_2[0].idle_share = sessions_at_2[1].idle_share = 1;
  workers[0] = make_worker("worker-1", &session_at_1, 1);
  workers[1] = make_worker("worker-2", sessions_at_2, 2);
  return 0;
}

static void assert_diagnosis(const clv_status_session *s, const char *want) {
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  clv_status_diagnosis(&view, s == &session_at_1 ? &workers[0] : &workers[1], s, &got);
  assert_string_equal(got.data, want);
}

static void set_shares(clv_status_session *s, double busy, double idle, double core_wait) {
  s->busy_share = busy;
  s->idle_share = idle;
  s->core_wait_share = core_wait;
}

static void session_without_work_names_the_missing_step(void **state) {
  (void)state;
  session_at_1.is_attached = false;
  assert_diagnosis(&session_at_1,
                   "no master is attached; the session is closed when its lease is over");
  session_at_1.is_attached = true;
  session_at_1.n_modules = 0;
  assert_diagnosis(&session_at_1, "nothing is loaded yet");
  session_at_1.n_modules = 1;
  session_at_1.n_contexts = 0;
  modules[0].calls_per_s = 0;
  assert_diagnosis(&session_at_1, "idle: its master asks for nothing");
  links[0][0].round_trip_s = 4;
  assert_diagnosis(&session_at_1,
                   "idle: its master asks for nothing, and has not answered for 4.0 s");
  modules[0].calls_per_s = 4;
}

static void busy_session_reports_its_computing_share(void **state) {
  (void)state;
  set_shares(&session_at_1, 0.99, 0.01, 0);
  assert_diagnosis(&session_at_1, "computing 99 %");
  set_shares(&session_at_1, 0.70, 0.30, 0);
  links[0][0].waiting_share = 0.3;
  assert_diagnosis(
      &session_at_1,
      "computing 70 %, waiting for the master 30 %: it computes or reads data (link in use "
      "0 %, 0.2 ms round trip)");
}

static void slow_link_is_named_with_rate_and_round_trip(void **state) {
  (void)state;
  set_shares(&session_at_1, 0.2, 0.8, 0);
  links[0][0] = (clv_status_link){.peer = "",
                                  .round_trip_s = 0.082,
                                  .waiting_share = 0.71,
                                  .waits_per_s = 2,
                                  .receiving_share = 0.6,
                                  .sending_share = 0.05,
                                  .transfer_bytes_in_per_s = 1.5e6};
  assert_diagnosis(&session_at_1,
                   "waiting for the master 71 %: link 12 Mbit/s in, 82 ms round trip");
  links[0][0].sending_share = 0.3;
  links[0][0].transfer_bytes_out_per_s = 125e6;
  assert_diagnosis(
      &session_at_1,
      "waiting for the master 71 %: link 12 Mbit/s in, 1.0 Gbit/s out, 82 ms round trip");
}

static void long_round_trip_to_a_peer_is_named(void **state) {
  (void)state;
  links[1][1].waiting_share = 0.8;
  links[1][1].round_trip_s = links[1][0].round_trip_s = 0.08;
  links[1][1].waits_per_s = 6;
  links[1][0].waits_per_s = 3;
  links[1][0].waiting_share = 0.2;
  assert_diagnosis(&sessions_at_2[0],
                   "stage s2 waits for s1 on worker-1 80 %: 80 ms round trip, 9.0 waits a second");
}

/* A program need not be a pipeline, so the index of a module does not tell for which module the
 * program waits. */
static void program_module_is_named_instead_of_a_stage(void **state) {
  (void)state;
  static clv_status_module encoder[] = {{.index = 1, .name = "encoder", .calls_per_s = 4}};
  static clv_status_module decoder[] = {{.index = 2, .name = "decoder", .calls_per_s = 4}};
  session_at_1.modules = encoder;
  sessions_at_2[0].modules = decoder;
  links[1][1].waiting_share = 0.8;
  links[1][1].round_trip_s = 0.08;
  links[1][1].waits_per_s = 9;
  assert_diagnosis(&sessions_at_2[0],
                   "module decoder waits for worker-1 80 %: 80 ms round trip, 9.0 waits a second");
  links[1][1] = (clv_status_link){.peer = "worker-1", .waiting_share = 0.9};
  session_at_1.busy_share = 0.95;
  session_at_1.idle_share = 0.05;
  assert_diagnosis(&sessions_at_2[0], "waiting 100 %: module encoder on worker-1 computes 95 %");
}

/* A wait that is shorter than a round trip is not attributed to a link. */
static void waits_shorter_than_a_round_trip_blame_the_master(void **state) {
  (void)state;
  links[1][0].waiting_share = 0.9;
  links[1][0].round_trip_s = 0.08;
  links[1][0].waits_per_s = 50;
  assert_diagnosis(
      &sessions_at_2[0],
      "waiting for the master 90 %: it computes or reads data (link in use 0 %, 80 ms round "
      "trip)");
}

/* A PING that waits in the queue of a busy host does not make its link the cause. */
static void slow_ping_of_a_busy_host_does_not_blame_the_link(void **state) {
  (void)state;
  set_shares(&session_at_1, 0.75, 0.25, 0);
  links[1][0].waiting_share = 0.97;
  links[1][0].round_trip_s = 0.013;
  links[1][0].waits_per_s = 52;
  assert_diagnosis(&sessions_at_2[0], "waiting 100 %: stage s1 on worker-1 computes 75 %");
  set_shares(&session_at_1, 0.6, 0.4, 0);
  assert_diagnosis(&sessions_at_2[0],
                   "waiting for the master 97 %: 13 ms round trip, 52 waits a second");
}

/* The master waits for worker-1, too. So the diagnosis of worker-2 names the stage that computes at
 * worker-1, whichever link brought the last packets to worker-2. */
static void computing_stage_is_named_as_the_cause(void **state) {
  (void)state;
  set_shares(&session_at_1, 0.95, 0.05, 0);
  links[1][0].waiting_share = 0.6;
  links[1][1].waiting_share = 0.4;
  assert_diagnosis(&sessions_at_2[0], "waiting 100 %: stage s1 on worker-1 computes 95 %");
  set_shares(&session_at_1, 0.1, 0.1, 0.8);
  assert_diagnosis(&sessions_at_2[0],
                   "waiting 100 %: stage s1 on worker-1 waits for the cores there 80 %");
}

static void waiting_peer_is_named_with_its_own_wait(void **state) {
  (void)state;
  links[1][1].waiting_share = 0.9;
  assert_diagnosis(
      &sessions_at_2[0],
      "stage s2 waits for s1 on worker-1 90 %: it takes its time (link in use 0 %, 0.2 ms "
      "round trip)");
  links[1][1].waits_per_s = 4;
  links[1][1].bytes_in_per_s = 1.5e6;
  links[1][1].bytes_out_per_s = 1e5;
  assert_diagnosis(&sessions_at_2[0],
                   "stage s2 waits for s1 on worker-1 90 %: 12 Mbit/s in, 800 kbit/s out, 0.2 ms "
                   "round trip; it takes its time or the link is slow");
  links[1][1].missing_bytes_in = 2 << 20;
  assert_diagnosis(
      &sessions_at_2[0],
      "stage s2 waits for s1 on worker-1 90 %: 2.0 MiB still to receive, 0.2 ms round trip");
  links[0][0].waiting_share = 0.9;
  assert_diagnosis(&sessions_at_2[0],
                   "stage s2 waits for s1 on worker-1 90 %, which itself waits for the master");
}

static void ongoing_wait_is_reported(void **state) {
  (void)state;
  session_at_1.n_waiting_calls = 3;
  assert_diagnosis(&session_at_1, "waiting 100 %: nothing has come, 3 calls wait for values");
  session_at_1.n_links = 1;
  session_at_1.n_waiting_calls = 1;
  assert_diagnosis(
      &session_at_1,
      "waiting for the master 100 %: nothing has come, 0.2 ms round trip, 1 call waits for "
      "values");
  session_at_1.n_links = 2;
  session_at_1.n_waiting_calls = 0;
  links[0][1].missing_bytes_in = 3 << 20;
  links[0][1].transfer_bytes_in_per_s = 1.5e6;
  assert_diagnosis(
      &session_at_1,
      "waiting for worker-2 100 %: 3.0 MiB still to receive, link 12 Mbit/s in, 0.2 ms round "
      "trip");
  links[0][0].round_trip_s = 1.4;
  links[0][1].n_outages = 3;
  links[0][1].last_outage_s = 4.2;
  links[0][1].last_outage_age_s = 720;
  links[0][1].outage_s = 8;
  assert_diagnosis(&session_at_1,
                   "waiting for the master 100 %: nothing has come, not even an answer for 1.4 s");
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_status_text(&view, 80, &text);
  assert_non_null(strstr(text.data, "link to the master  no answer for 1.4 s  in"));
  assert_non_null(strstr(text.data, "NO CONNECTION for 8.0 s"));
  assert_non_null(strstr(text.data, "3 outages, the last of 4.2 s 12 min ago"));
  assert_non_null(strstr(text.data, "link to worker-2  0.2 ms round trip  in"));
  links[0][0].round_trip_s = 0.0002;
  links[0][1].missing_bytes_in = 0;
  links[0][1].missing_bytes_out = 3 << 20;
  assert_diagnosis(&session_at_1,
                   "waiting for worker-2 100 %: 3.0 MiB still to send, 0.2 ms round trip");
  links[0][1].missing_bytes_out = 0;
  workers[1].error = "no connection";
  assert_diagnosis(&session_at_1, "waiting 100 %: nothing has come; worker-2 does not answer");
}

static void core_wait_names_the_computing_session(void **state) {
  (void)state;
  set_shares(&sessions_at_2[0], 0.2, 0.2, 0.6);
  set_shares(&sessions_at_2[1], 0.9, 0.1, 0);
  assert_diagnosis(&sessions_at_2[0], "waiting for the cores 60 %: session heavy computes");
  workers[1].n_sessions = 1; /* another identity's sessions are not shown */
  assert_diagnosis(&sessions_at_2[0],
                   "waiting for the cores 60 %: a session of another identity computes");
}

static void core_wait_names_at_most_three_sessions(void **state) {
  (void)state;
  static clv_status_session five_sessions[5];
  static const char *const want[] = {
      "waiting for the cores 60 %: session b computes",
      "waiting for the cores 60 %: sessions b, c compute",
      "waiting for the cores 60 %: sessions b, c, d compute",
      "waiting for the cores 60 %: sessions b, c, d, ... compute",
  };
  static const char *const names[] = {"a", "b", "c", "d", "e"};
  for (uint32_t i = 0; i < CLV_COUNT(five_sessions); i++) {
    five_sessions[i] = make_session(names[i], names[i], &modules[1], NULL, 0);
    set_shares(&five_sessions[i], 0.3, 0.1, 0.6);
  }
  workers[1].sessions = five_sessions;
  for (uint32_t n = 2; n <= CLV_COUNT(five_sessions); n++) {
    workers[1].n_sessions = n;
    assert_diagnosis(&five_sessions[0], want[n - 2]);
  }
}

/* Impossible numbers from a worker, such as NaN, do not break the report. */
static void impossible_numbers_do_not_break_the_report(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  static const double impossible_numbers[] = {-1, 1e300, 0.0 / 0.0, 1.0 / 0.0};
  for (size_t i = 0; i < CLV_COUNT(impossible_numbers); i++) {
    set_shares(&session_at_1, impossible_numbers[i], impossible_numbers[i], impossible_numbers[i]);
    links[0][0].waiting_share = links[0][0].round_trip_s = links[0][0].waits_per_s =
        impossible_numbers[i];
    links[0][0].receiving_share = links[0][0].transfer_bytes_in_per_s = impossible_numbers[i];
    session_at_1.age_s = impossible_numbers[i];
    workers[0].uptime_s = workers[0].interval_s = impossible_numbers[i];
    clv_status_text(&view, 80, &got);
    clv_status_json(&view, &got);
  }
  assert_false(got.failed);
}

#define TEST(f) cmocka_unit_test_setup(f, set_up)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(session_without_work_names_the_missing_step),
      TEST(busy_session_reports_its_computing_share),
      TEST(slow_link_is_named_with_rate_and_round_trip),
      TEST(long_round_trip_to_a_peer_is_named),
      TEST(waits_shorter_than_a_round_trip_blame_the_master),
      TEST(slow_ping_of_a_busy_host_does_not_blame_the_link),
      TEST(computing_stage_is_named_as_the_cause),
      TEST(program_module_is_named_instead_of_a_stage),
      TEST(waiting_peer_is_named_with_its_own_wait),
      TEST(ongoing_wait_is_reported),
      TEST(core_wait_names_the_computing_session),
      TEST(core_wait_names_at_most_three_sessions),
      TEST(impossible_numbers_do_not_break_the_report),
  };
  return cmocka_run_group_tests_name("diagnosis", tests, NULL, NULL);
}
