/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading position in a message of several pieces, with the primitives of the protobuf encoding.
 * Every read is checked against message_end. Bytes are copied only on request.
 */
#ifndef CLEAVE_WIRE_CURSOR_INT_H
#define CLEAVE_WIRE_CURSOR_INT_H

#include "common/net/wire/wire.h"

typedef struct clv_wire_cursor {
  const clv_piece *pieces;
  const uint8_t *piece_data; /* bytes of the current piece */
  size_t n_pieces, piece_index;
  /* in the current piece: index of the next byte; length of the piece */
  size_t piece_offset, piece_len;
  /* in the message: index of the next byte; index at which reading ends */
  size_t message_pos, message_end;
} clv_wire_cursor;

typedef enum clv_wire_type {
  WIRE_VARINT = 0,
  WIRE_64 = 1,
  WIRE_LEN = 2,
  WIRE_32 = 5
} clv_wire_type;

typedef struct clv_field_tag {
  uint32_t field_number;
  clv_wire_type wire_type;
} clv_field_tag;

/* Positions the cursor at the first byte of the message. CLV_EXHAUSTED: over max_bytes. */
clv_code clv_cursor_init(clv_wire_cursor *c, const clv_piece *pieces, size_t n_pieces,
                         size_t max_bytes, clv_err *err) CLV_USE_RESULT;
/* Positions the cursor at the first byte of a part of the message. */
void clv_cursor_init_at(clv_wire_cursor *c, const clv_piece *pieces, size_t n_pieces,
                        const clv_payload *part);
clv_code clv_cursor_read_varint(clv_wire_cursor *c, uint64_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_cursor_read_fixed(clv_wire_cursor *c, size_t width, uint64_t *ret,
                               clv_err *err) CLV_USE_RESULT;
clv_code clv_cursor_read_tag(clv_wire_cursor *c, clv_field_tag *ret, clv_err *err) CLV_USE_RESULT;

/* Reads the length of a WIRE_LEN field and checks that so many bytes are left. */
clv_code clv_cursor_read_length(clv_wire_cursor *c, size_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_cursor_copy(clv_wire_cursor *c, size_t len, void *dst, clv_err *err) CLV_USE_RESULT;
clv_code clv_cursor_skip(clv_wire_cursor *c, size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_cursor_skip_field(clv_wire_cursor *c, clv_wire_type type, clv_err *err) CLV_USE_RESULT;

/* Returns the bytes of the UTF-8 character at text, 1 to 4. 0: not a character that a message may
 * contain, because it is not UTF-8 (RFC 3629) or a control character. left >= 1. */
size_t clv_text_char_bytes(const uint8_t *text, size_t left);
clv_code clv_text_check(const void *text, size_t len, const char *what,
                        clv_err *err) CLV_USE_RESULT;

#endif
