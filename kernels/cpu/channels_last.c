/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between channels last, [N, H, W, C], and other layouts, in f32 and bf16. The values go
 * through f32 tiles of up to 64 positions and 16 channels.
 */
#include <string.h>

#include "kernels/cpu/math_int.h"
#include "kernels/cpu/channels_last_int.h"

/* channels and positions of a part */
enum { TILE_CHANNELS = CPU_TILE_CHANNELS, PART_POSITIONS = 64 };

/* ---- tiles of one tensor that is channels last ----------------------------------------------- */

/* Copies n_channels values of each of `rows` rows of x to the tile, as f32. The loops over a full
 * row of a tile have a constant length, so that each is a few vector instructions. */
CPU_INLINE void gather_tile_body(const void *x, bool is_bf16, size_t rows, size_t position_stride,
                                 size_t n_channels, float *restrict tile) {
  const float *f32_values = x;
  const uint16_t *bf16_values = x;
  for (size_t r = 0; r < rows && n_channels == TILE_CHANNELS && is_bf16; r++)
    for (size_t l = 0; l < TILE_CHANNELS; l++)
      tile[r * TILE_CHANNELS + l] =
          float_from_bits((uint32_t)bf16_values[r * position_stride + l] << 16);
  for (size_t r = 0; r < rows && n_channels == TILE_CHANNELS && !is_bf16; r++)
    for (size_t l = 0; l < TILE_CHANNELS; l++)
      tile[r * TILE_CHANNELS + l] = f32_values[r * position_stride + l];
  for (size_t r = 0; r < rows && n_channels < TILE_CHANNELS; r++)
    for (size_t l = 0; l < TILE_CHANNELS; l++)
      tile[r * TILE_CHANNELS + l] =
          l >= n_channels ? 0
          : is_bf16       ? float_from_bits((uint32_t)bf16_values[r * position_stride + l] << 16)
                          : f32_values[r * position_stride + l];
}

CPU_INLINE void scatter_tile_body(const float *restrict tile, size_t rows, size_t position_stride,
                                  size_t n_channels, float *restrict y) {
  for (size_t r = 0; r < rows && n_channels == TILE_CHANNELS; r++)
    for (size_t l = 0; l < TILE_CHANNELS; l++)
      y[r * position_stride + l] = tile[r * TILE_CHANNELS + l];
  for (size_t r = 0; r < rows && n_channels < TILE_CHANNELS; r++)
    for (size_t l = 0; l < n_channels; l++)
      y[r * position_stride + l] = tile[r * TILE_CHANNELS + l];
}

CPU_INLINE void scatter_tile_to_bf16_body(const float *restrict tile, size_t rows,
                                          size_t position_stride, size_t n_channels,
                                          uint16_t *restrict y) {
  for (size_t r = 0; r < rows && n_channels == TILE_CHANNELS; r++)
    for (size_t l = 0; l < TILE_CHANNELS; l++)
      y[r * position_stride + l] = round_to_bf16(tile[r * TILE_CHANNELS + l]);
  for (size_t r = 0; r < rows && n_channels < TILE_CHANNELS; r++)
    for (size_t l = 0; l < n_channels; l++)
      y[r * position_stride + l] = round_to_bf16(tile[r * TILE_CHANNELS + l]);
}

CPU_CLONES(gather_tile,
           (const void *x, bool is_bf16, size_t rows, size_t position_stride, size_t n_channels,
            float *restrict tile),
           (x, is_bf16, rows, position_stride, n_channels, tile))
CPU_CLONES(scatter_tile,
           (const float *restrict tile, size_t rows, size_t position_stride, size_t n_channels,
            float *restrict y),
           (tile, rows, position_stride, n_channels, y))
CPU_CLONES(scatter_tile_to_bf16,
           (const float *restrict tile, size_t rows, size_t position_stride, size_t n_channels,
            uint16_t *restrict y),
           (tile, rows, position_stride, n_channels, y))

static const void *tile_address(const void *array, const cpu_channels_last_tile *t) {
  return (const char *)array + t->first_index * (t->is_bf16 ? sizeof(uint16_t) : sizeof(float));
}

void clv_cpu_gather_tile(const void *array, const cpu_channels_last_tile *t, float *tile) {
  gather_tile(tile_address(array, t), t->is_bf16, t->rows, t->position_stride, t->n_channels, tile);
}

void clv_cpu_scatter_tile(const float *tile, const cpu_channels_last_tile *t, void *array) {
  void *to = (void *)(uintptr_t)tile_address(array, t);
  if (t->is_bf16)
    scatter_tile_to_bf16(tile, t->rows, t->position_stride, t->n_channels, to);
  else
    scatter_tile(tile, t->rows, t->position_stride, t->n_channels, to);
}

void clv_cpu_prefetch_tile(const void *array, const cpu_channels_last_tile *t) {
  enum { CACHE_LINE_BYTES = 64 };
  size_t size = t->is_bf16 ? sizeof(uint16_t) : sizeof(float);
  const char *row = tile_address(array, t);
  for (size_t r = 0; r < t->rows; r++, row += t->position_stride * size)
    for (size_t offset = 0; offset < t->n_channels * size; offset += CACHE_LINE_BYTES)
      __builtin_prefetch(row + offset, 0, 2);
}

