/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests unary messages about a session: hello, opening and closing, status. Every field makes a
 * round trip, messages are cut into pieces, and refusals have their texts.
 */
#include "tests/unit/wire/wire_test.h"

/* ---- messages of Hello ----------------------------------------------------------------------- */

static const char *capabilities[] = {"codec.bf16", "transfer.direct"};
static clv_wire_library libraries[] = {{"oneDNN", "2.6.3"}, {"gRPC", "1.51.1"}};

static clv_wire_about make_sample_about(void) {
  return (clv_wire_about){
      .protocol = 9,
      .n_capabilities = 2,
      .n_libraries = 2,
      .capabilities = capabilities,
      .libraries = libraries,
      .limits = {1, 2, 3, 4, 5, 6, 7, 8},
      .software = "cleave 0.1.0",
      .isa = "avx2",
      .unix_ms = 1700000000123,
  };
}

static void assert_is_sample_about(const clv_wire_about *a) {
  assert_int_equal(a->protocol, 9);
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
  assert_int_equal(a->limits.peer_timeout_ms, 8);
  assert_string_equal(a->software, "cleave 0.1.0");
  assert_string_equal(a->isa, "avx2");
  assert_int_equal(a->unix_ms, 1700000000123);
}

static void hello_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_hello_request request = {.about = make_sample_about()};
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request got = {0};
  assert_ok(clv_wire_hello_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_hello_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_is_sample_about(&got.about);
  /* A decoded struct does not point into the caller's buffer. */
  memset(bytes.data, 0xff, bytes.len);
  assert_is_sample_about(&got.about);
}

static void hello_reply_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const char *devices[] = {"cpu", "cuda:0"};
  clv_wire_artifact artifacts[] = {{"resnet-tail.safetensors", make_digest(4)},
                                   {"b", make_digest(5)}};
  clv_wire_hello_reply reply = {.about = make_sample_about(),
                                .incarnation = make_id(7),
                                .worker_name = "w-1",
                                .n_cores = 8,
                                .n_threads = 6,
                                .n_devices = 2,
                                .device_names = devices,
                                .n_artifacts = 2,
                                .artifacts = artifacts};
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply got = {0};
  assert_ok(clv_wire_hello_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_hello_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  memset(bytes.data, 0xff, bytes.len);
  assert_is_sample_about(&got.about);
  assert_memory_equal(&got.incarnation, &reply.incarnation, sizeof got.incarnation);
  assert_string_equal(got.worker_name, "w-1");
  assert_int_equal(got.n_cores, 8);
  assert_int_equal(got.n_threads, 6);
  assert_int_equal(got.n_devices, 2);
  assert_string_equal(got.device_names[1], "cuda:0");
  assert_int_equal(got.n_artifacts, 2);
  assert_string_equal(got.artifacts[0].name, "resnet-tail.safetensors");
  assert_memory_equal(&got.artifacts[1].sha256, &artifacts[1].sha256, sizeof(clv_sha256));
}

static void assert_kind(const clv_wire_device_kind *k, const char *kind, const char *isa,
                        const char *built_with) {
  assert_string_equal(k->kind, kind);
  assert_string_equal(k->isa, isa);
  assert_string_equal(k->libraries, built_with);
}

