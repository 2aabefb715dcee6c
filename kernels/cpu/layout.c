/* SPDX-License-Identifier: Apache-2.0
 *
 * Channel blocks: copying between them, and keeping their padding zero.
 */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/cpu_int.h"

static _Atomic uint64_t reorders;

void clv_cpu_count_reorder(void) { atomic_fetch_add_explicit(&reorders, 1, memory_order_relaxed); }

uint64_t clv_cpu_reorder_count(void) { return reorders; }

/* One block of b channels, `used` of them real, of one image: planes to lanes and back. The image
 * is walked in runs short enough for the lanes' cache lines to stay. */
enum { RUN = 64 };

CPU_INLINE void planes_to_lanes_body(const float *src, size_t image, size_t used, size_t b,
                                     float *dst) {
  for (size_t at = 0; at < image; at += RUN) {
    size_t end = CLV_MIN(at + RUN, image);
    for (size_t c = 0; c < b; c++)
      for (size_t i = at; i < end; i++) dst[i * b + c] = c < used ? src[c * image + i] : 0;
  }
}

CPU_INLINE void lanes_to_planes_body(const float *src, size_t image, size_t used, size_t b,
                                     float *dst) {
  for (size_t at = 0; at < image; at += RUN) {
    size_t end = CLV_MIN(at + RUN, image);
    for (size_t c = 0; c < used; c++)
      for (size_t i = at; i < end; i++) dst[c * image + i] = src[i * b + c];
  }
}

CPU_CLONES(planes_to_lanes, (const float *src, size_t image, size_t used, size_t b, float *dst),
           (src, image, used, b, dst))
CPU_CLONES(lanes_to_planes, (const float *src, size_t image, size_t used, size_t b, float *dst),
           (src, image, used, b, dst))

static void between_blocks(const clv_shape *shape, const float *src, size_t sb, float *dst,
                           size_t db) {
  size_t channels = (size_t)shape->dim[1], image = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t sblocks = (channels + sb - 1) / sb, dblocks = (channels + db - 1) / db;
  for (size_t nd = 0; nd < (size_t)shape->dim[0] * dblocks; nd++)
    for (size_t i = 0; i < image; i++)
      for (size_t l = 0; l < db; l++) {
        size_t c = nd % dblocks * db + l;
        size_t from = ((nd / dblocks * sblocks + c / sb) * image + i) * sb + c % sb;
        dst[(nd * image + i) * db + l] = c < channels ? src[from] : 0;
      }
}

void clv_cpu_reorder(const clv_shape *shape, const float *src, int src_block, float *dst,
                     int dst_block) {
  size_t channels = (size_t)shape->dim[1], image = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t b = (size_t)CLV_MAX(src_block, dst_block), blocks = (channels + b - 1) / b;
  clv_cpu_count_reorder();
  if (src_block == dst_block) {
    memcpy(dst, src, clv_layout_numel(shape, src_block) * sizeof(float));
    return;
  }
  if (src_block != 1 && dst_block != 1) {
    between_blocks(shape, src, (size_t)src_block, dst, (size_t)dst_block);
    return;
  }
  for (size_t p = 0; p < (size_t)shape->dim[0] * blocks; p++) {
    size_t first = p % blocks * b, used = CLV_MIN(b, channels - first);
    size_t plane = (p / blocks * channels + first) * image, lane = p * image * b;
    if (src_block == 1)
      planes_to_lanes(src + plane, image, used, b, dst + lane);
    else
      lanes_to_planes(src + lane, image, used, b, dst + plane);
  }
}

void clv_cpu_zero_padding(const clv_shape *shape, int block, float *x) {
  size_t b = (size_t)block, channels = (size_t)shape->dim[1];
  if (block == 1 || channels % b == 0) return;
  size_t image = (size_t)(shape->dim[2] * shape->dim[3]), blocks = (channels + b - 1) / b;
  for (size_t n = 0; n < (size_t)shape->dim[0]; n++)
    for (size_t i = 0; i < image; i++)
      for (size_t l = channels % b; l < b; l++)
        x[((n * blocks + blocks - 1) * image + i) * b + l] = 0;
}
