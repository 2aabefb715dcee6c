/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation of images, with an added residual and a following relu if the plan requests
 * them. ref computes [N, C].
 *
 * Each block of channels is walked twice in each direction: first for its sums, then for its
 * values, which are then still in the cache. Sums run over (n, i) in order within each of
 * NORM_SPREAD partial sums, which are added as (0+2) + (1+3): the same bits in every layout and for
 * every number of threads. The moments are those of x minus the channel's first value, so that one
 * pass is enough: no more cancels than the spread of the values.
 *
 * Input, input gradient and, with nothing added, the output may be bf16. They are read and written
 * through a few thousand f32 numbers that stay in the cache. The arithmetic is the same. Where
 * convolutions keep a bf16 copy of the output, the f32 output is not saved for its signs as well: a
 * bit of `saved` records which outputs were above 0.
 *
 * With a relu and nothing added, backward recomputes from x which outputs were above 0, and
 * `recompute` recomputes the output: neither needs it saved.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/norm_int.h"

typedef struct norm_job {
  const cpu_kernel *k;
  const clv_kernel_args *a;
  size_t n, c, image, b, blocks;
  size_t piece_size; /* number of values of a plane that are processed at a time */
  bool x_bf16, dx_bf16, out_bf16, has_marks;
  double count;
  clv_norm_gate gate;
} norm_job;

/* Statistics, parameters and gradient sums of one block's channels; 0 for padding channels. */
typedef struct norm_block {
  double mean[NORM_BLOCK], inverse[NORM_BLOCK], bias_sum[NORM_BLOCK], weight_sum[NORM_BLOCK];
  float weight[NORM_BLOCK], bias[NORM_BLOCK];
} norm_block;

static norm_job make_job(const cpu_kernel *k, const clv_kernel_args *a) {
  const clv_shape *x = &k->d.in[0];
  norm_job j = {.k = k,
                .a = a,
                .n = (size_t)x->dim[0],
                .c = (size_t)x->dim[1],
                .image = (size_t)(x->dim[2] * x->dim[3]),
                .b = (size_t)clv_layout_block(k->base.in_block[0]),
                .x_bf16 = clv_layout_is_bf16(k->base.in_block[0]),
                .dx_bf16 = clv_layout_is_bf16(k->base.din_block[0]),
                .out_bf16 = clv_layout_is_bf16(k->base.out_block),
                .has_marks = k->d.bf16 && clv_layout_block(k->base.in_block[0]) % 8 == 0 &&
                             k->has_backward && k->d.tail & CLV_TAIL_ADD,
                .gate = k->d.tail & CLV_TAIL_ADD ? NORM_BY_Y
                        : k->d.tail              ? NORM_BY_X
                                                 : NORM_OPEN};
  j.blocks = (j.c + j.b - 1) / j.b;
  j.count = (double)(j.n * j.image);
  j.piece_size = j.image * j.b;
  if (j.x_bf16 || j.dx_bf16 || j.out_bf16 || j.has_marks)
    j.piece_size = CLV_MIN(j.piece_size, NORM_PIECE);
  return j;
}

/* A piece of a plane: n values from index `at` of the tensor on. */
typedef struct norm_piece {
  size_t at, n;
} norm_piece;

static size_t plane_index(const norm_job *j, size_t n, size_t block) {
  return (n * j->blocks + block) * j->image * j->b;
}

/* State of a walk over the pieces of one channel block in all images; starts with {0}. */
typedef struct norm_walk {
  size_t image, done;
} norm_walk;

static bool next_piece(const norm_job *j, size_t block, norm_walk *w, norm_piece *ret) {
  size_t plane = j->image * j->b;
  if (w->done == plane) *w = (norm_walk){w->image + 1, 0};
  if (w->image == j->n || !plane) return false;
  *ret = (norm_piece){plane_index(j, w->image, block) + w->done,
                      CLV_MIN(j->piece_size, plane - w->done)};
  w->done += ret->n;
  return true;
}

/* Returns the address of a piece in one of the kernel's arrays; NULL if there is no array. */
static float *piece_address(const void *array, norm_piece p) {
  return array ? (float *)(uintptr_t)array + p.at : NULL;
}