/* ---- reorders of whole tensors --------------------------------------------------------------- */

/* Part of a tensor: n_positions positions of a sample from first_position on, and n_channels
 * channels from first_channel on. first_channel is a multiple of TILE_CHANNELS, and n_channels at
 * most TILE_CHANNELS.
 */
typedef struct image_part {
  const clv_shape *shape;
  size_t sample, first_position, n_positions, first_channel, n_channels;
} image_part;

/* Indices of a part's values in an array in row-major layout or in channel blocks. start_index:
 * index of the value at the part's first position in one of its channels. position_stride_in_part,
 * channel_stride: values from a position, and from a channel, to the next. n_channels: number of
 * channels, counted from that channel, that are channel_stride values apart. */
typedef struct part_strides {
  size_t start_index, position_stride_in_part, channel_stride, n_channels;
} part_strides;

/* Returns the indices for channel number `channel` of the part. */
static part_strides compute_part_strides(const image_part *p, int layout, size_t channel) {
  size_t b = (size_t)clv_layout_block(layout), channels = (size_t)p->shape->dim[1];
  size_t image_size = (size_t)(p->shape->dim[2] * p->shape->dim[3]),
         n_blocks = (channels + b - 1) / b;
  size_t c = p->first_channel + channel;
  if (b == 1)
    return (part_strides){(p->sample * channels + c) * image_size + p->first_position, 1,
                          image_size, p->n_channels};
  return (part_strides){((p->sample * n_blocks + c / b) * image_size + p->first_position) * b, b, 1,
                        b};
}

static void read_part(const image_part *p, const void *src, int layout, float *tile) {
  bool is_bf16 = clv_layout_is_bf16(layout);
  memset(tile, 0, p->n_positions * TILE_CHANNELS * sizeof *tile);
  for (size_t channel = 0, n_adjacent; channel < p->n_channels; channel += n_adjacent) {
    part_strides s = compute_part_strides(p, layout, channel);
    n_adjacent = s.n_channels;
    for (size_t i = 0; i < p->n_positions; i++)
      for (size_t l = 0; l < CLV_MIN(n_adjacent, p->n_channels - channel); l++) {
        size_t from = s.start_index + i * s.position_stride_in_part + l * s.channel_stride;
        tile[i * TILE_CHANNELS + channel + l] =
            is_bf16 ? float_from_bits((uint32_t)((const uint16_t *)src)[from] << 16)
                    : ((const float *)src)[from];
      }
  }
}

/* Copies a tile to dst. The padding of the last channel block becomes 0, because the tile has zeros
 * there. */
static void write_part(const image_part *p, const float *tile, void *dst, int layout) {
  bool is_bf16 = clv_layout_is_bf16(layout);
  for (size_t channel = 0, n_adjacent; channel < p->n_channels; channel += n_adjacent) {
    part_strides s = compute_part_strides(p, layout, channel);
    n_adjacent = s.n_channels;
    for (size_t i = 0; i < p->n_positions; i++)
      for (size_t l = 0; l < n_adjacent; l++) {
        size_t to = s.start_index + i * s.position_stride_in_part + l * s.channel_stride;
        float value = tile[i * TILE_CHANNELS + channel + l];
        if (is_bf16)
          ((uint16_t *)dst)[to] = round_to_bf16(value);
        else
          ((float *)dst)[to] = value;
      }
  }
}

static void reorder_part(const image_part *p, const void *src, int src_layout, void *dst,
                         int dst_layout) {
  float tile[PART_POSITIONS * TILE_CHANNELS];
  size_t channels = (size_t)p->shape->dim[1];
  size_t image_size = (size_t)(p->shape->dim[2] * p->shape->dim[3]);
  cpu_channels_last_tile t = {
      .first_index = (p->sample * image_size + p->first_position) * channels + p->first_channel,
      .rows = p->n_positions,
      .position_stride = channels,
      .n_channels = p->n_channels};
  if (clv_layout_is_channels_last(src_layout)) {
    t.is_bf16 = clv_layout_is_bf16(src_layout);
    clv_cpu_gather_tile(src, &t, tile);
    write_part(p, tile, dst, dst_layout);
  } else {
    t.is_bf16 = clv_layout_is_bf16(dst_layout);
    read_part(p, src, src_layout, tile);
    clv_cpu_scatter_tile(tile, &t, dst);
  }
}

void clv_cpu_reorder_channels_last(const clv_shape *shape, const void *src, int src_layout,
                                   void *dst, int dst_layout) {
  size_t channels = (size_t)shape->dim[1], image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  for (size_t sample = 0; sample < (size_t)shape->dim[0]; sample++)
    for (size_t i = 0; i < image_size; i += PART_POSITIONS)
      for (size_t c = 0; c < channels; c += TILE_CHANNELS) {
        image_part p = {shape, sample,
                        i,     CLV_MIN(image_size - i, (size_t)PART_POSITIONS),
                        c,     CLV_MIN(channels - c, (size_t)TILE_CHANNELS)};
        reorder_part(&p, src, src_layout, dst, dst_layout);
      }
}
