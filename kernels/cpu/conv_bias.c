/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of a convolution's bias: sums over all positions of all images. oneDNN computes it
 * as one sum in f32, whose error grows with the number of terms.
 */
#include "kernels/cpu/conv_int.h"
#include "kernels/cpu/norm_int.h"

/* Adds value i of a plane to sum[i % lanes]. */
CPU_INLINE void add_values(const float *restrict x, size_t n, size_t lanes, double *restrict sum) {
  double lane_sums[NORM_LANES];
  size_t i = 0;
  for (size_t l = 0; l < lanes; l++) lane_sums[l] = sum[l];
  for (; i + lanes <= n; i += lanes)
    for (size_t l = 0; l < lanes; l++) lane_sums[l] += (double)x[i + l];
  for (size_t l = 0; l < lanes; l++) sum[l] = lane_sums[l];
  for (size_t l = 0; i + l < n; l++) sum[l] += (double)x[i + l];
}

CPU_INLINE void add_plane_body(const float *x, size_t n, size_t block, double *sum) {
  if (block == 16)
    add_values(x, n, 16 * NORM_PARTIAL_SUMS, sum);
  else if (block == 8)
    add_values(x, n, 8 * NORM_PARTIAL_SUMS, sum);
  else
    add_values(x, n, NORM_PARTIAL_SUMS, sum);
}

CPU_CLONES(add_plane, (const float *restrict x, size_t n, size_t block, double *restrict sum),
           (x, n, block, sum))

size_t clv_cpu_conv_count_bias_blocks(const cpu_bias_grad_job *j) {
  return ((size_t)j->channels + (size_t)j->block - 1) / (size_t)j->block;
}

void clv_cpu_conv_sum_bias_grads(void *job, size_t begin, size_t end) {
  const cpu_bias_grad_job *j = job;
  size_t b = (size_t)j->block, plane_size = (size_t)j->positions * b;
  size_t n_blocks = clv_cpu_conv_count_bias_blocks(j);
  for (size_t block = begin; block < end; block++) {
    double sum[NORM_LANES] = {0};
    for (size_t n = 0; n < (size_t)j->n; n++)
      add_plane(j->dy + (n * n_blocks + block) * plane_size, plane_size, b, sum);
    for (size_t l = 0, c = block * b; l < b && c < (size_t)j->channels; l++, c++) {
      const double *lane_sums = &sum[l];
      float total = (float)((lane_sums[0] + lane_sums[2 * b]) + (lane_sums[b] + lane_sums[3 * b]));
      j->db[c] = j->accumulate ? j->db[c] + total : total;
    }
  }
}
