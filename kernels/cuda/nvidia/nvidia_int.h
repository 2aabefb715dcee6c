/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia_int: what the files of the adapter share.
 */
#ifndef CLEAVE_CUDA_NVIDIA_INT_H
#define CLEAVE_CUDA_NVIDIA_INT_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_adv.h>
#include <cudnn_graph.h>

#include "kernels/cuda/nvidia/nvidia.h"

enum { NVIDIA_DEVICES = 64 };

/* ---- errors (error.c) ------------------------------------------------------------------------ */

/* What NVIDIA's runtime answered to `call`, as an error of ours: "cuda:0: cudaMemcpyAsync: an
 * illegal memory access was encountered". An error that no later call recovers from is kept for the
 * device. device -1: of none. */
clv_code clv_nvidia_fail_at(const char *where, const char *call, int device, cudaError_t answer,
                            clv_err *err);
/* The same for an answer of a library, which is in words already. */
clv_code clv_nvidia_fail_text_at(const char *where, const char *call, int device, const char *words,
                                 clv_code code, clv_err *err);

/* CLV_UNAVAILABLE where the device has had an error that nothing recovers from. */
clv_code clv_nvidia_check_not_lost(int device, clv_err *err) CLV_USE_RESULT;

/* NVIDIA_TRY(device, err, cudaMemcpyAsync, dst, src, ...): calls it, and returns where it fails. */
#define NVIDIA_TRY(device, err, call, ...)                                  \
  do {                                                                      \
    cudaError_t answer_ = call(__VA_ARGS__);                                \
    if (answer_ != cudaSuccess)                                             \
      return clv_nvidia_fail_at(CLV_HERE, #call, (device), answer_, (err)); \
  } while (0)

/* ---- libraries (library.c) ------------------------------------------------------------------- */

/* Their functions that are used: functions.def. */
typedef struct nvidia_cublas {
#define CUBLAS(name) __typeof__(&name) name;
#define CUDNN(name)
#include "kernels/cuda/nvidia/functions.def"
#undef CUBLAS
#undef CUDNN
} nvidia_cublas;
typedef struct nvidia_cudnn {
#define CUBLAS(name)
#define CUDNN(name) __typeof__(&name) name;
#include "kernels/cuda/nvidia/functions.def"
#undef CUBLAS
#undef CUDNN
} nvidia_cudnn;

/* Opened by the first call, and then for good; so is the answer that there is none.
 * CLV_UNAVAILABLE: which file was looked for and where, or which function it lacks. */
clv_code clv_nvidia_cublas(const nvidia_cublas **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_cudnn(const nvidia_cudnn **ret, clv_err *err) CLV_USE_RESULT;

/* Where to look before the loader does: folders between colons, or NULL. Before the first use. */
void clv_nvidia_set_folders(const char *folders);

/* Whether the process has cuBLAS, which cuDNN's LSTMs use, sum the same way whatever else it does.
 * CLV_UNIMPLEMENTED: the environment has it otherwise. */
clv_code clv_nvidia_check_determinism(clv_err *err) CLV_USE_RESULT;

/* "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0" */
void clv_nvidia_versions(char *ret, size_t len);

/* ---- devices and streams (runtime.c, stream.c) ----------------------------------------------- */

struct clv_cuda_stream {
  int device;
  cudaStream_t stream;
  cudnnHandle_t cudnn; /* made when it is first needed */
};

struct clv_cuda_event {
  int device;
  cudaEvent_t event;
};

/* What of the device is neither free nor its pool's: the driver's, and that of other processes. */
clv_code clv_nvidia_foreign_bytes(int device, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* The stream's handle of cuDNN, made by the first call: never while it is captured. */
clv_code clv_nvidia_cudnn_handle(clv_cuda_stream *s, const nvidia_cudnn *cudnn,
                                 clv_err *err) CLV_USE_RESULT;
/* Makes it this thread's device. */
clv_code clv_nvidia_set_device(int device, clv_err *err) CLV_USE_RESULT;
/* Its device. CLV_PRECONDITION: it is none, which NVIDIA takes for the default stream. */
clv_code clv_nvidia_set_stream_device(const clv_cuda_stream *s, clv_err *err) CLV_USE_RESULT;
/* The pool that its memory comes from, made by the first call. */
clv_code clv_nvidia_pool(int device, cudaMemPool_t *ret, clv_err *err) CLV_USE_RESULT;

/* The table's functions by file; entries.def has all of them. */
#define ENTRY(name, ...) clv_code clv_nvidia_##name(__VA_ARGS__) CLV_USE_RESULT;
#define ENTRY_VOID(name, ...) void clv_nvidia_##name(__VA_ARGS__);
#include "kernels/cuda/nvidia/entries.def"
#undef ENTRY
#undef ENTRY_VOID

/* ---- convolutions (graph.c, conv.c) ---------------------------------------------------------- */

/* Numbers of a graph's tensors. */
enum { GRAPH_X = 1, GRAPH_W, GRAPH_Y };
/* Of which they lie on a multiple, in bytes. */
enum { CONV_ALIGNMENT = 16 };

/* An operation graph of one convolution. beta is of what the pass writes. */
clv_code clv_nvidia_conv_graph(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                               cudnnBackendDescriptor_t *ret, clv_err *err) CLV_USE_RESULT;
/* A descriptor of cuDNN, filled by attribute after attribute. */
clv_code clv_nvidia_make(const nvidia_cudnn *cudnn, cudnnBackendDescriptorType_t type,
                         cudnnBackendDescriptor_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_set(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t of,
                        cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t n, const void *values, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_finish(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t of,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_dnn_fail(const nvidia_cudnn *cudnn, const char *call, cudnnStatus_t answer,
                             clv_err *err);

#endif
