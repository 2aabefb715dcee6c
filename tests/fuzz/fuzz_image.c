/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes PNG and JPEG decoding, and then makes views (crops and flips) of each kind from the
 * decoded image. The last byte picks channels and positions of the views, so the corpus is plain
 * image files.
 */
#include <stdlib.h>

#include "master/data/image_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CROP = 8, MAX_PIXELS = 1 << 16 };

static void render_view(const clv_pixels *p, const clv_image_options *o, const clv_rng_key *key) {
  CLV_AUTO(clv_resampler_done) clv_resampler r = {0};
  uint16_t out[CROP * CROP * 3]; /* pixels of 16 bits; also used for 8 bits */
  clv_image_transform view;
  clv_err err;
  if (clv_image_transform_choose(o, p->width, p->height, key, &view, &err) != CLV_OK) return;
  NEVER(view.out_width != CROP || view.out_height != CROP);
  (void)!clv_image_transform_apply(&view, p, o->max_pixels, &r, (uint8_t *)out, &err);
}

static void render_views(const clv_pixels *p, uint8_t pick) {
  static const clv_crop_kind kinds[] = {CLV_CROP_CENTER, CLV_CROP_RANDOM, CLV_CROP_RANDOM_RESIZED};
  clv_image_options o = {.crop = CROP,
                         .pad = pick >> 5,
                         .area_low = 0.1,
                         .area_high = 1,
                         .ratio_low = pick & 4 ? 0.5 : 3,
                         .ratio_high = pick & 4 ? 2 : 4,
                         .flip = 0.5,
                         .max_pixels = MAX_PIXELS};
  clv_rng_key key = clv_image_transform_rng_key(pick, 1, p->width);
  render_view(p, &o, NULL);
  for (size_t i = 0; i < 2 * CLV_COUNT(kinds); i++) {
    o.train_crop = kinds[i / 2];
    o.resize = i % 2 ? 9 : 0;
    render_view(p, &o, &key);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
  uint8_t pick = size ? data[size - 1] : 0;
  clv_encoded_image in = {
      .data = data, .len = size, .channels = pick & 1 ? 1 : 3, .max_pixels = MAX_PIXELS};
  clv_err err;
  if (clv_image_decode(&in, &p, &err) == CLV_OK) render_views(&p, pick);
  in.reads_header_only = true;
  (void)!clv_image_decode(&in, &p, &err);
  return 0;
}
