/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch normalisation, with an added residual and a following relu if the plan requests them.
 *
 * Forward and backward each read a block of channels twice: first for its sums, then for its
 * values, which are then still in the cache. In channels last, a thread reads all its blocks
 * together, so that it reads memory in order. Sums run over (n, i) in order within each of
 * NORM_PARTIAL_SUMS partial sums, which are added as (0+2) + (1+3): the same bits in every layout
 * and for every number of threads. The moments are those of x minus the channel's first value. One
 * pass is enough for them, because the subtractions then cancel few digits.
 *
 * Input, input gradient and, with nothing added, the output may be bf16. Arrays in bf16, and all
 * arrays that are channels last, are read and written through buffers of NORM_PIECE_VALUES f32
 * numbers in channel blocks, which stay in the cache. The arithmetic is the same. Where
 * convolutions keep a bf16 copy of the output, the f32 output is not saved only for its signs: a
 * bit of `saved` for each output says if it was above 0.
 *
 * With a relu and nothing added, backward recomputes from x which outputs were above 0, and
 * `recompute` recomputes the output, so no output is saved.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/channels_last_int.h"
#include "kernels/cpu/norm_int.h"

/* Numbers of one block's channels; 0 for padding channels. inverse_std: 1 / sqrt(var + eps). */
typedef struct norm_block {
  double mean[NORM_BLOCK], inverse_std[NORM_BLOCK], dbias[NORM_BLOCK], dweight[NORM_BLOCK];
  float weight[NORM_BLOCK], bias[NORM_BLOCK];
} norm_block;

/* State of one channel block while its thread computes it. */
typedef struct norm_state {
  norm_block channels;
  clv_norm_affine affine;
  clv_norm_sums sums;
  /* coefficients of the loops over a plane, one for each lane; forward subtracts `mean` from the
   * values before it adds up their moments */
  clv_norm_lane_coefficients lane_coefficients;
} norm_state;

typedef struct norm_job {
  const cpu_kernel *k;
  const clv_kernel_args *a;
  size_t n_samples, n_channels;
  size_t image_size;            /* positions of an image */
  size_t block_width, n_blocks; /* channels of a block, blocks of a sample */
  /* in channels last: values from one position to the next; 0: the layout is channel blocks */
  size_t position_stride;
  size_t n_positions; /* number of positions of an image that are processed at a time */
  bool x_is_bf16, dx_is_bf16, out_is_bf16, saves_relu_bits;
  double values_per_channel;
  clv_norm_relu_gate gate;
  norm_state *states; /* state of each channel block, [n_blocks], in the kernel's scratch */
} norm_job;

/* In channels last, about so many bytes of bf16 values are processed at a time, for all blocks one
 * after the other. Blocks that share a cache line then find it in the cache. */
enum { CHANNELS_LAST_BYTES = 128 << 10 };

static size_t count_positions(const norm_job *j) {
  bool needs_pieces =
      j->x_is_bf16 || j->dx_is_bf16 || j->out_is_bf16 || j->saves_relu_bits || j->position_stride;
  size_t n = CLV_MIN(j->image_size, NORM_PIECE_VALUES / j->block_width);
  if (!needs_pieces) return j->image_size;
  if (j->position_stride)
    n = CLV_MIN(n, CHANNELS_LAST_BYTES / sizeof(uint16_t) / j->position_stride / NORM_PARTIAL_SUMS *
                       NORM_PARTIAL_SUMS);
  return CLV_MAX(n, (size_t)NORM_PARTIAL_SUMS);
}

