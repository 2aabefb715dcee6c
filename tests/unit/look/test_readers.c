/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the readers of the privacy check `look`: attacks that try to reconstruct records and
 * labels from sent tensors. They run on numbers that are known to reveal something, and on noise,
 * which reveals nothing.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/look/look.h"

enum {
  RECORDS = 64,
  IMAGE_SIDE = 8,
  TOKENS = 12,
  N_TABLE_ROWS = 50,
  WIDTH = 16,
  SAMPLES = 512,
  COLUMNS = 40
};
static const clv_look_split half_split = {RECORDS, RECORDS / 2};

static void fill_with_random(uint32_t stream, float *to, size_t n) {
  const clv_rng_key key = {.seed = 7, .layer = stream};
  clv_rng_normal(&key, 0, 1, to, n);
}

static size_t draw_integer(uint32_t stream, size_t i, size_t limit) {
  const clv_rng_key key = {.seed = 8, .layer = stream};
  uint32_t word[4];
  clv_rng_block(&key, (uint32_t)i, word);
  return word[0] % limit;
}

/* ---- reading pixels of images from sent values ----------------------------------------------- */

static float images[RECORDS][IMAGE_SIDE * IMAGE_SIDE];

static double read_pixels(const float *values, clv_shape shape) {
  size_t n;
  clv_err err;
  clv_look_view records, views[CLV_LOOK_MAX_VIEWS];
  clv_look_reading reading;
  assert_int_equal(clv_shape_numel(&shape, &n, &err), CLV_OK);
  const clv_look_tensor image = {images[0], IMAGE_SIDE * IMAGE_SIDE, 0,
                                 CLV_SHAPE(1, IMAGE_SIDE, IMAGE_SIDE)};
  const clv_look_tensor t = {values, n, 0, shape};
  assert_true(clv_look_make_record_view(&image, &records));
  size_t n_views = clv_look_make_grid_views(&t, &records, views);
  assert_int_equal(clv_look_read_pixels(views, n_views, &records, half_split, &reading, &err),
                   CLV_OK);
  return *reading.by ? reading.figure : -1;
}

static void pixel_reader_detects_images_in_any_layout(void **state) {
  (void)state;
  enum { N_GRID_POSITIONS = 16, CHANNELS = 3 };
  static float grid_images[RECORDS][N_GRID_POSITIONS],
      images_channels_last[RECORDS][N_GRID_POSITIONS][CHANNELS],
      images_after_class_token[RECORDS][N_GRID_POSITIONS + 1][2];
  fill_with_random(1, images[0], sizeof images / sizeof(float));
  fill_with_random(2, images_channels_last[0][0], sizeof images_channels_last / sizeof(float));
  fill_with_random(3, images_after_class_token[0][0],
                   sizeof images_after_class_token / sizeof(float));
  for (size_t r = 0; r < RECORDS; r++)
    for (size_t p = 0; p < N_GRID_POSITIONS; p++) {
      size_t y = p / 4 * 2, x = p % 4 * 2;
      const float *at = images[r] + y * IMAGE_SIDE + x;
      grid_images[r][p] = -(at[0] + at[1] + at[IMAGE_SIDE] + at[IMAGE_SIDE + 1]) + (float)p;
      images_channels_last[r][p][2] = images_after_class_token[r][p + 1][1] = grid_images[r][p];
    }
  assert_true(read_pixels(grid_images[0], CLV_SHAPE(1, 4, 4)) > .999);
  assert_true(read_pixels(images_channels_last[0][0], CLV_SHAPE(4, 4, CHANNELS)) > .999);
  assert_true(read_pixels(images_channels_last[0][0], CLV_SHAPE(N_GRID_POSITIONS, CHANNELS)) >
              .999);
  /* as in a vision transformer, the first position is that of a class token, and the positions of
   * the image follow */
  assert_true(read_pixels(images_after_class_token[0][0], CLV_SHAPE(N_GRID_POSITIONS + 1, 2)) >
              .999);
  fill_with_random(4, grid_images[0], sizeof grid_images / sizeof(float));
  double share_of_noise = read_pixels(grid_images[0], CLV_SHAPE(1, 4, 4));
  assert_true(share_of_noise >= 0 && share_of_noise < .2);
  /* 16 positions that are not arranged in a grid */
  assert_true(read_pixels(grid_images[0], CLV_SHAPE(4, 2, 2)) < 0);
}

