/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels: the closed list of ops, their attributes, and the table of functions a backend fills.
 *
 * The graph's plan (common/model/graph) calls a backend's `prepare` once for each node. It passes
 * shapes, attributes and the layouts on offer, and gets a kernel whose layouts, scratch and saved
 * state are chosen. The plan then calls the kernel's functions, which allocate nothing. The backend
 * `ref` prepares every op in f32 and f64 and is their definition. Other backends answer
 * CLV_UNIMPLEMENTED for what they lack, and the plan then uses ref's kernel.
 *
 * Determinism: the layout in which a kernel computes, and so the order of its sums, is a function
 * of (op, attributes, shapes, dtype, threads, instruction set) only -- never of its neighbours. A
 * kernel that gives the same bits in any layout (relu, add, max pooling, dropout...) may take the
 * layout that is offered. Any other kernel names the layout it needs, and the plan inserts a
 * reorder. For this reason a network cut between any two layers computes the same bits as the uncut
 * network.
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

/* Numbers of the ops. They are sent in LoadModule; kernels/ops.def lists them. */
typedef enum clv_op {
  CLV_OP_INPUT = 0, /* an external input; no kernel */
#define OP(number, NAME, name) CLV_OP_##NAME = number,
#include "kernels/ops.def"
#undef OP
  CLV_OP_COUNT
} clv_op;

/* Weights of a loss's classes, one for each class; n 0: no weights, all classes count alike. */
enum { CLV_MAX_CLASS_WEIGHTS = 128 };
typedef struct clv_class_weights {
  int n;
  float of[CLV_MAX_CLASS_WEIGHTS];
} clv_class_weights;

/* Every attribute that an op can have. A field has the name of its attribute. The rows in
 * kernels/ops say which op uses which, with default and range; common/model/graph/attrs.c documents
 * each attribute. Pairs are (height, width). */
typedef struct clv_attrs {
  int64_t out;
  int64_t kernel[2], stride[2], pad[2], dilation[2], output_pad[2];
  int64_t groups;
  bool bias;
  double p;
  double eps, momentum;
  clv_shape shape; /* target shape without the batch; rank 0: not given */
  int64_t rows;
  int64_t layers;
  /* index of a dimension; a negative dim, start or stop counts from the end */
  int64_t dim;
  int64_t start, stop; /* of slice: first index, and the first index after the range */
  double factor;
  /* of wait: milliseconds that forward, the input gradient and the weight gradient take */
  int64_t forward_ms, input_ms, weight_ms;
  /* initial weights as torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") draws
   * them */
  bool kaiming_normal;
  /* of attention: heads of queries, and of keys and values; kv_heads 0: equal to heads */
  int64_t heads, kv_heads;
  bool causal;
  /* of permute: for each dimension of the output after the batch, the input's dimension */
  clv_shape order;
  double base; /* of rotary: base of the angles t / base^(2 d / width), which `factor` divides */
  /* of rotary: `original` is the number of steps for which the model was first trained; 0: all
   * angles are divided by `factor`. Otherwise an angle that makes high_freq_factor turns or more
   * within these steps is not divided; one that makes low_freq_factor or fewer is divided. */
  int64_t original;
  double low_freq_factor, high_freq_factor;
  /* of embedding: column of the input that is read, and column subtracted from it; -1: none */
  int64_t column, minus;
  int64_t padding_idx; /* of embedding: row that gets no gradient; -1: none */
  int64_t offset;      /* of positions: row of the weight that is added to position 0 */
  double init_std; /* standard deviation of the initial weights; 0: the op's own initialisation */
  bool transposed; /* of linear: the weight is stored as [F, out], not [out, F] */
  bool bare;       /* the parameter has the node's name, without a suffix */
  int64_t ignore_index; /* a position with this label does not count in the loss */
  double label_smoothing;
  clv_class_weights class_weights;
  bool init_zero; /* of linear: weight and bias are initialised with 0 */
  int64_t packed; /* positions of the longest packed sequence; 0: sequences are not packed */
  /* for the op `last`: takes the first position of each packed sequence, not the last */
  bool first;
  /* of clamp: least and largest output; a value at the end of the attribute's range: no bound */
  double min, max;
  double min_val, max_val; /* of hardtanh: least and largest output */
  double alpha;            /* of elu: factor of e^x - 1 */
  /* of softplus: factor of the input; of smooth_l1 and huber: error up to which the loss is a
   * square */
  double beta;
  /* of softplus: value of beta x above which y is x; of where: value of the condition, input 0,
   * above which y is input 1 */
  double threshold;
  double exponent;        /* of pow, and of focal */
  double init;            /* of prelu: initial weight */
  int64_t num_parameters; /* of prelu: 1, or the number of channels */
  /* extents of the output: output_size of adaptive pools, size of upsampling; 0: not given */
  int64_t output_size[2], size[2];
  /* of upsampling: extents of the output divided by those of the input; 0: `size` gives them */
  double scale_factor;
  bool align_corners; /* of upsampling: the centres of the corner values coincide */
  bool affine;        /* of instancenorm: the op has a weight and a bias for each channel */
  int64_t correction; /* of var: the divisor is the extent less this number */
  int64_t shifts;     /* of roll: number of positions by which values move along the dimension */
} clv_attrs;

