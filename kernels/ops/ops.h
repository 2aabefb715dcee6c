/* SPDX-License-Identifier: Apache-2.0
 *
 * ops: what each op is. An op is defined once, in kernels/ops/NAME.c: its row below and, beside it,
 * the loops that are its reference. All that concerns every op is derived from the rows.
 *
 * A new op is a line in kernels/ops.def and files that are added: kernels/ops/NAME.c, its cases
 * kernels/ops/NAME.cases, and for each backend that has a kernel of its own kernels/BACKEND/NAME.c.
 *
 * The loops are written over REAL. The Makefile compiles the file twice, with REAL float and with
 * REAL double; CLV_OP_ROW(name) defines clv_op_row_name_f32 and clv_op_row_name_f64. Whatever adds
 * more than a few terms (matrix products, windows, means, losses) adds in double and rounds once at
 * the end, in index order, so that the f32 instance is also the more exact opinion in a comparison.
 *
 * Rows are constant and live as long as the process.
 */
#ifndef CLEAVE_OPS_H
#define CLEAVE_OPS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of an op by its name: CLV_OP_NUMBER_linear. */
enum {
#define OP(number, NAME, name) CLV_OP_NUMBER_##name = number,
#include "kernels/ops.def"
#undef OP
};

enum { CLV_EXTENT_MAX = INT32_MAX };          /* of one dimension */
#define CLV_VALUE_BYTES_MAX ((size_t)1 << 40) /* of one activation or parameter */

/* Attribute keys; the numbers travel in LoadModule: append only. */
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
  CLV_ATTR_COUNT
} clv_attr_key;

/* ---- a row ----------------------------------------------------------------------------------- */

/* One attribute an op takes; each of its numbers lies in low..high, both included. */
typedef struct clv_attr_row {
  clv_attr_key key; /* 0 ends a list */
  bool required;
  double fallback; /* default value; of `shape`: none given */
  double low, high;
} clv_attr_row;

/* What a shape rule sees: inputs are already checked for count and extents. */
typedef struct clv_op_site {
  const clv_attrs *attrs;
  int n_in;
  clv_shape in[CLV_MAX_IN];
  clv_dtype in_dtype[CLV_MAX_IN];
} clv_op_site;

typedef enum clv_init {
  CLV_INIT_ZERO,
  CLV_INIT_ONE,
  CLV_INIT_FAN_IN,  /* uniform in +-1/sqrt(fan_in) of slot 0 */
  CLV_INIT_UNIFORM, /* in +-bound */
  CLV_INIT_NORMAL,  /* mean 0, deviation `bound`, or 1 where that is 0 */
  CLV_INIT_FAN_OUT, /* mean 0, deviation sqrt(2 / fan_out) of slot 0 */
} clv_init;

/* One parameter slot of a node; the slot number is its place in the list. */
typedef struct clv_slot {
  const char *suffix; /* "weight" */
  clv_shape shape;
  bool bare;   /* the parameter is called as the node, without the suffix */
  bool buffer; /* not trainable */
  bool i64;    /* else the node's dtype */
  clv_init init;
  double bound;     /* CLV_INIT_UNIFORM, CLV_INIT_NORMAL */
  int64_t zero_row; /* 1 + the row of a table that begins with 0; 0: none */
} clv_slot;

/* Of which inputs each output is a sum, weighted by parameters whose first values are random. An op
 * that only scales, moves, picks or squashes values mixes nothing, whatever parameters it has. */
typedef enum clv_mixing {
  CLV_MIXES_NOTHING,
  CLV_MIXES_LAST, /* those along the last dimension: each place of a sequence by itself */
  CLV_MIXES_ALL,  /* several places too */
} clv_mixing;

/* What becomes of an op over sequences when they are packed: see clv_graph_pack. */
typedef enum clv_packing {
  CLV_PACKS_NOT,     /* it is refused: it would count pads, or take one sequence for another */
  CLV_PACKS_PLACES,  /* each place of a sequence goes by itself */
  CLV_PACKS_LENGTHS, /* it takes lengths as its last input, and `packed`; each place has a row */
  CLV_PACKS_ENDS,    /* the same, but the output has a row for each sequence */
} clv_packing;

