/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of channels and of squares.
 */
#include "kernels/cuda/chunks_int.cuh"

template <typename T>
struct value_term {
  const T *x;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    return {static_cast<double>(gpu_to_float(x[index])), 0};
  }
};

static __global__ void put_channel_sums(cuda_sum_layout s, const cuda_pair *partial_sums, float *dst,
                                        bool accumulate) {
  GPU_FOR(c, s.channels)
  gpu_store_or_add(&dst[c], gpu_add_partial_sums(s, partial_sums, c).first, accumulate);
}

template <typename T>
static clv_code compute_value_sums(clv_gpu *g, const cuda_sum_layout *s, const void *x,
                                   void *partial_sums, clv_err *err) {
  return gpu_compute_partial_sums(g, s, value_term<T>{gpu_cast_input<T>(x)}, partial_sums, err);
}

clv_code clv_gpu_sum_channels(clv_gpu *g, const cuda_sum_layout *s, bool channels_last, const void *x,
                              void *partial_sums, float *dst, bool accumulate, clv_err *err) {
  CLV_TRY(GPU_BY_TYPE(channels_last, compute_value_sums, g, s, x, partial_sums, err));
  return gpu_launch(g, gpu_count_blocks(s->channels), GPU_BLOCK, err, put_channel_sums, *s,
                    static_cast<const cuda_pair *>(partial_sums), dst, accumulate);
}

/* ---- sums of squares ------------------------------------------------------------------------- */

static __global__ void sum_chunk_squares(const float *x, const cuda_range *ranges, size_t n_ranges,
                                         size_t n_chunks, double *sums) {
  GPU_ROWS(chunk, n_chunks) {
    clv_extent e = gpu_find_chunk(ranges, n_ranges, chunk);
    double sum = 0;
    GPU_ROW(i, e.n) {
      double value = static_cast<double>(x[e.at + i]);
      sum += value * value;
    }
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) sums[chunk] = sum;
  }
}

static __global__ void sum_run_squares(const cuda_range *ranges, size_t n_ranges, size_t n_chunks,
                                       double *sums) {
  GPU_ROWS(r, n_ranges) {
    size_t end = r + 1 < n_ranges ? ranges[r + 1].first_chunk : n_chunks, n = end - ranges[r].first_chunk;
    double sum = 0;
    GPU_ROW(i, n) sum += sums[ranges[r].first_chunk + i];
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) sums[n_chunks + r] = sum;
  }
}

clv_code clv_gpu_sum_range_squares(clv_gpu *g, const float *x, const cuda_range_table *t, clv_err *err) {
  const cuda_range *ranges = t->device_ranges;
  CLV_TRY(gpu_launch(g, gpu_count_row_blocks(t->n_chunks), GPU_BLOCK, err, sum_chunk_squares, x,
                     ranges, t->n, t->n_chunks, t->sums));
  return gpu_launch(g, gpu_count_row_blocks(t->n), GPU_BLOCK, err, sum_run_squares, ranges, t->n,
                    t->n_chunks, t->sums);
}