/* The kind of each device is sent, or derived from what an older worker sends. */
static void device_kinds_round_trip_or_are_derived(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const char *devices[] = {"cuda:0", "cuda:1", "cpu", "cpu:0"};
  clv_wire_device_kind kinds[] = {
      {"cuda", "sm_90", "x"}, {"cuda", "sm_80", "y"}, {"cpu", "avx2", "z"}, {"cpu", "avx2", "z"}};
  clv_wire_library versions[] = {{"kernels", "oneDNN"}, {"cuda:1", "cuDNN"}};
  clv_wire_hello_reply reply = {.about = make_sample_about(),
                                .worker_name = "w",
                                .n_devices = 4,
                                .device_names = devices,
                                .device_kinds = kinds};
  reply.about.n_libraries = 2;
  reply.about.libraries = versions;
  for (int is_older = 0; is_older < 2; is_older++) {
    CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply got = {0};
    if (is_older) reply.device_kinds = NULL;
    assert_ok(clv_wire_hello_reply_encode(&reply, &bytes, &err));
    assert_ok(clv_wire_hello_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
    assert_kind(&got.device_kinds[0], "cuda", is_older ? "avx2" : "sm_90", is_older ? "" : "x");
    assert_kind(&got.device_kinds[1], "cuda", is_older ? "" : "sm_80", is_older ? "cuDNN" : "y");
    assert_kind(&got.device_kinds[3], "cpu", is_older ? "" : "avx2", is_older ? "oneDNN" : "z");
  }
  kinds[1].kind = "";
  reply.device_kinds = kinds;
  assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "kind of device");
  devices[2] = "";
  reply.device_kinds = NULL;
  assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "name of a device");
}

static void device_names_resolve_to_devices(void **state) {
  (void)state;
  const char *devices[] = {"cpu", "cpu:0", "cuda:1", "cuda:2"};
  clv_wire_hello_reply h = {.n_devices = 4, .device_names = devices};
  assert_int_equal(clv_wire_find_device(&h, "auto"), 2);
  assert_int_equal(clv_wire_find_device(&h, ""), 2);
  assert_int_equal(clv_wire_find_device(&h, NULL), 2);
  assert_int_equal(clv_wire_find_device(&h, "cuda"), 2);
  assert_int_equal(clv_wire_find_device(&h, "cuda:2"), 3);
  assert_int_equal(clv_wire_find_device(&h, "cpu:0"), 1);
  assert_int_equal(clv_wire_find_device(&h, "cuda:0"), -1);
  h.n_devices = 2;
  assert_int_equal(clv_wire_find_device(&h, "auto"), 0);
  assert_int_equal(clv_wire_find_device(&h, "cuda"), -1);
  h.n_devices = 0;
  assert_int_equal(clv_wire_find_device(&h, "auto"), -1);
}

/* A peer that refuses newer protocols than its own, and counts the calls. */
typedef struct old_peer {
  uint32_t highest_protocol, n_calls;
} old_peer;

static clv_code answer_hello(void *peer, const clv_bytes *request, clv_bytes *reply, clv_err *err) {
  old_peer *p = peer;
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request q = {0};
  (void)reply;
  p->n_calls++;
  const clv_piece piece = {request->data, request->len};
  assert_int_equal(clv_wire_hello_request_decode(&piece, 1, &q, err), CLV_OK);
  if (q.about.protocol == p->highest_protocol) return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED, "no %u", q.about.protocol);
}

static void hello_is_repeated_with_older_protocols(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  const clv_wire_about own_about = make_sample_about();
  for (uint32_t protocol = CLV_WIRE_PROTOCOL; protocol >= CLV_WIRE_PROTOCOL_MIN; protocol--) {
    old_peer p = {.highest_protocol = protocol};
    assert_ok(clv_wire_hello_exchange(&own_about, answer_hello, &p, &reply, &err));
    assert_int_equal(p.n_calls, 1 + CLV_WIRE_PROTOCOL - protocol);
  }
  old_peer older = {.highest_protocol = CLV_WIRE_PROTOCOL_MIN - 1};
  assert_fails(clv_wire_hello_exchange(&own_about, answer_hello, &older, &reply, &err),
               CLV_UNIMPLEMENTED, "no 9");
}