/* ---- reading tokens from sent values --------------------------------------------------------- */

static int64_t tokens[RECORDS][TOKENS];
static float table[N_TABLE_ROWS][WIDTH];

static void draw_tokens(void) {
  fill_with_random(5, table[0], sizeof table / sizeof(float));
  for (size_t i = 0; i < (size_t)RECORDS * TOKENS; i++)
    tokens[i / TOKENS][i % TOKENS] = (int64_t)draw_integer(1, i, N_TABLE_ROWS);
}

static double read_tokens(const float *values, clv_shape shape) {
  size_t n;
  clv_err err;
  clv_look_view views[CLV_LOOK_MAX_VIEWS];
  clv_look_reading reading;
  assert_int_equal(clv_shape_numel(&shape, &n, &err), CLV_OK);
  const clv_look_tensor t = {values, n, 0, shape};
  const clv_look_tokens of = {tokens[0], TOKENS};
  size_t n_views = clv_look_make_sequence_views(&t, TOKENS, views);
  assert_int_equal(clv_look_read_tokens(views, n_views, &of, half_split, &reading, &err), CLV_OK);
  return reading.figure;
}

static void token_reader_detects_tokens_in_any_layout(void **state) {
  (void)state;
  static float vectors[RECORDS][TOKENS][WIDTH], transposed[RECORDS][WIDTH][TOKENS];
  draw_tokens();
  fill_with_random(6, vectors[0][0], sizeof vectors / sizeof(float));
  assert_true(read_tokens(vectors[0][0], CLV_SHAPE(TOKENS, WIDTH)) < .1);
  for (size_t i = 0; i < (size_t)RECORDS * TOKENS; i++)
    for (size_t k = 0; k < WIDTH; k++) {
      size_t r = i / TOKENS, s = i % TOKENS;
      vectors[r][s][k] = table[tokens[r][s]][k] + vectors[r][s][k] * .2f + (float)s;
      transposed[r][k][s] = vectors[r][s][k];
    }
  assert_true(read_tokens(vectors[0][0], CLV_SHAPE(TOKENS, WIDTH)) > .95);
  assert_true(read_tokens(transposed[0][0], CLV_SHAPE(WIDTH, TOKENS)) > .95);
  assert_true(read_tokens(vectors[0][0], CLV_SHAPE(TOKENS * WIDTH)) > .95);
}

static void token_reader_detects_one_token_of_each_record(void **state) {
  (void)state;
  static float vectors[RECORDS][WIDTH];
  draw_tokens();
  fill_with_random(7, vectors[0], sizeof vectors / sizeof(float));
  for (size_t i = 0; i < (size_t)RECORDS * TOKENS; i++) tokens[i / TOKENS][i % TOKENS] %= 5;
  assert_true(read_tokens(vectors[0], CLV_SHAPE(WIDTH)) < .2);
  for (size_t r = 0; r < RECORDS; r++)
    for (size_t k = 0; k < WIDTH; k++)
      vectors[r][k] = vectors[r][k] * .2f + table[tokens[r][TOKENS - 1]][k];
  assert_true(read_tokens(vectors[0], CLV_SHAPE(WIDTH)) > .5);
}

/* ---- reading features from sent values ------------------------------------------------------- */

static double read_features(const float *records, size_t n_features, const float *values,
                            size_t n_values) {
  clv_err err;
  clv_look_reading reading;
  const clv_look_features f = {records, n_features, n_features, values, n_values, n_values};
  assert_int_equal(clv_look_read_features(&f, half_split, &reading, &err), CLV_OK);
  return reading.figure;
}

/* Computes weighted sums of `n` features of each record. first_scale: factor of the first feature,
 * in relation to the others. */
