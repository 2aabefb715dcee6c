/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of an image that a record shows: torchvision's Resize, CenterCrop, RandomCrop,
 * RandomResizedCrop and RandomHorizontalFlip. Random choices depend only on (seed, epoch, record),
 * so threads, the order of records or a resumed run do not change them.
 *
 */
#include <math.h>
#include <string.h>

#include "master/data/image_int.h"

/* RNG stream of crops and flips. No layer of a model has this number (see batches.c). */
static const uint32_t transform_rng_stream = 0xfffffff2u;

enum {
  /* most tries to draw a part that fits; try i takes area, ratio, y and x from RNG block i */
  MAX_CROP_TRIES = 10,
  /* index of the RNG block with the random words for the flip ([0]) and for the crop's y ([1]) and
   * x ([2]) */
  POSITION_RNG_BLOCK = 16,
};

clv_rng_key clv_image_transform_rng_key(uint64_t seed, uint64_t epoch, uint32_t record) {
  return (clv_rng_key){
      .seed = seed, .step = epoch, .micro_batch = record, .layer = transform_rng_stream};
}

/* Maps a random word to a whole number from 0 to `max`. */
static uint32_t map_to_integer(uint32_t random_word, uint64_t max) {
  return (uint32_t)(((uint64_t)random_word * (max + 1)) >> 32);
}

static double map_to_range(uint32_t random_word, double low, double high) {
  return low + (high - low) * (random_word * 0x1p-32);
}

/* Halves n as Python's round() does: to the even neighbour. */
static int64_t halve_and_round(int64_t n) { return (int64_t)nearbyint((double)n / 2.0); }

/* ---- resizing an image ----------------------------------------------------------------------- */

/* Sets v to resize the image so that its shorter side has o->resize pixels. Rounds the length of
 * the longer side down. o->resize 0: the image keeps its size. */
static clv_code set_resize(const clv_image_options *o, uint32_t width, uint32_t height,
                           clv_image_transform *v, clv_err *err) {
  v->box = (clv_box){0, 0, width, height};
  v->width = width;
  v->height = height;
  if (!o->resize) return CLV_OK;
  uint32_t *shorter_side = width <= height ? &v->width : &v->height;
  uint32_t *longer_side = width <= height ? &v->height : &v->width;
  uint64_t resized_longer_side = (uint64_t)o->resize * *longer_side / *shorter_side;
  if (resized_longer_side * o->resize > o->max_pixels)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%u x %u resized to %u on its shorter side has %llu pixels, the limit is %llu: "
                    "raise data.images.max_pixels or lower data.images.resize",
                    width, height, o->resize, (unsigned long long)(resized_longer_side * o->resize),
                    (unsigned long long)o->max_pixels);
  *shorter_side = o->resize;
  *longer_side = (uint32_t)resized_longer_side;
  return CLV_OK;
}

/* ---- cropping an image ----------------------------------------------------------------------- */

/* Returns where a centred crop of n pixels begins. An image smaller than the crop gets black
 * borders; if they differ by one pixel, the border at the end is larger. */
static int64_t compute_centred_start(uint32_t n, uint32_t crop) {
  return crop > n ? -(int64_t)((crop - n) / 2) : halve_and_round((int64_t)n - crop);
}

static clv_code crop_centre(const clv_image_options *o, const clv_rng_key *key,
                            clv_image_transform *v, clv_err *err) {
  (void)key;
  (void)err;
  v->x = compute_centred_start(v->width, o->crop);
  v->y = compute_centred_start(v->height, o->crop);
  return CLV_OK;
}

static clv_code crop_random(const clv_image_options *o, const clv_rng_key *key,
                            clv_image_transform *v, clv_err *err) {
  uint32_t random_words[4];
  uint64_t width = (uint64_t)v->width + 2 * (uint64_t)o->pad;
  uint64_t height = (uint64_t)v->height + 2 * (uint64_t)o->pad;
  if (width < o->crop || height < o->crop)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%u x %u with a border of %u is smaller than the crop of %u: set "
                    "data.images.resize or data.images.pad",
                    v->width, v->height, o->pad, o->crop);
  clv_rng_block(key, POSITION_RNG_BLOCK, random_words);
  v->y = (int64_t)map_to_integer(random_words[1], height - o->crop) - o->pad;
  v->x = (int64_t)map_to_integer(random_words[2], width - o->crop) - o->pad;
  return CLV_OK;
}

/* Returns the largest centred part of an image whose aspect ratio (width / height) the options
 * permit. */
static clv_box find_largest_box(const clv_image_options *o, uint32_t width, uint32_t height) {
  double ratio = (double)width / height;
  double w = width, h = height;
  if (ratio < o->ratio_low) h = nearbyint(width / o->ratio_low);
  if (ratio > o->ratio_high) w = nearbyint(height * o->ratio_high);
  clv_box box = {.width = (uint32_t)CLV_MAX(w, 1), .height = (uint32_t)CLV_MAX(h, 1)};
  box.x = (width - box.width) / 2;
  box.y = (height - box.height) / 2;
  return box;
}