/* Most inputs and parameters of an op, and most layers of lstm and gru. */
enum { CLV_MAX_IN = 8, CLV_MAX_PARAMS = 32, CLV_LSTM_LAYERS = 8 };

/* Value of the attribute `stop` of slice that means the end of the dimension. */
enum { CLV_TO_END = INT32_MAX };

/* Parameter slots that several ops have under the same name. The rows in kernels/ops say which op
 * has which, with their shapes. */
enum {
  CLV_SLOT_WEIGHT = 0,
  CLV_SLOT_BIAS = 1,
  CLV_SLOT_MEAN = 2,
  CLV_SLOT_VAR = 3,
  CLV_SLOT_TRACKED = 4
};

/* The layout of a tensor is one number, its channel block: 1 is row-major; 8 or 16 is oneDNN's
 * nChw8c or nChw16c, for tensors of rank 4, whose channels are padded with zeros to a multiple of
 * the block. Flags (see below) may be added to the block. */
/* Returns the number of elements of a tensor in `layout`, padding included. */
size_t clv_layout_numel(const clv_shape *shape, int layout);

/* Layout flag: values are bf16, the upper halves of f32, rounded to nearest even. Only plans that
 * compute in bf16 use the flag, only for tensors of rank 4, never for buffers of the plan's caller.
 */
enum { CLV_LAYOUT_BF16 = 0x100 };

/* Layout flag, set together with block 1: channels last, [N, H, W, C]. */
enum { CLV_LAYOUT_CHANNELS_LAST = 0x200 };

static inline int clv_layout_block(int layout) {
  return layout & ~(CLV_LAYOUT_BF16 | CLV_LAYOUT_CHANNELS_LAST);
}
static inline int clv_layout_f32(int layout) { return layout & ~CLV_LAYOUT_BF16; }
static inline bool clv_layout_is_channels_last(int layout) {
  return layout & CLV_LAYOUT_CHANNELS_LAST;
}
static inline bool clv_layout_is_bf16(int layout) { return layout & CLV_LAYOUT_BF16; }

/* Returns the index of the dimension attrs->dim, which may be negative, of `in`; -1 if `in` has no
 * such dimension. */
int clv_axis_index(const clv_attrs *attrs, const clv_shape *in);

/* Returns the first index of the slice that attrs describes, along an axis of `extent` values.
 * *ret_stop: index after the slice's last value. The caller checks both against the extent. */
int64_t clv_slice_start(const clv_attrs *attrs, int64_t extent, int64_t *ret_stop);

/* One op of a chain of ops. op_argument: p of a dropout, or factor of a scale. */
typedef struct clv_chain_link {
  clv_op op;
  double op_argument;
} clv_chain_link;

enum { CLV_MAX_LINKS = 4 }; /* most links of a chain after its first op */

/* Description of one node, from which a backend prepares a kernel. */
typedef struct clv_node_desc {
  clv_op op;
  clv_attrs attrs;
  clv_dtype dtype; /* type of the arithmetic: f32, or f64 (ref only) */
  int n_in;
  clv_shape in[CLV_MAX_IN];
  clv_dtype in_dtype[CLV_MAX_IN]; /* equal to dtype, except i64 class labels and row numbers */
  int offered_block[CLV_MAX_IN];  /* layout in which each input is offered */
  clv_shape out;
  int n_params;
  clv_shape param[CLV_MAX_PARAMS];
  /* dropout drops; batchnorm uses the batch's statistics and updates the running statistics */
  bool training;
  bool need_dx[CLV_MAX_IN]; /* the caller needs the gradient with respect to this input */
  bool need_dw;             /* the caller needs the gradients of the parameters */
  int threads;
  unsigned tail; /* CLV_TAIL_*: following ops that the same kernel computes */
  /* conv2d, linear, attention and lstm compute with bf16 factors and f32 sums; conv2d rounds its
   * output to bf16. A device may do so with other ops. Which values a kernel rounds does not depend
   * on the neighbours of its node: wanted_out and wanted_din only say which layouts the neighbours
   * accept. */
  bool bf16;
  /* A chain of element-wise ops in one kernel: `op` first, then each op of `link` applied to the
   * output of the op before. At most one op is a sum, which adds in[1], and at most one a dropout,
   * which draws numbers with the key of the arguments. The result has the bits of separate kernels.
   * The plan offers a backend only the chains that its `chains` accepts. */
  int n_links; /* number of ops in `link`; 0: the node is one op */
  clv_chain_link link[CLV_MAX_LINKS];
  bool tf32;        /* the kernel may round factors of products and convolutions to TF32 */
  bool bf16_weight; /* of linear: its weight is bf16 and needs no gradient */
  /* layout in which all kernels that read the output compute; 0: their layouts differ */
  int wanted_out;
  /* for each input, the layout in which the kernel that made the input reads its gradient; 0: the
   * gradients of several readers are added up first */
  int wanted_din[CLV_MAX_IN];
} clv_node_desc;