static void sum_features(const float *records, size_t n, float first_scale,
                         float sums[RECORDS][WIDTH]) {
  static float weight[WIDTH * WIDTH];
  fill_with_random(12, weight, WIDTH * n);
  for (size_t i = 0; i < (size_t)RECORDS * WIDTH; i++) {
    float sum = 0;
    for (size_t k = 0; k < n; k++)
      sum += records[i / WIDTH * n + k] * weight[i % WIDTH * n + k] * (k == 1 ? first_scale : 1);
    sums[i / WIDTH][i % WIDTH] = sum;
  }
}

static void feature_reader_detects_dominating_features(void **state) {
  (void)state;
  static float records[RECORDS * WIDTH], sums[RECORDS][WIDTH], noise[RECORDS * WIDTH];
  static const size_t widths[] = {2, 3, 5, 8, WIDTH};
  fill_with_random(10, records, RECORDS * WIDTH);
  for (size_t k = 0; k < CLV_COUNT(widths); k++) {
    sum_features(records, widths[k], 1, sums);
    assert_true(read_features(records, widths[k], sums[0], WIDTH) < .8);
    sum_features(records, widths[k], 1e4f, sums);
    assert_true(read_features(records, widths[k], sums[0], WIDTH) > .99);
  }
  fill_with_random(11, noise, RECORDS * WIDTH);
  assert_true(read_features(records, WIDTH, noise, WIDTH) < .5);
  for (size_t i = 0; i < RECORDS; i++) noise[i * WIDTH + 7] = -3 * records[i * WIDTH + 2];
  /* the feature can be read, because one of many values is a copy of it */
  assert_true(read_features(records, WIDTH, noise, WIDTH) > .99);
  for (size_t i = 0; i < (size_t)RECORDS * WIDTH; i++) records[i] = records[i / WIDTH * WIDTH];
  sum_features(records, WIDTH, 1, sums);
  /* each value is a copy of one sum */
  assert_true(read_features(records, WIDTH, sums[0], WIDTH) > .99);
}

/* ---- reading labels from gradients ----------------------------------------------------------- */

static float gradients[SAMPLES][WIDTH];
static int64_t labels[SAMPLES];

static clv_look_reading read_columns(const int64_t *label, size_t n_columns, size_t n_lengths) {
  clv_err err;
  clv_look_reading reading;
  size_t lengths[COLUMNS];
  for (size_t k = 0; k < n_columns; k++) lengths[k] = n_lengths;
  const clv_look_gradients g = {.values = gradients[0],
                                .labels = label,
                                .n = SAMPLES,
                                .n_fit = SAMPLES / 2,
                                .width = WIDTH,
                                .n_columns = n_columns,
                                .n_length_groups = lengths};
  assert_int_equal(clv_look_read_labels(&g, &reading, &err), CLV_OK);
  return reading;
}

static clv_look_reading read_labels(size_t n_lengths) { return read_columns(labels, 1, n_lengths); }

static void draw_gradients(size_t classes) {
  fill_with_random(9, gradients[0], sizeof gradients / sizeof(float));
  for (size_t i = 0; i < SAMPLES; i++) labels[i] = (int64_t)draw_integer(2, i, classes);
}

static void scale_gradient(size_t sample, float factor) {
  for (size_t k = 0; k < WIDTH; k++) gradients[sample][k] *= factor;
}

static void label_reader_detects_labels_and_names_the_method(void **state) {
  (void)state;
  draw_gradients(2);
  assert_true(read_labels(2).figure < .2); /* gradients that are only noise reveal nothing */
  for (size_t i = 0; i < SAMPLES; i++) gradients[i][3] = labels[i] ? 1e-6f : -1e-6f;
  clv_look_reading reading = read_labels(2);
  assert_true(reading.figure > .99);
  assert_string_equal(reading.by, "sign");

  draw_gradients(2);
  for (size_t i = 0; i < SAMPLES; i++)
    for (size_t k = 0; k < WIDTH; k++) gradients[i][k] += (labels[i] ? 1.5f : -1.5f);
  reading = read_labels(2);
  assert_true(reading.figure > .99);
  assert_string_equal(reading.by, "two clusters");

  draw_gradients(2);
  for (size_t i = 0; i < SAMPLES; i++) scale_gradient(i, labels[i] ? 50 : 1);
  reading = read_labels(2);
  assert_true(reading.figure > .99);
  assert_string_equal(reading.by, "length");

  draw_gradients(2);
  for (size_t i = 0; i < SAMPLES; i++) scale_gradient(i, labels[i] ? 1 : 0);
  reading = read_labels(2);
  assert_true(reading.figure > .99);
  assert_string_equal(reading.by, "zeros");
}

