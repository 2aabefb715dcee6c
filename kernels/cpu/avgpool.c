/* SPDX-License-Identifier: Apache-2.0
 *
 * avgpool (padding counts as zeros, as torch's default) and globalavgpool. Sums are in double, in
 * scan order in every layout, and rounded once.
 */
#include "kernels/cpu/cpu_int.h"

typedef struct mean_job {
  clv_window s;
  const float *x; /* input of forward; gradient of the output in backward */
  float *y;       /* output of forward; gradient of the input in backward */
  cpu_planes planes;
} mean_job;

/* Indices begin to end - 1 of rows or columns. */
typedef struct index_range {
  int64_t begin, end;
} index_range;

/* Returns the range of image rows (or columns) that window o covers, for forward. */
CPU_INLINE index_range find_covered_positions(const clv_window *s, int axis, int64_t o,
                                              int64_t extent) {
  int64_t first_position = o * s->stride[axis] - s->pad[axis];
  return (index_range){CLV_MAX(first_position, 0),
                       CLV_MIN(first_position + s->kernel[axis], extent)};
}

/* Returns the range of windows that cover image row (or column) h, for backward. */
CPU_INLINE index_range find_covering_windows(const clv_window *s, int axis, int64_t h,
                                             int64_t n_windows) {
  /* a window that starts (in the padded image) at max_start_ending_before_h or earlier ends before
   * h */
  int64_t last_window = (h + s->pad[axis]) / s->stride[axis],
          max_start_ending_before_h = h + s->pad[axis] - s->kernel[axis];
  int64_t first_window =
      max_start_ending_before_h < 0 ? 0 : max_start_ending_before_h / s->stride[axis] + 1;
  return (index_range){first_window, CLV_MIN(last_window + 1, n_windows)};
}

/* Computes plane p of b channels: forward, each output is the mean over its window; if is_backward,
 * each input gradient is the sum over its windows divided by the window's size. */
CPU_INLINE void average_plane(const mean_job *j, size_t p, int64_t b, bool is_backward) {
  const clv_window *s = &j->s;
  int64_t dst_height = is_backward ? s->h : s->oh, dst_width = is_backward ? s->w : s->ow;
  int64_t src_height = is_backward ? s->oh : s->h, src_width = is_backward ? s->ow : s->w;
  int64_t position_stride = j->planes.position_stride;
  const float *x = j->x + clv_cpu_plane_start(&j->planes, p, src_height * src_width);
  float *y = j->y + clv_cpu_plane_start(&j->planes, p, dst_height * dst_width);
  double window_size = (double)(s->kernel[0] * s->kernel[1]);
  for (int64_t o = 0; o < dst_height * dst_width; o++, y += position_stride) {
    index_range h = is_backward ? find_covering_windows(s, 0, o / dst_width, src_height)
                                : find_covered_positions(s, 0, o / dst_width, src_height);
    index_range w = is_backward ? find_covering_windows(s, 1, o % dst_width, src_width)
                                : find_covered_positions(s, 1, o % dst_width, src_width);
    double sum[16] = {0};
    for (int64_t u = h.begin; u < h.end; u++)
      for (int64_t v = w.begin; v < w.end; v++)
        for (int64_t l = 0; l < b; l++) sum[l] += x[(u * src_width + v) * position_stride + l];
    for (int64_t l = 0; l < b; l++) y[l] = (float)(sum[l] / window_size);
  }
}

CPU_INLINE void average_planes_body(const mean_job *j, size_t begin, size_t end, int b,
                                    bool is_backward) {
  for (size_t p = begin; p < end; p++) {
    if (b == 1)
      average_plane(j, p, 1, is_backward);
    else if (b == 8)
      average_plane(j, p, 8, is_backward);
    else
      average_plane(j, p, 16, is_backward);
  }
}

CPU_CLONES(average_planes, (const mean_job *j, size_t begin, size_t end, int b, bool is_backward),
           (j, begin, end, b, is_backward))

/* Defines `name`, a clv_cpu_range_fn that averages planes in which b channels are
 * interleaved. */
#define DEFINE_RANGE_FN(name, b, is_backward)             \
  static void name(void *arg, size_t begin, size_t end) { \
    average_planes(arg, begin, end, b, is_backward);      \
  }

DEFINE_RANGE_FN(forward_1, 1, false)
DEFINE_RANGE_FN(forward_8, 8, false)
DEFINE_RANGE_FN(forward_16, 16, false)
DEFINE_RANGE_FN(backward_1, 1, true)
DEFINE_RANGE_FN(backward_8, 8, true)
DEFINE_RANGE_FN(backward_16, 16, true)

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
