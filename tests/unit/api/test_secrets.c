/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that a session is refused if it declares a weights file secret, and a worker has that file
 * as an artifact. The error names stage, worker and artifact.
 */
#include "common/model/weights/weights.h"
#include "common/net/wire/wire.h"
#include "master/api/api.h"
#include "tests/unit/scratch.h"

static const char text[] =
    "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\n"
    "workers:\n  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
    "data: {format: npy, root: /data, train: [a, b]}\n"
    "stages:\n"
    "  - {name: front, at: master, weights: {file: %s.st, secret: %s}, layers: [{op: relu}]}\n"
    "  - {name: rest, at: w1, weights: {file: %s.st, secret: %s}, layers: [{op: relu}]}\n"
    "loss: {kind: mse}\ntrain: {batch: 1, optimizer: {kind: sgd, lr: 1}}\n";

static clv_code check_secret_weights(const char *file, const char *secret,
                                     const clv_sha256 *worker_digest, clv_err *err) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes session = {0};
  char path[96];
  clv_wire_artifact artifacts[] = {{"other", {{0}}}, {"public", *worker_digest}};
  clv_wire_hello_reply hello = {.worker_name = "w1", .n_artifacts = 2, .artifacts = artifacts};
  snprintf(path, sizeof path, "%s/s.yaml", scratch);
  clv_bytes_printf(&session, text, file, secret, file, secret);
  assert_ok(clv_session_config_parse(path, session.data, session.len, NULL, &c, err), err);
  return cleave_secrets_check(c, &hello, err);
}

static void weights_that_a_worker_has_cannot_be_secret(void **state) {
  (void)state;
  const float value = 1;
  const clv_weights_tensor tensor = {"0.weight", CLV_F32, CLV_SHAPE(1), &value};
  clv_sha256 digest, other_digest = {{7}};
  clv_err err;
  char path[96];
  snprintf(path, sizeof path, "%s/w.st", scratch);
  assert_ok(clv_weights_write_file(path, &tensor, 1, NULL, 0, &digest, NULL, &err), &err);
  assert_ok(check_secret_weights("w", "true", &other_digest, &err), &err);
  assert_ok(check_secret_weights("w", "false", &digest, &err), &err);
  assert_int_equal(check_secret_weights("w", "true", &digest, &err), CLV_DATA_LOSS);
  assert_says(&err, "s.yaml:8:");
  assert_says(&err, "stage 'front': worker 'w1' has the file as its artifact 'public'");
  assert_int_equal(check_secret_weights("missing", "true", &other_digest, &err), CLV_DATA_LOSS);
  assert_says(&err, "missing.st");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
      weights_that_a_worker_has_cannot_be_secret, scratch_setup, scratch_teardown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
