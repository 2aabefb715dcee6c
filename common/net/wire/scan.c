/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks a message by its descriptor, with a stack of its own. The sums follow what protobuf-c 1.4
 * allocates: the struct of each message, arrays of repeated fields, copies of text and bytes, a
 * record for each unknown field, and scratch for every field of a message beyond sixteen.
 */
#include "common/net/wire/unary_int.h"

enum {
  ALIGN = 16, /* clv_wire_mem_alloc rounds every size up to this */
  /* maximum by which our struct of a message is larger than protobuf-c's: a clv_wire_spec
   * contains its dimensions, a TensorSpec points to them */
  PLAIN_EXTRA = 32,
  SCRATCH_PER_FIELD =
      /* A record of an unknown field has 48 bytes. The array of records doubles when it is full,
       * so half of it may be unused. */
  96,
  /* fields of a message up to which protobuf-c needs no scratch memory */
  FIELDS_WITHOUT_SCRATCH = 16,
};

typedef struct level {
  const ProtobufCMessageDescriptor *type;
  size_t message_end;   /* end of the message around this one */
  size_t n_fields;      /* occurrences of fields so far */
  uint64_t seen_fields; /* bit i: the i-th field of `type`, if it may occur once, was found */
} level;

typedef struct scanner {
  clv_wire_cursor cursor;
  level levels[CLV_SCAN_DEPTH];
  size_t depth; /* number of levels in use */
  size_t memory_bytes, n_fields;
} scanner;

static void charge_memory(scanner *s, size_t bytes) {
  s->memory_bytes += clv_align_up(bytes, ALIGN);
}

/* Enters a nested message. Counts protobuf-c's struct, ours (at most PLAIN_EXTRA larger) and a
 * pointer to either. */
static clv_code enter_message(scanner *s, const ProtobufCMessageDescriptor *type, size_t len,
                              clv_err *err) {
  if (s->depth == CLV_SCAN_DEPTH)
    return clv_fail(err, CLV_INVALID, "messages are nested deeper than %d", CLV_SCAN_DEPTH);
  s->levels[s->depth++] = (level){.type = type, .message_end = s->cursor.message_end};
  s->cursor.message_end = s->cursor.message_pos + len;
  charge_memory(s, 2 * type->sizeof_message + PLAIN_EXTRA + sizeof(void *));
  return CLV_OK;
}

static void leave_message(scanner *s) {
  level *top = &s->levels[--s->depth];
  if (top->n_fields > FIELDS_WITHOUT_SCRATCH) charge_memory(s, top->n_fields * SCRATCH_PER_FIELD);
  s->cursor.message_end = top->message_end;
}

static clv_code scan_text_field(scanner *s, const char *name, size_t len, clv_err *err) {
  char text[CLV_WIRE_TEXT];
  if (len > sizeof text)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes is over the limit of %d", name, len,
                    CLV_WIRE_TEXT);
  CLV_TRY(clv_cursor_copy(&s->cursor, len, text, err));
  charge_memory(s, len + 1 + sizeof(char *));
  return clv_text_check(text, len, name, err);
}

/* Scans packed numbers; each takes at most 8 bytes of memory. */
static clv_code scan_packed_field(scanner *s, clv_wire_type type, size_t len, clv_err *err) {
  size_t outer_end = s->cursor.message_end, n = 0;
  s->cursor.message_end = s->cursor.message_pos + len;
  for (; s->cursor.message_pos < s->cursor.message_end; n++)
    CLV_TRY(clv_cursor_skip_field(&s->cursor, type, err));
  s->cursor.message_end = outer_end;
  charge_memory(s, n * 8);
  return CLV_OK;
}

static clv_wire_type wire_type_of(ProtobufCType type) {
  switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
      return WIRE_32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
      return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
      return WIRE_LEN;
    default:
      return WIRE_VARINT;
  }
}

/* Refuses a second occurrence of a message field. protobuf-c would merge both, at a cost that grows
 * with the square of the occurrences, and no encoder writes one. */
