/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoder of frames: one pass over the pieces, driven by the field tables, into a struct of fixed
 * size. Allocates nothing; nests at most four levels (frame, backward, call, target).
 * clv_frame_check then checks the complete frame.
 */
#include "common/net/wire/frame_int.h"

#include <string.h>

typedef struct decoder {
  clv_wire_cursor cursor;
  const clv_wire_limits *limits;
  clv_frame frame;
  clv_payload payload;
  /* positions of the frames before the last one; NULL: such frames are refused */
  clv_bundle *preceding_frames;
  size_t preceding_bytes;
  unsigned found_bodies; /* bits of the bodies found so far */
  bool has_payload;
  bool has_last_frame_field; /* a field of the last frame was found */
} decoder;

/* ---- single values, stored at `dst` ---------------------------------------------------------- */

static clv_code read_u32(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  uint64_t value;
  CLV_TRY(clv_cursor_read_varint(&d->cursor, &value, err));
  if (value > UINT32_MAX)
    return clv_fail(err, CLV_INVALID, "%s of %llu has more than 32 bits", f->name,
                    (unsigned long long)value);
  uint32_t low_bits = (uint32_t)value;
  memcpy(dst, &low_bits, sizeof low_bits);
  return CLV_OK;
}

static clv_code read_u64(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  return clv_cursor_read_varint(&d->cursor, dst, err);
}

static clv_code read_bool(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint64_t value;
  CLV_TRY(clv_cursor_read_varint(&d->cursor, &value, err));
  *(bool *)dst = value != 0;
  return CLV_OK;
}

static clv_code read_fixed32(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint64_t value;
  CLV_TRY(clv_cursor_read_fixed(&d->cursor, 4, &value, err));
  uint32_t low_bits = (uint32_t)value;
  memcpy(dst, &low_bits, sizeof low_bits); /* copies the bits of a uint32_t or a float */
  return CLV_OK;
}

static clv_code read_fixed64(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint64_t value;
  CLV_TRY(clv_cursor_read_fixed(&d->cursor, 8, &value, err));
  memcpy(dst, &value, sizeof value);
  return CLV_OK;
}

static clv_code read_bytes(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  size_t len;
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  if (len != f->size && len != 0)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes; it must have %zu", f->name, len, f->size);
  memset(dst, 0, f->size);
  return clv_cursor_copy(&d->cursor, len, dst, err);
}

static clv_code read_text(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  char *text = dst;
  size_t len;
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  if (len >= f->size)
    return clv_fail(err, CLV_INVALID, "%s of %zu bytes is over the limit of %zu", f->name, len,
                    f->size - 1);
  CLV_TRY(clv_cursor_copy(&d->cursor, len, text, err));
  text[len] = '\0';
  return clv_text_check(text, len, f->name, err); /* refuses a NUL in the text too */
}

/* ---- elements of lists ----------------------------------------------------------------------- */

static clv_code add_dim(decoder *d, void *dst, clv_err *err) {
  clv_shape *shape = dst;
  uint64_t dim;
  CLV_TRY(clv_cursor_read_varint(&d->cursor, &dim, err));
  if (shape->rank == CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "more than %d dimensions", CLV_MAX_RANK);
  if (dim > INT64_MAX)
    return clv_fail(err, CLV_INVALID, "dimension %d of %llu elements", shape->rank,
                    (unsigned long long)dim);
  shape->dim[shape->rank++] = (int64_t)dim;
  return CLV_OK;
}

/* Fails if the frame has a `backward`, because upstream ids and tensors share its memory. */
static clv_code refuse_ids_with_backward(const decoder *d, clv_err *err) {
  if (!(d->found_bodies & BODY_BACKWARD)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "`backward` together with upstream ids or tensors");
}

static clv_code add_value_id(decoder *d, void *dst, clv_err *err) {
  uint64_t *ids = dst;
  CLV_TRY(refuse_ids_with_backward(d, err));
  if (d->frame.n_value_ids == CLV_WIRE_UPSTREAM)
    return clv_fail(err, CLV_INVALID, "more than %d upstream ids", CLV_WIRE_UPSTREAM);
  CLV_TRY(clv_cursor_read_fixed(&d->cursor, 8, &ids[d->frame.n_value_ids], err));
  d->frame.n_value_ids++;
  return CLV_OK;
}

