/* SPDX-License-Identifier: Apache-2.0
 *
 * ops: the definition of each op. An op is defined once, in kernels/ops/NAME.c: its row
 * (clv_op_def) and its reference loops. Parsing, shape checks, tests and documents are derived from
 * the rows.
 *
 * A new op is a line in kernels/ops.def and new files: kernels/ops/NAME.c, its cases
 * kernels/ops/NAME.cases, and kernels/BACKEND/NAME.c for each backend that has a kernel of its own.
 *
 * The loops are written over REAL. The Makefile compiles the file twice, with REAL float and with
 * REAL double; CLV_OP_ROW(name) defines clv_op_row_name_f32 and clv_op_row_name_f64. Loops that add
 * more than a few terms (matrix products, windows, means, losses) add in double, in index order,
 * and round once at the end. The f32 instance is therefore also the more exact side of a comparison
 * with another backend.
 *
 * Rows are constant and valid as long as the process.
 */
#ifndef CLEAVE_OPS_H
#define CLEAVE_OPS_H

#include <math.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of an op by its name, such as CLV_OP_NUMBER_linear. */
enum {
#define OP(number, NAME, name) CLV_OP_NUMBER_##name = number,
#include "kernels/ops.def"
#undef OP
};

enum { CLV_EXTENT_MAX = INT32_MAX };          /* largest extent of one dimension */
#define CLV_VALUE_BYTES_MAX ((size_t)1 << 40) /* largest size of one activation or parameter */

/* Attribute keys. Their numbers are sent in LoadModule: append only. */
typedef enum clv_attr_key {
  CLV_ATTR_OUT = 1,
  CLV_ATTR_KERNEL = 2,
  CLV_ATTR_STRIDE = 3,
  CLV_ATTR_PAD = 4,
  CLV_ATTR_GROUPS = 5,
  CLV_ATTR_BIAS = 6,
  CLV_ATTR_P = 7,
  CLV_ATTR_EPS = 8,
  CLV_ATTR_MOMENTUM = 9,
  CLV_ATTR_SHAPE = 10,
  CLV_ATTR_ROWS = 11,
  CLV_ATTR_LAYERS = 12,
  CLV_ATTR_DIM = 13,
  CLV_ATTR_START = 14,
  CLV_ATTR_STOP = 15,
  CLV_ATTR_FACTOR = 16,
  CLV_ATTR_FORWARD_MS = 17,
  CLV_ATTR_INPUT_MS = 18,
  CLV_ATTR_WEIGHT_MS = 19,
  CLV_ATTR_KAIMING_NORMAL = 20,
  CLV_ATTR_HEADS = 21,
  CLV_ATTR_KV_HEADS = 22,
  CLV_ATTR_CAUSAL = 23,
  CLV_ATTR_ORDER = 24,
  CLV_ATTR_BASE = 25,
  CLV_ATTR_COLUMN = 26,
  CLV_ATTR_MINUS = 27,
  CLV_ATTR_OFFSET = 28,
  CLV_ATTR_BARE = 29,
  CLV_ATTR_IGNORE_INDEX = 30,
  CLV_ATTR_LABEL_SMOOTHING = 31,
  CLV_ATTR_CLASS_WEIGHTS = 34,
  CLV_ATTR_INIT_STD = 35,
  CLV_ATTR_TRANSPOSED = 36,
  CLV_ATTR_INIT_ZERO = 37,
  CLV_ATTR_DILATION = 38,
  CLV_ATTR_OUTPUT_PAD = 39,
  CLV_ATTR_PACKED = 40,
  CLV_ATTR_FIRST = 41,
  CLV_ATTR_PADDING_IDX = 42,
  CLV_ATTR_MIN = 43,
  CLV_ATTR_MAX = 44,
  CLV_ATTR_MIN_VAL = 45,
  CLV_ATTR_MAX_VAL = 46,
  CLV_ATTR_ALPHA = 47,
  CLV_ATTR_BETA = 48,
  CLV_ATTR_THRESHOLD = 49,
  CLV_ATTR_EXPONENT = 50,
  CLV_ATTR_INIT = 51,
  CLV_ATTR_NUM_PARAMETERS = 52,
  CLV_ATTR_OUTPUT_SIZE = 53,
  CLV_ATTR_SIZE = 54,
  CLV_ATTR_SCALE_FACTOR = 55,
  CLV_ATTR_ALIGN_CORNERS = 56,
  CLV_ATTR_AFFINE = 57,
  CLV_ATTR_CORRECTION = 58,
  CLV_ATTR_SHIFTS = 59,
  CLV_ATTR_ORIGINAL = 60,
  CLV_ATTR_LOW_FREQ_FACTOR = 61,
  CLV_ATTR_HIGH_FREQ_FACTOR = 62,
  CLV_ATTR_COUNT
} clv_attr_key;

