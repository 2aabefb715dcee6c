/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation of images; [N, C] is left to ref.
 *
 * The sums of a channel are taken over its values in order (n, i), value i of an image into the
 * partial sum i % 4, in double, and the four are added as (0+2) + (1+3). In a layout of b channels
 * a block, four neighbouring positions are 4 b neighbouring numbers, so the same loop over 4 b
 * partial sums vectorises in every layout and gives the same bits.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu_int.h"

enum { MAX_BLOCK = 16, SPREAD = 4, MAX_LANES = MAX_BLOCK * SPREAD };

typedef struct norm_job {
  const cpu_kernel *k;
  const clv_kernel_args *a;
  size_t n, c, image, b, blocks;
  double count;
} norm_job;

/* The numbers of one block of channels; padding lanes are all zero. */
typedef struct norm_block {
  double mean[MAX_BLOCK], inverse[MAX_BLOCK], bias_sum[MAX_BLOCK], weight_sum[MAX_BLOCK];
  float weight[MAX_BLOCK], bias[MAX_BLOCK];
} norm_block;

static norm_job job_of(const cpu_kernel *k, const clv_kernel_args *a) {
  const clv_shape *x = &k->d.in[0];
  norm_job j = {k, a, (size_t)x->dim[0], (size_t)x->dim[1], 1, (size_t)k->base.in_block[0], 0, 0};
  for (int i = 2; i < x->rank; i++) j.image *= (size_t)x->dim[i];
  j.blocks = (j.c + j.b - 1) / j.b;
  j.count = (double)(j.n * j.image);
  return j;
}

static size_t plane_of(const norm_job *j, size_t n, size_t block) {
  return (n * j->blocks + block) * j->image * j->b;
}

static void fold(const double *lane, size_t b, double *ret) {
  for (size_t l = 0; l < b; l++)
    ret[l] = (lane[l] + lane[2 * b + l]) + (lane[b + l] + lane[3 * b + l]);
}

/* ---- sums over one plane; lanes = 4 b -------------------------------------------------------- */

CPU_INLINE void plane_sum_body(const float *x, size_t n, size_t lanes, double *sum) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) sum[l] += x[i + l];
  for (size_t l = 0; i + l < n; l++) sum[l] += x[i + l];
}

CPU_INLINE void plane_squares_body(const float *x, size_t n, size_t lanes, const double *mean,
                                   double *sum) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) sum[l] += (x[i + l] - mean[l]) * (x[i + l] - mean[l]);
  for (size_t l = 0; i + l < n; l++) sum[l] += (x[i + l] - mean[l]) * (x[i + l] - mean[l]);
}

/* sum of dy, and of dy (x - mean). */
CPU_INLINE void plane_gradients_body(const float *x, const float *dy, size_t n, size_t lanes,
                                     const double *mean, double *bias, double *weight) {
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) {
      bias[l] += dy[i + l];
      weight[l] += dy[i + l] * (x[i + l] - mean[l]);
    }
  for (size_t l = 0; i + l < n; l++) {
    bias[l] += dy[i + l];
    weight[l] += dy[i + l] * (x[i + l] - mean[l]);
  }
}

CPU_CLONES(plane_sum, (const float *restrict x, size_t n, size_t lanes, double *restrict sum),
           (x, n, lanes, sum))
CPU_CLONES(plane_squares,
           (const float *restrict x, size_t n, size_t lanes, const double *restrict mean,
            double *restrict sum),
           (x, n, lanes, mean, sum))
CPU_CLONES(plane_gradients,
           (const float *restrict x, const float *restrict dy, size_t n, size_t lanes,
            const double *restrict mean, double *restrict bias, double *restrict weight),
           (x, dy, n, lanes, mean, bias, weight))

/* y = (x - mean) scale + shift, and dx = scale (dy - common - (x - mean) slope). */
CPU_INLINE void plane_scale_body(const float *x, size_t n, size_t lanes, const float *mean,
                                 const float *scale, const float *shift, float *y) {
  for (size_t i = 0; i < n; i += lanes)
    for (size_t l = 0; l < CLV_MIN(lanes, n - i); l++)
      y[i + l] = (x[i + l] - mean[l]) * scale[l] + shift[l];
}