static clv_code check_occurs_once(level *top, const ProtobufCFieldDescriptor *field, clv_err *err) {
  size_t index = (size_t)(field - top->type->fields);
  if (field->label == PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE)
    return CLV_OK;
  if (index >= 64 || top->seen_fields >> index & 1)
    return clv_fail(err, CLV_INVALID, "%s.%s occurs twice", top->type->short_name, field->name);
  top->seen_fields |= (uint64_t)1 << index;
  return CLV_OK;
}

static clv_code scan_known_field(scanner *s, const ProtobufCFieldDescriptor *field,
                                 clv_wire_type type, clv_err *err) {
  clv_wire_type expected = wire_type_of(field->type);
  bool is_repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
  bool is_packed = is_repeated && expected != WIRE_LEN && type == WIRE_LEN;
  if (type != expected && !is_packed)
    return clv_fail(err, CLV_INVALID, "%s has wire type %d, not %d", field->name, (int)type,
                    (int)expected);
  if (expected != WIRE_LEN && !is_packed) {
    if (is_repeated) charge_memory(s, 8);
    return clv_cursor_skip_field(&s->cursor, type, err);
  }
  size_t len;
  CLV_TRY(clv_cursor_read_length(&s->cursor, &len, err));
  if (is_packed) return scan_packed_field(s, expected, len, err);
  if (field->type == PROTOBUF_C_TYPE_MESSAGE) return enter_message(s, field->descriptor, len, err);
  if (field->type == PROTOBUF_C_TYPE_STRING) return scan_text_field(s, field->name, len, err);
  charge_memory(s, len + 1 + sizeof(ProtobufCBinaryData));
  return clv_cursor_skip(&s->cursor, len, err);
}

static clv_code scan_unknown_field(scanner *s, clv_wire_type type, clv_err *err) {
  size_t before = s->cursor.message_pos;
  CLV_TRY(clv_cursor_skip_field(&s->cursor, type, err));
  charge_memory(s, s->cursor.message_pos - before);
  charge_memory(s, sizeof(ProtobufCMessageUnknownField));
  return CLV_OK;
}

static clv_code check_memory_budget(const scanner *s, size_t message_bytes, clv_err *err) {
  if (s->n_fields > CLV_SCAN_FIELDS)
    return clv_fail(err, CLV_EXHAUSTED, "a message of more than %d fields", CLV_SCAN_FIELDS);
  if (s->memory_bytes > 2 * message_bytes + CLV_SCAN_BUDGET)
    return clv_fail(err, CLV_EXHAUSTED, "a message of %zu bytes would take more than %zu in memory",
                    message_bytes, 2 * message_bytes + CLV_SCAN_BUDGET);
  return CLV_OK;
}

static clv_code scan_field(scanner *s, clv_err *err) {
  level *top = &s->levels[s->depth - 1];
  clv_field_tag tag;
  CLV_TRY(clv_cursor_read_tag(&s->cursor, &tag, err));
  top->n_fields++;
  s->n_fields++;
  const ProtobufCFieldDescriptor *field =
      protobuf_c_message_descriptor_get_field(top->type, tag.field_number);
  if (!field) return scan_unknown_field(s, tag.wire_type, err);
  CLV_TRY(check_occurs_once(top, field, err));
  return scan_known_field(s, field, tag.wire_type, err);
}

clv_code clv_wire_scan(clv_wire_cursor c, const ProtobufCMessageDescriptor *type, size_t *ret_bytes,
                       clv_err *err) {
  scanner s = {.cursor = c};
  CLV_TRY(enter_message(&s, type, c.message_end - c.message_pos, err));
  while (s.depth) {
    if (s.cursor.message_pos == s.cursor.message_end) {
      leave_message(&s);
    } else {
      CLV_TRY(scan_field(&s, err));
    }
    CLV_TRY(check_memory_budget(&s, c.message_end, err));
  }
  *ret_bytes = s.memory_bytes;
  return CLV_OK;
}
