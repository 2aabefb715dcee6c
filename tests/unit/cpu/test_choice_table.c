/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the table that chooses which kernel computes an op: which row of the table is used, the
 * classes of shapes, kernels that follow the choices, and the digest of the table that nodes send
 * to each other.
 */
#include <dnnl.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/pairs_int.h"
#include "tests/unit/cpu/cpu_test.h"

/* Answer of clv_cpu_choose if a test asks which kernel is fastest in bf16 on this processor;
 * CPU_CANDIDATES: clv_cpu_choose returns what its table says. */
static cpu_candidate forced_answer = CPU_CANDIDATES;

cpu_candidate __real_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class) {
  bool is_asked = question == CPU_ATTENTION_BF16 || question == CPU_LSTM_BF16 ||
                  question == CPU_CONV_WEIGHT_BF16;
  return is_asked && forced_answer != CPU_CANDIDATES ? forced_answer
                                                     : __real_clv_cpu_choose(question, shape_class);
}

/* clv_cpu_choose_for looks for the exact row, then for a row of another version of the library,
 * then for rows of the next lower instruction set. */
static void nearest_row_of_the_table_is_used(void **state) {
  static const struct {
    const char *isa, *library;
    cpu_candidate conv_choice, attention_choice;
  } rows[] = {
      {"avx512_core_amx", "oneDNN 2.6.3", CPU_CHANNELS_LAST, CPU_PAIRS},
      {"avx512_core_amx", "oneDNN 3.7.2", CPU_CHANNELS_LAST, CPU_PAIRS},
      {"avx512_core_amx_fp16", "oneDNN 3.7.2", CPU_CHANNELS_LAST, CPU_PAIRS},
      {"avx512_core_amx_refused", "oneDNN 2.6.3", CPU_BLOCKS, CPU_F32},
      {"avx512_core_bf16", "oneDNN 2.6.3", CPU_BLOCKS, CPU_F32},
      {"sse41", "oneDNN 2.6.3", CPU_BLOCKS, CPU_F32},
      {"unheard of", "", CPU_BLOCKS, CPU_F32},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    const char *isa = rows[i].isa, *library = rows[i].library;
    assert_int_equal(clv_cpu_choose_for(CPU_CONV_BF16, CPU_WINDOW, isa, library),
                     rows[i].conv_choice);
    assert_int_equal(clv_cpu_choose_for(CPU_ATTENTION_BF16, CPU_WIDE, isa, library),
                     rows[i].attention_choice);
  }
}

static void class_follows_from_the_shape(void **state) {
  clv_window s = {.n = 2, .c = 32, .h = 9, .w = 9, .k = 64, .oh = 9, .ow = 9};
  (void)state;
  s.kernel[0] = s.kernel[1] = 3;
  s.stride[0] = s.stride[1] = s.dilation[0] = s.dilation[1] = 1;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_WINDOW);
  assert_int_equal(clv_cpu_class_of_conv(&s, 4), CPU_GROUPED);
  assert_int_equal(clv_cpu_class_of_conv(&s, 32), CPU_DEPTHWISE);
  s.oh = s.ow = 8;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_WINDOW_SMALL_IMAGE);
  s.stride[1] = 2;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_WINDOW_STRIDED);
  s.kernel[0] = 4;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_WIDE_WINDOW_STRIDED);
  s.kernel[0] = s.kernel[1] = 1;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_POINTWISE_STRIDED);
  s.dilation[0] = 2;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_DILATED);
  s.c = 15;
  assert_int_equal(clv_cpu_class_of_conv(&s, 1), CPU_FEW_CHANNELS);
  assert_int_equal(clv_cpu_class_of_linear(255), CPU_FEW_ROWS);
  assert_int_equal(clv_cpu_class_of_linear(256), CPU_MANY_ROWS);
  assert_int_equal(clv_cpu_class_of_attention(31), CPU_NARROW);
  assert_int_equal(clv_cpu_class_of_lstm(4, 128), CPU_WIDE);
}

