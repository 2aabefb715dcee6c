/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how two answers of a worker become rates and shares.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/watch/status_int.h"

static clv_remote_spec workers[] = {{.name = "w1", .address = "a:1"},
                                    {.name = "w2", .address = "b:2"}};
static clv_stage_spec stages[] = {{.name = "s0", .worker = -1}, {.name = "s1", .worker = 0}};
static const clv_session_config config = {.name = "films",
                                          .n_workers = 2,
                                          .workers = workers,
                                          .n_stages = 2,
                                          .stages = stages,
                                          .loss = {.worker = 0}};

static clv_wire_module_status modules[2][2];
static clv_wire_link_status links[2][1];
static clv_wire_session_status sessions[2][1];
static clv_wire_status_reply replies[2]; /* [BEFORE, NOW] replies of a worker */
static clv_status_buffers buffers;

enum { BEFORE, NOW };

static const clv_wire_module_status sample_modules[2][2] = {
    {{.module_index = 1,
      .module_name = "",
      .n_forwards = 10,
      .n_backwards = 10,
      .compute_ns = 1000},
     {.module_index = 2, .module_name = ""}},
    {{.module_index = 1,
      .module_name = "s1",
      .n_forwards = 14,
      .n_backwards = 13,
      .n_evals = 1,
      .compute_ns = 1000 + 500000000},
     {.module_index = 2, .module_name = "(loss)"}}};
static const clv_wire_link_status sample_links[2] = {
    {.peer_name = "", .bytes_in = 1000, .n_node_waits = 5, .node_wait_ns = 7, .sent_bytes = 50},
    {.peer_name = "",
     .bytes_in = 3000,
     .round_trip_us = 82000,
     .receiving_ns = 400000000,
     .received_bytes = 800000,
     .sent_bytes = 1000050,
     .sending_ns = 250000000,
     .last_pong_ns = 2000000000,
     .n_node_waits = 9,
     .node_wait_ns = 7 + 300000000,
     .n_outages = 2,
     .last_outage_age_ms = 1500,
     .last_outage_ms = 250,
     .current_outage_ms = 125}};

static void fill_session(int reply_index) {
  sessions[reply_index][0] =
      (clv_wire_session_status){.session_name = "films",
                                .owner_identity = "spiffe://a/b",
                                .age_ms = 2000 + 2000u * (unsigned)reply_index,
                                .n_modules = 2,
                                .modules = modules[reply_index],
                                .n_links = 1,
                                .links = links[reply_index]};
  memset(&sessions[reply_index][0].session_id, 0xab, sizeof sessions[reply_index][0].session_id);
}

static void fill_reply(int reply_index) {
  replies[reply_index] =
      (clv_wire_status_reply){.uptime_ms = 10000 + 2000u * (unsigned)reply_index,
                              .worker_name = "w1",
                              .device_name = "cpu",
                              .has_about = true,
                              .about = {.software = "", .isa = "", .unix_ms = 5000},
                              .certificate_expiry_s = 5 + 86400,
                              .n_sessions = 1,
                              .sessions = sessions[reply_index]};
}

static int set_up_replies(void **state) {
  (void)state;
  memcpy(modules, sample_modules, sizeof modules);
  memcpy(links, sample_links, sizeof links);
  for (int i = BEFORE; i <= NOW; i++) {
    fill_session(i);
    fill_reply(i);
  }
  sessions[BEFORE][0].busy_ns = 1000000000;
  sessions[NOW][0].busy_ns = 1500000000;
  sessions[NOW][0].idle_ns = 400000000;
  sessions[NOW][0].share_wait_ns = 100000000;
  return 0;
}

static int free_replies(void **state) {
  (void)state;
  clv_status_buffers_done(&buffers);
  return 0;
}