static void invalid_hello_is_refused_with_its_reason(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_hello_request request = {.about = make_sample_about()};
  request.about.protocol = CLV_WIRE_PROTOCOL_MIN - 1;
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_UNIMPLEMENTED,
               "protocol 7, this side speaks 8 to 9");
  request.about.protocol = CLV_WIRE_PROTOCOL + 1;
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_UNIMPLEMENTED,
               "protocol 10, this side speaks 8 to 9");
  request.about = make_sample_about();
  request.about.limits.session_bytes = CLV_WIRE_BYTES_MAX + 1;
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_INVALID, "a limit of");
  request.about = make_sample_about();
  request.about.isa = "new\nline";
  assert_fails(clv_wire_hello_request_encode(&request, &bytes, &err), CLV_INVALID, "of isa");
  clv_wire_hello_reply reply = {.about = make_sample_about(), .worker_name = ""};
  assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "worker name");
  static const char *bad_names[] = {"../etc", ".hidden", "a/b", "a b", ""};
  for (size_t i = 0; i < CLV_COUNT(bad_names); i++) {
    clv_wire_artifact artifact = {.name = bad_names[i]};
    reply.worker_name = "w";
    reply.n_artifacts = 1;
    reply.artifacts = &artifact;
    assert_fails(clv_wire_hello_reply_encode(&reply, &bytes, &err), CLV_INVALID, "artifact name");
  }
  clv_piece none = {NULL, 0};
  clv_wire_hello_request got;
  assert_fails(clv_wire_hello_request_decode(&none, 1, &got, &err), CLV_INVALID, "`about`");
  assert_fails(clv_wire_hello_request_decode(NULL, 0, &got, &err), CLV_INVALID, "`about`");
}

/* ---- messages of OpenSession ----------------------------------------------------------------- */

static void open_messages_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const char *peers[] = {"spiffe://hospital/worker-1", "spiffe://hospital/worker-2"};
  clv_wire_open_request request = {.session_id = make_id(1),
                                   .attempt_number = 3,
                                   .session_name = "fashion",
                                   .n_lanes = 2,
                                   .n_peer_identities = 2,
                                   .peer_identities = peers,
                                   .config_digest = make_digest(9),
                                   .is_only_attempt = true,
                                   .reference_lease_ms = 2500};
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_request got = {0};
  assert_ok(clv_wire_open_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_open_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_memory_equal(&got.session_id, &request.session_id, sizeof got.session_id);
  assert_int_equal(got.attempt_number, 3);
  assert_string_equal(got.session_name, "fashion");
  assert_int_equal(got.n_lanes, 2);
  assert_int_equal(got.n_peer_identities, 2);
  assert_string_equal(got.peer_identities[0], peers[0]);
  assert_memory_equal(&got.config_digest, &request.config_digest, sizeof got.config_digest);
  assert_int_equal(got.reference_lease_ms, 2500);
  assert_true(got.is_only_attempt);
  request.n_lanes = CLV_WIRE_LANES + 1;
  assert_fails(clv_wire_open_request_encode(&request, &bytes, &err), CLV_EXHAUSTED, "17 lanes");

  clv_wire_open_reply reply = {.incarnation = make_id(2),
                               .granted_limits = clv_wire_limits_default()};
  CLV_AUTO(clv_wire_message_clear) clv_wire_open_reply got_reply = {0};
  assert_ok(clv_wire_open_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_open_reply_decode(cut_in_half(&bytes).pieces, 2, &got_reply, &err));
  assert_memory_equal(&got_reply.incarnation, &reply.incarnation, sizeof reply.incarnation);
  assert_memory_equal(&got_reply.granted_limits, &reply.granted_limits,
                      sizeof reply.granted_limits);
}

/* Reads leases. If the field is missing, the lease is that of versions without the field. */
static const struct {
  /* lease in ms that a peer requests, and that it gets; 0: refused */
  uint32_t requested_ms, granted_ms;
} leases[] = {{0, 300000}, {1000, 1000},  {86400000, 86400000}, {999, 0},
              {1, 0},      {86400001, 0}, {UINT32_MAX, 0}};

