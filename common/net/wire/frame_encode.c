/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoder of frames. A frame without its payload has a bounded size, so it is written to an array
 * on the stack and copied once. Fields are in ascending order, except that the payload is last, so
 * that the transport can append the tensor's own memory.
 */
#include "common/net/wire/frame_int.h"

#include <string.h>

enum {
  VARINT_MAX = 10,
  SCALAR_MAX = 2 + VARINT_MAX,
  TENSOR_MAX = 2 + 2 + VARINT_MAX * CLV_MAX_RANK + 4 * SCALAR_MAX + 2,
  /* limit for the size of any body except `backward` */
  PLAIN_BODY_MAX = 8 * SCALAR_MAX + CLV_WIRE_TEXT + CLV_WIRE_NAME + 2 * CLV_WIRE_ID_BYTES +
                   CLV_WIRE_ARGS * 3 * SCALAR_MAX,
  /* limit for all bodies of a frame: two bodies, or one `backward`, which is larger than others */
  BODY_MAX = 2 * PLAIN_BODY_MAX + CLV_WIRE_PREPARE_PEERS * (CLV_WIRE_NAME + SCALAR_MAX) +
             (CLV_WIRE_NEEDED_CALLS + CLV_WIRE_TARGETS) * 5 * SCALAR_MAX,
  ENCODED_MAX = 16 * SCALAR_MAX + CLV_WIRE_NAME + CLV_WIRE_UPSTREAM * 8 +
                CLV_WIRE_TENSORS * TENSOR_MAX + BODY_MAX,
};
_Static_assert((int)ENCODED_MAX <= (int)CLV_WIRE_HEAD_MAX, "our own frames fit the limit");
_Static_assert(BODY_MAX < 1 << 14 && TENSOR_MAX < 1 << 14, "lengths of nested messages: two bytes");

static uint8_t *put_varint(uint8_t *p, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *p++ = (uint8_t)(value | 0x80);
  *p++ = (uint8_t)value;
  return p;
}

static uint8_t *put_tag(uint8_t *p, size_t field_number, clv_wire_type type) {
  return put_varint(p, (uint64_t)field_number << 3 | (unsigned)type);
}

static uint8_t *put_fixed(uint8_t *p, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; i++) *p++ = (uint8_t)(value >> (8 * i));
  return p;
}

static uint8_t *put_bytes(uint8_t *p, size_t field_number, const void *data, size_t len) {
  if (!len) return p;
  p = put_varint(put_tag(p, field_number, WIRE_LEN), len);
  memcpy(p, data, len);
  return p + len;
}

/* Begins a nested message. end_nested fills in its length, always two bytes. */
static uint8_t *begin_nested(uint8_t *p, size_t field_number) {
  return put_tag(p, field_number, WIRE_LEN) + 2;
}

static uint8_t *end_nested(uint8_t *start, uint8_t *p) {
  size_t len = (size_t)(p - start);
  start[-2] = (uint8_t)(len | 0x80);
  start[-1] = (uint8_t)(len >> 7);
  return p;
}

/* ---- one function for each field type; zero values are omitted ----------------------------- */

typedef struct field_source {
  const clv_field *f;
  size_t field_number;     /* number of the field in the protobuf message */
  const char *struct_base; /* the struct that has the field: clv_frame or clv_tensor_head */
} field_source;

static uint8_t *write_u32(uint8_t *p, const field_source *at) {
  uint32_t value;
  memcpy(&value, at->struct_base + at->f->offset, sizeof value);
  return value ? put_varint(put_tag(p, at->field_number, WIRE_VARINT), value) : p;
}

static uint8_t *write_u64(uint8_t *p, const field_source *at) {
  uint64_t value;
  memcpy(&value, at->struct_base + at->f->offset, sizeof value);
  return value ? put_varint(put_tag(p, at->field_number, WIRE_VARINT), value) : p;
}

static uint8_t *write_bool(uint8_t *p, const field_source *at) {
  bool value = *(const bool *)(at->struct_base + at->f->offset);
  return value ? put_varint(put_tag(p, at->field_number, WIRE_VARINT), 1) : p;
}

static uint8_t *write_fixed32(uint8_t *p, const field_source *at) {
  uint32_t bits;
  memcpy(&bits, at->struct_base + at->f->offset, sizeof bits);
  return bits ? put_fixed(put_tag(p, at->field_number, WIRE_32), bits, 4) : p;
}

static uint8_t *write_fixed64(uint8_t *p, const field_source *at) {
  uint64_t bits;
  memcpy(&bits, at->struct_base + at->f->offset, sizeof bits);
  return bits ? put_fixed(put_tag(p, at->field_number, WIRE_64), bits, 8) : p;
}

static uint8_t *write_bytes(uint8_t *p, const field_source *at) {
  return put_bytes(p, at->field_number, at->struct_base + at->f->offset, at->f->size);
}

static uint8_t *write_text(uint8_t *p, const field_source *at) {
  const char *text = at->struct_base + at->f->offset;
  return put_bytes(p, at->field_number, text, strnlen(text, at->f->size - 1));
}

static uint8_t *write_dims(uint8_t *p, const field_source *at) {
  const clv_shape *shape = (const clv_shape *)(const void *)(at->struct_base + at->f->offset);
  if (!shape->rank) return p;
  uint8_t *start = begin_nested(p, at->field_number);
  p = start;
  for (int i = 0; i < shape->rank; i++) p = put_varint(p, (uint64_t)shape->dim[i]);
  return end_nested(start, p);
}

static uint8_t *write_value_ids(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  if (!f->n_value_ids) return p;
  p = put_varint(put_tag(p, at->field_number, WIRE_LEN), (uint64_t)f->n_value_ids * 8);
  for (uint32_t i = 0; i < f->n_value_ids; i++) p = put_fixed(p, f->value_ids[i], 8);
  return p;
}

