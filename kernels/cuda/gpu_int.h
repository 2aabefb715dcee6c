/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_int: types and functions that the files of the cuda backend share. Included by C and by C++.
 *
 * An op is two files: NAME.c prepares its kernel and registers it, NAME.cu has the loops and a
 * launcher for each, which only issues the launch. Pointers of launchers are to device memory, and
 * not NULL, unless stated otherwise.
 *
 * Sums have a fixed order, which depends on shapes alone. No sum uses atomics.
 */
#ifndef CLEAVE_KERNELS_GPU_INT_H
#define CLEAVE_KERNELS_GPU_INT_H

#include "kernels/cuda/cuda.h"
#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Record of the first value that kernels refused since the last finish; in device memory, with all
 * bits zero if none was refused. A launcher that can refuse values ends with a kernel that fills in
 * the record, unless it is already filled in. */
typedef struct clv_gpu_fault {
  /* complement (~) of the smallest index of a refused value; 0: no value was refused */
  unsigned long long index_complement;
  bool is_set;
  int32_t op;                /* clv_op */
  uint32_t layer;            /* key.layer of the call */
  uint64_t at;               /* index of the value in the op's input */
  double value;              /* the refused value, if the op's input is floating-point */
  int64_t int_value;         /* the refused value, if the op's input is integer */
  int64_t limit, per_sample; /* numbers that the op's error text names */
} clv_gpu_fault;

/* Slots of page-locked host memory. All copies between host and device pass through these slots. */
enum { GPU_SLOTS = 4, GPU_SLOT_BYTES = 256 << 10 };
typedef struct cuda_slot {
  void *host;
  clv_cuda_event *copy_event; /* event after the slot's last copy */
  bool is_busy;               /* a copy was issued, and the host has not waited for it */
} cuda_slot;

/* A run of a parameter block: n values from index `at` on. first: number of chunks of the runs
 * before it. */
typedef struct cuda_run {
  size_t at, n, first;
} cuda_run;

/* Runs that one launch processes, with a table of them on the device. */
typedef struct cuda_runs {
  clv_extent *host;
  size_t n, chunks;
  cuda_run *run;      /* the table, [n], in device memory */
  double *sums;       /* sums of the chunks, [chunks], then of the runs, [n]; in device memory */
  uint64_t last_used; /* value of clv_gpu.tables_used when this table was last used */
} cuda_runs;

/* Number of cached tables of runs: one for each group of an optimiser, and one for all parameters.
 */
enum { GPU_TABLES = 17 };

/* Two timing events of the stream; NULL if they could not be made. is_running: `begin_event` has
 * been recorded; is_ended: `end_event` has been recorded too. */
typedef struct cuda_timer {
  clv_cuda_event *begin_event, *end_event;
  bool is_running, is_ended;
} cuda_timer;

/* limit of clv_gpu.tile_bytes until clv_cuda_set_tile_bytes sets another */
enum { GPU_DEFAULT_TILE_BYTES = 64 << 20 };

/* One device, opened as a backend. */
typedef struct clv_gpu {
  const clv_vendor *vendor;
  int device;
  unsigned n_owners;
  clv_cuda_stream *stream; /* stream of all work of the backend */
  cuda_slot slots[GPU_SLOTS];
  int next_slot;
  clv_gpu_fault *fault; /* record of refused values, in device memory */
  cuda_runs runs[GPU_TABLES];
  uint64_t tables_used;
  /* first error of a function that returns no error; clv_gpu_finish reports it */
  clv_err deferred_error;
  cuda_timer timer;
  /* bytes of attention scores, or of a widened weight, that may be in scratch at a time
   * (clv_cuda_set_tile_bytes) */
  size_t tile_bytes;
  bool is_recording; /* the stream is captured: no waiting and no copies to or from the host */
  clv_cuda_info info;
  char name[16], isa[16]; /* "cuda:0", "sm_90" */
  clv_backend backend;    /* the backend's private_data points to this struct */
} clv_gpu;

/* ---- kernels (backend.c, products.c) --------------------------------------------------------- */

