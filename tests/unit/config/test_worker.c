/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests worker.yaml: defaults, every value, errors that only this file can have, and the shipped
 * file.
 */
#include <stdio.h>

#include "tests/unit/config/config_test.h"

static clv_worker_config *parse_worker(const char *text, const clv_config_overrides *overrides) {
  clv_worker_config *config = NULL;
  clv_err err = {0};
  if (clv_worker_config_parse("/etc/cleave/w.yaml", text, strlen(text), overrides, &config, &err))
    fail_msg("refused: %s", err.text);
  return config;
}

static void assert_worker_refused(const char *from, const char *to, const char *message) {
  clv_worker_config *config = NULL;
  clv_err err = {0};
  char *text = replace_in_session_text(worker_text, from, to);
  clv_code code =
      clv_worker_config_parse("/etc/cleave/w.yaml", text, strlen(text), NULL, &config, &err);
  assert_string_equal(err.text, message);
  assert_int_equal(code, CLV_INVALID);
  assert_null(config);
  free(text);
}

static void omitted_worker_keys_have_their_defaults(void **state) {
  (void)state;
  clv_worker_config *c = parse_worker(worker_text, NULL);
  assert_string_equal(c->listen, "127.0.0.1:7443");
  assert_null(c->name);
  assert_string_equal(c->tls.key, "/etc/cleave/w.key");
  assert_int_equal(c->n_allow, 1);
  assert_string_equal(c->allow[0].identity, "spiffe://acme/master");
  assert_int_equal(c->allow[0].role, CLV_ROLE_MASTER);
  assert_int_equal(c->limits.sessions, 8);
  assert_int_equal(c->limits.tensors, 4096);
  assert_true(c->limits.session_bytes == 64ull << 30);
  assert_int_equal(c->limits.message_bytes, 64 << 20);
  assert_int_equal(c->limits.concurrent_calls, 64);
  assert_int_equal(c->limits.calls, 65536);
  assert_int_equal(c->limits.connections, 256);
  assert_int_equal(c->limits.identity_connections, 64);
  assert_int_equal(c->limits.credit_bytes, 64 << 20);
  assert_int_equal(c->limits.lease_ms, 120000);
  assert_int_equal(c->limits.peer_timeout_ms, 15000);
  assert_int_equal(c->limits.reference_lease_ms, 3600000);
  assert_int_equal(c->limits.handshake_timeout_ms, 3000);
  assert_string_equal(c->device, "cpu");
  assert_true(c->memory_limit == CLV_MEMORY_AUTO);
  assert_null(c->state_dir);
  assert_int_equal(c->log.level, CLV_LOG_INFO);
  assert_int_equal(c->drain_timeout_ms, 30000);
  assert_null(c->metrics.listen);
  clv_worker_config_free(c);
}

static const char rich_text[] =
    "listen: \"0.0.0.0:0\"\n"
    "name: w1\n"
    "tls: {ca: ca.pem, cert: w.pem, key: w.key}\n"
    "allow:\n"
    "  - {identity: \"spiffe://acme/master\", role: master, sessions: 2, bytes: 3GiB, "
    "tensors: 9, calls: 7, connections: 8, weight: 3}\n"
    "  - {identity: \"spiffe://acme/worker/w2\", role: peer}\n"
    "  - {identity: \"spiffe://acme/nagios\", role: observer}\n"
    "peers: [{name: w2, address: \"h:7443\", identity: \"spiffe://acme/worker/w2\"}]\n"
    "limits: {sessions: 1, tensors: 2, session_bytes: 5MiB, message_size: 700000, "
    "concurrent_calls: "
    "3,\n"
    "  calls: 6, connections: 4, identity_connections: 3, receive_window: 1MiB, lease: 5s, "
    "peer_timeout: "
    "4s, "
    "handshake_timeout: 100ms,\n"
    "  reference_lease: 600s}\n"
    "device: auto\n"
    "memory_limit: 2GiB\n"
    "cores: [0, 3]\n"
    "artifacts: {front-v1.2: {file: f.st, sha256: "
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}}\n"
    "state_dir: state\n"
    "log: {level: debug, json: true}\n"
    "drain_timeout: 0s\n"
    "metrics: {listen: '[::1]:9101'}\n";

