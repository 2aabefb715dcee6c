/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_int: what the files of the cuda backend share. Read by C and by C++.
 *
 * An op is two files: NAME.c prepares its kernel and registers it, NAME.cu has the loops and a
 * launcher for each, which only asks for the launch. Pointers of launchers are the device's unless
 * they say otherwise; none is NULL unless it says so.
 *
 * Sums have a fixed order: it depends on shapes alone, and nothing is added by atomics.
 */
#ifndef CLEAVE_KERNELS_GPU_INT_H
#define CLEAVE_KERNELS_GPU_INT_H

#include "kernels/cuda/cuda.h"
#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values that kernels refused since the last time anybody waited; in device memory, all bits zero
 * where nothing was refused. A launcher that can refuse values ends with a kernel that notes the
 * first, if nothing is noted. */
typedef struct clv_gpu_fault {
  unsigned long long place; /* ~ of the least index of a value that was refused */
  bool noted;
  int32_t op;                /* clv_op */
  uint32_t layer;            /* key.layer of the call */
  uint64_t at;               /* index among the op's values */
  double value;              /* of real numbers, */
  int64_t whole;             /* or of whole ones */
  int64_t limit, per_sample; /* what the op's text needs */
} clv_gpu_fault;

/* Page-locked memory of the host, through which everything goes in and out. */
enum { GPU_SLOTS = 4, GPU_SLOT_BYTES = 256 << 10 };
typedef struct cuda_slot {
  void *host;
  clv_cuda_event *free; /* its last copy is done */
  bool busy;            /* nobody has waited for that */
} cuda_slot;

/* A run of a block: n values from the one with number `at`; `first`: how many chunks are before. */
typedef struct cuda_run {
  size_t at, n, first;
} cuda_run;

/* Runs that a launch walks, of which the device has a table. */
typedef struct cuda_runs {
  clv_extent *host;
  size_t n, chunks;
  cuda_run *run; /* [n], device memory, as */
  double *part;  /* [chunks], and [n] totals behind them */
  uint64_t used; /* when, counted in uses */
} cuda_runs;

/* Those of all groups that an optimiser may have, and of all parameters. */
enum { GPU_TABLES = 17 };

/* Two events of the stream; NULL where they cannot be had. runs: the first is recorded; known: the
 * second is as well. */
typedef struct cuda_timer {
  clv_cuda_event *begun, *ended;
  bool runs, known;
} cuda_timer;

enum { GPU_TILE_BYTES = 64 << 20 };

/* One device, opened. */
typedef struct clv_gpu {
  const clv_vendor *vendor;
  int device;
  unsigned owners;
  clv_cuda_stream *stream; /* all kernels, in the order of the plan */
  cuda_slot slots[GPU_SLOTS];
  int next_slot;
  clv_gpu_fault *fault; /* device memory */
  cuda_runs runs[GPU_TABLES];
  uint64_t tables_used;
  clv_err failed; /* of what cannot report it itself; told by finish */
  cuda_timer timer;
  size_t tile_bytes; /* most scores of attention, or wide weights, in scratch at a time */
  bool recording;    /* the stream is captured: nothing may wait, or pass memory */
  clv_cuda_info info;
  char name[16], isa[16]; /* "cuda:0", "sm_90" */
  clv_backend backend;    /* its `own` is this */
} clv_gpu;

/* ---- kernels (backend.c, products.c) --------------------------------------------------------- */

typedef uint16_t cuda_bf16; /* the upper half of an f32 */

enum { GPU_LAST = CLV_LAYOUT_LAST | CLV_LAYOUT_BF16 | 1 };

enum { GPU_PRODUCTS = 12 };

typedef struct cuda_kernel {
  clv_ref_kernel r; /* first: what the op's row is asked with; a clv_kernel is a cuda_kernel */
  clv_gpu *gpu;
  /* Asked for, and known to the op: factors of products in bf16; values of rank 4 in GPU_LAST. */
  bool bf16, last;
  clv_cuda_matmul *product[GPU_PRODUCTS]; /* what the op's `open` made of them, else NULL */
  clv_cuda_conv *conv[3];                 /* by clv_cuda_pass */
  clv_cuda_lstm *lstm;
  clv_cuda_lstm_space lstm_space;
  size_t workspace; /* of the above, at the beginning of scratch */
} cuda_kernel;

static inline cuda_kernel *gpu_kernel_of(clv_kernel *base) { return (cuda_kernel *)base; }

/* What the backend has for an op. All else comes from the op's row: what is saved and how much, and
 * whether forward works in place. open: makes the products, changes what the row does not know, and
 * sets scratch_bytes; NULL: nothing of it. tails: the CLV_TAIL_* it takes. fused: backward_input
 * writes the parameters' gradients too, whatever the row says. */
typedef struct cuda_op {
  clv_ref_fn *forward, *backward_input, *backward_weight;
  clv_ref_fn *refresh; /* where open gives the kernel a cache */
  bool bf16, last;     /* see cuda_kernel */
  clv_code (*open)(cuda_kernel *k, clv_err *err);
  unsigned tails;
  bool fused;
} cuda_op;

/* CLV_CUDA_OP(name) = {...}, at the beginning of a line: what the backend has for the op `name`.
 * The Makefile collects these lines in gen/cuda_ops.def, of which backend.c makes its table. */
#define CLV_CUDA_OP(name)                                      \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const cuda_op clv_gpu_op_##name;                      \
  const cuda_op clv_gpu_op_##name

/* What its products and convolutions compute in. */
static inline clv_cuda_math gpu_math(const cuda_kernel *k) {
  return k->bf16 ? CLV_CUDA_BF16 : k->r.d.tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

/* Makes product i of k; `math` of the description is not read. Its workspace is at the beginning of
 * scratch, as those of the others. */
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

/* What of scratch is left behind the products' workspace. */
static inline void *gpu_scratch(const cuda_kernel *k, const clv_kernel_args *a) {
  return (char *)a->scratch + k->workspace;
}

/* ---- sums (sums.cu) -------------------------------------------------------------------------- */

/* Values [n, channels, inner], summed for each channel: first parts of it, then those in order. */
typedef struct cuda_sums {
  size_t n, channels, inner;
  size_t slabs, per_slab; /* parts of a channel, and values in each but the last */
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

/* The same of values in GPU_LAST, whose columns are long and mostly few. */
static inline cuda_sums gpu_sums_last(size_t n, size_t channels, size_t inner) {
  return gpu_sums_by(n * inner, channels, 1, GPU_SLAB_LAST, GPU_MOST_SLABS_LAST);
}

/* Two sums made in one walk. */
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

/* From another device, or another stream of this one (peer.c). */
clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* Waits for the stream; see clv_backend_memory. */
clv_code clv_gpu_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) CLV_USE_RESULT;

/* ---- what is recorded (recording.c) ---------------------------------------------------------- */

extern const clv_backend_recording clv_gpu_recording;
/* An error, and the end of the recording's use, for what cannot be done again. */
clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) CLV_USE_RESULT;

/* ---- how long it takes (timer.c) ------------------------------------------------------------- */

extern const clv_backend_timer clv_gpu_timer;
void clv_gpu_open_timer(clv_gpu *g);
void clv_gpu_close_timer(clv_gpu *g);
/* Before what the host waits for: the time, if it is measured, is to here. */
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
