/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia_int: types and functions that the files of the adapter share.
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

/* Makes a clv_err of the error `answer` that NVIDIA's runtime returned from `call`: "cuda:0:
 * cudaMemcpyAsync: an illegal memory access was encountered". An error from which no later call
 * recovers marks the device as lost. device -1: no device. */
clv_code clv_nvidia_fail_at(const char *where, const char *call, int device, cudaError_t answer,
                            clv_err *err);
/* As clv_nvidia_fail_at, but for the error of a library, given as text. */
clv_code clv_nvidia_fail_text_at(const char *where, const char *call, int device, const char *words,
                                 clv_code code, clv_err *err);

/* CLV_UNAVAILABLE if the device has had an error from which no call recovers. */
clv_code clv_nvidia_check_not_lost(int device, clv_err *err) CLV_USE_RESULT;

/* NVIDIA_TRY(device, err, cudaMemcpyAsync, dst, src, ...) calls the function, and
 * returns if it fails. */
#define NVIDIA_TRY(device, err, call, ...)                                  \
  do {                                                                      \
    cudaError_t answer_ = call(__VA_ARGS__);                                \
    if (answer_ != cudaSuccess)                                             \
      return clv_nvidia_fail_at(CLV_HERE, #call, (device), answer_, (err)); \
  } while (0)

/* ---- libraries (library.c) ------------------------------------------------------------------- */

/* Functions of the libraries that are used, listed in functions.def. */
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

/* Return a library's functions. The first call opens the library; its result, also a failure,
 * is final. CLV_UNAVAILABLE: the text names the file and where it was looked for, or the
 * function it lacks. */
clv_code clv_nvidia_cublas(const nvidia_cublas **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_cudnn(const nvidia_cudnn **ret, clv_err *err) CLV_USE_RESULT;

/* Sets the folders to search before the loader does, separated by colons, or NULL. Call it before
 * the first use of a library. */
void clv_nvidia_set_folders(const char *folders);

/* Checks that cuBLAS, which cuDNN's LSTMs use, adds in the same order whatever else the process
 * does. CLV_UNIMPLEMENTED: an environment variable prevents it. */
clv_code clv_nvidia_check_determinism(clv_err *err) CLV_USE_RESULT;

/* Prints "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0". */
void clv_nvidia_versions(char *ret, size_t len);

/* ---- devices and streams (runtime.c, stream.c) ----------------------------------------------- */

struct clv_cuda_stream {
  int device;
  cudaStream_t stream;
  cudnnHandle_t cudnn; /* made when first needed; NULL before */
};

struct clv_cuda_event {
  int device;
  cudaEvent_t event;
};

/* Bytes of the device that are neither free nor in this process's pool: used by the driver
 * or other processes. */
clv_code clv_nvidia_foreign_bytes(int device, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* Makes the stream's cuDNN handle at the first call, which must not be during a capture. */
clv_code clv_nvidia_cudnn_handle(clv_cuda_stream *s, const nvidia_cudnn *cudnn,
                                 clv_err *err) CLV_USE_RESULT;
/* Makes `device` the current device of this thread. */
clv_code clv_nvidia_set_device(int device, clv_err *err) CLV_USE_RESULT;
/* Makes the stream's device current. CLV_PRECONDITION: the stream is NULL, which NVIDIA takes for
 * the default stream. */
clv_code clv_nvidia_set_stream_device(const clv_cuda_stream *s, clv_err *err) CLV_USE_RESULT;
/* Returns the memory pool of a device, which the first call makes. */
clv_code clv_nvidia_pool(int device, cudaMemPool_t *ret, clv_err *err) CLV_USE_RESULT;

/* Declares the table's functions, which entries.def lists. */
#define ENTRY(name, ...) clv_code clv_nvidia_##name(__VA_ARGS__) CLV_USE_RESULT;
#define ENTRY_VOID(name, ...) void clv_nvidia_##name(__VA_ARGS__);
#include "kernels/cuda/nvidia/entries.def"
#undef ENTRY
#undef ENTRY_VOID

/* ---- convolutions (graph.c, conv.c) ---------------------------------------------------------- */

/* Ids of a graph's tensors. */
enum { GRAPH_X = 1, GRAPH_W, GRAPH_Y };
/* Alignment of the tensors, in bytes. */
enum { CONV_ALIGNMENT = 16 };

/* Makes the operation graph of one convolution. beta applies to the operand that the pass
 * writes. */
clv_code clv_nvidia_conv_graph(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                               cudnnBackendDescriptor_t *ret, clv_err *err) CLV_USE_RESULT;
/* Make a cuDNN descriptor, set its attributes one by one, and finalise it. */
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