static void check_full_config(const clv_worker_config *c) {
  assert_string_equal(c->listen, "0.0.0.0:0");
  assert_string_equal(c->name, "w1");
  assert_int_equal(c->n_allow, 3);
  assert_true(c->allow[0].sessions == 2 && c->allow[0].bytes == 3ull << 30);
  assert_true(c->allow[0].tensors == 9 && c->allow[0].calls == 7 && c->allow[0].weight == 3);
  assert_true(c->allow[1].tensors == 0 && c->allow[1].calls == 0 && c->allow[1].weight == 1);
  assert_int_equal(c->allow[1].role, CLV_ROLE_PEER);
  assert_int_equal(c->allow[2].role, CLV_ROLE_OBSERVER);
  assert_int_equal(c->n_peers, 1);
  assert_string_equal(c->peers[0].name, "w2");
  assert_string_equal(c->peers[0].address, "h:7443");
  assert_string_equal(c->peers[0].identity, "spiffe://acme/worker/w2");
  assert_true(c->limits.sessions == 1 && c->limits.tensors == 2 && c->limits.connections == 4);
  assert_true(c->limits.session_bytes == 5 << 20 && c->limits.message_bytes == 700000);
  assert_true(c->limits.calls == 6 && c->limits.identity_connections == 3);
  assert_true(c->allow[0].connections == 8 && c->allow[1].connections == 0);
  assert_true(c->limits.concurrent_calls == 3 && c->limits.credit_bytes == 1 << 20);
  assert_true(c->limits.lease_ms == 5000 && c->limits.handshake_timeout_ms == 100);
  assert_true(c->limits.reference_lease_ms == 600000);
  assert_string_equal(c->device, "auto");
  assert_true(c->memory_limit == 2ull << 30);
  assert_true(c->cores.n == 2 && c->cores.items[1] == 3);
  assert_int_equal(c->n_artifacts, 1);
  assert_string_equal(c->artifacts[0].name, "front-v1.2");
  assert_string_equal(c->artifacts[0].file, "/etc/cleave/f.st");
  assert_int_equal(strlen(c->artifacts[0].sha256), 64);
  assert_string_equal(c->state_dir, "/etc/cleave/state");
  assert_true(c->log.level == CLV_LOG_DEBUG && c->log.json && c->drain_timeout_ms == 0);
  assert_string_equal(c->metrics.listen, "[::1]:9101");
}

static void written_worker_config_reads_back_equal(void **state) {
  (void)state;
  clv_bytes text = {0};
  clv_err err = {0};
  clv_worker_config *a = parse_worker(rich_text, NULL), *b = NULL;
  check_full_config(a);
  assert_int_equal(clv_worker_config_write(a, &text, &err), CLV_OK);
  if (clv_worker_config_parse("/elsewhere/x.yaml", text.data, text.len, NULL, &b, &err))
    fail_msg("%s in\n%s", err.text, text.data);
  check_full_config(b);
  clv_worker_config_free(a);
  clv_worker_config_free(b);
  clv_bytes_done(&text);
}

/* Parts of a tensor (pieces, chunks) must fit in a message, and a message must fit in the limit of
 * gRPC. */
static void message_size_out_of_range_is_refused(void **state) {
  (void)state;
  assert_worker_refused(
      "allow:\n", "limits: {message_size: 256KiB}\nallow:\n",
      "/etc/cleave/w.yaml:2:24: 'limits.message_size' must be a size from 512KiB to "
      "1GiB, got '256KiB'");
  assert_worker_refused(
      "allow:\n", "limits: {message_size: 1025MiB}\nallow:\n",
      "/etc/cleave/w.yaml:2:24: 'limits.message_size' must be a size from 512KiB to "
      "1GiB, got '1025MiB'");
}

