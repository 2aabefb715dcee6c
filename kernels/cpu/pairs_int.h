/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_int: products of bf16 factors with sums in f32, with AMX or AVX512-BF16. Both factors are
 * packed: rounded to nearest even (denormal numbers to zero), in tiles of 1 KiB whose neighbours
 * along the sum are pairs. A value of the result is one sum over k in ascending order, regardless
 * of the other extents, the caches and the number of threads. The instruction determines how the
 * terms of a tile are added, so AMX and AVX512-BF16 give different bits; clv_cpu_isa_name, which
 * nodes send to each other, tells them apart.
 */
#ifndef CLEAVE_KERNELS_CPU_PAIRS_INT_H
#define CLEAVE_KERNELS_CPU_PAIRS_INT_H

#include "kernels/cpu/cpu_int.h"

/* A factor x [rows][columns] in f32, row-major: the left one is [m][k], the right one [k][n]. */
typedef struct cpu_pairs_factor {
  const float *x;
  size_t rows, columns;
  bool right;
  bool is_transposed;   /* x is stored transposed: [k][m], or [n][k] */
  const uint16_t *bf16; /* values already in bf16, read if x is NULL */
} cpu_pairs_factor;

/* Packs a right factor into `ret`, of clv_cpu_pairs_bytes(n, k) bytes. */
size_t clv_cpu_pairs_bytes(size_t n, size_t k);
void clv_cpu_pairs_pack(int threads, const cpu_pairs_factor *right, uint16_t *ret);

/* c [m][n] = left right, plus bias [n] in each row unless NULL; with `add` c += left right.
 * The left factor is packed during the product, in `room` of
 * clv_cpu_pairs_scratch_bytes(threads, m, k) bytes. */
typedef struct cpu_pairs_product {
  cpu_pairs_factor left;
  size_t m, n, k;
  const uint16_t *right; /* packed */
  uint16_t *room;
  const float *bias; /* NULL: none; not read if add */
  float *c;
  bool add;
  /* NULL, or [m]: receives the sums over k of a transposed left factor, computed as in
   * clv_cpu_column_sums from the unrounded values; added to if `add`. */
  float *sums;
} cpu_pairs_product;
size_t clv_cpu_pairs_scratch_bytes(int threads, size_t m, size_t k);
void clv_cpu_pairs_multiply(int threads, const cpu_pairs_product *p);

/* ---- implementations ------------------------------------------------------------------------- */

/* A tile is 16 rows (of a left factor) or columns by 16 pairs. PAIRS_WIDE: values along the sum. */
enum { PAIRS_SIDE = 16, PAIRS_WIDE = 32, PAIRS_TILE = PAIRS_SIDE * PAIRS_WIDE, PAIRS_BLOCK = 32 };

/* Computes 32 x 32 sums. They start with the values at `from`, whose rows are `from_row` floats
 * apart (0: one row for all), and are stored in c. Each factor is two strips of `tiles` tiles,
 * a_strip and b_strip values apart. */
typedef struct cpu_pairs_block {
  const uint16_t *a, *b;
  size_t a_strip, b_strip, tiles;
  const float *from;
  size_t from_row;
  float *c;
  size_t c_row;
  size_t rows; /* rows that are needed; the others may be computed too */
} cpu_pairs_block;

/* One implementation. A thread calls begin before its first block and end after its last. */
typedef struct cpu_pairs_impl {
  void (*begin)(void), (*end)(void);
  void (*block)(const cpu_pairs_block *b);
  size_t tiles; /* tiles along the sum for which left factors are packed at a time; 0: all */
  size_t cache; /* bytes of left factors packed at a time */
  const char *name;
} cpu_pairs_impl;

const cpu_pairs_impl *clv_cpu_pairs_impl(void);

/* amx.c, avx512_bf16.c */
const cpu_pairs_impl *clv_cpu_pairs_amx(void);
const cpu_pairs_impl *clv_cpu_pairs_avx512(void);

#endif
