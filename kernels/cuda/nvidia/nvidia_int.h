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

enum { NVIDIA_MAX_DEVICES = 64 };

/* ---- errors (error.c) ------------------------------------------------------------------------ */

/* Fails with the error `answer` that NVIDIA's runtime returned from `call`: "cuda:0:
 * cudaMemcpyAsync: an illegal memory access was encountered". An error after which no later call
 * works marks the device as lost. device -1: no device. */
clv_code clv_nvidia_fail_at(const char *where, const char *call, int device, cudaError_t answer,
                            clv_err *err);
/* As clv_nvidia_fail_at, but for the error of another library, given as text. */
clv_code clv_nvidia_fail_text_at(const char *where, const char *call, int device,
                                 const char *reason, clv_code code, clv_err *err);

/* Fails with CLV_UNAVAILABLE if an earlier error has made the device unusable for this process. */
clv_code clv_nvidia_check_not_lost(int device, clv_err *err) CLV_USE_RESULT;

/* NVIDIA_TRY(device, err, cudaMemcpyAsync, dst, src, ...) calls the function, and returns from the
 * caller if it fails. */
#define NVIDIA_TRY(device, err, call, ...)                                  \
  do {                                                                      \
    cudaError_t answer_ = call(__VA_ARGS__);                                \
    if (answer_ != cudaSuccess)                                             \
      return clv_nvidia_fail_at(CLV_HERE, #call, (device), answer_, (err)); \
  } while (0)

/* ---- libraries (library.c) ------------------------------------------------------------------- */

/* Tables of the functions that this library uses of cuBLASLt and cuDNN; functions.def lists them.
 */
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

/* Return the functions of cuBLASLt and cuDNN. The first call opens the library; later calls return
 * the same result, also a failure. CLV_UNAVAILABLE: the text names the file and where it was
 * searched, or the function that the library lacks. */
clv_code clv_nvidia_cublas(const nvidia_cublas **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_cudnn(const nvidia_cudnn **ret, clv_err *err) CLV_USE_RESULT;

/* Sets the folders, separated by colons, that are searched for the libraries before the loader
 * searches; NULL: none. Call it before the first use of a library. */
void clv_nvidia_set_folders(const char *folders);

/* Fails unless cuBLAS, which cuDNN's LSTMs use, adds in the same order whatever else the process
 * does. CLV_UNIMPLEMENTED: the environment variable CUBLAS_WORKSPACE_CONFIG prevents it. */
clv_code clv_nvidia_check_determinism(clv_err *err) CLV_USE_RESULT;

/* Prints the versions of driver and libraries: "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0". */
void clv_nvidia_versions(char *ret, size_t len);

/* ---- devices and streams (runtime.c, stream.c) ----------------------------------------------- */

struct clv_cuda_stream {
  int device;
  cudaStream_t stream;
  /* cuDNN's handle, made by clv_nvidia_cudnn_handle; NULL: not needed so far */
  cudnnHandle_t cudnn;
};

struct clv_cuda_event {
  int device;
  cudaEvent_t event;
};

/* Writes the number of bytes of the device that are neither free nor in this process's pool: the
 * driver or other processes use them. */
clv_code clv_nvidia_other_process_bytes(int device, size_t *ret, clv_err *err) CLV_USE_RESULT;

/* Makes the stream's cuDNN handle at the first call, which must not happen during a capture. */
clv_code clv_nvidia_cudnn_handle(clv_cuda_stream *s, const nvidia_cudnn *cudnn,
                                 clv_err *err) CLV_USE_RESULT;
/* Makes `device` the calling thread's current device. Fails if the device is lost. */
clv_code clv_nvidia_set_device(int device, clv_err *err) CLV_USE_RESULT;
/* Makes the stream's device the calling thread's current device. CLV_PRECONDITION: the stream is
 * NULL, which NVIDIA's runtime takes for the default stream. */
clv_code clv_nvidia_set_stream_device(const clv_cuda_stream *s, clv_err *err) CLV_USE_RESULT;
/* Writes the memory pool of a device to *ret; the first call makes the pool. */
clv_code clv_nvidia_pool(int device, cudaMemPool_t *ret, clv_err *err) CLV_USE_RESULT;

/* Declares the table's functions, which entries.def lists. */
#define ENTRY(name, ...) clv_code clv_nvidia_##name(__VA_ARGS__) CLV_USE_RESULT;
#define ENTRY_VOID(name, ...) void clv_nvidia_##name(__VA_ARGS__);
#include "kernels/cuda/nvidia/entries.def"
#undef ENTRY
#undef ENTRY_VOID

/* ---- convolutions (graph.c, conv.c) ---------------------------------------------------------- */

/* Ids of the tensors of a convolution's graph. */
enum { GRAPH_X = 1, GRAPH_W, GRAPH_Y };
/* Alignment of the tensors of a convolution, in bytes. */
enum { CONV_ALIGNMENT = 16 };

/* Makes cuDNN's operation graph of one convolution. beta multiplies the old values of the tensor
 * that the pass writes. */
clv_code clv_nvidia_conv_graph(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                               cudnnBackendDescriptor_t *ret, clv_err *err) CLV_USE_RESULT;
/* These functions make a cuDNN descriptor, set its attributes one by one, and finalise it. */
clv_code clv_nvidia_make_descriptor(const nvidia_cudnn *cudnn, cudnnBackendDescriptorType_t type,
                                    cudnnBackendDescriptor_t *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_set_attribute(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t descriptor,
                                  cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, int64_t n, const void *values,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_finish_descriptor(const nvidia_cudnn *cudnn,
                                      cudnnBackendDescriptor_t descriptor,
                                      clv_err *err) CLV_USE_RESULT;
clv_code clv_nvidia_dnn_fail(const nvidia_cudnn *cudnn, const char *call, cudnnStatus_t answer,
                             clv_err *err);

#endif
