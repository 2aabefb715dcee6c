/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_image_decode: chooses the decoder of an image file by its first bytes, and converts the
 * result to the wanted number of channels.
 *
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/image_int.h"

/* Converts RGB to grey by ITU-R 601-2, rounded as in PIL's convert("L"). */
#define CONVERT_TO_GREY(type)                                                         \
  do {                                                                                \
    type *at = (type *)(void *)p->data;                                               \
    for (size_t i = 0; i < n; i++) {                                                  \
      const type *s = at + 3 * i;                                                     \
      at[i] = (type)((s[0] * 19595u + s[1] * 38470u + s[2] * 7471u + 0x8000u) >> 16); \
    }                                                                                 \
  } while (0)

static void convert_to_grey(clv_pixels *p) {
  size_t n = (size_t)p->width * p->height;
  if (p->has_16_bits)
    CONVERT_TO_GREY(uint16_t);
  else
    CONVERT_TO_GREY(uint8_t);
  p->channels = 1;
}

/* Converts grey to RGB in place, from the last pixel to the first. clv_pixels_reserve has allocated
 * memory for three channels. */
static void convert_to_rgb(clv_pixels *p) {
  uint16_t *u16_samples = (uint16_t *)(void *)p->data;
  for (size_t i = (size_t)p->width * p->height; i-- > 0;)
    if (p->has_16_bits)
      u16_samples[3 * i] = u16_samples[3 * i + 1] = u16_samples[3 * i + 2] = u16_samples[i];
    else
      memset(p->data + 3 * i, p->data[i], 3);
  p->channels = 3;
}

static const struct {
  const char *name, *magic;
  size_t n;
  clv_code (*decode)(const clv_encoded_image *in, clv_pixels *ret, clv_err *err);
} decoders[] = {
    {.name = "PNG", .magic = "\x89PNG\r\n\x1a\n", .n = 8, .decode = clv_png_decode},
    {.name = "JPEG", .magic = "\xff\xd8\xff", .n = 3, .decode = clv_jpeg_decode},
};

clv_code clv_image_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(decoders); i++) {
    if (in->len < decoders[i].n || memcmp(in->data, decoders[i].magic, decoders[i].n) != 0)
      continue;
    clv_code code = decoders[i].decode(in, ret, err);
    if (code != CLV_OK) return clv_err_prefix(err, "%s", decoders[i].name), code;
    if (in->reads_header_only || ret->channels == in->channels) return CLV_OK;
    (in->channels == 1 ? convert_to_grey : convert_to_rgb)(ret);
    return CLV_OK;
  }
  uint8_t head[4] = {0};
  if (!in->len) return clv_fail(err, CLV_DATA_LOSS, "the file is empty (0 bytes): copy it again");
  memcpy(head, in->data, CLV_MIN(in->len, sizeof head));
  return clv_fail(err, CLV_DATA_LOSS,
                  "neither PNG (89 50 4e 47) nor JPEG (ff d8 ff): begins with %02x %02x %02x %02x "
                  "(%zu bytes); convert it or take it out of the folder",
                  head[0], head[1], head[2], head[3], in->len);
}