/* Geometry of a convolution or pooling over images [N, C, H, W]. An op over [N, C, L] has images of
 * one row. For a transposed convolution it is the geometry of the convolution whose input gradient
 * the op computes: the op's input is y, its output x. */
typedef struct clv_window {
  int64_t n, c, h, w; /* batch, channels and image of the input */
  int64_t k, oh, ow;  /* channels and image of the output */
  int64_t kernel[2], stride[2], pad[2];
  int64_t dilation[2]; /* distance between taps, in values */
} clv_window;
bool clv_is_conv_transpose(clv_op op);
clv_window clv_window_of(const clv_node_desc *d);

/* Resampling of the images of [N, C, H, W], or of the rows of [N, C, L], which are images of one
 * row. An output is, along each axis, a weighted sum of neighbouring inputs. */
typedef enum clv_resample_kind {
  CLV_RESAMPLE_MEAN,    /* mean of equal parts of the image: adaptive average pooling */
  CLV_RESAMPLE_NEAREST, /* the nearest value */
  CLV_RESAMPLE_LINEAR,  /* mean of the two neighbours, weighted by their distances */
} clv_resample_kind;
typedef struct clv_resample {
  clv_resample_kind kind;
  bool align_corners;
  int64_t n, c, in[2], out[2]; /* batch, channels, images of input and output */
  /* distance between the positions of neighbouring outputs, measured in inputs */
  double scale[2];
} clv_resample;
clv_resample clv_resample_of(clv_op op, const clv_attrs *attrs, const clv_shape *in,
                             const clv_shape *out);

/* Marks functions that are compiled for a device, too. */
#ifdef __CUDACC__
#define CLV_DEVICE __host__ __device__
#else
#define CLV_DEVICE
#endif

/* The inputs of one output along an axis: first .. first + n - 1. The first has weight w[0], any
 * other w[1]. */
typedef struct clv_taps {
  int64_t first, n;
  double w[2];
} clv_taps;

/* Returns the inputs of output o along an axis. LINEAR uses the formula of torch's
 * area_pixel_compute_source_index; NEAREST rounds the position in f32, as torch does for each type.
 */
static CLV_DEVICE inline clv_taps clv_taps_of(const clv_resample *r, int axis, int64_t o) {
  int64_t in = r->in[axis], out = r->out[axis], first, end;
  clv_taps t = {0, 1, {1, 0}};
  if (r->kind == CLV_RESAMPLE_MEAN) {
    first = o * in / out;
    end = ((o + 1) * in + out - 1) / out;
    t.first = first;
    t.n = end - first;
    t.w[0] = t.w[1] = 1 / (double)t.n;
    return t;
  }
  if (r->kind == CLV_RESAMPLE_NEAREST) {
    first = (int64_t)((float)o * (float)r->scale[axis]);
    t.first = first < in - 1 ? first : in - 1;
    return t;
  }
  double at =
      r->align_corners ? r->scale[axis] * (double)o : r->scale[axis] * ((double)o + 0.5) - 0.5;
  at = at > 0 ? at : 0;
  first = (int64_t)at;
  t.first = first < in - 1 ? first : in - 1;
  if (t.first == in - 1) return t;
  t.n = 2;
  t.w[1] = at - (double)t.first;
  t.w[0] = 1 - t.w[1];
  return t;
}

/* Returns the weight of input i in an output with these taps; 0: the output does not read input i.
 */
static CLV_DEVICE inline double clv_tap_weight(const clv_taps *t, int64_t i) {
  return i < t->first || i >= t->first + t->n ? 0 : t->w[i > t->first];
}

/* Returns the first output that may read input i along an axis. *ret_end: index after the last
 * output that may read it. An output in between may read input i with weight 0. */
static CLV_DEVICE inline int64_t clv_first_reading_output(const clv_resample *r, int axis,
                                                          int64_t i, int64_t *ret_end) {
  int64_t in = r->in[axis], out = r->out[axis], begin, end;
  double scale = r->scale[axis];
  *ret_end = out;
  if (r->kind == CLV_RESAMPLE_MEAN) {
    *ret_end = ((i + 1) * out - 1) / in + 1;
    return i * out / in;
  }
  if (!(scale > 0)) return 0;
  begin = (int64_t)(((double)i - 1.5) / scale) - 2;
  end = (int64_t)(((double)i + 1.5) / scale) + 3;
  if (i < in - 1 && end < out) *ret_end = end;
  return i == 0 || begin < 0 ? 0 : begin < out ? begin : out;
}

/* The extents of attention: queries [n, t, heads * width], keys and values [n, s, kv_heads *
 * width]. Head h of the queries uses head h / group of keys and values. */
typedef struct clv_heads {
  int64_t n, t, s, heads, kv_heads, width, group;
  double scale; /* factor of the scores: 1 / sqrt(width) */
} clv_heads;
clv_heads clv_heads_of(const clv_node_desc *d);

