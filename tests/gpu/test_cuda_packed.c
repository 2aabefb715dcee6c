/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests packed sequences on the simulated device, in f32 and bf16. Compared with padded sequences,
 * the values at real positions have the same bits, and the gradients are near. The bits are the
 * same for every cut and in every order of the device's work. Wrong lengths are refused.
 */
#include "tests/gpu/sim.h"
#include "tests/long.h"
#include "tests/sanitized.h"
#include "tests/unit/graph/packed_test.h"

static clv_backend *open_device(uint64_t seed) {
  clv_backend *b;
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){.seed = seed}), 0, &b, err));
  return b;
}

static void close_device(clv_backend *b) {
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

/* The simulation is slow where threads of a warp exchange values, most of all under thread
 * sanitizer. So only `make long` has keys that span two warps (wide_batch) in all comparisons;
 * otherwise the first comparison has them. Each test cuts the graph in two at every k-th place,
 * where k is get_cut_interval(). */
static bool tests_all(void) { return is_long() && !CLV_THREAD_SANITIZED; }
static int get_cut_interval(void) { return CLV_THREAD_SANITIZED ? 8 : is_long() ? 1 : 6; }
static const batch *choose_batch(void) { return tests_all() ? &wide_batch : &narrow_batch; }

static void packed_results_equal_padded_results(void **state) {
  (void)state;
  for (int option_bits = 0; option_bits < 8; option_bits += is_long() ? 1 : 5) {
    clv_backend *b = open_device((uint64_t)option_bits);
    rig_options o = {
        .backend = b, .is_evaluation = option_bits % 4 == 3, .is_bf16 = option_bits & 1};
    for (int of = 0; of < FAMILIES; of++)
      compare_packed_with_padded(option_bits || of ? choose_batch() : &wide_batch, (family)of,
                                 (output_positions)(option_bits % 3), option_bits & 2 ? 9 : 0, &o);
    close_device(b);
  }
}

static void packed_results_are_the_same_at_every_cut(void **state) {
  (void)state;
  for (int bf16 = 0; bf16 < 2; bf16++) {
    clv_backend *b = open_device(3);
    for (int of = 0; of < FAMILIES; of++)
      compare_with_cuts(choose_batch(), (family)of, get_cut_interval(), 2 * of + bf16,
                        &(rig_options){.backend = b, .is_bf16 = bf16});
    close_device(b);
  }
}

static void invalid_sequence_lengths_are_refused(void **state) {
  (void)state;
  clv_backend *b = open_device(1);
  assert_lengths_refused(b);
  close_device(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(packed_results_equal_padded_results),
      cmocka_unit_test(packed_results_are_the_same_at_every_cut),
      cmocka_unit_test(invalid_sequence_lengths_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
