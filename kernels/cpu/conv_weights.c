/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies weights of a convolution between the row-major parameters and the tiles of 16x16 channels
 * that oneDNN uses. A tile is transposed in registers, so that every cache line is read or written
 * once and completely. Rows of the row-major weights are often a multiple of a page apart, so a
 * line that is accessed twice has been evicted from the cache in between.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"

/* TILE_CHANNELS: channels of a tile. MAX_BF16_TAPS: most taps of a window whose weights are copied
 * as bf16.
 */
enum { TILE_CHANNELS = 16, MAX_BF16_TAPS = 25 };

/* SHUFFLE_LANES makes a vector of the numbered lanes of a and b. A transposition exchanges single
 * lanes of neighbouring rows, then groups of 2, 4 and 8 lanes of rows that are 2, 4 and 8 rows
 * apart. */
#define SHUFFLE_LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Loops over the rows that are exchanged with the row `step` rows further on. */
#define FOR_EACH_SWAPPED_ROW(row, step)         \
  for (int row = 0; row < TILE_CHANNELS; row++) \
    if (!(row & (step)))

/* Defines functions, compiled for TARGET, that transpose 16 vectors of 16 numbers, and that pack,
 * unpack and transpose tiles by such transpositions. */
#define DEFINE_TILE_FNS(W, TARGET)                                                                \
  TARGET CPU_INLINE void transpose_16_##W(cpu_vf16 r[TILE_CHANNELS]) {                            \
    cpu_vf16 a, b;                                                                                \
    _Pragma("GCC unroll 16") FOR_EACH_SWAPPED_ROW(i, 1) {                                         \
      a = r[i], b = r[i + 1];                                                                     \
      r[i] = SHUFFLE_LANES(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);      \
      r[i + 1] = SHUFFLE_LANES(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);  \
    }                                                                                             \
    _Pragma("GCC unroll 16") FOR_EACH_SWAPPED_ROW(i, 2) {                                         \
      a = r[i], b = r[i + 2];                                                                     \
      r[i] = SHUFFLE_LANES(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);       \
      r[i + 2] = SHUFFLE_LANES(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31); \
    }                                                                                             \
    _Pragma("GCC unroll 16") FOR_EACH_SWAPPED_ROW(i, 4) {                                         \
      a = r[i], b = r[i + 4];                                                                     \
      r[i] = SHUFFLE_LANES(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);       \
      r[i + 4] = SHUFFLE_LANES(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31); \
    }                                                                                             \
    _Pragma("GCC unroll 16") FOR_EACH_SWAPPED_ROW(i, 8) {                                         \
      a = r[i], b = r[i + 8];                                                                     \
      r[i] = SHUFFLE_LANES(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);         \
      r[i + 8] =                                                                                  \
          SHUFFLE_LANES(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);      \
    }                                                                                             \
  }                                                                                               \
  /* Row k of a row-major tile is 16 * taps numbers, [c][tap], transposed 16 at a time. */        \
  TARGET static void pack_tile_##W(const float *row_major, size_t row_size, size_t n_taps,        \
                                   float *tile) {                                                 \
    for (size_t j = 0; j < TILE_CHANNELS * n_taps; j += TILE_CHANNELS) {                          \
      cpu_vf16 r[TILE_CHANNELS];                                                                  \
      _Pragma("GCC unroll 16") for (int k = 0; k < TILE_CHANNELS; k++) r[k] =                     \
          *(const cpu_vf16 *)(row_major + (size_t)k * row_size + j);                              \
      transpose_16_##W(r);                                                                        \
      _Pragma("GCC unroll 16") for (size_t i = 0; i < TILE_CHANNELS; i++) *                       \
          (cpu_vf16 *)(tile + ((j + i) % n_taps * TILE_CHANNELS + (j + i) / n_taps) *             \
                                  TILE_CHANNELS) = r[i];                                          \
    }                                                                                             \
  }                                                                                               \
  TARGET static void unpack_tile_##W(const float *tile, size_t row_size, size_t n_taps,           \
                                     bool accumulate, float *row_major) {                         \
    for (size_t j = 0; j < TILE_CHANNELS * n_taps; j += TILE_CHANNELS) {                          \
      cpu_vf16 r[TILE_CHANNELS];                                                                  \
      _Pragma("GCC unroll 16") for (size_t i = 0; i < TILE_CHANNELS; i++) r[i] =                  \
          *(const cpu_vf16 *)(tile + ((j + i) % n_taps * TILE_CHANNELS + (j + i) / n_taps) *      \
                                         TILE_CHANNELS);                                          \
      transpose_16_##W(r);                                                                        \
      _Pragma("GCC unroll 16") for (int k = 0; k < TILE_CHANNELS; k++) {                          \
        cpu_vf16 *to = (cpu_vf16 *)(row_major + (size_t)k * row_size + j);                        \
        if (accumulate) r[k] = *to + r[k];                                                        \
        *to = r[k];                                                                               \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  /* Transposes the tile of each tap. */                                                          \
  TARGET static void transpose_tile_##W(const float *tile, size_t n_taps, float *transposed) {    \
    for (size_t t = 0; t < n_taps; t++) {                                                         \
      cpu_vf16 r[TILE_CHANNELS];                                                                  \
      memcpy(r, tile + t * TILE_CHANNELS * TILE_CHANNELS, sizeof r);                              \
      transpose_16_##W(r);                                                                        \
      memcpy(transposed + t * TILE_CHANNELS * TILE_CHANNELS, r, sizeof r);                        \
    }                                                                                             \
  }

DEFINE_TILE_FNS(PLAIN, CPU_TARGET_PLAIN)
DEFINE_TILE_FNS(256, CPU_TARGET_256)
DEFINE_TILE_FNS(512, CPU_TARGET_512)

/* Functions that pack, unpack and transpose tiles, compiled for one vector width. */
typedef struct tile_fns {
  void (*pack)(const float *row_major, size_t row_size, size_t n_taps, float *tile);
  void (*unpack)(const float *tile, size_t row_size, size_t n_taps, bool accumulate,
                 float *row_major);
  void (*transpose)(const float *tile, size_t n_taps, float *transposed);
} tile_fns;

static const tile_fns tile_fns_by_width[] = {
    {.pack = pack_tile_PLAIN, .unpack = unpack_tile_PLAIN, .transpose = transpose_tile_PLAIN},
    {.pack = pack_tile_256, .unpack = unpack_tile_256, .transpose = transpose_tile_256},
    {.pack = pack_tile_512, .unpack = unpack_tile_512, .transpose = transpose_tile_512},
};

bool clv_cpu_can_use_weight_tiles(const clv_window *s, int64_t groups, bool tiles_are_bf16) {
  return groups == 1 && (!tiles_are_bf16 || s->kernel[0] * s->kernel[1] <= MAX_BF16_TAPS) &&
         s->k % TILE_CHANNELS == 0 && s->c % TILE_CHANNELS == 0;
}

typedef struct tile_job {
  const cpu_weight_tiles *w;
  const tile_fns *fn;
  /* numbers of blocks of 16 output and of 16 input channels; taps of the window; number of values
   * in a row [C][taps] of the row-major weights */
  size_t n_k_blocks, n_c_blocks, n_taps, row_size;
} tile_job;

static tile_job make_job(const cpu_weight_tiles *w) {
  tile_job j = {w,
                &tile_fns_by_width[clv_cpu_vector_width()],
                (size_t)w->k / TILE_CHANNELS,
                (size_t)w->c / TILE_CHANNELS,
                (size_t)w->n_taps,
                0};
  j.row_size = (size_t)w->c * j.n_taps;
  return j;
}

/* Copies the weights of output block k_block and input block c_block to the tiles. */
static void pack_tile(const tile_job *j, size_t k_block, size_t c_block) {
  const cpu_weight_tiles *w = j->w;
  const float *row_major =
      w->row_major + k_block * TILE_CHANNELS * j->row_size + c_block * TILE_CHANNELS * j->n_taps;
  float *forward_tiles = w->forward_tiles;
  size_t size = TILE_CHANNELS * TILE_CHANNELS * j->n_taps,
         c_major_offset = (c_block * j->n_k_blocks + k_block) * size,
         k_major_offset = (k_block * j->n_c_blocks + c_block) * size;
  float *backward_tiles =
      w->backward_tiles ? (float *)w->backward_tiles +
                              (w->backward_tiles_are_c_major ? c_major_offset : k_major_offset)
                        : NULL;
  if (forward_tiles) j->fn->pack(row_major, j->row_size, j->n_taps, forward_tiles + k_major_offset);
  if (backward_tiles && j->n_taps == 1)
    for (size_t k = 0; k < TILE_CHANNELS; k++)
      memcpy(backward_tiles + k * TILE_CHANNELS, row_major + k * j->row_size,
             TILE_CHANNELS * sizeof(float));
  else if (backward_tiles && forward_tiles)
    j->fn->transpose(forward_tiles + k_major_offset, j->n_taps, backward_tiles);
  else if (backward_tiles) {
    j->fn->pack(row_major, j->row_size, j->n_taps, backward_tiles);
    j->fn->transpose(backward_tiles, j->n_taps, backward_tiles);
  }
}

/* As pack_tile, but converts the tile to bf16. The f32 tiles are buffers that stay in the cache. */
static void pack_tile_as_bf16(const tile_job *j, size_t k_block, size_t c_block) {
  const cpu_weight_tiles *w = j->w;
  float tile[TILE_CHANNELS * TILE_CHANNELS * MAX_BF16_TAPS],
      transposed_tile[TILE_CHANNELS * TILE_CHANNELS * MAX_BF16_TAPS];
  uint16_t *forward_tiles = w->forward_tiles, *backward_tiles = w->backward_tiles;
  size_t size = TILE_CHANNELS * TILE_CHANNELS * j->n_taps,
         c_major_offset = (c_block * j->n_k_blocks + k_block) * size,
         k_major_offset = (k_block * j->n_c_blocks + c_block) * size;
  j->fn->pack(
      w->row_major + k_block * TILE_CHANNELS * j->row_size + c_block * TILE_CHANNELS * j->n_taps,
      j->row_size, j->n_taps, tile);
  if (forward_tiles)
    clv_cpu_pair_rows(tile, TILE_CHANNELS * j->n_taps, forward_tiles + k_major_offset);
  if (!backward_tiles) return;
  j->fn->transpose(tile, j->n_taps, transposed_tile);
  clv_cpu_pair_rows(
      transposed_tile, TILE_CHANNELS * j->n_taps,
      backward_tiles + (w->backward_tiles_are_c_major ? c_major_offset : k_major_offset));
}

static void pack_k_blocks(void *arg, size_t begin, size_t end) {
  const tile_job *j = arg;
  for (size_t k_block = begin; k_block < end; k_block++)
    for (size_t c_block = 0; c_block < j->n_c_blocks; c_block++)
      (j->w->tiles_are_bf16 ? pack_tile_as_bf16 : pack_tile)(j, k_block, c_block);
}

static void unpack_k_blocks(void *arg, size_t begin, size_t end) {
  const tile_job *j = arg;
  for (size_t k_block = begin; k_block < end; k_block++)
    for (size_t c_block = 0; c_block < j->n_c_blocks; c_block++)
      j->fn->unpack((const float *)j->w->forward_tiles + (k_block * j->n_c_blocks + c_block) *
                                                             TILE_CHANNELS * TILE_CHANNELS *
                                                             j->n_taps,
                    j->row_size, j->n_taps, j->w->unpack_adds,
                    j->w->row_major + k_block * TILE_CHANNELS * j->row_size +
                        c_block * TILE_CHANNELS * j->n_taps);
}

static int choose_threads(const tile_job *j) {
  return clv_cpu_useful_threads(j->w->threads, (size_t)j->w->k * j->row_size);
}

void clv_cpu_weight_tiles_pack(const cpu_weight_tiles *w) {
  tile_job j = make_job(w);
  clv_cpu_parallel(choose_threads(&j), j.n_k_blocks, pack_k_blocks, &j);
}

void clv_cpu_weight_tiles_unpack(const cpu_weight_tiles *w) {
  tile_job j = make_job(w);
  clv_cpu_parallel(choose_threads(&j), j.n_k_blocks, unpack_k_blocks, &j);
}