/* What the reference loops get. */
typedef struct clv_ref_kernel {
  clv_kernel base; /* first: a clv_kernel of the backend `ref` is a clv_ref_kernel */
  clv_node_desc d;
  size_t n_in, n_out; /* elements of input 0 and of the output */
  bool learns;        /* some backward function will be called: forward fills `saved` */
} clv_ref_kernel;

typedef clv_code clv_ref_fn(clv_kernel *k, const clv_kernel_args *a, clv_err *err);
typedef size_t clv_ref_bytes(const clv_ref_kernel *k);

typedef struct clv_op_def {
  const char *name;
  const char *doc; /* formula and the PyTorch function whose numbers it matches */

  /* The torch.nn module of the same numbers, "Linear(out=out_features, bias=bias)": attribute of
   * the op = attribute of the module; "A|B(...)" for modules alike. torch_needs: attributes that
   * the module must have, as Python: "dilation=1, padding_mode='zeros'"; a pair stands for two
   * equal numbers. No module: torch_module is "" and no_torch_module the reason. */
  const char *torch_module, *torch_needs, *no_torch_module;

  int n_in, max_in;       /* inputs: n_in, or n_in to max_in where that is not 0 */
  clv_attr_row attrs[12]; /* one of key 0 ends them */
  clv_code (*shape)(const clv_op_site *site, clv_shape *ret, clv_err *err);
  /* Slots in order, their number is returned; NULL: no parameters. most_params: the most there can
   * be, whatever the attributes; more than it are refused when a node is added. */
  int (*slots)(const clv_op_site *site, clv_slot ret[CLV_MAX_PARAMS]);
  int most_params;

  bool loss;
  bool labels;  /* input 1 is i64 class indices; all other inputs are floats */
  bool rows;    /* input 0 is i64 row numbers; the output is of the graph's dtype */
  bool lengths; /* input max_in - 1, if given, is i64: how many steps of each sample count */
  clv_packing packs;
  /* What hides what went in from who does not know slot 0; see master/plan/privacy.c. mixed: the
   * most inputs that one output is a sum of; NULL: the values of one row of a slot's shape. */
  clv_mixing mixes;
  int64_t (*mixed)(const clv_op_site *site);
  bool alias; /* the output is the input's row-major memory under another shape */
  bool identity_in_eval;
  bool stride_is_kernel; /* the default of stride */
  bool test_only;        /* refused unless the process was started for tests */
  /* Value i of the output is made of value i of each input, attributes and i; no parameters. Such
   * an op gives the same bits in any layout. */
  bool elementwise;
  bool zero_stays;  /* elementwise, and 0 where all inputs are: padding that is zero stays zero */
  bool takes_tails; /* a kernel may do the ops of CLV_TAIL_* behind it as well */
  bool uses_batch_statistics; /* in training a sample's output depends on the other samples */
  bool bf16_in;               /* computes in bf16 where the plan does */
  bool bf16_out;              /* may round its output to bf16 where all readers compute in it */

  /* What only training forbids; NULL: nothing. */
  clv_code (*check_training)(const clv_op_site *site, clv_err *err);
  /* What no backend has a kernel for; NULL: nothing. */
  clv_code (*check_kernel)(const clv_node_desc *d, clv_err *err);

  /* The reference. saves_dx, saves_dw: what backward_input and backward_weight read (CLV_SAVE_*).
   * fused: backward_input writes the parameters' gradients too; else they can be computed apart. */
  clv_ref_fn *forward, *backward_input, *backward_weight;
  unsigned saves_dx, saves_dw;
  bool in_place; /* forward may write over input 0 */
  bool fused;
  clv_ref_bytes *saved_bytes, *scratch_bytes; /* NULL: none */
} clv_op_def;

/* ---- the table ------------------------------------------------------------------------------- */

const clv_op_def *clv_op_def_of(clv_op op); /* NULL for CLV_OP_INPUT and unknown numbers */
/* The torch.nn module of the row, or the reason why there is none; never NULL. */
const char *clv_op_torch_words(const clv_op_def *def);

/* The row whose loops compute in f32 or f64; NULL for other dtypes and unknown numbers. */
const clv_op_def *clv_op_def_in(clv_op op, clv_dtype dtype);

