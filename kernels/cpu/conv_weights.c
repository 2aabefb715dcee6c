/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies weights of a convolution between the row-major parameters and the tiles of 16x16 channels
 * that oneDNN uses. A tile is transposed in registers, and every cache line is read or written once
 * and completely. The reason: rows of the row-major side are often a multiple of a page apart, so a
 * line that is visited twice has left the cache in between.
 */
#include <string.h>

#include "kernels/cpu/conv_int.h"

enum { T = 16, BF16_TAPS = 25 };

/* MIX takes lanes of two vectors. The transposition exchanges groups of 1, 2, 4 and 8 lanes between
 * rows that are as many rows apart. */
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

#define EACH(row, step)             \
  for (int row = 0; row < T; row++) \
    if (!(row & (step)))

/* Defines functions that transpose 16 vectors of 16 numbers, and the tiles made of them. */
#define TRANSPOSE(W, TARGET)                                                                   \
  TARGET CPU_INLINE void transpose_16_##W(cpu_vf16 r[T]) {                                     \
    cpu_vf16 a, b;                                                                             \
    _Pragma("GCC unroll 16") EACH(i, 1) {                                                      \
      a = r[i], b = r[i + 1];                                                                  \
      r[i] = MIX(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);             \
      r[i + 1] = MIX(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);         \
    }                                                                                          \
    _Pragma("GCC unroll 16") EACH(i, 2) {                                                      \
      a = r[i], b = r[i + 2];                                                                  \
      r[i] = MIX(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);              \
      r[i + 2] = MIX(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);        \
    }                                                                                          \
    _Pragma("GCC unroll 16") EACH(i, 4) {                                                      \
      a = r[i], b = r[i + 4];                                                                  \
      r[i] = MIX(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);              \
      r[i + 4] = MIX(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);        \
    }                                                                                          \
    _Pragma("GCC unroll 16") EACH(i, 8) {                                                      \
      a = r[i], b = r[i + 8];                                                                  \
      r[i] = MIX(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);                \
      r[i + 8] = MIX(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);      \
    }                                                                                          \
  }                                                                                            \
  /* Row k of a row-major tile is 16 * taps numbers, [c][tap], transposed 16 at a time. */     \
  TARGET static void pack_tile_##W(const float *plain, size_t row, size_t taps, float *tile) { \
    for (size_t j = 0; j < T * taps; j += T) {                                                 \
      cpu_vf16 r[T];                                                                           \
      _Pragma("GCC unroll 16") for (int k = 0; k < T; k++) r[k] =                              \
          *(const cpu_vf16 *)(plain + (size_t)k * row + j);                                    \
      transpose_16_##W(r);                                                                     \
      _Pragma("GCC unroll 16") for (size_t i = 0; i < T; i++) *                                \
          (cpu_vf16 *)(tile + ((j + i) % taps * T + (j + i) / taps) * T) = r[i];               \
    }                                                                                          \
  }                                                                                            \
  TARGET static void unpack_tile_##W(const float *tile, size_t row, size_t taps, bool adds,    \
                                     float *plain) {                                           \
    for (size_t j = 0; j < T * taps; j += T) {                                                 \
      cpu_vf16 r[T];                                                                           \
      _Pragma("GCC unroll 16") for (size_t i = 0; i < T; i++) r[i] =                           \
          *(const cpu_vf16 *)(tile + ((j + i) % taps * T + (j + i) / taps) * T);               \
      transpose_16_##W(r);                                                                     \
      _Pragma("GCC unroll 16") for (int k = 0; k < T; k++) {                                   \
        cpu_vf16 *to = (cpu_vf16 *)(plain + (size_t)k * row + j);                              \
        if (adds) r[k] = *to + r[k];                                                           \
        *to = r[k];                                                                            \
      }                                                                                        \
    }                                                                                          \
  }                                                                                            \
  /* Transposes the tile of each tap. */                                                       \
  TARGET static void transpose_tile_##W(const float *tile, size_t taps, float *transposed) {   \
    for (size_t t = 0; t < taps; t++) {                                                        \
      cpu_vf16 r[T];                                                                           \
      memcpy(r, tile + t * T * T, sizeof r);                                                   \
      transpose_16_##W(r);                                                                     \
      memcpy(transposed + t * T * T, r, sizeof r);                                             \
    }                                                                                          \
  }

TRANSPOSE(PLAIN, CPU_TARGET_PLAIN)
TRANSPOSE(256, CPU_TARGET_256)
TRANSPOSE(512, CPU_TARGET_512)

/* Functions that pack, unpack and transpose tiles, compiled for one vector width. */
typedef struct tile_fns {
  void (*pack)(const float *plain, size_t row, size_t taps, float *tile);
  void (*unpack)(const float *tile, size_t row, size_t taps, bool adds_when_unpacked, float *plain);
  void (*transpose)(const float *tile, size_t taps, float *transposed);
} tile_fns;