static clv_node_desc make_attention_desc(void) {
  clv_node_desc d = {.op = CLV_OP_ATTENTION,
                     .attrs = {.heads = 2},
                     .n_in = 3,
                     .offered_block = {1, 1, 1},
                     .out = CLV_SHAPE(2, 40, 64),
                     .training = true,
                     .threads = 1,
                     .bf16 = true};
  for (int i = 0; i < 3; i++) {
    d.in[i] = d.out;
    d.need_dx[i] = true;
  }
  return d;
}

static bool is_bf16_missing(void) {
  clv_err why;
  return clv_backend_cpu()->check_bf16(clv_backend_cpu(), &why) != CLV_OK;
}

/* The answer of clv_cpu_choose selects one of two attention kernels. Their results differ, but by
 * less than 0.05. */
static void kernel_follows_the_answer(void **state) {
  const clv_node_desc d = make_attention_desc();
  node a, b;
  (void)state;
  if (is_bf16_missing()) skip();
  forced_answer = CPU_F32;
  prepare_node(&a, &d);
  forced_answer = CPU_PAIRS;
  prepare_node(&b, &d);
  forced_answer = CPU_CANDIDATES;
  assert_string_equal(a.k->impl, "simd");
  assert_string_equal(b.k->impl, clv_cpu_pairs_impl()->name);
  run_node(&a);
  run_node(&b);
  size_t n = count_elements(&d.out), n_different = 0;
  for (size_t i = 0; i < n; i++) {
    float x = ((float *)a.a.out)[i], y = ((float *)b.a.out)[i];
    n_different += memcmp(&x, &y, sizeof x) != 0;
    if (!(fabsf(x - y) < 0.05f)) fail_msg("output %zu: %g in f32, %g in bf16", i, x, y);
  }
  assert_true(n_different > n / 2);
  free_node(&a);
  free_node(&b);
}

/* A convolution for which two kernels could compute the weight gradient uses the one that
 * clv_cpu_choose returns. */
static void weight_gradient_follows_the_answer(void **state) {
  clv_node_desc d = make_conv_desc(2, 32, 9, 9, 32, 3, 1, 1, 1);
  size_t scratch_bytes[2];
  (void)state;
  if (!clv_cpu_has_amx()) skip();
  d.bf16 = true;
  for (int i = 0; i < 2; i++) {
    node n;
    forced_answer = i ? CPU_PRODUCT : CPU_ONEDNN;
    prepare_node(&n, &d);
    scratch_bytes[i] = n.k->scratch_bytes;
    free_node(&n);
  }
  forced_answer = CPU_CANDIDATES;
  assert_true(scratch_bytes[0] != scratch_bytes[1]);
}

static void libraries_name_the_digest_of_the_table(void **state) {
  const char *text = strstr(clv_backend_libraries(clv_backend_cpu()), ", choices ");
  (void)state;
  assert_non_null(text);
  assert_string_equal(text + strlen(", choices "), clv_cpu_choices_digest());
  assert_int_equal(strspn(clv_cpu_choices_digest(), "0123456789abcdef"), 12);
}

/* If the vectors of OpenBLAS are narrower than those of oneDNN, the list of libraries says that
 * OpenBLAS is not used, and linear does not use it. main chooses an OpenBLAS without AVX2. */
static void narrow_blas_is_not_used(void **state) {
  clv_node_desc d = make_linear_desc(512, 16, 16);
  node n;
  (void)state;
  prepare_node(&n, &d);
  bool is_named = strstr(clv_backend_libraries(clv_backend_cpu()), "(not used: ") != NULL;
  unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), avx2_bits = dnnl_cpu_isa_avx2;
  assert_true(is_named == (clv_cpu_has_blas() && (isa & avx2_bits) == avx2_bits));
  if (is_named) assert_string_equal(n.k->impl, "sgemm");
  free_node(&n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nearest_row_of_the_table_is_used),
      cmocka_unit_test(class_follows_from_the_shape),
      cmocka_unit_test(kernel_follows_the_answer),
      cmocka_unit_test(weight_gradient_follows_the_answer),
      cmocka_unit_test(libraries_name_the_digest_of_the_table),
      cmocka_unit_test(narrow_blas_is_not_used),
  };
  setenv("OPENBLAS_CORETYPE", "Prescott", 1);
  return cmocka_run_group_tests_name("cpu choices", tests, NULL, NULL);
}
