/* SPDX-License-Identifier: Apache-2.0
 *
 * Group normalisation, and instance normalisation, in which each channel is a group. Both use the
 * loops of batch normalisation over planes of channel blocks (norm_int.h). The sums of a group are
 * those of its channels, added in the order of the channels, in double. The bits are therefore the
 * same in every layout and for every number of threads. A sample is read twice, and stays in the
 * cache in between.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/norm_int.h"

typedef struct groupnorm_kernel {
  cpu_kernel k;
  /* samples, channels, positions of an image, channels of a block, blocks of a sample */
  size_t n, c, image_size, b, n_blocks;
  size_t groups, channels_per_group; /* groups: groups of a sample */
  double group_size;                 /* values of one group of one sample */
} groupnorm_kernel;

typedef struct groupnorm_job {
  const groupnorm_kernel *k;
  const clv_kernel_args *a;
} groupnorm_job;

static size_t count_sums(const groupnorm_kernel *k) { return 2 * (k->n_blocks * k->b + k->groups); }

/* Returns the address in scratch of two sums for each channel of sample n, in the order of the
 * planes. Two sums for each group follow (group_totals). */
static double *channel_sums(const groupnorm_job *j, size_t n) {
  return (double *)j->a->scratch + n * count_sums(j->k);
}

static double *group_totals(const groupnorm_job *j, size_t n) {
  return channel_sums(j, n) + 2 * j->k->n_blocks * j->k->b;
}

/* Returns the address of the saved mean and 1 / sqrt(var + eps) of each group of sample n. */
static double *saved_moments(const groupnorm_job *j, size_t n) {
  return (double *)j->a->saved + n * 2 * j->k->groups;
}

static size_t plane_start(const groupnorm_kernel *k, size_t n, size_t block) {
  return (n * k->n_blocks + block) * k->image_size * k->b;
}

/* Adds the NORM_PARTIAL_SUMS partial sums of each of b channels. Writes the sum of channel l to
 * ret[2 * l]. */
static void add_lane_sums(const double *lane_sums, size_t b, double *ret) {
  for (size_t l = 0; l < b; l++)
    ret[2 * l] = (lane_sums[l] + lane_sums[2 * b + l]) + (lane_sums[b + l] + lane_sums[3 * b + l]);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes, for each channel of a plane, the mean and the sum of squared distances from the mean.
 * The moments are those of x minus the channel's first value, so no more digits cancel than the
 * spread of the values requires. */
static void compute_plane_moments(const groupnorm_kernel *k, const float *x, double *ret) {
  clv_norm_sums sums = {0};
  double shift[NORM_LANES], positions_per_channel = (double)k->image_size;
  for (size_t l = 0; l < NORM_PARTIAL_SUMS * k->b; l++)
    shift[l] = isfinite(x[l % k->b]) ? x[l % k->b] : 0;
  clv_cpu_norm_add_moments(x, k->image_size * k->b, k->b, shift, &sums);
  add_lane_sums(sums.value_sums, k->b, ret);
  add_lane_sums(sums.product_sums, k->b, ret + 1);
  for (size_t l = 0; l < k->b; l++) {
    double sum = ret[2 * l], squares = ret[2 * l + 1] - sum * (sum / positions_per_channel);
    ret[2 * l] = shift[l] + sum / positions_per_channel;
    ret[2 * l + 1] = squares < 0 ? 0 : squares; /* negative only by rounding; a NaN stays a NaN */
  }
}

static void compute_group_moments(const groupnorm_kernel *k, const double *channel_moments,
                                  double ret[2]) {
  double mean = 0, squares = 0, positions_per_channel = (double)k->image_size;
  for (size_t c = 0; c < k->channels_per_group; c++) mean += channel_moments[2 * c];
  mean /= (double)k->channels_per_group;
  for (size_t c = 0; c < k->channels_per_group; c++) {
    double distance = channel_moments[2 * c] - mean;
    squares += channel_moments[2 * c + 1] + positions_per_channel * (distance * distance);
  }
  ret[0] = mean;
  ret[1] = 1 / sqrt(squares / k->group_size + k->k.d.attrs.eps);
}

/* Returns the coefficients of a block's channels for forward; 0 for padding channels. The mean
 * is split in two: if it is large, x - mean is exact, and the shift has the digits that do not fit
 * in a float. */
static clv_norm_affine make_forward_affine(const groupnorm_job *j, size_t n, size_t block) {
  const groupnorm_kernel *k = j->k;
  const float *w = j->a->param[CLV_SLOT_WEIGHT], *b = j->a->param[CLV_SLOT_BIAS];
  const double *moments = saved_moments(j, n);
  clv_norm_affine f = {0};
  for (size_t l = 0, c = block * k->b; l < k->b && c < k->c; l++, c++) {
    const double *group_moments = moments + c / k->channels_per_group * 2;
    double scale = group_moments[1] * (w ? w[c] : 1);
    f.mean[l] = (float)group_moments[0];
    f.scale[l] = (float)scale;
    f.shift[l] = (float)((b ? b[c] : 0) - (group_moments[0] - (double)f.mean[l]) * scale);
  }
  return f;
}

static void forward_samples(void *arg, size_t begin, size_t end) {
  const groupnorm_job *j = arg;
  const groupnorm_kernel *k = j->k;
  for (size_t n = begin; n < end; n++) {
    double *channel_moments = channel_sums(j, n);
    for (size_t block = 0; block < k->n_blocks; block++)
      compute_plane_moments(k, (const float *)j->a->in[0] + plane_start(k, n, block),
                            channel_moments + 2 * block * k->b);
    for (size_t g = 0; g < k->groups; g++)
      compute_group_moments(k, channel_moments + 2 * g * k->channels_per_group,
                            saved_moments(j, n) + 2 * g);
    for (size_t block = 0; block < k->n_blocks; block++) {
      clv_norm_affine f = make_forward_affine(j, n, block);
      size_t at = plane_start(k, n, block);
      clv_cpu_norm_apply((const float *)j->a->in[0] + at, NULL, k->image_size * k->b, k->b, &f,
                         false, (float *)j->a->out + at);
    }
  }
}

static void run_samples(const groupnorm_kernel *k, const clv_kernel_args *a, clv_cpu_range_fn *fn) {
  groupnorm_job j = {k, a};
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, 2 * k->k.n_in), k->n, fn, &j);
}

