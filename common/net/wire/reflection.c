/* SPDX-License-Identifier: Apache-2.0
 *
 * Server reflection: answers from the FileDescriptorSet that the build embeds. The set is trusted
 * and small, so each request walks it again.
 */
#include "common/net/wire/unary_int.h"

#include "grpc/reflection/v1alpha/reflection.pb-c.h"

#include <stdio.h>
#include <string.h>

/* FileDescriptorSet of all services, which the build makes from their .proto files. */
extern const unsigned char clv_descriptor_set[];
extern const size_t clv_descriptor_set_len;

/* Short names for the cases of the two oneofs (unions) of reflection messages. */
#define QUESTION(which) \
  GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##which
#define ANSWER(which) \
  GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##which

enum {
  SET_FILE = 1, /* field numbers of google/protobuf/descriptor.proto */
  ANY_NAME = 1, /* field of the name in a file, a message, an enum, a service and a method */
  FILE_PACKAGE = 2,
  FILE_MESSAGE = 4,
  FILE_ENUM = 5,
  FILE_SERVICE = 6,
  /* first and last of the fields that list the members of a message, a service or an enum */
  MEMBER_FIRST = 2,
  MEMBER_LAST = 4,
  SERVICES_MAX = 16,
};

typedef struct text_range {
  const char *data;
  size_t len;
} text_range;

/* Reads the next length-delimited field of a message. False: the end. */
static bool read_next_field(text_range *message, uint32_t *ret_number, text_range *ret_value) {
  while (message->len) {
    clv_wire_cursor c;
    clv_field_tag tag;
    size_t len = 0;
    clv_piece piece = {message->data, message->len};
    if (clv_cursor_init(&c, &piece, 1, message->len, NULL) != CLV_OK ||
        clv_cursor_read_tag(&c, &tag, NULL) != CLV_OK)
      return false;
    clv_code code = tag.wire_type == WIRE_LEN ? clv_cursor_read_length(&c, &len, NULL)
                                              : clv_cursor_skip_field(&c, tag.wire_type, NULL);
    if (code != CLV_OK) return false;
    *ret_number = tag.field_number;
    *ret_value = (text_range){message->data + c.message_pos, len};
    message->data += c.message_pos + len;
    message->len -= c.message_pos + len;
    if (tag.wire_type == WIRE_LEN) return true;
  }
  return false;
}

static text_range first_field_value(text_range message, uint32_t number) {
  text_range value;
  uint32_t found;
  while (read_next_field(&message, &found, &value))
    if (found == number) return value;
  return (text_range){"", 0};
}

static bool is_equal_text(text_range a, const char *text) {
  return strlen(text) == a.len && memcmp(a.data, text, a.len) == 0;
}

/* Returns the text after `prefix` and a dot, "" if both are equal; NULL: text does not begin with
 * it. */
static const char *text_after(const char *text, text_range prefix) {
  if (strncmp(text, prefix.data, prefix.len) != 0) return NULL;
  if (text[prefix.len] == '\0') return text + prefix.len;
  return text[prefix.len] == '.' ? text + prefix.len + 1 : NULL;
}

static bool declares_member(text_range definition, const char *name) {
  text_range member;
  uint32_t number;
  while (read_next_field(&definition, &number, &member))
    if (number >= MEMBER_FIRST && number <= MEMBER_LAST &&
        is_equal_text(first_field_value(member, ANY_NAME), name))
      return true;
  return false;
}

/* True if the file declares the symbol: package.Definition or package.Definition.part. */
static bool declares_symbol(text_range file, const char *symbol) {
  text_range definition, rest = file;
  uint32_t number;
  const char *local_name = text_after(symbol, first_field_value(file, FILE_PACKAGE));
  if (!local_name || !*local_name) return false;
  while (read_next_field(&rest, &number, &definition)) {
    if (number < FILE_MESSAGE || number > FILE_SERVICE) continue;
    const char *member = text_after(local_name, first_field_value(definition, ANY_NAME));
    if (member && (!*member || declares_member(definition, member))) return true;
  }
  return false;
}

static bool file_has_name(text_range file, const char *name) {
  return is_equal_text(first_field_value(file, ANY_NAME), name);
}

