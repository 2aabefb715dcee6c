/* SPDX-License-Identifier: Apache-2.0
 *
 * amx_int: products of bf16 factors with sums in f32, on processors with AMX. Both factors are
 * packed: rounded to nearest even (numbers below the normal ones to zero), in tiles of 1 KiB
 * as the processor loads them. A value of the result is a sum over k in ascending order, pairs of
 * neighbours first, whatever the other extents and the number of threads are.
 */
#ifndef CLEAVE_KERNELS_CPU_AMX_INT_H
#define CLEAVE_KERNELS_CPU_AMX_INT_H

#include "kernels/cpu/cpu_int.h"

/* Whether the processor has it, the system lets this process use it, and DNNL_MAX_CPU_ISA does. */
bool clv_cpu_amx_ready(void);

/* A factor of x [rows][columns] f32, row-major: the left one, [m][k], or the right one, [k][n]. */
typedef struct cpu_amx_factor {
  const float *x;
  size_t rows, columns;
  bool right;
  bool turned; /* x is [k][m], or [n][k] */
} cpu_amx_factor;

/* A right factor, packed: clv_cpu_amx_bytes(n, k). */
size_t clv_cpu_amx_bytes(size_t n, size_t k);
void clv_cpu_amx_pack(int threads, const cpu_amx_factor *right, uint16_t *ret);

/* c [m][n] = left right, plus bias [n] in each row, if any; or c += left right. The left factor is
 * packed by the way, in `room` of clv_cpu_amx_room(threads, m, k) bytes. */
typedef struct cpu_amx_product {
  cpu_amx_factor left;
  size_t m, n, k;
  const uint16_t *right; /* packed */
  uint16_t *room;
  const float *bias; /* NULL: none; with add it is not read */
  float *c;
  bool add;
} cpu_amx_product;
size_t clv_cpu_amx_room(int threads, size_t m, size_t k);
void clv_cpu_amx_multiply(int threads, const cpu_amx_product *p);

/* linear where amx_ready; see linear_amx.c. */
cpu_prepare_fn clv_cpu_linear_amx;

#endif
