/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that plan, policy and record have the same words for a direct hop, a tensor that one worker
 * sends to another without the master.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/egress/egress_int.h"
#include "master/plan/plan_int.h"

typedef struct hop_case {
  /* layers of worker w1, which receives the records and sends its output directly to w2 */
  const char *first_worker_layers;
  /* words of the plan for the tensor that w1 sends to w2 */
  const char *plan_words;
  /* key of a policy that must be true before w1 may send the tensor to w2 */
  const char *policy_key;
  const char *record_words,
      *gradient_words; /* words of the run's record for that tensor and for its gradient */
} hop_case;

static const hop_case cases[] = {
    {"{op: scale, factor: 2}", "RAW INPUT", "raw", "input", "gradient"},
    {"{op: linear, out: 5}", "FRONT KNOWN", "front_known", "activation", "gradient"},
};

static const clv_model_inputs features = {1, {{"input", CLV_F32, {2, {1, 16}}}}};

static clv_blueprint *make_blueprint(const char *layers, clv_session_config **ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_blueprint *b = NULL;
  clv_err err = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
                   "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
                   "  w2: {address: \"h:2\", identity: \"spiffe://t/w2\"}\n"
                   "data: {root: /data, format: npy, train: [x, y]}\n"
                   "loss: {kind: cross_entropy}\ntransfer: direct\n"
                   "privacy: {raw_input_leaves: true, labels_readable: true}\n"
                   "train: {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\nstages:\n"
                   "  - {name: one, at: w1, layers: [%s]}\n"
                   "  - {name: two, at: w2, layers: [{op: linear, out: 4}]}\n"
                   "  - {name: three, at: master, layers: [{op: linear, out: 3}]}\n",
                   layers);
  if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, ret, &err) != CLV_OK ||
      clv_blueprint_new_of_inputs(*ret, &features, CLV_I64, &b, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return b;
}

/* Returns a policy that permits all keys but denied_key, and RAW INPUT only if `allows_raw`. */
static clv_policy *make_policy_without(const char *denied_key, bool allows_raw) {
  static const char *const keys[] = {"tokens", "labels", "labels_readable", "front_known"};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_policy *p = NULL;
  clv_err err;
  clv_bytes_printf(&text,
                   "version: 1\nworkers: [\"spiffe://t/w1\", \"spiffe://t/w2\"]\n"
                   "kinds: [activation, gradient, weights]\nlargest_shape: [64, 128]\n"
                   "dtypes: [f32, i64]\nbytes_per_epoch: 1000000000\nallow:\n  raw: %s\n",
                   allows_raw ? "true" : "false");
  for (size_t i = 0; i < CLV_COUNT(keys); i++)
    clv_bytes_printf(&text, "  %s: %s\n", keys[i],
                     strcmp(keys[i], denied_key) == 0 ? "false" : "true");
  assert_int_equal(clv_alloc(1, sizeof *p, &p, &err), CLV_OK);
  assert_int_equal(
      clv_policy_config_parse("/p.yaml", (const char *)text.data, text.len, &p->config, &err),
      CLV_OK);
  return p;
}

/* Checks only the tensor that w1 sends to w2 against the policy, because the policy may also refuse
 * to send the records to w1. */
static clv_code check_hop_alone(clv_blueprint *b, clv_policy *p, clv_err *err) {
  const clv_planned_sends no_planned_sends = {0};
  b->policy = p;
  return clv_blueprint_check_policy(b, &no_planned_sends, err);
}

static void hop_names_match_in_plan_policy_and_record(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
    CLV_AUTO(clv_blueprint_freep)
    clv_blueprint *b = make_blueprint(cases[i].first_worker_layers, &c);
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    CLV_AUTO(clv_policy_freep) clv_policy *none = make_policy_without(cases[i].policy_key, false);
    CLV_AUTO(clv_policy_freep)
    clv_policy *enough = make_policy_without("none", strcmp(cases[i].policy_key, "raw") == 0);
    clv_egress_row activation_row = clv_blueprint_hop_row(b, 0, false),
                   gradient_row = clv_blueprint_hop_row(b, 0, true);
    char words[CLV_FINDINGS_TEXT_BYTES], name[160];
    clv_err err = {0};
    assert_string_equal(clv_findings_format(activation_row.findings, words), cases[i].plan_words);
    assert_string_equal(
        clv_egress_kind_name(clv_egress_record_kind(activation_row.kind, activation_row.findings)),
        cases[i].record_words);
    assert_string_equal(
        clv_egress_kind_name(clv_egress_record_kind(gradient_row.kind, gradient_row.findings)),
        cases[i].gradient_words);
    assert_int_equal(clv_blueprint_describe(b, false, &text, &err), CLV_OK);
    assert_non_null(strstr((const char *)text.data, cases[i].plan_words));
    snprintf(name, sizeof name, "direct %s of stage 'one'", cases[i].plan_words);
    assert_string_equal(activation_row.name, name);
    assert_int_equal(check_hop_alone(b, none, &err), CLV_INVALID);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, cases[i].policy_key));
    if (check_hop_alone(b, enough, &err) != CLV_OK) fail_msg("%s", err.text);
  }
}

/* A policy that permits the findings of a worker's stage also permits the direct hop from that
 * worker, because until version 0.8 policies named a hop by the stage's findings. */
static void policy_that_permits_the_stage_permits_its_hop(void **state) {
  (void)state;
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = make_blueprint(cases[1].first_worker_layers, &c);
  CLV_AUTO(clv_policy_freep) clv_policy *raw = make_policy_without("front_known", true);
  clv_err err = {0};
  if (check_hop_alone(b, raw, &err) != CLV_OK) fail_msg("%s", err.text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hop_names_match_in_plan_policy_and_record),
      cmocka_unit_test(policy_that_permits_the_stage_permits_its_hop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
