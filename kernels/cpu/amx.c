/* SPDX-License-Identifier: Apache-2.0
 *
 * A block of 32 x 32 sums stays in four tiles while k runs; two tiles of either factor are loaded
 * for four products. The left factor's rows are packed by as many as stay in the second cache,
 * and for these the right factor goes by once, 32 columns at a time.
 */
#include "kernels/cpu/amx_int.h"

#include <dnnl.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define INLINE TARGET static inline __attribute__((always_inline))

/* A tile: 16 rows of 16 pairs. WIDE: along the sum. */
enum { SIDE = 16, WIDE = 32, TILE = SIDE * WIDE, BLOCK = 2 * SIDE, CACHE = 1 << 20 };

/* ---- whether --------------------------------------------------------------------------------- */

static bool ready;

/* The kernel gives the state of tiles to processes that have asked. */
static void ask(void) {
  enum { REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
  unsigned needed = dnnl_cpu_isa_avx512_core_amx;
  ready = ((unsigned)dnnl_get_effective_cpu_isa() & needed) == needed &&
          syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILE_DATA) == 0;
}

bool clv_cpu_amx_ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, ask);
  return ready;
}

/* ---- packing --------------------------------------------------------------------------------- */

static size_t tiles_of(size_t k) { return (k + WIDE - 1) / WIDE; }

/* Whole blocks beside the sum. */
static size_t strips_of(size_t other) { return (other + BLOCK - 1) / BLOCK * 2; }

size_t clv_cpu_amx_bytes(size_t other, size_t k) {
  return strips_of(other) * tiles_of(k) * TILE * sizeof(uint16_t);
}

INLINE __mmask16 mask_of(size_t begin, size_t end) {
  size_t left = begin < end ? end - begin : 0;
  return (__mmask16)(left >= SIDE ? 0xFFFF : (1u << left) - 1);
}

INLINE __m512 take(const cpu_amx_factor *f, size_t row, size_t column) {
  __mmask16 mask = row < f->rows ? mask_of(column, f->columns) : 0;
  return _mm512_maskz_loadu_ps(mask, f->x + row * f->columns + column);
}