static clv_code groupnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  run_samples((const groupnorm_kernel *)base, a, forward_samples);
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Computes sum dy and sum dy (x - mean) of each channel of a plane. */
static void sum_plane_gradients(const groupnorm_job *j, size_t n, size_t block, double *ret) {
  const groupnorm_kernel *k = j->k;
  size_t at = plane_start(k, n, block);
  clv_norm_sums sums = {0};
  clv_norm_lane_coefficients lanes = {0};
  clv_norm_plane p = {.x = (const float *)j->a->in[0] + at,
                      .dy = (const float *)j->a->dout + at,
                      .n = k->image_size * k->b,
                      .b = k->b,
                      .gate = NORM_NO_RELU};
  for (size_t l = 0; l < NORM_PARTIAL_SUMS * k->b; l++) {
    size_t c = block * k->b + l % k->b;
    lanes.mean[l] = c < k->c ? saved_moments(j, n)[c / k->channels_per_group * 2] : 0;
  }
  clv_cpu_norm_add_gradients(&p, &lanes, &sums);
  add_lane_sums(sums.value_sums, k->b, ret);
  add_lane_sums(sums.product_sums, k->b, ret + 1);
}

/* Computes the totals of each group of sample n, with g = dy w: inverse_std mean(g), and
 * inverse_std^3 mean(g (x - mean)). */
static void compute_group_totals(const groupnorm_job *j, size_t n) {
  const groupnorm_kernel *k = j->k;
  const float *w = j->a->param[CLV_SLOT_WEIGHT];
  const double *sums = channel_sums(j, n);
  double *totals = group_totals(j, n);
  for (size_t g = 0; g < k->groups; g++, totals += 2) {
    double inverse_std = saved_moments(j, n)[2 * g + 1];
    totals[0] = totals[1] = 0;
    for (size_t c = g * k->channels_per_group; c < (g + 1) * k->channels_per_group; c++) {
      totals[0] += (w ? w[c] : 1) * sums[2 * c];
      totals[1] += (w ? w[c] : 1) * sums[2 * c + 1];
    }
    totals[0] *= inverse_std / k->group_size;
    totals[1] *= inverse_std * inverse_std * inverse_std / k->group_size;
  }
}

/* Returns the coefficients of a block's channels for backward: dx = dy scale - offset - (x - mean)
 * slope. */
static clv_norm_affine make_backward_affine(const groupnorm_job *j, size_t n, size_t block) {
  const groupnorm_kernel *k = j->k;
  const float *w = j->a->param[CLV_SLOT_WEIGHT];
  clv_norm_affine f = {0};
  for (size_t l = 0, c = block * k->b; l < k->b && c < k->c; l++, c++) {
    const double *moments = saved_moments(j, n) + c / k->channels_per_group * 2;
    const double *total = group_totals(j, n) + c / k->channels_per_group * 2;
    f.mean[l] = (float)moments[0];
    f.scale[l] = (float)(moments[1] * (w ? w[c] : 1));
    f.slope[l] = (float)total[1];
    f.offset[l] = (float)(total[0] - (moments[0] - (double)f.mean[l]) * total[1]);
  }
  return f;
}