static uint8_t *write_fields(uint8_t *p, const clv_field *fields, size_t n_fields,
                             const void *base);

static uint8_t *write_tensors(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  for (uint32_t i = 0; i < f->n_tensors; i++) {
    uint8_t *start = begin_nested(p, at->field_number);
    p = end_nested(start, write_fields(start, clv_tensor_fields, TENSOR_FIELDS, &f->tensors[i]));
  }
  return p;
}

static uint8_t *write_body(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  if (!(clv_frame_body_bits(f) & at->f->size)) return p;
  unsigned index = (unsigned)__builtin_ctz((unsigned)at->f->size);
  uint8_t *start = begin_nested(p, at->field_number);
  return end_nested(start, write_fields(start, clv_body_fields[index], BODY_FIELDS, f));
}

static uint8_t *write_args(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  for (uint32_t i = 0; i < f->call.n_args; i++) {
    uint8_t *start = begin_nested(p, at->field_number);
    p = end_nested(start, write_fields(start, clv_arg_fields, ARG_FIELDS, &f->call.args[i]));
  }
  return p;
}

static uint8_t *write_peers(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  for (uint32_t i = 0; i < f->backward.n_peers; i++)
    p = put_bytes(p, at->field_number, f->backward.peer_names[i],
                  strnlen(f->backward.peer_names[i], CLV_WIRE_NAME));
  return p;
}

/* Writes a needed call with its targets, which follow those of the calls before it. */
static uint8_t *write_needed_calls(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  uint32_t target = 0;
  for (uint32_t i = 0; i < f->backward.n_needed_calls; i++) {
    const clv_needed_call *call = &f->backward.needed_calls[i];
    uint8_t *start = begin_nested(p, at->field_number);
    p = write_fields(start, clv_needed_call_fields, NEEDED_CALL_FIELDS, call);
    for (uint32_t j = 0; j < call->n_grad_targets; j++) {
      uint8_t *inner = begin_nested(p, 4);
      p = end_nested(inner, write_fields(inner, clv_target_fields, TARGET_FIELDS,
                                         &f->backward.grad_targets[target++]));
    }
    p = end_nested(start, p);
  }
  return p;
}

static uint8_t *write_learning_rates(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  if (!f->commit.n_group_lrs) return p;
  p = put_varint(put_tag(p, at->field_number, WIRE_LEN), (uint64_t)f->commit.n_group_lrs * 4);
  for (uint32_t i = 0; i < f->commit.n_group_lrs; i++) {
    uint32_t bits;
    memcpy(&bits, &f->commit.group_lrs[i], sizeof bits);
    p = put_fixed(p, bits, 4);
  }
  return p;
}

static size_t varint_bytes(uint64_t value) {
  uint8_t buf[10];
  return (size_t)(put_varint(buf, value) - buf);
}

static uint8_t *write_received_counts(uint8_t *p, const field_source *at) {
  const clv_frame *f = (const clv_frame *)(const void *)at->struct_base;
  size_t bytes = 0;
  for (uint32_t i = 0; i < f->ack.n_lanes; i++) bytes += varint_bytes(f->ack.n_received[i]);
  p = put_varint(put_tag(p, at->field_number, WIRE_LEN), bytes);
  for (uint32_t i = 0; i < f->ack.n_lanes; i++) p = put_varint(p, f->ack.n_received[i]);
  return p;
}

typedef uint8_t *(*writer)(uint8_t *p, const field_source *at);
static const writer writers[FIELD_TYPES] = {
    [FIELD_U32] = write_u32,
    [FIELD_U64] = write_u64,
    [FIELD_BOOL] = write_bool,
    [FIELD_FIXED32] = write_fixed32,
    [FIELD_FLOAT] = write_fixed32,
    [FIELD_BYTES] = write_bytes,
    [FIELD_TEXT] = write_text,
    [FIELD_DIMS] = write_dims,
    [FIELD_UPSTREAM] = write_value_ids,
    [FIELD_TENSOR] = write_tensors,
    [FIELD_BODY] = write_body,
    [FIELD_FIXED64] = write_fixed64,
    [FIELD_ARGS] = write_args,
    [FIELD_PEERS] = write_peers,
    [FIELD_NEEDED_CALLS] = write_needed_calls,
    [FIELD_RATES] = write_learning_rates,
    [FIELD_RECEIVED] = write_received_counts,
};

static uint8_t *write_fields(uint8_t *p, const clv_field *fields, size_t n_fields,
                             const void *base) {
  for (size_t i = 1; i < n_fields; i++) {
    field_source at = {&fields[i], i, base};
    if (writers[fields[i].type]) p = writers[fields[i].type](p, &at);
  }
  return p;
}

size_t clv_frame_write_bundle_prefix(uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX], size_t bytes) {
  return (size_t)(put_varint(put_tag(prefix, 30, WIRE_LEN), bytes) - prefix);
}

clv_code clv_frame_encode(const clv_frame *frame, size_t payload_len, clv_bytes *head,
                          clv_err *err) {
  CLV_TRY(clv_frame_check(frame, clv_frame_body_bits(frame), payload_len, NULL, err));
  uint8_t encoded[ENCODED_MAX];
  uint8_t *p = write_fields(encoded, clv_frame_fields, FRAME_FIELDS, frame);
  if (payload_len) p = put_varint(put_tag(p, 15, WIRE_LEN), payload_len);
  head->len = 0;
  clv_bytes_add(head, encoded, (size_t)(p - encoded));
  return head->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for a frame") : CLV_OK;
}
