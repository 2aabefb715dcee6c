/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which rows of a weight are not secret: rows of a tensor that a worker has received, even if
 * they were multiplied by factors or stand beside other rows, and rows of public transforms, such
 * as a DCT. Random, trained, pruned and short rows must be taken for neither.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/egress/egress_int.h"

enum { N = 16, M = 32, BIG_SIDE = 300 };

static void draw_values(uint64_t seed, float *v, size_t n) {
  const clv_rng_key key = {.seed = seed};
  clv_rng_normal(&key, 0, 0.25F, v, n);
}

/* ---- recognising rows of weights that a worker had before ------------------------------------ */

static clv_weights_sample sample_tensor(const void *v, clv_dtype dtype, size_t rows, size_t columns,
                                        size_t max_common, size_t piece_bytes) {
  clv_weights_sample s;
  const clv_shape shape = CLV_SHAPE((int64_t)rows, (int64_t)columns);
  size_t bytes = rows * columns * clv_dtype_size(dtype);
  assert_true(clv_weights_sample_begin(&s, dtype, &shape));
  s.max_row_digests = max_common;
  for (size_t at = 0; at < bytes; at += piece_bytes)
    clv_weights_sample_add(&s, at, (const char *)v + at, CLV_MIN(piece_bytes, bytes - at));
  return s;
}

static clv_row_hashes get_row_names(const clv_weights_sample *s, bool by_columns) {
  clv_row_hashes names;
  assert_int_equal(clv_weights_sample_row_hashes(s, by_columns, &names, NULL), CLV_OK);
  return names;
}

static size_t count_common(clv_row_hashes a, clv_row_hashes b) {
  size_t n = 0;
  for (size_t i = 0; i < a.n; i++)
    for (size_t k = 0; k < b.n; k++) n += memcmp(&a.hashes[i], &b.hashes[k], sizeof *a.hashes) == 0;
  return n;
}

static size_t count_points(clv_row_hashes a, clv_row_hashes b) {
  size_t points = 0;
  for (size_t i = 0; i < a.n; i++)
    if (count_common((clv_row_hashes){&a.hashes[i], 1}, b))
      points += clv_row_hash_points(&a.hashes[i]);
  return points;
}

/* Returns how many rows (or columns) of tested_tensor [m, n] match a digest of a row or column of
 * known_tensor [rows, columns]. */
static size_t count_known_rows(const float *known_tensor, size_t rows, size_t columns,
                               const void *tested_tensor, clv_dtype dtype, size_t m, size_t n,
                               bool by_columns) {
  clv_weights_sample a =
      sample_tensor(known_tensor, CLV_F32, rows, columns, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 4000);
  clv_weights_sample b =
      sample_tensor(tested_tensor, dtype, m, n, CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR, 1 << 20);
  clv_row_hashes names = get_row_names(&b, by_columns);
  size_t ret =
      count_common(names, get_row_names(&a, false)) + count_common(names, get_row_names(&a, true));
  clv_weights_sample_done(&a);
  clv_weights_sample_done(&b);
  return ret;
}

static void factors_and_signs_of_rows_do_not_hide_them(void **state) {
  (void)state;
  static float v[M * N], w[M * N];
  float factor[M];
  draw_values(1, v, M * N);
  draw_values(2, factor, M);
  for (size_t i = 0; i < M * N; i++) w[i] = v[i] * factor[i / N];
  assert_true(count_known_rows(v, M, N, w, CLV_F32, M, N, false) >= M - 1);
  /* multiplies each column by a factor */
  for (size_t i = 0; i < M * N; i++) w[i] = v[i] * factor[i % N];
  assert_true(count_known_rows(v, M, N, w, CLV_F32, M, N, true) >= N - 1);
  assert_int_equal(count_known_rows(v, M, N, w, CLV_F32, M, N, false), 0);
  /* transposes the rows and multiplies them by factors */
  for (size_t i = 0; i < M * N; i++) w[i] = v[i % M * N + i / M] * factor[i / M];
  assert_true(count_known_rows(v, M, N, w, CLV_F32, N, M, false) >= N - 1);
}

