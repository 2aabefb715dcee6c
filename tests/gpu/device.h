/* SPDX-License-Identifier: Apache-2.0
 *
 * Lets the host's C++ compiler compile a .cu file for the simulated device of tests/gpu/sim. The
 * build includes this header before everything else in such a file.
 *
 * An index such as threadIdx is a function call, so that no thread sees the index of another, and
 * thread sanitizer sees no variable of ours.
 */
#ifndef CLEAVE_TESTS_GPU_DEVICE_H
#define CLEAVE_TESTS_GPU_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

#include "tests/gpu/calls.h"
#include "tests/sanitized.h"

/* Limits of the number of blocks in a launch and of threads in a block. A warp has 32 lanes on any
 * device. Under thread sanitizer each new thread costs 0.3 ms, so both are small there: a thread
 * computes several values, a block several rows, and a block has two warps. */
#if CLV_THREAD_SANITIZED
#define GPU_FEWER_BLOCKS 4
#define GPU_FEWER_THREADS 64
#endif

#define threadIdx (clv_sim_thread_index())
#define blockIdx (clv_sim_block_index())
#define blockDim (clv_sim_block_size())
#define gridDim (clv_sim_grid_size())

#define GPU_SIM_TEXT2(x) #x
#define GPU_SIM_TEXT(x) GPU_SIM_TEXT2(x)
#define GPU_SIM_HERE __FILE__ ":" GPU_SIM_TEXT(__LINE__)

#define __syncthreads() clv_sim_barrier(GPU_SIM_HERE)
#define __syncwarp() ((void)clv_sim_shuffle(~0u, 0, threadIdx.x % 32, GPU_SIM_HERE))

#define GPU_SHARED(type, name, n)   \
  static const char name##_key = 0; \
  type *const name = static_cast<type *>(clv_sim_shared(&name##_key, sizeof(type) * (n)))

template <typename T>
static inline T clv_sim_shuffled(unsigned mask, T value, unsigned from, const char *where) {
  static_assert(sizeof(T) <= 8, "a shuffle passes at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = clv_sim_shuffle(mask, bits, from, where);
  memcpy(&value, &bits, sizeof value);
  return value;
}

#define GPU_SIM_LANE (threadIdx.x % 32)
#define __shfl_sync(mask, value, lane) \
  clv_sim_shuffled(mask, value, (unsigned)(lane) % 32, GPU_SIM_HERE)
#define __shfl_xor_sync(mask, value, bits) \
  clv_sim_shuffled(mask, value, GPU_SIM_LANE ^ (unsigned)(bits), GPU_SIM_HERE)
#define __shfl_down_sync(mask, value, by)                                                \
  clv_sim_shuffled(                                                                      \
      mask, value,                                                                       \
      GPU_SIM_LANE + (unsigned)(by) < 32 ? GPU_SIM_LANE + (unsigned)(by) : GPU_SIM_LANE, \
      GPU_SIM_HERE)

/* ---- functions that CUDA gives to kernels ---------------------------------------------------- */

/* These functions read and write without atomic instructions, because the simulation runs one
 * thread at a time. As on a device, they order no other accesses. */
template <typename T>
static inline T atomicCAS(T *p, T expected, T desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename T>
static inline T atomicMin(T *p, T value) {
  T old_value = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (value < old_value && !__atomic_compare_exchange_n(p, &old_value, value, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old_value;
}
template <typename T>
static inline T atomicMax(T *p, T value) {
  T old_value = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old_value < value && !__atomic_compare_exchange_n(p, &old_value, value, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old_value;
}
template <typename T>
static inline T atomicAdd(T *p, T value) {
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((uint64_t)a * b >> 32);
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
template <typename T>
static inline T __ldg(const T *p) {
  return *p;
}
template <typename T>
static inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
static inline T max(T a, T b) {
  return a < b ? b : a;
}

#endif