static norm_job make_job(const cpu_kernel *k, const clv_kernel_args *a) {
  const clv_shape *x = &k->d.in[0];
  /* [N, C] is computed as one image of N positions with channels last */
  bool is_flat = x->rank == 2,
       is_channels_last = is_flat || clv_layout_is_channels_last(k->base.in_block[0]);
  norm_job j = {
      .k = k,
      .a = a,
      .n_samples = is_flat ? 1 : (size_t)x->dim[0],
      .n_channels = (size_t)x->dim[1],
      .image_size =
          is_flat ? (size_t)x->dim[0] : (size_t)(x->dim[2] * (x->rank == 4 ? x->dim[3] : 1)),
      .block_width = is_channels_last ? NORM_BLOCK : (size_t)clv_layout_block(k->base.in_block[0]),
      .position_stride = is_channels_last ? (size_t)x->dim[1] : 0,
      .x_is_bf16 = clv_layout_is_bf16(k->base.in_block[0]),
      .dx_is_bf16 = clv_layout_is_bf16(k->base.din_block[0]),
      .out_is_bf16 = clv_layout_is_bf16(k->base.out_block),
      .gate = k->d.tail & CLV_TAIL_ADD ? NORM_RELU_BY_Y
              : k->d.tail              ? NORM_RELU_BY_X
                                       : NORM_NO_RELU,
      .states = a ? a->scratch : NULL};
  j.saves_relu_bits =
      k->d.bf16 && j.block_width % 8 == 0 && k->has_backward && k->d.tail & CLV_TAIL_ADD;
  j.n_blocks = (j.n_channels + j.block_width - 1) / j.block_width;
  j.values_per_channel = (double)(j.n_samples * j.image_size);
  j.n_positions = count_positions(&j);
  return j;
}

/* Calls `fn` on the blocks [begin, end). If the tensor is channels last, one call gets all blocks,
 * because fn then reads memory in order; otherwise each call gets one block. */
static void call_for_blocks(const norm_job *j, size_t begin, size_t end,
                            void (*fn)(const norm_job *j, size_t begin, size_t end)) {
  size_t n_blocks_per_call = j->position_stride ? end - begin : 1;
  for (size_t block = begin; block < end; block += n_blocks_per_call)
    fn(j, block, block + n_blocks_per_call);
}

/* A piece of a plane: n values of one block. at: index of the first value in channel blocks. tile:
 * place of the values in channels last. prefetch_tile: values of later pieces that are prefetched
 * when this piece is read, because the processor's own prefetch does not follow rows that are far
 * apart. */
typedef struct norm_piece {
  size_t block, at, n;
  cpu_channels_last_tile tile, prefetch_tile;
} norm_piece;

static norm_piece make_piece(const norm_job *j, size_t block, size_t sample, size_t image_position,
                             size_t n) {
  cpu_channels_last_tile rows = {
      .first_index =
          (sample * j->image_size + image_position) * j->position_stride + block * j->block_width,
      .rows = n,
      .position_stride = j->position_stride,
      .n_channels = CLV_MIN(j->block_width, j->n_channels - block * j->block_width)};
  size_t at = ((sample * j->n_blocks + block) * j->image_size + image_position) * j->block_width;
  return (norm_piece){block, at, n * j->block_width, rows, {0}};
}

/* State of an iteration over the norm_pieces of blocks [begin, end). sample, image_position, block:
 * the sample, the first position in its image and the channel block of the next piece. The block
 * advances first, then the position, then the sample. */
typedef struct piece_iterator {
  size_t begin, end, sample, image_position, block;
} piece_iterator;

static piece_iterator start_pieces(size_t begin, size_t end) {
  return (piece_iterator){begin, end, 0, 0, begin};
}

/* Returns the values to prefetch while block w->block is read. The iterator reads next the same
 * number of positions, of all its blocks; each block prefetches an equal part of these positions.
 */
static cpu_channels_last_tile choose_prefetch_tile(const norm_job *j, const piece_iterator *w) {
  size_t n_blocks = w->end - w->begin, share = w->block - w->begin,
         first_channel = w->begin * j->block_width;
  size_t first_position = j->n_positions * share / n_blocks,
         end = j->n_positions * (share + 1) / n_blocks;
  size_t image_position = w->sample * j->image_size + w->image_position + j->n_positions;
  return (cpu_channels_last_tile){
      .first_index = (image_position + first_position) * j->position_stride + first_channel,
      .rows = end - first_position,
      .position_stride = j->position_stride,
      .n_channels = CLV_MIN(w->end * j->block_width, j->n_channels) - first_channel};
}

/* Writes the next piece to *ret and advances the iterator. Returns false after the last piece. */
static bool next_piece(const norm_job *j, piece_iterator *w, norm_piece *ret) {
  if (w->block == w->end) {
    w->block = w->begin;
    w->image_position += j->n_positions;
  }
  if (w->image_position >= j->image_size) {
    w->image_position = 0;
    w->sample++;
  }
  if (w->sample >= j->n_samples || !j->image_size) return false;
  size_t n = CLV_MIN(j->n_positions, j->image_size - w->image_position);
  *ret = make_piece(j, w->block, w->sample, w->image_position, n);
  if (j->position_stride) ret->prefetch_tile = choose_prefetch_tile(j, w);
  w->block++;
  return true;
}

