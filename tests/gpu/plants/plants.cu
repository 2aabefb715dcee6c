/* SPDX-License-Identifier: Apache-2.0
 *
 * A comment "planted: NAME" marks the line that test_plants.py expects to be told.
 */
#include "kernels/cuda/device_int.cuh"
#include "tests/gpu/plants/plants_int.h"

static __global__ void write_ones(float *y) {
  y[threadIdx.x] = 1; /* planted: early_give peer_early_over peer_over */
}

clv_code plant_write(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, write_ones, y);
}

static __global__ void add_one(const float *x, float *y) {
  y[threadIdx.x] = x[threadIdx.x] + 1; /* planted: no_event no_event_over uninitialised */
}

clv_code plant_add(clv_gpu *g, const float *x, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, add_one, x, y); /* planted: host_pointer late_use */
}

static __global__ void increase(float *y) {
  y[threadIdx.x] += 1; /* planted: peer_early peer_late */
}

clv_code plant_increase(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, increase, y);
}

static __global__ void add_nested(plant_list list) {
  list.y[threadIdx.x] = list.x[threadIdx.x] + 1; /* planted: host_pointer_nested */
}

clv_code plant_nested(clv_gpu *g, plant_list list, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, add_nested, list);
}

static __global__ void reverse(float *y, bool barrier) {
  GPU_SHARED(float, all, PLANT_N);
  all[threadIdx.x] = y[threadIdx.x];
  if (barrier) __syncthreads();
  y[threadIdx.x] = all[PLANT_N - 1 - threadIdx.x]; /* planted: no_barrier */
}

clv_code plant_reverse(clv_gpu *g, float *y, bool barrier, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, reverse, y, barrier);
}

static __global__ void behind(float *y) { y[threadIdx.x + 1] = 1; /* planted: behind_the_end */ }

clv_code plant_behind(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, behind, y);
}

static __global__ void across(float *y) {
  float *odd = reinterpret_cast<float *>(reinterpret_cast<char *>(y) + 2);
  odd[0] = 1; /* planted: across */
}

clv_code plant_across(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, 1, err, across, y);
}

static __global__ void diverging(float *y) {
  if (threadIdx.x % 2) return;
  __syncthreads(); /* planted: diverging */
  y[threadIdx.x] = 1;
}

clv_code plant_diverging(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, 1, PLANT_N, err, diverging, y);
}

static __global__ void sums(float *y) { y[0] += 1; /* planted: blocks_race */ }

clv_code plant_racing_sums(clv_gpu *g, float *y, clv_err *err) {
  return gpu_launch(g, PLANT_N, 1, err, sums, y);
}
