/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops that take any layout: the same bits in channel blocks as row-major, with two threads as with
 * one, in place as beside; reorders; and that executing takes no memory.
 */
#include "tests/unit/cpu/cpu_test.h"

static const clv_op ops[] = {CLV_OP_RELU,    CLV_OP_SIGMOID,       CLV_OP_TANH,     CLV_OP_GELU,
                             CLV_OP_ADD,     CLV_OP_FLATTEN,       CLV_OP_DROPOUT,  CLV_OP_MAXPOOL,
                             CLV_OP_AVGPOOL, CLV_OP_GLOBALAVGPOOL, CLV_OP_BATCHNORM};

/* Odd images and channels that fill no block; the last is large enough for two threads. */
static const int64_t images[][4] = {{2, 3, 5, 7}, {3, 17, 6, 5}, {1, 16, 9, 8}, {4, 24, 41, 43}};

static clv_node_desc desc_of(size_t op, size_t image) {
  const int64_t *v = images[image];
  return image_desc(ops[op], v[0], v[1], v[2], v[3]);
}

static void check_same(const char *what, const clv_node_desc *d, const clv_node_desc *other) {
  node a, b;
  node_init(&a, d);
  node_init(&b, other);
  node_run(&a);
  node_run(&b);
  assert_same_results(what, &a, &b);
  node_done(&a);
  node_done(&b);
}

static void test_blocks_give_the_same_bits(void **state) {
  (void)state;
  for (size_t op = 0; op < CLV_COUNT(ops); op++)
    for (size_t image = 0; image < CLV_COUNT(images); image++)
      for (int block = 8; block <= 16; block += 8) {
        char what[60];
        clv_node_desc d = desc_of(op, image), blocked = d;
        node n;
        blocked.offered_block[0] = blocked.offered_block[1] = block;
        node_init(&n, &blocked);
        assert_int_equal(n.k->in_block[0], block);
        node_done(&n);
        snprintf(what, sizeof what, "op %d, image %zu, block %d", (int)ops[op], image, block);
        check_same(what, &d, &blocked);
      }
}

static void test_threads_give_the_same_bits(void **state) {
  (void)state;
  for (size_t op = 0; op < CLV_COUNT(ops); op++)
    for (int block = 1; block <= 8; block += 7) {
      clv_node_desc d = desc_of(op, 3), two = d;
      d.offered_block[0] = two.offered_block[0] = block;
      two.threads = 2;
      check_same("two threads", &d, &two);
    }
}

static void test_in_place_gives_the_same_bits(void **state) {
  (void)state;
  for (size_t op = 0; op < CLV_COUNT(ops); op++) {
    clv_node_desc d = desc_of(op, 1);
    clv_err err;
    node a, b;
    d.offered_block[0] = d.offered_block[1] = 8;
    node_init(&a, &d);
    node_init(&b, &d);
    if (b.k->in_place) {
      float *keep = b.a.out, *shared = (float *)(uintptr_t)b.a.in[0];
      node_run(&a);
      b.a.out = shared;
      ok(b.k->forward(b.k, &b.a, &err), &err);
      if (!(b.k->saves & CLV_SAVE_IN0)) ok(b.k->backward_input(b.k, &b.a, &err), &err);
      assert_same_results("in place", &a, &b);
      b.a.out = keep;
    }
    node_done(&a);
    node_done(&b);
  }
}

/* Training batch norm moves the running statistics; evaluation reads them. */
static void test_batchnorm_modes(void **state) {
  (void)state;
  clv_node_desc d = image_desc(CLV_OP_BATCHNORM, 3, 9, 4, 5);
  node n;
  d.offered_block[0] = 8;
  node_init(&n, &d);
  float before = ((float *)n.a.param[CLV_SLOT_MEAN])[8];
  node_run(&n);
  assert_int_equal(n.tracked, 1);
  assert_true(((float *)n.a.param[CLV_SLOT_MEAN])[8] != before);
  node_done(&n);
  d.training = false;
  node_init(&n, &d);
  before = ((float *)n.a.param[CLV_SLOT_MEAN])[8];
  node_run(&n);
  assert_int_equal(n.tracked, 0);
  assert_true(((float *)n.a.param[CLV_SLOT_MEAN])[8] == before);
  node_done(&n);
}

