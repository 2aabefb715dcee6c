/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests pixels: PNG and JPEG of every kind decode as Pillow decodes them, resizing gives Pillow's
 * bits, and damaged or too large images are refused.
 */
#include <sys/resource.h>

#include "master/data/image_int.h"
#include "tests/golden/golden_int.h"
#include "tests/unit/data/data_test.h"

static golden golden_images, golden_16_bit;

static int open_goldens(void **state) {
  (void)state;
  golden_open(&golden_images, "images");
  golden_open(&golden_16_bit, "images16");
  return 0;
}

static int close_goldens(void **state) {
  (void)state;
  golden_close(&golden_images);
  golden_close(&golden_16_bit);
  return 0;
}

static clv_bytes read_corpus_file(const char *name) {
  char path[128];
  clv_bytes b = {0};
  clv_err err;
  snprintf(path, sizeof path, "tests/fuzz/corpus/image/%s", name);
  assert_ok(clv_file_read(path, 1 << 20, &b, &err), &err);
  return b;
}

static clv_code decode_image(const void *data, size_t len, uint32_t channels, clv_pixels *ret,
                             clv_err *err) {
  clv_encoded_image in = {.data = data, .len = len, .channels = channels, .max_pixels = 1 << 20};
  return clv_image_decode(&in, ret, err);
}

static void assert_same_pixels(const char *name, const char *what, const clv_pixels *p) {
  golden_tensor want;
  if (!golden_find_tensor(&golden_images, name, what, &want))
    fail_msg("no golden %s.%s", name, what);
  assert_int_equal(p->height, want.shape.dim[0]);
  assert_int_equal(p->width, want.shape.dim[1]);
  assert_int_equal(p->channels, want.shape.rank == 3 ? 3 : 1);
  for (size_t i = 0; i < want.n; i++)
    if (p->data[i] != ((const uint8_t *)want.data)[i])
      fail_msg("%s.%s: byte %zu is %d, Pillow has %d", name, what, i, p->data[i],
               ((const uint8_t *)want.data)[i]);
}

static const char *const valid_files[] = {
    "rgb.png",        "grey.png", "rgba.png", "grey_alpha.png",  "palette.png", "one_bit.png",
    "interlaced.png", "rgb.jpg",  "grey.jpg", "progressive.jpg", "cmyk.jpg"};

static void decoded_pixels_match_pillow(void **state) {
  (void)state;
  /* all images are decoded into one set of buffers, as in a thread of a loader */
  CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
  for (size_t i = 0; i < CLV_COUNT(valid_files); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = read_corpus_file(valid_files[i]);
    clv_err err;
    assert_ok(decode_image(file.data, file.len, 3, &p, &err), &err);
    assert_same_pixels(valid_files[i], "rgb", &p);
    assert_ok(decode_image(file.data, file.len, 1, &p, &err), &err);
    assert_same_pixels(valid_files[i], "grey", &p);
  }
}

static void assert_same_samples(const char *name, const char *what, const clv_pixels *p) {
  golden_tensor want;
  if (!golden_find_tensor(&golden_16_bit, name, what, &want))
    fail_msg("no golden %s.%s", name, what);
  assert_true(p->has_16_bits);
  assert_int_equal(p->height, want.shape.dim[0]);
  assert_int_equal(p->width, want.shape.dim[1]);
  assert_int_equal(p->channels, want.shape.rank == 3 ? 3 : 1);
  for (size_t i = 0; i < want.n; i++) {
    int got = ((const uint16_t *)(const void *)p->data)[i],
        wanted = (int)((const float *)want.data)[i];
    if (got != wanted) fail_msg("%s.%s: sample %zu is %d, not %d", name, what, i, got, wanted);
  }
}

