/* SPDX-License-Identifier: Apache-2.0
 *
 * maxpool with torch's rule for ties and NaN. Taps are compared in scan order. A value becomes the
 * maximum if it is larger than the maximum so far, or NaN; padding never becomes the maximum.
 * `saved` holds for each output the index of the maximum's tap, as one byte, in the output's
 * layout.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu_int.h"

typedef struct maxpool_job {
  clv_window s;
  const float *x;       /* input of forward; gradient of the output in backward */
  float *y;             /* output of forward; gradient of the input in backward */
  uint8_t *argmax_taps; /* index of the maximum's tap, for each output */
  cpu_planes planes;
  /* the windows cover the image without overlap or gap, so each value is in exactly one window */
  bool windows_tile_image;
} maxpool_job;

CPU_INLINE int64_t plane_start(const maxpool_job *j, size_t p, int64_t image_size) {
  return clv_cpu_plane_start(&j->planes, p, image_size);
}

/* The taps of a window along one axis, and those of them that are inside the image. */
typedef struct taps {
  int64_t first, begin, end; /* first: image index of tap 0; taps begin to end - 1 are inside */
} taps;

CPU_INLINE taps find_taps(const clv_window *s, int axis, int64_t o, int64_t extent) {
  taps t = {o * s->stride[axis] - s->pad[axis], 0, s->kernel[axis]};
  t.begin = t.first < 0 ? -t.first : 0;
  if (t.first + t.end > extent) t.end = extent - t.first;
  return t;
}

/* Vectors of the bytes of 8 or 16 channels. */
typedef uint8_t vu8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint8_t vu16 __attribute__((vector_size(16), aligned(1), may_alias));

/* Defines forward and backward of one plane, an image of B channels, compiled for TARGET. For B = 1
 * see forward_plane_1 and backward_plane_1. Selections are bit masks, because vectors have no `?:`
 * in C. `is_2x2`: windows of 2x2 without overlap, a constant at the call, so that the most common
 * case has no loop over taps. */
#define DEFINE_PLANE_FNS(B, vf, vi, vu, W, TARGET)                                                \
  TARGET CPU_INLINE void forward_plane_##B##_##W(const maxpool_job *j, size_t p, bool is_2x2) {   \
    const clv_window *s = &j->s;                                                                  \
    int64_t columns = is_2x2 ? 2 : s->kernel[1];                                                  \
    int64_t position_stride = j->planes.position_stride;                                          \
    const float *x = j->x + plane_start(j, p, s->h * s->w);                                       \
    float *y = j->y + plane_start(j, p, s->oh * s->ow);                                           \
    uint8_t *argmax_taps = j->argmax_taps + plane_start(j, p, s->oh * s->ow);                     \
    for (int64_t i = 0; i < s->oh; i++)                                                           \
      for (int64_t o = 0; o < s->ow; o++) {                                                       \
        taps h = is_2x2 ? (taps){2 * i, 0, 2} : find_taps(s, 0, i, s->h);                         \
        taps w = is_2x2 ? (taps){2 * o, 0, 2} : find_taps(s, 1, o, s->w);                         \
        vf max = (vf){0} - INFINITY;                                                              \
        vi at = (vi){0} + (int32_t)(h.begin * columns + w.begin);                                 \
        for (int64_t u = h.begin; u < h.end; u++)                                                 \
          for (int64_t v = w.begin; v < w.end; v++) {                                             \
            vf value = *(const vf *)(x + ((h.first + u) * s->w + w.first + v) * position_stride); \
            vi wins = (value > max) | (value != value);                                           \
            vi tap = (vi){0} + (int32_t)(u * columns + v);                                        \
            max = (vf)((wins & (vi)value) | (~wins & (vi)max));                                   \
            at = (wins & tap) | (~wins & at);                                                     \
          }                                                                                       \
        *(vf *)(y + (i * s->ow + o) * position_stride) = max;                                     \
        *(vu *)(argmax_taps + (i * s->ow + o) * position_stride) =                                \
            __builtin_convertvector(at, vu);                                                      \
      }                                                                                           \
  }                                                                                               \
  TARGET CPU_INLINE void backward_plane_##B##_##W(const maxpool_job *j, size_t p, bool is_2x2) {  \
    const clv_window *s = &j->s;                                                                  \
    bool tiles_image = is_2x2 || j->windows_tile_image;                                           \
    int64_t columns = is_2x2 ? 2 : s->kernel[1];                                                  \
    int64_t position_stride = j->planes.position_stride;                                          \
    const float *dy = j->x + plane_start(j, p, s->oh * s->ow);                                    \
    float *dx = j->y + plane_start(j, p, s->h * s->w);                                            \
    const uint8_t *argmax_taps = j->argmax_taps + plane_start(j, p, s->oh * s->ow);               \
    for (int64_t i = 0; !tiles_image && i < s->h * s->w; i++)                                     \
      *(vf *)(dx + i * position_stride) = (vf){0};                                                \
    for (int64_t i = 0; i < s->oh; i++)                                                           \
      for (int64_t o = 0; o < s->ow; o++) {                                                       \
        taps h = is_2x2 ? (taps){2 * i, 0, 2} : find_taps(s, 0, i, s->h);                         \
        taps w = is_2x2 ? (taps){2 * o, 0, 2} : find_taps(s, 1, o, s->w);                         \
        vu tap_of = *(const vu *)(argmax_taps + (i * s->ow + o) * position_stride);               \
        vi at = __builtin_convertvector(tap_of, vi);                                              \
        vf gradient = *(const vf *)(dy + (i * s->ow + o) * position_stride);                      \
        for (int64_t u = h.begin; u < h.end; u++)                                                 \
          for (int64_t v = w.begin; v < w.end; v++) {                                             \
            vf *to = (vf *)(dx + ((h.first + u) * s->w + w.first + v) * position_stride);         \
            vi tap = (vi){0} + (int32_t)(u * columns + v);                                        \
            vf share = (vf)((at == tap) & (vi)gradient);                                          \
            if (!tiles_image) share += *to;                                                       \
            *to = share;                                                                          \
          }                                                                                       \
      }                                                                                           \
  }

