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

/* Record, in device memory, of the first value that kernels have refused since the last
 * clv_gpu_finish; all zero bits if no value was refused. A launcher that can refuse values ends
 * with a kernel that fills in the record, unless the record is already filled in. */
typedef struct clv_gpu_fault {
  /* complement (~) of the smallest index of a refused value; 0: no value was refused */
  unsigned long long index_complement;
  bool is_set;        /* the fields below are filled in */
  int32_t op;         /* clv_op */
  uint32_t layer;     /* key.layer of the call */
  uint64_t index;     /* index of the value in the op's input */
  double value;       /* the refused value, if the op's input is floating-point */
  int64_t int_value;  /* the refused value, if the op's input is integer */
  int64_t limit;      /* number of classes or rows, or the largest valid length */
  int64_t per_sample; /* values of one sample; for packed lengths, the rows of the batch */
} clv_gpu_fault;

/* Slots of page-locked host memory. All copies between host and device pass through these slots. */
enum { GPU_COPY_SLOTS = 4, GPU_COPY_SLOT_BYTES = 256 << 10 };
typedef struct cuda_copy_slot {
  void *host;
  clv_cuda_event *copy_event; /* event after the slot's last copy */
  bool is_busy;               /* a copy was issued, and the host has not waited for it */
} cuda_copy_slot;

/* A range of neighbouring values in a block of parameters: n values from index `at` on. A kernel
 * processes the range in chunks, one for each block of threads. */
typedef struct cuda_range {
  size_t at, n;
  size_t first_chunk; /* number of chunks of all ranges before this one in the table */
} cuda_range;

/* Table of the ranges that one launch processes, in host memory and in device memory. */
typedef struct cuda_range_table {
  clv_extent *host_ranges; /* [n] the ranges, in host memory */
  size_t n, n_chunks;
  cuda_range *device_ranges; /* [n] the ranges, in device memory */
  /* sums over the chunks, [n_chunks], then over the ranges, [n]; in device memory */
  double *sums;
  uint64_t last_used; /* clv_gpu.n_table_uses when this table was last used */
} cuda_range_table;

/* Largest number of cached range tables: one for each parameter group of an optimiser, and one for
 * all parameters. */
enum { GPU_MAX_RANGE_TABLES = 17 };

/* Measurement of device time between two events of the stream. */
typedef struct cuda_timer {
  clv_cuda_event *begin_event, *end_event; /* NULL: the event could not be made */
  bool is_running;                         /* begin_event has been recorded */
  bool has_ended;                          /* end_event has been recorded, too */
} cuda_timer;

/* clv_gpu.tile_bytes of a new backend; clv_cuda_set_tile_bytes changes it */
enum { GPU_DEFAULT_TILE_BYTES = 64 << 20 };

/* One device, opened as a backend. */
typedef struct clv_gpu {
  const clv_vendor *vendor;
  int device;
  unsigned n_owners;
  clv_cuda_stream *stream; /* stream of all work of the backend */
  cuda_copy_slot slots[GPU_COPY_SLOTS];
  int next_slot;
  clv_gpu_fault *fault; /* record of refused values, in device memory */
  cuda_range_table range_tables[GPU_MAX_RANGE_TABLES];
  uint64_t n_table_uses; /* calls of clv_gpu_find_range_table so far */
  /* first error of a function that returns no error; clv_gpu_finish reports it */
  clv_err deferred_error;
  cuda_timer timer;
  /* largest size in bytes of the attention scores, or of a weight converted to f32, that are in
   * scratch at a time; see clv_cuda_set_tile_bytes */
  size_t tile_bytes;
  bool is_recording; /* the stream is being captured, so the host must not wait or copy */
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
  bool bf16;          /* factors of products are bf16 */
  bool channels_last; /* values, which have rank 4, are in GPU_CHANNELS_LAST */
  /* products that the op's `open` has made, by index; NULL: no such product */
  clv_cuda_matmul *products[GPU_MAX_PRODUCTS];
  clv_cuda_conv *conv[3]; /* indexed by clv_cuda_pass */
  clv_cuda_lstm *lstm;
  clv_cuda_lstm_space lstm_space;
  /* size in bytes of the workspace of products, conv and lstm, at the start of scratch */
  size_t workspace_bytes;
} cuda_kernel;