CPU_INLINE void compute_plane_dx(const float *x, const float *dy, size_t n, size_t b,
                                 const clv_norm_affine *coefficients, float *dx) {
  clv_norm_affine v = *coefficients;
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i += b) CPU_INDEPENDENT
  for (size_t l = 0; l < b; l++)
    dx[i + l] = (dy[i + l] * v.scale[l] - v.offset[l]) - (x[i + l] - v.mean[l]) * v.slope[l];
}

CPU_INLINE void compute_dx_body(const float *x, const float *dy, size_t n, size_t b,
                                const clv_norm_affine *v, float *dx) {
  if (b == 16)
    compute_plane_dx(x, dy, n, 16, v, dx);
  else if (b == 8)
    compute_plane_dx(x, dy, n, 8, v, dx);
  else
    compute_plane_dx(x, dy, n, 1, v, dx);
}

CPU_CLONES(compute_dx,
           (const float *x, const float *dy, size_t n, size_t b, const clv_norm_affine *v,
            float *dx),
           (x, dy, n, b, v, dx))

static void backward_samples(void *arg, size_t begin, size_t end) {
  const groupnorm_job *j = arg;
  const groupnorm_kernel *k = j->k;
  for (size_t n = begin; n < end; n++) {
    for (size_t block = 0; block < k->n_blocks; block++)
      sum_plane_gradients(j, n, block, channel_sums(j, n) + 2 * block * k->b);
    compute_group_totals(j, n);
    for (size_t block = 0; j->a->din[0] && block < k->n_blocks; block++) {
      clv_norm_affine f = make_backward_affine(j, n, block);
      size_t at = plane_start(k, n, block);
      compute_dx((const float *)j->a->in[0] + at, (const float *)j->a->dout + at,
                 k->image_size * k->b, k->b, &f, (float *)j->a->din[0] + at);
    }
  }
}

/* Computes the gradients of weight and bias: adds the samples in order. */
static void write_weight_grads(const groupnorm_job *j) {
  const groupnorm_kernel *k = j->k;
  float *dw = j->a->dparam[CLV_SLOT_WEIGHT], *db = j->a->dparam[CLV_SLOT_BIAS];
  for (size_t c = 0; c < k->c; c++) {
    double weight = 0, bias = 0;
    for (size_t n = 0; n < k->n; n++) {
      const double *sums = channel_sums(j, n) + 2 * c;
      bias += sums[0];
      weight += sums[1] * saved_moments(j, n)[c / k->channels_per_group * 2 + 1];
    }
    dw[c] = j->a->accumulate ? dw[c] + (float)weight : (float)weight;
    db[c] = j->a->accumulate ? db[c] + (float)bias : (float)bias;
  }
}

static clv_code groupnorm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const groupnorm_kernel *k = (const groupnorm_kernel *)base;
  (void)err;
  run_samples(k, a, backward_samples);
  if (k->k.d.need_dw) write_weight_grads(&(groupnorm_job){k, a});
  return CLV_OK;
}

/* ---- preparing the kernel -------------------------------------------------------------------- */

static clv_code groupnorm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  groupnorm_kernel *k;
  int block = clv_layout_block(clv_cpu_offered_block(d));
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->n = (size_t)d->in[0].dim[0];
  k->c = (size_t)d->in[0].dim[1];
  k->image_size = clv_layout_numel(&d->in[0], 1) / k->n / k->c;
  k->b = (size_t)block;
  k->n_blocks = (k->c + k->b - 1) / k->b;
  k->groups = d->op == CLV_OP_INSTANCENORM ? k->c : (size_t)d->attrs.groups;
  k->channels_per_group = k->c / k->groups;
  k->group_size = (double)(k->channels_per_group * k->image_size);
  k->k.base.forward = groupnorm_forward;
  k->k.base.backward_input = k->k.has_backward ? groupnorm_backward : NULL;
  k->k.base.fused_grads = d->need_dw;
  k->k.base.saved_flags = k->k.has_backward ? CLV_SAVE_IN0 : 0;
  k->k.base.saved_bytes = k->n * 2 * k->groups * sizeof(double);
  k->k.base.scratch_bytes = k->n * count_sums(k) * sizeof(double);
  k->k.base.din_in_place_mask = 1u << 0;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(groupnorm, groupnorm_prepare)
CLV_CPU_OP(instancenorm, groupnorm_prepare)
