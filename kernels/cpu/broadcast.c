/* SPDX-License-Identifier: Apache-2.0
 *
 * add and mul with broadcast inputs. A thread computes a sample, row by row of the last dimension.
 * The gradient of a broadcast input is summed in double, in the order of the output's values; along
 * a row into 16 partial sums, value i into the partial sum i % 16.
 */
#include <string.h>

#include "kernels/cpu/pointwise_int.h"

enum { LANES = 16 }; /* number of partial sums of a row */

typedef struct broadcast_kernel {
  cpu_kernel k;
  clv_broadcast v;
  size_t n_rows;      /* number of rows of a sample of the output */
  size_t n_values[2]; /* number of values of each input */
  bool is_product;
} broadcast_kernel;

/* Iterator over the rows of a sample. out_index, in_index: indices of the first value of the
 * current row in the output and in each input. index: the row's position along each dimension but
 * the last. */
typedef struct row_iterator {
  size_t out_index, in_index[2], index[CLV_MAX_RANK];
} row_iterator;

static row_iterator start_rows(const broadcast_kernel *k, size_t sample) {
  const clv_broadcast *v = &k->v;
  row_iterator w = {.out_index = sample * k->n_rows * v->n[v->rank - 1]};
  for (int j = 0; j < 2; j++) w.in_index[j] = sample * v->step[j][0];
  return w;
}

static void go_to_next_row(const broadcast_kernel *k, row_iterator *w) {
  const clv_broadcast *v = &k->v;
  w->out_index += v->n[v->rank - 1];
  for (int i = v->rank - 1; i-- > 1;) {
    for (int j = 0; j < 2; j++) w->in_index[j] += v->step[j][i];
    if (++w->index[i] < v->n[i]) return;
    for (int j = 0; j < 2; j++) w->in_index[j] -= v->step[j][i] * v->n[i];
    w->index[i] = 0;
  }
}

/* ---- loops over one row ---------------------------------------------------------------------- */

/* Values of an input for a row: one for each position (step 1), or one value for all positions
 * (step 0). */
typedef struct row_values {
  const float *x;
  size_t step;
} row_values;

CPU_INLINE void combine_values(const float *restrict x, const float *restrict z, bool is_product,
                               size_t n, float *restrict y) {
  for (size_t i = 0; i < n; i++) y[i] = is_product ? x[i] * z[i] : x[i] + z[i];
}

/* Adds the number z to each value of a row, or multiplies each value by z. The operands may be
 * exchanged, because this changes no bit. */
CPU_INLINE void combine_row_with_number(const float *restrict x, float z, bool is_product, size_t n,
                                        float *restrict y) {
  for (size_t i = 0; i < n; i++) y[i] = is_product ? x[i] * z : x[i] + z;
}

CPU_INLINE void combine_row_body(row_values x, row_values z, bool is_product, size_t n, float *y) {
  if (x.step && z.step && is_product)
    combine_values(x.x, z.x, true, n, y);
  else if (x.step && z.step)
    combine_values(x.x, z.x, false, n, y);
  else if (is_product)
    combine_row_with_number(x.step ? x.x : z.x, x.step ? *z.x : *x.x, true, n, y);
  else
    combine_row_with_number(x.step ? x.x : z.x, x.step ? *z.x : *x.x, false, n, y);
}

/* Adds each value of dy to the value of `sum` with the same index. For a product, adds dy times the
 * other input. */
CPU_INLINE void add_row_to_sums_body(const float *restrict dy, row_values other_values, size_t n,
                                     double *restrict sum) {
  const float *restrict z = other_values.x;
  if (!z)
    for (size_t i = 0; i < n; i++) sum[i] += dy[i];
  else if (other_values.step)
    for (size_t i = 0; i < n; i++) sum[i] += (double)dy[i] * z[i];
  else
    for (size_t i = 0; i < n; i++) sum[i] += (double)dy[i] * z[0];
}

CPU_INLINE double compute_term(const float *dy, const float *z, size_t step, size_t i) {
  return z ? (double)dy[i] * z[i * step] : dy[i];
}

