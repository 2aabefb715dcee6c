/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of element-wise ops. A thread applies all ops of a chain to four values at a time, because
 * one block of the random generator has numbers for four values.
 */
#include "kernels/cuda/pointwise_int.cuh"

struct alignas(16) cuda_quad {
  float v[4];
};

/* Returns the four values of p from index 4 * b on, with 0 in place of values after the last of n.
 * p: aligned to 16 bytes, or NULL for zeros. */
static __device__ inline cuda_quad read_quad(const float *p, size_t b, size_t n) {
  cuda_quad q = {};
  if (!p) return q;
  if (4 * b + 4 <= n) return reinterpret_cast<const cuda_quad *>(p)[b];
  GPU_UNROLL
  for (int i = 0; i < 4; i++)
    if (4 * b + i < n) q.v[i] = p[4 * b + i];
  return q;
}

static __device__ inline void put_quad(float *p, size_t b, size_t n, const cuda_quad &q) {
  if (!p) return;
  if (4 * b + 4 <= n) {
    reinterpret_cast<cuda_quad *>(p)[b] = q;
    return;
  }
  GPU_UNROLL
  for (int i = 0; i < 4; i++)
    if (4 * b + i < n) p[4 * b + i] = q.v[i];
}

#define LINK(NAME, name) \
  if (op == CLV_OP_##NAME) return of_##name(x, z, factor);

static __device__ inline float apply_link(int op, float x, float z, float factor) {
  LINK(RELU, relu)
  LINK(SIGMOID, sigmoid)
  LINK(TANH, tanh)
  LINK(GELU, gelu)
  LINK(GELU_TANH, gelu_tanh)
  LINK(SILU, silu)
  LINK(ADD, add)
  return of_scale(x, z, factor);
}

/* Returns the gradient of the input of an op. x: value that the op's backward reads; z: gradient of
 * its output. */
static __device__ inline float link_gradient(int op, float x, float z, float factor) {
  LINK(RELU, relu_back)
  LINK(SIGMOID, sigmoid_back)
  LINK(TANH, tanh_back)
  LINK(GELU, gelu_back)
  LINK(GELU_TANH, gelu_tanh_back)
  LINK(SILU, silu_back)
  if (op == CLV_OP_ADD) return z;
  return of_scale(z, x, factor);
}
#undef LINK

static __device__ inline bool is_input_saved(int op) {
  return op == CLV_OP_GELU || op == CLV_OP_GELU_TANH || op == CLV_OP_SILU;
}

/* Returns the factor by which op j, a scale or a dropout, multiplies. */
static __device__ inline float factor_of(const cuda_chain &c, int j, bool is_kept) {
  return c.op[j] == CLV_OP_DROPOUT && !is_kept ? 0 : c.factor[j];
}

static __device__ inline philox4x32_ctr_t draw_random_words(const cuda_chain &c, size_t b) {
  philox4x32_ctr_t zeros = {};
  return c.has_dropout ? random_words_of(c.stream, c.rng_position, b) : zeros;
}

static __device__ inline bool is_kept(const cuda_chain &c, uint32_t words) {
  return (words >> 8) >= c.dropout_threshold;
}

static __global__ void chain(const __grid_constant__ cuda_chain c, const float *xs, const float *zs,
                             float *ys, size_t n) {
  GPU_FOR(b, (n + 3) / 4) {
    cuda_quad x = read_quad(xs, b, n), z = read_quad(zs, b, n);
    philox4x32_ctr_t words = draw_random_words(c, b);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
      bool is_value_kept = is_kept(c, words.v[i]);
      for (int j = 0; j < c.n; j++)
        x.v[i] = apply_link(c.op[j], x.v[i], z.v[i], factor_of(c, j, is_value_kept));
    }
    put_quad(ys, b, n, x);
  }
}

clv_code clv_gpu_chain(clv_gpu *g, const cuda_chain *c, const float *x, const float *z, float *y,
                       size_t n, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks((n + 3) / 4), GPU_BLOCK, err, chain, *c, x, z, y, n);
}

/* Returns the gradient of the chain's input x from dy, the gradient of its output y.
 * *ret_addend_grad: the gradient of the value that the chain's add adds. */
static __device__ inline float chain_gradient(const cuda_chain &c, float x, float y, float dy,
                                              bool is_kept, bool has_y, float *ret_addend_grad) {
  float saved_values[CLV_MAX_LINKS];
  GPU_UNROLL
  for (int j = 0; j < CLV_MAX_LINKS; j++) {
    if (j >= c.n) break;
    float output = has_y ? y : apply_link(c.op[j], x, 0, factor_of(c, j, is_kept));
    saved_values[j] = is_input_saved(c.op[j]) ? x : output;
    x = output;
  }
  GPU_UNROLL
  for (int j = CLV_MAX_LINKS - 1; j >= 0; j--) {
    if (j >= c.n) continue;
    if (c.op[j] == CLV_OP_ADD) *ret_addend_grad = dy;
    dy = link_gradient(c.op[j], saved_values[j], dy, factor_of(c, j, is_kept));
  }
  return dy;
}

static __global__ void chain_back(const __grid_constant__ cuda_chain c, const float *xs,
                                  const float *ys, const float *dys, float *dxs, float *dzs,
                                  size_t n) {
  GPU_FOR(b, (n + 3) / 4) {
    cuda_quad x = read_quad(xs, b, n), y = read_quad(ys, b, n), d = read_quad(dys, b, n), dz = {};
    philox4x32_ctr_t words = draw_random_words(c, b);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
      d.v[i] = chain_gradient(c, x.v[i], y.v[i], d.v[i], is_kept(c, words.v[i]), ys, &dz.v[i]);
    put_quad(dxs, b, n, d);
    put_quad(dzs, b, n, dz);
  }
}

clv_code clv_gpu_chain_back(clv_gpu *g, const cuda_chain *c, const cuda_chain_back *v, size_t n,
                            clv_err *err) {
  return gpu_launch(g, gpu_count_blocks((n + 3) / 4), GPU_BLOCK, err, chain_back, *c, v->x, v->y,
                    v->dy, v->dx, v->dz, n);
}
