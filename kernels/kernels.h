/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels: the closed list of ops, their attributes, and the table of functions a backend fills.
 *
 * A backend is asked once per node of a plan to `prepare` a kernel: shapes, attributes and the
 * layouts on offer go in, a kernel with everything chosen (layouts, scratch, saved state) comes
 * out. The hot path then calls the kernel's functions, which allocate nothing. `ref` prepares every
 * op in f32 and f64 and is their definition; other backends answer CLV_UNIMPLEMENTED for what they
 * lack and the plan takes ref's.
 *
 * Determinism: the layout in which a kernel computes, and so the order of its sums, is a function
 * of (op, attributes, shapes, dtype, threads, instruction set) only -- never of its neighbours. A
 * kernel that gives the same bits in any layout (relu, add, max pooling, dropout...) may take the
 * layout that is offered; any other names the one it wants and the plan inserts a reorder. That is
 * why a network cut between any two layers computes the same bits as the uncut one.
 *
 * Threads: a kernel is used by one thread at a time.
 */
#ifndef CLEAVE_KERNELS_H
#define CLEAVE_KERNELS_H

#include "common/base/base.h"
#include "common/base/settings/settings.h"
#include "common/base/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Dimension letters: N batch, C channels in, K channels out, H x W image, F features, T steps of a
 * sequence. */

/* The numbers travel in LoadModule; kernels/ops.def is their list. */
typedef enum clv_op {
  CLV_OP_INPUT = 0, /* an external input; no kernel */
#define OP(number, NAME, name) CLV_OP_##NAME = number,
#include "kernels/ops.def"
#undef OP
  CLV_OP_COUNT
} clv_op;

/* Weights of classes, as many as there are classes; n 0: none given, all alike. */
enum { CLV_MAX_CLASS_WEIGHTS = 128 };
typedef struct clv_class_weights {
  int n;
  float of[CLV_MAX_CLASS_WEIGHTS];
} clv_class_weights;

/* Every attribute any op takes. The rows in kernels/ops say which op uses which, with default and
 * range, and common/model/graph/attrs.c what each one is. Pairs are (height, width). */
typedef struct clv_attrs {
  int64_t out;
  int64_t kernel[2], stride[2], pad[2], dilation[2], output_pad[2];
  int64_t groups;
  bool bias;
  double p;
  double eps, momentum;
  clv_shape shape; /* without N; rank 0: none given */
  int64_t rows;
  int64_t layers;
  int64_t dim;         /* negative ones count from the end, as the next two */
  int64_t start, stop; /* first, and first that is left out */
  double factor;
  int64_t forward_ms, input_ms, weight_ms;
  bool kaiming_normal; /* as torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") */
  int64_t heads, kv_heads; /* of attention; kv_heads 0: as many as heads */
  bool causal;
  clv_shape order;       /* of permute */
  double base;           /* of rotary */
  int64_t column, minus; /* of embedding; -1: none */
  int64_t padding_idx;   /* of embedding: the row that gets no gradient; -1: none */
  int64_t offset;        /* of positions */
  double init_std;       /* of first weights; 0: as the op draws them */
  bool transposed;       /* of linear: W is [F, out] */
  bool bare;             /* the parameter is called as the node */
  int64_t ignore_index;  /* the label of places that a loss does not count */
  double label_smoothing;
  clv_class_weights class_weights;
  bool init_zero; /* of linear: weight and bias begin with 0 */
  int64_t packed; /* most places of a sequence, where they are packed; 0: they are not */
  bool first;     /* of last: the first place of packed sequences instead */
} clv_attrs;

enum { CLV_MAX_IN = 8, CLV_MAX_PARAMS = 32, CLV_LSTM_LAYERS = 8 };

/* slice.stop that stands for the end. */
enum { CLV_TO_END = INT32_MAX };

/* Parameter slots that several ops share by name; the rows in kernels/ops say which an op has, with
 * their shapes. */
enum {
  CLV_SLOT_WEIGHT = 0,
  CLV_SLOT_BIAS = 1,
  CLV_SLOT_MEAN = 2,
  CLV_SLOT_VAR = 3,
  CLV_SLOT_TRACKED = 4
};

/* A layout is one number, the channel block: 1 is row-major; 8 or 16 is nChw8c / nChw16c for
 * tensors of rank 4, channels padded up to a multiple of the block, the padding zero. */
