/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs factors as pairs of neighbouring bf16 values of the inner dimension, and computes a product
 * block by block. As many rows of the left factor as stay in the second-level cache are packed at a
 * time, and multiplied by the right factor, 32 columns at a time. If 32 rows of the whole inner
 * dimension exceed the cache, the inner dimension is divided into parts: partial sums are stored in
 * c, and the next part continues from them, which changes no bit.
 */
#include "kernels/cpu/pairs_int.h"

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define INLINE TARGET static inline __attribute__((always_inline))

/* TILES_PER_PARTIAL_SUM: number of tiles whose column sums are added to one partial sum. They have
 * 256 rows, as a partial sum of clv_cpu_sum_columns has. PREFETCH_DISTANCE_TILES: number of tiles
 * by which values are prefetched before their use. STRIPS_PER_BLOCK: strips of 16 rows or columns
 * of a block. */
enum {
  TILES_PER_PARTIAL_SUM = 256 / PAIRS_DEPTH,
  PREFETCH_DISTANCE_TILES = 2,
  STRIPS_PER_BLOCK = PAIRS_BLOCK / PAIRS_SIDE
};

const cpu_pairs_impl *clv_cpu_pairs_impl(void) {
  return clv_cpu_has_amx() ? clv_cpu_pairs_amx() : clv_cpu_pairs_avx512();
}

/* ---- packing a factor ------------------------------------------------------------------------ */

static size_t count_tiles(size_t k) { return (k + PAIRS_DEPTH - 1) / PAIRS_DEPTH; }

static size_t count_blocks(size_t n) { return (n + PAIRS_BLOCK - 1) / PAIRS_BLOCK; }

size_t clv_cpu_pairs_bytes(size_t n, size_t k) {
  return count_blocks(n) * STRIPS_PER_BLOCK * count_tiles(k) * PAIRS_TILE * sizeof(uint16_t);
}

/* Returns the mask of the first end - begin lanes; of all lanes if these are 16 or more. */
INLINE __mmask16 make_lane_mask(size_t begin, size_t end) {
  size_t n_left = begin < end ? end - begin : 0;
  return (__mmask16)(n_left >= PAIRS_SIDE ? 0xFFFF : (1u << n_left) - 1);
}

INLINE size_t value_index(const cpu_pairs_factor *f, size_t row, size_t column) {
  return row * (f->row_stride ? f->row_stride : f->columns) + column;
}

INLINE __m512 load_values(const cpu_pairs_factor *f, size_t row, size_t column) {
  __mmask16 mask = row < f->rows ? make_lane_mask(column, f->columns) : 0;
  size_t at = value_index(f, row, column);
  if (f->x) return _mm512_maskz_loadu_ps(mask, f->x + at);
  __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, f->bf16_x + at));
  return (__m512)_mm512_slli_epi32(low, 16);
}

/* Prefetches values of a later tile to the second-level cache. Many rows are read in turn, each in
 * short pieces, so the processor's own prefetch starts too late. */
INLINE void prefetch_value(const cpu_pairs_factor *f, size_t row, size_t column) {
  size_t at = value_index(f, row, column);
  if (row >= f->rows) return;
  if (f->x)
    _mm_prefetch(f->x + at, _MM_HINT_T1);
  else
    _mm_prefetch(f->bf16_x + at, _MM_HINT_T1);
}

