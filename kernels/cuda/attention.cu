/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention's row kernels, one block a row. The order of a sum depends on the block's size, which
 * depends on the number of keys.
 */
#include "kernels/cuda/attention_int.h"
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/pointwise_int.cuh"

/* Writes to *ret the index of a position of a head in the layout that is not transposed to heads;
 * returns false if the position is a pad. */
static __device__ inline bool find_index(const cuda_by_heads &t, size_t position, size_t head,
                                         size_t *ret) {
  size_t row = position;
  bool is_real = !t.p.first_rows || gpu_row_of(t.p, position, &row);
  *ret = (row * t.heads + head) * t.width;
  return is_real;
}

template <typename D>
static __global__ void by_heads(cuda_by_heads t, const float *x, D *y) {
  GPU_FOR(i, t.n * t.steps * t.heads * t.width) {
    size_t d = i % t.width, s = i / t.width % t.steps, h = i / t.width / t.steps % t.heads, at;
    size_t position = i / t.width / t.steps / t.heads * t.steps + s;
    y[i] = find_index(t, position, h, &at) ? gpu_as<D>(x[at + d]) : gpu_as<D>(0);
  }
}

static __global__ void from_heads(cuda_by_heads t, const float *x, float *y) {
  GPU_FOR(i, t.n * t.steps * t.heads * t.width) {
    size_t d = i % t.width, s = i / t.width % t.steps, h = i / t.width / t.steps % t.heads, at;
    size_t position = i / t.width / t.steps / t.heads * t.steps + s;
    if (find_index(t, position, h, &at)) y[at + d] = x[i];
  }
  if (!t.p.first_rows) return;
  size_t rest = gpu_rest_of(t.p) * t.heads * t.width;
  GPU_FOR(i, t.p.rows * t.heads * t.width - rest) y[rest + i] = 0;
}

template <typename D>
static clv_code launch_by_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, void *y,
                                clv_err *err) {
  return gpu_launch(g, gpu_blocks(t->n * t->steps * t->heads * t->width), GPU_BLOCK, err,
                    by_heads<D>, *t, x, gpu_output<D>(y));
}

clv_code clv_gpu_to_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, void *y, bool bf16,
                          clv_err *err) {
  return GPU_BY_TYPE(bf16, launch_by_heads, g, t, x, y, err);
}

clv_code clv_gpu_from_heads(clv_gpu *g, const cuda_by_heads *t, const float *x, float *y,
                            clv_err *err) {
  return gpu_launch(g, gpu_blocks(t->n * t->steps * t->heads * t->width), GPU_BLOCK, err,
                    from_heads, *t, x, y);
}

/* ---- a row of scores ------------------------------------------------------------------------- */

/* One query row. It is found from its flat index over [sample, head of keys, row]. n_keys: number of
 * keys that the query attends to. */
struct cuda_row {
  size_t sample, head, i, n_keys;
  size_t saved; /* index of the row's saved numbers in [n, heads, t], or in packed [rows, heads] */
  bool is_real; /* the row belongs to a sequence; false: it only pads a packed sequence */
};

/* Returns the length of a sample; a refused length counts as 0. */
static __device__ inline size_t length_of(const cuda_heads &h, const int64_t *lengths,
                                          size_t sample) {
  if (!lengths) return h.s;
  int64_t length = lengths[sample];
  return length < 0 || static_cast<size_t>(length) > h.s ? 0 : static_cast<size_t>(length);
}

/* Converts the row's indices to those of packed sequences. A row that only pads a sequence attends
 * to no key. */
static __device__ inline void pack_row(const cuda_heads &h, cuda_row *row) {
  size_t begin = static_cast<size_t>(h.first_rows[row->sample]);
  size_t length = static_cast<size_t>(h.first_rows[row->sample + 1]) - begin;
  row->is_real = row->i < length;
  row->n_keys = row->is_real ? length : 0;
  row->saved = (begin + row->i) * h.heads + row->head;
}

static __device__ inline cuda_row row_of(const cuda_heads &h, size_t r, const int64_t *lengths) {
  size_t kv_head = r / h.rows, query = h.first + r % h.rows;
  cuda_row row;
  row.sample = kv_head / h.kv_heads;
  row.head = kv_head % h.kv_heads * h.group + query / h.t;
  row.i = query % h.t;
  row.n_keys = length_of(h, lengths, row.sample);
  row.saved = (row.sample * h.heads + row.head) * h.t + row.i;
  row.is_real = true;
  if (h.first_rows) pack_row(h, &row);
  if (h.causal && row.i + 1 < row.n_keys) row.n_keys = row.i + 1;
  return row;
}

/* Returns the random stream of the row, equal to clv_rng_stream_row on the host. */
static __device__ inline clv_rng_stream stream_of(const cuda_heads &h, const cuda_row &row) {
  philox4x32_ctr_t word = words_of(h.stream, h.rng_position, row.sample * h.heads + row.head);
  return clv_rng_stream{{static_cast<uint32_t>(row.i), word.v[2], word.v[3]},
                        {word.v[0], word.v[1]}};
}

/* Dropout factors of four keys. */
struct cuda_four {
  float factor[4];
};

static __device__ inline cuda_four four_of(const cuda_heads &h, const clv_rng_stream &s, size_t b) {
  cuda_four f = {{1, 1, 1, 1}};
  if (!h.dropout_threshold) return f;
  philox4x32_ctr_t word = words_of(s, nullptr, b);
  for (int i = 0; i < 4; i++)
    f.factor[i] = word.v[i] >> 8 >= h.dropout_threshold ? h.dropout_factor : 0;
  return f;
}

