/* SPDX-License-Identifier: Apache-2.0
 *
 * op_int: what one op is. Each op family has one file with a table of clv_op_def rows; op_table.c
 * lists the families. A new op of a family is a row there, its number in kernels.h and its loops in
 * kernels/ref.
 */
#ifndef CLEAVE_OP_INT_H
#define CLEAVE_OP_INT_H

#include "common/graph/graph.h"

enum { CLV_EXTENT_MAX = INT32_MAX };          /* of one dimension */
#define CLV_VALUE_BYTES_MAX ((size_t)1 << 40) /* of one activation or parameter */

/* One attribute an op takes; each of its numbers lies in low..high, both included. */
typedef struct clv_attr_row {
  clv_attr_key key; /* 0 ends a list */
  bool required;
  double fallback; /* default value */
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
  CLV_INIT_NORMAL,  /* mean 0, deviation 1 */
  CLV_INIT_FAN_OUT, /* mean 0, deviation sqrt(2 / fan_out) of slot 0 */
} clv_init;

/* One parameter slot of a node; the slot number is its place in the list. */
typedef struct clv_slot {
  const char *suffix; /* "weight" */
  clv_shape shape;
  bool buffer; /* not trainable */
  bool i64;    /* else the node's dtype */
  clv_init init;
  double bound; /* CLV_INIT_UNIFORM */
} clv_slot;

typedef struct clv_op_def {
  clv_op op;
  const char *name, *doc;
  int n_in, max_in; /* inputs: n_in, or n_in to max_in where that is not 0 */
  bool loss;
  bool labels; /* input 1 is i64 class indices; all other inputs are floats */
  bool rows;   /* input 0 is i64 row numbers; the output is of the graph's dtype */
  bool alias;  /* the output is the input's row-major memory under another shape */
  bool identity_in_eval;
  bool stride_is_kernel; /* the default of stride */
  bool test_only;        /* refused unless the process was started for tests */
  clv_attr_row attrs[8];
  clv_code (*shape)(const clv_op_site *site, clv_shape *ret, clv_err *err);
  /* Slots in order, their number is returned; NULL: no parameters. */
  int (*slots)(const clv_op_site *site, clv_slot ret[CLV_MAX_PARAMS]);
  /* What only training forbids; NULL: nothing. */
  clv_code (*check_training)(const clv_op_site *site, clv_err *err);
} clv_op_def;

typedef struct clv_op_family {
  const clv_op_def *ops;
  size_t n;
} clv_op_family;

extern const clv_op_family clv_family_dense, clv_family_pool, clv_family_pointwise,
    clv_family_softmax, clv_family_shape, clv_family_norm, clv_family_loss, clv_family_sequence,
    clv_family_select, clv_family_wait;

const clv_op_def *clv_op_def_of(clv_op op); /* NULL for CLV_OP_INPUT and unknown numbers */

clv_code clv_graph_clone(const clv_graph *g, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Attributes that did not come through clv_attrs_from: every value in its range. */
clv_code clv_attrs_check(clv_op op, const clv_attrs *attrs, clv_err *err) CLV_USE_RESULT;

/* The slots of a node of an inferred graph; 0 for inputs. */
int clv_node_slots(const clv_graph *g, const clv_node *node, clv_slot ret[CLV_MAX_PARAMS]);
void clv_node_site(const clv_graph *g, const clv_node *node, clv_op_site *ret);

/* Refuses another rank: "linear needs rank 2 [N, F], got [64, 32, 7, 7]; put a flatten before it"
 * with "[N, F]" as `layout` and the last part as `hint` (may be ""). */
clv_code clv_need_rank(const char *op, const clv_shape *in, int rank, const char *layout,
                       const char *hint, clv_err *err) CLV_USE_RESULT;
clv_code clv_same_shape(const clv_op_site *site, clv_shape *ret, clv_err *err) CLV_USE_RESULT;

/* Extents of a window (convolution or pool, floor mode) over H x W into ret[2]. */
clv_code clv_window_extents(const char *op, const clv_op_site *site, int64_t ret[2],
                            clv_err *err) CLV_USE_RESULT;

/* Every extent in 1..CLV_EXTENT_MAX and at most CLV_VALUE_BYTES_MAX bytes. `what` starts the
 * sentence: "the output". */
clv_code clv_check_value(const char *what, const clv_shape *shape, clv_dtype dtype,
                         clv_err *err) CLV_USE_RESULT;

#endif
