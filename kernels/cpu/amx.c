/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of factors packed as pairs of bf16 values (pairs_int.h), with AMX. A block of 32 x 32
 * sums stays in four tiles during the loop over k, of which each step loads two tiles of each
 * factor and multiplies them in four combinations.
 */
#include <dnnl.h>
#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/pairs_int.h"

#define TARGET __attribute__((target("amx-tile,amx-bf16")))

/* True if the processor has AMX and request_tiles got its tiles from the operating system, which
 * saves their state only for processes that have requested them. */
static bool amx_is_ready;
static void request_tiles(void) {
  enum { REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
  unsigned amx_isa_bits = dnnl_cpu_isa_avx512_core_amx;
  amx_is_ready = ((unsigned)dnnl_get_effective_cpu_isa() & amx_isa_bits) == amx_isa_bits &&
                 syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILE_DATA) == 0;
}

bool clv_cpu_has_amx(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, request_tiles);
  return amx_is_ready;
}

/* Configuration of all eight tiles, as the instruction LDTILECFG reads it: 16 rows of 64 bytes
 * each. */
static const struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} __attribute__((aligned(64))) tile_config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

TARGET static void load_tile_config(void) { _tile_loadconfig(&tile_config); }
TARGET static void release_tiles(void) { _tile_release(); }

TARGET static void multiply_block(const cpu_pairs_block *p) {
  enum { TILE_ROW_BYTES = PAIRS_DEPTH * sizeof(uint16_t) };
  const uint16_t *a = p->a, *b = p->b;
  size_t initial_row_bytes = p->initial_row_stride * sizeof *p->initial_sums,
         c_row_bytes = p->c_row_stride * sizeof *p->c;
  _tile_loadd(0, p->initial_sums, initial_row_bytes);
  _tile_loadd(1, p->initial_sums + PAIRS_SIDE, initial_row_bytes);
  _tile_loadd(2, p->initial_sums + PAIRS_SIDE * p->initial_row_stride, initial_row_bytes);
  _tile_loadd(3, p->initial_sums + PAIRS_SIDE * p->initial_row_stride + PAIRS_SIDE,
              initial_row_bytes);
  for (size_t k = 0; k < p->n_tiles; k++, a += PAIRS_TILE, b += PAIRS_TILE) {
    _tile_loadd(4, a, TILE_ROW_BYTES);
    _tile_loadd(6, b, TILE_ROW_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + p->b_strip_stride, TILE_ROW_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + p->a_strip_stride, TILE_ROW_BYTES);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, p->c, c_row_bytes);
  _tile_stored(1, p->c + PAIRS_SIDE, c_row_bytes);
  _tile_stored(2, p->c + PAIRS_SIDE * p->c_row_stride, c_row_bytes);
  _tile_stored(3, p->c + PAIRS_SIDE * p->c_row_stride + PAIRS_SIDE, c_row_bytes);
}

const cpu_pairs_impl *clv_cpu_pairs_amx(void) {
  static const cpu_pairs_impl impl = {load_tile_config, release_tiles, multiply_block, 0,
                                      1 << 20,          "amx bf16"};
  return &impl;
}
