/* SPDX-License-Identifier: Apache-2.0
 *
 * Bilinear resampling with antialiasing, to the bit of Pillow's (src/libImaging/Resample.c, 9.4):
 * each output is a weighted mean of the inputs under a triangle whose half-width is the reduction
 * (1 when enlarging). Weights are rounded to 22 bits, sums are exact in 32, and the rows between
 * the two passes are rounded to bytes. Samples of 16 bits have weights and sums in double, as
 * Pillow's I;16 has since 10.4, and are rounded to 16 bits. Only the part of the result that the
 * caller wants is computed (output_box).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/image_int.h"

enum { PRECISION_BITS = 32 - 8 - 2, ROUNDING_HALF = 1 << (PRECISION_BITS - 1) };

/* Weights of one axis, with n outputs, each of at most `n_taps` inputs. Output i is the sum of
 * inputs first[i] to first[i] + count[i] - 1, with the weights from k[i * n_taps] on (samples of 8
 * bits) or from u16_weights[i * n_taps] on (samples of 16 bits). The array that is not used is
 * NULL. */
typedef struct resample_axis {
  size_t n, n_taps;
  uint32_t *first, *count;
  int32_t *k;
  double *u16_weights;
} resample_axis;

void clv_resampler_done(clv_resampler *r) {
  if (!r) return;
  for (size_t i = 0; i < CLV_COUNT(r->memory); i++) free(r->memory[i]);
  *r = (clv_resampler){0};
}

static size_t count_taps(uint32_t in, uint32_t out) {
  double reduction = (double)in / out;
  return (size_t)ceil(CLV_MAX(reduction, 1.0)) * 2 + 1;
}

