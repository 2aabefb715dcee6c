/* SPDX-License-Identifier: Apache-2.0
 *
 * Channels last, [N, H, W, C]: copies between it and other layouts, in f32 and bf16. The values go
 * through tiles of some positions of 16 channels, in f32.
 */
#include <string.h>

#include "kernels/cpu/math_int.h"
#include "kernels/cpu/channels_last_int.h"

enum { TILE = CPU_TILE_CHANNELS, STRIP = 64 };

/* ---- tiles of one tensor that is channels last ----------------------------------------------- */

/* Copies `used` values of each of `rows` rows of x to the tile, as f32. The loops over a full row
 * of a tile have a constant length, so that each is a few vector instructions. */
CPU_INLINE void gather_body(const void *x, bool bf16, size_t rows, size_t pitch, size_t used,
                            float *restrict tile) {
  const float *f32_values = x;
  const uint16_t *bf16_values = x;
  for (size_t r = 0; r < rows && used == TILE && bf16; r++)
    for (size_t l = 0; l < TILE; l++)
      tile[r * TILE + l] = from_bits((uint32_t)bf16_values[r * pitch + l] << 16);
  for (size_t r = 0; r < rows && used == TILE && !bf16; r++)
    for (size_t l = 0; l < TILE; l++) tile[r * TILE + l] = f32_values[r * pitch + l];
  for (size_t r = 0; r < rows && used < TILE; r++)
    for (size_t l = 0; l < TILE; l++)
      tile[r * TILE + l] = l >= used ? 0
                           : bf16    ? from_bits((uint32_t)bf16_values[r * pitch + l] << 16)
                                     : f32_values[r * pitch + l];
}

CPU_INLINE void scatter_body(const float *restrict tile, size_t rows, size_t pitch, size_t used,
                             float *restrict y) {
  for (size_t r = 0; r < rows && used == TILE; r++)
    for (size_t l = 0; l < TILE; l++) y[r * pitch + l] = tile[r * TILE + l];
  for (size_t r = 0; r < rows && used < TILE; r++)
    for (size_t l = 0; l < used; l++) y[r * pitch + l] = tile[r * TILE + l];
}

CPU_INLINE void scatter_bf16_body(const float *restrict tile, size_t rows, size_t pitch,
                                  size_t used, uint16_t *restrict y) {
  for (size_t r = 0; r < rows && used == TILE; r++)
    for (size_t l = 0; l < TILE; l++) y[r * pitch + l] = round_to_bf16(tile[r * TILE + l]);
  for (size_t r = 0; r < rows && used < TILE; r++)
    for (size_t l = 0; l < used; l++) y[r * pitch + l] = round_to_bf16(tile[r * TILE + l]);
}

CPU_CLONES(gather,
           (const void *x, bool bf16, size_t rows, size_t pitch, size_t used, float *restrict tile),
           (x, bf16, rows, pitch, used, tile))
CPU_CLONES(scatter,
           (const float *restrict tile, size_t rows, size_t pitch, size_t used, float *restrict y),
           (tile, rows, pitch, used, y))
CPU_CLONES(scatter_bf16,
           (const float *restrict tile, size_t rows, size_t pitch, size_t used,
            uint16_t *restrict y),
           (tile, rows, pitch, used, y))

static const void *tile_address(const void *array, const cpu_last_tile *t) {
  return (const char *)array + t->first * (t->bf16 ? sizeof(uint16_t) : sizeof(float));
}

void clv_cpu_gather_tile(const void *array, const cpu_last_tile *t, float *tile) {
  gather(tile_address(array, t), t->bf16, t->rows, t->pitch, t->used, tile);
}

void clv_cpu_scatter_tile(const float *tile, const cpu_last_tile *t, void *array) {
  void *to = (void *)(uintptr_t)tile_address(array, t);
  if (t->bf16)
    scatter_bf16(tile, t->rows, t->pitch, t->used, to);
  else
    scatter(tile, t->rows, t->pitch, t->used, to);
}

void clv_cpu_prefetch_tile(const void *array, const cpu_last_tile *t) {
  enum { LINE = 64 };
  size_t size = t->bf16 ? sizeof(uint16_t) : sizeof(float);
  const char *row = tile_address(array, t);
  for (size_t r = 0; r < t->rows; r++, row += t->pitch * size)
    for (size_t at = 0; at < t->used * size; at += LINE) __builtin_prefetch(row + at, 0, 2);
}

