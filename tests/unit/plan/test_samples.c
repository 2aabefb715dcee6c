/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the digests by which the ledger, the host's list of what workers have received, recognises
 * a tensor. Also tests which orders of labels, such as sorted labels, are reported.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"
#include "tests/long.h"

/* ---- digests of a sample of a tensor's values ------------------------------------------------ */

enum { ROWS = 300, COLUMNS = 70, VALUES = ROWS * COLUMNS };

static clv_sha256 compute_digest(clv_dtype dtype, const clv_shape *shape, const void *data,
                                 size_t piece_bytes) {
  clv_weights_sample s;
  clv_sha256 d;
  size_t bytes;
  assert_true(clv_weights_sample_begin(&s, dtype, shape));
  assert_int_equal(clv_shape_bytes(shape, dtype, &bytes, NULL), CLV_OK);
  memset(s.values, 0xee, sizeof s.values);
  for (size_t at = 0; at < bytes; at += piece_bytes)
    clv_weights_sample_add(&s, at, (const char *)data + at, CLV_MIN(piece_bytes, bytes - at));
  assert_int_equal(clv_weights_sample_digest(&s, &d, NULL), CLV_OK);
  clv_weights_sample_done(&s);
  return d;
}

static bool is_equal_digest(clv_sha256 a, clv_sha256 b) { return memcmp(&a, &b, sizeof a) == 0; }

static void fill_uniform(float *v) {
  const clv_rng_key key = {.seed = 5};
  clv_rng_uniform(&key, -1, 1, v, VALUES);
}

static void digest_does_not_depend_on_piece_size(void **state) {
  (void)state;
  static float v[VALUES];
  const clv_shape shape = CLV_SHAPE(ROWS, COLUMNS), other = CLV_SHAPE(COLUMNS, ROWS);
  fill_uniform(v);
  clv_sha256 d = compute_digest(CLV_F32, &shape, v, sizeof v);
  for (size_t piece = 4; piece < sizeof v; piece = 3 * piece + 4)
    assert_true(is_equal_digest(compute_digest(CLV_F32, &shape, v, piece), d));
  assert_false(is_equal_digest(compute_digest(CLV_F32, &other, v, sizeof v), d));
  v[0] += 1;
  assert_false(is_equal_digest(compute_digest(CLV_F32, &shape, v, sizeof v), d));
  v[0] -= 1;
  v[VALUES - 1] += 1; /* the digest changes, because the sample includes the last value */
  assert_false(is_equal_digest(compute_digest(CLV_F32, &shape, v, sizeof v), d));
}

static void bf16_copy_has_the_same_digest(void **state) {
  (void)state;
  static float v[VALUES];
  static uint16_t bf16_values[VALUES];
  const clv_shape shape = CLV_SHAPE(ROWS, COLUMNS);
  fill_uniform(v);
  for (size_t i = 0; i < VALUES; i++) bf16_values[i] = clv_bf16_of(v[i]);
  assert_true(is_equal_digest(compute_digest(CLV_F32, &shape, v, 4096),
                              compute_digest(CLV_BF16, &shape, bf16_values, 4096)));
}

/* ---- distributions of tensors' values, compared by their moments ----------------------------- */

enum { SIDE = 64, DRAWINGS = 40 };

static uint64_t get_n_drawings(void) { return is_long() ? DRAWINGS : 12; }

static clv_weights_moments compute_form(const float *v, size_t rows, size_t columns,
                                        bool uses_all_values) {
  static clv_weights_sample s;
  clv_weights_moments ret;
  const clv_shape shape = CLV_SHAPE((int64_t)rows, (int64_t)columns);
  assert_true(clv_weights_sample_begin(&s, CLV_F32, &shape));
  clv_weights_sample_add(&s, 0, v, rows * columns * sizeof *v);
  assert_true(clv_weights_sample_moments(&s, uses_all_values, &ret));
  clv_weights_sample_done(&s);
  return ret;
}

/* True if both tensors have the same digest of rounded moments. Moments of the second tensor that
 * are near a limit of rounding are tried with both rounded values. */
