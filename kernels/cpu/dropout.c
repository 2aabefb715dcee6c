/* SPDX-License-Identifier: Apache-2.0
 *
 * dropout: y_i = x_i / (1 - p) where u_i >= p, else x_i * 0. u_i is the upper 24 bits of word i % 4
 * of Philox block i / 4, divided by 2^24. In every layout i is the value's row-major index. The
 * mask is saved row-major.
 */
#include <string.h>

#include "kernels/cpu/draw_int.h"

typedef struct mask_job {
  clv_rng_stream stream;
  uint8_t *mask;
  size_t n;
  uint32_t dropout_threshold; /* clv_cpu_dropout_threshold of the node's p */
  const int64_t *lengths;     /* lengths of the packed sequences; NULL: not packed */
  /* number of values of a position, and of a padded sequence */
  size_t values_per_position, values_per_sequence;
} mask_job;

CPU_INLINE void fill_mask_body(const uint32_t *random_words, size_t n, uint32_t dropout_threshold,
                               uint8_t *mask) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) mask[i] = random_words[i] >> 8 >= dropout_threshold;
}

CPU_CLONES(fill_mask,
           (const uint32_t *random_words, size_t n, uint32_t dropout_threshold, uint8_t *mask),
           (random_words, n, dropout_threshold, mask))

/* Draws the mask of ranges [begin, end), each of CPU_RANDOM_WORDS values. */
static void draw_mask(void *arg, size_t begin, size_t end) {
  const mask_job *j = arg;
  uint32_t random_words[CPU_RANDOM_WORDS];
  for (size_t range_index = begin; range_index < end; range_index++) {
    size_t at = range_index * CPU_RANDOM_WORDS;
    clv_cpu_draw_words(&j->stream, (uint32_t)(at / 4), random_words);
    fill_mask(random_words, CLV_MIN(j->n - at, (size_t)CPU_RANDOM_WORDS), j->dropout_threshold,
              j->mask + at);
  }
}

/* Draws the masks of packed sequences [begin, end). The numbers are those of padded sequences, so a
 * sequence may begin inside a block of random words. */
static void draw_sequence_masks(void *arg, size_t begin, size_t end) {
  const mask_job *j = arg;
  uint32_t random_words[CPU_RANDOM_WORDS];
  uint8_t *mask =
      j->mask + (size_t)clv_packed_rows_before(j->lengths, (int64_t)begin) * j->values_per_position;
  for (size_t n = begin; n < end; n++) {
    size_t n_values = (size_t)j->lengths[n] * j->values_per_position,
           first_index = n * j->values_per_sequence;
    for (size_t at = 0, n_drawn; at < n_values; at += n_drawn, mask += n_drawn) {
      size_t n_skipped_words = (first_index + at) % 4;
      clv_cpu_draw_words(&j->stream, (uint32_t)((first_index + at) / 4), random_words);
      n_drawn = CLV_MIN(n_values - at, CPU_RANDOM_WORDS - n_skipped_words);
      fill_mask(random_words + n_skipped_words, n_drawn, j->dropout_threshold, mask);
    }
  }
}

/* Draws the masks of all packed sequences. Rows that belong to no sequence are not kept. */
static clv_code draw_packed_masks(const cpu_kernel *k, const clv_kernel_args *a, mask_job *j,
                                  clv_err *err) {
  const clv_node_desc *d = &k->d;
  int64_t n = d->in[1].dim[0];
  j->lengths = a->in[1];
  j->values_per_position = (size_t)d->in[0].dim[1];
  j->values_per_sequence = (size_t)d->attrs.packed * j->values_per_position;
  CLV_TRY(clv_check_packed(j->lengths, n, d->attrs.packed, d->in[0].dim[0], err));
  size_t n_used_values = (size_t)clv_packed_rows_before(j->lengths, n) * j->values_per_position;
  memset(j->mask + n_used_values, 0, j->n - n_used_values);
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, j->n * 2), (size_t)n, draw_sequence_masks, j);
  return CLV_OK;
}

