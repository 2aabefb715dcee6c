/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading position in a message of several pieces.
 */
#include "common/net/wire/cursor_int.h"

#include <string.h>

enum { FIELD_NUMBER_MAX = (1 << 29) - 1, VARINT_BYTES = 10 };

clv_code clv_cursor_init(clv_wire_cursor *c, const clv_piece *pieces, size_t n_pieces,
                         size_t max_bytes, clv_err *err) {
  size_t total = 0;
  for (size_t i = 0; i < n_pieces; i++)
    if (!clv_add_size(total, pieces[i].len, &total) || total > max_bytes)
      return clv_fail(err, CLV_EXHAUSTED, "message is longer than the limit of %zu bytes",
                      max_bytes);
  *c = (clv_wire_cursor){.pieces = pieces, .n_pieces = n_pieces, .message_end = total};
  if (n_pieces) {
    c->piece_data = pieces[0].data;
    c->piece_len = pieces[0].len;
  }
  return CLV_OK;
}

void clv_cursor_init_at(clv_wire_cursor *c, const clv_piece *pieces, size_t n_pieces,
                        const clv_payload *part) {
  *c = (clv_wire_cursor){.pieces = pieces,
                         .n_pieces = n_pieces,
                         .piece_index = part->piece_index,
                         .piece_offset = part->offset,
                         .message_end = part->len};
  if (part->piece_index == n_pieces) return;
  c->piece_data = pieces[part->piece_index].data;
  c->piece_len = pieces[part->piece_index].len;
}

static clv_code fail_truncated(const clv_wire_cursor *c, const char *what, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "%s at byte %zu runs past the end at byte %zu", what,
                  c->message_pos, c->message_end);
}

/* Moves to the next piece with unread bytes. Call only while pos < end, so that there is one. */
static void go_to_next_piece(clv_wire_cursor *c) {
  while (c->piece_offset == c->piece_len) {
    c->piece_index++;
    c->piece_data = c->pieces[c->piece_index].data;
    c->piece_len = c->pieces[c->piece_index].len;
    c->piece_offset = 0;
  }
}

static uint8_t next_byte(clv_wire_cursor *c) {
  if (c->piece_offset == c->piece_len) go_to_next_piece(c);
  c->message_pos++;
  return c->piece_data[c->piece_offset++];
}

clv_code clv_cursor_read_varint(clv_wire_cursor *c, uint64_t *ret, clv_err *err) {
  uint64_t value = 0;
  for (unsigned i = 0; i < VARINT_BYTES; i++) {
    if (c->message_pos == c->message_end) return fail_truncated(c, "a number", err);
    uint8_t byte = next_byte(c);
    if (i == VARINT_BYTES - 1 && byte > 1) break; /* the number has more than 64 bits */
    value |= (uint64_t)(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      *ret = value;
      return CLV_OK;
    }
  }
  return clv_fail(err, CLV_INVALID, "the number before byte %zu has more than 64 bits",
                  c->message_pos);
}

clv_code clv_cursor_read_fixed(clv_wire_cursor *c, size_t width, uint64_t *ret, clv_err *err) {
  if (c->message_end - c->message_pos < width) return fail_truncated(c, "a fixed-size number", err);
  uint64_t value = 0;
  for (size_t i = 0; i < width; i++) value |= (uint64_t)next_byte(c) << (8 * i);
  *ret = value;
  return CLV_OK;
}

clv_code clv_cursor_read_tag(clv_wire_cursor *c, clv_field_tag *ret, clv_err *err) {
  uint64_t tag;
  size_t at = c->message_pos;
  CLV_TRY(clv_cursor_read_varint(c, &tag, err));
  uint64_t number = tag >> 3;
  unsigned type = tag & 7;
  if (number == 0 || number > FIELD_NUMBER_MAX)
    return clv_fail(err, CLV_INVALID, "field number %llu at byte %zu is outside 1..%d",
                    (unsigned long long)number, at, FIELD_NUMBER_MAX);
  if (type != WIRE_VARINT && type != WIRE_64 && type != WIRE_LEN && type != WIRE_32)
    return clv_fail(err, CLV_INVALID, "field %u at byte %zu has wire type %u, which is not used",
                    (unsigned)number, at, type);
  *ret = (clv_field_tag){(uint32_t)number, (clv_wire_type)type};
  return CLV_OK;
}

clv_code clv_cursor_read_length(clv_wire_cursor *c, size_t *ret, clv_err *err) {
  uint64_t len;
  CLV_TRY(clv_cursor_read_varint(c, &len, err));
  if (len > c->message_end - c->message_pos)
    return clv_fail(err, CLV_INVALID, "a field of %llu bytes at byte %zu; %zu are left",
                    (unsigned long long)len, c->message_pos, c->message_end - c->message_pos);
  *ret = (size_t)len;
  return CLV_OK;
}

clv_code clv_cursor_copy(clv_wire_cursor *c, size_t len, void *dst, clv_err *err) {
  if (len > c->message_end - c->message_pos) return fail_truncated(c, "a field", err);
  uint8_t *out = dst;
  while (len) {
    go_to_next_piece(c);
    size_t n = CLV_MIN(len, c->piece_len - c->piece_offset);
    if (out) memcpy(out, c->piece_data + c->piece_offset, n);
    if (out) out += n;
    c->piece_offset += n;
    c->message_pos += n;
    len -= n;
  }
  return CLV_OK;
}

clv_code clv_cursor_skip(clv_wire_cursor *c, size_t len, clv_err *err) {
  return clv_cursor_copy(c, len, NULL, err);
}

clv_code clv_cursor_skip_field(clv_wire_cursor *c, clv_wire_type type, clv_err *err) {
  uint64_t value;
  size_t len;
  if (type == WIRE_VARINT) return clv_cursor_read_varint(c, &value, err);
  if (type == WIRE_64) return clv_cursor_skip(c, 8, err);
  if (type == WIRE_32) return clv_cursor_skip(c, 4, err);
  CLV_TRY(clv_cursor_read_length(c, &len, err));
  return clv_cursor_skip(c, len, err);
}

size_t clv_text_char_bytes(const uint8_t *s, size_t left) {
  uint32_t code_point;
  size_t n = clv_utf8_decode(s, left, &code_point);
  if (n && clv_is_control(code_point)) return 0;
  return n;
}

bool clv_wire_is_text(const char *text) {
  return clv_text_check(text, strlen(text), "", NULL) == CLV_OK;
}

clv_code clv_text_check(const void *text, size_t len, const char *what, clv_err *err) {
  const uint8_t *s = text;
  for (size_t i = 0; i < len;) {
    size_t n = clv_text_char_bytes(s + i, len - i);
    if (!n)
      return clv_fail(err, CLV_INVALID,
                      "byte %zu (0x%02x) of %s is a control character or not UTF-8", i, s[i], what);
    i += n;
  }
  return CLV_OK;
}
