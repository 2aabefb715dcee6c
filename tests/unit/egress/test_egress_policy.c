/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the egress policy of a host: who must own its file, who must have signed it, and what it
 * permits. The files are made with openssl's commands, as POLICY.md says.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "master/egress/egress_int.h"
#include "tests/unit/files.h"

static const char text[] =
    "version: 1\n"
    "workers: [\"spiffe://acme/w1\"]\n"
    "kinds: [activation, gradient]\n"
    "largest_shape: [64, 128, 8]\n"
    "dtypes: [f32]\n"
    "bytes_per_epoch: 1000\n"
    "allow:\n"
    "  raw: true\n";

static void run_shell(const char *command) {
  char all[1200];
  snprintf(all, sizeof all, "cd %s && (%s) > shell.log 2>&1", scratch, command);
  if (system(all) != 0) fail_msg("%s", all);
}

/* Makes an empty folder for a policy. If the test does not run as root, prints that the test is
 * skipped and returns false. */
static bool make_empty_folder(void) {
  if (geteuid() != 0) {
    print_message("skip policy: only root can make files that are root's\n");
    return false;
  }
  run_shell("rm -rf etc && mkdir -m 755 etc");
  write_scratch_file("etc/egress.policy.yaml", text, sizeof text - 1);
  run_shell("chmod 644 etc/egress.policy.yaml");
  return true;
}

static void assert_opens(bool must_be_signed, const char *approver) {
  CLV_AUTO(clv_policy_freep) clv_policy *p = NULL;
  clv_err err;
  assert_ok(clv_policy_open(at("etc"), must_be_signed, &p, &err), &err);
  assert_non_null(p);
  assert_string_equal(clv_policy_approver(p), approver);
  assert_int_equal(strlen(clv_policy_sha256(p)), 64);
}

static void assert_open_refused(bool must_be_signed, const char *why) {
  CLV_AUTO(clv_policy_freep) clv_policy *p = NULL;
  clv_err err = {0};
  assert_int_equal(clv_policy_open(at("etc"), must_be_signed, &p, &err), CLV_INVALID);
  assert_null(p);
  assert_says(&err, why);
}

static void missing_policy_file_gives_no_policy(void **state) {
  (void)state;
  clv_policy *p = NULL;
  clv_err err;
  assert_ok(clv_policy_open(at("nowhere"), true, &p, &err), &err);
  assert_null(p);
  if (!make_empty_folder()) return;
  run_shell("rm etc/egress.policy.yaml");
  assert_ok(clv_policy_open(at("etc"), true, &p, &err), &err);
  assert_null(p);
}

static void policy_writable_by_others_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *attack_command, *why;
  } attacks[] = {
      {"chmod 664 etc/egress.policy.yaml", "etc/egress.policy.yaml must be owned by root"},
      {"chmod 646 etc/egress.policy.yaml", "with mode 0646"},
      {"chown 1000 etc/egress.policy.yaml", "is owned by user 1000"},
      {"chmod 775 etc", "must be owned by root"},
      {"chown 1000 etc", "is owned by user 1000"},
      {"rm etc/egress.policy.yaml && chmod 775 etc", "must be owned by root"},
      {"rm etc/egress.policy.yaml && chmod 757 etc", "with mode 0757"},
      {"rm etc/egress.policy.yaml && chown 1000 etc", "is owned by user 1000"},
      {"rm etc/egress.policy.yaml && touch etc/egress.policy.yaml.sig", "put the policy back"},
      {"mv etc/egress.policy.yaml x && ln -s ../x etc/egress.policy.yaml",
       "is a symbolic link: put the file"},
      {"rm -rf y && mv etc y && ln -s y etc", "etc is a symbolic link: put"},
      {"rm etc/egress.policy.yaml && mkdir etc/egress.policy.yaml", "not a plain file"},
      {"rm etc/egress.policy.yaml && mkfifo etc/egress.policy.yaml", "not a plain file"},
      {"rm -rf etc && touch etc", "not a plain file or folder"},
      {": > etc/egress.policy.yaml", "the file is empty"},
      {"head -c 2000000 /dev/zero > etc/egress.policy.yaml", "more than 1048576 bytes"},
  };
  for (size_t i = 0; i < CLV_COUNT(attacks); i++) {
    if (!make_empty_folder()) return;
    run_shell(attacks[i].attack_command);
    assert_open_refused(false, attacks[i].why);
  }
}

/* ---- signatures of policies ------------------------------------------------------------------ */

