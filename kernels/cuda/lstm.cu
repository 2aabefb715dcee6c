/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/lstm_int.h"

enum gate { GATE_I, GATE_F, GATE_G, GATE_O };

static __device__ inline double logistic(double x) { return 1 / (1 + exp(-x)); }

static __global__ void compute_lstm_cell(cuda_lstm l, size_t step, const float *bias_in,
                                         const float *bias_h) {
  GPU_FOR(p, l.n * l.h) {
    size_t j = p % l.h, row = p / l.h * l.t + step;
    float *gates = l.gates + row * 4 * l.h;
    double v[4];
    for (size_t q = 0; q < 4; q++) {
      v[q] = static_cast<double>(gates[q * l.h + j]);
      if (bias_in)
        v[q] +=
            static_cast<double>(bias_in[q * l.h + j]) + static_cast<double>(bias_h[q * l.h + j]);
      v[q] = static_cast<double>(static_cast<float>(q == GATE_G ? tanh(v[q]) : logistic(v[q])));
      gates[q * l.h + j] = static_cast<float>(v[q]);
    }
    double previous_c = step ? static_cast<double>(l.cell[(row - 1) * l.h + j]) : 0;
    double c = v[GATE_F] * previous_c + v[GATE_I] * v[GATE_G];
    l.cell[row * l.h + j] = static_cast<float>(c);
    float hidden = static_cast<float>(v[GATE_O] * tanh(c));
    l.hidden[row * l.h + j] = hidden;
    if (l.hidden_bf16) l.hidden_bf16[row * l.h + j] = gpu_from_float<cuda_bf16>(hidden);
  }
}

clv_code clv_gpu_compute_lstm_cell(clv_gpu *g, const cuda_lstm *l, size_t step,
                                   const float *bias_in, const float *bias_h, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->h), GPU_BLOCK, err, compute_lstm_cell, *l, step,
                    bias_in, bias_h);
}

static __global__ void compute_lstm_cell_back(cuda_lstm l, size_t step, const float *outer_dh,
                                              const float *dhs, float *dcs, float *dgates) {
  GPU_FOR(p, l.n * l.h) {
    size_t j = p % l.h, row = p / l.h * l.t + step;
    const float *gates = l.gates + row * 4 * l.h;
    float *d = dgates + row * 4 * l.h;
    bool is_last_step = step + 1 == l.t;
    double dh = static_cast<double>(outer_dh[row * l.h + j]);
    if (!is_last_step) dh += static_cast<double>(dhs[p]);
    double i = static_cast<double>(gates[GATE_I * l.h + j]);
    double f = static_cast<double>(gates[GATE_F * l.h + j]);
    double c = static_cast<double>(gates[GATE_G * l.h + j]);
    double o = static_cast<double>(gates[GATE_O * l.h + j]);
    double tanh_c = tanh(static_cast<double>(l.cell[row * l.h + j]));
    double previous_c = step ? static_cast<double>(l.cell[(row - 1) * l.h + j]) : 0;
    double dc = (is_last_step ? 0 : static_cast<double>(dcs[p])) + dh * o * (1 - tanh_c * tanh_c);
    d[GATE_I * l.h + j] = static_cast<float>(dc * c * i * (1 - i));
    d[GATE_F * l.h + j] = static_cast<float>(dc * previous_c * f * (1 - f));
    d[GATE_G * l.h + j] = static_cast<float>(dc * i * (1 - c * c));
    d[GATE_O * l.h + j] = static_cast<float>(dh * tanh_c * o * (1 - o));
    dcs[p] = static_cast<float>(dc * f);
    for (size_t q = 0; q < 4 && l.dgates_bf16; q++)
      l.dgates_bf16[row * 4 * l.h + q * l.h + j] = gpu_from_float<cuda_bf16>(d[q * l.h + j]);
  }
}

clv_code clv_gpu_compute_lstm_cell_back(clv_gpu *g, const cuda_lstm *l, size_t step,
                                        const float *outer_dh, const float *dh, float *dc,
                                        float *dgates, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->h), GPU_BLOCK, err, compute_lstm_cell_back, *l,
                    step, outer_dh, dh, dc, dgates);
}

static __global__ void shift_lstm_steps(cuda_lstm l, float *shifted) {
  GPU_FOR(i, l.n * l.t * l.h) shifted[i] = i / l.h % l.t ? l.hidden[i - l.h] : 0;
}

clv_code clv_gpu_shift_lstm_steps(clv_gpu *g, const cuda_lstm *l, float *shifted, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(l->n * l->t * l->h), GPU_BLOCK, err, shift_lstm_steps, *l,
                    shifted);
}

/* ---- parameters in cuDNN's buffer of weights ------------------------------------------------- */

static cuda_grid make_grid(const cuda_lstm_params *p) {
  size_t max_values = 0;
  for (unsigned i = 0; i < p->n; i++)
    max_values = p->n_values[i] > max_values ? p->n_values[i] : max_values;
  return cuda_grid(gpu_count_blocks(max_values), p->n);
}

static __global__ void pack_params(cuda_lstm_params p, float *space) {
  unsigned i = blockIdx.y;
  GPU_FOR(j, p.n_values[i]) space[p.index[i] + j] = p.param[i][j];
}

clv_code clv_gpu_pack_lstm_params(clv_gpu *g, const cuda_lstm_params *p, float *space,
                                  clv_err *err) {
  return gpu_launch(g, make_grid(p), GPU_BLOCK, err, pack_params, *p, space);
}

static __global__ void unpack_params(cuda_lstm_params p, const float *space, bool accumulate) {
  unsigned i = blockIdx.y;
  GPU_FOR(j, p.n_values[i]) {
    float value = space[p.index[i] + j];
    p.param[i][j] = accumulate ? p.param[i][j] + value : value;
  }
}

clv_code clv_gpu_unpack_lstm_params(clv_gpu *g, const cuda_lstm_params *p, const float *space,
                                    bool accumulate, clv_err *err) {
  return gpu_launch(g, make_grid(p), GPU_BLOCK, err, unpack_params, *p, space, accumulate);
}
