/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of attention, except its products. In the softmax kernels a block of threads computes one
 * row of scores. The order of a sum depends on the size of the block, and so on the number of keys.
 */
#include "kernels/cuda/attention_int.h"
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/pointwise_int.cuh"

/* Writes to *ret the index of the first value of a position and head in the layout [.., heads,
 * width], which is not transposed. Returns false if the position is padding. */
static __device__ inline bool find_value_index(const cuda_head_tensor &t, size_t position, size_t head,
                                               size_t *ret) {
  size_t row = position;
  bool is_in_sequence = !t.p.first_rows || gpu_find_row(t.p, position, &row);
  *ret = (row * t.heads + head) * t.width;
  return is_in_sequence;
}

template <typename D>
static __global__ void split_heads(cuda_head_tensor t, const float *x, D *y) {
  GPU_FOR(i, t.n * t.steps * t.heads * t.width) {
    size_t d = i % t.width, s = i / t.width % t.steps, h = i / t.width / t.steps % t.heads, offset;
    size_t position = i / t.width / t.steps / t.heads * t.steps + s;
    y[i] = find_value_index(t, position, h, &offset) ? gpu_from_float<D>(x[offset + d])
                                                     : gpu_from_float<D>(0);
  }
}

static __global__ void merge_heads(cuda_head_tensor t, const float *x, float *y) {
  GPU_FOR(i, t.n * t.steps * t.heads * t.width) {
    size_t d = i % t.width, s = i / t.width % t.steps, h = i / t.width / t.steps % t.heads, offset;
    size_t position = i / t.width / t.steps / t.heads * t.steps + s;
    if (find_value_index(t, position, h, &offset)) y[offset + d] = x[i];
  }
  if (!t.p.first_rows) return;
  size_t first_unused = gpu_first_unused_row(t.p) * t.heads * t.width;
  GPU_FOR(i, t.p.rows * t.heads * t.width - first_unused) y[first_unused + i] = 0;
}

template <typename D>
static clv_code launch_split_heads(clv_gpu *g, const cuda_head_tensor *t, const float *x, void *y,
                                   clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(t->n * t->steps * t->heads * t->width), GPU_BLOCK, err,
                    split_heads<D>, *t, x, gpu_cast_output<D>(y));
}

clv_code clv_gpu_split_heads(clv_gpu *g, const cuda_head_tensor *t, const float *x, void *y, bool bf16,
                             clv_err *err) {
  return GPU_BY_TYPE(bf16, launch_split_heads, g, t, x, y, err);
}

clv_code clv_gpu_merge_heads(clv_gpu *g, const cuda_head_tensor *t, const float *x, float *y,
                             clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(t->n * t->steps * t->heads * t->width), GPU_BLOCK, err,
                    merge_heads, *t, x, y);
}

/* ---- a row of scores ------------------------------------------------------------------------- */

/* One query row. */
struct cuda_row {
  size_t sample, head, i; /* i: index of the query in its sample */
  size_t n_keys;          /* number of keys that the query attends to */
  size_t saved_index;     /* index of the row in [n, heads, t], or in packed [rows, heads] */
  bool is_in_sequence;    /* false: the row is padding of a packed sequence */
};

/* Returns the number of valid keys of a sample; a refused length counts as 0. */
static __device__ inline size_t sample_length(const cuda_heads &h, const int64_t *lengths,
                                          size_t sample) {
  if (!lengths) return h.s;
  int64_t length = lengths[sample];
  return length < 0 || static_cast<size_t>(length) > h.s ? 0 : static_cast<size_t>(length);
}

/* Sets the fields of the row that differ if sequences are packed. A row that is padding attends to
 * no key. */
static __device__ inline void convert_to_packed_row(const cuda_heads &h, cuda_row *row) {
  size_t begin = static_cast<size_t>(h.first_rows[row->sample]);
  size_t length = static_cast<size_t>(h.first_rows[row->sample + 1]) - begin;
  row->is_in_sequence = row->i < length;
  row->n_keys = row->is_in_sequence ? length : 0;
  row->saved_index = (begin + row->i) * h.heads + row->head;
}