/* ---- the row of an op ------------------------------------------------------------------------ */

/* One attribute of an op. Each of its numbers must be in low..high, both included. */
typedef struct clv_attr_row {
  clv_attr_key key; /* 0 in the entry that ends a list of attributes */
  bool is_required;
  /* value of the attribute if it is not given; unused for `shape`, which then has rank 0 */
  double default_value;
  double low, high;
} clv_attr_row;

/* Arguments of an op's functions that compute shapes and slots. The caller has checked the number
 * and the extents of the inputs. */
typedef struct clv_op_site {
  const clv_attrs *attrs;
  int n_in;
  clv_shape in[CLV_MAX_IN];
  clv_dtype in_dtype[CLV_MAX_IN];
} clv_op_site;

typedef enum clv_init {
  CLV_INIT_ZERO,
  CLV_INIT_ONE,
  /* uniform in +-1/sqrt(fan_in), where fan_in is that of the op's first parameter, slot 0 */
  CLV_INIT_FAN_IN,
  CLV_INIT_UNIFORM, /* uniform in +-bound */
  CLV_INIT_NUMBER,  /* all values are the number `bound` */
  CLV_INIT_NORMAL,  /* normal, mean 0, standard deviation `bound`, or 1 if bound is 0 */
  /* normal, mean 0, standard deviation sqrt(2 / fan_out), where fan_out is that of the op's first
   * parameter, slot 0 */
  CLV_INIT_FAN_OUT,
} clv_init;

/* One parameter slot of a node. The slot number is its index in the list. */
typedef struct clv_slot {
  const char *suffix; /* name of the parameter after the node's name: "weight" */
  clv_shape shape;
  bool is_named_as_node; /* the parameter is named as the node, without the suffix */
  bool is_buffer;        /* a buffer as in PyTorch, which is not trained */
  bool is_i64;           /* type i64; false: the node's dtype */
  clv_init init;
  double bound;     /* number that CLV_INIT_UNIFORM, CLV_INIT_NUMBER and CLV_INIT_NORMAL use */
  int64_t zero_row; /* 1 + index of the row that is initialised with 0; 0: no such row */
} clv_slot;

/* Which inputs an op sums in one output, weighted by parameters with random initial values. An op
 * that only scales, moves, selects or squashes values mixes nothing, even if it has parameters.
 * master/plan/privacy.c derives from the mixing how well an op hides its inputs. */
typedef enum clv_mixing {
  CLV_MIXES_NOTHING,
  /* sums inputs along the last dimension, for each position of a sequence separately */
  CLV_MIXES_LAST,
  CLV_MIXES_ALL, /* sums inputs of several positions */
} clv_mixing;

/* How an op treats an input whose sequences are packed one after another without padding; see
 * clv_graph_pack_sequences. */
typedef enum clv_packing {
  /* a graph with the op cannot be packed, because the op would use padding, or mix sequences */
  CLV_PACKS_REFUSED,
  /* computes each position of a sequence separately, so packing changes nothing */
  CLV_PACKS_POSITIONS,
  /* takes the lengths as last input, and the attribute `packed`; its output has a row for each
   * position */
  CLV_PACKS_LENGTHS,
  /* takes packed sequences: the lengths are its last input, and it has the attribute `packed`. Its
   * output is not packed: it has one row for each sequence */
  CLV_PACKS_SEQUENCES,
} clv_packing;

/* Kernel of the reference backend. The loops of an op receive it as their clv_kernel. */
typedef struct clv_ref_kernel {
  clv_kernel base; /* first member: the backend `ref` casts its clv_kernel to clv_ref_kernel */
  clv_node_desc d;
  size_t n_in, n_out; /* numbers of values of input 0 and of the output */
  bool has_backward;  /* a backward function may follow, so forward must fill `saved` */
} clv_ref_kernel;