CPU_INLINE void plane_back_body(const float *x, const float *dy, size_t n, size_t lanes,
                                const float *mean, const float *scale, const float *common,
                                const float *slope, float *dx) {
  for (size_t i = 0; i < n; i += lanes)
    for (size_t l = 0; l < CLV_MIN(lanes, n - i); l++)
      dx[i + l] = (dy[i + l] - common[l] - (x[i + l] - mean[l]) * slope[l]) * scale[l];
}

CPU_CLONES(plane_scale,
           (const float *restrict x, size_t n, size_t lanes, const float *restrict mean,
            const float *restrict scale, const float *restrict shift, float *restrict y),
           (x, n, lanes, mean, scale, shift, y))
CPU_CLONES(plane_back,
           (const float *restrict x, const float *restrict dy, size_t n, size_t lanes,
            const float *restrict mean, const float *restrict scale, const float *restrict common,
            const float *restrict slope, float *restrict dx),
           (x, dy, n, lanes, mean, scale, common, slope, dx))

/* ---- forward --------------------------------------------------------------------------------- */

static void spread(const double *values, size_t b, double *ret_lanes) {
  for (size_t l = 0; l < SPREAD * b; l++) ret_lanes[l] = values[l % b];
}

/* Mean and sum of squared distances from it, of each lane's channel. */
static void statistics(const norm_job *j, size_t block, double *ret_mean, double *ret_squares) {
  double sum[MAX_LANES] = {0}, mean[MAX_LANES];
  const float *x = j->a->in[0];
  size_t plane = j->image * j->b, lanes = SPREAD * j->b;
  for (size_t n = 0; n < j->n; n++) plane_sum(x + plane_of(j, n, block), plane, lanes, sum);
  fold(sum, j->b, ret_mean);
  for (size_t l = 0; l < j->b; l++) ret_mean[l] /= j->count;
  spread(ret_mean, j->b, mean);
  memset(sum, 0, sizeof sum);
  for (size_t n = 0; n < j->n; n++)
    plane_squares(x + plane_of(j, n, block), plane, lanes, mean, sum);
  fold(sum, j->b, ret_squares);
}

/* Mean and 1/sqrt(var + eps) of the block's channels, of the batch in training (which moves the
 * running ones: there the variance is the unbiased one), else the running ones. */
static void moments(const norm_job *j, size_t block, norm_block *v) {
  float *running_mean = j->a->param[CLV_SLOT_MEAN], *running_var = j->a->param[CLV_SLOT_VAR];
  double squares[MAX_BLOCK], m = j->k->d.attrs.momentum;
  if (j->k->d.training) statistics(j, block, v->mean, squares);
  for (size_t l = 0, c = block * j->b; l < j->b && c < j->c; l++, c++) {
    double var = running_var[c];
    if (j->k->d.training) {
      var = squares[l] / j->count;
      running_mean[c] = (float)(m * v->mean[l] + (1 - m) * running_mean[c]);
      running_var[c] = (float)(m * (squares[l] / (j->count - 1)) + (1 - m) * running_var[c]);
    } else {
      v->mean[l] = running_mean[c];
    }
    v->inverse[l] = 1 / sqrt(var + j->k->d.attrs.eps);
  }
}

static void affine(const norm_job *j, size_t block, norm_block *v) {
  const float *w = j->a->param[CLV_SLOT_WEIGHT], *b = j->a->param[CLV_SLOT_BIAS];
  for (size_t l = 0, c = block * j->b; l < j->b && c < j->c; l++, c++) {
    v->weight[l] = w[c];
    v->bias[l] = b ? b[c] : 0;
  }
}