/* Makes 16 pairs of neighbouring values, from `column` on, in each of 16 rows from `row` on. */
INLINE void pair_within_rows(const cpu_pairs_factor *f, size_t row, size_t column,
                             __m512i pair[PAIRS_SIDE]) {
  for (size_t r = 0; r < PAIRS_SIDE; r++) {
    __m512 low = load_values(f, row + r, column),
           high = load_values(f, row + r, column + PAIRS_SIDE);
    prefetch_value(f, row + r + PAIRS_SIDE, column);
    prefetch_value(f, row + r + PAIRS_SIDE, column + PAIRS_SIDE);
    pair[r] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
}

/* Makes pairs of values in neighbouring rows, for 32 rows from `row` on and 16 columns from
 * `column` on. Adds the values of each column to *sum. */
INLINE void pair_neighbouring_rows(const cpu_pairs_factor *f, size_t row, size_t column,
                                   __m512i pair[PAIRS_SIDE], __m512 *sum) {
  static const uint16_t interleaved_order[PAIRS_DEPTH] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i lane_order = _mm512_loadu_si512(interleaved_order);
  for (size_t r = 0; r < PAIRS_SIDE; r++) {
    size_t low = row + 2 * r, high = low + 1;
    __m512 a = load_values(f, low, column), b = load_values(f, high, column);
    *sum = _mm512_add_ps(_mm512_add_ps(*sum, a), b);
    prefetch_value(f, low + PREFETCH_DISTANCE_TILES * PAIRS_DEPTH, column);
    prefetch_value(f, high + PREFETCH_DISTANCE_TILES * PAIRS_DEPTH, column);
    pair[r] = _mm512_permutexvar_epi16(lane_order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
}

/* Transposes 16 x 16 pairs. */
INLINE void transpose_pairs(__m512i x[PAIRS_SIDE]) {
  __m512i t[PAIRS_SIDE], u[PAIRS_SIDE];
  for (int i = 0; i < PAIRS_SIDE; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < PAIRS_SIDE; i += 4)
    for (int k = 0; k < 2; k++) {
      u[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + k + 2]);
      u[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + k + 2]);
    }
  for (int c = 0; c < 4; c++) {
    __m512i even0 = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88);
    __m512i even1 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
    __m512i odd0 = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xDD);
    __m512i odd1 = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xDD);
    x[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    x[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    x[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
    x[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
  }
}

/* True if the two values of a pair, which are neighbouring terms of the product's sum over k, are
 * neighbours in a stored row: for factors stored as [m][k] or [n][k]. False if they are in the same
 * column of two neighbouring rows: for factors stored as [k][n] or [k][m]. */
INLINE bool has_pairs_within_rows(const cpu_pairs_factor *f) {
  return f->is_right == f->is_transposed;
}

/* Stores 16 x 16 pairs as a tile at `to`. A tile of the left factor is in the order [m][k], one of
 * the right factor in the order [k][n], so the pairs of a factor that is stored transposed are
 * transposed first. */
INLINE void store_tile(const cpu_pairs_factor *f, __m512i pair[PAIRS_SIDE], uint16_t *to) {
  if (f->is_transposed) transpose_pairs(pair);
  for (size_t r = 0; r < PAIRS_SIDE; r++) _mm512_storeu_si512(to + r * PAIRS_DEPTH, pair[r]);
}

/* Packs tiles [first_tile, end_tile) of a block's strips, one strip after another, for a factor
 * whose pairs are neighbours in a stored row (has_pairs_within_rows). */
INLINE void pack_pairs_within_rows(const cpu_pairs_factor *f, size_t block, size_t first_tile,
                                   size_t end_tile, uint16_t *to) {
  for (size_t s = 0; s < STRIPS_PER_BLOCK; s++)
    for (size_t k = first_tile; k < end_tile; k++, to += PAIRS_TILE) {
      __m512i pair[PAIRS_SIDE];
      pair_within_rows(f, (block * STRIPS_PER_BLOCK + s) * PAIRS_SIDE, k * PAIRS_DEPTH, pair);
      store_tile(f, pair, to);
    }
}

/* As pack_pairs_within_rows, but for a factor whose pairs are values of two neighbouring rows. 128
 * bytes of each row are read at once, because a single cache line takes as long. sums: receives the
 * sums of the block's columns; NULL: no sums. If first_tile is above 0, `sums` holds the sums of
 * the tiles before, which are added; first_tile is then a multiple of TILES_PER_PARTIAL_SUM. */
INLINE void pack_pairs_across_rows(const cpu_pairs_factor *f, size_t block, size_t first_tile,
                                   size_t end_tile, uint16_t *to, float *sums) {
  __m512 partial_sums[STRIPS_PER_BLOCK], total_sums[STRIPS_PER_BLOCK];
  for (size_t s = 0; s < STRIPS_PER_BLOCK; s++) {
    partial_sums[s] = _mm512_setzero_ps();
    total_sums[s] =
        sums && first_tile ? _mm512_loadu_ps(sums + s * PAIRS_SIDE) : _mm512_setzero_ps();
  }
  for (size_t k = first_tile; k < end_tile; k++)
    for (size_t s = 0; s < STRIPS_PER_BLOCK; s++) {
      __m512i pair[PAIRS_SIDE];
      pair_neighbouring_rows(f, k * PAIRS_DEPTH, (block * STRIPS_PER_BLOCK + s) * PAIRS_SIDE, pair,
                             &partial_sums[s]);
      store_tile(f, pair, to + (s * (end_tile - first_tile) + k - first_tile) * PAIRS_TILE);
      if ((k + 1) % TILES_PER_PARTIAL_SUM != 0 && k + 1 != end_tile) continue;
      total_sums[s] = _mm512_add_ps(total_sums[s], partial_sums[s]);
      partial_sums[s] = _mm512_setzero_ps();
    }
  for (size_t s = 0; sums && s < STRIPS_PER_BLOCK; s++)
    _mm512_storeu_ps(sums + s * PAIRS_SIDE, total_sums[s]);
}

INLINE void pack_block(const cpu_pairs_factor *f, size_t block, size_t first_tile, size_t end_tile,
                       uint16_t *to, float *sums) {
  if (has_pairs_within_rows(f))
    pack_pairs_within_rows(f, block, first_tile, end_tile, to);
  else
    pack_pairs_across_rows(f, block, first_tile, end_tile, to, sums);
}

typedef struct pack_job {
  const cpu_pairs_factor *f;
  size_t n_tiles;
  uint16_t *to;
} pack_job;

TARGET static void pack_blocks(void *arg, size_t begin, size_t end) {
  const pack_job *j = arg;
  for (size_t block = begin; block < end; block++)
    pack_block(j->f, block, 0, j->n_tiles,
               j->to + block * STRIPS_PER_BLOCK * j->n_tiles * PAIRS_TILE, NULL);
}

void clv_cpu_pairs_pack(int threads, const cpu_pairs_factor *f, uint16_t *ret) {
  bool is_paired_within_rows = f->is_right == f->is_transposed;
  pack_job j = {f, count_tiles(is_paired_within_rows ? f->columns : f->rows), ret};
  clv_cpu_parallel(clv_cpu_useful_threads(threads, f->rows * f->columns),
                   count_blocks(is_paired_within_rows ? f->rows : f->columns), pack_blocks, &j);
}

/* ---- multiplying packed factors -------------------------------------------------------------- */

/* Extents of the part of the left factor that one thread packs and multiplies at a time: number of
 * blocks of 32 rows, and number of tiles along the sum. */
typedef struct packed_extents {
  size_t n_blocks, n_tiles;
} packed_extents;

static packed_extents choose_packed_extents(const cpu_pairs_impl *impl, size_t m, size_t k) {
  size_t n_tiles = count_tiles(k);
  if (impl->n_tiles_packed) n_tiles = CLV_MIN(n_tiles, impl->n_tiles_packed);
  size_t max_blocks =
      impl->cache_bytes / CLV_MAX(n_tiles * 2 * PAIRS_TILE * sizeof(uint16_t), (size_t)1);
  size_t n_blocks = count_blocks(m);
  return (packed_extents){CLV_MIN(CLV_MAX(max_blocks, (size_t)1), n_blocks), n_tiles};
}

/* Returns the size of the scratch of one thread, counted in bf16 values: packed values, and sums of
 * columns. */
static size_t part_scratch_size(packed_extents packed) {
  enum { VALUES_PER_FLOAT = sizeof(float) / sizeof(uint16_t) };
  return packed.n_blocks * (packed.n_tiles * 2 * PAIRS_TILE + PAIRS_BLOCK * VALUES_PER_FLOAT);
}

size_t clv_cpu_pairs_scratch_bytes(int threads, size_t m, size_t k) {
  return (size_t)threads * part_scratch_size(choose_packed_extents(clv_cpu_pairs_impl(), m, k)) *
         sizeof(uint16_t);
}

/* A part of a product: blocks [first_block, end_block) of rows, and tiles [first_tile, end_tile) of
 * the sum. */
typedef struct pairs_part {
  const cpu_pairs_product *p;
  const cpu_pairs_impl *impl;
  size_t first_block, end_block, first_tile, end_tile;
  packed_extents packed;
  uint16_t *scratch;
} pairs_part;

static size_t get_c_row_stride(const cpu_pairs_product *p) {
  return p->c_row_stride ? p->c_row_stride : p->n;
}

/* Returns the initial values of the sums of the block at row i and column j. *ret_row_stride:
 * distance between the rows of values; 0: all rows of the block begin with the same values. */
static const float *initial_sums(const pairs_part *t, size_t i, size_t j, size_t *ret_row_stride) {
  static const float zeros[PAIRS_BLOCK];
  const cpu_pairs_product *p = t->p;
  *ret_row_stride = p->accumulate || t->first_tile ? get_c_row_stride(p) : 0;
  if (*ret_row_stride) return p->c + i * get_c_row_stride(p) + j;
  return p->bias ? p->bias + j : zeros;
}

/* Computes a block at the edge of c. The sums are computed in a full block on the stack, of which
 * the part inside c is copied to c. */
static void multiply_edge_block(const pairs_part *t, cpu_pairs_block *b, size_t i, size_t j) {
  const cpu_pairs_product *p = t->p;
  float sums[PAIRS_BLOCK][PAIRS_BLOCK] = {{0}};
  size_t columns = CLV_MIN(p->n - j, (size_t)PAIRS_BLOCK);
  bool has_initial_values = b->initial_row_stride || p->bias;
  for (size_t r = 0; has_initial_values && r < b->rows; r++)
    memcpy(sums[r], b->initial_sums + r * b->initial_row_stride, columns * sizeof **sums);
  b->initial_sums = b->c = sums[0];
  b->initial_row_stride = b->c_row_stride = PAIRS_BLOCK;
  t->impl->block(b);
  for (size_t r = 0; r < b->rows; r++)
    memcpy(p->c + (i + r) * get_c_row_stride(p) + j, sums[r], columns * sizeof **sums);
}

/* Computes the block of c at row i and column j. a: the two packed strips of rows from i on. */
static void multiply_block(const pairs_part *t, const uint16_t *a, size_t i, size_t j) {
  const cpu_pairs_product *p = t->p;
  size_t strip_size = count_tiles(p->right_k ? p->right_k : p->k) * PAIRS_TILE;
  cpu_pairs_block b = {
      .a = a,
      .b = p->right_packed + j / PAIRS_SIDE * strip_size + t->first_tile * PAIRS_TILE,
      .a_strip_stride = (t->end_tile - t->first_tile) * PAIRS_TILE,
      .b_strip_stride = strip_size,
      .n_tiles = t->end_tile - t->first_tile,
      .c = p->c + i * get_c_row_stride(p) + j,
      .c_row_stride = get_c_row_stride(p),
      .rows = CLV_MIN(p->m - i, (size_t)PAIRS_BLOCK)};
  b.initial_sums = initial_sums(t, i, j, &b.initial_row_stride);
  if (i + PAIRS_BLOCK > p->m || j + PAIRS_BLOCK > p->n)
    multiply_edge_block(t, &b, i, j);
  else
    t->impl->block(&b);
}

/* Stores the column sums of the transposed left factor for a part's rows, after the last tile of
 * these rows is packed. */
static void store_sums(const pairs_part *t, const float *sums) {
  const cpu_pairs_product *p = t->p;
  size_t first_row = t->first_block * PAIRS_BLOCK,
         end_row = CLV_MIN(t->end_block * PAIRS_BLOCK, p->m);
  for (size_t i = first_row; i < end_row; i++)
    p->sums[i] = p->accumulate ? p->sums[i] + sums[i - first_row] : sums[i - first_row];
}

TARGET static void multiply_part(const pairs_part *t) {
  size_t strip_size = (t->end_tile - t->first_tile) * PAIRS_TILE;
  float *sums =
      (float *)(void *)(t->scratch + t->packed.n_blocks * t->packed.n_tiles * 2 * PAIRS_TILE);
  for (size_t i = t->first_block; i < t->end_block; i++) {
    size_t at = i - t->first_block;
    uint16_t *to = t->scratch + at * STRIPS_PER_BLOCK * strip_size;
    if (t->p->sums)
      pack_block(&t->p->left_factor, i, t->first_tile, t->end_tile, to, sums + at * PAIRS_BLOCK);
    else
      pack_block(&t->p->left_factor, i, t->first_tile, t->end_tile, to, NULL);
  }
  if (t->p->sums && t->end_tile == count_tiles(t->p->k)) store_sums(t, sums);
  for (size_t j = 0; j < t->p->n; j += PAIRS_BLOCK)
    for (size_t i = t->first_block; i < t->end_block; i++)
      multiply_block(t, t->scratch + (i - t->first_block) * STRIPS_PER_BLOCK * strip_size,
                     i * PAIRS_BLOCK, j);
}

typedef struct multiply_job {
  const cpu_pairs_product *p;
  /* number of parts of the product, one for each thread, and of blocks of rows of all parts */
  size_t n_parts, n_blocks;
} multiply_job;

static void multiply_parts(void *arg, size_t begin, size_t end) {
  const multiply_job *j = arg;
  const cpu_pairs_impl *impl = clv_cpu_pairs_impl();
  packed_extents packed = choose_packed_extents(impl, j->p->m, j->p->k);
  size_t n_tiles = count_tiles(j->p->k);
  impl->begin();
  for (size_t part = begin; part < end; part++) {
    size_t part_end = j->n_blocks * (part + 1) / j->n_parts;
    pairs_part t = {.p = j->p,
                    .impl = impl,
                    .packed = packed,
                    .scratch = j->p->scratch + part * part_scratch_size(packed)};
    for (t.first_block = j->n_blocks * part / j->n_parts; t.first_block < part_end;
         t.first_block = t.end_block) {
      t.end_block = CLV_MIN(t.first_block + packed.n_blocks, part_end);
      t.end_tile = 0;
      do { /* runs once even if the sums have no terms, and writes 0 or the bias */
        t.first_tile = t.end_tile;
        t.end_tile = CLV_MIN(t.first_tile + packed.n_tiles, n_tiles);
        multiply_part(&t);
      } while (t.end_tile < n_tiles);
    }
  }
  impl->end();
}

void clv_cpu_pairs_multiply(int threads, const cpu_pairs_product *p) {
  size_t n_blocks = count_blocks(p->m);
  int n_threads = clv_cpu_useful_threads(threads, p->m * p->n);
  multiply_job j = {p, CLV_MIN((size_t)n_threads, n_blocks), n_blocks};
  clv_cpu_parallel(n_threads, j.n_parts, multiply_parts, &j);
}