size_t clv_layout_numel(const clv_shape *shape, int layout); /* padded number of elements */

/* Added to the block: the numbers are bf16, the upper halves of f32 rounded to nearest even. Only
 * in plans that compute in bf16, only for tensors of rank 4, and never for the caller's. */
enum { CLV_LAYOUT_BF16 = 0x100 };

/* Beside it, with block 1: the channels of a place lie side by side, [N, H, W, C]. */
enum { CLV_LAYOUT_LAST = 0x200 };

static inline int clv_layout_block(int layout) {
  return layout & ~(CLV_LAYOUT_BF16 | CLV_LAYOUT_LAST);
}
static inline int clv_layout_f32(int layout) { return layout & ~CLV_LAYOUT_BF16; }
static inline bool clv_layout_is_last(int layout) { return layout & CLV_LAYOUT_LAST; }
static inline bool clv_layout_is_bf16(int layout) { return layout & CLV_LAYOUT_BF16; }

/* attrs->dim as an index of `in`; -1 where it is none. */
int clv_axis_of(const clv_attrs *attrs, const clv_shape *in);

/* slice's first index along an axis of `extent`; *ret_stop: the first behind. Not yet checked. */
int64_t clv_slice_start(const clv_attrs *attrs, int64_t extent, int64_t *ret_stop);

/* An op of a chain, with the number that it computes with: p of dropout, factor of scale. */
typedef struct clv_chain_link {
  clv_op op;
  double number;
} clv_chain_link;

enum { CLV_MAX_LINKS = 4 };

/* What a backend is told about one node. */
typedef struct clv_node_desc {
  clv_op op;
  clv_attrs attrs;
  clv_dtype dtype; /* of the arithmetic: f32, or f64 (ref only) */
  int n_in;
  clv_shape in[CLV_MAX_IN];
  clv_dtype in_dtype[CLV_MAX_IN]; /* dtype, except i64 class labels and row numbers */
  int offered_block[CLV_MAX_IN];
  clv_shape out;
  int n_params;
  clv_shape param[CLV_MAX_PARAMS];
  bool training; /* dropout drops, batchnorm uses batch statistics and updates running ones */
  bool need_dx[CLV_MAX_IN]; /* gradient with respect to that input is wanted */
  bool need_dw;             /* gradients of the parameters are wanted */
  int threads;
  unsigned tail; /* CLV_TAIL_*: ops behind this one that the same kernel does */
  /* conv2d and linear compute with bf16 factors and f32 sums, conv2d rounds its output to bf16; a
   * device may do so with other ops. Which kernel rounds what does not depend on its neighbours,
   * whose layouts the two below are offers of. */
  bool bf16;
  /* Element-wise ops in one kernel, each of what the one before makes: `op` and those behind it.
   * One at most is a sum, to which in[1] is added, and one a dropout that draws, whose key the
   * arguments have. The bits are those of the ops apart. Only what `chains` takes is asked. */
  int n_links; /* 0: one op */
  clv_chain_link link[CLV_MAX_LINKS];
  bool tf32;                  /* factors of products and convolutions may be rounded to TF32 */
  bool bf16_weight;           /* of linear: its weight is bf16, and its gradient is not wanted */
  int wanted_out;             /* layout all readers of the output compute in; 0: they differ */
  int wanted_din[CLV_MAX_IN]; /* the same for the gradient; 0: it is added to others */
} clv_node_desc;

/* What a convolution or pooling slides over: in[0] and out of a rank-4 op. One over [N, C, L] has
 * images of one row. Of a transposed convolution it is that of the convolution whose input gradient
 * it makes: what the op reads is the output. */
typedef struct clv_window {
  int64_t n, c, h, w; /* input */
  int64_t k, oh, ow;  /* output channels and image */
  int64_t kernel[2], stride[2], pad[2];
  int64_t dilation[2]; /* from tap to tap */
} clv_window;
bool clv_is_conv_transpose(clv_op op);
clv_window clv_window_of(const clv_node_desc *d);

/* The extents of attention: queries [n, t, heads * width], keys and values [n, s, kv_heads *
 * width]. Head h of the queries meets head h / group of keys and values. */
typedef struct clv_heads {
  int64_t n, t, s, heads, kv_heads, width, group;
  double scale; /* of scores: 1 / sqrt(width) */
} clv_heads;
clv_heads clv_heads_of(const clv_node_desc *d);

