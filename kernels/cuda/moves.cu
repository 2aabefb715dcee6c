/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/moves_int.h"

static __global__ void move(const float *src, size_t from_stride, float *dst, size_t to_stride,
                            size_t outer, size_t run) {
  GPU_FOR(i, outer * run) dst[i / run * to_stride + i % run] = src[i / run * from_stride + i % run];
}

clv_code clv_gpu_move(clv_gpu *g, const float *src, size_t from_stride, float *dst,
                      size_t to_stride, size_t outer, size_t run, clv_err *err) {
  return gpu_launch(g, gpu_blocks(outer * run), GPU_BLOCK, err, move, src, from_stride, dst,
                    to_stride, outer, run);
}

/* ---- rows of a table ------------------------------------------------------------------------- */

/* What places whose number is refused are computed with: row 0. */
static __device__ inline size_t row_at(const cuda_lookup &l, const int64_t *row, size_t i) {
  return row[i] < 0 || row[i] >= l.rows ? 0 : static_cast<size_t>(row[i]);
}

static __global__ void lookup(cuda_lookup l, const int64_t *row, const float *table, float *y,
                              clv_gpu_fault *f) {
  GPU_FOR(i, l.n * l.out) {
    size_t place = i / l.out;
    y[i] = table[row_at(l, row, place) * l.out + i % l.out];
    if (i % l.out == 0 && (row[place] < 0 || row[place] >= l.rows)) gpu_refuse(f, place);
  }
}

static __global__ void note(cuda_lookup l, const int64_t *row, clv_gpu_fault *f) {
  gpu_note(f, row, cuda_refusal{CLV_OP_EMBEDDING, l.layer, l.rows, l.per_sample});
}

clv_code clv_gpu_lookup(clv_gpu *g, const cuda_lookup *l, const int64_t *row, const float *table,
                        float *y, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_blocks(l->n * l->out), GPU_BLOCK, err, lookup, *l, row, table, y,
                     g->fault));
  return gpu_launch(g, 1, 1, err, note, *l, row, g->fault);
}

/* ---- their gradients ------------------------------------------------------------------------- */

/* Row and place in one number, the row in the upper half; places behind the last are greater. */
static __global__ void make_keys(cuda_lookup l, const int64_t *row, uint64_t *keys, size_t n_keys) {
  GPU_FOR(i, n_keys)
  keys[i] = i < l.n ? static_cast<uint64_t>(row_at(l, row, i)) << 32 | i : UINT64_MAX;
}

/* One step of Batcher's bitonic sort: pairs `apart` from each other, in runs of `run`. */
static __global__ void exchange(uint64_t *keys, size_t n_keys, size_t run, size_t apart) {
  GPU_FOR(i, n_keys) {
    size_t other = i ^ apart;
    if (other < i) continue;
    uint64_t a = keys[i], b = keys[other];
    if ((a > b) != ((i & run) == 0)) continue;
    keys[i] = b;
    keys[other] = a;
  }
}

/* Place s of the sorted keys, where a row begins, adds all that are of this row. */
static __global__ void add_rows(cuda_lookup l, const uint64_t *keys, const float *dy,
                                float *dtable) {
  GPU_FOR(i, l.n * l.out) {
    size_t s = i / l.out, o = i % l.out;
    uint64_t row = keys[s] >> 32;
    if (s && keys[s - 1] >> 32 == row) continue;
    double sum = 0;
    for (; s < l.n && keys[s] >> 32 == row; s++)
      sum += static_cast<double>(dy[(keys[s] & UINT32_MAX) * l.out + o]);
    gpu_put(&dtable[row * l.out + o], sum, true);
  }
}

static clv_code sort(clv_gpu *g, uint64_t *keys, size_t n, clv_err *err) {
  for (size_t run = 2; run <= n; run *= 2)
    for (size_t apart = run / 2; apart; apart /= 2)
      CLV_TRY(gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, exchange, keys, n, run, apart));
  return CLV_OK;
}

clv_code clv_gpu_lookup_back(clv_gpu *g, const cuda_lookup *l, const int64_t *row, const float *dy,
                             uint64_t *keys, float *dtable, bool accumulate, clv_err *err) {
  size_t n = gpu_keys(l->n), bytes = static_cast<size_t>(l->rows) * l->out * sizeof(float);
  if (!accumulate) CLV_TRY(g->vendor->fill(g->stream, dtable, 0, bytes, err));
  CLV_TRY(gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, make_keys, *l, row, keys, n));
  CLV_TRY(sort(g, keys, n, err));
  return gpu_launch(g, gpu_blocks(l->n * l->out), GPU_BLOCK, err, add_rows, *l,
                    static_cast<const uint64_t *>(keys), dy, dtable);
}
