/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda: the backend for NVIDIA's devices, and clv_vendor, the one table through which it uses
 * NVIDIA's runtime and libraries.
 *
 * Only the functions of the table (kernels/cuda/nvidia) include headers of the toolkit, so the rest
 * of the backend is built on any machine. The tests fill the table with a simulated device. A table
 * is constant and valid as long as the process.
 *
 * Order: a function with a stream only issues its work, which is done in the order of the stream.
 * Functions called `finish` wait, stream_free waits, and host_allocate and host_free may wait. No
 * function uses the default stream: a NULL stream is refused with CLV_PRECONDITION.
 *
 * Threads: the table's functions may be called from any thread. A backend opened from it is used by
 * one thread at a time.
 */
#ifndef CLEAVE_KERNELS_CUDA_H
#define CLEAVE_KERNELS_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clv_cuda_stream clv_cuda_stream;
typedef struct clv_cuda_event clv_cuda_event;
typedef struct clv_cuda_graph clv_cuda_graph; /* a captured sequence of launches */
typedef struct clv_cuda_matmul clv_cuda_matmul;
typedef struct clv_cuda_conv clv_cuda_conv;
typedef struct clv_cuda_lstm clv_cuda_lstm;

typedef struct clv_cuda_info {
  char name[64]; /* "NVIDIA H200" */
  /* versions of the loaded libraries: "driver 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0" */
  char libraries[128];
  int capability; /* compute capability 9.0 is 90 */
  int multiprocessors;
  size_t memory_bytes;
} clv_cuda_info;

/* ---- launches of kernels --------------------------------------------------------------------- */

/* Launch of one kernel over grid[0] x grid[1] blocks of `block` threads. args: pointers to the
 * arguments, as for cudaLaunchKernel. call: runs the kernel with args if it was compiled for the
 * host; NULL if it was compiled for a device. */
typedef struct clv_cuda_launch {
  const char *name;
  const void *kernel;
  void (*call)(void *const *args);
  unsigned grid[2], block;
  size_t shared_bytes;
  int n_args;
  void *const *args;
  const size_t *arg_bytes; /* [n_args] size of each argument */
  const bool *is_pointer;  /* [n_args] the argument is a pointer */
} clv_cuda_launch;

/* ---- matrix products ------------------------------------------------------------------------- */

/* Arguments of cublasLtMatmul over column-major matrices: D = op(A) op(B) + beta D, then the
 * epilogue. D is m x n with leading dimension ldd, op(A) is m x k, op(B) is k x n. `batch` such
 * products are stored stride_a, stride_b, stride_d elements apart. D, its sums and the bias are
 * f32; `math` gives the type of A and B. */
typedef enum clv_cuda_math {
  CLV_CUDA_F32,
  CLV_CUDA_TF32, /* factors are f32, and may be rounded to TF32 */
  CLV_CUDA_BF16, /* factors are bf16, the upper halves of f32 */
} clv_cuda_math;

typedef enum clv_cuda_epilogue {
  CLV_CUDA_EPILOGUE_NONE,
  CLV_CUDA_EPILOGUE_BIAS, /* CUBLASLT_EPILOGUE_BIAS: adds bias[i] to row i of D */
  /* CUBLASLT_EPILOGUE_RELU_BIAS with the same sums, to the bit, as CLV_CUDA_EPILOGUE_BIAS.
   * matmul_new returns CLV_UNIMPLEMENTED if no algorithm offers both. */
  CLV_CUDA_EPILOGUE_RELU_BIAS,
} clv_cuda_epilogue;

typedef struct clv_cuda_matmul_desc {
  bool a_is_transposed, b_is_transposed; /* op transposes A, op transposes B */
  int64_t m, n, k, lda, ldb, ldd;
  int64_t batch, stride_a, stride_b, stride_d; /* strides in elements; not read if batch is 1 */
  clv_cuda_epilogue epilogue;
  clv_cuda_math math;
} clv_cuda_matmul_desc;

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef enum clv_cuda_pass {
  CLV_CUDA_FORWARD,     /* computes y from x and w */
  CLV_CUDA_GRAD_INPUT,  /* computes x from y and w */
  CLV_CUDA_GRAD_WEIGHT, /* computes the gradient of w from x and y */
} clv_cuda_pass;

/* Arguments of cuDNN's convolution graph over x [n, c, h, w], w [k, c / groups, kernel], y [n, k,
 * oh, ow]. All tensors are row-major f32; with CLV_CUDA_BF16 all are bf16 with channels last, and
 * sums are f32. */