static void rounded_rows_keep_their_digests(void **state) {
  (void)state;
  static float v[BIG_SIDE * BIG_SIDE], w[BIG_SIDE * BIG_SIDE];
  static uint16_t bf16_values[BIG_SIDE * BIG_SIDE];
  draw_values(3, v, BIG_SIDE * BIG_SIDE);
  for (size_t i = 0; i < BIG_SIDE * BIG_SIDE; i++) bf16_values[i] = clv_bf16_of(1.7F * v[i]);
  size_t n =
      count_known_rows(v, BIG_SIDE, BIG_SIDE, bf16_values, CLV_BF16, BIG_SIDE, BIG_SIDE, false);
  if (n < CLV_MAX_LEDGER_ROWS_PER_TENSOR * 8 / 10)
    fail_msg("%zu rows of %d", n, CLV_MAX_LEDGER_ROWS_PER_TENSOR);
  /* rounds the values to 8 bits */
  for (size_t i = 0; i < BIG_SIDE * BIG_SIDE; i++) w[i] = roundf(127 * v[i]) / 127;
  n = count_known_rows(v, BIG_SIDE, BIG_SIDE, w, CLV_F32, BIG_SIDE, BIG_SIDE, false);
  if (n < CLV_MAX_LEDGER_ROWS_PER_TENSOR / 10)
    fail_msg("%zu rows of 8 bits of %d", n, CLV_MAX_LEDGER_ROWS_PER_TENSOR);
}

static void rows_are_found_beside_others_and_in_parts(void **state) {
  (void)state;
  static float v[BIG_SIDE * N], w[(BIG_SIDE + M) * N];
  draw_values(4, v, BIG_SIDE * N);
  draw_values(5, w, (BIG_SIDE + M) * N);
  /* copies M of the BIG_SIDE rows; the ledger keeps digests of CLV_MAX_LEDGER_ROWS_PER_TENSOR of
   * the BIG_SIDE rows, so it knows a part of the copied ones */
  memcpy(w + 7 * N, v, M * N * sizeof *v);
  size_t n = count_known_rows(v, BIG_SIDE, N, w, CLV_F32, BIG_SIDE + M, N, false);
  assert_true(n >= 4 && n <= M);
  assert_true(count_known_rows(v, BIG_SIDE, N, v + 60 * N, CLV_F32, 20, N, false) >= 2);
  for (size_t i = 0; i < M; i++) /* adds new columns beside those of the worker */
    for (size_t k = 0; k < N + 4; k++) w[i * (N + 4) + k] = k < N ? v[i * N + k] : 0.1F * (float)k;
  assert_true(count_known_rows(v, M, N, w, CLV_F32, M, N + 4, true) >= N - 1);
  for (size_t i = 0; i < M; i++) /* adds columns of zeros beside those of the worker */
    for (size_t k = N; k < N + 4; k++) w[i * (N + 4) + k] = 0;
  assert_true(count_known_rows(v, M, N, w, CLV_F32, M, N + 4, false) >= M - 1);
}

static void independent_rows_are_not_confused(void **state) {
  (void)state;
  static const size_t lengths[] = {4, 8, 9, 16, 27, 64, 600};
  static float v[BIG_SIDE * 600], w[BIG_SIDE * 600];
  size_t n_pairs = 0, max_common = 0;
  for (size_t i = 0; i < CLV_COUNT(lengths); i++)
    for (uint64_t seed = 1; seed <= 8; seed++) {
      size_t n = lengths[i];
      draw_values(100 * seed, v, BIG_SIDE * n);
      draw_values(100 * seed + 1, w, BIG_SIDE * n);
      /* prunes the matrix: one value in 16 stays */
      for (size_t j = 0; j < BIG_SIDE * n && seed % 4 == 0; j++) {
        v[j] = fabsf(v[j]) > 0.46F ? v[j] : 0;
        w[j] = fabsf(w[j]) > 0.46F ? w[j] : 0;
      }
      clv_weights_sample a =
          sample_tensor(v, CLV_F32, BIG_SIDE, n, CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR, 1 << 20);
      clv_weights_sample b =
          sample_tensor(w, CLV_F32, BIG_SIDE, n, CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR, 1 << 20);
      for (int columns = 0; columns < 2; columns++) {
        clv_row_hashes x = get_row_names(&a, columns), y = get_row_names(&b, columns);
        size_t points = count_points(x, y);
        max_common = CLV_MAX(max_common, points);
        if (points >= CLV_ROW_MIN_POINTS)
          fail_msg("rows of %zu, seed %d: %zu", n, (int)seed, points);
        n_pairs += x.n * y.n;
      }
      clv_weights_sample_done(&a);
      clv_weights_sample_done(&b);
    }
  assert_true(n_pairs > 4000000);
  assert_in_range(max_common, 0, CLV_ROW_MIN_POINTS / 2);
}

