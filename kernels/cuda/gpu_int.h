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

/* Record of the values that kernels refused since the last finish; in device memory, all bits zero
 * if none was refused. A launcher that can refuse values ends with a kernel that records the first
 * one, unless one is already recorded. */
typedef struct clv_gpu_fault {
  unsigned long long place; /* complement (~) of the least index of a refused value; 0: none */
  bool is_set;
  int32_t op;                /* clv_op */
  uint32_t layer;            /* key.layer of the call */
  uint64_t at;               /* index of the value in the op's input */
  double value;              /* refused value of a floating-point input */
  int64_t integer;           /* refused value of an integer input */
  int64_t limit, per_sample; /* numbers for the op's error text */
} clv_gpu_fault;

/* Slots of page-locked host memory, through which all copies between host and device pass. */
enum { GPU_SLOTS = 4, GPU_SLOT_BYTES = 256 << 10 };
typedef struct cuda_slot {
  void *host;
  clv_cuda_event *free; /* recorded after the slot's last copy */
  bool busy;            /* a copy was issued and not yet waited for */
} cuda_slot;

/* A run of a block: n values from index `at`; first: number of chunks before it. */
typedef struct cuda_run {
  size_t at, n, first;
} cuda_run;

/* Runs that a launch walks, with their table on the device. */
typedef struct cuda_runs {
  clv_extent *host;
  size_t n, chunks;
  cuda_run *run; /* [n], in device memory, as is: */
  double *part;  /* [chunks] partial sums, then [n] totals */
  uint64_t used; /* value of tables_used at the last use */
} cuda_runs;

/* Number of cached tables: one for each group of an optimiser, and one for all parameters. */
enum { GPU_TABLES = 17 };

/* Two timing events of the stream; NULL if they could not be made. is_running: `begun` has been
 * recorded; is_ended: `ended` has been recorded too. */
typedef struct cuda_timer {
  clv_cuda_event *begun, *ended;
  bool is_running, is_ended;
} cuda_timer;

enum { GPU_TILE_BYTES = 64 << 20 };

/* One device, opened as a backend. */
typedef struct clv_gpu {
  const clv_vendor *vendor;
  int device;
  unsigned owners;
  clv_cuda_stream *stream; /* stream of all kernels, in the order of the plan */
  cuda_slot slots[GPU_SLOTS];
  int next_slot;
  clv_gpu_fault *fault; /* device memory */
  cuda_runs runs[GPU_TABLES];
  uint64_t tables_used;
  clv_err deferred_error; /* first error of a function that returns none; reported by finish */
  cuda_timer timer;
  /* limit of attention scores, or widened weights, in scratch at a time; bytes */
  size_t tile_bytes;
  bool
      is_recording; /* the stream is being captured: no waiting and no copies to or from the host */
  clv_cuda_info info;
  char name[16], isa[16]; /* "cuda:0", "sm_90" */
  clv_backend backend;    /* backend.own points to this struct */
} clv_gpu;

/* ---- kernels (backend.c, products.c) --------------------------------------------------------- */

typedef uint16_t cuda_bf16; /* the upper half of an f32 */

enum { GPU_LAST = CLV_LAYOUT_LAST | CLV_LAYOUT_BF16 | 1 };

enum { GPU_PRODUCTS = 12 };

typedef struct cuda_kernel {
  /* first member: argument of the row's functions; a clv_kernel is cast to cuda_kernel */
  clv_ref_kernel r;
  clv_gpu *gpu;
  /* Requested by the plan and supported by the op: factors of products in bf16; values of
   * rank 4 in GPU_LAST. */
  bool bf16, last;
  clv_cuda_matmul *product[GPU_PRODUCTS]; /* products made by the op's `open`, else NULL */
  clv_cuda_conv *conv[3];                 /* indexed by clv_cuda_pass */
  clv_cuda_lstm *lstm;
  clv_cuda_lstm_space lstm_space;
  size_t workspace; /* bytes of the workspace of product, conv and lstm, at the start of scratch */
} cuda_kernel;

static inline cuda_kernel *gpu_kernel_of(clv_kernel *base) { return (cuda_kernel *)base; }

/* Functions of the backend for an op. The op's row gives the rest: which values are saved, their
 * size, and if forward works in place. open: makes the products, changes what the row cannot know,
 * and sets scratch_bytes; NULL: not needed. tails: the CLV_TAIL_* that the kernel computes. fused:
 * backward_input writes the parameters' gradients too, even if the row does not say so. */
typedef struct cuda_op {
  clv_ref_fn *forward, *backward_input, *backward_weight;
  clv_ref_fn *refresh; /* for kernels whose open sets cache_bytes */
  bool bf16, last;     /* see cuda_kernel */
  clv_code (*open)(cuda_kernel *k, clv_err *err);
  unsigned tails;
  bool fused;
} cuda_op;

/* CLV_CUDA_OP(name) = {...}, at the start of a line, defines the cuda_op of op `name`. The Makefile
 * collects these lines in gen/cuda_ops.def, from which backend.c makes its table. */