static clv_code add_learning_rate(decoder *d, void *dst, clv_err *err) {
  float *rates = dst;
  uint64_t bits;
  if (d->frame.commit.n_group_lrs == CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_INVALID, "more than %d learning rates beside the first",
                    CLV_WIRE_GROUPS);
  CLV_TRY(clv_cursor_read_fixed(&d->cursor, 4, &bits, err));
  uint32_t low_bits = (uint32_t)bits;
  memcpy(&rates[d->frame.commit.n_group_lrs++], &low_bits, sizeof low_bits);
  return CLV_OK;
}

static clv_code add_received_count(decoder *d, void *dst, clv_err *err) {
  uint64_t *received = dst;
  if (d->frame.ack.n_lanes == 1 + CLV_WIRE_LANES)
    return clv_fail(err, CLV_INVALID, "counters of more than %d lanes", 1 + CLV_WIRE_LANES);
  return clv_cursor_read_varint(&d->cursor, &received[d->frame.ack.n_lanes++], err);
}

typedef clv_code (*add_function)(decoder *d, void *dst, clv_err *err);

/* Reads the packed form: one length, then elements to its end. */
static clv_code read_packed(decoder *d, add_function add, void *dst, clv_err *err) {
  size_t len, outer_end = d->cursor.message_end;
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  d->cursor.message_end = d->cursor.message_pos + len;
  while (d->cursor.message_pos < d->cursor.message_end) CLV_TRY(add(d, dst, err));
  d->cursor.message_end = outer_end;
  return CLV_OK;
}

/* ---- nested messages and the payload ------------------------------------------------------- */

static clv_code read_message(decoder *d, const clv_field *fields, size_t n_fields, void *base,
                             clv_err *err);

static clv_code read_nested(decoder *d, const clv_field *fields, size_t n_fields, void *base,
                            clv_err *err) {
  size_t len, outer_end = d->cursor.message_end;
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  d->cursor.message_end = d->cursor.message_pos + len;
  CLV_TRY(read_message(d, fields, n_fields, base, err));
  d->cursor.message_end = outer_end;
  return CLV_OK;
}

static clv_code read_body(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)dst; /* unused, because the tables of bodies have offsets in the frame */
  unsigned index = (unsigned)__builtin_ctz((unsigned)f->size);
  d->found_bodies |= (unsigned)f->size;
  if (d->frame.n_value_ids || d->frame.n_tensors) CLV_TRY(refuse_ids_with_backward(d, err));
  clv_code code = read_nested(d, clv_body_fields[index], BODY_FIELDS, &d->frame, err);
  if (code != CLV_OK) clv_err_prefix(err, "%s", f->name);
  return code;
}

static clv_code read_tensor(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  clv_tensor_head *heads = dst;
  uint32_t index = d->frame.n_tensors;
  CLV_TRY(refuse_ids_with_backward(d, err));
  if (index == CLV_WIRE_TENSORS)
    return clv_fail(err, CLV_INVALID, "more than %d tensors", CLV_WIRE_TENSORS);
  d->frame.n_tensors++;
  heads[index] = (clv_tensor_head){0};
  clv_code code = read_nested(d, clv_tensor_fields, TENSOR_FIELDS, &heads[index], err);
  if (code != CLV_OK) clv_err_prefix(err, "tensor %u", index);
  return code;
}

static clv_code read_payload(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  (void)dst;
  size_t len;
  if (d->has_payload) return clv_fail(err, CLV_INVALID, "more than one payload");
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  if (len > d->limits->chunk_bytes && len > CLV_WIRE_INLINE_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "a payload of %zu bytes; the limit is %llu", len,
                    (unsigned long long)d->limits->chunk_bytes);
  d->has_payload = true;
  if (len) d->payload = (clv_payload){d->cursor.piece_index, d->cursor.piece_offset, len};
  return clv_cursor_skip(&d->cursor, len, err);
}

/* Stores only the position of a preceding frame. clv_frame_decode_preceding decodes it later. */
static clv_code read_preceding_frame(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  size_t len;
  (void)f, (void)dst;
  CLV_TRY(clv_cursor_read_length(&d->cursor, &len, err));
  if (!d->preceding_frames)
    return clv_fail(err, CLV_INVALID, "a bundled frame contains another frame");
  if (d->preceding_frames->n_frames == CLV_WIRE_BUNDLED)
    return clv_fail(err, CLV_INVALID, "more than %d frames before one", CLV_WIRE_BUNDLED);
  d->preceding_frames->frame_positions[d->preceding_frames->n_frames++] =
      (clv_payload){d->cursor.piece_index, d->cursor.piece_offset, len};
  d->preceding_bytes += len;
  return clv_cursor_skip(&d->cursor, len, err);
}