/* Describes row r of [n, kv_heads, rows of the tile]. */
static __device__ inline cuda_row describe_row(const cuda_heads &h, size_t r,
                                               const int64_t *lengths) {
  size_t kv_head = r / h.rows, query = h.first_row + r % h.rows;
  cuda_row row;
  row.sample = kv_head / h.kv_heads;
  row.head = kv_head % h.kv_heads * h.group + query / h.t;
  row.i = query % h.t;
  row.n_keys = sample_length(h, lengths, row.sample);
  row.saved_index = (row.sample * h.heads + row.head) * h.t + row.i;
  row.is_in_sequence = true;
  if (h.first_rows) convert_to_packed_row(h, &row);
  if (h.is_causal && row.i + 1 < row.n_keys) row.n_keys = row.i + 1;
  return row;
}

/* Returns the random stream of the row, equal to clv_rng_stream_row on the host. */
static __device__ inline clv_rng_stream row_stream_of(const cuda_heads &h, const cuda_row &row) {
  philox4x32_ctr_t words =
      random_words_of(h.stream, h.rng_position, row.sample * h.heads + row.head);
  return clv_rng_stream{{static_cast<uint32_t>(row.i), words.v[2], words.v[3]},
                        {words.v[0], words.v[1]}};
}

/* Dropout factors of four adjacent keys. */
struct cuda_four_factors {
  float factor[4];
};

static __device__ inline cuda_four_factors draw_four_factors(const cuda_heads &h,
                                                             const clv_rng_stream &s, size_t b) {
  cuda_four_factors f = {{1, 1, 1, 1}};
  if (!h.dropout_threshold) return f;
  philox4x32_ctr_t words = random_words_of(s, nullptr, b);
  for (int i = 0; i < 4; i++)
    f.factor[i] = words.v[i] >> 8 >= h.dropout_threshold ? h.dropout_factor : 0;
  return f;
}

/* ---- attention weights ----------------------------------------------------------------------- */

/* Computes the attention weights of each row of scores, after dropout. */
template <typename D>
static __global__ void softmax_rows(cuda_heads h, const float *xs, D *ys, const int64_t *lengths,
                                    float *saved, clv_gpu_fault *f) {
  GPU_ROWS(r, h.n * h.kv_heads * h.rows) {
    cuda_row row = describe_row(h, r, lengths);
    const float *x = xs + r * h.s;
    D *y = ys + r * h.s;
    float thread_max = -INFINITY;
    double sum = 0;
    if (lengths && threadIdx.x == 0 &&
        (lengths[row.sample] < 0 || static_cast<size_t>(lengths[row.sample]) > h.s))
      gpu_refuse_value(f, row.sample);
    GPU_ROW(j, row.n_keys) thread_max = gpu_max_or_nan(thread_max, x[j]);
    float row_max = gpu_block_max(thread_max) * h.scale;
    GPU_ROW(j, row.n_keys) sum += static_cast<double>(expf(x[j] * h.scale - row_max));
    sum = gpu_block_sum(sum);
    float inverse_sum = row.n_keys ? static_cast<float>(1 / sum) : 0;
    clv_rng_stream s = row_stream_of(h, row);
    GPU_ROW(b, (h.s + 3) / 4) {
      cuda_four_factors factors = draw_four_factors(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < h.s; j++)
        y[j] = gpu_from_float<D>(j < row.n_keys ? expf(x[j] * h.scale - row_max) * inverse_sum *
                                                      factors.factor[j % 4]
                                                : 0);
    }
    if (!saved || threadIdx.x || !row.is_in_sequence) continue;
    saved[2 * row.saved_index] = row_max;
    saved[2 * row.saved_index + 1] = inverse_sum;
  }
}