static bool is_same_form(const clv_weights_moments *first_moments,
                         const clv_weights_moments *second_moments) {
  clv_sha256 a, b;
  bool has_neighbour, is_found = false;
  assert_int_equal(clv_weights_moments_digest(first_moments, 0, &a, &has_neighbour, NULL), CLV_OK);
  for (unsigned neighbour = 0; neighbour < 1u << CLV_N_SPREAD_MEANS; neighbour++) {
    assert_int_equal(
        clv_weights_moments_digest(second_moments, neighbour, &b, &has_neighbour, NULL), CLV_OK);
    is_found |= has_neighbour && is_equal_digest(a, b);
  }
  return is_found;
}

/* Draws values: uniform for even seeds, nearly normal for odd ones. */
static void draw_random_values(uint64_t seed, float *v) {
  const clv_rng_key key = {.seed = seed};
  static float uniform_values[4 * VALUES];
  clv_rng_uniform(&key, -1, 1, v, VALUES);
  clv_rng_uniform(&key, -1, 1, uniform_values, 4 * (size_t)VALUES);
  for (size_t i = 0; i < VALUES && seed % 2; i++)
    v[i] = uniform_values[4 * i] + uniform_values[4 * i + 1] + uniform_values[4 * i + 2] +
           uniform_values[4 * i + 3];
}

static void scaled_converted_or_permuted_copies_are_recognized(void **state) {
  (void)state;
  static float v[VALUES], w[VALUES];
  static const float factors[] = {2, 3, -0.7F, 1e-3F};
  for (uint64_t seed = 1; seed <= get_n_drawings(); seed++) {
    draw_random_values(seed, v);
    const size_t sides[][2] = {{SIDE, SIDE}, {16, 16}, {ROWS, COLUMNS}};
    for (size_t k = 0; k < CLV_COUNT(sides); k++) {
      size_t rows = sides[k][0], columns = sides[k][1], n = rows * columns;
      clv_weights_moments form = compute_form(v, rows, columns, false), form_of_copy;
      for (size_t i = 0; i < CLV_COUNT(factors) + 2; i++) {
        float factor = i < CLV_COUNT(factors) ? factors[i] : 1 + (float)i;
        for (size_t j = 0; j < n; j++) w[j] = factor * v[j];
        for (size_t j = 0; i >= CLV_COUNT(factors) && j < n; j++)
          w[j] = clv_bf16_value(clv_bf16_of(w[j]));
        form_of_copy = compute_form(w, rows, columns, false);
        if (!is_same_form(&form, &form_of_copy))
          fail_msg("drawing %d of %zu, way %zu", (int)seed, n, i);
      }
      bool uses_all_values = rows == ROWS; /* true if the tensor has more values than a sample */
      form = compute_form(v, rows, columns, uses_all_values);
      for (size_t j = 0; j < n; j++) w[j] = v[j % rows * columns + j / rows];
      form_of_copy = compute_form(w, columns, rows, uses_all_values);
      assert_true(is_same_form(&form, &form_of_copy));
      for (size_t j = 0; j < n; j++) w[j] = -2 * v[(j + 5 * columns) % n];
      form_of_copy = compute_form(w, rows, columns, uses_all_values);
      assert_true(is_same_form(&form, &form_of_copy));
    }
  }
}

/* Tests a tensor as large as the embedding table of a small language model. A copy that is
 * transposed, multiplied and rounded must be recognised. */
static void large_tensors_are_found_in_any_order(void **state) {
  enum { N = 2048 };
  static float v[N * N], w[N * N];
  const clv_rng_key key = {.seed = 11};
  (void)state;
  clv_rng_uniform(&key, -0.05F, 0.05F, v, N * N);
  for (size_t j = 0; j < N * N; j++) {
    size_t at = j % N * N + j / N;
    w[j] = clv_bf16_value(clv_bf16_of(-1.7F * v[at]));
  }
  clv_weights_moments own = compute_form(v, N, N, true), other = compute_form(w, N, N, true);
  assert_true(is_same_form(&own, &other));
  clv_rng_uniform(&(clv_rng_key){.seed = 12}, -0.05F, 0.05F, w, N * N);
  other = compute_form(w, N, N, true);
  assert_false(is_same_form(&own, &other));
}