/* Returns the number of rows before sequence n. Packed sequences are stored one after another: [T,
 * ...] in place of [N, S, ...], with lengths [N]. Rows after the last sequence belong to no
 * sequence. */
static inline int64_t clv_packed_rows_before(const int64_t *lengths, int64_t n) {
  int64_t rows = 0;
  for (int64_t i = 0; i < n; i++) rows += lengths[i];
  return rows;
}

/* Extents of matmul: `batch` products of [m, k] by [k, n]. */
typedef struct clv_matmul {
  int64_t batch, m, k, n;
} clv_matmul;
clv_matmul clv_matmul_of(const clv_node_desc *d);

/* The n row numbers of an embedding, per_sample of each sample. Row number i is value i * width +
 * column of the input, minus value i * width + minus unless `minus` is -1. rows: number of
 * rows of the weight. Backward skips positions whose row is `padding`; -1: it skips none. */
typedef struct clv_row_numbers {
  size_t n, per_sample, width;
  int64_t rows, column, minus, padding;
} clv_row_numbers;
clv_row_numbers clv_row_numbers_of(const clv_node_desc *d);
static inline int64_t clv_row_number_at(const clv_row_numbers *l, const int64_t *values, size_t i) {
  const int64_t *at = values + i * l->width;
  int64_t row = at[l->column];
  if (l->minus >= 0 && __builtin_sub_overflow(row, at[l->minus], &row)) return INT64_MIN;
  return row;
}
/* Fails with CLV_INVALID for the first row number outside 0..rows-1. The text names its sample and
 * position; the error's element is the number. */
clv_code clv_check_rows(const clv_row_numbers *l, const int64_t *values,
                        clv_err *err) CLV_USE_RESULT;

/* Returns the number of keys that query i of a sample attends to: only keys before `length`, and
 * with `causal` only keys up to i. */
static inline int64_t clv_count_visible_keys(const clv_attrs *attrs, int64_t i, int64_t length) {
  return attrs->causal && i + 1 < length ? i + 1 : length;
}

/* clv_permuted_strides computes the strides of a permuted output (order is clv_attrs.order): the
 * distance in the input, in values, between neighbours along each dimension of the output.
 * clv_permuted_index returns the index in the input of the output's value i. */
void clv_permuted_strides(const clv_shape *in, const clv_shape *order, size_t ret[CLV_MAX_RANK]);
static inline size_t clv_permuted_index(const clv_shape *out, const size_t *step, size_t i) {
  size_t at = 0;
  for (int d = out->rank; d-- > 0; i /= (size_t)out->dim[d])
    at += i % (size_t)out->dim[d] * step[d];
  return at;
}

/* Two inputs broadcast to the output's shape. Dimension i has n[i] values, step[j][i] values apart
 * in input j; step 0: the input has one value there, used for all. Dimension 0 is the batch.
 * Neighbouring dimensions with the same steps are merged, and other dimensions of one value are
 * left out. */
typedef struct clv_broadcast {
  int rank;
  size_t n[CLV_MAX_RANK], step[2][CLV_MAX_RANK];
} clv_broadcast;
clv_broadcast clv_broadcast_of(const clv_node_desc *d);
/* As clv_broadcast_of, but for tensors of rank 4 with channels last: dimensions n, h, w, c. */
clv_broadcast clv_broadcast_channels_last(const clv_node_desc *d);
/* True if an op of several inputs has an input whose shape differs from the output's. */
bool clv_has_broadcast_input(const clv_node_desc *d);

/* Extents of a tensor seen as [outer, extent, inner], with the dimension attrs->dim in the middle.
 */
typedef struct clv_axis {
  size_t outer, extent, inner;
} clv_axis;
clv_axis clv_axis_extents(const clv_attrs *attrs, const clv_shape *shape);

/* A tail is a following add or relu that a kernel computes as well. With CLV_TAIL_RELU the output
 * is relu(op(in[0])), with both tails relu(op(in[0]) + in[1]), and n_in is 2. The result has the
 * bits of separate kernels. A backend without such a kernel answers CLV_UNIMPLEMENTED, and the plan
 * prepares the ops separately. The plan requests tails for batchnorm, and for ops that the
 * backend's `tails` accepts. With CLV_TAIL_RELU_FORWARD forward computes relu(op(in)), but backward
 * is that of op alone: it receives the gradient of op(in), and saves no output. */
enum { CLV_TAIL_ADD = 1u << 0, CLV_TAIL_RELU = 1u << 1, CLV_TAIL_RELU_FORWARD = 1u << 2 };

/* Values that a kernel's backward functions read in addition to dout. The plan keeps these values
 * until backward has read them. */
enum {
  CLV_SAVE_IN0 = 1u << 0,
  CLV_SAVE_IN1 = 1u << 1,
  CLV_SAVE_OUT = 1u << 2,
  CLV_SAVE_IN2 = 1u << 3,
  CLV_SAVE_IN3 = 1u << 4
};

