/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies tensors between row-major and channel blocks, or between blocks of different sizes, and
 * zeroes the padding channels.
 */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/channels_last_int.h"

static _Atomic uint64_t n_reorders;

void clv_cpu_count_reorder(void) {
  atomic_fetch_add_explicit(&n_reorders, 1, memory_order_relaxed);
}

uint64_t clv_cpu_reorder_count(void) { return n_reorders; }

typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));

/* Transposes a 4x4 tile. Strides: floats from one row to the next. Vectors are 16 bytes wide, so
 * that every supported processor has the instructions. */
CPU_INLINE void transpose_4x4(const float *src, size_t src_stride, float *dst, size_t dst_stride) {
  vf4 a = *(const vf4 *)src, b = *(const vf4 *)(src + src_stride);
  vf4 c = *(const vf4 *)(src + 2 * src_stride), d = *(const vf4 *)(src + 3 * src_stride);
  vf4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  vf4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  vf4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  vf4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *(vf4 *)dst = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  *(vf4 *)(dst + dst_stride) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  *(vf4 *)(dst + 2 * dst_stride) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  *(vf4 *)(dst + 3 * dst_stride) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

void clv_cpu_transpose(const float *src, size_t rows, size_t columns, size_t src_stride, float *dst,
                       size_t dst_stride) {
  for (size_t c = 0; c < columns; c += 4) {
    size_t tiles = c + 4 <= columns ? rows / 4 * 4 : 0;
    for (size_t r = 0; r < tiles; r += 4)
      transpose_4x4(src + r * src_stride + c, src_stride, dst + c * dst_stride + r, dst_stride);
    for (size_t r = tiles; r < rows; r++)
      for (size_t k = c; k < CLV_MIN(c + 4, columns); k++)
        dst[k * dst_stride + r] = src[r * src_stride + k];
  }
}

/* copy_planes_to_lanes copies one block of b channels of one image from row-major to a channel
 * block, of which the first used_channels channels are not padding. copy_lanes_to_planes does the
 * reverse. */
static void copy_planes_to_lanes(const float *src, size_t image_size, size_t used_channels,
                                 size_t b, float *dst) {
  clv_cpu_transpose(src, used_channels, image_size, image_size, dst, b);
  for (size_t i = 0; i < image_size && used_channels < b; i++)
    memset(dst + i * b + used_channels, 0, (b - used_channels) * sizeof *dst);
}

static void copy_lanes_to_planes(const float *src, size_t image_size, size_t used_channels,
                                 size_t b, float *dst) {
  clv_cpu_transpose(src, image_size, used_channels, b, dst, image_size);
}

static void copy_between_blocks(const clv_shape *shape, const float *src, size_t src_block,
                                float *dst, size_t dst_block) {
  size_t channels = (size_t)shape->dim[1], image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t src_blocks = (channels + src_block - 1) / src_block,
         dst_blocks = (channels + dst_block - 1) / dst_block;
  for (size_t dst_plane = 0; dst_plane < (size_t)shape->dim[0] * dst_blocks; dst_plane++)
    for (size_t i = 0; i < image_size; i++)
      for (size_t l = 0; l < dst_block; l++) {
        size_t c = dst_plane % dst_blocks * dst_block + l;
        size_t from =
            ((dst_plane / dst_blocks * src_blocks + c / src_block) * image_size + i) * src_block +
            c % src_block;
        dst[(dst_plane * image_size + i) * dst_block + l] = c < channels ? src[from] : 0;
      }
}

void clv_cpu_reorder(const clv_shape *shape, const float *src, int src_block, float *dst,
                     int dst_block) {
  if (clv_layout_is_channels_last(src_block) != clv_layout_is_channels_last(dst_block)) {
    clv_cpu_count_reorder();
    clv_cpu_reorder_channels_last(shape, src, src_block, dst, dst_block);
    return;
  }
  size_t channels = (size_t)shape->dim[1], image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t b = (size_t)CLV_MAX(src_block, dst_block), n_blocks = (channels + b - 1) / b;
  clv_cpu_count_reorder();
  if (src_block == dst_block) {
    memcpy(dst, src, clv_layout_numel(shape, src_block) * sizeof(float));
    return;
  }
  if (src_block != 1 && dst_block != 1) {
    copy_between_blocks(shape, src, (size_t)src_block, dst, (size_t)dst_block);
    return;
  }
  for (size_t p = 0; p < (size_t)shape->dim[0] * n_blocks; p++) {
    size_t first_channel = p % n_blocks * b, used_channels = CLV_MIN(b, channels - first_channel);
    size_t plane_index = (p / n_blocks * channels + first_channel) * image_size,
           lane_index = p * image_size * b;
    if (src_block == 1)
      copy_planes_to_lanes(src + plane_index, image_size, used_channels, b, dst + lane_index);
    else
      copy_lanes_to_planes(src + lane_index, image_size, used_channels, b, dst + plane_index);
  }
}

cpu_planes clv_cpu_planes_of(const clv_window *s, int layout) {
  bool is_channels_last = clv_layout_is_channels_last(layout);
  size_t c = (size_t)s->c, b = (size_t)clv_layout_block(layout);
  size_t width = !is_channels_last ? b : c % CPU_TILE_CHANNELS ? 1 : CPU_TILE_CHANNELS;
  size_t planes_per_sample = (c + width - 1) / width;
  return (cpu_planes){(size_t)s->n * planes_per_sample, planes_per_sample, width,
                      (int64_t)(is_channels_last ? c : b), is_channels_last};
}

void clv_cpu_zero_padding(const clv_shape *shape, int block, float *x) {
  size_t b = (size_t)clv_layout_block(block), channels = (size_t)shape->dim[1];
  if (b == 1 || channels % b == 0) return;
  size_t image_size = (size_t)(shape->dim[2] * shape->dim[3]), n_blocks = (channels + b - 1) / b;
  for (size_t n = 0; n < (size_t)shape->dim[0]; n++)
    for (size_t i = 0; i < image_size; i++)
      for (size_t l = channels % b; l < b; l++)
        x[((n * n_blocks + n_blocks - 1) * image_size + i) * b + l] = 0;
}