typedef uint16_t cuda_bf16; /* a bf16 number, the upper half of an f32 */

enum { GPU_CHANNELS_LAST = CLV_LAYOUT_CHANNELS_LAST | CLV_LAYOUT_BF16 | 1 };

enum { GPU_MAX_PRODUCTS = 12 };

typedef struct cuda_kernel {
  /* first member, so that a clv_kernel can be cast to cuda_kernel, and a cuda_kernel be passed to
   * the functions of the op's row */
  clv_ref_kernel r;
  clv_gpu *gpu;
  /* The plan requests bf16, and the op supports it. bf16: factors of products are bf16.
   * channels_last: values of rank 4 are in GPU_CHANNELS_LAST. */
  bool bf16, channels_last;
  /* the products that the op's `open` made; NULL: not made */
  clv_cuda_matmul *products[GPU_MAX_PRODUCTS];
  clv_cuda_conv *conv[3]; /* indexed by clv_cuda_pass */
  clv_cuda_lstm *lstm;
  clv_cuda_lstm_space lstm_space;
  /* bytes of the workspace of products, conv and lstm, at the start of scratch */
  size_t workspace_bytes;
} cuda_kernel;

static inline cuda_kernel *gpu_kernel_of(clv_kernel *base) { return (cuda_kernel *)base; }

/* Functions of the backend for an op. The op's row says the rest: which values are saved, their
 * size, and if forward works in place. open: makes the products, changes fields of the kernel that
 * the row does not determine, and sets scratch_bytes; NULL: not needed. tails: the CLV_TAIL_* that
 * the kernel computes. fused_grads: backward_input writes the parameters' gradients too, even if
 * the row does not say so. */
typedef struct cuda_op {
  clv_ref_fn *forward, *backward_input, *backward_weight;
  clv_ref_fn *refresh; /* converts the weights, for kernels whose `open` sets cache_bytes */
  /* the op supports bf16 factors, or channels last: see the fields of cuda_kernel */
  bool bf16, channels_last;
  clv_code (*open)(cuda_kernel *k, clv_err *err);
  unsigned tails;
  bool fused_grads;
} cuda_op;

/* CLV_CUDA_OP(name) = {...}, at the start of a line, defines the cuda_op of op `name`. The Makefile
 * collects these lines in gen/cuda_ops.def, from which backend.c makes its table. */
#define CLV_CUDA_OP(name)                                      \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const cuda_op clv_gpu_op_##name;                      \
  const cuda_op clv_gpu_op_##name

