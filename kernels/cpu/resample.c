/* SPDX-License-Identifier: Apache-2.0
 *
 * Adaptive average pools and upsampling, over planes of 1, 8 or 16 channels (cpu_planes). The
 * source is the input in forward, and the gradient of the output in backward. Each call first makes
 * a table for each axis in scratch: which positions of the source a position of the target reads,
 * and with which weights.
 */
#include "kernels/cpu/cpu_int.h"

/* The source positions first .. first + n - 1 that one target position reads. first_weight: index
 * in the table of the first one's weight. */
typedef struct source_span {
  int64_t first, n, first_weight;
} source_span;

typedef struct source_table {
  source_span *spans; /* [extent of the target] */
  double *weights;
} source_table;

typedef struct resample_job {
  clv_resample r;
  const float *x;
  float *y;
  cpu_planes planes;
  int64_t src_size[2], dst_size[2]; /* height and width of the source and of the target */
  /* tables of the rows and of the columns that each target position reads */
  source_table table[2];
} resample_job;

/* Returns the largest number of weights that a table of an axis can have, in forward or in
 * backward. */
static size_t max_weights(const clv_resample *r, int axis) {
  return (size_t)(r->in[axis] + 2 * r->out[axis]);
}

static size_t max_positions(const clv_resample *r, int axis) {
  return (size_t)CLV_MAX(r->in[axis], r->out[axis]);
}

static size_t table_bytes(const clv_resample *r, int axis) {
  return max_positions(r, axis) * sizeof(source_span) + max_weights(r, axis) * sizeof(double);
}

static void fill_forward_table(const clv_resample *r, int axis, const source_table *t) {
  int64_t n_weights = 0;
  for (int64_t o = 0; o < r->out[axis]; o++) {
    clv_taps taps = clv_taps_of(r, axis, o);
    t->spans[o] = (source_span){taps.first, taps.n, n_weights};
    for (int64_t i = 0; i < taps.n; i++) t->weights[n_weights++] = taps.w[i > 0];
  }
}

/* Fills a table of the outputs that read each input. These outputs are neighbours, because from one
 * output to the next the first input never decreases. */
static void fill_backward_table(const clv_resample *r, int axis, const source_table *t) {
  int64_t n_weights = 0;
  for (int64_t i = 0; i < r->in[axis]; i++) {
    int64_t end, o = clv_first_reading_output(r, axis, i, &end);
    source_span *s = &t->spans[i];
    *s = (source_span){o, 0, n_weights};
    for (; o < end; o++) {
      clv_taps taps = clv_taps_of(r, axis, o);
      if (i < taps.first || i >= taps.first + taps.n) continue;
      if (!s->n) s->first = o;
      s->n++;
      t->weights[n_weights++] = clv_tap_weight(&taps, i);
    }
  }
}

/* Computes plane p of the target, which has b channels. */
CPU_INLINE void resample_plane(const resample_job *j, size_t p, int64_t b) {
  int64_t position_stride = j->planes.position_stride;
  const float *x = j->x + clv_cpu_plane_start(&j->planes, p, j->src_size[0] * j->src_size[1]);
  float *y = j->y + clv_cpu_plane_start(&j->planes, p, j->dst_size[0] * j->dst_size[1]);
  for (int64_t row = 0; row < j->dst_size[0]; row++)
    for (int64_t column = 0; column < j->dst_size[1]; column++, y += position_stride) {
      source_span h = j->table[0].spans[row], w = j->table[1].spans[column];
      double sum[16] = {0};
      for (int64_t u = 0; u < h.n; u++)
        for (int64_t v = 0; v < w.n; v++) {
          const float *value = x + ((h.first + u) * j->src_size[1] + w.first + v) * position_stride;
          double weight =
              j->table[0].weights[h.first_weight + u] * j->table[1].weights[w.first_weight + v];
          for (int64_t l = 0; l < b; l++) sum[l] += weight * (double)value[l];
        }
      for (int64_t l = 0; l < b; l++) y[l] = (float)sum[l];
    }
}

CPU_INLINE void resample_planes_body(const resample_job *j, size_t begin, size_t end) {
  for (size_t p = begin; p < end; p++)
    if (j->planes.width == 1)
      resample_plane(j, p, 1);
    else if (j->planes.width == 8)
      resample_plane(j, p, 8);
    else
      resample_plane(j, p, 16);
}

CPU_CLONES(resample_planes, (const resample_job *j, size_t begin, size_t end), (j, begin, end))

static void run_planes(void *arg, size_t begin, size_t end) { resample_planes(arg, begin, end); }

static void resample(const cpu_kernel *k, const float *x, float *y, bool is_backward,
                     char *scratch) {
  resample_job j = {
      .r = clv_resample_of(k->d.op, &k->d.attrs, &k->d.in[0], &k->d.out), .x = x, .y = y};
  clv_window s = {.n = j.r.n, .c = j.r.c, .h = j.r.in[0], .w = j.r.in[1]};
  j.planes = clv_cpu_planes_of(&s, k->base.in_block[0]);
  for (int axis = 0; axis < 2; axis++) {
    j.src_size[axis] = is_backward ? j.r.out[axis] : j.r.in[axis];
    j.dst_size[axis] = is_backward ? j.r.in[axis] : j.r.out[axis];
    j.table[axis].weights = (double *)(void *)scratch;
    j.table[axis].spans = (source_span *)(void *)(j.table[axis].weights + max_weights(&j.r, axis));
    (is_backward ? fill_backward_table : fill_forward_table)(&j.r, axis, &j.table[axis]);
    scratch += table_bytes(&j.r, axis);
  }
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in + k->n_out), j.planes.n, run_planes,
                   &j);
}

static clv_code resample_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  resample((const cpu_kernel *)base, a->in[0], a->out, false, a->scratch);
  return CLV_OK;
}

static clv_code resample_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  resample((const cpu_kernel *)base, a->dout, a->din[0], true, a->scratch);
  return CLV_OK;
}

static clv_code resample_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  clv_resample r = clv_resample_of(d->op, &d->attrs, &d->in[0], &d->out);
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = resample_forward;
  k->base.backward_input = d->need_dx[0] ? resample_backward : NULL;
  k->base.scratch_bytes = table_bytes(&r, 0) + table_bytes(&r, 1);
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(adaptive_avgpool1d, resample_prepare)
CLV_CPU_OP(adaptive_avgpool2d, resample_prepare)
CLV_CPU_OP(upsample_nearest, resample_prepare)
CLV_CPU_OP(upsample_bilinear, resample_prepare)