/* Returns the flag CLV_SAVE_IN* of input i; 0 if input i has no such flag. */
static inline unsigned clv_save_flag_of_input(int i) {
  return i < 2 ? 1u << i : i < 4 ? (unsigned)CLV_SAVE_IN2 << (i - 2) : 0u;
}

/* The part of the key of random numbers that differs between executions of one kernel. */
typedef struct clv_rng_position {
  uint64_t step;
  uint32_t micro_batch, zero; /* zero: padding, always 0 */
} clv_rng_position;

/* Arguments of one execution. Activations are in the kernel's layouts; parameters and their
 * gradients are always row-major. Unused pointers are NULL. */
typedef struct clv_kernel_args {
  const void *in[CLV_MAX_IN];
  void *out;
  /* parameters; batchnorm's forward in training writes slots 2 and above */
  void *param[CLV_MAX_PARAMS];
  void *cache;          /* buffer of cache_bytes, filled by refresh; NULL in backward_weight */
  unsigned refresh_for; /* CLV_FOR_*: parts of the cache that refresh must fill */
  /* buffer of saved_bytes, written by forward, read by backward; backward_input may overwrite it
   * with what backward_weight reads (weight_part_is_last) */
  void *saved;
  void *scratch; /* buffer of scratch_bytes; contents undefined before and after the call */
  const void *dout;
  void *din[CLV_MAX_IN]; /* gradients of the inputs, overwritten; NULL where need_dx is false */
  void *dparam[CLV_MAX_PARAMS]; /* gradients of the trainable slots; of batchnorm: slots 0 and 1 */
  bool accumulate;              /* the kernel adds to dparam instead of overwriting it */
  /* key of random numbers; key.layer is the layer's index << 4, plus 0 for the parameter slot */
  clv_rng_key key;
  /* Step and micro-batch of the key, in the backend's memory, for kernels with reads_rng_position.
   * NULL: `key` holds them. */
  const clv_rng_position *rng_position;
} clv_kernel_args;

/* Parts of clv_kernel_args.cache, the converted parameters: the part that forward reads, and the
 * part that backward_input reads. */
enum { CLV_FOR_FORWARD = 1u << 0, CLV_FOR_BACKWARD = 1u << 1 };

typedef struct clv_kernel clv_kernel;

