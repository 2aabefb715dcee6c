/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_int: products of bf16 factors with sums in f32, with AMX or AVX512-BF16. Both factors are
 * packed: their values are rounded to nearest even (denormal numbers to zero) and stored in tiles
 * of 1 KiB, in which each two neighbouring terms of a sum are an adjacent pair. A value of the
 * result is one sum over k in ascending order, regardless of m and n, the caches and the number of
 * threads. The instruction determines how the terms of a tile are added, so AMX and AVX512-BF16
 * give different bits, and clv_cpu_isa_name, which nodes send to each other, has different names
 * for them.
 */
#ifndef CLEAVE_KERNELS_CPU_PAIRS_INT_H
#define CLEAVE_KERNELS_CPU_PAIRS_INT_H

#include "kernels/cpu/cpu_int.h"

/* A factor of a product. The left factor is [m][k], the right one [k][n]. */
typedef struct cpu_pairs_factor {
  const float *x;       /* the values in f32; NULL: bf16_x has them */
  size_t rows, columns; /* the values are stored row-major [rows][columns] */
  bool is_right;
  bool is_transposed;     /* the values are stored transposed: [k][m], or [n][k] */
  const uint16_t *bf16_x; /* the values in bf16, read if x is NULL */
  size_t row_stride;      /* values from one stored row to the next; 0: columns */
} cpu_pairs_factor;

/* clv_cpu_pairs_pack packs a right factor into `ret`, a buffer of clv_cpu_pairs_bytes(n, k) bytes.
 */
size_t clv_cpu_pairs_bytes(size_t n, size_t k);
void clv_cpu_pairs_pack(int threads, const cpu_pairs_factor *right, uint16_t *ret);

/* A product c [m][n] = left right, plus `bias` [n] in each row; with `accumulate` c += left right.
 * The left factor is packed during the product, in `scratch`, a buffer of
 * clv_cpu_pairs_scratch_bytes(threads, m, k) bytes. */
typedef struct cpu_pairs_product {
  cpu_pairs_factor left_factor;
  size_t m, n, k;
  const uint16_t *right_packed; /* made by clv_cpu_pairs_pack */
  uint16_t *scratch;
  size_t right_k;    /* number of terms for which the right factor is packed, at least k; 0: k */
  const float *bias; /* NULL: no bias; not read with `accumulate` */
  float *c;
  size_t c_row_stride; /* values from one row of c to the next; 0: n */
  bool accumulate;
  /* [m]: receives the sums over k of a transposed left factor, computed from its unrounded values
   * as in clv_cpu_sum_columns; with `accumulate` the sums are added. NULL: no sums. */
  float *sums;
} cpu_pairs_product;
size_t clv_cpu_pairs_scratch_bytes(int threads, size_t m, size_t k);
void clv_cpu_pairs_multiply(int threads, const cpu_pairs_product *p);

/* ---- implementations for AMX and AVX512-BF16 ------------------------------------------------- */

/* PAIRS_SIDE: rows of a tile of a left factor, or columns of a tile of a right factor. PAIRS_DEPTH:
 * values of a tile along the sum, which are 16 pairs. PAIRS_TILE: values of a tile. PAIRS_BLOCK:
 * rows, and columns, of a block of sums. */
enum { PAIRS_SIDE = 16, PAIRS_DEPTH = 32, PAIRS_TILE = PAIRS_SIDE * PAIRS_DEPTH, PAIRS_BLOCK = 32 };

/* Arguments of one block of 32 x 32 sums. The sums start with the values at initial_sums, whose
 * rows are initial_row_stride floats apart (0: all rows start with the same row), and are stored in
 * c. Each factor is two strips of n_tiles tiles, a_strip_stride and b_strip_stride values apart. */
typedef struct cpu_pairs_block {
  const uint16_t *a, *b;
  size_t a_strip_stride, b_strip_stride, n_tiles;
  const float *initial_sums;
  size_t initial_row_stride;
  float *c;
  size_t c_row_stride;
  size_t rows; /* number of rows that are needed; the others may be computed too */
} cpu_pairs_block;

/* Functions of an instruction set. `block` computes one block of sums. A thread calls `begin`
 * before its first block, and `end` after its last. */
typedef struct cpu_pairs_impl {
  void (*begin)(void), (*end)(void);
  void (*block)(const cpu_pairs_block *b);
  /* number of tiles along the sum for which left factors are packed at a time; 0: all */
  size_t n_tiles_packed;
  size_t cache_bytes; /* largest size of the part of a left factor that is packed at a time */
  const char *name;
} cpu_pairs_impl;

const cpu_pairs_impl *clv_cpu_pairs_impl(void);

/* The implementations in amx.c and avx512_bf16.c. */
const cpu_pairs_impl *clv_cpu_pairs_amx(void);
const cpu_pairs_impl *clv_cpu_pairs_avx512(void);

#endif
