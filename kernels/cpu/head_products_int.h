/* SPDX-License-Identifier: Apache-2.0
 *
 * head_products_int: products of a tile of queries with the keys and values of its head. In f32
 * they are those of tiles_int.h; in a session in bf16 those of pairs_int.h, whose factors are
 * rounded to bf16 and whose sums are f32. Either way a value is one sum in ascending order, and
 * terms of 0 do not change its bits.
 */
#ifndef CLEAVE_KERNELS_CPU_HEAD_PRODUCTS_INT_H
#define CLEAVE_KERNELS_CPU_HEAD_PRODUCTS_INT_H

#include "kernels/cpu/cpu_int.h"

/* Extents of the products. Strides are in values: from one row of queries, of keys or of scores to
 * the next. */
typedef struct cpu_head_extents {
  bool uses_pairs; /* factors are rounded to bf16 */
  size_t width, max_rows, max_keys;
  size_t query_stride, key_stride, score_stride;
} cpu_head_extents;

/* Sizes in floats: of a copy of all keys, of a copy of a tile, and of the scratch of a product. */
size_t clv_cpu_head_keys_size(const cpu_head_extents *h);
size_t clv_cpu_head_tile_size(const cpu_head_extents *h);
size_t clv_cpu_head_scratch_size(const cpu_head_extents *h);

/* Copy rows of a head to a form that products read: `length` keys or values as the right factor
 * [width][length] (columns) or [length][width] (rows), and the rows of a tile. */
void clv_cpu_head_copy_columns(const cpu_head_extents *h, const float *x, size_t length,
                               float *ret);
void clv_cpu_head_copy_rows(const cpu_head_extents *h, const float *x, size_t length, float *ret);
void clv_cpu_head_copy_tile(const cpu_head_extents *h, const float *x, size_t rows, float *ret);

/* A product of `rows` queries with the first `keys` of `length` keys. */
typedef struct cpu_head_product {
  const cpu_head_extents *h;
  size_t rows, keys, length;
  float *scratch;
} cpu_head_product;

/* Computes ret [rows][keys] = x times columns. x: the tile in the tensor; x_copy: its copy. */
void clv_cpu_head_multiply_by_columns(const cpu_head_product *p, const float *x,
                                      const float *x_copy, const float *columns, float *ret);
/* Computes ret = scores [rows][keys] times rows; ret has the stride of queries. */
void clv_cpu_head_multiply_by_rows(const cpu_head_product *p, const float *scores,
                                   const float *rows, float *ret);
/* Computes ret [keys][width] = scores^T times the copied tile; with `accumulate` adds the product.
 */
void clv_cpu_head_multiply_over_tile(const cpu_head_product *p, const float *scores,
                                     const float *x_copy, bool accumulate, float *ret);

#endif