struct clv_kernel {
  /* Optional. Fills `cache` with the parameters, converted to the format that the kernel reads. The
   * plan calls refresh before the first execution after the parameters changed, or before every
   * execution. */
  clv_code (*refresh)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  clv_code (*forward)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* Computes din from dout. NULL where no input can need a gradient. */
  clv_code (*backward_input)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* Computes dparam from dout, or from `saved` if weight_part_is_last. NULL for ops without
   * parameters, and with `fused_grads`, because backward_input then writes dparam too. */
  clv_code (*backward_weight)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  /* Optional. Recomputes out from in[0] and saved, with forward's bits, and changes nothing else. A
   * kernel that has it makes one pass over the values, so the plan does not keep the output until
   * backward. */
  clv_code (*recompute)(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
  void (*free)(clv_kernel *k); /* frees k itself */

  int in_block[CLV_MAX_IN]; /* layouts of the inputs */
  int out_block;            /* layout of the output */
  /* layouts of the gradients; 0: in_block and out_block */
  int din_block[CLV_MAX_IN], dout_block;
  unsigned saved_flags; /* CLV_SAVE_*: values that backward reads */
  /* the CLV_SAVE_* among `saved_flags` that only backward_weight reads */
  unsigned saved_flags_for_dw;
  size_t saved_bytes, scratch_bytes, cache_bytes;
  bool fused_grads;
  /* backward_weight reads from `saved` what backward_input has written there, and does not read
   * dout. So a plan runs backward_input first. false: either may run first. */
  bool weight_part_is_last;
  bool in_place; /* out may be the same memory as in[0] (same layout and size) */
  /* bit i: din[i] may be the same memory as dout, for one i at a time */
  unsigned din_in_place_mask;
  /* the kernel draws random numbers at args->rng_position, unless that is NULL */
  bool reads_rng_position;
  /* number of reorders that a library does in one call of refresh, forward and backward */
  int reorders_refresh, reorders_forward, reorders_backward;
  const char *impl; /* static text for `plan --verbose`: "jit:avx512_core", "ref" */
};

/* The numbers of one optimiser step. kernels/steps computes each number from settings, learning
 * rate and step, in double, and rounds it once. A moving average becomes decay * old +
 * one_minus_decay * new. Fields that the formula of `kind` does not read are 0. */
typedef struct clv_step_args {
  clv_optim_kind kind;
  bool is_first_step; /* sgd: the momentum buffer is still empty, so the gradient is copied to it */
  bool nesterov;      /* sgd: Nesterov momentum */
  float grad_scale;   /* factor applied to every gradient first */
  float weight_decay, momentum, eps;
  /* learning rate with the optimiser's correction, such as lr / (1 - beta1^t) of adam */
  float step_size;
  float weight_factor; /* adamw: 1 - lr weight_decay, factor of the parameter */
  /* factors of the moving averages. Read by adam and adamw: all; by adamax: decay[0], decay[1],
   * one_minus_decay[0]; by rmsprop: entry 0 of both */
  float decay[2], one_minus_decay[2];
  float bias2_sqrt; /* sqrt(1 - beta2^t), for adam and adamw */
} clv_step_args;

/* A range of a block of values: n values from index `at` on. */
typedef struct clv_extent {
  size_t at, n;
} clv_extent;

enum { CLV_KERNELS_ABI = 15 };

typedef struct clv_backend clv_backend;

/* Progress reports of a copy. While it copies, the backend calls `report` with the number of
 * leading bytes that have arrived. The callback must not block. */
typedef struct clv_copy_progress {
  void (*report)(void *user, size_t bytes); /* NULL: no reports */
  void *user;
} clv_copy_progress;

/* Memory of a device, which the host cannot access. All functions but get, get_free_bytes and
 * finish may return before the work is done. The work of one thread is done in the order of its
 * calls, including kernels, additions, reorders and steps. Another thread may use the same memory
 * once the first has called finish. */
typedef struct clv_backend_memory {
  /* Allocates zeroed memory, aligned for any kernel; 0 bytes are allowed. CLV_EXHAUSTED: not enough
   * memory. */
  clv_code (*allocate)(const clv_backend *b, size_t bytes, void **ret, clv_err *err);
  /* Frees p once the work issued before the call is done; p may be NULL. */
  void (*free)(const clv_backend *b, void *p);
  /* Copies from the host. The caller may overwrite `host` when put returns. */
  clv_code (*put)(const clv_backend *b, void *dst, const void *host, size_t bytes, clv_err *err);
  /* Copies to the host and waits until the bytes have arrived. They arrive in pieces, in order;
   * to->report is called after each piece. */
  clv_code (*get)(const clv_backend *b, void *host, const void *src, size_t bytes,
                  const clv_copy_progress *to, clv_err *err);
  /* Copies within the memory of b. */
  clv_code (*copy)(const clv_backend *b, void *dst, const void *src, size_t bytes, clv_err *err);
  /* Copies from the memory of `from`, another backend of the same kind on any device, without
   * passing through host memory. The copy is ordered after the work issued to `from` before the
   * call, and before work issued to it later. No other thread may use `from` during the call. NULL:
   * not supported. */
  clv_code (*copy_from)(const clv_backend *b, void *dst, const clv_backend *from, const void *src,
                        size_t bytes, clv_err *err);
  /* Sets each byte to `byte`. */
  clv_code (*fill)(const clv_backend *b, void *dst, int byte, size_t bytes, clv_err *err);
  /* Waits until all work issued by this thread is done. Returns the first failure since the last
   * finish. If a kernel refused its values (a row number, a class label), the error has the text
   * and element of the host's kernel, and *ret_layer is its args->key.layer; otherwise *ret_layer
   * is -1. */
  clv_code (*finish)(const clv_backend *b, int64_t *ret_layer, clv_err *err);
  /* Writes the free and the total bytes of the device's memory. */
  clv_code (*get_free_bytes)(const clv_backend *b, size_t *ret_free, size_t *ret_total,
                             clv_err *err);
} clv_backend_memory;

/* Recording (capture) of repeated work. Work that one thread issues between begin and end is
 * recorded, not done. Each `replay` issues all recorded work at once, with the recorded pointers
 * and numbers. During a recording nothing may be allocated, freed, copied from or to the host, or
 * waited for; such a call makes `end` fail. Before work is recorded it must have run once without
 * recording, because libraries set up their state at first use. */
typedef struct clv_backend_recording {
  clv_code (*begin)(const clv_backend *b, clv_err *err);
  /* Ends the recording, also if the call fails. *ret_bytes: device memory that the record occupies.
   */
  clv_code (*end)(const clv_backend *b, void **ret, size_t *ret_bytes, clv_err *err);
  clv_code (*replay)(const clv_backend *b, void *record, clv_err *err);
  void (*free)(const clv_backend *b, void *record);
} clv_backend_recording;

/* Measures a thread's work with the device's clock: the time from begin to the last get or finish
 * before end. Neither function waits. Neither may be called during a recording. */
typedef struct clv_backend_timer {
  void (*begin)(const clv_backend *b);
  bool (*end)(const clv_backend *b, double *ret_ms); /* false: the time is unknown */
} clv_backend_timer;

/* A backend for one device. Functions without a backend parameter are the same for all devices of
 * its kind. With `memory`, every pointer to values that is passed to a kernel or to a function here
 * points to device memory, and a failure may be reported only at finish. */
struct clv_backend {
  uint32_t abi;                     /* CLV_KERNELS_ABI */
  uint32_t size;                    /* sizeof(clv_backend) */
  const char *name;                 /* kind of device: "cpu", "cuda" */
  const char *device;               /* "cpu", "cuda:0" */
  void *private_data;               /* data of the backend's own functions */
  const clv_backend_memory *memory; /* NULL: the backend computes in host memory */