/* Returns the address of a piece in an f32 array in channel blocks; NULL if `array` is NULL. */
static float *piece_address(const void *array, norm_piece p) {
  return array ? (float *)(uintptr_t)array + p.at : NULL;
}

/* Returns the values of a piece: in the array, or copied into `buffer` if the array is bf16 or
 * channels last. array may be NULL. */
static const float *read_piece(const norm_job *j, const void *array, bool is_bf16, norm_piece p,
                               float *buffer) {
  if (!array || (!is_bf16 && !j->position_stride)) return piece_address(array, p);
  p.tile.is_bf16 = p.prefetch_tile.is_bf16 = is_bf16;
  if (j->position_stride) {
    clv_cpu_prefetch_tile(array, &p.prefetch_tile);
    clv_cpu_gather_tile(array, &p.tile, buffer);
  } else {
    clv_cpu_convert_from_bf16((const uint16_t *)array + p.at, p.n, buffer);
  }
  return buffer;
}

/* Returns where to compute the values of a piece: in the array, or in `buffer` if the array is bf16
 * or channels last. write_piece then copies them from the buffer to the array. */
static float *result_address(const norm_job *j, const void *array, bool is_bf16, norm_piece p,
                             float *buffer) {
  return array && (is_bf16 || j->position_stride) ? buffer : piece_address(array, p);
}

static void write_piece(const norm_job *j, const float *result, void *array, bool is_bf16,
                        norm_piece p) {
  p.tile.is_bf16 = is_bf16;
  if (array && j->position_stride)
    clv_cpu_scatter_tile(result, &p.tile, array);
  else if (array && is_bf16)
    clv_cpu_convert_to_bf16(result, p.n, (uint16_t *)array + p.at);
}

/* Adds the NORM_PARTIAL_SUMS partial sums of each of b channels. */
static void add_lane_sums(const double *lane_sums, size_t b, double *ret) {
  for (size_t l = 0; l < b; l++)
    ret[l] = (lane_sums[l] + lane_sums[2 * b + l]) + (lane_sums[b + l] + lane_sums[3 * b + l]);
}