static void forward_blocks(void *arg, size_t begin, size_t end) {
  const norm_job *j = arg;
  double *saved = j->a->saved;
  size_t lanes = SPREAD * j->b;
  for (size_t block = begin; block < end; block++) {
    norm_block v = {0};
    float mean[MAX_LANES], scale[MAX_LANES], shift[MAX_LANES];
    moments(j, block, &v);
    affine(j, block, &v);
    for (size_t l = 0; l < lanes; l++) {
      mean[l] = (float)v.mean[l % j->b];
      scale[l] = (float)(v.inverse[l % j->b] * v.weight[l % j->b]);
      shift[l] = v.bias[l % j->b];
    }
    for (size_t n = 0; n < j->n; n++) {
      size_t at = plane_of(j, n, block);
      plane_scale((const float *)j->a->in[0] + at, j->image * j->b, lanes, mean, scale, shift,
                  (float *)j->a->out + at);
    }
    if (!j->k->learns) continue;
    memcpy(saved + 2 * block * j->b, v.mean, j->b * sizeof(double));
    memcpy(saved + (2 * block + 1) * j->b, v.inverse, j->b * sizeof(double));
  }
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = job_of(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_worth(k->threads, k->n_in), j.blocks, forward_blocks, &j);
  if (k->d.training) ++*(int64_t *)a->param[CLV_SLOT_TRACKED];
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* sum dy and sum dy (x - mean) / sqrt(var + eps): the gradients of bias and weight. */
static void gradients(const norm_job *j, size_t block, norm_block *v) {
  double bias[MAX_LANES] = {0}, weight[MAX_LANES] = {0}, mean[MAX_LANES];
  spread(v->mean, j->b, mean);
  for (size_t n = 0; n < j->n; n++) {
    size_t at = plane_of(j, n, block);
    plane_gradients((const float *)j->a->in[0] + at, (const float *)j->a->dout + at,
                    j->image * j->b, SPREAD * j->b, mean, bias, weight);
  }
  fold(bias, j->b, v->bias_sum);
  fold(weight, j->b, v->weight_sum);
  for (size_t l = 0; l < j->b; l++) v->weight_sum[l] *= v->inverse[l];
}

static void put_gradients(const norm_job *j, size_t block, const norm_block *v) {
  const double *const sums[] = {v->weight_sum, v->bias_sum};
  for (int slot = 0; slot < 2; slot++) {
    float *d = j->a->dparam[slot];
    for (size_t l = 0, c = block * j->b; d && l < j->b && c < j->c; l++, c++)
      d[c] = j->a->accumulate ? d[c] + (float)sums[slot][l] : (float)sums[slot][l];
  }
}

/* Training: dx = w inverse (dy - mean(dy) - xhat mean(dy xhat)); else the statistics are constants
 * and dx = w inverse dy. */
static void put_input_gradient(const norm_job *j, size_t block, const norm_block *v) {
  float mean[MAX_LANES], scale[MAX_LANES], common[MAX_LANES], slope[MAX_LANES];
  double share = j->k->d.training ? 1 / j->count : 0;
  for (size_t i = 0; i < SPREAD * j->b; i++) {
    size_t l = i % j->b;
    mean[i] = (float)v->mean[l];
    scale[i] = (float)(v->inverse[l] * v->weight[l]);
    common[i] = (float)(v->bias_sum[l] * share);
    slope[i] = (float)(v->weight_sum[l] * v->inverse[l] * share);
  }
  for (size_t n = 0; n < j->n; n++) {
    size_t at = plane_of(j, n, block);
    plane_back((const float *)j->a->in[0] + at, (const float *)j->a->dout + at, j->image * j->b,
               SPREAD * j->b, mean, scale, common, slope, (float *)j->a->din[0] + at);
  }
}

static void backward_blocks(void *arg, size_t begin, size_t end) {
  const norm_job *j = arg;
  const double *saved = j->a->saved;
  for (size_t block = begin; block < end; block++) {
    norm_block v = {0};
    memcpy(v.mean, saved + 2 * block * j->b, j->b * sizeof(double));
    memcpy(v.inverse, saved + (2 * block + 1) * j->b, j->b * sizeof(double));
    affine(j, block, &v);
    gradients(j, block, &v);
    if (j->k->d.need_dw) put_gradients(j, block, &v);
    if (j->k->d.need_dx[0]) put_input_gradient(j, block, &v);
  }
}

static clv_code batchnorm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = job_of(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_worth(k->threads, k->n_in), j.blocks, backward_blocks, &j);
  return CLV_OK;
}

clv_code clv_cpu_batchnorm(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered(d);
  if (d->in[0].rank != 4)
    return clv_fail(err, CLV_UNIMPLEMENTED, "batchnorm of rank %d", d->in[0].rank);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  norm_job j = job_of(k, NULL);
  if (d->training && j.count < 2) {
    k->base.free(&k->base);
    return clv_fail(err, CLV_INVALID,
                    "batchnorm in training needs more than one value per channel");
  }
  k->base.forward = batchnorm_forward;
  k->base.backward_input = k->learns ? batchnorm_backward : NULL;
  k->base.saves = k->learns ? CLV_SAVE_IN0 : 0;
  k->base.saved_bytes = k->learns ? 2 * j.blocks * j.b * sizeof(double) : 0;
  k->base.fused_grads = d->need_dw;
  *ret = &k->base;
  return CLV_OK;
}
