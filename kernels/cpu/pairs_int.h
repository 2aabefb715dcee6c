/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_int: products of bf16 factors with sums in f32, by AMX or by AVX512-BF16. Both factors are
 * packed: rounded to nearest even (numbers below the normal ones to zero), in tiles of 1 KiB
 * with neighbours along the sum as pairs. A value of the result is one sum over k in ascending
 * order, whatever the other extents, the caches and the number of threads are. How the terms of a
 * tile are added is the instruction's: the bits of AMX are not those of AVX512-BF16, and what a
 * node says of its processor (clv_cpu_isa_name) tells them apart.
 */
#ifndef CLEAVE_KERNELS_CPU_PAIRS_INT_H
#define CLEAVE_KERNELS_CPU_PAIRS_INT_H

#include "kernels/cpu/cpu_int.h"

/* A factor of x [rows][columns] f32, row-major: the left one, [m][k], or the right one, [k][n]. */
typedef struct cpu_pairs_factor {
  const float *x;
  size_t rows, columns;
  bool right;
  bool turned;            /* x is [k][m], or [n][k] */
  const uint16_t *narrow; /* in place of x, where that is NULL: bf16 already */
} cpu_pairs_factor;

/* A right factor, packed: clv_cpu_pairs_bytes(n, k). */
size_t clv_cpu_pairs_bytes(size_t n, size_t k);
void clv_cpu_pairs_pack(int threads, const cpu_pairs_factor *right, uint16_t *ret);

/* c [m][n] = left right, plus bias [n] in each row, if any; or c += left right. The left factor is
 * packed by the way, in `room` of clv_cpu_pairs_scratch_bytes(threads, m, k) bytes. */
typedef struct cpu_pairs_product {
  cpu_pairs_factor left;
  size_t m, n, k;
  const uint16_t *right; /* packed */
  uint16_t *room;
  const float *bias; /* NULL: none; with add it is not read */
  float *c;
  bool add;
  /* NULL, or [m]: the sums over k of a left factor that is turned, as clv_cpu_column_sums has them,
   * of values that are not rounded; with add they are added to. */
  float *sums;
} cpu_pairs_product;
size_t clv_cpu_pairs_scratch_bytes(int threads, size_t m, size_t k);
void clv_cpu_pairs_multiply(int threads, const cpu_pairs_product *p);

/* ---- what computes --------------------------------------------------------------------------- */

/* A tile: 16 rows (of a left factor) or columns by 16 pairs. WIDE: values along the sum. */
enum { PAIRS_SIDE = 16, PAIRS_WIDE = 32, PAIRS_TILE = PAIRS_SIDE * PAIRS_WIDE, PAIRS_BLOCK = 32 };

/* 32 x 32 sums, which begin with what stands at `from`, its rows `from_row` floats apart (0: one
 * row for all), and go to c. Each factor is two strips of `tiles` tiles, a_strip and b_strip values
 * apart. */
typedef struct cpu_pairs_block {
  const uint16_t *a, *b;
  size_t a_strip, b_strip, tiles;
  const float *from;
  size_t from_row;
  float *c;
  size_t c_row;
  size_t rows; /* no more of these need be made */
} cpu_pairs_block;

/* begin and end: what a thread does before and behind all of its blocks. */
typedef struct cpu_pairs_impl {
  void (*begin)(void), (*end)(void);
  void (*block)(const cpu_pairs_block *b);
  size_t tiles; /* along the sum, for which left factors are packed at once; 0: all */
  size_t cache; /* bytes of left factors packed at once */
  const char *name;
} cpu_pairs_impl;

const cpu_pairs_impl *clv_cpu_pairs_impl(void);

/* amx.c, avx512_bf16.c */
const cpu_pairs_impl *clv_cpu_pairs_amx(void);
const cpu_pairs_impl *clv_cpu_pairs_avx512(void);

#endif