/* Repeats b values NORM_PARTIAL_SUMS times. */
static void repeat_in_lanes(const double *values, size_t b, double *ret_lanes) {
  for (size_t l = 0; l < NORM_PARTIAL_SUMS * b; l++) ret_lanes[l] = values[l % b];
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Adds up, for each channel, x minus the channel's first value, and the squares of these
 * differences. */
static void add_block_moments(const norm_job *j, size_t begin, size_t end) {
  float buffer[NORM_PIECE_VALUES];
  norm_piece p;
  for (size_t block = begin; block < end; block++) {
    double first_values[NORM_BLOCK] = {0};
    const float *x =
        read_piece(j, j->a->in[0], j->x_is_bf16, make_piece(j, block, 0, 0, 1), buffer);
    for (size_t l = 0; l < j->block_width; l++) first_values[l] = isfinite(x[l]) ? x[l] : 0;
    repeat_in_lanes(first_values, j->block_width, j->states[block].lane_coefficients.mean);
  }
  for (piece_iterator w = start_pieces(begin, end); next_piece(j, &w, &p);) {
    norm_state *s = &j->states[p.block];
    clv_cpu_norm_add_moments(read_piece(j, j->a->in[0], j->x_is_bf16, p, buffer), p.n,
                             j->block_width, s->lane_coefficients.mean, &s->sums);
  }
}

/* Computes the mean of each channel of the block, and the sum of squared distances from the mean.
 */
static void compute_statistics(const norm_job *j, const norm_state *s, double *ret_mean,
                               double *ret_squares) {
  double sum[NORM_BLOCK];
  add_lane_sums(s->sums.value_sums, j->block_width, sum);
  add_lane_sums(s->sums.product_sums, j->block_width, ret_squares);
  for (size_t l = 0; l < j->block_width; l++) {
    double squares = ret_squares[l] - sum[l] * (sum[l] / j->values_per_channel);
    ret_mean[l] = s->lane_coefficients.mean[l] + sum[l] / j->values_per_channel;
    ret_squares[l] = squares < 0 ? 0 : squares; /* negative only by rounding; a NaN stays a NaN */
  }
}

/* Computes mean and 1/sqrt(var + eps) of the block's channels. In training they are those of the
 * batch, and the running statistics are updated (with the unbiased variance); otherwise they are
 * those of the running statistics. */
static void compute_moments(const norm_job *j, size_t block) {
  norm_block *v = &j->states[block].channels;
  float *running_mean = j->a->param[CLV_SLOT_MEAN], *running_var = j->a->param[CLV_SLOT_VAR];
  double squares[NORM_BLOCK], momentum = j->k->d.attrs.momentum;
  if (j->k->d.training) compute_statistics(j, &j->states[block], v->mean, squares);
  for (size_t l = 0, c = block * j->block_width; l < j->block_width && c < j->n_channels;
       l++, c++) {
    double var = running_var[c];
    if (j->k->d.training) {
      var = squares[l] / j->values_per_channel;
      running_mean[c] = (float)(momentum * v->mean[l] + (1 - momentum) * running_mean[c]);
      running_var[c] = (float)(momentum * (squares[l] / (j->values_per_channel - 1)) +
                               (1 - momentum) * running_var[c]);
    } else {
      v->mean[l] = running_mean[c];
    }
    v->inverse_std[l] = 1 / sqrt(var + j->k->d.attrs.eps);
  }
}

static void load_parameters(const norm_job *j, size_t block, norm_block *v) {
  const float *w = j->a->param[CLV_SLOT_WEIGHT], *b = j->a->param[CLV_SLOT_BIAS];
  for (size_t l = 0, c = block * j->block_width; l < j->block_width && c < j->n_channels;
       l++, c++) {
    v->weight[l] = w[c];
    v->bias[l] = b ? b[c] : 0;
  }
}

static clv_norm_affine make_block_affine(const norm_job *j, const norm_block *v) {
  double share = j->k->d.training ? 1 / j->values_per_channel : 0;
  clv_norm_affine f;
  for (size_t l = 0; l < NORM_BLOCK; l++) {
    f.mean[l] = (float)v->mean[l];
    f.scale[l] = (float)(v->inverse_std[l] * v->weight[l]);
    f.shift[l] = v->bias[l];
    f.offset[l] = (float)(v->dbias[l] * share);
    f.slope[l] = (float)(v->dweight[l] * v->inverse_std[l] * share);
  }
  return f;
}

/* Returns the address of a piece's relu bits (clv_cpu_norm_pack_relu_bits), which are stored after
 * the saved statistics of all blocks. */
static uint8_t *relu_bits_address(const norm_job *j, norm_piece p) {
  return (uint8_t *)((double *)j->a->saved + 2 * j->n_blocks * j->block_width) + p.at / 8;
}

static void write_output(const norm_job *j, size_t begin, size_t end) {
  float x_buffer[NORM_PIECE_VALUES], added_buffer[NORM_PIECE_VALUES], y_buffer[NORM_PIECE_VALUES];
  norm_piece p;
  for (size_t block = begin; block < end; block++)
    j->states[block].affine = make_block_affine(j, &j->states[block].channels);
  for (piece_iterator w = start_pieces(begin, end); next_piece(j, &w, &p);) {
    float *y = result_address(j, j->a->out, j->out_is_bf16, p, y_buffer);
    clv_cpu_norm_apply(read_piece(j, j->a->in[0], j->x_is_bf16, p, x_buffer),
                       read_piece(j, j->a->in[1], false, p, added_buffer), p.n, j->block_width,
                       &j->states[p.block].affine, j->gate != NORM_NO_RELU, y);
    write_piece(j, y, j->a->out, j->out_is_bf16, p);
    if (j->saves_relu_bits) clv_cpu_norm_pack_relu_bits(y, p.n, relu_bits_address(j, p));
  }
}

/* Saves the means of the block's channels, then their inverse_std. */
static void save_block(const norm_job *j, size_t block, const norm_block *v) {
  double *to = (double *)j->a->saved + 2 * block * j->block_width;
  memcpy(to, v->mean, j->block_width * sizeof(double));
  memcpy(to + j->block_width, v->inverse_std, j->block_width * sizeof(double));
}

static norm_block load_saved_block(const norm_job *j, size_t block) {
  const double *saved_block = (const double *)j->a->saved + 2 * block * j->block_width;
  norm_block v = {0};
  memcpy(v.mean, saved_block, j->block_width * sizeof(double));
  memcpy(v.inverse_std, saved_block + j->block_width, j->block_width * sizeof(double));
  load_parameters(j, block, &v);
  return v;
}

static void forward_block_range(const norm_job *j, size_t begin, size_t end) {
  memset(j->states + begin, 0, (end - begin) * sizeof *j->states);
  if (j->k->d.training) add_block_moments(j, begin, end);
  for (size_t block = begin; block < end; block++) {
    compute_moments(j, block);
    load_parameters(j, block, &j->states[block].channels);
    if (j->k->has_backward) save_block(j, block, &j->states[block].channels);
  }
  write_output(j, begin, end);
}

static void recompute_block_range(const norm_job *j, size_t begin, size_t end) {
  for (size_t block = begin; block < end; block++)
    j->states[block].channels = load_saved_block(j, block);
  write_output(j, begin, end);
}

static void forward_blocks(void *arg, size_t begin, size_t end) {
  call_for_blocks(arg, begin, end, forward_block_range);
}

static void recompute_blocks(void *arg, size_t begin, size_t end) {
  call_for_blocks(arg, begin, end, recompute_block_range);
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.n_blocks, forward_blocks, &j);
  if (k->d.training) ++*(int64_t *)a->param[CLV_SLOT_TRACKED];
  return CLV_OK;
}