static void make_signers(void) {
  run_shell(
      "printf 'extendedKeyUsage=emailProtection\\n' > ext\n"
      "for ca in approver-ca session-ca; do openssl req -x509 -newkey ec -pkeyopt "
      "ec_paramgen_curve:P-256 -nodes -keyout $ca.key -out $ca.pem -days 30 -subj /CN=$ca; "
      "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $ca-a.key -out "
      "$ca-a.csr -subj '/CN=Dr. Yes'; openssl x509 -req -in $ca-a.csr -CA $ca.pem -CAkey $ca.key "
      "-CAcreateserial -days 30 -extfile ext -out $ca-a.pem; done");
}

static void sign_with(const char *ca) {
  char command[400];
  snprintf(command, sizeof command,
           "openssl cms -sign -binary -in etc/egress.policy.yaml -signer %s-a.pem -inkey %s-a.key "
           "-outform PEM -out etc/egress.policy.yaml.sig && chmod 644 etc/*.sig",
           ca, ca);
  run_shell(command);
}

static void policy_for_root_needs_a_valid_signature(void **state) {
  (void)state;
  if (!make_empty_folder()) return;
  assert_opens(false, "");
  assert_open_refused(true, "egress.policy.yaml.sig is missing: root could write any policy");
  make_signers();
  sign_with("approver-ca");
  assert_open_refused(true, "approver-ca.pem is missing");
  run_shell("cp approver-ca.pem etc/ && chmod 644 etc/approver-ca.pem");
  assert_opens(true, "CN=Dr. Yes");
  assert_opens(false, "CN=Dr. Yes");
  run_shell("chmod 666 etc/approver-ca.pem");
  assert_open_refused(true, "approver-ca.pem must be owned by root");
  run_shell("chmod 644 etc/approver-ca.pem && sed -i s/1000/9000/ etc/egress.policy.yaml");
  assert_open_refused(true, "egress.policy.yaml.sig: the signature does not hold");
  /* a signature that exists must be valid, even where none is required */
  assert_open_refused(false, "the signature does not hold");
  run_shell("sed -i s/9000/1000/ etc/egress.policy.yaml");
  assert_opens(true, "CN=Dr. Yes");
  sign_with("session-ca");
  assert_open_refused(true, "unable to get local issuer certificate");
}

/* ---- tensors that a policy permits ----------------------------------------------------------- */

static clv_policy *parse_policy(void) {
  clv_policy *p = NULL;
  clv_err err;
  assert_ok(clv_alloc(1, sizeof *p, &p, &err), &err);
  assert_ok(clv_policy_config_parse("/p.yaml", text, sizeof text - 1, &p->config, &err), &err);
  return p;
}

static clv_policy_tensor make_tensor(void) {
  return (clv_policy_tensor){.name = "activation of stage 'a'",
                             .kind = CLV_EGRESS_ACTIVATION,
                             .worker = "w1",
                             .identity = "spiffe://acme/w1",
                             .dtype = CLV_F32,
                             .shape = CLV_SHAPE(64, 100)};
}

static void assert_denied(clv_policy_tensor t, const char *message) {
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy();
  clv_err err = {0};
  assert_int_equal(clv_policy_check_tensor(p, &t, &err), CLV_INVALID);
  assert_string_equal(err.text, message);
  assert_int_equal(clv_policy_charge(p, &t, 1, &err), CLV_INVALID);
  assert_int_equal(p->sent_bytes, 0);
}

static void tensor_within_the_policy_is_permitted(void **state) {
  (void)state;
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy();
  clv_err err;
  clv_policy_tensor t = make_tensor();
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  t.findings = CLV_FINDING_RAW_INPUT;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  t.kind = CLV_EGRESS_INPUT;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  t = make_tensor();
  t.kind = CLV_EGRESS_FAILURE;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  t.identity = "spiffe://acme/w2";
  assert_ok(clv_policy_check_tensor(NULL, &t, &err), &err);
}

static void cached_rows_need_the_kind_cached(void **state) {
  (void)state;
  clv_policy_tensor t = make_tensor();
  t.kind = CLV_EGRESS_CACHED;
  assert_denied(
      t,
      "/p.yaml:3:1: the policy permits no cached: activation of stage 'a' to w1; place that "
      "stage at the master, or ask for cached under `kinds`");
}

