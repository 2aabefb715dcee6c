/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the gate, which permits or denies each tensor before the master sends it. The table `cases`
 * lists the tensors of a session: the kind, the finding (what the tensor shows), and the names of
 * both in session file, policy and record. Each tensor is sent with every permission, and without
 * each permission that it needs.
 */
#include "master/egress/egress_int.h"
#include "tests/unit/files.h"

static clv_remote_spec workers[] = {{.name = "w1", .identity = "spiffe://w1"}};
static clv_stage_spec stages[] = {{.name = "front"}, {.name = "rest"}};

/* ---- a session, a policy and a record for one sent tensor ------------------------------------ */

typedef struct gate_case {
  clv_egress_kind egress_kind;
  clv_findings findings;
  const char *privacy_finding; /* finding that the session's `privacy` must permit; NULL: none */
  const char *policy_kind; /* value that the policy's key `kinds` must list; NULL: none is needed */
  const char *policy_key;  /* key of the policy that must be true; NULL: none */
  const char *record_word; /* word for the tensor in the record */
  cleave_sending_kind sending_kind;
} gate_case;

#define FRONT_KNOWN CLV_FINDING_FRONT_KNOWN
static const gate_case cases[] = {
    {CLV_EGRESS_INPUT, CLV_FINDING_RAW_INPUT, "RAW INPUT", NULL, "raw", "input",
     CLEAVE_SENDING_LEAF},
    {CLV_EGRESS_INPUT, CLV_FINDING_MIXED, NULL, NULL, "raw", "input", CLEAVE_SENDING_LEAF},
    {CLV_EGRESS_LABELS, CLV_FINDING_LABELS, "LABELS", NULL, "labels", "labels",
     CLEAVE_SENDING_LEAF},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_MIXED, NULL, "activation", NULL, "activation",
     CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_PICTURE, NULL, "activation", "pictures", "activation",
     CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, FRONT_KNOWN, "FRONT KNOWN", "activation", "front_known", "activation",
     CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_TOKENS, "TOKENS", "activation", "tokens", "tokens",
     CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_TOKENS | FRONT_KNOWN, "TOKENS", "activation", "tokens",
     "tokens", CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_RAW_INPUT, "RAW INPUT", "activation", "raw", "input",
     CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_ACTIVATION, CLV_FINDING_RAW_INPUT | CLV_FINDING_PICTURE, "RAW INPUT", "activation",
     "raw", "input", CLEAVE_SENDING_VALUE},
    {CLV_EGRESS_GRADIENT, CLV_FINDING_MIXED, NULL, "gradient", NULL, "gradient",
     CLEAVE_SENDING_GRADIENT},
    {CLV_EGRESS_GRADIENT, CLV_FINDING_LABELS_READABLE, "LABELS READABLE", "gradient",
     "labels_readable", "gradient", CLEAVE_SENDING_GRADIENT},
    {CLV_EGRESS_CACHED, CLV_FINDING_MIXED, NULL, "cached", NULL, "cached", CLEAVE_SENDING_CACHED},
    {CLV_EGRESS_CACHED, CLV_FINDING_TOKENS, "TOKENS", "cached", "tokens", "cached",
     CLEAVE_SENDING_CACHED},
    {CLV_EGRESS_WEIGHTS, CLV_FINDING_MIXED, NULL, "weights", NULL, "weights",
     CLEAVE_SENDING_WEIGHTS},
};

/* Returns a policy that permits every kind except `kind` and every key except `key`. NULL: no
 * exception. */
