/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise kernels: one value of the output from one value of each input. A thread loads 16
 * bytes of values at a time.
 */
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/pointwise_int.cuh"

/* Values that one thread loads and stores at once, aligned to 16 bytes. */
template <typename T>
struct alignas(16) map_pack {
  static constexpr size_t n = 16 / sizeof(T);
  T value[n];
};

/* Returns the number of full packs in n values; 0 unless all pointers are aligned to 16 bytes. z
 * may be NULL. */
template <typename T>
static size_t packs_of(const void *x, const void *z, const void *y, size_t n) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(z) |
                   reinterpret_cast<uintptr_t>(y);
  return bits % sizeof(map_pack<T>) ? 0 : n / map_pack<T>::n;
}

/* y may be x or z, because a thread reads its pack, or its value of the rest, before it writes
 * it. */
#define MAP(name)                                                                                  \
  template <typename T>                                                                            \
  static __global__ void map_##name(const T *xs, const T *zs, T *ys, size_t packs, size_t n,       \
                                    cuda_numbers numbers) {                                        \
    using pack = map_pack<T>;                                                                      \
    GPU_FOR(i, packs) {                                                                            \
      pack x = reinterpret_cast<const pack *>(xs)[i], z = {}, y;                                   \
      if (zs) z = reinterpret_cast<const pack *>(zs)[i];                                           \
      GPU_UNROLL                                                                                   \
      for (size_t k = 0; k < pack::n; k++)                                                         \
        y.value[k] =                                                                               \
            gpu_as<T>(of_##name(gpu_get(x.value[k]), gpu_get(z.value[k]), numbers.p, numbers.q));  \
      reinterpret_cast<pack *>(ys)[i] = y;                                                         \
    }                                                                                              \
    GPU_FOR(rest, n - packs * pack::n) {                                                           \
      size_t i = packs * pack::n + rest;                                                           \
      ys[i] = gpu_as<T>(of_##name(gpu_get(xs[i]), zs ? gpu_get(zs[i]) : 0, numbers.p, numbers.q)); \
    }                                                                                              \
  }                                                                                                \
  template <typename T>                                                                            \
  static clv_code launch_##name(clv_gpu *g, const void *x, const void *z, void *y, size_t n,       \
                                cuda_numbers numbers, clv_err *err) {                              \
    size_t packs = packs_of<T>(x, z, y, n), rest = n - packs * map_pack<T>::n;                     \
    return gpu_launch(g, gpu_blocks(packs > rest ? packs : rest), GPU_BLOCK, err, map_##name<T>,   \
                      gpu_input<T>(x), gpu_input<T>(z), gpu_output<T>(y), packs, n, numbers);      \
  }                                                                                                \
  clv_code clv_gpu_##name(clv_gpu *g, bool channels_last, const void *x, const void *z, void *y,   \
                          size_t n, cuda_numbers numbers, clv_err *err) {                          \
    return GPU_BY_TYPE(channels_last, launch_##name, g, x, z, y, n, numbers, err);                 \
  }

#define POINTWISE(name, ...) MAP(name) MAP(name##_back)
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
MAP(scale)
MAP(add)
MAP(mul)

/* ---- the op dropout -------------------------------------------------------------------------- */

/* Returns the index of value i of the row-major order in the layout of T. */
template <typename T>
static __device__ inline size_t place_of(const cuda_dropout_shape &at, size_t i) {
  if constexpr (std::is_same<T, float>::value) return i;
  size_t inner = i % at.inner, c = i / at.inner % at.channels, n = i / at.inner / at.channels;
  return (n * at.inner + inner) * at.channels + c;
}

/* Draws for the four values of one block of the generator; see common/base/rng.c. */
template <typename T>
static __global__ void draw(cuda_dropout_shape at, const T *x, T *y, uint8_t *mask,
                            clv_rng_stream s, const clv_rng_position *rng_position, uint32_t limit,
                            float factor) {
  GPU_FOR(b, (at.n + 3) / 4) {
    philox4x32_ctr_t word = words_of(s, rng_position, b);
    for (size_t i = 4 * b; i < 4 * b + 4 && i < at.n; i++) {
      size_t p = place_of<T>(at, i);
      bool is_kept = (word.v[i % 4] >> 8) >= limit;
      y[p] = gpu_as<T>(gpu_get(x[p]) * (is_kept ? factor : 0));
      mask[p] = is_kept;
    }
  }
}

template <typename T>
static clv_code launch_draw(clv_gpu *g, const cuda_dropout_shape *at, const void *x, void *y,
                            uint8_t *mask, const clv_rng_stream *stream,
                            const clv_rng_position *rng_position, uint32_t limit, float factor,
                            clv_err *err) {
  return gpu_launch(g, gpu_blocks((at->n + 3) / 4), GPU_BLOCK, err, draw<T>, *at, gpu_input<T>(x),
                    gpu_output<T>(y), mask, *stream, rng_position, limit, factor);
}

clv_code clv_gpu_dropout(clv_gpu *g, const cuda_dropout_shape *at, const void *x, void *y,
                         uint8_t *mask, const clv_rng_stream *stream,
                         const clv_rng_position *rng_position, uint32_t limit, float factor,
                         clv_err *err) {
  return GPU_BY_TYPE(at->channels_last, launch_draw, g, at, x, y, mask, stream, rng_position, limit,
                     factor, err);
}

/* Draws for packed sequences. A block of the generator may hold values of two sequences, and is
 * not drawn for pads. */
static __global__ void draw_places(cuda_packed p, size_t width, const float *x, float *y,
                                   uint8_t *mask, clv_rng_stream s,
                                   const clv_rng_position *rng_position, uint32_t limit,
                                   float factor) {
  size_t padded = p.n * p.steps * width, rest = gpu_rest_of(p) * width;
  GPU_FOR(b, (padded + 3) / 4) {
    philox4x32_ctr_t word = {};
    bool is_drawn = false;
    for (size_t i = 4 * b; i < 4 * b + 4 && i < padded; i++) {
      size_t row;
      if (!gpu_row_of(p, i / width, &row)) continue;
      if (!is_drawn) word = words_of(s, rng_position, b);
      is_drawn = true;
      bool is_kept = (word.v[i % 4] >> 8) >= limit;
      size_t at = row * width + i % width;
      y[at] = x[at] * (is_kept ? factor : 0);
      mask[at] = is_kept;
    }
  }
  GPU_FOR(i, p.rows * width - rest) {
    y[rest + i] = 0;
    mask[rest + i] = 0;
  }
}

clv_code clv_gpu_dropout_packed(clv_gpu *g, const cuda_packed *p, size_t width, const float *x,
                                float *y, uint8_t *mask, const clv_rng_stream *stream,
                                const clv_rng_position *rng_position, uint32_t limit, float factor,
                                clv_err *err) {
  return gpu_launch(g, gpu_blocks((p->n * p->steps * width + 3) / 4), GPU_BLOCK, err, draw_places,
                    *p, width, x, y, mask, *stream, rng_position, limit, factor);
}

template <typename T>
static __global__ void mask_back(const T *dy, const uint8_t *mask, T *dx, size_t n, float factor) {
  GPU_FOR(i, n) dx[i] = gpu_as<T>(gpu_get(dy[i]) * (mask[i] ? factor : 0));
}

template <typename T>
static clv_code launch_mask(clv_gpu *g, const void *dy, const uint8_t *mask, void *dx, size_t n,
                            float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, mask_back<T>, gpu_input<T>(dy), mask,
                    gpu_output<T>(dx), n, factor);
}