typedef struct clv_cuda_conv_desc {
  clv_cuda_pass pass;
  clv_window window;
  int64_t groups;
  clv_cuda_math math;
} clv_cuda_conv_desc;

/* ---- LSTMs ----------------------------------------------------------------------------------- */

/* Arguments of cuDNN's RNN functions for an LSTM over x [n, t, f] and y [n, t, h], row-major f32.
 * States before the first step are zeros, all samples have t steps, and there is no dropout between
 * layers. */
typedef struct clv_cuda_lstm_desc {
  int64_t n, t, f, h;
  int layers;
  bool bias;         /* the gates have biases */
  bool has_backward; /* a backward may follow each forward */
  bool tf32;
} clv_cuda_lstm_desc;

/* Buffers that the caller allocates for an LSTM, each aligned to 256 bytes. */
typedef struct clv_cuda_lstm_space {
  size_t weights; /* size of the buffer of the parameters, in bytes */
  /* size of the buffer that forward fills for backward, in bytes; 0: no backward */
  size_t reserve;
  size_t workspace; /* size of the scratch of a call, in bytes */
  /* index of the first value of each parameter of a layer in the buffer of weights: W_ih, W_hh,
   * b_ih and b_hh, each with its gates i, f, g, o one after another */
  size_t param_index[CLV_LSTM_LAYERS][4];
} clv_cuda_lstm_space;

/* Buffers of a call of an LSTM. Forward writes `reserve`; lstm_backward_data and then
 * lstm_backward_weight read and change it. */
typedef struct clv_cuda_lstm_args {
  float *weights, *dweights, *x, *y, *dx, *dy;
  void *reserve, *workspace;
} clv_cuda_lstm_args;

/* Largest workspaces of a product and of a convolution, in bytes. The vendor chooses no algorithm
 * that needs more. */
enum { CLV_CUDA_MATMUL_MAX_WORKSPACE = 32 << 20, CLV_CUDA_CONV_MAX_WORKSPACE = 1 << 30 };

/* ---- the table of functions ------------------------------------------------------------------ */

enum { CLV_VENDOR_ABI = 3 };