/* Returns the values of a piece: in the array, or widened into `buffer` if the array is bf16. */
static const float *read_piece(const void *array, bool bf16, norm_piece p, float *buffer) {
  if (!bf16) return piece_address(array, p);
  clv_cpu_from_bf16((const uint16_t *)array + p.at, p.n, buffer);
  return buffer;
}

static void write_piece(const float *buffer, void *array, norm_piece p) {
  clv_cpu_to_bf16(buffer, p.n, (uint16_t *)array + p.at);
}

static void fold_lanes(const double *lane, size_t b, double *ret) {
  for (size_t l = 0; l < b; l++)
    ret[l] = (lane[l] + lane[2 * b + l]) + (lane[b + l] + lane[3 * b + l]);
}

static void spread_to_lanes(const double *values, size_t b, double *ret_lanes) {
  for (size_t l = 0; l < NORM_SPREAD * b; l++) ret_lanes[l] = values[l % b];
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes the mean of each channel of the block, and the sum of squared distances from the mean.
 */
static void compute_statistics(const norm_job *j, size_t block, double *ret_mean,
                               double *ret_squares) {
  clv_norm_sums sums = {0};
  double first[NORM_BLOCK] = {0}, shift[NORM_LANES], sum[NORM_BLOCK];
  float buffer[NORM_PIECE];
  norm_piece p = {plane_index(j, 0, block), j->b};
  const float *x = read_piece(j->a->in[0], j->x_bf16, p, buffer);
  for (size_t l = 0; l < j->b; l++) {
    float value = x[l];
    first[l] = isfinite(value) ? value : 0;
  }
  spread_to_lanes(first, j->b, shift);
  for (norm_walk w = {0}; next_piece(j, block, &w, &p);)
    clv_cpu_norm_add_moments(read_piece(j->a->in[0], j->x_bf16, p, buffer), p.n, j->b, shift,
                             &sums);
  fold_lanes(sums.first, j->b, sum);
  fold_lanes(sums.second, j->b, ret_squares);
  for (size_t l = 0; l < j->b; l++) {
    double squares = ret_squares[l] - sum[l] * (sum[l] / j->count);
    ret_mean[l] = first[l] + sum[l] / j->count;
    ret_squares[l] = squares < 0 ? 0 : squares; /* negative only by rounding; a NaN stays a NaN */
  }
}

/* Computes mean and 1/sqrt(var + eps) of the block's channels. In training they are those of the
 * batch, and the running statistics are updated (with the unbiased variance); otherwise they are
 * those of the running statistics. */
static void compute_moments(const norm_job *j, size_t block, norm_block *v) {
  float *running_mean = j->a->param[CLV_SLOT_MEAN], *running_var = j->a->param[CLV_SLOT_VAR];
  double squares[NORM_BLOCK], m = j->k->d.attrs.momentum;
  if (j->k->d.training) compute_statistics(j, block, v->mean, squares);
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

static void load_parameters(const norm_job *j, size_t block, norm_block *v) {
  const float *w = j->a->param[CLV_SLOT_WEIGHT], *b = j->a->param[CLV_SLOT_BIAS];
  for (size_t l = 0, c = block * j->b; l < j->b && c < j->c; l++, c++) {
    v->weight[l] = w[c];
    v->bias[l] = b ? b[c] : 0;
  }
}

static clv_norm_affine block_affine(const norm_job *j, const norm_block *v) {
  double share = j->k->d.training ? 1 / j->count : 0;
  clv_norm_affine f;
  for (size_t l = 0; l < NORM_BLOCK; l++) {
    f.mean[l] = (float)v->mean[l];
    f.scale[l] = (float)(v->inverse[l] * v->weight[l]);
    f.shift[l] = v->bias[l];
    f.common[l] = (float)(v->bias_sum[l] * share);
    f.slope[l] = (float)(v->weight_sum[l] * v->inverse[l] * share);
  }
  return f;
}

/* Returns the address of a piece's gate bits (clv_cpu_norm_pack_gates), which are stored after the
 * saved statistics of all blocks. */
static uint8_t *gate_bits_address(const norm_job *j, norm_piece p) {
  return (uint8_t *)((double *)j->a->saved + 2 * j->blocks * j->b) + p.at / 8;
}

static void write_output(const norm_job *j, size_t block, const norm_block *v) {
  clv_norm_affine f = block_affine(j, v);
  float buffer[NORM_PIECE], result[NORM_PIECE];
  norm_piece p;
  for (norm_walk w = {0}; next_piece(j, block, &w, &p);) {
    float *y = j->out_bf16 ? result : piece_address(j->a->out, p);
    clv_cpu_norm_apply(read_piece(j->a->in[0], j->x_bf16, p, buffer), piece_address(j->a->in[1], p),
                       p.n, j->b, &f, j->gate != NORM_OPEN, y);
    if (j->out_bf16) write_piece(result, j->a->out, p);
    if (j->has_marks) clv_cpu_norm_pack_gates(y, p.n, gate_bits_address(j, p));
  }
}

/* Saves the means of the block's channels, then their inverse deviations. */
static void save_block(const norm_job *j, size_t block, const norm_block *v) {
  double *to = (double *)j->a->saved + 2 * block * j->b;
  memcpy(to, v->mean, j->b * sizeof(double));
  memcpy(to + j->b, v->inverse, j->b * sizeof(double));
}

static norm_block load_saved_block(const norm_job *j, size_t block) {
  const double *from = (const double *)j->a->saved + 2 * block * j->b;
  norm_block v = {0};
  memcpy(v.mean, from, j->b * sizeof(double));
  memcpy(v.inverse, from + j->b, j->b * sizeof(double));
  load_parameters(j, block, &v);
  return v;
}

static void forward_blocks(void *arg, size_t begin, size_t end) {
  const norm_job *j = arg;
  for (size_t block = begin; block < end; block++) {
    norm_block v = {0};
    compute_moments(j, block, &v);
    load_parameters(j, block, &v);
    write_output(j, block, &v);
    if (j->k->has_backward) save_block(j, block, &v);
  }
}

static void recompute_blocks(void *arg, size_t begin, size_t end) {
  const norm_job *j = arg;
  for (size_t block = begin; block < end; block++) {
    norm_block v = load_saved_block(j, block);
    write_output(j, block, &v);
  }
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.blocks, forward_blocks, &j);
  if (k->d.training) ++*(int64_t *)a->param[CLV_SLOT_TRACKED];
  return CLV_OK;
}

static clv_code batchnorm_recompute(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.blocks, recompute_blocks, &j);
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Returns the values whose sign decides if a gradient passes: the outputs, or numbers unpacked from
 * the saved bits; NULL if the gate does not read outputs. */
static const float *gate_values(const norm_job *j, norm_piece p, float *buffer) {
  if (j->gate != NORM_BY_Y) return NULL;
  if (!j->has_marks) return piece_address(j->a->out, p);
  clv_cpu_norm_unpack_gates(gate_bits_address(j, p), p.n, buffer);
  return buffer;
}

static clv_norm_plane make_plane(const norm_job *j, norm_piece p, float *buffer) {
  return (clv_norm_plane){.x = read_piece(j->a->in[0], j->x_bf16, p, buffer),
                          .dy = piece_address(j->a->dout, p),
                          .g = piece_address(j->a->din[1], p),
                          .n = p.n,
                          .b = j->b,
                          .gate = j->gate};
}

/* Computes sum dy and sum dy (x - mean) / sqrt(var + eps) of the block's channels, which are the
 * gradients of bias and weight. */
static void compute_gradients(const norm_job *j, size_t block, norm_block *v) {
  clv_norm_sums sums = {0};
  clv_norm_lanes lanes;
  norm_piece piece;
  float buffer[NORM_PIECE], gates[NORM_PIECE];
  clv_norm_affine f = block_affine(j, v);
  spread_to_lanes(v->mean, j->b, lanes.mean);
  for (size_t l = 0; l < NORM_SPREAD * j->b; l++) {
    lanes.center[l] = f.mean[l % j->b];
    lanes.scale[l] = f.scale[l % j->b];
    lanes.shift[l] = f.shift[l % j->b];
  }
  for (norm_walk w = {0}; next_piece(j, block, &w, &piece);) {
    clv_norm_plane p = make_plane(j, piece, buffer);
    p.y = gate_values(j, piece, gates);
    clv_cpu_norm_add_gradients(&p, &lanes, &sums);
  }
  fold_lanes(sums.first, j->b, v->bias_sum);
  fold_lanes(sums.second, j->b, v->weight_sum);
  for (size_t l = 0; l < j->b; l++) v->weight_sum[l] *= v->inverse[l];
}

static void write_gradients(const norm_job *j, size_t block, const norm_block *v) {
  const double *const sums[] = {v->weight_sum, v->bias_sum};
  for (int slot = 0; slot < 2; slot++) {
    float *d = j->a->dparam[slot];
    for (size_t l = 0, c = block * j->b; d && l < j->b && c < j->c; l++, c++)
      d[c] = j->a->accumulate ? d[c] + (float)sums[slot][l] : (float)sums[slot][l];
  }
}

/* Computes dx. In training dx = w inverse (dy - mean(dy) - xhat mean(dy xhat)), with xhat = (x -
 * mean) inverse; otherwise the statistics are constants, and dx = w inverse dy. */
static void write_input_gradient(const norm_job *j, size_t block, const norm_block *v) {
  clv_norm_affine f = block_affine(j, v);
  float buffer[NORM_PIECE], result[NORM_PIECE], gates[NORM_PIECE];
  norm_piece piece;
  for (norm_walk w = {0}; next_piece(j, block, &w, &piece);) {
    clv_norm_plane p = make_plane(j, piece, buffer);
    float *dx = j->dx_bf16 ? result : piece_address(j->a->din[0], piece);
    /* p.g, the gradient of the added input, already has the part of dy that passes the gate:
     * compute_gradients wrote it */
    if (p.g) {
      p.dy = p.g;
      p.gate = NORM_OPEN;
    } else {
      p.y = gate_values(j, piece, gates);
    }
    clv_cpu_norm_backward(&p, &f, dx);
    if (j->dx_bf16) write_piece(result, j->a->din[0], piece);
  }
}

static void backward_blocks(void *arg, size_t begin, size_t end) {
  const norm_job *j = arg;
  for (size_t block = begin; block < end; block++) {
    norm_block v = load_saved_block(j, block);
    compute_gradients(j, block, &v);
    if (j->k->d.need_dw) write_gradients(j, block, &v);
    if (j->a->din[0]) write_input_gradient(j, block, &v);
  }
}

static clv_code batchnorm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.blocks, backward_blocks, &j);
  return CLV_OK;
}