/* Packed sequences lie one behind the other: [T, ...] in place of [N, S, ...], with lengths [N].
 * Rows behind the last one are of none. Here: the rows before sequence n. */
static inline int64_t clv_packed_before(const int64_t *lengths, int64_t n) {
  int64_t rows = 0;
  for (int64_t i = 0; i < n; i++) rows += lengths[i];
  return rows;
}

/* matmul's products: `batch` of [m, k] by [k, n]. */
typedef struct clv_matmul {
  int64_t batch, m, k, n;
} clv_matmul;
clv_matmul clv_matmul_of(const clv_node_desc *d);

/* The n row numbers of an embedding, per_sample of each sample: number i is value i width + column
 * of its input, less value i width + minus where that is not -1. Backward passes over places that
 * name the row `padding`; -1: over none. */
typedef struct clv_row_numbers {
  size_t n, per_sample, width;
  int64_t rows, column, minus, padding;
} clv_row_numbers;
clv_row_numbers clv_row_numbers_of(const clv_node_desc *d);
static inline int64_t clv_row_number_at(const clv_row_numbers *l, const int64_t *value, size_t i) {
  const int64_t *at = value + i * l->width;
  int64_t row = at[l->column];
  if (l->minus >= 0 && __builtin_sub_overflow(row, at[l->minus], &row)) return INT64_MIN;
  return row;
}
/* CLV_INVALID for the first outside 0..rows-1, with its sample and its place there; the number is
 * the error's element. */
clv_code clv_check_rows(const clv_row_numbers *l, const int64_t *value,
                        clv_err *err) CLV_USE_RESULT;

/* Keys that query i of a sample meets: none behind `length`, and with causal none behind i. */
static inline int64_t clv_heads_visible_keys(const clv_attrs *attrs, int64_t i, int64_t length) {
  return attrs->causal && i + 1 < length ? i + 1 : length;
}

/* What lies between neighbours along each dimension of a permuted output, in values of the input:
 * order is clv_attrs.order. And where the output's value i lies in the input. */
void clv_strides(const clv_shape *in, const clv_shape *order, size_t ret[CLV_MAX_RANK]);
static inline size_t clv_strides_at(const clv_shape *out, const size_t *step, size_t i) {
  size_t at = 0;
  for (int d = out->rank; d-- > 0; i /= (size_t)out->dim[d])
    at += i % (size_t)out->dim[d] * step[d];
  return at;
}

/* Two inputs brought to one shape, that of the output: dimension i has n[i] values, which lie
 * step[j][i] apart in input j; 0: it has one there, which stands for all. Dimension 0 is the batch.
 * Others that are alike in both respects and neighbours are one, and those of one value none. */
typedef struct clv_broadcast {
  int rank;
  size_t n[CLV_MAX_RANK], step[2][CLV_MAX_RANK];
} clv_broadcast;
clv_broadcast clv_broadcast_of(const clv_node_desc *d);
/* The same of tensors of rank 4 that all lie with their channels last: dimensions n, h, w, c. */
clv_broadcast clv_broadcast_last(const clv_node_desc *d);
/* Whether an op of several inputs has some of another shape than its output's. */
bool clv_broadcasts(const clv_node_desc *d);

/* A tensor seen as [outer, extent, inner] around the dimension attrs->dim. */
typedef struct clv_axis {
  size_t outer, extent, inner;
} clv_axis;
clv_axis clv_axis_around(const clv_attrs *attrs, const clv_shape *shape);

/* With a tail the output is relu(op(in[0])), or with both relu(op(in[0]) + in[1]), n_in being 2.
 * The bits are those of the ops apart; a backend without such a kernel answers CLV_UNIMPLEMENTED,
 * and the plan takes the ops apart. Asked with tails are batchnorm, and what the backend's `tails`
 * names. CLV_TAIL_RELU_FORWARD: the output is relu(op(in)), but backward is the op's alone: it is
 * given the gradient of op(in), and saves no output. */
enum { CLV_TAIL_ADD = 1u << 0, CLV_TAIL_RELU = 1u << 1, CLV_TAIL_RELU_FORWARD = 1u << 2 };