static void rows_without_values_have_no_digests(void **state) {
  (void)state;
  static float v[M * N];
  for (size_t i = 0; i < M; i++) v[i * N + i % N] = 1; /* each row has one value that is not 0 */
  v[0] = 0, v[5] = NAN, v[6] = INFINITY;
  clv_weights_sample s = sample_tensor(v, CLV_F32, M, N, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 4000);
  assert_int_equal(get_row_names(&s, false).n, 0);
  clv_weights_sample_done(&s);
  draw_values(6, v, M * N);
  /* rows of three values are too short for a digest */
  s = sample_tensor(v, CLV_F32, M * N / 3, 3, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 4000);
  assert_int_equal(get_row_names(&s, false).n, 0);
  clv_weights_sample_done(&s);
  /* rows of four values get a digest, but count as weak evidence (one point) */
  s = sample_tensor(v, CLV_F32, M * N / 4, 4, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 4000);
  assert_int_equal(clv_row_hash_points(&get_row_names(&s, false).hashes[0]), 1);
  clv_weights_sample_done(&s);
  s = sample_tensor(v, CLV_F32, 1, M * N, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 4000);
  assert_int_equal(get_row_names(&s, false).n, 1);
  assert_int_equal(clv_row_hash_points(&get_row_names(&s, false).hashes[0]), CLV_ROW_MIN_POINTS);
  assert_int_equal(get_row_names(&s, true).n, 0);
  clv_weights_sample_done(&s);
}

static void digests_do_not_depend_on_pieces(void **state) {
  (void)state;
  static float v[BIG_SIDE * BIG_SIDE];
  draw_values(7, v, BIG_SIDE * BIG_SIDE);
  clv_weights_sample a =
      sample_tensor(v, CLV_F32, BIG_SIDE, BIG_SIDE, CLV_MAX_LEDGER_ROWS_PER_TENSOR, sizeof v);
  for (size_t piece_bytes = 4; piece_bytes < sizeof v; piece_bytes = 5 * piece_bytes + 4) {
    clv_weights_sample b =
        sample_tensor(v, CLV_F32, BIG_SIDE, BIG_SIDE, CLV_MAX_LEDGER_ROWS_PER_TENSOR, piece_bytes);
    for (int columns = 0; columns < 2; columns++) {
      clv_row_hashes x = get_row_names(&a, columns), y = get_row_names(&b, columns);
      assert_true(x.n == CLV_MAX_LEDGER_ROWS_PER_TENSOR && y.n == x.n && count_common(x, y) == x.n);
    }
    clv_weights_sample_done(&b);
  }
  clv_weights_sample_done(&a);
  clv_weights_sample c =
      /* passes the tensor to the sample in pieces that end inside values */
      sample_tensor(v, CLV_F32, BIG_SIDE, BIG_SIDE, CLV_MAX_LEDGER_ROWS_PER_TENSOR, 6);
  assert_int_equal(get_row_names(&c, false).n, 0);
  clv_weights_sample_done(&c);
}

/* ---- recognising transforms that everyone knows (public), such as a DCT ---------------------- */

static bool is_public_transform(const float *v, size_t rows, size_t columns) {
  CLV_AUTO(clv_public_row_test_freep) clv_public_row_test *t = NULL;
  assert_int_equal(clv_public_row_test_new(rows, columns, &t, NULL), CLV_OK);
  for (size_t at = 0; at < rows * columns; at += 1000)
    clv_public_row_test_add(t, v + at, CLV_MIN((size_t)1000, rows * columns - at));
  return clv_public_row_test_is_public(t);
}

static double get_walsh(size_t n, size_t i, size_t j) {
  (void)n;
  return __builtin_popcountll(i & j) % 2 ? -1 : 1;
}

static double get_haar(size_t n, size_t i, size_t j) {
  size_t level = 1, at, length;
  while (2 * level <= i) level *= 2;
  if (!i) return 1;
  length = n / level;
  at = (i - level) * length;
  if (j < at || j >= at + length) return 0;
  return j < at + length / 2 ? 1 : -1;
}

