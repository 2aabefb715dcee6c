/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests views, the parts of images that records show: sizes and positions as torchvision computes
 * them, and random choices that depend on seed, epoch and record alone.
 */
#include <math.h>

#include "master/data/image_int.h"
#include "tests/unit/data/data_test.h"

static clv_image_transform choose_view(clv_image_options o, uint32_t width, uint32_t height,
                                       const clv_rng_key *key) {
  clv_image_transform v;
  clv_err err;
  if (!o.max_pixels) o.max_pixels = CLV_IMAGE_MAX_PIXELS;
  assert_ok(clv_image_transform_choose(&o, width, height, key, &v, &err), &err);
  return v;
}

/* The expected values are computed by hand from _compute_resized_output_size and center_crop of
 * torchvision 0.14. */
static void resize_and_center_crop_match_torchvision(void **state) {
  (void)state;
  static const struct {
    uint32_t width, height, resize, crop, resized_width, resized_height;
    int64_t x, y;
  } cases[] = {
      {500, 375, 256, 224, 341, 256, 58, 16}, /* x: 117 / 2 = 58.5, rounded to 58 */
      {375, 500, 256, 224, 256, 341, 16, 58},
      {500, 333, 256, 225, 384, 256, 80, 16}, /* x: 79.5 -> 80, y: 15.5 -> 16 */
      /* without resize and crop, the view is the whole image */
      {64, 64, 0, 0, 64, 64, 0, 0},
      /* the image is smaller than the crop, so x and y are negative */
      {10, 7, 0, 16, 10, 7, -3, -4},
      {30, 7, 0, 16, 30, 7, 7, -4},
      {1000, 3, 6, 4, 2000, 6, 998, 1},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_image_transform v =
        choose_view((clv_image_options){.resize = cases[i].resize, .crop = cases[i].crop},
                    cases[i].width, cases[i].height, NULL);
    assert_int_equal(v.width, cases[i].resized_width);
    assert_int_equal(v.height, cases[i].resized_height);
    assert_int_equal(v.x, cases[i].x);
    assert_int_equal(v.y, cases[i].y);
    assert_false(v.is_flipped);
  }
}

static void evaluation_view_is_not_augmented(void **state) {
  (void)state;
  clv_image_options o = {.resize = 40,
                         .crop = 32,
                         .train_crop = CLV_CROP_RANDOM_RESIZED,
                         .area_low = 0.08,
                         .area_high = 1,
                         .ratio_low = 0.75,
                         .ratio_high = 1.3,
                         .flip = 1};
  clv_image_transform v = choose_view(o, 80, 60, NULL);
  assert_int_equal(v.width, 53);
  assert_int_equal(v.box.width, 80);
  assert_false(v.is_flipped);
}

static void random_crop_offsets_are_uniform(void **state) {
  (void)state;
  clv_image_options o = {.crop = 32, .train_crop = CLV_CROP_RANDOM, .pad = 4, .flip = 0.5};
  int seen_x[9] = {0}, seen_y[9] = {0}, n_flipped = 0;
  for (uint32_t i = 0; i < 900; i++) {
    clv_rng_key key = clv_image_transform_rng_key(7, 3, i);
    clv_image_transform v = choose_view(o, 32, 32, &key), again = choose_view(o, 32, 32, &key);
    assert_memory_equal(&v, &again, sizeof v);
    assert_in_range(v.x + 4, 0, 8);
    assert_in_range(v.y + 4, 0, 8);
    seen_x[v.x + 4]++;
    seen_y[v.y + 4]++;
    n_flipped += v.is_flipped;
  }
  /* each offset is expected about 100 times */
  for (int i = 0; i < 9; i++) assert_true(seen_x[i] > 60 && seen_y[i] > 60);
  assert_in_range(n_flipped, 400, 500);
}

static void random_resized_crop_keeps_area_and_ratio(void **state) {
  (void)state;
  clv_image_options o = {.crop = 24,
                         .train_crop = CLV_CROP_RANDOM_RESIZED,
                         .area_low = 0.25,
                         .area_high = 0.5,
                         .ratio_low = 0.5,
                         .ratio_high = 2};
  double min_ratio = 1, max_ratio = 0;
  for (uint32_t i = 0; i < 500; i++) {
    clv_rng_key key = clv_image_transform_rng_key(1, 0, i);
    clv_image_transform v = choose_view(o, 200, 100, &key);
    double share = v.box.width * v.box.height / 20000.0;
    double ratio = (double)v.box.width / v.box.height;
    assert_true(v.box.x + v.box.width <= 200 && v.box.y + v.box.height <= 100);
    assert_true(share > 0.24 && share < 0.51 && ratio > 0.48 && ratio < 2.08);
    min_ratio = fmin(min_ratio, share);
    max_ratio = fmax(max_ratio, share);
    assert_int_equal(v.width, 24);
    assert_int_equal(v.out_height, 24);
  }
  assert_true(min_ratio < 0.27 && max_ratio > 0.48);
}

/* If no part of the image has a permitted aspect ratio, the crop is the largest centred part with
 * the nearest ratio. */