  /* Makes the kernel of one node, owned by the caller (kernel->free). CLV_UNIMPLEMENTED: use ref's
   * kernel instead, which is impossible for a backend with memory of its own. */
  clv_code (*prepare)(const clv_backend *b, const clv_node_desc *desc, clv_kernel **ret,
                      clv_err *err);

  /* True if prepare has a kernel for the op, at least for some shapes. */
  bool (*has)(clv_op op);

  /* Returns CLV_TAIL_RELU_FORWARD if prepare may have a kernel with this tail, else 0. NULL: always
   * 0. */
  unsigned (*tails)(clv_op op);

  /* True if prepare may have one kernel for a chain of these ops. NULL: always false. */
  bool (*chains)(const clv_chain_link *links, int n);

  /* Copies a rank-4 activation of `shape` between channel blocks, or between f32 and bf16 in the
   * same block; zeroes the padding of dst. A copy to or from channels last may also change the
   * type. */
  clv_code (*reorder)(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                      const void *src, int src_block, void *dst, int dst_block, clv_err *err);

  /* dst += src over n values, element by element. CLV_BF16 is supported only with channels last. */
  void (*add)(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n);

  /* ret[i] (host memory): sum of squares of the values of x in ranges[i], accumulated in double in
   * index order, 8 lanes wide: lane i sums elements i, i+8, ...; the lanes are added pairwise (0+4,
   * 1+5, ...) then (0+2, 1+3), (0+1). NaN and infinity propagate. A backend with memory waits for
   * the result, and may add in another order that is fixed by n. */
  clv_code (*sum_squares)(const clv_backend *b, const float *x, const clv_extent *ranges,
                          size_t n_ranges, double *ret, clv_err *err);

  /* Does one optimiser step over the values in `ranges`: updates p from g, and the moments (NULL:
   * the settings do not use that moment). The results have the bits of clv_step_... of
   * kernels/steps. */
  void (*step)(const clv_backend *b, const clv_step_args *a, float *p, const float *g,
               float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
               size_t n_ranges);

  /* Sets the number of compute threads for kernels that the calling thread executes from now on. */
  void (*set_threads)(int n);

  /* Instruction set ("avx512_core") and libraries ("oneDNN 2.6.3, OpenBLAS 0.3.21 SkylakeX, choices
   * 0c5e..."), sent in Hello; choices: the digest of the table that says which kernel is faster.
   * The texts are valid as long as b. */
  const char *(*isa)(const clv_backend *b);
  const char *(*libraries)(const clv_backend *b);

  /* CLV_OK if conv2d and linear can compute in bf16; otherwise the error says why not. NULL: they
   * cannot. */
  clv_code (*check_bf16)(const clv_backend *b, clv_err *err);
  /* As check_bf16, but for factors rounded to TF32. */
  clv_code (*check_tf32)(const clv_backend *b, clv_err *err);

  /* Number of reorders the backend has executed in this process (kernel-internal ones and
   * `reorder`). */
  uint64_t (*reorder_count)(void);

  /* Frees state that is cached for kernels prepared later; existing kernels keep theirs. Any thread
   * may call it at any time. NULL: nothing is cached. */
  void (*trim)(const clv_backend *b);

  /* branch makes another backend of the same device, whose work is not ordered with b's. Each
   * module needs its own backend, because a backend with memory is used by one thread at a time.
   * Backends are reference-counted: retain adds an owner, and the last release frees the backend.
   * The owner must give back all memory of the backend before. NULL (all three): one backend serves
   * all threads. */
  clv_code (*branch)(const clv_backend *b, const clv_backend **ret, clv_err *err);
  /* page-locked host memory, in bytes, that each branch holds until it is freed */
  size_t branch_bytes;
  void (*retain)(const clv_backend *b);
  void (*release)(const clv_backend *b);

  /* NULL: the backend cannot record. The function that opened the backend may set it; later
   * branches inherit it. */
  const clv_backend_recording *recording;