/* ---- reorders of whole tensors --------------------------------------------------------------- */

/* Part of a tensor: `n` positions from position `i` of a sample on, and channels first to first +
 * used - 1, at most TILE of them; first is a multiple of TILE. */
typedef struct image_part {
  const clv_shape *shape;
  size_t sample, i, n, first, used;
} image_part;

/* Distances in an array in row-major layout or in channel blocks: index of the part's value at
 * position 0 of channel `at`, values from a position to the next, and from a channel to the next;
 * `run` channels have these distances. */
typedef struct part_steps {
  size_t start, position, channel, run;
} part_steps;

static part_steps steps_of(const image_part *p, int layout, size_t at) {
  size_t b = (size_t)clv_layout_block(layout), channels = (size_t)p->shape->dim[1];
  size_t image = (size_t)(p->shape->dim[2] * p->shape->dim[3]), blocks = (channels + b - 1) / b;
  size_t c = p->first + at;
  if (b == 1) return (part_steps){(p->sample * channels + c) * image + p->i, 1, image, p->used};
  return (part_steps){((p->sample * blocks + c / b) * image + p->i) * b, b, 1, b};
}

static void read_part(const image_part *p, const void *src, int layout, float *tile) {
  bool bf16 = clv_layout_is_bf16(layout);
  memset(tile, 0, p->n * TILE * sizeof *tile);
  for (size_t at = 0, run; at < p->used; at += run) {
    part_steps s = steps_of(p, layout, at);
    run = s.run;
    for (size_t i = 0; i < p->n; i++)
      for (size_t l = 0; l < CLV_MIN(run, p->used - at); l++) {
        size_t from = s.start + i * s.position + l * s.channel;
        tile[i * TILE + at + l] = bf16 ? from_bits((uint32_t)((const uint16_t *)src)[from] << 16)
                                       : ((const float *)src)[from];
      }
  }
}

/* Copies a tile to dst. The padding of the last channel block becomes 0, because the tile has zeros
 * there. */
static void write_part(const image_part *p, const float *tile, void *dst, int layout) {
  bool bf16 = clv_layout_is_bf16(layout);
  for (size_t at = 0, run; at < p->used; at += run) {
    part_steps s = steps_of(p, layout, at);
    run = s.run;
    for (size_t i = 0; i < p->n; i++)
      for (size_t l = 0; l < run; l++) {
        size_t to = s.start + i * s.position + l * s.channel;
        float value = tile[i * TILE + at + l];
        if (bf16)
          ((uint16_t *)dst)[to] = round_to_bf16(value);
        else
          ((float *)dst)[to] = value;
      }
  }
}

static void reorder_part(const image_part *p, const void *src, int src_layout, void *dst,
                         int dst_layout) {
  float tile[STRIP * TILE];
  size_t channels = (size_t)p->shape->dim[1];
  size_t image = (size_t)(p->shape->dim[2] * p->shape->dim[3]);
  cpu_last_tile t = {.first = (p->sample * image + p->i) * channels + p->first,
                     .rows = p->n,
                     .pitch = channels,
                     .used = p->used};
  if (clv_layout_is_channels_last(src_layout)) {
    t.bf16 = clv_layout_is_bf16(src_layout);
    clv_cpu_gather_tile(src, &t, tile);
    write_part(p, tile, dst, dst_layout);
  } else {
    t.bf16 = clv_layout_is_bf16(dst_layout);
    read_part(p, src, src_layout, tile);
    clv_cpu_scatter_tile(tile, &t, dst);
  }
}

void clv_cpu_reorder_last(const clv_shape *shape, const void *src, int src_layout, void *dst,
                          int dst_layout) {
  size_t channels = (size_t)shape->dim[1], image = (size_t)(shape->dim[2] * shape->dim[3]);
  for (size_t sample = 0; sample < (size_t)shape->dim[0]; sample++)
    for (size_t i = 0; i < image; i += STRIP)
      for (size_t c = 0; c < channels; c += TILE) {
        image_part p = {shape, sample,
                        i,     CLV_MIN(image - i, (size_t)STRIP),
                        c,     CLV_MIN(channels - c, (size_t)TILE)};
        reorder_part(&p, src, src_layout, dst, dst_layout);
      }
}