/* What the backward functions read beside dout: the plan keeps these alive until then. */
enum {
  CLV_SAVE_IN0 = 1u << 0,
  CLV_SAVE_IN1 = 1u << 1,
  CLV_SAVE_OUT = 1u << 2,
  CLV_SAVE_IN2 = 1u << 3,
  CLV_SAVE_IN3 = 1u << 4
};

/* CLV_SAVE_IN0 and so on for input i, of those that can be kept; 0 for the others. */
static inline unsigned clv_save_in(int i) {
  return i < 2 ? 1u << i : i < 4 ? (unsigned)CLV_SAVE_IN2 << (i - 2) : 0u;
}

/* What of a key another execution of the same kernel has otherwise. */
typedef struct clv_rng_position {
  uint64_t step;
  uint32_t micro_batch, zero;
} clv_rng_position;

/* Arguments of one execution. Activations are in the kernel's layouts; parameters and their
 * gradients are always row-major. Unused pointers are NULL. */
typedef struct clv_kernel_args {
  const void *in[CLV_MAX_IN];
  void *out;
  void *param[CLV_MAX_PARAMS]; /* slots 2.. are written by batchnorm's training forward */
  void *cache;                 /* cache_bytes, filled by refresh; NULL in backward_weight */
  unsigned refresh_for;        /* refresh: CLV_FOR_*, whose part of the cache is wanted */
  void *saved;                 /* saved_bytes, written by forward, read by backward */
  void *scratch;               /* scratch_bytes, free for any use during the call */
  const void *dout;
  void *din[CLV_MAX_IN];        /* overwritten; NULL where need_dx is false */
  void *dparam[CLV_MAX_PARAMS]; /* trainable slots; batchnorm: 0 and 1 */
  bool accumulate;              /* dparam += instead of = */
  clv_rng_key key;              /* key.layer is already (layer << 4) */
  /* For kernels that read it: the key's step and micro-batch, in the backend's memory. NULL: they
   * are in the key. */
  const clv_rng_position *occasion;
} clv_kernel_args;

/* Functions that read the cache. */
enum { CLV_FOR_FORWARD = 1u << 0, CLV_FOR_BACKWARD = 1u << 1 };

typedef struct clv_kernel clv_kernel;

struct clv_kernel {
  /* Optional: derive `cache` (weights in the library's format) from the parameters. Called before
   * the first execution after the parameters changed, or before every one. */
  clv_code (*refresh)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  clv_code (*forward)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* din from dout. Absent where no input can need a gradient. */
  clv_code (*backward_input)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* dparam from dout. Absent for ops without parameters. When `fused_grads`, backward_input writes
   * dparam too and this is absent. */
  clv_code (*backward_weight)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* Optional: out once more, from in[0] and saved, the bits of forward's; changes nothing else. The
   * plan then need not keep the output until backward. Cheap: one pass over the values. */
  clv_code (*recompute)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  void (*free)(clv_kernel *k); /* frees k itself */

  int in_block[CLV_MAX_IN]; /* layouts it computes in */
  int out_block;            /* layout of out and dout; din has in_block, unless given here: */
  int din_block[CLV_MAX_IN], dout_block;
  unsigned saves;        /* CLV_SAVE_*: what backward reads, */
  unsigned saves_for_dw; /* and which of those only backward_weight does */
  size_t saved_bytes, scratch_bytes, cache_bytes;
  bool fused_grads;
  bool in_place;         /* out may be the same memory as in[0] (same layout and size) */
  unsigned din_in_place; /* bit i: din[i] may be the same memory as dout, for one i at a time */
  bool reads_occasion;   /* it draws numbers, and takes args->occasion where it is given */
  int reorders_refresh, reorders_forward, reorders_backward; /* library reorders per call */
  const char *impl; /* static text for `plan --verbose`: "jit:avx512_core", "ref" */
};

/* The numbers of one optimiser step, as kernels/steps makes them of settings, rate and step: each
 * is computed in double and rounded once. An average keeps `keep` of the old and takes `take` of
 * the new. What a formula does not read is 0. */
typedef struct clv_step_args {
  clv_optim_kind kind;
  bool first;       /* sgd: the momentum buffer becomes the gradient */
  bool nesterov;    /* sgd */
  float grad_scale; /* every gradient is scaled by it first */
  float weight_decay, momentum, eps;
  float rate;             /* of the update, as the formula has it: lr / (1 - beta1^t) and so on */
  float shrink;           /* adamw: 1 - lr weight_decay */
  float keep[2], take[2]; /* adam, adamw: both averages; adamax: [0], keep[1]; rmsprop: [0] */
  float bias2_sqrt;       /* adam, adamw: sqrt(1 - beta2^t) */
} clv_step_args;