static void sixteen_bit_files_decode_to_16_bits(void **state) {
  (void)state;
  static const char *const names[] = {"grey16.png", "rgb16.png",       "grey_alpha16.png",
                                      "rgba16.png", "grey16_trns.png", "rgb16_trns.png",
                                      "scan12.png"};
  CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
  for (size_t i = 0; i < CLV_COUNT(names); i++) {
    CLV_AUTO(clv_bytes_done)
    clv_bytes file = read_corpus_file(names[i]), narrow = read_corpus_file("rgb.png");
    clv_err err;
    assert_ok(decode_image(file.data, file.len, 3, &p, &err), &err);
    assert_same_samples(names[i], "rgb", &p);
    assert_ok(decode_image(file.data, file.len, 1, &p, &err), &err);
    assert_same_samples(names[i], "grey", &p);
    assert_ok(decode_image(narrow.data, narrow.len, 3, &p, &err), &err);
    assert_false(p.has_16_bits);
  }
}

static void header_only_decode_gives_the_size(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(valid_files); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = read_corpus_file(valid_files[i]);
    clv_encoded_image in = {.data = (const uint8_t *)file.data,
                            .len = file.len,
                            .channels = 3,
                            .max_pixels = 1000,
                            .reads_header_only = true};
    clv_pixels p = {0};
    clv_err err;
    golden_tensor want;
    assert_true(golden_find_tensor(&golden_images, valid_files[i], "rgb", &want));
    assert_ok(clv_image_decode(&in, &p, &err), &err);
    assert_int_equal(p.height, want.shape.dim[0]);
    assert_int_equal(p.width, want.shape.dim[1]);
    assert_null(p.data);
  }
}

static void damaged_image_files_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *name, *says;
  } cases[] = {
      {"truncated.png", "PNG: truncated"},
      {"truncated.jpg", "JPEG: Premature end"},
      {"short_scan.jpg", "JPEG: Corrupt JPEG data: premature end of data segment"},
      {"bomb.png", "60000 x 60000 are 3600000000 pixels, the limit is 1048576"},
      {"bomb.jpg", "60000 x 60000 are 3600000000 pixels, the limit is 1048576"},
      {"bad_chunk.png", "PNG: "},
      {"text.png", "neither PNG (89 50 4e 47) nor JPEG (ff d8 ff): begins with 6e 6f 74 20"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = read_corpus_file(cases[i].name);
    CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
    clv_err err;
    assert_int_equal(decode_image(file.data, file.len, 3, &p, &err), CLV_DATA_LOSS);
    assert_says(&err, cases[i].says);
    assert_true(p.cap < 100000); /* an image whose header claims a huge size costs no memory */
  }
  clv_pixels p = {0};
  clv_err err;
  assert_int_equal(decode_image("", 0, 3, &p, &err), CLV_DATA_LOSS);
  assert_says(&err, "the file is empty (0 bytes)");
}

static void add_png_chunk(clv_bytes *file, const char *kind, const void *data, uint32_t len) {
  CLV_AUTO(clv_bytes_done) clv_bytes body = {0};
  uint32_t size = __builtin_bswap32(len);
  clv_bytes_add(&body, kind, 4);
  clv_bytes_add(&body, data, len);
  uint32_t crc = __builtin_bswap32((uint32_t)crc32(0, (const uint8_t *)body.data, (uInt)body.len));
  clv_bytes_add(file, &size, 4);
  clv_bytes_add(file, body.data, body.len);
  clv_bytes_add(file, &crc, 4);
}

/* A PNG file of less than 1 MB has 100 compressed texts of 7 MB each. The decoder ignores texts, so
 * it must not inflate them. */
static void compressed_png_texts_are_not_inflated(void **state) {
  (void)state;
  enum { IHDR_END = 33, TEXT_BYTES = 7 << 20 };
  CLV_AUTO(clv_bytes_done) clv_bytes plain = read_corpus_file("rgb.png"), text = {0}, file = {0};
  CLV_AUTO(clv_freep) uint8_t *same = malloc(TEXT_BYTES);
  CLV_AUTO(clv_freep) uint8_t *packed = malloc(TEXT_BYTES);
  uLongf n = TEXT_BYTES;
  memset(same, 97, TEXT_BYTES);
  assert_int_equal(compress(packed, &n, same, TEXT_BYTES), Z_OK);
  clv_bytes_add(&text, "note\0", 6);
  clv_bytes_add(&text, packed, n);
  clv_bytes_add(&file, plain.data, IHDR_END);
  for (int i = 0; i < 100; i++) add_png_chunk(&file, "zTXt", text.data, (uint32_t)text.len);
  clv_bytes_add(&file, plain.data + IHDR_END, plain.len - IHDR_END);
  CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
  struct rusage before, after;
  clv_err err;
  getrusage(RUSAGE_SELF, &before);
  assert_ok(decode_image(file.data, file.len, 3, &p, &err), &err);
  getrusage(RUSAGE_SELF, &after);
  assert_same_pixels("rgb.png", "rgb", &p);
  assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10);
}

