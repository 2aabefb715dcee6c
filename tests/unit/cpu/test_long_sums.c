/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that gradients of biases stay near their exact values where they have many terms. All terms
 * are equal, so that the rounding errors of one long f32 sum add up instead of cancelling.
 */
#include "tests/unit/cpu/cpu_test.h"

static const float TERM_VALUE = 0.1f;

/* Fails unless each gradient of a bias is TERM_VALUE * n_terms, with a relative error of at most
 * `limit`. */
static void check_bias(const char *what, clv_node_desc d, double n_terms, double limit) {
  node n;
  for (d.threads = 1; d.threads <= 2; d.threads++) {
    prepare_node(&n, &d);
    float *dout = (float *)(uintptr_t)n.a.dout;
    for (size_t i = 0; i < clv_layout_numel(&d.out, n.k->out_block); i++) dout[i] = TERM_VALUE;
    run_node(&n);
    const float *db = n.a.dparam[CLV_SLOT_BIAS];
    for (size_t i = 0; i < count_elements(&d.param[CLV_SLOT_BIAS]); i++) {
      double distance = fabs(db[i] / ((double)TERM_VALUE * n_terms) - 1);
      if (!(distance <= limit))
        fail_msg("%s: bias %zu of %g terms is %.1e from its value", what, i, n_terms, distance);
    }
    free_node(&n);
  }
}

/* The backend computes each of these convolutions with a different function. */
static void test_bias_of_a_convolution_with_many_positions_is_rounded_once(void **state) {
  (void)state;
  check_bias("few channels", make_conv_desc(2, 3, 64, 64, 20, 3, 1, 1, 1), 8192, 1e-7);
  check_bias("1x1", make_conv_desc(2, 32, 64, 64, 16, 1, 1, 0, 1), 8192, 1e-7);
  check_bias("3x3", make_conv_desc(2, 32, 64, 64, 32, 3, 1, 1, 1), 8192, 1e-7);
  check_bias("groups", make_conv_desc(2, 24, 64, 64, 24, 3, 1, 1, 24), 8192, 1e-7);
  check_bias("one channel", make_conv_desc(2, 17, 64, 64, 1, 1, 1, 0, 1), 8192, 1e-7);
}

static void test_bias_of_a_sequence_with_many_places_is_rounded_once(void **state) {
  (void)state;
  clv_node_desc d = make_conv_desc(2, 5, 1, 4096, 6, 1, 1, 0, 1);
  d.op = CLV_OP_CONV1D;
  d.in[0] = CLV_SHAPE(2, 5, 4096);
  d.out = CLV_SHAPE(2, 6, 4096);
  d.param[0] = CLV_SHAPE(6, 5, 1);
  check_bias("conv1d", d, 8192, 1e-7);
}

static void test_bias_of_many_rows_has_sums_of_sums(void **state) {
  (void)state;
  check_bias("linear", make_linear_desc(8192, 3, 5), 8192, 1e-5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bias_of_a_convolution_with_many_positions_is_rounded_once),
      cmocka_unit_test(test_bias_of_a_sequence_with_many_places_is_rounded_once),
      cmocka_unit_test(test_bias_of_many_rows_has_sums_of_sums),
  };
  return cmocka_run_group_tests_name("cpu long sums", tests, NULL, NULL);
}
