/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of plants_int.h. A comment "planted: NAME" marks the line that the simulation must report
 * for the fault NAME (test_plants.py).
 */
#include "kernels/cuda/device_int.cuh"
#include "tests/gpu/plants/plants_int.h"

static __global__ void write_ones(float *y) {
  y[threadIdx.x] = 1; /* planted: free_in_use_memory copy_old_values overwrite_source_early */
}

clv_code plant_write(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, write_ones, y);
}

static __global__ void add_one(const float *x, float *y) {
  y[threadIdx.x] = x[threadIdx.x] + 1; /* planted: omit_event read_old_values read_undefined */
}

clv_code plant_add(clv_gpu *g, const float *x, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, add_one, x, y); /* planted: pass_host_pointer use_after_free */
}

static __global__ void increase(float *y) {
  y[threadIdx.x] += 1; /* planted: copy_to_peer_too_early read_before_peer_copy */
}

clv_code plant_increase(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, increase, y);
}

static __global__ void add_nested(plant_list list) {
  list.y[threadIdx.x] = list.x[threadIdx.x] + 1; /* planted: pass_nested_host_pointer */
}

clv_code plant_add_nested(clv_gpu *g, plant_list list, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, add_nested, list);
}

static __global__ void reverse_values(float *y, bool has_barrier) {
  GPU_SHARED(float, all, PLANT_N);
  all[threadIdx.x] = y[threadIdx.x];
  if (has_barrier) __syncthreads();
  y[threadIdx.x] = all[PLANT_N - 1 - threadIdx.x]; /* planted: read_without_barrier */
}

clv_code plant_reverse(clv_gpu *g, float *y, bool has_barrier, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, reverse_values, y, has_barrier);
}

static __global__ void write_behind(float *y) {
  y[threadIdx.x + 1] = 1; /* planted: write_behind_end */
}

clv_code plant_write_behind(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, write_behind, y);
}

static __global__ void write_across(float *y) {
  float *odd = reinterpret_cast<float *>(reinterpret_cast<char *>(y) + 2);
  odd[0] = 1; /* planted: write_misaligned_value */
}

clv_code plant_write_misaligned(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, 1, err, write_across, y);
}

static __global__ void diverge(float *y) {
  if (threadIdx.x % 2) return;
  __syncthreads(); /* planted: diverge_at_barrier */
  y[threadIdx.x] = 1;
}

clv_code plant_diverge(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, diverge, y);
}

static __global__ void add_racing(float *y) { y[0] += 1; /* planted: race_between_blocks */ }

clv_code plant_racing_sums(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, PLANT_N, 1, err, add_racing, y);
}
