/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the payload of a frame, which may span several pieces.
 */
#include "common/net/wire/wire.h"

#include <string.h>

/* Callback for each part of bytes [from, from + len) of a payload, in order. */
typedef void (*visitor)(void *state, const uint8_t *data, size_t len);

static void visit_range(const clv_piece *pieces, const clv_payload *payload, size_t from,
                        size_t len, visitor visit, void *state) {
  if (from >= payload->len) return;
  len = CLV_MIN(len, payload->len - from);
  size_t piece = payload->piece_index, offset = payload->offset;
  while (len) {
    size_t avail = pieces[piece].len - offset;
    size_t skip = CLV_MIN(from, avail), n = CLV_MIN(len, avail - skip);
    if (n) visit(state, (const uint8_t *)pieces[piece].data + offset + skip, n);
    from -= skip;
    len -= n;
    piece++;
    offset = 0;
  }
}

static void copy_part(void *state, const uint8_t *data, size_t len) {
  uint8_t **dst = state;
  memcpy(*dst, data, len);
  *dst += len;
}

void clv_payload_copy(const clv_piece *pieces, const clv_payload *payload, size_t from, size_t len,
                      void *dst) {
  uint8_t *out = dst;
  visit_range(pieces, payload, from, len, copy_part, &out);
}

static void add_part_to_crc(void *state, const uint8_t *data, size_t len) {
  uint32_t *crc = state;
  *crc = clv_crc32c(*crc, data, len);
}

uint32_t clv_payload_crc32c(const clv_piece *pieces, const clv_payload *payload, size_t from,
                            size_t len) {
  uint32_t crc = 0;
  visit_range(pieces, payload, from, len, add_part_to_crc, &crc);
  return crc;
}

bool clv_payload_next_piece(const clv_piece *pieces, const clv_payload *payload, size_t *state,
                            clv_piece *ret_piece) {
  size_t piece = payload->piece_index, offset = payload->offset, passed = 0;
  while (*state < payload->len) {
    size_t n = CLV_MIN(pieces[piece].len - offset, payload->len - passed);
    if (passed == *state && n) {
      *ret_piece = (clv_piece){(const uint8_t *)pieces[piece].data + offset, n};
      *state += n;
      return true;
    }
    passed += n;
    piece++;
    offset = 0;
  }
  return false;
}