clv_code clv_gpu_apply_mask(clv_gpu *g, bool channels_last, const void *dy, const uint8_t *mask,
                            void *dx, size_t n, float factor, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_mask, g, dy, mask, dx, n, factor, err);
}

/* ---- the op stochastic_depth ----------------------------------------------------------------- */

static __global__ void draw_records(uint8_t *kept, size_t n, clv_rng_stream s,
                                    const clv_rng_position *rng_position, uint32_t limit) {
  GPU_FOR(i, n) kept[i] = (words_of(s, rng_position, i / 4).v[i % 4] >> 8) >= limit;
}

template <typename T>
static __global__ void scale_records(const T *x, const uint8_t *kept, T *y, size_t n,
                                     size_t per_record, float factor) {
  GPU_FOR(i, n) y[i] = gpu_as<T>(gpu_get(x[i]) * (kept[i / per_record] ? factor : 0));
}

template <typename T>
static clv_code launch_scale_samples(clv_gpu *g, size_t n, size_t per_record, const void *x,
                                     const uint8_t *kept, void *y, float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n * per_record), GPU_BLOCK, err, scale_records<T>,
                    gpu_input<T>(x), kept, gpu_output<T>(y), n * per_record, per_record, factor);
}

clv_code clv_gpu_apply_records(clv_gpu *g, bool channels_last, size_t n, size_t per_record,
                               const void *dy, const uint8_t *kept, void *dx, float factor,
                               clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_scale_samples, g, n, per_record, dy, kept, dx, factor,
                     err);
}

clv_code clv_gpu_stochastic_depth(clv_gpu *g, bool channels_last, size_t n, size_t per_record,
                                  const void *x, void *y, uint8_t *kept,
                                  const clv_rng_stream *stream,
                                  const clv_rng_position *rng_position, uint32_t limit,
                                  float factor, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, draw_records, kept, n, *stream, rng_position,
                     limit));
  return clv_gpu_apply_records(g, channels_last, n, per_record, x, kept, y, factor, err);
}