/* n values of a block, the first of them the one with number `at`. */
typedef struct clv_extent {
  size_t at, n;
} clv_extent;

enum { CLV_KERNELS_ABI = 12 };

typedef struct clv_backend clv_backend;

/* Told how much of a copy is there: its first `bytes`. Nothing may wait in `here`. */
typedef struct clv_copy_progress {
  void (*here)(void *user, size_t bytes); /* NULL: nobody is told */
  void *user;
} clv_copy_progress;

/* Memory that the host cannot touch: that of a device. All but get, room and finish only ask for
 * what is to be done, and may return before it is; it is done in the order in which one thread has
 * asked for it, its kernels, additions, reorders and steps included. Another thread may ask for
 * something with the same memory once the first has called finish. */
typedef struct clv_backend_memory {
  /* Zeroed, aligned as any kernel may want it; of 0 bytes too. CLV_EXHAUSTED: there is no more. */
  clv_code (*take)(const clv_backend *b, size_t bytes, void **ret, clv_err *err);
  void (*give)(const clv_backend *b, void *p); /* takes NULL; what was asked for before is done */
  /* `host` may be written again when it returns. */
  clv_code (*put)(const clv_backend *b, void *dst, const void *host, size_t bytes, clv_err *err);
  /* Waits until the bytes are there. They come in pieces, in order, and `to` is told of each. */
  clv_code (*get)(const clv_backend *b, void *host, const void *src, size_t bytes,
                  const clv_copy_progress *to, clv_err *err);
  clv_code (*copy)(const clv_backend *b, void *dst, const void *src, size_t bytes, clv_err *err);
  /* From the memory of `from`, another backend of the same kind, whichever its device, without the
   * host's. It is done behind what `from` was asked for before, and before what it is asked for
   * from now on. No thread uses `from` meanwhile. NULL: it cannot. */
  clv_code (*copy_from)(const clv_backend *b, void *dst, const clv_backend *from, const void *src,
                        size_t bytes, clv_err *err);
  clv_code (*fill)(const clv_backend *b, void *dst, int byte, size_t bytes, clv_err *err);
  /* Waits until all that this thread has asked for is done. The first failure of it since the last
   * finish: of a kernel that refused its values (a row number, a class label) with the text and the
   * element that it gives on the host, and its args->key.layer in *ret_layer; else that is -1. */
  clv_code (*finish)(const clv_backend *b, int64_t *ret_layer, clv_err *err);
  /* Bytes of the device, and those of them that are free. */
  clv_code (*room)(const clv_backend *b, size_t *ret_free, size_t *ret_total, clv_err *err);
} clv_backend_memory;

/* What one thread asks for between begin and end is not done, but kept: each `again` asks for all
 * of it at once, with the pointers and numbers that it was asked for with. In between nothing is
 * taken, given, put, got or waited for: that makes `end` fail. Before it is recorded it has been
 * asked for in the ordinary way, so that libraries have made what they make at their first use. */
typedef struct clv_backend_recording {
  clv_code (*begin)(const clv_backend *b, clv_err *err);
  /* Ends it in any case. *ret_bytes: what it took of the device. */
  clv_code (*end)(const clv_backend *b, void **ret, size_t *ret_bytes, clv_err *err);
  clv_code (*again)(const clv_backend *b, void *record, clv_err *err);
  void (*free)(const clv_backend *b, void *record);
} clv_backend_recording;

/* What the device takes by its own clock for what a thread asks for, from begin to the last get or
 * finish before end. Neither waits, or is called while work is recorded. */
typedef struct clv_backend_timer {
  void (*begin)(const clv_backend *b);
  bool (*end)(const clv_backend *b, double *ret_ms); /* false: it cannot say */
} clv_backend_timer;

/* One device. Functions that take no backend are alike for all devices of its kind. With `memory`,
 * every pointer to values that a kernel or a function here is given is to such memory, and what
 * fails may say so at finish alone. */
