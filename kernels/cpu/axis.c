/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops along one dimension, seen as [outer, extent, inner]: flip and roll copy runs of inner values,
 * cumsum and var walk over LANES neighbouring columns at a time, with sums in double.
 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

enum { LANES = 16 }; /* largest number of columns of a strip, which are processed together */

typedef struct axis_job {
  clv_axis s;
  const float *x, *dy;
  float *y;
  size_t n_strips; /* number of strips, of up to LANES columns each, in `inner` columns */
  /* of flip and roll: y[e] is x[(source_offset + source_step * e) mod extent] along the dimension
   */
  int64_t source_offset, source_step;
  bool sums_from_end; /* of cumsum: adds from the last value to the first */
  double divisor;     /* of var: divides the sum of squared distances from the mean */
} axis_job;

static axis_job make_job(const cpu_kernel *k, const float *x, float *y) {
  axis_job j = {.s = clv_axis_extents(&k->d.attrs, &k->d.in[0]), .x = x, .y = y};
  j.n_strips = (j.s.inner + LANES - 1) / LANES;
  j.divisor = (double)j.s.extent - (double)k->d.attrs.correction;
  return j;
}

static clv_code run_job(const cpu_kernel *k, axis_job *j, size_t n, clv_cpu_range_fn *fn) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), n, fn, j);
  return CLV_OK;
}

/* ---- flip, roll ------------------------------------------------------------------------------ */

/* Fills the rows [begin, end) of the outer * extent rows of y from those of x. */
static void move_rows(void *arg, size_t begin, size_t end) {
  const axis_job *j = arg;
  int64_t extent = (int64_t)j->s.extent;
  size_t inner = j->s.inner;
  for (size_t r = begin; r < end; r++) {
    int64_t source_index =
        (j->source_offset + j->source_step * (int64_t)(r % j->s.extent)) % extent;
    source_index += source_index < 0 ? extent : 0;
    const float *x = j->x + (r - r % j->s.extent + (size_t)source_index) * inner;
    if (inner == 1)
      j->y[r] = *x;
    else
      memcpy(j->y + r * inner, x, inner * sizeof *x);
  }
}

static clv_code move_values(const cpu_kernel *k, int64_t source_offset, int64_t source_step,
                            const float *x, float *y) {
  axis_job j = make_job(k, x, y);
  j.source_offset = source_offset;
  j.source_step = source_step;
  return run_job(k, &j, j.s.outer * j.s.extent, move_rows);
}

/* Defines forward and backward of an op that moves values. forward_of, back_of: the arguments
 * source_offset and source_step of move_values. */
#define DEFINE_MOVE_FNS(name, forward_of, back_of)                                            \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {  \
    const cpu_kernel *k = (const cpu_kernel *)base;                                           \
    (void)err;                                                                                \
    return move_values(k, forward_of, a->in[0], a->out);                                      \
  }                                                                                           \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) { \
    const cpu_kernel *k = (const cpu_kernel *)base;                                           \
    (void)err;                                                                                \
    return move_values(k, back_of, a->dout, a->din[0]);                                       \
  }
/* Arguments source_offset and source_step of move_values, for each op and direction: value i of the
 * result comes from the index offset + step * i, modulo the extent. */
#define FLIP_OFFSET_AND_STEP -1, -1
#define ROLL_OFFSET_AND_STEP -k->d.attrs.shifts, 1
#define ROLL_BACK_OFFSET_AND_STEP k->d.attrs.shifts, 1
DEFINE_MOVE_FNS(flip, FLIP_OFFSET_AND_STEP, FLIP_OFFSET_AND_STEP)
DEFINE_MOVE_FNS(roll, ROLL_OFFSET_AND_STEP, ROLL_BACK_OFFSET_AND_STEP)

/* ---- cumsum, var ----------------------------------------------------------------------------- */

/* Returns the index in x of the first value of strip i. A strip is a group of neighbouring columns,
 * and a column the values along the dimension. *ret_n: number of the strip's columns. */
CPU_INLINE size_t find_strip(const axis_job *j, size_t i, size_t *ret_n) {
  size_t column = i % j->n_strips * LANES;
  *ret_n = CLV_MIN((size_t)LANES, j->s.inner - column);
  return i / j->n_strips * j->s.extent * j->s.inner + column;
}

/* Writes the running sums of n columns of a strip whose first value has index first_index. */
CPU_INLINE void write_strip_sums(const axis_job *j, size_t first_index, size_t n) {
  double sum[LANES] = {0};
  for (size_t e = 0; e < j->s.extent; e++) {
    size_t row = first_index + (j->sums_from_end ? j->s.extent - 1 - e : e) * j->s.inner;
    for (size_t l = 0; l < n; l++) {
      sum[l] += (double)j->x[row + l];
      j->y[row + l] = (float)sum[l];
    }
  }
}