/* Pairs of neighbours in 16 rows from `row` on. */
INLINE void pairs_along(const cpu_amx_factor *f, size_t row, size_t column, __m512i pair[SIDE]) {
  for (size_t r = 0; r < SIDE; r++) {
    __m512 low = take(f, row + r, column), high = take(f, row + r, column + SIDE);
    pair[r] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
}

/* Pairs of values below each other, in 32 rows from `row` on. */
INLINE void pairs_across(const cpu_amx_factor *f, size_t row, size_t column, __m512i pair[SIDE]) {
  for (size_t r = 0; r < SIDE; r++) {
    __m512 a = take(f, row + 2 * r, column), b = take(f, row + 2 * r + 1, column);
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
    pair[r] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
}

/* The 16 x 16 pairs, rows and columns exchanged. */
INLINE void exchange(__m512i x[SIDE]) {
  __m512i t[SIDE], u[SIDE];
  for (int i = 0; i < SIDE; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < SIDE; i += 4)
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

/* Whether the sum runs along the rows of x. */
INLINE bool is_along(const cpu_amx_factor *f) { return f->right == f->turned; }

/* Tiles of 16 values beside the sum, from `strip` times 16 on. Where the pairs lie as the tile has
 * them, nothing is exchanged: left [m][k], right [k][n]. */
INLINE void pack_strip(const cpu_amx_factor *f, size_t strip, size_t tiles, uint16_t *to) {
  for (size_t k = 0; k < tiles; k++, to += TILE) {
    __m512i pair[SIDE];
    if (is_along(f))
      pairs_along(f, strip * SIDE, k * WIDE, pair);
    else
      pairs_across(f, k * WIDE, strip * SIDE, pair);
    if (f->turned) exchange(pair);
    for (size_t r = 0; r < SIDE; r++) _mm512_storeu_si512(to + r * WIDE, pair[r]);
  }
}

typedef struct pack_job {
  const cpu_amx_factor *f;
  size_t tiles;
  uint16_t *to;
} pack_job;

TARGET static void pack_strips(void *arg, size_t begin, size_t end) {
  const pack_job *j = arg;
  for (size_t strip = begin; strip < end; strip++)
    pack_strip(j->f, strip, j->tiles, j->to + strip * j->tiles * TILE);
}

void clv_cpu_amx_pack(int threads, const cpu_amx_factor *f, uint16_t *ret) {
  bool along = f->right == f->turned;
  pack_job j = {f, tiles_of(along ? f->columns : f->rows), ret};
  clv_cpu_parallel(clv_cpu_worth(threads, f->rows * f->columns),
                   strips_of(along ? f->rows : f->columns), pack_strips, &j);
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* All eight tiles are 16 rows of 64 bytes. */
static const struct {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} __attribute__((aligned(64))) shapes = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
};

/* Sums begin with what stands at `from`, its rows `from_row` floats apart, and go to c. */
INLINE void one_block(const cpu_amx_product *p, const uint16_t *a, size_t j, const float *from,
                      size_t from_row, float *c, size_t c_row) {
  size_t tiles = tiles_of(p->k), strip = tiles * TILE;
  const uint16_t *b = p->right + j / SIDE * strip;
  size_t rows = from_row * sizeof *from, step = c_row * sizeof *c;
  _tile_loadd(0, from, rows);
  _tile_loadd(1, from + SIDE, rows);
  _tile_loadd(2, from + SIDE * from_row, rows);
  _tile_loadd(3, from + SIDE * from_row + SIDE, rows);
  for (size_t k = 0; k < tiles; k++, a += TILE, b += TILE) {
    _tile_loadd(4, a, WIDE * sizeof *a);
    _tile_loadd(6, b, WIDE * sizeof *b);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + strip, WIDE * sizeof *b);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + strip, WIDE * sizeof *a);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, step);
  _tile_stored(1, c + SIDE, step);
  _tile_stored(2, c + SIDE * c_row, step);
  _tile_stored(3, c + SIDE * c_row + SIDE, step);
}

/* At an edge, by way of a whole block. */
TARGET static void edge_block(const cpu_amx_product *p, const uint16_t *a, size_t i, size_t j) {
  float sums[BLOCK][BLOCK] = {{0}};
  size_t rows = CLV_MIN(p->m - i, (size_t)BLOCK), columns = CLV_MIN(p->n - j, (size_t)BLOCK);
  for (size_t r = 0; r < rows; r++) {
    const float *from = p->add ? p->c + (i + r) * p->n + j : p->bias ? p->bias + j : NULL;
    if (from) memcpy(sums[r], from, columns * sizeof **sums);
  }
  one_block(p, a, j, sums[0], BLOCK, sums[0], BLOCK);
  for (size_t r = 0; r < rows; r++)
    memcpy(p->c + (i + r) * p->n + j, sums[r], columns * sizeof **sums);
}

/* a: two strips, of rows i and on. */
TARGET static void any_block(const cpu_amx_product *p, const uint16_t *a, size_t i, size_t j) {
  static const float zeros[BLOCK];
  float *c = p->c + i * p->n + j;
  if (i + BLOCK > p->m || j + BLOCK > p->n)
    edge_block(p, a, i, j);
  else if (p->add)
    one_block(p, a, j, c, p->n, c, p->n);
  else /* the same row for all of a tile's */
    one_block(p, a, j, p->bias ? p->bias + j : zeros, 0, c, p->n);
}

typedef struct multiply_job {
  const cpu_amx_product *p;
  size_t parts, blocks; /* of rows */
} multiply_job;

/* Blocks of rows that one thread packs and takes at once. */
static size_t blocks_at_once(size_t m, size_t k) {
  size_t most = CACHE / (tiles_of(k) * 2 * TILE * sizeof(uint16_t));
  return CLV_MIN(CLV_MAX(most, (size_t)1), (m + BLOCK - 1) / BLOCK);
}

size_t clv_cpu_amx_room(int threads, size_t m, size_t k) {
  return (size_t)threads * blocks_at_once(m, k) * clv_cpu_amx_bytes(BLOCK, k);
}

TARGET static void multiply_blocks(const cpu_amx_product *p, size_t begin, size_t end,
                                   uint16_t *room) {
  size_t tiles = tiles_of(p->k), each = 2 * tiles * TILE;
  for (size_t i = begin; i < end; i++)
    for (size_t half = 0; half < 2; half++)
      pack_strip(&p->left, 2 * i + half, tiles, room + (i - begin) * each + half * tiles * TILE);
  for (size_t j = 0; j < p->n; j += BLOCK)
    for (size_t i = begin; i < end; i++) any_block(p, room + (i - begin) * each, i * BLOCK, j);
}

TARGET static void multiply_parts(void *arg, size_t begin, size_t end) {
  const multiply_job *j = arg;
  size_t most = blocks_at_once(j->p->m, j->p->k);
  size_t room = most * clv_cpu_amx_bytes(BLOCK, j->p->k) / sizeof(uint16_t);
  _tile_loadconfig(&shapes);
  for (size_t part = begin; part < end; part++) {
    size_t last = j->blocks * (part + 1) / j->parts;
    for (size_t i = j->blocks * part / j->parts; i < last; i += most)
      multiply_blocks(j->p, i, CLV_MIN(i + most, last), j->p->room + part * room);
  }
  _tile_release();
}

void clv_cpu_amx_multiply(int threads, const cpu_amx_product *p) {
  size_t blocks = (p->m + BLOCK - 1) / BLOCK;
  int worth = clv_cpu_worth(threads, p->m * p->n);
  multiply_job j = {p, CLV_MIN((size_t)worth, blocks), blocks};
  clv_cpu_parallel(worth, j.parts, multiply_parts, &j);
}
