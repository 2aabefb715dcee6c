/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes JPEG with libjpeg. libjpeg reports errors by longjmp, so each function that calls setjmp
 * owns nothing and changes no local variable afterwards.
 *
 */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "master/data/image_int.h"

/* Most scans of a progressive file. Each scan is a pass over all pixels but needs only few bytes in
 * the file, so a file with more would cost unlimited time. */
enum { MAX_JPEG_SCANS = 500 };

typedef struct jpeg_reader {
  /* first member, because libjpeg's callbacks cast its address to a pointer to the reader */
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  struct jpeg_decompress_struct c;
  jmp_buf error_jump;
  char error_text[JMSG_LENGTH_MAX];
} jpeg_reader;

static void reader_done(jpeg_reader *r) { jpeg_destroy_decompress(&r->c); }

static void on_error(j_common_ptr c) {
  jpeg_reader *r = (jpeg_reader *)c->err;
  c->err->format_message(c, r->error_text);
  longjmp(r->error_jump, 1);
}

/* Turns warnings about damage into errors, because libjpeg would fill in the damaged pixels. */
static void on_message(j_common_ptr c, int level) {
  static const int damage_codes[] = {JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE,
                                     JWRN_ARITH_BAD_CODE, JWRN_MUST_RESYNC};
  for (size_t i = 0; level < 0 && i < CLV_COUNT(damage_codes); i++)
    if (c->err->msg_code == damage_codes[i]) on_error(c);
}

static void on_progress(j_common_ptr c) {
  jpeg_reader *r = (jpeg_reader *)c->err;
  if (r->c.input_scan_number <= MAX_JPEG_SCANS) return;
  snprintf(r->error_text, sizeof r->error_text, "more than %d scans", MAX_JPEG_SCANS);
  longjmp(r->error_jump, 1);
}

static clv_code fail_with_reason(const jpeg_reader *r, clv_err *err) {
  return clv_fail(err, r->errors.msg_code == JERR_OUT_OF_MEMORY ? CLV_EXHAUSTED : CLV_DATA_LOSS,
                  "%s", r->error_text);
}

static J_COLOR_SPACE choose_output_color_space(J_COLOR_SPACE file_space) {
  if (file_space == JCS_GRAYSCALE) return JCS_GRAYSCALE;
  return file_space == JCS_CMYK || file_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
}

static clv_code read_header(jpeg_reader *r, const clv_encoded_image *in, clv_pixels *ret,
                            clv_err *err) {
  if (setjmp(r->error_jump)) return fail_with_reason(r, err);
  jpeg_create_decompress(&r->c);
  r->progress.progress_monitor = on_progress;
  r->c.progress = &r->progress;
  jpeg_mem_src(&r->c, in->data, in->len);
  jpeg_read_header(&r->c, TRUE);
  r->c.out_color_space = choose_output_color_space(r->c.jpeg_color_space);
  const clv_pixels as = {.width = r->c.image_width,
                         .height = r->c.image_height,
                         .channels = r->c.out_color_space == JCS_GRAYSCALE ? 1 : 3};
  return clv_pixels_reserve(in, as, ret, err);
}

/* Returns a * b / 255, rounded as PIL rounds it. */
static unsigned multiply_255(unsigned a, unsigned b) {
  unsigned t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

/* Converts CMYK to RGB as PIL's "CMYK;I" and cmyk2rgb do. The inks are taken as inverted, because
 * Adobe inverts them, and only Adobe writes CMYK. */
static void convert_from_cmyk(const uint8_t *src, uint8_t *dst, size_t n) {
  for (size_t i = 0; i < n; i++, src += 4)
    for (size_t c = 0; c < 3; c++) *dst++ = (uint8_t)(src[3] - multiply_255(255u - src[c], src[3]));
}

static clv_code read_rows(jpeg_reader *r, clv_pixels *ret, clv_err *err) {
  if (setjmp(r->error_jump)) return fail_with_reason(r, err);
  jpeg_start_decompress(&r->c);
  size_t stride = (size_t)ret->width * ret->channels;
  bool is_cmyk = r->c.out_color_space == JCS_CMYK;
  JSAMPARRAY cmyk_row =
      is_cmyk ? r->c.mem->alloc_sarray((j_common_ptr)&r->c, JPOOL_IMAGE, ret->width * 4, 1) : NULL;
  while (r->c.output_scanline < r->c.output_height) {
    uint8_t *row = ret->data + r->c.output_scanline * stride;
    if (jpeg_read_scanlines(&r->c, is_cmyk ? cmyk_row : &row, 1) != 1)
      ERREXIT(&r->c, JERR_INPUT_EOF);
    if (is_cmyk) convert_from_cmyk(cmyk_row[0], row, ret->width);
  }
  jpeg_finish_decompress(&r->c);
  return CLV_OK;
}

clv_code clv_jpeg_decode(const clv_encoded_image *in, clv_pixels *ret, clv_err *err) {
  CLV_AUTO(reader_done) jpeg_reader r = {0};
  r.c.err = jpeg_std_error(&r.errors);
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  CLV_TRY(read_header(&r, in, ret, err));
  return in->reads_header_only ? CLV_OK : read_rows(&r, ret, err);
}