static clv_code batchnorm_recompute(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.n_blocks, recompute_blocks, &j);
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Buffers of a backward for one piece of each array: inputs, gradients of outputs, gradients that
 * pass the relu, numbers whose signs decide which ones pass, and gradients of inputs. */
typedef struct norm_buffers {
  float x[NORM_PIECE_VALUES], dy[NORM_PIECE_VALUES], g[NORM_PIECE_VALUES],
      relu_signs[NORM_PIECE_VALUES], dx[NORM_PIECE_VALUES];
} norm_buffers;

/* Returns n numbers whose signs decide which gradients pass the relu: the outputs, or numbers
 * unpacked from the saved relu bits. Returns NULL unless the relu gate is NORM_RELU_BY_Y. */
static const float *read_relu_signs(const norm_job *j, norm_piece p, float *buffer) {
  if (j->gate != NORM_RELU_BY_Y) return NULL;
  if (!j->saves_relu_bits) return read_piece(j, j->a->out, false, p, buffer);
  clv_cpu_norm_unpack_relu_bits(relu_bits_address(j, p), p.n, buffer);
  return buffer;
}

static void repeat_coefficients(const norm_job *j, norm_state *s) {
  repeat_in_lanes(s->channels.mean, j->block_width, s->lane_coefficients.mean);
  for (size_t l = 0; l < NORM_PARTIAL_SUMS * j->block_width; l++) {
    s->lane_coefficients.mean_f32[l] = s->affine.mean[l % j->block_width];
    s->lane_coefficients.scale[l] = s->affine.scale[l % j->block_width];
    s->lane_coefficients.shift[l] = s->affine.shift[l % j->block_width];
  }
}

/* Computes sum dy and sum dy (x - mean) / sqrt(var + eps) of the blocks' channels, which are the
 * gradients of bias and weight. Writes the gradient of the added input. */
static void sum_block_gradients(const norm_job *j, size_t begin, size_t end) {
  norm_buffers b;
  norm_piece piece;
  for (piece_iterator w = start_pieces(begin, end); next_piece(j, &w, &piece);) {
    norm_state *s = &j->states[piece.block];
    clv_norm_plane p = {.x = read_piece(j, j->a->in[0], j->x_is_bf16, piece, b.x),
                        .y = read_relu_signs(j, piece, b.relu_signs),
                        .dy = read_piece(j, j->a->dout, false, piece, b.dy),
                        .g = result_address(j, j->a->din[1], false, piece, b.g),
                        .n = piece.n,
                        .b = j->block_width,
                        .gate = j->gate};
    clv_cpu_norm_add_gradients(&p, &s->lane_coefficients, &s->sums);
    write_piece(j, p.g, j->a->din[1], false, piece);
  }
}

static void add_gradient_lanes(const norm_job *j, norm_state *s) {
  add_lane_sums(s->sums.value_sums, j->block_width, s->channels.dbias);
  add_lane_sums(s->sums.product_sums, j->block_width, s->channels.dweight);
  for (size_t l = 0; l < j->block_width; l++) s->channels.dweight[l] *= s->channels.inverse_std[l];
}