static clv_status_worker make_status(uint32_t worker, bool has_earlier_reply) {
  clv_status_worker w = {0};
  clv_err err = {0};
  if (clv_status_compare(&config, worker, has_earlier_reply ? &replies[BEFORE] : NULL,
                         &replies[NOW], &buffers, &w, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return w;
}

static void assert_near(double got, double want) {
  if (got < want - 1e-9 || got > want + 1e-9) fail_msg("%g, not %g", got, want);
}

static void two_replies_give_session_rates_and_shares(void **state) {
  (void)state;
  clv_status_worker w = make_status(0, true);
  const clv_status_session *s = &w.sessions[0];
  assert_near(w.interval_s, 2);
  assert_near(w.certificate_days, 1);
  assert_string_equal(s->id, "abababababababababababababababab");
  assert_near(s->busy_share, 0.5);
  assert_near(s->idle_share, 0.4);
  assert_near(s->core_wait_share, 0.1);
  assert_near(s->modules[0].calls_per_s, 4);
  assert_near(s->modules[0].computing_share, 0.5);
}

static void two_replies_give_link_rates(void **state) {
  (void)state;
  clv_status_worker w = make_status(0, true);
  const clv_status_link *l = &w.sessions[0].links[0];
  assert_near(l->bytes_in_per_s, 1000);
  assert_near(l->round_trip_s, 0.082);
  assert_near(l->receiving_share, 0.2); /* a share of the two seconds between the replies */
  assert_near(l->transfer_bytes_in_per_s, 2e6);
  assert_near(l->waiting_share, 0.3); /* a share of the second that the thread reports */
  assert_near(l->waits_per_s, 2);
  assert_near(l->sending_share, 0); /* 0, because the other worker has sent no earlier reply */
  assert_true(l->n_outages == 2 && l->last_outage_age_s == 1.5);
  assert_true(l->last_outage_s == 0.25 && l->outage_s == 0.125);
}

static void peer_rates_need_two_measurements(void **state) {
  (void)state;
  /* most of this wait was before the first reply, so it must not count */
  links[NOW][0].node_wait_ns = 7 + 900000000;
  assert_near(make_status(0, true).sessions[0].links[0].waiting_share, 0.4);
  free_replies(NULL);
  links[BEFORE][0].last_pong_ns = 1000000000;
  const clv_status_link l = make_status(0, true).sessions[0].links[0];
  assert_near(l.sending_share, 0.25);
  assert_near(l.transfer_bytes_out_per_s, 4e6);
}

static void assert_module(const clv_status_module *m, const char *name, bool is_stage) {
  if (name)
    assert_string_equal(m->name, name);
  else
    assert_null(m->name);
  assert_int_equal(m->is_stage, is_stage);
}

static void modules_of_a_run_have_stage_names(void **state) {
  (void)state;
  const clv_status_session *s = make_status(0, true).sessions;
  assert_module(&s->modules[0], "s1", true);
  assert_module(&s->modules[1], "loss", true);
  free_replies(NULL);
  /* a master of an older version sends no names */
  modules[NOW][0].module_name = modules[NOW][1].module_name = "";
  s = make_status(0, true).sessions;
  assert_module(&s->modules[0], "s1", true);
  assert_module(&s->modules[1], "loss", true);
  free_replies(NULL);
  s = make_status(1, true).sessions; /* the worker does not have these modules */
  assert_module(&s->modules[0], NULL, false);
}

static void program_modules_keep_their_own_names(void **state) {
  (void)state;
  modules[NOW][0].module_name = "s1";
  sessions[NOW][0].session_name = "other"; /* the session may be a run of another session file */
  const clv_status_session *s = make_status(0, true).sessions;
  assert_module(&s->modules[0], "s1", false);
  assert_module(&s->modules[1], "(loss)", false);
  free_replies(NULL);
  /* a session with the name of the session file, whose modules belong to a program */
  sessions[NOW][0].session_name = "films";
  modules[NOW][0].module_name = "encoder";
  assert_module(&make_status(0, true).sessions[0].modules[0], "encoder", false);
}

/* The rates of a session that is new, or whose worker was restarted, count from its beginning. */
static void new_session_rates_count_from_its_start(void **state) {
  (void)state;
  clv_status_worker w = make_status(0, false);
  assert_near(w.interval_s, 12);
  assert_near(w.sessions[0].links[0].bytes_in_per_s, 3000 / 4.0);
  assert_near(w.sessions[0].busy_share, 0.75);
  free_replies(NULL);
  sessions[NOW][0].attempt_number = 2;
  assert_near(make_status(0, true).sessions[0].links[0].bytes_in_per_s, 3000 / 4.0);
  free_replies(NULL);
  sessions[NOW][0].attempt_number = 0;
  memset(&replies[NOW].incarnation, 1, sizeof replies[NOW].incarnation);
  assert_near(make_status(0, true).interval_s, 12);
}

static void counter_reset_yields_zero_rate(void **state) {
  (void)state;
  links[NOW][0].bytes_in = 5;
  sessions[NOW][0].busy_ns = 0;
  replies[NOW].uptime_ms = 1;
  clv_status_worker w = make_status(0, true);
  assert_near(w.interval_s, 0);
  assert_near(w.sessions[0].links[0].bytes_in_per_s, 0);
  assert_near(w.sessions[0].busy_share, 0);
  assert_near(w.sessions[0].idle_share, 0.8);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up_replies, free_replies)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(two_replies_give_session_rates_and_shares),
      TEST(two_replies_give_link_rates),
      TEST(peer_rates_need_two_measurements),
      TEST(modules_of_a_run_have_stage_names),
      TEST(program_modules_keep_their_own_names),
      TEST(new_session_rates_count_from_its_start),
      TEST(counter_reset_yields_zero_rate),
  };
  return cmocka_run_group_tests_name("status_make", tests, NULL, NULL);
}