static void reference_lease_out_of_range_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_open_request request = {
      .session_id = make_id(1), .attempt_number = 1, .session_name = "s"};
  for (size_t i = 0; i < CLV_COUNT(leases); i++) {
    CLV_AUTO(clv_wire_message_clear) clv_wire_open_request got = {0};
    request.reference_lease_ms = leases[i].requested_ms;
    if (leases[i].granted_ms) {
      assert_ok(clv_wire_open_request_encode(&request, &bytes, &err));
      assert_ok(clv_wire_open_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
      assert_int_equal(got.reference_lease_ms, leases[i].granted_ms);
    } else {
      assert_fails(clv_wire_open_request_encode(&request, &bytes, &err), CLV_INVALID,
                   "reference lease");
    }
  }
}

static void close_messages_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_close_request request = {.session_id = make_id(1), .attempt_number = 8};
  CLV_AUTO(clv_wire_message_clear) clv_wire_close_request got = {0};
  assert_ok(clv_wire_close_request_encode(&request, &bytes, &err));
  assert_ok(clv_wire_close_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_memory_equal(&got.session_id, &request.session_id, sizeof got.session_id);
  assert_int_equal(got.attempt_number, 8);
  clv_wire_close_reply reply = {.bytes_in = 1, .bytes_out = 2, .n_forwards = 3, .n_backwards = 4};
  CLV_AUTO(clv_wire_message_clear) clv_wire_close_reply got_reply = {0};
  assert_ok(clv_wire_close_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_close_reply_decode(cut_in_half(&bytes).pieces, 2, &got_reply, &err));
  assert_int_equal(got_reply.bytes_in, 1);
  assert_int_equal(got_reply.bytes_out, 2);
  assert_int_equal(got_reply.n_forwards, 3);
  assert_int_equal(got_reply.n_backwards, 4);
  static const char short_id[] =
      "\x0a\x02"
      "ab";
  clv_piece piece = {short_id, sizeof short_id - 1};
  clv_wire_close_request refused_request;
  assert_fails(clv_wire_close_request_decode(&piece, 1, &refused_request, &err), CLV_INVALID,
               "session id of 2 bytes; it must have 16");
}

/* ---- messages of Status ---------------------------------------------------------------------- */

static void status_request_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  for (int wants_all_sessions = 0; wants_all_sessions < 2; wants_all_sessions++) {
    clv_wire_status_request request = {.all_sessions = wants_all_sessions,
                                       .session_id = make_id(5)};
    CLV_AUTO(clv_wire_message_clear) clv_wire_status_request got = {0};
    assert_ok(clv_wire_status_request_encode(&request, &bytes, &err));
    assert_ok(clv_wire_status_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
    assert_int_equal(got.all_sessions, wants_all_sessions);
    if (!wants_all_sessions)
      assert_memory_equal(&got.session_id, &request.session_id, sizeof got.session_id);
  }
}

static const clv_wire_kept_request kept_requests[] = {
    {.file_name = "", .after_file_name = ""},
    {.kept_kind = CLV_KEPT_CACHES,
     .has_cache_key = true,
     .cache_key = {{3, 4}},
     .file_name = "",
     .after_file_name = ""},
    {.kept_kind = CLV_KEPT_FILES, .file_name = "a.w", .after_file_name = "", .wants_digest = true},
    {.kept_kind = CLV_KEPT_FILES, .file_name = "", .after_file_name = "a.w"},
    {.verb = CLV_KEPT_READ,
     .kept_kind = CLV_KEPT_FILES,
     .file_name = "a.w",
     .after_file_name = "",
     .range_offset = 7,
     .range_length = 1 << 20,
     .file_version = 9},
    {.verb = CLV_KEPT_REMOVE,
     .kept_kind = CLV_KEPT_FILES,
     .file_name = "a.w",
     .after_file_name = ""},
    {.verb = CLV_KEPT_REMOVE,
     .kept_kind = CLV_KEPT_CACHES,
     .file_name = "",
     .after_file_name = ""}};

