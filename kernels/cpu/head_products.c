/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a head's rows, and products with them. In f32, copies are dense, because a head's rows
 * are a full row of all heads apart and would share a few sets of the caches. In bf16, copies are
 * packed right factors; left factors are packed from the tensor during the product.
 */
#include "kernels/cpu/head_products_int.h"

#include <string.h>

#include "kernels/cpu/pairs_int.h"
#include "kernels/cpu/tiles_int.h"

static size_t get_packed_size(size_t n, size_t k) {
  return clv_cpu_pairs_bytes(n, k) / sizeof(float);
}

size_t clv_cpu_head_keys_size(const cpu_head_extents *h) {
  if (!h->uses_pairs) return h->width * h->score_stride;
  return CLV_MAX(get_packed_size(h->max_keys, h->width), get_packed_size(h->width, h->max_keys));
}

size_t clv_cpu_head_tile_size(const cpu_head_extents *h) {
  return h->uses_pairs ? get_packed_size(h->width, h->max_rows) : h->max_rows * h->width;
}

size_t clv_cpu_head_scratch_size(const cpu_head_extents *h) {
  if (!h->uses_pairs) return 0;
  size_t queries_size = clv_cpu_pairs_scratch_bytes(1, h->max_rows, h->width),
         scores_size = clv_cpu_pairs_scratch_bytes(1, h->max_rows, h->max_keys),
         transposed_scores_size = clv_cpu_pairs_scratch_bytes(1, h->max_keys, h->max_rows);
  size_t max_size = CLV_MAX(queries_size, CLV_MAX(scores_size, transposed_scores_size));
  return clv_align_up(max_size, 64) / sizeof(float);
}

/* ---- copies of a head's rows ----------------------------------------------------------------- */

static void copy_dense(const float *src, size_t stride, size_t rows, size_t width, float *dst) {
  for (size_t i = 0; i < rows; i++) memcpy(dst + i * width, src + i * stride, width * sizeof *dst);
}

static void pack_factor(const float *x, size_t stride, size_t rows, size_t width, bool as_columns,
                        float *ret) {
  cpu_pairs_factor f = {.x = x,
                        .rows = rows,
                        .columns = width,
                        .row_stride = stride,
                        .is_right = true,
                        .is_transposed = as_columns};
  clv_cpu_pairs_pack(1, &f, (uint16_t *)(void *)ret);
}

void clv_cpu_head_copy_columns(const cpu_head_extents *h, const float *x, size_t length,
                               float *ret) {
  if (h->uses_pairs)
    pack_factor(x, h->key_stride, length, h->width, true, ret);
  else
    clv_cpu_transpose(x, length, h->width, h->key_stride, ret, h->score_stride);
}

void clv_cpu_head_copy_rows(const cpu_head_extents *h, const float *x, size_t length, float *ret) {
  if (h->uses_pairs)
    pack_factor(x, h->key_stride, length, h->width, false, ret);
  else
    copy_dense(x, h->key_stride, length, h->width, ret);
}

void clv_cpu_head_copy_tile(const cpu_head_extents *h, const float *x, size_t rows, float *ret) {
  if (h->uses_pairs)
    pack_factor(x, h->query_stride, rows, h->width, false, ret);
  else
    copy_dense(x, h->query_stride, rows, h->width, ret);
}

/* ---- products with the copies ---------------------------------------------------------------- */

/* Fills in the rest of a product of pairs, and computes it. The caller has set the left factor, n,
 * right_k, c, c_row_stride and accumulate. */
static void multiply_pairs(const cpu_head_product *p, cpu_pairs_product product,
                           const float *right) {
  const cpu_pairs_factor *left = &product.left_factor;
  product.m = left->is_transposed ? left->columns : left->rows;
  product.k = left->is_transposed ? left->rows : left->columns;
  product.right_packed = (const uint16_t *)(const void *)right;
  product.scratch = (uint16_t *)(void *)p->scratch;
  clv_cpu_pairs_multiply(1, &product);
}

void clv_cpu_head_multiply_by_columns(const cpu_head_product *p, const float *x,
                                      const float *x_copy, const float *columns, float *ret) {
  const cpu_head_extents *h = p->h;
  if (h->uses_pairs)
    multiply_pairs(p,
                   (cpu_pairs_product){.left_factor = {.x = x,
                                                       .rows = p->rows,
                                                       .columns = h->width,
                                                       .row_stride = h->query_stride},
                                       .n = p->keys,
                                       .c = ret,
                                       .c_row_stride = h->score_stride},
                   columns);
  else
    clv_cpu_tiles_multiply(&(cpu_tile_product){.m = p->rows,
                                               .n = p->keys,
                                               .k = h->width,
                                               .a = x_copy,
                                               .a_row_stride = h->width,
                                               .a_column_stride = 1,
                                               .b = columns,
                                               .b_row_stride = h->score_stride,
                                               .c = ret,
                                               .c_row_stride = h->score_stride});
}

void clv_cpu_head_multiply_by_rows(const cpu_head_product *p, const float *scores,
                                   const float *rows, float *ret) {
  const cpu_head_extents *h = p->h;
  if (h->uses_pairs)
    multiply_pairs(p,
                   (cpu_pairs_product){.left_factor = {.x = scores,
                                                       .rows = p->rows,
                                                       .columns = p->keys,
                                                       .row_stride = h->score_stride},
                                       .n = h->width,
                                       .right_k = p->length,
                                       .c = ret,
                                       .c_row_stride = h->query_stride},
                   rows);
  else
    clv_cpu_tiles_multiply(&(cpu_tile_product){.m = p->rows,
                                               .n = h->width,
                                               .k = p->keys,
                                               .a = scores,
                                               .a_row_stride = h->score_stride,
                                               .a_column_stride = 1,
                                               .b = rows,
                                               .b_row_stride = h->width,
                                               .c = ret,
                                               .c_row_stride = h->query_stride});
}

void clv_cpu_head_multiply_scores_transposed(const cpu_head_product *p, const float *scores,
                                             const float *x_copy, bool accumulate, float *ret) {
  const cpu_head_extents *h = p->h;
  if (h->uses_pairs)
    multiply_pairs(p,
                   (cpu_pairs_product){.left_factor = {.x = scores,
                                                       .rows = p->rows,
                                                       .columns = p->keys,
                                                       .row_stride = h->score_stride,
                                                       .is_transposed = true},
                                       .n = h->width,
                                       .c = ret,
                                       .accumulate = accumulate},
                   x_copy);
  else
    clv_cpu_tiles_multiply(&(cpu_tile_product){.m = p->keys,
                                               .n = h->width,
                                               .k = p->rows,
                                               .a = scores,
                                               .a_row_stride = 1,
                                               .a_column_stride = h->score_stride,
                                               .b = x_copy,
                                               .b_row_stride = h->width,
                                               .c = ret,
                                               .c_row_stride = h->width,
                                               .accumulate = accumulate});
}