static void invalid_worker_values_are_located(void **state) {
  (void)state;
  assert_worker_refused(
      "allow:\n  - {identity: \"spiffe://acme/master\", role: master}\n", "",
      "/etc/cleave/w.yaml:1:1: missing key 'allow': Identities that may call, each given "
      "by the one URI in the caller's certificate. Every other caller is refused. For example: "
      "`allow: [{identity: spiffe://example.net/master, role: master}]`");
  assert_worker_refused(
      "allow:\n  - {identity: \"spiffe://acme/master\", role: master}\n", "allow: []\n",
      "/etc/cleave/w.yaml:2:8: 'allow' must be a list of at least 1 entries, got 0");
  assert_worker_refused(
      "role: master", "role: mister",
      "/etc/cleave/w.yaml:3:46: 'allow.0.role' must be one of master, peer, observer, got "
      "'mister', did you mean 'master'?");
  assert_worker_refused(
      "tls: {ca: ca.pem, cert: w.pem, key: w.key}\n", "",
      "/etc/cleave/w.yaml:1:1: missing key 'tls': The worker's credentials; read again on "
      "SIGHUP. For example: `tls: {ca: certs/ca.pem, cert: certs/worker-1.pem, key: "
      "certs/worker-1.key}`");
  assert_worker_refused("key: w.key",
                        "key: ", "/etc/cleave/w.yaml:1:32: 'tls.key' must be a path, got nothing");
  assert_worker_refused(
      "allow:\n", "allow:\n  - {identity: \"spiffe://acme/master\", role: peer}\n",
      "/etc/cleave/w.yaml:4:5: the identity 'spiffe://acme/master' is allowed twice");
  assert_worker_refused(
      "allow:\n", "listen: 7443\nallow:\n",
      "/etc/cleave/w.yaml:2:9: 'listen' must be an address such as 127.0.0.1:7443, got "
      "'7443'");
  assert_worker_refused("allow:\n",
                        "peers:\n  - {name: a, address: \"h:1\", identity: \"x://y\"}\n"
                        "  - {name: a, address: \"h:2\", identity: \"x://z\"}\nallow:\n",
                        "/etc/cleave/w.yaml:4:5: two peers are called 'a'");
}

static void invalid_worker_limits_and_keys_are_located(void **state) {
  (void)state;
  assert_worker_refused(
      "allow:\n", "limits: {lease: 10}\nallow:\n",
      "/etc/cleave/w.yaml:2:17: 'limits.lease' must be a duration from 1s to 24h, got "
      "'10'");
  assert_worker_refused(
      "allow:\n", "stages: []\nallow:\n",
      "/etc/cleave/w.yaml:2:1: unknown key 'stages', which is one of a session file; is "
      "this the right file?");
  assert_worker_refused(
      "allow:\n", "limits: {reference_lease: 25h}\nallow:\n",
      "/etc/cleave/w.yaml:2:27: 'limits.reference_lease' must be a duration from 1s to "
      "24h, got '25h'");
  assert_worker_refused("allow:\n", "limts: {}\nallow:\n",
                        "/etc/cleave/w.yaml:2:1: unknown key 'limts', did you mean 'limits'?");
  assert_worker_refused(
      "allow:\n", "artifacts: {a: {file: x, sha256: abc}}\nallow:\n",
      "/etc/cleave/w.yaml:2:34: 'artifacts.a.sha256' must be a SHA-256 of 64 hexadecimal "
      "digits, got 'abc'");
}

static void contradictory_limits_are_refused(void **state) {
  (void)state;
  assert_worker_refused("allow:\n", "limits: {lease: 15s}\nallow:\n",
                        "/etc/cleave/w.yaml:2:17: limits.lease of 15s has to be longer than "
                        "limits.peer_timeout, 15s: raise the one or lower the other");
  assert_worker_refused(
      "allow:\n", "memory_limit: 0\nallow:\n",
      "/etc/cleave/w.yaml:2:15: 'memory_limit' must be auto, none or a size from 1MiB to "
      "1024TiB, got '0'");
}

/* `metrics` is refused if it and `listen` (127.0.0.1:7443 by default) could have the same address
 * and port. */
