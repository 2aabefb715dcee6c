/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight gradients in bf16 with channels last, as our own products: dW = dy^T X, where dy is a
 * matrix of positions by channels, and X a matrix of positions by taps and channels. For a 1x1
 * convolution without stride and padding X is x itself. oneDNN 2.6 computes such gradients one row
 * of an image at a time, which takes up to eight times as long if rows are short, and three times
 * as long with a stride.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/pairs_int.h"

static size_t count_positions(const clv_window *s) { return (size_t)(s->n * s->oh * s->ow); }

static size_t count_taps(const clv_window *s) { return (size_t)(s->kernel[0] * s->kernel[1]); }

static bool has_stride(const clv_window *s) { return s->stride[0] != 1 || s->stride[1] != 1; }

/* True if x itself is the right factor X of the product dy^T X, so that no copy of x is needed. */
static bool can_use_x_as_factor(const clv_window *s) {
  return count_taps(s) == 1 && !has_stride(s) && s->pad[0] == 0 && s->pad[1] == 0;
}

bool clv_cpu_can_use_product_conv(const clv_window *s, int64_t groups) {
  bool has_rows_of_pairs = s->c % PAIRS_SIDE == 0 && s->dilation[0] == 1 && s->dilation[1] == 1;
  return groups == 1 && (count_taps(s) == 1 || has_rows_of_pairs);
}

/* Offsets in scratch, in bytes, of: the packed right factor; the rows of the right factor, unless x
 * has them; dW in the order [K][taps][C], unless there is one tap; and the bias gradient.
 * scratch_bytes: size of scratch. The packed left factor has offset 0. */
typedef struct scratch_layout {
  size_t right_factor_offset, factor_rows_offset, sums_offset, bias_sums_offset, scratch_bytes;
} scratch_layout;

static scratch_layout lay_out_scratch(const clv_window *s, int threads) {
  size_t n = count_positions(s), n_columns = count_taps(s) * (size_t)s->c, k = (size_t)s->k;
  scratch_layout o = {.right_factor_offset = clv_cpu_pairs_scratch_bytes(threads, k, n)};
  o.factor_rows_offset = o.right_factor_offset + clv_cpu_pairs_bytes(n_columns, n);
  o.sums_offset = o.factor_rows_offset +
                  (can_use_x_as_factor(s) ? 0 : clv_align_up(n * n_columns * sizeof(uint16_t), 64));
  o.bias_sums_offset =
      o.sums_offset + (count_taps(s) == 1 ? 0 : clv_align_up(k * n_columns * sizeof(float), 64));
  o.scratch_bytes = o.bias_sums_offset + clv_align_up(k * sizeof(float), 64);
  return o;
}

size_t clv_cpu_product_conv_scratch_bytes(const clv_window *s, int threads) {
  return lay_out_scratch(s, threads).scratch_bytes;
}

/* ---- rows of the right factor ---------------------------------------------------------------- */

typedef struct rows_job {
  const clv_window *s;
  const uint16_t *x;
  uint16_t *factor_rows;
} rows_job;

/* Copies the values that one row of taps reads for one output of a sample; 0 outside the image.
 * row, column: place in the image of the first tap. */
static void copy_tap_row(const rows_job *j, int64_t sample, int64_t row, int64_t column,
                         uint16_t *ret) {
  const clv_window *s = j->s;
  int64_t first_tap = CLV_MAX(-column, (int64_t)0), end_tap = CLV_MIN(s->kernel[1], s->w - column);
  size_t c = (size_t)s->c, tap_bytes = c * sizeof *ret, taps = (size_t)s->kernel[1];
  if (row < 0 || row >= s->h || first_tap >= end_tap) {
    memset(ret, 0, taps * tap_bytes);
    return;
  }
  const uint16_t *src = j->x + (size_t)((sample * s->h + row) * s->w + column + first_tap) * c;
  memset(ret, 0, (size_t)first_tap * tap_bytes);
  memcpy(ret + (size_t)first_tap * c, src, (size_t)(end_tap - first_tap) * tap_bytes);
  memset(ret + (size_t)end_tap * c, 0, (taps - (size_t)end_tap) * tap_bytes);
}

