/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes PNG with libpng. libpng reports errors by longjmp, so each function that calls setjmp
 * owns nothing and changes no local variable afterwards.
 *
 */
#include <png.h>
#include <stdio.h>
#include <string.h>

#include "master/data/image_int.h"

enum { MAX_CHUNK_BYTES = 8 << 20 /* most bytes of an inflated chunk */ };

typedef struct png_reader {
  const clv_encoded_image *in;
  size_t at;
  png_structp png;
  png_infop info;
  char error_text[128];
} png_reader;

static void reader_done(png_reader *r) { png_destroy_read_struct(&r->png, &r->info, NULL); }

static void on_error(png_structp png, png_const_charp text) {
  png_reader *r = png_get_error_ptr(png);
  snprintf(r->error_text, sizeof r->error_text, "%s", text);
  png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text) {
  (void)png;
  (void)text;
}

static void on_read(png_structp png, png_bytep dst, size_t n) {
  png_reader *r = png_get_io_ptr(png);
  if (n > r->in->len - r->at) png_error(png, "truncated: copy the file again");
  memcpy(dst, r->in->data + r->at, n);
  r->at += n;
}

static clv_code fail_with_reason(const png_reader *r, clv_err *err) {
  return clv_fail(err, CLV_DATA_LOSS, "%s (at byte %zu of %zu)", r->error_text, r->at, r->in->len);
}

/* Creates the decoder. libpng's own limits of size are off, because clv_pixels_reserve checks the
 * size with a better message. */
static clv_code create_decoder(png_reader *r, clv_err *err) {
  r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
  r->info = r->png ? png_create_info_struct(r->png) : NULL;
  if (!r->info) return clv_fail(err, CLV_EXHAUSTED, "no memory to decode it");
  png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_chunk_malloc_max(r->png, MAX_CHUNK_BYTES);
  /* Texts, profiles and the like are not inflated, because pixels do not depend on them. */
  png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
  png_set_read_fn(r->png, r, on_read);
  return CLV_OK;
}

/* Reads the header of a PNG. The output is grey or RGB, with 16 bits a sample if the file has 16,
 * else with 8. */
static clv_code read_header(png_reader *r, clv_pixels *ret, clv_err *err) {
  if (setjmp(png_jmpbuf(r->png))) return fail_with_reason(r, err);
  png_read_info(r->png, r->info);
  png_set_palette_to_rgb(r->png);
  png_set_expand_gray_1_2_4_to_8(r->png);
  png_set_swap(r->png); /* a file has samples of 16 bits in big-endian order */
  png_set_strip_alpha(r->png);
  const clv_pixels as = {
      .width = png_get_image_width(r->png, r->info),
      .height = png_get_image_height(r->png, r->info),
      .channels = png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_COLOR ? 3 : 1,
      .has_16_bits = png_get_bit_depth(r->png, r->info) == 16};
  return clv_pixels_reserve(r->in, as, ret, err);
}

static clv_code read_rows(png_reader *r, clv_pixels *ret, clv_err *err) {
  if (setjmp(png_jmpbuf(r->png))) return fail_with_reason(r, err);
  int n_passes = png_set_interlace_handling(r->png);
  png_read_update_info(r->png, r->info);
  size_t stride = ret->width * clv_pixel_bytes(ret);
  if (png_get_rowbytes(r->png, r->info) != stride)
    return clv_fail(err, CLV_DATA_LOSS, "rows of %zu bytes, expected %zu",
                    (size_t)png_get_rowbytes(r->png, r->info), stride);
  for (int pass = 0; pass < n_passes; pass++)
    for (uint32_t y = 0; y < ret->height; y++) png_read_row(r->png, ret->data + y * stride, NULL);
  png_read_end(r->png, NULL); /* reads to the end of the file; fails if it ends too early */
  return CLV_OK;
}

clv_code clv_png_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) {
  CLV_AUTO(reader_done) png_reader r = {.in = in};
  CLV_TRY(create_decoder(&r, err));
  CLV_TRY(read_header(&r, ret, err));
  return in->reads_header_only ? CLV_OK : read_rows(&r, ret, err);
}
