/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices, their memory pools, page-locked host memory, and copies.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

/* ---- devices --------------------------------------------------------------------------------- */

/* Number of a device that this process uses; -1: it uses none yet. Page-locked memory is allocated
 * in the device's context, so that no other device is initialised for it. */
static _Atomic(int) device_in_use = -1;

clv_code clv_nvidia_set_device(int device, clv_err *err) {
  int current_device = -1;
  CLV_TRY(clv_nvidia_check_not_lost(device, err));
  if (cudaGetDevice(&current_device) == cudaSuccess && current_device == device) return CLV_OK;
  NVIDIA_TRY(device, err, cudaSetDevice, device);
  return CLV_OK;
}

clv_code clv_nvidia_set_stream_device(const clv_cuda_stream *s, clv_err *err) {
  if (s) return clv_nvidia_set_device(s->device, err);
  return clv_fail(err, CLV_PRECONDITION,
                  "work was issued to the default stream (NULL), which is not supported");
}

/* Fails with an error that says whether the driver is missing or too old; the runtime has one error
 * code for both. */
static clv_code fail_driver(clv_err *err) {
  const int major = CUDART_VERSION / 1000, minor = CUDART_VERSION % 1000 / 10;
  int v = 0;
  if (cudaDriverGetVersion(&v) != cudaSuccess || v == 0)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "NVIDIA's driver (libcuda.so.1) is not installed: CUDA %d.%d needs one", major,
                    minor);
  return clv_fail(err, CLV_UNAVAILABLE,
                  "NVIDIA's driver (libcuda.so.1) is for CUDA %d.%d: CUDA %d.%d needs a newer one",
                  v / 1000, v % 1000 / 10, major, minor);
}

clv_code clv_nvidia_count(int *ret, clv_err *err) {
  int n = 0;
  cudaError_t answer = cudaGetDeviceCount(&n);
  if (answer == cudaErrorInsufficientDriver) return fail_driver(err);
  if (answer == cudaErrorNoDevice || (answer == cudaSuccess && n == 0))
    return clv_fail(err, CLV_UNAVAILABLE, "NVIDIA's driver sees no device");
  if (answer != cudaSuccess)
    return clv_nvidia_fail_at(CLV_HERE, "cudaGetDeviceCount", -1, answer, err);
  *ret = CLV_MIN(n, NVIDIA_MAX_DEVICES);
  return CLV_OK;
}

clv_code clv_nvidia_describe(int device, clv_cuda_info *ret, clv_err *err) {
  struct cudaDeviceProp p;
  CLV_TRY(clv_nvidia_check_not_lost(device, err));
  NVIDIA_TRY(device, err, cudaGetDeviceProperties, &p, device);
  *ret = (clv_cuda_info){.capability = p.major * 10 + p.minor,
                         .multiprocessors = p.multiProcessorCount,
                         .memory_bytes = p.totalGlobalMem};
  snprintf(ret->name, sizeof ret->name, "%.63s", p.name);
  clv_nvidia_versions(ret->libraries, sizeof ret->libraries);
  return CLV_OK;
}

/* ---- device memory --------------------------------------------------------------------------- */

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  cudaMemPool_t pool;
  uint64_t reader_mask; /* bit mask of the other devices that may access the pool's memory */
} pools[NVIDIA_MAX_DEVICES];

/* Makes a pool that keeps freed memory for the process, so that allocating it again is cheap. */
static clv_code make_pool(int device, cudaMemPool_t *ret, clv_err *err) {
  struct cudaMemPoolProps properties = {
      .allocType = cudaMemAllocationTypePinned,
      .location = {.type = cudaMemLocationTypeDevice, .id = device}};
  uint64_t release_threshold = UINT64_MAX;
  cudaMemPool_t pool;
  NVIDIA_TRY(device, err, cudaMemPoolCreate, &pool, &properties);
  cudaError_t answer =
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &release_threshold);
  if (answer != cudaSuccess) {
    cudaMemPoolDestroy(pool);
    return clv_nvidia_fail_at(CLV_HERE, "cudaMemPoolSetAttribute", device, answer, err);
  }
  *ret = pool;
  return CLV_OK;
}

clv_code clv_nvidia_pool(int device, cudaMemPool_t *ret, clv_err *err) {
  CLV_TRY(clv_nvidia_set_device(device, err));
  pthread_mutex_lock(&pools_lock);
  clv_code code = CLV_OK;
  if (!pools[device].pool) code = make_pool(device, &pools[device].pool, err);
  *ret = pools[device].pool;
  pthread_mutex_unlock(&pools_lock);
  if (code == CLV_OK) atomic_store(&device_in_use, device);
  return code;
}

clv_code clv_nvidia_allocate(clv_cuda_stream *s, size_t bytes, void **ret, clv_err *err) {
  cudaMemPool_t pool;
  char size_text[32];
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(clv_nvidia_pool(s->device, &pool, err));
  cudaError_t answer = cudaMallocFromPoolAsync(ret, bytes ? bytes : 1, pool, s->stream);
  if (answer == cudaErrorMemoryAllocation) clv_format_size(bytes, size_text, sizeof size_text);
  if (answer == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return clv_fail(err, CLV_EXHAUSTED,
                    "cuda:%d has no %s of memory left: use a smaller batch or another device",
                    s->device, size_text);
  }
  if (answer != cudaSuccess)
    return clv_nvidia_fail_at(CLV_HERE, "cudaMallocFromPoolAsync", s->device, answer, err);
  return CLV_OK;
}