/* Returns the arithmetic of the kernel's products and convolutions. */
static inline clv_cuda_math gpu_math_of(const cuda_kernel *k) {
  return k->bf16 ? CLV_CUDA_BF16 : k->r.d.tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

/* Makes product number i of k. The kernel determines `math`; that of the description is not read.
 * All products share one workspace at the start of scratch. */
clv_code clv_gpu_new_product(cuda_kernel *k, int i, const clv_cuda_matmul_desc *d,
                             clv_err *err) CLV_USE_RESULT;
/* The matrices of a product D = op(A) op(B) + beta D; beta: 0 or 1. */
typedef struct cuda_factors {
  const void *a, *b;
  const float *bias;
  float beta;
  float *d;
} cuda_factors;
clv_code clv_gpu_multiply(const cuda_kernel *k, int i, const cuda_factors *f,
                          const clv_kernel_args *a, clv_err *err) CLV_USE_RESULT;

/* Returns the address of scratch after the workspace. */
static inline void *gpu_scratch(const cuda_kernel *k, const clv_kernel_args *a) {
  return (char *)a->scratch + k->workspace_bytes;
}

/* ---- sums of channels (sums.cu) -------------------------------------------------------------- */

/* How sums over values [n, channels, inner] are computed for each channel: first the partial sums
 * of slabs, then the sum of these in order. */
typedef struct cuda_sums {
  size_t n, channels, inner;
  /* slabs: number of slabs of a channel; values_per_slab: values in each slab but the last */
  size_t slabs, values_per_slab;
} cuda_sums;

enum { GPU_MAX_SLABS = 64, GPU_SLAB = 1024, GPU_MAX_SLABS_LAST = 256, GPU_SLAB_LAST = 128 };

static inline cuda_sums gpu_sums_in_slabs(size_t n, size_t channels, size_t inner, size_t slab,
                                          size_t max_slabs) {
  size_t values = n * inner, slabs = (values + slab - 1) / slab;
  cuda_sums s = {n, channels, inner, slabs < 1 ? 1 : CLV_MIN(slabs, max_slabs), 0};
  s.values_per_slab = (values + s.slabs - 1) / s.slabs;
  return s;
}

static inline cuda_sums gpu_sums_of(size_t n, size_t channels, size_t inner) {
  return gpu_sums_in_slabs(n, channels, inner, GPU_SLAB, GPU_MAX_SLABS);
}

/* As gpu_sums_of, but for values in GPU_CHANNELS_LAST, where a channel has many values, and
 * channels are usually few. */
static inline cuda_sums gpu_sums_channels_last(size_t n, size_t channels, size_t inner) {
  return gpu_sums_in_slabs(n * inner, channels, 1, GPU_SLAB_LAST, GPU_MAX_SLABS_LAST);
}

/* Two sums computed in one pass. */
typedef struct cuda_pair {
  double first, second;
} cuda_pair;

static inline size_t gpu_partial_sums_bytes(const cuda_sums *s) {
  return s->slabs * s->channels * sizeof(cuda_pair);
}

/* Computes the sum of each channel c of x, in GPU_CHANNELS_LAST if `channels_last`, and writes it
 * to dst[c], or adds it to dst[c] if `accumulate`. partial_sums: scratch of gpu_partial_sums_bytes.
 */
clv_code clv_gpu_channel_sums(clv_gpu *g, const cuda_sums *s, bool channels_last, const void *x,
                              void *partial_sums, float *dst, bool accumulate,
                              clv_err *err) CLV_USE_RESULT;

/* ---- copies to the host and back (staging.c) ------------------------------------------------- */

clv_code clv_gpu_open_slots(clv_gpu *g, clv_err *err) CLV_USE_RESULT;
void clv_gpu_close_slots(clv_gpu *g);
clv_code clv_gpu_copy_to_device(const clv_backend *b, void *dst, const void *host, size_t bytes,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_copy_to_host(const clv_backend *b, void *host, const void *src, size_t bytes,
                              const clv_copy_progress *to, clv_err *err) CLV_USE_RESULT;

/* Copies from the memory of another device, or of another stream of this device (peer.c). */
clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* Waits for the stream: the `finish` of clv_backend_memory. */
clv_code clv_gpu_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) CLV_USE_RESULT;

/* ---- recordings of repeated work (recording.c) ----------------------------------------------- */

extern const clv_backend_recording clv_gpu_recording;
/* Fails if a recording is running, because `what` cannot be recorded. The recording then fails too.
 */
clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) CLV_USE_RESULT;

/* ---- device time (timer.c) ------------------------------------------------------------------- */

extern const clv_backend_timer clv_gpu_timer;
void clv_gpu_open_timer(clv_gpu *g);
void clv_gpu_close_timer(clv_gpu *g);
/* Ends the time measurement after the work issued so far, if one is running. clv_gpu_copy_to_host
 * calls it after issuing the last piece of its copy. */
void clv_gpu_mark_time(clv_gpu *g);

/* ---- whole buffers (pointwise.c, steps.cu, runs.c) ------------------------------------------- */

/* Adds n values: dst += src, in GPU_CHANNELS_LAST if `channels_last`. */
clv_code clv_gpu_add_to(clv_gpu *g, bool channels_last, void *dst, const void *src, size_t n,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs,
                      size_t n_runs, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *runs,
                             size_t n_runs, double *ret, clv_err *err) CLV_USE_RESULT;
void clv_gpu_runs_done(clv_gpu *g);

#ifdef __cplusplus
}
#endif
#endif
