/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of channels and of squares.
 */
#include "kernels/cuda/chunks_int.cuh"

template <typename T>
struct value_term {
  const T *x;
  __device__ cuda_pair operator()(size_t at, size_t) const {
    return {static_cast<double>(gpu_get(x[at])), 0};
  }
};

static __global__ void put_channels(cuda_sums s, const cuda_pair *partial_sums, float *dst,
                                    bool accumulate) {
  GPU_FOR(c, s.channels) gpu_put(&dst[c], gpu_total(s, partial_sums, c).first, accumulate);
}

template <typename T>
static clv_code value_parts(clv_gpu *g, const cuda_sums *s, const void *x, void *partial_sums,
                            clv_err *err) {
  return gpu_compute_partial_sums(g, s, value_term<T>{gpu_input<T>(x)}, partial_sums, err);
}

clv_code clv_gpu_channel_sums(clv_gpu *g, const cuda_sums *s, bool channels_last, const void *x,
                              void *partial_sums, float *dst, bool accumulate, clv_err *err) {
  CLV_TRY(GPU_BY_TYPE(channels_last, value_parts, g, s, x, partial_sums, err));
  return gpu_launch(g, gpu_blocks(s->channels), GPU_BLOCK, err, put_channels, *s,
                    static_cast<const cuda_pair *>(partial_sums), dst, accumulate);
}

/* ---- sums of squares ------------------------------------------------------------------------- */

static __global__ void square_parts(const float *x, const cuda_run *runs, size_t n_runs,
                                    size_t chunks, double *part) {
  GPU_ROWS(chunk, chunks) {
    clv_extent e = gpu_chunk(runs, n_runs, chunk);
    double sum = 0;
    GPU_ROW(i, e.n) {
      double value = static_cast<double>(x[e.at + i]);
      sum += value * value;
    }
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) part[chunk] = sum;
  }
}

static __global__ void square_totals(const cuda_run *runs, size_t n_runs, size_t chunks,
                                     double *part) {
  GPU_ROWS(r, n_runs) {
    size_t end = r + 1 < n_runs ? runs[r + 1].first : chunks, n = end - runs[r].first;
    double sum = 0;
    GPU_ROW(i, n) sum += part[runs[r].first + i];
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) part[chunks + r] = sum;
  }
}

clv_code clv_gpu_square_sums(clv_gpu *g, const float *x, const cuda_runs *t, clv_err *err) {
  const cuda_run *runs = t->run;
  CLV_TRY(gpu_launch(g, gpu_blocks_of_rows(t->chunks), GPU_BLOCK, err, square_parts, x, runs, t->n,
                     t->chunks, t->sums));
  return gpu_launch(g, gpu_blocks_of_rows(t->n), GPU_BLOCK, err, square_totals, runs, t->n,
                    t->chunks, t->sums);
}