CPU_INLINE void apply_mask_flat_body(const float *x, const uint8_t *mask, float scale, float *y,
                                     size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] * (mask[i] ? scale : 0);
}

CPU_CLONES(apply_mask_flat, (const float *x, const uint8_t *mask, float scale, float *y, size_t n),
           (x, mask, scale, y, n))

static void apply_mask_in_blocks(const clv_shape *shape, size_t b, const float *x,
                                 const uint8_t *mask, float scale, float *y) {
  size_t channels = (size_t)shape->dim[1], image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  size_t n_blocks = (channels + b - 1) / b;
  for (size_t p = 0; p < (size_t)shape->dim[0] * n_blocks; p++) {
    size_t first_channel = p % n_blocks * b, used_channels = CLV_MIN(b, channels - first_channel);
    const uint8_t *plane_mask = mask + (p / n_blocks * channels + first_channel) * image_size;
    for (size_t i = 0; i < image_size; i++)
      for (size_t l = 0; l < b; l++) {
        size_t at = (p * image_size + i) * b + l;
        y[at] = l < used_channels ? x[at] * (plane_mask[l * image_size + i] ? scale : 0) : 0;
      }
  }
}

/* Computes y = x scale where the mask keeps the value, else 0, for values in channels last. The
 * mask is row-major. */
static void apply_mask_channels_last(const clv_shape *shape, const float *x, const uint8_t *mask,
                                     float scale, float *y) {
  size_t channels = (size_t)shape->dim[1], image_size = (size_t)(shape->dim[2] * shape->dim[3]);
  for (size_t i = 0; i < (size_t)shape->dim[0] * image_size; i++) {
    const uint8_t *position_mask = mask + i / image_size * channels * image_size + i % image_size;
    for (size_t c = 0; c < channels; c++)
      y[i * channels + c] = x[i * channels + c] * (position_mask[c * image_size] ? scale : 0);
  }
}

static void apply_mask(const cpu_kernel *k, const float *x, const uint8_t *mask, float *y) {
  double p = k->d.attrs.p;
  float scale = (float)(p < 1 ? 1 / (1 - p) : 0);
  if (k->base.out_block == 1)
    apply_mask_flat(x, mask, scale, y, k->n_in);
  else if (clv_layout_is_channels_last(k->base.out_block))
    apply_mask_channels_last(&k->d.in[0], x, mask, scale, y);
  else
    apply_mask_in_blocks(&k->d.in[0], (size_t)k->base.out_block, x, mask, scale, y);
}

static clv_code dropout_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  size_t n = clv_layout_numel(&k->d.in[0], 1);
  if (!k->d.training) {
    if (a->out != a->in[0]) memcpy(a->out, a->in[0], k->n_in * sizeof(float));
    return CLV_OK;
  }
  mask_job j = {.stream = clv_rng_stream_of(&a->key),
                .mask = a->saved,
                .n = n,
                .dropout_threshold = clv_cpu_dropout_threshold(k->d.attrs.p)};
  if (k->d.attrs.packed)
    CLV_TRY(draw_packed_masks(k, a, &j, err));
  else
    clv_cpu_parallel(clv_cpu_useful_threads(k->threads, n * 2),
                     (n + CPU_RANDOM_WORDS - 1) / CPU_RANDOM_WORDS, draw_mask, &j);
  apply_mask(k, a->in[0], a->saved, a->out);
  return CLV_OK;
}

static clv_code dropout_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (k->d.training)
    apply_mask(k, a->dout, a->saved, a->din[0]);
  else if (a->din[0] != a->dout)
    memcpy(a->din[0], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

static clv_code dropout_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  size_t n = clv_layout_numel(&d->in[0], 1);
  k->base.forward = dropout_forward;
  k->base.backward_input = d->need_dx[0] ? dropout_backward : NULL;
  k->base.saved_bytes = d->training ? n : 0;
  k->base.in_place = true;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(dropout, dropout_prepare)