/* The pieces of a tensor arrive in any order. Before the last piece has arrived, the tensor has no
 * moments. */
static void incomplete_tensor_has_no_form(void **state) {
  (void)state;
  static float v[VALUES];
  static clv_weights_sample s;
  const clv_shape shape = CLV_SHAPE(ROWS, COLUMNS);
  clv_weights_moments own, other;
  draw_random_values(3, v);
  own = compute_form(v, ROWS, COLUMNS, true);
  assert_true(clv_weights_sample_begin(&s, CLV_F32, &shape));
  assert_false(clv_weights_sample_moments(&s, true, &other));
  clv_weights_sample_add(&s, 4000, v + 1000, sizeof v - 4000);
  assert_false(clv_weights_sample_moments(&s, true, &other));
  clv_weights_sample_add(&s, 0, v, 4000);
  assert_true(clv_weights_sample_moments(&s, true, &other) && is_same_form(&own, &other));
  clv_weights_sample_done(&s);
  assert_true(clv_weights_sample_begin(&s, CLV_F32, &CLV_SHAPE(SIDE, SIDE)));
  clv_weights_sample_add(&s, 0, v, SIDE * SIDE * sizeof *v);
  /* The tensor has no more values than a sample. Moments of all its values would repeat those of
   * the sample, so the function returns false. */
  assert_false(clv_weights_sample_moments(&s, true, &other));
  clv_weights_sample_done(&s);
}

static void independent_random_weights_are_not_confused(void **state) {
  (void)state;
  static float v[VALUES];
  clv_weights_moments forms[2 * DRAWINGS];
  static const size_t sides[][2] = {{SIDE, SIDE}, {8, 2}, {ROWS, COLUMNS}};
  for (size_t side_index = 0; side_index < CLV_COUNT(sides); side_index++) {
    for (uint64_t seed = 0; seed < 2 * get_n_drawings(); seed++) {
      draw_random_values(seed + 1, v);
      forms[seed] = compute_form(v, sides[side_index][0], sides[side_index][1], side_index == 2);
    }
    for (size_t i = 0; i < 2 * get_n_drawings(); i++)
      for (size_t k = 0; k < i; k++) assert_false(is_same_form(&forms[i], &forms[k]));
  }
}

static void biases_and_integer_tensors_are_not_sampled(void **state) {
  (void)state;
  clv_weights_sample s;
  const clv_shape bias = CLV_SHAPE(8), weight = CLV_SHAPE(8, 8), none = CLV_SHAPE(0, 8);
  assert_false(clv_weights_sample_begin(&s, CLV_F32, &bias));
  assert_false(clv_weights_sample_begin(&s, CLV_I64, &weight));
  assert_false(clv_weights_sample_begin(&s, CLV_F32, &none));
  assert_true(clv_weights_sample_begin(&s, CLV_F32, &weight));
  assert_int_equal(s.n_parts * s.part_len, 64);
}

/* ---- labels that are sorted or periodic ------------------------------------------------------ */

enum { LABELS = 600, CLASSES = 5 };

static clv_label_order_stats find_order(const double *labels, size_t n) {
  static double copy[LABELS];
  memcpy(copy, labels, n * sizeof *copy);
  return clv_label_order_compute(copy, n);
}

static void shuffled_labels_have_no_order(void **state) {
  (void)state;
  static double labels[LABELS];
  uint32_t order[LABELS];
  int n_found = 0; /* of 320 tries, one may find blocks of equal labels by chance */
  for (uint64_t seed = 1; seed <= 40; seed++) {
    const clv_rng_key key = {.seed = seed};
    clv_rng_permutation(&key, order, LABELS);
    for (size_t i = 0; i < LABELS; i++) labels[i] = order[i] % CLASSES;
    for (size_t n = 4; n <= LABELS; n = 2 * n + 1)
      if (find_order(labels, n).lag && ++n_found > 1) fail_msg("seed %d, %zu labels", (int)seed, n);
  }
}

