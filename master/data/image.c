/* SPDX-License-Identifier: Apache-2.0
 *
 * What the decoders share: which one a file is for, limits, and the number of channels.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/image_int.h"

void clv_pixels_done(clv_pixels *p) {
  if (!p) return;
  free(p->data);
  *p = (clv_pixels){0};
}

clv_code clv_reserve(uint8_t **p, size_t *cap, size_t bytes, clv_err *err) {
  if (bytes <= *cap) return CLV_OK;
  free(*p);
  *p = NULL;
  *cap = 0;
  CLV_TRY(clv_alloc_aligned(bytes, p, err));
  *cap = bytes;
  return CLV_OK;
}

clv_code clv_pixels_size(const clv_encoded *in, uint32_t width, uint32_t height, uint32_t native,
                         clv_pixels *ret, clv_err *err) {
  uint64_t pixels = (uint64_t)width * height;
  if (pixels == 0)
    return clv_fail(err, CLV_DATA_LOSS, "an image of %u x %u has no pixels", width, height);
  if (pixels > in->max_pixels)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%u x %u are %llu pixels, the limit is %llu: make it smaller, or raise "
                    "data.images.max_pixels",
                    width, height, (unsigned long long)pixels, (unsigned long long)in->max_pixels);
  ret->width = width;
  ret->height = height;
  ret->channels = native;
  if (in->header_only) return CLV_OK;
  return clv_reserve(&ret->data, &ret->cap, pixels * CLV_MAX(native, in->channels), err);
}

/* ITU-R 601-2 as PIL's convert("L") rounds it. */
static void to_grey(clv_pixels *p) {
  size_t n = (size_t)p->width * p->height;
  for (size_t i = 0; i < n; i++) {
    const uint8_t *s = p->data + 3 * i;
    p->data[i] = (uint8_t)((s[0] * 19595u + s[1] * 38470u + s[2] * 7471u + 0x8000u) >> 16);
  }
  p->channels = 1;
}

/* From the last pixel backwards, in place: clv_pixels_size made room for three channels. */
static void to_rgb(clv_pixels *p) {
  for (size_t i = (size_t)p->width * p->height; i-- > 0;) memset(p->data + 3 * i, p->data[i], 3);
  p->channels = 3;
}

static const struct {
  const char *name, *magic;
  size_t n;
  clv_code (*decode)(const clv_encoded *in, clv_pixels *ret, clv_err *err);
} decoders[] = {
    {.name = "PNG", .magic = "\x89PNG\r\n\x1a\n", .n = 8, .decode = clv_png_decode},
    {.name = "JPEG", .magic = "\xff\xd8\xff", .n = 3, .decode = clv_jpeg_decode},
};

clv_code clv_image_decode(const clv_encoded *in, clv_pixels *ret, clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(decoders); i++) {
    if (in->len < decoders[i].n || memcmp(in->data, decoders[i].magic, decoders[i].n) != 0)
      continue;
    clv_code code = decoders[i].decode(in, ret, err);
    if (code != CLV_OK) return clv_err_prefix(err, "%s", decoders[i].name), code;
    if (in->header_only || ret->channels == in->channels) return CLV_OK;
    (in->channels == 1 ? to_grey : to_rgb)(ret);
    return CLV_OK;
  }
  uint8_t head[4] = {0};
  if (in->len) memcpy(head, in->data, CLV_MIN(in->len, sizeof head));
  return clv_fail(err, CLV_DATA_LOSS,
                  "neither PNG (89 50 4e 47) nor JPEG (ff d8 ff): begins with %02x %02x %02x %02x "
                  "(%zu bytes); convert it or take it out of the folder",
                  head[0], head[1], head[2], head[3], in->len);
}