static double compute_cosine(double n, double i, double j) { return cos(M_PI * i * j / n); }
static double get_dct1(size_t n, size_t i, size_t j) {
  double end = j == 0 || j == n - 1 ? sqrt(0.5) : 1;
  return end * compute_cosine((double)n - 1, (double)i, (double)j);
}
static double get_dct2(size_t n, size_t i, size_t j) {
  return compute_cosine((double)n, (double)i, (double)j + 0.5);
}
static double get_dct3(size_t n, size_t i, size_t j) {
  return (j ? 1 : sqrt(0.5)) * compute_cosine((double)n, (double)i + 0.5, (double)j);
}
static double get_dct4(size_t n, size_t i, size_t j) {
  return compute_cosine((double)n, (double)i + 0.5, (double)j + 0.5);
}
static double get_dst1(size_t n, size_t i, size_t j) {
  return sin(M_PI * (double)((i + 1) * (j + 1)) / (double)(n + 1));
}
static double get_fourier(size_t n, size_t i, size_t j) {
  double angle = 2 * M_PI * (double)(i / 2 * j) / (double)n;
  return i % 2 ? sin(angle) : cos(angle);
}
static double get_hartley(size_t n, size_t i, size_t j) {
  double angle = 2 * M_PI * (double)(i * j) / (double)n;
  return cos(angle) + sin(angle);
}
static double get_running_sum_row(size_t n, size_t i, size_t j) {
  (void)n;
  return j <= i ? 1 : 0;
}
static double get_running_mean_row(size_t n, size_t i, size_t j) {
  (void)n;
  return j <= i && j + 3 > i ? 0.25 : 0;
}
static double get_difference_row(size_t n, size_t i, size_t j) {
  (void)n;
  return j == i ? 1 : j + 1 == i ? -1 : 0;
}
static double get_decay_row(size_t n, size_t i, size_t j) {
  (void)n;
  return j <= i ? pow(0.6, (double)(i - j)) : 0;
}
static double get_plane_wave(size_t n, size_t i, size_t j) { /* a wave over two dimensions */
  size_t side = (size_t)lround(sqrt((double)n));
  return get_dct2(side, i / side, j / side) * get_dct2(side, i % side, j % side);
}
static double get_block_mean(size_t n, size_t i, size_t j) { /* means of 2 x 2 or 4 x 4 pixels */
  size_t side = (size_t)lround(sqrt((double)n)), block = side / 2, k = i % 4;
  bool is_in_block = j / side / block == k / 2 && j % side / block == k % 2;
  return is_in_block ? 1 : 0;
}

typedef double transform_fn(size_t n, size_t i, size_t j);

static const struct {
  transform_fn *get_value;
  const char *name;
} transforms[] = {{get_walsh, "Walsh"},
                  {get_haar, "Haar"},
                  {get_dct1, "DCT-I"},
                  {get_dct2, "DCT-II"},
                  {get_dct3, "DCT-III"},
                  {get_dct4, "DCT-IV"},
                  {get_dst1, "DST-I"},
                  {get_fourier, "Fourier"},
                  {get_hartley, "Hartley"},
                  {get_running_sum_row, "running sum"},
                  {get_running_mean_row, "running mean"},
                  {get_difference_row, "difference"},
                  {get_decay_row, "decay"},
                  {get_plane_wave, "DCT of two dimensions"},
                  {get_block_mean, "block mean"}};

static void known_transforms_are_public(void **state) {
  (void)state;
  static float v[64 * 64], w[64 * 64], factor[64];
  uint32_t order[64];
  draw_values(8, factor, 64);
  for (size_t t = 0; t < CLV_COUNT(transforms); t++)
    for (size_t n = 16; n <= 64; n *= 4) {
      for (size_t i = 0; i < n * n; i++) v[i] = (float)transforms[t].get_value(n, i / n, i % n);
      clv_rng_permutation(&(clv_rng_key){.seed = n}, order, n);
      for (size_t i = 0; i < n * n; i++)
        w[i] = clv_bf16_value(clv_bf16_of(factor[i / n] * v[order[i / n] * n + i % n]));
      if (!is_public_transform(v, n, n)) fail_msg("%s of %zu", transforms[t].name, n);
      if (!is_public_transform(w, n, n)) fail_msg("%s of %zu, changed", transforms[t].name, n);
      draw_values(9, w, n * n); /* replaces a quarter of the random rows by rows of the transform */
      memcpy(w + n, v + n * n / 2, n * n / 4 * sizeof *v);
      bool has_short_rows = transforms[t].get_value == get_difference_row ||
                            transforms[t].get_value == get_running_mean_row ||
                            transforms[t].get_value == get_haar ||
                            transforms[t].get_value == get_block_mean;
      if (!has_short_rows && !is_public_transform(w, n, n))
        fail_msg("part of %s of %zu", transforms[t].name, n);
    }
}