static clv_policy *make_policy_without(const char *kind, const char *key) {
  static const char *const kinds[] = {"activation", "gradient", "weights", "cached"};
  static const char *const keys[] = {"raw", "tokens", "labels", "labels_readable", "front_known"};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_policy *p = NULL;
  clv_err err;
  clv_bytes_puts(&text, "version: 1\nworkers: [\"spiffe://w1\"]\nkinds: [other");
  text.len -= strlen("other");
  for (size_t i = 0, n = 0; i < CLV_COUNT(kinds); i++)
    if (!kind || strcmp(kinds[i], kind) != 0)
      clv_bytes_printf(&text, "%s%s", n++ ? ", " : "", kinds[i]);
  clv_bytes_printf(&text,
                   "]\nlargest_shape: [64, 128]\ndtypes: [f32, i64]\nbytes_per_epoch: 100000\n"
                   "pictures: %s\nallow:\n",
                   key && strcmp(key, "pictures") == 0 ? "false" : "true");
  for (size_t i = 0; i < CLV_COUNT(keys); i++)
    clv_bytes_printf(&text, "  %s: %s\n", keys[i],
                     key && strcmp(keys[i], key) == 0 ? "false" : "true");
  assert_ok(clv_alloc(1, sizeof *p, &p, &err), &err);
  assert_ok(clv_policy_config_parse("/p.yaml", (const char *)text.data, text.len, &p->config, &err),
            &err);
  return p;
}

/* A session whose egress table has one row. The test sends the tensor of that row once, and writes
 * it to a record. */
typedef struct gate_test {
  clv_session_config config;
  clv_egress_row egress_row;
  clv_policy *policy;
  cleave_sending sending;
  cleave_error error;
  char recorded_word[32]; /* word in the record; "": nothing was sent */
} gate_test;

static void make_sending(gate_test *s, const gate_case *c) {
  bool has_loss = c->egress_kind == CLV_EGRESS_LABELS;
  *s = (gate_test){.config = {.workers = workers,
                              .n_workers = 1,
                              .stages = stages,
                              .n_stages = 2,
                              .privacy = {true, true, true, true, true}},
                   .egress_row = {.name = "the tensor",
                                  .kind = c->egress_kind,
                                  .findings = c->findings,
                                  .stage = has_loss ? 2 : 0,
                                  .dtype = CLV_F32,
                                  .shape = CLV_SHAPE(4, 3),
                                  .n_hiding_layers = CLV_POLICY_NO_PATH},
                   .sending = {.kind = c->sending_kind,
                               .module = has_loss ? CLV_LOSS_NAME : "front",
                               .worker = "w1",
                               .name = "weight",
                               .dtype = CLEAVE_F32,
                               .rank = 2,
                               .shape = {4, 3},
                               .bytes = 48}};
}

static void read_word(const char *path, gate_test *s) {
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary book = {0};
  clv_err err;
  assert_ok(clv_egress_read(path, &book, &err), &err);
  s->recorded_word[0] = '\0';
  for (size_t i = 0; i < book.n_rows; i++)
    if (book.rows[i].settled_bytes)
      snprintf(s->recorded_word, sizeof s->recorded_word, "%s",
               clv_egress_kind_name((clv_egress_kind)book.rows[i].key.kind));
}

static cleave_status send_through_gate(gate_test *s) {
  const clv_egress_line attempt_line = {
      .start = {.command = "train", .session = "s", .run = "runs/s"}};
  clv_egress_key flow_key = {
      .from = CLV_EGRESS_MASTER,
      .to = "w1",
      .identity = "spiffe://w1",
      .kind = clv_egress_record_kind(s->egress_row.kind, s->egress_row.findings),
      .stage = "front",
      .dtype = "f32",
      .shape = {1, {3}}};
  clv_egress_record *record = NULL;
  clv_egress_flow *flow = NULL;
  clv_err err;
  const char *path = at("egress.jsonl");
  unlink(path);
  assert_ok(clv_egress_open(path, &attempt_line, &record, &err), &err);
  assert_ok(clv_egress_flow_new(record, &flow_key, false, &flow, &err), &err);
  clv_egress_set_step_bytes(flow, 48);
  clv_row_flow flows[] = {{.flow = flow}};
  clv_state_flow state = {.flow = flow, .name = "weight"};
  clv_egress_flow *failures[] = {flow};
  clv_gate gate = {.config = &s->config,
                   .rows = &s->egress_row,
                   .n_rows = 1,
                   .flows = flows,
                   .state_flows = &state,
                   .n_state_flows = 1,
                   .failure_flows = failures,
                   .max_samples = 4,
                   .policy = s->policy};
  cleave_status status = clv_gate_check_sending(&gate, &s->sending, &s->error);
  assert_ok(clv_egress_close(record, 0, &err), &err);
  read_word(path, s);
  return status;
}

