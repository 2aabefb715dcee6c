/* SPDX-License-Identifier: Apache-2.0
 *
 * Reorders between channel blocks, additions of buffers, and sums of squares.
 */
#include "kernels/ref/ref_int.h"

#include <stdatomic.h>
#include <string.h>

/* Returns the index of position i of channel c of sample n, in the layout of channel block b:
 * [N, channels / b rounded up, image_size, b]. image_size: positions of a channel. */
static size_t value_index(size_t n, size_t c, size_t i, size_t channels, size_t image_size,
                          size_t b) {
  return ((n * ((channels + b - 1) / b) + c / b) * image_size + i) * b + c % b;
}

static bool is_known_block(int b) { return b == 1 || b == 8 || b == 16; }

static _Atomic uint64_t n_reorders;

uint64_t clv_ref_reorder_count(void) { return n_reorders; }

clv_code clv_ref_reorder(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                         const void *src, int src_block, void *dst, int dst_block, clv_err *err) {
  (void)b;
  size_t size = clv_dtype_size(dtype);
  if (shape->rank != 4)
    return clv_fail(err, CLV_INVALID, "reorder needs a tensor of rank 4, got rank %d", shape->rank);
  if (!is_known_block(src_block) || !is_known_block(dst_block))
    return clv_fail(err, CLV_INVALID,
                    "reorder from channel block %d to %d: each must be 1, 8 or 16", src_block,
                    dst_block);
  size_t batch = (size_t)shape->dim[0], channels = (size_t)shape->dim[1];
  size_t image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  memset(dst, 0, clv_layout_numel(shape, dst_block) * size);
  for (size_t p = 0; p < batch * channels; p++)
    for (size_t i = 0; i < image_size; i++) {
      size_t n = p / channels, c = p % channels;
      memcpy(
          (char *)dst + value_index(n, c, i, channels, image_size, (size_t)dst_block) * size,
          (const char *)src + value_index(n, c, i, channels, image_size, (size_t)src_block) * size,
          size);
    }
  n_reorders++;
  return CLV_OK;
}

void clv_ref_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n) {
  (void)b;
  if (dtype == CLV_F64) {
    for (size_t i = 0; i < n; i++) ((double *)dst)[i] += ((const double *)src)[i];
    return;
  }
  for (size_t i = 0; i < n; i++) ((float *)dst)[i] += ((const float *)src)[i];
}

static double sum_of_squares(const float *x, size_t n) {
  double lane[8] = {0};
  for (size_t i = 0; i < n; i++) lane[i % 8] += (double)x[i] * x[i];
  for (int width = 4; width; width /= 2)
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  return lane[0];
}

clv_code clv_ref_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err) {
  (void)b, (void)err;
  for (size_t i = 0; i < n_ranges; i++) ret[i] = sum_of_squares(x + ranges[i].at, ranges[i].n);
  return CLV_OK;
}