typedef struct clv_vendor {
  uint32_t abi, size; /* CLV_VENDOR_ABI, sizeof(clv_vendor) */
  const char *name;   /* "cuda", or "cuda-sim" in tests */

  /* Writes the number of devices. CLV_UNAVAILABLE: there is none; the error text says why. */
  clv_code (*count)(int *ret, clv_err *err);
  clv_code (*describe)(int device, clv_cuda_info *ret, clv_err *err);

  /* Allocates device memory in the order of a stream, contents undefined, aligned to 256 bytes.
   * CLV_EXHAUSTED: not enough memory. */
  clv_code (*allocate)(clv_cuda_stream *s, size_t bytes, void **ret, clv_err *err);
  void (*free)(clv_cuda_stream *s, void *p);
  clv_code (*get_free_bytes)(int device, size_t *ret_free, size_t *ret_total, clv_err *err);
  /* allocates page-locked memory, zeroed */
  clv_code (*host_allocate)(size_t bytes, void **ret, clv_err *err);
  void (*host_free)(void *p);

  /* Copies between page-locked host memory and the device, in the order of the stream. The host
   * memory must not change until the copy is done. */
  clv_code (*put)(clv_cuda_stream *s, void *dst, const void *host, size_t bytes, clv_err *err);
  clv_code (*get)(clv_cuda_stream *s, void *host, const void *src, size_t bytes, clv_err *err);
  clv_code (*copy)(clv_cuda_stream *s, void *dst, const void *src, size_t bytes, clv_err *err);
  clv_code (*copy_peer)(clv_cuda_stream *s, void *dst, int dst_device, const void *src,
                        int src_device, size_t bytes, clv_err *err);
  clv_code (*fill)(clv_cuda_stream *s, void *dst, int byte, size_t bytes, clv_err *err);

  clv_code (*stream_new)(int device, bool is_urgent, clv_cuda_stream **ret, clv_err *err);
  void (*stream_free)(clv_cuda_stream *s); /* waits for the stream's work, then frees the stream */
  clv_code (*stream_finish)(clv_cuda_stream *s, clv_err *err);
  clv_code (*event_new)(int device, bool is_timed, clv_cuda_event **ret, clv_err *err);
  void (*event_free)(clv_cuda_event *e);
  clv_code (*event_record)(clv_cuda_event *e, clv_cuda_stream *s, clv_err *err);
  clv_code (*event_done)(clv_cuda_event *e, bool *ret, clv_err *err);
  clv_code (*event_finish)(clv_cuda_event *e, clv_err *err);
  clv_code (*event_ms)(clv_cuda_event *begin, clv_cuda_event *end, double *ret, clv_err *err);
  clv_code (*stream_wait)(clv_cuda_stream *s, clv_cuda_event *e, clv_err *err);

  clv_code (*launch)(clv_cuda_stream *s, const clv_cuda_launch *l, clv_err *err);
  /* Captures the work that the thread issues to s between capture_begin and capture_end, with the
   * values of its arguments, instead of doing it; graph_launch then issues all of it. During a
   * capture the thread may not allocate or free memory, make a product or convolution, or wait. A
   * failure also ends the capture. *ret_bytes: device memory allocated for the graph, whose first
   * launch allocates no more; 0 if the graph fits in memory allocated for an earlier graph. */
  clv_code (*capture_begin)(clv_cuda_stream *s, clv_err *err);
  clv_code (*capture_end)(clv_cuda_stream *s, clv_cuda_graph **ret, size_t *ret_bytes,
                          clv_err *err);
  clv_code (*graph_launch)(clv_cuda_stream *s, clv_cuda_graph *g, clv_err *err);
  void (*graph_free)(clv_cuda_graph *g);

  /* matmul_new chooses the algorithm of a product by its description alone, and times nothing.
   * *ret_workspace: bytes of the workspace that the caller must provide, aligned to 256. matmul
   * computes the product; bias: m values, or NULL; beta: 0 (D is not read) or 1. */
  clv_code (*matmul_new)(int device, const clv_cuda_matmul_desc *d, clv_cuda_matmul **ret,
                         size_t *ret_workspace, clv_err *err);
  void (*matmul_free)(clv_cuda_matmul *m);
  clv_code (*matmul)(clv_cuda_stream *s, clv_cuda_matmul *m, const void *a, const void *b,
                     const float *bias, float beta, float *d, void *workspace, clv_err *err);

  /* As matmul_new and matmul, but for one pass of a convolution; beta (0 or 1) multiplies the old
   * values of the tensor that the pass writes. CLV_UNIMPLEMENTED: there is no cuDNN, or it has no
   * engine for this convolution. x, w and y are aligned to 16 bytes. */
  clv_code (*conv_new)(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                       size_t *ret_workspace, clv_err *err);
  void (*conv_free)(clv_cuda_conv *c);
  clv_code (*conv)(clv_cuda_stream *s, clv_cuda_conv *c, void *x, void *w, void *y, float beta,
                   void *workspace, clv_err *err);

  /* As matmul_new, but for an LSTM whose functions are called on stream s. lstm_forward reads
   * weights and x, and writes y and reserve. lstm_backward_data reads weights, y and dy, and writes
   * dx; lstm_backward_weight then reads x and y, and adds to dweights. CLV_UNIMPLEMENTED: there is
   * no cuDNN, it does not support this LSTM, or its results would not have the same bits every
   * time. */
  clv_code (*lstm_new)(clv_cuda_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                       clv_cuda_lstm_space *ret_space, clv_err *err);
  void (*lstm_free)(clv_cuda_lstm *l);
  clv_code (*lstm_forward)(clv_cuda_stream *s, clv_cuda_lstm *l, const clv_cuda_lstm_args *a,
                           clv_err *err);
  clv_code (*lstm_backward_data)(clv_cuda_stream *s, clv_cuda_lstm *l, const clv_cuda_lstm_args *a,
                                 clv_err *err);
  clv_code (*lstm_backward_weight)(clv_cuda_stream *s, clv_cuda_lstm *l,
                                   const clv_cuda_lstm_args *a, clv_err *err);
} clv_vendor;

/* ---- opening the backend --------------------------------------------------------------------- */

/* Opens a backend on one device, with its own stream and memory. The backend has the vendor's name,
 * and a device name such as "cuda:0". The caller first frees what the backend has made, then closes
 * the backend. CLV_PRECONDITION: the table of functions has another version; CLV_UNAVAILABLE: there
 * is no such device. */
clv_code clv_cuda_open(const clv_vendor *vendor, int device, clv_backend **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_cuda_close(clv_backend *b); /* takes NULL */
/* Limits the scratch of the kernels that b prepares from now on, and of those of the backends that
 * b branches from now on. Scratch holds at most `bytes` of attention scores at a time, but at least
 * one row of each head, and at most `bytes` of a weight converted from bf16 to f32, but at least
 * one row. Larger tiles need fewer launches. */
void clv_cuda_set_tile_bytes(clv_backend *b, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