static inline cuda_kernel *gpu_kernel_of(clv_kernel *base) { return (cuda_kernel *)base; }

/* Functions of the backend for an op. The op's row (clv_op_def) says which values are saved, how
 * large they are, and whether forward works in place. */
typedef struct cuda_op {
  clv_ref_fn *forward, *backward_input, *backward_weight;
  clv_ref_fn *refresh;      /* converts the weights, for kernels whose `open` sets cache_bytes */
  bool bf16, channels_last; /* the op supports these fields of cuda_kernel */
  /* makes the products, sets scratch_bytes and the fields of k that the op's row does not
   * determine;
   * NULL: the kernel needs none of these */
  clv_code (*open)(cuda_kernel *k, clv_err *err);
  unsigned tails;   /* CLV_TAIL_* ops that the kernel can compute, too */
  bool fused_grads; /* as fused_grads of clv_op_def */
} cuda_op;

/* CLV_CUDA_OP(name) = {...}, at the start of a line, defines the cuda_op of op `name`. The Makefile
 * collects these lines in gen/cuda_ops.def, from which backend.c makes its table. */
#define CLV_CUDA_OP(name)                                      \
  _Static_assert(CLV_OP_NUMBER_##name, "its number is not 0"); \
  extern const cuda_op clv_gpu_op_##name;                      \
  const cuda_op clv_gpu_op_##name

/* Returns the arithmetic of the products and convolutions of kernel k. */
static inline clv_cuda_math gpu_product_math(const cuda_kernel *k) {
  return k->bf16 ? CLV_CUDA_BF16 : k->r.d.tf32 ? CLV_CUDA_TF32 : CLV_CUDA_F32;
}

/* Makes product number i of kernel k. The field `math` of the description is not read, because k
 * determines it. All products of k use one workspace, at the start of scratch. */
clv_code clv_gpu_new_product(cuda_kernel *k, int i, const clv_cuda_matmul_desc *d,
                             clv_err *err) CLV_USE_RESULT;
/* Operands of a product D = op(A) op(B) + beta D, where beta is 0 or 1; bias: NULL if there is
 * none. */
typedef struct cuda_product_args {
  const void *a, *b;
  const float *bias;
  float beta;
  float *d;
} cuda_product_args;
clv_code clv_gpu_multiply(const cuda_kernel *k, int i, const cuda_product_args *f,
                          const clv_kernel_args *a, clv_err *err) CLV_USE_RESULT;

/* Returns the address of scratch after the workspace. */
static inline void *gpu_scratch(const cuda_kernel *k, const clv_kernel_args *a) {
  return (char *)a->scratch + k->workspace_bytes;
}

/* ---- sums of channels (sums.cu) -------------------------------------------------------------- */

/* How a sum over the values of each channel of [n, channels, inner] is divided: the values of a
 * channel are divided into slabs, each slab has a partial sum, and the partial sums are added in
 * order. */
typedef struct cuda_sum_layout {
  size_t n, channels, inner;
  size_t n_slabs;         /* number of slabs of a channel */
  size_t values_per_slab; /* number of values in each slab but the last */
} cuda_sum_layout;

enum {
  GPU_MAX_SLABS = 64,
  GPU_SLAB_VALUES = 1024,
  GPU_MAX_SLABS_LAST = 256,
  GPU_SLAB_VALUES_LAST = 128
};

static inline cuda_sum_layout gpu_sum_layout_in_slabs(size_t n, size_t channels, size_t inner,
                                                      size_t values_per_full_slab,
                                                      size_t max_slabs) {
  size_t n_values = n * inner,
         n_slabs = (n_values + values_per_full_slab - 1) / values_per_full_slab;
  cuda_sum_layout s = {n, channels, inner, n_slabs < 1 ? 1 : CLV_MIN(n_slabs, max_slabs), 0};
  s.values_per_slab = (n_values + s.n_slabs - 1) / s.n_slabs;
  return s;
}

static inline cuda_sum_layout gpu_sum_layout_of(size_t n, size_t channels, size_t inner) {
  return gpu_sum_layout_in_slabs(n, channels, inner, GPU_SLAB_VALUES, GPU_MAX_SLABS);
}

/* As gpu_sum_layout_of, but for values in GPU_CHANNELS_LAST. A channel is divided into more and
 * smaller slabs, because such values usually have few channels with many values each. */
static inline cuda_sum_layout gpu_sum_layout_channels_last(size_t n, size_t channels,
                                                           size_t inner) {
  return gpu_sum_layout_in_slabs(n * inner, channels, 1, GPU_SLAB_VALUES_LAST, GPU_MAX_SLABS_LAST);
}

/* Two sums that are computed in one pass over the values. */
typedef struct cuda_pair {
  double first, second;
} cuda_pair;

static inline size_t gpu_partial_sums_bytes(const cuda_sum_layout *s) {
  return s->n_slabs * s->channels * sizeof(cuda_pair);
}

/* Computes the sum of each channel c of x and writes it to dst[c], or adds it to dst[c] if
 * `accumulate`. channels_last: x is in GPU_CHANNELS_LAST. partial_sums: scratch of
 * gpu_partial_sums_bytes. */
clv_code clv_gpu_sum_channels(clv_gpu *g, const cuda_sum_layout *s, bool channels_last,
                              const void *x, void *partial_sums, float *dst, bool accumulate,
                              clv_err *err) CLV_USE_RESULT;

/* ---- copies to the host and back (staging.c) ------------------------------------------------- */

clv_code clv_gpu_open_copy_slots(clv_gpu *g, clv_err *err) CLV_USE_RESULT;
void clv_gpu_close_copy_slots(clv_gpu *g);
clv_code clv_gpu_copy_to_device(const clv_backend *b, void *dst, const void *host, size_t bytes,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_copy_to_host(const clv_backend *b, void *host, const void *src, size_t bytes,
                              const clv_copy_progress *to, clv_err *err) CLV_USE_RESULT;

/* Copies from the memory of another device, or of another stream of this device (peer.c). */
clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;

/* Waits for the stream and reports deferred errors and refused values: the function `finish` of
 * clv_backend_memory. */
clv_code clv_gpu_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) CLV_USE_RESULT;

/* ---- recordings of repeated work (recording.c) ----------------------------------------------- */

extern const clv_backend_recording clv_gpu_recording;
/* Fails if a recording is running, because `what` cannot be recorded; the recording then fails,
 * too.
 * what: verb phrase for the error, such as "allocate memory". */
clv_code clv_gpu_fail_recording(clv_gpu *g, const char *what, clv_err *err) CLV_USE_RESULT;

/* ---- device time (timer.c) ------------------------------------------------------------------- */

extern const clv_backend_timer clv_gpu_timer;
void clv_gpu_open_timer(clv_gpu *g);
void clv_gpu_close_timer(clv_gpu *g);
/* Records the end of a time measurement, if one is running, after the work issued so far.
 * clv_gpu_copy_to_host calls this function after it has issued the last piece of its copy. */
void clv_gpu_mark_time(clv_gpu *g);

/* ---- add, optimiser step and squares (pointwise.c, steps.cu, runs.c) ------------------------- */

/* Adds n values: dst += src. channels_last: both are in GPU_CHANNELS_LAST, so bf16. */
clv_code clv_gpu_add_to(clv_gpu *g, bool channels_last, void *dst, const void *src, size_t n,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_step(clv_gpu *g, const clv_step_args *a, float *p, const float *grad,
                      float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                      size_t n_ranges, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err) CLV_USE_RESULT;
void clv_gpu_free_range_tables(clv_gpu *g);

#ifdef __cplusplus
}
#endif
#endif