static void every_truncated_image_is_refused(void **state) {
  (void)state;
  static const char *const names[] = {"rgb.png", "interlaced.png", "rgb.jpg", "progressive.jpg"};
  for (size_t i = 0; i < CLV_COUNT(names); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes file = read_corpus_file(names[i]);
    CLV_AUTO(clv_pixels_done) clv_pixels p = {0};
    for (size_t len = 0; len < file.len; len++) {
      clv_err err;
      clv_code code = decode_image(file.data, len, 3, &p, &err);
      if (code != CLV_DATA_LOSS) fail_msg("%s cut to %zu bytes: %d", names[i], len, (int)code);
    }
  }
}

/* ---- resampling images ----------------------------------------------------------------------- */

static clv_pixels get_golden_pixels(const char *what) {
  golden_tensor t;
  assert_true(golden_find_tensor(&golden_images, "resize", what, &t));
  uint8_t *data = malloc(t.n);
  assert_non_null(data);
  memcpy(data, t.data, t.n);
  return (clv_pixels){.data = data,
                      .cap = t.n,
                      .width = (uint32_t)t.shape.dim[1],
                      .height = (uint32_t)t.shape.dim[0],
                      .channels = t.shape.rank == 3 ? 3 : 1};
}

/* Returns a golden image of 16 bits with so many channels: all of them or one. */
static clv_pixels get_wide_source(uint32_t channels) {
  golden_tensor t;
  assert_true(golden_find_tensor(&golden_16_bit, "resize", "source", &t));
  uint16_t *data = malloc(t.n * sizeof *data);
  assert_non_null(data);
  for (size_t i = 0; i < t.n / 3 * channels; i++)
    data[i] = (uint16_t)((const float *)t.data)[i * 3 / channels];
  return (clv_pixels){.data = (uint8_t *)data,
                      .cap = t.n * sizeof *data,
                      .width = (uint32_t)t.shape.dim[1],
                      .height = (uint32_t)t.shape.dim[0],
                      .channels = channels,
                      .has_16_bits = true};
}

static clv_pixels resize_image(const clv_pixels *src, clv_box box, uint32_t width, uint32_t height,
                               clv_box window) {
  CLV_AUTO(clv_resampler_done) clv_resampler r = {0};
  size_t stride = window.width * clv_pixel_bytes(src);
  clv_pixels p = {.data = malloc(stride * window.height),
                  .width = window.width,
                  .height = window.height,
                  .channels = src->channels,
                  .has_16_bits = src->has_16_bits};
  clv_err err;
  assert_ok(clv_resample_pixels(&r, src, box, width, height, window, p.data, stride, &err), &err);
  return p;
}

static void resized_pixels_match_pillow(void **state) {
  (void)state;
  static const struct {
    const char *what;
    uint32_t width, height;
  } cases[] = {{"20x14", 20, 14},   {"53x14", 53, 14}, {"7x37", 7, 37},
               {"106x80", 106, 80}, {"1x1", 1, 1},     {"52x38", 52, 38}};
  CLV_AUTO(clv_pixels_done) clv_pixels src = get_golden_pixels("source");
  clv_box full_box = {0, 0, src.width, src.height};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_box window = {0, 0, cases[i].width, cases[i].height};
    CLV_AUTO(clv_pixels_done)
    clv_pixels p = resize_image(&src, full_box, cases[i].width, cases[i].height, window);
    assert_same_pixels("resize", cases[i].what, &p);
  }
  CLV_AUTO(clv_pixels_done)
  clv_pixels part = resize_image(&src, (clv_box){11, 5, 29, 25}, 16, 16, (clv_box){0, 0, 16, 16});
  assert_same_pixels("resize", "part", &part);
}