static clv_box draw_random_box(const clv_image_options *o, const clv_rng_key *key, uint32_t width,
                               uint32_t height) {
  uint32_t random_words[4];
  for (uint32_t i = 0; i < MAX_CROP_TRIES; i++) {
    clv_rng_block(key, i, random_words);
    double area = (double)width * height * map_to_range(random_words[0], o->area_low, o->area_high);
    double ratio = exp(map_to_range(random_words[1], log(o->ratio_low), log(o->ratio_high)));
    double w = nearbyint(sqrt(area * ratio)), h = nearbyint(sqrt(area / ratio));
    if (!(w > 0 && w <= width && h > 0 && h <= height)) continue;
    clv_box box = {.width = (uint32_t)w, .height = (uint32_t)h};
    box.y = map_to_integer(random_words[2], height - box.height);
    box.x = map_to_integer(random_words[3], width - box.width);
    return box;
  }
  return find_largest_box(o, width, height);
}

static clv_code crop_resized(const clv_image_options *o, const clv_rng_key *key,
                             clv_image_transform *v, clv_err *err) {
  (void)err;
  v->box = draw_random_box(o, key, v->box.width, v->box.height);
  v->width = v->height = o->crop;
  return CLV_OK;
}

static clv_code (*const crop_functions[])(const clv_image_options *o, const clv_rng_key *key,
                                          clv_image_transform *v, clv_err *err) = {
    [CLV_CROP_CENTER] = crop_centre,
    [CLV_CROP_RANDOM] = crop_random,
    [CLV_CROP_RANDOM_RESIZED] = crop_resized,
};

static bool draw_flip(const clv_image_options *o, const clv_rng_key *key) {
  uint32_t random_words[4];
  clv_rng_block(key, POSITION_RNG_BLOCK, random_words);
  return map_to_range(random_words[0], 0, 1) < o->flip;
}

clv_code clv_image_transform_choose(const clv_image_options *o, uint32_t width, uint32_t height,
                                    const clv_rng_key *key, clv_image_transform *ret,
                                    clv_err *err) {
  clv_image_transform v = {0};
  clv_crop_kind crop_kind = key ? o->train_crop : CLV_CROP_CENTER;
  if (crop_kind == CLV_CROP_RANDOM_RESIZED)
    v.box = (clv_box){0, 0, width, height};
  else
    CLV_TRY(set_resize(o, width, height, &v, err));
  if (o->crop) CLV_TRY(crop_functions[crop_kind](o, key, &v, err));
  v.out_width = o->crop ? o->crop : v.width;
  v.out_height = o->crop ? o->crop : v.height;
  v.is_flipped = key && o->flip > 0 && draw_flip(o, key);
  *ret = v;
  return CLV_OK;
}

/* ---- pixels of the record -------------------------------------------------------------------- */

/* Intersects [at, at + n) with [0, size). Returns the length of the intersection; *ret_first: where
 * it begins. */
static uint32_t clip_range(int64_t at, uint32_t n, uint32_t size, uint32_t *ret_first) {
  int64_t low = CLV_MAX(at, 0), high = CLV_MIN(at + n, (int64_t)size);
  *ret_first = (uint32_t)low;
  return high > low ? (uint32_t)(high - low) : 0;
}

/* Mirrors a row of pixels. pixel_bytes: bytes of one pixel. */
static void flip_row(uint8_t *row, uint32_t width, size_t pixel_bytes) {
  for (uint8_t *a = row, *b = row + (width - 1) * pixel_bytes; a < b;
       a += pixel_bytes, b -= pixel_bytes)
    for (size_t c = 0; c < pixel_bytes; c++) {
      uint8_t saved_byte = a[c];
      a[c] = b[c];
      b[c] = saved_byte;
    }
}

/* Checks the size of the image between the two passes of the resize. This image has all rows of
 * v->box, each visible_width pixels wide. */
static clv_code check_intermediate_size(const clv_image_transform *v, uint32_t visible_width,
                                        uint64_t max_pixels, clv_err *err) {
  if ((uint64_t)visible_width * v->box.height <= max_pixels) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS,
                  "%u x %u needs %u x %u intermediate pixels to become %u x %u, the limit is %llu: "
                  "raise data.images.max_pixels",
                  v->box.width, v->box.height, visible_width, v->box.height, v->width, v->height,
                  (unsigned long long)max_pixels);
}

clv_code clv_image_transform_apply(const clv_image_transform *v, const clv_pixels *src,
                                   uint64_t max_pixels, clv_resampler *r, uint8_t *dst,
                                   clv_err *err) {
  size_t pixel_bytes = clv_pixel_bytes(src), stride = v->out_width * pixel_bytes;
  clv_box visible_box;
  visible_box.width = clip_range(v->x, v->out_width, v->width, &visible_box.x);
  visible_box.height = clip_range(v->y, v->out_height, v->height, &visible_box.y);
  CLV_TRY(check_intermediate_size(v, visible_box.width, max_pixels, err));
  if (visible_box.width < v->out_width || visible_box.height < v->out_height)
    memset(dst, 0, stride * v->out_height);
  if (visible_box.width && visible_box.height) {
    uint8_t *corner = dst + (size_t)((int64_t)visible_box.y - v->y) * stride +
                      (size_t)((int64_t)visible_box.x - v->x) * pixel_bytes;
    CLV_TRY(
        clv_resample_pixels(r, src, v->box, v->width, v->height, visible_box, corner, stride, err));
  }
  if (v->is_flipped)
    for (uint32_t y = 0; y < v->out_height; y++)
      flip_row(dst + y * stride, v->out_width, pixel_bytes);
  return CLV_OK;
}