/* Computes the variances of n columns, whose first value has index first_index in x, and writes
 * them from y[out_index] on. If dy is not NULL, computes the gradients of the values instead. */
CPU_INLINE void compute_strip_variances(const axis_job *j, size_t first_index, size_t out_index,
                                        size_t n) {
  double mean[LANES] = {0}, squares[LANES] = {0};
  for (size_t e = 0; e < j->s.extent; e++)
    for (size_t l = 0; l < n; l++) mean[l] += (double)j->x[first_index + e * j->s.inner + l];
  for (size_t l = 0; l < n; l++) mean[l] /= (double)j->s.extent;
  for (size_t e = 0; e < j->s.extent; e++)
    for (size_t l = 0; l < n; l++) {
      double distance = (double)j->x[first_index + e * j->s.inner + l] - mean[l];
      if (j->dy)
        j->y[first_index + e * j->s.inner + l] =
            (float)(2 * (double)j->dy[out_index + l] / j->divisor * distance);
      else
        squares[l] += distance * distance;
    }
  for (size_t l = 0; l < n && !j->dy; l++) j->y[out_index + l] = (float)(squares[l] / j->divisor);
}

CPU_INLINE void process_strips_body(const axis_job *j, size_t begin, size_t end, bool is_cumsum) {
  for (size_t i = begin; i < end; i++) {
    size_t n, first_index = find_strip(j, i, &n),
              out_index = i / j->n_strips * j->s.inner + i % j->n_strips * LANES;
    if (is_cumsum && n == LANES)
      write_strip_sums(j, first_index, LANES);
    else if (is_cumsum)
      write_strip_sums(j, first_index, n);
    else if (n == LANES)
      compute_strip_variances(j, first_index, out_index, LANES);
    else
      compute_strip_variances(j, first_index, out_index, n);
  }
}

CPU_CLONES(process_strips, (const axis_job *j, size_t begin, size_t end, bool is_cumsum),
           (j, begin, end, is_cumsum))

static void write_running_sums(void *arg, size_t begin, size_t end) {
  process_strips(arg, begin, end, true);
}
static void compute_variances(void *arg, size_t begin, size_t end) {
  process_strips(arg, begin, end, false);
}

static clv_code cumsum_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  axis_job j = make_job((const cpu_kernel *)base, a->in[0], a->out);
  (void)err;
  return run_job((const cpu_kernel *)base, &j, j.s.outer * j.n_strips, write_running_sums);
}

static clv_code cumsum_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  axis_job j = make_job((const cpu_kernel *)base, a->dout, a->din[0]);
  (void)err;
  j.sums_from_end = true;
  return run_job((const cpu_kernel *)base, &j, j.s.outer * j.n_strips, write_running_sums);
}

static clv_code var_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  axis_job j = make_job((const cpu_kernel *)base, a->in[0], a->out);
  (void)err;
  return run_job((const cpu_kernel *)base, &j, j.s.outer * j.n_strips, compute_variances);
}

static clv_code var_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  axis_job j = make_job((const cpu_kernel *)base, a->in[0], a->din[0]);
  (void)err;
  j.dy = a->dout;
  return run_job((const cpu_kernel *)base, &j, j.s.outer * j.n_strips, compute_variances);
}

/* Defines name_prepare. flags: CLV_SAVE_* of the values that backward reads. */
#define DEFINE_AXIS_PREPARE(name, flags)                                                   \
  static clv_code name##_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) { \
    cpu_kernel *k;                                                                         \
    CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));                              \
    k->base.forward = name##_forward;                                                      \
    k->base.backward_input = d->need_dx[0] ? name##_backward : NULL;                       \
    k->base.saved_flags = d->need_dx[0] ? (flags) : 0;                                     \
    *ret = &k->base;                                                                       \
    return CLV_OK;                                                                         \
  }
DEFINE_AXIS_PREPARE(flip, 0)
DEFINE_AXIS_PREPARE(roll, 0)
DEFINE_AXIS_PREPARE(cumsum, 0)
DEFINE_AXIS_PREPARE(var, CLV_SAVE_IN0)

CLV_CPU_OP(flip, flip_prepare)
CLV_CPU_OP(roll, roll_prepare)
CLV_CPU_OP(cumsum, cumsum_prepare)
CLV_CPU_OP(var, var_prepare)