static void kept_requests_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  for (size_t i = 0; i < CLV_COUNT(kept_requests); i++) {
    const clv_wire_kept_request *q = &kept_requests[i];
    CLV_AUTO(clv_wire_message_clear) clv_wire_kept_request got = {0};
    assert_ok(clv_wire_kept_request_encode(q, &bytes, &err));
    if (!bytes.len) continue; /* a message whose fields are all 0 has no bytes */
    assert_ok(clv_wire_kept_request_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
    assert_true(got.verb == q->verb && got.kept_kind == q->kept_kind &&
                got.has_cache_key == q->has_cache_key);
    assert_true(got.range_offset == q->range_offset && got.range_length == q->range_length &&
                got.file_version == q->file_version);
    assert_string_equal(got.file_name, q->file_name);
    assert_string_equal(got.after_file_name, q->after_file_name);
    assert_memory_equal(&got.cache_key, &q->cache_key, sizeof got.cache_key);
    assert_true(got.wants_digest == q->wants_digest);
  }
}

static void wrong_kept_requests_are_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  const struct {
    clv_wire_kept_request request;
    const char *text;
  } bad_requests[] = {
      {{.file_name = "../x"}, "must be 1 to 128 characters"},
      {{.kept_kind = CLV_KEPT_FILES, .after_file_name = ".x"}, "must be 1 to 128 characters"},
      {{.has_cache_key = true}, "not about caches"},
      {{.kept_kind = CLV_KEPT_CACHES, .file_name = "x"}, "the name of a file"},
      {{.kept_kind = CLV_KEPT_FILES, .wants_digest = true}, "a LIST of one file"},
      {{.range_length = 1}, "a range is for READ"},
      {{.verb = CLV_KEPT_READ, .file_name = "x", .range_length = 1}, "with the sort 0"},
      {{.verb = CLV_KEPT_READ, .kept_kind = CLV_KEPT_CACHES, .range_length = 1}, "with the sort 1"},
      {{.verb = CLV_KEPT_READ, .kept_kind = CLV_KEPT_FILES, .range_length = 1}, "names no file"},
      {{.verb = CLV_KEPT_READ, .kept_kind = CLV_KEPT_FILES, .file_name = "x"},
       "a range of 0 bytes"},
      {{.verb = CLV_KEPT_READ,
        .kept_kind = CLV_KEPT_FILES,
        .file_name = "x",
        .range_length = (1 << 20) + 1},
       "a range of 1048577 bytes"},
      {{.verb = CLV_KEPT_READ,
        .kept_kind = CLV_KEPT_FILES,
        .file_name = "x",
        .range_length = 1,
        .range_offset = UINT64_MAX},
       "the limit is"},
      {{.verb = CLV_KEPT_READ,
        .kept_kind = CLV_KEPT_FILES,
        .file_name = "x",
        .range_length = 1,
        .after_file_name = "x"},
       "is for LIST"},
      {{.verb = CLV_KEPT_REMOVE}, "with the sort 0"},
      {{.verb = CLV_KEPT_REMOVE, .kept_kind = CLV_KEPT_FILES}, "names no file"}};
  for (size_t i = 0; i < CLV_COUNT(bad_requests); i++)
    assert_fails(clv_wire_kept_request_encode(&bad_requests[i].request, &bytes, &err), CLV_INVALID,
                 bad_requests[i].text);
}

