/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_last_int: copies of activations that are channels last, [N, H, W, C].
 */
#ifndef CLEAVE_KERNELS_CPU_CHANNELS_LAST_INT_H
#define CLEAVE_KERNELS_CPU_CHANNELS_LAST_INT_H

#include "kernels/cpu/cpu_int.h"

enum { CPU_TILE_CHANNELS = 16 };

/* Values of n_channels channels, at most CPU_TILE_CHANNELS, at `rows` neighbouring positions.
 * first_index: index of the first value in the array. position_stride: values from one position to
 * the next.
 */
typedef struct cpu_channels_last_tile {
  size_t first_index, rows, position_stride, n_channels;
  bool is_bf16; /* the array is bf16, otherwise f32 */
} cpu_channels_last_tile;

/* Copy between an array and tile[rows][CPU_TILE_CHANNELS]. In each row of a gathered tile, zeros
 * follow the n_channels values. */
void clv_cpu_gather_tile(const void *array, const cpu_channels_last_tile *t, float *tile);
void clv_cpu_scatter_tile(const float *tile, const cpu_channels_last_tile *t, void *array);

/* Prefetches the tile's values to the second-level cache; here n_channels may be larger than
 * CPU_TILE_CHANNELS. */
void clv_cpu_prefetch_tile(const void *array, const cpu_channels_last_tile *t);

/* Copies a tensor of rank 4 between channels last and row-major or channel blocks, each in f32 or
 * bf16. One of the layouts is channels last, not both. */
void clv_cpu_reorder_channels_last(const clv_shape *shape, const void *src, int src_layout,
                                   void *dst, int dst_layout);

#endif
