/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains: each thread applies all ops to four values at a time, the values of one block of
 * the random generator.
 */
#include "kernels/cuda/pointwise_int.cuh"

struct alignas(16) cuda_quad {
  float v[4];
};

/* Returns four values of p, from index 4 b on; 0 after the last. p: aligned to 16 bytes, or NULL.
 */
static __device__ inline cuda_quad quad_at(const float *p, size_t b, size_t n) {
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

static __device__ inline float link_of(int op, float x, float z, float factor) {
  LINK(RELU, relu)
  LINK(SIGMOID, sigmoid)
  LINK(TANH, tanh)
  LINK(GELU, gelu)
  LINK(GELU_TANH, gelu_tanh)
  LINK(SILU, silu)
  LINK(ADD, add)
  return of_scale(x, z, factor);
}

/* Returns the gradient of the op's input from the saved value x and the gradient z of its output.
 */
static __device__ inline float link_back(int op, float x, float z, float factor) {
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

/* Returns the factor by which op j multiplies. */
static __device__ inline float factor_of(const cuda_chain &c, int j, bool is_kept) {
  return c.op[j] == CLV_OP_DROPOUT && !is_kept ? 0 : c.factor[j];
}

static __device__ inline philox4x32_ctr_t draw_words(const cuda_chain &c, size_t b) {
  philox4x32_ctr_t zeros = {};
  return c.has_dropout ? words_of(c.stream, c.rng_position, b) : zeros;
}

static __device__ inline bool is_kept(const cuda_chain &c, uint32_t word) {
  return (word >> 8) >= c.limit;
}

static __global__ void chain(const __grid_constant__ cuda_chain c, const float *xs, const float *zs,
                             float *ys, size_t n) {
  GPU_FOR(b, (n + 3) / 4) {
    cuda_quad x = quad_at(xs, b, n), z = quad_at(zs, b, n);
    philox4x32_ctr_t word = draw_words(c, b);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
      bool keep = is_kept(c, word.v[i]);
      for (int j = 0; j < c.n; j++)
        x.v[i] = link_of(c.op[j], x.v[i], z.v[i], factor_of(c, j, keep));
    }
    put_quad(ys, b, n, x);
  }
}

clv_code clv_gpu_chain(clv_gpu *g, const cuda_chain *c, const float *x, const float *z, float *y,
                       size_t n, clv_err *err) {
  return gpu_launch(g, gpu_blocks((n + 3) / 4), GPU_BLOCK, err, chain, *c, x, z, y, n);
}

/* Returns the gradient of x from dy, the gradient of the last value y; *added: the gradient
 * of the added input. */
static __device__ inline float back_through(const cuda_chain &c, float x, float y, float dy,
                                            bool is_kept, bool has_y, float *added) {
  float saved_values[CLV_MAX_LINKS];
  GPU_UNROLL
  for (int j = 0; j < CLV_MAX_LINKS; j++) {
    if (j >= c.n) break;
    float output = has_y ? y : link_of(c.op[j], x, 0, factor_of(c, j, is_kept));
    saved_values[j] = is_input_saved(c.op[j]) ? x : output;
    x = output;
  }
  GPU_UNROLL
  for (int j = CLV_MAX_LINKS - 1; j >= 0; j--) {
    if (j >= c.n) continue;
    if (c.op[j] == CLV_OP_ADD) *added = dy;
    dy = link_back(c.op[j], saved_values[j], dy, factor_of(c, j, is_kept));
  }
  return dy;
}

static __global__ void chain_back(const __grid_constant__ cuda_chain c, const float *xs,
                                  const float *ys, const float *dys, float *dxs, float *dzs,
                                  size_t n) {
  GPU_FOR(b, (n + 3) / 4) {
    cuda_quad x = quad_at(xs, b, n), y = quad_at(ys, b, n), d = quad_at(dys, b, n), dz = {};
    philox4x32_ctr_t word = draw_words(c, b);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
      d.v[i] = back_through(c, x.v[i], y.v[i], d.v[i], is_kept(c, word.v[i]), ys, &dz.v[i]);
    put_quad(dxs, b, n, d);
    put_quad(dzs, b, n, dz);
  }
}

clv_code clv_gpu_chain_back(clv_gpu *g, const cuda_chain *c, const cuda_chain_back *v, size_t n,
                            clv_err *err) {
  return gpu_launch(g, gpu_blocks((n + 3) / 4), GPU_BLOCK, err, chain_back, *c, v->x, v->y, v->dy,
                    v->dx, v->dz, n);
}