struct clv_backend {
  uint32_t abi;                     /* CLV_KERNELS_ABI */
  uint32_t size;                    /* sizeof(clv_backend) */
  const char *name;                 /* of the kind of device: "cpu", "cuda" */
  const char *device;               /* "cpu", "cuda:0" */
  void *own;                        /* the backend's */
  const clv_backend_memory *memory; /* NULL: host memory */

  /* One kernel for one node, owned by the caller (kernel->free). CLV_UNIMPLEMENTED: use ref's,
   * which a backend with memory of its own cannot. */
  clv_code (*prepare)(const clv_backend *b, const clv_node_desc *desc, clv_kernel **ret,
                      clv_err *err);

  /* Whether prepare has a kernel for the op, for some shapes at least. */
  bool (*has)(clv_op op);

  /* CLV_TAIL_RELU_FORWARD where prepare may have a kernel with it, else 0. NULL: never. */
  unsigned (*tails)(clv_op op);

  /* Whether prepare may have one kernel for a chain of these ops. NULL: never. */
  bool (*chains)(const clv_chain_link *links, int n);

  /* Copy a rank-4 activation of `shape` between channel blocks, or between f32 and bf16 in the same
   * block; the padding of dst is zeroed. To and from channels last the type may change as well. */
  clv_code (*reorder)(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                      const void *src, int src_block, void *dst, int dst_block, clv_err *err);

  /* dst += src over n values, element by element. CLV_BF16: only where there is channels last. */
  void (*add)(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n);

  /* ret[i] (host memory): sum of squares of run i of x, accumulated in double in index order, 8
   * lanes wide: lane i sums elements i, i+8, ...; the lanes are added pairwise (0+4, 1+5, ...) then
   * (0+2, 1+3), (0+1). NaN and infinity propagate. A backend with memory waits, and may add in
   * another order that is fixed by n. */
  clv_code (*sum_squares)(const clv_backend *b, const float *x, const clv_extent *runs,
                          size_t n_runs, double *ret, clv_err *err);

  /* One step of an optimiser over the runs: p from g, the moments (those of the kind's row that the
   * settings have, the others NULL) updated. To the bit what clv_step_... of kernels/steps give. */
  void (*step)(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
               float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *runs, size_t n_runs);

  /* Number of compute threads of kernels executed from the calling thread from now on. */
  void (*set_threads)(int n);

  /* "avx512_core", and "oneDNN 2.6.3, OpenBLAS 0.3.21 SkylakeX" for Hello; they live as long as
   * b. */
  const char *(*isa)(const clv_backend *b);
  const char *(*libraries)(const clv_backend *b);

  /* CLV_OK where conv2d and linear compute in bf16 when asked to; else the error says why not.
   * NULL: never. */
  clv_code (*check_bf16)(const clv_backend *b, clv_err *err);
  /* The same of factors in TF32. */
  clv_code (*check_tf32)(const clv_backend *b, clv_err *err);

  /* Reorders the backend has executed in this process (kernel-internal ones and `reorder`). */
  uint64_t (*reorder_count)(void);

  /* Frees what is kept for kernels that may be prepared again; those at work keep what they have.
   * Any thread, now and then. NULL: nothing is kept. */
  void (*trim)(const clv_backend *b);

  /* Another backend of the same device, whose work is in no order with b's: one for each module, as
   * a backend with memory is used by one thread at a time. It is counted: hold adds an owner, and
   * with the last drop it ends. Memory that was taken from it is given back before. NULL, all
   * three: one backend serves all threads. */
  clv_code (*branch)(const clv_backend *b, const clv_backend **ret, clv_err *err);
  size_t branch_bytes; /* of the host's memory, page-locked, that each keeps until it ends */
  void (*hold)(const clv_backend *b);
  void (*drop)(const clv_backend *b);

  /* NULL: nothing is recorded. Who opened the backend may say so; its branches take after it. */
  const clv_backend_recording *recording;

  /* NULL: time is measured by the host's clock. */
  const clv_backend_timer *timer;
};

/* The backend that a module on b computes with; it is let go of with clv_backend_drop. */
clv_code clv_backend_branch(const clv_backend *b, const clv_backend **ret,
                            clv_err *err) CLV_USE_RESULT;
const clv_backend *clv_backend_hold(const clv_backend *b);
void clv_backend_drop(const clv_backend *b); /* takes NULL */