DEFINE_PLANE_FNS(8, cpu_vf8, cpu_vi8, vu8, PLAIN, CPU_TARGET_PLAIN)
DEFINE_PLANE_FNS(8, cpu_vf8, cpu_vi8, vu8, 256, CPU_TARGET_256)
DEFINE_PLANE_FNS(8, cpu_vf8, cpu_vi8, vu8, 512, CPU_TARGET_512)
DEFINE_PLANE_FNS(16, cpu_vf16, cpu_vi16, vu16, PLAIN, CPU_TARGET_PLAIN)
DEFINE_PLANE_FNS(16, cpu_vf16, cpu_vi16, vu16, 256, CPU_TARGET_256)
DEFINE_PLANE_FNS(16, cpu_vf16, cpu_vi16, vu16, 512, CPU_TARGET_512)

CPU_INLINE void forward_plane_1(const maxpool_job *j, size_t p, bool is_2x2) {
  const clv_window *s = &j->s;
  int64_t position_stride = j->planes.position_stride;
  const float *x = j->x + plane_start(j, p, s->h * s->w);
  float *y = j->y + plane_start(j, p, s->oh * s->ow);
  uint8_t *argmax_taps = j->argmax_taps + plane_start(j, p, s->oh * s->ow);
  for (int64_t i = 0; i < s->oh * s->ow; i++) {
    int64_t row = i / s->ow, column = i % s->ow;
    taps h = is_2x2 ? (taps){2 * row, 0, 2} : find_taps(s, 0, row, s->h);
    taps w = is_2x2 ? (taps){2 * column, 0, 2} : find_taps(s, 1, column, s->w);
    float max = -INFINITY;
    int64_t at = h.begin * s->kernel[1] + w.begin;
    for (int64_t u = h.begin; u < h.end; u++)
      for (int64_t v = w.begin; v < w.end; v++) {
        float value = x[((h.first + u) * s->w + w.first + v) * position_stride];
        bool is_new_max = value > max || value != value;
        max = is_new_max ? value : max;
        at = is_new_max ? u * s->kernel[1] + v : at;
      }
    y[i * position_stride] = max;
    argmax_taps[i * position_stride] = (uint8_t)at;
  }
}

CPU_INLINE void backward_plane_1(const maxpool_job *j, size_t p, bool is_2x2) {
  (void)is_2x2;
  const clv_window *s = &j->s;
  int64_t position_stride = j->planes.position_stride;
  const float *dy = j->x + plane_start(j, p, s->oh * s->ow);
  float *dx = j->y + plane_start(j, p, s->h * s->w);
  const uint8_t *argmax_taps = j->argmax_taps + plane_start(j, p, s->oh * s->ow);
  for (int64_t i = 0; i < s->h * s->w; i++) dx[i * position_stride] = 0;
  for (int64_t i = 0; i < s->oh * s->ow; i++) {
    int64_t h =
        i / s->ow * s->stride[0] - s->pad[0] + argmax_taps[i * position_stride] / s->kernel[1];
    int64_t w =
        i % s->ow * s->stride[1] - s->pad[1] + argmax_taps[i * position_stride] % s->kernel[1];
    float *to = &dx[(h * s->w + w) * position_stride];
    *to = j->windows_tile_image ? dy[i * position_stride] : *to + dy[i * position_stride];
  }
}

