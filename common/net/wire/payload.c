/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the payload of a frame, which may span several pieces.
 */
#include "common/net/wire/wire.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { CACHE_LINE = 64 }; /* bytes of a cache line */

/* Callback for each part of bytes [from, from + len) of a payload, in order. */
typedef void (*visitor)(void *state, const uint8_t *data, size_t len);

static void visit_range(const clv_piece *pieces, const clv_payload *payload, size_t from,
                        size_t len, visitor visit, void *state) {
  if (from >= payload->len) return;
  len = CLV_MIN(len, payload->len - from);
  size_t piece = payload->piece_index, offset = payload->offset;
  while (len) {
    size_t n_available = pieces[piece].len - offset;
    size_t skip = CLV_MIN(from, n_available), n = CLV_MIN(len, n_available - skip);
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

/* Copies without reading `dst` into the cache first and without evicting what is there. Such a
 * store takes half the time of a plain one where `dst` is far larger than the cache. */
static void copy_past_cache(uint8_t *dst, const uint8_t *src, size_t len) {
#ifdef __SSE2__
  size_t before = CLV_MIN(-(uintptr_t)dst % CACHE_LINE, len);
  memcpy(dst, src, before);
  for (dst += before, src += before, len -= before; len >= CACHE_LINE;
       dst += CACHE_LINE, src += CACHE_LINE, len -= CACHE_LINE)
    for (int i = 0; i < CACHE_LINE; i += (int)sizeof(__m128i))
      _mm_stream_si128((__m128i *)(void *)(dst + i),
                       _mm_loadu_si128((const __m128i *)(const void *)(src + i)));
#endif
  memcpy(dst, src, len);
}

typedef struct summed_copy {
  uint8_t *dst;
  uint32_t crc;
} summed_copy;

/* Sums a part while its bytes are in the cache, where decryption has left them, and copies it. */
static void sum_and_copy_part(void *state, const uint8_t *data, size_t len) {
  summed_copy *c = state;
  c->crc = clv_crc32c(c->crc, data, len);
  copy_past_cache(c->dst, data, len);
  c->dst += len;
}

uint32_t clv_payload_copy_past_cache(const clv_piece *pieces, const clv_payload *payload,
                                     void *dst) {
  summed_copy c = {.dst = dst};
  visit_range(pieces, payload, 0, payload->len, sum_and_copy_part, &c);
#ifdef __SSE2__
  _mm_sfence(); /* a lock does not order these stores */
#endif
  return c.crc;
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
