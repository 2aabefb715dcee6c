/* SPDX-License-Identifier: Apache-2.0
 *
 * head_products_int: products of a tile of queries with the keys and values of its head. They are
 * computed by tiles_int.h in f32, or by pairs_int.h, which rounds factors to bf16 and adds in f32.
 * Either way a result is one sum in ascending order, and terms of 0 do not change its bits.
 */
#ifndef CLEAVE_KERNELS_CPU_HEAD_PRODUCTS_INT_H
#define CLEAVE_KERNELS_CPU_HEAD_PRODUCTS_INT_H

#include "kernels/cpu/cpu_int.h"

/* Extents of the products. width: values of a query or key in the head. max_rows: queries of a
 * tile. max_keys: most keys of a sample. Strides: values from one row of queries, of keys or of
 * scores to the next. */
typedef struct cpu_head_extents {
  bool uses_pairs; /* factors are rounded to bf16 */
  size_t width, max_rows, max_keys;
  size_t query_stride, key_stride, score_stride;
} cpu_head_extents;

/* Return sizes in floats: of a copy of all keys of a head, of a copy of a tile, and of the scratch
 * of a product. */
size_t clv_cpu_head_keys_size(const cpu_head_extents *h);
size_t clv_cpu_head_tile_size(const cpu_head_extents *h);
size_t clv_cpu_head_scratch_size(const cpu_head_extents *h);

/* These functions copy rows of a head to the form that the products read. _columns: `length` keys
 * or values as a right factor [width][length]. _rows: the same rows as a right factor
 * [length][width]. _tile: `rows` rows of a tile of queries, or of gradients of outputs. */
void clv_cpu_head_copy_columns(const cpu_head_extents *h, const float *x, size_t length,
                               float *ret);
void clv_cpu_head_copy_rows(const cpu_head_extents *h, const float *x, size_t length, float *ret);
void clv_cpu_head_copy_tile(const cpu_head_extents *h, const float *x, size_t rows, float *ret);

/* A product for the `rows` queries of a tile with the first `keys` of the head's `length` keys.
 * scratch: of clv_cpu_head_scratch_size floats. */
typedef struct cpu_head_product {
  const cpu_head_extents *h;
  size_t rows, keys, length;
  float *scratch;
} cpu_head_product;

/* Computes ret [rows][keys] = x times columns. x: rows of the tile in the tensor, read in bf16.
 * x_copy: copy of these rows, read in f32. */
void clv_cpu_head_multiply_by_columns(const cpu_head_product *p, const float *x,
                                      const float *x_copy, const float *columns, float *ret);
/* Computes ret = scores [rows][keys] times rows; ret has the stride of queries. */
void clv_cpu_head_multiply_by_rows(const cpu_head_product *p, const float *scores,
                                   const float *rows, float *ret);
/* Computes ret [keys][width] = scores^T times x_copy, the copy of the tile; with `accumulate` adds
 * this product to ret. */
void clv_cpu_head_multiply_scores_transposed(const cpu_head_product *p, const float *scores,
                                             const float *x_copy, bool accumulate, float *ret);

#endif
