/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C of a tensor whose chunks are received in any order. Each chunk is summed while it is still
 * in the cache. With shift(c, n) = c * x^(8n) mod P, the CRC of A followed by B is shift(crc(A),
 * len(B)) ^ crc(B). So each chunk contributes its CRC, shifted by the bytes that follow it. Source:
 * Mark Adler's crc32_combine in zlib, which proves it for CRC-32.
 */
#include "common/net/link/link_int.h"

#define POLYNOMIAL 0x82f63b78u /* polynomial of CRC-32C, bit-reversed: the lowest bit is x^31 */

enum { POWERS = 31 };

/* x^(8 * 2^k) mod P. x^(2^31) is x again, so the list repeats. */
static const uint32_t powers[POWERS] = {
    0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
    0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
    0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915, 0x734d5309, 0xbc1ac763, 0x7d0722cc,
    0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42, 0x40000000, 0x20000000, 0x08000000,
};

static uint32_t multiply_polynomials(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a; a <<= 1) {
    if (a & 0x80000000u) product ^= b;
    b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
  }
  return product;
}

uint32_t clv_crc32c_shift(uint32_t crc, uint64_t bytes) {
  for (unsigned k = 0; bytes; k++, bytes >>= 1)
    if (bytes & 1) crc = multiply_polynomials(crc, powers[k % POWERS]);
  return crc;
}
