/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/moves_int.h"

static __global__ void move(const float *src, size_t from_stride, float *dst, size_t to_stride,
                            size_t outer, size_t run) {
  GPU_FOR(i, outer * run) dst[i / run * to_stride + i % run] = src[i / run * from_stride + i % run];
}

clv_code clv_gpu_copy_runs(clv_gpu *g, const float *src, size_t from_stride, float *dst,
                           size_t to_stride, size_t outer, size_t run, clv_err *err) {
  return gpu_launch(g, gpu_blocks(outer * run), GPU_BLOCK, err, move, src, from_stride, dst,
                    to_stride, outer, run);
}

/* ---- rows of an embedding's table ------------------------------------------------------------ */

/* Returns row number i, computed as clv_row_number_at does on the host; INT64_MIN if the difference
 * overflows. */
static __device__ inline int64_t number_at(const clv_row_numbers &l, const int64_t *value,
                                           size_t i) {
  const int64_t *at = value + i * l.width;
  int64_t row = at[l.column];
  if (l.minus < 0) return row;
  int64_t subtrahend = at[l.minus];
  bool overflows = subtrahend < 0 ? row > INT64_MAX + subtrahend : row < INT64_MIN + subtrahend;
  return overflows ? INT64_MIN : row - subtrahend;
}

static __device__ inline bool is_row(const clv_row_numbers &l, int64_t row) {
  return row >= 0 && row < l.rows;
}

/* Returns the row of a position; row 0 for a refused number, whose result is not used. */
static __device__ inline size_t row_at(const clv_row_numbers &l, const int64_t *value, size_t i) {
  int64_t row = number_at(l, value, i);
  return is_row(l, row) ? static_cast<size_t>(row) : 0;
}

static __global__ void lookup(cuda_lookup t, const int64_t *value, const float *table, float *y,
                              clv_gpu_fault *f) {
  GPU_FOR(i, t.l.n * t.out) {
    size_t position = i / t.out;
    y[i] = table[row_at(t.l, value, position) * t.out + i % t.out];
    if (i % t.out == 0 && !is_row(t.l, number_at(t.l, value, position))) gpu_refuse(f, position);
  }
}

static __global__ void note(cuda_lookup t, const int64_t *value, clv_gpu_fault *f) {
  bool is_first = !f->is_set && f->index_complement;
  gpu_note(f, value,
           cuda_refusal{CLV_OP_EMBEDDING, t.layer, t.l.rows, static_cast<int64_t>(t.l.per_sample)});
  if (is_first) f->int_value = number_at(t.l, value, f->at);
}

clv_code clv_gpu_lookup(clv_gpu *g, const cuda_lookup *t, const int64_t *value, const float *table,
                        float *y, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_blocks(t->l.n * t->out), GPU_BLOCK, err, lookup, *t, value, table, y,
                     g->fault));
  return gpu_launch(g, 1, 1, err, note, *t, value, g->fault);
}

/* ---- gradients of an embedding's rows -------------------------------------------------------- */

/* Makes keys of row (upper half) and position (lower half). Keys after the last position are
 * greater than all others. */
static __global__ void make_keys(cuda_lookup t, const int64_t *value, uint64_t *keys,
                                 size_t n_keys) {
  GPU_FOR(i, n_keys)
  keys[i] = i < t.l.n ? static_cast<uint64_t>(row_at(t.l, value, i)) << 32 | i : UINT64_MAX;
}

/* Does one step of Batcher's bitonic sort: compares keys `distance` from each other, in runs of
 * `run`. */
static __global__ void exchange(uint64_t *keys, size_t n_keys, size_t run, size_t distance) {
  GPU_FOR(i, n_keys) {
    size_t other = i ^ distance;
    if (other < i) continue;
    uint64_t a = keys[i], b = keys[other];
    if ((a > b) != ((i & run) == 0)) continue;
    keys[i] = b;
    keys[other] = a;
  }
}

/* Adds the gradients of each row. The thread at the first sorted key of a row adds all
 * gradients of that row. */
static __global__ void add_rows(cuda_lookup t, const uint64_t *keys, const float *dy,
                                float *dtable) {
  GPU_FOR(i, t.l.n * t.out) {
    size_t s = i / t.out, o = i % t.out;
    uint64_t row = keys[s] >> 32;
    if ((s && keys[s - 1] >> 32 == row) || static_cast<int64_t>(row) == t.l.padding) continue;
    double sum = 0;
    for (; s < t.l.n && keys[s] >> 32 == row; s++)
      sum += static_cast<double>(dy[(keys[s] & UINT32_MAX) * t.out + o]);
    gpu_put(&dtable[row * t.out + o], sum, true);
  }
}

static clv_code sort(clv_gpu *g, uint64_t *keys, size_t n, clv_err *err) {
  for (size_t run = 2; run <= n; run *= 2)
    for (size_t distance = run / 2; distance; distance /= 2)
      CLV_TRY(gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, exchange, keys, n, run, distance));
  return CLV_OK;
}

clv_code clv_gpu_lookup_back(clv_gpu *g, const cuda_lookup *t, const int64_t *value,
                             const float *dy, uint64_t *keys, float *dtable, bool accumulate,
                             clv_err *err) {
  size_t n = gpu_count_keys(t->l.n),
         bytes = static_cast<size_t>(t->l.rows) * t->out * sizeof(float);
  if (!accumulate) CLV_TRY(g->vendor->fill(g->stream, dtable, 0, bytes, err));
  CLV_TRY(gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, make_keys, *t, value, keys, n));
  CLV_TRY(sort(g, keys, n, err));
  return gpu_launch(g, gpu_blocks(t->l.n * t->out), GPU_BLOCK, err, add_rows, *t,
                    static_cast<const uint64_t *>(keys), dy, dtable);
}