/* ---- lists of calls and backward passes ------------------------------------------------------ */

/* Takes the next index of a list into *ret. CLV_INVALID names the limit that is reached. */
static clv_code take_next_index(uint32_t *n, uint32_t limit, const char *what, uint32_t *ret,
                                clv_err *err) {
  if (*n == limit) return clv_fail(err, CLV_INVALID, "more than %u %s in one frame", limit, what);
  *ret = (*n)++;
  return CLV_OK;
}

static clv_code read_arg(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint32_t i = 0;
  CLV_TRY(take_next_index(&d->frame.call.n_args, CLV_WIRE_ARGS, "arguments", &i, err));
  return read_nested(d, clv_arg_fields, ARG_FIELDS, (clv_arg *)dst + i, err);
}

static clv_code read_peer(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)dst;
  const clv_field text = {f->name, FIELD_TEXT, 0, CLV_WIRE_NAME + 1};
  uint32_t i = 0;
  CLV_TRY(take_next_index(&d->frame.backward.n_peers, CLV_WIRE_PREPARE_PEERS, "peers", &i, err));
  return read_text(d, &text, d->frame.backward.peer_names[i], err);
}

static clv_code read_needed_call(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint32_t i = 0;
  CLV_TRY(
      take_next_index(&d->frame.backward.n_needed_calls, CLV_WIRE_NEEDED_CALLS, "calls", &i, err));
  return read_nested(d, clv_needed_call_fields, NEEDED_CALL_FIELDS, (clv_needed_call *)dst + i,
                     err);
}

static clv_code read_target(decoder *d, const clv_field *f, void *dst, clv_err *err) {
  (void)f;
  uint32_t i = 0;
  CLV_TRY(take_next_index(&d->frame.backward.n_grad_targets, CLV_WIRE_TARGETS, "targets", &i, err));
  ((clv_needed_call *)dst)->n_grad_targets++;
  return read_nested(d, clv_target_fields, TARGET_FIELDS, &d->frame.backward.grad_targets[i], err);
}

/* ---- choosing the reader of a field ---------------------------------------------------------- */

typedef struct field_reader {
  clv_wire_type wire_type;
  clv_code (*read)(decoder *d, const clv_field *f, void *dst, clv_err *err);
  clv_wire_type element_type; /* for lists of numbers: the type of one element */
  add_function add_element;
} field_reader;

static const field_reader readers[FIELD_TYPES] = {
    [FIELD_U32] = {.wire_type = WIRE_VARINT, .read = read_u32},
    [FIELD_U64] = {.wire_type = WIRE_VARINT, .read = read_u64},
    [FIELD_BOOL] = {.wire_type = WIRE_VARINT, .read = read_bool},
    [FIELD_FIXED32] = {.wire_type = WIRE_32, .read = read_fixed32},
    [FIELD_FLOAT] = {.wire_type = WIRE_32, .read = read_fixed32},
    [FIELD_BYTES] = {.wire_type = WIRE_LEN, .read = read_bytes},
    [FIELD_TEXT] = {.wire_type = WIRE_LEN, .read = read_text},
    [FIELD_DIMS] = {.wire_type = WIRE_LEN, .element_type = WIRE_VARINT, .add_element = add_dim},
    [FIELD_UPSTREAM] = {.wire_type = WIRE_LEN,
                        .element_type = WIRE_64,
                        .add_element = add_value_id},
    [FIELD_TENSOR] = {.wire_type = WIRE_LEN, .read = read_tensor},
    [FIELD_PAYLOAD] = {.wire_type = WIRE_LEN, .read = read_payload},
    [FIELD_BODY] = {.wire_type = WIRE_LEN, .read = read_body},
    [FIELD_FIXED64] = {.wire_type = WIRE_64, .read = read_fixed64},
    [FIELD_ARGS] = {.wire_type = WIRE_LEN, .read = read_arg},
    [FIELD_PEERS] = {.wire_type = WIRE_LEN, .read = read_peer},
    [FIELD_NEEDED_CALLS] = {.wire_type = WIRE_LEN, .read = read_needed_call},
    [FIELD_TARGETS] = {.wire_type = WIRE_LEN, .read = read_target},
    [FIELD_RATES] = {.wire_type = WIRE_LEN,
                     .element_type = WIRE_32,
                     .add_element = add_learning_rate},
    [FIELD_RECEIVED] = {.wire_type = WIRE_LEN,
                        .element_type = WIRE_VARINT,
                        .add_element = add_received_count},
    [FIELD_BUNDLED] = {.wire_type = WIRE_LEN, .read = read_preceding_frame},
};

