/* SPDX-License-Identifier: Apache-2.0
 *
 * Unary messages about a session: hello, opening and closing, status. Round trips of every field, cut
 * into pieces, and what is wrong with them said.
 */
#include "tests/unit/wire/wire_test.h"

/* ---- hello ----------------------------------------------------------------------------------- */

static const char *capabilities[] = {"codec.bf16", "transfer.direct"};
static clv_wire_library libraries[] = {{"oneDNN", "2.6.3"}, {"gRPC", "1.51.1"}};

static clv_wire_about some_about(void) {
  return (clv_wire_about){
      .protocol = 2,
      .n_capabilities = 2,
      .n_libraries = 2,
      .capabilities = capabilities,
      .libraries = libraries,
      .limits = {1, 2, 3, 4, 5, 6, 7},
      .software = "cleave 0.1.0",
      .isa = "avx2",
      .unix_ms = 1700000000123,
  };
}

static void assert_about(const clv_wire_about *a) {
  assert_int_equal(a->protocol, 2);
  assert_int_equal(a->n_capabilities, 2);
  assert_string_equal(a->capabilities[1], "transfer.direct");
  assert_int_equal(a->n_libraries, 2);
  assert_string_equal(a->libraries[0].name, "oneDNN");
  assert_string_equal(a->libraries[1].version, "1.51.1");
  assert_int_equal(a->limits.sessions, 1);
  assert_int_equal(a->limits.tensors, 2);
  assert_int_equal(a->limits.concurrent_calls, 3);
  assert_int_equal(a->limits.session_bytes, 4);
  assert_int_equal(a->limits.message_bytes, 5);
  assert_int_equal(a->limits.chunk_bytes, 6);
  assert_int_equal(a->limits.credit_bytes, 7);
  assert_string_equal(a->software, "cleave 0.1.0");
  assert_string_equal(a->isa, "avx2");
  assert_int_equal(a->unix_ms, 1700000000123);
}

static void hello_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_hello_request request = {.about = some_about()};
  CLV_AUTO(clv_wire_done) clv_wire_hello_request got = {0};
  assert_ok(clv_wire_hello_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_hello_request_decode(cut(&bytes).piece, 2, &got, &err));
  assert_about(&got.about);
  /* A decoded struct does not point into the caller's pieces. */
  memset(bytes.data, 0xff, bytes.len);
  assert_about(&got.about);
}

static void hello_reply_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const char *devices[] = {"cpu", "cuda:0"};
  clv_wire_artifact artifacts[] = {{"resnet-tail.safetensors", some_digest(4)},
                                   {"b", some_digest(5)}};
  clv_wire_hello_reply reply = {.about = some_about(),
                                .incarnation = some_id(7),
                                .worker = "w-1",
                                .cores = 8,
                                .threads = 6,
                                .n_devices = 2,
                                .devices = devices,
                                .n_artifacts = 2,
                                .artifacts = artifacts};
  CLV_AUTO(clv_wire_done) clv_wire_hello_reply got = {0};
  assert_ok(clv_wire_hello_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_hello_reply_decode(cut(&bytes).piece, 2, &got, &err));
  memset(bytes.data, 0xff, bytes.len);
  assert_about(&got.about);
  assert_memory_equal(&got.incarnation, &reply.incarnation, sizeof got.incarnation);
  assert_string_equal(got.worker, "w-1");
  assert_int_equal(got.cores, 8);
  assert_int_equal(got.threads, 6);
  assert_int_equal(got.n_devices, 2);
  assert_string_equal(got.devices[1], "cuda:0");
  assert_int_equal(got.n_artifacts, 2);
  assert_string_equal(got.artifacts[0].name, "resnet-tail.safetensors");
  assert_memory_equal(&got.artifacts[1].sha256, &artifacts[1].sha256, sizeof(clv_sha256));
}

static void hello_says_what_is_wrong(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_hello_request request = {.about = some_about()};
  request.about.protocol = 1;
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_UNIMPLEMENTED,
               "protocol 1, this side speaks 2");
  request.about = some_about();
  request.about.limits.session_bytes = CLV_WIRE_BYTES_MAX + 1;
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_INVALID, "a limit of");
  request.about = some_about();
  request.about.isa = "new\nline";
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_INVALID, "of isa");
  clv_wire_hello_reply reply = {.about = some_about(), .worker = ""};
  assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "worker name");
  static const char *bad_names[] = {"../etc", ".hidden", "a/b", "a b", ""};
  for (size_t i = 0; i < CLV_COUNT(bad_names); i++) {
    clv_wire_artifact artifact = {.name = bad_names[i]};
    reply.worker = "w";
    reply.n_artifacts = 1;
    reply.artifacts = &artifact;
    assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "artifact name");
  }
  clv_piece none = {NULL, 0};
  clv_wire_hello_request got;
  assert_fails(clv_wire_hello_request_decode(&none, 1, &got, &err), CLV_INVALID, "`about`");
  assert_fails(clv_wire_hello_request_decode(NULL, 0, &got, &err), CLV_INVALID, "`about`");
}

/* ---- sessions ----------------------------------------------------------------------------------
 */