static void resized_grey_pixels_match_pillow(void **state) {
  (void)state;
  CLV_AUTO(clv_pixels_done) clv_pixels src = get_golden_pixels("source");
  for (size_t i = 0; i < (size_t)src.width * src.height; i++) {
    const uint8_t *s = src.data + 3 * i;
    src.data[i] = (uint8_t)((s[0] * 19595u + s[1] * 38470u + s[2] * 7471u + 0x8000u) >> 16);
  }
  src.channels = 1;
  CLV_AUTO(clv_pixels_done)
  clv_pixels part = resize_image(&src, (clv_box){11, 5, 29, 25}, 16, 16, (clv_box){0, 0, 16, 16});
  assert_same_pixels("resize", "part_grey", &part);
}

static void resized_16_bit_pixels_match_reference(void **state) {
  (void)state;
  static const struct {
    const char *what;
    uint32_t width, height;
  } cases[] = {
      {"20x14", 20, 14}, {"53x14", 53, 14}, {"7x37", 7, 37}, {"60x41", 60, 41}, {"1x1", 1, 1}};
  CLV_AUTO(clv_pixels_done) clv_pixels src = get_wide_source(3), grey = get_wide_source(1);
  clv_box full_box = {0, 0, src.width, src.height};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_box window = {0, 0, cases[i].width, cases[i].height};
    CLV_AUTO(clv_pixels_done)
    clv_pixels p = resize_image(&src, full_box, cases[i].width, cases[i].height, window);
    assert_same_samples("resize", cases[i].what, &p);
  }
  CLV_AUTO(clv_pixels_done)
  clv_pixels p = resize_image(&grey, full_box, 16, 16, (clv_box){0, 0, 16, 16});
  assert_same_samples("resize", "grey_16x16", &p);
}

/* resize_image computes a part of the resized image without the rest. The part has the same bits as
 * in the whole image. */
static void resized_window_equals_crop_of_the_full_resize(void **state) {
  (void)state;
  CLV_AUTO(clv_pixels_done) clv_pixels src = get_golden_pixels("source");
  clv_box full_box = {0, 0, src.width, src.height};
  CLV_AUTO(clv_pixels_done)
  clv_pixels whole = resize_image(&src, full_box, 31, 22, (clv_box){0, 0, 31, 22});
  static const clv_box windows[] = {{0, 0, 1, 1}, {30, 21, 1, 1}, {7, 3, 16, 16}, {0, 21, 31, 1}};
  for (size_t i = 0; i < CLV_COUNT(windows); i++) {
    clv_box w = windows[i];
    CLV_AUTO(clv_pixels_done) clv_pixels part = resize_image(&src, full_box, 31, 22, w);
    for (uint32_t y = 0; y < w.height; y++)
      assert_memory_equal(part.data + (size_t)y * w.width * 3,
                          whole.data + ((size_t)(w.y + y) * 31 + w.x) * 3, (size_t)w.width * 3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(decoded_pixels_match_pillow),
      cmocka_unit_test(header_only_decode_gives_the_size),
      cmocka_unit_test(damaged_image_files_are_refused),
      cmocka_unit_test(every_truncated_image_is_refused),
      cmocka_unit_test(compressed_png_texts_are_not_inflated),
      cmocka_unit_test(resized_pixels_match_pillow),
      cmocka_unit_test(resized_grey_pixels_match_pillow),
      cmocka_unit_test(resized_window_equals_crop_of_the_full_resize),
      cmocka_unit_test(sixteen_bit_files_decode_to_16_bits),
      cmocka_unit_test(resized_16_bit_pixels_match_reference),
  };
  return cmocka_run_group_tests(tests, open_goldens, close_goldens);
}
