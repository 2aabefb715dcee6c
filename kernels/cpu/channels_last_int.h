/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_last_int: copies of activations that are channels last, [N, H, W, C].
 */
#ifndef CLEAVE_KERNELS_CPU_CHANNELS_LAST_INT_H
#define CLEAVE_KERNELS_CPU_CHANNELS_LAST_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_TILE_CHANNELS = 16 };

/* Some channels of `rows` neighbouring positions. first: index of the first value in the array;
 * pitch: values from one position to the next; used: channels, at most CPU_TILE_CHANNELS. */
typedef struct cpu_last_tile {
  size_t first, rows, pitch, used;
  bool bf16; /* type of the array: bf16, else f32 */
} cpu_last_tile;

/* Copies between an array and tile[rows][CPU_TILE_CHANNELS]. A gathered tile has zeros behind the
 * channels used. */
void clv_cpu_gather_tile(const void *array, const cpu_last_tile *t, float *tile);
void clv_cpu_scatter_tile(const float *tile, const cpu_last_tile *t, void *array);

/* Prefetches the tile's values to the second-level cache; here `used` may be larger. */
void clv_cpu_prefetch_tile(const void *array, const cpu_last_tile *t);

/* Copies a tensor of rank 4 between channels last and row-major or channel blocks, each in f32 or
 * bf16. One of the layouts is channels last, not both. */
void clv_cpu_reorder_last(const clv_shape *shape, const void *src, int src_layout, void *dst,
                          int dst_layout);

#endif
