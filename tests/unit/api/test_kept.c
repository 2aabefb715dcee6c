/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the master's client for files that a worker keeps, over real TLS. The test plays the
 * worker, which sends short answers, changes files, lists files in pages, and contradicts
 * itself.
 */
#include "master/api/api.h"

#include "common/net/wire/wire.h"
#include "tests/unit/rpc/rpc_fixture.h"

enum { FILE_BYTES = (2 << 20) + 777, N_FILES = 3 };

/* Faults of the worker in this test; each case of the test sets one fault. */
typedef enum fault {
  HONEST,
  ANOTHER_VERSION, /* from the third request on, the worker sends ranges of a newer version */
  ANOTHER_NAME,
  ONE_BYTE_MORE,
  NO_BYTES,
  UNSORTED,
  ENDLESS,
} fault;

static _Atomic fault worker_fault;
static _Atomic unsigned n_calls;
static char *contents;

static clv_code answer_list(const clv_wire_kept_request *q, clv_bytes *reply, clv_err *err) {
  static const char *const names[] = {"a.o", "a.w", "b.w"};
  clv_wire_kept_file f = {
      .file_bytes = FILE_BYTES, .file_version = 5, .has_sha256 = q->wants_digest};
  clv_wire_kept_reply out = {.files = &f, .used_bytes = 7, .quota_bytes = 9};
  int i = 0;
  while (i < N_FILES && strcmp(names[i], q->file_name[0] ? q->file_name : q->after_file_name) <
                            (q->file_name[0] ? 0 : 1))
    i++;
  if (worker_fault == UNSORTED) i = 0;
  f.file_name = i < N_FILES ? names[i] : "";
  out.n_files = i < N_FILES && worker_fault != ENDLESS &&
                (!q->file_name[0] || strcmp(f.file_name, q->file_name) == 0);
  out.has_more_files = !q->file_name[0] && (i < N_FILES - 1 || worker_fault == ENDLESS);
  return clv_wire_kept_reply_encode(&out, reply, err);
}

/* Answers as the worker to a request for a range of a file, with at most 700,000 bytes. If
 * worker_fault is set, the answer has that fault. */
static clv_code answer_range(const clv_wire_kept_request *q, clv_bytes *reply, clv_err *err) {
  clv_wire_kept_file f = {.file_name = q->file_name, .file_bytes = FILE_BYTES, .file_version = 5};
  if (q->range_offset + q->range_length > FILE_BYTES)
    return clv_fail(err, CLV_RANGE, "the file has %d bytes", FILE_BYTES);
  clv_wire_kept_reply out = {.files = &f,
                             .n_files = 1,
                             .data = contents + q->range_offset,
                             .data_bytes = CLV_MIN(q->range_length, (uint64_t)700000)};
  if (worker_fault == ANOTHER_VERSION && n_calls > 2) f.file_version = 6;
  if (worker_fault == ANOTHER_NAME) f.file_name = "other";
  if (worker_fault == ONE_BYTE_MORE) out.data_bytes = q->range_length + 1;
  if (worker_fault == NO_BYTES) out.data_bytes = 0;
  return clv_wire_kept_reply_encode(&out, reply, err);
}

static clv_code answer_request(void *user, const clv_rpc_peer *peer, const clv_iov *request,
                               size_t n, clv_bytes *reply, clv_err *err) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_kept_request q = {0};
  (void)user, (void)peer;
  n_calls++;
  CLV_TRY(clv_wire_kept_request_decode((const clv_piece *)request, n, &q, err));
  if (q.verb == CLV_KEPT_LIST) return answer_list(&q, reply, err);
  if (q.verb == CLV_KEPT_READ) return answer_range(&q, reply, err);
  return clv_fail(err, CLV_NOT_FOUND, "no file '%s'", q.file_name);
}

/* ---- a worker that answers requests for its files, and a client ------------------------------ */

static clv_rpc_runtime *runtime;
static service worker;
static identity master, worker_identity;
static cleave_kept_client *client;

static int set_up(void **state) {
  static const clv_rpc_unary kept_methods[] = {{CLV_METHOD_KEPT, 0, answer_request}};
  static char paths[3][200];
  clv_err err;
  (void)state;
  must(clv_tls_set_min_version(&err), &err);
  make_scratch();
  master = issue_identity_with_uri("home", "master", MASTER_URI);
  worker_identity = issue_identity_with_uri("home", "worker", WORKER_URI);
  runtime = make_runtime();
  clv_rpc_server_options o = make_service_options(&worker, &worker_identity);
  o.unary_methods = kept_methods;
  o.n_unary_methods = 1;
  start_service(&worker, runtime, &o);
  contents = malloc(FILE_BYTES);
  for (size_t i = 0; i < FILE_BYTES; i++) contents[i] = (char)(i * 31 + i / 999);
  const char *const files[] = {"ca.pem", "master.pem", "master.key"};
  for (int i = 0; i < 3; i++)
    snprintf(paths[i], sizeof paths[i], "%s/%s", get_ca_dir("home"), files[i]);
  const clv_session_config config = {.tls = {.ca = paths[0], .cert = paths[1], .key = paths[2]},
                                     .limits.connect_timeout_ms = 10000};
  const clv_remote_spec w = {.name = "w1", .address = worker.target, .identity = WORKER_URI};
  must(cleave_kept_open(&config, &w, 0, &client, &err), &err);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  cleave_kept_close(client);
  stop_service(&worker);
  clv_rpc_runtime_free(runtime);
  free_identity(&master);
  free_identity(&worker_identity);
  free(contents);
  return remove_scratch();
}