static void kept_replies_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  CLV_AUTO(clv_freep) char *data = calloc(CLV_WIRE_KEPT_BYTES, 1);
  clv_wire_cache_status two_caches[] = {{{{1}}, 9, 9, 64, 8192, 5, 55},
                                        {{{2}}, 9, 0, 1, 4096, 6, 54}};
  clv_wire_kept_file two_files[] = {{"a.w", 100, 3, 77, true, {{5}}},
                                    {"b.o", 0, 0, 1, false, {{0}}}};
  clv_wire_kept_reply reply = {.n_caches = 2,
                               .caches = two_caches,
                               .n_files = 2,
                               .files = two_files,
                               .has_more_files = true,
                               .data = data,
                               .data_bytes = CLV_WIRE_KEPT_BYTES,
                               .used_bytes = 8,
                               .quota_bytes = 9};
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_reply got = {0};
  assert_ok(clv_wire_kept_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_kept_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_true(got.n_caches == 2 && got.n_files == 2 && got.has_more_files);
  assert_true(got.data_bytes == CLV_WIRE_KEPT_BYTES && got.used_bytes == 8 && got.quota_bytes == 9);
  assert_memory_equal(got.caches, two_caches, sizeof two_caches);
  assert_string_equal(got.files[0].file_name, "a.w");
  assert_true(got.files[0].has_sha256 && !got.files[1].has_sha256 && got.files[0].age_s == 3);
  assert_true(got.files[0].file_bytes == 100 && got.files[0].file_version == 77);
  assert_memory_equal(&got.files[0].sha256, &two_files[0].sha256, sizeof two_files[0].sha256);
  reply.data_bytes = 0;
  two_caches[0].n_rows = 10;
  assert_fails(clv_wire_kept_reply_encode(&reply, &bytes, &err), CLV_INVALID,
               "10 rows of a cache for 9 records");
  two_caches[0].n_rows = 9;
  two_files[0].file_version = 0;
  assert_fails(clv_wire_kept_reply_encode(&reply, &bytes, &err), CLV_INVALID, "has version 0");
  two_files[0].file_name = "../a";
  assert_fails(clv_wire_kept_reply_encode(&reply, &bytes, &err), CLV_INVALID,
               "not the name of a file");
}

static clv_wire_module_status some_modules[] = {
    {.module_index = 1, .n_forwards = 3, .n_backwards = 4},
    {.module_index = 6,
     .n_steps = 7,
     .n_forwards = 8,
     .n_backwards = 9,
     .n_evals = 10,
     .compute_ns = 11,
     .module_name = "tail",
     .device_name = "cuda:0"}};

static clv_wire_link_status some_links[] = {
    {.peer_name = "", .bytes_in = 1},
    {"worker-2", 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}};

static clv_wire_session_status some_sessions[] = {{.attempt_number = 2,
                                                   .bytes_in = 3,
                                                   .bytes_out = 4,
                                                   .memory_bytes = 5,
                                                   .session_name = "one",
                                                   .owner_identity = "spiffe://test/master",
                                                   .n_contexts = 6,
                                                   .n_modules = 2,
                                                   .n_links = 2,
                                                   .is_attached = true,
                                                   .n_held_values = 7,
                                                   .n_waiting_calls = 8,
                                                   .n_late_frames = 9,
                                                   .n_references_owned = 10,
                                                   .n_references_used = 17,
                                                   .n_references_pending = 18,
                                                   .age_ms = 11,
                                                   .memory_limit = 12,
                                                   .busy_ns = 13,
                                                   .idle_ns = 14,
                                                   .share_wait_ns = 15,
                                                   .modules = some_modules,
                                                   .links = some_links,
                                                   .last_error = {"no memory", 16}},
                                                  {.session_name = "", .last_error = {NULL, 3}}};

static clv_wire_device_status some_devices[] = {{"cuda:0", "cuda", "sm_90", 1, 2, 3},
                                                {"cpu", "cpu", "avx2", 4, 0, 0}};

static clv_wire_status_reply make_status_reply(void) {
  some_sessions[0].session_id = make_id(1);
  return (clv_wire_status_reply){.incarnation = make_id(3),
                                 .uptime_ms = 1,
                                 .rss_bytes = 2,
                                 .is_draining = true,
                                 .caller_sees_all = true,
                                 .has_about = true,
                                 .about = make_sample_about(),
                                 .worker_name = "w-1",
                                 .device_name = "cpu",
                                 .n_cores = 3,
                                 .n_open_sessions = 4,
                                 .n_connections = 5,
                                 .max_connections = 6,
                                 .n_sessions_left_out = 7,
                                 .memory_bytes = 8,
                                 .memory_limit = 9,
                                 .n_handshake_failures = 10,
                                 .certificate_expiry_s = 11,
                                 .last_error = {"refused", 12},
                                 .n_sessions = 2,
                                 .sessions = some_sessions,
                                 .n_devices = 2,
                                 .devices = some_devices};
}

