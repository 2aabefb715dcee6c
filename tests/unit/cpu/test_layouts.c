/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests batchnorm and dropout, which take any layout, in a blocked layout, and reorders between
 * layouts. tests/ops/test_any_layout.c tests for all ops that the bits are those of row-major.
 */
#include "tests/unit/cpu/cpu_test.h"

/* Batchnorm updates its running statistics in training, and reads them in evaluation. */
static void test_batchnorm_updates_statistics_only_in_training(void **state) {
  (void)state;
  clv_node_desc d = make_image_desc(CLV_OP_BATCHNORM, 3, 9, 4, 5);
  node n;
  d.offered_block[0] = 8;
  prepare_node(&n, &d);
  float mean_before = ((float *)n.a.param[CLV_SLOT_MEAN])[8];
  run_node(&n);
  assert_int_equal(n.n_tracked_batches, 1);
  assert_true(((float *)n.a.param[CLV_SLOT_MEAN])[8] != mean_before);
  free_node(&n);
  d.training = false;
  prepare_node(&n, &d);
  mean_before = ((float *)n.a.param[CLV_SLOT_MEAN])[8];
  run_node(&n);
  assert_int_equal(n.n_tracked_batches, 0);
  assert_true(((float *)n.a.param[CLV_SLOT_MEAN])[8] == mean_before);
  free_node(&n);
}

/* True if dropout with probability p keeps element i of the row-major order. Word i % 4 of Philox
 * block i / 4 decides. */
static bool is_kept_by_dropout(const node *n, size_t i, double p) {
  uint32_t word[4];
  clv_rng_block(&n->a.key, (uint32_t)(i / 4), word);
  return (word[i % 4] >> 8) * 0x1p-24 >= p;
}

static void test_blocked_dropout_uses_the_row_major_mask(void **state) {
  (void)state;
  clv_node_desc d = make_image_desc(CLV_OP_DROPOUT, 2, 11, 3, 5);
  node n;
  d.offered_block[0] = 8;
  prepare_node(&n, &d);
  run_node(&n);
  float *x = copy_to_row_major(&d.in[0], n.a.in[0], 8), *y = copy_node_out(&n);
  int n_dropped = 0;
  for (size_t i = 0; i < count_elements(&d.in[0]); i++) {
    bool is_kept = is_kept_by_dropout(&n, i, d.attrs.p);
    float want = x[i] * (is_kept ? (float)(1 / (1 - d.attrs.p)) : 0);
    assert_true(y[i] == want);
    n_dropped += !is_kept;
  }
  assert_in_range(n_dropped, 330 / 8, 330 / 2);
  free(x);
  free(y);
  free_node(&n);
}

static void test_reorder_moves_every_element(void **state) {
  (void)state;
  static const int blocks[] = {1, 8, 16};
  const clv_backend *cpu = clv_backend_cpu();
  clv_shape shape = CLV_SHAPE(2, 19, 3, 5);
  size_t n = count_elements(&shape);
  clv_err err;
  for (size_t from_index = 0; from_index < 3; from_index++)
    for (size_t to_index = 0; to_index < 3; to_index++) {
      float *row_major = allocate_floats(n),
            *b = allocate_floats(clv_layout_numel(&shape, blocks[to_index]));
      for (size_t i = 0; i < n; i++) row_major[i] = (float)i + 1;
      float *a = copy_to_layout(&shape, row_major, blocks[from_index]);
      uint64_t before = cpu->reorder_count();
      ok(cpu->reorder(cpu, &shape, CLV_F32, a, blocks[from_index], b, blocks[to_index], &err),
         &err);
      assert_int_equal(cpu->reorder_count() - before, 1);
      for (size_t i = 0; i < clv_layout_numel(&shape, blocks[to_index]); i++) {
        size_t w = (size_t)blocks[to_index], c = i / (15 * w) % ((19 + w - 1) / w) * w + i % w;
        size_t sample = i / (15 * w * ((19 + w - 1) / w)), pixel = i / w % 15;
        float want = c < 19 ? (float)((sample * 19 + c) * 15 + pixel) + 1 : 0;
        assert_true(b[i] == want);
      }
      free(row_major);
      free(a);
      free(b);
    }
}