/* ---- answers, each added to the reply `to` --------------------------------------------------- */

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse response;

static clv_code answer_error(response to, int code, const char *text, clv_bytes *ret,
                             clv_err *err) {
  Grpc__Reflection__V1alpha__ErrorResponse error = GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
  error.error_code = code;
  error.error_message = clv_text_or_empty(text);
  to.message_response_case = ANSWER(ERROR_RESPONSE);
  to.error_response = &error;
  return clv_wire_pack(&to.base, ret, err);
}

typedef bool (*matcher)(text_range file, const char *text);

static clv_code answer_file(response to, matcher matches, const char *text, clv_bytes *ret,
                            clv_err *err) {
  text_range file, set = {(const char *)clv_descriptor_set, clv_descriptor_set_len};
  uint32_t number;
  while (read_next_field(&set, &number, &file)) {
    if (number != SET_FILE || !matches(file, text)) continue;
    Grpc__Reflection__V1alpha__FileDescriptorResponse files =
        GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    ProtobufCBinaryData bytes = clv_proto_bytes(file.data, file.len);
    files.n_file_descriptor_proto = 1; /* one file is complete, because no file imports another */
    files.file_descriptor_proto = &bytes;
    to.message_response_case = ANSWER(FILE_DESCRIPTOR_RESPONSE);
    to.file_descriptor_response = &files;
    return clv_wire_pack(&to.base, ret, err);
  }
  return answer_error(to, CLV_NOT_FOUND, "not found", ret, err);
}

typedef struct service_list {
  Grpc__Reflection__V1alpha__ServiceResponse items[SERVICES_MAX];
  Grpc__Reflection__V1alpha__ServiceResponse *pointers[SERVICES_MAX];
  char service_names[SERVICES_MAX][CLV_WIRE_NAME + 1];
  size_t n;
} service_list;

static void add_services(text_range file, service_list *list) {
  text_range value, rest = file, package = first_field_value(file, FILE_PACKAGE);
  uint32_t number;
  while (read_next_field(&rest, &number, &value) && list->n < SERVICES_MAX) {
    if (number != FILE_SERVICE) continue;
    text_range name = first_field_value(value, ANY_NAME);
    snprintf(list->service_names[list->n], sizeof list->service_names[0], "%.*s.%.*s",
             (int)package.len, package.data, (int)name.len, name.data);
    grpc__reflection__v1alpha__service_response__init(&list->items[list->n]);
    list->items[list->n].name = list->service_names[list->n];
    list->pointers[list->n] = &list->items[list->n];
    list->n++;
  }
}

static clv_code answer_services(response to, clv_bytes *ret, clv_err *err) {
  service_list list = {.n = 0};
  text_range file, set = {(const char *)clv_descriptor_set, clv_descriptor_set_len};
  uint32_t number;
  while (read_next_field(&set, &number, &file))
    if (number == SET_FILE) add_services(file, &list);
  Grpc__Reflection__V1alpha__ListServiceResponse services =
      GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
  services.n_service = list.n;
  services.service = list.pointers;
  to.message_response_case = ANSWER(LIST_SERVICES_RESPONSE);
  to.list_services_response = &services;
  return clv_wire_pack(&to.base, ret, err);
}

clv_code clv_wire_answer_reflection(const clv_piece *pieces, size_t n_pieces, clv_bytes *ret_reply,
                                    clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  request *from;
  CLV_TRY(clv_wire_unpack(&grpc__reflection__v1alpha__server_reflection_request__descriptor, pieces,
                          n_pieces, &mem, &from, err));
  response to = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
  to.valid_host = from->host;
  to.original_request = from;
  switch (from->message_request_case) {
    case QUESTION(LIST_SERVICES):
      return answer_services(to, ret_reply, err);
    case QUESTION(FILE_BY_FILENAME):
      return answer_file(to, file_has_name, from->file_by_filename, ret_reply, err);
    case QUESTION(FILE_CONTAINING_SYMBOL):
      return answer_file(to, declares_symbol, from->file_containing_symbol, ret_reply, err);
    default:
      return answer_error(to, CLV_UNIMPLEMENTED, "not served", ret_reply, err);
  }
}