static void assert_session(const clv_wire_session_status *got) {
  const clv_wire_session_status *want = &some_sessions[0];
  assert_memory_equal(&got->session_id, &want->session_id, sizeof(clv_wire_id));
  assert_int_equal(got->attempt_number, 2);
  assert_int_equal(got->bytes_in, 3);
  assert_int_equal(got->bytes_out, 4);
  assert_int_equal(got->memory_bytes, 5);
  assert_string_equal(got->session_name, "one");
  assert_string_equal(got->owner_identity, "spiffe://test/master");
  assert_int_equal(got->n_contexts, 6);
  assert_true(got->is_attached);
  assert_int_equal(got->n_held_values, 7);
  assert_int_equal(got->n_waiting_calls, 8);
  assert_int_equal(got->n_late_frames, 9);
  assert_int_equal(got->n_references_owned, 10);
  assert_int_equal(got->n_references_used, 17);
  assert_int_equal(got->n_references_pending, 18);
  assert_int_equal(got->age_ms, 11);
  assert_int_equal(got->memory_limit, 12);
  assert_int_equal(got->busy_ns, 13);
  assert_int_equal(got->idle_ns, 14);
  assert_int_equal(got->share_wait_ns, 15);
  assert_string_equal(got->last_error.text, "no memory");
  assert_int_equal(got->last_error.age_ms, 16);
  assert_int_equal(got->n_modules, 2);
  for (int i = 0; i < 2; i++)
    assert_memory_equal(&got->modules[i], &some_modules[i],
                        offsetof(clv_wire_module_status, module_name));
  assert_string_equal(got->modules[0].module_name, "");
  assert_string_equal(got->modules[1].module_name, "tail");
  assert_int_equal(got->n_links, 2);
  assert_string_equal(got->links[0].peer_name, "");
  assert_string_equal(got->links[1].peer_name, "worker-2");
  size_t numbers_offset = offsetof(clv_wire_link_status, bytes_in);
  for (int i = 0; i < 2; i++)
    assert_memory_equal(&got->links[i].bytes_in, &some_links[i].bytes_in,
                        sizeof *some_links - numbers_offset);
}

static void status_reply_round_trips(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  clv_wire_status_reply reply = make_status_reply();
  CLV_AUTO(clv_wire_message_clear) clv_wire_status_reply got = {0};
  assert_ok(clv_wire_status_reply_encode(&reply, &bytes, &err));
  assert_ok(clv_wire_status_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_memory_equal(&got.incarnation, &reply.incarnation, sizeof got.incarnation);
  assert_int_equal(got.uptime_ms, 1);
  assert_int_equal(got.rss_bytes, 2);
  assert_true(got.is_draining && got.caller_sees_all && got.has_about);
  assert_is_sample_about(&got.about);
  assert_string_equal(got.worker_name, "w-1");
  assert_string_equal(got.device_name, "cpu");
  assert_int_equal(got.n_cores, 3);
  assert_int_equal(got.n_open_sessions, 4);
  assert_int_equal(got.n_connections, 5);
  assert_int_equal(got.max_connections, 6);
  assert_int_equal(got.n_sessions_left_out, 7);
  assert_int_equal(got.memory_bytes, 8);
  assert_int_equal(got.memory_limit, 9);
  assert_int_equal(got.n_handshake_failures, 10);
  assert_int_equal(got.certificate_expiry_s, 11);
  assert_string_equal(got.last_error.text, "refused");
  assert_int_equal(got.last_error.age_ms, 12);
  assert_int_equal(got.n_devices, 2);
  for (int i = 0; i < 2; i++) {
    const clv_wire_device_status *a = &got.devices[i], *b = &some_devices[i];
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->kind, b->kind);
    assert_string_equal(a->isa, b->isa);
    assert_true(a->used_memory_bytes == b->used_memory_bytes && a->memory_limit == b->memory_limit);
    assert_int_equal(a->total_memory_bytes, b->total_memory_bytes);
  }
  assert_int_equal(got.n_sessions, 2);
  assert_session(&got.sessions[0]);
  assert_int_equal(got.sessions[1].n_modules, 0);
  assert_int_equal(got.sessions[1].n_links, 0);
  assert_string_equal(got.sessions[1].last_error.text, "");
}

