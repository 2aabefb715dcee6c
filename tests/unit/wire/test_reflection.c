/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the messages of gRPC's services Health and Reflection against protobuf-c.
 */
#include "tests/unit/wire/wire_test.h"

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse response;
#define QUESTION(which) \
  GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##which
#define ANSWER(which) \
  GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##which

static void health_messages_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes bytes = {0};
  char service[CLV_WIRE_NAME + 1];
  clv_health status;
  assert_ok(clv_wire_health_request_encode("cleave.v1.Worker", &bytes, &err));
  assert_ok(clv_wire_health_request_decode(&(clv_piece){bytes.data, bytes.len}, 1, service, &err));
  assert_string_equal(service, "cleave.v1.Worker");
  assert_ok(clv_wire_health_request_encode("", &bytes, &err));
  assert_int_equal(bytes.len, 0);
  assert_ok(clv_wire_health_request_decode(NULL, 0, service, &err));
  assert_string_equal(service, "");
  assert_ok(clv_wire_health_reply_encode(CLV_HEALTH_NOT_SERVING, &bytes, &err));
  Grpc__Health__V1__HealthCheckResponse *r =
      grpc__health__v1__health_check_response__unpack(NULL, bytes.len, (uint8_t *)bytes.data);
  assert_int_equal(r->status, 2);
  grpc__health__v1__health_check_response__free_unpacked(r, NULL);
  assert_ok(clv_wire_health_reply_decode(&(clv_piece){bytes.data, bytes.len}, 1, &status, &err));
  assert_int_equal(status, CLV_HEALTH_NOT_SERVING);
  clv_piece unknown_status = {"\x08\x04", 2};
  assert_fails(clv_wire_health_reply_decode(&unknown_status, 1, &status, &err), CLV_INVALID,
               "status 4");
  char long_name[2 + CLV_WIRE_NAME + 1] = {0x0a, (char)(CLV_WIRE_NAME + 1)};
  memset(long_name + 2, 'a', CLV_WIRE_NAME + 1);
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
  clv_bytes_add(&name, "\x0a\x81\x01", 3);
  clv_bytes_add(&name, long_name + 2, CLV_WIRE_NAME + 1);
  assert_fails(clv_wire_health_request_decode(&(clv_piece){name.data, name.len}, 1, service, &err),
               CLV_INVALID, "service name of 129 bytes");
}

/* Returns the answer to one question; the caller frees it. */
static response *ask_question(const request *question) {
  clv_err err = {0};
  uint8_t packed[512];
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  size_t len = grpc__reflection__v1alpha__server_reflection_request__pack(question, packed);
  assert_ok(clv_wire_answer_reflection(&(clv_piece){packed, len}, 1, &reply, &err));
  response *r = grpc__reflection__v1alpha__server_reflection_response__unpack(
      NULL, reply.len, (uint8_t *)reply.data);
  assert_non_null(r);
  assert_non_null(r->original_request);
  assert_int_equal(r->original_request->message_request_case, question->message_request_case);
  return r;
}

static void free_response(response *r) {
  grpc__reflection__v1alpha__server_reflection_response__free_unpacked(r, NULL);
}

static void reflection_lists_all_services(void **state) {
  (void)state;
  request q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
  q.host = "here";
  q.message_request_case = QUESTION(LIST_SERVICES);
  q.list_services = "*";
  response *r = ask_question(&q);
  assert_string_equal(r->valid_host, "here");
  assert_int_equal(r->message_response_case, ANSWER(LIST_SERVICES_RESPONSE));
  assert_int_equal(r->list_services_response->n_service, 3);
  static const char *wanted[] = {"cleave.v1.Worker", "grpc.health.v1.Health",
                                 "grpc.reflection.v1alpha.ServerReflection"};
  for (size_t i = 0; i < 3; i++)
    assert_string_equal(r->list_services_response->service[i]->name, wanted[i]);
  free_response(r);
}