/* ---- tensors that the policy permits or denies ----------------------------------------------- */

static void permitted_tensor_is_recorded_under_its_kind(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_policy_freep) clv_policy *policy = make_policy_without(NULL, NULL);
    gate_test s;
    make_sending(&s, &cases[i]);
    s.policy = policy;
    if (send_through_gate(&s) != CLEAVE_OK) fail_msg("case %zu: %s", i, s.error.text);
    assert_string_equal(s.recorded_word, cases[i].record_word);
  }
}

static void finding_without_session_key_is_denied(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    gate_test s;
    make_sending(&s, &cases[i]);
    memset(&s.config.privacy, 0, sizeof s.config.privacy);
    assert_int_equal(send_through_gate(&s), cases[i].privacy_finding ? CLEAVE_DENIED : CLEAVE_OK);
    if (!cases[i].privacy_finding) continue;
    assert_non_null(strstr(s.error.text, cases[i].privacy_finding));
    assert_string_equal(s.recorded_word, "");
  }
}

static void tensor_without_policy_kind_or_key_is_denied(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_policy_freep)
    clv_policy *no_kind = make_policy_without(cases[i].policy_kind, NULL);
    CLV_AUTO(clv_policy_freep) clv_policy *no_key = make_policy_without(NULL, cases[i].policy_key);
    char wanted[64];
    gate_test s;
    make_sending(&s, &cases[i]);
    s.policy = no_kind;
    assert_int_equal(send_through_gate(&s), cases[i].policy_kind ? CLEAVE_DENIED : CLEAVE_OK);
    snprintf(wanted, sizeof wanted, "permits no %s",
             cases[i].policy_kind ? cases[i].policy_kind : "");
    if (cases[i].policy_kind) assert_non_null(strstr(s.error.text, wanted));
    make_sending(&s, &cases[i]);
    s.policy = no_key;
    assert_int_equal(send_through_gate(&s), cases[i].policy_key ? CLEAVE_DENIED : CLEAVE_OK);
    snprintf(wanted, sizeof wanted, "%s is not true",
             cases[i].policy_key ? cases[i].policy_key : "");
    if (cases[i].policy_key) assert_non_null(strstr(s.error.text, wanted));
    assert_true(!cases[i].policy_key || !s.recorded_word[0]);
  }
}

/* The plan and the gate ask the policy about the same tensor, so both must get the same answer. */
static void plan_and_gate_get_the_same_policy_verdict(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_policy_freep) clv_policy *p = make_policy_without(NULL, cases[i].policy_key);
    gate_test s;
    clv_err err = {0};
    make_sending(&s, &cases[i]);
    s.policy = p;
    clv_policy_tensor t = clv_egress_row_tensor(&s.config, &s.egress_row);
    clv_code plan_verdict = clv_policy_check_tensor(p, &t, &err);
    assert_int_equal(send_through_gate(&s) == CLEAVE_OK, plan_verdict == CLV_OK);
    if (plan_verdict != CLV_OK) assert_non_null(strstr(s.error.text, err.text));
  }
}

static void uncertain_finding_needs_no_session_key(void **state) {
  (void)state;
  gate_test s;
  make_sending(&s, &cases[6]);
  memset(&s.config.privacy, 0, sizeof s.config.privacy);
  s.egress_row.look_findings = CLV_FINDING_TOKENS;
  clv_row_flow flows[] = {{0}};
  clv_gate gate = {.config = &s.config,
                   .rows = &s.egress_row,
                   .n_rows = 1,
                   .flows = flows,
                   .max_samples = 4,
                   .uncertain_findings = CLV_FINDING_TOKENS};
  assert_int_equal(clv_gate_check_sending(&gate, &s.sending, &s.error), CLEAVE_DENIED);
  /* TOKENS is an uncertain finding, which alone does not refuse the tensor. The gate refuses it
   * only because the record has no flow for it. */
  assert_non_null(strstr(s.error.text, "is not in the plan's table"));
  gate.uncertain_findings = 0;
  assert_int_equal(clv_gate_check_sending(&gate, &s.sending, &s.error), CLEAVE_DENIED);
  assert_non_null(strstr(s.error.text, "would show TOKENS"));
}