static void overlong_module_name_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  char name[CLV_WIRE_NAME + 2];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  clv_wire_module_status module = {.module_name = name};
  clv_wire_session_status session = {.session_name = "s", .n_modules = 1, .modules = &module};
  clv_wire_status_reply reply = {.n_sessions = 1, .sessions = &session};
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_EXHAUSTED,
               "129 bytes of module name");
  name[CLV_WIRE_NAME] = '\0';
  assert_ok(clv_wire_status_reply_encode(&reply, &bytes, &err));
}

/* A worker of an older version sends fewer fields. The fields that it did not send stay 0. */
static void status_reply_of_an_older_worker_is_read(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_status_reply got = {0};
  clv_wire_status_reply old_reply = {.incarnation = make_id(3), .uptime_ms = 5};
  assert_ok(clv_wire_status_reply_encode(&old_reply, &bytes, &err));
  assert_ok(clv_wire_status_reply_decode(cut_in_half(&bytes).pieces, 2, &got, &err));
  assert_false(got.has_about);
  assert_string_equal(got.worker_name, "");
  assert_string_equal(got.about.software, "");
  assert_string_equal(got.last_error.text, "");
}

static void invalid_status_reply_is_refused_with_its_reason(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  static clv_wire_link_status many_links[CLV_WIRE_LINKS + 1];
  static char name[CLV_WIRE_NAME + 2];
  memset(name, 'n', sizeof name - 1);
  clv_wire_session_status session = {.n_links = CLV_WIRE_LINKS + 1, .links = many_links};
  clv_wire_status_reply reply = make_status_reply();
  reply.n_sessions = 1;
  reply.sessions = &session;
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_EXHAUSTED, "links");
  session.n_links = 1;
  many_links[0].peer_name = name;
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_INVALID, "a name of more");
  many_links[0].peer_name = "a\x1b[2Jb";
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_INVALID, "peer");
  many_links[0].peer_name = "w2";
  session.last_error.text = "two\nlines";
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_INVALID, "text");
  session.last_error.text = "";
  reply.about.protocol = CLV_WIRE_PROTOCOL + 1;
  assert_fails(clv_wire_status_reply_encode(&reply, &bytes, &err), CLV_UNIMPLEMENTED, "protocol");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hello_round_trips),
      cmocka_unit_test(hello_reply_round_trips),
      cmocka_unit_test(device_kinds_round_trip_or_are_derived),
      cmocka_unit_test(device_names_resolve_to_devices),
      cmocka_unit_test(hello_is_repeated_with_older_protocols),
      cmocka_unit_test(invalid_hello_is_refused_with_its_reason),
      cmocka_unit_test(open_messages_round_trip),
      cmocka_unit_test(reference_lease_out_of_range_is_refused),
      cmocka_unit_test(close_messages_round_trip),
      cmocka_unit_test(status_request_round_trips),
      cmocka_unit_test(kept_requests_round_trip),
      cmocka_unit_test(wrong_kept_requests_are_refused),
      cmocka_unit_test(kept_replies_round_trip),
      cmocka_unit_test(status_reply_round_trips),
      cmocka_unit_test(overlong_module_name_is_refused),
      cmocka_unit_test(status_reply_of_an_older_worker_is_read),
      cmocka_unit_test(invalid_status_reply_is_refused_with_its_reason),
  };
  return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