static void set_fault(fault fault_kind) {
  worker_fault = fault_kind;
  n_calls = 0;
}

/* ---- reading files that a worker keeps ------------------------------------------------------- */

static void long_range_is_read_in_calls_of_one_version(void **state) {
  clv_err err;
  uint64_t version = 0;
  CLV_AUTO(clv_freep) char *got = calloc(FILE_BYTES, 1);
  (void)state;
  set_fault(HONEST);
  must(cleave_kept_read(client, "a.w", 0, got, FILE_BYTES, &version, &err), &err);
  assert_memory_equal(got, contents, FILE_BYTES);
  assert_int_equal(version, 5);
  assert_in_range(n_calls, 3, 5);
  must(cleave_kept_read(client, "a.w", FILE_BYTES - 3, got, 3, &version, &err), &err);
  assert_memory_equal(got, contents + FILE_BYTES - 3, 3);
  assert_int_equal(cleave_kept_read(client, "a.w", FILE_BYTES - 3, got, 4, &version, &err),
                   CLV_RANGE);
}

static void contradicting_ranges_are_refused(void **state) {
  static const struct {
    fault fault_kind;
    clv_code code;
    const char *text;
  } cases[] = {{ANOTHER_VERSION, CLV_ABORTED, "'a.w' changed while it was read"},
               {ANOTHER_NAME, CLV_BAD_ANSWER, "is about another file"},
               {ONE_BYTE_MORE, CLV_BAD_ANSWER, "has another length"},
               {NO_BYTES, CLV_BAD_ANSWER, "has another length"}};
  CLV_AUTO(clv_freep) char *got = calloc(FILE_BYTES, 1);
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    size_t length = cases[i].fault_kind == ONE_BYTE_MORE ? 1000 : FILE_BYTES;
    uint64_t version = 0;
    clv_err err;
    set_fault(cases[i].fault_kind);
    assert_int_equal(cleave_kept_read(client, "a.w", 0, got, length, &version, &err),
                     cases[i].code);
    if (!strstr(err.text, cases[i].text)) fail_msg("%s", err.text);
  }
}

static void pages_of_a_list_are_joined(void **state) {
  CLV_AUTO(cleave_kept_files_done) cleave_kept_files l = {0};
  clv_err err;
  (void)state;
  set_fault(HONEST);
  must(cleave_kept_list(client, NULL, &l, &err), &err);
  assert_int_equal(l.n, N_FILES);
  assert_int_equal(n_calls, N_FILES);
  assert_string_equal(l.files[0].name, "a.o");
  assert_string_equal(l.files[2].name, "b.w");
  assert_true(!l.files[0].has_sha256 && l.files[0].version == 5 && l.files[0].bytes == FILE_BYTES);
  assert_true(l.used_bytes == 7 && l.quota_bytes == 9);
  cleave_kept_files_done(&l);
  must(cleave_kept_list(client, "a.w", &l, &err), &err);
  assert_true(l.n == 1 && l.files[0].has_sha256);
  cleave_kept_files_done(&l);
  must(cleave_kept_list(client, "none", &l, &err), &err);
  assert_int_equal(l.n, 0);
  assert_int_equal(cleave_kept_remove(client, "none", &err), CLV_NOT_FOUND);
}

static void endless_lists_are_refused(void **state) {
  cleave_kept_files l = {0};
  clv_err err;
  (void)state;
  set_fault(UNSORTED);
  assert_int_equal(cleave_kept_list(client, NULL, &l, &err), CLV_BAD_ANSWER);
  assert_non_null(strstr(err.text, "is not sorted by name"));
  assert_int_equal(n_calls, 2); /* the first name that does not ascend is refused */
  set_fault(ENDLESS);
  assert_int_equal(cleave_kept_list(client, NULL, &l, &err), CLV_BAD_ANSWER);
  assert_non_null(strstr(err.text, "has no end"));
  assert_null(l.files);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(long_range_is_read_in_calls_of_one_version),
      cmocka_unit_test(contradicting_ranges_are_refused),
      cmocka_unit_test(pages_of_a_list_are_joined),
      cmocka_unit_test(endless_lists_are_refused),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