/* ---- attention weights ----------------------------------------------------------------------- */

template <typename D>
static __global__ void weigh(cuda_heads h, const float *xs, D *ys, const int64_t *lengths,
                             float *saved, clv_gpu_fault *f) {
  GPU_ROWS(r, h.n * h.kv_heads * h.rows) {
    cuda_row row = row_of(h, r, lengths);
    const float *x = xs + r * h.s;
    D *y = ys + r * h.s;
    float largest = -INFINITY;
    double sum = 0;
    if (lengths && threadIdx.x == 0 &&
        (lengths[row.sample] < 0 || static_cast<size_t>(lengths[row.sample]) > h.s))
      gpu_refuse(f, row.sample);
    GPU_ROW(j, row.n_keys) largest = gpu_greater(largest, x[j]);
    float top = gpu_block_max(largest) * h.scale;
    GPU_ROW(j, row.n_keys) sum += static_cast<double>(expf(x[j] * h.scale - top));
    sum = gpu_block_sum(sum);
    float inverse = row.n_keys ? static_cast<float>(1 / sum) : 0;
    clv_rng_stream s = stream_of(h, row);
    GPU_ROW(b, (h.s + 3) / 4) {
      cuda_four factors = four_of(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < h.s; j++)
        y[j] = gpu_as<D>(
            j < row.n_keys ? expf(x[j] * h.scale - top) * inverse * factors.factor[j % 4] : 0);
    }
    if (!saved || threadIdx.x || !row.is_real) continue;
    saved[2 * row.saved] = top;
    saved[2 * row.saved + 1] = inverse;
  }
}

template <typename D>
static clv_code launch_weigh(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                             const int64_t *lengths, float *saved, clv_err *err) {
  return gpu_launch(g, gpu_blocks_of_rows(h->n * h->kv_heads * h->rows), gpu_row_threads(h->s), err,
                    weigh<D>, *h, static_cast<const float *>(w->x), gpu_output<D>(w->operand),
                    lengths, saved, g->fault);
}

clv_code clv_gpu_attention_softmax(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                   const int64_t *lengths, float *saved, clv_err *err) {
  return GPU_BY_TYPE(h->bf16, launch_weigh, g, h, w, lengths, saved, err);
}

/* Computes the gradients of the scores, dS = P (M dP - sum P M dP) scale, from the weights P, the
 * dropout factors M and the gradients dP of the weights after dropout. */
template <typename D>
static __global__ void weigh_back(cuda_heads h, const float *xs, const float *dxs, D *ys, D *dys,
                                  const int64_t *lengths, const float *saved) {
  GPU_ROWS(r, h.n * h.kv_heads * h.rows) {
    cuda_row row = row_of(h, r, lengths);
    const float *x = xs + r * h.s, *dx = dxs + r * h.s;
    D *y = ys + r * h.s, *dy = dys + r * h.s;
    float top = row.is_real ? saved[2 * row.saved] : 0,
          inverse = row.is_real ? saved[2 * row.saved + 1] : 0;
    clv_rng_stream s = stream_of(h, row);
    double sum = 0;
    GPU_ROW(b, (row.n_keys + 3) / 4) {
      cuda_four factors = four_of(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < row.n_keys; j++)
        sum += static_cast<double>(expf(x[j] * h.scale - top) * inverse) *
               static_cast<double>(dx[j] * factors.factor[j % 4]);
    }
    float mean = static_cast<float>(gpu_block_sum(sum));
    GPU_ROW(b, (h.s + 3) / 4) {
      cuda_four factors = four_of(h, s, b);
      for (size_t j = 4 * b; j < 4 * b + 4 && j < h.s; j++) {
        float p = j < row.n_keys ? expf(x[j] * h.scale - top) * inverse : 0;
        dy[j] =
            gpu_as<D>(j < row.n_keys ? p * (dx[j] * factors.factor[j % 4] - mean) * h.scale : 0);
        y[j] = gpu_as<D>(p * factors.factor[j % 4]);
      }
    }
  }
}

template <typename D>
static clv_code launch_weigh_back(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                  const cuda_weights *dw, const int64_t *lengths,
                                  const float *saved, clv_err *err) {
  return gpu_launch(g, gpu_blocks_of_rows(h->n * h->kv_heads * h->rows), gpu_row_threads(h->s), err,
                    weigh_back<D>, *h, static_cast<const float *>(w->x),
                    static_cast<const float *>(dw->x), gpu_output<D>(w->operand),
                    gpu_output<D>(dw->operand), lengths, saved);
}

clv_code clv_gpu_attention_softmax_back(clv_gpu *g, const cuda_heads *h, const cuda_weights *w,
                                        const cuda_weights *dw, const int64_t *lengths,
                                        const float *saved, clv_err *err) {
  return GPU_BY_TYPE(h->bf16, launch_weigh_back, g, h, w, dw, lengths, saved, err);
}

static __global__ void note_length(cuda_refusal r, const int64_t *lengths, clv_gpu_fault *f) {
  gpu_note(f, lengths, r);
}

clv_code clv_gpu_note_bad_length(clv_gpu *g, const cuda_heads *h, const int64_t *lengths,
                                 clv_err *err) {
  return gpu_launch(g, 1, 1, err, note_length,
                    cuda_refusal{CLV_OP_ATTENTION, h->layer, static_cast<int64_t>(h->s), 1},
                    lengths, g->fault);
}
