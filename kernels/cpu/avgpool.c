/* SPDX-License-Identifier: Apache-2.0
 *
 * avgpool (padding counts as zeros, as torch's default) and globalavgpool. Sums are in double, in
 * scan order in every layout, and rounded once.
 */
#include "kernels/cpu/cpu_int.h"

typedef struct mean_job {
  clv_window s;
  const float *x;
  float *y;
  cpu_planes planes;
} mean_job;

typedef struct taps {
  int64_t begin, end;
} taps;

/* Returns the range of image rows (or columns) that window o covers, for forward. */
CPU_INLINE taps positions_in(const clv_window *s, int axis, int64_t o, int64_t extent) {
  int64_t first = o * s->stride[axis] - s->pad[axis];
  return (taps){CLV_MAX(first, 0), CLV_MIN(first + s->kernel[axis], extent)};
}

/* Returns the range of windows that cover image row (or column) h, for backward. */
CPU_INLINE taps windows_over(const clv_window *s, int axis, int64_t h, int64_t n_windows) {
  int64_t last = (h + s->pad[axis]) / s->stride[axis], over = h + s->pad[axis] - s->kernel[axis];
  int64_t first = over < 0 ? 0 : over / s->stride[axis] + 1;
  return (taps){first, CLV_MIN(last + 1, n_windows)};
}

/* Computes plane p of b channels: forward, each output is the mean over its window; if is_backward,
 * each input gradient is the sum over its windows divided by the window's size. */
CPU_INLINE void mean_plane(const mean_job *j, size_t p, int64_t b, bool is_backward) {
  const clv_window *s = &j->s;
  int64_t to_h = is_backward ? s->h : s->oh, to_w = is_backward ? s->w : s->ow;
  int64_t from_h = is_backward ? s->oh : s->h, from_w = is_backward ? s->ow : s->w;
  int64_t pitch = j->planes.pitch;
  const float *x = j->x + clv_cpu_plane_start(&j->planes, p, from_h * from_w);
  float *y = j->y + clv_cpu_plane_start(&j->planes, p, to_h * to_w);
  double count = (double)(s->kernel[0] * s->kernel[1]);
  for (int64_t o = 0; o < to_h * to_w; o++, y += pitch) {
    taps h =
        is_backward ? windows_over(s, 0, o / to_w, from_h) : positions_in(s, 0, o / to_w, from_h);
    taps w =
        is_backward ? windows_over(s, 1, o % to_w, from_w) : positions_in(s, 1, o % to_w, from_w);
    double sum[16] = {0};
    for (int64_t u = h.begin; u < h.end; u++)
      for (int64_t v = w.begin; v < w.end; v++)
        for (int64_t l = 0; l < b; l++) sum[l] += x[(u * from_w + v) * pitch + l];
    for (int64_t l = 0; l < b; l++) y[l] = (float)(sum[l] / count);
  }
}

CPU_INLINE void mean_planes_body(const mean_job *j, size_t begin, size_t end, int b,
                                 bool is_backward) {
  for (size_t p = begin; p < end; p++) {
    if (b == 1)
      mean_plane(j, p, 1, is_backward);
    else if (b == 8)
      mean_plane(j, p, 8, is_backward);
    else
      mean_plane(j, p, 16, is_backward);
  }
}

CPU_CLONES(mean_planes, (const mean_job *j, size_t begin, size_t end, int b, bool is_backward),
           (j, begin, end, b, is_backward))

#define MEAN_RANGE(name, b, is_backward)                  \
  static void name(void *arg, size_t begin, size_t end) { \
    mean_planes(arg, begin, end, b, is_backward);         \
  }

MEAN_RANGE(forward_1, 1, false)
MEAN_RANGE(forward_8, 8, false)
MEAN_RANGE(forward_16, 16, false)
MEAN_RANGE(backward_1, 1, true)
MEAN_RANGE(backward_8, 8, true)
MEAN_RANGE(backward_16, 16, true)

/* Returns the window of the op; that of globalavgpool covers the image. */
static clv_window pool_window(const cpu_kernel *k) {
  clv_window s = clv_window_of(&k->d);
  if (k->d.op != CLV_OP_GLOBALAVGPOOL) return s;
  for (int i = 0; i < 2; i++) {
    s.kernel[i] = s.stride[i] = i ? s.w : s.h;
    s.pad[i] = 0;
  }
  return s;
}

static void compute_means(const cpu_kernel *k, const void *x, void *y,
                          clv_cpu_range_fn *const fn[3]) {
  clv_window s = pool_window(k);
  mean_job j = {s, x, y, clv_cpu_planes_of(&s, k->base.in_block[0])};
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.planes.n, fn[j.planes.width / 8],
                   &j);
}

static clv_code mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  static clv_cpu_range_fn *const fn[3] = {forward_1, forward_8, forward_16};
  (void)err;
  compute_means((const cpu_kernel *)base, a->in[0], a->out, fn);
  return CLV_OK;
}

static clv_code mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  static clv_cpu_range_fn *const fn[3] = {backward_1, backward_8, backward_16};
  (void)err;
  compute_means((const cpu_kernel *)base, a->dout, a->din[0], fn);
  return CLV_OK;
}

static clv_code avgpool_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = d->out.rank == 4 ? clv_cpu_offered_block(d) : 1;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = mean_forward;
  k->base.backward_input = d->need_dx[0] ? mean_backward : NULL;
  *ret = &k->base;
  return CLV_OK;
}

static clv_code globalavgpool_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  if (d->out.rank != 4)
    return clv_fail(err, CLV_UNIMPLEMENTED, "globalavgpool to rank %d", d->out.rank);
  return avgpool_prepare(d, ret, err);
}

CLV_CPU_OP(avgpool, avgpool_prepare)
CLV_CPU_OP(avgpool1d, avgpool_prepare)
CLV_CPU_OP(globalavgpool, globalavgpool_prepare)