CPU_INLINE double sum_row(const float *restrict dy, const float *restrict z, size_t step,
                          size_t n) {
  double lane_sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane_sums[l] += compute_term(dy, z, step, i + l);
  for (size_t l = 0; i + l < n; l++) lane_sums[l] += compute_term(dy, z, step, i + l);
  for (size_t width = LANES / 2; width; width /= 2)
    for (size_t l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  return lane_sums[0];
}

/* Adds the sum of a row of dy to *sum. For a product, adds the sum of dy times the other input. */
CPU_INLINE void add_row_to_total_body(const float *dy, row_values other_values, size_t n,
                                      double *sum) {
  if (!other_values.x)
    *sum += sum_row(dy, NULL, 0, n);
  else if (other_values.step)
    *sum += sum_row(dy, other_values.x, 1, n);
  else
    *sum += sum_row(dy, other_values.x, 0, n);
}

CPU_CLONES(combine_row, (row_values x, row_values z, bool is_product, size_t n, float *y),
           (x, z, is_product, n, y))
CPU_CLONES(add_row_to_sums,
           (const float *restrict dy, row_values other_values, size_t n, double *restrict sum),
           (dy, other_values, n, sum))
CPU_CLONES(add_row_to_total, (const float *dy, row_values other_values, size_t n, double *sum),
           (dy, other_values, n, sum))

/* ---- loops over all samples ------------------------------------------------------------------ */

typedef struct broadcast_job {
  const broadcast_kernel *k;
  const clv_kernel_args *a;
  int target_input; /* index of the input whose gradient is computed; not used by forward */
} broadcast_job;

static row_values row_values_at(const broadcast_job *j, const row_iterator *w, int i) {
  const clv_broadcast *v = &j->k->v;
  return (row_values){(const float *)j->a->in[i] + w->in_index[i], v->step[i][v->rank - 1]};
}

static void forward_samples(void *arg, size_t begin, size_t end) {
  const broadcast_job *j = arg;
  const broadcast_kernel *k = j->k;
  size_t n = k->v.n[k->v.rank - 1];
  for (size_t sample = begin; sample < end; sample++) {
    row_iterator w = start_rows(k, sample);
    for (size_t r = 0; r < k->n_rows; r++, go_to_next_row(k, &w))
      combine_row(row_values_at(j, &w, 0), row_values_at(j, &w, 1), k->is_product, n,
                  (float *)j->a->out + w.out_index);
  }
}

/* Computes the gradient of an input that has the output's shape: dy, or dy times the other input.
 */
static void copy_gradients(void *arg, size_t begin, size_t end) {
  const broadcast_job *j = arg;
  const broadcast_kernel *k = j->k;
  size_t n = k->v.n[k->v.rank - 1];
  for (size_t sample = begin; sample < end; sample++) {
    row_iterator w = start_rows(k, sample);
    for (size_t r = 0; r < k->n_rows; r++, go_to_next_row(k, &w)) {
      row_values dy = {(const float *)j->a->dout + w.out_index, 1};
      float *dx = (float *)j->a->din[j->target_input] + w.in_index[j->target_input];
      if (k->is_product)
        combine_row(dy, row_values_at(j, &w, 1 - j->target_input), true, n, dx);
      else if (dx != dy.x)
        memcpy(dx, dy.x, n * sizeof *dx);
    }
  }
}

/* Computes the gradient of a broadcast input in scratch: for each value of the input, the sum of
 * the gradients of all outputs that were computed from the value, for a product times the other
 * input. */
static void sum_gradients(void *arg, size_t begin, size_t end) {
  const broadcast_job *j = arg;
  const broadcast_kernel *k = j->k;
  int last_dim = k->v.rank - 1;
  size_t n = k->v.n[last_dim], sample_size = k->v.step[j->target_input][0];
  for (size_t sample = begin; sample < end; sample++) {
    row_iterator w = start_rows(k, sample);
    double *sum = (double *)j->a->scratch, *sample_sums = sum + sample * sample_size;
    float *dx = (float *)j->a->din[j->target_input] + sample * sample_size;
    memset(sample_sums, 0, sample_size * sizeof *sample_sums);
    for (size_t r = 0; r < k->n_rows; r++, go_to_next_row(k, &w)) {
      row_values other_values = {NULL, 0};
      if (k->is_product) other_values = row_values_at(j, &w, 1 - j->target_input);
      (k->v.step[j->target_input][last_dim] ? add_row_to_sums : add_row_to_total)(
          (const float *)j->a->dout + w.out_index, other_values, n,
          sum + w.in_index[j->target_input]);
    }
    for (size_t i = 0; i < sample_size; i++) dx[i] = (float)sample_sums[i];
  }
}

static void run_samples(const broadcast_kernel *k, broadcast_job *j, clv_cpu_range_fn *fn) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, k->k.n_out), k->v.n[0], fn, j);
}

static clv_code broadcast_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const broadcast_kernel *k = (const broadcast_kernel *)base;
  (void)err;
  run_samples(k, &(broadcast_job){k, a, 0}, forward_samples);
  return CLV_OK;
}

static clv_code broadcast_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const broadcast_kernel *k = (const broadcast_kernel *)base;
  (void)err;
  for (int i = 0; i < 2; i++)
    if (a->din[i])
      run_samples(k, &(broadcast_job){k, a, i},
                  k->n_values[i] == k->k.n_out ? copy_gradients : sum_gradients);
  return CLV_OK;
}

clv_code clv_cpu_broadcast(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  broadcast_kernel *k;
  size_t max_sums = 0;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->v = clv_broadcast_of(d);
  k->is_product = d->op == CLV_OP_MUL;
  k->n_rows = 1;
  for (int i = 1; i + 1 < k->v.rank; i++) k->n_rows *= k->v.n[i];
  for (int i = 0; i < 2; i++) {
    k->n_values[i] = clv_layout_numel(&d->in[i], 1);
    if (k->n_values[i] != k->k.n_out) max_sums = CLV_MAX(max_sums, k->n_values[i]);
  }
  k->k.base.forward = broadcast_forward;
  k->k.base.backward_input = k->k.has_backward ? broadcast_backward : NULL;
  k->k.base.saved_flags = k->k.has_backward && k->is_product ? CLV_SAVE_IN0 | CLV_SAVE_IN1 : 0;
  k->k.base.scratch_bytes = k->k.has_backward ? max_sums * sizeof(double) : 0;
  *ret = &k->k.base;
  return CLV_OK;
}