static double compute_triangle(double x) {
  x = fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

/* Fills the weights of output i in double, as Pillow's precompute_coeffs does. center: position of
 * the output in the input. */
static void compute_output_weights(resample_axis *a, size_t i, uint32_t in, double scale,
                                   double center) {
  double width = CLV_MAX(scale, 1.0), sum = 0;
  int64_t low = (int64_t)(center - width + 0.5), high = (int64_t)(center + width + 0.5);
  low = CLV_MAX(low, 0);
  high = CLV_MIN(high, (int64_t)in);
  size_t at = i * a->n_taps;
  double inverse_width = 1.0 / width;
  a->first[i] = (uint32_t)low;
  a->count[i] = (uint32_t)(high - low);
  for (int64_t x = low; x < high; x++)
    sum += compute_triangle(((double)x - center + 0.5) * inverse_width);
  double by = sum != 0 ? sum : 1;
  for (int64_t x = low; x < high; x++, at++) {
    double w = compute_triangle(((double)x - center + 0.5) * inverse_width) / by;
    if (a->u16_weights)
      a->u16_weights[at] = w;
    else
      a->k[at] = (int32_t)(0.5 + w * (1 << PRECISION_BITS));
  }
}

/* Fills the weights of a->n outputs, from output `from` on. The axis has `in` inputs and `out`
 * outputs. */
static void compute_axis_weights(resample_axis *a, uint32_t in, uint32_t out, uint32_t from) {
  double scale = (double)in / out;
  for (size_t i = 0; i < a->n; i++)
    compute_output_weights(a, i, in, scale, ((double)(from + i) + 0.5) * scale);
}

static size_t axis_bytes(size_t n, size_t n_taps, bool has_16_bits) {
  return n * (2 * sizeof(uint32_t) + n_taps * (has_16_bits ? sizeof(double) : sizeof(int32_t)));
}

/* Divides the memory at `at` among the arrays of an axis; weights come first, because they need the
 * largest alignment. Returns the end of the arrays. */
static uint8_t *assign_axis_memory(resample_axis *a, uint8_t *at, bool has_16_bits) {
  uint8_t *weights = at;
  at += a->n * a->n_taps * (has_16_bits ? sizeof(double) : sizeof(int32_t));
  if (has_16_bits)
    a->u16_weights = (double *)(void *)weights;
  else
    a->k = (int32_t *)(void *)weights;
  a->first = (uint32_t *)(void *)at;
  a->count = a->first + a->n;
  return (uint8_t *)(a->count + a->n);
}

static uint8_t clip_to_u8(int32_t sum) {
  sum >>= PRECISION_BITS;
  return (uint8_t)(sum < 0 ? 0 : CLV_MIN(sum, 255));
}

static void resample_row_grey(const resample_axis *a, const uint8_t *src, uint8_t *dst) {
  for (size_t i = 0; i < a->n; i++) {
    const int32_t *k = a->k + i * a->n_taps;
    const uint8_t *s = src + a->first[i];
    int32_t sum = ROUNDING_HALF;
    for (uint32_t t = 0; t < a->count[i]; t++) sum += s[t] * k[t];
    dst[i] = clip_to_u8(sum);
  }
}

static void resample_row_rgb(const resample_axis *a, const uint8_t *src, uint8_t *dst) {
  for (size_t i = 0; i < a->n; i++) {
    const int32_t *k = a->k + i * a->n_taps;
    const uint8_t *s = src + 3 * (size_t)a->first[i];
    int32_t red = ROUNDING_HALF, green = ROUNDING_HALF, blue = ROUNDING_HALF;
    for (uint32_t t = 0; t < a->count[i]; t++, s += 3) {
      red += s[0] * k[t];
      green += s[1] * k[t];
      blue += s[2] * k[t];
    }
    *dst++ = clip_to_u8(red);
    *dst++ = clip_to_u8(green);
    *dst++ = clip_to_u8(blue);
  }
}

/* Computes one output row from `count` rows of n bytes. It adds row after row, so that the compiler
 * can vectorise the sums. */
static void sum_rows_u8(const uint8_t *rows, const int32_t *k, size_t count, size_t n, int32_t *sum,
                        uint8_t *dst) {
  for (size_t i = 0; i < n; i++) sum[i] = ROUNDING_HALF;
  for (size_t t = 0; t < count; t++, rows += n)
    for (size_t i = 0; i < n; i++) sum[i] += rows[i] * k[t];
  for (size_t i = 0; i < n; i++) dst[i] = clip_to_u8(sum[i]);
}

/* ---- samples of 16 bits ---------------------------------------------------------------------- */

static uint16_t clip_to_u16(double sum) {
  return (uint16_t)CLV_MIN(CLV_MAX(sum + 0.5, 0.0), 65535.0);
}

static void resample_row_u16(const resample_axis *a, const uint16_t *src, size_t channels,
                             uint16_t *dst) {
  for (size_t i = 0; i < a->n; i++)
    for (size_t c = 0; c < channels; c++) {
      const double *w = a->u16_weights + i * a->n_taps;
      const uint16_t *s = src + channels * a->first[i] + c;
      double sum = 0;
      for (uint32_t t = 0; t < a->count[i]; t++) sum += s[t * channels] * w[t];
      *dst++ = clip_to_u16(sum);
    }
}

static void sum_rows_u16(const uint16_t *rows, const double *w, size_t count, size_t n, double *sum,
                         uint16_t *dst) {
  for (size_t i = 0; i < n; i++) sum[i] = 0;
  for (size_t t = 0; t < count; t++, rows += n)
    for (size_t i = 0; i < n; i++) sum[i] += rows[i] * w[t];
  for (size_t i = 0; i < n; i++) dst[i] = clip_to_u16(sum[i]);
}

/* ---- horizontal and vertical pass ------------------------------------------------------------ */

static const uint8_t *get_pixel_at(const clv_pixels *p, uint32_t x, uint32_t y) {
  return p->data + ((size_t)y * p->width + x) * clv_pixel_bytes(p);
}

static void copy_rows(const clv_pixels *src, clv_box box, clv_box output_box, uint8_t *dst,
                      size_t stride) {
  for (uint32_t y = 0; y < output_box.height; y++)
    memcpy(dst + y * stride, get_pixel_at(src, box.x + output_box.x, box.y + output_box.y + y),
           output_box.width * clv_pixel_bytes(src));
}

/* Resamples one row of `src` with the weights of `x_axis`. */
static void resample_row(const resample_axis *x_axis, const clv_pixels *src, const uint8_t *from,
                         uint8_t *to) {
  if (src->has_16_bits)
    resample_row_u16(x_axis, (const uint16_t *)(const void *)from, src->channels,
                     (uint16_t *)(void *)to);
  else
    (src->channels == 1 ? resample_row_grey : resample_row_rgb)(x_axis, from, to);
}

/* Computes output row y from `rows` of n samples each, with the weights of `y_axis`. sum:
 * scratch, [n] i32 or double. */
static void resample_vertically(const resample_axis *y_axis, size_t y, const uint8_t *rows,
                                size_t n, void *sum, uint8_t *to) {
  size_t first_weight = y * y_axis->n_taps;
  if (y_axis->u16_weights)
    sum_rows_u16((const uint16_t *)(const void *)rows, y_axis->u16_weights + first_weight,
                 y_axis->count[y], n, sum, (uint16_t *)(void *)to);
  else
    sum_rows_u8(rows, y_axis->k + first_weight, y_axis->count[y], n, sum, to);
}

clv_code clv_resample_pixels(clv_resampler *r, const clv_pixels *src, clv_box box, uint32_t width,
                             uint32_t height, clv_box output_box, uint8_t *dst, size_t stride,
                             clv_err *err) {
  if (box.width == width && box.height == height) {
    copy_rows(src, box, output_box, dst, stride);
    return CLV_OK;
  }
  bool has_16_bits = src->has_16_bits;
  resample_axis x_axis = {.n = output_box.width, .n_taps = count_taps(box.width, width)};
  resample_axis y_axis = {.n = output_box.height, .n_taps = count_taps(box.height, height)};
  CLV_TRY(clv_reserve_bytes(&r->memory[0], &r->cap[0],
                            axis_bytes(x_axis.n, x_axis.n_taps, has_16_bits) +
                                axis_bytes(y_axis.n, y_axis.n_taps, has_16_bits),
                            err));
  assign_axis_memory(&y_axis, assign_axis_memory(&x_axis, r->memory[0], has_16_bits), has_16_bits);
  compute_axis_weights(&x_axis, box.width, width, output_box.x);
  compute_axis_weights(&y_axis, box.height, height, output_box.y);
  size_t n_samples = (size_t)output_box.width * src->channels, row_bytes = n_samples << has_16_bits,
         last_row = y_axis.n - 1;
  uint32_t first_row = y_axis.first[0], end_row = y_axis.first[last_row] + y_axis.count[last_row];
  CLV_TRY(clv_reserve_bytes(&r->memory[1], &r->cap[1], row_bytes * (end_row - first_row), err));
  CLV_TRY(clv_reserve_bytes(&r->memory[2], &r->cap[2], n_samples * sizeof(double), err));
  for (uint32_t y = first_row; y < end_row; y++)
    resample_row(&x_axis, src, get_pixel_at(src, box.x, box.y + y),
                 r->memory[1] + row_bytes * (y - first_row));
  for (size_t y = 0; y < y_axis.n; y++)
    resample_vertically(&y_axis, y, r->memory[1] + row_bytes * (y_axis.first[y] - first_row),
                        n_samples, r->memory[2], dst + y * stride);
  return CLV_OK;
}