template <typename D>
static clv_code launch_softmax_rows(clv_gpu *g, const cuda_heads *h, const cuda_attention_weights *w,
                                    const int64_t *lengths, float *saved, clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(h->n * h->kv_heads * h->rows),
                    gpu_count_row_threads(h->s), err, softmax_rows<D>, *h,
                    static_cast<const float *>(w->x), gpu_cast_output<D>(w->operand), lengths,
                    saved, g->fault);
}

clv_code clv_gpu_attention_softmax(clv_gpu *g, const cuda_heads *h, const cuda_attention_weights *w,
                                   const int64_t *lengths, float *saved, clv_err *err) {
  return GPU_BY_TYPE(h->bf16, launch_softmax_rows, g, h, w, lengths, saved, err);
}

/* Computes the gradients of the scores, dS = P (M dP - sum P M dP) scale, from the weights P, the
 * dropout factors M and the gradients dP of the weights after dropout. */
template <typename D>
static __global__ void softmax_rows_back(cuda_heads h, const float *xs, const float *dxs, D *ys,
                                         D *dys, const int64_t *lengths, const float *saved) {
  GPU_ROWS(r, h.n * h.kv_heads * h.rows) {
    cuda_row row = describe_row(h, r, lengths);
    const float *x = xs + r * h.s, *dx = dxs + r * h.s;
    D *y = ys + r * h.s, *dy = dys + r * h.s;
    float row_max = row.is_in_sequence ? saved[2 * row.saved_index] : 0,
          inverse_sum = row.is_in_sequence ? saved[2 * row.saved_index + 1] : 0;
    clv_rng_stream s = row_stream_of(h, row);
    double sum = 0;
    GPU_ROW(b, (row.n_keys + 3) / 4) {
      cuda_four_factors factors = draw_four_factors(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < row.n_keys; j++)
        sum += static_cast<double>(expf(x[j] * h.scale - row_max) * inverse_sum) *
               static_cast<double>(dx[j] * factors.factor[j % 4]);
    }
    float mean_dp = static_cast<float>(gpu_block_sum(sum));
    GPU_ROW(b, (h.s + 3) / 4) {
      cuda_four_factors factors = draw_four_factors(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < h.s; j++) {
        float p = j < row.n_keys ? expf(x[j] * h.scale - row_max) * inverse_sum : 0;
        dy[j] = gpu_from_float<D>(
            j < row.n_keys ? p * (dx[j] * factors.factor[j % 4] - mean_dp) * h.scale : 0);
        y[j] = gpu_from_float<D>(p * factors.factor[j % 4]);
      }
    }
  }
}

template <typename D>
static clv_code launch_softmax_rows_back(clv_gpu *g, const cuda_heads *h, const cuda_attention_weights *w,
                                         const cuda_attention_weights *dw, const int64_t *lengths,
                                         const float *saved, clv_err *err) {
  return gpu_launch(
      g, gpu_count_row_blocks(h->n * h->kv_heads * h->rows), gpu_count_row_threads(h->s), err,
      softmax_rows_back<D>, *h, static_cast<const float *>(w->x), static_cast<const float *>(dw->x),
      gpu_cast_output<D>(w->operand), gpu_cast_output<D>(dw->operand), lengths, saved);
}

clv_code clv_gpu_attention_softmax_back(clv_gpu *g, const cuda_heads *h, const cuda_attention_weights *w,
                                        const cuda_attention_weights *dw, const int64_t *lengths,
                                        const float *saved, clv_err *err) {
  return GPU_BY_TYPE(h->bf16, launch_softmax_rows_back, g, h, w, dw, lengths, saved, err);
}

static __global__ void record_bad_length(cuda_refusal r, const int64_t *lengths, clv_gpu_fault *f) {
  gpu_record_refusal(f, lengths, r);
}

clv_code clv_gpu_record_bad_length(clv_gpu *g, const cuda_heads *h, const int64_t *lengths,
                                   clv_err *err) {
  return gpu_launch(g, 1, 1, err, record_bad_length,
                    cuda_refusal{CLV_OP_ATTENTION, h->layer, static_cast<int64_t>(h->s), 1},
                    lengths, g->fault);
}