static clv_code read_field(decoder *d, const clv_field *f, clv_wire_type type, void *base,
                           clv_err *err) {
  const field_reader *r = &readers[f->type];
  void *dst = (char *)base + f->offset;
  d->has_last_frame_field |= f->type != FIELD_BUNDLED;
  if (r->add_element && type == r->element_type) return r->add_element(d, dst, err);
  if (type != r->wire_type)
    return clv_fail(err, CLV_INVALID, "%s has wire type %d", f->name, (int)type);
  return r->add_element ? read_packed(d, r->add_element, dst, err) : r->read(d, f, dst, err);
}

static clv_code read_message(decoder *d, const clv_field *fields, size_t n_fields, void *base,
                             clv_err *err) {
  while (d->cursor.message_pos < d->cursor.message_end) {
    clv_field_tag tag;
    CLV_TRY(clv_cursor_read_tag(&d->cursor, &tag, err));
    bool known = tag.field_number < n_fields && fields[tag.field_number].type != FIELD_UNKNOWN;
    if (known) {
      CLV_TRY(read_field(d, &fields[tag.field_number], tag.wire_type, base, err));
    } else {
      CLV_TRY(clv_cursor_skip_field(&d->cursor, tag.wire_type, err));
    }
    if (d->cursor.message_pos - d->payload.len - d->preceding_bytes > CLV_WIRE_HEAD_MAX)
      return clv_fail(err, CLV_EXHAUSTED, "more than %d bytes besides the payload",
                      CLV_WIRE_HEAD_MAX);
  }
  return CLV_OK;
}

static clv_code decode_frame(decoder *d, clv_frame *ret_frame, clv_payload *ret_payload,
                             clv_err *err) {
  CLV_TRY(read_message(d, clv_frame_fields, FRAME_FIELDS, &d->frame, err));
  bool has_only_preceding_frames =
      d->preceding_frames && d->preceding_frames->n_frames && !d->has_last_frame_field;
  if (!has_only_preceding_frames)
    CLV_TRY(clv_frame_check(&d->frame, d->found_bodies, d->payload.len, d->limits, err));
  clv_frame_set_has_flags(&d->frame, d->found_bodies);
  *ret_frame = d->frame;
  *ret_payload = d->payload;
  return CLV_OK;
}

clv_code clv_frame_decode(const clv_piece *pieces, size_t n_pieces, const clv_wire_limits *limits,
                          clv_frame *ret_frame, clv_payload *ret_payload, clv_err *err) {
  decoder d = {.limits = limits};
  CLV_TRY(clv_cursor_init(&d.cursor, pieces, n_pieces, limits->message_bytes, err));
  return decode_frame(&d, ret_frame, ret_payload, err);
}

clv_code clv_frame_decode_last(const clv_piece *pieces, size_t n_pieces,
                               const clv_wire_limits *limits, clv_bundle *ret_before,
                               clv_frame *ret_frame, clv_payload *ret_payload, clv_err *err) {
  decoder d = {.limits = limits, .preceding_frames = ret_before};
  ret_before->n_frames = 0;
  CLV_TRY(clv_cursor_init(&d.cursor, pieces, n_pieces, limits->message_bytes, err));
  return decode_frame(&d, ret_frame, ret_payload, err);
}

clv_code clv_frame_decode_preceding(const clv_piece *pieces, size_t n_pieces,
                                    const clv_payload *frame, const clv_wire_limits *limits,
                                    clv_frame *ret_frame, clv_payload *ret_payload, clv_err *err) {
  decoder d = {.limits = limits};
  clv_cursor_init_at(&d.cursor, pieces, n_pieces, frame);
  return decode_frame(&d, ret_frame, ret_payload, err);
}