static const tile_fns widths[] = {
    {.pack = pack_tile_PLAIN, .unpack = unpack_tile_PLAIN, .transpose = transpose_tile_PLAIN},
    {.pack = pack_tile_256, .unpack = unpack_tile_256, .transpose = transpose_tile_256},
    {.pack = pack_tile_512, .unpack = unpack_tile_512, .transpose = transpose_tile_512},
};

bool clv_cpu_weight_tiles_fit(const clv_window *s, int64_t groups, bool bf16) {
  return groups == 1 && (!bf16 || s->kernel[0] * s->kernel[1] <= BF16_TAPS) && s->k % T == 0 &&
         s->c % T == 0;
}

typedef struct tile_job {
  const cpu_weight_tiles *w;
  const tile_fns *fn;
  /* number of blocks of output and of input channels; taps; number of values in a row of the
   * row-major weights */
  size_t kb, cb, taps, row;
} tile_job;

static tile_job make_job(const cpu_weight_tiles *w) {
  tile_job j = {
      w, &widths[clv_cpu_vector_width()], (size_t)w->k / T, (size_t)w->c / T, (size_t)w->taps, 0};
  j.row = (size_t)w->c * j.taps;
  return j;
}

static void pack_tile(const tile_job *j, size_t kb, size_t cb) {
  const cpu_weight_tiles *w = j->w;
  const float *plain = w->row_major + kb * T * j->row + cb * T * j->taps;
  float *forward_tiles = w->forward_tiles;
  size_t size = T * T * j->taps, c_major = (cb * j->kb + kb) * size,
         k_major = (kb * j->cb + cb) * size;
  float *backward_tiles =
      w->backward_tiles
          ? (float *)w->backward_tiles + (w->backward_tiles_are_c_major ? c_major : k_major)
          : NULL;
  if (forward_tiles) j->fn->pack(plain, j->row, j->taps, forward_tiles + k_major);
  if (backward_tiles && j->taps == 1)
    for (size_t k = 0; k < T; k++)
      memcpy(backward_tiles + k * T, plain + k * j->row, T * sizeof(float));
  else if (backward_tiles && forward_tiles)
    j->fn->transpose(forward_tiles + k_major, j->taps, backward_tiles);
  else if (backward_tiles) {
    j->fn->pack(plain, j->row, j->taps, backward_tiles);
    j->fn->transpose(backward_tiles, j->taps, backward_tiles);
  }
}

/* As pack_tile, but converts to bf16, through f32 tiles that stay in the cache. */
static void pack_pairs(const tile_job *j, size_t kb, size_t cb) {
  const cpu_weight_tiles *w = j->w;
  float tile[T * T * BF16_TAPS], transposed[T * T * BF16_TAPS];
  uint16_t *forward_tiles = w->forward_tiles, *backward_tiles = w->backward_tiles;
  size_t size = T * T * j->taps, c_major = (cb * j->kb + kb) * size,
         k_major = (kb * j->cb + cb) * size;
  j->fn->pack(w->row_major + kb * T * j->row + cb * T * j->taps, j->row, j->taps, tile);
  if (forward_tiles) clv_cpu_pair_rows(tile, T * j->taps, forward_tiles + k_major);
  if (!backward_tiles) return;
  j->fn->transpose(tile, j->taps, transposed);
  clv_cpu_pair_rows(transposed, T * j->taps,
                    backward_tiles + (w->backward_tiles_are_c_major ? c_major : k_major));
}

static void pack_rows(void *arg, size_t begin, size_t end) {
  const tile_job *j = arg;
  for (size_t kb = begin; kb < end; kb++)
    for (size_t cb = 0; cb < j->cb; cb++) (j->w->bf16 ? pack_pairs : pack_tile)(j, kb, cb);
}

static void unpack_rows(void *arg, size_t begin, size_t end) {
  const tile_job *j = arg;
  for (size_t kb = begin; kb < end; kb++)
    for (size_t cb = 0; cb < j->cb; cb++)
      j->fn->unpack((const float *)j->w->forward_tiles + (kb * j->cb + cb) * T * T * j->taps,
                    j->row, j->taps, j->w->unpack_adds,
                    j->w->row_major + kb * T * j->row + cb * T * j->taps);
}

static int choose_threads(const tile_job *j) {
  return clv_cpu_useful_threads(j->w->threads, (size_t)j->w->k * j->row);
}

void clv_cpu_weight_pack(const cpu_weight_tiles *w) {
  tile_job j = make_job(w);
  clv_cpu_parallel(choose_threads(&j), j.kb, pack_rows, &j);
}

void clv_cpu_weight_unpack(const cpu_weight_tiles *w) {
  tile_job j = make_job(w);
  clv_cpu_parallel(choose_threads(&j), j.kb, unpack_rows, &j);
}