/* ---- tensors that fit no row of the egress table --------------------------------------------- */

static void tensor_unlike_its_plan_row_is_denied(void **state) {
  (void)state;
  gate_test s;
#define REFUSED(change)                                                      \
  do {                                                                       \
    make_sending(&s, &cases[3]);                                             \
    change;                                                                  \
    assert_int_equal(send_through_gate(&s), CLEAVE_DENIED);                  \
    assert_non_null(strstr(s.error.text, "is not in the plan's table for")); \
    assert_string_equal(s.recorded_word, "");                                \
  } while (0)
  REFUSED(s.sending.dtype = CLEAVE_BF16);
  REFUSED(s.sending.rank = 1);
  REFUSED(s.sending.shape[1] = 4);
  REFUSED(s.sending.shape[0] = 5);
  REFUSED(s.sending.worker = "w2");
  REFUSED(s.sending.module = "rest");
  REFUSED(s.sending.module = "none");
  REFUSED(s.sending.kind = CLEAVE_SENDING_GRADIENT);
  REFUSED(s.sending.kind = CLEAVE_SENDING_CACHED);
  REFUSED(s.sending.kind = CLEAVE_SENDING_LEAF);
  REFUSED((s.egress_row.kind = CLV_EGRESS_CACHED, s.sending.kind = CLEAVE_SENDING_CACHED,
           s.sending.input = 1));
  REFUSED((s.egress_row.kind = CLV_EGRESS_WEIGHTS, s.sending.kind = CLEAVE_SENDING_WEIGHTS,
           s.sending.name = "bias"));
  REFUSED((s.egress_row.kind = CLV_EGRESS_WEIGHTS, s.sending.kind = CLEAVE_SENDING_WEIGHTS,
           s.sending.optimizer = true));
}

/* The refusal names what was sent: the stage, the item of state, the type, the shape and the
 * largest number of samples. */
static void refusal_of_unplanned_tensor_names_what_differs(void **state) {
  (void)state;
  gate_test s;
  make_sending(&s, &cases[3]);
  s.sending.name = "";
  s.sending.dtype = CLEAVE_BF16;
  assert_int_equal(send_through_gate(&s), CLEAVE_DENIED);
  assert_string_equal(s.error.text,
                      "egress refused: the output of stage 'front', bf16 [4, 3], is not in the "
                      "plan's table for w1, for at most 4 samples: compare it with the table that "
                      "`plan` prints");
  make_sending(&s, &cases[3]);
  s.egress_row.kind = CLV_EGRESS_WEIGHTS;
  s.sending.kind = CLEAVE_SENDING_WEIGHTS;
  s.sending.name = "bias";
  assert_int_equal(send_through_gate(&s), CLEAVE_DENIED);
  assert_string_equal(s.error.text,
                      "egress refused: state of stage 'front', bias, f32 [4, 3], is not in the "
                      "plan's table for w1: compare it with the table that `plan` prints");
}

static void failure_without_a_flow_for_its_worker_is_denied(void **state) {
  (void)state;
  gate_test s;
  make_sending(&s, &cases[3]);
  s.sending.kind = CLEAVE_SENDING_FAILURE;
  assert_int_equal(send_through_gate(&s), CLEAVE_OK);
  s.sending.worker = "w2";
  assert_int_equal(send_through_gate(&s), CLEAVE_DENIED);
  assert_non_null(strstr(s.error.text, "no record of failures for w2"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(permitted_tensor_is_recorded_under_its_kind),
      cmocka_unit_test(finding_without_session_key_is_denied),
      cmocka_unit_test(tensor_without_policy_kind_or_key_is_denied),
      cmocka_unit_test(plan_and_gate_get_the_same_policy_verdict),
      cmocka_unit_test(uncertain_finding_needs_no_session_key),
      cmocka_unit_test(tensor_unlike_its_plan_row_is_denied),
      cmocka_unit_test(refusal_of_unplanned_tensor_names_what_differs),
      cmocka_unit_test(failure_without_a_flow_for_its_worker_is_denied),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
