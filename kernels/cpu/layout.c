/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies tensors between row-major and channel blocks, or between blocks of different sizes, and
 * zeroes the padding channels.
 */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/channels_last_int.h"

static _Atomic uint64_t reorders;

void clv_cpu_count_reorder(void) { atomic_fetch_add_explicit(&reorders, 1, memory_order_relaxed); }

uint64_t clv_cpu_reorder_count(void) { return reorders; }

typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));

/* Transposes a 4x4 tile: rows of src are sp floats apart, rows of dst dp floats. Vectors are 16
 * bytes wide, so that every supported processor has the instructions. */
CPU_INLINE void transpose_tile(const float *src, size_t sp, float *dst, size_t dp) {
  vf4 a = *(const vf4 *)src, b = *(const vf4 *)(src + sp);
  vf4 c = *(const vf4 *)(src + 2 * sp), d = *(const vf4 *)(src + 3 * sp);
  vf4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  vf4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  vf4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  vf4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *(vf4 *)dst = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  *(vf4 *)(dst + dp) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  *(vf4 *)(dst + 2 * dp) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  *(vf4 *)(dst + 3 * dp) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

void clv_cpu_transpose(const float *src, size_t rows, size_t columns, size_t sp, float *dst,
                       size_t dp) {
  for (size_t c = 0; c < columns; c += 4) {
    size_t tiles = c + 4 <= columns ? rows / 4 * 4 : 0;
    for (size_t r = 0; r < tiles; r += 4)
      transpose_tile(src + r * sp + c, sp, dst + c * dp + r, dp);
    for (size_t r = tiles; r < rows; r++)
      for (size_t k = c; k < CLV_MIN(c + 4, columns); k++) dst[k * dp + r] = src[r * sp + k];
  }
}

/* planes_to_lanes copies one block of b channels of one image from row-major to channel-block
 * layout; the block has `used` real channels. lanes_to_planes does the reverse. */
static void planes_to_lanes(const float *src, size_t image, size_t used, size_t b, float *dst) {
  clv_cpu_transpose(src, used, image, image, dst, b);
  for (size_t i = 0; i < image && used < b; i++)
    memset(dst + i * b + used, 0, (b - used) * sizeof *dst);
}

static void lanes_to_planes(const float *src, size_t image, size_t used, size_t b, float *dst) {
  clv_cpu_transpose(src, image, used, b, dst, image);
}

static void copy_between_blocks(const clv_shape *shape, const float *src, size_t sb, float *dst,
                                size_t db) {
  size_t channels = (size_t)shape->dim[1], image = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t src_blocks = (channels + sb - 1) / sb, dst_blocks = (channels + db - 1) / db;
  for (size_t nd = 0; nd < (size_t)shape->dim[0] * dst_blocks; nd++)
    for (size_t i = 0; i < image; i++)
      for (size_t l = 0; l < db; l++) {
        size_t c = nd % dst_blocks * db + l;
        size_t from = ((nd / dst_blocks * src_blocks + c / sb) * image + i) * sb + c % sb;
        dst[(nd * image + i) * db + l] = c < channels ? src[from] : 0;
      }
}

void clv_cpu_reorder(const clv_shape *shape, const float *src, int src_block, float *dst,
                     int dst_block) {
  if (clv_layout_is_channels_last(src_block) != clv_layout_is_channels_last(dst_block)) {
    clv_cpu_count_reorder();
    clv_cpu_reorder_last(shape, src, src_block, dst, dst_block);
    return;
  }
  size_t channels = (size_t)shape->dim[1], image = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t b = (size_t)CLV_MAX(src_block, dst_block), blocks = (channels + b - 1) / b;
  clv_cpu_count_reorder();
  if (src_block == dst_block) {
    memcpy(dst, src, clv_layout_numel(shape, src_block) * sizeof(float));
    return;
  }
  if (src_block != 1 && dst_block != 1) {
    copy_between_blocks(shape, src, (size_t)src_block, dst, (size_t)dst_block);
    return;
  }
  for (size_t p = 0; p < (size_t)shape->dim[0] * blocks; p++) {
    size_t first = p % blocks * b, used = CLV_MIN(b, channels - first);
    size_t plane = (p / blocks * channels + first) * image, lane = p * image * b;
    if (src_block == 1)
      planes_to_lanes(src + plane, image, used, b, dst + lane);
    else
      lanes_to_planes(src + lane, image, used, b, dst + plane);
  }
}

cpu_planes clv_cpu_planes_of(const clv_window *s, int layout) {
  bool channels_last = clv_layout_is_channels_last(layout);
  size_t c = (size_t)s->c, b = (size_t)clv_layout_block(layout);
  size_t width = !channels_last ? b : c % CPU_TILE_CHANNELS ? 1 : CPU_TILE_CHANNELS;
  size_t per_sample = (c + width - 1) / width;
  return (cpu_planes){(size_t)s->n * per_sample, per_sample, width,
                      (int64_t)(channels_last ? c : b), channels_last};
}

void clv_cpu_zero_padding(const clv_shape *shape, int block, float *x) {
  size_t b = (size_t)clv_layout_block(block), channels = (size_t)shape->dim[1];
  if (b == 1 || channels % b == 0) return;
  size_t image = (size_t)(shape->dim[2] * shape->dim[3]), blocks = (channels + b - 1) / b;
  for (size_t n = 0; n < (size_t)shape->dim[0]; n++)
    for (size_t i = 0; i < image; i++)
      for (size_t l = channels % b; l < b; l++)
        x[((n * blocks + blocks - 1) * image + i) * b + l] = 0;
}
