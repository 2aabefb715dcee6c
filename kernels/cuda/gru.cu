/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/gru_int.h"

static __device__ inline double logistic(double x) { return 1 / (1 + exp(-x)); }

static __device__ inline double biased_value(const float *x, const float *bias, size_t i) {
  return (x ? static_cast<double>(x[i]) : 0) + (bias ? static_cast<double>(bias[i]) : 0);
}

static __global__ void compute_gru_cell(cuda_gru l, size_t step, const float *h_product,
                                        const float *bias_in, const float *bias_h) {
  GPU_FOR(p, l.n * l.h) {
    size_t j = p % l.h, row = p / l.h * l.t + step;
    float *gates = l.gates + row * 3 * l.h;
    const float *h_row = step ? h_product + p / l.h * 3 * l.h : nullptr;
    double ih[3], sum[3];
    for (size_t q = 0; q < 3; q++) {
      ih[q] = biased_value(gates, bias_in, q * l.h + j);
      sum[q] = biased_value(h_row, bias_h, q * l.h + j);
    }
    double r = logistic(ih[0] + sum[0]), z = logistic(ih[1] + sum[1]), n = tanh(ih[2] + r * sum[2]);
    double previous_h = step ? static_cast<double>(l.hidden[(row - 1) * l.h + j]) : 0;
    gates[j] = static_cast<float>(r);
    gates[l.h + j] = static_cast<float>(z);
    gates[2 * l.h + j] = static_cast<float>(n);
    l.sums[row * l.h + j] = static_cast<float>(sum[2]);
    l.hidden[row * l.h + j] = static_cast<float>((1 - z) * n + z * previous_h);
  }
}

clv_code clv_gpu_compute_gru_cell(clv_gpu *g, const cuda_gru *l, size_t step,
                                  const float *h_product, const float *bias_in, const float *bias_h,
                                  clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->h), GPU_BLOCK, err, compute_gru_cell, *l, step,
                    h_product, bias_in, bias_h);
}

static __global__ void compute_gru_cell_back(cuda_gru l, size_t step, const float *outer_dh,
                                             cuda_gru_gradients d) {
  GPU_FOR(p, l.n * l.h) {
    size_t j = p % l.h, row = p / l.h * l.t + step;
    const float *gates = l.gates + row * 3 * l.h;
    float *dgates_ih = d.dgates_ih + row * 3 * l.h, *dgates_hh = d.dgates_hh + row * 3 * l.h;
    double r = static_cast<double>(gates[j]), z = static_cast<double>(gates[l.h + j]);
    double n = static_cast<double>(gates[2 * l.h + j]);
    double sum = static_cast<double>(l.sums[row * l.h + j]);
    double previous_h = step ? static_cast<double>(l.hidden[(row - 1) * l.h + j]) : 0;
    double dh = static_cast<double>(outer_dh[row * l.h + j]);
    if (step + 1 < l.t) dh += static_cast<double>(d.dh[p]);
    double dn = dh * (1 - z) * (1 - n * n);
    dgates_ih[j] = dgates_hh[j] = static_cast<float>(dn * sum * r * (1 - r));
    dgates_ih[l.h + j] = dgates_hh[l.h + j] =
        static_cast<float>(dh * (previous_h - n) * z * (1 - z));
    dgates_ih[2 * l.h + j] = static_cast<float>(dn);
    dgates_hh[2 * l.h + j] = static_cast<float>(dn * r);
    d.dh[p] = static_cast<float>(dh * z);
  }
}

clv_code clv_gpu_compute_gru_cell_back(clv_gpu *g, const cuda_gru *l, size_t step,
                                       const float *outer_dh, const cuda_gru_gradients *d,
                                       clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->h), GPU_BLOCK, err, compute_gru_cell_back, *l,
                    step, outer_dh, *d);
}

static __global__ void shift_gru_steps(cuda_gru l, float *shifted) {
  GPU_FOR(i, l.n * l.t * l.h) shifted[i] = i / l.h % l.t ? l.hidden[i - l.h] : 0;
}

clv_code clv_gpu_shift_gru_steps(clv_gpu *g, const cuda_gru *l, float *shifted, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->t * l->h), GPU_BLOCK, err, shift_gru_steps, *l,
                    shifted);
}