/* Writes rows of the right factor for the rows [begin, end) of outputs, counted over all samples.
 */
static void copy_image_rows(void *arg, size_t begin, size_t end) {
  const rows_job *j = arg;
  const clv_window *s = j->s;
  size_t tap_row_size = (size_t)(s->kernel[1] * s->c);
  uint16_t *dst = j->factor_rows + begin * (size_t)(s->ow * s->kernel[0]) * tap_row_size;
  for (size_t image_row = begin; image_row < end; image_row++)
    for (int64_t o = 0; o < s->ow; o++)
      for (int64_t u = 0; u < s->kernel[0]; u++, dst += tap_row_size)
        copy_tap_row(j, (int64_t)image_row / s->oh,
                     (int64_t)image_row % s->oh * s->stride[0] - s->pad[0] + u,
                     o * s->stride[1] - s->pad[1], dst);
}

/* ---- product of dy and the right factor ------------------------------------------------------ */

static void store_sum(float *dst, float sum, bool accumulate) {
  *dst = accumulate ? *dst + sum : sum;
}

/* Copies or adds sums[K][taps][C] to dw[K][C][taps]. */
static void store_sums(const cpu_weight_grad_job *job, const float *sums) {
  size_t taps = count_taps(&job->s), c = (size_t)job->s.c;
  for (size_t k = 0; k < (size_t)job->s.k; k++, sums += taps * c)
    for (size_t i = 0; i < c; i++)
      for (size_t t = 0; t < taps; t++)
        store_sum(job->dw + (k * c + i) * taps + t, sums[t * c + i], job->accumulate);
}

void clv_cpu_product_conv_compute_dw(const cpu_weight_grad_job *job) {
  const clv_window *s = &job->s;
  scratch_layout o = lay_out_scratch(s, job->threads);
  char *scratch = (char *)job->scratch;
  uint16_t *right_factor = (void *)(scratch + o.right_factor_offset),
           *rows = (void *)(scratch + o.factor_rows_offset);
  float *bias_sums = (void *)(scratch + o.bias_sums_offset);
  bool is_pointwise = count_taps(s) == 1;
  size_t n = count_positions(s), n_columns = count_taps(s) * (size_t)s->c;
  rows_job copy_job = {s, (const void *)job->x, rows};
  if (!can_use_x_as_factor(s))
    clv_cpu_parallel(clv_cpu_useful_threads(job->threads, n * n_columns), (size_t)(s->n * s->oh),
                     copy_image_rows, &copy_job);
  const cpu_pairs_factor x = {.bf16_x = can_use_x_as_factor(s) ? copy_job.x : rows,
                              .rows = n,
                              .columns = n_columns,
                              .is_right = true};
  const cpu_pairs_factor dy = {
      .bf16_x = (const void *)job->dy, .rows = n, .columns = (size_t)s->k, .is_transposed = true};
  cpu_pairs_product p = {.left_factor = dy,
                         .m = (size_t)s->k,
                         .n = n_columns,
                         .k = n,
                         .right_packed = right_factor,
                         .scratch = (void *)scratch,
                         .c = is_pointwise ? job->dw : (void *)(scratch + o.sums_offset),
                         .accumulate = is_pointwise && job->accumulate,
                         .sums = job->db ? bias_sums : NULL};
  if (p.accumulate) memset(bias_sums, 0, (size_t)s->k * sizeof *bias_sums);
  clv_cpu_pairs_pack(job->threads, &x, right_factor);
  clv_cpu_pairs_multiply(job->threads, &p);
  if (!is_pointwise) store_sums(job, p.c);
  for (size_t k = 0; job->db && k < (size_t)s->k; k++)
    store_sum(job->db + k, bias_sums[k], job->accumulate);
}
