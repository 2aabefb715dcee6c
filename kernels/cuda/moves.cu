/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/moves_int.h"

static __global__ void copy_runs(const float *src, size_t src_stride, float *dst, size_t dst_stride,
                                 size_t n_runs, size_t run_size) {
  GPU_FOR(i, n_runs * run_size)
  dst[i / run_size * dst_stride + i % run_size] = src[i / run_size * src_stride + i % run_size];
}

clv_code clv_gpu_copy_runs(clv_gpu *g, const float *src, size_t src_stride, float *dst,
                           size_t dst_stride, size_t n_runs, size_t run_size, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n_runs * run_size), GPU_BLOCK, err, copy_runs, src,
                    src_stride, dst, dst_stride, n_runs, run_size);
}

/* ---- rows of an embedding's table ------------------------------------------------------------ */

/* Returns row number i, as clv_row_number_at does on the host: a column of the input or, if l.minus
 * is not -1, the difference of two columns. If the difference overflows, returns INT64_MIN. */
static __device__ inline int64_t read_row_number(const clv_row_numbers &l,
                                                 const int64_t *row_numbers, size_t i) {
  const int64_t *columns = row_numbers + i * l.width;
  int64_t row = columns[l.column];
  if (l.minus < 0) return row;
  int64_t subtrahend = columns[l.minus];
  bool overflows = subtrahend < 0 ? row > INT64_MAX + subtrahend : row < INT64_MIN + subtrahend;
  return overflows ? INT64_MIN : row - subtrahend;
}

static __device__ inline bool is_valid_row(const clv_row_numbers &l, int64_t row) {
  return row >= 0 && row < l.rows;
}

/* Returns row number i, or 0 if the number is refused; the caller does not use the results then. */
static __device__ inline size_t read_valid_row(const clv_row_numbers &l, const int64_t *row_numbers,
                                               size_t i) {
  int64_t row = read_row_number(l, row_numbers, i);
  return is_valid_row(l, row) ? static_cast<size_t>(row) : 0;
}

static __global__ void look_up_rows(cuda_lookup t, const int64_t *row_numbers, const float *table,
                                    float *y, clv_gpu_fault *f) {
  GPU_FOR(i, t.l.n * t.row_size) {
    size_t position = i / t.row_size;
    y[i] = table[read_valid_row(t.l, row_numbers, position) * t.row_size + i % t.row_size];
    if (i % t.row_size == 0 && !is_valid_row(t.l, read_row_number(t.l, row_numbers, position)))
      gpu_refuse_value(f, position);
  }
}

static __global__ void record_bad_row(cuda_lookup t, const int64_t *row_numbers, clv_gpu_fault *f) {
  bool is_first = !f->is_set && f->index_complement;
  gpu_record_refusal(
      f, row_numbers,
      cuda_refusal{CLV_OP_EMBEDDING, t.layer, t.l.rows, static_cast<int64_t>(t.l.per_sample)});
  if (is_first) f->int_value = read_row_number(t.l, row_numbers, f->index);
}

clv_code clv_gpu_look_up_rows(clv_gpu *g, const cuda_lookup *t, const int64_t *row_numbers,
                              const float *table, float *y, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_count_blocks(t->l.n * t->row_size), GPU_BLOCK, err, look_up_rows, *t,
                     row_numbers, table, y, g->fault));
  return gpu_launch(g, 1, 1, err, record_bad_row, *t, row_numbers, g->fault);
}

/* ---- gradients of an embedding's rows -------------------------------------------------------- */

/* Makes sort keys with the row number in the upper 32 bits and the position in the lower 32. The
 * keys after that of the last position are larger than all others. */
static __global__ void make_keys(cuda_lookup t, const int64_t *row_numbers, uint64_t *keys,
                                 size_t n_keys) {
  GPU_FOR(i, n_keys)
  keys[i] =
      i < t.l.n ? static_cast<uint64_t>(read_valid_row(t.l, row_numbers, i)) << 32 | i : UINT64_MAX;
}

/* Does one step of Batcher's bitonic sort: compares keys that are `distance` apart, within runs of
 * run_size keys, which are sorted up and down by turns. */
static __global__ void compare_and_swap_keys(uint64_t *keys, size_t n_keys, size_t run_size,
                                             size_t distance) {
  GPU_FOR(i, n_keys) {
    size_t partner_index = i ^ distance;
    if (partner_index < i) continue;
    uint64_t a = keys[i], b = keys[partner_index];
    if ((a > b) != ((i & run_size) == 0)) continue;
    keys[i] = b;
    keys[partner_index] = a;
  }
}

/* Adds the gradients of each row of the table. The thread of the first sorted key of a row adds all
 * gradients of the row. */
static __global__ void add_row_gradients(cuda_lookup t, const uint64_t *keys, const float *dy,
                                         float *dtable) {
  GPU_FOR(i, t.l.n * t.row_size) {
    size_t s = i / t.row_size, o = i % t.row_size;
    uint64_t row = keys[s] >> 32;
    if ((s && keys[s - 1] >> 32 == row) || static_cast<int64_t>(row) == t.l.padding) continue;
    double sum = 0;
    for (; s < t.l.n && keys[s] >> 32 == row; s++)
      sum += static_cast<double>(dy[(keys[s] & UINT32_MAX) * t.row_size + o]);
    gpu_store_or_add(&dtable[row * t.row_size + o], sum, true);
  }
}

static clv_code sort_keys(clv_gpu *g, uint64_t *keys, size_t n_keys, clv_err *err) {
  for (size_t run_size = 2; run_size <= n_keys; run_size *= 2)
    for (size_t distance = run_size / 2; distance; distance /= 2)
      CLV_TRY(gpu_launch(g, gpu_count_blocks(n_keys), GPU_BLOCK, err, compare_and_swap_keys, keys,
                         n_keys, run_size, distance));
  return CLV_OK;
}

clv_code clv_gpu_look_up_rows_back(clv_gpu *g, const cuda_lookup *t, const int64_t *row_numbers,
                                   const float *dy, uint64_t *keys, float *dtable, bool accumulate,
                                   clv_err *err) {
  size_t n_keys = gpu_count_keys(t->l.n),
         bytes = static_cast<size_t>(t->l.rows) * t->row_size * sizeof(float);
  if (!accumulate) CLV_TRY(g->vendor->fill(g->stream, dtable, 0, bytes, err));
  CLV_TRY(gpu_launch(g, gpu_count_blocks(n_keys), GPU_BLOCK, err, make_keys, *t, row_numbers, keys,
                     n_keys));
  CLV_TRY(sort_keys(g, keys, n_keys, err));
  return gpu_launch(g, gpu_count_blocks(t->l.n * t->row_size), GPU_BLOCK, err, add_row_gradients,
                    *t, static_cast<const uint64_t *>(keys), dy, dtable);
}