static clv_code batchnorm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d), in_bf16 = block | CLV_LAYOUT_BF16;
  if (d->in[0].rank != 4)
    return clv_fail(err, CLV_UNIMPLEMENTED, "batchnorm of rank %d", d->in[0].rank);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  for (int i = 0; i < CLV_MAX_IN; i++) k->base.din_block[i] = block;
  k->base.dout_block = block;
  if (d->offered_block[0] == in_bf16) k->base.in_block[0] = in_bf16;
  if (d->wanted_din[0] == in_bf16) k->base.din_block[0] = in_bf16;
  if (d->wanted_out == in_bf16 && !(d->tail & CLV_TAIL_ADD)) k->base.out_block = in_bf16;
  norm_job j = make_job(k, NULL);
  k->base.forward = batchnorm_forward;
  k->base.backward_input = k->has_backward ? batchnorm_backward : NULL;
  if (k->has_backward)
    k->base.saves = CLV_SAVE_IN0 | (j.gate == NORM_BY_Y && !j.has_marks ? CLV_SAVE_OUT : 0);
  if (k->has_backward && j.gate == NORM_BY_X) k->base.recompute = batchnorm_recompute;
  k->base.saved_bytes = k->has_backward ? 2 * j.blocks * j.b * sizeof(double) : 0;
  if (j.has_marks) k->base.saved_bytes += j.n * j.blocks * j.image * j.b / 8;
  k->base.fused_grads = d->need_dw;
  k->base.din_in_place = d->n_in == 2 ? 1u << 1 : 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(batchnorm, batchnorm_prepare)