static void factors_of_columns_do_not_hide_a_transform(void **state) {
  (void)state;
  static float v[N * N], factor[N];
  draw_values(10, factor, N);
  for (size_t t = 0; t < 2; t++) {
    for (size_t i = 0; i < N * N; i++)
      v[i] = factor[i % N] * (float)(t ? get_dct2 : get_walsh)(N, i / N, i % N);
    assert_true(is_public_transform(v, N, N));
  }
}

static void permuted_hadamard_rows_are_public(void **state) {
  (void)state;
  static float v[64 * 64];
  uint32_t rows[64], columns[64];
  clv_rng_permutation(&(clv_rng_key){.seed = 1}, rows, 64);
  clv_rng_permutation(&(clv_rng_key){.seed = 2}, columns, 64);
  for (size_t i = 0; i < 64 * 64; i++)
    v[i] = (float)(1 + i / 64) * (float)get_walsh(64, rows[i / 64], columns[i % 64]);
  assert_true(is_public_transform(v, 64, 64));
  /* changes a sign in the second row, so that it is not orthogonal to the first */
  v[100] = -v[100];
  assert_false(is_public_transform(v, 64, 64));
  draw_values(11, v, 64 * 64);
  for (size_t i = 0; i < 64 * 64; i++) v[i] = copysignf(1, v[i]);
  assert_false(is_public_transform(v, 64, 64));
}

static void drawn_and_trained_rows_are_not_public(void **state) {
  (void)state;
  static const size_t lengths[] = {1, 2, 3, 4, 5, 8, 9, 12, 16, 25, 27, 64, 300};
  static float v[BIG_SIDE * 300];
  for (size_t i = 0; i < CLV_COUNT(lengths); i++)
    for (uint64_t seed = 1; seed <= 16; seed++) {
      size_t n = lengths[i];
      draw_values(1000 + seed, v, BIG_SIDE * n);
      for (size_t j = 0; j < BIG_SIDE * n && n > 4; j++) {
        /* prunes the matrix: half of the values stay, or one in 16 */
        float threshold = n < 64 ? 0.15F : 0.46F;
        if (seed % 4 == 1 && fabsf(v[j]) < threshold) v[j] = 0;
        if (seed % 4 == 2 && j / n % 3) v[j] = 0; /* fills two of three rows with zeros */
        if (seed % 4 == 3 && n > 9 && j % n > 2)  /* makes the rows smooth */
          v[j] = (v[j] + v[j - 1] + v[j - 2] + v[j - 3]) / 4;
      }
      size_t rows = seed % 5 ? BIG_SIDE : 10;
      if (is_public_transform(v, rows, n)) fail_msg("%zu rows of %zu, seed %d", rows, n, (int)seed);
    }
}

/* Rows of a public transform such as a DCT are single waves, which satisfy the recurrence of a
 * cosine. Sums of four slow waves nearly satisfy it, but are not public. */
static void smooth_rows_are_not_public(void **state) {
  (void)state;
  static float v[M * BIG_SIDE];
  float factor[8 * M];
  draw_values(12, factor, 8 * M);
  for (size_t i = 0; i < (size_t)M * BIG_SIDE; i++) {
    const float *of = factor + 8 * (i / BIG_SIDE);
    for (int k = 0; k < 4; k++) {
      double angle = 2 * M_PI * (k + 1) * (double)(i % BIG_SIDE) / BIG_SIDE;
      v[i] += of[2 * k] * (float)cos(angle) + of[2 * k + 1] * (float)sin(angle);
    }
  }
  assert_false(is_public_transform(v, M, BIG_SIDE));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(factors_and_signs_of_rows_do_not_hide_them),
      cmocka_unit_test(rounded_rows_keep_their_digests),
      cmocka_unit_test(rows_are_found_beside_others_and_in_parts),
      cmocka_unit_test(independent_rows_are_not_confused),
      cmocka_unit_test(rows_without_values_have_no_digests),
      cmocka_unit_test(digests_do_not_depend_on_pieces),
      cmocka_unit_test(known_transforms_are_public),
      cmocka_unit_test(factors_of_columns_do_not_hide_a_transform),
      cmocka_unit_test(permuted_hadamard_rows_are_public),
      cmocka_unit_test(drawn_and_trained_rows_are_not_public),
      cmocka_unit_test(smooth_rows_are_not_public),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
