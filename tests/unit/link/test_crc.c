/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how the CRCs of chunks are shifted and combined to the CRC of a tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/net/link/link_int.h"

/* Returns n bytes with the values i % 251. Their period, 251, divides no chunk size of the
 * tests. */
static unsigned char *make_pattern(size_t n) {
  unsigned char *data = malloc(n);
  assert_non_null(data);
  for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i % 251);
  return data;
}

/* Combines the CRCs of chunks of any size, beginning with the last chunk. This is possible because
 * the shifted CRC of a chunk does not depend on the chunks before it. */
static void shifted_chunk_crcs_combine_to_the_whole(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 3, 64, 1000, 262144, 300001};
  size_t n = 1000003;
  unsigned char *data = make_pattern(n);
  for (size_t k = 0; k < CLV_COUNT(sizes); k++) {
    if (n / sizes[k] > 100000) continue;
    uint32_t sum = 0;
    for (size_t end = n, from; end > 0; end = from) {
      from = (end - 1) / sizes[k] * sizes[k];
      sum ^= clv_crc32c_shift(clv_crc32c(0, data + from, end - from), n - end);
    }
    assert_int_equal(sum, clv_crc32c(0, data, n));
  }
  free(data);
}

static void single_byte_crcs_combine_to_the_whole(void **state) {
  (void)state;
  unsigned char *data = make_pattern(777);
  uint32_t sum = 0;
  for (size_t i = 0; i < 777; i++) sum ^= clv_crc32c_shift(clv_crc32c(0, data + i, 1), 776 - i);
  assert_int_equal(sum, clv_crc32c(0, data, 777));
  free(data);
}

/* Shifting a CRC by a and then by b equals shifting it by a + b, also for shifts that exceed the
 * table of powers. */
static void crc_shifts_compose(void **state) {
  (void)state;
  static const uint64_t shifts[] = {0, 1, 5, 1u << 18, (uint64_t)1 << 33, (uint64_t)1 << 49};
  for (size_t i = 0; i < CLV_COUNT(shifts); i++)
    for (size_t j = 0; j < CLV_COUNT(shifts); j++)
      assert_int_equal(clv_crc32c_shift(clv_crc32c_shift(0x12345678, shifts[i]), shifts[j]),
                       clv_crc32c_shift(0x12345678, shifts[i] + shifts[j]));
  assert_int_equal(clv_crc32c_shift(0x12345678, 0), 0x12345678);
}

static void swapped_chunks_change_the_crc(void **state) {
  (void)state;
  unsigned char *data = make_pattern(4096);
  uint32_t a = clv_crc32c(0, data, 2048), b = clv_crc32c(0, data + 2048, 2048);
  assert_int_equal(clv_crc32c_shift(a, 2048) ^ b, clv_crc32c(0, data, 4096));
  assert_int_not_equal(clv_crc32c_shift(b, 2048) ^ a, clv_crc32c(0, data, 4096));
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shifted_chunk_crcs_combine_to_the_whole),
      cmocka_unit_test(single_byte_crcs_combine_to_the_whole),
      cmocka_unit_test(crc_shifts_compose),
      cmocka_unit_test(swapped_chunks_change_the_crc),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