void clv_nvidia_free(clv_cuda_stream *s, void *p) {
  clv_err err;
  if (!p || clv_nvidia_set_stream_device(s, &err) != CLV_OK) return;
  cudaError_t answer = cudaFreeAsync(p, s->stream);
  if (answer != cudaSuccess) clv_nvidia_fail_at(CLV_HERE, "cudaFreeAsync", s->device, answer, &err);
}

/* Writes the free and total bytes of the device. Unused memory in the pool counts as free. */
clv_code clv_nvidia_get_free_bytes(int device, size_t *ret_free, size_t *ret_total, clv_err *err) {
  uint64_t pool_bytes = 0, used_bytes = 0;
  cudaMemPool_t pool;
  CLV_TRY(clv_nvidia_pool(device, &pool, err));
  NVIDIA_TRY(device, err, cudaMemGetInfo, ret_free, ret_total);
  NVIDIA_TRY(device, err, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrReservedMemCurrent,
             &pool_bytes);
  NVIDIA_TRY(device, err, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrUsedMemCurrent,
             &used_bytes);
  if (pool_bytes > used_bytes) *ret_free += pool_bytes - used_bytes;
  return CLV_OK;
}

clv_code clv_nvidia_other_process_bytes(int device, size_t *ret, clv_err *err) {
  size_t free_bytes = 0, total_bytes = 0;
  uint64_t pool_bytes = 0;
  cudaMemPool_t pool;
  CLV_TRY(clv_nvidia_pool(device, &pool, err));
  NVIDIA_TRY(device, err, cudaMemGetInfo, &free_bytes, &total_bytes);
  NVIDIA_TRY(device, err, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrReservedMemCurrent,
             &pool_bytes);
  *ret = total_bytes - free_bytes - CLV_MIN(total_bytes - free_bytes, (size_t)pool_bytes);
  return CLV_OK;
}

/* ---- page-locked memory ---------------------------------------------------------------------- */

clv_code clv_nvidia_host_allocate(size_t bytes, void **ret, clv_err *err) {
  int device = atomic_load(&device_in_use);
  if (device >= 0) CLV_TRY(clv_nvidia_set_device(device, err));
  NVIDIA_TRY(device, err, cudaHostAlloc, ret, bytes ? bytes : 1, cudaHostAllocPortable);
  memset(*ret, 0, bytes);
  return CLV_OK;
}

void clv_nvidia_host_free(void *p) {
  if (p && cudaFreeHost(p) != cudaSuccess) cudaGetLastError();
}

/* ---- copies of memory ------------------------------------------------------------------------ */

static clv_code enqueue_copy(clv_cuda_stream *s, void *dst, const void *src, size_t bytes,
                             enum cudaMemcpyKind kind, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaMemcpyAsync, dst, src, bytes, kind, s->stream);
  return CLV_OK;
}

clv_code clv_nvidia_put(clv_cuda_stream *s, void *dst, const void *host, size_t bytes,
                        clv_err *err) {
  return enqueue_copy(s, dst, host, bytes, cudaMemcpyHostToDevice, err);
}

clv_code clv_nvidia_get(clv_cuda_stream *s, void *host, const void *src, size_t bytes,
                        clv_err *err) {
  return enqueue_copy(s, host, src, bytes, cudaMemcpyDeviceToHost, err);
}

clv_code clv_nvidia_copy(clv_cuda_stream *s, void *dst, const void *src, size_t bytes,
                         clv_err *err) {
  return enqueue_copy(s, dst, src, bytes, cudaMemcpyDeviceToDevice, err);
}

/* Gives device `reader_device` access to the memory pool of device `owner_device` if the two are
 * connected; otherwise copies pass through the host. */
static clv_code enable_peer_access(int owner_device, int reader_device, clv_err *err) {
  struct cudaMemAccessDesc access = {
      .location = {.type = cudaMemLocationTypeDevice, .id = reader_device},
      .flags = cudaMemAccessFlagsProtReadWrite};
  cudaMemPool_t pool;
  int can_access = 0;
  CLV_TRY(clv_nvidia_pool(owner_device, &pool, err));
  NVIDIA_TRY(owner_device, err, cudaDeviceCanAccessPeer, &can_access, reader_device, owner_device);
  pthread_mutex_lock(&pools_lock);
  bool has_access = pools[owner_device].reader_mask >> reader_device & 1;
  pools[owner_device].reader_mask |= 1ull << reader_device;
  cudaError_t answer =
      has_access || !can_access ? cudaSuccess : cudaMemPoolSetAccess(pool, &access, 1);
  pthread_mutex_unlock(&pools_lock);
  if (answer != cudaSuccess)
    return clv_nvidia_fail_at(CLV_HERE, "cudaMemPoolSetAccess", owner_device, answer, err);
  return CLV_OK;
}

clv_code clv_nvidia_copy_peer(clv_cuda_stream *s, void *dst, int dst_device, const void *src,
                              int src_device, size_t bytes, clv_err *err) {
  if (dst_device != src_device) {
    CLV_TRY(enable_peer_access(src_device, dst_device, err));
    CLV_TRY(enable_peer_access(dst_device, src_device, err));
  }
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaMemcpyPeerAsync, dst, dst_device, src, src_device, bytes,
             s->stream);
  return CLV_OK;
}

clv_code clv_nvidia_fill(clv_cuda_stream *s, void *dst, int byte, size_t bytes, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  NVIDIA_TRY(s->device, err, cudaMemsetAsync, dst, byte, bytes, s->stream);
  return CLV_OK;
}