static void sorted_labels_are_detected(void **state) {
  (void)state;
  static double labels[LABELS];
  for (size_t i = 0; i < LABELS; i++) labels[i] = (double)(i * CLASSES / LABELS);
  clv_label_order_stats o = find_order(labels, LABELS);
  assert_int_equal(o.lag, 1);
  assert_true(o.equal_share > 0.99 && o.shuffled_share > 0.19 && o.shuffled_share < 0.21);
  for (size_t i = 0; i < 20; i++) labels[i] = i >= 10;
  assert_int_equal(find_order(labels, 20).lag, 1);
}

/* Writes `records` labels in blocks of equal labels, `blocks` for each class. The classes rise
 * ('r'), fall ('f'), or rise and fall in turn ('m'). */
static void write_label_blocks(double *labels, size_t records, size_t classes, size_t blocks,
                               char pattern) {
  size_t n = records / (classes * blocks);
  for (size_t i = 0; i < records; i++) {
    size_t block = CLV_MIN(i / n, classes * blocks - 1), class = block % classes;
    bool is_falling = pattern == 'f' || (pattern == 'm' && block / classes % 2);
    labels[i] = (double)(is_falling ? classes - 1 - class : class);
  }
}

static void small_label_blocks_are_detected(void **state) {
  (void)state;
  static double labels[LABELS];
  static const struct {
    size_t records, classes, blocks;
  } of[] = {{10, 2, 1}, {16, 2, 1}, {16, 2, 2},  {12, 3, 1},  {24, 3, 2},   {32, 2, 4},
            {20, 5, 1}, {40, 5, 2}, {100, 5, 4}, {80, 10, 2}, {600, 2, 30}, {600, 10, 12}};
  for (size_t i = 0; i < CLV_COUNT(of); i++)
    for (const char *pattern = "rfm"; *pattern; pattern++) {
      write_label_blocks(labels, of[i].records, of[i].classes, of[i].blocks, *pattern);
      if (find_order(labels, of[i].records).lag != 1)
        fail_msg("%zu records of %zu classes in %zu blocks each, %c", of[i].records, of[i].classes,
                 of[i].blocks, *pattern);
    }
  /* labels with one rare class, whose records are all in one block */
  for (size_t i = 0; i < 64; i++) labels[i] = i >= 20 && i < 26;
  assert_int_equal(find_order(labels, 64).lag, 1);
  for (size_t i = 0; i < 80; i++) labels[i] = i % 5 ? (double)(i / 20) : (double)(i * 7 % 4);
  /* of these labels, four fifths are in blocks of equal labels */
  assert_int_equal(find_order(labels, 80).lag, 1);
}

static void label_blocks_and_periods_are_detected(void **state) {
  (void)state;
  static double labels[LABELS];
  for (size_t i = 0; i < LABELS; i++) labels[i] = (double)(i / 3 * 7 % 11 % CLASSES);
  assert_true(find_order(labels, LABELS).lag != 0);
  for (size_t i = 0; i < LABELS; i++) labels[i] = (double)(i % CLASSES);
  assert_int_equal(find_order(labels, LABELS).lag, CLASSES);
  /* labels of 70 classes in turn */
  for (size_t i = 0; i < LABELS; i++) labels[i] = (double)(i % 70);
  assert_int_equal(find_order(labels, LABELS).lag, 70);
}

static void labels_of_one_class_have_no_order(void **state) {
  (void)state;
  static const double labels[LABELS] = {0};
  assert_int_equal(find_order(labels, LABELS).lag, 0);
  assert_int_equal(find_order(labels, 1).lag, 0);
  assert_int_equal(find_order(labels, 0).lag, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(digest_does_not_depend_on_piece_size),
      cmocka_unit_test(bf16_copy_has_the_same_digest),
      cmocka_unit_test(scaled_converted_or_permuted_copies_are_recognized),
      cmocka_unit_test(large_tensors_are_found_in_any_order),
      cmocka_unit_test(incomplete_tensor_has_no_form),
      cmocka_unit_test(independent_random_weights_are_not_confused),
      cmocka_unit_test(biases_and_integer_tensors_are_not_sampled),
      cmocka_unit_test(shuffled_labels_have_no_order),
      cmocka_unit_test(sorted_labels_are_detected),
      cmocka_unit_test(small_label_blocks_are_detected),
      cmocka_unit_test(label_blocks_and_periods_are_detected),
      cmocka_unit_test(labels_of_one_class_have_no_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