/* Defines `name`, a clv_cpu_range_fn that calls `plane_fn` on the planes [begin, end) of the
 * job. */
#define DEFINE_POOL_RANGE_FN(name, plane_fn, TARGET)                                   \
  TARGET static void name(void *arg, size_t begin, size_t end) {                       \
    const maxpool_job *j = arg;                                                        \
    bool is_2x2 = j->windows_tile_image && j->s.kernel[0] == 2 && j->s.kernel[1] == 2; \
    for (size_t p = begin; p < end; p++) {                                             \
      if (is_2x2)                                                                      \
        plane_fn(j, p, true);                                                          \
      else                                                                             \
        plane_fn(j, p, false);                                                         \
    }                                                                                  \
  }

#define DEFINE_POOL_RANGES(direction)                                                            \
  DEFINE_POOL_RANGE_FN(direction##_range_1, direction##_plane_1, CPU_TARGET_PLAIN)               \
  DEFINE_POOL_RANGE_FN(direction##_range_8_PLAIN, direction##_plane_8_PLAIN, CPU_TARGET_PLAIN)   \
  DEFINE_POOL_RANGE_FN(direction##_range_8_256, direction##_plane_8_256, CPU_TARGET_256)         \
  DEFINE_POOL_RANGE_FN(direction##_range_8_512, direction##_plane_8_512, CPU_TARGET_512)         \
  DEFINE_POOL_RANGE_FN(direction##_range_16_PLAIN, direction##_plane_16_PLAIN, CPU_TARGET_PLAIN) \
  DEFINE_POOL_RANGE_FN(direction##_range_16_256, direction##_plane_16_256, CPU_TARGET_256)       \
  DEFINE_POOL_RANGE_FN(direction##_range_16_512, direction##_plane_16_512, CPU_TARGET_512)       \
  /* functions by channel block (1, 8, 16) and clv_cpu_vector_width() */                         \
  static clv_cpu_range_fn *const direction##_ranges[3][3] = {                                    \
      {direction##_range_1, direction##_range_1, direction##_range_1},                           \
      {direction##_range_8_PLAIN, direction##_range_8_256, direction##_range_8_512},             \
      {direction##_range_16_PLAIN, direction##_range_16_256, direction##_range_16_512}};

DEFINE_POOL_RANGES(forward)
DEFINE_POOL_RANGES(backward)

static void run_planes(const cpu_kernel *k, maxpool_job *j, clv_cpu_range_fn *const fn[3][3]) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j->planes.n,
                   fn[j->planes.width / 8][clv_cpu_vector_width()], j);
}

static maxpool_job make_job(const cpu_kernel *k, const void *x, void *y, const clv_kernel_args *a) {
  maxpool_job j = {clv_window_of(&k->d), x, y, a->saved, {0}, true};
  j.planes = clv_cpu_planes_of(&j.s, k->base.in_block[0]);
  for (int i = 0; i < 2; i++) {
    int64_t in = i ? j.s.w : j.s.h, out = i ? j.s.ow : j.s.oh;
    j.windows_tile_image = j.windows_tile_image && j.s.pad[i] == 0 &&
                           j.s.stride[i] == j.s.kernel[i] && out * j.s.kernel[i] == in;
  }
  return j;
}

static clv_code maxpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  maxpool_job j = make_job((const cpu_kernel *)base, a->in[0], a->out, a);
  (void)err;
  run_planes((const cpu_kernel *)base, &j, forward_ranges);
  return CLV_OK;
}

static clv_code maxpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  maxpool_job j = make_job((const cpu_kernel *)base, a->dout, a->din[0], a);
  (void)err;
  run_planes((const cpu_kernel *)base, &j, backward_ranges);
  return CLV_OK;
}

static clv_code maxpool_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  clv_window s = clv_window_of(d);
  if (s.kernel[0] > 255 || s.kernel[1] > 255 || s.kernel[0] * s.kernel[1] > 255)
    return clv_fail(err, CLV_UNIMPLEMENTED, "maxpool window %lldx%lld has over 255 taps",
                    (long long)s.kernel[0], (long long)s.kernel[1]);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = maxpool_forward;
  k->base.backward_input = d->need_dx[0] ? maxpool_backward : NULL;
  k->base.saved_bytes = k->n_out;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(maxpool, maxpool_prepare)
CLV_CPU_OP(maxpool1d, maxpool_prepare)