static void metrics_on_the_listen_port_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *listen, *metrics;
    bool ok;
  } rows[] = {
      {"127.0.0.1:7443", "127.0.0.1:7443", false},
      {"127.0.0.1:7443", "127.0.0.1:7444", true},
      {"127.0.0.1:7443", "127.0.0.2:7443", true},
      {"127.0.0.1:7443", "[::1]:7443", true},
      {"127.0.0.1:7443", "0.0.0.0:7443", false},
      {"0.0.0.0:7443", "127.0.0.1:7443", false},
      {"[::]:7443", "127.0.0.1:7443", false},
      {"10.0.0.1:7443", "[::]:7443", false},
      {"10.0.0.1:7443", "[0:0::0]:7443", false},
      {"[::1]:7443", "[0:0:0:0:0:0:0:1]:7443", false},
      {"[::ffff:10.0.0.1]:7443", "10.0.0.1:7443", false},
      {"localhost:7443", "127.0.0.1:7443", false},
      {"[::1]:7443", "LocalHost:7443", false},
      {"localhost:7443", "10.0.0.1:7443", true},
      {"gpu1:7443", "GPU1:7443", false},
      {"gpu1:7443", "gpu2:7443", true},
      {"127.0.0.1:0", "127.0.0.1:0", true},
      {"0.0.0.0:0", "[::]:0", true},
      {"0.0.0.0:7443", "0.0.0.0:0", true},
  };
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    char listen[64], metrics[64];
    const char *sets[] = {listen, metrics};
    clv_config_overrides overrides = {.sets = sets, .n_sets = 2};
    CLV_AUTO(clv_worker_config_freep) clv_worker_config *c = NULL;
    clv_err err = {0};
    snprintf(listen, sizeof listen, "listen=%s", rows[i].listen);
    snprintf(metrics, sizeof metrics, "metrics.listen=%s", rows[i].metrics);
    clv_code code =
        clv_worker_config_parse("w.yaml", worker_text, strlen(worker_text), &overrides, &c, &err);
    if ((code == CLV_OK) != rows[i].ok) fail_msg("%s and %s: %s", listen, metrics, err.text);
  }
  assert_worker_refused(
      "allow:\n", "metrics: {listen: \"0.0.0.0:7443\"}\nallow:\n",
      "/etc/cleave/w.yaml:2:19: metrics.listen 0.0.0.0:7443 takes the port of `listen`, "
      "127.0.0.1:7443; give it another, such as 127.0.0.1:9101");
}