static void label_reader_detects_class_gradient_norms(void **state) {
  (void)state;
  draw_gradients(4);
  for (size_t i = 0; i < SAMPLES; i++) scale_gradient(i, powf(20, (float)labels[i]));
  assert_true(read_labels(4).figure > .95);
  assert_true(read_labels(2).figure < .7);
}

static void label_reader_reads_the_last_of_many_columns(void **state) {
  (void)state;
  static int64_t columns[COLUMNS][SAMPLES];
  draw_gradients(2);
  for (size_t i = 0; i < SAMPLES; i++) columns[COLUMNS - 1][i] = labels[i];
  assert_true(read_columns(columns[0], COLUMNS, 2).figure < .2);
  for (size_t i = 0; i < SAMPLES; i++) gradients[i][3] = labels[i] ? 1e-6f : -1e-6f;
  clv_look_reading reading = read_columns(columns[0], COLUMNS, 2);
  assert_true(reading.figure > .99);
  assert_string_equal(reading.by, "sign");
}

static void group_reader_finds_classes_without_their_names(void **state) {
  (void)state;
  static float directions[10][WIDTH];
  static const size_t lengths[] = {2};
  const clv_look_gradients g = {gradients[0], labels, SAMPLES, SAMPLES / 2,
                                WIDTH,        1,      lengths, false};
  clv_look_reading reading;
  clv_err err;
  draw_gradients(10);
  assert_int_equal(clv_look_read_label_groups(&g, &reading, &err), CLV_OK);
  assert_true(reading.figure < .2);
  fill_with_random(13, directions[0], sizeof directions / sizeof(float));
  for (size_t i = 0; i < SAMPLES; i++) {
    for (size_t k = 0; k < WIDTH; k++)
      gradients[i][k] = gradients[i][k] * .2f + directions[labels[i]][k];
    /* the length of a gradient must reveal nothing, so it does not depend on the label */
    scale_gradient(i, powf(20, (float)(i % 3)));
  }
  assert_int_equal(clv_look_read_label_groups(&g, &reading, &err), CLV_OK);
  assert_true(reading.figure > .95);
  assert_true(read_labels(2).figure < .3);
}

/* A reader that finds only two groups of gradients cannot tell ten classes apart. Records without a
 * label are not counted. */
static void two_groups_do_not_reveal_ten_classes(void **state) {
  (void)state;
  draw_gradients(10);
  for (size_t i = 0; i < SAMPLES; i++) gradients[i][0] = labels[i] < 5 ? 1 : -1;
  assert_true(read_labels(2).figure < .2);
  for (size_t i = 0; i < SAMPLES; i++) labels[i] = labels[i] < 2 ? labels[i] : -1;
  for (size_t i = 0; i < SAMPLES; i++) gradients[i][0] = labels[i] == 1 ? 1 : -1;
  assert_true(read_labels(2).figure > .99);
  for (size_t i = 0; i < SAMPLES; i++) labels[i] = -1;
  assert_true(read_labels(2).figure == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pixel_reader_detects_images_in_any_layout),
      cmocka_unit_test(token_reader_detects_tokens_in_any_layout),
      cmocka_unit_test(token_reader_detects_one_token_of_each_record),
      cmocka_unit_test(label_reader_detects_labels_and_names_the_method),
      cmocka_unit_test(label_reader_detects_class_gradient_norms),
      cmocka_unit_test(two_groups_do_not_reveal_ten_classes),
      cmocka_unit_test(label_reader_reads_the_last_of_many_columns),
      cmocka_unit_test(feature_reader_detects_dominating_features),
      cmocka_unit_test(group_reader_finds_classes_without_their_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