/* Op by its name in a session file ("conv2d"), with "did you mean" in the error. */
clv_code clv_op_find(const char *name, clv_op *ret, clv_err *err) CLV_USE_RESULT;
const char *clv_op_name(clv_op op); /* "?" outside the list */
const char *clv_op_doc(clv_op op);  /* formula and the PyTorch function whose numbers it matches */
bool clv_op_is_loss(clv_op op);
int clv_op_n_inputs(clv_op op); /* the fewest it takes; 0 outside the list */

/* What the i64 numbers of input i are: "i64 row numbers"; NULL where it holds floats. */
const char *clv_op_whole(const clv_op_def *def, int i);

/* The most inputs that one output is a sum of, weighted by parameters; 0 where nothing mixes. */
int64_t clv_op_mixed(clv_op op, const clv_op_site *site);

/* The most parameters and buffers that a node can have; 0 outside the list. */
int clv_op_most_params(clv_op op);

/* ---- what rows share ------------------------------------------------------------------------- */

/* Refuses another rank: "lstm needs rank 3 [N, T, F], got [4, 7]; give it a sequence"
 * with "[N, T, F]" as `layout` and the last part as `hint` (may be ""). */
clv_code clv_need_rank(const char *op, const clv_shape *in, int rank, const char *layout,
                       const char *hint, clv_err *err) CLV_USE_RESULT;
clv_code clv_same_shape(const clv_op_site *site, clv_shape *ret, clv_err *err) CLV_USE_RESULT;

/* Extents of a window (convolution or pool, floor mode) over H x W, or L, into ret[2]. */
clv_code clv_window_extents(const char *op, const clv_op_site *site, int64_t ret[2],
                            clv_err *err) CLV_USE_RESULT;

/* attrs->dim as an index of input 0. */
clv_code clv_find_dim(const char *op, const clv_op_site *site, int *ret,
                      clv_err *err) CLV_USE_RESULT;
/* The same, and not the batch: its samples never meet. */
clv_code clv_find_axis(const char *op, const clv_op_site *site, int *ret,
                       clv_err *err) CLV_USE_RESULT;

/* The trailing dimensions that an op normalises: attrs->shape, the last one where none is given.
 * The check refuses an input that does not end in them, or of which they are all: N is not among
 * them. */
clv_shape clv_trailing_of(const clv_op_site *site);
clv_code clv_trailing_shape(const char *op, const clv_op_site *site, clv_err *err) CLV_USE_RESULT;

/* Extents up to CLV_EXTENT_MAX, that of the batch 1 or more, and at most CLV_VALUE_BYTES_MAX bytes.
 * `what` starts the sentence: "the output". */
clv_code clv_check_value(const char *what, const clv_shape *shape, clv_dtype dtype,
                         clv_err *err) CLV_USE_RESULT;

/* Refuses a 0 behind the batch, for ops that PyTorch has none of either. */
clv_code clv_check_no_empty(const char *op, const clv_shape *in, clv_err *err) CLV_USE_RESULT;

/* The length of sample i, of 0..steps, or CLV_INVALID with the range; it is the error's element. */
clv_code clv_check_length(const int64_t *lengths, int64_t i, int64_t steps, int64_t *ret,
                          clv_err *err) CLV_USE_RESULT;

/* Packed sequences of so many `steps` at most: each has its length, and they fit into the rows. */
clv_code clv_check_packed(const int64_t *lengths, int64_t n, int64_t steps, int64_t rows,
                          clv_err *err) CLV_USE_RESULT;
/* Where `packed` is given, input 0 is [T, F] and input number `lengths` [N]; else there is none. */
clv_code clv_packed_shape(const char *op, const clv_op_site *site, int lengths,
                          clv_err *err) CLV_USE_RESULT;

/* The label of sample i, or CLV_INVALID with the range; the label is the error's element. */
clv_code clv_check_label(const int64_t *labels, int64_t i, int64_t classes, int64_t *ret,
                         clv_err *err) CLV_USE_RESULT;
/* The same where a sample has so many places: i counts them all, and the text names both. */
clv_code clv_check_place_label(const int64_t *labels, int64_t i, int64_t places, int64_t classes,
                               int64_t *ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
