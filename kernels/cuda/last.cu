/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/moves_int.h"
#include "kernels/cuda/packed_int.cuh"

static __device__ inline bool is_valid_length(const cuda_last_extents &l, int64_t length) {
  return length >= 0 && static_cast<size_t>(length) <= l.steps;
}

static __global__ void copy_last_steps(cuda_last_extents l, const float *x, const int64_t *lengths,
                                       float *y, clv_gpu_fault *f) {
  GPU_FOR(i, l.n * l.features) {
    size_t n = i / l.features, o = i % l.features;
    int64_t length = lengths[n];
    bool is_valid = is_valid_length(l, length);
    size_t step = n * l.steps + static_cast<size_t>(is_valid && length ? length - 1 : 0);
    y[i] = is_valid && length ? x[step * l.features + o] : 0;
    if (o == 0 && !is_valid) gpu_refuse_value(f, n);
  }
}

static __global__ void record_bad_last_length(cuda_last_extents l, const int64_t *lengths,
                                              clv_gpu_fault *f) {
  gpu_record_refusal(f, lengths,
                     cuda_refusal{CLV_OP_LAST, l.layer, static_cast<int64_t>(l.steps), 1});
}

clv_code clv_gpu_copy_last_steps(clv_gpu *g, const cuda_last_extents *l, const float *x,
                                 const int64_t *lengths, float *y, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_count_blocks(l->n * l->features), GPU_BLOCK, err, copy_last_steps, *l,
                     x, lengths, y, g->fault));
  return gpu_launch(g, 1, 1, err, record_bad_last_length, *l, lengths, g->fault);
}

static __global__ void copy_last_grads(cuda_last_extents l, const float *dy, const int64_t *lengths,
                                       float *dx) {
  GPU_FOR(i, l.n * l.steps * l.features) {
    size_t o = i % l.features, step = i / l.features, n = step / l.steps;
    bool is_last_step =
        is_valid_length(l, lengths[n]) && static_cast<int64_t>(step % l.steps) == lengths[n] - 1;
    dx[i] = is_last_step ? dy[n * l.features + o] : 0;
  }
}

clv_code clv_gpu_copy_last_steps_back(clv_gpu *g, const cuda_last_extents *l, const float *dy,
                                      const int64_t *lengths, float *dx, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->steps * l->features), GPU_BLOCK, err,
                    copy_last_grads, *l, dy, lengths, dx);
}

/* ---- packed sequences ------------------------------------------------------------------------ */

/* Writes to *ret the row of sequence n's last (or first) position; returns false if the sequence is
 * empty. */
static __device__ inline bool find_end_row(const cuda_last_packed &e, size_t n, size_t *ret) {
  int64_t begin = e.p.first_rows[n], end = e.p.first_rows[n + 1];
  *ret = static_cast<size_t>(e.takes_first ? begin : end - 1);
  return end > begin;
}

static __global__ void copy_packed_ends(cuda_last_packed e, const float *x, float *y) {
  GPU_FOR(i, e.p.n * e.features) {
    size_t row;
    y[i] = find_end_row(e, i / e.features, &row) ? x[row * e.features + i % e.features] : 0;
  }
}

clv_code clv_gpu_copy_packed_ends(clv_gpu *g, const cuda_last_packed *e, const float *x, float *y,
                                  clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(e->p.n * e->features), GPU_BLOCK, err, copy_packed_ends, *e,
                    x, y);
}

static __global__ void copy_packed_end_grads(cuda_last_packed e, const float *dy, float *dx) {
  GPU_FOR(i, e.p.n * e.features) {
    size_t row;
    if (find_end_row(e, i / e.features, &row)) dx[row * e.features + i % e.features] = dy[i];
  }
}

clv_code clv_gpu_copy_packed_ends_back(clv_gpu *g, const cuda_last_packed *e, const float *dy,
                                       float *dx, clv_err *err) {
  CLV_TRY(g->vendor->fill(g->stream, dx, 0, e->p.rows * e->features * sizeof *dx, err));
  return gpu_launch(g, gpu_count_blocks(e->p.n * e->features), GPU_BLOCK, err,
                    copy_packed_end_grads, *e, dy, dx);
}