/* b->check_tf32, which processors do not have. CLV_PRECONDITION: what the key needs. */
clv_code clv_backend_check_tf32(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* The backend's memory, or the host's where it has none of its own: there a finish has nothing to
 * wait for, and what is taken may hold anything. */
clv_code clv_backend_take(const clv_backend *b, size_t bytes, void *ret_pp,
                          clv_err *err) CLV_USE_RESULT;
void clv_backend_give(const clv_backend *b, void *p); /* takes NULL; b is not NULL where p is not */
clv_code clv_backend_put(const clv_backend *b, void *dst, const void *host, size_t bytes,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_get(const clv_backend *b, void *host, const void *src, size_t bytes,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_get_in_pieces(const clv_backend *b, void *host, const void *src, size_t bytes,
                                   const clv_copy_progress *to, clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_copy(const clv_backend *b, void *dst, const void *src, size_t bytes,
                          clv_err *err) CLV_USE_RESULT;
/* Whether b copies from the memory of `from` without the host's; from may be b. */
bool clv_backend_reaches(const clv_backend *b, const clv_backend *from);
/* From the memory of `from` that b reaches, or of the host, which is NULL. */
clv_code clv_backend_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                               const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_fill(const clv_backend *b, void *dst, int byte, size_t bytes,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_finish(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* ---- what is asked for again and again (recorder.c) ------------------------------------------ */

/* Work on a device that repeats is recorded when it is asked for the second time on the same
 * memory, and asked for as a whole from then on. What differs from time to time therefore lies in
 * memory, put there before. What cannot be recorded is asked for piece by piece as ever; that is
 * counted, and no error. The least recently used of CLV_RECORDS gives way: with more kinds of work
 * than that in turn, none is recorded. What is one launch is better asked for alone, such as the
 * step of an optimiser, whose numbers would have to be put first.
 *
 * Threads: one at a time; clv_recorder_count any. */
typedef struct clv_recorder clv_recorder;

enum { CLV_RECORDS = 32, CLV_RECORD_PLACES = 32 };

/* What work is the same as before: all memory that it is asked for with, and whatever else it
 * depends on beside its owner. */
typedef struct clv_record_key {
  const void *of; /* the owner */
  uintptr_t what;
  const void *places[CLV_RECORD_PLACES];
} clv_record_key;

typedef struct clv_record_counts {
  uint64_t made, replays;
  uint64_t refused;  /* kinds of work that could not be recorded */
  uint64_t in_parts; /* asked for piece by piece, since or before they were recorded */
  uint64_t bytes;    /* of those that are kept */
} clv_record_counts;

/* Who pays for what is kept, in the bytes of clv_record_counts. What charge refuses is asked for in
 * parts, and counted as refused. By the thread that runs or frees the recorder. */
typedef struct clv_record_account {
  void *user;
  clv_code (*charge)(void *user, size_t bytes, clv_err *err);
  void (*discharge)(void *user, size_t bytes);
} clv_record_account;

/* *ret: NULL where the backend records nothing. b outlives it. */
clv_code clv_recorder_new(const clv_backend *b, clv_recorder **ret, clv_err *err) CLV_USE_RESULT;
/* Before it is used; copied, and r may be NULL. Without one nobody pays. */
void clv_recorder_charge(clv_recorder *r, const clv_record_account *account);
void clv_recorder_free(clv_recorder *r); /* takes NULL */
void clv_recorder_forget(clv_recorder *r,
                         const void *owner); /* takes NULL; before the owner goes */
void clv_recorder_count(const clv_recorder *r, clv_record_counts *ret); /* takes NULL */

/* Does what `ask` asks for; where it has been recorded, without calling it. */
clv_code clv_recorder_run(clv_recorder *r, const clv_record_key *key,
                          clv_code (*ask)(void *user, clv_err *err), void *user,
                          clv_err *err) CLV_USE_RESULT;

static inline const char *clv_backend_isa(const clv_backend *b) { return b->isa(b); }
static inline const char *clv_backend_libraries(const clv_backend *b) { return b->libraries(b); }

/* Devices of a process beside its processor, the one first that is meant where none is named. */
typedef struct clv_backends {
  const clv_backend *const *list;
  size_t n;
} clv_backends;

/* The definition of every op, in plain loops. Prepares every op in f32 and f64. */
const clv_backend *clv_backend_ref(void);

/* oneDNN and OpenBLAS; f32. */
const clv_backend *clv_backend_cpu(void);

#ifdef __cplusplus
}
#endif
#endif