#define CLV_CUDA_OP(name)                                      \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const cuda_op clv_gpu_op_##name;                      \
  const cuda_op clv_gpu_op_##name

/* Arithmetic of the kernel's products and convolutions. */
static inline clv_cuda_math gpu_math(const cuda_kernel *k) {
  return k->bf16 ? CLV_CUDA_BF16 : k->r.d.tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

/* Makes product i of k; `math` of the description is not read. All products share one workspace at
 * the start of scratch. */
clv_code clv_gpu_new_product(cuda_kernel *k, int i, const clv_cuda_matmul_desc *d,
                             clv_err *err) CLV_USE_RESULT;
/* The matrices of product i; beta: 0 or 1. */
typedef struct cuda_factors {
  const void *a, *b;
  const float *bias;
  float beta;
  float *d;
} cuda_factors;
clv_code clv_gpu_multiply(const cuda_kernel *k, int i, const cuda_factors *f,
                          const clv_kernel_args *a, clv_err *err) CLV_USE_RESULT;

/* Scratch after the products' workspace. */
static inline void *gpu_scratch(const cuda_kernel *k, const clv_kernel_args *a) {
  return (char *)a->scratch + k->workspace;
}

/* ---- sums (sums.cu) -------------------------------------------------------------------------- */

/* Sums of values [n, channels, inner] for each channel: partial sums of slabs first, then
 * the slabs in order. */
typedef struct cuda_sums {
  size_t n, channels, inner;
  size_t slabs, per_slab; /* slabs of a channel; values in each slab but the last */
} cuda_sums;

enum { GPU_MOST_SLABS = 64, GPU_SLAB = 1024, GPU_MOST_SLABS_LAST = 256, GPU_SLAB_LAST = 128 };

static inline cuda_sums gpu_sums_by(size_t n, size_t channels, size_t inner, size_t slab,
                                    size_t most) {
  size_t values = n * inner, slabs = (values + slab - 1) / slab;
  cuda_sums s = {n, channels, inner, slabs < 1 ? 1 : CLV_MIN(slabs, most), 0};
  s.per_slab = (values + s.slabs - 1) / s.slabs;
  return s;
}

static inline cuda_sums gpu_sums_of(size_t n, size_t channels, size_t inner) {
  return gpu_sums_by(n, channels, inner, GPU_SLAB, GPU_MOST_SLABS);
}

/* As gpu_sums_of, but for values in GPU_LAST, whose columns are long and usually few. */
static inline cuda_sums gpu_sums_last(size_t n, size_t channels, size_t inner) {
  return gpu_sums_by(n * inner, channels, 1, GPU_SLAB_LAST, GPU_MOST_SLABS_LAST);
}

/* Two sums computed in one pass. */
typedef struct cuda_pair {
  double first, second;
} cuda_pair;

static inline size_t gpu_parts_bytes(const cuda_sums *s) {
  return s->slabs * s->channels * sizeof(cuda_pair);
}

/* dst[c], or dst[c] +=, the sum of channel c of x, which is in GPU_LAST if `last`. parts:
 * gpu_parts_bytes. */
clv_code clv_gpu_channel_sums(clv_gpu *g, const cuda_sums *s, bool last, const void *x, void *parts,
                              float *dst, bool accumulate, clv_err *err) CLV_USE_RESULT;

/* ---- to the host and back (staging.c) -------------------------------------------------------- */

clv_code clv_gpu_open_slots(clv_gpu *g, clv_err *err) CLV_USE_RESULT;
void clv_gpu_close_slots(clv_gpu *g);
clv_code clv_gpu_put(const clv_backend *b, void *dst, const void *host, size_t bytes,
                     clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_get(const clv_backend *b, void *host, const void *src, size_t bytes,
                     const clv_copy_progress *to, clv_err *err) CLV_USE_RESULT;

/* Copies from another device, or from another stream of this one (peer.c). */
clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* Waits for the stream; see clv_backend_memory. */
clv_code clv_gpu_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) CLV_USE_RESULT;

/* ---- recordings (recording.c) ---------------------------------------------------------------- */

extern const clv_backend_recording clv_gpu_recording;
/* Fails if a recording is running, because `what` cannot be recorded; the recording then fails
 * too. */
clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) CLV_USE_RESULT;

/* ---- device time (timer.c) ------------------------------------------------------------------- */

extern const clv_backend_timer clv_gpu_timer;
void clv_gpu_open_timer(clv_gpu *g);
void clv_gpu_close_timer(clv_gpu *g);
/* Ends the time measurement here, if one is running. Called before each copy that the host waits
 * for. */
void clv_gpu_mark_time(clv_gpu *g);

/* ---- whole buffers (pointwise.c, steps.cu, runs.c) ------------------------------------------- */

/* dst += src over n values, in GPU_LAST if `last`. */
clv_code clv_gpu_add_to(clv_gpu *g, bool last, void *dst, const void *src, size_t n,
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