/* Returns the row-major index of value i of an image that is channels last. */
static size_t get_row_major_index(const clv_shape *s, size_t i) {
  size_t c = (size_t)s->dim[1], image = (size_t)(s->dim[2] * s->dim[3]);
  return (i / c / image * c + i % c) * image + i / c % image;
}

/* Copies numbers from each layout, in f32 and bf16, to the layout channels-last and back. bf16
 * represents these numbers exactly, so no bit may change. */
static void test_reorder_to_channels_last_and_back(void **state) {
  (void)state;
  static const int other_layouts[] = {
      1, 8, 16, 1 | CLV_LAYOUT_BF16, 8 | CLV_LAYOUT_BF16, 16 | CLV_LAYOUT_BF16};
  const clv_backend *cpu = clv_backend_cpu();
  clv_shape shape = CLV_SHAPE(2, 19, 9, 11);
  size_t n = count_elements(&shape), max_elements = clv_layout_numel(&shape, 16);
  float *row_major = allocate_floats(n), *b = allocate_floats(max_elements),
        *c = allocate_floats(max_elements);
  float *channels_last = allocate_floats(n);
  clv_err err;
  for (size_t i = 0; i < n; i++) row_major[i] = (float)(i % 251);
  for (size_t i = 0; i < 2 * CLV_COUNT(other_layouts); i++) {
    int other_layout = other_layouts[i / 2],
        channels_last_layout = 1 | CLV_LAYOUT_CHANNELS_LAST | (i % 2 ? CLV_LAYOUT_BF16 : 0);
    bool is_bf16 = clv_layout_is_bf16(other_layout);
    float *a = copy_to_layout(&shape, row_major, clv_layout_block(other_layout));
    memset(b, 0x55, max_elements * sizeof *b);
    if (is_bf16)
      ok(cpu->reorder(cpu, &shape, CLV_F32, a, clv_layout_f32(other_layout), c, other_layout, &err),
         &err);
    ok(cpu->reorder(cpu, &shape, CLV_F32, is_bf16 ? c : a, other_layout, channels_last,
                    channels_last_layout, &err),
       &err);
    ok(cpu->reorder(cpu, &shape, CLV_F32, channels_last, channels_last_layout, b, other_layout,
                    &err),
       &err);
    assert_memory_equal(is_bf16 ? c : a, b,
                        clv_layout_numel(&shape, other_layout) * (is_bf16 ? 2 : 4));
    for (size_t v = 0; v < n && i == 0; v++)
      assert_true(channels_last[v] == row_major[get_row_major_index(&shape, v)]);
    free(a);
  }
  free(row_major);
  free(b);
  free(c);
  free(channels_last);
}

static void test_invalid_reorder_is_refused(void **state) {
  (void)state;
  clv_shape flat = CLV_SHAPE(2, 3), image = CLV_SHAPE(1, 1, 1, 1);
  float x[16], y[16];
  clv_err err;
  const clv_backend *b = clv_backend_cpu();
  assert_int_equal(b->reorder(b, &flat, CLV_F32, x, 1, y, 8, &err), CLV_INVALID);
  assert_int_equal(b->reorder(b, &image, CLV_F64, x, 1, y, 8, &err), CLV_INVALID);
  assert_int_equal(b->reorder(b, &image, CLV_F32, x, 1, y, 4, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "4"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_batchnorm_updates_statistics_only_in_training),
      cmocka_unit_test(test_blocked_dropout_uses_the_row_major_mask),
      cmocka_unit_test(test_reorder_moves_every_element),
      cmocka_unit_test(test_reorder_to_channels_last_and_back),
      cmocka_unit_test(test_invalid_reorder_is_refused),
  };
  return cmocka_run_group_tests_name("cpu layouts", tests, NULL, NULL);
}