/* What dropout keeps is decided by the row-major index: Philox block i/4, word i%4. */
/* Whether dropout with probability p keeps element i. */
static bool keeps(const node *n, size_t i, double p) {
  uint32_t word[4];
  clv_rng_block(&n->a.key, (uint32_t)(i / 4), word);
  return (word[i % 4] >> 8) * 0x1p-24 >= p;
}

static void test_dropout_mask(void **state) {
  (void)state;
  clv_node_desc d = image_desc(CLV_OP_DROPOUT, 2, 11, 3, 5);
  node n;
  d.offered_block[0] = 8;
  node_init(&n, &d);
  node_run(&n);
  float *x = to_plain(&d.in[0], n.a.in[0], 8), *y = node_out(&n);
  int dropped = 0;
  for (size_t i = 0; i < numel(&d.in[0]); i++) {
    bool keep = keeps(&n, i, d.attrs.p);
    float want = x[i] * (keep ? (float)(1 / (1 - d.attrs.p)) : 0);
    assert_true(y[i] == want);
    dropped += !keep;
  }
  assert_in_range(dropped, 330 / 8, 330 / 2);
  free(x);
  free(y);
  node_done(&n);
}

static void test_reorder_moves_every_element(void **state) {
  (void)state;
  static const int blocks[] = {1, 8, 16};
  const clv_backend *cpu = clv_backend_cpu();
  clv_shape shape = CLV_SHAPE(2, 19, 3, 5);
  size_t n = numel(&shape);
  clv_err err;
  for (size_t from = 0; from < 3; from++)
    for (size_t to = 0; to < 3; to++) {
      float *plain = floats_new(n), *b = floats_new(clv_layout_numel(&shape, blocks[to]));
      for (size_t i = 0; i < n; i++) plain[i] = (float)i + 1;
      float *a = to_layout(&shape, plain, blocks[from]);
      uint64_t before = cpu->reorder_count();
      ok(cpu->reorder(&shape, CLV_F32, a, blocks[from], b, blocks[to], &err), &err);
      assert_int_equal(cpu->reorder_count() - before, 1);
      for (size_t i = 0; i < clv_layout_numel(&shape, blocks[to]); i++) {
        size_t w = (size_t)blocks[to], c = i / (15 * w) % ((19 + w - 1) / w) * w + i % w;
        size_t sample = i / (15 * w * ((19 + w - 1) / w)), pixel = i / w % 15;
        float want = c < 19 ? (float)((sample * 19 + c) * 15 + pixel) + 1 : 0;
        assert_true(b[i] == want);
      }
      free(plain);
      free(a);
      free(b);
    }
}

static void test_reorder_refuses(void **state) {
  (void)state;
  clv_shape flat = CLV_SHAPE(2, 3), image = CLV_SHAPE(1, 1, 1, 1);
  float x[16], y[16];
  clv_err err;
  clv_code (*reorder)(const clv_shape *, clv_dtype, const void *, int, void *, int, clv_err *) =
      clv_backend_cpu()->reorder;
  assert_int_equal(reorder(&flat, CLV_F32, x, 1, y, 8, &err), CLV_INVALID);
  assert_int_equal(reorder(&image, CLV_F64, x, 1, y, 8, &err), CLV_INVALID);
  assert_int_equal(reorder(&image, CLV_F32, x, 1, y, 4, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "4"));
}

static void test_execution_takes_no_memory(void **state) {
  (void)state;
  clv_node_desc descs[CLV_COUNT(ops) + 3];
  size_t n = 0;
  for (size_t op = 0; op < CLV_COUNT(ops); op++) descs[n++] = desc_of(op, 1);
  descs[n++] = conv_desc(2, 1, 8, 8, 16, 3, 1, 1, 1);
  descs[n++] = conv_desc(2, 16, 8, 8, 20, 3, 1, 1, 1);
  descs[n++] = linear_desc(300, 20, 30);
  for (size_t i = 0; i < n; i++) check_no_memory_taken(&descs[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_blocks_give_the_same_bits),
      cmocka_unit_test(test_threads_give_the_same_bits),
      cmocka_unit_test(test_in_place_gives_the_same_bits),
      cmocka_unit_test(test_batchnorm_modes),
      cmocka_unit_test(test_dropout_mask),
      cmocka_unit_test(test_reorder_moves_every_element),
      cmocka_unit_test(test_reorder_refuses),
      cmocka_unit_test(test_execution_takes_no_memory),
  };
  return cmocka_run_group_tests_name("cpu layouts", tests, NULL, NULL);
}