static void tensor_outside_the_policy_is_denied(void **state) {
  (void)state;
  clv_policy_tensor t = make_tensor();
  t.identity = "spiffe://acme/w1/";
  assert_denied(t,
                "/p.yaml:2:1: the policy does not name spiffe://acme/w1/ (w1), which would receive "
                "activation of stage 'a': use another worker, or ask for this one under `workers`");
  t = make_tensor();
  t.kind = CLV_EGRESS_WEIGHTS;
  assert_denied(
      t,
      "/p.yaml:3:1: the policy permits no weights: activation of stage 'a' to w1; place that "
      "stage at the master, or ask for weights under `kinds`");
  t.kind = CLV_EGRESS_STATE;
  assert_denied(
      t,
      "/p.yaml:3:1: the policy permits no weights: activation of stage 'a' to w1; place that "
      "stage at the master, or ask for weights under `kinds`");
  t = make_tensor();
  t.dtype = CLV_I64;
  assert_denied(
      t,
      "/p.yaml:5:1: the policy permits no i64: activation of stage 'a' to w1; ask for i64 under "
      "`dtypes`");
  t = make_tensor();
  t.shape = CLV_SHAPE(64, 128, 8, 1);
  assert_denied(
      t,
      "/p.yaml:4:1: activation of stage 'a' to w1 is [64, 128, 8, 1], and largest_shape is "
      "[64, 128, 8]: make batches or the layer smaller, or ask for a larger shape");
  t.shape = CLV_SHAPE(65, 1);
  assert_denied(
      t,
      "/p.yaml:4:1: activation of stage 'a' to w1 is [65, 1], and largest_shape is [64, 128, "
      "8]: make batches or the layer smaller, or ask for a larger shape");
}

static void tensors_with_forbidden_findings_are_denied(void **state) {
  (void)state;
  clv_policy_tensor t = make_tensor();
  t.kind = CLV_EGRESS_LABELS;
  assert_denied(
      t,
      "/p.yaml:7:1: the policy does not permit activation of stage 'a' to w1: allow.labels "
      "is not true; put the loss at the master (loss.at), or ask for allow.labels: true");
  t = make_tensor();
  t.findings = CLV_FINDING_TOKENS;
  assert_denied(
      t,
      "/p.yaml:7:1: the policy does not permit activation of stage 'a' to w1: allow.tokens "
      "is not true; keep more layers at the master, or ask for allow.tokens: true");
  t = make_tensor();
  t.findings = CLV_FINDING_LABELS_READABLE;
  assert_denied(t,
                "/p.yaml:7:1: the policy does not permit activation of stage 'a' to w1: "
                "allow.labels_readable is not true; keep more layers at the master, or ask for "
                "allow.labels_readable: true");
  t.findings = CLV_FINDING_FRONT_KNOWN;
  assert_denied(t,
                "/p.yaml:7:1: the policy does not permit activation of stage 'a' to w1: "
                "allow.front_known is not true; keep more layers at the master, or ask for "
                "allow.front_known: true");
}

static void picture_and_layer_limits_are_enforced_when_set(void **state) {
  (void)state;
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy();
  clv_policy_tensor t = make_tensor();
  clv_err err;
  /* each finding needs its own key: `raw` alone does not permit the finding TOKENS */
  t.findings = CLV_FINDING_RAW_INPUT | CLV_FINDING_TOKENS;
  assert_denied(
      t,
      "/p.yaml:7:1: the policy does not permit activation of stage 'a' to w1: allow.tokens "
      "is not true; keep more layers at the master, or ask for allow.tokens: true");
  t.findings = CLV_FINDING_PICTURE;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  p->config->allows_pictures = false;
  assert_int_equal(clv_policy_check_tensor(p, &t, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "to w1: pictures is not true"));
  t.findings = 0;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
  p->config->min_layers_at_home = 2;
  t.n_hiding_layers = 1;
  assert_int_equal(clv_policy_check_tensor(p, &t, &err), CLV_INVALID);
  assert_non_null(strstr(err.text,
                         "has 1 hiding layer at the master on its shortest path, and "
                         "min_layers_at_home is 2"));
  t.n_hiding_layers = 2;
  assert_ok(clv_policy_check_tensor(p, &t, &err), &err);
}

