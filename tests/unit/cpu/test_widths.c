/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that code which is written once for each vector width gives the same bits in all widths
 * that this processor has.
 */
#include "kernels/cpu/draw_int.h"
#include "kernels/cpu/tiles_int.h"
#include "tests/unit/cpu/cpu_test.h"

int __wrap_clv_cpu_vector_width(void);
int __real_clv_cpu_vector_width(void);

static int vector_width;
int __wrap_clv_cpu_vector_width(void) { return vector_width; }

/* Compares random words that are drawn in bulk with the words of single blocks, also where the
 * number of the block overflows. */
static void random_words_match_single_rng_blocks(void **state) {
  static const uint32_t first_blocks[] = {0, 16, 5, UINT32_MAX - 7};
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 7, .step = 3, .layer = 80});
  uint32_t want[4], got[CPU_RANDOM_WORDS];
  (void)state;
  for (vector_width = CPU_PLAIN; vector_width <= __real_clv_cpu_vector_width(); vector_width++)
    for (size_t i = 0; i < CLV_COUNT(first_blocks); i++) {
      clv_cpu_draw_words(&s, first_blocks[i], got);
      for (uint32_t b = 0; b < CPU_RANDOM_WORDS / 4; b++) {
        clv_rng_stream_block(&s, first_blocks[i] + b, want);
        assert_memory_equal(want, got + 4 * b, sizeof want);
      }
    }
}

enum { MAX_EXTENT = 40, MAX_ELEMENTS = MAX_EXTENT * MAX_EXTENT };

/* Compares the matrix product C = A * B, or C += A * B, of the code for each vector width with the
 * product of plain loops. by_columns: A is stored by columns. Memory outside C must not change. */
static void check_product(size_t m, size_t n, size_t k, bool by_columns, bool adds_to_c) {
  static float a[MAX_ELEMENTS], b[MAX_ELEMENTS], c[3][MAX_ELEMENTS];
  draw_normal(a, MAX_ELEMENTS, 1);
  draw_normal(b, MAX_ELEMENTS, 2);
  for (vector_width = CPU_PLAIN; vector_width <= __real_clv_cpu_vector_width(); vector_width++) {
    draw_normal(c[vector_width], MAX_ELEMENTS, 3);
    clv_cpu_tiles_multiply(&(cpu_tile_product){.m = m,
                                               .n = n,
                                               .k = k,
                                               .a = a,
                                               .a_row_stride = by_columns ? 1 : MAX_EXTENT,
                                               .a_column_stride = by_columns ? MAX_EXTENT : 1,
                                               .b = b,
                                               .b_row_stride = MAX_EXTENT,
                                               .c = c[vector_width],
                                               .c_row_stride = MAX_EXTENT,
                                               .accumulate = adds_to_c});
    assert_memory_equal(c[CPU_PLAIN], c[vector_width], sizeof c[0]);
  }
}

static void matrix_products_match_plain_loops_bitwise(void **state) {
  static const size_t extents[] = {1, 3, 4, 7, 8, 13, 16, 17, 31, 32, 33, 39};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(extents); i++)
    for (size_t j = 0; j < CLV_COUNT(extents); j++)
      for (int variant = 0; variant < 4; variant++)
        check_product(extents[i], extents[j], 1 + (i + j) % 9, variant & 1, variant & 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_words_match_single_rng_blocks),
      cmocka_unit_test(matrix_products_match_plain_loops_bitwise),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