static void write_weight_grads(const norm_job *j, size_t block, const norm_block *v) {
  const double *const sums[] = {v->dweight, v->dbias};
  for (int slot = 0; slot < 2; slot++) {
    float *d = j->a->dparam[slot];
    for (size_t l = 0, c = block * j->block_width; d && l < j->block_width && c < j->n_channels;
         l++, c++)
      d[c] = j->a->accumulate ? d[c] + (float)sums[slot][l] : (float)sums[slot][l];
  }
}

/* Computes dx. In training dx = w inverse_std (dy - mean(dy) - xhat mean(dy xhat)), with xhat = (x
 * - mean) inverse_std; otherwise the statistics are constants, and dx = w inverse_std dy. */
static void write_input_gradient(const norm_job *j, size_t begin, size_t end) {
  norm_buffers b;
  norm_piece piece;
  /* If the op has an added input, sum_block_gradients has written its gradient, din[1]: dy where
   * the relu passes it, else 0. So din[1] replaces dy and the gate. */
  const void *dy = j->a->din[1] ? j->a->din[1] : j->a->dout;
  for (piece_iterator w = start_pieces(begin, end); next_piece(j, &w, &piece);) {
    clv_norm_plane p = {.x = read_piece(j, j->a->in[0], j->x_is_bf16, piece, b.x),
                        .y = j->a->din[1] ? NULL : read_relu_signs(j, piece, b.relu_signs),
                        .dy = read_piece(j, dy, false, piece, b.dy),
                        .n = piece.n,
                        .b = j->block_width,
                        .gate = j->a->din[1] ? NORM_NO_RELU : j->gate};
    float *dx = result_address(j, j->a->din[0], j->dx_is_bf16, piece, b.dx);
    clv_cpu_norm_backward(&p, &j->states[piece.block].affine, dx);
    write_piece(j, dx, j->a->din[0], j->dx_is_bf16, piece);
  }
}

static void backward_block_range(const norm_job *j, size_t begin, size_t end) {
  for (size_t block = begin; block < end; block++) {
    norm_state *s = &j->states[block];
    s->channels = load_saved_block(j, block);
    s->affine = make_block_affine(j, &s->channels);
    s->sums = (clv_norm_sums){0};
    repeat_coefficients(j, s);
  }
  sum_block_gradients(j, begin, end);
  for (size_t block = begin; block < end; block++) {
    norm_state *s = &j->states[block];
    add_gradient_lanes(j, s);
    if (j->k->d.need_dw) write_weight_grads(j, block, &s->channels);
    s->affine = make_block_affine(j, &s->channels);
  }
  if (j->a->din[0]) write_input_gradient(j, begin, end);
}

static void backward_blocks(void *arg, size_t begin, size_t end) {
  call_for_blocks(arg, begin, end, backward_block_range);
}

static clv_code batchnorm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  norm_job j = make_job(k, a);
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), j.n_blocks, backward_blocks, &j);
  return CLV_OK;
}

static clv_code batchnorm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d), bf16_block = block | CLV_LAYOUT_BF16;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  for (int i = 0; i < CLV_MAX_IN; i++) k->base.din_block[i] = block;
  k->base.dout_block = block;
  if (d->offered_block[0] == bf16_block) k->base.in_block[0] = bf16_block;
  if (d->wanted_din[0] == bf16_block) k->base.din_block[0] = bf16_block;
  if (d->wanted_out == bf16_block && !(d->tail & CLV_TAIL_ADD)) k->base.out_block = bf16_block;
  norm_job j = make_job(k, NULL);
  k->base.forward = batchnorm_forward;
  k->base.backward_input = k->has_backward ? batchnorm_backward : NULL;
  if (k->has_backward)
    k->base.saved_flags =
        CLV_SAVE_IN0 | (j.gate == NORM_RELU_BY_Y && !j.saves_relu_bits ? CLV_SAVE_OUT : 0);
  if (k->has_backward && j.gate == NORM_RELU_BY_X) k->base.recompute = batchnorm_recompute;
  k->base.scratch_bytes = j.n_blocks * sizeof(norm_state);
  k->base.saved_bytes = k->has_backward ? 2 * j.n_blocks * j.block_width * sizeof(double) : 0;
  if (j.saves_relu_bits)
    k->base.saved_bytes += j.n_samples * j.n_blocks * j.image_size * j.block_width / 8;
  k->base.fused_grads = d->need_dw;
  k->base.din_in_place_mask = d->n_in == 2 ? 1u << 1 : 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(batchnorm, batchnorm_prepare)