/* True if the response has this file: its descriptor begins with its name, field 1. */
static bool has_file(const response *r, const char *name) {
  if (r->message_response_case != ANSWER(FILE_DESCRIPTOR_RESPONSE)) return false;
  const ProtobufCBinaryData *file = r->file_descriptor_response->file_descriptor_proto;
  return r->file_descriptor_response->n_file_descriptor_proto == 1 && file->data[0] == 0x0a &&
         file->data[1] == strlen(name) && memcmp(file->data + 2, name, strlen(name)) == 0;
}

static void reflection_finds_files_by_name_and_symbol(void **state) {
  (void)state;
  static const struct {
    int is_by_symbol;
    char *text;
    const char *file;
  } cases[] = {
      {0, "cleave/v1/cleave.proto", "cleave/v1/cleave.proto"},
      {0, "grpc/health/v1/health.proto", "grpc/health/v1/health.proto"},
      {0, "cleave/v1/cleave.prot", NULL},
      {0, "../cleave/v1/cleave.proto", NULL},
      {0, "", NULL},
      {1, "cleave.v1.Worker", "cleave/v1/cleave.proto"},
      {1, "cleave.v1.Worker.Session", "cleave/v1/cleave.proto"},
      {1, "cleave.v1.Frame", "cleave/v1/cleave.proto"},
      {1, "cleave.v1.FrameKind", "cleave/v1/cleave.proto"},
      {1, "grpc.health.v1.Health.Watch", "grpc/health/v1/health.proto"},
      {1, "grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"},
      {1, "grpc.reflection.v1alpha.ServerReflection", "grpc/reflection/v1alpha/reflection.proto"},
      {1, "cleave.v1.Worker.None", NULL},
      {1, "cleave.v1.Work", NULL},
      {1, "cleave.v1.Workers", NULL},
      {1, "cleave.v1", NULL},
      {1, "cleave.v1.", NULL},
      {1, "", NULL},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    request q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    q.message_request_case =
        cases[i].is_by_symbol ? QUESTION(FILE_CONTAINING_SYMBOL) : QUESTION(FILE_BY_FILENAME);
    if (cases[i].is_by_symbol) {
      q.file_containing_symbol = cases[i].text;
    } else {
      q.file_by_filename = cases[i].text;
    }
    response *r = ask_question(&q);
    bool is_found = r->message_response_case == ANSWER(FILE_DESCRIPTOR_RESPONSE);
    if (is_found != (cases[i].file != NULL) || (is_found && !has_file(r, cases[i].file)))
      fail_msg("case %zu, \"%s\"", i, cases[i].text);
    if (!is_found) assert_int_equal(r->error_response->error_code, CLV_NOT_FOUND);
    free_response(r);
  }
}

static void unsupported_reflection_requests_are_unimplemented(void **state) {
  (void)state;
  request q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
  q.message_request_case = QUESTION(ALL_EXTENSION_NUMBERS_OF_TYPE);
  q.all_extension_numbers_of_type = "cleave.v1.Frame";
  response *r = ask_question(&q);
  assert_int_equal(r->message_response_case, ANSWER(ERROR_RESPONSE));
  assert_int_equal(r->error_response->error_code, CLV_UNIMPLEMENTED);
  free_response(r);
  request none = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
  r = ask_question(&none);
  assert_int_equal(r->error_response->error_code, CLV_UNIMPLEMENTED);
  free_response(r);
}

static void malformed_reflection_request_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  clv_piece truncated = {
      "\x1a\x05"
      "ab",
      4};
  assert_fails(clv_wire_answer_reflection(&truncated, 1, &reply, &err), CLV_INVALID, "2 are left");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(health_messages_round_trip),
      cmocka_unit_test(reflection_lists_all_services),
      cmocka_unit_test(reflection_finds_files_by_name_and_symbol),
      cmocka_unit_test(unsupported_reflection_requests_are_unimplemented),
      cmocka_unit_test(malformed_reflection_request_is_refused),
  };
  return cmocka_run_group_tests_name("reflection", tests, NULL, NULL);
}