static void impossible_ratio_falls_back_to_center_crop(void **state) {
  (void)state;
  clv_image_options o = {.crop = 8,
                         .train_crop = CLV_CROP_RANDOM_RESIZED,
                         .area_low = 1,
                         .area_high = 1,
                         .ratio_low = 0.75,
                         .ratio_high = 4.0 / 3};
  clv_rng_key key = clv_image_transform_rng_key(1, 0, 0);
  clv_image_transform view_of_wide = choose_view(o, 300, 30, &key),
                      view_of_high = choose_view(o, 30, 300, &key);
  assert_int_equal(view_of_wide.box.width, 40);
  assert_int_equal(view_of_wide.box.x, 130);
  assert_int_equal(view_of_high.box.height, 40);
  assert_int_equal(view_of_high.box.y, 130);
}

static void views_differ_by_epoch_seed_and_record(void **state) {
  (void)state;
  clv_image_options o = {.crop = 16, .train_crop = CLV_CROP_RANDOM};
  clv_rng_key keys[] = {clv_image_transform_rng_key(1, 0, 0), clv_image_transform_rng_key(1, 1, 0),
                        clv_image_transform_rng_key(2, 0, 0), clv_image_transform_rng_key(1, 0, 1)};
  for (size_t i = 0; i < CLV_COUNT(keys); i++)
    for (size_t j = 0; j < i; j++) {
      clv_image_transform a = choose_view(o, 60000, 1000, &keys[i]),
                          b = choose_view(o, 60000, 1000, &keys[j]);
      assert_true(a.x != b.x || a.y != b.y);
    }
}

static void render_pads_borders_and_flips(void **state) {
  (void)state;
  uint8_t data[6] = {1, 2, 3, 4, 5, 6}, out[12];
  clv_pixels src = {.data = data, .width = 3, .height = 2, .channels = 1};
  clv_image_transform v = {.box = {0, 0, 3, 2}, .width = 3, .height = 2, .x = -1, .y = -1};
  v.out_width = 4;
  v.out_height = 3;
  CLV_AUTO(clv_resampler_done) clv_resampler r = {0};
  clv_err err;
  assert_ok(clv_image_transform_apply(&v, &src, 100, &r, out, &err), &err);
  static const uint8_t unflipped[12] = {0, 0, 0, 0, 0, 1, 2, 3, 0, 4, 5, 6};
  assert_memory_equal(out, unflipped, 12);
  v.is_flipped = true;
  assert_ok(clv_image_transform_apply(&v, &src, 100, &r, out, &err), &err);
  static const uint8_t flipped[12] = {0, 0, 0, 0, 3, 2, 1, 0, 6, 5, 4, 0};
  assert_memory_equal(out, flipped, 12);
  uint16_t data_16_bit[6] = {1000, 2000, 3000, 4000, 5000, 60000}, out_16_bit[12];
  clv_pixels pixels_16_bit = src;
  pixels_16_bit.data = (uint8_t *)data_16_bit;
  pixels_16_bit.has_16_bits = true;
  assert_ok(clv_image_transform_apply(&v, &pixels_16_bit, 100, &r, (uint8_t *)out_16_bit, &err),
            &err);
  static const uint16_t wanted_16_bit[12] = {0, 0, 0, 0, 3000, 2000, 1000, 0, 60000, 5000, 4000, 0};
  assert_memory_equal(out_16_bit, wanted_16_bit, sizeof wanted_16_bit);
}

/* A very narrow image cannot use more memory than max_pixels while it is resized. */
static void extreme_aspect_ratio_is_refused_by_max_pixels(void **state) {
  (void)state;
  clv_image_options o = {.resize = 256, .max_pixels = 1 << 20};
  clv_image_transform v;
  clv_err err;
  assert_int_equal(clv_image_transform_choose(&o, 1, 1000000, NULL, &v, &err), CLV_DATA_LOSS);
  assert_says(&err, "1 x 1000000 resized to 256 on its shorter side has 65536000000 pixels");
  uint8_t byte = 0;
  clv_pixels src = {.data = &byte, .width = 1, .height = 1000000, .channels = 1};
  clv_resampler r = {0};
  v = (clv_image_transform){.box = {0, 0, 1, 1000000}, .width = 8, .height = 8};
  v.out_width = v.out_height = 8;
  assert_int_equal(clv_image_transform_apply(&v, &src, 1 << 20, &r, NULL, &err), CLV_DATA_LOSS);
  assert_says(&err, "8 x 1000000 intermediate pixels");
  o = (clv_image_options){.crop = 32, .train_crop = CLV_CROP_RANDOM, .max_pixels = 1 << 20};
  clv_rng_key key = clv_image_transform_rng_key(0, 0, 0);
  assert_int_equal(clv_image_transform_choose(&o, 40, 31, &key, &v, &err), CLV_DATA_LOSS);
  assert_says(&err, "smaller than the crop of 32: set data.images.resize or data.images.pad");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resize_and_center_crop_match_torchvision),
      cmocka_unit_test(evaluation_view_is_not_augmented),
      cmocka_unit_test(random_crop_offsets_are_uniform),
      cmocka_unit_test(random_resized_crop_keeps_area_and_ratio),
      cmocka_unit_test(impossible_ratio_falls_back_to_center_crop),
      cmocka_unit_test(views_differ_by_epoch_seed_and_record),
      cmocka_unit_test(render_pads_borders_and_flips),
      cmocka_unit_test(extreme_aspect_ratio_is_refused_by_max_pixels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
