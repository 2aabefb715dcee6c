/* SPDX-License-Identifier: Apache-2.0
 *
 * PNG and JPEG decoding, then a view of what came out; the last byte picks channels and view,
 * so the corpus is plain image files.
 */
#include "master/data/image_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void show(const clv_pixels *p, uint8_t pick) {
  CLV_AUTO(clv_resampler_done) clv_resampler r = {0};
  clv_image_options o = {.crop = 8,
                         .resize = pick & 2 ? 9 : 0,
                         .train_crop = (clv_crop_kind)(pick % 3),
                         .pad = 2,
                         .area_low = 0.1,
                         .area_high = 1,
                         .ratio_low = 0.5,
                         .ratio_high = 2,
                         .flip = 0.5,
                         .max_pixels = 1 << 16};
  clv_rng_key key = clv_view_key_of(pick, 1, p->width);
  uint8_t out[8 * 8 * 3];
  clv_view view;
  clv_err err;
  if (clv_view_choose(&o, p->width, p->height, &key, &view, &err) != CLV_OK) return;
  (void)!clv_view_render(&view, p, o.max_pixels, &r, out, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
  uint8_t pick = size ? data[size - 1] : 0;
  clv_encoded in = {.data = data, .len = size, .channels = pick & 1 ? 1 : 3, .max_pixels = 1 << 16};
  clv_err err;
  if (clv_image_decode(&in, &p, &err) == CLV_OK) show(&p, pick);
  in.header_only = true;
  (void)!clv_image_decode(&in, &p, &err);
  return 0;
}