static void sessions_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const char *peers[] = {"spiffe://hospital/worker-1", "spiffe://hospital/worker-2"};
  clv_wire_open_request request = {.session = some_id(1),
                                   .epoch = 3,
                                   .seed = UINT64_MAX,
                                   .name = "fashion",
                                   .lanes = 2,
                                   .n_peer_identities = 2,
                                   .peer_identities = peers,
                                   .config_digest = some_digest(9)};
  CLV_AUTO(clv_wire_done) clv_wire_open_request got = {0};
  assert_ok(clv_wire_open_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_open_request_decode(cut(&bytes).piece, 2, &got, &err));
  assert_memory_equal(&got.session, &request.session, sizeof got.session);
  assert_int_equal(got.epoch, 3);
  assert_true(got.seed == UINT64_MAX);
  assert_string_equal(got.name, "fashion");
  assert_int_equal(got.lanes, 2);
  assert_int_equal(got.n_peer_identities, 2);
  assert_string_equal(got.peer_identities[0], peers[0]);
  assert_memory_equal(&got.config_digest, &request.config_digest, sizeof got.config_digest);
  request.lanes = CLV_WIRE_LANES + 1;
  assert_fails(clv_wire_open_request_encode(&request, &bytes, &err), CLV_EXHAUSTED, "17 lanes");

  clv_wire_open_reply reply = {.incarnation = some_id(2), .granted = clv_wire_limits_default()};
  CLV_AUTO(clv_wire_done) clv_wire_open_reply got_reply = {0};
  assert_ok(clv_wire_open_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_open_reply_decode(cut(&bytes).piece, 2, &got_reply, &err));
  assert_memory_equal(&got_reply.incarnation, &reply.incarnation, sizeof reply.incarnation);
  assert_memory_equal(&got_reply.granted, &reply.granted, sizeof reply.granted);
}

static void closing_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_close_request request = {.session = some_id(1), .epoch = 8};
  CLV_AUTO(clv_wire_done) clv_wire_close_request got = {0};
  assert_ok(clv_wire_close_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_close_request_decode(cut(&bytes).piece, 2, &got, &err));
  assert_memory_equal(&got.session, &request.session, sizeof got.session);
  assert_int_equal(got.epoch, 8);
  clv_wire_close_reply reply = {.bytes_in = 1, .bytes_out = 2, .forwards = 3, .backwards = 4};
  CLV_AUTO(clv_wire_done) clv_wire_close_reply got_reply = {0};
  assert_ok(clv_wire_close_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_close_reply_decode(cut(&bytes).piece, 2, &got_reply, &err));
  assert_int_equal(got_reply.bytes_in, 1);
  assert_int_equal(got_reply.bytes_out, 2);
  assert_int_equal(got_reply.forwards, 3);
  assert_int_equal(got_reply.backwards, 4);
  static const char short_id[] =
      "\x0a\x02"
      "ab";
  clv_piece piece = {short_id, sizeof short_id - 1};
  clv_wire_close_request bad;
  assert_fails(clv_wire_close_request_decode(&piece, 1, &bad, &err), CLV_INVALID,
               "session id of 2 bytes; it has 16");
}

/* ---- status ------------------------------------------------------------------------------------
 */

static void status_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  for (int all = 0; all < 2; all++) {
    clv_wire_status_request request = {.all = all, .session = some_id(5)};
    CLV_AUTO(clv_wire_done) clv_wire_status_request got = {0};
    assert_ok(clv_wire_status_request_encode(&request, &bytes, &err));
    assert_ok(clv_wire_status_request_decode(cut(&bytes).piece, 2, &got, &err));
    assert_int_equal(got.all, all);
    if (!all) assert_memory_equal(&got.session, &request.session, sizeof got.session);
  }
  clv_wire_stage_status stages[] = {{.stage = 1, .forwards = 3, .backwards = 4},
                                    {.stage = 6, .forwards = 8, .backwards = 9}};
  clv_wire_session_status sessions[] = {{some_id(1), 2, 3, 4, 5, "one", 6, 2, 7, 8, 9, stages},
                                        {some_id(9), 0, 0, 0, 0, "", 0, 0, 0, 0, 0, NULL}};
  clv_wire_status_reply reply = {.incarnation = some_id(3),
                                 .uptime_ms = 1,
                                 .rss_bytes = 2,
                                 .draining = true,
                                 .n_sessions = 2,
                                 .sessions = sessions};
  CLV_AUTO(clv_wire_done) clv_wire_status_reply got = {0};
  assert_ok(clv_wire_status_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_status_reply_decode(cut(&bytes).piece, 2, &got, &err));
  assert_int_equal(got.uptime_ms, 1);
  assert_int_equal(got.rss_bytes, 2);
  assert_true(got.draining);
  assert_int_equal(got.n_sessions, 2);
  assert_memory_equal(&got.sessions[0].session, &sessions[0].session, sizeof(clv_wire_id));
  assert_int_equal(got.sessions[0].epoch, 2);
  assert_int_equal(got.sessions[0].bytes_in, 3);
  assert_int_equal(got.sessions[0].bytes_out, 4);
  assert_int_equal(got.sessions[0].memory_bytes, 5);
  assert_string_equal(got.sessions[0].name, "one");
  assert_int_equal(got.sessions[0].contexts, 6);
  assert_int_equal(got.sessions[0].values, 7);
  assert_int_equal(got.sessions[0].calls_waiting, 8);
  assert_int_equal(got.sessions[0].late_frames, 9);
  assert_int_equal(got.sessions[0].n_stages, 2);
  assert_int_equal(got.sessions[0].stages[1].stage, 6);
  assert_int_equal(got.sessions[0].stages[1].forwards, 8);
  assert_int_equal(got.sessions[0].stages[1].backwards, 9);
  assert_int_equal(got.sessions[1].n_stages, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hello_round_trips),        cmocka_unit_test(hello_reply_round_trips),
      cmocka_unit_test(hello_says_what_is_wrong), cmocka_unit_test(sessions_round_trip),
      cmocka_unit_test(closing_round_trips),      cmocka_unit_test(status_round_trips),
  };
  return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