  /* NULL: time is measured with the host's clock. */
  const clv_backend_timer *timer;
};

/* Makes the backend with which a module on b computes; b itself if one backend serves all threads.
 * Free it with clv_backend_release. */
clv_code clv_backend_branch(const clv_backend *b, const clv_backend **ret,
                            clv_err *err) CLV_USE_RESULT;
const clv_backend *clv_backend_retain(const clv_backend *b);
void clv_backend_release(const clv_backend *b); /* takes NULL */

/* Calls b->check_tf32. CLV_PRECONDITION: b cannot compute in TF32; the text says what the key
 * `tf32` needs. */
clv_code clv_backend_check_tf32(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* These functions work on the backend's memory, or on host memory where b->memory is NULL. On the
 * host clv_backend_finish does nothing, and the contents of new memory are undefined. */
clv_code clv_backend_allocate(const clv_backend *b, size_t bytes, void *ret_pp,
                              clv_err *err) CLV_USE_RESULT;
/* Frees p. p may be NULL; b may be NULL only if p is. */
void clv_backend_free_memory(const clv_backend *b, void *p);
clv_code clv_backend_put(const clv_backend *b, void *dst, const void *host, size_t bytes,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_get(const clv_backend *b, void *host, const void *src, size_t bytes,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_get_in_pieces(const clv_backend *b, void *host, const void *src, size_t bytes,
                                   const clv_copy_progress *to, clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_copy(const clv_backend *b, void *dst, const void *src, size_t bytes,
                          clv_err *err) CLV_USE_RESULT;
/* True if b can copy from the memory of `from` without passing through host memory; from may be
 * b. */
bool clv_backend_can_copy_from(const clv_backend *b, const clv_backend *from);
/* Copies from the memory of `from`, which b must reach, or from host memory if `from` is NULL. */
clv_code clv_backend_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                               const void *src, size_t bytes, clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_fill(const clv_backend *b, void *dst, int byte, size_t bytes,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_backend_finish(const clv_backend *b, clv_err *err) CLV_USE_RESULT;

/* ---- recorder of repeated work (recorder.c) -------------------------------------------------- */

/* Records repeated work of a device. The plan runs each piece of work through clv_recorder_run. The
 * second run with the same key records the work, and later runs replay the record in one call.
 * Values that change between runs must therefore be in memory, written before the run. Work that
 * cannot be recorded is issued launch by launch each time; the recorder counts this, but reports no
 * error. The recorder keeps CLV_MAX_RECORDS records and evicts the least recently used. If more
 * kinds of work than that alternate, none is recorded. Work of a single launch is better issued
 * directly: a record of an optimiser's step would first need its numbers copied to memory. Threads:
 * one thread uses the recorder at a time, but any thread may call clv_recorder_count. */
typedef struct clv_recorder clv_recorder;

enum { CLV_MAX_RECORDS = 32, CLV_MAX_RECORD_POINTERS = 32 };

/* Key of a piece of work: the object that issues the work, the kind of work, and all memory that
 * the work uses. Equal keys must mean equal work. */
typedef struct clv_record_key {
  const void *owner;
  uintptr_t kind;
  const void *pointers[CLV_MAX_RECORD_POINTERS];
} clv_record_key;

typedef struct clv_record_counts {
  uint64_t records_made, replays; /* replays: runs done by replaying a record */
  /* number of keys whose work the backend or the account has refused to record */
  uint64_t keys_refused;
  /* runs that issued their launches one by one: not recorded yet, or impossible to record */
  uint64_t launched_singly;
  uint64_t bytes; /* device memory that the stored records occupy */
} clv_record_counts;

/* Account that is charged for the device memory of the stored records. Work whose charge is refused
 * is issued launch by launch and counted as refused. The thread that runs or frees the recorder
 * calls both functions. */
typedef struct clv_record_account {
  void *user;
  clv_code (*charge)(void *user, size_t bytes, clv_err *err);
  void (*discharge)(void *user, size_t bytes);
} clv_record_account;

/* Makes a recorder. *ret is NULL if the backend cannot record. b must outlive the recorder. */
clv_code clv_recorder_new(const clv_backend *b, clv_recorder **ret, clv_err *err) CLV_USE_RESULT;
/* Sets the account, which is copied; call it before the first run. Without an account nothing is
 * charged. r may be NULL. */
void clv_recorder_set_account(clv_recorder *r, const clv_record_account *account);
void clv_recorder_free(clv_recorder *r); /* takes NULL */
/* Frees the records of `owner`; call it before the owner is freed. r may be NULL. */
void clv_recorder_free_records_of(clv_recorder *r, const void *owner);
void clv_recorder_count(const clv_recorder *r, clv_record_counts *ret); /* takes NULL */

/* Runs the work that the callback `issue` issues, or replays its record without calling `issue`. */
clv_code clv_recorder_run(clv_recorder *r, const clv_record_key *key,
                          clv_code (*issue)(void *user, clv_err *err), void *user,
                          clv_err *err) CLV_USE_RESULT;

static inline const char *clv_backend_isa(const clv_backend *b) { return b->isa(b); }
static inline const char *clv_backend_libraries(const clv_backend *b) { return b->libraries(b); }

/* The backends of a process's devices, without its processor. The first is used where a
 * configuration names no device. */
typedef struct clv_backends {
  const clv_backend *const *list;
  size_t n;
} clv_backends;

/* Returns the reference backend, which defines every op in plain loops. It prepares every op in f32
 * and f64. */
const clv_backend *clv_backend_ref(void);

/* Returns the backend for processors, with oneDNN and OpenBLAS; f32. */
const clv_backend *clv_backend_cpu(void);

/* Returns the time of a node in bf16 on this processor, in percent of its time in f32, from a table
 * of measurements; 0: no such processor was measured. Reads op, attributes and shapes of the
 * description. *ret_processor: the processor that was measured: this one, or else another one of
 * its vendor with its instruction set. */
unsigned clv_backend_cpu_bf16_percent(const clv_node_desc *d, const char **ret_processor);

#ifdef __cplusplus
}
#endif
#endif