typedef clv_code clv_ref_fn(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
/* Returns the size of a buffer of the kernel, in bytes. */
typedef size_t clv_ref_bytes(const clv_ref_kernel *k);

typedef struct clv_op_def {
  const char *name;
  const char *doc; /* formula of the op, and the PyTorch function whose numbers it matches */

  /* The op in PyTorch. torch_module: the torch.nn module that computes the same numbers, as
   * "Linear(out=out_features, bias=bias)", which pairs the op's attributes with the module's;
   * "A|B(...)" for equivalent modules. torch_needs: attributes that the module must have, in
   * Python: "dilation=1, padding_mode='zeros'"; a pair stands for two equal numbers. Without such a
   * module torch_module is "", and no_torch_module is the reason. */
  const char *torch_module, *torch_needs, *no_torch_module;

  int n_in, max_in;       /* smallest and largest number of inputs; max_in 0: exactly n_in */
  clv_attr_row attrs[12]; /* attributes of the op; an entry whose key is 0 ends the list */
  clv_code (*shape)(const clv_op_site *site, clv_shape *ret, clv_err *err);
  /* writes the parameter slots in order and returns their number; NULL: the op has no parameters */
  int (*slots)(const clv_op_site *site, clv_slot ret[CLV_MAX_PARAMS]);
  int max_params; /* largest number of slots for any attributes; a node with more is refused */

  bool is_loss;
  bool takes_labels;      /* input 1 has i64 class indices; all other inputs have floats */
  bool takes_row_numbers; /* input 0 has i64 row numbers; the output has the graph's dtype */
  bool takes_lengths; /* input max_in - 1, if given, is i64: number of valid steps of each sample */
  clv_packing packing;
  /* how well the op hides its inputs from a node that does not know the op's first parameter, slot
   * 0; see master/plan/privacy.c */
  clv_mixing mixing;
  /* returns the largest number of inputs that are summed in one output; NULL: it is the number of
   * values in one row of a parameter */
  int64_t (*count_inputs_per_output)(const clv_op_site *site);
  bool is_alias;            /* the output is the input's row-major memory, with another shape */
  bool is_identity_in_eval; /* outside training the output equals the input */
  bool stride_is_kernel;    /* the default of the attribute `stride` is the attribute `kernel` */
  bool is_test_only;        /* loading the op fails unless the process runs in test mode */
  /* The op has no parameters, and value i of the output depends only on value i of each input, on
   * attributes and on i. Such an op gives the same bits in any layout. */
  bool elementwise;
  /* an elementwise op whose output is 0 where all inputs are 0, so that padding stays 0 */
  bool maps_zero_to_zero;
  bool takes_tails;           /* a kernel may also compute the CLV_TAIL_* ops that follow it */
  bool uses_batch_statistics; /* in training a sample's output depends on the other samples */
  bool computes_in_bf16;      /* computes in bf16 if the plan asks for bf16 */
  /* offsets in clv_attrs of the real attributes that the formula of an elementwise op reads as p
   * and q (clv_formula_numbers); 0: none */
  size_t formula_attr_offsets[2];
  bool may_output_bf16; /* rounds its output to bf16 if all kernels that read it compute in bf16 */

  /* Fails if the op cannot be trained with these arguments; NULL: it always can. */
  clv_code (*check_training)(const clv_op_site *site, clv_err *err);
  /* Fails if no backend has a kernel for the node; NULL: some backend always has one. */
  clv_code (*check_kernel)(const clv_node_desc *d, clv_err *err);

  /* the reference loops */
  clv_ref_fn *forward, *backward_input, *backward_weight;
  unsigned saved_for_dx; /* CLV_SAVE_* flags of the values that backward_input reads */
  unsigned saved_for_dw; /* CLV_SAVE_* flags of the values that backward_weight reads */
  bool in_place;         /* the output of forward may have the memory of input 0 */
  /* backward_input also writes the gradients of the parameters; false: backward_weight does */
  bool fused_grads;
  /* return the sizes of the buffers `saved` and `scratch`; NULL: the op has no such buffer */
  clv_ref_bytes *saved_bytes, *scratch_bytes;
} clv_op_def;

/* ---- the table of ops ------------------------------------------------------------------------ */

/* Returns the row of an op; NULL for CLV_OP_INPUT and unknown numbers. */
const clv_op_def *clv_op_def_of(clv_op op);
/* Returns the text of the torch.nn module that equals the op, or the reason why there is none;
 * never NULL. */
const char *clv_op_torch_text(const clv_op_def *def);

/* Returns the row of an op whose loops compute in `dtype`, f32 or f64; NULL for other dtypes and
 * unknown numbers. */
const clv_op_def *clv_op_def_of_dtype(clv_op op, clv_dtype dtype);

/* Finds an op by its name in a session file ("conv2d"); the error suggests similar names ("did you
 * mean"). */
clv_code clv_op_find(const char *name, clv_op *ret, clv_err *err) CLV_USE_RESULT;
const char *clv_op_name(clv_op op); /* Returns the op's name; "?" if `op` is no op's number. */
/* Returns the formula of the op and the PyTorch function whose numbers it matches; "" if `op` is no
 * op's number. */
const char *clv_op_doc(clv_op op);
bool clv_op_is_loss(clv_op op);
/* Returns the smallest number of inputs; 0 if `op` is no op's number. */
int clv_op_n_inputs(clv_op op);

/* Returns a text that describes the i64 numbers of input i, such as "i64 row numbers"; NULL if the
 * input holds floats. */
const char *clv_op_int_input_text(const clv_op_def *def, int i);

/* Returns the largest number of inputs that the op sums in one output, weighted by parameters; 0
 * for an op that mixes nothing. */
int64_t clv_op_fan_in(clv_op op, const clv_op_site *site);

/* Values of the attributes that the formula of an elementwise op reads as p and q. The row's field
 * formula_attr_offsets names the attributes. */
typedef struct clv_formula_numbers {
  double p, q;
} clv_formula_numbers;
/* Returns p and q of a node's formula. A value near FLT_MAX, the end of the range of attributes, is
 * returned as infinity. */
clv_formula_numbers clv_op_formula_numbers(const clv_node_desc *d);
/* As clv_op_formula_numbers, for a caller that has the op's row but not the table of all rows. */
clv_formula_numbers clv_op_formula_numbers_of_row(const clv_op_def *def, const clv_attrs *attrs);

/* Returns how many parameters and buffers a node of the op has at most; 0 if `op` is no op's
 * number. */
int clv_op_max_params(clv_op op);

/* ---- functions for the rows of ops ----------------------------------------------------------- */

/* Fails unless `in` has the rank. The error is "lstm needs rank 3 [N, T, F], got [4, 7]; give it a
 * sequence", where "[N, T, F]" is `layout` and "; give it a sequence" is `hint`, which may be "".
 */
clv_code clv_check_rank(const char *op, const clv_shape *in, int rank, const char *layout,
                        const char *hint, clv_err *err) CLV_USE_RESULT;
/* Shape rule of ops whose output has the shape of input 0. */
clv_code clv_shape_of_input(const clv_op_site *site, clv_shape *ret, clv_err *err) CLV_USE_RESULT;

/* Writes the output extents of a convolution or pool over H x W, or over L, to ret[2], rounded down
 * as with PyTorch's ceil_mode=False. Fails if the window does not fit the input. */
clv_code clv_window_extents(const char *op, const clv_op_site *site, int64_t ret[2],
                            clv_err *err) CLV_USE_RESULT;

/* Writes the index of the dimension attrs->dim of input 0 to *ret. CLV_INVALID: input 0 has no such
 * dimension. */
clv_code clv_find_dim(const char *op, const clv_op_site *site, int *ret,
                      clv_err *err) CLV_USE_RESULT;
/* As clv_find_dim, but fails for dimension 0 as well, because ops never mix the samples of a batch.
 */
clv_code clv_find_axis(const char *op, const clv_op_site *site, int *ret,
                       clv_err *err) CLV_USE_RESULT;

/* clv_trailing_dims returns the trailing dimensions over which an op normalises: attrs->shape, or
 * the last dimension if no shape is given. clv_check_trailing_dims fails for an input that does not
 * end in them, and for one that has no other dimension, because the batch is not normalised over.
 */
clv_shape clv_trailing_dims(const clv_op_site *site);
clv_code clv_check_trailing_dims(const char *op, const clv_op_site *site,
                                 clv_err *err) CLV_USE_RESULT;

/* Fails for extents above CLV_EXTENT_MAX, an empty batch, or more than CLV_VALUE_BYTES_MAX bytes.
 * `what` starts the error's sentence: "the output". */
clv_code clv_check_shape_and_dtype(const char *what, const clv_shape *shape, clv_dtype dtype,
                                   clv_err *err) CLV_USE_RESULT;

/* Fails if an extent other than the batch is 0, for ops where PyTorch fails too. */
clv_code clv_check_no_empty_dim(const char *op, const clv_shape *in, clv_err *err) CLV_USE_RESULT;

/* Writes the length of sample i to *ret. CLV_INVALID: the length is outside 0..steps;
 * clv_err_set_offending_value has it. */
clv_code clv_check_length(const int64_t *lengths, int64_t i, int64_t steps, int64_t *ret,
                          clv_err *err) CLV_USE_RESULT;

/* Checks the lengths of packed sequences: each is in 0..steps, and their sum is at most `rows`. */
clv_code clv_check_packed(const int64_t *lengths, int64_t n, int64_t steps, int64_t rows,
                          clv_err *err) CLV_USE_RESULT;
/* Checks the input shapes of an op that can be packed: with the attribute `packed`, input 0 must be
 * [T, F] and input number lengths_input must be [N]; without the attribute there must be no such
 * input. */
clv_code clv_check_packed_shapes(const char *op, const clv_op_site *site, int lengths_input,
                                 clv_err *err) CLV_USE_RESULT;

/* Writes the label of sample i to *ret. CLV_INVALID: the label is outside 0..classes-1;
 * clv_err_set_offending_value has it. */
clv_code clv_check_label(const int64_t *labels, int64_t i, int64_t classes, int64_t *ret,
                         clv_err *err) CLV_USE_RESULT;
/* As clv_check_label, but each sample has n_positions positions with a label each: i counts the
 * positions of all samples, and the error names the sample and the position. */
clv_code clv_check_position_label(const int64_t *labels, int64_t i, int64_t n_positions,
                                  int64_t classes, int64_t *ret, clv_err *err) CLV_USE_RESULT;

/* ---- rotation angles of the op rotary -------------------------------------------------------- */

/* nvcc compiles the function clv_rotary_angle below for devices, too. */
#ifdef __CUDACC__
#define CLV_ROTARY_INLINE static __device__ inline
#else
#define CLV_ROTARY_INLINE static inline
#endif

/* Attributes of an op rotary from which its angles are computed. */
typedef struct clv_rotary_angles {
  double base, factor;
  double original_steps; /* attribute `original`; 0: the angles are not those of Llama 3.1 */
  double low_freq_factor, high_freq_factor;
} clv_rotary_angles;

static inline clv_rotary_angles clv_rotary_angles_of(const clv_attrs *a) {
  clv_rotary_angles ret = {a->base, a->factor, (double)a->original, a->low_freq_factor,
                           a->high_freq_factor};
  return ret;
}

/* Returns the angle in radians by which pair d of a head of 2 * half values is rotated from one
 * step to the next. With f = base^(-d / half), the angle is f / factor if original_steps is 0.
 * Otherwise, as in Llama 3.1, it depends on turns = original_steps f / (2 pi), the number of full
 * turns of the pair within original_steps: the angle is f from high_freq_factor turns on, f /
 * factor up to low_freq_factor turns, and interpolated linearly in between. */
CLV_ROTARY_INLINE double clv_rotary_angle(const clv_rotary_angles *r, double d, double half) {
  const double full_turn = 6.283185307179586;
  double f = pow(r->base, -d / half);
  if (r->factor == 1) return f;
  if (r->original_steps == 0) return f / r->factor;
  double unscaled_share = (r->original_steps * f / full_turn - r->low_freq_factor) /
                          (r->high_freq_factor - r->low_freq_factor);
  unscaled_share = unscaled_share < 0 ? 0 : unscaled_share > 1 ? 1 : unscaled_share;
  return f * (unscaled_share + (1 - unscaled_share) / r->factor);
}

#ifdef __cplusplus
}
#endif
#endif