static void environment_and_set_override_worker_keys(void **state) {
  (void)state;
  static const char *const env[] = {"CLEAVE_LOG__LEVEL=warn", "CLEAVE_LISTEN__X", NULL};
  static const char *const sets[] = {
      "allow.0.role=observer", "artifacts.a.b.file=/z",
      ("artifacts.a.b.sha256="
       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")};
  static const char with_artifact[] =
      "tls: {ca: ca.pem, cert: w.pem, key: w.key}\n"
      "allow: [{identity: \"spiffe://acme/master\", role: master}]\n"
      "artifacts: {a.b: {file: x, sha256: "
      "0000000000000000000000000000000000000000000000000000000000000000}}\n";
  clv_config_overrides overrides = {.env = env, .sets = sets, .n_sets = 3};
  clv_worker_config *c = parse_worker(with_artifact, &overrides);
  clv_err err;
  assert_int_equal(c->log.level, CLV_LOG_WARN);
  assert_int_equal(c->allow[0].role, CLV_ROLE_OBSERVER);
  assert_int_equal(c->n_artifacts, 1);
  assert_string_equal(c->artifacts[0].file, "/z");
  (void)!clv_worker_fail_at(c, c->allow[0].pos, &err, "who?");
  assert_string_equal(err.text, "/etc/cleave/w.yaml:2:9: who?");
  clv_worker_config_free(c);
}

static const char credential_text[] =
    "tls:\n"
    "  ca: ${CREDENTIALS_DIRECTORY}/ca.pem\n"
    "  cert: w.pem\n"
    "  key: \"/k/${CREDENTIALS_DIRECTORY}/w\"\n"
    "allow:\n"
    "  - {identity: \"spiffe://acme/master\", role: master}\n";

/* The reader expands CREDENTIALS_DIRECTORY only at the start of a path, and only if the environment
 * sets it as systemd does. */
static void credentials_directory_expands_only_at_path_start(void **state) {
  (void)state;
  static const char *const good[] = {"X=1", "CREDENTIALS_DIRECTORY=/run/credentials/w.service",
                                     NULL};
  static const char *const bad[][2] = {{"X=1"},
                                       {"CREDENTIALS_DIRECTORY="},
                                       {"CREDENTIALS_DIRECTORY=here"},
                                       {"CREDENTIALS_DIRECTORY=/a b"},
                                       {"CREDENTIALS_DIRECTORY=/\xff"}};
  clv_config_overrides overrides = {.env = good};
  clv_worker_config *c = parse_worker(credential_text, &overrides);
  assert_string_equal(c->tls.ca, "/run/credentials/w.service/ca.pem");
  assert_string_equal(c->tls.cert, "/etc/cleave/w.pem");
  assert_string_equal(c->tls.key, "/k/${CREDENTIALS_DIRECTORY}/w");
  clv_worker_config_free(c);
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    clv_err err = {0};
    overrides.env = (const char *const[]){bad[i][0], NULL};
    assert_int_equal(clv_worker_config_parse("/w.yaml", credential_text, strlen(credential_text),
                                             &overrides, &c, &err),
                     CLV_INVALID);
    assert_string_equal(err.text,
                        "/w.yaml:2:7: 'tls.ca' names a credential, but there is no "
                        "$CREDENTIALS_DIRECTORY: systemd sets it for units with LoadCredential=");
  }
}

/* The manual page of each file, worker.yaml and the session file, has an entry for each key, with
 * default and range. */
static void manual_pages_list_every_key(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes worker_page = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes session_page = {0};
  clv_err err;
  assert_int_equal(clv_config_write_man_page(CLV_CONFIG_WORKER, &worker_page, &err), CLV_OK);
  assert_int_equal(clv_config_write_man_page(CLV_CONFIG_SESSION, &session_page, &err), CLV_OK);
  assert_memory_equal(worker_page.data, ".TH CLEAVE\\-WORKER.YAML 5 ", 26);
  assert_non_null(strstr(worker_page.data, ".TP\n\\fBallow[].identity\\fR (required)\n"));
  assert_non_null(strstr(worker_page.data, ".TP\n\\fBartifacts.NAME.sha256\\fR (required)\n"));
  assert_non_null(strstr(worker_page.data,
                         ".TP\n\\fBlimits.lease\\fR\nA session whose master has no "
                         "connection for this time is closed, and its memory freed. Also the time "
                         "for which a lost connection to another worker is made again.\n"
                         "A duration from 1s to 24h.\n"
                         "Default:\n\\fB120s\\fR.\n"));
  assert_non_null(strstr(session_page.data, "\\fBmodel.KEY\\fR"));
  assert_non_null(strstr(session_page.data, "One of idx, npy, images, text, documents"));
}

static void shipped_worker_file_equals_the_example(void **state) {
  (void)state;
  clv_bytes shipped = {0}, example = {0};
  clv_worker_config *c = NULL;
  clv_err err = {0};
  if (clv_worker_config_load("deploy/worker.yaml", NULL, &c, &err)) fail_msg("%s", err.text);
  clv_worker_config_free(c);
  assert_int_equal(clv_file_read("deploy/worker.yaml", 1 << 20, &shipped, &err), CLV_OK);
  assert_int_equal(clv_config_write_example(CLV_CONFIG_WORKER, &example, &err), CLV_OK);
  assert_string_equal(strchr(shipped.data, '\n') + 1, example.data); /* after the SPDX line */
  clv_bytes_done(&shipped);
  clv_bytes_done(&example);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(omitted_worker_keys_have_their_defaults),
      cmocka_unit_test(written_worker_config_reads_back_equal),
      cmocka_unit_test(message_size_out_of_range_is_refused),
      cmocka_unit_test(invalid_worker_values_are_located),
      cmocka_unit_test(invalid_worker_limits_and_keys_are_located),
      cmocka_unit_test(contradictory_limits_are_refused),
      cmocka_unit_test(metrics_on_the_listen_port_is_refused),
      cmocka_unit_test(environment_and_set_override_worker_keys),
      cmocka_unit_test(credentials_directory_expands_only_at_path_start),
      cmocka_unit_test(manual_pages_list_every_key),
      cmocka_unit_test(shipped_worker_file_equals_the_example),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
