/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of element-wise ops: each value of the output depends on one value of each input. A
 * thread loads 16 bytes of values at a time.
 */
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/pointwise_int.cuh"

/* Values that one thread loads and stores at once, aligned to 16 bytes. */
template <typename T>
struct alignas(16) map_pack {
  static constexpr size_t n = 16 / sizeof(T);
  T value[n];
};

/* Returns the number of full packs of 16 bytes in n values, or 0 if a pointer is not aligned to 16
 * bytes. z may be NULL. */
template <typename T>
static size_t count_packs(const void *x, const void *z, const void *y, size_t n) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(z) |
                   reinterpret_cast<uintptr_t>(y);
  return bits % sizeof(map_pack<T>) ? 0 : n / map_pack<T>::n;
}

/* Defines the kernel of a formula of_NAME and its launcher clv_gpu_NAME. y may be x or z, because a
 * thread reads a pack, or a single value after the last pack, before it writes that pack or value.
 */
#define MAP(name)                                                                                 \
  template <typename T>                                                                           \
  static __global__ void map_##name(const T *xs, const T *zs, T *ys, size_t n_packs, size_t n,    \
                                    cuda_formula_numbers numbers) {                                       \
    using pack = map_pack<T>;                                                                     \
    GPU_FOR(i, n_packs) {                                                                         \
      pack x = reinterpret_cast<const pack *>(xs)[i], z = {}, y;                                  \
      if (zs) z = reinterpret_cast<const pack *>(zs)[i];                                          \
      GPU_UNROLL                                                                                  \
      for (size_t k = 0; k < pack::n; k++)                                                        \
        y.value[k] = gpu_from_float<T>(                                                           \
            of_##name(gpu_to_float(x.value[k]), gpu_to_float(z.value[k]), numbers.p, numbers.q)); \
      reinterpret_cast<pack *>(ys)[i] = y;                                                        \
    }                                                                                             \
    GPU_FOR(j, n - n_packs * pack::n) {                                                           \
      size_t i = n_packs * pack::n + j;                                                           \
      ys[i] = gpu_from_float<T>(                                                                  \
          of_##name(gpu_to_float(xs[i]), zs ? gpu_to_float(zs[i]) : 0, numbers.p, numbers.q));    \
    }                                                                                             \
  }                                                                                               \
  template <typename T>                                                                           \
  static clv_code launch_##name(clv_gpu *g, const void *x, const void *z, void *y, size_t n,      \
                                cuda_formula_numbers numbers, clv_err *err) {                             \
    size_t n_packs = count_packs<T>(x, z, y, n), n_remaining = n - n_packs * map_pack<T>::n;      \
    return gpu_launch(g, gpu_count_blocks(n_packs > n_remaining ? n_packs : n_remaining),         \
                      GPU_BLOCK, err, map_##name<T>, gpu_cast_input<T>(x), gpu_cast_input<T>(z),  \
                      gpu_cast_output<T>(y), n_packs, n, numbers);                                \
  }                                                                                               \
  clv_code clv_gpu_##name(clv_gpu *g, bool channels_last, const void *x, const void *z, void *y,  \
                          size_t n, cuda_formula_numbers numbers, clv_err *err) {                         \
    return GPU_BY_TYPE(channels_last, launch_##name, g, x, z, y, n, numbers, err);                \
  }

#define POINTWISE(name, ...) MAP(name) MAP(name##_back)
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
MAP(scale)
MAP(add)
MAP(mul)

/* ---- the op dropout -------------------------------------------------------------------------- */

/* Returns the index, in the layout of T, of value i in row-major order: for f32 i itself, for bf16
 * an index with channels last. */
template <typename T>
static __device__ inline size_t index_in_layout(const cuda_dropout_shape &shape, size_t i) {
  if constexpr (std::is_same<T, float>::value) return i;
  size_t inner = i % shape.inner, c = i / shape.inner % shape.channels,
         n = i / shape.inner / shape.channels;
  return (n * shape.inner + inner) * shape.channels + c;
}

/* Applies dropout. A thread draws one block of the random generator for four values; see
 * common/base/rng.c. */
template <typename T>
static __global__ void drop_values(cuda_dropout_shape shape, const T *x, T *y, uint8_t *mask,
                                   clv_rng_stream s, const clv_rng_position *rng_position,
                                   uint32_t dropout_threshold, float factor) {
  GPU_FOR(b, (shape.n + 3) / 4) {
    philox4x32_ctr_t words = random_words_of(s, rng_position, b);
    for (size_t i = 4 * b; i < 4 * b + 4 && i < shape.n; i++) {
      size_t p = index_in_layout<T>(shape, i);
      bool is_kept = (words.v[i % 4] >> 8) >= dropout_threshold;
      y[p] = gpu_from_float<T>(gpu_to_float(x[p]) * (is_kept ? factor : 0));
      mask[p] = is_kept;
    }
  }
}

template <typename T>
static clv_code launch_drop_values(clv_gpu *g, const cuda_dropout_shape *shape, const void *x,
                                   void *y, uint8_t *mask, const clv_rng_stream *stream,
                                   const clv_rng_position *rng_position, uint32_t dropout_threshold,
                                   float factor, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks((shape->n + 3) / 4), GPU_BLOCK, err, drop_values<T>, *shape,
                    gpu_cast_input<T>(x), gpu_cast_output<T>(y), mask, *stream, rng_position,
                    dropout_threshold, factor);
}

