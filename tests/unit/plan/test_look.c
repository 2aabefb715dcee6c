/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a session with a look: the check that measures how much of records and labels can be
 * reconstructed from sent tensors. Tests the findings of rows, refusals, limits of the policy, and
 * texts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"

static const clv_shape words = {2, {1, 12}};

static clv_session_config *parse_session(const char *privacy) {
  clv_session_config *c = NULL;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(
      &text,
      "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
      "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
      "data: {format: npy, root: /data, train: [a, b]}\nloss: {kind: cross_entropy}\n"
      "privacy: {%s}\ntrain: {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\nstages:\n"
      "  - {name: front, at: master, layers: [{op: embedding, rows: 9, out: 8}, {op: flatten}, "
      "{op: linear, out: 8}]}\n"
      "  - {name: body, at: w1, layers: [{op: relu}]}\n"
      "  - {name: head, at: master, layers: [{op: linear, out: 2}]}\n",
      privacy);
  if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return c;
}

static clv_blueprint *make_blueprint(const clv_session_config *c) {
  clv_blueprint *b = NULL;
  clv_err err;
  if (clv_blueprint_new(c, &words, CLV_I64, &b, &err) != CLV_OK) fail_msg("%s", err.text);
  return b;
}

static clv_look make_look(double tokens, double labels) {
  clv_look look = {.has_run = true, .n_records = 64, .n_draws = 1};
  look.results[CLV_LOOK_TOKENS] =
      (clv_look_result){.state = CLV_LOOK_RAN, .figure = tokens, .method = "the nearest vector"};
  look.results[CLV_LOOK_LABELS] =
      (clv_look_result){.state = CLV_LOOK_RAN, .figure = labels, .method = "sign"};
  return look;
}

static const clv_egress_row *find_row(const clv_blueprint *b, clv_egress_kind kind) {
  for (size_t i = 0; i < b->n_egress; i++)
    if (b->egress[i].kind == kind) return &b->egress[i];
  fail_msg("no such row");
  return NULL;
}

static void readable_data_adds_a_finding_to_its_rows(void **state) {
  (void)state;
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_session("tokens_readable: true, labels_readable: true");
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c);
  CLV_AUTO(clv_bytes_done) clv_bytes before = {0}, after = {0}, page = {0};
  clv_look look = make_look(.25, .9);
  clv_err err;
  clv_blueprint_append_egress_text(b, &before);
  clv_blueprint_add_look(b, &look);
  if (clv_blueprint_check_privacy(b, &err) != CLV_OK) fail_msg("%s", err.text);
  assert_int_equal(find_row(b, CLV_EGRESS_ACTIVATION)->look_findings, CLV_FINDING_TOKENS);
  assert_int_equal(find_row(b, CLV_EGRESS_GRADIENT)->findings, CLV_FINDING_LABELS_READABLE);
  /* the text must not contain the shares that the attacks read, because they change in training */
  clv_blueprint_append_egress_text(b, &after);
  assert_string_equal(before.data, after.data);
  clv_blueprint_describe_egress(b, false, &page);
  assert_non_null(strstr(page.data, "tokens 0.25 by the nearest vector, above 0.2; labels 0.90"));
  assert_non_null(strstr(page.data, "READABLE by w1"));
}

static void figure_at_its_limit_is_no_finding(void **state) {
  (void)state;
  for (int is_above_limit = 0; is_above_limit < 2; is_above_limit++) {
    CLV_AUTO(clv_session_config_freep)
    clv_session_config *c = parse_session("tokens_readable: true");
    CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c);
    clv_look look = make_look(.2 + .01 * is_above_limit, .3 + .01 * is_above_limit);
    clv_blueprint_add_look(b, &look);
    assert_int_equal(find_row(b, CLV_EGRESS_ACTIVATION)->look_findings,
                     is_above_limit ? CLV_FINDING_TOKENS : 0);
    assert_int_equal(find_row(b, CLV_EGRESS_GRADIENT)->look_findings,
                     is_above_limit ? CLV_FINDING_LABELS_READABLE : 0);
  }
}

static void readable_data_needs_a_privacy_key(void **state) {
  (void)state;
  static const struct {
    const char *privacy;
    double tokens, labels;
    const char *refusal; /* expected refusal; NULL: permitted */
  } cases[] = {
      {"tokens_readable: false", .2, .3, NULL},
      /* the share that an attack reads is reported; only a policy can limit it */
      {"tokens_readable: false", .21, .31, NULL},
      {"tokens_readable: false", .89, .89, NULL},
      {"tokens_readable: false", .9, .3, "/s.yaml:12:22: worker 'w1' can read tokens from the act"},
      {"tokens_readable: true", .9, .3, NULL},
      {"tokens_readable: true", .2, .9, "/s.yaml:12:22: worker 'w1' can read labels from the gra"},
      {"labels_readable: true", .2, .9, NULL},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_session(cases[i].privacy);
    CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(c);
    clv_look look = make_look(cases[i].tokens, cases[i].labels);
    clv_err err = {0};
    clv_blueprint_add_look(b, &look);
    clv_code code = clv_blueprint_check_privacy(b, &err);
    assert_int_equal(code, cases[i].refusal ? CLV_INVALID : CLV_OK);
    if (cases[i].refusal && !strstr(err.text, cases[i].refusal)) fail_msg("%s", err.text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(readable_data_adds_a_finding_to_its_rows),
      cmocka_unit_test(figure_at_its_limit_is_no_finding),
      cmocka_unit_test(readable_data_needs_a_privacy_key),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
