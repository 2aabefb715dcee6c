/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests models with branches and with several inputs: `plan` says which values cross each cut,
 * which inputs each worker receives, and what these values and inputs show to the worker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"

static clv_session_config *parse_session(const char *privacy, const char *stages) {
  clv_session_config *c = NULL;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
                   "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
                   "data: {format: npy, root: /data, inputs: [ids, extra, lengths], "
                   "train: [i, e, l, y]}\nloss: {kind: cross_entropy}\n"
                   "privacy: {%s}\ntrain: {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\nstages:\n%s",
                   privacy, stages);
  if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return c;
}

/* Makes the blueprint of a session over twelve tokens, four numbers and a length. */
static clv_code make_blueprint(const clv_session_config *c, clv_blueprint **ret, clv_err *err) {
  static const clv_model_inputs inputs = {.n = 3,
                                          .inputs = {{"ids", CLV_I64, {2, {1, 12}}},
                                                     {"extra", CLV_F32, {2, {1, 4}}},
                                                     {"lengths", CLV_I64, {1, {1}}}}};
  return clv_blueprint_new_of_inputs(c, &inputs, CLV_I64, ret, err);
}

#define FRONT                                                                              \
  "  - {name: front, at: master, layers: [{op: embedding, rows: 9, out: 4}, {op: linear, " \
  "out: 4, name: x}, {op: linear, out: 4, name: q}]}\n"
#define ATTEND "{op: attention, heads: 2, name: a, from: [q, x, x, lengths]}"
#define HEAD                                                                                   \
  "  - {name: head, at: master, layers: [{op: mean, dim: 1, name: m}, {op: concat, from: [m, " \
  "extra]}, {op: linear, out: 3}]}\n"

static void assert_table(const char *privacy, const char *middle_stage, const char *want) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0}, got = {0};
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  clv_err err;
  clv_bytes_printf(&stages, FRONT "%s" HEAD, middle_stage);
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_session(privacy, stages.data);
  if (make_blueprint(c, &b, &err) != CLV_OK) fail_msg("%s", err.text);
  clv_blueprint_append_egress_text(b, &got);
  if (strncmp(got.data, want, strlen(want)) != 0) fail_msg("\n%s\nis not\n%s", got.data, want);
}

/* The egress table lists each value that is sent to a worker or back and each input sent to a
 * worker, but no inputs that are read at the master. */
static void egress_table_lists_every_sent_tensor(void **state) {
  (void)state;
  assert_table("tokens_readable: true",
               "  - {name: middle, at: w1, layers: [" ATTEND ", {op: add, from: [a, x]}]}\n",
               "LENGTHS 'lengths', for stage middle | [8] | i64 | 64 | w1 spiffe://t/w1\n"
               "activation of stage 'front' (2 values) | [8, 96] | f32 | 3072 | w1 spiffe://t/w1 | "
               "TOKENS\n"
               "  of layer 1 'x' | [8, 12, 4]\n"
               "  of layer 2 'q' | [8, 12, 4]\n"
               "gradient for stage 'middle' (layer 4) | [8, 12, 4] | f32 | 1536 | w1 "
               /* stage head reads input `extra`, only 4 of the 16 positions of a record: PICTURE */
               "spiffe://t/w1 | PICTURE\n");
  assert_table("raw_input_leaves: true",
               "  - {name: middle, at: w1, layers: [" ATTEND
               ", {op: embedding, rows: 9, out: 4, "
               "name: again, from: [ids]}, {op: add, from: [a, again]}]}\n",
               "RAW INPUT 'ids', for stage middle | [8, 12] | i64 | 768 | w1 spiffe://t/w1\n"
               "LENGTHS 'lengths', for stage middle | [8] | i64 | 64 | w1 spiffe://t/w1\n"
               "activation of stage 'front' (2 values) | ");
}

static void assert_refused(const char *middle_layers, const char *input_name) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0}, want = {0};
  clv_blueprint *b = NULL;
  clv_err err = {0};
  clv_bytes_printf(&stages,
                   FRONT "  - {name: tail, at: w1, layers: [" ATTEND
                         ", {op: mean, dim: 1, name: m}, %s, {op: linear, out: 3}]}\n",
                   middle_layers);
  clv_bytes_printf(&want,
                   "worker 'w1' is sent the records: layers of stage 'tail' read '%s'; read it at "
                   "master, or set privacy.raw_input_leaves: true",
                   input_name);
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c =
      parse_session("tokens_readable: true, labels_readable: true", stages.data);
  assert_int_equal(make_blueprint(c, &b, &err), CLV_INVALID);
  if (strncmp(err.text, "/s.yaml:12:", 11) || !strstr(err.text, want.data))
    fail_msg("%s", err.text);
  assert_null(b);
}

/* Lengths that a worker's layer also reads as an input need the permission that other inputs need.
 */
static void worker_inputs_need_permission(void **state) {
  (void)state;
  assert_refused("{op: concat, from: [m, extra]}", "extra");
  assert_refused(
      "{op: embedding, rows: 13, out: 4, name: e, from: [lengths]}, {op: add, name: sum, from: "
      "[m, e]}]}\n  - {name: head, at: master, layers: [{op: concat, from: [sum, extra]}",
      "lengths");
}

static void plan_reports_sent_lengths(void **state) {
  (void)state;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, json = {0};
  clv_err err;
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_session(
      "tokens_readable: true", FRONT "  - {name: middle, at: w1, layers: [" ATTEND "]}\n" HEAD);
  if (make_blueprint(c, &b, &err) != CLV_OK) fail_msg("%s", err.text);
  clv_privacy_describe(b, false, &text);
  clv_privacy_describe(b, true, &json);
  assert_non_null(strstr(text.data, "lengths: of every record's sequence are sent"));
  assert_non_null(strstr(json.data, "\"lengths\":\"leave\""));
  /* the finding comes from the tokens, not from the lengths */
  assert_int_equal(b->stages[0].output_findings, CLV_FINDING_TOKENS);
  assert_int_equal(b->stages[1].n_model_inputs, 1);
  assert_int_equal(b->stages[2].model_inputs[0], 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(egress_table_lists_every_sent_tensor),
      cmocka_unit_test(worker_inputs_need_permission),
      cmocka_unit_test(plan_reports_sent_lengths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