clv_code clv_gpu_dropout(clv_gpu *g, const cuda_dropout_shape *shape, const void *x, void *y,
                         uint8_t *mask, const clv_rng_stream *stream,
                         const clv_rng_position *rng_position, uint32_t dropout_threshold,
                         float factor, clv_err *err) {
  return GPU_BY_TYPE(shape->channels_last, launch_drop_values, g, shape, x, y, mask, stream,
                     rng_position, dropout_threshold, factor, err);
}

/* Applies dropout to packed sequences. A block of the random generator may have numbers for two
 * sequences; a block for padding alone is not drawn. */
static __global__ void drop_packed_values(cuda_packed p, size_t width, const float *x, float *y,
                                          uint8_t *mask, clv_rng_stream s,
                                          const clv_rng_position *rng_position,
                                          uint32_t dropout_threshold, float factor) {
  size_t n_padded_values = p.n * p.steps * width, first_unused = gpu_first_unused_row(p) * width;
  GPU_FOR(b, (n_padded_values + 3) / 4) {
    philox4x32_ctr_t words = {};
    bool is_drawn = false;
    for (size_t i = 4 * b; i < 4 * b + 4 && i < n_padded_values; i++) {
      size_t row;
      if (!gpu_find_row(p, i / width, &row)) continue;
      if (!is_drawn) words = random_words_of(s, rng_position, b);
      is_drawn = true;
      bool is_kept = (words.v[i % 4] >> 8) >= dropout_threshold;
      size_t index = row * width + i % width;
      y[index] = x[index] * (is_kept ? factor : 0);
      mask[index] = is_kept;
    }
  }
  GPU_FOR(i, p.rows * width - first_unused) {
    y[first_unused + i] = 0;
    mask[first_unused + i] = 0;
  }
}

clv_code clv_gpu_dropout_packed(clv_gpu *g, const cuda_packed *p, size_t width, const float *x,
                                float *y, uint8_t *mask, const clv_rng_stream *stream,
                                const clv_rng_position *rng_position, uint32_t dropout_threshold,
                                float factor, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks((p->n * p->steps * width + 3) / 4), GPU_BLOCK, err,
                    drop_packed_values, *p, width, x, y, mask, *stream, rng_position,
                    dropout_threshold, factor);
}

template <typename T>
static __global__ void apply_mask(const T *dy, const uint8_t *mask, T *dx, size_t n, float factor) {
  GPU_FOR(i, n) dx[i] = gpu_from_float<T>(gpu_to_float(dy[i]) * (mask[i] ? factor : 0));
}

template <typename T>
static clv_code launch_apply_mask(clv_gpu *g, const void *dy, const uint8_t *mask, void *dx,
                                  size_t n, float factor, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, apply_mask<T>, gpu_cast_input<T>(dy),
                    mask, gpu_cast_output<T>(dx), n, factor);
}

clv_code clv_gpu_apply_mask(clv_gpu *g, bool channels_last, const void *dy, const uint8_t *mask,
                            void *dx, size_t n, float factor, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_apply_mask, g, dy, mask, dx, n, factor, err);
}

/* ---- the op stochastic_depth ----------------------------------------------------------------- */

static __global__ void draw_kept_records(uint8_t *is_kept_record, size_t n, clv_rng_stream s,
                                         const clv_rng_position *rng_position,
                                         uint32_t dropout_threshold) {
  GPU_FOR(i, n)
  is_kept_record[i] = (random_words_of(s, rng_position, i / 4).v[i % 4] >> 8) >= dropout_threshold;
}

template <typename T>
static __global__ void scale_records(const T *x, const uint8_t *is_kept_record, T *y, size_t n,
                                     size_t values_per_record, float factor) {
  GPU_FOR(i, n)
  y[i] =
      gpu_from_float<T>(gpu_to_float(x[i]) * (is_kept_record[i / values_per_record] ? factor : 0));
}

template <typename T>
static clv_code launch_scale_records(clv_gpu *g, size_t n, size_t values_per_record, const void *x,
                                     const uint8_t *is_kept_record, void *y, float factor,
                                     clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n * values_per_record), GPU_BLOCK, err, scale_records<T>,
                    gpu_cast_input<T>(x), is_kept_record, gpu_cast_output<T>(y),
                    n * values_per_record, values_per_record, factor);
}

clv_code clv_gpu_scale_records(clv_gpu *g, bool channels_last, size_t n, size_t values_per_record,
                               const void *dy, const uint8_t *is_kept_record, void *dx,
                               float factor, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_scale_records, g, n, values_per_record, dy,
                     is_kept_record, dx, factor, err);
}

clv_code clv_gpu_stochastic_depth(clv_gpu *g, bool channels_last, size_t n,
                                  size_t values_per_record, const void *x, void *y,
                                  uint8_t *is_kept_record, const clv_rng_stream *stream,
                                  const clv_rng_position *rng_position, uint32_t dropout_threshold,
                                  float factor, clv_err *err) {
  CLV_TRY(gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, draw_kept_records, is_kept_record, n,
                     *stream, rng_position, dropout_threshold));
  return clv_gpu_scale_records(g, channels_last, n, values_per_record, x, is_kept_record, y, factor,
                               err);
}