static void layer_moves_to_a_worker_only_if_the_policy_releases_it(void **state) {
  (void)state;
  static const char release_line[] = "release: [fc1, \"layer1.*\"]\n";
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy(), *released = NULL;
  char full_text[sizeof text + sizeof release_line];
  clv_err err;
  snprintf(full_text, sizeof full_text, "%s%s", text, release_line);
  assert_ok(clv_alloc(1, sizeof *released, &released, &err), &err);
  assert_ok(
      clv_policy_config_parse("/p.yaml", full_text, strlen(full_text), &released->config, &err),
      &err);
  assert_ok(clv_policy_check_release(NULL, "fc1", "w1", &err), &err);
  assert_int_equal(clv_policy_check_release(p, "fc1", "w1", &err), CLV_INVALID);
  assert_says(&err,
              "/p.yaml:2:1: the policy does not permit layer 'fc1' to move from the master to w1");
  assert_ok(clv_policy_check_release(released, "fc1", "w1", &err), &err);
  assert_ok(clv_policy_check_release(released, "layer1.0.conv1", "w1", &err), &err);
  assert_int_equal(clv_policy_check_release(released, "fc10", "w1", &err), CLV_INVALID);
  assert_says(&err, "/p.yaml:9:1: the policy does not permit layer 'fc10'");
}

static void readable_share_above_max_read_is_denied(void **state) {
  (void)state;
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy();
  clv_policy_look_result r = {.reader = 1, .share = .9, .why_not_run = "it is too large"};
  clv_err err = {0};
  assert_ok(clv_policy_check_look_result(NULL, &r, &err), &err);
  assert_ok(clv_policy_check_look_result(p, &r, &err), &err);
  p->config->max_read[1] = .2;
  assert_true(clv_policy_max_read_share(p, 1) == .2 && clv_policy_max_read_share(p, 2) == 1);
  assert_int_equal(clv_policy_check_look_result(p, &r, &err), CLV_INVALID);
  assert_says(&err,
              "tokens: the look read 0.90 of them from what leaves, and the policy permits 0.2 "
              "(max_read.tok");
  r.share = .2001;
  assert_int_equal(clv_policy_check_look_result(p, &r, &err), CLV_INVALID);
  assert_says(&err,
              "tokens: the look read 0.2001 of them from what leaves, and the policy permits 0.2 "
              "(max_read.");
  r.share = -1;
  assert_int_equal(clv_policy_check_look_result(p, &r, &err), CLV_INVALID);
  assert_says(&err, "(max_read.tokens: 0.2), and the look did not measure that: it is too large");
  r.share = .2;
  assert_ok(clv_policy_check_look_result(p, &r, &err), &err);
}

static void bytes_above_the_epoch_limit_are_denied(void **state) {
  (void)state;
  CLV_AUTO(clv_policy_freep) clv_policy *p = parse_policy();
  clv_policy_tensor t = make_tensor();
  clv_err err = {0};
  assert_ok(clv_policy_check_epoch(p, 1000, &err), &err);
  assert_int_equal(clv_policy_check_epoch(p, 1001, &err), CLV_INVALID);
  assert_says(&err,
              "/p.yaml:6:18: an epoch sends 1001 B (1001 bytes), and bytes_per_epoch is 1000 B "
              "(1000 bytes): cut the model where less crosses, or ask for a larger limit");
  assert_false(clv_policy_has_refused(p));
  assert_ok(clv_policy_charge(p, &t, 600, &err), &err);
  assert_int_equal(clv_policy_charge(p, &t, 401, &err), CLV_INVALID);
  assert_says(&err,
              "/p.yaml:6:18: the policy permits 1000 B (1000 bytes) in an epoch, and activation of "
              "stage 'a' would exceed that; ask for a larger bytes_per_epoch");
  assert_true(clv_policy_has_refused(p));
  assert_int_equal(clv_policy_charge(p, &t, UINT64_MAX, &err), CLV_INVALID);
  assert_ok(clv_policy_charge(p, &t, 400, &err), &err);
  clv_policy_begin_epoch(p, 999);
  assert_int_equal(clv_policy_charge(p, &t, 2, &err), CLV_INVALID);
  assert_ok(clv_policy_charge(p, &t, 1, &err), &err);
  clv_policy_begin_epoch(p, UINT64_MAX);
  assert_int_equal(clv_policy_charge(p, &t, 1, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(missing_policy_file_gives_no_policy),
      cmocka_unit_test(policy_writable_by_others_is_refused),
      cmocka_unit_test(policy_for_root_needs_a_valid_signature),
      cmocka_unit_test(tensor_within_the_policy_is_permitted),
      cmocka_unit_test(tensor_outside_the_policy_is_denied),
      cmocka_unit_test(tensors_with_forbidden_findings_are_denied),
      cmocka_unit_test(picture_and_layer_limits_are_enforced_when_set),
      cmocka_unit_test(cached_rows_need_the_kind_cached),
      cmocka_unit_test(layer_moves_to_a_worker_only_if_the_policy_releases_it),
      cmocka_unit_test(readable_share_above_max_read_is_denied),
      cmocka_unit_test(bytes_above_the_epoch_limit_are_denied),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
